"""What is said of rounding to few bits, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

import numpy as np

from outlierlens.experiments.quantization.charts import quantization_errors, quantization_losses
from outlierlens.experiments.quantization.result import Difference, Quantized, Rounding, Setting, SmoothScale, signed
from outlierlens.statistics.words import interval_text
from outlierlens.view.section import Cell, Change, Interval, P, Rows, Section, Share, percent
from outlierlens.view.words import these

LOSSES = (
    *("weights / inputs", "all rounded", "95 %", "noise", "outliers kept", "95 %", "noise"),
    *("random kept", "rank p", "mixed", "kept by it", "smoothed", "says"),
)
REGAINED = ("weights / inputs", "than all rounded", "95 %", "noise", "than random kept", "95 %", "noise")
ERRORS = (
    *("weights / inputs", "weights", "outliers kept", "inputs", "outliers kept"),
    *("last block", "outliers kept", "random kept", "in the outliers", "due to them"),
)
LAYERS = ("layer", "output", "outliers kept", "in the outliers", "due to them")
SAYS = {
    "free": "no cost that can be told",
    "keep": "keep the outliers",
    "no use": "outliers are not what costs",
    "unclear": "no interval",
    "not tried": "no random draws beside",
}


def sections(found: Quantized, *, verbose: bool = False) -> Iterator[Section]:
    """The cost of every scheme and where its error lies; with `verbose` layer by layer."""
    tables = [
        Rows("Cost by scheme", LOSSES, tuple(map(_losses, found.roundings)), _what_is_compared(found)),
        Rows(f"Better with outliers kept, {found.unit}", REGAINED, tuple(map(_regained, found.roundings))),
        Rows("Relative squared error", ERRORS, tuple(map(_errors, found.roundings)), _what_errors_are(found)),
    ]
    if verbose:
        tables += [Rows(one.scheme, LAYERS, _layers(found, one)) for one in found.roundings]
    charts = (quantization_losses(found), quantization_errors(found))
    yield Section("quantization", "Rounded to few bits", tuple(_sentences(found)), charts, tuple(tables))


def _sentences(found: Quantized) -> Iterator[str]:
    yield f"{found.verdict[:1].upper()}{found.verdict[1:]}."
    yield (
        f"{found.provenance.model} on {found.data}: {found.task} of {found.n_texts:,} texts ({found.n_tokens:,} tokens), "
        f"intact {found.intact.value:z.4f} {found.unit}; outliers: {these(found.dims)} ({found.dims_source})."
    )
    for one in found.roundings:
        if one.says == "keep" and math.isfinite(one.share_regained):
            ends = interval_text(one.regained.low, one.regained.high, "+.3g")
            noise = f", noise {one.regained.noise:.2g}" if math.isfinite(one.regained.noise) else ""
            yield (
                f"{one.scheme}: keeping {these(found.dims)} ({percent(one.kept.kept)} of the weights) gives back "
                f"{percent(one.share_regained)} of the cost ({signed(one.regained.value)}, 95 % interval {ends}{noise})."
            )
    if found.smoothing and found.alpha is not None:
        said = "; ".join(_scale(found, place, dim) for place, dim in enumerate(found.dims)) or "no outliers"
        yield f"SmoothQuant scales (alpha {found.alpha:g}), the largest beside the median: {said}."
    for one in found.roundings:
        tried = {
            f"keeping {these(found.dims)}": one.kept,
            "keeping every large input": one.mixed,
            "smoothing": one.smoothed,
        }
        changes = {name: setting.change for name, setting in tried.items() if setting is not None}
        if one.says in ("keep", "no use") and len(changes) > 1:
            best = min(changes, key=lambda name: np.nan_to_num(changes[name], nan=np.inf))
            yield f"{one.scheme}: of what was tried {best} leaves least: {signed(changes[best])}."
    if any(one.says in ("keep", "no use") for one in found.roundings):
        yield "`plan` measures what helps most per byte: neurons, columns and whole linears beside dimensions of the stream."


def _scale(found: Quantized, place: int, dim: int) -> str:
    top: SmoothScale = max(found.smoothing, key=lambda one: one.scales[place] / one.median)
    return (
        f"{dim}: {top.scales[place]:.3g} in layer {top.layer} ({', '.join(top.parts)}), rank {top.ranks[place]} of "
        f"{found.hidden_size:,}, median {top.median:.3g}"
    )


def _what_is_compared(found: Quantized) -> str:
    note = (
        f"Change of the {found.task} ({found.unit}) of {found.provenance.model} on {found.n_texts:,} texts of {found.data}; "
        f"paired 95 % intervals over texts. {found.noise_note} Kept: {these(found.dims)} ({found.dims_source}), or as many "
        "random dimensions, in high precision where they are read and written."
    )
    if found.threshold is not None:
        note += f" Mixed: inputs with |x| of at least {found.threshold:g} kept."
    if found.alpha is not None:
        note += f" Smoothed: SmoothQuant, alpha {found.alpha:g}."
    return note


def _what_errors_are(found: Quantized) -> str:
    return (
        "Σ (rounded − x)² / Σ x²: median over linears of their weights and of what they read, and of the last block's output "
        f"on {found.n_error_texts:,} texts."
    )


def _losses(one: Rounding) -> tuple[Cell, ...]:
    mixed = (Change(one.mixed.change), Share(one.mixed.kept)) if one.mixed else (None, None)
    smoothed = Change(one.smoothed.change) if one.smoothed else None
    random = Change(one.random_change) if one.random else None
    p = None if one.p is None else P(one.p)
    return (one.scheme, *_setting(one.rounded), *_setting(one.kept), random, p, *mixed, smoothed, SAYS[one.says])


def _setting(one: Setting | None) -> tuple[Cell, ...]:
    return (Change(one.change), Interval(one.change_low, one.change_high), one.noise) if one else (None, None, None)


def _regained(one: Rounding) -> tuple[Cell, ...]:
    return (one.scheme, *_difference(one.regained), *_difference(one.beyond_random))


def _difference(one: Difference | None) -> tuple[Cell, ...]:
    return (Change(one.value), Interval(one.low, one.high), one.noise) if one else (None, None, None)


def _errors(one: Rounding) -> tuple[Cell, ...]:
    errors, parts = one.errors, one.errors.linears
    return (
        one.scheme,
        _median([part.weight for part in parts]),
        _median([part.weight_kept for part in parts]),
        _median([part.inputs for part in parts]),
        _median([part.inputs_kept for part in parts]),
        *(float(of[-1]) if len(of) else None for of in (errors.output, errors.output_kept, errors.output_random)),
        Share(errors.share[-1]),
        Share(errors.due[-1]),
    )


def _median(values: list[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return float(np.median(known)) if known else None


def _layers(found: Quantized, one: Rounding) -> tuple[tuple[Cell, ...], ...]:
    errors = one.errors
    columns = zip(found.layers, errors.output, errors.output_kept, errors.share, errors.due, strict=True)
    return tuple((layer, float(out), float(kept), Share(share), Share(due)) for layer, out, kept, share, due in columns)
