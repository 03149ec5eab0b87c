"""Statistics of every layer and dimension of a stream, as plain arrays without torch.

stack.view("all").mean                     # [layer, column]; row 0 is the embeddings
stack.layers                               # ("embeddings", "0", "1", …)
stack.columns("all")                       # every statistic, a row for each layer and dimension
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from outlierlens.architectures import Neuron
from outlierlens.detection.rules import ActivationOutlier
from outlierlens.errors import BadInput
from outlierlens.results.document import Digits

VIEWS = ("all", "without_special")
QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
SHAPE = Digits(4)  # of what a file holds to be drawn, or is known to a percent
LARGE = 10.0  # times the median |h| of the layer
FLAT = (
    "mean", "std", "skewness", "kurtosis", "min", "max", "abs_max", "abs_max_position", "abs_max_text",
    "argmin_share", "argmax_share", "sigma_token_share", "sigma_input_share",
)  # fmt: skip


@dataclass(frozen=True)
class Statistics:
    """Statistics over tokens of one stream, arrays [layer, column] in activation units unless said otherwise.

    Attributes:
        tokens: [layer] number of token vectors.
        mean, std, skewness, kurtosis: moments; std is the population's, kurtosis is the plain fourth (3 for a normal).
        min, max, abs_max: extremes; abs_max = max |h|.
        abs_max_token: the token where |h| is largest, as text; abs_max_position: its position in its text, from 0.
        abs_max_text: index of its text.
        argmin_share, argmax_share: share in [0, 1] of token vectors whose smallest / largest entry this alone is (Luo et al.).
        sigma_token_share: share of token vectors in which |h_d − mean(h)| >= n_sigma std(h) over the vector itself.
        sigma_input_share: share of inputs (texts) with at least one such token (Kovaleva et al.'s "95 % of the inputs").
        quantiles: [layer, column, quantile] at `QUANTILES`: the value at rank ceil(quantile × tokens), from a signed
            logarithmic histogram. The relative error is at most `StackObservation.quantile_error`, or the absolute one
            2^-12 near zero. NaN where quantiles were not kept for the column.
        median_abs: [layer] median of |h| over all tokens and dimensions of the layer.
    """

    tokens: Annotated[np.ndarray, "layer"]
    mean: Annotated[np.ndarray, "layer column"]
    std: Annotated[np.ndarray, "layer column"]
    skewness: Annotated[np.ndarray, "layer column"]
    kurtosis: Annotated[np.ndarray, "layer column"]
    min: Annotated[np.ndarray, "layer column"]
    max: Annotated[np.ndarray, "layer column"]
    abs_max: Annotated[np.ndarray, "layer column"]
    abs_max_token: Annotated[tuple[tuple[str, ...], ...], "layer column"]
    abs_max_position: Annotated[np.ndarray, "layer column"]
    abs_max_text: Annotated[np.ndarray, "layer column"]
    argmin_share: Annotated[np.ndarray, "layer column"]
    argmax_share: Annotated[np.ndarray, "layer column"]
    sigma_token_share: Annotated[np.ndarray, "layer column"]
    sigma_input_share: Annotated[np.ndarray, "layer column"]
    quantiles: Annotated[np.ndarray, "layer column 9, or empty", SHAPE]
    median_abs: Annotated[np.ndarray, "layer"]


@dataclass(frozen=True)
class Size:
    """How large a dimension is in the layer where its |h| is largest.

    Attributes:
        layer: that layer. largest: max |h|, in activation units. times: `largest` over the median |h| of the layer.
        low, high: between them lies the share, in [0, 1], of token vectors whose |h| here is above `LARGE` times that median;
            as closely as `QUANTILES` tell it, NaN where these were not kept.
    """

    layer: str
    largest: float
    times: float
    low: float
    high: float

    @property
    def tokens(self) -> str | None:
        """That share in words: "0.1 to 1 %", "0 %"; None where it is not known."""
        if np.isnan(self.low):
            return None
        ends = (f"{100 * end:.3g}" for end in (self.low, self.high))
        return " to ".join(dict.fromkeys(ends)) + " %"


@dataclass(frozen=True)
class Peak:
    """The largest |h| of a stream, and where it stands.

    Attributes:
        value: in activation units. ratio: over the median |h| of the layer. position: of the token, in its text, from 0.
    """

    dim: int
    layer: str
    value: float
    ratio: float
    token: str
    position: int


@dataclass(frozen=True)
class StackObservation:
    """Statistics of one residual stream, with special tokens ("all") and, where there are any, without ("without_special").

    `layers` names the rows: "embeddings", then block numbers. `dims` names the columns: all dimensions, or the most
    extreme ones where the file would be too large. Of an MLP axis the rows are blocks alone, or a block's experts ("11:3"), and
    the columns numbers of neurons; `times_median` is each neuron's largest |x| over that of its block's median neuron, inf over
    0; empty elsewhere. Rows of experts that no token reached are NaN.
    """

    stack: str
    layers: Annotated[tuple[str, ...], "layer"]
    hidden_size: int
    dims: Annotated[tuple[int, ...], "column"]
    views: dict[str, Statistics]
    outliers: tuple[ActivationOutlier, ...]
    quantile_error: float
    notes: tuple[str, ...] = ()
    times_median: Annotated[np.ndarray, "layer column, or empty"] = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def by_neuron(self) -> bool:
        """Whether the columns are neurons of each block's own MLP, not dimensions of a stream."""
        return bool(self.times_median.size)

    def strongest(self, n: int, view: str = "all") -> tuple[tuple[Neuron, int, int], ...]:
        """The `n` neurons of the largest |x|, strongest first, each with its row and column."""
        top = self.view(view).abs_max
        order = np.argsort(-top, axis=None, kind="stable")[:n]  # NaN, of experts that no token reached, comes last
        places = [divmod(int(one), top.shape[1]) for one in order if not np.isnan(top.flat[one])]
        return tuple((Neuron.parse(f"{self.layers[row]}:{self.dims[column]}"), row, column) for row, column in places)

    def view(self, name: str = "all") -> Statistics:
        """Statistics of "all" or "without_special" tokens, which are the same where no token is special."""
        if name not in VIEWS:
            raise BadInput(f"no view {name!r}; views are {', '.join(VIEWS)}")
        found = self.views.get(name) or self.views.get("all")
        if found is None:
            raise BadInput(f"stream {self.stack}: holds no statistics of view {name!r}; make the observation again")
        return found

    def pooled_shares(self, name: str = "all") -> dict[str, np.ndarray]:
        """{"smallest entry", "largest entry"}: share of the token vectors of all blocks pooled [column], embeddings excluded.

        Luo et al. (2021), section 2: 557 is the minimum of 96.60 % of all vectors of BERT; the embeddings do not count
        there. In a stack with embeddings alone nothing is pooled: NaN.
        """
        statistics = self.view(name)
        blocks = [row for row, layer in enumerate(self.layers) if layer != "embeddings"]
        tokens = np.asarray(statistics.tokens, dtype=np.float64)[blocks]
        shares = {"smallest entry": statistics.argmin_share, "largest entry": statistics.argmax_share}
        if not tokens.sum() > 0:
            return {end: np.full(len(self.dims), np.nan) for end in shares}
        weights = tokens / tokens.sum()
        return {end: weights @ np.asarray(values, dtype=np.float64)[blocks] for end, values in shares.items()}

    def gamma(self, name: str = "all") -> np.ndarray:
        """‖mean‖ / ‖standard deviation‖ of the hidden states [layer]; NaN where not every dimension was kept."""
        statistics = self.view(name)
        if len(self.dims) < self.hidden_size:
            return np.full(len(self.layers), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.linalg.norm(statistics.mean, axis=1) / np.linalg.norm(statistics.std, axis=1))

    def size_of(self, dim: int, name: str = "all") -> Size | None:
        """How large `dim` is, and on which share of the tokens; None of a dimension that was not kept."""
        return size_of(self.layers, vars(self.view(name)), self.dims.index(dim)) if dim in self.dims else None

    @property
    def peak(self) -> Peak | None:
        """The largest |h| over layers and dimensions, of all tokens; None where nothing was measured."""
        seen = self.view()
        if not seen.abs_max.size or not np.isfinite(seen.abs_max).any():
            return None
        row, column = np.unravel_index(int(np.nanargmax(seen.abs_max)), seen.abs_max.shape)
        value, median = float(seen.abs_max[row, column]), float(seen.median_abs[row])
        return Peak(
            dim=self.dims[column], layer=self.layers[row], value=value, ratio=value / median if median > 0 else np.inf,
            token=seen.abs_max_token[row][column], position=int(seen.abs_max_position[row, column]),
        )  # fmt: skip

    def length_share(self) -> np.ndarray | None:
        """Share [layer, column] in [0, 1] of E|h|² that a dimension holds; None where not all dimensions were kept."""
        if len(self.dims) < self.hidden_size:
            return None
        seen = self.view()
        square = np.square(np.asarray(seen.mean, dtype=float)) + np.square(np.asarray(seen.std, dtype=float))
        total = square.sum(axis=1, keepdims=True)
        return np.divide(square, total, out=np.zeros_like(square), where=total > 0)

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """Every statistic of a view as flat columns [layer * dimension], with the stack, view, layer and dimension.

        Quantile columns are called q0.001 … q0.999; what a layer has one of (tokens, median_abs) is repeated.
        """
        statistics = self.view(name)
        shape = (len(self.layers), len(self.dims))

        def layerwise(values: Any) -> np.ndarray:
            return np.broadcast_to(np.asarray(values)[:, None], shape).ravel()

        return {
            "stack": np.full(shape, self.stack, dtype=object).ravel(),
            "view": np.full(shape, name, dtype=object).ravel(),
            "layer": layerwise(np.array(self.layers, dtype=object)),
            "dim": np.broadcast_to(np.array(self.dims, dtype=np.int64), shape).ravel(),
            "tokens": layerwise(statistics.tokens),
            **{field: getattr(statistics, field).ravel() for field in FLAT},
            "abs_max_token": np.array(statistics.abs_max_token, dtype=object).ravel(),
            **{f"q{share}": statistics.quantiles[:, :, i].ravel() for i, share in enumerate(QUANTILES)},
            "median_abs": layerwise(statistics.median_abs),
        }


@dataclass(frozen=True)
class Passage:
    """Token vectors of one input at its first, its middle and its last layer, for the picture of Kovaleva et al.'s Figure 1.

    `states` is [layer, token, column]; `layers` and `dims` name rows and columns (columns: all dimensions up to 1,024,
    else the most extreme).
    """

    stack: str
    tokens: Annotated[tuple[str, ...], "token"]
    layers: Annotated[tuple[str, ...], "layer"]
    dims: Annotated[tuple[int, ...], "column"]
    states: Annotated[np.ndarray, "layer token column", SHAPE]


def size_of(layers: Sequence[str], statistics: Mapping[str, np.ndarray], column: int) -> Size:
    """How large one column of the arrays of `Statistics`, by name, is; `layers` names their rows."""
    row = int(np.argmax(statistics["abs_max"][:, column]))
    largest, median = float(statistics["abs_max"][row, column]), float(statistics["median_abs"][row])
    low = high = np.nan
    if statistics["quantiles"].size and np.isfinite(statistics["quantiles"][row, column]).all():
        quantiles, limit = statistics["quantiles"][row, column], LARGE * median
        upper = _share_above(quantiles, float(statistics["max"][row, column]), limit)
        # `QUANTILES` are symmetric.
        lower = _share_above(-quantiles[::-1], -float(statistics["min"][row, column]), limit)
        low, high = upper[0] + lower[0], min(1.0, upper[1] + lower[1])
    return Size(layers[row], largest, largest / median if median else np.inf, low, high)


def _share_above(quantiles: np.ndarray, largest: float, limit: float) -> tuple[float, float]:
    """Bounds of the share of values above `limit`, by their quantiles at `QUANTILES` and the largest value."""
    above, past = 1 - np.array(QUANTILES), quantiles > limit
    high = above[~past].min(initial=1.0) if largest > limit else 0.0
    return float(above[past].max(initial=0.0)), float(high)
