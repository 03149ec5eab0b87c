"""Count a corpus: shards are counted by processes and added up in order; a stopped count goes on where it was.

    counts = count_tokens(tokenizer, "wiki.jsonl", CountOptions(workers=8), output="counts.parquet")

While it runs, `counts.parquet.parts/` holds the sums of all shards so far and the position behind them, replaced as a whole
every few seconds: its size, and that of memory, are the vocabulary's, not the corpus'. It goes when the output is written.
"""

import contextlib
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.data.token_counts import TokenCounts, write_counts
from outlierlens.data.token_texts import (
    added_around,
    nothing_known,
    unknown_id,
    unknown_note,
    vocabulary_digest,
    vocabulary_of,
)
from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.count.options import CountOptions
from outlierlens.experiments.count.tally import Position, Shard, Tally, cut, expand, shards
from outlierlens.experiments.count.workers import Counted, Workers, here
from outlierlens.models.devices import cores
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import refuse_links, write_bytes

FORMAT = 1
STATE = "state"
SAVE_SECONDS = 5.0
MAX_STATE_BYTES = 2**29


@dataclass(frozen=True)
class _Sums:
    """Counts of every text in front of `position`; never changed, so that an interrupt finds both or neither."""

    counts: np.ndarray
    position: Position = field(default_factory=Position)

    def plus(self, shard: Shard, ids: np.ndarray, times: np.ndarray) -> "_Sums":
        """With one more shard."""
        if len(ids) and ids[-1] >= len(self.counts):
            raise BadInput(f"the tokenizer gave id {ids[-1]}, and its vocabulary ends before {len(self.counts):,}")
        counts = self.counts.copy()
        counts[ids] += times
        return _Sums(counts, shard.end)


def count_tokens(
    tokenizer: Any,
    data: str | Path | Sequence[str | Path],
    options: CountOptions | None = None,
    *,
    output: str | Path | None = None,
) -> TokenCounts:
    """How often every id of `tokenizer` occurs in `data`: files, folders, globs and hub ids.

    The same whatever the number of workers. With `output`, the counts are written there, and a call that was stopped goes
    on where it was (an earlier `output` is replaced).

    Raises:
        BadInput: no such data, a row that cannot be read, no text at all, or an interrupted count of other data.
        Offline: a hub id while offline.
    """
    options = options or CountOptions()
    names = expand(data)
    tally = Tally.of(tokenizer, options.max_length)
    parts = parts_of(output) if output is not None else None
    if parts is not None:
        refuse_links(parts.parent, parts.name)
    identity = _identity(tokenizer, tally, names, options)
    with alone_in(parts, "count") if parts is not None else contextlib.nullcontext():
        try:
            watch = _Watch(names, options.progress, parts, identity)
            sums = watch.before(_nothing(tokenizer))
            read = shards(
                names, sums.position, column=options.text_column, limit=options.limit, offline=options.offline
            )
            sums = _add_up(sums, tally, read, options, watch)
            if not sums.position.texts:
                raise BadInput(f"{', '.join(names[:3])}: holds no non-empty text")
            named = [data] if isinstance(data, str | Path) else data
            found = _finished(tokenizer, sums, ", ".join(map(str, named)), options)
            if output is not None and parts is not None:
                write_counts(found, output)
                discard(parts)
        finally:
            if parts is not None and not (parts / STATE).is_file():
                discard(parts)
    return found


def count_texts(
    tokenizer: Any, texts: Iterable[str], options: CountOptions | None = None, *, source: str = "texts"
) -> TokenCounts:
    """How often every id of `tokenizer` occurs in `texts`, which may be endless but for the options' limit."""
    options = options or CountOptions()
    read = cut(((0, n, n), text) for n, text in enumerate(itertools.islice(texts, options.limit), 1))
    tally, watch = Tally.of(tokenizer, options.max_length), _Watch((source,), options.progress)
    sums = _add_up(_nothing(tokenizer), tally, read, options, watch)
    return _finished(tokenizer, sums, source, options)


def _add_up(sums: _Sums, tally: Tally, read: Iterator[Shard], options: CountOptions, watch: "_Watch") -> _Sums:
    """`sums` with every shard, added in order; what is added is kept, however this ends."""
    try:
        with contextlib.closing(_counted(tally, read, options.workers or cores())) as counted:
            for shard, ids, times in counted:
                sums = sums.plus(shard, ids, times)
                watch(sums)
    finally:
        watch.keep(sums)
    return sums


def _counted(tally: Tally, read: Iterator[Shard], workers: int) -> Generator[Counted, None, None]:
    """Shards with their counts. One shard alone is not worth a process, nor can every slow tokenizer be sent to one."""
    first = list(itertools.islice(read, 2))
    running = Workers.started(tally, workers) if workers > 1 and len(first) == 2 else None
    if running is None:
        yield from here(tally, itertools.chain(first, read))
        return
    with running:
        yield from running.counted(itertools.chain(first, read))


