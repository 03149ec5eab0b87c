"""Numbers, refusals, sentences, charts and public functions are what the files under `gold` keep; see gold/make.py.

A change that means to change one makes the files again and names the difference where it explains itself.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import every_command
from closed_calls import external
from gold import files, make
from outlierlens.experiments import BY_NAME

# Float32 on another processor has other last bits; differences and ratios of small differences make more of them.
CLOSE = {"runs": 2e-3}
CASES = [(part, path) for part in make.PARTS for path in sorted((make.HERE / part).glob("*.json"))]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder, which is the current one as long as the module runs."""
    folder, before = tmp_path_factory.mktemp("gold").resolve(), Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLIERLENS_CACHE", str(folder / "cache"))
        patch.setattr("outlierlens.report.files.can_export", lambda: False)
        os.chdir(folder)
        yield folder
        os.chdir(before)


@pytest.fixture(scope="module")
def now(here: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Path, Any]]:
    """{part: {gold file: what it would hold now}}."""
    import torch

    torch.set_num_threads(1)
    made = make.ran(here, make.RAN)
    for part in set(make.PARTS) - make.RAN:
        made[part] = make.made(part, tmp_path_factory.mktemp(part).resolve())
    return {part: {make.path_of(part, name): one for name, one in found.items()} for part, found in made.items()}


@pytest.mark.parametrize("part", make.PARTS)
def test_nothing_came_or_went(part: str, now: dict[str, dict[Path, Any]]) -> None:
    assert {path.name for path in now[part]} == {path.name for kept, path in CASES if kept == part}


@pytest.mark.parametrize(("part", "path"), CASES, ids=[f"{part}-{path.stem}" for part, path in CASES])
def test_it_is_what_was_kept(part: str, path: Path, now: dict[str, dict[Path, Any]]) -> None:
    differences = files.differences(files.read(path), now[part].get(path), close=CLOSE.get(part, files.CLOSE))
    assert not differences, "\n".join([f"{len(differences)} differences:", *differences[:20]])


def test_every_command_has_run() -> None:
    assert set(every_command.RUNS) == set(BY_NAME)


@pytest.mark.usefixtures("now")
def test_pages_that_commands_write_load_nothing(here: Path) -> None:
    pages = {str(path.relative_to(here)): path.read_text("utf-8") for path in here.rglob("*.html")}
    assert {"report/report.html", "luo/report.html"} <= set(pages)
    assert {name: found for name, page in pages.items() if (found := external(page))} == {}


def test_what_differs_is_seen() -> None:
    kept = {"a": [1.0, 2e-9, 3], "b": "dim 3: +7.75 nats", "c": True, "d": None}
    assert files.differences(kept, {"a": [1.00002, 1e-9, 3], "b": "dim 3: +7.76 nats", "c": True, "d": None}) == []
    for other in ({"a": [1.001, 2e-9, 3]}, {"a": [1.0, 2e-9, 4]}, {"a": [1.0, 2e-9]}, {"b": "dim 4: +7.75 nats"},
                  {"b": "dim 3: -7.75 nats"}, {"c": 1}, {"c": False}, {"d": 0.0}, {"e": 1}):  # fmt: skip
        assert len(files.differences(kept, kept | other)) == 1, other
    assert files.differences(kept, {"a": kept["a"]}) != []


def test_a_long_list_is_told_by_its_ends_and_sums() -> None:
    rows = [{"dim": i, "value": (i * 37 % 101) / 7} for i in range(200)]
    kept = files.brief(rows)
    assert kept["[].dim"] == {"n": 200, "ends": [0, 199], "within": [0.0, 199.0], "means": [99.5, 149.583]}
    assert files.differences(kept, files.brief(rows)) == []
    for change in (
        [*rows[:90], rows[91], rows[90], *rows[92:]],  # changed places
        [*rows[:90], rows[90] | {"value": rows[90]["value"] + 1}, *rows[91:]],
        [*rows[:90], *rows[91:]],
        [*rows[:90], rows[90] | {"value": None}, *rows[91:]],
        [*rows[:90], rows[90] | {"other": 0}, *rows[91:]],
    ):
        assert files.differences(kept, files.brief(change)) != []


def test_lists_are_told_by_their_form() -> None:
    assert files.brief([{"low": 0, "high": 1.0}, {"low": 2, "high": 3.0}]) == {"[].low": [0, 2], "[].high": [1.0, 3.0]}
    assert files.brief([[0.0] * 7, [1.0] * 7])["n"] == [2, 7]
    ragged = files.brief([[i] * (i % 2) for i in range(14)])
    assert (ragged["n"], ragged["leaves"]["[]"]["n"], ragged["first"], ragged["last"]) == (14, 7, [], [13])
    words = {"field": "a word that is rather long", "title": "another that is as long as it"}
    assert files.once({"x": words, "layers": [{"x": words}, words["field"]]}) == {
        "x": words, "layers": [{"x": "as x"}, words["field"]],
    }  # fmt: skip
