"""A paper's table for a model: fine-tune where needed, sweep each task, and put the lines together.

    job = Replicating("kovaleva-glue", "distilbert-cased", Path("runs/kovaleva"), tasks=("rte", "cola"))
    made = replicate(job)

The run directory holds

    tuned/TASK/                 the run of fine-tuning, where the model was not named
    TASK-LABEL/rows.jsonl       everything measured, as it is measured; a stopped run goes on from it
    TASK-LABEL/sweep.json       one dimension at a time, for figure 2; sweep-together.json, sweep-layers.json
    replication.json            the result
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.modes import mode_by_layer
from outlierlens.data.labelled import Examples, LabelledTask, find_task
from outlierlens.detection.rules import Rule
from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.options import SweepOptions
from outlierlens.experiments.sweep.result import Sweep
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.replicate.glue.models import (
    Tuned,
    Tuning,
    Wanted,
    check_models,
    examples_of,
    find_tuned,
    make_tuned,
    shortened,
    told_base,
)
from outlierlens.replicate.glue.options import GlueOptions
from outlierlens.replicate.glue.result import Replication, Row, TaskTable
from outlierlens.replicate.glue.tables import Whole, passing, passing_rows, rows_of, window_rows
from outlierlens.replicate.outliers import STRONGEST, Named, name_outliers, scanned, scanned_base
from outlierlens.replicate.papers import Paper, checkpoint_of, find_paper, reference_for
from outlierlens.results.document import Provenance, save
from outlierlens.results.document import load as load_result
from outlierlens.results.row_store import alone_in, remove_rows
from outlierlens.tasks.base import TaskOptions

if TYPE_CHECKING:
    from outlierlens.experiments.sweep.measure import SweepProgress

RESULT, ROWS = "replication.json", "rows.jsonl"
LAYER_ROWS = "rows-by-layer.jsonl"  # of single layers, where they are switched off in another way
SINGLES, TOGETHER, PASSING, LAYERS = "sweep.json", "sweep-together.json", "sweep-passing.json", "sweep-layers.json"
PAIR = 2  # dimensions of a random set where there are no outliers
WINDOWS_FIRST = "glue:mnli"  # the task of the papers' single-layer windows


@dataclass(frozen=True)
class Replicating(GlueOptions):
    """What is replicated, on what: the protocol of `paper` for the pre-trained model `base`, kept in `directory`.

    `n_sigma`, `n_random` and `settings` are the paper's unless given; `relax_to` None is never relaxed. `dims` are () for what
    the rule names, or dimensions, or "strongest". `windows_task` is also measured layer by layer: None is MNLI, or the first.
    """

    paper: str
    base: str
    directory: Path
    overwrite: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.rule  # raises for a paper or a threshold that is none
        if not self.tasks or len(set(self.rows)) != len(self.tasks):
            raise BadInput(f"tasks are {', '.join(self.tasks) or 'none'}; name at least one, and none twice")
        if isinstance(self.dims, str) and self.dims != STRONGEST:
            raise BadInput(f"dims are {self.dims!r}; name dimensions or {STRONGEST!r}")
        for what, named in (("a fine-tuned model is", self.tuned), ("labels are", self.labels)):
            by_task = _by_task(named)
            extra = sorted(set(by_task) - {task.name for task in self.rows})
            if extra:
                raise BadInput(f"{what} named for {extra[0]}, which is not among the tasks; add it to --tasks")
            if len(by_task) < len(named):
                raise BadInput(f"{what} named for a task by two names ({', '.join(sorted(named))}); use one of them")
        if self.windows_task not in (None, "none") and find_task(str(self.windows_task)) not in self.rows:
            raise BadInput(f"the task of the windows, {self.windows_task}, is not among the tasks; add it to --tasks")

    @property
    def rows(self) -> tuple[LabelledTask, ...]:
        """The tasks' rows in the table."""
        return tuple(find_task(name) for name in self.tasks)

    @property
    def by_layer(self) -> str:
        """The task that is measured layer by layer; "" for none."""
        if self.windows_task == "none":
            return ""
        names = [task.name for task in self.rows]
        chosen = find_task(self.windows_task).name if self.windows_task else WINDOWS_FIRST
        return chosen if chosen in names else names[0]

    @property
    def rule(self) -> Rule:
        """The paper's rule with the settings asked for."""
        rule = find_paper(self.paper).rule
        n_sigma = rule.n_sigma if self.n_sigma is None else self.n_sigma
        return replace(rule, n_sigma=n_sigma, relax_to=self.relax_to)


