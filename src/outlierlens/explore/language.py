"""What the model says: the filled or continued passage, the guesses for a blank, and the loss of the text.

passage(comparison), loss(comparison), guesses(comparison, 0)

A `Comparison` is one text under some conditions; every function enters each condition's ablation anew, so that a view alone
gives the same numbers as all of them.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.ablation.fill import Exercise, Filling, continuation, exercise, fill, filled
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.passages import Continuation
from outlierlens.errors import BadInput
from outlierlens.explore.result import Guess, Guesses, GuessList, Loss, LossRow, Off, Passage
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task

LENGTH = 96  # tokens of the text that are read, as many as a filled passage has
COPIES = 8  # of a masked model's text, each masked anew: 15 % of a sentence's tokens are too few for an interval
BEST = 8  # guesses that are listed


@dataclass(frozen=True)
class Comparison:
    """One text under the conditions of a state: `text` is cut to what is read, `named` dimensions are marked.

    Attributes:
        ablation: switches a condition's dimensions off. turning: turns its one dimension down.
    """

    loaded: LoadedModel
    ablation: Switch
    turning: Switch
    text: str
    conditions: tuple[Off, ...]
    named: tuple[int, ...] = ()

    @contextlib.contextmanager
    def off(self, condition: Off) -> Iterator[None]:
        """The model under `condition` inside the block."""
        with self.ablation.off(condition.plan), self.turning.off(condition.turned_plan):
            yield

    @property
    def work(self) -> Exercise | None:
        """The text with its blanks; None where there are none."""
        return exercise(self.loaded, self.text)


def passage(comparison: Comparison) -> Passage:
    """The text filled in, and continued by decoders, under each condition."""
    work = comparison.work
    missing = _no_blanks(comparison) if work is None else ""
    fills, said, intact = [], [], None
    for condition in comparison.conditions:
        with comparison.off(condition):
            now = fill(comparison.loaded, work) if work else None
            more = continuation(comparison.loaded, comparison.text)
        intact = intact or now
        if work and now and intact:
            fills.append(filled(comparison.loaded, work, now, intact, label=condition.label, dims=condition.dims))
        if more:
            said.append(Continuation(condition.label, condition.dims, *more))
    return Passage(tuple(fills), tuple(said), missing)


def _no_blanks(comparison: Comparison) -> str:
    head = comparison.loaded.head
    if head not in ("masked", "causal"):
        return (
            f"{comparison.loaded.name} has no head that says words, so there is nothing to fill in; its vectors, attention and "
            "cosines are shown below"
        )
    if head == "masked" and not getattr(comparison.loaded.tokenizer, "is_fast", False):
        return "its tokenizer cannot say which letters a token stands for, so no blank can be cut"
    return "no word of this text is one token and can be left out; write a few more common words"


def guesses(comparison: Comparison, number: int) -> Guesses:
    """The likeliest words of blank `number` (the last one where there are fewer) under each condition."""
    work = comparison.work
    if work is None:
        return Guesses(missing=_no_blanks(comparison))
    number = min(number, len(work.blanks) - 1)
    lists = []
    for condition in comparison.conditions:
        with comparison.off(condition):
            now = fill(comparison.loaded, work)
        lists.append(GuessList(condition.label, best(comparison.loaded, now, number)))
    return Guesses(number, work.originals[number].strip(), tuple(lists))


def best(loaded: LoadedModel, now: Filling, number: int, n: int = BEST) -> tuple[Guess, ...]:
    """The `n` likeliest words of blank `number` and their probabilities."""
    tokenizer: Any = loaded.tokenizer
    row = now.probabilities[number]
    order = np.argsort(-row, kind="stable")[:n].tolist()
    pieces = tokenizer.convert_ids_to_tokens(order)
    words = (tokenizer.convert_tokens_to_string([piece]).strip() or piece for piece in pieces)
    return tuple(Guess(word, float(row[token])) for word, token in zip(words, order, strict=True))


def loss(comparison: Comparison) -> Loss:
    """The loss of the text under each condition, or the change of the outputs where the model predicts no words."""
    loaded = comparison.loaded
    copies = COPIES if loaded.head == "masked" else 1
    try:
        task: Any = make_task(loaded, [comparison.text] * copies, TaskOptions(max_length=LENGTH, batch_size=COPIES))
    except BadInput as error:  # a text of one token, a tokenizer without a mask: the other views are still to be had
        return Loss(missing=str(error))
    measure: Callable[[], tuple[np.ndarray, Any]] = task.per_token if task.unit == "nats per token" else task.per_text
    rows: list[LossRow] = []
    intact = np.zeros(0)
    for condition in comparison.conditions:
        with comparison.off(condition):
            values, _ = measure()
        intact = intact if len(intact) else values
        rows.append(_row(condition.label, values, intact))
    return Loss(task.name, task.unit, len(intact), tuple(rows))


def _row(label: str, values: np.ndarray, intact: np.ndarray) -> LossRow:
    change = values - intact
    return LossRow(
        label,
        float(values.mean()),
        *mean_interval(values),
        float(change.mean()),
        *mean_interval(change),
    )
