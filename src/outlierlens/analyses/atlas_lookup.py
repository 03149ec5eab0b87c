"""What an atlas knows of a model: by its name alone, or by its norms, of which a few kilobytes are read.

    found = lookup("mpnet-base")                       # in the atlas: nothing is read but its rows
    found = lookup("runs/my-model/model.safetensors")  # its relatives, told by its norms
    found.streams[0].dims, found.streams[0].parent
    likeness(child, parent)                            # of two rows: a p-value, and how close they are

No model is run, and torch is not needed. Two models share an origin, or not, by the vectors of their norms:

Training from random values gives no dimension of a residual stream a place: any order of them is as likely. So under the null
that two models were trained apart, the dimensions of one may be permuted among themselves, and nothing changes. What follows
training (fine-tuning, merging, pruning, rounding) keeps their order, and with it who has large and small norms.

Every vector becomes normal scores of its ranks (van der Waerden), layer by layer, scales and biases apart, so that one outlier
does not decide. T is the sum of products of the scores of the two models. Over all permutations of the dimensions T has
the mean 0 and the variance Σ_lm G_lm H_lm / (d − 1), G and H being the Gram matrices of the two models' vectors
(Hoeffding 1951, theorem 2), and is near a normal distribution where d is large. Of models that differ in their layers
the mean over layers is compared, which a student cut from its teacher's layers keeps.

Positions that are fixed sines give dimensions a place before training: two models that have them may be alike without a
common origin.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated

import numpy as np

from outlierlens.analyses.atlas_rows import AtlasRow, read_rows, rows_of
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.samples import PACKAGED
from outlierlens.detection.weights import MAX_READ, ScanOptions
from outlierlens.options import Flag
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import More, Quiet, Row
from outlierlens.statistics.ranks import holm, middle_ranks
from outlierlens.view.section import Change, P, few, number_of_layers, runs

if TYPE_CHECKING:
    from outlierlens.session import ModelSource, Session

ATLAS = PACKAGED / "atlas.parquet"
COSTS = PACKAGED / "atlas-costs.json"
EQUAL = 1e-3  # of values: what half precision leaves of equal ones
LEVEL = 1e-6  # a parent is named where the p-value, corrected over all models compared, is at most this
NEAREST = 5  # relatives that are shown
LEAST_WIDTH = 32  # below it the normal distribution is no good guide


@dataclass(frozen=True, kw_only=True)
class LookupOptions:
    """Where to look."""

    atlas: Path | None = None
    """Rows of `atlas build`: its folder or a Parquet file. Default: the atlas that comes with the package."""
    max_read: Annotated[int, Flag(into="--model-args", read="options:parse_bytes")] = MAX_READ
    """Refuse a rule that has to read more than this."""


# --- what is found ---------------------------------------------------------------------------------------------------


class LayerRuns(tuple[int, ...]):
    """Ascending layers, written as "0–3, 5"."""

    def written(self) -> str:
        return runs(self)


@dataclass(frozen=True, kw_only=True)
class StreamOutlier(Row):
    """An outlier dimension of a residual stream."""

    stack: str
    """stream"""
    dim: int
    """dimension"""
    z_scale: float
    """z scale: of largest magnitude over layers, with its sign"""
    z_bias: float | None
    """z bias: likewise; none without a bias"""
    layers: Annotated[tuple[int, ...], LayerRuns]
    """layers: in which |z| of the scale passes"""
    p_holm: Annotated[float, P]
    """p holm: under independent positions per layer, corrected over the dimensions of the stream"""


@dataclass(frozen=True, kw_only=True)
class Relative(Row):
    """A stream of the atlas as wide as the model's."""

    note = "p: at least this likeness between two models that were trained apart."

    stack: str
    """stream: of the model"""
    model: str
    """model: in the atlas"""
    other_stack: Annotated[str, More]
    """its stream"""
    family: str
    layers: int
    closeness: float
    """correlation of norms: mean over vectors, in [−1, 1]"""
    p: Annotated[float, P]
    """p: under the null that the two were trained apart"""
    p_holm: Annotated[float, P]
    """p holm: corrected over all that were compared"""
    origin: str
    equal: Annotated[bool, Quiet]
    """equal: whether the vectors are the same but for rounding"""


@dataclass(frozen=True, kw_only=True)
class AblationCost(Row):
    """Measured cost of ablating dimensions, against random sets of the same size."""

    model: str
    dims: tuple[int, ...]
    """dimensions"""
    task: str
    intact: float
    change: Annotated[float, Change]
    random: Annotated[float, Change]
    """random sets, median"""
    p: Annotated[float, P]
    """p: the rank of the change among them"""
    n_texts: int
    """texts"""
    texts: str
    """of"""


