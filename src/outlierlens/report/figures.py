"""Which charts and rows of numbers a report shows for each residual stream and each damage."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outlierlens.detection.observe.result import Size, StackObservation
from outlierlens.detection.rules import Rule
from outlierlens.detection.scan.result import StackScan, strongest
from outlierlens.experiments import BY_RESULT
from outlierlens.experiments.sweep.view import sections as said
from outlierlens.experiments.track.charts_marks import named_dims
from outlierlens.report.result import ReportData, joined_sections
from outlierlens.report.words import counted
from outlierlens.view import charts
from outlierlens.view.charts.base import Chart
from outlierlens.view.section import Section, numbered


@dataclass(frozen=True)
class Found:
    """One row of the table of named dimensions; None where it was not measured.

    `layers_scale` and `layers_bias` count layers past the threshold; `z_scale` and `z_bias` are the strongest z;
    `abs_max` stands at `layer` and `token`; `share` is the largest share of tokens whose smallest or largest entry it
    is; `inputs` the largest share of inputs with it beyond the threshold in its own vector; `size` how large it is there.
    """

    dim: int
    by: str
    layers_scale: int | None = None
    layers_bias: int | None = None
    z_scale: float | None = None
    z_bias: float | None = None
    p_holm: float | None = None
    abs_max: float | None = None
    layer: str = ""
    token: str = ""
    size: Size | None = None
    share: float | None = None
    inputs: float | None = None


@dataclass(frozen=True)
class Stream:
    """One residual stream of the report: charts of weights, charts of hidden states, and the named dimensions."""

    name: str
    named: tuple[int, ...]
    weights: tuple[Chart, ...]
    states: tuple[Chart, ...]
    rows: tuple[Found, ...]
    sites: tuple[StackScan, ...]

    @property
    def charts(self) -> tuple[Chart, ...]:
        """All charts of the stream."""
        return self.weights + self.states


def streams(data: ReportData) -> tuple[Stream, ...]:
    """Every residual stream with its charts, in the order of the scan."""
    made = []
    for number, (name, _, seen) in enumerate(data.streams()):
        named = data.named(name)
        sites = tuple(stack for stack in data.scan.stacks if stack.stack == name)
        weights = tuple(
            chart
            for i, stack in enumerate(sites)
            for chart in charts.weight_maps(stack, named, _prefix(number) + (f"{i}-" if i else ""))
        )
        rows = tuple(_row(data, name, dim, seen) for dim in named)
        made.append(Stream(name, named, weights, _states(data, name, seen, number), rows, sites))
    return tuple(made)


def _prefix(number: int) -> str:
    return f"{number}-" if number else ""  # a stream's name is the model's to choose, a file's name is not


def _states(data: ReportData, name: str, seen: StackObservation | None, number: int) -> tuple[Chart, ...]:
    named, prefix = data.named(name), _prefix(number)
    passages = [p for p in data.observation.passages if p.stack == name and p.tokens] if data.observation else []
    made = [charts.token_vectors(passages[0], named, prefix=prefix)] if passages else []
    if seen is not None:
        made.append(charts.average_vectors(seen, named, prefix=prefix))
        if data.luo is not None:
            made.append(charts.vector_panels(seen, named, prefix=prefix))
        made.append(charts.extreme_shares(seen, named, prefix=prefix))
        made.append(charts.largest_values(seen, named, prefix=prefix))
        if np.isfinite(seen.gamma()).any():
            made.append(charts.gammas(seen, prefix=prefix))
    return tuple(made)


def damage_charts(data: ReportData) -> tuple[Chart, ...]:
    """One chart an ablation."""
    return tuple(
        replace(one.chart(), name=f"loss-{number}" if number else "loss") for number, one in enumerate(data.damages)
    )


def all_charts(data: ReportData) -> tuple[Chart, ...]:
    """Every chart of the report, in the page's order."""
    drawn = tuple(chart for stream in streams(data) for chart in stream.charts) + damage_charts(data)
    return drawn + tuple(chart for section in all_sections(data) for chart in section.charts)


