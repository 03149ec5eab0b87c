"""What is said of single dimensions as classifiers of a task: `sections(found)`."""

from collections.abc import Iterator

import numpy as np

from outlierlens.experiments.one_dimension.charts import one_dimension
from outlierlens.experiments.one_dimension.result import LayerOneDim, OneDimension
from outlierlens.statistics.means import interval_text
from outlierlens.view.section import Cell, Change, Rows, Section, Span

BEST = 20  # dimensions of a layer that are listed with `verbose`
LAYERS = "Over dimensions: rank correlation with the variance, and with the largest |z| of the scale over layers."
SHIFTED = (
    "The shifted mean of the dimension of largest variance, Rudman et al.'s (2023) classifier, says its class above "
    "mean + shift."
)


def sections(found: OneDimension, *, verbose: bool = False) -> Iterator[Section]:
    """The best and the named dimensions of every layer; with `verbose` the layer's 20 best on the dev examples."""
    tables = [_shown(found), _layers(found)]
    if verbose:
        heads = ("dim", found.metric, "95 %", "on train", "variance")
        tables += [Rows(f"Best on dev, layer {one.layer}", heads, tuple(_best(one))) for one in found.layers]
    chart = one_dimension(found, name="one-dimensions")
    yield Section("one-dimensions", "What one dimension carries", tuple(_sentences(found)), (chart,), tuple(tables))


def _sentences(found: OneDimension) -> Iterator[str]:
    last = found.layers[-1]
    yield (
        f"Dimension {last.best.dim} alone, after layer {last.layer}, reaches {found.metric} {last.best.value:.3f} "
        f"({interval_text(last.best.low, last.best.high, '.3f')}) on {found.task}; the whole model {found.full:.3f} "
        f"({interval_text(found.full_low, found.full_high, '.3f')}), always the commonest label {found.majority:.3f}."
    )
    vector = "mean of all tokens" if found.pooling == "mean" else f"{found.pooling} token"
    yield (
        f"{found.provenance.model}: each dimension of the {vector}, fitted on {found.n_train:,} examples with all "
        f"{'classes' if found.by_class else 'examples'} counting alike, scored on {found.n_dev:,} dev examples."
    )


def _shown(found: OneDimension) -> Rows:
    heads = (
        *("layer", "dim", found.metric, "95 %", "rank", "on train", "× mean variance", "largest |z|"),
        *("why", "rule"),
    )
    rows = tuple(
        (
            row["layer"], row["dim"], row["value"], Span(row["low"], row["high"]), row["rank"], row["train"],
            row["variance_ratio"], row["z"], row["why"], row["rule"],
        )
        for row in found.shown()
    )  # fmt: skip
    return Rows("Best and named dimensions", heads, rows)


def _layers(found: OneDimension) -> Rows:
    probed = any(layer.shifted_mean for layer in found.layers)
    heads = ("layer", "rank correlation with the variance", "with |z|")
    more = ("shifted mean of", "mean", "shift", "says above", found.metric, "95 %") if probed else ()
    rows = tuple(_layer(layer, len(more)) for layer in found.layers)
    return Rows("Layer by layer", heads + more, rows, f"{LAYERS} {SHIFTED}" if probed else LAYERS)


def _layer(layer: LayerOneDim, more: int) -> tuple[Cell, ...]:
    probe = layer.shifted_mean
    cells: tuple[Cell, ...] = (None,) * more
    if probe is not None:
        value = (probe.value, Span(probe.low, probe.high))
        cells = (probe.dim, probe.mean, Change(probe.shift), probe.above, *value)
    return (layer.layer, Change(layer.rho_variance), Change(layer.rho_z), *cells)


def _best(layer: LayerOneDim) -> Iterator[tuple[Cell, ...]]:
    for dim in np.argsort(-layer.value, kind="stable")[:BEST].tolist():
        ends = float(layer.low[dim]), float(layer.high[dim])
        yield dim, float(layer.value[dim]), Span(*ends), float(layer.train[dim]), float(layer.variance[dim])