@dataclass(frozen=True, kw_only=True)
class AtlasStream(Row):
    """A residual stream of the model."""

    stack: str
    """stream"""
    site: str
    norm: str
    norm_site: str
    layers: int
    width: int
    dims: tuple[int, ...]
    """outlier dimensions: ascending"""
    n_compared: int
    """compared: streams of the atlas as wide"""
    parent: str | None
    """parent: the likely one, or a model of the same parent; none where none is known"""


@dataclass(frozen=True, kw_only=True)
class Lookup(Finding):
    """Outlier dimensions of a model by an atlas, and its relatives.

    Attributes:
        known: whether the atlas has it by name; otherwise its norms were read.
        costs: of the model itself, or of its likely parent.
        atlas: "the package's" or the path; n_models: in it.
    """

    title = "What the atlas knows"

    outliers: tuple[StreamOutlier, ...] = ()
    """Outlier dimensions"""
    relatives: tuple[Relative, ...] = ()
    """Nearest in the atlas"""
    costs: tuple[AblationCost, ...] = ()
    """Cost of ablating them"""
    streams: tuple[AtlasStream, ...]
    """(Streams)"""
    family: str
    origin: str
    licence: str
    known: bool
    level: float
    atlas: str
    n_models: int
    bytes_read: int
    bytes_total: int

    def sentences(self) -> Iterator[str]:
        family = f"{self.family}, " if self.family else ""
        for stream in self.streams:
            name = self.provenance.subject + (f", {stream.stack}" if len(self.streams) > 1 else "")
            n, dims = len(stream.dims), few(stream.dims, 12)
            stand = f"dimensions {dims} are outliers" if n > 1 else f"dimension {dims} is an outlier"
            yield (
                f"{name} ({family}{number_of_layers(stream.layers)} of {stream.width}, {stream.norm}): "
                f"{stand if n else 'no dimension is an outlier'} at {stream.site}."
            )
            yield self._parent(stream)
        if self.known:
            yield f"It is in {self.atlas} atlas: {self.origin or 'origin not told'}; licence {self.licence or 'not told'}."
        else:
            yield f"Read {self.bytes_read:,} of {self.bytes_total:,} bytes; {self.atlas} atlas has {self.n_models} models."

    def _parent(self, stream: AtlasStream) -> str:
        if not stream.n_compared:
            return f"No parent is known: no other model of the atlas is {stream.width} wide."
        near = [one for one in self.relatives if one.stack == stream.stack]
        if stream.parent is None:
            return (
                f"No parent is known: of {stream.n_compared} as wide none is like it (smallest corrected p "
                f"{min(one.p_holm for one in near):.2g}, level {self.level:g})."
            )
        first = near[0]
        if first.equal:
            return f"Its norms are those of {first.model}: the same model, or one whose norms were not trained."
        below = f"= {first.p_holm:.2g}" if first.p_holm >= 1e-12 else "< 1e-12"
        return (
            f"The likely parent, or a model of the same parent, is {first.model} (correlation of norms "
            f"{first.closeness:.3f}, corrected p {below} of models that were trained apart)."
        )


# --- whose child it is -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Likeness:
    """How two streams compare: p of at least this T under the null, and `closeness`, a mean correlation in [−1, 1]."""

    p: float
    z: float
    closeness: float


def likeness(one: AtlasRow, other: AtlasRow) -> Likeness | None:
    """The comparison of two streams; None where their widths differ, or either has no finite vectors that vary."""
    if one.width != other.width or one.width < LEAST_WIDTH or one.scale is None or other.scale is None:
        return None
    kinds = [kind for kind in ("scale", "bias") if getattr(one, kind) is not None and getattr(other, kind) is not None]
    ours, theirs = ([getattr(row, kind).astype(np.float64) for kind in kinds] for row in (one, other))
    if not all(np.isfinite(values).all() for values in (*ours, *theirs)):
        return None
    a, b = (_scores(parts, whole=one.layers == other.layers) for parts in (ours, theirs))
    variance = float(((a @ a.T) * (b @ b.T)).sum()) / (one.width - 1)
    if variance <= 0:
        return None
    z = float((a * b).sum()) / math.sqrt(variance)
    closest = np.concatenate([_closest(*pair) for pair in zip(ours, theirs, strict=True)])
    return Likeness(math.erfc(z / math.sqrt(2)) / 2, z, float(closest.mean()))


def _scores(parts: list[np.ndarray], *, whole: bool) -> np.ndarray:
    """Normal scores of the ranks of each vector, or of each part's mean over layers, float64 [vector, dim] with mean 0."""
    vectors = np.concatenate([part if whole else part.mean(axis=0, keepdims=True) for part in parts])
    width = vectors.shape[1]
    by_half_rank = np.array([NormalDist().inv_cdf(rank / (2 * width + 2)) for rank in range(1, 2 * width + 2)])
    scores = by_half_rank[(2 * middle_ranks(vectors)).astype(int) - 1]
    return np.asarray(scores - scores.mean(axis=1, keepdims=True))


