"""What became of a model's outliers in other checkpoints of it: which stayed, came and went, and how far weights moved.

    found = compare("mpnet-base", ["runs/mpnet-rte/seed-42/model"])      # from the weights alone, without torch
    found.streams[0].jaccard, [(one.dim, one.fate, one.moved) for one in found.changes]
    compare(scan("base"), scan("fine-tuned"))                            # of two scans, or of their files

Models may have different heads and prefixes ("encoder.layer.0" against "bert.encoder.layer.0"): streams are bound in each by
its own architecture row.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from outlierlens.analyses.compare_copy import CopyOpening, CopyOptions, QuantizedCopy, copied
from outlierlens.analyses.compare_updates import (
    ChangeSums,
    Followed,
    Key,
    SharedTensors,
    UpdateCheck,
    UpdateOptions,
    correlation,
    shift,
    update_check,
)
from outlierlens.analyses.fingerprint import FingerprintOptions, fingerprint
from outlierlens.analyses.fingerprint_verify import Verification, verify
from outlierlens.analyses.scan import Scan, scan_checkpoint
from outlierlens.architectures import BoundStack, bound_stacks
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.weights import ASKED, ScanOptions, StackScan, measure, opened, sites_of
from outlierlens.errors import BadInput, command, operand
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, Options, belong
from outlierlens.results.document import Advice, Provenance, Result, about, load
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Quiet, Row
from outlierlens.training.pretrain.result import OUTCOME, Outcomes
from outlierlens.view.pictures import Picture, Strips
from outlierlens.view.section import Count, Share, few, percent

if TYPE_CHECKING:
    from outlierlens.session import Session

NOT_FROM_BASE = 0.5  # fine-tuning leaves z correlated above 0.9; two models trained apart are near 0
Part = Literal["scale", "bias"]
Fate = Literal["stayed", "came", "went", "neither"]
FATES = ("stayed", "came", "went")
MOST = 6  # dimensions that a sentence names


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """How checkpoints are compared."""

    dims: DimsOrFind = FIND
    """Also follow these: 308,381; find: those that the rule finds."""
    scan: Annotated[ScanOptions, ASKED] = ScanOptions()
    """The rule, and how models are opened; its `max_read` also limits the bytes read from a hub."""
    other_revision: str | None = None
    """Hub revision of the other models; default: that of --model-args."""


@dataclass(frozen=True, kw_only=True)
class CompareCall:
    """Which models, and what of them."""

    base: Annotated[str, Flag(argument=True)]
    """Model before: sample, directory, file, hub id, a scan's JSON, or a run directory of `lab pretrain`."""
    others: Annotated[tuple[str, ...], Flag(argument=True)]
    """Models after, named likewise."""
    options: Annotated[CompareOptions, Flat()] = CompareOptions()
    """How they are compared."""
    copy: Annotated[bool | None, Flag("--copy/--no-copy")] = None
    """Take the model after for a rounded copy, and measure its error. Default: where it stores codes and the base does not."""
    texts: Annotated[CopyOptions, Flat()] = CopyOptions()
    """What a copy is read on."""
    values: bool = False
    """Compare the sensitive values of two models, as `verify` does; exit code 3 if any moved."""
    updates: bool = False
    """Updates of a federated round, one client each; exit code 3 if one falls on outlier entries beyond its share."""
    deep: bool = False
    """--values, --updates: read every tensor, not only vectors of the stream."""
    alarm: Annotated[UpdateOptions, Flat("seed")] = UpdateOptions()
    """--updates: what flags a client."""

    def __post_init__(self) -> None:
        wanted = "--copy" if self.copy else "--data" if self.texts.data else ""
        if wanted and (self.copy is False or len(self.others) > 1 or self.values or self.updates):
            raise BadInput(
                f"{wanted} holds one quantized copy against its original; name two, without --values and --updates"
            )
        if self.values and (self.updates or len(self.others) > 1):
            raise BadInput("--values holds one model against another; name two, without --updates")
        if self.deep and not (self.values or self.updates):
            raise BadInput("--deep is about sensitive values and updates; add --values or --updates")
        if not self.updates:
            belong("to --updates; give that too", self.alarm)


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DimChange(Row):
    """One dimension before and after, in the scale or in the bias of its layers' last operation."""

    note = "z: in standard deviations of the layer's vector. Layers: with |z| at or past the threshold."

    model: str
    """after"""
    stream: str
    stack: Annotated[str, Quiet]
    site: Annotated[str, Quiet]
    dim: int
    """dimension"""
    fate: Fate
    """fate: stayed is an outlier of both, went of the one before alone, came of the one after alone, neither was asked for"""
    part: Part
    """of the"""
    n_layers: int
    """layers"""
    layers_before: int
    layers_after: int
    z_before: float
    """mean z before: over layers; none where the scan did not keep this dimension"""
    z_after: float
    """mean z after"""
    largest_before: float
    """largest z before: of largest magnitude over layers, with its sign"""
    largest_after: float
    """largest z after"""
    moved: float
    """mean |Δz|: over layers"""
    moved_most: float
    """largest |Δz|"""
    relative: float | None = None
    """‖change‖ / ‖before‖: of the weights that write to it, L2 norms over layers; none where they were not read"""


