"""Super weights: the single weights behind the largest activations, found on one prompt (Yu et al. 2024), and their trials.

    weights, stopped = super_weights(loaded, stack, "One short text.", limits)
    weights[0].place                                         # "layer 2, [507, 1031]": row j writes, column k is read
    with scaled(loaded, stack, [(2, 507, 1031)], 0.0): ...   # restored bit for bit

An expert's weight is (layer, expert, row, column). In each MLP, an expert's too, k is where the last linear reads its largest
|value| and j where it writes its largest. Where both are above `super_spike`, weight [j, k] joins them. The first such MLP's
weight is removed and the prompt runs again, until nothing spikes, or `super_rounds` are removed. A weight without which more
than `super_left` of the MLP's largest output is left is put back, and its MLP is left alone: where a whole column writes, no
single weight is behind the spike.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from outlierlens.ablation.study import Condition, Measurement, Progress, Study
from outlierlens.architectures import NO_EXPERT, BoundStack, LastLinear, last_linears, live_parameters
from outlierlens.data.texts import Batch, Texts
from outlierlens.errors import BadInput
from outlierlens.models.changes import SettableParameters, temporary
from outlierlens.models.experts import ExpertCall, tapped_experts
from outlierlens.models.hooks import edited_calls, running_masks, valid_tokens
from outlierlens.models.inputs import TextReading
from outlierlens.models.load import LoadedModel
from outlierlens.results.rows import Row
from outlierlens.tasks.base import Task
from outlierlens.view.section import Count, Share

if TYPE_CHECKING:
    from torch import Tensor

Place = tuple[int, ...]  # layer, row, column; of an expert layer, expert, row, column
Use = Callable[[LastLinear, ExpertCall], "Tensor | None"]
FACTORS = (0.5, 1.5, 2.0, 3.0)
ALONE = 4  # weights that are tried each alone
DRAWS = 3  # random sets


@dataclass(frozen=True, kw_only=True)
class SuperWeight(Row):
    """One weight that was found and removed."""

    layer: int
    expert: int | None = None
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
    """output: the spike that the layer writes, of an expert before its router's weight"""
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
        expert = "" if self.expert is None else f"expert {self.expert}, "
        return f"layer {self.layer}, {expert}[{self.row}, {self.column}]"


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
def tapped_mlps(loaded: LoadedModel, stack: BoundStack, use: Use) -> Iterator[None]:
    """Show what each last linear reads and gives to `use(mlp, call)`; what it returns, if anything, goes on in place of that.

    Experts are shown with their tokens, all others [batch, token, dim] of all of them.

    Raises:
        BadInput: see `last_linears`; or in a pass, whose tokens an expert reads cannot be told.
    """
    mlps = last_linears(stack, live_parameters(loaded.model))
    reads: dict[LastLinear, Tensor] = {}

    def turned(values: "Tensor") -> "Tensor":
        # XLNet blocks carry [token, batch, dim].
        return values.transpose(0, 1) if stack.stack.token_first else values

    def keep(one: LastLinear, read: "Tensor") -> "Tensor":
        reads[one] = read
        return read

    def show(one: LastLinear, written: "Tensor") -> "Tensor":
        changed = use(one, ExpertCall(NO_EXPERT, turned(reads.pop(one)), turned(written)))
        return written if changed is None else turned(changed)

    def look(some: Mapping[int, LastLinear], call: ExpertCall) -> "Tensor | None":
        one = some[call.expert] if call.expert in some else next(iter(some.values()))
        if call.tokens is None:
            raise BadInput(f"{loaded.name}: whose tokens {one.path} reads cannot be told")
        return use(one, call)

    before, after = (
        {loaded.model.get_submodule(one.path): partial(shown, one) for one in mlps if one.expert == NO_EXPERT}
        for shown in (keep, show)
    )
    experts = defaultdict[str, dict[int, LastLinear]](dict)
    for one in mlps:
        if one.expert != NO_EXPERT:
            experts[one.param.name][one.expert] = one
    with (
        edited_calls(loaded.model, before, after),
        tapped_experts(loaded.model, {name: partial(look, some) for name, some in experts.items()}),
    ):
        yield


def _mlp(loaded: LoadedModel, stack: BoundStack, layer: int, expert: int = NO_EXPERT) -> LastLinear:
    mlps = last_linears(stack, live_parameters(loaded.model))
    return next(one for one in mlps if (one.layer, one.expert) == (layer, expert))


def entries(loaded: LoadedModel, stack: BoundStack, layer: int, expert: int = NO_EXPERT) -> "Tensor":
    """A last linear's weight as [row, column], a view: row j writes dimension j, column k reads input k."""
    one = _mlp(loaded, stack, layer, expert)
    matrix: Tensor = one.matrix(live_parameters(loaded.model)[one.param.name].detach())
    return matrix


