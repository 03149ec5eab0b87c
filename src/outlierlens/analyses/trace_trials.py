"""What is done to a model in the trials of a trace: single weights at 0, the dimension put back behind them, random weights.

back = Restored(loaded, stack, dim, layers, peak)
task = Passes(task, back.recording)               # a task; each of its passes runs inside what is given
with zeroed(loaded, places): ...
with back.put_back(places): ...
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.architectures.live import in_memory
from outlierlens.models.changes import SettableParameters, temporary
from outlierlens.models.hooks import edited, tapped, valid_tokens
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task, values_of

if TYPE_CHECKING:
    from torch import Tensor

NEAREST = 64  # weights of about the same size that a random one is drawn from
Place = tuple[str, tuple[int, ...]]


_around: "ContextVar[Callable[[int], AbstractContextManager[None]] | None]" = ContextVar("_around", default=None)


class Passes:
    """A task whose texts are read in the same passes each time, inside `around(number of the pass)` where it is given."""

    def __init__(self, task: Task, around: Callable[[int], AbstractContextManager[None]] | None):
        self.task, self.around = task, around
        self.all = list(task.feeds(range(task.n_texts)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(values [text], weights [text]) of the model as it is now."""
        around = _around.get() or self.around
        inside = (lambda number, _: around(number)) if around else None
        return values_of(self.task, self.all, self.task.weights, inside), self.task.weights


@temporary
def zeroed(loaded: LoadedModel, places: Sequence[Place]) -> Iterator[int]:
    """Single weights set to 0, and put back bit for bit; yields how many."""
    with ExitStack() as undo:
        settable = SettableParameters(undo, loaded.model)
        for name, place in places:
            settable.set_values(name, place, 0.0)
        yield len(places)


def like(loaded: LoadedModel, places: Sequence[Place], *, seed: int) -> tuple[Place, ...]:
    """For each weight another of its tensor, drawn from those of nearest size that none of `places` is."""
    random = np.random.default_rng([seed, 27])
    parameters = live_parameters(loaded.model)
    taken = set(places)
    for name, at in places:
        values = in_memory(parameters[name]).detach()
        n = min(values.numel(), NEAREST + len(taken))
        near = (values.abs() - abs(float(values[at]))).abs().flatten().topk(n, largest=False).indices.cpu().numpy()
        shape = tuple(values.shape)
        free = [place for one in near if (place := (name, tuple(map(int, np.unravel_index(one, shape))))) not in taken]
        if free:
            taken.add(free[int(random.integers(len(free)))])
    return tuple(sorted(taken - set(places)))


@dataclass
class Restoration:
    """Puts the dimension back as it was in the intact model, behind blocks that write it, at the tokens that carry it.

    A token carries it where its |value| after `peak` is at least half of the largest in its text.
    """

    loaded: LoadedModel
    stack: BoundStack
    dim: int
    layers: tuple[int, ...]
    peak: int
    kept: dict[tuple[int, int], "Tensor"] = field(default_factory=dict)  # (pass, layer): [batch, token]

    @temporary
    def recording(self, number: int) -> Iterator[None]:
        """Keep the dimension's values of a pass."""
        with ExitStack() as inside:
            mask_of = inside.enter_context(valid_tokens(self.loaded.model))

            def look(_: BoundStack, layer: int, states: "Tensor") -> None:
                if layer in (*self.layers, self.peak):
                    self.kept[number, layer] = (states[..., self.dim] * mask_of(states)).clone()

            inside.enter_context(tapped(self.loaded.model, [self.stack], look))
            yield

    @temporary
    def put_back(self, places: Sequence[Place]) -> Iterator[int]:
        """The weights are 0, and the dimension is put back in each pass of a task; yields how many weights."""
        with zeroed(self.loaded, places) as n_set:
            before = _around.set(self._restored)  # of this condition: others may be measured at the same time
            try:
                yield n_set
            finally:
                _around.reset(before)

    @temporary
    def _restored(self, number: int) -> Iterator[None]:
        import torch

        peak = self.kept[number, self.peak].abs()
        carries = (peak >= peak.amax(1, keepdim=True) / 2) & (peak > 0)

        def edit(layer: int, states: "Tensor") -> "Tensor":
            changed = states.clone()
            changed[..., self.dim] = torch.where(carries, self.kept[number, layer], states[..., self.dim])
            return changed

        with edited(self.loaded.model, self.stack, edit, self.layers):
            yield
