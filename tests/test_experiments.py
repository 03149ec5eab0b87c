"""What every experiment must fulfil, by its row of the table."""

import importlib
import io
import json
import operator
import re
import shlex
import typing
from pathlib import Path
from typing import Any

import pytest

import every_command
from outlierlens.cli.app import SHOWN, Usage, program, read, run
from outlierlens.experiments import BY_NAME, BY_RESULT, EXPERIMENTS
from outlierlens.options import Option, bounds_text
from outlierlens.options.experiment import GROUP_NAMES, Experiment
from outlierlens.view.render import print_section, sections_html

ROWS = pytest.mark.parametrize("row", EXPERIMENTS, ids=lambda row: row.name.replace(" ", "-"))


def options(row: Experiment) -> list[Option]:
    return [option for _, group in row.asks().values() for option in group]


@ROWS
def test_its_row_is_whole(row: Experiment) -> None:
    assert row.group in GROUP_NAMES
    first = row.about.partition("\n\n")[0]
    assert first.endswith((".", "?")), first
    assert first[0].isupper()
    assert callable(row.run())
    if row.result:
        assert callable(getattr(importlib.import_module(f"outlierlens.{row.kinds[row.kind]}"), row.kind).sections)
    for option in options(row):
        module, _, function = option.flag.read.partition(":")
        if module:
            assert callable(operator.attrgetter(function)(importlib.import_module(f"outlierlens.{module}"))), (
                option.name
            )
        if option.name == "dims":  # one meaning each: those given, "find" or "all"; none is ()
            assert option.default is not None, row.name


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of each command, in one folder: some read what others wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("outlierlens.report.files.can_export", lambda: False)  # pictures take longer than all else
    every_command.fill(tmp_path)
    for name in every_command.RUNS:
        assert len(BY_NAME[name].examples) >= 2, name
        for line in BY_NAME[name].examples:
            words = shlex.split(line, comments=True)
            assert " ".join(words).startswith(f"{name} ") or words == name.split()
            said = every_command.call(*words)
            assert said.code in {0, every_command.FOUND.get(name)}, f"{line}: {said.err}"


@ROWS
def test_its_help_says_every_option(
    row: Experiment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")  # a line for each
    run([*row.name.split(), "--help-all"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for option in options(row):
        assert option.help, option.name
        assert option.help[-1] in ".!?…)", f"{option.name}: {option.help}"
        assert (option.flag.into or option.spelt) in told
        assert not option.flag.into or f"{option.key}{'' if option.kind is bool else '=…'}: " in told
    assert "default: (" not in told  # as words, not as Python holds them
    spelt = [flag for option in options(row) for flag in option.flags]
    assert len(set(spelt)) == len(spelt)
    run([*row.name.split(), "--help"])
    first = re.findall(r"^│[ *]+(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)
    assert len(first) == min(
        SHOWN, len({option.flag.into or option.spelt for option in options(row) if not option.flag.argument})
    )


@ROWS
def test_every_limit_is_refused_in_one_line(row: Experiment) -> None:
    given = [word for option in options(row) if option.required for word in _least(option)]
    for option in options(row):
        for bound in option.bounds:
            ends = [getattr(bound, mark) for mark in ("ge", "gt", "le", "lt") if hasattr(bound, mark)]
            beyond = {"Ge": -1, "Gt": 0, "Le": 1, "Lt": 0}[type(bound).__name__]
            if ends[0] in (float("inf"),) or not option.flags:
                continue
            value = ends[0] + beyond
            if isinstance(ends[0], int) and option.kind not in (float, float | None):
                value = int(value)
            with pytest.raises(Usage) as refused:
                run([*row.name.split(), *given, f"{option.spelt}={value}"])
            assert "\n" not in str(refused.value)
            assert f"it must be {bounds_text(option.bounds)}" in str(refused.value)


def _least(option: Option) -> list[str]:
    """Words that give a required option something that it takes."""
    choices = typing.get_args(option.kind) if typing.get_origin(option.kind) is typing.Literal else ()
    word = "raw" if "fix" in option.name else str(choices[0]) if choices else "1"
    return [option.flags[-1], word] if option.flags else [word]


@ROWS
def test_a_misspelt_option_is_refused(row: Experiment) -> None:
    with pytest.raises(Usage, match=f"See outlierlens {row.name} --help"):
        read([*row.name.split(), "--no-such-option"])


def test_every_row_is_a_command_of_the_program() -> None:
    assert set(program()) >= {row.name.split()[0] for row in EXPERIMENTS}
    assert len(BY_NAME) == len(EXPERIMENTS)


# What every result must fulfil; those made by hand.


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    import every_result

    return every_result.made_in(tmp_path_factory.mktemp("results"))


# A word that is a number, as a table would hold it: a typed cell says it better.
WORDS = ("token", "examples", "count")  # columns of a text's words, and of ranges by name, which may be one number
NUMBER = re.compile(r"[+−-]\d\S*|\d[\d,]*\.\d+\S*|\d+(,\d{3})+|\d\S* ?%")


@pytest.mark.parametrize("kind", BY_RESULT)
def test_its_view_is_shown_everywhere(kind: str, made: dict[str, Any]) -> None:
    if kind not in made:
        pytest.skip("no result of this kind is made by hand")
    found = made[kind]
    for verbose in (False, True):
        shown = list(found.sections(verbose=verbose))
        assert shown
        out = io.StringIO()
        for section in shown:
            assert re.fullmatch(r"[a-z0-9-]+", section.name)
            print_section(section, out)
            for table in section.tables:
                for cells in table.rows:
                    assert len(cells) == len(table.columns), table.title
                    for column, cell in zip(table.columns, cells, strict=True):
                        written = isinstance(cell, str) and NUMBER.fullmatch(cell) and column not in WORDS
                        assert not written, f"{table.title}: {cell!r} is written by hand"
            for chart in section.charts:
                assert chart.reading
                json.dumps(chart.spec)
        assert out.getvalue().strip()
        page = sections_html(shown)
        assert all(word not in page for word in ("<script", "http://", "https://"))
    assert sections_html(found.sections()) == found._repr_html_()


def test_a_home_has_its_files() -> None:
    for row in EXPERIMENTS:
        module = importlib.import_module(f"outlierlens.{row.home}")
        file = f"{row.home.rpartition('.')[2]}.py" if row.derived else "__init__.py"
        assert Path(module.__file__ or "").name == file, row.home


def test_what_reads_images_is_named_where_others_refuse_them() -> None:
    from outlierlens.data.tables import OF_ITEMS

    found = {row.name for row in EXPERIMENTS if "max_seconds" in {one.name for one in options(row)}}
    assert set(OF_ITEMS.replace(" and ", ", ").split(", ")) == found
