"""Results of somebody else, well typed and wrong: shown plainly, or refused in one line of ours."""

import inspect
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import pytest

import every_result
import hostile
from outlierlens.errors import OutlierlensError
from outlierlens.results.document import HOMES, decode_document, to_json
from outlierlens.view import charts

MUTANTS = hostile.number("MUTANTS", 10)  # of a kind
WORDS = (
    "a\x1b[31mred\x1b]0;title\x07", "x\n# head\r\u2028y\x85z\x9b31m", "<script>alert(1)</script>|`[l](http://e)", "",
    "\u202eabc\ud800",
)  # fmt: skip


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = every_result.made_in(tmp_path_factory.mktemp("made"))
    return {kind: to_json(found) for kind, found in made.items()}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if path:
        yield path, value
    keys: Any = value if isinstance(value, dict) else ()
    if isinstance(value, list):  # of long ones the ends: maps of a model have a million numbers
        keys = sorted({*range(len(value))[:2], *range(len(value))[-1:]})
    for key in keys:
        yield from leaves(value[key], (*path, key))


def other(value: Any, random: Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((0, -1, 1, value + 1, 10**6))
    if isinstance(value, float):
        return random.choice((0.0, -1.0, -value, "nan", "inf", "-inf", 1e300))
    if isinstance(value, str):
        return random.choice((*WORDS, hostile.text(random)))
    if isinstance(value, list):
        return random.choice(([], value[: len(value) // 2], value + value, value[:1]))
    return random.choice(({}, dict(list(value.items())[:1])))


def mutant(document: str, random: Random) -> Any:
    """One to three fields of a document changed; each field of any depth is as likely, however long it is."""
    made = json.loads(document)
    for _ in range(random.choice((1, 1, 2, 3))):
        fields: dict[Any, list[Any]] = defaultdict(list)
        for path, value in leaves(made):
            if path[0] not in ("format_version", "kind") and value is not None:
                fields[tuple(key if isinstance(key, str) else 0 for key in path)].append((path, value))
        path, value = random.choice(fields[random.choice(list(fields))])
        at = made
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = other(value, random)
    return made


@cache
def drawing() -> dict[str, list[Callable[[Any], Any]]]:
    """The charts that take a result and nothing else, by its kind."""
    found: dict[str, list[Callable[[Any], Any]]] = defaultdict(list)
    for name in set(dir(charts)) - set(charts.__all__):
        chart = getattr(charts, name)
        first, *others = inspect.signature(chart).parameters.values()
        if all(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in others):
            found[str(first.annotation).rpartition(".")[2].strip("'>")].append(chart)
    return found


def test_every_kind_of_result_is_tried(documents: dict[str, str]) -> None:
    assert set(documents) == set(HOMES)
    findings = {kind for kind, home in HOMES.items() if home.startswith("analyses.")}  # each draws itself
    assert len((drawing().keys() | findings) & set(HOMES)) > 20


@pytest.mark.parametrize("kind", sorted(HOMES))
def test_a_mutant_is_shown_or_refused(kind: str, documents: dict[str, str]) -> None:
    shown = 0
    for number in range(MUTANTS):
        made = mutant(documents[kind], Random(f"{hostile.SEED} {kind} {number}"))
        try:
            found = decode_document(made, kind)
        except OutlierlensError:
            continue
        for show in (str, lambda one: one._repr_html_(), lambda one: one.to_pandas(), *drawing()[kind]):
            try:
                said = show(found)
            except OutlierlensError as error:
                said = str(error)
                assert "\n" not in said
            shown += 1
            if isinstance(said, str):
                assert all(one.isprintable() or one == "\n" for one in said), number
    assert shown


def test_what_cannot_be_shown_is_told_in_a_line(documents: dict[str, str]) -> None:
    document = json.loads(documents["Outcomes"])
    document["runs"] = {name: [*cells, *cells] for name, cells in document["runs"].items()}
    document["runs"]["toml"] = ["not\x1b[31m toml"] * 2
    found = decode_document(document, "result")
    for show in (str, lambda one: one._repr_html_()):
        with pytest.raises(OutlierlensError, match=r"^Outcomes cannot be shown: its values do not fit together \(TOML"):
            show(found)


def test_a_call_that_is_wrong_itself_says_so(documents: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        decode_document(json.loads(documents["Mask"]), "result").to_pandas(bogus=1)
