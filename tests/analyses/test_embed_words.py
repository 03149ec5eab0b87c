"""Words in context: the search against brute force, reading, whole results against plain loops, planted answers.

How sentences become vectors: each way against plain loops, and what is read of a model's own way.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures import FAMILIES, build
from outlierlens.analyses.embed import EmbedOptions, embed
from outlierlens.analyses.embed_pairs import TextPairs, read_wic
from outlierlens.analyses.embed_pass import (
    GRID,
    Pooling,
    accuracy_interval,
    best_cut,
    chosen,
    crossed,
    folds_of,
    own_pooling,
    sentence_vectors,
)
from outlierlens.data.texts import Texts
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.load import from_objects
from outlierlens.vectors.fixes import parse_fixes
from outlierlens.vectors.read import ReadOptions
from planted import Oracle, some_texts, wrap

pairs_of = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([-1.0, -0.35, 0.1, 0.3, 0.30000001, 0.5, 0.9, 1.0]), min_size=2 * n, max_size=2 * n),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@settings(max_examples=200)
@given(pairs_of)
def test_the_search_equals_brute_force(drawn: tuple[list[float], list[bool]]) -> None:
    truth = np.array(drawn[1])
    cosines = np.array(drawn[0]).reshape(len(truth), 2)
    tried = {
        (layer, threshold): sum((cosines[i, layer] > threshold) == truth[i] for i in range(len(truth)))
        for layer in (0, 1)
        for threshold in GRID
    }
    assert chosen(cosines, truth, GRID) == max(tried, key=lambda key: tried[key])  # max takes the first of equals
    thresholds, accuracy = best_cut(cosines, truth)
    for layer in (0, 1):
        most = max(np.mean((cosines[:, layer] > t) == truth) for t in (-2.0, *cosines[:, layer]))
        assert accuracy[layer] == pytest.approx(most)
        assert np.mean((cosines[:, layer] > thresholds[layer]) == truth) == pytest.approx(most)


def test_neighbouring_floats_are_told_apart() -> None:
    low = 0.5
    cosines = np.array([[low], [np.nextafter(low, 1)]])
    threshold, accuracy = best_cut(cosines, np.array([False, True]))
    assert accuracy.tolist() == [1.0]
    assert (cosines[:, 0] > threshold[0]).tolist() == [False, True]


def test_crossing_chooses_on_the_others_and_keeps_a_word_together() -> None:
    # Fold 0 would choose a threshold that is wrong for fold 1, and the other way round.
    cosines, truth = np.array([[0.35], [0.45], [0.75], [0.85]]), np.array([False, True, False, True])
    folds = np.array([0, 0, 1, 1])
    # On fold 1 the first threshold with both right is 0.8: fold 0 is "different" twice, one right; on fold 0 it is 0.4.
    said = crossed(cosines, truth, folds, GRID)
    assert said.tolist() == [False, False, True, True]
    assert crossed(cosines, truth, np.zeros(4, dtype=int), GRID).all()
    of = folds_of(["a", "b", "a", "c", "b"], 2, seed=0)
    assert (of[0], of[1]) == (of[2], of[4])
    assert sorted(np.bincount(folds_of([str(i) for i in range(30)], 10, 1)).tolist()) == [3] * 10


def write(folder: Path, split: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(**more: Any) -> dict[str, Any]:
    given_row = {"word": "w", "sentence1": "You must carry it .", "sentence2": "Sound carries", "label": True}
    return given_row | {"index1": 2, "index2": 1} | more


def test_places_are_read_as_words_or_as_characters(tmp_path: Path) -> None:
    write(tmp_path, "train", [row(), row(label=0, index1=0)])
    found = read_wic(tmp_path)
    assert found.places[0] == ((9, 14), (6, 13))
    assert found.first[0][slice(*found.places[0][0])] == "carry"
    assert found.places[1][0] == (0, 3)
    assert found.truth.tolist() == [True, False]
    assert len(read_wic(tmp_path, limit=1)) == 1
    by_character = {key: value for key, value in row().items() if not key.startswith("index")}
    write(tmp_path, "validation", [by_character | {"start1": 9, "end1": 14, "start2": 6, "end2": 13}])
    assert read_wic(tmp_path, "validation").places == (found.places[0],)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"index1": 5}, "row 1: the sentence has 5 words, and the word is said to be number 5"),
        ({"index1": -1}, "the word is said to be number -1"),
        ({"index1": "2"}, "the place of the word is '2', which is no number"),
        ({"label": -1}, "label -1 is neither true nor false"),
        ({"sentence2": None}, "row 1: a sentence is missing"),
        ({"sentence1": "You must  carry"}, "said to be at 9 to 9 of a sentence of 15 characters"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    write(tmp_path, "train", [row(**change)])
    with pytest.raises(BadInput, match=says):
        read_wic(tmp_path)


def made_pairs(n: int, seed: int, split: str = "train") -> TextPairs:
    random = np.random.default_rng(seed)
    first, second = (some_texts(n, seed=seed + i).texts for i in (100, 200))
    places = []
    for pair in zip(first, second, strict=True):
        at: list[tuple[int, int]] = []
        for text in pair:
            words = text.split(" ")
            number = int(random.integers(len(words)))
            start = sum(len(word) + 1 for word in words[:number])
            at.append((start, start + len(words[number])))
        places.append((at[0], at[1]))
    truth = random.random(n) < 0.5
    named = tuple(f"word {i % 7}" for i in range(n))
    return TextPairs("wic", "made", split, first, second, truth, words=named, places=tuple(places))


def test_accuracies_are_those_of_a_plain_loop(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    train, validation = made_pairs(40, 1), made_pairs(15, 2, "validation")
    fit = some_texts(60, seed=9)
    options = EmbedOptions(fixes=parse_fixes("standardize,clip"), clip="3", n_draws=200)
    found = embed(loaded, [train, validation], options, fit=fit)
    assert found.fixes == ("raw", "standardize", "clip")
    assert found.layers == ("embeddings", "0", "1", "2")

    def states(texts: tuple[str, ...], places: list[tuple[int, int]]) -> np.ndarray:
        """[layer, word, dim]; the tokenizer has one token per word, and a [CLS] in front."""
        oracle = Oracle(loaded, Texts("t", texts), 128)
        (stack,) = oracle.by_text
        number = [len(text[:start].split()) + 1 for text, (start, _) in zip(texts, places, strict=True)]
        return np.array([[layer[at] for layer in oracle.by_text[stack][i]] for i, at in enumerate(number)]).swapaxes(
            0, 1
        )

    plain = [(text, i) for text in fit.texts for i in range(len(text.split()))]
    spots = [(len(" ".join(text.split()[:i])) + (i > 0), 0) for text, i in plain]
    evaluated = {*train.first, *train.second, *validation.first, *validation.second}
    kept = [i for i, (text, _) in enumerate(plain) if text not in evaluated]
    unique = list(dict.fromkeys(plain[i] for i in kept))
    fitting = states(tuple(text for text, _ in unique), [spots[plain.index(one)] for one in unique])
    mean, std = fitting.mean(1), fitting.std(1, ddof=1)
    for pairs in (train, validation):
        one, two = (states(side, [at[i] for at in pairs.places]) for i, side in enumerate((pairs.first, pairs.second)))
        clipped = [np.where(np.arange(one.shape[-1]) == 3, 0, side) for side in (one, two)]
        clipped = [np.concatenate([side[:1], cut[1:]]) for side, cut in zip((one, two), clipped, strict=True)]
        standard = [(side - mean[:, None]) / std[:, None] for side in (one, two)]
        for column, (a, b) in enumerate(((one, two), standard, clipped)):
            cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)  # [layer, pair]
            rows = [found.score(f"wic {pairs.split}", layer, found.fixes[column]) for layer in found.layers]
            for place, threshold in enumerate(GRID):
                wanted = ((cosine > threshold) == pairs.truth).mean(1)
                np.testing.assert_allclose([one.accuracies[place] for one in rows], wanted, atol=1e-12)
            assert [one.score for one in rows] == [max(one.accuracies) for one in rows]
    raw = found.choice("wic train", "raw")
    assert raw.score == max(one.score for one in found.by_layer if (one.data, one.fix) == ("wic train", "raw"))
    held_out = found.score("wic validation", raw.layer).accuracies[GRID.index(raw.threshold)]
    assert found.choice("wic validation", "raw", "train").score == held_out
    every = found.choice("wic train", "standardize", thresholds="any")
    assert every.score >= found.choice("wic train", "standardize").score
    assert found.data[0].all_true == train.truth.mean()


def test_a_planted_dimension_hides_the_sense_and_clipping_helps(words: Any) -> None:
    """Token ids say the sense; one dimension is large and the same everywhere, so that all cosines are above 0.9."""
    loaded = from_objects(_planted(words), words(), name="planted")
    random = np.random.default_rng(0)
    rows = []
    for i in range(200):
        same = bool(i % 2)
        one = int(random.integers(0, 16))
        two = one if same else 16 + int(random.integers(0, 16))
        rows.append((f"w{one} w{random.integers(33)}", f"w{two} w{random.integers(33)}", same))
    places = tuple(((0, len(a.split()[0])), (0, len(b.split()[0]))) for a, b, _ in rows)
    pairs = TextPairs(
        "wic", "made", "train", tuple(a for a, _, _ in rows), tuple(b for _, b, _ in rows),
        np.array([same for *_, same in rows]), words=tuple(f"x{i}" for i in range(200)), places=places,
    )  # fmt: skip
    options = EmbedOptions(fixes=parse_fixes("clip"), clip="embeddings:5", n_draws=300)
    found = embed(loaded, [pairs], options)
    clip, raw = found.choice("wic train", "clip"), found.choice("wic train", "raw")
    assert (clip.layer, clip.score) == ("embeddings", 1.0)
    assert found.score("wic train", "embeddings").score == 0.5  # every threshold calls all pairs the same
    assert {one.chosen for one in found.choices} == {"best", "held out"}  # there is no validation split
    crossed_clip = found.choice("wic train", "clip", "held out")
    assert crossed_clip.score >= 0.99
    assert raw.score < 1
    assert crossed_clip.says == "helps"
    assert crossed_clip.change.low > 0
    assert clip.change.value == clip.score - raw.score


def _planted(words: Any) -> Any:
    """A tiny BERT whose embeddings are the ids' own vectors plus one dimension that is large everywhere."""
    import torch

    torch.manual_seed(3)
    model = build(FAMILIES["bert"])
    embeddings = next(module for module in model.modules() if hasattr(module, "word_embeddings"))
    with torch.no_grad():
        embeddings.position_embeddings.weight.zero_()
        embeddings.token_type_embeddings.weight.zero_()
        embeddings.word_embeddings.weight.normal_()
        embeddings.LayerNorm.weight.fill_(1.0)
        embeddings.LayerNorm.bias.zero_()
        embeddings.LayerNorm.bias[5] = 60.0
    return model


