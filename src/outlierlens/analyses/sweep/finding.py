"""What a sweep finds: the effect of every set of dimensions with its interval, beside control sets. No torch.

swept.top(5)                              # the strongest effects, largest first
swept.effect(507).change                  # nats per token against the intact model, with its interval
swept.to_pandas("nulls")                  # every tested set among its control sets
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import outlierlens.view.charts.draw as d
from outlierlens.analyses.sweep.rows import BY_LAYER, BulkSummary, Cost, Effect, Null, Precision, Screening
from outlierlens.errors import BadInput
from outlierlens.results.document import Advice, about
from outlierlens.results.finding import Finding
from outlierlens.results.rows import Estimate, Pivot, Row
from outlierlens.statistics.means import interval_text
from outlierlens.view.charts.base import (
    ALARM,
    BAND,
    FAINT,
    MUTED,
    TABLE_ROWS,
    Chart,
    Spec,
    begun,
    looks,
    rounded,
    strongest_first,
    symmetric,
)
from outlierlens.view.charts.base import label as name_of
from outlierlens.view.pictures import Lines, Picture, Strips
from outlierlens.view.section import TASKS, Rows, cell_text, factor, listed, number, percent, these

SMALL = 0.05  # a change that is worth protecting a dimension, in the task's unit
TABLE, MORE = 20, 100  # effects of the table, and with --verbose
BAND_FROM = 20  # fewer ordinary dimensions make no band of 5 to 95 %
MAX_MARKS = 1024  # ordinary dimensions drawn one by one
MAX_NULLS = 12  # strips


# --- pictures --------------------------------------------------------------------------------------------------------


def thin(effects: Sequence[Effect]) -> list[Effect]:
    """All effects, or of more than `MAX_MARKS` the half that is most extreme and an even sample of the others."""
    if len(effects) <= MAX_MARKS:
        return list(effects)
    extreme = sorted(range(len(effects)), key=lambda i: -abs(effects[i].change.value))[: MAX_MARKS // 2]
    rest = sorted(set(range(len(effects))) - set(extreme))
    # Not every n-th: a step that divides the width of a head would see the same place of every head.
    sample = {rest[int((k * 0.6180339887) % 1 * len(rest))] for k in range(MAX_MARKS // 2)}
    return [effects[i] for i in sorted({*extreme, *sample})]


@dataclass(frozen=True, kw_only=True)
class EffectDots(Picture):
    """Change by dimension (Kovaleva et al. 2021, figure 2), with intervals and the band of the ordinary dimensions."""

    given: tuple[int, ...] | None = None  # dimensions with a name and colour; None: `Sweep.named`

    def names(self, found: Any) -> tuple[int, ...]:
        """Dimensions with a name and colour."""
        return tuple(found.named()) if self.given is None else self.given

    def chosen(self, found: Any) -> list[Row]:
        """The effects of single dimensions that are numbers; of thousands the extreme ones and a sample."""
        effects = [one for one in found.singles() if one.finite]
        named = self.names(found)
        return [*thin([e for e in effects if e.dims[0] not in named]), *(e for e in effects if e.dims[0] in named)]

    def legend(self, found: Finding) -> list[str]:
        """What its marks are."""
        return ["each dot is one ablation", "in colour: named by the weights, or among the strongest"]

    def caption(self, found: Any) -> str:
        """Where the ordinary dimensions lie, and how many are drawn."""
        n, drawn, band = sum(e.finite for e in found.singles()), len(self.chosen(found)), found.band()
        said = f"The chart shows {drawn:,} of {n:,}: the largest changes and an even sample of the others. " * (
            drawn < n
        )
        if band is None:
            return said.strip()
        low, middle, high = band
        return (
            f"{said}Of those that the weights do not name the middle 90 % lie between {low:+.2g} and {high:+.2g} (band), the "
            f"median is {middle:+.2g} (dashes)."
        )

    def panel(self, found: Any) -> Spec:
        cells: list[Spec] = [
            {"off": row.label, "dim": row.dims[0], "name": name_of(row.dims[0]), "texts": row.n_texts, "p": row.p}
            | rounded(change=row.change.value, low=row.change.low, high=row.change.high)
            for row in self.chosen(found) if isinstance(row, Effect)
        ]  # fmt: skip
        ends = [cell[key] for cell in cells for key in ("change", "low", "high") if cell[key] is not None]
        scale = symmetric(np.array([0.0, *ends]), factor=math.inf if found.about.metric else 30.0)
        y = scale.encoding("change", self.head(found, "change"))
        x = d.dim_axis(found.width)
        tooltip = d.columns(off="off:N", change="change", **d.ENDS, texts="texts", p="rank p")
        shown = looks(self.names(found), [cell["dim"] for cell in cells])
        plain, marked = ([cell for cell in cells if (cell["dim"] in shown) == on] for on in (False, True))
        bars: dict[str, Any] = {"x": x, **d.between(y=y)}
        layers: list[Spec] = []
        if (band := found.band()) is not None:
            box = [rounded(change=band[0], middle=band[1], to=band[2])]
            layers.append(d.rect(box, **d.between("change", "to", y=y), color=BAND, opacity=0.55))
            layers.append(d.rule(box, y=y | {"field": "middle"}, color=MUTED, strokeDash=[5, 3]))
        if plain:
            dots = d.circle(None, x=x, y=y, tooltip=tooltip, color=MUTED, size=22, opacity=0.75)
            layers.append(d.sharing(plain, d.rule(None, d.SETTLED, **bars, color=FAINT, opacity=0.5), dots))
        if marked:
            its = d.rule(None, d.SETTLED, **bars, color=d.dim_colour(shown, legend=False), strokeWidth=2)
            layers.append(d.sharing(marked, its, *d.dim_marks(None, shown, x, y, tooltip, size=80)))
            layers += d.names_above(list(shown), found.width, x)
        return d.panel(layers, 640, 330, self.title)


@dataclass(frozen=True, kw_only=True)
class DamageMap(Picture):
    """Layer windows down, dimensions across: the darker the cell, the larger the change; empty where it is smaller than all."""

    def chosen(self, found: Any) -> list[Any]:
        """The largest changes, as many as can be seen."""
        effects = [one for one in found.singles() if one.finite]
        return sorted(effects, key=lambda one: -abs(one.change.value))[:MAX_MARKS]

    def caption(self, found: Any) -> str:
        """How many are drawn, and where the largest is."""
        n, cells = sum(one.finite for one in found.singles()), self.chosen(found)
        drawn = f"The chart shows the {len(cells):,} largest of {n:,} changes. " if len(cells) < n else ""
        return f"{drawn}The darkest cell is {cells[0].label}: {cells[0].change.value:+.3g}."

    def panel(self, found: Any) -> Spec:
        cells: list[Spec] = [
            {"dim": row.dims[0], "end": row.dims[0] + 1, "window": row.window, "texts": row.n_texts}
            | rounded(change=row.change.value, size=abs(row.change.value))
            for row in self.chosen(found)
        ]  # fmt: skip
        windows = list(found.windows_swept)
        x = d.dim_axis(found.width)
        y = d.strips("window", windows, inner=0, outer=0)
        shade = d.strength("size", max(cell["size"] for cell in cells) or 1.0)
        shade["scale"]["type"] = "sqrt"  # else the largest alone would be seen
        tooltip = d.columns(dim="dimension", window="layers:N", change=self.head(found, "change"), texts="texts")
        heat = d.heat(cells, x, y, shade, tooltip, x2={"field": "end"}, color=ALARM, stroke=ALARM, strokeWidth=1.5)
        return d.panel(
            [heat, *d.names_above(found.named(), found.width, x)], 640, max(80, 14 * len(windows)), self.title
        )


def figure2(sweeps: "Sequence[Sweep]", named: Sequence[int] | None = None, *, model: str = "") -> Chart:
    """Single dimensions ablated in several tasks, one panel per task (Kovaleva et al. 2021, figure 2), `model` in the title.

    `named` are the dimensions with a name and colour: those that the weights name and the strongest, unless given.

    Raises:
        BadInput: no sweep, or one without single dimensions.
    """
    if not sweeps:
        raise BadInput("figure 2 needs at least one sweep of a task; sweep with --task")
    ranked = {i: sorted(one.measured()[1], key=_worst_first) for i, one in enumerate(sweeps)}
    panels, said = [], []
    for i, one in enumerate(sweeps):
        dots = EffectDots(rows="effects", x="dims", y="change", given=None if named is None else tuple(named))
        most = [e for e in ranked[i] if e.dims[0] in dots.names(one)]
        changes = ", ".join(
            f"{e.label} {e.change.value:+.2g} ({e.change.low:+.2g} to {e.change.high:+.2g})" for e in most
        )
        panels.append(dots.panel(one) | {"title": d.heading(one.about.measured, f"{one.about.n_texts:,} examples")})
        said.append(f"{begun(one.about.measured)}: {changes or 'none has a name'}. {dots.caption(one)}")
    title = f"one dimension ablated at a time, {len(panels)} task{'s' * (len(panels) > 1)}"
    ordered = [
        (one, ranked[i][place]) for place in range(TABLE_ROWS) for i, one in enumerate(sweeps) if place < len(ranked[i])
    ]
    return d.composed(
        name="figure-2",
        title=f"{model}: {title}" if model else begun(title),
        reading=" ".join(said),
        body=d.above(panels, 26, apart=("x", "y", "color", "shape")),
        columns=("task", "off", "change", "from", "to", "texts", "rank p"),
        rows=(
            (one.about.task, e.label, e.change.value, e.change.low, e.change.high, e.n_texts, e.p) for one, e in ordered
        ),
        total=sum(map(len, ranked.values())),
    )


# --- the finding -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sweep(Finding):
    """Every dimension (or set, or layer window × dimension) ablated in turn.

    Attributes:
        text: what a text is: "block of 128 tokens", "line of at most 128 tokens".
        mode: the ablation. windows: "all", "single", "from", "upto", or those "of given layers".
        method: "exact", "screened" or "adaptive"; screened runs every effect on the texts whose predicted class it can
            change (see `Screening`), and the strongest on all; adaptive stops an effect when its interval is narrower than
            ± max(tolerance, relative × |change|), and separates the `top_k` strongest; ordinary ones are known `together`.
        level: confidence of each interval. Each look's t interval is held to more, so that the interval at which measuring
            stops holds with `level`: where it stops at a width it is √(1 + b / (n + 16)) times as wide after n texts, and where
            the order of the strongest decides it is one of `look_level`, which is valid at any look for any reason. The
            intervals of the strongest, measured again, hold together (Bonferroni).
        widening: b for normal differences, and for log-normal ones; that of an effect lies between, by how skewed its
            differences are and those of all. 0, 0 where no effect stops at a width.
        looks: numbers of texts at which intervals are looked at; one look in exact mode.
        intact: the intact model's value on the texts that were used.
        found: dimensions that the weight rule names in this stream.
        separated: whether the order of the `top_k` strongest is settled (or they differ by less than the tolerance).
    """

    title = "Ablated in turn"

    effects: tuple[Effect, ...]
    """Effects"""
    nulls: tuple[Null, ...]
    """Against control sets: On the same texts."""
    text: str
    mode: str
    n_layers: int
    width: int
    windows: str
    method: str
    tolerance: float
    relative: float
    top_k: int
    level: float
    widening: tuple[float, float]
    look_level: float
    looks: tuple[int, ...]
    intact: Estimate
    found: tuple[int, ...]
    separated: bool
    cost: Cost
    precision: Precision | None = None
    screening: Screening | None = None
    together: BulkSummary | None = None

    @property
    def windows_swept(self) -> tuple[str, ...]:
        """Names of the layer windows, in the order planned; plans that differ from layer to layer are in none."""
        return tuple(dict.fromkeys(effect.window for effect in self.effects if effect.window != BY_LAYER))

    def singles(self, window: str | None = None) -> tuple[Effect, ...]:
        """Effects of single dimensions (in one window), in the order planned."""
        return tuple(
            e for e in self.effects if len(e.dims) == 1 and e.window != BY_LAYER and window in (None, e.window)
        )

    def measured(self, window: str | None = None) -> tuple[str, list[Effect]]:
        """The window (the first, where None) and its single dimensions with a finite change; raises BadInput for none."""
        window = next(iter(self.windows_swept), "") if window is None else window
        if window and window not in self.windows_swept:
            raise BadInput(f"no window {window!r} in this sweep; it has {', '.join(self.windows_swept)}")
        if not (effects := [e for e in self.singles(window) if e.finite]):
            raise BadInput(f"no single dimension was measured in window {window!r}; sweep without dims=()")
        return window, effects

    @property
    def heavy(self) -> tuple[Effect, ...]:
        """Of each dimension whose change alone is `SMALL` or more with its whole interval the largest effect, largest first."""
        best: dict[int, Effect] = {}
        for one in sorted(self.singles(), key=_worst_first):
            if one.low >= SMALL or one.change.value == math.inf or (math.isnan(one.change.value) and one.n_texts):
                best.setdefault(one.dims[0], one)
        return tuple(best.values())

    def advice(self) -> Iterator[Advice]:
        """What the model pays for by itself."""
        if not (costly := self.heavy):
            return
        dims, last, unit = sorted(one.dims[0] for one in costly), costly[-1], self.about.of_change
        yield Advice(
            "prune",
            f"When you prune or edit, leave {these(dims)} alone: the model pays for each of them by itself.",
            f"{costly[0].label} ablated: {costly[0].change.value:+.3g} {unit}; the least of these, {last.label}: "
            f"{last.change.value:+.3g}",
            (about(self.provenance, "prune protect", "--export", "torch-pruning", dims=dims, stack=self.about.stack),),
        )

    def top(self, k: int = 5, window: str | None = None) -> tuple[Effect, ...]:
        """The `k` largest effects (in one window), largest first; of equal ones the smaller dimension first.

        Those that were measured again come before the others, whose order is that of estimates they were chosen by.
        """
        among = [e for e in self.effects if window in (None, e.window)]
        return tuple(sorted(among, key=lambda e: (not e.again, *_worst_first(e)))[:k])

    def effect(self, dim: int, window: str | None = None) -> Effect:
        """The effect of one dimension alone (in one window); raises KeyError for one that was not swept."""
        for effect in self.singles(window):
            if effect.dims == (dim,):
                return effect
        raise KeyError(f"dimension {dim} was not swept")

    def named(self, window: str | None = None) -> tuple[int, ...]:
        """Dimensions with a name in pictures: those that the weights name, then the `top_k` largest above the tolerance.

        Above with the whole interval: the largest of many that do nothing are noise, and get no name.
        """
        effects = [e for e in self.singles(window) if e.finite]
        swept = {e.dims[0] for e in effects}
        above = sorted((e for e in effects if e.low > self.tolerance), key=_worst_first)
        top = list(dict.fromkeys(e.dims[0] for e in above))[: self.top_k]
        most = {dim: max(e.change.value for e in effects if e.dims[0] == dim) for dim in self.found if dim in swept}
        return tuple(dict.fromkeys([*strongest_first(most, lambda dim: most[dim]), *top]))

    def band(self) -> tuple[float, float, float] | None:
        """The 5th, 50th and 95th percentile of single dimensions that the weights do not name; None for few."""
        changes = [e.change.value for e in self.singles() if e.finite and e.dims[0] not in self.found]
        if len(changes) < BAND_FROM:
            return None
        return tuple(np.percentile(changes, (5, 50, 95)).tolist())

    def drawn(self) -> tuple[Picture, ...]:
        """Dimensions, or by layer those with a name; then sets among random and among matched ones."""
        made: list[Picture] = []
        if len(self.windows_swept) > 1:
            named = self.named()
            some = Lines(
                rows="effects", x="window", y="change", by="dims", title="By layers",
                where=lambda row: row.window != BY_LAYER and (len(row.dims) > 1 or row.dims[0] in named),
            )  # fmt: skip
            made += [some, DamageMap(rows="effects", x="dims", y="window", title="By layers and dimensions")]
        elif self.singles():
            made.append(EffectDots(rows="effects", x="dims", y="change"))
        for kind, of in (("random", "the same size"), ("matched", "as extreme weights elsewhere")):
            nulls = [null for null in self.nulls if null.kind == kind and null.changes]
            kept = {id(null) for null in sorted(nulls, key=lambda null: -_order(null.change))[:MAX_NULLS]}
            strips = Strips(
                rows="nulls", x="change", y="label", draws="sample", greys=f"{{n}} {kind} sets of {of}",
                title=f"Against {kind} sets", where=partial(_is_one_of, kept),
                says=lambda row: "" if row.p is None else f"p = {row.p:.2g}",
            )  # fmt: skip
            made += [strips] if kept else []
        return tuple(made)

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """The largest effects; of several windows the strongest dimensions across. Of the sets the strongest."""
        n, most = len(rows), MORE if verbose else TABLE
        left = f"{n - most:,} more in the result's file." if n > most else ""
        if name == "nulls":
            kept = sorted(self.nulls, key=lambda null: -_order(null.change))[:most]
            return super().laid_out(name, tuple(kept), head, " ".join(filter(None, (note, left))), verbose=verbose)
        if len(self.windows_swept) > 1 and not verbose:
            order = list(dict.fromkeys(e.dims for e in self.top(n) if e.window != BY_LAYER))
            cells = sorted((e for e in self.effects if e.dims in order), key=lambda e: order.index(e.dims))
            cells.sort(key=lambda e: e.layers)
            return Pivot("window", "dims", "change").table("Effects by layers", cells, "", self.about.words)
        made = super().laid_out(name, self.top(most), f"Largest changes of {n:,}", left, verbose=verbose)
        return replace(made, columns=tuple(self.percent if one == "95 %" else one for one in made.columns))

    def records(self, which: str = "") -> Iterator[dict[str, Any]]:
        """Flat rows of a table, effects the largest first."""
        return iter([e.flat() for e in self.top(len(self.effects))]) if not which else super().records(which)

    @property
    def percent(self) -> str:
        """The level of the intervals: "95 %"."""
        return f"{100 * self.level:g} %"

    # --- in words ---

    def sentences(self) -> Iterator[str]:
        if not self.effects:
            yield "Nothing was measured."
            return
        singles = sorted((e for e in self.singles() if e.finite), key=_worst_first)
        if lost := [e.label for e in self.effects if not e.finite and e.n_texts]:
            yield f"With {listed(lost)} ablated, each alone, the {self.about.measured} is infinite or undefined."
        if singles:
            yield self._leader(singles)
        yield from self._by_weights(singles)
        if singles:
            yield self._many(singles)
        yield from self._sets()
        unfinished = sum(e.stopped == "unfinished" for e in self.effects)
        if unfinished:
            yield f"{unfinished:,} of {len(self.effects):,} effects are unfinished: their intervals are still wide."
        elif singles and self.method == "adaptive" and self.top_k:
            yield f"The order of the {self.top_k} strongest is {'settled' if self.separated else 'not settled'}."
        yield from self._how()

    def _amount(self, effect: Effect) -> str:
        """ "+8.4 nats per token (95 % interval +8 to +8.8; perplexity ×4,450)"; "0.64 → 0.61 (lost +0.03; 95 % interval …)"."""
        change = effect.change
        interval = f"{self.percent} interval {interval_text(change.low, change.high, '+.3g')}"
        if self.about.metric:
            before, after = (number(1 - value) for value in (self.intact.value, self.intact.value + change.value))
            return f"{before} → {after} (lost {change.value:+.3g}, {interval})"
        task = self.about.task
        times = f"; {TASKS[task]} ×{factor(change.value)}" if task in TASKS else ""
        return f"{change.value:+.3g} {self.about.of_change} ({interval}{times})"

    def _leader(self, singles: list[Effect]) -> str:
        first, n, windows = singles[0], len({e.dims for e in singles}), len(self.windows_swept)
        among = f"{n:,} {self.about.kind}s" if n > 1 else f"one {self.about.kind}"
        among += f" in each of {windows} layer windows" if windows > 1 else ""
        verb, noun = ("lower", "loss") if self.about.metric else ("change", "change")
        if first.low <= 0:
            return (
                f"Of {among} ablated one at a time none is shown to {verb} the {self.about.measured}: the largest "
                f"{noun}, {first.label}, is {self._amount(first)}."
            )
        other = next((e for e in singles if e.dims != first.dims and e.change.value > 0), None)
        beside = f"; the next, {other.label}, {other.change.value:+.3g}" if other else ""
        return (
            f"Of {among} ablated one at a time, {first.label} {verb}s the {self.about.measured} most: "
            f"{self._amount(first)}{beside}."
        )

    def _by_weights(self, singles: list[Effect]) -> Iterator[str]:
        order = list(dict.fromkeys(e.dims[0] for e in singles))
        named = [f"{dim} (number {place:,})" for place, dim in enumerate(order, 1) if dim in self.found]
        if named:
            yield f"The weights name {listed(named)} of these {len(order):,}, counted from the largest change."
        elif self.found and singles:
            yield f"The weights name {listed(sorted(self.found))}, which were not ablated alone."
        elif not self.found and self.about.kind == "dimension":
            yield "The weights name no dimension here."

    def _many(self, singles: list[Effect]) -> str:
        limit, kind = 2 * self.tolerance, self.about.kind
        above = sum(e.low > limit for e in singles)
        what = f"{kind}s" if len(self.windows_swept) == 1 else f"effects of one {kind} in one layer window"
        unit = f"of {self.about.metric}" if self.about.metric else self.about.unit
        return (
            f"{above:,} of {len(singles):,} {what} {'lies' if above == 1 else 'lie'} above twice the tolerance "
            f"({limit:g} {unit}) with the whole interval."
        )

    def _sets(self) -> Iterator[str]:
        sets: dict[tuple[int, ...], Effect] = {}
        for effect in sorted((e for e in self.effects if len(e.dims) > 1 and e.finite), key=_worst_first):
            sets.setdefault(effect.dims, effect)
        for effect in list(sets.values())[:3]:
            where = "" if effect.window == "all layers" else f", {effect.window}"
            text = f"{listed(effect.dims)} ablated together{where}: {self._amount(effect)}"
            for null in self.nulls:
                if (null.label, null.window) == (effect.label, effect.window) and null.changes:
                    rank = "" if null.p is None else f" (rank p = {null.p:.2g})"
                    text += f"; {null.n:,} {null.kind} sets: {null.median:+.2g} in the median{rank}"
            yield f"{text}."

    def _how(self) -> Iterator[str]:
        """What a text is, what was switched off, how far it was measured, and what that took."""
        value, about = self.intact, self.about
        if about.metric:
            value = Estimate(1 - value.value, 1 - value.high, 1 - value.low)
        ends = f" ({cell_text(value.low)} to {cell_text(value.high)})" if value.settled else ""
        # A change of outputs has no intact value of its own.
        intact = f"; intact {cell_text(value.value)}{ends}" * (not about.task.endswith(" change"))
        windows, article = self.windows_swept, "an" if self.text[:1] in "aeiou" else "a"
        several = f"{len(windows)} windows ({windows[0]} … {windows[-1]})" if len(windows) > 1 else "".join(windows)
        where = f": {several}" if windows else ""
        yield f"A text is {article} {self.text}{intact}. Ablation by {self.mode} in {self.width:,} {about.kind}s{where}."
        if self.together:
            yield self.together.written()
        if self.method == "adaptive":
            goal = f"± {self.tolerance:g} or ± {percent(self.relative)} of the change"
            yield f"Measured until the interval is within {goal}."
        if self.screening:
            yield self.screening.written()
        cost = self.cost
        parts = [f"{cost.effects:,} for effects", f"{cost.nulls:,} for controls", f"{cost.intact:,} intact"]
        parts += [f"3 × {cost.gradient_texts:,} for gradients"] if cost.gradient_texts else []
        said = f"Cost: {cost.total:,} evaluations of a text ({', '.join(parts)}), {cost.tokens:,} tokens."
        if self.method == "adaptive" and math.isfinite(cost.saving):
            said += (
                f" Measuring every effect on every text takes {cost.exact:,}, {number(cost.saving)} times what was spent here "
                "(controls apart)."
            )
        yield said
        if self.precision:
            yield f"Computed in {self.precision.dtype}: {self.precision.written(about.of_change)}."


def _is_one_of(kept: set[int], row: Row) -> bool:
    return id(row) in kept


def _order(change: float) -> float:
    """NaN, a model that broke down, above every number."""
    return math.inf if math.isnan(change) else change


def _worst_first(effect: Effect) -> tuple[float, tuple[int, ...]]:
    return -_order(effect.change.value), effect.dims
