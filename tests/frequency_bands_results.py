"""A made-up result of `frequency-geometry`: two layers, three states, three bands, dimension 1 an outlier."""

from outlierlens.experiments.frequency_geometry.result import Band, FrequencyBands, LayerBands, RandomChange
from outlierlens.results.document import Provenance
from outlierlens.vectors.cosines import Estimate


def row(layer: str, state: str, part: float) -> LayerBands:
    """Everything follows from the part of the raw cosine that is left."""

    def estimate(value: float) -> Estimate:
        change = value * (part - 1)
        return Estimate(value * part, value * part - 0.02, value * part + 0.02, change, change - 0.01, change + 0.01)

    bands = tuple(estimate(value) for value in (0.1, 0.2, 0.6))
    return LayerBands(
        layer, state, norm=tuple(estimate(value) for value in (9.0, 8.0, 12.0)), cosine=bands, cosine_types=bands,
        anisotropy=estimate(0.3), between=estimate(0.1), spearman=estimate(0.4), norm_ratio=estimate(1.3),
        cosine_gap=estimate(0.5), types_gap=estimate(0.5),
        random={"types_gap": RandomChange(-0.01, -0.03, 0.02, 0.05)} if state == "clip" else {},
    )  # fmt: skip


def frequency_bands() -> FrequencyBands:
    """Clipping takes half of everything away, switching off a little more."""
    states = (("raw", 1.0), ("clip", 0.5), ("off", 0.4))
    return FrequencyBands(
        provenance=Provenance("m", "f", command="outlierlens frequency-geometry m --data d.txt", seed=0),
        data="d.txt", data_digest="0", counts="c.parquet", counts_texts=100, counts_tokens=2000, stack="model",
        final_norm=False, special=False, skip_first=0, max_length=128, hidden_size=4, n_texts=50, n_read=40, n_tokens=90,
        n_occurrences=300, n_types=20, unknown=0.1, unknown_types=5, tokens_per_band=30, n_bootstrap=100, dims=(1,),
        dims_source="the scan of the weights, at 3 sigma", mode="zeroed_weights", n_values=4, random_sets=((0,), (2,)),
        bands=tuple(
            Band(low, high, n_types, 100, 1 / 3, 30, n_types, ("the", "film"))
            for low, high, n_types in ((0.0, 12.0, 15), (13.0, 900.0, 4), (5000.0, 5000.0, 1))
        ),
        rows=tuple(row(layer, state, part) for layer in ("embeddings", "0") for state, part in states),
        blocks=tuple(row("blocks", state, part) for state, part in states), notes=("a note",),
    )  # fmt: skip