def test_words_behind_the_longest_text_are_left_out_and_counted(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    long = "w1 w2 w3 w4 w5 w6 w7 w8"
    places = (((0, 2), (3, 5)), ((0, 2), (21, 23)))
    truth = np.array([True, False])
    pairs = TextPairs("wic", "made", "train", (long, long), (long, long), truth, words=("a", "b"), places=places)
    options = EmbedOptions(pooling=Pooling(max_length=5), fixes=parse_fixes("raw"))
    found = embed(loaded, [pairs], options)
    assert (found.data[0].n_pairs, found.data[0].left_out) == (1, 1)
    with pytest.raises(BadInput, match="no pair has both its words within 5 tokens; raise --max-length"):
        embed(loaded, [pairs.some(np.array([False, True]))], options)


def of_words(words: list[str], truth: np.ndarray, first: list[str] | None = None) -> TextPairs:
    """Pairs of these words; every sentence is another, but for those that are given."""
    n = len(words)
    place = ((0, 1), (0, 1))
    one = tuple(first or [f"one {i}" for i in range(n)])
    other = tuple(f"other {i}" for i in range(n))
    return TextPairs("wic", "made", "train", one, other, truth, words=tuple(words), places=(place,) * n)


def test_intervals_draw_words_not_pairs() -> None:
    random = np.random.default_rng(0)
    truth, before, after = (random.random(60) < share for share in (0.5, 0.5, 0.6))
    words = [f"w{i}" for i in range(60)]
    one = accuracy_interval(of_words(words, truth), before, after, seed=0, n_draws=500)
    # every pair four times, all of one word: that many more pairs say nothing new
    many = {"before": np.tile(before, 4), "after": np.tile(after, 4), "seed": 0, "n_draws": 500}
    assert accuracy_interval(of_words(words * 4, np.tile(truth, 4)), **many) == pytest.approx(one)
    # nor do four words that share a sentence
    four = [f"{word}{i}" for i in range(4) for word in words]
    shared = of_words(four, np.tile(truth, 4), [f"sentence {i % 60}" for i in range(240)])
    assert accuracy_interval(shared, **many) == pytest.approx(one)
    change = (after == truth).mean() - (before == truth).mean()
    assert one[0] < change < one[1]
    back = accuracy_interval(of_words(words, truth), after, before, seed=0, n_draws=500)
    assert back == pytest.approx((-one[1], -one[0]), abs=0.02)


def test_the_same_answers_are_no_change() -> None:
    said = np.random.default_rng(0).random(60) < 0.5
    pairs = of_words([f"w{i % 40}" for i in range(60)], ~said)
    assert accuracy_interval(pairs, said, said, seed=0, n_draws=500) == (0, 0)


TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}


