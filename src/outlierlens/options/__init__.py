'''An option is said once: a field of a frozen dataclass, with its bounds beside its type and its help in the string below it.

    @dataclass(frozen=True, kw_only=True)
    class RoundingOptions:
        n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
        """Random sets of kept dimensions of the same size."""
        task: Annotated[TaskOptions, Flat("max_length")] = TaskOptions(max_length=128)

        def __post_init__(self) -> None:
            check(self)                                     # n_random is -1; it must be at least 0

The command line, its help and its page are made from `options_of(RoundingOptions)`; `parse_layers("0-3,7")` reads words.
Modules of options import neither torch nor a library for command lines.
'''

import ast
import dataclasses
import functools
import importlib
import inspect
import math
import operator
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import BaseMetadata, Ge, Gt, Le, Lt

from outlierlens.errors import BadInput, near

Find = Literal["find"]
FIND: Find = "find"  # as dimensions: those that the model's weights name
_NEXT_LAYER = re.compile(r"(:[^;:]*?),(?=\s*\d+\s*:)")  # a comma behind one layer's dimensions, before the next layer


def parse_dims(text: str) -> tuple[int, ...] | dict[int, tuple[int, ...]]:
    """ "308,381" -> dims in every layer; "0-9:896;10-16:678,896" -> {layer: dims}, layers counted from 0, ends included.

    A comma may take the semicolon's place: "11:1229,12:40", as neurons are named.

    Raises:
        BadInput: with the part that cannot be read.
    """
    if ":" not in text:
        return tuple(_numbers(text, text))
    plan: dict[int, tuple[int, ...]] = {}
    for part in _NEXT_LAYER.sub(r"\1;", text).split(";"):
        layers, _, dims = part.partition(":")
        if re.fullmatch(r"\s*\d+\s*:\s*\d+\s*", dims):
            raise BadInput(
                f"{part.strip()} is a neuron of an expert, and dimensions are named here layer by layer, without experts; "
                "observe --rule all and trace set single weights of experts to 0"
            )
        for layer in parse_layers(layers):
            plan[layer] = tuple(dict.fromkeys((*plan.get(layer, ()), *_numbers(dims, text))))
    return plan


def plain_dims(text: str, option: str = "--dims", remedy: str = "") -> tuple[int, ...]:
    """ "308,381" -> (308, 381); raises BadInput where layers are named, with the `remedy`, or where it cannot be read."""
    dims = parse_dims(text)
    if isinstance(dims, dict):
        raise BadInput(f"{option} {text!r} names layers; {remedy or 'write dimensions alone, such as 308,381'}")
    return dims


def chosen_dims(text: str) -> tuple[int, ...] | Find:
    """ "308,381" -> (308, 381); "find" as it is, for those that the model's weights name."""
    return FIND if text == FIND else plain_dims(text)


def planned_dims(text: str) -> tuple[int, ...] | dict[int, tuple[int, ...]] | Find:
    """What `parse_dims` reads; "find" as it is."""
    return FIND if text == FIND else parse_dims(text)


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "42,43" -> (42, 43); raises BadInput for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise BadInput(f"cannot read seeds {text!r}; write 42,43")
    return tuple(map(int, parts))


def parse_steps(text: str) -> tuple[int, ...]:
    """ "0,500,10_000" -> (0, 500, 10000); raises BadInput for anything else."""
    parts = [part.strip().replace("_", "") for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 13 for part in parts):
        raise BadInput(f"cannot read steps {text!r}; write them as 0,500,1000")
    return tuple(map(int, parts))


def parse_sets(text: str) -> tuple[tuple[int, ...], ...]:
    """ "100,247;507,100" -> ((100, 247), (507, 100)).

    Raises:
        BadInput: with the part that cannot be read.
    """
    if ":" in text:
        raise BadInput(f"cannot read sets {text!r}; write 100,247;507,100, and name layers with --layers or --windows")
    return tuple(tuple(_numbers(part, text)) for part in text.split(";"))


def parse_layers(text: str) -> tuple[int, ...]:
    """ "0-3,7" -> (0, 1, 2, 3, 7)."""
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first + last) > 10:
            raise BadInput(f"cannot read layers {text!r}; write them as 0-3,7")
        stop = int(last or first)
        if stop - int(first) > 10_000:
            raise BadInput(f"{text!r} names more than 10,000 layers")
        layers += range(int(first), stop + 1)
    return tuple(layers)


