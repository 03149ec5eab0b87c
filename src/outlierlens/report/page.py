"""`render(data)`: the page as one string; a pure function of the results.

The page loads nothing. Its policy allows exactly its own two scripts, by hash, and no connection at all. Text from a
model or a data set reaches it through Jinja's escaping or inside JSON with every "<", ">" and "&" written as an escape.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from outlierlens.ablation.fill import SIGNS, Continuation, Filled, FillKind
from outlierlens.ablation.study import dims_of
from outlierlens.analyses.ablate import Ablation
from outlierlens.detection.observe.view import SIZES_NOTE
from outlierlens.experiments.sweep.result import Sweep
from outlierlens.report.advice import advice
from outlierlens.report.figures import Stream, all_sections, damage_charts, streams
from outlierlens.report.result import ReportData, joined_notes
from outlierlens.report.words import finding, random_control, sets_of, significant_dims, verdict
from outlierlens.results.document import FORMAT_VERSION
from outlierlens.statistics import SIGNIFICANT
from outlierlens.view.charts.base import COLOURED, CONFIG, DARK, LIGHT, Chart, Spec, css, visible
from outlierlens.view.render import escaped_json, policy
from outlierlens.view.section import TASKS, Rows, Section, cell_text, factor, few, notes_of, number

AXIS = 64  # pixels below the marks of a chart: labels, title, and the space above them
PANEL_TITLE = 36
LINE = 18  # of a legend or a title
CONTROLS = (
    "{kinds} Changes in {unit}; ×: the chosen set’s over theirs, a dash where theirs is not positive. Rank p = (1 + number of "
    "random sets that change as much or more) / (1 + number of random sets); other controls have none, because the chosen set "
    "was not drawn like them."
)
GLYPHS = "◆●▲■✚▼"  # the shapes of the charts, in the order of `palette.SHAPES`


def render(data: ReportData) -> str:
    """The report as one self-contained HTML document."""
    found, drawn = streams(data), damage_charts(data)
    charts = [chart for stream in found for chart in stream.charts] + list(drawn)
    sections = all_sections(data)
    charts += [chart for section in sections for chart in section.charts]
    sentences = finding(data)
    return document(
        "report.html.jinja",
        charts,
        data=data,
        version=data.provenance.version,
        headline=sentences[0],
        sentences=sentences[1:],
        tiles=tiles(data),
        verdicts=verdicts(data, sections),
        advice=advice(data),
        streams=found,
        damages=[_damage_view(damage, chart) for damage, chart in zip(data.damages, drawn, strict=True)],
        sections=sections,
        colour=_colours(found),
        sizes_note=SIZES_NOTE,
        format_version=FORMAT_VERSION,
        notes=_notes(data),
    )


def chart_page(chart: Chart) -> str:
    """One chart as a self-contained HTML document, under the same policy as a report."""
    return document("chart.html.jinja", [chart], chart=chart)


def document(template: str, charts: Sequence[Chart], **values: Any) -> str:
    """A self-contained page: what the template makes of `values`, and all that draws `charts` in it."""
    runtime, script = _file("vega.js"), _file("script.js")
    page = (
        _environment()
        .get_template(template)
        .render(
            policy=policy(runtime, script),
            style=Markup(_style()),
            runtime=Markup(runtime),
            script=Markup(script),
            specs=Markup(escaped_json({chart.name: chart.spec for chart in charts})),
            **values,
        )
    )
    # A lone surrogate, which a JSON file can hold, is no character and cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class Tile:
    """One large number of the page's head and what it is."""

    value: str
    text: str
    alarming: bool = False


def tiles(data: ReportData) -> tuple[Tile, ...]:
    """The few numbers a reader takes home."""
    n = sum(len({o.dim for o in stack.outliers}) for stack in data.scan.stacks)
    widths = " + ".join(f"{stack.hidden_size:,}" for stack in data.scan.stacks)
    made = [Tile(str(n), f"outlier dimension{'' if n == 1 else 's'} of {widths}")]
    if data.damages:
        damage = data.damages[0]
        control, loss = random_control(damage), damage.chosen.perplexity is not None
        size = len(damage.dims)
        show = (lambda v: f"×{factor(v)}") if loss else (lambda v: f"{v:.2g}")
        unit = "perplexity" if loss else damage.about.of_change
        chosen = show(damage.chosen.change.value)
        made.append(Tile(chosen, f"{unit} with {few(damage.dims)} off", verdict(damage) == "damaging"))
        if control is not None:
            n = control.n
            rank = "" if control.p is None else f" (rank p = {control.p:.2g})"
            beside = f"median of {n} random {sets_of(size)}{rank}"
            made.append(Tile(show(control.median), beside))
    elif data.sweeps:
        made += _sweep_tiles(data.sweeps[0])
    return tuple(made)


