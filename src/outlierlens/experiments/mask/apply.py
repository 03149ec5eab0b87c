"""A mask in a training loop: `activation_mask(found)(states, tokens)`.

keep = activation_mask("mask.json", dims="clip")
for states, tokens in batches:              # [batch, token, dim], [batch, token]
    masked = keep(states, tokens)
    loss = autoencoder_loss(masked.states[masked.kept])
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from outlierlens.errors import BadInput, need
from outlierlens.experiments.mask.result import Mask
from outlierlens.results.document import load

if TYPE_CHECKING:
    from torch import Tensor

CLIP = 4.0  # standard deviations
Treatment = Literal["keep", "clip", "standardise", "mean"]


class Masked(NamedTuple):
    """`states` [..., dim] with their dimensions treated, and `kept` bool [...]: which of them are no sinks."""

    states: "Tensor"
    kept: "Tensor"


@dataclass(frozen=True)
class ActivationMask:
    """Leaves sinks out of hidden states, and treats dimensions; makes no copy of the model and keeps no state.

    Attributes:
        found: the mask. dims: what is done to dimensions: "keep" nothing; "clip" every one to its mean ± 4 standard deviations;
            "standardise" every one to mean 0 and standard deviation 1; "mean" those that stand out to their mean.
        norms: also leave out what is longer than the threshold.
    """

    found: Mask
    dims: Treatment = "keep"
    norms: bool = True

    def __call__(self, states: "Tensor", tokens: "Tensor | None" = None, positions: "Tensor | None" = None) -> Masked:
        """Mask `states` [..., token, dim] of `tokens`, ids [..., token].

        `positions` [..., token] are places in the text from 0; by default the place along the token axis, which is right where
        nothing is padded on the left. Without `tokens` the norm alone decides.

        Raises:
            BadInput: states of another width, tokens of another shape, or neither tokens nor norms to go by.
        """
        import torch

        width = len(self.found.centre)
        if states.shape[-1] != width:
            raise BadInput(
                f"states have {states.shape[-1]} dimensions, and the mask is of {width}; use that of the same model"
            )
        kept = torch.ones(states.shape[:-1], dtype=torch.bool, device=states.device)
        if self.norms:
            kept &= states.float().norm(dim=-1) <= self.found.threshold
        elif tokens is None:
            raise BadInput("norms=False leaves only tokens to go by; pass their ids")
        if tokens is not None:
            if tokens.shape != states.shape[:-1]:
                raise BadInput(
                    f"tokens are {tuple(tokens.shape)}, and states {tuple(states.shape)}; ids go one per state"
                )
            place = torch.arange(tokens.shape[-1], device=tokens.device) if positions is None else positions
            out = _among(place.expand(tokens.shape), self.found.positions) | _among(tokens, self.found.token_ids)
            kept &= ~out.to(kept.device)
        return Masked(self._treated(states), kept)

    def _treated(self, states: "Tensor") -> "Tensor":
        import torch

        centre, scale = (torch.from_numpy(one).to(states) for one in (self.found.centre, self.found.scale))
        if self.dims == "clip":
            return torch.maximum(torch.minimum(states, centre + CLIP * scale), centre - CLIP * scale)
        if self.dims == "standardise":
            return (states - centre) / scale.clamp(min=torch.finfo(states.dtype).tiny)
        if self.dims == "mean" and self.found.masked_dims:
            at = list(self.found.masked_dims)
            return states.index_copy(
                -1, torch.tensor(at, device=states.device), centre[at].expand(*states.shape[:-1], -1)
            )
        return states


def activation_mask(found: Mask | str | Path, *, dims: Treatment = "keep", norms: bool = True) -> ActivationMask:
    """A mask to call in a training loop, from what `mask` found or from the file that it wrote.

    Raises:
        BadInput: a file of another kind of result, or an unknown treatment. MissingExtra: torch is not installed.
    """
    need("torch", "models", "masking hidden states")
    if dims not in get_args(Treatment):
        raise BadInput(f"unknown treatment {dims!r}; dimensions take {', '.join(get_args(Treatment))}")
    made = found if isinstance(found, Mask) else load(Path(found))
    if not isinstance(made, Mask):
        raise BadInput(
            f"{found} holds a {type(made).__name__}, not a Mask; make one with `outlierlens mask MODEL -o mask.json`"
        )
    return ActivationMask(made, dims, norms)


def _among(values: "Tensor", wanted: tuple[int, ...]) -> "Tensor":
    import torch

    return torch.isin(values, torch.tensor(wanted, dtype=values.dtype, device=values.device))
