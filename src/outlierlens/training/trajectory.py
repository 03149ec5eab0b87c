"""What ends the blocks of one residual stream, over the steps of a training run, and what was logged beside them, in memory.

    path = Trajectory(model="run-1", stack="model", site="output.LayerNorm", norm_site="stream", view="last",
                      steps=steps, scale=scale, bias=bias, curves={"loss": Curve(logged_at, loss)})
    path.measured(-1)                            # what the rules of `detect` read: scale and bias of the last step

A watched training writes it row by row, `track` reads it from checkpoints; `tracked.Track` is the result file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.detection.rules import Measured
from outlierlens.detection.scan.measure import Site, sites_of
from outlierlens.errors import BadInput

NOTHING = (0, 0, 0)


def no_bias() -> np.ndarray:
    """The `bias` of norms that have none: float32 of shape (0, 0, 0)."""
    return np.zeros(NOTHING, dtype=np.float32)


def no_states() -> np.ndarray:
    """The `states` or `tokens` where none were recorded: float32 of shape (0, 0)."""
    return np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True)
class Curve:
    """A logged scalar: `values` (float [point]) at `steps` (int [point]), ascending, each step once."""

    steps: Annotated[np.ndarray, "point"]
    values: Annotated[np.ndarray, "point"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", np.asarray(self.steps, dtype=np.int64))
        object.__setattr__(self, "values", np.asarray(self.values, dtype=np.float64))
        if self.steps.ndim != 1 or self.values.shape != self.steps.shape:
            raise BadInput(
                f"a curve has {self.steps.shape} steps and {self.values.shape} values; give one value per step"
            )
        if (np.diff(self.steps) <= 0).any():
            raise BadInput("the steps of a curve must ascend, each once")


@dataclass(frozen=True)
class Trajectory:
    """Scale and bias of one stream's last operation, or of one of its norms, at every recorded step.

    Attributes:
        model: name of the run, or of its checkpoints.
        stack: residual stream ("model", "encoder", "decoder", …).
        site: the norm or the linears that were read, relative to a block.
        norm_site: "stream", "write" or "read", as in `arch.Stack`.
        view: "last" (the block's last operation, as `scan` reads it) or "reading" (a norm before attention or MLP).
        steps: optimizer steps, int [step], ascending, each once.
        scale: float32 [step, layer, dim], the factor as it acts ((1 + w) norms: 1 + w), or the L2 norm of weights.
        bias: the same shape, or (0, 0, 0) where there is none.
        curves: what was logged: "loss" and "eval_loss" in nats per token, "eval_perplexity", and so on.
        states: float32 [step, dim]: hidden state after the middle layer, averaged over the tokens of one probe text;
            shape (0, 0) where it was not recorded.
        tokens: float32 [token, dim]: of the same layer and text at the last step, the states of its first tokens, or (0, 0).
    """

    model: str
    stack: str
    site: str
    norm_site: str
    view: str
    steps: np.ndarray
    scale: np.ndarray
    bias: np.ndarray = field(default_factory=no_bias)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    states: np.ndarray = field(default_factory=no_states)
    tokens: np.ndarray = field(default_factory=no_states)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", np.asarray(self.steps, dtype=np.int64))
        for name in ("scale", "bias", "states", "tokens"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float32))
        where = f"{self.model}, {self.stack}"
        if self.scale.ndim != 3 or self.steps.shape != self.scale.shape[:1]:
            raise BadInput(f"{where}: {self.steps.shape} steps and scale {self.scale.shape}, not [step, layer, dim]")
        if (np.diff(self.steps) <= 0).any():
            raise BadInput(f"{where}: the steps must ascend, each once")
        if self.bias.shape not in (self.scale.shape, NOTHING):
            raise BadInput(
                f"{where}: bias has shape {self.bias.shape}, scale {self.scale.shape}; leave it out or equal"
            )
        if self.states.shape not in ((self.n_steps, self.width), (0, 0)):
            raise BadInput(
                f"{where}: states have shape {self.states.shape}, not [step, dim] ({self.n_steps}, {self.width})"
            )
        if self.tokens.shape != (0, 0) and (self.tokens.ndim != 2 or self.tokens.shape[1] != self.width):
            raise BadInput(f"{where}: tokens have shape {self.tokens.shape}, not [token, dim] (…, {self.width})")

    @property
    def n_steps(self) -> int:
        """Number of recorded steps."""
        return int(self.scale.shape[0])

    @property
    def n_layers(self) -> int:
        """Number of layers of weights."""
        return int(self.scale.shape[1])

    @property
    def width(self) -> int:
        """Number of dimensions of the stream."""
        return int(self.scale.shape[2])

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias."""
        return self.bias.shape == self.scale.shape

    def measured(self, place: int) -> Measured:
        """Scale and bias of the `place`-th recorded step, as the rules of `detect` take them."""
        bias = self.bias[place].astype(np.float64) if self.has_bias else None
        return Measured(self.scale[place].astype(np.float64), bias, where=f"{self.model}, step {self.steps[place]}")


def is_norm(norm_site: str, view: str) -> bool:
    """Whether the scale of such a trajectory is a norm's; else it is the L2 norm of the weights that write."""
    return view == "reading" or norm_site != "read"


def tracked_site(stack: BoundStack, name: str | None = None) -> Site:
    """What is followed of a stream: what `scan` reads, the blocks' last operation; or the norm `name` that reads it.

    Raises:
        BadInput: the stream has no norm called `name` in every layer.
    """
    sites = [*sites_of(stack, "last"), *sites_of(stack, "reading")]
    if name is None:
        return sites[0]
    norms = {site.name: site for site in sites if site.is_norm}
    if name not in norms:
        raise BadInput(f"stream {stack.name!r}: no norm {name!r}; there are {', '.join(norms) or 'none'}")
    return norms[name]
