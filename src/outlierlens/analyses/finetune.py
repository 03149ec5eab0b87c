"""Fine-tune a model on a labelled task, reproducibly: several seeds, the best epoch of each kept, stopped runs continued.

    train, dev = read_splits(find_task("rte"), "rte/")
    tuned = finetune("minilm-l6", train, dev, Path("runs/minilm-l6-rte"), FinetuneSettings(), seeds=(42, 43))
    load_model(tuned.seeds[0].folder)

A run folder holds `finetuned.json` and for every seed `seed-42/`: `rows.jsonl` (dev scores of each epoch), `checkpoint-N/`
while it runs, and at the end `model/`, the model of the epoch with the best dev metric. A run that was killed gives what an
uninterrupted one gives: the order is a function of the seed, and dropout's generator is restored.
"""

import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.switches import zero_weights_
from outlierlens.checkpoints.formats import suffixes
from outlierlens.checkpoints.samples import is_sample
from outlierlens.data.labelled import Examples
from outlierlens.data.labelled.examples import check_splits
from outlierlens.data.labelled.labels import NOT_A_LABEL
from outlierlens.errors import BadFile, BadInput, markdown, need, one_line, printable
from outlierlens.models.inputs import TextRows, token_limit
from outlierlens.models.load import LoadOptions, NewHead, fingerprint, load_model
from outlierlens.options import Flag, Flat, check, plain_dims
from outlierlens.results.document import Provenance, save
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import LOCK, RowStore, alone_in
from outlierlens.results.rows import Estimate, More, Quiet, Row
from outlierlens.results.safe_files import new_folder, rename, write_text
from outlierlens.statistics.means import interval_text
from outlierlens.tasks.base import LABELLED_TOKENS, TaskOptions
from outlierlens.tasks.classify import LabelledScore, Outputs
from outlierlens.tasks.metrics import interval
from outlierlens.training.run_files import newest_checkpoint
from outlierlens.view.section import listed

ROWS, MODEL, RESULT = "rows.jsonl", "model", "finetuned.json"
PREDICTIONS = "dev_predictions.npz"  # in the model's folder: truth, predicted, losses of the dev examples
PRECISIONS = ("float32", "bfloat16")
# What the hub calls metrics; a model-index has these types and our names beside them.
HUB_METRICS = {
    "macro f1": "f1", "token accuracy": "accuracy", "token f1": "f1", "mcc": "matthews_correlation",
    "pearson": "pearsonr", "spearman": "spearmanr",
}  # fmt: skip


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of a fine-tuning; with the data and the model they decide the numbers. Defaults: Puccetti et al. (2022)."""

    epochs: Annotated[int, Ge(1)] = 4
    """Passes over the training examples; the model of the best one on the dev examples is kept."""
    learning_rate: Annotated[float, Flag("--lr"), Gt(0), Lt(1)] = 2e-5
    """Learning rate at its peak; from there it falls linearly to 0."""
    batch: Annotated[int, Flag("--batch-size"), Ge(1)] = 32
    """Examples per step."""
    weight_decay: Annotated[float, Flag(hidden=True), Ge(0), Lt(1)] = 0.01
    """Weight decay of AdamW; norms and biases have none."""
    warmup: Annotated[float, Flag(hidden=True), Ge(0), Lt(1)] = 0.0
    """Share of the steps in which the rate rises."""
    max_length: Annotated[int, Ge(2)] = LABELLED_TOKENS
    """Maximum number of tokens per example."""
    train_limit: Annotated[int | None, Ge(2)] = None
    """Train on N examples drawn at random."""
    precision: str = "float32"
    """Precision of training: float32 or bfloat16; weights stay float32."""
    seed: int = 42
    """Seed of the head's first weights, of the order of examples and of dropout."""
    save_steps: Annotated[int | None, Flag(hidden=True), Ge(1)] = None
    """Steps between checkpoints. Default: an epoch."""
    off: Annotated[tuple[int, ...], Flag("--dims", read="analyses.finetune:off_dims")] = ()
    """Dimensions set to zero in all layers before training: 308,381."""
    hold: bool = False
    """Keep the dimensions that are set to zero at zero throughout."""
    stack: str | None = None
    """Stream of the dimensions, where a model has several."""

    def __post_init__(self) -> None:
        check(self)
        if self.precision not in PRECISIONS:
            raise BadInput(f"precision is {self.precision!r}; use one of {', '.join(PRECISIONS)}")
        if (self.hold or self.stack) and not self.off:
            raise BadInput("hold and stack are about the ablated dimensions; name at least one dimension")

    def to_dict(self) -> dict[str, Any]:
        """The settings that decide the numbers, as JSON has them."""
        values = {name: value for name, value in asdict(self).items() if name != "save_steps"}
        return dict(json.loads(json.dumps(values)))


