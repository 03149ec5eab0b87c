"""The rows of a sweep: what must be equal for them to be used again, and a store of them that has no file."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from outlierlens.data.texts import Data
from outlierlens.experiments.sweep.gradients import AUDITED, SAFETY
from outlierlens.experiments.sweep.runner import Runner
from outlierlens.experiments.sweep.units import Unit
from outlierlens.tasks.base import begins

ROWS_VERSION = 1  # of what the keys and values of rows mean


class Memory:
    """A row store without a file."""

    def __init__(self) -> None:
        self.done: dict[str, Any] = {}

    def get(self, key: str) -> Any | None:
        """The value of a finished unit, or None."""
        return self.done.get(key)

    def append(self, key: str, value: Any) -> Any:
        """Keep one finished unit."""
        self.done[key] = value
        return value


def digest(units: Sequence[Unit]) -> str:
    """What is switched off, as part of the names of rows."""
    return hashlib.sha256("\n".join(unit.key for unit in units).encode()).hexdigest()[:16]


def identity(runner: Runner, texts: Data, model: str) -> dict[str, Any]:
    """What must be equal for rows to be reusable: all that a per-text difference depends on, and the order of texts."""
    options = runner.options
    task = asdict(options.task)
    del task["batch_size"]
    return {
        "rows": ROWS_VERSION,
        "model": model,
        "data": texts.digest,
        "task": {**task, "name": runner.task.name},
        "mode": runner.ablation.name,
        "stack": runner.stack.name,
        "seed": options.seed,
        "texts": runner.n_texts,
        "exact": runner.exact,
        "max_texts": options.max_texts,
        # It permutes values among the tokens of a batch: what is in a batch is part of what is measured.
        **({"tokens in a batch": runner.tokens} if options.mode == "resample" else {}),
        **({"screen": [SAFETY, AUDITED]} if runner.functional else {}),
        **begins(runner.task),
        **_labels(runner),
    }


def _labels(runner: Runner) -> dict[str, Any]:
    """What the outputs mean, where that is not the task's own order: a config can change under the same weights."""
    order = getattr(runner.task, "order", ())
    return {} if tuple(order) == tuple(range(len(order))) else {"labels of outputs": list(order)}
