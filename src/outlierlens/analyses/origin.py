"""Where outlier dimensions come from, read off the weights: embedding tables, the norm after them, every norm by layer.

found = origin("distilbert-cased")                                       # needs neither torch nor the model in memory
found = origin("distilbert-cased", OriginOptions(dims=(143, 283, 557)))
found.of(557)[0]                                   # where 557 first stands out
found.entry("position", 557).z                     # of 557 in every position row
found.to_pandas("norms")                           # its rank in scale and bias of every norm, by layer

After Luo et al. (2021), section 3 and Figures 3 and 4 (which rows of the position table have the outlier as their minimum
or maximum; its rank in scale and bias of the norms), and Kovaleva et al. (2021), Figure 4 (is it outside 3 sigma among the
token, position and segment embeddings, and in the norm after them).

A dimension stands out
- in the first position row, where its |z| within that row is n_sigma or more and above the largest |z| that any dimension
  reaches in 95 % of the other rows (in every row some dimension is the smallest: that alone says nothing);
- in a row of the token table, where its largest |z| within any row is n_sigma or more above the average of the dimensions'
  largest ones, and twice that away from its own in other rows (a few tokens carry it, rather than all);
- in a table, where it is the minimum, or the maximum, of at least half of the rows, or its mean over rows lies n_sigma or more
  from the other dimensions' means (Kovaleva et al. 2021, Figure 4);
- in a norm or a write, where its |z| among the dimensions is n_sigma or more.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

import outlierlens.architectures as arch
import outlierlens.view.charts.draw as d
from outlierlens.analyses.origin_weights import (
    AFTER,
    BEFORE,
    EMBEDDINGS,
    FINAL,
    PROJECTION,
    Dims,
    OriginWeights,
    TablePass,
    missing,
    ranked,
)
from outlierlens.architectures import BoundStack, kind_of
from outlierlens.checkpoints import Checkpoint
from outlierlens.checkpoints.formats import folder_beside, token_texts
from outlierlens.detection.rules import Rule
from outlierlens.detection.weights import ASKED, ScanOptions, opened
from outlierlens.errors import pick
from outlierlens.options import FIND, Flag, Options
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import More, Quiet, Row
from outlierlens.view.charts.base import BAND, Spec, field, label, looks
from outlierlens.view.pictures import Lines, Picture
from outlierlens.view.section import Count, FineShare, Fraction, Rows, round_to

if TYPE_CHECKING:
    from outlierlens.models.load import LoadedModel
    from outlierlens.session import Session

MAX_ROWS_DRAWN = 600
MOST_ROWS = 0.5  # of a table: from here on a dimension is the extreme of it
CALM_SHARE = 0.95
IN_BLOCKS = ("reads", "after a write", "last")  # roles

# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OriginOptions(Options):
    """Which dimensions to follow, in every stack or {stack: dimensions}, and how to read the model."""

    dims: Annotated[Dims, Flag(read="options:chosen_dims", words=FIND)] = FIND
    """Follow these: 557,143; find: those that the rule finds."""
    named_by: Annotated[str, Flag(hidden=True)] = "given"
    """How `dims` were chosen, in words."""
    scan: Annotated[ScanOptions, ASKED] = ScanOptions()
    """The rule, whose n_sigma is also the threshold here; where the model is, and what the rule may read to name dimensions.
    Tables and linears of any size are read, in parts; beyond `max_read` bytes `notice` is told."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OriginPlace(Row):
    """A place of the stream where a dimension is an outlier; places are in the order of the stream."""

    stream: str = ""
    dim: int
    """dimension"""
    where: str
    """outlier in"""
    why: str
    """by"""
    likewise: int
    """others: dimensions that are outliers there by the same measure"""

    @property
    def said(self) -> str:
        """The place with its reason."""
        others = f"{self.likewise} other{'s do' if self.likewise > 1 else ' does'} too"
        return f"{self.where} ({self.why}; {others if self.likewise > 0 else 'no other dimension does'})"


