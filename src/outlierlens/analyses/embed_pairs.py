"""Pairs of sentences, or of a word in two sentences, with what people say of them: the data of `embed`.

    for task in sts_tasks("stsb,sickr,sts12"): pairs = read_sts(task, "sts/")      # sts/stsb/test.parquet, …
    pairs.first, pairs.second, pairs.truth, pairs.subset                           # of equal length
    train, validation = read_wic("wic/", "train"), read_wic("wic/", "validation")
    read_pairs(Path("pairs.tsv"))                                                  # columns sentence1, sentence2, score

A folder has one folder per data set of similarity, with a file per split; without a folder the hub's own copies are read.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.data.labelled import LabelledTask, read_examples
from outlierlens.data.labelled.examples import split_table
from outlierlens.data.labelled.labels import families, plain_text
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput

SUBSET = "subset"  # column that names a pair's part of its data set, where there is one
TRAIN, DEV, TEST = "train", "validation", "test"
WIC = "wic"
LABELS = {"0": False, "1": True, "false": False, "true": True, "f": False, "t": True}
Place = tuple[int, int]


@dataclass(frozen=True)
class StsTask:
    """One data set of sentence pairs with a similarity.

    Attributes:
        name: "stsb"; also the name of its folder. hub: id on the hub.
        low, high: the scale of its scores.
        splits: those of the hub's copy; `test` is evaluated.
        subsets: parts of the complete test split as SentEval reads it; () where it is one.
    """

    name: str
    hub: str
    low: float
    high: float
    splits: tuple[str, ...]
    subsets: tuple[str, ...] = ()


_ROWS = (
    StsTask("stsb", "mteb/stsbenchmark-sts", 0, 5, (TRAIN, DEV, TEST)),  # Cer et al. 2017
    # Marelli et al. 2014. The hub's copy has all of SICK in one split; SentEval evaluates the 4,927 pairs of SICK's own.
    StsTask("sickr", "mteb/sickr-sts", 1, 5, (TEST,)),
    # Agirre et al. 2012 to 2016
    StsTask("sts12", "mteb/sts12-sts", 0, 5, (TEST,), ("MSRpar", "MSRvid", "SMTeuroparl", "OnWN", "SMTnews")),
    # SMT, the fourth part, may not be passed on; SentEval and the hub are without it too.
    StsTask("sts13", "mteb/sts13-sts", 0, 5, (TEST,), ("FNWN", "headlines", "OnWN")),
    StsTask(
        "sts14", "mteb/sts14-sts", 0, 5, (TEST,),
        ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    ),
    StsTask(
        "sts15", "mteb/sts15-sts", 0, 5, (TEST,),
        ("answers-forums", "answers-students", "belief", "headlines", "images"),
    ),
    StsTask(
        "sts16", "mteb/sts16-sts", 0, 5, (TEST,),
        ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    ),
)  # fmt: skip
TASKS = {task.name: task for task in _ROWS}


@dataclass(frozen=True)
class TextPairs:
    """Pairs of sentences with how alike people find them, or pairs of a word in two sentences with whether it means the same.

    Attributes:
        name: of the data set. source: file or hub id. split: which of the data set.
        first, second: sentences as given [pair].
        truth: similarity on the data set's scale [pair]; of words bool, whether they mean the same.
        subset: part of the data set that a pair belongs to [pair]; () where the data does not say.
        words: the word [pair]. places: (start, end (excluded)) of it in the first, and in the second sentence, in characters
            [pair]. Both () where sentences are compared.
    """

    name: str
    source: str
    split: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    truth: np.ndarray
    subset: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    places: tuple[tuple[Place, Place], ...] = ()

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def digest(self) -> str:
        """SHA-256 of the pairs."""
        held = [self.first, self.second, self.truth.tolist(), self.subset, self.words, self.places]
        return hashlib.sha256(json.dumps(held).encode("utf-8", "backslashreplace")).hexdigest()

    @property
    def sentences(self) -> tuple[str, ...]:
        """Each sentence once, in the order of their first pair."""
        return tuple(dict.fromkeys(text for pair in zip(self.first, self.second, strict=True) for text in pair))

    @cached_property
    def family(self) -> np.ndarray:
        """Which pairs hang together by sentences, or a word, that they share, int [pair]; see `families`."""
        sides = ([plain_text(text) for text in side] for side in (self.first, self.second))
        words = [(word,) for word in self.words]  # a word is no sentence of one word
        return families(*sides, *((words,) if words else ()))

    @property
    def subsets(self) -> tuple[str, ...]:
        """Parts that these pairs hold, in the task's order; others behind."""
        known = TASKS[self.name].subsets if self.subset and self.name in TASKS else ()
        return tuple(dict.fromkeys((*(name for name in known if name in self.subset), *self.subset)))

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts of the complete data set that these pairs lack; () where the data does not say what is what."""
        return tuple(name for name in TASKS[self.name].subsets if name not in self.subset) if self.subset else ()

    def some(self, kept: np.ndarray) -> "TextPairs":
        """The pairs where `kept` [pair] holds."""
        rows = np.flatnonzero(kept).tolist()
        columns = ("first", "second", "subset", "words", "places")
        picked: dict[str, Any] = {
            name: tuple(held[i] for i in rows) for name in columns if (held := getattr(self, name))
        }
        return replace(self, truth=self.truth[rows], **picked)

    def without(self, sentences: Collection[str]) -> "TextPairs":
        """The pairs of which neither sentence is one of these, whatever their spaces."""
        unwanted = {plain_text(text) for text in sentences}
        pairs = zip(self.first, self.second, strict=True)
        return self.some(np.array([not {*map(plain_text, pair)} & unwanted for pair in pairs], dtype=bool))


def sts_tasks(names: str | None = None, folder: str | Path | None = None) -> tuple[StsTask, ...]:
    """ "stsb,sts12" -> rows of the table; without names those that `folder` has a folder of, or all.

    Raises:
        BadInput: a name that is none, or a folder without any.
    """
    if names is not None:
        wanted = [name.strip() for name in names.split(",")]
        if unknown := [name for name in wanted if name not in TASKS]:
            raise BadInput(f"unknown similarity task {unknown[0]!r}; tasks are {', '.join(TASKS)}")
        return tuple(TASKS[name] for name in dict.fromkeys(wanted))
    found = tuple(task for task in _ROWS if folder is None or (Path(folder) / task.name).is_dir())
    if not found:
        raise BadInput(
            f"{folder}: no folder of a similarity task in it; it should hold {', '.join(TASKS)} or some of them"
        )
    return found


def has_split(task: StsTask, folder: str | Path | None, split: str) -> bool:
    """Whether `split` of `task` can be read from `folder`, or from the hub for None."""
    if folder is None:
        return split in task.splits
    where = Path(folder) / task.name
    return where.is_dir() and any(file.name.startswith(split) for file in where.iterdir())


def read_sts(
    task: StsTask,
    folder: str | Path | None = None,
    *,
    split: str = TEST,
    limit: int | None = None,
    offline: bool = False,
) -> TextPairs:
    """The pairs of a split in file order, or the first `limit` of them; without `folder`, the hub's copy.

    Raises:
        BadInput: a missing folder, file or column, a score that is no number or off the scale, or fewer than 2 pairs.
        Offline: the hub's copy while offline.
    """
    data = None if folder is None else Path(folder) / task.name
    if data is not None and not data.is_dir():
        raise BadInput(f"{data}: no such folder; --data holds one folder per task, with {split}.parquet in it")
    asked = _scored(task.name, task.hub)
    read = read_examples(asked, data, split=split, limit=limit, offline=offline)
    truth = np.array(read.labels, dtype=np.float64)
    off = np.flatnonzero((truth < task.low) | (truth > task.high))
    if len(off):
        raise BadInput(
            f"{read.source}, row {off[0] + 1}: score {truth[off[0]]:g} is outside the scale of {task.name}, {task.low:g} to "
            f"{task.high:g}; these are other scores"
        )
    if len(truth) < 2:
        raise BadInput(f"{read.source}: {len(truth)} pair has no rank correlation; read at least 2")
    table = split_table(asked, data, split, offline)
    subset: tuple[str, ...] = ()
    if SUBSET in table.names:
        names = [value for (value,), _ in zip(table.rows((SUBSET,)), range(len(truth)), strict=False)]
        subset = tuple(str(name).removeprefix("surprise.") for name in names)
    return TextPairs(task.name, read.source, split, read.texts, read.pairs, truth, subset)


def read_pairs(path: Path) -> TextPairs:
    """The scored pairs of a file, scores on whatever scale.

    Raises:
        BadInput: no such file or column, a score that is no number, or fewer than 2 pairs.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; give one with columns sentence1, sentence2 and score")
    read = read_examples(_scored("pairs"), path)
    truth = np.array(read.labels, dtype=np.float64)
    if len(truth) < 2:
        raise BadInput(f"{path}: {len(truth)} pair has no rank correlation; give at least 2")
    return TextPairs(path.name, str(path), TEST, read.texts, read.pairs, truth)


