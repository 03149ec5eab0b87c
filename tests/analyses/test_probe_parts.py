"""The parts of the position probe: joint training, the flow of tokens, evaluation, and what is trained on."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from architectures import FAMILIES
from outlierlens.analyses.probe_training import (
    Flow,
    FlowOptions,
    JudgedProbes,
    Plan,
    Probes,
    Variants,
    counted,
    judge,
    scales_of,
    split_texts,
    taken,
)
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.vectors.read import ReadOptions, token_batches, tokenise
from planted import some_texts, wrap


def separately(states: Any, positions: Any, steps: int, lr: float, n_positions: int) -> Any:
    """The weight [dim, position] of one probe on its own, by torch's own linear, loss, gradient and optimizer."""
    probe = torch.nn.Linear(states.shape[1], n_positions, bias=False)
    torch.nn.init.zeros_(probe.weight)
    adam = torch.optim.Adam(probe.parameters(), lr=lr)
    for step in range(steps):
        some = slice(16 * step, 16 * step + 16)
        adam.zero_grad()
        functional.cross_entropy(probe(states[some]), positions[some]).backward()
        adam.step()
    return probe.weight.detach().T


def test_trained_together_they_are_what_they_are_alone() -> None:
    torch.manual_seed(0)
    states = torch.randn(3, 160, 12) * torch.tensor([1.0, 30.0, 0.02])[:, None, None]
    states[1, :, 4] = 4000 * torch.rand(160)  # an outlier
    positions = torch.randint(0, 7, (160,))
    plan = Plan((0, 1, 2, 1), ((), (), (), (4, 7)), 12, 7)
    probes = Probes(plan, scales_of(states), learning_rate=0.05)
    for step in range(10):
        some = slice(16 * step, 16 * step + 16)
        probes.step(states[:, some], positions[some])
    for number, (layer, without) in enumerate(zip(plan.of, plan.without, strict=True)):
        read = states[layer] / probes.scale[layer]
        read[:, list(without)] = 0  # trained on clipped vectors
        alone = separately(read, positions, 10, 0.05, 7)
        assert torch.allclose(probes.weight[number], alone, atol=1e-5)
        assert alone.abs().max() > 0.1
    assert not probes.weight[3, [4, 7]].any()
    assert probes.weight[3, 5].any()


def test_scale_is_a_median_over_tokens() -> None:
    states = torch.zeros(2, 3, 4)
    states[0] = torch.tensor([[3.0], [1.0], [5000.0]])
    assert scales_of(states).tolist() == [3.0, 1.0]  # one token a thousand times as large; a layer of zeros


def test_a_planted_dimension_is_the_largest_contributor() -> None:
    torch.manual_seed(0)
    states = 0.1 * torch.randn(1, 4000, 20)
    positions = torch.randint(0, 2, (4000,))
    states[0, :, 13] = 2.0 * positions - 1
    probes = Probes(Plan((0,), ((),), 20, 2), scales_of(states), learning_rate=0.01)
    for step in range(31):
        some = slice(128 * step, 128 * step + 128)
        probes.step(states[:, some], positions[some])
    logits = states[0] @ probes.weight[0]
    assert (logits.argmax(-1) == positions).float().mean() > 0.999
    contribution = (states[0] * probes.weight[0].T[positions]).abs().mean(0)
    assert contribution.argmax() == 13
    assert contribution[13] > 10 * contribution[[i for i in range(20) if i != 13]].max()


def flow_of(words: Any, *, family: str = "bert", n: int = 40, **options: Any) -> tuple[Any, Any, Flow]:
    loaded = wrap(FAMILIES[family], words(), double=False)
    tokens = tokenise(loaded, some_texts(n))
    chosen = {"n_positions": 8, "batch": 7, "seed": 3} | options
    return loaded, tokens, Flow(loaded, tokens, FlowOptions(ReadOptions(batch_size=4), **chosen), 16)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("family", ["bert", "gpt2", "bart"])
def test_every_token_is_dealt_once_an_epoch(family: str, special: bool, words: Any) -> None:
    _, tokens, flow = flow_of(words, family=family, special=special)
    expected = Counter(
        place for mask in tokens.special for place in range(8) if place < len(mask) and (special or not mask[place])
    )
    orders = []
    for epoch in range(2):
        steps = list(flow.steps(epoch))
        assert [len(positions) for _, positions, _ in steps[:-1]] == [7] * (len(steps) - 1)
        assert all(states.shape == (4 if family != "bart" else 3, len(places), 16) for states, places, _ in steps)
        dealt = torch.cat([positions for _, positions, _ in steps]).tolist()
        assert Counter(dealt) == expected
        orders.append(dealt)
    assert orders[0] != orders[1]  # drawn anew
    again = torch.cat([positions for _, positions, _ in flow.steps(0)]).tolist()
    assert again == orders[0]


