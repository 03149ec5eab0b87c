"""One layer's vectors after one fix: every measure, with the interval and the difference from the raw vectors.

measured = LayerMeasure(sample, weights, named=(557,))
rows = measured.rows("5", vectors, (("raw", fix), ("clip", other)))      # vectors [span, dim], of sample.spans

How evenly vectors fill their space: IsoScore and effective rank.

parts = scatters(vectors, groups)                  # [group, dim, dim], about the mean of all
own = own_scatters(vectors, starts)                # what each sentence adds by itself
iso_scores(parts, own, group_of_sentence)          # of all sentences, then without each group: for a jackknife
effective_rank(parts.sum(0))
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.geometry.result import Contribution, LayerGeometry
from outlierlens.statistics.bootstrap import multinomial_weights
from outlierlens.vectors.cosines import (
    GROUPS,
    Estimate,
    contributions,
    estimate,
    informativity,
    jackknife,
    mean_cosine,
    pair_cosines,
    self_similarity,
    to_the_mean,
    unit,
)
from outlierlens.vectors.fixes import Fix, FixSpec
from outlierlens.vectors.spans import Sample

TOP = 10  # dimensions of largest contribution that are kept
PAIRS = 20_000  # of informativity


@dataclass(frozen=True)
class OwnScatters:
    """Of each sentence's vectors x about the mean of all: their number, Σ |x|² and |Σ x xᵀ|² [sentence] each."""

    size: np.ndarray
    trace: np.ndarray
    square: np.ndarray


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


def own_scatters(vectors: np.ndarray, starts: np.ndarray) -> OwnScatters:
    """Of vectors [vector, dim] of sentences that stand one behind the other, sentence i from `starts[i]` on."""
    away = np.asarray(vectors, dtype=np.float64)
    away = away - away.mean(0)
    ends = np.append(starts[1:], len(away))
    grams = [away[first:last] @ away[first:last].T for first, last in zip(starts, ends, strict=True)]
    found = np.array([(len(gram), np.trace(gram), (gram**2).sum()) for gram in grams])
    return OwnScatters(*found.T)


def iso_scores(parts: np.ndarray, own: OwnScatters, group_of: np.ndarray) -> np.ndarray:
    """IsoScore (Rudman et al. 2022) of the vectors that sentences are drawn from: of all sentences, then without each group.

    [1 + group], in [0, 1] but for chance. The paper's steps are: variances along principal components, scaled to length √n;
    distance δ of them to (1, …, 1), divided by √(2(n − √n)); φ = (n − δ²(n − √n))² / n²; (nφ − 1) / (n − 1). They come to
    φ = trace² / (n |C|²), so that no principal component has to be computed: the participation ratio of the variances,
    scaled to [0, 1]. Of the few vectors of a sample it is too small, since |C|² counts each with itself; so both squares are
    sums over pairs of *different* sentences, whose expectation is that of the covariance of all there are.

    Args:
        parts: scatter of each group [group, dim, dim]. own: of each sentence. group_of: group of each sentence.

    Raises:
        BadInput: fewer than two dimensions.
    """
    width = parts.shape[1]
    if width < 2:
        raise BadInput(f"IsoScore needs at least 2 dimensions, got {width}")
    whole = parts.sum(0)
    found = []
    for left_out in range(-1, len(parts)):
        kept = group_of != left_out
        scatter = whole if left_out < 0 else whole - parts[left_out]
        across = (scatter**2).sum() - own.square[kept].sum()
        trace = own.trace[kept].sum() ** 2 - (own.trace[kept] ** 2).sum()
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


@dataclass(frozen=True)
class FixedLayer:
    """A fix as it is applied to a layer: what was asked for, the repair, and the dimensions it clips."""

    spec: FixSpec
    fix: Fix
    clipped: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Measured:
    """Replicates of the measures of a layer after one fix; what is not resampled stands alone."""

    cosine: np.ndarray
    pairs: np.ndarray
    words: np.ndarray | None
    intra: np.ndarray | None
    iso: np.ndarray


