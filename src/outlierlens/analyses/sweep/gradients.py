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
"""

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.analyses.sweep.rows import Screening
from outlierlens.analyses.sweep.runner import Runner
from outlierlens.analyses.sweep.units import Unit
from outlierlens.models.changes import frozen
from outlierlens.models.hooks import EMBEDDINGS, edited
from outlierlens.statistics.means import share_at_most

if TYPE_CHECKING:
    from torch import Tensor

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
