"""Bias or information: planted dimensions of each kind get their verdict, and every number is that of a plain loop."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import treated_results
from architectures import FAMILIES, build
from conftest import Words
from outlierlens.ablation.modes import recovered, treatments
from outlierlens.ablation.switches import EditSettings, edited_hidden, mean_states
from outlierlens.analyses.ablate import AblateOptions, Ablation, ablate
from outlierlens.data.texts import Texts, batches
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.results.rows import Estimate
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from planted import tiny

DIM = 5
OPTIONS = AblateOptions(n_random=2, modes=("all",), n_folds=2, task=TaskOptions(batch_size=4))


def texts(n: int, *, length: int | None = None) -> Texts:
    """`n` texts of random words, all of `length` or of three to eight words."""
    random = np.random.default_rng(7)
    lengths = [length or int(random.integers(3, 9)) for _ in range(n)]
    return Texts("made up", tuple(" ".join(f"w{word}" for word in random.integers(0, 35, size)) for size in lengths))


def planted(kind: str) -> LoadedModel:
    """A BERT without a head whose dimension DIM is the same everywhere, the same at each position, or the token's own."""
    model = build(FAMILIES["bert"])
    with torch.no_grad():
        for layer in model.encoder.layer:
            norm = layer.output.LayerNorm
            norm.weight[DIM], norm.bias[DIM] = (0.0, 9.0) if kind == "constant" else (9.0, 0.0)
            if kind != "constant":  # no token hears of another
                layer.attention.output.dense.weight.zero_()
        signs = torch.tensor([3.0, -3.0]).repeat(20)
        embeddings = model.embeddings
        if kind == "by position":
            embeddings.word_embeddings.weight.zero_()
            embeddings.position_embeddings.weight[:, DIM] = signs[:32]
        if kind == "information":
            embeddings.word_embeddings.weight[:, DIM] = signs
    return from_objects(model, Words.build(), name=kind)


def found_in(kind: str, **more: Any) -> Ablation:
    options = replace(OPTIONS, task=replace(OPTIONS.task, name="output change"), **more)
    return ablate(planted(kind), texts(20), [DIM], options)


def test_the_mean_of_a_constant_recovers_everything() -> None:
    found = found_in("constant")
    for name in ("mean", "position-mean", "resample"):
        one = found.of("5", name).recovered
        assert (one.value, one.low, one.high) == pytest.approx((1, 1, 1), abs=1e-5)
    assert found.of("5", "zero").recovered.value == 0
    assert found.verdict("5") == "fixed"
    assert found.of("5", "zero").p == pytest.approx(1 / 3)


def test_what_only_the_position_decides_is_recovered_by_its_mean() -> None:
    found = found_in("by position")
    assert found.of("5", "position-mean").recovered.low > 0.99
    assert found.of("5", "mean").recovered.high < 0.5
    assert found.verdict("5") == "by position"


def test_no_mean_recovers_what_each_token_says() -> None:
    found = found_in("information")
    assert found.of("5", "mean").recovered.high < 0.5
    assert found.of("5", "position-mean").recovered.high < 0.5
    assert found.verdict("5") == "information"
    assert found.place("5") == "other tokens"  # one first token of many
    kept, only = (found.of("5", f"zero, first token {which}").change.value for which in ("kept", "only"))
    assert only < kept


def test_every_number_is_that_of_a_plain_loop() -> None:
    model = tiny("gpt2", "CausalLM", "causal")
    data = texts(17)
    options = replace(OPTIONS, n_random=1, seed=3)
    found = ablate(model, data, [DIM, 2], options)
    assert found.about.task == "causal loss"
    parts = [range(0, 17, 2), range(1, 17, 2)]
    assert found.texts == (*range(0, 17, 2), *range(1, 17, 2))
    random = found.chosen.random_sets[0]
    assert not {DIM, 2} & set(random)
    for dims, of in (
        ((2, DIM), lambda one: one.value.value),
        (random, lambda one: found.intact.value.value + one.random[0]),
    ):
        values: dict[str, list[float]] = {}
        weights: list[float] = []
        for part, others in zip(parts, parts[::-1], strict=True):
            task = make_task(model, data.some(part), options.task)
            read = batches(model.tokenizer, data.some(others), max_length=128, batch_size=2)
            settings = EditSettings(means=mean_states(model, read), seed=3)
            weights += task.per_text()[1].tolist()
            for name, mode, more in (
                ("zero", "zero", {}),
                ("mean", "mean", {}),
                ("resample", "resample", {}),
                ("scale-once 2", "scale once", {"factor": 2.0}),
                ("zero, first token kept", "zero", {"tokens": "rest"}),
                ("zero, first token only", "zero", {"tokens": "first"}),
            ):
                with edited_hidden(model, dims, mode, settings=replace(settings, **more)):  # type: ignore[arg-type]
                    values[name] = values.get(name, []) + task.per_text()[0].tolist()
        for name, mine in values.items():
            one = found.of("2, 5", name)
            assert of(one) == pytest.approx(np.average(mine, weights=weights), abs=1e-6)
            if dims != random:
                assert one.per_text == pytest.approx(mine, abs=1e-6)
                assert one.change.value == pytest.approx(one.value.value - found.intact.value.value)
                assert one.change.low <= one.change.value <= one.change.high
    assert found.weights == tuple(weights)