def off_dims(text: str) -> tuple[int, ...]:
    """ "308,381" -> (308, 381), of --dims."""
    return plain_dims(text, "--dims", "dimensions are ablated in all layers here: write 308,381")


@dataclass(frozen=True, kw_only=True)
class Finetuning:
    """Settings, and the seeds that they are run with."""

    seeds: Annotated[tuple[int, ...], Flag(read="options:parse_seeds", words="42")] = (42,)
    """One run each: 42,43,44."""
    settings: Annotated[
        FinetuneSettings,
        Flat(
            *("epochs", "learning_rate", "batch", "weight_decay", "warmup", "max_length", "train_limit", "precision"),
            *("save_steps", "off", "hold", "stack"),
        ),
    ] = FinetuneSettings()
    """Settings of every run; its `seed` is one of `seeds`."""
    report_to: Annotated[tuple[str, ...], Flag(read="options:parse_names")] = ()
    """Where the Trainer logs too: tensorboard, wandb, mlflow, trackio; comma-separated."""
    recover: bool = False
    """Ask whether a fine-tuned model recovers: --dims (default: those that scan finds) ablated, then fine-tuned again,
    free and held at zero, against random dimensions and no ablation."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 1
    """With --recover: random sets of the same size, treated alike."""


@dataclass(frozen=True)
class FinetuneOptions:
    """Where and how loudly; nothing here changes the numbers (`load` says where the model comes from).

    Attributes:
        command: what made it, for provenance and model card.
        overwrite: remove an earlier run with other settings from the folder.
        report_to: names of the Trainer's integrations ("tensorboard", "wandb", "mlflow", "trackio").
        progress: called with a line at each stage. on_log: called with (seed, step, steps, logged numbers).
    """

    load: LoadOptions = field(default_factory=LoadOptions)
    command: str = ""
    overwrite: bool = False
    report_to: tuple[str, ...] = ()
    progress: Callable[[str], None] = print
    on_log: Callable[[int, int, int, dict[str, float]], None] | None = None


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochScore:
    """Dev scores after an epoch.

    Attributes:
        epoch: 1 after the first. step: the last of it.
        loss: mean loss on the dev set: nats per example, or squared error of a regression.
        scores: metric by name, in [−1, 1].
        train_loss: mean training loss since the epoch before.
    """

    epoch: float
    step: int
    loss: float
    scores: dict[str, float]
    train_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class SeedRun(Row):
    """One fine-tuning."""

    seed: int
    best_epoch: float
    """epoch: whose model is kept; the first of those with the best dev {metric}"""
    loss: float
    """dev loss: nats per example, or squared error of a regression"""
    value: Estimate
    """{metric}: the interval is over dev examples, over whole texts of a token task"""
    seconds: Annotated[float, More] = 0.0
    """seconds: of the process that finished it"""
    fingerprint: Annotated[str, More]
    """fingerprint: of the fine-tuned model's parameters"""
    base_fingerprint: Annotated[str, Quiet] = ""
    """fingerprint of the model without its head, before training"""
    folder: Annotated[str, More]
    """model"""
    epochs: Annotated[tuple[EpochScore, ...], Quiet]

    @property
    def best(self) -> EpochScore:
        """Scores of the epoch whose model is kept."""
        return next(epoch for epoch in self.epochs if epoch.epoch == self.best_epoch)


@dataclass(frozen=True, kw_only=True)
class FineTunedModel(Finding):
    """A model fine-tuned on a task, one run per seed.

    Attributes:
        settings: of the training, by name.
        train: where the training examples came from, with their digest; n_train: how many. `about` has the dev examples.
    """

    title = "Fine-tuned"

    seeds: tuple[SeedRun, ...]
    """The best epoch of each seed"""
    settings: dict[str, Any]
    train: str
    train_digest: str
    n_train: int

    @property
    def base(self) -> str:
        """The model that was fine-tuned."""
        return self.provenance.model

    def spread(self) -> tuple[float, float, float]:
        """(mean, lowest, highest) of the first metric over the seeds."""
        values = [run.value.value for run in self.seeds]
        return sum(values) / len(values), min(values), max(values)

    def sentences(self) -> Iterator[str]:
        mean, low, high = self.spread()
        n = len(self.seeds)
        over = f"over {n} seeds: mean {mean:.4f}, {low:.4f} to {high:.4f}" if n > 1 else f"{mean:.4f}"
        yield (
            f"{self.base} on {self.about.task}: {self.about.metric} {over}; trained on {self.n_train:,} examples, scored on "
            f"{self.about.n_texts:,}."
        )
        if off := self.settings.get("off"):
            held = "held at zero" if self.settings.get("hold") else "free to grow back"
            yield f"Dimensions {listed(off)} were set to zero before training, {held}."


