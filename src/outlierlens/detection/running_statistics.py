"""Running statistics of token vectors: add chunks, merge exactly, in memory that does not grow with the tokens.

    layer = LayerStats(dim=768, n_sigma=3.0)
    layer.add(states, ordinary, special)             # [batch, token, dim]; `VectorRows` say which vectors count
    group, inputs = layer.view("all")                # ordinary and special tokens, merged
    group.moments.kurtosis()
    histogram = LogHistogram(dim=768)
    histogram.add(values)                            # float32 [row, dim]
    histogram.quantiles([0.5, 0.99])                 # [dim, share], relative error at most `QUANTILE_ERROR`

Moments       mean and centred power sums up to the fourth, float64, combined by Pébay (2008), eq. 3.1
Extremes      smallest, largest and largest |h| with its text, position and token
GroupStats    both, a `LogHistogram`, and the counts of one group of tokens (special or ordinary)
LayerStats    both groups of a layer, and the counts by input that need both
LargeCounts   vectors with |h| >= 6, for what attention and MLP read
LogHistogram  counts in signed logarithmic bins

Counts, extremes and histograms merge exactly. Moments agree to about 1e-12 in any order. `Scratch` keeps memory from one moment
to the next: on a CPU, fresh pages for a few megabytes cost as much as the arithmetic on them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.detection.within_vectors import beyond, lone_extremes
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor


class Scratch:
    """Tensors by name, each as large as the largest that was asked for."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any, device: Any) -> "Tensor":
        """A tensor with any values; it holds until `name` is taken again."""
        import torch

        if device.type != "cpu":  # there torch keeps memory itself
            return torch.empty(shape, dtype=dtype, device=device)
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or len(held) < size or held.dtype != dtype:
            held = self._held[name] = torch.empty(size, dtype=dtype, device=device)
        return held[:size].view(shape)


# --- quantiles -------------------------------------------------------------------------------------------------------

MANTISSA_BITS = 5
LOWEST_EXPONENT, HIGHEST_EXPONENT = -12, 20
HALF = (HIGHEST_EXPONENT - LOWEST_EXPONENT) << MANTISSA_BITS  # bins of one sign; the first holds all that is smaller
BINS = 2 * HALF
BIN_BYTES = 4
# The widest bin is [1, 1 + 1/32); its harmonic centre is off by at most width / (sum of the edges).
QUANTILE_ERROR = 1 / (2 ** (MANTISSA_BITS + 1) + 1)
SMALLEST = 2.0**LOWEST_EXPONENT  # smaller magnitudes are read as 0
# On a CPU bins are many and caches small: with enough rows, dimensions are counted some at a time.
FEW_ROWS = 512
COLUMNS_AT_ONCE = 16  # as many as int16 has room for: places in their counts go up to 16 * BINS − 1
_SHIFT = 7 - MANTISSA_BITS
_FIRST_CODE = ((127 + LOWEST_EXPONENT) << MANTISSA_BITS) - 1


