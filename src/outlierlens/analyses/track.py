"""Outlier dimensions over training, from checkpoints or a watched training: `track(["runs/bert"])`.

    found = track(["runs/bert"])                             # a folder with checkpoint-500, checkpoint-1000, …
    found = track(["EleutherAI/pythia-160m"], TrackOptions(revisions=("step0", "step512", "step1000")))
    found = track(["runs/bert/watch.jsonl"])                 # the rows that `watch` wrote
    found = track(["mini-bert"])                             # those of the packaged sample
    [(one.dim, one.step) for one in found.outliers]          # from here on they stand past n_sigma in enough layers
    found.emergences[0].lead                                 # that step minus the step of the loss's plateau, an Estimate

Of every checkpoint it reads what `scan` reads: the header, and what ends the blocks of one stream. With a text, all of it.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge

import outlierlens.view.charts.draw as d
from outlierlens.analyses.track_changes import (
    MIN_POINTS,
    SHARE,
    Course,
    dated,
    for_good,
    judged_loss,
    kept_dims,
    last_fall,
    lead_of,
    nats,
    plateau,
    read_checkpoints,
    read_recorded,
)
from outlierlens.checkpoints.samples import recorded_norms
from outlierlens.detection.rules import Passes, Rule
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadInput
from outlierlens.options import Flag, Flat, Options
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import UNKNOWN, Estimate, Quiet, Row
from outlierlens.statistics import SIGNIFICANT
from outlierlens.training.run_files import Trajectory, is_norm, loss_curves, read_log
from outlierlens.view.charts.base import ALARM, BAND, DIM_COLOURS, FAINT, MUTED, Spec
from outlierlens.view.pictures import WIDTH, Picture
from outlierlens.view.section import Count, CountChange, P, listed, round_to

if TYPE_CHECKING:
    from outlierlens.session import Session

EMPTY = np.zeros((0, 0), dtype=np.float32)  # what was not recorded
MAX_LINES = 12  # of ordinary dimensions, beside the range of all: more cannot be told apart, and make a page large
SAID = 3  # dimensions that get a sentence of their own
CURVES = {"loss": "training loss", "eval_loss": "evaluation loss"}
Part = Literal["scale", "bias", "state"]
Progress = Callable[[str, int, int], None]

# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrackOptions(Options):
    """Dimensions to follow, the rule, and how checkpoints are reached."""

    revisions: Annotated[tuple[str, ...], Flag(read="options:parse_names")] = ()
    """Hub revisions of one model: step0,step512,step1000."""
    steps: Annotated[tuple[int, ...], Flag(read="options:parse_steps")] = ()
    """Steps of the checkpoints in their order, where names do not say: 0,500,1000."""
    log: Path | None = None
    """trainer_state.json, or JSON lines with step and loss. Default: the one in the run."""
    rule: Annotated[Rule, Flat("n_sigma", "min_layer_fraction")] = Rule("kovaleva")
    """When a dimension is an outlier at a step."""
    dims: Annotated[tuple[int, ...], Flag(read="options:plain_dims")] = ()
    """Also follow these: 507,100."""
    layer: Annotated[int | None, Flag(hidden=True), Ge(0)] = None
    """Layer that is drawn. Default: the middle."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    norm: str | None = None
    """Follow this norm of pre-norm blocks instead of the weights that write to the stream."""
    skip_damaged: bool = False
    """Leave out checkpoints that cannot be read, with a note."""
    scan: Annotated[ScanOptions, Flat("max_read")] = ScanOptions()
    """Where the model is, and how much of one checkpoint may be read; its own rule and view count for nothing."""


