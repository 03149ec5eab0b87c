"""A fingerprint and a verification that found something, made of a tiny model without torch."""

from typing import Any

import numpy as np

from memory_checkpoint import Memory
from outlierlens.analyses.fingerprint import FingerprintOptions, fingerprint_checkpoint
from outlierlens.analyses.fingerprint_verify import verify_checkpoint

CONFIG = {"model_type": "bert", "num_hidden_layers": 1}


def model() -> Memory:
    """One BERT block, four wide."""
    random = np.random.default_rng(0)
    block = "encoder.layer.0"
    shapes: dict[str, tuple[int, ...]] = {f"{block}.output.dense.weight": (4, 6), f"{block}.output.dense.bias": (4,)}
    for site in (f"{block}.attention.output", f"{block}.output", "embeddings"):
        shapes |= {f"{site}.LayerNorm.weight": (4,), f"{site}.LayerNorm.bias": (4,)}
    return Memory({name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}, CONFIG)


def made() -> dict[str, Any]:
    """{kind: one of it}."""
    found = fingerprint_checkpoint(model(), FingerprintOptions(dims=(1,), deep=True))
    other = model().edited("encoder.layer.0.output.LayerNorm.weight", (1,), 4.0)
    return {"Fingerprint": found, "Verification": verify_checkpoint(other, found, deep=True)}
