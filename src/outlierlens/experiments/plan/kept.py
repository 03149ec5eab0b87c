"""A linear that a plan keeps in higher precision, whole or in part, and what that takes.

kept = merged([KeptLinear(path="a", columns=(3,)), KeptLinear(path="a", inputs=True)])
n_kept(kept, {"a": (8, 16)})                   # weights in all
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KeptLinear:
    """One linear of which something stays in `bits` bits: its weights, what it reads, both, or few columns and rows."""

    path: str
    """Module path in the live model, such as `model.layers.11.mlp.down_proj`."""
    weights: bool = False
    inputs: bool = False
    columns: tuple[int, ...] = ()
    """Inputs that stay, with their weights; they take part in no range."""
    rows: tuple[int, ...] = ()
    """Outputs whose weights stay, multiplied with inputs that are not rounded; they take part in no range."""
    bits: int = 16

    @property
    def whole(self) -> bool:
        """Whether it counts with all its weights: the tool has to leave it out, or half of it."""
        return self.weights or self.inputs


def merged(parts: Iterable[KeptLinear]) -> dict[str, KeptLinear]:
    """{path: all that stays of that linear}, in the order in which paths come."""
    found: dict[str, KeptLinear] = {}
    for one in parts:
        other = found.get(one.path)
        if other is None:
            found[one.path] = one
            continue
        found[one.path] = KeptLinear(
            path=one.path,
            weights=one.weights or other.weights,
            inputs=one.inputs or other.inputs,
            columns=tuple(sorted({*one.columns, *other.columns})),
            rows=tuple(sorted({*one.rows, *other.rows})),
            bits=one.bits,
        )
    return found


def n_kept(kept: Mapping[str, KeptLinear], shapes: Mapping[str, tuple[int, int]]) -> int:
    """Weights that stay, of linears of these shapes (outputs, inputs); all of a linear that counts as whole."""
    total = 0
    for path, one in kept.items():
        n_outputs, n_inputs = shapes[path]
        outside = (n_outputs - len(one.rows)) * (n_inputs - len(one.columns))
        total += n_outputs * n_inputs - (0 if one.whole else outside)
    return total
