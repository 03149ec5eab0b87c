"""One backward pass estimates the effect of every unit to first order: control variate and order of work, never a result.

    first_order(runner, units, (0, 16))      # [text, unit]: estimated change of the task's value

Switching something off moves hidden states by δ; to first order the value moves by Σ ∂value/∂state · δ, over layers and
tokens. δ is −state at the output of the block's last operation (mode "weights") or of the block ("zero"), (factor − 1) ×
state ("scale"), and mean − state ("mean").

The same gradients say which examples can change their predicted class when something is off; all others keep the intact
prediction (`Screen`).

    screen = Screen(places)                              # then `wanted` and `audited` of each span, from `masks`
    screen.only(unit, (0, 64))                           # texts of the span to measure, of this unit

A prediction changes only where the margin of its class over another, in nats, is used up. Gradients say to first order
how far each margin moves for every unit at once (three evaluations of a text); where even `SAFETY` times that leaves the
margin standing, the text is not measured for this unit. How often that is wrong is itself measured: of all pairs left out
a random share is measured after all (`AUDITED`), and the result says how many of them had changed.

How surely each look must hold what the whole sequence of looks shall: simulated once for the looks of a sweep.

    looks = look_sizes(2000)              # (16, 18, 20, ..., 30, 32, 36, ..., 2000) texts
    level = look_level(looks)             # 0.996: what each look must hold for 95 % over all of them
    widening = stop_widening(looks)       # 37: what makes it 95 % at the look where `precise` stops
    level = widened(100, 0.95, widening)  # 0.977: of that look, after 100 texts

Texts come in random order, so the first n of them are a random sample. Intervals are looked at only at the numbers of
texts `look_sizes` names, each at a confidence that makes the chance that *any* of them misses 1 − 0.95 in all: repeated
confidence intervals (Jennison & Turnbull 1989), which hold for whatever reason the measuring stopped. Where the only
reason is that the interval is narrow enough, fewer texts do (`stop_widening`).
"""

import base64
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.analyses.sweep.rows import Screening
from outlierlens.analyses.sweep.runner import Runner
from outlierlens.analyses.sweep.units import Unit
from outlierlens.errors import BadInput
from outlierlens.models.changes import frozen
from outlierlens.models.hooks import EMBEDDINGS, edited
from outlierlens.statistics.means import FEWEST_TEXTS, critical, reach, share_at_most, third_cumulant
from outlierlens.statistics.ranks import two_sided_p

if TYPE_CHECKING:
    from torch import Tensor

# --- levels ----------------------------------------------------------------------------------------------------------


FIRST_LOOK = FEWEST_TEXTS  # fewer settle nothing
LOOKS = 8  # for every doubling: a look later than need be measures 6 % too many texts on average
SKEWED_LOSS = 0.015  # of coverage, where differences are log-normal
SKEWED_TEXTS = 768  # of simulated log-normal sequences: the mean of more is as good as normal
MOST_WIDENING = 256.0


