"""Options said once: what a dataclass declares is what Python, the command line and its help hold to."""

import io
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt

from outlierlens.cli.app import Usage, call, command
from outlierlens.errors import BadInput
from outlierlens.options import (
    REQUIRED,
    Flag,
    Flat,
    Override,
    build,
    changed,
    check,
    options_of,
    parse_export,
    written_for,
)
from outlierlens.tasks.base import SplitReading
from outlierlens.view import render
from outlierlens.view.render import print_rows
from outlierlens.view.section import (
    Change,
    Count,
    ExactValue,
    FineShare,
    Fraction,
    Interval,
    P,
    Rows,
    Share,
    ShareInterval,
    cell_text,
)


@dataclass(frozen=True)
class Inner:
    """Nested."""

    size: Annotated[int, Ge(2)] = 8
    """How large."""
    unseen: int = 1
    """Only Python has it."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked."""

    name: Annotated[str, Flag(argument=True)]
    """Of the
    thing."""
    n_random: Annotated[int, Flag("-r", "--random"), Ge(0), Lt(10)] = 5
    """Draws."""
    share: Annotated[float | None, Flag(read="options:number_or_none", words="0.5"), Gt(0), Le(1)] = 0.5
    """A part."""
    wide: Annotated[bool, Flag("--wide/--narrow")] = True
    """Which way."""
    inner: Annotated[Inner, Flat("size")] = Inner(size=4)
    """The nested ones."""
    secret: Annotated[int, Flag(hidden=True)] = 0
    """Only Python has it."""
    folders: tuple[Path, ...] = field(default=())
    """Any number."""

    def __post_init__(self) -> None:
        check(self)


def asked(*words: str, groups: Any = Asked) -> Asked:
    got: list[Asked] = []
    call(command("try", "Try it.", {"options": groups}, lambda **given: got.append(given["options"])), words)
    return got[0]


def test_a_field_says_its_flag_its_type_its_bounds_and_its_help() -> None:
    found = {one.name: one for one in options_of(Asked)}
    assert list(found) == ["name", "n_random", "share", "wide", "size", "folders"]
    assert found["name"].flags == ()
    assert found["name"].required
    assert found["name"].help == "Of the thing."
    assert found["n_random"].flags == ("-r", "--random")
    assert (found["n_random"].default, found["n_random"].kind, found["n_random"].bounds) == (5, int, (Ge(0), Lt(10)))
    assert (found["size"].path, found["size"].flags, found["size"].default) == (("inner", "size"), ("--size",), 4)


def test_defaults_of_python_are_those_of_the_command_line() -> None:
    assert asked("x") == Asked(name="x")
    other = Asked(name="y", n_random=7, inner=Inner(size=6, unseen=3))
    assert asked("x", groups=other) == Asked(name="x", n_random=7, inner=Inner(size=6, unseen=3))


def test_words_become_the_dataclass() -> None:
    given = ("x", "-r", "9", "--share", "none", "--narrow", "--size", "2", "--folders", "a", "--folders", "b")
    made = asked(*given)
    assert made == Asked(name="x", n_random=9, share=None, wide=False, inner=Inner(2), folders=(Path("a"), Path("b")))
    assert build(Asked, {("name",): "x", ("inner", "size"): 9}).inner == Inner(9)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("x", "--random", "-1"), "--random is -1; it must be at least 0 and less than 10"),
        (("x", "-r", "10"), "--random is 10; it must be at least 0 and less than 10"),
        (("x", "--share", "0"), "--share is 0.0; it must be more than 0 and at most 1"),
        (("x", "--share", "nan"), "--share is nan; it must be more than 0 and at most 1"),
        (("x", "--size", "1"), "--size is 1; it must be at least 2"),
        (("x", "--randm", "1"), "Did you mean --random? See outlierlens try --help"),
        (("x", "--random", "two"), 'unable to convert "two" into int'),
        ((), "Parameter NAME requires an argument"),
        (("x", "y"), "Unused Tokens: y. Quote a name that holds spaces: 'x y'."),
        (("x", "--random", "2", "3"), "Unused Tokens: 3. Separate numbers with commas: 2,3."),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(Usage) as refused:
        asked(*words)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.code == 2


