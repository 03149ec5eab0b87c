"""A made-up story by layer, and what it is made of."""

from dataclasses import replace

import numpy as np

import attention_results
import frequency_results
import synthetic_report as synthetic
from outlierlens.analyses.attention import Attention, KeyCorrelation
from outlierlens.analyses.frequency import Frequency
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.replicate.puccetti import LayerStory, layer_story
from outlierlens.results.rows import Estimate

LAYERS, WIDTH = 6, 8
NAMED = (2, 5)
R = np.random.default_rng(3).uniform(-0.6, 0.6, size=(LAYERS + 1, WIDTH))  # embeddings first


def frequency(of: Sweep, value: np.ndarray = R) -> Frequency:
    """Raw counts give `value`, log counts the same in the reverse order of layers."""
    made = frequency_results.frequency(value, NAMED, provenance=of.provenance)
    r = np.stack([np.stack([value, value[::-1]] + [value] * 4)] * 2)
    return replace(made, about=replace(made.about, stack=of.about.stack), r=r, error=np.full(r.shape, 0.02))


def attention(of: Sweep, value: np.ndarray = R[1:]) -> Attention:
    rows = tuple(
        KeyCorrelation(
            mean="seen", keys="without_special", layer=str(layer), dim=dim,
            r=Estimate(r[dim], r[dim] - 0.1, r[dim] + 0.1), rank=1, p=0.5, others_5=0.0, others_median=0.0, others_95=0.0,
            off=0.0,
        )
        for layer, r in enumerate(value) for dim in NAMED
    )  # fmt: skip
    made, heads = attention_results.attention(), np.zeros((1, 3, LAYERS, 2))
    return replace(
        made, provenance=of.provenance, correlations=rows, hidden_size=WIDTH, means=("seen",), every_r=np.stack([[value] * 3]),
        control=heads,
        about=replace(made.about, stack=of.about.stack, layers=tuple(range(LAYERS)), dims=tuple(map(str, NAMED))),
        heads_r=np.zeros((1, 3, LAYERS, 2, len(NAMED))), heads=np.zeros((4, 7, LAYERS, 2)),
    )  # fmt: skip


def singles(dims: tuple[int, ...]) -> Sweep:
    """Single dimensions in single layers."""
    made = synthetic.layer_sweep(dims, n_layers=LAYERS)
    return replace(made, width=WIDTH, found=NAMED, effects=tuple(one for one in made.effects if len(one.dims) == 1))


def story() -> LayerStory:
    """A small one, for tests of result files."""
    made = singles(NAMED)
    return layer_story(made, frequency=frequency(made))
