"""What every task offers, how texts are cut into passes, and what a command reads.

slices = cheapest_cuts(lengths, tokens=2048, start=32)      # of lengths that descend: few passes, little padding
reading = TaskReading(task="glue:rte")                      # texts, or the examples of a labelled task
examples, options = reading.read(), reading.options(batch_size=32)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.architectures import live_parameters
from outlierlens.errors import BadInput, near
from outlierlens.models.devices import tokens_per_start
from outlierlens.options import Flag, belong, check
from outlierlens.results.rows import Estimate
from outlierlens.statistics.means import mean_interval

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outlierlens.data.labelled import Examples, LabelledTask
    from outlierlens.data.media import Kind
    from outlierlens.data.texts import Data
    from outlierlens.models.load import LoadedModel
    from outlierlens.tasks.metrics import Statistic

TaskName = Literal["auto", "masked loss", "causal loss", "output change", "sentence change", "labelled"]
Measure = Literal["metric", "accuracy", "loss"]
UNSAID = "share without a prediction"  # beside the metrics, where outputs are no numbers any more


@dataclass(frozen=True)
class TaskOptions:
    """How texts become numbers."""

    name: TaskName = "auto"
    """ "auto" takes the loss that fits the model's head, or the change of outputs where there is none."""
    blocks: bool = False
    """Causal: join all texts with blank lines and cut them into blocks of `max_length` tokens; a text is then one block, and
    what remains after the last whole block is left out."""
    max_length: Annotated[int, Ge(2)] = 128
    """Maximum number of tokens per text (or window, or block), with those that the tokenizer adds."""
    stride: Annotated[int | None, Ge(1)] = None
    """Causal: tokens by which the window moves; None: consecutive windows share one token."""
    batch_size: Annotated[int, Ge(1)] = 16
    """Texts per forward pass."""
    mask_fraction: Annotated[float, Gt(0), Lt(1)] = 0.15
    """Masked: share of ordinary tokens to predict (80 % masked, 10 % random, 10 % kept)."""
    seed: int = 0
    """Seed of masks."""
    measure: Measure = "metric"
    """Labelled: the score is the task's first "metric" on all examples, or the share of right examples ("accuracy")
    or their mean "loss", both of which a part of the examples can estimate."""
    labels: tuple[str, ...] | None = None
    """Labelled: the model's labels in the order of its outputs, where its config does not name them."""
    every_token: bool = False
    """Labelled: have the last block see every token, even where the head reads the first alone."""

    def __post_init__(self) -> None:
        check(self)
        if self.stride is not None and self.stride >= self.max_length:
            raise BadInput(f"stride is {self.stride}; it must be at least 1 and below max_length ({self.max_length})")


