"""Effects on a metric of all texts together, which is no mean over texts: MCC, F1, correlations.

functional = Functional(statistic, order, intact, seed=0)
functional.estimate(differences, 0.95)               # change of 1 − metric with a paired BCa interval
"""

from dataclasses import dataclass

import numpy as np

from outlierlens.experiments.sweep.estimate import Estimate
from outlierlens.tasks.metrics import Statistic


@dataclass
class Functional:
    """What a sweep's differences of predictions do to the metric.

    Attributes:
        statistic: of predictions in the task's own order of texts.
        order: the sweep's order of texts, int [text].
        intact: predictions of the intact model in the sweep's order [text]; filled in once all are known.
    """

    statistic: Statistic
    order: np.ndarray
    seed: int
    intact: np.ndarray | None = None

    def predictions(self, differences: np.ndarray) -> np.ndarray:
        """Predictions in the task's order, from differences to the intact model in the sweep's order, both [text]."""
        assert self.intact is not None, "the intact model is measured before any effect is looked at"
        found = np.empty(len(differences))
        found[self.order] = self.intact + differences
        return found

    def change(self, differences: np.ndarray) -> float:
        """Change of 1 − metric."""
        nothing = self.predictions(np.zeros(len(differences)))
        return self.statistic.value(self.predictions(differences)) - self.statistic.value(nothing)

    def estimate(self, differences: np.ndarray, level: float) -> Estimate:
        """The change with its paired BCa interval over texts; `spread` is that of the predictions' differences."""
        before, after = self.predictions(np.zeros(len(differences))), self.predictions(differences)
        change = self.statistic.value(after) - self.statistic.value(before)
        low, high = self.statistic.interval(before, after, seed=self.seed, level=level)
        spread = float(np.std(differences, ddof=1)) if np.isfinite(differences).all() else float("inf")
        return Estimate(change, low, high, spread, len(differences))
