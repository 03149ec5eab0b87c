"""Whatever names a model on this machine, as a folder that transformers loads; and the tokenizer and processor beside it.

    model_folder("runs/bert")                  # the folder itself
    model_folder("smollm2-135m")               # a sample, fetched where it is not there
    model_folder("/some/where/model.gguf")     # a folder in the user's cache with float32 safetensors, config and tokenizer
    model_folder("bert-base-uncased")          # None: a hub id
    tokenizer_beside("runs/bert", common)      # as its files say, or as its vocabulary shows; None where there is none
    processor_beside(model, "google/vit-base-patch16-224", common)    # of pictures or recordings; None where there is none
    guard_rows(model, tokenizer, "my model")   # from now on a pass that is given an id without a row says which

A tokenizer may know more ids than the embeddings have rows. A GGUF file has all of it inside. An ONNX file, and a safetensors
or PyTorch file of its own name, need their config.json beside them or in the folder above, and their tokenizer. What is made
stays in the cache until one of the files that it was made of changes.
"""

import hashlib
import importlib.util
import inspect
import json
import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.checkpoints import as_weights
from outlierlens.checkpoints.adapter import AdaptedCheckpoint
from outlierlens.checkpoints.base import INDEX, load_config
from outlierlens.checkpoints.formats import (
    Format,
    config_folder,
    folders_around,
    format_of,
    is_part,
    native,
    no_weights,
    open_file,
    refuse_ctranslate2,
    weight_file,
)
from outlierlens.checkpoints.samples import directory, folder_being_made, is_sample, say
from outlierlens.checkpoints.stored import Weights
from outlierlens.checkpoints.trainers import PARAMS, has_stretched_positions
from outlierlens.data.media.items import Kind
from outlierlens.errors import BadFile, BadInput, UnknownModel, need
from outlierlens.models.weight_copy import (
    TOKENIZER,
    VOCABULARIES,
    Progress,
    copy_beside,
    copy_file,
    copy_gguf,
)
from outlierlens.results.safe_files import cache_root, read_json

if TYPE_CHECKING:
    from torch import nn

MAX_PIECE = 10_000  # characters; the tokenizers library takes 300 bytes for each

RECIPE = 3  # a change of what is made must raise it
MADE_OF = "made-of.json"
WORD_PIECES = "vocab.txt"
# What else stands beside weights and says how the model is used.
BESIDE = (
    "config.json", "generation_config.json", "preprocessor_config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "1_Pooling/config.json",
)  # fmt: skip
# Settings of BERT's tokenizer -> their names in the normalizer of a tokenizer.json.
_LETTERS = {
    "do_lower_case": "lowercase", "strip_accents": "strip_accents", "tokenize_chinese_chars": "handle_chinese_chars"
}  # fmt: skip


def model_folder(
    name: str, *, subfolder: str = "", offline: bool = False, weights: bool = True, notice: Progress = say
) -> Path | None:
    """The folder to load `name` (a sample, a folder or a weight file) from, made where it has to be; None for anything else.

    `weights` False asks for config and tokenizer alone. `notice` is told before anything slow.

    Raises:
        UnknownModel: files that belong to a weight file are missing; the message names them.
        BadFile: the folder holds several weight files, or none; or the file cannot be read.
        Offline: a sample would have to be fetched.
    """
    if is_sample(name):
        return _of_folder(directory(name, offline=offline), weights, notice)
    path = Path(name)
    if path.is_dir():
        if not (path / subfolder).is_dir():
            raise UnknownModel(f"{path}: has no folder {subfolder!r}; pass the right --model-args subfolder=FOLDER")
        return _of_folder(path / subfolder, weights, notice)
    return _of_file(path, weights, notice) if path.is_file() else None


def _of_folder(folder: Path, weights: bool, notice: Progress) -> Path:
    if native_file := _native_in(folder):
        if weights and not (folder / "config.json").is_file():
            raise UnknownModel(f"{folder}: to run the model takes more than its weights; put beside them: config.json")
        return _loadable(native_file, weights, notice)
    found = weight_file(folder)
    if found is not None:
        return _of_file(found, weights, notice)
    if weights:
        raise no_weights(folder)
    return folder


