"""How often every token of a vocabulary occurs in a corpus: read, add up, write.

    counts = read_counts("counts.parquet", tokenizer)                  # that `write_counts` wrote, or as published
    counts = read_counts("wiki.parquet,books.parquet", tokenizer)      # added up
    counts.frequency(special=False)                                    # float64 [vocabulary], occurrences
    write_counts(counts + others, "both.parquet")

Ours is a parquet file with the columns id, token, count and special; it is only read with the vocabulary it was made with.
Published counts (columns token and count, keyed by the text of tokens) are mapped to ids.
"""

import functools
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens import __version__
from outlierlens.data.published_counts import Mapped, as_released, by_id
from outlierlens.data.tables import parquet_of
from outlierlens.data.token_texts import LARGEST_VOCABULARY, texts_of, vocabulary_digest, vocabulary_of
from outlierlens.errors import BadFile, BadInput, need
from outlierlens.results.safe_files import write_bytes

FORMAT = 1
MAX_BYTES = 512 * 2**20  # of a file of counts, packed or unpacked: 16 million tokens take less
MOST = 10**15  # occurrences of one token that are believed; sums of a whole vocabulary then fit into 64 bits
METADATA = b"outlierlens"
COLUMNS = ("id", "token", "count", "special")


@dataclass(frozen=True)
class TokenCounts:
    """Occurrences of every id of a vocabulary.

    Attributes:
        counts: int64 [vocabulary], in the texts themselves.
        special: int64 [vocabulary], of the special tokens that the tokenizer would add around the texts.
        tokens: the vocabulary's strings, by id; "" for an id without one.
        n_texts: texts counted; 0 where that is not known.
        source: what was counted.
        notes: what a reader of these numbers should know.
        ambiguous: ids whose counts a published file does not tell apart; they share a key's count evenly.
    """

    counts: np.ndarray
    special: np.ndarray
    tokens: tuple[str, ...]
    n_texts: int
    source: str
    notes: tuple[str, ...] = ()
    ambiguous: tuple[int, ...] = ()

    @property
    def n_tokens(self) -> int:
        """Occurrences in the texts themselves."""
        return int(self.counts.sum())

    @property
    def n_types(self) -> int:
        """Ids that occur in the texts themselves."""
        return int((self.counts > 0).sum())

    def frequency(self, special: bool) -> np.ndarray:
        """Occurrences (not shares) of every id, float64 [vocabulary]; `special` adds those put around the texts."""
        return (self.counts + self.special if special else self.counts).astype(np.float64)

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        """Both corpora together; raises BadInput where the vocabularies differ."""
        if self.tokens != other.tokens:
            raise BadInput(
                f"{self.source} and {other.source} were counted with different vocabularies ({len(self.tokens):,} and "
                f"{len(other.tokens):,} tokens); count both with one tokenizer"
            )
        return TokenCounts(
            self.counts + other.counts,
            self.special + other.special,
            self.tokens,
            self.n_texts + other.n_texts,
            f"{self.source}, {other.source}",
            tuple(dict.fromkeys((*self.notes, *other.notes))),
            tuple(sorted({*self.ambiguous, *other.ambiguous})),
        )


def read_counts(path: str | Path, tokenizer: Any) -> TokenCounts:
    """Counts by the ids of `tokenizer`; several files, joined with commas, are added up.

    Raises:
        BadInput: no such file, or counts of another vocabulary.
        BadFile: not a file of counts, a column that is missing, counts that are negative or beyond belief.
    """
    tokens = vocabulary_of(tokenizer)
    found: list[TokenCounts] = []
    for file in _files(path):
        content = _read(file)
        if isinstance(content, TokenCounts):
            if content.tokens != tokens:
                raise BadInput(
                    f"{file} was counted with another vocabulary ({len(content.tokens):,} tokens, this tokenizer has "
                    f"{len(tokens):,}); count with this tokenizer (--counts CORPUS)"
                )
            found.append(content)
        else:
            found.append(_of(by_id(content, tokenizer, file.name), tokens, str(file)))
    return functools.reduce(operator.add, found)