def parse_export(text: str) -> tuple[str, str]:
    """ "gguf:types.txt" -> ("gguf", "types.txt"); without a file ("gguf", "")."""
    tool, _, file = text.partition(":")
    return tool, file


def written_for(export: tuple[str, str], tools: tuple[str, ...], also: Mapping[str, str] | None = None) -> Any:
    """The tool of what `parse_export` read, one of `tools`, or what another name of `also` stands for.

    Raises:
        BadInput: another tool, or no file.
    """
    tool, file = export
    known = dict(zip(tools, tools, strict=True)) | dict(also or {})
    if tool not in known:
        raise BadInput(f"--export {tool}: no such tool; there are {', '.join(known)}{near(tool, known)}")
    if not file:
        raise BadInput(f"--export {tool}: name the file to write, such as --export {tool}:FILE")
    return known[tool]


def parse_names(text: str) -> tuple[str, ...]:
    """ "negative, positive" -> ("negative", "positive"); empty ones are left out."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(text: str, whole: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        if re.fullmatch(r"[\d\s;,]+", whole):
            together = ",".join(re.findall(r"\d+", whole))
            raise BadInput(f"cannot read dimensions {whole!r}; separate dimensions with commas: {together}")
        raise BadInput(f"cannot read dimensions {whole!r}; write 308,381 or, layer by layer, 0-9:896;10-16:678")
    return [int(part) for part in parts]


def parse_bytes(text: str) -> int:
    """ "500MB" -> 500,000,000; kB, MB, GB or plain bytes."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
    number = text.strip().rstrip("kKmMgGbB")
    unit = text.strip()[len(number) :].lower()
    try:
        if not 0 <= (size := float(number) * units[unit]) < 2**63:
            raise ValueError
        return int(size)
    except (ValueError, KeyError, OverflowError):
        raise BadInput(f"cannot read the size {text!r}; write it as 500MB or 2GB") from None


def number_or_none(text: str) -> float | None:
    """A number, or None for "none"."""
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"cannot read {text!r}; write a number, or none") from None


def given_dims(dims: Any) -> Any:
    """Dimensions as people give them, as numbers: 507, [308, 381], an array, "308,381", {layer: dimensions}; words stay.

    Raises:
        BadInput: anything else, such as fractions.
    """
    if isinstance(dims, str):
        return parse_dims(dims) if any(map(str.isdecimal, dims)) else dims
    if dims is None:
        return dims
    if isinstance(dims, Mapping):
        return {layer: given_dims(some) for layer, some in dims.items()}
    if hasattr(dims, "tolist"):  # an array or a number of numpy, a tensor
        dims = dims.tolist()
    if isinstance(dims, set | frozenset | range):
        dims = sorted(dims)
    several = tuple(dims) if isinstance(dims, list | tuple) else (dims,)
    several = tuple(one.item() if hasattr(one, "item") else one for one in several)
    if any(one is None or isinstance(one, bool | float | list | tuple) for one in several):
        raise BadInput(f'dims is {dims!r:.60}; give whole numbers such as 507 or [308, 381], or "find"')
    return several


# --- options ---------------------------------------------------------------------------------------------------------

T = TypeVar("T")
REQUIRED: Any = dataclasses.MISSING  # as a default: one must be given
# What a bound says, and whether a value keeps it.
_BOUNDS: dict[type[BaseMetadata], tuple[str, str, Callable[[Any, Any], bool]]] = {
    Ge: ("ge", "at least", lambda value, end: value >= end),
    Gt: ("gt", "more than", lambda value, end: value > end),
    Le: ("le", "at most", lambda value, end: value <= end),
    Lt: ("lt", "less than", lambda value, end: value < end),
}


class Flag:
    """What the command line calls a field, where `--` and its name will not do, and how its words are read.

    Attributes:
        names: "--random", or "-o", "--output"; none for the field's own name.
        read: "module:function" of this package that makes a value of one string; imported when an option is given.
        words: the default as a user would write it, for options with `read`; "" shows none.
        into: the option that it is a part of, where its name is a key: `--rule kovaleva:sigma=3,same-layer`.
        argument: whether it stands without a name, by its place.
        repeats: whether it may be given again and again; `read` then gets all the strings.
        hidden: whether only Python has it.
    """

    def __init__(
        self,
        *names: str,
        read: str = "",
        words: str = "",
        into: str = "",
        argument: bool = False,
        repeats: bool = False,
        hidden: bool = False,
    ) -> None:
        self.names, self.read, self.words, self.into = names, read, words, into
        self.argument, self.repeats, self.hidden = argument, repeats, hidden