def _of_file(path: Path, weights: bool, notice: Progress) -> Path:
    row = format_of(path)
    if row is not None and row.name == "GGUF":
        return _made(path, weights, notice, copy_gguf)
    if row is None:
        raise UnknownModel(
            f"{path}: no weight file; a model is named by its folder, a weight file, a sample or a hub id"
        )
    refuse_ctranslate2(path)
    place = config_folder(path)
    if place is None or has_stretched_positions(place):
        missing = ["config.json"]
        if not any((path.parent / file).is_file() for file in VOCABULARIES):
            missing.append("its tokenizer (tokenizer.json and tokenizer_config.json)")
        raise UnknownModel(f"{path}: to run the model takes more than this file; put beside it: {', '.join(missing)}")
    if not row.file:
        return _made(path, weights, notice, _converted)
    if path.parent == place and path == _native_in(place):
        return _loadable(path, weights, notice)
    if is_part(path) or path.name.endswith(INDEX):
        raise UnknownModel(f"{path}: is a part of the model in {path.parent}; name that folder")
    return _made(path, weights, notice, partial(_linked, row))


def _loadable(path: Path, weights: bool, notice: Progress) -> Path:
    """The folder of a file that transformers looks for; a copy where it does not load what the file holds."""
    return _made(path, weights, notice, _converted) if weights and _needs_copy(path) else path.parent


def _needs_copy(path: Path) -> bool:
    """Whether transformers does not load a weight file as it is: a container, names with something around them, codes.

    Codes that are not read are left to the quantizer that the config names.
    """
    with as_weights(open_file(path, str(path))) as checkpoint:
        return isinstance(checkpoint, AdaptedCheckpoint) or (
            isinstance(checkpoint, Weights)
            and (
                checkpoint.is_renamed
                or getattr(checkpoint, "wrapped", False)
                or bool(checkpoint.coded)
                or (not checkpoint.method and any(map(checkpoint.packed_by, checkpoint.tensors)))
            )
        )


def _native_in(folder: Path) -> Path | None:
    """What transformers loads of a folder, the first in its order."""
    files = (folder / name for row in native() for name in (row.file, row.index))
    return next((file for file in files if file.is_file()), None)


def tokenizer_is_made(folder: Path) -> bool:
    """Whether the tokenizer in `folder` was read out of a GGUF file; tokenizer.json says all of it then."""
    path = folder / "tokenizer_config.json"
    if not (folder / MADE_OF).is_file() or not path.is_file():
        return False
    return load_config(path).get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")


def how_letters_are_read(folder: Path) -> dict[str, bool | None]:
    """What word pieces in `folder` say of capitals, accents and Chinese, in BERT's tokenizer's terms, its own file aside.

    A tokenizer.json tells it in its normalizer; a vocab.txt alone by whether any piece has a capital letter, names in brackets
    ([CLS]) left aside. Empty where there is neither. What tokenizer_config.json says of the same is left out.
    """
    said: dict[str, bool | None] = {}
    vocabulary, whole = folder / WORD_PIECES, folder / "tokenizer.json"
    if whole.is_file():
        try:
            normalizer = json.loads(whole.read_bytes())["normalizer"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}  # whoever reads the tokenizer says what is wrong with it
        if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
            said = {ours: normalizer[theirs] for ours, theirs in _LETTERS.items() if theirs in normalizer}
    elif vocabulary.is_file():
        pieces = vocabulary.read_text("utf-8", errors="replace").split("\n")
        if (longest := max(map(len, pieces))) > MAX_PIECE:
            raise BadFile(f"{vocabulary}: a word piece of {longest:,} characters; fetch the file again")
        said = {"do_lower_case": not any(one != one.lower() for one in pieces if not one.startswith(("[", "<")))}
    settled = load_config(folder / "tokenizer_config.json")
    return {name: value for name, value in said.items() if name not in settled}


def names_its_class(folder: Path) -> bool:
    """Whether a file in `folder` says which class reads its vocabulary."""
    said = load_config(folder / "tokenizer_config.json") | load_config(folder / "config.json")
    return "tokenizer_class" in said or "model_type" in said


# --- what is made ------------------------------------------------------------------------------------------------

Make = Callable[[Path, Path, bool, Progress], list[Path]]  # (file, folder to fill, weights too?, notice) -> files read


