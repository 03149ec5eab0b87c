"""One-dimension classifiers: against brute force, scikit-learn, scipy, and hidden states read without padding."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

import finetune_runs
from architectures import FAMILIES, build
from outlierlens.analyses.probe_classifiers import SHIFTS, fit_intervals, fit_line, shifted_mean
from outlierlens.analyses.probe_one_dimension import OneDimOptions, one_dimension
from outlierlens.data.labelled import Examples, find_task, plain_task
from outlierlens.data.labelled.labels import with_metric
from outlierlens.errors import BadInput
from outlierlens.models.load import from_objects, load_model
from outlierlens.results.document import from_json, to_json
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.vectors.read import ReadOptions


def brute_force(values: np.ndarray, labels: np.ndarray, n_classes: int, weights: np.ndarray) -> float:
    """Most weight right over every choice of cuts between different values and of a class for every interval."""
    order = np.argsort(values, kind="stable")
    values, labels, weights = values[order], labels[order], weights[order]
    places = [i for i in range(1, len(values)) if values[i - 1] < values[i]]
    best = 0.0
    for n_cuts in range(n_classes):
        for cuts in itertools.combinations(places, n_cuts):
            parts = np.split(np.arange(len(values)), cuts)
            best = max(best, sum(max(weights[p][labels[p] == c].sum() for c in range(n_classes)) for p in parts))
    return best / weights.sum()


@settings(max_examples=150)
@given(st.data())
def test_intervals_are_the_best_there_are(data: st.DataObject) -> None:
    n_classes = data.draw(st.integers(2, 3))
    n = data.draw(st.integers(1, 8))
    values = np.array(data.draw(st.lists(st.integers(-2, 3), min_size=2 * n, max_size=2 * n)), dtype=np.float32)
    values = values.reshape(n, 2)
    labels = np.array(data.draw(st.lists(st.integers(0, n_classes - 1), min_size=n, max_size=n)))
    weights = np.array(data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)), dtype=float)
    fitted = fit_intervals(values, labels, n_classes, weights)
    said = fitted.predict(values)
    for dim in range(2):
        best = brute_force(values[:, dim], labels, n_classes, weights)
        assert fitted.fits[dim] == pytest.approx(best)
        assert weights[said[:, dim] == labels].sum() / weights.sum() == pytest.approx(best)
        assert (np.diff(fitted.cuts[dim][np.isfinite(fitted.cuts[dim])]) > 0).all()


def test_intervals_by_hand() -> None:
    labels = np.array([0, 0, 1, 1])
    values = np.array([[0, 3, 1], [1, 2, 1], [2, 1, 1], [3, 0, 1]], dtype=np.float32)
    fitted = fit_intervals(values, labels, 2)
    assert fitted.cuts[:, 0].tolist() == [1.5, 1.5, np.inf]  # a constant cannot be cut
    assert fitted.says[:2].tolist() == [[0, 1], [1, 0]]
    assert fitted.fits.tolist() == [1, 1, 0.5]
    assert fitted.predict(np.array([[1.5, 1.6, 9]]))[0].tolist() == [0, 0, 0]  # a value on a cut belongs below
    three = fit_intervals(np.arange(6.0)[:, None], np.array([2, 2, 0, 0, 1, 1]), 3)
    assert (three.cuts.tolist(), three.says.tolist()) == ([[1.5, 3.5]], [[2, 0, 1]])


def test_classes_can_count_alike() -> None:
    values, labels = np.array([[1.0], [1.0], [2.0]]), np.array([0, 1, 1])
    assert fit_intervals(values, labels, 2).says.tolist() == [[1, 1]]  # two of three either way: no cut is simpler
    alike = fit_intervals(values, labels, 2, np.array([1, 0.5, 0.5]))
    assert (alike.cuts.tolist(), alike.says.tolist(), alike.fits.tolist()) == ([[1.5]], [[0, 1]], [0.75])


def test_neighbouring_floats_are_told_apart() -> None:
    one = np.float32(1000.1)
    values = np.array([[one], [np.nextafter(one, np.float32(2000), dtype=np.float32)]])
    fitted = fit_intervals(values, np.array([0, 1]), 2)
    assert fitted.predict(values).ravel().tolist() == [0, 1]


def test_few_dimensions_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    values, labels = random.normal(size=(40, 7)), random.integers(0, 3, 40)
    whole = fit_intervals(values, labels, 3)
    monkeypatch.setattr("outlierlens.analyses.probe_classifiers.MEMORY", 40 * 3 * 4 * 2)
    parts = fit_intervals(values, labels, 3)
    assert np.array_equal(whole.cuts, parts.cuts)
    assert np.array_equal(whole.says, parts.says)


def test_what_cannot_be_fitted() -> None:
    with pytest.raises(BadInput, match="0 vectors for 0 labels"):
        fit_intervals(np.empty((0, 3)), np.array([]), 2)
    with pytest.raises(BadInput, match="not finite; use --dtype float32"):
        fit_intervals(np.array([[np.inf], [1.0]]), np.array([0, 1]), 2)


def test_lines_are_least_squares() -> None:
    random = np.random.default_rng(0)
    values = random.normal(3, 2, size=(30, 4))
    values[:, 3] = 7.0
    targets = values[:, 0] * 2 - values[:, 1] + random.normal(size=30)
    fitted = fit_line(values, targets)
    for dim in range(3):
        slope, intercept = np.polyfit(values[:, dim], targets, 1)
        assert (fitted.slope[dim], fitted.intercept[dim]) == pytest.approx((slope, intercept))
        assert fitted.fits[dim] == pytest.approx(np.corrcoef(values[:, dim], targets)[0, 1] ** 2)
    assert (fitted.slope[3], fitted.intercept[3], fitted.fits[3]) == pytest.approx((0, targets.mean(), 0))
    assert fitted.predict(values)[5, 1] == pytest.approx(fitted.slope[1] * values[5, 1] + fitted.intercept[1])


def test_the_paper_s_shifted_mean() -> None:
    assert (len(SHIFTS), SHIFTS[0], SHIFTS[100], SHIFTS[101]) == (201, -50, 0, 0.5)
    # Mean 2.5; only a shift of 3.5 to 6.5 puts the threshold between 5 and 10, and the first of equals is taken.
    values, labels = np.array([0.0, 1, 5, 10, -3.5]), np.array([1, 1, 1, 0, 1])
    found = shifted_mean(values, labels)
    assert (found.mean, found.shift, found.above, found.right) == (2.5, 2.5, 0, 1.0)
    assert found.predict(np.array([5.0, 5.1])).tolist() == [1, 0]
    random = np.random.default_rng(0)
    values, labels = random.normal(size=60) * 4, random.integers(0, 2, 60)
    best = max(
        np.mean((values > values.mean() + shift) == (labels == above))
        for shift in np.arange(-50, 50.1, 0.5)
        for above in (0, 1)
    )
    assert shifted_mean(values, labels).right == pytest.approx(best)


TEXTS = ("w1 w2 w3", "w4 w5", "w6 w7 w8 w9 w10", "w2", "w11 w3 w5 w7", "w9 w9 w1", "w12 w4", "w8 w6 w4 w2 w1 w3")


def labelled(n: int = 8, labels: tuple[int, ...] = (0, 1, 0, 1, 1, 0, 0, 1)) -> Examples:
    task = plain_task("classify", "text", "label", labels=("no", "yes"))
    return Examples("made up", TEXTS[:n], "text", task=task, labels=labels[:n])


def classifier(family: str, words: Any, kind: str) -> Any:
    """A tiny model with a head for "no" and "yes"."""
    model = build(FAMILIES[family], "SequenceClassification")
    model.config.id2label = {0: "no", 1: "yes"}
    model.config.pad_token_id = 0
    return from_objects(model, words(kind=kind), name=family)


def states_alone(loaded: Any, text: str, layer: int) -> np.ndarray:
    """States [token, dim] of one text read on its own, so without padding, by the model's own means."""
    inputs = loaded.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        found = loaded.model(**inputs, output_hidden_states=True).hidden_states[layer + 1]
    return found[0].numpy()


