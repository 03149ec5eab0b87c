"""How often every token id of a tokenizer occurs in a corpus of any size; a stopped count goes on.

    counts = count_tokens(tokenizer, ["books/", "wiki.jsonl"], rows=Path("counts.jsonl"))
    counts = count_texts(tokenizer, ["A text.", "Another one."])
    counts = counts_of("wiki.jsonl", tokenizer)            # or of a file of counts: whatever an option names

A corpus is read in shards. The counts of each are kept, with the place in the corpus where it ends.
"""

import contextlib
import glob
import hashlib
import itertools
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data.tables import ENDINGS
from outlierlens.data.texts import SHIPPED, stream_texts
from outlierlens.data.token_counts import TokenCounts, compat_counts, holds_counts, read_counts
from outlierlens.data.token_texts import (
    added_around,
    nothing_known,
    unknown_id,
    unknown_note,
    vocabulary_digest,
    vocabulary_of,
)
from outlierlens.errors import BadInput, OutlierlensError
from outlierlens.models.inputs import tokenizer_of
from outlierlens.results.row_store import Keep, kept_rows

if TYPE_CHECKING:
    from outlierlens.session import Session

READ = (".txt", *ENDINGS)
SHARD, BATCH = (
    2**22,
    2**19,
)  # characters that are kept together, and encoded together: some 50 bytes each while it lasts
Place = tuple[int, int, int]  # whole sources, texts of the next, texts in all
Progress = Callable[[str, int, int], None]


def counts_of(source: str, tokenizer: Any, *, paper_compat: bool = False, **how: Any) -> TokenCounts:
    """Counts by the ids of `tokenizer`: of files of counts, or of a corpus, which is counted now; several by commas.

    `paper_compat` reads files as `data.token_counts.compat_counts` does; `how` are arguments of `count_tokens`.

    Raises:
        BadInput, BadFile: as `read_counts` and `count_tokens`; and where `paper_compat` is to read a corpus.
    """
    if holds_counts(source):
        return (compat_counts if paper_compat else read_counts)(source, tokenizer)
    if paper_compat:
        raise BadInput(f"{source}: the released code reads a file of counts; make one with --write-counts first")
    return count_tokens(tokenizer, source.split(","), **how)


def session_counts(session: "Session", source: str, *, paper_compat: bool = False) -> TokenCounts:
    """`counts_of` for the model of a command; counts of a corpus are kept in its run directory."""
    how = {"offline": session.loading.offline, "rows": session.kept, "progress": session.progress}
    return counts_of(source, tokenizer_of(session.loaded), paper_compat=paper_compat, **how)


