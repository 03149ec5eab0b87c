"""What a plan may keep, in the order of a cheap cost, and the choice among it from values by text.

    costs = CheapPass(loaded, task, places, recipe, stack).run(texts)           # {(path, "inputs"): CheapCost}
    entries = Entries(places, stack, costs, grain="column", bits=16)
    search = PlanSearch(score, weights, entries.price, room=4_000_000)
    search.run(entries.order)                       # search.steps: in the order chosen, each confirmed

**Cheap costs** order what is measured, and are never a result. A linear's output moves by δ = (rounded inputs − inputs) Wᵀ, or
inputs (rounded W − W)ᵀ; a text's loss, summed over tokens, by Σ g·δ to first order, g its gradient at that output. At a minimum
these moves cancel over texts, and what is left is of second order: E[(Σ g·δ)²] / 2, by the tokens that count.

**Search.** Of the entries that the budget still holds and that give back at least four fifths of the most on the nominating
texts, each step takes a neuron or a dimension, which is a cause with a name, or else the one that gives back most per weight.
The confirming texts, which had no part in that, say whether it gives anything back; the first that does not ends the search.
So the probability of naming any entry that gives nothing back is at most the level (fixed-sequence testing: Maurer, Hothorn,
Lehmacher 1995; Westfall and Krishen 2001).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

import numpy as np

from outlierlens.analyses.quantize_places import LinearPlace, by_text, shaped_like
from outlierlens.analyses.quantize_rounding import KeptLinear
from outlierlens.analyses.quantize_schemes import SchemePair, fake_quantize, fake_quantize_inputs
from outlierlens.architectures import BoundStack, Neuron
from outlierlens.models.changes import frozen
from outlierlens.models.forward import reader_of
from outlierlens.models.hooks import EMBEDDINGS, edited, edited_calls, running_masks
from outlierlens.models.load import LoadedModel
from outlierlens.results.rows import Estimate
from outlierlens.statistics.means import unsettled_interval
from outlierlens.tasks.base import Task, mean_estimate, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor

What = Literal["weights", "inputs", "neuron", "dimension", "1 column", "4 columns", "16 columns"]
Entry = tuple[str, What]
"""A linear's path, and its weights or what it reads; a neuron (11:1229); a dimension; a part of the block, or every linear."""
NAMED = ("neuron", "dimension")
COLUMNS: tuple[tuple[int, What], ...] = ((1, "1 column"), (4, "4 columns"), (16, "16 columns"))
BOTH: tuple[What, ...] = ("weights", "inputs")
EVERY = "every linear"
NEURONS = 2  # of each block, those with the largest inputs
DIMENSIONS = 8
TOKENS = 256  # of a pass with gradients: every linear's output is held, and two changes of it
FIRST_LOOK = 4  # texts
ENOUGH = 0.8  # of the best gain: what an entry has to give back to be chosen for its name or its price


# --- cheap costs -----------------------------------------------------------------------------------------------------


@dataclass
class CheapCost:
    """The weights or inputs of one linear in the intact model.

    Attributes:
        ratio: largest |x| over the median |x| of those that are not 0: of the weights, or of the inputs of the text where
            that is largest.
        column: input where the largest lies. row: of weights the output, else None.
        power, error: Σ x² and Σ (rounded − x)².
        estimate: of what rounding it costs, see above; NaN where the task has no gradients.
        columns: [in], largest |x| of each input over all texts, or of each column of the weights. rows: [out], of weights.
    """

    ratio: float = 0.0
    column: int = 0
    row: int | None = None
    power: float = 0.0
    error: float = 0.0
    estimate: float = math.nan
    columns: "Tensor" = field(default=None, repr=False)  # type: ignore[assignment]
    rows: "Tensor" = field(default=None, repr=False)  # type: ignore[assignment]

    @property
    def relative_error(self) -> float:
        """Σ (rounded − x)² / Σ x²; 0 where all is 0."""
        return self.error / self.power if self.power else 0.0

    @property
    def promise(self) -> float:
        """The estimate, or the relative error where there is none; infinite where it is no number."""
        found = self.relative_error if math.isnan(self.estimate) else self.estimate
        return found if math.isfinite(found) else math.inf

    def without(self, columns: Sequence[int], rows: Sequence[int]) -> float:
        """Largest |x| without these columns and rows over the largest with them: what a step of the whole tensor shrinks by."""
        ends = [(self.columns, columns), (self.rows, rows)]
        return min((_rest(sizes, spared) for sizes, spared in ends if spared and sizes is not None), default=1.0)


