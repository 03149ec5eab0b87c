"""Shuffled tokens of all layers, one forward pass an epoch, in a memory that does not grow with the texts.

    flow = Flow(loaded, tokens, FlowOptions(reading, n_positions=66, seed=0))
    for epoch in range(n_epochs):
        for states, positions, texts in flow.steps(epoch): …    # [layer, token, dim], [token], [token]; 128 tokens a time

Texts come in an order drawn anew each epoch, in pools of a few thousand tokens: within a pool they are sorted by length, so
that little is padding, and its tokens are shuffled before they are dealt out, so that a step sees long and short texts
alike. With `cache` the first epoch writes all vectors to an array in the same order as it reads them, and later epochs read
from there instead of running the model.

Which texts a probe is trained on and which it is evaluated on; no text is both.

split = split_texts(read_texts("train.jsonl"), read_texts("dev.jsonl"), seed=0)
split = split_texts(read_texts("all.txt"), None, seed=0)         # a fifth of the texts is held out
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.data.labelled.labels import apart, once
from outlierlens.data.texts import Texts
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.vectors.read import (
    ReadOptions,
    TokenBatch,
    Tokens,
    allocate,
    text_forward,
    text_stack,
    token_batches,
    wanted_layers,
)

if TYPE_CHECKING:
    from torch import Tensor

HELD_OUT = 5  # one text in so many, where one data set is all there is
FEWEST = 10  # texts that can be split
POOL_BYTES = 128 * 2**20  # vectors of all layers that are shuffled together
POOL_TOKENS = 4096


@dataclass(frozen=True)
class Split:
    """Texts to train on and to evaluate, both in an order drawn by the seed, and what is to be said of them."""

    train: Texts
    dev: Texts
    notes: tuple[str, ...] = ()


def split_texts(data: Texts, dev: Texts | None, *, seed: int) -> Split:
    """`data` to train on and `dev` to evaluate; without `dev` a fifth of the texts of `data`, drawn by `seed`.

    A text counts once, however often it stands in `data`; one that is evaluated is not trained on.

    Raises:
        BadInput: both are the same, too few texts are left, or fewer than ten are to be split.
    """
    if dev is not None:
        if dev.digest == data.digest:
            raise BadInput(
                f"{data.source} and {dev.source} hold the same texts; evaluate on others (--dev-data), or leave --dev-data "
                f"out and a fifth of the texts is held out"
            )
        train, dropped = apart(data, dev.texts)
        gone = f"{dropped:,} texts of {data.source} are evaluated, so they were not trained on"
        return Split(_shuffled(train, seed), _shuffled(dev, seed), (gone,) if dropped else ())
    different = tuple(once(data.texts).values())
    if len(different) < FEWEST:
        raise BadInput(
            f"{data.source} holds {len(different)} different texts, and {FEWEST} are needed to train on some and evaluate on "
            f"others; give more, or name others with --dev-data"
        )
    drawn = _shuffled(Texts(data.source, different, data.column), seed)
    n = len(drawn) // HELD_OUT
    note = f"{n:,} of {len(drawn):,} texts of {data.source} were held out for evaluation, drawn by the seed"
    return Split(Texts(data.source, drawn.texts[n:], data.column), drawn.first(n), (note,))


def _shuffled(texts: Texts, seed: int) -> Texts:
    order = np.random.default_rng([seed, 13]).permutation(len(texts))
    return Texts(texts.source, tuple(texts.texts[i] for i in order.tolist()), texts.column)


@dataclass(frozen=True)
class FlowOptions:
    """How tokens are read and dealt out.

    Attributes:
        read: of the forward pass; its `progress` is told of each epoch.
        n_positions: tokens at later positions are left out.
        special: count special tokens too.
        batch: tokens of a step.
        seed: of the order. n_epochs: said in the progress.
        cache: keep the vectors of the first epoch for the others.
    """

    read: ReadOptions
    n_positions: int
    special: bool = False
    batch: int = 128
    seed: int = 0
    n_epochs: int = 1
    cache: bool = False


class Flow:
    """The tokens of some texts.

    Attributes:
        texts: rows of `tokens` with a token that counts. positions: of their counted tokens [text][token].
    """

    def __init__(self, loaded: LoadedModel, tokens: Tokens, options: FlowOptions, width: int):
        self.loaded, self.tokens, self.options = loaded, tokens, options
        self.positions = counted(
            loaded, tokens, options.read.stack, special=options.special, n_positions=options.n_positions
        )
        self.texts = [text for text, places in enumerate(self.positions) if len(places)]
        self.n_layers = len(wanted_layers(text_stack(loaded, options.read.stack), options.read.layers))
        self.pool = max(options.batch, min(POOL_TOKENS, POOL_BYTES // (4 * width * self.n_layers)))
        lengths = [len(places) for places in self.positions]
        self._start = np.concatenate([[0], np.cumsum(lengths)])
        self._shape = (int(self._start[-1]), self.n_layers, width)
        self._cache: np.ndarray | None = None

    @property
    def cache_bytes(self) -> int:
        """What the vectors of all tokens take."""
        return 4 * int(np.prod(self._shape, dtype=np.int64))

    def steps(self, epoch: int) -> Iterator[tuple["Tensor", "Tensor", "Tensor"]]:
        """(states [layer, token, dim], positions [token], texts [token]), `batch` tokens at a time, and what is left."""
        import torch

        random = np.random.default_rng([self.options.seed, 17, epoch])
        size, held = self.options.batch, Held()
        for states, positions, texts in self._read(epoch, self._order(random)):
            held.add(states, positions, texts)
            if held.n >= self.pool:
                pool, places, of = held.take()
                order = torch.from_numpy(random.permutation(len(places))).to(places.device)
                whole = len(order) - len(order) % size
                for some in order[:whole].split(size):
                    yield pool[:, some], places[some], of[some]
                held.add(pool[:, order[whole:]], places[order[whole:]], of[order[whole:]])
        if held.n:
            pool, places, of = held.take()
            for some in torch.from_numpy(random.permutation(len(places))).to(places.device).split(size):
                yield pool[:, some], places[some], of[some]

    def _order(self, random: np.random.Generator) -> list[int]:
        """Texts in random order, sorted by length within a pool."""
        order: list[int] = []
        pool: list[int] = []
        held = 0
        for text in (self.texts[i] for i in random.permutation(len(self.texts)).tolist()):
            pool.append(text)
            held += len(self.positions[text])
            if held >= self.pool:
                order += self._by_length(pool)
                pool, held = [], 0
        return order + self._by_length(pool)

    def _by_length(self, pool: list[int]) -> list[int]:
        return sorted(pool, key=lambda text: -len(self.tokens.encoded["input_ids"][text]))

    def _read(self, epoch: int, order: list[int]) -> Iterator[tuple["Tensor", "Tensor", "Tensor"]]:
        """(states, positions, texts) of a few texts at a time, in `order`: out of the model, or out of the cache."""
        import torch

        reading, label = self.options.read, f"training, epoch {epoch + 1} of {self.options.n_epochs}"

        def progress(_: str, done: int, total: int) -> None:
            if reading.progress:
                reading.progress(label, min(done, len(order)), len(order))

        if epoch and self._cache is not None:
            for start in range(0, len(order), reading.batch_size):
                texts = order[start : start + reading.batch_size]
                states = torch.from_numpy(self._cache[self._rows(texts)]).to(self.loaded.device)
                places = torch.from_numpy(np.concatenate([self.positions[text] for text in texts]))
                of = torch.tensor(texts).repeat_interleave(torch.tensor([len(self.positions[text]) for text in texts]))
                yield states.transpose(0, 1), places.to(self.loaded.device), of.to(self.loaded.device)
                progress("", start + len(texts), len(order))
            return
        if self.options.cache and not epoch:
            self._cache = allocate(self._shape, reading.budget, what="vectors of all tokens")
        for batch in token_batches(self.loaded, self.tokens, replace(reading, progress=progress), order=order):
            states, positions, rows = taken(batch, self.options.special, self.options.n_positions)
            if self._cache is not None:
                self._cache[self._rows(batch.texts)] = states.transpose(0, 1).cpu().numpy()
            yield states, positions, torch.tensor(batch.texts, device=rows.device)[rows]

    def _rows(self, texts: Sequence[int]) -> np.ndarray:
        """Rows of the cache that hold the tokens of `texts`, text after text."""
        return np.concatenate([np.arange(self._start[text], self._start[text + 1]) for text in texts])


class Held:
    """States, positions and texts of tokens that wait until there are enough of them. `n` tokens."""

    def __init__(self) -> None:
        self.n = 0
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, states: "Tensor", positions: "Tensor", texts: "Tensor") -> None:
        """Take in some tokens."""
        self._parts.append((states, positions, texts))
        self.n += len(positions)

    def take(self) -> tuple["Tensor", "Tensor", "Tensor"]:
        """All of them, [layer, token, dim], [token] and [token]; nothing is held any more."""
        import torch

        parts, self._parts, self.n = self._parts, [], 0
        states, positions, texts = zip(*parts, strict=True)
        return torch.cat(states, dim=1), torch.cat(positions), torch.cat(texts)


def counted(
    loaded: LoadedModel, tokens: Tokens, stack: str | None, *, special: bool, n_positions: int | None = None
) -> list[np.ndarray]:
    """Positions, in the stream, of the tokens of each text that count [text][token]: those that `taken` takes."""
    bound = text_stack(loaded, stack)
    shifted = text_forward(loaded, bound).shifted == bound.name
    found = []
    for of_text in tokens.special:
        ordinary = ~of_text
        if shifted and len(ordinary):  # the decoder begins with its start token
            ordinary = np.concatenate([[False], ordinary[:-1]])
        found.append(np.arange(len(ordinary)) if special else np.flatnonzero(ordinary))
    return [places if n_positions is None else places[places < n_positions] for places in found]


def taken(batch: TokenBatch, special: bool, n_positions: int) -> tuple["Tensor", "Tensor", "Tensor"]:
    """Tokens of a batch that count, text after text: (states [layer, token, dim] float32, positions [token], row [token]).

    Raises:
        BadInput: a state is not finite.
    """
    import torch

    kept = (batch.valid if special else batch.ordinary).clone()
    kept[:, n_positions:] = False
    rows, positions = kept.nonzero(as_tuple=True)
    states = torch.stack([one[rows, positions].float() for one in batch.states])
    for layer, one in zip(batch.layers, states, strict=True):
        if not bool(torch.isfinite(one).all()):
            raise BadInput(f"layer {layer}: a state is NaN or infinite; {USE_FLOAT32}")
    return states, positions, rows
