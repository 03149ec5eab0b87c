"""A made-up result of `frequency`: two layers of four dimensions, dimension 1 an outlier that follows frequency."""

import numpy as np

from outlierlens.experiments.frequency.result import (
    BLOCKS,
    MEASURES,
    VIEWS,
    Cloud,
    Contrast,
    Correlations,
    Frequency,
    View,
)
from outlierlens.results.document import Provenance

VALUES = np.array([[0.05, 0.2, -0.1, 0.0], [-0.1, 0.6, 0.1, np.nan]])


def correlations(part: float = 1.0) -> Correlations:
    """`part` of the made-up values, with an error of 0.05."""
    return Correlations(VALUES * part, np.full(VALUES.shape, 0.05), np.where(np.abs(VALUES) > 0.15, 0.001, 0.5))


def view(n_tokens: int) -> View:
    """Raw counts give half of the correlation."""
    return View(
        n_tokens=n_tokens, n_types=30, unknown_types=2, unknown=0.04, shared=0.0, raw=correlations(0.5), log=correlations(),
        partial=correlations(0.9), signed=-VALUES, spearman=VALUES * 0.8, n_sample=101,
    )  # fmt: skip


def frequency() -> Frequency:
    """The outlier against the three others."""
    contrasts = tuple(
        Contrast(name, measure, layer, 0.6, 0.1, 0.5, 0.4, 0.6, 0.04)
        for name in VIEWS
        for measure in (*MEASURES, "spearman", *(("types",) if name == VIEWS[0] else ()))
        for layer in ("embeddings", "0", BLOCKS)
    )
    cloud = Cloud(
        1, "0", np.array([0.0, 1, 2]), np.array([0.0, 3, 6]), np.array([[4, 1], [0, 5]]), np.array([1.5, np.nan]), 0.7
    )
    return Frequency(
        provenance=Provenance("m", "f", command="outlierlens frequency m --counts c.parquet --data d.txt", seed=0),
        data="d.txt", data_digest="0", counts="c.parquet", counts_texts=10, counts_tokens=900, stack="model",
        final_norm=False, max_length=128, hidden_size=4, layers=("embeddings", "0"), n_texts=20, n_bootstrap=200, reach=2.0,
        dims=(1,), dims_source="the weights", views={"without_special": view(100), "all": view(140)},
        types=correlations(0.7), n_types=28, types_reach=2.05, contrasts=contrasts, clouds=(cloud,), notes=("a note",),
    )  # fmt: skip