@dataclass(frozen=True)
class Verdict:
    """One question, its answer in a word, and the section that shows why."""

    question: str
    word: str
    anchor: str
    alarming: bool = False


def verdicts(data: ReportData, sections: Sequence[Section]) -> tuple[Verdict, ...]:
    """Have, hurt, act: whether the weights hold outlier dimensions, whether losing them hurts, and what is to be done."""
    have = "yes" if significant_dims(data) else "no"
    hurt, where = "not measured", "do"
    if data.damages:
        hurt, where = {"damaging": "yes", "harmless": "no"}.get(verdict(data.damages[0]), "unclear"), "damage-1"
    elif data.sweeps:
        alarming = any(tile.alarming for tile in _sweep_tiles(data.sweeps[0]))
        hurt, where = "yes" if alarming else "unclear", next(one.name for one in sections if "sweep" in one.name)
    topics = [step.topic for step in advice(data) if step.topic not in ("nothing", "trust")]
    act = ", ".join(dict.fromkeys(topics)) or ("measure first" if hurt == "not measured" else "nothing")
    return (
        Verdict("Does it have outlier dimensions?", have, "dimensions"),
        Verdict("Does it hurt to lose them?", hurt, where, hurt == "yes"),
        Verdict("What needs care?", act, "do"),
    )


def _sweep_tiles(sweep: Sweep) -> list[Tile]:
    singles = [e for e in sweep.singles() if math.isfinite(e.change)]
    if not singles:
        return []
    show = (lambda v: f"×{factor(v)}") if sweep.task in TASKS else (lambda v: f"{v:.2g}")
    unit = "perplexity" if sweep.task in TASKS else sweep.of_change
    first = max(singles, key=lambda e: e.change)
    middle = float(np.median([e.change for e in singles]))
    return [
        Tile(show(first.change), f"{unit} with {first.label} off, the most of all", first.low > 2 * sweep.tolerance),
        Tile(
            show(middle),
            f"{unit}, median of {len(singles):,} single {'dimensions' if len(sweep.windows_swept) == 1 else 'effects'}",
        ),
        Tile(f"×{number(sweep.cost.saving)}", "fewer evaluations than all texts for each")
        if sweep.method == "adaptive"
        else Tile(f"{sweep.n_texts:,}", "texts for each"),
    ]


@dataclass(frozen=True)
class DamageView:
    """One damage as the template shows it."""

    damage: Ablation
    chart: Chart
    fills: tuple[tuple[Filled, str, str], ...]
    counts: tuple[dict[FillKind, int], ...]
    continuations: tuple[tuple[Continuation, str, str], ...]
    tables: tuple[Rows, ...]
    control_kinds: str

    @property
    def changed(self) -> bool:
        """Whether some model does not repeat a word that it is shown."""
        return any(of["changed"] for of in self.counts)


def _damage_view(damage: Ablation, chart: Chart) -> DamageView:
    fills = tuple(one.fill for one in damage.replies if one.fill)
    counts = tuple({kind: sum(b.kind == kind for b in f.blanks) for kind in SIGNS} for f in fills)
    continued = tuple(
        Continuation(one.off, dims_of(one.plan), one.begins, one.continued or "")
        for one in damage.replies
        if one.begins
    )
    kinds, tables = damage.control_kinds, []
    for table in damage.shown():
        if table.title == "Controls":
            note = CONTROLS.format(unit=damage.about.unit, kinds=kinds)
            tables.append(replace(table, title="Against controls of the same size", note=note))
        elif table.title == "Further numbers":
            tables.append(table)
    return DamageView(damage, chart, _titled(fills), counts, _titled(continued), tuple(tables), kinds)


