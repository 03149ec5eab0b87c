"""Linear probes without bias for all layers at once, by Adam on the cross-entropy.

    probes = Probes(Plan(of, without, width, n_positions, n_redraws=7), scales_of(states), learning_rate=0.003)
    probes.step(states, positions, times)           # [layer, token, dim], [token], [token, redraw]
    probes.weight, probes.redrawn                   # [probe, dim, position], [probe, dim, redraw, position]

The sum of the probes' losses has no term with two probes in it, and Adam works number by number: trained together they are
what they would be alone. All begin at zero (the loss is convex, so nothing is lost by that), which leaves no trace of a
random start in what a dimension contributes. Beside each probe stand its redraws: the same probe where tokens count as often as
their text was drawn.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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

    One number a layer brings all layers to the size that a learning rate is made for, and |w · v| stays what it is, for w
    grows as v shrinks. A median, because single tokens may be a thousand times as large as the others.
    """
    import torch

    size = states.square().mean(-1).sqrt().median(-1).values
    return torch.where(size > 0, size, torch.ones_like(size))
