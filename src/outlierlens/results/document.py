"""Every result as a frozen dataclass, written to and read back from versioned JSON; and which results are of one model.

What to do about a finding: `Advice`, which results give (`Result.advice`), and the command lines that stand in it.
"""

import dataclasses
import functools
import importlib
import itertools
import json
import math
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from outlierlens import __version__
from outlierlens.errors import BadFile, BadInput, command, need, operand, option, printable, seen, showing
from outlierlens.experiments import EXPERIMENTS
from outlierlens.results.rows import Row
from outlierlens.results.safe_files import parse_json, write_text
from outlierlens.view.render import printed, sections_html
from outlierlens.view.section import notes_of

if TYPE_CHECKING:
    import pandas

    from outlierlens.view.section import Section


FORMAT_VERSION = 1
MAX_JSON_BYTES = 512 * 2**20
# Where each kind of result file is defined: reading one imports its home, which then registers it.
HOMES = {kind: home for row in EXPERIMENTS for kind, home in row.kinds.items()}
_KINDS: "dict[str, type[Result]]" = {}
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
MAX_AXES = 8  # of an array


class Result(ABC):
    """What every kind of result can do; a kind is a frozen dataclass that says its `records`."""

    def __init_subclass__(cls) -> None:
        if cls.__name__ != "Finding":  # which its kinds are made of
            _KINDS[cls.__name__] = cls
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]  # before the dataclass writes one of all its numbers

    @abstractmethod
    def records(self) -> Iterable[Mapping[str, Any]]:
        """Flat rows: what a data frame is made of."""

    @abstractmethod
    def sections(self, *, verbose: bool = False) -> "Iterator[Section]":
        """What is said of it, for every surface; `verbose` shows more."""

    def advice(self) -> "Iterable[Advice]":
        """What to do about it; a kind of result that knows says so."""
        yield from ()

    def columns(self, *which: Any, **named: Any) -> Any:
        """The columns of a data frame, {name: values}, or its rows."""
        return list(self.records(*which, **named))

    def to_pandas(self, *which: Any, **named: Any) -> "pandas.DataFrame":
        """`records` as a data frame; takes what they take. Raises MissingExtra where pandas is not installed."""
        with showing(self, *which, *named):
            return need("pandas", "models", "to_pandas()").DataFrame(self.columns(*which, **named))

    def save(self, path: Path | str) -> Path:
        """Write to exactly `path`, through a temporary file that is then renamed."""
        return save(self, path)

    def __repr__(self) -> str:
        """One line: its kind, and its model where it has one."""
        model = getattr(getattr(self, "provenance", None), "model", "")
        return printable(f"<{type(self).__name__}{' of ' * bool(model)}{model}>")

    def __str__(self) -> str:
        """What the command that makes it prints."""
        with showing(self):
            return printed(self.sections(), notes_of(self))

    def _repr_html_(self) -> str:
        with showing(self):
            return sections_html(self.sections())


@functools.cache
def _version(name: str) -> str:
    """What the loaded library says of itself; reading a package's metadata takes longer than many a measure."""
    said = getattr(sys.modules[name], "__version__", None)
    return str(said) if said else importlib.import_module("importlib.metadata").version(name)


@dataclass(frozen=True)
class Provenance:
    """Where a result came from: enough to make it again.

    `fingerprint` is a SHA-256 over names, shapes and the values that were read; `command` reproduces the result. `dtype` is
    what the running model's weights were in, "bfloat16"; "" where no model ran. `adapter` is the folder of what was put on it.
    """

    model: str
    fingerprint: str
    command: str = ""
    seed: int | None = None
    version: str = __version__
    libraries: dict[str, str] = field(default_factory=dict)
    created: str = ""
    dtype: str = ""
    adapter: str = ""

    @property
    def subject(self) -> str:
        """What was measured: the model, and the adapter on it."""
        return f"{self.model} with {self.adapter}" if self.adapter else self.model

    @classmethod
    def now(
        cls,
        model: str,
        fingerprint: str,
        *,
        command: str = "",
        seed: int | None = None,
        dtype: str = "",
        adapter: str = "",
    ) -> "Provenance":
        """Provenance of a result made at this moment by this process; names the libraries that are loaded."""
        loaded = [name for name in ("numpy", "torch", "transformers", "gguf", "onnx") if name in sys.modules]
        libraries = {"python": ".".join(map(str, sys.version_info[:3]))}
        libraries |= {name: _version(name) for name in loaded}
        return cls(
            model=model,
            fingerprint=fingerprint,
            command=command,
            seed=seed,
            libraries=libraries,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            dtype=dtype,
            adapter=adapter,
        )


@dataclass(frozen=True)
class Digits:
    """Metadata of an array's type: how many significant digits of it a file keeps. Seven say all of a float32."""

    n: int = 7


