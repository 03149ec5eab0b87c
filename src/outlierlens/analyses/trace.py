"""The life of a dimension: where it is largest, what adds up to it there, what a model loses without, and who reads it.

found = trace(load_model("smollm2-135m"), read_texts("excerpt", limit=32))
found.at("11").largest                # the dimension's value at its largest token after a block
found.of("11")                        # the parts that it is the sum of
found.writers                         # the fewest parts that carry it; () where no few do

A value has few writers where it stands out, at least ten times the median |value| of its layer, where as few as `FEW` parts
leave at most 5 % of it, and where what is left is small part by part: its root sum of squares is at most a fifth of the value.
A sum of many parts fails that, whatever its largest ones are; Gaussian values reach seven times their median among a million.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.study import Condition, Measurement, Progress, Study
from outlierlens.analyses.trace_account import Account, TermEntry, account, factor_notes, refuse
from outlierlens.analyses.trace_passes import (
    Passes,
    Restoration,
    TokenAttention,
    carriers,
    groups,
    like,
    overview,
    zeroed,
)
from outlierlens.architectures import NO_EXPERT, BoundStack, live_parameters, weight_of
from outlierlens.architectures.live import in_memory
from outlierlens.data.texts import Batch, Data
from outlierlens.detection.targets import check_dims
from outlierlens.errors import BadInput
from outlierlens.models.attention_maps import check_eager, eagerly
from outlierlens.models.hooks import EMBEDDINGS, edited_calls, layer_name
from outlierlens.models.inputs import reading_of, stack_read
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import Flag, Flat, Options
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import UNKNOWN, Estimate, More, Row
from outlierlens.statistics.means import ratio_interval
from outlierlens.tasks.base import Task, TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Rows, Share, listed, number, percent

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.session import Session

FEW, LEFT, ROUGH = 8, 0.05, 0.2
STANDS_OUT = 10.0  # times the median |value| of the layer
GROUPS = ("first", "largest", "others")
LARGEST = 1  # the group of the largest token
NEURONS = 3  # of each block that are listed by themselves; the others are added up
CHANNELS = 64  # of a head, that are named as single weights at most
READS = 0.5  # of its attention on the token: what a head loses that reads the dimension
SHOWN, PARTS = 12, 8  # heads, and parts of the block that lifts, in tables


@dataclass(frozen=True, kw_only=True)
class TraceOptions(Options):
    """Which dimension is followed, and how."""

    dim: Annotated[int | None, Flag("--dims"), Ge(0)] = None
    """The dimension. Default: the one whose largest value is largest relative to its block's root mean square."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    n_random: Annotated[int, Flag("--random"), Ge(1)] = 3
    """Draws of random weights, and of random dimensions that are moved as far, as controls."""
    threshold: Annotated[float, Flag("--sink-threshold"), Gt(0), Lt(1)] = 0.3
    """Mean attention on the dimension's token that makes a head a sink."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random draws."""
    task: Annotated[TaskOptions, Flat("max_length")] = TaskOptions(max_length=64, batch_size=8)
    """How texts become numbers."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BlockValue(Row):
    """The dimension after a block: means over first and over other tokens, and its value at its largest token."""

    layer: str
    """block"""
    first: float
    """first tokens"""
    largest: float
    """largest token"""
    others: float
    """other tokens"""
    share_first: Annotated[float, Share, More]
    """share, first tokens"""
    share_largest: Annotated[float, Share]
    """share of the norm, largest token: of the state's sum of squares, less its mean where norms take that away"""
    share_others: Annotated[float, Share]
    """share, other tokens"""


@dataclass(frozen=True, kw_only=True)
class BlockPart(Row):
    """What one part of a block adds to the dimension."""

    layer: str
    """block"""
    kind: str
    """kind: carried (the block's input), embedding, head, neuron, other neurons, bias, norm bias, norm mean, norm scale"""
    name: str
    """module"""
    expert: int | None = None
    """expert: that it is of"""
    index: int | None
    """number: of the head or neuron"""
    first: float
    largest: float
    others: float


