"""The table of an observation: every statistic of both views, in memory, as parquet and from the command line."""

import time
from dataclasses import replace

import numpy as np
import pandas
import pytest

from observation_results import TWO, VIEWS, observation
from outlierlens.analyses.observe import Observation
from outlierlens.detection.observed import FLAT, QUANTILES, StackObservation, Statistics


def check(frame: pandas.DataFrame, found: Observation, views: tuple[str, ...] = VIEWS) -> None:
    """Every statistic of every view stands in the row of its stack, layer and dimension."""
    assert len(frame) == len(views) * sum(len(stack.layers) * len(stack.dims) for stack in found.stacks)
    assert not frame.duplicated(["stack", "view", "layer", "dim"]).any()
    by_place = frame.set_index(["stack", "view", "layer", "dim"]).to_dict("index")
    for stack in found.stacks:
        for view in views:
            wanted = stack.view(view)
            for row, layer in enumerate(stack.layers):
                for column, dim in enumerate(stack.dims):
                    values = dict(by_place[stack.stack, view, layer, dim])
                    assert values.pop("tokens") == wanted.tokens[row]
                    assert values.pop("median_abs") == wanted.median_abs[row]
                    assert values.pop("abs_max_token") == wanted.abs_max_token[row][column]
                    quantiles = [values.pop(f"q{share}") for share in QUANTILES]
                    np.testing.assert_array_equal(quantiles, wanted.quantiles[row, column])
                    for name in FLAT:
                        assert values.pop(name) == getattr(wanted, name)[row, column], name
                    assert not values


def test_the_table_holds_every_statistic_of_both_views() -> None:
    names = set(Statistics.__dataclass_fields__) - {"quantiles"}
    columns = {"stack", "view", "layer", "dim", *names, *(f"q{share}" for share in QUANTILES)}
    frame = TWO.to_pandas("statistics")
    assert set(frame.columns) == columns
    assert {"q0.001", "q0.5", "q0.999"} <= columns
    check(frame, TWO)
    assert frame.view.tolist() == ["all"] * 9 + ["without_special"] * 9 + ["all"] * 4 + ["without_special"] * 4
    assert all(frame[name].dtype == np.int64 for name in ("dim", "tokens", "abs_max_position", "abs_max_text"))


def test_a_large_table_is_made_by_columns() -> None:
    found = observation(("model", 30, tuple(range(576))))
    start = time.process_time()
    frame = found.to_pandas("statistics")
    assert time.process_time() - start < 1.0  # about 0.05 s; row by row it takes many times the limit
    assert len(frame) == 31 * 576 * 2


def seen(values: np.ndarray) -> StackObservation:
    """What would be observed of one block's hidden states [token, dim]."""
    ranked = np.sort(values, axis=0)
    places = [max(0, int(np.ceil(share * len(values))) - 1) for share in QUANTILES]
    zeros = np.zeros((1, values.shape[1]))
    made = dict.fromkeys(FLAT, zeros) | {
        "mean": values.mean(0)[None], "std": values.std(0)[None], "abs_max": np.abs(values).max(0)[None],
        "min": values.min(0)[None], "max": values.max(0)[None],
    }  # fmt: skip
    tokens = (("",) * values.shape[1],)
    statistics = Statistics(
        tokens=np.array([len(values)]), abs_max_token=tokens, quantiles=ranked[places].T[None],
        median_abs=np.array([np.median(np.abs(values))]), **made,
    )  # fmt: skip
    width = values.shape[1]
    return StackObservation("model", ("0",), width, tuple(range(width)), {"all": statistics}, (), 1 / 65)


def test_how_large_a_dimension_is_and_on_which_share_of_the_tokens() -> None:
    values = np.random.default_rng(0).normal(size=(1000, 16))
    values[::200, 3] = 500.0  # five tokens of a thousand
    values[:, 7] += 60.0  # every token
    values[::10, 9] = -60.0  # one token of ten
    values[::20, 11], values[1::20, 11] = 500.0, -500.0  # one of twenty at either end
    stack = seen(values)
    median = np.median(np.abs(values))
    sizes = {dim: stack.size_of(dim) for dim in (3, 7, 9, 11, 0)}
    assert {dim: size.tokens for dim, size in sizes.items()} == {
        3: "0.1 to 1 %", 7: "99.9 to 100 %", 9: "5 to 25 %", 11: "6 to 30 %", 0: "0 %"
    }  # fmt: skip
    shares = (np.abs(values) > 10 * median).mean(0)
    assert all(size.low <= shares[dim] <= size.high for dim, size in sizes.items())
    assert (sizes[3].layer, sizes[3].largest) == ("0", 500.0)
    assert sizes[3].times == pytest.approx(500 / median)
    assert stack.size_of(99) is None
    expected = np.sqrt((values.mean(0) ** 2).sum() / values.var(0).sum())
    assert stack.gamma() == pytest.approx([expected])


def test_what_was_not_kept_has_no_share_and_no_gamma() -> None:
    stack = seen(np.random.default_rng(0).normal(size=(20, 4)))
    bare = replace(stack, views={"all": replace(stack.view(), quantiles=np.full((1, 4, len(QUANTILES)), np.nan))})
    assert bare.size_of(3).tokens is None
    assert bare.size_of(3).times == stack.size_of(3).times
    assert np.isnan(TWO.stacks[0].gamma()).all()
