"""The rules on arrays: numbers worked out by hand, a permutation oracle, the released rule re-done slowly.

Average vectors of an observation, in pictures: what is drawn where, and the words beside it.
"""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synthetic_report as synthetic
from outlierlens.detection.rules import LastOperation, Rule, find, zscore
from outlierlens.errors import BadFile, BadInput
from outlierlens.statistics.ranks import position_p
from outlierlens.view import charts


def flat_with(n_layers: int, width: int, peaks: dict[tuple[int, int], float], seed: int = 0) -> np.ndarray:
    """Uniform noise in [−1, 1] with values set at {(layer, dim): value}."""
    values = np.random.default_rng(seed).uniform(-1, 1, (n_layers, width))
    for (layer, dim), value in peaks.items():
        values[layer, dim] = value
    return values


def test_zscore_by_hand() -> None:
    # Mean 2, population std sqrt((1 + 1 + 4 + 4) / 4) … worked out: (1, 3, 4, 0) − 2 = (−1, 1, 2, −2), std = sqrt(10/4).
    assert zscore(np.array([1.0, 3.0, 4.0, 0.0])) == pytest.approx(np.array([-1, 1, 2, -2]) / np.sqrt(2.5))


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1e-30, 1e30])
def test_constant_vector_has_no_outlier_and_no_warning(constant: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = np.full((4, 100), np.float32(constant))
        assert not zscore(values).any()
        assert find(LastOperation(values, values), Rule()) == ()


def test_kovaleva_counts_scale_and_bias_separately() -> None:
    peaks_scale = {(0, 7): 30.0, (1, 7): 30.0}
    peaks_bias = {(2, 7): -30.0, (3, 7): -30.0}
    measured = LastOperation(flat_with(4, 100, peaks_scale), flat_with(4, 100, peaks_bias, seed=1))
    (outlier,) = find(measured, Rule())
    assert (outlier.dim, outlier.layers_scale, outlier.layers_bias) == (7, (0, 1), (2, 3))
    assert outlier.rank_scale[:2] == (1, 1)
    assert outlier.signed_rank_bias[2:] == (100, 100)
    assert find(measured, Rule(same_layer=True)) == ()


def test_kovaleva_needs_both_and_half_of_the_layers() -> None:
    one_layer = LastOperation(flat_with(4, 100, {(0, 7): 30.0}), flat_with(4, 100, {(0, 7): 30.0}, seed=1))
    assert find(one_layer, Rule()) == ()
    assert [o.dim for o in find(one_layer, Rule(min_layer_fraction=0.25))] == [7]
    scale_only = LastOperation(flat_with(4, 100, {(i, 7): 30.0 for i in range(4)}), flat_with(4, 100, {}, seed=1))
    assert find(scale_only, Rule()) == ()
    without_bias = LastOperation(scale_only.scale)
    assert [o.dim for o in find(without_bias, Rule())] == [7]


def test_half_of_five_layers_is_three() -> None:
    two = LastOperation(flat_with(5, 100, {(i, 3): 30.0 for i in range(2)}))
    three = LastOperation(flat_with(5, 100, {(i, 3): 30.0 for i in range(3)}))
    assert find(two, Rule()) == ()
    assert [o.dim for o in find(three, Rule())] == [3]


def test_combined_p_is_the_larger_and_holm_corrects() -> None:
    peaks = {(i, 7): 30.0 for i in range(4)}
    measured = LastOperation(flat_with(4, 100, peaks), flat_with(4, 100, dict.fromkeys(list(peaks)[:2], 30.0), seed=1))
    (outlier,) = find(measured, Rule())
    scale_p, bias_p = (position_p(np.abs(z) >= 3)[7] for z in (measured.z_scale, measured.z_bias))
    assert scale_p < bias_p
    assert outlier.p == pytest.approx(bias_p)
    assert outlier.p_holm == pytest.approx(min(1, 100 * bias_p))


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(4, 12), st.booleans())
def test_shuffled_weights_have_no_significant_outlier(seed: int, n_layers: int, with_bias: bool) -> None:
    # Heavy tails flag many positions a layer; shuffled within layers they agree by chance only.
    random = np.random.default_rng(seed)
    scale = random.standard_t(3, (n_layers, 200))
    bias = random.standard_t(3, (n_layers, 200)) if with_bias else None
    found = find(LastOperation(scale, bias), Rule())
    assert all(outlier.p_holm >= 1e-4 for outlier in found)


