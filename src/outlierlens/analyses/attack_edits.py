"""Edits of single values: what a value could become, which values may change, and the search for the edits that do most.

A move changes one value, and a swap two. "zero" sets a value to what switches its dimension off (−1 for a norm that multiplies
by 1 + weight); "sign-flip" flips the sign bit; "swap" trades places with another value of the same tensor; "exponent-flip"
flips one bit of the exponent, in the number format of the model, and keeps the result finite and within a bound.

The search tries sets of moves at each budget. They are made from rankings (first-order effect, size of the change, both, effect
measured alone), of all values and of one dimension's, as an extension of what was chosen and as a set of their own. The
strongest on the search texts stays. Slopes are taken again at what is chosen, as in progressive bit search (Rakin et al. 2019,
"Bit-Flip Attack"), since first-order effects at the intact model say little once it is damaged.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from outlierlens.ablation.study import Progress
from outlierlens.analyses.fingerprint_values import SensitiveValues, half_step
from outlierlens.architectures import live_parameters
from outlierlens.errors import BadInput
from outlierlens.models.changes import SettableParameters, frozen, temporary
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task, weighted_mean

if TYPE_CHECKING:
    import torch

    from outlierlens.analyses.attack import AttackOptions

KINDS = ("zero", "swap", "sign-flip", "exponent-flip")
# dtype -> (integer type of the same width, lowest bit of the exponent, bits of the exponent), IEEE 754 and bfloat16
EXPONENTS = {
    "float16": ("int16", 10, 5),
    "bfloat16": ("int16", 7, 8),
    "float32": ("int32", 23, 8),
    "float64": ("int64", 52, 11),
}
PARTNERS = 8  # a swap looks for its partner among this many of its tensor with the largest and the smallest values
GROUPS = 3  # rankings from this one on are of one dimension each


class ValueChange(NamedTuple):
    """A value that becomes another: `flat` is its place in the flattened tensor."""

    tensor: str
    flat: int
    after: float


@dataclass(frozen=True)
class Values:
    """Single values of a model, side by side.

    Attributes:
        names: of tensors. tensor: [value] place in `names`. flat: [value] place in the flattened tensor.
        before: [value] float64, exactly. off: [value] what switches it off. dim: [value] of the stream, −1 without one.
        largest: [value] largest |value| of its tensor. spread: [value] root mean square of its tensor's values.
        dtype: of the tensors.
    """

    names: tuple[str, ...]
    tensor: np.ndarray
    flat: np.ndarray
    before: np.ndarray
    off: np.ndarray
    dim: np.ndarray
    largest: np.ndarray
    spread: np.ndarray
    dtype: str

    def __len__(self) -> int:
        return len(self.flat)


@dataclass(frozen=True)
class Moves:
    """What values could become.

    Attributes:
        place: [move] which value. after: [move] what it becomes.
        partner: [move] the value that it trades places with, −1 without one. bit: [move] that is flipped, −1 without one.
    """

    kind: str
    values: Values
    place: np.ndarray
    after: np.ndarray
    partner: np.ndarray
    bit: np.ndarray

    @property
    def cost(self) -> int:
        """Values that one move changes."""
        return 2 if self.kind == "swap" else 1

    @property
    def step(self) -> np.ndarray:
        """How far each move goes [move]."""
        return np.asarray(self.after - self.values.before[self.place])

    def places(self, move: int) -> dict[int, float]:
        """{value: what it becomes} of each value that a move changes."""
        place, partner = int(self.place[move]), int(self.partner[move])
        traded = {partner: float(self.values.before[place])} if partner >= 0 else {}
        return {place: float(self.after[move]), **traded}

    def changes(self, which: Sequence[int]) -> list[ValueChange]:
        """The changes that some moves make."""
        v = self.values
        placed = [one for move in which for one in self.places(move).items()]
        return [ValueChange(v.names[v.tensor[place]], int(v.flat[place]), after) for place, after in placed]

    def joined(self, start: Sequence[int], order: np.ndarray, room: int) -> tuple[int, ...]:
        """`start` and then moves of `order` that touch no value that is touched already, `room` at most."""
        made = list(start[:room])
        touched = {place for move in made for place in self.places(move)}
        for move in order.tolist():
            if len(made) >= room:
                break
            if not touched & (ends := self.places(move).keys()):
                made.append(move)
                touched |= ends
        return tuple(made)

    def best(self, score: np.ndarray, n: int) -> np.ndarray:
        """The `n` moves of highest score that do not touch the same value twice, best first; none of score −inf."""
        many = min(len(score), 16 * n + 64)  # several moves (bits, partners) are of one value
        top = np.argpartition(-score, many - 1)[:many] if many < len(score) else np.arange(len(score))
        top = top[np.isfinite(score[top])]
        return np.array(self.joined((), top[np.lexsort((top, -score[top]))], n), dtype=int)


def moves_of(kind: str, values: Values, *, bound: float, random: np.random.Generator | None = None) -> Moves:
    """Every move of a kind of `KINDS` that no rounding of a copy to half precision could explain; with `random`, swaps of any
    two values in place of those with the ends of their tensor."""
    place, none = np.arange(len(values)), np.array(-1)
    after, partner, bit = values.off if kind == "zero" else -values.before, none, none
    if kind == "swap":
        place, partner = _pairs(values, random)
        after = values.before[partner]
    elif kind == "exponent-flip":
        place, after, bit = _flips(values, bound)
    partner, bit = (np.broadcast_to(one, len(place)) for one in (partner, bit))
    tolerance = 2 * np.maximum(half_step(values.before, "bfloat16"), half_step(values.before, "float16"))  # up and down
    least = np.maximum(tolerance[place], np.where(partner < 0, 0, tolerance[partner]))
    keep = np.abs(after - values.before[place]) > least
    return Moves(kind, values, place[keep], after[keep], partner[keep], bit[keep])


def _pairs(values: Values, random: np.random.Generator | None) -> np.ndarray:
    """Every value with those of its tensor that have the largest and the smallest values, or random pairs [2, move]."""
    pairs = [np.empty((2, 0), dtype=int)]
    for number in range(len(values.names)):
        here = np.flatnonzero(values.tensor == number)
        if random:
            pairs.append(random.permutation(here)[: len(here) // 2 * 2].reshape(2, -1))
            continue
        order = here[np.argsort(values.before[here], kind="stable")]
        ends = np.unique(np.concatenate([order[:PARTNERS], order[-PARTNERS:]]))
        first, second = (side.ravel() for side in np.meshgrid(here, ends, indexing="ij"))
        # A pair of two such values would come twice.
        keep = (first != second) & ~(np.isin(first, ends) & (first > second))
        pairs.append(np.stack([first[keep], second[keep]]))
    return np.concatenate(pairs, axis=1)


def _flips(values: Values, bound: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(place, after, bit) [move] for each bit of the exponents where the result is finite and within the bound."""
    import torch

    integers, lowest, width = EXPONENTS[values.dtype]
    held = torch.from_numpy(values.before).to(getattr(torch, values.dtype))  # exact: they come from there
    whole, bits = held.view(getattr(torch, integers)), np.arange(lowest, lowest + width)
    flipped = np.stack([(whole ^ (1 << int(bit))).view(held.dtype).double().numpy() for bit in bits])  # [bit, value]
    which, place = np.nonzero(np.isfinite(flipped) & (np.abs(flipped) <= bound * values.largest))
    return place, flipped[which, place], bits[which]


