"""Average vectors of an observation, in pictures: what is drawn where, and the words beside it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import synthetic_report as synthetic
from outlierlens.errors import BadInput
from outlierlens.view import charts

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
