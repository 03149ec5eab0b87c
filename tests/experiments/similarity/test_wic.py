"""Words in context: the search against brute force, reading, whole results against plain loops, planted answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures import FAMILIES, build
from outlierlens import charts
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.similarity.options import WicOptions
from outlierlens.experiments.similarity.result import WordPairs
from outlierlens.experiments.similarity.scores import GRID, best, best_cut, chosen, crossed, folds_of, right_at
from outlierlens.experiments.similarity.view import sections
from outlierlens.experiments.similarity.wic import WicPairs, _ByFamily, read_wic, wic
from outlierlens.models.load import from_objects
from outlierlens.results.document import from_json
from outlierlens.vectors.fixes import parse_fixes
from outlierlens.view.section import cell_text
from planted import Oracle, some_texts, wrap
from similar_results import words as made_words

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
    layer, place = best(right_at(cosines, truth, GRID))
    assert (layer, GRID[place]) == max(tried, key=lambda key: tried[key])  # max takes the first of equals
    assert chosen(cosines, truth, GRID) == (layer, GRID[place])
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


def made_pairs(n: int, seed: int, split: str = "train") -> WicPairs:
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
    return WicPairs("made", split, tuple(f"word {i % 7}" for i in range(n)), first, second, tuple(places), truth)


def test_accuracies_are_those_of_a_plain_loop(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    train, validation = made_pairs(40, 1), made_pairs(15, 2, "validation")
    fit = some_texts(60, seed=9)
    options = WicOptions(fixes=parse_fixes("standardize,clip"), clip="3", n_draws=200)
    found = wic(loaded, train, validation, options, fit=fit)
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
    for number, pairs in enumerate((train, validation)):
        one, two = (states(side, [at[i] for at in pairs.places]) for i, side in enumerate((pairs.first, pairs.second)))
        clipped = [np.where(np.arange(one.shape[-1]) == 3, 0, side) for side in (one, two)]
        clipped = [np.concatenate([side[:1], cut[1:]]) for side, cut in zip((one, two), clipped, strict=True)]
        standard = [(side - mean[:, None]) / std[:, None] for side in (one, two)]
        for column, (a, b) in enumerate(((one, two), standard, clipped)):
            cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)  # [layer, pair]
            for place, threshold in enumerate(GRID):
                wanted = ((cosine > threshold) == pairs.truth).mean(1)
                np.testing.assert_allclose(found.data[number].accuracy[:, column, place], wanted, atol=1e-12)
    raw = found.choice("raw")
    assert raw.accuracy == found.data[0].accuracy[:, 0].max()
    chosen_at = found.layers.index(raw.layer), 0, found.thresholds.index(raw.threshold)
    assert raw.held_out == found.data[1].accuracy[chosen_at]
    assert found.choice("standardize", "any").accuracy >= found.choice("standardize").accuracy
    assert found.data[0].all_true == train.truth.mean()


def test_a_planted_dimension_hides_the_sense_and_clipping_helps(words: Callable[..., Any]) -> None:
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
    pairs = WicPairs(
        "made", "train", tuple(f"x{i}" for i in range(200)), tuple(a for a, _, _ in rows), tuple(b for _, b, _ in rows),
        places, np.array([same for *_, same in rows]),
    )  # fmt: skip
    options = WicOptions(fixes=parse_fixes("clip"), clip="embeddings:5", n_draws=300)
    found = wic(loaded, pairs, None, options)
    clip, raw = found.choice("clip"), found.choice("raw")
    assert (clip.layer, clip.accuracy) == ("embeddings", 1.0)
    assert found.data[0].accuracy[0, 0].max() == 0.5  # raw embeddings: every threshold calls all pairs the same
    assert (clip.held_out, clip.held_out_change) == (None, None)
    assert clip.crossed >= 0.99
    assert raw.accuracy < 1
    assert clip.verdict == "helps"
    assert clip.crossed_low > 0
    assert clip.change == clip.accuracy - raw.accuracy


def _planted(words: Callable[..., Any]) -> Any:
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


def test_words_behind_the_longest_text_are_left_out_and_counted(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    long = "w1 w2 w3 w4 w5 w6 w7 w8"
    places = (((0, 2), (3, 5)), ((0, 2), (21, 23)))
    pairs = WicPairs("made", "train", ("a", "b"), (long, long), (long, long), places, np.array([True, False]))
    found = wic(loaded, pairs, None, WicOptions(max_length=5, fixes=parse_fixes("raw")))
    assert (found.data[0].n_pairs, found.data[0].left_out) == (1, 1)
    with pytest.raises(BadInput, match="no pair has both its words within 5 tokens; raise --max-length"):
        wic(loaded, pairs.some(np.array([False, True])), None, WicOptions(max_length=5, fixes=parse_fixes("raw")))


def test_a_text_to_fit_on_is_needed_and_is_not_the_evaluated_one(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    train = made_pairs(10, 1)
    with pytest.raises(BadInput, match="need a text to fit on"):
        wic(loaded, train)
    evaluated = Texts("train.jsonl", (*train.first, *train.second))
    with pytest.raises(BadInput, match=r"train\.jsonl: .* are evaluated ones, so 0 is left to fit on"):
        wic(loaded, train, None, WicOptions(fixes=parse_fixes("whiten")), fit=evaluated)


def test_the_result_gives_rows_and_is_drawn() -> None:
    found = made_words()
    assert len(found.records()) == 2 * 2 * 2 * 2
    (section,) = sections(found)
    raw, clip = (dict(zip(section.tables[0].columns, row, strict=True)) for row in section.tables[0].rows)
    assert (raw["train (chosen on it)"], raw["validation"], raw["says"]) == (65, 63, None)
    assert clip["train (chosen on it)"] == 70
    assert clip["says"] == "no difference"  # cross-validated, though chosen on train it helps
    chart = charts.wic_layers(found)
    (panels,) = [row["hconcat"] for row in chart.spec["vconcat"]]
    assert [panel["title"]["text"] for panel in panels] == ["WiC, train", "WiC, validation"]
    points = {(p["layer"], p["fix"]): p["value"] for p in panels[0]["layer"][1]["data"]["values"]}
    assert points == {("embeddings", "raw"): 55, ("0", "raw"): 65, ("embeddings", "clip"): 60, ("0", "clip"): 70}
    assert {(p["layer"], p["fix"]) for p in panels[0]["layer"][2]["data"]["values"]} == {("0", "raw"), ("0", "clip")}
    assert "Raw vectors reach 65.0 on train (layer 0, chosen on the same pairs), 63.0 cross-validated" in chart.reading
    with pytest.raises(BadInput, match="no choice for whiten"):
        found.choice("whiten")


def test_the_command_prints_what_was_found(tmp_path: Path, words: Callable[..., Any], run: Any, capsys: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    loaded.model.save_pretrained(tmp_path / "model")
    words().save_pretrained(tmp_path / "model")
    for split, n in (("train", 30), ("validation", 10)):
        pairs = made_pairs(n, n, split)
        rows = [
            {"word": pairs.words[i], "sentence1": pairs.first[i], "sentence2": pairs.second[i],
             "start1": pairs.places[i][0][0], "end1": pairs.places[i][0][1], "start2": pairs.places[i][1][0],
             "end2": pairs.places[i][1][1], "label": bool(pairs.truth[i])}
            for i in range(n)
        ]  # fmt: skip
        write(tmp_path / "wic", split, rows)
    capsys.readouterr()  # the model's writing
    common = ["wic", str(tmp_path / "model"), "--data", str(tmp_path / "wic"), "--fixes", "clip", "--clip", "3"]
    code, out, err = run(*common, "-o", str(tmp_path / "out.json"), "--no-progress", "--dtype", "float32")
    assert (code, err) == (0, "")
    found = from_json((tmp_path / "out.json").read_bytes())
    assert "train: 30 pairs; always “the same” is right in" in out
    assert "Clipped dimensions: 3 in 0, 1, 2 (3: named by hand)." in out
    assert "Fixes fitted on" not in out
    assert cell_text(100 * found.choice("clip").crossed) in out
    code, _, err = run(*common, "--special")
    assert (code, err.startswith("error: --special belongs to vectors of sentences")) == (1, True)


def of_words(words: list[str], truth: np.ndarray, first: list[str] | None = None) -> WicPairs:
    """Pairs of these words; every sentence is another, but for those that are given."""
    n = len(words)
    place = ((0, 1), (0, 1))
    one = tuple(first or [f"one {i}" for i in range(n)])
    return WicPairs("made", "train", tuple(words), one, tuple(f"other {i}" for i in range(n)), (place,) * n, truth)


def test_intervals_draw_words_not_pairs() -> None:
    random = np.random.default_rng(0)
    truth, before, after = (random.random(60) < share for share in (0.5, 0.5, 0.6))
    words = [f"w{i}" for i in range(60)]
    one = _ByFamily(of_words(words, truth)).interval(before, after, seed=0, n_draws=500)
    # every pair four times, all of one word: that many more pairs say nothing new
    many = {"before": np.tile(before, 4), "after": np.tile(after, 4), "seed": 0, "n_draws": 500}
    assert _ByFamily(of_words(words * 4, np.tile(truth, 4))).interval(**many) == pytest.approx(one)
    # nor do four words that share a sentence
    four = [f"{word}{i}" for i in range(4) for word in words]
    shared = of_words(four, np.tile(truth, 4), [f"sentence {i % 60}" for i in range(240)])
    assert _ByFamily(shared).interval(**many) == pytest.approx(one)
    change = (after == truth).mean() - (before == truth).mean()
    assert one[0] < change < one[1]
    back = _ByFamily(of_words(words, truth)).interval(after, before, seed=0, n_draws=500)
    assert back == pytest.approx((-one[1], -one[0]), abs=0.02)


def test_the_same_answers_are_no_change() -> None:
    said = np.random.default_rng(0).random(60) < 0.5
    pairs = of_words([f"w{i % 40}" for i in range(60)], ~said)
    assert _ByFamily(pairs).interval(said, said, seed=0, n_draws=500) == (0, 0)
    # 40 words: up to 1 − 0.05^(1/40) = 7.2 % of all may change
    split = WordPairs("train", "made", 60, len(_ByFamily(pairs).sizes), 0, 0.5, np.zeros((1, 1, 1)))
    assert split.interval(0.0, 0.0) == "no change on 60 pairs (at most 7.2 % of all, 95 %)"
    assert split.interval(-0.01, 0.02) == "-1.00 to +2.00"
