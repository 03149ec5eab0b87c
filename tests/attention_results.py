"""A made-up result of `attention`: two layers, two heads, four dimensions, dimension 1 named."""

from collections.abc import Iterator

import numpy as np

from outlierlens.analyses.attention import Attention, AttentionFigure, KeyCorrelation, OverallCorrelation
from outlierlens.analyses.attention_maps import KEYS
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate


def estimate(value: float) -> Estimate:
    return Estimate(value, value - 0.1, value + 0.1)


def correlation(keys: str, layer: int, dim: int, r: float) -> KeyCorrelation:
    """A dimension in a layer, the more the larger."""
    return KeyCorrelation(
        mean="all", keys=keys, layer=str(layer), dim=dim, r=estimate(r), rank=1 + layer, p=0.25 * (1 + layer), others_5=-0.1,
        others_median=0.0, others_95=0.1, off=float("nan"), random=(0.65, 0.64),
    )  # fmt: skip


def figures(measure: str, intact: float, off: float) -> Iterator[AttentionFigure]:
    """Of a layer, and of all, intact and off."""
    for layer in ("0", "1", "all"):
        yield AttentionFigure(layer=layer, measure=measure, state="intact", value=estimate(intact), uniform=0.1)
        yield AttentionFigure(
            layer=layer, measure=measure, state="off", value=estimate(off), change=estimate(off - intact),
            random=(intact, intact - 0.01), p=1 / 3, uniform=0.1,
        )  # fmt: skip


def attention() -> Attention:
    """The outlier makes a sink of half of the heads."""
    r = np.array([[0.1, 0.7, -0.1, 0.0], [0.2, -0.1, 0.0, np.nan]])
    shares = {"first": (0.35, 0.2), "special": (0.2, 0.2), "delimiter": (0.2, 0.2), "punctuation": (0.2, 0.2)}
    shares |= {"mass": (1.0, 1.0), "entropy": (0.2, 0.2), "relative_entropy": (0.2, 0.2), "sink_heads": (0.5, 0.25)}
    return Attention(
        provenance=Provenance("m", "f", command="outlierlens attention m --data d.txt", seed=0),
        about=About(data="d.txt", data_digest="0", stack="model", layers=(0, 1), dims=("1",), named_by="given", n_texts=9,
                    n_tokens=50, max_length=128),
        figures=tuple(one for measure, values in shares.items() for one in figures(measure, *values)),
        overall=tuple(
            OverallCorrelation(mean="all", keys=keys, n_keys=n, dim=1, size=estimate(0.4), rank=1, p=0.25, layer="0",
                               r=estimate(0.7))
            for keys, n in zip(KEYS, (50, 32, 32), strict=True)
        ),
        correlations=tuple(correlation(keys, m, 1, r[m, 1]) for keys in KEYS for m in (0, 1)), hides=False,
        hidden_size=4, n_special=18, mode="zeroed_weights", n_set=8, random_sets=((0,), (2,)), threshold=0.3, delimiters=(".",),
        control_dims=(), means=("all",), every_r=np.stack([[r] * 3]),
        heads_r=np.array([[[[[0.8], [0.6]], [[-0.2], [0.0]]]] * 3]), control=np.zeros((1, 3, 2, 2)),
        heads=np.full((4, 7, 2, 2), 0.2), notes=("a note",),
    )  # fmt: skip
