"""Text -> rows of token ids on disk, read once and never held in memory, made once for every recipe that shares them.

    tokens = prepare(recipe, progress=print)
    tokens.train[17]                       # uint16 or uint32 [length], mapped from disk
    tokens.held_out                        # texts that were never trained on

Every 1/validation-th text is held out. The folder in the cache is named by what the rows depend on: the content of the
files (or the hub id) and the recipe's `data` and `tokenizer` sections. It appears whole or not at all.

Change a corpus' token frequencies or order and nothing else: rows keep their length, special tokens their places.

    flattened = Flattening.from_counts(counts, share=0.5, special=(0, 1, 2, 3, 4))
    rows = flattened(rows, generator)       # half of the frequent occurrences are now rare tokens
    rows = shuffled(rows, special, generator)

Puccetti et al. (2022) report a corpus in which 50 % of the frequent tokens are replaced by rare ones; no code for it was
released and the paper's cut between frequent and rare is not known, so it is a parameter here. Frequent are the fewest
types that together make up `frequent_mass` of all occurrences; every other type that occurs is rare.

Train a tokenizer or reuse one.

tokenizer = train_tokenizer(sentences, TokenizerRecipe(vocabulary=8192), length=64)
tokenizer = load_tokenizer("minilm-l6")              # a directory, sample or hub id
"""

import dataclasses
import hashlib
import html
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.checkpoints.samples.cache import folder_being_made
from outlierlens.data.texts import stream_texts
from outlierlens.data.token_texts import nothing_known, special_ids, unknown_id, unknown_note
from outlierlens.errors import BadFile, BadInput, need
from outlierlens.results.safe_files import read_json, write_text
from outlierlens.training.pretrain.packing import Marks, pack
from outlierlens.training.pretrain.recipe import DataRecipe, Recipe, TokenizerRecipe

SPECIAL = {
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "byte-bpe": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}
LARGEST = 1_000_000
FORMAT = 1
TEXTS_AT_ONCE = 1000
ROWS_AT_ONCE = 8192
HELD_OUT = 2000  # texts kept as text, to measure on
SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"'”’)\]])\s+")
MARKUP = re.compile(r"<[A-Za-z/!][^<>]{0,200}>")
READ_BY_NAME = (".jsonl", ".ndjson", ".csv", ".tsv")  # text whose ending tells how it is read; all else, its content
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Flattening:
    """Which types are replaced by which, and how often: bool and ids over the vocabulary."""

    frequent: np.ndarray  # bool [vocabulary]
    rare: np.ndarray  # int [type]
    share: float

    @classmethod
    def from_counts(
        cls, counts: np.ndarray, *, share: float, special: Sequence[int], frequent_mass: float = 0.5
    ) -> "Flattening":
        """From occurrences of every id, int [vocabulary]; special ids count as neither frequent nor rare.

        Raises:
            BadInput: shares outside (0, 1], or no rare type left.
        """
        if not 0 < share <= 1 or not 0 < frequent_mass < 1:
            raise BadInput(f"share is {share} and frequent_mass {frequent_mass}; they must lie in (0, 1] and (0, 1)")
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

    def expected(self, counts: np.ndarray) -> np.ndarray:
        """Occurrences of every id to expect after the replacement, float [vocabulary]."""
        moved = np.where(self.frequent, counts * self.share, 0.0)
        after = counts - moved
        after[self.rare] += moved.sum() / len(self.rare)
        return after


def shuffled(rows: np.ndarray, special: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """`rows` [row, token] with the ordinary tokens of each row in random order among their own places."""
    rows = rows.copy()
    ordinary = ~np.isin(rows, list(special))
    for row, places in zip(rows, ordinary, strict=True):
        row[places] = generator.permutation(row[places])
    return rows


def train_tokenizer(sentences: Iterable[str], recipe: TokenizerRecipe, length: int) -> Any:
    """A BERT-like (WordPiece) or RoBERTa-like (byte-level BPE) tokenizer of `recipe.vocabulary` entries or fewer.

    Raises:
        BadInput: a vocabulary that cannot hold even the characters.
    """
    if not 100 <= recipe.vocabulary <= LARGEST:
        raise BadInput(f"tokenizer.vocabulary is {recipe.vocabulary:,}; it must lie between 100 and {LARGEST:,}")
    tokenizers = need("tokenizers", "models", "training a tokenizer")
    transformers = need("transformers", "models", "training a tokenizer")
    special = list(SPECIAL[recipe.kind])
    if recipe.kind == "wordpiece":
        made = tokenizers.BertWordPieceTokenizer(lowercase=recipe.lowercase)
        made.train_from_iterator(sentences, recipe.vocabulary, special_tokens=special, show_progress=False)
        return transformers.BertTokenizerFast(
            tokenizer_object=made._tokenizer, do_lower_case=recipe.lowercase, model_max_length=length
        )
    made = tokenizers.ByteLevelBPETokenizer(lowercase=recipe.lowercase, add_prefix_space=False)
    made.train_from_iterator(sentences, recipe.vocabulary, special_tokens=special, show_progress=False)
    made._tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return transformers.RobertaTokenizerFast(tokenizer_object=made._tokenizer, model_max_length=length)


def load_tokenizer(source: str, *, offline: bool = False) -> Any:
    """The tokenizer in a directory, of a sample or of a hub id; raises BadInput when it is none of these or lacks a mask."""
    transformers = need("transformers", "models", "reading a tokenizer")
    from outlierlens.models.folder import model_folder

    folder = model_folder(source, offline=offline, weights=False) or source
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=offline)
    # KeyError: a file of tokens that is JSON of something else.
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{source}: no tokenizer there ({' '.join(str(error).split())[:200]})") from None
    if tokenizer.mask_token_id is None:
        raise BadInput(f"{source}: its tokenizer has no mask token; a masked language model needs one")
    return tokenizer


