"""What to do about what a report found, by rule from its numbers: `advice(data)`, in steps with the commands to run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.analyses.plan import PrecisionPlan
from outlierlens.analyses.quantize import Quantized
from outlierlens.analyses.quantize_settings import MIXED, ROUNDED
from outlierlens.analyses.range import Ranges
from outlierlens.analyses.trace import Trace
from outlierlens.architectures import ARCHITECTURES
from outlierlens.detection.observe.result import ActivationOutlier, StackObservation
from outlierlens.errors import command, operand, option
from outlierlens.experiments.repair.options import RepairOptions
from outlierlens.experiments.sweep.result import Effect, Sweep
from outlierlens.report.result import ReportData
from outlierlens.report.words import SMALL, largest, significant_dims, verdict
from outlierlens.view.charts.base import place
from outlierlens.view.section import number, percent, these

# What `repair` scales as a whole; and each last linear with one whose neurons multiply what it reads.
STREAM = ("stream", "stream after attention", "attention output", "MLP output")
HEADS = ("q", "k", "v", "attention mix")  # likewise, dimension by dimension, on any stream
NEURONS = {
    (last, first.partition("[")[0].removesuffix("()"))
    for family in ARCHITECTURES.values()
    if not callable(family.stacks)
    for stack in family.stacks
    for last, first in stack.neurons.items()
}


@dataclass(frozen=True)
class Advice:
    """One thing to do, and the number it rests on.

    `topic` is for whom: "prune", "quantize", "range", "compare", "explain", "trust".
    `commands` are the command lines that do it, or look further.
    """

    topic: str
    text: str
    because: str
    commands: tuple[str, ...] = ()


def advice(data: ReportData) -> tuple[Advice, ...]:
    """What to do about it, by rule; never empty."""
    steps = [*_prune(data), *_quantize(data), *_range(data), *_compare(data), *_explain(data)]
    if not steps:
        why = "none stands out" if not significant_dims(data) else "no damage beyond chance was shown"
        ask = _command(data, "detectors")  # fourteen definitions instead of one
        steps = [Advice("nothing", "No dimension needs special care by these measurements.", why, (ask,))]
    off = data.damages or data.sweeps
    if data.observation is None or not off:
        missing = [name for name, there in (("observe", data.observation), ("ablate", off)) if not there]
        text = f"Run {' and '.join(missing)} before relying on this: the weights alone do not show what breaks."
        steps.append(Advice("trust", text, f"not measured here: {' and '.join(missing)}", (_command(data, "report"),)))
    return tuple(steps)


def _command(data: ReportData, name: str, *words: str, stream: str = "", dims: Sequence[int] = ()) -> str:
    """A command line about the report's model, quoted for a shell; `stream` is named where there are several."""
    several = stream and len({stack.stack for stack in data.scan.stacks}) > 1
    parts = [*name.split(), operand(data.provenance.model), *words]
    parts += ["--dims", ",".join(map(str, dims))] if dims else []
    return command(*parts, *(option("--stack", stream) if several else []))


def _protect(data: ReportData, stream: str, dims: Sequence[int]) -> str:
    return _command(data, "prune protect", "--for", "torch-pruning", stream=stream, dims=dims)


