"""A made-up result of `quantize`: two layers of eight dimensions, 5 an outlier that per-tensor rounding cannot bear."""

import math
from typing import Any

from outlierlens.analyses.quantize import (
    BlockError,
    OutlierGain,
    Quantization,
    Setting,
    says_of,
)
from outlierlens.analyses.quantize_settings import KEPT, MIXED, RANDOM, ROUNDED, SMOOTHED
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

INTACT = 3.0
COSTS = {"int8-tensor/int8-tensor": 2.0, "int8-channel/int8-token": 0.0, "int4-channel/none": 1.0}
LEFT = {"int8-tensor/int8-tensor": 0.05, "int8-channel/int8-token": 1.0, "int4-channel/none": 0.99}  # outliers kept


def estimate(value: float, reach: float) -> Estimate:
    return Estimate(value, value - reach, value + reach)


def setting(scheme: str, name: str, change: float, **more: Any) -> Setting:
    """Everything follows from the change; the interval reaches 0.1 to both sides."""
    value = INTACT + change
    how: dict[str, Any] = {"noise": 0.012, "kept": 0.0} | more
    if name in (KEPT, MIXED, SMOOTHED):
        how |= {"regained": estimate(COSTS[scheme] - change, 0.05), "regained_noise": 0.021}
    return Setting(
        scheme=scheme, setting=name, change=estimate(change, 0.1), value=estimate(value, 0.1),
        per_text=(value - 0.2, value + 0.2), **how,
    )  # fmt: skip


def settings(scheme: str) -> list[Setting]:
    """Random dimensions give nothing back."""
    cost, kept = COSTS[scheme], LEFT[scheme] * COSTS[scheme]
    found = [setting(scheme, ROUNDED, cost), setting(scheme, KEPT, kept, dims=(5,), kept=0.2, random=(cost, cost))]
    if not scheme.endswith("none"):
        found += [setting(scheme, MIXED, 0.01, kept=0.125), setting(scheme, SMOOTHED, 0.5 * cost)]
    return found


def gain(scheme: str) -> OutlierGain:
    cost, beyond = COSTS[scheme], estimate((1 - LEFT[scheme]) * COSTS[scheme], 0.05)
    return OutlierGain(
        scheme=scheme, says=says_of(cost - 0.1, beyond.low, beyond.low), beyond_random=beyond, noise=0.021, p=1 / 3,
        random=(cost, cost), n_linears=4, n_weights=256,
    )  # fmt: skip


def blocks(scheme: str) -> list[BlockError]:
    """The error doubles from layer 0 to 1; 30 % of it lies in the outlier."""
    sizes = {ROUNDED: 1.0, KEPT: LEFT[scheme], RANDOM: 0.98}
    return [
        BlockError(scheme=scheme, setting=name, layer=layer, error=error, others=error, share=0.3)
        for name, size in sizes.items()
        for layer in (0, 1)
        for error in ((layer + 1) * size * (0.001 + COSTS[scheme]),)
    ]


def quantized(schemes: tuple[str, ...] = tuple(COSTS), **more: Any) -> Quantization:
    """The outlier is what per-tensor rounding costs, not what few bits cost; per token nothing is lost."""
    how: dict[str, Any] = {"alpha": 0.5, "threshold": 6.0} | more
    return Quantization(
        provenance=Provenance("m", "f", command="outlierlens quantize m --data d.txt", seed=0),
        about=About(
            data="d.txt", data_digest="0", task="causal loss", unit="nats per token", stack="model", layers=(0, 1),
            dims=("5",), named_by="given", n_texts=2, n_tokens=40, max_length=128,
        ),
        settings=(
            setting("none/none", "intact", 0.0, kept=1.0, noise=math.nan),
            *(one for scheme in schemes for one in settings(scheme)),
        ),
        gains=tuple(map(gain, schemes)),
        draws=tuple(
            setting(scheme, RANDOM, COSTS[scheme], dims=(dim,), kept=0.2) for scheme in schemes for dim in (1, 6)
        ),
        blocks=tuple(one for scheme in schemes for one in blocks(scheme)),
        calibration="d.txt", n_calibration=2, n_error_texts=2, notes=("a note",), noise_draws=3, n_noise_texts=2, **how,
    )  # fmt: skip