class LogHistogram:
    """Counts of float32 values in signed logarithmic bins, for each of some columns.

    A bin is what the sign, the exponent and the first five bits of the mantissa say: 1/32 of an octave from 2^-12 to
    2^20. Smaller magnitudes count as 0, larger ones fall into the last bin.

    Attributes:
        columns: int64, the dimensions counted, or None for all of them.
        counts: int32 [column * BINS], ascending in value.
        magnitudes: int64 [HALF], |h| over all dimensions; kept apart only where `columns` leaves some out.
    """

    def __init__(self, dim: int, columns: "Tensor | None" = None, device: Any = "cpu"):
        import torch

        self.dim, self.columns = dim, columns
        kept = dim if columns is None else len(columns)
        self.counts = torch.zeros(kept * BINS, dtype=torch.int32, device=device)
        self.magnitudes = None if columns is None else torch.zeros(HALF, dtype=torch.int64, device=device)
        self._offset = torch.arange(kept, dtype=torch.int32, device=device) * BINS + HALF
        self._one = torch.ones((), dtype=torch.int32, device=device)

    def add(self, values: "Tensor") -> None:
        """Count float32 [row, dim]."""
        self.count(self.codes(values, Scratch()))

    def codes(self, values: "Tensor", scratch: Scratch, out: "Tensor | None" = None) -> "Tensor":
        """What `count` takes for float32 [row, dim]: int16 [row, column], from −HALF up to HALF − 1, into `out` if given."""
        import torch

        bits = scratch.take("bits", values.shape, torch.int32, values.device)
        torch.bitwise_right_shift(values.view(torch.int32), 16, out=bits)
        # Sign, exponent and seven bits of the mantissa are all that a bin needs.
        high = scratch.take("high", values.shape, torch.int16, values.device).copy_(bits)
        every = self.columns is None
        code = out if every and out is not None else scratch.take("code", values.shape, torch.int16, values.device)
        torch.bitwise_and(high, 0x7FFF, out=code).bitwise_right_shift_(_SHIFT).sub_(_FIRST_CODE).clamp_(0, HALF - 1)
        if self.columns is not None and self.magnitudes is not None:
            self.magnitudes += torch.bincount(code.view(-1), minlength=HALF)
            high = high.index_select(1, self.columns)
            code = torch.index_select(code, 1, self.columns, out=out)
        return code.bitwise_xor_(high.bitwise_right_shift_(15))  # with −1 for negative values: turns code c into −c − 1

    def count(self, codes: "Tensor") -> None:
        """Count codes [row, column]."""
        import torch

        if codes.device.type != "cpu" or len(codes) < FEW_ROWS:
            index = (codes + self._offset).long().reshape(-1)
            self.counts.scatter_add_(0, index, self._one.expand(index.numel()))
            return
        offset = (torch.arange(COLUMNS_AT_ONCE) * BINS + HALF).short()
        for start in range(0, codes.shape[1], COLUMNS_AT_ONCE):
            part = codes[:, start : start + COLUMNS_AT_ONCE]
            size = part.shape[1] * BINS
            index = (part + offset[: part.shape[1]]).reshape(-1)
            self.counts[start * BINS : start * BINS + size] += torch.bincount(index, minlength=size).int()

    def all_magnitudes(self) -> "Tensor":
        """Counts of |h| over all dimensions, int64 [HALF]."""
        if self.magnitudes is not None:
            return self.magnitudes
        by_bin = self.counts.view(-1, BINS).sum(0)
        return by_bin[HALF:] + by_bin[:HALF].flip(0)

    def narrowed(self, columns: "Tensor") -> "LogHistogram":
        """The same counts for `columns` only, which must be among those kept."""
        import torch

        new = LogHistogram(self.dim, columns, self.counts.device)
        place = columns if self.columns is None else torch.searchsorted(self.columns, columns)
        new.counts = self.counts.view(-1, BINS)[place].reshape(-1)
        new.magnitudes = self.all_magnitudes().clone()
        return new

    def merged(self, other: "LogHistogram") -> "LogHistogram":
        """Counts of both; raises BadInput where they count different columns."""
        import torch

        kept = [None if h.columns is None else h.columns.tolist() for h in (self, other)]
        if self.dim != other.dim or kept[0] != kept[1]:
            raise BadInput("histograms of different dimensions cannot be merged; narrow both to the same columns first")
        new = LogHistogram.__new__(LogHistogram)
        new.__dict__.update(self.__dict__ | {"counts": torch.add(self.counts, other.counts)})
        if self.magnitudes is not None:
            new.magnitudes = self.magnitudes + other.all_magnitudes()
        return new

    def quantiles(self, shares: Sequence[float]) -> "Tensor":
        """Value at rank ceil(share * n) of each column, float64 [column, share]; NaN without values."""
        import torch

        running = self.counts.view(-1, BINS).cumsum(1)  # int64 [column, bin]
        total = running[:, -1:]
        rank = (torch.tensor(shares, dtype=torch.float64, device=running.device) * total).ceil().long().clamp(min=1)
        found = torch.searchsorted(running, rank).clamp(max=BINS - 1)
        return torch.where(total > 0, bin_values().to(running.device)[found], math.nan)

    def median_magnitude(self) -> float:
        """Median of |h| over all values and dimensions; NaN without values."""
        return self.magnitude_quantile(0.5)

    def magnitude_quantile(self, share: float) -> float:
        """|h| at rank ceil(share * n) over all values and dimensions; NaN without values."""
        running = self.all_magnitudes().cumsum(0).cpu().numpy()
        if not running[-1]:
            return math.nan
        rank = max(1, math.ceil(share * int(running[-1])))
        return float(bin_values()[HALF + min(int(np.searchsorted(running, rank)), HALF - 1)])

    def magnitude_quantiles(self, share: float) -> "Tensor":
        """|h| at rank ceil(share * n) of each column, float64 [column]; NaN without values."""
        import torch

        by_bin = self.counts.view(-1, BINS)
        running = (by_bin[:, HALF:] + by_bin[:, :HALF].flip(1)).cumsum(1)  # int64 [column, HALF]
        total = running[:, -1:]
        rank = (share * total.double()).ceil().long().clamp(min=1)
        found = torch.searchsorted(running, rank).clamp(max=HALF - 1).squeeze(1)
        return torch.where(total.squeeze(1) > 0, bin_values().to(running.device)[HALF + found], math.nan)


