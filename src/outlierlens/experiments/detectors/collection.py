"""One streaming pass over the texts: all that the definitions on activations rest on, in one basis or two.

own, rotated = collect(loaded, texts, stack, PassOptions(...), turn=rotation(width, seed=0))
own.measured, own.variances, own.contributions              # plain arrays [layer, dim]

`Observer` does what `observe` does; the sums beside it, and a rotated copy of every recorded state, are taken in the same
forward pass. Memory does not grow with the number of texts.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch, Data
from outlierlens.detection.observe.measure import (
    ObserveOptions,
    Observer,
    Stream,
    every_statistic,
    rule_inputs,
    taps,
)  # fmt: skip
from outlierlens.detection.observe.result import Size, size_of
from outlierlens.detection.rules import ActivationMeasures
from outlierlens.detection.running_statistics import LayerStats, Rows, rows_of
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.linears import last_linears
from outlierlens.experiments.detectors.options import PassOptions, Sentence
from outlierlens.experiments.detectors.result import FINAL
from outlierlens.experiments.detectors.rules import LayerSums, SequenceKurtosis
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import layer_name, tapped, tapped_reads
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import reading_of
from outlierlens.vectors.read import final_norm

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Collected:
    """What one pass gathered in one basis, float64 arrays [layer, dim] or [layer].

    Attributes:
        layers: "embeddings", the blocks, and "final norm" where there is one; of an MLP axis the blocks alone.
        measured: for `activation_rules`, over the layers without the final norm.
        medians: of |h| [layer, dim], NaN where memory did not reach; high: the quantile of all |h| [layer].
        written: parts of the kurtosis of what the last linear writes [layer, dim], NaN where there is no such tap.
        sizes: how large each dimension is, and on which share of the tokens; empty on an MLP axis.
        values: further numbers [layer], by their name in `LayerValues`.
        n_tokens, n_special: that were read, padding not counted.
    """

    layers: tuple[str, ...]
    measured: ActivationMeasures
    mean_abs: np.ndarray
    medians: np.ndarray
    high: np.ndarray
    variances: np.ndarray
    contributions: np.ndarray
    energy: np.ndarray
    fourth: np.ndarray
    written: np.ndarray
    sizes: dict[int, Size]
    values: dict[str, np.ndarray]
    n_tokens: int
    n_special: int


@dataclass(frozen=True)
class _At:
    """Which tokens of a batch count: rows for counters, `kept` bool [batch, token], `place` of the text's token [batch]."""

    ordinary: Rows
    special: Rows
    kept: "Tensor"
    place: "Tensor | None"
    groups: int
    columns: int


def collect(
    loaded: LoadedModel, texts: Data, stack: BoundStack, options: PassOptions, *, turn: "Tensor | None" = None
) -> tuple[Collected, Collected | None]:
    """One pass over `texts`: (in the model's own basis, in that of `turn` [dim, dim] or None).

    Raises:
        BadInput: texts that the model cannot read, a state that is not finite, or no token that counts.
    """
    observing = replace(_observing(options), stack=stack.name if stack.reads else None)
    observer = Observer(loaded, observing, reading_of(loaded, texts, options.max_length))
    if stack.name not in observer.streams:
        raise BadInput(f"{loaded.name}: these data do not reach stream {stack.name!r}")
    inner = observer.streams[stack.name]
    sides = [_Side(stack, options, inner.device, None)]
    if turn is not None:
        sides.append(_Side(stack, options, inner.device, turn.to(inner.device)))
    norm = final_norm(loaded, stack)
    for batch in observer.batches(texts):
        at = _at(loaded, observer, batch, stack, options)
        with _tapped_for(sides, loaded, batch, at, norm):
            observer.consume(batch)
    if not observer.n_tokens:
        raise BadInput("the tokenizer made no token of these texts, so there is nothing to measure")
    counts = (observer.n_tokens, observer.n_special)
    view = "all" if options.special else "without_special"
    found = [side.collected(inner if side.turn is None else side.stats, view, counts) for side in sides]
    return found[0], found[1] if turn is not None else None


