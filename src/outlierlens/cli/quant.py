"""`quant`: what rounding to few bits costs, and whether keeping the outliers gives it back."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, resumable, say
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text

if TYPE_CHECKING:
    from outlierlens.data import Texts
    from outlierlens.models import LoadOptions
    from outlierlens.quantized import Quantized, Rounding, Setting

HEADS = (
    *("scheme", "rounded", "95 %", "noise", "outliers kept", "95 %", "noise"),
    *("random kept", "p", "mixed", "smoothed", "says"),
)
REGAINED = ("scheme", "than all rounded", "95 %", "noise", "than random kept", "95 %", "noise")
ERRORS = (
    "scheme",
    "weights",
    "kept",
    "inputs",
    "kept",
    "output",
    "kept",
    "random kept",
    "in the outliers",
    "due to them",
)
SCHEMES = (
    "WEIGHTS/INPUTS by commas: int8, int4, e4m3, e5m2 or none, each per -tensor, -channel (weights), -token (inputs), "
    "-group32 (weights), integers also -asym. Default: five common ones."
)


@common.loads_a_model
def quant(
    model: common.Model,
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Use the first N texts.")] = 64,
    schemes: Annotated[str | None, typer.Option("--schemes", help=SCHEMES)] = None,
    dims: Annotated[
        str | None, typer.Option("--dims", help="308,381: keep these; else what weights or activations name.")
    ] = None,
    stack: Annotated[str | None, typer.Option("--stack", help="Which stream, where there are several.")] = None,
    n_random: Annotated[int, typer.Option("--random", min=0, help="Draws of as many random dimensions, kept.")] = 5,
    threshold: Annotated[
        str, typer.Option("--threshold", help="LLM.int8: keep inputs with |x| of at least this; none leaves it out.")
    ] = "6.0",
    smooth: Annotated[str, typer.Option("--smooth", help="SmoothQuant's alpha in [0, 1]; none leaves it out.")] = "0.5",
    calibrate: Annotated[
        int, typer.Option("--calibrate", min=0, help="SmoothQuant rests on the N texts after the measured ones.")
    ] = 16,
    error_texts: Annotated[
        int, typer.Option("--error-texts", min=1, help="Compare hidden states, block by block, on the first N texts.")
    ] = 8,
    noise_draws: Annotated[
        int,
        typer.Option("--noise-draws", min=0, help="Runs with noise of the last bit, on 16 texts; 0 leaves it out."),
    ] = 3,
    max_length: common.MaxLength = 128,
    batch_size: common.BatchSize = 16,
    seed: common.Seed = 0,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    verbose: common.Verbose = False,
    no_progress: common.NoProgress = False,
    *,
    load: "LoadOptions",
) -> None:
    """Round weights and inputs to few bits: what it costs, where the error lies, and what keeping outliers gives back."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    asked = common.plain_dims(dims) if dims else None
    spare, alpha = _number(threshold, "--threshold"), _number(smooth, "--smooth")
    from outlierlens.models import load_model
    from outlierlens.quantization.run import QuantizeOptions, quantize
    from outlierlens.quantization.schemes import DEFAULTS, parse_all
    from outlierlens.tasks import TaskOptions

    options = QuantizeOptions(
        recipes=parse_all(schemes) if schemes else DEFAULTS,
        dims=asked,
        stack=stack,
        n_random=n_random,
        threshold=spare,
        alpha=alpha,
        n_error_texts=error_texts,
        noise_draws=noise_draws,
        seed=seed,
        task=TaskOptions(max_length=max_length, batch_size=batch_size, seed=seed),
    )
    texts, others = _texts(data, text_column, limit, calibrate, load.offline)
    loaded = load_model(model, load)
    with resumable(None), Progress(not no_progress and show.format != "quiet") as progress:
        found = quantize(loaded, texts, options, calibration=others, command=common.reproduce(), progress=progress)
    if chart:
        from outlierlens.charts.quantization import quantization as draw

        write_chart(chart, draw(found))
    show.result(found, lambda value: print_quantized(value, verbose))


def _number(text: str, option: str) -> float | None:
    """A number, or None for "none"."""
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{option} is {text!r}; write a number, or none") from None


def _texts(data: str, column: str | None, limit: int, calibrate: int, offline: bool) -> "tuple[Texts, Texts | None]":
    """(the first `limit` texts, the `calibrate` that follow them, or None where there are no others)."""
    from outlierlens.data import read_texts

    read = read_texts(data, column=column, limit=limit + calibrate, offline=offline)
    rest = range(limit, len(read))
    return read.first(limit), read.some(rest) if rest else None


