"""Labelled tasks: loss, errors or predictions of a fine-tuned model, example by example.

    task = LabelledScore(loaded, examples, TaskOptions(measure="loss"))
    values, weights = task.per_text()                    # nats of each example; 1 each
    outputs = task.outputs()                             # losses and predictions of all examples, in their order
    outputs.scores["mcc"]

Examples are texts, or pictures and recordings with labels (`media.LabelledItems`): what differs is how they are read (`rows`).

`measure` says what a text's value is: its "loss" (nats, or squared error of a regression); 1 where it is wrong and 0 where
it is right ("accuracy"; the share of wrong words in a token task); or, for the task's "metric", the prediction, and
`statistic` turns all predictions into 1 − metric.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data.labelled import Examples, label_order
from outlierlens.data.labelled.examples import NO_CLASS
from outlierlens.data.labelled.labels import (
    NOT_A_LABEL,
    EncodedExamples,
    contradicted,
    in_order_of_outputs,
    says_task_order,
)
from outlierlens.data.media import LabelledItems
from outlierlens.errors import BadInput, command, operand
from outlierlens.models.devices import fast_products, out_of_memory, tokens_at_once
from outlierlens.models.hooks import norm_before_last_mlp, only_at
from outlierlens.models.inputs import TextRows, rows_of
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import UNSAID, Task, TaskOptions, in_passes
from outlierlens.tasks.metrics import Statistic, score

if TYPE_CHECKING:
    from torch import Tensor

HEADS = {"image": "ForImageClassification", "audio": "ForSequenceClassification"}  # how names of classes end


@dataclass(frozen=True)
class Outputs:
    """What a model says of all examples, in their order.

    Attributes:
        losses: float64 [text]; nats per example (mean over words of a token task), or squared error.
        predicted: class number or value [text]; of a token task [word] of all texts one after another. NO_CLASS (−1)
            where the outputs are no numbers.
        truth: likewise.
        scores: metric by name, in [−1, 1].
    """

    losses: np.ndarray
    predicted: np.ndarray
    truth: np.ndarray
    scores: dict[str, float]


@dataclass(frozen=True)
class _Rows:
    inputs: dict[str, "Tensor"]
    labels: "Tensor"
    slots: tuple[int, ...]
    n_tokens: int


class LabelledScore(Task):
    """A model's value on each labelled example, as the model is at the moment of the call; see `Task`."""

    def __init__(self, loaded: LoadedModel, examples: Examples | LabelledItems, options: TaskOptions):
        self.loaded, self.options = loaded, options
        config: Any = loaded.model.config
        named = None if says_task_order(options.labels) else options.labels
        names = named or in_order_of_outputs(config.id2label)
        self.examples = examples = examples.among(names)
        task = examples.task
        _check_head(loaded, examples)
        self.order = label_order(task, config.id2label, options.labels, where=loaded.name)
        self.rows = rows_of(loaded, examples, options.max_length)
        self.max_length, self.lengths, self.text = self.rows.longest, self.rows.lengths, self.rows.what
        self.n_texts = len(examples)
        self._labels = self.rows.labels
        counted = [sum(label != NOT_A_LABEL for label in row) for row in self._labels] if task.level == "token" else 1
        self.weights = np.broadcast_to(np.asarray(counted, dtype=np.float64), (self.n_texts,)).copy()
        if not self.weights.all():
            raise BadInput(f"{examples.source}: a text has no labelled word within {self.max_length} tokens")
        self.n_tokens = int(self.weights.sum())
        tokens = task.level == "token"
        if options.measure == "accuracy" and task.regression:
            raise BadInput(f"{task.name} is a regression, which is neither right nor wrong; use measure loss or metric")
        right = "token accuracy" if tokens else "accuracy"
        self.metric = {"loss": "", "accuracy": right}.get(options.measure, task.metric)
        whole = options.measure == "metric" and not tokens
        self.statistic = Statistic(task.metric, np.array(examples.labels), examples.family) if whole else None
        if self.metric == "token f1":
            raise BadInput(
                "token f1 is not a mean over texts, so no text has a value of it; use measure loss or accuracy"
            )
        self.is_loss = not self.metric
        self.smallest = 1.0 if self.metric and not whole else 0.0
        self.name = f"{task.name} {self.metric or 'loss'}"
        per = "word" if tokens else "example"
        self.unit = f"1 − {self.metric}" if self.metric else "squared error" if task.regression else f"nats per {per}"
        asked = options.batch_size != TaskOptions.batch_size
        self.tokens = options.batch_size * self.max_length if asked else tokens_at_once(loaded.device)
        self.notes = (*self.rows.notes, *contradicted(task, config.id2label, options.labels, where=loaded.name))
        self._norm = None if options.every_token or not self.rows.tries_first else self._first_is_enough()
        self._also: dict[str, float] = {}

    @property
    def encoded(self) -> EncodedExamples:
        """Token ids of the examples; raises BadInput where they are no texts."""
        if not isinstance(self.rows, TextRows):
            raise BadInput(f"{self.examples.source} holds no texts, which is what this needs")
        return self.rows.encoded

    def feeds(self, texts: Sequence[int], tokens: int | None = None) -> Iterator[_Rows]:
        """See `Task`."""
        for slots, mine in in_passes(self.rows, texts, self.options.batch_size, tokens, self.loaded.device):
            yield self._collate(slots, mine)

    def _collate(self, slots: list[int], texts: list[int]) -> _Rows:
        n_tokens = int(sum(self.lengths[text] for text in texts))
        return _Rows(self.rows.inputs(texts), self.rows.targets(texts), tuple(slots), n_tokens)

    def _said(self, feed: _Rows) -> tuple["Tensor", "Tensor"]:
        """(loss, prediction), [row] each; of a token task [row, token], 0 and NOT_A_LABEL where no label is asked for.

        Outputs that are no numbers predict no class (NO_CLASS): the largest of them would be the first.
        """
        import torch
        from torch.nn import functional

        logits = self._logits(feed)
        if self.examples.task.regression:
            values = logits[:, 0]
            return (values - feed.labels.float()).square(), values
        said = self._log_probabilities(logits)
        if self.examples.task.level == "token":
            asked = feed.labels != NOT_A_LABEL
            losses = functional.nll_loss(said.transpose(1, 2), feed.labels, reduction="none", ignore_index=NOT_A_LABEL)
            return losses, torch.where(asked, _classes(said), NOT_A_LABEL)
        return functional.nll_loss(said, feed.labels, reduction="none"), _classes(said)

    def _logits(self, feed: _Rows) -> "Tensor":
        """What the model's head says, float32."""
        model: Any = self.loaded.model
        with fast_products(), only_at(self._norm) if self._norm is not None else nullcontext():
            return model(**feed.inputs).logits.float()

    def _first_is_enough(self) -> Any:
        """The norm behind which the first token alone is needed; None where the head reads others too.

        Tried on a padded batch of the shortest and the longest example.
        """
        import torch

        stacks = self.loaded.stacks
        norm = norm_before_last_mlp(self.loaded.model, stacks[0]) if len(stacks) == 1 else None
        if norm is None:
            return None
        feed = self._collate([0, 1], [int(self.lengths.argmax()), int(self.lengths.argmin())])
        self._norm = None
        with torch.no_grad():
            whole = self._logits(feed)
            self._norm = norm
            try:
                first = self._logits(feed)
            except (RuntimeError, IndexError, ValueError, TypeError):
                return None
        if first.shape != whole.shape or not whole.isfinite().all():
            return None
        near = 1e-4 if self.loaded.model.dtype is torch.float32 else 3e-2
        return norm if (first - whole).abs().max() <= near * (1 + whole.abs().max()) else None

    def _log_probabilities(self, logits: "Tensor") -> "Tensor":
        """Of the task's labels in the task's order; outputs that mean the same label count together."""
        import torch

        said = logits.log_softmax(-1)
        n = len(self.examples.task.labels)
        if self.order == tuple(range(n)):
            return said
        outputs = [[place for place, label in enumerate(self.order) if label == wanted] for wanted in range(n)]
        return torch.stack([said[..., places].logsumexp(-1) for places in outputs], -1)

    def sums(self, feed: _Rows) -> "Tensor":
        """Value × weight of each row [row]; see `Task`."""
        import torch

        losses, predicted = self._said(feed)
        wide = torch.float32 if self.loaded.device.type == "mps" else torch.float64
        if not self.metric:
            values = losses
        elif self.statistic is not None:
            values = predicted
        else:
            values = predicted != feed.labels  # a token that is not asked for is right by definition
        values = values.to(wide)
        return values.sum(1) if values.ndim == 2 else values

    def margins(self, feed: _Rows) -> "Tensor":
        """By how many nats the predicted class of each row leads every other, [row, class − 1], smallest lead first.

        Of a task whose examples have one class each; the prediction changes where a lead becomes negative.
        """
        said = self._log_probabilities(self._logits(feed))
        ordered = said.sort(-1, descending=True).values
        return ordered[:, :1] - ordered[:, 1:]

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(values [text], weights [text]) of all examples."""
        found = self.outputs()
        self._also = dict(found.scores)
        lost = ~np.isfinite(found.predicted) if self.examples.task.regression else found.predicted == NO_CLASS
        if lost.any():
            self._also[UNSAID] = float(lost.mean())
        if not self.metric:
            return found.losses, self.weights
        if self.statistic is not None:
            return found.predicted, self.weights
        wrong = (found.predicted != found.truth).astype(np.float64)
        starts = np.concatenate([[0], np.cumsum(self.weights).astype(int)[:-1]])
        return np.add.reduceat(wrong, starts) / self.weights, self.weights

    def outputs(self) -> Outputs:
        """Losses and predictions of all examples, and every metric of the task.

        Examples of about the same length go together, `tokens` at once; fewer where memory runs out.
        """
        found = self._measured()
        losses = np.zeros(self.n_texts)
        said: list[Any] = [None] * self.n_texts
        for slots, one, other in found:
            mine, predicted = one.cpu().double().numpy(), other.cpu().numpy()
            for row, slot in enumerate(slots):
                losses[slot] = mine[row].sum() / self.weights[slot]
                said[slot] = predicted[row]
        if self.examples.task.level == "token":
            said = [row[row != NOT_A_LABEL] for row in said]
            labels = [[label for label in row if label != NOT_A_LABEL] for row in self._labels]
            predicted, truth = np.concatenate(said), np.concatenate(labels).astype(int)
        else:
            wide = np.float64 if self.examples.task.regression else np.int64
            predicted, truth = np.array(said, dtype=wide), np.array(self.examples.labels, dtype=wide)
        return Outputs(
            losses, predicted, truth, {name: score(name, truth, predicted) for name in self.examples.task.metrics}
        )

    def _measured(self) -> list[tuple[tuple[int, ...], "Tensor", "Tensor"]]:
        """(slots, loss, prediction) of all examples, batch by batch, on the model's device."""
        import torch

        while True:
            try:
                with torch.inference_mode(), self.loaded.ordered_weights():
                    feeds = self.feeds(range(self.n_texts), self.tokens)
                    return self.loaded.run(
                        partial(lambda feed: (feed.slots, *self._said(feed)), feed) for feed in feeds
                    )
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or self.tokens <= self.lengths.max():
                    raise
            self.tokens //= 2

    def also(self) -> dict[str, float]:
        """Every metric of the last call of `per_text`."""
        return dict(self._also)


def _classes(said: "Tensor") -> "Tensor":
    """The class of the largest value in the last dimension; NO_CLASS where one is NaN."""
    return said.argmax(-1).masked_fill(said.isnan().any(-1), NO_CLASS)


def _check_head(loaded: LoadedModel, examples: Examples | LabelledItems) -> None:
    """Raise BadInput for a model without a head for the task."""
    name, task = type(loaded.model).__name__, examples.task
    if isinstance(examples, LabelledItems):
        kind, remedy = HEADS[examples.kind], "use a model that was fine-tuned for it"
    else:
        kind = "ForTokenClassification" if task.level == "token" else "ForSequenceClassification"
        remedy = f"fine-tune it first: {command('lab', 'finetune', operand(loaded.name), '--task', task.name)}"
    if not name.endswith(kind):
        raise BadInput(f"{loaded.name} is a {name} without a head for {task.name}; {remedy}")
