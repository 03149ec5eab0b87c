"""Labelled tasks: loss, errors or predictions of a fine-tuned model, example by example.

    task = LabelledScore(loaded, examples, TaskOptions(measure="loss"))
    values, weights = task.per_text()                    # nats of each example; 1 each
    outputs = task.outputs()                             # losses and predictions of all examples, in their order
    outputs.scores["mcc"]

`measure` says what a text's value is: its "loss" (nats, or squared error of a regression); 1 where it is wrong and 0 where
it is right ("accuracy"; the share of wrong words in a token task); or, for the task's "metric", the prediction, and
`statistic` turns all predictions into 1 − metric.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.devices import out_of_memory, tokens_at_once, tokens_per_start
from outlierlens.errors import BadInput
from outlierlens.heads import padding_side
from outlierlens.hidden import norm_before_last_mlp, only_first_token
from outlierlens.inputs import token_limit
from outlierlens.labelled import Examples, label_order
from outlierlens.labelled.encode import encode
from outlierlens.labelled.examples import NOT_A_LABEL
from outlierlens.models import LoadedModel
from outlierlens.tasks.base import TaskOptions, cut
from outlierlens.tasks.cutting import cheapest_cuts
from outlierlens.tasks.metrics import Statistic, score

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Outputs:
    """What a model says of all examples, in their order.

    Attributes:
        losses: float64 [text]; nats per example (mean over words of a token task), or squared error.
        predicted: class number or value [text]; of a token task [word] of all texts one after another.
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


