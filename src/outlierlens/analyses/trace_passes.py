"""What passes over the texts show of a dimension: whether it stands out, where it is largest, who looks at that token.

dim, means, medians, n_tokens = overview(stack, loaded, run, batches)
peak, places, largest = carriers(loaded, stack, reading, batches, dim)
weigh = groups(batches, text, position)                  # of tokens: first, the largest, others
at = TokenAttention(loaded, stack, run, batches, place)  # place: of each text the token that carries the dimension
at.masses()                                              # mean attention of the other tokens on it [text, layer, head]
at.masses(507, {text: means})                            # with dimension 507 set to its means [layer + 1] there

What is done to a model in the trials of a trace: single weights at 0, the dimension put back behind them, random weights.

back = Restored(loaded, stack, dim, layers, peak)
task = Passes(task, back.recording)               # a task; each of its passes runs inside what is given
with zeroed(loaded, places): ...
with back.put_back(places): ...
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.switches import first_tokens
from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.architectures.live import in_memory
from outlierlens.data.texts import Batch
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.attention_maps import tapped_attention
from outlierlens.models.changes import SettableParameters, temporary
from outlierlens.models.forward import check_padding
from outlierlens.models.hooks import EMBEDDINGS, edited, tapped, valid_tokens
from outlierlens.models.inputs import Reading, read_together
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task, values_of

if TYPE_CHECKING:
    from torch import Tensor


def overview(
    stack: BoundStack, loaded: LoadedModel, run: Callable[[Batch], None], batches: Sequence[Batch]
) -> tuple[int, np.ndarray, np.ndarray, int]:
    """(the dimension whose largest |value| is largest relative to its layer's root mean square, means over tokens that are not
    first [layer + 1, dim], mean over tokens of each one's median |value| [layer + 1], tokens)."""
    largest: dict[int, np.ndarray] = {}
    sums: dict[int, list[Any]] = {}

    def read(batch: Batch) -> tuple[int, int]:
        rest = batch.valid & ~first_tokens(batch.valid)

        def look(_: BoundStack, layer: int, states: "Tensor") -> None:
            check_padding(stack, layer, states, batch.valid)
            kept = states[batch.valid].double()
            top = kept.abs().amax(0).cpu().numpy()
            largest[layer] = np.maximum(largest.get(layer, top), top)
            others = states[rest].double().sum(0).cpu().numpy()
            now = (float(kept.square().sum()), float(kept.abs().median(-1).values.sum()), others)
            sums[layer] = [a + b for a, b in zip(sums.get(layer, (0.0, 0.0, 0.0)), now, strict=True)]

        with tapped(loaded.model, [stack], look):
            run(batch)
        return int(batch.valid.sum()), int(rest.sum())

    n_tokens, n_others = map(sum, zip(*read_together(loaded, read, batches), strict=True))
    squares, medians, others = (np.stack([sums[layer][i] for layer in sorted(sums)]) for i in range(3))
    tops = np.stack([largest[layer] for layer in sorted(largest)])
    if not np.isfinite(tops).all():
        raise BadInput(f"{loaded.name}: a hidden state is NaN or infinite; {USE_FLOAT32}")
    size = np.sqrt(np.maximum(squares / (n_tokens * tops.shape[1]), 1e-300))
    dim = int((tops / size[:, None]).max(0).argmax())
    return dim, others / max(1, n_others), medians / n_tokens, n_tokens


def carriers(
    loaded: LoadedModel, stack: BoundStack, reading: Reading, batches: Sequence[Batch], dim: int
) -> tuple[int, dict[int, int], tuple[int, int, str]]:
    """(layer after which the dimension is largest, token of each text that carries it there, the largest of these)."""
    import torch

    values: dict[int, list[Tensor]] = {}  # by layer, of each batch [batch, token]; -1 where there is no token

    def read(batch: Batch) -> None:
        def look(_: BoundStack, layer: int, states: "Tensor") -> None:
            size = states[..., dim].abs()
            values.setdefault(layer, []).append(torch.where(batch.valid, size, torch.full_like(size, -1.0)))

        with tapped(loaded.model, [stack], look):
            reading(batch)

    read_together(loaded, read, batches)
    tops = {layer: max(float(one.max()) for one in of) for layer, of in values.items()}
    peak = max(tops, key=lambda layer: (tops[layer], -layer))
    places: dict[int, int] = {}
    best, where = -1.0, (0, 0, "")
    for batch, sizes in zip(batches, values[peak], strict=True):
        for row, text in enumerate(batch.texts):
            places[text] = at = int(sizes[row].argmax())
            if float(sizes[row, at]) > best:
                ids = reading.sides(batch)[stack.name].tokens
                best, where = (float(sizes[row, at]), (text, at, reading.words([int(ids[row, at])], stack.name)[0]))
    return peak, places, where


def groups(batches: Sequence[Batch], text: int, position: int) -> Callable[[Batch], "Tensor"]:
    """Weights of tokens that make means over first tokens, over the largest one, and over all others [group, batch, token]."""
    import torch

    def raw(batch: Batch) -> "Tensor":
        first = first_tokens(batch.valid)
        largest = torch.zeros_like(batch.valid)
        if text in batch.texts:
            largest[batch.texts.index(text), position] = True
        return torch.stack((first, largest, batch.valid & ~first & ~largest)).double()

    counts = torch.stack([raw(batch).sum((1, 2)).cpu() for batch in batches]).sum(0)
    return lambda batch: raw(batch) / counts.clamp(min=1).to(batch.valid.device)[:, None, None]


@dataclass(frozen=True)
class TokenAttention:
    """A model, one of its streams, what runs it, and of each text the token [text] that is looked at."""

    loaded: LoadedModel
    stack: BoundStack
    run: Callable[[Batch], None]
    batches: Sequence[Batch]
    place: Mapping[int, int]

    def states(self, dims: Sequence[int]) -> dict[int, np.ndarray]:
        """Values [layer + 1, len(dims)] of dimensions at the token, by text."""
        import torch

        rows: dict[int, list[np.ndarray]] = {}

        def read(batch: Batch) -> None:
            at = torch.tensor([self.place[text] for text in batch.texts], device=batch.valid.device)

            def look(_: BoundStack, layer: int, states: "Tensor") -> None:
                there = states[torch.arange(len(at)), at][:, dims].double().cpu().numpy()
                for text, values in zip(batch.texts, there, strict=True):
                    rows.setdefault(text, []).append(values)

            with tapped(self.loaded.model, [self.stack], look):
                self.run(batch)

        read_together(self.loaded, read, self.batches)
        return {text: np.stack(values) for text, values in rows.items()}

    def masses(
        self, dim: int = 0, values: Mapping[int, np.ndarray] | None = None, *, elsewhere: bool = False
    ) -> np.ndarray:
        """Mean attention of each text's other tokens on the token [text, layer, head].

        With `values` [layer + 1] by text, `dim` is set to them in every layer: at the token, or at all others.
        """
        import torch

        rows: dict[int, list[np.ndarray]] = {}

        def read(batch: Batch) -> None:
            place = torch.tensor([self.place[text] for text in batch.texts], device=batch.valid.device)
            there = torch.zeros_like(batch.valid)
            there[torch.arange(len(place)), place] = True

            def look(_: int, weights: "Tensor", visible: "Tensor | None") -> None:
                n = len(place)
                onto = weights[torch.arange(n), :, :, place].double()  # [batch, head, query]
                asks = batch.valid & ~there  # [batch, query]
                if visible is not None:
                    asks = asks & visible.expand(n, 1, *weights.shape[2:])[torch.arange(n), 0, :, place]
                mass = (onto * asks[:, None]).sum(-1) / asks.sum(-1).clamp(min=1)[:, None]
                for text, found in zip(batch.texts, mass.cpu().numpy(), strict=True):
                    rows.setdefault(text, []).append(found)

            change: AbstractContextManager[None] = nullcontext()
            if values is not None:
                wanted = np.stack([values[text] for text in batch.texts])
                change = set_to(self, dim, wanted, batch.valid & ~there if elsewhere else there)
            with tapped_attention(self.loaded, self.stack, look), change:
                self.run(batch)

        read_together(self.loaded, read, self.batches)
        return np.stack([np.stack(rows[text]) for text in sorted(rows)])


@temporary
def set_to(at: TokenAttention, dim: int, values: np.ndarray, where: "Tensor") -> Iterator[None]:
    """A dimension at `where` [batch, token] set to `values` [batch, layer + 1] before the first and after every block."""
    import torch

    wanted = torch.from_numpy(values).to(where.device)

    def edit(layer: int, states: "Tensor") -> "Tensor":
        changed = states.clone()
        value = wanted[:, layer - EMBEDDINGS, None].to(states.dtype)  # [batch, 1]
        changed[..., dim] = torch.where(where, value, states[..., dim])
        return changed

    with edited(at.loaded.model, at.stack, edit, (EMBEDDINGS, *range(at.stack.n_layers))):
        yield


# --- trials ----------------------------------------------------------------------------------------------------------


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