def all_sections(data: ReportData) -> tuple[Section, ...]:
    """The sections of training runs, of sweeps, of replications, then of results that joined."""
    papers = (one for one in (data.luo, data.puccetti) if one is not None)
    said = (section for one in papers for section in BY_RESULT[type(one).__name__].sections()(one))
    return (*track_sections(data), *sweep_sections(data), *said, *joined_sections(data.joined))


def track_sections(data: ReportData) -> Iterator[Section]:
    """The sections of every tracked run of the report, which name the report's dimensions too."""
    for place, track in enumerate(data.tracks):
        named = tuple(dict.fromkeys([*data.named(track.stack), *named_dims(track)]))
        for section in BY_RESULT["Track"].sections()(track, dims=named):
            several = f": {track.provenance.model}" if len(data.tracks) > 1 else ""
            yield replace(numbered(section, place), title=section.title + several)


def sweep_sections(data: ReportData) -> tuple[Section, ...]:
    """What is said of every sweep, with the report's names in its charts."""
    return tuple(
        numbered(section, place)
        for place, sweep in enumerate(data.sweeps)
        for section in said(sweep, named=data.named(sweep.stack))
    )


def _row(data: ReportData, stream: str, dim: int, seen: StackObservation | None) -> Found:
    by: list[str] = []
    weights: dict[str, Any] = {}
    states: dict[str, Any] = {}
    for stack in (s for s in data.scan.stacks if s.stack == stream):
        outlier = next((o for o in counted(stack, data.scan.rule.name) if o.dim == dim), None)
        if outlier is not None and not weights:
            by.append(data.scan.rule.name)
            weights = {
                "layers_scale": len(outlier.layers_scale),
                "z_scale": max(outlier.z_scale, key=abs),
                "p_holm": outlier.p_holm,
            }
            if outlier.z_bias:
                weights |= {"layers_bias": len(outlier.layers_bias), "z_bias": max(outlier.z_bias, key=abs)}
    sites = [s for s in data.scan.stacks if s.stack == stream and dim in s.map_dims]
    if not weights and sites and data.scan.rule.name == "kovaleva":
        weights, by = _passed_over(sites[0], dim, data.scan.rule)
    if seen is not None:
        by += [o.rule for o in seen.outliers if o.dim == dim]
        if dim in seen.dims:
            column, statistics = seen.dims.index(dim), seen.view("all")
            row = int(np.argmax(statistics.abs_max[:, column]))
            shares = np.maximum(statistics.argmin_share[:, column], statistics.argmax_share[:, column])
            states = {
                "abs_max": float(statistics.abs_max[row, column]),
                "layer": seen.layers[row],
                "token": statistics.abs_max_token[row][column],
                "size": seen.size_of(dim),
                "share": float(shares.max()),
                "inputs": float(statistics.sigma_input_share[:, column].max()),
            }
    otherwise = "strong in the sweep" if dim in data.strongest(stream) else "switched off on request"
    if dim in data.emerged(stream):
        by.append("stood out over training")
    return Found(dim=dim, by=", ".join(dict.fromkeys(by)) or otherwise, **weights, **states)


def _passed_over(stack: StackScan, dim: int, rule: Rule) -> tuple[dict[str, Any], list[str]]:
    """Layers past the threshold and strongest z of a dimension that the rule did not name, and which of the two passed."""
    numbers: dict[str, Any] = {}
    column = stack.map_dims.index(dim)
    for what, vectors in (("scale", stack.z_scale), ("bias", stack.z_bias)):
        if vectors.size:
            z = vectors[:, column]
            numbers |= {
                f"layers_{what}": int(stack.threshold.layers_past(z)),
                f"z_{what}": strongest(tuple(z.tolist())),
            }
    if dim not in stack.one_sided(rule):
        return numbers, []
    return numbers, ["scale alone" if numbers["layers_scale"] > numbers["layers_bias"] else "bias alone"]
