"""A corpus as shards: which files and data sets it is of, and its texts in order, a bounded number of characters at once.

    names = expand(["books/", "wiki/*.jsonl", "owner/name:config:train"])
    for shard in shards(names, Position(), column=None, limit=None): ...    # shard.texts, shard.end

A position is where a shard ends: so many whole sources, so many texts of the next, so many texts altogether.
"""

import glob
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlierlens.data.tables import ENDINGS
from outlierlens.data.texts import SHIPPED, stream_texts
from outlierlens.errors import BadInput

READ = (".txt", *ENDINGS)
SHARD_CHARACTERS = 2**19  # an encoding takes some 50 bytes a character while it lasts
SHARD_TEXTS = 2**14
Place = tuple[int, int, int]  # the fields of a Position, of which one a text would cost a tenth of reading it


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
            found += _some(text, (one for one in path.rglob("*") if not _hidden(one.relative_to(path))))
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


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


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
