"""Fine-tuning with Hugging Face's Trainer: one folder per seed, continued where it was stopped.

    tuned = finetune("minilm-l6", train, dev, Path("runs/minilm-l6-rte"), FinetuneSettings(), seeds=(42, 43))

A run folder holds `finetuned.json` and for every seed `seed-42/`: `settings.json`, `checkpoint-N/` while it runs,
`epochs.jsonl` (dev scores of each epoch) and at the end `model/`, the model of the epoch with the best dev metric. A run
that was killed gives what an uninterrupted one gives: the order is a function of the seed, and dropout's generator is
restored.
"""

import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainingArguments

from outlierlens.ablation.switches import zero_weights_
from outlierlens.data.labelled import Examples
from outlierlens.data.labelled.examples import check_splits
from outlierlens.data.labelled.labels import NOT_A_LABEL, Encoded, encode
from outlierlens.errors import BadInput
from outlierlens.models.inputs import check_known, token_limit
from outlierlens.models.load import LoadedModel, LoadOptions, NewHead, fingerprint, load_model
from outlierlens.results.document import Provenance, save
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import write_text
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore, Outputs
from outlierlens.tasks.metrics import interval
from outlierlens.training.finetune.batches import Collator, ExampleRows, steps_per_epoch, training_order
from outlierlens.training.finetune.folder import (
    DONE,
    PREDICTIONS,
    RESULT,
    Kept,
    card,
    claim,
    finished,
    named_by_weights,
    seed_folder,
)
from outlierlens.training.finetune.options import FinetuneSettings
from outlierlens.training.finetune.result import EpochScore, FineTuned, SeedRun
from outlierlens.training.run_files import newest_checkpoint
from outlierlens.training.trainer import full_precision, training_arguments

LOGS_PER_EPOCH = 4
LOG_AT_LEAST = 50  # steps


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


def finetune(
    model: str,
    train: Examples,
    dev: Examples,
    folder: Path,
    settings: FinetuneSettings | None = None,
    *,
    seeds: Sequence[int] = (42,),
    options: FinetuneOptions | None = None,
) -> FineTuned:
    """Fine-tune `model` on `train` once a seed, keep each run's best epoch on `dev`, and write the run folder.

    Raises:
        BadInput: the folder holds other runs, or the examples do not fit each other or the model.
    """
    settings, options = settings or FinetuneSettings(), options or FinetuneOptions()
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise BadInput(f"seeds are {list(seeds)}; name at least one, none twice and none below 0")
    check_splits(train, dev)
    n_train = min(len(train), settings.train_limit or len(train))
    steps_per_epoch(n_train, settings.batch)
    _arguments(settings, folder, 1, options)
    identity = {
        **named_by_weights(model, options.load.subfolder),
        "revision": options.load.revision, "task": dev.task.name, "metric": dev.task.metric,
        "train": train.digest, "dev": dev.digest, **settings.to_dict(),
    }  # fmt: skip
    if options.load.subfolder:
        identity["subfolder"] = options.load.subfolder
    with alone_in(folder):
        claim(folder, identity, seeds, overwrite=options.overwrite)
        transformers.utils.logging.disable_progress_bar()
        runs = []
        for seed in seeds:
            place = seed_folder(folder, seed)
            run = finished(place)
            if run is None:
                run = _one(model, train, dev, place, replace(settings, seed=seed), options)
            else:
                options.progress(f"seed {seed}: finished earlier, read from {place}")
            for path in place.glob("checkpoint-*"):
                shutil.rmtree(path)
            runs.append(run)
        result = FineTuned(
            provenance=Provenance.now(model, runs[0].base_fingerprint, command=options.command, seed=seeds[0]),
            base=model,
            task=dev.task.name,
            metric=dev.task.metric,
            settings={name: value for name, value in settings.to_dict().items() if name != "seed"},
            train=train.source,
            dev=dev.source,
            n_train=n_train,
            n_dev=len(dev),
            train_digest=train.digest,
            dev_digest=dev.digest,
            seeds=tuple(runs),
            notes=("the dev examples are the training examples",) if train.digest == dev.digest else (),
        )
        save(result, folder / RESULT)
        for run in runs:
            write_text(Path(run.folder) / "README.md", card(result, run))
    return result