@dataclass(frozen=True, kw_only=True)
class StreamChange(Row):
    """The outliers of one stream, before and after."""

    model: str
    """after"""
    stream: str
    stayed: tuple[int, ...]
    came: tuple[int, ...]
    went: tuple[int, ...]
    jaccard: Annotated[float, Share]
    """in common: outliers of both over those of either (Jaccard); all where neither has any"""

    @property
    def turned(self) -> bool:
        """Whether as many came as went: the basis differs, as in a retrained model."""
        return len(self.went) == len(self.came) > 0


@dataclass(frozen=True, kw_only=True)
class Agreement(Row):
    """How alike z is before and after, in the scale or the bias of one stream."""

    note = "Listed dimensions: outliers of either model, and those of --dims."

    model: str
    """after"""
    stream: str
    part: Part
    """z of the"""
    r: float
    """r: Pearson correlation over dimensions × layers, in [−1, 1]"""
    r_named: float | None
    """r of listed dimensions: the same over the listed dimensions; none for fewer than three values"""
    moved_named: float | None
    """mean |Δz| of listed dimensions"""
    moved_others: float
    """of the others: mean |Δz| of all other dimensions"""


@dataclass(frozen=True, kw_only=True)
class Movement(Row):
    """How far one group of weights moved, of the tensors that both files hold."""

    model: str
    """after"""
    group: str
    """weights"""
    n_values: Annotated[int, Count]
    """values: scalars in both models"""
    rms: float
    """rms change: root mean square of after − before"""
    relative: float | None
    """‖change‖ / ‖before‖: L2 norms; none where all were 0"""


