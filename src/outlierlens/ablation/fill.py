"""The papers' table: one passage with blanks, filled in by the model as it is and with dimensions off; and what a decoder goes
on to say. What is found is data (`FilledPassage`, rows of `Reply`) and needs no torch.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from outlierlens.ablation.controls import Plan
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.study import Outcome, Study, dims_of
from outlierlens.data.token_texts import added_ends
from outlierlens.models.devices import fast_products
from outlierlens.models.inputs import token_limit
from outlierlens.models.load import LoadedModel
from outlierlens.results.rows import Quiet, Row

FillKind = Literal["same", "other", "nonsense", "changed"]
SIGNS: dict[FillKind, str] = {"same": "=", "other": "≠", "nonsense": "✗", "changed": "!"}
KINDS = ", ".join(f"{sign} {kind}" for kind, sign in SIGNS.items() if kind != "same")


@dataclass(frozen=True)
class Blank:
    """What the model says at one position of a passage: its word, the intact model's, and the verdict.

    `kind` of a blank is "same" (equal to the intact fill), "other" (another word) or "nonsense", by the rule of `fill.judge`;
    "changed" is a word that a masked model was shown, that the intact model repeats, and that this one takes for another.
    """

    position: int
    filled: str
    intact: str
    original: str
    kind: FillKind

    @property
    def sign(self) -> str:
        """Of its kind: "≠"."""
        return SIGNS[self.kind]


@dataclass(frozen=True)
class FilledPassage:
    """The passage under one condition: `pieces` are the texts between `blanks` (changed words among them), one more.

    The space before a blank ends the piece before it.
    """

    label: str
    dims: tuple[int, ...]
    pieces: Annotated[tuple[str, ...], "blank+1"]
    blanks: Annotated[tuple[Blank, ...], "blank"]

    @property
    def line(self) -> str:
        """The passage in one line, words of the model in brackets with their sign; "same" has none."""
        parts = [self.pieces[0]]
        for blank, piece in zip(self.blanks, self.pieces[1:], strict=True):
            sign = "" if blank.kind == "same" else blank.sign
            parts.append(f"[{sign}{blank.filled}]{piece}")
        return "".join(parts)

    def written(self) -> str:
        """As a cell of a table."""
        return self.line


# --- by a model ------------------------------------------------------------------------------------------------------

EVERY = 7  # one in seven of the words that are one token: enough context to fill it, enough blanks to see a pattern
CONTEXT = 96
IMPLAUSIBLE = 1e-4  # probability under the intact model below which a fill counts as nonsense
PROMPT_WORDS, CONTINUE = 24, 32


@dataclass(frozen=True)
class Exercise:
    """What the model is to fill.

    Attributes:
        text: the passage as far as it is read.
        ids: its token ids, [MASK] at the blanks of a masked model.
        blanks: their positions, ascending.
        read_at: the positions whose output predicts each blank: its own (masked) or the one before (causal).
        originals: the words of the passage at the blanks.
        pieces: the text between blanks, one more than there are blanks.
        spans: of a masked model, where in `text` the token at a position begins and ends; [CLS] and the like have none.
    """

    text: str
    ids: tuple[int, ...]
    blanks: tuple[int, ...]
    read_at: tuple[int, ...]
    originals: tuple[str, ...]
    pieces: tuple[str, ...]
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Filling:
    """A filled exercise: `words` as the tokenizer writes them, token ids `tokens`, and `probabilities` [blank, token].

    `everywhere` are the likeliest token ids of all positions.
    """

    words: tuple[str, ...]
    tokens: tuple[int, ...]
    probabilities: np.ndarray
    everywhere: tuple[int, ...]


def exercise(loaded: LoadedModel, text: str, *, seed: int = 0) -> Exercise | None:
    """The passage with its blanks; None without a head for words, or where the text has no word to blank."""
    if loaded.tokenizer is None or loaded.head not in ("masked", "causal") or not text:
        return None
    length = token_limit(loaded, CONTEXT)
    start = int(np.random.default_rng(seed).integers(EVERY))
    make = _masked if loaded.head == "masked" else _causal
    return make(loaded.tokenizer, text, start, length)


def _masked(tokenizer: Any, text: str, start: int, length: int) -> Exercise | None:
    if not tokenizer.is_fast:
        return None  # a slow tokenizer cannot say which letters a token stands for
    encoded = tokenizer(text, truncation=True, max_length=length, return_offsets_mapping=True)
    ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
    words, special = encoded.word_ids(), set(tokenizer.all_special_ids)
    spans: dict[int, tuple[int, int]] = {}
    last = 0
    for i, (begin, end) in enumerate(offsets):
        # The bytes of one letter share a span, which then is the first one's; "[SEP]" may be written in the text itself.
        if begin >= last and words[i] is not None and ids[i] not in special and (word := text[begin:end].strip()):
            starts = text.index(word, begin)  # the space before a word is the text's
            spans[i] = starts, starts + len(word)
            last = end
    # Whole words of one token only: a blank then stands for one word.
    whole = [
        i for i, span in spans.items() if words.count(words[i]) == 1 and re.fullmatch(r"\w{2,}", text[slice(*span)])
    ]
    if not whole:
        return None
    chosen = whole[start % len(whole) :: EVERY]
    cuts = [spans[i] for i in chosen]
    text = text[: max(end for _, end in offsets)]
    for i in chosen:
        ids[i] = tokenizer.mask_token_id
    originals = tuple(text[slice(*cut)] for cut in cuts)
    return Exercise(text, tuple(ids), tuple(chosen), tuple(chosen), originals, _between(text, cuts), spans)


def _between(text: str, cuts: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    edges = [0, *(edge for cut in cuts for edge in cut), len(text)]
    return tuple(text[edges[k] : edges[k + 1]] for k in range(0, len(edges), 2))


def _causal(tokenizer: Any, text: str, start: int, length: int) -> Exercise | None:
    ids = list(tokenizer(text, truncation=True, max_length=length)["input_ids"])
    texts = [tokenizer.decode([token]) for token in ids]
    begins = _beginnings(tokenizer, ids)
    # Whole words of one token, with some context before them: a blank then stands for one word.
    words = [i for i in range(4, len(ids) - 1) if begins[i] and begins[i + 1] and re.fullmatch(r"\s?\w{2,}", texts[i])]
    if not words:
        return None
    chosen = words[start % len(words) :: EVERY]
    # What all tokens up to an edge say together: by itself a token may lose the space before it.
    edges = [edge for i in chosen for edge in (i, i + 1)]
    how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    ends = [tokenizer.decode(ids[:edge], **how) for edge in (*edges, len(ids))]
    parts = [after[len(before) :] for before, after in zip(["", *ends], ends, strict=False)]
    for k in range(1, len(parts), 2):  # the space before a word is the text's
        word = parts[k].lstrip()
        parts[k - 1] += parts[k][: len(parts[k]) - len(word)]
        parts[k] = word
    return Exercise(
        text, tuple(ids), tuple(chosen), tuple(i - 1 for i in chosen), tuple(parts[1::2]), tuple(parts[::2])
    )


def _beginnings(tokenizer: Any, ids: list[int]) -> list[bool]:
    """Whether each token begins a word or is punctuation, by the marks that byte-level and SentencePiece tokens carry."""
    pieces = tokenizer.convert_ids_to_tokens(ids)
    if not any(piece[:1] in ("Ġ", "▁") for piece in pieces):
        return [True] * len(ids)  # a tokenizer of whole words
    return [piece[:1] in ("Ġ", "▁", "Ċ") or not piece[:1].isalnum() for piece in pieces]


def fill(loaded: LoadedModel, work: Exercise) -> Filling:
    """What the model as it is now puts into each blank, with its whole distribution there, and its word at every position."""
    import torch

    tokenizer: Any = loaded.tokenizer
    ids = torch.tensor([work.ids], device=loaded.device)
    with torch.inference_mode(), fast_products():
        logits = loaded.language(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        there = logits[torch.tensor(work.read_at, device=logits.device)].float().softmax(-1).cpu()
    best = there.argmax(-1).tolist()
    masked = loaded.head == "masked"
    words = [_name(tokenizer, token) if masked else tokenizer.decode([token]) for token in best]
    return Filling(tuple(words), tuple(best), there.numpy(), tuple(logits.argmax(-1).tolist()))


def continuation(loaded: LoadedModel, text: str) -> tuple[str, str] | None:
    """(prompt, greedy continuation) of the first words of `text`; None for models that are not causal, or without words.

    None too where the model is read block by block: each word would read all weights.
    """
    import torch

    tokenizer: Any = loaded.tokenizer
    if tokenizer is None or loaded.blocks or loaded.head != "causal" or not text:
        return None
    limit = token_limit(loaded, PROMPT_WORDS * 4 + CONTINUE)
    words = " ".join(text.split()[:PROMPT_WORDS])
    prompt = tokenizer(words, truncation=True, max_length=max(2, limit // 2))["input_ids"]
    _, behind = added_ends(tokenizer, [words])
    prompt = prompt[: len(prompt) - len(behind)]  # an end would be gone on from as if another text began
    step, cache = torch.tensor([prompt], device=loaded.device), None
    whole = bool(
        getattr(loaded.language, "_is_stateful", False)
    )  # its cache is no list of keys and values: all is read anew
    said: list[int] = []
    with torch.inference_mode(), fast_products():
        while len(said) < min(CONTINUE, limit - len(prompt)):
            seen = torch.ones(1, len(prompt) + len(said), dtype=torch.long, device=loaded.device)
            kept = {} if whole else {"past_key_values": cache, "use_cache": True}
            output = loaded.language(input_ids=step, attention_mask=seen, **kept)
            cache, token = getattr(output, "past_key_values", None), int(output.logits[0, -1].argmax())
            whole = whole or cache is None
            said.append(token)
            if token == tokenizer.eos_token_id:
                break
            step = torch.tensor([[*prompt, *said] if whole else [token]], device=loaded.device)
    return tokenizer.decode(prompt, skip_special_tokens=True), tokenizer.decode(said)


def filled(
    loaded: LoadedModel, work: Exercise, now: Filling, intact: Filling, *, label: str, dims: tuple[int, ...]
) -> FilledPassage:
    """The exercise as filled `now`, each blank judged against the intact model's fill.

    A masked model is held to the words that it is shown as well: those that the intact model repeats and this one does not
    stand in the passage as "changed".
    """
    tokenizer: Any = loaded.tokenizer
    special = set(tokenizer.all_special_tokens)
    masked = loaded.head == "masked"

    def shown(word: str) -> str:
        readable = tokenizer.convert_tokens_to_string([word]) if masked else word
        return readable.strip() or word

    said = [
        Blank(
            position=work.blanks[i],
            filled=shown(word),
            intact=shown(intact.words[i]),
            original=work.originals[i],
            kind=judge(
                word,
                intact.words[i],
                now.words[:i],
                special=special,
                whole_words=masked,
                probability=float(intact.probabilities[i, now.tokens[i]]),
            ),
        )
        for i, word in enumerate(now.words)
    ]
    for i, span in work.spans.items():
        if i not in work.blanks and now.everywhere[i] != intact.everywhere[i] == work.ids[i]:
            original = work.text[slice(*span)]
            said.append(Blank(i, shown(_name(tokenizer, now.everywhere[i])), original, original, "changed"))
    said.sort(key=lambda one: one.position)
    pieces = _between(work.text, [work.spans[one.position] for one in said]) if work.spans else work.pieces
    return FilledPassage(label, dims, pieces, tuple(said))


def _name(tokenizer: Any, token: int) -> str:
    """A token as the tokenizer writes it; a model may have rows for tokens that its tokenizer lacks."""
    return tokenizer.convert_ids_to_tokens(token) or "\ufffd"


def judge(
    word: str, intact: str, before: tuple[str, ...], *, special: set[str], whole_words: bool, probability: float
) -> FillKind:
    """ "same" as the intact fill; else "nonsense" for what cannot be a word there; else "other".

    Nonsense is: a special or unused token; an undecodable byte; the third equal fill in a row; a fill to which the
    intact model gives a `probability` below `IMPLAUSIBLE`; and where a whole word was asked for (`whole_words`, masked
    models) text without a letter or digit, or a piece that continues a word.
    """
    if word == intact:
        return "same"
    bare = word.replace("Ġ", "").replace("▁", "").strip()
    unused = re.fullmatch(r"\[unused\d+\]|<unused\d+>|<extra_id_\d+>", bare)
    if word in special or unused or "\ufffd" in word or probability < IMPLAUSIBLE:
        return "nonsense"
    if whole_words and (word.startswith("##") or not re.search(r"\w", bare)):
        return "nonsense"
    return "nonsense" if len(before) >= 2 and before[-1] == before[-2] == word else "other"


# --- under several conditions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reply(Row):
    """A passage under one condition: filled in, and of causal models continued."""

    note = f"In brackets what the model fills in; where that is not the intact model's word: {KINDS}."
    off: str
    """condition"""
    dims: str
    """ablated"""
    filled: Annotated[str | None, Quiet]
    fill: FilledPassage | None
    """passage"""
    begins: str | None
    continued: str | None
    plan: Annotated[Plan, Quiet]


def replies(
    switch: Switch, passage: str, conditions: Sequence[tuple[str, str, Plan]], *, seed: int = 0
) -> Iterator[Reply]:
    """The passage filled in and continued under each of `conditions`, the intact model first: (label, dimensions, plan)."""
    loaded, blanks, first = switch.loaded, exercise(switch.loaded, passage, seed=seed), None

    def read(plan: Plan) -> tuple[Filling | None, tuple[str, str] | None]:
        with switch.off(plan):
            return fill(loaded, blanks) if blanks else None, continuation(loaded, passage)

    read_under = loaded.run(partial(read, plan) for *_, plan in conditions)
    for (label, dims, plan), (now, said) in zip(conditions, read_under, strict=True):
        first = first or now
        words = (
            filled(loaded, blanks, now, first, label=label, dims=dims_of(plan)) if blanks and now and first else None
        )
        if words or said:
            begins, continued = said or (None, None)
            yield Reply(
                off=label, dims=dims, filled=words.line if words else None, begins=begins, continued=continued,
                fill=words, plan=plan,
            )  # fmt: skip


def typical(study: Study, done: Sequence[Outcome]) -> list[tuple[str, str, Plan]]:
    """Conditions of `replies`: intact, the median ordinary (or random) set off, the chosen one off."""
    kinds = [[one for one in done if one.condition.family == kind] for kind in ("ordinary", "random")]
    others = sorted(kinds[0] or kinds[1], key=lambda one: study.change(one).value)
    found: list[tuple[str, Plan]] = [("intact", {})]
    found += [("random", one.condition.plan) for one in others[len(others) // 2 :][:1]]
    return [(label, study.words(plan), plan) for label, plan in (*found, ("chosen", done[0].condition.plan))]
