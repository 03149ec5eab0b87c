"""Word vectors that know no context, from a word2vec file: text (.txt, .vec; GloVe's too) or binary (.bin).

    words = words_of("A plane, taking off.")                       # ["A", "plane", ",", "taking", "off", "."]
    found = read_word_vectors("GoogleNews-vectors.bin", all_words)  # only what is needed is kept
    vectors, coverage = found.of(texts)                            # mean over known words [text, dim]

The sizes in a file's header are held against the file's own size before anything is made of them.
"""

import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outlierlens.errors import BadFile, BadInput

MAX_WORD = 4096  # bytes; longer ones are no words
MAX_WIDTH = 65_536
MAX_LINE = 32 * MAX_WIDTH + MAX_WORD
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class WordVectors:
    """Vectors of words.

    Attributes:
        name: of the file. rows: row of each word. values: float32 [word, dim].
    """

    name: str
    rows: dict[str, int]
    values: np.ndarray

    def row(self, word: str) -> int | None:
        """Row of `word`, or of its lower case; None for neither."""
        found = self.rows.get(word)
        return self.rows.get(word.lower()) if found is None else found

    def of(self, texts: Sequence[str]) -> tuple[np.ndarray, float]:
        """(mean of the known words of each text, float32 [text, dim]; share in [0, 1] of all words that are known)."""
        found = np.zeros((len(texts), self.values.shape[1]), dtype=np.float32)
        known = total = 0
        for i, text in enumerate(texts):
            words = words_of(text)
            rows = [row for row in map(self.row, words) if row is not None]
            known, total = known + len(rows), total + len(words)
            if rows:
                found[i] = self.values[rows].mean(0)
        return found, known / total if total else 0.0


def words_of(text: str) -> list[str]:
    """Words and punctuation marks of a text."""
    return WORD.findall(text)


def needed_words(texts: Iterable[str]) -> set[str]:
    """Every word of `texts`, and its lower case."""
    words = {word for text in texts for word in words_of(text)}
    return words | {word.lower() for word in words}


def read_word_vectors(path: str | Path, words: set[str]) -> WordVectors:
    """The vectors of those of `words` that the file holds, the first of each.

    Raises:
        BadInput: no such file, or an ending that says no format.
        BadFile: a header that does not fit the file, a line or value that is none, or no word of those wanted.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"{path}: no such file of word vectors")
    ending = path.suffix.lower()
    if ending not in (".bin", ".txt", ".vec"):
        raise BadInput(
            f"{path}: the ending says no format of word vectors; use .bin (word2vec binary), .txt or .vec (text), unpacked"
        )
    read = _binary(path, words) if ending == ".bin" else _text(path, words)
    rows: dict[str, int] = {}
    values: list[np.ndarray] = []
    for word, vector in read:
        if word not in rows:
            if not np.isfinite(vector).all():
                raise BadFile(f"{path}: the vector of {word!r} is not finite; the file is damaged")
            rows[word] = len(values)
            values.append(vector)
    if not values:
        raise BadFile(f"{path}: holds none of the {len(words):,} words of these texts; is it of another language?")
    return WordVectors(path.name, rows, np.stack(values).astype(np.float32))


def _binary(path: Path, words: set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """(word, vector) of each wanted entry: "n width\\n", then n times the word, a space and `width` float32."""
    wanted = {word.encode("utf-8", "surrogatepass") for word in words}
    with path.open("rb") as file:
        head = file.readline(64)
        n, width = _header(head, path)
        size = path.stat().st_size
        if n * (4 * width + 2) > size - len(head):
            raise _too_short(path, n, width)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = len(head)
            for number in range(n):
                space = data.find(b" ", at, at + MAX_WORD)
                if space < 0 or space + 1 + 4 * width > size:
                    raise BadFile(f"{path}: word {number + 1:,} of {n:,} is damaged; fetch the file again")
                # Some writers end each vector with a line break.
                word = data[at:space].lstrip(b"\n")
                at = space + 1 + 4 * width
                if word in wanted:
                    vector = np.frombuffer(data[space + 1 : at], dtype="<f4")
                    yield word.decode("utf-8", "surrogatepass"), vector


def _text(path: Path, words: set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """(word, vector) of each wanted line "word value value …"; a first line "n width" is checked (GloVe has none)."""
    wanted = {word.encode("utf-8", "surrogatepass") for word in words}
    with path.open("rb") as file:
        first = file.readline(MAX_LINE)
        n, width = 0, len(first.split()) - 1
        if width == 1:
            n, width = _header(first, path)
            size = path.stat().st_size
            if n * (2 * width + 1) > size - len(first):  # a value takes a space and a digit at least
                raise _too_short(path, n, width)
        elif not 1 < width <= MAX_WIDTH:
            raise BadFile(f"{path}: does not begin with a word and its values; it is no file of word vectors")
        else:
            file.seek(0)
        number = 0
        while line := file.readline(MAX_LINE):
            word, _, values = line.partition(b" ")
            if not line.strip():
                continue
            number += 1
            if word not in wanted:
                continue
            parts = values.split()
            if len(parts) > width:
                continue  # GloVe's largest file has words with spaces, such as ". . ."
            if len(parts) < width:
                raise BadFile(f"{path}, word {number:,} ({word!r}): {len(parts)} values, expected {width}")
            try:
                vector = np.array([float(value) for value in parts], dtype=np.float32)
            except ValueError:
                raise BadFile(f"{path}, word {number:,} ({word!r}): a value is no number") from None
            yield word.decode("utf-8", "surrogatepass"), vector
        if number < n:
            raise BadFile(f"{path}: its header says {n:,} words, and it holds {number:,}; it is cut short")


def _too_short(path: Path, n: int, width: int) -> BadFile:
    return BadFile(
        f"{path}: its header says {n:,} words of {width} dimensions, which need more than the file's "
        f"{path.stat().st_size:,} bytes; it is cut short or no word2vec file"
    )


def _header(line: bytes, path: Path) -> tuple[int, int]:
    """(words, dimensions) of "3000000 300"."""
    found = re.fullmatch(rb"\s*([0-9]{1,12})\s+([0-9]{1,6})\s*\n", line)
    n, width = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < width <= MAX_WIDTH or n < 1:
        raise BadFile(f"{path}: does not begin with its number of words and dimensions; it is no word2vec file")
    return n, width
