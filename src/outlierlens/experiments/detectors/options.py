"""What `detectors` is asked: thresholds, nulls, what stands for a text, and the search for super weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.settings import Sentence, Settings
from outlierlens.experiments.detectors.trials import TrialOptions
from outlierlens.options import Flag, Flat, check

Null = Literal["random", "shuffled", "rotated"]
NULL_NAMES: tuple[Null, ...] = get_args(Null)


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


@dataclass(frozen=True, kw_only=True)
class DetectorOptions:
    """What is measured, and how."""

    stack: str | None = None
    """Which stream, where there are several."""
    reading: Annotated[PassOptions, Flat()] = PassOptions()
    """The pass over the texts."""
    nulls: Annotated[
        tuple[Null, ...], Flag(read="experiments.detectors.options:parse_nulls", words="random,shuffled,rotated")
    ] = NULL_NAMES
    """random, shuffled, rotated by commas, or none."""
    prompt: str | None = None
    """Text of the search for super weights. Default: the first text."""
    trial_texts: Annotated[int, Ge(0)] = 0
    """Test super weights on N texts: zero, restore, scale. 0: do not."""
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
    """NAME=VALUE, again and again; the table of rules lists the names."""
    layer: str | None = None
    """Also show the agreement in this layer."""
    super_chart: Path | None = None
    """Draw the super weights to this file: likewise."""
