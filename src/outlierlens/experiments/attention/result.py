"""Attention that keys receive, and whether outlier dimensions go with it: plain data, without torch.

found.correlation("without_special").every            # [layer, dim] Pearson r with |h_d|, mean over heads
found.correlation().overall_p                         # [named] rank p among all other dimensions
found.intact.of("first"), found.off.of("first")       # [layer] share of attention on the first token
found.intact.sink_rate(0.3)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.bootstrap import finite_quantiles
from outlierlens.statistics.ranks import rank_p

CLASSES = ("first", "special", "delimiter", "punctuation")
METRICS = (*CLASSES, "mass", "entropy", "relative_entropy")
BAND = (0.0, 0.05, 0.5, 0.95, 1.0)  # quantiles over all other dimensions
Keys = Literal["all", "without_special", "without_first"]
KEYS: dict[Keys, str] = {
    "all": "all keys",
    "without_special": "keys without special tokens",
    "without_first": "keys without special tokens and the first token",
}


@dataclass(frozen=True)
class KeyCorrelation:
    """Pearson's r, over keys, of the attention a key receives in a head with |h_d| of the layer's output at that key.

    Puccetti et al. (2022), "vertical attention". NaN where a dimension or a head's attention never varies.

    Attributes:
        mean: what "receives" is the mean over: "seen", valid queries that can see the key; "all", all valid queries of the
            text; "padded", all queries of the padded text, padding too (the released code).
        keys: "all" keys that are no padding; "without_special" tokens; "without_first": without those and without each text's
            first token, the usual sink of decoders. n_keys: how many.
        every, every_off: [layer, dim], mean over heads; intact, and with the outliers off.
        low, high: [layer, named], 95 % interval over texts of `every` at the named dimensions.
        heads, heads_low, heads_high: [layer, head, named], r of each head.
        head_band: [layer, head, quantile] of r over all other dimensions, at `BAND`.
        control: [layer, head], mean r of the control dimensions.
        rank, p: [layer, named], place of |mean r| among it and all other dimensions, 1 the largest; (rank) / (1 + others).
        overall, overall_low, overall_high: [named], mean over layers of |mean r|.
        overall_rank, overall_p: likewise among all other dimensions: one test for all layers.
        off: [layer, named], r with the outliers off. random: [draw, layer, named], with random dimensions off.
    """

    mean: str
    keys: Keys
    n_keys: int
    every: Annotated[np.ndarray, "layer dim"]
    every_off: Annotated[np.ndarray, "layer dim"]
    low: Annotated[np.ndarray, "layer named"]
    high: Annotated[np.ndarray, "layer named"]
    heads: Annotated[np.ndarray, "layer head named"]
    heads_low: Annotated[np.ndarray, "layer head named"]
    heads_high: Annotated[np.ndarray, "layer head named"]
    head_band: Annotated[np.ndarray, "layer head 5"]
    control: Annotated[np.ndarray, "layer head"]
    rank: Annotated[np.ndarray, "layer named"]
    p: Annotated[np.ndarray, "layer named"]
    overall: Annotated[np.ndarray, "named"]
    overall_low: Annotated[np.ndarray, "named"]
    overall_high: Annotated[np.ndarray, "named"]
    overall_rank: Annotated[np.ndarray, "named"]
    overall_p: Annotated[np.ndarray, "named"]
    off: Annotated[np.ndarray, "layer named"]
    random: Annotated[np.ndarray, "draw layer named"]

    def band(self, named: tuple[int, ...]) -> np.ndarray:
        """[layer, quantile] of r, mean over heads, over all dimensions but `named`, at `BAND`; NaN in a layer without any."""
        others = np.delete(np.asarray(self.every, dtype=np.float64), list(named), axis=1)
        return finite_quantiles(others, BAND)


@dataclass(frozen=True)
class AttentionCondition:
    """Where attention goes with some dimensions off.

    Attributes:
        kind: "intact", "off" (the outliers) or "random". dims: what is off. n_values: values set in the weights.
        heads: [metric, layer, head], `METRICS`. The first four are shares of a query's attention that fall on keys of a kind
            (the text's first token, special tokens, delimiters, and punctuation that is no special token), mean over all
            valid queries; "mass" is the sum of a query's weights (1 after plain softmax); "entropy" of a query's weights,
            normalised, in nats, and "relative_entropy" over the logarithm of the number of keys it sees, where that is two
            or more.
        low, high: [metric, layer], 95 % interval over texts of the mean over heads.
        change, change_low, change_high: likewise of its difference from the intact model, the same texts drawn for both.
    """

    kind: str
    dims: tuple[int, ...]
    n_values: int
    heads: Annotated[np.ndarray, "7 layer head"]
    low: Annotated[np.ndarray, "7 layer"]
    high: Annotated[np.ndarray, "7 layer"]
    change: Annotated[np.ndarray, "7 layer"]
    change_low: Annotated[np.ndarray, "7 layer"]
    change_high: Annotated[np.ndarray, "7 layer"]

    def of(self, metric: str) -> np.ndarray:
        """[layer], mean over heads; raises BadInput with the metrics."""
        return np.asarray(self.heads[at(metric)], dtype=np.float64).mean(axis=-1)

    def sink_layers(self, threshold: float) -> np.ndarray:
        """[layer], share of heads whose mean attention on the first token is above `threshold`."""
        return (np.asarray(self.heads[at("first")]) > threshold).mean(axis=-1)

    def sink_rate(self, threshold: float) -> float:
        """Share of all heads whose mean attention on the first token is above `threshold` (Gu et al. 2025, with 0.3)."""
        return float(self.sink_layers(threshold).mean())


@dataclass(frozen=True)
class ExampleMaps:
    """One layer's attention on one text: `intact` and `off` [head, query, key], `tokens` as the vocabulary writes them."""

    text: str
    number: int
    layer: str
    tokens: Annotated[tuple[str, ...], "token"]
    intact: Annotated[np.ndarray, "head token token"]
    off: Annotated[np.ndarray, "head token token"]


@dataclass(frozen=True)
class Attention(Result):
    """Vertical attention and attention sinks of a model, intact, with outliers off, and with random dimensions off.

    Attributes:
        layers: names of the blocks; `|h_d|` is of their output.
        hides: whether some layer hides keys from queries (causal, or a window), beside padding.
        dims: the named dimensions; named_by: who named them.
        mode: how dimensions are switched off.
        threshold: mean attention on the first token that makes a head a sink.
        delimiters: those tokens of the texts that count as delimiters, the commonest first, some thirty at most.
        control_dims: of `KeyCorrelation.control`; () for all but the named ones.
        paper_compat: correlations are made as the released code makes them.
        uniform: [class, layer], share of a query that attends to all keys it sees alike, `CLASSES`.
    """

    provenance: Provenance
    data: str
    data_digest: str
    stack: str
    layers: Annotated[tuple[str, ...], "layer"]
    n_heads: Annotated[int, "head"]
    hidden_size: Annotated[int, "dim"]
    n_texts: int
    n_tokens: int
    n_special: int
    max_length: int
    hides: bool
    dims: Annotated[tuple[int, ...], "named"]
    named_by: str
    mode: str
    threshold: float
    n_bootstrap: int
    delimiters: tuple[str, ...]
    control_dims: tuple[int, ...]
    paper_compat: bool
    uniform: Annotated[np.ndarray, "4 layer"]
    conditions: tuple[AttentionCondition, ...]
    correlations: tuple[KeyCorrelation, ...]
    example: ExampleMaps | None = None
    notes: tuple[str, ...] = ()

    @property
    def means(self) -> tuple[str, ...]:
        """Ways in which attention is averaged, the default first."""
        return tuple(dict.fromkeys(one.mean for one in self.correlations))

    def correlation(self, keys: Keys = "all", mean: str | None = None) -> KeyCorrelation:
        """The correlations over some keys, by default of the first way to average; raises BadInput with what there is."""
        for one in self.correlations:
            if one.keys == keys and one.mean == (mean or self.means[0]):
                return one
        raise BadInput(f"no correlation over keys {keys!r} of mean {mean!r}; means are {', '.join(self.means)}")

    @property
    def different(self) -> tuple[KeyCorrelation, ...]:
        """Those of the first way to average whose keys differ, the fewest keys first: some tokenizers add no special tokens."""
        first = [one for one in self.correlations if one.mean == self.means[0]]
        return tuple({one.n_keys: one for one in reversed(first)}.values())

    @property
    def intact(self) -> AttentionCondition:
        """Nothing off."""
        return self.conditions[0]

    @property
    def off(self) -> AttentionCondition:
        """The outliers off."""
        return next(one for one in self.conditions if one.kind == "off")

    @property
    def randoms(self) -> tuple[AttentionCondition, ...]:
        """Random dimensions off, a draw each."""
        return tuple(one for one in self.conditions if one.kind == "random")

    def change_p(self, metric: str) -> float | None:
        """Rank p: how many random draws move `metric`, mean over layers, as far as the outliers do; None without draws."""
        if not self.randoms:
            return None
        moved = [abs(float(np.asarray(one.change[at(metric)]).mean())) for one in (self.off, *self.randoms)]
        return rank_p(moved[0], np.array(moved[1:]))

    def records(self, of: Literal["correlations", "sinks"] = "correlations") -> Iterator[dict[str, Any]]:
        """One row per layer, named dimension, keys and mean: the correlation with its interval, rank and p.

        Of "sinks", one row per condition and layer: where attention goes.
        """
        return self._sinks() if of == "sinks" else self._correlations()

    def _correlations(self) -> Iterator[dict[str, Any]]:
        for one in self.correlations:
            band = one.band(self.dims)
            for row, layer in enumerate(self.layers):
                for column, dim in enumerate(self.dims):
                    yield {
                        "layer": layer, "dim": dim, "keys": one.keys, "mean": one.mean,
                        "r": float(one.every[row, dim]), "low": float(one.low[row, column]),
                        "high": float(one.high[row, column]), "rank": int(one.rank[row, column]),
                        "p": float(one.p[row, column]), "others_5": float(band[row, 1]), "others_median": float(band[row, 2]),
                        "others_95": float(band[row, 3]), "off": float(one.off[row, column]),
                        "random": float(one.random[:, row, column].mean()) if len(one.random) else float("nan"),
                    }  # fmt: skip

    def _sinks(self) -> Iterator[dict[str, Any]]:
        """One row per condition and layer: where attention goes."""
        for number, condition in enumerate(self.conditions):
            sinks = condition.sink_layers(self.threshold)
            for row, layer in enumerate(self.layers):
                flat: dict[str, Any] = {"condition": condition.kind, "number": number, "layer": layer}
                flat["dims"] = ", ".join(map(str, condition.dims))
                for place, metric in enumerate(METRICS):
                    flat |= {
                        metric: float(condition.of(metric)[row]), f"{metric}_low": float(condition.low[place, row]),
                        f"{metric}_high": float(condition.high[place, row]),
                        f"{metric}_change": float(condition.change[place, row]),
                    }  # fmt: skip
                yield flat | {"sink_heads": float(sinks[row])}


def at(metric: str) -> int:
    """Place of a metric in `METRICS`; raises BadInput with the names."""
    if metric not in METRICS:
        raise BadInput(f"no metric {metric!r}; metrics are {', '.join(METRICS)}")
    return METRICS.index(metric)