@dataclass(frozen=True, kw_only=True)
class Writer(BlockPart):
    """One of the few parts that carry the dimension's lift at its largest token."""

    share: Annotated[float, Share]
    """share of the lift"""

    @property
    def named(self) -> str:
        """ "neuron 11.1229", "neuron 3 of expert 2 in block 1", "the bias down_proj of block 3"."""
        expert = "" if self.expert is None else f"expert {self.expert} in "
        if self.index is not None:
            return (
                f"{self.kind} {self.index} of {expert}block {self.layer}"
                if expert
                else f"{self.kind} {self.layer}.{self.index}"
            )
        return f"the {self.kind} {self.name.rpartition('.')[2]} of {expert}{_block(self.layer)}".replace("  ", " ")


@dataclass(frozen=True, kw_only=True)
class Weight(Row):
    """A single weight through which the writers write."""

    parameter: str
    """weight"""
    layer: str
    """block"""
    place: tuple[int, ...]
    value: float
    share: Annotated[float, Share]
    """share of the lift: that passes through it"""


@dataclass(frozen=True, kw_only=True)
class SinkLoss(Row):
    """Share of attention on the token that is lost with a dimension moved there, by heads that are sinks on it."""

    name: str
    """moved at the token"""
    lost: Annotated[Estimate, Share]
    """share lost by all sinks"""
    read: Annotated[Estimate, Share]
    """by those that read it: in keys, on texts that did not choose them"""


@dataclass(frozen=True, kw_only=True)
class SinkHead(Row):
    """A head that is a sink on the dimension's token."""

    layer: int
    """block"""
    head: int
    mass: float
    """attention: mean, on the token"""
    in_keys: float
    """in keys: with the dimension at its mean at the token"""
    in_queries: float
    """in queries: with the dimension at its mean at all other tokens"""
    lost: Annotated[Estimate, Share]
    """share lost: with the dimension at its mean at the token"""

    @property
    def reads(self) -> str:
        """ "keys", "queries", "keys and queries", or "neither": where half of the mass goes with the dimension."""
        halves = {"keys": self.in_keys <= self.mass / 2, "queries": self.in_queries <= self.mass / 2}
        return " and ".join(name for name, half in halves.items() if half) or "neither"


