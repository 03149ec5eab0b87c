"""How every kind of result is shown: on a terminal, in a notebook, as a table, as charts, and on a report's page.

Results are those of `every_result`, made by hand: nothing here depends on a processor.
`_drawn` alone knows which function draws what of a kind.
"""

import functools
import inspect
import io
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import every_result
import runs
import synthetic_report
import synthetic_tasks
from gold.files import brief, once, text_of
from outlierlens import __version__
from outlierlens.analyses.track import track
from outlierlens.cli.experiment import print_sections
from outlierlens.detection.observed import QUANTILES
from outlierlens.results.finding import Finding
from outlierlens.view import charts
from outlierlens.view.charts.base import CONFIG, DARK, LIGHT, SHAPES, Chart


def views(made: dict[str, Any], folder: Path) -> dict[str, Any]:
    """{kind: {"terminal", "notebook": lines, "table": columns and rows, "section": lines, where it joins a report}}.

    Of findings on the engine one of each form: plain tables, a table laid out over two fields, a picture of its own.
    """
    forms = ("Ablation", "Geometry", "Comparison")
    return {
        kind: _lasting(_shown(kind, found), folder)
        for kind, found in made.items()
        if kind in forms or not isinstance(found, Finding)
    }


def _shown(kind: str, found: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"terminal": _terminal(kind, found)}
    if hasattr(found, "_repr_html_"):
        shown["notebook"] = text_lines(found._repr_html_())
    if hasattr(found, "to_pandas"):
        frame = found.to_pandas()
        rows = [[_value(cell) for cell in row] for row in frame.itertuples(index=False)]
        shown["table"] = {"columns": list(frame.columns), "rows": brief(rows)}
    shown["sections"] = [
        {
            "name": one.name,
            "title": one.title,
            "sentences": one.sentences,
            "charts": [chart.name for chart in one.charts],
            "tables": [
                {
                    "title": t.title,
                    "columns": t.columns,
                    "rows": brief([list(map(_value, row)) for row in t.rows]),
                    "note": t.note,
                }
                for t in one.tables
            ],
        }
        for one in found.sections()
    ]
    return shown


def _value(cell: Any) -> Any:
    cell = cell.item() if hasattr(cell, "item") else cell
    return (
        cell
        if isinstance(cell, str | int | float | None)
        else list(map(_value, cell))
        if isinstance(cell, list | tuple)
        else str(cell)
    )


def _terminal(kind: str, found: Any) -> list[str]:
    out = io.StringIO()
    with redirect_stdout(out):
        print_sections(found, verbose=True)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def page(made: dict[str, Any], folder: Path) -> Any:
    """The data of a report that every result joins which can."""
    from outlierlens.report import job
    from outlierlens.report.result import ELSEWHERE

    data = synthetic_report.changed(made["ReportData"], sweeps=(made["Sweep"], synthetic_report.layer_sweep()))
    return job.with_results(
        data,
        {
            folder / kind: every_result.of_model(one, data.provenance.model)
            for kind, one in made.items()
            if kind not in {*ELSEWHERE, "Sweep"}
        },
    )


def pages(made: dict[str, Any], folder: Path) -> dict[str, list[str]]:
    """{"report", "both", "card"}: a page's text by line, without what it or the page before says already."""
    from outlierlens.report import ReportPair, render
    from outlierlens.report.files import card
    from outlierlens.report.page import render_both

    shown = _lasting(
        {
            "report": text_lines(render(page(made, folder))),
            "both": text_lines(render_both(ReportPair(_two(made)))),
            "card": card(made["ReportData"]).splitlines(),
        },
        folder,
    )
    said: set[str] = set()
    return {name: list(_said_once(_short_tables(lines), said)) for name, lines in shown.items()}