def test_recovered_by_hand() -> None:
    intact, zero, other, weights = (np.array(values, dtype=float) for values in ([1, 1], [3, 5], [2, 1], [1, 3]))
    share = recovered(intact, zero, other, weights)
    assert share.value == pytest.approx(13 / 14)  # zero loses 2 + 3·4, of which 1 + 3·4 are not lost
    assert not share.settled, "two texts settle nothing"
    many = [np.concatenate([values] * 8) for values in (intact, zero, other, weights)]
    away = (np.tile([1, 12], 8) - 13 / 14 * np.tile([2, 12], 8)) / 7  # Σ above / Σ below, linearised
    share = recovered(*many)
    reach = stats.t.ppf(0.975, 15) * away.std(ddof=1) / 4
    assert (share.value, share.low, share.high) == pytest.approx((13 / 14, 13 / 14 - reach, 13 / 14 + reach), abs=2e-3)
    assert math.isnan(recovered(intact, zero, np.array([2, np.inf]), weights).value)


@pytest.mark.parametrize(
    ("mean", "by_position", "kept", "zero", "verdict", "place"),
    [
        ((0.9, 0.6, 1.0), (0.9, 0.4, 1.0), (0.6, 0.51, 0.7), 2.0, "fixed", "first token"),
        ((0.6, 0.4, 0.8), (0.9, 0.6, 1.0), (0.4, 0.3, 0.49), 2.0, "by position", "both"),
        ((0.1, 0.0, 0.4), (0.3, 0.2, 0.49), (0.5, 0.3, 0.7), 2.0, "information", "unclear"),
        ((0.1, 0.0, 0.4), (0.3, 0.2, 0.6), (0.5, math.nan, math.nan), 2.0, "unclear", "unclear"),
        ((0.9, 0.6, 1.0), (0.9, 0.6, 1.0), (0.6, 0.51, 0.7), 0.05, "no damage", ""),  # its interval holds 0
        ((0.9, 0.6, 1.0), (0.9, 0.6, 1.0), (0.6, 0.51, 0.7), -2.0, "no damage", ""),
    ],
)
def test_the_rule_of_the_verdict(mean: Any, by_position: Any, kept: Any, zero: float, verdict: str, place: str) -> None:
    found = treated_results.ablation(*treated_results.modes(mean, by_position, kept, zero=zero))
    assert (found.verdict("3, 7"), found.place("3, 7")) == (verdict, place)


def test_damage_below_that_of_a_random_set_is_none() -> None:
    treated = treated_results.modes()
    assert treated_results.ablation(*treated).verdict("3, 7") == "by position"
    worse = tuple(replace(one, random=(0.01, 2.5)) for one in treated)
    assert treated_results.ablation(*worse).verdict("3, 7") == "no damage"


def test_each_dimension_alone_and_layers() -> None:
    found = ablate(planted("constant"), texts(16), [DIM, 2], replace(OPTIONS, each=True, layers=(0, 2)))
    assert list(dict.fromkeys(one.dims for one in found.modes)) == ["2, 5", "2", "5"]
    assert found.about.layers == (0, 2)
    assert found.of("5", "mean").recovered.value == pytest.approx(1, abs=1e-4)
    two, five = found.of("2", "zero"), found.of("5", "zero")
    assert two.random_sets == five.random_sets  # singles share their random dimensions
    assert two.random == five.random
    assert {len(dims) for dims in found.chosen.random_sets} == {2}
    with pytest.raises(BadInput, match="zero of 9 was not measured; there are 2, 5 / zero"):
        found.of("9", "zero")


