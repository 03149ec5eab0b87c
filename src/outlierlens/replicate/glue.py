"""A paper's table on GLUE for any model: fine-tune, switch outliers off without training again, compare with random sets.

    made = replicate("distilbert-cased", GlueOptions(paper="kovaleva-glue", tasks=("rte", "cola")), Path("runs/kovaleva"))
    made.all_off("rte seed-42").lost               # Estimate: metric lost with all outliers off; 0.12 is 12 points

The run directory holds tuned/TASK/ (fine-tuning), TASK-LABEL/rows/ (what is measured, from which a stopped run goes on),
TASK-LABEL/sweep.json, sweep-together.json and sweep-layers.json, and replication.json.

Where the fine-tuned models come from: named, a model or a run of `finetune`; what does not fit is refused before any work.

tuned = find_tuned("glue:rte", ["runs/distilbert-rte"])     # a run of finetune: one model per seed; or a model's folder
check_models("distilbert-cased", tuned, dev, load)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from outlierlens.ablation.controls import figures_of, times
from outlierlens.ablation.modes import mode_by_layer
from outlierlens.analyses.finetune import (
    MODEL,
    RESULT,
    FineTunedModel,
    FinetuneOptions,
    FinetuneSettings,
    finetune,
    seed_folder,
)
from outlierlens.analyses.sweep.finding import Effect, Sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.architectures import own_parameters
from outlierlens.data.labelled import TASKS, Examples, LabelledTask, find_task, label_order
from outlierlens.detection.targets import named_dims
from outlierlens.errors import BadInput, pick
from outlierlens.models.inputs import Progress
from outlierlens.models.load import LoadedModel, LoadOptions, load_config, load_model
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.replicate.papers import (
    PaperData,
    Protocol,
    PublishedNumber,
    checkpoint_of,
    find_protocol,
    published_for,
    shortened,
)
from outlierlens.results.document import Provenance, save
from outlierlens.results.document import load as load_result
from outlierlens.results.document import load as read_result
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep, alone_in
from outlierlens.results.rows import Draws, Estimate, More, Quiet, Row
from outlierlens.statistics.means import no_change
from outlierlens.tasks.base import TaskOptions
from outlierlens.view.pictures import Lines, Picture, Strips
from outlierlens.view.section import Change, Count, P, listed

# --- fine-tuned models -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunedModel:
    """A fine-tuned model: its name or folder, what it is called in tables, and the model it was made from, where known."""

    task: str
    model: str
    label: str
    base: str | None = None

    def notes(self, base: str) -> tuple[str, ...]:
        """A note where the model was made from one of another name than `base`."""
        other = self.base not in (None, base)
        return (f"{self.model} was fine-tuned from {self.base}; whether that is {base} was not checked",) * other


def find_tuned(task: str, named: Sequence[str]) -> list[TunedModel]:
    """The fine-tuned models that names stand for: a run of finetune (each seed), or one model; same labels are numbered.

    Raises:
        BadInput: a run that was made for another task, or is not finished.
    """
    found = list[TunedModel]()
    for name in named:
        folder = Path(name)
        # Models of the run may have been moved since, with its folder.
        runs = [above for above in (folder, *list(folder.parents)[:2]) if (above / RESULT).is_file()]
        run = read_result(runs[0] / RESULT) if runs else None
        base, places = None, {folder.name: name}
        if isinstance(run, FineTunedModel):
            base, learned = (
                run.base,
                [find_task(one).trained_on or one for one in (run.about.task, task) if one in TASKS],
            )
            if len({*learned}) > 1:  # HANS is learned from MNLI; your own data may be of any task
                raise BadInput(f"{folder} was fine-tuned on {run.about.task}, not on {task}")
            if runs[0] == folder:
                places = {f"seed-{one.seed}": str(seed_folder(folder, one.seed) / MODEL) for one in run.seeds}
        elif folder.is_dir() and not (folder / "config.json").is_file():
            raise BadInput(
                f"{folder}: neither a model (config.json) nor a finished run of finetune; name one, or a hub id"
            )
        found += [TunedModel(task, place, f"{shortened(task)} {label}", base) for label, place in places.items()]
    if len({one.label for one in found}) < len(found):
        return [replace(one, label=f"{one.label} ({n})") for n, one in enumerate(found, 1)]
    return found


def check_models(
    base: str,
    known: Sequence[TunedModel],
    dev: Mapping[str, Examples],
    load: LoadOptions,
    labels: Sequence[str] = (),
    dims: Sequence[int] = (),
) -> None:
    """Raise for what does not fit, by the models' configurations alone; `labels` are of the models' outputs.

    Raises:
        BadInput: a model with other labels than its task, or without one of the dimensions.
        UnknownModel: there is no such model.
    """
    # Revision and folder are of the base model.
    configs = {one.model: load_config(one.model, replace(load, revision=None, subfolder="")) for one in known}
    for one in known:
        label_order(dev[one.task].task, configs[one.model].id2label, labels or None, where=one.model)
    if dims and {*dev} - {one.task for one in known}:  # which are fine-tuned from it
        configs[base] = load_config(base, load)
    for model, config in configs.items():
        width = getattr(config.get_text_config(), "hidden_size", None)
        if isinstance(width, int) and (wrong := [dim for dim in dims if not 0 <= dim < width]):
            raise BadInput(f"dimension {wrong[0]} does not exist; {model} has dimensions 0 to {width - 1}")


REPLICATION = "replication.json"
SINGLES, TOGETHER, PASSING, LAYERS = "sweep.json", "sweep-together.json", "sweep-passing.json", "sweep-layers.json"
ENOUGH = 5.0  # times the mean loss of random sets, which Puccetti et al. (2022) ask for
Kind = Literal["each", "all", "passing"]


# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GlueOptions:
    """Data, models and controls of the replication."""

    paper: Annotated[str, Flag(hidden=True)] = "kovaleva-glue"
    """Authors of the protocol."""
    tasks: Annotated[tuple[str, ...], Flag(read="options:parse_names", words="rte,cola,stsb,sst2")] = (
        *("rte", "cola", "stsb", "sst2"),
    )
    """Labelled tasks: rte,cola,stsb,sst2, …"""
    data: str | None = None
    """Folder with one folder per task. Default: the hub's copies."""
    tuned: tuple[str, ...] = ()
    """rte=DIR: a fine-tuned model, or a run of finetune. Repeatable; others are trained."""
    settings: Annotated[FinetuneSettings, Flat("epochs", "learning_rate", "batch", "max_length", "train_limit")] = (
        FinetuneSettings()
    )
    """Of fine-tuning."""
    seeds: Annotated[tuple[int, ...], Flag(read="options:parse_seeds", words="42")] = (42,)
    """Seeds of fine-tuning, one model each: 42,43."""
    dims: DimsOrFind = FIND
    """Dimensions to ablate, 308,381; find: those that the paper's rule names, or else the two of largest |z|."""
    n_random: Annotated[int | None, Flag("--random"), Ge(0)] = None
    """Random sets (and dimensions). Default: the paper's 1,000."""
    n_matched: Annotated[int, Flag("--matched"), Ge(0)] = 19
    """Sets with weights of the same size, at other positions."""
    every: bool = False
    """Also ablate every single dimension: Kovaleva's figure 2."""
    layers: bool = False
    """Also ablate in each single layer, against 19 random sets: Puccetti's windows."""
    labels: Annotated[tuple[str, ...], Flag(into="--tasks", read="options:parse_names")] = ()
    """With one task: its models' labels in the order of their outputs, if their config has none."""
    limit: Annotated[int | None, Ge(2)] = None
    """First N examples of the dev split."""
    seed: Annotated[int, Ge(0)] = 42
    """Seed of the control sets."""

    def __post_init__(self) -> None:
        check(self)
        _ = (self.protocol, self.models)  # raise for a paper or a task that is none
        if not self.tasks or len(set(self.labelled)) != len(self.tasks):
            raise BadInput(f"tasks are {', '.join(self.tasks) or 'none'}; name at least one, and none twice")
        if self.labels and len(self.tasks) > 1:
            raise BadInput(f"labels are of one task's models, and there are {len(self.tasks)} tasks; name one")

    @property
    def labelled(self) -> tuple[LabelledTask, ...]:
        """The tasks' rows in the table of tasks."""
        return tuple(map(find_task, self.tasks))

    @property
    def protocol(self) -> Protocol:
        """The paper's, with as many random sets as are asked for."""
        named = find_protocol(self.paper)
        return named if self.n_random is None else replace(named, n_random=self.n_random)

    @property
    def models(self) -> dict[str, tuple[str, ...]]:
        """{task: fine-tuned models} that are named."""
        found: dict[str, tuple[str, ...]] = {}
        for one in self.tuned:
            task, _, model = one.partition("=")
            if not task or not model:
                raise BadInput(f"--tuned is {one!r}; write it as rte=DIR")
            if find_task(task) not in self.labelled:
                raise BadInput(f"--tuned is named for {task}, which is not among the tasks; add it to --tasks")
            found[find_task(task).name] = (*found.get(find_task(task).name, ()), model)
        return found