@dataclass(frozen=True, kw_only=True)
class TrackCall:
    """Checkpoints, and how they are tracked."""

    checkpoints: Annotated[tuple[str, ...], Flag(argument=True)]
    """Folder of checkpoints, checkpoints, hub ids with steps in their names, a file of watch rows, mini-bert."""
    options: Annotated[TrackOptions, Flat()] = TrackOptions()
    """Dimensions to follow, and how checkpoints are reached."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Emergence(Row):
    """One dimension over training."""

    note = (
        "Steps are those that were recorded. Against the loss plateau: minus means that the dimension was an outlier first; "
        "the interval takes both ends at their worst."
    )
    dim: int
    """dimension"""
    passes: Passes
    """outlier for: the dimensions past n_sigma in enough layers at the last step"""
    step: Annotated[int | None, Count] = None
    """for good from step: the first recorded step from which that holds to the end"""
    after: Annotated[int | None, Count] = None
    """not yet at: the last recorded step before it held at all; none where it held at the first"""
    scale_step: Annotated[int | None, Count] = None
    """scale from"""
    bias_step: Annotated[int | None, Count] = None
    """bias from"""
    seen: Annotated[tuple[int, ...], Quiet] = ()
    """first and last recorded step at which it held; empty if never"""
    layers_scale: int
    """scale layers: past n_sigma at the last step"""
    layers_bias: int | None = None
    """bias layers"""
    z_scale: float
    """|z| scale: mean over layers at the last step"""
    z_bias: float | None = None
    """|z| bias"""
    onset: Annotated[Estimate, Count] = UNKNOWN
    """starts to leave: last step at the first level, of the mean |z| of the norms that pass"""
    onset_p: Annotated[float | None, P] = None
    """p: of no change at all; above 0.05 it is not settled that there is one"""
    lead: Annotated[Estimate, CountChange] = UNKNOWN
    """against the loss plateau: step minus that of the plateau"""
    onset_lead: Annotated[Estimate, Quiet] = UNKNOWN
    """start of leaving, where it is sure, minus the start of the loss's last steep fall"""

    @property
    def leaves(self) -> bool:
        """Whether "no change at all" is rejected at 5 %."""
        return self.onset_p is not None and self.onset_p <= SIGNIFICANT


@dataclass(frozen=True, kw_only=True)
class LossEvent(Row):
    """What happens to the loss."""

    event: Literal["starts its last steep fall", "reaches its plateau"]
    """the loss"""
    step: Annotated[Estimate, Count]
    """at step"""
    curve: str
    """curve"""
    settled: bool
    """settled: a plateau that is reached only in the last quarter of the run is not; then the loss may well fall on"""
    final: float
    """level: behind it, in nats per token"""


@dataclass(frozen=True, kw_only=True)
class CoursePoint(Row):
    """One followed dimension at one step."""

    part: Part
    step: Annotated[int, Count]
    """training step"""
    dim: int
    """dimension"""
    value: float
    """value: in the layer that is drawn; of the state, after the middle layer, averaged over the probed tokens"""
    z: float | None = None
    """|z|, mean over layers"""
    layers: int | None = None
    """layers: past n_sigma"""


@dataclass(frozen=True, kw_only=True)
class LossPoint(Row):
    """A logged loss."""

    step: Annotated[int, Count]
    """training step"""
    curve: str
    loss: float
    """loss, nats per token"""
    perplexity: float


