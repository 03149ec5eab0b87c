"""Does a fine-tuned model recover from losing its outlier dimensions when it is fine-tuned again?

    found = recover("runs/rte/seed-42/model", train, dev, Path("runs/recovery"), RecoverOptions(dims=(308, 381)))
    found.arm("chosen", "again").recovered, found.arm("random", "again").lost

The model is scored intact, with the dimensions off, fine-tuned again after they were switched off (free to regrow them),
and fine-tuned again with them held at zero; a random set of the same size is treated alike, and the intact model is
fine-tuned as much further. Each fine-tuning is a run folder of `finetune`, so what was stopped goes on.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.switches import plan_dims, zeroed_weights
from outlierlens.analyses.finetune import RESULT as TUNED
from outlierlens.analyses.finetune import FineTunedModel, FinetuneOptions, FinetuneSettings, Finetuning, finetune
from outlierlens.data.labelled import Examples
from outlierlens.detection.rules import LastOperation
from outlierlens.detection.weights import measure, scan_stream, sites_of
from outlierlens.errors import BadInput, command, pick, printable
from outlierlens.models.load import LoadedModel, fingerprint, load_model, stream_width
from outlierlens.models.model_class import NewHead
from outlierlens.options import FIND, DimsOrFind, check
from outlierlens.results.document import save
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import alone_in
from outlierlens.results.rows import Estimate, Quiet, Row
from outlierlens.statistics.means import no_interval
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.tasks.metrics import interval
from outlierlens.view.pictures import Strips
from outlierlens.view.section import Change, these

if TYPE_CHECKING:
    from outlierlens.session import Session

RESULT = "recovery.json"
What = Literal["none", "chosen", "random"]
State = Literal["intact", "off", "again", "held"]
LOST = {"off": "off", "again": "trained again, free to regrow", "held": "trained again without them"}


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """Dimensions to ablate, and how to fine-tune again."""

    dims: DimsOrFind = FIND
    """Dimensions to ablate: 308,381; find: those that the rule finds."""
    stack: str | None = None
    """Which stream, where there are several."""
    n_random: Annotated[int, Ge(0)] = 1
    """Random sets of the same size, treated alike."""
    seeds: tuple[int, ...] = (42,)
    """Seeds of fine-tuning, one run of each kind."""
    settings: FinetuneSettings = FinetuneSettings(epochs=3)
    """Settings of every fine-tuning; the other options set its `off`, `hold`, `stack` and `seed`."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random sets and of intervals."""

    def __post_init__(self) -> None:
        check(self)
        if not self.seeds:
            raise BadInput("no seed to fine-tune with; name one or more")
        if self.settings.off:
            raise BadInput("recover sets the dimensions of each fine-tuning itself; give them as dims")


@dataclass(frozen=True, kw_only=True)
class Arm(Row):
    """One way of treating the model, and what it then scores on the dev set."""

    note = "Again: fine-tuned again, free to regrow. Held: fine-tuned again, held at zero. Off: not retrained."
    what: What
    """ablated: nothing, the chosen dimensions, or a random set of the same size"""
    state: State
    """model"""
    dims: tuple[int, ...]
    """dimensions"""
    seed: int | None = None
    """seed: of the fine-tuning"""
    value: Estimate
    """{metric}: with its interval over examples"""
    lost: Annotated[Estimate, Change]
    """{metric} lost: intact minus this, paired by example; 0 to 0 where every example is predicted alike"""
    recovered: float | None = None
    """recovered: share of the loss by ablation that is back; none where that interval holds 0"""
    regrown: float
    """grown back: 1 is scale and bias as in the intact model, 0 is zero, below 0 further away; mean over dimensions"""
    each_regrown: Annotated[tuple[float, ...], Quiet]
    """grown back: of each of the dimensions; of the chosen ones where none is ablated"""
    best_epoch: float | None = None
    """epoch: of the fine-tuning, chosen by the dev metric"""
    loss: Annotated[float, Quiet]
    scores: Annotated[dict[str, float], Quiet]
    folder: Annotated[str, Quiet] = ""


