"""Figures of vectors: of a layer after each fix, how evenly vectors fill their space, and of bands of tokens.

measure = LayerMeasure(sample, n_bootstrap=500, seed=0)
for name, figures in measure.figures(vectors, {"raw": fix}): ...   # vectors [span, dim] of sample.spans; plain data
parts = scatters(vectors, groups)                  # [group, dim, dim], about the mean of all
own = own_scatters(vectors, starts)                # what each sentence adds by itself
iso_scores(parts, own, group_of_sentence)          # of all sentences, then without each group: for a jackknife
effective_rank(parts.sum(0))
bands_of(count, 5)                                 # the band of each occurrence, from 0 for the rarest tokens
BandMeasure(text, band, type_id, count, n_bootstrap=500, seed=0).replicates(vectors)["cosine"]     # [band, replicate]

A replicate draws the sentences (or texts) again; the first one is every sentence once. All layers, fixes and states are drawn
alike, so their differences are paired.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.statistics.bootstrap import multinomial_weights
from outlierlens.statistics.ranks import ratio, resampled_spearman
from outlierlens.vectors.cosines import (
    GROUPS,
    contributions,
    informativity,
    mean_cosine,
    pair_cosines,
    self_similarity,
    to_the_mean,
    unit,
)
from outlierlens.vectors.fixes import Fix
from outlierlens.vectors.spans import SpanSample

RANDOM = "random"  # sets of dimensions, whose draws are not needed
PAIRS = 20_000  # of informativity
BY_BAND = ("norm", "cosine", "cosine_types")
OVERALL = ("anisotropy", "between", "spearman", "norm_ratio", "cosine_gap", "types_gap")


def scatters(vectors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Σ x xᵀ over the vectors [vector, dim] of each group [vector], x about the mean of all: [group, dim, dim].

    Raises:
        BadInput: fewer than two vectors, or fewer than two groups.
    """
    n_groups = int(groups.max()) + 1 if len(groups) else 0
    if len(vectors) < 2 or n_groups < 2:
        raise BadInput(f"a covariance needs at least 2 vectors of 2 sentences, got {len(vectors)}; give more text")
    away = np.asarray(vectors, dtype=np.float64)
    away = away - away.mean(0)
    return np.stack([away[groups == group].T @ away[groups == group] for group in range(n_groups)])


