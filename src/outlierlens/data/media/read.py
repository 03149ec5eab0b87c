"""Read pictures or recordings, with or without labels, from the layouts people keep them in.

    read_items("image", "photos/")              # photos/cat/1.png, photos/dog/7.png: a sub-folder is a class
    read_items("image", "test.parquet")         # columns image (bytes, or a path beside the table) and label

Of a folder the classes take turns, so that the first items hold all of them; of everything else the order is its own.
"""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.base import is_too_long
from outlierlens.data.labelled.examples import numbered_labels
from outlierlens.data.labelled.labels import plain_task
from outlierlens.data.media.items import MAX_SECONDS, PLURAL, Items, ItemSource, Kind, LabelledItems
from outlierlens.data.tables import ENDINGS, Table, open_table
from outlierlens.data.texts import TEXT_COLUMNS
from outlierlens.errors import BadInput, OutlierlensError

FILES: dict[Kind, tuple[str, ...]] = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
}
COLUMNS: dict[Kind, tuple[str, ...]] = {"image": ("image", "img"), "audio": ("audio",)}
PATHS = ("file", "path", "file_name", "filename")
TRANSCRIPTS = ("transcription", "transcript", "sentence", "text")  # columns of what is said in recordings
TASKS: dict[str, Kind] = {"image-classification": "image", "audio-classification": "audio"}
MAX_ITEMS = 1_000_000
MAX_TRANSCRIPT = 100_000  # bytes; half a minute of speech has less than a thousand


@dataclass(frozen=True)
class ItemOptions:
    """How items are read.

    Attributes:
        labelled: whether every item must have a label. label: column of it. column: column of the items themselves.
        limit: first items only. max_seconds: of a recording. split: of a hub data set.
        labels: names of the classes, where the data has numbers.
        metric: the metric that counts; None is accuracy.
    """

    labelled: bool = True
    label: str = "label"
    column: str | None = None
    limit: int | None = None
    max_seconds: float = MAX_SECONDS
    split: str = "test"
    labels: tuple[str, ...] = ()
    metric: str | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise BadInput(f"limit is {self.limit}; it must be at least 1")


@dataclass(frozen=True)
class _UnlabelledItems:
    """Items before their labels are understood.

    Attributes:
        raw: their labels as found, or None. names: of numbers, where the data says them.
        classes: all that `raw` can be, where that is known: folders.
    """

    parts: list[ItemSource]
    raw: list[Any] | None
    names: tuple[str, ...] | None = None
    classes: tuple[str, ...] = ()


def read_items(kind: Kind, data: str | Path, options: ItemOptions | None = None, *, offline: bool = False) -> Items:
    """The pictures or recordings of `data`, `LabelledItems` where `options.labelled`; none is decoded yet.

    Raises:
        BadInput: nothing of that kind is there, a column or label is missing, or a path leads out of the table's folder.
        Offline: a hub id while offline.
    """
    options = options or ItemOptions()
    path = Path(data)
    if path.is_dir():
        found = _from_folder(kind, path, options)
    elif path.is_file() and path.suffix.lower() in FILES[kind]:
        found = _UnlabelledItems([ItemSource(str(path), path.resolve())], None)
    elif path.is_file() and path.suffix.lower() not in ENDINGS:
        raise BadInput(
            f"{path}: unknown ending {path.suffix!r}; give a folder, {', '.join(ENDINGS)} or one of {', '.join(FILES[kind])}"
        )
    elif not path.exists() and "/" not in str(data) and ":" not in str(data):
        raise BadInput(
            f"{data}: no such folder or file, and no hub id (owner/name:config:split); {PLURAL[kind]} are read from a folder "
            f"with one sub-folder per class, {', '.join(ENDINGS)} or one of {', '.join(FILES[kind])}"
        )
    else:
        found = _from_table(kind, open_table(data, offline=offline, split=options.split), path, options)
    n = options.limit or len(found.parts)
    if kind == "audio":
        found = replace(found, parts=[_transcribed(part) for part in found.parts[:n]] + found.parts[n:])
    if not found.parts:
        raise BadInput(f"{data}: holds no {PLURAL[kind]}; files end in {', '.join(FILES[kind])}")
    if len(found.parts) > MAX_ITEMS and n > MAX_ITEMS:
        raise BadInput(f"{data}: more than {MAX_ITEMS:,} {PLURAL[kind]}; say with a limit how many to read")
    parts = tuple(found.parts[:n])
    if not options.labelled:
        return Items(str(data), kind, parts, options.max_seconds)
    if found.raw is None:
        raise BadInput(
            f"{data}: its {PLURAL[kind]} have no labels; give a folder with one sub-folder per class, or a table with a column "
            f"{options.label!r}"
        )
    task = plain_task("classify", "", options.label, metric=options.metric)
    task = replace(task, name=next(name for name, one in TASKS.items() if one == kind))
    if found.classes:
        names, labels = found.classes, tuple(found.classes.index(name) for name in found.raw[:n])
    else:
        raw = [(value, row) for row, value in enumerate(found.raw[:n], 1)]
        names, labels = numbered_labels(task, str(data), raw, (found.names, options.labels))
    return LabelledItems(str(data), kind, parts, options.max_seconds, task=task.labelled(names), labels=labels)