@dataclass(frozen=True, kw_only=True)
class Recovery(Finding):
    """A fine-tuned model with dimensions ablated, and fine-tuned again without them.

    Attributes:
        settings: of the fine-tuning, by name. train: what it was trained on, n_train examples.
        reach: about as far as AdamW can move one value in a run: half the learning rate times the steps. What regrows
            less than that was free to; what is larger could not.
    """

    title = "Whether it recovers"
    pictures = (Strips(rows="arms", x="lost", y="state", by="what"),)

    arms: tuple[Arm, ...]
    """Every way of treating it"""
    train: str
    n_train: int
    settings: dict[str, Any]
    reach: float

    def arm(self, what: What, state: State) -> Arm:
        """The first arm of that kind; raises BadInput with those there are."""
        return pick(self.arms, f"this result holds no arm {what!r}, {state!r}", what=what, state=state)

    def sentences(self) -> Iterator[str]:
        lost = {
            words: [arm.lost.value for arm in self.arms if (arm.what, arm.state) == ("chosen", state)]
            for state, words in LOST.items()
        }
        parts = "; ".join(f"{words} {np.mean(values):+z.3f}" for words, values in lost.items() if values)
        yield f"{self.about.metric.capitalize()} lost with {these(self.dims)} of {self.about.stack} ablated: {parts}."
        if any(math.isnan(arm.lost.low) for arm in self.arms):
            why = no_interval(self.about.n_texts, "dev examples", metric=self.about.metric)
            yield f"Whether other examples lose the same is not settled: {why}."
        yield f"A run of AdamW can move a value by about {self.reach:.2g}."


def recover(
    model: str,
    train: Examples,
    dev: Examples,
    folder: Path,
    options: RecoverOptions | None = None,
    how: FinetuneOptions | None = None,
) -> Recovery:
    """Run all arms and write `recovery.json`; `how` says where the model comes from and who is told.

    Raises:
        BadInput: a model without a head for the task, no dimension to switch off, or a folder with another run in it.
    """
    from outlierlens.training.finetune import steps_per_epoch

    options, how = options or RecoverOptions(), how or FinetuneOptions()
    loaded = load_model(model, replace(how.load, dtype="float32"))
    _check_head(loaded, train)
    scorer = _Scorer(loaded, dev, options)
    outliers, width = scan_stream(loaded, scorer.stream).dims, stream_width(loaded.model, loaded.stack(options.stack))
    chosen = outliers if options.dims == FIND else tuple(sorted(options.dims))
    if not chosen:
        raise BadInput(f"{model}: the rule finds no dimension in its weights; name some with --dims")
    plan_dims(loaded.stack(options.stack), width, chosen)
    sets: list[tuple[What, tuple[int, ...]]] = [("chosen", chosen)]
    if options.n_random:
        avoid = (*chosen, *outliers)
        drawn = random_sets(width, len(chosen), avoid=avoid, n=options.n_random, seed=options.seed)
        sets += [("random", one) for one in drawn]
    scorer.add(loaded, what="none", state="intact", dims=(), shown=chosen)
    for what, off in sets:
        with zeroed_weights(loaded, off, stack=scorer.stream):
            scorer.add(loaded, what=what, state="off", dims=off, shown=off)
    trainings: list[tuple[What, State, tuple[int, ...], str]] = [("none", "again", (), "none-again")]
    for i, (what, off) in enumerate(sets):
        name = what if what == "chosen" else f"random-{i}"
        trainings += [(what, "again", off, f"{name}-again"), (what, "held", off, f"{name}-held")]
    for what, state, off, name in trainings:
        more: dict[str, Any] = {"off": off, "hold": state == "held", "stack": options.stack} if off else {}
        how.progress(f"{name}: fine-tuning again" + (f" with {', '.join(map(str, off))} ablated" if off else ""))
        settings = replace(options.settings, **more)
        for trained in finetune(model, train, dev, folder / name, settings, seeds=options.seeds, options=how).seeds:
            again = load_model(trained.folder, replace(how.load, dtype="float32", revision=None, subfolder=""))
            run = {"seed": trained.seed, "best_epoch": trained.best_epoch, "folder": trained.folder}
            scorer.add(again, what=what, state=state, dims=off, shown=off or chosen, **run)
    n_train = min(len(train), options.settings.train_limit or len(train))
    steps = steps_per_epoch(n_train, options.settings.batch) * options.settings.epochs
    found = Recovery(
        provenance=loaded.provenance(command=how.command, seed=options.seed, digest=scorer.fingerprint),
        about=About(
            data=dev.source, data_digest=dev.digest, inputs="examples", task=dev.task.name, metric=dev.task.metric,
            stack=scorer.stream, dims=tuple(map(str, chosen)), n_texts=len(dev),
            named_by="the rule on weights" if options.dims == FIND else "given", max_length=options.settings.max_length,
        ),
        arms=tuple(scorer.arms), train=train.source, n_train=n_train,
        settings={key: v for key, v in options.settings.to_dict().items() if key not in ("off", "hold", "stack", "seed")},
        reach=options.settings.learning_rate * steps / 2,
    )  # fmt: skip
    save(found, folder / RESULT)
    return found


def _check_head(loaded: LoadedModel, train: Examples) -> None:
    """Raise BadInput where fine-tuning again would begin with a new head: what it lost could then not be told apart."""
    head, stored = NewHead(train.task.labels), dict(loaded.config.get("id2label") or {})
    if not head.means(stored):
        raise BadInput(
            f"{loaded.name} names its outputs {', '.join(map(str, stored.values()))}, the task {', '.join(head.names)}: "
            f"fine-tuning again would begin with a new head; write the task's names into its config.json (id2label) in the "
            f"order of its outputs, if they mean the same, or use a model fine-tuned by outlierlens"
        )


