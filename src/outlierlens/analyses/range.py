"""The number range of a running model: the largest |x| of every tensor, where it is, and which formats hold it.

found = range_of(load_model("smollm2-135m"), read_texts("excerpt", limit=64))
found.top("MLP inner").fp16                 # of its layer with the largest value; below 1 it overflows
found.verdict("e4m3")                        # "e4m3: overflows, 56.1 times its largest number"
weights_range(checkpoint)                    # of stored weights, without running them and without torch
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import numpy as np
from annotated_types import Ge

from outlierlens.analyses.plan_exports import TOOLS, Target, Wide, WideModules, wide_export
from outlierlens.analyses.range_pass import BINS, CacheErrors, Key, RangePass, TensorPeak, below, median_of
from outlierlens.architectures import NO_EXPERT
from outlierlens.architectures.rows import gates
from outlierlens.checkpoints import Checkpoint
from outlierlens.checkpoints.gguf import ALIKE, NO_ENTRY
from outlierlens.data.texts import Data
from outlierlens.detection.weights import opened
from outlierlens.errors import BadInput
from outlierlens.models.inputs import Progress, in_windows, read_together, reading_of
from outlierlens.options import Flag, check, written_for
from outlierlens.results.document import Advice, Provenance, about, fitted
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import More, Quiet, Row
from outlierlens.results.safe_files import check_file, write_text
from outlierlens.view.pictures import Lines, Picture, Strips
from outlierlens.view.section import Count, FineShare, Rows, listed, number

if TYPE_CHECKING:
    from outlierlens.models.load import LoadedModel
    from outlierlens.session import Session

# {number format: (largest finite value, smallest positive value of full precision)}: IEEE 754 binary16; bfloat16; the OCP 8-bit
# floating point specification (2023), table 1.
FORMATS = {
    "fp16": (65504.0, 2.0**-14),
    "bf16": ((2 - 2.0**-7) * 2.0**127, 2.0**-126),
    "e4m3": (448.0, 2.0**-6),
    "e5m2": (57344.0, 2.0**-14),
}
NARROW = ("fp16", "e4m3")  # the columns: bf16 holds whatever float32 holds, and e5m2 nearly what fp16 does
INSIDE = ("q·k", "norm sum of squares")  # within one operation: many kernels hold them in float32
# Every kind of tensor; docs/fp16.md says what each is.
KINDS = (
    "stream", "stream after attention", "attention input", "attention linears", "q", "k", "v", "q·k", "attention logits",
    "attention mix", "attention output", "MLP input", "gate/up", "MLP inner", "MLP output", "norm output",
    "norm sum of squares", "logits",
)  # fmt: skip
# The kinds of each panel, at most as many as there are colours; the table has all.
PANELS = {
    "stream and norms": ("stream", "stream after attention", "norm output", "norm sum of squares", "logits"),
    "attention": ("attention input", "q", "k", "v", "attention logits", "attention output"),
    "MLP": ("MLP input", "gate/up", "MLP inner", "MLP output"),
}
ENDS = {"embeddings": -1, "final": 10**6, "head": 10**6}  # before all layers, and after them
UNITS = dict.fromkeys(("gate/up", "MLP inner"), "neuron") | dict.fromkeys("qkv", "row")
# What `repair` scales: the stream as a whole, where no norm stands on it; heads dimension by dimension, on any stream.
STREAM = ("stream", "stream after attention", "attention output", "MLP output")
HEADS = ("q", "k", "v", "attention mix")
MARGIN = 4  # times fp16's largest number that shall stay free
AMPLE = 1000.0  # times headroom, from which nobody asks how much more
SHOWN = 12  # stored tensors, and those of experts, without --verbose
UNFED = 8  # modules that are named in a sentence
BLOCK = 2**22  # stored values that are held at once, where the file allows it


@dataclass(frozen=True, kw_only=True)
class RangeOptions:
    """Settings of the measurement."""

    max_length: Annotated[int, Ge(2)] = 128
    """Maximum number of tokens per text."""
    batch_size: Annotated[int, Flag(hidden=True), Ge(1)] = 16
    """Texts per forward pass."""
    every: Annotated[int, Flag(hidden=True), Ge(1)] = 16
    """Medians and shares rest on every n-th token vector; 1 takes all. Maxima always rest on all."""
    cache: bool = False
    """Round keys and values to int8 and int4 too, and measure what that loses."""
    weights: bool = False
    """Run nothing: compare the weights alone with each format, without torch."""

    def __post_init__(self) -> None:
        check(self)
        if self.weights and self.cache:
            raise BadInput("--cache runs the model and --weights does not; give one of them")


@dataclass(frozen=True, kw_only=True)
class RangeCall(RangeOptions):
    """Options of the measurement, and the tool that the list is written for."""

    export: Annotated[tuple[str, str] | None, Flag(read="options:parse_export")] = None
    """TOOL:FILE: write for this tool which modules fp16 does not hold: autocast, onnxruntime, tensorrt, llama.cpp."""

    @property
    def tool(self) -> str:
        """For whom the list is written; "" for nobody."""
        return "" if self.export is None else written_for(self.export, get_args(Wide), {"llama.cpp": "gguf"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tool and self.weights:
            raise BadInput("--export lists what a running model needs, and --weights runs nothing; give one of them")


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TensorRange(Row):
    """The values of one kind of tensor in one layer, over all tokens of all texts, padding left out."""

    note = (
        "×: largest finite value of the format / largest |x|; below 1 it overflows. int8: one step with one scale for the "
        "whole tensor / the median |x|; above 2, more than half of the values round to 0. Below: share of values that are not "
        "0 and below the format's smallest normal number."
    )
    kind: str
    """tensor"""
    stack: Annotated[str, More]
    """stream"""
    layer: str
    """layer: "embeddings", "0", …, "final", "head\""""
    largest: float
    """largest: |x|; inf where a value was infinite or NaN"""
    word: str
    """token: that holds it"""
    expert: int | None = None
    """expert: that it is of"""
    dim: int | None
    """dim: dimension, neuron or token of the vocabulary; of q, k and v head × width + channel, the row of the projection that
    gives it, where a head that several queries share counts once, as in the cache; none of sums and products"""
    fp16: float
    """fp16 ×: headroom"""
    e4m3: float
    """e4m3 ×: headroom"""
    coarseness: float = math.nan
    """int8 step / median: of one scale for the whole tensor"""
    below_fp16: Annotated[float, FineShare] = math.nan
    """below fp16"""
    below_e4m3: Annotated[float, FineShare] = math.nan
    """below e4m3"""
    median: Annotated[float, More] = math.nan
    """median: |x|, interpolated within an eighth of the range of one exponent or less"""
    module: Annotated[str, More]
    """module: that with the largest value; "" where no module owns the tensor"""
    text: Annotated[int, Quiet]
    """number of the text; −1 where rows cannot be told"""
    token: Annotated[int, Quiet]
    """place in it"""
    n_values: Annotated[int, Quiet] = 0
    """values that the median and shares rest on"""
    nan: Annotated[bool, Quiet] = False
    """whether any value was NaN"""

    @property
    def name(self) -> str:
        """ "MLP inner of layer 3"."""
        where = {"embeddings": "after the embeddings", "final": "after the last layer", "head": ""}
        name = f"{self.kind} {where.get(self.layer, f'of layer {self.layer}')}".strip()
        return name if self.stack == "model" else f"{name} of the {self.stack}"

    def place(self, inputs: str = "texts") -> str:
        """ "MLP inner of layer 3, expert 7, neuron 12, token 4 ('.') of text 5", of what `inputs` are called."""
        expert = "" if self.expert is None else f", expert {self.expert}"
        unit = "" if self.dim is None else f", {UNITS.get(self.kind, 'dimension')} {self.dim}"
        word = f" ({self.word!r})" if self.word else ""
        return f"{self.name}{expert}{unit}" + (
            f", token {self.token}{word} of {inputs[:-1]} {self.text}" if self.text >= 0 else ""
        )