def holds_counts(path: str | Path) -> bool:
    """Whether `path`, files joined with commas, names token counts, not texts: .parquet with their columns."""
    return all(file.suffix.lower() == ".parquet" and _counting(file) for file in _named(path))


def _counting(file: Path) -> bool:
    if not file.is_file():
        return True  # which reading them tells
    with parquet_of(file, BadFile, "a parquet file of token counts") as parquet:
        return {"token", "count"} <= {*parquet.read_schema(file).names}


def compat_counts(path: str | Path, tokenizer: Any) -> TokenCounts:
    """Counts as the released code of Puccetti et al. (2022) brings them to ids, with the word pieces it loses.

    The keys of all files are added up first, in their order, then mapped by `tokenizer(text).input_ids[1]`. Our own files
    are keyed by text first, the most frequent before the others, as that code writes them.

    Raises:
        BadInput, BadFile: as `read_counts`; and where the tokenizer puts no special token in front of a text.
    """
    keyed: dict[str, int] = {}
    for file in _files(path):
        content = _read(file)
        for text, count in (_by_text(content) if isinstance(content, TokenCounts) else content).items():
            keyed[text] = keyed.get(text, 0) + count
    return _of(as_released(keyed, tokenizer, str(path)), vocabulary_of(tokenizer), str(path))


def write_counts(counts: TokenCounts, path: str | Path) -> Path:
    """Write `counts` to `path` (parquet), whole or not at all."""
    arrow, parquet = (need(name, "models", "writing token counts") for name in ("pyarrow", "pyarrow.parquet"))
    about = {
        "kind": "token counts",
        "format_version": FORMAT,
        "outlierlens": __version__,
        "vocabulary": vocabulary_digest(counts.tokens),
        "n_texts": counts.n_texts,
        "source": counts.source,
        "notes": list(counts.notes),
        "ambiguous": list(counts.ambiguous),
    }
    tokens = [token.encode() for token in counts.tokens]
    ends = np.cumsum([0, *map(len, tokens)], dtype=np.int32)

    def column(kind: Any, *buffers: Any) -> Any:
        # arrow.array() would import pandas, which takes longer than counting some ten million characters.
        return arrow.Array.from_buffers(kind, len(tokens), [None, *map(arrow.py_buffer, buffers)])

    whole = (np.ascontiguousarray(one, np.int64) for one in (np.arange(len(tokens)), counts.counts, counts.special))
    number, count, special = (column(arrow.int64(), one) for one in whole)
    token = column(arrow.string(), ends, b"".join(tokens))
    table = arrow.Table.from_arrays([number, token, count, special], names=list(COLUMNS))
    table = table.replace_schema_metadata({METADATA: json.dumps(about).encode()})
    buffer = BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return write_bytes(Path(path), buffer.getvalue())


def _named(path: str | Path) -> list[Path]:
    return [Path(path)] if Path(path).is_file() else [Path(part.strip()) for part in str(path).split(",")]


def _files(path: str | Path) -> list[Path]:
    files = _named(path)
    for file in files:
        if not file.is_file():
            raise BadInput(
                f"{file}: no such file of token counts; name one, or a corpus to count (text files, a folder, a hub id)"
            )
        if file.stat().st_size > MAX_BYTES:
            raise BadFile(f"{file}: {file.stat().st_size:,} bytes is too large for token counts")
    return files


def _read(file: Path) -> "TokenCounts | dict[str, int]":
    """Our own counts, or published ones by text."""
    with parquet_of(file, BadFile, "a parquet file of token counts") as parquet:
        table = _table(file, parquet)
        lists = {name: table[name].to_pylist() for name in ("id", "token") if name in table.column_names}
    metadata = (table.schema.metadata or {}).get(METADATA)
    return _published(file, table, lists) if metadata is None else _own(file, table, lists, metadata)


