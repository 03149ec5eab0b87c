"""Fine-tuning with Hugging Face's Trainer, which saves and resumes; the dev set is scored after each epoch.

    order = training_order(lengths, batch=32, epochs=4, seed=42)       # int [epochs × steps × batch]
    train_epochs(loaded, rows, scorer, kept, settings, options)     # goes on from the newest checkpoint in kept.folder

The order of the examples is random, with examples of like length in one batch; a function of the seed alone.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainingArguments

from outlierlens.ablation.switches import zero_weights_
from outlierlens.errors import BadInput
from outlierlens.models.inputs import TextRows
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.classify import LabelledScore, Outputs
from outlierlens.training.run_files import newest_checkpoint
from outlierlens.training.trainer import full_precision, training_arguments

if TYPE_CHECKING:
    from outlierlens.analyses.finetune import FinetuneOptions, FinetuneSettings, SeedFolder

BATCHES_SORTED = 50  # among so many batches, examples are sorted by length: padding nearly goes, chance stays
LOGS_PER_EPOCH = 4
LOG_AT_LEAST = 50  # steps


def steps_per_epoch(n_examples: int, batch: int) -> int:
    """Whole batches of an epoch: up to batch − 1 examples, others in every epoch, are left out of it.

    Raises:
        BadInput: fewer examples than a batch.
    """
    if n_examples < batch:
        raise BadInput(f"{n_examples} training examples do not fill a batch of {batch}; use a smaller --batch-size")
    return n_examples // batch


def training_order(lengths: Sequence[int] | np.ndarray, *, batch: int, epochs: int, seed: int) -> np.ndarray:
    """Numbers of the examples in the order they are trained on, epoch after epoch, int [step × batch]."""
    found = []
    size = np.asarray(lengths)
    steps = steps_per_epoch(len(size), batch)
    for epoch in range(epochs):
        random = np.random.default_rng([seed, epoch])
        drawn = random.permutation(len(size))[: steps * batch]
        batches = []
        for part in np.split(drawn, range(batch * BATCHES_SORTED, len(drawn), batch * BATCHES_SORTED)):
            batches += list(part[np.argsort(-size[part], kind="stable")].reshape(-1, batch))
        found += [batches[place] for place in random.permutation(len(batches))]
    return np.concatenate(found)


def train_epochs(
    loaded: LoadedModel,
    rows: TextRows,
    scorer: LabelledScore,
    kept: "SeedFolder",
    settings: "FinetuneSettings",
    options: "FinetuneOptions",
) -> None:
    """Train `loaded` on the examples, or go on with it; `kept` gets each epoch's scores and the best one's model."""
    transformers.utils.logging.disable_progress_bar()
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
            args=arguments(settings, kept.folder, per_epoch, options),
            train_dataset=order.tolist(),
            data_collator=lambda numbers: {**rows.inputs(numbers), "labels": rows.targets(numbers)},
        )
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)


class EpochTrainer(Trainer):
    """Trainer that scores the dev set after each epoch and keeps the best one's model.

    It reads its rows once, so the Trainer itself knows one epoch; what it logs is counted in those of the settings. The
    Trainer's own `load_best_model_at_end` scores in its mixed precision, and a kill between score and checkpoint loses one.
    """

    def __init__(
        self,
        score: Callable[[], Outputs],
        kept: "SeedFolder",
        run: "tuple[LoadedModel, FinetuneSettings, int, FinetuneOptions]",
        **given: Any,
    ):
        self.loaded, self.settings, self.per_epoch, self.options = run
        super().__init__(model=self.loaded.model, callbacks=[_Moments(*run)], **given)
        self.score, self.kept = score, kept
        self.remove_callback(transformers.trainer_callback.PrinterCallback)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Dev loss and scores of the epoch that ends here, measured as the model will be when it is loaded."""
        step = self.state.global_step
        epoch = step / self.per_epoch
        row = self.kept.row(epoch)
        if row is None:
            model: Any = self.loaded.model
            model.eval()
            with full_precision(model):
                found = self.score()
                row = self.kept.add(epoch, step, found, self._loss(), self._write)
            model.train()
            said = ", ".join(f"{name} {value:.4f}" for name, value in found.scores.items())
            self.options.progress(f"seed {self.settings.seed}: epoch {epoch:g}: {said}, dev loss {row.loss:.4f}")
        metrics = {"eval_loss": row.loss}
        metrics |= {f"eval_{name.replace(' ', '_')}": value for name, value in row.scores.items()}
        self.log(dict(metrics))
        return metrics

    def _loss(self) -> float | None:
        """Mean training loss of the epoch that ends here; each logged value is a mean since the one before."""
        first = self.state.global_step - self.per_epoch
        logged = [(0, 0.0), *((row["step"], row["loss"]) for row in self.state.log_history if "loss" in row)]
        pairs = itertools.pairwise(logged)
        parts = [(step - before, loss) for (before, _), (step, loss) in pairs if step > first]
        return sum(n * loss for n, loss in parts) / sum(n for n, _ in parts) if parts else None

    def _write(self, folder: Path) -> None:
        model: Any = self.loaded.model
        tokenizer: Any = self.loaded.tokenizer
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

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

    def __init__(self, loaded: LoadedModel, settings: "FinetuneSettings", per_epoch: int, options: "FinetuneOptions"):
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


def arguments(
    settings: "FinetuneSettings", folder: Path, per_epoch: int, options: "FinetuneOptions"
) -> TrainingArguments:
    """The Trainer's arguments; raises BadInput as `training_arguments`, and where several processes were started."""
    made = training_arguments(
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
        dataloader_pin_memory=False,  # batches are made on the model's device
    )
    if made.world_size > 1:
        raise BadInput(f"fine-tuning runs in one process, and {made.world_size} were started; start it plainly")
    made._n_gpu = min(made.n_gpu, 1)
    return made