def _titled(said: tuple[Any, ...]) -> tuple[tuple[Any, str, str], ...]:
    """Each passage with its title and what was off: "Intact", "Random", …, the last one "Chosen"."""
    named = []
    for number_, passage in enumerate(said):
        off = f"{few(passage.dims)} off" if passage.dims else "nothing switched off"
        title = "Intact" if not passage.dims else "Random" if number_ < len(said) - 1 else "Chosen"
        named.append((passage, title, off))
    return tuple(named)


def _colours(found: tuple[Stream, ...]) -> Any:
    """Class name and glyph of a named dimension of a stream, as its charts draw it."""
    places = {(stream.name, dim): i for stream in found for i, dim in enumerate(stream.named[:COLOURED])}

    def colour(stream: str, dim: int) -> tuple[str, str]:
        place = places.get((stream, dim))
        return ("dim-none", "•") if place is None else (f"dim-{place + 1}", GLYPHS[place])

    return colour


def _notes(data: ReportData) -> list[str]:
    parts: list[tuple[str, ...]] = [data.notes, data.scan.notes, *(stack.notes for stack in data.scan.stacks)]
    if data.observation is not None:
        parts += [data.observation.notes, *(stack.notes for stack in data.observation.stacks)]
    parts += [damage.notes for damage in data.damages]
    parts += [sweep.notes for sweep in data.sweeps]
    parts += [track.notes for track in data.tracks]
    parts += [notes_of(data.luo), notes_of(data.puccetti), joined_notes(data.joined)]
    return list(dict.fromkeys(note for part in parts for note in part))


@functools.cache
def _file(name: str) -> str:
    return resources.files("outlierlens.report").joinpath(name).read_text("utf-8").replace("\r\n", "\n")


def _style() -> str:
    """The style sheet after the colours: light, dark on a screen whose reader prefers it, always light on paper."""
    dark = f":root{{color-scheme:dark;{css(DARK)}}}"
    colours = f":root{{{css(LIGHT)}}}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"
    return colours + _file("style.css")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("outlierlens", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "factor": factor,
        "visible": visible,
        "cell": _cell,
        "few": few,
        "moment": _moment,
        "room": room,
    }
    environment.globals |= {"SIGNS": SIGNS, "SIGNIFICANT": SIGNIFICANT}
    return environment


def room(chart: Chart) -> int:
    """About the height of a chart on the page in pixels, kept free until it is drawn, so that nothing moves."""
    return _height(chart.spec)


def _height(spec: Spec) -> int:
    parts: list[Spec] = next((spec[key] for key in ("vconcat", "hconcat", "concat") if key in spec), [])
    if parts:
        heights = [_height(part) for part in parts]
        return sum(heights) if "vconcat" in spec else max(heights)
    inner = spec.get("spec", spec)
    height = inner.get("height", 300)
    layers = [inner, *inner.get("layer", [])]
    lines = max(map(_legend_lines, layers))
    titles = [layer.get("encoding", {}).get("x", {}).get("title") for layer in layers]
    lines += max(len(title) - 1 if isinstance(title, list) else 0 for title in titles)
    marks = [layer["mark"] for layer in layers if isinstance(layer.get("mark"), dict)]
    above = max(
        (-mark["y"] for mark in marks if isinstance(mark.get("y"), int | float)), default=0
    )  # names over columns
    title = PANEL_TITLE if inner.get("title") else 0
    return round((height if isinstance(height, int | float) else 300) + AXIS + LINE * lines + max(0, above - 9) + title)


def _legend_lines(spec: Spec) -> int:
    """Lines of the longest legend of a layer."""
    lines = [0]
    for channel in spec.get("encoding", {}).values():
        if isinstance(channel, dict) and channel.get("legend"):
            names = channel.get("scale", {}).get("domain", [])
            columns = channel["legend"].get("columns", CONFIG["legend"]["columns"])
            lines.append(math.ceil(len(names) / columns) if isinstance(names, list) and columns else 1)
    return max(lines)


def _moment(created: str) -> str:
    """A time stamp for reading: "2026-11-22 06:40 UTC"; as it is where it is none."""
    try:
        return datetime.fromisoformat(created).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return visible(created)


def _cell(value: Any) -> str:
    return visible(cell_text(value))
