"""Classifiers on frozen vectors: against a plain loop of torch, planted dimensions, and states read text by text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from architectures import FAMILIES, build
from outlierlens.analyses import probe_frozen
from outlierlens.analyses.probe_classifiers import (
    HELD_OUT,
    Splits,
    TrainOptions,
    divide,
    protocol_of,
    read_frozen,
    train,
)
from outlierlens.analyses.probe_frozen import FrozenOptions, frozen
from outlierlens.data.labelled import Examples, find_task, plain_task, read_examples
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.results.rows import Estimate
from outlierlens.vectors.clip import Clipping
from outlierlens.vectors.fixes import Fix, make_fix, moments_of, parse_fixes
from outlierlens.vectors.read import ReadOptions
from planted import Oracle

TASK = plain_task("classify", "text", "label", labels=("no", "yes"))
ALL = parse_fixes("raw,clip,centre,standardize,abtt:1,whiten,whiten:3")


def some_vectors(n_layers: int = 3, n: int = 50, width: int = 6, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.normal(size=(n_layers, n, width)) * [5, 1, 1, 2, 1, 0.1] + [9, 0, 0, 1, 0, 3]).astype(np.float32)


def fixes_of(vectors: np.ndarray, specs: Any = ALL, dims: tuple[int, ...] = (0,)) -> list[list[Fix]]:
    width = vectors.shape[2]
    return [[make_fix(spec, width, moments=moments_of(layer), dims=dims) for layer in vectors] for spec in specs]


def plain_loop(repaired: np.ndarray, labels: np.ndarray, options: TrainOptions) -> torch.nn.Linear:
    """One classifier of one layer, trained as one would write it down."""
    linear = torch.nn.Linear(repaired.shape[1], options.n_classes, bias=options.bias, dtype=torch.float64)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.zero_()
    adam = torch.optim.Adam(linear.parameters(), lr=options.lr)
    for epoch in range(options.epochs):
        order = np.random.default_rng([options.seed, 17, epoch]).permutation(len(labels))
        for start in range(0, len(labels), options.batch):
            rows = order[start : start + options.batch]
            adam.zero_grad()
            logits = linear(torch.from_numpy(repaired[rows]))
            torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[rows])).backward()
            adam.step()
    return linear


@pytest.mark.parametrize("bias", [False, True])
def test_joint_training_is_a_plain_loop_for_each_layer_and_fix(bias: bool) -> None:
    vectors = some_vectors()
    labels = np.random.default_rng(1).integers(0, 3, 50)
    others = some_vectors(n=20, seed=2)
    options = TrainOptions(3, epochs=4, batch=16, lr=0.05, bias=bias, seed=3)
    fixes = fixes_of(vectors)
    for layer in range(3):
        heads = train(vectors[layer], labels, [fix[layer] for fix in fixes], options)
        said = heads.predict(others[layer])
        assert said.shape == (len(ALL), 20)
        for i in range(len(ALL)):
            fix = fixes[i][layer]
            linear = plain_loop(fix.apply(vectors[layer]), labels, options)
            expected = linear(torch.from_numpy(fix.apply(others[layer]))).detach().numpy()
            got = (others[layer] - heads.shift) @ heads.weight[:, i] + heads.constant[i]
            np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9)
            assert (said[i] == expected.argmax(1)).all()


def test_a_classifier_is_the_same_with_others_and_alone() -> None:
    vectors, options = some_vectors(), TrainOptions(2, epochs=3, batch=20, lr=0.1)
    labels = (vectors[0, :, 3] > 1).astype(int)
    fixes = [fix[0] for fix in fixes_of(vectors)]
    joint = train(vectors[0], labels, fixes, options)
    for i in range(len(ALL)):
        alone = train(vectors[0], labels, fixes[i : i + 1], options)
        np.testing.assert_allclose(alone.weight[:, 0], joint.weight[:, i], rtol=1e-9, atol=1e-12)
        assert alone.loss[0] == pytest.approx(joint.loss[i], rel=1e-12)


def test_the_loss_is_the_mean_cross_entropy_as_the_batches_were_met() -> None:
    vectors = some_vectors(1)
    labels = np.arange(50) % 2
    one = train(vectors[0], labels, fixes_of(vectors, ALL[:1])[0], TrainOptions(2, epochs=1, batch=50))
    assert one.loss[0] == pytest.approx(np.log(2))  # zero weights say one half


def test_clipping_the_one_informative_dimension_leaves_chance() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 600)
    vectors = random.normal(size=(600, 6)).astype(np.float32)
    vectors[:, 4] = np.where(labels == 1, 8, -8)
    fixes = [fix for (fix,) in fixes_of(vectors[None], parse_fixes("raw,clip"), dims=(4,))]
    heads = train(vectors[:400], labels[:400], fixes, TrainOptions(2, epochs=20, batch=50))
    right = (heads.predict(vectors[400:]) == labels[400:]).mean(1)  # [fix]
    assert right[0] == 1
    assert abs(right[1] - 0.5) < 0.12  # 3.4 standard errors of 200 tosses


def test_an_invertible_fix_changes_the_way_and_not_the_optimum() -> None:
    random = np.random.default_rng(0)
    vectors = (random.normal(size=(1, 300, 3)) @ random.normal(size=(3, 3)) * [3, 1, 0.5] + [5, 0, 1]).astype(
        np.float32
    )
    labels = (vectors[0] @ [0.3, -1, 1] + random.normal(size=300) * 2 > 1).astype(int)
    specs = parse_fixes("raw,centre,standardize,whiten,clip")
    fixes = [fix for (fix,) in fixes_of(vectors, specs)]
    short, long = (
        train(vectors[0], labels, fixes, TrainOptions(2, epochs=epochs, batch=300, lr=lr, bias=True))
        for epochs, lr in ((3, 0.01), (600, 0.1))
    )
    assert np.ptp(short.loss[:4]) > 0.01
    np.testing.assert_allclose(long.loss[:4], long.loss[0], rtol=1e-5)
    for i in (1, 2, 3):
        np.testing.assert_allclose(np.diff(long.weight[:, i]), np.diff(long.weight[:, 0]), atol=0.01)
    assert long.loss[4] > long.loss[0] + 0.005  # clipping is not invertible


def test_a_dimension_that_does_not_vary_serves_as_the_missing_bias() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(400, 2)).astype(np.float32)
    vectors[:, 0] += 6
    vectors[:, 1] = 10
    labels = (vectors[:, 0] > 6).astype(int)
    fixes = [fix for (fix,) in fixes_of(vectors[None], parse_fixes("raw,clip"), dims=(1,))]
    without, having = (
        (train(vectors, labels, fixes, TrainOptions(2, 50, 100, 0.2, bias)).predict(vectors) == labels).mean(1)
        for bias in (False, True)
    )
    assert without[0] > 0.95
    assert without[1] < 0.6  # a line through the origin calls all of them alike
    assert having[1] > 0.95


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch": 0}, {"lr": 0.0}, {"lr": float("nan")}])
def test_options_that_make_no_step_are_refused(wrong: dict[str, Any]) -> None:
    vectors = some_vectors(1)
    with pytest.raises(BadInput, match="must all be above 0"):
        train(vectors[0], np.zeros(50, dtype=int), fixes_of(vectors, ALL[:1])[0], TrainOptions(2, **wrong))


def examples(texts: list[str], labels: list[int], source: str = "made", task: Any = TASK) -> Examples:
    return Examples(source, tuple(texts), "text", task=task, labels=tuple(labels))


def numbered(n: int, first: int = 0) -> Examples:
    return examples([f"text {i}" for i in range(first, first + n)], [i % 2 for i in range(n)])


def test_without_a_dev_split_it_is_held_out_of_train_and_nothing_is_shared() -> None:
    train, test = numbered(100), numbered(30, 90)  # ten texts in both
    found = divide(train, None, test, limit=50, test_limit=20, seed=1)
    assert (len(found.train), len(found.test), found.held_out) == (50, 20, True)
    shared = set(train.texts) & set(found.test.texts)
    assert found.n_dropped == len(shared) > 0
    assert len(found.dev) == (100 - len(shared)) // 5
    splits = [set(part.texts) for part in (found.train, found.dev, found.test)]
    assert not (splits[0] & splits[1])
    assert not (splits[0] & splits[2])
    assert not (splits[1] & splits[2])
    again = divide(train, None, test, limit=50, test_limit=20, seed=1)
    other = divide(train, None, test, limit=50, test_limit=20, seed=2)
    assert found == again
    assert found.train.texts != other.train.texts
    number = dict(zip(train.texts, train.labels, strict=True))
    assert all(number[text] == label for text, label in zip(found.train.texts, found.train.labels, strict=True))


def test_a_dev_split_of_its_own_loses_what_test_has_and_train_loses_both() -> None:
    train = examples(["a", "b ", "c", "d", "e"], [0, 1, 0, 1, 0])
    dev = examples(["b", "c  x", "y"], [1, 0, 1])
    test = examples(["c x", "d"], [0, 1])
    found = divide(train, dev, test, limit=None, test_limit=None, seed=0)
    assert (found.train.texts, found.dev.texts, found.test.texts) == (("a", "c", "e"), ("b", "y"), ("c x", "d"))
    assert (found.n_dropped, found.held_out) == (3, False)


def test_the_same_text_twice_in_train_is_not_in_both_parts() -> None:
    train = examples([f"t{i % 10}" for i in range(100)], [i % 2 for i in range(100)])
    found = divide(train, None, numbered(5), limit=None, test_limit=None, seed=0)
    assert not set(found.train.texts) & set(found.dev.texts)


def test_a_large_train_split_gives_a_thousand() -> None:
    found = divide(numbered(6000), None, numbered(5, 9000), limit=None, test_limit=None, seed=0)
    assert (len(found.dev), len(found.train)) == (HELD_OUT, 5000)


def test_splits_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="2 training and 0 dev examples are left"):
        divide(numbered(2), None, numbered(2, 5), limit=None, test_limit=None, seed=0)
    other = examples(["q"], [0], "elsewhere", plain_task("classify", "text", "label", labels=("a", "b")))
    with pytest.raises(BadInput, match=r"elsewhere has the classes a, b, made no, yes; both must have the same"):
        divide(numbered(9), None, other, limit=None, test_limit=None, seed=0)
    one = examples(["q"], [0], "one", plain_task("classify", "text", "label", labels=("a",)))
    with pytest.raises(BadInput, match="one has one class"):
        divide(one, None, one, limit=None, test_limit=None, seed=0)


def test_the_paper_s_protocol_and_the_new_tasks(tmp_path: Path) -> None:
    batches = {name: protocol_of(find_task(name)).train_batch for name in ("sst2", "sst5", "imdb", "cola")}
    assert batches == {"sst2": 768, "sst5": 1536, "imdb": 128, "cola": 128}
    for split, first in (("train", 0), ("validation", 50), ("test", 70)):
        rows = [json.dumps({"text": f"words {first + i}", "label": i % 5}) for i in range(20)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    found = read_frozen(find_task("sst5"), str(tmp_path), limit=10)
    assert (found.held_out, len(found.train), len(found.dev), len(found.test)) == (False, 10, 20, 20)
    assert found.test.texts[0] == "words 70"  # the test split, where fine-tuning takes validation
    assert found.test.task.labels[4] == "very positive"
    assert read_examples(find_task("sst5"), tmp_path).texts[0] == "words 50"
    assert find_task("imdb").evaluated == "test"
    assert find_task("imdb").labels == ("negative", "positive")


@pytest.mark.parametrize("task", ["stsb", "rte"])
def test_tasks_of_pairs_and_numbers_are_refused(task: str) -> None:
    with pytest.raises(BadInput, match="read one text and say one class; use sst2, sst5, imdb"):
        read_frozen(find_task(task), "nowhere")


def word_splits(n: int = 60, seed: int = 0) -> Splits:
    """Texts of random words; yes where w3 is among them."""
    random = np.random.default_rng(seed)
    texts: list[str] = []
    while len(set(texts)) < 2 * n:
        words = [f"w{i}" for i in random.integers(0, 20, random.integers(2, 9))]
        texts.append(" ".join(words))
    texts = list(dict.fromkeys(texts))[: 2 * n]
    made = examples(texts, [int("w3" in text.split()) for text in texts])
    test, rest = made.some(range(n // 2)), made.some(range(n // 2, 2 * n))
    return divide(rest, None, test, limit=None, test_limit=None, seed=seed)


def states_by_text(loaded: LoadedModel, texts: tuple[str, ...], special: bool) -> np.ndarray:
    """Mean states [layer, text, dim], each text on its own, so without padding."""
    oracle = Oracle(loaded, Texts("made", texts), 128)
    (found,) = oracle.by_text.values()
    kept = [[special or token not in (1, 2) for token in ids] for ids in oracle.ids]
    means = [[layer[mask].mean(0) for layer in layers] for layers, mask in zip(found, kept, strict=True)]
    return np.array(means).swapaxes(0, 1)


@pytest.mark.parametrize(("family", "special"), [("bert", False), ("roberta", True), ("gpt2", False), ("llama", False)])
def test_the_whole_is_states_a_plain_loop_and_scikit_learn(family: str, special: bool, words: Any) -> None:
    loaded = from_objects(
        build(FAMILIES[family]), words(kind="causal" if family in ("gpt2", "llama") else "masked"), name=family
    )
    splits = word_splits()
    clipping = Clipping("by hand", {"0": (3,), "2": (5, 9)}, "made up")
    options = FrozenOptions(
        special=special, fixes=parse_fixes("clip,whiten:4"), epochs=3, lr=0.05, train_batch=16, fit_limit=50, seed=4
    )
    seen: list[tuple[str, ...]] = []

    def clip(texts: Any) -> Clipping:
        seen.append(texts.texts)
        return clipping

    found = frozen(loaded, splits, options, clip=clip)
    assert seen == [splits.train.texts]  # never dev or test
    assert found.fixes == ("raw", "clip", "whiten:4")
    learned, chosen, judged = (
        states_by_text(loaded, part.texts, special) for part in (splits.train, splits.dev, splits.test)
    )
    layers = ("embeddings", *(str(layer) for layer in range(len(learned) - 1)))
    assert tuple(dict.fromkeys(one.layer for one in found.by_layer)) == layers
    fitted = np.sort(np.random.default_rng([4, 19]).permutation(len(splits.train))[:50])
    settings = TrainOptions(2, 3, 16, 0.05, False, 4)
    labels = [np.array(part.labels) for part in (splits.train, splits.dev, splits.test)]
    for spec in parse_fixes("raw,clip,whiten:4"):
        for place, layer in enumerate(layers):
            row = found.row(spec.name, layer)
            moments = moments_of(learned[place, fitted])
            fix = make_fix(spec, learned.shape[2], moments=moments, dims=clipping.at(layer))
            linear = plain_loop(fix.apply(learned[place]), labels[0], settings)
            for part, truth, score in zip(
                (learned, chosen, judged), labels, (row.train, row.dev, row.test.value), strict=True
            ):
                said = linear(torch.from_numpy(fix.apply(part[place]))).argmax(1)
                assert score == pytest.approx(accuracy_score(truth, said))
            assert row.test.low <= row.test.value <= row.test.high
            if spec.kind != "raw":
                assert row.change.value == pytest.approx(row.test.value - found.row("raw", layer).test.value, abs=1e-12)
        mine = [found.row(spec.name, layer) for layer in layers]
        for by, values in (("dev", [row.dev for row in mine]), ("test", [row.test.value for row in mine])):
            choice = found.choice(spec.name, by)
            assert choice.layer == layers[int(np.argmax(values))]
            assert choice.value == found.row(spec.name, choice.layer).test
            raw = found.choice("raw", by)
            assert raw.verdict == ""
            if spec.kind != "raw":
                assert choice.change.value == pytest.approx(choice.value.value - raw.value.value)
    assert found.row("clip", "embeddings").change == Estimate(0.0, 0.0, 0.0)  # nothing is clipped there
    assert found.clip_dims == {layer: dims for layer, dims in clipping.dims.items() if layer in layers}
    assert found.majority == max(np.mean(labels[2] == commonest) for commonest in [np.bincount(labels[0]).argmax()])
    assert found.train_batch == 16
    assert f"{3 * -(-len(splits.train) // 16)} steps of 16 examples" in " ".join(found.sentences())
    again = frozen(loaded, splits, options, clip=clip)
    assert str(again.by_layer) == str(found.by_layer)


def test_a_stopped_run_trains_the_missing_layers_alone(
    words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, splits, rows = (
        from_objects(build(FAMILIES["bert"]), words(), name="bert"),
        word_splits(30),
        tmp_path / "r.jsonl",
    )
    options = FrozenOptions(fixes=parse_fixes("clip,whiten"), epochs=2)
    whole = frozen(loaded, splits, options, rows=rows)
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:-2]))
    trained: list[int] = []
    monkeypatch.setattr(probe_frozen, "train", lambda *given: [trained.append(1), train(*given)][1])
    again = frozen(loaded, splits, options, rows=rows)
    assert len(trained) == 2
    assert str(again.by_layer) == str(whole.by_layer)
    assert str(again.chosen) == str(whole.chosen)
    frozen(loaded, splits, options, rows=rows)
    assert len(trained) == 2


def test_a_text_at_the_limit_counts_as_cut_and_one_without_tokens_is_said(words: Any) -> None:
    loaded = from_objects(build(FAMILIES["gpt2"]), words(kind="causal"), name="gpt2")
    texts = ["w1 w2 w3 w4 w5 w6", "w1", "w3 w4", "w5 w6 w7", "w8", "w9 w3", "w10 w3", "w11", "w12", "w13", ""]
    made = examples(texts, [int("w3" in text) for text in texts])
    splits = divide(made, None, examples(["w2 w3", "w4 w6"], [1, 0]), limit=None, test_limit=None, seed=0)
    found = frozen(loaded, splits, FrozenOptions(fixes=parse_fixes("standardize"), max_length=4, epochs=1))
    assert found.about.max_length == 4
    assert found.n_cut == 1
    assert "1 texts have no token; their vectors are zero" in found.notes
    whole = frozen(loaded, splits, FrozenOptions(fixes=(), max_length=None, epochs=1))
    assert whole.about.max_length > 4
    assert whole.n_cut == 0


def test_layers_can_be_named_and_too_many_vectors_are_refused(words: Any) -> None:

    loaded = from_objects(build(FAMILIES["bert"]), words(), name="bert")
    found = frozen(loaded, word_splits(20), FrozenOptions(read=ReadOptions(layers=(-1, 2)), fixes=(), epochs=1))
    assert [one.layer for one in found.by_layer] == ["embeddings", "2"]
    with pytest.raises(BadInput, match="raise cache_gb"):
        frozen(loaded, word_splits(20), FrozenOptions(read=ReadOptions(cache_gb=1e-7)))
    with pytest.raises(BadInput, match="fit_limit is 1"):
        FrozenOptions(fit_limit=1)
