"""The weights that `origin` reads: which dimensions the rule names, embedding tables in parts, one value a dimension of norms.

    weights = Weights(checkpoint, ScanOptions())
    for role, module, part, layers, values in weights.vectors_of(stack, []): ...      # values [layer, dim]
    weights.table(param, stack, dims).entries()

Nothing is read twice; `weights.digest` grows with what is read.

One pass over an embedding table in blocks of rows: who is the minimum or maximum of how many rows.

    pass_ = TablePass(width=768, dims=(557,), first_row=0)
    for rows in checkpoint.read_rows(name, pass_.block_rows): pass_.add(rows)
    pass_.table(), list(pass_.entries())      # fields of `origin.EmbeddingTable`, and of an `origin.EmbeddingEntry` each

Memory does not grow with the number of rows, but for the columns of the named dimensions, and for tables of at most
`MAX_KEPT_ROWS` rows where every row's extremes are wanted. The outcome does not depend on how the rows are cut.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from outlierlens.architectures import BoundStack, Param, first_row, kind_of
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.rules import LastOperation, Rule, find, zscore
from outlierlens.detection.weights import ScanOptions, Site, check_size, measure, per_dim, sites_of
from outlierlens.errors import BadFile, BadInput, TooMuchToRead
from outlierlens.options import FIND, Find
from outlierlens.statistics.ranks import ranks_from_top

# --- tables ----------------------------------------------------------------------------------------------------------


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


MAX_NAMED = 64
EMBEDDINGS, FINAL = "embeddings", "final"  # layers of what stands before block 0 and behind the last
BEFORE, AFTER, PROJECTION = "embedding norm", "final norm", "embedding projection"  # roles
Dims = tuple[int, ...] | Mapping[str, tuple[int, ...]] | Find


class OriginWeights:
    """Reads one open checkpoint, of which `scan` says the rule and how much may be read to name dimensions."""

    def __init__(self, checkpoint: Checkpoint, scan: ScanOptions):
        self.checkpoint, self.scan, self.rule = checkpoint, scan, scan.rule
        self.digest = hashlib.sha256(checkpoint.header_digest().encode())
        self._tables: dict[tuple[str, tuple[int, ...]], TablePass] = {}
        self._read: dict[str, np.ndarray] = {}  # one value per dimension, by parameter

    def check_dims(self, bound: Sequence[BoundStack], given: Dims) -> None:
        """Refuse dimensions or streams that are not there, and more than `MAX_NAMED`; raises BadInput."""
        if given == FIND:
            return
        widths = {stack.name: self.width(stack) for stack in bound}
        if isinstance(given, Mapping):
            if unknown := [name for name in given if name not in widths]:
                raise BadInput(f"{self.checkpoint.name} has no stack {unknown[0]!r}; its stacks: {', '.join(widths)}")
            given = tuple(dim for dims in given.values() for dim in dims)
        too_large = [dim for dim in given if not 0 <= dim < max(widths.values())]
        if too_large:
            wide = ", ".join(f"{name} {width}" for name, width in widths.items())
            raise BadInput(f"dimension {too_large[0]} does not exist in {self.checkpoint.name}; widths: {wide}")
        if len(set(given)) > MAX_NAMED:
            raise BadInput(f"{len(set(given))} dimensions; origin follows at most {MAX_NAMED} at once")

    def width(self, stack: BoundStack) -> int:
        """Number of dimensions of the stream."""
        first = stack.scale[0][0]
        return self.checkpoint.tensors[first.name].shape[first.axis]

    def measured(self, stack: BoundStack, asked: bool) -> list[tuple[Site, LastOperation]]:
        """What the scan measures, where it names the dimensions or is a write by itself (blocks that end in no norm)."""
        sites = sites_of(stack, self.scan.view if asked else "last")
        if asked and not sites:
            raise BadInput(
                f"{self.checkpoint.name}: its blocks declare no reading norms; use --rule view=last, or --dims"
            )
        if not asked and stack.ends_in_norm:
            return []
        if asked:
            try:
                check_size(self.checkpoint, sites, self.scan)
            except TooMuchToRead as error:
                raise TooMuchToRead(f"{error}; or name dimensions with --dims") from None
        else:
            names = {param.name for site in sites for layer in site.scale for param in layer}
            self._tell("what the blocks write last", sum(self.checkpoint.tensors[name].nbytes for name in names))
        return [(site, self._measure(site, self.width(stack))) for site in sites]

    def _tell(self, what: str, n_bytes: int) -> None:
        """Say that much will be read; all of it is, in parts: without one table, no place could be called the first."""
        notice = self.scan.notice
        if notice and n_bytes > self.scan.max_read:
            notice(f"{self.checkpoint.name}: reads {what}, {n_bytes / 1e6:,.0f} MB, in parts")

    def _measure(self, site: Site, width: int) -> LastOperation:
        """What the scan sees of a site; norms are read once for all that is asked of them."""
        if not site.is_norm:
            return measure(self.checkpoint, site, self.digest)[0]
        vectors = self._vectors([param for layer in (*site.scale, *site.bias) for param in layer], width)
        scale, bias = (
            np.stack([vectors[layer[0].name] for layer in part]) if all(part) else None
            for part in (site.scale, site.bias)
        )
        assert scale is not None  # a stack is not bound without its last norm
        return LastOperation(scale, bias, where=f"{self.checkpoint.name}, {site.name}")

    def followed(
        self, stack: BoundStack, measured: list[tuple[Site, LastOperation]], given: Dims, notes: list[str]
    ) -> tuple[int, ...]:
        """The dimensions to follow in this stack."""
        width = self.width(stack)
        if given != FIND:
            mine = tuple(dict.fromkeys(given.get(stack.name, ()) if isinstance(given, Mapping) else given))
            if absent := [dim for dim in mine if dim >= width]:
                notes.append(f"has {width} dimensions: without {', '.join(map(str, absent))}")
            return tuple(dim for dim in mine if dim < width)
        rule = self.rule
        found = list(dict.fromkeys(outlier.dim for _, values in measured for outlier in find(values, rule)))
        if not found:
            notes.append(
                f"the rule {rule.name} finds no outlier at {rule.sigmas}, so no dimension is followed: "
                "name some with --dims"
            )
        if len(found) > MAX_NAMED:
            notes.append(f"the rule finds {len(found)} dimensions; the first {MAX_NAMED} are followed")
        return tuple(found[:MAX_NAMED])

    def table(self, param: Param, stack: BoundStack, dims: tuple[int, ...]) -> TablePass:
        """A table of the stream's width, read in blocks of rows; streams may share one."""
        checkpoint, kind, width = self.checkpoint, kind_of(param.name), self.width(stack)
        info = checkpoint.tensors[param.name]
        self._tell(param.name, info.nbytes)
        if (param.name, dims) not in self._tables:
            collected = self._tables[param.name, dims] = TablePass(
                width, dims, first_row=first_row(checkpoint.config) if kind == "position" else 0, rule=self.rule,
                keep_rows=kind in KEPT_KINDS and info.size // width <= MAX_KEPT_ROWS,
                where=f"{checkpoint.name}, {param.name}",
            )  # fmt: skip
            self.digest.update(param.name.encode())
            for rows in checkpoint.read_rows(param.name, collected.block_rows):
                self.digest.update(np.ascontiguousarray(rows).tobytes())
                collected.add(rows)
        return self._tables[param.name, dims]

    def vectors_of(
        self, stack: BoundStack, measured: list[tuple[Site, LastOperation]]
    ) -> Iterator[tuple[str, str, str, tuple[str, ...], np.ndarray]]:
        """(role, module, part, layers, values [layer, dim]) of every norm in the order of the stream, and of linears."""
        declared, width = stack.stack, self.width(stack)
        linears = [param for param in stack.embeddings if param.axis != -1]
        wanted = [*linears, *stack.embedding_norm, *(p for m in stack.norms.values() for layer in m for p in layer)]
        vectors = self._vectors([*wanted, *stack.final_norm], width)
        parts = ("scale", "bias")
        for param in linears:
            part = "weight" if len(self.checkpoint.tensors[param.name].shape) > 1 else "bias"
            yield PROJECTION, param.name.removeprefix(stack.prefix), part, (EMBEDDINGS,), vectors[param.name][None]
        for part, param in zip(parts, stack.embedding_norm, strict=False):
            yield BEFORE, declared.embedding_norm, part, (EMBEDDINGS,), vectors[param.name][None]
        for module, layers in stack.norms.items():
            role = "reads" if module in declared.reading_norms else "after a write"
            role = "last" if module == declared.last_norm else role
            for i, part in enumerate(parts):
                mine = {str(n): layers[n][i] for n in stack.weight_layers if len(layers[n]) > i}
                if mine:
                    yield role, module, part, tuple(mine), np.stack([vectors[param.name] for param in mine.values()])
        for site, values in measured if not stack.ends_in_norm else ():
            if not site.is_norm:  # reading norms, of view reading, stand above
                names = tuple(map(str, stack.weight_layers))
                yield "last", site.name, "weight", names, values.scale
                if values.bias is not None:
                    yield "last", site.name, "bias", names, values.bias
        for part, param in zip(parts, stack.final_norm, strict=False):
            yield AFTER, declared.final_norm, part, (FINAL,), vectors[param.name][None]

    def _vectors(self, params: Sequence[Param], width: int) -> dict[str, np.ndarray]:
        """One value a dimension of each parameter; raises BadFile for another width or a value that is not finite."""
        by_name = {param.name: param for param in params}
        fresh: dict[str, np.ndarray] = {}
        for name, values in self.checkpoint.read([name for name in by_name if name not in self._read]):
            vector = per_dim(values, by_name[name])
            if vector.shape != (width,):
                raise BadFile(f"{self.checkpoint.name}: {name} is for {len(vector)} dimensions, the stream has {width}")
            if not np.isfinite(vector).all():
                dim = int(np.flatnonzero(~np.isfinite(vector))[0])
                raise BadFile(f"{self.checkpoint.name}: {name} is {vector[dim]} at dimension {dim}; it is broken")
            fresh[name] = vector
        for name in sorted(fresh):
            self.digest.update(name.encode() + fresh[name].tobytes())
        self._read |= fresh
        return {name: self._read[name] for name in by_name}


def missing(stack: BoundStack, names: Mapping[str, str], notes: list[str]) -> None:
    """Missing tables, and why, of {kind: name} of those that are."""
    projected = ", ".join(stack.stack.embedding_linears)
    if projected and "token" not in names:
        notes.append(
            f"the embeddings have another width than the stream and are projected into it by {projected}, so rows of its "
            "tables have no dimension of the stream: the projection's own rows are measured"
        )
    if "position" not in names:
        notes.append(
            "no position table of the stream's width: positions enter elsewhere (rotary, relative, sinusoidal, by a "
            "convolution, or before a projection), so no position row can carry a dimension"
        )
    if others := names.get("other"):
        notes.append(
            f"what the rows of {others} stand for is not declared: counted, but not read as positions or tokens"
        )