def test_same_layer_p_moves_scale_and_bias_together() -> None:
    # d = 100; each of 4 layers has one position past the threshold in both: P(dimension 7 in all) = (1/100)^4, and the
    # spikes of scale alone at dimension 40 count for nothing.
    both = {(layer, 7): 30.0 for layer in range(4)}
    alone = both | {(layer, 40): 30.0 for layer in range(4)}
    (outlier,) = find(LastOperation(flat_with(4, 100, alone), flat_with(4, 100, both, seed=1)), Rule(same_layer=True))
    assert outlier.dim == 7
    assert outlier.p == pytest.approx(1e-8)


def coinciding(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    scale = random.standard_t(3, (8, 200))
    return scale, -scale


def correlated(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    scale, bias, shared = random.standard_t(3, (3, 8, 200))
    return scale + shared, bias + shared


def independent(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    scale, bias = random.standard_t(3, (2, 8, 200))
    return scale, bias


@pytest.mark.parametrize("make", [coinciding, correlated, independent])
@pytest.mark.parametrize("rule", [Rule(min_layer_fraction=1 / 8), Rule(min_layer_fraction=1 / 8, same_layer=True)])
def test_positions_that_agree_by_chance_are_seldom_significant(make: Any, rule: Rule) -> None:
    """Whatever scale and bias have to do with each other within a layer; 1 / 8: p of every dimension found in any layer."""
    n, hits = 120, 0
    for seed in range(n):
        found = find(LastOperation(*make(np.random.default_rng(seed))), rule)
        hits += any(outlier.p_holm <= 0.05 for outlier in found)
    assert hits / n <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / n)


def released(scale: np.ndarray, bias: np.ndarray, n_std: float = 3.0, topk: int = 6) -> list[int]:
    """The rule of Puccetti et al., step by step as their description and code state it."""
    lists = []
    for values in (scale, bias):
        counts: dict[int, int] = {}
        for vector in values:
            out = np.abs(vector - vector.mean()) > n_std * vector.std(ddof=1)
            for dim in np.flatnonzero(out):
                counts[int(dim)] = counts.get(int(dim), 0) + 1
        lists.append([dim for dim, count in sorted(counts.items(), key=lambda item: (-item[1], -item[0])) if count > 3])
    mixed = []
    for i in range(min(map(len, lists))):
        mixed += [lists[0][i], lists[1][i]]
    return sorted(set(mixed[:topk]))


@pytest.mark.parametrize("seed", range(20))
def test_puccetti_is_the_released_rule(seed: int) -> None:
    random = np.random.default_rng(seed)
    scale, bias = random.uniform(-1, 1, (2, 12, 100))
    for dim in random.choice(100, 6, replace=False):
        for values in (scale, bias):
            layers = random.choice(12, random.integers(0, 12), replace=False)
            values[layers, dim] = 9 + random.uniform(0, 1)
    found = find(LastOperation(scale, bias), Rule("puccetti"))
    assert sorted(o.dim for o in found) == released(scale, bias)


def test_puccetti_is_blind_to_depth_and_empty_without_bias() -> None:
    peaks = {(i, 5): 30.0 for i in range(3)}
    three = LastOperation(flat_with(12, 100, peaks), flat_with(12, 100, peaks, seed=1))
    assert find(three, Rule("puccetti")) == ()
    four = {(i, 5): 30.0 for i in range(4)}
    assert [
        o.dim for o in find(LastOperation(flat_with(24, 100, four), flat_with(24, 100, four, 1)), Rule("puccetti"))
    ] == [5]
    assert find(LastOperation(flat_with(24, 100, four)), Rule("puccetti")) == ()


def test_luo_reports_ranks_with_p() -> None:
    peaks = {(i, 5): 30.0 for i in range(8)}
    found = find(LastOperation(flat_with(12, 100, peaks)), Rule("luo", top_k=2))
    assert found[0].dim == 5
    assert found[0].rank_scale[:8] == (1,) * 8
    assert found[0].p_holm < 1e-8
    assert len(found) == 2


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1])
@pytest.mark.parametrize("name", ["kovaleva", "puccetti", "luo"])
def test_weights_that_are_all_equal_name_nothing(name: Any, value: float) -> None:
    equal = np.full((6, 50), value)
    assert find(LastOperation(equal, equal.copy()), Rule(name)) == ()
    assert find(LastOperation(equal), Rule(name)) == ()


