"""One pass over the texts with some dimensions off: sums of attention received, of |h|, and of where attention goes.

found = measure(reading, plan)
found.pairs[layer], found.drawn[layer]           # for correlations, by kind of key
found.places[layer]                              # for shares and entropies

Sums that Pearson correlations are made of: over keys for every dimension, and over texts drawn again for a few.

    sums = PairSums(n_columns, width)
    sums.add(columns, sizes)                    # [key, column], [key, dim]
    correlation(sums)                           # [column, dim]

    drawn = Drawn(n_bootstrap, n_columns, n_named)
    drawn.add(weights, columns, sizes, counted) # [replicate, batch], [batch, token, column], [batch, token, named], mask
    correlation(drawn.sums())                   # [replicate, column, named]

All memory is flat in the number of texts. Replicates are a Poisson bootstrap over texts: each text's weight is drawn from
its own seed, so every layer, condition and batch size sees the same draws.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.controls import Plan
from outlierlens.ablation.modes import Switch
from outlierlens.architectures import BoundStack
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.attention.keys import ALL, PADDED, SEEN, KeyKinds, MapSums, read_maps
from outlierlens.experiments.attention.result import CLASSES
from outlierlens.models.attention_maps import tapped_attention
from outlierlens.models.devices import memory_kept
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.bootstrap import poisson_weights
from outlierlens.vectors.read import ReadOptions, TokenBatch, Tokens, token_batches

if TYPE_CHECKING:
    from torch import Tensor

CONSTANT = 1e-12  # of the mean square: a variance below is rounding
REST, FIRST, SPECIAL = "rest", "first", "special"  # kinds of keys; a first token that is special is special


@dataclass
class KeySums:
    """Numbers of keys, sums, sums of squares and of products; leading axes are replicates.

    Attributes:
        n: [...]; a, aa: [..., column]; x, xx: [..., dim]; ax: [..., column, dim].
    """

    n: np.ndarray
    a: np.ndarray
    aa: np.ndarray
    x: np.ndarray
    xx: np.ndarray
    ax: np.ndarray

    def __add__(self, other: "KeySums") -> "KeySums":
        return KeySums(*(getattr(self, name) + getattr(other, name) for name in ("n", "a", "aa", "x", "xx", "ax")))


def correlation(sums: KeySums) -> np.ndarray:
    """Pearson's r [..., column, dim]; NaN where one of both never varies."""
    n = np.asarray(sums.n, dtype=np.float64)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        of_a = _spread(n, sums.a, sums.aa)
        of_x = _spread(n, sums.x, sums.xx)
        both = n[..., None] * sums.ax - sums.a[..., :, None] * sums.x[..., None, :]
        r = both / np.sqrt(of_a[..., :, None] * of_x[..., None, :])
    return np.clip(r, -1.0, 1.0)


