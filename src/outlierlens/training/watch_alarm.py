"""Which dimensions leave n_sigma in a watched training, and early warning of it: a test with a known rate of false alarms.

    lines = Crossings(Rule()).see(1200, z_scale, z_bias)                                  # [layer, dim]; z_bias or None
    alarms = EarlyWarning(Rule(), rate=0.1).see(1200, {"scale": z_scale, "bias": z_bias})

A dimension is announced before it leaves n_sigma when, at one record, |z| is past `NEAR` of n_sigma in as many layers as the
rule asks for; at the pace since the last record it is past n_sigma within `AHEAD` records; and the mean of its z over the
layers is larger than chance puts at any dimension.

What chance does is seen in the run itself: each layer is turned by any number of positions, all its records together, in 399
runs. Of these and the run itself at most the share `rate` may ever raise an alarm (Lan and DeMets 1983 spend such a share over
looks whose number is not known): at each record so many of the largest means pass as the share spent until then has room for,
and nothing else but what no turned run has reached so far. A layer may depend on its past in any way.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.errors import OutlierlensError
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

TURNED = 399
NEAR = 0.85  # of n_sigma
AHEAD = 3  # records
HALF_SPENT = 20  # records after which half of the rate is spent
# counted over twelve short trainings, see benchmarks/README.md
MEASURED = (
    "an early warning is not a forecast: of twelve ordinary small trainings 11 raised one, and 5 of 26 came true within 200 "
    "steps"
)
BEFORE = 2  # records before the first alarm: a training begins with norms that do not spread at all


class AlarmError(OutlierlensError):
    """There is an early warning, and the training was asked to stop then."""


@dataclass(frozen=True)
class Alarm:
    """An early warning: a dimension that nears n_sigma, in more layers alike than chance makes.

    Attributes:
        step: the recorded step.
        stack: the stream, "" where there is one alone.
        dim, kind: the dimension, in "scale" or "bias".
        strength: |z| that it reaches in as many layers as the rule asks for, in standard deviations.
        pace: by how much that has grown since the last record.
        mean_z: mean of z over the layers.
        boundary: what |mean z| had to pass.
    """

    step: int
    stack: str
    dim: int
    kind: str
    strength: float
    pace: float
    mean_z: float
    boundary: float

    def __str__(self) -> str:
        where = f"{self.stack}: " if self.stack else ""
        return (
            f"step {self.step:,}: {where}dimension {self.dim} nears the threshold in the {self.kind}: |z| is "
            f"{self.strength:.1f} in enough layers and grows by {self.pace:.1f} per record (mean z {self.mean_z:+.1f}; beyond "
            f"chance from {self.boundary:.1f})"
        )


@dataclass
class EarlyWarning:
    """The test over the records of one stream, which come in their order.

    Attributes:
        rule: what leaving is: |z| >= n_sigma in this share of the layers.
        rate: probability of any alarm in a run whose layers know nothing of each other, in (0, 1).
        stack: the stream's name for the alarms.
        seed: of the turns.
        announced: (dimension, kind) that were announced, or that were past the threshold before.
        boundary: what |mean z| of a near dimension had to pass at the last record; inf before the test begins.
    """

    rule: Rule
    rate: float
    stack: str = ""
    seed: int = 0
    announced: set[tuple[int, str]] = field(default_factory=set)
    boundary: float = math.inf
    _records: int = 0
    _last: dict[str, np.ndarray] = field(default_factory=dict, repr=False)  # strength by kind [dim]
    _turns: np.ndarray | None = field(default=None, repr=False)  # [turned run, layer]
    _passed: np.ndarray = field(default_factory=lambda: np.zeros(TURNED, dtype=bool), repr=False)
    _largest: float = 0.0  # of any turned run at any record

    def see(self, step: int, kinds: Mapping[str, np.ndarray]) -> tuple[Alarm, ...]:
        """Take in z of a record by kind, [layer, dim]; returns what is announced by it, largest mean first."""
        needed = self.rule.needed(len(next(iter(kinds.values()))))
        strength = {
            kind: -np.partition(-np.abs(z), needed - 1, axis=0)[needed - 1] for kind, z in kinds.items()
        }  # [dim]
        near = NEAR * self.rule.n_sigma
        before, self._last = self._last, strength
        self._records += 1
        if self._records > BEFORE:
            self.boundary = self._boundary(kinds, near, needed)
        found = []
        for kind, z in kinds.items():
            now, mean = strength[kind], z.mean(0)
            past = now >= self.rule.n_sigma
            if kind in before:
                pace = now - before[kind]
                chosen = (
                    ~past & (now >= near) & (now + AHEAD * pace >= self.rule.n_sigma) & (np.abs(mean) > self.boundary)
                )
                found += [
                    Alarm(
                        step,
                        self.stack,
                        int(dim),
                        kind,
                        float(now[dim]),
                        float(pace[dim]),
                        float(mean[dim]),
                        self.boundary,
                    )
                    for dim in np.flatnonzero(chosen)
                    if (int(dim), kind) not in self.announced
                ]
            self.announced |= {(int(dim), kind) for dim in np.flatnonzero(past)}
        self.announced |= {(alarm.dim, alarm.kind) for alarm in found}
        return tuple(sorted(found, key=lambda alarm: -abs(alarm.mean_z)))

    def _boundary(self, kinds: Mapping[str, np.ndarray], near: float, needed: int) -> float:
        """What a mean must pass at this record, now that the turned runs have had theirs."""
        means = np.maximum.reduce([self._turned(z, near, needed) for z in kinds.values()])  # [turned run]
        spent = self.rate * (1 - 0.5 ** ((self._records - BEFORE) / HALF_SPENT))
        room = math.floor(spent * (TURNED + 1)) - int(self._passed.sum())
        waiting = np.sort(means[~self._passed])[::-1]
        boundary = max(self._largest, float(means.max())) if room <= 0 else float(waiting[room - 1])
        if room > 0:
            # As many as there is room for; a mean of 0 is of a run where nothing is near.
            self._passed |= (means >= boundary) & (means > 0) if boundary else means > 0
        self._largest = max(self._largest, float(means.max()))
        return boundary

    def _turned(self, z: np.ndarray, near: float, needed: int) -> np.ndarray:
        """Largest |mean z| of any near dimension in each turned run, 0 where none is near [turned run]."""
        n_layers, width = z.shape
        if self._turns is None:
            self._turns = np.random.default_rng(self.seed).integers(0, width, size=(TURNED, n_layers))
        total = np.zeros((TURNED, width), dtype=np.float32)
        count = np.zeros((TURNED, width), dtype=np.int16)
        for layer, values in enumerate(z.astype(np.float32)):
            ring = np.concatenate([values, values])
            turned = np.lib.stride_tricks.sliding_window_view(ring, width)[self._turns[:, layer]]
            total += turned
            count += np.abs(turned) >= near
        return np.where(count >= needed, np.abs(total) / n_layers, 0).max(1)
