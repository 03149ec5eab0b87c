"""From sweeps to the lines of a paper's table: pure functions of `Sweep`s of one model on one task.

    rows = rows_of(together, singles, dims, Whole(n_parameters, reference))
    windows = window_rows(swept_by_layer, dims, whole)

`together` switches all outliers off (or, where there are none, one random set), `singles` each alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.ablation.controls import figures_of, times
from outlierlens.experiments.sweep.result import Effect, Sweep
from outlierlens.replicate.glue.result import ENOUGH, Reference, Row, RowKind


@dataclass(frozen=True)
class Whole:
    """What the lines of one table share: parameters of the model, and the published number for dimensions, if any."""

    n_parameters: int
    reference: Callable[[tuple[int, ...]], Reference | None] = lambda _: None


@dataclass(frozen=True)
class _Controls:
    """The changes of the control sets of one kind, with `p` and `closeness` as in `Null`."""

    kind: RowKind
    changes: np.ndarray
    p: float | None = None
    closeness: float | None = None

    @classmethod
    def of(
        cls, kind: RowKind, changes: Sequence[float], p: float | None = None, closeness: float | None = None
    ) -> "_Controls":
        # A loss that is no number any more is as bad as one that is infinite.
        return cls(kind, np.nan_to_num(np.array(changes, dtype=float), nan=np.inf, posinf=np.inf), p, closeness)


def rows_of(together: Sweep, singles: Sweep | None, dims: tuple[int, ...], whole: Whole) -> tuple[Row, ...]:
    """The lines of the table: intact, each outlier, all of them, random and matched sets."""
    rows, families = [intact_row(together)], []
    if singles is not None and len(dims) > 1:
        alone = [singles.effect(dim) for dim in dims]
        controls = [controls_of(singles, effect, dims) for effect in alone]
        rows += [_chosen(singles, e, "alone", c, whole) for e, c in zip(alone, controls, strict=True)]
        families += [_family(singles, alone[0], c, whole) for c in controls[0] if c.kind == "random"]
    (effect,) = together.effects
    controls_here = controls_of(together, effect, dims)
    if dims:
        rows.append(_chosen(together, effect, "together" if len(dims) > 1 else "alone", controls_here, whole))
    else:  # what was switched off is a random set itself, the first of its family
        others = next((c.changes for c in controls_here if c.kind == "random"), np.array([]))
        controls_here = [_Controls.of("random", [*others, effect.change])]
    families += [_family(together, effect, c, whole) for c in controls_here]
    return (*rows, *families)


def passing(rows: Sequence[Row], dims: tuple[int, ...]) -> tuple[int, ...]:
    """The outliers that each cost at least 5 × random, where they are several and not all; else ()."""
    enough = tuple(row.dims[0] for row in rows if row.kind == "alone" and row.enough)
    return enough if 1 < len(enough) < len(dims) else ()


def passing_rows(sweep: Sweep, whole: Whole) -> tuple[Row, ...]:
    """The line of the set of those outliers that each cost at least 5 × random, and of its random sets."""
    (effect,) = sweep.effects
    controls = controls_of(sweep, effect, effect.dims)
    made = _chosen(sweep, effect, "at least 5 × random", controls, whole)
    return (made, *(_family(sweep, effect, c, whole) for c in controls))


def window_rows(sweep: Sweep, dims: tuple[int, ...], whole: Whole) -> tuple[Row, ...]:
    """A line for each outlier and for all of them in every window, window by window."""
    rows = []
    for effect in sorted(sweep.effects, key=lambda e: sweep.windows_swept.index(e.window)):
        kind: RowKind = "together" if len(effect.dims) > 1 else "alone"
        rows.append(_chosen(sweep, effect, kind, controls_of(sweep, effect, dims), whole))
    return tuple(rows)


def intact_row(sweep: Sweep) -> Row:
    """The model as it is."""
    low, high = 1 - sweep.intact_high, 1 - sweep.intact_low
    return Row("intact", "intact", (), 0, 1, "all layers", 1 - sweep.intact, low, high, 0.0, 0.0, 0.0)


def controls_of(sweep: Sweep, effect: Effect, outliers: Sequence[int]) -> list[_Controls]:
    """The control sets of an effect: ordinary ones describe, and p is the rank among random ones.

    Where every single dimension was swept, those without a name are the ordinary ones, and p is the rank among all others.
    """
    nulls = {n.kind: n for n in sweep.nulls if (n.label, n.window) == (effect.label, effect.window) and n.changes}
    found = []
    if described := nulls.get("ordinary", nulls.get("random")):
        found.append(_Controls.of("random", described.changes, nulls["random"].p))
    if matched := nulls.get("matched"):
        found.append(_Controls.of("matched", matched.changes, closeness=matched.closeness))
    if len(effect.dims) == 1 and not described:
        named = {*outliers, *sweep.found}
        others = [e.change for e in sweep.singles(effect.window) if e.dims[0] not in named]
        if len(others) > 1:
            found.insert(0, _Controls.of("random", others, effect.p))
    return found


def _chosen(sweep: Sweep, effect: Effect, kind: RowKind, controls: Sequence[_Controls], whole: Whole) -> Row:
    random = next((one for one in controls if one.kind == "random"), None)
    mean = ratio = p = enough = None
    if random is not None:
        mean = figures_of(random.changes)[2]
        ratio, p = times(effect.change, mean), random.p
        enough = bool(effect.low > 0 if mean <= 0 else effect.change >= ENOUGH * mean)
    value = 1 - (sweep.intact + effect.change)
    low, high = (0.0, 0.0) if effect.change == effect.spread == 0 else (effect.low, effect.high)
    known = whole.reference(effect.dims) if effect.window == "all layers" else None
    return Row(
        kind, ", ".join(map(str, effect.dims)), effect.dims, len(effect.dims), 1, effect.window,
        value, math.nan, math.nan,
        effect.change, low, high,
        times_random=ratio, enough=enough, p=p,
        n_parameters=effect.n_parameters, share=effect.n_parameters / whole.n_parameters, reference=known,
    )  # fmt: skip


def _family(sweep: Sweep, effect: Effect, controls: _Controls, whole: Whole) -> Row:
    median, _, mean = figures_of(controls.changes)
    with np.errstate(invalid="ignore"):  # between infinities there is no quantile
        ends = np.quantile(controls.changes, (0.05, 0.95))
    low, high = (float(end) for end in np.nan_to_num(ends, nan=np.inf, posinf=np.inf))
    n, size = len(controls.changes), len(effect.dims)
    what = f"set{'' if n == 1 else 's'} of {size}" if size > 1 else f"dimension{'' if n == 1 else 's'}"
    label = f"{n:,} random {what}" if controls.kind == "random" else f"{n:,} {what}, as large weights elsewhere"
    return Row(
        controls.kind, label, (), size, n, effect.window, 1 - (sweep.intact + median), math.nan, math.nan,
        median, low, high,
        mean=mean, closeness=controls.closeness,
        n_parameters=effect.n_parameters, share=effect.n_parameters / whole.n_parameters,
    )  # fmt: skip
