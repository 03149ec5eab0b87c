"""Noise of the last bit under rounding: a value planted at the edge of a step, batches that do not matter, no steps."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from outlierlens.analyses.quantize import Quantization, QuantizeOptions, quantize
from outlierlens.analyses.quantize_rounding import Keeping, NoiseDraws, rounded, token_places
from outlierlens.analyses.quantize_schemes import parse, parse_all
from outlierlens.analyses.quantize_settings import RANDOM, ROUNDED
from outlierlens.data.texts import read_texts
from outlierlens.models.hooks import tapped
from outlierlens.models.load import LoadedModel, load_model
from outlierlens.statistics.means import mean_noise
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from planted import tiny, turning_texts

TEXTS = turning_texts(4 + 3 * (i % 6) for i in range(18))


@pytest.fixture
def bert() -> LoadedModel:
    return tiny("bert", "MaskedLM")


class FirstQuery:
    """The first token's first query in the first block, of four texts two by two."""

    n_texts, weights = 4, np.ones(4)

    def __init__(self, loaded: LoadedModel):
        self.loaded, self.model = loaded, loaded.model  # type: ignore[assignment]
        self.query = self.model.bert.encoder.layer[0].attention.self.query

    def feeds(self, texts: range) -> Iterator[Any]:
        for start in range(0, len(texts), 2):
            yield SimpleNamespace(slots=(start, start + 1), ids=torch.tensor([[2, 5, 7], [2, 9, 11]]))

    def sums(self, feed: Any) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        hook = self.query.register_forward_hook(lambda _, __, output: seen.append(output[:, 0, 0].double()))
        self.model(input_ids=feed.ids, attention_mask=torch.ones_like(feed.ids))
        hook.remove()
        return seen[0]


def test_a_value_at_the_edge_of_a_step_moves_by_half_of_it(bert: LoadedModel) -> None:
    """Each token reads 127 in dimension 0, so that a step is 1, and 10.5 in dimension 1, which the query copies: 10 or 11."""
    model: Any = bert.model
    task: Any = FirstQuery(bert)
    with torch.no_grad():
        norm = model.bert.embeddings.LayerNorm
        norm.weight.zero_()
        norm.bias.copy_(torch.tensor([127.0, 10.5, *[0.0] * 14]))
        task.query.weight.zero_()
        task.query.weight[0, 1] = 1.0
        task.query.bias.zero_()
    draws = NoiseDraws(bert, bert.stacks[0], task, 60, 0)
    intact = np.full(4, 10.5)
    assert np.abs(np.array(draws.repeats()) - 10.5).max() < 1e-4, "without steps nothing moves"
    with rounded(bert, parse("none/int8-token")):
        runs = np.array([np.full(4, 10.0), *draws.repeats()])
    with rounded(bert, parse("none/int8-token"), Keeping(dims=(1,))):
        spared = np.array([intact, *draws.repeats()])
    assert set(np.round(runs.ravel(), 3)) == {10.0, 11.0}
    assert np.abs(runs - runs[:, :1]).max() < 1e-9, "what all texts read moves alike in all"
    found = mean_noise(runs, np.ones(4), 1000)
    assert found.floor == pytest.approx(0.5, abs=0.02), "two values per step apart, each half of the time"
    assert found.shared == pytest.approx(found.floor**2)
    kept = mean_noise(spared, np.ones(4), 1000)
    assert kept.floor < 1e-4


def test_noise_is_that_of_the_token_in_its_text_whatever_shares_its_batch(bert: LoadedModel) -> None:
    def first_reads(size: int, draw: int | None) -> list[torch.Tensor]:
        task = make_task(bert, TEXTS, TaskOptions(max_length=16, batch_size=size))
        reads: dict[int, torch.Tensor] = {}
        draws = NoiseDraws(bert, bert.stacks[0], task, 2, 7)
        assert draws.n_texts == 4  # a quarter of 18, four at least
        for feed in task.feeds(range(16)):
            seen: list[torch.Tensor] = []
            noise = contextlib.nullcontext() if draw is None else draws.noisy(draw)
            look = tapped(bert.model, bert.stacks[:1], lambda _, layer, x, to=seen: to.append(x.double()))
            with torch.inference_mode(), noise, look:  # hooks that come later see what those before changed
                task.sums(feed)
            for row, slot in enumerate(feed.slots):
                reads[slot] = seen[0][row, : int(task.lengths[slot])]
        return [reads[slot] for slot in range(16)]

    plain, together, alone, other = (first_reads(*how) for how in ((5, None), (5, 0), (1, 0), (5, 1)))
    noise = np.random.default_rng([7, 0]).standard_normal((16, 16))
    for before, one, two, three in zip(plain, together, alone, other, strict=True):
        assert torch.allclose(one, two, rtol=2e-7, atol=1e-7)
        wanted = before * 1e-6 * torch.from_numpy(noise[: len(before)])
        assert wanted.abs().max() > 1e-6
        assert torch.allclose(one - before, wanted, atol=3e-7)
        assert not torch.allclose(one, three, rtol=2e-7, atol=1e-7)


def test_places_leave_padding_out() -> None:
    states = torch.zeros(2, 4, 3)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert token_places(states, [mask]).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]
    assert token_places(torch.zeros(8, 3), [mask]).tolist() == [0, 0, 0, 1, 0, 1, 2, 2]
    assert token_places(states, []).tolist() == [[0, 1, 2, 3]] * 2
    assert token_places(torch.zeros(1, 2, 2, 3), []).tolist() == [[[0, 1], [2, 3]]]


def measure(draws: int) -> Quantization:
    recipes = parse_all("int8-channel/int8-token,int4-group32/none")
    options = QuantizeOptions(
        recipes=recipes, dims=(8, 24), n_random=1, noise_draws=draws, task=TaskOptions(max_length=32)
    )
    return quantize(load_model("mini-planted"), read_texts("excerpt", limit=18), options)


def test_what_has_steps_has_a_floor_and_what_has_none_has_none() -> None:
    found, again, without = measure(3), measure(3), measure(0)
    assert (found.noise_draws, found.n_noise_texts, without.noise_draws, without.n_noise_texts) == (3, 4, 0, 0)
    assert again.settings == found.settings
    assert math.isnan(found.settings[0].noise)
    for one in (*found.settings[1:], *found.draws):
        if one.scheme == "int4-group32/none":
            assert one.noise < 1e-6, "weights alone: what is read meets no step"
        else:
            assert one.noise > 1e-5
            assert one.regained_noise > 1e-5 or one.setting in (ROUNDED, RANDOM)
    assert found.gains[0].noise > 1e-5
    for with_noise, plain in zip(found.settings[1:], without.settings[1:], strict=True):
        assert math.isnan(plain.noise)
        assert with_noise.per_text == plain.per_text
        if with_noise.scheme != "int4-group32/none":
            assert with_noise.change.low <= plain.change.low < plain.change.high <= with_noise.change.high
    assert replace(found, noise_draws=0).noise_note == without.noise_note != found.noise_note
