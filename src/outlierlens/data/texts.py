"""Texts from a file or a hub id, and batches of their tokens.

    texts = read_texts("passages.txt", limit=100)
    for batch in batches(tokenizer, texts, max_length=128, batch_size=16): ...

A path is .txt (a text per line), .jsonl, .csv, .tsv or .parquet; a hub id is "owner/name:config:split". Lines end at
"\\n" or "\\r\\n" and nowhere else: a text may hold U+2028, U+0085 and their kind. Quotes mean something in .csv alone.
"""

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from outlierlens.data.tables import bounded, file_lines, open_table, refuse_pipes
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor


TEXT_COLUMNS = ("text", "sentence", "sentence1", "premise", "question")
EXCERPT = "excerpt"
REVIEWS = "reviews"
SHIPPED = (EXCERPT, REVIEWS)
NO_TOKENIZER = (
    "this model has no tokenizer beside it, so texts cannot be read; pass one (--model-args tokenizer=FOLDER)"
)
NO_LIMIT = 1 << 30  # tokens of a row, of what is never cut


class Data(ABC):
    """What a model is measured on: `Texts`, `Examples`, or pictures and recordings (`media.Items`).

    Attributes:
        source: where it came from, as given.
    """

    source: str

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 over all of it, in order."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def some(self, numbers: Sequence[int]) -> Self:
        """Those with these numbers, in this order."""

    def first(self, n: int) -> Self:
        """The first `n` (or all)."""
        return self.some(range(min(n, len(self))))

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """What tells one from another: those with equal keys are the same; see `labelled.labels.once`."""

    @property
    def plural(self) -> str:
        """What tables call it."""
        return "texts"

    @property
    def passage(self) -> str:
        """A text to fill in, "" where there is none."""
        return ""


@dataclass(frozen=True)
class Texts(Data):
    """Texts with where they came from."""

    source: str
    texts: tuple[str, ...]
    column: str = ""

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for text in self.texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
            if isinstance(text, TokenText):
                digest.update(repr(text.ids).encode() + b"\0")
        return digest.hexdigest()

    @property
    def keys(self) -> tuple[str, ...]:
        return self.texts

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __getitem__(self, place: int | slice) -> Any:
        """A text, or the texts of a slice."""
        return self.some(range(len(self))[place]) if isinstance(place, slice) else self.texts[place]

    def some(self, numbers: Sequence[int]) -> Self:
        return replace(self, texts=tuple(self.texts[number] for number in numbers))

    @property
    def passage(self) -> str:
        """The first text that is long enough to be filled in, or the first."""
        return next((text for text in self.texts if len(text.split()) > 40), self.texts[0])

    def tokenised(self, tokenizer: Any, max_length: int) -> Any:
        """What the tokenizer makes of them, by name one list a text, cut at `max_length` tokens."""
        return encoded(tokenizer, self.texts, max_length)


class TokenText(str):
    """A text that was given as token ids, which are read as they are: nothing is added to them.

    As a string it is what its tokenizer makes of them, or without one their numbers.

    Attributes:
        ids: the token ids.
    """

    ids: tuple[int, ...]

    @classmethod
    def of(cls, ids: Sequence[int], tokenizer: Any = None) -> "TokenText":
        """The text of these ids."""
        known = None if tokenizer is None or max(ids, default=0) >= len(tokenizer) else tokenizer
        found = cls(known.decode(list(ids)) if known else " ".join(map(str, ids)))
        found.ids = tuple(ids)
        return found


def encoded(tokenizer: Any, texts: Sequence[str], max_length: int, **how: Any) -> Any:
    """What a tokenizer makes of `texts`, by name one list for each, cut at `max_length` tokens; of a `TokenText` its own ids.

    Raises:
        BadInput: no tokenizer, and a text of words.
    """
    if texts and all(isinstance(text, TokenText) for text in texts):
        ids = [list(text.ids[:max_length]) for text in texts if isinstance(text, TokenText)]
        return {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
    if tokenizer is None:
        raise BadInput(NO_TOKENIZER)
    return tokenizer(beginnings(tokenizer, texts, max_length), truncation=True, max_length=max_length, **how)


def beginnings(tokenizer: Any, texts: Sequence[str], max_length: int) -> list[str]:
    """Texts whose first `max_length` tokens are wanted: of a long one a beginning that has twice as many.

    A tokenizer works on a whole text before it cuts, and takes hundreds of bytes for each of its characters.
    """
    if getattr(tokenizer, "truncation_side", "right") != "right":
        return list(texts)
    return [_beginning(tokenizer, text, max_length) if len(text) > 16 * max_length else text for text in texts]


def _beginning(tokenizer: Any, text: str, max_length: int) -> str:
    size = 16 * max_length  # characters; a token has four or five
    while size < len(text):
        part = text[:size]
        if len(tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]) >= 2 * max_length:
            return part
        size *= 4
    return text


