"""Super weights: the single weights behind the largest activations, found on one prompt (Yu et al. 2024), and their trials.

    weights, stopped = super_weights(loaded, stack, "One short text.", limits)
    weights[0].place                                         # "layer 2, [507, 1031]": row j writes, column k is read
    with scaled(loaded, stack, [(2, 507, 1031)], 0.0): ...   # restored bit for bit

In each layer, k is where the MLP's last linear reads its largest |value| and j where it writes its largest. Where both are
above `super_spike`, weight [j, k] joins them. The first such layer's weight is removed and the prompt runs again, until
nothing spikes, or `super_rounds` are removed. A weight without which more than `super_left` of the layer's largest output is
left is put back, and its layer is left alone: where a whole column writes, no single weight is behind the spike.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from outlierlens.ablation.study import Condition, Measurement, Progress, Study
from outlierlens.architectures import BoundStack
from outlierlens.architectures.bind import linear_paths
from outlierlens.data.texts import Batch, Texts
from outlierlens.errors import BadInput
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.hooks import edited_calls, valid_tokens
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import TextReading
from outlierlens.results.rows import Row
from outlierlens.tasks.base import Task
from outlierlens.view.section import Count, Share

if TYPE_CHECKING:
    from torch import Tensor

Place = tuple[int, int, int]  # layer, row, column
Use = Callable[[int, "Tensor", "Tensor"], "Tensor | None"]
FACTORS = (0.5, 1.5, 2.0, 3.0)
ALONE = 4  # weights that are tried each alone
DRAWS = 3  # random sets


@dataclass(frozen=True, kw_only=True)
class SuperWeight(Row):
    """One weight that was found and removed."""

    layer: int
    row: int
    """row: the dimension that it writes"""
    column: int
    """column: the neuron that it reads"""
    weight: float
    rank: Annotated[int, Count]
    """rank: of |weight| in its matrix, 1 = largest"""
    read: float
    """input: the spike that the layer reads, when the weight's turn came"""
    written: float
    """output: the spike that the layer writes"""
    token: str
    """token: where the output spikes"""
    position: int
    share: Annotated[float, Share]
    """share: of that output that this weight alone makes"""
    remaining: float
    """left: largest |output| of the layer once the weight is removed"""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"layer {self.layer}, [{self.row}, {self.column}]"


class Spike(NamedTuple):
    """Where the last linear of a layer reads and writes its largest |value| on the prompt."""

    read: float = 0.0
    column: int = 0
    written: float = 0.0
    row: int = 0
    position: int = 0  # token of the output
    beside: float = 0.0  # input at that column and that token


@dataclass(frozen=True, kw_only=True)
class WeightTrial(Measurement):
    """The task with weights changed."""

    n_restored: Annotated[int | None, Count] = None
    """put back: super activations, in all texts"""


# --- the last linear of every MLP ------------------------------------------------------------------------------------


@temporary
def last_linears(loaded: LoadedModel, stack: BoundStack, use: Use) -> Iterator[None]:
    """Show input and output of each layer's last linear, [batch, token, dim], to `use(layer, read, written)`.

    What it returns, if anything, goes on instead of the output. A stack without such modules shows nothing.
    """
    modules = [loaded.model.get_submodule(path) for path in linear_paths(stack) or ()]
    reads: dict[int, Tensor] = {}

    def turned(values: "Tensor") -> "Tensor":
        # XLNet blocks carry [token, batch, dim].
        return values.transpose(0, 1) if stack.stack.token_first else values

    def keep(layer: int, read: "Tensor") -> "Tensor":
        reads[layer] = read
        return read

    def show(layer: int, written: "Tensor") -> "Tensor":
        changed = use(layer, turned(reads.pop(layer)), turned(written))
        return written if changed is None else turned(changed)

    before, after = ({one: partial(look, i) for i, one in enumerate(modules)} for look in (keep, show))
    with edited_calls(loaded.model, before, after):
        yield


def entries(loaded: LoadedModel, stack: BoundStack, layer: int) -> "Tensor":
    """The last linear's weight of a layer as [row, column], a view: row j writes dimension j, column k reads input k."""
    weight = loaded.model.get_parameter(_weight(stack, layer)).detach()
    return weight.T if stack.stack.weight_is_in_by_out else weight


def _weight(stack: BoundStack, layer: int) -> str:
    paths = linear_paths(stack)
    assert paths is not None
    return f"{paths[layer]}.weight"


