"""Activation statistics of every layer and dimension in one streaming pass.

    observer = Observer(loaded, options, reading_of(loaded, texts, options.max_length))
    for stack in observer.measured(texts, kept): ...               # a StackObservation of each stream
    stack.view("without_special").argmin_share                     # [layer, column]
    stack.outliers                                                 # what luo, massive and llm.int8 find

Texts are padded on the right whatever the tokenizer does, because absolute positions would shift otherwise; padding is
never counted. Special and ordinary tokens are counted apart, and "all" is both merged. Encoder-decoders read each text
twice: the encoder as it is, the decoder shifted by one behind its start token.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.architectures import NO_EXPERT, BoundStack, LastLinear, live_parameters, streams_of
from outlierlens.data.texts import Batch, Data
from outlierlens.detection.observed import QUANTILES, VIEWS, Passage, StackObservation, Statistics
from outlierlens.detection.rules import (
    ActivationMeasures,
    ActivationRules,
    Rule,
    activation_outliers,
    massive_neurons,
    zscore,
)
from outlierlens.detection.running_statistics import (
    BIN_BYTES,
    BINS,
    QUANTILE_ERROR,
    Extremes,
    GroupStats,
    InputCounts,
    LargeCounts,
    LayerStats,
    LogHistogram,
    Moments,
    Scratch,
    VectorRows,
    rows_of,
)
from outlierlens.detection.weights import live_values
from outlierlens.errors import BadInput
from outlierlens.models.experts import ExpertCall, tapped_experts, unreached
from outlierlens.models.forward import check_padding
from outlierlens.models.hooks import EMBEDDINGS, layer_name, tapped, tapped_reads
from outlierlens.models.inputs import Reading, TextReading, in_windows, read_together, reader_digest, reading_of
from outlierlens.models.load import LoadedModel, fingerprint
from outlierlens.options import check
from outlierlens.results.row_store import UnitCache
from outlierlens.results.safe_files import replacing

if TYPE_CHECKING:
    from torch import Tensor

PASSAGE_DIMS = 1024
SAVE_SECONDS = 60.0  # between two times that what was counted is kept
NUMBERS = ("n_tokens", "n_special", "n_batches", "groups")
TokenText = Callable[[list[int]], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class ObserveOptions:
    """How to observe."""

    stack: str | None = None
    """One stream alone. mlp (encoder.mlp): what the last linear of each block's MLP reads, neuron by neuron."""
    max_length: int = 128
    """Maximum number of tokens per text, special tokens included."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts per forward pass."""
    n_sigma: Annotated[float, Gt(0), Lt(float("inf"))] = Rule.n_sigma
    """Threshold on the distance from the vector's own mean, in standard deviations (--verbose lists what exceeds it)."""
    rules: ActivationRules = ActivationRules()
    """Thresholds of the rules on top."""
    histogram_bytes: int = 200_000_000
    """Memory for histograms; beyond it, quantiles are kept for the most extreme dimensions only."""
    table_cells: Annotated[int, Ge(1)] = 65_536
    """Layers × dimensions that a result holds; beyond it, it names the most extreme dimensions only."""
    passage: str | None = None
    """The text whose token vectors are recorded; the first text where none is given."""
    passage_tokens: Annotated[int, Ge(0)] = 24
    """At most N tokens of it; 0 records none."""
    progress: Callable[[str, int, int], None] | None = field(default=None, compare=False, repr=False)
    """Called with the stage, texts done and texts in all."""

    def __post_init__(self) -> None:
        check(self)
        if self.passage_tokens == 1:
            raise BadInput("passage_tokens is 1; it must be 0, or at least 2")


