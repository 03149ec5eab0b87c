"""Which heads look at the token that carries a dimension, and whether they do so through the dimension.

found = read_by(Model(loaded, stack, run), batches, Carried(dim, place, means), threshold=0.3, n_random=3, seed=0)
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from outlierlens.ablation.controls import random_sets
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch
from outlierlens.experiments.trace.result import Reader, SinkLoss
from outlierlens.models.attention_maps import tapped_attention
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import EMBEDDINGS, edited, tapped
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.means import ratio_interval

if TYPE_CHECKING:
    from torch import Tensor

READS = 0.5  # of its attention on the token: what a head loses that reads the dimension


class Model(NamedTuple):
    """A model, one of its streams, and a pass that runs it."""

    loaded: LoadedModel
    stack: BoundStack
    run: Callable[[Batch], None]


@dataclass(frozen=True)
class Carried:
    """The dimension `dim`, the token [text] of each text that carries it, and the mean [layer + 1, dim] of all other tokens."""

    dim: int
    place: dict[int, int]
    means: np.ndarray


@dataclass(frozen=True)
class Move:
    """Values [layer + 1] that `dim` is set to in each text: at the token that carries the dimension, or at all others."""

    dim: int
    values: Mapping[int, np.ndarray]
    elsewhere: bool = False


class Readers(NamedTuple):
    """As in `Trace`: heads of the stream, those that are sinks on the token, how many read the dimension, what they lose."""

    n_heads: int = 0
    readers: tuple[Reader, ...] = ()
    n_reading: int = 0
    sinks: tuple[SinkLoss, ...] = ()


def read_by(
    model: Model, batches: Sequence[Batch], carried: Carried, *,
    threshold: float, n_random: int, seed: int, progress: Callable[[str, int, int], None] | None,
) -> Readers:  # fmt: skip
    """Heads that are sinks on the token, and what they lose with the dimension set to its mean there.

    A control moves a random dimension of the token, in every layer as far as the dimension was moved, so that as large a
    share of the state changes. A head reads the dimension where, on every other text, the 95 % interval of what it loses lies
    above half; it takes 32 texts to say so. What these heads lose is measured on the texts between.
    """
    width = carried.means.shape[1]
    drawn = [dim for (dim,) in random_sets(width, 1, n=n_random, seed=seed, other_than=(carried.dim,))]
    states = states_at(model, batches, carried.place, [carried.dim, *drawn])
    mean = carried.means[:, carried.dim]
    means = dict.fromkeys(states, mean)
    plan: list[Move | None] = [None, Move(carried.dim, means), Move(carried.dim, means, elsewhere=True)]
    plan += [
        Move(dim, {text: values[:, column] + mean - values[:, 0] for text, values in states.items()})
        for column, dim in enumerate(drawn, 1)
    ]
    found = []
    for number, move in enumerate(plan):
        if progress:
            progress("reading attention", number, len(plan))
        found.append(_masses(model, batches, carried.place, move))
    intact, keys, queries, *others = found  # [text, layer, head] each
    mean = intact.mean(0)
    readers = []
    for layer, head in np.argwhere(mean >= threshold).tolist():
        at = (slice(None), layer, head)
        readers.append(
            Reader(
                layer,
                head,
                float(mean[layer, head]),
                float(keys[at].mean()),
                float(queries[at].mean()),
                *_lost(intact[at], keys[at]),
            )
        )
    readers.sort(key=lambda one: (-one.mass, one.layer, one.head))
    sinks = mean >= threshold
    if not sinks.any():
        return Readers(mean.size)
    reading = np.zeros_like(sinks)
    for layer, head in np.argwhere(sinks).tolist():
        every = (slice(0, None, 2), layer, head)
        reading[layer, head] = _lost(intact[every], keys[every])[1] > READS
    names = (f"dimension {carried.dim}", *(f"random dimension {dim}" for dim in drawn))
    losses = tuple(
        SinkLoss(
            name,
            *_lost(intact[:, sinks].sum(1), one[:, sinks].sum(1)),
            *_lost(intact[1::2, reading].sum(1), one[1::2, reading].sum(1)),
        )
        for name, one in zip(names, (keys, *others), strict=True)
    )
    return Readers(mean.size, tuple(readers), int(reading.sum()), losses)


def _lost(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """(share of Σ before that is gone after, low, high), both [text]; NaN where nothing was there before."""
    lost = before - after
    if not before.sum() > 0:
        return math.nan, math.nan, math.nan
    return (float(lost.sum() / before.sum()), *ratio_interval(lost, before))


def states_at(
    model: Model, batches: Sequence[Batch], place: Mapping[int, int], dims: Sequence[int]
) -> dict[int, np.ndarray]:
    """Values [layer + 1, len(dims)] of dimensions at the token that carries the traced one, by text."""
    import torch

    rows: dict[int, list[np.ndarray]] = {}
    for batch in batches:
        tokens = torch.tensor([place[text] for text in batch.texts], device=batch.valid.device)

        def look(_: BoundStack, layer: int, states: "Tensor", batch: Batch = batch, tokens: "Tensor" = tokens) -> None:
            there = states[torch.arange(len(tokens)), tokens][:, dims].double().cpu().numpy()
            for text, values in zip(batch.texts, there, strict=True):
                rows.setdefault(text, []).append(values)

        with tapped(model.loaded.model, [model.stack], look):
            model.run(batch)
    return {text: np.stack(values) for text, values in rows.items()}


def _masses(model: Model, batches: Sequence[Batch], places: dict[int, int], move: Move | None) -> np.ndarray:
    """Mean attention of each text's other tokens on the one that carries the dimension [text, layer, head]."""
    import torch

    rows: dict[int, list[np.ndarray]] = {}
    for batch in batches:
        place = torch.tensor([places[text] for text in batch.texts], device=batch.valid.device)
        there = torch.zeros_like(batch.valid)
        there[torch.arange(len(place)), place] = True

        def look(
            _: int, weights: "Tensor", visible: "Tensor | None", batch: Batch = batch, place: "Tensor" = place,
            there: "Tensor" = there,
        ) -> None:  # fmt: skip
            n = len(place)
            onto = weights[torch.arange(n), :, :, place].double()  # [batch, head, query]
            asks = batch.valid & ~there  # [batch, query]
            if visible is not None:
                asks = asks & visible.expand(n, 1, *weights.shape[2:])[torch.arange(n), 0, :, place]
            mass = (onto * asks[:, None]).sum(-1) / asks.sum(-1).clamp(min=1)[:, None]
            for text, values in zip(batch.texts, mass.cpu().numpy(), strict=True):
                rows.setdefault(text, []).append(values)

        change: AbstractContextManager[None] = nullcontext()
        if move is not None:
            values = np.stack([move.values[text] for text in batch.texts])
            change = set_to(model, move.dim, values, batch.valid & ~there if move.elsewhere else there)
        with tapped_attention(model.loaded, model.stack, look), change:
            model.run(batch)
    return np.stack([np.stack(rows[text]) for text in sorted(rows)])


@temporary
def set_to(model: Model, dim: int, values: np.ndarray, where: "Tensor") -> Iterator[None]:
    """A dimension at `where` [batch, token] set to `values` [batch, layer + 1] before the first and after every block."""
    import torch

    wanted = torch.from_numpy(values).to(where.device)

    def edit(layer: int, states: "Tensor") -> "Tensor":
        changed = states.clone()
        value = wanted[:, layer - EMBEDDINGS, None].to(states.dtype)  # [batch, 1]
        changed[..., dim] = torch.where(where, value, states[..., dim])
        return changed

    with edited(model.loaded.model, model.stack, edit, (EMBEDDINGS, *range(model.stack.n_layers))):
        yield
