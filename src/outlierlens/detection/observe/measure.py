"""Activation statistics of every layer and dimension in one streaming pass.

    found = observe(load_model("smollm2-135m"), read_texts("excerpt"))
    found.stacks[0].view("without_special").argmin_share          # [layer, column]
    found.stacks[0].outliers                                      # what luo, massive and llm.int8 find

Texts are padded on the right whatever the tokenizer does, because absolute positions would shift otherwise; padding is
never counted. Special and ordinary tokens are counted apart, and "all" is both merged. Encoder-decoders read each text
twice: the encoder as it is, the decoder shifted by one behind its start token.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.checkpoints import open_checkpoint
from outlierlens.data.texts import Batch, Data
from outlierlens.detection.observe.imatrix import observe_imatrix
from outlierlens.detection.observe.options import Asked, ObserveOptions
from outlierlens.detection.observe.result import QUANTILES, VIEWS, Observation, Passage, StackObservation, Statistics
from outlierlens.detection.rules import ActivationMeasures, activation_outliers, massive_neurons, zscore
from outlierlens.detection.running_statistics import (
    BIN_BYTES,
    BINS,
    QUANTILE_ERROR,
    GroupStats,
    InputCounts,
    LargeCounts,
    LayerStats,
    Rows,
    Scratch,
    rows_of,
)
from outlierlens.detection.scan.measure import live_values
from outlierlens.errors import BadInput, need
from outlierlens.models.forward import check_padding
from outlierlens.models.hooks import EMBEDDINGS, layer_name, tapped, tapped_reads
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import Reading, TextReading, in_windows, reading_of
from outlierlens.results.safe_files import check_file

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.session import Session

PASSAGE_DIMS = 1024
TokenText = Callable[[list[int]], tuple[str, ...]]


def observe(loaded: LoadedModel, texts: Data, options: ObserveOptions | None = None, command: str = "") -> Observation:
    """Statistics of every layer and dimension over `texts`, with special tokens and without.

    `texts` may be pictures or recordings (`media.Items`): a token is then a patch, or a frame of sound.

    Raises:
        BadInput: the model reads no such data or has no tokenizer (or processor), a state is NaN or infinite, or the
            limits are too small.
    """
    options = options or ObserveOptions()
    observer = Observer(loaded, options, reading_of(loaded, texts, options.max_length))
    for batch in observer.batches(texts):
        observer.consume(batch)
    return Observation(
        provenance=loaded.provenance(command=command),
        data=texts.source,
        data_digest=texts.digest,
        n_texts=len(texts),
        n_tokens=observer.n_tokens,
        n_special=observer.n_special,
        max_length=observer.max_length,
        n_sigma=options.n_sigma,
        stacks=observer.finish(),
        passages=observer.passages((options.passage,) if options.passage else texts.first(1)),
        notes=(*loaded.notes, *observer.reading.notes),
        inputs=observer.reading.inputs,
    )


def run(session: "Session", asked: Asked) -> Observation:
    """What the command finds; it shows the numbers of all tokens, or of those that are not special."""
    if asked.imatrix is not None:
        one = session.loading
        with open_checkpoint(
            session.subject.model, revision=one.revision, subfolder=one.subfolder, token=one.token, offline=one.offline
        ) as checkpoint:
            return observe_imatrix(checkpoint, asked.imatrix, asked.options.rules)
    reading, table = session.task_reading, asked.parquet
    if table is not None:
        check_file(table, replace=session.output.overwrite)
        need("pyarrow", "models", "--parquet")  # before the work, not after it
    length = reading.options(max_length=asked.max_length).max_length
    texts = reading.read(offline=session.load.offline)
    options = replace(asked.options, max_length=length, progress=session.progress)
    found = observe(session.loaded, texts, options)
    if table is not None:
        found.to_parquet(table)
    session.show = {"view": "without_special" if asked.without_special else "all"}
    return found


class Observer:
    """The streaming pass in pieces: `batches`, `consume` each, `finish`.

    Attributes:
        reading: the bare forward pass and the batches it takes; of texts unless another is given.
        max_length: tokens of a text that are read: the option, or less where the model has fewer positions.
        n_tokens, n_special: tokens read so far, padding not counted.
    """

    def __init__(self, loaded: LoadedModel, options: ObserveOptions, reading: Reading | None = None):
        self.loaded, self.options = loaded, options
        self.reading: Reading = reading or TextReading(loaded, options.max_length)
        self.sides = {stack.name: stack.name for stack in self.reading.stacks}  # axis -> the stream whose tokens it has
        self.stacks = self.reading.stacks
        if options.stack is not None:
            axis = loaded.axis(options.stack)
            of = next(stack.name for stack in loaded.stacks if stack.blocks == axis.blocks)
            if of not in self.sides:
                raise BadInput(
                    f"--stack {axis.name}: these {self.reading.inputs} do not reach it; name {', '.join(self.sides)}"
                )
            self.stacks, self.sides = [axis], {axis.name: of}
        self.max_length = self.reading.max_length
        self.n_tokens = self.n_special = 0
        self.groups = 1
        # MPS has no float64.
        device = "cpu" if loaded.device.type == "mps" else loaded.device
        self.streams = {stack.name: Stream(stack, options, device) for stack in self.stacks}

    def batches(self, texts: Data) -> Iterator[Batch]:
        """Batches of `texts`, window by window; progress is reported as they are asked for."""
        return in_windows(self.reading, texts, self.options.batch_size, self.options.progress, "observing")

    def consume(self, batch: Batch) -> None:
        """Run the model on a batch and count all its token vectors."""
        import torch

        sides = self.reading.sides(batch)
        if any(bool(special.any()) for _, special in sides.values()):
            self.groups = 2
        kept = self.columns_per_layer()
        rows = {}
        for name, side in self.sides.items():
            tokens, special = sides[side]
            device = self.streams[name].device
            parts = [t.to(device) for t in (batch.valid & ~special, special, batch.valid, tokens)]
            rows[name] = (
                rows_of(parts[0], parts[2], parts[3], batch.texts),
                rows_of(parts[1], parts[2], parts[3], batch.texts),
            )

        # What `fast_products` does to each function of the model is not needed here, and takes time at each.
        def look(stack: BoundStack, layer: int, states: "Tensor") -> None:
            check_padding(stack, layer, states, batch.valid)
            with torch._C.DisableTorchFunction():
                self.streams[stack.name].add(layer, states, *rows[stack.name], self.groups, kept)

        def look_at_read(stack: BoundStack, layer: int, part: int, read: "Tensor") -> None:
            with torch._C.DisableTorchFunction():
                self.streams[stack.name].add_read(layer, part, read, rows[stack.name])

        with (
            torch.inference_mode(),
            tapped(self.loaded.model, self.stacks, look),
            tapped_reads(self.loaded.model, self.stacks, look_at_read),
        ):
            self.reading(batch)
        self.n_tokens += int(batch.valid.sum())
        self.n_special += int(batch.special.sum())

    def finish(self) -> tuple[StackObservation, ...]:
        """Statistics and outliers of each stream over everything consumed; raises BadInput when that is nothing."""
        import torch

        if not self.n_tokens:
            raise BadInput("the tokenizer made no token of these texts, so there is nothing to observe")
        with torch.inference_mode():
            return tuple(
                summarise(stream.stack, stream.layers, stream.large_shares(), self.reading.words, self.options)
                for stream in self.streams.values()
            )

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
            vectors = np.stack(states[stack.name])  # [layer, token, dim]
            shown = sorted({0, len(vectors) // 2, len(vectors) - 1})
            dims = np.arange(vectors.shape[2])
            if len(dims) > PASSAGE_DIMS:
                dims = np.sort(np.abs(vectors).max((0, 1)).argsort()[::-1][:PASSAGE_DIMS])
            tokens = self.reading.words(sides[self.sides[stack.name]][0][0, :limit].tolist())
            layers = tuple(layer_name(taps(stack)[row]) for row in shown)
            found.append(Passage(stack.name, tokens, layers, tuple(dims.tolist()), vectors[shown][:, :, dims]))
        return tuple(found)

    def columns_per_layer(self) -> int:
        """Dimensions of each layer whose histograms `histogram_bytes` has room for; raises BadInput for none."""
        rows = sum(len(taps(stack)) for stack in self.stacks)
        each = rows * self.groups * BINS * BIN_BYTES
        kept = self.options.histogram_bytes // each
        if not kept:
            raise BadInput(
                f"histogram_bytes is {self.options.histogram_bytes:,}; one dimension of each of {rows} layers needs {each:,}"
            )
        return kept


class Stream:
    """The layers of one residual stream while they are counted: `layers`, and `reads` of what attention and MLP read."""

    def __init__(self, stack: BoundStack, options: ObserveOptions, device: Any):
        self.stack, self.options, self.device = stack, options, device
        self.scratch = Scratch()
        self.layers: dict[int, LayerStats] = {}
        self.reads: dict[tuple[int, int], LargeCounts] = {}  # (layer, part)

    def add(self, layer: int, states: "Tensor", ordinary: Rows, special: Rows, groups: int, kept: int) -> None:
        """Count a batch's states [batch, token, dim]; `groups` and `kept` as for `LayerStats.keep_quantiles`."""
        dim = states.shape[-1]
        if layer not in self.layers:
            self.layers[layer] = LayerStats(dim, self.options.n_sigma, self.device, self.scratch)
        stats = self.layers[layer]
        # Without norms on what is read, the next block reads the stream itself.
        is_read = not any(self.stack.reading) and not self.stack.reads
        try:
            stats.keep_quantiles(groups, kept, states, (ordinary, special))
            stats.add(states, ordinary, special, self._counts(layer, 0, dim) if is_read else None)
        except BadInput as error:
            raise BadInput(f"stream {self.stack.name}, layer {layer_name(layer)}: {error}") from None

    def add_read(self, layer: int, part: int, read: "Tensor", rows: tuple[Rows, Rows]) -> None:
        """Count what norm number `part` of a layer hands on, [batch * token, dim]."""
        flat = read.to(self.device).reshape(-1, read.shape[-1])
        counts = self._counts(layer, part, flat.shape[1])
        for chosen in rows:
            if len(chosen):
                counts.add(flat, chosen.index)

    def _counts(self, layer: int, part: int, dim: int) -> LargeCounts:
        return self.reads.setdefault((layer, part), LargeCounts(dim, self.device, self.options.rules.int8_size))

    def large_shares(self) -> dict[int, "Tensor"]:
        """Share of token vectors with large |h| (6) in what each layer reads [dim]: of several norms, the larger."""
        import torch

        found: dict[int, Tensor] = {}
        for (layer, _), counts in self.reads.items():
            found[layer] = torch.maximum(found[layer], counts.share()) if layer in found else counts.share()
        return found


