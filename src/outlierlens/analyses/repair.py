"""A copy of a model that fits a narrower format, or whose stream is turned, and that gives the same outputs.

found = repair("smollm2", Path("fits"), RepairOptions(fit="fp16"), texts=read_texts("texts.txt"))
found.exact                                       # float32 outputs are equal bit for bit
found.before.largest, found.after.largest         # |h|
found.exponent                                    # -4: the stream is a 16th of what it was

`repair_factors` knows which channels can take a power of two and which one, `repair_rewriting` how a model is changed,
`repair_files` what is written.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from annotated_types import Ge

from outlierlens.analyses import repair_files as files
from outlierlens.analyses.range import INSIDE, MARGIN
from outlierlens.analyses.repair_factors import (
    LIMITS,
    Arguments,
    CheckData,
    Sizes,
    check_of,
    in_format,
    outputs,
    sizes_of,
)
from outlierlens.analyses.repair_rewriting import MATRIX, TOLERANCE, RewritingPlan, repaired, rotated, stream_plan
from outlierlens.analyses.scan import scan_live
from outlierlens.checkpoints.samples import check_space
from outlierlens.data.texts import EXCERPT, Data, read_texts
from outlierlens.errors import BadFile, BadInput, markdown
from outlierlens.models.folder import model_folder
from outlierlens.models.inputs import Progress
from outlierlens.models.load import STORED, LoadedModel, LoadOptions, load_model
from outlierlens.options import Flag, check
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Row
from outlierlens.results.safe_files import check_folder, new_folder
from outlierlens.view.section import FineShare, cell_text

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.analyses.repair_factors import Factors
    from outlierlens.session import Session

NEAR = 1e-5  # of the largest output: what a rewriting that is not exact may differ by in float32
N_TEXTS = 16
FLOAT32 = "float32"  # what a model fits that nothing narrower is asked of
# (how far above the median neuron one may stay, the share in logarithms of what is above that comes down)
BALANCES = tuple((cap, share) for share in (0.5, 1.0) for cap in (1.0, 4.0, 16.0, 64.0, 256.0))


@dataclass(frozen=True, kw_only=True)
class RepairOptions:
    """What the model must fit, and whether its stream is turned first."""

    fit: Literal["fp16", "bf16", "fp8", "int8"] | None = None
    """fp16, bf16, fp8 (e4m3): hidden states and what blocks hold fit its range. int8: the MLPs' inner spikes come down."""
    rotate: bool = False
    """Turn the residual stream, so that no dimension is an outlier (needs RMS norms before its readers). Outputs stay
    equal within 2e-4."""
    margin: Annotated[int, Ge(1)] = MARGIN
    """Room between the largest value seen and the largest that the format holds."""
    max_length: Annotated[int, Ge(2)] = 128
    """Maximum number of tokens per text; the model's number of positions if that is smaller."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random tokens of the check, and of the rotation."""

    def __post_init__(self) -> None:
        check(self)
        if self.fit is None and not self.rotate:
            raise BadInput("nothing is asked: name a format that the model must fit (--fit fp16), or --rotate")


@dataclass(frozen=True, kw_only=True)
class RepairCall(RepairOptions):
    """What the model must fit, and where it is written."""

    folder: Annotated[Path, Flag("-o", "--output")]
    """Folder to write; it must not exist."""


# --- what is found -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FitCheck(Row):
    """A model on the texts of the check, in the target format."""

    model: str
    largest: float
    """largest |h|: after any block, in float32"""
    spikes: float
    """spike: the largest neuron over the median one, of the linear with the most; 0 where no neuron can take a factor"""
    finite: Annotated[float, FineShare]
    """finite: share of the outputs that are finite in the format"""
    distance: float
    """from float32: mean absolute difference of the outputs that are finite"""
    named: tuple[int, ...]
    """dimensions found: those that a scan of the weights names, all streams together"""


