"""Sentence similarity: scores against scipy, whole results against plain loops, planted answers, and where data may not go."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from architectures import FAMILIES
from outlierlens import charts
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.similarity import scores as scores_module
from outlierlens.experiments.similarity.fitting import fit_fixes
from outlierlens.experiments.similarity.options import StsOptions
from outlierlens.experiments.similarity.result import Scores, similarity_rows, verdict
from outlierlens.experiments.similarity.scores import (
    MeasuredPairs,
    Names,
    PairIndex,
    choices,
    elsewhere,
    score,
    spearman,
)
from outlierlens.experiments.similarity.sts import measure, sts
from outlierlens.experiments.similarity.table import TASKS, StsPairs, fit_text, found_in, read_sts, sts_tasks
from outlierlens.experiments.similarity.view import sections
from outlierlens.results.document import load
from outlierlens.vectors.clip import Clipping
from outlierlens.vectors.fixes import parse_fixes, raw_first
from outlierlens.vectors.read import ReadOptions, Vectors
from outlierlens.view.section import cell_text
from planted import Oracle, some_texts, wrap
from similar_results import similarity


def pairs_of(
    first: tuple[str, ...], second: tuple[str, ...], gold: Any, task: str = "stsb", subset: tuple[str, ...] = ()
) -> StsPairs:
    return StsPairs(TASKS[task], f"{task}.jsonl", "test", first, second, np.asarray(gold, dtype=float), subset)


def made_pairs(n: int, seed: int, task: str = "stsb") -> StsPairs:
    first, second = (some_texts(n, seed=seed + i).texts for i in (0, 50))
    return pairs_of(first, second, np.random.default_rng(seed).integers(0, 6, n), task)


@settings(max_examples=100)
@given(
    st.integers(2, 15).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 5), min_size=n, max_size=n),
            st.lists(st.sampled_from([-0.5, 0.0, 0.1, 0.25, 0.9, 0.900001]), min_size=n, max_size=n),
        )
    )
)
def test_scores_are_scipys(drawn: tuple[list[int], list[float]]) -> None:
    gold, cosines = np.array(drawn[0]), np.array(drawn[1])
    texts = tuple(map(str, range(len(gold))))
    got = score(pairs_of(texts, texts, gold), cosines[:, None]).pooled[0]
    constant = np.ptp(gold) == 0 or np.ptp(cosines) == 0
    wanted = 0.0 if constant else stats.spearmanr(gold, cosines).statistic
    assert got == pytest.approx(wanted, abs=1e-12)


def test_subsets_by_hand() -> None:
    """Part a is ranked rightly (ρ = 1), part b the other way round (−1); a has three pairs, b two."""
    texts = tuple("abcde")
    pairs = pairs_of(texts, texts, [1, 2, 3, 1, 2], "sts13", ("OnWN", "OnWN", "OnWN", "FNWN", "FNWN"))
    assert pairs.subsets == ("FNWN", "OnWN")
    assert pairs.missing == ("headlines",)
    cosines = np.array([0.1, 0.2, 0.3, 0.6, 0.5])
    got = score(pairs, cosines[:, None, None])
    assert got.subsets[:, 0, 0].tolist() == [-1, 1]
    assert got.mean[0, 0] == 0
    assert got.weighted[0, 0] == pytest.approx((3 - 2) / 5)
    assert got.pooled[0, 0] == pytest.approx(stats.spearmanr(pairs.gold, cosines).statistic)


def test_cosines_of_any_blocks_are_those_of_single_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(9, 4)).astype(np.float32)
    vectors[2] = 0
    rows = random.integers(0, 9, (2, 11))
    with np.errstate(invalid="ignore"):
        a, b = vectors[rows[0]].astype(float), vectors[rows[1]].astype(float)
        wanted = np.nan_to_num((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))
    for at_once in (4096, 3):
        monkeypatch.setattr(scores_module, "PAIRS_AT_ONCE", at_once)
        index = PairIndex.of_rows(rows[0], rows[1])
        np.testing.assert_allclose(index.cosines(vectors), wanted, atol=1e-12)
    vectors[rows[0][0]] = np.nan
    with pytest.raises(BadInput, match="a vector to compare is NaN or infinite; use --dtype float32"):
        index.cosines(vectors)


def write(folder: Path, name: str, split: str, pairs: StsPairs) -> None:
    import json

    (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / name / f"{split}.jsonl").open("w") as file:
        for i in range(len(pairs)):
            row: dict[str, Any] = {"sentence1": pairs.first[i], "sentence2": pairs.second[i], "score": pairs.gold[i]}
            file.write(json.dumps(row | ({"subset": pairs.subset[i]} if pairs.subset else {})) + "\n")


def test_reading_says_which_parts_there_are(tmp_path: Path) -> None:
    pairs = pairs_of(("a", "b", "c"), ("d", "a", "c"), [1, 2.5, 3], "sts12", ("surprise.OnWN", "MSRpar", "extra"))
    write(tmp_path, "sts12", "test", pairs)
    write(tmp_path, "stsb", "train", made_pairs(5, 1))
    found = read_sts(TASKS["sts12"], tmp_path)
    assert (found.first, found.second, found.gold.tolist()) == (("a", "b", "c"), ("d", "a", "c"), [1, 2.5, 3])
    assert found.sentences == ("a", "d", "b", "c")
    assert found.subsets == ("MSRpar", "OnWN", "extra")
    assert found.missing == ("MSRvid", "SMTeuroparl", "SMTnews")
    assert len(read_sts(TASKS["sts12"], tmp_path, limit=2)) == 2
    assert found_in(tmp_path) == (TASKS["stsb"], TASKS["sts12"])
    # sts12 has no train split, so the text to fit on is that of the folder's other tasks.
    fit = fit_text((TASKS["sts12"],), tmp_path)
    assert fit is not None
    assert fit.texts == read_sts(TASKS["stsb"], tmp_path, split="train").sentences
    assert fit_text((TASKS["sts12"],), tmp_path / "sts12") is None


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown similarity task 'sts17'; tasks are stsb, sickr, sts12"):
        sts_tasks("stsb,sts17")
    with pytest.raises(BadInput, match="no folder of a similarity task in it; it should hold stsb"):
        found_in(tmp_path)
    with pytest.raises(BadInput, match="no such folder; --data holds one folder per task"):
        read_sts(TASKS["stsb"], tmp_path)
    write(tmp_path, "sickr", "test", pairs_of(("a", "b"), ("c", "d"), [0.5, 3], "sickr"))
    with pytest.raises(BadInput, match=r"row 1: score 0\.5 is off the scale of sickr, 1 to 5"):
        read_sts(TASKS["sickr"], tmp_path)
    write(tmp_path, "stsb", "test", pairs_of(("a",), ("c",), [1]))
    with pytest.raises(BadInput, match="1 pair has no rank correlation; read at least 2"):
        read_sts(TASKS["stsb"], tmp_path)


def plain_vectors(loaded: Any, texts: tuple[str, ...]) -> np.ndarray:
    """Mean of ordinary tokens [layer, text, dim], text by text with hooks of the test's own."""
    oracle = Oracle(loaded, Texts("t", texts), 128)
    (stack,) = oracle.by_text
    return np.array([[layer[1:-1].mean(0) for layer in states] for states in oracle.by_text[stack]]).swapaxes(0, 1)


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_every_number_is_that_of_a_plain_loop(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    task = made_pairs(30, 1)
    fit = Texts("fit", (*some_texts(150, seed=9).texts, *task.first[:4]))
    evaluated = {*task.first, *task.second}
    options = StsOptions(fixes=parse_fixes("clip,standardize,whiten"), clip="0-1:3", n_draws=100)
    found = sts(loaded, [task], options, fit=fit)
    assert found.layers == ("embeddings", "0", "1", "2")
    assert found.fixes == ("raw", "clip", "standardize", "whiten")
    left = tuple(dict.fromkeys(text for text in fit.texts if text not in evaluated))
    assert found.fitted.dropped == len({*fit.texts} & evaluated) > 0
    assert found.fitted.n == len(left)
    one, two, fitting = (plain_vectors(loaded, side) for side in (task.first, task.second, left))
    for layer in range(4):
        a, b, mine = one[layer], two[layer], fitting[layer]
        keep = np.arange(a.shape[1]) != (3 if layer in (1, 2) else -1)
        mean, std = mine.mean(0), mine.std(0, ddof=1)
        shrinkage = found.fitted.shrinkage[layer]
        covariance = np.cov(mine.T)
        covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / len(mean) * np.eye(len(mean))
        values, directions = np.linalg.eigh(covariance)
        white = directions / np.sqrt(values)
        wanted = [
            cosine(a, b),
            cosine(a * keep, b * keep),
            cosine((a - mean) / std, (b - mean) / std),
            cosine((a - mean) @ white, (b - mean) @ white),
        ]
        for fix, cosines in enumerate(wanted):
            rho = stats.spearmanr(task.gold, cosines).statistic
            assert found.tasks[0].layers.pooled[layer, fix] == pytest.approx(rho, abs=2e-3), (layer, fix)
        assert found.tasks[0].layers.pooled[layer, 0] == pytest.approx(stats.spearmanr(task.gold, wanted[0]).statistic)
    table = loaded.model.get_input_embeddings().weight.detach().numpy()
    ids = [
        [loaded.tokenizer(t, add_special_tokens=False)["input_ids"] for t in side] for side in (task.first, task.second)
    ]
    static = cosine(*(np.array([table[i].mean(0) for i in side]) for side in ids))
    assert found.tasks[0].static.pooled[0, 0] == pytest.approx(stats.spearmanr(task.gold, static).statistic, abs=1e-3)
    assert np.isnan(found.tasks[0].static.pooled[0, 1])  # layers are clipped, static vectors are not
    assert (found.static[0].name, found.static[0].width) == ("input embeddings", table.shape[1])


def test_a_sentence_goes_through_the_model_once(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    first = made_pairs(20, 1)
    second = pairs_of(first.second, first.first, first.gold, "sts13")
    seen: list[str] = []

    def count(_: Any, __: Any, given: dict[str, Any]) -> None:
        seen.extend(str(row.tolist()) for row in given["input_ids"])

    hook = loaded.model.register_forward_pre_hook(count, with_kwargs=True)
    found = sts(loaded, [first, second], StsOptions(fixes=parse_fixes("raw"), n_draws=50))
    hook.remove()
    assert len(seen) == len(set(first.sentences)) == found.n_sentences
    assert found.tasks[0].layers.pooled.tolist() == found.tasks[1].layers.pooled.tolist()  # a pair has no order


def test_the_same_numbers_in_any_batch_and_for_a_decoder_with_its_final_norm(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["llama"], words(kind="causal"))
    task = made_pairs(25, 4)
    read = ReadOptions(final_norm=True, batch_size=3)
    normed = sts(loaded, [task], StsOptions(read=read, fixes=parse_fixes("raw"), n_draws=50))
    again = sts(loaded, [task], StsOptions(fixes=parse_fixes("raw"), n_draws=50))
    assert normed.final_norm
    np.testing.assert_allclose(again.tasks[0].layers.pooled, normed.tasks[0].layers.pooled, atol=1e-12)
    plain = sts(loaded, [task], StsOptions(read=ReadOptions(), fixes=parse_fixes("raw"), n_draws=50))
    assert not plain.final_norm
    assert np.abs(plain.tasks[0].layers.pooled - normed.tasks[0].layers.pooled).max() > 1e-6


def synthetic(n: int = 700, width: int = 12) -> tuple[StsPairs, Vectors, Vectors]:
    """Pairs whose cosine says the gold score, but for dimension 4, which is large noise in layer 0 alone; and a fit text."""
    random = np.random.default_rng(7)
    one = random.normal(size=(n, width))
    mix = random.random(n)[:, None]
    two = mix * one + (1 - mix) * random.normal(size=(n, width))
    good = np.concatenate([one, two])
    bad = good.copy()
    bad[:, 4] = 40 + 30 * random.normal(size=2 * n)
    gold = 5 * mix[:, 0]
    texts = tuple(map(str, range(2 * n)))
    pairs = pairs_of(texts[:n], texts[n:], gold)
    fit = random.normal(size=(2, 500, width))
    fit[0, :, 4] = 40 + 30 * random.normal(size=500)
    held = Vectors(("0", "1"), np.stack([bad, good]).astype(np.float32), np.ones(2 * n, dtype=int), "model", False)
    return pairs, held, Vectors(("0", "1"), fit.astype(np.float32), np.ones(500, dtype=int), "model", False)


def test_planted_noise_in_one_dimension_is_found_to_hurt_and_its_clipping_to_help() -> None:
    pairs, held, fitting = synthetic()
    rows = [*pairs.first, *pairs.second]
    specs = raw_first(parse_fixes("clip,standardize,whiten"))
    fixes = fit_fixes(specs, held.layers, fitting, 12, Clipping("by hand", {"0": (4,)}, ""))
    (measured,) = measure(held, rows, [pairs], fixes)
    low, clean = measured.scores.pooled[0], measured.scores.pooled[1]
    assert low[0] < 0.4
    assert low[1] > 0.8
    assert (
        clean[0] == clean[1] == spearman(pairs, held.values[1], {text: i for i, text in enumerate(rows)})
    )  # nothing is clipped in layer 1
    names = Names(held.layers, tuple(spec.name for spec in specs))
    # On the last layer clip is raw to the last bit; on the first it helps.
    found = {(one.fix, one.how): one for one in choices(measured, None, names, seed=0, n_draws=300)}
    assert {one.how for one in found.values()} == {"best", "last"}
    last = found["clip", "last"]
    assert (last.layer, last.change, last.low, last.high, last.verdict) == ("1", 0, 0, 0, "no difference")
    assert found["raw", "best"].layer == "1"
    # Which says nothing about clipping: the layer that is clipped is compared with itself.
    ways = list(choices(measured, None, names, clipped=("0",), seed=0, n_draws=300))
    (there,) = [one for one in ways if one.how == "clipped layer"]
    assert (there.fix, there.layer, there.raw_layer, there.verdict) == ("clip", "0", "0", "helps")
    assert there.change == pytest.approx(low[1] - low[0])
    first = MeasuredPairs(
        pairs,
        measured.cosines[:, :1],
        Scores(*(np.asarray(part)[..., :1, :] for part in vars(measured.scores).values())),
    )
    (best,) = [
        one
        for one in choices(first, None, Names(("0",), names.fixes), seed=0, n_draws=300)
        if (one.fix, one.how) == ("clip", "best")
    ]
    assert best.verdict == "helps"
    assert 0 < best.low < best.change < best.high
    assert best.change == pytest.approx(low[1] - low[0])


def test_intervals_hold_the_difference_of_resampled_scipy() -> None:
    """Of so many pairs with normal values it lies about where a plain percentile bootstrap of scipy's ρ has it."""
    random = np.random.default_rng(0)
    n = 900
    gold = random.normal(size=n)
    cosines = np.stack([gold + random.normal(size=n) * noise for noise in (2.0, 1.0)], axis=1)[:, None]
    texts = tuple(map(str, range(n)))
    pairs = pairs_of(texts, texts, gold)
    measured = MeasuredPairs(pairs, cosines, score(pairs, cosines))
    found = list(choices(measured, None, Names(("0",), ("raw", "clip")), seed=0))
    one = next(one for one in found if (one.fix, one.how) == ("clip", "last"))
    drawn = []
    for _ in range(500):
        some = random.integers(0, n, n)
        rho = [stats.spearmanr(gold[some], cosines[some, 0, fix]).statistic for fix in (0, 1)]
        drawn.append(rho[1] - rho[0])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert one.low == pytest.approx(low, abs=0.02)
    assert one.high == pytest.approx(high, abs=0.02)


def test_where_a_layer_is_chosen() -> None:
    def of(task: str, pooled: list[list[float]], n: int = 3) -> MeasuredPairs:
        texts = tuple(f"{task} {i}" for i in range(n))
        values = np.array(pooled)
        return MeasuredPairs(
            pairs_of(texts, texts, range(n), task), np.zeros((n, 2, 1)), Scores(values, values, values, values)
        )

    mine = of("sts12", [[0.9], [0.1]])
    others = [mine, of("sts13", [[0.2], [0.4]]), of("sts14", [[0.5], [0.4]])]
    own = elsewhere(mine, [of("stsb", [[0], [1]]), of("sts12", [[0.3], [0.2]])], others)
    assert own is not None
    assert own.says == "validation split (3 pairs)"
    borrowed = elsewhere(mine, [of("sickr", [[5], [5]]), of("stsb", [[0], [1]])], others)
    assert borrowed is not None
    assert (borrowed.says, borrowed.pooled.tolist()) == ("STS-B's validation split (3 pairs)", [[0], [1]])
    rest = elsewhere(mine, [], others)
    assert rest is not None
    assert rest.says == "mean of STS13, STS14"
    np.testing.assert_allclose(rest.pooled, [[0.35], [0.4]])
    assert elsewhere(mine, [], [mine]) is None
    held = next(
        one for one in choices(mine, rest, Names(("0", "1"), ("raw",)), seed=0, n_draws=50) if one.how == "held out"
    )
    assert (held.layer, held.score) == ("1", 0.1)  # best there, however bad it is here
    assert held.chosen_score == pytest.approx(0.4)


def test_evaluated_sentences_reach_neither_fit_nor_choice(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    task, dev = made_pairs(20, 1), made_pairs(160, 30)
    mixed = replace(
        dev, split="validation", first=(*task.first[:5], *dev.first), second=(*dev.second[:5], *dev.second),
        gold=np.concatenate([dev.gold[:5], dev.gold]),
    )  # fmt: skip
    options = StsOptions(fixes=parse_fixes("standardize"), n_draws=50)
    fit = some_texts(80, seed=5)
    found = sts(loaded, [task], options, fit=fit, dev=[mixed])
    clean = mixed.without({*task.sentences})
    assert not {*clean.sentences} & {*task.sentences}
    assert any(f"{165 - len(clean)} of 165 pairs share a sentence" in note for note in found.notes)
    spaced = Texts("fit", tuple(f" {text}  " for text in (*task.sentences, *clean.sentences)) + fit.texts)
    again = sts(loaded, [task], options, fit=spaced, dev=[mixed])
    assert again.fitted.dropped >= len({*task.sentences} | {*clean.sentences})
    assert again.tasks[0].layers.pooled.tolist() == found.tasks[0].layers.pooled.tolist()
    with pytest.raises(BadInput, match="are evaluated ones, so 0 is left to fit on; give another text"):
        sts(loaded, [task], options, fit=Texts("test.parquet", task.sentences))
    with pytest.raises(
        BadInput, match="these fixes need a text to fit on, and there is none beside the evaluated ones"
    ):
        sts(loaded, [task], options)
    with pytest.raises(BadInput, match="at least one task, and each once"):
        sts(loaded, [task, task], options, fit=fit)


def test_few_dev_pairs_choose_nothing_and_one_layer_needs_none(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    task = made_pairs(20, 1)
    few = replace(made_pairs(60, 30), split="validation")
    raw = parse_fixes("raw")
    found = sts(loaded, [task], StsOptions(fixes=raw, n_draws=50), dev=[few])
    assert {one.how for one in found.tasks[0].choices} == {"best", "last"}
    many = replace(made_pairs(150, 30), split="validation")
    whole = sts(loaded, [task], StsOptions(fixes=raw, n_draws=50), dev=[many])
    assert {one.how for one in whole.tasks[0].choices} == {"best", "held out", "last"}
    last = sts(loaded, [task], StsOptions(fixes=raw, read=ReadOptions(layers=(2,)), n_draws=50), dev=[many])
    assert {one.how for one in last.tasks[0].choices} == {"best", "last"}
    assert last.n_sentences == len(task.sentences)
    np.testing.assert_allclose(last.tasks[0].layers.pooled, whole.tasks[0].layers.pooled[-1:])


def test_a_verdict_is_what_the_interval_says() -> None:
    assert [verdict(0.01, 0.1), verdict(-0.1, -0.01), verdict(-0.1, 0.1), verdict(0, 0)] == [
        "helps", "hurts", "no difference", "no difference",
    ]  # fmt: skip


def test_the_result_gives_rows_and_is_drawn() -> None:
    found = similarity()
    rows = list(similarity_rows(found))
    assert len(rows) == 6
    assert rows[3] == {
        "task": "sts13", "layer": "0", "fix": "clip", "pooled": 0.65, "mean": 0.55, "weighted": pytest.approx(0.6),
        "FNWN": pytest.approx(0.45), "OnWN": 0.65,
    }  # fmt: skip
    chart = charts.sts_layers(found)
    ((panel,),) = [row["hconcat"] for row in chart.spec["vconcat"]]
    assert panel["title"]["subtitle"] == "30 pairs; without headlines"
    points = {(p["layer"], p["fix"]): p["value"] for p in panel["layer"][1]["data"]["values"]}
    assert points == {("embeddings", "raw"): 50, ("0", "raw"): 70, ("embeddings", "clip"): 60, ("0", "clip"): 65}
    assert [p["value"] for p in panel["layer"][2]["data"]["values"]] == [70, 65]
    assert panel["layer"][3]["data"]["values"] == [{"value": 40, "says": "input embeddings 40.0"}]
    assert "clip -5.0 (-8.0 to -2.0; hurts)" in chart.reading
    with pytest.raises(BadInput, match="no task 'stsb'; there are sts13"):
        found.task("stsb")
    with pytest.raises(BadInput, match="sts13 has no choice for whiten / best; there are raw / "):
        found.tasks[0].choice("whiten", "best")


def test_a_row_a_fix_and_layer_is_shown() -> None:
    (section,) = sections(similarity())
    assert section.sentences[0] == "STS13: ρ × 100 is highest, 70.00, with raw vectors at layer 0 (the best of all)."
    (table,) = section.tables
    assert table.title == "STS13: 30 pairs (FNWN 10, OnWN 20)"
    assert [list(map(cell_text, row)) for row in table.rows] == [
        ["raw", "best, last", "0", "70", "60", "65", *["–"] * 5],
        ["clip", "best, last", "0", "65", "55", "60", "-5", "-8 to -2", "0", "70", "hurts"],
        ["raw", "static", "input embeddings", "40", "40", "40", *["–"] * 5],
    ]
    task = similarity().tasks[0]
    same = replace(task, choices=tuple(replace(one, change=0.0, low=0.0, high=0.0) for one in task.choices))
    (section,) = sections(replace(similarity(), tasks=(same,)), verbose=True)
    unchanged, by_layer = section.tables
    assert cell_text(unchanged.rows[1][7]) == "no change"
    assert "Where nothing changed: no change on 30 pairs (at most 10 % of all, 95 %)." in unchanged.note
    assert [list(row) for row in by_layer.rows] == [["embeddings", 50, 60], ["0", 70, 65]]


def test_the_command_writes_what_it_prints(tmp_path: Path, words: Callable[..., Any], run: Any, capsys: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    loaded.model.save_pretrained(tmp_path / "model")
    words().save_pretrained(tmp_path / "model")
    data = tmp_path / "sts"
    write(data, "sts13", "test", replace(made_pairs(20, 1, "sts13"), subset=("OnWN",) * 8 + ("FNWN",) * 12))
    write(data, "stsb", "train", made_pairs(80, 3))
    write(data, "stsb", "validation", made_pairs(140, 5))
    arguments = ["sts", str(tmp_path / "model"), "--data", str(data), "--tasks", "sts13", "--fixes", "clip,standardize"]
    arguments += ["--clip", "3", "-o", str(tmp_path / "out.json")]
    arguments += ["--chart", str(tmp_path / "out.json.html"), "--no-progress", "--dtype", "float32"]
    capsys.readouterr()  # the model's writing
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    found = load(tmp_path / "out.json")
    assert found.pooling == "mean of all tokens, special ones left out"
    assert cell_text(100 * found.tasks[0].choice("raw", "last").score) in out
    assert "STS13: 20 pairs (FNWN 12, OnWN 8)" in out
    assert "Held out: layer chosen on STS-B's validation split" in out
    assert [one.name for one in found.static] == ["input embeddings"]
    assert '"text":"STS13"' in (tmp_path / "out.json.html").read_text().replace(": ", ":")
    code, _, err = run("sts", "minilm-l6", "--data", str(data), "--pooling", "max")
    assert (code, err) == (1, "error: --pooling is 'max'; use mean, first, last, own\n")
    code, _, err = run("sts", "minilm-l6", "--data", str(data), "--pooling", "own", "--special")
    assert (code, err) == (1, "error: --special belongs to --pooling mean; own says itself which tokens count\n")


@pytest.mark.real
@pytest.mark.parametrize(("name", "mteb"), [("minilm-l6", 82.0325)])
def test_the_models_own_way_agrees_with_mteb(
    name: str, mteb: float, sample: Callable[[str], str], evaluation_data: Path
) -> None:
    """`mteb` is what mteb 2.26.24 with sentence-transformers 6.2.0 gave for the same file."""
    from outlierlens.experiments.similarity.pooling import own_pooling
    from outlierlens.models.load import LoadOptions, load_model

    loaded = load_model(sample(name), LoadOptions(dtype="float32", device="cpu"))
    last = loaded.stacks[0].n_layers - 1
    pairs = read_sts(TASKS["stsb"], evaluation_data / "sts")
    options = StsOptions(
        pooling=own_pooling(name),
        read=ReadOptions(layers=(last,), final_norm=True),
        fixes=parse_fixes("raw"),
        n_draws=50,
    )
    assert options.pooling.says == "mean of all tokens, special ones counted"
    found = sts(loaded, [pairs], options)
    assert 100 * found.tasks[0].layers.pooled[0, 0] == pytest.approx(mteb, abs=0.01)


@pytest.mark.real
def test_the_models_own_way_agrees_with_sentence_transformers(
    sample: Callable[[str], str], evaluation_data: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    from outlierlens.experiments.similarity.pooling import own_pooling, sentence_vectors
    from outlierlens.models.folder import model_folder
    from outlierlens.models.load import LoadOptions, load_model

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    name = sample("minilm-l6")
    pairs = read_sts(TASKS["sickr"], evaluation_data / "sts", limit=200)
    theirs = library.SentenceTransformer(str(model_folder(name)), device="cpu").encode(list(pairs.sentences))
    loaded = load_model(name, LoadOptions(dtype="float32", device="cpu"))
    mine = sentence_vectors(
        loaded, pairs.sentences, own_pooling(name), ReadOptions(layers=(5,), final_norm=True)
    ).values[0]
    mine = mine / np.linalg.norm(mine, axis=1, keepdims=True)
    np.testing.assert_allclose(mine, theirs, atol=1e-5)
    place = {text: i for i, text in enumerate(pairs.sentences)}
    both = [np.array([place[text] for text in side]) for side in (pairs.first, pairs.second)]
    wanted = stats.spearmanr(pairs.gold, (theirs[both[0]] * theirs[both[1]]).sum(1)).statistic
    assert spearman(pairs, mine) == pytest.approx(wanted, abs=1e-4)