def _scored(name: str, hub: str = "") -> LabelledTask:
    return LabelledTask(f"sts:{name}", "sentence1", "sentence2", (), ("spearman",), hub, label="score", regression=True)


def fit_text(tasks: Sequence[StsTask], folder: str | Path | None = None, *, offline: bool = False) -> Texts | None:
    """The sentences of the train splits of `tasks`, or of any task of the folder where these have none; else None."""
    having = [task for task in tasks if has_split(task, folder, TRAIN)]
    having = having or [task for task in _ROWS if has_split(task, folder, TRAIN)]
    if not having:
        return None
    read = [read_sts(task, folder, split=TRAIN, offline=offline) for task in having]
    texts = dict.fromkeys(text for pairs in read for text in pairs.sentences if text.strip())
    return Texts(" and ".join(pairs.source for pairs in read), tuple(texts))


def read_wic(
    data: str | Path | None = None, split: str = TRAIN, *, limit: int | None = None, offline: bool = False
) -> TextPairs:
    """The pairs of a split of Word-in-Context, in file order or the first `limit`; without `data`, the hub's copy.

    Columns are word, sentence1, sentence2, label, and either index1 and index2 (which word of the sentence, parted by spaces,
    from 0) or start1, end1, start2 and end2 (characters).

    Raises:
        BadInput: a missing file or column, a label that is none, a word that is not in its sentence, or no pair.
        Offline: the hub's copy while offline.
    """
    task = LabelledTask(WIC, "sentence1", "sentence2", ("False", "True"), ("accuracy",), "aps/super_glue:wic")
    table = split_table(task, data, split, offline)
    by_index = "index1" in table.names
    columns = ("index1", "index2") if by_index else ("start1", "end1", "start2", "end2")
    found: list[tuple[str, str, str, tuple[Place, Place], bool]] = []
    for number, row in enumerate(table.rows(("word", "sentence1", "sentence2", "label", *columns)), 1):
        word, one, two, label, *at = row
        if limit is not None and number > limit:
            break
        where = f"{table.source}, row {number}"
        if not isinstance(one, str) or not isinstance(two, str):
            raise BadInput(f"{where}: a sentence is missing")
        said = LABELS.get(str(label).strip().lower())
        if said is None:
            raise BadInput(
                f"{where}: label {label!r} is neither true nor false; a test split has none, use the validation split"
            )
        spots = ((at[0], None), (at[1], None)) if by_index else ((at[0], at[1]), (at[2], at[3]))
        first, second = (_place(text, *spot, where) for text, spot in zip((one, two), spots, strict=True))
        found.append((str(word), one, two, (first, second), said))
    if not found:
        raise BadInput(f"{table.source}: the {split} split has no pairs")
    words, one_side, other, places, truth = zip(*found, strict=True)
    made = np.array(truth, dtype=bool)
    return TextPairs(WIC, table.source, split, one_side, other, made, words=words, places=places)


def _place(text: str, start: object, end: object, where: str) -> Place:
    """Characters (start, end) of a word, of its number in the sentence where `end` is None."""
    if not isinstance(start, int) or not isinstance(end, int | None):
        raise BadInput(f"{where}: the place of the word is {start!r}, which is no number")
    if end is None:
        words = text.split(" ")
        if not 0 <= start < len(words):
            raise BadInput(f"{where}: the sentence has {len(words)} words, and the word is said to be number {start}")
        begin = sum(len(word) + 1 for word in words[:start])
        end = begin + len(words[start])
    else:
        begin = start
    if not 0 <= begin < end <= len(text):
        raise BadInput(f"{where}: the word is said to be at {begin} to {end} of a sentence of {len(text)} characters")
    return begin, end