@pytest.mark.parametrize(
    ("family", "kind", "pooling", "expected"),
    [
        ("bert", "masked", "auto", "first"),
        ("distilbert", "masked", "mean", "mean"),
        ("gpt2", "causal", "auto", "last"),
        ("llama", "causal", "first", "first"),
        ("xlnet", "causal", "auto", "last"),  # padded on the left
    ],
)
def test_every_dimension_is_judged_on_vectors_read_without_padding(
    family: str, kind: str, pooling: Any, expected: str, words: Any
) -> None:
    loaded = classifier(family, words, kind)
    train, dev = labelled(), labelled(labels=(1, 1, 0, 1, 0, 0, 1, 1))
    layer = loaded.stacks[0].n_layers - 2  # a decoder's last hidden state lies behind its final norm
    found = one_dimension(
        loaded, train, dev, OneDimOptions(read=ReadOptions(layers=(layer,), batch_size=3), pooling=pooling)
    )
    assert found.pooling == expected
    (one,) = found.layers
    assert one.layer == str(layer)
    pick = {"first": lambda h: h[0], "last": lambda h: h[-1], "mean": lambda h: h.mean(0)}[expected]
    vectors = np.stack([pick(states_alone(loaded, text, layer)) for text in TEXTS])
    assert one.variance == pytest.approx(vectors.astype(float).var(axis=0), rel=1e-3)
    fitted = fit_intervals(vectors, np.array(train.labels), 2)
    assert one.train == pytest.approx(fitted.fits)
    truth = np.array(dev.labels)
    expected_values = [metrics.accuracy_score(truth, said) for said in fitted.predict(vectors).T]
    # Same vectors to the last digits, so a value may fall on the other side of a cut where two nearly meet.
    assert np.mean(np.isclose(one.values, expected_values)) > 0.9
    assert one.best == int(np.argmax(one.train)) == found.named[0].dim
    assert one.value.value == one.values[one.best]
    assert found.named[0].rank == 1 + int((np.array(one.values) > one.value.value).sum())
    scorer = LabelledScore(loaded, dev, TaskOptions())
    assert found.full.value == scorer.outputs().scores["accuracy"]
    assert found.majority == 5 / 8 if np.bincount(train.labels).argmax() == 1 else 3 / 8
    assert one.rho_variance == pytest.approx(stats.spearmanr(one.variance, one.values).statistic)


