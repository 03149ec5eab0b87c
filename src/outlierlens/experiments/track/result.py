"""What `track` finds: when dimensions became outliers over training, and the loss beside them. Plain data, no torch.

found.emergences[0].step                  # from here on it stands past n_sigma in enough layers
found.emergences[0].lead.steps            # that step minus the step at which the loss reached its plateau
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from outlierlens.detection.rules import Passes, Rule
from outlierlens.detection.scan.measure import measure_name
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics import SIGNIFICANT
from outlierlens.training.run_files import Curve, is_norm, no_states

# Of the loss curves that may have been logged, the one that a plateau is looked for in: the first of these.
LOSSES = ("eval_loss", "loss")


@dataclass(frozen=True)
class ChangePoint:
    """Where a series leaves its first level: level, ramp, level, fitted by least squares.

    Attributes:
        step: end of the first level.
        low, high: interval of `step`, which ends at recorded steps; `level` is its confidence.
        until: end of the ramp; the last recorded step where the series still moves.
        before, after: the two levels.
        rho: correlation of successive deviations from the fit that the interval allows for, in [0, 1).
        p: p-value of "no change at all", by simulation; above 0.05 it is not settled that there is one (`sure`).
        n_points: points the fit rests on.
    """

    step: int
    low: int
    high: int
    until: int
    before: float
    after: float
    rho: float
    p: float
    n_points: int
    level: float = 0.95

    @property
    def sure(self) -> bool:
        """Whether "no change at all" is rejected at 5 %."""
        return self.p <= SIGNIFICANT


@dataclass(frozen=True)
class Plateau:
    """Where a loss comes within `share` of its total fall of its final level, and stays there.

    Attributes:
        step: first such step of the curve made monotone; `low` and `high` are its bootstrap interval.
        final: mean of the last tenth of the curve; `fall` is the first value minus it.
        settled: False when it is reached only in the last quarter of the run: then the loss may well still be falling.
        curve: which curve.
    """

    step: int
    low: int
    high: int
    final: float
    fall: float
    settled: bool
    curve: str
    share: float = 0.05


@dataclass(frozen=True)
class Lead:
    """Steps from an event of the loss to one of the weights: negative when the weights come first."""

    steps: int
    low: int
    high: int

    @property
    def sign(self) -> Literal["before", "after", "undecided"]:
        """ "before" or "after" when the whole interval is on one side of 0."""
        return "before" if self.high < 0 else "after" if self.low > 0 else "undecided"


@dataclass(frozen=True)
class Emergence:
    """One dimension over training.

    Attributes:
        dim: 0-based index into the stream.
        passes: what stands past n_sigma in enough layers at the last step.
        step: first recorded step from which `passes` holds for good; None where it is "neither".
        after: last recorded step before the first one at which it held at all (the event lies in (after, step]); None
            when it held at the first recorded step.
        scale_step, bias_step: the same as `step` for scale alone and bias alone.
        seen: first and last recorded step at which scale, and bias where there is one, passed; empty if never.
        layers_scale, layers_bias: layers past n_sigma at the last step; bias None without one.
        z_scale, z_bias: mean over layers of |z| at the last step.
        onset: change point of the mean |z| of the scale; onset_bias of the bias.
        lead: `step` against the loss plateau; onset_lead: `leaves`, where it is sure, against the onset of the
            loss's last steep fall.
    """

    dim: int
    passes: Passes
    step: int | None
    after: int | None
    scale_step: int | None
    bias_step: int | None
    seen: tuple[int, ...]
    layers_scale: int
    layers_bias: int | None
    z_scale: float
    z_bias: float | None
    onset: ChangePoint | None = None
    onset_bias: ChangePoint | None = None
    lead: Lead | None = None
    onset_lead: Lead | None = None

    @property
    def leaves(self) -> ChangePoint | None:
        """The onset of what passes: of the bias where that passes alone, else of the scale."""
        return self.onset_bias if self.passes == "bias" else self.onset


@dataclass(frozen=True)
class Track(Result):
    """What ends the blocks of one stream, over training, trimmed to what is worth drawing, and what is read off them.

    Attributes:
        source: "checkpoints", "revisions" or "watch rows".
        stack, site, norm_site, view: what was followed; see `trajectory.Trajectory`.
        rule: threshold and share of layers.
        steps: int [step].
        emergences: followed dimensions, those that pass first.
        layer: the layer whose values `scale` and `bias` hold.
        dims: dimensions of the columns of `scale`, `bias`, `states` and `tokens`: all, or those followed and an even choice by
            rank of the rest.
        scale, bias: [step, column]; bias is (0, 0) where there is none.
        scale_range, bias_range: smallest and largest value over all dimensions, [step, 2].
        z_scale, z_bias: mean over layers of |z|, [step, followed], in the order of `emergences`.
        layers_scale, layers_bias: number of layers past n_sigma, [step, followed].
        curves: logged "loss", "eval_loss" (nats per token), "eval_perplexity", at most 1,000 points each.
        plateau: of the loss; fall: onset of its last steep fall; None where no curve shows one.
        states: hidden state after the middle layer, averaged over the tokens of one text, [step, column]; may be empty.
        tokens: the states of that text's first tokens after the same layer at the last step, [token, column]; may be empty.
        text: that text.
        bytes_read, total_bytes: of all checkpoints together; 0 for watch rows.
    """

    provenance: Provenance
    source: str
    stack: str
    site: str
    norm_site: str
    view: str
    n_layers: int
    width: int
    rule: Rule
    steps: Annotated[np.ndarray, "step"]
    emergences: Annotated[tuple[Emergence, ...], "followed"]
    layer: int
    dims: Annotated[tuple[int, ...], "column"]
    scale: Annotated[np.ndarray, "step column"]
    bias: Annotated[np.ndarray, "step column, or empty"]
    scale_range: Annotated[np.ndarray, "step 2"]
    bias_range: Annotated[np.ndarray, "step 2, or empty"]
    z_scale: Annotated[np.ndarray, "step followed"]
    z_bias: Annotated[np.ndarray, "step followed, or empty"]
    layers_scale: Annotated[np.ndarray, "step followed"]
    layers_bias: Annotated[np.ndarray, "step followed, or empty"]
    curves: dict[str, Curve] = field(default_factory=dict)
    plateau: Plateau | None = None
    fall: ChangePoint | None = None
    states: Annotated[np.ndarray, "step column, or empty"] = field(default_factory=no_states)
    tokens: Annotated[np.ndarray, "token column, or empty"] = field(default_factory=no_states)
    text: str = ""
    bytes_read: int = 0
    total_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def measure(self) -> str:
        """What the scale is, as `scan` calls it."""
        return measure_name(is_norm=is_norm(self.norm_site, self.view))

    @property
    def scale_name(self) -> str:
        """The scale in a sentence."""
        return "scale" if is_norm(self.norm_site, self.view) else "weight norm"

    def part_name(self, one: Emergence) -> str:
        """The part that passes first for a dimension, in a sentence."""
        return "bias" if one.passes == "bias" else self.scale_name

    @property
    def followed(self) -> tuple[int, ...]:
        """The followed dimensions, in the order of `emergences`."""
        return tuple(emergence.dim for emergence in self.emergences)

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias."""
        return self.bias.size > 0 and self.z_bias.size > 0 and self.layers_bias.size > 0

    @property
    def outliers(self) -> tuple[Emergence, ...]:
        """Those that pass at the last step as the rule asks: for scale, and for bias where there is one."""
        wanted = "scale and bias" if self.has_bias else "scale"
        return tuple(emergence for emergence in self.emergences if emergence.passes == wanted)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per followed dimension."""
        for emergence in self.emergences:
            onset, lead = emergence.onset, emergence.lead
            yield {
                "dim": emergence.dim,
                "passes": emergence.passes,
                "step": emergence.step,
                "after": emergence.after,
                "scale_step": emergence.scale_step,
                "bias_step": emergence.bias_step,
                "layers": self.n_layers,
                "layers_scale": emergence.layers_scale,
                "layers_bias": emergence.layers_bias,
                "z_scale": emergence.z_scale,
                "z_bias": emergence.z_bias,
                "onset": onset.step if onset else None,
                "onset_low": onset.low if onset else None,
                "onset_high": onset.high if onset else None,
                "onset_p": onset.p if onset else None,
                "lead": lead.steps if lead else None,
                "lead_low": lead.low if lead else None,
                "lead_high": lead.high if lead else None,
            }
