"""What every task offers, the score of its values with an interval, and how texts are cut into forward passes.

slices = cheapest_cuts(lengths, tokens=2048, start=32)      # of lengths that descend: few passes, little padding
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.errors import BadInput
from outlierlens.models.devices import tokens_per_start
from outlierlens.models.products import ordered_weights
from outlierlens.options import check
from outlierlens.statistics.means import mean_interval

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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
    """Tokens of a text (or window, or block) at most, with those that the tokenizer adds."""
    stride: Annotated[int | None, Ge(1)] = None
    """Causal: tokens by which the window moves; None is as far as windows go that overlap by one token of the text."""
    batch_size: Annotated[int, Ge(1)] = 16
    """Texts in one forward pass."""
    mask_fraction: Annotated[float, Gt(0), Lt(1)] = 0.15
    """Masked: share of ordinary tokens to predict (80 % masked, 10 % random, 10 % kept)."""
    seed: int = 0
    """Seed of masks."""
    measure: Measure = "metric"
    """Labelled: the score is the task's first "metric" on all examples, or the mean over examples of whether they are right
    ("accuracy") or of their "loss", for which a part of the examples can do."""
    labels: tuple[str, ...] | None = None
    """Labelled: the model's labels in the order of its outputs, where its config does not name them."""
    every_token: bool = False
    """Labelled: have the last block see every token, even where the head reads the first alone."""

    def __post_init__(self) -> None:
        check(self)
        if self.stride is not None and self.stride >= self.max_length:
            raise BadInput(f"stride is {self.stride}; it must be at least 1 and below max_length ({self.max_length})")


class Task(Protocol):
    """A measurement of the model it was made for, as that model is at the moment of the call.

    The value of a text is the sum over its rows of what `sums` gives, divided by its weight.

    Attributes:
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

    name: str
    unit: str
    is_loss: bool
    metric: str
    statistic: "Statistic | None"
    smallest: float
    notes: tuple[str, ...]
    n_texts: int
    n_tokens: int
    weights: np.ndarray
    lengths: np.ndarray

    @property
    def text(self) -> str:
        """See above."""
        ...

    def feeds(self, texts: Sequence[int], tokens: int | None = None) -> Iterator[Any]:
        """Inputs of forward passes that together read the given texts (repeats allowed), longest first.

        Each has at most `tokens` tokens with padding (one row at least), or the task's `batch_size` rows; and `slots`, of
        each row the place of its text in `texts`, and `n_tokens`, padding not counted.
        """
        ...

    def sums(self, feed: Any) -> "Tensor":
        """Value × weight of each row of `feed` [row], on the model's device, without waiting for it."""
        ...

    def narrowed(self) -> AbstractContextManager[None]:
        """Inside, `sums` may leave out of the last block's MLP and what follows it the tokens whose output it does not read.

        For edits of hidden states that are the same at every token.
        """
        ...

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(values [text], weights [text]) of all texts."""
        ...

    def also(self) -> dict[str, float]:
        """Further numbers of the last call of `per_text`, by name; {} where there are none."""
        ...


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

    found = []
    with torch.inference_mode(), ordered_weights():
        for number, feed in enumerate(feeds):
            with around(number, feed) if around else nullcontext():
                found.append((list(feed.slots), task.sums(feed)))
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
    for name, parameter in loaded.model.named_parameters():
        if n := int((~torch.isfinite(parameter.detach())).sum()):
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


def scored(
    values: np.ndarray, weights: np.ndarray, statistic: "Statistic | None", *, seed: int
) -> tuple[float, float, float]:
    """(score, low, high) of the values of all texts [text] with a 95 % interval over texts: of a mean `mean_interval`, else
    `metrics.interval` with this seed."""
    if statistic is None:
        return weighted_mean(values, weights), *mean_interval(values, weights)
    from outlierlens.tasks.metrics import interval

    low, high = interval(statistic.metric, statistic.truth, values, seed=seed, groups=statistic.groups)
    return statistic.value(values), 1 - high, 1 - low
