"""What a model loses without the single weights that write a dimension: zero, restore, and random weights of the same size.

trials = run_trials(task, weights, Restored(loaded, stack, dim, layers, peak), n_random=3, seed=0, progress=None)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.experiments.trace.result import Trial, Weight
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.hooks import edited, tapped, valid_tokens
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import Task, values_of, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor

NEAREST = 64  # weights of about the same size that a random one is drawn from
Place = tuple[str, tuple[int, ...]]


@temporary
def zeroed(loaded: LoadedModel, places: Sequence[Place]) -> Iterator[None]:
    """Single weights set to 0, and put back bit for bit."""
    with ExitStack() as undo:
        settable = Settable(undo, loaded.model)
        for name, place in places:
            settable.set_values(name, place, 0.0)
        yield


def like(loaded: LoadedModel, weights: Sequence[Weight], *, seed: int) -> tuple[Place, ...]:
    """For each weight another of its tensor, drawn from those of nearest size that none of `weights` is."""
    random = np.random.default_rng([seed, 27])
    parameters = live_parameters(loaded.model)
    taken = {(one.parameter, one.place) for one in weights}
    for one in weights:
        values = parameters[one.parameter].detach()
        n = min(values.numel(), NEAREST + len(taken))
        near = (values.abs() - abs(one.value)).abs().flatten().topk(n, largest=False).indices.cpu().numpy()
        shape = tuple(values.shape)
        places = [(one.parameter, tuple(map(int, np.unravel_index(at, shape)))) for at in near]
        free = [place for place in places if place not in taken]
        if free:
            taken.add(free[int(random.integers(len(free)))])
    return tuple(sorted(taken - {(one.parameter, one.place) for one in weights}))


@dataclass
class Restored:
    """Puts the dimension back as it was in the intact model, behind blocks that write it, at the tokens that carry it.

    A token carries it where its |value| after `peak` is at least half of the largest in its text.
    """

    loaded: LoadedModel
    stack: BoundStack
    dim: int
    layers: tuple[int, ...]
    peak: int
    kept: dict[tuple[int, int], "Tensor"] = field(default_factory=dict)  # (feed, layer): [batch, token]

    @temporary
    def recording(self, number: int) -> Iterator[None]:
        """Keep the dimension's values of feed `number`."""
        with ExitStack() as inside:
            mask_of = inside.enter_context(valid_tokens(self.loaded.model))

            def look(_: BoundStack, layer: int, states: "Tensor") -> None:
                if layer in (*self.layers, self.peak):
                    self.kept[number, layer] = (states[..., self.dim] * mask_of(states)).clone()

            inside.enter_context(tapped(self.loaded.model, [self.stack], look))
            yield

    @temporary
    def restored(self, number: int) -> Iterator[None]:
        """While feed `number` runs."""
        import torch

        peak = self.kept[number, self.peak].abs()
        carries = (peak >= peak.amax(1, keepdim=True) / 2) & (peak > 0)

        def edit(layer: int, states: "Tensor") -> "Tensor":
            changed = states.clone()
            changed[..., self.dim] = torch.where(carries, self.kept[number, layer], states[..., self.dim])
            return changed

        with edited(self.loaded.model, self.stack, edit, self.layers):
            yield


def run_trials(
    task: Task, weights: Sequence[Weight], back: Restored, *, n_random: int, seed: int,
    progress: Callable[[str, int, int], None] | None,
) -> tuple[Trial, ...]:  # fmt: skip
    """The trials of `weights`; () for none."""
    if not weights:
        return ()
    feeds = list(task.feeds(range(task.n_texts)))
    mine = [(one.parameter, one.place) for one in weights]
    plan: list[tuple[str, str, Sequence[Place]]] = [("named", "zeroed", mine), ("named", "restored", mine)]
    plan += [(f"draw {draw}", "random", like(back.loaded, weights, seed=seed + draw)) for draw in range(n_random)]
    intact = values_of(task, feeds, task.weights, lambda number, _: back.recording(number))
    trials = []
    for number, (name, kind, places) in enumerate(plan):
        if progress:
            progress("zeroing weights", number, len(plan))
        with zeroed(back.loaded, places):
            around = (lambda number, _: back.restored(number)) if kind == "restored" else None
            values = values_of(task, feeds, task.weights, around)
        change = values - intact
        trials.append(Trial(name, kind, weighted_mean(change, task.weights), *mean_interval(change, task.weights)))
    return tuple(trials)