def to_json(value: Any, *, indent: int | None = None) -> str:
    """One JSON document with `format_version` and `kind`; NaN and infinities are written as strings."""
    if type(value).__name__ not in _KINDS:
        raise BadInput(f"{type(value).__name__} is not a result; results are {', '.join(_KINDS)}")
    document = {"format_version": FORMAT_VERSION, "kind": type(value).__name__, **_encode(value)}
    separators = (",", ":") if indent is None else None
    return seen(json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False, separators=separators))


def from_json(text: str | bytes, where: str = "result") -> Any:
    """The result that `to_json` wrote; `where` names the file in errors.

    Raises:
        BadFile: not JSON, an unknown kind or version, a missing or ill-typed field, or one whose shape does not fit others.
    """
    return decode_document(parse_json(text, where), where)


def decode_document(document: Any, where: str) -> Any:
    """The result in an already parsed document; raises BadFile like `from_json`."""
    kind = _kind_of(document, where)
    if document.get("format_version") != FORMAT_VERSION:
        raise BadFile(
            f"{where}: format_version {document.get('format_version')!r:.40}; this version reads {FORMAT_VERSION}; "
            "make the result again or install the version that wrote it"
        )
    return _decode(kind, document, where, {})


def _kind_of(document: Any, where: str) -> "type[Result]":
    """The class that a document names, which is imported when it is first met."""
    kind = document.get("kind") if isinstance(document, dict) else None
    kind = kind if isinstance(kind, str) else None
    if kind in HOMES and kind not in _KINDS:
        importlib.import_module(f"outlierlens.{HOMES[kind]}")
    if kind not in _KINDS:
        raise BadFile(f"{where}: kind {kind!r:.40} is not a result of outlierlens; known: {', '.join(HOMES)}")
    return _KINDS[kind]


def load(path: Path | str) -> Any:
    """Read a result file; raises BadFile when it is missing or malformed."""
    path = Path(path)
    if not path.is_file():
        raise BadFile(f"{path}: no such result file")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a result file")
    return from_json(path.read_bytes(), str(path))


def save(value: Any, path: Path | str) -> Path:
    """Write a result to exactly `path`, through a temporary file beside it that is then renamed."""
    return write_text(Path(path), to_json(value) + "\n")


