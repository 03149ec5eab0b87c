"""One pass over an embedding table in blocks of rows: who is the minimum or maximum of how many rows.

    pass_ = TablePass(width=768, dims=(557,), first_row=0)
    for rows in checkpoint.read_rows(name, pass_.block_rows): pass_.add(rows)
    pass_.table(), list(pass_.entries())      # fields of `origin.EmbeddingTable`, and of an `origin.EmbeddingEntry` each

Memory does not grow with the number of rows, but for the columns of the named dimensions, and for tables of at most
`MAX_KEPT_ROWS` rows where every row's extremes are wanted. The outcome does not depend on how the rows are cut.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from outlierlens.detection.rules import Rule, zscore
from outlierlens.errors import BadFile
from outlierlens.statistics.ranks import ranks_from_top

BLOCK_VALUES = 2**20  # float64 values of a block; a few such arrays live at once
MAX_KEPT_ROWS = 16_384
MAX_LISTED = 16  # rows that are named one by one
ENDS = ("smallest", "largest")
KEPT_KINDS = ("position", "segment", "class", "mask")


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


def ranked(values: np.ndarray, dims: tuple[int, ...], rule: Rule) -> Iterator[tuple[int, dict[str, Any]]]:
    """(layer, fields of an `origin.NormRank`) of the named dimensions in vectors [layer, dim]."""
    named, z = np.array(dims, dtype=np.int64), zscore(values)
    size = np.abs(z)
    names = ("rank_top", "rank_bottom", "rank_absolute", "rank_z")
    ranks = dict(zip(names, (*ranks_in_rows(values, named), ranks_in_rows(size, named)[0]), strict=True))
    outside = rule.above(size).sum(axis=1)
    others = np.setdiff1d(np.arange(values.shape[1]), named)
    for i in range(len(values)):
        other = int(others[size[i, others].argmax()]) if len(others) else None
        shared = {
            "n_outside": int(outside[i]),
            "other_dim": other,
            "other_z": None if other is None else float(z[i, other]),
        }
        for column, dim in enumerate(dims):
            at = {name: int(found[i, column]) for name, found in ranks.items()}
            yield i, {"dim": dim, "value": float(values[i, dim]), "z": float(z[i, dim])} | at | shared


class TablePass:
    """Collects what `origin` says of an embedding table, block by block.

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
        self._seen = self._read = 0
        # {dimensions that share a row's extreme: rows, by dimension}: whole numbers add up alike wherever blocks are cut.
        self._hits: dict[str, dict[int, np.ndarray]] = {end: {1: np.zeros(width, dtype=np.int64)} for end in ENDS}
        self._z_sum, self._z_squares = np.zeros(len(dims)), np.zeros(len(dims))
        self._sum, self._peak = np.zeros(width), np.zeros(width)
        self._squares = 0.0
        self._columns: list[np.ndarray] = []
        self._listed: dict[tuple[str, int], list[int]] = {(end, dim): [] for end in ENDS for dim in dims}
        self._farthest = [(-1, 0.0)] * len(dims)  # (row, z)
        self._kept: list[tuple[np.ndarray, ...]] | None = [] if keep_rows else None

    def add(self, block: np.ndarray) -> None:
        """Take the next rows [row, dim] in; raises BadFile for a value that is not finite."""
        rows = np.asarray(block, dtype=np.float64)
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
            ends = np.zeros((len(rows), len(self.dims)), dtype=np.int64)
            for sign, extreme in ((-1, low), (1, high)):
                hits = rows == extreme[:, None]
                ends += sign * (hits[:, self.dims] & (hits.sum(axis=1) == 1)[:, None])
            far = (size.max(axis=1), self.rule.above(size).sum(axis=1))
            ranks = ranks_in_rows(size, self.dims)[0]
            self._kept.append((low, high, *far, rows[:, self.dims], z[:, self.dims], ends, ranks))
        read = (numbers >= self.first_row) & ~flat
        if read.any():
            self._count(rows[read], z[read], numbers[read], {"smallest": low[read], "largest": high[read]})
            self._columns.append(block[read][:, self.dims])

    def _count(self, rows: np.ndarray, z: np.ndarray, numbers: np.ndarray, extremes: dict[str, np.ndarray]) -> None:
        """Counts over rows that are read."""
        self._read += len(rows)
        size = np.abs(z)
        for end, extreme in extremes.items():
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
        for i, column in enumerate(z[:, self.dims].T):
            most = int(np.abs(column).argmax())
            # A later row that ties with the farthest does not replace it, so blocks may be cut anywhere.
            if self._farthest[i][0] < 0 or abs(column[most]) > abs(self._farthest[i][1]):
                self._farthest[i] = int(numbers[most]), float(column[most])
        self._z_sum += z[:, self.dims].sum(axis=0)
        self._z_squares += np.square(z[:, self.dims]).sum(axis=0)
        self._peak = np.maximum(self._peak, size.max(axis=0))
        self._sum += rows.sum(axis=0)
        self._squares += float(np.einsum("ij,ij->", rows, rows))

    @property
    def empty(self) -> bool:
        """Whether no row that is read has any spread."""
        return not self._read

    def _share(self, end: str) -> np.ndarray:
        """Of rows whose extreme each dimension is, [dim]; where k share it, 1/k of the row."""
        counts = self._hits[end]
        total: np.ndarray = np.sum([counts[sharing] / sharing for sharing in sorted(counts)], axis=0)
        return total / self._read

    def _rows(self) -> list[np.ndarray]:
        """What is kept of every row, over all blocks."""
        return [np.concatenate(part) for part in zip(*self._kept, strict=True)] if self._kept else []

    def table(self) -> dict[str, Any]:
        """What is said of the table; there must be something (`empty`)."""
        found: dict[str, Any] = {
            "n_rows": self._seen,
            "n_read": self._read,
            "first_row": self.first_row,
        }
        others = np.setdiff1d(np.arange(self.width), self.dims)
        for end in ENDS if len(others) else ():
            share = self._share(end)[others]
            found |= {end: float(share.max()), f"{end}_dim": int(others[share.argmax()])}
        names = ("low", "high", "top_z", "n_far")
        return found | {
            "median_farthest": float(np.median(self._peak)),
            "n_mean_outside": int(self.rule.passes(zscore(self._sum / self._read)).sum()) if self._read > 1 else 0,
            "n_farthest_outside": int(self.rule.above(zscore(self._peak)).sum()),
            **{name: tuple(values.tolist()) for name, values in zip(names, self._rows(), strict=False)},
        }

    def entries(self) -> Iterator[dict[str, Any]]:
        """What is said of each named dimension."""
        n_values = self._read * self.width
        mean = float(self._sum.sum()) / n_values
        std = float(np.sqrt(max(self._squares / n_values - mean**2, 0.0)))
        means, columns, kept = self._sum / self._read, np.concatenate(self._columns), self._rows()[4:]
        mean_z, apart = zscore(means), zscore(self._peak)
        mean_ranks, far_ranks = ranks_from_top(np.abs(mean_z)), ranks_from_top(self._peak)
        share = {end: self._share(end) for end in ENDS}
        for i, dim in enumerate(self.dims.tolist()):
            row, z = self._farthest[i]
            own = self._z_sum[i] / self._read
            spread = float(np.sqrt(max(self._z_squares[i] / self._read - own**2, 0.0)))
            found: dict[str, Any] = {"dim": dim, "n_tied": 0}
            for end, counts in self._hits.items():
                found |= {end: float(share[end][dim]), f"{end}_alone": int(counts[1][dim])}
                found |= {f"{end}_rows": tuple(self._listed[end, dim])}
                found["n_tied"] += int(sum(one[dim] for sharing, one in counts.items() if sharing > 1))
            if self._read > 1:
                found |= {"mean_z": float(mean_z[dim]), "mean_rank": int(mean_ranks[dim])}
            if kept:
                value, in_row, ends, ranks = (part[:, i].tolist() for part in kept)
                found |= {"values": tuple(value), "z": tuple(in_row), "ends": tuple(ends)}
                if self.first_row < self._seen:
                    found |= {"first_z": in_row[self.first_row], "first_rank": ranks[self.first_row]}
            yield found | {
                "farthest_z": z, "farthest_row": row, "farthest_rank": int(far_ranks[dim]),
                "farthest_sigma": float(apart[dim]), "farthest_apart": abs(z - own) / spread if spread > 0 else 0.0,
                "mean": float(means[dim]), "outside": float(self.rule.beyond(columns[:, i], mean, std).mean()),
            }  # fmt: skip
