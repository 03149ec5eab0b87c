"""Geometry of running models: what is drawn, values against each text's own states, fits kept apart, the command, charts."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES
from outlierlens import charts
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.geometry import measure as geometry_run
from outlierlens.experiments.geometry.measure import geometry
from outlierlens.experiments.geometry.options import GeometryOptions
from outlierlens.experiments.geometry.result import Geometry
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import from_json, to_json
from outlierlens.vectors.fixes import parse_fixes
from outlierlens.vectors.read import ReadOptions, Tokens, tokenise
from outlierlens.vectors.spans import WORD, Drawing, Sample, draw
from planted import Oracle, wrap

PLANTED = 5
SMALL = Drawing(n_pairs=20, n_words=6, min_sentences=4, max_contexts=5, max_tokens=150)
EVERY = parse_fixes("raw,clip,centre,standardize,abtt:2,whiten")


def some_texts(n: int, seed: int, longest: int = 7) -> Texts:
    """Different texts of words that are not equally frequent."""
    random = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < n:
        words = random.integers(2, longest + 1)
        found[" ".join(f"w{int(33 * random.beta(1, 3))}" for _ in range(words))] = None
    return Texts(f"made {seed}", tuple(found))


@pytest.fixture(scope="module")
def planted(words: Callable[..., Any]) -> LoadedModel:
    """A BERT of three blocks, the last of which makes dimension 5 the largest entry of every vector."""
    loaded = wrap(FAMILIES["bert"], words())
    with torch.no_grad():
        loaded.model.encoder.layer[2].output.LayerNorm.bias[PLANTED] = 25.0
    return loaded


@pytest.fixture(scope="module")
def found(planted: LoadedModel) -> Geometry:
    options = GeometryOptions(fixes=EVERY, drawing=SMALL, max_length=8, n_bootstrap=60, dims=tuple(range(16)))
    return geometry(planted, some_texts(90, 1), options, fit=some_texts(300, 2), command="outlierlens geometry x")


def drawn(tokens: Tokens, drawing: Drawing = SMALL, seed: int = 0) -> Sample:
    return draw(tokens, drawing, seed)


def test_tokens_of_different_sentences_words_in_many_and_whole_sentences_are_drawn(planted: LoadedModel) -> None:
    texts = some_texts(90, 1)
    tokens = tokenise(planted, texts, max_length=8)
    sample = drawn(tokens)
    pairs = sample.spans.text[sample.pairs]
    assert sample.n_pairs == 20
    assert len(set(pairs.tolist())) == 40
    for text, first, last in zip(sample.spans.text, sample.spans.first, sample.spans.last, strict=True):
        assert last == first + 1
        assert not tokens.special[text][first]
    sentences_of = Counter(word for text in texts.texts for word in set(WORD.findall(text)))
    assert sample.n_eligible == sum(n >= 4 for n in sentences_of.values())
    assert len(sample.words) == 6
    contexts = sample.spans.text[sample.contexts]
    for number, word in enumerate(sample.words):
        mine = contexts[sample.word == number]
        assert len(set(mine.tolist())) == len(mine) == min(5, sentences_of[word])
        for text, place in zip(mine, sample.spans.first[sample.contexts][sample.word == number], strict=True):
            # the tokenizer knows whole words, behind [CLS]
            assert texts.texts[text].split()[place - 1] == word
    whole = sample.spans.text[sample.whole]
    assert len(whole) <= 150
    for start, text in zip(sample.starts, whole[sample.starts], strict=True):
        places = sample.spans.first[sample.whole][start : start + len(tokens.ordinary(text))]
        assert places.tolist() == tokens.ordinary(text).tolist()
    assert (sample.texts[sample.sentence] == sample.spans.text).all()
    again, other = drawn(tokens), drawn(tokens, seed=1)
    assert (again.spans.text == sample.spans.text).all()
    assert again.words == sample.words
    assert set(other.spans.text[other.pairs]) != set(pairs)


def test_words_that_are_cut_off_are_not_measured_and_first_tokens_can_be_left_out(planted: LoadedModel) -> None:
    texts = tuple(f"w{i % 20} w1 w{i % 7} it's w2" for i in range(60))
    whole = drawn(tokenise(planted, texts, max_length=16), replace(SMALL, n_words=50))
    assert {"w2", "it's", "w1"} <= set(whole.words)
    cut = drawn(tokenise(planted, texts, max_length=5), replace(SMALL, n_words=50))  # [CLS], three words, [SEP]
    assert "w2" not in cut.words or all(cut.spans.first[cut.contexts][cut.word == cut.words.index("w2")] < 4)
    assert "it's" not in cut.words
    late = drawn(tokenise(planted, texts, max_length=16), replace(SMALL, n_words=50, skip_first=2))
    assert late.spans.first.min() == 3
    assert "w19" not in late.words
    special = drawn(tokenise(planted, texts, max_length=16), replace(SMALL, special=True, n_words=0, n_pairs=30))
    assert special.spans.first.min() == 0
    assert special.words == ()


def test_what_cannot_be_drawn_is_said(planted: LoadedModel) -> None:
    with pytest.raises(BadInput, match="only 3 of 3 different sentences hold a token that counts; at least 4"):
        drawn(tokenise(planted, ("w1", "w2", "w3")))
    with pytest.raises(BadInput, match="max_contexts is 1; it must be at least 2"):
        Drawing(max_contexts=1)
    tokens = replace(tokenise(planted, some_texts(8, 0)), offsets=None)
    with pytest.raises(BadInput, match="words cannot be found; use --words 0"):
        drawn(tokens)
    assert drawn(tokens, replace(SMALL, n_words=0)).words == ()


def test_values_are_those_of_each_text_s_own_states(planted: LoadedModel, found: Geometry) -> None:
    texts = some_texts(90, 1)
    oracle = Oracle(planted, texts, 8).by_text["model"]
    sample = drawn(tokenise(planted, texts, max_length=8))
    for layer, name in enumerate(found.layers):
        row = found.row(name, "raw")
        states = np.array([oracle[t][layer][i] for t, i in zip(sample.spans.text, sample.spans.first, strict=True)])
        unit = states / np.linalg.norm(states, axis=1, keepdims=True)
        pairs = unit[sample.pairs]
        gram = pairs @ pairs.T
        anisotropy = gram[~np.eye(len(gram), dtype=bool)].mean()
        assert row.anisotropy.value == pytest.approx(anisotropy, abs=1e-6)
        assert row.pairs_cosine.value == pytest.approx(np.mean([gram[i, i + 1] for i in range(0, 40, 2)]), abs=1e-6)
        similar = []
        for word in range(len(sample.words)):
            mine = unit[sample.contexts][sample.word == word]
            gram = mine @ mine.T
            similar.append(gram[~np.eye(len(gram), dtype=bool)].mean())
        assert row.self_similarity is not None
        assert row.self_similarity.value == pytest.approx(np.mean(similar), abs=1e-6)
        assert row.self_similarity_adjusted is not None
        assert row.self_similarity_adjusted.value == pytest.approx(np.mean(similar) - anisotropy, abs=1e-6)
        whole, intra = states[sample.whole], []
        for text in dict.fromkeys(sample.spans.text[sample.whole].tolist()):
            mine = whole[sample.spans.text[sample.whole] == text]
            mean = mine.mean(0)
            intra.append(np.mean(mine @ mean / np.linalg.norm(mine, axis=1) / np.linalg.norm(mean)))
        assert row.intra_sentence is not None
        assert row.intra_sentence.value == pytest.approx(np.mean(intra), abs=1e-6)
        away, text = whole - whole.mean(0), sample.spans.text[sample.whole]
        own = np.stack([away[text == one].T @ away[text == one] for one in dict.fromkeys(text.tolist())])
        traces = np.trace(own, axis1=1, axis2=2)
        across = (own.sum(0) ** 2).sum() - (own**2).sum()  # of pairs of different sentences
        ratio = (traces.sum() ** 2 - (traces**2).sum()) / across
        assert row.iso_score.value == pytest.approx((ratio - 1) / 15, abs=1e-6)


def test_contributions_sum_to_the_cosine_and_name_the_planted_dimension(found: Geometry) -> None:
    for row in found.rows:
        if row.fix == "whiten":
            assert (row.top, row.named, row.informativity) == ((), (), {})
            continue
        assert sum(one.contribution for one in row.named) == pytest.approx(row.anisotropy.value, abs=1e-12)
        assert [one.contribution for one in row.top] == sorted((c.contribution for c in row.named), reverse=True)[:10]
    raw = found.row("2", "raw")
    assert raw.top[0].dim == PLANTED
    assert raw.top[0].share > 0.95
    assert raw.top_share == pytest.approx(sum(one.share for one in raw.top[:3]))
    assert raw.anisotropy.value > 0.9
    assert raw.anisotropy.low > 0.9


def test_fixes_take_the_planted_dimension_out(found: Geometry) -> None:
    assert found.clipped["2"] == (PLANTED,)
    raw, clip = found.row("2", "raw"), found.row("2", "clip")
    assert clip.clipped == (PLANTED,)
    assert [one.contribution for one in clip.named if one.dim == PLANTED] == [0.0]
    assert clip.anisotropy.change == pytest.approx(clip.anisotropy.value - raw.anisotropy.value)
    assert clip.anisotropy.change < -0.3
    assert clip.anisotropy.change_high < 0
    assert clip.self_similarity_adjusted is not None
    assert clip.self_similarity_adjusted.change_low > 0
    for fix in ("centre", "standardize", "abtt:2", "whiten"):
        row = found.row("2", fix)
        assert abs(row.anisotropy.value) < 0.05, fix
        assert row.n_fitted == found.n_fit_vectors
    # the mean goes and the spread stays
    assert found.row("2", "centre").iso_score.value == pytest.approx(raw.iso_score.value)
    assert found.row("2", "whiten").iso_score.value > 0.6 > raw.iso_score.value
    assert found.row("embeddings", "clip").clipped == ()
    assert found.row("embeddings", "clip").anisotropy.change == 0
    assert (raw.anisotropy.change, raw.anisotropy.change_low, raw.anisotropy.change_high) == (0, 0, 0)


def test_what_was_measured_and_fitted_is_said(found: Geometry) -> None:
    assert found.layers == ("embeddings", "0", "1", "2")
    assert found.fixes == ("raw", "clip", "centre", "standardize", "abtt:2", "whiten")
    assert (found.n_texts, found.n_pairs, len(found.words)) == (90, 20, 6)
    assert (found.data, found.fit_data) == ("made 1", "made 2")
    assert found.n_fit_vectors >= 320  # 20 token vectors for each of 16 dimensions
    assert 40 <= found.n_fit_texts < 300
    assert not found.special
    assert any(note.startswith("the effective rank rests on 1") for note in found.notes)
    with pytest.raises(BadInput, match="no layer '9' with fix 'raw' in this result; there are embeddings / raw, "):
        found.row("9")
    again = from_json(to_json(found))
    assert to_json(again) == to_json(found)
    rows = list(found.records())
    assert len(rows) == 24
    assert [row["anisotropy"] for row in rows] == [row.anisotropy.value for row in found.rows]


def test_a_fit_never_sees_a_measured_sentence(planted: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = some_texts(60, 1)
    seen: list[str] = []
    measure = geometry_run.token_moments

    def watched(loaded: LoadedModel, tokens: Tokens, *more: Any) -> Any:
        seen.extend(tokens.texts)
        return measure(loaded, tokens, *more)

    monkeypatch.setattr(geometry_run, "token_moments", watched)
    fixes = parse_fixes("raw,centre")
    small = replace(SMALL, n_pairs=5, n_words=2)
    options = GeometryOptions(fixes=fixes, drawing=small, max_length=8, n_bootstrap=20)
    sample = draw(tokenise(planted, texts, max_length=8), small, 0)
    measured = {texts.texts[i] for i in sample.texts}
    found = geometry(planted, texts, options)
    assert seen
    assert not measured & set(seen)
    assert set(seen) < set(texts.texts)
    assert found.n_shared == len(measured) == found.n_read
    assert found.clipping == "none"
    with pytest.raises(BadInput, match=r"60 of its 60 texts are evaluated ones, so 0 is left"):
        geometry(planted, texts, replace(options, drawing=Drawing(min_sentences=2)))
    # the same sentence with other spaces is the same sentence, and is drawn once
    twice = Texts("twice", (*texts.texts, *(text.replace(" ", "  ") for text in texts.texts)))
    assert geometry(planted, twice, options).n_texts == 60


def test_fixes_without_a_fit_read_nothing_else_and_too_little_is_said(planted: LoadedModel) -> None:
    options = GeometryOptions(
        fixes=parse_fixes("clip"), clip="0:3", drawing=replace(SMALL, min_sentences=80), max_length=8, n_bootstrap=20
    )
    found = geometry(planted, some_texts(30, 3), options)
    assert (found.fit_data, found.n_fit_vectors, found.n_fit_texts) == ("", 0, 0)
    assert found.row("0", "clip").clipped == (3,)
    assert np.isnan(found.row("0", "clip").anisotropy.change)
    assert found.row("0", "clip").self_similarity is None
    assert "0 words instead of 6: no more occur in at least 80 sentences" in found.notes
    assert any(note.startswith("15 pairs of sentences instead of 20") for note in found.notes)
    assert np.isnan(found.to_pandas().self_similarity).all()
    with pytest.raises(BadInput, match="no word of the text was measured"):
        charts.self_similarity(found)
    assert len(charts.geometry(found).spec["vconcat"][0]["hconcat"]) == 1
    with pytest.raises(BadInput, match="dimension 16 does not exist; the vectors have dimensions 0 to 15"):
        geometry(planted, some_texts(30, 3), replace(options, dims=(16,)))
    with pytest.raises(BadInput, match="name at least one fix"):
        GeometryOptions(fixes=())
    with pytest.raises(BadInput, match="n_bootstrap is 2"):
        GeometryOptions(n_bootstrap=2)


@pytest.mark.parametrize("family", ["llama", "t5", "xlnet", "bart"])
def test_other_families_give_the_cosines_of_their_own_states(family: str, words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES[family], words())
    texts = some_texts(30, 4)
    options = GeometryOptions(
        fixes=parse_fixes("raw,standardize"), drawing=replace(SMALL, n_pairs=8, n_words=2), max_length=8, n_bootstrap=20
    )
    found = geometry(loaded, texts, options, fit=some_texts(60, 5))
    sample = draw(tokenise(loaded, texts, max_length=8), options.drawing, 0)
    oracle = Oracle(loaded, texts, 8).by_text[found.stack]
    for layer, name in enumerate(found.layers):
        pairs = [oracle[t][layer][i] for t, i in zip(sample.spans.text, sample.spans.first, strict=True)][: 2 * 8]
        unit = np.array(pairs) / np.linalg.norm(pairs, axis=1, keepdims=True)
        expected = (unit @ unit.T)[~np.eye(16, dtype=bool)].mean()
        assert found.row(name, "raw").anisotropy.value == pytest.approx(expected, abs=1e-5)


def test_a_decoder_behind_an_encoder_has_no_state_of_a_last_special_token(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bart"], words())
    options = GeometryOptions(
        fixes=parse_fixes("raw"), drawing=SMALL, read=ReadOptions(stack="decoder"), n_bootstrap=20
    )
    found = geometry(loaded, some_texts(30, 4), options)
    assert found.stack == "decoder"
    with pytest.raises(BadInput, match="leave special tokens out"):
        geometry(loaded, some_texts(30, 4), replace(options, drawing=replace(SMALL, special=True)))


def test_the_command_prints_writes_and_draws(planted: LoadedModel, run: Any, tmp_path: Path) -> None:
    folder, data, fit = tmp_path / "model", tmp_path / "a.txt", tmp_path / "b.txt"
    planted.model.float().save_pretrained(folder)
    planted.tokenizer.save_pretrained(folder)  # type: ignore[union-attr]
    planted.model.double()
    data.write_text("\n".join(some_texts(90, 1).texts), "utf-8")
    fit.write_text("\n".join(some_texts(300, 2).texts), "utf-8")
    call = ["geometry", str(folder), "--data", str(data), "--pairs", "20", "--words", "6", "--min-sentences", "4"]
    call += ["--bootstrap", "20", "--tokens", "150", "--no-progress", "--device", "cpu", "--dtype", "float32"]
    out, chart = tmp_path / "g.json", tmp_path / "g.html"
    code, text, error = run(*call, "--fit-data", str(fit), "-v", "-o", str(out), "--chart", str(chart))
    assert code == 0, error
    assert "20 pairs of sentences, 6 words in" in text
    assert "token vectors of" in text
    assert "clip 5" in text
    assert re.search(r"\n2 +raw +5 +9\d %", text)
    assert "note: clipping auto: smallest or largest entry of at least 50%" in text
    found = from_json(out.read_bytes())
    assert found.provenance.command.startswith("outlierlens geometry ")
    assert found.fixes == ("raw", "clip", "standardize", "abtt:3", "whiten")
    assert "Anisotropy" in chart.read_text("utf-8")
    # without another text, what follows the sentences that are drawn from
    code, text, error = run(*call, "--limit", "40", "--json")
    assert code == 0, error
    document = json.loads(text)
    assert document["fit_data"] == str(data)
    assert (document["n_texts"], document["n_shared"]) == (40, document["n_read"])
    for more, message in (
        (["--fixes", "magic"], "unknown fix 'magic'"),
        (["--dims", "99", "--fixes", "raw"], "dimension 99 does not exist"),
        (["--chart", str(chart)], "exists; name another file for --chart"),
        (["--layers", "7"], "has no layer 7"),
        (["--fit-column", "text"], "--fit-column names a column of --fit-data"),
    ):
        code, _, error = run(*call, *more)
        assert code == 1
        assert message in error


def test_charts_draw_the_numbers_of_the_result(found: Geometry) -> None:
    lines = charts.anisotropy(found)
    assert lines.total == 24
    points = lines.spec["layer"][-1]["data"]["values"]
    assert {(p["layer"], p["fix"]) for p in points} == {(row.layer, row.fix) for row in found.rows}
    row = found.row("2", "clip")
    (point,) = (p for p in points if (p["layer"], p["fix"]) == ("2", "clip"))
    assert point["value"] == pytest.approx(row.anisotropy.value, abs=1e-3)
    assert point["low"] <= point["value"] <= point["high"]
    assert "Raw vectors are highest in layer" in lines.reading
    shares = charts.cosine_shares(found)
    bars = shares.spec["layer"][0]["data"]["values"]
    for layer in found.layers:
        parts = [bar["value"] for bar in bars if bar["layer"] == layer]
        assert sum(parts) == pytest.approx(found.row(layer, "raw").anisotropy.value, abs=2e-3)
    assert "5" in {text["says"] for text in shares.spec["layer"][1]["data"]["values"]}
    assert "Outlier 5 carries at most" in shares.reading
    assert "The largest share has dimension 5 in layer" in shares.reading
    whole = charts.geometry(found)
    assert [panel["title"]["text"] for panel in whole.spec["vconcat"][0]["hconcat"]] == [
        "Anisotropy",
        "Self-similarity, adjusted",
    ]
    assert whole.rows[0][:3] == ("embeddings", "raw", pytest.approx(found.rows[0].anisotropy.value, abs=1e-3))
    assert charts.picture(whole, "svg").startswith(b"<svg")
    with pytest.raises(BadInput, match="fix 'whiten' has no dimensions of the model; draw raw"):
        charts.cosine_shares(found, "whiten")
    white = replace(found, rows=tuple(row for row in found.rows if row.fix == "whiten"))
    assert len(charts.geometry(white).spec["vconcat"]) == 1


@pytest.mark.real
def test_one_dimension_of_minilm_carries_a_third_of_the_cosine(sample: Any, evaluation_data: Path) -> None:
    from outlierlens.data.texts import read_texts
    from outlierlens.models.load import LoadOptions, load_model

    loaded = load_model(sample("minilm-l6"), LoadOptions(dtype="float32", device="cpu"))
    folder = evaluation_data / "glue" / "sst2"
    options = GeometryOptions(
        fixes=parse_fixes("raw,clip,whiten"), drawing=Drawing(n_pairs=60, n_words=0, max_tokens=400), n_bootstrap=50,
        read=ReadOptions(layers=(4,)),
    )  # fmt: skip
    fit = read_texts(folder / "train.parquet", limit=300)
    found = geometry(loaded, read_texts(folder / "validation.parquet", limit=150), options, fit=fit)
    raw = found.row("4")
    assert raw.top[0].dim == 223
    assert 0.3 < raw.top[0].share < 0.65
    assert 0.15 < raw.anisotropy.value < 0.35
    assert found.row("4", "clip").clipped == (223,)
    assert found.row("4", "clip").anisotropy.change_high < -0.03
    assert found.row("4", "whiten").anisotropy.value < 0.08