def bin_values() -> "Tensor":
    """The value that stands for each bin, float64 [BINS]: the harmonic centre, with the same relative error to both edges."""
    import torch

    edges = (
        (torch.arange(_FIRST_CODE, _FIRST_CODE + HALF + 1, dtype=torch.int32) << 16 + _SHIFT)
        .view(torch.float32)
        .double()
    )
    centre = 2 * edges[:-1] * edges[1:] / (edges[:-1] + edges[1:])
    centre[0] = 0.0
    return torch.cat([-centre.flip(0), centre])


# --- sums of token vectors -------------------------------------------------------------------------------------------

LARGE = 6.0  # LLM.int8's magnitude
CHUNK_VALUES = 2**19  # float64 copies of a chunk stay in cache, and its operations outweigh the cost of calling them
MAX_TOKENS = 2**31 - 1  # a bin's count is an int32


@dataclass(frozen=True)
class Moments:
    """Count, mean and centred power sums of each dimension: m_k = sum of (x − mean)^k, float64 [dim]."""

    count: int
    mean: "Tensor"
    m2: "Tensor"
    m3: "Tensor"
    m4: "Tensor"

    @classmethod
    def of(cls, values: "Tensor", scratch: "Tensor | None" = None) -> "Moments":
        """Moments of float64 [row, dim]; `values` and `scratch`, if given one of the same shape, are overwritten."""
        import torch

        count = len(values)
        mean = values.mean(0)
        centred = values.sub_(mean)
        square = torch.mul(centred, centred, out=scratch)
        m2 = square.sum(0)
        m3 = centred.mul_(square).sum(0)
        return cls(count, mean, m2, m3, square.mul_(square).sum(0))

    def merged(self, other: "Moments") -> "Moments":
        """Moments of both sets together (Pébay 2008, "Formulas for robust, one-pass parallel computation", eq. 3.1)."""
        a, b = self.count, other.count
        if not a or not b:
            return self if a else other
        n = a + b
        # Shares instead of counts: products of counts pass 2^64 from some 100,000 rows on, where torch takes no more.
        p, q, between = a / n, b / n, a * (b / n)
        delta = other.mean - self.mean
        square = delta * delta
        m2 = self.m2 + other.m2 + between * square
        m3 = self.m3 + other.m3 + between * ((a - b) / n) * square * delta + 3 * delta * (p * other.m2 - q * self.m2)
        m4 = self.m4 + other.m4 + between * (1 - 3 * p * q) * square * square
        m4 = m4 + 6 * square * (p * p * other.m2 + q * q * self.m2) + 4 * delta * (p * other.m3 - q * self.m3)
        return Moments(n, self.mean + q * delta, m2, m3, m4)

    def std(self) -> "Tensor":
        """Population standard deviation [dim]."""
        return (self.m2 / self.count).sqrt()

    def skewness(self) -> "Tensor":
        """m3 / n over the cubed std [dim]; NaN where a dimension never varies."""
        return math.sqrt(self.count) * self.m3 / self.m2**1.5

    def kurtosis(self) -> "Tensor":
        """m4 / n over the fourth power of the std [dim], 3 for a normal; NaN where a dimension never varies."""
        return self.count * self.m4 / self.m2**2


