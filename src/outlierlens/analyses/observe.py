"""Activation statistics of every layer and dimension over texts (or images, or recordings), made in one streaming pass.

found = observe(load_model("smollm2-135m"), read_texts("excerpt"))
found.dims                                       # what rules on activations find: luo, massive, llm.int8
found.stacks[0].view("without_special").mean     # arrays [layer, column] of each stream
found.to_pandas("statistics")                    # every statistic, a row for each layer and dimension

With --rule all every published definition side by side: see `analyses.definitions`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

import outlierlens.analyses.observe_pictures as pictures
from outlierlens.analyses.definitions import DefinitionOptions, Definitions, definitions
from outlierlens.analyses.observe_imatrix import SecondMoments, second_moments
from outlierlens.analyses.observe_patches import (
    TIMES,
    HighNorm,
    PatchDimension,
    PatchNeuron,
    PatchNorms,
    PatchPlace,
    patch_rows,
    patches,
)
from outlierlens.checkpoints.gguf import ALIKE, NO_ENTRY
from outlierlens.data.media.items import Items
from outlierlens.data.texts import Data
from outlierlens.detection.activations import ObserveOptions, Observer, partly
from outlierlens.detection.observed import LARGE, VIEWS, Passage, Size, StackObservation
from outlierlens.detection.weights import opened
from outlierlens.errors import option
from outlierlens.models.inputs import reading_of
from outlierlens.models.load import LoadedModel
from outlierlens.options import Flat, belong, check
from outlierlens.results.document import Advice, about
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep, kept_rows
from outlierlens.results.rows import More, Quiet, Row
from outlierlens.view.charts.base import Chart, place
from outlierlens.view.pictures import Lines
from outlierlens.view.section import FineShare, Rows, Section, cell_text, listed, number, percent, these

if TYPE_CHECKING:
    from outlierlens.session import Session

SHOWN, LISTED = 10, 50  # neurons of a table, in short and with --verbose
NAMED = 3  # dimensions with a sentence of their own
LONG = 0.1  # of the mean squared length of a vector: from here a dimension is worth a thought before cosines
STATISTICS = "statistics"  # the table of every statistic, of all tokens and of those that are not special


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ObserveCall:
    """By which rule, how, and what else is written."""

    rule: Literal["all"] | None = None
    """all: every published definition, on weights too, compared with nulls. Default: luo, massive and llm.int8."""
    max_length: Annotated[int | None, Ge(2)] = None
    """Maximum number of tokens per text. Default: 128."""
    options: Annotated[ObserveOptions, Flat("stack", "n_sigma")] = ObserveOptions()
    """How to observe."""
    imatrix: Path | None = None
    """Run nothing: show what this importance matrix of llama.cpp says each linear reads."""
    definitions: Annotated[DefinitionOptions, Flat("nulls", "thresholds", "trial_texts", "seed")] = DefinitionOptions()
    """How the definitions are held against the model."""

    def __post_init__(self) -> None:
        check(self)
        if self.rule is None:
            belong("to --rule all; give that too", self.definitions)
        else:
            belong("to the other rules; leave --rule all out", self, "imatrix", "n_sigma")


# --- what is found ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LayerExtremes(Row):
    """Who is smallest, largest and far from the mean in one layer."""

    note = "γ: length of the mean hidden state over the length of the standard deviations."
    stack: str = ""
    """stream: where there are several"""
    layer: str
    smallest: int | None
    """argmin dim: most often the smallest entry of a token vector; none where no entry is alone the smallest"""
    smallest_share: Annotated[float, FineShare]
    """share: of the token vectors"""
    largest: int | None
    """argmax dim: most often the largest entry"""
    largest_share: Annotated[float, FineShare]
    """share: of the token vectors"""
    dim: int
    """max |h| dim: the dimension of the largest |h|"""
    abs_max: float
    """max |h|: in activation units"""
    token: str
    """token: where it is"""
    position: int
    """position: in its text, from 0"""
    median_abs: float
    """median |h|: of all tokens and dimensions of the layer"""
    gamma: float
    """γ: none where not every dimension was kept"""
    far: Annotated[int | None, More]
    """far dim: most often n_sigma standard deviations or more from its vector's own mean"""
    far_share: Annotated[float, FineShare, More]
    """of the tokens"""
    far_inputs: Annotated[float, FineShare, More]
    """of the inputs"""


