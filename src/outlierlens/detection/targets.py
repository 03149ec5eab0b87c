"""The dimensions that a measure is about: those asked for, else those that the scan finds, else the strongest.

named = named_dims(loaded, stack, (308, 381))      # or None: what the weights name
named.dims, named.by, named.notes
active_dims(loaded, stack, texts, ObserveOptions())    # where the weights name none: what rules on activations name
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Data
from outlierlens.detection.activations import ObserveOptions, observed
from outlierlens.detection.rules import Rule
from outlierlens.detection.weights import scan_stream
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND, Find

N_STRONGEST = 2
ACTIVE = ("massive", "llm.int8", "luo")  # rules on activations; the first of them that names any dimension counts


@dataclass(frozen=True)
class NamedDims:
    """Dimensions of one stream, and who names them.

    Attributes:
        dims: as they were asked for, or as the scan lists them, or in order of number.
        by: "given", "the scan of the weights, at 3 sigma", …
        found: what the scan finds, whatever was asked for.
        notes: remarks for the result.
    """

    dims: tuple[int, ...]
    by: str
    found: tuple[int, ...]
    notes: tuple[str, ...] = ()


def named_dims(
    loaded: LoadedModel, stack: BoundStack, asked: Sequence[int] | Find = FIND, rule: Rule | None = None
) -> NamedDims:
    """The dimensions `asked` for, each once; for "find", what the scan of the stream finds by `rule`, else its strongest two.

    Raises:
        BadInput: a dimension that the stream does not have, or an empty list of them.
    """
    given = () if asked == FIND else tuple(asked)
    if asked != FIND and not given:
        raise BadInput('no dimension is named; give some, or "find" for those that the weights name')
    check_dims(given, stack, stream_width(loaded.model, stack))
    scanned = scan_stream(loaded, stack.name, rule)
    if given:
        return NamedDims(tuple(dict.fromkeys(given)), "given", scanned.dims)
    if scanned.dims:
        return NamedDims(scanned.dims, scanned.named_by, scanned.dims)
    strongest = tuple(sorted(scanned.strongest_dims(N_STRONGEST)))
    if not strongest:
        raise BadInput(
            f"{loaded.name}: the weights of {scanned.site} are all equal, so none is an outlier; name dimensions"
        )
    said = ", ".join(map(str, strongest))
    note = (
        f"the scan names no outlier; {said} are the {N_STRONGEST} of largest |z| in the weights, which is not a finding"
    )
    return NamedDims(strongest, "largest |z| in the weights, as the scan names none", (), (note,))


def active_dims(
    loaded: LoadedModel, stack: BoundStack, texts: Data, options: ObserveOptions
) -> tuple[tuple[int, ...], str]:
    """(dimensions that a rule on activations names, the strongest first; which rule it is); ((), "") where none does."""
    outliers = [one for seen in observed(loaded, texts, options) if seen.stack == stack.name for one in seen.outliers]
    for rule in ACTIVE:
        mine = sorted((one for one in outliers if one.rule == rule), key=lambda one: -max(one.strength, default=0.0))
        if mine:
            return tuple(dict.fromkeys(one.dim for one in mine)), rule
    return (), ""


def check_dims(dims: Sequence[int], stack: BoundStack, width: int) -> None:
    """Raise BadInput for a dimension that the stream, `width` wide, does not have."""
    bad = [dim for dim in dims if not 0 <= dim < width]
    if bad:
        raise BadInput(f"dimension {bad[0]} does not exist; stream {stack.name} has dimensions 0 to {width - 1}")
