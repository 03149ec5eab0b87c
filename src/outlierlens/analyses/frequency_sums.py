"""One pass over texts: sums of |h_d| with token frequency of all layers and dimensions, under every draw of a bootstrap.

    gathered = FrequencyPass(loaded, vocabulary, options, (n_layers, width), identity)
    read(loaded, texts, options, gathered, place)                    # goes on where a stopped pass was
    gathered.sums.of(layer, "without_special")                       # -> Moments, as NumPy arrays
    pearson(moments, "log"); partial(moments)                        # [draw, dim]; draw 0 is the value itself

Memory does not depend on how many texts there are: a text's sums are added to each draw as often as that draw has the text
(Poisson(1) times, which is drawing with replacement from a stream). All accumulators are float64. Beside the sums stand a
sample of tokens, those with the smallest of random keys, whatever the batch they came in; and mean |h| of a sample of types
(vocabulary entries), the first of a random order of the vocabulary, so that a type's mean is over all its tokens.

A dimension that does not vary has no correlation: NaN.
"""

import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.results.safe_files import replacing
from outlierlens.statistics.ranks import benjamini_hochberg, fisher, rank_among, two_sided_p
from outlierlens.vectors.read import TokenBatch, token_batches, tokenise

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.analyses.frequency import FrequencyOptions

TEXTS_AT_ONCE = 2048  # that are tokenised together: what is held of the texts does not grow with their number
SAVE_SECONDS = 30.0
BASE = ("one", "raw", "log", "position")  # what |h_d| is summed with
ROWS = len(BASE) + 1  # … and its square
LEAST = 1e-12  # variance over mean square below which float64 sums say nothing any more: a constant
N_SETS, SETS_AT_ONCE = 9_999, 256
CHUNK_VALUES = 2**18  # of a CPU's work at a time, so that it stays in the cache


@dataclass(frozen=True)
class Vocabulary:
    """Facts about every id: `count` float64 [id], `special` bool [id], `shared` bool [id] (not told apart)."""

    count: np.ndarray
    special: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, loaded: LoadedModel, counts: TokenCounts, *, paper_compat: bool) -> "Vocabulary":
        """Of a model's ids; raises BadInput where the counts are of fewer ids than the tokenizer has."""
        tokenizer: Any = loaded.tokenizer
        known = len(counts.counts)
        if known < len(tokenizer):
            raise BadInput(
                f"{counts.source} counts {known:,} ids, and the tokenizer of {loaded.name} has {len(tokenizer):,}; count with "
                f"this model's tokenizer (--counts CORPUS)"
            )
        size = max(known, int(getattr(loaded.config, "vocab_size", 0) or 0))
        count, special, shared = np.zeros(size), np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        count[:known] = counts.frequency(special=True)
        # A [SEP] that stands in a text has the frequency of those that the tokenizer adds, so it goes with them.
        special[: len(counts.special)] = counts.special > 0
        if paper_compat:
            special[:] = False
            special[list(tokenizer.all_special_ids)] = True
        shared[list(counts.ambiguous)] = True
        return cls(count, special, shared)


# --- the sums --------------------------------------------------------------------------------------------------------


def regressors(count: "Tensor", position: "Tensor", ordinary: "Tensor", special: "Tensor") -> tuple["Tensor", "Tensor"]:
    """What |h_d| is summed with: rows float64 [batch, 2 × base, token], and sums of their products [batch, 2, base, base].

    Of float64 `count` and `position`, bool `ordinary` and `special` [batch, token]. Rows are `BASE` for ordinary tokens and
    again for special ones, 0 elsewhere.
    """
    import torch

    base = torch.stack([torch.ones_like(count), count, count.log1p(), position], 1)  # [batch, base, token]
    groups = torch.stack([base * one[:, None] for one in (ordinary, special)], 1)  # [batch, 2, base, token]
    return groups.flatten(1, 2), groups @ base.transpose(1, 2)[:, None]


@dataclass(frozen=True)
class FrequencyMoments:
    """Sums over the tokens of one view in one layer, float64.

    Attributes:
        own: [draw, base, base], sums of products of `BASE`; draw 0 has every text once.
        with_size: [draw, base, dim], sums of |h_d| with each of `BASE`. square: [draw, dim], sums of h_d².
        signed: [base, dim], sums of h_d itself with "one" and "log" (the others are 0), without draws.
    """

    own: np.ndarray
    with_size: np.ndarray
    square: np.ndarray
    signed: np.ndarray