class Task(ABC):
    """A measurement of the model it was made for, as that model is at the moment of the call.

    The value of a text is the sum over its rows of what `sums` gives, divided by its weight.

    Attributes:
        loaded: the model.
        name, unit: for tables: "causal loss", "nats per token".
        text: what a text is: "block of 128 tokens".
        is_loss: whether values can be differentiated.
        metric: "mcc", where values stand for a metric that is better when larger: the score is then 1 − metric. Else "".
        statistic: how the values of all texts (predictions) become the score, where it is no mean of them; else None.
        notes: what a reader of its numbers should know, such as how many texts were cut.
        smallest: the smallest change of a text's value that is not 0 (1 for right or wrong); 0 where any is possible.
        n_texts, n_tokens: texts and tokens that count.
        weights: tokens that count of each text, float64 [text]; the score is the weighted mean of the values.
        lengths: tokens that the model reads of each text, int [text].
    """

    loaded: "LoadedModel"
    name: str
    unit: str
    text: str
    is_loss: bool = False
    metric: str = ""
    statistic: "Statistic | None" = None
    smallest: float = 0.0
    notes: tuple[str, ...] = ()
    n_texts: int
    n_tokens: int
    weights: np.ndarray
    lengths: np.ndarray

    @abstractmethod
    def feeds(self, texts: Sequence[int], tokens: int | None = None) -> Iterator[Any]:
        """Inputs of forward passes that together read the given texts (repeats allowed), longest first.

        Each has at most `tokens` tokens with padding (one row at least), or the task's `batch_size` rows; and `slots`, of
        each row the place of its text in `texts`, and `n_tokens`, padding not counted.
        """

    @abstractmethod
    def sums(self, feed: Any) -> "Tensor":
        """Value × weight of each row of `feed` [row], on the model's device, without waiting for it."""

    def narrowed(self) -> AbstractContextManager[None]:
        """Inside, `sums` may leave out of the last block's MLP and what follows it the tokens whose output it does not read.

        For edits of hidden states that are the same at every token.
        """
        return nullcontext()

    @abstractmethod
    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(values [text], weights [text]) of all texts."""

    def also(self) -> dict[str, float]:
        """Further numbers of the last call of `per_text`, by name; {} where there are none."""
        return {}

    def score(self, values: np.ndarray, *, seed: int) -> Estimate:
        """The score of the values of all texts [text], with its 95 % interval over texts."""
        if self.statistic is None:
            return mean_estimate(values, self.weights)
        return self.statistic.score(values, seed=seed)

    def change(self, before: np.ndarray, after: np.ndarray, *, seed: int) -> Estimate:
        """Score of the values `after` minus that of `before`, both [text], paired by text, with its 95 % interval."""
        if self.statistic is not None:
            return self.statistic.change(before, after, seed=seed)
        found = mean_estimate(after - before, self.weights)
        if not self.smallest:
            return found
        from outlierlens.tasks.metrics import paired_interval  # its random numbers: what `scan` starts without

        return Estimate(found.value, *paired_interval(before, after, seed=seed, weights=self.weights))


def values_of(
    task: Task,
    feeds: Iterable[Any],
    weights: np.ndarray,
    around: Callable[[int, Any], AbstractContextManager[None]] | None = None,
) -> np.ndarray:
    """Values of the texts that `feeds` read, by their slots [text], of the model as it is now; `weights` [text] are theirs.

    Each pass runs inside `around(its number, its feed)`, which changes no weight of a linear.
    """
    import torch

    def pass_of(number: int, feed: Any) -> tuple[list[int], "Tensor"]:
        with around(number, feed) if around else nullcontext():
            return list(feed.slots), task.sums(feed)

    with torch.inference_mode(), task.loaded.ordered_weights():
        found = task.loaded.run(partial(pass_of, number, feed) for number, feed in enumerate(feeds))
    total = np.zeros(len(weights))
    for slots, sums in found:  # only now is the device waited for
        np.add.at(total, slots, sums.cpu().double().numpy())
    values: np.ndarray = total / weights
    return values


def begins(task: Task) -> dict[str, list[int]]:
    """For what must be equal where rows are used again: the ids that every block and window begins with; {} for none."""
    front = getattr(task, "front", ())
    return {"begins with": list(front)} if front else {}


def check_intact(loaded: "LoadedModel", task: Task, values: np.ndarray) -> None:
    """Raise BadInput where the intact model gives a value that is no number [text]: nothing can be compared with it."""
    import torch

    n_lost = int(np.count_nonzero(~np.isfinite(values))) or round(len(values) * task.also().get(UNSAID, 0))
    if not n_lost:
        return
    said = f"the {task.name} of the intact model is no number (NaN or infinite) on {n_lost:,} of {len(values):,} texts"
    for name, parameter in live_parameters(loaded.model).items():
        if not parameter.is_meta and (n := int((~torch.isfinite(parameter.detach())).sum())):
            raise BadInput(
                f"{loaded.name}: {said}: so {'is' if n == 1 else 'are'} {n:,} of the values of {name}; fetch or train it again"
            )
    remedy = (
        "load it as float32" if loaded.dtype != "float32" else "`outlierlens observe` names the layer where it begins"
    )
    raise BadInput(
        f"{loaded.name}: {said}, though every weight is a number: the pass overflows {loaded.dtype}; {remedy}"
    )


def cut(lengths: Sequence[int] | np.ndarray, rows: int, tokens: int | None, device: "torch.device") -> Sequence[slice]:
    """Slices of rows, whose `lengths` descend, for one forward pass each: `rows` rows, or what is cheapest on this device
    in passes of at most `tokens` tokens."""
    if tokens is None:
        return [slice(start, start + rows) for start in range(0, len(lengths), rows)]
    return cheapest_cuts(np.asarray(lengths), tokens=tokens, start=tokens_per_start(device))


def in_passes(
    rows: Any, texts: Sequence[int], batch_size: int, tokens: int | None, device: "torch.device"
) -> Iterator[tuple[list[int], list[int]]]:
    """(slots, texts) of each forward pass that `Task.feeds` makes: of the `rows`, longest first, those that can share one."""
    order = sorted(range(len(texts)), key=lambda slot: -int(rows.lengths[texts[slot]]))
    for places in rows.apart([texts[slot] for slot in order]):
        slots = [order[place] for place in places]
        for some in cut(rows.lengths[[texts[slot] for slot in slots]], batch_size, tokens, device):
            yield slots[some], [texts[slot] for slot in slots[some]]


def cheapest_cuts(lengths: np.ndarray, *, tokens: int, start: int) -> list[slice]:
    """Slices of rows, whose `lengths` (int [row]) descend, for one forward pass each of at most `tokens` tokens.

    Of all ways to cut where the length changes, the one that computes least: rows × the longest of them, and `start` tokens
    for each pass. Where rows of one length alone are too many, they are cut as well. A row longer than `tokens` is alone.
    """
    if not len(lengths):
        return []
    first = np.flatnonzero(np.r_[True, lengths[1:] != lengths[:-1]])  # row where each length begins
    longest, ends = lengths[first], np.r_[first[1:], len(lengths)]
    fitting = np.maximum(1, tokens // longest)  # rows of a pass that begins at this length
    best, before = np.zeros(len(ends) + 1), np.zeros(len(ends) + 1, dtype=int)
    for place, end in enumerate(ends, 1):
        rows = end - first[:place]
        cost = best[:place] + rows * longest[:place] + start * -(-rows // fitting[:place])
        before[place] = np.argmin(cost)
        best[place] = cost[before[place]]
    found: list[slice] = []
    place = len(ends)
    while place:
        begin, end, size = int(first[before[place]]), int(ends[place - 1]), int(fitting[before[place]])
        found += [slice(row, min(row + size, end)) for row in range(begin, end, size)][::-1]
        place = int(before[place])
    return found[::-1]


def log_sum_exp_(logits: "Tensor") -> "Tensor":
    """log Σ exp of each row [row, word]; overwrites them where no gradient is taken: `Tensor.logsumexp` makes two copies."""
    if logits.requires_grad:
        return logits.logsumexp(-1)
    largest = logits.amax(-1, keepdim=True)
    largest.masked_fill_(largest.isinf(), 0)
    return logits.sub_(largest).exp_().sum(-1).log_() + largest[:, 0]


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Σ w v / Σ w; inf where any weighted value is (an exploded loss is not hidden)."""
    return float(np.sum(values * weights) / np.sum(weights)) + 0.0  # a certain word costs −log 1 = −0