def _closest(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Correlation of each layer with the other model's same layer, or with its nearest where they differ in number."""
    a, b = (_unit(values) for values in (ours, theirs))
    return np.asarray((a * b).sum(axis=1) if len(a) == len(b) else (a @ b.T).max(axis=int(len(a) < len(b))))


def _unit(values: np.ndarray) -> np.ndarray:
    """Each vector centred and of length 1; zeros of one that does not vary."""
    centred = values - values.mean(axis=1, keepdims=True)
    size = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(centred, size, out=np.zeros_like(centred), where=size > 0))


def relatives(row: AtlasRow, others: Iterable[AtlasRow]) -> list[Relative]:
    """The streams of `others` as wide as this one, nearest first; equal ones before all."""
    found = [
        Relative(
            stack=row.stack, model=other.model, other_stack=other.stack, family=other.family, layers=other.layers,
            closeness=one.closeness, p=one.p, p_holm=one.p, origin=other.origin or "", equal=_equal(row, other),
        )
        for other in others
        if (one := likeness(row, other)) is not None
    ]  # fmt: skip
    corrected = holm(np.array([one.p for one in found])).tolist()
    found = [replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)]
    return sorted(found, key=lambda one: (not one.equal, -one.closeness, one.p))


def _equal(one: AtlasRow, other: AtlasRow) -> bool:
    """Whether two streams have the same vectors but for rounding."""
    if one.scale is None or other.scale is None or one.scale.shape != other.scale.shape:
        return False
    return bool(np.allclose(one.scale.astype(np.float64), other.scale.astype(np.float64), rtol=EQUAL, atol=EQUAL))


# --- the lookup ------------------------------------------------------------------------------------------------------


def lookup(
    model: str, options: LookupOptions | None = None, *, source: "ModelSource | None" = None, command: str = ""
) -> Lookup:
    """What an atlas knows of `model`: a name in it, else a sample, directory, file or hub id, whose norms are then read.

    Raises:
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see `scan`. BadInput: no such atlas.
    """
    options = options or LookupOptions()
    where = options.atlas or ATLAS
    origins = {row.model: row.origin or "" for row in read_rows(where, ("origin", "failure")) if row.failure is None}
    adapter = source.adapter if source else None
    name = None if adapter is not None or Path(model).exists() else named(model, origins)
    notes: tuple[str, ...] = ()
    if name is not None:
        own = [row for row in read_rows(where) if row.model == name and row.failure is None]
    else:
        names = ("revision", "subfolder", "token", "offline", "adapter")
        reached = {key: getattr(source, key) for key in names} if source else {}
        with open_checkpoint(model, **reached) as checkpoint:
            own = list(rows_of(checkpoint, ScanOptions(max_read=options.max_read)))
            notes = checkpoint.notes
    streams, near = list[AtlasStream](), list[Relative]()
    for row in own:
        compared = relatives(row, (one for one in read_rows(where) if one.model != name))
        likely = [one for one in compared if one.p_holm <= LEVEL]
        near += [*likely, *(one for one in compared if one not in likely)][:NEAREST]
        streams.append(
            AtlasStream(
                stack=row.stack, site=row.site, norm=row.norm, norm_site=row.norm_site, layers=row.layers, width=row.width,
                dims=tuple(sorted(one.dim for one in row.outliers)), n_compared=len(compared),
                parent=likely[0].model if likely else None,
            )
        )  # fmt: skip
    measured = {one.parent for one in streams} if name is None else {name}
    return Lookup(
        provenance=Provenance.now(own[0].model, own[0].revision, command=command, adapter=adapter or ""),
        about=About(dims=tuple(dict.fromkeys(str(dim) for one in streams for dim in one.dims))),
        notes=notes,
        outliers=tuple(
            StreamOutlier(
                stack=row.stack, dim=one.dim, z_scale=one.z_scale, z_bias=one.z_bias, layers=one.layers, p_holm=one.p_holm
            )
            for row in own
            for one in row.outliers
        ),
        relatives=tuple(near),
        costs=tuple(one for one in costs() if one.model in measured),
        streams=tuple(streams),
        family=own[0].family, origin=own[0].origin or "", licence=own[0].license or "", known=name is not None,
        level=LEVEL, atlas=str(options.atlas or "the package's"), n_models=len(origins),
        bytes_read=own[0].bytes_read, bytes_total=own[0].bytes_total,
    )  # fmt: skip


def named(model: str, origins: Mapping[str, str]) -> str | None:
    """The model of that name, or the first whose origin begins with that hub id; None where there is none."""
    if model in origins:
        return model
    return next((name for name, origin in origins.items() if origin.partition(",")[0] == model), None)


def costs() -> list[AblationCost]:
    """Measured costs of the models of the package's atlas."""
    return [AblationCost(**one | {"dims": tuple(one["dims"])}) for one in json.loads(COSTS.read_text("utf-8"))]


def run(session: "Session", options: LookupOptions) -> Lookup:
    """What the atlas knows of the session's model."""
    return lookup(session.subject.model, options, source=session.loading, command=session.command)
