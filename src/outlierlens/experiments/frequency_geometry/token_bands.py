"""Tokens cut into bands by how often they occur in a corpus, drawn, and the norms and cosines of their vectors.

    drawn = draw(tokens, counts, vocabulary, Banding(n_bands=5), seed=0)
    drawn.bands[0], drawn.text, drawn.place          # what each band holds; the tokens whose vectors are wanted
    BandMeasure(drawn, n_bootstrap=500, seed=0).measure(vectors)["cosine"]      # [band, replicate]

A band has at most one token of a text, so all its pairs are of different texts.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from outlierlens.data.token_counts import TokenCounts
from outlierlens.errors import BadInput
from outlierlens.experiments.frequency.measure import Vocabulary
from outlierlens.experiments.frequency_geometry.result import BY_BAND, Band
from outlierlens.options import Flag, check
from outlierlens.statistics.bootstrap import multinomial_weights
from outlierlens.statistics.ranks import ratio, resampled_spearman
from outlierlens.vectors.cosines import mean_cosine, unit
from outlierlens.vectors.read import Tokens
from outlierlens.vectors.spans import Drawing, kept_tokens

LEAST = 4  # tokens of a band
EXAMPLES = 8


@dataclass(frozen=True)
class Banding:
    """How tokens are cut into bands, and how many are drawn."""

    n_bands: Annotated[int, Flag("--bands"), Ge(2)] = 5
    """Bands of frequency, with as many occurrences each."""
    tokens_per_band: Annotated[int, Ge(LEAST)] = 1000
    """At most N tokens from each band, one per text."""
    special: bool = False
    """Draw special tokens too."""
    skip_first: Annotated[int, Ge(0)] = 0
    """Leave out N tokens at each text's start (attention sinks)."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Drawn:
    """The tokens that are measured, band after band.

    Attributes:
        text: index of the text [token]; place: token in it, special ones counted; id, band, count: of each [token].
        bands: from the rarest to the most frequent. n_occurrences, n_types, unknown, unknown_types: see `FrequencyBands`.
        shared: share of the occurrences whose counts a published file does not tell apart.
        uncounted: special tokens of the texts that have no count.
    """

    text: np.ndarray
    place: np.ndarray
    id: np.ndarray
    band: np.ndarray
    count: np.ndarray
    bands: tuple[Band, ...]
    n_occurrences: int
    n_types: int
    unknown: float
    unknown_types: int
    shared: float
    uncounted: tuple[str, ...] = ()


def bands_of(count: np.ndarray, n_bands: int) -> np.ndarray:
    """Band of each occurrence [occurrence], from 0 for the rarest tokens, by the corpus `count` of its token [occurrence].

    Occurrences with the same count are together: where the middle of them stands among all occurrences in order of count,
    as a share of all times `n_bands`, rounded down, is their band. A band that gets nothing falls away.
    """
    _, group, size = np.unique(count, return_inverse=True, return_counts=True)
    middle = np.cumsum(size) - size / 2
    _, band = np.unique((middle * n_bands / max(len(count), 1)).astype(np.int64), return_inverse=True)
    found: np.ndarray = band[group]
    return found


def draw(tokens: Tokens, counts: TokenCounts, vocabulary: Vocabulary, banding: Banding, seed: int = 0) -> Drawn:
    """Tokens of `tokens`, whose texts are all different, drawn by `seed`: at most one a text and band.

    Raises:
        BadInput: all tokens have the same count, or a band has fewer than four texts.
    """
    rules = Drawing(special=banding.special, skip_first=banding.skip_first)
    places = [kept_tokens(tokens, text, rules) for text in range(len(tokens.texts))]
    text = np.repeat(np.arange(len(places)), [len(one) for one in places])
    place = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
    every = tokens.encoded["input_ids"]
    ids = np.array([every[i][j] for i, j in zip(text.tolist(), place.tolist(), strict=True)], dtype=np.int64)
    if not banding.special:
        ordinary = ~vocabulary.special[ids]  # a [SEP] that stands in a text is one of those that the tokenizer adds
        text, place, ids = text[ordinary], place[ordinary], ids[ordinary]
    count = vocabulary.count[ids]
    if len(np.unique(count)) < 2:
        raise BadInput(
            f"all {len(ids):,} tokens of these texts have the same count in {counts.source}, so none is frequent or rare; give "
            f"more text, or other counts"
        )
    band = bands_of(count, banding.n_bands)
    random = np.random.default_rng([seed, 47])
    key = random.random(len(ids))
    chosen, bands = [], []
    for number in range(int(band.max()) + 1):
        mine = np.flatnonzero(band == number)
        mine = mine[np.lexsort((key[mine], text[mine]))]
        _, first = np.unique(text[mine], return_index=True)  # of each text, the token with the smallest key
        if len(first) < LEAST:
            raise BadInput(
                f"only {len(first)} texts hold a token that occurs {_range(count[mine])} times in {counts.source}; at least "
                f"{LEAST} are needed: give more text, or fewer bands"
            )
        picked = np.sort(mine[random.permutation(first)[: banding.tokens_per_band]])
        chosen.append(picked)
        bands.append(_band(ids[mine], count[mine], ids[picked], counts, len(ids)))
    at = np.concatenate(chosen)
    unknown, special = count == 0, vocabulary.special[ids]
    return Drawn(
        text[at], place[at], ids[at], band[at], count[at], tuple(bands),
        n_occurrences=len(ids),
        n_types=len(np.unique(ids)),
        unknown=float(unknown.mean()),
        unknown_types=len(np.unique(ids[unknown])),
        shared=float(vocabulary.shared[ids].mean()),
        uncounted=tuple(_token(counts, one) for one in np.unique(ids[unknown & special]).tolist()),
    )  # fmt: skip


