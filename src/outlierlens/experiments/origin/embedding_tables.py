"""One pass over an embedding table in blocks of rows: who is the minimum or maximum of how many rows.

    pass_ = TablePass(width=768, dims=(557,), first_row=0)
    for rows in checkpoint.read_rows(name, pass_.block_rows): pass_.add(rows)
    table = pass_.result(kind="position", name=name, stored="F32")

Memory does not grow with the number of rows, but for the columns of the named dimensions, and for tables of at most
`MAX_KEPT_ROWS` rows where every row's extremes are wanted. The outcome does not depend on how the rows are cut.
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.detection.rules import Rule, zscore
from outlierlens.errors import BadFile
from outlierlens.experiments.origin.result import (
    QUANTILES,
    Histogram,
    RowEntry,
    Share,
    TableDim,
    TableOrigin,
    TableRows,
)
from outlierlens.statistics.ranks import ranks_from_top

BLOCK_VALUES = 2**20  # float64 values of a block; a few such arrays live at once
BINS = 1024
SMALLEST_RANGE = 2.0**-30
MAX_KEPT_ROWS = 16_384
MAX_LISTED = 16  # rows that are named one by one
N_EXTREMES = 8
ENDS = ("smallest", "largest")
KEPT_KINDS = ("position", "segment", "class", "mask")


class BinCounter:
    """Counts in `BINS` equal bins over ±R, where R is the least power of two above every |value| seen.

    When a value does not fit, R doubles and neighbouring bins merge; as all edges are multiples of powers of two, the counts
    are those that the final bins would have had from the start.
    """

    def __init__(self) -> None:
        self.reach = SMALLEST_RANGE
        self.counts = np.zeros(BINS, dtype=np.int64)

    def add(self, values: np.ndarray) -> None:
        """Count finite values of any shape."""
        if values.size == 0:
            return
        largest = float(np.abs(values).max())
        while self.reach <= largest:
            self.reach *= 2
            merged = np.zeros_like(self.counts)
            merged[BINS // 4 : -(BINS // 4)] = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = merged
        self.counts += np.bincount(self.bins(values), minlength=BINS)

    def bins(self, values: np.ndarray) -> np.ndarray:
        """The bin of each value, in one flat array. Dividing by a power of two is exact, so no value is misplaced."""
        flat = np.floor(np.asarray(values, dtype=np.float64).ravel() / self.width).astype(np.int64)
        return flat + BINS // 2

    @property
    def width(self) -> float:
        """Of a bin."""
        return 2 * self.reach / BINS

    def histogram(self, mean: float, std: float) -> tuple[Histogram, slice]:
        """The bins from the first to the last with a count, and which of all bins they are."""
        filled = np.flatnonzero(self.counts)
        kept = slice(int(filled[0]), int(filled[-1]) + 1) if len(filled) else slice(BINS // 2, BINS // 2 + 1)
        low = (kept.start - BINS // 2) * self.width
        return Histogram(low, self.width, self.counts[kept].copy(), mean, std), kept


def histogram_of(values: np.ndarray) -> Histogram:
    """The histogram of a few values."""
    counter = BinCounter()
    counter.add(values)
    return counter.histogram(float(values.mean()), float(values.std()))[0]


def ranks_in_rows(rows: np.ndarray, dims: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank of the entries `dims` in each row [row, named]: from the top, from the bottom, by |value|; 1 is first.

    Ties share the best rank.
    """
    shape = (len(rows), len(dims))
    top, bottom, absolute = (np.empty(shape, dtype=np.int64) for _ in range(3))
    size = np.abs(rows)
    for column, dim in enumerate(dims):
        value = rows[:, dim, None]
        top[:, column] = 1 + (rows > value).sum(axis=1)
        bottom[:, column] = 1 + (rows < value).sum(axis=1)
        absolute[:, column] = 1 + (size > np.abs(value)).sum(axis=1)
    return top, bottom, absolute