def test_sentence_vectors_are_what_a_model_without_a_head_is_measured_by() -> None:
    model = planted("information")
    data = texts(6)
    found = ablate(model, data, [DIM], OPTIONS)
    assert (found.about.task, found.about.unit) == ("sentence change", "cosine distance")
    assert found.intact.value.value == pytest.approx(0, abs=1e-6)
    vectors = []
    for dims, mode in (([0], "scale"), ([DIM], "zero")):
        rows = []
        for text in data.texts:
            inputs = model.tokenizer(text, return_tensors="pt")  # type: ignore[misc]
            with torch.no_grad(), edited_hidden(model, dims, mode, settings=EditSettings(factor=1.0)):  # type: ignore[arg-type]
                rows.append(model.model(**inputs).last_hidden_state[0].mean(0))
        vectors.append(torch.stack(rows))
    expected = 1 - torch.nn.functional.cosine_similarity(vectors[0], vectors[1])
    zero = found.of("5", "zero")
    assert zero.per_text == pytest.approx(expected[list(found.texts)].tolist(), abs=1e-5)
    assert zero.value.value == pytest.approx(float(expected.mean()), abs=1e-5)  # texts weigh alike
    assert zero.also["pooled cosine distance"] == pytest.approx(zero.value.value)


def test_who_names_the_dimensions() -> None:
    model = planted("constant")
    found = ablate(model, texts(4), "find", OPTIONS)
    assert found.about.named_by == "the scan of the weights, at 3 sigma"
    assert found.dims == (DIM,)
    plain = tiny("bert")
    found = ablate(plain, texts(4), "find", replace(OPTIONS, n_random=0))
    assert found.about.named_by == "the rule luo on activations"
    assert found.chosen.p is None


def test_positions_that_no_other_text_reaches_are_told() -> None:
    data = Texts("made up", ("w1 w2 w3", "w4 w5 w6", "w1 w2 w3 w4 w5 w6 w7 w8 w9", "w3 w2 w1"))
    found = ablate(planted("information"), data, [DIM], OPTIONS)
    # 5, 5, 11 and 5 tokens with the special ones; six of the third text's are beyond the others'.
    assert found.no_mean == pytest.approx(6 / 26)
    assert any(
        note.startswith("23% of the tokens stand where no text of the other parts has a token") for note in found.notes
    )


def test_requests_that_cannot_be_met() -> None:
    model = planted("information")
    for data, dims, more, message in (
        (texts(1), [DIM], {}, "1 texts: the mean of others needs at least two"),
        (texts(4), list(range(16)), {}, "no other set of 16 can be drawn from 16 of 16 dimensions"),
    ):
        with pytest.raises(BadInput, match=message):
            ablate(model, data, dims, replace(OPTIONS, **more))  # type: ignore[arg-type]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"modes": ("zeor",)}, "unknown mode 'zeor'.* near: 'zero'"),
        ({"modes": ("scale:nan",)}, "the factor must be a number"),
        ({"modes": ("scale-once:1",)}, "other than 0 .* and 1"),
        ({"modes": ("scale",)}, "write scale:2"),
        ({"modes": ("zero:2",)}, "zero takes no factor"),
        ({"modes": ()}, "no mode is named"),
        ({"modes": ("weights",), "tokens": "rest"}, "--tokens rest belongs to modes of hidden states"),
        ({"task": TaskOptions(blocks=True)}, "blocks join texts"),
    ]
    for more, message in wrong:
        with pytest.raises(BadInput, match=message):
            replace(OPTIONS, **more)


def test_embeddings_belong_to_writes_among_several_modes_too() -> None:
    model, data, both = (
        tiny("gpt2", "CausalLM", "causal"),
        texts(8),
        replace(OPTIONS, modes=("zero", "writes"), n_random=0),
    )
    plain, more = (
        ablate(model, data, [DIM], replace(both, embeddings=embeddings)).of("5", "writes").value.value
        for embeddings in (False, True)
    )
    assert abs(plain - more) > 1e-6


def test_tokens_choose_where_a_mode_acts() -> None:
    assert [one.name for one in treatments(("zero", "scale:2"), "first")] == [
        "zero, first token only", "scale 2, first token only"
    ]  # fmt: skip
    alone = ablate(
        planted("information"), texts(8), [DIM], replace(OPTIONS, modes=("zero",), tokens="rest", n_matched=0)
    )
    both = ablate(planted("information"), texts(8), [DIM], OPTIONS)
    named = replace(OPTIONS.task, name="sentence change")
    assert alone.chosen.mode == "edited_hidden zero"
    again = ablate(
        planted("information"),
        texts(8),
        [DIM],
        replace(OPTIONS, modes=("zero",), tokens="rest", n_matched=0, task=named),
    )
    assert again.chosen.value.value == pytest.approx(both.of("5", "zero, first token kept").value.value, abs=1e-6)


def test_few_texts_are_a_verdict_of_their_own() -> None:
    zero, *rest = treated_results.modes()
    few = treated_results.ablation(replace(zero, change=Estimate(1.04), random=(0.004,)), *rest)
    few = replace(few, about=replace(few.about, n_texts=8))
    assert (few.verdict("3, 7"), few.place("3, 7")) == ("too few texts", "")
