"""What is said of dimensions switched off, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.ablation.damage import SIGNS, Condition, Continuation, Control, Damage, Filled
from outlierlens.experiments.disable.charts import losses, reading
from outlierlens.view.section import Cell, Change, Interval, P, Rows, Section
from outlierlens.view.words import few, number_of_layers

SHOWN = 8  # dimensions in a cell
GROUPS = 4  # layers with dimensions of their own in a cell
CONTROLS = ("control", "n", "median", "95th pct", "mean", "× median", "× 95th pct", "× mean", "rank p")
CONTROL_KINDS = {
    "random": "sets of the same size, drawn from all {kind}s",
    "ordinary": "random sets without a {kind} that was switched off or found",
    "matched": "in every layer other positions, with weights as large",
}
KINDS = ", ".join(f"{sign} {kind}" for kind, sign in SIGNS.items() if kind != "same")


def sections(found: Damage, *, verbose: bool = False) -> Iterator[Section]:
    """The chosen dimensions beside their controls, and what the model then says; with `verbose` every control set."""
    tables = [_conditions(found), *compared(found)]
    if verbose:
        tables += map(_sets, found.controls)
    tables += _said(found)
    yield Section(
        "disable",
        f"{found.chosen.kind.capitalize()}s switched off",
        tuple(_sentences(found)),
        (losses(found),),
        tuple(tables),
    )


def _sentences(found: Damage) -> Iterator[str]:
    yield reading(found)
    tokens = f", {found.n_tokens:,} tokens in all" if found.n_tokens > found.n_texts else ""
    yield f"{found.provenance.model}: {found.task} ({found.unit}) on {found.n_texts:,} {found.inputs}{tokens}."
    yield f"Mode {found.mode}, stream {found.stack}, {number_of_layers(len(found.layers))}."


def _conditions(found: Damage) -> Rows:
    rows = []
    for label, one in (("intact", found.intact), (f"off: {off(found.chosen)}", found.chosen)):
        value = (1 - one.score.value,) if found.metric else (one.score.value, one.score.perplexity)
        change = (Change(one.change), Interval(one.change_low, one.change_high)) if one.dims else (None, None)
        rows.append((label, *value, *change, one.n_parameters))
    heads = (found.metric, "lost") if found.metric else ("value", "perplexity", "change")
    return Rows("", ("condition", *heads, "95 % interval", "parameters off"), tuple(rows))


def compared(found: Damage) -> Iterator[Rows]:
    """The controls, if any, then what else was measured of the intact model and of the chosen set."""
    if found.controls:
        yield Rows("Controls", CONTROLS, tuple(map(_control, found.controls)), control_kinds(found))
    if further := found.chosen.score.also:
        before = found.intact.score.also
        rows = tuple((name, before.get(name), value) for name, value in further.items())
        yield Rows("Further numbers", ("number", "intact", "off"), rows)


def _said(found: Damage) -> Iterator[Rows]:
    """The passage filled in, and continued."""
    head = () if found.chosen.neurons else ("dimensions",)  # the labels say it; conditions above name the neurons

    def which(one: Filled | Continuation) -> tuple[str, ...]:
        return (few(one.dims, SHOWN),) if head else ()

    if found.fills:
        filled = tuple((one.label, *which(one), one.line) for one in found.fills)
        note = f"In brackets what the model fills in; where that is not the intact model's word: {KINDS}."
        yield Rows("The passage filled in", ("off", *head, "passage"), filled, note)
    if found.continuations:
        said = tuple((one.label, *which(one), one.prompt, one.text) for one in found.continuations)
        yield Rows("The passage continued", ("off", *head, "begins", "continued"), said)


def control_kinds(found: Damage) -> str:
    """What each kind of control that `found` has is, in a sentence each."""
    kinds = [one.kind for one in found.controls]
    return " ".join(f"{kind.capitalize()}: {CONTROL_KINDS[kind].format(kind=found.chosen.kind)}." for kind in kinds)


def _control(one: Control) -> tuple[Cell, ...]:
    changes = (Change(value) for value in (one.median, one.percentile_95, one.mean))
    times = (one.ratio_to_median, one.ratio_to_percentile_95, one.ratio_to_mean)
    return one.kind, len(one.conditions), *changes, *times, None if one.p is None else P(one.p)


def _sets(control: Control) -> Rows:
    rows = tuple(
        (one.label, off(one), Change(one.change), Interval(one.change_low, one.change_high))
        for one in control.conditions
    )
    return Rows(f"{control.kind.capitalize()} sets", ("set", f"{control.conditions[0].kind}s", "change", "95 %"), rows)


def off(condition: Condition) -> str:
    """The dimensions off, layer by layer where layers differ."""
    if condition.neurons or not condition.by_layer:
        return few(condition.positions, SHOWN)
    groups: dict[tuple[int, ...], list[int]] = {}
    for layer, dims in sorted(condition.by_layer.items()):
        groups.setdefault(dims, []).append(layer)
    shown = [f"{','.join(map(str, layers))}: {few(dims, SHOWN)}" for dims, layers in list(groups.items())[:GROUPS]]
    return "; ".join(shown) + ("; …" if len(groups) > GROUPS else "")
