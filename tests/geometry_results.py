"""A made-up result of `geometry`: two layers, raw and clipped, dimension 1 an outlier."""

from outlierlens.experiments.geometry.result import Contribution, Geometry, LayerGeometry
from outlierlens.results.document import Provenance
from outlierlens.vectors.cosines import Estimate


def row(layer: str, fix: str, cosine: float, change: float) -> LayerGeometry:
    """Everything follows from the cosine."""

    def estimate(value: float, moved: float = change) -> Estimate:
        return Estimate(value, value - 0.02, value + 0.02, moved, moved - 0.01, moved + 0.01)

    clipped = (1,) if fix == "clip" else ()
    top = (
        Contribution(1, 0.0 if clipped else 0.8 * cosine, 0.0 if clipped else 0.8),
        Contribution(0, 0.1 * cosine, 0.1),
    )
    return LayerGeometry(
        layer=layer, fix=fix, width=4, clipped=clipped, n_fitted=0, shrinkage=0.0,
        anisotropy=estimate(cosine), pairs_cosine=estimate(cosine), self_similarity=estimate(0.9),
        self_similarity_adjusted=estimate(0.9 - cosine, -change), intra_sentence=estimate(0.8),
        intra_sentence_adjusted=estimate(0.8 - cosine, -change), iso_score=estimate(0.3),
        effective_rank=3.2, top=top, named=top[:1], top_share=float("nan") if clipped else 0.9, informativity={1: 0.2},
    )  # fmt: skip


def geometry() -> Geometry:
    """Clipping takes half of the cosine away."""
    rows = tuple(
        row(layer, fix, cosine * part, cosine * (part - 1))
        for layer, cosine in (("embeddings", 0.1), ("0", 0.6))
        for fix, part in (("raw", 1.0), ("clip", 0.5))
    )
    return Geometry(
        provenance=Provenance("m", "f", command="outlierlens geometry m --data d.txt", seed=0),
        data="d.txt", data_digest="0", stack="model", final_norm=False, special=False, skip_first=0, max_length=128,
        hidden_size=4, n_texts=50, n_read=40, n_pairs=10, words=("the", "film"), n_eligible=2, n_contexts=20,
        min_sentences=10, max_contexts=20, n_tokens=100, n_token_sentences=20, n_bootstrap=100, fit_data="e.txt",
        fit_digest="1", n_fit_texts=30, n_fit_vectors=400, n_shared=0, clipping="1", clipping_source="named by hand",
        clipped={"0": (1,)}, weights_name=(1,), rows=rows, notes=("a note",),
    )  # fmt: skip
