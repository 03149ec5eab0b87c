"""A plan by hand: one of two linears stays, the other was not confirmed."""

from typing import Any

from outlierlens.analyses.plan import PlanSetting, PlanStep, PrecisionPlan, Sensitivity
from outlierlens.analyses.quantize_rounding import KeptLinear
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

DOWN, UP = "layers.1.mlp.down_proj", "layers.0.mlp.up_proj"


def estimate(value: float, reach: float) -> Estimate:
    return Estimate(value, value - reach, value + reach)


def setting(family: str, name: str, change: float, n: int = 0, **more: Any) -> PlanSetting:
    """A setting whose value is 3 nats and the change, with `n` linears of 60 weights kept."""
    return PlanSetting(
        family=family, setting=name, n_linears=n, share=n * 60 / 1200, n_weights=n * 60, n_bytes=n * 60,
        change=estimate(change, 0.05), value=estimate(3.0 + change, 0.1), **more,
    )  # fmt: skip


def found() -> PrecisionPlan:
    """Inputs of a down projection stay; weights of an up projection were nominated after it."""
    down = Sensitivity(
        path=DOWN, what="inputs", reason="reads neuron 7: 2,824 × the median", n_weights=60,
        estimate=0.4, ratio=2824.0, error=0.02, gain=estimate(0.5, 0.1), n_texts=16,
    )  # fmt: skip
    up = Sensitivity(
        path=UP, what="weights", reason="weighs dimension 3 for output 5: 90 × the median", n_weights=60,
        estimate=0.1, ratio=90.0, error=0.01, gain=estimate(0.02, 0.03), n_texts=16,
    )  # fmt: skip
    steps = [
        PlanStep(path=one.path, what=one.what, reason=one.reason, gain=gain, nominated=one.gain, share=share)
        for one, gain, share in ((down, estimate(0.48, 0.08), 0.05), (up, estimate(0.01, 0.03), 0.1))
    ]
    return PrecisionPlan(
        provenance=Provenance("mini", "0" * 64),
        about=About(
            data="made", data_digest="1" * 64, task="causal loss", unit="nats per token", stack="model", layers=(0, 1),
            n_texts=64, n_tokens=640, max_length=64,
        ),
        steps=(steps[0],),
        settings=(
            setting("rounded", "all quantized", 0.8),
            setting("plan", "plan", 0.3, 1, random=(0.79, 0.81)),
            setting("random", "random draw 1", 0.79, 1),
            setting("random", "random draw 2", 0.81, 1),
            setting("rule", "every mlp.down_proj", 0.25, 2),
        ),
        sensitivities=(down, up), kept=(KeptLinear(path=DOWN, inputs=True),), refused=steps[1],
        scheme="int8-tensor/int8-tensor", bits=16, budget=0.1, grain="linear", exact=False, n_linears=20, n_weights=1200,
        n_nominating=16, n_confirming=16, n_judging=32, intact=estimate(3.0, 0.1), cost=estimate(0.82, 0.12), floor=0.01,
        regained=estimate(0.5, 0.08), share_regained=estimate(0.625, 0.075), beyond_random=estimate(0.5, 0.09), p=1 / 3,
        evaluations=400, notes=("a note",),
    )  # fmt: skip