KOVALEVA, PUCCETTI = GlueOptions(), GlueOptions(paper="puccetti-glue")


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Loss(Row):
    """What a fine-tuned model loses with dimensions ablated, against control sets of the same size."""

    model: str
    kind: Annotated[Kind, Quiet]
    """each outlier, all of them (or the only one), or those that pass the test of 5 × random together"""
    off: str
    """ablated"""
    layer: int | None = None
    dims: Annotated[tuple[int, ...], Quiet]
    task: Annotated[str, Quiet]
    metric: str
    intact: float
    value: float
    """with them ablated"""
    lost: Annotated[Estimate, Change]
    """metric lost: paired by example"""
    random: Annotated[tuple[float, ...], Draws, Change] = ()
    """lost by each random set: of the same number of ordinary dimensions, in the same layers"""
    times_random: float | None = None
    """× random: the loss over the random sets' mean; none where that is not positive"""
    passes: str | None = None
    """≥ 5 ×: as Puccetti et al. (2022) ask, who ask for no interval: "in doubt" is one that reaches 0. Where random sets cost
    nothing on average, whether the interval lies above 0"""
    p: Annotated[float | None, P] = None
    """rank p: among the random sets; of a dimension where all were swept, among all others"""
    matched: Annotated[tuple[float, ...], Quiet] = ()
    """lost by each set with as large weights elsewhere"""
    matched_median: Annotated[float | None, Change] = None
    """matched median: of sets with as large weights at other positions"""
    closeness: Annotated[float | None, More] = None
    """as large: median of the matched sets' magnitudes over the wanted ones; 1 is a perfect match"""
    n_parameters: Annotated[int, Count]
    """parameters: set to zero"""
    published: Annotated[float | None, Change] = None
    """published loss"""