@dataclass(frozen=True, kw_only=True)
class Comparison(Finding):
    """The outliers of a model against those of other checkpoints of it, all by one rule."""

    title = "Against other checkpoints"

    changes: tuple[DimChange, ...] = ()
    """Dimension by dimension"""
    streams: tuple[StreamChange, ...]
    """Outliers in common"""
    agreement: tuple[Agreement, ...] = ()
    """How alike z is"""
    movement: tuple[Movement, ...] = ()
    """How far the weights moved"""

    def sentences(self) -> Iterator[str]:
        for model, some in groupby(self.streams, key=lambda one: one.model):
            streams, models = list(some), f"{self.provenance.model} → {model}"
            found = {fate: sorted({dim for one in streams for dim in getattr(one, fate)}) for fate in FATES}
            parts = [f"{few(dims, 12) or 'none'} {fate}" for fate, dims in found.items()]
            yield f"{models}: {'; '.join(parts) if any(found.values()) else 'no outlier in either model'}."
            for one in streams:
                more = (
                    "; the same number came and went: the outliers moved, the basis may have turned"
                    if one.turned
                    else ""
                )
                if one.stayed or one.came or one.went:
                    yield f"{models}, {one.stream}: {percent(one.jaccard)} of the outliers in common (Jaccard){more}."
                elif len(streams) > 1:
                    yield f"{models}, {one.stream}: no outlier in either model."
            if self.provenance.adapter and self.movement:
                yield self._touched(model)

    def _touched(self, model: str) -> str:
        """How far the adapter changes what the rule looks at, dimension by dimension."""
        rows = [one for one in self.changes if one.model == model and one.relative]
        most = {one.dim: one for one in sorted(rows, key=lambda one: one.relative or 0.0)}
        if not most:
            return "The adapter leaves the weights that write to these dimensions as they were."
        said = [f"{dim} by {100 * (one.relative or 0.0):.3g} %" for dim, one in reversed(most.items())]
        groups = {one.group: one.relative or 0.0 for one in self.movement if one.model == model}
        others = 100 * groups.get(f"{next(reversed(most.values())).part}, other dimensions", 0.0)
        more = f" and {len(said) - MOST} others by less" if len(said) > MOST else ""
        return (
            f"The adapter changes the weights that write to {', '.join(said[:MOST])}{more} of their norm, and those to other "
            f"dimensions by {others:.3g} %."
        )

    def advice(self) -> Iterator[Advice]:
        """Whether what protects one model protects the other, and how to look closer."""
        base, fates = (
            replace(self.provenance, adapter=""),
            {fate: sum(len(getattr(one, fate)) for one in self.streams) for fate in FATES},
        )
        after = dict.fromkeys(one.model for one in self.streams)
        models = (base, *(self._made(name) for name in after if name != base.model))
        protect = tuple(about(one, "prune protect", "--export", "torch-pruning") for one in models)
        if fates["came"] or fates["went"]:
            yield Advice(
                "transfer",
                "Do not carry a list of protected dimensions from one to the other; take each model's own.",
                f"{fates['stayed']} of {sum(fates.values())} are outliers of both",
                protect,
            )
        elif fates["stayed"]:
            said = "What protects one protects the other: their outliers stand at the same positions."
            yield Advice("transfer", said, f"the same {fates['stayed']} in both", protect[:1])
        if len(models) == 2:
            said = "If one was made from the other, look at which sensitive values differ, value by value."
            values = about(self.provenance, "compare", operand(models[1].model), "--values")
            yield Advice("check", said, "their streams have one shape", (values,))

    def _made(self, model: str) -> Provenance:
        """Of a model after the base: its name, and the adapter on it."""
        end = f" with {self.provenance.adapter}"
        on = self.provenance.adapter if model.endswith(end) else ""
        return replace(self.provenance, model=model.removesuffix(end) if on else model, adapter=on)

    def drawn(self) -> tuple[Picture, ...]:
        """How far each dimension moved, a panel for each model, and how far each group of weights."""
        moved = Strips(rows="movement", x="relative", y="model", by="group", title="Weights", captioned=False)
        models = dict.fromkeys(one.model for one in self.changes)
        return *(
            Strips(rows="changes", x="moved", y="dim", by="part", title=model, where=partial(_is_of, model))
            for model in models
        ), moved


def _is_of(model: str, row: DimChange) -> bool:
    return row.model == model


# --- how it is measured ------------------------------------------------------------------------------------------