def mean_estimate(values: np.ndarray, weights: np.ndarray | None = None) -> Estimate:
    """The (weighted) mean of values [text] with its 95 % interval, of `mean_interval`."""
    weights = np.ones(len(values)) if weights is None else weights
    return Estimate(weighted_mean(values, weights), *mean_interval(values, weights))


# --- what a command reads --------------------------------------------------------------------------------------------

OF_TEXTS = ("auto", "masked-loss", "causal-loss", "output-change", "sentence-change")
PLAIN = ("classify", "regress", "tokens")
OF_ITEMS = ("image-classification", "audio-classification")
MEASURES = ("metric", "accuracy", "loss")
OF_LABELS = ("measure", "metric", "labels", "split", "pair_column", "label_column")

LABELLED_TOKENS = 256  # of an example of a labelled task: a pair of GLUE fits, all but 0.1 %


@dataclass(frozen=True)
class Reading:
    """Which texts are read."""

    data: str = "excerpt"
    """Text: .txt, .jsonl, .csv, .tsv, .parquet, or a hub id owner/name:config:split."""
    limit: Annotated[int | None, Ge(1)] = None
    """Use the first N texts."""
    text_column: Annotated[str | None, Flag("column", into="--data")] = None
    """Column that holds the text."""


@dataclass(frozen=True)
class DataReading(Reading):
    """Which texts, pictures or recordings are read, whatever their labels."""

    max_seconds: Annotated[float | None, Flag("seconds", into="--data"), Gt(0)] = None
    """Maximum seconds per recording. Default: 30."""

    def __post_init__(self) -> None:
        check(self)
        if self.max_seconds is not None and self.kind != "audio":
            raise BadInput("--data seconds belongs to recordings (a folder of .wav)")

    @cached_property
    def kind(self) -> "Kind | None":
        """What is read where it is no text: pictures or recordings, by what the data looks like."""
        from outlierlens.data.media.read import kind_of
        from outlierlens.data.texts import SHIPPED

        return None if self.data in SHIPPED else kind_of(self.data, self.text_column)

    def items(self, kind: "Kind", *, offline: bool, labelled: bool = False, **more: Any) -> "Data":
        """The pictures or recordings; raises BadInput as `read_items` does."""
        from outlierlens.data.media.read import ItemOptions, read_items

        if self.max_seconds is not None:
            more["max_seconds"] = self.max_seconds
        options = ItemOptions(labelled=labelled, column=self.text_column, limit=self.limit, **more)
        return read_items(kind, self.data, options, offline=offline)

    def read(self, *, offline: bool = False) -> "Data":
        """The texts, pictures or recordings; raises BadInput as `read_texts` and `read_items` do."""
        from outlierlens.data.texts import read_texts

        if self.kind is not None:
            return self.items(self.kind, offline=offline)
        return read_texts(self.data, column=self.text_column, limit=self.limit, offline=offline)


