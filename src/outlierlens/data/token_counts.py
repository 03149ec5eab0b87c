"""How often every token of a vocabulary occurs in a corpus: read, add up, write.

    counts = read_counts("counts.parquet", tokenizer)                  # that `write_counts` wrote, or as published
    counts = read_counts("wiki.parquet,books.parquet", tokenizer)      # added up
    counts.frequency(special=False)                                    # float64 [vocabulary], occurrences
    write_counts(counts + others, "both.parquet")

Ours is a parquet file with the columns id, token, count and special; it is only read with the vocabulary it was made with.
Published counts (columns token and count, keyed by the text of tokens) are mapped to ids. A text that several ids decode to
(pieces of characters that are all U+FFFD; ` .` beside `.` where spaces before punctuation were cleaned away) does not say whose
count it is: it is shared evenly among them, and they are named.
"""

import functools
import json
import operator
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens import __version__
from outlierlens.data.tables import parquet_of
from outlierlens.data.token_texts import (
    LARGEST_VOCABULARY,
    added_around,
    kind_of,
    texts_of,
    vocabulary_digest,
    vocabulary_of,
)
from outlierlens.errors import BadFile, BadInput, need
from outlierlens.results.safe_files import write_bytes

FORMAT = 1
MAX_BYTES = 512 * 2**20  # of a file of counts, packed or unpacked: 16 million tokens take less
MOST = 10**15  # occurrences of one token that are believed; sums of a whole vocabulary then fit into 64 bits
METADATA = b"outlierlens"


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
            found.append(replace(by_id(content, tokenizer, file.name), source=str(file)))
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
    return as_released(keyed, tokenizer, str(path))


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
    columns = {"id": np.arange(len(counts.tokens)), "token": list(counts.tokens)}
    table = arrow.table(columns | {"count": counts.counts, "special": counts.special})
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
            f"{file}: {about.num_rows:,} rows of {unpacked:,} bytes are not a vocabulary (at most {LARGEST_VOCABULARY:,})"
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


# --- counts by text, as they were published --------------------------------------------------------------------------

