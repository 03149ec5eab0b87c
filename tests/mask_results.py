"""A mask of two blocks, by hand."""

import numpy as np

from outlierlens.experiments.mask.result import Judged, LayerSinks, Mask, StandsOut
from outlierlens.results.document import Provenance


def found() -> Mask:
    """Block 1 of two: the first token and one type are sinks, dimension 2 stands out on the others."""
    return Mask(
        provenance=Provenance("mini", "0" * 64),
        data="made",
        data_digest="1" * 64,
        stack="model",
        layer="1",
        max_length=16,
        factor=10.0,
        dim_factor=5.0,
        share=0.5,
        n_fit=20,
        n_fit_tokens=320,
        threshold=40.0,
        positions=(0, 3),
        token_ids=(7,),
        words=("w2",),
        judged=Judged(20, 320, 40, 0.975, 0.004, 20, 1, 0.2),
        dims=(StandsOut(3, 300.0, 1.5, 0.999, False), StandsOut(2, 9.0, 8.0, 0.2, True)),
        centre=np.array([0.0, 0.5, 30.0, -1.0], dtype=np.float32),
        scale=np.array([1.0, 2.0, 4.0, 0.5], dtype=np.float32),
        layers=(LayerSinks("0", 0, 3.5, 6.0, 35.0, 0.5, 0.5), LayerSinks("1", 41, 4.0, 900.0, 40.0, 0.1, 1.2)),
        notes=("a note",),
    )