class CheapPass:
    """One pass of the intact model: of each call of a linear it holds the output and how either rounding would move it."""

    def __init__(
        self, loaded: LoadedModel, task: Task, places: Sequence[LinearPlace], recipe: SchemePair, stack: BoundStack
    ):
        self.loaded, self.task, self.recipe, self.places, self.bound = loaded, task, recipe, places, stack
        self.differentiates = task.is_loss and not stack.stack.token_first
        self.found: dict[Entry, CheapCost] = {}
        self.masks: Sequence[Tensor] = ()
        self.reads: dict[str, Tensor] = {}
        self.calls: list[tuple[Tensor, dict[Entry, Tensor]]] = []

    def run(self, texts: Sequence[int]) -> dict[Entry, CheapCost]:
        """The weights and inputs that the scheme rounds, of linears that these texts of the task reach."""
        import torch

        model = self.loaded.model
        before, after = ({one.module: partial(edit, one) for one in self.places} for edit in (self._enter, self._leave))
        sums: dict[Entry, float] = {}
        tokens = 0.0
        with ExitStack() as undo:
            self.masks = undo.enter_context(running_masks(reader_of(self.loaded, [self.bound], "input_ids") or model))
            undo.enter_context(edited_calls(model, before, after))
            undo.enter_context(torch.set_grad_enabled(self.differentiates))
            if self.differentiates:
                undo.enter_context(frozen(model))
                undo.enter_context(
                    edited(model, self.bound, lambda _, embedded: embedded.detach().requires_grad_(), [EMBEDDINGS])
                )
            for feed in self.task.feeds(list(texts), TOKENS):
                self.calls.clear()
                total = self.task.sums(feed).sum()
                tokens += sum(float(self.task.weights[texts[slot]]) for slot in set(feed.slots))
                if self.differentiates:
                    slopes = torch.autograd.grad(total, [output for output, _ in self.calls], allow_unused=True)
                    self._add(sums, slopes)
                self.calls.clear()
        for entry, squares in sums.items():
            self.found[entry].estimate = squares / 2 / tokens
        return self.found

    def _enter(self, place: LinearPlace, reads: "Tensor") -> "Tensor":
        self.reads[place.name] = reads.detach()
        return reads

    def _leave(self, place: LinearPlace, output: "Tensor") -> "Tensor":
        import torch
        from torch.nn import functional

        name, reads, weight = place.name, self.reads.pop(place.name), place.weight()
        moves: dict[Entry, Tensor] = {}
        with torch.no_grad():
            if self.recipe.weights is not None:
                error = fake_quantize(weight, self.recipe.weights) - weight
                moves[name, "weights"] = functional.linear(reads, error)
                if (name, "weights") not in self.found:
                    self.found[name, "weights"] = _weights_cost(weight, error)
            if self.recipe.inputs is not None:
                states, valid = by_text(reads, self.masks, self.bound)
                error = fake_quantize_inputs(states, self.recipe.inputs, valid) - states
                error, states = self._counted(error, valid), self._counted(states, valid)
                _add_inputs(self.found.setdefault((name, "inputs"), CheapCost()), states, error)
                moves[name, "inputs"] = functional.linear(shaped_like(reads, error, self.bound), weight)
        if self.differentiates:
            self.calls.append((output, moves))
        return output

    def _counted(self, states: "Tensor", valid: "Tensor | None") -> "Tensor":
        return states if valid is None else states.masked_fill(~valid[..., None], 0.0)

    def _add(self, sums: dict[Entry, float], slopes: Sequence["Tensor | None"]) -> None:
        """Add the squared first-order move of each text; the calls of one linear in a pass move the loss together."""
        by_entry: dict[Entry, Tensor] = {}
        for (_, moves), slope in zip(self.calls, slopes, strict=True):
            if slope is not None:  # else the loss does not depend on this output
                for entry, move in moves.items():
                    product = (slope.double() * move.double()).sum(-1, keepdim=True)
                    kept = self._counted(*by_text(product, self.masks, self.bound))
                    by_entry[entry] = by_entry.get(entry, 0.0) + kept.flatten(1).sum(1)
        for entry, moved in by_entry.items():
            sums[entry] = sums.get(entry, 0.0) + float(moved.square().sum())


