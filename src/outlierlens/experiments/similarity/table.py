"""THE table of sentence similarity data sets, and their pairs.

    for task in sts_tasks("stsb,sickr,sts12"): pairs = read_sts(task, "sts/")      # sts/stsb/test.parquet, …
    pairs.first, pairs.second, pairs.gold, pairs.subset                            # of equal length
    found_in("sts/")                                                               # names of those that a folder holds

A folder has one folder per data set, with a file per split; without a folder the hub's own copies are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from outlierlens.data.labelled import LabelledTask, read_examples
from outlierlens.data.labelled.examples import split_table
from outlierlens.data.labelled.labels import families, plain_text
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput

SUBSET = "subset"  # column that names a pair's part of its data set, where there is one
TRAIN, DEV, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class StsTask:
    """One data set of sentence pairs with a similarity.

    Attributes:
        name: "stsb"; also the name of its folder.
        title: for people. hub: id on the hub.
        low, high: the scale of its scores.
        splits: those of the hub's copy; `test` is evaluated. pairs: in the test split of that copy.
        subsets: parts of the complete test split as SentEval reads it; () where it is one.
        source: paper.
    """

    name: str
    title: str
    hub: str
    low: float
    high: float
    splits: tuple[str, ...]
    pairs: int
    subsets: tuple[str, ...]
    source: str


_ROWS = (
    StsTask(
        "stsb", "STS-B", "mteb/stsbenchmark-sts", 0, 5, (TRAIN, DEV, TEST), 1379, (), "Cer et al. 2017, SemEval-2017 task 1"
    ),
    # The hub's copy has all of SICK in one split; SentEval evaluates the 4,927 pairs of SICK's own test split.
    StsTask("sickr", "SICK-R", "mteb/sickr-sts", 1, 5, (TEST,), 9927, (), "Marelli et al. 2014, SICK"),
    StsTask(
        "sts12", "STS12", "mteb/sts12-sts", 0, 5, (TEST,), 3108, ("MSRpar", "MSRvid", "SMTeuroparl", "OnWN", "SMTnews"),
        "Agirre et al. 2012, SemEval-2012 task 6",
    ),
    # SMT, the fourth part, may not be passed on; SentEval and the hub are without it too.
    StsTask(
        "sts13", "STS13", "mteb/sts13-sts", 0, 5, (TEST,), 1500, ("FNWN", "headlines", "OnWN"),
        "Agirre et al. 2013, *SEM shared task",
    ),
    StsTask(
        "sts14", "STS14", "mteb/sts14-sts", 0, 5, (TEST,), 3750,
        ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"), "Agirre et al. 2014, SemEval-2014 task 10",
    ),
    StsTask(
        "sts15", "STS15", "mteb/sts15-sts", 0, 5, (TEST,), 3000,
        ("answers-forums", "answers-students", "belief", "headlines", "images"), "Agirre et al. 2015, SemEval-2015 task 2",
    ),
    StsTask(
        "sts16", "STS16", "mteb/sts16-sts", 0, 5, (TEST,), 1186,
        ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
        "Agirre et al. 2016, SemEval-2016 task 1",
    ),
)  # fmt: skip
TASKS = {task.name: task for task in _ROWS}


@dataclass(frozen=True)
class StsPairs:
    """Pairs of sentences with how alike people find them.

    Attributes:
        source: file or hub id. split: which of the data set.
        first, second: sentences as given [pair]. gold: similarity on the task's scale [pair].
        subset: part of the data set that a pair belongs to [pair]; () where the data does not say.
    """

    task: StsTask
    source: str
    split: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: np.ndarray
    subset: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Each sentence once, in the order of their first pair."""
        return tuple(dict.fromkeys(text for pair in zip(self.first, self.second, strict=True) for text in pair))

    @property
    def family(self) -> np.ndarray:
        """Which pairs hang together by sentences that they share, int [pair]; see `families`."""
        return families(*([plain_text(text) for text in side] for side in (self.first, self.second)))

    @property
    def subsets(self) -> tuple[str, ...]:
        """Parts that these pairs hold, in the task's order; others behind."""
        there = dict.fromkeys(self.subset)
        return tuple(name for name in self.task.subsets if name in there) + tuple(
            name for name in there if name not in self.task.subsets
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts of the complete data set that these pairs lack; () where the data does not say what is what."""
        return tuple(name for name in self.task.subsets if name not in self.subset) if self.subset else ()

    def without(self, sentences: set[str]) -> "StsPairs":
        """The pairs of which neither sentence is one of these, whatever their spaces."""
        unwanted = {plain_text(text) for text in sentences}
        kept = [i for i in range(len(self)) if not {plain_text(self.first[i]), plain_text(self.second[i])} & unwanted]
        return replace(
            self,
            first=tuple(self.first[i] for i in kept),
            second=tuple(self.second[i] for i in kept),
            gold=self.gold[kept],
            subset=tuple(self.subset[i] for i in kept) if self.subset else (),
        )


def sts_tasks(names: str) -> tuple[StsTask, ...]:
    """ "stsb,sts12" -> rows of the table; raises BadInput with those there are."""
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in TASKS:
            raise BadInput(f"unknown similarity task {name!r}; tasks are {', '.join(TASKS)}")
    return tuple(TASKS[name] for name in dict.fromkeys(wanted))


def found_in(folder: str | Path) -> tuple[StsTask, ...]:
    """The data sets that `folder` has a folder of; raises BadInput where there is none."""
    found = tuple(task for task in _ROWS if (Path(folder) / task.name).is_dir())
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
) -> StsPairs:
    """The pairs of a split in file order, or the first `limit` of them; without `folder`, the hub's copy.

    Raises:
        BadInput: a missing folder, file or column, a score that is no number or off the scale, or fewer than 2 pairs.
        Offline: the hub's copy while offline.
    """
    data = None if folder is None else Path(folder) / task.name
    if data is not None and not data.is_dir():
        raise BadInput(f"{data}: no such folder; --data holds one folder per task, with {split}.parquet in it")
    asked = LabelledTask(
        f"sts:{task.name}", "sentence1", "sentence2", (), ("spearman",), task.hub, label="score", regression=True
    )
    read = read_examples(asked, data, split=split, limit=limit, offline=offline)
    gold = np.array(read.labels, dtype=np.float64)
    off = np.flatnonzero((gold < task.low) | (gold > task.high))
    if len(off):
        raise BadInput(
            f"{read.source}, row {off[0] + 1}: score {gold[off[0]]:g} is off the scale of {task.name}, {task.low:g} to "
            f"{task.high:g}; these are other scores"
        )
    if len(gold) < 2:
        raise BadInput(f"{read.source}: {len(gold)} pair has no rank correlation; read at least 2")
    table = split_table(asked, data, split, offline)
    subset: tuple[str, ...] = ()
    if SUBSET in table.names:
        names = [value for (value,), _ in zip(table.rows((SUBSET,)), range(len(gold)), strict=False)]
        subset = tuple(str(name).removeprefix("surprise.") for name in names)
    return StsPairs(task, read.source, split, read.texts, read.pairs, gold, subset)


def fit_text(tasks: Sequence[StsTask], folder: str | Path | None = None, *, offline: bool = False) -> Texts | None:
    """The sentences of the train splits of `tasks`, or of any task of the folder where these have none; else None."""
    having = [task for task in tasks if has_split(task, folder, TRAIN)]
    having = having or [task for task in _ROWS if has_split(task, folder, TRAIN)]
    if not having:
        return None
    read = [read_sts(task, folder, split=TRAIN, offline=offline) for task in having]
    texts = dict.fromkeys(text for pairs in read for text in pairs.sentences if text.strip())
    return Texts(" and ".join(pairs.source for pairs in read), tuple(texts))
