"""What ablated models say: planted heads worked out by hand, a brute-force oracle, and the errors."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import planted_heads as planted
from architectures import FAMILIES, build
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.analyses.predictions import MEASURES, PredictionOptions, Predictions, predictions
from outlierlens.analyses.predictions_tally import (
    FLOOR,
    INPUTS,
    PredictionTally,
    Unigram,
    change,
    divergences,
    slopes,
    spearmans,
)
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import Estimate
from outlierlens.tasks.base import TaskOptions
from planted import random_counts

TEXTS = Texts(
    "made up", tuple(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(n)) for i, n in enumerate((3, 25, 9, 14, 6)))
)
SHORT = replace(TEXTS, texts=tuple(text for text in TEXTS.texts for _ in range(2)))
FEW = PredictionOptions(n_random=3, n_bootstrap=50, task=TaskOptions(max_length=32, batch_size=4))


def model_of(family: str, head: str, words: Any, **tokenizer: Any) -> LoadedModel:
    made = build(FAMILIES[family], head)
    return from_objects(made, words(**tokenizer), name=family)


def values_of(found: Predictions, input: str, off: str = "nothing") -> dict[str, float]:
    one = found.prediction(input, off)
    return {name: getattr(one, name) for name in MEASURES}


# A frequency dimension in the head.


@pytest.fixture(scope="module")
def causal(words: Any) -> Any:
    options = replace(FEW, n_random=9)
    return predictions(planted.causal(words), TEXTS, planted.counts(), [planted.FREQUENCY], options)


def test_a_dimension_that_says_the_frequency_is_what_makes_predictions_frequent(causal: Any) -> None:
    u = planted.probability()
    said = u[u > 0]
    intact = values_of(causal, "next")
    assert intact["log_frequency"] == pytest.approx(math.log(u.max()), abs=1e-5)
    assert intact["expected_log_frequency"] == pytest.approx(float(said @ np.log(said)), abs=1e-4)
    assert intact["entropy"] == pytest.approx(-float(said @ np.log(said)), abs=1e-4)
    assert intact["frequency"] == pytest.approx(planted.counts().counts.max() / planted.counts().counts.sum(), abs=1e-6)
    assert intact["kl_to_unigram"] == pytest.approx(0, abs=1e-6)
    assert intact["kl_from_unigram"] == pytest.approx(0, abs=1e-6)
    assert intact["spearman_expected"] == pytest.approx(1)
    corpus = planted.counts().counts[planted.SPECIAL :]
    assert intact["slope_expected"] == pytest.approx(np.polyfit(np.log(corpus), np.log(corpus + 1), 1)[0], abs=1e-4)
    assert math.isnan(intact["slope"])  # one type alone is predicted
    assert causal.prediction("next").says == "w0 100%"
    assert causal.prediction("next").n_types == 1


def test_without_it_they_are_what_is_left_and_the_direction_is_told(causal: Any) -> None:
    u = planted.probability()[planted.SPECIAL :]
    left = np.ones_like(u)
    left[planted.RARE - planted.SPECIAL] = math.exp(planted.LEAD)
    left /= left.sum()
    values = values_of(causal, "next", "last_hidden")
    assert causal.prediction("next", "last_hidden").says == "w32 100%"
    assert values["entropy"] == pytest.approx(-float(left @ np.log(left)), abs=1e-5)
    assert values["expected_log_frequency"] == pytest.approx(float(left @ np.log(u)), abs=1e-5)
    assert values["kl_to_unigram"] == pytest.approx(float(left @ np.log(left / u)), abs=1e-4)
    assert values["kl_from_unigram"] == pytest.approx(float(u @ np.log(u / left)), abs=1e-4)
    expected = math.log(u[planted.RARE - planted.SPECIAL] / u.max())
    moved = causal.change("next", "last_hidden")
    assert moved.change.value == pytest.approx(expected, abs=1e-5)
    assert moved.change.high < 0
    assert moved.p == pytest.approx(0.1)
    assert moved.random == pytest.approx((0.0,) * 9, abs=1e-6)
    assert moved.direction == "rarer"
    assert f"rarer: {math.exp(expected):.2g} times as frequent" in " ".join(causal.sentences())
    targets = [int(word[1:]) for text in TEXTS.texts for word in text.split()[1:]]
    assert values["accuracy"] == pytest.approx(np.mean(np.array(targets) == 32))
    assert values["surprisal"] == pytest.approx(-np.mean(np.log(left[np.array(targets) + 1])), abs=1e-5)


def test_the_layers_do_nothing_where_the_head_reads_none_of_them(causal: Any) -> None:
    for name in set(MEASURES) - {"slope", "spearman"}:
        assert causal.change("next", "layers", name).change.value == 0, name
    moved = causal.change("next", "layers")
    assert moved.change == Estimate(0.0, 0.0, 0.0)
    assert moved.p == 1
    assert moved.direction == "neither"


def test_the_last_hidden_state_and_the_logits_are_one_without_a_transform(causal: Any, words: Any) -> None:
    assert [one.off for one in causal.predicted] == ["nothing", "layers", "last_hidden"]
    assert "last_hidden and logits are the same" in causal.notes[0]
    loaded = planted.causal(words)
    alone = predictions(
        loaded, TEXTS, planted.counts(), [planted.FREQUENCY], replace(FEW, interventions=("logits",), n_random=0)
    )
    for moved in alone.changes:
        there = causal.change("next", "last_hidden", moved.measure).change.value
        assert moved.change.value == pytest.approx(there, abs=1e-6, nan_ok=True), moved.measure
        assert moved.p is None


@pytest.mark.parametrize("input", ["masked", "unmasked"])
def test_a_head_with_a_transform_loses_the_dimension_in_the_logits_alone(input: str, words: Any) -> None:
    loaded = planted.masked(words)
    options = replace(FEW, inputs=(input,), n_random=0)
    found = predictions(loaded, TEXTS, planted.counts(), [planted.FREQUENCY], options)
    assert found.change(input, "layers").change.value == 0
    assert found.change(input, "last_hidden", "entropy").change.value == 0
    u = planted.probability()
    lost = math.log(u[planted.RARE] / u.max())
    assert found.change(input, "logits").change.value == pytest.approx(lost, abs=1e-5)


def test_one_post_norm_block_off_is_the_last_hidden_state_off(words: Any) -> None:
    loaded = planted.masked(words)
    with torch.no_grad():
        loaded.model.cls.predictions.transform.LayerNorm.weight.fill_(1)
        loaded.model.cls.predictions.decoder.weight.normal_(generator=torch.Generator().manual_seed(1))
    found = predictions(loaded, TEXTS, planted.counts(), [2, 7], replace(FEW, inputs=("unmasked",), n_random=0))
    intact, layers, last = (values_of(found, "unmasked", name) for name in ("nothing", "layers", "last_hidden"))
    assert layers == pytest.approx(last)
    assert layers["entropy"] != pytest.approx(intact["entropy"], abs=1e-6)
    assert [one.n_set for one in found.predicted] == [None, 4, None, None]


# An oracle that reads one text at a time and keeps all logits.


def oracle(rows: list[tuple[np.ndarray, np.ndarray]], counts: np.ndarray, ordinary: np.ndarray) -> dict[str, float]:
    """Every measure of (logits [position, type], targets [position]) a text."""
    from scipy.stats import linregress, spearmanr

    logits = np.concatenate([one for one, _ in rows]).astype(np.float64)
    targets = np.concatenate([one for _, one in rows])
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    u = np.where(ordinary, counts + 1.0, 0)
    u /= u.sum()
    log = np.log(np.where(ordinary, u, 1))
    best = p.argmax(1)
    plain = ordinary[best]
    mass = p.sum(0)
    q = np.where(ordinary, mass, 0)
    q = (1 - FLOOR) * q / q.sum() + FLOOR * u
    some = ordinary
    said = np.bincount(best, minlength=len(u))
    types = (said > 0) & ordinary & (counts > 0)
    known = ordinary & (counts > 0)
    return {
        "log_frequency": log[best][plain].mean(),
        "expected_log_frequency": (p @ log).sum() / p[:, ordinary].sum(),
        "frequency": (counts / counts[ordinary].sum())[best][plain].mean(),
        "entropy": -(p * np.log(p)).sum(1).mean(),
        "accuracy": (best == targets).mean(),
        "surprisal": -np.log(p[np.arange(len(p)), targets]).mean(),
        "special": 1 - plain.mean(),
        "slope": linregress(np.log(counts[types]), np.log(said[types])).slope,
        "spearman": spearmanr(counts[types], said[types]).statistic,
        "slope_expected": linregress(np.log(counts[known]), np.log(mass[known])).slope,
        "spearman_expected": spearmanr(counts[known], mass[known]).statistic,
        "kl_to_unigram": (q[some] * np.log(q[some] / u[some])).sum(),
        "kl_from_unigram": (u[some] * np.log(u[some] / q[some])).sum(),
    }


def rows_of(loaded: LoadedModel, input: str, off: tuple[int, ...] = ()) -> list[tuple[np.ndarray, np.ndarray]]:
    """(logits, targets) of each text; `off` out of what the vocabulary matrix reads."""
    tokenizer: Any = loaded.tokenizer
    head: Any = loaded.model.get_output_embeddings()  # type: ignore[operator]
    found = []

    def drop(module: Any, args: Any) -> Any:
        changed = args[0].clone()
        changed[..., list(off)] = 0
        return (changed,)

    hook = head.register_forward_pre_hook(drop)
    try:
        for text in TEXTS.texts:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            with torch.no_grad():
                logits = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].float().numpy()
            own = ids[0].numpy()
            keep = own >= planted.SPECIAL
            found.append((logits[keep], own[keep]) if input == "unmasked" else (logits[:-1], own[1:]))
    finally:
        hook.remove()
    return found


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize(
    ("family", "head", "input"),
    [("bert", "MaskedLM", "unmasked"), ("gpt2", "CausalLM", "next"), ("gemma2", "CausalLM", "next")],
)
def test_every_measure_is_that_of_a_plain_loop(family: str, head: str, input: str, batch_size: int, words: Any) -> None:
    loaded = model_of(family, head, words, kind="masked" if input == "unmasked" else "causal")
    counts = random_counts()
    options = replace(
        FEW, inputs=(input,), interventions=("layers", "logits"), n_random=0,
        task=TaskOptions(max_length=32, batch_size=batch_size),
    )  # fmt: skip
    found = predictions(loaded, TEXTS, counts, [2, 11], options)
    ordinary = np.arange(40) >= planted.SPECIAL
    values = np.where(ordinary, counts.counts, 0)
    with zeroed_weights(loaded, [2, 11]):
        layers = oracle(rows_of(loaded, input), values, ordinary)
    wanted = {
        "nothing": oracle(rows_of(loaded, input), values, ordinary),
        "layers": layers,
    }
    if any(one.off == "logits" for one in found.predicted):
        wanted["logits"] = oracle(rows_of(loaded, input, (2, 11)), values, ordinary)
    for name, expected in wanted.items():
        assert values_of(found, input, name) == pytest.approx(expected, rel=1e-4, abs=1e-5), name
    assert "logits" in wanted or input == "next"


def test_masked_predictions_are_at_the_masks_of_the_masked_loss_and_do_not_depend_on_batches(words: Any) -> None:
    from outlierlens.tasks.choice import make_task

    loaded = model_of("bert", "MaskedLM", words)
    tasks = [TaskOptions(max_length=32, batch_size=size, seed=3) for size in (1, 8)]
    one, eight = (
        predictions(loaded, TEXTS, random_counts(), [4], replace(FEW, inputs=("masked",), task=task, seed=3))
        for task in tasks
    )
    values, weights = make_task(loaded, TEXTS, tasks[0]).per_text()
    assert one.n_positions == {"masked": weights.sum()}
    assert one.prediction("masked").surprisal == pytest.approx(np.average(values, weights=weights), rel=1e-4)
    for moved, expected in zip(one.changes, eight.changes, strict=True):
        for part in ("value", "low", "high"):
            value = getattr(expected.change, part)
            assert getattr(moved.change, part) == pytest.approx(value, abs=2e-4, nan_ok=True), (moved.measure, part)
        assert moved.random == pytest.approx(expected.random, abs=2e-4, nan_ok=True), moved.measure


@pytest.mark.parametrize("kind", ["causal", "begun"])
def test_a_long_text_is_predicted_window_by_window_each_token_once(kind: str, words: Any) -> None:
    loaded = model_of("llama", "CausalLM", words, kind=kind)
    texts = [" ".join(f"w{i % 35}" for i in range(50)), "w1 w2"]
    unigram = Unigram.of(random_counts(), n_rows=40, special=[])
    task = INPUTS["next"](loaded, texts, TaskOptions(max_length=8, batch_size=3), unigram)
    predicted = sorted(
        (feed.slots[row], int(target))
        for feed in task._passes
        for row, target in zip(feed.positions[0].tolist(), feed.targets, strict=True)
    )
    whole = [loaded.tokenizer(text)["input_ids"] for text in texts]  # type: ignore[misc]
    assert predicted == sorted((number, token) for number, ids in enumerate(whole) for token in ids[1:])


# Numbers over the vocabulary.


def test_slopes_correlations_and_divergences_by_hand() -> None:
    corpus = np.array([1.0, 10.0, 100.0, 0.0])
    said = np.array([[2.0, 20.0, 200.0, 9.0], [100.0, 10.0, 1.0, 0.0], [1.0, 100.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]])
    assert slopes(said, corpus) == pytest.approx([1.0, -1.0, math.nan, 0.0], nan_ok=True)
    assert spearmans(said, corpus) == pytest.approx([1.0, -1.0, math.nan, math.nan], nan_ok=True)
    u = np.array([0.5, 0.25, 0.25, 0.0])
    to, back = divergences(np.array([[3.0, 3.0, 0.0, 50.0]]), u)
    q = np.array([0.5, 0.5, 0]) * (1 - FLOOR) + FLOOR * u[:3]
    assert to[0] == pytest.approx(float((q * np.log(q / u[:3])).sum()))
    assert to[0] == pytest.approx(0.5 * math.log(2), abs=1e-4)
    assert back[0] == pytest.approx(0.25 * math.log(0.5) - 0.25 * math.log(FLOOR), abs=1e-4)


def test_predictions_cover_the_corpus() -> None:
    counts = TokenCounts(np.array([9, 50, 30, 20]), np.zeros(4, dtype=np.int64), ("s", "a", "b", "c"), 1, "")
    unigram = Unigram.of(counts, n_rows=5, special=[0])
    # Special tokens and rows without a token do not count.
    covered = unigram.covered(np.array([4.0, 1.0, 3.0, 0.0, 7.0]))
    assert unigram.ranks.tolist() == [1, 2, 3]
    assert covered == [0.25, 1.0, 1.0]
    assert unigram.probability.tolist() == [0, *(np.array([51, 31, 21]) / 103), 0]


def test_the_jackknife_of_two_groups_by_hand() -> None:
    counts = TokenCounts(np.array([60, 30, 10]), np.zeros(3, dtype=np.int64), ("a", "b", "c"), 1, "")
    unigram = Unigram.of(counts, n_rows=3, special=[])
    intact, ablated = (PredictionTally(unigram, "cpu", n_texts=2) for _ in range(2))
    text = np.array([0, 1])
    for tally, logits in ((intact, [[0.0, 0, 0], [0, 0, 0]]), (ablated, [[2.0, 0, 0], [0, 0, 1.0]])):
        tally.add(torch.tensor(logits), torch.tensor([0, 1]), text)
    moved = change(intact.details(), ablated.details(), n_draws=20, seed=0)["kl_to_unigram"]
    q = np.exp([[2.0, 0, 0], [0, 0, 1.0]])
    q /= q.sum(1, keepdims=True)
    u = unigram.probability

    def kl(p: np.ndarray) -> float:
        return float((p * np.log(p / u)).sum())

    base = kl(np.full(3, 1 / 3))
    left = np.array([kl(q[1]), kl(q[0])]) - base
    reach = 12.7062 * math.sqrt(0.5 * ((left - left.mean()) ** 2).sum())
    assert moved.value == pytest.approx(kl(q.mean(0)) - base, abs=1e-4)
    assert (moved.low, moved.high) == pytest.approx((moved.value - reach, moved.value + reach), rel=1e-3)


def test_predictions_of_special_tokens_alone_have_no_frequency(words: Any) -> None:
    loaded = planted.causal(words)
    with torch.no_grad():
        loaded.model.lm_head.weight[2, planted.OTHER] = 50  # type: ignore[index,union-attr]
    found = predictions(loaded, TEXTS, planted.counts(), [planted.OTHER], replace(FEW, n_random=0))
    intact, off = found.prediction("next"), found.prediction("next", "last_hidden")
    assert intact.special == 1
    assert math.isnan(intact.log_frequency)
    assert off.special == 0
    moved = found.change("next", "last_hidden")
    assert not moved.change.settled
    assert moved.direction == "unknown"
    assert "no verdict, for 5 texts are too few" in " ".join(found.sentences())
    special = found.change("next", "last_hidden", "special").change
    assert special.value == -1
    assert special.high < 0


# Controls, plans, errors.


def test_random_sets_are_seeded_as_large_and_not_the_chosen_one_and_a_rerun_reads_what_was_kept(
    words: Any, tmp_path: Path
) -> None:
    loaded = planted.masked(words, n_layers=2)
    plan, told = {0: (1, 2), 1: (2,)}, list[str]()
    first, again = (
        predictions(
            loaded, TEXTS, planted.counts(), plan, replace(FEW, inputs=("masked",)), rows=Keep(tmp_path),
            progress=lambda label, *_: told.append(label),
        )
        for _ in range(2)
    )  # fmt: skip
    assert repr((first.predicted, first.changes)) == repr((again.predicted, again.changes))
    assert told.count("intact") == 2
    assert told.count("masked, logits: random 3") == 2
    assert first.plan == plan
    assert first.dims == (1, 2)
    assert len(set(first.random_sets)) == 3
    assert all(len(dims) == 2 and dims != (1, 2) for dims in first.random_sets)
    # Two dimensions in layer 0 and one of them in layer 1, scale and bias each: also of random sets.
    (kept,) = tmp_path.glob("*.jsonl")
    rows = [json.loads(line) for line in kept.read_text().splitlines()[1:]]
    assert [row["value"]["touched"] for row in rows] == [6] * 4 + [0] * 8


def test_everything_is_as_before_afterwards(words: Any) -> None:
    loaded = planted.masked(words)
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    predictions(loaded, TEXTS, planted.counts(), [1], replace(FEW, n_random=1))
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded.model.modules())


def test_what_cannot_be_measured_says_why(words: Any) -> None:
    counts = random_counts()
    bare = model_of("bert", "", words)
    with pytest.raises(BadInput, match=r"bert has no vocabulary head .*states.*masked or causal language model"):
        predictions(bare, TEXTS, counts, [1], FEW)
    bert = planted.masked(words)
    with pytest.raises(BadInput, match=r"input 'next' is not for a masked model; planted-bert has masked, unmasked"):
        predictions(bert, TEXTS, counts, [1], replace(FEW, inputs=("next",)))
    with pytest.raises(BadInput, match="dimension 99 does not exist"):
        predictions(bert, TEXTS, counts, [99], FEW)
    with pytest.raises(BadInput, match=r"counts 3 tokens with ids from 40 up.*this model's tokenizer"):
        predictions(bert, TEXTS, replace(counts, counts=np.ones(43, dtype=np.int64)), [1], FEW)
    with pytest.raises(BadInput, match="counts no ordinary token"):
        predictions(bert, TEXTS, replace(counts, counts=np.zeros(40, dtype=np.int64)), [1], FEW)
    albert = model_of("albert", "MaskedLM", words)
    with pytest.raises(BadInput, match="reads 8 dimensions, the stream has 16; leave it out"):
        predictions(albert, TEXTS, counts, [1], replace(FEW, interventions=("logits",)))
    some = predictions(albert, TEXTS, counts, [1], replace(FEW, n_random=0, inputs=("masked",)))
    assert [one.off for one in some.predicted] == ["nothing", "layers", "last_hidden"]
    assert "logits left out" in some.notes[0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mode": "scale"}, "compared in one mode, not 'scale'; use one of weights, norms"),
        ({"task": TaskOptions(blocks=True)}, "blocks join texts"),
    ],
)
def test_options_that_cannot_be_used(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        PredictionOptions(**wrong)
