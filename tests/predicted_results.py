"""A made-up result of `predictions`: one input, two interventions."""

import numpy as np

from outlierlens.experiments.predictions.result import (
    MEASURES,
    Curve,
    Heard,
    MeasureChange,
    Predictions,
    Shift,
    Spoken,
    Word,
)
from outlierlens.results.document import Provenance

CURVE = Curve(np.array([1, 10, 100]), np.array([0.2, 0.02, 0.0]), np.array([0.1, 0.5, 1.0]))


def spoken(label: str, log: float) -> Spoken:
    """Every measure is 0.5 but the log frequency."""
    values = dict.fromkeys(MEASURES, 0.5) | {"log_frequency": log, "slope": float("nan")}
    top = () if label.startswith("random") else (Word("the", 0.2, 0.05),)
    return Spoken(label, () if label == "intact" else (3,), 0, values, 40, CURVE, top)


def shift(intervention: str, change: float) -> Shift:
    """By so much more frequent; two random sets do nothing."""
    random = tuple(spoken(f"random {number}", -6.0) for number in range(2))
    changes = {
        name: MeasureChange(change, change - 0.1, change + 0.1, (0.0, 0.05), 1 / 3)
        if name == "log_frequency"
        else MeasureChange(0.0, 0.0, 0.0, (0.0, 0.0), 1.0)
        for name in MEASURES
    }
    return Shift("unmasked", intervention, spoken("chosen", -6.0 + change), random, changes)


def predictions() -> Predictions:
    """All layers: more frequent; logits: rarer."""
    heard = Heard("unmasked", 5, 200, spoken("intact", -6.0), (shift("layers", 0.7), shift("logits", -0.4)))
    return Predictions(
        provenance=Provenance("m", "f", command="outlierlens predictions m --counts c.parquet", seed=0),
        data="d.txt", data_digest="0", counts="c.parquet", n_counted=1000, smoothing=1.0, head="masked", stack="model",
        mode="zeroed_weights", dims=(3,), by_layer={}, max_length=128, n_groups=32, n_bootstrap=1000, paper_compat=False,
        corpus=CURVE, heard=(heard,), notes=("a note",),
    )  # fmt: skip
