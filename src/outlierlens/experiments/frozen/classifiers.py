"""Linear classifiers of all layers and repairs, trained at once from the same batches of vectors.

    heads = train(vectors, labels, fixes, TrainOptions(n_classes=2))          # vectors [layer, text, dim]
    heads.predict(others)                                                     # [fix, layer, text] classes

Each classifier is what it would be alone: losses are added up, and Adam treats every weight by itself. A repair is
x -> (x − centre) · matrix, so its classifier W is the same as one on raw vectors with matrix · W: no repaired copy of the
vectors is made, and an invertible repair is seen for what it is here, another way to the same classifiers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.vectors.fixes import Fix

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_BYTES = 200_000_000  # of vectors in float64 that predictions are made of at once


@dataclass(frozen=True)
class TrainOptions:
    """How the classifiers are trained: cross-entropy by Adam (Luo et al. 2021, section 4.4).

    Attributes:
        n_classes: number of classes.
        epochs: the paper's 10. batch: examples of a step.
        lr: Adam's; the paper does not state one. Ten epochs of some thousand examples get to the optimum with this one.
        bias: a constant a class beside the weights; the paper has none.
        seed: of the order of the examples.
        progress: called with (label, epochs done, epochs).
    """

    n_classes: int
    epochs: int = 10
    batch: int = 128
    lr: float = 0.01
    bias: bool = False
    seed: int = 0
    progress: Callable[[str, int, int], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Heads:
    """Trained classifiers, as they read raw vectors: logits = (x − shift) · weight + constant.

    Attributes:
        shift: [layer, 1, dim]. weight: [layer, dim, fix, class]. constant: [layer, 1, fix, class]. All float64.
        loss: mean cross-entropy, in nats, of the last epoch's batches as they were met [fix, layer].
        n_steps: of Adam.
    """

    shift: np.ndarray
    weight: np.ndarray
    constant: np.ndarray
    loss: np.ndarray
    n_steps: int

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """Classes [fix, layer, text] of vectors [layer, text, dim]."""
        n_layers, n_texts, width = vectors.shape
        n_fixes, n_classes = self.weight.shape[2:]
        found = np.empty((n_fixes, n_layers, n_texts), dtype=np.int64)
        at_once = max(1, BLOCK_BYTES // (8 * width))
        for layer in range(n_layers):
            weight, constant = self.weight[layer].reshape(width, -1), self.constant[layer].reshape(1, -1)
            for start in range(0, n_texts, at_once):
                part = vectors[layer, start : start + at_once].astype(np.float64) - self.shift[layer]
                logits = (part @ weight + constant).reshape(-1, n_fixes, n_classes)
                found[:, layer, start : start + at_once] = logits.argmax(2).T
        return found


def train(vectors: np.ndarray, labels: np.ndarray, fixes: Sequence[Sequence[Fix]], options: TrainOptions) -> Heads:
    """Classifiers of `vectors` [layer, text, dim] with `labels` [text], for each of `fixes` [fix][layer].

    They start at zero: the loss is convex, so that a random start would add nothing but chance. Float64 throughout, since
    a whitening of nearly flat directions multiplies rounding.

    Raises:
        BadInput: options that make no step.
    """
    import torch

    if options.epochs < 1 or options.batch < 1 or not options.lr > 0:
        raise BadInput(f"epochs {options.epochs}, batch {options.batch} and lr {options.lr} must all be above 0")
    n_layers, n_texts, _ = vectors.shape
    shift = torch.from_numpy(np.stack([one.mean(0, dtype=np.float64) for one in vectors]))[:, None]  # [layer, 1, dim]
    classifiers = [_Classifier(fixes[i], shift, options) for i in range(len(fixes))]
    adam = torch.optim.Adam([weight for one in classifiers for weight in one.trained], lr=options.lr)
    targets = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    sums = torch.zeros(n_layers, len(fixes), dtype=torch.float64)
    n_steps = 0
    for epoch in range(options.epochs):
        sums.zero_()
        for rows in _batches(n_texts, epoch, options):
            read = torch.from_numpy(vectors[:, rows].astype(np.float64)) - shift  # [layer, text, dim]
            weight, constant = _folded(classifiers)
            logits = torch.baddbmm(constant, read, weight).unflatten(2, (len(fixes), options.n_classes))
            losses = _cross_entropy(logits, targets[rows])  # [layer, fix], means over the batch
            adam.zero_grad()
            losses.sum().backward()
            adam.step()
            sums += losses.detach() * len(rows)
            n_steps += 1
        if options.progress:
            options.progress("training classifiers", epoch + 1, options.epochs)
    with torch.no_grad():
        weight, constant = (part.unflatten(2, (len(fixes), -1)).numpy() for part in _folded(classifiers))
    return Heads(shift.numpy(), weight, constant, (sums / n_texts).T.numpy(), n_steps)


class _Classifier:
    """The classifiers of one repair, a layer each."""

    def __init__(self, fixes: Sequence[Fix], shift: "Tensor", options: TrainOptions):
        import torch

        self.matrix = torch.from_numpy(np.stack([fix.matrix for fix in fixes]))  # [layer, dim] or [layer, dim, kept]
        centre = torch.from_numpy(np.stack([fix.centre for fix in fixes]))[:, None]
        self.away = shift - centre  # [layer, 1, dim]
        shape = (len(fixes), self.matrix.shape[-1], options.n_classes)
        self.weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        self.bias = torch.zeros(len(fixes), 1, options.n_classes, dtype=torch.float64, requires_grad=options.bias)

    @property
    def trained(self) -> "list[Tensor]":
        return [self.weight, self.bias] if self.bias.requires_grad else [self.weight]

    def folded(self) -> "tuple[Tensor, Tensor]":
        """(weight [layer, dim, class], constant [layer, 1, class]) that read raw vectors less the shift."""
        weight = self.matrix[..., None] * self.weight if self.matrix.ndim == 2 else self.matrix @ self.weight
        return weight, self.away @ weight + self.bias


def _folded(classifiers: "Sequence[_Classifier]") -> "tuple[Tensor, Tensor]":
    """(weight [layer, dim, fix * class], constant [layer, 1, fix * class])."""
    import torch

    parts = [one.folded() for one in classifiers]
    return torch.cat([weight for weight, _ in parts], 2), torch.cat([constant for _, constant in parts], 2)


def _cross_entropy(logits: "Tensor", targets: "Tensor") -> "Tensor":
    """Mean over texts [layer, fix] of logits [layer, text, fix, class]."""
    logs = logits.log_softmax(3)
    index = targets[None, :, None, None].expand(logs.shape[0], -1, logs.shape[2], 1)
    return -logs.gather(3, index)[..., 0].mean(1)


def _batches(n_texts: int, epoch: int, options: TrainOptions) -> Iterator[np.ndarray]:
    """Numbers of the texts of each step; sorted within a step, for vectors that lie on disk."""
    order = np.random.default_rng([options.seed, 17, epoch]).permutation(n_texts)
    for start in range(0, n_texts, options.batch):
        yield np.sort(order[start : start + options.batch])
