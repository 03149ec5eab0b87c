"""How much of a task single dimensions carry: plain data, without torch.

found.layers[-1].best.value            # dev metric of the dimension that is best on the training examples
found.layers[-1].value[557]            # of any dimension
found.full, found.majority             # the model's own metric, and that of always saying the commonest label
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class OneDim:
    """The classifier (or line) of one dimension.

    Attributes:
        value, low, high: the task's metric on the dev set, with its 95 % bootstrap interval over examples.
        train: share of training examples that it gets right (of their weight, where classes count alike); of a regression
            the variance explained.
        rank: by `value` among all dimensions of the layer, 1 is best.
        variance_ratio: variance over the layer's mean variance.
        z: largest |z| of the dimension's scale in the weights, over layers.
        rule: in words: "contradiction ≤ −0.31 < entailment".
    """

    dim: int
    value: float
    low: float
    high: float
    train: float
    rank: int
    variance_ratio: float
    z: float
    rule: str


@dataclass(frozen=True)
class ShiftedMeanProbe:
    """Rudman et al.'s (2023) classifier of the dimension with the largest variance.

    Attributes:
        mean, shift: values over mean + shift are called `above`; the best of 201 shifts in [−50, 50] on training examples.
    """

    dim: int
    mean: float
    shift: float
    above: str
    train: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LayerOneDim:
    """All one-dimension classifiers of one layer.

    Attributes:
        layer: its number as text, or "embeddings".
        value, low, high: the task's metric on the dev set [dim] with its 95 % interval; NaN where none was drawn.
        train: see `OneDim` [dim]. variance: of the training sentence vectors [dim].
        variance_outliers: dimensions with at least five times the mean variance, largest first (Rudman et al. 2023).
        best: the dimension that is best on the training examples; so its dev value is no maximum over noise.
        named: the dimensions that were asked for or that the weights name, in their order.
        shifted_mean: the paper's own classifier; None for a task without exactly two classes.
        rho_variance, rho_z: Spearman correlation over dimensions between the metric and the variance, and the metric and
            |z| of the scale (largest over layers).
    """

    layer: str
    value: Annotated[np.ndarray, "dim"]
    low: Annotated[np.ndarray, "dim"]
    high: Annotated[np.ndarray, "dim"]
    train: Annotated[np.ndarray, "dim"]
    variance: Annotated[np.ndarray, "dim"]
    variance_outliers: tuple[int, ...]
    best: OneDim
    named: tuple[OneDim, ...]
    shifted_mean: ShiftedMeanProbe | None
    rho_variance: float
    rho_z: float


@dataclass(frozen=True)
class OneDimension(Result):
    """How much of a task each single dimension of a fine-tuned model carries.

    Attributes:
        pooling: which vector stands for an example: "first", "last" (valid token) or "mean".
        by_class: whether classifiers were fitted with all classes counting alike.
        full, full_low, full_high: the whole model's metric on the dev set with its 95 % interval.
        majority: metric of always saying the commonest training label; 0 for a regression.
        weights_name: the dimensions that the scan of the weights finds.
    """

    provenance: Provenance
    task: str
    metric: str
    stack: str
    pooling: str
    by_class: bool
    train: str
    dev: str
    n_train: int
    n_dev: int
    full: float
    full_low: float
    full_high: float
    majority: float
    weights_name: tuple[int, ...]
    layers: tuple[LayerOneDim, ...]
    notes: tuple[str, ...] = ()

    def records(self) -> list[dict[str, Any]]:
        """One row per layer and dimension."""
        return [
            {
                "layer": layer.layer,
                "dim": dim,
                self.metric: float(layer.value[dim]),
                "low": float(layer.low[dim]),
                "high": float(layer.high[dim]),
                "train": float(layer.train[dim]),
                "variance": float(layer.variance[dim]),
            }
            for layer in self.layers
            for dim in range(len(layer.value))
        ]

    def shown(self) -> Iterator[dict[str, Any]]:
        """One row per layer and dimension that is best or named."""
        for layer in self.layers:
            for dim in dict.fromkeys((layer.best, *layer.named)):
                why = [word for word, holds in (
                    ("best on train", dim == layer.best),
                    ("weights", dim.dim in self.weights_name),
                    ("variance", dim.dim in layer.variance_outliers),
                ) if holds]  # fmt: skip
                yield {"layer": layer.layer, **vars(dim), "why": ", ".join(why) or "asked for"}
