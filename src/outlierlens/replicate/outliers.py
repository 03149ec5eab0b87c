"""Which dimensions are switched off: those that the paper's rule names in the weights, or those that are given.

named = name_outliers(scanned(loaded, rule), rule, (), where="the fine-tuned model")
named.dims, named.by, named.by_rule
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outlierlens.detection.rules import Rule
from outlierlens.detection.scan.measure import ScanOptions, scan, scan_stream
from outlierlens.detection.scan.result import StackScan
from outlierlens.detection.targets import N_STRONGEST
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, LoadOptions

STRONGEST = "strongest"  # in place of dimensions: the two whose |z| is largest, whatever the rule says


@dataclass(frozen=True)
class Named:
    """The outliers of a model.

    Attributes:
        dims: strongest first; () where there are none.
        by: how they were found, for reading. by_rule: whether the rule found them.
        notes: remarks for the result.
    """

    dims: tuple[int, ...]
    by: str
    by_rule: bool
    notes: tuple[str, ...] = ()


def scanned(loaded: LoadedModel, rule: Rule) -> StackScan:
    """What `rule` finds in the loaded weights of the model's stream; raises BadInput where it has several."""
    return scan_stream(loaded, loaded.stack().name, ScanOptions(rule=rule))


def scanned_base(base: str, rule: Rule, load: LoadOptions, like: StackScan) -> StackScan:
    """What `rule` finds in the stored weights of the pre-trained model, in the stream of `like`.

    Raises:
        BadInput: it has no such stream.
    """
    options = ScanOptions(
        rule=rule,
        row=load.row,
        revision=load.revision,
        subfolder=load.subfolder,
        token=load.token,
        offline=load.offline,
    )
    for one in scan(base, options).stacks:
        if (one.stack, one.n_layers, one.hidden_size) == (like.stack, like.n_layers, like.hidden_size):
            return one
    raise BadInput(
        f"{base} has no stream {like.stack!r} of {like.n_layers} layers × {like.hidden_size:,}, which the fine-tuned model "
        f"has; name the model that was fine-tuned, or use --outliers-of tuned"
    )


def name_outliers(mine: StackScan, rule: Rule, dims: tuple[int, ...] | str, *, where: str) -> Named:
    """The outliers by the scan `mine`, made by `rule`, of the model in words `where`; `dims` overrides it.

    `dims` is () for what the rule names, dimensions, or `STRONGEST`.

    Raises:
        BadInput: a dimension that the model does not have.
    """
    by_rule = tuple(outlier.dim for outlier in mine.outliers)
    said = f"the rule of {rule.name.capitalize()} et al. at {mine.n_sigma:g} σ in the weights of {where}"
    if mine.n_sigma < rule.n_sigma:
        said += f" (relaxed from {rule.n_sigma:g} σ)"
    names = f"which names {_listed(by_rule)}" if by_rule else "which names none"
    if dims == STRONGEST:
        chosen = mine.strongest_dims(N_STRONGEST)
        if not chosen:
            raise BadInput(f"the weights of {where} are all equal, so none stands out; name dimensions")
        return Named(
            chosen,
            f"fallback: the {N_STRONGEST} of largest |z|, not {said}, {names}",
            False,
            (f"{_listed(chosen)} are a fallback, the strongest by |z|: {said}, {names}",),
        )
    if dims:
        wrong = [dim for dim in dims if not 0 <= int(dim) < mine.hidden_size]
        if wrong:
            raise BadInput(f"dimension {wrong[0]} does not exist; {where} has dimensions 0 to {mine.hidden_size - 1}")
        given = tuple(dict.fromkeys(int(dim) for dim in dims))
        same = set(given) == set(by_rule)
        return Named(given, f"given; also {said}" if same else f"given, not {said}, {names}", same)
    if by_rule:
        return Named(by_rule, said, True)
    note = (
        f"{said[0].upper()}{said[1:]} names no dimension, so there is none to switch off: the table has the intact model "
        f"and random sets only (--dims names dimensions, or takes the strongest)"
    )
    return Named((), f"none by {said}", False, (note,))


def _listed(dims: Sequence[int]) -> str:
    return ", ".join(map(str, dims))