def read_texts(
    data: str | Path, *, column: str | None = None, limit: int | None = None, offline: bool = False
) -> Texts:
    """Non-empty texts of `data`, at most `limit`, in file order; "excerpt" and "reviews" are shipped with the package.

    Raises:
        BadInput: no such file or data set, unknown ending, missing column (the message lists the columns), a row that
            cannot be read, or no text at all.
        Offline: a hub id while offline.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"limit is {limit}; it must be at least 1")
    found, used = _found(str(data), column, offline)
    texts = tuple(itertools.islice(_non_empty(found), limit))
    if not texts:
        raise BadInput(f"{data}: holds no non-empty text" + (f" in column {used!r}" if used else ""))
    return Texts(str(data), texts, used)


def stream_texts(data: str | Path, *, column: str | None = None, offline: bool = False) -> Iterator[str]:
    """The texts that `read_texts` gives, one after another, never held in memory.

    Raises:
        BadInput, Offline: as `read_texts`, except that no text at all is no error.
    """
    return _non_empty(_found(str(data), column, offline)[0])


def _found(source: str, column: str | None, offline: bool) -> tuple[Iterator[Any], str]:
    """(values of the text column, its name) of `source`."""
    path = Path(source)
    if source in SHIPPED:
        return _lines(resources.files("outlierlens").joinpath("data_files", f"{source}.txt").read_text("utf-8")), ""
    if path.suffix.lower() == ".txt" or (path.suffix == "" and path.is_file()):
        if not path.is_file():
            refuse_pipes(path)
            raise BadInput(f"{source}: no such data file")
        return (text for (text,) in bounded(zip(file_lines(path)), source)), ""
    table = open_table(source, offline=offline)
    if not table.names:
        return iter(()), ""
    used = table.column(column, TEXT_COLUMNS, "text")
    return (value for (value,) in table.rows((used,))), used


def _lines(text: str) -> Iterator[str]:
    """Lines of `text` without their ends; str.splitlines would also cut at U+2028, U+0085, form feeds and others."""
    return (line.removesuffix("\r") for line in text.split("\n"))


def _non_empty(found: Iterator[Any]) -> Iterator[str]:
    return (text.strip() for text in found if isinstance(text, str) and text.strip())


@dataclass(frozen=True)
class Batch:
    """Padded tokens of some texts, on one device.

    Attributes:
        inputs: keyword arguments of the model: input_ids and attention_mask [batch, token], and what else it takes.
        valid: bool [batch, token], false for padding.
        special: bool [batch, token], true for the tokenizer's special tokens ([CLS], <s>, …), padding not counted.
        texts: index of each row's text.
    """

    inputs: dict[str, "Tensor"]
    valid: "Tensor"
    special: "Tensor"
    texts: tuple[int, ...]


def batches(
    tokenizer: Any,
    texts: Texts | Sequence[str],
    *,
    max_length: int,
    batch_size: int,
    device: Any = "cpu",
    sort: bool = True,
) -> Iterator[Batch]:
    """Tokenise `texts` (cut at `max_length` tokens) and yield padded batches, longest texts first unless `sort` is off.

    Sorting by length keeps padding near zero; the longest first means that memory runs out at once or never.
    """
    if max_length < 2 or batch_size < 1:
        raise BadInput(f"max_length is {max_length} and batch_size {batch_size}; need at least 2 and 1")
    texts = texts if isinstance(texts, Texts) else Texts("", tuple(texts))
    found = texts.tokenised(tokenizer, max_length)
    ids = found["input_ids"]
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i])) if sort else list(range(len(ids)))
    order = [i for i in order if ids[i]]  # a text of no token has no state
    for start in range(0, len(order), batch_size):
        rows = tuple(order[start : start + batch_size])
        yield collate(tokenizer, {key: [found[key][i] for i in rows] for key in found}, rows, device)


def start_token(config: Mapping[str, Any]) -> int:
    """The token that the decoder of an encoder-decoder model begins with; raises BadInput where the config names none."""
    start = config.get("decoder_start_token_id")
    if start is None:
        raise BadInput("the config has no decoder_start_token_id, so the decoder cannot be fed; set it")
    return int(start)


def decoder_side(batch: Batch, config: Mapping[str, Any]) -> tuple["Tensor", "Tensor"]:
    """(token ids, special tokens) [batch, token] that feed the decoder of an encoder-decoder model: the text shifted by one.

    Each row begins with the decoder's start token, which counts as special; `batch.valid` holds for both sides.
    """
    start = start_token(config)
    first = batch.valid & (batch.valid.long().cumsum(1) == 1)
    ids = batch.inputs["input_ids"].roll(1, 1).masked_fill(first, start)
    return ids, (batch.special.roll(1, 1) | first) & batch.valid


def collate(tokenizer: Any, encoded: dict[str, list[list[int]]], rows: tuple[int, ...], device: Any) -> Batch:
    """Pad rows of token ids on the right into one `Batch`.

    Always on the right, whatever the tokenizer prefers: models with learned positions number them from the left, and
    left padding would shift every token to positions it never has alone.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from outlierlens.data.token_texts import special_ids  # brings numpy, which --help does not need

    if tokenizer is None:
        sequences = {key: [torch.tensor(row) for row in values] for key, values in encoded.items()}
        padded = {key: pad_sequence(values, batch_first=True) for key, values in sequences.items()}
    else:
        padded = tokenizer.pad(encoded, return_tensors="pt", padding_side="right", return_attention_mask=True)
    valid = padded["attention_mask"].bool()
    special = torch.isin(padded["input_ids"], torch.tensor(sorted(special_ids(tokenizer)))) & valid
    inputs = {key: value.to(device) for key, value in padded.items()}
    return Batch(inputs, valid.to(device), special.to(device), rows)