def _made(path: Path, weights: bool, notice: Progress, make: Make) -> Path:
    """The folder made of a weight file, in the cache; made again where a file that it was made of has changed."""
    whole = f"{path.stem[:60]}-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    for name in (whole,) if weights else (whole, f"{whole}-tokenizer"):
        target = cache_root() / "models" / name
        if _is_fresh(target):
            return target
    with folder_being_made("models", target.name, _is_fresh) as (target, making):
        if making is not None:
            read = make(path, making, weights, notice)
            beside = {place / file for place in folders_around(path) for file in (*BESIDE, PARAMS, *TOKENIZER)}
            files = {str(file): _stamp(file) for file in sorted({path.absolute(), *read, *beside})}
            text = json.dumps({"recipe": RECIPE, "files": files}, indent=1)
            (making / MADE_OF).write_text(text, "utf-8")
    return target


def _is_fresh(target: Path) -> bool:
    try:
        made = read_json(target / MADE_OF, a=dict)
        return made["recipe"] == RECIPE and all(_stamp(Path(file)) == stamp for file, stamp in made["files"].items())
    except (OSError, BadFile, KeyError, TypeError, AttributeError):
        return False


def _stamp(path: Path) -> list[int] | None:
    """Size and time of the last change; None where there is no such file."""
    try:
        about = path.stat()
    except OSError:
        return None
    return [about.st_size, about.st_mtime_ns]


def _converted(path: Path, making: Path, weights: bool, notice: Progress) -> list[Path]:
    copy_beside(config_folder(path) or path.parent, making, (*BESIDE, *TOKENIZER))
    return copy_file(path, making, notice) if weights else []


def _linked(row: Format, path: Path, making: Path, weights: bool, notice: Progress) -> list[Path]:
    """The file under the name that transformers looks for, with what stands beside it; a copy where it does not load it."""
    if weights and _needs_copy(path):
        return _converted(path, making, weights, notice)
    copy_beside(config_folder(path) or path.parent, making, (*BESIDE, *TOKENIZER))
    try:
        (making / row.file).symlink_to(path.resolve())
    except OSError:  # Windows allows links to few
        shutil.copyfile(path, making / row.file)
    return []


# --- processors ------------------------------------------------------------------------------------------------------

# Arguments of a model that reads them; of recordings their samples, or features of them by frame.
TAKES: dict[Kind, tuple[str, ...]] = {"image": ("pixel_values",), "audio": ("input_values", "input_features")}
LOADERS: dict[Kind, str] = {"image": "AutoImageProcessor", "audio": "AutoFeatureExtractor"}
FILES = ("preprocessor_config.json", "processor_config.json")


def kind_read(model: "nn.Module") -> Kind | None:
    """What a model reads: "image", "audio", or None for text and all else."""
    taken = inspect.signature(type(model).forward).parameters
    return next((kind for kind, names in TAKES.items() if taken.keys() & set(names)), None)


def processor_beside(model: "nn.Module", source: str, common: dict[str, Any]) -> Any:
    """The processor in the model's folder; None where there is none, it is not needed, or a library for it is missing.

    Code that comes with a model is never run for it. Images are prepared by Pillow, on whatever machine, so that pixels are
    the same everywhere.

    Raises:
        BadFile: the processor's file is there and cannot be read, and the model reads nothing else.
    """
    kind = kind_read(model)
    if kind is None or (kind == "image" and importlib.util.find_spec("PIL") is None):
        return None
    loader = getattr(need("transformers", "models", "running a model"), LOADERS[kind])
    how = {**common, "trust_remote_code": False, **({"backend": "pil"} if kind == "image" else {})}
    folder = Path(source) / common.get("subfolder", "")
    try:
        return loader.from_pretrained(source, **how)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file raises nearly every class
        if isinstance(error, ImportError) or "input_ids" in inspect.signature(type(model).forward).parameters:
            return None  # a model of texts as well needs none for those
        if any((folder / file).is_file() for file in FILES):
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise BadFile(f"{source}: its processor cannot be read ({text}); fetch or save it again") from error
        if isinstance(error, OSError | ValueError):
            return None
        raise


# --- the tokenizer ---------------------------------------------------------------------------------------------------

UNKNOWN = "\U00013000"  # a hieroglyph; a vocabulary that has it can read it