@dataclass(frozen=True, kw_only=True)
class SizeChange(Row):
    """The largest |x| of a tensor, in float32."""

    tensor: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class Repair(Finding):
    """A model rewritten by powers of two, or with its streams turned.

    Attributes:
        folder: its name; "" where nothing had to change, or nothing helps.
        fit, margin: what was asked; fit is "float32" where the stream is turned and nothing else.
        rotated: whether streams were turned by an orthogonal matrix; weights are float32 then.
        exponent: of the residual stream's factor, 0 where it stays. channels: that take a factor of their own, by
            kind of pair ("neurons", "values", "keys", "norms").
        epsilons: {config key: (before, after)}. untied: whether the head became a parameter of its own.
        n_changed: parameters, of `n_parameters`. n_random: random tokens of the check, beside the texts.
        exact: whether float32 outputs are equal bit for bit; if not, `reasons`, and `difference` of the largest output.
    """

    title = "A repaired model"

    models: tuple[FitCheck, ...]
    """Before and after, in the format"""
    kinds: tuple[SizeChange, ...]
    """(Largest |x| of each kind of tensor)"""
    folder: str
    fit: str
    margin: int
    rotated: bool
    exponent: int
    channels: dict[str, int]
    epsilons: dict[str, tuple[float, float]]
    untied: bool
    n_changed: int
    n_parameters: int
    n_random: int
    exact: bool = True
    reasons: tuple[str, ...]
    difference: float = 0.0

    @property
    def before(self) -> FitCheck:
        """The model as it was."""
        return self.models[0]

    @property
    def after(self) -> FitCheck:
        """The copy, read back."""
        return self.models[-1]

    def sentences(self) -> Iterator[str]:
        model, limit = self.provenance.subject, LIMITS.get(self.fit, math.inf)
        if self.folder:
            yield from self.changes()
        elif self.fit == "int8":
            yield f"No repair helps: no factors of neurons bring {model}'s outputs in int8 nearer to float32."
        else:
            yield f"No repair needed: {model} fits {self.fit} with a margin of {self.margin:g} ×."
        if beyond := [one.tensor for one in self.kinds if one.after > limit and one.tensor not in INSIDE]:
            yield f"Still beyond {self.fit}: {', '.join(beyond)}. No factor passes there."
        yield f"Written to the folder {self.folder}." if self.folder else "Nothing was written."

    def changes(self) -> Iterator[str]:
        """What was rewritten, and whether outputs stayed."""
        if self.rotated:
            was, now = (", ".join(map(str, one.named)) or "none" for one in self.models)
            yield f"The residual stream is turned. Dimensions that a scan names: {was}; now: {now}. Weights are float32."
        if self.exponent:
            was, now = (cell_text(one.largest) for one in self.models)
            yield f"The residual stream is divided by {2**-self.exponent:,}: its largest value was {was} and is {now}."
        for key, (old, new) in self.epsilons.items():
            yield f"{key} in the config: {old:g} became {new:.6g}."
        for kind, count in self.channels.items():
            yield f"{count:,} channels of {kind} take a factor of their own, and give it back where they are read."
        if self.untied:
            yield "The head is a parameter of its own now."
        yield f"{self.n_changed:,} of {self.n_parameters:,} parameters change."
        read = f"{self.about.n_texts:,} {self.about.inputs} and {self.n_random:,} random tokens"
        far = f"differ by {self.difference:.2g} of the largest on {read}: {'; '.join(self.reasons)}"
        yield f"Outputs in float32 {f'are equal bit for bit on {read}' if self.exact else far}."


# --- how it is made ------------------------------------------------------------------------------------------------


