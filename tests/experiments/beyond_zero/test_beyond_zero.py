"""Bias or information: planted dimensions of each kind get their verdict, and every number is that of a plain loop."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import treated_results
from architectures import FAMILIES, build
from conftest import Words
from outlierlens.ablation.switches import EditSettings, edited_hidden, mean_states
from outlierlens.data.texts import Texts, batches
from outlierlens.errors import BadInput
from outlierlens.experiments.beyond_zero import BeyondOptions, beyond_zero
from outlierlens.experiments.beyond_zero.charts import beyond_zero as draw
from outlierlens.experiments.beyond_zero.measure import recovered
from outlierlens.experiments.beyond_zero.result import BeyondZero
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.report.result import Joined, joined_sections, with_result
from outlierlens.results.document import load
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from planted import tiny

DIM = 5
OPTIONS = BeyondOptions(n_random=2, scales=(2.0,), n_folds=2, task=TaskOptions(batch_size=4))


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


def found_in(kind: str, **more: Any) -> BeyondZero:
    options = replace(OPTIONS, task=replace(OPTIONS.task, name="output change"), **more)
    return beyond_zero(planted(kind), texts(20), [DIM], options)


def test_the_mean_of_a_constant_recovers_everything() -> None:
    found = found_in("constant")
    (treated,) = found.treated
    for name in ("mean", "position mean", "resample"):
        one = treated.of(name)
        assert (one.recovered, one.recovered_low, one.recovered_high) == pytest.approx((1, 1, 1), abs=1e-5)
    assert treated.of("zero").recovered == 0
    assert treated.verdict == "fixed"
    assert treated.of("zero").p == pytest.approx(1 / 3)


def test_what_only_the_position_decides_is_recovered_by_its_mean() -> None:
    (treated,) = found_in("by position").treated
    assert treated.of("position mean").recovered_low > 0.99
    assert treated.of("mean").recovered_high < 0.5
    assert treated.verdict == "by position"


def test_no_mean_recovers_what_each_token_says() -> None:
    (treated,) = found_in("information").treated
    assert treated.of("mean").recovered_high < 0.5
    assert treated.of("position mean").recovered_high < 0.5
    assert treated.verdict == "information"
    assert treated.place == "other tokens"  # one first token of many
    assert treated.of("zero, first token only").change < treated.of("zero, first token kept").change


def test_every_number_is_that_of_a_plain_loop() -> None:
    model = tiny("gpt2", "CausalLM", "causal")
    data = texts(17)
    options = replace(OPTIONS, n_random=1, seed=3)
    found = beyond_zero(model, data, [DIM, 2], options)
    (treated,) = found.treated
    assert found.task == "causal loss"
    parts = [range(0, 17, 2), range(1, 17, 2)]
    assert found.texts == (*range(0, 17, 2), *range(1, 17, 2))
    random = treated.random_dims[0]
    assert not {DIM, 2} & set(random)
    for dims, of in (((2, DIM), lambda one: one.value), (random, lambda one: found.intact + one.random[0])):
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
                ("scale 2", "scale once", {"factor": 2.0}),
                ("zero, first token kept", "zero", {"tokens": "rest"}),
                ("zero, first token only", "zero", {"tokens": "first"}),
            ):
                with edited_hidden(model, dims, mode, settings=replace(settings, **more)):  # type: ignore[arg-type]
                    values[name] = values.get(name, []) + task.per_text()[0].tolist()
        for name, mine in values.items():
            one = treated.of(name)
            assert of(one) == pytest.approx(np.average(mine, weights=weights), abs=1e-6)
            if dims != random:
                assert one.per_text == pytest.approx(mine, abs=1e-6)
                assert one.change == pytest.approx(one.value - found.intact)
                assert one.low <= one.change <= one.high
    assert found.weights == tuple(weights)


def test_recovered_by_hand() -> None:
    intact, zero, other, weights = (np.array(values, dtype=float) for values in ([1, 1], [3, 5], [2, 1], [1, 3]))
    share, low, high = recovered(intact, zero, other, weights)
    assert share == pytest.approx(13 / 14)  # zero loses 2 + 3·4, of which 1 + 3·4 are not lost
    assert math.isnan(low), "two texts settle nothing"
    assert math.isnan(high)
    many = [np.concatenate([values] * 8) for values in (intact, zero, other, weights)]
    away = (np.tile([1, 12], 8) - 13 / 14 * np.tile([2, 12], 8)) / 7  # Σ above / Σ below, linearised
    share, low, high = recovered(*many)
    reach = stats.t.ppf(0.975, 15) * away.std(ddof=1) / 4
    assert (share, low, high) == pytest.approx((13 / 14, 13 / 14 - reach, 13 / 14 + reach), abs=2e-3)
    assert all(math.isnan(one) for one in recovered(intact, zero, np.array([2, np.inf]), weights))


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
    treated = treated_results.treated(mean, by_position, kept, zero=zero)
    assert (treated.verdict, treated.place) == (verdict, place)


def test_damage_below_that_of_a_random_set_is_none() -> None:
    treated = treated_results.treated()
    assert treated.verdict == "by position"
    worse = tuple(replace(one, random=(0.01, 2.5)) for one in treated.treatments)
    assert replace(treated, treatments=worse).verdict == "no damage"


def test_each_dimension_alone_and_layers() -> None:
    found = beyond_zero(planted("constant"), texts(16), [DIM, 2], replace(OPTIONS, each=True, layers=(0, 2)))
    assert [one.dims for one in found.treated] == [(2, DIM), (2,), (DIM,)]
    assert found.layers == (0, 2)
    assert found.of(DIM).of("mean").recovered == pytest.approx(1, abs=1e-4)
    assert found.of(2).random_dims == found.of(DIM).random_dims  # singles share their random dimensions
    assert found.of(2).of("zero").random == found.of(DIM).of("zero").random
    assert {len(dims) for dims in found.of(DIM, 2).random_dims} == {2}
    with pytest.raises(BadInput, match="9 were not treated; there are 2, 5; 2; 5"):
        found.of(9)


def test_sentence_vectors_are_what_a_model_without_a_head_is_measured_by() -> None:
    model = planted("information")
    data = texts(6)
    found = beyond_zero(model, data, [DIM], OPTIONS)
    assert (found.task, found.unit) == ("sentence change", "cosine distance")
    assert found.intact == pytest.approx(0, abs=1e-6)
    vectors = []
    for dims, mode in (([0], "scale"), ([DIM], "zero")):
        rows = []
        for text in data.texts:
            inputs = model.tokenizer(text, return_tensors="pt")  # type: ignore[misc]
            with torch.no_grad(), edited_hidden(model, dims, mode, settings=EditSettings(factor=1.0)):  # type: ignore[arg-type]
                rows.append(model.model(**inputs).last_hidden_state[0].mean(0))
        vectors.append(torch.stack(rows))
    expected = 1 - torch.nn.functional.cosine_similarity(vectors[0], vectors[1])
    zero = found.treated[0].of("zero")
    assert zero.per_text == pytest.approx(expected[list(found.texts)].tolist(), abs=1e-5)
    assert zero.value == pytest.approx(float(expected.mean()), abs=1e-5)  # texts weigh alike
    assert zero.also is not None
    assert zero.also["pooled cosine distance"] == pytest.approx(zero.value)


def test_who_names_the_dimensions() -> None:
    model = planted("constant")
    found = beyond_zero(model, texts(4), "find", replace(OPTIONS, find="observe"))
    assert found.named_by == "the rule llm.int8 on activations"
    assert found.treated[0].dims == (DIM,)
    plain = tiny("bert")
    found = beyond_zero(plain, texts(4), "find", replace(OPTIONS, find="scan", n_random=0))
    assert "largest |z| in the weights, as the scan names none" in found.named_by
    assert "which is no finding" in found.notes[0]
    assert found.treated[0].of("zero").p is None


def test_finished_conditions_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = planted("information"), tmp_path / "rows.jsonl"
    first = beyond_zero(model, texts(4), [DIM], OPTIONS, rows=rows)
    kept = rows.read_text()
    monkeypatch.setattr("outlierlens.experiments.beyond_zero.measure.edited_hidden", None)  # nothing is measured again
    again = beyond_zero(model, texts(4), [DIM], OPTIONS, rows=rows)
    assert again.treated == first.treated
    assert rows.read_text() == kept
    with pytest.raises(BadInput, match="seed"):
        beyond_zero(model, texts(4), [DIM], replace(OPTIONS, seed=1), rows=rows)


def test_positions_that_no_other_text_reaches_are_told() -> None:
    data = Texts("made up", ("w1 w2 w3", "w4 w5 w6", "w1 w2 w3 w4 w5 w6 w7 w8 w9", "w3 w2 w1"))
    found = beyond_zero(planted("information"), data, [DIM], OPTIONS)
    # 5, 5, 11 and 5 tokens with the special ones; six of the third text's are beyond the others'.
    assert found.no_mean == pytest.approx(6 / 26)
    assert any(
        note.startswith("23% of the tokens stand where no text of the other parts has a token") for note in found.notes
    )


def test_requests_that_cannot_be_met() -> None:
    model = planted("information")
    for data, dims, more, message in (
        (texts(1), [DIM], {}, "1 texts: the mean of others needs at least two"),
        (texts(4), [99], {}, "dimension 99 does not exist"),
        (texts(4), [DIM], {"layers": (7,)}, "layer 7 does not exist"),
        (texts(4), list(range(16)), {}, "no other set of 16 can be drawn from 16 of 16 dimensions"),
    ):
        with pytest.raises(BadInput, match=message):
            beyond_zero(model, data, dims, replace(OPTIONS, **more))  # type: ignore[arg-type]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"find": "guess"}, "unknown finder 'guess'; they are auto, scan, observe"),
        ({"scales": (math.nan,)}, "scales are"),
        ({"task": TaskOptions(blocks=True)}, "blocks join texts"),
    ]
    for more, message in wrong:
        with pytest.raises(BadInput, match=message):
            replace(OPTIONS, **more)


def test_the_result_is_drawn() -> None:
    found = treated_results.beyond_zero()
    assert found.treated[0].verdict == "by position"
    assert len(list(found.records())) == 2 * 9
    chart = draw(found)
    treatments, sweep = chart.spec["vconcat"]
    assert treatments["layer"][3]["encoding"]["y"]["sort"][0] == "zero"
    points = sweep["layer"][2]["data"]["values"]
    assert [(row["factor"], row["change"]) for row in points if row["set"] == "3, 7"] == [
        (0.0, 2.0), (0.5, 0.4), (1.0, 0.0), (2.0, 0.3), (3.0, 1.5)
    ]  # fmt: skip
    assert "the mean recovers 10 % (5 to 20 %) of it, the mean at each position 90 % (80 to 95 %)" in chart.reading
    assert chart.reading.count("the first token is where it matters") == 2
    (section,) = joined_sections(with_result(Joined(), found))
    assert section.sentences[0].startswith("3, 7: mostly a bias that is fixed for each position.")
    assert [row[0] for row in section.tables[0].rows][:3] == ["zero", "mean", "position mean"]


def test_the_command(tmp_path: Path, run: Any) -> None:
    model = planted("constant")
    model.model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    model.tokenizer.save_pretrained(tmp_path / "model")  # type: ignore[union-attr]
    (tmp_path / "texts.txt").write_text("\n".join(texts(20).texts))
    given = [
        "beyond-zero",
        str(tmp_path / "model"),
        "--data",
        str(tmp_path / "texts.txt"),
        "--device",
        "cpu",
        "--no-progress",
    ]
    out = tmp_path / "out.json"
    words_ = ["--dims", str(DIM), "--random", "2", "--scales", "2", "-o", str(out), "--verbose"]
    code, shown, err = run(*given, *words_, "--chart", str(tmp_path / "chart.json"))
    assert code == 0, err
    assert "5: mostly a fixed bias. Zero changes the sentence change by" in shown
    assert "Zero does damage where" in shown
    assert len(load(out).treated[0].treatments) == 7
    assert json.loads((tmp_path / "chart.json").read_text())["vconcat"]
    for more, message in (
        (["--limit", "1"], "--limit is 1; it must be at least 2"),
        (["--scales", "a"], "cannot read scales 'a'; write 0.5,1.5,2,3"),
        (["--task", "glue:rte"], "--task is 'glue:rte'; use auto"),
        (["--find", "guess"], 'Choose from: "auto", "scan", "observe"'),
        (["--max-seconds", "3"], "--max-seconds belongs to recordings"),
    ):
        code, _, err = run(*given, *more)
        assert code in (1, 2)
        assert message in err


def test_few_texts_are_a_verdict_of_their_own() -> None:
    few = treated_results.beyond_zero()
    (treated,) = few.treated[:1]
    zero = replace(treated.of("zero"), change=1.04, low=math.nan, high=math.nan, random=(0.004,))
    treated = replace(treated, treatments=(zero, *treated.treatments[1:]))
    few = replace(few, treated=(treated,), texts=tuple(range(8)))
    assert (treated.verdict, treated.place) == ("too few texts", "")
    said = few.says(treated)
    assert "no verdict, for 8 texts are too few for an interval; read 16 or more. Zero changes the " in said
    assert "by +1.04 nats per token (95 % interval not settled), random dimensions by +0.004" in said
    assert "no more damage" not in said
