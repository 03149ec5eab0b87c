"""A made-up result of `quant`: two layers of eight dimensions, 5 an outlier that per-tensor rounding cannot bear."""

import numpy as np

from outlierlens.experiments.quantization.result import (
    Difference,
    Errors,
    LinearError,
    Quantized,
    Rounding,
    Setting,
    SmoothScale,
    What,
)
from outlierlens.results.document import Provenance

INTACT = 3.0


def setting(what: What, change: float, dims: tuple[int, ...] = (), kept: float = 0.0) -> Setting:
    """Everything follows from the change; the interval reaches 0.1 to both sides."""
    value = INTACT + change
    texts = (value - 0.2, value + 0.2)
    noise = float("nan") if what == "intact" else 0.012
    return Setting(what, dims, value, value - 0.1, value + 0.1, change, change - 0.1, change + 0.1, kept, texts, noise)


def difference(one: Setting, other: Setting) -> Difference:
    value = one.value - other.value
    return Difference(value, value - 0.05, value + 0.05, 0.021)


def errors(size: float, kept: float, *, inputs: bool) -> Errors:
    """`size` of the error in layer 0 and twice that in layer 1; `kept` of it stays when the outlier is kept."""
    output = np.array([size, 2 * size])
    by_dim = np.tile(np.full(8, 0.1), (2, 1)) * output[:, None]
    by_dim[:, 5] = 0.3 * output
    read, nothing = (size, kept * size, 0.3), (float("nan"),) * 3
    linears = tuple(
        LinearError(layer, part, part == "up", part == "down", *read, *(read if inputs else nothing))
        for layer in (0, 1)
        for part in ("up", "down")
    )
    return Errors(
        output, kept * output, 0.98 * output, output, kept * output, output, np.array([0.3, 0.3]), by_dim, linears
    )


def rounding(scheme: str, change: float, kept: float) -> Rounding:
    """Keeping the outlier leaves `kept` of the change, random dimensions all of it."""
    inputs = not scheme.endswith("none")
    plain, spared = setting("rounded", change), setting("kept", kept * change, (5,), 0.2)
    random = tuple(setting("random", change, (dim,), 0.2) for dim in (1, 6))
    mixed, smoothed = setting("mixed", 0.01, kept=0.125), setting("smoothed", 0.5 * change)
    return Rounding(
        scheme=scheme, n_linears=4, n_weights=256, rounded=plain, kept=spared, random=random,
        mixed=mixed if inputs else None, smoothed=smoothed if inputs else None,
        regained=difference(plain, spared), beyond_random=difference(random[0], spared),
        regained_mixed=difference(plain, mixed) if inputs else None,
        regained_smoothed=difference(plain, smoothed) if inputs else None,
        p=1 / 3, errors=errors(0.001 + abs(change), kept, inputs=inputs),
    )  # fmt: skip


def quantized() -> Quantized:
    """The outlier is what per-tensor rounding costs, not what few bits cost; per token nothing is lost."""
    return Quantized(
        provenance=Provenance("m", "f", command="outlierlens quant m --data d.txt", seed=0),
        data="d.txt", data_digest="0", task="causal loss", unit="nats per token", stack="model", layers=("0", "1"),
        hidden_size=8, dims=(5,), dims_source="given", n_texts=2, n_tokens=40, max_length=128,
        intact=setting("intact", 0.0, kept=1.0),
        roundings=(
            rounding("int8-tensor/int8-tensor", 2.0, 0.05),
            rounding("int8-channel/int8-token", 0.0, 1.0),
            rounding("int4-channel/none", 1.0, 0.99),
        ),
        alpha=0.5, threshold=6.0,
        smoothing=(SmoothScale(0, ("up",), (40.0,), (1,), 2.0, 40.0), SmoothScale(1, ("up",), (10.0,), (2,), 2.0, 12.0)),
        calibration="d.txt", n_calibration=2, n_error_texts=2, map_dims=tuple(range(8)), notes=("a note",),
        noise_draws=3, n_noise_texts=2,
    )  # fmt: skip
