"""What `track` is asked: which checkpoints, what counts as an outlier, what is followed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from outlierlens.detection.rules import Rule
from outlierlens.detection.scan.measure import MAX_READ
from outlierlens.options import Flag, Flat, check


@dataclass(frozen=True)
class EmergenceOptions:
    """What counts as an outlier and what is kept."""

    rule: Annotated[Rule, Flat("n_sigma", "min_layer_fraction")] = Rule("kovaleva")
    """When a dimension stands out at a step."""
    dims: Annotated[tuple[int, ...], Flag(read="options:plain_dims")] = ()
    """Follow these too, whatever they do: 507,100."""
    layer: Annotated[int | None, Ge(0)] = None
    """Layer that is drawn. Default: the middle."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class TrackOptions:
    """What is tracked and how checkpoints are reached."""

    revisions: Annotated[tuple[str, ...], Flag(read="options:parse_names")] = ()
    """Hub revisions of one model: step0,step512,step1000."""
    steps: Annotated[tuple[int, ...], Flag(read="options:parse_steps")] = ()
    """Steps of the checkpoints in their order, where names do not say: 0,500,1000."""
    log: Path | None = None
    """trainer_state.json, or JSON lines with step and loss. Default: the one in the run."""
    emergence: Annotated[EmergenceOptions, Flat()] = EmergenceOptions()
    """What is followed."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    norm: str | None = None
    """Follow this norm of pre-norm blocks instead of the weights that write to the stream."""
    text: str = ""
    """Record this text's hidden states: loads every checkpoint whole."""
    skip_damaged: bool = False
    """Leave out checkpoints that cannot be read, with a note."""
    max_read: Annotated[int, Flag(read="options:parse_bytes", words="500MB")] = MAX_READ
    """Refuse to read more than this of one checkpoint."""
    row: Annotated[Path | str | None, Flag(hidden=True)] = None
    """What describes the architecture: a TOML file, or the name of a family."""
    subfolder: Annotated[str, Flag(hidden=True)] = ""
    """Folder inside the model's directory or repository."""
    token: Annotated[str | None, Flag(hidden=True)] = field(default=None, repr=False)
    """Hub token."""
    offline: Annotated[bool, Flag(hidden=True)] = False
    """Never use the network."""
    progress: Annotated[Callable[[str, int, int], None] | None, Flag(hidden=True)] = None
    """Called with a label, the number done and the number in all."""
    notice: Annotated[Callable[[str], None] | None, Flag(hidden=True)] = None
    """Called with a line that says what will be read, before more than norm vectors is."""


@dataclass(frozen=True, kw_only=True)
class TrackCall:
    """Checkpoints, and how they are tracked."""

    checkpoints: Annotated[tuple[str, ...], Flag(argument=True)]
    """Folder of checkpoints, checkpoints, hub ids with steps in their names, a file of watch rows, mini-bert."""
    how: Annotated[TrackOptions, Flat()] = TrackOptions()
    """What is followed, and how checkpoints are reached."""