def card(tuned: FineTunedModel, run: SeedRun) -> str:
    """The model card: Markdown under the metadata that the hub reads."""
    best = run.best
    scores = ", ".join(f"{markdown(name)} {value:.4f}" for name, value in best.scores.items())
    rows = "\n".join(
        f"| {row.epoch:g} | {row.loss:.4f} | " + " | ".join(f"{row.scores[name]:.4f}" for name in best.scores) + " |"
        for row in run.epochs
    )
    shown = {**tuned.settings, "seed": run.seed}
    settings = "\n".join(f"- {name}: {markdown(str(value))}" for name, value in shown.items())
    about = tuned.about
    base, task, metric, train, dev = map(markdown, (tuned.base, about.task, about.metric, tuned.train, about.data))
    return f"""---
{_metadata(tuned, run)}
---
# {base} fine-tuned on {task}

Epoch {run.best_epoch:g} of {len(run.epochs)}, the one with the best {metric} on {about.n_texts:,} dev examples:
{scores} (95 % interval of {metric} {interval_text(run.value.low, run.value.high, ".4f")}, examples resampled).
The dev set chose the epoch, so these numbers are slightly optimistic.

| epoch | dev loss | {" | ".join(map(markdown, best.scores))} |
|---|---|{"---|" * len(best.scores)}
{rows}

Trained on {tuned.n_train:,} examples of {train} (SHA-256 {tuned.train_digest[:16]}…), scored on {dev}
(SHA-256 {about.data_digest[:16]}…), with outlierlens {tuned.provenance.version}:

{settings}

Made again by:

    {printable(tuned.provenance.command or "outlierlens.finetune(…)")}
"""


def _metadata(tuned: FineTunedModel, run: SeedRun) -> str:
    hub = need("huggingface_hub", "models", "a model card")
    kind = "token-classification" if tuned.about.metric.startswith("token") else "text-classification"
    task = one_line(tuned.about.task)
    results = [
        hub.EvalResult(
            kind, task, task, HUB_METRICS.get(key, one_line(key)), round(value, 6), metric_name=one_line(key)
        )
        for key, value in run.best.scores.items()
    ]
    # The hub takes nothing but its own ids for a base.
    on_hub = re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", tuned.base, re.ASCII) and not Path(tuned.base).exists()
    made = hub.ModelCardData(
        library_name="transformers", pipeline_tag=kind, base_model=tuned.base if on_hub else None,
        tags=["outlierlens", task.replace(":", "-")], metrics=list(dict.fromkeys(one.metric_type for one in results)),
        model_name=f"{printable(tuned.base)} fine-tuned on {task}", eval_results=results,
    )  # fmt: skip
    return str(made.to_yaml())


# --- the folder --------------------------------------------------------------------------------------------------


def seed_folder(folder: Path, seed: int) -> Path:
    """Where the run of `seed` lies."""
    return folder / f"seed-{seed}"


def claim(folder: Path, identity: Mapping[str, Any], *, overwrite: bool) -> None:
    """See that the folder is the home of runs that are `identity`, whatever their seed, or of nothing yet.

    Raises:
        BadInput: it holds other runs (removed with `overwrite`) or something else.
    """
    ours = sorted(folder.glob(f"seed-*/{ROWS}"))
    if not ours and any(path.is_file() and path.name not in (LOCK, RESULT) for path in folder.rglob("*")):
        raise BadInput(f"{folder} is not empty and holds no run; name another folder with -o")
    try:
        for path in ours:
            with RowStore.open(path, dict(identity)):
                pass
    except BadInput:
        if not overwrite:
            raise
        for path in ours:
            shutil.rmtree(path.parent)
        (folder / RESULT).unlink(missing_ok=True)


def named_by_weights(model: str, subfolder: str = "") -> dict[str, str]:
    """What tells one model from another: its name; of files, which may be moved, a SHA-256 of the weights (1 s/GB)."""
    if is_sample(model) or not Path(model).exists():
        return {"model": model}
    digest = hashlib.sha256()
    inside = [Path(model)] if Path(model).is_file() else Path(model, subfolder).glob("*")
    for path in sorted(file for file in inside if file.suffix in suffixes()):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return {"weights": digest.hexdigest()}


