"""One forward pass over texts, from which the vectors of all layers are taken: of sentences, words or single tokens.

Pictures and recordings can stand for texts: their tokens are patches or frames, and they have no words.

    tokens = tokenise(loaded, ["A plane is taking off.", …], max_length=128)
    spans = tokens.sentences()                         # or tokens.words(text, start, end), tokens.single(text, token)
    vectors = gather(loaded, tokens, spans)
    vectors.values[vectors.layers.index("3")]          # [span, dim]
    for batch in token_batches(loaded, tokens): …      # states of all layers [batch, token, dim], nothing kept

A span is a run of a text's tokens; its vector is their mean. Special tokens that the tokenizer adds ([CLS], [SEP], <s>)
are left out unless asked for; padding never counts. The vector of layer k is the output of block k, as the next block
gets it, or with `final_norm` what the model's final norm makes of it.

Large arrays are in memory while they are small, else in a file without a name, within a stated budget: `allocate`.
"""

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.media.items import Items
from outlierlens.data.texts import NO_LIMIT, Batch, Data, Texts, collate, encoded
from outlierlens.data.token_texts import special_ids
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.devices import memory_kept
from outlierlens.models.forward import TextForward, check_padding
from outlierlens.models.hooks import EMBEDDINGS, layer_name, tapped
from outlierlens.models.inputs import check_known, check_readable, reading_of, stack_read, token_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.models.media import ItemReading, ItemRows
from outlierlens.options import Flag

if TYPE_CHECKING:
    from torch import Tensor, nn

IN_MEMORY = 2**30  # bytes


def allocate(shape: tuple[int, ...], cache_gb: float, *, what: str = "vectors") -> np.ndarray:
    """Zeros, float32, of `shape`; beyond one GiB in a temporary file without a name, which is gone when the array is.

    Raises:
        BadInput: more than `cache_gb` (10⁹ bytes), or than the disk has left.
    """
    size = 4 * math.prod(shape)
    if size > cache_gb * 1e9:
        raise BadInput(
            f"{what} of shape {' × '.join(f'{n:,}' for n in shape)} need {size / 1e9:.1f} GB and the budget is "
            f"{cache_gb:g} GB; raise cache_gb, name fewer layers, or read fewer texts (--limit)"
        )
    if size <= IN_MEMORY:
        return np.zeros(shape, dtype=np.float32)
    with tempfile.TemporaryFile() as file:
        try:
            # Reserved now: a mapped file that finds the disk full later kills the process.
            os.posix_fallocate(file.fileno(), 0, size)
        except AttributeError:  # no such call on this system
            file.truncate(size)
        except OSError as error:
            raise BadInput(
                f"{what} need {size / 1e9:.1f} GB in {tempfile.gettempdir()}, which cannot hold them ({error.strerror}); set "
                f"TMPDIR to a folder with room, or read fewer texts (--limit)"
            ) from None
        return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)


def check_matrices(n: int, width: int, cache_gb: float, *, what: str) -> None:
    """Raise BadInput where `n` matrices [dim, dim] of float64, held in memory together, are more than `cache_gb`."""
    size = 8 * n * width**2
    if size > cache_gb * 1e9:
        raise BadInput(
            f"{what}: {n:,} matrices of {width:,} × {width:,} need {size / 1e9:.1f} GB of memory and the budget is "
            f"{cache_gb:g} GB; raise cache_gb where there is that much, name fewer layers (--layers), or leave out "
            f"abtt and whiten (--fixes)"
        )


# --- vectors ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadOptions:
    """How texts are read."""

    batch_size: int = 32
    """Texts per forward pass."""
    stack: str | None = None
    """The stream, where there are several; the first that reads text otherwise."""
    layers: Annotated[tuple[int, ...] | None, Flag(read="vectors.options:named_layers")] = None
    """Blocks, `EMBEDDINGS` (−1) for the embeddings; None is all of them, embeddings first."""
    final_norm: bool = False
    """Pass every layer's states through the model's final norm; nothing where it has none (post-norm)."""
    cache_gb: float = 8.0
    """Gigabytes (10⁹ bytes) that vectors may take."""
    progress: Callable[[str, int, int], None] | None = None
    """Called with (label, texts done, texts)."""

    def told(self, label: str) -> "ReadOptions":
        """The same options, whose progress is reported as `label`."""
        tell = self.progress
        return self if tell is None else replace(self, progress=lambda _, done, total: tell(label, done, total))


