"""A run's directory: `write(data, directory)` makes it, `rerender(results_json)` makes its page again without torch."""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlierlens._version import __version__
from outlierlens.charts import can_export
from outlierlens.charts.export import PictureKind, pictures
from outlierlens.errors import BadFile, BadInput
from outlierlens.report.advice import advice
from outlierlens.report.figures import all_charts
from outlierlens.report.page import render
from outlierlens.report.results import ReportData
from outlierlens.report.words import finding
from outlierlens.results import FORMAT_VERSION, from_json, load, to_json, write_bytes

NO_PICTURES = (
    "charts were not drawn as SVG and PNG: vl-convert is not installed; run: pip install 'outlierlens[charts]'"
)
OURS = ("manifest.json", "results.json", "report.html")


@dataclass(frozen=True)
class Written:
    """What `write` made: the run's directory, the page in it, every file, and notes on what was left out."""

    directory: Path
    page: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def write(data: ReportData, directory: Path | str, *, overwrite: bool = False, also: Iterable[Path] = ()) -> Written:
    """Write results.json, charts/*.svg, *.png and *.vl.json, report.html and, last of all, manifest.json.

    Each file goes through a temporary name, so a reader never sees half of one. `also` are files that already lie in
    the directory (rows of a sweep) and belong in the manifest.

    Raises:
        BadInput: the directory holds a report already and `overwrite` is off, or is no directory.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise BadInput(f"{directory}: is a file; name a directory for the report")
    there = [name for name in OURS if (directory / name).exists()]
    if there and not overwrite:
        raise BadInput(f"{directory}: holds {there[0]} already; choose another directory or pass --overwrite")
    before = _listed(directory)
    text = to_json(data) + "\n"
    data = from_json(text)  # the page shows what the file holds, digit by digit: `rerender` gives the same page
    contents = {"results.json": text.encode("utf-8"), "report.html": render(data).encode("utf-8")}
    drawn, notes = _pictures(data)
    contents |= drawn
    files = {name: _write(directory / name, content) for name, content in contents.items()}
    for extra in also:
        files[extra.resolve().relative_to(directory.resolve()).as_posix()] = _entry(extra.read_bytes())
    for stale in before - files.keys():
        (directory / stale).unlink(missing_ok=True)
    _write(directory / "manifest.json", _manifest(data, files, notes))
    paths = tuple(directory / name for name in ("manifest.json", *files))
    return Written(directory, directory / "report.html", paths, notes)


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
    return render(data)


def _pictures(data: ReportData) -> tuple[dict[str, bytes], tuple[str, ...]]:
    kinds: tuple[PictureKind, ...] = ("vl.json", "svg", "png") if can_export() else ("vl.json",)
    drawn = {
        f"charts/{chart.name}.{kind}": content
        for chart in all_charts(data)
        for kind, content in pictures(chart, kinds).items()
    }
    return drawn, () if can_export() else (NO_PICTURES,)


def _listed(directory: Path) -> set[str]:
    """Charts that an earlier report wrote here, by its manifest; nothing outside charts/ is ever named."""
    try:
        manifest = json.loads((directory / "manifest.json").read_bytes())
        names = [name for name in manifest["files"] if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in names if Path(name).parts[:-1] == ("charts",) and Path(name).name not in ("", "..")}


def _manifest(data: ReportData, files: dict[str, dict[str, Any]], notes: tuple[str, ...]) -> bytes:
    provenance = data.provenance
    libraries = dict(provenance.libraries)
    if can_export():
        libraries["vl-convert-python"] = importlib.metadata.version("vl-convert-python")
    document = {
        "format_version": FORMAT_VERSION,
        "kind": "Manifest",
        "model": provenance.model,
        "fingerprint": provenance.fingerprint,
        "command": provenance.command,
        "seed": provenance.seed,
        "created": provenance.created,
        "version": provenance.version,
        "rendered_by": __version__,
        "libraries": libraries,
        "finding": list(finding(data)),
        "advice": [vars(step) for step in advice(data)],
        "notes": list(notes),
        "files": dict(sorted(files.items())),
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _write(path: Path, content: bytes) -> dict[str, Any]:
    write_bytes(path, content)
    return _entry(content)
