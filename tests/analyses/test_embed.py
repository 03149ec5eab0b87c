"""Sentence similarity: scores against scipy, whole results against plain loops, planted answers, and where data may not go."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from architectures import FAMILIES
from outlierlens.analyses import embed_pass
from outlierlens.analyses.embed import EmbedOptions, _choices, _ScoredPairs, elsewhere, embed
from outlierlens.analyses.embed_pairs import TASKS, TextPairs, fit_text, read_sts, sts_tasks
from outlierlens.analyses.embed_pass import PairIndex, Scores, own_pooling, score, spearman
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.results.rows import Estimate
from outlierlens.statistics.means import verdict
from outlierlens.vectors.clip import Clipping
from outlierlens.vectors.fixes import FixSpec, make_fix, parse_fixes, raw_first
from outlierlens.vectors.read import ReadOptions
from planted import Oracle, some_texts, wrap


def pairs_of(
    first: tuple[str, ...], second: tuple[str, ...], gold: Any, task: str = "stsb", subset: tuple[str, ...] = ()
) -> TextPairs:
    return TextPairs(task, f"{task}.jsonl", "test", first, second, np.asarray(gold, dtype=float), subset)


def made_pairs(n: int, seed: int, task: str = "stsb") -> TextPairs:
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
    assert got.pooled[0, 0] == pytest.approx(stats.spearmanr(pairs.truth, cosines).statistic)


def test_cosines_of_any_blocks_are_those_of_single_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(9, 4)).astype(np.float32)
    vectors[2] = 0
    rows = random.integers(0, 9, (2, 11))
    with np.errstate(invalid="ignore"):
        a, b = vectors[rows[0]].astype(float), vectors[rows[1]].astype(float)
        wanted = np.nan_to_num((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))
    for at_once in (4096, 3):
        monkeypatch.setattr(embed_pass, "PAIRS_AT_ONCE", at_once)
        index = PairIndex.of(rows[0], rows[1])
        np.testing.assert_allclose(index.cosines(vectors), wanted, atol=1e-12)
    vectors[rows[0][0]] = np.nan
    with pytest.raises(BadInput, match="a vector to compare is NaN or infinite; use --dtype float32"):
        index.cosines(vectors)


def write(folder: Path, name: str, split: str, pairs: TextPairs) -> None:
    import json

    (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / name / f"{split}.jsonl").open("w") as file:
        for i in range(len(pairs)):
            row: dict[str, Any] = {"sentence1": pairs.first[i], "sentence2": pairs.second[i], "score": pairs.truth[i]}
            file.write(json.dumps(row | ({"subset": pairs.subset[i]} if pairs.subset else {})) + "\n")


def test_reading_says_which_parts_there_are(tmp_path: Path) -> None:
    pairs = pairs_of(("a", "b", "c"), ("d", "a", "c"), [1, 2.5, 3], "sts12", ("surprise.OnWN", "MSRpar", "extra"))
    write(tmp_path, "sts12", "test", pairs)
    write(tmp_path, "stsb", "train", made_pairs(5, 1))
    found = read_sts(TASKS["sts12"], tmp_path)
    assert (found.first, found.second, found.truth.tolist()) == (("a", "b", "c"), ("d", "a", "c"), [1, 2.5, 3])
    assert found.sentences == ("a", "d", "b", "c")
    assert found.subsets == ("MSRpar", "OnWN", "extra")
    assert found.missing == ("MSRvid", "SMTeuroparl", "SMTnews")
    assert len(read_sts(TASKS["sts12"], tmp_path, limit=2)) == 2
    assert sts_tasks(folder=tmp_path) == (TASKS["stsb"], TASKS["sts12"])
    # sts12 has no train split, so the text to fit on is that of the folder's other tasks.
    fit = fit_text((TASKS["sts12"],), tmp_path)
    assert fit.texts == read_sts(TASKS["stsb"], tmp_path, split="train").sentences
    assert fit_text((TASKS["sts12"],), tmp_path / "sts12") is None


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown similarity task 'sts17'; tasks are stsb, sickr, sts12"):
        sts_tasks("stsb,sts17")
    with pytest.raises(BadInput, match="no folder of a similarity task in it; it should hold stsb"):
        sts_tasks(folder=tmp_path)
    with pytest.raises(BadInput, match="no such folder; --data holds one folder per task"):
        read_sts(TASKS["stsb"], tmp_path)
    write(tmp_path, "sickr", "test", pairs_of(("a", "b"), ("c", "d"), [0.5, 3], "sickr"))
    with pytest.raises(BadInput, match=r"row 1: score 0\.5 is outside the scale of sickr, 1 to 5"):
        read_sts(TASKS["sickr"], tmp_path)
    write(tmp_path, "stsb", "test", pairs_of(("a",), ("c",), [1]))
    with pytest.raises(BadInput, match="1 pair has no rank correlation; read at least 2"):
        read_sts(TASKS["stsb"], tmp_path)


def rhos(found: Any, data: str = "stsb") -> np.ndarray:
    """Spearman's ρ of a data set [layer, fix]."""
    return np.array([[found.score(data, layer, fix).score for fix in found.fixes] for layer in found.layers])


