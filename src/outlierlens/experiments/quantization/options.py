"""What `quant` is asked: schemes, what is kept in high precision, and on how much."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from outlierlens.detection.running_statistics import LARGE
from outlierlens.errors import BadInput
from outlierlens.experiments.quantization.schemes import DEFAULTS, Recipe
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.tasks.base import TaskOptions


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """What is rounded, and what is spared."""

    recipes: Annotated[
        tuple[Recipe, ...] | None, Flag("--schemes", read="experiments.quantization.schemes:parse_all")
    ] = None
    """WEIGHTS/INPUTS by commas: int8, int4, e4m3, e5m2 or none, each per -tensor, -channel (weights), -token (inputs),
    -group32 (weights), integers also -asym. Default: int8 per tensor, and per channel and token; --thorough: five common
    ones."""
    dims: DimsOrFind = FIND
    """Keep these: 308,381; find: what weights or activations name."""
    stack: str | None = None
    """Which stream, where there are several."""
    thorough: bool = False
    """64 texts, 19 random sets and five schemes instead of 16, 5 and two; what is given stands."""
    n_random: Annotated[int | None, Flag("--random"), Ge(0)] = None
    """Random sets of the same size, kept. Default: 5; --thorough: 19."""
    threshold: Annotated[
        float | None, Flag(read="options.read:number_or_none", words="6.0"), Gt(0), Lt(float("inf"))
    ] = LARGE
    """LLM.int8: keep inputs with |x| of at least this; none leaves it out."""
    alpha: Annotated[float | None, Flag("--smooth", read="options.read:number_or_none", words="0.5"), Ge(0), Le(1)] = (
        0.5
    )
    """SmoothQuant's alpha in [0, 1]; none leaves it out."""
    n_calibrate: Annotated[int, Flag("--calibrate"), Ge(0)] = 16
    """SmoothQuant rests on the N texts after the measured ones."""
    n_error_texts: Annotated[int, Flag("--error-texts"), Ge(1)] = 8
    """Compare hidden states, block by block, on the first N texts."""
    noise_draws: Annotated[int, Ge(0)] = 3
    """Runs with noise of the last bit, on 16 texts, of fewer than 32 on a quarter (four at least); 0 leaves it out."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    task: Annotated[TaskOptions, Flat("max_length", "batch_size")] = TaskOptions()
    """How texts become numbers; its seed is this one."""

    @property
    def n_sets(self) -> int:
        """Random sets."""
        return (19 if self.thorough else 5) if self.n_random is None else self.n_random

    @property
    def schemes(self) -> tuple[Recipe, ...]:
        """What is rounded to what."""
        return (DEFAULTS if self.thorough else DEFAULTS[:2]) if self.recipes is None else self.recipes

    def __post_init__(self) -> None:
        check(self)
        if self.recipes is not None and not self.recipes:
            raise BadInput("no scheme to round by; name one, such as int8-channel/int8-token")
