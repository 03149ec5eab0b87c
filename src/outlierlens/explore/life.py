"""A dimension's life on one text, in the intact model: its value by layer and token, and what adds up to it.

life(comparison, dim)
"""

import numpy as np

from outlierlens.analyses.trace_account import account
from outlierlens.architectures import BoundStack
from outlierlens.errors import BadInput
from outlierlens.explore.language import LENGTH, Comparison
from outlierlens.explore.result import KINDS, Life
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.passes import TextReading


def life(comparison: Comparison, dim: int) -> Life:
    """The account of a dimension; each token of the text is a group of its own."""
    import torch

    stack: BoundStack = comparison.ablation.stack
    reading = TextReading(comparison.loaded, LENGTH)
    (batch,) = reading.batches([comparison.text], batch_size=1)
    tokens = reading.words(reading.sides(batch)[stack.name][0][0].tolist())
    try:
        found = account(
            comparison.loaded, stack, dim, reading, [batch], lambda one: torch.eye(one.valid.shape[1])[:, None]
        )
    except BadInput as error:
        return Life(missing=str(error))
    layers = (EMBEDDINGS, *range(stack.n_layers))
    at = int(np.abs(found.values).max(0).argmax())
    added = np.zeros((len(layers), len(KINDS)))
    for entry in found.entries:
        if entry.kind in KINDS:
            added[entry.layer - EMBEDDINGS, KINDS.index(entry.kind)] += entry.values[at]
    return Life(dim, tuple(map(layer_name, layers)), tokens, found.values, at, added)
