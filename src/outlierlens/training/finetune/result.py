"""What `finetune` makes: the dev scores of every epoch and seed. Plain data, no torch.

tuned = load("runs/minilm-l6-rte/finetuned.json")
tuned.seeds[0].best.scores["accuracy"]
tuned.spread()                        # (mean, lowest, highest) of the first metric over the seeds
"""

from dataclasses import dataclass
from typing import Any

from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class EpochScore:
    """Dev scores after an epoch.

    Attributes:
        epoch: 1 after the first.
        loss: mean loss on the dev set: nats per example, or squared error of a regression.
        scores: metric by name, in [−1, 1].
        train_loss: mean training loss since the epoch before.
    """

    epoch: float
    step: int
    loss: float
    scores: dict[str, float]
    train_loss: float | None = None


@dataclass(frozen=True)
class SeedRun:
    """One fine-tuning.

    Attributes:
        folder: of the model of its best epoch.
        low, high: 95 % interval of the first metric, dev examples resampled (whole texts of a token task).
        fingerprint: of the fine-tuned model's parameters. base_fingerprint: of the model's without head, before training.
        seconds: of the process that finished it.
    """

    seed: int
    folder: str
    epochs: tuple[EpochScore, ...]
    best_epoch: float
    low: float
    high: float
    fingerprint: str
    seconds: float = 0.0
    base_fingerprint: str = ""

    @property
    def best(self) -> EpochScore:
        """Scores of the epoch whose model is kept."""
        return next(epoch for epoch in self.epochs if epoch.epoch == self.best_epoch)


@dataclass(frozen=True)
class FineTuned(Result):
    """A model fine-tuned on a task, one run per seed.

    Attributes:
        base: the model that was fine-tuned. task: its name in the table. metric: what the best epoch was chosen by.
        settings: of the training, by name.
        train, dev: where the examples came from; n_train, n_dev: how many; with their digests.
    """

    provenance: Provenance
    base: str
    task: str
    metric: str
    settings: dict[str, Any]
    train: str
    dev: str
    n_train: int
    n_dev: int
    train_digest: str
    dev_digest: str
    seeds: tuple[SeedRun, ...]
    notes: tuple[str, ...] = ()

    def records(self) -> list[dict[str, Any]]:
        """One flat row per seed."""
        return [
            {
                "base": self.base,
                "task": self.task,
                "seed": run.seed,
                "epoch": run.best_epoch,
                "loss": run.best.loss,
                **run.best.scores,
                "low": run.low,
                "high": run.high,
                "folder": run.folder,
            }
            for run in self.seeds
        ]

    def spread(self) -> tuple[float, float, float]:
        """(mean, lowest, highest) of the first metric over the seeds."""
        values = [run.best.scores[self.metric] for run in self.seeds]
        return sum(values) / len(values), min(values), max(values)
