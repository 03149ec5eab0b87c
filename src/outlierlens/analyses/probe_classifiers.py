"""Training, dev and test examples that share no text, and linear classifiers of all repairs of a layer, trained at once.

    splits = read_frozen(find_task("sst2"), "glue/sst2", limit=4000)     # sst2/train.parquet and sst2/validation.parquet
    splits.train, splits.dev, splits.test                                # dev is held out of train without a third split
    heads = train(vectors, labels, fixes, TrainOptions(n_classes=2))     # vectors [text, dim]
    heads.predict(others)                                                # [fix, text] classes

Each classifier is what it would be alone: losses are added up, and Adam treats every weight by itself. A repair is
x -> (x − centre) · matrix, so its classifier W is the same as one on raw vectors with matrix · W: no repaired copy of the
vectors is made, and an invertible repair is seen for what it is here, another way to the same classifiers.

The best classifier that sees one number: at most as many intervals as there are classes, found exactly.

    fitted = fit_intervals(values, labels, n_classes=2)      # values [item, dim]: every dimension on its own
    fitted.predict(other)                                    # class numbers [item, dim]
    line = fit_line(values, targets)                         # regression: the least-squares line of each dimension
    shifted_mean(values, labels)                             # the threshold of Rudman et al. (2023)

With two classes an interval classifier is a decision stump: a threshold and a direction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.data.labelled import Examples, LabelledTask, read_examples
from outlierlens.data.labelled.labels import plain_text
from outlierlens.errors import USE_FLOAT32, BadInput
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


# --- single dimensions -----------------------------------------------------------------------------------------------


MEMORY = 64_000_000  # bytes of back pointers held at once
SHIFTS = np.linspace(-50, 50, 201)  # of Rudman et al.'s released code: in steps of 0.5 around the mean


@dataclass(frozen=True)
class Intervals:
    """One interval classifier a dimension.

    Attributes:
        cuts: float64 [dim, n_classes − 1], ascending, inf where a dimension uses fewer; a value on a cut belongs below.
        says: class of each interval, int [dim, n_classes].
        fits: share of the fitted items' weight that it gets right, in [0, 1] [dim].
    """

    cuts: np.ndarray
    says: np.ndarray
    fits: np.ndarray

    def predict(self, values: np.ndarray) -> np.ndarray:
        """Class numbers [item, dim] of values [item, dim]."""
        found = np.empty(values.shape, dtype=np.int64)
        for dim in range(values.shape[1]):
            found[:, dim] = self.says[dim, np.searchsorted(self.cuts[dim], values[:, dim].astype(np.float64))]
        return found

    def words(self, dim: int, labels: Sequence[str]) -> str:
        """The classifier of a dimension in words."""
        text = labels[self.says[dim, 0]]
        for cut, label in zip(self.cuts[dim], self.says[dim, 1:], strict=True):
            if np.isfinite(cut):
                text += f" ≤ {cut:.3g} < {labels[label]}"
        return text if np.isfinite(self.cuts[dim]).any() else f"always {text}"


def fit_intervals(
    values: np.ndarray, labels: np.ndarray, n_classes: int, weights: np.ndarray | None = None
) -> Intervals:
    """For each dimension of `values` [item, dim], the intervals that get the most weight [item] of `labels` right.

    Exact, by dynamic programming over the sorted items: no threshold that could be better is left out. Cuts lie midway
    between neighbouring values. Of equally good classifiers the one with fewest intervals is taken.

    Raises:
        BadInput: no items, or a value that is not finite.
    """
    n, width = values.shape
    if not n or n != len(labels):
        raise BadInput(f"{n} vectors for {len(labels)} labels; need at least one vector, and one label per vector")
    if not np.isfinite(values).all():
        raise BadInput(f"a sentence vector holds a value that is not finite; {USE_FLOAT32}")
    weights = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    step = max(1, MEMORY // (n * n_classes * (n_classes + 1)))
    parts = [
        _fit(values[:, start : start + step].astype(np.float64), labels, n_classes, weights)
        for start in range(0, width, step)
    ]
    cuts, says, right = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Intervals(cuts, says, right / weights.sum())


def _fit(
    values: np.ndarray, labels: np.ndarray, n_classes: int, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cuts, says, weight right) of some dimensions; best[interval, class] is of items so far, the last one in both."""
    n, width = values.shape
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)  # [item, dim]
    classes, weight = labels[order], weights[order]
    columns = np.arange(width)
    best = np.full((n_classes, n_classes, width), -np.inf)
    best[0] = 0.0
    best[0, classes[0], columns] = weight[0]
    entered = np.zeros((n, n_classes, n_classes, width), dtype=bool)  # whether the interval begins at the item
    came_from = np.zeros((n, n_classes, width), dtype=np.int16)  # class of the interval before, where one begins
    for item in range(1, n):
        came_from[item, 1:] = best[:-1].argmax(axis=1)
        enter = np.full((n_classes, width), -np.inf)
        enter[1:] = np.where(ordered[item - 1] < ordered[item], best[:-1].max(axis=1), -np.inf)
        entered[item] = enter[:, None] > best
        best = np.maximum(best, enter[:, None])
        best[:, classes[item], columns] += weight[item]
    return _trace(best, entered, came_from, ordered)


