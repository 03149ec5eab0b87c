"""A made-up result of `predictions`: one input, two interventions."""

from outlierlens.analyses.predictions import MEASURES, MeasureChange, Prediction, Predictions
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate


def prediction(off: str, log: float) -> Prediction:
    """Every measure is 0.5 but the log frequency."""
    values = dict.fromkeys(MEASURES, 0.5) | {"log_frequency": log, "slope": float("nan")}
    return Prediction(
        input="unmasked", off=off, **values, n_types=40, says="the 20%", n_set=None,
        covered=(0.1, 0.5, 1.0),
    )  # fmt: skip


def changes(off: str, change: float) -> tuple[MeasureChange, ...]:
    """By so much more frequent; two random sets do nothing."""
    nothing, moved = Estimate(0.0, 0.0, 0.0), Estimate(change, change - 0.1, change + 0.1)
    return tuple(
        MeasureChange(
            input="unmasked", off=off, measure=name, intact=0.5, ablated=0.5, change=moved if frequent else nothing,
            random=(0.0, 0.05 * frequent), p=1 / 3 if frequent else 1.0,
        )
        for name in MEASURES
        for frequent in (name == "log_frequency",)
    )  # fmt: skip


def predictions() -> Predictions:
    """All layers: more frequent; logits: rarer."""
    return Predictions(
        provenance=Provenance("m", "f", command="outlierlens ablate m --predictions c.parquet", seed=0),
        about=About(
            data="d.txt", data_digest="0", task="predicted tokens", stack="model", layers=(0,), dims=("3",), n_texts=5,
            n_tokens=200, max_length=128,
        ),
        changes=changes("layers", 0.7) + changes("logits", -0.4),
        predicted=(prediction("nothing", -6.0), prediction("layers", -5.3), prediction("logits", -6.4)),
        n_positions={"unmasked": 200}, n_texts={"unmasked": 5}, random_sets=((5,), (7,)), counts="c.parquet",
        n_counted=1000, smoothing=1.0, mode="zeroed_weights", plan={0: (3,)}, ranks=(1, 10, 100),
        corpus_covered=(0.1, 0.5, 1.0), notes=("a note",),
    )  # fmt: skip
