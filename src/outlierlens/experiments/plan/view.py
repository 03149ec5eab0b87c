"""What is said of a plan, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.experiments.plan.charts import precision_plan
from outlierlens.experiments.plan.result import Judged, PrecisionPlan, Sensitivity, Step
from outlierlens.statistics.words import interval_text, no_interval
from outlierlens.view.section import Cell, Change, Count, FineShare, Interval, Rows, Section, cell_text
from outlierlens.view.words import number

STANDS_OUT = 20.0  # largest over median; of normal values it is about 6
FEW = 20  # rows without --verbose
KEPT = ("stays", "part", "reason", "gives back", "95 %", "weights kept")
SETTINGS = ("setting", "linears", "weights kept", "more bytes", "change", "95 %")
ENTRIES = ("stays", "part", "place", "estimate", "× median", "error", "gives back alone", "95 %", "texts")


def sections(found: PrecisionPlan, *, verbose: bool = False) -> Iterator[Section]:
    """The plan with its reasons, the loss beside, and how sensitive linears are; with `verbose` all of them."""
    tables = [
        Rows("What stays", KEPT, tuple(_kept(found, one) for one in found.steps), _refused(found)),
        Rows("Loss on texts that judge", SETTINGS, tuple(_settings(found)), _what_is_compared(found)),
        Rows(
            "Sensitivity",
            ENTRIES,
            tuple(_entry(one) for one in found.sensitivities[: None if verbose else FEW]),
            "In the order of the cheap estimates. What keeping one alone gives back was measured on the texts that nominate; a "
            "dash where it was not.",
        ),
    ]
    yield Section(
        "plan", "What stays in high precision", tuple(_sentences(found)), (precision_plan(found),), tuple(tables)
    )


def reason(one: Sensitivity) -> str:
    """Why an entry costs: "reads neuron 1229: 40,081 × the median"."""
    times = f"{one.ratio:,.0f} × the median"
    where = f"{one.kind} {one.column}" + ("" if one.row is None else f" for output {one.row}")
    if one.what not in ("weights", "inputs"):
        return f"{where} of {one.part} in block {one.layer}: {times}"
    if one.ratio >= STANDS_OUT:
        return f"{'reads' if one.what == 'inputs' else 'weighs'} {where}: {times}"
    return f"no value stands out ({times}); error {one.error:.2g} of its square"


def verdict(found: PrecisionPlan) -> str:
    """What to do, in one line."""
    cost = f"{cell_text(Change(found.rounded.change))} {found.unit}"
    n = len(found.steps)
    size = f"{n} {'entry' if n == 1 else 'entries'} ({cell_text(FineShare(found.plan.share))} of the weights)"
    bits = f"{found.bits} bits"
    return {
        "unclear": f"{found.scheme} costs {cost}: no verdict, for {no_interval(found.n_confirming, 'confirming texts', 4)}",
        "free": f"{found.scheme}: no cost that can be told, nothing to keep",
        "nothing": f"{found.scheme} costs {cost}, and no single entry surely gives back {found.floor:.2g} or more",
        "keep": f"Keep {size} in {bits}: {cost} → {cell_text(Change(found.plan.change))} "
        f"(random {cell_text(Change(found.random_change))})",
        "no use": f"{size} in {bits}: {cost} → {cell_text(Change(found.plan.change))}, not more than random choices do",
        "not tried": f"{size} in {bits}: {cost} → {cell_text(Change(found.plan.change))}, no random choices beside",
    }[found.says]


def most_per_byte(found: PrecisionPlan) -> str:
    """What was measured to give back most per byte: an entry that was confirmed, with those before it; "" where none was."""
    bytes_before = [0, *(one.n_bytes for one in found.curve)]
    gains = [
        (step.confirmed.value / max(1, one.n_bytes - before), step, one.n_bytes - before)
        for step, one, before in zip(found.steps, found.curve, bytes_before[:-1], strict=True)
    ]
    if not gains:
        return ""
    _, step, n_bytes = max(gains, key=lambda one: one[0])
    return (
        f"most per byte gives {step.entry.path} ({step.entry.what}): {step.confirmed.value:+.3g} {found.unit} for "
        f"{n_bytes:,} bytes"
    )


def _sentences(found: PrecisionPlan) -> Iterator[str]:
    yield f"{verdict(found)}."
    if found.steps:
        share = found.share_regained
        ends = interval_text(100 * share.low, 100 * share.high, ".0f")
        yield (
            f"The plan gives back {100 * share.value:.0f} % of the cost (95 % interval {ends}); of its entries "
            f"{most_per_byte(found)}."
        )
    for one in found.keys:
        yield (
            f"The key bias of layer {one.layer} is {number(one.ratio)} times the median layer's (channel {one.channel} of head "
            f"{one.head}): a cache of keys in few bits loses most there; `range --cache` measures it."
        )
    yield (
        f"{found.provenance.model} on {found.data}: {found.n_nominating:,} texts nominate, {found.n_confirming:,} confirm, "
        f"{found.n_judging:,} judge; {found.evaluations:,} forward passes of a text."
    )


def _kept(found: PrecisionPlan, one: Step) -> tuple[Cell, ...]:
    gain = one.confirmed
    part = FineShare(one.n_weights / found.n_weights)
    return one.entry.path, one.entry.what, reason(one.entry), Change(gain.value), Interval(gain.low, gain.high), part


def _refused(found: PrecisionPlan) -> str:
    note = "Each gives back this on texts that had no part in naming it, those above it kept."
    if found.refused is None:
        return note
    one = found.refused
    ends = interval_text(one.confirmed.low, one.confirmed.high, "+.3g")
    return f"{note} Next was {one.entry.path} ({one.entry.what}), which was not confirmed: {one.confirmed.value:+.3g} ({ends})."


def _settings(found: PrecisionPlan) -> Iterator[tuple[Cell, ...]]:
    yield _setting(found.rounded, "all rounded")
    if found.curve:
        yield _setting(found.plan, "plan")
    for draw, one in enumerate(found.random, 1):
        yield _setting(one, f"random draw {draw}")
    for one in found.rules:
        yield _setting(one, one.label)


def _setting(one: Judged, name: str) -> tuple[Cell, ...]:
    ends = Interval(one.change_low, one.change_high)
    return name, one.n_linears, FineShare(one.share), Count(one.n_bytes), Change(one.change), ends


def _what_is_compared(found: PrecisionPlan) -> str:
    return (
        f"Change of the {found.task} ({found.unit}) against the intact model, {found.scheme}; paired 95 % intervals. "
        "A linear counts with all its weights, whether its weights, its inputs or both are kept; columns count with theirs. "
        "Random draws keep random ones of the same kinds and sizes."
    )


def _entry(one: Sensitivity) -> tuple[Cell, ...]:
    measured = (Change(one.gain), Interval(one.low, one.high), one.n_texts) if one.n_texts else (None, None, None)
    where = f"{one.kind} {one.column}"
    return one.path, one.what, where, one.estimate, Count(round(one.ratio)), one.error, *measured
