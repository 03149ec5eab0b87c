"""The rows of a table from sweeps, worked out by hand, and the published numbers beside them."""

import math
from dataclasses import replace

import numpy as np
import pytest

import synthetic_report as synthetic
import synthetic_tasks
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.replicate.glue import Loss, layers_of, loss_of, losses_of, passing
from outlierlens.replicate.papers import checkpoint_of, published_for
from outlierlens.results.rows import Estimate
from outlierlens.view.section import cell_text

TASK = {
    "task": "glue:mnli accuracy",
    "unit": "1 − accuracy",
    "metric": "accuracy",
    "intact": Estimate(0.2, 0.18, 0.23),
    "width": 768,
}
BERT = {"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 30522}
MODEL = synthetic_tasks.task_model("mnli seed-42", "glue:mnli", (308, 381))
MNLI = published_for("puccetti-glue", "bert-base-uncased")[:1]


def swept(effects, nulls=(), **more) -> Sweep:
    return synthetic.swept(effects, nulls, **{**TASK, "intact": Estimate(0.2, 0.18, 0.23), "found": (), **more})


def together(lost=0.3, changes=(0.01, 0.02, 0.03), matched=()) -> Sweep:
    both = synthetic.effect((308, 381), lost)
    nulls = [synthetic.null(both, changes)]
    nulls += [synthetic.null(both, matched, "matched")] if matched else []
    return swept([both], nulls)


def all_off(sweep: Sweep, published=()) -> Loss:
    (row,) = losses_of(sweep, None, MODEL, published)
    return row


def test_lost_is_what_the_metric_loses_and_ratios_are_to_the_mean_of_random_sets() -> None:
    row = all_off(together(matched=(0.04, 0.06)))
    assert (row.kind, row.off, row.layer) == ("all", "308, 381", None)
    assert (row.intact, row.value, row.lost.value) == pytest.approx((0.8, 0.5, 0.3))
    assert (row.lost.low, row.lost.high) == pytest.approx((0.285, 0.315))
    assert row.random == (0.01, 0.02, 0.03)
    assert row.times_random == pytest.approx(15)
    assert row.passes == "yes"
    assert row.p == 0.25
    assert row.matched == (0.04, 0.06)
    assert (row.matched_median, row.closeness) == (pytest.approx(0.05), 0.93)
    assert row.flat()["random_median"] == 0.02


@pytest.mark.parametrize(
    ("lost", "changes", "times", "passes"),
    [
        (0.10, (0.02, 0.02), 5.0, "yes"),
        (0.0999, (0.02, 0.02), 4.995, "no"),
        (0.30, (-0.01, 0.01), None, "yes"),  # no mean loss, but a loss of its own
        (0.005, (-0.01, 0.0), None, "no"),  # within its interval of nothing
        (0.30, (0.01, float("nan")), None, "no"),  # a random set that broke the model costs more than any other
    ],
)
def test_at_least_five_times_random(lost: float, changes: tuple[float, ...], times: float | None, passes: str) -> None:
    row = all_off(together(lost, changes))
    assert row.times_random == (None if times is None else pytest.approx(times))
    assert row.passes == passes
    assert not any(map(math.isnan, row.random))


def test_a_ratio_whose_loss_may_be_nothing_is_in_doubt() -> None:
    (effect,) = together(0.3, (0.02, 0.02)).effects

    def passes(**ends: float) -> str | None:
        sweep = replace(together(0.3, (0.02, 0.02)), effects=(replace(effect, change=replace(effect.change, **ends)),))
        return all_off(sweep).passes  # Puccetti et al. do not ask for an interval

    assert passes() == "yes"
    assert passes(low=-0.01) == "yes, in doubt"
    assert passes(low=-math.inf, high=math.inf) == "yes, not settled"
    assert all_off(swept([effect])).passes is None
    made = synthetic_tasks.replication()
    (row,), (model,) = made.losses, made.models
    rows = [
        replace(row, model=name, passes=one)
        for name, one in zip("abcd", ("yes", "yes, in doubt", "no", None), strict=True)
    ]
    verdict = next(replace(made, losses=tuple(rows), models=(model,)).sentences())
    assert verdict.endswith("the outliers cost at least 5 times what random sets cost in 2 of 3 (a; b, in doubt).")


def test_each_outlier_is_held_against_random_dimensions_or_all_others() -> None:
    alone = [synthetic.effect(308, 0.1), synthetic.effect(381, 0.02)]
    listed = swept(alone, [synthetic.null(alone[0], (0.004, 0.006)), synthetic.null(alone[1], (0.004, 0.006))])
    rows = losses_of(together(), listed, MODEL)
    assert [(row.kind, row.off) for row in rows] == [("each", "308"), ("each", "381"), ("all", "308, 381")]
    assert [row.passes for row in rows] == ["yes", "no", "yes"]
    others = np.linspace(-0.001, 0.005, 766)
    free = iter(others)
    all_of_them = [
        alone[(308, 381).index(dim)] if dim in (308, 381) else synthetic.effect(dim, float(next(free)))
        for dim in range(768)
    ]
    row = losses_of(together(), swept(all_of_them), MODEL)[0]
    assert len(row.random) == 766
    assert row.times_random == pytest.approx(0.1 / others.mean())


def test_a_lone_outlier_is_all_of_them() -> None:
    one = synthetic.effect(308, 0.1)
    sweep = swept([one], [synthetic.null(one, (0.01, 0.03))])
    (row,) = losses_of(sweep, sweep, replace(MODEL, dims=(308,)))
    assert (row.kind, row.off, len(row.random)) == ("all", "308", 2)


def test_those_that_pass_are_several_but_not_all() -> None:
    alone = [synthetic.effect(dim, lost) for dim, lost in ((1, 0.2), (2, 0.1), (3, 0.0))]
    nulls = [synthetic.null(e, (0.01, 0.01)) for e in alone]
    rows = losses_of(together(), swept(alone, nulls), replace(MODEL, dims=(1, 2, 3)))
    assert passing(rows) == (1, 2)
    assert passing(rows[:1]) == ()
    assert passing(rows[:2]) == ()  # all of them
    pair = synthetic.effect((1, 2), 0.25)
    kept = loss_of(swept([pair], [synthetic.null(pair, (0.01, 0.03))]), pair, "passing", MODEL)
    assert (kept.kind, kept.times_random) == ("passing", pytest.approx(12.5))


def test_layers_keep_their_order() -> None:
    effects = [
        synthetic.effect(dims, 0.01 * layer, window=f"layer {layer}", layers=(layer,))
        for layer in (0, 1)
        for dims in (308, (308, 381))
    ]
    rows = layers_of(swept(effects, windows="single"), MODEL)
    assert [(row.layer, row.kind) for row in rows] == [(0, "each"), (0, "all"), (1, "each"), (1, "all")]


def test_published_numbers_stand_beside_the_very_checkpoint_only(tmp_path) -> None:
    assert checkpoint_of("bert-base-uncased", BERT) == "bert-base-uncased"
    assert checkpoint_of("google-bert/bert-base-uncased", BERT) == "bert-base-uncased"
    assert checkpoint_of("bert-base-cased", BERT) == ""
    assert checkpoint_of("me/bert-base-uncased", BERT) == ""
    assert checkpoint_of("bert-base-uncased", {**BERT, "vocab_size": 28996}) == ""
    folder = tmp_path / "bert-base-uncased"
    folder.mkdir()
    assert checkpoint_of(str(folder), BERT) == ""  # a folder may hold anything
    assert checkpoint_of(str(folder), {**BERT, "_name_or_path": "bert-base-uncased"}) == "bert-base-uncased"

    (known,) = MNLI
    assert (known.data, known.metric, known.before, known.after) == ("glue:mnli", "accuracy", 0.845, 0.584)
    assert known.evidence == "second-hand"
    assert published_for("puccetti-glue", "") == published_for("puccetti-glue", "roberta-base") == ()
    stsb = published_for("kovaleva-glue", "bert-base-uncased")[0]
    assert (stsb.data, stsb.metric, stsb.change) == ("glue:stsb", "", -0.441)
    for paper, which in (("kovaleva-glue", "bert-base-uncased"), ("luo", "bert-base-cased"), ("luo", "roberta-large")):
        for one in published_for(paper, which):
            assert one.source
            assert one.before is None or one.change == pytest.approx(one.after - one.before)

    assert all_off(together(), MNLI).published == 0.261
    elsewhere = swept([synthetic.effect((308, 5), 0.1)])
    assert all_off(elsewhere, MNLI).published is None
    by_layer = replace(together(), effects=(synthetic.effect((308, 381), 0.1, window="layer 0", layers=(0,)),))
    assert layers_of(by_layer, MODEL)[0].published is None


def test_a_table_says_what_is_published_what_stayed_and_what_single_layers_lose() -> None:
    made = synthetic_tasks.replication(dims=(308, 381))
    (row,) = made.losses
    still = replace(row, layer=4, lost=Estimate(0.0, 0.0, 0.0))
    made = replace(made, losses=(replace(row, published=0.261),), by_layer=(still,), published=MNLI)
    (section,) = made.sections()
    everywhere, layers, models, published = section.tables
    assert everywhere.columns[-1] == "published loss"
    assert everywhere.rows[0][-1] == 0.261
    assert "rte seed-42: “no change” means no change on 277 examples (at most 1.1 % of all, 95 %)." in section.sentences
    assert dict(zip(published.columns, published.rows[0], strict=True))["evidence"] == "second-hand"
    line = dict(zip(layers.columns, layers.rows[0], strict=True))
    assert (line["ablated"], line["layer"], cell_text(line["95 %"])) == ("308, 381", 4, "no change")
    assert dict(zip(models.columns, models.rows[0], strict=True))["outliers"] == (308, 381)