def test_what_a_reader_cannot_read_is_bad_input(run: Any) -> None:
    with pytest.raises(Usage, match="cannot read 'half'; write a number, or none"):
        asked("x", "--share", "half")
    for words in (
        ("scan", "m", "--model-args", "max-read=two"),
        ("disable", "m", "--dims", "x"),
        ("atlas", "build", "--query", "a=1", "-o", "a"),
    ):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), err


def test_python_holds_to_the_same_bounds() -> None:
    for wrong, says in (({"n_random": 10}, "n_random is 10; it must be"), ({"share": 2.0}, "share is 2.0")):
        with pytest.raises(BadInput, match=says):
            Asked(name="x", **wrong)  # type: ignore[arg-type]


def test_help_says_defaults_and_strings(capsys: pytest.CaptureFixture[str]) -> None:
    call(command("try", "Try it.", {"options": Asked}, lambda options: None), ["--help"])
    lines = [" ".join(line.strip("│ ").split()) for line in capsys.readouterr().out.splitlines()]
    assert "--random -r INT Draws. [default: 5]" in lines
    assert "--share STR A part. [default: 0.5]" in lines
    assert "--size INT How large. [default: 4]" in lines
    assert not any("Only Python" in line for line in lines)


@dataclass(frozen=True, kw_only=True)
class Parted:
    """Options of one flag."""

    rule: Annotated[Literal["one", "two"], Flag("--rule")] = "one"
    """Which."""
    width: Annotated[float, Flag("w", into="--rule"), Gt(0)] = 1.0
    """How wide."""
    folder: Annotated[Path | None, Flag(into="--rule")] = None
    """Where."""
    same_layer: Annotated[bool, Flag(into="--rule")] = False
    """In one layer."""
    whole: Annotated[bool | None, Flag(into="--more")] = None
    """Whether all of it."""
    size: Annotated[int, Flag(into="--more", read="options:parse_bytes")] = 1
    """How large."""


