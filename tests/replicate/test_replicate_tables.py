"""The lines of a table from sweeps, worked out by hand, and the published numbers beside them."""

import math
from dataclasses import replace

import numpy as np
import pytest

import synthetic_report as synthetic
import synthetic_tasks
from outlierlens.experiments.sweep.result import Sweep
from outlierlens.replicate.glue.result import Row, TaskTable, where_enough
from outlierlens.replicate.glue.tables import Whole, passing, passing_rows, rows_of, window_rows
from outlierlens.replicate.glue.view import sections
from outlierlens.replicate.papers import REFERENCES, checkpoint_of, reference_for
from outlierlens.view.section import cell_text, notes_of

TASK = {"task": "glue:mnli accuracy", "unit": "1 − accuracy", "metric": "accuracy", "intact": 0.2, "width": 768}
BERT = {"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 30522}


def swept(effects, nulls=(), **more) -> Sweep:
    return synthetic.swept(effects, nulls, **{**TASK, "intact_low": 0.18, "intact_high": 0.23, "found": (), **more})


def together(lost=0.3, changes=(0.01, 0.02, 0.03), matched=()) -> Sweep:
    both = synthetic.effect((308, 381), lost)
    nulls = [synthetic.null(both, changes)]
    nulls += [synthetic.null(both, matched, "matched")] if matched else []
    return swept([both], nulls)


def test_lost_is_what_the_metric_loses_and_ratios_are_to_the_mean_of_random_sets() -> None:
    rows = rows_of(together(matched=(0.04, 0.06)), None, (308, 381), Whole(109_000_000))
    intact, both, random, matched = rows
    assert (intact.value, intact.low, intact.high) == pytest.approx((0.8, 0.77, 0.82))
    assert (both.value, both.lost) == pytest.approx((0.5, 0.3))
    assert (both.low, both.high) == pytest.approx((math.nan, math.nan), nan_ok=True)  # its interval is of what it loses
    assert both.times_random == pytest.approx(15)
    assert both.enough
    assert both.p == 0.25
    assert both.share == pytest.approx(both.n_parameters / 109e6)
    assert (random.label, random.lost, random.mean) == ("3 random sets of 2", 0.02, pytest.approx(0.02))
    assert (random.lost_low, random.lost_high) == pytest.approx((0.011, 0.029))
    assert math.isnan(random.low)
    assert (matched.lost, matched.closeness) == (pytest.approx(0.05), 0.93)


@pytest.mark.parametrize(
    ("lost", "changes", "times", "enough"),
    [
        (0.10, (0.02, 0.02), 5.0, True),
        (0.0999, (0.02, 0.02), 4.995, False),
        (0.30, (-0.01, 0.01), None, True),  # no mean loss, but a loss of its own
        (0.005, (-0.01, 0.0), None, False),  # within its interval of nothing
        (0.30, (0.01, float("nan")), None, False),  # a random set that broke the model costs more than any other
    ],
)
def test_at_least_five_times_random(lost: float, changes: tuple[float, ...], times: float | None, enough: bool) -> None:
    row = rows_of(together(lost, changes), None, (308, 381), Whole(1000))[1]
    assert row.times_random == (None if times is None else pytest.approx(times))
    assert row.enough is enough


def test_a_ratio_whose_loss_may_be_nothing_is_in_doubt() -> None:
    sure = rows_of(together(0.3, (0.02, 0.02)), None, (308, 381), Whole(1000))[1]
    doubtful = replace(sure, lost_low=-0.01)
    assert (sure.passes, doubtful.passes, replace(sure, enough=False).passes) == ("yes", "yes, in doubt", "no")
    assert replace(sure, enough=None).passes is None
    assert doubtful.enough  # Puccetti et al. do not ask for an interval

    def table(row: Row) -> TaskTable:
        return TaskTable(
            "glue:rte", "accuracy", "m", "rte", "f", "d", 9, "model", 12, 768, 9, (308, 381), "", True, (row,)
        )

    named = [("a", table(sure)), ("b", table(doubtful)), ("c", table(replace(sure, enough=False)))]
    assert where_enough(named) == "2 of 3 (a, b; in b the interval of the loss holds 0)"
    assert where_enough([("d", table(replace(sure, enough=None)))]) == "0 of 0"
    few = replace(table(replace(sure, lost_low=math.nan, lost_high=math.nan)), metric="pearson")
    why = "e is not settled, for 9 examples are too few for an interval; read 598 or more"
    assert where_enough([("e", few)]) == f"1 of 1 (e; {why})"


def test_each_outlier_is_held_against_random_dimensions_or_all_others() -> None:
    alone = [synthetic.effect(308, 0.1), synthetic.effect(381, 0.02)]
    listed = swept(alone, [synthetic.null(alone[0], (0.004, 0.006)), synthetic.null(alone[1], (0.004, 0.006))])
    rows = rows_of(together(), listed, (308, 381), Whole(1000))
    assert [row.label for row in rows] == [
        "intact", "308", "381", "308, 381", "2 random dimensions", "3 random sets of 2",
    ]  # fmt: skip
    assert [row.enough for row in rows[1:4]] == [True, False, True]
    others = np.linspace(-0.001, 0.005, 766)
    free = iter(others)
    all_of_them = [
        alone[(308, 381).index(dim)] if dim in (308, 381) else synthetic.effect(dim, float(next(free)))
        for dim in range(768)
    ]
    rows = rows_of(together(), swept(all_of_them), (308, 381), Whole(1000))
    assert rows[4].label == "766 random dimensions"
    assert rows[1].times_random == pytest.approx(0.1 / others.mean())


def test_without_outliers_the_tested_set_is_one_of_the_random_ones() -> None:
    rows = rows_of(together(0.05, (0.01, 0.02)), None, (), Whole(1000))
    assert [row.kind for row in rows] == ["intact", "random"]
    assert (rows[1].n_sets, rows[1].lost, rows[1].lost_high) == (3, 0.02, pytest.approx(0.047))
    only = swept([synthetic.effect((1, 2), 0.05)])
    assert rows_of(only, None, (), Whole(1000))[1].label == "1 random set of 2"


def test_a_lone_outlier_is_alone_and_together() -> None:
    one = synthetic.effect(308, 0.1)
    rows = rows_of(swept([one], [synthetic.null(one, (0.01, 0.03))]), None, (308,), Whole(1000))
    assert [row.label for row in rows] == ["intact", "308", "2 random dimensions"]
    assert rows[1].kind == "alone"


def test_those_that_pass_are_several_but_not_all() -> None:
    alone = [synthetic.effect(dim, lost) for dim, lost in ((1, 0.2), (2, 0.1), (3, 0.0))]
    nulls = [synthetic.null(e, (0.01, 0.01)) for e in alone]
    rows = rows_of(together(), swept(alone, nulls), (1, 2, 3), Whole(1000))
    assert passing(rows, (1, 2, 3)) == (1, 2)
    assert passing(rows[:2], (1, 2, 3)) == ()
    assert passing(rows[:3], (1, 2)) == ()
    pair = synthetic.effect((1, 2), 0.25)
    kept, random = passing_rows(swept([pair], [synthetic.null(pair, (0.01, 0.03))]), Whole(1000))
    assert (kept.kind, kept.times_random) == ("at least 5 × random", pytest.approx(12.5))
    assert random.label == "2 random sets of 2"


def test_windows_keep_their_layer_and_their_order() -> None:
    effects = [
        synthetic.effect(dims, 0.01 * layer, window=f"layer {layer}", layers=(layer,))
        for layer in (0, 1)
        for dims in (308, (308, 381))
    ]
    rows = window_rows(swept(effects, windows="single"), (308, 381), Whole(1000))
    assert [(row.window, row.kind) for row in rows] == [
        ("layer 0", "alone"), ("layer 0", "together"), ("layer 1", "alone"), ("layer 1", "together"),
    ]  # fmt: skip


def test_published_numbers_stand_beside_the_very_checkpoint_only(tmp_path) -> None:
    assert checkpoint_of("bert-base-uncased", BERT) == "bert-base-uncased"
    assert checkpoint_of("google-bert/bert-base-uncased", BERT) == "bert-base-uncased"
    assert checkpoint_of("bert-base-cased", BERT) is None
    assert checkpoint_of("me/bert-base-uncased", BERT) is None
    assert checkpoint_of("bert-base-uncased", {**BERT, "vocab_size": 28996}) is None
    folder = tmp_path / "bert-base-uncased"
    folder.mkdir()
    assert checkpoint_of(str(folder), BERT) is None  # a folder may hold anything
    assert checkpoint_of(str(folder), {**BERT, "_name_or_path": "bert-base-uncased"}) == "bert-base-uncased"

    known = reference_for("bert-base-uncased", "puccetti-glue", "glue:mnli", "accuracy", (381, 308))
    assert known is not None
    assert (known.intact, known.off, known.evidence) == (0.845, 0.584, "second-hand")
    assert reference_for("bert-base-uncased", "puccetti-glue", "glue:mnli", "accuracy", (308,)) is None
    assert reference_for("bert-base-uncased", "puccetti-glue", "glue:mnli", "f1", (308, 381)) is None
    assert reference_for(None, "puccetti-glue", "glue:mnli", "accuracy", (308, 381)) is None
    stsb = reference_for("bert-base-uncased", "kovaleva-glue", "glue:stsb", "pearson", (308, 381))
    assert stsb is not None
    assert stsb.lost == 0.441
    for one in (one for found in REFERENCES.values() for one in found):
        assert one.source
        assert one.intact is None or one.lost == pytest.approx(one.intact - one.off)

    def reference(dims):
        return reference_for("bert-base-uncased", "kovaleva-glue", "glue:mnli", "accuracy", dims)

    rows = rows_of(together(), None, (308, 381), Whole(1000, reference))
    assert [row.reference is not None for row in rows] == [False, True, False]
    by_layer = replace(together(), effects=(synthetic.effect((308, 381), 0.1, window="layer 0", layers=(0,)),))
    assert window_rows(by_layer, (308, 381), Whole(1000, reference))[0].reference is None


def test_a_table_says_what_is_published_what_stayed_and_what_single_layers_lose() -> None:
    known = reference_for("bert-base-uncased", "puccetti-glue", "glue:mnli", "accuracy", (381, 308))
    made = synthetic_tasks.replication(dims=(308, 381))
    (table,) = made.tables
    intact, together, random = table.rows
    still = replace(together, window="layer 4", lost=0.0, lost_low=0.0, lost_high=0.0)
    table = replace(
        table, rows=(intact, replace(together, reference=known), random), windows=(still,), notes=("a note",)
    )
    (section,) = sections(replace(made, tables=(table,)))
    everywhere, layers = section.tables
    assert everywhere.columns[-3:] == ("published", "off", "lost")
    assert everywhere.rows[0][-3:] == (None, None, None)
    assert everywhere.rows[1][-3:] == pytest.approx((84.5, 58.4, 26.1))
    assert "“No change” means no change on 277 examples (at most 1.1 % of all, 95 %)." in everywhere.note
    assert everywhere.note.endswith("(second-hand).")
    assert layers.rows[0][:2] == ("308, 381", "4")
    assert cell_text(layers.rows[0][4]) == "no change"
    assert notes_of(replace(made, tables=(table,))) == ("a note",)
    none = replace(made, tables=(replace(table, rows=(intact,), windows=(), dims=()),))
    assert next(sections(none)).sentences[0].endswith("nothing to test: no outliers, or no random sets.")
