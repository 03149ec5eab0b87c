"""Tables of rows with named columns, from a file or the hub, read as they are asked for.

    table = open_table("rte/validation.parquet")
    table.names                                      # ("sentence1", "sentence2", "label", "idx")
    for sentence, label in table.rows(("sentence1", "label")): ...

A path is .jsonl, .csv, .tsv or .parquet; a hub id is "owner/name:config:split".
"""

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlierlens.errors import BadInput, Offline, OutlierlensError, need, one_line
from outlierlens.results.safe_files import parse_json

PARQUET_ROWS = 128  # unpacked at once: a value may be stored once and stand in every row
MAX_UNPACKED, MAX_RATIO = 1 << 28, 1000  # bytes of a row group, and from one byte of the file, that need no explanation
ENDINGS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
# Commands that read images and recordings.
OF_ITEMS = "observe, ablate, sweep, range, trace, repair, attention, mask and geometry"
MAX_TEXT = 2_000_000  # characters of one text, those of a long novel; a tokenizer may take 200 bytes for each


@dataclass(frozen=True)
class Table:
    """Rows with named columns.

    Attributes:
        source: as given, for messages.
        names: of the columns.
        read: rows of these columns, one tuple each; missing values are None.
        classes: names of a column's numbers, in their order, where the data says them.
        nested: columns that hold lists or records.
    """

    source: str
    names: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[tuple[Any, ...]]]
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    nested: frozenset[str] = frozenset()

    def rows(self, columns: Sequence[str], *, lists: bool = False) -> Iterator[tuple[Any, ...]]:
        """Rows of `columns`, where `lists` says so of lists, too.

        Raises:
            BadInput: a column is missing (the message lists those there are) or holds lists, or a text is too long.
        """
        for column in columns:
            if column not in self.names:
                raise BadInput(f"{self.source}: no column {column!r}; its columns are {self.listed}")
            if column in self.nested and not lists:
                raise BadInput(
                    f"{self.source}: column {column!r} holds lists, and one value in a row is wanted; name another"
                )
        return bounded(self.read(tuple(columns)), self.source)

    def column(self, asked: str | None, usual: Sequence[str], what: str) -> str:
        """The column that is asked for, else the first of the `usual` ones; raises BadInput where there is none of them.

        `rows` says so where one is asked for that is not there.
        """
        found = asked or next((name for name in usual if name in self.names), None)
        if found is None:
            raise BadInput(
                f"{self.source}: which column holds the {what}? column (--data FILE:column=NAME) must be one of {self.listed}"
            )
        return found

    @property
    def listed(self) -> str:
        """The columns for a message; where there is one, also what separates columns in such a file."""
        marks = {".csv": "commas", ".tsv": "tabs"}.get(Path(self.source).suffix.lower())
        hint = f" ({marks} separate the columns of such a file)" if marks and len(self.names) == 1 else ""
        return ", ".join(self.names) + hint


def bounded(rows: Iterable[tuple[Any, ...]], source: str) -> Iterator[tuple[Any, ...]]:
    """The rows as they are; raises BadInput at one that holds a text of more than `MAX_TEXT` characters."""
    for number, row in enumerate(rows, 1):
        for value in row:
            if isinstance(value, str) and len(value) > MAX_TEXT:
                raise BadInput(
                    f"{source}, row {number:,}: a text of {len(value):,} characters, over {MAX_TEXT:,}; write it as several"
                )
        yield row