def compare(
    base: str | Scan,
    others: "Sequence[str | Scan] | str | Scan",
    options: CompareOptions | None = None,
    *,
    command: str = "",
) -> Comparison:
    """Compare the outliers of `base` with those of each of `others`: names of models, scans, or files of scans.

    With scans alone the weights are not read, and their movement is left out.

    Raises:
        BadInput: nothing to compare with, or a model of another type, depth or width, rule or view.
        UnknownModel, BadFile, TooMuchToRead, Offline, RemoteError: see `scan`.
    """
    options = options or CompareOptions()
    wanted = (others,) if isinstance(others, str | Scan) else tuple(others)
    if not wanted:
        raise BadInput("name at least one model to compare with, behind the base")
    earlier, later = _openings(options)
    with ExitStack() as files:
        before = _side(base, earlier, files, command)
        pairs = []
        for other in wanted:
            with ExitStack() as own:
                pairs.append(_Pair(before, _side(other, later, own, command), options))
    was = before.scan
    dims = sorted({one.dim for pair in pairs for one in pair.changes})
    return Comparison(
        provenance=replace(was.provenance, adapter=later.adapter or ""),
        about=About(
            stack=", ".join(dict.fromkeys(one.stack for one in was.stacks)), dims=tuple(map(str, dims)),
            named_by=was.stacks[0].named_by,
        ),
        changes=tuple(one for pair in pairs for one in pair.changes),
        streams=tuple(one for pair in pairs for one in pair.streams),
        agreement=tuple(one for pair in pairs for one in pair.agreement),
        movement=tuple(one for pair in pairs for one in pair.movement),
        notes=tuple(dict.fromkeys((*was.notes, *(note for pair in pairs for note in pair.notes)))),
    )  # fmt: skip


def _openings(options: CompareOptions) -> tuple[ScanOptions, ScanOptions]:
    """How the base is opened, and the models after it, which alone have an adapter on."""
    scan = options.scan
    return replace(scan, adapter=None), replace(scan, revision=options.other_revision or scan.revision)


def run(session: "Session", call: CompareCall) -> "Comparison | QuantizedCopy | Verification | UpdateCheck | Outcomes":
    """What the command finds: of models, of a copy, of sensitive values or updates, or of runs of `lab pretrain`."""
    scan, names = session.scanning(call.options.scan), (call.base, *call.others)
    stored = [_stored(name) for name in names]
    if call.updates or call.values:
        if any(isinstance(one, Scan) for one in stored):
            raise BadInput("a scan holds no values: --values and --updates need the models themselves")
        if call.updates:
            alarm = replace(call.alarm, dims=call.options.dims, deep=call.deep, scan=scan)
            return update_check(call.base, call.others, alarm)
        earlier, later = _openings(replace(call.options, scan=scan))
        before = fingerprint(call.base, FingerprintOptions(scan=earlier, dims=call.options.dims, deep=call.deep))
        return verify(call.others[0], before, later, deep=call.deep, against=call.base)
    if len(names) == 2 and stored == [None, None] and call.copy is not False:
        how = CopyOpening(call.copy, call.options.dims, *_openings(replace(call.options, scan=scan)))
        if (found := copied(session, call.base, names[1], call.texts, how)) is not None:
            return found
    outcomes = [one for one in stored if isinstance(one, Outcomes)]
    if outcomes and scan.adapter is not None:
        raise BadInput("--model-args adapter belongs to a model; name the models in the runs")
    if len(outcomes) == len(names):
        return replace(outcomes[0], runs=tuple(run for one in outcomes for run in one.runs))
    if outcomes:
        other = next(name for name, one in zip(names, stored, strict=True) if not isinstance(one, Outcomes))
        raise BadInput(
            f"{other} is not a run of `lab pretrain`, and the others are; name runs alone, or the models in them"
        )
    base, *others = (one if isinstance(one, Scan) else name for name, one in zip(names, stored, strict=True))
    return compare(base, others, replace(call.options, scan=scan), command=session.command)


def _stored(name: str) -> Result | None:
    """The result in a file, or the outcome in a run directory; None for a model."""
    path = Path(name)
    if (path / OUTCOME).is_file():
        path /= OUTCOME
    if path.suffix != ".json" or path.name.endswith(".index.json") or not path.is_file():
        return None
    found = load(path)
    if isinstance(found, Scan | Outcomes):
        return found
    made = command("scan", "MODEL", "-o", operand(name))
    raise BadInput(
        f"{name} holds a {type(found).__name__}, neither a Scan nor a run of `lab pretrain`; make a scan with {made}"
    )


