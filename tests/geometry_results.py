"""Made-up results of `geometry`: two layers, raw and clipped, and bands in three states; dimension 1 an outlier."""

from outlierlens.analyses.geometry import Band, BandFigure, Contribution, FrequencyBands, Geometry, LayerGeometry
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate


def estimate(value: float) -> Estimate:
    return Estimate(value, value - 0.02, value + 0.02)


def row(layer: str, fix: str, cosine: float, change: float) -> LayerGeometry:
    """Everything follows from the cosine."""
    return LayerGeometry(
        layer=layer, fix=fix, clipped=(1,) if fix == "clip" else (), anisotropy=estimate(cosine),
        anisotropy_change=estimate(change), pairs_cosine=estimate(cosine), self_similarity=estimate(0.9),
        self_similarity_adjusted=estimate(0.9 - cosine), self_similarity_change=estimate(-change),
        intra_sentence=estimate(0.8), intra_sentence_adjusted=estimate(0.8 - cosine), iso_score=estimate(0.3),
        effective_rank=3.2, top_share=0.9 if fix == "raw" else float("nan"), r2=(0.2, 0.1, 0.1),
    )  # fmt: skip


def geometry() -> Geometry:
    """Clipping takes half of the cosine away."""
    cells = [
        (layer, fix, cosine * part, cosine * (part - 1))
        for layer, cosine in (("embeddings", 0.1), ("0", 0.6))
        for fix, part in (("raw", 1.0), ("clip", 0.5))
    ]
    return Geometry(
        provenance=Provenance("m", "f", command="outlierlens geometry m --data d.txt", seed=0),
        about=About(data="d.txt", data_digest="0", inputs="sentences", stack="model", layers=(0,), n_texts=50, n_tokens=100),
        by_layer=tuple(row(*cell) for cell in cells),
        contributions=tuple(
            Contribution(
                layer=layer, fix=fix, dim=dim, contribution=share * cosine * (fix == "raw" or dim == 0), share=share,
                named=dim == 1,
            )
            for layer, fix, cosine, _ in cells for dim, share in ((1, 0.8), (0, 0.1))
        ),
        words=("the", "film"), n_contexts=20, n_read=40, n_pairs=10, n_sentences=20, final_norm=False, special=False,
        clipped={"0": (1,)}, fit_data="e.txt", n_fit_texts=30, n_shared=0, notes=("a note",),
    )  # fmt: skip


def frequency_bands() -> FrequencyBands:
    """Clipping takes half of everything away, switching off a little more."""
    counts = ("0 to 12", "5,000")
    figures = tuple(
        BandFigure(
            layer=layer, state=state, measure=measure, count=count, value=estimate(part),
            change=estimate(part - 1), random=(-0.03, 0.02) if state == "clip" and count == "all" else (),
            p=0.05 if state == "clip" and count == "all" else None,
        )
        for layer in ("embeddings", "0", "blocks")
        for measure, over in (("norm_ratio", ("all",)), ("types_gap", ("all",)), ("norm", counts), ("cosine_types", counts))
        for count in over for state, part in (("raw", 1.0), ("clip", 0.5), ("off", 0.4))
    )  # fmt: skip
    bands = tuple(
        Band(
            count=count, n_types=3, share=0.5, n_tokens=30, n_drawn_types=3, examples=("the", "film"), low=0.0, high=9.0
        )
        for count in counts
    )
    return FrequencyBands(
        provenance=Provenance("m", "f", command="outlierlens geometry m --bands c.parquet --data d.txt", seed=0),
        about=About(data="d.txt", data_digest="0", stack="model", layers=(0,), dims=("1",), named_by="given", n_texts=50),
        figures=figures, bands=bands, counts="c.parquet", unknown=0.1, unknown_types=5, n_types=20, n_read=40,
        final_norm=False, special=False, mode="zeroed_weights", random_sets=((0,), (2,)), notes=("a note",),
    )  # fmt: skip