def _encode(value: Any, wanted: Any = None) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": type(value).__name__} if wanted is Result else {}  # any of them: it says which
        hints = _hints(type(value))
        return kind | {f.name: _encode(getattr(value, f.name), hints[f.name]) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return _encode_array(value, next((mark.n for mark in _marks(wanted) if isinstance(mark, Digits)), Digits.n))
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, tuple) and value and isinstance(value[0], Row):  # column by column: names stand once
        kind_of_row: Any = type(value[0])
        hints = _hints(kind_of_row)
        return {
            f.name: [_encode(getattr(row, f.name), hints[f.name]) for row in value]
            for f in dataclasses.fields(value[0])
        }
    if isinstance(value, list | tuple):
        of = Result if wanted == tuple[Result, ...] else None
        return [_encode(item, of) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    raise TypeError(f"cannot write {type(value).__name__} to JSON")


def _encode_array(values: np.ndarray, digits: int) -> Any:
    if values.dtype.kind != "f" or not values.size:
        return values.tolist()
    flat: list[Any] = [float(f"{x:.{digits}g}") if math.isfinite(x) else str(x) for x in values.ravel().tolist()]
    for size in reversed(values.shape[1:]):
        flat = [flat[start : start + size] for start in range(0, len(flat), size)]
    return flat if values.ndim else flat[0]


def _decode(wanted: Any, value: Any, where: str, sizes: dict[str, int]) -> Any:
    """`value` as the type `wanted`; `sizes` holds the axes bound so far and gets those that are new."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return value
    if origin is Annotated:
        axes = _axes(wanted)
        if axes is None:
            return _decode(arguments[0], value, where, sizes)
        if "=" in axes:
            inner, outer = axes.split("=")
            return _decode(arguments[0], value, where, sizes | {inner: sizes[outer]})
        return _fit(_decode(arguments[0], value, where, sizes), axes, where, sizes)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return _decode(inner, value, where, sizes)
    if origin is typing.Literal:
        if value not in arguments:
            raise BadFile(f"{where}: {value!r:.40} is none of {', '.join(map(repr, arguments))}")
        return value
    if wanted is Result or (dataclasses.is_dataclass(wanted) and isinstance(wanted, type)):
        return _decode_dataclass(wanted, value, where, sizes)
    if origin is tuple and isinstance(value, list | dict):
        return _decode_tuple(arguments[0], value, where, sizes)
    if origin is dict and isinstance(value, dict):
        return {
            _decode_key(arguments[0], key, where): _decode(arguments[1], item, f"{where}.{key:.40}", sizes)
            for key, item in value.items()
        }
    if wanted is np.ndarray and isinstance(value, list):
        return _decode_array(value, where)
    if wanted is float and (isinstance(value, int | float) or (isinstance(value, str) and value in _NOT_FINITE)):
        try:
            return float(value)
        except OverflowError:
            raise BadFile(f"{where}: a whole number too large for a float; make the result again") from None
    if isinstance(wanted, type) and isinstance(value, wanted) and not (wanted is int and isinstance(value, bool)):
        return value
    raise BadFile(f"{where}: expected {getattr(wanted, '__name__', wanted)}, found {type(value).__name__}")


def _decode_tuple(kind: Any, value: Any, where: str, sizes: dict[str, int]) -> tuple[Any, ...]:
    """Values one by one; rows column by column: all have as many cells, and an axis has one size in all rows of most kinds."""
    rows = Row in getattr(kind, "__mro__", ())
    if isinstance(value, list) and not (rows and value):
        return tuple(_decode(kind, item, f"{where}[{i}]", sizes) for i, item in enumerate(value))
    if isinstance(value, list) or not rows:
        raise BadFile(f"{where}: expected {'columns' if rows else 'a list'}, found {type(value).__name__}")
    lengths = {len(column) if isinstance(column, list) else -1 for column in value.values()}
    if len(lengths) != 1 or -1 in lengths:
        raise BadFile(f"{where}: its columns do not have the same number of rows; make the result again")
    columns: dict[str, list[Any]] = {}
    (n_rows,) = lengths
    bound = [dict(sizes) if kind.axes_apart else sizes for _ in range(n_rows)]
    for f, wanted in _fields(kind):
        if f.name in value:
            columns[f.name] = [
                _decode(wanted, one, f"{where}.{f.name}[{i}]", bound[i]) for i, one in enumerate(value[f.name])
            ]
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise BadFile(f"{where}: {f.name} is missing")
    return tuple(kind(**dict(zip(columns, cells, strict=True))) for cells in zip(*columns.values(), strict=True))


def _decode_key(wanted: Any, key: str, where: str) -> Any:
    if wanted is not int:
        return key
    try:
        return int(key)
    except ValueError:
        raise BadFile(f"{where}: {key!r:.40} is not a whole number") from None


def _decode_array(value: list[Any], where: str) -> np.ndarray:
    """The numbers in nested lists; NumPy never sees words, of which it makes a table as wide as the longest."""
    shape, flat = [len(value)], value
    while flat and type(flat[0]) is list and len(shape) < MAX_AXES:
        width = len(flat[0])
        if any(type(row) is not list or len(row) != width for row in flat):
            raise BadFile(f"{where}: not a regular array of numbers")
        shape.append(width)
        flat = list(itertools.chain.from_iterable(flat))
    try:
        if str in set(map(type, flat)):
            flat = [_NOT_FINITE[number] if type(number) is str else number for number in flat]
        if not set(map(type, flat)) <= {int, float, bool}:
            raise ValueError("not numbers")
        array = np.array(flat)
        if array.dtype.kind not in "biuf":
            raise ValueError("too large")
        return array.reshape(shape)
    except (ValueError, KeyError, OverflowError):
        raise BadFile(f"{where}: not a regular array of numbers") from None


def _decode_dataclass(cls: type, value: Any, where: str, outer: dict[str, int]) -> Any:
    cls = _kind_of(value, where) if cls is Result else cls
    if not isinstance(value, dict):
        raise BadFile(f"{where}: expected an object for {cls.__name__}, found {type(value).__name__}")
    given, sizes = {}, dict(outer)
    for f, wanted in _fields(cls):
        if f.name in value:
            given[f.name] = _decode(wanted, value[f.name], f"{where}.{f.name}", sizes)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise BadFile(f"{where}: {f.name} is missing")
    return cls(**given)


def _axes(wanted: Any) -> str | None:
    """The axes that a field names, among what else stands beside its type."""
    return next((mark for mark in _marks(wanted) if isinstance(mark, str)), None)


def _marks(wanted: Any) -> tuple[Any, ...]:
    """What stands beside the type of a field: its axes, its digits."""
    return getattr(wanted, "__metadata__", ())


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def _fields(cls: type) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    """A dataclass' fields with their types, those first by which axes are measured: numbers, names, then arrays."""
    hints = _hints(cls)

    def place(one: tuple[dataclasses.Field[Any], Any]) -> int:
        axes = _axes(one[1])
        if axes is None or "=" in axes or ", or " in axes:
            return 3 if axes and "=" not in axes else 4
        return {int: 0, np.ndarray: 2}.get(typing.get_args(one[1])[0], 1)

    return tuple(sorted(((f, hints[f.name]) for f in dataclasses.fields(cls)), key=place))


def _fit(value: Any, axes: str, where: str, sizes: dict[str, Any]) -> Any:
    """`value` if its shape fits, whose axes are bound; of an empty array, of which JSON keeps no shape, one that fits."""
    listed, _, or_empty = axes.partition(", or ")
    names = [name.partition("+")[::2] for name in listed.split()]
    wanted = [int(name) if name.isdigit() else sizes.get(name) for name, _ in names]
    wanted = [
        size + int(more) if more and size is not None else size for size, (_, more) in zip(wanted, names, strict=True)
    ]
    known = isinstance(value, np.ndarray) and (value.size > 0 or value.ndim == len(names))
    if isinstance(value, np.ndarray) and not known and (or_empty or not all(wanted)):
        value = value.reshape([0 if or_empty else size or 0 for size in wanted])
    if value is None or (or_empty and np.size(value) == 0):
        return value
    for shape in _shapes(value, wanted):
        if len(shape) != len(wanted) or any(size not in (None, n) for n, size in zip(shape, wanted, strict=True)):
            expected = [name if size is None else size for (name, _), size in zip(names, wanted, strict=True)]
            raise BadFile(
                f"{where}: its shape is [{_listed(shape)}], but [{_listed(listed.split())}] is [{_listed(expected)}]; "
                "make the result again"
            )
        for (name, more), n in zip(names, shape, strict=True):
            sizes.setdefault(name, n - int(more) if more else n)
    return value


def _shapes(value: Any, wanted: list[Any]) -> set[tuple[Any, ...]] | list[tuple[Any, ...]]:
    """The shape of a value; of rows, of each row."""
    if isinstance(value, int):
        return [(value,)]
    if isinstance(value, np.ndarray):
        return [value.shape]
    if isinstance(value, dict):
        return [({key: len(item) for key, item in value.items()},)]
    if len(wanted) == 1:
        return [(len(value),)]
    return {(len(value), len(row)) for row in value} or [(0, wanted[1] or 0)]


def _listed(shape: Iterable[Any]) -> str:
    return f"{', '.join(map(str, shape)):.80}"


# --- one model -------------------------------------------------------------------------------------------------------


def refuse_other_model(what: str, found: Any, known: Sequence[Provenance], remedy: str) -> None:
    """Raise BadInput where a result is of another model than `known`, by name of both.

    Fingerprints of all parameters decide where a model ran in the precision of one of `known`. Those of files are of what
    was read, so there the last part of a name decides: of the model with its adapter, or of one that the result names `before`
    or `base`.
    """
    own = getattr(found, "provenance", None)
    if own is None or not known or own.fingerprint in [one.fingerprint for one in known]:
        return
    ran = own.dtype and own.dtype in [one.dtype for one in known]
    alike = own.adapter in [one.adapter for one in known]
    names = [own.model if alike else None, *(getattr(found, name, None) for name in ("before", "base"))]
    if not ran and {_last_part(name) for name in names if isinstance(name, str)} & {
        _last_part(one.model) for one in known
    }:
        return
    other = known[0]
    raise BadInput(
        f"{what} is of {own.subject} (fingerprint {own.fingerprint[:12]}), not of {other.subject} "
        f"({next((one.fingerprint for one in known if one.dtype == own.dtype), other.fingerprint)[:12]}); {remedy}"
    )


def _last_part(name: str) -> str:
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2]


