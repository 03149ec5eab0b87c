"""Training, dev and test examples that share no text, and what the paper's protocol says of a task.

splits = read_frozen(find_task("sst2"), "glue/sst2", limit=4000)     # sst2/train.parquet and sst2/validation.parquet
splits.train, splits.dev, splits.test                                # dev is held out of train where there is no third split
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outlierlens.data.labelled import Examples, LabelledTask, read_examples
from outlierlens.data.labelled.labels import plain_text
from outlierlens.errors import BadInput

HELD_OUT = 1000  # examples of a dev split that is held out of train, at most a fifth of it


@dataclass(frozen=True)
class Protocol:
    """How a task is read and trained on unless asked otherwise.

    Attributes:
        train_batch: examples of a step (Luo et al. 2021, section 4.4, for the paper's tasks).
        limit, test_limit: training examples, and test examples, drawn by the seed; None takes all.
        dev, test: names of the splits; without `dev` it is held out of train, without `test` it is the task's evaluated one.
    """

    train_batch: int = 128
    limit: int | None = 10_000
    test_limit: int | None = None
    dev: str = ""
    test: str = ""


PROTOCOLS = {
    "glue:sst2": Protocol(768),
    "sst5": Protocol(1536, dev="validation", test="test"),
    "imdb": Protocol(128, limit=2500, test_limit=2500),
}


def protocol_of(task: LabelledTask) -> Protocol:
    """The row of `PROTOCOLS`, or the usual one."""
    return PROTOCOLS.get(task.name, Protocol())


@dataclass(frozen=True)
class Splits:
    """Examples of one task that share no text between splits.

    Attributes:
        held_out: whether dev was drawn from train.
        n_dropped: training and dev examples left out because their text is in a split evaluated later.
        n_train_all, n_test_all: examples there were before limits.
    """

    train: Examples
    dev: Examples
    test: Examples
    held_out: bool
    n_dropped: int
    n_train_all: int
    n_test_all: int


def read_frozen(
    task: LabelledTask,
    data: str | None = None,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    seed: int = 0,
    offline: bool = False,
) -> Splits:
    """Train, dev and test examples of `task`; `data` is a folder with a file per split, or a hub id, None the hub's own copy.

    At most `limit` training examples and `test_limit` test examples, drawn by `seed`; None takes all.

    Raises:
        BadInput: a task of words, of pairs of texts or of numbers, one file for all splits, or too few examples.
    """
    if task.level == "token" or task.regression or task.pair:
        raise BadInput(
            f"{task.name}: classifiers on frozen vectors read one text and say one class; use sst2, sst5, imdb"
        )
    if data is not None and Path(data).is_file():
        raise BadInput(f"{data} is one file; give a folder with a file per split ({task.trained}, {task.evaluated})")
    protocol = protocol_of(task)
    train = read_examples(task, data, split=task.trained, offline=offline)
    known = () if task.labels else train.task.labels
    test = read_examples(task, data, split=protocol.test or task.evaluated, offline=offline, labels=known)
    dev = read_examples(task, data, split=protocol.dev, offline=offline, labels=known) if protocol.dev else None
    return divide(train, dev, test, limit=limit, test_limit=test_limit, seed=seed)


def divide(
    train: Examples, dev: Examples | None, test: Examples, *, limit: int | None, test_limit: int | None, seed: int
) -> Splits:
    """`Splits` of these examples; without `dev` it is drawn from `train`.

    Texts are the same where they differ in spaces at most: one of test is in neither dev nor train, one of dev not in train.

    Raises:
        BadInput: other labels in one split than in another, or fewer than two training examples or one dev example.
    """
    for other in filter(None, (dev, test)):
        if other.task.labels != train.task.labels:
            raise BadInput(
                f"{other.source} has the classes {', '.join(other.task.labels[:6])}, {train.source} "
                f"{', '.join(train.task.labels[:6])}; both must have the same"
            )
    if len(train.task.labels) < 2:
        raise BadInput(f"{train.source} has one class; a classifier needs at least two")
    sizes = len(train), len(test)
    random = np.random.default_rng([seed, 13])
    test = _some(test, test_limit, random)
    held_out = dev is None
    rows = _without(train, [test])
    if dev is None:
        drawn = random.permutation(rows)
        n = min(HELD_OUT, len(rows) // 5)
        dev = train.some(sorted(drawn[:n].tolist()))
        left = sorted(drawn[n:].tolist())
        dropped = len(train) - len(rows)
    else:
        kept = _without(dev, [test])
        dropped = len(dev) - len(kept)
        dev, left = dev.some(kept), rows
        dropped += len(train) - len(rows)
    mine = train.some(left)
    apart = _without(mine, [dev])
    dropped += len(mine) - len(apart)
    mine = _some(mine.some(apart), limit, random)
    if len(mine) < 2 or not len(dev):
        raise BadInput(
            f"{train.source}: {len(mine)} training and {len(dev)} dev examples are left that are not evaluated ones; at least "
            f"2 and 1 are needed"
        )
    return Splits(mine, dev, test, held_out, dropped, *sizes)


def _some(examples: Examples, limit: int | None, random: np.random.Generator) -> Examples:
    """`limit` of them, drawn, in their order."""
    if limit is None or limit >= len(examples):
        return examples
    return examples.some(sorted(random.permutation(len(examples))[:limit].tolist()))


def _without(examples: Examples, others: Sequence[Examples]) -> list[int]:
    """Numbers of the examples whose text is in none of `others`."""
    seen = {plain_text(text) for other in others for text in other.texts}
    return [number for number, text in enumerate(examples.texts) if plain_text(text) not in seen]