def _prune(data: ReportData) -> Iterator[Advice]:
    swept = {(sweep.stack, dim) for sweep in data.sweeps for effect in sweep.effects for dim in effect.dims}
    found_dims = sorted(significant_dims(data) - swept)
    if not data.damages and found_dims:
        streams = {stream for stream, _ in found_dims}
        named = [(these([d for s, d in found_dims if s == stream]), stream) for stream in sorted(streams)]
        which = " and ".join(dims if len(streams) == 1 else f"{dims} of the {stream}" for dims, stream in named)
        yield Advice(
            "prune",
            f"Until it is measured what they do, leave {which} alone when you prune or edit.",
            "they stand out in the same place in many layers",
            tuple(_protect(data, stream, [d for s, d in found_dims if s == stream]) for stream in sorted(streams)),
        )
    for damage in data.damages:
        found, dims = verdict(damage), sorted(damage.dims)
        if found == "damaging" and damage.chosen.change.value >= SMALL:
            sites = sorted({s.site for s in data.scan.stacks if s.stack == damage.about.stack})
            yield Advice(
                "prune",
                f"When you prune or edit, leave {these(dims)} alone, in {' and '.join(sites)} of every layer: "
                f"{damage.chosen.n_set or 0:,} values carry this damage.",
                f"{damage.chosen.mode}: {damage.chosen.change.value:+.3g} {damage.about.of_change}",
                (_protect(data, damage.about.stack, dims),),
            )
            return
    for sweep in data.sweeps:
        costly = heavy(sweep)
        if costly:
            dims = sorted(effect.dims[0] for effect in costly)
            yield Advice(
                "prune",
                f"When you prune or edit, leave {these(dims)} alone: the model pays for each of them by itself.",
                f"{costly[0].label} off: {costly[0].change:+.3g} {sweep.of_change}; "
                f"the least of these, {costly[-1].label}: {costly[-1].change:+.3g}",
                (_protect(data, sweep.stack, dims),),
            )
            return
    if data.damages and significant_dims(data) and all(verdict(d) == "harmless" for d in data.damages):
        change = max(d.chosen.change.value for d in data.damages)
        yield Advice(
            "prune",
            "The dimensions found need no protection on this task: they stand out, but the model does without them.",
            f"{change:+.3g} {data.damages[0].about.of_change}, no more than random sets",
        )


def heavy(sweep: Sweep) -> tuple[Effect, ...]:
    """Of each dimension whose change alone is `SMALL` or more with its whole interval the largest effect, largest first."""
    best: dict[int, Effect] = {}
    for effect in sorted(sweep.singles(), key=lambda e: (-np.nan_to_num(e.change, nan=np.inf), e.dims)):
        if effect.low >= SMALL or effect.change == math.inf or (math.isnan(effect.change) and effect.n_texts):
            best.setdefault(effect.dims[0], effect)
    return tuple(best.values())


def _quantize(data: ReportData) -> Iterator[Advice]:
    plans = data.joined.of(PrecisionPlan)
    for plan in sorted(plans, key=lambda one: -one.regained.value if one.steps else 0.0):
        yield _planned(data, plan)
    for found in data.joined.of(Quantized):  # measured, which no rule about sizes can be
        says = {*found.says.values()}
        commands = []
        if not plans and says & {"keep", "no use"}:  # what gives back most, in the stream or not, only a plan measures
            commands.append(_command(data, "plan", "--scheme", found.worst))
        if not plans and "keep" in says:
            kept = ("prune protect", "--for", "llm-compressor")
            commands.append(_command(data, *kept, stream=found.about.stack, dims=found.dims))
        yield Advice(
            "quantize",
            f"{found.verdict[:1].upper()}{found.verdict[1:]}.",
            f"measured on {found.about.n_texts:,} texts of {found.about.data} ({found.about.n_tokens:,} tokens)",
            tuple(commands),
        )
        yield from _inside(data, found)
    if data.joined.of(Quantized) or plans:
        return
    ranges = [found for found in data.joined.of(Ranges) if found.tensors]
    for seen in ranges:
        yield from _coarse(data, seen)
    if ranges:
        return
    for stack in data.observation.stacks if data.observation else ():
        outliers: tuple[ActivationOutlier, ...] = stack.outliers
        dims = sorted({o.dim for o in outliers if o.rule in ("massive", "llm.int8")})
        peak = largest(stack)
        if dims and peak is not None:
            step, median = peak.value / 127, peak.value / peak.ratio
            held = these(dims)
            # A step above the median leaves half of the entries no code but 0. What that costs, size does not say, nor what
            # keeping the dimensions gives back: of SmolLM2-135M's loss a third.
            coarse = (
                f"Give 8-bit activations one scale per token. Measure what one scale per tensor costs, and how much of it "
                f"comes back with {held} in 16 bits."
            )
            fine = (
                f"Measure what 8-bit activations cost before you keep {held} in 16 bits: one step is finer than half of "
                "all entries."
            )
            yield Advice(
                "quantize",
                coarse if step >= median else fine,
                f"one step of an 8-bit scale over {place(peak.layer)} is {number(step)}, the median |h| there {number(median)}",
                # What lies inside the MLPs may be coarser than the stream: `range` says so.
                (_command(data, "range"), _command(data, "quantize", stream=stack.stack, dims=dims)),
            )


