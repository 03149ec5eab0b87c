"""A made-up result of `layer-story`, and those it is made of."""

from dataclasses import replace

import numpy as np

import synthetic_report as synthetic
from outlierlens.experiments.attention.result import Attention, KeyCorrelation
from outlierlens.experiments.frequency.result import Correlations, Frequency, View
from outlierlens.experiments.layer_story.result import LayerStory, layer_story
from outlierlens.experiments.sweep.result import Sweep

LAYERS, WIDTH = 6, 8
NAMED = (2, 5)
R = np.random.default_rng(3).uniform(-0.6, 0.6, size=(LAYERS + 1, WIDTH))  # embeddings first


def correlations(value: np.ndarray, error: float = 0.02) -> Correlations:
    return Correlations(value, np.full(value.shape, error), np.zeros(value.shape))


def frequency(of: Sweep, value: np.ndarray = R) -> Frequency:
    view = View(
        100,
        10,
        0,
        0.0,
        0.0,
        correlations(value),
        correlations(value[::-1].copy()),
        correlations(value),
        value,
        value,
        100,
    )
    return Frequency(
        of.provenance, "text", "", "counts", 0, 10, of.stack, False, 128, WIDTH,
        ("embeddings", *map(str, range(LAYERS))), 5, 100, 1.96, NAMED, "the weights",
        {"without_special": view, "all": view}, correlations(value), 10, 1.96, (), (),
    )  # fmt: skip


def attention(of: Sweep, value: np.ndarray = R[1:]) -> Attention:
    named = value[:, list(NAMED)]
    nothing = np.zeros((LAYERS, 2, len(NAMED)))
    one = KeyCorrelation(
        "seen", "without_special", 50, value, value, named - 0.1, named + 0.1, nothing, nothing, nothing,
        np.zeros((LAYERS, 2, 5)), np.zeros((LAYERS, 2)), named, named, *[np.zeros(2)] * 5, named, named[None],
    )  # fmt: skip
    return Attention(
        of.provenance, "text", "", of.stack, tuple(map(str, range(LAYERS))), 2, WIDTH, 5, 100, 10, 128, False, NAMED,
        "the weights", "zeroed_weights", 0.3, 100, (), (), False, np.zeros((4, LAYERS)), (), (one,),
    )  # fmt: skip


def singles(dims: tuple[int, ...]) -> Sweep:
    """Single dimensions in single layers."""
    made = synthetic.layer_sweep(dims, n_layers=LAYERS)
    return replace(made, width=WIDTH, found=NAMED, effects=tuple(one for one in made.effects if len(one.dims) == 1))


def story() -> LayerStory:
    """A small one, for tests of result files."""
    made = singles(NAMED)
    return layer_story(made, frequency=frequency(made), n_draws=20)