@dataclass(frozen=True)
class VectorRows:
    """Token vectors of a batch that count, int64 [row] each, in ascending order of `key`.

    Attributes:
        index: row in the batch's states, flattened to [batch * token].
        slot: number of the text within the batch, from 0.
        key: text << 32 | position in the text: where a vector comes from, and which of two equal extremes is kept.
        token: the token's id.
    """

    index: "Tensor"
    slot: "Tensor"
    key: "Tensor"
    token: "Tensor"

    def __len__(self) -> int:
        return len(self.index)

    def part(self, start: int, stop: int) -> "VectorRows":
        """Rows `start` up to `stop`."""
        cut = slice(start, stop)
        return VectorRows(self.index[cut], self.slot[cut], self.key[cut], self.token[cut])

    def among(self, tokens: "Tensor", n_tokens: int) -> "VectorRows":
        """Those of `tokens`, int64 [row] of a batch's `n_tokens`, each at its row there."""
        import torch

        place = torch.full((n_tokens,), -1, dtype=torch.int64, device=self.index.device)
        place[tokens] = torch.arange(len(tokens), device=self.index.device)
        at = place[self.index]
        kept = at >= 0
        return VectorRows(at[kept], self.slot[kept], self.key[kept], self.token[kept])


def rows_of(mask: "Tensor", valid: "Tensor", tokens: "Tensor", texts: Sequence[int]) -> VectorRows:
    """`VectorRows` of the tokens in `mask` [batch, token]; positions count valid tokens, so padding on either side is alike."""
    import torch

    number = torch.tensor(texts, dtype=torch.int64, device=mask.device)
    order = number.argsort()
    slot, column = mask[order].nonzero(as_tuple=True)
    row = order[slot]
    position = (valid.long().cumsum(1) - 1)[row, column]
    return VectorRows(row * mask.shape[1] + column, slot, number[row] << 32 | position, tokens[row, column].long())


@dataclass(frozen=True)
class Extremes:
    """Smallest and largest value and largest |h| of each dimension [dim], with the key and token of the last."""

    low: "Tensor"
    high: "Tensor"
    key: "Tensor"
    token: "Tensor"

    @property
    def top(self) -> "Tensor":
        """Largest |h| [dim]."""
        import torch

        return torch.maximum(self.high, -self.low) + 0.0  # of zeros, no −0

    def with_chunk(self, values: "Tensor", rows: VectorRows) -> "Extremes":
        """Extremes with float32 [row, dim] added; of equal |h| the one with the smallest key is kept."""
        import torch

        low, high = values.amin(0), values.amax(0)
        top = torch.maximum(high, -low)
        columns = (top >= self.top).nonzero().squeeze(1)  # few after the first batches: only these look for the row
        key, token = self.key, self.token
        if len(columns):
            row = torch.arange(len(values), device=values.device).unsqueeze(1)
            reached = values.index_select(1, columns).abs_() == top[columns]
            row = torch.where(reached, row, len(values)).amin(0)
            wins = (top > self.top)[columns] | (rows.key[row] < key[columns])
            key, token = key.clone(), token.clone()
            key[columns[wins]], token[columns[wins]] = rows.key[row[wins]], rows.token[row[wins]]
        return Extremes(torch.minimum(low, self.low), torch.maximum(high, self.high), key, token)

    def merged(self, other: "Extremes") -> "Extremes":
        """Extremes of both sets together."""
        import torch

        mine = (self.top > other.top) | ((self.top == other.top) & (self.key <= other.key))
        return Extremes(
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
            torch.where(mine, self.key, other.key),
            torch.where(mine, self.token, other.token),
        )


def no_extremes(dim: int, device: Any = "cpu") -> Extremes:
    """Extremes of no token: low inf, high −inf, key larger than any."""
    import torch

    infinity = torch.full((dim,), math.inf, device=device)
    key = torch.full((dim,), 2**63 - 1, dtype=torch.int64, device=device)
    return Extremes(infinity, -infinity, key, torch.full_like(key, -1))


