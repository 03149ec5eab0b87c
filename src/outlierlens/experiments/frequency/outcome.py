"""From what the pass gathered to the result: correlations of both views, over types, and outliers against all others.

found = outcome(gathered, asked)
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.experiments.frequency.correlations import (
    adjusted,
    contrast,
    of_types,
    partial,
    pearson,
    pearson_signed,
    random_dims,
    rank_p_of,
    row,
    spearman,
    spread,
)
from outlierlens.experiments.frequency.result import (
    BLOCKS,
    MEASURES,
    VIEWS,
    Cloud,
    Contrast,
    Correlations,
    Frequency,
    View,
)
from outlierlens.experiments.frequency.sums import Moments
from outlierlens.results.document import Provenance
from outlierlens.statistics.means import critical

if TYPE_CHECKING:
    from outlierlens.experiments.frequency.measure import Pass

BOXES = (26, 20)  # of a cloud: by frequency, by size
CLOUDS = 6


@dataclass(frozen=True)
class Asked:
    """What was measured, for the result."""

    provenance: Provenance
    texts: Texts
    counts: TokenCounts
    dims: tuple[int, ...]
    dims_source: str
    stack: str
    final_norm: bool
    max_length: int
    layers: tuple[str, ...]
    n_random: int
    seed: int
    notes: tuple[str, ...]


@dataclass
class _Layered:
    """Numbers of a view that are filled layer by layer [layer, dim]; `sides` by measure: [layer, 2, draw]."""

    value: dict[str, np.ndarray]
    error: dict[str, np.ndarray]
    signed: np.ndarray
    sides: dict[str, list[np.ndarray]]


def outcome(gathered: "Pass", asked: Asked) -> Frequency:
    """The result."""
    sums, layers = gathered.sums, asked.layers
    width = sums.width
    n_draws = sums.n_draws - 1
    df = max(1, min(n_draws, int(gathered.texts[0] or gathered.texts[1])) - 1)
    ranked = _spearman(gathered, width)
    views = {name: _view(gathered, asked, name, ranked[place], df) for place, name in enumerate(VIEWS)}
    types, clouds_of = _types(gathered, len(layers), width)
    far = critical(df)
    contrasts: list[Contrast] = []
    if asked.dims and len(asked.dims) < width:
        contrasts = _contrasts({name: one[1] for name, one in views.items()}, ranked, types, asked, far)
    found = Frequency(
        provenance=asked.provenance,
        data=asked.texts.source,
        data_digest=asked.texts.digest,
        counts=asked.counts.source,
        counts_texts=asked.counts.n_texts,
        counts_tokens=asked.counts.n_tokens,
        stack=asked.stack,
        final_norm=asked.final_norm,
        max_length=asked.max_length,
        hidden_size=width,
        layers=layers,
        n_texts=int(gathered.texts[1]),
        n_bootstrap=n_draws,
        reach=far,
        dims=asked.dims,
        dims_source=asked.dims_source,
        views={name: one[0] for name, one in views.items()},
        types=types,
        n_types=len(clouds_of),
        types_reach=critical(max(1, len(clouds_of) - 2)),
        contrasts=tuple(contrasts),
        clouds=(),
        paper_compat=asked.n_random > 0,
        random_dims=_random(asked, width),
        notes=(*asked.notes, *asked.counts.notes, *_notes(gathered, asked, len(clouds_of))),
    )
    return _with_clouds(found, gathered, clouds_of)


def _view(gathered: "Pass", asked: Asked, name: str, ranked: np.ndarray, df: int) -> tuple[View, _Layered]:
    sums = gathered.sums
    shape = (len(asked.layers), sums.width)
    found = _Layered(
        {measure: np.full(shape, np.nan) for measure in MEASURES},
        {measure: np.full(shape, np.nan) for measure in MEASURES},
        np.full(shape, np.nan),
        {measure: [] for measure in MEASURES},
    )
    for layer in range(len(asked.layers)):
        moments = sums.of(layer, name)
        found.signed[layer] = pearson_signed(moments)
        for measure, draws in _draws(moments).items():
            found.value[measure][layer], found.error[measure][layer] = draws[0], spread(draws)
            if asked.dims and len(asked.dims) < sums.width:
                found.sides[measure].append(contrast(draws, asked.dims))
    groups = slice(0, 1) if name == "without_special" else slice(0, 2)
    n, unknown, shared = gathered.n[groups].sum(0).tolist()
    occurred = gathered.occurred[groups].any(0)
    part = gathered.sample.part(name)
    correlations = {
        measure: Correlations(
            found.value[measure], found.error[measure], adjusted(found.value[measure], found.error[measure], df)
        )
        for measure in MEASURES
    }
    view = View(
        n_tokens=n,
        n_types=int(occurred.sum()),
        unknown_types=int((occurred & (gathered.vocabulary.count == 0)).sum()),
        unknown=unknown / n if n else float("nan"),
        shared=shared / n if n else float("nan"),
        signed=found.signed,
        spearman=ranked,
        n_sample=int(part.sum()),
        **correlations,
    )
    return view, found


def _draws(moments: Moments) -> dict[str, np.ndarray]:
    log = pearson(moments, "log")
    return {"raw": pearson(moments, "raw"), "log": log, "partial": partial(moments, log)}


def _spearman(gathered: "Pass", width: int) -> np.ndarray:
    """Rank correlations of both views [view, layer, dim]."""
    sample = gathered.sample
    used = sample.part("all")
    parts = tuple(sample.part(name)[used] for name in VIEWS)
    found = [spearman(values[used], sample.count[used], parts) for values in sample.values]
    return np.array(found).reshape(len(sample.values), len(VIEWS), width).swapaxes(0, 1)


def _types(gathered: "Pass", n_layers: int, width: int) -> tuple[Correlations, np.ndarray]:
    """Correlations over types, and the types' ids."""
    ids = gathered.types.ids
    value, error = np.full((n_layers, width), np.nan), np.full((n_layers, width), np.nan)
    count = gathered.vocabulary.count[ids]
    for layer in range(n_layers):
        value[layer], error[layer] = of_types(gathered.types.means(layer), count)
    return Correlations(value, error, adjusted(value, error, max(1, len(ids) - 2))), ids