@dataclass(frozen=True, kw_only=True)
class Trace(Finding):
    """The life of one dimension: an account of it, who writes it, what the model loses without, and who reads it.

    Attributes:
        writers: the fewest parts that carry the lift, largest first; () where no few do. weights: those they write through.
        text, position, token: where the dimension is largest.
        post_norm: whether blocks end in a norm of the stream. error: largest |sum of parts − value|, as a share of the sizes
            that are summed, over all tokens and blocks.
        lifts, peak, falls: block that adds most, block after which it is largest, block that takes most away ("" for none).
        lift: at the largest token: the value at the peak where the stream is a sum, and what `lifts` changes where blocks end
            in a norm of it.
        n_heads: of the stream. n_reading: heads that read it: on every other text they lose more than half, by the interval.
    """

    title = "The life of a dimension"
    pictures = (Lines(rows="blocks", x="layer", y="largest", title="Its value at its largest token"),)

    parts: tuple[BlockPart, ...]
    """Largest parts of the block that lifts it: All parts of all blocks with --verbose."""
    weights: tuple[Weight, ...]
    """Single weights that carry it"""
    trials: tuple[Measurement, ...]
    """Without these weights: Put back: the weights are 0, and the dimension is as before at the tokens that carry it."""
    blocks: tuple[BlockValue, ...]
    """Value by block: The share is of the state's sum of squares, by which a norm divides everything."""
    sinks: tuple[SinkLoss, ...] = ()
    """Attention on its token that sink heads lose: The dimension is set to its mean in every layer, and a random one is moved \
as far. Heads that read it lose over half on every other text (by the interval); measured here on the texts between."""
    readers: tuple[SinkHead, ...] = ()
    """Sink heads on its token: In keys: with the dimension at its mean at the token. In queries: at all other tokens."""
    writers: tuple[Writer, ...]
    """(Writers)"""
    text: int
    position: int
    token: str
    post_norm: bool
    error: float
    lifts: str
    lift: float
    peak: str
    falls: str
    threshold: float
    n_heads: int = 0
    n_reading: int = 0

    @property
    def dim(self) -> int:
        """The dimension that is followed."""
        return self.dims[0]

    def of(self, layer: str) -> tuple[BlockPart, ...]:
        """The parts of one layer; their sums are its values."""
        return tuple(part for part in self.parts if part.layer == layer)

    def at(self, layer: str) -> BlockValue:
        """The dimension after one layer."""
        return next(one for one in self.blocks if one.layer == layer)

    def laid_out(self, name: str, rows: tuple[Any, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """A table; without `verbose` the largest parts, the blocks where something happens, and the strongest sinks."""
        if not verbose and name == "parts":
            rows = tuple(
                sorted((one for one in self.of(self.lifts) if one.kind != "carried"), key=lambda one: -abs(one.largest))
            )
            rows = rows[:PARTS]
        elif not verbose and name == "blocks":
            turns = {rows[0].layer, self.lifts, self.peak, self.falls, rows[-1].layer}
            rows = tuple(one for one in rows if one.layer in turns)
        elif not verbose and name == "readers":
            rows = rows[:SHOWN]
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        peak, last = self.at(self.peak), self.blocks[-1]
        yield (
            f"Its largest value is {number(peak.largest)}, at {self.token!r}, position {self.position}, after "
            f"{_block(self.peak)}. There it is {number(peak.first)} at first tokens and {number(peak.others)} at the others on "
            "average."
        )
        away = f", what takes most of it away is {_block(self.falls)}" if self.falls else ""
        yield f"What lifts it most is {_block(self.lifts)}{away}; it ends at {number(last.largest)}."
        if self.writers:
            what = f"the change by {_block(self.lifts)}" if self.post_norm else "its largest value"
            said = listed([f"{one.named} ({percent(one.share)})" for one in self.writers])
            makes = f"make{'s' * (len(self.writers) == 1)} {percent(sum(one.share for one in self.writers))}"
            yield f"{said[:1].upper()}{said[1:]} {makes} of {what} ({number(self.lift)})."
        else:
            yield "No single writer: many parts of the model share it."
        if self.trials:
            zero, back, *random = (one.change for one in self.trials)
            values, n = [one.value for one in random], len(self.weights)
            yield (
                f"{self.about.task.capitalize()} ({self.about.unit}) with {n} single weight{'s' * (n > 1)} "
                f"at 0: {zero.written()}; with the dimension put back at its tokens: {back.written()}; "
                f"with the same number of random weights of the same size at 0: {min(values):+.3g} to {max(values):+.3g}."
            )
        yield (
            f"It makes {percent(peak.share_largest)} of the sum of squares that a norm divides by at that token, and "
            f"{percent(peak.share_others)} at the others."
        )
        yield from self._read()
        yield f"The account is exact: in every block the parts sum to the value, to {self.error:.1g} of their size."

    def _read(self) -> Iterator[str]:
        if not self.sinks and self.n_heads:
            yield f"No head is a sink on its token (attention of {self.threshold:g} or more)."
        if self.sinks:
            own, *random = self.sinks
            most = max((abs(one.lost.value) for one in random), default=0.0)
            yield (
                f"Sinks on its token (attention of {self.threshold:g} or more): {len(self.readers)} of {self.n_heads} heads. "
                f"With the dimension at its mean there they lose {own.lost.percent()} of that attention, with a random one "
                f"moved as far at most {percent(most)}."
            )
        if self.sinks and self.n_reading:
            most = max((abs(one.read.value) for one in random), default=0.0)
            yield (
                f"Heads that read it in their keys, chosen on every other text: {self.n_reading}. On the texts between they "
                f"lose {own.read.percent()}, with a random one moved as far at most {percent(most)}."
            )


def _block(layer: str) -> str:
    return "the embeddings" if layer == "embeddings" else f"block {layer}"


# --- how it is found ---------------------------------------------------------------------------------------------


@eagerly
def trace(
    loaded: LoadedModel, texts: Data, options: TraceOptions | None = None, *,
    progress: Progress | None = None, rows: Path | Keep | None = None,
) -> Trace:  # fmt: skip
    """Follow one dimension of `loaded`, on `texts`, which may be pictures or recordings (`media.Items`).

    With `rows`, the loss under every condition is kept there and is not measured again.

    Raises:
        BadInput: an unknown dimension or stream, one that the data do not reach, no text with two tokens, a model of which a
            writer cannot be seen, or one in which something writes that its row does not declare.
    """
    options = options or TraceOptions()
    reading = reading_of(loaded, texts, options.task.max_length, options.stack)
    stack = stack_read(loaded, reading, options.stack)
    refuse(loaded, stack)
    check_dims([] if options.dim is None else [options.dim], stack, stream_width(loaded.model, stack))
    batches = [b for b in reading.batches(texts, batch_size=options.task.batch_size) if int(b.valid.sum(1).max()) > 1]
    if not batches:
        raise BadInput(f"{texts.source}: no text has two tokens, so there is nothing to follow a dimension through")
    dim, means, medians, n_tokens = overview(stack, loaded, reading, batches)
    dim = dim if options.dim is None else options.dim
    peak, places, (text, position, token) = carriers(loaded, stack, reading, batches, dim)
    at = next(batch for batch in batches if text in batch.texts)
    found = account(loaded, stack, dim, reading, batches, groups(batches, text, position))
    lifts, falls = _turns(found.values[:, LARGEST], peak)
    lift, writers = _writers(found, stack, (lifts, peak), STANDS_OUT * medians[peak - EMBEDDINGS])
    row_of = partial(_row, loaded, reading, at, (at.texts.index(text), position))
    weights = tuple(_weights(loaded, dim, row_of, writers, lift))
    back = Restoration(loaded, stack, dim, tuple(sorted({entry.layer for entry in writers})), peak)
    task = Passes(make_task(loaded, texts, options.task), back.recording)
    trials = _trials(task, texts, weights, back, options, rows, progress)
    notes: tuple[str, ...] = (*loaded.notes, *dict.fromkeys((*reading.notes, *task.notes)))
    notes += (*found.unreached, *factor_notes(found, stack))
    read: dict[str, Any] = {}
    try:
        check_eager(loaded, stack)
        read = _readers(TokenAttention(loaded, stack, reading, batches, places), dim, means, options, progress)
    except BadInput as error:
        notes += (f"which heads read it is not known: {error}",)
    layers = [layer_name(layer) for layer in (EMBEDDINGS, *range(stack.n_layers))]
    return Trace(
        provenance=loaded.provenance(seed=options.seed),
        about=About(
            data=texts.source, data_digest=texts.digest, inputs=texts.plural, task=task.name, unit=task.unit,
            stack=stack.name, layers=tuple(range(stack.n_layers)), dims=(str(dim),),
            named_by="the largest value relative to its block's root mean square" if options.dim is None else "given",
            n_texts=len({one for batch in batches for one in batch.texts}), n_tokens=n_tokens,
            max_length=options.task.max_length,
        ),
        blocks=tuple(
            BlockValue(layer=layer, **_grouped(values), **_grouped(shares, "share_"))
            for layer, values, shares in zip(layers, found.values, found.shares, strict=True)
        ),
        parts=tuple(_parts(found, NEURONS)),
        writers=tuple(Writer(**_told(one), share=one.values[LARGEST] / lift) for one in writers),
        weights=weights, trials=trials, text=text, position=position, token=token,
        post_norm=stack.stack.norm_site == "stream", error=found.error, lifts=layer_name(lifts), lift=lift,
        peak=layer_name(peak), falls="" if falls is None else layer_name(falls), threshold=options.threshold,
        notes=notes, **read,
    )  # fmt: skip


def run(session: "Session", options: TraceOptions) -> Trace:
    """What the command finds."""
    data = session.task_reading.read(offline=session.loading.offline)
    return trace(session.loaded, data, options, progress=session.progress, rows=session.kept)


def _turns(values: np.ndarray, peak: int) -> tuple[int, int | None]:
    """(layer that takes the value furthest towards its peak, layer after it that takes most away) of [layer + 1]."""
    steps = np.diff(values, prepend=0.0) * np.sign(values[peak + 1])
    later = steps[peak + 2 :]
    falls = int(later.argmin()) + peak + 1 if len(later) and later.min() < 0 else None
    return int(steps[: peak + 2].argmax()) + EMBEDDINGS, falls


def _writers(found: Account, stack: BoundStack, turn: tuple[int, int], least: float) -> tuple[float, list[TermEntry]]:
    """The fewest parts that carry the lift of the largest token, [] where no few do or its peak is below `least`.

    `turn` is (layer that lifts it, layer of its peak). Where the stream is a sum, the lift is the value at the peak, made by
    all parts before it. Where blocks end in a norm of it, the lift is what one block changes, from norm to norm; what its
    norms make of the value that it was given counts as theirs.
    """
    lifts, peak = turn
    values, post_norm = found.values, stack.stack.norm_site == "stream"
    # What the blocks behind a layer make of what it adds, where they multiply the stream by a constant.
    later = dict.fromkeys((EMBEDDINGS, *range(stack.n_layers)), 1.0)
    for layer in range(peak - 1, EMBEDDINGS - 1, -1) if not post_norm else ():
        later[layer] = later[layer + 1] * found.factors.get((layer + 1, ""), 1.0)
    before = values[lifts] if post_norm and lifts > EMBEDDINGS else np.zeros(len(GROUPS))
    total = float((values[lifts + 1] - before)[LARGEST] if post_norm else values[peak + 1, LARGEST])
    parts = []
    for one in found.entries:
        entry = replace(one, kind="norm scale", values=one.values - before) if one.kind == "carried" else one
        if entry is one and later[one.layer] != 1:
            entry = replace(one, values=one.values * later[one.layer])
        if entry.layer == lifts if post_norm else entry.layer <= peak and entry.kind != "norm scale":
            parts.append(entry)
    parts.sort(key=lambda one: -abs(one.values[LARGEST]))
    sizes = np.array([one.values[LARGEST] for one in parts])
    if abs(values[peak + 1, LARGEST]) >= least:
        for n in range(1, min(FEW, len(parts)) + 1):
            rest = sizes[n:]
            if abs(rest.sum()) <= LEFT * abs(total) and np.sqrt(np.square(rest).sum()) <= ROUGH * abs(total):
                return total, parts[:n]
    return total, []


def _weights(
    loaded: LoadedModel, dim: int, row_of: Callable[[str], int], writers: Sequence[TermEntry], lift: float
) -> Iterator[Weight]:
    """The single weights that the writers write through; of a head the fewest channels that make 95 % of what it writes."""
    parameters = live_parameters(loaded.model)
    for entry in writers:
        if not entry.parameter or entry.parameter not in parameters:
            continue
        value = float(entry.values[LARGEST])
        if entry.kind == "embedding":
            row = row_of(entry.name)
            chosen = [(value, (row, dim))] if row >= 0 else []
        elif entry.columns is None:
            chosen = [(value, entry.places[0])]  # type: ignore[list-item]
        else:
            channels = entry.columns[LARGEST]
            order = np.argsort(-channels * np.sign(value))[:CHANNELS]
            n = int(np.argmax(np.cumsum(channels[order]) * np.sign(value) >= (1 - LEFT) * abs(value))) + 1
            chosen = [(float(channels[k]), entry.places[k]) for k in order[:n]]
        for share, place in chosen:
            held = float(in_memory(parameters[entry.parameter]).detach()[place])
            yield Weight(
                parameter=entry.parameter, layer=layer_name(entry.layer), place=place, value=held, share=share / lift
            )


def _row(loaded: LoadedModel, run: Callable[[Batch], None], batch: Batch, at: tuple[int, int], path: str) -> int:
    """The row that the table at `path` gives the token `at` (row, place) of a batch; -1 where it is no table."""
    from torch import nn

    module = loaded.model.get_submodule(path)
    if not isinstance(module, nn.Embedding):
        return -1
    given: list[Tensor] = []

    def keep(values: "Tensor") -> "Tensor":
        given.append(values.expand(*batch.valid.shape, values.shape[-1])[at])
        return values

    with edited_calls(loaded.model, {}, {module: keep}):
        run(batch)
    weight = in_memory(weight_of(module)).detach()
    # Some tables multiply their rows by a constant, so the direction tells.
    return int(((weight @ given[0]) / weight.norm(dim=1).clamp(min=1e-30)).argmax())


def _trials(
    task: Passes, texts: Data, weights: Sequence[Weight], back: Restoration, options: TraceOptions,
    rows: Path | Keep | None, progress: Progress | None,
) -> tuple[Measurement, ...]:  # fmt: skip
    """What the model loses with the weights at 0, with the dimension put back behind them, and with random weights at 0."""
    if not weights:
        return ()
    loaded, places = back.loaded, [(one.parameter, one.place) for one in weights]
    random = [like(loaded, places, seed=options.seed + draw) for draw in range(options.n_random)]
    conditions = [
        Condition("zeroed", "weights at 0", {}, partial(zeroed, loaded, places), "zeroed"),
        Condition("restored", "put back", {}, partial(back.put_back, places), "restored"),
    ]
    conditions += [
        Condition("random", f"random weights {number}", {}, partial(zeroed, loaded, one), f"random {number}")
        for number, one in enumerate(random, 1)
    ]
    identity = {"task": asdict(options.task), "stack": back.stack.name, "seed": options.seed, "dim": back.dim}
    with Study(loaded, cast(Task, task), texts, identity | {"weights": places}, rows=rows, progress=progress) as study:
        assert study.intact  # in which the dimension is recorded
        task.around = None
        return tuple(map(study.row, study.measure(conditions)))


def _parts(found: Account, n_neurons: int) -> Iterator[BlockPart]:
    """The account's entries, of each MLP the largest neurons by themselves and the others added up."""
    by_mlp: dict[tuple[int, str, int], list[TermEntry]] = {}
    for entry in found.entries:
        if entry.kind == "neuron":
            by_mlp.setdefault((entry.layer, entry.name, entry.expert), []).append(entry)
        else:
            yield BlockPart(**_told(entry))
    for (layer, name, expert), neurons in by_mlp.items():
        neurons.sort(key=lambda one: -float(np.abs(one.values).max()))
        yield from (BlockPart(**_told(one)) for one in neurons[:n_neurons])
        if others := neurons[n_neurons:]:
            rest = TermEntry(layer, "neuron", name, -1, np.sum([one.values for one in others], axis=0), expert=expert)
            yield BlockPart(**_told(rest) | {"kind": "other neurons"})


def _told(one: TermEntry) -> dict[str, Any]:
    """The fields of a `BlockPart`."""
    index = None if one.index < 0 else one.index
    expert = None if one.expert == NO_EXPERT else one.expert
    told = {"layer": layer_name(one.layer), "kind": one.kind, "name": one.name, "expert": expert, "index": index}
    return told | _grouped(one.values)


def _grouped(values: np.ndarray, begin: str = "") -> dict[str, float]:
    return {begin + name: float(value) for name, value in zip(GROUPS, values, strict=True)}


def _readers(
    at: TokenAttention, dim: int, means: np.ndarray, options: TraceOptions, progress: Progress | None
) -> dict[str, Any]:
    """Heads that are sinks on the token, and what they lose with the dimension set to its mean there.

    A control moves a random dimension of the token, in every layer as far as the dimension was moved, so that as large a
    share of the state changes. A head reads the dimension where, on every other text, the 95 % interval of what it loses lies
    above half; it takes 32 texts to say so. What these heads lose is measured on the texts between.
    """
    drawn = [one for (one,) in random_sets(means.shape[1], 1, n=options.n_random, seed=options.seed, other_than=(dim,))]
    states, mean, moved = at.states([dim, *drawn]), means[:, dim], dict[str, np.ndarray]()
    fixed = dict.fromkeys(states, mean)
    intact, keys, queries = at.masses(), at.masses(dim, fixed), at.masses(dim, fixed, elsewhere=True)
    for column, one in enumerate(drawn, 1):
        if progress:
            progress("reading attention", column - 1, len(drawn))
        far = {text: values[:, column] + mean - values[:, 0] for text, values in states.items()}
        moved[f"random dimension {one}"] = at.masses(one, far)
    mean = intact.mean(0)
    sinks = mean >= options.threshold
    if not sinks.any():
        return {"n_heads": mean.size}
    reading, readers = np.zeros_like(sinks), []
    for layer, head in np.argwhere(sinks).tolist():
        here, every = (slice(None), layer, head), (slice(0, None, 2), layer, head)
        reading[layer, head] = _lost(intact[every], keys[every]).low > READS
        readers.append(SinkHead(
            layer=layer, head=head, mass=float(mean[layer, head]), in_keys=float(keys[here].mean()),
            in_queries=float(queries[here].mean()), lost=_lost(intact[here], keys[here]),
        ))  # fmt: skip
    losses = tuple(
        SinkLoss(
            name=name, lost=_lost(intact[:, sinks].sum(1), one[:, sinks].sum(1)),
            read=_lost(intact[1::2, reading].sum(1), one[1::2, reading].sum(1)),
        )
        for name, one in ({f"dimension {dim}": keys} | moved).items()
    )  # fmt: skip
    readers.sort(key=lambda one: (-one.mass, one.layer, one.head))
    return {"n_heads": mean.size, "readers": tuple(readers), "n_reading": int(reading.sum()), "sinks": losses}


def _lost(before: np.ndarray, after: np.ndarray) -> Estimate:
    """Share of Σ before that is gone after, both [text]; unknown where nothing was there before."""
    lost = before - after
    return Estimate(float(lost.sum() / before.sum()), *ratio_interval(lost, before)) if before.sum() > 0 else UNKNOWN
