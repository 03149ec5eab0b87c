"""Count the ids of one shard, in this process or as a worker that gets shards through a pipe.

    tally = Tally.of(tokenizer, max_length=None)
    ids, times = tally(["A text.", "Another one."])      # int64 each: ids that occur, ascending, and how often

A worker is `main()`: messages are lists of byte strings (`send`, `receive`) on its standard input and output; it ends when
its input does, so none outlives the process that started it.

A corpus as shards: which files and data sets it is of, and its texts in order, a bounded number of characters at once.

    names = expand(["books/", "wiki/*.jsonl", "owner/name:config:train"])
    for shard in shards(names, Position(), column=None, limit=None): ...    # shard.texts, shard.end

A position is where a shard ends: so many whole sources, so many texts of the next, so many texts altogether.
"""

import glob
import itertools
import json
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from outlierlens.data.tables import ENDINGS
from outlierlens.data.texts import SHIPPED, stream_texts
from outlierlens.data.token_texts import added_around
from outlierlens.errors import BadInput

READ = (".txt", *ENDINGS)
SHARD_CHARACTERS = 2**19  # an encoding takes some 50 bytes a character while it lasts
SHARD_TEXTS = 2**14
Place = tuple[int, int, int]  # the fields of a Position, of which one a text would cost a tenth of reading it
Encode = Callable[[list[str]], Iterable[Sequence[int]]]


@dataclass(frozen=True)
class Position:
    """How far a corpus is read: `sources` whole ones, `within` texts of the next; `texts` in all."""

    sources: int = 0
    within: int = 0
    texts: int = 0


@dataclass(frozen=True)
class Shard:
    """Consecutive texts, and the position behind the last."""

    texts: list[str]
    end: Position


def expand(data: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """Every file and hub id that `data` names, each once: files, folders (all texts below), globs, hub ids, in order.

    Raises:
        BadInput: nothing named, no such file, or a folder or glob without a file of texts.
    """
    found: list[str] = []
    for name in [data] if isinstance(data, str | Path) else data:
        text, path = str(name), Path(name)
        if text in SHIPPED or path.is_file():
            found.append(text)
        elif path.is_dir():
            inside = ((one, one.relative_to(path).parts) for one in path.rglob("*"))
            shown = (one for one, parts in inside if not any(part.startswith(".") for part in parts))
            found += _some(text, shown)
        elif any(mark in text for mark in "*?["):
            found += _some(text, map(Path, glob.glob(text, recursive=True)))  # noqa: PTH207, a Path globs below itself only
        elif path.suffix.lower() in READ or text.startswith((".", "/", "~")):
            raise BadInput(f"{text}: no such data file")
        else:
            found.append(text)
    if not found:
        raise BadInput("no data is named; give files, folders, globs or hub ids")
    return tuple(dict.fromkeys(found))


def _some(named: str, paths: Iterable[Path]) -> list[str]:
    found = sorted(str(path) for path in paths if path.suffix.lower() in READ and path.is_file())
    if not found:
        raise BadInput(f"{named}: no file there that ends in {', '.join(READ)}")
    return found


def shards(
    names: Sequence[str], start: Position, *, column: str | None, limit: int | None, offline: bool = False
) -> Iterator[Shard]:
    """The texts of `names` behind `start`, at most `limit` with those before it; none is held longer than its shard."""

    def texts() -> Iterator[tuple[Place, str]]:
        total = start.texts
        for number in range(start.sources, len(names)):
            skipped = start.within if number == start.sources else 0
            read = stream_texts(names[number], column=column, offline=offline)
            for within, text in enumerate(itertools.islice(read, skipped, None), skipped + 1):
                total += 1
                yield (number, within, total), text

    return cut(itertools.islice(texts(), None if limit is None else limit - start.texts))


def cut(texts: Iterable[tuple[Place, str]]) -> Iterator[Shard]:
    """Texts with the places behind them, as shards: a shard ends with the text that fills it."""
    held: list[str] = []
    size, end = 0, (0, 0, 0)
    for place, text in texts:
        held.append(text)
        size, end = size + len(text), place
        if size >= SHARD_CHARACTERS or len(held) >= SHARD_TEXTS:
            yield Shard(held, Position(*end))
            held, size = [], 0
    if held:
        yield Shard(held, Position(*end))


@dataclass(frozen=True)
class Tally:
    """Counts ids without the special tokens that go around a text.

    Attributes:
        encode: ids of texts. kept: how many of a text's ids count at most. left: cut the first, not the last.
        portable: (kind, bytes) from which `unpacked` makes the same in another process; None where that cannot be.
    """

    encode: Encode
    kept: int | None = None
    left: bool = False
    portable: tuple[str, bytes] | None = None

    @classmethod
    def of(cls, tokenizer: Any, max_length: int | None = None) -> "Tally":
        """For a tokenizer of transformers; with `max_length`, that many tokens per text, those around it included."""
        kept = None if max_length is None else max(0, max_length - int(added_around(tokenizer).sum()))
        left = getattr(tokenizer, "truncation_side", "right") == "left"
        portable = _packed(tokenizer)
        encode = _encoder(*portable) if portable and portable[0] == "fast" else _slow(tokenizer)
        return cls(encode, kept, left, portable)

    def settings(self) -> bytes:
        """What else a worker needs."""
        return json.dumps({"kept": self.kept, "left": self.left}).encode()

    @classmethod
    def unpacked(cls, kind: str, content: bytes, settings: bytes) -> "Tally":
        """What `portable` and `settings` of another process' tally stand for."""
        return cls(_encoder(kind, content), **json.loads(settings))

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """(ids that occur, how often), int64."""
        rows = self.encode(texts)
        if self.kept is not None:
            rows = (row[max(0, len(row) - self.kept) :] if self.left else row[: self.kept] for row in rows)
        ids = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64)
        times = np.bincount(ids)
        found = np.flatnonzero(times)
        return found, times[found]