class _Scorer:
    """Scores a model on the dev set and measures its norms, always beside the intact one."""

    def __init__(self, loaded: LoadedModel, dev: Examples, options: RecoverOptions):
        self.dev, self.options, self.stream = dev, options, loaded.stack(options.stack).name
        self.task_options = TaskOptions(max_length=options.settings.max_length, measure="loss")
        self.fingerprint = fingerprint(loaded.model)
        self.intact = LabelledScore(loaded, dev, self.task_options).outputs()
        self.intact_weights = self._weights(loaded)
        self.arms: list[Arm] = []

    def add(
        self,
        loaded: LoadedModel,
        *,
        what: What,
        state: State,
        dims: tuple[int, ...],
        shown: tuple[int, ...],
        **run: Any,
    ) -> None:
        """Score `loaded` as it is now, and see what became of the dimensions `shown`."""
        intact, metric, seed = self.intact, self.dev.task.metric, self.options.seed
        outputs = intact if state == "intact" else LabelledScore(loaded, self.dev, self.task_options).outputs()
        own, both = (
            interval(metric, intact.truth, some, seed=seed, groups=self.dev.family)
            for some in ((outputs.predicted,), (intact.predicted, outputs.predicted))
        )
        lost = Estimate(intact.scores[metric] - outputs.scores[metric], *both)
        before = next((one.lost for one in self.arms if (one.state, one.dims) == ("off", dims)), None)
        now = self._weights(loaded)
        grown = tuple(regrown(self.intact_weights, now, dim) for dim in shown)
        self.arms.append(Arm(
            what=what, state=state, dims=dims, value=Estimate(outputs.scores[metric], *own), lost=lost, **run,
            recovered=1 - lost.value / before.value if before and before.low > 0 else None,
            regrown=float(np.mean(grown)), each_regrown=grown, loss=float(outputs.losses.mean()), scores=outputs.scores,
        ))  # fmt: skip

    def _weights(self, loaded: LoadedModel) -> LastOperation:
        """Scale and bias [layer, dim] of each block's last operation as they are now."""
        return measure(loaded.weights, sites_of(loaded.stack(self.options.stack), "last")[0], hashlib.sha256())[0]


def regrown(intact: LastOperation, now: LastOperation, dim: int) -> float:
    """1 − ‖now − intact‖ / ‖intact‖ of a dimension's scale and bias in all layers; 0 where the intact ones are 0."""
    pairs = [(intact.scale, now.scale)]
    if intact.bias is not None and now.bias is not None:
        pairs.append((intact.bias, now.bias))
    before, after = (np.concatenate([values[:, dim] for values in side]) for side in zip(*pairs, strict=True))
    size = float(np.linalg.norm(before))
    return 1 - float(np.linalg.norm(after - before)) / size if size else 0.0


def run(session: "Session", call: Finetuning) -> FineTunedModel | Recovery:
    """`lab finetune`: fine-tune the model in the run directory; or ask whether it recovers."""
    model, given, output = session.subject.model, session.splits, session.output
    train, dev = given.splits(offline=session.loading.offline, of_words=not call.recover)
    folder = session.folder("recovery" if call.recover else given.labelled_task.name.split(":")[-1])

    def log(seed: int, step: int, steps: int, logs: dict[str, float]) -> None:
        session.notice(f"seed {seed}: step {step:,} of {steps:,}: loss {logs['loss']:.4g}")

    loud = output.tells_progress
    how = FinetuneOptions(
        load=session.load, command=session.command, overwrite=output.overwrite, report_to=call.report_to,
        progress=session.notice if loud else lambda _: None, on_log=log if loud else None,
    )  # fmt: skip
    found: FineTunedModel | Recovery
    if call.recover:
        again = RecoverOptions(
            dims=call.settings.off or FIND, stack=call.settings.stack, n_random=call.n_random, seeds=call.seeds,
            settings=replace(call.settings, off=(), hold=False, stack=None),
        )  # fmt: skip
        with session.resumable(folder), alone_in(folder, "recovery"):
            found = recover(model, train, dev, folder, again, how)
        said = f"result: {folder / RESULT}"
    else:
        with session.resumable(folder):
            found = finetune(model, train, dev, folder, call.settings, seeds=call.seeds, options=how)
        best = max(found.seeds, key=lambda one: one.value.value)
        said = f"result: {folder / TUNED}; look at a model: {command('scan', best.folder)}"
    if output.for_people:
        session.then = lambda: print(printable(said))
    return found
