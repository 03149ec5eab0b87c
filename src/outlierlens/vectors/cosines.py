"""Cosines of vectors, as statistics that take weights of sentences: one call gives the value and its bootstrap.

    units = unit(vectors)                                    # [token, dim], one token per sentence
    mean_cosine(units)                                       # [1]; or with weights [replicate, token]: [replicate]
    contributions(units).sum() == mean_cosine(units)[0]      # what every dimension adds to it
    self_similarity(units, word, weights)

Cosines lie in [−1, 1]; a vector of length 0 has cosine 0 with every other. A weight is how often a sentence was drawn; pairs
of copies of one sentence never count, since their cosine is 1 by construction.

Values and intervals over sentences, of a measure and of its difference from raw vectors.

    weights = multinomial_weights(n_sentences, 500, seed)     # [replicate, sentence], row 0 is every sentence once
    clipped = mean_cosine(units, weights[:, sentence])
    estimate(clipped), estimate(clipped - raw)

Statistics of one layer, whatever the fix, are taken with the same weights, so differences are paired.
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.results.rows import Estimate
from outlierlens.statistics.bootstrap import jackknife_error, percentile_interval
from outlierlens.statistics.means import critical
from outlierlens.statistics.ranks import ratio

BLOCK = 2**22  # numbers worked on at once
GROUPS = 10  # of sentences that a jackknife leaves out in turn
FEWEST_SENTENCES = 100  # of a jackknife


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1 [..., dim], float64; a vector of length 0 stays 0."""
    vectors = np.asarray(vectors, dtype=np.float64)
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


