"""`render(data)`: the report as one self-contained page, a pure function of the results; and that of two reports."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens import __version__
from outlierlens.analyses.ablate import Ablation
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.report.both import ReportPair
from outlierlens.report.result import ReportData
from outlierlens.results.document import FORMAT_VERSION
from outlierlens.view.page import document
from outlierlens.view.section import TASKS, Section, factor, few

HERE = Path(__file__).parent


def render(data: ReportData) -> str:
    """The report as one self-contained HTML document."""
    sections = data.page_sections()
    off = [section for section in sections for damage in data.damages[:1] if section.name == damage.name]
    return _page(
        sections, data.finding(), data.remarks, kicker="report", version=data.provenance.version, tiles=tiles(data),
        verdicts=verdicts(data), advice=data.advice(), lead=next((chart for one in off for chart in one.charts), None),
        reports=[("", data, "")], command=data.provenance.command, how=data,
    )  # fmt: skip


def render_both(both: ReportPair, command: str = "") -> str:
    """Two reports in one self-contained HTML document; `command` makes it again."""
    sides = list(zip(both.names, both.sides, both.pages, strict=True))
    return _page(
        both.page_sections(), both.finding(), both.remarks, kicker="two models", version=__version__,
        tiles=[replace(tile, text=f"{name}: {tile.text}") for name, data, _ in sides for tile in tiles(data)],
        verdicts=(), advice=both.advice(), lead=None, reports=sides, command=command, how=None,
    )  # fmt: skip


def _page(sections: Sequence[Section], sentences: Sequence[str], remarks: Sequence[str], **values: Any) -> str:
    return document(
        HERE,
        "report.html.jinja",
        [chart for section in sections for chart in section.charts],
        headline=sentences[0],
        sentences=sentences[1:],
        sections=sections,
        notes=remarks,
        format_version=FORMAT_VERSION,
        **values,
    )


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
        control, unit = damage.family("random"), measured(damage).removeprefix("the ")
        change = cost(damage, damage.chosen.change.value)
        made.append(Tile(change, f"{unit} with {few(damage.dims)} ablated", damage.judged == "damaging"))
        if control is not None:
            rank = "" if control.p is None else f" (rank p = {control.p:.2g})"
            sets = {1: "single dimensions", 2: "pairs", 3: "triples"}
            size = len(damage.dims)
            beside = f"median of {control.n} random {sets.get(size, f'sets of {size}')}{rank}"
            made.append(Tile(cost(damage, control.median), beside))
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


def verdicts(data: ReportData) -> tuple[Verdict, ...]:
    """Have, hurt, act: whether the weights hold outlier dimensions, whether losing them hurts, and what is to be done."""
    hurt, where = "not measured", "do"
    if data.damages:
        hurt = {"damaging": "yes", "harmless": "no"}.get(data.damages[0].judged, "unclear")
        where = data.damages[0].name
    elif data.sweeps:
        hurt, where = (
            "yes" if any(tile.alarming for tile in _sweep_tiles(data.sweeps[0])) else "unclear",
            data.sweeps[0].name,
        )
    topics = [step.topic for step in data.advice() if step.topic not in ("nothing", "trust")]
    act = ", ".join(dict.fromkeys(topics)) or ("measure first" if hurt == "not measured" else "nothing")
    return (
        Verdict("Does it have outlier dimensions?", "yes" if data.scan.found() else "no", data.scan.name),
        Verdict("Does it hurt to lose them?", hurt, where, hurt == "yes"),
        Verdict("What needs care?", act, "do"),
    )


def _sweep_tiles(sweep: Sweep) -> Iterator[Tile]:
    """The largest effect of a single dimension, and the median."""
    singles = [e for e in sweep.singles() if e.finite]
    if not singles:
        return
    known = sweep.about.task in TASKS
    unit = "perplexity" if known else sweep.about.of_change
    first, middle = max(singles, key=lambda e: e.change.value), float(np.median([e.change.value for e in singles]))
    shown = [f"×{factor(one)}" if known else f"{one:.2g}" for one in (first.change.value, middle)]
    yield Tile(shown[0], f"{unit} with {first.label} ablated, the most of all", first.low > 2 * sweep.tolerance)
    yield Tile(shown[1], f"{unit}, median of {len(singles):,} single {sweep.about.kind}s")


def measured(damage: Ablation) -> str:
    """What a change is of: "perplexity", "cosine distance"."""
    return TASKS.get(damage.about.task, damage.about.of_change)


def cost(damage: Ablation, change: float) -> str:
    """A change for reading: "×4,450" of a perplexity, else "0.42"."""
    return f"×{factor(change)}" if damage.about.task in TASKS else f"{change:.3g}"
