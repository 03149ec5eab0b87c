"""Maxima with their places, and counts by exponent, of tensors that come batch by batch; memory does not grow with them.

    tally = Tally(every=16)
    tally.begin(BatchRows(...))                  # which rows of the next tensors are tokens of which text
    tally.add(("model", "stream", "0"), "", states)                  # [batch, token, dim]
    tally.end()
    tally.found[("model", "stream", "0")].largest

Nothing is fetched from an accelerator before `end`, which fetches all maxima of a batch at once.
"""

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.experiments.range.result import FORMATS

if TYPE_CHECKING:
    from torch import Tensor

Key = tuple[str, str, str]  # stream, kind, layer
FINE = 21  # bits of a float32 below the first two of its fraction: a bin is a quarter of an exponent's range
PER_EXPONENT = 1 << (23 - FINE)
BINS = 256 * PER_EXPONENT + 1  # bin 0 is of zeros alone
ROWS = 4096  # sampled vectors whose exponents are counted at once


@dataclass
class Kept:
    """What is kept of one tensor: its largest |x| with its place, sampled values by bin [bin], and whether any is NaN."""

    largest: float = -1.0
    text: int = -1
    token: int = -1
    word: int = -1  # number of the token
    dim: int = -1
    module: str = ""
    counts: Any = None
    nan: bool = False

    def take(self, value: float, place: tuple[int, int, int, int], module: str) -> None:
        """Keep a value where it is larger, or as large and of an earlier text or token."""
        earlier = value == self.largest and place[:2] < (self.text, self.token)
        if value > self.largest or earlier:
            self.largest, self.module = value, module
            self.text, self.token, self.word, self.dim = place


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch: bool `valid` [batch, token], numbers of `tokens` [batch, token] by stream, its `texts`."""

    valid: "Tensor"
    tokens: dict[str, "Tensor"]
    texts: tuple[int, ...]


@dataclass
class _Seen:
    """A maximum that is still on the device: its value, number of row and column."""

    key: Key
    module: str
    value: "Tensor"
    row: "Tensor"
    dim: "Tensor"
    known: bool
    nan: "Tensor"


@dataclass
class _Last:
    """The tensor that came last, which another kind may be too: a norm's output is what several linears read."""

    states: "Tensor"
    seen: _Seen
    counts: "Tensor"
    keys: set[Key]

    def holds(self, states: "Tensor") -> bool:
        """Whether these are the same values in the same place; they are not freed while this lasts."""
        mine = self.states
        return (mine.data_ptr(), mine.shape, mine.stride()) == (states.data_ptr(), states.shape, states.stride())


