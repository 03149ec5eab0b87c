"""How a sentence becomes one vector: the mean over its tokens, one of them, or the model's own way.

pooling = Pooling()                                  # mean, special tokens left out
pooling = own_pooling("minilm-l6")                   # what 1_Pooling/config.json beside the model says
vectors = sentence_vectors(loaded, texts, pooling, options)

Word vectors that know no context, from a word2vec file: text (.txt, .vec; GloVe's too) or binary (.bin).

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
from typing import Any

import numpy as np

from outlierlens.checkpoints.base import is_too_long
from outlierlens.errors import BadFile, BadInput, Offline, OutlierlensError, need
from outlierlens.models.folder import model_folder
from outlierlens.models.load import LoadedModel, LoadOptions
from outlierlens.models.token_rows import input_table, refuse_unknown
from outlierlens.results.json_toml import read_json
from outlierlens.vectors.read import ReadOptions, Tokens, Vectors, gather, tokenise

MODES = ("mean", "mean_sqrt_len", "first", "last")
MAX_CONFIG = 2**20  # bytes
MAX_LENGTH = 128
TEXTS_AT_ONCE = 2048
# sentence-transformers' words for what a sentence's vector is: the mode of one file format, the flag of the older one.
THEIRS = {
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "mean_sqrt_len_tokens": ("mean_sqrt_len", "pooling_mode_mean_sqrt_len_tokens"),
    "cls": ("first", "pooling_mode_cls_token"),
    "lasttoken": ("last", "pooling_mode_lasttoken"),
    "max": ("", "pooling_mode_max_tokens"),
    "weightedmean": ("", "pooling_mode_weightedmean_tokens"),
}
MAX_WORD = 4096  # bytes; longer ones are no words
MAX_WIDTH = 65_536
MAX_LINE = 32 * MAX_WIDTH + MAX_WORD
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Pooling:
    """One vector per sentence.

    Attributes:
        mode: "mean" over tokens; "mean_sqrt_len", their sum over the square root of their number; the "first" token, with
            special ones counted ([CLS]); or the "last".
        special: whether the mean counts special tokens.
        max_length: tokens at which a sentence is cut.
        source: where this was read, in words.
        notes: what else the model does to a sentence, which is not done here.
    """

    mode: str = "mean"
    special: bool = False
    max_length: int = MAX_LENGTH
    source: str = "as asked for"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise BadInput(f"pooling is {self.mode!r}; use one of {', '.join(MODES)}")

    @property
    def says(self) -> str:
        """ "mean of all tokens, special ones left out"."""
        if self.mode in ("first", "last"):
            return f"{self.mode} token"
        mean = "mean of all tokens" if self.mode == "mean" else "sum of all tokens over the square root of their number"
        return f"{mean}, special ones {'counted' if self.special else 'left out'}"


def sentence_vectors(loaded: LoadedModel, texts: Sequence[str], pooling: Pooling, options: ReadOptions) -> Vectors:
    """One vector per text at every layer, from one forward pass.

    Raises:
        BadInput: as `gather`.
    """
    tokens = tokenise(loaded, texts, max_length=pooling.max_length)
    if pooling.mode not in ("first", "last"):
        vectors = gather(loaded, tokens, tokens.sentences(), options, special=pooling.special)
        if pooling.mode == "mean_sqrt_len":
            root = np.sqrt(vectors.n_tokens, dtype=np.float32)
            for layer in range(len(vectors.layers)):
                vectors.values[layer] *= root[:, None]
        return vectors
    # A text without a token keeps an empty span, and a vector of zeros.
    lengths = tokens.lengths
    first = np.zeros(len(lengths), dtype=np.int64) if pooling.mode == "first" else np.maximum(lengths - 1, 0)
    spans = tokens.single(np.arange(len(lengths)), first)
    return gather(loaded, tokens, spans, options, special=True)


def static_vectors(loaded: LoadedModel, tokens: Tokens) -> np.ndarray:
    """Mean of the rows of the model's own input table over each text's ordinary tokens, float32 [text, dim].

    Neither positions nor norms nor any block: what the tokens say without a context.

    Raises:
        BadInput: the model has no such table.
    """
    inputs = input_table(loaded.model)
    if inputs is None:
        raise BadInput(f"{loaded.name} has no table of input embeddings; leave the static baseline out")
    table = inputs.weight
    found = np.zeros((len(tokens.texts), table.shape[1]), dtype=np.float32)
    for start in range(0, len(found), TEXTS_AT_ONCE):
        texts = range(start, min(len(found), start + TEXTS_AT_ONCE))
        ids = [np.asarray(tokens.encoded["input_ids"][text])[tokens.ordinary(text)] for text in texts]
        counts = np.array([len(one) for one in ids])
        used, inverse = np.unique(np.concatenate(ids).astype(np.int64), return_inverse=True)
        if not len(used):
            continue
        refuse_unknown(used.tolist(), len(table), loaded.tokenizer, loaded.name)
        rows = table[used.tolist()].detach().float().cpu().numpy()[inverse]  # [token, dim]
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        some = counts > 0
        found[start + np.flatnonzero(some)] = np.add.reduceat(rows, begins[some], axis=0) / counts[some, None]
    return found


def own_pooling(name: str, options: LoadOptions | None = None) -> Pooling:
    """How sentence-transformers would make a sentence vector of model `name` (sample, folder or hub id).

    It is read from modules.json and the files it names. Without them, as that library has it: mean, special tokens counted.

    Raises:
        BadInput: a way that is not supported here (max, weighted mean, several at once).
        BadFile: a file that is damaged, or a module outside the model's folder.
    """
    options = options or LoadOptions()
    folder = _Folder(name, options)
    modules = folder.read("modules.json")
    beside = folder.read("sentence_bert_config.json")
    length = beside.get("max_seq_length") if isinstance(beside, dict) else None
    length = length if isinstance(length, int) and length >= 2 else MAX_LENGTH
    if modules is None:
        return Pooling("mean", True, length, "no modules.json beside the model: mean, special tokens counted")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BadFile(f"{name}: modules.json is no list of modules; fetch the model again")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if "Pooling" not in kinds:
        raise BadInput(f"{name}: modules.json names no Pooling ({', '.join(kinds)}); use --pooling mean, first or last")
    place = str(modules[kinds.index("Pooling")].get("path", ""))
    config = folder.read(f"{place}/config.json")
    if not isinstance(config, dict):
        raise BadFile(f"{name}: {place}/config.json, which modules.json names, is missing; fetch the model again")
    # A length changes no cosine, so Normalize needs no note.
    behind = [kind for kind in kinds[kinds.index("Pooling") + 1 :] if kind != "Normalize"]
    notes = [f"the model's own {' and '.join(behind)} behind the pooling is left out"] if behind else []
    settings = folder.read("config_sentence_transformers.json")
    if isinstance(settings, dict) and settings.get("default_prompt_name"):
        notes.append(f"the model's own prompt {settings['default_prompt_name']!r} is left out")
    return Pooling(_mode(name, config), True, length, f"{place}/config.json", tuple(notes))


def _mode(name: str, config: dict[str, Any]) -> str:
    said = config.get("pooling_mode")
    if said is None:
        said = [word for word, (_, flag) in THEIRS.items() if config.get(flag)] or ["mean"]
    modes = [str(mode) for mode in said] if isinstance(said, list) else [str(said)]
    mode = THEIRS.get(modes[0], ("", ""))[0] if len(modes) == 1 else ""
    if not mode:
        raise BadInput(
            f"{name}: its own pooling is {' and '.join(modes)}, which is not supported; use --pooling mean, first or last"
        )
    return mode


class _Folder:
    """JSON files beside a model, on disk or on the hub."""

    def __init__(self, name: str, options: LoadOptions):
        self.name, self.options = name, options
        self.local = model_folder(
            name, subfolder=options.subfolder, offline=options.offline, weights=False, notice=options.notice
        )

    def read(self, file: str) -> Any:
        """The content of `file`; None where there is none."""
        parts = Path(file).parts
        if is_too_long(file):
            raise BadFile(f"{self.name}: modules.json names a path of {len(file):,} characters; fetch the model again")
        if ".." in parts or Path(file).is_absolute():
            raise BadFile(f"{self.name}: modules.json names {file!r}, which is outside the model's folder")
        path = self.local / file if self.local else self._fetched(file)
        if path is None or not path.is_file():
            return None
        if path.stat().st_size > MAX_CONFIG:
            raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a configuration")
        return read_json(path, "fetch the model again")

    def _fetched(self, file: str) -> Path | None:
        hub: Any = need("huggingface_hub", "models", "reading a model's own pooling")
        errors: Any = need("huggingface_hub.errors", "models", "reading a model's own pooling")
        options = self.options
        try:
            found = hub.hf_hub_download(
                self.name,
                "/".join(part for part in (options.subfolder, file) if part),
                revision=options.revision,
                token=options.token,
                local_files_only=options.offline,
            )
        except errors.LocalEntryNotFoundError as error:
            if options.offline:
                return None  # not among what was fetched; a model without the file is read alike
            raise Offline(f"{self.name}: {file} cannot be fetched: {' '.join(str(error).split())[:200]}") from None
        except errors.EntryNotFoundError:
            return None
        except (errors.HfHubHTTPError, OSError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            raise OutlierlensError(f"{self.name}: {file} cannot be fetched: {text}") from None
        return Path(found)


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
