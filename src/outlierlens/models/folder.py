"""Whatever names a model on this machine, as a folder that transformers' `from_pretrained` loads.

    model_folder("runs/bert")                  # the folder itself
    model_folder("smollm2-135m")               # a sample, fetched where it is not there
    model_folder("/some/where/model.gguf")     # a folder in the user's cache with float32 safetensors, config and tokenizer
    model_folder("bert-base-uncased")          # None: a hub id

A GGUF file has all of it inside. An ONNX file, and a safetensors or PyTorch file of its own name, need their config.json beside
them or in the folder above, and their tokenizer. What is made stays in the cache until one of the files that it was made
of changes.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from outlierlens.checkpoints.base import INDEX, load_config
from outlierlens.checkpoints.formats import (
    Format,
    config_folder,
    format_of,
    is_part,
    native,
    no_weights,
    refuse_ctranslate2,
    weight_file,
)
from outlierlens.checkpoints.samples import directory, is_sample
from outlierlens.checkpoints.samples.cache import cache_root, folder_being_made, say
from outlierlens.errors import BadFile, UnknownModel
from outlierlens.models.weight_copy import TOKENIZER, VOCABULARIES, Progress, copy_beside
from outlierlens.results.json_toml import read_json

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
            raise UnknownModel(f"{path}: has no folder {subfolder!r}; pass the right --subfolder")
        return _of_folder(path / subfolder, weights, notice)
    return _of_file(path, weights, notice) if path.is_file() else None


def _of_folder(folder: Path, weights: bool, notice: Progress) -> Path:
    if any((folder / file).is_file() for file in _native_files()):
        if weights and not (folder / "config.json").is_file():
            raise UnknownModel(f"{folder}: to run the model takes more than its weights; put beside them: config.json")
        return _loadable(next(folder / file for file in _native_files() if (folder / file).is_file()), weights, notice)
    found = weight_file(folder)
    if found is not None:
        return _of_file(found, weights, notice)
    if weights:
        raise no_weights(folder)
    return folder


def _of_file(path: Path, weights: bool, notice: Progress) -> Path:
    row = format_of(path)
    if row is not None and row.name == "GGUF":
        return _made(path, weights, notice, _from_gguf)
    if row is None:
        raise UnknownModel(
            f"{path}: no weight file; a model is named by its folder, a weight file, a sample or a hub id"
        )
    refuse_ctranslate2(path)
    place = config_folder(path)
    if place is None:
        missing = ["config.json"]
        if not any((path.parent / file).is_file() for file in VOCABULARIES):
            missing.append("its tokenizer (tokenizer.json and tokenizer_config.json)")
        raise UnknownModel(f"{path}: to run the model takes more than this file; put beside it: {', '.join(missing)}")
    if not row.file:
        return _made(path, weights, notice, _converted)
    first = next((file for file in _native_files() if (path.parent / file).is_file()), None)
    if path.parent == place and path.name == first:
        return _loadable(path, weights, notice)
    if is_part(path) or path.name.endswith(INDEX):
        raise UnknownModel(f"{path}: is a part of the model in {path.parent}; name that folder")
    return _made(path, weights, notice, partial(_linked, row))


def _loadable(path: Path, weights: bool, notice: Progress) -> Path:
    """The folder of a file that transformers looks for; a copy where it does not load what the file holds."""
    from outlierlens.models.weight_copy import needs_copy

    return _made(path, weights, notice, _converted) if weights and needs_copy(path) else path.parent


def _native_files() -> list[str]:
    """Names of what transformers loads, in its order."""
    return [name for row in native() for name in (row.file, row.index)]


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
            beside = {place / file for place in path.absolute().parents[:2] for file in (*BESIDE, *TOKENIZER)}
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


def _from_gguf(path: Path, making: Path, weights: bool, notice: Progress) -> list[Path]:
    from outlierlens.models.weight_copy import copy_gguf

    return copy_gguf(path, making, beside=config_folder(path), weights=weights, notice=notice)


def _converted(path: Path, making: Path, weights: bool, notice: Progress) -> list[Path]:
    from outlierlens.models.weight_copy import copy_file

    copy_beside(config_folder(path) or path.parent, making, (*BESIDE, *TOKENIZER))
    return copy_file(path, making, notice=notice) if weights else []


def _linked(row: Format, path: Path, making: Path, weights: bool, notice: Progress) -> list[Path]:
    """The file under the name that transformers looks for, with what stands beside it; a copy where it does not load it."""
    from outlierlens.models.weight_copy import needs_copy

    if weights and needs_copy(path):
        return _converted(path, making, weights, notice)
    copy_beside(config_folder(path) or path.parent, making, (*BESIDE, *TOKENIZER))
    try:
        (making / row.file).symlink_to(path.resolve())
    except OSError:  # Windows allows links to few
        shutil.copyfile(path, making / row.file)
    return []
