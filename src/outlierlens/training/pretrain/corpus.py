"""Text -> rows of token ids on disk, read once and never held in memory, made once for every recipe that shares them.

    tokens = prepare(recipe, progress=print)
    tokens.train[17]                       # uint16 or uint32 [length], mapped from disk
    tokens.held_out                        # every 1/validation-th text, which was never trained on

Where [CLS] and [SEP] stand is what Puccetti et al. (2022) vary:

`sentences`  every sentence keeps its [CLS] and [SEP]; all are concatenated and cut (the usual `group_texts`).
`split`      SPLIT: [CLS] of every sentence dropped, every [SEP] kept, concatenated, cut to length − 1, one [CLS] in front.
`one-sep`    ONE_SEP: both dropped, concatenated, cut to length − 2, one [CLS] in front and one [SEP] at the end.
`lines`      a sentence per row: [CLS] … [SEP], cut at `length`, padded on the right; else the last, incomplete row is dropped.

The `datasets` library packs a shard at a time, so that a row would end at each shard's end, and keeps lists of 64-bit numbers.
"""

import dataclasses
import hashlib
import html
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outlierlens.checkpoints.samples import folder_being_made
from outlierlens.data.texts import stream_texts
from outlierlens.data.token_texts import nothing_known, special_ids, unknown_id, unknown_note
from outlierlens.errors import BadFile, BadInput, OutlierlensError, need
from outlierlens.models import load
from outlierlens.results.safe_files import read_json, write_text
from outlierlens.training.pretrain.recipe import DataRecipe, Packing, Recipe, TokenizerRecipe

SPECIAL = {
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "byte-bpe": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}
FORMAT = 2
TEXTS_AT_ONCE = 1000
ROWS_AT_ONCE = 8192
HELD_OUT = 2000  # texts kept as text, to measure on
SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"'”’)\]])\s+")
MARKUP = re.compile(r"<[A-Za-z/!][^<>]{0,200}>")
READ_BY_NAME = (".jsonl", ".ndjson", ".csv", ".tsv")  # text whose ending tells how it is read; all else, its content
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Marks:
    """Ids of the special tokens that packing places."""

    cls: int
    sep: int
    pad: int


def pack(sentences: Iterable[list[int]], packing: Packing, marks: Marks, length: int) -> Iterator[list[int]]:
    """Rows of exactly `length` ids from `sentences`, token ids without special tokens; empty sentences are passed over."""
    kept = (sentence for sentence in sentences if sentence)
    if packing == "lines":
        for sentence in kept:
            row = [marks.cls, *sentence[: length - 2], marks.sep]
            yield row + [marks.pad] * (length - len(row))
        return
    before = [] if packing == "sentences" else [marks.cls]
    after = [marks.sep] if packing == "one-sep" else []
    size, buffer = length - len(before) - len(after), list[int]()
    for sentence in kept:
        buffer += [marks.cls] * (not before) + sentence + [marks.sep] * (not after)
        start = 0
        while len(buffer) - start >= size:
            yield [*before, *buffer[start : start + size], *after]
            start += size
        del buffer[:start]