def tokenizer_beside(source: str, common: dict[str, Any], config: Any = None) -> Any:
    """The tokenizer beside the model; None where there is none: commands that need texts say so.

    Raises:
        BadFile: there is one that cannot be read.
    """
    transformers = need("transformers", "models", "reading a tokenizer")
    folder = Path(source) / common["subfolder"]
    # AutoTokenizer puts rules of its own in the place of some families'.
    automatic = transformers.PreTrainedTokenizerFast if tokenizer_is_made(folder) else transformers.AutoTokenizer
    # Only AutoTokenizer asks the config; a class of its own would keep it among what it saves.
    how = common if config is None or automatic is not transformers.AutoTokenizer else {**common, "config": config}
    if letters := how_letters_are_read(folder):  # AutoTokenizer takes BERT's defaults, and lower-cases
        how = {**how, **letters}
        if config is None and not (folder / "tokenizer.json").is_file() and not names_its_class(folder):
            automatic = transformers.BertTokenizer
    try:
        tokenizer = automatic.from_pretrained(source, **how)
        if _is_empty(tokenizer) and (folder / WORD_PIECES).is_file():  # its family's class reads files of another kind
            tokenizer = transformers.BertTokenizer.from_pretrained(source, **how)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for a malformed file
        if any((folder / file).is_file() for file in VOCABULARIES):
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise BadFile(f"{source}: its tokenizer cannot be read ({text}); fetch or save it again") from error
        if isinstance(error, OSError | ValueError | TypeError):  # TypeError: a vocabulary that is None (wav2vec2)
            return None
        raise
    if tokenizer.model_input_names[:1] != ["input_ids"]:
        raise BadFile(
            f"{source}: its tokenizer_config.json says that models take no input_ids; correct model_input_names"
        )
    _try(tokenizer, source)
    if _is_empty(tokenizer):
        return None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def _is_empty(tokenizer: Any) -> bool:
    """Whether it has no vocabulary: without a file some classes are made all the same, and read every word as unknown."""
    return len(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)) <= 2


def _try(tokenizer: Any, source: str) -> None:
    """Raise BadFile where a tokenizer of the tokenizers library reads no text: its files are checked when they are used."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        return
    unknown = UNKNOWN if type(inner.model).__name__ == "WordPiece" else ""
    special = set(tokenizer.all_special_ids)
    known = next((text for n in range(1000) if n not in special and (text := inner.id_to_token(n))), "")
    try:
        inner.encode(known + unknown)
    except BaseException as error:  # a panic of that library is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadFile(f"{source}: its tokenizer reads no text ({text}); fetch or save it again") from error


# --- token ids and rows of the embeddings ----------------------------------------------------------------------------


def row_count(model: "nn.Module") -> int | None:
    """Rows of the table that the model's token ids name; None for a model that reads none."""
    table = input_table(model)
    return None if table is None else int(table.num_embeddings)


def guard_rows(model: "nn.Module", tokenizer: Any, name: str) -> None:
    """Have `model` raise BadInput, not IndexError, for a token id without a row.

    Only a model whose tokenizer knows more ids than it has rows is looked at while it runs: such ids may never occur.
    """
    table = input_table(model)
    if table is None or not hasattr(tokenizer, "get_vocab"):
        return
    guarded = any(isinstance(hook, _Guard) for hook in table._forward_pre_hooks.values())
    if not guarded and max(tokenizer.get_vocab().values(), default=0) >= table.num_embeddings:
        table.register_forward_pre_hook(_Guard(tokenizer, name))


def refuse_unknown(ids: Collection[int], n_rows: int | None, tokenizer: Any, name: str) -> None:
    """Raise BadInput for the largest of `ids` if it has no row."""
    if n_rows is not None and len(ids) and (largest := max(ids)) >= n_rows:
        if tokenizer is None:
            raise BadInput(
                f"{name}: token id {largest} has no row: the embeddings have {n_rows:,} rows; give ids of this model"
            )
        raise BadInput(
            f"{name}: token id {largest} ({tokenizer.convert_ids_to_tokens(largest)!r}) has no row: the embeddings have "
            f"{n_rows:,} rows; take the tokenizer that belongs to the model, or enlarge the model with "
            f"model.resize_token_embeddings({max(tokenizer.get_vocab().values()) + 1}) and save it"
        )


class _Guard:
    """What looks at the ids of every pass; a class, for models are copied and sent to other processes."""

    def __init__(self, tokenizer: Any, name: str):
        self.tokenizer, self.name = tokenizer, name

    def __call__(self, table: Any, args: tuple[Any, ...]) -> None:
        if args and args[0].numel():
            refuse_unknown([int(args[0].max())], table.num_embeddings, self.tokenizer, self.name)


def input_table(model: "nn.Module") -> "nn.Embedding | None":
    """The table that token ids name rows of; None for a model that has none."""
    from torch import nn

    try:
        table: Any = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    return table if isinstance(table, nn.Embedding) else None
