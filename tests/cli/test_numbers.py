"""Whole numbers of the command line: fractions and what no machine counts are refused in one line, with exit code 2."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from cyclopts import Parameter

import every_command
from gold.refusals import without
from outlierlens.cli import app
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_NAME
from outlierlens.options import Option, options_of, parse_bytes

WRONG = ("1.5", "1e400", "1" + "0" * 24, "9" * 5000, "0x" + "f" * 5000, "inf", "nan", "", "x\n\x1b[31m")


def whole_numbers() -> Iterator[tuple[str, Option]]:
    for name, row in BY_NAME.items():
        for one in row.asks().values():
            for option in one[1] if isinstance(one, tuple) else options_of(one):
                if int in (option.kind, *get_args(option.kind)) and not option.flag.read:
                    yield name, option


def test_every_whole_number_is_read_by_us() -> None:
    found = list(whole_numbers())
    assert len(found) > 100
    for name, option in found:
        marks: list[Any] = [
            mark
            for mark in app._parameter(option, "Options", show=True).annotation.__metadata__
            if isinstance(mark, Parameter) and (mark.converter or option.flag.into)
        ]
        assert marks, f"{name} {option.spelt}"
        # What is below its least value is refused, so that no negative number counts anything.
        assert any(hasattr(bound, "ge") for bound in option.bounds), f"{name} {option.spelt}"


FIRST = {str((option.kind, option.bounds)): (name, option) for name, option in whole_numbers()}


@pytest.mark.parametrize(("name", "option"), FIRST.values(), ids=lambda one: getattr(one, "spelt", one))
def test_it_is_refused_in_one_line(name: str, option: Option) -> None:
    row, ran = BY_NAME[name], []
    made = app.command(row.name, row.about, row.asks(), lambda **_: ran.append(1))
    words = list(without(every_command.RUNS.get(name, ()), option.spelt))
    least = min(bound.ge for bound in option.bounds if hasattr(bound, "ge"))
    for wrong in (*WRONG, str(least - 1)):
        with pytest.raises(app.Usage, match=option.spelt) as refused:
            app.call(made, [*words, f"{option.spelt}={wrong}"], named=name)
        assert refused.value.code == 2
        assert len(str(refused.value)) < 250
    assert not ran


def test_main_ends_with_code_2(run: Any) -> None:
    for wrong in ("1.5", "1" + "0" * 24, "1e400", "-1"):
        code, out, err = run("observe", "mini-planted", "--limit", wrong)
        assert (code, out, err.count("\n")) == (2, "", 1), err


def test_what_was_taken_is_taken() -> None:
    def taken(*words: str) -> Any:
        found: dict[str, Any] = {}
        row = BY_NAME["observe"]
        app.call(app.command(row.name, row.about, row.asks(), found.update), ["m", *words], named="observe")
        return next(one.limit for one in found.values() if hasattr(one, "limit"))

    assert [taken("--limit", word) for word in ("7", "1_000", "0x10", "none")] == [7, 1000, 16, None]


def test_sizes_and_rows_have_an_end() -> None:
    for wrong in ("-1", "-5MB", "1e24", "nan", "infGB", "9" * 5000):
        with pytest.raises(BadInput, match="cannot read the size"):
            parse_bytes(wrong)
    assert parse_bytes("9000000TB"[:-2] + "GB") == 9 * 10**15