def _one(
    model: str, train: Examples, dev: Examples, folder: Path, settings: FinetuneSettings, options: FinetuneOptions
) -> SeedRun:
    """One seed's run: train, or go on."""
    started = time.monotonic()
    exact = replace(options.load, dtype="float32")
    loaded = load_model(
        model, exact, NewHead(train.task.labels, tokens=train.task.level == "token", seed=settings.seed)
    )
    length = token_limit(loaded, settings.max_length)
    chosen = train
    if settings.train_limit is not None and settings.train_limit < len(train):
        drawn = np.random.default_rng([settings.seed, 7]).permutation(len(train))[: settings.train_limit]
        chosen = train.some(sorted(drawn.tolist()))
    rows = encode(loaded.tokenizer, chosen, max_length=length).for_model(loaded.model)
    check_known(loaded, rows.inputs["input_ids"])
    if train.task.level == "token" and not all(any(label != NOT_A_LABEL for label in row) for row in rows.labels):
        raise BadInput(f"{train.source}: a text has no labelled word within {length} tokens; remove it")
    scorer = LabelledScore(loaded, dev, TaskOptions(max_length=length, measure="loss"))
    body: Any = loaded.model
    base = fingerprint(body.base_model)
    if settings.off:
        n_values = zero_weights_(loaded, settings.off, stack=settings.stack)
        options.progress(f"seed {settings.seed}: {n_values:,} values of dimensions {settings.off} set to zero")
    kept = Kept(folder, dev.task.metric)
    _train(loaded, rows, scorer, kept, settings, options)
    where = kept.finish()
    with np.load(where / PREDICTIONS) as said:
        groups = dev.family  # of pairs; words go by their text
        if dev.task.level == "token":
            groups = np.repeat(np.arange(len(dev)), scorer.weights.astype(np.int64))
        low, high = interval(dev.task.metric, said["truth"], said["predicted"], seed=settings.seed, groups=groups)
    run = SeedRun(
        settings.seed, str(where), tuple(kept.epochs), kept.best_epoch, low, high,
        fingerprint(load_model(str(where), exact).model), time.monotonic() - started, base,
    )  # fmt: skip
    write_text(folder / DONE, json.dumps(dataclasses.asdict(run)))
    return run


def _train(
    loaded: LoadedModel,
    rows: Encoded,
    scorer: LabelledScore,
    kept: Kept,
    settings: FinetuneSettings,
    options: FinetuneOptions,
) -> None:
    order = training_order(rows.lengths, batch=settings.batch, epochs=settings.epochs, seed=settings.seed)
    per_epoch = steps_per_epoch(len(rows.lengths), settings.batch)
    newest = newest_checkpoint(kept.folder)
    options.progress(
        f"seed {settings.seed}: {'continuing from ' + newest.name if newest else 'training'}, "
        f"{per_epoch * settings.epochs:,} steps of {settings.batch}, {settings.epochs} epochs"
    )
    with torch.random.fork_rng():
        trainer = EpochTrainer(
            scorer.outputs,
            kept,
            (loaded, settings, per_epoch, options),
            args=_arguments(settings, kept.folder, per_epoch, options),
            train_dataset=ExampleRows(rows, order),
            data_collator=Collator(loaded),
        )
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)