def _weights_cost(weight: "Tensor", error: "Tensor") -> CheapCost:
    size = weight.float().abs()
    row, column = divmod(int(size.argmax()), weight.shape[1])
    power, squares = (float(one.double().square().sum()) for one in (weight, error))
    return CheapCost(_ratio(size), column, row, power, squares, columns=size.amax(0), rows=size.amax(1))


def _add_inputs(cost: CheapCost, states: "Tensor", error: "Tensor") -> None:
    """Add inputs [text, token, in], padding 0, and their errors."""
    import torch

    cost.power += float(states.double().square().sum())
    cost.error += float(error.double().square().sum())
    top = states.float().abs().flatten(0, 1).amax(0)
    cost.columns = top if cost.columns is None else torch.maximum(cost.columns, top)
    for text in states.float().abs():
        ratio = _ratio(text)
        if ratio > cost.ratio:
            cost.ratio, cost.column = ratio, int(text.amax(0).argmax())


def _ratio(size: "Tensor") -> float:
    """Largest over median of the sizes that are not 0; 0 where all are."""
    some = size[size > 0]
    return float(some.max() / some.median()) if some.numel() else 0.0


def _over_median(sizes: "Tensor") -> "Tensor":
    some = sizes[sizes > 0]
    return sizes / some.median() if some.numel() else sizes


def _rest(sizes: "Tensor", spared: Sequence[int]) -> float:
    rest = sizes.clone()
    rest[list(spared)] = 0.0
    return float(rest.max() / sizes.max()) if float(sizes.max()) else 1.0


# --- entries ---------------------------------------------------------------------------------------------------------


def merged(parts: Iterable[KeptLinear]) -> dict[str, KeptLinear]:
    """{path: all that stays of that linear}, in the order in which paths come."""
    found: dict[str, KeptLinear] = {}
    for one in parts:
        other = found.get(one.path, one)
        found[one.path] = replace(
            one, weights=one.weights or other.weights, inputs=one.inputs or other.inputs,
            columns=tuple(sorted({*one.columns, *other.columns})), rows=tuple(sorted({*one.rows, *other.rows})),
        )  # fmt: skip
    return found


def n_kept(kept: Mapping[str, KeptLinear], shapes: Mapping[str, tuple[int, int]]) -> int:
    """Weights that stay, of linears of these shapes (outputs, inputs); all of a linear whose weights or inputs stay."""
    total = 0
    for path, one in kept.items():
        n_outputs, n_inputs = shapes[path]
        rounded = (n_outputs - len(one.rows)) * (n_inputs - len(one.columns))
        total += n_outputs * n_inputs - (0 if one.weights or one.inputs else rounded)
    return total


@dataclass(frozen=True)
class Candidate:
    """What an entry keeps, and what its cheap costs promise.

    Attributes:
        parts: that stay, a linear each.
        promise: what rounding these parts costs by `CheapCost`. ratio: the largest value among them over the median.
        at: the place of the largest: a linear, an input and, of weights, an output.
        error: relative squared error of the linears, the mean.
    """

    parts: tuple[KeptLinear, ...]
    promise: float
    ratio: float
    at: tuple[str, int, int | None]
    error: float