@dataclass(frozen=True, kw_only=True)
class Courses(Picture):
    """Values over training steps: a line for each group, other dimensions of the array `of` faint, and what happens when."""

    of: str = ""
    captioned: bool = False

    def legend(self, found: Finding) -> list[str]:
        """What its upright lines are."""
        return [
            "dashed: a dimension is an outlier for good",
            "dotted: the loss starts its last steep fall, reaches its plateau",
        ]

    def panel(self, found: Finding) -> Spec:
        assert isinstance(found, Track)
        rows = self.chosen(found)
        groups = self.groups(rows)
        ends = [one.step for one in found.courses] + [one.step for one in found.losses]
        scale = {"domain": [min(ends), max(ends)], "nice": False}
        x = d.field(self.x, self.head(found, self.x), scale=scale, axis={"grid": False, "tickCount": 6, "format": ",d"})
        y = d.field(self.y, self.head(found, self.y), scale={"zero": self.y == "z"})
        colour = d.by("group", dict(zip(groups, DIM_COLOURS, strict=False)), symbolType="stroke", symbolStrokeWidth=3)
        named = d.line(self.data(found)[0], x=x, y=y, color=colour, tooltip=self.tooltip(found), strokeWidth=2)
        layers = [*self.others(found, x, y), named]
        if self.y == "z":
            layers.append(d.level(found.rule.levels[1], y=y, strokeDash=[2, 3]))
        falls = [
            {"step": round(one.step.value), "what": f"the loss {one.event}"} for one in found.events if one.settled
        ]
        outs = [
            {"step": one.step, "what": f"dimension {one.dim} is an outlier for good"}
            for one in found.emergences
            if one.step is not None
        ]
        what = d.columns(step="step", what="what:N")
        if falls:
            layers.append(d.rule(falls, x=x, tooltip=what, color=ALARM, strokeDash=[2, 3]))
        if outs:
            layers.append(d.rule(outs, x=x, tooltip=what, color=MUTED, strokeDash=[6, 3]))
        return d.panel(layers, WIDTH, 280, self.title)

    def others(self, found: "Track", x: Spec, y: Spec) -> list[Spec]:
        """The range of all dimensions, and lines of those that are not followed, an even choice by rank of many."""
        values = np.asarray(getattr(found, self.of)) if self.of else EMPTY  # [step, column]
        if not values.size:
            return []
        plain = [column for column, dim in enumerate(found.kept) if dim not in found.followed]
        plain.sort(key=lambda column: float(values[-1, column]))
        chosen = np.linspace(0, len(plain) - 1, min(MAX_LINES, len(plain))).round().astype(int).tolist()
        steps = found.steps.tolist()
        lines = [
            {"step": step, "value": round_to(float(values[i, column]), 6), "dim": found.kept[column]}
            for column in (plain[place] for place in chosen)
            for i, step in enumerate(steps)
        ]
        span = getattr(found, f"{self.of}_range", np.stack([values.min(axis=1), values.max(axis=1)], axis=1))
        band = [
            {"step": step, "low": round_to(float(low)), "high": round_to(float(high))}
            for step, (low, high) in zip(steps, span, strict=True)
        ]
        what = d.columns(dim="dimension", step="step", value="value")
        return [
            d.area(band, x=x, **d.between(y=y), color=BAND, opacity=0.35),
            d.line(lines, x=x, y=y, detail=d.nominal("dim"), tooltip=what, color=FAINT, strokeWidth=0.6, opacity=0.7),
        ]