def _spread(n: np.ndarray, total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """n² times the variance; NaN where that is nothing but rounding."""
    found = n * squares - total**2
    return np.where(found > CONSTANT * n * squares, found, np.nan)


class PairSums:
    """Sums over keys of [key, column] with [key, dim]."""

    def __init__(self, n_columns: int, width: int, device: Any = "cpu"):
        import torch

        def zeros(*shape: int) -> "Tensor":
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.n = 0
        self.a, self.aa, self.x, self.xx, self.ax = (
            zeros(n_columns), zeros(n_columns), zeros(width), zeros(width), zeros(n_columns, width)
        )  # fmt: skip

    def add(self, columns: "Tensor", sizes: "Tensor") -> None:
        """Add float64 `columns` [key, column] and `sizes` [key, dim]."""
        self.n += len(columns)
        self.a += columns.sum(0)
        self.aa += columns.square().sum(0)
        self.x += sizes.sum(0)
        self.xx += sizes.square().sum(0)
        self.ax.addmm_(columns.T, sizes)

    def sums(self) -> KeySums:
        """As arrays."""
        return KeySums(
            np.array(float(self.n)), *(one.cpu().numpy() for one in (self.a, self.aa, self.x, self.xx, self.ax))
        )


class Drawn:
    """Sums of each replicate, the first of which is all texts once: [replicate, feature]."""

    def __init__(self, n_replicates: int, n_columns: int, n_named: int, device: Any = "cpu"):
        import torch

        self.shape = (n_columns, n_named)
        n_features = 1 + 2 * n_columns + 2 * n_named + n_columns * n_named
        self.total = torch.zeros((n_replicates, n_features), dtype=torch.float64, device=device)

    def add(self, weights: "Tensor", columns: "Tensor", sizes: "Tensor", counted: "Tensor") -> None:
        """Add `columns` [batch, token, column] and `sizes` [batch, token, named] of `counted` keys, weighted by text."""
        import torch

        mask = counted.double()[..., None]
        a, x = columns * mask, sizes * mask
        features = (
            mask.sum(1), a.sum(1), (a * columns).sum(1), x.sum(1), (x * sizes).sum(1),
            torch.bmm(a.transpose(1, 2), x).flatten(1),
        )  # fmt: skip
        self.total.addmm_(weights, torch.cat(features, dim=1))

    def sums(self) -> KeySums:
        """As arrays with replicates in front."""
        columns, named = self.shape
        ends = np.cumsum([1, columns, columns, named, named])
        n, a, aa, x, xx, ax = np.split(self.total.cpu().numpy(), ends, axis=1)
        return KeySums(n[:, 0], a, aa, x, xx, ax.reshape(-1, columns, named))


@dataclass(frozen=True)
class Reading:
    """What every pass has in common.

    Attributes:
        tokens: the texts, padded where `paper_compat` is set. lengths: tokens of each text, padding not counted.
        named: dimensions with intervals. progress: called with (texts done, texts).
    """

    loaded: LoadedModel
    stack: BoundStack
    tokens: Tokens
    lengths: np.ndarray
    kinds: KeyKinds
    ablation: Switch
    named: tuple[int, ...]
    batch_size: int
    n_bootstrap: int
    seed: int
    paper_compat: bool = False
    progress: Callable[[int, int], None] | None = None


@dataclass
class Places:
    """Sums of where attention goes in one layer: [replicate, feature], features by head, and of uniform attention [class].

    Features: of each head, what falls on each class, then mass, entropy and relative entropy; then by head the number of
    queries in both entropies; last the number of queries.
    """

    drawn: "Tensor"
    uniform: np.ndarray

    def rates(self, heads: int) -> np.ndarray:
        """[replicate, metric, head], `result.METRICS`; NaN where no query counts."""
        total = self.drawn.cpu().numpy()
        n_metrics = len(CLASSES) + 3
        metrics, counts, queries = np.split(total, [n_metrics * heads, (n_metrics + 2) * heads], axis=1)
        metrics = metrics.reshape(-1, n_metrics, heads)
        counts = counts.reshape(-1, 2, heads)
        over = np.concatenate(
            [np.repeat(queries[:, None], n_metrics - 2, axis=1).repeat(heads, axis=2), counts], axis=1
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            found: np.ndarray = metrics / over
        return found


@dataclass
class PassSums:
    """Sums of one pass: by layer, and of correlations by kind of key.

    Attributes:
        means: how attention is averaged; columns of `pairs` and `drawn` are [mean, head], flattened.
    """

    means: tuple[str, ...] = ()
    heads: int = 0
    hides: bool = False
    n_values: int = 0
    n_keys: dict[str, int] = field(default_factory=lambda: dict.fromkeys((REST, FIRST, SPECIAL), 0))
    pairs: dict[int, dict[str, PairSums]] = field(default_factory=dict)
    drawn: dict[int, dict[str, Drawn]] = field(default_factory=dict)
    places: dict[int, Places] = field(default_factory=dict)


def measure(reading: Reading, plan: Plan | None) -> PassSums:
    """One pass over all texts with `plan` off, the longest texts first.

    Raises:
        BadInput: weights cannot be had or do not fit the tokens, or a state is not finite.
    """
    found = PassSums()
    with reading.ablation.off(plan) as n_values:
        found.n_values = n_values
        for batch, maps in passes(reading):
            _add(reading, found, batch, maps)
    return found


def passes(reading: Reading) -> Iterator[tuple[TokenBatch, dict[int, MapSums]]]:
    """(states, what is kept of the maps by layer) of each batch."""
    order = [i for i in np.argsort(-reading.lengths, kind="stable").tolist() if reading.lengths[i]]
    if not order:
        raise BadInput("there is no token in these texts, so there is no attention")
    options = ReadOptions(
        batch_size=reading.batch_size, stack=reading.stack.name, layers=tuple(range(reading.stack.n_layers))
    )
    maps: dict[int, MapSums] = {}
    lengths: list[int] = []

    def look(layer: int, weights: "Tensor", visible: "Tensor | None") -> None:
        maps[layer] = read_maps(weights, lengths, visible, with_padded=reading.paper_compat)

    with memory_kept(), tapped_attention(reading.loaded, reading.stack, look):
        for start in range(0, len(order), reading.batch_size):
            chunk = order[start : start + reading.batch_size]
            lengths[:] = reading.lengths[chunk].tolist()
            for batch in token_batches(reading.loaded, reading.tokens, options, order=chunk):
                yield batch, maps
            maps.clear()
            if reading.progress:
                reading.progress(start + len(chunk), len(order))


def _add(reading: Reading, found: PassSums, batch: TokenBatch, maps: dict[int, MapSums]) -> None:
    """Add one batch to the sums."""
    import torch

    if set(maps) != set(range(reading.stack.n_layers)):
        raise BadInput(f"{reading.loaded.name}: only {len(maps)} of {reading.stack.n_layers} layers ran attention")
    device = batch.valid.device
    if not found.means:
        # Texts come longest first: what hides a key from a query of any text does so in this batch.
        found.hides = any(one.hides for one in maps.values())
        found.means = (PADDED,) if reading.paper_compat else (SEEN, ALL) if found.hides else (ALL,)
        found.heads = maps[0].mass.shape[1]
    weights = torch.from_numpy(poisson_weights(batch.texts, reading.n_bootstrap, reading.seed)).to(device)
    kinds = reading.kinds.of(batch).double()  # [class, batch, token]
    first = torch.zeros_like(batch.valid)
    first[:, 0] = True
    ordinary = batch.valid & batch.ordinary
    counted = {REST: ordinary & ~first, FIRST: ordinary & first, SPECIAL: batch.valid & ~ordinary}
    for kind, mask in counted.items():
        found.n_keys[kind] += int(mask.sum())
    queries = batch.valid.sum(1).double()[:, None]
    for layer, states in enumerate(batch.states):
        one = maps[layer]
        columns = torch.cat([one.columns[mean] for mean in found.means], dim=2)  # [batch, token, mean * head]
        sizes = states.double().abs()
        if not bool(torch.isfinite(sizes[batch.valid]).all()):
            raise BadInput(f"layer {layer}: a state is NaN or infinite; {USE_FLOAT32}")
        if layer not in found.pairs:
            _begin(reading, found, layer, columns.shape[2], sizes.shape[2], device)
        named = sizes[..., list(reading.named)]
        for kind, mask in counted.items():
            found.pairs[layer][kind].add(columns[mask], sizes[mask])
            found.drawn[layer][kind].add(weights, columns, named, mask)
        falls = torch.einsum("cbt,bth->bch", kinds, one.total)
        features = torch.cat(
            (
                falls.flatten(1), one.mass, one.entropy, one.relative, one.n_entropy, one.n_relative, queries,
            ),
            dim=1,
        )  # fmt: skip
        found.places[layer].drawn.addmm_(weights, features)
        found.places[layer].uniform += torch.einsum("cbt,bt->c", kinds, one.uniform).cpu().numpy()


def _begin(reading: Reading, found: PassSums, layer: int, n_columns: int, width: int, device: object) -> None:
    import torch

    replicates, named = 1 + reading.n_bootstrap, len(reading.named)
    found.pairs[layer] = {kind: PairSums(n_columns, width, device) for kind in found.n_keys}
    found.drawn[layer] = {kind: Drawn(replicates, n_columns, named, device) for kind in found.n_keys}
    n_features = (len(CLASSES) + 5) * found.heads + 1
    drawn = torch.zeros((replicates, n_features), dtype=torch.float64, device=device)  # type: ignore[call-overload]
    found.places[layer] = Places(drawn, np.zeros(len(CLASSES)))


def example_maps(reading: Reading, plan: Plan | None, layer: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """(one layer's maps [head, query, key], token ids) of the first text of `reading`, with `plan` off."""
    kept: list[np.ndarray] = []

    def look(at: int, weights: "Tensor", visible: "Tensor | None") -> None:
        if at == layer:
            n = int(reading.lengths[0])
            kept.append(weights[0, :, :n, :n].float().cpu().numpy())

    ids: tuple[int, ...] = ()
    with reading.ablation.off(plan), tapped_attention(reading.loaded, reading.stack, look):
        options = replace(ReadOptions(), stack=reading.stack.name, layers=(layer,))
        for batch in token_batches(reading.loaded, reading.tokens, options, order=[0]):
            ids = tuple(batch.ids[0, : int(reading.lengths[0])].tolist())
    return kept[0], ids