def _short_tables(lines: list[str]) -> list[str]:
    """Of each table its head and a row at either end; all rows stand in the gold files of runs and views."""
    short: list[str] = []
    for is_row, several in itertools.groupby(lines, key=lambda line: "|" in line):
        block = list(several)
        short += [*block[:2], f"… {len(block) - 3} rows", block[-1]] if is_row and len(block) > 4 else block
    return short


def _said_once(lines: list[str], said: set[str]) -> Iterator[str]:
    """Headings, and lines that `said` does not hold; those around a section, a picture or a table are one but for titles."""
    titles = sorted({line.lstrip("# ") for line in lines if line.startswith("#")}, key=len, reverse=True)
    for line in lines:
        form = line
        if line.startswith(("[", "This picture", "The numbers")):
            form = functools.reduce(lambda text, title: text.replace(title, "…"), titles, line)
            form = re.sub(r"charts/\S+|[\d,]+", "…", form)
        if line.startswith("#") or form not in said:
            yield line
        said.add(form)


def _two(made: dict[str, Any]) -> tuple[Any, Any]:
    data = made["ReportData"]
    scan = synthetic_report.scan(synthetic_report.stack_scan(needles=(100, 507, 31)), model="tuned")
    damages = (synthetic_report.damage(chosen=2.0, dims=(31, 100, 507)),)
    other = synthetic_report.report_data(scan_result=scan, damages=damages)
    return data, replace(other, provenance=replace(other.provenance, model="tuned"))


def drawn(made: dict[str, Any], folder: Path) -> dict[str, Any]:
    """{name: a chart, with the house's configuration left out}: those of the pages, then every public function of charts."""
    from outlierlens.report.files import charts_of

    found = {f"page {one.name}": one for one in charts_of(page(made, folder))}
    for name in dir(charts):
        function = getattr(charts, name)
        if name in ("Chart", "can_export", "picture"):
            continue
        for call in _calls(name, function, made):
            given = function(*call)
            for number, one in enumerate((given,) if isinstance(given, Chart) else given):
                key = next(
                    key
                    for i in range(9)
                    if (key := f"alone {name}" + (f" {number + i}" if number + i else "")) not in found
                )
                found[key] = one
    house = {"config": CONFIG, "light": LIGHT, "dark": DARK, "shapes": SHAPES}
    told = {key: _lasting(_told(one), folder) for key, one in found.items()}
    kept = _one_of_each_form(found, told)
    return {"the house": _lasting(house, folder)} | {key: told[key] for key in kept}


FEW = 6  # values of a chart that stand one by one; its form is what is held
WORDS = frozenset((
    "data", "datum", "values", "domain", "range", "title", "text", "axis", "legend", "tooltip", "format", "labelExpr", "name",
    "description", "width", "height", "padding", "sort", "scale", "field", "test", "condition",
))  # fmt: skip


def _one_of_each_form(charts: dict[str, Chart], told: dict[str, Any]) -> list[str]:
    """The shortest charts that together have every form of a panel: marks, channels and layers, whatever they show."""
    seen: set[str] = set()
    kept = []
    for key in sorted(charts, key=lambda key: (len(text_of(told[key])), key)):
        new = set(_panels(charts[key].spec)) - seen
        seen |= new
        if new:
            kept.append(key)
    return kept


def _panels(spec: dict[str, Any]) -> Iterator[str]:
    inside = next((spec[key] for key in ("vconcat", "hconcat", "concat", "spec") if key in spec), None)
    if inside is None:
        yield json.dumps(
            {key: _form(one) for key, one in spec.items() if key in ("layer", "mark", "encoding", "facet")}
        )
    for one in inside if isinstance(inside, list) else [inside] if inside else []:
        yield from _panels(one)


def _form(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _form(one) for key, one in sorted(value.items()) if key not in WORDS}
    if isinstance(value, list | tuple):
        return sorted({json.dumps(_form(one)) for one in value})
    return value if isinstance(value, str | bool) else "·"


