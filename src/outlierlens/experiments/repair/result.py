"""What a repair changed and how it was checked: plain data, without torch.

found.exponent                    # -4: the stream is a 16th of what it was
found.before.largest, found.after.largest
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class Behaviour:
    """A model on the texts of the check.

    Attributes:
        layers: largest |h| after each block. kinds: the largest |x| of each kind of tensor, as `range` has them.
        spikes: the largest ratio, over these linears, of the largest neuron to the median one; 0.0 where there is none.
        finite: share of the logits that are finite in the target format. distance: their mean absolute difference from
            float32, over those that are; NaN where none is.
        named: dimensions that a scan of the weights names, all streams together.
    """

    layers: Annotated[tuple[float, ...], "layer"]
    kinds: dict[str, float]
    spikes: float
    finite: float
    distance: float
    named: tuple[int, ...] = ()

    @property
    def largest(self) -> float:
        """The largest |h| after any block."""
        return max(self.layers)


@dataclass(frozen=True)
class Repaired(Result):
    """A model rewritten by powers of two, or with its streams turned.

    Attributes:
        folder: its name; "" where nothing had to change, or nothing helps.
        fit, margin: what was asked; fit is "float32" where the stream is turned and nothing else.
        rotated: whether streams were turned by an orthogonal matrix; weights are float32 then.
        exponent: of the residual stream's factor, 0 where it stays. channels: that take a factor of their own, by
            kind of pair ("neurons", "values", "keys", "norms").
        epsilons: {config key: (before, after)}. untied: whether the head became a parameter of its own.
        n_changed: parameters, of `n_parameters`.
        exact: whether float32 outputs are equal bit for bit; if not, `reasons`, and `difference` of the largest output.
        inputs: what was read: "texts". n_texts, n_tokens: of the check; `n_random` of these tokens are drawn at random.
        before, after: the measurements.
    """

    provenance: Provenance
    folder: str
    fit: str
    margin: int
    exponent: int
    channels: dict[str, int]
    epsilons: dict[str, tuple[float, float]]
    untied: bool
    n_changed: int
    n_parameters: int
    exact: bool
    reasons: tuple[str, ...]
    difference: float
    n_texts: int
    n_tokens: int
    n_random: int
    before: Behaviour
    after: Behaviour
    rotated: bool = False
    inputs: str = "texts"
    notes: tuple[str, ...] = ()

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per measurement."""
        for name, one in (("before", self.before), ("after", self.after)):
            yield {
                "model": name,
                "largest |h|": one.largest,
                "largest MLP inner": one.kinds.get("MLP inner", math.nan),
                "spike": one.spikes,
                "finite %": 100 * one.finite,
                "from float32": one.distance,
                "dimensions found": len(one.named),
            }
