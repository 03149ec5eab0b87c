"""Noise of the last bit in what the first block reads, and what each text's value is with it.

    draws = NoiseDraws(loaded, stack, task, n=3, seed=0)
    with rounded(loaded, recipe):
        values, _ = task.per_text()
        runs = draws.runs(values)                    # [1 + draws, text], of the first texts
    mean_noise(runs, weights)                        # statistics.Noise

Rounding is a step function: a value at the edge of a step falls to either side by its last bit, and another processor or
another batch moves that. Noise is drawn by (seed, draw), token and dimension, the same in every text: another processor's
arithmetic too is one and the same for all texts, and what texts share (a first token that sees no other) moves alike in all.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.models.changes import temporary
from outlierlens.models.forward import reader_of
from outlierlens.models.hooks import EMBEDDINGS, edited, running_masks
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task, values_of

if TYPE_CHECKING:
    from torch import Tensor

SIZE = 1e-6  # relative, about what another order of summation moves in float32
MOST_TEXTS = 16  # that are run again


class NoiseDraws:
    """The first texts of a task, run again with noise.

    Attributes:
        n: draws. n_texts: that are run again, 0 without draws.
    """

    def __init__(self, loaded: LoadedModel, stack: BoundStack, task: Task, n: int, seed: int):
        self.loaded, self.stack, self.task, self.n, self.seed = loaded, stack, task, n, seed
        few = task.n_texts < 2 * MOST_TEXTS  # a first try spends a quarter of its texts on noise, four at least
        self.n_texts = (min(task.n_texts, max(4, task.n_texts // 4)) if few else MOST_TEXTS) if n else 0
        self._feeds = list(task.feeds(range(self.n_texts))) if n else []
        self._drawn: dict[int, np.ndarray] = {}

    def runs(self, values: np.ndarray) -> np.ndarray:
        """Values [1 + draws, text] of the model as it is now: `values` of all texts, measured without noise, then each draw."""
        return np.array([values[: self.n_texts], *(self._run(draw) for draw in range(self.n))])

    def _run(self, draw: int) -> np.ndarray:
        with self.noisy(draw):
            return values_of(self.task, self._feeds, self.task.weights[: self.n_texts])

    @temporary
    def noisy(self, draw: int) -> Iterator[None]:
        """Multiply what the first block reads by 1 + size · ε in every forward pass; size is 1e-6 or the dtype's last bit."""
        import torch

        reader = reader_of(self.loaded, [self.stack], "input_ids") or self.loaded.model
        with running_masks(reader) as masks:

            def edit(_: int, states: "Tensor") -> "Tensor":
                size = max(SIZE, torch.finfo(states.dtype).eps)
                place = token_places(states, masks)
                noise = torch.from_numpy(self._noise(draw, int(place.max()) + 1, states.shape[-1]))
                wide = torch.promote_types(states.dtype, torch.float32)
                return (states.to(wide) * (1 + size * noise.to(states.device)[place].to(wide))).to(states.dtype)

            with edited(self.loaded.model, self.stack, edit, [EMBEDDINGS]):
                yield

    def _noise(self, draw: int, n_tokens: int, width: int) -> np.ndarray:
        """ε, standard normal, float32 [token, dim]; more tokens add rows and change none."""
        known = self._drawn.get(draw)
        if known is None or len(known) < n_tokens:
            random = np.random.default_rng([self.seed, draw])
            known = self._drawn[draw] = random.standard_normal((n_tokens, width)).astype(np.float32)
        return known[:n_tokens]


def token_places(states: "Tensor", masks: Sequence["Tensor"]) -> "Tensor":
    """The place of each token in its text, from 0, int [batch, token] or as `states` has its tokens; padding has any place."""
    import torch

    tokens = states.shape[:-1]
    for mask in masks:
        if mask.shape == tokens or (len(tokens) == 1 and mask.numel() == tokens[0]):
            return (mask.long().cumsum(1) - 1).clamp(min=0).reshape(tokens)
    of_text = tokens[1:] if len(tokens) > 1 else tokens
    return torch.arange(of_text.numel(), device=states.device).reshape(of_text).expand(tokens)