def _contrasts(
    views: dict[str, _Layered], ranked: np.ndarray, types: Correlations, asked: Asked, far: float
) -> list[Contrast]:
    """Every view, measure and layer, and all blocks together."""
    width = types.value.shape[1]
    sets = random_dims(width, len(asked.dims), asked.seed)
    blocks = [place for place, layer in enumerate(asked.layers) if layer != "embeddings"]
    found = []
    for number, (name, layered) in enumerate(views.items()):
        values = {**layered.value, "spearman": ranked[number]}
        sides = {**layered.sides, "spearman": [contrast(one[None], asked.dims) for one in ranked[number]]}
        if name == VIEWS[0]:
            values["types"], sides["types"] = types.value, [contrast(one[None], asked.dims) for one in types.value]
        for measure, value in values.items():
            sizes = np.abs(value)
            for place, layer in enumerate(asked.layers):
                p = rank_p_of(sizes[place], asked.dims, sets)
                found.append(row((name, measure, layer), sides[measure][place], p, far))
            if blocks:
                p = rank_p_of(sizes[blocks].mean(0), asked.dims, sets)
                together = np.mean([sides[measure][place] for place in blocks], axis=0)
                found.append(row((name, measure, BLOCKS), together, p, far))
    return found


def _random(asked: Asked, width: int) -> tuple[int, ...]:
    """Random dimensions, none of them named: the control of the paper's figures."""
    free = np.setdiff1d(np.arange(width), np.array(asked.dims, dtype=int))
    drawn = np.random.default_rng([asked.seed, 59]).permutation(free)[: asked.n_random]
    return tuple(sorted(drawn.tolist()))


def _with_clouds(found: Frequency, gathered: "Pass", ids: np.ndarray) -> Frequency:
    from dataclasses import replace

    if len(ids) < 4:
        return found
    sizes = np.nan_to_num(np.abs(found.views["without_special"].log.value), nan=-1.0)
    top = int(np.unravel_index(int(sizes.argmax()), sizes.shape)[1])
    clouds = []
    for dim in dict.fromkeys((*found.dims[: CLOUDS - 1], top)):
        layer = found.strongest(dim)
        place = found.place(layer)
        clouds.append(cloud(dim, layer, gathered.vocabulary.count[ids], gathered.types.means(place)[:, dim],
                            float(found.types.value[place, dim])))  # fmt: skip
    return replace(found, clouds=tuple(clouds))


def cloud(dim: int, layer: str, count: np.ndarray, size: np.ndarray, value: float) -> Cloud:
    """Types counted in boxes of log10(1 + `count`) [type] and `size` [type]."""
    x = np.log10(1 + count)
    n, x_edges, y_edges = np.histogram2d(x, size, bins=BOXES)
    column = np.clip(np.searchsorted(x_edges, x, side="right") - 1, 0, BOXES[0] - 1)
    total = np.bincount(column, minlength=BOXES[0])
    with np.errstate(invalid="ignore"):
        mean = np.where(total > 0, np.bincount(column, size, minlength=BOXES[0]) / np.maximum(total, 1), np.nan)
    return Cloud(dim, layer, x_edges, y_edges, n.astype(np.int64), mean, value)


def _notes(gathered: "Pass", asked: Asked, n_types: int) -> tuple[str, ...]:
    notes = []
    if not asked.dims:
        notes.append("the weights name no outliers, so nothing is held against other dimensions; name some with --dims")
    if len(asked.dims) >= gathered.sums.width:
        notes.append("all dimensions are named, so there are no others to hold them against")
    if not gathered.texts[0]:
        notes.append("no text holds a token that is not special, so there is nothing without special tokens")
    if n_types < gathered.types.n_seen:
        notes.append(
            f"correlations over types rest on {n_types:,} of the {gathered.types.n_seen:,} that occur, drawn by the seed"
        )
    n, unknown, _ = gathered.n[0].tolist()
    if n and unknown:
        notes.append(
            f"{unknown / n:.2%} of the tokens (special ones not counted) have count 0 in {asked.counts.source}; they are kept, "
            f"with frequency 0 and log(1 + 0) = 0"
        )
    return tuple(notes)
