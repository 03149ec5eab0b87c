"""What `predictions` is asked: corpus counts, dimensions, and how what the model says is measured."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.mode_names import MODES, Mode
from outlierlens.ablation.switches import Dims
from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.result import INPUTS, INTERVENTIONS
from outlierlens.options import FIND, Find, Flag, Flat, check
from outlierlens.tasks.base import TaskOptions


@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """What is measured, and how."""

    inputs: Annotated[tuple[str, ...] | None, Flag("--input", read="options.read:parse_names")] = None
    """masked, unmasked; next of causal models. Default: all there are."""
    interventions: Annotated[tuple[str, ...] | None, Flag("--intervention", read="options.read:parse_names")] = None
    """layers, last_hidden, logits, by commas. Default: all that differ."""
    mode: Annotated[Mode, Flag(read="ablation.mode_names:named_mode", words="weights")] = "weights"
    """Off in all layers: weights, norms, zero, mean, resample or writes."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 19
    """Random sets of the same size."""
    smoothing: Annotated[float, Gt(0), Lt(float("inf"))] = 1.0
    """Occurrences added to every token of the corpus, so that rare ones have a logarithm."""
    task: Annotated[TaskOptions, Flat("mask_fraction", "max_length", "batch_size")] = TaskOptions()
    """How texts are read; its seed is this one."""
    paper_compat: bool = False
    """As in the released code: counts by text, dimensions off in BERT's head too."""
    n_bootstrap: Annotated[int, Flag("--bootstrap"), Ge(20)] = 1000
    """Bootstrap draws of the texts."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        for given, known, what in ((self.inputs, INPUTS, "input"), (self.interventions, INTERVENTIONS, "intervention")):
            wrong = [one for one in given or () if one not in known]
            if wrong or given == ():
                raise BadInput(f"unknown {what} {wrong[0] if wrong else ''!r}; {what}s are {', '.join(known)}")
        if self.task.blocks:
            raise BadInput("blocks join texts, and predictions are told text by text; leave blocks out")
        if self.mode == "scale":
            raise BadInput(f"mode scale switches nothing off; use {', '.join(one for one in MODES if one != 'scale')}")


@dataclass(frozen=True, kw_only=True)
class PredictionsCall:
    """What the command is asked: what Python gives `predictions` beside its options, and those."""

    counts: str
    """Token counts (of `count`, or as published); several by commas."""
    dims: Annotated[Dims | Find, Flag(read="options.read:planned_dims", words=FIND)] = FIND
    """308,381, or layer by layer: 0-9:896;10-16:678; find: what scan finds."""
    options: Annotated[PredictionOptions, Flat()] = PredictionOptions()
    """How it is measured."""
