"""A run's directory: `write(data, directory)` makes it, `rerender(results_json)` makes its page again without torch.

The section on outlier dimensions of a model card: `card(data)`, the report in Markdown.

    text = card(load("runs/mini-bert/results.json"))

Its sentences, advice and sections are those of the page; text of models and files is escaped, so that a name can neither
break a table nor bring a link.
"""

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlierlens import __version__
from outlierlens.errors import BadFile, BadInput, install, markdown, printable, showing
from outlierlens.report.both import ReportPair
from outlierlens.report.page import render, render_both
from outlierlens.report.result import ReportData
from outlierlens.results.document import FORMAT_VERSION, Advice, from_json, load, to_json
from outlierlens.results.safe_files import read_json, refuse_links, write_together
from outlierlens.view.charts.base import Chart, PictureKind, can_export, pictures
from outlierlens.view.render import sections_markdown, table_markdown

NO_PICTURES = f"charts were not drawn as SVG and PNG: vl-convert is not installed; {install('charts')}"
OURS = ("manifest.json", "results.json", "report.html")
CHARTS = "charts"  # the folder of pictures in a report's directory
_OF_A_CHART = re.compile(r"charts/([\w.-]+\.(?:vl\.json|svg|png))")


@dataclass(frozen=True)
class ReportFiles:
    """What `write` made: the run's directory, the page in it, every file, and notes on what was left out."""

    directory: Path
    page: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def write(
    data: ReportData,
    directory: Path | str,
    *,
    overwrite: bool = False,
    also: Iterable[Path] = (),
    more: Mapping[str, str] | None = None,
    section: Path | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> ReportFiles:
    """Write results.json, charts/*.svg, *.png and *.vl.json, report.html and, last of all, manifest.json.

    None takes its name before all are whole. `also` are files that already lie in the directory (rows of a sweep) and
    belong in the manifest, `more` others by name that are written too. The file `section` gets the model card's section.

    Raises:
        BadInput: the directory holds a report already and `overwrite` is off, or is no directory, or its charts lie
            behind a link.
    """
    directory = _free(Path(directory), overwrite)
    text = to_json(data) + "\n"
    data = from_json(text)  # the page shows what the file holds, digit by digit: `rerender` gives the same page
    texts = {**(more or {}), "results.json": text, "report.html": render(data)}
    contents = {name: one.encode("utf-8") for name, one in texts.items()}
    about = vars(data.provenance) | _said(data.finding(), data.advice())
    beside = {section: card(data)} if section else None
    return _stored(directory, contents, charts_of(data), about, also, progress, beside)


def write_both(both: ReportPair, directory: Path | str, *, overwrite: bool = False, command: str = "") -> ReportFiles:
    """Write report.html of two models, its charts, and last of all manifest.json; like `write` otherwise."""
    directory = _free(Path(directory), overwrite)
    keys = ("model", "fingerprint", "command", "created", "version")
    models = [{key: getattr(data.provenance, key) for key in keys} for data in both.sides]
    about = {"command": command, "models": models, "libraries": {}} | _said(both.finding(), both.advice())
    return _stored(directory, {"report.html": render_both(both, command).encode("utf-8")}, charts_of(both), about)


def charts_of(shown: ReportData | ReportPair) -> list[Chart]:
    """Every chart of a page, in its order."""
    return [chart for section in shown.page_sections() for chart in section.charts]


def _said(sentences: Sequence[str], steps: Sequence[Advice]) -> dict[str, Any]:
    keys = ("topic", "text", "because", "commands")
    return {"finding": list(sentences), "advice": [{key: getattr(step, key) for key in keys} for step in steps]}


def _free(directory: Path, overwrite: bool) -> Path:
    if directory.exists() and not directory.is_dir():
        raise BadInput(f"{directory}: is a file; name a directory for the report")
    refuse_links(directory, CHARTS)
    there = [name for name in OURS if (directory / name).exists()]
    if there and not overwrite:
        raise BadInput(f"{directory}: holds {there[0]} already; choose another directory or pass --overwrite")
    return directory


def _stored(
    directory: Path,
    contents: dict[str, bytes],
    charts: Sequence[Chart],
    about: dict[str, Any],
    also: Iterable[Path] = (),
    progress: Callable[[str, int, int], None] = lambda *_: None,
    beside: Mapping[Path, str] | None = None,
) -> ReportFiles:
    drawn, notes = _pictures(charts, progress)
    contents = contents | drawn
    files = {name: _entry(content) for name, content in contents.items()}
    for extra in also:
        files[extra.relative_to(directory).as_posix()] = _entry(extra.read_bytes())
    stale = _stale(directory, files)
    contents["manifest.json"] = _manifest(about, files, notes)
    write_together({**(beside or {}), **{directory / name: content for name, content in contents.items()}})
    for old in stale:
        old.unlink()
    paths = tuple(directory / name for name in ("manifest.json", *files))
    return ReportFiles(directory, directory / "report.html", paths, notes)


def rerender(results: Path | str) -> str:
    """The page of a `results.json`, or of a run's directory that holds one.

    Raises:
        BadFile: missing, malformed, or the result of another command.
    """
    path = Path(results)
    path = path / "results.json" if path.is_dir() else path
    data = load(path)
    if not isinstance(data, ReportData):
        raise BadFile(
            f"{path}: holds a {type(data).__name__}, not a report's results; give the results.json of a report"
        )
    with showing(data):
        return render(data)


def _pictures(
    charts: Sequence[Chart], progress: Callable[[str, int, int], None]
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    kinds: tuple[PictureKind, ...] = ("vl.json", "svg", "png") if can_export() else ("vl.json",)
    drawn: dict[str, bytes] = {}
    for number, chart in enumerate(charts):
        progress("drawing the charts", number, len(charts))
        drawn |= {f"{CHARTS}/{chart.name}.{kind}": content for kind, content in pictures(chart, kinds).items()}
    return drawn, () if can_export() else (NO_PICTURES,)


def _stale(directory: Path, files: Mapping[str, Any]) -> list[Path]:
    """Charts that an earlier report drew here and this one does not: pictures in charts/ that are as its manifest says.

    A manifest is no more than a file that somebody gave; what is not what it describes is left alone.
    """
    try:
        before = read_json(directory / "manifest.json")["files"]
    except (OSError, BadFile, ValueError, KeyError, TypeError):
        return []
    if not isinstance(before, dict):
        return []
    names = [name for name in before if _OF_A_CHART.fullmatch(name) and name not in files]
    paths = {name: directory / name for name in names}
    return [
        path
        for name, path in paths.items()
        if path.is_file() and not path.is_symlink() and _entry(path.read_bytes()) == before[name]
    ]


def _manifest(about: dict[str, Any], files: dict[str, dict[str, Any]], notes: tuple[str, ...]) -> bytes:
    libraries = about["libraries"]
    if can_export():
        libraries |= {"vl-convert-python": importlib.metadata.version("vl-convert-python")}
    document = {"format_version": FORMAT_VERSION, "kind": "Manifest", **about, "rendered_by": __version__}
    document |= {"libraries": libraries, "notes": list(notes), "files": dict(sorted(files.items()))}
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


# --- a model's card --------------------------------------------------------------------------------------------------


HEAD = "## Outlier dimensions"


def card(data: ReportData) -> str:
    """The section "Outlier dimensions" of a model card, as Markdown that ends in a newline."""
    first, *others = data.finding()
    lines = [HEAD, "", f"**{markdown(first)}**", "", *(f"- {markdown(sentence)}" for sentence in others)]
    lines += ["", "### What to do", ""]
    lines += [f"- {markdown(step.text)} *({markdown(step.because)})*" for step in data.advice()]
    lines += ["", sections_markdown(data.page_sections()), "### Provenance", "", *_provenance(data)]
    return "\n".join(lines).rstrip() + "\n"


def refuse_others(path: Path) -> None:
    """Raise BadInput where `path` holds anything but a section of ours: a model's whole card has more than is made here."""
    if not os.path.lexists(path):
        return
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(HEAD)) in (b"", HEAD.encode()):
                return
    raise BadInput(f"{path}: no card's section of outlierlens, so it is not replaced; name another file with --card")


def _provenance(data: ReportData) -> Iterator[str]:
    made, seen = data.provenance, data.observation
    rows = {
        "made by": f"outlierlens {made.version}",
        "model": made.model,
        "seed": "" if made.seed is None else str(made.seed),
        "libraries": ", ".join(f"{name} {version}" for name, version in made.libraries.items()),
        "computed in": made.dtype,
        "date": made.created,
        "data": seen.about.sentence(seen.about.data) if seen else "",
        "SHA-256 of the data": seen.about.data_digest if seen else "",
        "SHA-256 of names, shapes and values read": made.fingerprint,
    }  # fmt: skip
    yield from table_markdown(("", ""), [(name, value) for name, value in rows.items() if value])
    if made.command:
        yield from ("", f"    {printable(made.command)}")  # indented: no backquote in it can end the block
    yield from ("", *(f"- Note: {markdown(note)}" for note in data.remarks))
