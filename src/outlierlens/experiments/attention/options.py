"""What `attention` is asked: which dimensions, how they go off, what a sink is, and whose maps are kept."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.mode_names import Mode, check_mode, check_no_resampling
from outlierlens.options import FIND, DimsOrFind, Flag, check


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What is measured, and how."""

    dims: DimsOrFind = FIND
    """308,381; find: what scan finds, or the two strongest."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    mode: Annotated[Mode, Flag(read="ablation.mode_names:named_mode", words="weights")] = "weights"
    """How dimensions go off in all layers: weights, norms, zero, mean, scale or writes."""
    factor: float = 0.5
    """Factor of mode scale."""
    embeddings: bool = False
    """Mode writes: the embeddings' writes too."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random sets of the same size."""
    threshold: Annotated[float, Flag("--sink-threshold"), Gt(0), Lt(1)] = 0.3
    """Mean attention on the first token that makes a head a sink."""
    paper_compat: bool = False
    """Correlate as the released code: texts are padded to --max-length and padding asks too; 10 random controls."""
    example: Annotated[int | None, Ge(-1)] = None
    """Text whose maps are kept, -1 for none. Default: the first long enough."""
    example_layer: Annotated[int | None, Ge(0)] = None
    """Layer of the maps. Default: the last but one."""
    example_tokens: Annotated[int, Ge(3)] = 32
    """Most tokens of that text."""
    max_length: Annotated[int, Ge(2)] = 128
    """Tokens of a text (or window) at most."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts in one forward pass."""
    n_bootstrap: Annotated[int, Flag("--bootstrap"), Ge(20)] = 200
    """Bootstrap draws of the texts."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        check_mode(self.mode, self.factor, self.embeddings)
        check_no_resampling(self.mode, "attention")
