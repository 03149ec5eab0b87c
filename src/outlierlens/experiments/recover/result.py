"""Whether a fine-tuned model recovers from losing its outlier dimensions: plain data, without torch.

found.arm("chosen", "off").lost              # metric lost at once
found.arm("chosen", "again").lost            # after fine-tuning again, free to regrow them
found.arm("chosen", "held").lost             # after fine-tuning again without them
found.arm("random", "off").lost              # the same number of random dimensions
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.words import interval_text, no_change, no_interval

What = Literal["none", "chosen", "random"]
State = Literal["intact", "off", "again", "held"]
STATES: dict[State, str] = {
    "intact": "intact",
    "off": "off, not retrained",
    "again": "fine-tuned again, free",
    "held": "fine-tuned again, held at zero",
}


@dataclass(frozen=True)
class Regrowth:
    """What became of one dimension's scale and bias of each block's last operation.

    Attributes:
        scale, bias: mean |value| over layers; bias is None where there is none.
        scale_share, bias_share: the same over the intact model's; None where that is 0.
        z_scale, z_bias: mean z over layers, among the dimensions of the layer as they now are.
        regrown: 1 − ‖now − intact‖ / ‖intact‖ over layers, scale and bias together: 1 is back in place, 0 still off; below
            0 further from its place than when off.
    """

    dim: int
    scale: float
    bias: float | None
    scale_share: float | None
    bias_share: float | None
    z_scale: float
    z_bias: float | None
    regrown: float


@dataclass(frozen=True)
class Arm:
    """One way of treating the model, and what it then scores on the dev set.

    Attributes:
        what: which dimensions: "none", the "chosen" ones, or a "random" set of the same size.
        state: "intact"; "off" without training; "again": off, then fine-tuned again freely; "held": off and held at zero
            while fine-tuned again. "none" with "again" is the model fine-tuned further with nothing off.
        seed: of the fine-tuning; None without one.
        value, low, high: the task's metric with its 95 % interval over examples.
        lost, lost_low, lost_high: intact metric − value, and its 95 % interval, paired by example; (0, 0) where every example
            is predicted alike.
        recovered: share of what was lost when off that is back, 1 − lost / lost when off; None where that interval holds 0.
        best_epoch: of the fine-tuning, chosen by the dev metric.
        regrowth: of the arm's dimensions (of the chosen ones where nothing was off).
    """

    what: What
    state: State
    dims: tuple[int, ...]
    seed: int | None
    value: float
    low: float
    high: float
    loss: float
    lost: float
    lost_low: float
    lost_high: float
    scores: dict[str, float]
    regrowth: tuple[Regrowth, ...]
    recovered: float | None = None
    best_epoch: float | None = None
    folder: str = ""


@dataclass(frozen=True)
class Recovery(Result):
    """A fine-tuned model with dimensions off, and fine-tuned again without them.

    Attributes:
        settings: of the fine-tuning, by name.
        reach: about as far as AdamW can move one value in a run: half the learning rate times the steps. What regrows
            less than that was free to; what is larger could not.
        arms: in the order of the table.
    """

    provenance: Provenance
    task: str
    metric: str
    stack: str
    dims: tuple[int, ...]
    train: str
    dev: str
    n_train: int
    n_dev: int
    settings: dict[str, Any]
    reach: float
    arms: tuple[Arm, ...]
    notes: tuple[str, ...] = ()

    def arm(self, what: What, state: State, seed: int | None = None) -> Arm:
        """The first arm of that kind (with that seed, where one is given); raises BadInput for none."""
        for arm in self.arms:
            if (arm.what, arm.state) == (what, state) and seed in (None, arm.seed):
                return arm
        raise BadInput(
            f"this result holds no arm {what!r}, {state!r}" + (f" with seed {seed}" if seed is not None else "")
        )

    def interval(self, arm: Arm, form: str = "+.3f") -> str:
        """The interval of what an arm lost, in words."""
        why = no_interval(self.n_dev, "examples", metric=self.metric)
        return interval_text(arm.lost_low, arm.lost_high, form, no_change(self.n_dev, "examples"), why)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row an arm."""
        for arm in self.arms:
            regrown = [one.regrown for one in arm.regrowth]
            yield {
                "off": arm.what,
                "state": STATES[arm.state],
                "dims": ", ".join(map(str, arm.dims)) or "–",
                "seed": arm.seed,
                self.metric: arm.value,
                "low": arm.low,
                "high": arm.high,
                "lost": arm.lost,
                "lost_low": arm.lost_low,
                "lost_high": arm.lost_high,
                "recovered": arm.recovered,
                "regrown": float(np.mean(regrown)) if regrown else None,
                "epoch": arm.best_epoch,
            }