def _published(file: Path, table: Any, lists: dict[str, list[Any]]) -> dict[str, int]:
    if missing := {"token", "count"} - {*table.column_names}:
        raise BadFile(
            f"{file}: no column {min(missing)!r}; its columns are {', '.join(table.column_names)}, and counts have token "
            "and count"
        )
    texts = lists["token"]
    if not all(isinstance(text, str) for text in texts):
        raise BadFile(f"{file}: its column 'token' holds more than texts; give every row the text of a token")
    counts = _whole_numbers(file, table, "count").tolist()
    if not texts:
        raise BadFile(f"{file}: holds no counts")
    keyed: dict[str, int] = {}
    for text, count in zip(texts, counts, strict=True):
        keyed[text] = keyed.get(text, 0) + count
    return keyed


def _own(file: Path, table: Any, lists: dict[str, list[Any]], metadata: bytes) -> TokenCounts:
    try:
        about = json.loads(metadata)
        version = about["format_version"]
        if version != FORMAT:
            raise BadFile(
                f"{file}: token counts of format {version}, this version reads {FORMAT}; count again or upgrade"
            )
        tokens = tuple(lists["token"])
        found = TokenCounts(
            _whole_numbers(file, table, "count"),
            _whole_numbers(file, table, "special"),
            tokens,
            int(about["n_texts"]),
            str(about["source"]),
            tuple(map(str, about["notes"])),
            tuple(map(int, about["ambiguous"])),
        )
        if lists["id"] != list(range(len(tokens))) or vocabulary_digest(tokens) != about["vocabulary"]:
            raise BadFile(f"{file}: its ids and tokens are not those it was written with; count again")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadFile(f"{file}: damaged token counts ({type(error).__name__}: {error}); count again") from None
    return found


def _table(file: Path, parquet: Any) -> Any:
    opened = parquet.ParquetFile(file)
    about = opened.metadata
    unpacked = sum(about.row_group(n).total_byte_size for n in range(about.num_row_groups))
    if about.num_rows > LARGEST_VOCABULARY or unpacked > MAX_BYTES:
        raise BadFile(
            f"{file}: {about.num_rows:,} rows of {unpacked:,} bytes are no vocabulary (at most {LARGEST_VOCABULARY:,})"
        )
    table = opened.read()
    table.validate(full=True)  # that texts are UTF-8 too
    return table


def _whole_numbers(file: Path, table: Any, name: str) -> np.ndarray:
    """A column as int64; raises BadFile for anything that is no count."""
    column = table[name]
    if not str(column.type).startswith(("int", "uint")) or column.null_count:
        raise BadFile(f"{file}: column {name!r} is {column.type} with {column.null_count} gaps, not whole numbers")
    counts = column.to_numpy()
    if len(counts) and counts.min() < 0:
        row = int(counts.argmin())
        raise BadFile(f"{file}, row {row}: a token that occurs {counts[row]:,} times; counts are 0 or more")
    if len(counts) and counts.max() > MOST:
        raise BadFile(f"{file}: a token that occurs {counts.max():,} times is not believed; at most {MOST:,}")
    return np.asarray(counts, np.int64)


def _by_text(counts: TokenCounts) -> Mapping[str, int]:
    """Occurrences by decoded text, special tokens counted, the most frequent first; ties by id."""
    keyed: dict[str, int] = {}
    for text, count in zip(texts_of(counts.tokens), (counts.counts + counts.special).tolist(), strict=True):
        if count:
            keyed[text] = keyed.get(text, 0) + count
    return dict(sorted(keyed.items(), key=lambda item: -item[1]))


def _of(mapped: Mapped, tokens: tuple[str, ...], source: str) -> TokenCounts:
    return TokenCounts(mapped.counts, mapped.special, tokens, mapped.n_texts, source, mapped.notes, mapped.ambiguous)