@dataclass(frozen=True)
class TaskReading(DataReading):
    """Texts, and the number that each becomes.

    Raises:
        BadInput: options that do not belong to the task.
    """

    task: str = "auto"
    """auto, masked-loss, causal-loss, output-change, sentence-change; glue:rte, …; classify, regress, tokens;
    image-classification, audio-classification."""
    measure: Annotated[str, Flag(into="--task")] = "metric"
    """Labelled: metric (all examples), accuracy or loss (adaptive)."""
    metric: Annotated[str | None, Flag(into="--task")] = None
    """Labelled: f1, mcc, … Default: the task's first."""
    labels: Annotated[str | None, Flag(into="--task")] = None
    """Labelled: the model's labels in the order of its outputs, if its config has none."""
    split: Annotated[str | None, Flag(into="--task")] = None
    """Labelled: split to read. Default: dev."""
    pair_column: Annotated[str | None, Flag("pair", into="--task")] = None
    """classify, regress: the second text."""
    label_column: Annotated[str, Flag("label", into="--task")] = "label"
    """Your own data: the label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measure not in MEASURES:
            raise BadInput(f"--task measure is {self.measure!r}; use {', '.join(MEASURES)}")
        if self.metric is not None and self.measure != "metric":
            raise BadInput(f"--task metric={self.metric} belongs to measure=metric, not to measure={self.measure}")
        if not self.is_labelled:
            belong(f"to a labelled task, not to --task {self.task}", self, *OF_LABELS)
        elif self.task not in PLAIN:
            own = () if self.task in OF_ITEMS else ("text_column", "label_column")
            belong(f"to {', '.join(PLAIN)}, not to {self.task}", self, "pair_column", *own)
        if self.task == "tokens" and self.pair_column:
            raise BadInput("--task pair belongs to classify and regress: words of tokens have no second text")

    @property
    def is_labelled(self) -> bool:
        """Whether the task has labels."""
        return self.task.replace(" ", "-") not in OF_TEXTS

    @property
    def labelled_task(self) -> "LabelledTask":
        """The row of the table, or one made of the columns given."""
        from outlierlens.data.labelled import find_task, plain_task
        from outlierlens.data.labelled.labels import with_metric

        if self.task not in PLAIN:
            try:
                found = find_task(self.task)
            except BadInput as error:
                raise BadInput(f"{error}; of texts: {', '.join(OF_TEXTS)}{near(self.task, OF_TEXTS)}") from None
            return with_metric(found, self.metric)
        text = self.text_column or ("tokens" if self.task == "tokens" else "text")
        return plain_task(self.task, text, self.label_column, pair=self.pair_column, metric=self.metric)

    @cached_property
    def kind(self) -> "Kind | None":
        """What is read where it is no text: pictures or recordings, by the task, else by what the data looks like."""
        from outlierlens.data.media.read import TASKS

        return TASKS.get(self.task) if self.is_labelled else super().kind

    def read(self, *, offline: bool = False) -> "Data":
        """The texts, examples or items; raises BadInput as `read_texts`, `read_examples` and `read_items` do."""
        if not self.is_labelled:
            return super().read(offline=offline)
        if self.kind is not None:
            if self.data == Reading.data:
                raise BadInput(f"--task {self.task} needs your own data: --data FOLDER, with one sub-folder per class")
            more = {"label": self.label_column, "split": self.split or "test", "labels": self._names or ()}
            return self.items(self.kind, offline=offline, labelled=True, metric=self.metric, **more)
        from outlierlens.data.labelled import read_examples
        from outlierlens.data.labelled.labels import says_task_order

        data = None if self.data == Reading.data else self.data
        # These rows may lack some of the labels that the model knows.
        known = self._names or () if self.task == "classify" and not says_task_order(self._names) else ()
        return read_examples(
            self.labelled_task, data, split=self.split, limit=self.limit, offline=offline, labels=known
        )

    @property
    def _names(self) -> tuple[str, ...] | None:
        """The labels as names."""
        return None if self.labels is None else tuple(name.strip() for name in self.labels.split(","))

    def options(self, *, max_length: int | None = None, **more: Any) -> "TaskOptions":
        """How the texts become numbers; examples of a labelled task have as many tokens as `finetune` gives them."""

        if self.kind is not None and max_length is not None:
            raise BadInput(
                "--max-length counts tokens of texts; images are read whole, of recordings --data FOLDER:seconds=30"
            )
        usual = LABELLED_TOKENS if self.is_labelled else TaskOptions.max_length
        more["max_length"] = max_length or usual
        if not self.is_labelled:
            return TaskOptions(name=self.task.replace("-", " "), **more)  # type: ignore[arg-type]
        return TaskOptions(name="labelled", measure=self.measure, labels=self._names, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SplitReading(TaskReading):
    """Training and dev examples of one labelled task."""

    task: str = "auto"
    """sst2, cola, rte, hans, …; or classify, regress."""
    data: str = ""
    """Folder with a file per split, or hub id: both splits. Default: the hub's own copy."""
    text_column: Annotated[str | None, Flag("column", into="--data")] = None
    """Column of the text."""
    label_column: Annotated[str, Flag("label", into="--task")] = "label"
    """classify, regress: the label."""
    metric: Annotated[str | None, Flag(into="--task")] = None
    """f1, mcc, … Default: the task's first."""
    dev_data: str | None = None
    """Dev examples; --data may then be a file of training examples."""

    def splits(self, *, offline: bool = False, of_words: bool = True) -> "tuple[Examples, Examples]":
        """(training, dev) examples; raises BadInput as `read_splits` does, and where words are labelled but may not be."""
        from outlierlens.data.labelled.examples import read_splits

        if self.task == "tokens" and not of_words:
            raise BadInput("--task tokens: this command scores whole texts; use a task of texts, classify or regress")
        return read_splits(self.labelled_task, self.data or None, self.dev_data, offline=offline)