@dataclass(frozen=True, kw_only=True)
class ActiveOutlier(Row):
    """A dimension that a rule on activations finds."""

    note = (
        "In the layer where the dimension is largest: its max |h| over the layer's median |h|, and the share of tokens whose "
        f"|h| there is above {LARGE:g} times that median."
    )
    stack: str = ""
    """stream: where there are several"""
    rule: str
    dim: int
    """dimension"""
    layers: str
    """layers: the first to the last in which the rule holds"""
    strongest: float
    """strongest: share of tokens (luo, llm.int8), or max |h| (massive)"""
    times: float | None
    """× median"""
    tokens: str | None
    """of the tokens"""


@dataclass(frozen=True, kw_only=True)
class LargestNeuron(Row):
    """A neuron with a large |x| in what the last linear of its block's MLP reads."""

    stack: Annotated[str, Quiet]
    neuron: str
    abs_max: float
    """max |x|"""
    times_median: float
    """× median neuron: over the largest |x| of its block's median neuron"""
    mean: float
    std: float
    token: str
    """token: where it is largest"""
    position: int
    massive: bool
    """massive: whether the rule "massive" finds it"""


@dataclass(frozen=True, kw_only=True)
class Observation(Finding):
    """Activation statistics of a model over a text, or second moments that another program made.

    Attributes:
        n_special: special tokens among those read. n_sigma: of the columns with "far".
        stacks: every statistic of each stream. idle: streams of which no block ran, so that nothing is known.
        passages: token vectors of one input, to be drawn.
        high_norm: of pictures, the patches of high norm; see `analyses.observe_patches`.
        never_fed, without_entry: of an importance matrix, GGUF's names of tensors and experts that read nothing, and of the
            blocks' linears that it lacks.
    """

    title = "Activations"
    pictures = (
        Lines(rows="by_layer", x="layer", y="abs_max", by="stack", title="Largest |h|"),
        Lines(rows="by_layer", x="layer", y="gamma", by="stack", title="Mean against spread",
              where=lambda row: bool(np.isfinite(row.gamma))),
        Lines(rows="patches", x="layer", y="times", title="Longest patch, in median patches"),
    )  # fmt: skip

    by_layer: tuple[LayerExtremes, ...] = ()
    """Extremes by layer"""
    outliers: tuple[ActiveOutlier, ...] = ()
    """Found by rules, on all tokens"""
    neurons: tuple[LargestNeuron, ...] = ()
    """Largest neurons"""
    moments: tuple[SecondMoments, ...] = ()
    """Second moments of the inputs of linears"""
    patches: tuple[PatchNorms, ...] = ()
    """Norms of patches"""
    patch_places: tuple[PatchPlace, ...] = ()
    """Where patches of high norm stand"""
    patch_dims: tuple[PatchDimension, ...] = ()
    """Dimensions of patches of high norm"""
    patch_neurons: tuple[PatchNeuron, ...] = ()
    """Neurons that write patches of high norm"""
    high_norm: HighNorm | None = None
    n_special: int = 0
    n_sigma: float = 0.0
    stacks: tuple[StackObservation, ...] = ()
    idle: tuple[str, ...] = ()
    passages: tuple[Passage, ...] = ()
    never_fed: tuple[str, ...] = ()
    without_entry: tuple[str, ...] = ()

    def sentences(self) -> Iterator[str]:
        if self.moments:
            yield from _moments_said(self)
            return
        for name in self.idle:
            yield f"Stream {name} was not looked at: none of its blocks ran on these {self.about.inputs}."
        for stack in self.stacks:
            if stack.by_neuron:
                top = next((one for one in self.neurons if one.stack == stack.stack), None)
                if top is None:
                    yield f"Stream {stack.stack}: no token reached any of its experts."
                    continue
                yield (
                    f"Stream {stack.stack}: the largest neuron is {top.neuron}, |x| {cell_text(top.abs_max)} at {top.token}, "
                    f"{cell_text(top.times_median)} times the largest of its block's median neuron."
                )
                continue
            dims = tuple(dict.fromkeys(one.dim for one in stack.outliers))
            finds = f"rules on activations find {these(dims)}" if dims else "no rule on activations finds a dimension"
            yield f"Stream {stack.stack}: {finds}."
            for dim in dims[:NAMED]:
                if (size := stack.size_of(dim)) is not None:
                    yield f"Stream {stack.stack}: {how_large(dim, size)}"
            for end, shares in stack.pooled_shares("all").items():
                if shares.size and shares.max() > 0:
                    dim, most = stack.dims[shares.argmax()], cell_text(FineShare(shares.max()))
                    yield f"Stream {stack.stack}, {end} in all blocks pooled: most often dimension {dim}, {most}."
        if self.high_norm is not None:
            yield from _high_norm_said(self, self.high_norm)
        yield f"{self.n_special:,} of the tokens are special; they count too."

    def advice(self) -> Iterator[Advice]:
        """What 8-bit activations may cost, what a cosine mostly sees, and who writes the largest value."""
        for stack in self.stacks:
            if stack.by_neuron:
                continue
            yield from self._quantize(stack)
            share, peak = stack.length_share(), stack.peak
            if share is not None and share.max() >= LONG:
                row, column = divmod(int(share.argmax()), share.shape[1])
                dim, layer = stack.dims[column], stack.layers[row]
                clip = (*option("--layer", layer), "--fix", "clip", "--clip", str(dim))
                yield Advice(
                    "compare",
                    "Before you compare vectors by cosine or distance, try to standardise each dimension or to leave "
                    f"{these([dim])} out, and measure whether it helps (outlierlens embed).",
                    f"dimension {dim} alone holds {percent(share.max())} of the mean squared length after {place(layer)}",
                    (about(self.provenance, "embed", "--export", "embedder", *clip),) if len(self.stacks) == 1 else (),
                )
            if peak and peak.dim in {one.dim for one in stack.outliers if one.rule == "massive"}:
                yield Advice(
                    "explain",
                    f"To say where dimension {peak.dim} comes from, name the weights that write it and the heads that read it.",
                    f"it reaches {number(peak.value)} after {place(peak.layer)}",
                    (about(self.provenance, "trace", "--dims", str(peak.dim), stack=stack.stack),),
                    until=("Trace",),
                )

    def _quantize(self, stack: StackObservation) -> Iterator[Advice]:
        """A step above the median leaves half of the entries no code but 0; what that costs, size does not say."""
        dims = sorted({one.dim for one in stack.outliers if one.rule in ("massive", "llm.int8")})
        peak = stack.peak
        if not dims or peak is None:
            return
        step, median = peak.value / 127, peak.value / peak.ratio
        yield Advice(
            "quantize",
            "Measure what 8-bit activations cost with one scale per tensor and with one per token, and how much of it comes "
            f"back with {these(dims)} in 16 bits.",
            f"one step of an 8-bit scale over {place(peak.layer)} is {number(step)}, the median |h| there {number(median)}",
            # What lies inside the MLPs may be coarser than the stream: `range` says so.
            (about(self.provenance, "range"), about(self.provenance, "quantize", dims=dims, stack=stack.stack)),
            ("Ranges", "Quantization", "PrecisionPlan"),
        )

    def sections(self, *, verbose: bool = False, named: Mapping[str, Sequence[int]] | None = None) -> Iterator[Section]:
        """For every surface; `named` are dimensions with a name in the pictures, by stream."""
        for one in super().sections(verbose=verbose):
            yield one if named is None else replace(one, drawn=partial(self._vectors, named))

    def _vectors(self, named: Mapping[str, Sequence[int]]) -> tuple[Chart, ...]:
        """Token vectors of one input, averages, extreme entries and largest values of every stream."""
        drawn = list[Chart]()
        for number_, stack in enumerate(self.stacks):
            prefix, dims = f"{number_}-" if number_ else "", named.get(stack.stack, ())
            passages = [one for one in self.passages if one.stack == stack.stack and one.tokens]
            drawn += [pictures.token_vectors(one, dims, prefix=prefix) for one in passages[:1]]
            kinds = (
                () if stack.by_neuron else (pictures.average_vectors, pictures.extreme_shares, pictures.largest_values)
            )
            drawn += [one(stack, dims, prefix=prefix) for one in kinds]
        return tuple(drawn)

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """In short the largest neurons, and of each kind of linear the layer where the largest moment stands out most."""
        if name == "neurons" and not verbose:
            rows = rows[:SHOWN]
        if name == "moments" and not verbose:
            parts = dict.fromkeys(one.part for one in self.moments)
            rows = tuple(max((one for one in self.moments if one.part == part), key=_standing) for part in parts)
            note = "One layer per kind, that of the largest ratio; --verbose shows all."
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def records(self, which: str = "") -> Iterator[dict[str, Any]]:
        """Flat rows of a table; "all", "without_special" and "statistics" (both) are every statistic by layer and dimension.

        Raises:
            BadInput: there is no such table.
        """
        if which not in (*VIEWS, STATISTICS):
            yield from super().records(which)
            return
        columns = self.columns(which)
        for values in zip(*(column.tolist() for column in columns.values()), strict=True):
            yield dict(zip(columns, values, strict=True))

    def columns(self, which: str = "") -> Any:
        """The same by column, [row] each, where that is every statistic: many rows are quicker so."""
        if which not in (*VIEWS, STATISTICS):
            return super().columns(which)
        blocks = [
            stack.columns(name) for stack in self.stacks for name in (stack.views if which == STATISTICS else (which,))
        ]
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]} if blocks else {}