def print_quantized(found: "Quantized", verbose: bool = False) -> None:
    """The verdict, a row a scheme, and where the errors lie."""
    from outlierlens.quantized import named

    say(found.verdict)
    say(
        f"{found.provenance.model} on {found.data}: {found.task} of {found.n_texts:,} texts ({found.n_tokens:,} tokens), "
        f"intact {found.intact.value:z.4f} {found.unit}; outliers: {named(found.dims)} ({found.dims_source})"
    )
    print_table(f"change, {found.unit}", HEADS, [_cells(one) for one in found.roundings])
    print_table(f"better with outliers kept, {found.unit}", REGAINED, [_regained(one) for one in found.roundings])
    say(found.noise_note)
    print_table(
        "relative squared error: median over linears, and of the last block's output",
        ERRORS,
        [_errors(one) for one in found.roundings],
    )
    if found.smoothing:
        say(_scales(found))
    if verbose:
        for one in found.roundings:
            print_table(one.scheme, ("layer", "output", "kept", "in the outliers", "due to them"), _layers(found, one))
    for note in found.notes:
        say(f"note: {note}")


def _cells(one: "Rounding") -> list[Any]:
    from outlierlens.quantized import signed

    def change(setting: "Setting | None") -> str | None:
        return None if setting is None else signed(setting.change)

    def span(setting: "Setting | None") -> str | None:
        return None if setting is None else interval_text(setting.change_low, setting.change_high, "+.3g")

    random = signed(one.random_change) if one.random else None
    mixed = None if one.mixed is None else f"{signed(one.mixed.change)} ({one.mixed.kept:.1%})"
    cells: list[Any] = [one.scheme]
    for setting in (one.rounded, one.kept):
        cells += [change(setting), span(setting), _noise(setting.noise)]
    return [*cells, random, one.p, mixed, change(one.smoothed), one.says]


def _regained(one: "Rounding") -> list[Any]:
    from outlierlens.quantized import signed

    cells: list[Any] = [one.scheme]
    for better in (one.regained, one.beyond_random):
        if better is None:
            cells += [None] * 3
        else:
            cells += [signed(better.value), interval_text(better.low, better.high, "+.3g"), _noise(better.noise)]
    return cells


def _noise(floor: float) -> str | None:
    """A noise floor for reading, with two significant digits."""
    return None if math.isnan(floor) else f"{floor:.2g}"


def _errors(one: "Rounding") -> list[Any]:
    import numpy as np

    def middle(values: list[float]) -> str | None:
        known = [value for value in values if not math.isnan(value)]
        return f"{float(np.median(known)):.2e}" if known else None

    def last(values: "np.ndarray") -> str | None:
        return f"{values[-1]:.2e}" if len(values) else None

    errors = one.errors
    parts = errors.linears
    cells: list[Any] = [
        one.scheme,
        middle([part.weight for part in parts]),
        middle([part.weight_kept for part in parts]),
    ]
    cells += [middle([part.inputs for part in parts]), middle([part.inputs_kept for part in parts])]
    cells += [last(errors.output), last(errors.output_kept), last(errors.output_random), f"{errors.share[-1]:.0%}"]
    return [*cells, f"{errors.due[-1]:.0%}"]


def _layers(found: "Quantized", one: "Rounding") -> list[list[Any]]:
    errors = one.errors
    return [
        [
            layer,
            f"{errors.output[row]:.2e}",
            f"{errors.output_kept[row]:.2e}",
            f"{errors.share[row]:.0%}",
            f"{errors.due[row]:.0%}",
        ]
        for row, layer in enumerate(found.layers)
    ]


def _scales(found: "Quantized") -> str:
    """The largest SmoothQuant scale of every outlier, beside the median."""
    said = []
    for place, dim in enumerate(found.dims):
        top = max(found.smoothing, key=lambda one: one.scales[place] / one.median)
        said.append(
            f"{dim}: {top.scales[place]:.3g} in layer {top.layer} ({', '.join(top.parts)}), rank {top.ranks[place]} of "
            f"{found.hidden_size:,}, median {top.median:.3g}"
        )
    return (
        f"SmoothQuant scales (alpha {found.alpha:g}), the largest beside the median: {'; '.join(said) or 'no outliers'}"
    )
