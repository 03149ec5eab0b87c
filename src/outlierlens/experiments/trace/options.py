"""What `trace` is asked: which dimension, how many parts are named, and what a sink is."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from outlierlens.options import Flag, Flat, check
from outlierlens.tasks.base import TaskOptions


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Which dimension is followed, and how."""

    dim: Annotated[int | None, Ge(0)] = None
    """The dimension. Default: the one whose largest value is largest beside its block's root mean square."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    n_neurons: Annotated[int, Flag("--neurons"), Ge(1)] = 3
    """Neurons of each block that are listed by themselves; the others are added up."""
    n_random: Annotated[int, Flag("--random"), Ge(1)] = 3
    """Draws of random weights, and of random dimensions that are moved as far, as controls."""
    threshold: Annotated[float, Flag("--sink-threshold"), Gt(0), Lt(1)] = 0.3
    """Mean attention on the dimension's token that makes a head a sink."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random draws."""
    task: Annotated[TaskOptions, Flat("max_length", "batch_size")] = TaskOptions(max_length=64, batch_size=8)
    """How texts become numbers."""

    def __post_init__(self) -> None:
        check(self)