def own_scatters(vectors: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Σ |x|² and |Σ x xᵀ|² of each sentence's vectors x about the mean of all: [2, sentence].

    Of `vectors` [vector, dim] of sentences that stand one behind the other, sentence i from `starts[i]` on.
    """
    away = np.asarray(vectors, dtype=np.float64)
    away = away - away.mean(0)
    ends = np.append(starts[1:], len(away))
    grams = [away[first:last] @ away[first:last].T for first, last in zip(starts, ends, strict=True)]
    return np.array([(np.trace(gram), (gram**2).sum()) for gram in grams]).reshape(-1, 2).T


def iso_scores(parts: np.ndarray, own: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """IsoScore (Rudman et al. 2022) of the vectors that sentences are drawn from: of all sentences, then without each group.

    [1 + group], in [0, 1] but for chance. The paper's steps are: variances along principal components, scaled to length √n;
    distance δ of them to (1, …, 1), divided by √(2(n − √n)); φ = (n − δ²(n − √n))² / n²; (nφ − 1) / (n − 1). They come to
    φ = trace² / (n |C|²), so that no principal component has to be computed: the participation ratio of the variances,
    scaled to [0, 1]. Of the few vectors of a sample it is too small, since |C|² counts each with itself; so both squares are
    sums over pairs of *different* sentences, whose expectation is that of the covariance of all there are.

    Args:
        parts: scatter of each group [group, dim, dim]. own: of each sentence [2, sentence]. group_of: group of each sentence.

    Raises:
        BadInput: fewer than two dimensions.
    """
    width = parts.shape[1]
    if width < 2:
        raise BadInput(f"IsoScore needs at least 2 dimensions, got {width}")
    whole, found = parts.sum(0), []
    for left_out in range(-1, len(parts)):
        traces, squares = own[:, group_of != left_out]
        scatter = whole if left_out < 0 else whole - parts[left_out]
        across = (scatter**2).sum() - squares.sum()
        trace = traces.sum() ** 2 - (traces**2).sum()
        found.append((trace / across - 1) / (width - 1) if across > 0 else np.nan)
    return np.array(found)


def effective_rank(covariance: np.ndarray) -> float:
    """exp of the entropy of the normalised singular values of the centred vectors, in [1, dim]; NaN where nothing varies.

    Roy and Vetterli (2007). Singular values are the square roots of the covariance's eigenvalues, up to a factor.
    """
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(covariance), 0))
    if not values.sum() > 0:
        return float("nan")
    share = values / values.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


class LayerMeasure:
    """Measures layer after layer with the same sentences drawn again.

    Args:
        sample: what the vectors are of.
        n_bootstrap, seed: of intervals and of the pairs of informativity.
    """

    def __init__(self, sample: SpanSample, *, n_bootstrap: int = 500, seed: int = 0):
        self.sample = sample
        weights = multinomial_weights(len(sample.texts), n_bootstrap, seed)
        self.of_tokens = weights[:, sample.sentence[sample.pairs]]
        self.of_contexts = weights[:, sample.sentence[sample.contexts]]
        self.of_whole = weights[:, sample.sentence[sample.whole][sample.starts]]
        # Pairs share no sentence, so they are what is drawn again.
        self.of_pairs = multinomial_weights(sample.n_pairs, n_bootstrap, seed + 1)
        random = np.random.default_rng([seed, 29])
        n = sample.pairs.stop
        first = random.integers(n, size=PAIRS)
        self.pairs = np.stack([first, (first + random.integers(1, n, size=PAIRS)) % n], axis=1)
        size = np.diff(np.append(sample.starts, sample.whole.stop - sample.whole.start))
        self.group = np.arange(len(sample.starts)) % min(GROUPS, max(len(sample.starts), 1))  # [sentence]
        self.group_of_token = np.repeat(self.group, size)

    def figures(self, vectors: np.ndarray, fixes: Mapping[str, Fix]) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, figures) after each fix of one layer's `vectors` [span, dim], as the model gives them; plain data.

        "anisotropy", "pairs_cosine", "self_similarity" (() without words), "intra_sentence": [replicate]. "iso_score": of all
        sentences, then without each group. "contributions" [dim] to the anisotropy; "r2" [3], () of whitened vectors, whose
        coordinates are directions of their own. "effective_rank", "n_fitted": numbers.

        Raises:
            BadInput: fewer than two token vectors of whole sentences.
        """
        sample = self.sample
        parts = scatters(vectors[sample.whole], self.group_of_token)
        for name, fix in fixes.items():
            tokens, whole = unit(fix.apply(vectors[sample.pairs])), fix.apply(vectors[sample.whole])
            every, words, r2 = contributions(tokens), np.zeros(0), dict[int, float]()
            if len(sample.word):
                words = self_similarity(unit(fix.apply(vectors[sample.contexts])), sample.word, self.of_contexts)
            if not fix.name.startswith("whiten"):
                r2 = informativity(tokens, self.pairs, np.argsort(-every, kind="stable")[:10].tolist())
            moved = _moved(parts, fix.matrix)
            drawn = {
                "anisotropy": mean_cosine(tokens, self.of_tokens),
                "pairs_cosine": _weighted(pair_cosines(tokens), self.of_pairs),
                "self_similarity": words,
                "intra_sentence": _weighted(to_the_mean(whole, sample.starts), self.of_whole),
                "iso_score": iso_scores(moved, own_scatters(whole, sample.starts), self.group),
                "contributions": every,
            }
            found = {measure: values.tolist() for measure, values in drawn.items()} | {"r2": list(r2.values())}
            yield name, found | {"effective_rank": effective_rank(moved.sum(0)), "n_fitted": fix.n_fitted}


def _weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean of the finite `values` [item] under `weights` [replicate, item]: [replicate]."""
    there = np.isfinite(values)
    total = weights[:, there].sum(1)
    found = np.full(len(weights), np.nan)
    return np.divide(weights[:, there] @ values[there], total, out=found, where=total > 0)


def _moved(parts: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Scatters [group, dim, dim] of x · matrix."""
    return parts * np.outer(matrix, matrix) if matrix.ndim == 1 else matrix.T @ parts @ matrix


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


class BandMeasure:
    """Measures layer after layer with the same texts drawn again; a band has at most one token of a text.

    Args:
        text, band, type_id, count: of each token [token]: its text, its band, its id, its count in the corpus.
        n_bootstrap, seed: of intervals.
    """

    def __init__(
        self, text: np.ndarray, band: np.ndarray, type_id: np.ndarray, count: np.ndarray, *, n_bootstrap: int, seed: int
    ):
        self.count = count
        texts, self.text = np.unique(text, return_inverse=True)
        self.weights = multinomial_weights(len(texts), n_bootstrap, seed).astype(np.float64)  # [replicate, text]
        self.members = [np.flatnonzero(band == number) for number in range(int(band.max()) + 1)]
        # Tokens of a band that are of one type, where there are several.
        self.alike: list[list[np.ndarray]] = []
        for mine in self.members:
            _, group, size = np.unique(type_id[mine], return_inverse=True, return_counts=True)
            parts = np.split(np.argsort(group, kind="stable"), np.cumsum(size)[:-1])
            self.alike.append([part for part in parts if len(part) > 1])

    def figures(self, vectors: np.ndarray, fixes: Mapping[str, Fix]) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, `replicates`, plain data) after each fix; of one whose name begins with `RANDOM` the values over all bands."""
        for name, fix in fixes.items():
            random = name.startswith(RANDOM)
            found = self.replicates(fix.apply(vectors), 1 if random else None)
            yield name, {measure: found[measure].tolist() for measure in (OVERALL if random else found)}

    def replicates(self, vectors: np.ndarray, n: int | None = None) -> dict[str, np.ndarray]:
        """Every number of `vectors` [token, dim] with all texts once, then of each draw: the first `n`, or all, of them.

        {each of `BY_BAND`: [band, replicate], each of `OVERALL`: [replicate]}.
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
