"""Where a series over training steps leaves its level, where a loss starts to fall and where it has settled.

    onset = change_point(steps, mean_z, direction=1)         # ChangePoint with an interval, None for a flat series
    settled = plateau(steps, loss)                           # within 5 % of the total fall of the final level
    falls_from = last_fall(steps, loss)                      # onset of the last steep fall

The change is fitted as level, straight ramp, level (continuous; a jump and a lasting slope are its limits) by least
squares over all pairs of break points. Successive deviations may be correlated, AR(1): the fit is repeated on
whitened values. The interval is what a likelihood-ratio test of the onset does not reject; its 95 % value, 7.35, is
that of a jump (Siegmund 1988; Hansen 2000, theorem 1), more than the 3.84 that a bend alone would need (Feder 1975).

p is of another likelihood ratio: the best ramp against no change, each at the correlation that suits it best, so that what a
change explains is weighed against what drifting noise would. Its null distribution is simulated at the correlation where it
is largest, 0.98: noise that drifts more slowly than that cannot be told from a change in one series.

From norms over training steps to what is worth knowing: which dimensions stood out, from when on, and which are followed.

    course = Course.of(trajectory, Rule("kovaleva"))
    course.followed(()), course.passes(308), for_good(trajectory.steps, course.held["scale"][:, 308])

Kovaleva et al. (2021), section 5, watch one layer by eye; here a dimension has emerged at the first recorded step from
which |z| >= n_sigma in enough layers for good.

The runs that `track` reads: the weights that end the blocks, checkpoint by checkpoint, or the rows of a watched training.

path, (read, total), notes = read_checkpoints(["runs/bert"], TrackOptions(), progress)       # a `run_files.Trajectory`
path = read_recorded(["runs/bert/watch.jsonl"], TrackOptions())
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import outlierlens.architectures as arch
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.detection.rules import LastOperation, Passes, Rule
from outlierlens.detection.weights import Site, check_size, measure, sites_of
from outlierlens.errors import BadFile, BadInput, UnknownArchitecture, UnknownModel
from outlierlens.results.rows import Estimate
from outlierlens.statistics import SIGNIFICANT
from outlierlens.statistics.ranks import rank_among
from outlierlens.training.run_files import (
    Curve,
    SavedCheckpoint,
    Trajectory,
    find_log,
    find_saved,
    tracked_site,
    without_weights,
)

if TYPE_CHECKING:
    from outlierlens.analyses.track import TrackOptions

MIN_POINTS = 8  # four numbers are fitted; fewer points leave nothing to judge the fit by
MAX_POINTS = 120  # longer series are averaged in bins: more would only repeat correlated values
MAX_BREAKS = 60
DRAWS = 199  # series simulated without a change; the least p-value is 1 / 200
BOOTSTRAP = 400
MAX_RHO = 0.95
RHOS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98)  # correlations that likelihoods are compared at
SHARE = 0.05  # of its total fall within which a loss is on its plateau
STEEP = 0.1  # share of the total fall that makes a fall steep enough to count


@dataclass(frozen=True)
class ChangePoint:
    """Where a series leaves its first level: level, ramp, level, fitted by least squares.

    Attributes:
        step: end of the first level.
        low, high: 95 % interval of `step`, which ends at recorded steps.
        until: end of the ramp; the last recorded step where the series still moves.
        before, after: the two levels.
        rho: correlation of successive deviations from the fit that the interval allows for, in [0, 1).
        p: p-value of "no change at all", by simulation; above 0.05 it is not settled that there is one (`sure`).
        n_points: points the fit rests on.
    """

    step: int
    low: int
    high: int
    until: int
    before: float
    after: float
    rho: float
    p: float
    n_points: int

    @property
    def sure(self) -> bool:
        """Whether "no change at all" is rejected at 5 %."""
        return self.p <= SIGNIFICANT


@dataclass(frozen=True)
class Plateau:
    """Where a loss comes within a share of its total fall of its final level, and stays there.

    Attributes:
        step: first such step of the curve made monotone; `low` and `high` are its bootstrap interval.
        final: mean of the last tenth of the curve; `fall` is the first value minus it.
        settled: False when it is reached only in the last quarter of the run: then the loss may well still be falling.
    """

    step: int
    low: int
    high: int
    final: float
    fall: float
    settled: bool


def change_point(
    steps: np.ndarray, values: np.ndarray, *, direction: int = 0, level: float = 0.95, seed: int = 0
) -> ChangePoint | None:
    """The onset of the change in `values`; `direction` 1 looks for a rise, −1 for a fall, 0 for either.

    None with fewer than `MIN_POINTS` points, in a constant series, and where nothing moves in that direction.
    """
    x, y = binned(np.asarray(steps), np.asarray(values), MAX_POINTS)
    if len(x) < MIN_POINTS or np.ptp(y) <= 1e-12 * np.abs(y).max():
        return None
    fit = _Ramps(x, direction)
    rho = 0.0
    for _ in range(3):
        best = fit.best(y, rho)
        if best is None:
            return None
        left = y - best.curve
        rho = _correlation(left) if left @ left > 1e-12 * np.square(y - y.mean()).sum() else 0.0  # rounding alone
    best = fit.best(y, rho)
    if best is None:
        return None
    critical = -2 * math.log(1 - math.sqrt(level))
    ratio = (len(x) - 4) * (best.by_onset - best.rss) / best.rss
    kept = np.flatnonzero(ratio <= critical)
    # A jump after step i shows at step i + 1, so an onset that is kept stands for all that lies before the next one.
    last = fit.breaks[int(np.searchsorted(fit.breaks, fit.onsets[kept[-1]])) + 1]
    return ChangePoint(
        step=round(x[best.start]),
        low=round(x[fit.onsets[kept[0]]]),
        high=round(x[last]),
        until=round(x[best.end]),
        before=best.before,
        after=best.after,
        rho=rho,
        p=_p_value(fit.ratio(y[:, None])[0], x, direction, seed),
        n_points=len(x),
    )


class _SegmentFit:
    """The best ramp: indices of its ends, its levels, RSS, and the RSS of each onset."""

    def __init__(self, fit: "_Ramps", rss: np.ndarray, y: np.ndarray, total: float):
        pair = int(np.argmin(rss))
        self.start, self.end = (int(i) for i in fit.pairs[pair])
        shape = fit.shapes[pair]
        (self.before, slope), *_ = np.linalg.lstsq(np.stack([np.ones_like(y), shape], axis=1), y, rcond=None)
        self.before, self.after = float(self.before), float(self.before + slope)
        self.curve = self.before + slope * shape
        floor = 1e-12 * total
        self.rss = max(float(rss[pair]), floor)
        best = np.full(len(fit.onsets), np.inf)
        np.minimum.at(best, fit.onset_of_pair, rss)
        self.by_onset = np.maximum(best, floor)


class _Ramps:
    """Every level-ramp-level shape over the points `x`, from 0 to 1."""

    def __init__(self, x: np.ndarray, direction: int):
        self.x, self.direction = x, direction
        n = len(x)
        self.breaks = breaks = np.unique(np.linspace(0, n - 1, min(n, MAX_BREAKS)).round().astype(int))
        self.pairs = np.array([(a, b) for a in breaks for b in breaks if a < b])
        self.onsets, self.onset_of_pair = np.unique(self.pairs[:, 0], return_inverse=True)
        start, end = x[self.pairs[:, 0], None], x[self.pairs[:, 1], None]
        self.shapes = np.clip((x - start) / (end - start), 0, 1)  # [pair, point]

    def _whitened(self, rho: float) -> tuple[np.ndarray, np.ndarray]:
        """Unit shapes [pair, point] orthogonal to the constant, and the unit constant, all whitened."""
        one = _whiten(np.ones(len(self.x)), rho)
        one /= np.linalg.norm(one)
        shapes = _whiten(self.shapes, rho)
        shapes = shapes - (shapes @ one)[:, None] * one
        return shapes / np.linalg.norm(shapes, axis=1, keepdims=True), one

    def best(self, y: np.ndarray, rho: float) -> _SegmentFit | None:
        """The least-squares ramp in the direction asked for, or None."""
        shapes, one = self._whitened(rho)
        white = _whiten(y, rho)
        white = white - (white @ one) * one
        along = shapes @ white
        total = float(white @ white)
        rss = total - self._gains(along)
        return _SegmentFit(self, rss, y, total) if self._gains(along).any() else None

    def _gains(self, along: np.ndarray) -> np.ndarray:
        if self.direction:
            along = np.maximum(along * self.direction, 0)
        return np.square(along)

    def ratio(self, values: np.ndarray) -> np.ndarray:
        """Likelihood ratio of the best ramp against no change [series], of values [point, series].

        −2 log of the restricted likelihood of AR(1) noise around a level (Harville 1974), smallest over `RHOS`, without a ramp
        less with one.
        """
        n = len(self.x)
        flat, ramp = np.full((2, values.shape[1]), np.inf)
        for rho in RHOS:
            shapes, one = self._whitened(rho)
            white = _whiten(values.T, rho).T
            white -= one[:, None] * (one @ white)
            total = np.square(white).sum(axis=0)
            left = np.maximum(total - self._gains(shapes @ white).max(axis=0), 1e-12 * total)
            level = math.log1p((n - 1) * (1 - rho) / (1 + rho))
            flat = np.minimum(flat, (n - 1) * np.log(total) + level)
            ramp = np.minimum(ramp, (n - 1) * np.log(left) + level)
        return flat - ramp


def _p_value(ratio: float, x: np.ndarray, direction: int, seed: int) -> float:
    """(1 + simulated series without a change whose ratio is as large) / (1 + series)."""
    relative = (x - x[0]) / (x[-1] - x[0])
    without = _without_change(tuple(relative.round(12).tolist()), direction, seed)
    return float(rank_among(ratio, without) / (1 + DRAWS))


@lru_cache(maxsize=256)  # dimensions of one run are followed over the same steps
def _without_change(x: tuple[float, ...], direction: int, seed: int) -> np.ndarray:
    """Likelihood ratios of `DRAWS` series of AR(1) noise with the largest of `RHOS`, at points `x` from 0 to 1."""
    noise, rho = np.random.default_rng(seed).standard_normal((len(x), DRAWS)), RHOS[-1]
    noise[1:] *= math.sqrt(1 - rho * rho)
    for i in range(1, len(x)):
        noise[i] += rho * noise[i - 1]
    return _Ramps(np.array(x), direction).ratio(noise)


def _whiten(values: np.ndarray, rho: float) -> np.ndarray:
    """AR(1) values along the last axis as independent ones of equal variance (Prais and Winsten 1954)."""
    out = values.astype(np.float64)
    out[..., 1:] -= rho * values[..., :-1]
    out[..., 0] *= math.sqrt(1 - rho * rho)
    return out


def _correlation(residuals: np.ndarray) -> float:
    """Lag-one correlation of residuals in [0, 0.95], corrected for the bias that the fitted numbers bring."""
    n = len(residuals)
    raw = float(residuals[1:] @ residuals[:-1]) / float(residuals @ residuals)
    # Kendall (1954): the estimate lies (1 + 4 rho) / n low around a mean. A fitted ramp takes up more: this much more.
    return min(max((n * raw + 3) / max(n - 12, n / 3), 0.0), MAX_RHO)


def binned(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Finite points as float arrays; where there are more than `most`, means of that many groups of neighbours."""
    finite = np.isfinite(values)
    x, y = steps[finite].astype(np.float64), values[finite].astype(np.float64)
    if len(x) <= most:
        return x, y
    groups = np.array_split(np.arange(len(x)), most)
    return np.array([x[g].mean() for g in groups]), np.array([y[g].mean() for g in groups])


