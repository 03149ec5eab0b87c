"""Geometry of running models: what is drawn, values against each text's own states, fits kept apart, the command, charts."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES
from outlierlens.analyses import geometry_passes as passes
from outlierlens.analyses.geometry import Geometry, GeometryOptions, geometry
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import to_json
from outlierlens.results.rows import UNKNOWN, Estimate
from outlierlens.vectors.fixes import parse_fixes
from outlierlens.vectors.read import ReadOptions, Tokens, tokenise
from outlierlens.vectors.spans import WORD, Drawing, SpanSample, draw
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
def planted(words: Any) -> LoadedModel:
    """A BERT of three blocks, the last of which makes dimension 5 the largest entry of every vector."""
    loaded = wrap(FAMILIES["bert"], words())
    with torch.no_grad():
        loaded.model.encoder.layer[2].output.LayerNorm.bias[PLANTED] = 25.0
    return loaded


@pytest.fixture(scope="module")
def found(planted: LoadedModel) -> Geometry:
    options = GeometryOptions(fixes=EVERY, drawing=SMALL, max_length=8, n_bootstrap=60, dims=tuple(range(16)))
    return geometry(planted, some_texts(90, 1), options, fit=some_texts(300, 2))


def drawn(tokens: Tokens, drawing: Drawing = SMALL, seed: int = 0) -> SpanSample:
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
        assert row.self_similarity.value == pytest.approx(np.mean(similar), abs=1e-6)
        assert row.self_similarity_adjusted.value == pytest.approx(np.mean(similar) - anisotropy, abs=1e-6)
        whole, intra = states[sample.whole], []
        for text in dict.fromkeys(sample.spans.text[sample.whole].tolist()):
            mine = whole[sample.spans.text[sample.whole] == text]
            mean = mine.mean(0)
            intra.append(np.mean(mine @ mean / np.linalg.norm(mine, axis=1) / np.linalg.norm(mean)))
        assert row.intra_sentence.value == pytest.approx(np.mean(intra), abs=1e-6)
        away, text = whole - whole.mean(0), sample.spans.text[sample.whole]
        own = np.stack([away[text == one].T @ away[text == one] for one in dict.fromkeys(text.tolist())])
        traces = np.trace(own, axis1=1, axis2=2)
        across = (own.sum(0) ** 2).sum() - (own**2).sum()  # of pairs of different sentences
        ratio = (traces.sum() ** 2 - (traces**2).sum()) / across
        assert row.iso_score.value == pytest.approx((ratio - 1) / 15, abs=1e-6)


def test_contributions_sum_to_the_cosine_and_name_the_planted_dimension(found: Geometry) -> None:
    for row in found.by_layer:
        mine = [one for one in found.contributions if (one.layer, one.fix) == (row.layer, row.fix)]
        if row.fix == "whiten":
            assert (mine, row.r2) == ([], ())
            continue
        assert all(one.named for one in mine)
        assert sum(one.contribution for one in mine) == pytest.approx(row.anisotropy.value, abs=1e-12)
        largest = sorted((one.contribution for one in mine), reverse=True)[:10]
        assert [one.contribution for one in found.top(row.layer, row.fix)] == largest
    raw, top = found.row("2", "raw"), found.top("2")
    assert top[0].dim == PLANTED
    assert top[0].share > 0.95
    assert raw.top_share == pytest.approx(sum(one.share for one in top[:3]))
    assert raw.anisotropy.low > 0.9


def test_fixes_take_the_planted_dimension_out(found: Geometry) -> None:
    assert found.clipped["2"] == (PLANTED,)
    raw, clip = found.row("2", "raw"), found.row("2", "clip")
    assert clip.clipped == (PLANTED,)
    gone = [c for c in found.contributions if (c.layer, c.fix, c.dim) == ("2", "clip", PLANTED)]
    assert [one.contribution for one in gone] == [0.0]
    assert clip.anisotropy_change.value == pytest.approx(clip.anisotropy.value - raw.anisotropy.value)
    assert clip.anisotropy_change.value < -0.3
    assert clip.anisotropy_change.high < 0
    assert clip.self_similarity_change.low > 0
    for fix in ("centre", "standardize", "abtt:2", "whiten"):
        row = found.row("2", fix)
        assert abs(row.anisotropy.value) < 0.05, fix
        assert row.n_fitted >= 320  # 20 token vectors for each of 16 dimensions
    # the mean goes and the spread stays
    assert found.row("2", "centre").iso_score.value == pytest.approx(raw.iso_score.value)
    assert found.row("2", "whiten").iso_score.value > 0.6 > raw.iso_score.value
    assert found.row("embeddings", "clip").clipped == ()
    assert found.row("embeddings", "clip").anisotropy_change.value == 0
    assert raw.anisotropy_change == Estimate(0, 0, 0)


def test_a_fit_never_sees_a_measured_sentence(planted: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = some_texts(60, 1)
    seen: list[str] = []
    measure = passes.token_moments

    def watched(loaded: LoadedModel, tokens: Tokens, *more: Any) -> Any:
        seen.extend(tokens.texts)
        return measure(loaded, tokens, *more)

    monkeypatch.setattr(passes, "token_moments", watched)
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
    assert found.clipped == {}
    with pytest.raises(BadInput, match=r"60 of its 60 texts are evaluated ones, so 0 is left"):
        geometry(planted, texts, replace(options, drawing=Drawing(min_sentences=2)))
    # the same sentence with other spaces is the same sentence, and is drawn once
    twice = Texts("twice", (*texts.texts, *(text.replace(" ", "  ") for text in texts.texts)))
    assert geometry(planted, twice, options).about.n_texts == 60


def test_fixes_without_a_fit_read_nothing_else_and_too_little_is_said(planted: LoadedModel) -> None:
    options = GeometryOptions(
        fixes=parse_fixes("clip"), clip="0:3", drawing=replace(SMALL, min_sentences=80), max_length=8, n_bootstrap=20
    )
    found = geometry(planted, some_texts(30, 3), options)
    assert (found.fit_data, found.n_fit_texts) == ("", 0)
    assert found.row("0", "clip").clipped == (3,)
    assert np.isnan(found.row("0", "clip").anisotropy_change.value)
    assert found.row("0", "clip").self_similarity == UNKNOWN
    assert "0 words instead of 6: no more occur in at least 80 sentences" in found.notes
    assert any(note.startswith("15 pairs of sentences instead of 20") for note in found.notes)


@pytest.mark.parametrize("family", ["llama", "t5", "xlnet", "bart"])
def test_other_families_give_the_cosines_of_their_own_states(family: str, words: Any) -> None:
    loaded = wrap(FAMILIES[family], words())
    texts = some_texts(30, 4)
    options = GeometryOptions(
        fixes=parse_fixes("raw,standardize"), drawing=replace(SMALL, n_pairs=8, n_words=2), max_length=8, n_bootstrap=20
    )
    found = geometry(loaded, texts, options, fit=some_texts(60, 5))
    sample = draw(tokenise(loaded, texts, max_length=8), options.drawing, 0)
    oracle = Oracle(loaded, texts, 8).by_text[found.about.stack]
    for layer, name in enumerate(found.layers):
        pairs = [oracle[t][layer][i] for t, i in zip(sample.spans.text, sample.spans.first, strict=True)][: 2 * 8]
        unit = np.array(pairs) / np.linalg.norm(pairs, axis=1, keepdims=True)
        expected = (unit @ unit.T)[~np.eye(16, dtype=bool)].mean()
        assert found.row(name, "raw").anisotropy.value == pytest.approx(expected, abs=1e-5)


def test_a_decoder_behind_an_encoder_has_no_state_of_a_last_special_token(words: Any) -> None:
    loaded = wrap(FAMILIES["bart"], words())
    options = GeometryOptions(
        fixes=parse_fixes("raw"), drawing=SMALL, read=ReadOptions(stack="decoder"), n_bootstrap=20
    )
    found = geometry(loaded, some_texts(30, 4), options)
    assert found.about.stack == "decoder"
    with pytest.raises(BadInput, match="leave special tokens out"):
        geometry(loaded, some_texts(30, 4), replace(options, drawing=replace(SMALL, special=True)))


def test_a_run_measures_what_its_rows_do_not_hold(
    planted: LoadedModel, found: Geometry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = GeometryOptions(fixes=EVERY, drawing=SMALL, max_length=8, n_bootstrap=60, dims=tuple(range(16)))
    texts, fit, rows = some_texts(90, 1), some_texts(300, 2), tmp_path / "rows.jsonl"
    gather, read = passes.gather_drawn, list[tuple[int, ...] | None]()

    def watched(*given: Any, **more: Any) -> Any:
        read.append(given[3].layers)
        return gather(*given, **more)

    def whole() -> str:
        return to_json(replace(geometry(planted, texts, options, fit=fit, rows=rows), provenance=found.provenance))

    monkeypatch.setattr(passes, "gather_drawn", watched)
    assert whole() == to_json(found)
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:-8]) + lines[-8][:30])  # stopped within the layer before the last
    assert whole() == to_json(found)
    assert read == [(-1, 0, 1, 2), (1, 2)]
    for name in ("gather_drawn", "tokenise", "token_moments"):
        monkeypatch.setattr(passes, name, None)  # nothing is missing, so nothing is read
    assert whole() == to_json(found)


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
    raw, top = found.row("4"), found.top("4")
    assert top[0].dim == 223
    assert 0.3 < top[0].share < 0.65
    assert 0.15 < raw.anisotropy.value < 0.35
    assert found.row("4", "clip").clipped == (223,)
    assert found.row("4", "clip").anisotropy_change.high < -0.03
    assert found.row("4", "whiten").anisotropy.value < 0.08
