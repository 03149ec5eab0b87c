"""A result whose parts do not fit one another is refused in one line when it is read, not with a traceback when shown."""

import json
import re
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import every_result
from outlierlens.errors import BadFile
from outlierlens.results import document as results
from synthetic_report import report_data

# The axes that no other array of a file measures: rows name these conditions and layers, as a column does.
FREE = {("Exploration", "conditions", 0), ("Similarity", "shrinkage", 0)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return every_result.made_in(tmp_path_factory.mktemp("made"))


def test_every_result_reads_as_it_was_written(made: dict[str, Any]) -> None:
    for kind, one in made.items():
        read = results.from_json(results.to_json(one))  # an empty array of numbers may have another type
        assert results.to_json(results.from_json(results.to_json(read))) == results.to_json(read), kind
        assert type(read) is type(one)


def test_the_line_names_file_field_and_both_shapes(tmp_path: Path) -> None:
    path = tmp_path / "scan.json"
    document = json.loads(results.to_json(report_data(observed=False, damages=())))
    n_layers, n_columns = np.shape(document["findings"][0]["stacks"]["z_scale"][0])
    document["findings"][0]["stacks"]["z_scale"][0].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(BadFile) as refused:
        results.load(path)
    assert str(refused.value) == (
        f"{path}.findings[0].stacks.z_scale[0]: its shape is [{n_layers - 1}, {n_columns}], "
        f"but [layer, column] is [{n_layers}, {n_columns}]; make the result again"
    )


def test_every_array_says_its_axes(made: dict[str, Any]) -> None:
    silent = {
        f"{type(one).__name__}.{f.name}"
        for whole in made.values()
        for one, _ in _parts(whole, ())
        for f in fields(one)
        if isinstance(getattr(one, f.name), np.ndarray) and not _axes(one, f.name)
    }
    assert not silent


def test_what_is_one_shorter_than_the_rest_is_refused(made: dict[str, Any]) -> None:
    seen, read, said = set(), set(), {}
    for whole in made.values():
        document = json.loads(results.to_json(whole))
        for one, place in _parts(whole, ()):
            for name, axis in _cuts(one):
                cut = (type(one).__name__, name, axis)
                if cut in seen:
                    continue
                seen.add(cut)
                at, key = _at(document, (*place, name))
                intact, at[key] = at[key], _shorter(at[key], axis)
                try:
                    results.decode_document(document, "found.json")
                    read.add(cut)
                except BadFile as error:
                    said[cut] = str(error)
                at[key] = intact
    assert len(seen) > 100
    for cut, line in said.items():
        assert re.fullmatch(
            r"found\.json\..*: its shape is \[.*\], but \[.*\] is \[.*\]; make the result again", line
        ), cut
    assert read == FREE


def _cuts(one: Any) -> Iterator[tuple[str, int]]:
    """The fields of a dataclass and their axes that can be one shorter."""
    for f in fields(one):
        value = getattr(one, f.name)
        if isinstance(value, np.ndarray | tuple) and _axes(one, f.name):
            shape = value.shape if isinstance(value, np.ndarray) else (len(value),)
            yield from ((f.name, axis) for axis, n in enumerate(shape) if n > 1 and 0 not in shape)


def _shorter(rows: Any, axis: int) -> Any:
    return [_shorter(row, axis - 1) for row in rows] if axis else rows[:-1]


def _axes(one: Any, name: str) -> str:
    hint = typing.get_type_hints(type(one), include_extras=True)[name]
    said = hint.__metadata__[0] if typing.get_origin(hint) is Annotated else ""
    return said if isinstance(said, str) else ""


def _parts(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every dataclass in a result, with the keys that lead to it."""
    if is_dataclass(value):
        yield value, place
        for f in fields(value):
            yield from _parts(getattr(value, f.name), (*place, f.name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _parts(item, (*place, str(key)))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _parts(item, (*place, i))


def _at(document: Any, place: tuple[Any, ...]) -> tuple[Any, Any]:
    """What holds a value, and the key in it; rows are written column by column."""
    *way, last = place
    for i, key in enumerate(way):
        if isinstance(key, int) and isinstance(document, dict):
            return _at(document[place[i + 1]], (key, *place[i + 2 :]))
        document = document[key]
    return document, last