def _calls(name: str, function: Any, made: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The arguments that a chart is drawn from: results of its kind, parts of them, and what else it needs."""
    dims, kind = (100, 247, 507), next(iter(inspect.signature(function).parameters.values())).annotation
    special: dict[str, list[tuple[Any, ...]]] = {
        "figure2": [(synthetic_tasks.four(),)],
        "weight_maps": [(synthetic_report.stack_scan(n_layers=6, hidden_size=520, bias=True),)],
    }
    parts: dict[str, list[tuple[Any, ...]]] = {
        "StackObservation": [(one, dims) for one in synthetic_report.observation(n_layers=3, hidden_size=520).stacks],
        "Passage": [(made["Observation"].passages[0], dims)],
    }
    named = getattr(kind, "__name__", str(kind))
    yield from special.get(name) or parts.get(named) or ([(made[named],)] if named in made else [])


def _told(chart: Chart) -> dict[str, Any]:
    spec = dict(chart.spec)
    if spec.get("config") == CONFIG:
        spec["config"] = "the house's"
    if spec.get("description") == chart.reading:
        spec["description"] = "the reading"
    rows = [dict(zip(chart.columns, map(_value, row), strict=True)) for row in chart.rows]
    told = {"name": chart.name, "title": chart.title, "reading": chart.reading, "columns": list(chart.columns)}
    return told | {"rows": brief(rows, long=FEW), "total": chart.total, "spec": once(brief(spec, long=FEW))}


class _Text(HTMLParser):
    """What a page says: a line per block, cells of a table apart."""

    BLOCKS = frozenset((
        "p", "div", "section", "h1", "h2", "h3", "h4", "li", "tr", "table", "caption", "details", "summary", "figure",
        "figcaption", "header", "footer", "main", "pre", "ul", "ol", "dl", "dt", "dd", "nav", "article", "thead", "tbody",
        "title", "br",
    ))  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.lines, self._silent = [""], 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in ("script", "style")
        if tag in self.BLOCKS:
            self.lines.append("")
        if tag in ("td", "th"):
            self.lines[-1] += " | "
        if tag in ("h1", "h2", "h3", "h4"):
            self.lines[-1] += "#" * int(tag[1]) + " "
        self.lines[-1] += "".join(f"[{value}] " for name, value in attrs if name in ("aria-label", "alt") and value)

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style")
        if tag in self.BLOCKS:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.lines[-1] += data


def text_lines(html: str) -> list[str]:
    """The text of HTML, a line per block or row."""
    reader = _Text()
    reader.feed(html)
    return [line for text in reader.lines if (line := " ".join(text.split()).removeprefix("| "))]


def _lasting(value: Any, folder: Path) -> Any:
    """A view without the folder that results were made in, and without this version's number."""
    if isinstance(value, dict):
        return {key: _lasting(one, folder) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_lasting(one, folder) for one in value]
    if isinstance(value, str):
        escaped = str(folder).replace("_", r"\_")  # as Markdown has it
        return re.sub(
            rf"\b{re.escape(__version__)}\b", "VERSION", value.replace(str(folder), "FOLDER").replace(escaped, "FOLDER")
        )
    return value


def everything(folder: Path) -> dict[str, Any]:
    """One of every kind of result."""
    made = every_result.made_in(folder)
    stacks = tuple(
        replace(stack, views={name: _with_quantiles(view) for name, view in stack.views.items()})
        for stack in made["ReportData"].observation.stacks
    )
    run = runs.write_run(folder / "needles", (0, 250, 500, 1000, 2000), needles={7: 300, 20: 900})
    tracked = track([run])
    states = np.random.default_rng(0).normal(size=tracked.scale.shape).astype(np.float32)
    whole = replace(tracked, state=states)
    return made | {"Observation": replace(made["ReportData"].observation, stacks=stacks), "Track": whole}


def _with_quantiles(view: Any) -> Any:
    """Statistics made by hand have no quantiles, which `to_pandas` wants."""
    return replace(view, quantiles=view.mean[:, :, None] + np.linspace(-1, 1, len(QUANTILES)))