@dataclass(frozen=True, kw_only=True)
class EmbeddingEntry(Row):
    """One dimension over the rows of an embedding table that are read."""

    note = "Smallest of, largest of: share of rows whose extreme it is; where k dimensions share it, 1/k of the row."

    stream: str = ""
    table: str
    dim: int
    """dimension"""
    smallest: Annotated[float, FineShare]
    """smallest of"""
    largest: Annotated[float, FineShare]
    """largest of"""
    smallest_alone: Annotated[int, Count, More] = 0
    """smallest alone: number of rows of which it alone is the smallest entry"""
    smallest_rows: Annotated[tuple[int, ...], Quiet] = ()
    """the first of those rows, at most 16"""
    largest_alone: Annotated[int, Count, More] = 0
    """largest alone"""
    largest_rows: Annotated[tuple[int, ...], Quiet] = ()
    n_tied: Annotated[int, Count, More] = 0
    """ties: rows whose extreme it shares, as in coarsely quantised tables"""
    first_z: float | None = None
    """z in first row: distance from the row's mean in standard deviations of the row, in the row of position 0"""
    first_rank: Annotated[int | None, More] = None
    """rank in first row: by |z|; ties share the best rank"""
    farthest_z: float
    """farthest z: where its |z| within a row is largest"""
    farthest_row: Annotated[int, Quiet]
    """of that z: a token id in a token table"""
    token: Annotated[str, Quiet] = ""
    """of that row, where a vocabulary lies beside the weights"""
    in_row: str
    farthest_rank: Annotated[int, More]
    """rank of farthest: its largest |z| among that of all dimensions"""
    farthest_sigma: Annotated[float, Quiet]
    """how far its largest |z| lies from the mean of all dimensions' largest ones, in their standard deviations"""
    farthest_apart: Annotated[float, Quiet]
    """how far its farthest z lies from the mean of its z over rows, in their standard deviations"""
    mean: Annotated[float, Quiet]
    """over rows"""
    mean_z: float | None = None
    """z of mean: of its mean over rows among the means of all dimensions"""
    mean_rank: int | None = None
    """rank: of that, by |z|"""
    outside: Annotated[float, FineShare, More]
    """entries beyond: share of its entries n_sigma or more from the mean of all entries of the table"""
    values: Annotated[tuple[float, ...], Quiet] = ()
    """of every row of a small table, unread ones included"""
    z: Annotated[tuple[float, ...], Quiet] = ()
    """of these within their rows"""
    ends: Annotated[tuple[int, ...], Quiet] = ()
    """−1 where it alone is the smallest entry of a row, 1 where it alone is the largest, else 0"""


@dataclass(frozen=True, kw_only=True)
class EmbeddingTable(Row):
    """One embedding table, and the share that any dimension has that is not named: the null."""

    stream: str = ""
    kind: str
    """table: token, position, segment, class (one vector), mask (one vector) or other"""
    name: Annotated[str, Quiet]
    n_rows: Annotated[int, Quiet]
    """rows that are stored"""
    n_read: Annotated[int, Count]
    """rows: without those that are never read, and those without any spread"""
    first_row: Annotated[int, Quiet] = 0
    """the first row that is read: position 0 in a position table"""
    stored: Annotated[str, More]
    """stored as"""
    smallest: Annotated[float | None, FineShare] = None
    """smallest of: share of the rows whose smallest entry the dimension is that is this most often"""
    smallest_dim: int | None = None
    """by dimension"""
    largest: Annotated[float | None, FineShare] = None
    """largest of"""
    largest_dim: int | None = None
    """by dimension"""
    median_farthest: float
    """median farthest |z|: over all dimensions"""
    n_mean_outside: Annotated[int, Quiet]
    """dimensions whose mean lies n_sigma or more from the mean of the means"""
    n_farthest_outside: Annotated[int, Quiet]
    """dimensions whose largest |z| lies n_sigma or more above the mean of those"""
    low: Annotated[tuple[float, ...], Quiet] = ()
    """smallest entry of each row, of small tables"""
    high: Annotated[tuple[float, ...], Quiet] = ()
    """largest entry"""
    top_z: Annotated[tuple[float, ...], Quiet] = ()
    """largest |z| of any dimension within the row"""
    n_far: Annotated[tuple[int, ...], Quiet] = ()
    """dimensions with |z| of n_sigma or more there"""

    def row(self, number: int, token: str = "") -> str:
        """What a row is called."""
        if self.kind in ("class", "mask"):
            return f"the {self.kind} embedding"
        if self.kind == "token":
            return f"token {token or number}"
        # A table whose first rows are never read counts positions from a later row: both numbers are said.
        return f"{self.kind} row {number}" + (f" (position {number - self.first_row})" if self.first_row else "")

    def ends_of(self, entry: EmbeddingEntry) -> Iterator[str]:
        """Where a dimension is the smallest or largest entry of the first row alone, or of more rows than any not named."""
        for end, word in (("smallest", "minimum"), ("largest", "maximum")):
            n, rows = getattr(entry, f"{end}_alone"), getattr(entry, f"{end}_rows")
            other = getattr(self, end) or 0.0
            if rows == (self.first_row,):
                yield f"the {word} of {self.row(rows[0])} and of no other of the {self.n_read:,} rows"
            elif n > 1 and getattr(entry, end) > other:
                yield f"the {word} of {n:,} of the {self.n_read:,} {self.kind} rows; any other of at most {other:.1%}"

    def first(self, entry: EmbeddingEntry) -> int:
        """How many dimensions are as far out in the first row that is read, if `entry` is farther than in other rows any is."""
        if entry.first_z is None or self.kind not in ("position", "class", "mask"):
            return 0
        others = self.top_z[self.first_row + 1 :]
        calm = float(np.quantile(others, CALM_SHARE)) if others else 0.0
        return self.n_far[self.first_row] if abs(entry.first_z) > calm else 0