class GroupStats:
    """Statistics of one group of token vectors in one layer.

    Attributes:
        argmin, argmax: int64 [dim], vectors whose smallest / largest entry this is, and no other as well.
        sigma: int64 [dim], vectors in which |h_d − mean(h)| >= n_sigma std(h), over the vector itself, population std.
            A vector without spread has none.
    """

    def __init__(self, dim: int, n_sigma: float, device: Any = "cpu"):
        import torch

        zeros = torch.zeros((3, dim), dtype=torch.int64, device=device)
        none = torch.zeros(dim, dtype=torch.float64, device=device)
        self.dim, self.n_sigma = dim, n_sigma
        self.moments = Moments(0, none, none, none, none)
        self.extremes = no_extremes(dim, device)
        self.argmin, self.argmax, self.sigma = zeros
        self.histogram: LogHistogram | None = None

    @property
    def count(self) -> int:
        """Number of token vectors."""
        return self.moments.count

    def add(self, values: "Tensor", rows: VectorRows, scratch: Scratch) -> tuple["Tensor", "Tensor"]:
        """Add float32 [row, dim], all but to `histogram`; return the (row, dim) indices of the entries beyond n_sigma.

        Raises:
            BadInput: a value is NaN or infinite, or the counters are full.
        """
        import torch

        _check_room(self.count + len(values))
        wide, square = (scratch.take(name, values.shape, torch.float64, values.device) for name in ("wide", "square"))
        torch.mul(wide.copy_(values), wide, out=square)
        row, column = beyond(values, wide, square, self.n_sigma)
        self.sigma += torch.bincount(column, minlength=self.dim)
        low, high = lone_extremes(values)
        self.argmin += torch.bincount(low, minlength=self.dim)
        self.argmax += torch.bincount(high, minlength=self.dim)
        self.extremes = self.extremes.with_chunk(values, rows)
        self.moments = self.moments.merged(Moments.of(wide, square))
        return row, column

    def merged(self, other: "GroupStats") -> "GroupStats":
        """Statistics of both groups together, sharing no memory with either."""
        _check_room(self.count + other.count)
        new = GroupStats(self.dim, self.n_sigma, self.argmin.device)
        new.moments, new.extremes = self.moments.merged(other.moments), self.extremes.merged(other.extremes)
        for name in ("argmin", "argmax", "sigma"):
            setattr(new, name, getattr(self, name) + getattr(other, name))
        histograms = [group.histogram for group in (self, other) if group.count]
        if (first := next(iter(histograms), None)) is not None:
            last = histograms[-1] if len(histograms) == 2 else LogHistogram(self.dim, first.columns, self.argmin.device)
            new.histogram = first.merged(last) if last is not None else None
        return new


def _check_room(count: int) -> None:
    if count > MAX_TOKENS:
        raise BadInput(f"more than {MAX_TOKENS:,} token vectors in one result; split the data")


@dataclass(frozen=True)
class InputCounts:
    """Counts by input (text): how many there are, and in how many a dimension has an entry beyond n_sigma, int64 [dim]."""

    inputs: int
    sigma: "Tensor"

    def merged(self, other: "InputCounts") -> "InputCounts":
        """Counts of both; the two must hold different texts."""
        return InputCounts(self.inputs + other.inputs, self.sigma + other.sigma)


