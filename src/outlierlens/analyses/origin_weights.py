"""The weights that `origin` reads: which dimensions the rule names, embedding tables in parts, one value a dimension of norms.

    weights = Weights(checkpoint, ScanOptions())
    for role, module, part, layers, values in weights.vectors_of(stack, []): ...      # values [layer, dim]
    weights.table(param, stack, dims).entries()

Nothing is read twice; `weights.digest` grows with what is read.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from outlierlens.analyses.origin_tables import KEPT_KINDS, MAX_KEPT_ROWS, TablePass
from outlierlens.architectures import BoundStack, Param, first_row, kind_of
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.rules import LastOperation, find
from outlierlens.detection.weights import ScanOptions, Site, check_size, measure, per_dim, sites_of
from outlierlens.errors import BadFile, BadInput, TooMuchToRead
from outlierlens.options import FIND, Find

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
