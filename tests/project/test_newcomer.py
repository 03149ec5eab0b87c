"""The newcomer's script: it takes its commands out of the README, and tells what was not done from what was."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import newcomer
import pytest

ROOT = Path(__file__).parents[2]
README = """# tiny

## Set up

```console
$ make report      # everything
$ make test
```
"""
MAKEFILE = """report:
\t@echo "setup: done"
\t@mkdir -p runs && env > runs/environment.txt && touch runs/report.html
\t@echo "report: runs/REPORT.html"
"""


def repository(folder: Path, report: str) -> str:
    folder.mkdir()
    (folder / "README.md").write_text(README)
    (folder / "Makefile").write_text(MAKEFILE.replace("REPORT", report))
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "all"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return str(folder)


def test_the_readme_s_commands_are_run_in_a_fresh_place_and_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("OUTLIERLENS_CACHE", "/not/for/newcomers")
    monkeypatch.setattr(sys, "argv", ["newcomer.py", "--keep", "--source", repository(tmp_path / "origin", "report")])
    assert newcomer.main() == 0
    rows = re.findall(r"^\| (.*) \| (.*) \| (\d+:\d\d) \|$", capsys.readouterr().out, re.MULTILINE)
    assert [(command, what) for command, what, _ in rows] == [
        ("`git clone`", "cloned"),
        ("`make report`", "set up"),
        ("`make report`", "`runs/report.html`"),
    ]
    (place,) = tmp_path.glob("newcomer-*")
    given = dict(line.split("=", 1) for line in (place / "outlierlens/runs/environment.txt").read_text().splitlines())
    assert given["HOME"] == str(place / "home")
    assert not [name for name in given if name.startswith(("OUTLIERLENS", "HF_", "PYTHON", "VIRTUAL"))]


def test_a_report_that_is_not_there_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["newcomer.py", "--source", repository(tmp_path / "origin", "other")])
    assert newcomer.main() == 1
    assert "make report: it names runs/other.html, which is not there" in capsys.readouterr().err


def test_the_table_of_minutes_is_of_the_readme_s_commands() -> None:
    timed = re.findall(
        r"^\| `([^`]+)` \| .* \| \d+:\d\d \|$", (ROOT / "benchmarks" / "README.md").read_text("utf-8"), re.MULTILINE
    )
    commands = newcomer.commands((ROOT / "README.md").read_text("utf-8"))
    assert commands == ["make report", "make test"]
    assert list(dict.fromkeys(timed)) == ["git clone", "make report"]