def count_tokens(
    tokenizer: Any,
    data: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    offline: bool = False,
    rows: Path | Keep | None = None,
    progress: Progress | None = None,
) -> TokenCounts:
    """How often every id of `tokenizer` occurs in `data`: files, folders, globs and hub ids; at most `limit` texts.

    Texts count whole; what the tokenizer puts around them is counted apart. With `rows`, the same call goes on where it was
    stopped. `progress` is called as (label, whole sources, sources).

    Raises:
        BadInput: no such data, a row that cannot be read, no text at all, or a text that the tokenizer fails on.
        Offline: a hub id while `offline`.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"limit is {limit}; it must be at least 1")
    names = expand(data)
    sums, end = np.zeros(len(vocabulary_of(tokenizer)), dtype=np.int64), (0, 0, 0)
    with kept_rows(rows, _identity(tokenizer, names, column, limit)) as kept:
        for one in kept.done.values():
            sums[one["ids"]] += np.array(one["times"], dtype=np.int64)
            end = tuple(one["end"])
        rest = 0 if "all" in kept.done else None if limit is None else limit - end[2]
        with contextlib.closing(_placed(names, end, column, offline)) as texts:  # a file is open in it
            for shard in _pieces(itertools.islice(texts, rest), SHARD):
                end = shard[-1][0]
                found = _counted(tokenizer, shard, len(sums))
                ids = np.flatnonzero(found)
                row = {"ids": ids.tolist(), "times": found[ids].tolist(), "end": end}
                kept(str(end[2]), lambda row=row: row)  # type: ignore[misc]
                sums += found
                if progress is not None:
                    progress(
                        f"{names[end[0]]}: {end[2]:,} texts, {int(sums.sum()):,} tokens so far", end[0], len(names)
                    )
        if not end[2]:
            raise BadInput(f"{', '.join(names[:3])}: holds no non-empty text")
        kept("all", lambda: {"ids": [], "times": [], "end": end})
    named = ", ".join(map(str, [data] if isinstance(data, str | Path) else data))
    return _finished(tokenizer, sums, end[2], named + (f", the first {limit:,} texts" if limit is not None else ""))


def count_texts(tokenizer: Any, texts: Iterable[str], *, source: str = "texts") -> TokenCounts:
    """How often every id of `tokenizer` occurs in `texts`, which are read once; raises BadInput as `count_tokens`."""
    sums, n = np.zeros(len(vocabulary_of(tokenizer)), dtype=np.int64), 0
    for piece in _pieces((((0, i, i), text) for i, text in enumerate(texts, 1)), SHARD):
        sums, n = sums + _counted(tokenizer, piece, len(sums)), piece[-1][0][2]
    return _finished(tokenizer, sums, n, source)


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
        elif path.is_dir() or any(mark in text for mark in "*?["):
            pattern = f"{glob.escape(text)}/**/*" if path.is_dir() else text
            inside = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207, a Path globs below itself only
            files = sorted(str(one) for one in inside if one.suffix.lower() in READ and one.is_file())
            if not files:
                raise BadInput(f"{text}: no file there that ends in {', '.join(READ)}")
            found += files
        elif path.suffix.lower() in READ or text.startswith((".", "/", "~")):
            raise BadInput(f"{text}: no such data file")
        else:
            found.append(text)
    if not found:
        raise BadInput("no data is named; give files, folders, globs or hub ids")
    return tuple(dict.fromkeys(found))


def _placed(
    names: Sequence[str], start: Place, column: str | None, offline: bool
) -> Generator[tuple[Place, str], None, None]:
    """The texts of `names` behind `start`, with the places behind them."""
    total = start[2]
    for number in range(start[0], len(names)):
        skipped = start[1] if number == start[0] else 0
        read = stream_texts(names[number], column=column, offline=offline)
        for within, text in enumerate(itertools.islice(read, skipped, None), skipped + 1):
            total += 1
            yield (number, within, total), text


def _pieces(texts: Iterable[tuple[Place, str]], size: int) -> Iterator[list[tuple[Place, str]]]:
    """Consecutive texts: a piece ends with the text that fills it; none is empty."""
    held: list[tuple[Place, str]] = []
    length = 0
    for one in texts:
        held.append(one)
        length += 1 + len(one[1])
        if length >= size:
            yield held
            held, length = [], 0
    if held:
        yield held


def _counted(tokenizer: Any, texts: list[tuple[Place, str]], n_ids: int) -> np.ndarray:
    """How often each id occurs, int64 [vocabulary]."""
    sums, encode = np.zeros(n_ids, dtype=np.int64), _encoder(tokenizer)
    for piece in _pieces(texts, BATCH):
        # JSON may spell halves of surrogate pairs: they become pairs again, or U+FFFD.
        plain = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for _, text in piece]
        try:
            ids = np.fromiter(itertools.chain.from_iterable(encode(plain)), dtype=np.int64)
        except OutlierlensError:
            raise
        except Exception as error:
            first, last = piece[0][0][2], piece[-1][0][2]
            why = f"{type(error).__name__}: {error}"[:300]
            raise BadInput(f"the tokenizer fails on a text between {first:,} and {last:,}: {why}") from error
        if ids.size and ids.max() >= n_ids:
            raise BadInput(f"the tokenizer gave id {ids.max()}, and its vocabulary ends before {n_ids:,}")
        sums += np.bincount(ids, minlength=n_ids)
    return sums


def _encoder(tokenizer: Any) -> Callable[[list[str]], Iterable[Sequence[int]]]:
    """Ids of texts, nothing put around them and nothing cut off."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        return lambda texts: tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    inner.no_truncation()
    inner.no_padding()
    # The fast batch leaves out where in the text tokens stand, which nobody asks for here; it takes all cores.
    return lambda texts: (one.ids for one in inner.encode_batch_fast(texts, add_special_tokens=False))


def _identity(tokenizer: Any, names: Sequence[str], column: str | None, limit: int | None) -> dict[str, Any]:
    """What must be equal for a count to go on: the tokenizer, files with their sizes and times, and the options."""
    files, digest = hashlib.sha256(), hashlib.sha256(vocabulary_digest(vocabulary_of(tokenizer)).encode())
    for name in names:
        about = Path(name).stat() if Path(name).is_file() else None
        files.update(json.dumps([name, about and [about.st_size, about.st_mtime_ns]]).encode("utf-8", "surrogatepass"))
    with contextlib.suppress(Exception):  # one without a backend, or with parts in Python that cannot be written down
        digest.update(tokenizer.backend_tokenizer.to_str().encode())
    return {"counting": digest.hexdigest()[:20], "data (names, sizes and times of files)": files.hexdigest()[:20],
            "text column": column, "limit": limit}  # fmt: skip


def _finished(tokenizer: Any, sums: np.ndarray, n_texts: int, source: str) -> TokenCounts:
    unknown, n = unknown_id(tokenizer), int(sums.sum())
    n_unknown = 0 if unknown is None else int(sums[unknown])
    if n and n_unknown == n:
        raise BadInput(nothing_known(source, n))
    few = unknown_note(n_unknown, n)
    return TokenCounts(
        counts=sums, special=n_texts * added_around(tokenizer), tokens=vocabulary_of(tokenizer), n_texts=n_texts,
        source=source, notes=("texts were counted whole", few) if few else ("texts were counted whole",),
    )  # fmt: skip