@dataclass(frozen=True)
class Tokens:
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


def prepare(recipe: Recipe, *, offline: bool = False, progress: Progress = print) -> Tokens:
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
    return _open(target)


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
        _write_rows(folder / f"{part}.npy", pack(ids, data.packing, marks, data.length), len(tokenizer), data.length)
    special = tuple(sorted(special_ids(tokenizer)))
    if data.flatten or data.shuffle:
        progress("changing the rows as the recipe says")
        _change(folder, data, special, len(tokenizer))
    counts = _count(np.load(folder / "train.npy", mmap_mode="r"), len(tokenizer))
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
    write_text(folder / "meta.json", json.dumps({"format": FORMAT, "data": dataclasses.asdict(data)}))


def _encoded(texts: Iterable[str], tokenizer: Any, data: DataRecipe) -> Iterator[list[int]]:
    """Token ids of every sentence, without special tokens, in order."""
    texts = iter(texts)
    while some := list(itertools.islice(texts, TEXTS_AT_ONCE)):
        pieces = [piece for text in some for piece in sentences_of(text, data)]
        if pieces:
            yield from tokenizer(pieces, add_special_tokens=False, verbose=False)["input_ids"]


def _write_rows(path: Path, rows: Iterator[list[int]], n_vocabulary: int, length: int) -> None:
    """Append rows to a raw file, then give it NumPy's header in front: the number of rows is known last."""
    kind = np.dtype(np.uint16 if n_vocabulary <= 2**16 else np.uint32)
    raw = path.with_suffix(".raw")
    n_rows = 0
    with raw.open("wb") as file:
        while some := list(itertools.islice(rows, ROWS_AT_ONCE)):
            file.write(np.array(some, dtype=kind).tobytes())
            n_rows += len(some)
    if n_rows == 0:
        raw.unlink()
        raise BadInput(
            f"the {path.stem} text does not fill one row of {length} tokens; give more text, shorter rows or another "
            f"share for validation"
        )
    about = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (n_rows, length)}
    with (
        path.open("wb") as stored,
        raw.open("rb") as source,
    ):  # through a memory map, a full disk would kill the process
        np.lib.format.write_array_header_1_0(stored, about)
        shutil.copyfileobj(source, stored)
    raw.unlink()


def _change(folder: Path, data: DataRecipe, special: tuple[int, ...], n_vocabulary: int) -> None:
    flattening = None
    if data.flatten:
        counts = _count(np.load(folder / "train.npy", mmap_mode="r"), n_vocabulary)
        flattening = Flattening.from_counts(
            counts, share=data.flatten, special=special, frequent_mass=data.frequent_mass
        )
    for number, part in enumerate(("train", "validation")):
        generator = np.random.Generator(np.random.Philox(key=number))
        rows = np.load(folder / f"{part}.npy", mmap_mode="r+")
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


def _open(folder: Path) -> Tokens:
    try:
        texts = read_json(folder / "held_out.json", a=list)
        return Tokens(
            folder=folder,
            tokenizer=load_tokenizer(str(folder / "tokenizer")),
            train=np.load(folder / "train.npy", mmap_mode="r", allow_pickle=False),
            validation=np.load(folder / "validation.npy", mmap_mode="r", allow_pickle=False),
            counts=np.load(folder / "counts.npy", allow_pickle=False),
            held_out=tuple(texts),
        )
    except (OSError, ValueError, EOFError, BadInput, BadFile) as error:
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
