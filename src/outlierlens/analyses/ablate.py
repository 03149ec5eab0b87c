"""Switch dimensions off beside fair controls, and measure what breaks; in several ways, a fixed bias or information?

found = ablate(load_model("smollm2-135m"), read_texts("excerpt"), [100, 247, 507])
found.chosen.change                          # an Estimate, nats per token
found.family("random").p                     # rank p among random sets of the same size

found = ablate(loaded, texts, [507], AblateOptions(modes=("all",)))
found.verdict("507")                         # "fixed", "by position", "information", …
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np
from annotated_types import Ge

from outlierlens.ablation.controls import TEXTS, Extent, Plan, plan_key
from outlierlens.ablation.fill import Reply, replies, typical
from outlierlens.ablation.modes import (
    FIRST,
    HALF,
    IN_PARTS,
    KEPT,
    MEAN,
    ON_WEIGHTS,
    POSITION_MEAN,
    ZERO,
    Folds,
    ModeTreatment,
    Switch,
    check_save,
    recovered,
    task_for,
    tasks_of_parts,
    tokens_read,
    treatments,
)
from outlierlens.ablation.study import Condition, Control, Measurement, Outcome, Progress, Study, dims_of
from outlierlens.ablation.switches import Dims, EditSettings, plan_dims
from outlierlens.analyses.ablate_sets import (
    N_RANDOM,
    Outputs,
    asked_dims,
    check_neurons,
    control_kinds,
    control_sets,
    expert_reach,
    random_plans,
    size_alone,
)
from outlierlens.analyses.predictions import PredictionCall, Predictions, compared
from outlierlens.data.texts import Data
from outlierlens.detection.targets import NamedDims
from outlierlens.errors import BadInput, pick
from outlierlens.models.inputs import reaching, row_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND, Find, Flag, Flat, check
from outlierlens.results.document import Advice, about
from outlierlens.results.finding import Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import UNKNOWN, Draws, Estimate, Quiet, Row
from outlierlens.statistics import SIGNIFICANT
from outlierlens.statistics.means import no_interval, unseen_note
from outlierlens.statistics.ranks import rank_p
from outlierlens.tasks.base import Task, TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.view.pictures import Lines, Picture, Strips
from outlierlens.view.section import Change, P, Rows, Share, few, these

if TYPE_CHECKING:
    from outlierlens.architectures import BoundStack
    from outlierlens.session import Session

Verdict = Literal["too few texts", "no damage", "fixed", "by position", "information", "unclear"]
Judgement = Literal["damaging", "harmless", "unclear"]
Place = Literal["", "first token", "other tokens", "both", "unclear"]
SMALL = 0.05  # nats per token (a factor of 1.05 in perplexity), or cosine distance
SEVERAL_TEXTS = 32  # that are read for several modes, where no number is given
RULE = (
    "Zero does damage where the 95 % interval of its change is above 0 and the change above that of every random set. What a "
    "mode recovers is 1 minus its share of that damage. Fixed: the whole 95 % interval of the mean's share "
    "is above one half. By position: not fixed, and that of the mean at each position is. Information: both intervals are "
    "below one half. Otherwise unclear. Without an interval of zero's change there are too few texts for a verdict. Place: "
    "the first token, where keeping it alone recovers more than half. The other tokens, where zeroing the first alone leaves "
    "more than half. Both, where neither does. Otherwise unclear."
)
SAYS: dict[Verdict, str] = {
    "too few texts": "no verdict",
    "no damage": "zero does no more damage than to random dimensions, so there is nothing to tell apart",
    "fixed": "mostly a fixed bias",
    "by position": "mostly a bias that is fixed for each position",
    "information": "mostly information, which no mean replaces",
    "unclear": "unclear: the intervals do not tell bias from information",
}
PLACES: dict[Place, str] = {
    "first token": ": the first token is where it matters",
    "other tokens": ": the other tokens are where it matters",
    "both": ": the first token and the others both matter",
}


# --- options -----------------------------------------------------------------------------------------------------


def parse_modes(text: str) -> tuple[str, ...]:
    """ "zero,scale:2" -> ("zero", "scale:2"); raises BadInput for a mode that there is not."""
    modes = tuple(part.strip() for part in text.split(",") if part.strip())
    treatments(modes)
    return modes


@dataclass(frozen=True, kw_only=True)
class AblateOptions(Extent):
    """Dimensions to ablate, modes and controls."""

    modes: Annotated[tuple[str, ...], Flag(read="analyses.ablate:parse_modes", words="weights")] = ("weights",)
    """weights, norms, writes; for hidden states zero, mean, position-mean, resample, scale:F, scale-once:F. Several, or all (5
    random sets each), tell a fixed bias from information."""
    tokens: Literal["all", "first", "rest"] = "all"
    """For modes of hidden states: the tokens that are edited; rest leaves the first one as it is."""
    layers: Annotated[tuple[int, ...] | None, Flag(read="options:parse_layers")] = None
    """Layers in which to ablate: 0-3,7. Default: all."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder. mlp (encoder.mlp): neurons of the blocks' MLPs. experts: whole
    experts, as 11:6; find takes the super experts."""
    embeddings: Annotated[bool, Flag(into="--modes")] = False
    """Mode writes: the embeddings' writes too."""
    each: bool = False
    """Measure each dimension alone too."""
    avoid: Annotated[tuple[int, ...] | None, Flag(hidden=True)] = None
    """Dimensions no ordinary or matched set may hold; default: those that scan finds."""
    n_folds: Annotated[int, Flag(hidden=True), Ge(2)] = 4
    """Several modes: parts of the texts; each gets the means of the others."""
    passage: Annotated[str | None, Flag(hidden=True)] = None
    """Text that is filled in; the data's first text by default."""
    task: Annotated[TaskOptions, Flag(hidden=True)] = TaskOptions()
    """How texts become numbers."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.modes, str):
            object.__setattr__(self, "modes", parse_modes(self.modes))
        if self.tokens != "all" and any(one.mode in ON_WEIGHTS for one in self.treatments):
            raise BadInput(f"--tokens {self.tokens} belongs to modes of hidden states, such as zero, not to weights")
        if self.embeddings and "writes" not in self.modes:
            raise BadInput(f"embeddings belongs to mode writes, not to {', '.join(self.modes)}")
        if self.several and self.task.blocks:
            raise BadInput("blocks join texts, and here each text has a value of its own; leave blocks out")

    @property
    def treatments(self) -> tuple[ModeTreatment, ...]:
        """The modes, with their factors and tokens."""
        return treatments(self.modes, self.tokens)

    @property
    def several(self) -> bool:
        """Whether modes are compared, each part of the texts with the means of the others."""
        return len(self.treatments) > 1 or self.treatments[0].mode in IN_PARTS


@dataclass(frozen=True, kw_only=True)
class Command:
    """Further options of the command: which dimensions, how long texts are, and whether a copy is kept."""

    dims: Annotated[Dims | Find, Flag(read="options:planned_dims", words=FIND)] = FIND
    """308,381, or by layer: 0-9:896;10-16:678; neurons: 11:1229,12:40; find: those that scan names in the weights, else
    observe on the texts, else the strongest."""
    options: Annotated[AblateOptions, Flat()] = AblateOptions()
    """How the dimensions are ablated."""
    words: Annotated[PredictionCall, Flat()] = PredictionCall()
    """What the model predicts then, in place of its loss."""
    max_length: Annotated[int | None, Ge(2)] = None
    """Maximum number of tokens per text. Default: 128; labelled: 256."""
    save: Path | None = None
    """Write a copy of the model with the dimensions ablated."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Damage(Measurement):
    """A set of dimensions under one mode."""

    mode: Annotated[str, Quiet]
    factor: Annotated[float, Quiet] = math.nan
    """factor: of a scale; NaN of other modes"""
    recovered: Annotated[Estimate, Share] = UNKNOWN
    """recovered: share of zero's damage that it does not do: 0 is no better than zero, 1 as good as intact"""
    random: Annotated[tuple[float, ...], Draws, Change] = ()
    """random: change of each random set, treated alike"""
    random_sets: Annotated[tuple[tuple[int, ...], ...], Quiet] = ()
    """random sets: their dimensions"""
    p: Annotated[float | None, P] = None
    """p: (1 + number of random sets with at least this change) / (1 + n)"""