def _planned(data: ReportData, found: PrecisionPlan) -> Advice:
    """What was measured to give back most, or that nothing does."""
    said = f"{found.verdict}."
    because = f"measured on {found.n_judging:,} texts of {found.about.data} that chose nothing"
    if not found.steps:
        return Advice("quantize", said, because)
    because += f"; {percent(found.share_regained.value)} of the cost comes back, {found.most_per_byte}"
    return Advice("quantize", said, because, (_fitted(data, "int8"),) if found.scheme.endswith("/int8-tensor") else ())


def _inside(data: ReportData, found: Quantized) -> Iterator[Advice]:
    """Where the costliest scheme errs most, if no dimension of the stream is a column there."""
    worst = found.worst
    known = [one for one in found.linears if one.scheme == worst and math.isfinite(one.inputs)]
    if found.says[worst] not in ("keep", "no use", "not tried") or not known:
        return
    top = max(known, key=lambda one: one.inputs)
    read = max((one.inputs for one in known if one.reads), default=0.0)
    if top.inputs <= read:
        return
    parts = {one.part for one in known}
    paired = (
        top.writes and any((top.part, one) in NEURONS for one in parts) and worst.partition("/")[2].startswith("int8")
    )
    change = {one.setting: one.change.value for one in found.settings if one.scheme == worst}
    because = f"{worst}: {change[ROUNDED]:+.3g} {found.about.unit}"
    if MIXED in change:
        because += f"; with every large input kept, wherever it is: {change[MIXED]:+.3g}"
    yield Advice(
        "quantize",
        f"Look inside the blocks first: rounded by {worst}, the inputs of {top.part} in "
        f"{place(str(top.layer))} lose {percent(top.inputs)} of their square, more than all else; what "
        f"reads the stream loses {percent(read)} at most. No dimension of the stream lies there, so keeping "
        f"{these(found.dims)} does not mend it.",
        because,
        (_fitted(data, "int8"),) if paired else (),
    )


def _coarse(data: ReportData, found: Ranges) -> Iterator[Advice]:
    """Of which tensor one int8 scale rounds more than half of the values to 0, if of any."""
    known = [row for row in found.stored if math.isfinite(row.coarseness)]
    top = max(known, key=lambda row: row.coarseness, default=None)
    if top is None or top.coarseness <= 2:
        return
    inner = top.kind in ("gate/up", "MLP inner")
    why = ", where no dimension of the stream lies: keeping dimensions in 16 bits does not help there" if inner else ""
    fitted = (_fitted(data, "int8"),) if top.kind == "MLP inner" and _has_pairs(found) else ()
    yield Advice(
        "quantize",
        f"Give 8-bit activations a scale for each token, or measure what one scale per tensor costs: it is coarsest for the "
        f"{top.kind} of layer {top.layer}{why}.",
        f"one step there is {number(top.coarseness)} times the median |x|, over {found.about.n_texts:,} {found.about.inputs}",
        (_command(data, "quantize"), *fitted),
    )


