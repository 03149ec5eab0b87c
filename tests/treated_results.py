"""A made-up result of `beyond-zero`: a set of two, each under every treatment, beside two random sets."""

import math

from outlierlens.experiments.beyond_zero.result import BeyondZero, Treated, Treatment
from outlierlens.results.document import Provenance


def treatment(
    name: str,
    change: float,
    share: tuple[float, float, float] = (math.nan,) * 3,
    *,
    width: float = 0.1,
    factor: float = math.nan,
) -> Treatment:
    return Treatment(
        name, factor, 3 + change, (3 + change, 3 + change), change, change - width, change + width, *share,
        random=(0.01, 0.02), p=(1 + (change <= 0.02) + (change <= 0.01)) / 3, also={"kl": change},
    )  # fmt: skip


def treated(
    mean: tuple[float, float, float] = (0.1, 0.05, 0.2),
    by_position: tuple[float, float, float] = (0.9, 0.8, 0.95),
    kept: tuple[float, float, float] = (0.95, 0.9, 1.0),
    *,
    zero: float = 2.0,
    dims: tuple[int, ...] = (3, 7),
) -> Treated:
    """Zero costs `zero`; the others what their shares leave of it."""
    shares = {
        "mean": mean,
        "position mean": by_position,
        "resample": (-0.5, -0.6, -0.4),
        "zero, first token kept": kept,
    }
    shares["zero, first token only"] = (0.05, 0.0, 0.1)
    done = [treatment("zero", zero, (0.0, 0.0, 0.0))]
    done += [treatment(name, zero * (1 - share[0]), share) for name, share in shares.items()]
    done += [
        treatment(f"scale {factor:g}", cost, factor=factor) for factor, cost in ((0.5, 0.4), (2.0, 0.3), (3.0, 1.5))
    ]
    return Treated(dims, {}, tuple(done), ((0, 1), (4, 5)))


def beyond_zero() -> BeyondZero:
    return BeyondZero(
        provenance=Provenance("m", "f", command="outlierlens beyond-zero m", seed=0),
        data="d.txt", data_digest="0", task="causal loss", unit="nats per token", stack="model", layers=(0, 1), max_length=128,
        n_tokens=40, n_folds=2, no_mean=0.0, named_by="given", intact=3.0, intact_per_text=(3.0, 3.0),
        texts=(0, 1), weights=(20.0, 20.0), treated=(treated(), treated(dims=(3,))), notes=("a note",),
    )  # fmt: skip
