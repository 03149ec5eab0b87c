"""Sweeping and disabling on labelled tasks: the library's numbers against a plain loop with scikit-learn and scipy."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from architectures import FAMILIES, build
from outlierlens.ablation.controls import random_families
from outlierlens.ablation.modes import means_over
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.analyses.sweep.measure import sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.data.labelled import Examples, plain_task
from outlierlens.data.labelled.labels import with_metric
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.results.document import from_json, to_json
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.tasks.metrics import CORRELATIONS

N = 41
PLANTED = 5


@pytest.fixture(scope="module")
def made(words: Any) -> Callable[..., tuple[LoadedModel, Examples]]:
    """A tiny BERT with a head for `labels`, and examples whose labels are mostly what it says of them."""
    import torch

    def make(
        labels: tuple[str, ...], metric: str, *, noise: float = 0.25, margin: float = 4
    ) -> tuple[LoadedModel, Examples]:
        model = build(FAMILIES["bert"], "SequenceClassification")
        names = labels or ("value",)
        torch.manual_seed(3)
        model.classifier = torch.nn.Linear(16, len(names))
        with torch.no_grad():
            model.classifier.weight.mul_(margin)
            for layer in model.bert.encoder.layer:  # one dimension that all later layers and the pooler depend on
                layer.output.LayerNorm.weight[PLANTED] = 6
            model.bert.pooler.dense.weight[:, PLANTED] *= 6
        model.config.num_labels, model.num_labels = len(names), len(names)
        model.config.id2label = dict(enumerate(names))
        loaded = from_objects(model, words(), name="tiny")
        random = np.random.default_rng(0)
        texts = tuple(" ".join(f"w{random.integers(35)}" for _ in range(random.integers(2, 9))) for _ in range(N))
        said = predictions(loaded, texts)
        with torch.no_grad():  # so that every label is said of some text
            model.classifier.bias.sub_(torch.tensor(said.mean(0), dtype=torch.float32))
        said = said - said.mean(0)
        if labels:
            truth: tuple[Any, ...] = tuple(
                int(random.integers(len(labels)) if random.random() < noise else place) for place in said.argmax(1)
            )
            task = with_metric(plain_task("classify", "text", "label", labels=labels), metric)
        else:
            truth = tuple((said[:, 0] + random.normal(0, said[:, 0].std(), N)).tolist())
            task = with_metric(plain_task("regress", "text", "label"), metric)
        return loaded, Examples("made up", texts, "text", task=task, labels=truth)

    return make


def predictions(loaded: LoadedModel, texts: tuple[str, ...]) -> np.ndarray:
    """Logits [text, output]; only texts of one length are run together, so that nothing is padded."""
    import torch

    ids = [loaded.tokenizer(text)["input_ids"] for text in texts]
    rows: dict[int, np.ndarray] = {}
    with torch.no_grad():
        for length in {len(one) for one in ids}:
            places = [place for place, one in enumerate(ids) if len(one) == length]
            logits = loaded.model(input_ids=torch.tensor([ids[place] for place in places])).logits
            rows |= dict(zip(places, logits.double().numpy(), strict=True))
    return np.stack([rows[place] for place in range(len(ids))])


def oracle(metric: str, truth: tuple[Any, ...], logits: np.ndarray) -> float:
    """The metric by its library."""
    from scipy import stats
    from sklearn import metrics

    if metric in ("pearson", "spearman"):
        return float(getattr(stats, f"{metric}r")(truth, logits[:, 0]).statistic)
    of = {
        "accuracy": metrics.accuracy_score,
        "mcc": metrics.matthews_corrcoef,
        "f1": metrics.f1_score,
        "macro f1": lambda one, other: metrics.f1_score(one, other, average="macro"),
    }
    return float(of[metric](truth, logits.argmax(1)))


TWO, THREE = ("bad", "good"), ("no", "maybe", "yes")


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        (TWO, "accuracy"),
        (TWO, "mcc"),
        (TWO, "f1"),
        (THREE, "macro f1"),
        (THREE, "mcc"),
        ((), "pearson"),
        ((), "spearman"),
    ],
)
def test_every_dimension_against_a_plain_loop(made: Any, labels: tuple[str, ...], metric: str) -> None:
    loaded, examples = made(labels, metric)
    swept = sweep(loaded, examples, SweepOptions(sets=((2, 5),), n_random=6, n_matched=3, exact=True))
    intact = oracle(metric, examples.labels, predictions(loaded, examples.texts))
    assert (swept.about.metric, swept.method, swept.about.n_texts) == (metric, "exact", N)
    assert swept.about.task.endswith(f" {metric}")
    assert 1 - swept.intact.value == pytest.approx(intact, abs=1e-6)
    settled = metric not in CORRELATIONS  # which 41 items do not settle
    assert (swept.intact.low <= swept.intact.value <= swept.intact.high) == settled
    assert len(swept.singles()) == 16
    for effect in swept.effects:
        with zeroed_weights(loaded, effect.dims):
            after = oracle(metric, examples.labels, predictions(loaded, examples.texts))
        # Predictions of a regression are kept to nine digits.
        change = effect.change
        assert change.value == pytest.approx(intact - after, abs=1e-6)
        assert effect.n_texts == N
        assert (change.low <= change.value <= change.high) == (settled or change.value == 0)
    for null in swept.nulls:
        assert null.n_texts == N
        assert null.change == pytest.approx(
            next(e.change.value for e in swept.effects if e.label == null.label), abs=1e-12
        )
    assert to_json(from_json(to_json(swept))) == to_json(swept)  # NaN is not NaN


@pytest.mark.parametrize("labels", [TWO, THREE])
def test_screening_leaves_out_what_cannot_change(made: Any, labels: tuple[str, ...]) -> None:
    loaded, examples = made(labels, "mcc", margin=12)
    options = SweepOptions(top=2, n_random=4, n_matched=0, dims=tuple(range(8)), sets=((2, 3),))
    whole, some = (sweep(loaded, examples, replace(options, exact=exact)) for exact in (True, False))
    assert (whole.method, some.method) == ("exact", "screened")
    assert whole.screening is None
    # Dimensions, the set, random and ordinary ones of either size; a control that is swept itself is there once.
    swept = [(2, 3), *((dim,) for dim in range(8))]
    controls = [random_families(16, dims, avoid=range(8), n=4, seed=0) for dims in swept]
    different = {*swept, *(dims for families in controls for sets in families.values() for dims in sets)}
    assert some.screening.pairs == len(different) * N
    assert 0.02 < some.screening.measured / some.screening.pairs < 0.9
    assert some.screening.audited > 0
    assert some.screening.flipped <= some.screening.audited * 0.1
    assert some.screening.flipped / some.screening.audited <= some.screening.bound
    assert some.cost.effects < whole.cost.effects
    assert (some.cost.intact, some.cost.gradient_texts) == (2 * N, (len(labels) - 1) * N)  # margins; one pass a margin
    assert some.cost.total == some.cost.intact + some.cost.effects + some.cost.nulls + 3 * some.cost.gradient_texts
    for one, other in zip(some.effects, whole.effects, strict=True):
        # One text is 1/41: what was left out wrongly moves the metric by few of them.
        assert one.change.value == pytest.approx(other.change.value, abs=0.06)
    for one, other in zip(some.top(2), whole.top(2), strict=True):
        assert one.change.value == pytest.approx(
            other.change.value, abs=1e-9
        )  # the strongest are measured on every text


def test_a_screen_finds_what_it_should_by_hand() -> None:
    from outlierlens.analyses.sweep.gradients import Screen, packed, unpacked
    from outlierlens.analyses.sweep.units import Unit

    one, other = Unit("1", "all layers", {0: (1,)}), Unit("2", "all layers", {0: (2,)})
    wanted = np.array([[True, False], [False, False], [False, True]])
    audited = np.array([[False, True], [False, False], [False, False]])
    screen = Screen({one.key: 0, other.key: 1}, {(0, 3): wanted}, {(0, 3): audited})
    assert screen.only(one, (0, 3)) == (0,)
    assert screen.only(other, (0, 3)) == (0, 2)
    screen.count(one, (0, 3), np.array([1.0, 0, 0]))
    screen.count(other, (0, 3), np.array([1.0, 0, 1]))  # the audited text had changed
    found = screen.summary()
    assert (found.pairs, found.measured, found.audited, found.flipped, found.bound) == (6, 3, 1, 1, 1.0)
    screen.whole.add(one.key)
    assert screen.only(one, (0, 3)) is None
    assert screen.summary().measured == 5
    assert (unpacked(packed(wanted), (3, 2)) == wanted).all()
    # None of 59 changed: at most 5 % of the others, at confidence 0.95 (1 − 0.95^(1/59) turned round: 0.05^(1/59)).
    assert Screen({}, checked=59).summary().bound == pytest.approx(1 - 0.05 ** (1 / 59), rel=1e-9)


def test_screened_rows_continue(made: Any, tmp_path: Path) -> None:
    loaded, examples = made(TWO, "mcc")
    options = SweepOptions(n_random=0, n_matched=0, top=2)
    whole = sweep(loaded, examples, options, rows=tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(lines[: len(lines) * 2 // 3]), "utf-8")
    again = sweep(loaded, examples, options, rows=tmp_path / "rows.jsonl")
    assert again.screening == whole.screening
    assert [e.change for e in again.effects] == [e.change for e in whole.effects]
    exact = sweep(loaded, examples, replace(options, exact=True), rows=tmp_path / "rows.jsonl")
    assert exact.method == "exact"


def test_few_ablations_are_not_screened(made: Any) -> None:
    loaded, examples = made(THREE, "mcc")
    few = SweepOptions(dims=(1, 2, 3), with_found=False, n_random=4, n_matched=0)
    assert (
        sweep(loaded, examples, few).method == "exact"
    )  # 7 of them: margins and two gradients of each text cost as much
    assert sweep(loaded, examples, replace(few, n_random=5)).method == "screened"


def test_another_meaning_of_the_outputs_is_other_work(made: Any, tmp_path: Path) -> None:
    loaded, examples = made(TWO, "mcc")
    options = SweepOptions(dims=(1,), n_random=0, n_matched=0)
    sweep(loaded, examples, options, rows=tmp_path / "rows.jsonl")
    loaded.model.config.id2label = {0: TWO[1], 1: TWO[0]}  # the same weights
    with pytest.raises(BadInput, match="labels of outputs"):
        sweep(loaded, examples, options, rows=tmp_path / "rows.jsonl")
    with pytest.raises(BadInput, match="measure"):
        sweep(loaded, examples, replace(options, task=TaskOptions(measure="loss")), rows=tmp_path / "rows.jsonl")


@pytest.mark.parametrize("windows", ["all", "single", "from"])
@pytest.mark.parametrize("mode", ["weights", "zero"])
def test_the_last_block_is_computed_for_the_token_that_is_read(made: Any, windows: Any, mode: Any) -> None:
    loaded, examples = made(THREE, "mcc")
    seen: list[int] = []
    mlp = loaded.model.bert.encoder.layer[-1].intermediate.dense
    handle = mlp.register_forward_hook(lambda _, args, __: seen.append(args[0].shape[1]))
    options = SweepOptions(dims=(1, PLANTED), windows=windows, mode=mode, n_random=0, n_matched=0, exact=True)
    try:
        fast = sweep(loaded, examples, options)
        assert set(seen[4:]) == {1}  # after the trials that it gives the same
        seen.clear()
        plain = sweep(loaded, examples, replace(options, task=TaskOptions(every_token=True)))
        assert max(seen) > 1
    finally:
        handle.remove()
    assert fast.notes == plain.notes == ()
    assert [e.change.value for e in fast.effects] == pytest.approx([e.change.value for e in plain.effects], abs=1e-9)


def test_a_head_that_reads_all_tokens_gets_all(made: Any) -> None:
    import torch

    loaded, examples = made(THREE, "mcc")

    class Mean(torch.nn.Module):
        def forward(self, states: Any) -> Any:
            return states.mean(1)

    before, loaded.model.bert.pooler = loaded.model.bert.pooler, Mean()
    try:
        task = make_task(loaded, examples)
        other = make_task(loaded, examples, TaskOptions(every_token=True))
        assert task.outputs().losses == pytest.approx(other.outputs().losses, abs=1e-6)  # type: ignore[attr-defined]
    finally:
        loaded.model.bert.pooler = before


def test_the_planted_dimension_costs_most(made: Any) -> None:
    loaded, examples = made(THREE, "mcc", noise=0.1)
    swept = sweep(loaded, examples, SweepOptions(n_random=0, n_matched=0))
    assert swept.top(1)[0].dims == (PLANTED,)


def test_random_sets_are_compared_by_the_metric_of_all_texts(made: Any) -> None:
    loaded, examples = made(TWO, "f1")
    options = SweepOptions(dims=(), sets=((1, PLANTED),), n_random=5, n_matched=0, random_texts=2, exact=True)
    swept = sweep(loaded, examples, options)
    null = next(null for null in swept.nulls if null.kind == "random")
    intact = oracle("f1", examples.labels, predictions(loaded, examples.texts))
    changes = []
    for dims in random_dims(loaded, examples, options):
        with zeroed_weights(loaded, dims):
            changes.append(intact - oracle("f1", examples.labels, predictions(loaded, examples.texts)))
    assert null.changes == pytest.approx(sorted(changes), abs=1e-9)
    assert null.mean == pytest.approx(np.mean(changes), abs=1e-9)


def random_dims(loaded: LoadedModel, examples: Examples, options: SweepOptions) -> list[tuple[int, ...]]:
    """The random sets of that sweep."""
    from outlierlens.analyses.sweep.runner import make_runner
    from outlierlens.analyses.sweep.units import control_families, planned

    runner = make_runner(loaded, examples, options)
    family = next(f for f in control_families(runner, planned(options, 3, 16, ()), ()) if f.kind == "random")
    return [unit.dims for unit in family.controls]


@pytest.mark.parametrize("measure", ["loss", "accuracy"])
def test_losses_and_accuracy_may_stop_early(made: Any, measure: str) -> None:
    from scipy.special import log_softmax

    loaded, examples = made(TWO, "mcc")
    task = TaskOptions(measure=measure)  # type: ignore[arg-type]
    whole = sweep(loaded, examples, SweepOptions(exact=True, n_random=0, n_matched=0, task=task))
    logits = predictions(loaded, examples.texts)
    rows, truth = np.arange(N), np.array(examples.labels)
    nats = -log_softmax(logits, axis=1)[rows, truth]
    expected = nats.mean() if measure == "loss" else 1 - oracle("accuracy", examples.labels, logits)
    assert whole.intact.value == pytest.approx(expected, abs=1e-6)
    assert whole.about.metric == ("" if measure == "loss" else "accuracy")
    assert whole.about.unit == ("nats per example" if measure == "loss" else "1 − accuracy")
    early = sweep(
        loaded,
        examples,
        SweepOptions(tolerance=0.6, relative=0.5, top=0, n_random=0, n_matched=0, gradients=12, task=task),
    )
    assert early.method == "adaptive"
    assert (early.cost.gradient_texts > 0) == (measure == "loss")
    assert min(effect.n_texts for effect in early.effects) < N
    for effect in early.effects:
        if effect.n_texts == N:
            assert effect.change.value == pytest.approx(whole.effect(effect.dims[0]).change.value, abs=1e-6)
        assert effect.low < effect.change.high  # right and wrong that never changed prove nothing about other texts


def test_right_and_wrong_never_come_out_certain() -> None:
    from outlierlens.analyses.sweep.estimate import estimate, precise

    unchanged = estimate(np.zeros(60), np.ones(60), 0.95, smallest=1.0)
    # t(59) at 95 % is 2.001; one more text up and one down is a variance of 2 / 59.
    assert unchanged.half_width == pytest.approx(2.00100 * np.sqrt(2 / 59 / 60), rel=1e-4)
    assert not precise(unchanged, 0.01, 0.1)
    assert precise(estimate(np.zeros(600), np.ones(600), 0.95, smallest=1.0), 0.01, 0.1)
    assert estimate(np.zeros(60), np.ones(60), 0.95).half_width == 0


def test_intervals_of_right_and_wrong_hold_what_they_promise() -> None:
    from outlierlens.analyses.sweep.estimate import estimate

    random = np.random.default_rng(0)
    for down, up in ((0.01, 0.0), (0.05, 0.02), (0.3, 0.1)):
        held = 0
        for _ in range(400):
            values = random.choice([1.0, -1.0, 0.0], p=[down, up, 1 - down - up], size=100)
            found = estimate(values, np.ones(100), 0.95, smallest=1.0)
            held += found.low <= down - up <= found.high
        assert held / 400 > 0.93


def test_limits_of_texts_are_refused_for_metrics_of_all(made: Any) -> None:
    loaded, examples = made(TWO, "mcc")
    with pytest.raises(BadInput, match="mcc is a metric of all texts together: max_texts is for losses and accuracy"):
        sweep(loaded, examples, SweepOptions(max_texts=20))


@pytest.mark.parametrize("mode", ["weights", "zero", "mean", "writes", "scale:0.5", "resample"])
def test_ablate_in_every_mode_against_a_plain_loop(made: Any, mode: Any) -> None:
    loaded, examples = made(TWO, "mcc")
    before = predictions(loaded, examples.texts)
    options = AblateOptions(modes=(mode,), n_random=3, n_matched=2)
    damage = ablate(loaded, examples, [PLANTED], options)
    assert np.array_equal(predictions(loaded, examples.texts), before)
    assert (damage.about.metric, damage.about.unit, damage.about.of_change) == ("mcc", "1 − mcc", "mcc lost")
    intact = oracle("mcc", examples.labels, before)
    assert 1 - damage.intact.value.value == pytest.approx(intact, abs=1e-9)
    assert damage.intact.perplexity is None
    assert damage.intact.also == pytest.approx(
        {name: oracle(name, examples.labels, before) for name in ("mcc", "accuracy", "f1", "macro f1")}
    )
    chosen = damage.chosen
    assert chosen.change.value == pytest.approx(chosen.value.value - damage.intact.value.value, abs=1e-12)
    assert chosen.change.low <= chosen.change.value <= chosen.change.high
    if mode == "weights":
        with zeroed_weights(loaded, [PLANTED]):
            after = oracle("mcc", examples.labels, predictions(loaded, examples.texts))
        assert chosen.change.value == pytest.approx(intact - after, abs=1e-9)
    assert damage.families[0].n == 3


def test_means_of_pairs_are_taken_over_pairs(made: Any) -> None:
    """Mode mean puts in what the model sees: both texts of an example."""
    import torch

    loaded, examples = made(TWO, "accuracy")
    paired = replace(examples, pairs=examples.texts[::-1])
    found = means_over(loaded, loaded.stack(), paired, length=64, batch_size=8)
    states = []
    with torch.no_grad():
        for both in zip(paired.texts, paired.pairs, strict=True):
            said = loaded.model(**loaded.tokenizer(*both, return_tensors="pt"), output_hidden_states=True)
            states.append(torch.stack(said.hidden_states[1:])[:, 0])  # [layer, token, dim]
    assert found == pytest.approx(torch.cat(states, 1).mean(1).numpy(), abs=1e-4)


@pytest.fixture
def saved(made: Any, tmp_path: Path) -> tuple[Path, Path, Examples]:
    """A model folder and a file of its examples."""
    loaded, examples = made(TWO, "accuracy")
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"text": text, "label": TWO[label]} for text, label in zip(examples.texts, examples.labels, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return tmp_path / "model", tmp_path / "rows.jsonl", examples


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "classify:measure=everything"), "--task measure is 'everything'; use metric, accuracy, loss"),
        (("--task", "measure=loss"), "belongs to a labelled task, not to --task auto"),
        (("--task", "classify:measure=loss,metric=mcc"), "--task metric=mcc belongs to measure=metric"),
        (("--task", "glue:rte:label=stars"), "belongs to classify, regress, tokens, not to glue:rte"),
        (("--task", "tokens:pair=text"), "--task pair belongs to classify and regress"),
    ],
)
def test_refusals_come_before_any_model_is_loaded(
    saved: Any, run: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("outlierlens.models.load.load_model", never)
    _, rows, _ = saved
    code, out, err = run("ablate", "no-such-model", "--dims", "3", "--data", str(rows), *arguments)
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_rows_may_lack_labels_that_are_named(saved: Any, run: Any, tmp_path: Path) -> None:
    model, rows, examples = saved
    some = [line for line, label in zip(rows.read_text("utf-8").splitlines(), examples.labels, strict=True) if label]
    (tmp_path / "some.jsonl").write_text("\n".join(some), "utf-8")
    words = "--task classify --random 0 --matched 0 --json --data"
    arguments = (*words.split(), str(tmp_path / "some.jsonl"))
    found = []
    for more in ((), ("--task", f"labels={','.join(TWO)}")):  # among the names in the model's config, or these
        code, out, err = run("ablate", str(model), "--dims", "3", *arguments, *more)
        assert code == 0, err
        found.append(from_json(out))
    assert found[0].about.n_texts == len(some)
    assert found[0].intact.value == found[1].intact.value
    (tmp_path / "some.jsonl").write_text("\n".join(some).replace(TWO[1], "perhaps"), "utf-8")
    code, _, err = run("ablate", str(model), "--dims", "3", *arguments)
    assert code == 1
    assert "classify has 1 (perhaps)" in err
    assert "where these rows lack some classes, name all 2 as the rows do with labels behind the task" in err
