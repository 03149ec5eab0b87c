"""Training, dev and test examples that share no text, and linear classifiers of all repairs of a layer, trained at once.

    splits = read_frozen(find_task("sst2"), "glue/sst2", limit=4000)     # sst2/train.parquet and sst2/validation.parquet
    splits.train, splits.dev, splits.test                                # dev is held out of train without a third split
    heads = train(vectors, labels, fixes, TrainOptions(n_classes=2))     # vectors [text, dim]
    heads.predict(others)                                                # [fix, text] classes

Each classifier is what it would be alone: losses are added up, and Adam treats every weight by itself. A repair is
x -> (x − centre) · matrix, so its classifier W is the same as one on raw vectors with matrix · W: no repaired copy of the
vectors is made, and an invertible repair is seen for what it is here, another way to the same classifiers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.data.labelled import Examples, LabelledTask, read_examples
from outlierlens.data.labelled.labels import plain_text
from outlierlens.errors import BadInput
from outlierlens.vectors.fixes import Fix

if TYPE_CHECKING:
    from torch import Tensor

HELD_OUT = 1000  # examples of a dev split that is held out of train, at most a fifth of it
BLOCK_BYTES = 200_000_000  # of vectors in float64 that predictions are made of at once


# --- examples ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeProtocol:
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
    "glue:sst2": ProbeProtocol(768),
    "sst5": ProbeProtocol(1536, dev="validation", test="test"),
    "imdb": ProbeProtocol(128, limit=2500, test_limit=2500),
}


def protocol_of(task: LabelledTask) -> ProbeProtocol:
    """The row of `PROTOCOLS`, or the usual one."""
    return PROTOCOLS.get(task.name, ProbeProtocol())


@dataclass(frozen=True)
class Splits:
    """Examples for one task that share no text between splits.

    Attributes:
        held_out: whether dev was drawn from train.
        n_dropped: training and dev examples left out because their text is in a split evaluated later.
    """

    train: Examples
    dev: Examples
    test: Examples
    held_out: bool
    n_dropped: int

    @property
    def parts(self) -> tuple[Examples, Examples, Examples]:
        """Train, dev and test."""
        return self.train, self.dev, self.test


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
    random = np.random.default_rng([seed, 13])
    test = _some(test, test_limit, random)
    held_out = dev is None
    left = _without(train, test)
    dropped = len(train) - len(left)
    if dev is None:
        drawn = random.permutation(left)
        n = min(HELD_OUT, len(left) // 5)
        dev, left = train.some(sorted(drawn[:n].tolist())), sorted(drawn[n:].tolist())
    else:
        kept = _without(dev, test)
        dropped += len(dev) - len(kept)
        dev = dev.some(kept)
    mine = train.some(left)
    apart = _without(mine, dev)
    dropped += len(mine) - len(apart)
    mine = _some(mine.some(apart), limit, random)
    if len(mine) < 2 or not len(dev):
        raise BadInput(
            f"{train.source}: {len(mine)} training and {len(dev)} dev examples are left that are not evaluated ones; at least "
            f"2 and 1 are needed"
        )
    return Splits(mine, dev, test, held_out, dropped)


def _some(examples: Examples, limit: int | None, random: np.random.Generator) -> Examples:
    """`limit` of them, drawn, in their order."""
    if limit is None or limit >= len(examples):
        return examples
    return examples.some(sorted(random.permutation(len(examples))[:limit].tolist()))


def _without(examples: Examples, others: Examples) -> list[int]:
    """Numbers of the examples whose text is none of `others`."""
    seen = {plain_text(text) for text in others.texts}
    return [number for number, text in enumerate(examples.texts) if plain_text(text) not in seen]


# --- classifiers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainOptions:
    """How the classifiers are trained: cross-entropy by Adam (Luo et al. 2021, section 4.4).

    Attributes:
        n_classes: number of classes.
        epochs: the paper's 10. batch: examples of a step.
        lr: Adam's; the paper does not state one. Ten epochs of some thousand examples get to the optimum with this one.
        bias: a constant a class beside the weights; the paper has none.
        seed: of the order of the examples.
    """

    n_classes: int
    epochs: int = 10
    batch: int = 128
    lr: float = 0.01
    bias: bool = False
    seed: int = 0


@dataclass(frozen=True)
class ClassifierHeads:
    """Trained classifiers, as they read raw vectors: logits = (x − shift) · weight + constant.

    Attributes:
        shift: [dim]. weight: [dim, fix, class]. constant: [fix, class]. All float64.
        loss: mean cross-entropy, in nats, of the last epoch's batches as they were met [fix].
    """

    shift: np.ndarray
    weight: np.ndarray
    constant: np.ndarray
    loss: np.ndarray

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """Classes [fix, text] of vectors [text, dim]."""
        width, n_fixes, _ = self.weight.shape
        found = np.empty((n_fixes, len(vectors)), dtype=np.int64)
        at_once = max(1, BLOCK_BYTES // (8 * width))
        for start in range(0, len(vectors), at_once):
            part = vectors[start : start + at_once].astype(np.float64) - self.shift
            logits = (part @ self.weight.reshape(width, -1)).reshape(len(part), *self.constant.shape) + self.constant
            found[:, start : start + at_once] = logits.argmax(2).T
        return found


def train(vectors: np.ndarray, labels: np.ndarray, fixes: Sequence[Fix], options: TrainOptions) -> ClassifierHeads:
    """Classifiers of `vectors` [text, dim] with `labels` [text], for each of `fixes`.

    They start at zero: the loss is convex, so that a random start would add nothing but chance. Float64 throughout, since
    a whitening of nearly flat directions multiplies rounding.

    Raises:
        BadInput: options that make no step.
    """
    import torch

    if options.epochs < 1 or options.batch < 1 or not options.lr > 0:
        raise BadInput(f"epochs {options.epochs}, batch {options.batch} and lr {options.lr} must all be above 0")
    shift = torch.from_numpy(vectors.mean(0, dtype=np.float64))
    classifiers = [_Classifier(fix, shift, options) for fix in fixes]
    adam = torch.optim.Adam([weight for one in classifiers for weight in one.trained], lr=options.lr)
    targets = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    sums = torch.zeros(len(fixes), dtype=torch.float64)
    for epoch in range(options.epochs):
        sums.zero_()
        for rows in _batches(len(vectors), epoch, options):
            read = torch.from_numpy(vectors[rows].astype(np.float64)) - shift  # [text, dim]
            weight, constant = _folded(classifiers)
            logits = torch.addmm(constant, read, weight).unflatten(1, (len(fixes), options.n_classes))
            index = targets[rows][:, None, None].expand(-1, len(fixes), 1)
            losses = -logits.log_softmax(2).gather(2, index)[..., 0].mean(0)  # [fix], means over the batch
            adam.zero_grad()
            losses.sum().backward()
            adam.step()
            sums += losses.detach() * len(rows)
    with torch.no_grad():
        weight, constant = (part.unflatten(-1, (len(fixes), -1)).numpy() for part in _folded(classifiers))
    return ClassifierHeads(shift.numpy(), weight, constant, (sums / len(vectors)).numpy())


class _Classifier:
    """The classifier of one repair."""

    def __init__(self, fix: Fix, shift: "Tensor", options: TrainOptions):
        import torch

        self.matrix = torch.from_numpy(fix.matrix)  # [dim] or [dim, kept]
        self.away = shift - torch.from_numpy(fix.centre)
        self.weight = torch.zeros(self.matrix.shape[-1], options.n_classes, dtype=torch.float64, requires_grad=True)
        self.bias = torch.zeros(options.n_classes, dtype=torch.float64, requires_grad=options.bias)

    @property
    def trained(self) -> "list[Tensor]":
        return [self.weight, self.bias] if self.bias.requires_grad else [self.weight]

    def folded(self) -> "tuple[Tensor, Tensor]":
        """(weight [dim, class], constant [class]) that read raw vectors less the shift."""
        weight = self.matrix[:, None] * self.weight if self.matrix.ndim == 1 else self.matrix @ self.weight
        return weight, self.away @ weight + self.bias


def _folded(classifiers: "Sequence[_Classifier]") -> "tuple[Tensor, Tensor]":
    """(weight [dim, fix * class], constant [fix * class])."""
    import torch

    weights, constants = zip(*(one.folded() for one in classifiers), strict=True)
    return torch.cat(weights, 1), torch.cat(constants)


def _batches(n_texts: int, epoch: int, options: TrainOptions) -> Iterator[np.ndarray]:
    """Numbers of the texts of each step; sorted within a step, for vectors that lie on disk."""
    order = np.random.default_rng([options.seed, 17, epoch]).permutation(n_texts)
    for start in range(0, n_texts, options.batch):
        yield np.sort(order[start : start + options.batch])