class Flat:
    """The fields of a nested options dataclass that the command line has; all of them where none is named."""

    def __init__(self, *names: str) -> None:
        self.names = names


class Override:
    """What a command changes of an option that it shares with others: its default, where one is given, its help, its least."""

    def __init__(self, *default: Any, help: str = "", least: int | None = None) -> None:
        self.default, self.help, self.bounds = default, help, () if least is None else (Ge(least),)


DimsOrFind = Annotated[tuple[int, ...] | Find, Flag(read="options:chosen_dims", words=FIND)]


@dataclass(frozen=True)
class Option:
    """One option, as every surface needs it.

    Attributes:
        path: names of the fields that lead to it: ("task", "max_length").
        flag: how the command line calls it and reads it.
        flags: its spellings, longest last; () for an argument and for a part of another option.
        kind: its type without bounds: int, float | None, bool, Path.
        bounds: of `annotated_types`.
        default: `dataclasses.MISSING` where one must be given.
        help: the string below the field, one line.
    """

    path: tuple[str, ...]
    flag: Flag
    flags: tuple[str, ...]
    kind: Any
    bounds: tuple[BaseMetadata, ...]
    default: Any
    help: str

    @property
    def name(self) -> str:
        """Of the parameter: the last field."""
        return self.path[-1]

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def is_named_group(self) -> bool:
        """Whether it is a group of options that its name stands for: rule="puccetti", task="masked loss"."""
        return dataclasses.is_dataclass(self.kind) and any(one.name == "name" for one in dataclasses.fields(self.kind))

    @property
    def spelt(self) -> str:
        """How errors of the command line call it: --random, --rule sigma."""
        if self.flag.into:
            return f"{self.flag.into} {self.key}"
        return self.flags[-1].partition("/")[0] if self.flags else self.name.upper()

    @property
    def key(self) -> str:
        """How a part of another option is called."""
        return self.flag.names[0] if self.flag.names else self.name.replace("_", "-")

    def value(self, given: str | list[str]) -> Any:
        """What the words of a command line mean, by `flag.read`; raises BadInput of the reader."""
        module, _, function = self.flag.read.partition(":")
        return operator.attrgetter(function)(importlib.import_module(f"outlierlens.{module}"))(given)

    def of_word(self, word: str) -> Any:
        """What a word means by the option's type; raises BadInput where it means nothing."""
        if self.flag.read:
            return self.value(word)
        choices = typing.get_args(self.kind)
        if typing.get_origin(self.kind) is Literal:
            if word not in choices:
                raise BadInput(f"{self.spelt} is {word!r:.60}; use {', '.join(choices)}{near(word, choices)}")
            return word
        kind = next((one for one in choices if one is not type(None)), self.kind)
        if kind is bool:
            if word not in ("yes", "no"):
                raise BadInput(f"{self.spelt} is {word!r:.40}; use yes or no")
            return word == "yes"
        try:
            return kind(word)
        except ValueError:
            raise BadInput(f"cannot read {self.spelt} {word!r:.40}; write a number") from None


def parts_of(text: str, name: str, head: Option | None, parts: tuple[Option, ...]) -> Iterator[tuple[Option, Any]]:
    """Each option that "kovaleva:sigma=3,same-layer" sets, with its value: the `head` before the first key, then `parts`.

    Raises:
        BadInput: words that are no part of the option `name`, or mean nothing.
    """
    keys = {one.key: one for one in parts}
    which = "|".join(sorted(map(re.escape, keys), key=len, reverse=True))
    first, *given = re.split(rf"(?:^|[,:])(?=(?:{which})(?:=|,|$))", text)
    strange = re.search(r"(?:^|[,:])([a-z][a-z-]*)=[^/\\]*$", first)
    if first and (head is None or strange):
        wrong = strange[1] if strange else first
        raise BadInput(f"cannot read {name} {text!r:.80}; its parts are {', '.join(keys)}{near(wrong, keys)}")
    if first and head is not None:
        yield head, head.of_word(first)
    for word in given:
        key, equals, value = word.partition("=")
        one = keys[key]
        if bool(equals) == (one.kind is bool):
            raise BadInput(f"{name} {word}: write {key}{'' if one.kind is bool else '=VALUE'}")
        yield one, one.of_word(value) if equals else True


