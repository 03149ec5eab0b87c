"""What to do about what a report found, by rule from its numbers: `advice(data)`, in steps with the commands to run."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.detection.observe.result import ActivationOutlier, StackObservation
from outlierlens.experiments.quantization.result import Quantized
from outlierlens.experiments.sweep.result import Effect, Sweep
from outlierlens.report.result import ReportData
from outlierlens.report.words import SMALL, largest, significant_dims, verdict
from outlierlens.view.charts.base import place
from outlierlens.view.section import percent
from outlierlens.view.words import number, these


@dataclass(frozen=True)
class Advice:
    """One thing to do: for whom ("prune", "quantize", "compare", "trust"), what, and the number it rests on.

    `commands` are the command lines that do it, or look further.
    """

    topic: str
    text: str
    because: str
    commands: tuple[str, ...] = ()


def advice(data: ReportData) -> tuple[Advice, ...]:
    """What to do about it, by rule; never empty."""
    steps = [*_prune(data), *_quantize(data), *_compare(data)]
    if not steps:
        why = "none stands out" if not significant_dims(data) else "no damage beyond chance was shown"
        ask = _command(data, "detectors")  # fourteen definitions instead of one
        steps = [Advice("nothing", "No dimension needs special care by these measurements.", why, (ask,))]
    off = data.damages or data.sweeps
    if data.observation is None or not off:
        missing = [name for name, there in (("observe", data.observation), ("disable", off)) if not there]
        text = f"Run {' and '.join(missing)} before relying on this: the weights alone do not show what breaks."
        steps.append(Advice("trust", text, f"not measured here: {' and '.join(missing)}", (_command(data, "report"),)))
    return tuple(steps)


def _command(data: ReportData, name: str, *words: str, stream: str = "", dims: Sequence[int] = ()) -> str:
    """A command line about the report's model, quoted for a shell; `stream` is named where there are several."""
    several = stream and len({stack.stack for stack in data.scan.stacks}) > 1
    parts = ["outlierlens", name, data.provenance.model, *words]
    parts += ["--dims", ",".join(map(str, dims))] if dims else []
    return shlex.join([*parts, "--stack", stream] if several else parts)


def _protect(data: ReportData, stream: str, dims: Sequence[int]) -> str:
    return _command(data, "protect", "--for", "torch-pruning", stream=stream, dims=dims)


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
        found, dims = verdict(damage), sorted(damage.chosen.dims)
        if found == "damaging" and damage.chosen.change >= SMALL:
            sites = sorted({s.site for s in data.scan.stacks if s.stack == damage.stack})
            yield Advice(
                "prune",
                f"When you prune or edit, leave {these(dims)} alone, in {' and '.join(sites)} of every layer: "
                f"{damage.chosen.n_parameters:,} values carry this damage.",
                f"{damage.mode}: {damage.chosen.change:+.3g} {damage.of_change}",
                (_protect(data, damage.stack, dims),),
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
        change = max(d.chosen.change for d in data.damages)
        yield Advice(
            "prune",
            "The dimensions found need no protection on this task: they stand out, but the model does without them.",
            f"{change:+.3g} {data.damages[0].of_change}, no more than random sets",
        )


def heavy(sweep: Sweep) -> tuple[Effect, ...]:
    """Of each dimension whose change alone is `SMALL` or more with its whole interval the largest effect, largest first."""
    best: dict[int, Effect] = {}
    for effect in sorted(sweep.singles(), key=lambda e: (-np.nan_to_num(e.change, nan=np.inf), e.dims)):
        if effect.low >= SMALL or effect.change == math.inf or (math.isnan(effect.change) and effect.n_texts):
            best.setdefault(effect.dims[0], effect)
    return tuple(best.values())


def _quantize(data: ReportData) -> Iterator[Advice]:
    for found in data.joined.of(Quantized):  # measured, which no rule about sizes can be
        worth = any(one.says == "keep" for one in found.roundings)
        kept = _command(data, "protect", "--for", "llm-compressor", stream=found.stack, dims=found.dims)
        yield Advice(
            "quantize",
            f"{found.verdict[:1].upper()}{found.verdict[1:]}.",
            f"measured on {found.n_texts:,} texts of {found.data} ({found.n_tokens:,} tokens)",
            (kept,) if worth else (),
        )
    if data.joined.of(Quantized):
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
                f"Give 8-bit activations a scale for each token, and measure what one scale a tensor costs and how much of it "
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
                (_command(data, "quant", stream=stack.stack, dims=dims),),
            )


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


def _repair(data: ReportData, layer: str, dim: int) -> tuple[str, ...]:
    """An embedder of that layer with the dimension clipped; of one stack alone can it be written."""
    if len({stack.stack for stack in data.scan.stacks}) > 1:
        return ()
    given = ("--layer", layer, "--fix", "clip", "--clip", str(dim), "-o", "embedder")
    return (_command(data, "export-embedder", *given),)


def length_share(stack: StackObservation) -> np.ndarray | None:
    """Share [layer, column] in [0, 1] of E|h|² that a dimension holds; None where not all dimensions were kept."""
    if len(stack.dims) < stack.hidden_size:
        return None
    statistics = stack.view("all")
    square = np.square(np.asarray(statistics.mean, dtype=float)) + np.square(np.asarray(statistics.std, dtype=float))
    total = square.sum(axis=1, keepdims=True)
    return np.divide(square, total, out=np.zeros_like(square), where=total > 0)
