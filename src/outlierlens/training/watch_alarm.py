"""Which dimensions leave n_sigma in a watched training, and early warning of it, judged on ordinary trainings.

    lines = Crossings(Rule()).see(1200, z_scale, z_bias)                                  # [layer, dim]; z_bias or None
    alarms = EarlyWarning(Rule()).see(1200, {"scale": scale, "bias": bias})

A dimension's strength is the |z| that it reaches in as many layers as the rule asks for; at n_sigma it has left. It is
announced before that when it has been near for some records in a row, is the strongest it was in them, and the weights still
move: late in a training, when the learning rate has fallen, what is near stays where it is. How near, how long and how fast
is `Approach`; its values were chosen on half of some dozens of ordinary small trainings, in many of which nothing leaves, and
judged on the other half (`MEASURED`, `benchmarks/watch_alarm.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from outlierlens.detection.rules import Rule, zscore
from outlierlens.errors import OutlierlensError
from outlierlens.options import check
from outlierlens.training.watch_rows import MEASURES, StreamRow

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


def metrics_of(row: StreamRow, z: Mapping[str, np.ndarray], dims: Sequence[int], rule: Rule) -> dict[str, float]:
    """Numbers to log about a stream's row: `z` of its scale and bias, `dims` one by one, and the probe's by layer."""
    found: dict[str, float] = {}
    for kind, values in z.items():
        counts = rule.layers_past(values)
        found[f"max_layers_{kind}"] = float(counts.max())
        found[f"max_z_{kind}"] = float(np.abs(values).mean(axis=0).max())
        for dim in dims:
            found[f"dim_{dim}/z_{kind}"] = float(values[:, dim].mean())
            found[f"dim_{dim}/layers_{kind}"] = float(counts[dim])
        for what in ("gradient", "update"):
            norms = getattr(row, f"{what}_{kind}")
            if norms.size:
                found |= {f"dim_{dim}/{what}_{kind}": float(norms[dim]) for dim in dims}
                found[f"{what}_rms_{kind}"] = float(np.sqrt(np.square(norms, dtype=np.float64).mean()))
    for measure in MEASURES:
        values = getattr(row, measure)
        if values.size:
            found[measure] = float(np.nanmax(values))
        if measure.startswith("largest"):
            found |= {f"layer_{layer}/{measure}": float(x) for layer, x in enumerate(values) if not np.isnan(x)}
    return found


# --- early warning ---------------------------------------------------------------------------------------------------

HORIZON = 50  # records within which an alarm is to come true
MOVED = 3  # records over which the movement of the weights is taken
# counted by benchmarks/watch_alarm.py, see benchmarks/README.md
MEASURED = (
    "of 19 small trainings in which nothing left one raised an early warning; 5 of 7 came true within 50 records, and 5 of 29 "
    "dimensions that left were announced"
)


@dataclass(frozen=True)
class Approach:
    """When a dimension that has not left is announced.

    Attributes:
        near: share of n_sigma that its strength has.
        records: in a row in which it has it; in the last of them it is strongest.
        speed: the least movement of the weights, all together, as a share of the fastest so far.
    """

    near: Annotated[float, Gt(0), Lt(1)] = 0.85
    records: Annotated[int, Ge(1)] = 4
    speed: Annotated[float, Ge(0), Le(1)] = 0.7

    def __post_init__(self) -> None:
        check(self)


class AlarmError(OutlierlensError):
    """There is an early warning, and the training was asked to stop then."""


@dataclass(frozen=True)
class Alarm:
    """An early warning: a dimension that will probably leave n_sigma.

    Attributes:
        step: the recorded step.
        stack: the stream, "" where there is one alone.
        dim, kind: the dimension, in "scale" or "bias".
        strength: |z| that it reaches in as many layers as the rule asks for, in standard deviations.
        records: in which it has been near.
    """

    step: int
    stack: str
    dim: int
    kind: str
    strength: float
    records: int

    def __str__(self) -> str:
        where = f"{self.stack}: " if self.stack else ""
        return (
            f"step {self.step:,}: {where}dimension {self.dim} nears the threshold in the {self.kind}: |z| is "
            f"{self.strength:.1f} in enough layers, and has been near and growing for {self.records} records"
        )


@dataclass
class EarlyWarning:
    """The alarms of one stream, whose records come in their order.

    Attributes:
        rule: what leaving is: |z| >= n_sigma in this share of the layers.
        stack: the stream's name for the alarms.
        announced: (dimension, kind) that were announced, or that were past the threshold before.
    """

    rule: Rule
    approach: Approach = Approach()
    stack: str = ""
    announced: set[tuple[int, str]] = field(default_factory=set)
    _latest: dict[str, list[np.ndarray]] = field(default_factory=dict, repr=False)  # values by kind
    _strengths: dict[str, list[np.ndarray]] = field(default_factory=dict, repr=False)  # in shares of n_sigma [dim]
    _fastest: dict[str, float] = field(default_factory=dict, repr=False)

    def see(self, step: int, kinds: Mapping[str, np.ndarray]) -> tuple[Alarm, ...]:
        """Take in scale and bias of a record, [layer, dim] by kind; returns what is announced by it, the strongest first."""
        found, records = [], self.approach.records
        for kind, values in kinds.items():
            needed = self.rule.needed(len(values))
            sizes = np.abs(z_of(values)) / self.rule.n_sigma
            now = -np.partition(-sizes, needed - 1, axis=0)[needed - 1]
            some = self._strengths[kind] = [*self._strengths.get(kind, []), now][-records:]
            alarming = (np.min(some, axis=0) >= self.approach.near) & (now >= np.max(some, axis=0)) & (now < 1)
            alarming &= (self._speed(kind, values) >= self.approach.speed) & (len(some) == records)
            found += [
                Alarm(step, self.stack, int(dim), kind, float(now[dim]) * self.rule.n_sigma, records)
                for dim in np.flatnonzero(alarming)
                if (int(dim), kind) not in self.announced
            ]
            self.announced |= {(int(dim), kind) for dim in np.flatnonzero(alarming | (now >= 1))}
        return tuple(sorted(found, key=lambda alarm: -alarm.strength))

    def _speed(self, kind: str, values: np.ndarray) -> float:
        """How far the values moved in the last few records, as a share of the farthest they did."""
        some = self._latest[kind] = [*self._latest.get(kind, []), np.nan_to_num(values.astype(np.float64))][
            -MOVED - 1 :
        ]
        moved = float(np.sqrt(np.square(some[-1] - some[0]).mean()))
        fastest = self._fastest[kind] = max(self._fastest.get(kind, 0.0), moved)
        return moved / fastest if fastest else 0.0


def z_of(values: np.ndarray) -> np.ndarray:
    """z of the values of each layer, [layer, dim]; 0 in a layer that a diverged training filled with NaN."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(zscore(values))
