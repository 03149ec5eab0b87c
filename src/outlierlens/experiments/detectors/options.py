"""What `detectors` is asked: thresholds, nulls, what stands for a text, and the search for super weights.

Thresholds of all definitions are one object; defaults are the published ones where there are any.

settings = Settings.parse(["rudman_factor=4", "massive_size=50"])
settings.values["luo_share"]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Ge

from outlierlens.detection.rules import ActivationRules, Rule
from outlierlens.errors import BadInput
from outlierlens.options import Flag, Flat, check
from outlierlens.statistics import SIGNIFICANT

Sentence = Literal["auto", "first", "last", "mean"]
Null = Literal["random", "shuffled", "rotated"]
NULL_NAMES: tuple[Null, ...] = get_args(Null)


@dataclass(frozen=True)
class Settings:
    """Thresholds; shares, fractions and quantiles in (0, 1].

    Attributes:
        rules: those of luo-share, massive and llm.int8.
        n_sigma, min_layer_fraction: kovaleva; puccetti takes n_sigma too (strictly greater, unbiased std).
        puccetti_top: length of its interleaved list.
        luo_rank, luo_rank_p: a rank counts among the first so many; Holm's p over dimensions, divided by the norms of a block.
        systematic_ratio: × the layer's mean |h|.
        rudman_factor: × the mean variance.
        timkey_share: of a layer's mean cosine; timkey_cosine: mean cosine below which a layer has no anisotropy to share.
        macocco_quantile: of all |h| of the layer.
        he_kurtosis, bondarenko_kurtosis: above which a layer has outliers; carrier_share: part of the excess that the
            dimensions that are named carry together.
        super_spike: |input| and |output| of the last linear; super_left: part of the layer's largest |output| that may be left
            once the weight is removed; super_rounds: weights removed at most.
    """

    rules: ActivationRules = field(default_factory=ActivationRules)
    n_sigma: float = Rule.n_sigma
    min_layer_fraction: float = Rule.min_layer_fraction
    puccetti_top: int = 6
    luo_rank: int = 6
    luo_rank_p: float = SIGNIFICANT
    systematic_ratio: float = 1000.0
    rudman_factor: float = 5.0
    timkey_share: float = 0.05
    timkey_cosine: float = 0.05
    macocco_quantile: float = 0.99
    he_kurtosis: float = 5.0
    bondarenko_kurtosis: float = 10.0
    carrier_share: float = 0.5
    super_spike: float = 50.0
    super_left: float = 0.5
    super_rounds: int = 16

    def __post_init__(self) -> None:
        for name in ("puccetti_top", "luo_rank", "super_rounds"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in (
            "n_sigma",
            "systematic_ratio",
            "rudman_factor",
            "he_kurtosis",
            "bondarenko_kurtosis",
            "super_spike",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise BadInput(f"{name} is {getattr(self, name)}; it must be positive")
        for name in (
            "min_layer_fraction", "luo_rank_p", "timkey_share", "timkey_cosine", "macocco_quantile", "carrier_share",
            "super_left",
        ):  # fmt: skip
            if not 0 < getattr(self, name) <= 1:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be in (0, 1]")

    @property
    def values(self) -> dict[str, float]:
        """Every threshold by its name, those of `rules` among them."""
        own = {f.name: float(getattr(self, f.name)) for f in fields(self) if f.name != "rules"}
        return {f.name: float(getattr(self.rules, f.name)) for f in fields(self.rules)} | own

    @classmethod
    def parse(cls, given: Sequence[str]) -> "Settings":
        """The defaults with "name=value" changed.

        Raises:
            BadInput: no such threshold (the message lists them), or a value that it cannot have.
        """
        settings = cls()
        for text in given:
            name, sign, value = text.partition("=")
            name = name.strip().replace("-", "_")
            if not sign or name not in settings.values:
                raise BadInput(
                    f"cannot read threshold {text!r}; write NAME=VALUE, with one of {', '.join(cls().values)}"
                )
            number = _number(name, value, settings)
            if hasattr(settings.rules, name):
                settings = replace(settings, rules=replace(settings.rules, **{name: number}))
            else:
                settings = replace(settings, **{name: number})
        return settings


def _number(name: str, text: str, settings: Settings) -> Any:
    whole = isinstance(getattr(settings, name, 0.0), int)
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}; it must be a {'whole ' if whole else ''}number") from None


def parse_nulls(text: str) -> tuple[str, ...]:
    """ "random,rotated" -> ("random", "rotated"); "none" -> ()."""
    return () if text == "none" else tuple(part.strip() for part in text.split(","))


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """How the texts are read, and the thresholds that what is read is held against."""

    settings: Annotated[Settings, Flag(hidden=True)] = Settings()
    """The thresholds."""
    special: Annotated[bool, Flag("--special/--no-special")] = True
    """Count special tokens ([CLS], [SEP], <s>) too."""
    sentence: Sentence = "auto"
    """What stands for a text (rudman); auto is the last token of a decoder, the first elsewhere."""
    max_length: Annotated[int, Ge(2)] = 128
    """Tokens of a text (or window) at most."""
    batch_size: Annotated[int, Ge(1)] = 16
    """Texts in one forward pass."""
    histogram_bytes: Annotated[int, Flag(hidden=True)] = 500_000_000
    """Memory for the quantiles of macocco, in each basis; beyond it, dimensions with the largest |h| only."""
    progress: Annotated[Callable[[str, int, int], None] | None, Flag(hidden=True)] = field(
        default=None, compare=False, repr=False
    )
    """Called with what is read, texts done and texts in all."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class TrialOptions:
    """`factors` to multiply by, `n_alone` weights tested each alone, `n_random` draws of others, `seed` of draws, intervals."""

    factors: tuple[float, ...] = (0.5, 1.5, 2.0, 3.0)
    n_alone: int = 4
    n_random: int = 3
    seed: int = 0
    progress: Callable[[str, int, int], None] | None = None

    def __post_init__(self) -> None:
        if not all(np.isfinite(factor) for factor in self.factors) or min(self.n_random, self.n_alone) < 0:
            raise BadInput(
                f"factors are {self.factors}, n_alone {self.n_alone} and n_random {self.n_random}; factors must be numbers, "
                "and the others at least 0"
            )


