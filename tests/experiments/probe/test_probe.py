"""The position probe from texts to result, in every family; its command, charts and words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probe_results
from architectures import FAMILIES, REPRESENTATIVE, Family
from outlierlens import charts
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.probe.flow import Split, split_texts
from outlierlens.experiments.probe.measure import probe_positions
from outlierlens.experiments.probe.options import ProbeOptions
from outlierlens.experiments.probe.result import Contribution, bucket_accuracy, buckets, meaning
from outlierlens.experiments.probe.view import sections
from outlierlens.results.document import from_json, load, to_json
from outlierlens.vectors.clip import Clipping, resolve_clipping
from outlierlens.vectors.read import Budget, ReadOptions
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
    found = probe_positions(loaded, split, clipping, ProbeOptions(learning_rate=0.1, epochs=3, batch=32))
    first = found.layers[0]
    assert first.raw.accuracy > 0.98
    assert {part.dim for part in first.named} == {5, 11}
    assert sorted(part.rank for part in first.named) == [1, 2]
    assert min(part.value for part in first.named) > 5 * first.other.value
    # What was planted is what the probe reads: without it, before or after training, little is left.
    assert first.clipped is not None
    assert first.retrained is not None
    assert first.clipped.accuracy < 0.5
    assert first.retrained.accuracy < first.raw.accuracy - 0.3
    assert first.clipped_change is not None
    assert first.clipped_change.value == pytest.approx(first.clipped.accuracy - first.raw.accuracy)
    assert first.clipped_change.high < 0
    heat = first.heat[:, [first.heat_dims.index(5), first.heat_dims.index(11)]]
    assert heat[1:10].min(axis=1).max() > 0
    assert heat[0].tolist() == [0, 0]  # [CLS] stands there, and was not evaluated
    weights = found.n_at / found.n_at.sum()
    assert weights @ first.heat == pytest.approx(first.contribution[list(first.heat_dims)], rel=1e-5)
    assert sorted(map(first.weight_rank, range(len(first.weight)))) == list(range(1, 1 + len(first.weight)))


def test_without_positions_a_probe_is_no_better_than_chance(words: Any) -> None:
    loaded = wrap(FAMILIES["llama"], words(kind="causal"), double=False)
    random = np.random.default_rng(0)

    def drawn(n: int) -> Texts:
        return Texts("made", tuple(" ".join(f"w{i}" for i in random.integers(0, 33, 8)) for _ in range(n)))

    options = ProbeOptions(read=ReadOptions(layers=(-1,)))
    found = probe_positions(loaded, Split(drawn(600), drawn(300)), NONE, options)
    (embeddings,) = found.layers
    assert found.majority_accuracy == 1 / 8
    assert embeddings.raw.accuracy == pytest.approx(1 / 8, abs=0.03)
    assert embeddings.raw.loss > np.log(8) - 0.02
    assert not found.in_embeddings
    assert found.left_only
    assert "nothing in the embeddings tells positions apart" in meaning(found)[0]
    assert "a token sees only what stands before it" in meaning(found)[1]


@pytest.mark.parametrize("family", REPRESENTATIVE, ids=lambda family: family.name)
def test_representative_families(family: Family, words: Any) -> None:
    loaded = wrap(family, words(), double=False)
    split = split_of()
    clipping = Clipping("made", {"0": (3,), "1": (2, 3)}, "made up")
    found = probe_positions(loaded, split, clipping, ProbeOptions(read=ReadOptions(batch_size=5), max_length=8))
    n_layers = next(stack for stack in loaded.stacks if stack.name == found.stack).n_layers
    assert [one.layer for one in found.layers] == ["embeddings", *map(str, range(n_layers))]
    counted = sum(min(len(text.split()), 6) for text in split.dev.texts)  # eight tokens, two of them special
    assert found.n_dev_tokens == counted == found.n_at.sum()
    assert found.n_positions == 7
    assert found.n_at[0] == 0
    assert found.n_trained_at.sum() == found.n_train_tokens == sum(min(len(t.split()), 6) for t in split.train.texts)
    for one in found.layers:
        assert 0 <= one.raw.low <= one.raw.accuracy <= one.raw.high <= 1
        assert one.raw.accuracy <= one.raw.within_one <= 1
        assert np.isfinite(one.contribution).all()
        assert one.mean == pytest.approx(one.contribution.mean())
        assert one.other.dim not in (2, 3)
        assert one.clipped_dims == clipping.at(one.layer)
        assert (one.clipped is not None) == (one.retrained is not None) == (one.layer in ("0", "1"))
        shares = np.nan_to_num(one.raw.by_position) * found.n_at
        assert shares.sum() / found.n_at.sum() == pytest.approx(one.raw.accuracy)
    assert any("30 texts" not in note for note in found.notes)  # the texts that reach the limit
    assert from_json(to_json(found)).layers[0].layer == "embeddings"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded.model.modules())


def test_the_seed_decides_and_the_cache_does_not(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    texts = some_texts(60, 3)

    def run(seed: int, gigabytes: float = 8.0) -> Any:
        options = ProbeOptions(read=ReadOptions(budget=Budget(gigabytes)), epochs=3, batch=16, seed=seed)
        return probe_positions(loaded, split_texts(texts, None, seed=seed), NONE, options)

    one, again, other, streamed = run(0), run(0), run(1), run(0, 1e-6)
    assert one.cached
    assert not streamed.cached
    assert "so every epoch ran the model again (--cache-gb)" in streamed.notes[-1]
    for a, b, c, d in zip(one.layers, again.layers, other.layers, streamed.layers, strict=True):
        assert np.array_equal(a.contribution, b.contribution)
        assert a.raw.loss == b.raw.loss
        assert not np.allclose(a.contribution, c.contribution)
        assert a.contribution == pytest.approx(d.contribution, rel=1e-3, abs=1e-5)
    assert one.notes[0].startswith(
        f"{len(set(texts.texts)) // 5} of {len(set(texts.texts))} texts of made were held out"
    )


def test_epochs_learn_and_the_row_is_a_choice(words: Any) -> None:
    loaded, split = planted(words), Split(some_texts(120, 1), some_texts(40, 2))
    few, more = (
        probe_positions(loaded, split, NONE, ProbeOptions(epochs=epochs, batch=32, learning_rate=0.02))
        for epochs in (1, 6)
    )
    assert more.layers[0].raw.loss < few.layers[0].raw.loss
    said = probe_positions(loaded, split, NONE, ProbeOptions(batch=32, learning_rate=0.02, row="predicted"))
    assert said.layers[0].raw.loss == few.layers[0].raw.loss
    assert not np.allclose(said.layers[0].contribution, few.layers[0].contribution)
    assert few.named == ()
    assert few.layers[0].largest == few.layers[0].other


def test_which_tokens_count(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    split = Split(Texts("t", ("w1 w2 w3", "w4 w5")), Texts("d", ("w1", "w2 w3 w4 w5")))
    found = probe_positions(loaded, split, NONE)
    assert found.n_trained_at.tolist() == [0, 2, 2, 1, 0]
    assert found.n_at.tolist() == [0, 2, 1, 1, 1]
    assert (found.majority, found.majority_accuracy) == (1, 0.4)
    special = probe_positions(loaded, split, NONE, ProbeOptions(special=True))
    assert special.n_trained_at.tolist() == [2, 2, 2, 2, 1, 0]
    assert special.n_at.tolist() == [2, 2, 2, 1, 1, 1]
    capped = probe_positions(loaded, split, NONE, ProbeOptions(positions=3, redraws=0))
    assert capped.n_at.tolist() == [0, 2, 1]
    assert capped.notes == ("3 tokens at later positions than the 3 probed were left out",)
    few = probe_positions(loaded, split, NONE, ProbeOptions(limit=1, redraws=0))
    assert few.n_train == 1
    assert few.notes == ("1 of 2 texts of t were trained on, drawn by the seed",)


def test_texts_end_where_there_are_tokens_enough(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    monkeypatch.setattr("outlierlens.experiments.probe.measure.TRAIN_TOKENS", 11)
    monkeypatch.setattr("outlierlens.experiments.probe.measure.DEV_TOKENS", 9)
    same = Texts("t", tuple(f"w{i} w{i + 1}" for i in range(8)))  # four tokens each, two of them special
    split = Split(same, same)
    found = probe_positions(loaded, split, NONE)
    assert (found.n_train, found.n_train_tokens, found.n_dev, found.n_dev_tokens) == (2, 4, 2, 4)
    whole = probe_positions(loaded, split, NONE, ProbeOptions(whole=True))
    assert (whole.n_train, whole.n_dev) == (8, 8)
    assert probe_positions(loaded, split, NONE, ProbeOptions(limit=5)).n_train == 5


def test_what_cannot_be_probed(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    split = split_of()
    for options, message in (
        ({"row": "silver"}, "row is 'silver'; use one of gold, predicted"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"positions": 1}, "positions is 1; it must be at least 2"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be more than 0"),
        ({"redraws": 1}, "redraws is 1; use 2 or more, for one has no spread, or 0 for none"),
    ):
        with pytest.raises(BadInput, match=message):
            ProbeOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="dimension 16 cannot be clipped; the vectors have dimensions 0 to 15"):
        probe_positions(loaded, split, Clipping("x", {"0": (16,)}, ""))
    with pytest.raises(BadInput, match="has no layer 7"):
        probe_positions(loaded, split, NONE, ProbeOptions(read=ReadOptions(layers=(7,))))
    causal = wrap(FAMILIES["gpt2"], words(kind="causal"), double=False)
    one = Texts("t", ("w1", "w2"))
    with pytest.raises(BadInput, match="all tokens stand at the first position"):
        probe_positions(causal, Split(one, one), NONE)
    with pytest.raises(BadInput, match="there is no token to evaluate in these texts"):
        probe_positions(loaded, Split(some_texts(5), Texts("t", ("",))), NONE)


def test_words_about_positions() -> None:
    assert buckets(1) == [(0, 0)]
    assert buckets(5) == [(0, 3), (4, 4)]
    assert buckets(66) == [(0, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 65)]
    found = probe_results.position_probe()
    # (4 · 1 + 4 · 0.75 + 2 · 0.5) / 10, and the one token at position 4.
    assert bucket_accuracy(found, found.layers[0].raw) == pytest.approx([0.8, 0.0])
    assert found.named == (2,)
    assert [one.largest.dim for one in found.layers] == [1, 2]
    assert found.at("0").clipped_dims == (2,)
    with pytest.raises(BadInput, match="no layer '9' was probed; there are embeddings, 0"):
        found.at("9")
    assert len(found.records()) == 8
    assert meaning(found) == [
        "positions are added before the first block: the embeddings of one token differ by where it stands, and the "
        "embeddings' probe reads what was written there"
    ]
    assert meaning(probe_results.position_probe(in_embeddings=None, left_only=None)) == []


def test_charts_show_the_numbers() -> None:
    found = probe_results.position_probe()
    accuracy = charts.probe_accuracy(found)
    assert accuracy.rows[1] == ("0", 0.8, 0.7, 0.85, 0.82, 0.6, 0.7)
    assert "80% of tokens from the embeddings" in accuracy.reading
    assert "-20.0 points at most (layer 0; 95 % interval -30.0 to -10.0)" in accuracy.reading
    contributions = charts.probe_contributions(found)
    assert ("0", "dim 2", 2, 1.3, 1) in contributions.rows
    assert ("0", "mean of all", None, 0.5, None) in contributions.rows
    assert "the largest contributor in layer 0." in contributions.reading
    heat = charts.probe_heat(found)
    assert heat.title == "By position and dimension, layer 0"  # where a named dimension stands out most
    cells = heat.spec["layer"][0]["data"]["values"]
    assert [(c["dim"], c["position"], c["value"]) for c in cells][:4] == [
        ("2 (named)", p, pytest.approx(1.3 * p)) for p in (1, 2, 3, 4)
    ]
    assert heat.rows[0] == ("2 (named)", 1.3, 5.2, 4)
    assert charts.probe_heat(found, "embeddings").rows[0][0] == "1"
    with pytest.raises(BadInput, match="no layer 'x' was probed"):
        charts.probe_heat(found, "x")
    pytest.importorskip("vl_convert")
    for chart in (charts.probe(found), accuracy, contributions, heat):
        assert charts.picture(chart, "svg").startswith(b"<svg")
    nothing = probe_results.position_probe(
        layers=tuple(
            type(one)(**(vars(one) | {"named": (), "clipped": None, "retrained": None, "clipped_change": None}))
            for one in found.layers
        )
    )
    assert "No dimension is named." in charts.probe_contributions(nothing).reading
    assert charts.picture(charts.probe(nothing), "svg").startswith(b"<svg")


@pytest.fixture
def folder(tmp_path: Path, words: Any) -> Path:
    """A saved tiny BERT with two text files."""
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "train.txt").write_text("\n".join(some_texts(40, 1).texts))
    (tmp_path / "dev.txt").write_text("\n".join(some_texts(15, 2).texts))
    return tmp_path


def test_the_command(folder: Path, run: Any) -> None:
    base = ("probe", str(folder / "model"), "--data", str(folder / "train.txt"), "--dev-data", str(folder / "dev.txt"))
    result, chart = folder / "out.json", folder / "out.svg"
    code, out, err = run(*base, "--clip", "1:3", "--dtype", "float32", "-o", str(result), "--chart", str(chart))
    assert (code, out.count("Accuracy × 100 on clipped vectors")) == (0, 1), err
    assert "position of a token among 10, without special tokens (they count as positions); 1 epoch over" in out
    assert "Positions are added before the first block" in out
    assert "dim 3  rank  rank of |w|" in out
    assert "Clipping 1:3: named by hand." in out
    assert "training, epoch 1 of 1" in err
    assert "evaluating" in err
    found = load(result)
    assert found.layers[2].clipped_dims == (3,)
    assert "Intervals hold for other evaluated texts and for other training texts (drawn again 7 times)" in out
    assert found.layers[2].clipped_change.sd_training is not None
    assert found.provenance.command.startswith("outlierlens probe ")
    assert chart.read_bytes().startswith(b"<svg")
    code, _, err = run(*base, "-o", str(result))
    assert (code, "out.json exists; give another name or --overwrite" in err) == (1, True)

    options = ("--full", "--clip", "none", "--json", "--lr", "0.02", "--probe-batch", "16", "--positions", "6", "--no-retrain",
               "--row", "predicted", "--special", "--layers", "embeddings,1", "--dtype", "float32")  # fmt: skip
    options += ("--redraws", "0")
    code, out, _ = run(*base, *options)
    document = json.loads(out)
    assert (code, document["epochs"], document["row"], document["special"]) == (0, 10, "predicted", True)
    assert (document["learning_rate"], document["batch"], document["n_positions"]) == (0.02, 16, 6)
    assert [one["layer"] for one in document["layers"]] == ["embeddings", "1"]
    assert document["cached"]
    assert (document["n_redraws"], document["layers"][0]["raw"]["sd_training"]) == (0, None)
    code, out, err = run(*base, "--no-retrain", "--clip", "3", "--dtype", "float32", "--redraws", "0")
    assert "Intervals are over the evaluated texts alone: training was not drawn again (--redraws)" in out
    assert (code, "–" in out) == (0, True)
    assert load(result).layers[2].retrained is not None


def test_what_is_shown_of_named_dimensions() -> None:
    one = probe_results.position_probe().layers[0]
    many = replace(one, named=tuple(Contribution(dim, 0.1, dim + 2) for dim in (0, 1, 2, 3, 1, 2)))
    found = probe_results.position_probe(layers=(many,))
    tables = next(sections(found)).tables
    assert len(tables[1].columns) == 3 + 3 * 4 + 3 == len(tables[1].rows[0])
    assert tables[1].note.endswith("2 more named dimensions stand in the result: 1, 2.")
    whole = next(sections(found, verbose=True)).tables[1]
    assert (len(whole.columns), "more named" in whole.note) == (3 + 3 * 6 + 3, False)


def test_what_the_command_refuses(folder: Path, run: Any) -> None:
    base = ("probe", str(folder / "model"), "--data", str(folder / "train.txt"))
    for more, message in (
        (("--full", "--limit", "5"), "--full takes all texts and --limit some"),
        (("--dev-data", str(folder / "train.txt")), "hold the same texts; evaluate on others"),
        (("--row", "silver"), "row is 'silver'"),
        (("--clip", "99"), "dimension 99 does not exist"),
        (("--chart", "x.pdf"), "the ending says what is drawn"),
    ):
        code, _, err = run(*base, *more)
        assert (code, message in err) == (1, True), err
    code, _, err = run(*base[:2], "--data", "nothing.txt")
    assert (code, "no such data file" in err) == (1, True), err


def test_auto_observes_texts_that_are_not_evaluated(folder: Path, run: Any) -> None:
    base = ("probe", str(folder / "model"), "--data", str(folder / "train.txt"), "--dtype", "float32", "-q")
    code, _, err = run(*base, "-o", str(folder / "a.json"))
    assert code == 0, err
    found = load(folder / "a.json")
    n = len(set(some_texts(40, 1).texts))
    assert f"observed on {n - n // 5} texts" in found.clip_source
    assert found.n_dev == n // 5
    both = ("--fit-data", str(folder / "dev.txt"), "--fit-limit", "7", "--dev-data", str(folder / "dev.txt"))
    code, _, err = run(*base, *both, "-o", str(folder / "b.json"))
    assert (code, "of its 15 texts are evaluated ones" in err) == (1, True), err
