"""From norms over training steps to what is worth knowing: which dimensions stood out, from when on, and which are followed.

    course = Course.of(trajectory, Rule("kovaleva"))
    course.followed(()), course.passes(308), for_good(trajectory.steps, course.held["scale"][:, 308])

Kovaleva et al. (2021), section 5, watch one layer by eye; here a dimension has emerged at the first recorded step from
which |z| >= n_sigma in enough layers for good.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.analyses.track_changes import MIN_POINTS, SHARE, ChangePoint, Plateau, binned, change_point
from outlierlens.detection.rules import Passes, Rule
from outlierlens.results.rows import Estimate
from outlierlens.training.run_files import Curve, Trajectory

MAX_FOLLOWED = 12
MAX_CELLS = 60_000  # values of one array [step, column] in a result; beyond it a choice of dimensions is kept
MAX_CURVE = 300
LOSSES = ("eval_loss", "loss")  # the one that a plateau is looked for in: the first of these


@dataclass(frozen=True)
class Course:
    """What became of every dimension, part by part: scale, and bias where there is one.

    Attributes:
        mean: mean |z| over layers [step, dim]. layers: number of layers past the threshold [step, dim].
        held: whether what the rule asks for, and each part alone, is past it in enough layers, bool [step, dim].
    """

    mean: dict[str, np.ndarray]
    layers: dict[str, np.ndarray]
    held: dict[Passes, np.ndarray]

    @classmethod
    def of(cls, path: Trajectory, rule: Rule) -> "Course":
        """The course of a trajectory; raises BadFile for a value that is not finite."""
        measured = [path.measured(place) for place in range(path.n_steps)]
        z = {"scale": np.stack([np.abs(one.z_scale) for one in measured])}  # [step, layer, dim]
        if path.bias is not None:
            z["bias"] = np.stack([np.abs(one.z_bias) for one in measured if one.z_bias is not None])
        layers = {part: rule.passes(values).sum(axis=1) for part, values in z.items()}
        held = rule.parts(layers["scale"], layers.get("bias"), path.n_layers)
        return cls({part: values.mean(axis=1) for part, values in z.items()}, layers, held)

    def followed(self, asked: tuple[int, ...]) -> tuple[list[int], int]:
        """Dimensions to follow, those that pass now first, then those that once did; and how many more there were."""
        strength = np.sum([values[-1] for values in self.mean.values()], axis=0)
        ordered = list(asked)
        for part in self.held.values():
            now = np.flatnonzero(part[-1])
            ordered += now[np.argsort(-strength[now], kind="stable")].tolist()
        # What the rule asks for; one part alone flickers too easily to be worth a line.
        whole = next(iter(self.held.values()))
        once = np.flatnonzero(whole.any(axis=0))
        ordered += once[np.argsort(-whole[:, once].sum(axis=0), kind="stable")].tolist()
        unique = list(dict.fromkeys(ordered))
        most = max(MAX_FOLLOWED, len(asked))
        return unique[:most], len(unique[most:])

    def passes(self, dim: int) -> Passes:
        """What of a dimension passes at the last step."""
        return next((part for part, flags in self.held.items() if flags[-1, dim]), "neither")

    def flags(self, dim: int) -> np.ndarray:
        """Whether that passes, or what the rule asks for where nothing does, bool [step]."""
        passes = self.passes(dim)
        return self.held[next(iter(self.held)) if passes == "neither" else passes][:, dim]

    def onset(self, dim: int, steps: np.ndarray, seed: int) -> ChangePoint | None:
        """Where the mean |z| of what passes rises: of the bias where it passes alone, else of the scale."""
        mean = self.mean["bias" if self.passes(dim) == "bias" else "scale"]
        # Freshly initialised norms are all alike and have no z; the step from there to any z at all is no emergence.
        spread = mean.any(axis=1)
        return change_point(steps[spread], mean[spread, dim], direction=1, seed=seed)


def for_good(steps: np.ndarray, flags: np.ndarray) -> tuple[int | None, int | None]:
    """First step from which the flag holds to the end, and the last step before it held at all; None where there is none."""
    if not flags[-1]:
        return None, None
    failing, first = np.flatnonzero(~flags), int(np.argmax(flags))
    step = steps[failing[-1] + 1] if len(failing) else steps[0]
    return int(step), int(steps[first - 1]) if first else None


def dated(event: ChangePoint | Plateau) -> Estimate:
    """The step of an event with its interval."""
    return Estimate(float(event.step), float(event.low), float(event.high))


def lead_of(event: tuple[int, int | None, int], loss: Estimate) -> Estimate:
    """Weights minus loss; both intervals at their worst, so it holds whether or not the two go together."""
    step, low, high = event
    return Estimate(step - loss.value, (low or 0) - loss.high, high - loss.low)


def judged_loss(curves: Mapping[str, Curve]) -> str:
    """The curve to judge by: evaluation loss, unless it has few points or began when much of the fall was over."""
    enough = [name for name in LOSSES if name in curves and len(curves[name].steps) >= MIN_POINTS]
    if len(enough) < 2:
        return enough[0] if enough else ""
    judged, loss = (curves[name] for name in enough)
    missed = loss.values[0] - np.interp(judged.steps[0], loss.steps, loss.values)
    return enough[0] if missed <= SHARE * (loss.values[0] - loss.values[-1]) else enough[1]


def nats(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """Training and evaluation loss, at most 300 points each; the latter from the logged perplexity where no loss was."""
    found = {name: curves[name] for name in ("loss", "eval_loss") if name in curves}
    if "eval_loss" not in found and "eval_perplexity" in curves:
        curve = curves["eval_perplexity"]
        positive = curve.values > 0
        found["eval_loss"] = Curve(curve.steps[positive], np.log(curve.values[positive]))
    points = {name: binned(curve.steps, curve.values, MAX_CURVE) for name, curve in found.items() if len(curve.steps)}
    return {name: Curve(steps.round().astype(np.int64), values) for name, (steps, values) in points.items()}


def kept_dims(path: Trajectory, followed: Sequence[int], layer: int) -> np.ndarray:
    """All dimensions, or where that is too many the followed ones and an even choice by rank of the last scale."""
    most = max(MAX_CELLS // path.n_steps, 2 * len(followed), 16)
    if path.width <= most:
        return np.arange(path.width)
    ranked = np.argsort(path.scale[-1, layer], kind="stable")
    even = ranked[np.linspace(0, path.width - 1, most - len(followed)).round().astype(int)]
    return np.unique(np.concatenate([even, np.array(followed, dtype=int)]))