@dataclass(frozen=True, kw_only=True)
class Track(Finding):
    """What ends the blocks of one stream, over training, trimmed for drawing, and the events found in them.

    Attributes:
        source: "checkpoints", "revisions" or "watch rows".
        site, norm_site, view: what was followed; see `run_files.Trajectory`.
        rule: threshold and share of layers. steps: int [step]. width: of the stream.
        layer: the layer whose values `scale` and `bias` hold.
        kept: dimensions of the columns of `scale`, `bias` and `state`: all, or those followed and an even choice by rank of
            the rest.
        scale, bias: [step, column]; bias is (0, 0) where there is none.
        scale_range, bias_range: smallest and largest value over all dimensions, [step, 2].
        state: hidden state after the middle layer, averaged over the tokens of the texts that a watched training probed, [step,
            column]; empty for checkpoints. bytes_read, total_bytes: of all checkpoints together; 0 for watch rows.
    """

    title = "Over training"
    pictures = (
        Courses(rows="losses", x="step", y="loss", by="curve", title="Loss"),
        Courses(rows="courses", x="step", y="z", by="dim", title="Distance from the other dimensions: scale",
                where=lambda row: row.part == "scale"),
        Courses(rows="courses", x="step", y="z", by="dim", title="Distance from the other dimensions: bias",
                where=lambda row: row.part == "bias"),
        Courses(rows="courses", x="step", y="value", by="dim", title="Scale of one layer, range of all", of="scale",
                where=lambda row: row.part == "scale"),
        Courses(rows="courses", x="step", y="value", by="dim", title="Bias of one layer, range of all", of="bias",
                where=lambda row: row.part == "bias"),
        Courses(rows="courses", x="step", y="value", by="dim", title="Hidden state, range of all", of="state",
                where=lambda row: row.part == "state"),
    )  # fmt: skip

    emergences: tuple[Emergence, ...] = ()
    """When each became an outlier"""
    events: tuple[LossEvent, ...] = ()
    """The loss"""
    courses: tuple[CoursePoint, ...] = ()
    """(Followed dimensions, step by step)"""
    losses: tuple[LossPoint, ...] = ()
    """(Logged losses)"""
    source: str
    site: str
    norm_site: str
    view: str
    rule: Rule
    width: int
    steps: Annotated[np.ndarray, "step"]
    layer: int
    kept: Annotated[tuple[int, ...], "column"]
    scale: Annotated[np.ndarray, "step column"]
    bias: Annotated[np.ndarray, "step column, or empty"]
    scale_range: Annotated[np.ndarray, "step 2"]
    bias_range: Annotated[np.ndarray, "step 2, or empty"]
    state: Annotated[np.ndarray, "step column, or empty"] = field(default_factory=EMPTY.copy)
    bytes_read: int = 0
    total_bytes: int = 0

    @property
    def scale_name(self) -> str:
        """The scale in a sentence."""
        return "scale" if is_norm(self.norm_site, self.view) else "weight norm"

    @property
    def followed(self) -> tuple[int, ...]:
        """The followed dimensions, in the order of `emergences`."""
        return tuple(emergence.dim for emergence in self.emergences)

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias."""
        return self.bias.size > 0

    @property
    def outliers(self) -> tuple[Emergence, ...]:
        """Those that pass at the last step as the rule asks: for scale, and for bias where there is one."""
        wanted = "scale and bias" if self.has_bias else "scale"
        return tuple(emergence for emergence in self.emergences if emergence.passes == wanted)

    @property
    def plateau(self) -> LossEvent | None:
        """Where the loss reaches its plateau, settled or not."""
        return next((one for one in self.events if one.event == "reaches its plateau"), None)

    @property
    def fall(self) -> LossEvent | None:
        """Where the loss starts its last steep fall."""
        return next((one for one in self.events if one.event == "starts its last steep fall"), None)

    def sentences(self) -> Iterator[str]:
        span = f"Over {len(self.steps)} recorded steps from {int(self.steps[0]):,} to {int(self.steps[-1]):,}"
        span += f" of {self.site}" if self.view == "reading" else ""
        past = f"{self.rule.sigmas} or more in {self.rule.percent} of the layers"
        passing = sorted((one for one in self.emergences if one.step is not None), key=lambda one: one.step or 0)
        emerged = [one for one in passing if one.after is not None]
        if passing:
            since = [f"{'from' if one.after is not None else 'already at'} step {one.step:,}" for one in passing]
            dims = [f"{one.dim} ({self._part(one)}, {step})" for one, step in zip(passing, since, strict=True)]
            yield f"{span} these dimensions reach {past}: {listed(dims)}."
        else:
            yield f"{span} no dimension reaches {past}."
        if gone := [one.dim for one in self.emergences if one.passes == "neither" and one.seen]:
            yield f"{listed(gone)} reached it at some step and fell back."
        for one in emerged[:SAID]:
            if one.leaves:
                yield f"Dimension {one.dim} starts to leave at step {one.onset.written(',.0f')}."
            elif one.onset_p is not None:
                yield f"When dimension {one.dim} starts to leave is not settled (p = {one.onset_p:.2g})."
        if emerged:
            yield from self._signs(emerged[0])
        elif passing:
            yield "Dimensions that were outliers at the first recorded step have no onset to compare with the loss."
        if self.total_bytes:
            share = f"{self.bytes_read / self.total_bytes:.2%}".replace("%", " %")
            yield f"{self.bytes_read:,} of the checkpoints' {self.total_bytes:,} bytes were read ({share})."

    def _part(self, one: Emergence) -> str:
        return one.passes.replace("scale", self.scale_name)

    def _signs(self, one: Emergence) -> Iterator[str]:
        """Whether the emergence says something about the loss, which is asked of the first dimension to emerge."""
        fall, end = self.fall, self.plateau
        if fall is not None and math.isfinite(one.onset_lead.value):
            yield (
                f"Dimension {one.dim} starts to leave {_apart(one.onset_lead)} the loss starts its last steep fall "
                f"(step {fall.step.value:,.0f}; {_between(one.onset_lead)})."
            )
        if end is None or not end.settled:
            why = "no loss curve long enough was logged" if end is None else "the loss was still falling at the end"
            yield f"Whether this tells that training is nearly done is open: {why}."
        elif math.isfinite(one.lead.value):
            hint = {
                -1: "an early sign, not one that training is done",
                1: "only after training was nearly done",
                0: "the recorded steps are too far apart to say which came first",
            }[one.lead.side()]
            yield (
                f"Dimension {one.dim} becomes an outlier {_apart(one.lead)} the loss comes within {100 * SHARE:g} % of its "
                f"fall from the run's final level (step {end.step.value:,.0f}; {_between(one.lead)}): {hint}."
            )


def _apart(lead: Estimate) -> str:
    """ "500 steps before", "at the same step as"."""
    steps = round(lead.value)
    return f"{abs(steps):,} steps {'before' if steps < 0 else 'after'}" if steps else "at the same step as"


def _between(lead: Estimate) -> str:
    return f"95 % interval of the difference {lead.low:+,.0f} to {lead.high:+,.0f}"


# --- how it is measured ------------------------------------------------------------------------------------------


def track(
    checkpoints: Sequence[str | Path], options: TrackOptions | None = None, *, progress: Progress | None = None
) -> Track:
    """Find when dimensions became outliers, compared with the loss, over checkpoints, revisions or one file of watch rows.

    Raises:
        BadInput: steps cannot be told, checkpoints of differing shape or kind, an unknown stream, layer or dimension.
        BadFile, UnknownModel, UnknownArchitecture: a checkpoint cannot be read; the message names it.
        Offline, RemoteError: a hub id was given and the network is off or fails.
    """
    options = options or TrackOptions()
    names = [str(recorded_norms(str(one)) or one) for one in checkpoints]
    if not names:
        raise BadInput("name at least one folder of checkpoints, checkpoint, hub id or file of watch rows")
    rows = [name for name in names if name.endswith((".jsonl", ".ndjson")) and Path(name).is_file()]
    size, notes = (0, 0), list[str]()
    if rows:
        path = read_recorded(names, options)
    else:
        path, size, notes = read_checkpoints(names, options, progress or (lambda *_: None))
    if options.log is not None:
        path = replace(path, curves={**path.curves, **read_log(options.log)})
    path = replace(path, curves=loss_curves(path.curves))
    if path.n_steps < 2:
        raise BadInput(f"{path.model}: one step is not a trajectory; name more checkpoints, or use `outlierlens scan`")
    found = summarize(path, options, "watch rows" if rows else "revisions" if options.revisions else "checkpoints")
    return replace(found, bytes_read=size[0], total_bytes=size[1], notes=(*found.notes, *notes))


def run(session: "Session", call: TrackCall) -> Track:
    """Track the checkpoints."""
    options = replace(call.options, scan=session.scanning(call.options.scan))
    return track(call.checkpoints, options, progress=session.progress)


def summarize(path: Trajectory, options: TrackOptions, source: str) -> Track:
    """Everything that is read off a trajectory.

    Raises:
        BadInput: a layer or dimension that the stream does not have.
        BadFile: a value that is not finite.
    """
    layer = path.n_layers // 2 if options.layer is None else options.layer
    if not 0 <= layer < path.n_layers:
        raise BadInput(f"layer {layer}: {path.model} has layers 0 to {path.n_layers - 1}")
    outside = [dim for dim in options.dims if not 0 <= dim < path.width]
    if outside:
        raise BadInput(f"dimension {outside[0]}: the stream has dimensions 0 to {path.width - 1}")
    course = Course.of(path, options.rule)
    followed, left_out = course.followed(options.dims)
    events, name = tuple(_loss_events(path, options.seed)), judged_loss(path.curves)
    emergences = tuple(_emergence(dim, path, course, events, options.seed) for dim in followed)
    kept, parts = kept_dims(path, followed, layer), {"scale": path.scale[:, layer]}
    if path.bias is not None:
        parts["bias"] = path.bias[:, layer]
    shown = {part: (values[:, kept], np.stack([values.min(1), values.max(1)], 1)) for part, values in parts.items()}
    bias_bytes = b"" if path.bias is None else path.bias.tobytes()
    digest = hashlib.sha256(path.steps.tobytes() + path.scale.tobytes() + bias_bytes).hexdigest()
    scale, bias = shown["scale"], shown.get("bias", (EMPTY, EMPTY))
    return Track(
        provenance=Provenance.now(path.model, digest, seed=options.seed),
        about=About(
            stack=path.stack, layers=tuple(range(path.n_layers)),
            dims=tuple(str(one.dim) for one in emergences if one.passes != "neither"),
        ),
        emergences=emergences, events=events, courses=tuple(_courses(path, course, followed, parts)),
        losses=tuple(
            LossPoint(step=step, curve=CURVES[curve], loss=loss, perplexity=math.exp(min(loss, 700.0)))
            for curve, points in nats(path.curves).items()
            for step, loss in zip(points.steps.tolist(), points.values.tolist(), strict=True)
        ),
        source=source, site=path.site, norm_site=path.norm_site, view=path.view, rule=options.rule, width=path.width,
        steps=path.steps, layer=layer, kept=tuple(kept.tolist()), scale=scale[0], scale_range=scale[1], bias=bias[0],
        bias_range=bias[1], state=EMPTY if path.states is None else path.states[:, kept],
        notes=tuple(_notes(path, name, left_out)),
    )  # fmt: skip


def _loss_events(path: Trajectory, seed: int) -> Iterator[LossEvent]:
    if not (name := judged_loss(path.curves)):
        return
    curve = path.curves[name]
    if (fall := last_fall(curve.steps, curve.values, seed=seed)) is not None:
        yield LossEvent(
            event="starts its last steep fall", step=dated(fall), curve=CURVES[name], settled=True, final=fall.after
        )
    if (end := plateau(curve.steps, curve.values, seed=seed)) is not None:
        yield LossEvent(
            event="reaches its plateau", step=dated(end), curve=CURVES[name], settled=end.settled, final=end.final
        )


def _emergence(dim: int, path: Trajectory, course: Course, events: Sequence[LossEvent], seed: int) -> Emergence:
    passes, flags, steps = course.passes(dim), course.flags(dim), path.steps
    step, after = (None, None) if passes == "neither" else for_good(steps, flags)
    seen, leaves = np.flatnonzero(flags), course.onset(dim, steps, seed)
    lead = onset_lead = UNKNOWN
    for one in events:
        if one.event == "reaches its plateau" and one.settled and step is not None:
            lead = lead_of((step, after, step), one.step)
        elif one.event == "starts its last steep fall" and leaves is not None and leaves.sure:
            onset_lead = lead_of((leaves.step, leaves.low, leaves.high), one.step)
    made = Emergence(
        dim=dim, passes=passes, step=step, after=after, scale_step=for_good(steps, course.held["scale"][:, dim])[0],
        seen=(int(steps[seen[0]]), int(steps[seen[-1]])) if len(seen) else (),
        layers_scale=int(course.layers["scale"][-1, dim]), z_scale=float(course.mean["scale"][-1, dim]),
        onset=dated(leaves) if leaves else UNKNOWN,
        onset_p=leaves.p if leaves else None, lead=lead, onset_lead=onset_lead,
    )  # fmt: skip
    if path.bias is None:
        return made
    return replace(
        made, bias_step=for_good(steps, course.held["bias"][:, dim])[0], layers_bias=int(course.layers["bias"][-1, dim]),
        z_bias=float(course.mean["bias"][-1, dim]),
    )  # fmt: skip


def _courses(path: Trajectory, course: Course, dims: list[int], parts: dict[str, np.ndarray]) -> Iterator[CoursePoint]:
    steps: list[int] = path.steps.tolist()
    for part in ("scale", "bias"):
        for dim in dims if part in parts else ():
            for i, step in enumerate(steps):
                z, layers = float(course.mean[part][i, dim]), int(course.layers[part][i, dim])
                yield CoursePoint(part=part, step=step, dim=dim, value=float(parts[part][i, dim]), z=z, layers=layers)
    if path.states is not None:
        for dim in dims:
            for step, value in zip(steps, path.states[:, dim].tolist(), strict=True):
                yield CoursePoint(part="state", step=step, dim=dim, value=value)


def _notes(path: Trajectory, loss: str, left_out: int) -> Iterator[str]:
    if path.bias is None:
        yield f"{path.site} has no bias here: the rule rests on the scale alone"
    if path.n_steps < MIN_POINTS:
        yield f"{path.n_steps} checkpoints are too few for a change point; it takes {MIN_POINTS}"
    if not path.curves:
        yield "no loss was logged beside the checkpoints; name a log with --log to compare"
    elif not loss:
        yield f"the loss has fewer than {MIN_POINTS} points: no plateau can be told"
    if left_out:
        yield f"{left_out} more dimensions passed at some step; follow them by name with --dims"
