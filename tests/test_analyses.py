"""What every analysis on the engine must fulfil: it runs at its cheapest, goes on, is read, shown and drawn."""

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import every_command
from gold.files import differences
from outlierlens.experiments import BY_NAME, EXPERIMENTS
from outlierlens.results import document as results
from outlierlens.results.finding import Finding
from outlierlens.view.render import print_section, sections_html

pytest.importorskip("torch")

DERIVED = [row.name for row in EXPERIMENTS if row.derived]
# What some of them read is written by the last two.
FIRST = {name for name in every_command.RUNS if name in DERIVED} | {"lab finetune", "lab pretrain"}
FOUND = [name for name in DERIVED if BY_NAME[name].result]


class Runs:
    """Each of them once, in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        every_command.fill(folder)
        self.said = {name: self.run(name) for name in every_command.RUNS if name in FIRST}

    def run(self, name: str, *, again: bool = False) -> every_command.Said:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setenv("OUTLIERLENS_RUNS", str(self.folder / "runs"))
            words = list(every_command.RUNS[name])
            for option in ("--save", "-o", "--chart") if again else ():  # what it wrote is there
                if option in words:
                    del words[words.index(option) : words.index(option) + 2]
            return every_command.call(*name.split(), *words, "--json")

    def rows(self, name: str) -> list[Path]:
        model = Path(every_command.RUNS[name][0]).name
        return sorted((self.folder / "runs" / f"{model}-{name.replace(' ', '-')}").glob("*.jsonl"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("analyses"))


def found_of(runs: Runs, name: str) -> Any:
    said = runs.said[name]
    assert said.code in {0, every_command.FOUND.get(name)}, said.err
    return results.from_json(said.out)


def numbers(value: Any) -> Iterator[float]:
    """Every number of plain data."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
    elif not isinstance(value, str) and value is not None and not isinstance(value, bool):
        for one in value:
            yield from numbers(one)


@pytest.mark.parametrize("name", FOUND)
def test_it_comes_back_from_its_json(name: str, runs: Runs) -> None:
    found = found_of(runs, name)
    assert results.to_json(results.from_json(results.to_json(found))) == results.to_json(found)
    assert isinstance(found, Finding)
    assert repr(found).count("\n") == 0
    assert all(isinstance(dim, int) for dim in found.dims)
    assert list(found.records())


@pytest.mark.parametrize("name", FOUND)
def test_every_table_is_shown(name: str, runs: Runs) -> None:
    found, out = found_of(runs, name), io.StringIO()
    sections = list(found.sections(verbose=True))
    for section in sections:
        print_section(section, out)
    page = sections_html(sections)
    for table in (table for section in sections for table in section.tables):
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert table.title.split(":")[0] in out.getvalue().replace("\n", " ")
    assert "nan" not in out.getvalue().replace("finan", "")
    assert "<table" in page


@pytest.mark.parametrize("name", FOUND)
def test_every_picture_compiles_and_holds_the_numbers_of_its_rows(name: str, runs: Runs) -> None:
    found = found_of(runs, name)
    if not found.drawn():
        pytest.skip("it draws no picture")
    from outlierlens.view.charts.base import picture

    chart = found.chart()
    assert picture(chart, "svg").startswith(b"<svg")
    assert found.provenance.model.rpartition("/")[2] in chart.title
    drawn = np.array(sorted(set(numbers(json.loads(json.dumps(chart.spec))))))
    for one in found.drawn():
        for row in one.chosen(found):
            value = getattr(getattr(row, one.value), "value", getattr(row, one.value))
            if isinstance(value, int | float) and math.isfinite(value):
                assert np.isclose(drawn, value, rtol=1e-3, atol=1e-9).any(), f"{one}: {value}"


@pytest.mark.parametrize("name", DERIVED)
def test_a_run_that_was_stopped_goes_on(name: str, runs: Runs) -> None:
    files = runs.rows(name)
    if not files:
        pytest.skip("it keeps no rows")
    (file,) = files
    whole, before = file.read_bytes(), runs.said[name]
    lines = whole.splitlines(keepends=True)
    assert len(lines) > 1  # what it is of, and what was measured
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])  # stopped in the middle of a line
    assert not _apart(before, runs.run(name, again=True))
    assert file.read_bytes().count(b"\n") == len(lines)
    again = runs.run(name, again=True)
    assert not _apart(before, again)
    assert "is taken from there" in again.err
    assert file.read_bytes().count(b"\n") == len(lines)


def _apart(before: every_command.Said, after: every_command.Said) -> list[str]:
    """Where two documents differ, but for the moment at which they were made and the commands' own words."""
    found = [json.loads(one.out) for one in (before, after)]
    for name in ("created", "command"):
        for one in found:
            one["provenance"].pop(name)
    return differences(*found, close=1e-6)
