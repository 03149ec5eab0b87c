"""Sentences of token ids -> rows of one length: where [CLS] and [SEP] stand is what Puccetti et al. (2022) vary.

    rows = pack(sentences, "split", Marks(cls=2, sep=3, pad=0), length=64)      # iterator of int lists, `length` each

`sentences`  every sentence keeps its [CLS] and [SEP]; all are concatenated and cut (the usual `group_texts`).
`split`      SPLIT: [CLS] of every sentence dropped, every [SEP] kept, concatenated, cut to length − 1, one [CLS] in front.
`one-sep`    ONE_SEP: both dropped, concatenated, cut to length − 2, one [CLS] in front and one [SEP] at the end.
`lines`      a sentence per row: [CLS] … [SEP], cut at `length`, padded on the right.

As in the released code the last, incomplete row is dropped, except for `lines`, where no row is incomplete.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from outlierlens.errors import BadInput

Packing = Literal["sentences", "split", "one-sep", "lines"]
PACKINGS: tuple[str, ...] = get_args(Packing)


@dataclass(frozen=True)
class Marks:
    """Ids of the special tokens that packing places."""

    cls: int
    sep: int
    pad: int


def pack(sentences: Iterable[list[int]], packing: Packing, marks: Marks, length: int) -> Iterator[list[int]]:
    """Rows of exactly `length` ids from `sentences`, token ids without special tokens; empty sentences are passed over.

    Raises:
        BadInput: an unknown packing, or a length too short to hold a token beside the special ones.
    """
    if packing not in PACKINGS:
        raise BadInput(f"packing is {packing!r}; use one of {', '.join(PACKINGS)}")
    if length < 4:
        raise BadInput(f"rows of {length} tokens hold too little text; use a length of at least 4")
    kept = (sentence for sentence in sentences if sentence)
    if packing == "lines":
        return _lines(kept, marks, length)
    if packing == "sentences":
        return _cut(([marks.cls, *sentence, marks.sep] for sentence in kept), length, [], [])
    if packing == "split":
        return _cut(([*sentence, marks.sep] for sentence in kept), length, [marks.cls], [])
    return _cut(kept, length, [marks.cls], [marks.sep])


def _cut(pieces: Iterable[list[int]], length: int, before: list[int], after: list[int]) -> Iterator[list[int]]:
    size = length - len(before) - len(after)
    buffer: list[int] = []
    for piece in pieces:
        buffer += piece
        start = 0
        while len(buffer) - start >= size:
            yield [*before, *buffer[start : start + size], *after]
            start += size
        del buffer[:start]


def _lines(sentences: Iterable[list[int]], marks: Marks, length: int) -> Iterator[list[int]]:
    for sentence in sentences:
        row = [marks.cls, *sentence[: length - 2], marks.sep]
        yield row + [marks.pad] * (length - len(row))