@temporary
def scaled(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place], factor: float) -> Iterator[None]:
    """Multiply the weights at `places` by `factor`, and put the old values back bit for bit."""
    with ExitStack() as undo:
        settable = Settable(undo, loaded.model)
        for layer, row, column in places:
            value = entries(loaded, stack, layer)[row, column] * factor if factor else 0.0
            place = (column, row) if stack.stack.weight_is_in_by_out else (row, column)
            settable.set_values(_weight(stack, layer), place, value)
        yield


def random_places(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place], *, seed: int) -> list[Place]:
    """As many weights as `places` in the same layers, drawn with `seed` from all others."""
    random = np.random.default_rng([seed, 53])
    found: list[Place] = []
    for layer, _, _ in places:
        rows, columns = entries(loaded, stack, layer).shape
        while (one := (layer, int(random.integers(rows)), int(random.integers(columns)))) in (*places, *found):
            if rows * columns <= len(places) + len(found):
                raise BadInput(f"layer {layer} has only {rows * columns} weights: too few to draw others from")
        found.append(one)
    return found


def largest_places(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place]) -> list[Place]:
    """As many weights as `places` in the same layers: those of largest |weight| that are not among them."""
    found: list[Place] = []
    for layer in dict.fromkeys(place[0] for place in places):
        mine = [place for place in places if place[0] == layer]
        weight = entries(loaded, stack, layer)
        top = weight.abs().float().reshape(-1).topk(min(2 * len(mine), weight.numel())).indices.tolist()
        others = [(layer, index // weight.shape[1], index % weight.shape[1]) for index in top]
        found += [place for place in others if place not in mine][: len(mine)]
    return found


# --- the search ------------------------------------------------------------------------------------------------------


def super_weights(
    loaded: LoadedModel, stack: BoundStack, prompt: str, limits: Mapping[str, float], *, max_length: int = 128
) -> tuple[tuple[SuperWeight, ...], str]:
    """(the weights in the order they were removed, why the search ended); the model is as before afterwards.

    Args:
        limits: the thresholds "super_spike", "super_left" and "super_rounds".

    Raises:
        BadInput: the prompt has no token, or the model reads no text.
    """
    spike, rounds = limits["super_spike"], int(limits["super_rounds"])
    reading = TextReading(loaded, max_length)
    batch = next(reading.batches((prompt,), batch_size=1), None)
    if batch is None:
        raise BadInput(f"the tokenizer makes no token of the prompt {prompt!r}; give another")
    tokens = reading.words(reading.sides(batch)[stack.name][0][0].tolist())
    found: list[SuperWeight] = []
    refused: dict[int, str] = {}
    now = _spikes(loaded, stack, reading, batch)
    while True:
        large = [layer for layer, one in enumerate(now) if abs(one.read) > spike and abs(one.written) > spike]
        large = [layer for layer in large if layer not in refused]
        if not large or len(found) == rounds:
            break
        layer, top = large[0], now[large[0]]
        removed, place = places_of(found), (layer, top.row, top.column)
        if place in removed:
            refused[layer] = f"{layer} ([{top.row}, {top.column}] is removed already)"
            continue
        with scaled(loaded, stack, removed, 0.0):
            sizes = entries(loaded, stack, layer)
            value = sizes[top.row, top.column].clone()
            rank = int((sizes.abs() > value.abs()).sum()) + 1
            with scaled(loaded, stack, [place], 0.0):
                after = _spikes(loaded, stack, reading, batch)
        left = abs(after[layer].written)
        if left > limits["super_left"] * abs(top.written):
            refused[layer] = f"{layer} ({left / abs(top.written):.0%} is left without [{top.row}, {top.column}])"
            continue
        now = after
        found.append(SuperWeight(
            layer=layer, row=top.row, column=top.column, weight=float(value), rank=rank, read=top.read, written=top.written,
            token=tokens[top.position], position=top.position, share=float(value) * top.beside / top.written, remaining=left,
        ))  # fmt: skip
    stopped = f"no layer reads and writes above {spike:g}"
    if large:
        layers = ", ".join(map(str, large))
        stopped = f"{rounds} weights are removed, the limit; layers {layers} still spike above {spike:g}"
    elif refused:
        stopped = f"what still spikes above {spike:g} is no single weight's doing: layer {', '.join(refused.values())}"
    return tuple(found), stopped


def places_of(weights: Sequence[SuperWeight]) -> list[Place]:
    """Where they are."""
    return [(one.layer, one.row, one.column) for one in weights]


def _spikes(loaded: LoadedModel, stack: BoundStack, reading: TextReading, batch: Batch) -> list[Spike]:
    """One forward pass on the prompt: the spike of each layer."""
    found = [Spike()] * stack.n_layers

    def use(layer: int, read: "Tensor", written: "Tensor") -> None:
        into, out = (values.reshape(*batch.valid.shape, -1)[batch.valid].float() for values in (read, written))
        (at, column), (position, row) = (
            divmod(int(values.abs().argmax()), values.shape[1]) for values in (into, out)
        )  # [token, …]
        sizes = (float(one) for one in (into[at, column], out[position, row], into[position, column]))
        inner, outer, beside = sizes
        found[layer] = Spike(inner, column, outer, row, position, beside)

    with last_linears(loaded, stack, use):
        reading(batch)
    return found


# --- trials ----------------------------------------------------------------------------------------------------------


class SuperActivations:
    """What the intact model writes at the rows of super weights, call by call, to be put back where it was above `spike`."""

    def __init__(self, loaded: LoadedModel, stack: BoundStack, spike: float):
        self.loaded, self.stack, self.spike = loaded, stack, spike
        self.kept: dict[tuple[int, int], list[Tensor]] = defaultdict(
            list
        )  # by layer and row, of each call [batch, token]

    @temporary
    def recorded(self, places: Sequence[Place]) -> Iterator[None]:
        """Keep what is written inside."""
        rows = {place[:2] for place in places}

        def use(layer: int, _: "Tensor", written: "Tensor") -> None:
            for at, row in rows:
                if at == layer:
                    self.kept[layer, row].append(written[..., row].clone())

        with last_linears(self.loaded, self.stack, use):
            yield

    @temporary
    def restored(self, places: Sequence[Place]) -> Iterator[Counter[str]]:
        """Inside, where the same calls follow, the weights at `places` are 0; yields how many activations are put back."""
        import torch

        calls, rows = Counter[Any](), {place[:2] for place in places}
        with ExitStack() as inside:
            inside.enter_context(scaled(self.loaded, self.stack, places, 0.0))
            mask_of = inside.enter_context(valid_tokens(self.loaded.model))

            def use(layer: int, _: "Tensor", written: "Tensor") -> "Tensor | None":
                changed = written.clone()
                for row in (row for at, row in rows if at == layer):
                    before = self.kept[layer, row][calls[layer]]
                    spiked = before.abs() > self.spike
                    if written.ndim == 3:
                        spiked &= mask_of(written)
                    calls["restored"] += int(spiked.sum())
                    changed[..., row] = torch.where(spiked, before, written[..., row])
                calls[layer] += 1
                return changed

            inside.enter_context(last_linears(self.loaded, self.stack, use))
            yield calls


def trials(
    activations: SuperActivations, weights: Sequence[SuperWeight], task: Task, texts: Texts, *,
    seed: int = 0, progress: Progress | None = None,
) -> tuple[WeightTrial, ...]:  # fmt: skip
    """What `task` says of `texts`, the intact model first (Yu et al. 2024, Table 1).

    zeroed: the weights are 0; of several, also the first few each alone. restored: they are 0, but their super activations are
    put back. × f: multiplied by `FACTORS`. random: as many weights of the same layers, `DRAWS` times. largest: the largest
    of the others there.
    """
    loaded, stack, places = activations.loaded, activations.stack, places_of(weights)
    with activations.recorded(places):
        study = Study(loaded, task, texts, {"stack": stack.name, "seed": seed}, progress=progress)

    def condition(label: str, some: list[Place], factor: float = 0.0) -> Condition:
        enter: Callable[[], Any] = partial(scaled, loaded, stack, some, factor)
        more = None
        if label.startswith("restored"):
            enter, more = partial(activations.restored, some), lambda calls: {"restored": calls["restored"]}
        return Condition(label.partition(" ")[0], label, {}, enter, key=label, more=more)

    alone = places[:ALONE] if len(places) > 1 else []
    wanted = [("", places), *((f" {one[0]} [{one[1]}, {one[2]}]", [one]) for one in alone)]
    conditions = [condition(f"{what}{where}", some) for where, some in wanted for what in ("zeroed", "restored")]
    conditions += [condition(f"× {factor:g}", places, factor) for factor in FACTORS]
    for draw in range(DRAWS):
        conditions.append(condition(f"random {draw}", random_places(loaded, stack, places, seed=seed + draw)))
    conditions.append(condition("largest", largest_places(loaded, stack, places)))
    with study:
        done = study.measure(conditions)
    return tuple(study.row(one, WeightTrial, n_restored=one.more.get("restored")) for one in (study.intact, *done))
