"""What the report says of rounding to few bits: `quantization_sections(results)`, one section a result."""

import math

import numpy as np

from outlierlens.charts.quantization import quantization_errors, quantization_losses
from outlierlens.interval_words import interval_text
from outlierlens.quantized import Quantized, Rounding, named, signed
from outlierlens.report.phrases import percent
from outlierlens.report.sections import Rows, Section

HEADS = (
    *("weights / inputs", "all rounded", "95 % from", "to", "noise", "outliers kept", "95 % from", "to", "noise"),
    *("random kept", "rank p", "mixed", "smoothed", "says"),
)
ERRORS = (
    *("weights / inputs", "weights", "outliers kept", "inputs", "outliers kept"),
    *("last block", "outliers kept", "random kept", "in the outliers"),
)
SAYS = {
    "free": "no cost that can be told",
    "keep": "keep the outliers",
    "no use": "outliers are not what costs",
    "unclear": "no interval",
    "not tried": "no random draws beside",
}


def quantization_sections(results: tuple[Quantized, ...]) -> tuple[Section, ...]:
    """The sections of the page, numbered from the second on."""
    return tuple(_section(found, number) for number, found in enumerate(results))


def _section(found: Quantized, number: int) -> Section:
    name = "quantization" + (f"-{number + 1}" if number else "")
    charts = (
        quantization_losses(found, name=f"{name}-losses"),
        quantization_errors(found, name=f"{name}-errors"),
    )
    note = (
        f"Change of the {found.task} ({found.unit}) of {found.provenance.model} on {found.n_texts:,} texts of {found.data}; "
        f"paired 95 % intervals over texts. {found.noise_note} "
        f"Kept: {named(found.dims)} ({found.dims_source}), or as many random dimensions, in "
        f"high precision where they are read and written."
    )
    if found.threshold is not None:
        note += f" Mixed: inputs with |x| of at least {found.threshold:g} kept."
    if found.alpha is not None:
        note += f" Smoothed: SmoothQuant, alpha {found.alpha:g}."
    rows = Rows("Cost by scheme", HEADS, tuple(_losses(one) for one in found.roundings), note)
    where = (
        f"Σ (rounded − x)² / Σ x²: median over linears of their weights and of what they read, and of the last block's output "
        f"on {found.n_error_texts:,} texts."
    )
    errors = Rows("Relative squared error", ERRORS, tuple(_errors(one) for one in found.roundings), where)
    return Section(name, "Rounded to few bits", tuple(_sentences(found)), charts, (rows, errors))


def _sentences(found: Quantized) -> list[str]:
    verdict = found.verdict
    said = [f"{verdict[:1].upper()}{verdict[1:]}."]
    for one in found.roundings:
        if one.says == "keep" and math.isfinite(one.share_regained):
            ends = interval_text(one.regained.low, one.regained.high, "+.3g")
            noise = f", noise {one.regained.noise:.2g}" if math.isfinite(one.regained.noise) else ""
            said.append(
                f"{one.scheme}: keeping {named(found.dims)} ({percent(one.kept.kept)} of the weights) gives back "
                f"{percent(one.share_regained)} of the cost ({signed(one.regained.value)}, 95 % interval {ends}{noise})."
            )
    return said


def _losses(one: Rounding) -> tuple[object, ...]:
    plain, kept = one.rounded, one.kept
    return (
        one.scheme, *_known(plain.change, plain.change_low, plain.change_high, plain.noise),
        *_known(kept.change, kept.change_low, kept.change_high, kept.noise, one.random_change), one.p,
        one.mixed.change if one.mixed else None, one.smoothed.change if one.smoothed else None, SAYS[one.says],
    )  # fmt: skip


def _errors(one: Rounding) -> tuple[object, ...]:
    errors = one.errors

    def middle(values: list[float]) -> float | None:
        known = [value for value in values if math.isfinite(value)]
        return float(np.median(known)) if known else None

    def last(values: np.ndarray) -> float | None:
        return float(values[-1]) if len(values) else None

    parts = errors.linears
    return (
        one.scheme, middle([part.weight for part in parts]), middle([part.weight_kept for part in parts]),
        middle([part.inputs for part in parts]), middle([part.inputs_kept for part in parts]),
        last(errors.output), last(errors.output_kept), last(errors.output_random), percent(float(errors.share[-1])),
    )  # fmt: skip


def _known(*values: float) -> tuple[float | None, ...]:
    return tuple(value if math.isfinite(value) else None for value in values)