def look_sizes(n_texts: int, first: int = FIRST_LOOK) -> tuple[int, ...]:
    """Numbers of texts at which intervals are looked at: first, then in eighths of the last doubling, then all `n_texts`.

    Raises:
        BadInput: no text, or a first look at fewer than 2 texts.
    """
    if n_texts < 1 or first < 2:
        raise BadInput(f"cannot look at {first} of {n_texts} texts first; need at least one text and a first look of 2")
    sizes, step = {n_texts}, first
    while step < n_texts:
        sizes |= {size for part in range(LOOKS) if (size := step + step * part // LOOKS) < n_texts}
        step *= 2
    return tuple(sorted(sizes))


@lru_cache(maxsize=64)
def look_level(looks: tuple[int, ...], level: float = 0.95, draws: int = 200_000) -> float:
    """The confidence of each look's t interval at which all looks together hold with probability `level`.

    Pocock's (1977) equal significance level at every look, applied to t intervals (Jennison & Turnbull 2000, section
    4.4): the smallest of the looks' two-sided p-values is simulated for sequences of independent normal values, and one
    less its (1 − level) quantile is the answer. Deterministic; its Monte Carlo error is 0.0005 in overall confidence.
    A single look needs no more than `level` itself. `looks` ascend from 2 or more texts.
    """
    if len(looks) == 1:
        return level
    smallest = np.ones(draws)
    for now, means, errors in zip(looks, *_sequences(looks, draws), strict=True):
        t = np.abs(means) / errors
        far = t > critical(now - 1, level)  # the answer is stricter than `level`: other p-values do not matter
        smallest[far] = np.minimum(smallest[far], two_sided_p(t[far], now - 1))
    return float(1 - np.quantile(smallest, 1 - level))


@lru_cache(maxsize=4096)
def widened(n: int, level: float, widening: float) -> float:
    """The confidence of a t interval of `n` values that is √(1 + widening / (n + 16)) times as wide as one of `level`."""
    if n < 2 or not widening:
        return level
    wide = critical(n - 1, level) * np.sqrt(1 + widening / (n + FIRST_LOOK))
    return float(1 - two_sided_p(wide, n - 1))


@dataclass(frozen=True)
class Widening:
    """What makes the interval at which `precise` stops hold, as `widened` takes it; see `stop_widening`.

    Attributes:
        normal, skewed: for normal differences, and for log-normal ones (σ = 1).
        sizes, skewness: numbers of texts, and the mean skewness, in size, of samples of so many log-normal values.
    """

    normal: float = 0.0
    skewed: float = 0.0
    sizes: tuple[int, ...] = ()
    skewness: tuple[float, ...] = ()

    def share(self, values: np.ndarray) -> float:
        """How skewed values [text] are: 0 as samples of so many normal ones are on average, 1 as those of log-normal ones."""
        n = len(values)
        if n < 3 or not self.sizes or np.ptp(values) == 0 or not np.isfinite(values).all():
            return 0.0
        away = values - values.mean()
        skewness = abs(float(third_cumulant(away))) / float(away @ away / (n - 1)) ** 1.5
        normal = math.sqrt(2 / math.pi * 6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
        return (skewness - normal) / (float(np.interp(np.log(n), np.log(self.sizes), self.skewness)) - normal)

    def of(self, share: float) -> float:
        """The widening where differences are so skewed: in proportion, which is more than is needed between the two."""
        return self.normal + (self.skewed - self.normal) * min(1.0, max(0.0, share))


@lru_cache(maxsize=16)
def stop_widening(looks: tuple[int, ...], level: float = 0.95, relative: float = 0.1, draws: int = 20_000) -> Widening:
    """What makes the interval that `precise` stops at hold with `level`, as each look's is `widened` by it.

    Less is needed than for `look_level`, because that rule asks how wide the interval is and not where: the width comes
    from the variance, which for normal values says nothing about the error of the mean, and all that is lost is lost to
    stopping early when the variance came out small (fixed-width intervals: Chow & Robbins 1965; relative ones: Nádas
    1969). That is a loss of order 1 / n, which the widening makes good. How much it is at small samples is simulated here,
    for 24 spreads (that need 4 texts to all of them) under both limits, ± tolerance and ± `relative` × |change|; what is
    returned serves the worst of these 48 cases, of which two Monte Carlo errors less are asked. Where differences are skewed,
    a small variance goes with a small mean: the same is simulated for log-normal values (σ = 1), of which `SKEWED_LOSS` less
    is asked.
    """
    if len(looks) == 1:
        return Widening()
    means, errors = _sequences(looks, draws)
    noise = 2 * np.sqrt(level * (1 - level) / draws)

    def worst(means: np.ndarray, below: np.ndarray, above: np.ndarray, most: float) -> float:
        """The smallest share of sequences whose interval holds 0 where it stops; what is given is [look, draw]."""
        widths, held, shares = np.maximum(below, above), (means - below <= 0) & (means + above >= 0), []
        for texts in np.geomspace(4, most, 24):
            goal = 2 / np.sqrt(texts)  # of the half-width, in spreads: about that many texts get there
            for narrow in (widths <= goal, widths <= np.abs(goal + relative * means)):
                narrow[-1] = True
                shares.append(np.mean(held[narrow.argmax(0), np.arange(held.shape[1])]))
        return float(min(shares))

    def normal(widening: float) -> bool:
        widths = errors * np.array([[critical(look - 1, widened(look, level, widening))] for look in looks])
        return worst(means, widths, widths, looks[-1]) >= level - noise

    few = tuple(look for look in looks if look <= SKEWED_TEXTS)
    least = _least(normal, 0.0)
    if len(few) == 1:
        return Widening(least, least)
    its_means, its_errors, its_skewness = _skewed_sequences(few, draws // 4)

    def skewed(widening: float) -> bool:
        ends = [
            reach(row, look - 1, widened(look, level, widening)) for look, row in zip(few, its_skewness, strict=True)
        ]
        below, above = (np.stack(side) * its_errors for side in zip(*ends, strict=True))
        return worst(its_means, below, above, few[-1] / 4) >= level - SKEWED_LOSS

    usual = np.sqrt(few) * np.abs(its_skewness).mean(1)
    return Widening(least, _least(skewed, least), few, tuple(usual.tolist()))


def _least(holds: Callable[[float], bool], low: float) -> float:
    """The least widening above `low` that holds, to 1."""
    high = MOST_WIDENING
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _sequences(looks: tuple[int, ...], draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and their standard errors [look, draw] at each look of sequences of independent standard normal values."""
    random = np.random.default_rng(1977)
    total, squares = np.zeros(draws), np.zeros(draws)
    means, errors = np.empty((len(looks), draws)), np.empty((len(looks), draws))
    for place, (before, now) in enumerate(zip((0, *looks), looks, strict=False)):
        fresh = now - before
        sums = random.standard_normal(draws) * np.sqrt(fresh)
        total += sums
        # The sum of squares of `fresh` normal values, given their sum: the part about their mean is independent of it.
        squares += sums**2 / fresh + (random.chisquare(fresh - 1, draws) if fresh > 1 else 0)
        means[place] = total / now
        errors[place] = np.sqrt((squares - total**2 / now) / (now - 1) / now)
    return means, errors


def _skewed_sequences(looks: tuple[int, ...], draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, their standard errors and skewness [look, draw] of log-normal values (σ = 1) with mean 0 and variance 1."""
    random = np.random.default_rng(1992)
    sums, found = np.zeros((3, draws)), np.empty((3, len(looks), draws))
    for place, (before, now) in enumerate(zip((0, *looks), looks, strict=False)):
        values = (random.lognormal(size=(draws, now - before)) - np.sqrt(np.e)) / np.sqrt(np.e * (np.e - 1))
        sums += [(values**power).sum(1) for power in (1, 2, 3)]
        mean, square, cube = sums / now
        variance = (square - mean**2) * now / (now - 1)
        third = (cube - 3 * mean * square + 2 * mean**3) * now**2 / ((now - 1) * (now - 2))
        found[:, place] = mean, np.sqrt(variance / now), third / variance**1.5 / np.sqrt(now)
    return found[0], found[1], found[2]


TOKENS_SHARE = 2  # a backward pass keeps what a forward pass lets go: its batches are smaller by this
SAFETY = 4.0  # first-order estimates of effects on margins are off by less than this, but for strong effects
AUDITED = 0.02


def can_differentiate(runner: Runner) -> bool:
    """Whether a gradient pass serves this runner: a loss, an ablation of single values, whole blocks."""
    return runner.mixes and runner.task.is_loss and not runner.stack.stack.token_first


def first_order(
    runner: Runner,
    units: Sequence[Unit],
    span: tuple[int, int],
    objective: "Callable[[Any], Tensor] | None" = None,
) -> np.ndarray:
    """First-order estimates of the units' effects on the texts `span` of the runner's order, float32 [text, unit].

    The effects are those on the task's value, or on `objective` of a feed [row].
    """
    import torch

    texts = runner.order[span[0] : span[1]]
    weights = runner.task.weights[texts]
    found = np.zeros((len(texts), len(units)), dtype=np.float64)
    model, stack, site = runner.loaded.model, runner.stack, runner.site
    layers = sorted({layer for unit in units for layer in unit.plan})
    states: dict[int, Tensor] = {}

    def keep(layer: int, output: "Tensor") -> None:
        states[layer] = output

    def start(_: int, embedded: "Tensor") -> "Tensor":
        return embedded.detach().requires_grad_()

    with frozen(runner.loaded.model), torch.enable_grad(), edited(model, stack, start, [EMBEDDINGS]):
        for feed in runner.task.feeds(texts.tolist(), runner.tokens // TOKENS_SHARE):
            states.clear()
            with site(model, stack, keep, layers):  # type: ignore[arg-type]
                total = (objective or runner.task.sums)(feed).sum()
            slopes = torch.autograd.grad(total, [states[layer] for layer in layers])
            effect = {
                layer: _moved(runner, layer, states[layer].detach(), slope, len(feed.slots))
                for layer, slope in zip(layers, slopes, strict=True)
            }
            for row, slot in enumerate(feed.slots):
                found[slot] += _by_unit(units, effect, row)
    return (found if objective else found / weights[:, None]).astype(np.float32)


def _moved(runner: Runner, layer: int, states: "Tensor", slopes: "Tensor", rows: int) -> np.ndarray:
    """Σ over tokens of slope · δ, float64 [row, dim]."""
    settings, mode = runner.ablation.settings, runner.ablation.mode
    if mode == "scale":
        moves = (settings.factor - 1) * states
    elif mode == "mean":
        import torch

        assert settings.means is not None
        moves = torch.from_numpy(settings.means[layer]).to(states) - states
    else:
        moves = -states
    product = (slopes.float() * moves.float()).view(rows, -1, states.shape[-1])
    return product.sum(1).cpu().double().numpy()


def _by_unit(units: Sequence[Unit], effect: dict[int, np.ndarray], row: int) -> np.ndarray:
    """The first-order effect of every unit on one row [unit]; sums over layers are shared by units of one window."""
    by_window: dict[tuple[int, ...], np.ndarray] = {}
    found = np.empty(len(units))
    for number, unit in enumerate(units):
        if unit.by_layer:
            found[number] = sum(effect[layer][row, list(dims)].sum() for layer, dims in unit.plan.items())
            continue
        layers = unit.layers
        if layers not in by_window:
            by_window[layers] = np.sum([effect[layer][row] for layer in layers], axis=0)
        found[number] = by_window[layers][list(unit.dims)].sum()
    return found


@dataclass
class Screen:
    """Pairs of unit and text that are measured.

    Attributes:
        units: place of each unit's key in the columns of masks.
        wanted: by span, bool [text, unit]: the margin could be used up. audited: likewise, measured all the same.
        whole: keys of units that are measured on every text.
        checked, flipped: audited pairs so far, and of them those whose prediction had changed.
    """

    units: dict[str, int]
    wanted: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    audited: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    checked: int = 0
    flipped: int = 0

    @property
    def share(self) -> float:
        """Share of the pairs that are measured."""
        summary = self.summary()
        return summary.measured / max(1, summary.pairs)

    def only(self, unit: Unit, span: tuple[int, int]) -> tuple[int, ...] | None:
        """Texts of the span to measure, counted from its start; None is all of them."""
        place = self.units.get(unit.key)
        if place is None or unit.key in self.whole:
            return None
        both = self.wanted[span][:, place] | self.audited[span][:, place]
        return tuple(np.flatnonzero(both).tolist())

    def count(self, unit: Unit, span: tuple[int, int], differences: np.ndarray) -> None:
        """Note how many audited texts had changed."""
        place = self.units.get(unit.key)
        if place is not None:
            audited = differences[self.audited[span][:, place]]
            self.checked, self.flipped = self.checked + len(audited), self.flipped + int((audited != 0).sum())

    def summary(self) -> Screening:
        """How much was left out, and how often that was wrong: an upper bound at confidence 0.95 (Clopper & Pearson)."""
        whole = [place for key, place in self.units.items() if key in self.whole]
        pairs = measured = 0
        for span, wanted in self.wanted.items():
            run = wanted | self.audited[span]
            run[:, whole] = True
            pairs, measured = pairs + run.size, measured + int(run.sum())
        bound = share_at_most(self.flipped, self.checked)
        return Screening(pairs, measured, self.checked, self.flipped, bound, SAFETY)


def can_screen(runner: Runner, n_units: int) -> bool:
    """Whether margins can be screened, and for `n_units` it costs less than running all.

    That takes predicted classes, and an ablation that gradients can follow.
    """
    task: Any = runner.task
    if runner.functional is None or task.examples.task.regression:
        return False
    return runner.mixes and not runner.stack.stack.token_first and evaluations(runner) < n_units


def rivals(runner: Runner) -> int:
    """Classes that a prediction could change to."""
    task: Any = runner.task
    return len(task.examples.task.labels) - 1


def evaluations(runner: Runner) -> int:
    """What screening a text costs, in evaluations: one for its margins, three for the gradients of each."""
    return 1 + 3 * rivals(runner)


def masks(runner: Runner, units: Sequence[Unit], span: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """(wanted, audited) of the units on the texts of `span`, bool [text, unit] each."""
    import torch

    task: Any = runner.task
    texts = runner.order[span[0] : span[1]]
    wanted = np.zeros((len(texts), len(units)), dtype=bool)
    margins = np.zeros((len(texts), rivals(runner)))
    with torch.inference_mode():
        for feed in task.feeds(texts.tolist(), runner.tokens):
            margins[list(feed.slots)] = task.margins(feed).cpu().double().numpy()
    for rival in range(margins.shape[1]):
        moves = first_order(runner, units, span, lambda feed, rival=rival: task.margins(feed)[:, rival])  # type: ignore[misc]
        # What is no number leaves nothing to rely on.
        wanted |= ~(SAFETY * np.abs(moves) < margins[:, rival, None])
    drawn = np.stack([_drawn(unit, runner.options.seed, span) for unit in units], axis=1)
    return wanted, drawn & ~wanted


def _drawn(unit: Unit, seed: int, span: tuple[int, int]) -> np.ndarray:
    """A random share of the texts, the same whatever else is swept, bool [text]."""
    random = np.random.default_rng([seed, span[0], zlib.crc32(unit.key.encode())])
    return random.random(span[1] - span[0]) < AUDITED


def packed(mask: np.ndarray) -> str:
    """A mask as text, for the rows."""
    return base64.b64encode(np.packbits(mask).tobytes()).decode()


def unpacked(text: str, shape: tuple[int, int]) -> np.ndarray:
    """The mask that `packed` wrote."""
    bits = np.frombuffer(base64.b64decode(text), np.uint8)
    return np.unpackbits(bits, count=shape[0] * shape[1]).reshape(shape).astype(bool)