class FrequencySums:
    """Accumulators of all layers."""

    def __init__(self, n_layers: int, width: int, n_bootstrap: int, device: Any = "cpu"):
        import torch

        self.width, self.n_draws, self.device = width, 1 + n_bootstrap, torch.device(device)

        def zeros(*shape: int) -> "Tensor":
            return torch.zeros(shape, dtype=torch.float64, device=self.device)

        n = len(BASE)
        self._own = zeros(self.n_draws, 2 * n * n)
        self._sums = zeros(n_layers, self.n_draws, 2 * ROWS * width)
        self._signed = zeros(n_layers, 2 * n, width)
        self._batch: tuple[Tensor, Tensor] | None = None  # rows and weights of the one that was begun

    def start(self, tokens: tuple["Tensor", "Tensor"], weights: np.ndarray) -> None:
        """Begin a batch of `regressors`, in which draw i has text j `weights[i, j]` times."""
        import torch

        self._batch = (tokens[0], torch.from_numpy(weights).to(self.device))
        self._own += self._batch[1] @ tokens[1].flatten(1)

    def add(self, layer: int, states: "Tensor", see: "Callable[[Tensor, int], None] | None" = None) -> None:
        """Add the states of a layer [batch, token, dim] of the batch that was begun.

        `see(|h|, first)` is shown float64 [text, token, dim] of some texts, the first of which is number `first`.

        Raises:
            BadInput: a state is NaN or infinite.
        """
        import torch

        assert self._batch is not None, "start comes first"
        every, weights = self._batch
        n = len(BASE)
        step = len(states)
        if self.device.type == "cpu":
            step = max(1, CHUNK_VALUES // max(1, states.shape[1] * states.shape[2]))
        found = torch.empty(len(states), 2, ROWS, self.width, dtype=torch.float64, device=self.device)
        for first in range(0, len(states), step):
            rows = every[first : first + step]
            # A copy also of float64 states: they are the model's own, and what follows works in place.
            wide = states[first : first + step].to(self.device, torch.float64, copy=True)
            signed = rows[:, [0, 2, n, n + 2]].transpose(0, 1).flatten(1) @ wide.flatten(0, 1)
            self._signed[layer][[0, 2, n, n + 2]] += signed
            size = wide.abs_()
            part = found[first : first + step]
            part[:, :, :n] = (rows @ size).unflatten(1, (2, n))
            if see is not None:
                see(size, first)
            part[:, :, n] = rows[:, ::n] @ size.square_()
        if not bool(torch.isfinite(found.sum())):
            raise BadInput(f"a state of layer number {layer} that was read is NaN or infinite; {USE_FLOAT32}")
        self._sums[layer].addmm_(weights, found.flatten(1))

    def of(self, layer: int, view: str) -> FrequencyMoments:
        """Sums of a layer over the tokens of view "without_special" or "all"."""
        n, groups = len(BASE), slice(0, 1 if view == "without_special" else 2)
        own = self._own.view(self.n_draws, 2, n, n)[:, groups].sum(1).cpu().numpy()
        sums = self._sums[layer].view(self.n_draws, 2, ROWS, self.width)[:, groups].sum(1).cpu().numpy()
        signed = self._signed[layer].view(2, n, self.width)[groups].sum(0).cpu().numpy()
        return FrequencyMoments(own, sums[:, :n], sums[:, n], signed)


class TokenSample:
    """At most `size` tokens.

    Attributes:
        values: float32 |h| [layer, slot, dim]. count: of the token, and ordinary: whether it is no special one [slot].
    """

    def __init__(self, size: int, n_layers: int, width: int):
        self.size = size
        self.values = np.zeros((n_layers, size, width), dtype=np.float32)
        self.count = np.zeros(size)
        self.ordinary = np.zeros(size, dtype=bool)
        self._keys = np.full(size, np.inf)

    def offer(self, keys: np.ndarray, count: np.ndarray, ordinary: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Choose among tokens with these random `keys`, counts and kinds [token]: (index [kept], slot [kept]).

        The |h| of those that are kept is to be written to `values[layer, slot]`.
        """
        few = np.flatnonzero(keys < self._keys.max())
        few = few[np.argsort(keys[few], kind="stable")[: self.size]]
        # The worst slots go, free ones (with an infinite key) first, as long as what comes is better.
        worst = np.argsort(-self._keys, kind="stable")[: len(few)]
        better = keys[few] < self._keys[worst]
        index, slot = few[better], worst[better]
        self._keys[slot], self.count[slot], self.ordinary[slot] = keys[index], count[index], ordinary[index]
        return index, slot

    def part(self, view: str) -> np.ndarray:
        """Slots in use whose token counts in a view, bool [slot]."""
        used = np.isfinite(self._keys)
        return used & self.ordinary if view == "without_special" else used


class TypeTable:
    """Sums of |h| by type, float64, of at most `size` types."""

    def __init__(self, size: int, n_vocabulary: int, shape: tuple[int, int], *, seed: int, device: Any = "cpu"):
        import torch

        n_layers, width = shape
        self.size = min(size, n_vocabulary)
        self._order = np.random.default_rng([seed, 47]).permutation(n_vocabulary)
        self._slot = np.full(n_vocabulary, -1)
        self._id = np.full(self.size, -1)
        self._count = np.zeros(self.size + 1, dtype=np.int64)
        self._seen = np.zeros(n_vocabulary, dtype=bool)
        # The slot behind the last takes what is not kept.
        self._sums = torch.zeros(n_layers, self.size + 1, width, dtype=torch.float64, device=device)

    @property
    def n_seen(self) -> int:
        """Types that occurred, kept or not."""
        return int(self._seen.sum())

    def offer(self, ids: np.ndarray, counted: np.ndarray) -> np.ndarray:
        """Slot of each token [token] of `ids`, with room made for new types; `size` where it is not `counted` or kept."""
        present = np.unique(ids[counted])
        new = present[~self._seen[present]]
        self._seen[new] = True
        new = new[np.argsort(self._order[new])][: self.size]
        rank = np.where(self._id < 0, len(self._order), self._order[self._id])  # [slot]
        worst = np.argsort(-rank, kind="stable")[: len(new)]
        better = self._order[new] < rank[worst]
        for slot, one in zip(worst[better].tolist(), new[better].tolist(), strict=True):
            if self._id[slot] >= 0:
                self._slot[self._id[slot]] = -1
                self._sums[:, slot] = 0
                self._count[slot] = 0
            self._id[slot], self._slot[one] = one, slot
        slots = np.where(counted & (self._slot[ids] >= 0), self._slot[ids], self.size)
        self._count += np.bincount(slots.ravel(), minlength=self.size + 1)
        return slots

    def add(self, layer: int, slots: "Tensor", values: "Tensor") -> None:
        """Add |h| [token, dim] of tokens whose types have these slots [token]."""
        self._sums[layer].index_add_(0, slots, values)

    @property
    def ids(self) -> np.ndarray:
        """Types that are kept [type]."""
        return self._id[self._id >= 0]

    def means(self, layer: int) -> np.ndarray:
        """Mean |h| of the kept types [type, dim], in the order of `ids`."""
        used = np.flatnonzero(self._id >= 0)
        sums: np.ndarray = self._sums[layer, used].cpu().numpy()
        return sums / self._count[used, None]


# --- the pass --------------------------------------------------------------------------------------------------------


class FrequencyPass:
    """What one pass over the texts gathers; memory is that of its parts, however many texts there are.

    Attributes:
        vocabulary: of the model. sums, sample, types: the accumulators.
        n: tokens, unknown ones and shared ones, of ordinary and of special tokens [2, 3].
        occurred: bool [2, id], ids that occurred as ordinary or special tokens.
        texts: texts with a token in either view [2].
        batches: that are in. identity: what must be equal for a stopped pass to go on.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        vocabulary: Vocabulary,
        options: "FrequencyOptions",
        shape: tuple[int, int],
        identity: str,
    ):
        device = "cpu" if loaded.device.type == "mps" else loaded.device  # MPS has no float64
        self.vocabulary, self.identity, n_ids = vocabulary, identity, len(vocabulary.count)
        self.sums = FrequencySums(*shape, options.n_bootstrap, device)
        self.sample = TokenSample(options.n_sample, *shape)
        self.types = TypeTable(options.n_types, n_ids, shape, seed=options.seed, device=device)
        self.n, self.occurred = np.zeros((2, 3), dtype=np.int64), np.zeros((2, n_ids), dtype=bool)
        self.texts, self.batches = np.zeros(2, dtype=np.int64), np.zeros((), dtype=np.int64)

    @staticmethod
    def memory(options: "FrequencyOptions", n_layers: int, width: int) -> int:
        """Bytes of the accumulators."""
        draws, sample, types = 2 * ROWS * 8 * (1 + options.n_bootstrap), 4 * options.n_sample, 8 * (options.n_types + 1)
        return n_layers * width * (draws + sample + types)

    def add(self, batch: TokenBatch, weights: np.ndarray, keys: np.ndarray) -> None:
        """One batch into all accumulators."""
        import torch

        known, device = self.vocabulary, self.sums.device
        ids, valid, ordinary = (one.cpu().numpy() for one in (batch.ids, batch.valid, batch.ordinary))
        ordinary &= ~known.special[ids]
        groups = np.stack([ordinary, valid & ~ordinary])
        count = known.count[ids]
        for place, group in enumerate(groups):
            flags = (np.ones_like(valid), count == 0, known.shared[ids])
            self.n[place] += [int((group & flag).sum()) for flag in flags]
            self.occurred[place, ids[group]] = True
        self.texts += [int(ordinary.any(1).sum()), int(valid.any(1).sum())]
        tensors = (torch.from_numpy(one).to(device) for one in (count, _positions(batch).astype(float), *groups))
        self.sums.start(regressors(*tensors), weights)
        slots = torch.from_numpy(self.types.offer(ids, ordinary)).to(device)
        among = np.flatnonzero(valid)
        index, slot = self.sample.offer(keys.ravel()[among], count.ravel()[among], ordinary.ravel()[among])
        places = np.divmod(among[index], ids.shape[1])
        rows, columns = (torch.from_numpy(one).to(batch.valid.device) for one in places)
        for layer, states in enumerate(batch.states):

            def see(size: "Tensor", first: int, layer: int = layer) -> None:
                self.types.add(layer, slots[first : first + len(size)].flatten(), size.flatten(0, 1))

            self.sums.add(layer, states, see)
            if len(slot):
                self.sample.values[layer, slot] = states[rows, columns].abs().float().cpu().numpy()
        self.batches += 1

    def _arrays(self) -> dict[str, Any]:
        """Every array and tensor that grows, by name."""
        parts = {"pass": self, "sums": self.sums, "sample": self.sample, "types": self.types}
        return {
            f"{part} {name}": v for part, one in parts.items() for name, v in vars(one).items() if hasattr(v, "shape")
        }

    def save(self, path: Path) -> None:
        """Write what is gathered so far, in place of what was."""
        with replacing(path) as file:
            arrays: Any = {
                key: v if isinstance(v, np.ndarray) else v.cpu().numpy() for key, v in self._arrays().items()
            }
            np.savez(file, identity=np.array(self.identity), **arrays)

    def restore(self, path: Path) -> None:
        """Go on with what `save` wrote; a file that is damaged, or of other work, is as none."""
        mine = self._arrays()
        try:
            with np.load(path) as file:
                found = {name: file[name] for name in mine} if str(file["identity"]) == self.identity else {}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return
        for name, value in found.items():
            mine[name][...] = value if isinstance(mine[name], np.ndarray) else mine[name].new_tensor(value)


def read(
    loaded: LoadedModel, texts: Texts, options: "FrequencyOptions", gathered: FrequencyPass, place: Path | None
) -> int:
    """Fill `gathered`, some texts at a time; at how many tokens texts were cut.

    What is gathered is kept at `place` now and then, and a pass that was stopped goes on from there.
    """
    length, before, saved, pause = options.max_length, 0, time.monotonic(), SAVE_SECONDS
    if place is not None:
        gathered.restore(place)
    done = int(gathered.batches)
    for number, start in enumerate(range(0, len(texts), TEXTS_AT_ONCE)):
        tokens = tokenise(loaded, texts.texts[start : start + TEXTS_AT_ONCE], max_length=options.max_length)
        length, lengths, size = tokens.max_length, tokens.lengths, options.read.batch_size
        order = [text for text in np.argsort(-lengths, kind="stable").tolist() if lengths[text]]
        skipped = min(done - before, -(-len(order) // size))
        before += skipped
        often = np.random.default_rng([options.seed, 41, number]).poisson(1.0, (len(lengths), options.n_bootstrap))
        first = np.cumsum(lengths) - lengths
        keys = np.random.default_rng([options.seed, 43, number]).random(int(lengths.sum()) + 1)
        told = replace(options.read, progress=_from(options.read.progress, start + skipped * size, len(texts)))
        for batch in token_batches(loaded, tokens, told, order=order[skipped * size :]):
            rows = list(batch.texts)
            weights = np.ones((1 + options.n_bootstrap, len(rows)))
            weights[1:] = often[rows].T
            gathered.add(batch, weights, keys[np.clip(first[rows][:, None] + _positions(batch), 0, len(keys) - 1)])
            if place is not None and (now := time.monotonic()) - saved >= pause:
                gathered.save(place)
                saved = time.monotonic()
                pause = max(SAVE_SECONDS, 20 * (saved - now))  # keeping takes a twentieth of the time at most
    return length


def _positions(batch: TokenBatch) -> np.ndarray:
    """Place of each token in its text, from 0 [batch, token]; padding on either side is not counted."""
    found: np.ndarray = np.maximum(batch.valid.cpu().numpy().cumsum(1) - 1, 0)
    return found


def _from(
    tell: Callable[[str, int, int], None] | None, start: int, total: int
) -> Callable[[str, int, int], None] | None:
    """`tell`, of a part of the texts that begins at `start`."""
    return None if tell is None else lambda label, done, _: tell(label, start + done, total)


# --- correlations ----------------------------------------------------------------------------------------------------


def pearson(moments: FrequencyMoments, which: str) -> np.ndarray:
    """Correlation of |h| with the "raw" or "log" count or the "position" [draw, dim]."""
    place = BASE.index(which)
    own = moments.own
    n = own[:, 0, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = moments.with_size[:, 0] / n[:, None], own[:, 0, place] / n
        covariance = moments.with_size[:, place] / n[:, None] - mean_x * mean_y[:, None]
        square = moments.square / n[:, None]
        return _ratio(covariance, square, mean_x, _variance(own[:, place, place] / n, mean_y)[:, None])


def pearson_signed(moments: FrequencyMoments) -> np.ndarray:
    """Correlation of h itself with the log count [dim], without draws."""
    place = BASE.index("log")
    own = moments.own[0]
    n = own[0, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = moments.signed[0] / n, own[0, place] / n
        covariance = moments.signed[place] / n - mean_x * mean_y
        return _ratio(covariance, moments.square[0] / n, mean_x, _variance(own[place, place] / n, mean_y))


def partial(moments: FrequencyMoments, log: np.ndarray | None = None) -> np.ndarray:
    """Correlation of |h| with the log count given the position in the text, both taken linearly [draw, dim].

    `log` is `pearson(moments, "log")` where it is there. Where all tokens stand at one position it is `log` itself.
    """
    log = pearson(moments, "log") if log is None else log
    own, place, other = moments.own, BASE.index("log"), BASE.index("position")
    position = pearson(moments, "position")
    n = own[:, 0, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_l, mean_p = own[:, 0, place] / n, own[:, 0, other] / n
        size = _variance(own[:, place, place] / n, mean_l) * _variance(own[:, other, other] / n, mean_p)
        between = (own[:, place, other] / n - mean_l * mean_p) / np.sqrt(size)
        found = (log - position * between[:, None]) / np.sqrt((1 - position**2) * (1 - between**2)[:, None])
    still = np.isnan(_variance(own[:, other, other] / np.maximum(n, 1), own[:, 0, other] / np.maximum(n, 1)))
    return np.where(still[:, None], log, np.clip(found, -1, 1))


def spread(draws: np.ndarray) -> np.ndarray:
    """Standard deviation over draws of Fisher's z [dim], of correlations [draw, dim] whose first is the value itself.

    NaN where fewer than half of the draws have a value.
    """
    z = fisher(draws[1:])
    known = np.isfinite(z)
    n = known.sum(0)
    mean = np.where(known, z, 0).sum(0) / np.maximum(n, 1)
    square = np.where(known, (z - mean) ** 2, 0).sum(0) / np.maximum(n - 1, 1)
    return np.where((n > len(z) / 2) & np.isfinite(draws[0]), np.sqrt(square), np.nan)


def adjusted(values: np.ndarray, errors: np.ndarray, df: int) -> np.ndarray:
    """Two-sided p-values of correlations (t of Fisher's z over its error), adjusted over all of them together.

    Benjamini and Hochberg (1995); NaN, and not counted, where there is no correlation or no error.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return benjamini_hochberg(two_sided_p(fisher(values) / errors, df))


def of_types(means: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pearson correlation of `means` [type, dim] with log(1 + `count`) [type], and the standard error of its Fisher's z.

    Types are independent draws. The error is that of influences (a sandwich), which holds for skewed sizes too.
    """
    n, width = means.shape
    if n < 4:
        return np.full(width, np.nan), np.full(width, np.nan)
    y = np.log1p(count)
    with np.errstate(invalid="ignore", divide="ignore"):
        y = (y - y.mean()) / y.std()
        centre = means.mean(0)
        spread_x = means.std(0)
        x = (means - centre) / np.where(spread_x**2 > LEAST * (centre**2 + spread_x**2), spread_x, np.nan)
        found = (x * y[:, None]).mean(0)
        influence = x * y[:, None] - found / 2 * (x**2 + y[:, None] ** 2)
        error = np.sqrt((influence**2).sum(0) / n / (n - 1)) / (1 - found**2)
    return np.clip(found, -1, 1), error


def _variance(square: np.ndarray, mean: np.ndarray) -> np.ndarray:
    found = square - mean**2
    return np.where(found > LEAST * square, found, np.nan)


def _ratio(covariance: np.ndarray, square: np.ndarray, mean: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Correlation, in [−1, 1] whatever the last digits say."""
    return np.clip(covariance / np.sqrt(_variance(square, mean) * other), -1, 1)


def random_dims(width: int, size: int, seed: int) -> np.ndarray:
    """`N_SETS` random sets of `size` of all dimensions [set, size]; of a single one, nothing: ranks say all."""
    if size == 1:
        return np.zeros((0, 1), dtype=np.int64)
    random = np.random.default_rng([seed, 53])
    parts = []
    for start in range(0, N_SETS, SETS_AT_ONCE):
        order = random.random((min(SETS_AT_ONCE, N_SETS - start), width)).argpartition(size - 1, axis=1)
        parts.append(order[:, :size])
    return np.concatenate(parts)


def rank_p_of(sizes: np.ndarray, dims: Sequence[int], sets: np.ndarray) -> float:
    """Share of sets of dimensions whose mean of `sizes` [dim] is at least that of `dims`, these included.

    Valid where the dimensions are exchangeable with the others. One dimension: its rank over the number of dimensions.
    """
    sizes = np.nan_to_num(np.asarray(sizes, dtype=float), nan=-1.0)
    own = sizes[list(dims)].mean()
    if len(dims) == 1:
        return float((sizes >= own).sum() / len(sizes))
    return float(rank_among(own - 1e-12, sizes[sets].mean(1)) / (1 + len(sets)))


def contrast(draws: np.ndarray, dims: Sequence[int]) -> np.ndarray:
    """Mean |r| of `dims`, and of all others, of correlations [draw, dim]: [2, draw]; constant dimensions are left out."""
    sizes = np.abs(draws)
    mine = np.zeros(sizes.shape[1], dtype=bool)
    mine[list(dims)] = True
    return np.stack([_mean(sizes[:, mine]), _mean(sizes[:, ~mine])])


def _mean(sizes: np.ndarray) -> np.ndarray:
    known = np.isfinite(sizes)
    n = known.sum(1)
    return np.where(n > 0, np.where(known, sizes, 0).sum(1) / np.maximum(n, 1), np.nan)