@dataclass(frozen=True, kw_only=True)
class TaskModel(Row):
    """A fine-tuned model on its task, intact."""

    model: str
    task: str
    metric: str
    intact: Estimate
    n_examples: Annotated[int, Count]
    """examples"""
    dims: tuple[int, ...]
    """outliers"""
    named_by: str
    """named by"""
    by_rule: Annotated[bool, Quiet]
    n_parameters: Annotated[int, Count]
    """parameters: of the whole model"""
    folder: Annotated[str, Quiet]
    """the model's folder or name"""
    fingerprint: Annotated[str, Quiet]
    data: Annotated[str, Quiet]


def _of(model: str, row: Loss) -> bool:
    return row.model == model


def _ratio(row: Loss) -> str:
    if row.passes is None:
        return ""
    return "random: no loss" if row.times_random is None else f"× {row.times_random:.3g}"


@dataclass(frozen=True, kw_only=True)
class Replication(Finding):
    """A paper's table for one model.

    Attributes:
        paper: "kovaleva-glue" or "puccetti-glue". base: the pre-trained model.
        settings: the options that it was made with.
    """

    title = "Outliers ablated in fine-tuned models"

    losses: tuple[Loss, ...] = ()
    """Ablated in all layers, not trained again"""
    by_layer: tuple[Loss, ...] = ()
    """Ablated in one layer alone"""
    models: tuple[TaskModel, ...] = ()
    """Fine-tuned models"""
    published: tuple[PublishedNumber, ...] = ()
    """Published numbers"""
    paper: str
    base: str
    settings: dict[str, Any]

    def all_off(self, model: str) -> Loss:
        """What a model loses without all its outliers; raises BadInput with those there are."""
        return pick([row for row in self.losses if row.kind == "all"], f"no model {model!r}", model=model)

    def drawn(self) -> tuple[Picture, ...]:
        """All outliers of every model against random sets; then layers, a panel for each model."""
        several = dict.fromkeys(row.model for row in self.by_layer)
        strips = Strips(rows="losses", x="lost", y="model", draws="random", says=_ratio, captioned=False)
        layers = Lines(rows="by_layer", x="layer", y="lost", by="off", captioned=False)
        return (
            replace(strips, where=lambda row: row.kind == "all"),
            *(replace(layers, title=one, where=partial(_of, one)) for one in several),
        )

    def sentences(self) -> Iterator[str]:
        tested = [row for row in self.losses if row.kind == "all" and row.passes]
        enough = [f"{row.model}{str(row.passes)[3:]}" for row in tested if row.passes != "no"]
        by_rule = all(one.by_rule for one in self.models)
        what = "the outliers cost" if by_rule else "the ablated dimensions (not by the rule) cost"
        where = f" ({'; '.join(enough)})" if enough else ""
        yield (
            f"{self.base}: {what} at least {ENOUGH:g} times what random sets cost in {len(enough)} of {len(tested)}{where}."
        )
        for one in self.models:
            yield (
                f"{one.model}: {one.metric} {one.intact.written('.3f')} on {one.n_examples:,} examples of {one.task}; ablated: "
                f"{listed(one.dims)} ({one.named_by})."
            )
            if any(row.lost == Estimate(0, 0, 0) for row in (*self.losses, *self.by_layer) if row.model == one.model):
                yield f"{one.model}: “no change” means {no_change(one.n_examples, 'examples')}."


