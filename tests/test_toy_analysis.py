"""One file and one row are a whole analysis: nothing else is written for it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import outlierlens

TOY = '''
"""Count texts, several times each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from outlierlens.data.texts import Texts
from outlierlens.options import check
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Row
from outlierlens.session import Session
from outlierlens.view.pictures import Strips
from outlierlens.view.section import Count, Share


@dataclass(frozen=True, kw_only=True)
class ToyOptions:
    """How much of it."""

    times: Annotated[int, Ge(1)] = 3
    """How often each text is counted."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Heap(Row):
    """A heap of texts."""

    what: str
    n: Annotated[int, Count]
    """texts"""
    share: Annotated[float, Share]
    """share: of all"""


@dataclass(frozen=True, kw_only=True)
class Toy(Finding):
    """Texts, counted."""

    title = "Toys were counted"
    pictures = (Strips(rows="heaps", x="n", y="what"),)

    heaps: tuple[Heap, ...]
    """Heaps"""

    def sentences(self) -> Iterator[str]:
        yield f"There are {self.heaps[0].n} texts."


def toy(texts: Texts, options: ToyOptions | None = None) -> Toy:
    """Count `texts`, as often as is asked."""
    options = options or ToyOptions()
    heap = Heap(what="texts", n=len(texts) * options.times, share=0.25)
    return Toy(provenance=Provenance.now("no model", "", seed=0), about=About(n_texts=len(texts)), heaps=(heap,))


def run(session: Session, options: ToyOptions) -> Toy:
    """Read the texts, and count them."""
    texts, _ = session.texts()
    return toy(texts, options)
'''
ROW = """    Experiment(
        "toy", "explain", "Count texts, several times each.", home="analyses.toy", options="ToyOptions",
        result="Toy", python="toy",
    ),
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the toy in it, and texts to count."""
    folder = tmp_path_factory.mktemp("toy")
    source = Path(outlierlens.__file__).parent
    shutil.copytree(source, folder / "outlierlens", ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / "outlierlens"
    (package / "analyses" / "toy.py").write_text(TOY.lstrip(), "utf-8")
    table = package / "experiments.py"
    text = table.read_text("utf-8")
    first = text.index("    Experiment(\n")
    table.write_text(text[:first] + ROW + text[first:], "utf-8")
    (folder / "texts.txt").write_text("one\ntwo\n")
    return folder


def python(place: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(place), "COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outlierlens_(place: Path, *words: str) -> str:
    return python(place, "-m", "outlierlens", *words)


def test_the_program_lists_it_completes_it_and_helps(place: Path) -> None:
    assert "toy" in outlierlens_(place, "--help").split()
    assert "--times" in outlierlens_(place, "--show-completion", "bash")
    assert "How often each text is counted. [default: 3]" in " ".join(outlierlens_(place, "toy", "--help").split())
    assert outlierlens_(place, "doctor").endswith("nothing that is installed is broken\n")


def test_it_runs_and_is_shown_written_drawn_and_joined(place: Path) -> None:
    told = outlierlens_(place, "toy", "x", "--data", "texts.txt", "-o", "toy.json", "--chart", "toy.json.html")
    assert "There are 6 texts." in told
    assert "25 %" in told
    found = json.loads((place / "toy.json").read_text("utf-8"))
    assert (found["kind"], found["heaps"]["n"]) == ("Toy", [6])
    assert found["provenance"]["command"].startswith("outlierlens toy x --data texts.txt")
    assert (place / "toy.json.html").stat().st_size > 1000


WITHIN = """
import json, sys
import outlierlens as ol
from outlierlens import commands
from outlierlens.cli.doctor import use_of
from outlierlens.report.result import check_joins, sections_of

found = ol.load("toy.json")
check_joins(found)
(section,) = sections_of((found,))
seen = "Toys were counted" in found._repr_html_()
told = "toy" in use_of("models").split(", ")
print(json.dumps([commands.toy.__module__, found.heaps[0].n, section.title, seen, "toy" in dir(commands), told]))
"""


def test_python_and_the_report_have_it(place: Path) -> None:
    assert json.loads(python(place, "-c", WITHIN)) == [
        "outlierlens.analyses.toy", 6, "Toys were counted", True, True, True,
    ]  # fmt: skip


DEFAULT = """
import outlierlens.analyses.toy as o
from outlierlens.cli.app import program, run
from outlierlens.experiments import BY_NAME

(group,) = (options for name, (_, options) in BY_NAME["toy"].asks().items() if name == "options")
print(o.ToyOptions().times, group[0].default, "[default: 7]" in program().generate_docs())
run(["toy", "--help"])
run(["toy", "x", "--data", "texts.txt"])
"""


def test_a_default_that_is_changed_in_one_place_is_changed_everywhere(place: Path) -> None:
    options = place / "outlierlens" / "analyses" / "toy.py"
    before = options.read_text("utf-8")
    options.write_text(before.replace("= 3", "= 7"), "utf-8")
    try:
        told = python(place, "-c", DEFAULT)
    finally:
        options.write_text(before, "utf-8")
    assert told.startswith("7 7 True\n")
    assert "[default: 7]" in told
    assert "There are 14 texts." in told


GENERIC = """
import sys
import pytest

sys.exit(pytest.main(["-v", "-p", "no:cacheprovider", TESTS, "-k", "toy"]))
"""


def test_generic_tests_hold_for_it(place: Path) -> None:
    tests = Path(__file__).with_name("test_experiments.py")
    told = python(place, "-c", GENERIC.replace("TESTS", repr(str(tests))))
    assert int(told.split(" passed")[0].split()[-1]) >= 4
