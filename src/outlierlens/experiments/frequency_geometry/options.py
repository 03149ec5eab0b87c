"""What `frequency-geometry` is asked: bands of tokens, dimensions and how they go off, and how much is drawn."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from outlierlens.ablation.mode_names import check_mode, check_no_resampling
from outlierlens.errors import BadInput
from outlierlens.experiments.frequency_geometry.token_bands import Banding
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.vectors.read import ReadOptions


@dataclass(frozen=True, kw_only=True)
class FrequencyGeometryOptions:
    """What is measured, and how."""

    banding: Annotated[Banding, Flat("n_bands", "tokens_per_band", "skip_first")] = Banding()
    """How tokens are cut into bands."""
    dims: DimsOrFind = FIND
    """Clip these and switch them off: 308,381; find: what scan finds, or the two strongest."""
    off: Annotated[bool, Flag("--off/--no-off")] = True
    """Measure with them off inside the network too: a second pass."""
    mode: Literal["weights", "norms", "zero", "mean", "scale", "writes"] = "weights"
    """How dimensions go off, in all blocks."""
    factor: float = 0.5
    """Factor of mode scale."""
    embeddings: bool = False
    """Mode writes: the embeddings' writes too."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 19
    """Random sets of the same size to clip."""
    n_bootstrap: Annotated[int, Flag("--bootstrap"), Ge(20)] = 500
    """Bootstrap draws of the texts."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = ReadOptions()
    """How the model is run."""
    max_length: Annotated[int, Flag(hidden=True), Ge(2)] = 128
    """Tokens of a text."""

    def __post_init__(self) -> None:
        check(self)
        check_mode(self.mode, self.factor, self.embeddings)
        check_no_resampling(self.mode, "vectors")
        if self.embeddings and not self.off:
            raise BadInput("embeddings says how dimensions go off; leave --no-off out")


@dataclass(frozen=True, kw_only=True)
class FrequencyGeometryCall:
    """What the command is asked."""

    counts: str
    """Token counts: of `outlierlens count`, or published; files by commas are added up."""
    measured: Annotated[FrequencyGeometryOptions, Flat()] = FrequencyGeometryOptions()
    """What is measured; how texts are read is a group of its own."""