@dataclass(frozen=True, kw_only=True)
class WeightRange(Row):
    """The values of one stored tensor."""

    note = (
        "×: largest finite value of the format / largest |w|; below 1 it overflows. Over: values that overflow. Below: values "
        "that are not 0 and below the format's smallest normal number."
    )
    name: str
    """weight"""
    stored: str
    """stored: its type in the checkpoint"""
    largest: float
    """largest |w|: of those that are a number"""
    fp16: float
    """fp16 ×: headroom"""
    e4m3: float
    """e4m3 ×: headroom"""
    over_fp16: Annotated[int, Count]
    over_e4m3: Annotated[int, Count]
    below_fp16: Annotated[int, Count]
    below_e4m3: Annotated[int, Count]
    n_values: Annotated[int, Quiet]
    nan: Annotated[int, Quiet]
    """how many are NaN, which count nowhere else"""


@dataclass(frozen=True, kw_only=True)
class CacheError(Row):
    """What rounding the keys or values of one layer loses."""

    note = (
        "‖rounded − x‖ / ‖x‖ of the median channel; 1: all of it is lost. Who shares a step: a token, a channel of a text, or "
        "all of a text (tensor)."
    )
    tensor: str
    """tensor: k, keys; v, values"""
    layer: int
    int8_token: float
    int4_token: float
    int8_channel: float
    int4_channel: float
    int8_tensor: float
    int4_tensor: float
    whole: Annotated[dict[str, float], Quiet]
    """{"int8_token": ‖rounded − x‖₂ / ‖x‖₂ over all tokens and channels}"""