@dataclass(frozen=True, kw_only=True)
class NormRank(Row):
    """One dimension in one vector of a layer: scale or bias of a norm, or what a linear writes."""

    stream: str = ""
    role: Annotated[str, Quiet]
    """embedding norm, reads (only scales the input of a part of the block), after a write (a norm of the stream or of a write,
    before the last), last (the block's last operation), final norm, or embedding projection"""
    module: str
    """norm: its name, relative to the block"""
    part: str
    """part: scale, bias, or weight (L2 norm of a linear's rows)"""
    layer: str
    """layer: embeddings, the block's number, or final"""
    dim: int
    """dimension"""
    value: float
    z: float
    """z: among the dimensions of the vector"""
    rank_z: int
    """rank by |z|: 1 is first; ties share the best rank"""
    rank_top: int
    """from the top"""
    rank_bottom: int
    """from the bottom"""
    rank_absolute: int
    """by |value|"""
    n_outside: int
    """dimensions beyond: with |z| of n_sigma or more"""
    other_dim: int | None = None
    """largest other: the dimension of largest |z| that is not named"""
    other_z: float | None = None
    """its z"""

    @property
    def is_first(self) -> bool:
        """Whether it has the largest |z|; none has where all are equal."""
        return self.rank_z == 1 and self.z != 0

    @property
    def name(self) -> str:
        """Norm and part, with what it does to the stream."""
        if self.role in (BEFORE, AFTER):
            return f"{self.role}, {self.part}"
        if self.role == PROJECTION:
            return self.module  # its part is the last word of its name
        return f"{self.module}, {self.part}{' (scales inputs)' * (self.role == 'reads')}"


def _of_panel(stream: str, module: str, part: str, row: NormRank) -> bool:
    return row.stream == stream and row.part == part and (row.module == module or row.role in (BEFORE, AFTER))


def _of_positions(stream: str, row: EmbeddingEntry) -> bool:
    return row.stream == stream and row.table == "position" and bool(row.values)


@dataclass(frozen=True, kw_only=True)
class PositionRows(Picture):
    """The span of every position row, with the named dimensions in it, marked where they alone are its end."""

    captioned: bool = False

    def legend(self, found: Finding) -> list[str]:
        """What band and marks are."""
        return ["band: all dimensions of a row", "marks: the named one alone is its smallest or largest entry"]

    def panel(self, found: Finding) -> Spec:
        assert isinstance(found, Origin)
        entries = [row for row in self.chosen(found) if isinstance(row, EmbeddingEntry)]
        table, shown = found.table("position", entries[0].stream), looks([one.dim for one in entries], found.dims)
        ends = {row for one in entries for row in np.flatnonzero(one.ends).tolist() if row >= table.first_row}
        spread = np.linspace(table.first_row, table.n_rows - 1, MAX_ROWS_DRAWN).astype(int).tolist()
        drawn = sorted({*spread, *sorted(ends)[:MAX_ROWS_DRAWN]})
        band = [{"row": row, "low": round_to(table.low[row]), "high": round_to(table.high[row])} for row in drawn]
        lines = [
            {"row": row, "name": label(one.dim), "value": round_to(one.values[row]), "z": round_to(one.z[row]),
             "end": one.ends[row]}
            for one in entries for row in drawn
        ]  # fmt: skip
        x = field("row", "row of the position table", scale={"domain": [-1, table.n_rows], "nice": False})
        y = field("value", "entry", scale={"zero": False, "nice": True})
        marks = [one for one in lines if one["end"]]
        layers = [
            d.area(band, x=x, **d.between(y=y), color=BAND, opacity=0.75),
            d.line(lines, x=x, y=y, color=d.dim_colour(shown), strokeWidth=1.1, opacity=0.85),
            *d.dim_marks(marks, shown, x, y, d.columns(name="dimension:N", row="row", value="entry", z="z in the row")),
        ]
        return d.panel(layers, 640, 300, self.title)


