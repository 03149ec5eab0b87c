"""A made-up result of `ablate --modes all`: a set of two, and one alone, under every mode, beside two random sets."""

import math

from outlierlens.analyses.ablate import Ablation, Damage
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import UNKNOWN, Estimate

Share = tuple[float, float, float]


def mode(
    name: str,
    change: float,
    share: Share | None = None,
    *,
    dims: str = "3, 7",
    width: float = 0.1,
    factor: float = math.nan,
) -> Damage:
    p = (1 + (change <= 0.02) + (change <= 0.01)) / 3
    return Damage(
        family="chosen", label=name, dims=dims, value=Estimate(3 + change), perplexity=math.exp(3 + change),
        change=Estimate(change, change - width, change + width), n_set=None, plan={0: (3, 7), 1: (3, 7)},
        also={"kl": change}, per_text=(3 + change, 3 + change), mode=name, factor=factor,
        recovered=Estimate(*share) if share else UNKNOWN, random=(0.01, 0.02), random_sets=((0, 1), (4, 5)), p=p,
    )  # fmt: skip


def modes(
    mean: Share = (0.1, 0.05, 0.2),
    by_position: Share = (0.9, 0.8, 0.95),
    kept: Share = (0.95, 0.9, 1.0),
    *,
    zero: float = 2.0,
    dims: str = "3, 7",
) -> tuple[Damage, ...]:
    """Zero costs `zero`; the others what their shares leave of it."""
    shares = {
        "mean": mean,
        "position-mean": by_position,
        "resample": (-0.5, -0.6, -0.4),
        "zero, first token kept": kept,
        "zero, first token only": (0.05, 0.0, 0.1),
    }
    done = [mode("zero", zero, (0.0, 0.0, 0.0), dims=dims, factor=0.0)]
    done += [mode(name, zero * (1 - share[0]), share, dims=dims) for name, share in shares.items()]
    scales = ((0.5, 0.4), (2.0, 0.3), (3.0, 1.5))
    return (*done, *(mode(f"scale-once {factor:g}", cost, dims=dims, factor=factor) for factor, cost in scales))


def ablation(*treated: Damage) -> Ablation:
    """Of these modes; of two sets where none is given."""
    intact = Damage(
        family="intact", label="intact", dims="", value=Estimate(3.0), perplexity=math.exp(3), change=Estimate(0.0), n_set=None,
        plan={}, also={"kl": 0.0}, per_text=(3.0, 3.0), mode="",
    )  # fmt: skip
    return Ablation(
        provenance=Provenance("m", "f", command="outlierlens ablate m --modes all", seed=0),
        about=About(
            data="d.txt", data_digest="0", task="causal loss", unit="nats per token", stack="model", layers=(0, 1),
            dims=("3", "7"), max_length=128, n_texts=2, n_tokens=40, named_by="given",
        ),
        conditions=(intact, *(treated or (*modes(), *modes(dims="3")))),
        n_folds=2, texts=(0, 1), weights=(20.0, 20.0), notes=("a note",),
    )  # fmt: skip