def _by_task(named: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """What was given for tasks by any of their names, by the names of the table."""
    return {find_task(name).name: given for name, given in named.items()}


def _quiet() -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Hooks:
    """Who hears how far it is: `say` gets lines, `view` makes what hears a sweep's progress."""

    say: Callable[[str], None] = lambda _: None
    view: "Callable[[], AbstractContextManager[Callable[[SweepProgress], None] | None]]" = _quiet


def replicate(job: Replicating, load: LoadOptions | None = None, hooks: Hooks | None = None) -> Replication:
    """Make the paper's table for `job.base`, and write it with all that was measured to `job.directory`.

    Raises:
        BadInput: data or models that do not fit, before anything is computed; rows of other work in the directory.
    """
    load, hooks = load or LoadOptions(), hooks or Hooks()
    paper = find_paper(job.paper)
    known = {
        task: [one for model in models for one in find_tuned(task, model)]
        for task, models in _by_task(job.tuned).items()
    }
    for name, same in known.items():
        if len({one.label for one in same}) < len(same):  # folders of the same name
            known[name] = [replace(one, label=f"{one.label} ({n})") for n, one in enumerate(same, 1)]
    dev = {task.name: _examples(task, job, load, task.evaluated) for task in job.rows}
    train = {task.name: _examples(task, job, load, task.trained) for task in job.rows if task.name not in known}
    wanted = Wanted(load, () if isinstance(job.dims, str) else job.dims, _by_task(job.labels))
    check_models(job.base, [one for models in known.values() for one in models], dev, wanted)
    tables: list[TaskTable] = []
    with alone_in(job.directory):
        _claim(job)
        for task in job.rows:
            models = known.get(task.name) or _tune(job, load, hooks, train[task.name], dev[task.name])
            for one in models:
                hooks.say(f"{one.label}: {task.metric} of {len(dev[task.name]):,} examples with dimensions off")
                tables.append(_Table(job, paper, load, hooks).measure(one, dev[task.name]))
        dtypes = sorted({one.dtype for one in tables})
        made = Replication(
            provenance=Provenance.now(
                job.base, tables[0].fingerprint, command=job.command, seed=job.seed, dtype=", ".join(dtypes)
            ),
            paper=paper.name,
            base=job.base,
            settings=_settings(job, paper, tuned=bool(train)),
            tables=tuple(tables),
        )
        save(made, job.directory / RESULT)
    return made


def _claim(job: Replicating) -> None:
    """Raise BadInput where the directory holds the finished table of another paper or model."""
    path = job.directory / RESULT
    if not path.is_file() or job.overwrite:
        return
    before = load_result(path)
    if not isinstance(before, Replication) or (before.paper, before.base) != (job.paper, job.base):
        was = f"{before.paper} of {before.base}" if isinstance(before, Replication) else type(before).__name__
        raise BadInput(f"{job.directory} holds {was}; name another directory with -o, or replace it with --overwrite")


def sweeps_of(directory: Path, made: Replication) -> list[Sweep]:
    """The sweeps of single dimensions behind a replication, for figure 2; tables without one are left out."""
    paths = [directory / _folder(one.label) / SINGLES for one in made.tables]
    return [load_result(path) for path in paths if path.is_file()]


def _folder(label: str) -> str:
    return "-".join("".join(c if c.isalnum() or c in "-_." else " " for c in label).split())


def _examples(task: LabelledTask, job: Replicating, load: LoadOptions, split: str) -> Examples:
    limit = job.limit if split == task.evaluated else None
    return examples_of(task, job.data, split, limit=limit, offline=load.offline)


def _tune(job: Replicating, load: LoadOptions, hooks: Hooks, train: Examples, dev: Examples) -> list[Tuned]:
    how = Tuning(job.settings, job.seeds, load, hooks.say, job.command, job.overwrite)
    return make_tuned(job.base, train, dev, job.directory / "tuned" / shortened(dev.task.name), how)


def _settings(job: Replicating, paper: Paper, *, tuned: bool) -> dict[str, Any]:
    rule = job.rule
    settings: dict[str, Any] = {
        "rule": rule.name, "n_sigma": rule.n_sigma, "relax_to": rule.relax_to, "outliers_of": job.outliers_of,
        "random": paper.n_random if job.n_random is None else job.n_random, "matched": job.n_matched, "seed": job.seed,
        "limit": job.limit,
    }  # fmt: skip
    if tuned:
        settings |= {f"finetune {name}": value for name, value in job.settings.to_dict().items() if name != "seed"}
        settings["finetune seeds"] = list(job.seeds)
    return settings


@dataclass(frozen=True)
class _Table:
    """Measures one fine-tuned model on its task."""

    job: Replicating
    paper: Paper
    load: LoadOptions
    hooks: Hooks

    def measure(self, tuned: Tuned, examples: Examples) -> TaskTable:
        """Sweep, layer by layer too where asked for, and make the table."""
        job = self.job
        # Revision and folder are of the base model.
        loaded = load_model(tuned.model, replace(self.load, revision=None, subfolder=""))
        named, width = self._outliers(loaded, tuned)
        dims = named.dims
        folder = job.directory / _folder(tuned.label)
        if job.overwrite:
            for rows_file in (ROWS, LAYER_ROWS):
                remove_rows(folder / rows_file)
        random = self.paper.n_random if job.n_random is None else job.n_random
        total = sum(one.numel() for one in loaded.model.parameters())
        whole = Whole(total, self._reference(loaded, tuned, examples))

        done: list[Sweep] = []

        def run(name: str, rows: str = ROWS, **more: Any) -> Sweep:
            swept = self._sweep(loaded, examples, folder / rows, **{"n_random": random, "n_matched": 0, **more})
            save(swept, folder / name)
            done.append(swept)
            return swept

        singles = None
        if job.every or len(dims) > 1:
            singles = run(SINGLES, dims="all" if job.every else dims)
        if dims:
            together = run(TOGETHER, dims=(), sets=(dims,), n_matched=job.n_matched)
        else:
            (pair,) = random_sets(width, PAIR, n=1, seed=job.seed)
            together = run(TOGETHER, dims=(), sets=(pair,), n_random=max(0, random - 1))
        if singles is None and len(dims) == 1:
            save(together, folder / SINGLES)
        rows = rows_of(together, singles, dims, whole)
        notes = [*named.notes, *told_base(tuned, job.base)]
        if self.paper.select and (chosen := passing(rows, dims)):
            rows += passing_rows(run(PASSING, dims=(), sets=(chosen,)), whole)
            notes.append(
                f"{', '.join(map(str, chosen))} each cost at least 5 × random: chosen and measured on the same examples"
            )
        windows: tuple[Row, ...] = ()
        if dims and examples.task.name == job.by_layer:
            mode = mode_by_layer(loaded.stack())
            by_layer = run(
                LAYERS,
                ROWS if mode == "weights" else LAYER_ROWS,
                dims=dims,
                sets=(dims,) if len(dims) > 1 else (),
                windows="single",
                n_random=min(random, 19),
                mode=mode,
            )
            if mode != "weights":
                notes.append("layer by layer, dimensions are off in what a layer gives, as layers share their weights")
            windows = window_rows(by_layer, dims, whole)
        if reduced := [one.precision for one in done if one.precision]:
            worst = max(reduced, key=lambda precision: precision.deviation)
            notes.append(f"computed in {worst.dtype}; {worst.said} ({worst.over})")
        return TaskTable(
            task=examples.task.name,
            metric=together.metric,
            model=tuned.model,
            label=tuned.label,
            fingerprint=together.provenance.fingerprint,
            data=examples.source,
            n_examples=len(examples),
            stack=together.stack,
            n_layers=together.n_layers,
            width=together.width,
            n_parameters=total,
            dims=dims,
            named_by=named.by,
            by_rule=named.by_rule,
            rows=rows,
            windows=windows,
            seconds=done[-1].cost.seconds,  # of all, for they share their rows
            notes=tuple(dict.fromkeys([*notes, *(note for one in done for note in one.notes)])),
            dtype=together.provenance.dtype,
        )

    def _outliers(self, loaded: LoadedModel, tuned: Tuned) -> tuple[Named, int]:
        """The outliers, and the width of the stream."""
        job, rule = self.job, self.job.rule
        mine, where = scanned(loaded, rule), f"the fine-tuned model ({tuned.label})"
        if job.outliers_of == "base":
            mine, where = scanned_base(job.base, rule, self.load, mine), f"the pre-trained model ({job.base})"
        return name_outliers(mine, rule, job.dims, where=where), mine.hidden_size

    def _reference(self, loaded: LoadedModel, tuned: Tuned, examples: Examples) -> Callable[[tuple[int, ...]], Any]:
        """Published numbers, where the model was made from the very checkpoint that they are of."""
        job = self.job
        checkpoint = checkpoint_of(job.base, loaded.config) if tuned.base in (None, job.base) else None
        task = examples.task
        return lambda dims: reference_for(checkpoint, self.paper.name, task.name, task.metric, dims)

    def _sweep(self, loaded: LoadedModel, examples: Examples, rows: Path, **more: Any) -> Sweep:
        """One call of `sweep` on all examples, each control set too."""
        from outlierlens.experiments.sweep.measure import sweep

        job = self.job
        options = SweepOptions(
            with_found=False,
            exact=True,
            gradients=0,
            random_texts=len(examples),
            batch_size=job.batch_size,
            seed=job.seed,
            task=TaskOptions(
                name="labelled",
                max_length=job.settings.max_length,
                labels=_by_task(job.labels).get(examples.task.name),
            ),
            **more,
        )
        with self.hooks.view() as view:
            return sweep(loaded, examples, options, command=job.command, progress=view, rows=rows)