def magnitude(loaded: LoadedModel, stack: BoundStack) -> np.ndarray:
    """How extreme each position of each block's last operation is: root mean square z of scale and bias, [layer, dim]."""
    parts = (stack.scale, stack.bias) if all(stack.bias) else (stack.scale,)
    return np.sqrt(np.mean([zscore(live_values(loaded.model, part)) ** 2 for part in parts], axis=0))


def summarise(
    stack: BoundStack,
    layers: Mapping[int, LayerStats],
    large_shares: "Mapping[int, Tensor]",
    token_text: TokenText,
    options: ObserveOptions,
) -> StackObservation:
    """Both views of one stream and its outliers, judged on all tokens and all dimensions."""
    if len(layers) != len(taps(stack)):
        raise BadInput(f"stream {stack.name}: only {len(layers)} of {len(taps(stack))} layers ran on these texts")
    numbers = sorted(layers)
    names = tuple(layer_name(layer) for layer in numbers)
    columns = {view: every_statistic(layers, view) for view in VIEWS}
    every = columns["all"]
    if np.array_equal(every["tokens"], columns["without_special"]["tokens"]):
        del columns["without_special"]
    inputs = rule_inputs(layers, every, large_shares)
    outliers = massive_neurons(inputs, options.rules) if stack.reads else activation_outliers(inputs, options.rules)
    top = every["abs_max"]
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.nan_to_num(top / np.median(top, axis=1, keepdims=True), nan=0.0, posinf=math.inf)
    hidden_size = every["mean"].shape[1]
    dims = _dims(every, tuple(outlier.dim for outlier in outliers), options.table_cells // len(names))
    notes = list(stack.stack.notes)
    kept = layers[numbers[0]].ordinary.histogram or layers[numbers[0]].special.histogram
    if kept is not None and kept.columns is not None:
        notes.append(
            f"quantiles are kept for {len(kept.columns)} of {hidden_size} dimensions in each layer, those with the largest "
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
        times_median=times[:, dims] if stack.reads else np.empty((0, 0)),
    )


def taps(stack: BoundStack) -> tuple[int, ...]:
    """The layers that a pass shows: the embeddings and every block; of an MLP axis the blocks."""
    return tuple(range(0 if stack.reads else EMBEDDINGS, stack.n_layers))


def every_statistic(layers: Mapping[int, LayerStats], view: str) -> dict[str, np.ndarray]:
    """Every statistic of "all" or "without_special" tokens by name, [layer] or [layer, dim], layers ascending."""
    found = [_layer(*layers[layer].view(view)) for layer in sorted(layers)]
    return {name: np.stack([np.asarray(layer[name]) for layer in found]) for name in found[0]}


def rule_inputs(
    layers: Mapping[int, LayerStats], every: Mapping[str, np.ndarray], large_shares: "Mapping[int, Tensor]"
) -> ActivationMeasures:
    """What `activation_rules` rest on, of the statistics `every` of `layers`; `large_shares` [dim] by layer."""
    numbers = sorted(layers)
    large = np.zeros_like(every["argmin_share"])
    for row, layer in enumerate(numbers):
        if layer in large_shares:
            large[row] = large_shares[layer].cpu().numpy()
    return ActivationMeasures(
        layers=tuple(layer_name(layer) for layer in numbers),
        argmin_share=every["argmin_share"],
        argmax_share=every["argmax_share"],
        abs_max=every["abs_max"],
        large_share=large,
        median_abs=every["median_abs"],
    )


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
        size = (values["abs_max"] / np.maximum(values["median_abs"], np.finfo(np.float64).tiny)[:, None]).max(0)
    size[list(outliers)] = math.inf
    limit = max(limit, len(set(outliers)), 1)
    return np.sort(np.argsort(-size, kind="stable")[:limit])


def _statistics(values: dict[str, np.ndarray], dims: np.ndarray, token_text: TokenText) -> Statistics:
    plain = {name: array if array.ndim == 1 else array[:, dims] for name, array in values.items()}
    tokens = tuple(token_text(row.tolist()) for row in plain.pop("token"))
    return Statistics(abs_max_token=tokens, **plain)
