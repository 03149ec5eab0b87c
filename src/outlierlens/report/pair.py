"""Two models or checkpoints against each other, from the results of their reports: `paired(ours, theirs)`; and their pictures.

    pair = paired(load("runs/base/results.json"), load("runs/tuned/results.json"))
    pair.matches[0].both, pair.matches[0].only_ours     # dimensions of the stream by who has them
    pair_sentences(pair), pair_advice(pair)

Dimensions are matched by their position in the stream, which says something only where the streams are equally wide;
models of different width are shown side by side and nothing of one is called the same as anything of the other.

profiles(ours, theirs, ("base", "tuned"), (308, 381))     # how far every dimension stands out: one above, one below
by_layer(ours, theirs, ("base", "tuned"), (308, 381))     # z of the named dimensions, layer by layer
changes((damage, other), ("base", "tuned"))               # what switching off did to each
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outlierlens.ablation.study import Measurement
from outlierlens.analyses.ablate import Ablation
from outlierlens.detection.rules import Outlier
from outlierlens.detection.scan.charts import mean_size
from outlierlens.detection.scan.result import StackScan
from outlierlens.errors import command, operand
from outlierlens.report.advice import Advice
from outlierlens.report.result import ReportData
from outlierlens.report.words import counted, random_control, sets_of, significant_dims, verdict
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    ALARM,
    BAND,
    COLOURED,
    DIM_COLOURS,
    FAINT,
    INK,
    MUTED,
    SHAPES,
    Chart,
    Spec,
    bar,
    begun,
    chart,
    drawable,
    field,
    round_to,
    rounded,
    symmetric,
)
from outlierlens.view.charts.draw import MOST, interval_dots, names_above, null_dots, words_at_ends
from outlierlens.view.section import TASKS, factor, few, listed, number

ALIKE = 0.999  # correlation of z from which two models are called the same in what a scan sees


@dataclass(frozen=True)
class Match:
    """One residual stream of both models.

    Attributes:
        name: of the stream; of both where they are called differently.
        ours, theirs: their scans. found: their outliers by dimension.
        mapped: equally wide, so that a dimension of one can be looked for in the other.
    """

    name: str
    ours: StackScan
    theirs: StackScan
    found: tuple[dict[int, Outlier], dict[int, Outlier]]

    @property
    def mapped(self) -> bool:
        """Whether dimensions correspond by position."""
        return self.ours.hidden_size == self.theirs.hidden_size

    @property
    def both(self) -> tuple[int, ...]:
        """Dimensions that are outliers of both; () where positions do not correspond."""
        return tuple(sorted(self.found[0].keys() & self.found[1].keys())) if self.mapped else ()

    @property
    def only_ours(self) -> tuple[int, ...]:
        """Outliers of the first alone (all of them where positions do not correspond)."""
        return tuple(sorted(self.found[0].keys() - set(self.both)))

    @property
    def only_theirs(self) -> tuple[int, ...]:
        """Outliers of the second alone."""
        return tuple(sorted(self.found[1].keys() - set(self.both)))

    @property
    def correlation(self) -> float:
        """Pearson correlation of mean |z| over the dimensions that both scans kept; NaN where there is none."""
        if not self.mapped:
            return math.nan
        kept = sorted(set(self.ours.map_dims) & set(self.theirs.map_dims))
        sizes = [
            mean_size(stack)[[place[dim] for dim in kept]]
            for stack in (self.ours, self.theirs)
            for place in [{dim: column for column, dim in enumerate(stack.map_dims)}]
        ]
        if len(kept) < 3 or min(np.ptp(size) for size in sizes) == 0:
            return math.nan
        return float(np.corrcoef(np.stack(sizes))[0, 1])


@dataclass(frozen=True)
class Pair:
    """Two reports, what each is called, where the page of each lies (relative to theirs), and their streams matched."""

    ours: ReportData
    theirs: ReportData
    names: tuple[str, str]
    pages: tuple[str, str]
    matches: tuple[Match, ...]
    notes: tuple[str, ...]

    @property
    def sides(self) -> tuple[ReportData, ReportData]:
        """Both."""
        return self.ours, self.theirs

    @property
    def damages(self) -> tuple[Ablation, Ablation] | None:
        """The first damage of each; None where either has none."""
        return (self.ours.damages[0], self.theirs.damages[0]) if self.ours.damages and self.theirs.damages else None

    @property
    def texts(self) -> tuple[str, str] | None:
        """What each was measured on, where that was not the same; None where it was, or one was not measured on texts.

        A loss, its change and the values of a running model depend on the texts, so none of them are then compared.
        """
        one, other = (_read(side) for side in self.sides)
        if one is None or other is None:
            return None
        cut = None not in (one.length, other.length) and one.length != other.length
        return (one.said, other.said) if cut or one.digest != other.digest else None


@dataclass(frozen=True)
class _Read:
    """What a model was measured on: in words, its digest, and how many tokens of each text were read, where that is known."""

    said: str
    digest: str
    length: int | None


def _read(data: ReportData) -> _Read | None:
    """None where no text was read."""
    seen, damage = data.observation, data.damages[0] if data.damages else None
    if seen is not None:
        said = f"{seen.n_texts:,} texts of {seen.data}, {seen.max_length} tokens each"
        return _Read(said, seen.data_digest, seen.max_length)
    return (
        _Read(f"{damage.about.n_texts:,} texts of {damage.about.data}", damage.about.data_digest, None)
        if damage
        else None
    )


def paired(ours: ReportData, theirs: ReportData, pages: tuple[str, str] = ("", "")) -> Pair:
    """Both reports with their streams matched: by name, or the only stream of each."""
    names = (ours.model, theirs.model)
    if names[0] == names[1]:
        names = (f"{names[0]} (A)", f"{names[1]} (B)")
    stacks = [{name: scan for name, scan, _ in side.streams() if scan is not None} for side in (ours, theirs)]
    common = [(name, name) for name in stacks[0] if name in stacks[1]]
    if not common and len(stacks[0]) == len(stacks[1]) == 1:
        common = [(next(iter(stacks[0])), next(iter(stacks[1])))]
    matches = tuple(
        Match(
            one if one == other else f"{one} and {other}",
            stacks[0][one],
            stacks[1][other],
            (_outliers(ours, one), _outliers(theirs, other)),
        )
        for one, other in common
    )
    matched = [{one for one, _ in common}, {other for _, other in common}]
    pair = Pair(ours, theirs, names, pages, matches, ())
    notes = tuple(_notes(pair))
    for name, there, known in zip(names, stacks, matched, strict=True):
        if left := [stream for stream in there if stream not in known]:
            notes += (f"{name}: stream {', '.join(left)} has no counterpart in the other model",)
    return replace(pair, notes=notes)


def _outliers(data: ReportData, stream: str) -> dict[int, Outlier]:
    scans = [stack for stack in data.scan.stacks if stack.stack == stream]
    return {one.dim: one for stack in reversed(scans) for one in counted(stack, data.scan.rule.name)}


def _notes(pair: Pair) -> Iterator[str]:
    ours, theirs, names = pair.ours, pair.theirs, pair.names
    if ours.scan.rule != theirs.scan.rule or ours.scan.view != theirs.scan.view:
        yield "the two scans used different rules or views: who has which outlier depends on that too"
    if pair.texts:
        return
    if pair.damages:
        one, other = (damage.about for damage in pair.damages)
        if one.task != other.task:
            yield f"{names[0]} was measured by {one.task}, {names[1]} by {other.task}: their numbers have different scales"
        if one.n_texts != other.n_texts:
            yield f"{names[0]} was measured on {one.n_texts:,} texts, {names[1]} on {other.n_texts:,}"


def not_compared(pair: Pair) -> str:
    """The sentence in place of what cannot be compared; "" where all can."""
    if not pair.texts:
        return ""
    return (
        f"What each loses and what it reaches while it runs is not compared, for they read different texts: {pair.names[0]} "
        f"{pair.texts[0]}, {pair.names[1]} {pair.texts[1]}."
    )


def pair_sentences(pair: Pair) -> tuple[str, ...]:
    """Who has which outliers and what they cost, most important first; the first one stands alone."""
    several = len(pair.matches) > 1
    said = [_who(pair, match, f"{match.name}: " if several else "") for match in pair.matches]
    if not said:
        said = [f"{pair.names[0]} and {pair.names[1]} have no stream in common."]
    said[1:1] = [not_compared(pair)] if pair.texts else _damages(pair)  # the second stands on the first screen too
    for match in pair.matches:
        where = f" of {match.name}" if several else ""
        if not math.isnan(match.correlation):
            alike = "they hardly differ in what a scan sees" if match.correlation >= ALIKE else "1 is the same profile"
            said.append(f"How far dimensions{where} stand out correlates with r = {match.correlation:.3f}; {alike}.")
        one, other = match.ours, match.theirs
        if (one.n_layers, one.hidden_size) != (other.n_layers, other.hidden_size):
            what = "layers are shown at their share of the depth" if one.n_layers != other.n_layers else ""
            what = "; ".join(filter(None, ["positions do not correspond" if not match.mapped else "", what]))
            said.append(f"{pair.names[0]} has {one.shape}{where}, {pair.names[1]} {other.shape}: {what}.")
    return tuple(said)


def _who(pair: Pair, match: Match, before: str) -> str:
    ours, theirs = pair.names
    n, m = (len(found) for found in match.found)
    if not n and not m:
        return f"{before}Neither {ours} nor {theirs} has an outlier dimension in its weights."
    if not n or not m:
        who, other = (ours, theirs) if n else (theirs, ours)
        dims = sorted(match.found[0] or match.found[1])
        return f"{before}{who} has {_counted(dims)}; {other} has none."
    if not match.mapped:
        widths = [f"{stack.hidden_size:,}" for stack in (match.ours, match.theirs)]
        parts = [f"{name} has {len(found)} of {width}" for name, found, width in
                 zip(pair.names, match.found, widths, strict=True)]  # fmt: skip
        return f"{before}Both have outlier dimensions: {parts[0]}, {parts[1]}."
    alone = [(match.only_ours, ours), (match.only_theirs, theirs)]
    rest = [f"{listed(dims)} only in {name}" for dims, name in alone if dims]
    if not match.both:
        return f"{before}{ours} and {theirs} share no outlier dimension: {'; '.join(rest)}."
    if not rest:
        return f"{before}{ours} and {theirs} have the same {_counted(match.both)}."
    return f"{before}{ours} and {theirs} share {_counted(match.both)}; {'; '.join(rest)}."


def _counted(dims: tuple[int, ...] | list[int]) -> str:
    return f"{len(dims)} outlier dimension{'s' if len(dims) > 1 else ''}: {listed(dims)}"


def _damages(pair: Pair) -> list[str]:
    parts = []
    for name, data in zip(pair.names, pair.sides, strict=True):
        if not data.damages:
            parts.append(f"{name}: not measured")
            continue
        damage = data.damages[0]
        control = random_control(damage)
        beside = ""
        if control is not None:
            n, what = control.n, sets_of(len(damage.dims))
            beside = f" ({n} random {what}: {cost(damage, control.median)} in the median)"
        off = f"{measured(damage)} {cost(damage, damage.chosen.change.value)} with {few(damage.dims)} off"
        parts.append(f"{name}: {off}, {verdict(damage)}{beside}")
    return [f"What each loses: {'; '.join(parts)}."] if any(d.damages for d in pair.sides) else []


def measured(damage: Ablation) -> str:
    """What a change is of: "perplexity", "cosine distance"."""
    return TASKS.get(damage.about.task, damage.about.of_change)


def cost(damage: Ablation, change: float) -> str:
    """A change for reading: "×4,450" of a perplexity, else "0.42"."""
    return f"×{factor(change)}" if damage.about.task in TASKS else f"{change:.3g}"


def pair_advice(pair: Pair) -> tuple[Advice, ...]:
    """What to do about two models, by rule; never empty."""
    return tuple(_advice(pair))


def _advice(pair: Pair) -> Iterator[Advice]:
    models = [operand(data.provenance.model) for data in pair.sides]
    if pair.texts:
        text = "Measure both on the same texts before you compare what they lose."
        yield Advice("compare", text, "a loss depends on the text", (command("report", "--compare", *models),))
    protect = tuple(
        command("prune", "protect", model, "--for", "torch-pruning")
        for model, data in zip(models, pair.sides, strict=True)
        if significant_dims(data)
    )
    for match in (one for one in pair.matches if one.mapped and any(one.found)):
        if match.only_ours or match.only_theirs:
            yield Advice(
                "transfer",
                "Do not carry a list of protected dimensions from one to the other; take each model's own.",
                f"{len(match.both)} of {len(set(match.found[0]) | set(match.found[1]))} are outliers of both",
                protect,
            )
        else:
            yield Advice(
                "transfer",
                "What protects one protects the other: their outliers stand at the same positions.",
                f"the same {len(match.both)} in both",
                protect[:1],
            )
        break
    if any(match.mapped and match.ours.n_layers == match.theirs.n_layers for match in pair.matches):
        text = "If one was made from the other, look at which sensitive values differ, value by value."
        yield Advice("check", text, "their streams have one shape", (command("compare", *models, "--values"),))
    missing = [
        model for model, data in zip(models, pair.sides, strict=True) if not data.damages and significant_dims(data)
    ]
    if missing:
        text = "Measure what switching them off does before relying on this."
        yield Advice(
            "trust", text, "weights alone do not show what breaks", tuple(command("report", m) for m in missing)
        )
    elif not any(significant_dims(data) for data in pair.sides):
        text = "Neither needs special care by these measurements."
        yield Advice(
            "nothing", text, "none stands out in either", tuple(command("detectors", model) for model in models)
        )
    elif not any(match.mapped for match in pair.matches):
        text = "Take each model's own dimensions; nothing of one can be read off the other."
        yield Advice("transfer", text, "the streams are not equally wide", protect)


# --- charts ----------------------------------------------------------------------------------------------------------

BINS = 400  # about one every two pixels
Names = tuple[str, str]


def profiles(
    ours: StackScan, theirs: StackScan, names: Names, named: tuple[Sequence[int], Sequence[int]], *, name: str
) -> Chart:
    """Mean |z| over layers of every dimension of `ours` upward and of `theirs` downward; `named` of each stand out.

    Of neighbours that share a pixel the larger is drawn.
    """
    stacks, sizes = (ours, theirs), tuple(mean_size(stack) for stack in (ours, theirs))
    width = max(stack.hidden_size for stack in stacks)
    sky = [
        row for i, (stack, size) in enumerate(zip(stacks, sizes, strict=True)) for row in _sky(stack, size, i, width)
    ]
    marks = []
    for i, (stack, size, dims) in enumerate(zip(stacks, sizes, named, strict=True)):
        place = {dim: column for column, dim in enumerate(stack.map_dims)}
        shown = [dim for dim in dims if dim in place]
        marks += [_point(dim, size[place[dim]], i, names[i]) for dim in shown]
    top = max([row["size"] for row in (*sky, *marks)], default=1.0)
    labels = {"labelExpr": "format(abs(datum.value), '~g')"}
    y = field("y", "mean |z| over layers", scale={"domain": [-1.12 * top, 1.12 * top], "nice": False}, axis=labels)
    x, what = draw.dim_axis(width), draw.columns(model="model:N", dim="dimension", size="mean |z|")
    sigma = [{"y": ours.threshold.levels[1]}, {"y": theirs.threshold.levels[0]}]
    corner: Spec = {"align": "left", "x": 6, "fontWeight": 700, "color": INK}
    layers: list[Spec] = [
        draw.rule(sky, x=x, y=y, y2={"datum": 0}, color=FAINT, strokeWidth=1.4),
        draw.level(0, y=y),
        draw.rule(sigma, y=y, color=MUTED, strokeDash=[3, 3]),
        draw.circle(marks, x=x, y=y, tooltip=what, color=ALARM, size=55, opacity=1),
        draw.mark("text", [{}], **corner, y=10, text=names[0]),
        draw.mark("text", [{}], **corner, y=310, text=names[1]),
    ]
    above = sorted({row["dim"] for row in marks})
    reading = (
        f"Up: {names[0]}; down: {names[1]}, on the same scale. A line is the dimension's |z|, averaged over layers"
        f"{' and over scale and bias' if ours.z_bias.size else ''}; dashes are the thresholds, dots the outliers. "
    )
    reading += "; ".join(
        f"{who}: " + (", ".join(f"{row['dim']} at {number(row['size'])}" for row in there) or "none")
        for who in dict.fromkeys(names)
        for there in [[row for row in marks if row["model"] == who]]
    )
    rows = sorted((*marks, *sky), key=lambda row: -row["size"])
    seen = dict.fromkeys((row["model"], row["dim"], row["size"]) for row in rows)
    return chart(
        name=name,
        title="How far every dimension stands out",
        reading=reading + ".",
        layers=layers + names_above(above[:24], width, x),
        height=320,
        columns=("model", "dimension", "mean |z|"),
        rows=seen,
    )


def _sky(stack: StackScan, size: np.ndarray, side: int, width: int) -> list[Spec]:
    """The largest of every bin of dimensions; every dimension where they are few."""
    dims = np.array(stack.map_dims)
    bins = dims * BINS // width if width > BINS else dims
    best: dict[int, int] = {}
    for column, place in enumerate(bins.tolist()):
        if place not in best or size[column] > size[best[place]]:
            best[place] = column
    return [_point(int(dims[column]), size[column], side, "") for column in best.values()]


def _point(dim: int, size: float, side: int, model: str) -> Spec:
    value = round_to(size, 3) or 0.0
    return {"dim": dim, "size": value, "y": -value if side else value, "model": model}


def by_layer(
    ours: StackScan, theirs: StackScan, names: Names, named: tuple[Sequence[int], Sequence[int]], *, name: str
) -> Chart:
    """z of the scale of the named dimensions of both by layer: solid `ours`, dashed `theirs`.

    Layers stand at their share of the depth where the two are not equally deep; dimensions are told apart by model
    where the two are not equally wide.
    """
    mapped, even = ours.hidden_size == theirs.hidden_size, ours.n_layers == theirs.n_layers
    values: list[Spec] = []
    for i, (stack, dims) in enumerate(zip((ours, theirs), named, strict=True)):
        z = drawable(stack.z_scale)
        for dim in dims:
            if dim in stack.map_dims:
                column = z[:, stack.map_dims.index(dim)]
                name_of = f"dim {dim}" if mapped else f"dim {dim} of {names[i]}"
                depth = 1 if even else max(stack.n_layers - 1, 1)
                values += [
                    {"label": name_of, "model": names[i], "layer": layer, "z": round_to(value, 3)}
                    | {"x": layer if even else round(layer / depth, 4)}
                    for layer, value in enumerate(column.tolist())
                ]
    most: dict[str, float] = {}
    for row in values:
        most[row["label"]] = max(most.get(row["label"], 0.0), abs(row["z"] or 0.0))
    labels = list(most) if len(most) <= COLOURED else sorted(most, key=lambda label: -most[label])
    inks = [INK] * (len(labels) - COLOURED)
    size = np.array([row["z"] or 0.0 for row in values])
    scale = symmetric(size) if values else symmetric(np.zeros(1))
    steps = {"tickMinStep": 1} if even else {}
    x = field("x", "layer" if even else "share of the depth", axis={"grid": False} | steps)
    y = scale.encoding("z", "z of the scale")
    some = {"values": labels[:COLOURED]} if inks else {}
    colour, shape = draw.both("label", labels, [*DIM_COLOURS, *inks], [*SHAPES, *("circle" for _ in inks)], **some)
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolStrokeColor": INK, "symbolSize": 300}
    dash = draw.by("model", dict(zip(names, ([1, 0], [5, 3]), strict=True)), **stroke)
    what = draw.columns(model="model:N", label="dimension:N", layer="layer", z="z")
    beyond = {label: label.removeprefix("dim ") for label in labels[COLOURED:][:MOST]}
    layers: list[Spec] = [
        draw.level(0, y=y, color=BAND),
        draw.line(values, x=x, y=y, color=colour, strokeDash=dash, strokeWidth=1.6),
        draw.points(values, x=x, y=y, color=colour, shape=shape, tooltip=what, size=34),
        *words_at_ends(values, beyond, x, y, ("label", "model")),
    ]
    strongest = {
        (label, model): max((row["z"] for row in values if (row["label"], row["model"]) == (label, model)), key=abs)
        for label, model in dict.fromkeys((row["label"], row["model"]) for row in values)
    }
    said = "; ".join(f"{label} in {model}: {number(z)}" for (label, model), z in strongest.items())
    return chart(
        name=name,
        title="The outliers of either, layer by layer",
        reading=f"Solid: {names[0]}; dashed: {names[1]}. The strongest z of each: {said or 'none is drawn'}.",
        layers=layers,
        height=280,
        **what.table(values),
    )


def changes(damages: tuple[Ablation, Ablation], names: Names, *, name: str) -> Chart:
    """What switching its chosen dimensions off does to each model, beside random sets; one scale."""
    rows = []
    for damage, who in zip(damages, names, strict=True):
        rows.append(_change(damage.chosen, f"{who}: {few(damage.dims, 3)}", 0.5, chosen=True))
        sets = [one for one in damage.controls if one.family == "random"]
        rows += [_change(one, f"{who}: {len(sets)} random", draw.spread(i)) for i, one in enumerate(sets)]
    drawn = [row for row in rows if row["change"] is not None]
    ends = [row[key] for row in drawn if row["chosen"] for key in ("low", "high") if row[key] is not None]
    scale = symmetric(np.array([row["change"] for row in drawn] + ends + [0.0]), factor=30.0)
    tasks = {damage.about.measured for damage in damages}
    what = tasks.pop() if len(tasks) == 1 else "loss" if all("loss" in task for task in tasks) else "task"
    families = list(dict.fromkeys(str(row["family"]) for row in rows))
    x = scale.encoding("change", [f"change of the {what}", damages[0].about.of_change])
    y = draw.strips("family", families, 230)
    columns = draw.columns(family="off:N", dims="dimensions:N", change="change", **draw.ENDS)
    chosen, others = ([row for row in drawn if row["chosen"] is flag] for flag in (True, False))
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=[3, 3]),
        null_dots(others, x, y, tooltip=columns[:3], size=42),
        *interval_dots(chosen, x, y, columns, yOffset=draw.JITTER),
    ]
    ends = [damage.chosen.change for damage in damages]
    said = "; ".join(
        f"{who}: {number(one.value)} ({number(one.low)} to {number(one.high)})"
        for one, who in zip(ends, names, strict=True)
    )
    return chart(
        name=name,
        title=f"{begun(what)} with the chosen dimensions of each model off",
        reading=f"Diamonds are the chosen sets with 95 % intervals, dots random sets of the same size. Changes: {said}.",
        layers=layers,
        height=60 + 50 * len(families),
        **columns.table(rows),
    )


def _change(condition: Measurement, family: str, spread: float, *, chosen: bool = False) -> Spec:
    words = {"family": family, "dims": condition.dims, "spread": round(spread, 3), "chosen": chosen}
    change = condition.change
    return words | rounded(change=change.value) | bar(change.low, change.high)