class LabelledScore:
    """A model's value on each labelled example, as the model is at the moment of the call; see `Task`."""

    def __init__(self, loaded: LoadedModel, examples: Examples, options: TaskOptions):
        self.loaded, self.options, self.examples = loaded, options, examples
        task = examples.task
        config: Any = loaded.model.config
        kind = "ForTokenClassification" if task.level == "token" else "ForSequenceClassification"
        if not type(loaded.model).__name__.endswith(kind):
            raise BadInput(
                f"{loaded.name} is a {type(loaded.model).__name__} without a head for {task.name}; fine-tune it first: "
                f"outlierlens finetune {loaded.name} --task {task.name}"
            )
        _check_padding(loaded)
        self.order = label_order(task, config.id2label, options.labels, where=loaded.name)
        self.max_length = token_limit(loaded, options.max_length)
        self.encoded = encode(loaded.tokenizer, examples, max_length=self.max_length).for_model(loaded.model)
        self.lengths = np.array(self.encoded.lengths)
        if not self.lengths.all():
            row = int(np.argmin(self.lengths)) + 1
            raise BadInput(f"{examples.source}, row {row}: no token at all for {loaded.name}; leave such rows out")
        self.n_texts = len(examples)
        self._labels = self.encoded.labels
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
        self.statistic = Statistic(task.metric, np.array(examples.labels)) if whole else None
        if self.metric == "token f1":
            raise BadInput("token f1 is no mean over texts, so no text has a value of it; use measure loss or accuracy")
        self.is_loss = not self.metric
        self.smallest = 1.0 if self.metric and not whole else 0.0
        self.name = f"{task.name} {self.metric or 'loss'}"
        self.unit = self._unit()
        asked = options.batch_size != TaskOptions.batch_size
        self.tokens = options.batch_size * self.max_length if asked else tokens_at_once(loaded.device)
        self.notes = self._notes()
        self._norm = None if options.every_token or tokens else self._first_is_enough()
        self._also: dict[str, float] = {}

    def _unit(self) -> str:
        if self.metric:
            return f"1 − {self.metric}"
        if self.examples.task.regression:
            return "squared error"
        return "nats per word" if self.examples.task.level == "token" else "nats per example"

    def _notes(self) -> tuple[str, ...]:
        """What a reader of the results should know about how the examples were read."""
        if not self.encoded.n_cut:
            return ()
        lost = "; labels of words that were cut off do not count" if self.examples.task.level == "token" else ""
        return (
            f"{self.encoded.n_cut:,} of {self.n_texts:,} examples do not fit into {self.max_length} tokens and were cut{lost}",
        )

    @property
    def text(self) -> str:
        """What a text is."""
        pair = "pair" if self.examples.pairs else "example"
        return f"{pair} of at most {self.max_length} tokens"

    def feeds(self, texts: Sequence[int], tokens: int | None = None) -> Iterator[_Rows]:
        """See `Task`."""
        order = sorted(range(len(texts)), key=lambda slot: -int(self.lengths[texts[slot]]))
        lengths = self.lengths[[texts[slot] for slot in order]]
        if tokens is None:
            cuts = list(cut(lengths.tolist(), self.options.batch_size, None))
        else:
            cuts = cheapest_cuts(lengths, tokens=tokens, start=tokens_per_start(self.loaded.device))
        for rows in cuts:
            yield self._collate(order[rows], [texts[slot] for slot in order[rows]])

    def _collate(self, slots: list[int], texts: list[int]) -> _Rows:
        longest, side = int(max(self.lengths[text] for text in texts)), padding_side(self.loaded.model)
        inputs = {}
        for key, values in self.encoded.inputs.items():
            fill = _padding(self.loaded) if key == "input_ids" else 0
            inputs[key] = self._move(_padded([values[text] for text in texts], longest, fill, side))
        if self.examples.task.level == "token":
            labels = self._move(_padded([self._labels[text] for text in texts], longest, NOT_A_LABEL, side))
        else:
            labels = self._move(np.array([self._labels[text] for text in texts]))
        return _Rows(inputs, labels, tuple(slots), int(sum(self.lengths[text] for text in texts)))

    def _move(self, values: np.ndarray) -> "Tensor":
        import torch

        return torch.from_numpy(values).to(self.loaded.device, non_blocking=True)

    def _said(self, feed: _Rows) -> tuple["Tensor", "Tensor"]:
        """(loss, prediction), [row] each; of a token task [row, token], 0 and NOT_A_LABEL where no label is asked for."""
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
            return losses, torch.where(asked, said.argmax(-1), NOT_A_LABEL)
        return functional.nll_loss(said, feed.labels, reduction="none"), said.argmax(-1)

    def _logits(self, feed: _Rows) -> "Tensor":
        """What the model's head says, float32."""
        model: Any = self.loaded.model
        with only_first_token(self._norm) if self._norm is not None else nullcontext():
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
                with torch.inference_mode():
                    return [(feed.slots, *self._said(feed)) for feed in self.feeds(range(self.n_texts), self.tokens)]
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or self.tokens <= self.lengths.max():
                    raise
            self.tokens //= 2

    def also(self) -> dict[str, float]:
        """Every metric of the last call of `per_text`."""
        return dict(self._also)


def _padding(loaded: LoadedModel) -> int:
    """The token that fills batches: the model's own, by which some heads find the last token; else the tokenizer's."""
    config: Any = loaded.model.config
    own = getattr(config.get_text_config(), "pad_token_id", None)
    tokenizer: Any = loaded.tokenizer
    return int(next((found for found in (own, tokenizer.pad_token_id) if found is not None), 0))


def _check_padding(loaded: LoadedModel) -> None:
    """Raise BadInput for a head that reads the last token and cannot tell padding from tokens."""
    config: Any = loaded.model.config
    # GPT-2 and its kin call such a head "score", and find their last token by the padding that the config names.
    if hasattr(loaded.model, "score") and getattr(config.get_text_config(), "pad_token_id", None) is None:
        own = getattr(loaded.tokenizer, "pad_token_id", None)
        raise BadInput(
            f"{loaded.name}: its config names no padding token, so its head cannot find the last token of a text; set "
            f"pad_token_id{'' if own is None else f' = {own}'} in the config"
        )


def _padded(rows: Sequence[Sequence[int]], longest: int, fill: int, side: str) -> np.ndarray:
    """Rows padded on that side, int64 [row, token]."""
    values = np.full((len(rows), longest), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        values[number, slice(len(row)) if side == "right" else slice(longest - len(row), None)] = row
    return values
