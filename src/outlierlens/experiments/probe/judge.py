"""Evaluation of trained probes in one forward pass: right answers text by text, and what each dimension adds.

judged = judge(loaded, tokens, variants, scale, JudgeOptions(reading, row="gold"))
judged.right[0].sum() / judged.n.sum()             # accuracy of the first variant
judged.contribution[3].sum(0) / judged.n_at.sum()  # mean |w · v| of layer 3 [dim]

Linear probes without bias for all layers at once, by Adam on the cross-entropy.

    probes = Probes(Plan(of, without, width, n_positions, n_redraws=7), scales_of(states), learning_rate=0.003)
    probes.step(states, positions, times)           # [layer, token, dim], [token], [token, redraw]
    probes.weight, probes.redrawn                   # [probe, dim, position], [probe, dim, redraw, position]

The sum of the probes' losses has no term with two probes in it, and Adam works number by number: trained together they are
what they would be alone. All begin at zero (the loss is convex, so nothing is lost by that), which leaves no trace of a
random start in what a dimension contributes. Beside each probe stand its redraws: the same probe where tokens count as often as
their text was drawn.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.experiments.probe.flow import taken
from outlierlens.experiments.probe.result import AccuracyChange, ProbeScore
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.bootstrap import bca, deviation, mean_value, with_training
from outlierlens.statistics.means import NORMAL
from outlierlens.vectors.read import ReadOptions, Tokens, token_batches

if TYPE_CHECKING:
    from torch import Tensor

N_DRAWS = 2000


@dataclass(frozen=True)
class Plan:
    """Which probes are trained.

    Attributes:
        of: row of the states that each probe reads [probe].
        without: dimensions that it does not see [probe][…]: trained on clipped vectors.
        width: dimensions. n_positions: classes. n_redraws: copies of each probe, each on a redraw of the texts.
    """

    of: tuple[int, ...]
    without: tuple[tuple[int, ...], ...]
    width: int
    n_positions: int
    n_redraws: int = 0


class Probes:
    """Probes in training.

    Attributes:
        plan: what they read.
        scale: of each row of the states [layer]; they read states / scale.
        weight: [probe, dim, position]. redrawn: of the redraws [probe, dim, redraw, position].
    """

    def __init__(self, plan: Plan, scale: "Tensor", *, learning_rate: float):
        import torch

        self.plan, self.scale = plan, scale
        self.weight = torch.zeros(len(plan.of), plan.width, plan.n_positions, device=scale.device)
        self.redrawn = torch.zeros(len(plan.of), plan.width, plan.n_redraws, plan.n_positions, device=scale.device)
        self._of = torch.tensor(plan.of, device=scale.device)
        self._seen = torch.ones(len(plan.of), plan.width, 1, device=scale.device)
        for probe, dims in enumerate(plan.without):
            self._seen[probe, list(dims)] = 0
        self._adam = torch.optim.Adam([self.weight, self.redrawn][: 1 + bool(plan.n_redraws)], lr=learning_rate)

    def step(self, states: "Tensor", positions: "Tensor", times: "Tensor | None" = None) -> None:
        """One step of all probes on the tokens of `states` [layer, token, dim] at `positions` [token].

        `times` [token, redraw] is how often a token counts in each redraw; where there are redraws it must be given.
        """
        import torch

        with torch.no_grad():
            read = (states / self.scale[:, None, None])[self._of]  # [probe, token, dim]
            away = torch.bmm(read, self.weight).softmax(-1)  # [probe, token, position]
            tokens = torch.arange(len(positions), device=away.device)
            away[:, tokens, positions] -= 1
            # A weight that begins at zero and gets no gradient stays zero: the probe does not see that dimension.
            self.weight.grad = torch.bmm(read.transpose(1, 2), away) / len(positions) * self._seen
            if times is not None and self.plan.n_redraws:
                # A weighted mean, as the mean above: what a text adds, and not how many tokens were drawn, makes the spread.
                share = times / times.sum(0).clamp(min=1)
                shape = self.redrawn.shape[2:]
                away = torch.bmm(read, self.redrawn.flatten(2)).unflatten(2, shape).softmax(-1)
                away[:, tokens, :, positions] -= 1
                away *= share[:, :, None]
                gradient = torch.bmm(read.transpose(1, 2), away.flatten(2)) * self._seen
                self.redrawn.grad = gradient.unflatten(2, shape)
            self._adam.step()


def scales_of(states: "Tensor") -> "Tensor":
    """Median over tokens of a vector's root mean square, of states [layer, token, dim]: [layer]; 1 where that is 0.

    One number per layer brings all layers to the size that a learning rate is made for, and |w · v| stays what it is, for w
    grows as v shrinks. A median, because single tokens may be a thousand times as large as the others.
    """
    import torch

    size = states.square().mean(-1).sqrt().median(-1).values
    return torch.where(size > 0, size, torch.ones_like(size))


@dataclass(frozen=True)
class Variants:
    """Weights to evaluate: those of the vectors as they are, one a layer, then others.

    Attributes:
        of: row of the states that each reads [variant]; the first are 0, 1, 2, … for each layer.
        weight: [variant, dim, position].
        scale: of each layer's vectors [layer].
        redrawn: weights of each variant where training was drawn again [variant] of [dim, redraw, position]; () if it was not.
    """

    of: tuple[int, ...]
    weight: "Tensor"
    scale: "Tensor"
    redrawn: tuple["Tensor", ...] = ()


@dataclass(frozen=True)
class JudgeOptions:
    """How to read; `row` is "gold" or "predicted": whose row of W contributions are of; `special` counts special tokens."""

    read: ReadOptions
    row: str = "gold"
    special: bool = False


@dataclass(frozen=True)
class Judged:
    """Sums over the evaluated tokens.

    Attributes:
        n: tokens [text]. right, near: of them named exactly, or missed by one at most [variant, text].
        n_at: tokens [position]. right_at: [variant, position].
        loss: mean cross-entropy in nats [variant].
        contribution: sum of |w · v| over the tokens of each position [layer, position, dim].
        weight: mean of |w| over the same tokens [layer, dim], w of vectors that are divided by their layer's scale.
        redrawn: accuracy of each variant where training was drawn again [redraw, variant].
    """

    n: np.ndarray
    right: np.ndarray
    near: np.ndarray
    n_at: np.ndarray
    right_at: np.ndarray
    loss: np.ndarray
    contribution: np.ndarray
    weight: np.ndarray
    redrawn: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def score(self, variant: int, *, seed: int) -> ProbeScore:
        """Of one variant, with its interval: evaluated texts drawn with replacement (BCa), and the spread over
        redraws of training (see `resampling.with_training`)."""
        with np.errstate(invalid="ignore"):
            by_position = self.right_at[variant] / self.n_at
        low, high = self._interval(2 * self._share(variant) - 1, seed)  # in [−1, 1], where a difference of shares lies
        total = self.n.sum()
        accuracy = float(self.right[variant].sum() / total)
        redrawn = self._redrawn(variant)
        ends = ((low + 1) / 2, (high + 1) / 2)
        low, high = np.clip(with_training(accuracy, ends, redrawn), 0, 1).tolist()
        return ProbeScore(
            accuracy=accuracy,
            low=low,
            high=high,
            within_one=float(self.near[variant].sum() / total),
            loss=float(self.loss[variant]),
            by_position=by_position,
            se_texts=_error(ends),
            sd_training=deviation(redrawn),
        )

    def change(self, variant: int, layer: int, *, seed: int) -> AccuracyChange:
        """Accuracy of a variant minus that of `layer`'s vectors as they are, with its paired interval: on the same texts, and
        in the same redraw of training."""
        ends = self._interval(self._share(variant) - self._share(layer), seed)
        value = float((self.right[variant].sum() - self.right[layer].sum()) / self.n.sum())
        redrawn = self._redrawn(variant) - self._redrawn(layer)
        low, high = np.clip(with_training(value, ends, redrawn), -1, 1).tolist()
        return AccuracyChange(value, low, high, _error(ends), deviation(redrawn))

    def _redrawn(self, variant: int) -> np.ndarray:
        return self.redrawn[:, variant] if len(self.redrawn) else np.zeros(0)

    def _share(self, variant: int) -> np.ndarray:
        """Accuracy in each text that has a token."""
        return self.right[variant][self.n > 0] / self.n[self.n > 0]

    def _interval(self, values: np.ndarray, seed: int) -> tuple[float, float]:
        value = mean_value(values, self.n[self.n > 0].astype(np.float64), shares=True)
        return bca(value, seed=seed, level=0.95, n_draws=N_DRAWS)


def _error(ends: tuple[float, float]) -> float:
    """The standard error that an interval stands for."""
    return (ends[1] - ends[0]) / 2 / NORMAL


def judge(loaded: LoadedModel, tokens: Tokens, variants: Variants, options: JudgeOptions) -> Judged:
    """Evaluate `variants` on the texts of `tokens`, all of them on every batch of one forward pass.

    A token's contribution in dimension i is |w_i · v_i|, with w the row of W of its own position or of the one that the
    probe names; it is counted at the token's own position. Tokens at positions that the probes do not know are left out.

    Raises:
        BadInput: what `token_batches` raises, or a state that is not finite.
    """
    import torch

    of, n_positions = list(variants.of), variants.weight.shape[2]
    n_variants, device = len(of), variants.weight.device
    rows = variants.weight[: len(variants.scale)].transpose(1, 2).contiguous()  # [layer, position, dim]
    contribution, used = torch.zeros_like(rows), torch.zeros(rows.shape[:2], device=device)
    n = np.zeros(len(tokens.texts), dtype=np.int64)
    right, near = (np.zeros((n_variants, len(tokens.texts)), dtype=np.int64) for _ in range(2))
    n_at = torch.zeros(n_positions, dtype=torch.int64, device=device)
    right_at = torch.zeros(n_variants, n_positions, dtype=torch.int64, device=device)
    loss = torch.zeros(n_variants, dtype=torch.float64)
    n_redraws = variants.redrawn[0].shape[1] if variants.redrawn else 0
    redrawn = torch.zeros(n_redraws, n_variants, dtype=torch.int64, device=device)
    for batch in token_batches(loaded, tokens, options.read):
        states, positions, rows_of = taken(batch, options.special, n_positions)
        states = states / variants.scale[:, None, None]
        text = np.array(batch.texts, dtype=np.int64)[rows_of.cpu().numpy()]
        n += np.bincount(text, minlength=len(n))
        n_at += torch.bincount(positions, minlength=n_positions)
        for variant, layer in enumerate(of):
            logits = states[layer] @ variants.weight[variant]  # [token, position]
            said = logits.argmax(-1)
            hit, close = said == positions, (said - positions).abs() <= 1
            right[variant] += np.bincount(text[hit.cpu().numpy()], minlength=len(n))
            near[variant] += np.bincount(text[close.cpu().numpy()], minlength=len(n))
            right_at[variant] += torch.bincount(positions[hit], minlength=n_positions)
            loss[variant] += torch.nn.functional.cross_entropy(logits, positions, reduction="sum").cpu().double()
            if n_redraws:
                weight = variants.redrawn[variant]  # [dim, redraw, position]
                logits = (states[layer] @ weight.flatten(1)).unflatten(1, weight.shape[1:])
                redrawn[:, variant] += (logits.argmax(-1) == positions[:, None]).sum(0)
            if variant < len(variants.scale):
                row = positions if options.row == "gold" else said
                contribution[layer].index_add_(0, positions, (states[layer] * rows[layer][row]).abs())
                used[layer] += torch.bincount(row, minlength=n_positions)
    return Judged(
        n=n,
        right=right,
        near=near,
        n_at=n_at.cpu().numpy(),
        right_at=right_at.cpu().numpy(),
        loss=(loss / max(1, n.sum())).numpy(),
        contribution=contribution.cpu().numpy(),
        weight=(torch.einsum("lp,lpd->ld", used, rows.abs()) / max(1, n.sum())).cpu().numpy(),
        redrawn=redrawn.cpu().numpy() / max(1, n.sum()),
    )
