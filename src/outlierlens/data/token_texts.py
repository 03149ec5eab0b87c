"""What a tokenizer's ids stand for: its vocabulary, the text of every id, and the tokens it adds around a text.

tokens = vocabulary_of(tokenizer)          # ("[PAD]", "[UNK]", …), one a id; "" for an id without a token
vocabulary_digest(tokens)                  # SHA-256: equal exactly where the ids mean the same
added_around(tokenizer)                    # int64 [vocabulary]: [CLS] 1, [SEP] 1
added_ends(tokenizer, texts)               # ids before and behind a text: ([CLS],), ([SEP],)
special_ids(tokenizer)                     # {0, 101, 102, 103}: without [UNK], which stands for a word
kind_of(tokens)                            # "wordpiece", "byte-level", "sentencepiece" or "plain"
texts_of(tokens)                           # "##s" stays, "Ġthe" is " the", half a character is U+FFFD
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outlierlens.errors import BadInput, need

LARGEST_VOCABULARY = 2**24
MUCH_UNKNOWN = 0.05  # share of tokens that the tokenizer does not know from which a result says so
# What a token may be beside the unknown one; GPT-2's <|endoftext|> is all of them, and stands for no unknown text.
OTHER_ROLES = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
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
        if hasattr(text, "ids"):  # given as token ids, to which nothing is added
            break
        bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if not bare:
            continue
        whole = list(tokenizer(text)["input_ids"])
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
        break
    return (), ()


def unknown_id(tokenizer: Any) -> int | None:
    """The id that stands for text that the tokenizer does not know ([UNK]); None where nothing is unknown to it."""
    found = getattr(tokenizer, "unk_token_id", None)
    if found is None:  # a tokenizer.json may know what its tokenizer_config.json does not say
        model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        token = getattr(model, "unk_token", None)
        found = None if token is None else tokenizer.get_vocab().get(token)
    return None if any(getattr(tokenizer, role, None) == found for role in OTHER_ROLES) else found


def token_words(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The tokens with these ids, "" for a negative one; without a tokenizer "id 101"."""
    if tokenizer is None:
        return tuple(f"id {token}" if token >= 0 else "" for token in ids)
    known = [token for token in ids if token >= 0]
    text = dict(zip(known, tokenizer.convert_ids_to_tokens(known), strict=True))
    return tuple(str(text.get(token) or "") for token in ids)


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of tokens that stand for no text: [CLS], <s>, … An unknown word is a word: its token is not among them.

    None are known without a tokenizer.
    """
    if tokenizer is None:
        return frozenset()
    return frozenset(tokenizer.all_special_ids) - {unknown_id(tokenizer)}


@dataclass
class KnownTokens:
    """Ordinary tokens of the texts that were read, and how many of them are the unknown one.

    Attributes:
        n: tokens, special ones not counted. unknown: those of them that stand for unknown text.
        told: whether the user has been told.
    """

    n: int = 0
    unknown: int = 0
    told: bool = False
    _ids: tuple[Any, int | None, frozenset[int]] = field(default=(None, None, frozenset()), repr=False)

    def add(self, tokenizer: Any, ids: Iterable[int]) -> None:
        """Count tokens that `tokenizer` made of a text."""
        if self._ids[0] is not tokenizer:
            self._ids = (tokenizer, unknown_id(tokenizer), special_ids(tokenizer))
        _, unknown, special = self._ids
        if unknown is None:
            return
        ordinary = [token for token in ids if token not in special]
        self.n += len(ordinary)
        self.unknown += ordinary.count(unknown)

    @property
    def note(self) -> str:
        """What a reader of the figures should know: "" below `MUCH_UNKNOWN`."""
        return unknown_note(self.unknown, self.n)

    def warn(self, tell: Callable[[str], None], name: str) -> None:
        """Tell it once."""
        if self.note and not self.told:
            self.told = True
            tell(f"{name}: {self.note}")

    def check(self, name: str) -> None:
        """Raise BadInput where every token is unknown."""
        if self.n and self.unknown == self.n:
            raise BadInput(nothing_known(name, self.n))


def unknown_note(unknown: int, n: int) -> str:
    """A remark where many of `n` ordinary tokens are unknown, else ""."""
    if unknown < MUCH_UNKNOWN * n or not unknown:
        return ""
    return (
        f"{unknown / n:.0%} of the tokens read are unknown to the tokenizer; it may not fit these texts (their language, "
        f"script or case)"
    )


def nothing_known(name: str, n: int) -> str:
    """Why texts of which no token is known give no figure."""
    return (
        f"{name}: the tokenizer knows none of the {n:,} tokens of these texts, so no figure would mean anything; give texts "
        f"that fit it, or the right tokenizer (--model-args tokenizer=FOLDER): some split or lower-case what the model was "
        f"trained on otherwise"
    )


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
    transformers = need("transformers.convert_slow_tokenizer", "models", "reading byte-level tokens")
    byte = {character: number for number, character in transformers.bytes_to_unicode().items()}  # Radford et al. 2019
    return tuple(
        bytes(byte[c] for c in token).decode("utf-8", "replace") if all(c in byte for c in token) else token
        for token in tokens
    )
