"""The position probe from texts to result, in every family, and its command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES, REPRESENTATIVE, Family
from outlierlens.analyses import probe as analysis
from outlierlens.analyses.probe import (
    AGAIN,
    RAW,
    SAME,
    PositionProbe,
    ProbeOptions,
    Split,
    probe,
    split_texts,
)
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.results.document import from_json, load, to_json
from outlierlens.vectors.clip import Clipping, resolve_clipping
from outlierlens.vectors.read import ReadOptions
from planted import some_texts, wrap

NONE = Clipping("none", {}, "nothing is clipped, as asked for")


def split_of(n: int = 30, n_dev: int = 12, longest: int = 9) -> Split:
    return Split(some_texts(n, 1, longest), some_texts(n_dev, 2, longest))


def planted(words: Any, radius: float = 4.0) -> Any:
    """A tiny BERT whose position rows lie on a circle in dimensions 5 and 11."""
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    embeddings = loaded.model.embeddings
    with torch.no_grad():
        for table in (embeddings.word_embeddings, embeddings.token_type_embeddings, embeddings.position_embeddings):
            table.weight.mul_(0.05)
        angle = torch.arange(32) * (2 * torch.pi / 16)
        embeddings.position_embeddings.weight[:, 5] = radius * angle.cos()
        embeddings.position_embeddings.weight[:, 11] = radius * angle.sin()
        embeddings.LayerNorm.weight.fill_(1.0)
        embeddings.LayerNorm.bias.zero_()
    return loaded


def test_planted_dimensions_are_found(words: Any) -> None:
    loaded = planted(words)
    clipping = resolve_clipping("embeddings:5,11", loaded)
    split = Split(some_texts(400, 1), some_texts(100, 2))
    found = probe(loaded, split, clipping, ProbeOptions(lr=0.1, epochs=3, train_batch=32))
    first, raw = found.layers[0], found.accuracy("embeddings")
    assert raw.accuracy.value > 0.98
    named = {one.of: one for one in found.contributions if one.layer == "embeddings"}
    assert sorted(named[dim].rank for dim in ("5", "11")) == [1, 2]
    assert min(named[dim].contribution for dim in ("5", "11")) > 5 * first.contribution[first.other_dim]
    # What was planted is what the probe reads: without it, before or after training, little is left.
    clipped, retrained = found.accuracy("embeddings", SAME), found.accuracy("embeddings", AGAIN)
    assert clipped.accuracy.value < 0.5
    assert retrained.accuracy.value < raw.accuracy.value - 0.3
    assert clipped.change.value == pytest.approx(clipped.accuracy.value - raw.accuracy.value)
    assert clipped.change.high < 0
    assert found.heat_layer == "embeddings"
    heat = {(one.dim, one.position): one.contribution for one in found.heat}
    assert {position for _, position in heat} == {*np.flatnonzero(found.n_at)}  # not 0, where [CLS] stands
    for dim in (5, 11):
        mean = (
            sum(heat[f"{dim} (clipped)", at] * found.n_at[at] for at in np.flatnonzero(found.n_at)) / found.n_at.sum()
        )
        assert mean == pytest.approx(first.contribution[dim], rel=1e-5)
    assert sorted(map(first.weight_rank, range(len(first.weight)))) == list(range(1, 1 + len(first.weight)))
    assert "A clipped dimension is the largest contributor in layer" in " ".join(found.sentences())


def test_without_positions_a_probe_is_no_better_than_chance(words: Any) -> None:
    loaded = wrap(FAMILIES["llama"], words(kind="causal"), double=False)
    random = np.random.default_rng(0)

    def drawn(n: int) -> Texts:
        return Texts("made", tuple(" ".join(f"w{i}" for i in random.integers(0, 33, 8)) for _ in range(n)))

    options = ProbeOptions(read=ReadOptions(layers=(-1,)))
    found = probe(loaded, Split(drawn(600), drawn(300)), NONE, options)
    (embeddings,) = found.accuracies
    assert found.majority_accuracy == 1 / 8
    assert embeddings.accuracy.value == pytest.approx(1 / 8, abs=0.03)
    assert embeddings.loss > np.log(8) - 0.02


@pytest.mark.parametrize("family", REPRESENTATIVE, ids=lambda family: family.name)
def test_representative_families(family: Family, words: Any) -> None:
    loaded = wrap(family, words(), double=False)
    split = split_of()
    clipping = Clipping("made", {"0": (3,), "1": (2, 3)}, "made up")
    found = probe(loaded, split, clipping, ProbeOptions(read=ReadOptions(batch_size=5), max_length=8))
    n_layers = next(stack for stack in loaded.stacks if stack.name == found.about.stack).n_layers
    assert [one.layer for one in found.layers] == ["embeddings", *map(str, range(n_layers))]
    counted = sum(min(len(text.split()), 6) for text in split.dev.texts)  # eight tokens, two of them special
    assert found.about.n_tokens == counted == found.n_at.sum()
    assert found.n_positions == 7
    assert found.n_at[0] == 0
    assert found.n_trained_at.sum() == found.n_train_tokens == sum(min(len(t.split()), 6) for t in split.train.texts)
    for one in found.accuracies:
        assert 0 <= one.accuracy.low <= one.accuracy.value <= one.accuracy.high <= 1
        assert one.accuracy.value <= one.within_one <= 1
        assert one.clipped == (() if one.vectors == RAW else clipping.at(one.layer))
        shares = np.nan_to_num(one.by_position) * found.n_at
        assert shares.sum() / found.n_at.sum() == pytest.approx(one.accuracy.value)
    assert [one.layer for one in found.accuracies if one.vectors != RAW] == ["0", "0", "1", "1"]
    for one in found.layers:
        assert np.isfinite(one.contribution).all()
        assert one.mean == pytest.approx(np.mean(one.contribution))
        assert one.other_dim not in (2, 3)
    assert any("30 texts" not in note for note in found.notes)  # the texts that reach the limit
    assert from_json(to_json(found)).layers[0].layer == "embeddings"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded.model.modules())


def test_the_seed_decides(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    texts = some_texts(60, 3)

    def run(seed: int) -> PositionProbe:
        return probe(
            loaded, split_texts(texts, None, seed=seed), NONE, ProbeOptions(epochs=3, train_batch=16, seed=seed)
        )

    one, again, other = run(0), run(0), run(1)
    assert one.layers == again.layers
    assert [row.loss for row in one.accuracies] == [row.loss for row in again.accuracies]
    for a, b in zip(one.layers, other.layers, strict=True):
        assert not np.allclose(a.contribution, b.contribution)


def test_a_stopped_run_trains_the_missing_layers_alone(
    words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, split, rows = wrap(FAMILIES["bert"], words(), double=False), split_of(), tmp_path / "rows.jsonl"
    clipping, options = Clipping("made", {"0": (3,)}, "made up"), ProbeOptions(redraws=2, train_batch=16)
    whole = probe(loaded, split, clipping, options, rows=rows)
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:-2]))
    trained: list[tuple[int, ...]] = []
    train = analysis._Positions._trained

    def counting(self: Any, read: ReadOptions, clipped: Any) -> Any:
        trained.append(read.layers or ())
        return train(self, read, clipped)

    monkeypatch.setattr(analysis._Positions, "_trained", counting)
    again = probe(loaded, split, clipping, options, rows=rows)
    for a, b in zip(whole.layers, again.layers, strict=True):
        assert a.contribution == pytest.approx(b.contribution, rel=1e-4, abs=1e-6)
    assert [one.accuracy.value for one in whole.accuracies] == [one.accuracy.value for one in again.accuracies]
    kept = probe(loaded, split, clipping, options, rows=rows)
    assert str(kept.accuracies) == str(again.accuracies)  # NaN among them
    assert trained == [(1, 2)]


def test_epochs_learn(words: Any) -> None:
    loaded, split = planted(words), Split(some_texts(120, 1), some_texts(40, 2))
    few, more = (probe(loaded, split, NONE, ProbeOptions(epochs=epochs, train_batch=32, lr=0.02)) for epochs in (1, 6))
    assert more.accuracies[0].loss < few.accuracies[0].loss
    assert few.dims == ()
    assert few.layers[0].largest_dim == few.layers[0].other_dim


def test_which_tokens_count(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    split = Split(Texts("t", ("w1 w2 w3", "w4 w5")), Texts("d", ("w1", "w2 w3 w4 w5")))
    found = probe(loaded, split, NONE)
    assert found.n_trained_at.tolist() == [0, 2, 2, 1, 0]
    assert found.n_at.tolist() == [0, 2, 1, 1, 1]
    assert (found.majority, found.majority_accuracy) == (1, 0.4)
    special = probe(loaded, split, NONE, ProbeOptions(special=True))
    assert special.n_trained_at.tolist() == [2, 2, 2, 2, 1, 0]
    assert special.n_at.tolist() == [2, 2, 2, 1, 1, 1]
    capped = probe(loaded, split, NONE, ProbeOptions(positions=3, redraws=0))
    assert capped.n_at.tolist() == [0, 2, 1]
    assert capped.notes == ("3 tokens at later positions than the 3 probed were left out",)
    few = probe(loaded, split, NONE, ProbeOptions(limit=1, redraws=0))
    assert few.n_train == 1
    assert few.notes == ("1 of 2 texts of t were trained on, drawn by the seed",)


def test_texts_end_where_there_are_tokens_enough(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    monkeypatch.setattr("outlierlens.analyses.probe.TRAIN_TOKENS", 11)
    monkeypatch.setattr("outlierlens.analyses.probe.DEV_TOKENS", 9)
    same = Texts("t", tuple(f"w{i} w{i + 1}" for i in range(8)))  # four tokens each, two of them special
    split = Split(same, same)
    found = probe(loaded, split, NONE)
    assert (found.n_train, found.n_train_tokens, found.about.n_texts, found.about.n_tokens) == (2, 4, 2, 4)
    whole = probe(loaded, split, NONE, ProbeOptions(full=True))
    assert (whole.n_train, whole.about.n_texts) == (8, 8)
    assert probe(loaded, split, NONE, ProbeOptions(limit=5)).n_train == 5


def test_what_cannot_be_probed(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    split = split_of()
    with pytest.raises(BadInput, match="redraws is 1; use 2 or more, for one has no spread, or 0 for none"):
        ProbeOptions(redraws=1)
    with pytest.raises(BadInput, match="dimension 16 cannot be clipped; the vectors have dimensions 0 to 15"):
        probe(loaded, split, Clipping("x", {"0": (16,)}, ""))
    with pytest.raises(BadInput, match="has no layer 7"):
        probe(loaded, split, NONE, ProbeOptions(read=ReadOptions(layers=(7,))))
    causal = wrap(FAMILIES["gpt2"], words(kind="causal"), double=False)
    one = Texts("t", ("w1", "w2"))
    with pytest.raises(BadInput, match="all tokens stand at the first position"):
        probe(causal, Split(one, one), NONE)
    with pytest.raises(BadInput, match="there is no token to evaluate in these texts"):
        probe(loaded, Split(some_texts(5), Texts("t", ("",))), NONE)


@pytest.fixture
def folder(tmp_path: Path, words: Any) -> Path:
    """A saved tiny BERT with two text files."""
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "train.txt").write_text("\n".join(some_texts(40, 1).texts))
    (tmp_path / "dev.txt").write_text("\n".join(some_texts(15, 2).texts))
    return tmp_path


def test_auto_observes_texts_that_are_not_evaluated(folder: Path, run: Any) -> None:
    base = ("probe", str(folder / "model"), "--data", str(folder / "train.txt"), "--dtype", "float32", "-q")
    code, _, err = run(*base, "-o", str(folder / "a.json"))
    assert code == 0, err
    found = load(folder / "a.json")
    n = len(set(some_texts(40, 1).texts))
    assert f"observed on {n - n // 5} texts" in found.clip_source
    assert found.about.n_texts == n // 5
    both = ("--fit-data", f"{folder / 'dev.txt'}:limit=7", "--dev-data", str(folder / "dev.txt"))
    code, _, err = run(*base, *both, "-o", str(folder / "b.json"))
    assert (code, "of its 15 texts are evaluated ones" in err) == (1, True), err