class LayerStats:
    """Statistics of one layer: ordinary and special tokens apart, from which both views follow exactly.

    Layers that are counted one after the other may share `scratch`.
    """

    def __init__(self, dim: int, n_sigma: float = Rule.n_sigma, device: Any = "cpu", scratch: Scratch | None = None):
        import torch

        self.dim, self.n_sigma, self.device = dim, n_sigma, torch.device(device)
        self.scratch = scratch or Scratch()
        self.ordinary, self.special = (GroupStats(dim, n_sigma, device) for _ in range(2))
        none = InputCounts(0, torch.zeros(dim, dtype=torch.int64, device=device))
        self.inputs = {"without_special": none, "all": none}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "scratch"}

    def add(
        self, states: "Tensor", ordinary: VectorRows, special: VectorRows, large: "LargeCounts | None" = None
    ) -> None:
        """Add the token vectors of whole texts, [batch, token, dim] in any float type, to `large` as well if it is given.

        Each text must come whole and once: the counts by input rest on it. Of experts [1, row, dim] of their tokens.
        """
        import torch

        flat = states.to(self.device).reshape(-1, self.dim)
        # As many rows at a time as stay in a CPU's cache, or all of them on an accelerator.
        step = max(1, CHUNK_VALUES // self.dim if self.device.type == "cpu" else len(flat))
        n_texts = 1 + max((int(rows.slot.max()) for rows in (ordinary, special) if len(rows)), default=-1)
        seen = torch.zeros((n_texts, self.dim + 1), dtype=torch.bool, device=self.device)  # last column: any token
        for view, group, chosen in (
            ("without_special", self.ordinary, ordinary),
            ("all", self.special, special),
        ):
            histogram, codes = group.histogram, None
            if histogram is not None:
                kept = self.dim if histogram.columns is None else len(histogram.columns)
                codes = self.scratch.take("codes", (len(chosen), kept), torch.int16, self.device)
            for start in range(0, len(chosen), step):
                part = chosen.part(start, start + step)
                values = self.scratch.take("values", (len(part), self.dim), flat.dtype, self.device)
                values = torch.index_select(flat, 0, part.index, out=values).float()
                row, column = group.add(values, part, self.scratch)
                if large is not None:
                    large.add(values, top=group.extremes.top)
                seen[part.slot[row], column] = True
                seen[part.slot, self.dim] = True
                if histogram is not None and codes is not None:
                    histogram.codes(values, self.scratch, codes[start : start + step])
            if histogram is not None and codes is not None:
                histogram.count(codes)
            inputs = seen.sum(0)
            self.inputs[view] = self.inputs[view].merged(InputCounts(int(inputs[-1]), inputs[:-1]))

    def keep_quantiles(self, groups: int, kept: int, states: "Tensor", rows: tuple[VectorRows, VectorRows]) -> None:
        """Set up histograms for ordinary (`groups` 1) or also special tokens (2), for at most `kept` dimensions.

        Where `kept` is less than all, those with the largest |h| so far, `states` [batch, token, dim] included, are
        kept; called again with less, the histograms are narrowed.
        """
        import torch

        old = self.ordinary.histogram
        columns = None if old is None else old.columns
        if kept < (self.dim if columns is None else len(columns)):
            flat = states.to(self.device).reshape(-1, self.dim)
            size = torch.maximum(self.ordinary.extremes.top, self.special.extremes.top)
            for part in rows:
                if len(part):
                    size = torch.maximum(size, flat.index_select(0, part.index).float().abs().amax(0))
            choice = torch.arange(self.dim, device=self.device) if columns is None else columns
            columns = choice[size[choice].topk(kept).indices].sort().values
        for group in (self.ordinary, self.special)[:groups]:
            if group.histogram is None:
                group.histogram = LogHistogram(self.dim, columns, self.device)
            elif columns is not None and columns is not group.histogram.columns:
                group.histogram = group.histogram.narrowed(columns)

    def view(self, name: str) -> tuple[GroupStats, InputCounts]:
        """Statistics of "all" or "without_special" tokens."""
        group = self.ordinary if name == "without_special" else self.ordinary.merged(self.special)
        return group, self.inputs[name]


class LargeCounts:
    """Token vectors with |h_d| >= `size` (6, LLM.int8's magnitude, unless given), by dimension.

    Attributes:
        count: token vectors seen.
        large: int64 [dim].
    """

    def __init__(self, dim: int, device: Any = "cpu", size: float = LARGE):
        import torch

        self.count, self.size = 0, size
        self.large = torch.zeros(dim, dtype=torch.int64, device=device)

    def add(self, values: "Tensor", rows: "Tensor | None" = None, top: "Tensor | None" = None) -> None:
        """Count `rows` of [row, dim], or all; `top` [dim] is a bound on each dimension's |h|, computed unless it is given."""
        import torch

        if top is None:
            top = torch.maximum(values.amax(0), -values.amin(0))
        # Only these dimensions have anything to count: a handful in most models. NaN in other rows hides none.
        columns = (~(top < self.size)).nonzero().squeeze(1)
        if len(columns):
            some = values.index_select(1, columns)
            self.large[columns] += ((some if rows is None else some[rows]).abs() >= self.size).sum(0)
        self.count += len(values if rows is None else rows)

    def share(self) -> "Tensor":
        """Share of token vectors in [0, 1], float64 [dim]."""
        return self.large / self.count if self.count else self.large.double()
