"""Read the examples of a labelled task, checked before anything is computed.

examples = read_examples(find_task("glue:rte"), "rte/")
examples.texts, examples.pairs, examples.labels         # of equal length; labels are numbers in the task's order
"""

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlierlens.data import Texts
from outlierlens.errors import BadInput
from outlierlens.labelled.labels import plain
from outlierlens.labelled.table import LabelledTask
from outlierlens.tables import ENDINGS, Table, open_table

UNLABELLED = -1  # what GLUE's test splits hold
NOT_A_LABEL = -100  # of a token that is no first piece of a word; what the Hugging Face libraries leave out of losses
MAX_CLASSES = 10_000


@dataclass(frozen=True, kw_only=True)
class Examples(Texts):
    """Texts with labels.

    Attributes:
        task: with its labels filled in.
        pairs: second texts, or ().
        labels: one number each: the label's place in `task.labels`, or the value of a regression; of a token task one
            tuple of them each, one a word.
        words: of a token task, the words of each text; else ().
    """

    task: LabelledTask
    labels: tuple[Any, ...]
    pairs: tuple[str, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over texts, pairs, words and labels."""
        digest = hashlib.sha256(super().digest.encode())
        for part in (*self.pairs, *(word for words in self.words for word in words)):
            digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
        digest.update(repr(self.labels).encode())
        return digest.hexdigest()

    def first(self, n: int) -> "Examples":
        """The first `n` examples (or all)."""
        return self.some(range(min(n, len(self))))

    def tokenised(self, tokenizer: Any, max_length: int) -> Any:
        """As of texts, with their pairs; see `labelled.encode`."""
        from outlierlens.labelled.encode import encode

        return encode(tokenizer, self, max_length=max_length).inputs

    def some(self, numbers: Sequence[int]) -> "Examples":
        """The examples with these numbers, in this order."""

        def pick(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[number] for number in numbers) if values else ()

        return replace(
            self, texts=pick(self.texts), labels=pick(self.labels), pairs=pick(self.pairs), words=pick(self.words)
        )


def read_examples(
    task: LabelledTask,
    data: str | Path | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    offline: bool = False,
) -> Examples:
    """All labelled examples of `task` in `data` (or the first `limit`), in file order.

    `data` is a file, a folder with one file a split (`validation.parquet`, `validation-00000-of-00001.parquet`, …), or a
    hub id; None is the hub's own copy. `split` is the task's evaluated one unless named.

    Raises:
        BadInput: a missing file, split or column, an unknown label, one that does not fit the task, an empty split, or one
            without labels.
        Offline: a hub id while offline.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"limit is {limit}; it must be at least 1")
    split = split or task.evaluated
    table = _table(task, data, split, offline)
    where = table.source
    columns = task.columns
    rows = [dict(zip(columns, row, strict=True)) for row in itertools.islice(table.rows(columns), limit)]
    if not rows:
        raise BadInput(f"{where}: the {split} split has no rows; name another file or split")
    raw = [row[task.label] for row in rows]
    if task.level == "token":
        return _token_examples(task, where, rows, table)
    names, labels = _labels(task, where, raw, table.classes.get(task.label))
    texts = tuple(_text(task.filled(task.text, row), task.text, where, i) for i, row in enumerate(rows))
    pairs: tuple[str, ...] = ()
    if task.pair:
        pairs = tuple(_text(task.filled(task.pair, row), task.pair, where, i) for i, row in enumerate(rows))
    return Examples(where, texts, task.text, task=replace(task, labels=names), labels=labels, pairs=pairs)


