"""What an atlas knows of a model: by its name alone, or by its norms, of which a few kilobytes are read.

    found = lookup("mpnet-base")                       # in the atlas: nothing is read but its rows
    found = lookup("runs/my-model/model.safetensors")  # its relatives, told by its norms

No model is run, and torch is not needed.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.samples.cache import PACKAGED
from outlierlens.experiments.atlas.measure import rows_of
from outlierlens.experiments.atlas.rows import AtlasRow, read_rows
from outlierlens.experiments.lookup.lineage import likeness
from outlierlens.experiments.lookup.options import LookupOptions
from outlierlens.experiments.lookup.result import Cost, Lookup, Relative, Standing, Stream
from outlierlens.results.document import Provenance
from outlierlens.session import Session, Source
from outlierlens.statistics.p_values import holm

ATLAS = PACKAGED / "atlas.parquet"
COSTS = PACKAGED / "atlas-costs.json"
EQUAL = 1e-3  # of values: what half precision leaves of equal ones


def run(session: Session, options: LookupOptions) -> Lookup:
    """What the atlas knows of the session's model."""
    return lookup(session.subject.model, options, source=session.loading, command=session.command)


def lookup(
    model: str, options: LookupOptions | None = None, *, source: Source | None = None, command: str = ""
) -> Lookup:
    """What an atlas knows of `model`: a name in it, else a sample, directory, file or hub id, whose norms are then read.

    Raises:
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see `scan`. BadInput: no such atlas.
    """
    options, source = options or LookupOptions(), source or Source()
    rows = [row for row in read_rows(options.atlas or ATLAS) if row.failure is None]
    own = [] if Path(model).exists() else named(model, rows)
    known = bool(own)
    notes: tuple[str, ...] = ()
    if not own:
        with open_checkpoint(
            model,
            revision=source.revision,
            subfolder=source.subfolder,
            token=source.token,
            offline=source.offline,
        ) as checkpoint:
            own = list(rows_of(checkpoint))
            notes = checkpoint.notes
    others = [row for row in rows if not known or row.model != own[0].model]
    streams = tuple(_stream(row, others, options) for row in own)
    asked = {own[0].model} if known else {one.parent for one in streams}
    return Lookup(
        provenance=Provenance.now(own[0].model, own[0].revision, command=command),
        family=own[0].family,
        origin=own[0].origin or "",
        licence=own[0].license or "",
        known=known,
        level=options.level,
        streams=streams,
        costs=tuple(one for one in costs() if one.model in asked),
        atlas=str(options.atlas or "the package's"),
        n_models=len({row.model for row in rows}),
        bytes_read=own[0].bytes_read,
        bytes_total=own[0].bytes_total,
        notes=notes,
    )


def named(model: str, rows: Sequence[AtlasRow]) -> list[AtlasRow]:
    """The rows of a model by its name, or by the hub id that its origin begins with; [] where there are none."""
    for names in (lambda row: row.model, lambda row: (row.origin or "").split(",")[0]):
        if found := [row for row in rows if names(row) == model]:
            return [row for row in found if row.model == found[0].model]
    return []


def costs() -> list[Cost]:
    """What was measured of the models of the package's atlas."""
    return [Cost(**one | {"dims": tuple(one["dims"])}) for one in json.loads(COSTS.read_text("utf-8"))]


def relatives(row: AtlasRow, others: Sequence[AtlasRow]) -> list[Relative]:
    """The streams of `others` as wide as this one: those that share an origin with it by the smaller p, nearest first."""
    compared = [(other, one) for other in others if (one := likeness(row, other)) is not None]
    corrected = holm(np.array([one.p for _, one in compared]))
    found = [
        Relative(
            other.model, other.stack, other.family, other.origin or "", other.layers, one.closeness, one.p, float(p),
            _equal(row, other),
        )
        for (other, one), p in zip(compared, corrected, strict=True)
    ]  # fmt: skip
    return sorted(found, key=lambda one: (not one.equal, -one.closeness, one.p))


def _stream(row: AtlasRow, others: Sequence[AtlasRow], options: LookupOptions) -> Stream:
    near = relatives(row, others)
    likely = [one for one in near if one.p_holm <= options.level]
    return Stream(
        stack=row.stack,
        site=row.site,
        norm=row.norm,
        norm_site=row.norm_site,
        layers=row.layers,
        width=row.width,
        outliers=tuple(Standing(one.dim, one.z_scale, one.z_bias, one.layers, one.p_holm) for one in row.outliers),
        relatives=tuple([*likely, *(one for one in near if one not in likely)][: options.nearest]),
        n_compared=len(near),
        parent=likely[0].model if likely else None,
    )


def _equal(one: AtlasRow, other: AtlasRow) -> bool:
    """Whether two streams have the same vectors but for rounding."""
    if one.scale is None or other.scale is None or one.scale.shape != other.scale.shape:
        return False
    return bool(np.allclose(one.scale.astype(np.float64), other.scale.astype(np.float64), rtol=EQUAL, atol=EQUAL))
