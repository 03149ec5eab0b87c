"""A command made from dataclasses of options: cyclopts reads the words, `options.build` makes the objects.

app = command("quantize", "Round weights …", {"options": QuantizeOptions, "load": Loading}, run)
app(["mpnet-base", "--random", "3"])                  # calls run(options=QuantizeOptions(…), load=Loading(…))
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal, get_args

from cyclopts import App, CycloptsError, Group, Parameter, Token

from outlierlens.errors import BadInput
from outlierlens.options import Option, build, check_value, options_of


class Usage(BadInput):
    """Words that are no call of a command."""

    code = 2  # of the process


# Of whole numbers: no count, length or seed is larger, and arrays of that size still have a number of bytes.
LARGEST = 10**12
# Headings of what commands share; a command's own options stand under "Options".
PANELS = {name: Group(name, sort_key=place) for place, name in enumerate(("Arguments", "Options", "Output", "Model"))}
HEADINGS = {"output": "Output", "rows": "Output", "loading": "Model", "source": "Model"}


def command(name: str, about: str, groups: Mapping[str, Any], run: Callable[..., None]) -> App:
    """A cyclopts app of one command: `run` gets each group, a dataclass or an instance with other defaults, under its name.

    A group may also be a pair, the dataclass and those of its options that the command takes (`options.changed`).

    Raises:
        TypeError: two groups have an option of the same name.
    """
    pairs = {group: one if isinstance(one, tuple) else (one, options_of(one)) for group, one in groups.items()}
    classes, options = ({group: pair[place] for group, pair in pairs.items()} for place in (0, 1))
    parameters: dict[str, inspect.Parameter] = {}
    headed = [
        (one, "Arguments" if one.flag.argument else HEADINGS.get(group, "Options"))
        for group, listed in options.items()
        for one in listed
    ]
    for option, heading in sorted(headed, key=lambda one: not one[0].flag.argument):
        if option.name in parameters:
            raise TypeError(f"{name}: two groups have an option {option.name}")
        parameters[option.name] = _parameter(option, heading)

    def call(*arguments: Any, **given: Any) -> None:
        given |= zip(parameters, arguments, strict=False)
        built = {}
        for group, of_group in options.items():
            values = {one.path: _value(one, given[one.name]) for one in of_group if one.name in given}
            built[group] = build(classes[group], values)
        run(**built)

    call.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    call.__doc__ = about
    arguments = " ".join(one.spelt if one.required else f"[{one.spelt}]" for one, _ in headed if one.flag.argument)
    app = App(
        name=name.rsplit(maxsplit=1)[-1],
        help=about,
        usage=f"Usage: outlierlens {name} [OPTIONS] {arguments}",
        version_flags=[],
        help_flags=["--help", "-h"],
        help_format="plaintext",  # <s> in a help text is no markup
        result_action="return_value",
        group_arguments=PANELS["Arguments"],
        group_parameters=PANELS["Options"],
        group_commands=Group("Help", sort_key=9),
    )
    app.default(call)
    return app


_OFFER: list[Callable[[Option], tuple[str, ...]]] = []


@contextmanager
def offering(offer: Callable[[Option], tuple[str, ...]]) -> Iterator[None]:
    """While it lasts, commands that are made name the values that `offer(option)` gives, as if there were no others."""
    _OFFER.append(offer)
    try:
        yield
    finally:
        _OFFER.remove(offer)


def _parameter(option: Option, heading: str) -> inspect.Parameter:
    flag = option.flag
    name, _, negative = option.flags[-1].partition("/") if option.flags else ("", "", "")
    marks = Parameter(
        name=(*option.flags[:-1], name) if option.flags else None,
        negative=negative or "",
        help=option.help,
        converter=partial(_whole_number, option)
        if int in (option.kind, *get_args(option.kind)) and not flag.read
        else None,
        env_var=flag.env or None,
        group=PANELS[heading],
        show_env_var=False,
        show_default=False
        if option.default is None
        or option.default is False
        or option.default in ("", ())
        or (flag.read and not flag.words)
        else _words(option),
    )
    kind = inspect.Parameter.POSITIONAL_ONLY if flag.argument else inspect.Parameter.KEYWORD_ONLY
    words = list[str] if flag.repeats else str
    hint, default = (words, None) if flag.read else (option.kind, option.default)
    if offers := next((found for offer in _OFFER if (found := offer(option))), ()):
        hint = list[Literal[offers]] if "tuple" in str(option.kind) and not flag.read else Literal[offers]  # type: ignore[valid-type]
    if default is None:
        hint |= None  # also where only this command's default is none
    if option.required:
        default = inspect.Parameter.empty
    return inspect.Parameter(option.name, kind, default=default, annotation=Annotated[hint, marks])


def _whole_number(option: Option, _: Any, tokens: Sequence[Token]) -> int | None:
    """A word as a whole number; cyclopts itself would round fractions. It makes a line of a ValueError."""
    word = tokens[0].value.lower()
    if word in ("none", "null") and type(None) in get_args(option.kind):
        return None
    try:
        return int(word, 16 if word.startswith("0x") else 10)
    except ValueError:
        raise ValueError(f'unable to convert "{tokens[0].value:.40}" into int.') from None


def _words(option: Option) -> Any:
    return (lambda _: option.flag.words) if option.flag.words else True


def _value(option: Option, given: Any) -> Any:
    """What was given as the dataclass takes it, within its bounds."""
    try:
        value = option.value(given) if option.flag.read and isinstance(given, str | list) else given
        if isinstance(value, int) and not option.flag.read and abs(value) > LARGEST:
            raise Usage(f"{option.spelt} is too large; it must be at most {LARGEST:,}")
        check_value(option.spelt, value, option.bounds)
    except BadInput as error:
        raise Usage(str(error)) from None
    return tuple(value) if isinstance(value, list) else value


def call(app: App, words: Sequence[str], *, run: bool = True, named: str | None = None) -> None:
    """Run what the words name, or with `run=False` only read them; `named` is the command that errors point to.

    Raises:
        Usage: words that it does not take.
    """
    try:
        (app if run else app.parse_args)(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        said = re.sub(r" ?Available commands: .*", "", " ".join(str(error).split()))
        command = (app.name[0] if named is None else named).split()
        raise Usage(f"{said} See {' '.join(('outlierlens', *command))} --help") from None
