"""What ablated models say: planted heads worked out by hand, a brute-force oracle, and the errors."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import planted_heads as planted
from architectures import FAMILIES, build
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.measure import predictions
from outlierlens.experiments.predictions.options import PredictionOptions
from outlierlens.experiments.predictions.result import MEASURES
from outlierlens.experiments.predictions.tally import (
    FLOOR,
    Scale,
    Tally,
    Unigram,
    change,
    divergences,
    slopes,
    spearmans,
)
from outlierlens.experiments.predictions.words import INPUT_TASKS, Switches
from outlierlens.models.load import LoadedModel, from_objects
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


# A frequency dimension in the head.


@pytest.fixture(scope="module")
def causal(words: Any) -> Any:
    options = replace(FEW, n_random=9)
    return predictions(planted.causal(words), TEXTS, planted.counts(), [planted.FREQUENCY], options)


def test_a_dimension_that_says_the_frequency_is_what_makes_predictions_frequent(causal: Any) -> None:
    u = planted.probability()
    said = u[u > 0]
    intact = causal.of("next").intact.values
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
    assert causal.of("next").intact.top[0].token == "w0"
    assert causal.of("next").intact.n_types == 1


def test_without_it_they_are_what_is_left_and_the_direction_is_told(causal: Any) -> None:
    shift = causal.shift("next", "last_hidden")
    u = planted.probability()[planted.SPECIAL :]
    left = np.ones_like(u)
    left[planted.RARE - planted.SPECIAL] = math.exp(planted.LEAD)
    left /= left.sum()
    values = shift.chosen.values
    assert shift.chosen.top[0].token == "w32"
    assert values["entropy"] == pytest.approx(-float(left @ np.log(left)), abs=1e-5)
    assert values["expected_log_frequency"] == pytest.approx(float(left @ np.log(u)), abs=1e-5)
    assert values["kl_to_unigram"] == pytest.approx(float(left @ np.log(left / u)), abs=1e-4)
    assert values["kl_from_unigram"] == pytest.approx(float(u @ np.log(u / left)), abs=1e-4)
    expected = math.log(u[planted.RARE - planted.SPECIAL] / u.max())
    moved = shift.changes["log_frequency"]
    assert moved.change == pytest.approx(expected, abs=1e-5)
    assert moved.high < 0
    assert moved.p == pytest.approx(0.1)
    assert moved.random == pytest.approx((0.0,) * 9, abs=1e-6)
    assert shift.direction == "rarer"
    assert shift.times == pytest.approx(math.exp(expected), rel=1e-4)
    targets = [int(word[1:]) for text in TEXTS.texts for word in text.split()[1:]]
    assert values["accuracy"] == pytest.approx(np.mean(np.array(targets) == 32))
    assert values["surprisal"] == pytest.approx(-np.mean(np.log(left[np.array(targets) + 1])), abs=1e-5)


def test_the_layers_do_nothing_where_the_head_reads_none_of_them(causal: Any) -> None:
    shift = causal.shift("next", "layers")
    for name, moved in shift.changes.items():
        if name not in ("slope", "spearman"):
            assert moved.change == 0, name
    assert (shift.changes["log_frequency"].low, shift.changes["log_frequency"].high) == (0, 0)
    assert shift.changes["log_frequency"].p == 1
    assert shift.direction == "neither"


def test_the_last_hidden_state_and_the_logits_are_one_without_a_transform(causal: Any, words: Any) -> None:
    assert [shift.intervention for shift in causal.shifts] == ["layers", "last_hidden"]
    assert "last_hidden and logits are one" in causal.notes[0]
    loaded = planted.causal(words)
    alone = predictions(
        loaded, TEXTS, planted.counts(), [planted.FREQUENCY], replace(FEW, interventions=("logits",), n_random=0)
    )
    there = causal.shift("next", "last_hidden").changes
    for name, moved in alone.shift("next", "logits").changes.items():
        assert moved.change == pytest.approx(there[name].change, abs=1e-6, nan_ok=True), name
    assert alone.shift("next", "logits").changes["entropy"].p is None


@pytest.mark.parametrize("input", ["masked", "unmasked"])
def test_a_head_with_a_transform_loses_the_dimension_in_the_logits_alone(input: str, words: Any) -> None:
    loaded = planted.masked(words)
    options = replace(FEW, inputs=(input,), n_random=0)
    found = predictions(loaded, TEXTS, planted.counts(), [planted.FREQUENCY], options)
    assert found.shift(input, "layers").changes["log_frequency"].change == 0
    assert found.shift(input, "last_hidden").changes["entropy"].change == 0
    u = planted.probability()
    lost = math.log(u[planted.RARE] / u.max())
    assert found.shift(input, "logits").changes["log_frequency"].change == pytest.approx(lost, abs=1e-5)
    # The released code also zeroes the norm in the head, and calls that an ablation of the layers.
    compat = predictions(loaded, TEXTS, planted.counts(), [planted.FREQUENCY], replace(options, paper_compat=True))
    assert compat.shift(input, "layers").changes["log_frequency"].change == pytest.approx(lost, abs=1e-5)
    assert compat.shift(input, "layers").chosen.n_values == 4  # scale and bias, of one block and of the head
    assert loaded.model.cls.predictions.transform.LayerNorm.bias[planted.FREQUENCY] == 1


def test_one_post_norm_block_off_is_the_last_hidden_state_off(words: Any) -> None:
    loaded = planted.masked(words)
    with torch.no_grad():
        loaded.model.cls.predictions.transform.LayerNorm.weight.fill_(1)
        loaded.model.cls.predictions.decoder.weight.normal_(generator=torch.Generator().manual_seed(1))
    found = predictions(loaded, TEXTS, planted.counts(), [2, 7], replace(FEW, inputs=("unmasked",), n_random=0))
    layers, last = (found.shift("unmasked", name).chosen for name in ("layers", "last_hidden"))
    assert layers.values == pytest.approx(last.values)
    assert layers.values["entropy"] != pytest.approx(found.of("unmasked").intact.values["entropy"], abs=1e-6)
    assert (layers.n_values, last.n_values) == (4, 0)


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
        "intact": (oracle(rows_of(loaded, input), values, ordinary), found.of(input).intact),
        "layers": (layers, found.shift(input, "layers").chosen),
    }
    if any(shift.intervention == "logits" for shift in found.shifts):
        wanted["logits"] = (
            oracle(rows_of(loaded, input, (2, 11)), values, ordinary),
            found.shift(input, "logits").chosen,
        )
    for name, (expected, spoken) in wanted.items():
        assert spoken.values == pytest.approx(expected, rel=1e-4, abs=1e-5), name
    assert set(found.of(input).intact.values) == set(MEASURES)
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
    assert one.of("masked").n_positions == weights.sum()
    assert one.of("masked").intact.values["surprisal"] == pytest.approx(np.average(values, weights=weights), rel=1e-4)
    for shift, other in zip(one.shifts, eight.shifts, strict=True):
        for name, moved in shift.changes.items():
            expected = other.changes[name]
            for part in ("change", "low", "high", "random"):
                assert getattr(moved, part) == pytest.approx(getattr(expected, part), abs=2e-4, nan_ok=True), (
                    name,
                    part,
                )


@pytest.mark.parametrize("kind", ["causal", "begun"])
def test_a_long_text_is_predicted_window_by_window_each_token_once(kind: str, words: Any) -> None:
    loaded = model_of("llama", "CausalLM", words, kind=kind)
    texts = [" ".join(f"w{i % 35}" for i in range(50)), "w1 w2"]
    task = INPUT_TASKS["next"](loaded, texts, TaskOptions(max_length=8, batch_size=3))
    predicted = sorted(
        (int(t), int(target)) for feed in task.all_feeds() for t, target in zip(feed.text, feed.targets, strict=True)
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


def test_curves_rank_predictions_and_cover_the_corpus() -> None:
    counts = TokenCounts(np.array([9, 50, 30, 20]), np.zeros(4, dtype=np.int64), ("s", "a", "b", "c"), 1, "")
    unigram = Unigram.of(counts, n_rows=5, special=[0])
    curve = unigram.curve(np.array([4.0, 1.0, 3.0, 0.0, 7.0]))  # special tokens and rows without a token do not count
    assert curve.ranks.tolist() == [1, 2, 3]
    assert curve.said.tolist() == [0.75, 0.25, 0.0]
    assert curve.covered.tolist() == [0.25, 1.0, 1.0]
    assert unigram.probability.tolist() == [0, *(np.array([51, 31, 21]) / 103), 0]


def test_the_jackknife_of_two_groups_by_hand() -> None:
    counts = TokenCounts(np.array([60, 30, 10]), np.zeros(3, dtype=np.int64), ("a", "b", "c"), 1, "")
    unigram = Unigram.of(counts, n_rows=3, special=[])
    scale = Scale.of(unigram, "cpu")
    intact, ablated = (Tally(scale, n_texts=2, n_groups=2) for _ in range(2))
    text = np.array([0, 1])
    for tally, logits in ((intact, [[0.0, 0, 0], [0, 0, 0]]), (ablated, [[2.0, 0, 0], [0, 0, 1.0]])):
        tally.add(torch.tensor(logits), torch.tensor([0, 1]), text)
    moved, low, high = change(intact, ablated, unigram, n_draws=20, seed=0)["kl_to_unigram"]
    q = np.exp([[2.0, 0, 0], [0, 0, 1.0]])
    q /= q.sum(1, keepdims=True)
    u = unigram.probability

    def kl(p: np.ndarray) -> float:
        return float((p * np.log(p / u)).sum())

    base = kl(np.full(3, 1 / 3))
    left = np.array([kl(q[1]), kl(q[0])]) - base
    reach = 12.7062 * math.sqrt(0.5 * ((left - left.mean()) ** 2).sum())
    assert moved == pytest.approx(kl(q.mean(0)) - base, abs=1e-4)
    assert (low, high) == pytest.approx((moved - reach, moved + reach), rel=1e-3)


def test_predictions_of_special_tokens_alone_have_no_frequency(words: Any) -> None:
    loaded = planted.causal(words)
    with torch.no_grad():
        loaded.model.lm_head.weight[2, planted.OTHER] = 50  # type: ignore[index,union-attr]
    found = predictions(loaded, TEXTS, planted.counts(), [planted.OTHER], replace(FEW, n_random=0))
    intact, shift = found.of("next").intact, found.shift("next", "last_hidden")
    assert intact.values["special"] == 1
    assert math.isnan(intact.values["log_frequency"])
    assert shift.chosen.values["special"] == 0
    assert math.isnan(shift.changes["log_frequency"].low)
    assert shift.direction == "unknown"
    assert shift.changes["special"].change == -1
    assert shift.changes["special"].high < 0


# Controls, plans, errors.


def test_random_sets_are_seeded_as_large_and_not_the_chosen_one(words: Any) -> None:
    loaded = planted.masked(words, n_layers=2)
    plan = {0: (1, 2), 1: (2,)}
    first, again = (
        predictions(loaded, TEXTS, planted.counts(), plan, replace(FEW, inputs=("masked",))) for _ in range(2)
    )
    assert first.by_layer == plan
    assert first.dims == (1, 2)
    sets = [one.dims for one in first.shift("masked", "layers").random]
    assert sets == [one.dims for one in again.shift("masked", "layers").random]
    assert sets == [one.dims for one in first.shift("masked", "logits").random]
    assert len(set(sets)) == 3
    assert all(len(dims) == 2 and dims != (1, 2) for dims in sets)
    # Two dimensions in layer 0 and one of them in layer 1, scale and bias each: also of random sets.
    assert [one.n_values for one in first.shift("masked", "layers").random] == [6] * 3


def test_everything_is_as_before_afterwards(words: Any) -> None:
    loaded = planted.masked(words)
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    switches = Switches.make(loaded, loaded.stacks[0], "weights", TEXTS, FEW.task, head_norm=True)
    with pytest.raises(RuntimeError), switches.off("layers", {0: (1,)}):
        raise RuntimeError
    with pytest.raises(RuntimeError), switches.off("last_hidden", {0: (1,)}):
        raise RuntimeError
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded.model.modules())


def test_one_text_has_no_interval_and_much_smoothing_is_said(words: Any) -> None:
    options = replace(FEW, n_random=0, smoothing=100.0)
    found = predictions(planted.causal(words), TEXTS.first(1), planted.counts(), [3], options)
    share = 3500 / (3500 + planted.counts().n_tokens)
    assert f"smoothing makes up {share:.0%} of the corpus' distribution" in found.notes[-2]
    assert "one text" in found.notes[-1]
    assert found.shift("next", "last_hidden").direction == "unknown"
    assert all(math.isnan(moved.low) for moved in found.shift("next", "last_hidden").changes.values())


def test_what_cannot_be_measured_says_why(words: Any) -> None:
    counts = random_counts()
    bare = model_of("bert", "", words)
    with pytest.raises(BadInput, match=r"bert has no vocabulary head .*states.*masked or causal language model"):
        predictions(bare, TEXTS, counts, [1], FEW)
    bert = planted.masked(words)
    with pytest.raises(BadInput, match=r"input 'next' is not for a masked model; planted-bert has masked, unmasked"):
        predictions(bert, TEXTS, counts, [1], replace(FEW, inputs=("next",)))
    with pytest.raises(BadInput, match=r"finds no outlier to switch off; name dimensions \(--dims\)"):
        predictions(bert, TEXTS, counts, "find", FEW)
    with pytest.raises(BadInput, match=r"counts 3 tokens with ids from 40 up.*this model's tokenizer"):
        predictions(bert, TEXTS, replace(counts, counts=np.ones(43, dtype=np.int64)), [1], FEW)
    with pytest.raises(BadInput, match="counts no ordinary token"):
        predictions(bert, TEXTS, replace(counts, counts=np.zeros(40, dtype=np.int64)), [1], FEW)
    albert = model_of("albert", "MaskedLM", words)
    with pytest.raises(BadInput, match="has 8 dimensions, the stream 16; leave it out"):
        predictions(albert, TEXTS, counts, [1], replace(FEW, interventions=("logits",)))
    some = predictions(albert, TEXTS, counts, [1], replace(FEW, n_random=0, inputs=("masked",)))
    assert [shift.intervention for shift in some.shifts] == ["layers", "last_hidden"]
    assert "logits left out" in some.notes[0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"inputs": ("said",)}, "unknown input 'said'; inputs are masked, unmasked, next"),
        ({"interventions": ()}, "interventions are layers, last_hidden, logits"),
        ({"mode": "scale"}, "mode scale switches nothing off"),
        ({"smoothing": 0.0}, "smoothing is 0.0; it must be more than 0"),
        ({"n_bootstrap": 3}, "n_bootstrap is 3; it must be at least 20"),
        ({"task": TaskOptions(blocks=True)}, "blocks join texts"),
    ],
)
def test_options_that_cannot_be_used(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        PredictionOptions(**wrong)


@pytest.mark.parametrize("mode", ["zero", "mean", "writes", "resample"])
def test_every_mode_switches_off_in_all_layers(mode: Any, words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words)
    options = replace(FEW, mode=mode, inputs=("unmasked",), interventions=("layers",), n_random=0)
    found = predictions(loaded, TEXTS, random_counts(), [2], options)
    assert found.shift("unmasked", "layers").changes["entropy"].change != 0
    assert mode in found.mode
