"""A made-up result of `frequency`: two layers of four dimensions, dimension 1 an outlier that follows frequency."""

from typing import Any

import numpy as np

from outlierlens.analyses.frequency import (
    BLOCKS,
    CONTRASTED,
    MEASURES,
    VIEWS,
    Contrast,
    Frequency,
    TokenView,
    with_rows,
)
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

VALUES = np.array([[0.05, 0.2, -0.1, 0.0], [-0.1, 0.6, 0.1, np.nan]])
PARTS = {"raw": 0.5, "log": 1.0, "partial": 0.9, "signed": -1.0, "spearman": 0.8, "types": 0.7}  # of the values


def frequency(values: np.ndarray = VALUES, dims: tuple[int, ...] = (1,), **more: Any) -> Frequency:
    """The outlier against the three others; `values` are correlations with log counts [layer, dim]."""
    r = np.stack([np.stack([part * values for part in PARTS.values()])] * len(VIEWS))
    with np.errstate(invalid="ignore"):
        q = np.where(np.abs(r / np.array([*PARTS.values()])[:, None, None]) > 0.15, 0.001, 0.5)
    layers = ("embeddings", *map(str, range(len(values) - 1)))
    contrasts = tuple(
        Contrast(
            view=view, measure=measure, layer=layer, named=0.6, others=0.1, difference=Estimate(0.5, 0.4, 0.6), p=0.04
        )
        for view in VIEWS
        for measure in CONTRASTED[: None if view == VIEWS[0] else -1]
        for layer in (*layers, BLOCKS)
    )
    tokens = tuple(
        TokenView(view=view, n_tokens=n, n_types=30, unknown_types=2, unknown=0.04, shared=0.0, n_sample=101)
        for view, n in zip(VIEWS, (100, 140), strict=True)
    )
    about = About(
        data="d.txt", data_digest="0", stack="model", layers=tuple(range(len(values) - 1)), dims=tuple(map(str, dims)),
        named_by="the weights", n_texts=20, n_tokens=100, max_length=128,
    )  # fmt: skip
    fields = {
        "provenance": Provenance("m", "f", command="outlierlens frequency m --counts c.parquet --data d.txt", seed=0),
        "about": about, "contrasts": contrasts, "tokens": tokens, "counts": "c.parquet", "final_norm": False,
        "hidden_size": values.shape[1], "n_bootstrap": 200, "reach": 2.0,
        "n_types": 28, "types_reach": 2.05, "random_dims": (0, 2), "layers": layers, "r": r, "error": np.full(r.shape, 0.05),
        "q": q, "notes": ("a note",),
    }  # fmt: skip
    assert tuple(PARTS) == MEASURES
    return with_rows(Frequency(**fields | more))
