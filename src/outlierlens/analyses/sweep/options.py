"""What `sweep` is asked: what is switched off, how precisely that is measured, and against what it is compared.

    swept = sweep(loaded, texts, SweepOptions(windows="single", dims=(507,)))

`SweepCall` is what the command line has beside these settings.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.modes import Mode, check_mode
from outlierlens.errors import BadInput, need
from outlierlens.options import FIND, Flag, Flat, check, parse_dims, plain_dims
from outlierlens.tasks.base import TaskOptions

if TYPE_CHECKING:
    from outlierlens.tasks.base import TaskReading

Windows = Literal["all", "single", "from", "upto"]
WINDOWS: tuple[Windows, ...] = ("all", "single", "from", "upto")
INFINITE = float("inf")


def plan(text: str) -> dict[int, tuple[int, ...]]:
    """ "0-9:896;10-16:678,896" -> {layer: dims}; raises BadInput for dimensions without layers."""
    found = parse_dims(text)
    if not isinstance(found, dict):
        raise BadInput(f"--plan {text!r} names no layers; write 0-9:896;10-16:678,896, or use --sets")
    return found


def plans(texts: list[str]) -> tuple[dict[int, tuple[int, ...]], ...]:
    """Each --plan, in turn."""
    return tuple(map(plan, texts))


def precision(text: str) -> float | None:
    """ "0.01" -> 0.01; None for "exact"."""
    try:
        return None if text == "exact" else float(text)
    except ValueError:
        raise BadInput(f"cannot read --precision {text!r:.40}; write exact, or a number such as 0.01") from None


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Settings of a sweep."""

    dims: Annotated[tuple[int, ...] | Literal["all"], Flag(hidden=True)] = "all"
    """Dimensions swept one at a time; () is none."""
    sets: Annotated[tuple[tuple[int, ...], ...], Flag(read="options:parse_sets")] = ()
    """Sets to ablate, each compared with random and matched sets: 100,247;507,100."""
    plans: Annotated[
        tuple[Mapping[int, tuple[int, ...]], ...], Flag("--plan", read="analyses.sweep.options:plans", repeats=True)
    ] = ()
    """A set that differs from layer to layer, whatever the windows: 0-9:896;10-16:678,896. Repeatable."""
    with_found: Annotated[bool, Flag("--found-set/--no-found-set")] = True
    """Also the set of all that the weights name, where they name two or more."""
    windows: Windows = "all"
    """Layers in which each is ablated: all together, single (each alone), from each on, or upto each."""
    layers: Annotated[tuple[int, ...] | None, Flag(read="options:parse_layers")] = None
    """Restrict to layers 0-3,7. Default: all."""
    mode: Mode = "weights"
    """How to ablate: weights, norms, hidden states (zero, mean, scale, resample), or writes."""
    factor: Annotated[float, Flag(into="--mode")] = 0.5
    """Factor of mode scale."""
    embeddings: Annotated[bool, Flag(into="--mode")] = False
    """Mode writes: the embeddings' writes too."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder; mlp: neurons, by --plan 11:1229 or --windows single."""
    exact: Annotated[bool, Flag(hidden=True)] = False
    """Measure every effect on every text."""
    tolerance: Annotated[float, Flag(hidden=True), Gt(0), Lt(INFINITE)] = 0.01
    """Stop when the interval is within ± this, in the task's unit …"""
    relative: Annotated[float, Flag(hidden=True), Ge(0), Lt(INFINITE)] = 0.1
    """… or ± this share of the change."""
    top: Annotated[int, Ge(0)] = 5
    """Separate the N strongest from each other and from the rest."""
    max_texts: Annotated[int | None, Ge(2)] = None
    """Maximum number of texts per effect. Default: all."""
    level: Annotated[float, Flag(hidden=True), Ge(0.5), Lt(1)] = 0.95
    """Confidence of the intervals."""
    bulk: Annotated[bool, Flag(hidden=True)] = True
    """Measure ordinary dimensions together: few texts each, one interval for all, held to a random sample of them."""
    gradients: Annotated[int, Flag(hidden=True), Ge(0)] = 256
    """Texts of the gradient pass (the control variate); 0 skips it."""
    n_random: Annotated[int | None, Flag("--random"), Ge(0)] = None
    """Random sets for each set or listed dimension; Kovaleva et al. drew 1000. Default: 200, or 19 in several windows."""
    n_matched: Annotated[int | None, Flag("--matched"), Ge(0)] = None
    """Sets with as extreme weights, at other positions. Default: 19, or 0 in several windows."""
    random_texts: Annotated[int, Ge(1)] = 16
    """Texts on which sets and their controls are compared."""
    batch_size: Annotated[int | None, Flag(hidden=True), Ge(1)] = None
    """Rows per forward pass over the longest texts, halved when memory runs out. None: found by trial."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the order of texts and of control sets."""
    task: Annotated[TaskOptions, Flag(hidden=True)] = field(default_factory=lambda: TaskOptions(blocks=True))
    """How texts become numbers; its seed is that of masks."""

    def __post_init__(self) -> None:
        check(self)
        check_mode(self.mode, self.factor, self.embeddings)
        if self.windows not in WINDOWS:
            raise BadInput(f"unknown windows {self.windows!r}; windows are {', '.join(WINDOWS)}")
        if self.exact and self.max_texts is not None:
            raise BadInput("exact measures every text: max_texts belongs to the adaptive way")


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Where the work is done."""

    ray: str | None = None
    """Work in a Ray cluster at this address (auto, host:port, ray://host:port), or in processes of this machine (local)."""
    workers: Annotated[int | None, Flag(into="--ray"), Ge(1)] = None
    """Number of workers."""
    cpus_per_worker: Annotated[float | None, Flag("cpus", into="--ray"), Ge(0)] = None
    """CPUs (and threads) per worker. Default: 1."""
    gpus_per_worker: Annotated[float | None, Flag("gpus", into="--ray"), Ge(0)] = None
    """GPUs per worker; 0.25 puts four workers on one GPU."""

    def __post_init__(self) -> None:
        check(self)
        given = (self.workers, self.cpus_per_worker, self.gpus_per_worker)
        if self.ray is None and any(value is not None for value in given):
            raise BadInput(
                "workers, cpus and gpus belong to a cluster; write --ray ADDRESS,workers=4, or --ray local,workers=4"
            )
        if self.ray is not None and importlib.util.find_spec("ray") is None:
            need("ray", "ray", "--ray")  # said before a model is loaded; ray itself reads settings when imported
        if self.cpus_per_worker == 0 and not (self.gpus_per_worker or self.gpus_per_worker is None):
            raise BadInput("a worker needs some of a CPU or a GPU: cpus and gpus of --ray cannot both be 0")
        if (self.gpus_per_worker or 0) > 1 and (self.gpus_per_worker or 0) % 1:
            raise BadInput(f"gpus of --ray is {self.gpus_per_worker}; above 1 it must be a whole number")


@dataclass(frozen=True, kw_only=True)
class SweepCall:
    """A sweep as a command line asks for it."""

    dims: str = "all"
    """One at a time: all, find (those that the weights name), none, or 507,100."""
    sweep: Annotated[SweepOptions, Flat()] = SweepOptions()
    """Its settings but dimensions and task, which the model and the texts decide."""
    precision: Annotated[
        float | None, Flag(read="analyses.sweep.options:precision", words="0.01"), Gt(0), Lt(INFINITE)
    ] = 0.01
    """Half-width of the intervals at which measuring stops, in the task's unit (or a tenth of the change); exact: all texts."""
    max_length: Annotated[int | None, Ge(2)] = None
    """Maximum number of tokens per block. Default: 128; labelled: 256."""
    machines: Annotated[Machines, Flat()] = Machines()

    def __post_init__(self) -> None:
        check(self)
        self.chosen(())

    def chosen(self, found: tuple[int, ...]) -> tuple[int, ...] | Literal["all"]:
        """Dimensions swept one at a time: `found` for "find".

        Raises:
            BadInput: text that is neither a word nor dimensions.
        """
        words: dict[str, tuple[int, ...] | Literal["all"]] = {"all": "all", FIND: found, "none": ()}
        return (
            words[self.dims]
            if self.dims in words
            else plain_dims(self.dims, remedy="name dimensions, and layers with --layers or --windows")
        )

    def options(self, reading: "TaskReading") -> SweepOptions:
        """The settings on what is read, but for the dimensions, which wait for the model."""
        task = reading.options(max_length=self.max_length, blocks=True, seed=self.sweep.seed)
        tolerance = SweepOptions.tolerance if self.precision is None else self.precision
        return replace(self.sweep, task=task, exact=self.precision is None, tolerance=tolerance)