def _transcribed(part: ItemSource) -> ItemSource:
    """The recording with the text of the .txt file of its name beside it, where there is one."""
    beside = None if part.path is None else part.path.with_suffix(".txt")
    if part.transcript or beside is None or not beside.is_file():
        return part
    if beside.stat().st_size > MAX_TRANSCRIPT:
        raise BadInput(f"{beside}: more than {MAX_TRANSCRIPT:,} bytes for the transcript of one recording; shorten it")
    return replace(part, transcript=" ".join(beside.read_text("utf-8", errors="replace").split()))


def kind_of(data: str | Path, column: str | None = None) -> Kind | None:
    """Whether a path holds pictures or recordings, by endings and names alone; None for what may be text.

    Where a table has columns of text too, `column` says which is read.
    """
    path = Path(data)
    if path.is_dir():
        endings = {file.suffix.lower() for file in itertools.islice(path.glob("*"), 1000) if file.is_file()}
        for folder in _subfolders(path):
            endings |= {file.suffix.lower() for file in itertools.islice(folder.iterdir(), 100)}
        return next((kind for kind, files in FILES.items() if endings & set(files)), None)
    suffix = path.suffix.lower()
    if not path.is_file():
        return None
    if suffix in ENDINGS:
        try:
            columns = open_table(path).names
        except OutlierlensError:
            return None  # whoever reads it says what is wrong
        if column is not None:
            columns = (column,)
        if set(TEXT_COLUMNS) & set(columns):
            return None
        return next((kind for kind, wanted in COLUMNS.items() if set(wanted) & set(columns)), None)
    return next((kind for kind, files in FILES.items() if suffix in files), None)


def _subfolders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _files_in(kind: Kind, folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file() and file.suffix.lower() in FILES[kind])


def _from_folder(kind: Kind, path: Path, options: ItemOptions) -> _UnlabelledItems:
    """One sub-folder a class, taking turns; or, without labels, files that lie in the folder itself."""
    classes = {folder.name: _files_in(kind, folder) for folder in _subfolders(path)}
    classes = {name: files for name, files in classes.items() if files}
    if not classes:
        return _UnlabelledItems([ItemSource(str(file), file.resolve()) for file in _files_in(kind, path)], None)
    loose = _files_in(kind, path)
    if loose and options.labelled:
        raise BadInput(
            f"{path}: {len(loose)} {PLURAL[kind]} ({loose[0].name}, …) lie beside the folders of the classes; move them "
            f"into one"
        )
    turns = itertools.zip_longest(*([(name, file) for file in files] for name, files in classes.items()))
    pairs = [one for turn in turns for one in turn if one is not None]
    pairs += [("", file) for file in loose]
    return _UnlabelledItems(
        [ItemSource(str(file), file.resolve()) for _, file in pairs],
        [name for name, _ in pairs],
        classes=tuple(classes),
    )


def _from_table(kind: Kind, table: Table, path: Path, options: ItemOptions) -> _UnlabelledItems:
    column = table.column(options.column, (*COLUMNS[kind], *PATHS), PLURAL[kind])
    said = next((name for name in TRANSCRIPTS if name in table.names and name != column), None)
    columns = (column, options.label) if options.labelled else (column, said) if said and kind == "audio" else (column,)
    folder = path.resolve().parent if path.is_file() else None
    parts, raw = [], []
    for number, (value, *more) in enumerate(
        itertools.islice(table.rows(columns, lists=True), options.limit or MAX_ITEMS + 1), 1
    ):
        part = _part(kind, value, f"{table.source}, row {number}", folder)
        raw += more
        parts.append(part if options.labelled or not more else replace(part, transcript=str(more[0] or "")))
    return _UnlabelledItems(parts, raw if options.labelled else None, table.classes.get(options.label))


def _part(kind: Kind, value: Any, name: str, folder: Path | None) -> ItemSource:
    """The item in one cell: bytes, the path of a file beside the table, or the hub's {bytes, path} of either."""
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            value = value["bytes"]
        else:
            value = value.get("path")
    if isinstance(value, bytes):
        return ItemSource(name, data=value)
    if not isinstance(value, str) or not value.strip():
        shown = f"a {type(value).__name__}" if value is not None else "nothing"
        raise BadInput(f"{name}: {shown} where the {kind} should be; need a path or the bytes of a file")
    if folder is None:
        raise BadInput(f"{name}: a path ({value!r}) in a data set that is not a local file; it must hold the bytes")
    if "\0" in value or any(map(is_too_long, Path(value).parts)):
        raise BadInput(f"{name}: {value[:100]!r} is not a name of a file")
    try:
        file = (folder / value).resolve()
    except RuntimeError:  # a link to itself
        raise BadInput(f"{name}: {value!r} is a link that leads to no file") from None
    if not file.is_relative_to(folder):
        raise BadInput(f"{name}: {value!r} leads out of {folder}; keep the files beside the table")
    if not file.is_file():
        raise BadInput(f"{name}: no such file: {value!r} beside the table")
    return ItemSource(f"{name} ({value})", file)
