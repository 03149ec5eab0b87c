"""One model looked at: its rows, or one row that says why there are none. Nothing that a model brings stops the others.

rows = look(Named("bert-base-uncased"), Manner(), Turns(rate=10))
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outlierlens.checkpoints import as_weights, open_checkpoint
from outlierlens.checkpoints.pace import Courtesy, Turns
from outlierlens.checkpoints.samples import SAMPLES, is_sample
from outlierlens.detection.scan.measure import MAX_READ, ScanOptions
from outlierlens.errors import (
    BadFile,
    Gated,
    NoSafetensors,
    Offline,
    OutlierlensError,
    RemoteError,
    TooMuchToRead,
    UnknownArchitecture,
    UnknownModel,
    one_line,
    told,
)
from outlierlens.experiments.atlas.measure import rows_of
from outlierlens.experiments.atlas.names import Named
from outlierlens.experiments.atlas.rows import AtlasRow, storable

RETRIES = 6  # half a minute in all where nobody says how long to wait
LONGEST_ASKED = 600.0  # seconds that a hub may ask us to wait
JITTER = 0.5
# The reason of a failure by its error; the first that fits.
REASONS: tuple[tuple[type[OutlierlensError], str], ...] = (
    (Gated, "gated"),
    (RemoteError, "unreachable"),
    (Offline, "unreachable"),
    (UnknownModel, "missing"),
    (NoSafetensors, "no safetensors"),
    (UnknownArchitecture, "unknown family"),
    (TooMuchToRead, "too large"),
    (BadFile, "malformed"),
    (OutlierlensError, "unusable"),
)


@dataclass(frozen=True)
class Manner:
    """How models are asked for, wherever that is done.

    Attributes:
        max_bytes: of all answers of one model.
        parallel: models at once in a process.
        rate: requests a second to the hub, of all processes together; None is no limit.
    """

    token: str | None = field(default=None, repr=False)
    max_bytes: int | None = None
    parallel: int = 16
    rate: float | None = None

    def courtesy(self, turns: Turns, max_bytes: int | None = None) -> Courtesy:
        """How patiently the hub is asked, for at most `max_bytes` in all."""
        return Courtesy(turns, RETRIES, LONGEST_ASKED, JITTER, max_bytes)


def look(named: Named, manner: Manner, turns: Turns) -> tuple[AtlasRow, ...]:
    """The rows of a model; () where its present revision is one of `named.known`."""
    from outlierlens.checkpoints.hub import HubCheckpoint
    from outlierlens.checkpoints.repository import Repository, hub_endpoint

    began, here = time.monotonic(), False
    options = ScanOptions(max_read=manner.max_bytes or MAX_READ)
    repository: Repository | None = None
    rows: tuple[AtlasRow, ...]
    try:
        if named.fault:
            raise BadFile(named.fault)
        here = not named.listed and (is_sample(named.model) or Path(named.model).exists())
        if here:
            with open_checkpoint(named.model) as checkpoint:
                rows = rows_of(checkpoint, options)
        else:
            courtesy = manner.courtesy(turns, manner.max_bytes)
            repository = Repository(
                named.model, revision=named.revision or None, subfolder="", token=manner.token, courtesy=courtesy
            )
            if named.known and repository.resolved() in named.known:
                return ()
            with as_weights(HubCheckpoint(named.model, repository=repository)) as checkpoint:
                rows = rows_of(checkpoint, options)
    except Exception as error:
        rows = (failed(named, error),)
        if repository is not None:
            received, requests = repository.received, repository.requests
            rows = (replace(rows[0], revision=repository.commit, bytes_read=received, requests=requests),)
    seconds = time.monotonic() - began
    sample = SAMPLES.get(named.model) if here else None
    licence = named.license or (sample.licence if sample else None)
    origin = sample.origin if sample else "a local file" if here else hub_endpoint()
    listed: dict[str, Any] = {"license": licence, "origin": origin, "created": named.created}
    return tuple(storable(replace(row, seconds=seconds, downloads=named.downloads, **listed)) for row in rows)


def failed(named: Named, error: Exception) -> AtlasRow:
    """The row of a model that could not be read."""
    reason = next((word for kind, word in REASONS if isinstance(error, kind)), "error")
    ours = isinstance(error, (OutlierlensError, OSError, MemoryError))
    said = told(error) if ours else one_line(f"{type(error).__name__}: {error}")
    return AtlasRow(named.model, named.revision, reason=reason, failure=said[:1000])