def options_of(options: Any) -> tuple[Option, ...]:
    """The options of a dataclass, or of an instance, whose values are then the defaults; nested ones in their place."""
    cls = options if isinstance(options, type) else type(options)
    return tuple(_options(cls, None if cls is options else options, (), None))


@functools.cache
def settings_of(cls: type) -> dict[str, tuple[Option, ...]]:
    """Every field of an options dataclass, those of nested ones and nested ones themselves too: by name what it sets.

    Of several fields of one name that is the least nested, and the task's, whose seed is the experiment's.
    """
    found: dict[str, list[Option]] = {}
    for one in sorted(_options(cls, None, (), None, every=True), key=lambda one: len(one.path)):
        same = found.setdefault(one.name, [])
        if not same or len(one.path) == len(same[0].path) or one.path[0] == "task":
            same.append(one)
    return {name: tuple(same) for name, same in found.items()}


def set_by(setting: tuple[Option, ...], given: Any) -> dict[tuple[str, ...], Any]:
    """What `build` takes, of a setting's value, of the words of a command line for it, or of a group's name ("puccetti")."""
    one = setting[0]
    if isinstance(given, str) and one.is_named_group:
        return {(*one.path, "name"): given}
    if isinstance(given, str) and one.flag.read and one.kind is not str:
        given = one.value([given] if one.flag.repeats else given)
    return {each.path: given for each in setting}


def _options(
    cls: type, instance: Any, path: tuple[str, ...], only: tuple[str, ...] | None, *, every: bool = False
) -> Iterator[Option]:
    """With `every`, those too that the command line does not have, and groups of options."""
    hints, helps = _hints(cls), docstrings(cls)
    for field in dataclasses.fields(cls):
        if (only and field.name not in only and not every) or (every and path and field.name == "name"):
            continue
        default = _default(field) if instance is None else getattr(instance, field.name)
        kind, *marks = typing.get_args(hints[field.name]) if _annotated(hints[field.name]) else (hints[field.name],)
        flat = next((mark for mark in marks if isinstance(mark, Flat)), None)
        flag = next((mark for mark in marks if isinstance(mark, Flag)), Flag())
        if flag.hidden and not every:
            continue
        here = (*path, field.name)
        if flat is not None or (every and dataclasses.is_dataclass(kind)):
            if every:
                yield Option(here, flag, (), kind, (), default, helps.get(field.name, ""))
            start = None if default is dataclasses.MISSING else default
            yield from _options(kind, start, here, flat.names if flat else None, every=every)
            continue
        flags = () if flag.argument or flag.into else flag.names or (f"--{field.name.replace('_', '-')}",)
        bounds = tuple(mark for mark in marks if isinstance(mark, BaseMetadata))
        yield Option(here, flag, flags, kind, bounds, default, helps.get(field.name, ""))


def changed(options: type[T] | T, changes: Mapping[str, Override | None]) -> tuple[type[T] | T, tuple[Option, ...]]:
    """(the dataclass with other defaults, its options): by name what becomes of an option; None takes it away."""
    own = [one for one in options_of(options) if one.name in changes]
    given = {one.path: change.default[0] for one in own if (change := changes[one.name]) and change.default}
    values = {path: value for path, value in given.items() if value is not REQUIRED}  # which no instance may hold
    options = build(options, values) if values else options
    found = []
    for one in options_of(options):
        change = changes.get(one.name, Override())
        if change is not None:
            default = given.get(one.path, one.default)
            bounds = change.bounds or one.bounds
            found.append(dataclasses.replace(one, default=default, bounds=bounds, help=change.help or one.help))
    return options, tuple(found)


