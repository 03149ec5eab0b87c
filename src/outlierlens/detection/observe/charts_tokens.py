"""The token vectors of one input, outliers marked, after Kovaleva et al.'s figures 1 and 3.

token_vectors(passage, named)                # of an observed text
token_panel(track)                           # of a text at the end of a training
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.detection.observe.result import Passage
from outlierlens.view.charts.base import (
    Chart,
    drawable,
    place,
    visible,
)
from outlierlens.view.charts.token_lines import MAX_TOKENS, Words, token_lines


def token_vectors(passage: Passage, named: Sequence[int], *, layer: str | None = None, prefix: str = "") -> Chart:
    """Hidden values of each token by dimension at one layer (the middle one, unless given)."""
    row = len(passage.layers) // 2 if layer is None else passage.layers.index(layer)
    tokens = [visible(token) for token in passage.tokens[:MAX_TOKENS]]
    where = place(passage.layers[row])
    words = Words(
        f"{prefix}token-vectors",
        f"Token vectors of one input after {where}",
        f"one of {len(tokens)} tokens of one input after {where}",
    )
    return token_lines(drawable(passage.states[row, : len(tokens)]), np.array(passage.dims), tokens, named, words)