def how_large(dim: int, size: Size) -> str:
    """How large a dimension is and on which share of the tokens, in a sentence."""
    share = f", and above {LARGE:g} times the median on {size.tokens} of the tokens" if size.tokens else ""
    return (
        f"dimension {dim} is largest in {place(size.layer)}: |h| {number(size.largest)}, {number(size.times)} times the "
        f"median{share}."
    )


def _high_norm_said(found: Observation, high: HighNorm) -> Iterator[str]:
    """Whether there are patches of high norm; how many, where, in which blocks and dimensions, and who writes them."""
    if high.unlooked:
        yield f"Patches of high norm are looked for in the first {high.n_read:,} images; {high.unlooked:,} are left out."
    if not high.n:
        longest = max(found.patches, key=lambda one: one.times)
        yield (
            f"No patch is of high norm: of {high.n_patches:,} in {high.n_read:,} images the longest is "
            f"{number(longest.times)} times the median (after block {longest.layer}); high norms are above {TIMES:g} times."
        )
        return
    here = next(one for one in found.patches if one.layer == high.block)
    yield (
        f"{high.n:,} of {high.n_patches:,} patches ({percent(high.n / high.n_patches)}) are of high norm after block "
        f"{high.block}, above {number(here.cutoff)}: the median is {number(here.median)}, the largest {number(here.largest)}. "
        f"They are in {high.n_images:,} of {high.n_read:,} images, at most {high.most:,} in one."
    )
    blocks = f"blocks {high.first} to {high.last}" if high.first != high.last else f"block {high.first}"
    flat = f"; {percent(high.flat)} are among the flattest quarter of their image" if np.isfinite(high.flat) else ""
    place = found.patch_places[0]
    yield (
        f"They occur in {blocks}, most often at {place.patch} ({place.images:,} images); {percent(high.border)} lie at the "
        f"border, of all patches {percent(high.border_all)}{flat}."
    )
    if found.patch_dims:
        dims = [one.dim for one in found.patch_dims]
        held, others = (sum(getattr(one, name) for one in found.patch_dims) for name in ("high", "others"))
        yield (
            f"{these(dims).capitalize()} hold{'s' * (len(dims) == 1)} {percent(held)} of their squared length, of other "
            f"patches' {percent(others)}."
        )
    if found.patch_neurons:
        written = ", ".join(f"{one.neuron} ({percent(one.share)})" for one in found.patch_neurons)
        yield f"MLP neurons that write what sets them apart: {written}."
    else:
        yield f"No MLP neuron is named that writes them: {high.why or 'none writes 5 % of their difference to the rest'}."