def test_named_dimensions_layers_and_the_paper_s_way(words: Any) -> None:
    loaded = classifier("bert", words, "masked")
    with torch.no_grad():
        for layer in range(3):
            norm = loaded.model.bert.encoder.layer[layer].output.LayerNorm
            norm.weight[6] = norm.bias[6] = 30.0
    train, dev = labelled(), labelled(labels=(1, 1, 0, 1, 0, 0, 1, 1))
    found = one_dimension(loaded, train, dev, OneDimOptions(dims=(2,)))
    assert [layer.layer for layer in found.layers] == ["embeddings", "0", "1", "2"]
    assert found.weights_name == (6,)
    last = found.layers[-1]
    named = {one.dim: one for one in found.last}
    assert next(iter(named)) == last.best
    assert {2, 6} <= set(named)
    six = named[6]
    assert six.variance_ratio == pytest.approx(last.variance[6] / np.mean(last.variance))
    assert six.variance_ratio == max(one.variance_ratio for one in found.last)
    assert six.z == pytest.approx(np.sqrt(15), rel=0.05)  # one of 16 far from the rest
    assert last.shifted_dim == int(np.argmax(last.variance)) == 6
    vectors = np.stack([states_alone(loaded, text, 2)[0] for text in TEXTS])
    paper = shifted_mean(vectors[:, 6], np.array(train.labels))
    ours = (last.shifted_mean, last.shift, last.shifted_train)
    assert ours == (pytest.approx(paper.mean, rel=1e-4), paper.shift, paper.right)
    said = paper.predict(vectors[:, 6])
    assert last.shifted.value == metrics.accuracy_score(dev.labels, said)
    assert "weights, variance" in six.why
    assert named[2].why in ("asked for", "best on train, asked for")
    assert to_json(from_json(to_json(found))) == to_json(found)
    assert [len(row.values) for row in found.layers] == [16] * 4


def test_limit_draws_by_seed(words: Any) -> None:
    loaded = classifier("bert", words, "masked")
    first, again, other = (
        one_dimension(loaded, labelled(), labelled(), OneDimOptions(limit=5, seed=seed)) for seed in (0, 0, 1)
    )
    assert first.n_train == 5
    assert first.layers == again.layers
    assert first.layers[-1].variance != other.layers[-1].variance
    assert not first.by_class  # the metric is accuracy


