"""What Puccetti et al. (2022) say of pre-trained encoders, for one model, as plain data without torch.

found.frequency.contrast("raw").difference       # outliers against all other dimensions
found.story.line("308").link("frequency, raw").rho
found.predictions.change("masked", "layers").direction
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from outlierlens.analyses.predictions import Predictions
from outlierlens.experiments.attention.result import Attention
from outlierlens.experiments.frequency.result import Frequency
from outlierlens.experiments.frequency_geometry.result import FrequencyBands
from outlierlens.experiments.layer_story.result import LayerStory
from outlierlens.results.document import Provenance, Result

# What the paper says of a checkpoint in words; passages as later papers quote them.
PUBLISHED = {
    "bert-base-uncased": (
        "Puccetti et al. 2022 (as quoted by later papers): the correlation of 381 with frequency and its damage are largest in "
        "layers 3 to 5 (counted from 0); that of 308 is high in early layers and its damage grows to layers 9 and 10; with "
        "both off, masked positions are predicted to be more frequent tokens"
    ),
}


@dataclass(frozen=True)
class Link:
    """Whether the outliers go with something more than other dimensions do.

    Attributes:
        what: "frequency, raw", "frequency, log" or "attention". tokens: "without_special" or "all".
        named, others: mean |r| of the outliers and of all other dimensions, over all blocks.
        difference: of the two, with its 95 % interval over texts where it is known (NaN else).
        p: of the difference's rank among other dimensions. says: "more", "less" or "unclear".
    """

    what: str
    tokens: str
    named: float
    others: float
    difference: float
    low: float
    high: float
    p: float
    says: str


@dataclass(frozen=True)
class PuccettiReplication(Result):
    """Puccetti et al. 2022 for one model.

    Attributes:
        checkpoint: the paper's checkpoint that this is, "" where it is none.
        dims: the outliers that everything is about; named_by: who names them.
        counts: where token frequencies come from.
        frequency, attention, story, bands, predictions: the parts; None where a part was left out.
        seconds: wall clock of each part, when it was measured.
        full: whether everything was read, or stated subsets.
    """

    provenance: Provenance
    checkpoint: str
    dims: tuple[int, ...]
    named_by: str
    counts: str
    frequency: Frequency | None = None
    attention: Attention | None = None
    story: LayerStory | None = None
    bands: FrequencyBands | None = None
    predictions: Predictions | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    full: bool = False
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Frequency | Attention | LayerStory | FrequencyBands | Predictions, ...]:
        """The parts that there are."""
        parts = (self.frequency, self.attention, self.story, self.bands, self.predictions)
        return tuple(part for part in parts if part is not None)

    def links(self) -> Iterator[Link]:
        """Whether the outliers follow frequency, for raw and log counts, without special tokens and with them."""
        if self.frequency is None:
            return
        for tokens in self.frequency.views:
            for measure in ("raw", "log"):
                one = self.frequency.contrast(measure, view=tokens)
                numbers = (one.named, one.others, one.difference, one.low, one.high, one.p)
                yield Link(f"frequency, {measure}", tokens, *numbers, one.verdict)

    def records(self) -> list[dict[str, Any]]:
        """One row per link."""
        return [vars(one) for one in self.links()]