class Observer:
    """The streaming pass in pieces: `batches`, `consume` each, `finish`.

    Attributes:
        reading: the bare forward pass and the batches it takes; of texts unless another is given.
        max_length: tokens of a text that are read: the option, or less where the model has fewer positions.
        n_layers: blocks of the first stream. n_tokens, n_special: tokens read so far, padding not counted.
        notes: what a reader should know, once all is measured. idle: streams of which no layer ran.
    """

    def __init__(self, loaded: LoadedModel, options: ObserveOptions, reading: Reading | None = None):
        self.loaded, self.options = loaded, options
        self.reading: Reading = reading or TextReading(loaded, options.max_length)
        self.sides = {stack.name: stack.name for stack in self.reading.stacks}  # axis -> the stream whose tokens it has
        self.stacks = self.reading.stacks
        if options.stack is not None:
            axes = loaded.axes(options.stack)
            of = streams_of(loaded.stacks, options.stack, loaded.name)[0].name
            if of not in self.sides:
                raise BadInput(
                    f"--stack {options.stack}: these {self.reading.inputs} do not reach it; name {', '.join(self.sides)}"
                )
            self.stacks, self.sides = list(axes), {axis.name: of for axis in axes}
        self.n_layers = next(one.n_layers for one in loaded.stacks if one.name == next(iter(self.sides.values())))
        self.max_length = self.reading.max_length
        self.n_tokens = self.n_special = self.n_batches = 0
        self.groups = 1
        self.notes: tuple[str, ...] = ()
        self.idle: tuple[str, ...] = ()
        # MPS has no float64.
        device = "cpu" if loaded.device.type == "mps" else loaded.device
        live = live_parameters(loaded.model)
        self.streams = {stack.name: StreamTally(stack, options, device) for stack in self.stacks}
        self.experts: dict[str, list[tuple[BoundStack, int]]] = {}  # by parameter the rows of its experts
        for stack in self.stacks:
            for row, one in enumerate(stack.mlps):
                if one.expert != NO_EXPERT:
                    self.experts.setdefault(one.param.name, []).append((stack, row))
                    self.streams[stack.name].begin(row, live[one.param.name].shape[one.param.axis])
        self.places = {
            f"{stack.name} {layer_name(layer)}": (stack.name, layer) for stack in self.stacks for layer in taps(stack)
        }

    def identity(self, texts: Data) -> dict[str, Any]:
        """What must be equal for kept sums to be of the same pass."""
        options = self.options
        return {
            "model": fingerprint(self.loaded.model), "reader": reader_digest(self.loaded),
            "data": texts.digest, "streams": list(self.streams),
            "max_length": self.max_length, "batch_size": options.batch_size, "n_sigma": options.n_sigma,
            "int8_size": options.rules.int8_size, "histogram_bytes": options.histogram_bytes,
        }  # fmt: skip

    def measured(self, texts: Data, kept: UnitCache | None = None) -> tuple[StackObservation, ...]:
        """Statistics and outliers of each stream over `texts`; layers that `kept` has are not counted again.

        Beside its rows lies what was counted while the pass runs, and one that was stopped goes on from there.

        Raises:
            BadInput: no text has a token, or a layer did not run.
        """
        kept = kept or UnitCache(None, {})
        if "texts" in kept.done:
            self.idle = tuple(kept.done["texts"]["idle"])
        if not {"texts", *self._places()} <= kept.done.keys():
            place = partly(kept.rows.path) if kept.rows else None
            self._read(texts, place)
            for key, row in self._rows().items():
                kept(key, lambda row=row: row if kept.rows is None else _plain(row))  # type: ignore[misc]
            notes = [*self.loaded.notes, *self.reading.notes]  # some of which only a pass knows
            counted = {"n_tokens": self.n_tokens, "n_special": self.n_special, "notes": notes, "idle": list(self.idle)}
            kept("texts", lambda: counted)
            if place is not None:
                place.unlink(missing_ok=True)
        counts = kept.done["texts"]
        self.n_tokens, self.n_special, self.notes = counts["n_tokens"], counts["n_special"], tuple(counts["notes"])
        return self._summaries(kept.done)

    def _read(self, texts: Data, place: Path | None) -> None:
        saved, pause = time.monotonic(), SAVE_SECONDS
        if place is not None:
            self._restore(place, texts)
        left = islice(self.batches(texts), self.n_batches, None)

        def read(batch: Batch) -> None:
            nonlocal saved, pause
            self.consume(batch)
            together = self.loaded.blocks is not None  # of other batches some layers are counted by now
            if place is not None and not together and (now := time.monotonic()) - saved >= pause:
                self.save(place, texts)
                saved = time.monotonic()
                pause = max(SAVE_SECONDS, 20 * (saved - now))  # keeping takes a twentieth of the time at most

        read_together(self.loaded, read, left)

    def save(self, place: Path, texts: Data) -> None:
        """Write what was counted so far, in place of what was there."""
        import torch

        counted = {name: (stream.layers, stream.reads) for name, stream in self.streams.items()}
        numbers = {name: getattr(self, name) for name in NUMBERS}
        with replacing(place) as file:
            torch.save({"identity": json.dumps(self.identity(texts)), "counted": counted, "numbers": numbers}, file)

    def _restore(self, place: Path, texts: Data) -> None:
        """Go on with what `save` wrote; a file that is damaged, or of other work, is as none."""
        import torch

        parts: list[Any] = [LayerStats, GroupStats, LogHistogram, Moments, Extremes, InputCounts, LargeCounts]
        try:
            with torch.serialization.safe_globals(parts):
                found = torch.load(place, weights_only=True)
            if found["identity"] != json.dumps(self.identity(texts)):
                return
        except (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError):
            return
        for name, (layers, reads) in found["counted"].items():
            stream = self.streams[name]
            stream.layers, stream.reads = layers, reads
            for layer in layers.values():
                layer.scratch = stream.scratch
        for name, number in found["numbers"].items():
            setattr(self, name, number)

    def batches(self, texts: Data) -> Iterator[Batch]:
        """Batches of `texts`, window by window; progress is reported as they are asked for."""
        return in_windows(self.reading, texts, self.options.batch_size, self.options.progress, "observing")

    def consume(self, batch: Batch) -> None:
        """Run the model on a batch and count all its token vectors."""
        import torch

        sides = self.reading.sides(batch)
        if any(bool(side.special.any()) for side in sides.values()):
            self.groups = 2
        kept = self.columns_per_layer()
        rows = {}
        for name, side in self.sides.items():
            tokens, special, valid = sides[side]
            device = self.streams[name].device
            parts = [t.to(device) for t in (valid & ~special, special, valid, tokens)]
            rows[name] = (
                rows_of(parts[0], parts[2], parts[3], batch.texts),
                rows_of(parts[1], parts[2], parts[3], batch.texts),
            )

        # What `fast_products` does to each function of the model is not needed here, and takes time at each.
        def look(stack: BoundStack, layer: int, states: "Tensor") -> None:
            check_padding(stack, layer, states, sides[self.sides[stack.name]].valid)
            with torch._C.DisableTorchFunction():
                self.streams[stack.name].add(layer, states, *rows[stack.name], self.groups, kept)

        def look_at_read(stack: BoundStack, layer: int, part: int, read: "Tensor") -> None:
            with torch._C.DisableTorchFunction():
                self.streams[stack.name].add_read(layer, part, read, rows[stack.name])

        def look_at_expert(packed: tuple[tuple[BoundStack, int], ...], call: ExpertCall) -> None:
            stack, row = packed[call.expert]
            if call.tokens is None:
                raise BadInput(f"{self.loaded.name}: whose tokens {stack.mlps[row].path} reads cannot be told")
            with torch._C.DisableTorchFunction():
                mine = [one.among(call.tokens.to(one.index.device), batch.valid.numel()) for one in rows[stack.name]]
                self.streams[stack.name].add(row, call.read[None], mine[0], mine[1], self.groups, kept)

        experts = {name: partial(look_at_expert, tuple(some)) for name, some in self.experts.items()}
        with (
            torch.inference_mode(),
            tapped(self.loaded.model, self.stacks, look),
            tapped_reads(self.loaded.model, self.stacks, look_at_read),
            tapped_experts(self.loaded.model, experts),
        ):
            self.reading(batch)
        self.n_tokens += int(batch.valid.sum())
        self.n_special += int(batch.special.sum())
        self.n_batches += 1

    def finish(self) -> tuple[StackObservation, ...]:
        """Statistics and outliers of each stream over everything consumed; raises BadInput when that is nothing."""
        return self._summaries(self._rows())

    def _places(self) -> dict[str, tuple[str, int]]:
        """Stream and layer by key, without idle streams, unless all are."""
        every = len(self.idle) == len(self.streams)
        return {key: place for key, place in self.places.items() if every or place[0] not in self.idle}

    def _rows(self) -> dict[str, dict[str, Any]]:
        """The statistics of every layer, by stream and layer; of idle streams, which are known by now, none."""
        import torch

        if not self.n_tokens:
            raise BadInput("the tokenizer made no token of these texts, so there is nothing to observe")
        self.idle = tuple(name for name, stream in self.streams.items() if not stream.layers)
        with torch.inference_mode():
            return {key: self.streams[name].row(layer) for key, (name, layer) in self._places().items()}

    def _summaries(self, rows: Mapping[str, Any]) -> tuple[StackObservation, ...]:
        return tuple(
            summarise(stack, [rows[k] for k, (name, _) in self.places.items() if name == stack.name],
                      partial(self.reading.words, stream=self.sides[stack.name]), self.options)
            for stack in self.stacks
            if stack.name not in self.idle
        )  # fmt: skip

    def passages(self, one: Any) -> tuple[Passage, ...]:
        """Vectors of the first tokens of one input, for each stream; `one` holds that input alone."""
        import torch

        states: dict[str, list[np.ndarray]] = {name: [] for name in self.streams}
        if not (limit := self.options.passage_tokens):
            return ()
        (batch,) = self.reading.batches(one, batch_size=1, max_length=limit)

        def look(stack: BoundStack, layer: int, seen: "Tensor") -> None:
            states[stack.name].append(seen[0, :limit].float().cpu().numpy())

        with torch.inference_mode(), tapped(self.loaded.model, self.stacks, look):
            self.reading(batch)
        sides = self.reading.sides(batch)
        found = []
        for stack in self.stacks:
            if stack.name in self.idle or any(one.expert != NO_EXPERT for one in stack.mlps):
                continue  # an expert has no vector of each token
            vectors = np.stack(states[stack.name])  # [layer, token, dim]
            shown = sorted({0, len(vectors) // 2, len(vectors) - 1})
            dims = np.arange(vectors.shape[2])
            if len(dims) > PASSAGE_DIMS:
                dims = np.sort(np.abs(vectors).max((0, 1)).argsort()[::-1][:PASSAGE_DIMS])
            stream = self.sides[stack.name]
            tokens = self.reading.words(sides[stream].tokens[0, :limit].tolist(), stream)
            layers = tuple(layer_name(taps(stack)[row]) for row in shown)
            found.append(Passage(stack.name, tokens, layers, tuple(dims.tolist()), vectors[shown][:, :, dims]))
        return tuple(found)

    def columns_per_layer(self) -> int:
        """Dimensions of each layer whose histograms `histogram_bytes` has room for; raises BadInput for none."""
        rows = sum(len(taps(stack)) for stack in self.stacks)
        each = rows * self.groups * BINS * BIN_BYTES
        kept = self.options.histogram_bytes // each
        if not kept and self.experts:
            return 1  # which their median needs
        if not kept:
            raise BadInput(
                f"histogram_bytes is {self.options.histogram_bytes:,}; one dimension of each of {rows} layers needs {each:,}"
            )
        return kept


class StreamTally:
    """The layers of one residual stream while they are counted: `layers`, and `reads` of what attention and MLP read."""

    def __init__(self, stack: BoundStack, options: ObserveOptions, device: Any):
        self.stack, self.options, self.device = stack, options, device
        self.scratch = Scratch()
        self.layers: dict[int, LayerStats] = {}
        self.reads: dict[tuple[int, int], LargeCounts] = {}  # (layer, part)

    def begin(self, layer: int, dim: int) -> LayerStats:
        """The statistics of a layer, of no token where it has none yet."""
        if layer not in self.layers:
            self.layers[layer] = LayerStats(dim, self.options.n_sigma, self.device, self.scratch)
        return self.layers[layer]

    def add(
        self, layer: int, states: "Tensor", ordinary: VectorRows, special: VectorRows, groups: int, kept: int
    ) -> None:
        """Count a batch's states [batch, token, dim]; `groups` and `kept` as for `LayerStats.keep_quantiles`."""
        dim = states.shape[-1]
        stats = self.begin(layer, dim)
        # Without norms on what is read, the next block reads the stream itself.
        is_read = not any(self.stack.reading) and not self.stack.reads
        try:
            stats.keep_quantiles(groups, kept, states, (ordinary, special))
            stats.add(states, ordinary, special, self._counts(layer, 0, dim) if is_read else None)
        except BadInput as error:
            raise BadInput(
                f"stream {self.stack.name}, layer {row_names(self.stack)[layer - taps(self.stack)[0]]}: {error}"
            ) from None

    def add_read(self, layer: int, part: int, read: "Tensor", rows: tuple[VectorRows, VectorRows]) -> None:
        """Count what norm number `part` of a layer hands on, [batch * token, dim]."""
        flat = read.to(self.device).reshape(-1, read.shape[-1])
        counts = self._counts(layer, part, flat.shape[1])
        for chosen in rows:
            if len(chosen):
                counts.add(flat, chosen.index)

    def _counts(self, layer: int, part: int, dim: int) -> LargeCounts:
        return self.reads.setdefault((layer, part), LargeCounts(dim, self.device, self.options.rules.int8_size))

    def large_share(self, layer: int) -> np.ndarray:
        """Share of token vectors with large |h| (6) in what a layer reads [dim]: of several norms, the larger."""
        shares = [counts.share().cpu().numpy() for (at, _), counts in self.reads.items() if at == layer]
        found: np.ndarray = np.max(shares, axis=0) if shares else np.zeros(self.layers[layer].dim)
        return found

    def row(self, layer: int) -> dict[str, Any]:
        """Every statistic of a layer by view, [dim] or a number, and its `large_share`."""
        if layer not in self.layers:
            ran = f"only {len(self.layers)} of {len(taps(self.stack))} layers ran on these texts"
            raise BadInput(f"stream {self.stack.name}: {ran}")
        views = {view: _layer(*self.layers[layer].view(view)) for view in VIEWS}
        return views | {"large_share": self.large_share(layer)}


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON holds it."""
    return {name: _plain(one) if isinstance(one, dict) else np.asarray(one).tolist() for name, one in row.items()}


def partly(rows: Path) -> Path:
    """Beside a file of rows: what was counted of a pass that is not at its end."""
    return rows.with_suffix(".part.pt")


def magnitude(loaded: LoadedModel, stack: BoundStack) -> np.ndarray:
    """How extreme each position of each block's last operation is: root mean square z of scale and bias, [layer, dim]."""
    parts = (stack.scale, stack.bias) if all(stack.bias) else (stack.scale,)
    return np.sqrt(np.mean([zscore(live_values(loaded.model, part)) ** 2 for part in parts], axis=0))


def summarise(
    stack: BoundStack, rows: Sequence[Mapping[str, Any]], token_text: TokenText, options: ObserveOptions
) -> StackObservation:
    """Both views of one stream and its outliers, judged on all tokens and all dimensions, of the rows of its layers."""
    names = row_names(stack)
    columns = {view: _stacked([row[view] for row in rows]) for view in VIEWS}
    every = columns["all"]
    if np.array_equal(every["tokens"], columns["without_special"]["tokens"]):
        del columns["without_special"]
    inputs = rule_inputs(names, every, np.stack([np.asarray(row["large_share"]) for row in rows]))
    outliers = massive_neurons(inputs, options.rules) if stack.reads else activation_outliers(inputs, options.rules)
    times = _times_median(every["abs_max"], stack.mlps) if stack.mlps else np.empty((0, len(every["mean"][0])))
    hidden_size = every["mean"].shape[1]
    dims = _dims(every, tuple(outlier.dim for outlier in outliers), options.table_cells // len(names))
    reached = [(one.layer, one.expert) for one, n in zip(stack.mlps, every["tokens"], strict=False) if n]
    experts = [(one.layer, one.expert) for one in stack.mlps if one.expert != NO_EXPERT]
    notes = [*stack.stack.notes, *unreached(reached, experts)]
    n_kept = int(np.isfinite(every["quantiles"][:, :, 0]).sum(1).max())
    if n_kept < hidden_size:
        notes.append(
            f"quantiles are kept for {n_kept} of {hidden_size} dimensions in each layer, those with the largest "
            f"|h| when memory was set aside (limit {options.histogram_bytes:,} bytes): raise histogram_bytes for all"
        )
    if len(dims) < hidden_size:
        notes.append(
            f"{len(dims)} of {hidden_size} dimensions are listed: every outlier, then those with the largest |h| against "
            "their layer's median |h|; the rules saw all"
        )
    return StackObservation(
        stack=stack.name,
        layers=names,
        hidden_size=hidden_size,
        dims=tuple(dims.tolist()),
        views={view: _statistics(values, dims, token_text) for view, values in columns.items()},
        outliers=outliers,
        quantile_error=QUANTILE_ERROR,
        notes=tuple(notes),
        times_median=times[:, dims],
    )


def _times_median(top: np.ndarray, mlps: Sequence[LastLinear]) -> np.ndarray:
    """Largest |x| of each neuron [row, neuron] over that of the median one of its kind in its block; 0 where no token was."""
    layers, found = np.array([one.layer for one in mlps]), np.zeros_like(top)
    for layer in set(layers.tolist()):
        mine = np.flatnonzero((layers == layer) & ~np.isnan(top[:, 0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            found[mine] = (
                np.nan_to_num(top[mine] / np.median(top[mine]), nan=0.0, posinf=math.inf) if len(mine) else 0.0
            )
    return found


def taps(stack: BoundStack) -> tuple[int, ...]:
    """The layers that a pass shows: the embeddings and every block; of an MLP axis the blocks."""
    return tuple(range(0 if stack.reads else EMBEDDINGS, stack.n_layers))


def row_names(stack: BoundStack) -> tuple[str, ...]:
    """How they are called: "embeddings", "0", …; of experts "layer:expert"."""
    return tuple(one.row for one in stack.mlps) or tuple(map(layer_name, taps(stack)))


def every_statistic(layers: Mapping[int, LayerStats], view: str) -> dict[str, np.ndarray]:
    """Every statistic of "all" or "without_special" tokens by name, [layer] or [layer, dim], layers ascending."""
    return _stacked([_layer(*layers[layer].view(view)) for layer in sorted(layers)])


def _stacked(layers: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.stack([np.asarray(layer[name]) for layer in layers]) for name in layers[0]}


def rule_inputs(layers: Sequence[str], every: Mapping[str, np.ndarray], large_share: np.ndarray) -> ActivationMeasures:
    """What the rules on activations rest on, of the statistics `every` of these layers and `large_share` [layer, dim]."""
    return ActivationMeasures(
        layers=tuple(layers), argmin_share=every["argmin_share"], argmax_share=every["argmax_share"],
        abs_max=every["abs_max"], large_share=large_share, median_abs=every["median_abs"],
    )  # fmt: skip


def _layer(group: GroupStats, inputs: InputCounts) -> dict[str, Any]:
    """Every statistic of one layer as numpy [dim], or a number; NaN where there is no token."""
    n, nan = group.count, np.full(group.dim, math.nan)
    values: dict[str, Any] = {"tokens": n}
    moments, extremes = group.moments, group.extremes
    for name in ("std", "skewness", "kurtosis"):
        values[name] = getattr(moments, name)().cpu().numpy() if n else nan
    values["mean"] = moments.mean.cpu().numpy() if n else nan
    values["min"], values["max"] = ((e.double().cpu().numpy() if n else nan) for e in (extremes.low, extremes.high))
    values["abs_max"] = extremes.top.double().cpu().numpy() if n else nan
    key = extremes.key.cpu().numpy()
    values["abs_max_position"] = key & 0xFFFFFFFF if n else np.full(group.dim, -1)
    values["abs_max_text"] = key >> 32 if n else np.full(group.dim, -1)
    values["token"] = extremes.token.cpu().numpy()
    shares = {"argmin_share": group.argmin, "argmax_share": group.argmax, "sigma_token_share": group.sigma}
    for name, count in shares.items():
        values[name] = count.cpu().numpy() / n if n else nan
    values["sigma_input_share"] = inputs.sigma.cpu().numpy() / inputs.inputs if inputs.inputs else nan
    values["quantiles"] = np.full((group.dim, len(QUANTILES)), math.nan)
    values["median_abs"] = math.nan
    if (histogram := group.histogram) is not None:
        kept = slice(None) if histogram.columns is None else histogram.columns.cpu().numpy()
        found = histogram.quantiles(QUANTILES).cpu().numpy()
        # A bin's centre may lie outside of what was seen.
        values["quantiles"][kept] = np.clip(found, values["min"][kept, None], values["max"][kept, None])
        values["median_abs"] = histogram.median_magnitude()
    return values


def _dims(values: dict[str, np.ndarray], outliers: tuple[int, ...], limit: int) -> np.ndarray:
    """The dimensions to list, ascending: all, or every outlier and the most extreme."""
    with np.errstate(over="ignore"):  # behind a ReLU the median may be 0
        size = values["abs_max"] / np.maximum(values["median_abs"], np.finfo(np.float64).tiny)[:, None]
    size = np.nanmax(size, axis=0, initial=0.0)  # NaN of experts that no token reached
    size[list(outliers)] = math.inf
    limit = max(limit, len(set(outliers)), 1)
    return np.sort(np.argsort(-size, kind="stable")[:limit])


def _statistics(values: dict[str, np.ndarray], dims: np.ndarray, token_text: TokenText) -> Statistics:
    plain = {name: array if array.ndim == 1 else array[:, dims] for name, array in values.items()}
    tokens = tuple(token_text(row.tolist()) for row in plain.pop("token"))
    return Statistics(abs_max_token=tokens, **plain)


def observed(loaded: LoadedModel, texts: Data, options: ObserveOptions) -> tuple[StackObservation, ...]:
    """What a pass over `texts` shows of each stream; raises BadInput as `Observer.measured`."""
    return Observer(loaded, options, reading_of(loaded, texts, options.max_length)).measured(texts)
