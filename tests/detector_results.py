"""A made-up result of `detectors`: four dimensions, two blocks; 2 is found by most, and one super weight with its tests."""

import numpy as np

from outlierlens.detection.observe.result import Size
from outlierlens.experiments.detectors.result import (
    MODEL,
    RANDOM,
    ROTATED,
    Definition,
    Detectors,
    Found,
    LayerValues,
    Spikes,
    SuperWeight,
    SuperWeights,
    Trial,
)
from outlierlens.results.document import Provenance

LAYERS = ("embeddings", "0", "1")


def super_weights() -> SuperWeights:
    """One weight in layer 1, whose loss doubles the task's and whose activation brings half of that back."""
    spikes = Spikes(np.array([3.0, 90.0]), (5, 7), (0, 1), np.array([2.0, 800.0]), (1, 2), (0, 1))
    after = Spikes(np.array([3.0, 90.0]), (5, 7), (0, 1), np.array([2.0, 4.0]), (1, 3), (0, 2))
    trials = (
        Trial("intact", "intact", 1.0, 3.0, 0.0, 0.0, 0.0),
        Trial("zeroed", "zeroed", 0.0, 6.0, 3.0, 2.5, 3.4),
        Trial("restored", "restored", float("nan"), 4.5, 1.5, 1.2, 1.8),
        Trial("× 2", "scaled", 2.0, 3.2, 0.2, 0.1, 0.3),
        Trial("random 0", "random", float("nan"), 3.0, 0.001, -0.01, 0.01),
        Trial("largest", "largest", float("nan"), 3.1, 0.1, 0.0, 0.2),
    )
    weight = SuperWeight(1, 2, 7, 9.5, 1, 90.0, 800.0, 1, "the", 0.98, 4.0)
    return SuperWeights(
        "Hot is the sun.", 50.0, (weight,), "no layer reads and writes above 50", spikes, after, "causal loss",
        "nats per token", 8, 16, trials,
    )  # fmt: skip


def detectors() -> Detectors:
    """Three definitions, of which the one on weights has no rotated basis."""
    table = (
        Definition("kovaleva", "Kovaleva et al. 2021", "weights", "norm", "|z|", "half", "paper", "", {"n_sigma": 3.0}),
        Definition("massive", "Sun et al. 2024", "activations", "blocks", "large", "any", "paper", "", {"massive_size": 100.0}),
        Definition("timkey", "Timkey 2021", "activations", "blocks", "part", "any", "paper", "the share",
                   {"timkey_share": 0.05}),
    )  # fmt: skip
    found = (
        Found("kovaleva", MODEL, (2,), {"0": (2,), "1": (2,)}, {"0": (4.0,), "1": (5.0,)}),
        Found("kovaleva", RANDOM, (), {}, {}),
        Found("kovaleva", ROTATED, why_not="rests on weights"),
        Found("massive", MODEL, (2, 3), {"1": (2, 3)}, {"1": (900.0, 150.0)}),
        Found("massive", RANDOM, (), {}, {}),
        Found("massive", ROTATED, (), {}, {}),
        Found("timkey", MODEL, (1, 2), {"0": (2,), "1": (2, 1)}, {"0": (0.4,), "1": (0.5, 0.1)}),
        Found("timkey", RANDOM, (0,), {"1": (0,)}, {"1": (0.06,)}),
        Found("timkey", ROTATED, (), {}, {}),
    )
    numbers = np.array([0.1, 0.5, 0.6])
    values = tuple(
        LayerValues(condition, LAYERS, numbers, 1 + size * numbers, 3 + size * numbers, 4 + size * numbers, numbers,
                    np.array([np.nan, 3.0, 40.0]), np.array([np.nan, 4.0, 90.0]), numbers)
        for condition, size in ((MODEL, 10.0), (RANDOM, 0.1), (ROTATED, 0.1))
    )  # fmt: skip
    return Detectors(
        provenance=Provenance("m", "f", command="outlierlens detectors m --data d.txt", seed=0), data="d.txt", data_digest="0",
        n_texts=20, n_tokens=300, n_special=40, max_length=128, special=True, sentence="last", stack="model", hidden_size=4,
        layers=LAYERS, definitions=table, found=found, values=values,
        sizes={2: Size("0", 900.0, 1200.0, 0.001, 0.01), 1: Size("1", 30.0, 40.0, 0.999, 1.0)},
        super_weights=super_weights(), notes=("a note",),
    )  # fmt: skip
