"""Outlier dimensions over training, from checkpoints or a watched training: `track(["runs/bert"])`.

    found = track(["runs/bert"])                             # a folder with checkpoint-500, checkpoint-1000, …
    found = track(["EleutherAI/pythia-160m"], TrackOptions(revisions=("step0", "step512", "step1000")))
    found = track(["runs/bert/watch.jsonl"])                 # the rows that `watch` wrote
    found = track(["mini-bert"])                             # those of the packaged sample
    [(one.dim, one.step) for one in found.outliers]

Of every checkpoint it reads what `scan` reads: the header, and what ends the blocks of one stream. With a text, all of it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import outlierlens.architectures as arch
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.checkpoints.samples import recorded_norms
from outlierlens.data.texts import Texts
from outlierlens.detection.rules import Measured
from outlierlens.detection.scan.measure import ScanOptions, Site, check_size, measure, sites_of
from outlierlens.detection.scan.result import Scan
from outlierlens.errors import BadFile, BadInput, UnknownArchitecture, UnknownModel
from outlierlens.experiments.track.emergence import last_scan, summarize
from outlierlens.experiments.track.options import TrackOptions
from outlierlens.experiments.track.result import Track
from outlierlens.results.document import Provenance
from outlierlens.training.run_files import (
    Saved,
    Trajectory,
    find_log,
    find_saved,
    loss_curves,
    no_bias,
    no_states,
    read_log,
    tracked_site,
)

if TYPE_CHECKING:
    from outlierlens.training.watch_probe import Activations

DAMAGED = (BadFile, UnknownModel, UnknownArchitecture)
PROBE_TOKENS = 512


def track(checkpoints: Sequence[str | Path], options: TrackOptions | None = None, *, command: str = "") -> Track:
    """When dimensions became outliers, and the loss beside, over checkpoints, revisions or one file of watch rows.

    Raises:
        BadInput: steps cannot be told, checkpoints of differing shape or kind, an unknown stream, layer or dimension.
        BadFile, UnknownModel, UnknownArchitecture: a checkpoint cannot be read; the message names it.
        Offline, RemoteError: a hub id was given and the network is off or fails.
    """
    return track_and_scan(checkpoints, options, command=command)[0]


def track_and_scan(
    checkpoints: Sequence[str | Path], options: TrackOptions | None = None, *, command: str = ""
) -> tuple[Track, Scan]:
    """`track`, and the rule applied to the last recorded step, which a report shows beside it."""
    options = options or TrackOptions()
    names = [_or_recorded(str(one)) for one in checkpoints]
    if not names:
        raise BadInput("name at least one folder of checkpoints, checkpoint, hub id or file of watch rows")
    read = _read_rows(names, options) if any(_is_rows(name) for name in names) else _read_all(names, options)
    path = read.path
    if options.log is not None:
        path = replace(path, curves={**path.curves, **read_log(options.log)})
    path = replace(path, curves=loss_curves(path.curves))
    if path.n_steps < 2:
        raise BadInput(f"{path.model}: one step is no trajectory; name more checkpoints, or use `outlierlens scan`")
    digest = hashlib.sha256(path.steps.tobytes() + path.scale.tobytes() + path.bias.tobytes()).hexdigest()
    provenance = Provenance.now(path.model, digest, command=command, seed=options.emergence.seed)
    found = summarize(path, options.emergence, provenance, read.source)
    found = replace(
        found,
        text=options.text,
        bytes_read=read.bytes_read,
        total_bytes=read.total_bytes,
        notes=(*found.notes, *read.notes),
    )
    return found, last_scan(path, found)


@dataclass(frozen=True)
class _Read:
    """A trajectory and what reading it took."""

    path: Trajectory
    source: str
    bytes_read: int = 0
    total_bytes: int = 0
    notes: tuple[str, ...] = ()


def _or_recorded(name: str) -> str:
    """The recorded rows of the training of a sample that brings them; any other name as it is."""
    return str(recorded_norms(name) or name)


def _is_rows(name: str) -> bool:
    return name.endswith((".jsonl", ".ndjson")) and Path(name).is_file()


def _read_rows(names: list[str], options: TrackOptions) -> _Read:
    from outlierlens.training.watch_rows import read_watch

    if len(names) > 1:
        raise BadInput(f"{names[0]} holds a whole run; track it alone, without {names[1]}")
    given = {"--revisions": options.revisions, "--steps": options.steps, "--norm": options.norm, "--text": options.text}
    for option, value in given.items():
        if value:
            raise BadInput(f"{option} belongs to checkpoints; {names[0]} holds recorded rows")
    path = read_watch(names[0], options.stack)
    return _Read(replace(path, model=_run_name(names[0])), "watch rows")


def _run_name(path: str) -> str:
    """ "bert" for runs/bert/watch.jsonl and for runs/bert.jsonl."""
    file = Path(path).absolute()
    return file.parent.name if file.stem in ("watch", "rows") and file.parent.name else file.stem


def _read_all(names: list[str], options: TrackOptions) -> _Read:
    """Scale and bias of every checkpoint: THE loop."""
    saved = find_saved(names, revisions=options.revisions, steps=options.steps)
    first: Site | None = None
    kept: list[tuple[Saved, Measured]] = []
    seen: list[Activations] = []
    notes = []
    bytes_read = total = 0
    for place, one in enumerate(saved):
        if options.progress:
            options.progress(f"reading {one.name}", place, len(saved))
        try:
            with _open(one, options) as checkpoint:
                site = _site(checkpoint, options)
                if not kept:
                    limit = ScanOptions(max_read=options.max_read, notice=options.notice)
                    each = f" in each of {len(saved)} checkpoints"
                    check_size(checkpoint, [site], limit, instead=_by_norms(site), each=each)
                measured, _ = measure(checkpoint, site, hashlib.sha256())
                bytes_read, total = bytes_read + checkpoint.bytes_read, total + checkpoint.total_bytes
            shown = [_activations(one, site, options)] if options.text else []
        except DAMAGED as error:
            if not options.skip_damaged:
                raise type(error)(f"{one.name} (step {one.step}): {error}; --skip-damaged leaves it out") from error
            notes.append(f"left out, step {one.step}: {error}")
            continue
        if first is None:
            first = site
        _same(first, site, (kept[0] if kept else (one, measured)), (one, measured))
        kept.append((one, measured))
        seen += shown
    if first is None:
        raise BadFile(f"none of the {len(saved)} checkpoints can be read: {notes[0]}")
    if options.text:
        bytes_read = total
        notes.append("hidden states of a text were asked for: every checkpoint was read whole")
    if options.progress:
        options.progress("reading", len(saved), len(saved))
    biased = all(measured.bias is not None for _, measured in kept)
    path = Trajectory(
        model=names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more",
        stack=first.stack.name,
        site=first.name,
        norm_site=first.stack.stack.norm_site,
        view=first.view,
        steps=np.array([one.step for one, _ in kept]),
        scale=np.stack([measured.scale for _, measured in kept]),
        bias=np.stack([m.bias for _, m in kept if m.bias is not None]) if biased else no_bias(),
        curves=find_log([one for one, _ in kept]) if options.log is None else {},
        states=np.stack([one.state for one in seen]) if seen else no_states(),
        tokens=seen[-1].tokens if seen else no_states(),
    )
    return _Read(path, "revisions" if options.revisions else "checkpoints", bytes_read, total, tuple(notes))


def _open(saved: Saved, options: TrackOptions) -> Checkpoint:
    return open_checkpoint(
        saved.model,
        revision=saved.revision,
        subfolder=options.subfolder,
        token=options.token,
        offline=options.offline,
    )


def _site(checkpoint: Checkpoint, options: TrackOptions) -> Site:
    stacks = arch.stacks_for(checkpoint, options.row)
    bound = arch.bind(stacks, checkpoint.tensors, checkpoint.config)
    names = [stack.name for stack in bound]
    if options.stack is None and len(bound) > 1:
        raise BadInput(f"{checkpoint.name}: which stream? --stack must be one of {', '.join(names)}")
    if options.stack is not None and options.stack not in names:
        raise BadInput(f"{checkpoint.name}: no stream {options.stack!r}; there are {', '.join(names)}")
    return tracked_site(bound[names.index(options.stack)] if options.stack else bound[0], options.norm)


def _by_norms(site: Site) -> str:
    """What the refusal of a large read adds: a norm that can be followed instead."""
    return next((f", or follow a norm alone: --norm {one.name}" for one in sites_of(site.stack, "reading")), "")


def _same(first: Site, site: Site, before: tuple[Saved, Measured], now: tuple[Saved, Measured]) -> None:
    """Raise BadInput unless two checkpoints can belong to one run."""
    shapes = [" × ".join(map(str, one[1].scale.shape)) for one in (before, now)]
    biases = ["there" if one[1].bias is not None else "absent" for one in (before, now)]
    for what, a, b in (("last operation", first.name, site.name), ("layers × dimensions", *shapes), ("bias", *biases)):
        if a != b:
            raise BadInput(
                f"{now[0].name} is not of the same run as {before[0].name}: its {what} is {b}, not {a}; leave it out"
            )


def _activations(saved: Saved, site: Site, options: TrackOptions) -> "Activations":
    """What the text shows in the followed stream."""
    from outlierlens.models.load import LoadOptions, load_model
    from outlierlens.training.watch_probe import ProbeSize, make_probe

    load = LoadOptions(
        revision=saved.revision,
        subfolder=options.subfolder,
        token=options.token,
        offline=options.offline,
        row=options.row,
        dtype="float32",
    )
    probe = make_probe(load_model(saved.model, load), Texts("--text", (options.text,)), ProbeSize(1, PROBE_TOKENS))
    seen = {} if probe is None else probe.measure()
    if site.stack.name not in seen:
        raise BadInput(f"{saved.name}: stream {site.stack.name} reads no text, so --text has nothing to show")
    return seen[site.stack.name]
