"""The runs that `track` reads: the weights that end the blocks, checkpoint by checkpoint, or the rows of a watched training.

path, (read, total), notes = read_checkpoints(["runs/bert"], TrackOptions(), progress)       # a `run_files.Trajectory`
path = read_recorded(["runs/bert/watch.jsonl"], TrackOptions())
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import outlierlens.architectures as arch
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.detection.rules import LastOperation
from outlierlens.detection.weights import Site, check_size, measure, sites_of
from outlierlens.errors import BadFile, BadInput, UnknownArchitecture, UnknownModel
from outlierlens.training.run_files import (
    SavedCheckpoint,
    Trajectory,
    find_log,
    find_saved,
    tracked_site,
    without_weights,
)

if TYPE_CHECKING:
    from outlierlens.analyses.track import TrackOptions

DAMAGED = (BadFile, UnknownModel, UnknownArchitecture)


def read_recorded(names: list[str], options: "TrackOptions") -> Trajectory:
    """The trajectory of a file of watch rows; raises BadInput for what belongs to checkpoints."""
    from outlierlens.training.watch_rows import read_watch

    if len(names) > 1:
        raise BadInput(f"{names[0]} holds a whole run; track it alone, without {names[1]}")
    given = {"--revisions": options.revisions, "--steps": options.steps, "--norm": options.norm}
    for option, value in given.items():
        if value:
            raise BadInput(f"{option} belongs to checkpoints; {names[0]} holds recorded rows")
    file = Path(names[0]).absolute()
    named = file.parent.name if file.stem in ("watch", "rows") and file.parent.name else file.stem
    return replace(read_watch(names[0], options.stack), model=named)


def read_checkpoints(
    names: list[str], options: "TrackOptions", progress: Callable[[str, int, int], None]
) -> tuple[Trajectory, tuple[int, int], list[str]]:
    """(scale and bias of every checkpoint, bytes (read, in all), notes): THE loop.

    Raises:
        BadInput: checkpoints of differing shape or kind, an unknown stream or norm. BadFile, UnknownModel,
        UnknownArchitecture: a checkpoint cannot be read; the message names it.
    """
    saved = find_saved(names, revisions=options.revisions, steps=options.steps)
    first: Site | None = None
    kept: list[tuple[SavedCheckpoint, LastOperation]] = []
    notes = [f"left out: {one} is named as a checkpoint, and holds no weight file" for one in without_weights(names)]
    read = total = 0
    for place, one in enumerate(saved):
        progress(f"reading {one.name}", place, len(saved))
        try:
            with _open(one, options) as checkpoint:
                site = _site(checkpoint, options)
                if not kept:
                    reading = sites_of(site.stack, "reading")
                    norm = f", or follow a norm alone: --norm {reading[0].name}" if reading else ""
                    check_size(
                        checkpoint, [site], options.scan, instead=norm, each=f" in each of {len(saved)} checkpoints"
                    )
                measured, _ = measure(checkpoint, site, hashlib.sha256())
                read, total = read + checkpoint.bytes_read, total + checkpoint.total_bytes
        except DAMAGED as error:
            if not options.skip_damaged:
                raise type(error)(f"{one.name} (step {one.step}): {error}; --skip-damaged leaves it out") from error
            notes.append(f"left out, step {one.step}: {error}")
            continue
        first = first or site
        _same(first, site, (kept[0] if kept else (one, measured)), (one, measured))
        kept.append((one, measured))
    if first is None:
        raise BadFile(f"none of the {len(saved)} checkpoints can be read: {notes[0]}")
    progress("reading", len(saved), len(saved))
    biased = all(measured.bias is not None for _, measured in kept)
    path = Trajectory(
        model=names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more",
        stack=first.stack.name, site=first.name, norm_site=first.stack.stack.norm_site, view=first.view,
        steps=np.array([one.step for one, _ in kept]), scale=np.stack([measured.scale for _, measured in kept]),
        bias=np.stack([m.bias for _, m in kept if m.bias is not None]) if biased else None,
        curves=find_log([one for one, _ in kept]) if options.log is None else {},
    )  # fmt: skip
    return path, (read, total), notes


def _open(saved: SavedCheckpoint, options: "TrackOptions") -> Checkpoint:
    scan = options.scan
    return open_checkpoint(
        saved.model, revision=saved.revision, subfolder=scan.subfolder, token=scan.token, offline=scan.offline
    )


def _site(checkpoint: Checkpoint, options: "TrackOptions") -> Site:
    bound = arch.bound_stacks(checkpoint, options.scan.row)
    names = [stack.name for stack in bound]
    if options.stack is None and len(bound) > 1:
        raise BadInput(f"{checkpoint.name}: which stream? --stack must be one of {', '.join(names)}")
    if options.stack is not None and options.stack not in names:
        raise BadInput(f"{checkpoint.name}: no stream {options.stack!r}; there are {', '.join(names)}")
    return tracked_site(bound[names.index(options.stack)] if options.stack else bound[0], options.norm)


def _same(
    first: Site, site: Site, before: tuple[SavedCheckpoint, LastOperation], now: tuple[SavedCheckpoint, LastOperation]
) -> None:
    """Raise BadInput unless two checkpoints can belong to one run."""
    shapes = [" × ".join(map(str, one[1].scale.shape)) for one in (before, now)]
    biases = ["there" if one[1].bias is not None else "absent" for one in (before, now)]
    for what, a, b in (("last operation", first.name, site.name), ("layers × dimensions", *shapes), ("bias", *biases)):
        if a != b:
            raise BadInput(
                f"{now[0].name} is not of the same run as {before[0].name}: its {what} is {b}, not {a}; leave it out"
            )
