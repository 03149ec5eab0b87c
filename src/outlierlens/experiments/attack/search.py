"""Choose the moves that do most, for a growing number of values: gradients propose, measurements decide.

    search = Search(target, values, dims=(100, 247), options=SearchOptions())
    for budget, chosen in search.run("sign flip", (1, 2, 4, 8)): ...        # Chosen: the moves and what they do

At each budget several sets of moves are made from rankings (first-order effect, size of the change, effect measured alone), of
all values and of the values of one dimension, as an extension of what was chosen so far and as a set of their own; each is
measured on the search texts, and the strongest stays. Slopes are taken again at what is chosen, as in progressive bit search
(Rakin et al. 2019, "Bit-Flip Attack"), since first-order effects at the intact model say little once it is damaged.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.attack.edits import Moves, Values, edited_values, moves_of
from outlierlens.experiments.attack.losses import Target
from outlierlens.experiments.attack.options import SearchOptions

Report = Callable[[str, int, int], None]
GROUPS = 3  # rankings from this one on are of one dimension each


@dataclass(frozen=True)
class Chosen:
    """Moves, by their place in `moves`, in the order they were chosen, and the search texts' value with them."""

    which: tuple[int, ...]
    value: float


@dataclass
class Search:
    """Searches of several kinds over the same values of one model; slopes of the intact model are taken once."""

    target: Target
    values: Values
    dims: tuple[int, ...]
    options: SearchOptions = field(default_factory=SearchOptions)
    report: Report = lambda *_: None
    n_measured: int = 0
    _intact: np.ndarray | None = None
    _value: float | None = None

    def moves(self, kind: str) -> Moves:
        """Every move of a kind; raises BadInput where there is none."""
        found = moves_of(kind, self.values, bound=self.options.bound)
        if not len(found):
            raise BadInput(f"no sensitive value can be changed by {kind}: none moves beyond the tolerance of verify")
        return found

    def run(self, moves: Moves, budgets: Sequence[int]) -> Iterator[tuple[int, Chosen]]:
        """(budget, the strongest moves found that change at most so many values) for each budget, ascending."""
        if self._value is None:
            self._value = self.target.value()
        chosen = Chosen((), self._value)
        measured: dict[int, float] = {}
        for number, budget in enumerate(budgets):
            self.report(f"search: {moves.kind}", number, len(budgets))
            room = budget // moves.cost
            slopes = self.slopes(moves, chosen)
            rankings = self._rankings(moves, self.target.effects(moves.effects(self.values, slopes)))
            if room and not measured:
                measured = self._singles(moves, rankings)
            sets = self._proposals(moves, chosen, room, rankings, measured) if room else iter(())
            for proposal in itertools.islice(sets, self.options.n_sets):
                alone = measured.get(proposal[0]) if len(proposal) == 1 else None
                value = self.measure(moves, proposal) if alone is None else alone
                if value > chosen.value:
                    chosen = Chosen(proposal, value)
            yield budget, chosen

    def slopes(self, moves: Moves, chosen: Chosen) -> np.ndarray:
        """Slopes of all values with the chosen moves made [probe, value]."""
        if not chosen.which and self._intact is not None:
            return self._intact
        places = [self.values.flat[self.values.tensor == i] for i in range(len(self.values.names))]
        with self.made(moves, chosen.which):
            slopes = self.target.slopes_at(self.values.names, places)
        # Where the damage is beyond numbers there is no slope.
        slopes = np.nan_to_num(slopes, nan=0.0, posinf=0.0, neginf=0.0)
        if not chosen.which:
            self._intact = slopes
        return slopes

    def made(self, moves: Moves, which: Sequence[int]) -> Any:
        """The model with these moves made, while the block lasts."""
        return edited_values(self.target.loaded.model, moves.changes(self.values, which))

    def measure(self, moves: Moves, which: Sequence[int]) -> float:
        """The search texts' value with these moves made; −inf where it is no finite number: that anyone would notice."""
        self.n_measured += 1
        with self.made(moves, which):
            value = self.target.value()
        return value if np.isfinite(value) else -np.inf

    def ranked(self, moves: Moves, slopes: Mapping[str, Any]) -> tuple[int, ...]:
        """The moves by first-order effect, the largest first, from slopes of whole tensors."""
        import torch

        parts = []
        for number, name in enumerate(self.values.names):
            at = torch.from_numpy(self.values.flat[self.values.tensor == number])
            parts.append(slopes[name].flatten(1)[:, at.to(slopes[name].device)].cpu().double().numpy())
        estimate = self.target.effects(moves.effects(self.values, np.concatenate(parts, axis=1)))
        return tuple(_best(np.where(estimate > 0, estimate, -np.inf), moves, len(moves)).tolist())

    def _singles(self, moves: Moves, rankings: Sequence[np.ndarray]) -> dict[int, float]:
        """{move: value with it alone}, of the moves that lead the rankings, each ranking in turn."""
        n = self.options.n_single
        places = [_best(ranking, moves, n) for ranking in rankings]
        turns = (int(place[turn]) for turn in range(n) for place in places if turn < len(place))
        return {move: self.measure(moves, (move,)) for move in list(dict.fromkeys(turns))[:n]}

    def _rankings(self, moves: Moves, estimate: np.ndarray) -> list[np.ndarray]:
        """Scores [move], −inf where a move is out: by effect, by size, by both; then by both in one dimension after another."""
        size = moves.size(self.values)
        both = np.sqrt(np.abs(estimate)) * size
        of = self.values.dim[moves.place]
        groups = [*self.dims, *self._loud(estimate, of)]
        return [estimate, size, both, *(np.where(of == dim, both, -np.inf) for dim in groups)]

    def _loud(self, estimate: np.ndarray, of: np.ndarray) -> list[int]:
        """The dimensions, outliers aside, whose single moves promise most."""
        known = of >= 0
        if not known.any():
            return []
        most = np.zeros(int(of.max()) + 1)
        np.maximum.at(most, of[known], estimate[known])
        order = [int(dim) for dim in np.argsort(-most, kind="stable") if dim not in self.dims and most[dim] > 0]
        return order[: self.options.n_groups]

    def _proposals(
        self, moves: Moves, chosen: Chosen, room: int, rankings: Sequence[np.ndarray], measured: Mapping[int, float]
    ) -> Iterator[tuple[int, ...]]:
        """Sets of `room` moves at most, each once: extensions of what is chosen, and sets of their own."""
        assert self._value is not None
        gains = sorted((self._value - value, move) for move, value in measured.items() if value > self._value)
        # A measured gain counts for more than an estimate.
        leaders = np.array([move for _, move in gains], dtype=int)
        orders = [_best(ranking, moves, 2 * room) for ranking in rankings]
        first = np.concatenate([leaders, orders[0]])
        groups = orders[GROUPS:]
        starts = [(chosen.which, first), (chosen.which, orders[2]), ((), first)]
        starts += [(chosen.which, order) for order in groups] + [((), order) for order in groups]
        starts.append((chosen.which, orders[1]))
        seen = {chosen.which}
        for start, order in starts:
            made = _extended(start, order, moves, room)
            if made not in seen:
                seen.add(made)
                yield made


def _best(score: np.ndarray, moves: Moves, n: int) -> np.ndarray:
    """The `n` moves of highest score that do not touch the same value twice, best first; none of score −inf."""
    many = min(len(score), 16 * n + 64)  # several moves (bits, partners) are of one value
    top = np.argpartition(-score, many - 1)[:many] if many < len(score) else np.arange(len(score))
    top = top[np.isfinite(score[top])]
    top = top[np.lexsort((top, -score[top]))]
    return np.array(_extended((), top, moves, n), dtype=int)


def _extended(start: tuple[int, ...], order: np.ndarray, moves: Moves, room: int) -> tuple[int, ...]:
    """`start` and then moves of `order` that touch no value that is touched already, `room` at most."""
    made = list(start[:room])
    touched = {int(side[move]) for move in made for side in (moves.place, moves.partner)} - {-1}
    for move in order.tolist():
        if len(made) >= room:
            break
        ends = {int(moves.place[move]), int(moves.partner[move])} - {-1}
        if not ends & touched:
            made.append(move)
            touched |= ends
    return tuple(made)
