"""Frequency correlation of running models: a planted needle, batches of any size, word pieces, the released behaviour."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from scipy import stats

from architectures import FAMILIES, Family
from frequency_results import frequency as made_up
from outlierlens.analyses import frequency_sums
from outlierlens.analyses.frequency import BLOCKS, Frequency, FrequencyOptions, frequency, ranks
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts, compat_counts, read_counts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.results.rows import Estimate
from outlierlens.vectors.read import ReadOptions
from planted import Oracle, some_texts, wrap
from tiny_tokenizers import word_pieces

N_WORDS, NEEDLE = 10_000, 5  # so many that few words come twice: what holds for the texts holds for the words
QUICK = FrequencyOptions(n_bootstrap=50, n_sample=200, n_types=200, max_length=16)


def counts_of(loaded: LoadedModel, seed: int = 0, unknown: int = 0) -> TokenCounts:
    """Random counts over four decades, the first `unknown` words without; 500 texts, as often [CLS] and [SEP]."""
    n = len(loaded.tokenizer)  # type: ignore[arg-type]
    counts = np.exp(np.random.default_rng(seed).uniform(1, 10, n)).astype(np.int64)
    counts[:5] = 0
    counts[4] = 7  # [UNK], which stands in texts
    counts[5 : 5 + unknown] = 0
    special = np.zeros(n, dtype=np.int64)
    special[1:3] = 500
    tokens = tuple(loaded.tokenizer.convert_ids_to_tokens(range(n)))  # type: ignore[union-attr]
    return TokenCounts(counts, special, tokens, 500, "made counts")


@contextmanager
def planted(loaded: LoadedModel, counts: TokenCounts) -> Iterator[None]:
    """Behind the last norm, dimension 5 of each token is −(3 + log(1 + count)) with a little noise."""
    log = torch.from_numpy(np.log1p(counts.frequency(special=True)))
    noise = torch.Generator().manual_seed(0)
    ids: list[torch.Tensor] = []

    def before(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids[:] = [kwargs["input_ids"]]

    def after(_: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        changed = output.clone()
        jitter = 0.3 * torch.randn(len(log), generator=noise.manual_seed(0), dtype=changed.dtype)
        changed[..., NEEDLE] = -(3 + log[ids[0]] + jitter[ids[0]]).to(changed.dtype)
        return changed

    norm = loaded.model.encoder.layer[2].output.LayerNorm
    hooks = [loaded.model.register_forward_pre_hook(before, with_kwargs=True), norm.register_forward_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@pytest.fixture(scope="module")
def bert(words: Any) -> LoadedModel:
    """A BERT of three blocks and 32 dimensions that knows 10,000 words."""
    family = FAMILIES["bert"]
    config = family.config | {"vocab_size": N_WORDS + 5, "hidden_size": 32}
    return wrap(replace(family, config=config), words(N_WORDS))


@pytest.fixture(scope="module")
def needle(bert: LoadedModel) -> Frequency:
    counts = counts_of(bert, unknown=200)
    options = replace(QUICK, dims=(NEEDLE,), n_bootstrap=200, n_sample=1000, n_types=3000)
    with planted(bert, counts):
        return frequency(bert, some_texts(250, longest=11, shortest=3, n_words=N_WORDS), counts, options)


def test_a_planted_needle_is_first_by_a_wide_margin_with_its_sign_and_alone(needle: Frequency) -> None:
    one = needle.row("2", NEEDLE)
    assert one.log.value > 0.98
    assert one.signed < -0.98
    assert one.rank == 1
    assert min(one.raw.value, one.partial.value, one.spearman, one.types.value) > 0.6
    last = needle.place("2")
    for values in map(needle.values, ("log", "raw", "partial", "spearman", "types")):
        assert ranks(values[last])[NEEDLE] == 1
        others = np.abs(np.delete(values[last], NEEDLE))
        assert others.max() < 0.25 * abs(values[last, NEEDLE])
    # texts drawn again, and types: the needle passes false-discovery control over all layers, and nothing else does
    for measure in ("log", "raw", "partial", "types"):
        q = needle.q[0, needle.measures.index(measure)]
        assert np.argwhere(q < 0.05).tolist() == [[last, NEEDLE]]
        assert q[last, NEEDLE] < 1e-6
    assert np.argwhere(needle.passes()).tolist() == np.argwhere(needle.passes("all")).tolist() == [[last, NEEDLE]]
    found = needle.contrast("log", "2")
    assert found.verdict == "more"
    assert found.difference.low > 0.9
    assert found.p == pytest.approx(1 / 32)
    assert needle.most(NEEDLE) == "2"
    assert [(row.dim, row.layer) for row in needle.strongest] == [(NEEDLE, "2")]
    assert one.log.low < one.log.value < one.log.high


def test_what_was_read_is_said(needle: Frequency, bert: LoadedModel) -> None:
    view, every = needle.tokens
    texts = some_texts(250, longest=11, shortest=3, n_words=N_WORDS)
    ids = [i for text in texts.texts for i in bert.tokenizer(text)["input_ids"][1:-1]]  # type: ignore[operator]
    assert (needle.about.n_texts, view.n_tokens, every.n_tokens) == (250, len(ids), len(ids) + 500)
    assert view.unknown == pytest.approx(np.mean([5 <= i < 205 for i in ids]))
    assert view.n_types == len(set(ids)) == needle.n_types
    assert view.unknown_types == len({i for i in ids if i < 205})
    assert view.n_sample < every.n_sample == 1000


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "xlnet"])
def test_values_are_those_of_each_text_s_own_states_whatever_the_batch(family: str, words: Any) -> None:
    kind = "causal" if family == "llama" else "masked"
    loaded = wrap(FAMILIES[family], words(kind=kind, side="left" if family == "xlnet" else "right"))
    counts, texts = counts_of(loaded), some_texts(30, 3, longest=7, shortest=3, n_words=35)
    found = [
        frequency(loaded, texts, counts, replace(QUICK, dims=(1, 2), read=ReadOptions(batch_size=size)))
        for size in (1, 8)
    ]
    oracle = Oracle(loaded, texts, 16)
    stack = found[0].about.stack
    states = oracle.by_text[stack]
    kept = [(i, not special) for i, _, _, special in oracle.tokens(stack)]
    for view in ("without_special", "all"):
        chosen = np.array([ordinary or view == "all" for _, ordinary in kept])
        count = counts.frequency(special=True)[[i for i, _ in kept]][chosen]
        for layer in range(len(found[0].layers)):
            h = np.concatenate([text[layer] for text in states])[chosen]
            for dim in (0, 7):
                raw, log, signed = (found[0].values(name, view)[layer, dim] for name in ("raw", "log", "signed"))
                size = np.abs(h[:, dim])
                assert raw == pytest.approx(stats.pearsonr(size, count).statistic, abs=1e-5)
                assert log == pytest.approx(stats.pearsonr(size, np.log1p(count)).statistic, abs=1e-5)
                assert signed == pytest.approx(stats.pearsonr(h[:, dim], np.log1p(count)).statistic, abs=1e-5)
    assert found[0].r == pytest.approx(found[1].r, abs=1e-6, nan_ok=True)
    assert found[0].error == pytest.approx(found[1].error, abs=1e-6, nan_ok=True)
    for first, second in zip(found[0].contrasts, found[1].contrasts, strict=True):
        assert first.difference.value == pytest.approx(second.difference.value, abs=1e-6, nan_ok=True)


def test_texts_that_are_read_in_parts_give_the_same(bert: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, texts = counts_of(bert), some_texts(40, 2, longest=11, shortest=3, n_words=100)
    told: list[tuple[int, int]] = []
    whole = frequency(bert, texts, counts, QUICK)
    monkeypatch.setattr(frequency_sums, "TEXTS_AT_ONCE", 7)
    read = ReadOptions(batch_size=4, progress=lambda _, done, total: told.append((done, total)))
    parts = frequency(bert, texts, counts, replace(QUICK, read=read))
    for view in ("without_special", "all"):
        assert parts.values("log", view) == pytest.approx(whole.values("log", view), abs=1e-6)
    assert parts.values("types") == pytest.approx(whole.values("types"), abs=1e-6)
    assert told[-1] == (40, 40)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


@pytest.fixture(scope="module")
def pieces() -> Any:
    """A tokenizer of word pieces that splits "cats" into cat and ##s."""
    return word_pieces(("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "cat", "##s", "#", "s", "dog", "the", "on"))


# Published counts, keyed by text, and what each way of reading them makes of the ids of "the cats on dogs".
PUBLISHED = {
    "the": 900,
    "##s": 300,
    "cat": 40,
    "dog": 30,
    "s": 20,
    "[CLS]": 100,
    "[SEP]": 100,
    "#": 6,
    "[UNK]": 5,
    "on": 50,
}
LONG = "the cats on the dogs on the cats the dogs on the cats the cats on dogs the dog"  # 78 characters
UNKNOWN = "the zebra on the cats the dogs on the cats the dogs on the cats the cats on dog"  # 79, with an unknown word
SHORT = "the cats on the dogs the cats on the dogs"  # 41: the released code leaves it out


def published(tmp_path: Path) -> str:
    path = tmp_path / "counts.parquet"
    parquet.write_table(pyarrow.table({"token": list(PUBLISHED), "count": list(PUBLISHED.values())}), path)
    return str(path)


def test_a_word_piece_carries_its_own_count(pieces: Any, tmp_path: Path) -> None:
    family = FAMILIES["bert"]
    loaded = wrap(Family("bert", "bert", family.config | {"max_position_embeddings": 64}, family.values), pieces)
    texts = Texts("cats", (LONG, UNKNOWN, SHORT))
    counts = read_counts(published(tmp_path), pieces)
    found = frequency(loaded, texts, counts, replace(QUICK, max_length=64))
    oracle = Oracle(loaded, texts, 64)
    ids = np.concatenate(oracle.ids)
    assert (ids == 6).sum() == 17  # ##s
    # an ordinary reading: [UNK] stands in the text and has a count; [CLS] and [SEP] were added
    count = np.array([PUBLISHED[pieces.convert_ids_to_tokens(int(i))] for i in ids], dtype=float)
    assert set(count[ids == 6]) == {300.0}
    ordinary = ~np.isin(ids, (1, 2))
    h = np.abs(np.concatenate([text[3] for text in oracle.by_text["model"]]))
    for view, chosen in (("without_special", ordinary), ("all", ordinary | True)):
        expected = [stats.pearsonr(h[chosen, dim], count[chosen]).statistic for dim in range(16)]
        assert found.values("raw", view)[3] == pytest.approx(expected, abs=1e-5)
        assert found.tokens[found.views.index(view)].n_tokens == chosen.sum()
    assert found.tokens[0].unknown == 0


def test_paper_compat_is_the_released_behaviour_by_hand(pieces: Any, tmp_path: Path) -> None:
    family = FAMILIES["bert"]
    loaded = wrap(Family("bert", "bert", family.config | {"max_position_embeddings": 128}, family.values), pieces)
    path = published(tmp_path)
    assert (len(LONG), len(UNKNOWN), len(SHORT)) == (78, 79, 41)
    options = replace(QUICK, paper_compat=True, max_length=128, dims=(0, 3))
    found = frequency(loaded, Texts("cats", (LONG, SHORT, UNKNOWN)), compat_counts(path, pieces), options)
    # By hand: the key "##s" goes to the first id of "##s", which is "#", and overwrites nothing later than it; "#" itself
    # comes after, with 6. So # has 6, ##s has 0; [UNK] is special to the tokenizer, and left out without special tokens.
    by_hand = {0: 0, 1: 100, 2: 100, 4: 5, 5: 40, 6: 0, 7: 6, 8: 20, 9: 30, 10: 900, 11: 50}
    oracle = Oracle(loaded, Texts("cats", (LONG, UNKNOWN)), 128)
    ids = np.concatenate(oracle.ids)
    assert found.about.n_texts == 2
    assert found.notes[0] == "2 of 3 texts have more than 70 characters, and were read"
    count = np.array([by_hand[int(i)] for i in ids], dtype=float)
    ordinary = ~np.isin(ids, (1, 2, 4))
    for layer in range(1, 4):  # the released figures have no embeddings
        h = np.abs(np.concatenate([text[layer] for text in oracle.by_text["model"]]))
        for view, chosen in (("without_special", ordinary), ("all", ordinary | True)):
            expected = [stats.pearsonr(h[chosen, dim], count[chosen]).statistic for dim in range(16)]
            assert found.values("raw", view)[layer] == pytest.approx(expected, abs=1e-5)
            random = np.mean([expected[dim] for dim in found.random_dims])
            assert found.random_mean(view)[layer] == pytest.approx(random, abs=1e-5)
    assert len(found.random_dims) == 10
    assert not {0, 3} & set(found.random_dims)
    # what is lost: every ##s
    assert found.tokens[0].unknown == pytest.approx((ids == 6).sum() / ordinary.sum())
    fixed = frequency(
        loaded, Texts("cats", (LONG, UNKNOWN)), read_counts(path, pieces), replace(options, paper_compat=False)
    )
    assert np.abs(fixed.values("raw") - found.values("raw")).max() > 0.1


def test_a_special_token_that_stands_in_a_text_goes_with_those_that_are_added(bert: LoadedModel) -> None:
    found = frequency(bert, Texts("made", ("w1 [SEP] w2 w3", "w4 w5 w6", "w7 w8")), counts_of(bert), QUICK)
    assert [one.n_tokens for one in found.tokens] == [8, 8 + 1 + 6]


def test_outliers_come_from_the_weights_or_by_name(bert: LoadedModel) -> None:
    counts, texts = counts_of(bert), some_texts(12, longest=11, shortest=3, n_words=100)
    norms = [bert.model.encoder.layer[i].output.LayerNorm for i in range(3)]
    kept = [(norm.weight.data.clone(), norm.bias.data.clone()) for norm in norms]
    try:
        for norm in norms:
            norm.weight.data[9] = norm.bias.data[9] = 20.0
        found = frequency(bert, texts, counts, QUICK)
    finally:
        for norm, (scale, shift) in zip(norms, kept, strict=True):
            norm.weight.data, norm.bias.data = scale, shift
    assert (found.dims, found.about.named_by) == ((9,), "the weights")
    assert {one.layer for one in found.contrasts} == {"embeddings", "0", "1", "2", BLOCKS}
    none = frequency(bert, texts, counts, replace(QUICK, dims=()))
    assert none.contrasts == ()
    assert any(note.startswith("the weights name no outliers") for note in none.notes)
    every = frequency(bert, texts, counts, replace(QUICK, dims=tuple(range(32))))
    assert every.contrasts == ()
    assert "all dimensions are named, so there are no others to hold them against" in every.notes


def test_what_cannot_be_measured_is_said(bert: LoadedModel, words: Any) -> None:
    counts, texts = counts_of(bert), some_texts(12, longest=11, shortest=3, n_words=100)
    short = wrap(FAMILIES["bert"], words())
    tight = replace(QUICK, read=ReadOptions(cache_gb=1e-6))
    for call, message in (
        (lambda: frequency(bert, texts, counts_of(short), QUICK), "made counts counts 40 ids, .* of bert has 10,005"),
        (lambda: frequency(bert, texts, counts, replace(QUICK, dims=(32,))), "dimension 32 does not exist; .* 0 to 31"),
        (lambda: frequency(bert, texts.first(1), counts, QUICK), "1 of the texts of made hold a token"),
        (lambda: FrequencyOptions(paper_compat=True, max_length=64), "max_length is 64; the released code reads 128 tokens"),
        (lambda: frequency(bert, texts, counts, tight), "raise cache_gb, name fewer layers"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            call()


def test_accumulators_keep_within_the_budget(bert: LoadedModel) -> None:
    options = replace(QUICK, n_bootstrap=400, n_sample=2000, n_types=2000)
    # 4 layers × 32 dimensions: draws 401 · 10 · 8, sample 2000 · 4, types 2001 · 8 bytes each
    whole = 128 * (401 * 80 + 8000 + 16008)
    texts, counts = some_texts(12, longest=11, shortest=3, n_words=100), counts_of(bert)
    enough = replace(options, read=ReadOptions(cache_gb=whole / 1e9))
    assert frequency(bert, texts, counts, enough).n_bootstrap == 400
    with pytest.raises(BadInput, match=r"need 0\.0072 GB for 400 draws of texts, 2,000 tokens and 2,000 types"):
        frequency(bert, texts, counts, replace(options, read=ReadOptions(cache_gb=0.999 * whole / 1e9)))


def test_without_an_interval_there_is_no_verdict() -> None:
    found = made_up()
    contrasts = tuple(replace(one, difference=Estimate(0.5)) for one in found.contrasts)
    found = replace(found, about=replace(found.about, n_texts=5), contrasts=contrasts)
    by = {one.measure: one.verdict for one in found.contrasts}
    assert (by["log"], by["spearman"]) == ("too few texts", "more")  # ranks never have an interval


class Stopped(Exception):
    """The pass ends here."""


def test_a_stopped_pass_goes_on_in_the_middle(
    bert: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, texts = counts_of(bert), some_texts(40, 2, longest=11, shortest=3, n_words=100)
    read: list[int] = []
    stop = [3]

    def told(_: str, done: int, total: int) -> None:
        read.append(done)
        if len(read) == stop[0]:
            raise Stopped

    monkeypatch.setattr(frequency_sums, "TEXTS_AT_ONCE", 16)
    monkeypatch.setattr(frequency_sums, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(frequency_sums.time, "monotonic", lambda: 0.0)
    options = replace(QUICK, dims=(1,), read=ReadOptions(batch_size=4, progress=told))
    stop[0] = 0
    whole = frequency(bert, texts, counts, options)
    assert read == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    read.clear()
    for n, first in ((6, 4), (3, 28)):  # in the second part of the texts, then in the third
        stop[0] = n
        read.clear()
        with pytest.raises(Stopped):
            frequency(bert, texts, counts, options, rows=tmp_path / "rows.jsonl")
        assert read[0] == first
    stop[0] = 0
    read.clear()
    found = frequency(bert, texts, counts, options, rows=tmp_path / "rows.jsonl")
    assert read == [40]
    np.testing.assert_array_equal(found.r, whole.r)
    np.testing.assert_array_equal(found.error, whole.error)
    assert found.contrasts == whole.contrasts
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["rows.jsonl"]
    read.clear()
    frequency(bert, texts, counts, options, rows=tmp_path / "rows.jsonl")
    assert read == []


def test_a_damaged_or_foreign_half_pass_is_as_none(bert: LoadedModel, tmp_path: Path) -> None:
    counts, texts = counts_of(bert), some_texts(12, longest=11, shortest=3, n_words=100)
    whole = frequency(bert, texts, counts, QUICK)
    (tmp_path / "rows.npz").write_bytes(b"PK no")
    assert np.array_equal(
        frequency(bert, texts, counts, QUICK, rows=tmp_path / "rows.jsonl").r, whole.r, equal_nan=True
    )
    with (tmp_path / "others.npz").open("wb") as file:
        np.savez(file, identity=np.array("other"))
    assert np.array_equal(
        frequency(bert, texts, counts, QUICK, rows=tmp_path / "others.jsonl").r, whole.r, equal_nan=True
    )
