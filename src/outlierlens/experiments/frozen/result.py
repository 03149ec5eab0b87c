"""What linear classifiers on frozen vectors reach, layer by layer, raw and repaired: plain data, without torch.

found.fix("clip").test                     # metric on the test split [layer], layers as in found.layers
found.fix("clip").selected                 # at the layer that the dev split chooses, against raw vectors at theirs
found.fix("clip").best                     # at the layer that is best on the test split itself, as in the paper
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.errors import pick
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.means import interval_text, no_change


@dataclass(frozen=True)
class Chosen:
    """One repair at one layer, against raw vectors at the layer that the same way of choosing gives them.

    Attributes:
        layer: its name. value, low, high: metric on the test split with its 95 % interval.
        change, change_low, change_high: metric of the repair − metric of raw vectors, with its paired 95 % interval; (0, 0)
            where all is predicted alike.
        verdict: "helps" or "hurts" where that interval leaves out 0, "not settled" without one, else "no difference"; "" of
            raw vectors themselves.
    """

    layer: str
    value: float
    low: float
    high: float
    change: float
    change_low: float
    change_high: float
    verdict: str


@dataclass(frozen=True)
class FixScores:
    """Classifiers on one repair.

    Attributes:
        fix: "raw", "clip", "whiten:256".
        invertible: whether no information is lost, in any layer: with a bias, such a repair has the same classifiers as raw
            vectors, and differs by training: how far it got, and which directions it fitted first.
        n_fitted: training vectors that it was fitted on. shrinkage: of whiten [layer].
        train, dev, test: the metric on each split [layer]. loss: mean cross-entropy in the last epoch, in nats [layer].
        low, high: 95 % interval of `test` [layer].
        change, change_low, change_high: `test` minus that of raw vectors in the same layer, paired 95 % interval [layer].
        selected: at the layer with the best `dev`, the honest choice. best: at the layer with the best `test`, the paper's.
    """

    fix: str
    invertible: bool
    n_fitted: int
    shrinkage: Annotated[np.ndarray, "layer, or empty"]
    train: Annotated[np.ndarray, "layer"]
    dev: Annotated[np.ndarray, "layer"]
    test: Annotated[np.ndarray, "layer"]
    loss: Annotated[np.ndarray, "layer"]
    low: Annotated[np.ndarray, "layer"]
    high: Annotated[np.ndarray, "layer"]
    change: Annotated[np.ndarray, "layer"]
    change_low: Annotated[np.ndarray, "layer"]
    change_high: Annotated[np.ndarray, "layer"]
    selected: Chosen
    best: Chosen


@dataclass(frozen=True)
class FrozenScores(Result):
    """Linear classifiers on mean-pooled vectors of a frozen model, by layer and repair (Luo et al. 2021, table 3).

    Attributes:
        labels: names of the classes.
        special: whether special tokens counted in the mean. final_norm: whether the model's final norm was applied.
        max_length: tokens of a text that were read at most. n_cut: texts that have so many, which were cut.
        train, dev, test: where the examples come from, n_train, n_dev, n_test how many; n_train_all and n_test_all there were.
        held_out: whether dev was drawn from the training examples. n_dropped: examples left out as shared between splits.
        n_steps: of Adam, examples of each in `train_batch`.
        bias: whether the classifiers have a constant.
        majority: metric of always saying the commonest training label.
        layers: names: "embeddings", then block numbers.
        clipping: what was asked for. clip_dims: dimensions by layer. clip_source: where they come from.
        fixes: raw vectors first.
        seconds_reading, seconds_training: wall clock.
    """

    provenance: Provenance
    task: str
    metric: str
    labels: tuple[str, ...]
    stack: str
    special: bool
    final_norm: bool
    max_length: int
    n_cut: int
    train: str
    dev: str
    test: str
    n_train: int
    n_dev: int
    n_test: int
    n_train_all: int
    n_test_all: int
    held_out: bool
    n_dropped: int
    epochs: int
    train_batch: int
    lr: float
    n_steps: int
    bias: bool
    majority: float
    layers: Annotated[tuple[str, ...], "layer"]
    clipping: str
    clip_dims: dict[str, tuple[int, ...]]
    clip_source: str
    fixes: tuple[FixScores, ...]
    seconds_reading: float
    seconds_training: float
    notes: tuple[str, ...] = ()

    def fix(self, name: str) -> FixScores:
        """Scores of one repair; raises BadInput with those there are."""
        return pick(self.fixes, f"no fix {name!r} in this result", fix=name)

    def interval(self, low: float, high: float, form: str = "+.3f", times: float = 1) -> str:
        """The interval of a change on the test split in words, its ends multiplied by `times`."""
        return interval_text(times * low, times * high, form, no_change(self.n_test, "examples"))

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per fix and layer."""
        return frozen_rows(self)


def frozen_rows(found: FrozenScores) -> Iterator[dict[str, Any]]:
    """One flat row per fix and layer."""
    columns = ("train", "dev", "test", "loss", "low", "high", "change", "change_low", "change_high")
    for one in found.fixes:
        for place, layer in enumerate(found.layers):
            yield {"fix": one.fix, "layer": layer, **{name: float(getattr(one, name)[place]) for name in columns}}
