"""A plan by hand: one of two linears stays, the other was not confirmed."""

from outlierlens.experiments.plan.kept import KeptLinear
from outlierlens.experiments.plan.result import Difference, Judged, PrecisionPlan, Sensitivity, Step
from outlierlens.results.document import Provenance

DOWN, UP = "layers.1.mlp.down_proj", "layers.0.mlp.up_proj"


def judged(label: str, change: float, *linears: str) -> Judged:
    """A setting whose value is 3 nats and the change."""
    n, value = 60 * len(linears), 3.0 + change
    ends = (value, value - 0.1, value + 0.1, change, change - 0.05, change + 0.05)
    return Judged(label, len(linears), n, n / 1200, n, *ends)


def found() -> PrecisionPlan:
    """Inputs of a down projection stay; weights of an up projection were nominated after it."""
    entries = (
        Sensitivity(DOWN, 1, "mlp.down_proj", "inputs", 60, 1, 0.4, 2824.0, 7, None, "neuron", 0.02, 0.5, 0.4, 0.6, 16),
        Sensitivity(UP, 0, "mlp.up_proj", "weights", 60, 2, 0.1, 90.0, 3, 5, "dimension", 0.01, 0.02, -0.01, 0.05, 16),
    )
    return PrecisionPlan(
        provenance=Provenance("mini", "0" * 64),
        data="made",
        data_digest="1" * 64,
        task="causal loss",
        unit="nats per token",
        stack="model",
        scheme="int8-tensor/int8-tensor",
        bits=16,
        budget=0.1,
        grain="linear",
        n_linears=20,
        n_weights=1200,
        exact=False,
        n_nominating=16,
        n_confirming=16,
        n_judging=32,
        n_estimating=8,
        max_length=64,
        intact=judged("intact", 0.0),
        rounded=judged("all rounded", 0.8),
        curve=(judged("1 kept", 0.3, DOWN),),
        random=(judged("random", 0.79, UP), judged("random", 0.81, UP)),
        rules=(judged("every mlp.down_proj", 0.25, DOWN, "layers.0.mlp.down_proj"),),
        steps=(Step(entries[0], 0.5, 16, Difference(0.48, 0.4, 0.56), 60),),
        kept=(KeptLinear(path=DOWN, inputs=True),),
        refused=Step(entries[1], 0.02, 16, Difference(0.01, -0.02, 0.04), 120),
        cost=Difference(0.82, 0.7, 0.94),
        floor=0.01,
        regained=Difference(0.5, 0.42, 0.58),
        share_regained=Difference(0.625, 0.55, 0.7),
        beyond_random=Difference(0.5, 0.41, 0.59),
        p=1 / 3,
        sensitivities=entries,
        evaluations=400,
        notes=("a note",),
    )
