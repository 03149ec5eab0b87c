"""A linear that a plan keeps in higher precision."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KeptLinear:
    """One linear that stays in `bits` bits: its weights, what it reads, or both."""

    path: str
    """Module path in the live model, such as `model.layers.11.mlp.down_proj`."""
    weights: bool
    inputs: bool
    bits: int = 16