def test_classes_count_alike_where_the_metric_is_not_accuracy(words: Any) -> None:
    loaded = classifier("bert", words, "masked")
    uneven = labelled(labels=(1, 1, 0, 1, 1, 1, 1, 1))
    uneven = replace(uneven, task=with_metric(uneven.task, "macro f1"))
    found = one_dimension(loaded, uneven, uneven)
    assert found.by_class
    alike = found.layers[-1]
    vectors = np.stack([states_alone(loaded, text, 2)[0] for text in TEXTS])
    truth = np.array(uneven.labels)
    assert alike.train == pytest.approx(fit_intervals(vectors, truth, 2, np.where(truth == 1, 1 / 7, 1.0)).fits)


def test_a_regression_gets_lines(tmp_path: Path) -> None:
    data = finetune_runs.write_data(tmp_path / "data", 24, 16)
    train, dev = finetune_runs.examples(data, "regress", label="value")
    base = finetune_runs.tiny(tmp_path / "base")
    model = __import__("transformers").AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    loaded = from_objects(model, load_model(base).tokenizer, name="tiny")
    found = one_dimension(loaded, train, dev, OneDimOptions(dims=(3,)))
    one = found.layers[-1]
    vectors, others = (np.stack([states_alone(loaded, text, 1)[0] for text in part.texts]) for part in (train, dev))
    line = fit_line(vectors, np.array(train.labels))
    assert one.train == pytest.approx(line.fits, abs=1e-4)
    said = line.predict(others)
    for dim in (0, 3, one.best):
        assert one.values[dim] == pytest.approx(stats.pearsonr(dev.labels, said[:, dim]).statistic, abs=1e-4)
    assert (found.about.metric, found.majority, one.shifted_mean) == ("pearson", 0.0, None)
    assert not any(row.value.settled for row in found.named)  # 16 examples settle no correlation
    assert "· h +" in found.last[0].rule
    assert "no dimension at all" in next(found.sentences())


def test_a_model_without_numbers_is_wrong_everywhere(words: Any) -> None:
    loaded = classifier("bert", words, "masked")
    with torch.no_grad():
        loaded.model.classifier.bias[0] = float("nan")
    found = one_dimension(loaded, labelled(), labelled())
    assert found.full.value == found.full.low == 0 < found.full.high
    assert found.layers[-1].value.value > 0


def test_hans_is_learned_from_mnli(words: Any) -> None:
    """Neutral and contradiction both mean non-entailment."""
    loaded = classifier("bert", words, "masked")
    loaded.model.config.id2label = {0: "entailment", 1: "non-entailment"}
    hans, mnli = find_task("hans"), find_task("mnli")
    dev = replace(labelled(), task=hans, pairs=TEXTS[::-1])
    train = replace(dev, task=mnli, labels=(0, 1, 2, 1, 0, 2, 0, 1))
    by_hand = replace(dev, labels=(0, 1, 1, 1, 0, 1, 0, 1))
    found, wanted = (one_dimension(loaded, one, dev) for one in (train, by_hand))
    assert found.layers[-1].values == wanted.layers[-1].values
    assert found.full == wanted.full


def test_what_cannot_be_measured(words: Any) -> None:
    loaded = classifier("bert", words, "masked")
    examples = labelled()
    tokens = Examples(
        "x", ("w1",), "t", task=plain_task("tokens", "t", "l", labels=("a", "b")), labels=((0,),), words=(("w1",),)
    )
    with pytest.raises(BadInput, match="labels words; one-dimension classifiers read sentence vectors"):
        one_dimension(loaded, tokens, tokens)
    other = Examples("x", ("w1",), "t", task=plain_task("classify", "t", "l", labels=("a", "b")), labels=(0,))
    with pytest.raises(BadInput, match="have other labels"):
        one_dimension(loaded, other, examples)
    with pytest.raises(BadInput, match="is a BertModel without a head"):
        one_dimension(from_objects(build(FAMILIES["bert"]), words()), examples, examples)
    with torch.no_grad():
        loaded.model.bert.encoder.layer[2].output.dense.bias[1] = float("inf")
    with pytest.raises(BadInput, match="layer 2: a sentence vector holds a value that is not finite"):
        one_dimension(loaded, examples, examples)