class Entries:
    """All that a plan of this model may keep.

    Attributes:
        places: linears that the scheme rounds, by path. shapes: theirs, (outputs, inputs). n_weights: in all of them.
        last: the last linears of the blocks' MLPs.
        candidates: what may be kept. order: the most promising first: by turns the next of promise, of promise per weight, of
            largest over median.
    """

    def __init__(
        self,
        places: Sequence[LinearPlace],
        stack: BoundStack,
        costs: Mapping[Entry, CheapCost],
        *,
        grain: str,
        bits: int,
    ):
        self.costs, self.n_layers = costs, stack.n_layers
        self.places = {place.name: place for place in places if {(place.name, what) for what in BOTH} & costs.keys()}
        self.shapes: dict[str, tuple[int, int]] = {
            name: (len(weight), weight.shape[1])
            for name, weight in ((name, place.weight()) for name, place in self.places.items())
        }
        self.n_weights = sum(map(math.prod, self.shapes.values()))
        last = {f"{block}.{module}" for block in stack.blocks for module in stack.stack.last_linear}
        self.last = [place for name, place in self.places.items() if name in last]
        self.candidates: dict[Entry, Candidate] = {}
        for (name, what), one in costs.items():
            part = KeptLinear(path=name, weights=what == "weights", inputs=what == "inputs", bits=bits)
            at = (name, one.column, one.row)
            self.candidates[name, what] = Candidate((part,), one.promise, one.ratio, at, one.relative_error)
        if grain == "column":
            self.candidates |= {entry: self._candidate(parts) for entry, parts in self._columns()}
        price = {entry: max(1, self.price([entry])) for entry in self.candidates}
        keys: tuple[Callable[[Entry], float], ...] = (
            lambda entry: -self.candidates[entry].promise,
            lambda entry: -self.candidates[entry].promise / price[entry],
            lambda entry: -self.candidates[entry].ratio,
        )
        turns = zip_longest(*(sorted(self.candidates, key=key) for key in keys))
        self.order = list(dict.fromkeys(one for turn in turns for one in turn if one is not None))

    def kept(self, entries: Iterable[Entry]) -> dict[str, KeptLinear]:
        """What stays of each linear."""
        return merged(part for entry in entries for part in self.candidates[entry].parts)

    def price(self, entries: Iterable[Entry]) -> int:
        """Weights that stay with these entries."""
        return n_kept(self.kept(entries), self.shapes)

    def rules(self, room: int) -> dict[str, list[Entry]]:
        """What tools keep by rule, and what the cheap ordering alone would keep (of linears weights and inputs)."""
        filled: list[Entry] = []
        for name, what in self.order:
            more = [*filled, *(self._both([name]) if what in BOTH else [(name, what)])]
            if self.price(more) <= room:
                filled = more
        ends = (name for name, one in self.places.items() if one.layer in (0, self.n_layers - 1))
        found = {"first and last block": self._both(ends)}
        if self.last:
            parts = " and ".join(dict.fromkeys(place.part for place in self.last))
            found[f"every {parts}"] = self._both(place.name for place in self.last)
        return found | {"cheap ordering alone": filled}

    def drawn(self, entries: Sequence[Entry], seed: int, number: int) -> list[Entry]:
        """A random entry in place of each: a linear of the same size, weights and inputs; a neuron of the same block; a
        dimension; as many columns of the same linears."""
        random = np.random.default_rng([seed, number])
        names = list(dict.fromkeys(name for name, what in entries if what in BOTH))
        sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        linears: list[str] = []
        for size in dict.fromkeys(sizes[name] for name in names):
            alike = [name for name, one in sizes.items() if one == size]
            count = sum(sizes[name] == size for name in names)
            linears += [alike[place] for place in sorted(random.choice(len(alike), count, replace=False).tolist())]
        found = self._both(linears)
        for name, what in entries:
            if what in BOTH:
                continue
            parts = self.candidates[name, what].parts
            if what == "dimension":
                width = next(self.shapes[one.path][1 if one.columns else 0] for one in parts)
                parts = dimension(self.places.values(), int(random.integers(width)))
            else:
                widths = ((one, self.shapes[one.path][1]) for one in parts)
                columns = ((one, random.choice(n, len(one.columns), replace=False)) for one, n in widths)
                parts = tuple(replace(one, columns=tuple(sorted(some.tolist()))) for one, some in columns)
            found.append((f"{name} random {number}", what))
            self.candidates[found[-1]] = replace(self.candidates[name, what], parts=parts)
        return found

    def _both(self, names: Iterable[str]) -> list[Entry]:
        return [(name, what) for name in names for what in BOTH if (name, what) in self.costs]

    def _columns(self) -> Iterator[tuple[Entry, tuple[KeptLinear, ...]]]:
        costs, places = self.costs, list(self.places.values())
        # Largest |x| of every input, or of every column of the weights where no inputs are rounded: [in].
        tops = {name: (costs.get((name, "inputs")) or costs[name, "weights"]).columns for name in self.places}
        for place in self.last:
            for number in _largest(tops[place.name], NEURONS):
                yield (str(Neuron(place.layer, number)), "neuron"), (KeptLinear(path=place.name, columns=(number,)),)
        # Dimensions that stand out most in any linear: what it reads of them, or the weights that it writes them with.
        sizes = [tops[one.name] for one in places if one.reads]
        sizes += [costs[one.name, "weights"].rows for one in places if one.writes and (one.name, "weights") in costs]
        for dim in _largest(reduce(lambda a, b: a.maximum(b), map(_over_median, sizes)), DIMENSIONS) if sizes else ():
            yield (str(dim), "dimension"), dimension(places, dim)
        for part in (EVERY, *dict.fromkeys(one.part for one in places)):
            group = [one.name for one in places if part in (EVERY, one.part)]
            for n, what in COLUMNS:
                if all(n < len(tops[name]) for name in group):
                    largest = {name: tuple(sorted(_largest(tops[name], n))) for name in group}
                    yield (part, what), tuple(KeptLinear(path=name, columns=one) for name, one in largest.items())

    def _candidate(self, parts: tuple[KeptLinear, ...]) -> Candidate:
        promise, errors = 0.0, []
        ratio, at = 0.0, (parts[0].path, 0, None)
        for one in parts:
            for what in reversed(BOTH):
                if (found := self.costs.get((one.path, what))) is None:
                    continue
                shrunk = found.without(one.columns, one.rows if what == "weights" else ())
                promise += found.promise * (1 - shrunk**2)
                errors.append(found.relative_error)
                if one.columns and (what == "inputs" or (one.path, "inputs") not in self.costs):
                    sizes = _over_median(found.columns)[list(one.columns)]
                    if float(sizes.max()) > ratio:
                        ratio, at = float(sizes.max()), (one.path, one.columns[int(sizes.argmax())], None)
        return Candidate(parts, promise, ratio, at, sum(errors) / max(1, len(errors)))


