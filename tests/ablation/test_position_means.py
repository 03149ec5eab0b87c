"""Means by position, and edits of some tokens only: padding never counts, and what is not edited stays bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.ablation.switches import (
    EditSettings,
    PositionMeans,
    PositionSums,
    collected,
    edited_hidden,
    first_tokens,
    positions,
)
from outlierlens.data.texts import batches
from outlierlens.errors import BadInput
from outlierlens.models.hooks import tapped
from outlierlens.models.load import LoadedModel
from planted import tiny

TEXTS = ["w1 w2 w3", "w4 w5 w6 w7 w8", "w9"]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny("bert")


def states(model: LoadedModel, inputs: dict[str, Any]) -> dict[int, torch.Tensor]:
    seen: dict[int, torch.Tensor] = {}
    with torch.no_grad(), tapped(model.model, model.stacks, lambda _, layer, now: seen.update({layer: now.clone()})):
        model.model(**inputs)
    return seen


def padded(model: LoadedModel, texts: list[str] = TEXTS) -> Any:
    (batch,) = batches(model.tokenizer, texts, max_length=16, batch_size=8)
    return batch


def no_sums(dims: tuple[int, ...]) -> PositionSums:
    return PositionSums(dims, np.zeros((1, 0, len(dims))), np.zeros(0, dtype=np.int64))


def test_positions_and_first_tokens_wherever_padding_stands() -> None:
    valid = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    assert positions(valid)[valid].tolist() == [0, 1, 2, 0, 1]
    assert first_tokens(valid).nonzero().tolist() == [[0, 0], [1, 2]]


def test_sums_by_hand() -> None:
    sums = no_sums((2, 0))
    values = torch.tensor([[[1.0, 9, 10], [2, 9, 20], [77, 77, 77]], [[3, 9, 30], [4, 9, 40], [5, 9, 50]]])
    sums.add(0, values, torch.tensor([[1, 1, 0], [1, 1, 1]]).bool())
    assert sums.counts.tolist() == [2, 2, 1]
    assert sums.sums[0].tolist() == [[40, 4], [60, 6], [50, 5]]
    means = sums.means(3)
    assert means[0, [2, 0]].tolist() == [30, 3]
    assert np.isnan(means[0, 1])
    table = sums.position_means()
    assert table.values[0].tolist() == [[20, 2], [30, 3], [50, 5], [30, 3]]  # the last row: the mean over all tokens
    own = PositionSums((2, 0), np.array([[[30.0, 3], [40, 4], [50, 5]]]), np.array([1, 1, 1]))
    others = sums.plus(own, -1)
    assert others.counts.tolist() == [1, 1, 0]
    assert others.position_means().values[0].tolist() == [[10, 1], [20, 2], [15, 1.5], [15, 1.5]]
    assert own.plus(others).sums.tolist() == sums.sums.tolist()


def test_no_token_has_no_mean() -> None:
    with pytest.raises(BadInput, match="no token to take the mean over"):
        PositionSums((0,), np.zeros((1, 2, 1)), np.zeros(2, dtype=int)).position_means()


@settings(max_examples=30)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(0, 2**16))
def test_sums_are_those_of_a_loop_over_valid_tokens(mask: list[list[bool]], seed: int) -> None:
    valid = torch.tensor(mask)
    values = torch.randn(len(mask), 4, 3, generator=torch.Generator().manual_seed(seed))
    sums = no_sums((1,))
    sums.add(0, values, valid)
    expected: dict[int, list[float]] = {}
    for row, flags in enumerate(mask):
        place = 0
        for token, flag in enumerate(flags):
            if flag:
                expected.setdefault(place, []).append(float(values[row, token, 1]))
                place += 1
    assert sums.counts.tolist() == [len(expected[place]) for place in range(len(expected))]
    assert sums.sums[0, :, 0] == pytest.approx([sum(expected[place]) for place in range(len(expected))], abs=1e-6)


def test_what_a_model_gives_is_collected_without_padding(model: LoadedModel) -> None:
    together = padded(model)
    with collected(model, model.stack(), (5, 2)) as found, torch.no_grad():
        model.model(**together.inputs)
    alone = [states(model, padded(model, [text]).inputs) for text in TEXTS]
    lengths = [one[0].shape[1] for one in alone]
    assert found.counts.tolist() == [sum(length > place for length in lengths) for place in range(max(lengths))]
    for layer in range(3):
        for place in range(max(lengths)):
            mine = [one[layer][0, place, [5, 2]] for one in alone if one[layer].shape[1] > place]
            expected = torch.stack(mine).double().mean(0).numpy()
            assert found.position_means().values[layer, place] == pytest.approx(expected, abs=1e-5)


def test_a_position_mean_is_put_at_its_position(model: LoadedModel) -> None:
    batch = padded(model)
    values = np.arange(3 * 4 * 2, dtype=float).reshape(3, 4, 2)  # positions 0 to 2, and one row for all others
    table = PositionMeans((5, 2), values)
    with edited_hidden(
        model, {0: [2], 1: [2, 5], 2: [5]}, "position mean", settings=EditSettings(position_means=table)
    ):
        changed = states(model, batch.inputs)
    n = batch.valid.shape[1]
    rows = [min(place, 3) for place in range(n)]
    assert changed[0][0, :, 2].tolist() == values[0, rows, 1].tolist()
    assert changed[1][0][:, [2, 5]].tolist() == values[1, rows][:, [1, 0]].tolist()
    assert torch.equal(changed[0][..., 3], states(model, batch.inputs)[0][..., 3])


def test_a_text_s_own_means_by_position_leave_it_intact(model: LoadedModel) -> None:
    batch = padded(model, TEXTS[1:2])
    intact = states(model, batch.inputs)
    with collected(model, model.stack(), range(16)) as collecting, torch.no_grad():
        model.model(**batch.inputs)
    given = EditSettings(position_means=collecting.position_means())
    with edited_hidden(model, list(range(16)), "position mean", settings=given):
        restored = states(model, batch.inputs)
    for layer in range(3):
        torch.testing.assert_close(restored[layer], intact[layer])


def test_only_the_first_token_or_all_but_it(model: LoadedModel) -> None:
    batch = padded(model)
    intact = states(model, batch.inputs)[0]
    first = first_tokens(batch.valid)
    for tokens, off in (("first", first), ("rest", batch.valid & ~first)):
        with edited_hidden(model, [5], "zero", layers=[0], settings=EditSettings(tokens=tokens)):  # type: ignore[arg-type]
            now = states(model, batch.inputs)[0]
        assert (now[off][:, 5] == 0).all()
        assert torch.equal(now[~off], intact[~off])
        assert torch.equal(now[..., :5], intact[..., :5])


def test_first_means_the_first_that_is_no_padding(model: LoadedModel, words: Any) -> None:
    inputs = words(side="left")(TEXTS, return_tensors="pt", padding=True)
    intact = states(model, inputs)[0]
    with edited_hidden(model, [5], "zero", layers=[0], settings=EditSettings(tokens="first")):
        now = states(model, inputs)[0]
    places = [int(mask.argmax()) for mask in inputs["attention_mask"]]
    assert max(places) > 0
    for row, place in enumerate(places):
        assert now[row, place, 5] == 0
        assert torch.equal(now[row, place + 1 :], intact[row, place + 1 :])


def test_restoring_every_token_is_the_intact_model(model: LoadedModel) -> None:
    batch = padded(model, ["w1 w2 w3 w4"])
    intact = model.model(**batch.inputs).last_hidden_state
    alone = {key: value[:, :1] for key, value in batch.inputs.items()}  # one token: all but the first is none
    single = model.model(**alone).last_hidden_state
    with edited_hidden(model, [1, 5], "zero", settings=EditSettings(tokens="rest")):
        assert torch.equal(model.model(**alone).last_hidden_state, single)
        assert not torch.equal(model.model(**batch.inputs).last_hidden_state, intact)
    with edited_hidden(model, [1, 5], "scale", settings=EditSettings(factor=1.0)):
        assert torch.equal(model.model(**batch.inputs).last_hidden_state, intact)


def test_shuffling_some_tokens_keeps_the_others(model: LoadedModel) -> None:
    batch = padded(model)
    intact = states(model, batch.inputs)[0]
    rest = batch.valid & ~first_tokens(batch.valid)
    found = []
    for seed in (1, 1, 2):
        with edited_hidden(model, [5], "resample", layers=[0], settings=EditSettings(seed=seed, tokens="rest")):
            found.append(states(model, batch.inputs)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(found[0][~rest], intact[~rest])
    assert torch.equal(found[0][rest][:, 5].sort().values, intact[rest][:, 5].sort().values)


def test_requests_that_cannot_be_met(model: LoadedModel) -> None:
    table = PositionMeans((5,), np.zeros((3, 2, 1)))
    short = PositionMeans((5,), np.zeros((2, 2, 1)))
    for mode, asked, message in (
        ("position mean", EditSettings(), r'mode "position mean" needs EditSettings\(position_means=…\)'),
        ("position mean", EditSettings(position_means=short), "means has 2 layers; the stream has 3"),
        ("zero", EditSettings(tokens="last"), "unknown tokens 'last'; they are all, first, rest"),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadInput, match=message), edited_hidden(model, [5], mode, settings=asked):  # type: ignore[arg-type]
            pass
    asked = EditSettings(position_means=table)
    with (
        pytest.raises(BadInput, match="the means hold no dimension 4"),
        edited_hidden(model, [5, 4], "position mean", settings=asked),
    ):
        pass