def sensitive_values(loaded: LoadedModel, entries: Sequence[SensitiveValues]) -> Values:
    """Every value of a fingerprint's entries, each once, with its dimension.

    Raises:
        BadInput: there is none, or the model is held in a format that cannot be edited.
    """
    parameters = live_parameters(loaded.model)
    found: dict[str, dict[int, int]] = {}
    first: dict[int, str] = {}  # a tensor that two names share is edited by one
    for entry in entries:
        mine = found.setdefault(first.setdefault(id(parameters[entry.stored]), entry.stored), {})
        sides = zip(entry.size, (entry.row_numbers, entry.column_numbers), strict=True)
        rows, columns = (np.arange(n) if chosen is None else np.array(chosen) for n, chosen in sides)
        dims = np.repeat(entry.dims, len(columns)) if entry.role == "write row" else np.tile(columns, len(rows))
        for flat, dim in zip((rows[:, None] * entry.shape[-1] + columns).ravel().tolist(), dims.tolist(), strict=True):
            mine.setdefault(flat, dim if entry.on_stream else -1)
    if not found:
        raise BadInput(f"{loaded.name}: no sensitive value is listed, so there is nothing to attack; name --dims")
    offs: dict[str, float] = {}
    for stack in loaded.stacks:
        layers = [layer for norm in stack.norms.values() for layer in norm]
        for params in (*layers, stack.embedding_norm, stack.final_norm):
            offs |= {param.name: param.off for param in params}
    return gather(parameters, found, offs)