def test_luo_counts_no_rank_that_more_share_than_count() -> None:
    values = np.zeros((6, 50))
    values[:, 7] = 5.0
    found = find(LastOperation(values), Rule("luo", top_k=3))
    assert [one.dim for one in found] == [7]  # all others share rank 2
    assert found[0].layers_scale == tuple(range(6))
    values[:, 9] = -5.0
    values[:, 11] = 5.0
    found = find(LastOperation(values + 0.0), Rule("luo", top_k=2))
    assert [one.dim for one in found] == [7, 9]  # 9 has rank 1; 7 and 11 share rank 2
    assert found[0].rank_scale == (2,) * 6


def test_broken_weights_are_named() -> None:
    values = flat_with(4, 100, {(2, 9): float("nan")})
    with pytest.raises(BadFile, match=r"model\.x: scale of layer 2 is nan at dimension 9 \(1 such values\)"):
        LastOperation(values, where="model.x")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "magic"}, "unknown rule 'magic'; rules are kovaleva, puccetti, luo"),
        ({"n_sigma": 0}, "n_sigma is 0"),
        ({"min_layer_fraction": 1.5}, "it must be more than 0 and at most 1"),
        ({"top_k": 0}, "at least 1"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Rule(**settings)


pytest.importorskip("vl_convert")


def data_of(layer: dict[str, Any]) -> list[dict[str, Any]]:
    return layer["data"]["values"]


def test_shares_are_pooled_over_blocks_by_their_tokens() -> None:
    seen = synthetic.observation(n_layers=3, hidden_size=520).stacks[0]
    shares = np.zeros((4, len(seen.dims)))
    shares[:, 2] = [1.0, 0.5, 0.2, 0.0]  # the embeddings' 100 % must not count
    statistics = replace(seen.view("all"), argmin_share=shares, tokens=np.array([100, 10, 20, 30]))
    stack = replace(seen, views={"all": statistics})
    pooled = stack.pooled_shares()
    assert pooled["smallest entry"][2] == pytest.approx((10 * 0.5 + 20 * 0.2) / 60)
    assert pooled["largest entry"].shape == (len(seen.dims),)
    alone = replace(
        statistics, **{key: getattr(statistics, key)[:1] for key in ("argmin_share", "argmax_share", "tokens")}
    )
    only = replace(stack, layers=("embeddings",), views={"all": alone})
    assert np.isnan(only.pooled_shares()["smallest entry"]).all()
    with pytest.raises(BadInput, match="no view 'x'"):
        stack.pooled_shares("x")


def test_vector_panels_draw_every_layer_on_one_scale_and_number_the_ends() -> None:
    seen = synthetic.observation(n_layers=3, hidden_size=520).stacks[0]
    mean = np.random.default_rng(3).normal(0, 0.1, (4, len(seen.dims)))
    mean[1:, 7] = -5.0
    mean[2, 400] = 3.0
    stack = replace(seen, views={"all": replace(seen.view("all"), mean=mean)})
    dims = (stack.dims[7], stack.dims[400])
    chart = charts.vector_panels(stack, dims)
    panels = [panel for row in chart.spec["vconcat"] for panel in row["hconcat"]]
    assert [panel["title"]["text"] for panel in panels] == ["embeddings", "layer 0", "layer 1", "layer 2"]
    domains = {tuple(layer["encoding"]["y"]["scale"]["domain"]) for panel in panels for layer in panel["layer"]}
    assert len(domains) == 1
    assert domains.pop() == pytest.approx((-5 - 0.16 * 8, 3 + 0.16 * 8), rel=1e-3)
    assert len(data_of(panels[2]["layer"][0])) == len(stack.dims) - 2
    assert {row["mean"] for row in data_of(panels[2]["layer"][2])} == {-5.0, 3.0}
    numbered = {row["says"] for layer in panels[2]["layer"][3:] for row in data_of(layer)}
    assert {str(dim) for dim in dims} <= numbered
    assert ("1", "lowest", 1, dims[0], -5.0) in chart.rows
    assert charts.picture(chart, "svg").startswith(b"<svg")