def _observing(options: PassOptions) -> ObserveOptions:
    return ObserveOptions(
        max_length=options.max_length,
        batch_size=options.batch_size,
        rules=options.settings.rules,
        histogram_bytes=options.histogram_bytes,
        progress=options.progress,
    )


@temporary
def _tapped_for(
    sides: Sequence["_Side"], loaded: LoadedModel, batch: Batch, at: _At, norm: "nn.Module | None"
) -> Iterator[None]:
    """Every side takes in what forward passes inside the block show."""
    with ExitStack() as taps:
        for side in sides:
            side.tap(loaded, batch, at, norm, taps)
        yield


def sentence_token(loaded: LoadedModel, stack: BoundStack, asked: Sentence) -> Sentence:
    """ "first", "last" or "mean": what stands for a text; "auto" is the last token of a decoder, the first elsewhere."""
    if asked != "auto":
        return asked
    return "last" if loaded.head == "causal" or stack.name.startswith("decoder") else "first"


def _at(loaded: LoadedModel, observer: Observer, batch: Batch, stack: BoundStack, options: PassOptions) -> _At:
    device = observer.streams[stack.name].device
    tokens, special = (part.to(device) for part in observer.reading.sides(batch)[observer.sides[stack.name]])
    valid = batch.valid.to(device)
    sentence = sentence_token(loaded, stack, options.sentence)
    place = None
    if sentence == "first":
        place = valid.long().argmax(1)
    elif sentence == "last":
        place = valid.shape[1] - 1 - valid.flip(1).long().argmax(1)
    return _At(
        ordinary=rows_of(valid & ~special, valid, tokens, batch.texts),
        special=rows_of(special & valid, valid, tokens, batch.texts),
        kept=valid if options.special else valid & ~special,
        place=place,
        groups=2 if bool(special.any()) else observer.groups,
        columns=observer.columns_per_layer(),
    )


