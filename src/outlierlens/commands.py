"""What people call from Python: the function of every command by its name, contexts, and what loads and reads.

from outlierlens.commands import attack             # beyond the names of `outlierlens` itself
ol.ablate("mini-planted", ["A film worth seeing."], 40)     # a name, sentences, one dimension
ol.ablate("mini-planted", "reviews", "8,24", n_random=19)   # settings are keywords, or options=AblateOptions(…)
ol.observe((model, tokenizer), token_ids)                    # objects of transformers, texts as token ids
ol.compare("mini-bert", "mini-planted")                      # two names instead of two scans

`accepting(function)` makes what people give into what the library's functions take; a result of the library is taken as it is.
A model is measured in evaluation mode, whatever mode it is in. In a notebook a function that can say how far it is shows a bar.
Errors name settings as Python calls them.
"""

import dataclasses
import functools
import html
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from outlierlens.errors import BadInput, OutlierlensError, near
from outlierlens.options import Option, build, given_dims, set_by, settings_of

R = TypeVar("R")
TEXTS = ("texts", "fit", "calibration")
BY_NAME = ("model", "name", "base", "before", "after")  # of these, arguments that are text name a model
OPTIONS = ("options", "settings", "load", "load_options", "source")  # arguments whose fields are keywords too

# Modules below this package of what no row of the table of experiments names as its function.
_HOME = {
    "OutlierCallback": "training.callback",
    "OutlierlensError": "errors",
    "activation_mask": "analyses.mask",
    "clip": "ablation.switches",
    "count_tokens": "analyses.frequency_counts",
    "definitions": "analyses.definitions",
    "edited_hidden": "ablation.switches",
    "export_embedder": "analyses.embed_export",
    "fetch": "checkpoints.samples",
    "frequency_bands": "analyses.geometry",
    "from_objects": "models.load",
    "frozen": "analyses.probe_frozen",
    "load": "results.document",
    "load_model": "models.load",
    "one_dimension": "analyses.probe_one_dimension",
    "predictions": "analyses.predictions",
    "read_texts": "data.texts",
    "recover": "analyses.recover",
    "removed_writes": "ablation.switches",
    "report": "report.job",
    "same_position_guard": "analyses.prune_guard",
    "states": "vectors.states",
    "update_check": "analyses.compare_updates",
    "watch": "training.watch",
    "zeroed_weights": "ablation.switches",
}


@functools.cache
def homes() -> dict[str, str]:
    """{name: module below this package}; the table of experiments is read when a name is asked for."""
    from outlierlens.experiments import EXPERIMENTS

    functions = {row.python.rpartition(":")[2]: row.place(row.python, "measure") for row in EXPERIMENTS if row.python}
    return _HOME | functions


def __getattr__(name: str) -> Any:
    home = _HOME.get(name) or homes().get(name)
    if home is None:
        raise AttributeError(f"module 'outlierlens.commands' has no attribute {name!r}")
    found = getattr(import_module(f"outlierlens.{home}"), name)
    if inspect.isfunction(found):
        found = accepting(found)
    globals()[name] = found  # once: it stays the same function
    return found


def __dir__() -> list[str]:
    return sorted(homes())