@dataclass(frozen=True, kw_only=True)
class Ablation(Finding):
    """The effect of ablating dimensions on a model, against controls.

    Attributes:
        conditions: the intact model, then each set under each mode, the whole set under the first mode first.
        controls: the control sets of a single mode. families: the chosen set beside each family of them.
        replies: the passage under the intact model, the median random set and the chosen one.
        n_folds: parts of the texts, where several modes are compared. no_mean: share of tokens whose position has no mean.
        texts, weights: then numbers of the texts in the order of their values, and what each counts.
    """

    title = "Ablation"

    conditions: tuple[Damage, ...]
    """Conditions"""
    families: tuple[Control, ...] = ()
    """Controls"""
    controls: tuple[Measurement, ...] = ()
    """(Control sets)"""
    replies: tuple[Reply, ...] = ()
    """The passage"""
    n_folds: int = 1
    no_mean: float = 0.0
    texts: Annotated[tuple[int, ...], "text, or empty"] = ()
    weights: Annotated[tuple[float, ...], "text, or empty"] = ()

    @property
    def intact(self) -> Damage:
        """The model untouched."""
        return self.conditions[0]

    @property
    def chosen(self) -> Damage:
        """The whole set, under the first mode."""
        return self.conditions[1]

    @property
    def modes(self) -> tuple[Damage, ...]:
        """Every set under every mode, without the intact model."""
        return self.conditions[1:]

    @property
    def compares(self) -> bool:
        """Whether several modes were measured."""
        return len({one.mode for one in self.modes}) > 1

    def family(self, *kinds: str) -> Control | None:
        """The first of these kinds of controls that was measured."""
        return next((one for kind in kinds for one in self.families if one.family == kind), None)

    @property
    def judged(self) -> Judgement:
        """What a single mode does. Unclear: no interval, no random sets, or too few for p ≤ 0.05.

        Harmless: the 95 % interval of the change holds zero or lies below it, or the change is no more than the 95th percentile
        of the random sets'. Damaging: neither, and rank p ≤ 0.05.
        """
        change, control = self.chosen.change, self.family("random")
        if not math.isnan(change.low) and change.low <= 0:
            return "harmless"
        if (math.isfinite(change.value) and math.isnan(change.low)) or control is None or not control.n:
            return "unclear"
        if change.value <= control.percentile_95:
            return "harmless"
        return "damaging" if control.p is not None and control.p <= SIGNIFICANT + 1e-12 else "unclear"

    def advice(self) -> Iterator[Advice]:
        """What to leave alone, or that nothing needs it; of experts nothing."""
        if self.about.kind == "expert":
            return
        change, dims = self.chosen.change.value, sorted(self.dims)
        why = f"{self.chosen.mode}: {change:+.3g} {self.about.of_change}"
        if self.judged == "damaging" and change >= SMALL:
            yield Advice(
                "prune",
                f"When you prune or edit, leave {these(dims)} alone, in every layer: {self.chosen.n_set or 0:,} values carry "
                "this damage.",
                why,
                (
                    about(
                        self.provenance, "prune protect", "--export", "torch-pruning", dims=dims, stack=self.about.stack
                    ),
                ),
            )
        elif self.judged == "harmless" and not self.compares:
            need, are = ("need", "they are outliers") if len(dims) > 1 else ("needs", "it is an outlier")
            yield Advice(
                "prune",
                f"{these(dims).capitalize()} {need} no protection on this task, though {are}.",
                f"{why}, no more than random sets",
                until=("Sweep",),
            )

    def of(self, dims: str, mode: str) -> Damage:
        """A set, "308, 381", under a mode; raises BadInput with those there are."""
        return pick(self.modes, f"{mode} of {dims} was not measured", dims=dims, mode=mode)

    def does_damage(self, dims: str) -> bool:
        """Whether zero does more damage than none, and than to every random set."""
        zero = self.of(dims, ZERO)
        return zero.change.low > 0 and all(zero.change.value > one for one in zero.random)

    def verdict(self, dims: str) -> Verdict:
        """What the dimensions are, by `RULE`."""
        if not math.isfinite(self.of(dims, ZERO).change.low):
            return "too few texts"
        if not self.does_damage(dims):
            return "no damage"
        mean, by_position = (self.of(dims, mode).recovered.side(HALF) for mode in (MEAN, POSITION_MEAN))
        if mean > 0:
            return "fixed"
        if by_position > 0:
            return "by position"
        return "information" if mean < 0 and by_position < 0 else "unclear"

    def place(self, dims: str) -> Place:
        """At which tokens the dimensions must not be zero, by `RULE`; "" where zero does no damage."""
        if not self.does_damage(dims):
            return ""
        kept, only = (self.of(dims, mode).recovered.side(HALF) for mode in (KEPT, FIRST))
        if kept > 0:
            return "first token"
        if only > 0:
            return "other tokens"
        return "both" if kept < 0 and only < 0 else "unclear"

    @property
    def control_kinds(self) -> str:
        """What each family of controls is, in a sentence each."""
        return control_kinds(self.about.kind, [one.family for one in self.families])

    def drawn(self) -> tuple[Picture, ...]:
        """Controls beside the chosen set; of several modes each mode, and the scales from 0 (zero) over 1 (nothing done)."""
        if not self.compares:
            return (FAMILIES if self.families else MODES,)
        return (MODES, SCALES) if any(math.isfinite(one.factor) for one in self.modes) else (MODES,)

    def records(self, which: str = "") -> Iterator[dict[str, Any]]:
        """One flat row per condition, those of controls too, unless `which` names a table."""
        yield from super().records(which or "conditions")
        if not which and self.controls:
            yield from super().records("controls")

    def sentences(self) -> Iterator[str]:
        intact, off = (
            (1 - one if self.about.metric else one) for one in (self.intact.value.value, self.chosen.value.value)
        )
        said = f"Intact {intact:.4g}"
        if self.compares:
            yield from map(self._says, dict.fromkeys(one.dims for one in self.modes))
            yield f"{said}; means of the other {self.n_folds - 1} of {self.n_folds} parts of the {self.about.inputs}."
            return
        about, change = self.about, self.chosen.change
        if not math.isfinite(change.value):
            yield f"With {few(about.dims)} ablated the {about.measured} is infinite or undefined."
        else:
            why = no_interval(about.n_texts, metric=about.metric)
            ends = f"{change.low:+.3g} to {change.high:+.3g}" if change.settled else f"not settled: {why}"
            yield (
                f"With {few(about.dims)} ablated the {about.measured} changes by {change.value:+.3g} {about.of_change} "
                f"(95 % interval {ends})."
            )
        for one in self.families:
            if one.family != "ordinary":
                rank = "" if one.p is None else f"; rank p = {one.p:.3g}"
                yield (
                    f"{one.family.capitalize()} sets of the same size: median {one.median:+.3g}, 95th percentile "
                    f"{one.percentile_95:+.3g}, mean {one.mean:+.3g}{rank}{size_alone(one, change.value, self.judged)}."
                )
        values = f", {self.chosen.n_set:,} values set" if self.chosen.n_set else ""
        yield f"{said}, ablated {off:.4g}; mode {self.chosen.mode}{values}."

    def _says(self, dims: str) -> str:
        measured = {one.mode for one in self.modes if one.dims == dims}
        first = next(one for one in self.modes if one.dims == dims)
        unit = f"{self.about.task} by {first.change.written()} {self.about.unit}"
        if not {ZERO, MEAN, POSITION_MEAN, KEPT, FIRST} <= measured:
            return f"{dims}: {first.mode} changes the {unit}; for a verdict measure --modes all."
        zero, verdict = self.of(dims, ZERO), self.verdict(dims)
        why = f", for {no_interval(self.about.n_texts, self.about.inputs)}" if verdict == "too few texts" else ""
        said = f"{dims}: {SAYS[verdict]}{why}. Zero changes the {self.about.task} by {zero.change.written()} {self.about.unit}"
        if zero.random:
            said += f", random dimensions by {np.median(zero.random):+.2g} (median of {len(zero.random)})"
        if verdict in ("too few texts", "no damage"):
            return said + "."
        mean, by_position, kept = (self.of(dims, mode).recovered.percent() for mode in (MEAN, POSITION_MEAN, KEPT))
        said += f"; the mean recovers {mean} of it, the mean at each position {by_position}"
        said += f", keeping the first token alone {kept}"
        return said + PLACES.get(self.place(dims), "") + "."

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """A table; below that of the controls what each kind is, below several modes the rule of the verdict."""
        note = {"families": self.control_kinds, "conditions": RULE if self.compares else ""}.get(name, note)
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def shown(self, *, verbose: bool = False) -> Iterator[Rows]:
        """Its tables, and further numbers of the task: of one mode always, of several with `verbose`."""
        yield from super().shown(verbose=verbose)
        if self.chosen.also and (verbose or not self.compares):
            cells = tuple((one.label, *(one.also.get(name) for name in self.chosen.also)) for one in self.conditions)
            yield Rows("Further numbers", ("condition", *self.chosen.also), cells)