def _range(data: ReportData) -> Iterator[Advice]:
    """Whether fp16 holds the model, where that was measured."""
    for found in data.joined.of(Ranges):
        if not found.tensors:
            continue
        top = max(found.stored, key=lambda row: row.largest)
        room, margin = top.fp16, RepairOptions(fit="fp16").margin
        said = (
            f"overflows by {number(1 / room) if room else '∞'} times"
            if room < 1
            else f"has {number(room)} times headroom"
        )
        size = f"{number(top.largest)}, {top.kind} of layer {top.layer}"
        because = f"the largest |x| is {size}, over {found.about.n_texts:,} {found.about.inputs}"
        if room >= margin:
            yield Advice("range", f"Run it in fp16 as it is: fp16 {said}.", because)
            continue
        fixed = any(one.stack == top.stack and one.norm_site == "stream" for one in data.scan.stacks)
        mends = (top.kind in STREAM and not fixed) or top.kind in HEADS
        mends |= top.kind == "MLP inner" and _has_pairs(found)
        yield Advice(
            "range",
            f"Keep it in bfloat16 or float32: fp16 {said}."
            + (" Or write a copy with room, whose outputs in float32 are the same." if mends else ""),
            because,
            (_fitted(data, "fp16"),) if mends else (),
        )


def _has_pairs(found: Ranges) -> bool:
    """Whether a linear was seen whose neurons multiply what the last linear reads: factors pass from one to the other."""
    modules = [row.module for row in found.tensors if row.kind == "gate/up"]
    return any(module.endswith(f".{first}") for module in modules for _, first in NEURONS)


def _fitted(data: ReportData, form: str) -> str:
    name = data.model.rpartition("/")[2] or "model"
    return _command(data, "repair", "--fit", form, "-o", operand(f"{name}-{form}"))


def _compare(data: ReportData) -> Iterator[Advice]:
    for stack in data.observation.stacks if data.observation else ():
        share = length_share(stack)
        if share is None:
            continue
        row = int(share.max(axis=1).argmax())
        column = int(share[row].argmax())
        if share[row, column] >= 0.1:
            dim, layer = stack.dims[column], place(stack.layers[row])
            yield Advice(
                "compare",
                "Before you compare vectors by cosine or distance, try to standardise each dimension or to leave "
                f"{these([dim])} out, and measure whether it helps (outlierlens sts).",
                f"dimension {dim} alone holds {percent(share[row, column])} of the mean squared length after {layer}",
                _repair(data, stack.layers[row], dim),
            )


def _explain(data: ReportData) -> Iterator[Advice]:
    """Who writes the largest activation, where nothing says it yet."""
    traced = {(found.about.stack, found.dim) for found in data.joined.of(Trace)}
    for stack in data.observation.stacks if data.observation else ():
        peak = largest(stack)
        massive = {one.dim for one in stack.outliers if one.rule == "massive"}
        if peak is not None and peak.dim in massive and (stack.stack, peak.dim) not in traced:
            yield Advice(
                "explain",
                f"To say where dimension {peak.dim} comes from, name the weights that write it and the heads that read it.",
                f"it reaches {number(peak.value)} after {place(peak.layer)}",
                (_command(data, "trace", "--dim", str(peak.dim), stream=stack.stack),),
            )


def _repair(data: ReportData, layer: str, dim: int) -> tuple[str, ...]:
    """An embedder of that layer with the dimension clipped; of one stack alone can it be written."""
    if len({stack.stack for stack in data.scan.stacks}) > 1:
        return ()
    given = (*option("--layer", layer), "--fix", "clip", "--clip", str(dim), "-o", "embedder")
    return (_command(data, "export-embedder", *given),)


def length_share(stack: StackObservation) -> np.ndarray | None:
    """Share [layer, column] in [0, 1] of E|h|² that a dimension holds; None where not all dimensions were kept."""
    if len(stack.dims) < stack.hidden_size:
        return None
    statistics = stack.view("all")
    square = np.square(np.asarray(statistics.mean, dtype=float)) + np.square(np.asarray(statistics.std, dtype=float))
    total = square.sum(axis=1, keepdims=True)
    return np.divide(square, total, out=np.zeros_like(square), where=total > 0)