class EpochTrainer(Trainer):
    """Trainer that scores the dev set after each epoch and keeps the best one's model.

    It reads its rows once, so the Trainer itself knows one epoch; what it logs is counted in those of the settings.
    """

    def __init__(
        self,
        score: Callable[[], Outputs],
        kept: Kept,
        run: tuple[LoadedModel, FinetuneSettings, int, FinetuneOptions],
        **arguments: Any,
    ):
        self.loaded, self.settings, self.per_epoch, self.options = run
        super().__init__(model=self.loaded.model, callbacks=[_Moments(*run)], **arguments)
        self.score, self.kept = score, kept
        self.remove_callback(transformers.trainer_callback.PrinterCallback)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Dev loss and scores of the epoch that ends here, measured as the model will be when it is loaded."""
        epoch = self.state.global_step / self.per_epoch
        row = self.kept.row(epoch)
        if row is None:
            model: Any = self.loaded.model
            model.eval()
            with full_precision(model):
                found = self.score()
                row = EpochScore(epoch, self.state.global_step, float(found.losses.mean()), found.scores, self._loss())
                self.kept.add(row, lambda folder: self._write(folder, found))
            model.train()
            said = ", ".join(f"{name} {value:.4f}" for name, value in found.scores.items())
            self.options.progress(f"seed {self.settings.seed}: epoch {epoch:g}: {said}, dev loss {row.loss:.4f}")
        metrics = {
            "eval_loss": row.loss,
            **{f"eval_{name.replace(' ', '_')}": value for name, value in row.scores.items()},
        }
        self.log(dict(metrics))
        return metrics

    def _loss(self) -> float | None:
        """Mean training loss of the epoch that ends here; each logged value is a mean since the one before."""
        first = self.state.global_step - self.per_epoch
        logged = [(0, 0.0), *((row["step"], row["loss"]) for row in self.state.log_history if "loss" in row)]
        pairs = itertools.pairwise(logged)
        parts = [(step - before, loss) for (before, _), (step, loss) in pairs if step > first]
        return sum(n * loss for n, loss in parts) / sum(n for n, _ in parts) if parts else None

    def _write(self, folder: Path, found: Outputs) -> None:
        model: Any = self.loaded.model
        tokenizer: Any = self.loaded.tokenizer
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        np.savez(folder / PREDICTIONS, truth=found.truth, predicted=found.predicted, losses=found.losses)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As the Trainer's, with the settings' epochs."""
        before = self.state.epoch
        self.state.epoch = None if before is None else before * self.settings.epochs
        try:
            super().log(logs, start_time)
        finally:
            self.state.epoch = before


class _Moments(TrainerCallback):
    """When to log and to score, and what holds between steps."""

    def __init__(self, loaded: LoadedModel, settings: FinetuneSettings, per_epoch: int, options: FinetuneOptions):
        self.loaded, self.settings, self.per_epoch, self.options = loaded, settings, per_epoch, options

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        if self.settings.hold:
            zero_weights_(self.loaded, self.settings.off, stack=self.settings.stack)

    def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        ends = state.global_step % self.per_epoch == 0
        control.should_evaluate = ends
        # What is not logged when a checkpoint is written is lost to a run that goes on from it.
        if ends or control.should_save:
            control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **known: Any) -> None:
        if self.options.on_log and logs and "loss" in logs:
            self.options.on_log(self.settings.seed, state.global_step, state.max_steps, dict(logs))


def _arguments(settings: FinetuneSettings, folder: Path, per_epoch: int, options: FinetuneOptions) -> TrainingArguments:
    arguments = training_arguments(
        folder,
        device=options.load.device,
        precision=settings.precision,
        seed=settings.seed,
        report_to=options.report_to,
        max_steps=per_epoch * settings.epochs,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup,  # below 1 it is a share
        weight_decay=settings.weight_decay,
        logging_steps=max(1, min(LOG_AT_LEAST, per_epoch // LOGS_PER_EPOCH)),
        eval_strategy="no",
        save_steps=settings.save_steps or per_epoch,
        save_total_limit=1,
    )
    if arguments.world_size > 1:
        raise BadInput(f"fine-tuning runs in one process, and {arguments.world_size} were started; start it plainly")
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