@dataclass(frozen=True, kw_only=True)
class Origin(Finding):
    """Where the named dimensions of a model come from, from its weights alone.

    Attributes:
        named: {stream: dimensions that are followed}; "" where the model has one stream, as in the tables.
        n_sigma: what counts as standing out, in standard deviations.
        bytes_read, total_bytes: of the weights.
    """

    title = "Where they come from"

    places: tuple[OriginPlace, ...] = ()
    """(Where they are outliers)"""
    entries: tuple[EmbeddingEntry, ...] = ()
    """Embedding tables"""
    tables: tuple[EmbeddingTable, ...] = ()
    """Most of any dimension that is not named"""
    norms: tuple[NormRank, ...] = ()
    """Norms and writes: layers, first in: where its |z| passes, and where it is the largest. Ranks, and how many others pass:
    in the layer where it is strongest."""
    named: dict[str, tuple[int, ...]]
    n_sigma: float
    bytes_read: int
    total_bytes: int

    def of(self, dim: int, stream: str = "") -> tuple[OriginPlace, ...]:
        """Where a dimension stands out, in the order of the stream; () where it does not."""
        return tuple(one for one in self.places if (one.stream, one.dim) == (stream, dim))

    def table(self, kind: str, stream: str = "") -> EmbeddingTable:
        """The table of a kind; raises BadInput where there is none."""
        return pick([one for one in self.tables if one.stream == stream], f"there is no {kind} table", kind=kind)

    def entry(self, table: str, dim: int, stream: str = "") -> EmbeddingEntry:
        """A dimension in the table of a kind; raises BadInput where there is none."""
        mine = [one for one in self.entries if one.stream == stream]
        return pick(mine, f"dimension {dim} was not followed in a {table} table", table=table, dim=dim)

    def sentences(self) -> Iterator[str]:
        if not any(self.named.values()):
            yield "No dimension is followed."
        for stream, dim in ((stream, dim) for stream, dims in self.named.items() for dim in dims):
            name, places = f"{stream} {dim}".strip(), self.of(dim, stream)
            more = f"; then {' · '.join(place.where for place in places[1:4])}" if places[1:] else ""
            where = (
                f"is first an outlier in {places[0].said}{more}" if places else "is not an outlier in the weights read"
            )
            yield f"{name}: {where}{' and on' * (len(places) > 4)}."
            rows = (one for one in self.entries if (one.stream, one.table, one.dim) == (stream, "position", dim))
            yield from (
                f"{name} is {said}." for entry in rows for said in self.table("position", stream).ends_of(entry)
            )

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """Of norms and writes a line for each norm and dimension."""
        if name != "norms":
            return super().laid_out(name, rows, head, note, verbose=verbose)
        rule, lines = Rule(n_sigma=self.n_sigma), []
        places: dict[tuple[Any, ...], list[NormRank]] = {}
        for row in self.norms:
            places.setdefault((row.stream, row.role, row.module, row.part, row.dim), []).append(row)
        for (stream, role, module, part, dim), mine in places.items():
            peak = max(mine, key=lambda row: abs(row.z))
            counts = (sum(bool(rule.passes(one.z)) for one in mine), sum(one.is_first for one in mine))
            ranks = (peak.rank_z, peak.rank_top, peak.rank_bottom, peak.rank_absolute)
            norm = f"{stream} {role if role in (BEFORE, AFTER) else module}".strip()
            others, of = peak.n_outside - int(rule.passes(peak.z)), (Fraction(n, len(mine)) for n in counts)
            lines.append((norm, part, dim, *of, peak.z, peak.layer, *ranks, others))
        sigma = f"≥ {self.n_sigma:g}σ"
        heads = (
            "norm", "part", "dim", f"layers {sigma}", "first in", "strongest z", "in layer", "rank |z|", "from top",
            "from bottom", "by |value|", f"others {sigma}",
        )  # fmt: skip
        return Rows(head, heads, tuple(lines), note)

    def drawn(self) -> tuple[Picture, ...]:
        """The position rows, and z in each norm of the blocks by layer, with the norms before and behind them."""
        made: list[Picture] = []
        for stream in self.named:
            said = f"{stream}: " if stream else ""
            rows = PositionRows(rows="entries", x="dim", y="first_z", by="dim", where=partial(_of_positions, stream))
            made.append(replace(rows, title=f"{said}Smallest and largest entry of every position row"))
            lines = Lines(rows="norms", x="layer", y="z", by="dim", captioned=False)
            norms = [row for row in self.norms if row.stream == stream and row.role in IN_BLOCKS]
            for module, part in dict.fromkeys((row.module, row.part) for row in norms):
                where = partial(_of_panel, stream, module, part)
                made.append(replace(lines, title=f"{said}{module}, {part}", where=where))
        return tuple(made)


