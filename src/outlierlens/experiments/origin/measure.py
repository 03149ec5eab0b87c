"""Where outlier dimensions come from, read off the weights: embedding tables, the norm after them, every norm by layer.

found = origin("distilbert-cased")                                       # needs neither torch nor the model in memory
found = origin("distilbert-cased", OriginOptions(dims=(143, 283, 557)))
found.stacks[0].verdicts[2].places[0]                                    # where 557 first stands out

After Luo et al. (2021), section 3 and Figures 3 and 4 (which rows of the position table have the outlier as their minimum
or maximum; its rank in scale and bias of the norms), and Kovaleva et al. (2021), Figure 4 (is it outside 3 sigma among the
token, position and segment embeddings, and in the norm after them).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack, Param, first_row, kind_of
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.checkpoints.vocabulary import folder_beside, token_texts
from outlierlens.detection.observe.result import Observation
from outlierlens.detection.rules import Measured, Rule, find, zscore
from outlierlens.detection.scan.measure import Site, check_size, measure, per_dim, sites_of
from outlierlens.errors import BadFile, BadInput, TooMuchToRead, command
from outlierlens.experiments.origin.embedding_tables import (
    KEPT_KINDS,
    MAX_KEPT_ROWS,
    TablePass,
    histogram_of,
    missing_tables,
    ranks_in_rows,
)
from outlierlens.experiments.origin.options import OriginOptions, Traced
from outlierlens.experiments.origin.result import NormOrigin, Origin, StackOrigin, TableOrigin
from outlierlens.experiments.origin.verdict import verdict
from outlierlens.options import FIND
from outlierlens.results.document import Provenance, load
from outlierlens.session import Session

if TYPE_CHECKING:
    from outlierlens.models.load import LoadedModel

MAX_NAMED = 64
MODEL = "embeddings"  # the layer of what stands before block 0


def origin(model: str, options: OriginOptions | None = None) -> Origin:
    """Say where outlier dimensions of `model` come from: a sample, directory, file or hub id.

    Raises:
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see those.
        BadInput: a dimension that no stack has.
        TooMuchToRead: the rule that is to find the dimensions needs tensors of more than `max_read` bytes.
    """
    options = options or OriginOptions()
    scan = options.scan
    with open_checkpoint(
        model, revision=scan.revision, subfolder=scan.subfolder, token=scan.token, offline=scan.offline
    ) as checkpoint:
        stacks = arch.stacks_for(checkpoint, scan.row)
        bound = arch.bind(stacks, checkpoint.tensors, checkpoint.config)
        return _Measurement(checkpoint, options, folder_beside(model, scan.subfolder)).run(bound)


def origin_live(loaded: "LoadedModel", options: OriginOptions | None = None, *, command: str = "") -> Origin:
    """`origin` on the weights of a loaded model as they are now."""
    from outlierlens.checkpoints.stored import LiveCheckpoint

    checkpoint = LiveCheckpoint(loaded.model, name=loaded.name, config=loaded.config)
    options = options or OriginOptions()
    options = replace(options, scan=replace(options.scan, max_read=checkpoint.total_bytes))
    return _Measurement(checkpoint, options, None).run(loaded.stacks, command)


def run(session: Session, options: Traced) -> Origin:
    """Follow what the options name."""
    how = replace(options.how, named_by="--dims", scan=session.scanning(options.how.scan))
    if options.observed is not None:
        how = replace(how, dims=dims_of_file(options.observed), named_by=f"{options.observed.name} (observe)")
    found = origin(session.subject.model, how)
    session.draw = {"which": options.picture, "stream": options.stack}
    return found


class _Measurement:
    """Reads one open checkpoint; the fingerprint grows with what is read."""

    def __init__(self, checkpoint: Checkpoint, options: OriginOptions, vocabulary: Path | None):
        self.checkpoint, self.options, self.vocabulary = checkpoint, options, vocabulary
        self.rule = options.scan.rule
        self.digest = hashlib.sha256(checkpoint.header_digest().encode())
        self.tables: dict[tuple[str, tuple[int, ...]], TableOrigin | None] = {}
        self.read: dict[str, np.ndarray] = {}  # one value per dimension, by parameter

    def run(self, bound: Sequence[BoundStack], command: str = "") -> Origin:
        """The measurement of every stack."""
        self._check_dims(bound)
        stacks = tuple(self.stack(one) for one in bound)
        checkpoint = self.checkpoint
        return Origin(
            provenance=Provenance.now(checkpoint.name, self.digest.hexdigest(), command=command),
            model_type=str(checkpoint.config.get("model_type", "")),
            source=checkpoint.kind,
            named_by=f"the rule {self.rule.name} on the weights"
            if self.options.dims == FIND
            else self.options.named_by,
            n_sigma=self.rule.n_sigma,
            stacks=stacks,
            bytes_read=checkpoint.bytes_read,
            total_bytes=checkpoint.total_bytes,
            notes=checkpoint.notes,
        )

    def _check_dims(self, bound: Sequence[BoundStack]) -> None:
        given = self.options.dims
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

    def stack(self, stack: BoundStack) -> StackOrigin:
        """Everything about one stack."""
        width, notes = self.width(stack), list(stack.stack.notes)
        measured = self.measured(stack)
        dims = self.named(stack, measured, notes)
        tables = tuple(self.embedding_tables(stack, width, dims, notes))
        norms = tuple(self.norms(stack, width, dims, measured))
        missing_tables(stack, tables, notes)
        return StackOrigin(
            stack=stack.name,
            hidden_size=width,
            n_layers=stack.n_layers,
            dims=dims,
            tables=tables,
            norms=norms,
            verdicts=tuple(verdict(column, dims, tables, norms, self.rule) for column in range(len(dims))),
            notes=tuple(notes),
        )

    # --- which dimensions ------------------------------------------------------------------------------------------

    def measured(self, stack: BoundStack) -> list[tuple[Site, Measured]]:
        """What the scan measures, where it names the dimensions or is a write by itself (blocks that end in no norm)."""
        scan = self.options.scan
        asked = self.options.dims == FIND
        sites = sites_of(stack, scan.view if asked else "last")
        if asked and not sites:
            raise BadInput(f"{self.checkpoint.name}: its blocks declare no reading norms; use --view last, or --dims")
        if not asked and stack.ends_in_norm:
            return []
        if asked:
            try:
                check_size(self.checkpoint, sites, scan)
            except TooMuchToRead as error:
                raise TooMuchToRead(f"{error}; or name dimensions with --dims") from None
        else:
            names = {param.name for site in sites for layer in site.scale for param in layer}
            self._tell("what the blocks write last", sum(self.checkpoint.tensors[name].nbytes for name in names))
        return [(site, self.measure(site, self.width(stack))) for site in sites]

    def _tell(self, what: str, n_bytes: int) -> None:
        """Say that much will be read; all of it is, in parts: without one table, no place could be called the first."""
        notice = self.options.scan.notice
        if notice and n_bytes > self.options.scan.max_read:
            notice(f"{self.checkpoint.name}: reads {what}, {n_bytes / 1e6:,.0f} MB, in parts")

    def measure(self, site: Site, width: int) -> Measured:
        """What the scan sees of a site; norms are read once for all that is asked of them."""
        if not site.is_norm:
            return measure(self.checkpoint, site, self.digest)[0]
        vectors = self.vectors([param for layer in (*site.scale, *site.bias) for param in layer], width)
        scale, bias = (
            np.stack([vectors[layer[0].name] for layer in part]) if all(part) else None
            for part in (site.scale, site.bias)
        )
        assert scale is not None  # a stack is not bound without its last norm
        return Measured(scale, bias, where=f"{self.checkpoint.name}, {site.name}")

    def named(self, stack: BoundStack, measured: list[tuple[Site, Measured]], notes: list[str]) -> tuple[int, ...]:
        """The dimensions to follow in this stack."""
        given, width = self.options.dims, self.width(stack)
        if given != FIND:
            mine = tuple(dict.fromkeys(given.get(stack.name, ()) if isinstance(given, Mapping) else given))
            if absent := [dim for dim in mine if dim >= width]:
                notes.append(f"has {width} dimensions: without {', '.join(map(str, absent))}")
            return tuple(dim for dim in mine if dim < width)
        rule = self.options.scan.rule
        found = list(dict.fromkeys(outlier.dim for _, values in measured for outlier in find(values, rule)[0]))
        if not found:
            notes.append(
                f"the rule {rule.name} finds no outlier at {rule.sigmas}, so no dimension is followed: "
                "name some with --dims"
            )
        if len(found) > MAX_NAMED:
            notes.append(f"the rule finds {len(found)} dimensions; the first {MAX_NAMED} are followed")
        return tuple(found[:MAX_NAMED])

    # --- embedding tables ------------------------------------------------------------------------------------------

    def embedding_tables(
        self, stack: BoundStack, width: int, dims: tuple[int, ...], notes: list[str]
    ) -> Iterable[TableOrigin]:
        """Each embedding table of the stream's width, read in blocks of rows."""
        for param in stack.embeddings:
            if param.axis != -1:
                continue  # a linear: its rows are among the norms
            info = self.checkpoint.tensors[param.name]
            self._tell(param.name, info.nbytes)
            if (param.name, dims) not in self.tables:
                self.tables[param.name, dims] = self.table(param, width, dims)
            made = self.tables[param.name, dims]
            if made is None:
                notes.append(f"{param.name}: no row differs from a constant, so it says nothing")
            else:
                yield made

    def table(self, param: Param, width: int, dims: tuple[int, ...]) -> TableOrigin | None:
        """One pass over a table; None where no row that is read has any spread."""
        checkpoint, kind = self.checkpoint, kind_of(param.name)
        info = checkpoint.tensors[param.name]
        collected = TablePass(
            width, dims,
            first_row=first_row(checkpoint.config) if kind == "position" else 0,
            keep_rows=kind in KEPT_KINDS and info.size // width <= MAX_KEPT_ROWS,
            rule=self.rule, where=f"{checkpoint.name}, {param.name}",
        )  # fmt: skip
        self.digest.update(param.name.encode())
        for rows in checkpoint.read_rows(param.name, collected.block_rows):
            self.digest.update(np.ascontiguousarray(rows).tobytes())
            collected.add(rows)
        if collected.empty:
            return None
        made = collected.result(kind=kind, name=param.name, stored=info.dtype)
        return self.with_texts(made) if kind == "token" else made

    def with_texts(self, made: TableOrigin) -> TableOrigin:
        """The table with its extreme rows' tokens, where a vocabulary lies beside the weights."""
        texts = token_texts(self.vocabulary, (entry.row for dim in made.dims for entry in dim.extremes))
        return replace(
            made,
            dims=tuple(
                replace(dim, extremes=tuple(replace(e, token=texts.get(e.row, "")) for e in dim.extremes))
                for dim in made.dims
            ),
        )

    # --- norms and linears -----------------------------------------------------------------------------------------

    def norms(
        self, stack: BoundStack, width: int, dims: tuple[int, ...], measured: list[tuple[Site, Measured]]
    ) -> Iterable[NormOrigin]:
        """Every norm in the order of the stream, and what linears write where no norm follows them."""
        declared = stack.stack
        linears = [param for param in stack.embeddings if param.axis != -1]
        wanted = [*linears, *stack.embedding_norm, *(p for m in stack.norms.values() for layer in m for p in layer)]
        vectors = self.vectors([*wanted, *stack.final_norm], width)
        make = _NormMaker(vectors, dims, self.rule)
        for param in linears:
            part = "weight" if len(self.checkpoint.tensors[param.name].shape) > 1 else "bias"
            yield make("embedding projection", param.name.removeprefix(stack.prefix), part, {MODEL: param})
        for part, param in zip(("scale", "bias"), stack.embedding_norm, strict=False):
            yield make("embedding norm", declared.embedding_norm, part, {MODEL: param}, keep_histogram=True)
        for module, layers in stack.norms.items():
            role = "reads" if module in declared.reading_norms else "after a write"
            role = "last" if module == declared.last_norm else role
            for i, part in enumerate(("scale", "bias")):
                if any(len(params) > i for params in layers):
                    by_layer = {str(n): layers[n][i] for n in stack.weight_layers if len(layers[n]) > i}
                    yield make(role, module, part, by_layer)
        if not stack.ends_in_norm:
            for site, values in measured:
                if site.is_norm:
                    continue  # reading norms, by --view reading: they stand above
                layer_names = tuple(map(str, stack.weight_layers))
                yield make.of("last", site.name, "weight", layer_names, values.scale)
                if values.bias is not None:
                    yield make.of("last", site.name, "bias", layer_names, values.bias)
        for part, param in zip(("scale", "bias"), stack.final_norm, strict=False):
            yield make("final norm", declared.final_norm, part, {"final": param})

    def vectors(self, params: Sequence[Param], width: int) -> dict[str, np.ndarray]:
        """One value a dimension of each parameter; raises BadFile for another width or a value that is not finite."""
        by_name = {param.name: param for param in params}
        fresh: dict[str, np.ndarray] = {}
        for name, values in self.checkpoint.read([name for name in by_name if name not in self.read]):
            vector = per_dim(values, by_name[name])
            if vector.shape != (width,):
                raise BadFile(f"{self.checkpoint.name}: {name} is for {len(vector)} dimensions, the stream has {width}")
            if not np.isfinite(vector).all():
                dim = int(np.flatnonzero(~np.isfinite(vector))[0])
                raise BadFile(f"{self.checkpoint.name}: {name} is {vector[dim]} at dimension {dim}; it is broken")
            fresh[name] = vector
        for name in sorted(fresh):
            self.digest.update(name.encode() + fresh[name].tobytes())
        self.read |= fresh
        return {name: self.read[name] for name in by_name}


