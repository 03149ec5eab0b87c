"""What is said of a model that lost dimensions and was fine-tuned again: `sections(found)`."""

import math
from collections.abc import Iterator

import numpy as np

from outlierlens.experiments.recover.charts import recovery
from outlierlens.experiments.recover.result import STATES, Arm, Recovery
from outlierlens.statistics.words import no_interval
from outlierlens.view.section import Cell, Change, Interval, Rows, Section, Span

LOST = {"off": "off", "again": "trained again, free to regrow", "held": "trained again without them"}
REGROWN = (
    "off",
    "model",
    "seed",
    "dim",
    "scale",
    "of the intact",
    "bias",
    "of the intact",
    "z scale",
    "z bias",
    "grown back",
)


def sections(found: Recovery, *, verbose: bool = False) -> Iterator[Section]:
    """What was lost and came back, way by way; with `verbose` what every dimension's scale and bias did."""
    heads = (
        "off",
        "model",
        "dims",
        "seed",
        found.metric,
        "95 %",
        "lost",
        "95 %, paired",
        "recovered",
        "grown back",
        "epoch",
    )
    tables = [Rows("Every way of treating it", heads, tuple(_row(found, arm) for arm in found.arms), _note(found))]
    if verbose:
        tables.append(
            Rows("Scale and bias, dimension by dimension", REGROWN, tuple(_regrown(found)), "Means over layers.")
        )
    yield Section(
        "recoveries", "Whether it recovers", (_lead(found),), (recovery(found, name="recoveries"),), tuple(tables)
    )


def _lead(found: Recovery) -> str:
    lost: dict[str, list[float]] = {}
    for arm in found.arms:
        if arm.what == "chosen" and arm.state in LOST:
            lost.setdefault(LOST[arm.state], []).append(arm.lost)
    parts = "; ".join(f"{words} {np.mean(values):+z.3f}" for words, values in lost.items())
    if any(math.isnan(arm.lost_low) for arm in found.arms):
        why = no_interval(found.n_dev, "dev examples", metric=found.metric)
        parts += f". Whether other examples lose as much is not settled: {why}"
    many = "dimension" if len(found.dims) == 1 else "dimensions"
    return (
        f"{found.provenance.model} on {found.task}, {found.metric} lost with {many} {', '.join(map(str, found.dims))} of "
        f"{found.stack} off: {parts}."
    )


def _note(found: Recovery) -> str:
    return (
        "Lost: against the intact model. Recovered: the share of it that is back. Grown back: 1 is scale and bias as in the "
        f"intact model, 0 is zero; a run of AdamW can move a value by about {found.reach:.2g}."
    )


def _row(found: Recovery, arm: Arm) -> tuple[Cell, ...]:
    unchanged = arm.lost_low == arm.lost_high == 0
    interval = Interval(arm.lost_low, arm.lost_high) if not unchanged else found.interval(arm)
    regrown = float(np.mean([one.regrown for one in arm.regrowth])) if arm.regrowth else None
    return (
        arm.what, STATES[arm.state], arm.dims or None, arm.seed, arm.value, Span(arm.low, arm.high), Change(arm.lost),
        None if arm.state == "intact" else interval, arm.recovered, regrown, arm.best_epoch,
    )  # fmt: skip


def _regrown(found: Recovery) -> Iterator[tuple[Cell, ...]]:
    for arm in found.arms:
        for one in arm.regrowth:
            yield (
                arm.what, STATES[arm.state], arm.seed, one.dim, one.scale, one.scale_share, one.bias, one.bias_share,
                Change(one.z_scale), None if one.z_bias is None else Change(one.z_bias), one.regrown,
            )  # fmt: skip