@pytest.mark.parametrize(
    ("pooling", "of"),
    [
        (Pooling(), lambda states: states[1:-1].mean(0)),
        (Pooling(special=True), lambda states: states.mean(0)),
        (Pooling("first"), lambda states: states[0]),
        (Pooling("last"), lambda states: states[-1]),
    ],
)
def test_each_way_is_what_it_says(pooling: Pooling, of: Callable[[Any], Any], words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    texts = some_texts(7, seed=3)
    got = sentence_vectors(loaded, texts.texts, pooling, ReadOptions(batch_size=3)).values
    oracle = Oracle(loaded, Texts("t", texts.texts), 128)
    (stack,) = oracle.by_text
    wanted = np.array([[of(layer) for layer in states] for states in oracle.by_text[stack]]).swapaxes(0, 1)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def model(folder: Path, modules: Any, config: Any = None, **files: Any) -> str:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    if config is not None:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"embedding_dimension": 384, "pooling_mode": "cls", "include_prompt": True}, "first"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({}, "mean"),
    ],
)
def test_a_models_own_way_is_read_in_both_formats(tmp_path: Path, config: dict[str, Any], mode: str) -> None:
    name = model(tmp_path, [TRANSFORMER, POOLING], config, sentence_bert_config={"max_seq_length": 77})
    found = own_pooling(name)
    assert (found.mode, found.special, found.max_length, found.notes) == (mode, True, 77, ())


