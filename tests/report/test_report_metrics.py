"""What reports say of metrics of labelled tasks: values are 1 − metric, and the reader is told the metric."""

from dataclasses import replace

import pytest

import synthetic_report as synthetic
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.analyses.sweep.rows import Precision, Screening
from outlierlens.report.page import render
from synthetic_tasks import task_sweep


@pytest.fixture(scope="module")
def mcc() -> Sweep:
    """CoLA at 0.49; 557 costs 0.31, half-width 0.02."""
    screening = Screening(pairs=1000, measured=150, audited=17, flipped=1, bound=0.2501, safety=4.0)
    found = task_sweep("glue:cola", "mcc", 0.49, strong={557: 0.31}, width=768)
    cost = replace(found.cost, intact=554, gradient_texts=277)
    about = replace(found.about, n_tokens=277)
    return replace(found, method="screened", screening=screening, cost=cost, about=about)


def page(sweep: Sweep) -> str:
    return render(synthetic.report_data(sweeps=(sweep,)))


def test_the_strongest_lowers_the_metric(mcc: Sweep) -> None:
    (first, *others) = mcc.sentences()
    assert first.startswith(
        "Of 768 dimensions ablated one at a time, 557 lowers the mcc on glue:cola most: "
        "0.49 → 0.18 (lost +0.31, 95 % interval +0.29 to +0.33)"
    )
    assert any("above twice the tolerance (0.02 of mcc)" in one for one in others)


def test_what_may_be_chance_is_no_loss() -> None:
    (first, *_) = task_sweep("glue:rte", "accuracy", 0.66, strong={5: 0.0199}, dims=(5,)).sentences()
    assert first == (
        "Of one dimension ablated one at a time none is shown to lower the accuracy on glue:rte: the largest loss, 5, is "
        "0.66 → 0.64 (lost +0.0199, 95 % interval -0.0001 to +0.0399)."
    )


def test_damage_is_said_as_from_and_to() -> None:
    damage = synthetic.damage(
        chosen=0.34, intact=0.36, random=0.004, matched=0.01, task="glue:rte accuracy", fills=False
    )
    damage = replace(damage, about=replace(damage.about, metric="accuracy", unit="1 − accuracy"))
    said = synthetic.report_data(damages=(damage,)).finding()
    assert any("ablated the accuracy on glue:rte changes by +0.34 accuracy lost" in one for one in said), said


def test_a_screen_that_left_nothing_out_says_so(mcc: Sweep) -> None:
    said = replace(mcc, screening=Screening(1000, 1000, 0, 0, 1.0, 4.0)).sentences()
    assert "Screening left nothing out: all 1,000 pairs of text and ablation were measured." in said


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        (Precision("bfloat16", 0.0625, 3, 8, "classes"), "2 of 32 predicted classes are other than in float32"),
        (Precision("bfloat16", 0.0021, 8, 8, "values"), "predicted values differ from float32 by at most 0.0021"),
        (
            Precision("bfloat16", 0.0021, 8, 8, intact=0.00042),
            "the intact value differs from float32 by +0.00042, changes by at most 0.0021",
        ),
    ],
)
def test_precision_says_what_it_is_of(mcc: Sweep, precision: Precision, message: str) -> None:
    sweep = replace(mcc, precision=precision)
    assert message in page(sweep)
    said = " ".join(sweep.sentences())
    assert f"bfloat16: {message}" in said
