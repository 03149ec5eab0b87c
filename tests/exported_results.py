"""An exported embedder's result, by hand."""

from outlierlens.experiments.embedder.result import EmbedderCheck, EmbedderSts, Exported
from outlierlens.results.document import Provenance


def exported() -> Exported:
    """Layer 2 of a model, whitened and scored."""
    return Exported(
        provenance=Provenance("mini", "0" * 64),
        folder="better",
        layer="2",
        n_blocks=3,
        of_blocks=6,
        final_norm=False,
        pooling="mean of all tokens, special ones included",
        max_length=256,
        fix="whiten:8",
        dims=(),
        clip="",
        fit="train.txt",
        fit_digest="1" * 64,
        n_fitted=4000,
        shrinkage=0.0,
        width=(16, 8),
        normalized=True,
        n_checked=36,
        checks=(
            EmbedderCheck("transformers 5.23.0", 1e-6, 5e-7),
            EmbedderCheck("sentence-transformers 6.2.0", 2e-6, 1e-6),
        ),
        sts=EmbedderSts("test.parquet", 1379, 3, 0.6, 0.7, 0.7, "sentence-transformers 6.2.0"),
        notes=("a note",),
    )