@dataclass(frozen=True, kw_only=True)
class DetectorOptions:
    """What is measured, and how."""

    stack: str | None = None
    """Which stream, where there are several: encoder, decoder. mlp (encoder.mlp): neurons of the blocks' MLPs."""
    reading: Annotated[PassOptions, Flat()] = PassOptions()
    """The pass over the texts."""
    nulls: Annotated[
        tuple[Null, ...], Flag(read="experiments.detectors.options:parse_nulls", words="random,shuffled,rotated")
    ] = NULL_NAMES
    """random, shuffled, rotated by commas, or none."""
    prompt: str | None = None
    """Text of the search for super weights. Default: the first text."""
    trial_texts: Annotated[int, Ge(0)] = 0
    """Test super weights on N texts: zero, restore, scale. 0 skips the test."""
    trials: Annotated[TrialOptions, Flag(hidden=True)] = TrialOptions()
    """How they are tested."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        if bad := [one for one in self.nulls if one not in NULL_NAMES]:
            raise BadInput(f"unknown null {bad[0]!r}; nulls are {', '.join(NULL_NAMES)}")


@dataclass(frozen=True, kw_only=True)
class Asked(DetectorOptions):
    """What the command is asked beside that: what it shows and draws."""

    thresholds: Annotated[tuple[str, ...], Flag("--threshold")] = ()
    """NAME=VALUE. Repeatable; the table of rules lists the names."""
    layer: str | None = None
    """Also show the agreement in this layer."""
    super_chart: Path | None = None
    """Draw the super weights to this file: .html, .svg, .png or .json."""