# --- from sweeps to rows -----------------------------------------------------------------------------------------


def loss_of(
    sweep: Sweep, effect: Effect, kind: Kind, model: TaskModel, published: Sequence[PublishedNumber] = ()
) -> Loss:
    """The row of one effect of a sweep of this model, with its control sets.

    Ordinary sets describe, and p is the rank among random ones. Where every single dimension was swept, those without a name
    are the ordinary ones, and p is the rank among all others.
    """
    dims, several, change = effect.dims, len(effect.dims) > 1, effect.change
    nulls = {n.kind: n for n in sweep.nulls if (n.label, n.window) == (effect.label, effect.window) and n.changes}
    described, named = nulls.get("ordinary", nulls.get("random")), {*model.dims, *sweep.found}
    others = () if several else tuple(e.change.value for e in sweep.singles(effect.window) if e.dims[0] not in named)
    random, p = (described.changes, nulls["random"].p) if described else (others, effect.p)
    layer = effect.layers[0] if effect.window != "all layers" else None
    known = [one for one in published if {*one.off} == {*dims} and layer is None]
    row = Loss(
        model=model.model, kind=kind, off=", ".join(map(str, dims)), layer=layer, dims=dims, task=model.task,
        metric=model.metric, intact=1 - sweep.intact.value, value=1 - (sweep.intact.value + change.value),
        lost=Estimate(change.value, *((0.0, 0.0) if change.value == effect.spread == 0 else (change.low, change.high))),
        n_parameters=effect.n_parameters, published=-known[0].change if known else None,
    )  # fmt: skip
    if matched := nulls.get("matched"):
        lost = _finite(matched.changes)
        row = replace(
            row, matched=tuple(lost.tolist()), matched_median=figures_of(lost)[0], closeness=matched.closeness
        )
    if not described and len(others) < 2:
        return row
    drawn = _finite(random)
    mean = figures_of(drawn)[2]
    enough = change.low > 0 if mean <= 0 else change.value >= ENOUGH * mean
    doubt = "" if change.low > 0 else ", in doubt" if row.lost.settled else ", not settled"
    passes = f"yes{doubt}" if enough else "no"
    return replace(row, random=tuple(drawn.tolist()), times_random=times(change.value, mean), passes=passes, p=p)


def _finite(changes: Sequence[float]) -> np.ndarray:
    """A loss that is no number any more is as bad as one that is infinite."""
    return np.nan_to_num(np.array(changes, dtype=float), nan=np.inf, posinf=np.inf)


