"""What people give to `outlierlens.NAME`, made into what its functions take: `accepting(function)`.

ol.disable("mini-planted", ["A film worth seeing."], 40)     # a name, sentences, one dimension
ol.observe((model, tokenizer), "reviews")                    # objects of transformers, texts by name
ol.compare("mini-bert", "mini-planted")                      # two names instead of two scans

Functions that take a result of the library take it as before. In a notebook a function that can say how far it is shows a bar.
"""

import functools
import html
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outlierlens.errors import BadInput
from outlierlens.options.read import given_dims

TEXTS = ("texts", "fit", "calibration")
BY_NAME = ("model", "name", "base", "before", "after")  # of these, arguments that are text name a model


def accepting(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which takes a model's name for the model, sentences for texts and one number for dimensions too.

    Raises:
        BadInput: when called with something that it cannot be made of.
    """
    signature = inspect.signature(function)
    readers = {name: reader for name, one in signature.parameters.items() if (reader := _reader(name, one.annotation))}
    tells = signature.parameters.get("progress")
    three = tells is not None and "[[str, int, int]" in str(tells.annotation).replace("Callable", "")

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        for name, value in bound.arguments.items():
            if name in readers and value is not None:
                bound.arguments[name] = readers[name](value)
        if not three or bound.arguments.get("progress") is not None or not in_notebook():
            return function(*bound.args, **bound.kwargs)
        with notebook_bar() as bound.arguments["progress"]:
            return function(*bound.args, **bound.kwargs)

    return call


def _reader(name: str, wanted: Any) -> Callable[[Any], Any] | None:
    kind = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", str(wanted))
    if name == "loaded":
        return given_model
    if name in TEXTS:
        return functools.partial(given_texts, name)
    if name == "dims":
        return given_dims
    if kind == "Scan":
        return _given_scan
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
            f"an object of type {type(model).__name__} is no model; give its name or folder, the model itself, "
            "or (model, tokenizer)"
        )
    if tokenizer is None and (source := getattr(getattr(live, "config", None), "_name_or_path", "")):
        from outlierlens.models.tokenizer import tokenizer_beside

        tokenizer = tokenizer_beside(source, {"subfolder": ""}) if Path(source).is_dir() else None
    return from_objects(live, tokenizer)


def given_texts(name: str, texts: Any) -> Any:
    """`Texts` of a name or file, as `read_texts` takes them, or of sentences; what the library made stays as it is."""
    from outlierlens.data.texts import Texts, read_texts

    if isinstance(texts, str | Path):
        return read_texts(texts)
    if not isinstance(texts, list | tuple):
        return texts
    if not texts or not all(isinstance(text, str) for text in texts):
        raise BadInput(
            f'{name} is no list of sentences; give some, such as ["A film worth seeing."], or a file\'s name'
        )
    return Texts(f"{len(texts)} given", tuple(texts))


def _given_scan(model: Any) -> Any:
    from outlierlens.detection.scan.measure import scan
    from outlierlens.detection.scan.result import Scan

    if isinstance(model, Scan):
        return model
    return scan(str(model) if isinstance(model, str | Path) else given_model(model))


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
    """A bar below the cell, which is gone when the work is done; called with what is done, how much, of how much."""
    from IPython.display import HTML, display

    handle: Any = display(HTML(""), display_id=True)

    def tell(label: str, done: int, total: int) -> None:
        said = f"{html.escape(label)} ({done:,} of {total:,})"
        handle.update(HTML(f'<progress max="{max(total, 1)}" value="{done}" aria-label="{said}"></progress> {said}'))

    try:
        yield tell
    finally:
        handle.update(HTML(""))