@dataclass(frozen=True)
class Spans:
    """Runs of tokens: `text` [span], and `first` (included) and `last` (excluded) [span] token of that text.

    A span without a token (`first == last`) is allowed: its vector is zero and its `n_tokens` 0.
    """

    text: np.ndarray
    first: np.ndarray
    last: np.ndarray

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class Tokens:
    """Texts as token ids.

    Attributes:
        texts: as given.
        encoded: what the tokenizer made of them, by name one list a text: input_ids and what else the model takes.
        special: bool [token] of each text: added by the tokenizer.
        offsets: int [token, 2] of each text: first and last character (excluded); None where the tokenizer has none.
        max_length: at which texts were cut.
        reading, rows: of pictures or recordings, how they are read, and all of them; None for texts.
        numbers: of those `rows` that these are.
    """

    texts: tuple[str, ...]
    encoded: dict[str, list[list[int]]]
    special: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...] | None
    max_length: int
    reading: ItemReading | None = None
    rows: ItemRows | None = None
    numbers: tuple[int, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know of how pictures or recordings were read."""
        if self.reading is None or self.rows is None:
            return ()
        return tuple(dict.fromkeys((*self.reading.notes, *self.rows.notes)))

    @property
    def plural(self) -> str:
        """What the texts are called."""
        return "sentences" if self.rows is None else self.rows.items.plural

    def apart(self, order: Sequence[int]) -> list[list[int]]:
        """The texts in `order` in groups that can share batches, each in that order."""
        if self.rows is None:
            return [list(order)]
        return [[order[i] for i in some] for some in self.rows.apart([self.numbers[i] for i in order])]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, special ones included [text]."""
        return np.array([len(ids) for ids in self.encoded["input_ids"]], dtype=np.int64)

    @property
    def n_full(self) -> int:
        """Texts that fill `max_length`: of those that have exactly so many tokens nothing was cut, which is rare."""
        return int((self.lengths >= self.max_length).sum())

    def sentences(self) -> Spans:
        """One span a text, all its tokens."""
        return Spans(np.arange(len(self.texts)), np.zeros(len(self.texts), dtype=np.int64), self.lengths)

    def single(self, text: Sequence[int] | np.ndarray, token: Sequence[int] | np.ndarray) -> Spans:
        """One span a pair: token `token` (counted from 0, special ones included) of text `text`."""
        first = np.asarray(token, dtype=np.int64)
        return Spans(np.asarray(text, dtype=np.int64), first, first + 1)

    def ordinary(self, text: int) -> np.ndarray:
        """Positions of the tokens of text `text` that are not special."""
        return np.flatnonzero(~self.special[text])

    def some(self, kept: Sequence[int]) -> "Tokens":
        """The texts `kept` alone."""
        if len(kept) == len(self.texts):
            return self
        return Tokens(
            tuple(self.texts[i] for i in kept),
            {key: [values[i] for i in kept] for key, values in self.encoded.items()},
            tuple(self.special[i] for i in kept),
            None if self.offsets is None else tuple(self.offsets[i] for i in kept),
            self.max_length,
            self.reading,
            self.rows,
            tuple(self.numbers[i] for i in kept) if self.numbers else (),
        )

    def words(self, text: Sequence[int], start: Sequence[int], end: Sequence[int]) -> Spans:
        """One span a word: the tokens that overlap characters `start` to `end` (excluded) of text `text`.

        A word behind `max_length` gets an empty span.

        Raises:
            BadInput: the tokenizer does not say which characters its tokens stand for.
        """
        if self.offsets is None:
            raise BadInput(
                "this tokenizer does not say where in the text its tokens stand; use the model's fast tokenizer "
                "(tokenizer.json)"
            )
        first, last = np.zeros(len(text), dtype=np.int64), np.zeros(len(text), dtype=np.int64)
        for i, (one, low, high) in enumerate(zip(text, start, end, strict=True)):
            offsets = self.offsets[one]
            overlap = (offsets[:, 0] < high) & (offsets[:, 1] > low) & ~self.special[one]
            inside = np.flatnonzero(overlap)
            if len(inside):
                first[i], last[i] = inside[0], inside[-1] + 1
        return Spans(np.asarray(text, dtype=np.int64), first, last)


@dataclass(frozen=True)
class TokenBatch:
    """States of some texts, on the model's device.

    Attributes:
        texts: index of each row's text.
        layers: names of the layers. states: of each of them, [batch, token, dim].
        valid: bool [batch, token], no padding. ordinary: neither padding nor special.
        ids: token ids [batch, token].
        shift: places by which the stream reads a text later than it stands: 1 for the decoder of an encoder-decoder,
            whose texts begin with a start token, else 0.
        inside: what was entered around its pass.
    """

    texts: tuple[int, ...]
    layers: tuple[str, ...]
    states: tuple["Tensor", ...]
    valid: "Tensor"
    ordinary: "Tensor"
    ids: "Tensor"
    shift: int = 0
    inside: Any = None


@dataclass(frozen=True)
class Vectors:
    """Vectors of spans.

    Attributes:
        layers: "embeddings", "0", "1", …
        values: float32 [layer, span, dim].
        n_tokens: tokens each is the mean of [span]; 0 where a span had none, and its vectors are zero.
        stack: the stream. final_norm: whether the model's final norm was applied.
    """

    layers: tuple[str, ...]
    values: np.ndarray
    n_tokens: np.ndarray
    stack: str
    final_norm: bool

    def at(self, layer: str) -> np.ndarray:
        """Vectors of one layer [span, dim]; raises BadInput with the layers there are."""
        if layer not in self.layers:
            raise BadInput(f"no layer {layer!r} was read; there are {', '.join(self.layers)}")
        return self.values[self.layers.index(layer)]


def tokenise(
    loaded: LoadedModel, texts: Data | Sequence[str], *, max_length: int = 128, stack: str | None = None
) -> Tokens:
    """`texts` as token ids, cut at `max_length` tokens, or fewer where the model has no more positions.

    Pictures and recordings are read whole; the numbers of their tokens are those of stream `stack`.

    Raises:
        BadInput: no tokenizer, or `max_length` below 2; or the model reads no such items.
    """
    if isinstance(texts, Items):
        reading = reading_of(loaded, texts, NO_LIMIT, stack)
        assert isinstance(reading, ItemReading), "items are read as such"
        rows = ItemRows(loaded, texts, reading.prepare)
        places = {"input_ids": [list(one) for one in rows.numbers]}
        names = tuple(part.name for part in texts.parts)
        return Tokens(names, places, tuple(rows.special), None, NO_LIMIT, reading, rows, rows.texts)
    tokenizer = loaded.tokenizer
    check_readable(loaded, texts)
    if max_length < 2:
        raise BadInput(f"max_length is {max_length}; it must be at least 2")
    given = tuple(texts.texts if isinstance(texts, Texts) else texts)  # type: ignore[arg-type]
    length = token_limit(loaded, max_length)
    fast = bool(getattr(tokenizer, "is_fast", False))
    made: dict[str, Any] = {"input_ids": []}
    if given:
        made = dict(encoded(tokenizer, given, length, return_special_tokens_mask=True, return_offsets_mapping=fast))
    ids = made["input_ids"]
    check_known(loaded, ids)
    if "special_tokens_mask" in made:
        special = tuple(np.array(mask, dtype=bool) for mask in made.pop("special_tokens_mask"))
    else:  # of texts that were given as token ids
        special = tuple(np.isin(row, sorted(special_ids(tokenizer))) for row in ids)
    places = made.pop("offset_mapping", None if ids else [])
    offsets = None if places is None else tuple(np.array(one, dtype=np.int64).reshape(-1, 2) for one in places)
    return Tokens(given, made, special, offsets, length)


def token_batches(
    loaded: LoadedModel,
    tokens: Tokens,
    options: ReadOptions | None = None,
    *,
    order: Sequence[int] | None = None,
    inside: Callable[[Batch], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[TokenBatch]:
    """The states of the texts in `order` (None: of all, longest first), batch by batch, without those of no token.

    Each pass runs inside `inside(its batch)`. Through a model that is read block by block batches go together, as many as
    `IN_MEMORY` of states are of.

    Raises:
        BadInput: the model reads no text, has no such stream or layer, or its states do not fit the tokens.
    """
    import torch

    options = options or ReadOptions()
    stack = stack_of(loaded, tokens, options.stack)
    run = tokens.reading or text_forward(loaded, stack)
    wanted = wanted_layers(stack, options.layers)
    norm = final_norm(loaded, stack) if options.final_norm else None
    names = tuple(layer_name(layer) for layer in wanted)
    shift = int(run.shifted == stack.name)

    def read(batch: Batch) -> TokenBatch:
        found: dict[int, Tensor] = {}

        def look(_: BoundStack, layer: int, states: "Tensor") -> None:
            if layer in wanted:
                found[layer] = states if norm is None else norm(states)

        with torch.inference_mode(), inside(batch) as entered, tapped(loaded.model, [stack], look):
            run(batch)
        ids, special, valid = run.sides(batch)[stack.name]
        states = tuple(found[layer] for layer in wanted)
        for layer, one in zip(wanted, states, strict=True):
            check_padding(stack, layer, one, valid)
        return TokenBatch(batch.texts, names, states, valid, valid & ~special, ids, shift, entered)

    done = 0
    with memory_kept():
        for group in _groups(loaded, stack, _batches(loaded, tokens, options.batch_size, order), len(wanted)):
            for one in loaded.run(partial(read, batch) for batch in group):
                yield one
                done += len(one.texts)
                if options.progress:
                    options.progress("reading", done, len(tokens.texts))


def _groups(
    loaded: LoadedModel, stack: BoundStack, batches: Iterator[Batch], n_layers: int
) -> Iterator[Sequence[Batch]]:
    """Batches that are read together: one by one, but of a model that is read block by block."""
    if loaded.blocks is None:
        yield from ([batch] for batch in batches)
        return
    most = (loaded.blocks.memory or IN_MEMORY) // (n_layers * stream_width(loaded.model, stack) * 4)
    group: list[Batch] = []
    for batch in batches:
        if group and sum(one.valid.numel() for one in (*group, batch)) > most:
            yield group
            group = []
        group.append(batch)
    if group:
        yield group


def gather(
    loaded: LoadedModel, tokens: Tokens, spans: Spans, options: ReadOptions | None = None, *, special: bool = False
) -> Vectors:
    """Mean state of every span at every layer, from one pass over the texts; `special` counts special tokens too.

    Raises:
        BadInput: vectors beyond `cache_gb`, a state that is not finite, or what `token_batches` raises.
    """
    import torch

    options = options or ReadOptions()
    stack = stack_of(loaded, tokens, options.stack)
    wanted = wanted_layers(stack, options.layers)
    values: np.ndarray | None = None
    n_tokens = np.zeros(len(spans), dtype=np.int64)
    order = np.argsort(spans.text, kind="stable")
    starts = np.searchsorted(spans.text[order], np.arange(len(tokens.texts) + 1))
    needed = [text for text in range(len(tokens.texts)) if starts[text] < starts[text + 1]]
    for batch in token_batches(loaded, tokens.some(needed), options):
        rows = [order[starts[needed[text]] : starts[needed[text] + 1]] for text in batch.texts]
        kept = batch.valid if special else batch.ordinary
        chosen = np.concatenate(rows)
        row = torch.from_numpy(np.repeat(np.arange(len(rows)), [len(one) for one in rows])).to(kept.device)
        first, last = (torch.from_numpy(one[chosen]).to(kept.device) for one in (spans.first, spans.last))
        place = torch.arange(kept.shape[1], device=kept.device) - batch.shift
        inside = (place >= first[:, None]) & (place < last[:, None]) & kept[row]  # [span, token]
        count = inside.sum(1)
        n_tokens[chosen] = count.cpu().numpy()
        weight = inside.float() / count.clamp(min=1)[:, None]
        for layer, states in enumerate(batch.states):
            if values is None:
                values = allocate((len(wanted), len(spans), states.shape[-1]), options.cache_gb)
            found = _means(weight, row, states)
            if not bool(torch.isfinite(found).all()):
                raise BadInput(f"layer {batch.layers[layer]}: a state is NaN or infinite; {USE_FLOAT32}")
            values[layer, chosen] = found.cpu().numpy()
    if values is None:
        raise BadInput("there is no token in these texts, so there are no vectors")
    names = tuple(layer_name(layer) for layer in wanted)
    return Vectors(names, values, n_tokens, stack.name, bool(options.final_norm and stack.final_norm))


def gather_drawn(loaded: LoadedModel, tokens: Tokens, spans: Spans, read: ReadOptions, *, special: bool) -> Vectors:
    """Vectors of drawn spans, each with a token; otherwise as `gather`.

    Raises:
        BadInput: a stream that has no state for one of them.
    """
    vectors = gather(loaded, tokens, spans, read, special=special)
    if not vectors.n_tokens.all():
        raise BadInput(
            f"stream {vectors.stack} has no state for a drawn token: it reads each text one token late and never its last; "
            f"leave special tokens out (--no-special)"
        )
    return vectors


def text_stack(loaded: LoadedModel, name: str | None) -> BoundStack:
    """The stream called `name`, or the first one that reads text (the encoder, where there are two)."""
    if name is not None:
        return loaded.stack(name)
    text = loaded.text_stacks
    if not text:
        raise BadInput(f"{loaded.name} has no stream that reads text")
    return text[0]


def stack_of(loaded: LoadedModel, data: Data | Tokens | None, name: str | None) -> BoundStack:
    """The stream called `name`, or the first that `data` reach; raises BadInput where they do not."""
    if isinstance(data, Items):
        return stack_read(loaded, reading_of(loaded, data, NO_LIMIT), name)
    if isinstance(data, Tokens) and data.reading is not None:
        return stack_read(loaded, data.reading, name)
    return text_stack(loaded, name)


def text_forward(loaded: LoadedModel, stack: BoundStack) -> TextForward:
    """The forward pass that runs `stack`: an encoder alone; a decoder behind one reads what that wrote."""
    needed = ("encoder", "decoder") if stack.name == "decoder" else (stack.name,)  # run before `stack` is whole
    return TextForward(loaded, [one for one in loaded.text_stacks if one.name in needed])


def wanted_layers(stack: BoundStack, layers: Sequence[int] | None) -> tuple[int, ...]:
    """`layers`, checked; all of them, the embeddings first, for None."""
    there = (EMBEDDINGS, *range(stack.n_layers))
    if layers is None:
        return there
    for layer in layers:
        if layer not in there:
            raise BadInput(f"stream {stack.name} has no layer {layer}; its blocks are 0 to {stack.n_layers - 1}")
    return tuple(dict.fromkeys(layers))


def final_norm(loaded: LoadedModel, stack: BoundStack) -> "nn.Module | None":
    """The norm that reads the stream after the last block; None in post-norm families, which have none."""
    if not stack.final_norm:
        return None
    return loaded.model.get_submodule(stack.final_norm[0].name.rpartition(".")[0])


def _means(weight: "Tensor", row: "Tensor", states: "Tensor") -> "Tensor":
    """Weighted sums of tokens [span, dim]: of `states` [batch, token, dim] by `weight` [span, token] of row `row` [span]."""
    import torch

    states = states.float()
    if len(row) == len(states):  # one span a text: a product for each, without a copy of the states
        return torch.bmm(weight[:, None], states)[:, 0]
    if len(row) * states.shape[1] <= states.shape[0] * 4096:
        flat = weight.new_zeros(len(row), states.shape[0], states.shape[1])
        flat[torch.arange(len(row), device=row.device), row] = weight
        return flat.flatten(1) @ states.flatten(0, 1)
    return torch.stack([weight[i] @ states[row[i]] for i in range(len(row))])


def _batches(loaded: LoadedModel, tokens: Tokens, batch_size: int, wanted: Sequence[int] | None) -> Iterator[Batch]:
    import torch

    if batch_size < 1:
        raise BadInput(f"batch_size is {batch_size}; it must be at least 1")
    lengths = tokens.lengths
    longest_first = np.argsort(-lengths, kind="stable").tolist()
    order = [i for i in (longest_first if wanted is None else wanted) if lengths[i]]
    if tokens.rows is not None:
        for group in tokens.apart(order):
            for start in range(0, len(group), batch_size):
                mine = tuple(group[start : start + batch_size])
                yield replace(tokens.rows.batch([tokens.numbers[i] for i in mine]), texts=mine)
        return
    for start in range(0, len(order), batch_size):
        rows = tuple(order[start : start + batch_size])
        encoded = {key: [values[i] for i in rows] for key, values in tokens.encoded.items()}
        batch = collate(loaded.tokenizer, encoded, rows, loaded.device)
        special = np.zeros(tuple(batch.valid.shape), dtype=bool)
        for place, i in enumerate(rows):
            special[place, : lengths[i]] = tokens.special[i]
        yield replace(batch, special=torch.from_numpy(special).to(loaded.device))