def build(options: type[T] | T, values: Mapping[tuple[str, ...], Any]) -> T:
    """The dataclass with `values` by path in place of defaults."""
    own = {path[0]: value for path, value in values.items() if len(path) == 1}
    nested: dict[str, dict[tuple[str, ...], Any]] = {}
    for path, value in values.items():
        if len(path) > 1:
            nested.setdefault(path[0], {})[path[1:]] = value
    for name, inner in nested.items():
        if name in own:
            start = own[name]
        elif isinstance(options, type):
            start = _default(next(field for field in dataclasses.fields(options) if field.name == name))  # type: ignore[arg-type]
        else:
            start = getattr(options, name)
        own[name] = build(_kind(options, name) if start is dataclasses.MISSING else start, inner)
    if isinstance(options, type):
        return options(**own)
    return dataclasses.replace(options, **own)  # type: ignore[type-var]


def check(options: Any) -> None:
    """Raise BadInput for the first field of a dataclass that is outside its bounds; `dims` become a tuple of numbers."""
    cls: Any = type(options)
    if (kind := _hints(cls).get("dims")) not in (None, str):
        dims = given_dims(options.dims)
        if isinstance(dims, dict) and isinstance(options.dims, str) and "Mapping" not in str(kind):
            dims = plain_dims(options.dims)  # which says that layers have no place here
        object.__setattr__(options, "dims", dims)
    for name, bounds in _bounds(cls):
        check_value(name, getattr(options, name), bounds)


class Options:
    """What a dataclass of options is made of: raises BadInput, as `check`, for a field outside its bounds."""

    def __post_init__(self) -> None:
        check(self)


def check_value(name: str, value: Any, bounds: tuple[BaseMetadata, ...]) -> None:
    """Raise BadInput where a number is outside its bounds, or is no number; None is what an optional field may be."""
    if value is None or not bounds:
        return
    if isinstance(value, float) and math.isnan(value):
        raise BadInput(f"{name} is nan; it must be {bounds_text(bounds)}")
    for bound in bounds:
        attribute, _, keeps = _BOUNDS[type(bound)]
        if not keeps(value, getattr(bound, attribute)):
            raise BadInput(f"{name} is {value}; it must be {bounds_text(bounds)}")


def belong(to: str, options: Any, *names: str) -> None:
    """Raise BadInput where options, of `names` if there are any, differ from their defaults: they belong `to` another."""
    given = []
    for one in options_of(type(options)):
        value = functools.reduce(getattr, one.path, options)
        if (one.name in names or not names) and value != one.default:
            given.append(one.spelt)
    if given:
        raise BadInput(f"{' and '.join(given)} belong{'s' * (len(given) == 1)} {to}")


def bounds_text(bounds: tuple[BaseMetadata, ...]) -> str:
    """ "at least 0 and at most 1" """
    return " and ".join(f"{_BOUNDS[type(one)][1]} {getattr(one, _BOUNDS[type(one)][0])}" for one in bounds)


@functools.cache
def _bounds(cls: type) -> tuple[tuple[str, tuple[BaseMetadata, ...]], ...]:
    found = []
    for name, hint in _hints(cls).items():
        bounds = tuple(mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, BaseMetadata))
        if bounds:
            found.append((name, bounds))
    return tuple(found)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _kind(options: Any, name: str) -> Any:
    hint = _hints(options if isinstance(options, type) else type(options))[name]
    return typing.get_args(hint)[0] if _annotated(hint) else hint


def _annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@functools.cache
def _classes(module: str) -> dict[str, ast.stmt]:
    """The classes at the top of a module by name; `inspect` looks for each by reading every token, many times as slowly."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {found.name: found for found in tree.body if isinstance(found, ast.ClassDef)}


@functools.cache
def docstrings(cls: type) -> dict[str, str]:
    """Field -> the string below it, in one line; of base classes too."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(one):
            continue
        body = _classes(one.__module__).get(one.__qualname__)
        if body is None:  # of a function, as in tests
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                found[field.target.id] = " ".join(below.value.value.split())
    return found


def __getattr__(name: str) -> Any:
    """`Rule`, and options of what people call from Python by the name of their class: each function's module has its own."""
    if re.fullmatch("[A-Z][A-Za-z]+(Options|Settings)|Rule", name):
        homes = dict.fromkeys(importlib.import_module("outlierlens.commands").homes().values())
        stem = re.sub("Options|Settings", "", name).lower()[:5]
        for home in sorted(homes, key=lambda home: stem not in home):
            if found := getattr(importlib.import_module(f"outlierlens.{home}"), name, None):
                return found
    raise AttributeError(f"module 'outlierlens.options' has no attribute {name!r}")