@dataclass
class Tally:
    """What all batches held so far, by stream, kind and layer."""

    every: int
    found: dict[Key, Kept] = field(default_factory=dict)
    rows: BatchRows | None = None
    _sample: Any = None
    _last: _Last | None = None
    _seen: list[_Seen] = field(default_factory=list)

    def begin(self, rows: BatchRows) -> None:
        """The rows of the tensors that come; which of them are counted does not depend on how texts are batched."""
        import torch

        n_tokens = rows.valid.shape[1]
        number = torch.tensor(rows.texts, device=rows.valid.device)[:, None]
        place = torch.arange(n_tokens, device=rows.valid.device)
        chosen = rows.valid & ((number + place) % self.every == 0)
        self.rows, self._sample = rows, chosen.flatten().nonzero().flatten()

    def add(self, key: Key, module: str, states: "Tensor") -> None:
        """Take a tensor [batch, token, dim]; of another shape all rows count, and nobody knows whose they are.

        What several modules read is counted once.
        """
        assert self.rows is not None, "begin() comes first"
        if not states.numel():
            return
        if self._last is None or not self._last.holds(states):
            known = states.shape[:2] == self.rows.valid.shape and states.ndim == 3
            flat = states.reshape(-1, states.shape[-1])
            seen = self._largest(key, module, _size(flat), flat, known)
            counted = flat.index_select(0, self._sample) if known else flat[:: self.every]
            counts = sum((exponents(part) for part in counted.split(ROWS)), start=exponents(counted[:0]))
            self._last = _Last(states, seen, counts, set())
        elif key not in self._last.keys:
            self._seen.append(replace(self._last.seen, key=key, module=module))
        if key not in self._last.keys:
            self._last.keys.add(key)
            kept = self.found.setdefault(key, Kept())
            kept.counts = self._last.counts.clone() if kept.counts is None else kept.counts.add_(self._last.counts)

    def add_rows(self, key: Key, module: str, sizes: "Tensor") -> None:
        """Take one number per token [batch, token], not below 0: only its maximum is kept."""
        assert self.rows is not None, "begin() comes first"
        self._largest(key, module, sizes.flatten(), None, sizes.shape == self.rows.valid.shape)

    def add_some(self, key: Key, module: str, states: "Tensor", rows: "Tensor") -> None:
        """Take vectors [row, dim] of these valid rows (numbers in the flat batch) alone; only their maximum is kept."""
        self._largest(key, module, _size(states), states, True, rows)

    def _largest(
        self, key: Key, module: str, sizes: "Tensor", flat: "Tensor | None", known: bool, rows: "Tensor | None" = None
    ) -> _Seen:
        """Note the largest of `sizes` [row], and where in its row of `flat` [row, dim] it is."""
        import torch

        assert self.rows is not None, "begin() comes first"
        self.found.setdefault(key, Kept())
        sizes = sizes.float()
        if known and rows is None:
            sizes = sizes.masked_fill(~self.rows.valid.flatten(), -1.0)
        nan = sizes.isnan().any()
        value, row = sizes.nan_to_num(nan=math.inf, posinf=math.inf).max(0)
        dim = torch.full_like(row, -1)
        if flat is not None:
            vector = flat.index_select(0, row[None])[0].float().abs()
            dim = vector.nan_to_num(nan=math.inf, posinf=math.inf).argmax()
        seen = _Seen(key, module, value, row if rows is None else rows[row], dim, known, nan)
        self._seen.append(seen)
        return seen

    def end(self) -> None:
        """Fetch the maxima of the batch and keep what is larger than all before."""
        import torch

        assert self.rows is not None, "begin() comes first"
        seen, rows = self._seen, self.rows
        self._seen, self._last = [], None
        if not seen:
            return
        values = torch.stack([one.value for one in seen]).tolist()
        broken = torch.stack([one.nan for one in seen]).tolist()
        places = torch.stack([torch.stack([one.row, one.dim]) for one in seen]).tolist()
        width = rows.valid.shape[1]
        tokens = {name: numbers.cpu() for name, numbers in rows.tokens.items()}
        for one, value, nan, (row, dim) in zip(seen, values, broken, places, strict=True):
            self.found[one.key].nan |= nan
            if not one.known:
                self.found[one.key].take(value, (-1, -1, -1, dim), one.module)
            elif value >= 0:
                text, token = divmod(row, width)
                word = int(tokens[one.key[0]][text, token])
                self.found[one.key].take(value, (rows.texts[text], token, word, dim), one.module)


def _size(flat: "Tensor") -> "Tensor":
    """Largest |x| of each row [row]; much faster than one pass of `aminmax` over rows."""
    import torch

    return torch.maximum(flat.amax(-1), -flat.amin(-1))


def add_peaks(
    peaks: "dict[tuple[str, str], Tensor]", key: tuple[str, str], rows: "Tensor", expert: int = 0, n_experts: int = 1
) -> None:
    """Keep the largest |x| of each entry of `rows` [row, entry] in `peaks` [expert, entry]; infinite of what is no number."""
    top = rows.float().abs().amax(0).cpu().nan_to_num(nan=math.inf, posinf=math.inf)
    kept = peaks.setdefault(key, top.new_zeros(n_experts, len(top)))
    kept[expert] = kept[expert].maximum(top)


def exponents(values: "Tensor") -> "Tensor":
    """How many values lie in each bin of |x| [bin], the float32's exponent and the first two bits of its fraction.

    Bin 0 has zeros; bin 1 + n is of the bits n at the top of a float32 without its sign. The edges are exact, powers of two
    among them, so shares below a power of two are those of the values counted.
    """
    import torch

    bits = values.float().contiguous().view(torch.int32).flatten() & 0x7FFFFFFF
    return torch.bincount((bits >> FINE) + (bits != 0), minlength=BINS)


def median_of(counts: np.ndarray) -> float:
    """The median of |x| of counts by bin, linear within its bin, whose ends are at most a quarter apart; NaN of none."""
    total = int(counts.sum())
    if not total:
        return math.nan
    reached = np.cumsum(counts)
    place = int(np.searchsorted(reached, total / 2))
    if place == 0:
        return 0.0
    low, high = (np.array([(place - 1 + more) << FINE], dtype=np.uint32).view(np.float32)[0].item() for more in (0, 1))
    before = int(reached[place - 1])
    return float(low + (high - low) * (total / 2 - before) / int(counts[place])) if math.isfinite(high) else math.inf


def below(counts: np.ndarray) -> dict[str, float]:
    """Share of values that are not 0 and below the smallest normal number of each format."""
    total = int(counts.sum())
    if not total:
        return {}
    shares = {}
    for form in FORMATS:
        edge = int(np.array([form.smallest_normal], dtype=np.float32).view(np.uint32)[0]) >> FINE
        shares[form.name] = float(counts[1 : 1 + edge].sum() / total)
    return shares
