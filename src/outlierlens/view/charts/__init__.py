"""Charts of results: each function takes a result dataclass and returns a `Chart`, a Vega-Lite specification with words.

Findings of `outlierlens.analyses` draw themselves: `found.chart()`.

    from outlierlens import charts
    charts.weight_maps(scan.stacks[0])[0]        # shows itself in a notebook
    charts.picture(chart, "svg")                 # bytes of a file; needs the extra `charts`

weight_maps      layers × dimensions of the weights, outliers named
token_vectors    hidden values of one input's tokens
average_vectors  mean of each layer
largest_values   largest |h| by layer, with its token
gammas           mean against spread of the states, by layer
extreme_shares   share of tokens whose smallest / largest entry a dimension is
sweep_effects    every dimension switched off in turn: change by dimension, with intervals
sweep_ranked     the same from the largest down; sweep_first_order beside the gradient's estimate
sweep_map        layers × dimensions damage map; sweep_windows its named dimensions and sets as lines
sweep_nulls      sets of a sweep among their control sets
figure2          tasks with one dimension off at a time, a panel per task
outliers_against_random   several models and tasks, their outliers off, beside random sets
survival         z before against z after fine-tuning
one_dimension    a task's metric from each dimension alone
detectors        every published definition side by side; super_weights where single weights spike, and what they are for
frozen           a task's metric from linear classifiers on frozen vectors, by layer, raw and repaired
geometry         anisotropy, self-similarity and what carries the cosine; each alone: anisotropy, self_similarity, cosine_shares
frequency        how closely dimensions follow token frequency; each alone: frequency_layers, frequency_types
frequency_geometry   norms and cosines of frequent and rare tokens, raw, clipped and with dimensions off
attention        attention received and outliers: attention_correlation, attention_sinks, heads and an example's maps
probe            a token's position: its panels probe_accuracy, probe_contributions and probe_heat in one picture
vector_panels    mean of each layer over all dimensions, a panel per layer
origin           where dimensions come from: origin_rows, origin_histograms and origin_ranks in one picture
sts_layers       sentence similarity by layer, a panel per task, a line a fix; wic_layers words in context
emergence        outliers over training: loss_panel, sigma_panel, norm_panel, token_panel and state_panel in one picture
"""

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from outlierlens.errors import showing
from outlierlens.experiments import EXPERIMENTS
from outlierlens.view.charts.base import Chart, can_export, picture

__all__ = ["Chart", "can_export", "picture"]


def _homes() -> list[str]:
    """The modules of charts of every experiment: `charts.py` and `charts_….py` in its folder."""
    homes = dict.fromkeys(f"outlierlens.{row.home}" for row in EXPERIMENTS if not row.derived)
    return [
        f"{home}.{found.name}"
        for home in homes
        for found in iter_modules(import_module(home).__path__)
        if found.name.partition("_")[0] == "charts"
    ]


_OWN = {found.name for found in iter_modules(__path__)}  # asked for before they are imported


def _of_result(draw: Callable[..., Any]) -> Callable[..., Any]:
    """The function; a result whose values do not fit together is a BadInput."""

    @functools.wraps(draw)
    def drawn(found: Any, *given: Any, **named: Any) -> Any:
        with showing(found, *given, *named):
            return draw(found, *given, **named)

    return drawn


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and name not in _OWN:
        for home in _homes():
            found = vars(import_module(home)).get(name)
            if inspect.isfunction(found) and found.__module__ == home:
                return _of_result(found)
    raise AttributeError(f"module {__name__!r} has no chart {name!r}")


def __dir__() -> list[str]:
    drawn = {
        name
        for home in _homes()
        for name, one in vars(import_module(home)).items()
        if inspect.isfunction(one)
        and one.__module__ == home
        and not name.startswith("_")
        and "Chart" in str(one.__annotations__.get("return"))
    }
    return sorted({*__all__, *drawn})