def _recovers(row: Damage) -> str:
    known = math.isfinite(row.recovered.value) and row.mode != ZERO
    return f"recovers {round(100 * row.recovered.value)} %" if known else ""


SAME = {"factor": 1, "change": 0, "low": None, "high": None, "same": True}  # nothing done
FAMILIES = Strips(rows="families", x="change", y="family", draws="sets", greys="control sets", captioned=False)
MODES = Strips(
    rows="modes", x="change", y="mode", by="dims", draws="random", says=_recovers,
    where=lambda one: one.mode == ZERO or not math.isfinite(one.factor),
)  # fmt: skip
SCALES = Lines(
    rows="modes", x="factor", y="change", by="dims", draws="random", where=lambda one: math.isfinite(one.factor),
    title="Values multiplied by a factor (0: zero, 1: nothing done)",
    extra=lambda found: [{"group": dims, **SAME} for dims in dict.fromkeys(one.dims for one in found.modes)],
)  # fmt: skip


# --- how it is found ---------------------------------------------------------------------------------------------


def ablate(
    loaded: LoadedModel,
    texts: Data,
    dims: Dims | Find = FIND,
    options: AblateOptions | None = None,
    *,
    progress: Progress | None = None,
    rows: Path | Keep | None = None,
) -> Ablation:
    """Measure `loaded` intact, with `dims` ablated in one or several modes, and with control sets ablated.

    With one mode the controls are random, ordinary and matched sets; with several, random sets, and each part of the
    texts gets the means of the others. With `rows`, every finished condition is kept there and is not measured again.

    Args:
        dims: a sequence, or {layer: dims} where layers differ (a random set then has another dimension for each of
            them, the same in every layer); "find" is what the scan names, else the rules on activations, else the strongest.

    Raises:
        BadInput: unknown dimension, layer or mode; no usable text; a mode that the model does not allow; for several modes
            fewer than two usable texts, or a metric that is not a mean over texts.
    """
    options = reaching(loaded, texts, options or AblateOptions())
    stack = loaded.axis(options.stack, experts=True)
    check_neurons(stack, dims, options)
    reached = cache(partial(expert_reach, loaded, stack, texts, options))  # read once, by whoever asks
    asked, named = asked_dims(loaded, stack, texts, dims, options, reached)
    plan = plan_dims(stack, stream_width(loaded.model, stack), asked, options.layers)
    alone: list[Plan] = [{layer: (dim,) for layer, off in plan.items() if dim in off} for dim in dims_of(plan)]
    work = _Work(
        loaded, texts, stack, [plan, *(alone if options.each and len(alone) > 1 else [])], options, named, reached
    )
    return (_several if options.several else _single)(work, progress, rows)


