"""What `sweep` measures: the effect of every set of dimensions, with intervals, beside nulls. Plain data, no torch.

swept.top(5)                              # the strongest effects, largest first
swept.effect(507).change                  # nats per token against the intact model
swept.map()                               # changes as [layer window, dim], NaN where nothing was measured
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from outlierlens.architectures import is_mlp
from outlierlens.results.document import OnTask, Provenance, Result
from outlierlens.view.charts.base import strongest_first

BY_LAYER = "layer by layer"  # stands for the window of sets that differ from layer to layer
Stopped = Literal["precise", "all texts", "unfinished", "bulk"]


@dataclass(frozen=True)
class Effect:
    """What switching one set of dimensions off does.

    Attributes:
        label: "507", "507 in layer 3", "100, 247, 507".
        dims: dimensions off in any layer; by_layer: {layer: dims} where layers differ, else empty.
        window: name of the layers it is off in: "all layers", "layer 3", "from layer 3", "up to layer 3", "layers 0–2", or
            "layer by layer" for a plan that names dimensions for each layer.
        change: mean change of the task's value against the intact model (nats per token for a loss); NaN where the value is no
            number on a text, which ranks as the worst.
        low, high: 95 % interval of `change`, calibrated for the rule that stopped the measuring; infinite where too few texts,
            or too few that changed, settle it; 0 and 0 where nothing changed on any text.
        spread: standard deviation of the change over texts; NaN for a single text.
        n_texts: texts it was measured on, the first of the sweep's order.
        stopped: why no more: "precise" (narrow enough), "all texts", "unfinished", or "bulk": it is known together with the
            ordinary ones, and `low` to `high` is their common interval (see `Together`).
        first_order: estimate from gradients on `Cost.gradient_texts` texts, beside the measurement; None without one.
        p: rank p-value, (1 + #{others >= change}) / (1 + n), among the other dimensions of the same window; None for sets.
        q: `p` adjusted over all dimensions of the window (Benjamini & Hochberg 1995).
        q_found: likewise, over the dimensions alone that the weights named beforehand; None for others.
        times_random: change over the mean change of the dimensions that the weights did not name (or of ordinary sets);
            None where that mean is not positive. Puccetti et al. (2022) ask for 5.
        n_parameters: parameters that are zero while it is off; 0 for edits of hidden states.
        again: of the strongest that were measured again: texts that `change` rests on, none of which chose it (or all there
            are); 0 for others.
    """

    label: str
    dims: tuple[int, ...]
    by_layer: dict[int, tuple[int, ...]]
    window: str
    layers: tuple[int, ...]
    change: float
    low: float
    high: float
    spread: float
    n_texts: int
    stopped: Stopped
    first_order: float | None = None
    p: float | None = None
    q: float | None = None
    q_found: float | None = None
    times_random: float | None = None
    n_parameters: int = 0
    again: int = 0


@dataclass(frozen=True)
class Null:
    """One set of dimensions against control sets of its size, all on the same `n_texts` texts.

    Attributes:
        label, window: of the set.
        kind: "random" (any other dimensions), "ordinary" (of these draws, and more, those without a dimension that the weights
            or the caller named; only where they differ), or "matched" (as extreme weights, at other positions by layer).
        changes: of each control set; sorted ascending.
        change: of the set itself on the same texts.
        p: (1 + #{control >= change}) / (1 + n) among random sets; q: adjusted over all sets (or listed dimensions) and windows
            of this sweep (Benjamini & Hochberg 1995). None among ordinary and matched ones: they describe only.
        median, percentile_95, mean: of `changes`.
        times_mean: change / mean; None where the mean is not positive.
        closeness: matched only: median of the controls' magnitudes over the wanted ones; 1 is a perfect match.
    """

    label: str
    window: str
    kind: str
    n_texts: int
    change: float
    changes: tuple[float, ...]
    p: float | None
    median: float
    percentile_95: float
    mean: float
    times_mean: float | None
    closeness: float | None = None
    q: float | None = None


@dataclass(frozen=True)
class Cost:
    """What the sweep took, in evaluations of one text by the whole model.

    Attributes:
        intact, effects, nulls: texts evaluated for each; of a screened sweep `intact` counts them again for their margins.
        gradient_texts: texts of the gradient passes (one a margin where a sweep is screened); each costs about three
            evaluations, which `total` counts.
        total: all of them.
        exact: what measuring every effect (nulls apart) on every text takes.
        tokens: tokens of the evaluated texts in `total`, padding not counted.
        seconds: time spent measuring, summed over runs that continued each other; 0 when unknown.
    """

    intact: int
    effects: int
    nulls: int
    gradient_texts: int
    total: int
    exact: int
    tokens: int
    seconds: float = 0.0

    @property
    def saving(self) -> float:
        """Exact evaluations over those spent on effects, the intact model and gradients."""
        spent = self.intact + self.effects + 3 * self.gradient_texts
        return self.exact / spent if spent else float("nan")


@dataclass(frozen=True)
class Precision:
    """How far a reduced precision moves the effects, over some sets and texts: against the same weights in float32.

    Attributes:
        deviation: the largest |change − change in float32|; where effects are those of a metric of all texts together, the
            share of predicted classes, or the largest difference of predicted values, that is other than in float32.
        of: what it is of: "changes", "classes" or "values".
        intact: the intact model's value minus that in float32, on the same texts; None where `of` is no change.
    """

    dtype: str
    deviation: float
    n_sets: int
    n_texts: int
    of: str = "changes"
    intact: float | None = None

    @property
    def over(self) -> str:
        """What it is measured over: "4 sets, 100 texts"."""
        return f"{self.n_sets:,} set{'s' * (self.n_sets != 1)}, {self.n_texts:,} text{'s' * (self.n_texts != 1)}"

    @property
    def said(self) -> str:
        """In words: "the intact value differs from float32 by +0.0012, changes by at most 0.003"."""
        if self.of == "classes":
            compared = (self.n_sets + 1) * self.n_texts  # the intact model too
            return f"{round(self.deviation * compared):,} of {compared:,} predicted classes are other than in float32"
        if self.intact is None:
            return f"predicted values differ from float32 by at most {self.deviation:.2g}"
        return f"the intact value differs from float32 by {self.intact:+.2g}, changes by at most {self.deviation:.2g}"


@dataclass(frozen=True)
class Together:
    """What is known of the bulk: the ordinary dimensions, which stand out by neither change nor spread.

    Attributes:
        n: of them; texts: each was measured on. reach: of their common interval, to either side of each change.
        audited: ordinary ones, drawn at random and measured on `audit_texts`. off: of them, those that were further off; they
            have intervals of their own. furthest: by how much the furthest of the others is off.
        bound: upper bound of the share of the bulk that is further off, at confidence 0.95 (`bulk.most_off`).
    """

    n: int
    texts: int
    reach: float
    audited: int
    audit_texts: int
    off: int
    furthest: float
    bound: float

    @property
    def said(self) -> str:
        """In words, for reading."""
        return (
            f"The bulk: {self.n:,} effects that stand out by neither size nor spread were measured on {self.texts} "
            f"text{'s' * (self.texts != 1)} each; each is its estimate ± {self.reach:g}. Of {self.audited} ordinary ones, "
            f"drawn at random and measured on {self.audit_texts} texts, {self.off or 'none'} "
            f"{'were' if self.off > 1 else 'was'} further off (the furthest other by {self.furthest:.2g}): at most "
            f"{100 * self.bound:.2g} % of the bulk are, at confidence 0.95."
        )


@dataclass(frozen=True)
class Screening:
    """What was left out because its predicted class cannot change to first order, and how often that was wrong.

    Attributes:
        pairs: of a text and something switched off; measured: of them, the audited ones with them.
        audited: pairs that could have been left out and were drawn at random to be measured; flipped: of them, those whose
            predicted class had changed.
        bound: upper bound of the share of flipped ones among all left out, at confidence 0.95.
        safety: how many times its first-order estimate a margin must withstand.
    """

    pairs: int
    measured: int
    audited: int
    flipped: int
    bound: float
    safety: float


@dataclass(frozen=True)
class Sweep(OnTask, Result):
    """Every dimension (or set, or layer window × dimension) switched off in turn.

    Attributes:
        task, unit: "causal loss", "nats per token"; "glue:cola mcc", "1 − mcc".
        text: what a text is: "block of 128 tokens", "line of at most 128 tokens".
        mode: the ablation, as in `Ablation`.
        windows: "all", "single", "from", "upto", or "given".
        method: "exact", "screened" or "adaptive"; screened runs every effect on the texts whose predicted class it can
            change (see `Screening`), and the strongest on all; adaptive stops an effect when its interval is narrower than
            ± max(tolerance, relative × |change|), and separates the `top` strongest; ordinary ones are known `together`.
        level: confidence of each interval. Each look's t interval is held to more, so that the interval at which measuring
            stops holds with `level`: where it stops at a width it is √(1 + b / (n + 16)) times as wide after n texts, and where
            the order of the strongest decides it is one of `look_level`, which is valid at any look for any reason. The
            intervals of the strongest, measured again, hold together (Bonferroni).
        widening: b for normal differences, and for log-normal ones; that of an effect lies between, by how skewed its
            differences are and those of all. 0, 0 where no effect stops at a width.
        looks: numbers of texts at which intervals are looked at; one look in exact mode.
        n_texts, n_tokens: of the whole evaluation set; intact: the intact model's value on the texts that were used.
        found: dimensions that the weight rule names in this stream.
        separated: whether the order of the `top` strongest is settled (or they differ by less than the tolerance).
        effects: in the order planned.
        nulls: comparisons with control sets.
        metric: "mcc" where values are 1 − metric, so that a change above 0 is what the metric loses; "" for losses.
    """

    provenance: Provenance
    data: str
    data_digest: str
    task: str
    unit: str
    text: str
    mode: str
    stack: str
    n_layers: int
    width: int
    windows: str
    method: str
    tolerance: float
    relative: float
    top_k: int
    level: float
    widening: tuple[float, float]
    look_level: float
    looks: tuple[int, ...]
    n_texts: int
    n_tokens: int
    intact: float
    intact_low: float
    intact_high: float
    found: tuple[int, ...]
    separated: bool
    effects: tuple[Effect, ...]
    nulls: tuple[Null, ...]
    cost: Cost
    precision: Precision | None = None
    metric: str = ""
    screening: Screening | None = None
    together: Together | None = None
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What is off, in a word: "dimension" or "neuron"."""
        return "neuron" if is_mlp(self.stack) else "dimension"

    @property
    def is_loss(self) -> bool:
        """Whether exp(value) is a perplexity."""
        return self.unit == "nats per token"

    @property
    def has_intact(self) -> bool:
        """Whether the intact model has a value of its own, which a change of outputs has not."""
        return self.task not in ("output change", "sentence change")

    @property
    def windows_swept(self) -> tuple[str, ...]:
        """Names of the layer windows, in the order planned; plans that differ from layer to layer are in none."""
        return tuple(dict.fromkeys(effect.window for effect in self.effects if effect.window != BY_LAYER))

    def singles(self, window: str | None = None) -> tuple[Effect, ...]:
        """Effects of single dimensions (in one window), in the order planned."""
        return tuple(
            e for e in self.effects if len(e.dims) == 1 and e.window != BY_LAYER and window in (None, e.window)
        )

    def top(self, k: int = 5, window: str | None = None) -> tuple[Effect, ...]:
        """The `k` largest effects (in one window), largest first; of equal ones the smaller dimension first.

        Those that were measured again come before the others, whose order is that of estimates they were chosen by.
        """
        among = [e for e in self.effects if window in (None, e.window)]
        return tuple(sorted(among, key=lambda e: (not e.again, -np.nan_to_num(e.change, nan=np.inf), e.dims))[:k])

    def effect(self, dim: int, window: str | None = None) -> Effect:
        """The effect of one dimension alone (in one window); raises KeyError for one that was not swept."""
        for effect in self.singles(window):
            if effect.dims == (dim,):
                return effect
        raise KeyError(f"dimension {dim} was not swept")

    def map(self) -> np.ndarray:
        """Changes of single dimensions as [window, dim] in the order of `windows_swept`; NaN where none was measured."""
        names = self.windows_swept
        changes = np.full((len(names), self.width), np.nan)
        for effect in self.singles():
            changes[names.index(effect.window), effect.dims[0]] = effect.change
        return changes

    def records(self) -> list[dict[str, Any]]:
        """One flat row per effect, largest first."""
        return [
            {
                "label": effect.label,
                "dims": ",".join(map(str, effect.dims)),
                "window": effect.window,
                "change": effect.change,
                "low": effect.low,
                "high": effect.high,
                "spread": effect.spread,
                "texts": effect.n_texts,
                "again": effect.again,
                "stopped": effect.stopped,
                "first_order": effect.first_order,
                "p": effect.p,
                "q": effect.q,
                "q_found": effect.q_found,
                "times_random": effect.times_random,
                "found": set(effect.dims) <= set(self.found),
                "parameters": effect.n_parameters,
            }
            for effect in self.top(len(self.effects))
        ]


def names(sweep: Sweep, window: str | None = None) -> tuple[int, ...]:
    """Dimensions with a name, for `looks`: those that the weights name, then the `top_k` largest above the tolerance.

    Above with the whole interval: the largest of many that do nothing are noise, and get no name.
    """
    effects = [e for e in sweep.singles(window) if math.isfinite(e.change)]
    swept = {e.dims[0] for e in effects}
    above = sorted((e for e in effects if e.low > sweep.tolerance), key=lambda e: (-e.change, e.dims))
    top = list(dict.fromkeys(e.dims[0] for e in above))[: sweep.top_k]
    most = {dim: max(e.change for e in effects if e.dims[0] == dim) for dim in sweep.found if dim in swept}
    return tuple(dict.fromkeys([*strongest_first(most, lambda dim: most[dim]), *top]))
