"""A sweep in words and tables for people: `print_sweep(swept, Marks("rank"))`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.cli.common import print_table, say
from outlierlens.cli.sweep_progress import duration
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text
from outlierlens.layer_words import number_of_layers
from outlierlens.statistics import SIGNIFICANT

if TYPE_CHECKING:
    from outlierlens.damage import Damage
    from outlierlens.swept import Effect, Null, Sweep

SHOWN = 10
TIMES_RANDOM = 5.0  # Puccetti et al. (2022): a drop of at least 5 times the mean of random dimensions


@dataclass(frozen=True)
class Marks:
    """Which rows of the table carry a star: `rule` is "rank" or "5x"."""

    rule: str = "rank"

    def __post_init__(self) -> None:
        if self.rule not in ("rank", "5x"):
            raise BadInput(f"--mark is {self.rule!r}; use rank or 5x")

    def on(self, effect: "Effect", sweep: "Sweep") -> bool:
        """Whether the effect stands out.

        By rank that is asked only of what was named before measuring: the weights' dimensions (q_found), and sets and
        listed dimensions (q among random ones). Of all dimensions some are the largest in any model: their own ranks say
        nothing.
        """
        if self.rule == "5x":
            return effect.times_random is not None and effect.times_random >= TIMES_RANDOM
        if effect.q_found is not None:
            return effect.q_found <= SIGNIFICANT
        among = random_null(sweep, effect)
        return among is not None and among.q is not None and among.q <= SIGNIFICANT

    @property
    def meaning(self) -> str:
        """What a star says."""
        if self.rule == "5x":
            return "* at least 5 times the mean of random dimensions or sets (Puccetti et al. 2022)"
        return (
            f"* rank test at {SIGNIFICANT:.0%}, of dimensions that the weights named and, among random "
            f"ones, of sets and listed dimensions (Benjamini–Hochberg over each)"
        )


def random_null(sweep: "Sweep", effect: "Effect") -> "Null | None":
    """The comparison with random sets (or dimensions), where there is one."""
    found = (n for n in sweep.nulls if n.kind == "random" and (n.label, n.window) == (effect.label, effect.window))
    return next(found, None)


def print_sweep(sweep: "Sweep", marks: Marks) -> None:
    """What was measured, the strongest effects, where the weights' dimensions rank, the controls and the cost."""
    for line in _head(sweep):
        say(line)
    rows = [_row(effect, sweep, marks) for effect in sweep.top(SHOWN)]
    interval = f"{sweep.level:.0%} interval"
    heads = ["", "rank", "off", "change", interval, "texts", "p", "q", "q found", "× random", "by weights"]
    print_table(f"largest changes of {len(sweep.effects):,}, in {sweep.of_change}", heads, _ranked(rows))
    if any(marks.on(effect, sweep) for effect in sweep.top(SHOWN)):
        say(marks.meaning)
    for line in _found(sweep):
        say(line)
    if sweep.nulls:
        _print_nulls(sweep)
    for line in (*_screened(sweep), *_cost(sweep)):
        say(line)
    for note in sweep.notes:
        say(f"note: {note}")


def _head(sweep: "Sweep") -> Iterator[str]:
    yield f"{sweep.provenance.model}: {sweep.task} ({sweep.unit}), {sweep.method}, on {sweep.data}"
    yield (
        f"{sweep.n_texts:,} texts{counted(sweep)} (a text is {article(sweep.text)} {sweep.text})"
        + (f"; intact {_intact(sweep)}" if sweep.has_intact else "")
    )
    windows = sweep.windows_swept
    shown = windows[0] if len(windows) == 1 else f"{len(windows)} windows ({windows[0]} … {windows[-1]})"
    yield f"mode {sweep.mode}, stream {sweep.stack} of {number_of_layers(sweep.n_layers)} × {sweep.width:,} dimensions, {shown}"
    if sweep.method == "adaptive":
        unfinished = sum(effect.stopped == "unfinished" for effect in sweep.effects)
        settled = f"; the order of the {sweep.top_k} largest is {'settled' if sweep.separated else 'not settled'}"
        yield (
            f"measured until the interval is within ± {sweep.tolerance:g} or ± {sweep.relative:.0%} of the change"
            + (settled if sweep.top_k else "")
            + (f"; {unfinished:,} effects are wider than that" if unfinished else "")
        )


def counted(result: "Sweep | Damage") -> str:
    """How many tokens count, where not each text counts as one."""
    return f", {result.n_tokens:,} tokens in all" if result.n_tokens > result.n_texts else ""


def _screened(sweep: "Sweep") -> Iterator[str]:
    """What a screened sweep left out, and how sure that is."""
    if sweep.screening is None:
        return
    of = sweep.screening
    if of.measured == of.pairs:
        yield f"screening left nothing out: all {of.pairs:,} pairs of text and ablation were measured"
        return
    yield (
        f"measured on {of.measured / max(1, of.pairs):.1%} of {of.pairs:,} pairs of text and ablation: the others keep their "
        f"predicted class to first order ({of.safety:g} times over); of {of.audited:,} of those measured all the same "
        f"{of.flipped:,} had changed (at most {of.bound:.2%} of all left out, at confidence 0.95); --exact measures all"
    )