def _table(task: LabelledTask, data: str | Path | None, split: str, offline: bool) -> Table:
    if data is None:
        if not task.hub:
            raise BadInput(f"task {task.name} has no data set of its own; name a file with --data")
        return open_table(f"{task.hub}:{split}", offline=offline)
    path = Path(data)
    if not path.is_dir():
        return open_table(data, offline=offline, split=split)
    found = sorted(
        file
        for file in path.iterdir()
        if file.suffix.lower() in ENDINGS and (file.stem == split or file.name.startswith(f"{split}-"))
    )
    if not found:
        there = sorted(file.name for file in path.iterdir() if file.suffix.lower() in ENDINGS)
        raise BadInput(
            f"{path}: no file of the {split} split ({split}.parquet); it has {', '.join(there[:6]) or 'no data file'}"
        )
    if len(found) > 1:
        raise BadInput(f"{path}: {len(found)} files of the {split} split ({found[0].name}, …); name one of them")
    return open_table(found[0])


def _text(value: Any, part: str, where: str, number: int) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{where}, row {number + 1}: {part} holds {value!r}, not a text")
    return value


def _labels(
    task: LabelledTask, where: str, raw: Sequence[Any], classes: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """(names, a number for each raw label)"""
    if all(value == UNLABELLED for value in raw):
        raise BadInput(
            f"{where}: every label is −1, so this split is unlabelled (a test split?); use the validation split"
        )
    if task.regression:
        return (), tuple(_number(value, where, i) for i, value in enumerate(raw))
    names = task.labels or _names(raw, where, classes)
    return names, tuple(_place(value, names, classes, task, f"{where}, row {i + 1}") for i, value in enumerate(raw))


def _number(value: Any, where: str, number: int) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise BadInput(f"{where}, row {number + 1}: label {value!r} is not a number, and this task is a regression")
    return found


def _names(raw: Sequence[Any], where: str, classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """Labels as the data has them: the names it says, or its values in ascending order."""
    if classes:
        return classes
    values = set(raw)
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        n = max(values) + 1
        if min(values) < 0 or n > MAX_CLASSES:
            raise BadInput(f"{where}: labels go from {min(values)} to {max(values)}; they must count from 0")
        return tuple(map(str, range(n)))
    try:
        return tuple(sorted(str(value) for value in values if value is not None))
    except TypeError:
        raise BadInput(f"{where}: labels of several types; write them all as text or all as numbers") from None


def _place(value: Any, names: tuple[str, ...], classes: tuple[str, ...] | None, task: LabelledTask, where: str) -> int:
    """The place of a raw label in `names`; the data's own names of its numbers come before the task's."""
    known = {plain(name): place for place, name in enumerate(names)}
    if isinstance(value, str) and value.strip().isdecimal() and plain(value) not in known:
        value = int(value)  # .csv and .tsv hold numbers as text
    if isinstance(value, int) and not isinstance(value, bool):
        own = classes or names
        if 0 <= value < len(own):
            value = own[value]
    place = known.get(plain(str(value)))
    if place is None:
        said = ", ".join(f"{place} {name}" for place, name in enumerate(names[:12]))
        raise BadInput(f"{where}: unknown label {value!r}; the labels of {task.name} are {said}")
    return place


def _token_examples(task: LabelledTask, where: str, rows: list[dict[str, Any]], table: Table) -> Examples:
    words, raw = [], []
    for number, row in enumerate(rows):
        mine, labels = row[task.text], row[task.label]
        if not (isinstance(mine, list) and isinstance(labels, list) and all(isinstance(word, str) for word in mine)):
            raise BadInput(
                f"{where}, row {number + 1}: {task.text} and {task.label} must hold lists, one label a word; use .jsonl or "
                f".parquet"
            )
        if len(mine) != len(labels):
            raise BadInput(f"{where}, row {number + 1}: {len(mine)} words and {len(labels)} labels")
        words.append(tuple(mine))
        raw.append(labels)
    flat = [label for labels in raw for label in labels]
    if not flat:
        raise BadInput(f"{where}: no row has a word")
    names, places = _labels(task, where, flat, table.classes.get(task.label))
    each = iter(places)
    return Examples(
        where,
        tuple(" ".join(mine) for mine in words),
        task.text,
        task=replace(task, labels=names),
        labels=tuple(tuple(itertools.islice(each, len(mine))) for mine in words),
        words=tuple(words),
    )
