"""Which sentences, tokens and words are measured, drawn by seed before the model runs.

    sample = draw(tokens, Drawing(n_pairs=1000), seed=0)
    sample.spans                       # one run over the model reads all of them
    sample.pairs, sample.contexts, sample.whole      # slices of the spans

Three kinds of vectors: one token of each of 2 × `n_pairs` sentences; words, at most one occurrence a sentence; and all tokens
of as many of those sentences as `max_tokens` allows.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import Flag, Options
from outlierlens.vectors.read import Spans, Tokens

WORD = re.compile(r"\w+(?:['’]\w+)*")  # an apostrophe may stand between letters; without a letter it is no word


@dataclass(frozen=True)
class Drawing(Options):
    """Sizes of the samples."""

    n_pairs: Annotated[int, Flag("--pairs"), Ge(2)] = 1000
    """Pairs of sentences, one token each (Luo et al. 2021: 1,000); fewer where there are fewer sentences."""
    n_words: Annotated[int, Flag("--words"), Ge(0)] = 1000
    """Words whose self-similarity is measured, as written: "The" and "the" are two."""
    min_sentences: Annotated[int, Ge(2)] = 10
    """Fewest sentences in which a word must occur."""
    max_contexts: Annotated[int, Ge(2)] = 20
    """At most N sentences per word, drawn at random."""
    max_tokens: Annotated[int, Flag("--tokens"), Ge(2)] = 20_000
    """At most N tokens of whole sentences for intra-sentence similarity and IsoScore."""
    special: bool = False
    """Draw special tokens too (words never hold any)."""
    skip_first: Annotated[int, Ge(0)] = 0
    """Leave out N tokens at each text's start (attention sinks)."""


@dataclass(frozen=True)
class SpanSample:
    """The sampled tokens and words.

    Attributes:
        spans: of all kinds: pairs, contexts, whole.
        pairs: tokens of sentences, 0 with 1, 2 with 3, …; contexts: words; whole: tokens of whole sentences.
        word: of each context, the number of its word in `words`.
        starts: of each whole sentence, its first token among `whole`.
        sentence: of each span, the number of its sentence among `texts`.
        texts: indices of the sentences that are measured.
        words: drawn words; n_eligible: words they were drawn from.
    """

    spans: Spans
    pairs: slice
    contexts: slice
    whole: slice
    word: np.ndarray
    starts: np.ndarray
    sentence: np.ndarray
    texts: np.ndarray
    words: tuple[str, ...]
    n_eligible: int

    @property
    def n_pairs(self) -> int:
        """Disjoint pairs of sentences."""
        return self.pairs.stop // 2


def draw(tokens: Tokens, drawing: Drawing, seed: int = 0) -> SpanSample:
    """The sample of `tokens`, whose texts are all different.

    Pictures and recordings stand for sentences; they have no words.

    Raises:
        BadInput: fewer than four sentences with a token, or a tokenizer that does not say where its tokens stand.
    """
    allowed = [kept_tokens(tokens, text, drawing) for text in range(len(tokens.texts))]
    random = np.random.default_rng([seed, 17])
    order = [int(i) for i in random.permutation(len(allowed)) if len(allowed[i])]
    drawn = order[: min(2 * drawing.n_pairs, len(order) // 2 * 2)]
    if len(drawn) < 4:
        raise BadInput(
            f"only {len(order)} of {len(allowed):,} different {tokens.plural} hold a token that counts; at least 4 are needed"
        )
    places = [int(random.choice(allowed[text])) for text in drawn]
    words, contexts = _contexts(tokens, drawing, random)
    whole: list[tuple[int, np.ndarray]] = []
    room = drawing.max_tokens
    for text in drawn:
        if len(allowed[text]) <= room:
            whole.append((text, allowed[text]))
            room -= len(allowed[text])
    chosen = [spot for name in words for spot in contexts[name]]
    none = np.zeros(0, dtype=np.int64)
    context = tokens.words(*map(list, zip(*chosen, strict=True))) if chosen else Spans(none, none, none)
    single = tokens.single(drawn, places)
    inner = tokens.single(
        np.repeat([text for text, _ in whole], [len(kept) for _, kept in whole]),
        np.concatenate([kept for _, kept in whole] or [np.zeros(0, dtype=np.int64)]),
    )
    parts = (single, context, inner)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    spans = Spans(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("text", "first", "last")))
    texts, sentence = np.unique(spans.text, return_inverse=True)
    return SpanSample(
        spans=spans,
        pairs=slice(0, ends[0]),
        contexts=slice(ends[0], ends[1]),
        whole=slice(ends[1], ends[2]),
        word=np.repeat(np.arange(len(words)), [len(contexts[name]) for name in words]),
        starts=np.concatenate([[0], np.cumsum([len(kept) for _, kept in whole])])[:-1].astype(np.int64),
        sentence=sentence,
        texts=texts,
        words=tuple(words),
        n_eligible=len(contexts),
    )


def kept_tokens(tokens: Tokens, text: int, drawing: Drawing) -> np.ndarray:
    """Positions of the tokens of a text that may be drawn, in order."""
    kept = np.arange(len(tokens.special[text])) if drawing.special else tokens.ordinary(text)
    return kept[drawing.skip_first :]


def _contexts(tokens: Tokens, drawing: Drawing, random: Any) -> tuple[list[str], dict[str, list[tuple[int, int, int]]]]:
    """Drawn words, and (text, start, end) of each eligible word, at most `max_contexts`, one a sentence: its first there."""
    if not drawing.n_words or tokens.rows is not None:
        return [], {}
    if tokens.offsets is None:
        raise BadInput(
            "this tokenizer does not say where in the text its tokens stand, so words cannot be found; use --words 0, or "
            "the model's fast tokenizer (tokenizer.json)"
        )
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for text, content in enumerate(tokens.texts):
        kept = tokens.offsets[text][tokens.ordinary(text)[drawing.skip_first :]]
        if not len(kept):
            continue
        first, last = int(kept[:, 0].min()), int(kept[:, 1].max())  # a word that was cut off is not measured
        seen = set()
        for match in WORD.finditer(content):
            word = match.group()
            inside = match.start() >= first and match.end() <= last
            if inside and word not in seen and any(letter.isalpha() for letter in word):
                seen.add(word)
                found[word].append((text, match.start(), match.end()))
    eligible = {word: spots for word, spots in sorted(found.items()) if len(spots) >= drawing.min_sentences}
    names = list(eligible)
    words = [names[i] for i in random.permutation(len(names))[: drawing.n_words]]
    for word in words:
        spots = eligible[word]
        if len(spots) > drawing.max_contexts:
            eligible[word] = [spots[i] for i in sorted(random.permutation(len(spots))[: drawing.max_contexts].tolist())]
    return words, eligible
