"""Where commands write: what -o cannot be, and who else is writing there, is said before anything is measured."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from every_command import RUNS, call, fill
from outlierlens.experiments import BY_NAME
from outlierlens.models import load
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import alone

# What -o names, by command: a file, a folder that is made whole, a run directory.
KINDS = {
    name: "folder" if "folder" in BY_NAME[name].places else "run" if BY_NAME[name].writes == "folder" else "file"
    for name in RUNS
    if "output" in {option.name for _, asked in BY_NAME[name].asks().values() for option in asked} or BY_NAME[name].places
} | {"atlas page": "folder"}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A little of all data, in the folder that all calls run in."""
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fill(folder)
        closed = [True]
        patch.setattr(load, "load_model", forbidden(load.load_model, closed))
        yield folder
        closed.clear()


def forbidden(loads: Callable[..., Any], closed: list[bool]) -> Callable[..., Any]:
    """What raises while the door is closed; a module that was imported meanwhile keeps it, and loads again afterwards."""

    def call(*given: Any, **named: Any) -> Any:
        assert not closed, "a model was loaded first"
        return loads(*given, **named)

    return call


def words(name: str, place: Path) -> list[str]:
    """The words of a command that writes to `place`."""
    asked = list(RUNS[name])
    for option in ("-o", "--chart", "--tuned"):
        if option in asked:
            at = asked.index(option)
            del asked[at : at + 2]
    return [*name.split(), *asked, "-o", str(place)]


def test_every_kind_is_among_them() -> None:
    assert len(KINDS) > 30
    assert {name for name, kind in KINDS.items() if kind == "folder"} == {"repair", "atlas page"}
    assert {"report", "atlas build", "lab finetune", "lab pretrain"} < {n for n, k in KINDS.items() if k == "run"}


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if name != "lab pretrain"])
def test_a_folder_where_a_file_is_meant_and_the_other_way_round(name: str, filled: Path) -> None:
    wrong = filled / "wrong" / name.replace(" ", "-")
    wrong.parent.mkdir(exist_ok=True)
    if KINDS[name] == "file":
        wrong.mkdir()
    else:
        wrong.write_text("theirs")
    said = call(*words(name, wrong), *["--overwrite"] * (name != "atlas build"))
    assert said.code in (1, 2), said
    assert str(wrong) in said.err.splitlines()[-1]
    assert "Traceback" not in said.err
    assert wrong.is_dir() or wrong.read_text() == "theirs"
    assert [path.name for path in wrong.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", list(KINDS))
def test_two_at_once_are_refused(name: str, filled: Path) -> None:
    place = filled / "held" / name.replace(" ", "-")
    holds: AbstractContextManager[None] = alone_in(place) if KINDS[name] == "run" else alone(place)
    with holds:
        said = call(*words(name, place))
    assert said.code in (1, 2), said
    assert "is writing to it; wait for it or name another" in said.err.splitlines()[-1]
    assert not place.exists()
