"""Correlations of the sums of passes: every dimension beside the named ones, with ranks and intervals.

correlations(passes, named, control)          # passes: intact, off, and random ones; -> tuple of KeyCorrelation
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from outlierlens.experiments.attention.condition import FIRST, REST, SPECIAL, Measured
from outlierlens.experiments.attention.moments import correlation
from outlierlens.experiments.attention.result import BAND, KeyCorrelation, Keys
from outlierlens.statistics.p_values import rank_among
from outlierlens.statistics.resampling import finite_quantiles, percentile_interval

PARTS: dict[Keys, tuple[str, ...]] = {
    "all": (REST, FIRST, SPECIAL),
    "without_special": (REST, FIRST),
    "without_first": (REST,),
}


@dataclass(frozen=True)
class Passes:
    """Sums with nothing off, with the outliers off, and with each draw of random dimensions off."""

    intact: Measured
    off: Measured
    randoms: Sequence[Measured]


def correlations(passes: Passes, named: Sequence[int], control: Sequence[int]) -> tuple[KeyCorrelation, ...]:
    """One for each way to average and each choice of keys; `control` dimensions, all but the named ones for ()."""
    return tuple(
        _one(passes, place, keys, list(named), list(control))
        for place in range(len(passes.intact.means))
        for keys in PARTS
    )


def _one(passes: Passes, place: int, keys: Keys, named: list[int], control: list[int]) -> KeyCorrelation:
    intact = passes.intact
    per_head = [of_dims(intact, layer, place, keys) for layer in sorted(intact.pairs)]
    drawn = np.stack([of_texts(intact, layer, place, keys) for layer in sorted(intact.pairs)], axis=1)
    others = np.setdiff1d(np.arange(per_head[0].shape[1]), named)
    every = np.stack([over_heads(one) for one in per_head])
    low, high = percentile_interval(over_heads(drawn[1:], axis=2))
    heads_low, heads_high = percentile_interval(drawn[1:])
    size = np.abs(every)
    rank, p = ranks(size, named, others)
    overall = over_layers(size)
    overall_rank, overall_p = ranks(overall[None], named, others)
    overall_low, overall_high = percentile_interval(over_layers(np.abs(over_heads(drawn[1:], axis=2)), axis=1))
    every_off = _every(passes.off, place, keys)
    return KeyCorrelation(
        mean=intact.means[place],
        keys=keys,
        n_keys=sum(intact.n_keys[part] for part in PARTS[keys]),
        every=every,
        every_off=every_off,
        low=low,
        high=high,
        heads=np.stack([one[:, named] for one in per_head]),
        heads_low=heads_low,
        heads_high=heads_high,
        head_band=np.stack([finite_quantiles(one[:, others], BAND) for one in per_head]),
        control=np.stack([over_heads(one[:, control or others], axis=1) for one in per_head]),
        rank=rank,
        p=p,
        overall=overall[named],
        overall_low=overall_low,
        overall_high=overall_high,
        overall_rank=overall_rank[0],
        overall_p=overall_p[0],
        off=every_off[:, named],
        random=np.stack([_every(one, place, keys)[:, named] for one in passes.randoms])
        if passes.randoms
        else np.zeros((0, len(every), len(named))),
    )


def of_dims(measured: Measured, layer: int, place: int, keys: Keys) -> np.ndarray:
    """r of every head with every dimension [head, dim] of one layer."""
    total = reduce(add, [measured.pairs[layer][part].sums() for part in PARTS[keys]])
    return correlation(total)[_columns(measured, place)]


def of_texts(measured: Measured, layer: int, place: int, keys: Keys) -> np.ndarray:
    """r of every head with the named dimensions [replicate, head, named] of one layer."""
    total = reduce(add, [measured.drawn[layer][part].sums() for part in PARTS[keys]])
    return correlation(total)[:, _columns(measured, place)]


def _columns(measured: Measured, place: int) -> slice:
    return slice(place * measured.heads, (place + 1) * measured.heads)


def _every(measured: Measured, place: int, keys: Keys) -> np.ndarray:
    return np.stack([over_heads(of_dims(measured, layer, place, keys)) for layer in sorted(measured.pairs)])


def over_heads(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean of the finite values along an axis; NaN where none is."""
    there = np.isfinite(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


over_layers = over_heads


def ranks(size: np.ndarray, named: Sequence[int], others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rank, p) [row, named] of each named dimension among it and the `others`, by `size` [row, dim], the largest first.

    p = (1 + others at least as large) / (1 + others); a size that is no number is the smallest there can be.
    """
    known = np.nan_to_num(size, nan=-np.inf)
    rank = rank_among(known[:, named], known[:, None, others])
    return rank, rank / (1 + len(others))