def test_what_else_the_model_does_is_said(tmp_path: Path) -> None:
    dense = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    normalize = {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
    settings = {"default_prompt_name": "query"}
    name = model(
        tmp_path, [TRANSFORMER, POOLING, dense, normalize], {"pooling_mode_mean_tokens": True},
        config_sentence_transformers=settings,
    )  # fmt: skip
    found = own_pooling(name)
    assert found.max_length == 128
    assert found.notes == (
        "the model's own Dense behind the pooling is left out", "the model's own prompt 'query' is left out",
    )  # fmt: skip


def test_without_a_description_it_is_the_librarys_default(tmp_path: Path) -> None:
    found = own_pooling(str(tmp_path))
    assert (found.mode, found.special) == ("mean", True)


@pytest.mark.parametrize(
    ("modules", "config", "error", "says"),
    [
        (
            [TRANSFORMER, POOLING],
            {"pooling_mode_max_tokens": True},
            BadInput,
            "its own pooling is max, which is not supported",
        ),
        (
            [TRANSFORMER, POOLING],
            {"pooling_mode_mean_sqrt_len_tokens": True},
            BadInput,
            "is mean_sqrt_len_tokens, which",
        ),
        ([TRANSFORMER, POOLING], {"pooling_mode": ["cls", "mean"]}, BadInput, "its own pooling is cls and mean"),
        ([TRANSFORMER], {}, BadInput, r"modules.json names no Pooling \(Transformer\)"),
        ([TRANSFORMER, POOLING], None, BadFile, "1_Pooling/config.json, which modules.json names, is missing"),
        ({"no": "list"}, {}, BadFile, "modules.json is not a list of modules"),
        ([TRANSFORMER, POOLING | {"path": "../../etc"}], {}, BadFile, "which is no folder beside it"),
        ([TRANSFORMER, POOLING | {"path": "/etc"}], {}, BadFile, "which is no folder beside it"),
    ],
)
def test_what_cannot_be_followed(tmp_path: Path, modules: Any, config: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        own_pooling(model(tmp_path, modules, config))


def test_damaged_files_and_unknown_ways(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(BadFile, match=r"modules\.json: not valid JSON"):
        own_pooling(str(tmp_path))
    (tmp_path / "modules.json").write_text(" " * (2**20 + 1))
    with pytest.raises(BadFile, match="is too large for a configuration"):
        own_pooling(str(tmp_path))
    with pytest.raises(BadInput, match="pooling is 'max'; use one of mean, first, last"):
        Pooling("max")


@pytest.mark.real
def test_the_samples_own_way(sample: Callable[[str], str]) -> None:
    found = own_pooling(sample("mpnet-base"))
    assert (found.mode, found.special, found.max_length) == ("mean", True, 384)
