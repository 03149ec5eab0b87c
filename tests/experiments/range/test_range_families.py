"""Ranges of every family: each kind against plain hooks of the test's own, text by text without padding."""

from collections.abc import Callable
from typing import Any

import pytest

from architectures import Family
from outlierlens.experiments.range.measure import range_of
from outlierlens.experiments.range.options import RangeOptions
from outlierlens.experiments.range.result import INSIDE
from planted import TEXT_FAMILIES, Oracle, some_texts, wrap

TEXTS = some_texts(7)


@pytest.mark.parametrize("family", TEXT_FAMILIES, ids=lambda one: one.name)
def test_every_family_is_measured(family: Family, words: Callable[..., Any]) -> None:
    loaded = wrap(family, words())
    found = range_of(loaded, TEXTS, RangeOptions(batch_size=3, every=1))
    oracle = Oracle(loaded, TEXTS, found.max_length)
    for stack, texts in oracle.by_text.items():
        if not any(row.stack == stack for row in found.rows):
            continue
        rows = [row for row in found.of("stream") if row.stack == stack]
        for number, row in enumerate(rows):
            states = [layers[number] for layers in texts]
            largest = max(abs(state).max() for state in states)
            assert row.largest == pytest.approx(largest, rel=1e-5), (stack, row.layer)
            assert abs(states[row.text][row.token, row.dim]) == pytest.approx(largest, rel=1e-5)
    blocks = {(row.stack, row.layer) for row in found.rows if row.layer.isdecimal()}
    for stack, layer in blocks:
        kinds = {row.kind for row in found.rows if (row.stack, row.layer) == (stack, layer)}
        assert kinds >= {"stream", "norm output", "norm sum of squares", "attention logits"}, (stack, layer)
    assert all(row.largest > 0 for row in found.rows)
    assert all((row.n_values > 0) == (row.kind not in (*INSIDE, "attention logits", "logits")) for row in found.rows)