def repair(
    name: str, folder: Path, options: RepairOptions, *, texts: Data | None = None, load: LoadOptions | None = None,
    overwrite: bool = False, progress: Progress | None = None,
) -> Repair:  # fmt: skip
    """Write the model `name` to `folder`, rewritten by powers of two so that it fits the format, and check it.

    Where nothing has to change, or no factor helps, nothing is written, and the result's `folder` is "". Nothing is left in
    `folder` unless the copy, read back, gives the same outputs in float32: bit for bit, or within
    1e-5 of the largest where the family allows no more.

    Raises:
        BadInput: the folder exists or has no room, weights are quantized, or the family cannot be rewritten.
        BadFile: damaged weights; or what was written reads back as another model.
    """
    tell, fit = progress or (lambda *_: None), options.fit or FLOAT32
    load = replace(load or LoadOptions(), dtype=FLOAT32)
    free = partial(check_folder, folder, "repaired model", files.MANIFEST, replace=overwrite)
    free()
    loaded = load_model(name, load)
    model: Any = loaded.model
    whole = options.rotate or load.adapter is not None  # what is written are these values, in float32
    place = next(one for one in folder.absolute().parents if one.exists())
    check_space(model.get_memory_footprint(), place, str(folder), "name a folder with -o on")
    data = check_of(
        loaded, texts := texts or read_texts(EXCERPT, limit=N_TEXTS), max_length=options.max_length, seed=options.seed
    )
    tell("measured", 0, 3)
    sizes, wanted = sizes_of(loaded, data), outputs(model, data.arguments)
    before, provenance = _fit_check("before", loaded, sizes, fit, data, wanted), loaded.provenance(seed=options.seed)
    with ExitStack() as undo:
        untied, seen = False, sizes
        if options.rotate:
            turned = rotated(loaded, lambda: _flat(outputs(model, data.arguments)), seed=options.seed)
            untied, seen = undo.enter_context(turned), sizes_of(loaded, data)
        plan, exponent, factors = plan_for(loaded, seen, data.arguments[::2], fit, margin=options.margin)
        plan.untie |= untied
        plan.reasons += ("streams are turned, which rounds every weight once",) if options.rotate else ()
        n_parameters, channels = sum(1 for _ in model.parameters()), Counter[str]()
        for pair, exponents in factors:
            channels[pair.kind] += int((exponents != 0).sum())
        made = Repair(
            provenance=provenance,
            about=About(
                data=texts.source, data_digest=texts.digest, inputs=texts.plural, n_texts=len(texts),
                n_tokens=data.n_tokens, max_length=data.max_length,
            ),
            models=(before, replace(before, model="after")), kinds=_size_changes(sizes, sizes),
            folder=folder.name if plan.exponents or options.rotate else "", fit=fit, margin=options.margin,
            rotated=options.rotate, exponent=exponent, channels=dict(channels),
            epsilons=plan.epsilons, untied=plan.untie,
            n_changed=n_parameters if options.rotate else len(plan.exponents), n_parameters=n_parameters,
            n_random=data.n_random, reasons=plan.reasons, notes=(*loaded.notes, *stays_wide(loaded, fit)),
        )  # fmt: skip
        if not made.folder:
            return made
        source = model_folder(name, subfolder=load.subfolder, offline=load.offline, notice=load.notice)
        # Turned and adapted weights are written as they are: a narrower type would change them by more than is promised.
        shards = None if whole else files.find_shards(source, model, plan)
        same = shards.same if shards else plan.same(model)
        stored = loaded if shards or whole else load_model(name, replace(load, dtype=STORED))
        kind, device, attention = type(model), loaded.device, model.config._attn_implementation
        loaded, model = replace(loaded, model=cast(Any, None)), None  # memory for the copy
        tell("written", 1, 3)
        with new_folder(folder) as part:
            if shards:
                files.write_shards(shards, part, plan)
            else:
                files.save_model(part, stored, source, plan)
            del stored
            undo.close()
            kinds = dict.fromkeys(("dtype", "torch_dtype"), FLOAT32) if whole else {}
            files.write_rest(part, source, plan.settings | kinds)
            tell("checked", 2, 3)
            if not whole:
                files.check_unchanged(part, source, same)
            copy = kind.from_pretrained(part, dtype=FLOAT32, local_files_only=True).eval().to(device)
            copy.config._attn_implementation = attention
            made = _checked(made, replace(loaded, model=copy), data, wanted, sizes)
            files.write_about(part, plan, _about(made, provenance.subject), card(made, provenance.subject))
            free()  # once more: the checks took their time
    return made


def plan_for(
    loaded: LoadedModel, sizes: Sizes, arguments: Arguments, fit: str, *, margin: int
) -> "tuple[RewritingPlan, int, Factors]":
    """(what changes, the stream's exponent, pairs with their exponents) for the measured ranges; `arguments` decide about int8.

    Raises:
        BadInput: no factor passes through this family.
    """
    if fit == "int8" and not sizes.inputs:
        raise BadInput(
            f"{loaded.name}: no block has a linear whose neurons multiply what its last linear reads (a gated MLP, or a "
            f"ReLU), so no factor passes; smooth it with `outlierlens quantize --smooth`"
        )
    exponent = sizes.stream_exponent(fit, margin)
    factors = best_balance(loaded, sizes, arguments) if fit == "int8" else sizes.pair_exponents(fit, margin)
    plan = stream_plan(loaded, exponent) if exponent else RewritingPlan()
    return plan.pairs(factors), exponent, factors


def best_balance(loaded: LoadedModel, sizes: Sizes, arguments: Arguments) -> "Factors":
    """The factors of `BALANCES` with which outputs in int8 are nearest to float32; [] where none is nearer.

    What leaves the inputs goes into the weights, which are rounded too: how much pays is measured, not assumed.
    """
    wanted = outputs(loaded.model, arguments)

    def distance(factors: "Factors") -> float:
        with repaired(loaded, RewritingPlan().pairs(factors)), in_format(loaded, "int8") as model:
            both = zip(wanted, outputs(model, arguments), strict=True)
            return sum(float((one - other).abs().mean()) for one, other in both) / len(wanted)

    balances: list[Factors] = [[], *filter(None, (sizes.balanced_exponents(*one) for one in BALANCES))]
    return min(balances, key=distance)


