"""The rules that call a dimension an outlier from its activations, on arrays [layer, dim].

    activation_outliers(measured, ActivationRules())         # tuple of ActivationOutlier, rule by rule, strongest first

`luo`       the smallest or largest entry of most token vectors (Luo et al. 2021, section 2).
`massive`   |h| > 100 and > 1000 × the layer's median |h| (Sun et al. 2024, "Massive Activations", section 2).
`llm.int8`  |h| >= 6 in >= 6 % of the positions of >= 25 % of the layers (Dettmers et al. 2022, section 4).
"""

from dataclasses import dataclass, fields

import numpy as np

from outlierlens.detection.observe.result import ActivationOutlier
from outlierlens.errors import BadInput

SIZES = ("massive_size", "massive_ratio", "int8_size")  # the others are shares of layers or tokens


@dataclass(frozen=True)
class ActivationRules:
    """Thresholds; shares and fractions in [0, 1].

    Luo et al. give no cut-off. Theirs are pooled over all layers (96.60 % in BERT, 82.56 % at the lowest), yet the
    outliers of their BERT-large each hold for a range of layers only. So a dimension counts here when it is the
    smallest entry, or the largest, of at least `luo_share` of a layer's token vectors (above one half, no other
    dimension can be) in at least `luo_layer_fraction` of the blocks. The embeddings are excluded, as in the paper.

    LLM.int8's magnitudes are those of what attention and MLP read, so in pre-norm models those of the reading norms'
    outputs (on the bare stream of a small Llama, every dimension passes); elsewhere those of the blocks' outputs.
    """

    luo_share: float = 0.5
    luo_layer_fraction: float = 0.25
    massive_size: float = 100.0
    massive_ratio: float = 1000.0
    int8_size: float = 6.0
    int8_position_share: float = 0.06
    int8_layer_fraction: float = 0.25

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            size = f.name in SIZES
            if not value > 0 or (not size and value > 1):
                top = "positive" if size else "in (0, 1]"
                raise BadInput(f"{f.name} is {value}; it must be {top}")


@dataclass(frozen=True)
class ActivationMeasures:
    """What the rules rest on: `layers` names the rows, "embeddings" first; arrays [layer, dim], `median_abs` [layer].

    `large_share` is the share of token vectors with |h| >= `int8_size` in what the layer reads (pre-norm) or puts out.
    """

    layers: tuple[str, ...]
    argmin_share: np.ndarray
    argmax_share: np.ndarray
    abs_max: np.ndarray
    large_share: np.ndarray
    median_abs: np.ndarray


def activation_outliers(measured: ActivationMeasures, rules: ActivationRules) -> tuple[ActivationOutlier, ...]:
    """Every dimension that a rule finds, with the layers where it holds and its strength in each of them."""
    blocks = np.array([layer != "embeddings" for layer in measured.layers])
    extreme = np.maximum(measured.argmin_share, measured.argmax_share)
    found = []
    for name, strength, holds, fraction in (
        ("luo", extreme, (extreme >= rules.luo_share) & blocks[:, None], rules.luo_layer_fraction),
        ("massive", measured.abs_max, _massive(measured, rules), 0.0),
        (
            "llm.int8",
            measured.large_share,
            (measured.large_share >= rules.int8_position_share) & blocks[:, None],
            rules.int8_layer_fraction,
        ),
    ):
        count = holds.sum(0)
        dims = np.flatnonzero((count > 0) & (count >= fraction * blocks.sum()))
        best = np.where(holds, strength, 0).max(0)
        for dim in dims[np.argsort(-best[dims], kind="stable")].tolist():
            rows = np.flatnonzero(holds[:, dim]).tolist()
            layers, values = tuple(measured.layers[row] for row in rows), tuple(strength[rows, dim].tolist())
            found.append(ActivationOutlier(name, dim, layers, values))
    return tuple(found)


def massive_neurons(measured: ActivationMeasures, rules: ActivationRules) -> tuple[ActivationOutlier, ...]:
    """Neurons of an MLP axis that the rule "massive" finds, each in its own layer, strongest first.

    The other rules ask for the same position in many layers, which says nothing of neurons.
    """
    holds = _massive(measured, rules)
    places = sorted(zip(*np.nonzero(holds), strict=True), key=lambda place: -measured.abs_max[place])
    return tuple(
        ActivationOutlier("massive", int(dim), (measured.layers[row],), (float(measured.abs_max[row, dim]),))
        for row, dim in places
    )


def _massive(measured: ActivationMeasures, rules: ActivationRules) -> np.ndarray:
    relative = rules.massive_ratio * measured.median_abs[:, None]
    return (measured.abs_max > rules.massive_size) & (measured.abs_max > relative)