def _intact(sweep: "Sweep") -> str:
    """The intact model's value with its interval; of a metric the metric itself."""
    if sweep.metric:
        value, low, high = 1 - sweep.intact, 1 - sweep.intact_high, 1 - sweep.intact_low
    else:
        value, low, high = sweep.intact, sweep.intact_low, sweep.intact_high
    return f"{value:z.4f} [{low:z.4f}, {high:z.4f}]"


def article(words: str) -> str:
    """ "a" or "an"."""
    return "an" if words[:1] in "aeiou" else "a"


def _ranked(rows: list[list[Any]]) -> list[list[Any]]:
    return [[row[0], rank, *row[1:]] for rank, row in enumerate(rows, 1)]


def _row(effect: "Effect", sweep: "Sweep", marks: Marks) -> list[Any]:
    among = random_null(sweep, effect)
    return [
        "*" if marks.on(effect, sweep) else "",
        effect.label,
        signed(effect.change),
        _interval(effect),
        f"{effect.n_texts:,}",
        effect.p if effect.p is not None else among.p if among else None,
        effect.q,
        effect.q_found,
        None if effect.times_random is None else plain(effect.times_random),
        "yes" if set(effect.dims) <= set(sweep.found) else "no",
    ]


def _found(sweep: "Sweep") -> Iterator[str]:
    """Where the dimensions that the weights name rank among all single ones, in the window where each does most."""
    if not sweep.found:
        yield "the weights name no dimension in this stream"
    several = len(sweep.windows_swept) > 1
    ranked = []
    for dim in sweep.found:
        own = [effect for effect in sweep.singles() if effect.dims == (dim,)]
        if own:
            best = max(own, key=lambda effect: _orderable(effect.change))
            others = [_orderable(effect.change) for effect in sweep.singles(best.window)]
            rank = 1 + sum(other > _orderable(best.change) for other in others)
            where = f" in {best.window}, where it does most" if several else ""
            ranked.append((rank, f"{dim} is number {rank:,} of {len(others):,}{where} ({signed(best.change)})"))
    ranked.sort(key=lambda one: one[0])
    for _, text in ranked[:SHOWN]:
        yield f"named by the weights: {text}"
    if len(ranked) > SHOWN:
        yield f"and {len(ranked) - SHOWN:,} more that the weights name"


def _print_nulls(sweep: "Sweep") -> None:
    strongest = sorted(sweep.nulls, key=lambda null: -_orderable(null.change))[:SHOWN]
    kept = [null for null in sweep.nulls if any(null is one for one in strongest)]
    rows = [
        [
            null.label,
            null.kind,
            f"{len(null.changes):,}",
            f"{null.n_texts:,}",
            *map(signed, (null.change, null.median, null.percentile_95, null.mean)),
            None if null.times_mean is None else plain(null.times_mean),
            null.p,
        ]
        for null in kept
    ]
    heads = ["off", "control", "n", "texts", "change", "median", "95th pct", "mean", "× mean", "rank p"]
    title = "against controls, on the same texts"
    left_out = len(sweep.nulls) - len(kept)
    print_table(title + (f" ({left_out:,} more in the results)" if left_out else ""), heads, rows)


def _cost(sweep: "Sweep") -> Iterator[str]:
    cost = sweep.cost
    parts = [f"{cost.effects:,} for effects", f"{cost.nulls:,} for controls", f"{cost.intact:,} intact"]
    if cost.gradient_texts:
        parts.append(f"3 × {cost.gradient_texts:,} for gradients")
    took = f" in {duration(cost.seconds)}" if cost.seconds else ""
    yield f"cost: {cost.total:,} evaluations of a text ({', '.join(parts)}), {cost.tokens:,} tokens{took}"
    if sweep.method == "adaptive" and math.isfinite(cost.saving):
        yield (
            f"measuring every effect on every text takes {cost.exact:,}, {plain(cost.saving)} times what was spent here "
            f"(controls apart)"
        )
    if sweep.precision:
        of = sweep.precision
        unit = f" {sweep.of_change}" if of.of == "changes" else ""
        yield f"{of.dtype}: {of.said}{unit} ({of.over})"


def _orderable(change: float) -> float:
    """NaN, a model that broke down, above every number."""
    return math.inf if math.isnan(change) else change


def _interval(effect: "Effect") -> str | None:
    """ "[low, high]", None of a model that broke down."""
    if not math.isfinite(effect.change):
        return None
    if effect.low == effect.high == 0 or not math.isfinite(effect.high - effect.low):
        return interval_text(effect.low, effect.high)
    return f"[{signed(effect.low)}, {signed(effect.high)}]"


def signed(value: float) -> str:
    """A change for reading: its sign, at most four decimals, thousands apart, tiny ones as powers of ten."""
    if not math.isfinite(value):
        return "broken" if math.isnan(value) else "+∞" if value > 0 else "−∞"
    if abs(value) < 1e-12:  # rounding of a mean of changes that cancel
        value = 0.0
    if 0 < abs(value) < 0.0001:
        return f"{value:+.1e}"
    return f"{value:+z.4f}" if abs(value) < 100 else f"{value:+z,.1f}"


def plain(value: float) -> str:
    """A factor for reading: three significant digits, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
