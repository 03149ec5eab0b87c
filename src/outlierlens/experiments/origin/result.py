"""Where outlier dimensions come from: what `origin` measures, as plain data without torch.

found.stacks[0].verdicts[0].places         # where the first named dimension stands out, in the order of the stream
found.stacks[0].table("position").rows     # minimum and maximum of every position row, and the named dimensions there
found.stacks[0].norms                      # rank of every named dimension in scale and bias of every norm, by layer
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.errors import pick
from outlierlens.results.document import Provenance, Result

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class Histogram:
    """Counts of values in equal bins: `counts[i]` values v with low + i·width <= v < low + (i + 1)·width.

    `width` is a power of two and `low` a multiple of it, so edges are exact. `mean` and `std` (the population's) are of the
    values themselves, not of the bins.
    """

    low: float
    width: float
    counts: Annotated[np.ndarray, "bin"]
    mean: float
    std: float

    def __len__(self) -> int:
        """Number of bins."""
        return len(self.counts)

    @property
    def edges(self) -> np.ndarray:
        """The bins' edges [bin + 1]."""
        return self.low + self.width * np.arange(len(self.counts) + 1)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def sigma(self, value: float) -> float:
        """How many standard deviations `value` lies from the mean; 0 where there is no spread."""
        return (value - self.mean) / self.std if self.std > 0 else 0.0


@dataclass(frozen=True)
class RowEntry:
    """One dimension in one row of a table.

    Attributes:
        row: number of the row: a token id in a token table.
        token: the row's text where a vocabulary lies beside the weights, else "".
        value: the entry; z: its distance from the row's mean in standard deviations of the row.
        rank_top, rank_bottom: among the row's dimensions, 1 = largest / smallest value; ties share the best rank.
        rank_absolute: the same by |value|.
    """

    row: int
    token: str
    value: float
    z: float
    rank_top: int
    rank_bottom: int
    rank_absolute: int


@dataclass(frozen=True)
class TableDim:
    """One dimension over the rows of an embedding table that are read.

    Attributes:
        argmin_share, argmax_share: share of rows in [0, 1] whose smallest / largest entry it is (Luo et al. 2021, Fig. 3,
            4); a row whose extreme k dimensions share counts as 1/k for each of them.
        sigma_share: share of rows in which it lies n_sigma or more from the row's mean.
        argmin_rank, argmax_rank, sigma_rank: rank of these shares among all dimensions, 1 = highest; ties share the best.
        argmin_alone, argmax_alone: number of rows of which it alone is the extreme.
        argmin_rows, argmax_rows: the first of those rows, at most 16.
        argmin_tied, argmax_tied: number of rows whose extreme it shares.
        peak_sigma, peak_rank: the dimension's largest |z| within any row, against that of all dimensions: its distance from
            their mean in their standard deviations, and its rank.
        peak_apart: how far that |z|'s row lies from the dimension's other rows: from the mean of its z over rows, in their
            standard deviations.
        mean, mean_z, mean_rank: its mean over rows; that mean's z among the means of all dimensions; its rank by |z|.
        quantiles: of its values over rows, at `QUANTILES`.
        outside_share: share of its values n_sigma or more from the mean of all values of the table.
        counts: of its values, in the bins of the table's `values`.
        extremes: the rows where its |z| is largest, strongest first.
    """

    dim: int
    argmin_share: float
    argmax_share: float
    sigma_share: float
    argmin_rank: int
    argmax_rank: int
    sigma_rank: int
    argmin_alone: int
    argmax_alone: int
    argmin_rows: tuple[int, ...]
    argmax_rows: tuple[int, ...]
    argmin_tied: int
    argmax_tied: int
    peak_sigma: float
    peak_rank: int
    peak_apart: float
    mean: float
    mean_z: float
    mean_rank: int
    quantiles: Annotated[np.ndarray, "7"]
    outside_share: float
    counts: Annotated[np.ndarray, "bin"]
    extremes: tuple[RowEntry, ...]


@dataclass(frozen=True)
class TableRows:
    """Every row of a small table, unread ones included.

    Attributes:
        low, high: smallest and largest entry [row]; argmin, argmax: whose they are [row].
        n_low, n_high: how many dimensions share the smallest / largest entry [row].
        top_z: largest |z| of any dimension within the row [row]; n_far: dimensions with |z| >= n_sigma there [row].
        value, z: of the named dimensions [row, named].
        rank_top, rank_bottom, rank_absolute: see `RowEntry` [row, named].
    """

    low: Annotated[np.ndarray, "row"]
    high: Annotated[np.ndarray, "row"]
    argmin: Annotated[np.ndarray, "row"]
    argmax: Annotated[np.ndarray, "row"]
    n_low: Annotated[np.ndarray, "row"]
    n_high: Annotated[np.ndarray, "row"]
    top_z: Annotated[np.ndarray, "row"]
    n_far: Annotated[np.ndarray, "row"]
    value: Annotated[np.ndarray, "row named"]
    z: Annotated[np.ndarray, "row named"]
    rank_top: Annotated[np.ndarray, "row named"]
    rank_bottom: Annotated[np.ndarray, "row named"]
    rank_absolute: Annotated[np.ndarray, "row named"]


@dataclass(frozen=True)
class Share:
    """What share of a table's rows a dimension is the extreme of: the null that a named dimension is held against."""

    end: str  # "smallest" or "largest"
    dim: int
    share: float


@dataclass(frozen=True)
class TableOrigin:
    """One embedding table.

    Attributes:
        kind: "token", "position", "segment", "class" (one vector), "mask" (one vector) or "other".
        n_rows: rows stored; n_read: rows that shares are over: without the unread ones and those without any spread.
        first_row: the first row that is read: position 0 in a position table.
        n_tied: rows whose smallest or largest entry several dimensions share (coarsely quantised values).
        stored: the type of the stored values, in the file's own word.
        values: histogram of all values of the rows that are read.
        value_quantiles: of all other dimensions' values, at `QUANTILES`, from `values`: exact to a bin.
        n_mean_outside: dimensions whose mean lies n_sigma or more from the mean of the means.
        peak_median: median over dimensions of the largest |z| that each has within any row.
        n_peak_outside: dimensions whose largest |z| lies n_sigma or more above the mean of those.
        dims: the named dimensions, in their order.
        leaders: the dimensions that are most often the smallest, and the largest, entry: named or not.
        rows: only of small tables.
    """

    kind: str
    name: str
    n_rows: Annotated[int, "row"]
    n_read: int
    first_row: int
    n_tied: int
    stored: str
    values: Annotated[Histogram, "bin"]
    value_quantiles: Annotated[np.ndarray, "7"]
    n_mean_outside: int
    peak_median: float
    n_peak_outside: int
    dims: Annotated[tuple[TableDim, ...], "named"]
    leaders: tuple[Share, ...]
    rows: TableRows | None = None

    def most_of_others(self, end: str, dims: tuple[int, ...]) -> Share | None:
        """The highest share of a dimension that is not among `dims`."""
        return next((one for one in self.leaders if one.end == end and one.dim not in dims), None)


@dataclass(frozen=True)
class NormOrigin:
    """One vector a layer with a value for each dimension: scale or bias of a norm, or what a linear writes.

    Attributes:
        role: "embedding norm", "reads" (only scales what a part of the block reads), "after a write" (a norm of the stream
            or of what was written, before the last), "last" (the block's last operation), "final norm", "embedding
            projection".
        module: its name, relative to the block; part: "scale", "bias", or "weight" (L2 norm of a linear's rows).
        layers: which rows there are: "embeddings", block numbers, or "final".
        value, z: of the named dimensions [layer, named]; z over the dimensions of the vector.
        rank_top, rank_bottom, rank_absolute, rank_z: among its dimensions by value from the top, from the bottom, by
            |value| and by |z|; 1 is first, ties share the best rank [layer, named].
        n_outside: dimensions with |z| >= n_sigma [layer]. n_flat: layers in which all dimensions are equal.
        other_dim, other_z: the dimension with the largest |z| that is not named, and that z [layer]; −1 without any.
        histogram: of the values; kept for the embedding norm.
    """

    role: str
    module: str
    part: str
    layers: Annotated[tuple[str, ...], "layer"]
    value: Annotated[np.ndarray, "layer named"]
    z: Annotated[np.ndarray, "layer named"]
    rank_top: Annotated[np.ndarray, "layer named"]
    rank_bottom: Annotated[np.ndarray, "layer named"]
    rank_absolute: Annotated[np.ndarray, "layer named"]
    rank_z: Annotated[np.ndarray, "layer named"]
    n_outside: Annotated[np.ndarray, "layer"]
    n_flat: int
    other_dim: Annotated[np.ndarray, "layer"]
    other_z: Annotated[np.ndarray, "layer"]
    histogram: Histogram | None = None

    def first(self, column: int) -> np.ndarray:
        """Whether a named dimension has the largest |z| [layer]; none has where all are equal."""
        return (self.rank_z[:, column] == 1) & (self.z[:, column] != 0)


@dataclass(frozen=True)
class Place:
    """A place of the stream where a dimension stands out.

    `where` names it ("position row 0", "embedding norm, bias", "layer 0, output.LayerNorm, scale"), `why` says by how much.
    `n_likewise` dimensions stand out there by the same measure, this one included.
    """

    where: str
    why: str
    n_likewise: int


@dataclass(frozen=True)
class Verdict:
    """Where one dimension comes from, as far as the weights tell.

    `places` are in the order of the stream, the first being where it first stands out; none where it does not.
    """

    dim: int
    places: tuple[Place, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class StackOrigin:
    """Tables, norms and verdicts of one residual stream. `dims` are the named dimensions."""

    stack: str
    hidden_size: int
    n_layers: int
    dims: Annotated[tuple[int, ...], "named"]
    tables: tuple[TableOrigin, ...]
    norms: tuple[NormOrigin, ...]
    verdicts: Annotated[tuple[Verdict, ...], "named"]
    notes: tuple[str, ...] = ()

    def table(self, kind: str) -> TableOrigin:
        """The table of a kind; raises BadInput where there is none."""
        return pick(self.tables, f"stack {self.stack!r} has no {kind} table", kind=kind)


@dataclass(frozen=True)
class Origin(Result):
    """Where the named dimensions of a model come from, from its weights alone.

    Attributes:
        named_by: how the dimensions were chosen, in words.
        n_sigma: what counts as standing out, in standard deviations.
    """

    provenance: Provenance
    model_type: str
    source: str
    named_by: str
    n_sigma: float
    stacks: tuple[StackOrigin, ...]
    bytes_read: int
    total_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def threshold(self) -> Rule:
        """What counts as standing out, as a rule to ask."""
        return Rule(n_sigma=self.n_sigma)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per stack, norm, part, layer and named dimension."""
        for stack in self.stacks:
            for norm in stack.norms:
                for i, layer in enumerate(norm.layers):
                    for column, dim in enumerate(stack.dims):
                        yield {
                            "stack": stack.stack,
                            "role": norm.role,
                            "module": norm.module,
                            "part": norm.part,
                            "layer": layer,
                            "dim": dim,
                            "value": float(norm.value[i, column]),
                            "z": float(norm.z[i, column]),
                            "rank_top": int(norm.rank_top[i, column]),
                            "rank_bottom": int(norm.rank_bottom[i, column]),
                            "rank_absolute": int(norm.rank_absolute[i, column]),
                            "rank_z": int(norm.rank_z[i, column]),
                            "n_outside": int(norm.n_outside[i]),
                            "other_dim": int(norm.other_dim[i]),
                            "other_z": float(norm.other_z[i]),
                        }
