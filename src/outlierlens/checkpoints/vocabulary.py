"""Texts of tokens by their ids, read from the vocabulary file beside a model without a tokenizer library.

token_texts(folder, [101, 102])                 # {101: "[CLS]", 102: "[SEP]"}; {} where there is no such file
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_VOCABULARY_BYTES = 64 * 2**20


def folder_beside(model: str, subfolder: str = "") -> Path | None:
    """The folder in which a vocabulary of `model` could lie: that of a directory, file or sample; None for a hub id."""
    from outlierlens.checkpoints import samples

    path = Path(model)
    if samples.is_sample(model):
        return samples.directory(model)
    if path.is_dir():
        return path / subfolder
    return path.parent if path.is_file() else None


def token_texts(folder: Path | None, ids: Iterable[int]) -> dict[int, str]:
    """Texts of `ids` as the vocabulary stores them; those without one, or all without a readable file, are left out."""
    wanted = set(ids)
    if folder is None or not wanted:
        return {}
    for name, read in (("tokenizer.json", _tokenizer), ("vocab.txt", _lines), ("vocab.json", _mapping)):
        path = folder / name
        if path.is_file() and path.stat().st_size <= MAX_VOCABULARY_BYTES:
            try:
                return {number: token for token, number in read(path.read_text("utf-8")) if number in wanted}
            # Texts are a courtesy: a file that cannot be read costs them, not the measurement.
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
    return {}


def _tokenizer(text: str) -> Iterator[tuple[str, int]]:
    document = json.loads(text)
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):  # unigram models list [text, score] in the order of ids
        yield from ((str(entry[0]), number) for number, entry in enumerate(vocabulary))
    else:
        yield from _pairs(vocabulary)
    yield from ((str(added["content"]), int(added["id"])) for added in document.get("added_tokens") or ())


def _lines(text: str) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(text.split("\n")):
        yield line.removesuffix("\r"), number


def _mapping(text: str) -> Iterator[tuple[str, int]]:
    return _pairs(json.loads(text))


def _pairs(vocabulary: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for token, number in vocabulary.items():
        yield str(token), int(number)