def _standing(one: SecondMoments) -> float:
    return one.largest / one.median if one.median else one.largest


def _moments_said(found: Observation) -> Iterator[str]:
    if found.never_fed:
        yield f"No token reached {listed(found.never_fed)}: {ALIKE}."
    if found.without_entry:
        yield f"No entry of {listed(found.without_entry)}: {NO_ENTRY}."
    names = tuple(dict.fromkeys(name for one in found.moments for name in one.outliers))
    if not names:
        yield 'No root of a second moment passes the rule "massive"; what is large at few tokens alone does not show in it.'
    for kind, some in (("dimension", [n for n in names if ":" not in n]), ("neuron", [n for n in names if ":" in n])):
        if some:
            yield f'The rule "massive", held against roots of second moments, finds {these(some, kind)}.'
    yield f"{len(found.moments):,} linears; nothing was run."


def observed_rows(stacks: Sequence[StackObservation]) -> dict[str, Any]:
    """The tables of an observation, by field."""
    several = len(stacks) > 1
    streams = [(stack, stack.stack if several else "") for stack in stacks if not stack.by_neuron]
    neurons = [one for stack in stacks if stack.by_neuron for one in _neurons(stack)]
    return {
        "by_layer": tuple(one for stack, name in streams for one in _layers(stack, name)),
        "outliers": tuple(one for stack, name in streams for one in _outliers(stack, name)),
        "neurons": tuple(sorted(neurons, key=lambda one: -one.abs_max)),
    }


