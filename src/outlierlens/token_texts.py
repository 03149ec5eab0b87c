"""What a tokenizer's ids stand for: its vocabulary, the text of every id, and the tokens it adds around a text.

tokens = vocabulary_of(tokenizer)          # ("[PAD]", "[UNK]", …), one a id; "" for an id without a token
vocabulary_digest(tokens)                  # SHA-256: equal exactly where the ids mean the same
added_around(tokenizer)                    # int64 [vocabulary]: [CLS] 1, [SEP] 1
added_ends(tokenizer, texts)               # ids before and behind a text: ([CLS],), ([SEP],)
kind_of(tokens)                            # "wordpiece", "byte-level", "sentencepiece" or "plain"
texts_of(tokens)                           # "##s" stays, "Ġthe" is " the", half a character is U+FFFD
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from outlierlens.errors import BadInput

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LARGEST_VOCABULARY = 2**24
MARKED = 0.01  # share of tokens with a mark of its kind from which a vocabulary is of that kind


def vocabulary_of(tokenizer: Any) -> tuple[str, ...]:
    """Token strings by id, as the vocabulary stores them; "" where an id has no token.

    Raises:
        BadInput: no tokenizer, an empty vocabulary, or ids that are negative or far beyond any vocabulary.
    """
    if tokenizer is None:
        raise BadInput("this model has no tokenizer beside it, so tokens cannot be named; pass one")
    found = tokenizer.get_vocab()
    if not found or min(found.values()) < 0 or max(found.values()) >= LARGEST_VOCABULARY:
        raise BadInput(
            f"this tokenizer's {len(found):,} ids do not lie between 0 and {LARGEST_VOCABULARY:,}; pass another"
        )
    tokens = [""] * (max(found.values()) + 1)
    for token, number in found.items():
        tokens[number] = token
    return tuple(tokens)


def vocabulary_digest(tokens: tuple[str, ...]) -> str:
    """SHA-256 over the tokens in the order of their ids."""
    digest = hashlib.sha256()
    for token in tokens:
        text = token.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(4, "little") + text)
    return digest.hexdigest()


def added_around(tokenizer: Any) -> np.ndarray:
    """How often the tokenizer puts each id around one text, int64 [vocabulary]: [CLS] and [SEP] once for BERT."""
    sizes = np.zeros(len(vocabulary_of(tokenizer)), dtype=np.int64)
    bare = Counter(tokenizer("a", add_special_tokens=False)["input_ids"])
    for number, times in (Counter(tokenizer("a")["input_ids"]) - bare).items():
        sizes[number] = times
    return sizes


def added_ends(tokenizer: Any, texts: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids before, ids behind) that the tokenizer puts around the first of `texts` that has a token; () for none.

    Without such a text, or where a text's own tokens are not in one piece, nothing counts as added.
    """
    for text in texts:
        bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if not bare:
            continue
        whole = list(tokenizer(text)["input_ids"])
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
        break
    return (), ()


def kind_of(tokens: tuple[str, ...]) -> str:
    """How a vocabulary marks what continues a word or begins one.

    "wordpiece": `##s` continues. "byte-level": bytes written as characters, `Ġthe` begins. "sentencepiece": `▁the`
    begins. "plain": no marks.
    """
    for kind, mark in (("wordpiece", "##"), ("byte-level", "Ġ"), ("sentencepiece", "▁")):
        if sum(token.startswith(mark) and len(token) > len(mark) for token in tokens) > MARKED * len(tokens):
            return kind
    return "plain"


def texts_of(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The text that decoding each id alone gives; word pieces keep their `##`, pieces of characters are U+FFFD."""
    kind = kind_of(tokens)
    if kind == "sentencepiece":
        return tuple(token.replace("▁", " ") for token in tokens)
    if kind != "byte-level":
        return tokens
    byte = _bytes_by_character()
    return tuple(
        bytes(byte[c] for c in token).decode("utf-8", "replace") if all(c in byte for c in token) else token
        for token in tokens
    )


def _bytes_by_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (Radford et al. 2019).

    Visible Latin-1 characters stand for themselves; the other 68 bytes are numbered from U+0100 upwards.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(visible)]
    return {**{chr(byte): byte for byte in visible}, **{chr(0x100 + n): byte for n, byte in enumerate(others)}}