def refuse_pipes(path: Path) -> None:
    """Raise BadInput where `path` is a pipe or device: data are read more than once."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadInput(
            f"{path}: a pipe or device, and data are read more than once; write them to a file and name that"
        )


def open_table(source: str | Path, *, offline: bool = False, split: str = "test") -> Table:
    """The table in file `source`, or in the hub data set of that id (`split` where the id names none).

    Raises:
        BadInput: no such file or data set, an unknown ending, or a row that cannot be read.
        Offline: a hub id while offline.
    """
    path = Path(source)
    if path.is_file():
        return _from_file(path)
    if path.is_dir():
        raise BadInput(
            f"{source}: a folder, and rows are read from one file (.txt, {', '.join(ENDINGS)}); a folder of images or "
            f"recordings is for {OF_ITEMS} with a model that reads those, and must hold some"
        )
    refuse_pipes(path)
    if path.suffix.lower() in ENDINGS or str(source).startswith((".", "/", "~")):
        raise BadInput(f"{source}: no such data file")
    return _from_hub(str(source), split, offline)


def joined(tables: Sequence[Table], source: str) -> Table:
    """The rows of several tables with the same columns, one table after another; raises BadInput where those differ."""
    first = tables[0]
    for other in tables[1:]:
        if set(other.names) != set(first.names):
            raise BadInput(
                f"{other.source} has the columns {', '.join(other.names)}, {first.source} has {', '.join(first.names)}; all "
                f"files of a split must have the same"
            )
        if other.classes != first.classes:
            raise BadInput(f"{other.source} and {first.source} name their labels differently; give one of them")
    if len(tables) == 1:
        return first
    return Table(
        source, first.names, lambda columns: (row for one in tables for row in one.read(columns)), first.classes,
        frozenset().union(*(one.nested for one in tables)),
    )  # fmt: skip


def file_lines(path: Path, *, ends: bool = False) -> Iterator[str]:
    """Lines of a UTF-8 file, read as they are asked for, without their ends unless `ends` asks for them.

    Raises:
        BadInput: bytes that are not UTF-8; the message says which.
    """
    with path.open("rb") as file:
        start = 0
        for line in file:
            kept = line if ends else line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield kept.decode("utf-8-sig" if start == 0 else "utf-8")
            except UnicodeDecodeError as error:
                raise BadInput(f"{path}: not UTF-8 at byte {start + error.start:,}; convert it first") from None
            start += len(line)


def _from_file(path: Path) -> Table:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path)
    if suffix not in ENDINGS:
        raise BadInput(f"{path}: unknown ending {suffix!r}; use .txt, .jsonl, .csv, .tsv or .parquet")
    if suffix in (".jsonl", ".ndjson"):
        first = next(_json_rows(path), {})
        return Table(
            str(path), tuple(first), lambda columns: (tuple(map(row.get, columns)) for row in _json_rows(path))
        )
    quoted = suffix == ".csv"
    header = tuple(next(_separated(path, quoted=quoted), ()))

    def read(columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        places = [header.index(name) for name in columns]
        for row in itertools.islice(_separated(path, quoted=quoted), 1, None):
            yield tuple(row[place] if place < len(row) else None for place in places)

    return Table(str(path), header, read)


def _parquet(path: Path) -> Table:
    with parquet_of(path) as parquet:
        file = parquet.ParquetFile(path)
        names, metadata = tuple(file.schema_arrow.names), file.schema_arrow.metadata
        nested = frozenset(field.name for field in file.schema_arrow if field.type.num_fields)
        _check_unpacked(file, path)

    def read(columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        with parquet_of(path):
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=list(dict.fromkeys(columns))):
                yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)

    return Table(str(path), names, read, _classes(metadata), nested)


@contextmanager
def parquet_of(path: Path, kind: type[OutlierlensError] = BadInput, what: str = "a parquet file") -> Iterator[Any]:
    """`pyarrow.parquet`; inside, whatever it finds wrong with the file or with a value in it is an error of this kind.

    What the disk says (no right, no such file) stays as it is.
    """
    arrow, parquet = (need(name, "models", "reading parquet") for name in ("pyarrow", "pyarrow.parquet"))
    try:
        yield parquet
    except (arrow.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:  # a date beyond Python's, say
        if isinstance(error, OSError) and error.errno:
            raise
        text = one_line(str(error.args[0] if isinstance(error, KeyError) else error)) or type(error).__name__
        raise kind(f"{path}: cannot be read as {what}: {text[:300]}") from None


def _check_unpacked(file: Any, path: Path) -> None:
    """Raise BadInput where a row group would be unpacked to far more than a file of its size can hold.

    Its columns are not looked at one by one: pyarrow 26 ends the process where the notes on one are damaged.
    """
    packed = path.stat().st_size
    for number in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(number).total_byte_size
        if size > max(MAX_UNPACKED, packed * MAX_RATIO):
            raise BadInput(f"{path}: its rows claim {size:,} bytes from {packed:,}; refused; write the file again")


def _classes(metadata: dict[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """Names of labels as the datasets library notes them in a parquet file; {} where it did not."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        inner = {column: _innermost(feature) for column, feature in features.items()}
        return {
            column: tuple(map(str, feature["names"]))
            for column, feature in inner.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}


def _innermost(feature: Any) -> Any:
    """What a list of a label a word holds, as the versions of the datasets library write it; anything else as it is."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        return feature.get("feature")
    return feature


def _separated(path: Path, *, quoted: bool) -> Iterator[list[str]]:
    """Rows of a .csv, or of a .tsv, where a quote is a character like any other (as in GLUE)."""
    if quoted:
        # A quoted field may hold line ends of any kind, and keeps them as they are.
        parts = (part for line in file_lines(path, ends=True) for part in io.StringIO(line, newline=""))
        reader = csv.reader(parts)
    else:
        reader = csv.reader(file_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        yield from (row for row in reader if row)
    except csv.Error as error:
        raise BadInput(f"{path}, line {reader.line_num}: {error}; correct it, or convert the file to .jsonl") from None


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file_lines(path), 1):
        if line.strip():
            row = parse_json(line, f"{path}, line {number}", "correct the line", BadInput)
            if not isinstance(row, dict):
                raise BadInput(f"{path}, line {number}: a {type(row).__name__}, not an object with columns")
            yield row


def _from_hub(source: str, split: str, offline: bool) -> Table:
    if offline:
        raise Offline(f"{source}: a hub data set, and offline mode is on; give a local file instead")
    if "/" not in source and ":" not in source:
        raise BadInput(
            f"{source}: no such file, and no hub id (owner/name:config:split); files end in .txt, {', '.join(ENDINGS)}"
        )
    datasets = need("datasets", "models", "reading a hub data set")
    name, *rest = source.split(":")
    config, split = (rest[0] or None if rest else None), (rest[1] if len(rest) > 1 else split)
    try:
        rows = _undecoded(datasets.load_dataset(name, config, split=split, streaming=True))
        first = next(iter(rows), None)
    # RuntimeError is what the library raises for data sets that are scripts.
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(
            f"{source}: no such file, and it cannot be read as a hub data set (owner/name:config:split): {text[:200]}"
        ) from None
    if first is None:
        raise BadInput(f"{source}: the split {split!r} of this data set is empty; name another one")
    features = getattr(rows, "features", None) or {}
    inner = {column: getattr(feature, "feature", feature) for column, feature in features.items()}
    classes = {
        column: tuple(map(str, feature.names))
        for column, feature in inner.items()
        if isinstance(feature, datasets.ClassLabel)
    }
    return Table(source, tuple(first), lambda columns: (tuple(row[name] for name in columns) for row in rows), classes)


def _undecoded(rows: Any) -> Any:
    """A hub data set whose pictures and recordings stay the bytes of their files: decoding has limits of its own here."""
    for column, feature in (getattr(rows, "features", None) or {}).items():
        if type(feature).__name__ in ("Image", "Audio"):
            rows = rows.cast_column(column, type(feature)(decode=False))
    return rows