def dimension(places: Iterable[LinearPlace], dim: int) -> tuple[KeptLinear, ...]:
    """What keeps one dimension of the stream."""
    return tuple(
        KeptLinear(path=one.name, columns=(dim,) if one.reads else (), rows=(dim,) if one.writes else ())
        for one in places
        if one.reads or one.writes
    )


def _largest(sizes: "Tensor", n: int) -> list[int]:
    found: list[int] = sizes.topk(min(n, len(sizes))).indices.tolist()
    return found


# --- search ----------------------------------------------------------------------------------------------------------

Group = Literal["nominating", "confirming"]
Score = Callable[[frozenset[Entry], Entry | None, Group, int, int], np.ndarray]
"""The value of each text [text] of a group from one place to another, with these entries kept, one more if it is named, and
all else quantized; a value with one more entry is asked for after that without it."""


def estimated(values: np.ndarray, weights: np.ndarray) -> Estimate:
    """The mean of the values of the first texts [text] of these `weights`."""
    return mean_estimate(values, weights[: len(values)])


@dataclass(frozen=True)
class Trial:
    """An entry that was nominated, and what keeping it gives back: value without − value with it.

    Attributes:
        nominated: on the nominating texts, which chose it (and so is too large by chance). confirmed: on the confirming texts.
        n_weights: weights that stay once it is kept.
    """

    entry: Entry
    nominated: Estimate
    confirmed: Estimate
    n_weights: int