# --- where a dimension stands out --------------------------------------------------------------------------------


def signed(value: float) -> str:
    """A number with its sign, for reading."""
    return f"{value:+z.1f}".replace("-", "−")


def places_in_table(table: EmbeddingTable, entry: EmbeddingEntry, rule: Rule) -> Iterator[OriginPlace]:
    """Where a dimension is an outlier in an embedding table."""
    place = partial(OriginPlace, stream=entry.stream, dim=entry.dim)
    if (n := table.first(entry)) and rule.passes(entry.first_z or 0.0):
        why = f"z {signed(entry.first_z or 0.0)} within the row"
        yield place(where=table.row(table.first_row), why=why, likewise=n - 1)
    if table.kind in ("class", "mask"):
        return
    if table.kind == "token" and rule.above(entry.farthest_sigma) and entry.farthest_apart >= 2 * rule.n_sigma:
        why = f"z {signed(entry.farthest_z)} within the row"
        where = table.row(entry.farthest_row, entry.token)
        yield place(where=where, why=why, likewise=table.n_farthest_outside - 1)
    for share, word in ((entry.smallest, "minimum"), (entry.largest, "maximum")):
        # Of a table of one or two rows, half is nothing.
        if share >= MOST_ROWS and table.n_read > 2:
            why = f"{word} of {share:.1%} of its {table.n_read:,} rows"
            yield place(where=f"{table.kind} table", why=why, likewise=0)
    if entry.mean_z is not None and rule.passes(entry.mean_z):
        why = f"mean over rows: z {signed(entry.mean_z)}, rank {entry.mean_rank}"
        yield place(where=f"{table.kind} table", why=why, likewise=table.n_mean_outside - 1)


def places_in_norms(norms: Iterable[NormRank], rule: Rule) -> list[OriginPlace]:
    """Where one dimension is first an outlier in each norm or write, in the order of the stream."""
    found: list[tuple[float, OriginPlace]] = []
    for name, rows in groupby(norms, key=lambda row: row.name):
        mine = list(rows)
        outside = [row for row in mine if rule.passes(row.z)]
        if not outside:
            continue
        first, more = outside[0], f"; so in {len(outside)} of {len(mine)} layers" if len(mine) > 1 else ""
        order = {EMBEDDINGS: -1.0, FINAL: np.inf}.get(first.layer)
        where = name if order is not None else f"layer {first.layer}, {name}"
        why = f"z {signed(first.z)}, rank {first.rank_z} by |z|{more}"
        place = OriginPlace(stream=first.stream, dim=first.dim, where=where, why=why, likewise=first.n_outside - 1)
        found.append((float(first.layer) if order is None else order, place))
    return [place for _, place in sorted(found, key=lambda one: one[0])]


# --- how it is measured ------------------------------------------------------------------------------------------


def origin(model: str, options: OriginOptions | None = None) -> Origin:
    """Trace outlier dimensions of `model` to their sources: a sample, directory, file or hub id.

    Raises:
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see those.
        BadInput: a dimension that no stack has.
        TooMuchToRead: the rule that is to find the dimensions needs tensors of more than `max_read` bytes.
    """
    options = options or OriginOptions()
    scan = options.scan
    with opened(model, scan) as checkpoint:
        return _measured(
            checkpoint, arch.bound_stacks(checkpoint, scan.row), options, folder_beside(model, scan.subfolder)
        )


