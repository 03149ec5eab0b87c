"""Counts that are keyed by the text of tokens, as they were published, brought to a tokenizer's ids.

    keyed = {"the": 149_611_994, "##s": 298_820, "[CLS]": 99_366_913, …}
    by_id(keyed, tokenizer)            # Mapped: every `##s` keeps its own count
    as_released(keyed, tokenizer)      # Mapped: what the released code of Puccetti et al. (2022) makes of them

A text that several ids decode to (pieces of characters that are all U+FFFD; ` .` beside `.` where spaces before
punctuation were cleaned away) does not say whose count it is: it is shared evenly among them, and they are named.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.data.token_texts import added_around, kind_of, texts_of, vocabulary_of
from outlierlens.errors import BadInput

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


@dataclass(frozen=True)
class Mapped:
    """Counts by id: `counts` and `special` int64 [vocabulary], ids that share a key, how many texts there were (0 where
    it is not known), and what found no partner."""

    counts: np.ndarray
    special: np.ndarray
    ambiguous: tuple[int, ...]
    n_texts: int
    notes: tuple[str, ...]


def by_id(keyed: Mapping[str, int], tokenizer: Any, source: str) -> Mapped:
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
    n_texts = max((keyed[name] for name in ROLES["cls_token_id"] if name in keyed), default=0)
    return Mapped(counts, special, tuple(sorted({n for some in shared.values() for n in some})), n_texts, tuple(notes))


def as_released(keyed: Mapping[str, int], tokenizer: Any, source: str) -> Mapped:
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
    n_texts = max((keyed[name] for name in ROLES["cls_token_id"] if name in keyed), default=0)
    return Mapped(np.where(around, 0, counts), np.where(around, counts, 0), (), n_texts, (note,))


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
    theirs = _kind_of_texts(keyed)
    ours = {"byte-level": "spaces", "sentencepiece": "spaces"}.get(kind_of(tokens), kind_of(tokens))
    if "plain" not in (theirs, ours) and theirs != ours:
        marks = {"wordpiece": "'##' (BERT-like)", "spaces": "spaces (RoBERTa-like)"}
        raise BadInput(
            f"{source}: its keys mark parts of words with {marks[theirs]}, this tokenizer with {marks[ours]}: equal texts "
            f"mean different tokens; count a corpus with this tokenizer (--counts CORPUS)"
        )


def _kind_of_texts(keyed: Mapping[str, int]) -> str:
    kind = kind_of(tuple(text.replace(" ", "▁") for text in keyed))
    return "spaces" if kind in ("sentencepiece", "byte-level") else kind


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