def _band(ids: np.ndarray, count: np.ndarray, drawn: np.ndarray, counts: TokenCounts, total: int) -> Band:
    types, often = np.unique(ids, return_counts=True)
    commonest = types[np.argsort(-often, kind="stable")[:EXAMPLES]]
    return Band(
        low=float(count.min()),
        high=float(count.max()),
        n_types=len(types),
        n_occurrences=len(ids),
        share=len(ids) / total,
        n_tokens=len(drawn),
        n_drawn_types=len(np.unique(drawn)),
        examples=tuple(_token(counts, one) for one in commonest.tolist()),
    )


def _token(counts: TokenCounts, number: int) -> str:
    return counts.tokens[number] if number < len(counts.tokens) and counts.tokens[number] else f"id {number}"


def _range(count: np.ndarray) -> str:
    low, high = count.min(), count.max()
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


class BandMeasure:
    """Measures layer after layer with the same texts drawn again, so that layers and states are paired.

    Args:
        drawn: what the vectors are of. n_bootstrap, seed: of intervals.
    """

    def __init__(self, drawn: Drawn, n_bootstrap: int, seed: int):
        self.count = drawn.count
        self.n_bands = len(drawn.bands)
        texts, self.text = np.unique(drawn.text, return_inverse=True)
        self.weights = multinomial_weights(len(texts), n_bootstrap, seed).astype(np.float64)  # [replicate, text]
        self.members = [np.flatnonzero(drawn.band == number) for number in range(self.n_bands)]
        # Tokens of a band that are of one type, where there are several.
        self.alike: list[list[np.ndarray]] = []
        for mine in self.members:
            _, group, size = np.unique(drawn.id[mine], return_inverse=True, return_counts=True)
            parts = np.split(np.argsort(group, kind="stable"), np.cumsum(size)[:-1])
            self.alike.append([part for part in parts if len(part) > 1])

    def measure(self, vectors: np.ndarray, n: int | None = None) -> dict[str, np.ndarray]:
        """Every number of `vectors` [token, dim] with all texts once, then of each draw: the first `n`, or all, of them.

        {"norm", "cosine", "cosine_types": [band, replicate], and each of `OVERALL`: [replicate]}.
        """
        vectors = np.asarray(vectors, dtype=np.float64)
        length, units = np.linalg.norm(vectors, axis=1), unit(vectors)
        texts = self.weights[:n]
        weights = texts[:, self.text]  # [replicate, token]
        found: dict[str, list[np.ndarray]] = {name: [] for name in BY_BAND}
        sums, sizes = [], []
        for mine, alike in zip(self.members, self.alike, strict=True):
            often = weights[:, mine]
            found["norm"].append(ratio(often @ length[mine], often.sum(1), np.nan))
            found["cosine"].append(mean_cosine(units[mine], often))
            found["cosine_types"].append(of_other_types(units[mine], often, alike))
            whole, size = np.zeros((texts.shape[1], units.shape[1])), np.zeros(texts.shape[1])
            whole[self.text[mine]], size[self.text[mine]] = units[mine], 1.0  # a band has at most one token per text
            sums.append(whole)
            sizes.append(size)
        every, n_every = np.sum(sums, axis=0), np.sum(sizes, axis=0)
        by_band = {name: np.stack(values) for name, values in found.items()}
        return by_band | {
            "anisotropy": across((every, n_every), (every, n_every), texts),
            "between": across((sums[0], sizes[0]), (sums[-1], sizes[-1]), texts),
            "spearman": resampled_spearman(self.count, length, weights),
            "norm_ratio": ratio(by_band["norm"][-1], by_band["norm"][0], np.nan),
            "cosine_gap": by_band["cosine"][-1] - by_band["cosine"][0],
            "types_gap": by_band["cosine_types"][-1] - by_band["cosine_types"][0],
        }


def across(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Mean cosine of two groups' tokens over all pairs of different texts: [replicate], of `weights` [replicate, text].

    Each group is (sums of its unit vectors by text [text, dim], their number [text]). The weighted sum over texts t ≠ s is
    (Σ w_t a_t) · (Σ w_s b_s) − Σ w_t² a_t · b_t, and the number of pairs the same with numbers in place of sums.
    """
    (a, n_a), (b, n_b), squares = one, other, weights**2
    above = ((weights @ a) * (weights @ b)).sum(1) - squares @ (a * b).sum(1)
    return ratio(above, (weights @ n_a) * (weights @ n_b) - squares @ (n_a * n_b), np.nan)


def of_other_types(units: np.ndarray, weights: np.ndarray, alike: list[np.ndarray]) -> np.ndarray:
    """Mean cosine of pairs of rows of different types [replicate]; `alike` are the rows of each type that has several."""
    squares = weights**2
    above = ((weights @ units) ** 2).sum(1) - squares @ (units**2).sum(1)
    below = weights.sum(1) ** 2 - squares.sum(1)
    for rows in alike:
        gram, often = units[rows] @ units[rows].T, weights[:, rows]
        np.fill_diagonal(gram, 0)
        above -= ((often @ gram) * often).sum(1)
        below -= often.sum(1) ** 2 - (often**2).sum(1)
    return ratio(above, below, np.nan)
