"""How closely each dimension follows token frequency, layer by layer: plain data, without torch.

found.view().log.value                              # [layer, dim], correlation of |h_d| with log(1 + count)
found.view("all").raw.interval(reach)               # the paper's, special tokens counted, with its 95 % interval
found.contrast("log")                               # outliers against all other dimensions, over all blocks
found.row("5", 223)                                 # one dimension in one layer: every number, its rank among all
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics import SIGNIFICANT
from outlierlens.statistics.ranks import fisher, ranks_from_top

VIEWS = ("without_special", "all")
MEASURES = ("raw", "log", "partial")  # with an interval over texts
BLOCKS = "blocks"  # the layer of a contrast that is over all blocks


@dataclass(frozen=True)
class Correlations:
    """Correlations in [−1, 1] of every layer and dimension.

    Attributes:
        value: [layer, dim]; NaN where |h_d| does not vary.
        error: [layer, dim], standard error of Fisher's z = artanh(value).
        q: [layer, dim], p-value of no correlation, adjusted over all layers and dimensions (Benjamini and Hochberg 1995).
    """

    value: Annotated[np.ndarray, "layer dim"]
    error: Annotated[np.ndarray, "layer dim"]
    q: Annotated[np.ndarray, "layer dim"]

    def interval(self, reach: float) -> tuple[np.ndarray, np.ndarray]:
        """Ends of an interval that reaches `reach` standard errors of Fisher's z to both sides, [layer, dim] each."""
        z = fisher(self.value)
        return np.tanh(z - reach * self.error), np.tanh(z + reach * self.error)


@dataclass(frozen=True)
class View:
    """Tokens without special ones, or all of them.

    Attributes:
        n_tokens: that were read. n_types: different ones; of them `unknown_types` have count 0.
        unknown: share of the tokens, in [0, 1], whose count is 0. shared: whose count a published file does not tell apart.
        raw: Pearson correlation of |h_d| with the count over token occurrences (Puccetti et al. 2022).
        log: with log(1 + count). partial: the same given the position in the text, linearly.
        signed: [layer, dim], Pearson correlation of h_d itself with log(1 + count).
        spearman: [layer, dim], rank correlation of |h_d| with the count, over `n_sample` tokens drawn at random.
    """

    n_tokens: int
    n_types: int
    unknown_types: int
    unknown: float
    shared: float
    raw: Correlations
    log: Correlations
    partial: Correlations
    signed: Annotated[np.ndarray, "layer dim"]
    spearman: Annotated[np.ndarray, "layer dim"]
    n_sample: int

    def measure(self, name: str) -> Correlations:
        """ "raw", "log" or "partial"; raises BadInput for another."""
        if name not in MEASURES:
            raise BadInput(f"no measure {name!r}; measures with intervals are {', '.join(MEASURES)}")
        found: Correlations = getattr(self, name)
        return found

    @property
    def spearman_error(self) -> float:
        """Standard error of a rank correlation near 0 that comes from drawing `n_sample` tokens, 1 / √(n − 1)."""
        return float("nan") if self.n_sample < 3 else (self.n_sample - 1) ** -0.5


@dataclass(frozen=True)
class Contrast:
    """The named dimensions against all others.

    Attributes:
        measure: "raw", "log", "partial", "spearman" or "types". layer: a layer, or "blocks" for the mean over all blocks.
        named, others: mean |r| of the named dimensions, and of all others of the layer.
        difference: of the two, with its 95 % interval over texts; the interval is NaN for "spearman" and "types".
        p: share of random sets of as many dimensions whose mean |r| is as large; of one dimension, its rank over all.
    """

    view: str
    measure: str
    layer: str
    named: float
    others: float
    difference: float
    low: float
    high: float
    p: float

    @property
    def verdict(self) -> str:
        """ "more", "less", "unclear" or "too few texts": how closely the named dimensions follow frequency, against others.

        "more" needs an interval above 0 and a rank p-value of at most 0.05; "less" an interval below 0 and one of at least
        0.95. Of a measure in `MEASURES` there is no verdict without an interval; of others the p-value alone decides.
        """
        if not np.isfinite(self.difference):
            return "unclear"
        known = np.isfinite(self.low)
        if not known and self.measure in MEASURES:
            return "too few texts"
        if self.p <= SIGNIFICANT and (self.low > 0 or not known):
            return "more"
        return "less" if self.p >= 1 - SIGNIFICANT and (self.high < 0 or not known) else "unclear"


@dataclass(frozen=True)
class Cloud:
    """Types by frequency and by mean |h| of one dimension in one layer, counted in boxes.

    Attributes:
        x: [box + 1] edges of log10(1 + count). y: [box + 1] edges of the mean |h|.
        n: [x, y] types in each box. mean: [x] mean of the types of each column, NaN without any.
        value: correlation over types of |h| with log(1 + count).
    """

    dim: int
    layer: str
    x: Annotated[np.ndarray, "x+1"]
    y: Annotated[np.ndarray, "y+1"]
    n: Annotated[np.ndarray, "x y"]
    mean: Annotated[np.ndarray, "x"]
    value: float