@dataclass(frozen=True)
class _Side:
    """A scan, and the open model if it was made of one."""

    scan: Scan
    options: ScanOptions
    checkpoint: Checkpoint | None = None

    @property
    def name(self) -> str:
        return self.scan.provenance.subject

    @cached_property
    def bound(self) -> list[BoundStack]:
        assert self.checkpoint is not None
        return bound_stacks(self.checkpoint, self.options.row)

    def z(self, stack: StackScan) -> dict[Part, np.ndarray]:
        """z of the scale, and of the bias where there is one, [layer, dim]; NaN where only the scan could say it."""
        scale, bias = stack.z_scale, stack.z_bias if stack.z_bias.size else None
        if len(stack.map_dims) < stack.hidden_size and self.checkpoint is not None:
            # A scan of a very wide and deep model keeps the most extreme dimensions only.
            sites = [site for bound in self.bound for site in sites_of(bound, self.options.view)]
            (site,) = [site for site in sites if (site.stack.name, site.name) == (stack.stack, stack.site)]
            measured, _ = measure(self.checkpoint, site, hashlib.sha256())
            scale, bias = measured.z_scale, measured.z_bias
        parts: dict[Part, np.ndarray | None] = {"scale": scale, "bias": bias}
        return {part: _widened(values, stack) for part, values in parts.items() if values is not None}


def _widened(values: np.ndarray, stack: StackScan) -> np.ndarray:
    if values.shape[1] == stack.hidden_size:
        return values
    whole = np.full((len(values), stack.hidden_size), np.nan)
    whole[:, list(stack.map_dims)] = values
    return whole


def _side(model: str | Scan, options: ScanOptions, files: ExitStack, command: str) -> _Side:
    found = model if isinstance(model, Scan) else _stored(model)
    if isinstance(found, Scan):
        if options.adapter is not None:
            raise BadInput(
                f"--model-args adapter belongs to a model, and {found.provenance.model} is a scan; name the model itself"
            )
        return _Side(found, options)
    assert isinstance(model, str)
    checkpoint = files.enter_context(opened(model, options))
    return _Side(scan_checkpoint(checkpoint, options, command=command), options, checkpoint)


