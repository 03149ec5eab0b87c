"""The units of a sweep: what is switched off (`Unit`), on which of the ordered texts (`Work`), beside which controls.

units = planned(options, n_layers, width, found)
Work(units[0], 0, 8).key                                   # "[[0,[507]],[1,[507]]]|0-8": the row it becomes
families = control_families(runner, units, found)          # of each tested set: its control sets, as units
for work, values in Local(runner).measure(works): ...      # where work is done: an engine gives values back in any order
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import numpy as np

from outlierlens.ablation.controls import (
    Plan,
    matched_neurons,
    matched_sets,
    plan_key,
    random_families,
    random_neurons,
    relabelled,
)
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.rows import BY_LAYER
from outlierlens.analyses.sweep.runner import Runner
from outlierlens.architectures import neurons_of
from outlierlens.detection.activations import magnitude
from outlierlens.errors import BadInput
from outlierlens.view.section import by_dims, runs

N_RANDOM, N_RANDOM_BY_WINDOW, N_MATCHED = 200, 19, 19
PASSES_AT_ONCE = 4  # forward passes handed to the runner in one go, until it is known how long they take
MOST_PASSES = 64
SHARE_SECONDS = 20.0  # what a kill may cost; more units in one go make batches of more even length


@dataclass(frozen=True)
class Unit:
    """One ablation: `plan` is {layer: dims}; an empty plan is the intact model."""

    label: str
    window: str
    plan: Plan = field(hash=False)
    key: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", plan_key(self.plan) if self.plan else "intact")

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions off in any layer, ascending."""
        return tuple(sorted({dim for dims in self.plan.values() for dim in dims}))

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with something off, ascending."""
        return tuple(sorted(self.plan))

    @property
    def by_layer(self) -> Plan:
        """`plan` where layers differ, else empty."""
        return {} if len(set(self.plan.values())) <= 1 else self.plan


INTACT = Unit("intact", "", {})


@dataclass(frozen=True)
class Work:
    """A unit on the texts start to stop (exclusive) of the sweep's order: what is measured, kept or lost as one.

    `only` names the texts to run, counted from `start`; the others keep the intact model's value. None is all.
    """

    unit: Unit
    start: int
    stop: int
    only: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        """Its name in row files."""
        return f"{self.unit.key}|{self.start}-{self.stop}" + ("" if self.only is None else "|screened")

    @property
    def span(self) -> tuple[int, int]:
        """Its texts."""
        return self.start, self.stop

    @property
    def n_texts(self) -> int:
        """Number of texts that are run."""
        return self.stop - self.start if self.only is None else len(self.only)


@dataclass
class Differences:
    """Per-text differences of every unit, the first texts of the order first; `dropped` texts were run and forgotten."""

    weights: np.ndarray
    dropped: int = 0
    _parts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def drop(self, key: str) -> None:
        """Forget a unit, to measure it anew."""
        self.dropped += self.spent(key)
        self._parts.pop(key, None)
        self.left_out.pop(key, None)

    def spent(self, key: str) -> int:
        """Texts that were run for a unit."""
        return self.n(key) - self.left_out.get(key, 0)

    def add(self, key: str, start: int, values: np.ndarray, left_out: int = 0) -> None:
        """Append differences on the texts from `start`, which follow those of `key` so far; `left_out` were not run."""
        self.left_out[key] = self.left_out.get(key, 0) + left_out
        assert start == self.n(key), f"{key} is measured up to {self.n(key)}, not {start}"
        self._parts.setdefault(key, []).append(values)

    def n(self, key: str) -> int:
        """Texts a unit was measured on."""
        return sum(map(len, self._parts.get(key, ())))

    def values(self, key: str) -> np.ndarray:
        """All differences of a unit, float64 [text]."""
        parts = self._parts.get(key, [])
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        return parts[0] if parts else np.empty(0)


def layer_windows(options: SweepOptions, n_layers: int) -> list[tuple[str, tuple[int, ...]]]:
    """(name, layers) of every window of a stream with `n_layers` layers.

    Raises:
        BadInput: a layer that does not exist.
    """
    layers = tuple(range(n_layers)) if options.layers is None else tuple(sorted(set(options.layers)))
    if not layers or not 0 <= layers[0] <= layers[-1] < n_layers:
        raise BadInput(f"layers {options.layers} are not all layers of this stream; it has layers 0 to {n_layers - 1}")
    if options.windows == "single":
        return [(f"layer {layer}", (layer,)) for layer in layers]
    if options.windows == "from":
        return [(f"from layer {layer}", tuple(other for other in layers if other >= layer)) for layer in layers]
    if options.windows == "upto":
        return [(f"up to layer {layer}", tuple(other for other in layers if other <= layer)) for layer in layers]
    return [("all layers" if len(layers) == n_layers else f"layers {runs(layers)}", layers)]


def planned(
    options: SweepOptions, n_layers: int, width: int, found: Sequence[int], *, by_neuron: bool = False
) -> list[Unit]:
    """Everything whose effect is wanted: single dimensions first, then sets, window by window.

    With `by_neuron` they are neurons of an MLP, which are named with their block.

    Raises:
        BadInput: a layer or dimension that does not exist, neurons in several blocks at once, or nothing to test.
    """
    dims = range(width) if options.dims == "all" else dict.fromkeys(options.dims)
    sets = [tuple(sorted(set(one))) for one in options.sets]
    if options.with_found and len(found) > 1:
        sets.append(tuple(sorted(found)))
    sets = [one for one in dict.fromkeys(sets) if len(one) > 1 or (one and one[0] not in dims)]
    wrong = [dim for dim in (*dims, *(dim for one in sets for dim in one)) if not 0 <= dim < width]
    if wrong:
        raise BadInput(f"dimension {wrong[0]} does not exist; this stream has dimensions 0 to {width - 1}")
    units = []
    if by_neuron and options.windows != "single" and (dims or sets):
        raise BadInput(
            "--stack mlp: a neuron belongs to one block; name it with --plan 11:1229 and --dims none, or sweep those of a "
            "block with --windows single --layers 11"
        )
    for name, layers in layer_windows(options, n_layers) if dims or sets else ():
        for one in (*((dim,) for dim in dims), *sets):
            if by_neuron:
                plan = dict.fromkeys(layers, one)
                units.append(Unit(", ".join(map(str, neurons_of(plan))), name, plan))
                continue
            where = "" if name == "all layers" else f" in {name}" if name.startswith("layer") else f" {name}"
            units.append(Unit(", ".join(map(str, one)) + where, name, dict.fromkeys(layers, one)))
    for given in options.plans:
        plan = {layer: tuple(sorted(set(one))) for layer, one in sorted(given.items()) if one}
        wrong = [dim for one in plan.values() for dim in one if not 0 <= dim < width]
        if wrong or not plan or max(plan) >= n_layers or min(plan) < 0:
            raise BadInput(
                f"the plan {dict(given)} does not fit this stream: layers 0 to {n_layers - 1}, dimensions 0 to {width - 1}"
            )
        label = "; ".join(f"layers {runs(at)}: {', '.join(map(str, one))}" for one, at in by_dims(plan).items())
        units.append(Unit(", ".join(map(str, neurons_of(plan))) if by_neuron else label, BY_LAYER, plan))
    units = different(units[::-1])[::-1]  # what is the same in two ways is one unit
    if not units:
        raise BadInput("nothing to sweep: name dimensions or sets, or leave both out to sweep every dimension")
    return units


def different(units: Iterable[Unit]) -> list[Unit]:
    """The units, each plan once."""
    return list({unit.key: unit for unit in units}.values())


@dataclass(frozen=True)
class UnitFamily:
    """The control sets of one kind for the unit `of`, as units themselves; `closeness` as in `Null`."""

    kind: str
    of: Unit
    controls: tuple[Unit, ...]
    closeness: float | None = None


def control_families(runner: Runner, units: Sequence[Unit], found: Sequence[int]) -> list[UnitFamily]:
    """Random, ordinary and matched control sets for every tested set; for single dimensions only where not all are swept.

    Sets of one size in one window share their random sets but for each itself, which is none of its own controls. Ordinary
    ones hold no dimension that the weights or the caller named. Too few dimensions for a control are said in `runner.notes`.
    """
    options = runner.options
    several = len({unit.window for unit in units} - {BY_LAYER}) > 1
    n_random = options.n_random if options.n_random is not None else N_RANDOM_BY_WINDOW if several else N_RANDOM
    n_matched = options.n_matched if options.n_matched is not None else 0 if several else N_MATCHED
    wanted = [unit for unit in units if len(unit.dims) > 1 or options.dims != "all" or unit.window == BY_LAYER]
    named = {dim for unit in wanted for dim in unit.dims} | set(found)
    strength = magnitude(runner.loaded, runner.stack) if n_matched and wanted else np.empty(0)
    families: list[UnitFamily] = []
    for kind, n in (("random", n_random), ("matched", n_matched)):
        for unit in wanted if n else ():
            try:
                families += (
                    _matched(runner, strength, unit, named, n) if kind == "matched" else _random(runner, unit, named, n)
                )
            except BadInput as error:
                _note(runner, f"a control family is missing: {error}")
    return families


def _note(runner: Runner, note: str) -> None:
    runner.notes += [note] if note not in runner.notes else []


def _random(runner: Runner, unit: Unit, named: set[int], n: int) -> Iterator[UnitFamily]:
    seed, drawn = runner.options.seed, dict[str, Sequence[Plan]]()
    if runner.stack.reads:
        drawn |= random_neurons(dict.fromkeys(unit.plan, range(runner.width)), unit.plan, avoid={}, n=n, seed=seed)
    else:
        for kind, sets in random_families(runner.width, unit.dims, avoid=named, n=n, seed=seed).items():
            drawn[kind] = [relabelled(unit.plan, dims) for dims in sets]
            if len(sets) < n:
                _note(runner, f"{len(sets)} {kind} sets of {len(unit.dims)} instead of {n}: there are no more")
    for kind, plans in drawn.items():
        yield UnitFamily(kind, unit, tuple(Unit(f"{kind} {i + 1}", unit.window, plan) for i, plan in enumerate(plans)))


def _matched(runner: Runner, strength: np.ndarray, unit: Unit, named: set[int], n: int) -> Iterator[UnitFamily]:
    blocks, seed = runner.stack.blocks, runner.options.seed
    if runner.stack.reads:
        sets = matched_neurons(strength, unit.plan, avoid={}, n=n, seed=seed)
    else:
        sets = matched_sets(strength, unit.plan, avoid=named, n=n, seed=seed, blocks=blocks)
    units = [Unit(f"matched {i + 1}", unit.window, item.plan) for i, item in enumerate(sets)]
    yield UnitFamily("matched", unit, tuple(different(units)), float(np.median([item.closeness for item in sets])))


class Engine(Protocol):
    """Somewhere to measure."""

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """(work, values [text]) of every piece once, as they are done; values are in the order of the work's texts, NaN
        where `only` leaves a text out."""
        ...

    def close(self) -> None:
        """Let go of what the engine holds."""
        ...


def by_span(works: Iterable[Work]) -> Iterator[tuple[tuple[int, int], list[Work]]]:
    """((start, stop), the work on these texts), in the order of texts; within, those that touch early layers first."""
    ordered = sorted(works, key=lambda work: (work.start, work.stop, min(work.unit.layers, default=-1)))
    for span, same in groupby(ordered, key=lambda work: work.span):
        yield span, list(same)


def shares(works: Iterable[Work], rows: int) -> Iterator[list[Work]]:
    """Pieces of work on the same texts, together up to `rows` rows of (unit, text): what one forward pass can mix."""
    for (begin, end), same in by_span(works):
        share: list[Work] = []
        for work in same:
            if share and sum(one.n_texts for one in share) + work.n_texts > max(rows, end - begin):
                yield share
                share = []
            share.append(work)
        yield share


class LocalEngine:
    """This process."""

    def __init__(self, runner: Runner):
        self.runner = runner
        self._rows_per_second = 0.0

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """See `Engine`."""
        for span, same in by_span(works):
            self.runner.prepare([work.unit.plan for work in same], span)
            done = 0
            while done < len(same):
                share = next(shares(same[done:], self._rows(span)))
                done += len(share)
                begun = time.monotonic()
                values = self.runner.values([work.unit.plan for work in share], span, [work.only for work in share])
                n_rows = sum(work.n_texts for work in share)
                self._rows_per_second = n_rows / max(1e-9, time.monotonic() - begun)
                yield from zip(share, values, strict=True)

    def _rows(self, span: tuple[int, int]) -> int:
        """Rows of the next share."""
        pass_rows = self.runner.rows(self.runner.order[slice(*span)])
        timely = int(SHARE_SECONDS * self._rows_per_second)
        return min(max(timely, PASSES_AT_ONCE * pass_rows), MOST_PASSES * pass_rows)

    def close(self) -> None:
        """Nothing is held."""
