"""Read the examples of a labelled task, and its training and dev examples, checked before anything is computed.

examples = read_examples(find_task("glue:rte"), "rte/")
examples.texts, examples.pairs, examples.labels         # of equal length; labels are numbers in the task's order
train, dev = read_splits(find_task("glue:rte"), "rte/")            # rte/train.parquet and rte/validation.parquet
train, dev = read_splits(find_task("hans"))                        # trained on MNLI; from the hub
"""

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from outlierlens.data.labelled.labels import (
    NOT_A_LABEL,
    TASKS,
    LabelledTask,
    are_numbers,
    families,
    find_task,
    finder,
    label_order,
    places_among,
    plain_label,
    plain_text,
)
from outlierlens.data.tables import ENDINGS, Table, joined, open_table
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput

UNLABELLED = ("-1", "-1.0")  # what GLUE's test splits hold
NO_CLASS = -1  # the prediction of a model whose outputs are no numbers any more: never right
MAX_CLASSES = 10_000
MAX_EXAMPLES = 5_000_000  # a few kilobytes of parquet can claim billions of equal rows
FRACTION = re.compile(r"[+-]?\d*\.\d*(e[+-]?\d+)?", re.IGNORECASE)


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

    @property
    def family(self) -> np.ndarray | None:
        """Which pairs of texts with a similarity hang together by texts that they share, int [text].

        None where examples are single texts, or have classes: those are taken one by one.
        """
        if not (self.pairs and self.task.regression):
            return None
        return families(*([plain_text(text) for text in side] for side in (self.texts, self.pairs)))

    def tokenised(self, tokenizer: Any, max_length: int) -> Any:
        """As of texts, with their pairs; see `labelled.encode`."""
        from outlierlens.data.labelled.labels import encode

        return encode(tokenizer, self, max_length=max_length).inputs

    def among(self, names: Sequence[str]) -> "Examples":
        """The same, labelled among all the classes `names` of a model where these rows hold only some of them.

        Unchanged where the task names its classes itself, the model has no more of them, or one here is none of them; and
        where its names are numbers ("LABEL_0") and those of the rows, which hold no 0, may count from 1.
        """
        places = None if self.task.name in TASKS or self.task.regression else places_among(self.task.labels, names)
        numbered = are_numbers(names) and "0" not in self.task.labels
        if places is None or (numbered and tuple(names[place] for place in places) != self.task.labels):
            return self
        tokens = self.task.level == "token"
        mine = tuple(tuple(places[one] for one in row) if tokens else places[row] for row in self.labels)
        return replace(self, task=self.task.labelled(tuple(names)), labels=mine)

    def some(self, numbers: Sequence[int]) -> Self:
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
    labels: Sequence[str] = (),
) -> Examples:
    """All labelled examples of `task` in `data` (or the first `limit`), in file order.

    `data` is a file, a folder with the files of each split (`validation.parquet`, or all of
    `validation-00000-of-00002.parquet`, …), or a hub id; None is the hub's own copy. `split` is the task's evaluated one
    unless named. `labels`, of the training split or the model, are those of a task that does not name its own, so that these
    rows may lack some of them.

    Raises:
        BadInput: a missing file, split or column, an unknown label, one that does not fit the task, an empty split, one
            without labels, or more than 5 million rows.
        Offline: a hub id while offline.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"limit is {limit}; it must be at least 1")
    split = split or task.evaluated
    table = split_table(task, data, split, offline)
    where = table.source
    columns = task.columns
    most = MAX_EXAMPLES + 1 if limit is None else limit
    rows = [dict(zip(columns, row, strict=True)) for row in itertools.islice(table.rows(columns, lists=True), most)]
    if not rows:
        raise BadInput(f"{where}: the {split} split has no rows; name another file or split")
    if len(rows) > max(MAX_EXAMPLES, limit or 0):
        raise BadInput(f"{where}: more than {MAX_EXAMPLES:,} rows; say with a limit how many to read")
    classes = table.classes.get(task.label)
    if task.level == "token":
        return _token_examples(task, where, rows, (classes, labels))
    raw = [(row[task.label], number) for number, row in enumerate(rows, 1)]
    names, found = numbered_labels(task, where, raw, (classes, labels))
    texts = tuple(_text(task.filled(task.text, row), task.text, where, i) for i, row in enumerate(rows))
    pairs: tuple[str, ...] = ()
    if task.pair:
        pairs = tuple(_text(task.filled(task.pair, row), task.pair, where, i) for i, row in enumerate(rows))
    return Examples(where, texts, task.text, task=task.labelled(names), labels=found, pairs=pairs)


def split_table(task: LabelledTask, data: str | Path | None, split: str, offline: bool) -> Table:
    """The rows of a split of `task` in `data`, as `read_examples` finds them."""
    if data is None:
        if not task.hub:
            raise BadInput(f"task {task.name} has no data set of its own; name a file with --data")
        return open_table(f"{task.hub}:{split}", offline=offline)
    path = Path(data)
    if not path.is_dir():
        return open_table(data, offline=offline, split=split)
    found = _files(path, split)
    return joined([open_table(file) for file in found], f"{path}/{split}-*{found[0].suffix}")


def _files(folder: Path, split: str) -> list[Path]:
    """The file of the split, or all its parts in their order."""
    there = sorted(file for file in folder.iterdir() if file.suffix.lower() in ENDINGS)
    whole = [file for file in there if file.stem == split]
    # Some versions of the datasets library add a hash to the name of a part.
    pattern = re.compile(rf"{re.escape(split)}-(\d{{1,9}})-of-(\d{{1,9}})(-[0-9a-f]+)?")
    matches = [(file, pattern.fullmatch(file.stem)) for file in there]
    parts = sorted((int(part[1]), int(part[2]), file) for file, part in matches if part)
    if not whole and not parts:
        raise BadInput(
            f"{folder}: no file of the {split} split ({split}.parquet); it has "
            f"{', '.join(file.name for file in there[:6]) or 'no data file'}"
        )
    if len(whole) == 1 and not parts:
        return whole
    files = whole + [file for *_, file in parts]
    if whole or len({of for _, of, _ in parts}) > 1 or len({number for number, *_ in parts}) < len(parts):
        raise BadInput(
            f"{folder}: {len(files)} files of the {split} split ({', '.join(file.name for file in files[:3])}, …) that are not "
            f"parts of one; name one file"
        )
    if len(parts) != parts[0][1]:
        raise BadInput(f"{folder}: {len(parts)} of the {parts[0][1]} parts of the {split} split; fetch the others")
    return files


def _text(value: Any, part: str, where: str, number: int) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{where}, row {number + 1}: {part} holds {value!r}, not a text")
    return value


def numbered_labels(
    task: LabelledTask,
    where: str,
    raw: Sequence[tuple[Any, int]],
    named: tuple[tuple[str, ...] | None, Sequence[str]],
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """(names, a number for each raw label); `raw` has each with its row, `named` what the data and the caller call them."""
    if all(str(value).strip() in UNLABELLED for value, _ in raw):
        raise BadInput(
            f"{where}: every label is −1, so this split is unlabelled (a test split?); use the validation split"
        )
    if task.regression:
        return (), tuple(_number(task, value, where, row) for value, row in raw)
    raw = [(_whole(value), row) for value, row in raw]
    classes = named[0]
    known = {*task.labels, *(classes or ()), *named[1]}
    for value, row in raw:
        if _is_missing(value) and value not in known:
            raise BadInput(f"{where}, row {row}: the label is missing ({value!r}); give one, or remove the row")
    names = task.labels or classes or _names([value for value, _ in raw], where, tuple(named[1]))
    place = _placing([value for value, _ in raw], names, classes)
    places = []
    for value, row in raw:
        found = place(value)
        if found is None:
            said = ", ".join(f"{number} {name}" for number, name in enumerate(names[:12]))
            raise BadInput(
                f"{where}, row {row}: unknown label {value!r}{_unlabelled(value)}; the labels of {task.name} are {said}"
            )
        places.append(found)
    return names, tuple(places)


def _unlabelled(value: Any) -> str:
    """What an odd label means where it marks that there is none."""
    if str(value).strip() in UNLABELLED:
        return ", which marks an unlabelled row (remove it)"
    return ", which marks a piece without a label (give one to each word)" if value == NOT_A_LABEL else ""


def _is_missing(value: Any) -> bool:
    """Whether a label says that there is none: nothing, or what pandas and NumPy write for nothing."""
    if isinstance(value, str):
        return value.strip().casefold() in ("", "nan")
    return value is None or (isinstance(value, float) and math.isnan(value))


def _whole(value: Any) -> Any:
    """A whole number in a column of floats, as pandas writes one with gaps, as that number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(task: LabelledTask, value: Any, where: str, number: int) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise BadInput(f"{where}, row {number}: label {value!r} is not a number, and this task is a regression")
    if task.scale and not task.scale[0] <= found <= task.scale[1]:
        low, high = task.scale
        said = f"label {value!r}{_unlabelled(value)} is outside {low:g} to {high:g}, the scale of {task.name}"
        raise BadInput(f"{where}, row {number}: {said}")
    return found