@dataclass
class PlanSearch:
    """A search with its budget.

    Attributes:
        weights: tokens that count of each text, by group.
        price: number of weights that stay with a set of entries; what several entries keep is paid once.
        room: weights that may be kept in all.
        floor: least gain worth an entry, in the unit of the values; the search ends where none gives back more. Ending early
            tests fewer hypotheses, so the level holds.
        n_candidates: entries that are measured at a step, the first of the order.
        exact: whether all are, on all nominating texts.
        progress: called with what begins.
        steps: what it chose, in order. refused: what ended it, nominated and not confirmed.
        first: at the first step, what keeping each measured entry alone gives back on each text [text].
    """

    score: Score
    weights: Mapping[Group, np.ndarray]
    price: Callable[[frozenset[Entry]], int]
    room: int
    floor: float = 0.0
    n_candidates: int = 32
    exact: bool = False
    progress: Callable[[str], None] = lambda _: None
    steps: list[Trial] = field(default_factory=list)
    refused: Trial | None = None
    first: dict[Entry, np.ndarray] = field(default_factory=dict)

    def run(self, order: Sequence[Entry]) -> None:
        """Choose among the entries of `order`, the most promising first."""
        kept: frozenset[Entry] = frozenset()
        while fitting := [one for one in order if one not in kept and self.price(kept | {one}) <= self.room]:
            candidates = fitting if self.exact else fitting[: self.n_candidates]
            self.progress(f"choosing entry {len(self.steps) + 1}")
            trial = self._tried(kept, candidates)
            if trial is None:
                return
            if not trial.confirmed.low > 0:  # an interval that is not settled confirms nothing
                self.refused = trial
                return
            self.steps.append(trial)
            kept |= {trial.entry}

    def _tried(self, kept: frozenset[Entry], candidates: Sequence[Entry]) -> Trial | None:
        """The candidate to take, of those that give back `ENOUGH` of the most; None where none gives back more than `floor`.

        After 4, 8, 16, … texts those go on whose gain is not below four fifths of the best one's, by the 95 % interval of the
        difference on the same texts.
        """
        weights = self.weights["nominating"]
        n, begin = len(weights), 0
        doubled = () if self.exact else (FIRST_LOOK * 2**k for k in range(32))
        gains: dict[Entry, np.ndarray] = dict.fromkeys(candidates, np.empty(0))
        racing = list(candidates)
        for look in (*(look for look in doubled if look < n), n):
            before = self.score(kept, None, "nominating", begin, look)
            for entry in racing:
                after = self.score(kept, entry, "nominating", begin, look)
                gains[entry] = np.append(gains[entry], _given_back(before, after))
            begin, seen = look, weights[:look]
            leader = max(racing, key=lambda entry: weighted_mean(gains[entry], seen))
            racing = [one for one in racing if one == leader or not _below(gains[one], ENOUGH * gains[leader], seen)]
        if not kept:
            self.first = gains
        found = {entry: estimated(values, weights) for entry, values in gains.items()}
        most = max(found[entry].value for entry in racing)
        if not most > self.floor:
            return None
        held = self.price(kept)
        worthy = [entry for entry in found if found[entry].value >= ENOUGH * most and len(gains[entry]) == n]
        named = [entry for entry in worthy if entry[1] in NAMED]
        best = max(named or worthy, key=lambda entry: found[entry].value / max(1, self.price(kept | {entry}) - held))
        weights, n_weights = self.weights["confirming"], self.price(kept | {best})
        before, after = (self.score(kept, more, "confirming", 0, len(weights)) for more in (None, best))
        return Trial(best, found[best], estimated(_given_back(before, after), weights), n_weights)


def _given_back(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """before − after [text], where a value that is no number is as bad as an infinite one, and two infinite ones are equal."""
    worst = (np.nan_to_num(one, nan=np.inf, posinf=np.inf) for one in (before, after))
    with np.errstate(invalid="ignore"):
        found: np.ndarray = np.nan_to_num(np.subtract(*worst), nan=0.0, posinf=np.inf, neginf=-np.inf)
    return found


def _below(gains: np.ndarray, leader: np.ndarray, weights: np.ndarray) -> bool:
    """Whether the mean of `gains` [text] is below that of `leader`, by the interval of their paired difference."""
    with np.errstate(invalid="ignore"):
        difference = leader - gains
    if not np.isfinite(difference).all():
        return bool(np.isneginf(gains).any())
    return unsettled_interval(difference * weights, weights)[0] > 0
