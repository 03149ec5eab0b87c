"""Vectors of frequent and rare tokens: bands by hand, values by plain loops, a planted dimension, the command, charts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from architectures import FAMILIES
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.analyses import geometry_passes as passes
from outlierlens.analyses.frequency_sums import Vocabulary
from outlierlens.analyses.geometry import ALL, FrequencyBands, GeometryOptions, frequency_bands
from outlierlens.analyses.geometry_figures import OVERALL, BandMeasure, across, bands_of, of_other_types
from outlierlens.analyses.geometry_passes import BandedTokens, draw_bands
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.data.token_texts import vocabulary_of
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import to_json
from outlierlens.vectors.cosines import mean_cosine, unit
from outlierlens.vectors.read import ReadOptions, gather, tokenise
from outlierlens.vectors.spans import Drawing
from planted import Oracle, wrap

PLANTED = 5
FREQUENT = 4  # w0 … w3 carry the planted value
FEW = GeometryOptions(n_bands=3, tokens_per_band=30, max_length=9, dims=(PLANTED,), n_random=6, n_bootstrap=40)


def some_texts(n: int, seed: int) -> Texts:
    """Different texts of two to seven words, w0 … w3 the most frequent."""
    random = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < n:
        words = np.where(
            random.random(size := int(random.integers(2, 8))) < 0.4,
            random.integers(0, FREQUENT, size),
            random.integers(FREQUENT, 33, size),
        )
        found[" ".join(f"w{word}" for word in words)] = None
    return Texts(f"made {seed}", tuple(found))


def counted(tokenizer: Any) -> TokenCounts:
    """w0 … w3 have a count of a million, the last words none, those between 2 to 27."""
    counts = np.zeros(len(tokenizer), dtype=np.int64)
    counts[5 : 5 + FREQUENT] = 1_000_000
    counts[5 + FREQUENT : 35] = np.arange(26) + 2
    special = np.zeros(len(tokenizer), dtype=np.int64)
    special[1:3] = 500
    return TokenCounts(counts, special, vocabulary_of(tokenizer), 500, "a corpus")


@pytest.fixture(scope="module")
def planted(words: Any) -> LoadedModel:
    """A BERT of three blocks in which frequent words stand out in dimension 5."""
    loaded = wrap(FAMILIES["bert"], words())
    with torch.no_grad():
        loaded.model.embeddings.word_embeddings.weight[5 : 5 + FREQUENT, PLANTED] = 3.0
    return loaded


@pytest.fixture(scope="module")
def counts(planted: LoadedModel) -> TokenCounts:
    return counted(planted.tokenizer)


@pytest.fixture(scope="module")
def found(planted: LoadedModel, counts: TokenCounts) -> FrequencyBands:
    return frequency_bands(planted, some_texts(70, 1), counts, FEW)


def drawn_of(loaded: LoadedModel, counts: TokenCounts, texts: Texts, seed: int = 0, **drawing: Any) -> BandedTokens:
    options = replace(FEW, seed=seed, drawing=Drawing(**drawing))
    vocabulary = Vocabulary.of(loaded, counts, paper_compat=False)
    return draw_bands(tokenise(loaded, texts, max_length=9), counts, vocabulary, options)


def measure_of(drawn: BandedTokens, n_bootstrap: int) -> BandMeasure:
    return BandMeasure(drawn.text, drawn.band, drawn.id, drawn.count, n_bootstrap=n_bootstrap, seed=0)


def values(found: FrequencyBands, measure: str, layer: str, state: str) -> list[float]:
    """A measure of every band, from the rarest."""
    return [found.figure(measure, layer, state, band).value.value for band in range(len(found.bands))]


def test_bands_by_hand() -> None:
    # Ten occurrences: two of count 0, two of 1, three of 5, three of 9; the middles stand at 1, 3, 5.5 and 8.5 of 10.
    count = np.array([9, 5, 0, 1, 9, 5, 5, 0, 1, 9])
    assert bands_of(count, 2).tolist() == [1, 1, 0, 0, 1, 1, 1, 0, 0, 1]
    # In three bands, of 3.33 each: 0.3 and 0.9 are in the first, 1.65 in the second, 2.55 in the third.
    assert bands_of(count, 3).tolist() == [2, 1, 0, 0, 2, 1, 1, 0, 0, 2]
    # In five, of two each: 0.5, 1.5, 2.75, 4.25. Nothing is in the fourth, so there are four.
    assert bands_of(count, 5).tolist() == [3, 2, 0, 1, 3, 2, 2, 0, 1, 3]
    # What occurs in most places cannot be cut.
    assert bands_of(np.array([7, 7, 7, 7, 7, 7, 1]), 3).tolist() == [1, 1, 1, 1, 1, 1, 0]


def test_tokens_are_drawn_once_a_text_and_band(planted: LoadedModel, counts: TokenCounts) -> None:
    texts = some_texts(70, 1)
    drawn = drawn_of(planted, counts, texts)
    encoded = [planted.tokenizer(text)["input_ids"] for text in texts.texts]  # type: ignore[misc]
    occurrences = np.concatenate([ids[1:-1] for ids in encoded])
    count = counts.counts[occurrences]
    band = dict(zip(occurrences.tolist(), bands_of(count, 3).tolist(), strict=True))
    for text, place, number, one in zip(drawn.text, drawn.place, drawn.id, drawn.band, strict=True):
        assert encoded[text][place] == number
        assert 0 < place < len(encoded[text]) - 1  # never [CLS] or [SEP]
        assert band[number] == one
    for number, one in enumerate(drawn.said["bands"]):
        mine = drawn.text[drawn.band == number]
        there = [i for i, ids in enumerate(encoded) if any(band[token] == number for token in ids[1:-1])]
        assert len(set(mine.tolist())) == len(mine) == min(30, len(there)) == one["n_tokens"]
        types = {token for token in occurrences.tolist() if band[token] == number}
        assert one["n_types"] == len(types)
        assert (one["low"], one["high"]) == (min(counts.counts[list(types)]), max(counts.counts[list(types)]))
        assert one["share"] == pytest.approx(np.mean([band[token] == number for token in occurrences.tolist()]))
        often = {token: int((occurrences == token).sum()) for token in types}
        first = planted.tokenizer.convert_tokens_to_ids(one["examples"][0])  # type: ignore[union-attr]
        assert often[first] == max(often.values())
    assert sum(one["share"] for one in drawn.said["bands"]) == pytest.approx(1)
    assert drawn.said["bands"][0]["count"].startswith("0 to ")
    assert drawn.said["numbers"]["unknown"] == pytest.approx((count == 0).mean())
    unknown = {token for token in occurrences.tolist() if counts.counts[token] == 0}
    assert drawn.said["numbers"]["unknown_types"] == len(unknown) > 0
    again, other = drawn_of(planted, counts, texts), drawn_of(planted, counts, texts, seed=1)
    assert (again.text.tolist(), again.place.tolist()) == (drawn.text.tolist(), drawn.place.tolist())
    assert other.text.tolist() != drawn.text.tolist()


def test_special_and_first_tokens_are_drawn_where_asked_for(planted: LoadedModel, counts: TokenCounts) -> None:
    texts = Texts("made", tuple(f"{text} [SEP] w1" for text in some_texts(60, 2).texts))
    plain = drawn_of(planted, counts, texts)
    assert plain.id.min() >= 5  # not even a [SEP] that stands in a text
    late = drawn_of(planted, counts, texts, skip_first=2)
    assert late.place.min() == 3
    special = drawn_of(planted, counts, texts, special=True)
    assert {1, 2} <= set(special.id.tolist())
    unknown = replace(counts, special=np.zeros_like(counts.special))
    assert drawn_of(planted, unknown, texts, special=True).said["bands"][0]["low"] == 0


def test_values_are_those_of_plain_loops(planted: LoadedModel, counts: TokenCounts, found: FrequencyBands) -> None:
    texts = some_texts(70, 1)
    drawn = drawn_of(planted, counts, texts)
    oracle = Oracle(planted, texts, 9)
    with zeroed_weights(planted, dict.fromkeys(range(3), (PLANTED,))):
        ablated = Oracle(planted, texts, 9)
    for layer, name in enumerate(("embeddings", "0", "1", "2")):
        for state, source in (("raw", oracle), ("clip", oracle), ("off", ablated)):
            states = np.array(
                [source.by_text["model"][t][layer][i] for t, i in zip(drawn.text, drawn.place, strict=True)]
            )
            if state == "clip":
                states[:, PLANTED] = 0
            length = np.sqrt((states**2).sum(1))
            cosine = states @ states.T / length[:, None] / length
            other_text = drawn.text[:, None] != drawn.text
            other_type = drawn.id[:, None] != drawn.id
            inside, types = [], []
            for band in range(3):
                pair = (drawn.band[:, None] == band) & (drawn.band == band) & other_text
                inside.append(cosine[pair].mean())
                types.append(cosine[pair & other_type].mean())
            norms = [length[drawn.band == band].mean() for band in range(3)]
            over = {measure: found.figure(measure, name, state).value.value for measure in OVERALL}
            assert values(found, "norm", name, state) == pytest.approx(norms, rel=1e-6)
            assert values(found, "cosine", name, state) == pytest.approx(inside, abs=1e-6)
            assert values(found, "cosine_types", name, state) == pytest.approx(types, abs=1e-6)
            assert over["cosine_gap"] == pytest.approx(inside[-1] - inside[0], abs=1e-6)
            assert over["types_gap"] == pytest.approx(types[-1] - types[0], abs=1e-6)
            assert over["norm_ratio"] == pytest.approx(norms[2] / norms[0])
            assert over["anisotropy"] == pytest.approx(cosine[other_text].mean(), abs=1e-6)
            between = (drawn.band[:, None] == 0) & (drawn.band == 2) & other_text
            assert over["between"] == pytest.approx(cosine[between].mean(), abs=1e-6)
            if state != "off":  # norms of two tokens may differ by rounding alone where a dimension is off
                expected = stats.spearmanr(drawn.count, length.astype(np.float32)).statistic
                assert over["spearman"] == pytest.approx(expected, abs=2e-3)
            for one in (found.figure(measure, name, state) for measure in OVERALL if state != "raw"):
                raw = found.figure(one.measure, name).value
                assert one.change.value == pytest.approx(one.value.value - raw.value, abs=1e-12)
                assert one.change.low <= one.change.high
                assert one.value.low <= one.value.high


def test_a_draw_is_the_value_of_texts_that_are_repeated(planted: LoadedModel, counts: TokenCounts) -> None:
    drawn = drawn_of(planted, counts, some_texts(40, 3))
    vectors = np.random.default_rng(0).normal(1, 1, (len(drawn.text), 6))
    measure = measure_of(drawn, 3)
    drawn_again = measure.replicates(vectors)
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    cosine = units @ units.T
    for number in range(4):
        weight = measure.weights[number][measure.text]
        pairs = np.outer(weight, weight) * (drawn.text[:, None] != drawn.text)
        assert drawn_again["anisotropy"][number] == pytest.approx((cosine * pairs).sum() / pairs.sum())
        for band in range(3):
            mine = pairs * np.outer(drawn.band == band, drawn.band == band)
            assert drawn_again["cosine"][band, number] == pytest.approx((cosine * mine).sum() / mine.sum())
            mine = mine * (drawn.id[:, None] != drawn.id)
            assert drawn_again["cosine_types"][band, number] == pytest.approx((cosine * mine).sum() / mine.sum())
        mine = pairs * np.outer(drawn.band == 0, drawn.band == 2)
        assert drawn_again["between"][number] == pytest.approx((cosine * mine).sum() / mine.sum())
        repeated = np.repeat(np.arange(len(weight)), weight.astype(int))
        rho = stats.spearmanr(drawn.count[repeated], np.linalg.norm(vectors, axis=1)[repeated]).statistic
        assert drawn_again["spearman"][number] == pytest.approx(rho)
    first = measure.replicates(vectors, 1)
    for name, every in drawn_again.items():
        np.testing.assert_allclose(first[name], every[..., :1], atol=1e-12)


def test_pairs_of_one_text_or_type_are_left_out_by_hand() -> None:
    # Two texts: the first has (1, 0) twice, the second (0, 1) and (1, 0). Pairs of different texts: cosines 0, 1, 0, 1.
    sums, sizes = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([2.0, 2.0])
    assert across((sums, sizes), (sums, sizes), np.ones((1, 2)))[0] == pytest.approx(0.5)
    assert np.isnan(across((sums, sizes), (sums, sizes), np.array([[2.0, 0.0]]))[0])
    # Of (1, 0), (1, 0), (0, 1) the first two are of one type: the cosines with the third are 0.
    units = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert mean_cosine(units)[0] == pytest.approx(1 / 3)
    assert of_other_types(units, np.ones((1, 3)), [np.array([0, 1])])[0] == pytest.approx(0)
    assert np.isnan(of_other_types(units[:2], np.ones((1, 2)), [np.array([0, 1])])[0])
    vectors = unit(np.random.default_rng(2).normal(size=(9, 4)))
    ones, weights = np.ones(9), np.random.default_rng(3).integers(0, 3, (5, 9)).astype(float)
    assert across((vectors, ones), (vectors, ones), weights) == pytest.approx(mean_cosine(vectors, weights))


def test_a_dimension_that_frequent_tokens_carry_makes_them_alike(words: Any) -> None:
    loaded = wrap(FAMILIES["llama"], words())  # its embeddings enter the stream as they are
    with torch.no_grad():
        loaded.model.embed_tokens.weight[5 : 5 + FREQUENT, PLANTED] = 12.0
    options = replace(FEW, mode="writes", embeddings=True)
    found = frequency_bands(loaded, some_texts(70, 1), counted(loaded.tokenizer), options)

    def one(measure: str, state: str = "raw", band: int | None = None) -> Any:
        return found.figure(measure, "embeddings", state, band)

    assert one("cosine_types", band=-1).value.low > 0.8
    assert abs(one("cosine_types", band=0).value.value) < 0.4
    assert one("types_gap").value.low > 0.5
    assert one("norm_ratio").value.low > 2
    assert one("spearman").value.low > 0.5
    assert one("cosine_types", "clip", -1).value.high < 0.5
    assert one("types_gap", "clip").change.high < -0.4
    assert one("norm_ratio", "clip").change.high < -1
    assert one("spearman", "clip").change.high < -0.3
    # no random dimension does as much
    gap = one("types_gap", "clip")
    assert gap.p == pytest.approx(1 / 7)
    assert len(gap.random) == 6
    assert max(map(abs, gap.random)) < abs(gap.change.value) / 4
    assert all((row.random, row.p) == ((), None) for row in found.figures if row.state != "clip" or row.count != ALL)
    # without what the embeddings write, the dimension is empty from the first layer on
    assert found.mode == "removed_writes with embeddings"
    cosines = [values(found, "cosine", "embeddings", state) for state in ("off", "clip")]
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-6)
    for layer in ("0", "1", "2"):
        assert found.figure("types_gap", layer).value.low > 0.3
        assert found.figure("types_gap", layer, "off").change.high < -0.2


def test_means_over_blocks_are_drawn_together(planted: LoadedModel, counts: TokenCounts, found: FrequencyBands) -> None:
    for state in ("raw", "clip", "off"):
        for measure in OVERALL:
            mean = np.mean([found.figure(measure, layer, state).value.value for layer in ("0", "1", "2")])
            assert found.figure(measure, state=state).value.value == pytest.approx(mean)
    assert all(found.figure(measure, state="clip").p is not None for measure in OVERALL)
    drawn = drawn_of(planted, counts, some_texts(70, 1))
    tokens = tokenise(planted, some_texts(70, 1), max_length=9)
    vectors = gather(planted, tokens, tokens.single(drawn.text, drawn.place), ReadOptions(layers=(0, 1, 2)))
    again = measure_of(drawn, 40)
    draws = np.mean([again.replicates(one)["types_gap"] for one in vectors.values], axis=0)
    low, high = np.percentile(draws[1:], [2.5, 97.5])
    gap = found.figure("types_gap").value
    assert (gap.low, gap.high) == pytest.approx((low, high))


def test_a_run_measures_what_its_rows_do_not_hold(
    planted: LoadedModel, counts: TokenCounts, found: FrequencyBands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, gather_drawn, read = tmp_path / "rows.jsonl", passes.gather_drawn, list[Any]()

    def watched(*given: Any, **more: Any) -> Any:
        read.append(given[3].layers)
        return gather_drawn(*given, **more)

    def whole() -> str:
        made = frequency_bands(planted, some_texts(70, 1), counts, FEW, rows=rows)
        return to_json(replace(made, provenance=found.provenance))

    monkeypatch.setattr(passes, "gather_drawn", watched)
    assert whole() == to_json(found)
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:-1]) + lines[-1][:30])
    assert whole() == to_json(found)
    assert read == [(-1, 0, 1, 2)] * 2 + [(2,)]
    for name in ("gather_drawn", "tokenise"):
        monkeypatch.setattr(passes, name, None)  # nothing is missing, so nothing is read
    assert whole() == to_json(found)


def test_what_cannot_be_measured_is_said(planted: LoadedModel, counts: TokenCounts) -> None:
    texts = some_texts(40, 7)
    flat = replace(counts, counts=np.zeros_like(counts.counts))
    with pytest.raises(
        BadInput, match="tokens of these texts have the same count in a corpus, so none is frequent or rare"
    ):
        frequency_bands(planted, texts, flat, FEW)
    with pytest.raises(BadInput, match=r"only [123] texts hold a token that occurs .* times in a corpus; at least 4"):
        frequency_bands(planted, texts.first(4), counts, FEW)
    with pytest.raises(BadInput, match="dimension 16 does not exist; stream model has dimensions 0 to 15"):
        frequency_bands(planted, texts, counts, replace(FEW, dims=(16,)))
    with pytest.raises(BadInput, match="no dimension is named"):
        frequency_bands(planted, texts, counts, replace(FEW, dims=()))
    short = replace(counts, counts=counts.counts[:9], special=counts.special[:9], tokens=counts.tokens[:9])
    with pytest.raises(BadInput, match="a corpus counts 9 ids, and the tokenizer of"):
        frequency_bands(planted, texts, short, FEW)
    for wrong, message in (
        ({"mode": "resample"}, "mode resample permutes values among the tokens of a batch"),
        ({"embeddings": True}, "embeddings belongs to mode writes, not to weights"),
    ):
        with pytest.raises(BadInput, match=message):
            replace(FEW, **wrong)
    many = replace(FEW, n_bands=9, tokens_per_band=1000, mode="none", n_random=0, n_bootstrap=20)
    notes = frequency_bands(planted, texts, counts, many).notes
    assert any("tokens instead of 1,000: no more texts hold one" in note for note in notes)