@dataclass(frozen=True, kw_only=True)
class NarrowModule(Row):
    """A module that reads, gives or sums up a number beyond fp16's largest."""

    module: str
    around: str
    """keep in float32: the module, or the one around it where the input is made between modules"""
    largest: float
    """largest: |x|; of a norm Σx²"""
    norm: bool
    """sum of a norm: which most kernels hold in float32"""


@dataclass(frozen=True, kw_only=True)
class Ranges(Finding):
    """The number range of every tensor of a running model, or of its stored weights.

    Attributes:
        every: medians and shares rest on every so many-th token vector.
        skipped: {stored tensor: what packed it} of those whose values are not read.
        normed: streams that a norm stands on after every block, which no factor scales as a whole.
        never_fed: modules that no token reached, and experts as "NAME, expert 3": nothing is known of their ranges.
    """

    title = "The range of numbers"

    tensors: tuple[TensorRange, ...] = ()
    """Tensors"""
    experts: tuple[TensorRange, ...] = ()
    """Experts: What the last linear of each reads and gives, before the router's weight; the largest unless --verbose."""
    weights: tuple[WeightRange, ...] = ()
    """Stored weights"""
    cache: tuple[CacheError, ...] = ()
    """Rounded keys and values"""
    beyond: tuple[NarrowModule, ...] = ()
    """(What fp16 does not hold)"""
    every: int = 1
    skipped: dict[str, str] = field(default_factory=dict)
    never_fed: tuple[str, ...] = ()
    normed: tuple[str, ...] = ()

    @property
    def float32(self) -> tuple[str, ...]:
        """Modules that cannot run in fp16, without those inside others and without norms that overflow in their sum alone."""
        names = dict.fromkeys(one.around for one in self.beyond if not one.norm)
        return tuple(name for name in names if not any(name.startswith(f"{other}.") for other in names))

    def of(self, kind: str) -> tuple[TensorRange, ...]:
        """The rows of one kind, in order of layers; raises BadInput with the kinds there are."""
        found = tuple(row for row in self.tensors if row.kind == kind)
        if not found:
            seen = dict.fromkeys(row.kind for row in self.tensors)
            raise BadInput(f"no tensor of kind {kind!r} was seen; kinds are {', '.join(seen)}")
        return found

    def top(self, kind: str) -> TensorRange:
        """The layer of a kind with the largest value."""
        return _top(self.of(kind))

    @property
    def stored(self) -> tuple[TensorRange, ...]:
        """The rows of tensors that go from one operation to the next."""
        return tuple(row for row in self.tensors if row.kind not in INSIDE)

    def verdict(self, form: str) -> str:
        """ "fp16: fits, 53.0 times headroom": of weights, or of what goes from one operation to the next."""
        return f"{form}: {_fits(headroom(_top(self.weights or self.stored).largest, form))}"

    def advice(self) -> Iterator[Advice]:
        """Whether fp16 holds the model, and which tensor one int8 scale would round to 0; nothing of weights alone."""
        if not self.stored:
            return
        names = [row.module for row in self.tensors if row.kind == "gate/up"]
        gated = any(
            name.endswith(f".{first}") for name in names for _, first in gates()
        )  # factors pass from one to the other
        known = [row for row in self.stored if math.isfinite(row.coarseness)]
        coarse = max(known, key=lambda row: row.coarseness, default=None)
        over, made = f"over {self.about.n_texts:,} {self.about.inputs}", self.provenance
        if coarse is not None and coarse.coarseness > 2:
            inside = ", where no dimension of the stream lies: keeping dimensions in 16 bits does not help there"
            copy = (fitted(made, "int8"),) if coarse.kind == "MLP inner" and gated else ()
            yield Advice(
                "quantize",
                "Give 8-bit activations a scale for each token, or measure what one scale per tensor costs: it is coarsest for "
                f"the {coarse.kind} of layer {coarse.layer}{inside if coarse.kind in ('gate/up', 'MLP inner') else ''}.",
                f"one step there is {number(coarse.coarseness)} times the median |x|, {over}",
                (about(made, "quantize"), *copy),
                until=("Quantization", "PrecisionPlan"),
            )
        top = max(self.stored, key=lambda row: row.largest)
        because = f"the largest |x| is {number(top.largest)}, {top.kind} of layer {top.layer}, {over}"
        if top.fp16 >= MARGIN:
            yield Advice("range", f"Run it in fp16 as it is: fp16 has {number(top.fp16)} times headroom.", because)
            return
        short = f"overflows by {number(1 / top.fp16) if top.fp16 else '∞'} times"
        said = short if top.fp16 < 1 else f"has {number(top.fp16)} times headroom"
        mends = (top.kind in STREAM and top.stack not in self.normed) or top.kind in HEADS
        mends |= top.kind == "MLP inner" and gated
        room = " Or write a copy with room, whose outputs in float32 are the same." if mends else ""
        yield Advice(
            "range",
            f"Keep it in bfloat16 or float32: fp16 {said}.{room}",
            because,
            (fitted(made, "fp16"),) if mends else (),
        )

    def drawn(self) -> tuple[Picture, ...]:
        """Largest |x| by layer, a line for each kind; of weights the largest tensors."""
        if self.weights:
            largest = {one.name for one in self.weights[:SHOWN]}
            return (Strips(rows="weights", x="largest", y="name", where=lambda row: row.name in largest),)
        return tuple(
            Lines(rows="tensors", x="layer", y="largest", by="kind", title=f"{stack}: {title}",
                  where=partial(_among, stack, kinds))
            for stack in dict.fromkeys(row.stack for row in self.tensors)
            for title, kinds in PANELS.items()
        )  # fmt: skip

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """In short: of each kind the layer with the largest value, and the largest weights."""
        kinds = dict.fromkeys((row.stack, row.kind) for row in self.tensors)
        largest = sorted(self.experts, key=lambda row: -row.largest)[:SHOWN]
        worst = (_top([row for row in self.tensors if (row.stack, row.kind) == one]) for one in kinds)
        short: dict[str, tuple[Row, ...]] = {
            "tensors": tuple(worst), "weights": self.weights[:SHOWN], "experts": tuple(largest),
        }  # fmt: skip
        return super().laid_out(name, rows if verbose else short.get(name, rows), head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        yield from self._unknown()
        top, *forms = _top(self.weights or self.stored), *FORMATS
        at = top.name if self.weights else top.place(self.about.inputs)
        yield f"{self.verdict('fp16')}; the largest |x| is {number(top.largest)}, at {at}."
        if inside := [row for row in self.tensors if row.kind in INSIDE]:
            most = _top(inside)
            fits = _fits(most.fp16) if most.fp16 >= 1 else "overflows, unless the kernel holds it in float32"
            place = most.place(self.about.inputs)
            yield f"Inside operations the largest number is {number(most.largest)}, at {place}: in fp16 it {fits}."
        if keep := self.float32:
            yield f"Keep in float32 where all else is fp16: {listed(keep)}; --export TOOL:FILE writes the list."
        yield f"{'; '.join(map(self.verdict, forms[1:]))}: unscaled, of that same value."
        for form in NARROW if self.weights else ():
            over, under = (sum(getattr(one, f"{side}_{form}") for one in self.weights) for side in ("over", "below"))
            yield f"{form}: values that overflow: {over:,}; below its smallest normal number: {under:,}."
        if known := [row for row in self.stored if math.isfinite(row.coarseness)]:
            coarse = max(known, key=lambda row: row.coarseness)
            yield (
                f"int8 with one scale per tensor is coarsest for the {coarse.kind} of layer {coarse.layer}: one step is "
                f"{number(coarse.coarseness)} times the median |x|"
                f"{', so more than half of the values round to 0' if coarse.coarseness > 2 else ''}."
            )
        inputs, n = self.about.inputs, self.about.n_texts + 1
        yield (
            f"Read without running: {sum(one.n_values for one in self.weights):,} values. What the model computes of them may "
            "be far larger: leave --weights out to measure it."
            if self.weights
            else f"Maxima rest on all tokens; medians and shares on one token vector in {self.every}. One more "
            f"{inputs.removesuffix('s')}, if it is exchangeable with these, holds a value larger than all of them with a "
            f"chance of at most 1/{n:,} ({FineShare(1 / n).written()})."  # conformal prediction: Vovk et al. 2005
        )

    def _unknown(self) -> Iterator[str]:
        if self.skipped:
            yield (
                f"Not looked at: {len(self.skipped):,} of {len(self.skipped) + len(self.weights):,} tensors, packed by "
                f"{', '.join(sorted(set(self.skipped.values())))} ({listed(list(self.skipped))}); name the model that was "
                "quantized, in full precision, to look at them."
            )
        broken: tuple[TensorRange | WeightRange, ...] = (*self.tensors, *self.weights)
        if broken := tuple(row for row in broken if row.nan):
            more = f" and {len(broken) - 1:,} more tensors" if len(broken) > 1 else ""
            what = "the weights are damaged" if self.weights else "such values count as infinite here"
            yield f"NaN in the {broken[0].name}{more}: {what}, and nothing after them is to be relied on."
        if self.never_fed:
            some, n = list(self.never_fed[:UNFED]), len(self.never_fed)
            names = listed(some) if n <= UNFED else f"{', '.join(some)} and {n - UNFED:,} more"
            yield f"These {self.about.inputs} do not reach: {names}. Their range is unknown."
            if self.about.inputs == "texts":
                experts = [name for name in self.never_fed if "experts" in name]
                does = [f"of experts, {ALIKE}"] * bool(experts) + [NO_ENTRY] * (len(experts) < n)
                yield f"An importance matrix of these texts has nothing for them: {'; '.join(does)}."


def headroom(largest: float, form: str) -> float:
    """Largest finite value of a format / largest |x|; inf of zeros; raises BadInput for an unknown format."""
    if form not in FORMATS:
        raise BadInput(f"no format {form!r}; formats are {', '.join(FORMATS)}")
    return FORMATS[form][0] / largest if largest > 0 else math.inf


def _top(rows: Any) -> Any:
    return max(rows, key=lambda row: row.largest)


def _among(stack: str, kinds: tuple[str, ...], row: Any) -> bool:
    return row.stack == stack and row.kind in kinds


def _fits(room: float) -> str:
    if room >= 1:
        return f"fits, {number(room) if room < AMPLE else f'over {AMPLE:,.0f}'} times headroom"
    return f"overflows, {number(1 / room) if room > 0 else '∞'} times its largest number"


# --- how it is measured --------------------------------------------------------------------------------------------


def range_of(
    loaded: "LoadedModel", texts: Data, options: RangeOptions | None = None, *, progress: Progress | None = None
) -> Ranges:
    """The largest |x| of every tensor over `texts`, with its place, and its values held against number formats.

    `texts` may be pictures or recordings (`media.Items`); a token is then a patch, or a frame of sound. Maxima rest on every
    token that is no padding, medians and shares on a fixed sample of them; one batch is held at a time.

    Raises:
        BadInput: the model reads no such data, or its tokenizer makes no token of it.
    """
    options = options or RangeOptions()
    if options.weights:
        raise BadInput(
            "RangeOptions(weights=True) reads a checkpoint, not a loaded model; call weights_range(checkpoint)"
        )
    reading = reading_of(loaded, texts, options.max_length)
    one = RangePass(loaded, reading, options.every, CacheErrors() if options.cache else None)
    batches = in_windows(reading, texts, options.batch_size, progress, f"reading {reading.inputs}")
    read_together(loaded, one.consume, batches)
    if not one.n_tokens:
        raise BadInput("the tokenizer made no token of these texts, so there is no range to measure")
    return Ranges(
        provenance=loaded.provenance(),
        about=About(
            data=texts.source, data_digest=texts.digest, inputs=reading.inputs, n_texts=len(texts), n_tokens=one.n_tokens,
            max_length=reading.max_length,
        ),
        tensors=tensor_rows(one),
        experts=expert_rows(one),
        cache=tuple(CacheError(**row) for row in one.cache.relative()) if one.cache else (),
        beyond=tuple(NarrowModule(**row) for row in one.beyond(FORMATS["fp16"][0])),
        every=options.every,
        never_fed=one.never_fed(),
        normed=tuple(stack.name for stack in loaded.stacks if stack.stack.norm_site == "stream"),
        notes=(*loaded.notes, *reading.notes, *one.unreached(), *_unseen(one)),
    )  # fmt: skip


def tensor_rows(one: RangePass) -> tuple[TensorRange, ...]:
    """What a pass found, by stream, kind and layer in order; () of nothing."""
    kept = dict[Key, TensorPeak]()
    for (stack, kind, layer), each in one.tally.found.items():
        key = stack, kind, layer.partition(":")[0]
        kept[key] = kept[key].merged(each) if key in kept else each
    return _rows(one, kept)


def expert_rows(one: RangePass) -> tuple[TensorRange, ...]:
    """Ranges of the inputs and outputs of the last linear of each expert."""
    kept = {
        key: each for key, each in one.tally.found.items() if ":" in key[2] and key[1] in ("MLP inner", "MLP output")
    }
    return _rows(one, kept)


def _rows(one: RangePass, kept: Mapping[Key, TensorPeak]) -> tuple[TensorRange, ...]:
    streams, found = [stack.name for stack in one.reading.stacks], []
    for (stack, kind, layer), each in kept.items():
        counts = np.zeros(BINS, int) if each.counts is None else each.counts.cpu().numpy()
        largest, median = max(each.largest, 0.0), median_of(counts)
        found.append(TensorRange(
            stack=stack, kind=kind, layer=layer.partition(":")[0], module=each.module, largest=largest, text=each.text,
            token=each.token, word=one.reading.words([each.word], stack)[0], dim=each.dim if each.dim >= 0 else None,
            nan=each.nan, expert=None if each.expert == NO_EXPERT else each.expert, n_values=int(counts.sum()), median=median,
            coarseness=largest / 127 / median if median > 0 else math.nan,
            **{form: headroom(largest, form) for form in NARROW},
            **{f"below_{form}": below(counts, FORMATS[form][1]) for form in NARROW},
        ))  # fmt: skip
    found.sort(key=lambda row: (
        streams.index(row.stack), KINDS.index(row.kind), ENDS.get(row.layer) or int(row.layer), row.expert or 0,
    ))  # fmt: skip
    return tuple(found)


def _unseen(one: RangePass) -> tuple[str, ...]:
    """Notes of kinds that the model has no module for."""
    seen = {(stack, kind) for stack, kind, _ in one.tally.found}
    return tuple(
        f"stream {stack.name}: not seen, because the model has no such tensor or no module of its own that gives it: "
        f"{', '.join(missing)}"
        for stack in one.reading.stacks
        if (missing := [kind for kind in KINDS[:-1] if (stack.name, kind) not in seen])
    )


def weights_range(checkpoint: Checkpoint, *, progress: Progress | None = None) -> Ranges:
    """Ranges that need no run: every stored tensor of floating-point values against each format.

    Codes with scales are multiplied out. NaN is counted apart: it is no size.

    Raises:
        BadInput: there is no such tensor.
    """
    packed = {name: by for name in checkpoint.tensors if (by := checkpoint.packed_by(name))}
    names = [name for name in checkpoint.tensors if name not in packed and checkpoint.holds_floats(name)]
    names, found = [name for name in names if checkpoint.tensors[name].size], []
    if not names:
        raise BadInput(f"{checkpoint.name}: holds no tensor of floating-point values")
    for done, name in enumerate(names):
        found.append(_weight_range(checkpoint, name))
        if progress:
            progress("reading weights", done + 1, len(names))
    digest = hashlib.sha256(checkpoint.header_digest().encode())
    digest.update("".join(f"{one.name}\0{one.largest!r}\n" for one in found).encode())
    return Ranges(
        provenance=Provenance.now(checkpoint.name, digest.hexdigest(), adapter=checkpoint.adapter),
        about=About(inputs="stored tensors", n_texts=len(found)),
        weights=tuple(sorted(found, key=lambda one: -one.largest)),
        skipped=packed,
        notes=tuple(checkpoint.notes),
    )


def _weight_range(checkpoint: Checkpoint, name: str) -> WeightRange:
    info = checkpoint.tensors[name]
    largest, n_values, nan = 0.0, 0, 0
    counts = {f"{side}_{form}": 0 for side in ("over", "below") for form in NARROW}
    if info.shape:
        blocks = checkpoint.read_rows(name, max(1, BLOCK // info.shape[-1]))
    else:
        blocks = (values for _, values in checkpoint.read([name]))
    for values in blocks:
        nan += int(np.isnan(values).sum())
        size = np.nan_to_num(np.abs(values), nan=0.0, posinf=np.inf)
        largest, n_values = max(largest, float(size.max(initial=0.0))), n_values + size.size
        for form in NARROW:
            counts[f"over_{form}"] += int((size > FORMATS[form][0]).sum())
            counts[f"below_{form}"] += int(((size > 0) & (size < FORMATS[form][1])).sum())
    room: dict[str, Any] = {form: headroom(largest, form) for form in NARROW}
    return WeightRange(name=name, stored=info.dtype, largest=largest, n_values=n_values, nan=nan, **room, **counts)


def run(session: "Session", options: RangeCall) -> Ranges:
    """The analysis, as the command runs it; with --export what fp16 does not hold is written for a tool too."""
    check_file(Path(options.export[1]) if options.export else None, replace=session.output.overwrite)
    if options.weights:
        with opened(session.subject.model, session.scanning()) as checkpoint:
            return weights_range(checkpoint, progress=session.progress)
    data = session.task_reading.read(offline=session.loading.offline)
    found = range_of(session.loaded, data, options, progress=session.progress)
    session.then = partial(_write, session, options, found) if options.export else None
    return found


def _write(session: "Session", options: RangeCall, found: Ranges) -> None:
    norms, linears = (tuple(one.module for one in found.beyond if one.norm is norm) for norm in (True, False))
    with opened(session.subject.model, session.scanning()) as checkpoint:
        file = getattr(checkpoint, "path", None) if checkpoint.kind == "onnx" else None
    target = Target(model=session.loaded.name, config=session.loaded.config, linears=linears)
    text, remarks = wide_export(options.tool, WideModules(found.float32, norms, linears, file), target)
    path = write_text(Path((options.export or ("", ""))[1]), text)
    over = next((row.name for row in found.tensors if row.fp16 < 1 and row.kind in STREAM[:2]), "")
    outside = f"{over} overflows, which no list of modules mends: write a copy that fits with repair --fit fp16"
    remarks = (*remarks, outside) if over and TOOLS[options.tool].wide_norms else remarks
    for remark in remarks:
        session.notice(f"note: {remark}")
    session.notice(f"{path}: {len(found.float32):,} modules that {TOOLS[options.tool].title} keeps in float32")