def mean_cosine(units: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Mean cosine of all pairs of different rows of `units` [token, dim]: [replicate], of `weights` [replicate, token].

    The weighted sum over i != j is |Σ w_i u_i|² − Σ w_i² |u_i|². NaN where fewer than two rows are drawn.

    Raises:
        BadInput: fewer than two rows.
    """
    if len(units) < 2:
        raise BadInput(f"a mean cosine needs at least 2 vectors, got {len(units)}; give more text")
    weights = np.ones((1, len(units))) if weights is None else np.asarray(weights, dtype=np.float64)
    squares = (units**2).sum(1)
    above = ((weights @ units) ** 2).sum(1) - weights**2 @ squares
    return ratio(above, weights.sum(1) ** 2 - (weights**2).sum(1), np.nan)


def pair_cosines(units: np.ndarray) -> np.ndarray:
    """Cosine of rows 0 and 1, 2 and 3, … [pair]: pairs that share no row (Luo et al. 2021, section 4.1)."""
    n = len(units) // 2 * 2
    return (units[0:n:2] * units[1:n:2]).sum(1)


def contributions(units: np.ndarray) -> np.ndarray:
    """Mean over pairs of different rows of u_d v_d [dim]; the sum is the mean cosine (Timkey and van Schijndel 2021)."""
    return contributions_of(units.sum(0), (units**2).sum(0), len(units))


def contributions_of(total: np.ndarray, squares: np.ndarray, n: int) -> np.ndarray:
    """`contributions` from sums over `n` unit vectors: of them, `total` [dim], and of their squares [dim].

    Raises:
        BadInput: fewer than two vectors.
    """
    if n < 2:
        raise BadInput(f"contributions need at least 2 vectors, got {n}; give more text")
    return np.asarray((total**2 - squares) / (n * (n - 1)))


def informativity(units: np.ndarray, pairs: np.ndarray, order: Sequence[int]) -> dict[int, float]:
    """{k: r² of the cosines of `pairs` [pair, 2] with all dimensions and without the first k of `order`}, in [0, 1].

    Near 1 the k dimensions do not matter, near 0 the cosine says what they say and nothing else (Timkey and van Schijndel
    2021). NaN where cosines do not vary.
    """
    one, other = pairs[:, 0], pairs[:, 1]
    whole = np.empty(len(pairs))
    step = max(1, BLOCK // units.shape[1])
    for start in range(0, len(pairs), step):
        part = slice(start, start + step)
        whole[part] = np.einsum("pd,pd->p", units[one[part]], units[other[part]])
    found = {}
    for k in (1, 3, 5):
        top = units[:, list(order[:k])]
        left = np.maximum((units**2).sum(1) - (top**2).sum(1), 0)
        scale = np.sqrt(left[one] * left[other])
        rest = ratio(whole - (top[one] * top[other]).sum(1), scale, np.nan)
        found[k] = _r_squared(whole, np.nan_to_num(rest))
    return found


def self_similarity(units: np.ndarray, word: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Mean over words of the mean pairwise cosine of a word's vectors: [replicate], of `weights` [replicate, context].

    `units` [context, dim], `word` [context] the number of each vector's word. 1 means that every word is represented alike
    everywhere. Ethayarajh (2019), section 3; eq. 1 of Luo et al. (2021) divides the sum over i < j by n(n − 1), which is
    half this mean. A word of which a replicate draws fewer than two sentences is left out of it.

    Raises:
        BadInput: a word with one vector alone.
    """
    columns = np.ones((len(units), 1)) if weights is None else np.ascontiguousarray(weights.T)  # [context, replicate]
    _, place, size = np.unique(word, return_inverse=True, return_counts=True)
    if not len(size) or size.min() < 2:
        raise BadInput("self-similarity needs at least 2 contexts of every word; lower min_sentences or add text")
    order = np.argsort(place, kind="stable")
    starts = np.concatenate([[0], np.cumsum(size)])
    total, words = np.zeros(columns.shape[1]), np.zeros(columns.shape[1])
    step = max(1, BLOCK // (int(size.max()) * max(units.shape[1], columns.shape[1])))
    for first in range(0, len(size), step):
        last = min(first + step, len(size))
        longest = int(size[first:last].max())
        at = np.zeros((last - first, longest), dtype=np.int64)  # [word, context]
        there = np.arange(longest) < size[first:last, None]
        at[there] = order[starts[first] : starts[last]]
        vectors = units[at] * there[..., None]
        gram = vectors @ vectors.transpose(0, 2, 1)
        gram[:, np.arange(longest), np.arange(longest)] = 0
        drawn = columns[at].astype(np.float64) * there[..., None]  # [word, context, replicate]
        above = ((gram @ drawn) * drawn).sum(1)
        below = drawn.sum(1) ** 2 - (drawn**2).sum(1)
        total += ratio(above, below).sum(0)
        words += (below > 0).sum(0)
    return ratio(total, words, np.nan)


def to_the_mean(vectors: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Mean cosine between a sentence's token vectors and their mean [sentence], of `vectors` [token, dim].

    Sentences stand one behind the other, sentence i from `starts[i]` on. Ethayarajh (2019), section 3, intra-sentence
    similarity. NaN for a sentence of one token.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    length = np.sqrt(np.einsum("td,td->t", vectors, vectors))
    found = np.full(len(starts), np.nan)
    for sentence, (first, last) in enumerate(zip(starts, np.append(starts[1:], len(vectors)), strict=True)):
        if last - first > 1:
            mean = vectors[first:last].mean(0)
            scale = length[first:last] * np.sqrt(mean @ mean)
            found[sentence] = ratio(vectors[first:last] @ mean, scale).mean()
    return found


def _r_squared(one: np.ndarray, other: np.ndarray) -> float:
    if one.std() == 0 or other.std() == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1] ** 2)


def estimate(values: np.ndarray) -> Estimate:
    """Value and percentile interval of `values` [replicate], the value itself first."""
    low, high = percentile_interval(values[1:], fewest=2)
    return Estimate(float(values[0]), float(low), float(high))


def jackknife(values: np.ndarray, n: int) -> Estimate:
    """Value and interval of `values`: all `n` sentences, then without each group in turn.

    Of groups left out a t interval: a bootstrap draws vectors twice, which makes any spread look smaller than it is. None, not
    settled, of fewer than 100 sentences.
    """
    value, groups = float(values[0]), len(values) - 1
    if n < FEWEST_SENTENCES:
        return Estimate(value)
    reach = round(critical(max(1, groups - 1)), 3) * jackknife_error(values[1:])  # t as printed tables have it
    return Estimate(value, value - reach, value + reach)