def _trace(
    best: np.ndarray, entered: np.ndarray, came_from: np.ndarray, ordered: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Walk back from the best end to the cuts."""
    n, n_classes, _, width = entered.shape
    columns = np.arange(width)
    flat = best.reshape(-1, width)
    end = flat.argmax(axis=0)  # the first of equals: fewest intervals
    interval, says_now = end // n_classes, end % n_classes
    cuts = np.full((width, n_classes - 1), np.inf)
    says = np.repeat(says_now[:, None], n_classes, axis=1)
    for item in range(n - 1, 0, -1):
        at = columns[entered[item, interval, says_now, columns]]
        if not len(at):
            continue
        place = interval[at]
        cuts[at, place - 1] = (ordered[item - 1, at] + ordered[item, at]) / 2
        says_now[at] = came_from[item, place, at]
        interval[at] -= 1
        says[at, place - 1] = says_now[at]
    return cuts, says, flat[end, columns]


@dataclass(frozen=True)
class FittedLines:
    """The least-squares line of each dimension: slope and intercept, and the share of variance explained, [dim] each."""

    slope: np.ndarray
    intercept: np.ndarray
    fits: np.ndarray

    def predict(self, values: np.ndarray) -> np.ndarray:
        """Values [item, dim]."""
        return values.astype(np.float64) * self.slope + self.intercept

    def words(self, dim: int, _: Sequence[str]) -> str:
        """The line of a dimension in words."""
        return f"{self.slope[dim]:.3g} · h + {self.intercept[dim]:.3g}"


def fit_line(values: np.ndarray, targets: np.ndarray) -> FittedLines:
    """Of `targets` [item] on each dimension of `values` [item, dim]; a constant dimension gets slope 0."""
    x = values.astype(np.float64)
    y = np.asarray(targets, dtype=np.float64)
    mean = x.mean(axis=0)
    spread = np.square(x - mean).sum(axis=0)
    shared = ((x - mean) * (y - y.mean())[:, None]).sum(axis=0)
    slope = np.divide(shared, spread, out=np.zeros_like(shared), where=spread > 0)
    total = np.square(y - y.mean()).sum()
    return FittedLines(slope, y.mean() - slope * mean, slope * shared / total if total else np.zeros_like(slope))


@dataclass(frozen=True)
class ShiftedMean:
    """Rudman et al.'s classifier: `above` is said of values over `mean` + `shift`, the other class of the rest."""

    mean: float
    shift: float
    above: int
    right: float

    def predict(self, values: np.ndarray) -> np.ndarray:
        """Class numbers [item] of values [item]."""
        return np.where(values > self.mean + self.shift, self.above, 1 - self.above)


def shifted_mean(values: np.ndarray, labels: np.ndarray) -> ShiftedMean:
    """The best of 201 shifts of the mean in [−50, 50] and of both directions, on values [item] with labels 0 and 1.

    Rudman et al. (2023), their released code. The grid is 0.5 apart whatever the spread of the values.
    """
    x = values.astype(np.float64)
    mean = float(x.mean())
    above = x[:, None] > mean + SHIFTS  # [item, shift]
    right = (above == (labels == 1)[:, None]).mean(axis=0)  # of "above is class 1"
    best = np.maximum(right, 1 - right)
    place = int(best.argmax())
    return ShiftedMean(mean, float(SHIFTS[place]), int(right[place] >= 0.5), float(best[place]))
