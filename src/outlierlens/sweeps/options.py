"""What a sweep switches off, how precisely it measures, and against what it compares: `SweepOptions`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.modes import Mode, check_mode
from outlierlens.tasks import TaskOptions

Windows = Literal["all", "single", "from", "upto"]
WINDOWS: tuple[Windows, ...] = ("all", "single", "from", "upto")


@dataclass(frozen=True)
class SweepOptions:
    """Settings of a sweep.

    Attributes:
        dims: dimensions swept one at a time; None is every dimension, () none.
        sets: sets of dimensions switched off together, each beside random and matched sets.
        plans: sets that differ from layer to layer, {layer: dims}, whatever the windows.
        with_found: also the set of all that the weight rule finds, where it finds two or more.
        windows: layers each is off in: "all" together, each "single" layer, "from" each layer on, "upto" each layer.
        layers: restricts the windows to these layers; None is all layers.
        mode: the ablation, as for `disable`: "weights", "zero", "mean", "scale", "resample", "writes".
        factor: of mode "scale". embeddings: mode "writes" also removes what the embeddings write.
        stack: stream, where the model has several.
        exact: measure every effect on every text.
        tolerance, relative: adaptive: an effect is precise when its interval is narrower than
            ± max(tolerance, relative × |change|); tolerance in the task's unit.
        top: adaptive: how many of the strongest effects are told apart from each other and from the rest.
        max_texts: adaptive: no effect is measured on more texts; None is all there are.
        level: confidence of the intervals.
        anytime: adaptive: have every interval hold at any look for any reason to stop, not only for the rule that stops at
            its width; takes about twice the texts.
        gradients: texts of the gradient pass that serves as control variate; 0 does without.
        n_random: random sets for each set (or listed dimension) and window; None is 200, or 19 where there are several
            windows.
        n_matched: sets with as extreme weights at other positions; None is 19, or 0 where there are several windows.
        random_texts: texts, the same ones, that controls and their set are measured on.
        batch_size: rows of a forward pass over the longest texts (of shorter ones as many as give the same tokens); None is
            the device's usual. Halved when memory runs out.
        seed: of the order of texts and of control sets. (Masks have `task.seed`.)
    """

    dims: tuple[int, ...] | None = None
    sets: tuple[tuple[int, ...], ...] = ()
    plans: tuple[Mapping[int, tuple[int, ...]], ...] = ()
    with_found: bool = True
    windows: Windows = "all"
    layers: tuple[int, ...] | None = None
    mode: Mode = "weights"
    factor: float = 0.5
    embeddings: bool = False
    stack: str | None = None
    exact: bool = False
    tolerance: float = 0.01
    relative: float = 0.1
    top: int = 5
    max_texts: int | None = None
    level: float = 0.95
    anytime: bool = False
    gradients: int = 256
    n_random: int | None = None
    n_matched: int | None = None
    random_texts: int = 16
    batch_size: int | None = None
    seed: int = 0
    task: TaskOptions = field(default_factory=lambda: TaskOptions(blocks=True))

    def __post_init__(self) -> None:
        check_mode(self.mode, self.factor, self.embeddings)
        if self.windows not in WINDOWS:
            raise BadInput(f"unknown windows {self.windows!r}; windows are {', '.join(WINDOWS)}")
        if not (self.tolerance > 0 and self.relative >= 0 and np.isfinite(self.tolerance + self.relative)):
            raise BadInput(f"tolerance is {self.tolerance} and relative {self.relative}; need above 0 and at least 0")
        if not 0.5 <= self.level < 1:
            raise BadInput(f"level is {self.level}; it must be at least 0.5 and below 1")
        if min(self.top, self.gradients, self.n_random or 0, self.n_matched or 0) < 0:
            raise BadInput("top, gradients, n_random and n_matched cannot be negative")
        if self.random_texts < 1 or (self.max_texts is not None and self.max_texts < 2):
            raise BadInput("random_texts must be at least 1 and max_texts at least 2")
        if self.exact and (self.max_texts is not None or self.anytime):
            raise BadInput("exact measures every text: max_texts and anytime belong to the adaptive way")
        if self.batch_size is not None and self.batch_size < 1:
            raise BadInput(f"batch_size is {self.batch_size}; it must be at least 1")
