"""Numbers of Luo et al. (2021), each with its table, for the checkpoints they were measured on.

published_for("roberta-base")           # tuple of Published, () for a checkpoint that is none of the paper's
shares_for("roberta-base")              # {("largest entry", 588): 1.0, …}

The paper names its models BERT, RoBERTa, DistilBERT, … without casing. That BERT and DistilBERT are the cased ones is an
inference: dimension 557, which it reports, is an outlier of theirs.
"""

from outlierlens.replicate.luo.result import Published

_SAME = "the paper's checkpoint"
_CASED = "the paper does not say which casing; inferred from dimension 557"
_OPEN = "the paper does not say which casing"
_WIC, _STS, _CLASSES = (
    "Luo et al. 2021, tables 1 and 5",
    "Luo et al. 2021, tables 2, 6 and 7",
    "Luo et al. 2021, table 3",
)

# checkpoint: (evidence, {data: (raw, clipped) × 100})
_NUMBERS: dict[str, tuple[str, dict[str, tuple[float, float]]]] = {
    "bert-base-cased": (
        _CASED,
        {"wic": (67.5, 68.4), "stsb": (58.61, 63.06), "sst2": (85.9, 85.4), "imdb": (86.8, 86.4), "sst5": (46.2, 46.1)},
    ),
    "roberta-base": (
        _SAME,
        {"wic": (69.0, 69.9), "stsb": (56.60, 60.61), "sst2": (88.4, 88.7), "imdb": (91.5, 91.6), "sst5": (46.9, 47.0)},
    ),
    "bert-large-cased": (_OPEN, {"wic": (70.2, 70.3), "stsb": (62.56, 66.43)}),
    "bert-large-uncased": (_OPEN, {"wic": (70.2, 70.3), "stsb": (62.56, 66.43)}),
    "roberta-large": (_SAME, {"wic": (70.4, 71.3), "stsb": (59.71, 62.01)}),
    "distilbert-base-cased": (_CASED, {"wic": (66.5, 67.3), "stsb": (59.65, 56.62)}),
    "distilroberta-base": (_SAME, {"wic": (63.7, 66.7)}),
}

# checkpoint: {(end, dimension): share of token vectors}, section 2 (10,000 sentences of SST-2 and of QQP each, all blocks)
_SHARES: dict[str, dict[tuple[str, int], float]] = {
    "bert-base-cased": {("smallest entry", 557): 0.9660},
    "roberta-base": {("smallest entry", 77): 0.8819, ("largest entry", 588): 1.0},
}
# where the best scores of table 1 lie, for the checkpoints it says it of
_LAYERS = {"bert-base-cased": ", raw at layer 7 > 0.7, clipped at layer 10 > 0.5"}


def shares_for(checkpoint: str | None) -> dict[tuple[str, int], float]:
    """{("smallest entry" or "largest entry", dimension): the paper's share of token vectors} of this checkpoint."""
    return dict(_SHARES.get(checkpoint or "", {}))


def published_for(checkpoint: str | None) -> tuple[Published, ...]:
    """The paper's best scores, layer chosen on the test data, of this checkpoint (`references.checkpoint_of`)."""
    if checkpoint not in _NUMBERS:
        return ()
    evidence, numbers = _NUMBERS[checkpoint]
    sources = {"wic": _WIC + _LAYERS.get(checkpoint, ""), "stsb": _STS}
    return tuple(
        Published(data, raw / 100, clipped / 100, sources.get(data, _CLASSES), evidence)
        for data, (raw, clipped) in numbers.items()
    )