def _layers(stack: StackObservation, name: str) -> Iterator[LayerExtremes]:
    seen, gamma = stack.view("all"), stack.gamma("all")
    for row, layer in enumerate(stack.layers):
        big, far = int(seen.abs_max[row].argmax()), int(seen.sigma_token_share[row].argmax())
        smallest, largest = (_most(stack, shares[row]) for shares in (seen.argmin_share, seen.argmax_share))
        yield LayerExtremes(
            stack=name, layer=layer, smallest=smallest[0], smallest_share=smallest[1], largest=largest[0],
            largest_share=largest[1], dim=stack.dims[big], abs_max=float(seen.abs_max[row, big]),
            token=repr(seen.abs_max_token[row][big]), position=int(seen.abs_max_position[row, big]),
            median_abs=float(seen.median_abs[row]), gamma=float(gamma[row]), far=_most(stack, seen.sigma_token_share[row])[0],
            far_share=float(seen.sigma_token_share[row, far]), far_inputs=float(seen.sigma_input_share[row, far]),
        )  # fmt: skip


def _most(stack: StackObservation, shares: np.ndarray) -> tuple[int | None, float]:
    """(the dimension of the largest share [column], that share); no dimension where all are 0."""
    at = int(shares.argmax())
    return stack.dims[at] if shares[at] else None, float(shares[at])


def _outliers(stack: StackObservation, name: str) -> Iterator[ActiveOutlier]:
    for one in stack.outliers:
        size = stack.size_of(one.dim)
        yield ActiveOutlier(
            stack=name, rule=one.rule, dim=one.dim, strongest=max(one.strength, default=float("nan")),
            layers=f"{one.layers[0]}–{one.layers[-1]}" if one.layers else "all layers pooled",
            times=size.times if size else None, tokens=size.tokens if size else None,
        )  # fmt: skip