def losses_of(
    together: Sweep, singles: Sweep | None, model: TaskModel, published: Sequence[PublishedNumber] = ()
) -> tuple[Loss, ...]:
    """Each outlier, where there are several, and all of them, ablated in all layers."""
    alone = [(singles, singles.effect(dim)) for dim in model.dims if singles and len(model.dims) > 1]
    each = [loss_of(sweep, one, "each", model, published) for sweep, one in alone]
    return (*each, loss_of(together, together.effects[0], "all", model, published))


def passing(rows: Sequence[Loss]) -> tuple[int, ...]:
    """The outliers that each cost at least 5 × random, where they are several and not all; else ()."""
    each = [row for row in rows if row.kind == "each"]
    enough = tuple(row.dims[0] for row in each if row.passes not in (None, "no"))
    return enough if 1 < len(enough) < len(each) else ()


def layers_of(sweep: Sweep, model: TaskModel) -> tuple[Loss, ...]:
    """Each outlier and all of them, ablated in every single layer, layer by layer."""
    effects = sorted(sweep.effects, key=lambda one: sweep.windows_swept.index(one.window))
    return tuple(loss_of(sweep, one, "all" if len(one.dims) == len(model.dims) else "each", model) for one in effects)


# --- how it is measured ------------------------------------------------------------------------------------------