@dataclass(frozen=True)
class Flattening:
    """Which types are replaced by which, and how often: bool and ids over the vocabulary.

    Puccetti et al. (2022) replace 50 % of the frequent tokens by rare ones, without code and without the cut between them. Here
    the fewest types that make up `frequent_mass` of all occurrences are frequent, every other one that occurs is rare.
    """

    frequent: np.ndarray  # bool [vocabulary]
    rare: np.ndarray  # int [type]
    share: float

    @classmethod
    def from_counts(
        cls, counts: np.ndarray, *, share: float, special: Sequence[int], frequent_mass: float = 0.5
    ) -> "Flattening":
        """From occurrences of every id, int [vocabulary]; special ids count as neither frequent nor rare.

        Raises:
            BadInput: no rare type left.
        """
        counts = counts.astype(np.float64)
        counts[list(special)] = 0
        order = np.argsort(-counts, kind="stable")
        mass = np.cumsum(counts[order]) / max(counts.sum(), 1)
        frequent = np.zeros(len(counts), dtype=bool)
        frequent[order[: int(np.searchsorted(mass, frequent_mass)) + 1]] = True
        rare = np.flatnonzero((counts > 0) & ~frequent)
        if not len(rare):
            raise BadInput("no rare token type is left to put in; give more text or a lower frequent_mass")
        return cls(frequent, rare, share)

    def __call__(self, rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """`rows` [row, token] with each frequent occurrence replaced, with probability `share`, by a rare type at random."""
        replaced = self.frequent[rows] & (generator.random(rows.shape) < self.share)
        rows = rows.copy()
        rows[replaced] = self.rare[generator.integers(len(self.rare), size=int(replaced.sum()))]
        return rows


def shuffled(rows: np.ndarray, special: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """`rows` [row, token] with the ordinary tokens of each row in random order among their own places."""
    rows = rows.copy()
    ordinary = ~np.isin(rows, list(special))
    for row, places in zip(rows, ordinary, strict=True):
        row[places] = generator.permutation(row[places])
    return rows


def train_tokenizer(sentences: Iterable[str], recipe: TokenizerRecipe, length: int) -> Any:
    """A BERT-like (WordPiece) or RoBERTa-like (byte-level BPE) tokenizer of `recipe.vocabulary` entries or fewer."""
    tokenizers, transformers = (need(name, "models", "training a tokenizer") for name in ("tokenizers", "transformers"))
    wordpiece, lowercase = recipe.kind == "wordpiece", recipe.lowercase
    if wordpiece:
        made = tokenizers.BertWordPieceTokenizer(lowercase=lowercase)
    else:
        made = tokenizers.ByteLevelBPETokenizer(lowercase=lowercase, add_prefix_space=False)
    special = list(SPECIAL[recipe.kind])
    made.train_from_iterator(sentences, recipe.vocabulary, special_tokens=special, show_progress=False)
    if wordpiece:
        return transformers.BertTokenizerFast(
            tokenizer_object=made._tokenizer, do_lower_case=lowercase, model_max_length=length
        )
    made._tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return transformers.RobertaTokenizerFast(tokenizer_object=made._tokenizer, model_max_length=length)


def load_tokenizer(source: str, *, offline: bool = False) -> Any:
    """The tokenizer in a directory, of a sample or of a hub id, as `models.load` reads it; raises BadInput without a mask."""
    tokenizer: Any = load.load_tokenizer(source, load.LoadOptions(offline=offline))
    if tokenizer.mask_token_id is None:
        raise BadInput(f"{source}: its tokenizer has no mask token; a masked language model needs one")
    return tokenizer


@dataclass(frozen=True)
class PackedTokens:
    """Prepared rows, mapped from disk; `counts` are occurrences of every id in the training rows, int64 [vocabulary]."""

    folder: Path
    tokenizer: Any
    train: np.ndarray
    validation: np.ndarray
    counts: np.ndarray
    held_out: tuple[str, ...]

    @property
    def special(self) -> tuple[int, ...]:
        """Ids that are never masked, replaced or moved."""
        return tuple(sorted(special_ids(self.tokenizer)))


def prepare(recipe: Recipe, *, offline: bool = False, progress: Progress = print) -> PackedTokens:
    """The rows of `recipe`, made if they are not in the cache.

    Raises:
        BadInput: no source, a source that cannot be read, or too little text for one row of each part.
    """
    if not recipe.data.source:
        raise BadInput(
            f"recipe {recipe.name}: names no text; give files or hub ids with --data, or as data.source in the recipe"
        )
    digest = _digest(recipe)
    with folder_being_made("pretrain", f"tokens-{digest[:20]}") as (target, making):
        if making is not None:
            _make(recipe, making, offline, progress)
    return _open(target, recipe.data.length)


def sentences_of(text: str, data: DataRecipe) -> list[str]:
    """The sentences of one text, as the recipe splits and cleans them."""
    if data.strip_markup:
        text = html.unescape(MARKUP.sub(" ", text))
    pieces = SENTENCE_END.split(text) if data.sentences == "punctuation" else [text]
    return [piece for piece in (" ".join(piece.split()) for piece in pieces) if len(piece) >= data.min_characters]


def _make(recipe: Recipe, folder: Path, offline: bool, progress: Progress) -> None:
    data = recipe.data
    every = max(2, round(1 / data.validation))

    def texts(validation: bool) -> Iterator[str]:
        read = itertools.chain.from_iterable(
            stream_texts(source, column=data.text_column or None, offline=offline) for source in data.source
        )
        return (text for number, text in enumerate(read) if (number % every == 0) == validation)

    if recipe.tokenizer.source == "train":
        progress("training the tokenizer")
        pieces = (piece for text in texts(False) for piece in sentences_of(text, data))
        train_tokenizer(pieces, recipe.tokenizer, data.length).save_pretrained(folder / "tokenizer")
    else:
        load_tokenizer(recipe.tokenizer.source, offline=offline).save_pretrained(folder / "tokenizer")
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    marks = Marks(*(_special(tokenizer, name) for name in ("cls", "sep", "pad")))
    for part, validation in (("train", False), ("validation", True)):
        progress(f"reading the {part} text into rows of {data.length} tokens")
        ids = _encoded(texts(validation), tokenizer, data)
        _write_rows(folder / f"{part}.bin", pack(ids, data.packing, marks, data.length), len(tokenizer), data.length)
    special = tuple(sorted(special_ids(tokenizer)))
    if data.flatten or data.shuffle:
        progress("changing the rows as the recipe says")
        _change(folder, data, special, len(tokenizer))
    counts = _count(_rows(folder / "train.bin", len(tokenizer), data.length), len(tokenizer))
    if (unknown := unknown_id(tokenizer)) is not None:
        n = int(counts.sum() - counts[list(special)].sum())
        if n and counts[unknown] == n:
            raise BadInput(nothing_known(recipe.name, n))
        if note := unknown_note(int(counts[unknown]), n):
            progress(note)
    np.save(folder / "counts.npy", counts)
    held_out = [" ".join(sentences_of(text, data)) for text in itertools.islice(texts(True), HELD_OUT)]
    write_text(folder / "held_out.json", json.dumps([text for text in held_out if text], ensure_ascii=False))
    write_text(folder / "recipe.toml", recipe.to_toml())


def _encoded(texts: Iterable[str], tokenizer: Any, data: DataRecipe) -> Iterator[list[int]]:
    """Token ids of every sentence, without special tokens, in order."""
    texts = iter(texts)
    while some := list(itertools.islice(texts, TEXTS_AT_ONCE)):
        pieces = [piece for text in some for piece in sentences_of(text, data)]
        if pieces:
            yield from tokenizer(pieces, add_special_tokens=False, verbose=False)["input_ids"]


def _write_rows(path: Path, rows: Iterator[list[int]], n_vocabulary: int, length: int) -> None:
    """Append rows to a file of plain numbers: how many there will be is known last, and a memory map of a full disk kills."""
    with path.open("wb") as file:
        while some := list(itertools.islice(rows, ROWS_AT_ONCE)):
            file.write(np.array(some, dtype=_kind(n_vocabulary)).tobytes())
        n_bytes = file.tell()
    if n_bytes == 0:
        raise BadInput(
            f"the {path.stem} text does not fill one row of {length} tokens; give more text, shorter rows or another "
            f"share for validation"
        )


def _kind(n_vocabulary: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if n_vocabulary <= 2**16 else np.uint32


def _rows(path: Path, n_vocabulary: int, length: int, mode: Literal["r", "r+"] = "r") -> np.ndarray:
    """The rows of a file, uint [row, token], mapped from disk."""
    return np.memmap(path, dtype=_kind(n_vocabulary), mode=mode).reshape(-1, length)


def _change(folder: Path, data: DataRecipe, special: tuple[int, ...], n_vocabulary: int) -> None:
    flattening = None
    if data.flatten:
        counts = _count(_rows(folder / "train.bin", n_vocabulary, data.length), n_vocabulary)
        flattening = Flattening.from_counts(
            counts, share=data.flatten, special=special, frequent_mass=data.frequent_mass
        )
    for number, part in enumerate(("train", "validation")):
        generator = np.random.Generator(np.random.Philox(key=number))
        rows: Any = _rows(folder / f"{part}.bin", n_vocabulary, data.length, "r+")
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = np.asarray(rows[start : start + ROWS_AT_ONCE])
            if flattening is not None:
                some = flattening(some, generator)
            rows[start : start + ROWS_AT_ONCE] = shuffled(some, special, generator) if data.shuffle else some
        rows.flush()


def _count(rows: np.ndarray, n_vocabulary: int) -> np.ndarray:
    counts = np.zeros(n_vocabulary, dtype=np.int64)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        counts += np.bincount(rows[start : start + ROWS_AT_ONCE].ravel(), minlength=n_vocabulary)
    return counts


def _open(folder: Path, length: int) -> PackedTokens:
    try:
        tokenizer = load_tokenizer(str(folder / "tokenizer"))
        train, validation = (_rows(folder / f"{part}.bin", len(tokenizer), length) for part in ("train", "validation"))
        counts = np.load(folder / "counts.npy", allow_pickle=False)
        if counts.sum() != train.size:
            raise ValueError("other rows than were counted")
        return PackedTokens(
            folder, tokenizer, train, validation, counts, tuple(read_json(folder / "held_out.json", a=list))
        )
    except (OSError, ValueError, EOFError, OutlierlensError) as error:
        raise BadFile(
            f"{folder}: prepared rows are damaged ({error}); delete the folder to have them made again"
        ) from None


def _special(tokenizer: Any, name: str) -> int:
    found = getattr(tokenizer, f"{name}_token_id")
    if found is None:
        raise BadInput(f"this tokenizer has no {name} token, which the rows of a masked language model need")
    return int(found)


def _digest(recipe: Recipe) -> str:
    """SHA-256 over what the rows depend on: contents of files, not their names."""
    digest = hashlib.sha256(f"{FORMAT} ".encode())
    described = {"data": dataclasses.asdict(recipe.data), "tokenizer": dataclasses.asdict(recipe.tokenizer)}
    del described["data"]["source"]
    digest.update(json.dumps(described, sort_keys=True).encode())
    for source in recipe.data.source:
        path = Path(source)
        if path.is_file():
            if path.suffix.lower() in READ_BY_NAME:
                digest.update(path.suffix.lower().encode())
            with path.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        else:
            digest.update(source.encode())
    reused = Path(recipe.tokenizer.source)
    for file in sorted(reused.glob("*")) if reused.is_dir() else ():
        if file.name in ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"):
            digest.update(file.read_bytes())
    return digest.hexdigest()
