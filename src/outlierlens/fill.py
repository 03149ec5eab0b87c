"""The papers' table: one passage, filled in or continued by the model as it is now.

blanks = Passage.masked(tokenizer, text, seed=0)
fill(loaded, passage)                       # texts of the blanks
judge(filled, intact)                       # same / other / nonsense, by rule
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.damage import Blank, Filled, FillKind
from outlierlens.models import LoadedModel, max_positions

if TYPE_CHECKING:
    from torch import Tensor

EVERY = 7  # one word in seven is blanked: enough context to fill it, enough blanks to see a pattern
CONTEXT = 96
PROMPT_WORDS, CONTINUE = 24, 32


@dataclass(frozen=True)
class Exercise:
    """What the model is to fill: token ids, the blanks' positions, the original words and the text between.

    `blanks` is empty for a continuation, where `ids` is the prompt.
    """

    ids: tuple[int, ...]
    blanks: tuple[int, ...]
    originals: tuple[str, ...]
    pieces: tuple[str, ...]


def exercise(loaded: LoadedModel, text: str, *, seed: int = 0) -> Exercise | None:
    """The blanks (masked models) or the prompt (causal models) made from `text`; None without a head for words."""
    if loaded.tokenizer is None or loaded.head not in ("masked", "causal"):
        return None
    length = min(CONTEXT, max_positions(loaded.config) or CONTEXT)
    if loaded.head == "masked":
        return _masked(loaded.tokenizer, text, seed, length)
    return _prompt(loaded.tokenizer, text, length // 2)


def _masked(tokenizer: Any, text: str, seed: int, length: int) -> Exercise | None:
    encoded = tokenizer(text, truncation=True, max_length=length, return_offsets_mapping=True)
    ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
    words = encoded.word_ids()
    # Whole words of one token only: a blank then stands for one word.
    whole = [
        i
        for i, word in enumerate(words)
        if word is not None and words.count(word) == 1 and re.fullmatch(r"\s*\w{2,}", text[slice(*offsets[i])])
    ]
    if not whole:
        return None
    start = int(np.random.default_rng(seed).integers(min(EVERY, len(whole))))
    chosen = whole[start::EVERY]
    cuts = [offsets[i] for i in chosen]
    edges = [0, *(edge for cut in cuts for edge in cut), offsets[_last(offsets)][1]]
    pieces = tuple(text[edges[k] : edges[k + 1]] for k in range(0, len(edges), 2))
    for i in chosen:
        ids[i] = tokenizer.mask_token_id
    return Exercise(tuple(ids), tuple(chosen), tuple(text[slice(*cut)].strip() for cut in cuts), pieces)


def _last(offsets: Any) -> int:
    return max(range(len(offsets)), key=lambda i: offsets[i][1])


def _prompt(tokenizer: Any, text: str, length: int) -> Exercise:
    prompt = " ".join(text.split()[:PROMPT_WORDS])
    ids = tokenizer(prompt, truncation=True, max_length=length)["input_ids"]
    return Exercise(tuple(ids), (), (), (tokenizer.decode(ids, skip_special_tokens=True),))


def fill(loaded: LoadedModel, work: Exercise) -> tuple[str, ...]:
    """The words that the model as it is now puts into the blanks, or its greedy continuation token by token."""
    import torch

    ids = torch.tensor([work.ids], device=loaded.device)
    with torch.inference_mode():
        if work.blanks:
            logits = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
            best = logits[torch.tensor(work.blanks, device=logits.device)].argmax(-1).tolist()
        else:
            best = _continue(loaded, ids)
    tokenizer: Any = loaded.tokenizer
    if work.blanks:
        return tuple(tokenizer.convert_ids_to_tokens(best))
    return tuple(tokenizer.decode([token]) for token in best)


def _continue(loaded: LoadedModel, ids: "Tensor") -> list[int]:
    import torch

    assert loaded.tokenizer is not None
    out: list[int] = []
    cache, step = None, ids
    room = (max_positions(loaded.config) or ids.shape[1] + CONTINUE) - ids.shape[1]
    for _ in range(min(CONTINUE, room)):
        seen = torch.ones(1, ids.shape[1] + len(out), dtype=torch.long, device=ids.device)
        output = loaded.model(input_ids=step, attention_mask=seen, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        token = int(output.logits[0, -1].argmax())
        out.append(token)
        if token == loaded.tokenizer.eos_token_id:
            break
        step = torch.tensor([[token]], device=ids.device)
    return out


def filled(
    loaded: LoadedModel,
    work: Exercise,
    words: tuple[str, ...],
    intact: tuple[str, ...],
    *,
    label: str,
    dims: tuple[int, ...],
) -> Filled:
    """The exercise with `words` in its blanks, each judged against the intact model's."""
    tokenizer: Any = loaded.tokenizer
    special = set(tokenizer.all_special_tokens)
    blanks = []
    for i, word in enumerate(words):
        shown = _readable(tokenizer, word) if work.blanks else word
        reference = intact[i] if i < len(intact) else ""
        blanks.append(
            Blank(
                position=work.blanks[i] if work.blanks else len(work.ids) + i,
                filled=shown,
                intact=_readable(tokenizer, reference) if work.blanks else reference,
                original=work.originals[i] if work.blanks else "",
                kind=judge(word, reference, words[:i], special=special, whole_words=bool(work.blanks)),
            )
        )
    # A continuation has nothing between its tokens: the prompt, then empty pieces.
    pieces = work.pieces if work.blanks else (*work.pieces, *("" for _ in words))
    return Filled(label, dims, pieces, tuple(blanks))


def _readable(tokenizer: Any, piece: str) -> str:
    return tokenizer.convert_tokens_to_string([piece]).strip() or piece


def judge(word: str, intact: str, before: tuple[str, ...], *, special: set[str], whole_words: bool) -> FillKind:
    """ "same" as the intact fill; else "nonsense" for what cannot be a word there; else "other".

    Nonsense is: a special or unused token, text without a letter or digit, a piece that only continues a word where a
    whole word was asked for, an undecodable byte, or (after the first two) the third equal token in a row.
    """
    if word == intact:
        return "same"
    bare = word.replace("Ġ", "").replace("▁", "").strip()
    if word in special or re.fullmatch(r"\[unused\d+\]|<unused\d+>|<extra_id_\d+>", bare) or "\ufffd" in word:
        return "nonsense"
    if whole_words and word.startswith("##"):
        return "nonsense"
    if not re.search(r"\w", bare) and (whole_words or re.search(r"\w", intact)):
        return "nonsense"
    if len(before) >= 2 and before[-1] == before[-2] == word:
        return "nonsense"
    return "other"