def replicate(
    base: str,
    options: GlueOptions,
    folder: Path,
    *,
    load: LoadOptions | None = None,
    overwrite: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Replication:
    """Make the paper's table for the pre-trained model `base`, and write it with all that was measured to `folder`.

    Raises:
        BadInput: data or models that do not fit, before anything is computed.
    """
    load, tell = load or LoadOptions(), progress or (lambda *_: None)
    data = PaperData(options.data, load.offline)
    known = {task: find_tuned(task, names) for task, names in options.models.items()}
    dev = {task.name: data.examples(task, task.evaluated, options.limit) for task in options.labelled}
    train = {task.name: data.examples(task, task.trained) for task in options.labelled if task.name not in known}
    dims = () if options.dims == FIND else options.dims
    check_models(base, [one for models in known.values() for one in models], dev, load, options.labels, dims)
    found: dict[str, tuple[Any, ...]] = {}
    with alone_in(folder):
        for name, examples in dev.items():
            models = known.get(name)
            if models is None:
                how = FinetuneOptions(load, command, overwrite, progress=lambda line: tell(line, 0, 1))
                place = folder / "tuned" / shortened(name)
                run = finetune(base, train[name], examples, place, options.settings, seeds=options.seeds, options=how)
                models = [TunedModel(name, one.folder, f"{shortened(name)} seed-{one.seed}", base) for one in run.seeds]
            for one in models:
                work = _GlueWork(base, options, folder / folder_of(one.label), load, tell, overwrite)
                found = {key: found.get(key, ()) + more for key, more in work.measure(one, examples).items()}
        dtype = ", ".join(sorted({*found.pop("dtype")}))
        made = Replication(
            provenance=Provenance.now(base, found["models"][0].fingerprint, command=command, seed=options.seed, dtype=dtype),
            about=About(
                task=options.protocol.title, inputs="examples",
                n_texts=sum(one.n_examples for one in found["models"]),
                dims=tuple(dict.fromkeys(str(dim) for one in found["models"] for dim in one.dims)),
            ),
            paper=options.paper, base=base, settings=asdict(options),
            **{name: tuple(dict.fromkeys(rows)) for name, rows in found.items()},
        )  # fmt: skip
        save(made, folder / REPLICATION)
    return made


def folder_of(label: str) -> str:
    """Where in the run directory a model of this name is measured."""
    return "-".join("".join(c if c.isalnum() or c in "-_." else " " for c in label).split())


def sweeps_of(folder: Path, made: Replication) -> list[Sweep]:
    """The sweeps of single dimensions behind a replication, for figure 2; models without one are left out."""
    paths = [folder / folder_of(one.model) / SINGLES for one in made.models]
    return [load_result(path) for path in paths if path.is_file()]


@dataclass(frozen=True)
class _GlueWork:
    """Measures one fine-tuned model on its task, in its folder; `done` are its sweeps."""

    base: str
    options: GlueOptions
    folder: Path
    load: LoadOptions
    tell: Progress
    overwrite: bool
    done: list[Sweep] = field(default_factory=list)

    def measure(self, tuned: TunedModel, examples: Examples) -> dict[str, tuple[Any, ...]]:
        """Sweep, layer by layer too where asked for: {field of `Replication`: its rows or notes}."""
        options, task, protocol = self.options, examples.task, self.options.protocol
        # Revision and folder are of the base model.
        loaded = load_model(tuned.model, replace(self.load, revision=None, subfolder=""))
        stack, rule = loaded.stack(), protocol.rule
        named = named_dims(loaded, stack, options.dims, rule)
        dims, notes = named.dims, [*named.notes, *tuned.notes(self.base)]
        by_rule, sets = {*dims} == {*named.found}, (dims,) if len(dims) > 1 else ()
        run = partial(self._sweep, loaded, examples)
        singles = run(SINGLES, dims="all" if options.every else dims) if options.every or sets else None
        together = run(TOGETHER, dims=(), sets=(dims,), n_matched=options.n_matched)
        made, intact = together.provenance, together.intact
        model = TaskModel(
            model=tuned.label, task=task.name, metric=together.about.metric, n_examples=len(examples), dims=dims,
            intact=Estimate(1 - intact.value, 1 - intact.high, 1 - intact.low), by_rule=by_rule,
            named_by=f"the rule of {rule.name.capitalize()} et al. at {rule.sigmas}" if by_rule else named.by,
            n_parameters=sum(one.numel() for one in own_parameters(loaded.model).values()),
            folder=tuned.model, fingerprint=made.fingerprint, data=examples.source,
        )  # fmt: skip
        checkpoint = checkpoint_of(self.base, loaded.config) if tuned.base in (None, self.base) else ""
        published = tuple(
            one
            for one in published_for(options.paper, checkpoint)
            if one.data == task.name and one.metric in ("", task.metric) and {*one.off} == {*dims}
        )
        losses, by_layer = losses_of(together, singles, model, published), tuple[Loss, ...]()
        if protocol.select and (chosen := passing(losses)):
            swept = run(PASSING, dims=(), sets=(chosen,))
            losses += (loss_of(swept, swept.effects[0], "passing", model),)
            notes.append(f"{listed(chosen)} each cost at least 5 × random: chosen and measured on the same examples")
        if options.layers:
            mode, few = mode_by_layer(stack), min(protocol.n_random, 19)
            by_layer = layers_of(run(LAYERS, dims=dims, sets=sets, windows="single", n_random=few, mode=mode), model)
            if mode != "weights":
                notes.append(
                    "layer by layer, dimensions are ablated in the layer's output, as layers share their weights"
                )
        if reduced := [one.precision for one in self.done if one.precision]:
            worst = max(reduced, key=lambda precision: precision.deviation)
            notes.append(f"computed in {worst.dtype}; {worst.written(together.about.of_change)}")
        notes += [note for one in self.done for note in one.notes]
        return {
            "losses": losses, "by_layer": by_layer, "models": (model,), "published": published, "notes": tuple(notes),
            "dtype": (made.dtype,),
        }  # fmt: skip

    def _sweep(self, loaded: LoadedModel, examples: Examples, name: str, **more: Any) -> Sweep:
        """One call of `sweep` on all examples, each control set too, saved under a name."""
        from outlierlens.analyses.sweep.measure import sweep

        asked = self.options
        options = SweepOptions(
            with_found=False, exact=True, gradients=0, random_texts=len(examples), seed=asked.seed,
            task=TaskOptions(name="labelled", max_length=asked.settings.max_length, labels=asked.labels or None),
            **{"n_random": asked.protocol.n_random, "n_matched": 0, **more},
        )  # fmt: skip

        def told(label: str, done: int, total: int) -> None:
            self.tell(f"{self.folder.name}, {name.removesuffix('.json')}: {label}", done, total)

        rows = Keep(self.folder / "rows", fresh=self.overwrite and not self.done)
        self.done.append(sweep(loaded, examples, options, progress=told, rows=rows))
        save(self.done[-1], self.folder / name)
        return self.done[-1]