def gather(parameters: Mapping[str, Any], places: Mapping[str, dict[int, int]], offs: Mapping[str, float]) -> Values:
    """The values at `places` of some tensors, {flat place: dimension, −1 without one}; `offs` switch them off where not 0.

    Raises:
        BadInput: tensors of several number formats, or of one that cannot be edited.
    """
    import torch

    dtypes = {str(parameters[name].dtype).removeprefix("torch.") for name in places}
    if len(dtypes) != 1 or not dtypes <= EXPONENTS.keys():
        raise BadInput(
            f"values to edit are held as {', '.join(sorted(dtypes)) or 'nothing'}; load the model in one of "
            f"{', '.join(EXPONENTS)} (--dtype)"
        )
    parts: list[tuple[np.ndarray, ...]] = []
    for number, (name, mine) in enumerate(places.items()):
        tensor, flat = parameters[name].detach(), torch.tensor(list(mine))
        before = tensor[torch.unravel_index(flat.to(tensor.device), tensor.shape)].cpu().double().numpy()
        figures = (offs.get(name, 0.0), float(tensor.abs().max()), float(tensor.float().square().mean().sqrt()))
        dims = np.fromiter(mine.values(), dtype=np.int64)
        parts.append(
            (np.full(len(mine), number), flat.numpy(), before, dims, *(np.full(len(mine), f) for f in figures))
        )
    tensors, flats, befores, dims, off, largest, spread = map(np.concatenate, zip(*parts, strict=True))
    return Values(tuple(places), tensors, flats, befores, off, dims, largest, spread, dtypes.pop())


def random_changes(values: Values, kind: str, *, n: int, bound: float, seed: int) -> list[ValueChange]:
    """The changes of `n` random moves of a kind, or of as many as there are: values alike likely, each changed once.

    Of a value with several moves (bits, partners) one is drawn.
    """
    random = np.random.default_rng(seed)
    moves = moves_of(kind, values, bound=bound, random=random)
    order = random.permutation(len(moves.place))
    # The first move of each value in random order is one of its moves at random; values are then drawn alike.
    first = order[np.unique(moves.place[order], return_index=True)[1]]
    return moves.changes(moves.joined((), random.permutation(first), n))


@temporary
def edited_values(model: "torch.nn.Module", changes: Sequence[ValueChange]) -> Iterator[int]:
    """Put single values in place, and the old ones back bit for bit at the end; yields the number of values set.

    Raises:
        BadInput: a tensor whose values cannot be set.
    """
    import torch

    with ExitStack() as undo:
        settable = SettableParameters(undo, model)
        for name in dict.fromkeys(change.tensor for change in changes):
            live, mine = settable.parameters[name], [change for change in changes if change.tensor == name]
            at = torch.tensor([change.flat for change in mine], device=live.device)
            after = torch.tensor([change.after for change in mine], dtype=torch.float64)
            settable.set_values(name, torch.unravel_index(at, live.shape), after.to(live))
        yield len(changes)