def origin_live(loaded: "LoadedModel", options: OriginOptions | None = None) -> Origin:
    """`origin` on the weights of a loaded model as they are now."""
    checkpoint = loaded.weights
    options = options or OriginOptions()
    options = replace(options, scan=replace(options.scan, max_read=checkpoint.total_bytes))
    return _measured(checkpoint, loaded.stacks, options)


def run(session: "Session", options: OriginOptions) -> Origin:
    """Follow what the options name."""
    options = replace(options, named_by="--dims", scan=session.scanning(options.scan))
    return origin(session.subject.model, options)


def _measured(
    checkpoint: Checkpoint, bound: Sequence[BoundStack], options: OriginOptions, vocabulary: Path | None = None
) -> Origin:
    """The measurement of every stack of one open checkpoint."""
    weights, rule, given = OriginWeights(checkpoint, options.scan), options.scan.rule, options.dims
    weights.check_dims(bound, given)
    places: list[OriginPlace] = []
    read: list[tuple[EmbeddingTable, list[EmbeddingEntry]]] = []
    norms: list[NormRank] = []
    notes: list[str] = []
    named: dict[str, tuple[int, ...]] = {}
    for stack in bound:
        stream, own = stack.name if len(bound) > 1 else "", list(stack.stack.notes)
        asked = weights.measured(stack, given == FIND)
        dims = named[stream] = weights.followed(stack, asked, given, own)
        tables = []
        for param in (one for one in stack.embeddings if one.axis == -1):  # a linear's rows are among the norms
            collected = weights.table(param, stack, dims)
            if collected.empty:
                own.append(f"{param.name}: no row differs from a constant, so it says nothing")
                continue
            stored = {"name": param.name, "stored": checkpoint.tensors[param.name].dtype}
            tables.append(_table(collected, vocabulary, stream=stream, kind=kind_of(param.name), **stored))
        ranks = [
            NormRank(stream=stream, role=role, module=module, part=part, layer=layers[i], **one)
            for role, module, part, layers, values in weights.vectors_of(stack, asked)
            for i, one in ranked(values, dims, rule)
        ]
        for column, dim in enumerate(dims):
            places += (place for table, entries in tables for place in places_in_table(table, entries[column], rule))
            places += places_in_norms((row for row in ranks if row.dim == dim), rule)
        missing(stack, {table.kind: table.name for table, _ in tables}, own)
        notes += [f"{stream}: {note}" if stream else note for note in own]
        read, norms = read + tables, norms + ranks
    return Origin(
        provenance=Provenance.now(checkpoint.name, weights.digest.hexdigest(), adapter=checkpoint.adapter),
        about=About(
            stack=", ".join(stack.name for stack in bound), layers=tuple(range(max(one.n_layers for one in bound))),
            dims=tuple(dict.fromkeys(str(dim) for dims in named.values() for dim in dims)),
            named_by=f"the rule {rule.name} on the weights" if given == FIND else options.named_by,
        ),
        places=tuple(places), entries=tuple(one for _, entries in read for one in entries),
        tables=tuple(table for table, _ in read), norms=tuple(norms), named=named, n_sigma=rule.n_sigma,
        bytes_read=checkpoint.bytes_read, total_bytes=checkpoint.total_bytes, notes=(*checkpoint.notes, *notes),
    )  # fmt: skip


def _table(collected: TablePass, vocabulary: Path | None, **shared: Any) -> tuple[EmbeddingTable, list[EmbeddingEntry]]:
    """One embedding table and the named dimensions in it; `shared` are fields of the table."""
    table, entries, made = EmbeddingTable(**shared, **collected.table()), [], list(collected.entries())
    wanted = (one["farthest_row"] for one in made)
    texts = token_texts(vocabulary, wanted) if table.kind == "token" else {}
    for one in made:
        row, token = one["farthest_row"], texts.get(one["farthest_row"], "")
        in_row = f"{row} {token}".strip()
        entries.append(EmbeddingEntry(stream=table.stream, table=table.kind, token=token, in_row=in_row, **one))
    return table, entries
