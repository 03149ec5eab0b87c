"""What `attack` and `update-check` are asked: what may be changed and how long is searched; what flags an update."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from outlierlens.architectures import RowChoice
from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.errors import BadInput
from outlierlens.experiments.attack.result import KINDS
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.tasks.base import TaskOptions

_WORDS = ",".join(KINDS).replace(" ", "-")


def parse_kinds(text: str) -> tuple[str, ...]:
    """ "zero,sign-flip" -> ("zero", "sign flip")."""
    return tuple(kind.strip().replace("-", " ") for kind in text.split(","))


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How much is tried."""

    bound: Annotated[float, Gt(0), Lt(float("inf"))] = 10.0
    """Exponent flips stay below N times their tensor's largest value."""
    n_single: Annotated[int, Flag("--tries"), Ge(1)] = 12
    """Edits tried alone before they are joined."""
    n_sets: Annotated[int, Flag("--sets"), Ge(1)] = 12
    """Sets of edits tried at each budget."""
    n_groups: Annotated[int, Ge(0)] = 1
    """Dimensions whose values make a set of their own, beside the outlier dimensions."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """What may be changed, and how long is searched."""

    budget: Annotated[int, Ge(1)] = 48
    """Values that may be changed; a swap changes two."""
    kinds: Annotated[tuple[str, ...], Flag(read="experiments.attack.options:parse_kinds", words=_WORDS)] = KINDS
    """zero, swap, sign-flip, exponent-flip, separated by commas; each is measured alone."""
    dims: DimsOrFind = FIND
    """The outlier dimensions: 100,247; find: what the weights name."""
    anywhere: bool = False
    """Also edits of any weight, by gradient × change, reported apart."""
    n_search: Annotated[int, Flag("--search-texts"), Ge(1)] = 4
    """Texts that choose the edits; the others measure damage."""
    search: Annotated[SearchOptions, Flat("bound", "n_single", "n_sets")] = SearchOptions()
    """How much is tried."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 3
    """Random sets of edits, per kind."""
    factor: Annotated[float, Gt(1)] = 2.0
    """Find the fewest edits that multiply the loss by this factor."""
    row: Annotated[RowChoice, Flag(hidden=True)] = None
    """TOML file of the architecture, where the table has none."""
    task: Annotated[TaskOptions, Flat("max_length", "batch_size")] = TaskOptions(max_length=32)
    """How texts become numbers; its seed is this one."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise BadInput(f"no kind of edit is called {unknown[0] if unknown else ''!r}; kinds are {', '.join(KINDS)}")
        if self.kinds == ("swap",) and self.budget < 2:
            raise BadInput("a swap changes two values; give it a budget of at least 2")

    @property
    def budgets(self) -> tuple[int, ...]:
        """1, 2, 4, … and the whole budget."""
        powers = [2**power for power in range(self.budget.bit_length()) if 2**power < self.budget]
        return (*powers, self.budget)


@dataclass(frozen=True, kw_only=True)
class AttackAndSave(AttackOptions):
    """An attack whose strongest edits may be written."""

    save: Path | None = None
    """Write the model with the strongest edits to this folder; needs --yes."""
    yes: bool = False
    """Confirm that a damaged copy, marked as one, may be written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.yes and self.save is None:
            raise BadInput("--yes belongs to --save FOLDER: without a folder nothing is written")


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """What counts as an outlier entry, and what as too much."""

    dims: DimsOrFind = FIND
    """The outlier dimensions: 100,247; find: what the weights name."""
    deep: bool = False
    """Read every tensor, not only norms and biases of the stream."""
    n_top: Annotated[int, Flag("--top"), Ge(1)] = 48
    """Number of largest entries looked at in each update."""
    alpha: Annotated[float, Gt(0), Lt(1)] = 0.01
    """Flag a client when its p-value is at most this …"""
    least_ratio: Annotated[float, Ge(1)] = 10.0
    """… and its share is at least N times the share of parameters (or half of the squared norm)."""
    least_peak: Annotated[float, Ge(1)] = 3.0
    """Flag a change of an outlier entry N times as large as the largest elsewhere."""
    least_z: Annotated[float, Gt(0)] = 3.5
    """With three or more clients: robust standard deviations above the median."""
    n_draws: Annotated[int, Flag("--draws"), Ge(1)] = 1999
    """Random sets of dimensions."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    scan: Annotated[ScanOptions, Flat("max_read")] = ScanOptions()
    """The rule that finds outlier dimensions in the model before, and how models are opened."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Updates(UpdateOptions):
    """The models of a round, and what flags them."""

    before: Annotated[str, Flag(argument=True)]
    """The round's model before: sample, directory, file or hub id."""
    after: Annotated[tuple[str, ...], Flag(argument=True)]
    """Models after training, one per client."""