class LayerMeasure:
    """Measures layer after layer with the same sentences drawn again, so that layers and fixes are paired.

    Args:
        sample: what the vectors are of.
        named: dimensions whose share of the cosine is wanted, whatever it is.
        n_bootstrap, seed: of intervals and of the pairs of informativity.
    """

    def __init__(self, sample: Sample, *, named: Sequence[int] = (), n_bootstrap: int = 500, seed: int = 0):
        self.sample, self.named = sample, tuple(named)
        weights = multinomial_weights(len(sample.texts), n_bootstrap, seed)
        self.of_tokens = weights[:, sample.sentence[sample.pairs]]
        self.of_contexts = weights[:, sample.sentence[sample.contexts]]
        self.of_whole = weights[:, sample.sentence[sample.whole][sample.starts]] if len(sample.starts) else None
        # Pairs share no sentence, so they are what is drawn again.
        self.of_pairs = multinomial_weights(sample.n_pairs, n_bootstrap, seed + 1)
        random = np.random.default_rng([seed, 29])
        n = sample.pairs.stop
        first = random.integers(n, size=PAIRS)
        self.pairs = np.stack([first, (first + random.integers(1, n, size=PAIRS)) % n], axis=1)
        size = np.diff(np.append(sample.starts, sample.whole.stop - sample.whole.start))
        self.group = np.arange(len(sample.starts)) % min(GROUPS, max(len(sample.starts), 1))  # [sentence]
        self.group_of_token = np.repeat(self.group, size)

    def rows(self, layer: str, vectors: np.ndarray, fixes: Sequence[FixedLayer]) -> tuple[LayerGeometry, ...]:
        """Every fix of one layer, of `vectors` [span, dim] as the model gives them; differences are from the raw ones.

        Raises:
            BadInput: fewer than two token vectors of whole sentences.
        """
        whole = np.asarray(vectors[self.sample.whole], dtype=np.float64)
        parts = scatters(whole, self.group_of_token)
        raw: _Measured | None = None
        found = []
        for one in sorted(fixes, key=lambda fixed: fixed.spec.kind != "raw"):
            row, measured = self._row(layer, vectors, parts, one, raw)
            raw = measured if one.spec.kind == "raw" else raw
            found.append(row)
        order = [one.spec.name for one in fixes]
        return tuple(sorted(found, key=lambda row: order.index(row.fix)))

    def _row(
        self, layer: str, vectors: np.ndarray, parts: np.ndarray, one: FixedLayer, raw: _Measured | None
    ) -> tuple[LayerGeometry, _Measured]:
        sample, fix = self.sample, one.fix
        tokens = unit(fix.apply(vectors[sample.pairs]))
        words = intra = None
        whole = fix.apply(vectors[sample.whole])
        if len(sample.word):
            words = self_similarity(unit(fix.apply(vectors[sample.contexts])), sample.word, self.of_contexts)
        if self.of_whole is not None:
            intra = _weighted(to_the_mean(whole, sample.starts), self.of_whole)
        moved = _moved(parts, fix.matrix)
        measured = _Measured(
            cosine=mean_cosine(tokens, self.of_tokens),
            pairs=_weighted(pair_cosines(tokens), self.of_pairs),
            words=words,
            intra=intra,
            iso=iso_scores(moved, own_scatters(whole, sample.starts), self.group),
        )
        if one.spec.kind == "raw":
            raw = measured
        cosine = estimate(measured.cosine, None if raw is None else raw.cosine)
        every, coordinates = contributions(tokens), one.spec.kind != "whiten"
        total = every.sum() if cosine.low > 0 or cosine.high < 0 else np.nan
        largest = np.argsort(-every, kind="stable")[:TOP].tolist()
        width = tokens.shape[1]
        row = LayerGeometry(
            layer=layer,
            fix=one.spec.name,
            width=width,
            clipped=one.clipped,
            n_fitted=fix.n_fitted,
            shrinkage=fix.shrinkage,
            anisotropy=cosine,
            pairs_cosine=estimate(measured.pairs, None if raw is None else raw.pairs),
            self_similarity=_estimate("words", measured, raw),
            self_similarity_adjusted=_estimate("words", measured, raw, adjusted=True),
            intra_sentence=_estimate("intra", measured, raw),
            intra_sentence_adjusted=_estimate("intra", measured, raw, adjusted=True),
            iso_score=jackknife(measured.iso, None if raw is None else raw.iso, len(self.group)),
            effective_rank=effective_rank(moved.sum(0)),
            top=tuple(_contribution(dim, every, total) for dim in largest) if coordinates else (),
            named=tuple(_contribution(dim, every, total) for dim in self.named) if coordinates else (),
            top_share=float(every[largest[:3]].sum() / total),
            informativity=informativity(tokens, self.pairs, largest) if coordinates else {},
        )
        return row, measured


def _contribution(dim: int, every: np.ndarray, total: float) -> Contribution:
    return Contribution(dim, float(every[dim]), float(every[dim] / total))


def _estimate(name: str, measured: _Measured, raw: _Measured | None, *, adjusted: bool = False) -> Estimate | None:
    """Of words or sentences, minus the anisotropy where `adjusted`: the same sentences drawn again for both."""
    values: np.ndarray | None = getattr(measured, name)
    before: np.ndarray | None = None if raw is None else getattr(raw, name)
    if values is None or not np.isfinite(values[0]):
        return None
    if not adjusted:
        return estimate(values, before)
    return estimate(values - measured.cosine, None if raw is None or before is None else before - raw.cosine)


def _weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean of the finite `values` [item] under `weights` [replicate, item]: [replicate]."""
    there = np.isfinite(values)
    total = weights[:, there].sum(1)
    found = np.full(len(weights), np.nan)
    return np.divide(weights[:, there] @ values[there], total, out=found, where=total > 0)


def _moved(parts: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Scatters [group, dim, dim] of x · matrix."""
    return parts * np.outer(matrix, matrix) if matrix.ndim == 1 else matrix.T @ parts @ matrix