class EditSearch:
    """The search for the moves of several kinds that do most to the texts of `task`, over the same values of one model.

    The first-order effect of a change is slope · change.
    """

    def __init__(self, loaded: LoadedModel, task: Task, values: Values, dims: Sequence[int], options: "AttackOptions"):
        self.loaded, self.task, self.values, self.dims, self.options = loaded, task, values, dims, options
        self.parameters = live_parameters(loaded.model)
        self.intact, self.intact_slopes = self.value(), self.slopes()

    def find(self, kind: str, progress: Progress) -> list[tuple[tuple[int, ...], float]]:
        """(the strongest moves found that change at most so many values, the value with them) for each budget, ascending.

        Raises:
            BadInput: no value can be changed so.
        """
        moves = moves_of(kind, self.values, bound=self.options.bound)
        if not len(moves.place):
            raise BadInput(f"no sensitive value can be changed by {kind}: none moves beyond the tolerance of verify")
        which: tuple[int, ...] = ()
        found, top, alone = [], self.intact, dict[int, float]()
        for number, budget in enumerate(self.options.budgets):
            progress(f"search: {kind}", number, len(self.options.budgets))
            if room := budget // moves.cost:
                slopes = self.slopes(moves.changes(which)) if which else self.intact_slopes
                rankings = self._rankings(moves, slopes)
                alone = alone or self._singles(moves, rankings)
                sets = self._proposals(moves, which, room, rankings, alone)
                for proposal in itertools.islice(sets, self.options.n_sets):
                    known = alone.get(proposal[0]) if len(proposal) == 1 else None
                    value = self.value(moves.changes(proposal)) if known is None else known
                    if value > top:
                        which, top = proposal, value
            found.append((which, top))
        return found

    def value(self, changes: Sequence[ValueChange] = ()) -> float:
        """The weighted mean over texts with changes made; −inf where it is no finite number: that anyone would notice."""
        with edited_values(self.loaded.model, changes), np.errstate(invalid="ignore", over="ignore"):
            value = weighted_mean(*self.task.per_text())
        return value if np.isfinite(value) else -np.inf

    def slopes(self, changes: Sequence[ValueChange] = ()) -> np.ndarray:
        """Slopes of the loss at all values [value] with changes made; 0 where the damage is beyond numbers."""
        import torch

        names, model = self.values.names, self.loaded.model
        tensors = [self.parameters[name] for name in names]
        total = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in tensors]
        with edited_values(model, changes), frozen(model, names), torch.enable_grad():
            for feed in self.task.feeds(range(self.task.n_texts)):
                loss = self.task.sums(feed).sum() / float(self.task.weights.sum())
                slopes = torch.autograd.grad(loss, tensors, allow_unused=True)
                for kept, part in zip(total, slopes, strict=True):
                    if part is not None:
                        kept.add_(part)
        places = [torch.from_numpy(self.values.flat[self.values.tensor == number]) for number in range(len(names))]
        at = [one.flatten()[place.to(one.device)] for one, place in zip(total, places, strict=True)]
        return np.nan_to_num(torch.cat(at).cpu().double().numpy(), nan=0.0, posinf=0.0, neginf=0.0)

    def _rankings(self, moves: Moves, slopes: np.ndarray) -> list[np.ndarray]:
        """Scores [move], −inf where a move is out: by effect, by size, by both; then by both in one dimension after another:
        the outliers, and the one among the others whose single moves promise most."""
        estimate = slopes[moves.place] * moves.step
        if moves.kind == "swap":
            estimate = estimate - slopes[moves.partner] * moves.step
        size = np.abs(moves.step) / np.maximum(self.values.spread[moves.place], 1e-30)
        both, of = np.sqrt(np.abs(estimate)) * size, self.values.dim[moves.place]
        most = np.zeros(max(int(of.max()), *self.dims, 0) + 1)
        np.maximum.at(most, of[of >= 0], estimate[of >= 0])
        most[list(self.dims)] = 0
        groups = [*self.dims, *([int(most.argmax())] if most.any() else [])]
        return [estimate, size, both, *(np.where(of == dim, both, -np.inf) for dim in groups)]

    def _singles(self, moves: Moves, rankings: Sequence[np.ndarray]) -> dict[int, float]:
        """{move: value with it alone}, of the moves that lead the rankings, each ranking in turn."""
        n = self.options.n_single
        places = [moves.best(ranking, n) for ranking in rankings]
        turns = (int(place[turn]) for turn in range(n) for place in places if turn < len(place))
        return {move: self.value(moves.changes([move])) for move in list(dict.fromkeys(turns))[:n]}

    def _proposals(
        self,
        moves: Moves,
        which: tuple[int, ...],
        room: int,
        rankings: Sequence[np.ndarray],
        alone: Mapping[int, float],
    ) -> Iterator[tuple[int, ...]]:
        """Sets of `room` moves at most, each once: extensions of what is chosen, and sets of their own."""
        gains = sorted((self.intact - value, move) for move, value in alone.items() if value > self.intact)
        orders = [moves.best(ranking, 2 * room) for ranking in rankings]
        # A measured gain counts for more than an estimate.
        first, groups = np.array([move for _, move in gains] + orders[0].tolist(), dtype=int), orders[GROUPS:]
        starts = [(which, first), (which, orders[2]), ((), first)]
        starts += [(start, order) for start in (which, ()) for order in groups]
        sets = [moves.joined(start, order, room) for start, order in (*starts, (which, orders[1]))]
        yield from (one for one in dict.fromkeys(sets) if one != which)
