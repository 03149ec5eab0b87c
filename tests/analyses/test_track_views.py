"""What is shown of a tracked run: its picture, sentences, the report's section and the command."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from outlierlens.analyses import track as analysis
from outlierlens.analyses.track import Track, track
from outlierlens.results.rows import UNKNOWN, Estimate


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_run(tmp_path_factory.mktemp("runs") / "bert", tuple(range(0, 10_001, 500)), width=64)


@pytest.fixture(scope="module")
def found(run_of: Path) -> Track:
    return track([run_of])


def data(layer: dict[str, Any]) -> list[dict[str, Any]]:
    return layer["data"]["values"]


def panels(found: Track) -> dict[str, Any]:
    return {panel["title"]["text"].partition(",")[0]: panel["layer"] for panel in found.chart().spec["vconcat"]}


def test_the_outlier_is_in_colour_before_the_range_of_all_and_lines_of_some(found: Track) -> None:
    band, others, named, *_ = panels(found)["Scale of one layer"]
    lines = {row["dim"] for row in data(others)}
    order = [dim for dim in np.argsort(found.scale[-1]).tolist() if dim != 7]
    assert len(lines) == analysis.MAX_LINES
    assert {order[0], order[-1]} <= lines <= {*order}  # thinned by rank
    assert {row["group"] for row in data(named)} == {"7"}
    assert [row["value"] for row in data(named)] == pytest.approx(found.scale[:, 7].tolist(), rel=1e-3)
    assert [row["low"] for row in data(band)] == pytest.approx(found.scale.min(axis=1).tolist(), rel=1e-3)
    assert list(panels(found)) == [
        "Loss", "Distance from the other dimensions: scale", "Distance from the other dimensions: bias",
        "Scale of one layer", "Bias of one layer",
    ]  # fmt: skip


def test_hidden_states_are_lines_where_they_were_recorded(found: Track) -> None:
    states = np.random.default_rng(0).normal(size=(21, 64)).astype(np.float32)
    points = tuple(
        analysis.CoursePoint(part="state", step=int(step), dim=7, value=float(row[7]))
        for step, row in zip(found.steps, states, strict=True)
    )
    whole = replace(found, state=states, courses=(*found.courses, *points))
    band, _, named, *_ = panels(whole)["Hidden state"]
    assert [row["value"] for row in data(named)] == pytest.approx(states[:, 7].tolist(), rel=1e-3)
    assert [row["high"] for row in data(band)] == pytest.approx(states.max(axis=1).tolist(), rel=1e-3)


def changed(found: Track, **more: Any) -> Track:
    return replace(found, emergences=(replace(found.emergences[0], **more),), total_bytes=0)


def said(found: Track) -> list[str]:
    return list(replace(found, total_bytes=0).sentences())


def test_sentences_claim_no_more_than_the_numbers_hold(found: Track) -> None:
    assert "which came first" in said(changed(found, lead=Estimate(-100, -600, 400)))[-1]
    assert "only after training was nearly done" in said(changed(found, lead=Estimate(900, 400, 1400)))[-1]
    unsettled = tuple(replace(one, settled=False) for one in found.events)
    assert "the loss was still falling" in said(replace(found, events=unsettled))[-1]
    assert "is open: no loss curve" in said(replace(found, events=()))[-1]
    assert said(replace(found, emergences=())) == [
        "Over 21 recorded steps from 0 to 10,000 no dimension reaches 3 sigma or more in 50 % of the layers.",
    ]
    gone = said(changed(found, passes="neither", step=None, seen=(500, 1500), lead=UNKNOWN))
    assert gone[1] == "7 reached it at some step and fell back."
    planted = said(changed(found, step=0, after=None))
    assert "7 (scale and bias, already at step 0)" in planted[0]
    assert len(planted) == 2
    assert (
        planted[-1]
        == "Dimensions that were outliers at the first recorded step have no onset to compare with the loss."
    )
    alone = said(changed(found, passes="scale"))
    assert "7 (scale, from step 3,000)" in alone[0]


def test_an_onset_that_noise_would_show_is_not_settled(found: Track) -> None:
    onset = found.emergences[0].onset
    assert (
        f"starts to leave at step {onset.value:,.0f} (95 % interval {onset.low:,.0f} to {onset.high:,.0f})"
        in said(found)[1]
    )
    noisy = said(changed(found, onset_p=0.2, onset_lead=UNKNOWN))
    assert noisy[1] == "When dimension 7 starts to leave is not settled (p = 0.2)."
    assert not any("starts to leave at step" in one or "last steep fall" in one for one in noisy)
