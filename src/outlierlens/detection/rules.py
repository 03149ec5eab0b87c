"""The rules that call a dimension an outlier: on a block's last operation, and on its activations; arrays [layer, dim].

    measured = LastOperation(scale, bias)                  # float64 [layer, dim]; bias may be None
    outliers = find(measured, Rule("kovaleva"))         # tuple of Outlier, strongest first
    rule.passes(z); rule.counts(scale, bias)               # where |z| passes [layer, dim]; whose layers are enough [dim]
    activation_outliers(observed, ActivationRules())       # tuple of ActivationOutlier, rule by rule, strongest first

`kovaleva`  |z| >= n_sigma in at least `min_layer_fraction` of the layers, for scale and bias both (Kovaleva et al. 2021).
`puccetti`  exactly the rule that Puccetti et al. (2022) released: unbiased std, more than three layers, interleaved lists.
`luo`       rank by layer (Luo et al. 2021, section 3): no threshold, so ranks and their p-value are reported. Equal values
            share a rank, and one that more share than count is nobody's: a constant vector ranks nothing.

Of activations:

`luo`       the smallest or largest entry of most token vectors (Luo et al. 2021, section 2).
`massive`   |h| > 100 and > 1000 × the layer's median |h| (Sun et al. 2024, "Massive Activations", section 2).
`llm.int8`  |h| >= 6 in >= 6 % of the positions of >= 25 % of the layers (Dettmers et al. 2022, section 4).

p-values are under independent positions per layer: in layer l the flagged positions could as well be any others, so a
dimension is flagged with probability k_l / d, and the number of its layers is Poisson-binomial. Holm over dimensions. Within
a layer scale and bias may depend on each other in any way: where both must pass in the same layer, the positions that pass
in both are moved together; where each is counted by itself, the larger p (or twice the smaller) holds under any dependence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal, get_args

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from outlierlens.errors import BadFile, BadInput, near
from outlierlens.options import Flag, check
from outlierlens.statistics.ranks import holm, position_p, ranks_from_top

RuleName = Literal["kovaleva", "puccetti", "luo"]
Passes = Literal["scale and bias", "scale", "bias", "neither"]
RULES: tuple[RuleName, ...] = get_args(RuleName)


@dataclass(frozen=True)
class Rule:
    """A rule and its settings: what passes, in how many layers, and how that is said.

    Whatever counts layers past the threshold, draws it or names it asks here.
    """

    name: Annotated[RuleName, Flag("--rule")] = "kovaleva"
    """kovaleva, puccetti or luo."""
    n_sigma: Annotated[float, Flag("sigma", into="--rule"), Gt(0), Lt(math.inf)] = 3.0
    """Threshold on |z|, in standard deviations."""
    min_layer_fraction: Annotated[float, Flag("layers", into="--rule"), Gt(0), Le(1)] = 0.5
    """Share of layers that must pass (kovaleva)."""
    same_layer: Annotated[bool, Flag(into="--rule")] = False
    """Scale and bias must pass in the same layer (kovaleva)."""
    top_k: Annotated[int, Flag("top", into="--rule"), Ge(1)] = 6
    """puccetti: length of the list; luo: ranks that count."""

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise BadInput(f"unknown rule {self.name!r}; rules are {', '.join(RULES)}{near(self.name, RULES)}")
        check(self)

    def at(self, n_sigma: float) -> "Rule":
        """This rule with another threshold."""
        return replace(self, n_sigma=n_sigma)

    def passes(self, z: np.ndarray | float) -> np.ndarray:
        """Where |z| reaches the threshold, bool of the shape of z."""
        return self.above(np.abs(z))

    def above(self, z: np.ndarray | float) -> np.ndarray:
        """Where z itself reaches the threshold, bool of the shape of z."""
        return np.asarray(z) >= self.n_sigma

    def beyond(self, values: np.ndarray, mean: float, std: float) -> np.ndarray:
        """Where values lie the threshold or farther from `mean`, in units of `std`, which may be 0."""
        return np.abs(values - mean) >= self.n_sigma * std

    def layers_past(self, z: np.ndarray | float) -> np.ndarray:
        """In how many layers |z| [layer, …] reaches the threshold, int […]."""
        return np.asarray(self.passes(z).sum(axis=0))

    def needed(self, n_layers: int) -> int:
        """In how many layers a dimension must pass: the share of them, rounded up."""
        return layers_needed(self.min_layer_fraction, n_layers)

    def enough(self, layers: np.ndarray, n_layers: int) -> np.ndarray:
        """Whether that many `layers` of `n_layers` are enough, bool of the shape of `layers`."""
        return layers >= self.needed(n_layers)

    def counts(self, scale: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        """Which dimensions are outliers (kovaleva), bool [dim], of where scale and bias pass, bool [layer, dim]."""
        parts = [scale] if bias is None else [scale & bias] if self.same_layer else [scale, bias]
        return np.logical_and.reduce([self.enough(part.sum(axis=0), len(scale)) for part in parts])

    def parts(self, scale: np.ndarray, bias: np.ndarray | None, n_layers: int) -> dict[Passes, np.ndarray]:
        """Which dimensions pass in what, bool [..., dim], of numbers of layers [..., dim]; without a bias only in scale."""
        held = self.enough(scale, n_layers)
        if bias is None:
            return {"scale": held}
        other = self.enough(bias, n_layers)
        return {"scale and bias": held & other, "scale": held, "bias": other}

    @property
    def levels(self) -> tuple[float, float]:
        """Where the thresholds of a signed z lie, for the lines of a chart: below and above."""
        return -self.n_sigma, self.n_sigma

    @property
    def sigmas(self) -> str:
        """The threshold in words, such as "3 sigma"."""
        return f"{self.n_sigma:g} sigma"

    @property
    def deviations(self) -> str:
        """The threshold in full words, such as "3 standard deviations"."""
        return f"{self.n_sigma:g} standard deviations"

    @property
    def percent(self) -> str:
        """The share of layers in words, such as "50 %"."""
        return f"{self.min_layer_fraction:.0%}".replace("%", " %")

    @property
    def share(self) -> str:
        """The share of layers in a sentence: "half", or such as "40 %"."""
        return "half" if self.min_layer_fraction == 0.5 else self.percent

    def asks(self, n_layers: int, counted: str, *, has_bias: bool) -> str:
        """What an outlier is under this rule, in one phrase that begins with a verb; `counted`: "12 layers"."""
        if self.name == "luo":
            return f"ranks among the first {self.top_k} in more layers than chance allows"
        if self.name == "puccetti":
            return f"is over {self.deviations} in scale and bias of more than three layers"
        both = " in both scale and bias" if has_bias else ""
        return f"is {self.deviations} or more from the mean{both} in {self.needed(n_layers)} of {counted}"


@dataclass(frozen=True)
class Outlier:
    """One dimension that a rule found.

    Attributes:
        dim: 0-based index into the stream.
        z_scale, z_bias: z per layer in units of the vector's own standard deviation; z_bias is empty without a bias.
        layers_scale, layers_bias: layers whose |z| passes (kovaleva, puccetti) or whose rank counts (luo).
        rank_scale, rank_bias: rank by absolute z per layer, 1 = most extreme.
        signed_rank_scale, signed_rank_bias: rank by signed value per layer, 1 = largest.
        p: probability of at least this many layers under independent positions; the larger of scale's and bias's.
        p_holm: p corrected over all dimensions of the stack (Holm).
    """

    dim: int
    z_scale: Annotated[tuple[float, ...], "layer"]
    z_bias: Annotated[tuple[float, ...], "layer, or empty"]
    layers_scale: tuple[int, ...]
    layers_bias: tuple[int, ...]
    rank_scale: Annotated[tuple[int, ...], "layer"]
    rank_bias: Annotated[tuple[int, ...], "layer, or empty"]
    p: float
    p_holm: float
    signed_rank_scale: Annotated[tuple[int, ...], "layer"] = ()
    signed_rank_bias: Annotated[tuple[int, ...], "layer, or empty"] = ()


@dataclass(frozen=True)
class LastOperation:
    """A block's last operation over all layers: `scale` and `bias` as float64 [layer, dim]; bias None without one.

    `where` names the values in error messages.
    """

    scale: np.ndarray
    bias: np.ndarray | None = None
    where: str = "weights"
    z_scale: np.ndarray = field(init=False, repr=False, compare=False)
    z_bias: np.ndarray | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, values in (("scale", self.scale), ("bias", self.bias)):
            if values is None:
                continue
            if values.ndim != 2 or values.shape != self.scale.shape:
                raise BadInput(f"{self.where}: {name} has shape {values.shape}, not [layer, dim] {self.scale.shape}")
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                layer, dim = bad[0]
                raise BadFile(
                    f"{self.where}: {name} of layer {layer} is {values[layer, dim]} at dimension {dim} "
                    f"({len(bad)} such values); the weights are broken"
                )
        object.__setattr__(self, "z_scale", zscore(self.scale))
        object.__setattr__(self, "z_bias", None if self.bias is None else zscore(self.bias))


def zscore(values: np.ndarray) -> np.ndarray:
    """(value − mean) / population std along the last axis; 0 throughout a vector with no spread."""
    values = np.asarray(values, dtype=np.float64)
    centred = values - values.mean(axis=-1, keepdims=True)
    flat = _flat(values)
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, centred.std(axis=-1, keepdims=True)))


def _flat(values: np.ndarray) -> np.ndarray:
    """Whether the last axis has no spread but for rounding: the mean of equal values can miss them by an ulp."""
    spread = values.std(axis=-1, keepdims=True)
    found: np.ndarray = spread <= 8 * np.finfo(np.float64).eps * np.abs(values).max(axis=-1, keepdims=True, initial=0)
    return found


def find(measured: LastOperation, rule: Rule) -> tuple[Outlier, ...]:
    """The outliers that `rule` finds, most layers first."""
    return _describe(measured, *_FINDERS[rule.name](measured, rule))


@dataclass(frozen=True)
class _Hits:
    """Flags [layer, dim] of scale and bias, and p per dimension."""

    scale: np.ndarray
    bias: np.ndarray | None
    p: np.ndarray


def layers_needed(min_layer_fraction: float, n_layers: int) -> int:
    """In how many layers a dimension must pass: the share of them, rounded up."""
    return math.ceil(min_layer_fraction * n_layers - 1e-9)


def _kovaleva(measured: LastOperation, rule: Rule) -> tuple[list[int], _Hits]:
    scale = rule.passes(measured.z_scale)  # [layer, dim]
    bias = None if measured.z_bias is None else rule.passes(measured.z_bias)
    if bias is None:
        p = position_p(scale)
    elif rule.same_layer:
        p = position_p(scale & bias)
    else:
        p = np.maximum(position_p(scale), position_p(bias))
    return np.flatnonzero(rule.counts(scale, bias)).tolist(), _Hits(scale, bias, p)


def _puccetti(measured: LastOperation, rule: Rule) -> tuple[list[int], _Hits]:
    def flags(values: np.ndarray) -> np.ndarray:
        spread = values.std(axis=1, ddof=1, keepdims=True)
        return (np.abs(values - values.mean(axis=1, keepdims=True)) > rule.n_sigma * spread) & ~_flat(values)

    def listed(flagged: np.ndarray) -> list[int]:
        which = np.flatnonzero(flagged.any(axis=0))
        counts = flagged.sum(axis=0)[which]
        order = np.argsort(counts)[::-1]  # ties fall as in the released code
        return [int(dim) for dim, count in zip(which[order], counts[order], strict=True) if count > 3]

    scale = flags(measured.scale)
    if measured.bias is None:
        return [], _Hits(scale, None, np.ones(scale.shape[1]))
    bias = flags(measured.bias)
    # Gamma and beta lists are interleaved up to the shorter one, cut to top_k, then freed of repeats: one list suffices.
    pairs = zip(listed(scale), listed(bias), strict=False)
    interleaved = [dim for pair in pairs for dim in pair][: rule.top_k]
    p = np.minimum(1.0, 2 * np.minimum(position_p(scale), position_p(bias)))
    return list(dict.fromkeys(interleaved)), _Hits(scale, bias, p)


def _luo(measured: LastOperation, rule: Rule) -> tuple[list[int], _Hits]:
    scale = _among_first(np.abs(measured.z_scale), rule.top_k)
    bias = None if measured.z_bias is None else _among_first(np.abs(measured.z_bias), rule.top_k)
    p = position_p(scale)
    if bias is not None:
        p = np.minimum(1.0, 2 * np.minimum(p, position_p(bias)))
    counts = scale.sum(axis=0) + (0 if bias is None else bias.sum(axis=0))
    order = np.lexsort((-counts, p))
    return [dim for dim in order[: rule.top_k].tolist() if counts[dim]], _Hits(scale, bias, p)


_FINDERS = {"kovaleva": _kovaleva, "puccetti": _puccetti, "luo": _luo}


def _among_first(values: np.ndarray, n: int) -> np.ndarray:
    """Which entries rank among the `n` largest along the last axis; zeros, and ranks that more than `n` share, never do."""
    rank = ranks_from_top(values)
    shared = values.shape[-1] + 2 - rank - ranks_from_top(-values)  # all but those above and those below
    return (rank <= n) & (shared <= n) & (values > 0)


def _describe(measured: LastOperation, dims: list[int], hits: _Hits) -> tuple[Outlier, ...]:
    if not dims:
        return ()
    corrected = holm(hits.p)
    rank_scale, signed_scale = ranks_from_top(np.abs(measured.z_scale)), ranks_from_top(measured.z_scale)
    z_bias = np.empty((0, rank_scale.shape[1])) if measured.z_bias is None else measured.z_bias
    rank_bias, signed_bias = ranks_from_top(np.abs(z_bias)), ranks_from_top(z_bias)
    outliers = []
    for dim in dims:
        outliers.append(
            Outlier(
                dim=int(dim),
                z_scale=tuple(measured.z_scale[:, dim].tolist()),
                z_bias=tuple(z_bias[:, dim].tolist()),
                layers_scale=tuple(np.flatnonzero(hits.scale[:, dim]).tolist()),
                layers_bias=tuple(np.flatnonzero(hits.bias[:, dim]).tolist()) if hits.bias is not None else (),
                rank_scale=tuple(rank_scale[:, dim].tolist()),
                rank_bias=tuple(rank_bias[:, dim].tolist()) if hits.bias is not None else (),
                signed_rank_scale=tuple(signed_scale[:, dim].tolist()),
                signed_rank_bias=tuple(signed_bias[:, dim].tolist()),
                p=float(hits.p[dim]),
                p_holm=float(corrected[dim]),
            )
        )
    return tuple(sorted(outliers, key=lambda outlier: (outlier.p, outlier.dim)))


# --- rules on activations --------------------------------------------------------------------------------------------

SIZES = ("massive_size", "massive_ratio", "int8_size")  # the others are shares of layers or tokens


@dataclass(frozen=True)
class ActivationRules:
    """Thresholds; shares and fractions in [0, 1].

    Luo et al. give no cut-off. Theirs are pooled over all layers (96.60 % in BERT, 82.56 % at the lowest), yet the
    outliers of their BERT-large each hold for a range of layers only. So a dimension counts here when it is the
    smallest entry, or the largest, of at least `luo_share` of a layer's token vectors (above one half, no other
    dimension can be) in at least `luo_layer_fraction` of the blocks. The embeddings are excluded, as in the paper.

    LLM.int8's magnitudes are those of what attention and MLP read, so in pre-norm models those of the reading norms'
    outputs (on the bare stream of a small Llama, every dimension passes); elsewhere those of the blocks' outputs.
    """

    luo_share: float = 0.5
    luo_layer_fraction: float = 0.25
    massive_size: float = 100.0
    massive_ratio: float = 1000.0
    int8_size: float = 6.0
    int8_position_share: float = 0.06
    int8_layer_fraction: float = 0.25

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            size = f.name in SIZES
            if not value > 0 or (not size and value > 1):
                top = "positive" if size else "in (0, 1]"
                raise BadInput(f"{f.name} is {value}; it must be {top}")


@dataclass(frozen=True)
class ActivationMeasures:
    """What the rules rest on: `layers` names the rows, "embeddings" first; arrays [layer, dim], `median_abs` [layer].

    `large_share` is the share of token vectors with |h| >= `int8_size` in what the layer reads (pre-norm) or puts out.
    """

    layers: tuple[str, ...]
    argmin_share: np.ndarray
    argmax_share: np.ndarray
    abs_max: np.ndarray
    large_share: np.ndarray
    median_abs: np.ndarray


@dataclass(frozen=True)
class ActivationOutlier:
    """A dimension that a rule on activations found, with the numbers the rule rests on, per layer; a neuron in its one layer.

    `rule` is "luo" (argmin / argmax share), "massive" (|h| > 100 and > 1000 × median) or "llm.int8" (|h| >= 6 in
    >= 25 % of the layers and >= 6 % of the positions). `strength` [layer] is the share (luo, llm.int8) or max |h|.
    """

    rule: str
    dim: int
    layers: Annotated[tuple[str, ...], "found"]
    strength: Annotated[tuple[float, ...], "found"]


def activation_outliers(measured: ActivationMeasures, rules: ActivationRules) -> tuple[ActivationOutlier, ...]:
    """Every dimension that a rule finds, with the layers where it holds and its strength in each of them."""
    blocks = np.array([layer != "embeddings" for layer in measured.layers])
    extreme = np.maximum(measured.argmin_share, measured.argmax_share)
    found = []
    for name, strength, holds, fraction in (
        ("luo", extreme, (extreme >= rules.luo_share) & blocks[:, None], rules.luo_layer_fraction),
        ("massive", measured.abs_max, _massive(measured, rules), 0.0),
        (
            "llm.int8",
            measured.large_share,
            (measured.large_share >= rules.int8_position_share) & blocks[:, None],
            rules.int8_layer_fraction,
        ),
    ):
        count = holds.sum(0)
        dims = np.flatnonzero((count > 0) & (count >= fraction * blocks.sum()))
        best = np.where(holds, strength, 0).max(0)
        for dim in dims[np.argsort(-best[dims], kind="stable")].tolist():
            rows = np.flatnonzero(holds[:, dim]).tolist()
            layers, values = tuple(measured.layers[row] for row in rows), tuple(strength[rows, dim].tolist())
            found.append(ActivationOutlier(name, dim, layers, values))
    return tuple(found)


def massive_neurons(measured: ActivationMeasures, rules: ActivationRules) -> tuple[ActivationOutlier, ...]:
    """Neurons of an MLP axis that the rule "massive" finds, each in its own layer, strongest first.

    The other rules ask for the same position in many layers, which says nothing of neurons.
    """
    holds = _massive(measured, rules)
    places = sorted(zip(*np.nonzero(holds), strict=True), key=lambda place: -measured.abs_max[place])
    return tuple(
        ActivationOutlier("massive", int(dim), (measured.layers[row],), (float(measured.abs_max[row, dim]),))
        for row, dim in places
    )


def _massive(measured: ActivationMeasures, rules: ActivationRules) -> np.ndarray:
    relative = rules.massive_ratio * measured.median_abs[:, None]
    return (measured.abs_max > rules.massive_size) & (measured.abs_max > relative)


# Experts whose largest |output| is above this quantile of all, and this share of the largest, in this share of the blocks.
SUPER_EXPERT = {"super_expert_quantile": 0.995, "super_expert_share": 0.1, "super_expert_layers": 0.75}


def super_experts(
    sizes: Mapping[tuple[int, int], float], n_layers: int, limits: Mapping[str, float] = SUPER_EXPERT
) -> tuple[tuple[int, int], ...]:
    """The experts (layer, expert) that a rule names by their `sizes`, the largest first (Su et al. 2025, released code).

    The largest of several is always above the quantile: one at least is named unless all are equal.
    """
    first = round(n_layers * limits["super_expert_layers"])
    early = {place: size for place, size in sizes.items() if place[0] < first}
    if not early:
        return ()
    values = np.array([*early.values()])
    least = max(np.quantile(values, limits["super_expert_quantile"]), limits["super_expert_share"] * values.max())
    return tuple(sorted((place for place, size in early.items() if size > least), key=lambda one: (-early[one], one)))