# --- advice ----------------------------------------------------------------------------------------------------------


TOPICS = ("prune", "quantize", "range", "compare", "explain", "transfer", "check", "nothing", "trust")  # in their order


@dataclass(frozen=True)
class Advice:
    """One thing to do, and the number it rests on.

    Attributes:
        topic: for whom, of `TOPICS`. text, because: what, and why.
        commands: the command lines that do it, or look further.
        until: kinds of results that answer it: beside one of them it is not given.
    """

    topic: str
    text: str
    because: str
    commands: tuple[str, ...] = ()
    until: tuple[str, ...] = ()


def about(made: "Provenance", name: str, *words: str, dims: Sequence[int] = (), stack: str = "") -> str:
    """The command line `name` about the model of a finding, quoted for a shell."""
    listed = ["--dims", ",".join(map(str, dims))] if dims else []
    listed += option("--stack", stack) if stack else []
    listed += option("--model-args", f"adapter={made.adapter}") if made.adapter else []
    return command(*name.split(), operand(made.model), *words, *listed)


def fitted(made: "Provenance", form: str) -> str:
    """The command line that writes a copy of the model with room in a format, "fp16" or "int8"."""
    name = made.model.replace("\\", "/").rstrip("/").rpartition("/")[2] or "model"
    return about(made, "repair", "--fit", form, "-o", operand(f"{name}-{form}"))