def _names(raw: Sequence[Any], where: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Labels as the data has them, in ascending order: all of `known` where they are of these, else numbers up to the largest.

    Numbers count from 0, or from 1 where that is the smallest of them and nothing else is known ("1" to "5" stars).
    """
    for value in raw:
        if isinstance(value, float) or (isinstance(value, str) and FRACTION.fullmatch(value) and value != "."):
            raise BadInput(
                f"{where}: label {value!r} is a number with a fraction; write labels as text or as whole numbers, or use the "
                f"task `regress` for values on a scale"
            )
        if not isinstance(value, int | str | None):
            raise BadInput(
                f"{where}: label {value!r} is a {type(value).__name__}; write labels as text or as whole numbers"
            )
    values = {value.strip() if isinstance(value, str) else value for value in raw if value is not None}
    if len(values) > MAX_CLASSES:
        raise BadInput(f"{where}: {len(values):,} different labels; is this the column of the label?")
    if values and all(_is_number(value) for value in values):
        numbers = [int(value) for value in values]
        if set(map(str, numbers)) <= set(known):
            return tuple(sorted(known, key=lambda name: (len(name), name)))  # not in the order of a model's outputs
        n = max(max(numbers) + 1, len(known))
        if min(numbers) < 0 or n > MAX_CLASSES:
            raise BadInput(
                f"{where}: labels go from {min(numbers)}{_unlabelled(min(numbers))} to {max(numbers)}; they must count from 0"
            )
        return tuple(map(str, range(0 if known else int(min(numbers) == 1), n)))
    if len({isinstance(value, str) for value in values}) > 1:
        raise BadInput(f"{where}: labels of several types; write them all as text or all as numbers")
    return tuple(sorted(known or map(str, values)))


def _is_number(value: Any) -> bool:
    """Whether a label is a whole number; .csv and .tsv hold them as text."""
    if isinstance(value, str):
        return re.fullmatch(r"-?[0-9]{1,9}", value) is not None
    return isinstance(value, int) and not isinstance(value, bool)


def _placing(
    raw: Sequence[Any], names: tuple[str, ...], classes: tuple[str, ...] | None
) -> Callable[[Any], int | None]:
    """Finds the place of a raw label in `names`, None for one that is not of them.

    Numbers count in the data's own names of them, `classes`; without any they are names where all of them are ("1" to "5"),
    and count from 0 in `names` where not.
    """
    find = finder(names)
    numbers = {int(value) for value in raw if _is_number(value)}
    named = classes is None and all(find(str(number)) is not None for number in numbers)
    own = classes or names

    def place(value: Any) -> int | None:
        if _is_number(value):
            number = int(value)
            if named:
                return find(str(number))
            return find(own[number]) if 0 <= number < len(own) else None
        return find(str(value).strip()) if isinstance(value, str | bool) else None

    return place


def _token_examples(
    task: LabelledTask,
    where: str,
    rows: list[dict[str, Any]],
    named: tuple[tuple[str, ...] | None, Sequence[str]],
) -> Examples:
    words: list[tuple[str, ...]] = []
    raw: list[tuple[Any, int]] = []
    for number, row in enumerate(rows):
        mine, labels = row[task.text], row[task.label]
        if not (isinstance(mine, list) and isinstance(labels, list) and all(isinstance(word, str) for word in mine)):
            raise BadInput(
                f"{where}, row {number + 1}: {task.text} and {task.label} must hold lists, one label per word; use .jsonl or "
                f".parquet"
            )
        if not mine:
            raise BadInput(f"{where}, row {number + 1}: {task.text} holds no word; remove the row")
        if len(mine) != len(labels):
            raise BadInput(f"{where}, row {number + 1}: {len(mine)} words and {len(labels)} labels")
        words.append(tuple(mine))
        raw += [(label, number + 1) for label in labels]
    names, places = numbered_labels(task, where, raw, named)
    each = iter(places)
    return Examples(
        where,
        tuple(" ".join(mine) for mine in words),
        task.text,
        task=task.labelled(names),
        labels=tuple(tuple(itertools.islice(each, len(mine))) for mine in words),
        words=tuple(words),
    )


# --- training and dev examples ---------------------------------------------------------------------------------------


def read_splits(
    task: LabelledTask, data: str | None = None, dev_data: str | None = None, *, offline: bool = False
) -> tuple[Examples, Examples]:
    """(train, dev) of `task`; `data` is a folder or hub id with both, or the training examples where `dev_data` are given.

    A task that models of another task are made for (HANS, MNLI's mismatched part) is trained on that one. Labels that a
    task does not name are those of the training examples.

    Raises:
        BadInput: as `read_examples`; one file for both; a label in the dev examples that training does not know.
    """
    if data is not None and dev_data is None:
        _has_both(data, task)
    trained = find_task(task.trained_on) if task.trained_on else task
    train = read_examples(trained, data, split=trained.trained, offline=offline)
    read = () if task.labels or task.regression else train.task.labels
    dev = read_examples(task, data if dev_data is None else dev_data, labels=read, offline=offline)
    check_splits(train, dev)
    return train, dev


def check_splits(train: Examples, dev: Examples) -> None:
    """Raise BadInput where a model trained on `train` cannot be scored on `dev`."""
    one, other = train.task, dev.task
    if (one.level, one.regression) != (other.level, other.regression):
        raise BadInput(f"{one.name} and {other.name} are tasks of different kinds; train and score on one of them")
    if one.regression:
        return
    if len({plain_label(name) for name in one.labels}) < len(one.labels):
        raise BadInput(
            f"{train.source}: labels differ only in case or punctuation: {', '.join(one.labels[:6])}; rename them"
        )
    labels = set(train.labels) if one.level == "text" else {label for row in train.labels for label in row}
    if len(labels) == 1 and len(one.labels) > 1:
        raise BadInput(
            f"{train.source}: every label is {one.labels[labels.pop()]!r}, and a classifier learns from at least two; was the "
            f"file cut?"
        )
    if len(one.labels) < 2:
        raise BadInput(f"{train.source} has one class, {one.labels[0]!r}; a classifier needs at least two")
    try:
        label_order(other, dict(enumerate(one.labels)), one.labels)
    except BadInput:
        raise BadInput(
            f"{train.source} has {len(one.labels)} classes ({', '.join(one.labels[:6])}), {dev.source} has "
            f"{len(other.labels)} ({', '.join(other.labels[:6])}); both must have the same"
        ) from None


def _has_both(data: str, task: LabelledTask) -> None:
    if Path(data).is_file():
        raise BadInput(
            f"{data} is one file, and fine-tuning needs dev examples too: name theirs with --dev-data, or give --data a folder "
            f"that holds {task.trained} and {task.evaluated} files"
        )
    if not Path(data).exists() and data.count(":") > 1:
        raise BadInput(f"{data} names one split; leave the split out, or name the dev examples with --dev-data")
