"""What rounding to few bits costs, where its error lies, and whether keeping the outliers gives it back: plain data, no torch.

found.verdict                                            # "keep dimensions 100, 247 and 507 in 16 bit: …"
found.rounding("int8-tensor/int8-tensor").regained       # loss that keeping them gives back, with its interval
found.rounding("int8-tensor/int8-tensor").errors.output  # [layer], relative squared error of each block's output
found.records()                                          # a row per scheme and setting
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from outlierlens.errors import pick
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.words import no_interval
from outlierlens.view.words import these

What = Literal["intact", "rounded", "kept", "random", "mixed", "smoothed"]
Says = Literal["free", "keep", "no use", "unclear", "not tried"]


@dataclass(frozen=True)
class Setting:
    """The model in one setting.

    Attributes:
        what: "intact"; "rounded" all of it; "kept" with the outliers in high precision; "random" with as many random
            dimensions; "mixed" by LLM.int8's decomposition; "smoothed" by SmoothQuant.
        dims: dimensions in high precision.
        value: the task's, mean over texts weighted by tokens; low, high: its 95 % interval over texts.
        change: value − intact value, with its paired interval.
        kept: share in [0, 1] of the linears' weights in high precision; "mixed": of their inputs, mean over texts.
        per_text: value of each text, in the order of the data.
        noise: standard deviation of the value, and so of the change, between runs that differ by noise of 1e-6 in what the
            first block reads; NaN where it was not measured (`noise_draws` 0, and the intact model, which has no steps).
    """

    what: What
    dims: tuple[int, ...]
    value: float
    low: float
    high: float
    change: float
    change_low: float
    change_high: float
    kept: float
    per_text: tuple[float, ...]
    noise: float = math.nan


@dataclass(frozen=True)
class Difference:
    """A difference of the task's value between two settings, its 95 % interval over texts, and `noise` as `Setting` has it.

    The settings of a difference read the same noise.
    """

    value: float
    low: float
    high: float
    noise: float = math.nan


@dataclass(frozen=True)
class LinearError:
    """The error at one linear by itself, Σ (rounded − x)² / Σ x²; NaN for what the scheme does not round.

    Attributes:
        layer, part: where. reads: reads the stream. writes: writes to it.
        weight, weight_kept: of its weights, without and with the outliers kept.
        weight_share: of `weight`, in [0, 1], what lies in the outliers' columns (or rows, of a linear that writes).
        inputs, inputs_kept, inputs_share: likewise of what it reads in the intact model.
    """

    layer: int
    part: str
    reads: bool
    writes: bool
    weight: float
    weight_kept: float
    weight_share: float
    inputs: float
    inputs_kept: float
    inputs_share: float


@dataclass(frozen=True)
class Errors:
    """Where the error of one scheme lies.

    Relative squared errors: Σ (h' − h)² / Σ h² over tokens and dimensions, h a block's output in the intact model.

    Attributes:
        output, output_kept, output_random: [layer], of the rounded model, with the outliers kept, with random dimensions kept
            (the first draw; empty without draws).
        others, others_kept, others_random: the same over all dimensions but the outliers.
        share: [layer], part in [0, 1] of `output` that lies in the outliers.
        by_dim: [layer, column] part of `output` that lies in each of `Quantized.map_dims`.
        linears: every linear by itself.
    """

    output: Annotated[np.ndarray, "layer"]
    output_kept: Annotated[np.ndarray, "layer, or empty"]
    output_random: Annotated[np.ndarray, "layer, or empty"]
    others: Annotated[np.ndarray, "layer"]
    others_kept: Annotated[np.ndarray, "layer, or empty"]
    others_random: Annotated[np.ndarray, "layer, or empty"]
    share: Annotated[np.ndarray, "layer"]
    by_dim: Annotated[np.ndarray, "layer column"]
    linears: tuple[LinearError, ...]

    @property
    def due(self) -> np.ndarray:
        """Part of the error that goes when the outliers are kept [layer]: 1 − output_kept / output; below 0 where it grows."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found: np.ndarray = 1 - self.output_kept / self.output
        return found


@dataclass(frozen=True)
class Rounding:
    """One scheme: all of the model rounded, then what helps.

    Attributes:
        scheme: "int8-channel/int8-token", weights / inputs. n_linears, n_weights: that it rounds.
        kept: with the outliers in high precision. random: with as many random dimensions, several draws.
        mixed, smoothed: None where the scheme rounds no inputs, or where they were not asked for.
        regained: value rounded − value kept: what keeping the outliers gives back.
        beyond_random: mean value of the random draws − value kept: what it gives back beyond random dimensions; None and no p
            without draws.
        regained_mixed, regained_smoothed: value rounded − value of that setting.
        p: (1 + #{draws whose value is as small as kept's}) / (1 + draws).
    """

    scheme: str
    n_linears: int
    n_weights: int
    rounded: Setting
    kept: Setting
    random: tuple[Setting, ...]
    mixed: Setting | None
    smoothed: Setting | None
    regained: Difference
    beyond_random: Difference | None
    regained_mixed: Difference | None
    regained_smoothed: Difference | None
    p: float | None
    errors: Errors

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings that were measured, the rounded model first."""
        more = (setting for setting in (self.mixed, self.smoothed) if setting is not None)
        return (self.rounded, self.kept, *self.random, *more)

    @property
    def says(self) -> Says:
        """What the intervals say.

        "free": the interval of the cost holds 0 or lies below. "keep": keeping the outliers gives something back, and more than
        random dimensions do, both intervals above 0. "no use": rounding costs, and that cannot be said. "unclear": the interval
        is not settled (few texts, or an infinite value). "not tried": rounding costs, and no random draw was measured beside.
        """
        return weighed(self.rounded.change_low, self.regained, self.beyond_random)

    @property
    def share_regained(self) -> float:
        """What keeping the outliers gives back of what rounding costs; NaN where that is nothing."""
        return self.regained.value / self.rounded.change if self.rounded.change else float("nan")

    @property
    def random_change(self) -> float:
        """Mean change with random dimensions kept; NaN without draws."""
        return float(np.mean([setting.change for setting in self.random])) if self.random else float("nan")


@dataclass(frozen=True)
class SmoothScale:
    """SmoothQuant's scales of one tensor that linears of a layer read (Xiao et al. 2023, eq. 4).

    Attributes:
        parts: the linears that read it.
        scales: of each outlier [dim], in the order of `Quantized.dims`; ranks: 1 for the largest scale of all dimensions.
        median, largest: over all dimensions.
    """

    layer: int
    parts: tuple[str, ...]
    scales: Annotated[tuple[float, ...], "named"]
    ranks: Annotated[tuple[int, ...], "named"]
    median: float
    largest: float


@dataclass(frozen=True)
class Quantized(Result):
    """A model rounded by several schemes.

    Attributes:
        task, unit: what its value is: "causal loss", "nats per token"; "sentence change", "cosine distance".
        layers: blocks. dims, dims_source: the outliers, and who names them.
        intact: the model as it is.
        smoothing: scales with `alpha`; empty where no scheme rounds inputs or it was not asked for.
        threshold: of "mixed", None where it was not asked for.
        calibration: which texts SmoothQuant's largest values are of. n_error_texts: texts whose hidden states are compared.
        map_dims: dimensions of the columns of `Errors.by_dim`.
        noise_draws: runs of each setting with noise, whose floor stands beside each figure and is in each interval; 0 without.
        n_noise_texts: texts that are run with noise.
    """

    provenance: Provenance
    data: str
    data_digest: str
    task: str
    unit: str
    stack: str
    layers: Annotated[tuple[str, ...], "layer"]
    hidden_size: int
    dims: Annotated[tuple[int, ...], "named"]
    dims_source: str
    n_texts: int
    n_tokens: int
    max_length: int
    intact: Setting
    roundings: tuple[Rounding, ...]
    alpha: float | None
    threshold: float | None
    smoothing: tuple[SmoothScale, ...]
    calibration: str
    n_calibration: int
    n_error_texts: int
    map_dims: Annotated[tuple[int, ...], "column"]
    notes: tuple[str, ...] = ()
    noise_draws: int = 0
    n_noise_texts: int = 0

    def rounding(self, scheme: str) -> Rounding:
        """One scheme; raises BadInput with those there are."""
        return pick(self.roundings, f"no scheme {scheme!r} in this result", scheme=scheme)

    @property
    def worst(self) -> Rounding:
        """The scheme that costs most."""
        return max(self.roundings, key=lambda one: np.nan_to_num(one.rounded.change, nan=np.inf))

    @property
    def noise_note(self) -> str:
        """What noise and intervals rest on, in a sentence."""
        if not self.noise_draws:
            return "The noise of the last bit was not measured, and the intervals may lack some of it."
        return (
            f"Noise: standard deviation between runs whose first block reads noise of 1e-6 ({self.noise_draws} more runs of "
            f"{self.n_noise_texts:,} texts); the intervals hold it."
        )

    @property
    def verdict(self) -> str:
        """What to do, in one line."""
        by = {says: [one for one in self.roundings if one.says == says] for says in ("keep", "no use", "free")}
        parts = []
        if by["keep"]:
            told = "; ".join(
                f"{one.scheme} {signed(one.rounded.change)} → {signed(one.kept.change)}"
                + (f" (random {signed(one.random_change)})" if one.random else "")
                for one in by["keep"]
            )
            parts.append(f"keep {these(self.dims)} in 16 bit: {told}")
        if by["no use"]:
            told = ", ".join(f"{one.scheme} {signed(one.rounded.change)}" for one in by["no use"])
            parts.append(f"keeping {these(self.dims)} does not make up for {told}")
        if by["free"]:
            parts.append(f"{', '.join(one.scheme for one in by['free'])}: no cost that can be told, nothing to keep")
        for says, why in (
            ("unclear", no_interval(self.n_texts)),
            ("not tried", "nothing random was kept; ask for --random 19"),
        ):
            if rest := [f"{one.scheme} {signed(one.rounded.change)}" for one in self.roundings if one.says == says]:
                parts.append(f"{', '.join(rest)}: no verdict, for {why}")
        return f"{'; '.join(parts)} ({self.unit})"

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per scheme and setting."""
        return list(self.records())

    def records(self) -> Iterator[dict[str, Any]]:
        """One flat row per scheme and setting, the intact model first."""
        pairs = [("", self.intact), *((one.scheme, setting) for one in self.roundings for setting in one.settings)]
        for scheme, setting in pairs:
            yield {
                "scheme": scheme,
                "what": setting.what,
                "dims": ",".join(map(str, setting.dims)),
                "value": setting.value,
                "change": setting.change,
                "change_low": setting.change_low,
                "change_high": setting.change_high,
                "noise": setting.noise,
                "kept": setting.kept,
            }


def weighed(cost_low: float, regained: Difference, beyond_random: Difference | None) -> Says:
    """What intervals of the cost, of what is given back and of that beyond random choices say: see `Rounding.says`."""
    if not math.isfinite(cost_low):
        return "unclear"
    if cost_low <= 0:
        return "free"
    if beyond_random is None:
        return "not tried"
    return "keep" if regained.low > 0 and beyond_random.low > 0 else "no use"


def signed(change: float) -> str:
    """A change for reading, with its sign and three significant digits."""
    return f"{change:+z.3g}"
