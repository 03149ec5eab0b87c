"""Vectors of frequent and rare tokens: bands by hand, values by plain loops, a planted dimension, the command, charts."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from architectures import FAMILIES
from frequency_bands_results import frequency_bands as made_up
from outlierlens import charts
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts, read_counts, write_counts
from outlierlens.data.token_texts import vocabulary_of
from outlierlens.errors import BadInput
from outlierlens.experiments.frequency.measure import Vocabulary
from outlierlens.experiments.frequency_geometry.measure import frequency_geometry
from outlierlens.experiments.frequency_geometry.options import FrequencyGeometryOptions
from outlierlens.experiments.frequency_geometry.result import OVERALL, FrequencyBands
from outlierlens.experiments.frequency_geometry.token_bands import (
    Banding,
    BandMeasure,
    Drawn,
    across,
    bands_of,
    draw,
    of_other_types,
)
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import from_json, to_json
from outlierlens.vectors.cosines import mean_cosine, unit
from outlierlens.vectors.read import ReadOptions, gather, tokenise
from planted import Oracle, wrap

PLANTED = 5
FREQUENT = 4  # w0 … w3 carry the planted value
SMALL = Banding(n_bands=3, tokens_per_band=30)
FEW = FrequencyGeometryOptions(banding=SMALL, max_length=9, dims=(PLANTED,), n_random=6, n_bootstrap=40)


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
def planted(words: Callable[..., Any]) -> LoadedModel:
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
    return frequency_geometry(planted, some_texts(70, 1), counts, FEW)


def drawn_of(loaded: LoadedModel, counts: TokenCounts, texts: Texts, banding: Banding = SMALL, seed: int = 0) -> Drawn:
    tokens = tokenise(loaded, texts, max_length=9)
    return draw(tokens, counts, Vocabulary.of(loaded, counts, paper_compat=False), banding, seed)


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
    for number, one in enumerate(drawn.bands):
        mine = drawn.text[drawn.band == number]
        there = [i for i, ids in enumerate(encoded) if any(band[token] == number for token in ids[1:-1])]
        assert len(set(mine.tolist())) == len(mine) == min(30, len(there)) == one.n_tokens
        types = {token for token in occurrences.tolist() if band[token] == number}
        assert one.n_types == len(types)
        assert (one.low, one.high) == (min(counts.counts[list(types)]), max(counts.counts[list(types)]))
        assert one.n_occurrences == sum(band[token] == number for token in occurrences.tolist())
        often = {token: int((occurrences == token).sum()) for token in types}
        first = planted.tokenizer.convert_tokens_to_ids(one.examples[0])  # type: ignore[union-attr]
        assert often[first] == max(often.values())
    assert sum(one.share for one in drawn.bands) == pytest.approx(1)
    assert drawn.bands[0].low == 0
    assert drawn.unknown == pytest.approx((count == 0).mean())
    assert drawn.unknown_types == len({token for token in occurrences.tolist() if counts.counts[token] == 0}) > 0
    again, other = drawn_of(planted, counts, texts), drawn_of(planted, counts, texts, seed=1)
    assert (again.text.tolist(), again.place.tolist()) == (drawn.text.tolist(), drawn.place.tolist())
    assert other.text.tolist() != drawn.text.tolist()


def test_special_and_first_tokens_are_drawn_where_asked_for(planted: LoadedModel, counts: TokenCounts) -> None:
    texts = Texts("made", tuple(f"{text} [SEP] w1" for text in some_texts(60, 2).texts))
    plain = drawn_of(planted, counts, texts)
    assert plain.id.min() >= 5  # not even a [SEP] that stands in a text
    late = drawn_of(planted, counts, texts, replace(SMALL, skip_first=2))
    assert late.place.min() == 3
    special = drawn_of(planted, counts, texts, replace(SMALL, special=True))
    assert {1, 2} <= set(special.id.tolist())
    assert special.n_occurrences == sum(len(planted.tokenizer(text)["input_ids"][:9]) for text in texts.texts)  # type: ignore[misc]
    assert special.uncounted == ()
    unknown = replace(counts, special=np.where(np.arange(len(counts.special)) == 2, 1, 0))
    assert (
        drawn_of(planted, unknown, texts, replace(SMALL, special=True)).uncounted == ()
    )  # [CLS] is then no special one
    unknown = replace(counts, special=np.zeros_like(counts.special))
    assert drawn_of(planted, unknown, texts, replace(SMALL, special=True)).bands[0].low == 0


def test_values_are_those_of_plain_loops(planted: LoadedModel, counts: TokenCounts, found: FrequencyBands) -> None:
    texts = some_texts(70, 1)
    drawn = drawn_of(planted, counts, texts)
    oracle = Oracle(planted, texts, 9)
    with zeroed_weights(planted, dict.fromkeys(range(3), (PLANTED,))):
        ablated = Oracle(planted, texts, 9)
    for layer, name in enumerate(found.layers):
        for state, source in (("raw", oracle), ("clip", oracle), ("off", ablated)):
            row = found.row(name, state)
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
                assert row.norm[band].value == pytest.approx(length[drawn.band == band].mean(), rel=1e-6)
                assert row.cosine[band].value == pytest.approx(inside[-1], abs=1e-6)
                assert row.cosine_types[band].value == pytest.approx(types[-1], abs=1e-6)
            assert row.cosine_gap.value == pytest.approx(inside[-1] - inside[0], abs=1e-6)
            assert row.types_gap.value == pytest.approx(types[-1] - types[0], abs=1e-6)
            assert row.norm_ratio.value == pytest.approx(row.norm[2].value / row.norm[0].value)
            assert row.anisotropy.value == pytest.approx(cosine[other_text].mean(), abs=1e-6)
            between = (drawn.band[:, None] == 0) & (drawn.band == 2) & other_text
            assert row.between.value == pytest.approx(cosine[between].mean(), abs=1e-6)
            if state != "off":  # norms of two tokens may differ by rounding alone where a dimension is off
                expected = stats.spearmanr(drawn.count, length.astype(np.float32)).statistic
                assert row.spearman.value == pytest.approx(expected, abs=2e-3)
            for measure in OVERALL:
                one, raw = getattr(row, measure), getattr(found.row(name, "raw"), measure)
                assert one.change == pytest.approx(one.value - raw.value, abs=1e-12)
                assert one.change_low <= one.change_high
                assert one.low <= one.high


def test_a_draw_is_the_value_of_texts_that_are_repeated(planted: LoadedModel, counts: TokenCounts) -> None:
    drawn = drawn_of(planted, counts, some_texts(40, 3))
    vectors = np.random.default_rng(0).normal(1, 1, (len(drawn.text), 6))
    measure = BandMeasure(drawn, 3, 0)
    values = measure.measure(vectors)
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    cosine = units @ units.T
    for number in range(4):
        weight = measure.weights[number][measure.text]
        pairs = np.outer(weight, weight) * (drawn.text[:, None] != drawn.text)
        assert values["anisotropy"][number] == pytest.approx((cosine * pairs).sum() / pairs.sum())
        for band in range(3):
            mine = pairs * np.outer(drawn.band == band, drawn.band == band)
            assert values["cosine"][band, number] == pytest.approx((cosine * mine).sum() / mine.sum())
            mine = mine * (drawn.id[:, None] != drawn.id)
            assert values["cosine_types"][band, number] == pytest.approx((cosine * mine).sum() / mine.sum())
        mine = pairs * np.outer(drawn.band == 0, drawn.band == 2)
        assert values["between"][number] == pytest.approx((cosine * mine).sum() / mine.sum())
        repeated = np.repeat(np.arange(len(weight)), weight.astype(int))
        rho = stats.spearmanr(drawn.count[repeated], np.linalg.norm(vectors, axis=1)[repeated]).statistic
        assert values["spearman"][number] == pytest.approx(rho)
    first = measure.measure(vectors, 1)
    for name, every in values.items():
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


def test_a_dimension_that_frequent_tokens_carry_makes_them_alike(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["llama"], words())  # its embeddings enter the stream as they are
    with torch.no_grad():
        loaded.model.embed_tokens.weight[5 : 5 + FREQUENT, PLANTED] = 12.0
    options = replace(FEW, mode="writes", embeddings=True)
    found = frequency_geometry(loaded, some_texts(70, 1), counted(loaded.tokenizer), options)
    raw, clip, off = (found.row("embeddings", state) for state in ("raw", "clip", "off"))
    assert raw.cosine_types[-1].low > 0.8
    assert abs(raw.cosine_types[0].value) < 0.4
    assert raw.types_gap.low > 0.5
    assert raw.norm_ratio.low > 2
    assert raw.spearman.low > 0.5
    assert clip.cosine_types[-1].high < 0.5
    assert clip.types_gap.change_high < -0.4
    assert clip.norm_ratio.change_high < -1
    assert clip.spearman.change_high < -0.3
    # no random dimension does as much
    assert clip.random["types_gap"].p == pytest.approx(1 / 7)
    assert abs(clip.random["types_gap"].lowest) < abs(clip.types_gap.change) / 4
    assert clip.random["types_gap"].lowest <= clip.random["types_gap"].median <= clip.random["types_gap"].highest
    assert (raw.random, off.random) == ({}, {})
    # without what the embeddings write, the dimension is empty from the first layer on
    assert found.mode == "removed_writes with embeddings"
    assert [one.value for one in off.cosine] == pytest.approx([one.value for one in clip.cosine], abs=1e-6)
    for layer in ("0", "1", "2"):
        assert found.row(layer, "raw").types_gap.low > 0.3
        assert found.row(layer, "off").types_gap.change_high < -0.2


def test_switching_off_begins_in_the_first_block(found: FrequencyBands) -> None:
    for measure in OVERALL:
        assert getattr(found.row("embeddings", "off"), measure) == getattr(found.row("embeddings"), measure)
    # what the first block writes is what clipping leaves of it; the next blocks did without the dimension
    off, clip = found.row("0", "off"), found.row("0", "clip")
    assert [one.value for one in off.cosine] == pytest.approx([one.value for one in clip.cosine], abs=1e-5)
    assert off.norm_ratio.value == pytest.approx(clip.norm_ratio.value, rel=1e-5)
    assert abs(found.row("2", "off").anisotropy.value - found.row("2", "clip").anisotropy.value) > 1e-4
    assert (found.mode, found.n_values) == ("zeroed_weights", 6)


def test_means_over_blocks_are_drawn_together(planted: LoadedModel, counts: TokenCounts, found: FrequencyBands) -> None:
    for state in found.states:
        whole, rows = found.whole(state), [found.row(layer, state) for layer in ("0", "1", "2")]
        for measure in OVERALL:
            assert getattr(whole, measure).value == pytest.approx(
                np.mean([getattr(row, measure).value for row in rows])
            )
    assert set(found.whole("clip").random) == set(OVERALL)
    drawn = drawn_of(planted, counts, some_texts(70, 1))
    tokens = tokenise(planted, some_texts(70, 1), max_length=9)
    vectors = gather(planted, tokens, tokens.single(drawn.text, drawn.place), ReadOptions(layers=(0, 1, 2)))
    again = BandMeasure(drawn, 40, 0)
    draws = np.mean([again.measure(values)["types_gap"] for values in vectors.values], axis=0)
    low, high = np.percentile(draws[1:], [2.5, 97.5])
    assert (found.whole().types_gap.low, found.whole().types_gap.high) == pytest.approx((low, high))


def test_batches_of_one_and_of_eight_texts_are_the_same(planted: LoadedModel, counts: TokenCounts) -> None:
    texts = some_texts(24, 4)
    options = replace(FEW, n_bootstrap=20, n_random=1)
    one, eight = (
        frequency_geometry(planted, texts, counts, replace(options, read=ReadOptions(batch_size=size)))
        for size in (1, 8)
    )
    assert one.bands == eight.bands
    first, second = one.to_pandas(), eight.to_pandas()
    numbers = [name for name in first.columns if first[name].dtype == float and "spearman" not in name]
    np.testing.assert_allclose(first[numbers], second[numbers], atol=1e-5, rtol=1e-5, equal_nan=True)


def test_what_was_measured_is_said_and_read_back(found: FrequencyBands) -> None:
    assert found.layers == ("embeddings", "0", "1", "2")
    assert found.states == ("raw", "clip", "off")
    assert (found.data, found.counts, found.counts_texts) == ("made 1", "a corpus", 500)
    assert found.n_tokens == sum(band.n_tokens for band in found.bands) <= 90
    assert (found.dims, found.dims_source) == ((PLANTED,), "given")
    assert all(PLANTED not in dims and len(dims) == 1 for dims in found.random_sets)
    assert to_json(from_json(to_json(found))) == to_json(found)
    frame = found.to_pandas()
    assert len(frame) == 5 * 3 * 3  # four layers and all blocks
    row = frame[(frame.layer == "1") & (frame.state == "clip") & (frame.band == 2)].iloc[0]
    assert row.cosine == found.row("1", "clip").cosine[2].value
    assert row.types_gap_change == found.row("1", "clip").types_gap.change
    assert row.types_gap_p == found.row("1", "clip").random["types_gap"].p
    with pytest.raises(BadInput, match="no layer '9' in state 'raw' in this result; there are embeddings / raw, "):
        found.row("9")
    with pytest.raises(BadInput, match="no mean over blocks in state 'no' in this result; there are raw, clip, off"):
        found.whole("no")


def test_outliers_are_named_by_the_weights_or_are_the_strongest(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    counts, texts = counted(loaded.tokenizer), some_texts(40, 5)
    options = replace(FEW, dims="find", off=False, n_random=0, n_bootstrap=20, read=ReadOptions(layers=(-1,)))
    found = frequency_geometry(loaded, texts, counts, options)
    assert len(found.dims) == 2
    assert found.dims_source == "largest |z| in the weights, as the scan names none"
    assert any(note.startswith("the scan names no outlier") for note in found.notes)
    assert (found.states, found.mode, found.random_sets, found.row("embeddings", "clip").random) == (
        ("raw", "clip"),
        "",
        (),
        {},
    )
    with pytest.raises(BadInput, match="in this result; there are none"):
        found.whole()
    with torch.no_grad():
        for layer in loaded.model.encoder.layer:
            layer.output.LayerNorm.weight[7] = 30
            layer.output.LayerNorm.bias[7] = 30
    named = frequency_geometry(loaded, texts, counts, options)
    assert named.dims == (7,)
    assert named.dims_source == "the scan of the weights, at 3 sigma"


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_other_families_and_ways_of_switching_off(family: str, words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES[family], words())
    counts = counted(loaded.tokenizer)
    counts = replace(counts, special=np.zeros_like(counts.special)) if family == "llama" else counts
    texts = some_texts(40, 6)
    options = replace(FEW, n_random=0, n_bootstrap=20, mode="zero")
    found = frequency_geometry(loaded, texts, counts, options)
    last = found.layers[-1]
    clip, off = found.row("0", "clip"), found.row("0", "off")
    assert [one.value for one in off.norm] == pytest.approx([one.value for one in clip.norm], rel=1e-5)
    assert found.row(last, "off").anisotropy.value != found.row(last, "clip").anisotropy.value
    mean = frequency_geometry(loaded, texts, counts, replace(options, mode="mean"))
    assert mean.row(last, "off").anisotropy.change != found.row(last, "off").anisotropy.change
    assert mean.mode == "edited_hidden mean"


def test_what_cannot_be_measured_is_said(planted: LoadedModel, counts: TokenCounts) -> None:
    texts = some_texts(40, 7)
    flat = replace(counts, counts=np.zeros_like(counts.counts))
    with pytest.raises(
        BadInput, match="tokens of these texts have the same count in a corpus, so none is frequent or rare"
    ):
        frequency_geometry(planted, texts, flat, FEW)
    with pytest.raises(BadInput, match=r"only [123] texts hold a token that occurs .* times in a corpus; at least 4"):
        frequency_geometry(planted, texts.first(4), counts, FEW)
    with pytest.raises(BadInput, match="dimension 16 does not exist; stream model has dimensions 0 to 15"):
        frequency_geometry(planted, texts, counts, replace(FEW, dims=(16,)))
    with pytest.raises(BadInput, match="no dimension is named"):
        frequency_geometry(planted, texts, counts, replace(FEW, dims=()))
    short = replace(counts, counts=counts.counts[:9], special=counts.special[:9], tokens=counts.tokens[:9])
    with pytest.raises(BadInput, match="a corpus counts 9 ids, and the tokenizer of"):
        frequency_geometry(planted, texts, short, FEW)
    for wrong, message in (
        ({"mode": "resample"}, "mode resample permutes values among the tokens of a batch"),
        ({"mode": "magic"}, "unknown mode 'magic'"),
        ({"n_bootstrap": 2}, "n_bootstrap is 2; it must be at least 20"),
        ({"n_random": -1}, "n_random is -1; it must be at least 0"),
    ):
        with pytest.raises(BadInput, match=message):
            replace(FEW, **wrong)
    with pytest.raises(BadInput, match="n_bands is 1; it must be at least 2"):
        Banding(n_bands=1)
    notes = frequency_geometry(
        planted, texts, counts, replace(FEW, banding=Banding(9, 1000), off=False, n_random=0, n_bootstrap=20)
    ).notes
    assert any("tokens instead of 1,000: no more texts hold one" in note for note in notes)


def test_the_command_prints_writes_and_draws(
    planted: LoadedModel, counts: TokenCounts, run: Any, tmp_path: Path
) -> None:
    folder, data, table = tmp_path / "model", tmp_path / "a.txt", tmp_path / "counts.parquet"
    planted.model.float().save_pretrained(folder)
    planted.tokenizer.save_pretrained(folder)  # type: ignore[union-attr]
    planted.model.double()
    data.write_text("\n".join(some_texts(60, 1).texts), "utf-8")
    write_counts(counts, table)
    call = ["frequency-geometry", str(folder), "--counts", str(table), "--data", str(data), "--bands", "3"]
    call += ["--bootstrap", "20", "--random", "3", "--tokens-per-band", "30", "--no-progress", "--device", "cpu"]
    call += ["--dims", "5", "--dtype", "float32"]
    out, chart = tmp_path / "f.json", tmp_path / "f.html"
    code, text, error = run(*call, "-v", "-o", str(out), "--chart", str(chart))
    assert code == 0, error
    assert "without special tokens; frequencies of a corpus, " in text
    assert "Dimension 5: given; off inside the network by zeroed_weights" in text
    assert re.search(r"^ *2 +1,000,000 +4 ", text, re.MULTILINE)
    assert "By band, from the rarest" in text
    assert "p: rank of |change| among 3 random sets" in text
    found = from_json(out.read_bytes())
    assert found.provenance.command.startswith("outlierlens frequency-geometry ")
    assert found.row("embeddings", "clip").types_gap.change != 0
    assert "vectors of frequent and of rare tokens" in chart.read_text("utf-8")
    code, text, error = run(*call, "--no-off", "--layers", "last", "--limit", "40", "--json")
    assert code == 0, error
    document = json.loads(text)
    assert (document["n_texts"], document["mode"], len(document["rows"])) == (40, "", 2)
    for more, message in (
        (["--dims", "99"], "dimension 99 does not exist"),
        (["--no-off", "--mode", "writes", "--embeddings"], "embeddings says how dimensions go off"),
        (["--counts", "nowhere.parquet"], "nowhere.parquet: no such file of token counts"),
    ):
        start = call.index(more[0]) if more[0] in call else len(call)
        code, _, error = run(*call[:start], *more, *call[start + len(more) :])
        assert code == 1
        assert message in error


def test_charts_draw_the_numbers_of_the_result() -> None:
    found = made_up()
    drawn = charts.frequency_geometry(found)
    upper, lower = drawn.spec["vconcat"]
    norms, cosines, _ = upper["vconcat"]
    assert [panel["title"]["text"] for panel in norms["hconcat"]] == ["raw", "clipped", "off in the network"]
    for panel, state in zip(cosines["hconcat"], found.states, strict=True):
        points = panel["data"]["values"]
        assert len(points) == 6
        for point in points:
            band = [one.name for one in found.bands].index(point["name"].split(" (")[0])
            one = found.row(point["layer"], state).cosine[band]
            assert (point["value"], point["low"], point["high"]) == pytest.approx(
                (one.value, one.low, one.high), rel=1e-3
            )
    ratio = lower["hconcat"][0]["data"]["values"]
    assert {(point["layer"], point["name"]) for point in ratio} == {
        (layer, name) for layer in found.layers for name in ("raw", "clipped", "off in the network")
    }
    rho = lower["hconcat"][1]["layer"][-1]["encoding"]["y"]["scale"]["domain"]
    assert rho[0] <= 0 <= rho[1]
    assert drawn.total == 27
    assert drawn.rows[0][:4] == ("embeddings", "raw", 0, "0 to 12")
    assert "Over all blocks, vectors of the most frequent band are 1.30 (1.28 to 1.32) times as long" in drawn.reading
    assert "Clipped: 0.65 and 0.25, a change of the cosine of -0.25 (-0.26 to -0.24)" in drawn.reading
    assert charts.picture(drawn, "svg").startswith(b"<svg")
    many = replace(
        found,
        bands=tuple(replace(found.bands[0], low=float(n), high=float(n)) for n in range(11)),
        rows=tuple(
            replace(row, **{name: (getattr(row, name) * 4)[:11] for name in ("norm", "cosine", "cosine_types")})
            for row in found.rows
        ),
        blocks=(),
    )
    few = charts.frequency_geometry(many)
    names = {point["name"] for point in few.spec["vconcat"][0]["vconcat"][0]["hconcat"][0]["data"]["values"]}
    assert names == {"0 (rarest)", "2", "4", "6", "8", "10 (most frequent)"}
    assert "Drawn are 6 of the 11 bands." in few.reading


@pytest.mark.real
def test_frequent_tokens_of_minilm_are_told_from_rare_ones(sample: Any, evaluation_data: Path) -> None:
    from outlierlens.data.texts import read_texts
    from outlierlens.models.load import LoadOptions, load_model

    loaded = load_model(sample("minilm-l6"), LoadOptions(dtype="float32", device="cpu"))
    counts = read_counts(evaluation_data / "token_counts" / "bert-base-uncased_wiki.parquet", loaded.tokenizer)
    texts = read_texts(evaluation_data / "glue" / "sst2" / "validation.parquet", limit=60)
    options = FrequencyGeometryOptions(
        banding=Banding(3, 60), read=ReadOptions(layers=(-1, 4)), off=False, n_random=3, n_bootstrap=30
    )
    found = frequency_geometry(loaded, texts, counts, options)
    assert found.bands[-1].low > 10 * found.bands[0].high
    assert "the" in found.bands[-1].examples
    assert found.row("embeddings").norm_ratio.high < 1  # frequent tokens' embeddings are the shorter ones