def last_fall(steps: np.ndarray, loss: np.ndarray, *, seed: int = 0) -> ChangePoint | None:
    """Onset of the last steep fall of a loss; None where it falls from its first point on without a level before.

    A masked-LM loss drops to its unigram plateau first, and the fall that matters starts at the end of that plateau. So
    the curve is cut at later and later points until a ramp fits that has a level of a twentieth of the points before it,
    and falls by a tenth of the total fall; what follows that fall is searched again.
    """
    x, y = binned(np.asarray(steps), np.asarray(loss), MAX_POINTS)
    n, found, start = len(x), None, 0
    if n < MIN_POINTS:
        return None
    total, flat = float(y[:2].mean() - y[-3:].mean()), max(3, n // 20)
    while total > 0 and start <= n - MIN_POINTS:
        fall = change_point(x[start:], y[start:], direction=-1, seed=seed)
        if fall is None or not fall.sure or fall.before - fall.after < STEEP * total:
            break
        if int(np.searchsorted(x, fall.step)) - start >= flat - 1 and fall.low > x[start]:
            found = fall
            start = max(int(np.searchsorted(x, fall.until)), start + 1)
        else:
            start += max(1, n // 40)
    return found


def plateau(
    steps: np.ndarray, loss: np.ndarray, *, share: float = SHARE, level: float = 0.95, seed: int = 0
) -> Plateau | None:
    """Where the loss reaches its plateau for good; None with fewer than `MIN_POINTS` points or without a fall.

    The curve is made monotone by isotonic least squares first, so that noise does not decide. The interval resamples
    blocks of the deviations (Künsch 1989; blocks of n^(1/3) points), `level` of the resampled curves lie inside.
    """
    x, y = binned(np.asarray(steps), np.asarray(loss), 2 * MAX_POINTS)
    n = len(x)
    if n < MIN_POINTS:
        return None
    smooth = falling(y)
    tail = max(3, n // 10)
    final, fall = float(y[-tail:].mean()), float(smooth[0] - y[-tail:].mean())
    if fall <= 0:
        return None

    def reached(values: np.ndarray) -> int:
        smooth, final = falling(values), values[-tail:].mean()
        return int(np.argmax(smooth <= final + (share + 1e-9) * (smooth[0] - final)))

    random = np.random.default_rng(seed)
    size, residuals = max(1, round(n ** (1 / 3))), y - smooth
    starts = random.integers(0, n - size + 1, (BOOTSTRAP, -(-n // size)))
    drawn = residuals[(starts[:, :, None] + np.arange(size)).reshape(BOOTSTRAP, -1)[:, :n]]
    again = np.array([reached(smooth + noise) for noise in drawn])
    low, high = np.quantile(again, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    step = x[reached(y)]
    return Plateau(
        step=round(step),
        low=round(min(x[int(low)], step)),
        high=round(max(x[int(high)], step)),
        final=final,
        fall=fall,
        settled=bool(step <= x[0] + 0.75 * (x[-1] - x[0])),
    )


def falling(values: np.ndarray) -> np.ndarray:
    """The nearest series (least squares) that never rises: pool adjacent violators."""
    levels: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        levels.append(value)
        counts.append(1)
        while len(levels) > 1 and levels[-2] < levels[-1]:
            count, one = counts.pop(), levels.pop()
            levels[-1] = (levels[-1] * counts[-1] + one * count) / (counts[-1] + count)
            counts[-1] += count
    return np.repeat(levels, counts)


# --- emergence -------------------------------------------------------------------------------------------------------


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


# --- runs ------------------------------------------------------------------------------------------------------------


DAMAGED = (BadFile, UnknownModel, UnknownArchitecture)


def read_recorded(names: list[str], options: "TrackOptions") -> Trajectory:
    """The trajectory of a file of watch rows; raises BadInput for what belongs to checkpoints."""
    from outlierlens.training.watch_rows import read_watch

    if len(names) > 1:
        raise BadInput(f"{names[0]} holds a whole run; track it alone, without {names[1]}")
    given = {"--revisions": options.revisions, "--steps": options.steps, "--norm": options.norm}
    for option, value in given.items():
        if value:
            raise BadInput(f"{option} belongs to checkpoints; {names[0]} holds recorded rows")
    file = Path(names[0]).absolute()
    named = file.parent.name if file.stem in ("watch", "rows") and file.parent.name else file.stem
    return replace(read_watch(names[0], options.stack), model=named)


def read_checkpoints(
    names: list[str], options: "TrackOptions", progress: Callable[[str, int, int], None]
) -> tuple[Trajectory, tuple[int, int], list[str]]:
    """(scale and bias of every checkpoint, bytes (read, in all), notes): THE loop.

    Raises:
        BadInput: checkpoints of differing shape or kind, an unknown stream or norm. BadFile, UnknownModel,
        UnknownArchitecture: a checkpoint cannot be read; the message names it.
    """
    saved = find_saved(names, revisions=options.revisions, steps=options.steps)
    first: Site | None = None
    kept: list[tuple[SavedCheckpoint, LastOperation]] = []
    notes = [f"left out: {one} is named as a checkpoint, and holds no weight file" for one in without_weights(names)]
    read = total = 0
    for place, one in enumerate(saved):
        progress(f"reading {one.name}", place, len(saved))
        try:
            with _open(one, options) as checkpoint:
                site = _site(checkpoint, options)
                if not kept:
                    reading = sites_of(site.stack, "reading")
                    norm = f", or follow a norm alone: --norm {reading[0].name}" if reading else ""
                    check_size(
                        checkpoint, [site], options.scan, instead=norm, each=f" in each of {len(saved)} checkpoints"
                    )
                measured, _ = measure(checkpoint, site, hashlib.sha256())
                read, total = read + checkpoint.bytes_read, total + checkpoint.total_bytes
        except DAMAGED as error:
            if not options.skip_damaged:
                raise type(error)(f"{one.name} (step {one.step}): {error}; --skip-damaged leaves it out") from error
            notes.append(f"left out, step {one.step}: {error}")
            continue
        first = first or site
        _same(first, site, (kept[0] if kept else (one, measured)), (one, measured))
        kept.append((one, measured))
    if first is None:
        raise BadFile(f"none of the {len(saved)} checkpoints can be read: {notes[0]}")
    progress("reading", len(saved), len(saved))
    biased = all(measured.bias is not None for _, measured in kept)
    path = Trajectory(
        model=names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more",
        stack=first.stack.name, site=first.name, norm_site=first.stack.stack.norm_site, view=first.view,
        steps=np.array([one.step for one, _ in kept]), scale=np.stack([measured.scale for _, measured in kept]),
        bias=np.stack([m.bias for _, m in kept if m.bias is not None]) if biased else None,
        curves=find_log([one for one, _ in kept]) if options.log is None else {},
    )  # fmt: skip
    return path, (read, total), notes


def _open(saved: SavedCheckpoint, options: "TrackOptions") -> Checkpoint:
    scan = options.scan
    return open_checkpoint(
        saved.model, revision=saved.revision, subfolder=scan.subfolder, token=scan.token, offline=scan.offline
    )


def _site(checkpoint: Checkpoint, options: "TrackOptions") -> Site:
    bound = arch.bound_stacks(checkpoint, options.scan.row)
    names = [stack.name for stack in bound]
    if options.stack is None and len(bound) > 1:
        raise BadInput(f"{checkpoint.name}: which stream? --stack must be one of {', '.join(names)}")
    if options.stack is not None and options.stack not in names:
        raise BadInput(f"{checkpoint.name}: no stream {options.stack!r}; there are {', '.join(names)}")
    return tracked_site(bound[names.index(options.stack)] if options.stack else bound[0], options.norm)


def _same(
    first: Site, site: Site, before: tuple[SavedCheckpoint, LastOperation], now: tuple[SavedCheckpoint, LastOperation]
) -> None:
    """Raise BadInput unless two checkpoints can belong to one run."""
    shapes = [" × ".join(map(str, one[1].scale.shape)) for one in (before, now)]
    biases = ["there" if one[1].bias is not None else "absent" for one in (before, now)]
    for what, a, b in (("last operation", first.name, site.name), ("layers × dimensions", *shapes), ("bias", *biases)):
        if a != b:
            raise BadInput(
                f"{now[0].name} is not of the same run as {before[0].name}: its {what} is {b}, not {a}; leave it out"
            )
