"""A made-up observation: random statistics in which no two numbers are equal."""

import numpy as np

from outlierlens.analyses.observe import Observation, observed_rows
from outlierlens.detection.observed import FLAT, QUANTILES, StackObservation, Statistics
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About

VIEWS = ("all", "without_special")


def statistics(layers: int, dims: int, seed: int) -> Statistics:
    """Random statistics in which no two numbers are equal."""
    random = np.random.default_rng(seed)
    shape = (layers, dims)
    values = {name: random.normal(size=shape) for name in FLAT}
    for name in ("abs_max_position", "abs_max_text"):
        values[name] = random.integers(0, 10**6, shape)
    tokens = tuple(tuple(f"{seed}-{row}-{column}" for column in range(dims)) for row in range(layers))
    quantiles = random.normal(size=(*shape, len(QUANTILES)))
    quantiles[0, 0] = np.nan  # a dimension without quantiles
    counts, medians = random.integers(1, 10**9, layers), random.random(layers)
    return Statistics(tokens=counts, abs_max_token=tokens, quantiles=quantiles, median_abs=medians, **values)


def observation(*stacks: tuple[str, int, tuple[int, ...]]) -> Observation:
    """Streams of (name, blocks, dimensions listed)."""
    made = []
    for i, (name, blocks, dims) in enumerate(stacks):
        layers = ("embeddings", *map(str, range(blocks)))
        views = {view: statistics(len(layers), len(dims), 10 * i + k) for k, view in enumerate(VIEWS)}
        made.append(StackObservation(name, layers, 1000, dims, views, (), 1 / 65))
    about = About(data="text", data_digest="0", n_texts=1, n_tokens=2, max_length=128)
    rows = observed_rows(made)
    return Observation(provenance=Provenance("made", "0"), about=about, n_sigma=3.0, stacks=tuple(made), **rows)


TWO = observation(("encoder", 2, (3, 7, 40)), ("decoder", 1, (5, 900)))
