"""Two models or checkpoints against each other, from the results of their reports: `paired(ours, theirs)`.

    pair = paired(load("runs/base/results.json"), load("runs/tuned/results.json"))
    pair.matches[0].both, pair.matches[0].only_ours     # dimensions of the stream by who has them
    pair_sentences(pair), pair_advice(pair)

Dimensions are matched by their position in the stream, which says something only where the streams are equally wide;
models of different width are shown side by side and nothing of one is called the same as anything of the other.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from outlierlens.analyses.ablate import Ablation
from outlierlens.detection.rules import Outlier
from outlierlens.detection.scan.charts import mean_size
from outlierlens.detection.scan.result import StackScan
from outlierlens.errors import command, operand
from outlierlens.report.advice import Advice
from outlierlens.report.result import ReportData
from outlierlens.report.words import counted, random_control, sets_of, significant_dims, verdict
from outlierlens.view.words import TASKS, factor, few, listed

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
