"""A made-up result of `attention`: two layers, two heads, four dimensions, dimension 1 named."""

from typing import Any

import numpy as np

from outlierlens.experiments.attention.result import Attention, AttentionCondition, ExampleMaps, KeyCorrelation
from outlierlens.results.document import Provenance


def condition(kind: str, dims: tuple[int, ...], first: float) -> AttentionCondition:
    """Everything follows from the share of the first token."""
    heads = np.full((7, 2, 2), 0.2)
    heads[0] = [[first, first / 2], [0.1, 0.1]]
    heads[4] = 1.0
    mean = heads.mean(axis=-1)
    change = np.zeros((7, 2))
    change[0, 0] = 0.75 * (first - 0.8)
    return AttentionCondition(
        kind, dims, 8 * len(dims), heads, mean - 0.02, mean + 0.02, change, change - 0.01, change + 0.01
    )


def correlation(keys: Any, n_keys: int) -> KeyCorrelation:
    """Dimension 1 goes with attention in layer 0."""
    every = np.array([[0.1, 0.7, -0.1, 0.0], [0.2, -0.1, 0.0, np.nan]])
    off = every.copy()
    off[:, 1] = np.nan
    named, heads = every[:, [1]], np.array([[[0.8], [0.6]], [[-0.2], [0.0]]])
    return KeyCorrelation(
        mean="all", keys=keys, n_keys=n_keys, every=every, every_off=off, low=named - 0.1, high=named + 0.1, heads=heads,
        heads_low=heads - 0.1, heads_high=heads + 0.1, head_band=np.tile(np.linspace(-0.2, 0.2, 5), (2, 2, 1)),
        control=np.zeros((2, 2)), rank=np.array([[1], [2]]), p=np.array([[0.25], [0.5]]), overall=np.array([0.4]),
        overall_low=np.array([0.3]), overall_high=np.array([0.5]), overall_rank=np.array([1]), overall_p=np.array([0.25]),
        off=off[:, [1]], random=np.full((2, 2, 1), 0.65),
    )  # fmt: skip


def attention() -> Attention:
    """The outlier makes a sink of head 0 in layer 0."""
    maps = np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.25, 0.75]]])
    return Attention(
        provenance=Provenance("m", "f", command="outlierlens attention m --data d.txt", seed=0), data="d.txt", data_digest="0",
        stack="model", layers=("0", "1"), n_heads=2, hidden_size=4, n_texts=9, n_tokens=50, n_special=18, max_length=128,
        hides=False, dims=(1,), named_by="given", mode="zeroed_weights", threshold=0.3, n_bootstrap=200, delimiters=(".",),
        control_dims=(), paper_compat=False, uniform=np.full((4, 2), 0.1),
        conditions=(
            condition("intact", (), 0.8), condition("off", (1,), 0.4), condition("random", (0,), 0.8),
            condition("random", (2,), 0.79),
        ),
        correlations=tuple(correlation(keys, n) for keys, n in (("all", 50), ("without_special", 32), ("without_first", 32))),
        example=ExampleMaps("a .", 0, "0", ("a", "."), maps, maps[::-1].copy()), notes=("a note",),
    )  # fmt: skip
