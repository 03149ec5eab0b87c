"""Made-up results of similarity, one of each kind."""

from typing import Any

import numpy as np

from outlierlens.experiments.similarity.result import (
    Choice,
    Fitted,
    Scores,
    Similarity,
    StaticVectors,
    TaskScores,
    WordChoice,
    WordInContext,
    WordPairs,
)
from outlierlens.results.document import Provenance

PROVENANCE = Provenance("m", "f", command="outlierlens sts m")
FITTED = Fitted("train", 500, 3, (0.1, 0.2), "auto: the rule", {"0": (557,)})


def similarity() -> Similarity:
    """One task of two parts, two layers, raw and clip."""
    pooled = np.array([[0.5, 0.6], [0.7, 0.65]])
    layers = Scores(pooled, pooled - 0.1, pooled - 0.05, np.stack([pooled - 0.2, pooled]))
    none = np.array([[0.4, np.nan]])
    static = Scores(none, none, none, np.stack([none, none]))
    choices = (
        Choice("raw", "best", "these pairs", 0.7, "0", 0.7, "0", 0.7, 0.0, 0.0, 0.0),
        Choice("clip", "best", "these pairs", 0.65, "0", 0.65, "0", 0.7, -0.05, -0.08, -0.02),
        Choice("raw", "last", "", None, "0", 0.7, "0", 0.7, 0.0, 0.0, 0.0),
        Choice("clip", "last", "", None, "0", 0.65, "0", 0.7, -0.05, -0.08, 0.01),
    )
    task = TaskScores(
        "sts13", "STS13", "t", 30, 55, 28, ("FNWN", "OnWN"), (10, 20), ("headlines",), layers, static, choices
    )
    return Similarity(
        PROVENANCE, "model", "mean of all tokens, special ones left out", 128, False, ("embeddings", "0"), ("raw", "clip"),
        FITTED, (StaticVectors("input embeddings", 8),), 55, (task,), ("a note",),
    )  # fmt: skip


def words() -> WordInContext:
    """Two splits, two layers, raw and clip, two thresholds."""
    accuracy = np.array([[[0.5, 0.55], [0.6, 0.5]], [[0.65, 0.6], [0.62, 0.7]]])
    data = (
        WordPairs("train", "t", 40, 30, 1, 0.5, accuracy),
        WordPairs("validation", "v", 20, 20, 0, 0.5, accuracy - 0.02),
    )
    choices = (
        WordChoice("raw", "grid", "0", 0.1, 0.65, 0.63, 0.63, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        WordChoice("clip", "grid", "0", 0.5, 0.7, 0.66, 0.68, 0.05, 0.01, 0.09, 0.05, 0.02, 0.1, 0.03, -0.01, 0.07),
    )
    return WordInContext(
        PROVENANCE, "model", 128, False, ("embeddings", "0"), ("raw", "clip"), (0.1, 0.5), FITTED, data, choices
    )


def made() -> dict[str, Any]:
    """{kind: result}"""
    return {"Similarity": similarity(), "WordInContext": words()}
