"""Made-up results of what became of outliers after pre-training, one of each kind."""

from typing import Any

import numpy as np

import synthetic_report
from outlierlens.analyses.recover import Arm, Recovery
from outlierlens.experiments.frozen.result import Chosen, FixScores, FrozenScores
from outlierlens.experiments.one_dimension.result import LayerOneDim, OneDim, OneDimension, ShiftedMeanProbe
from outlierlens.experiments.survival.result import Agreement, DimSurvival, Movement, Shift, Survival, TunedSurvival
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

PROVENANCE = Provenance("m", "f", command="outlierlens one-dimension m --task rte")


def survival() -> Survival:
    """A model against itself, in which dimension 3 was asked for."""
    scan = synthetic_report.report_data().scan
    stack = scan.stacks[0]
    shift = Shift(-5.0, -4.5, -8.0, -7.5, 4, 3, 0.5, 0.75)
    dim = DimSurvival(stack.stack, stack.site, stack.map_dims[3], "neither", stack.n_layers, shift, None)
    agreement = Agreement(stack.stack, stack.site, "scale", 0.99, None, 0.5, 0.1)
    movement = (Movement("matrices", 1000, 0.01, 0.02), Movement("embeddings", 10, 0.0, None))
    return Survival(
        scan, (TunedSurvival(scan, (dim,), {stack.stack: 1.0}, (agreement,), movement, 2, 0, 1, ("a note",)),)
    )


def recovery() -> Recovery:
    """Intact 0.8, off 0.5, again 0.75, held 0.7."""

    def arm(what: Any, state: Any, value: float, **more: Any) -> Arm:
        lost = 0.8 - value
        return Arm(
            what=what, state=state, dims=() if what == "none" else (3,), value=Estimate(value, value - 0.05, value + 0.05),
            lost=Estimate(lost, lost - 0.05, lost + 0.05), regrown=0.25, each_regrown=(0.25,), loss=0.6,
            scores={"accuracy": value}, **more,
        )  # fmt: skip

    arms = (
        arm("none", "intact", 0.8), arm("chosen", "off", 0.5), arm("chosen", "again", 0.75, seed=1, recovered=5 / 6),
        arm("chosen", "again", 0.77, seed=2, recovered=0.9), arm("chosen", "held", 0.7, seed=1, best_epoch=2.0, folder="x"),
    )  # fmt: skip
    return Recovery(
        provenance=PROVENANCE, arms=arms, train="t", n_train=40, settings={"epochs": 2}, reach=1e-3,
        about=About(
            data="d", inputs="examples", task="glue:rte", metric="accuracy", stack="model", dims=("3",), named_by="given",
            n_texts=20,
        ),
    )  # fmt: skip


def one_dimension() -> OneDimension:
    """Four dimensions, 2 the best and 1 named by the weights."""
    values = np.array([0.5, 0.6, 0.7, np.nan])
    best = OneDim(2, 0.7, 0.6, 0.8, 0.75, 1, 1.5, 0.2, "no ≤ 0.5 < yes")
    named = OneDim(1, 0.6, 0.5, 0.7, 0.65, 2, 2.5, 9.0, "always yes")
    probe = ShiftedMeanProbe(1, 0.1, -0.5, "yes", 0.6, 0.55, 0.5, 0.6)
    layer = LayerOneDim(
        "0", values[:3], values[:3] - 0.1, values[1:], values[:3], values[:3], (1,), best, (named,), probe, 0.5, -0.5
    )
    return OneDimension(
        PROVENANCE, "glue:rte", "accuracy", "model", "first", False, "t", "d", 40, 20, 0.75, 0.6, 0.9, 0.5, (1,), (layer,)
    )  # fmt: skip


def frozen_scores() -> FrozenScores:
    """Two layers, raw and clipped: clipping helps by the dev split's choice and not by the test split's."""
    values = np.array([0.7, 0.8])
    none = np.zeros(2)

    def fix(name: str, selected: Chosen, best: Chosen, change: float) -> FixScores:
        shown = (values + 0.1, values, values + change, none + 0.5, values - 0.1, values + 0.1)
        changes = (none + change, none + change - 0.01, none + change + 0.01)
        return FixScores(name, name == "raw", 0, none, *shown, *changes, selected, best)

    raw = Chosen("0", 0.8, 0.7, 0.9, 0.0, 0.0, 0.0, "")
    clip = Chosen("embeddings", 0.85, 0.75, 0.95, 0.05, 0.01, 0.09, "helps")
    unsure = Chosen("0", 0.85, 0.75, 0.95, 0.05, -0.01, 0.09, "no difference")
    return FrozenScores(
        PROVENANCE, "sst5", "accuracy", ("no", "yes"), "model", False, False, 256, 1, "t", "d", "e", 40, 20, 30, 60, 30,
        held_out=True, n_dropped=2, epochs=10, train_batch=16, lr=0.01, n_steps=30, bias=False, majority=0.5,
        layers=("embeddings", "0"), clipping="3", clip_dims={"0": (3,)}, clip_source="named by hand",
        fixes=(fix("raw", raw, raw, 0.0), fix("clip", clip, unsure, 0.05)), seconds_reading=1.5, seconds_training=0.5,
        notes=("a note",),
    )  # fmt: skip


def made() -> dict[str, Any]:
    """{kind: result}"""
    return {
        "Survival": survival(),
        "Recovery": recovery(),
        "OneDimension": one_dimension(),
        "FrozenScores": frozen_scores(),
    }
