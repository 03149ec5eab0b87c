"""The tokenizer that lies beside a model, read as its files say, or as its vocabulary shows where they say nothing.

tokenizer = tokenizer_beside("runs/bert", common)              # None where there is none
"""

from pathlib import Path
from typing import Any

from outlierlens.errors import BadFile, need
from outlierlens.models.folder import WORD_PIECES, how_letters_are_read, names_its_class, tokenizer_is_made
from outlierlens.models.weight_copy import VOCABULARIES

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
