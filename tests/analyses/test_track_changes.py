"""Change points: exact on clean series, covered at their stated rate, silent without a change; plateaus; falls.

What is shown of a tracked run: its picture, sentences, the report's section and the command.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runs
from outlierlens.analyses import track as analysis
from outlierlens.analyses.track import Track, track
from outlierlens.analyses.track_changes import MIN_POINTS, binned, change_point, falling, last_fall, plateau
from outlierlens.results.rows import UNKNOWN, Estimate

STEPS = np.arange(40) * 100.0


def correlated(random: np.random.Generator, n: int, rho: float) -> np.ndarray:
    """Standard normal AR(1) noise."""
    noise = random.standard_normal(n)
    for i in range(1, n):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho * rho) * noise[i]
    return noise


def test_a_clean_jump_is_placed_between_its_two_points() -> None:
    found = change_point(STEPS, np.where(STEPS > 1500, 5.0, 1.0))
    assert (found.step, found.until, found.low, found.high) == (1500, 1600, 1500, 1600)
    assert (found.before, found.after, found.rho) == (pytest.approx(1), pytest.approx(5), 0)
    assert found.p == 1 / 200


def test_a_clean_ramp_gives_both_its_ends() -> None:
    found = change_point(STEPS, 2 + 3 * np.clip((STEPS - 1000) / 800, 0, 1))
    assert (found.step, found.until) == (1000, 1800)
    assert (found.before, found.after) == (pytest.approx(2), pytest.approx(5))


def test_the_direction_is_kept() -> None:
    rises = np.where(STEPS > 1500, 5.0, 1.0) + 0.1 * np.random.default_rng(0).standard_normal(40)
    up, either = change_point(STEPS, rises, direction=1), change_point(STEPS, rises)
    assert up == either
    down = change_point(STEPS, rises, direction=-1)
    assert down is None or down.p > 0.05


def test_nothing_is_found_in_too_few_or_equal_points() -> None:
    assert change_point(STEPS[: MIN_POINTS - 1], STEPS[: MIN_POINTS - 1]) is None
    assert change_point(STEPS, np.full(40, 3.0)) is None
    assert change_point(STEPS, -STEPS, direction=1) is None


@pytest.mark.parametrize(("rho", "least"), [(0.0, 0.9), (0.6, 0.82)])
def test_intervals_cover_the_onset(rho: float, least: float) -> None:
    """Of 60 series with a ramp over a fifth of the run, at their own place each."""
    random, covered = np.random.default_rng(5), 0
    for seed in range(60):
        onset = random.uniform(0.25, 0.65) * STEPS[-1]
        values = 6 * np.clip((STEPS - onset) / (0.2 * STEPS[-1]), 0, 1) + correlated(random, 40, rho)
        found = change_point(STEPS, values, direction=1, seed=seed)
        covered += found.low <= onset <= found.high
    assert covered / 60 >= least


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.95, 0.98])
def test_series_without_a_change_are_seldom_called_changed(rho: float) -> None:
    """However slowly the noise drifts: at p <= 0.05 at most 5 %, and two standard errors of 200 series."""
    random, n = np.random.default_rng(3), 200
    found = [change_point(STEPS[:20], correlated(random, 20, rho), direction=1, seed=seed % 8) for seed in range(n)]
    assert np.mean([one is not None and one.sure for one in found]) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / n)


@pytest.mark.parametrize(("rho", "ramps", "jumps"), [(0.0, 0.95, 0.95), (0.6, 0.5, 0.95)])
def test_changes_of_six_standard_deviations_are_told_from_noise(rho: float, ramps: float, jumps: float) -> None:
    random, sure = np.random.default_rng(4), np.zeros(2)
    for seed in range(60):
        noise, onset = correlated(random, 40, rho), random.uniform(0.25, 0.65) * STEPS[-1]
        ramp = 6 * np.clip((STEPS - onset) / (0.2 * STEPS[-1]), 0, 1)
        found = [change_point(STEPS, y + noise, direction=1, seed=seed % 4) for y in (ramp, 6.0 * (onset < STEPS))]
        sure += [one is not None and one.sure for one in found]
    assert sure[0] / 60 >= ramps
    assert sure[1] / 60 >= jumps


def test_a_p_value_does_not_depend_on_the_unit() -> None:
    values = np.where(STEPS > 1500, 1.0, 0.0) + correlated(np.random.default_rng(2), 40, 0.5)
    found = [
        change_point(scale_x * STEPS + at, scale_y * values + at) for scale_x, scale_y, at in ((1, 1, 0), (7, 1e3, 5))
    ]
    assert found[0].p == found[1].p
    assert 1 / 200 < found[0].p < 1


def test_correlated_noise_widens_the_interval() -> None:
    signal = 6 * np.clip((STEPS - 1500) / 800, 0, 1)
    widths = []
    for rho in (0.0, 0.6):
        random = np.random.default_rng(1)
        found = [change_point(STEPS, signal + correlated(random, 40, rho)) for _ in range(15)]
        widths.append(np.mean([one.high - one.low for one in found if one is not None]))
    assert widths[1] > 1.15 * widths[0]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
@settings(max_examples=60)
def test_the_nearest_falling_series_beats_every_other(values: list[float]) -> None:
    y = np.array(values)
    fit = falling(y)
    assert (np.diff(fit) <= 1e-9).all()
    assert fit.sum() == pytest.approx(y.sum(), abs=1e-6)  # pools keep their means
    for other in (np.full(len(y), y.mean()), np.minimum.accumulate(y), np.maximum.accumulate(y[::-1])[::-1]):
        assert np.square(y - fit).sum() <= np.square(y - other).sum() + 1e-6


def test_falling_by_hand() -> None:
    assert falling(np.array([5.0, 1.0, 3.0, 0.0])).tolist() == [5, 2, 2, 0]
    assert falling(np.array([1.0, 2.0, 6.0])).tolist() == [3, 3, 3]


def test_bins_are_means_of_neighbours_and_leave_out_what_is_not_finite() -> None:
    x, y = binned(np.arange(6), np.array([0, 2, 4, 6, np.nan, 10.0]), 2)
    assert x.tolist() == [1.0, 4.0]  # 0 1 2 and 3 5
    assert y.tolist() == [2.0, 8.0]


def test_the_plateau_by_hand() -> None:
    # A straight fall of 8 until step 2,000, then level: within 5 % (0.4) of the end from step 1,900 on.
    loss = np.maximum(10 - 8 * STEPS / 2000, 2.0)
    found = plateau(STEPS, loss)
    assert (found.step, found.low, found.high, found.final, found.fall) == (1900, 1900, 1900, 2.0, 8.0)
    assert found.settled
    wide = plateau(STEPS, loss, share=0.5)
    assert wide.step == 1000


def test_a_plateau_is_for_good_and_noise_widens_it() -> None:
    loss = np.maximum(10 - 8 * STEPS / 2000, 2.0) + 0.1 * np.random.default_rng(2).standard_normal(40)
    found = plateau(STEPS, loss)
    assert 1600 <= found.low <= found.step <= found.high <= 2400
    assert found.high > found.low


def test_a_loss_that_falls_to_the_end_is_not_settled() -> None:
    falls = plateau(STEPS, 10 - STEPS / 1000)
    assert not falls.settled
    assert plateau(STEPS, STEPS) is None
    assert plateau(STEPS[:5], -STEPS[:5]) is None


def test_the_last_fall_starts_where_the_unigram_plateau_ends() -> None:
    import runs

    steps = np.arange(0, 10_001, 200)
    for fall in (2400, 4000):
        loss = np.array([runs.loss_at(step, fall=fall) for step in steps])
        found = last_fall(steps, loss + 0.03 * np.random.default_rng(fall).standard_normal(len(steps)))
        assert found.low - 200 <= fall <= found.high + 200


def test_a_loss_without_a_level_has_no_onset_of_a_fall() -> None:
    random, steps = np.random.default_rng(0), np.arange(0, 4001, 100)
    for power in (0.3, 0.6, 1.0):
        assert last_fall(steps, 3 + 6 * (1 + steps / 100) ** -power + 0.03 * random.standard_normal(len(steps))) is None
    assert last_fall(steps, 3 + 0.05 * random.standard_normal(len(steps))) is None


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