def _about(made: Repair, name: str) -> dict[str, Any]:
    about: dict[str, Any] = {"model": name, "fit": made.fit, "margin": made.margin, "epsilons": made.epsilons}
    about |= {"rotation": {"matrix": MATRIX, "seed": made.provenance.seed}} if made.rotated else {}
    return about | {"exact": made.exact, "largest difference": made.difference}


def card(made: Repair, name: str) -> str:
    """What a copy of the model `name` says of itself, as Markdown."""
    changes = markdown(" ".join(made.changes()))
    return f"Made from {markdown(name)}; `repair.json` says how. {changes} Its hidden states are others."


def stays_wide(loaded: LoadedModel, fit: str) -> tuple[str, ...]:
    """What transformers keeps in float32 where it loads the model in float16, while here all of it is cast."""
    wide = getattr(loaded.model, "_keep_in_fp32_modules", None)
    if fit != "fp16" or not wide:
        return ()
    return (
        "the share of finite logits is that of model.half(), every weight in float16; from_pretrained(dtype=torch.float16) "
        f"keeps {', '.join(wide)} in float32, where less overflows",
    )


def _fit_check(
    label: str, loaded: LoadedModel, sizes: Sizes, fit: str, data: CheckData, wanted: "list[Tensor]"
) -> FitCheck:
    part = slice(1, None, 2) if fit == "int8" else slice(None)  # every other row chose its factors; the rest judge
    with in_format(loaded, fit) as model:
        found, right = (_flat(some).double() for some in (outputs(model, data.arguments[part]), wanted[part]))
    finite = found.isfinite()
    return FitCheck(
        model=label, largest=max(sizes.layers), spikes=sizes.spikes,
        finite=float(finite.double().mean()),
        distance=float((found - right)[finite].abs().mean()) if finite.any() else math.nan,
        named=tuple(sorted({one.dim for stack in scan_live(loaded).stacks for one in stack.outliers})),
    )  # fmt: skip


def _checked(made: Repair, back: LoadedModel, data: CheckData, wanted: "list[Tensor]", before: Sizes) -> Repair:
    """`made` with what the copy gives; raises where that is not what it must be."""
    import torch

    found = outputs(back.model, data.arguments)
    exact = all(map(torch.equal, wanted, found))
    difference, why = 0.0 if exact else difference_of(wanted, found), "; ".join(made.reasons)
    if not exact and not why:
        raise BadFile(
            f"{back.name}: read back, its outputs differ by {difference:.3g} of the largest where they must be equal, so "
            f"nothing is kept; this family computes something that its row does not say"
        )
    most = TOLERANCE if made.rotated else NEAR
    if not difference <= most:
        raise BadInput(
            f"{back.name}: rewritten, its outputs would differ by {difference:.3g} of the largest (at most {most:g}), so "
            f"nothing is kept: {why}"
        )
    sizes = sizes_of(back, data)
    made = replace(made, exact=exact, difference=difference, kinds=_size_changes(before, sizes))
    return replace(made, models=(made.before, _fit_check("after", back, sizes, made.fit, data, wanted)))


def _size_changes(before: Sizes, after: Sizes) -> tuple[SizeChange, ...]:
    kinds = dict.fromkeys(row.kind for row in before.rows)
    return tuple(SizeChange(tensor=kind, before=before.of(kind), after=after.of(kind)) for kind in kinds)


def difference_of(wanted: "list[Tensor]", found: "list[Tensor]") -> float:
    """The largest difference of an output, as a share of the largest output; infinite where some are not finite."""
    far, top = (float(one.abs().max()) for one in (_flat(wanted) - _flat(found), _flat(wanted)))
    return far / top if math.isfinite(far) and top > 0 else math.inf


def _flat(tensors: "list[Tensor]") -> "Tensor":
    import torch

    return torch.cat([one.flatten() for one in tensors])


def run(session: "Session", options: RepairCall) -> Repair:
    """The analysis, as the command runs it."""
    texts, overwrite = session.task_reading.read(offline=session.loading.offline), session.output.overwrite
    return repair(
        session.subject.model, options.folder, options, texts=texts, load=session.load, overwrite=overwrite,
        progress=session.progress,
    )  # fmt: skip