def plain_vectors(loaded: Any, texts: tuple[str, ...]) -> np.ndarray:
    """Mean of ordinary tokens [layer, text, dim], text by text with hooks of the test's own."""
    oracle = Oracle(loaded, Texts("t", texts), 128)
    (stack,) = oracle.by_text
    return np.array([[layer[1:-1].mean(0) for layer in states] for states in oracle.by_text[stack]]).swapaxes(0, 1)


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_every_number_is_that_of_a_plain_loop(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    task = made_pairs(30, 1)
    fit = Texts("fit", (*some_texts(150, seed=9).texts, *task.first[:4]))
    evaluated = {*task.first, *task.second}
    options = EmbedOptions(fixes=parse_fixes("clip,standardize,whiten"), clip="0-1:3", n_draws=100)
    found = embed(loaded, [task], options, fit=fit)
    assert found.layers == ("embeddings", "0", "1", "2")
    assert found.fixes == ("raw", "clip", "standardize", "whiten")
    left = tuple(dict.fromkeys(text for text in fit.texts if text not in evaluated))
    assert found.n_dropped == len({*fit.texts} & evaluated) > 0
    assert found.n_fitted == len(left)
    one, two, fitting = (plain_vectors(loaded, side) for side in (task.first, task.second, left))
    for layer in range(4):
        a, b, mine = one[layer], two[layer], fitting[layer]
        keep = np.arange(a.shape[1]) != (3 if layer in (1, 2) else -1)
        mean, std = mine.mean(0), mine.std(0, ddof=1)
        shrinkage = found.shrinkage[layer]
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
            rho = stats.spearmanr(task.truth, cosines).statistic
            assert rhos(found)[layer, fix] == pytest.approx(rho, abs=2e-3), (layer, fix)
        assert rhos(found)[layer, 0] == pytest.approx(stats.spearmanr(task.truth, wanted[0]).statistic)


def test_a_sentence_goes_through_the_model_once(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    first = made_pairs(20, 1)
    second = pairs_of(first.second, first.first, first.truth, "sts13")
    seen: list[str] = []

    def count(_: Any, __: Any, given: dict[str, Any]) -> None:
        seen.extend(str(row.tolist()) for row in given["input_ids"])

    hook = loaded.model.register_forward_pre_hook(count, with_kwargs=True)
    found = embed(loaded, [first, second], EmbedOptions(fixes=parse_fixes("raw"), n_draws=50))
    hook.remove()
    assert len(seen) == len(set(first.sentences)) == found.about.n_texts
    assert rhos(found).tolist() == rhos(found, "sts13").tolist()  # a pair has no order


def test_the_same_numbers_in_any_batch_and_for_a_decoder_with_its_final_norm(words: Any) -> None:
    loaded = wrap(FAMILIES["llama"], words(kind="causal"))
    task = made_pairs(25, 4)
    read = ReadOptions(final_norm=True, batch_size=3)
    normed = embed(loaded, [task], EmbedOptions(read=read, fixes=parse_fixes("raw"), n_draws=50))
    again = embed(loaded, [task], EmbedOptions(fixes=parse_fixes("raw"), n_draws=50))
    assert normed.final_norm
    np.testing.assert_allclose(rhos(again), rhos(normed), atol=1e-12)
    plain = embed(loaded, [task], EmbedOptions(read=ReadOptions(), fixes=parse_fixes("raw"), n_draws=50))
    assert not plain.final_norm
    assert np.abs(rhos(plain) - rhos(normed)).max() > 1e-6


def work_of(layers: tuple[str, ...], clipped: tuple[str, ...] = (), fixes: str = "raw,clip", **more: Any) -> Any:
    """What `_choices` asks of a pass."""
    clipping = Clipping("by hand", dict.fromkeys(clipped, (4,)), "")
    options = EmbedOptions(fixes=parse_fixes(fixes), **more)
    return SimpleNamespace(layers=layers, specs=raw_first(options.fixes), clipping=clipping, options=options)


def synthetic(n: int = 700, width: int = 12) -> tuple[TextPairs, np.ndarray]:
    """Pairs whose cosine says the gold score, but for dimension 4, which is large noise in layer 0 alone [layer, row, dim]."""
    random = np.random.default_rng(7)
    one = random.normal(size=(n, width))
    mix = random.random(n)[:, None]
    two = mix * one + (1 - mix) * random.normal(size=(n, width))
    good = np.concatenate([one, two])
    bad = good.copy()
    bad[:, 4] = 40 + 30 * random.normal(size=2 * n)
    texts = tuple(map(str, range(2 * n)))
    return pairs_of(texts[:n], texts[n:], 5 * mix[:, 0]), np.stack([bad, good])


def test_planted_noise_in_one_dimension_is_found_to_hurt_and_its_clipping_to_help() -> None:
    pairs, held = synthetic()
    index = PairIndex.of(np.arange(len(pairs)), np.arange(len(pairs)) + len(pairs))
    dims = ((), (4,)), ((), ())  # nothing is clipped in layer 1
    found = [
        [index.cosines(vectors, make_fix(FixSpec("clip"), 12, dims=some)) for some in one]
        for vectors, one in zip(held, dims, strict=True)
    ]
    cosines = np.array(found).transpose(2, 0, 1)
    measured = _ScoredPairs(pairs, cosines, score(pairs, cosines))
    low, clean = measured.scores.pooled
    assert low[0] < 0.4
    assert low[1] > 0.8
    assert clean[0] == clean[1] == spearman(pairs, held[1][list(map(int, pairs.sentences))])
    # On the last layer clip is raw to the last bit; on the first it helps.
    work = work_of(("0", "1"), n_draws=300)
    found_at = {(one.fix, one.chosen): one for one in _choices(work, measured, None)}
    assert {one.chosen for one in found_at.values()} == {"best", "last"}
    last = found_at["clip", "last"]
    assert (last.layer, last.change, last.says) == ("1", Estimate(0, 0, 0), "no difference")
    assert found_at["raw", "best"].layer == "1"
    # Which says nothing about clipping: the layer that is clipped is compared with itself.
    ways = _choices(work_of(("0", "1"), ("0",), n_draws=300), measured, None)
    (there,) = [one for one in ways if one.chosen == "clipped layer"]
    assert (there.fix, there.layer, there.raw_layer, there.says) == ("clip", "0", "0", "helps")
    assert there.change.value == pytest.approx(low[1] - low[0])
    first = _ScoredPairs(pairs, cosines[:, :1], score(pairs, cosines[:, :1]))
    ways = _choices(work_of(("0",), n_draws=300), first, None)
    (best,) = [one for one in ways if (one.fix, one.chosen) == ("clip", "best")]
    assert best.says == "helps"
    assert 0 < best.change.low < best.change.value < best.change.high
    assert best.change.value == pytest.approx(low[1] - low[0])


def test_intervals_hold_the_difference_of_resampled_scipy() -> None:
    """Of so many pairs with normal values it lies about where a plain percentile bootstrap of scipy's ρ has it."""
    random = np.random.default_rng(0)
    n = 900
    gold = random.normal(size=n)
    cosines = np.stack([gold + random.normal(size=n) * noise for noise in (2.0, 1.0)], axis=1)[:, None]
    texts = tuple(map(str, range(n)))
    pairs = pairs_of(texts, texts, gold)
    found = _choices(work_of(("0",)), _ScoredPairs(pairs, cosines, score(pairs, cosines)), None)
    one = next(one for one in found if (one.fix, one.chosen) == ("clip", "last"))
    drawn = []
    for _ in range(500):
        some = random.integers(0, n, n)
        rho = [stats.spearmanr(gold[some], cosines[some, 0, fix]).statistic for fix in (0, 1)]
        drawn.append(rho[1] - rho[0])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert one.change.low == pytest.approx(low, abs=0.02)
    assert one.change.high == pytest.approx(high, abs=0.02)


def test_where_a_layer_is_chosen() -> None:
    def of(task: str, pooled: list[list[float]], n: int = 3) -> _ScoredPairs:
        texts = tuple(f"{task} {i}" for i in range(n))
        values = np.array(pooled)
        return _ScoredPairs(
            pairs_of(texts, texts, range(n), task), np.zeros((n, 2, 1)), Scores(values, values, values, values)
        )

    mine = of("sts12", [[0.9], [0.1]])
    others = [mine, of("sts13", [[0.2], [0.4]]), of("sts14", [[0.5], [0.4]])]
    own = elsewhere(mine, [of("stsb", [[0], [1]]), of("sts12", [[0.3], [0.2]])], others)
    assert own[0] == "validation split (3 pairs)"
    borrowed = elsewhere(mine, [of("sickr", [[5], [5]]), of("stsb", [[0], [1]])], others)
    assert (borrowed[0], borrowed[1].tolist()) == ("stsb's validation split (3 pairs)", [[0], [1]])
    rest = elsewhere(mine, [], others)
    assert rest[0] == "mean of sts13, sts14"
    np.testing.assert_allclose(rest[1], [[0.35], [0.4]])
    assert elsewhere(mine, [], [mine]) is None
    ways = _choices(work_of(("0", "1"), fixes="raw", n_draws=50), mine, rest)
    held = next(one for one in ways if one.chosen == "held out")
    assert (held.layer, held.score) == ("1", 0.1)  # best there, however bad it is here


def test_evaluated_sentences_reach_neither_fit_nor_choice(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    task, dev = made_pairs(20, 1), made_pairs(160, 30)
    mixed = replace(
        dev, split="validation", first=(*task.first[:5], *dev.first), second=(*dev.second[:5], *dev.second),
        truth=np.concatenate([dev.truth[:5], dev.truth]),
    )  # fmt: skip
    options = EmbedOptions(fixes=parse_fixes("standardize"), n_draws=50)
    fit = some_texts(80, seed=5)
    found = embed(loaded, [task], options, fit=fit, dev=[mixed])
    clean = mixed.without({*task.sentences})
    assert not {*clean.sentences} & {*task.sentences}
    assert any(f"{165 - len(clean)} of 165 pairs share a sentence" in note for note in found.notes)
    spaced = Texts("fit", tuple(f" {text}  " for text in (*task.sentences, *clean.sentences)) + fit.texts)
    again = embed(loaded, [task], options, fit=spaced, dev=[mixed])
    assert again.n_dropped >= len({*task.sentences} | {*clean.sentences})
    assert rhos(again).tolist() == rhos(found).tolist()
    with pytest.raises(BadInput, match="are evaluated ones, so 0 is left to fit on; give other texts"):
        embed(loaded, [task], options, fit=Texts("test.parquet", task.sentences))
    with pytest.raises(BadInput, match="these fixes need a text to fit on, and all texts here are evaluated"):
        embed(loaded, [task], options)
    with pytest.raises(BadInput, match="at least one set of pairs, each once"):
        embed(loaded, [task, task], options, fit=fit)


def test_few_dev_pairs_choose_nothing_and_one_layer_needs_none(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    task = made_pairs(20, 1)
    few = replace(made_pairs(60, 30), split="validation")
    raw = parse_fixes("raw")
    found = embed(loaded, [task], EmbedOptions(fixes=raw, n_draws=50), dev=[few])
    assert {one.chosen for one in found.choices} == {"best", "last"}
    many = replace(made_pairs(150, 30), split="validation")
    whole = embed(loaded, [task], EmbedOptions(fixes=raw, n_draws=50), dev=[many])
    assert {one.chosen for one in whole.choices} == {"best", "held out", "last"}
    last = embed(loaded, [task], EmbedOptions(fixes=raw, read=ReadOptions(layers=(2,)), n_draws=50), dev=[many])
    assert {one.chosen for one in last.choices} == {"best", "last"}
    assert last.about.n_texts == len(task.sentences)
    np.testing.assert_allclose(rhos(last), rhos(whole)[-1:])


def test_a_verdict_is_what_the_interval_says() -> None:
    ends = ((0.01, 0.1), (-0.1, -0.01), (-0.1, 0.1), (0, 0), (np.nan, np.nan))
    wanted = ["helps", "hurts", "no difference", "no difference", "not settled"]
    assert [verdict(*one) for one in ends] == wanted


@pytest.mark.real
@pytest.mark.parametrize(("name", "mteb"), [("minilm-l6", 82.0325)])
def test_the_models_own_way_agrees_with_mteb(
    name: str, mteb: float, sample: Callable[[str], str], evaluation_data: Path
) -> None:
    """`mteb` is what mteb 2.26.24 with sentence-transformers 6.2.0 gave for the same file."""
    from outlierlens.models.load import LoadOptions, load_model

    loaded = load_model(sample(name), LoadOptions(dtype="float32", device="cpu"))
    last = loaded.stacks[0].n_layers - 1
    pairs = read_sts(TASKS["stsb"], evaluation_data / "sts")
    options = EmbedOptions(
        pooling=own_pooling(name),
        read=ReadOptions(layers=(last,), final_norm=True),
        fixes=parse_fixes("raw"),
        n_draws=50,
    )
    assert options.pooling.says == "mean of all tokens, special ones counted"
    found = embed(loaded, [pairs], options)
    assert 100 * rhos(found)[0, 0] == pytest.approx(mteb, abs=0.01)
