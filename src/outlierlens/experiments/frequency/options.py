"""What `frequency` is asked: token counts, the dimensions that are held against all others, and how much is drawn."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.vectors.read import ReadOptions

COMPAT_LENGTH = 128  # tokens of a text in the released code of Puccetti et al. (2022)
FEWEST_DRAWS, FEWEST = 50, 200  # draws, and sampled tokens and types, below which a result says too little


@dataclass(frozen=True, kw_only=True)
class FrequencyOptions:
    """What is measured, and how."""

    dims: DimsOrFind = FIND
    """Compare these with all others: 308,381; find: what the weights name."""
    n_bootstrap: Annotated[int, Flag("--bootstrap"), Ge(FEWEST_DRAWS)] = 200
    """Bootstrap draws of the texts."""
    n_sample: Annotated[int, Flag("--sample"), Ge(FEWEST)] = 2048
    """Tokens of the rank correlations."""
    n_types: Annotated[int, Flag("--types"), Ge(FEWEST)] = 4000
    """Types (vocabulary entries) of correlations over types."""
    paper_compat: bool = False
    """Counts, texts and special tokens as in the released code of Puccetti et al.: texts of more than 70 characters, 128
    tokens, and 10 random dimensions as control."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = ReadOptions()
    """How the model is run; its budget bounds the memory of draws, sampled tokens and types together."""
    max_length: Annotated[int, Flag(hidden=True), Ge(2)] = 128
    """Tokens of a text."""

    def __post_init__(self) -> None:
        check(self)
        if self.paper_compat and self.max_length != COMPAT_LENGTH:
            raise BadInput(
                f"max_length is {self.max_length}; the released code reads {COMPAT_LENGTH} tokens (paper_compat)"
            )


@dataclass(frozen=True, kw_only=True)
class FrequencyCall:
    """What the command is asked."""

    counts: str
    """Token counts: ours or published; files by commas are added up."""
    measured: Annotated[FrequencyOptions, Flat()] = FrequencyOptions()
    """What is measured; how texts are read is a group of its own."""
