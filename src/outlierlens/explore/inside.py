"""What the model says, and what happens inside: each view of a text under some conditions.

passage(comparison), loss(comparison), guesses(comparison, 0)
dimension(comparison, dim), vectors(comparison, layer, token), attention(comparison, layer, head), anisotropy(comparison)
life(comparison, dim)                         # in the intact model: its value by layer and token, and what adds up to it

A `Comparison` is one text under some conditions; every function enters each condition's ablation anew, so that a view alone
gives the same numbers as all of them. Inside, each condition is one forward pass without the head.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.fill import Continuation, Exercise, Filling, continuation, exercise, fill, filled
from outlierlens.ablation.modes import Switch
from outlierlens.analyses.trace_account import account
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch
from outlierlens.errors import BadInput
from outlierlens.explore.result import (
    KINDS,
    Anisotropy,
    AttentionMaps,
    Guess,
    Guesses,
    GuessList,
    Life,
    Loss,
    LossRow,
    Off,
    OneDimension,
    Passage,
    Vectors,
)
from outlierlens.models.attention_maps import check_eager, tapped_attention
from outlierlens.models.hooks import EMBEDDINGS, layer_name, tapped
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import TextReading
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.cosines import contributions, mean_cosine, unit

if TYPE_CHECKING:
    from torch import Tensor

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


# --- hidden states and attention -------------------------------------------------------------------------------------


def _read(comparison: Comparison) -> tuple[TextReading, Batch]:
    reading = TextReading(comparison.loaded, LENGTH)
    (batch,) = reading.batches([comparison.text], batch_size=1)
    return reading, batch


def _tokens(comparison: Comparison, reading: TextReading, batch: Batch) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """The tokens that the stream reads, and which of them are special."""
    ids, special = reading.sides(batch)[comparison.ablation.stack.name]
    return reading.words(ids[0].tolist()), tuple(special[0].tolist())


def dimension(comparison: Comparison, dim: int, layers: tuple[int, ...]) -> OneDimension:
    """Where `dim` fires in the intact model on this text, and what its being off alone in `layers` breaks."""
    reading, batch = _read(comparison)
    tokens, _ = _tokens(comparison, reading, batch)
    names, values, shares = [], [], []

    def look(_: BoundStack, at: int, states: "Tensor") -> None:
        seen = states[0].float().cpu().numpy()  # [token, dim]
        names.append(layer_name(at))
        values.append(seen[:, dim])
        shares.append(np.abs(seen[:, dim]) / np.maximum(np.linalg.norm(seen, axis=-1), np.finfo(np.float32).tiny))

    with tapped(comparison.loaded.model, [comparison.ablation.stack], look):
        reading(batch)
    alone = replace(comparison, conditions=(Off("intact", (), ()), Off("alone", (dim,), layers)))
    fills = passage(alone).fills
    blanks = fills[-1].blanks if fills else ()
    return OneDimension(
        dim=dim,
        layers=tuple(names),
        tokens=tokens,
        values=np.stack(values),
        shares=np.stack(shares),
        loss=loss(alone),
        words=tuple(blank for blank in blanks if blank.kind != "same"),
        n_words=sum(blank.kind != "changed" for blank in blanks),
    )


def vectors(comparison: Comparison, layer: int, token: int | None) -> Vectors:
    """Vectors after `layer` under each condition: that of `token` whole (None: their mean), of all tokens the named dimensions.

    Raises:
        BadInput: the text has no such token.
    """
    reading, batch = _read(comparison)
    tokens, _ = _tokens(comparison, reading, batch)
    if token is not None and token >= len(tokens):
        raise BadInput(f"token {token} does not exist; the text has tokens 0 to {len(tokens) - 1}")
    found: list[np.ndarray] = []

    def look(_: BoundStack, at: int, states: "Tensor") -> None:
        if at == layer:
            found.append(states[0].float().cpu().numpy())  # [token, dim]

    for condition in comparison.conditions:
        with (
            comparison.off(condition),
            tapped(comparison.loaded.model, [comparison.ablation.stack], look),
        ):
            reading(batch)
    states = np.stack(found)  # [condition, token, dim]
    return Vectors(
        layer=layer_name(layer),
        tokens=tokens,
        drawn="mean of all tokens" if token is None else tokens[token],
        values=states.mean(1) if token is None else states[:, token],
        named=comparison.named,
        marked=states[..., list(comparison.named)],
        lengths=np.linalg.norm(states, axis=-1),
    )


def attention(comparison: Comparison, layer: int, head: int) -> AttentionMaps:
    """What head `head` of `layer` (the last one where there are fewer heads) attends to under each condition."""
    stack = comparison.ablation.stack
    try:
        check_eager(comparison.loaded, stack)
    except BadInput as error:
        return AttentionMaps(layer, head, missing=str(error))
    reading, batch = _read(comparison)
    tokens, special = _tokens(comparison, reading, batch)
    found: list[np.ndarray] = []

    def look(at: int, weights: "Tensor", _: Any) -> None:
        if at == layer:
            n = len(tokens)
            found.append(weights[0, :, :n, :n].float().cpu().numpy())  # [head, query, key]

    for condition in comparison.conditions:
        with comparison.off(condition), tapped_attention(comparison.loaded, stack, look):
            reading(batch)
    maps = np.stack(found)  # [condition, head, query, key]
    n_heads = maps.shape[1]
    head = min(head, n_heads - 1)
    return AttentionMaps(layer, head, n_heads, tokens, special, maps[:, head])


def anisotropy(comparison: Comparison) -> Anisotropy:
    """Mean cosine of all pairs of the text's tokens, special ones left out, after each layer under each condition.

    Ethayarajh (2019), section 3, on one text: its tokens are not drawn from many texts, as `geometry` draws them.
    """
    reading, batch = _read(comparison)
    _, special = _tokens(comparison, reading, batch)
    kept = np.flatnonzero(~np.array(special))
    if len(kept) < 2:
        return Anisotropy(missing="a mean cosine needs at least two tokens; write a longer text")
    chosen = list(comparison.conditions[-1].changed)
    layers = [EMBEDDINGS, *range(comparison.ablation.stack.n_layers)]
    cosine = np.full((len(comparison.conditions), len(layers)), np.nan)
    share = np.full_like(cosine, np.nan)
    for row, condition in enumerate(comparison.conditions):

        def look(_: BoundStack, at: int, states: "Tensor", row: int = row) -> None:
            units = unit(states[0].float().cpu().numpy()[kept])
            cosine[row, layers.index(at)] = mean_cosine(units)[0]
            share[row, layers.index(at)] = contributions(units)[chosen].sum() if chosen else 0.0

        with (
            comparison.off(condition),
            tapped(comparison.loaded.model, [comparison.ablation.stack], look),
        ):
            reading(batch)
    return Anisotropy(tuple(map(layer_name, layers)), cosine, share, len(kept))


# --- a dimension's life ----------------------------------------------------------------------------------------------


def life(comparison: Comparison, dim: int) -> Life:
    """The account of a dimension; each token of the text is a group of its own."""
    import torch

    stack: BoundStack = comparison.ablation.stack
    reading = TextReading(comparison.loaded, LENGTH)
    (batch,) = reading.batches([comparison.text], batch_size=1)
    tokens = reading.words(reading.sides(batch)[stack.name][0][0].tolist())
    try:
        found = account(
            comparison.loaded, stack, dim, reading, [batch], lambda one: torch.eye(one.valid.shape[1])[:, None]
        )
    except BadInput as error:
        return Life(missing=str(error))
    layers = (EMBEDDINGS, *range(stack.n_layers))
    at = int(np.abs(found.values).max(0).argmax())
    added = np.zeros((len(layers), len(KINDS)))
    for entry in found.entries:
        if entry.kind in KINDS:
            added[entry.layer - EMBEDDINGS, KINDS.index(entry.kind)] += entry.values[at]
    return Life(dim, tuple(map(layer_name, layers)), tokens, found.values, at, added)