def test_states_and_positions_belong_together_and_pools_mix_lengths(
    words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, tokens, _ = flow_of(words)
    known, places, of_texts = [], [], []
    for batch in token_batches(loaded, tokens):
        states, positions, rows = taken(batch, False, 99)
        assert len(rows) == len(positions)
        known.append(states[2])
        places.append(positions)
        of_texts.append(torch.tensor(batch.texts)[rows])
    by_state, place, of = torch.cat(known), torch.cat(places), torch.cat(of_texts)
    for pool in (7, 20, 4096):
        monkeypatch.setattr("outlierlens.analyses.probe_training.POOL_TOKENS", pool)
        flow = flow_of(words, n_positions=99)[2]
        assert flow.pool == pool
        for states, positions, texts in flow.steps(0):
            # Another batch adds in another order: the nearest state, not an equal one, is the token's own.
            far, nearest = torch.cdist(states[2], by_state, compute_mode="donot_use_mm_for_euclid_dist").min(1)
            assert far.max() < 1e-4
            assert place[nearest].tolist() == positions.tolist()
            # Texts are made up, and some are made twice.
            named = [tokens.texts[text] for text in texts.tolist()]
            assert [tokens.texts[text] for text in of[nearest].tolist()] == named


@pytest.mark.parametrize(("family", "stack"), [("bart", "encoder"), ("bart", "decoder"), ("t5", "decoder")])
def test_what_is_counted_is_what_is_taken(family: str, stack: str, words: Any) -> None:
    loaded = wrap(FAMILIES[family], words())
    tokens = tokenise(loaded, ["w1 w2 w3", "w4"])
    if stack == "encoder":
        assert [places.tolist() for places in counted(loaded, tokens, stack, special=False)] == [[1, 2, 3], [1]]
        assert [len(places) for places in counted(loaded, tokens, stack, special=True)] == [5, 3]
    for special in (False, True):
        places = counted(loaded, tokens, stack, special=special, n_positions=4)
        for batch in token_batches(loaded, tokens, ReadOptions(stack=stack)):
            _, positions, rows = taken(batch, special, 4)
            said = [[p for p, r in zip(positions.tolist(), rows.tolist(), strict=True) if r == row] for row in (0, 1)]
            assert said == [places[text].tolist() for text in batch.texts]


def test_a_state_that_is_not_finite_is_an_error(words: Any) -> None:
    loaded, _, flow = flow_of(words)
    with torch.no_grad():
        loaded.model.encoder.layer[1].output.LayerNorm.bias[3] = float("inf")
    with pytest.raises(BadInput, match="layer 1: a state is NaN or infinite; use --dtype float32"):
        list(flow.steps(0))


def test_batches_come_in_the_order_asked_for(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    tokens = tokenise(loaded, ["w1", "w1 w2 w3", "w1 w2"])
    order = [batch.texts for batch in token_batches(loaded, tokens, ReadOptions(batch_size=2), order=[2, 0, 1])]
    assert order == [(2, 0), (1,)]
    assert [b.texts for b in token_batches(loaded, tokens, ReadOptions(batch_size=2))] == [(1, 2), (0,)]


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet"])
def test_evaluation_is_brute_force(family: str, words: Any) -> None:
    loaded = wrap(FAMILIES[family], words(), double=False)
    texts = some_texts(9)
    tokens = tokenise(loaded, texts)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 16, 7, generator=generator)
    of, scale = (0, 1, 2, 3, 2, 0), torch.tensor([0.5, 1.0, 2.0, 3.0])
    found = judge(loaded, tokens, Variants(of, weight, scale), ReadOptions(batch_size=4))
    n, right, near, loss = np.zeros(9), np.zeros((6, 9)), np.zeros((6, 9)), np.zeros(6)
    n_at, right_at, contribution, size = np.zeros(7), np.zeros((6, 7)), np.zeros((4, 7, 16)), np.zeros((4, 16))
    for text in range(9):
        alone = tokenise(loaded, [texts.texts[text]])  # no padding
        (batch,) = token_batches(loaded, alone)
        for place in alone.ordinary(0).tolist():
            if place >= 7:
                continue
            n[text] += 1
            n_at[place] += 1
            for variant, layer in enumerate(of):
                v = batch.states[layer][0, place].double().numpy()
                logits = (v / scale[layer].item()) @ weight[variant].double().numpy()
                said = int(logits.argmax())
                right[variant, text] += said == place
                near[variant, text] += abs(said - place) <= 1
                right_at[variant, place] += said == place
                loss[variant] += np.log(np.exp(logits).sum()) - logits[place]
                if variant < 4:  # on raw vectors: the weight of an unscaled probe
                    w = weight[variant].double().numpy()[:, place] / scale[layer].item()
                    contribution[layer, place] += np.abs(w * v)
                    size[layer] += np.abs(w)
    assert found.n.tolist() == n.tolist()
    assert found.n_at.tolist() == n_at.tolist()
    assert found.right.tolist() == right.tolist()
    assert found.near.tolist() == near.tolist()
    assert found.right_at.tolist() == right_at.tolist()
    assert found.loss == pytest.approx(loss / n.sum(), rel=1e-4)
    assert found.contribution == pytest.approx(contribution, rel=1e-4, abs=1e-5)
    assert found.weight / scale.numpy()[:, None] == pytest.approx(size / n.sum(), rel=1e-4)
    score = found.accuracy(1, seed=0)
    assert score.value == pytest.approx(right[1].sum() / n.sum())
    assert score.low <= score.value <= score.high
    change = found.change(4, 2, seed=0)
    assert change.value == pytest.approx((right[4].sum() - right[2].sum()) / n.sum())
    assert change.low <= change.value <= change.high
    same = found.change(2, 2, seed=0)
    assert same.low < same.value == 0 < same.high  # what 9 texts never showed is still possible


def test_intervals_are_of_texts_drawn_with_replacement(words: Any) -> None:
    random = np.random.default_rng(0)
    n = random.integers(1, 30, 300)
    right = random.binomial(n, random.beta(2, 2, 300))[None]
    empty = np.zeros(0)
    judged = JudgedProbes(n, right, right, empty, np.zeros((1, 0)), np.zeros(1), np.zeros((1, 0, 0)), np.zeros((1, 0)))
    score = judged.accuracy(0, seed=0)
    drawn = random.integers(0, 300, (4000, 300))
    low, high = np.quantile(right[0][drawn].sum(1) / n[drawn].sum(1), [0.025, 0.975])
    assert (score.low, score.high) == pytest.approx((low, high), abs=0.005)
    none = (np.zeros((1, 0)), np.zeros(1), np.zeros((1, 0, 0)), np.zeros((1, 0)))
    sure = JudgedProbes(n, n[None], n[None], empty, *none).accuracy(0, seed=0)
    assert sure.high == sure.value == 1
    assert 0.95 < sure.low < 1  # 300 texts without an error do not prove that there is none
    twice = replace(judged, n=np.append(n, 0), right=np.append(right, [[0]], axis=1))  # a text without a token
    assert twice.accuracy(0, seed=0).value == score.value


def texts(*given: str, source: str = "t") -> Texts:
    return Texts(source, given)


@settings(max_examples=60)
@given(st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=40), st.integers(0, 5))
def test_no_text_is_trained_on_and_evaluated(given: list[str], seed: int) -> None:
    if len(set(given)) < 10:
        with pytest.raises(BadInput, match=f"t holds {len(set(given))} different texts, and 10 are needed"):
            split_texts(texts(*given), None, seed=seed)
        return
    split = split_texts(texts(*given), None, seed=seed)
    assert sorted([*split.train.texts, *split.dev.texts]) == sorted(set(given))
    assert len(split.dev) == len(set(given)) // 5
    assert split_texts(texts(*given), None, seed=seed) == split


def test_a_dev_set_of_its_own() -> None:
    split = split_texts(texts("a", "b", "c  d", "e"), texts("c d", "x", source="dev"), seed=0)
    assert sorted(split.train.texts) == ["a", "b", "e"]
    assert sorted(split.dev.texts) == ["c d", "x"]
    assert split.notes == ("1 texts of t are evaluated, so they were not trained on",)
    with pytest.raises(BadInput, match=r"t and dev hold the same texts; evaluate on others \(--dev-data\)"):
        split_texts(texts("a", "b"), texts("a", "b", source="dev"), seed=0)
    with pytest.raises(BadInput, match="2 of its 3 texts are evaluated ones, so 1 is left"):
        split_texts(texts("a", "b", "c"), texts("b", "a", source="dev"), seed=0)
