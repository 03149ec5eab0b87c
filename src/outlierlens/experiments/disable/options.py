"""What `disable` is asked: which dimensions go off, how, and beside which controls."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from outlierlens.ablation.extent import Extent
from outlierlens.ablation.mode_names import Mode, check_mode
from outlierlens.ablation.switches import Dims
from outlierlens.options import FIND, Find, Flag, Flat, check
from outlierlens.options.read import plain_dims
from outlierlens.tasks.base import TaskOptions


def parse_avoid(text: str) -> tuple[int, ...]:
    """ "308,381" -> (308, 381); raises BadInput where layers are named."""
    return plain_dims(text, "--avoid")


@dataclass(frozen=True, kw_only=True)
class DisableOptions(Extent):
    """What to switch off, how, and beside which controls."""

    mode: Annotated[Mode, Flag(read="ablation.mode_names:named_mode", words="weights")] = "weights"
    """weights, norms, zero, mean, scale, resample (hidden states) or writes."""
    layers: Annotated[tuple[int, ...] | None, Flag(read="options.read:parse_layers")] = None
    """Layers to switch off in: 0-3,7. Default: all."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder. mlp (encoder.mlp): neurons of the blocks' MLPs."""
    factor: float = 0.5
    """Factor of mode scale."""
    embeddings: bool = False
    """Mode writes: the embeddings' writes too."""
    avoid: Annotated[tuple[int, ...] | None, Flag(read="experiments.disable.options:parse_avoid")] = None
    """Dimensions no ordinary or matched set may hold; default: what scan finds."""
    passage: Annotated[str | None, Flag(hidden=True)] = None
    """Text that is filled in; the data's first text by default."""
    task: Annotated[TaskOptions, Flat("batch_size")] = TaskOptions()
    """How texts become numbers."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        check_mode(self.mode, self.factor, self.embeddings)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command is asked beside that: which dimensions, how long texts are, and whether a copy is kept."""

    dims: Annotated[Dims | Find, Flag(read="options.read:planned_dims", words=FIND)] = FIND
    """308,381, or by layer: 0-9:896;10-16:678; neurons: 11:1229,12:40; find: what scan finds, or the two strongest."""
    options: Annotated[DisableOptions, Flat()] = DisableOptions()
    """How they go off."""
    max_length: Annotated[int | None, Ge(2)] = None
    """Tokens of a text at most. Default: 128; labelled: 256."""
    stride: Annotated[int | None, Ge(1)] = None
    """Causal: step of the sliding window."""
    save: Path | None = None
    """Write a copy of the model with the dimensions off."""