def run(session: "Session", command: Command) -> Ablation | Predictions:
    """What the command finds; a copy of the model is written once that is shown."""
    if command.words.predictions is not None:
        return compared(session, command)
    reading, options = session.task_reading, command.options
    if reading.limit is None and not reading.is_labelled:
        reading = replace(reading, limit=SEVERAL_TEXTS if options.several else TEXTS)
    task = reading.options(max_length=command.max_length, batch_size=options.task.batch_size, seed=options.seed)
    options = replace(options, task=task)
    texts = reading.read(offline=session.load.offline)
    if command.save:
        check_save(command.save, *options.modes)
    found = ablate(session.loaded, texts, command.dims, options, progress=session.progress, rows=session.kept)
    if command.save:
        session.then = partial(_save, session, command.save, command.options, found)
    return found


def _save(session: "Session", folder: Path, options: AblateOptions, found: Ablation) -> None:
    axis = session.loaded.axis(found.about.stack)
    switch = Switch(session.loaded, axis, cast(Any, options.modes[0]), options.embeddings)
    session.notice(f"{folder}: model with {switch.save(found.chosen.plan, folder):,} values ablated")


@dataclass(frozen=True)
class _Work:
    """What is measured: the whole set of dimensions, then each alone where that was asked for."""

    loaded: LoadedModel
    texts: Data
    stack: "BoundStack"
    plans: list[Plan]
    options: AblateOptions
    named: NamedDims
    reached: Callable[[], Outputs]

    def study(self, task: Task, progress: Progress | None, rows: Path | Keep | None, **more: Any) -> Study:
        options = self.options
        shared = {"task": asdict(options.task), "stack": self.stack.name, "seed": options.seed}
        identity = shared | {"embeddings": options.embeddings} | more
        return Study(self.loaded, task, self.texts, identity, rows=rows, progress=progress)

    def finding(self, study: Study, notes: Sequence[str], **found: Any) -> Ablation:
        length = row_limit(self.loaded, self.texts, self.options.task.max_length)
        return Ablation(
            provenance=self.loaded.provenance(seed=self.options.seed, digest=study.fingerprint), **found,
            about=study.about(self.plans[0], named_by=self.named.by, max_length=length),
            notes=(*self.loaded.notes, *self.named.notes, *notes),
        )  # fmt: skip