@dataclass(frozen=True)
class Frequency(Result):
    """Correlation of every dimension of every layer with the frequency of tokens.

    Attributes:
        counts, counts_texts, counts_tokens: where frequencies come from, and how many texts (0: not known) and tokens that
            was.
        n_texts: texts that hold a token. n_bootstrap: times that texts were drawn again. reach: standard errors to either
            side of a 95 % interval.
        dims, dims_source: dimensions that are held against all others, and who names them.
        views: "without_special" and "all".
        types: over types instead of tokens: mean |h_d| of each with log(1 + count), each type once, without special tokens.
            Its errors take types as independent: an interval reaches types_reach of them. n_types types, drawn at random of
            those that occur.
        contrasts: of `dims`, for both views, every measure and layer, and over all blocks.
        clouds: of `dims` and the dimension that follows frequency most, each in the layer where it does most.
        paper_compat: counts, texts and special tokens as in the released code. random_dims: whose mean r it shows as control.
    """

    provenance: Provenance
    data: str
    data_digest: str
    counts: str
    counts_texts: int
    counts_tokens: int
    stack: str
    final_norm: bool
    max_length: int
    hidden_size: Annotated[int, "dim"]
    layers: Annotated[tuple[str, ...], "layer"]
    n_texts: int
    n_bootstrap: int
    reach: float
    dims: tuple[int, ...]
    dims_source: str
    views: dict[str, View]
    types: Correlations
    n_types: int
    types_reach: float
    contrasts: tuple[Contrast, ...]
    clouds: tuple[Cloud, ...]
    paper_compat: bool = False
    random_dims: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def view(self, name: str = "without_special") -> View:
        """Correlations over tokens "without_special", or over "all"; raises BadInput for another name."""
        if name not in self.views:
            raise BadInput(f"no view {name!r}; views are {', '.join(self.views)}")
        return self.views[name]

    def place(self, layer: str) -> int:
        """Row of a layer; raises BadInput with the layers there are."""
        if layer not in self.layers:
            raise BadInput(f"no layer {layer!r} in this result; layers are {', '.join(self.layers)}")
        return self.layers.index(layer)

    def contrast(self, measure: str = "log", layer: str = BLOCKS, view: str = "without_special") -> Contrast:
        """The named dimensions against all others; raises BadInput where that was not measured."""
        for one in self.contrasts:
            if (one.view, one.measure, one.layer) == (view, measure, layer):
                return one
        known = (
            f"measures {', '.join(dict.fromkeys(one.measure for one in self.contrasts))}" if self.contrasts else "none"
        )
        raise BadInput(
            f"no contrast of {measure!r}, layer {layer!r}, view {view!r} in this result (there are {known}); outliers are "
            f"named by the weights or by --dims"
        )

    def passes(self, view: str = "without_special") -> np.ndarray:
        """Where a correlation with the log count is no chance of the texts nor of the words, bool [layer, dim].

        Both false discovery rates are at most 5 %: over texts drawn again, which takes the words as given, and over types, of
        which a language has only so many frequent ones.
        """
        with np.errstate(invalid="ignore"):
            found: np.ndarray = (self.view(view).log.q < SIGNIFICANT) & (self.types.q < SIGNIFICANT)
        return found

    def strongest(self, dim: int, view: str = "without_special") -> str:
        """The layer where |r| of a dimension with the log count is largest, a block where there is one."""
        sizes = np.nan_to_num(np.abs(self.view(view).log.value[:, dim]), nan=-1.0)
        blocks = [row for row, layer in enumerate(self.layers) if layer != "embeddings"] or [0]
        return self.layers[max(blocks, key=lambda row: float(sizes[row]))]

    def row(self, layer: str, dim: int, view: str = "without_special") -> dict[str, Any]:
        """Every number of one dimension in one layer."""
        if not 0 <= dim < self.hidden_size:
            raise BadInput(f"no dimension {dim} in this result; there are 0 to {self.hidden_size - 1}")
        return next(self.records(layers=(layer,), dims=(dim,), views=(view,)))

    def random_mean(self, view: str = "without_special") -> np.ndarray:
        """Mean r with the raw count of the random dimensions [layer], the paper's control; NaN where none were drawn."""
        if not self.random_dims:
            return np.full(len(self.layers), np.nan)
        found: np.ndarray = self.view(view).raw.value[:, list(self.random_dims)].mean(1)
        return found

    def records(
        self,
        layers: Sequence[str] | None = None,
        dims: Sequence[int] | None = None,
        views: Sequence[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """One flat row per view, layer and dimension: each measure with its interval, its q and its rank in the layer."""
        chosen = range(self.hidden_size) if dims is None else dims
        for name in views or self.views:
            view = self.view(name)
            for layer in self.layers if layers is None else layers:
                place = self.place(layer)
                columns: dict[str, np.ndarray] = {}
                for measure in MEASURES:
                    one = view.measure(measure)
                    low, high = one.interval(self.reach)
                    columns |= {measure: one.value[place], f"{measure}_low": low[place], f"{measure}_high": high[place]}
                    columns |= {f"{measure}_q": one.q[place], f"{measure}_rank": ranks(one.value[place])}
                columns |= {"signed": view.signed[place], "spearman": view.spearman[place]}
                low, high = self.types.interval(self.types_reach)
                columns |= {"types": self.types.value[place], "types_low": low[place], "types_high": high[place]}
                columns |= {"types_q": self.types.q[place], "types_rank": ranks(self.types.value[place])}
                for dim in chosen:
                    yield {"view": name, "layer": layer, "dim": dim, "named": dim in self.dims} | {
                        key: values[dim].item() for key, values in columns.items()
                    }


def ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each |value| among all, 1 for the largest; equal ones share the worst; what is NaN comes last."""
    return ranks_from_top(np.nan_to_num(np.abs(values), nan=-1.0), ties="worst")
