"""What a mask is: the tokens that carry sinks, the dimensions that stand out, and how well the rule does on other texts.

found.positions, found.token_ids      # the tokens to leave out
found.dims                            # dimensions that stand out on the other tokens
found.judged.recall                   # of the rule, on texts that did not make it
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class LayerSinks:
    """The sinks of one block's output, over the texts that made the mask.

    Attributes:
        n_sinks: tokens whose norm is above `threshold`. median_norm, largest_norm: of all tokens' norms.
        gamma, gamma_kept: ‖mean‖ / ‖standard deviation‖ of all tokens, and of those that are no sinks.
    """

    layer: str
    n_sinks: int
    median_norm: float
    largest_norm: float
    threshold: float
    gamma: float
    gamma_kept: float


@dataclass(frozen=True)
class StandsOut:
    """A dimension that stands out in the masked block.

    Attributes:
        times, times_kept: its root mean square over that of the median dimension, over all tokens and without sinks.
        sink_share: the share of its sum of squares that sink tokens hold, in [0, 1].
        every_token: whether it stands out on tokens that are no sinks too; else it does through sinks alone.
    """

    dim: int
    times: float
    times_kept: float
    sink_share: float
    every_token: bool


@dataclass(frozen=True)
class Judged:
    """What the rule does on texts that did not make it.

    Attributes:
        n_texts, n_tokens, n_sinks: of those texts.
        recall: share of their sinks that positions and types leave out, nan without any. false_share: of their other tokens.
        n_sink_texts, n_missed_texts: texts with a sink, and those of them in which one is missed.
        missed_at_most: of texts with a sink, at most this share has one that is missed (95 % bound, Clopper and Pearson 1934).
    """

    n_texts: int
    n_tokens: int
    n_sinks: int
    recall: float
    false_share: float
    n_sink_texts: int
    n_missed_texts: int
    missed_at_most: float


@dataclass(frozen=True)
class Mask(Result):
    """Which tokens and dimensions of one block's output to leave out.

    Attributes:
        layer: the block. n_fit: texts that made the mask; n_fit_tokens: their tokens.
        threshold: a token is a sink where the norm of its hidden state is larger.
        positions: places in a text, from 0, whose tokens are left out. token_ids, words: types of tokens that are.
        judged: what positions and types do on other texts.
        dims: that stand out. centre, scale: mean and standard deviation [dim] of tokens that are no sinks.
        layers: the sinks of every block.
    """

    provenance: Provenance
    data: str
    data_digest: str
    stack: str
    layer: str
    max_length: int
    factor: float
    dim_factor: float
    share: float
    n_fit: int
    n_fit_tokens: int
    threshold: float
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]
    words: tuple[str, ...]
    judged: Judged
    dims: tuple[StandsOut, ...]
    centre: Annotated[np.ndarray, "dim"]
    scale: Annotated[np.ndarray, "dim"]
    layers: tuple[LayerSinks, ...]
    notes: tuple[str, ...] = ()

    @property
    def here(self) -> LayerSinks:
        """The sinks of the masked block."""
        return next(one for one in self.layers if one.layer == self.layer)

    @property
    def masked_dims(self) -> tuple[int, ...]:
        """Dimensions that stand out on tokens that are no sinks, ascending."""
        return tuple(sorted(one.dim for one in self.dims if one.every_token))

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per block, with whether it is the masked one."""
        for one in self.layers:
            yield {"layer": one.layer, "masked": one.layer == self.layer} | {
                name: getattr(one, name)
                for name in ("n_sinks", "median_norm", "largest_norm", "threshold", "gamma", "gamma_kept")
            }
