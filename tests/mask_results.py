"""A mask of two blocks, by hand."""

import numpy as np

from outlierlens.analyses.mask import LayerSinks, Mask, MaskOutlier, MaskValidation, SinkToken
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About


def sinks(layer: int, n_sinks: int, *norms: float) -> LayerSinks:
    """The sinks of a block: median and largest norm, threshold, both γ."""
    median, largest, threshold, gamma, kept = norms
    return LayerSinks(
        layer=layer,
        n_sinks=n_sinks,
        held=0.75 * bool(n_sinks),
        random=0.125 * bool(n_sinks),
        median_norm=median,
        largest_norm=largest,
        threshold=threshold,
        gamma=gamma,
        gamma_kept=kept,
    )


def found() -> Mask:
    """Block 1 of two: the first token and one type are sinks, dimension 2 stands out on the others."""
    about = About(
        data="made",
        data_digest="1" * 64,
        stack="model",
        layers=(1,),
        dims=("2",),
        n_texts=20,
        n_tokens=320,
        max_length=16,
    )
    return Mask(
        provenance=Provenance("mini", "0" * 64), about=about,
        dimensions=(
            MaskOutlier(dim=3, times=300.0, times_kept=1.5, sink_share=0.999, every_token=False),
            MaskOutlier(dim=2, times=9.0, times_kept=8.0, sink_share=0.2, every_token=True),
        ),
        blocks=(sinks(0, 0, 3.5, 6.0, 35.0, 0.5, 0.5), sinks(1, 41, 4.0, 900.0, 40.0, 0.1, 1.2)),
        tokens=(SinkToken(text=4, position=0, token="w1", first=1, last=1, n_blocks=1, peak=1, times=225.0),),
        layer=1, path="blocks.1",
        factor=10.0, dim_factor=5.0, share=0.5, threshold=40.0, positions=(0, 3), token_ids=(7,), words=("w2",),
        judged=MaskValidation(20, 320, 40, 0.975, 0.004, 20, 1, 0.2),
        centre=np.array([0.0, 0.5, 30.0, -1.0], dtype=np.float32), scale=np.array([1.0, 2.0, 4.0, 0.5], dtype=np.float32),
        notes=("a note",),
    )  # fmt: skip
