"""Vectors of frequent and of rare tokens, layer by layer, with outlier dimensions and without: plain data, without torch.

found.bands[-1].examples                            # the most frequent band's commonest tokens
found.row("5", "raw").cosine[-1].value              # mean cosine of two of its tokens of different texts
found.row("5", "clip").types_gap.change             # what clipping does to most frequent − rarest
found.whole("off").norm_ratio                       # over all blocks
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from outlierlens.errors import pick
from outlierlens.results.document import Provenance, Result
from outlierlens.vectors.cosines import Estimate

STATES = ("raw", "clip", "off")
BLOCKS = "blocks"  # the layer of what is a mean over all blocks that were read
BY_BAND = ("norm", "cosine", "cosine_types")
OVERALL = ("anisotropy", "between", "spearman", "norm_ratio", "cosine_gap", "types_gap")


@dataclass(frozen=True)
class Band:
    """Tokens of about the same corpus frequency.

    Attributes:
        low, high: smallest and largest count in the corpus.
        n_types: different tokens of the measured texts. n_occurrences: of them all; share: of all bands' occurrences.
        n_tokens: drawn and measured, one a text. n_drawn_types: different ones among these.
        examples: the tokens that occur most in the measured texts.
    """

    low: float
    high: float
    n_types: int
    n_occurrences: int
    share: float
    n_tokens: int
    n_drawn_types: int
    examples: tuple[str, ...]

    @property
    def name(self) -> str:
        """The counts in words: "12 to 340"."""
        return f"{self.low:,.0f}" if self.low == self.high else f"{self.low:,.0f} to {self.high:,.0f}"


@dataclass(frozen=True)
class RandomChange:
    """What clipping random sets of as many other dimensions changes, in the place of the outliers.

    Attributes:
        median, lowest, highest: of the sets' changes.
        p: (1 + sets whose |change| is as large as the outliers') / (1 + sets).
    """

    median: float
    lowest: float
    highest: float
    p: float


@dataclass(frozen=True)
class LayerBands:
    """One layer in one state; bands are ordered from the rarest to the most frequent.

    Attributes:
        layer: its number as text, "embeddings", or "blocks" for the mean over all blocks.
        state: "raw", "clip" (dimensions zero in the extracted vectors) or "off" (switched off inside the network).
        norm: mean L2 norm of each band. cosine: mean cosine of its tokens, pairs of different texts, in [−1, 1].
        cosine_types: the same over pairs of different tokens alone; NaN where a band has one type.
        anisotropy: mean cosine of all drawn tokens, pairs of different texts. between: of the rarest and the most frequent
            band's tokens.
        spearman: rank correlation of a token's corpus count and its vector's norm, in [−1, 1], over all drawn tokens.
        norm_ratio: mean norm of the most frequent band over that of the rarest.
        cosine_gap, types_gap: cosine and cosine_types of the most frequent band minus those of the rarest.
        random: of "clip", for each of these numbers over all bands; {} where no random set was drawn.
    """

    layer: str
    state: str
    norm: Annotated[tuple[Estimate, ...], "band"]
    cosine: Annotated[tuple[Estimate, ...], "band"]
    cosine_types: Annotated[tuple[Estimate, ...], "band"]
    anisotropy: Estimate
    between: Estimate
    spearman: Estimate
    norm_ratio: Estimate
    cosine_gap: Estimate
    types_gap: Estimate
    random: dict[str, RandomChange] = field(default_factory=dict)


@dataclass(frozen=True)
class FrequencyBands(Result):
    """Norms and cosines of tokens by corpus frequency, at every layer, raw, clipped and with dimensions off.

    Attributes:
        counts, counts_texts, counts_tokens: where frequencies come from, and how many texts (0: not known) and tokens that
            was.
        special: whether special tokens were drawn too. skip_first: tokens left out at the start of each text.
        n_texts: different texts. n_read: that hold a drawn token. n_tokens: drawn.
        n_occurrences, n_types: of tokens in those texts that could be drawn.
        unknown, unknown_types: share of the occurrences, in [0, 1], and number of types whose count is 0.
        tokens_per_band: at most. n_bootstrap: times that texts were drawn again.
        dims: that are clipped and switched off. dims_source: who names them.
        mode: how they are switched off inside the network, "" where that was left out; n_values: parameters set by it.
        random_sets: of as many other dimensions, clipped in turn.
        rows: by layer and state. blocks: means over the blocks that were read, by state; () where none was.
    """

    provenance: Provenance
    data: str
    data_digest: str
    counts: str
    counts_texts: int
    counts_tokens: int
    stack: str
    final_norm: bool
    special: bool
    skip_first: int
    max_length: int
    hidden_size: int
    n_texts: int
    n_read: int
    n_tokens: int
    n_occurrences: int
    n_types: int
    unknown: float
    unknown_types: int
    tokens_per_band: int
    n_bootstrap: int
    dims: tuple[int, ...]
    dims_source: str
    mode: str
    n_values: int
    random_sets: tuple[tuple[int, ...], ...]
    bands: Annotated[tuple[Band, ...], "band"]
    rows: tuple[LayerBands, ...]
    blocks: tuple[LayerBands, ...]
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return tuple(dict.fromkeys(row.layer for row in self.rows))

    @property
    def states(self) -> tuple[str, ...]:
        """ "raw", "clip" and, where it was measured, "off"."""
        return tuple(dict.fromkeys(row.state for row in self.rows))

    def row(self, layer: str, state: str = "raw") -> LayerBands:
        """One layer in one state; raises BadInput with what there is."""
        return pick(self.rows, f"no layer {layer!r} in state {state!r} in this result", layer=layer, state=state)

    def whole(self, state: str = "raw") -> LayerBands:
        """The mean over all blocks in one state; raises BadInput where there is none."""
        return pick(self.blocks, f"no mean over blocks in state {state!r} in this result", state=state)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per layer, state and band, with every number; those over all bands are the same in each band's row."""
        return band_rows(self)


def band_rows(found: FrequencyBands) -> Iterator[dict[str, Any]]:
    """One flat row per layer (then the mean over blocks), state and band: every number with its interval and change."""
    for row in (*found.rows, *found.blocks):
        over: dict[str, Any] = {}
        for name in OVERALL:
            over |= _flat(name, getattr(row, name))
            if name in row.random:
                over |= {f"{name}_random": row.random[name].median, f"{name}_p": row.random[name].p}
        for number, band in enumerate(found.bands):
            flat: dict[str, Any] = {"layer": row.layer, "state": row.state, "band": number, "counts": band.name}
            for name in BY_BAND:
                flat |= _flat(name, getattr(row, name)[number])
            yield flat | over


def _flat(name: str, estimate: Estimate) -> dict[str, float]:
    parts = ("value", "low", "high", "change", "change_low", "change_high")
    return {name if part == "value" else f"{name}_{part}": getattr(estimate, part) for part in parts}