class _Side:
    """What is gathered in one basis; in the model's own, `Observer` holds the statistics of all but the final norm."""

    def __init__(self, stack: BoundStack, options: PassOptions, device: Any, turn: "Tensor | None"):
        self.stack, self.device, self.turn = stack, device, turn
        self.stats = Stream(stack, _observing(options), device)
        self.sums: dict[int, LayerSums] = {}
        self.written: dict[int, SequenceKurtosis] = {}
        self.quantile = options.settings.macocco_quantile

    def tap(self, loaded: LoadedModel, batch: Batch, at: _At, norm: "nn.Module | None", taps: ExitStack) -> None:
        """Take in what the next forward pass shows; hooks are left to `taps`."""

        def look(stack: BoundStack, layer: int, states: "Tensor") -> None:
            self.add(layer, states, at)
            if norm is not None and layer == stack.n_layers - 1:
                self.add(stack.n_layers, norm(states), at)

        def look_at_read(stack: BoundStack, layer: int, part: int, read: "Tensor") -> None:
            self.stats.add_read(layer, part, self.turned(read), (at.ordinary, at.special))

        def look_at_linear(layer: int, _: "Tensor", written: "Tensor") -> None:
            values = self.turned(written.reshape(*batch.valid.shape, -1)).double()
            kurtosis = self.written.setdefault(layer, SequenceKurtosis(values.shape[-1], self.device))
            for row, kept in zip(values, at.kept, strict=True):
                kurtosis.add(row[kept])

        taps.enter_context(tapped(loaded.model, [self.stack], look))
        if not self.stack.reads:
            taps.enter_context(last_linears(loaded, self.stack, look_at_linear))
        if self.turn is not None:
            taps.enter_context(tapped_reads(loaded.model, [self.stack], look_at_read))

    def turned(self, values: "Tensor") -> "Tensor":
        """`values` [..., dim] on the device of the counters, in this basis, float32."""
        values = values.to(self.device).float()
        return values if self.turn is None else values @ self.turn

    def add(self, layer: int, states: "Tensor", at: _At) -> None:
        """Take in the states of one layer [batch, token, dim]."""
        states = self.turned(states)
        if self.turn is not None or layer == self.stack.n_layers:
            self.stats.add(layer, states, at.ordinary, at.special, at.groups, at.columns)
        sums = self.sums.setdefault(layer, LayerSums(states.shape[-1], self.device))
        for row, (vectors, kept) in enumerate(zip(states.double(), at.kept, strict=True)):
            counted = vectors[kept]
            if len(counted):
                sums.add(counted, counted.mean(0) if at.place is None else vectors[at.place[row]])

    def collected(self, stream: Stream, view: str, counts: tuple[int, int]) -> Collected:
        """Everything as arrays; `stream` holds the statistics of the blocks and embeddings."""
        stats = {**stream.layers, **self.stats.layers}
        n_layers = self.stack.n_layers
        expected = [*taps(self.stack), *([n_layers] if n_layers in stats else [])]
        if sorted(stats) != expected:
            raise BadInput(f"stream {self.stack.name}: only {len(stats)} of {len(expected)} layers ran on these texts")
        inside = {layer: one for layer, one in stats.items() if layer < n_layers}
        sums = [self.sums[layer] for layer in expected if layer in self.sums]
        if len(sums) < len(expected) or not all(one.n > 1 for one in sums):
            raise BadInput("fewer than two tokens count; give more text, or count special tokens")
        every = every_statistic(inside, view)
        width = len(sums[0].energy)
        medians, high = zip(*(_quantiles(stats[layer], view, width, self.quantile) for layer in expected), strict=True)
        written = np.full((len(expected), width), np.nan)
        more = np.full((2, len(expected)), np.nan)
        for layer, one in self.written.items():
            written[layer + 1] = one.parts()
            more[:, layer + 1] = written[layer + 1].sum(), one.largest
        fourth = np.stack([one.kurtosis.parts() for one in sums])
        contributions = np.stack([one.contributions() for one in sums])
        return Collected(
            layers=tuple(FINAL if layer == n_layers else layer_name(layer) for layer in expected),
            measured=rule_inputs(inside, every, stream.large_shares()),
            mean_abs=np.array([one.mean_abs for one in sums]),
            medians=np.stack(medians),
            high=np.array(high),
            variances=np.stack([one.variances() for one in sums]),
            contributions=contributions,
            energy=np.stack([one.energy.cpu().numpy() for one in sums]),
            fourth=fourth,
            written=written,
            sizes={}
            if self.stack.reads
            else {dim: size_of([layer_name(layer) for layer in inside], every, dim) for dim in range(width)},
            values={
                "gamma": np.array([_gamma(stats[layer], view) for layer in expected]),
                "mean_cosine": contributions.sum(1),
                "bondarenko_out": fourth.sum(1),
                "bondarenko_out_max": np.array([one.kurtosis.largest for one in sums]),
                "inf_norm": np.array([one.kurtosis.mean_inf_norm for one in sums]),
                "bondarenko_ffn": more[0],
                "bondarenko_ffn_max": more[1],
            },
            n_tokens=counts[0],
            n_special=counts[1],
        )


def _gamma(stats: LayerStats, view: str) -> float:
    """‖mean‖ / ‖standard deviation‖ of one layer's states."""
    group, _ = stats.view(view)
    spread = float(group.moments.std().norm())
    return float(group.moments.mean.norm()) / spread if spread else float("nan")


def _quantiles(stats: LayerStats, view: str, width: int, share: float) -> tuple[np.ndarray, float]:
    """(median |h| of each dimension [dim], the `share` quantile of all |h|) of one layer."""
    group, _ = stats.view(view)
    medians = np.full(width, np.nan)
    if group.histogram is None:
        return medians, float("nan")
    kept = slice(None) if group.histogram.columns is None else group.histogram.columns.cpu().numpy()
    medians[kept] = group.histogram.magnitude_quantiles(0.5).cpu().numpy()
    return medians, group.histogram.magnitude_quantile(share)