@temporary
def scaled(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place], factor: float) -> Iterator[None]:
    """Multiply the weights at `places` by `factor`, and put the old values back bit for bit."""
    with ExitStack() as undo:
        settable = SettableParameters(undo, loaded.model)
        for place in places:
            *mlp, row, column = place
            one = _mlp(loaded, stack, *mlp)
            value = entries(loaded, stack, *mlp)[row, column] * factor if factor else 0.0
            at = (column, row) if one.param.axis == -2 else (row, column)
            settable.set_values(one.param.name, (one.expert, *at) if one.packed else at, value)
        yield


def random_places(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place], *, seed: int) -> list[Place]:
    """The same number of weights as `places` in the same last linears, drawn with `seed` from all others."""
    random = np.random.default_rng([seed, 53])
    found: list[Place] = []
    for place in places:
        mlp = place[:-2]
        rows, columns = entries(loaded, stack, *mlp).shape
        while (one := (*mlp, int(random.integers(rows)), int(random.integers(columns)))) in (*places, *found):
            if rows * columns <= len(places) + len(found):
                raise BadInput(f"layer {place[0]} has only {rows * columns} weights: too few to draw others from")
        found.append(one)
    return found


def largest_places(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place]) -> list[Place]:
    """The same number of weights as `places` in the same last linears: those of largest |weight| that are not among them."""
    found: list[Place] = []
    for mlp in dict.fromkeys(place[:-2] for place in places):
        mine = [place for place in places if place[:-2] == mlp]
        weight = entries(loaded, stack, *mlp)
        top = weight.abs().float().reshape(-1).topk(min(2 * len(mine), weight.numel())).indices.tolist()
        others: list[Place] = [(*mlp, index // weight.shape[1], index % weight.shape[1]) for index in top]
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
    refused: dict[LastLinear, str] = {}
    now = _spikes(loaded, stack, reading, batch)
    while True:
        large = [mlp for mlp, one in now.items() if abs(one.read) > spike and abs(one.written) > spike]
        large = [mlp for mlp in large if mlp not in refused]
        if not large or len(found) == rounds:
            break
        mlp, top = large[0], now[large[0]]
        at = (mlp.layer,) if mlp.expert == NO_EXPERT else (mlp.layer, mlp.expert)
        removed, place = places_of(found), (*at, top.row, top.column)
        if place in removed:
            refused[mlp] = f"{mlp.row} ([{top.row}, {top.column}] is removed already)"
            continue
        with scaled(loaded, stack, removed, 0.0):
            sizes = entries(loaded, stack, *at)
            value = sizes[top.row, top.column].clone()
            rank = int((sizes.abs() > value.abs()).sum()) + 1
            with scaled(loaded, stack, [place], 0.0):
                after = _spikes(loaded, stack, reading, batch)
        left = abs(after.get(mlp, Spike()).written)
        if left > limits["super_left"] * abs(top.written):
            refused[mlp] = f"{mlp.row} ({left / abs(top.written):.0%} is left without [{top.row}, {top.column}])"
            continue
        now = after
        found.append(SuperWeight(
            layer=mlp.layer, expert=None if mlp.expert == NO_EXPERT else mlp.expert, row=top.row, column=top.column,
            weight=float(value), rank=rank, read=top.read, written=top.written, token=tokens[top.position],
            position=top.position, share=float(value) * top.beside / top.written, remaining=left,
        ))  # fmt: skip
    stopped = f"no layer reads and writes above {spike:g}"
    if large:
        layers = ", ".join(mlp.row for mlp in large)
        stopped = f"{rounds} weights are removed, the limit; layers {layers} still spike above {spike:g}"
    elif refused:
        stopped = f"no single weight makes the remaining spikes above {spike:g}: layer {', '.join(refused.values())}"
    return tuple(found), stopped


def places_of(weights: Sequence[SuperWeight]) -> list[Place]:
    """Where they are."""
    return [(one.layer, *(() if one.expert is None else (one.expert,)), one.row, one.column) for one in weights]


def _spikes(loaded: LoadedModel, stack: BoundStack, reading: TextReading, batch: Batch) -> dict[LastLinear, Spike]:
    """One forward pass on the prompt: the spike of each MLP that has a token, by layer."""
    import torch

    found: dict[LastLinear, Spike] = {}
    places = torch.arange(batch.valid.shape[1], device=batch.valid.device)

    def use(one: LastLinear, call: ExpertCall) -> None:
        of = places if call.tokens is None else call.tokens  # the prompt is the only text
        kept = batch.valid[0][of]
        into, out = (values.reshape(len(of), -1)[kept].float() for values in (call.read, call.given))  # [token, …]
        if not len(into):
            return
        (at, column), (token, row) = (divmod(int(values.abs().argmax()), values.shape[1]) for values in (into, out))
        inner, outer, beside = (float(value) for value in (into[at, column], out[token, row], into[token, column]))
        found[one] = Spike(inner, column, outer, row, int(of[kept][token]), beside)

    with tapped_mlps(loaded, stack, use):
        reading(batch)
    return dict(sorted(found.items(), key=lambda item: (item[0].layer, item[0].expert)))


# --- trials ----------------------------------------------------------------------------------------------------------


class SuperActivations:
    """What the intact model writes at the rows of super weights, call by call, to be put back where it was above `spike`."""

    def __init__(self, loaded: LoadedModel, stack: BoundStack, spike: float):
        self.loaded, self.stack, self.spike = loaded, stack, spike
        # By MLP, row and pass [batch, token]; of an expert [token] of the flat batch, 0 where it has none.
        self.kept: dict[tuple[LastLinear, int, int], Tensor] = {}

    def _rows(self, places: Sequence[Place]) -> dict[LastLinear, list[int]]:
        rows = defaultdict[LastLinear, list[int]](list)
        for place in dict.fromkeys((*place[:-1], 0) for place in places):
            rows[_mlp(self.loaded, self.stack, *place[:-2])].append(place[-2])
        return rows

    @temporary
    def _in_passes(self, use: "Callable[[LastLinear, ExpertCall, int], Tensor | None]") -> Iterator[None]:
        """Show MLPs as `tapped_mlps` does, with a number that each pass has in the same way."""
        passes = Counter[str]()

        def count(output: Any) -> Any:
            passes["done"] += 1
            return output

        def numbered(one: LastLinear, call: ExpertCall) -> "Tensor | None":
            return use(one, call, passes["done"])

        first = self.loaded.model.get_submodule(self.stack.blocks[0])
        with (
            tapped_mlps(self.loaded, self.stack, numbered),
            edited_calls(self.loaded.model, {}, {first: count}),
        ):
            yield

    @temporary
    def recorded(self, places: Sequence[Place]) -> Iterator[None]:
        """Keep what is written inside."""
        rows = self._rows(places)

        def use(one: LastLinear, call: ExpertCall, number: int) -> None:
            for row in rows.get(one, ()):
                values = call.given[..., row].clone()
                if call.tokens is not None:
                    values = values.new_zeros(call.n_tokens).index_copy(0, call.tokens, values)
                self.kept[one, row, number] = values

        with self._in_passes(use):
            yield

    @temporary
    def restored(self, places: Sequence[Place]) -> Iterator[Counter[str]]:
        """Inside, where the same calls follow, the weights at `places` are 0; yields how many activations are put back."""
        import torch

        calls, rows = Counter[str](), self._rows(places)
        with ExitStack() as inside:
            inside.enter_context(scaled(self.loaded, self.stack, places, 0.0))
            mask_of = inside.enter_context(valid_tokens(self.loaded.model))
            masks = inside.enter_context(running_masks(self.loaded.model))

            def use(one: LastLinear, call: ExpertCall, number: int) -> "Tensor | None":
                changed = call.given.clone()
                for row in rows.get(one, ()):
                    before = self.kept.get((one, row, number))
                    if before is None:  # an expert that no token reached in the intact model
                        continue
                    before = before if call.tokens is None else before[call.tokens]
                    spiked = before.abs() > self.spike
                    if call.given.ndim == 3:
                        spiked &= mask_of(call.given)
                    for mask in masks if call.tokens is not None else ():
                        spiked &= mask.bool().flatten()[call.tokens]
                    calls["restored"] += int(spiked.sum())
                    changed[..., row] = torch.where(spiked, before, call.given[..., row])
                return changed if one in rows else None

            inside.enter_context(self._in_passes(use))
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
    wanted = [("", places), *((f" {':'.join(map(str, one[:-2]))} [{one[-2]}, {one[-1]}]", [one]) for one in alone)]
    conditions = [condition(f"{what}{where}", some) for where, some in wanted for what in ("zeroed", "restored")]
    conditions += [condition(f"× {factor:g}", places, factor) for factor in FACTORS]
    for draw in range(DRAWS):
        conditions.append(condition(f"random {draw}", random_places(loaded, stack, places, seed=seed + draw)))
    conditions.append(condition("largest", largest_places(loaded, stack, places)))
    with study:
        done = study.measure(conditions)
    return tuple(study.row(one, WeightTrial, n_restored=one.more.get("restored")) for one in (study.intact, *done))