def _nothing(tokenizer: Any) -> _Sums:
    return _Sums(np.zeros(len(vocabulary_of(tokenizer)), dtype=np.int64))


@dataclass
class _Watch:
    """Keeps the sums and tells of progress, both every few seconds."""

    names: Sequence[str]
    progress: Callable[[str, int, int, int, int], None] | None = None
    parts: Path | None = None
    identity: dict[str, Any] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)
    kept: Position = field(default_factory=Position)

    def __call__(self, sums: _Sums) -> None:
        if time.monotonic() - self.last < SAVE_SECONDS:
            return
        self.keep(sums)
        at = sums.position
        if self.progress is not None:
            self.progress(self.names[at.sources], at.sources, len(self.names), at.texts, int(sums.counts.sum()))
        self.last = time.monotonic()

    def keep(self, sums: _Sums) -> None:
        """Write the sums down, if they are to be kept and are news."""
        if self.parts is None or sums.position in (self.kept, Position()):
            return
        about = json.dumps({"identity": self.identity, "position": astuple(sums.position)})
        write_bytes(self.parts / STATE, about.encode() + b"\n" + sums.counts.tobytes())
        self.kept = sums.position

    def before(self, nothing: _Sums) -> _Sums:
        """What an earlier count kept, or `nothing`; raises BadInput where it was another count."""
        path = self.parts / STATE if self.parts is not None else None
        if path is None or not path.is_file():
            return nothing
        remedy = "give another name, or --overwrite to start again"
        try:
            if path.stat().st_size > MAX_STATE_BYTES:
                raise ValueError(f"{path.stat().st_size:,} bytes")
            line, _, content = path.read_bytes().partition(b"\n")
            about = json.loads(line)
            before, position = dict(about["identity"]), Position(*map(int, about["position"]))
            counts = np.frombuffer(content, dtype=np.int64)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise BadFile(f"{path}: not an unfinished count ({error}); {remedy}") from None
        differing = [key for key, value in self.identity.items() if before.get(key) != value]
        if differing:
            what = "; ".join(f"{key} was {before.get(key)}, is {self.identity[key]}" for key in differing[:3])
            raise BadInput(f"{self.parts} keeps an unfinished count of something else ({what}); {remedy}")
        if counts.shape != nothing.counts.shape or (counts < 0).any() or min(astuple(position)) < 0:
            raise BadFile(f"{path}: its counts do not fit the vocabulary; {remedy}")
        self.kept = position
        return _Sums(counts, position)


def parts_of(output: str | Path) -> Path:
    """The folder that keeps an unfinished count of `output`."""
    return Path(f"{output}.parts")


def discard(parts: Path) -> None:
    """Remove what an unfinished count kept; anything else in that folder stays, and so does then the folder."""
    for name in (STATE, ".lock"):
        (parts / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        parts.rmdir()


def _identity(tokenizer: Any, tally: Tally, names: Sequence[str], options: CountOptions) -> dict[str, Any]:
    """What must be equal for a count to go on: the tokenizer, files with their sizes and times, and the options."""
    files = hashlib.sha256()
    for name in names:
        path = Path(name)
        about = path.stat() if path.is_file() else None
        files.update(json.dumps([name, about and [about.st_size, about.st_mtime_ns]]).encode("utf-8", "surrogatepass"))
    digest = hashlib.sha256(vocabulary_digest(vocabulary_of(tokenizer)).encode())
    if tally.portable is not None and tally.portable[0] == "fast":
        digest.update(tally.portable[1])
    return {
        "format": FORMAT,
        "tokenizer": digest.hexdigest()[:20],
        "data (names, sizes and times of files)": files.hexdigest()[:20],
        "text column": options.text_column,
        "limit": options.limit,
        "max length": options.max_length,
    }


def _finished(tokenizer: Any, sums: _Sums, source: str, options: CountOptions) -> TokenCounts:
    n_texts = sums.position.texts
    length = options.max_length
    note = "texts were counted whole" if length is None else f"texts were cut at {length:,} tokens"
    unknown, n = unknown_id(tokenizer), int(sums.counts.sum())
    n_unknown = 0 if unknown is None else int(sums.counts[unknown])
    if n and n_unknown == n:
        raise BadInput(nothing_known(source, n))
    few = unknown_note(n_unknown, n)
    return TokenCounts(
        counts=sums.counts,
        special=n_texts * added_around(tokenizer),
        tokens=vocabulary_of(tokenizer),
        n_texts=n_texts,
        source=source + (f", the first {options.limit:,} texts" if options.limit is not None else ""),
        notes=(note, few) if few else (note,),
    )