def parted(*words: str) -> Parted:
    got: list[Parted] = []
    call(command("try", "Try it.", {"options": Parted}, lambda **given: got.append(given["options"])), words)
    return got[0]


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ((), Parted()),
        (("--rule", "two"), Parted(rule="two")),
        (("--rule", "two:w=0.5,same-layer"), Parted(rule="two", width=0.5, same_layer=True)),
        (("--rule", "same-layer,folder=a:b,c"), Parted(same_layer=True, folder=Path("a:b,c"))),
        (("--rule", "two", "--rule", "w=3"), Parted(rule="two", width=3.0)),
        (("--more", "size=2kB"), Parted(size=2000)),
        (("--more", "whole=no,size=3"), Parted(whole=False, size=3)),
    ],
)
def test_one_flag_holds_many_parts(words: tuple[str, ...], made: Parted) -> None:
    assert parted(*words) == made


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rule", "three"), "--rule is 'three'; use one, two"),
        (("--rule", "two:wide=1"), "cannot read --rule 'two:wide=1'; its parts are w, folder, same-layer"),
        (("--rule", "w=x"), "cannot read --rule w 'x'; write a number"),
        (("--rule", "w=0"), "--rule w is 0.0; it must be more than 0"),
        (("--rule", "same-layer=yes"), "--rule same-layer=yes: write same-layer"),
        (("--rule", "two,w"), "--rule w: write w=VALUE"),
        (("--more", "3"), "cannot read --more '3'; its parts are whole, size"),
        (("--more", "whole=3"), "--more whole is '3'; use yes or no"),
        (("--more", "size=two"), "cannot read the size 'two'"),
    ],
)
def test_a_wrong_part_is_refused_in_one_line(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(Usage) as refused:
        parted(*words)
    assert says in str(refused.value)


def test_an_export_names_a_tool_and_a_file() -> None:
    assert written_for(parse_export("llama.cpp:a:b.txt"), ("gguf", "mlx"), {"llama.cpp": "gguf"}) == "gguf"
    assert parse_export("llama.cpp:a:b.txt")[1] == "a:b.txt"
    with pytest.raises(BadInput, match="--export ggf: no such tool; there are gguf, mlx; near: 'gguf'"):
        written_for(("ggf", "f"), ("gguf", "mlx"))
    with pytest.raises(BadInput, match="name the file to write, such as --export mlx:FILE"):
        written_for(("mlx", ""), ("gguf", "mlx"))


def test_two_groups_may_not_have_one_option() -> None:
    with pytest.raises(TypeError, match="two groups have an option size"):
        command("try", "Try it.", {"a": Inner, "b": Asked}, lambda a, b: None)


def test_options_import_no_heavy_library() -> None:
    code = (
        "import sys, outlierlens; print(sorted(name for name in sys.modules if name.startswith('outlierlens')));"
        "import outlierlens.session, outlierlens.analyses.quantize;"
        "print({'torch', 'cyclopts'} & set(sys.modules)); print(outlierlens.OutlierlensError.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['outlierlens']", "set()", "OutlierlensError"]


# Cells and tables.


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"), (float("nan"), "–"), (Change(0.25), "+0.25"), (Change(-0.0), "+0"), (Share(0.054), "5 %"),
        (Count(12345), "12,345"), (FineShare(0.0017), "0.2 %"), (Fraction(4, 30), "4/30"),
        (ExactValue(0.1234567891), "0.123456789"),
        (Share(0.999), "over 99 %"), (P(0.00312), "0.0031"), (Interval(-1, 2.5), "-1 to +2.5"),
        (FineShare(0.0543), "5.4 %"), (ShareInterval(-0.5, 0.054), "-50 to 5 %"), (ShareInterval(0, 0), "0 to 0 %"),

        (Interval(float("nan"), 1), "not settled"), (ShareInterval(float("nan"), 1), "not settled"),
        (12345.6, "12,346"), (0.00001234, "1.2e-05"), (0.123456, "0.1235"),
        (True, "yes"), ((3, 7), "3, 7"), (4, "4"), ("a", "a"),
    ],
)  # fmt: skip
def test_a_cell_is_written_by_its_type(cell: Any, text: str) -> None:
    assert cell_text(cell) == text


def test_a_table_on_a_terminal_shows_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(Rows("[bold]T", ("what", "n"), (("[red]x\x1b[0m", 3), ("longer", 10)), "A note."), sys.stdout)
    empty, title, head, first, second, note = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert (empty, title, note) == ("", "[bold]T", "A note.")
    assert head.split() == ["what", "n"]
    assert first.startswith("[red]x")
    assert "\x1b" not in first
    assert first.endswith(" 3")
    assert second.split() == ["longer", "10"]


def test_a_table_that_fits_is_written_as_it_would_be_drawn() -> None:
    lines = [("名前", "n", "what"), ("à b", "3", "é"), ("longer", "10", "日本語 x")]
    plain, drawn = io.StringIO(), io.StringIO()
    print_rows(Rows("", lines[0], tuple((one, int(n), other) for one, n, other in lines[1:])), plain)
    render._draw(lines, [True, False, True], drawn)
    assert plain.getvalue() == drawn.getvalue()
    wide = io.StringIO()
    print_rows(Rows("", ("what",), (("word " * 100,),)), wide)
    assert max(map(len, wide.getvalue().splitlines())) <= render.WIDTH


def test_a_shared_option_can_become_a_required_one() -> None:
    declared, options = changed(SplitReading, {"task": Override(REQUIRED), "data": Override("rte/"), "limit": None})
    assert build(declared, {("task",): "rte"}) == SplitReading(task="rte", data="rte/")
    named = {one.name: one for one in options}
    assert (named["task"].required, named["data"].default, "limit" in named) == (True, "rte/", False)
