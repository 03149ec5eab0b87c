"""From running statistics to a `StackObservation`: plain arrays, both views, and what the rules find.

summarise(stack, {EMBEDDINGS: stats, 0: stats, …}, large_shares, token_text, options)
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.detection.activation_rules import Measured, activation_outliers
from outlierlens.detection.histogram import QUANTILE_ERROR
from outlierlens.detection.observe.result import QUANTILES, StackObservation, Statistics
from outlierlens.detection.running_statistics import GroupStats, InputCounts, LayerStats
from outlierlens.errors import BadInput
from outlierlens.models.hooks import layer_name

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.detection.observe.measure import ObserveOptions

VIEWS = ("all", "without_special")
TokenText = Callable[[list[int]], tuple[str, ...]]


def summarise(
    stack: BoundStack,
    layers: Mapping[int, LayerStats],
    large_shares: "Mapping[int, Tensor]",
    token_text: TokenText,
    options: "ObserveOptions",
) -> StackObservation:
    """Both views of one stream and its outliers, judged on all tokens and all dimensions."""
    if len(layers) != stack.n_layers + 1:
        raise BadInput(f"stream {stack.name}: only {len(layers)} of {stack.n_layers + 1} layers ran on these texts")
    numbers = sorted(layers)
    names = tuple(layer_name(layer) for layer in numbers)
    columns = {view: every_statistic(layers, view) for view in VIEWS}
    every = columns["all"]
    outliers = activation_outliers(rule_inputs(layers, every, large_shares), options.rules)
    hidden_size = every["mean"].shape[1]
    dims = _dims(every, tuple(outlier.dim for outlier in outliers), options.table_cells // len(names))
    notes = list(stack.stack.notes)
    kept = layers[numbers[0]].ordinary.histogram or layers[numbers[0]].special.histogram
    if kept is not None and kept.columns is not None:
        notes.append(
            f"quantiles are kept for {len(kept.columns)} of {hidden_size} dimensions in each layer, those with the largest "
            f"|h| when memory was set aside (limit {options.histogram_bytes:,} bytes): raise histogram_bytes for all"
        )
    if len(dims) < hidden_size:
        notes.append(
            f"{len(dims)} of {hidden_size} dimensions are listed: every outlier, then those with the largest |h| against "
            "their layer's median |h|; the rules saw all"
        )
    return StackObservation(
        stack=stack.name,
        layers=names,
        hidden_size=hidden_size,
        dims=tuple(dims.tolist()),
        views={view: _statistics(values, dims, token_text) for view, values in columns.items()},
        outliers=outliers,
        quantile_error=QUANTILE_ERROR,
        notes=tuple(notes),
    )


def every_statistic(layers: Mapping[int, LayerStats], view: str) -> dict[str, np.ndarray]:
    """Every statistic of "all" or "without_special" tokens by name, [layer] or [layer, dim], layers ascending."""
    return _stacked([_layer(*layers[layer].view(view)) for layer in sorted(layers)])


def rule_inputs(
    layers: Mapping[int, LayerStats], every: Mapping[str, np.ndarray], large_shares: "Mapping[int, Tensor]"
) -> Measured:
    """What `activation_rules` rest on, of the statistics `every` of `layers`; `large_shares` [dim] by layer."""
    numbers = sorted(layers)
    large = np.zeros_like(every["argmin_share"])
    for row, layer in enumerate(numbers):
        if layer in large_shares:
            large[row] = large_shares[layer].cpu().numpy()
    return Measured(
        layers=tuple(layer_name(layer) for layer in numbers),
        argmin_share=every["argmin_share"],
        argmax_share=every["argmax_share"],
        abs_max=every["abs_max"],
        large_share=large,
        median_abs=every["median_abs"],
    )


def _layer(group: GroupStats, inputs: InputCounts) -> dict[str, Any]:
    """Every statistic of one layer as numpy [dim], or a number; NaN where there is no token."""
    n, nan = group.count, np.full(group.dim, math.nan)
    values: dict[str, Any] = {"tokens": n}
    moments, extremes = group.moments, group.extremes
    for name in ("std", "skewness", "kurtosis"):
        values[name] = getattr(moments, name)().cpu().numpy() if n else nan
    values["mean"] = moments.mean.cpu().numpy() if n else nan
    values["min"], values["max"] = ((e.double().cpu().numpy() if n else nan) for e in (extremes.low, extremes.high))
    values["abs_max"] = extremes.top.double().cpu().numpy() if n else nan
    key = extremes.key.cpu().numpy()
    values["abs_max_position"] = key & 0xFFFFFFFF if n else np.full(group.dim, -1)
    values["abs_max_text"] = key >> 32 if n else np.full(group.dim, -1)
    values["token"] = extremes.token.cpu().numpy()
    shares = {"argmin_share": group.argmin, "argmax_share": group.argmax, "sigma_token_share": group.sigma}
    for name, count in shares.items():
        values[name] = count.cpu().numpy() / n if n else nan
    values["sigma_input_share"] = inputs.sigma.cpu().numpy() / inputs.inputs if inputs.inputs else nan
    values["quantiles"] = np.full((group.dim, len(QUANTILES)), math.nan)
    values["median_abs"] = math.nan
    if (histogram := group.histogram) is not None:
        kept = slice(None) if histogram.columns is None else histogram.columns.cpu().numpy()
        found = histogram.quantiles(QUANTILES).cpu().numpy()
        # A bin's centre may lie outside of what was seen.
        values["quantiles"][kept] = np.clip(found, values["min"][kept, None], values["max"][kept, None])
        values["median_abs"] = histogram.median_magnitude()
    return values


def _stacked(layers: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.stack([np.asarray(layer[name]) for layer in layers]) for name in layers[0]}


def _dims(values: dict[str, np.ndarray], outliers: tuple[int, ...], limit: int) -> np.ndarray:
    """The dimensions to list, ascending: all, or every outlier and the most extreme."""
    size = values["abs_max"] / np.maximum(values["median_abs"], np.finfo(np.float64).tiny)[:, None]
    size = size.max(0)
    size[list(outliers)] = math.inf
    limit = max(limit, len(set(outliers)), 1)
    return np.sort(np.argsort(-size, kind="stable")[:limit])


def _statistics(values: dict[str, np.ndarray], dims: np.ndarray, token_text: TokenText) -> Statistics:
    plain = {name: array if array.ndim == 1 else array[:, dims] for name, array in values.items()}
    tokens = tuple(token_text(row.tolist()) for row in plain.pop("token"))
    return Statistics(abs_max_token=tokens, **plain)
