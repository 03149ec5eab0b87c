"""The program: `run(words)` calls the command that they name, `read(words)` only reads them; the table says which there are.

A command is made from dataclasses of options: cyclopts reads the words, `options.build` makes the objects. Only what the called
command declares is imported, and nothing for `--help`. Completion names commands and options by their row, and values from
where each is declared; those of `OFFERED` take other words too.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import App, CycloptsError, Group, Parameter, Token, UnusedCliTokensError

from outlierlens import __version__
from outlierlens.cli.overview import ABOUT, FAMILIES, INSTALL, PROGRAM, SHOW
from outlierlens.errors import BadInput, shell
from outlierlens.experiments import BY_NAME, EXPERIMENTS
from outlierlens.options import Flag, Option, build, check_value, options_of, parts_of
from outlierlens.options.experiment import GROUP_NAMES, GROUPS, title


class Usage(BadInput):
    """Words that do not call a command."""

    code = 2  # of the process


# Of whole numbers: no count, length or seed is larger, and arrays of that size still have a number of bytes.
LARGEST = 10**12
# Headings of what commands share; a command's own options stand under "Options".
PANELS = {name: Group(name, sort_key=place) for place, name in enumerate(("Arguments", "Options", "Output", "Model"))}
HEADINGS = {"output": "Output", "loading": "Model", "source": "Model"}

SHOWN = 12  # options of a command in --help


def command(name: str, about: str, groups: Mapping[str, Any], run: Callable[..., None]) -> App:
    """A cyclopts app of one command: `run` gets each group, a dataclass or an instance with other defaults, under its name.

    A group may also be a pair, the dataclass and those of its options that the command takes (`options.changed`).

    Raises:
        TypeError: two groups have an option of the same name.
    """
    pairs = {group: one if isinstance(one, tuple) else (one, options_of(one)) for group, one in groups.items()}
    classes, options = ({group: pair[place] for group, pair in pairs.items()} for place in (0, 1))
    parameters: dict[str, inspect.Parameter] = {}
    every = [(one, group) for group, listed in options.items() for one in listed]
    headed = [(one, "Arguments" if one.flag.argument else HEADINGS.get(group, "Options")) for one, group in every]
    parts: dict[str, tuple[Option, ...]] = {}
    for one, _ in every:
        if one.flag.into:
            parts[one.flag.into] = (*parts.get(one.flag.into, ()), one)
    whole = _joined(headed, parts)
    listed = shown(options) | {one.spelt for one, _ in every if one.flag.argument}
    for option, heading in sorted(whole, key=lambda one: not one[0].flag.argument):
        if option.name in parameters:
            raise TypeError(f"{name}: two groups have an option {option.name}")
        parameters[option.name] = _parameter(option, heading, show=bool(_EVERYTHING) or option.spelt in listed)

    def call(*arguments: Any, **given: Any) -> None:
        given |= zip(parameters, arguments, strict=False)
        values = {
            id(one): _value(one, given[one.name]) for one, _ in headed if one.name in given and one.spelt not in parts
        }
        for option, _ in whole:
            if option.spelt in parts and (words := given.get(option.name)):
                head = next((one for one, _ in headed if one.spelt == option.spelt), None)
                for word in words:
                    values |= _of_parts(word, option.spelt, head, parts[option.spelt])
        built = {}
        for group, of_group in options.items():
            built[group] = build(classes[group], {one.path: values[id(one)] for one in of_group if id(one) in values})
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
        help_epilogue=None if _EVERYTHING or listed >= {one.spelt for one, _ in whole} else MORE,
        result_action="return_value",
        group_arguments=PANELS["Arguments"],
        group_parameters=PANELS["Options"],
        group_commands=Group("Help", sort_key=9),
    )
    app.default(call)
    return app


def shown(options: Mapping[str, Sequence[Option]]) -> frozenset[str]:
    """How those options are spelt, by group, that --help shows.

    What must be given, the command's own first six, the first two of each group that it shares, and what then has room.
    """
    ranked = []
    for group, of_group in options.items():
        own = group not in GROUPS
        named = {
            one.flag.into or one.spelt: one.required
            for one in sorted(of_group, key=lambda one: bool(one.flag.into))
            if not one.flag.argument
        }
        for place, (name, required) in enumerate(named.items()):
            rank = 0 if required else 1 if own and place < 6 else 2 + place if place < 2 else 4 if own else 5
            ranked.append((rank, name))
    names = dict.fromkeys(name for _, name in sorted(ranked, key=lambda one: one[0]))
    return frozenset(list(names)[:SHOWN])


def _joined(headed: list[tuple[Option, str]], parts: Mapping[str, tuple[Option, ...]]) -> list[tuple[Option, str]]:
    """The options as the words name them: parts are joined to the option that they belong to, which is made where none is."""
    heads = {one.spelt: (one, heading) for one, heading in headed if one.spelt in parts}
    for name, listed in parts.items():
        heading = next(heading for one, heading in reversed(headed) if one.flag.into == name)
        made = Option((name.strip("-").replace("-", "_"),), Flag(), (name,), str, (), None, "")
        head, heading = heads.get(name, (made, heading))
        keys = [f"{part.key}{'' if part.kind is bool else '=…'}" for part in listed]
        said = zip(keys, (part.help.rstrip(".") for part in listed), strict=True)
        about = (
            f"{head.help} With, by commas: "
            + ("; ".join(map(": ".join, said)) if _EVERYTHING else ", ".join(keys))
            + "."
        )
        default = head.default if isinstance(head.default, tuple) else () if head.default is None else (head.default,)
        words = head.flag.words or ",".join(map(str, default))
        joined = Flag(name, read="options:parts_of", words=words, repeats=True)
        heads[name] = (replace(head, flag=joined, help=about.strip()), heading)
    found, told = [], set[str]()
    for one, heading in headed:
        name = one.flag.into or one.spelt
        if name not in told:
            found.append(heads.get(name, (one, heading)))
        told |= {name} & heads.keys()
    return found


def _of_parts(text: str, name: str, head: Option | None, parts: tuple[Option, ...]) -> dict[int, Any]:
    """{id of the option: its value} of what is written with parts."""
    try:
        found = list(parts_of(text, name, head, parts))
    except BadInput as error:
        raise Usage(str(error)) from None
    return {id(one): _value(one, value) for one, value in found}


MORE = "--help-all shows every option."
_EVERYTHING: list[bool] = []
_OFFER: list[Callable[[Option], tuple[str, ...]]] = []


@contextmanager
def offering(offer: Callable[[Option], tuple[str, ...]]) -> Iterator[None]:
    """While it lasts, commands that are made name the values that `offer(option)` gives, as if there were no others."""
    _OFFER.append(offer)
    try:
        yield
    finally:
        _OFFER.remove(offer)


@contextmanager
def showing_everything() -> Iterator[None]:
    """While it lasts, the help of commands that are made shows every option."""
    _EVERYTHING.append(True)
    try:
        yield
    finally:
        _EVERYTHING.pop()


def _parameter(option: Option, heading: str, *, show: bool) -> inspect.Parameter:
    flag = option.flag
    name, _, negative = option.flags[-1].partition("/") if option.flags else ("", "", "")
    marks = Parameter(
        name=(*option.flags[:-1], name) if option.flags else None,
        negative=negative or "",
        help=option.help,
        converter=partial(_whole_number, option)
        if int in (option.kind, *get_args(option.kind)) and not flag.read
        else None,
        group=PANELS[heading],
        show=show,
        metavar="STR" if flag.read == "options:parts_of" else None,
        show_default=False
        if option.default is None
        or option.default is False
        or option.default in ("", ())
        or (flag.read and not flag.words)
        else (lambda _: flag.words)
        if flag.words
        else True,
    )
    kind = inspect.Parameter.POSITIONAL_ONLY if flag.argument else inspect.Parameter.KEYWORD_ONLY
    words = list[str] if flag.repeats else str
    hint, default = (words, None) if flag.read else (option.kind, option.default)
    if offers := next((found for offer in _OFFER if (found := offer(option))), ()):
        many = flag.repeats or ("tuple" in str(option.kind) and not flag.read)
        hint = list[Literal[offers]] if many else Literal[offers]  # type: ignore[valid-type]
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


def _value(option: Option, given: Any) -> Any:
    """What was given as the dataclass takes it, within its bounds."""
    try:
        read = option.flag.read and not option.flag.into  # a part is read by its word
        value = option.value(given) if read and isinstance(given, str | list) else given
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
        if said.startswith("Unknown command") and (two := next((n for n in BY_NAME if n.endswith(f" {words[0]}")), "")):
            said = f'Unknown command "{words[0]}". Did you mean "{two}"?'
        if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
            said = f"Unused Tokens: {', '.join(error.unused_tokens)}. {_meant(words, error.unused_tokens[0])}"
        command = (app.name[0] if named is None else named).split()
        raise Usage(f"{said} See {' '.join(('outlierlens', *command))} --help") from None


def _meant(words: Sequence[str], unused: str) -> str:
    """What was meant with a word that no option takes: more numbers, or a name that holds spaces."""
    place = max(place for place, word in enumerate(words) if word == unused)
    before = words[place - 1]
    if re.fullmatch(r"\d[\d,;:-]*", unused) and re.fullmatch(r"\d[\d,;:-]*", before):
        return f"Separate numbers with commas: {before.rstrip(',')},{unused}."
    return f"Quote a name that holds spaces: {shell(f'{before} {unused}')}." if before[:1] != "-" else "Give one value."


# --- completion ------------------------------------------------------------------------------------------------------

MODELS = ("checkpoints.samples:SAMPLES",)
# By the option's name: words, or the places of what lists them.
OFFERED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("MODEL", "MODELS", "BASE", "OTHER", "TUNED", "BEFORE", "AFTER", "NAMES", "--compare"), MODELS),
    "--task": ("tasks.base:OF_TEXTS", "data.labelled.labels:TASKS"),
    "--tasks": ("data.labelled.labels:TASKS",),
    "--sets": ("analyses.embed_pairs:TASKS",),
    "--data": ("data.texts:SHIPPED",),
    "--dtype": ("models.load:DTYPES",),
    "--device": ("auto", "cpu", "cuda", "mps"),
    "--mode": ("ablation.modes:MODES",),
    "--modes": ("ablation.modes:NAMES",),
    "RECIPE": ("training.pretrain.recipe:shipped",),
    "--rule": ("detection.rules:RULES", "all"),
    "--fix": ("vectors.fixes:KINDS",),
    "--fixes": ("vectors.fixes:KINDS",),
    "--precision": ("float32", "bfloat16"),
    "--report-to": ("tensorboard", "wandb", "mlflow", "trackio"),
}


def offered(option: Option) -> tuple[str, ...]:
    """The values that the shell offers for an option that takes other words too."""
    found: list[str] = []
    for one in OFFERED.get(option.spelt, ()):
        module, colon, name = one.partition(":")
        values = getattr(import_module(f"outlierlens.{module}"), name) if colon else [one]
        found += values() if callable(values) else values
    return tuple(
        dict.fromkeys(value.rpartition(":")[2] for value in found)
    )  # bash breaks words at a colon: rte for glue:rte


def script(make: Callable[[], App], shell: Literal["bash", "zsh", "fish", "powershell"]) -> str:
    """What sets up completion in `shell`; `make` makes the program anew, which then knows the values."""
    with offering(offered), showing_everything():
        text: str = make().generate_completion(shell=shell)
    # Where nothing that is offered fits, bash completes files: a model may be a folder.
    return text.replace("complete -F ", "complete -o default -F ")


# --- the program -----------------------------------------------------------------------------------------------------


@cache
def program() -> App:
    """All commands under the headings of the table, each imported when it is called."""
    app = App(
        name="outlierlens", help=ABOUT, version=f"outlierlens {__version__}", version_flags=["--version"],
        help_flags=["--help", "-h"], help_format="plaintext", result_action="return_value",
        group_commands=Group(PROGRAM, sort_key=len(GROUP_NAMES)),
    )  # fmt: skip
    groups = {name: Group(title(name), sort_key=place) for place, name in enumerate(GROUP_NAMES)}
    families: dict[str, App] = {}
    for place, row in enumerate(EXPERIMENTS):
        family, _, name = row.name.rpartition(" ")
        if family and family not in families:
            about, heading = FAMILIES[family]
            families[family] = App(
                name=family, help=about, version_flags=[], help_flags=["--help", "-h"], help_format="plaintext",
                result_action="return_value", group=groups[row.group], sort_key=place, group_commands=Group(heading),
            )  # fmt: skip
            app.command(families[family])
        group = None if family else groups[row.group]
        where = f"outlierlens.cli.experiment:{row.name}"
        families.get(family, app).command(where, name=name, help=row.about, sort_key=place, group=group)
    app.command(_install, name="--install-completion", help=INSTALL)
    app.command(_show, name="--show-completion", help=SHOW)
    return app


def run(words: Sequence[str]) -> None:
    """Call what the words name.

    Raises:
        Usage: words that it does not take.
    """
    spelt = _spelt(words)
    if "--help-all" in spelt:
        with showing_everything():
            call(
                program.__wrapped__(),
                ["--help" if word == "--help-all" else word for word in spelt],
                named=_named(spelt),
            )
        return
    call(program(), spelt, named=_named(spelt))


def read(words: Sequence[str]) -> None:
    """Raise Usage for words that `run` would not take; nothing is run."""
    spelt = _spelt(words)
    call(program(), spelt, run=False, named=_named(spelt))


def _spelt(words: Sequence[str]) -> list[str]:
    """`_` and `-` are one in the names of commands and options: `probe --one_dimension --max_length 8`; a model is reported."""
    found: list[str] = ["report"] if words and _is_model(words[0]) else []
    names = True
    for word in words:
        names = names and not word.startswith("-") and len(found) < 2
        option = re.match(r"--[A-Za-z][\w-]*", word)
        name = option[0] if option else word if names and word.replace("_", "-") in _WORDS else ""
        found.append(name.replace("_", "-") + word[len(name) :])
    return found


def _is_model(word: str) -> bool:
    """Whether a first word names a model, and no command: a sample, a place, or the id OWNER/NAME of a hub."""
    if word[:1] in ("", "-") or word.replace("_", "-") in program():
        return False
    from outlierlens.checkpoints.samples import is_sample

    return is_sample(word) or "/" in word or Path(word).exists()


_WORDS = {word for name in BY_NAME for word in name.split()}


def _named(words: Sequence[str]) -> str:
    """The command that the words name, as far as there is one."""
    for n in (2, 1):
        if " ".join(words[:n]) in {*BY_NAME, *FAMILIES}:
            return " ".join(words[:n])
    return ""


def _install(shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
    if not sys.stdout.isatty() and shell is None:
        raise BadInput("say for which shell: outlierlens --install-completion bash (or zsh, fish)")
    from cyclopts.completion.detect import detect_shell

    of = shell or detect_shell()
    text = script(program.__wrapped__, of)
    place: Path = program().install_completion(shell=of)
    place.write_text(text, "utf-8")
    print(f"completion: {place}; it works in a new shell")


def _show(shell: Literal["bash", "zsh", "fish"] = "bash") -> None:

    print(script(program.__wrapped__, shell))
