"""What `prune-check`, `prune-experiment` and `protect` are asked: what is outlier, what counts as removed, and beside what."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.switches import Dims
from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.experiments.pruning.result import Removal
from outlierlens.options import FIND, DimsOrFind, Find, Flag, Flat, check
from outlierlens.options.read import parse_layers
from outlierlens.tasks.base import TaskOptions

Held = Literal["auto", "masks", "weights"]
Tool = Literal["torch-pruning", "sparsegpt", "llm-compressor", "bitsandbytes", "awq"]
Which = Literal["enough", "flagged", "all"]
WHICH: tuple[Which, ...] = ("enough", "flagged", "all")
AWQ_FACTOR = 2.0  # Lin et al. (2023), table 2: the best factor for the salient 1 % of channels


def parse_which(text: str) -> Which | tuple[int, ...]:
    """ "enough", "flagged", "all", or "0-3,7" -> (0, 1, 2, 3, 7)."""
    return next((word for word in WHICH if word == text), None) or parse_layers(text)


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Which positions of which stream are the outliers."""

    dims: DimsOrFind = FIND
    """The outliers: 308,381; find: what scan finds in the weights."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Outliers):
    """How to check; without `stack` every stream."""

    rule: Annotated[Removal, Flat("min_layer_fraction", "row_fraction", "scale_alone")] = Removal()
    """When a position is removed and what breaks the constraint."""
    reading: Annotated[Held, Flag("--as")] = "auto"
    """What the pruned file holds; auto decides by names and types."""
    positions: Path | None = None
    """JSON list: the old position of each dimension of a narrower stream."""
    scan: Annotated[ScanOptions, Flat("max_read")] = field(default_factory=ScanOptions)
    """How models are opened and outliers found; revision and subfolder are of the first model."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class CheckedModels(CheckOptions):
    """What is checked, and how."""

    before: Annotated[str, Flag(argument=True)]
    """The intact model; or masks or a pruned state dict with config.json beside it."""
    after: Annotated[str | None, Flag(argument=True)] = None
    """The pruned model, or masks: .safetensors, .npz, .pt."""
    only_outliers: bool = False
    """The constraint is about outliers alone, not about every position."""


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(Outliers):
    """What to force the budget onto, and beside what; 0 sets of a control family leave it out."""

    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of the last operations' weights to prune; 0: the number of weights of --dims."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random positions, the same in all layers."""
    n_scattered: Annotated[int, Flag("--scattered"), Ge(0)] = 5
    """Random positions that differ by layer."""
    n_matched: Annotated[int, Flag("--matched"), Ge(0)] = 5
    """Positions of similar size that differ by layer."""
    task: Annotated[TaskOptions, Flat("max_length", "batch_size")] = TaskOptions()
    """How texts become numbers; its seed is this one."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class ProtectOptions:
    """What to protect."""

    dims: Annotated[Dims | Find, Flag(read="options.read:planned_dims", words=FIND)] = FIND
    """The outliers: 308,381; of --stack mlp neurons: 11:1229,2:90; find: what scan finds in the weights."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder. mlp (encoder.mlp): neurons of the blocks' MLPs."""
    layers: Annotated[Which | tuple[int, ...] | None, Flag(read="experiments.pruning.options:parse_which")] = None
    """enough (the fewest that keep the constraint whatever else is pruned), flagged (where the scan finds outliers), all, or
    0-3,7. Default: enough for pruners, flagged for quantizers."""
    rule: Annotated[Removal, Flat("min_layer_fraction")] = Removal()
    """The constraint that "enough" is about."""
    measured: Path | None = None
    """A saved result of plan or quantize of this model: the list begins with what it says helps most, or that nothing does."""
    factor: Annotated[float, Gt(0), Lt(float("inf"))] = AWQ_FACTOR
    """awq: by which weights of a protected channel grow."""
    scan: Annotated[ScanOptions, Flat("max_read")] = field(default_factory=ScanOptions)
    """How the model is opened and outliers found."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class ProtectFor(ProtectOptions):
    """What to protect, and from which tool."""

    tool: Annotated[Tool, Flag("--for")]
    """The tool that reads the list."""
