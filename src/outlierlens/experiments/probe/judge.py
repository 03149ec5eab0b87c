"""Evaluation of trained probes in one forward pass: right answers text by text, and what each dimension adds.

judged = judge(loaded, tokens, variants, scale, JudgeOptions(reading, row="gold"))
judged.right[0].sum() / judged.n.sum()             # accuracy of the first variant
judged.contribution[3].sum(0) / judged.n_at.sum()  # mean |w · v| of layer 3 [dim]
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.experiments.probe.flow import taken
from outlierlens.experiments.probe.result import Change, ProbeScore
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.bootstrap import bca, mean_value
from outlierlens.statistics.means import NORMAL
from outlierlens.statistics.resampling import deviation, with_training
from outlierlens.vectors.read import ReadOptions, Tokens, token_batches

if TYPE_CHECKING:
    from torch import Tensor

N_DRAWS = 2000


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

    reading: ReadOptions
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

    def change(self, variant: int, layer: int, *, seed: int) -> Change:
        """Accuracy of a variant minus that of `layer`'s vectors as they are, with its paired interval: on the same texts, and
        in the same redraw of training."""
        ends = self._interval(self._share(variant) - self._share(layer), seed)
        value = float((self.right[variant].sum() - self.right[layer].sum()) / self.n.sum())
        redrawn = self._redrawn(variant) - self._redrawn(layer)
        low, high = np.clip(with_training(value, ends, redrawn), -1, 1).tolist()
        return Change(value, low, high, _error(ends), deviation(redrawn))

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
    for batch in token_batches(loaded, tokens, options.reading):
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
