"""What a plan may keep: a linear's weights, what it reads, a neuron, a dimension, or the largest inputs of many linears.

    entries = every_entry(places, last, seen, grain="column")       # {("11:1229", "neuron"): Candidate}
    order = ordered(entries, shapes)

Beside whole linears (grain "linear", the most that most tools can be told) stand few columns of them, as in LLM.int8's mixed
decomposition (Dettmers et al. 2022): a column that stays takes part in no range, so the step of all the rest shrinks.

A *neuron* is an input of a block's last linear. A *dimension* is its column in all linears that read the stream and its row in
all that write to it, as `quantize` keeps it. "4 columns" of a part are the four inputs with the largest |x| in each such linear
of all blocks; of "every linear", in all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from outlierlens.analyses.quantize_places import Place
from outlierlens.architectures import Neuron
from outlierlens.experiments.plan.cheap import Cheap, standing
from outlierlens.experiments.plan.kept import KeptLinear, merged, n_kept
from outlierlens.experiments.plan.options import Grain
from outlierlens.experiments.plan.result import Entry, What

if TYPE_CHECKING:
    from torch import Tensor

NEURONS = 2  # of each block, those with the largest inputs
DIMENSIONS = 8
COLUMNS: tuple[tuple[int, What], ...] = ((1, "1 column"), (4, "4 columns"), (16, "16 columns"))
EVERY = "every linear"


@dataclass(frozen=True)
class Candidate:
    """What an entry keeps, and what the cheap estimate expects of it.

    Attributes:
        parts: that stay, a linear each.
        promise: what rounding these parts costs by `Cheap`. ratio: the largest value among them over the median.
        at: the place of the largest: a linear, an input and, of weights, an output.
        error: relative squared error of the linears, the mean.
    """

    parts: tuple[KeptLinear, ...]
    promise: float
    ratio: float
    at: tuple[str, int, int | None]
    error: float


def every_entry(
    places: Sequence[Place], last: Sequence[Place], seen: Mapping[Entry, Cheap], *, grain: Grain, bits: int
) -> dict[Entry, Candidate]:
    """All entries, those that the scheme rounds; `last` are the last linears of the blocks' MLPs."""
    found: dict[Entry, Candidate] = {}
    for (name, what), one in seen.items():
        part = KeptLinear(path=name, weights=what == "weights", inputs=what == "inputs", bits=bits)
        found[name, what] = Candidate((part,), one.promise, one.ratio, (name, one.column, one.row), one.relative_error)
    if grain == "column":
        for entry, parts in _columns(places, last, seen):
            found[entry] = _candidate(parts, seen)
    return found


def ordered(found: Mapping[Entry, Candidate], shapes: Mapping[str, tuple[int, int]]) -> list[Entry]:
    """Entries, the most promising first: by turns the next of promise, of promise per weight, of largest over median."""
    price = {entry: max(1, n_kept(merged(one.parts), shapes)) for entry, one in found.items()}
    keys: tuple[Callable[[Entry], float], ...] = (
        lambda entry: -found[entry].promise,
        lambda entry: -found[entry].promise / price[entry],
        lambda entry: -found[entry].ratio,
    )
    turns = zip_longest(*(sorted(found, key=key) for key in keys))
    return list(dict.fromkeys(one for turn in turns for one in turn if one is not None))


def dimension(places: Sequence[Place], dim: int) -> tuple[KeptLinear, ...]:
    """What keeps one dimension of the stream."""
    return tuple(
        KeptLinear(path=one.name, columns=(dim,) if one.reads else (), rows=(dim,) if one.writes else ())
        for one in places
        if one.reads or one.writes
    )


def _columns(
    places: Sequence[Place], last: Sequence[Place], seen: Mapping[Entry, Cheap]
) -> Iterator[tuple[Entry, tuple[KeptLinear, ...]]]:
    tops = {place.name: _largest(place.name, seen) for place in places}
    for place in last:
        for number in tops[place.name].topk(min(NEURONS, len(tops[place.name]))).indices.tolist():
            name = str(Neuron(place.layer, number))
            yield (name, "neuron"), (KeptLinear(path=place.name, columns=(number,)),)
    for dim in _dimensions(places, tops, seen):
        yield (str(dim), "dimension"), dimension(places, dim)
    groups = {EVERY: list(places)} | {
        part: [one for one in places if one.part == part] for part in dict.fromkeys(one.part for one in places)
    }
    for part, group in groups.items():
        for n, what in COLUMNS:
            if all(n < len(tops[one.name]) for one in group):
                yield (
                    (part, what),
                    tuple(
                        KeptLinear(path=one.name, columns=tuple(sorted(tops[one.name].topk(n).indices.tolist())))
                        for one in group
                    ),
                )


def _dimensions(places: Sequence[Place], tops: Mapping[str, "Tensor"], seen: Mapping[Entry, Cheap]) -> list[int]:
    """Those that stand out most in any linear: what it reads of them, or the weights that it writes them with."""
    import torch

    sizes = [standing(tops[one.name]) for one in places if one.reads]
    sizes += [
        standing(seen[one.name, "weights"].rows) for one in places if one.writes and (one.name, "weights") in seen
    ]
    if not sizes:
        return []
    found = torch.stack(sizes).amax(0)
    return found.topk(min(DIMENSIONS, len(found))).indices.tolist()


def _largest(name: str, seen: Mapping[Entry, Cheap]) -> "Tensor":
    """Largest |x| of every input, or of every column of the weights where no inputs are rounded: [in]."""
    return (seen.get((name, "inputs")) or seen[name, "weights"]).columns


def _candidate(parts: tuple[KeptLinear, ...], seen: Mapping[Entry, Cheap]) -> Candidate:
    promise, errors = 0.0, []
    ratio, at = 0.0, (parts[0].path, 0, None)
    for one in parts:
        for what in ("inputs", "weights"):
            if (found := seen.get((one.path, what))) is None:
                continue
            shrunk = found.without(one.columns, one.rows if what == "weights" else ())
            promise += found.promise * (1 - shrunk**2)
            errors.append(found.relative_error)
            if what == "inputs" or (one.path, "inputs") not in seen:
                sizes = standing(found.columns)[list(one.columns)]
                if len(sizes) and float(sizes.max()) > ratio:
                    ratio, at = float(sizes.max()), (one.path, one.columns[int(sizes.argmax())], None)
    return Candidate(parts, promise, ratio, at, sum(errors) / max(1, len(errors)))