def _single(work: _Work, progress: Progress | None, rows: Path | Keep | None) -> Ablation:
    """One mode, beside random, ordinary and matched sets."""
    loaded, texts, stack, options, plan = work.loaded, work.texts, work.stack, work.options, work.plans[0]
    (treatment,) = options.treatments
    mode: Any = treatment.mode
    task = make_task(loaded, texts, task_for(mode, options.task))
    notes = [*task.notes, unseen_note(task.n_texts, texts.plural)]
    settings = EditSettings(seed=options.seed)
    switch = treatment.of(Switch(loaded, stack, embeddings=options.embeddings, settings=settings))
    if mode == MEAN:
        length = row_limit(loaded, texts, options.task.max_length)
        switch = switch.with_means(texts, length=length, batch_size=options.task.batch_size)
        notes.append(
            f"the mean that replaces a value is taken over {tokens_read(length)} of each of these {texts.plural}"
        )
    switch.check(plan)
    controls, closeness = control_sets(loaded, stack, plan, options, work.reached)
    wanted = [("chosen", "chosen", plan)]
    wanted += [("alone", f"{dims_of(one)[0]} alone", one) for one in work.plans[1:]] + controls
    with work.study(task, progress, rows, mode=switch.name, tokens=options.tokens) as study:
        done = study.measure([Condition(family, label, one, partial(switch.off, one)) for family, label, one in wanted])
        mine = [one for one in done if one.condition.family in ("chosen", "alone")]
        others = done[len(mine) :]
        said = tuple(replies(switch, options.passage or texts.passage, typical(study, done), seed=study.seed))
    if loaded.blocks is not None and loaded.head == "causal":
        notes.append("the passage is not continued: of a model read block by block each word would read all weights")
    if n_lost := int(np.isnan(mine[0].values).sum()):
        notes.append(
            f"with these dimensions ablated the {task.name} is NaN on {n_lost:,} of {task.n_texts:,} {texts.plural}: "
            f"the change and its p are undefined"
        )
    return work.finding(
        study, notes,
        conditions=(study.row(study.intact, Damage, mode=""), *(study.row(one, Damage, mode=switch.name) for one in mine)),
        families=study.families([mine[0], *others], closeness=closeness), controls=tuple(map(study.row, others)),
        replies=said,
    )  # fmt: skip