# Names under which vocabularies keep the special token of a role, as a tokenizer's attributes call it.
ROLES = {
    "cls_token_id": ("[CLS]", "<s>", "<cls>"),
    "sep_token_id": ("[SEP]", "</s>", "<sep>"),
    "unk_token_id": ("[UNK]", "<unk>"),
    "mask_token_id": ("[MASK]", "<mask>"),
    "pad_token_id": ("[PAD]", "<pad>"),
}
STAND_INS = {"cls_token_id": "bos_token_id", "sep_token_id": "eos_token_id"}
# What decoding in transformers 4 did to every text; counts made with it hold no key that begins so.
CLEANED = tuple((" " + text, text) for text in (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"))
LEAST_SHARE = 0.5  # of the counted tokens that must find an id: below, this is another language's or kind's vocabulary


def by_id(keyed: Mapping[str, int], tokenizer: Any, source: str) -> TokenCounts:
    """`keyed` by the ids of `tokenizer`: by the text of a token, special tokens by their role.

    Raises:
        BadInput: the vocabularies are of different kinds, or most counted tokens have no id.
    """
    tokens = vocabulary_of(tokenizer)
    _same_kind(keyed, tokens, source)
    ids = _ids_by_text(keyed, tokens, tokenizer)
    counts = np.zeros(len(tokens), dtype=np.int64)
    special = np.zeros(len(tokens), dtype=np.int64)
    around = added_around(tokenizer) > 0
    shared: dict[str, list[int]] = {}
    lost, lost_special, total = 0, [], 0
    roles = _role_of(tokenizer)
    for text, count in keyed.items():
        if text in roles:
            number = roles[text]
            if number is None:
                lost_special.append(text)
            else:
                (special if around[number] else counts)[number] += count
            continue
        total += count
        found = ids.get(text, [])
        if not found:
            lost += count
        if len(found) > 1:
            shared[text] = found
        for place, number in enumerate(found):
            counts[number] += count // len(found) + (place < count % len(found))
    if total and lost > (1 - LEAST_SHARE) * total:
        raise BadInput(
            f"{source}: {lost / total:.0%} of its counted tokens are not in this tokenizer's vocabulary of {len(tokens):,}; "
            f"count a corpus with this tokenizer (--counts CORPUS), or give the counts of its vocabulary"
        )
    unmatched = [text for text in keyed if text not in roles and text not in ids]
    own = [n for n, token in enumerate(tokens) if token and n not in set(tokenizer.all_special_ids)]
    partners = {number for text in keyed for number in ids.get(text, [])}
    notes = [
        f"{source}: keyed by text; {len(keyed) - len(unmatched) - len(lost_special):,} of {len(keyed):,} keys and "
        f"{_percent(total - lost, total)} of the counted tokens have an id here; "
        f"{sum(n not in partners for n in own):,} of {len(own):,} ordinary ids have no key and count 0"
    ]
    if lost_special:
        notes.append(f"{source}: no token of this tokenizer has the role of {', '.join(sorted(lost_special))}")
    if shared:
        notes.append(_shared_note(source, shared, keyed, total))
    ambiguous = tuple(sorted({n for some in shared.values() for n in some}))
    return TokenCounts(counts, special, tokens, _n_texts(keyed), source, tuple(notes), ambiguous)


def as_released(keyed: Mapping[str, int], tokenizer: Any, source: str) -> TokenCounts:
    """Counts by id as the released code maps them: `tokenizer(text).input_ids[1]`, the last text of an id wins.

    Every `##x` is tokenised as two '#' and more, so word pieces lose their counts and '#' gets the last of theirs. Texts
    are taken in the order of `keyed`.

    Raises:
        BadInput: the tokenizer puts no token in front of a text, so that the second id is not a text's first.
    """
    tokens = vocabulary_of(tokenizer)
    around = added_around(tokenizer) > 0
    texts = list(keyed)
    encoded = tokenizer(texts, verbose=False)["input_ids"] if texts else []
    if any(len(ids) < 2 or not around[ids[0]] for ids in encoded):
        raise BadInput(
            "the released mapping takes the second id of every text, behind a special token; this tokenizer puts none in "
            "front; leave out --paper-compat"
        )
    last = {ids[1]: keyed[text] for text, ids in zip(texts, encoded, strict=True)}
    counts = np.zeros(len(tokens), dtype=np.int64)
    counts[list(last)] = list(last.values())
    zeroed = sum(keyed.values()) - int(counts.sum())
    note = (
        f"{source}: mapped as in the released code: {len(texts) - len(last):,} of {len(texts):,} keys "
        f"({_percent(zeroed, sum(keyed.values()))} of the counted tokens) are lost to others that begin alike"
    )
    inside, put = np.where(around, 0, counts), np.where(around, counts, 0)
    return TokenCounts(inside, put, tokens, _n_texts(keyed), source, (note,))


def _n_texts(keyed: Mapping[str, int]) -> int:
    return max((keyed[name] for name in ROLES["cls_token_id"] if name in keyed), default=0)


def _ids_by_text(keyed: Mapping[str, int], tokens: tuple[str, ...], tokenizer: Any) -> dict[str, list[int]]:
    """The ids that decode to each text, special ones left out."""
    cleaned = dict(CLEANED) if not any(text in keyed for text, _ in CLEANED) else {}
    specials = set(tokenizer.all_special_ids)
    ids: dict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(texts_of(tokens)):
        if text and number not in specials:
            ids[cleaned.get(text, text)].append(number)
    return {text: found for text, found in ids.items() if text in keyed}


def _role_of(tokenizer: Any) -> dict[str, int | None]:
    """The id here of every special token's usual name; what stands around texts counts only where it is put around them."""
    around = added_around(tokenizer)
    roles: dict[str, int | None] = {}
    for attribute, names in ROLES.items():
        number = getattr(tokenizer, attribute, None)
        if attribute in STAND_INS:
            put = (number, getattr(tokenizer, STAND_INS[attribute], None))
            number = next((one for one in put if one is not None and around[one]), None)
        roles.update(dict.fromkeys(names, number))
    return roles


def _same_kind(keyed: Mapping[str, int], tokens: tuple[str, ...], source: str) -> None:
    """Raises BadInput where a key `s` is a word's beginning and this vocabulary's `s` its continuation, or the reverse."""
    kinds = (kind_of(tuple(text.replace(" ", "▁") for text in keyed)), kind_of(tokens))
    theirs, ours = ("spaces" if kind in ("sentencepiece", "byte-level") else kind for kind in kinds)
    if "plain" not in (theirs, ours) and theirs != ours:
        marks = {"wordpiece": "'##' (BERT-like)", "spaces": "spaces (RoBERTa-like)"}
        raise BadInput(
            f"{source}: its keys mark parts of words with {marks[theirs]}, this tokenizer with {marks[ours]}: equal texts "
            f"mean different tokens; count a corpus with this tokenizer (--counts CORPUS)"
        )


def _shared_note(source: str, shared: dict[str, list[int]], keyed: Mapping[str, int], total: int) -> str:
    most = sorted(shared, key=lambda text: -keyed[text])[:5]
    named = ", ".join(f"{text!r} ({len(shared[text]):,} ids)" for text in most)
    mass = sum(keyed[text] for text in shared)
    return (
        f"{source}: {len(shared):,} keys stand for several ids ({named}{', …' if len(shared) > 5 else ''}); their counts, "
        f"{_percent(mass, total)} of the counted tokens, are shared evenly"
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"