def accepting(function: Callable[..., R]) -> Callable[..., R]:
    """`function`, which takes a model's name for the model, sentences for texts, and each field of its options as a keyword.

    Raises:
        BadInput: when called with something that it cannot be made of, or a keyword that it does not have.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    readers = {name: reader for name, one in parameters.items() if (reader := _reader(name, one.annotation))}
    classes = {name: cls for name, one in parameters.items() if name in OPTIONS and (cls := _options_class(one))}
    settings: dict[str, tuple[str, tuple[Option, ...]]] = {}
    for owner, cls in reversed(classes.items()):
        settings |= {name: (owner, one) for name, one in settings_of(cls).items() if name not in parameters}
    tells = parameters.get("progress")
    three = tells is not None and "[[str, int, int]" in str(tells.annotation).replace("Callable", "")

    def bind(arguments: tuple[Any, ...], named: dict[str, Any]) -> inspect.BoundArguments:
        values: dict[str, dict[tuple[str, ...], Any]] = {}
        for name in [name for name in named if name not in parameters]:
            if name not in settings:
                raise BadInput(f"{function.__name__} has no setting {name!r}{near(name, (*parameters, *settings))}")
            owner, setting = settings[name]
            values.setdefault(owner, {}).update(set_by(setting, named.pop(name)))
        bound = signature.bind_partial(*arguments, **named)
        for owner, own in values.items():
            start = bound.arguments.get(owner)
            bound.arguments[owner] = build(classes[owner] if start is None else start, own)
        return bound

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> R:
        try:
            with ExitStack() as around:
                bound = bind(arguments, named)
                given = bound.arguments
                for name, reader in readers.items():
                    if given.get(name) is not None:
                        given[name] = reader(given[name])
                loaded = next((one for one in map(given.get, ("loaded", "model")) if hasattr(one, "stacks")), None)
                for name in TEXTS:
                    if given.get(name) is not None:
                        given[name] = given_texts(name, given[name], getattr(loaded, "tokenizer", None))
                if loaded is not None:
                    from outlierlens.models.changes import evaluating

                    around.enter_context(evaluating(loaded.model))
                if three and given.get("progress") is None and in_notebook():
                    given["progress"] = around.enter_context(notebook_bar())
                return function(*bound.args, **bound.kwargs)
        except OutlierlensError as error:
            error.args = (in_python(str(error), {name: one for name, (_, one) in settings.items()}),)
            raise

    if settings:
        _describe(call, signature, settings)
    return call


def _options_class(parameter: inspect.Parameter) -> type | None:
    kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None)


def _describe(call: Any, signature: inspect.Signature, settings: Mapping[str, tuple[str, tuple[Option, ...]]]) -> None:
    """Have `help` and completion list the settings."""
    shown = [one for _, (one, *_) in settings.values() if one.is_named_group or not dataclasses.is_dataclass(one.kind)]
    own = list(signature.parameters.values())
    first = [one for one in own if one.kind is not one.KEYWORD_ONLY]
    required = {owner for owner, _ in settings.values()}
    first = [one.replace(default=None) if one.name in required and one.default is one.empty else one for one in first]
    keywords = []
    for one in shown:
        default = None if one.required else one.default.name if one.is_named_group else one.default
        keywords.append(
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=one.kind)
        )
    call.__signature__ = signature.replace(parameters=[*first, *keywords, *own[len(first) :]])
    lines = [f"    {one.name}: {one.help}" for one in shown if one.help]
    if lines:
        call.__doc__ = "\n".join((inspect.getdoc(call) or "", "", "Settings, as keywords or in `options`:", *lines))


# A command in backquotes or behind its name stays what one types into a shell.
_FLAGS = re.compile(
    r"`[^`]*`|\b(?:outlierlens|hf|pip|accelerate) [a-z-]+ [^;:)]*|(?P<file> with -o\b)"
    r"|--(?:model-args (?=[a-z])|rule (?=[a-z-]+=))(?P<part>[a-z-]*[a-z])(?:=(?P<value>[^\s;:,()]+))?"
    r"|(?<!\S-)--(?P<flag>[a-z](?:[a-z-]*[a-z])?)\b(?: (?P<word>[^\s;:,()]+(?::\d+)?))?"
)
_OF_LOADING = (
    "row", "adapter", "dtype", "device", "tokenizer", "revision", "subfolder", "token", "offline", "trust_remote_code",
    "by_block", "memory", "keep_weights",
)  # fmt: skip
_HOMES = {**dict.fromkeys(_OF_LOADING, "load_model"), "limit": "read_texts", "column": "read_texts"}
_NAMES = {"data": "texts", "text-column": "column", "arch": "row", "family": "row", "fit-data": "fit"}
_WORDS = ("float32", "bfloat16", "float16", "checkpoint", "bert")  # that stand behind a flag as its value


def in_python(message: str, settings: Mapping[str, tuple[Option, ...]]) -> str:
    """A message with each flag of the command line as what it is in Python: --random 3 is n_random=3, of these `settings`.

    A flag of how a model is loaded or texts are read is one of `load_model` or `read_texts`, where it is no setting.
    """
    spelt = {
        flag: name
        for name, (one, *_) in settings.items()
        for flags in (one.flags or [f"--{one.key}"] * bool(one.flag.into))
        for flag in flags.split("/")
    }

    def keyword(found: re.Match[str]) -> str:
        flag, word = found["flag"] or found["part"], found["word"] or found["value"] or ""
        if not flag:
            return "" if found["file"] else found[0]
        name = spelt.get(f"--{flag}") or _NAMES.get(flag) or flag.removeprefix("no-").replace("-", "_")
        kind = (
            settings[name][0].kind
            if name in settings
            else bool
            if name in ("overwrite", "offline", "trust_remote_code", "by_block", "keep_weights")
            else None
        )
        value = ""
        if word.isupper() or word.isdecimal():
            value = word
        elif word.endswith(".toml"):
            value = f'Path("{word}")'
        elif kind is bool and word in ("yes", "no"):
            value = str(word == "yes")
        elif word in (*typing.get_args(kind), *_WORDS) or word[:1].isdigit():
            value = f'"{word}"'
        rest = f" {word}" if word and not value else ""
        if not value and kind is bool:
            value = str(not flag.startswith("no-"))
        said = f"{name}={value}" if value else name
        if name in _HOMES and name not in settings:
            said = f"{_HOMES[name]}({said if value else f'{name}=…'})"
        return said + rest

    return _FLAGS.sub(keyword, message)


def _reader(name: str, wanted: Any) -> Callable[[Any], Any] | None:
    kind = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", str(wanted))
    if name == "loaded":
        return given_model
    if name == "dims":
        return given_dims
    if "Scan" in re.split(r"[][| .]+", kind):
        return _given_checkpoints
    if kind == "str | LoadedModel":
        return lambda model: str(model) if isinstance(model, str | Path) else given_model(model)
    return functools.partial(_given_name, name) if name in BY_NAME and wanted is str else None


def given_model(model: Any) -> Any:
    """A `LoadedModel` of a name, of a model of transformers, or of (model, tokenizer)."""
    from outlierlens.models.load import LoadedModel, from_objects, load_model

    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, str | Path):
        return load_model(str(model))
    live, tokenizer = model if isinstance(model, tuple) and len(model) == 2 else (model, None)
    if not callable(getattr(live, "named_parameters", None)):
        raise BadInput(
            f"an object of type {type(model).__name__} is not a model; give its name or folder, the model itself, "
            "or (model, tokenizer)"
        )
    if tokenizer is None and (source := getattr(getattr(live, "config", None), "_name_or_path", "")):
        from outlierlens.models.folder import tokenizer_beside

        tokenizer = tokenizer_beside(source, {"subfolder": ""}) if Path(source).is_dir() else None
    return from_objects(live, tokenizer)


def given_texts(name: str, texts: Any, tokenizer: Any = None) -> Any:
    """`Texts` of a name or file, as `read_texts` takes them, of sentences, or of token ids; what the library made stays.

    Token ids are a tensor or an array [token] or [text, token], lists of them, or what a tokenizer returned, of which its
    mask leaves out the padding. They are read as they are; `tokenizer` says what they mean, where there is one.
    """
    from outlierlens.data.texts import Texts, TokenText, read_texts

    if isinstance(texts, str | Path):
        return read_texts(texts)
    if not isinstance(texts, Mapping) and not hasattr(texts, "tolist") and not isinstance(texts, list | tuple):
        return texts
    if isinstance(texts, list | tuple) and texts and all(isinstance(text, str) for text in texts):
        return Texts(f"{len(texts)} given", tuple(texts))
    rows = _token_rows(texts)
    if rows is None:
        raise BadInput(
            f'{name} is neither sentences nor token ids; give some, such as ["A film worth seeing."], a file\'s name, or '
            "ids, such as [[101, 2023, 102]]"
        )
    return Texts(f"{len(rows)} given as token ids", tuple(TokenText.of(row, tokenizer) for row in rows))


def _token_rows(given: Any) -> list[list[int]] | None:
    """Token ids text by text, padding left out; None for anything else."""
    mask = None
    if isinstance(given, Mapping):
        given, mask = given.get("input_ids"), given.get("attention_mask")
    found: list[Any] = [one.tolist() if one is not None and hasattr(one, "tolist") else one for one in (given, mask)]
    plain, mask = found
    if not isinstance(plain, list | tuple) or not plain:
        return None
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in plain]
    if not any(isinstance(row, list | tuple) for row in rows):
        rows, mask = [rows], None if mask is None else [mask]
    if not all(isinstance(row, list | tuple) and all(type(one) is int and one >= 0 for one in row) for row in rows):
        return None
    masks = mask or [[1] * len(row) for row in rows]
    kept = [[one for one, shown in zip(*pair, strict=True) if shown] for pair in zip(rows, masks, strict=True)]
    return kept if any(kept) else None


def _given_checkpoints(model: Any) -> Any:
    """Names and scans as they are, a scan of what is in memory; of each in a list."""
    from outlierlens.analyses.scan import Scan, scan

    if isinstance(model, list):
        return [_given_checkpoints(one) for one in model]
    if isinstance(model, str | Path):
        return str(model)
    return model if isinstance(model, Scan) else scan(given_model(model))


def _given_name(argument: str, model: Any) -> Any:
    if isinstance(model, str | Path):
        return str(model)
    raise BadInput(
        f"{argument} is a {type(model).__name__}; this reads stored weights: save the model, and give the folder's name"
    )


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


@contextmanager
def notebook_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar below the cell, which is gone when the work is done; called with stage, number done and total."""
    from IPython.display import HTML, display

    handle: Any = display(HTML(""), display_id=True)

    def tell(label: str, done: int, total: int) -> None:
        said = f"{html.escape(label)} ({done:,} of {total:,})"
        handle.update(HTML(f'<progress max="{max(total, 1)}" value="{done}" aria-label="{said}"></progress> {said}'))

    try:
        yield tell
    finally:
        handle.update(HTML(""))