def _neurons(stack: StackObservation) -> Iterator[LargestNeuron]:
    seen, massive = stack.view("all"), {(one.layers[0], one.dim) for one in stack.outliers}
    for neuron, row, column in stack.strongest(LISTED, "all"):
        yield LargestNeuron(
            stack=stack.stack, neuron=str(neuron), abs_max=float(seen.abs_max[row, column]),
            times_median=float(stack.times_median[row, column]), mean=float(seen.mean[row, column]),
            std=float(seen.std[row, column]), token=repr(seen.abs_max_token[row][column]),
            position=int(seen.abs_max_position[row, column]), massive=(stack.layers[row], neuron.neuron) in massive,
        )  # fmt: skip


# --- how it is found -------------------------------------------------------------------------------------------------


def observe(
    loaded: LoadedModel,
    texts: Data,
    options: ObserveOptions | None = None,
    *,
    command: str = "",
    rows: Path | Keep | None = None,
) -> Observation:
    """Measure every layer and dimension over `texts`, with special tokens and without.

    `texts` may be pictures or recordings (`media.Items`): a token is then a patch, or a frame of sound. With `rows`,
    every layer is kept there, and a stopped pass continues.

    Raises:
        BadInput: the model reads no such data or has no tokenizer (or processor), a state is NaN or infinite, or the
            limits are too small.
    """
    options = options or ObserveOptions()
    observer = Observer(loaded, options, reading_of(loaded, texts, options.max_length))
    identity = observer.identity(texts) if rows is not None else {}
    if isinstance(rows, Keep) and rows.fresh:
        partly(rows.path_of(identity)).unlink(missing_ok=True)
    with kept_rows(rows, identity, loaded.notice) as kept:
        stacks = observer.measured(texts, kept)
        pictured: dict[str, Any] = {}
        if isinstance(texts, Items) and texts.kind == "image" and not stacks[0].by_neuron:
            pictured = kept("patches", partial(patches, observer, texts))
    dims = [one.dim for one in stacks[0].outliers] if len(stacks) == 1 else []
    by_neuron = stacks[0].by_neuron
    neurons = [f"{one.layers[0]}:{one.dim}" for stack in stacks for one in stack.outliers] if by_neuron else []
    return Observation(
        provenance=loaded.provenance(command=command),
        about=About(
            data=texts.source, data_digest=texts.digest, inputs=observer.reading.inputs,
            stack=", ".join(stack.stack for stack in stacks), layers=tuple(range(observer.n_layers)),
            dims=tuple(neurons or dict.fromkeys(map(str, dims))), kind="neuron" if by_neuron else "dimension",
            n_texts=len(texts), n_tokens=observer.n_tokens, max_length=observer.max_length,
        ),
        n_special=observer.n_special, n_sigma=options.n_sigma, stacks=stacks,
        passages=observer.passages((options.passage,) if options.passage else texts.first(1)),
        idle=observer.idle, notes=observer.notes, **observed_rows(stacks), **patch_rows(pictured),
    )  # fmt: skip


def run(session: "Session", call: ObserveCall) -> Observation | Definitions:
    """What the command finds: by its own rules, by every definition, or what an importance matrix says."""
    if call.imatrix is not None:
        with opened(session.subject.model, session.scanning()) as checkpoint:
            return Observation(**second_moments(checkpoint, call.imatrix, call.options.rules))
    reading = session.task_reading
    length = reading.options(max_length=call.max_length).max_length
    texts = reading.read(offline=session.load.offline)
    if call.rule == "all":
        options = replace(
            call.definitions, stack=call.options.stack, batch_size=call.options.batch_size, max_length=length,
        )  # fmt: skip
        return definitions(session.loaded, texts, options, progress=session.progress)
    asked = replace(call.options, max_length=length, progress=session.progress)
    return observe(session.loaded, texts, asked, rows=session.kept)
