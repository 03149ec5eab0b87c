"""The guard: no mask it returns breaks the constraint, budgets are met exactly, and it is cheapest where that is proven."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import prune

from architectures import FAMILIES, build
from outlierlens.analyses.prune_guard import (
    Cells,
    PruningState,
    Removal,
    guarded_masks,
    per_dim_off,
    same_position_guard,
)
from outlierlens.architectures import BoundStack, Param, Stack
from outlierlens.errors import BadInput


def cells_of(n_layers: int, width: int, rule: Removal, *, norm: bool, row: tuple[int, ...] = (3,)) -> Cells:
    """A stream whose blocks end in a norm (scale and bias), or in a linear with rows of `row` weights, by layer."""
    stack = Stack(
        blocks="b.{layer}", norm_site="stream" if norm else "read", last_norm="n" if norm else "", last_linear=("l",)
    )
    layers = range(n_layers)
    scale = tuple((Param(f"b.{i}.n.weight") if norm else Param(f"b.{i}.l.weight", axis=-2),) for i in layers)
    bias = tuple((Param(f"b.{i}.n.bias"),) if norm else () for i in layers)
    bound = BoundStack(stack, "", tuple(f"b.{i}" for i in layers), scale, bias, scale, scale, (), ())
    shapes: dict[str, tuple[int, ...]] = {}
    for i in layers:
        shapes[scale[i][0].name] = (width,) if norm else (width, row[i % len(row)])
        if norm:
            shapes[bias[i][0].name] = (width,)
    return Cells.of(bound, shapes, rule)


def shapes_of(cells: Cells) -> dict[str, tuple[int, ...]]:
    return {
        p.name: (cells.width,) if cells.bound.ends_in_norm else (cells.width, int(cells.total[layer]))
        for layer, params in enumerate(cells.params)
        for p in params
    }


def broken_by(cells: Cells, gone: dict[str, np.ndarray]) -> list[int]:
    """Positions that are removed in too many layers, counted by hand: an oracle that shares nothing with the guard."""
    bad = []
    for dim in range(cells.width):
        layers = 0
        for layer, params in enumerate(cells.params):
            values = np.concatenate([np.atleast_1d(np.moveaxis(gone[p.name], p.axis, 0)[dim]).ravel() for p in params])
            layers += int(values.sum() >= cells.needed[layer])
        if layers >= cells.limit:
            bad.append(dim)
    return bad


def draw_scores(cells: Cells, seed: int, few: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = shapes_of(cells) | {"elsewhere": (5,)}
    return {n: random.integers(0, 3, s).astype(float) if few else random.random(s) for n, s in shapes.items()}


@settings(max_examples=40)
@given(data=st.data())
def test_no_mask_breaks_the_constraint_and_budgets_are_met(data: Any) -> None:
    norm = data.draw(st.booleans())
    rule = Removal(
        row_fraction=data.draw(st.sampled_from((1.0, 0.9, 0.5, 0.3))),
        min_layer_fraction=data.draw(st.sampled_from((0.5, 0.25, 1.0, 0.01))),
    )
    row = data.draw(st.sampled_from(((3,), (1,), (4,), (2, 5))))
    cells = cells_of(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)), rule, norm=norm, row=row)
    scores = draw_scores(cells, data.draw(st.integers(0, 999)), few=data.draw(st.booleans()))
    pruned = (
        {n: np.random.default_rng(1).random(v.shape) < 0.1 for n, v in scores.items()}
        if data.draw(st.booleans())
        else {}
    )
    n = sum(v.size for v in scores.values()) - sum(int(v.sum()) for v in pruned.values())
    budget = data.draw(st.integers(0, n))
    protect = data.draw(st.lists(st.integers(0, cells.width - 1), max_size=2, unique=True))
    nothing = {name: pruned.get(name, np.zeros(v.shape, bool)) for name, v in scores.items()}
    state = PruningState(pruned)
    if broken_by(cells, nothing):
        with pytest.raises(BadInput, match="is already removed in"):
            guarded_masks(scores, n, [cells], protect=protect, state=state)
        return
    found, most = None, n
    try:
        found = guarded_masks(scores, budget, [cells], protect=protect, state=state)
    except BadInput as error:  # no larger budget is possible, and the largest one it names is
        most = int(str(error).split()[0].replace(",", ""))
    if found is None:
        assert most < budget
        with pytest.raises(BadInput, match=f"^{most:,} weights can be pruned within the constraint, the budget is"):
            guarded_masks(scores, most + 1, [cells], protect=protect, state=state)
        budget = most
        found = guarded_masks(scores, budget, [cells], protect=protect, state=state)
    gone = {name: ~mask for name, mask in found.masks.items()}
    assert not broken_by(cells, gone)
    new = {name: values & ~nothing[name] for name, values in gone.items()}
    assert sum(int(values.sum()) for values in new.values()) == budget == found.budget
    assert all(values[nothing[name]].all() for name, values in gone.items())
    for params in cells.params:
        for param in params:
            assert not np.moveaxis(new[param.name], param.axis, 0)[protect].any()
    assert found.score == pytest.approx(sum(float(scores[name][values].sum()) for name, values in new.items()))
    if not protect:
        assert found.score_lost >= -1e-9
        assert bool(found.swaps) == bool(found.broken_without["model"])


@settings(max_examples=12)
@given(seed=st.integers(0, 999), norm=st.booleans(), budget=st.integers(0, 8))
def test_masks_are_the_cheapest_where_a_cell_needs_all_its_weights(seed: int, norm: bool, budget: int) -> None:
    cells = cells_of(2, 2, Removal(), norm=norm, row=(2,))
    random = np.random.default_rng(seed)
    scores = {name: random.integers(0, 5, shape).astype(float) for name, shape in shapes_of(cells).items()}
    names, flat = list(scores), np.concatenate([v.ravel() for v in scores.values()])
    best = None
    for taken in combinations(range(len(flat)), budget):
        gone = np.zeros(len(flat), bool)
        gone[list(taken)] = True
        parts = np.split(gone, np.cumsum([scores[n].size for n in names])[:-1])
        if not broken_by(cells, {n: part.reshape(scores[n].shape) for n, part in zip(names, parts, strict=True)}):
            best = min(flat[gone].sum(), best if best is not None else np.inf)
    if best is None:
        with pytest.raises(BadInput, match="can be pruned within the constraint"):
            guarded_masks(scores, budget, [cells])
    else:
        assert guarded_masks(scores, budget, [cells]).score == best


def test_the_largest_possible_budget_is_possible_where_rows_differ_in_length() -> None:
    cells = cells_of(2, 1, Removal(row_fraction=0.5, min_layer_fraction=1.0), norm=False, row=(2, 6))
    scores = {name: np.ones(shape) for name, shape in shapes_of(cells).items()}
    scores["b.0.l.weight"] *= 0.5  # magnitude alone would empty the short row first, and then keep 4 of the long one
    # One layer may lose the position: all 6 of the long row, and less than 1 of the 2 of the short one.
    assert guarded_masks(scores, 6, [cells]).budget == 6
    with pytest.raises(BadInput, match=r"^6 weights can be pruned within the constraint, the budget is 7"):
        guarded_masks(scores, 7, [cells])


def test_what_a_guard_costs_by_hand() -> None:
    cells = cells_of(2, 2, Removal(), norm=False, row=(2,))  # needed: 1 of 2 layers
    scores = {"b.0.l.weight": np.array([[1.0, 2.0], [7.0, 8.0]]), "b.1.l.weight": np.array([[5.0, 9.0], [6.0, 4.0]])}
    found = guarded_masks(scores, 3, [cells])
    # Without a guard 1, 2 and 4 go, which empties position 0 of layer 0; with it 2 stays and 5 goes.
    assert found.broken_without == {"model": (0,)}
    assert (found.swaps, found.score, found.score_lost) == (1, 10.0, 3.0)
    assert found.masks["b.0.l.weight"].tolist() == [[False, True], [True, True]]
    assert found.says() == "3 weights pruned; 1 swapped to save 1 positions, for 3 more of the score (42.86%)"
    easy = guarded_masks(scores, 1, [cells])
    assert easy.says() == "1 weights pruned; the constraint held without a swap"
    assert guarded_masks(scores, 0.25, [cells]).budget == 2


@pytest.mark.parametrize(
    ("scores", "budget", "message"),
    [
        ({}, 1, "no weights to prune"),
        ({"a": np.array([1.0, np.nan])}, 1, "a score is NaN"),
        ({"a": np.ones(2)}, 3, "the budget is 3; it must be at most 2"),
        ({"a": np.ones(2)}, -1, "the budget is -1"),
        ({"a": np.ones(2)}, 1.5, r"it must be a share in \[0, 1\]"),
        ({"a": np.ones(2)}, float("nan"), r"it must be a share in \[0, 1\]"),
        ({"a": np.array([1.0, np.inf])}, 2, "1 weights can be pruned"),
    ],
)
def test_what_a_guard_refuses(scores: Any, budget: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        guarded_masks(scores, budget, [cells_of(2, 2, Removal(), norm=True)])


def last_weights(model: Any, guard: Any) -> list[tuple[Any, str]]:
    names = [param.name.rpartition(".") for layer in guard.cells[0].params for param in layer]
    return [(model.get_submodule(path), leaf) for path, _, leaf in names]


def zeros(parameters: list[tuple[Any, str]]) -> int:
    return sum(int((getattr(module, f"{name}_mask") == 0).sum()) for module, name in parameters)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_global_pruning_under_guard(family: str) -> None:
    torch.manual_seed(0)
    model = build(FAMILIES[family])
    guard = same_position_guard(model)
    parameters = last_weights(model, guard)
    with torch.no_grad():  # position 5 would be the first to go, everywhere
        for params in guard.cells[0].params:
            for param in params:
                path, _, leaf = param.name.rpartition(".")
                weights = getattr(model.get_submodule(path), leaf)
                weights.moveaxis(param.axis, 0)[5] *= 1e-3
    total = sum(getattr(module, name).numel() for module, name in parameters)
    alone = build(FAMILIES[family])
    alone.load_state_dict(model.state_dict())
    without = last_weights(alone, guard)
    prune.global_unstructured(without, pruning_method=prune.L1Unstructured, amount=0.4)
    assert same_position_guard(alone).broken() == {"model": (5,)}

    found = guard.prune(parameters, 0.4)
    assert guard.broken() == {"model": ()}
    assert zeros(parameters) == zeros(without) == round(0.4 * total)
    assert found.broken_without == {"model": (5,)}
    # Three layers, fewer than two may lose it: one weight stays in each of two.
    assert found.swaps == 2
    # All else is as torch has it: what it takes and the guard keeps is two weights of position 5.
    masks = ([getattr(module, f"{name}_mask") for module, name in some] for some in (parameters, without))
    assert sum(int((ours > theirs).sum()) for ours, theirs in zip(*masks, strict=True)) == 2

    more = total // 9
    scores = {one: torch.rand_like(getattr(*one)) for one in parameters}
    guard.prune(parameters, more, scores)
    assert guard.broken() == {"model": ()}
    assert zeros(parameters) == round(0.4 * total) + more
    assert model(torch.arange(4)[None]).last_hidden_state.isfinite().all()


@settings(max_examples=5)
@given(seed=st.integers(0, 99), amount=st.floats(0.05, 0.9), steps=st.integers(1, 3))
def test_pruning_one_tensor_after_the_other(seed: int, amount: float, steps: int) -> None:
    torch.manual_seed(seed)
    guard = same_position_guard(TINY["llama"](), Removal(row_fraction=0.5))
    parameters = last_weights(guard.model, guard)
    messages: list[str] = []
    for _ in range(steps):
        for module, name in parameters:
            left = int(getattr(module, f"{name}_mask", torch.ones_like(getattr(module, name))).sum())
            try:
                guard.prune([(module, name)], amount)
            except BadInput as error:  # nothing was pruned: the budget is out of reach
                messages.append(str(error))
            else:
                assert int(getattr(module, f"{name}_mask").sum()) == left - round(amount * left)
            assert guard.broken() == {"model": ()}
    assert all("can be pruned within the constraint" in message for message in messages)


TINY = {"llama": lambda: build(FAMILIES["llama"])}


def test_protected_positions_lose_nothing_in_a_model() -> None:
    model = build(FAMILIES["llama"])
    guard = same_position_guard(model, protect=(2,))
    parameters = last_weights(model, guard)
    with torch.no_grad():
        for module, name in parameters:
            getattr(module, name)[[2, 9]] *= 1e-3  # rows of the output: positions
    guard.prune(parameters, 0.4)
    assert all((getattr(module, f"{name}_mask")[2] == 1).all() for module, name in parameters)
    assert [bool((getattr(module, f"{name}_mask")[9] == 0).all()) for module, name in parameters].count(True) == 1


def test_what_the_torch_guard_refuses() -> None:
    model = build(FAMILIES["bert"])
    guard = same_position_guard(model)
    parameters = last_weights(model, guard)
    with pytest.raises(BadInput, match="is no parameter of the guarded model"):
        guard.prune([(torch.nn.Linear(2, 2), "weight")], 1)
    with pytest.raises(BadInput, match="the budget is 10000; it must be at most"):
        guard.prune(parameters, 10_000)
    assert not hasattr(parameters[0][0], "weight_mask")  # nothing was pruned
    with pytest.raises(BadInput, match="--stack must be one of model, not 'decoder'"):
        same_position_guard(model, stack="decoder")


def test_a_mask_does_not_remove_where_norms_multiply_by_one_plus_weight() -> None:
    model = build(FAMILIES["gemma2"])
    guard = same_position_guard(model)
    parameters = last_weights(model, guard)
    found = guard.prune(parameters, 0.9)
    assert guard.broken() == {"model": ()}
    assert (found.swaps, found.broken_without) == (0, {"model": ()})


def test_per_dim_off_of_a_stack_of_experts() -> None:
    off = np.zeros((2, 3, 4), bool)  # expert, out, in
    off[0, 1] = True
    off[1, 2, :2] = True
    assert per_dim_off(off, Param("w", axis=-2)).tolist() == [0, 4, 2]
