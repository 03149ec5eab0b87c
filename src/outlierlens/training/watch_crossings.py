"""Which dimensions leave n_sigma in enough layers while a model trains, and the lines that say so.

crossings = Crossings(Rule())
lines = crossings.see(1200, z_scale, z_bias)             # [layer, dim]; z_bias None without a bias
crossings.dims                                           # every dimension that has ever left, in order
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from outlierlens.detection.rules import Rule

NAMED = 5  # dimensions that one step names; early steps can have many


@dataclass
class Crossings:
    """The criterion of Kovaleva et al. (2021), followed over steps for scale and bias apart.

    Attributes:
        where: put before each line, such as the name of one stream of several.
        dims: dimensions that have ever passed, in the order in which they did.
        passing: (dimension, "scale" or "bias") that passed at the last step seen.
    """

    rule: Rule
    where: str = ""
    dims: list[int] = field(default_factory=list)
    passing: set[tuple[int, str]] = field(default_factory=set)

    def see(self, step: int, z_scale: np.ndarray, z_bias: np.ndarray | None) -> list[str]:
        """Take in a step; return a line for each dimension that left or came back since the last one."""
        kinds = {"scale": z_scale} if z_bias is None else {"scale": z_scale, "bias": z_bias}
        counts = {kind: self.rule.layers_past(z) for kind, z in kinds.items()}  # [dim]
        now = {
            (int(dim), kind)
            for kind, count in counts.items()
            for dim in np.flatnonzero(self.rule.enough(count, len(z_scale)))
        }
        left, back = now - self.passing, self.passing - now
        self.passing = now
        self.dims += [dim for dim in self._by_size(left, kinds) if dim not in self.dims]
        return [
            *self._lines(step, left, kinds, counts, f"is past {self.rule.sigmas}"),
            *self._lines(step, back, kinds, counts, f"is back within {self.rule.sigmas}"),
        ]

    def foremost(self, n: int) -> list[int]:
        """At most `n` dimensions: those that pass now, then those that did; of equals, the first that left."""
        now = {dim for dim, _ in self.passing}
        return sorted(self.dims, key=lambda dim: dim not in now)[:n]

    def _by_size(self, which: set[tuple[int, str]], kinds: dict[str, np.ndarray]) -> list[int]:
        """The dimensions among `which`, largest mean |z| first."""
        size: dict[int, float] = {}
        for dim, kind in which:
            size[dim] = max(size.get(dim, 0.0), float(np.abs(kinds[kind][:, dim]).mean()))
        return sorted(size, key=lambda dim: (-size[dim], dim))

    def _lines(
        self,
        step: int,
        which: set[tuple[int, str]],
        kinds: dict[str, np.ndarray],
        counts: dict[str, np.ndarray],
        verb: str,
    ) -> Iterator[str]:
        dims = self._by_size(which, kinds)
        for dim in dims[:NAMED]:
            parts = [
                f"{kind} of {counts[kind][dim]} of {len(kinds[kind])} layers (mean z {kinds[kind][:, dim].mean():+.1f})"
                for kind in kinds
                if (dim, kind) in which
            ]
            other = [kind for d, kind in sorted(self.passing) if d == dim and (d, kind) not in which]
            still = (
                f"; its {' and '.join(other)} {'was' if 'past' in verb else 'is still'} past already" if other else ""
            )
            if other and "back" in verb:
                still = f"; its {' and '.join(other)} stays past"
            yield f"step {step:,}: {self.where}dimension {dim} {verb} in the {' and the '.join(parts)}{still}"
        if len(dims) > NAMED:
            yield f"step {step:,}: {self.where}and {len(dims) - NAMED} more dimensions"


def metrics_of(
    z: dict[str, np.ndarray], gradients: dict[str, np.ndarray], dims: Sequence[int], rule: Rule
) -> dict[str, float]:
    """Numbers to log about one stream: `z` and `gradients` by "scale" and "bias", `dims` one by one."""
    found: dict[str, float] = {}
    for kind, values in z.items():
        counts = rule.layers_past(values)
        found[f"max_layers_{kind}"] = float(counts.max())
        found[f"max_z_{kind}"] = float(np.abs(values).mean(axis=0).max())
        for dim in dims:
            found[f"dim_{dim}/z_{kind}"] = float(values[:, dim].mean())
            found[f"dim_{dim}/layers_{kind}"] = float(counts[dim])
            if gradients[kind].size:
                found[f"dim_{dim}/gradient_{kind}"] = float(gradients[kind][dim])
        if gradients[kind].size:
            found[f"gradient_rms_{kind}"] = float(np.sqrt(np.square(gradients[kind], dtype=np.float64).mean()))
    return found