class _NormMaker:
    """Makes a `NormOrigin` of vectors."""

    def __init__(self, vectors: Mapping[str, np.ndarray], dims: tuple[int, ...], rule: Rule):
        self.vectors, self.dims, self.rule = vectors, np.array(dims, dtype=np.int64), rule

    def __call__(
        self, role: str, module: str, part: str, params: Mapping[str, Param], *, keep_histogram: bool = False
    ) -> NormOrigin:
        values = np.stack([self.vectors[param.name] for param in params.values()])
        made = self.of(role, module, part, tuple(params), values)
        return replace(made, histogram=histogram_of(values)) if keep_histogram else made

    def of(self, role: str, module: str, part: str, layers: tuple[str, ...], values: np.ndarray) -> NormOrigin:
        """From values [layer, dim]."""
        z = zscore(values)
        top, bottom, absolute = ranks_in_rows(values, self.dims)
        size = np.abs(z)
        others = size.copy()
        others[:, self.dims] = -1.0
        other = others.argmax(axis=1)
        rows = np.arange(len(values))
        nobody = others[rows, other] < 0
        return NormOrigin(
            role=role,
            module=module,
            part=part,
            layers=layers,
            value=values[:, self.dims],
            z=z[:, self.dims],
            rank_top=top,
            rank_bottom=bottom,
            rank_absolute=absolute,
            rank_z=ranks_in_rows(size, self.dims)[0],
            n_outside=self.rule.above(size).sum(axis=1),
            n_flat=int((size.max(axis=1) == 0).sum()),
            other_dim=np.where(nobody, -1, other),
            other_z=np.where(nobody, 0.0, z[rows, other]),
        )


def dims_of_file(path: Path) -> dict[str, tuple[int, ...]]:
    """`dims_of_observation` of a file; raises BadInput where it holds something else."""
    loaded = load(path)
    if not isinstance(loaded, Observation):
        raise BadInput(
            f"{path} holds a {type(loaded).__name__}, not an Observation; "
            f"make it with {command('observe', 'MODEL', '-o', path)}"
        )
    return dims_of_observation(loaded)


def dims_of_observation(found: Observation) -> dict[str, tuple[int, ...]]:
    """{stack: dimensions} that the rules on activations found in an `Observation`; raises BadInput where there is none."""
    dims = {stack.stack: tuple(dict.fromkeys(o.dim for o in stack.outliers)) for stack in found.stacks}
    if not any(dims.values()):
        raise BadInput("the observation found no outlier in any stack; name dimensions with --dims")
    return dims