def _several(work: _Work, progress: Progress | None, rows: Path | Keep | None) -> Ablation:
    """Several modes, zero first where it is among them, beside random sets treated alike; parts get the means of others."""
    loaded, options = work.loaded, work.options
    if work.stack.reads:
        raise BadInput(f"--stack {work.stack.name}: neurons are ablated in one mode; name one of weights, zero, mean")
    modes = sorted(options.treatments, key=lambda one: one.name != ZERO)
    n = N_RANDOM if options.n_random is None else options.n_random
    controls = [random_plans(loaded, work.stack, one, n=n, seed=options.seed) for one in work.plans]
    everything = [*work.plans, *(one for some in controls for one in some)]
    columns = sorted({dim for one in everything for dim in dims_of(one)})
    tasks, numbers = tasks_of_parts(loaded, work.texts, options.task, options.n_folds)
    switch = Switch(loaded, work.stack, embeddings=options.embeddings, settings=EditSettings(seed=options.seed))
    for mode in modes:
        mode.of(switch).check(work.plans[0])
    parts = Folds(switch, tasks, columns)

    def condition(mode: ModeTreatment, family: str, plan: Plan) -> Condition:
        return Condition(family, mode.name, plan, partial(parts.treated, plan, mode), f"{mode.name} {plan_key(plan)}")

    found = []
    with work.study(parts, progress, rows, folds=options.n_folds, columns=len(columns)) as study:
        study.announce([f"{mode.name} {plan_key(one)}" for mode in modes for one in everything])
        for plan, random in zip(work.plans, controls, strict=True):
            zero: Outcome | None = None
            for mode in modes:
                done, *others = study.measure(
                    [condition(mode, "chosen", plan), *(condition(mode, "random", one) for one in random)]
                )
                zero = done if mode.name == ZERO else zero
                found.append(_treated(study, mode, done, zero, others))
    return work.finding(
        study, parts.notes, conditions=(study.row(study.intact, Damage, mode=""), *found), n_folds=len(tasks),
        no_mean=parts.no_mean, texts=numbers, weights=tuple(parts.weights.tolist()),
    )  # fmt: skip


def _treated(study: Study, mode: ModeTreatment, done: Outcome, zero: Outcome | None, others: list[Outcome]) -> Damage:
    """A row of several modes: what is recovered of zero's damage, and the random sets."""
    random, share = tuple(study.change(one).value for one in others), UNKNOWN
    if zero is not None and study.change(zero).low > 0:
        share = recovered(study.intact.values, zero.values, done.values, study.weights)
    p = rank_p(study.change(done).value, np.array(random)) if others else None
    sets = tuple(dims_of(one.condition.plan) for one in others)
    return study.row(
        done, Damage, mode=mode.name, factor=mode.factor, recovered=share, random=random, random_sets=sets, p=p
    )