def plain(texts: list[str]) -> list[str]:
    """`texts` as Unicode: halves of surrogate pairs, which JSON may spell, become pairs again or U+FFFD."""
    return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]


def _packed(tokenizer: Any) -> tuple[str, bytes] | None:
    inner = getattr(tokenizer, "backend_tokenizer", None)
    try:
        if inner is not None:
            return "fast", json.dumps([inner.to_str(), bool(inner.encode_special_tokens)]).encode()
        return "slow", pickle.dumps(tokenizer)
    # Parts written in Python cannot be written down; what cannot, raises nearly every class, some bare.
    except Exception:
        return None


def _encoder(kind: str, content: bytes) -> Encode:
    if kind == "slow":
        return _slow(pickle.loads(content))
    from tokenizers import Tokenizer

    text, as_text = json.loads(content)
    inner = Tokenizer.from_str(text)
    inner.no_truncation()
    inner.no_padding()
    inner.encode_special_tokens = as_text
    # The fast batch leaves out where in the text tokens stand, which nobody asks for here.
    return lambda texts: (one.ids for one in inner.encode_batch_fast(texts, add_special_tokens=False))


def _slow(tokenizer: Any) -> Encode:
    return lambda texts: tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def send(file: IO[bytes], *parts: bytes) -> None:
    """Write one message."""
    file.write(struct.pack(f"<I{len(parts)}Q", len(parts), *map(len, parts)) + b"".join(parts))
    file.flush()


def receive(file: IO[bytes]) -> list[bytes]:
    """Read one message; raises EOFError where the other side is gone."""
    (count,) = struct.unpack("<I", _exactly(file, 4))
    sizes = struct.unpack(f"<{count}Q", _exactly(file, 8 * count))
    return [_exactly(file, size) for size in sizes]


def _exactly(file: IO[bytes], size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise EOFError
    return found


def packed_texts(texts: list[str]) -> tuple[bytes, bytes]:
    """(length of each text in characters, all of them one after another in UTF-8)."""
    return np.array([len(text) for text in texts], dtype=np.int64).tobytes(), "".join(texts).encode()


def unpacked_texts(lengths: bytes, content: bytes) -> list[str]:
    """The texts that `packed_texts` packed."""
    text, ends = content.decode(), np.cumsum(np.frombuffer(lengths, dtype=np.int64)).tolist()
    return [text[first:last] for first, last in itertools.pairwise([0, *ends])]


def main() -> None:
    """Be a worker: one message with the tokenizer, then a message a shard, each answered by one."""
    # Whatever a tokenizer prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    questions = sys.stdin.buffer
    try:
        kind, content, settings = receive(questions)
        tally = Tally.unpacked(kind.decode(), content, settings)
        send(answers, b"ready")
        while True:
            ids, times = tally(unpacked_texts(*receive(questions)))
            send(answers, b"counts", ids.tobytes(), times.tobytes())
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # told to the process that asked, which names the source
        send(answers, b"error", f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