class _Pair:
    """What became of the outliers of one model in another."""

    def __init__(self, before: _Side, after: _Side, options: CompareOptions):
        self.before, self.after, self.options, self.model = before, after, options, after.name
        self.changes: list[DimChange] = []
        self.streams: list[StreamChange] = []
        self.agreement: list[Agreement] = []
        self.notes = list(after.scan.notes)
        outliers: dict[Key, set[int]] = {}
        _check_alike(before.scan, after.scan)
        several = len({one.stack for one in before.scan.stacks}) < len(before.scan.stacks)
        theirs = {(one.stack, one.site): one for one in after.scan.stacks}
        for stack in before.scan.stacks:
            key = (stack.stack, stack.site)
            outliers[key] = self._stream(stack, theirs[key], ", ".join(key) if several else stack.stack)
        strangers = [f"{one.part} r = {one.r:.2f}" for one in self.agreement if one.r < NOT_FROM_BASE]
        if strangers:
            self.notes.append(
                f"z hardly agrees with the base ({', '.join(strangers)}): {self.model} was probably not fine-tuned from "
                f"{before.name}"
            )
        follow: dict[Followed, ChangeSums] = {
            ((one.stack, one.site), one.part, one.dim): ChangeSums() for one in self.changes
        }
        self.movement = tuple(self._movement(outliers, follow))
        self.changes = [
            replace(one, relative=sums.relative) for one, sums in zip(self.changes, follow.values(), strict=True)
        ]

    def _stream(self, stack: StackScan, other: StackScan, stream: str) -> set[int]:
        """Take in one stream; its outliers in either model."""
        was, now = ({one.dim for one in side.outliers} for side in (stack, other))
        either = was | now
        stayed, came, went = (tuple(sorted(dims)) for dims in (was & now, now - was, was - now))
        self.streams.append(
            StreamChange(
                model=self.model, stream=stream, stayed=stayed, came=came, went=went,
                jaccard=len(stayed) / len(either) if either else 1.0,
            )
        )  # fmt: skip
        fates: dict[int, Fate] = dict.fromkeys(_asked(self.options.dims, stack), "neither")
        fates |= {dim: "stayed" if dim in was & now else "came" if dim in now else "went" for dim in either}
        mine, theirs = self.before.z(stack), self.after.z(other)
        parts = [part for part in mine if part in theirs]
        for dim in sorted(fates):
            for part in parts:
                z = mine[part][:, dim], theirs[part][:, dim]
                self.changes.append(
                    DimChange(
                        model=self.model, stream=stream, stack=stack.stack, site=stack.site, dim=dim, fate=fates[dim],
                        part=part, n_layers=stack.n_layers, **shift(*z, stack, other),
                    )
                )  # fmt: skip
        for part in parts:
            self.agreement.append(self._agreement(stream, part, mine[part], theirs[part], sorted(fates)))
        return either

    def _agreement(self, stream: str, part: Part, before: np.ndarray, after: np.ndarray, named: list[int]) -> Agreement:
        kept = np.isfinite(before).all(axis=0) & np.isfinite(after).all(axis=0)  # [dim]
        moved = np.abs(after.astype(np.float64) - before)  # [layer, dim]
        here = [dim for dim in named if kept[dim]]
        others = np.setdiff1d(np.flatnonzero(kept), np.array(here, dtype=int))
        return Agreement(
            model=self.model, stream=stream, part=part,
            r=correlation(before[:, kept], after[:, kept]),
            r_named=correlation(before[:, here], after[:, here]) if len(before) * len(here) >= 3 else None,
            moved_named=float(moved[:, here].mean()) if here else None,
            moved_others=float(moved[:, others].mean()) if len(others) else 0.0,
        )  # fmt: skip

    def _movement(self, outliers: Mapping[Key, set[int]], follow: Mapping[Followed, ChangeSums]) -> Iterator[Movement]:
        """How far each group of weights moved."""
        first, second = self.before.checkpoint, self.after.checkpoint
        if first is None or second is None:
            return
        shared = SharedTensors(first, second, self.before.bound, self.after.bound)
        self.notes.append(f"{self.model}: {shared.said}")
        limit = self.options.scan.max_read
        large = [one for one in (first, second) if getattr(one, "requests", 0) and one.total_bytes > limit]
        if large:  # the hub's, and not cached here
            self.notes.append(
                f"how far the weights moved is left out: it would fetch {large[0].total_bytes / 1e6:,.0f} MB of "
                f"{large[0].name}; allow it with --model-args max-read={large[0].total_bytes // 1_000_000 + 1}MB"
            )
            return
        for group, sums in shared.moved(outliers, follow, self.options.scan.view).items():
            yield Movement(
                model=self.model, group=group, n_values=sums.n, rms=math.sqrt(sums.change / sums.n),
                relative=sums.relative,
            )  # fmt: skip


def _check_alike(was: Scan, now: Scan) -> None:
    names = was.provenance.model, now.provenance.model
    if was.rule != now.rule or was.view != now.view:
        raise BadInput("the two scans used different rules or views; scan both the same way")
    if was.model_type and now.model_type and was.model_type != now.model_type:
        raise BadInput(
            f"{names[0]} is of type {was.model_type!r}, {names[1]} of type {now.model_type!r}; give checkpoints of one model"
        )
    sizes = [sorted((s.stack, s.site, s.n_layers, s.hidden_size) for s in scan.stacks) for scan in (was, now)]
    if sizes[0] != sizes[1]:
        said = [", ".join(f"{stack} {layers} × {width}" for stack, _, layers, width in one) for one in sizes]
        raise BadInput(
            f"{names[0]} has other streams ({said[0]}) than {names[1]} ({said[1]}; layers × dimensions); give checkpoints of "
            f"one model"
        )


def _asked(dims: Any, stack: StackScan) -> list[int]:
    asked = [] if dims == FIND else list(dims)
    if bad := [dim for dim in asked if not 0 <= dim < stack.hidden_size]:
        raise BadInput(
            f"dimension {bad[0]} does not exist; stream {stack.stack!r} has dimensions 0 to {stack.hidden_size - 1}"
        )
    return asked