class SeedFolder:
    """The epochs of a seed's run so far and the best one's model, as files that a kill at any moment leaves sound.

    The model of epoch 2 lies in `best-2/`, and counts once that epoch has its row; in the end it is `model/`.
    """

    def __init__(self, folder: Path, rows: RowStore, metric: str):
        self.folder, self.rows, self.metric = folder, rows, metric
        try:
            self.epochs = [EpochScore(**value) for key, value in rows.done.items() if key.startswith("epoch ")]
            scores = [value for row in self.epochs for value in (row.epoch, row.scores[metric])]
            if not all(isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in scores):
                raise ValueError("an epoch or a score is no number")
        except (ValueError, TypeError, KeyError) as error:
            raise BadFile(
                f"{rows.path}: not the scores of epochs ({error}); remove its folder to train again"
            ) from None
        if self.epochs and not self.model.is_dir():
            if "done" in rows.done:
                raise BadFile(f"{folder}: the run is finished, and its model is gone; remove the folder to train again")
            for path in folder.glob("checkpoint-*"):  # nothing else holds the model, so the run begins anew
                shutil.rmtree(path)
            rows.restart()
            self.epochs = []
        self.tidy()

    @property
    def best(self) -> EpochScore:
        """The first of those with the highest metric."""
        return max(self.epochs, key=lambda row: row.scores[self.metric])

    @property
    def model(self) -> Path:
        """Where the best model lies at this moment."""
        place = self.folder / f"best-{self.best.epoch:g}"
        return place if place.is_dir() else self.folder / MODEL

    def row(self, epoch: float) -> EpochScore | None:
        """The scores of `epoch`, where it was scored before the run was stopped."""
        return next((row for row in self.epochs if row.epoch == epoch), None)

    def add(
        self, epoch: float, step: int, found: Outputs, train_loss: float | None, write: Callable[[Path], None]
    ) -> EpochScore:
        """Note an epoch; where it is the best so far, `write` puts its model into the folder given."""
        row = EpochScore(epoch, step, float(found.losses.mean()), found.scores, train_loss)
        if all(row.scores[self.metric] > other.scores[self.metric] for other in self.epochs):
            with new_folder(self.folder / f"best-{epoch:g}") as making:
                write(making)
                np.savez(making / PREDICTIONS, truth=found.truth, predicted=found.predicted, losses=found.losses)
        self.rows.append(f"epoch {epoch:g}", asdict(row))
        self.epochs.append(row)
        self.tidy()
        return row

    def finish(self) -> Path:
        """Put the best model into its place and return that."""
        final = self.folder / MODEL
        if self.model != final:
            shutil.rmtree(final, ignore_errors=True)
            rename(self.model, final)
        return final

    def tidy(self) -> None:
        """Remove models that are not the best, and checkpoints that the run does not go on from."""
        kept = {newest_checkpoint(self.folder), self.model if self.epochs else None}
        for path in [*self.folder.glob("best-*"), *self.folder.glob("checkpoint-*")]:
            if path not in kept:
                shutil.rmtree(path)

    def run(self, seed: int) -> SeedRun | None:
        """The finished run, None where it is not; raises BadFile for what is no such row."""
        if (done := self.rows.get("done")) is None:
            return None
        try:
            value = Estimate(self.best.scores[self.metric], float(done["low"]), float(done["high"]))
            prints = {key: str(done[key]) for key in ("fingerprint", "base_fingerprint")}
            seconds = float(done["seconds"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadFile(
                f"{self.rows.path}: not what a run leaves ({error!r}); remove its folder to train again"
            ) from None
        return SeedRun(
            seed=seed, best_epoch=self.best.epoch, loss=self.best.loss, value=value, seconds=seconds, **prints,
            folder=str(self.folder / MODEL), epochs=tuple(self.epochs),
        )  # fmt: skip


# --- how it is made ----------------------------------------------------------------------------------------------


def finetune(
    model: str,
    train: Examples,
    dev: Examples,
    folder: Path,
    settings: FinetuneSettings | None = None,
    *,
    seeds: Sequence[int] = (42,),
    options: FinetuneOptions | None = None,
) -> FineTunedModel:
    """Fine-tune `model` on `train` once per seed, keep each run's best epoch on `dev`, and write the run folder.

    Raises:
        BadInput: the folder holds other runs, or the examples do not fit each other or the model.
    """
    from outlierlens.training import finetune as training

    settings, options = settings or FinetuneSettings(), options or FinetuneOptions()
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise BadInput(f"seeds are {list(seeds)}; name at least one, none twice and none below 0")
    check_splits(train, dev)
    n_train = min(len(train), settings.train_limit or len(train))
    training.steps_per_epoch(n_train, settings.batch)
    training.arguments(settings, folder, 1, options)
    shared = {name: value for name, value in settings.to_dict().items() if name != "seed"}
    identity = {
        **named_by_weights(model, options.load.subfolder), "subfolder": options.load.subfolder,
        "revision": options.load.revision, "task": dev.task.name, "metric": dev.task.metric,
        "train": train.digest, "dev": dev.digest, **shared,
    }  # fmt: skip
    with alone_in(folder):
        claim(folder, identity, overwrite=options.overwrite)
        runs = [
            _seed(model, (train, dev), seed_folder(folder, seed), replace(settings, seed=seed), options, identity)
            for seed in seeds
        ]
        for seed in seeds:  # of a finished one, too, that was killed at this very place
            for path in seed_folder(folder, seed).glob("checkpoint-*"):
                shutil.rmtree(path)
        result = FineTunedModel(
            provenance=Provenance.now(model, runs[0].base_fingerprint, command=options.command, seed=seeds[0]),
            about=About(
                data=dev.source, data_digest=dev.digest, inputs="examples", task=dev.task.name, metric=dev.task.metric,
                n_texts=len(dev), max_length=settings.max_length,
            ),
            seeds=tuple(runs), settings=shared, train=train.source, train_digest=train.digest, n_train=n_train,
            notes=("the dev examples are the training examples",) if train.digest == dev.digest else (),
        )  # fmt: skip
        save(result, folder / RESULT)
        for run in runs:
            write_text(Path(run.folder) / "README.md", card(result, run))
    return result


def _seed(
    model: str,
    examples: tuple[Examples, Examples],
    folder: Path,
    settings: FinetuneSettings,
    options: FinetuneOptions,
    identity: dict[str, Any],
) -> SeedRun:
    """One seed's run: read, or gone on with, or begun."""
    from outlierlens.training.finetune import train_epochs

    train, dev = examples
    started, seed, metric = time.monotonic(), settings.seed, dev.task.metric
    if (folder / ROWS).is_file():
        with RowStore.open(folder / ROWS, identity) as rows:
            if (run := SeedFolder(folder, rows, metric).run(seed)) is not None:
                options.progress(f"seed {seed}: finished earlier, read from {folder}")
                return run
    exact = replace(options.load, dtype="float32")
    loaded = load_model(model, exact, NewHead(train.task.labels, tokens=train.task.level == "token", seed=seed))
    length = token_limit(loaded, settings.max_length)
    if settings.train_limit is not None and settings.train_limit < len(train):
        drawn = np.random.default_rng([seed, 7]).permutation(len(train))[: settings.train_limit]
        train = train.some(sorted(drawn.tolist()))
    texts = TextRows(loaded, train, length)
    if train.task.level == "token" and not all(any(one != NOT_A_LABEL for one in row) for row in texts.labels):
        raise BadInput(f"{train.source}: a text has no labelled word within {length} tokens; remove it")
    scorer = LabelledScore(loaded, dev, TaskOptions(max_length=length, measure="loss"))
    body: Any = loaded.model
    base = fingerprint(body.base_model)
    if settings.off:
        n_values = zero_weights_(loaded, settings.off, stack=settings.stack)
        options.progress(f"seed {seed}: {n_values:,} values of dimensions {settings.off} set to zero")
    with RowStore.open(folder / ROWS, identity) as rows:
        kept = SeedFolder(folder, rows, metric)
        train_epochs(loaded, texts, scorer, kept, settings, options)
        where = kept.finish()
        with np.load(where / PREDICTIONS) as said:
            groups = dev.family  # of pairs; words go by their text
            if dev.task.level == "token":
                groups = np.repeat(np.arange(len(dev)), scorer.weights.astype(np.int64))
            ends = interval(metric, said["truth"], (said["predicted"],), seed=seed, groups=groups)
        made = {
            "low": ends[0], "high": ends[1], "fingerprint": fingerprint(load_model(str(where), exact).model),
            "base_fingerprint": base, "seconds": time.monotonic() - started,
        }  # fmt: skip
        rows.append("done", made)
        run = kept.run(seed)
        assert run is not None
        return run
