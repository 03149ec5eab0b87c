"""What an atlas knows of a model: by its name alone, or by its norms, of which a few kilobytes are read.

    found = lookup("mpnet-base")                       # in the atlas: nothing is read but its rows
    found = lookup("runs/my-model/model.safetensors")  # its relatives, told by its norms

No model is run, and torch is not needed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.samples.cache import PACKAGED
from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.experiments.atlas.measure import rows_of
from outlierlens.experiments.atlas.rows import AtlasRow, read_rows
from outlierlens.experiments.lookup.lineage import likeness
from outlierlens.experiments.lookup.options import LookupOptions
from outlierlens.experiments.lookup.result import Cost, Lookup, Relative, Standing, Stream
from outlierlens.results.document import Provenance
from outlierlens.session import Session, Source
from outlierlens.statistics.ranks import holm

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
    where = options.atlas or ATLAS
    origins = {row.model: row.origin or "" for row in read_rows(where, ("origin", "failure")) if row.failure is None}
    name = None if Path(model).exists() else named(model, origins)
    notes: tuple[str, ...] = ()
    if name is not None:
        own = [row for row in read_rows(where) if row.model == name and row.failure is None]
    else:
        with open_checkpoint(
            model,
            revision=source.revision,
            subfolder=source.subfolder,
            token=source.token,
            offline=source.offline,
        ) as checkpoint:
            own = list(rows_of(checkpoint, ScanOptions(max_read=options.max_read)))
            notes = checkpoint.notes
    streams = tuple(_stream(row, (one for one in read_rows(where) if one.model != name), options) for row in own)
    asked = {one.parent for one in streams} if name is None else {name}
    return Lookup(
        provenance=Provenance.now(own[0].model, own[0].revision, command=command),
        family=own[0].family,
        origin=own[0].origin or "",
        licence=own[0].license or "",
        known=name is not None,
        level=options.level,
        streams=streams,
        costs=tuple(one for one in costs() if one.model in asked),
        atlas=str(options.atlas or "the package's"),
        n_models=len(origins),
        bytes_read=own[0].bytes_read,
        bytes_total=own[0].bytes_total,
        notes=notes,
    )


def named(model: str, origins: Mapping[str, str]) -> str | None:
    """The model of that name, or the first whose origin begins with that hub id; None where there is none."""
    if model in origins:
        return model
    return next((name for name, origin in origins.items() if origin.partition(",")[0] == model), None)


def costs() -> list[Cost]:
    """What was measured of the models of the package's atlas."""
    return [Cost(**one | {"dims": tuple(one["dims"])}) for one in json.loads(COSTS.read_text("utf-8"))]


def relatives(row: AtlasRow, others: Iterable[AtlasRow]) -> list[Relative]:
    """The streams of `others` as wide as this one, nearest first; equal ones before all."""
    found = [
        Relative(
            other.model, other.stack, other.family, other.origin or "", other.layers, one.closeness, one.p, one.p,
            _equal(row, other),
        )
        for other in others
        if (one := likeness(row, other)) is not None
    ]  # fmt: skip
    corrected = holm(np.array([one.p for one in found])).tolist()
    found = [replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)]
    return sorted(found, key=lambda one: (not one.equal, -one.closeness, one.p))


def _stream(row: AtlasRow, others: Iterable[AtlasRow], options: LookupOptions) -> Stream:
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