class TablePass:
    """Collects what `TableOrigin` says of a table, block by block.

    Args:
        width: number of dimensions. dims: the named ones.
        first_row: rows before it are stored but never read, and count for nothing.
        keep_rows: keep every row's extremes; for tables of at most `MAX_KEPT_ROWS` rows.
        rule: what counts as far from the mean; by default `Rule()`.
        where: names the table in errors.
    """

    def __init__(
        self,
        width: int,
        dims: tuple[int, ...],
        *,
        first_row: int = 0,
        keep_rows: bool = False,
        rule: Rule | None = None,
        where: str = "table",
    ):
        self.width, self.dims = width, np.array(dims, dtype=np.int64)
        self.first_row, self.rule, self.where = first_row, rule or Rule(), where
        self.block_rows = max(1, BLOCK_VALUES // max(width, 1))
        self._seen = self._read = self._tied = 0
        # {dimensions that share a row's extreme: rows, by dimension}: whole numbers add up alike wherever blocks are cut.
        self._hits: dict[str, dict[int, np.ndarray]] = {end: {1: np.zeros(width, dtype=np.int64)} for end in ENDS}
        self._far = np.zeros(width, dtype=np.int64)
        self._z_sum, self._z_squares = np.zeros(len(dims)), np.zeros(len(dims))
        self._sum, self._peak = np.zeros(width), np.zeros(width)
        self._squares = 0.0
        self._values = BinCounter()
        self._columns: list[np.ndarray] = []
        self._stored_as = np.dtype(np.float64)
        self._listed: dict[tuple[str, int], list[int]] = {(end, dim): [] for end in ENDS for dim in dims}
        self._extremes: dict[int, list[RowEntry]] = {dim: [] for dim in dims}
        self._kept: list[tuple[np.ndarray, ...]] | None = [] if keep_rows else None

    def add(self, block: np.ndarray) -> None:
        """Take the next rows [row, dim] in; raises BadFile for a value that is not finite."""
        rows = np.asarray(block, dtype=np.float64)
        self._stored_as = block.dtype
        numbers = np.arange(self._seen, self._seen + len(rows))
        self._seen += len(rows)
        if not np.isfinite(rows).all():
            row, dim = np.argwhere(~np.isfinite(rows))[0]
            raise BadFile(f"{self.where}: row {numbers[row]} is {rows[row, dim]} at dimension {dim}; it is broken")
        low, high = rows.min(axis=1), rows.max(axis=1)
        spread = rows.std(axis=1, keepdims=True)
        flat = high == low
        z = (rows - rows.mean(axis=1, keepdims=True)) / np.where(flat[:, None], 1.0, spread)
        z[flat] = 0.0
        if self._kept is not None:
            size = np.abs(z)
            shared = ((rows == low[:, None]).sum(axis=1), (rows == high[:, None]).sum(axis=1))
            far = (size.max(axis=1), self.rule.above(size).sum(axis=1))
            named = (rows[:, self.dims], z[:, self.dims], *ranks_in_rows(rows, self.dims))
            self._kept.append((low, high, rows.argmin(axis=1), rows.argmax(axis=1), *shared, *far, *named))
        read = (numbers >= self.first_row) & ~flat
        if not read.all():
            rows, z, numbers, low, high = rows[read], z[read], numbers[read], low[read], high[read]
        if len(rows):
            self._count(rows, z, numbers, low, high)

    def _count(self, rows: np.ndarray, z: np.ndarray, numbers: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        """Counts over rows that are read."""
        self._read += len(rows)
        size = np.abs(z)
        sharers = []
        for end, extreme in (("smallest", low), ("largest", high)):
            hits = rows == extreme[:, None]
            shared = hits.sum(axis=1)
            row, dim = np.nonzero(hits)
            for sharing in np.unique(shared).tolist():
                counts = np.bincount(dim[shared[row] == sharing], minlength=self.width)
                self._hits[end][sharing] = self._hits[end].get(sharing, 0) + counts
            alone = shared[row] == 1
            for named in self.dims.tolist():
                listed = self._listed[end, named]
                listed += numbers[row[alone & (dim == named)]][: MAX_LISTED - len(listed)].tolist()
            sharers.append(shared)
        self._tied += int(((sharers[0] > 1) | (sharers[1] > 1)).sum())
        self._far += self.rule.above(size).sum(axis=0)
        named_z = z[:, self.dims]
        self._z_sum += named_z.sum(axis=0)
        self._z_squares += np.square(named_z).sum(axis=0)
        self._peak = np.maximum(self._peak, size.max(axis=0))
        self._sum += rows.sum(axis=0)
        self._squares += float(np.einsum("ij,ij->", rows, rows))
        self._values.add(rows)
        self._columns.append(rows[:, self.dims].astype(self._stored_as))
        for named in self.dims.tolist():
            self._keep_extremes(named, rows, z[:, named], numbers)

    def _keep_extremes(self, dim: int, rows: np.ndarray, z: np.ndarray, numbers: np.ndarray) -> None:
        kept = self._extremes[dim]
        size = np.abs(z)
        # A later row that ties with the last kept one does not replace it, so blocks may be cut anywhere.
        first = np.flatnonzero(size > (abs(kept[-1].z) if len(kept) == N_EXTREMES else -1.0))
        first = first[np.lexsort((first, -size[first]))[:N_EXTREMES]]
        top, bottom, absolute = ranks_in_rows(rows[first], np.array([dim]))
        kept += [
            RowEntry(int(numbers[i]), "", float(rows[i, dim]), float(z[i]), int(t), int(b), int(a))
            for i, t, b, a in zip(first, top[:, 0], bottom[:, 0], absolute[:, 0], strict=True)
        ]
        self._extremes[dim] = sorted(kept, key=lambda entry: (-abs(entry.z), entry.row))[:N_EXTREMES]

    def _apart(self, column: int, z: float) -> float:
        """How far a z of a named dimension is from the mean of its z over rows, in their standard deviations."""
        mean = self._z_sum[column] / self._read
        spread = float(np.sqrt(max(self._z_squares[column] / self._read - mean**2, 0.0)))
        return abs(z - mean) / spread if spread > 0 else 0.0

    @property
    def empty(self) -> bool:
        """Whether no row that is read has any spread."""
        return not self._read

    def result(self, *, kind: str, name: str, stored: str) -> TableOrigin:
        """What was collected; there must be something (`empty`)."""
        n_values = self._read * self.width
        mean = float(self._sum.sum()) / n_values
        std = float(np.sqrt(max(self._squares / n_values - mean**2, 0.0)))
        values, kept = self._values.histogram(mean, std)
        means = self._sum / self._read
        mean_z = _sigmas(means)
        columns = np.concatenate(self._columns)  # [row, named]
        counts = [np.bincount(self._values.bins(column), minlength=BINS)[kept] for column in columns.T]
        alone = {end: counts[1] for end, counts in self._hits.items()}
        tied = {end: np.sum(list(counts.values()), axis=0) - counts[1] for end, counts in self._hits.items()}
        shares = {
            end: np.sum([counts[sharing] / sharing for sharing in sorted(counts)], axis=0) / self._read
            for end, counts in self._hits.items()
        }
        far = self._far / self._read
        peak_sigma = _sigmas(self._peak)
        ranked = shares | {"far": far, "peak": self._peak, "mean": np.abs(mean_z)}
        ranks = {of: ranks_from_top(values) for of, values in ranked.items()}
        found = [
            TableDim(
                dim=dim,
                argmin_share=float(shares["smallest"][dim]),
                argmax_share=float(shares["largest"][dim]),
                sigma_share=float(far[dim]),
                argmin_rank=int(ranks["smallest"][dim]),
                argmax_rank=int(ranks["largest"][dim]),
                sigma_rank=int(ranks["far"][dim]),
                argmin_alone=int(alone["smallest"][dim]),
                argmax_alone=int(alone["largest"][dim]),
                argmin_rows=tuple(self._listed["smallest", dim]),
                argmax_rows=tuple(self._listed["largest", dim]),
                argmin_tied=int(tied["smallest"][dim]),
                argmax_tied=int(tied["largest"][dim]),
                peak_sigma=float(peak_sigma[dim]),
                peak_rank=int(ranks["peak"][dim]),
                peak_apart=self._apart(i, self._extremes[dim][0].z),
                mean=float(means[dim]),
                mean_z=float(mean_z[dim]),
                mean_rank=int(ranks["mean"][dim]),
                quantiles=np.quantile(columns[:, i], QUANTILES),
                outside_share=float(self.rule.beyond(columns[:, i], mean, std).mean()),
                counts=counts[i],
                extremes=tuple(self._extremes[dim]),
            )
            for i, dim in enumerate(self.dims.tolist())
        ]
        others = values.counts - np.sum(counts, axis=0) if counts else values.counts
        return TableOrigin(
            kind=kind,
            name=name,
            n_rows=self._seen,
            n_read=self._read,
            first_row=self.first_row,
            n_tied=self._tied,
            stored=stored,
            values=values,
            value_quantiles=_quantiles(values, others),
            n_mean_outside=int(self.rule.passes(mean_z).sum()) if self._read > 1 else 0,
            peak_median=float(np.median(self._peak)),
            n_peak_outside=int(self.rule.above(peak_sigma).sum()),
            dims=tuple(found),
            leaders=tuple(share for end in shares for share in _leaders(end, shares[end], self.dims)),
            rows=None if self._kept is None else TableRows(*map(np.concatenate, zip(*self._kept, strict=True))),
        )


def _sigmas(values: np.ndarray) -> np.ndarray:
    """Distance from the mean in standard deviations; 0 without any spread."""
    return np.asarray(zscore(values))


def _leaders(end: str, shares: np.ndarray, dims: np.ndarray) -> list[Share]:
    """The five highest shares, and the highest that is not a named dimension's."""
    order = np.lexsort((np.arange(len(shares)), -shares))
    others = order[~np.isin(order, dims)][:1]
    chosen = dict.fromkeys([*order[:5].tolist(), *others.tolist()])
    return [Share(end, dim, float(shares[dim])) for dim in chosen]


def _quantiles(histogram: Histogram, counts: np.ndarray) -> np.ndarray:
    """The middle of the bin that holds each of `QUANTILES`; NaN without any count."""
    total = int(counts.sum())
    if total == 0:
        return np.full(len(QUANTILES), np.nan)
    places = np.searchsorted(np.cumsum(counts), np.ceil(np.array(QUANTILES) * total))
    return np.asarray(histogram.low + (places + 0.5) * histogram.width)


def missing_tables(stack: BoundStack, tables: Sequence[TableOrigin], notes: list[str]) -> None:
    """Say which tables are not there, and why."""
    declared = stack.stack
    kinds = {one.kind for one in tables}
    projected = ", ".join(declared.embedding_linears)
    if projected and "token" not in kinds:
        notes.append(
            f"what is embedded has another width than the stream and is projected into it by {projected}, so rows of its "
            "tables have no dimension of the stream: the projection's own rows are measured"
        )
    if "position" not in kinds:
        notes.append(
            "no position table of the stream's width: positions enter elsewhere (rotary, relative, sinusoidal, by a "
            "convolution, or before a projection), so no position row can carry a dimension"
        )
    if "other" in kinds:
        names = ", ".join(one.name for one in tables if one.kind == "other")
        notes.append(
            f"what the rows of {names} stand for is not declared: counted, but not read as positions or tokens"
        )
