"""`beyond-zero`: dimensions zeroed, set to means, shuffled, scaled and restored; a fixed bias, or information?"""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, resumable, say
from outlierlens.cli.labelled import Labelling, Reading
from outlierlens.cli.measure import StackOption
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text
from outlierlens.layer_words import number_of_layers

if TYPE_CHECKING:
    from outlierlens.models import LoadOptions
    from outlierlens.treated import BeyondZero, Treated, Treatment

TEXTS = 32  # where no number is given
TASKS = ("auto", "masked-loss", "causal-loss", "output-change", "sentence-change")
HEADS = ("treatment", "change", "95 %", "recovered", "95 %", "random median", "random largest", "p")


@common.loads_a_model
def beyond_zero(
    model: common.Model,
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: Annotated[int, typer.Option("--limit", min=2, help="Use the first N texts.")] = TEXTS,
    dims: Annotated[
        str | None, typer.Option("--dims", help="308,381, or layer by layer: 0-9:896;10-16:678. Default: see --find.")
    ] = None,
    find: Annotated[
        str,
        typer.Option(
            "--find", help="Without --dims: scan (of the weights), observe (on the texts); auto: scan, else observe."
        ),
    ] = "auto",
    each: Annotated[bool, typer.Option("--each", help="Also each dimension alone.")] = False,
    layers: Annotated[str | None, typer.Option("--layers", help="Layers to treat: 0-3,7. Default: all.")] = None,
    stack: StackOption = None,
    scales: Annotated[
        str, typer.Option("--scales", help="Factors of the scale sweep, beside 0 and 1.")
    ] = "0.5,1.5,2,3",
    n_random: Annotated[
        int, typer.Option("--random", min=0, help="Random sets of as many dimensions, treated alike.")
    ] = 5,
    folds: Annotated[
        int, typer.Option("--folds", min=2, help="Parts of the texts; each gets the means of the others.")
    ] = 4,
    task: Annotated[
        str,
        typer.Option("--task", help="auto, masked-loss, causal-loss, output-change or sentence-change."),
    ] = "auto",
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=2, help="Tokens of a text (or window) at most. Default: 128.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", help="Of a recording that is read. Default: 30.")
    ] = None,
    mask_fraction: Annotated[
        float, typer.Option("--mask-fraction", help="Masked loss: share of tokens to mask.")
    ] = 0.15,
    batch_size: common.BatchSize = 16,
    seed: common.Seed = 0,
    rows: common.Rows = None,
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
    """Set dimensions to zero, to means, shuffle, scale and restore them, beside random ones: fixed bias or information?"""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    from outlierlens.beyond import BeyondOptions
    from outlierlens.beyond import beyond_zero as measure
    from outlierlens.models import load_model
    from outlierlens.rows import remove_rows

    if task not in TASKS:
        raise BadInput(f"--task is {task!r}; use {', '.join(TASKS)}")
    asked = spelling.parse_dims(dims) if dims else None
    reading = Reading(task, data, text_column, limit, Labelling(max_seconds=max_seconds))
    settings = reading.options(max_length=max_length, batch_size=batch_size, mask_fraction=mask_fraction, seed=seed)
    options = BeyondOptions(
        find=find,  # type: ignore[arg-type]
        layers=spelling.parse_layers(layers) if layers else None,
        stack=stack,
        each=each,
        scales=parse_scales(scales),
        n_random=n_random,
        n_folds=folds,
        seed=seed,
        task=settings,
    )
    if rows and overwrite:
        remove_rows(rows)
    texts = reading.read(offline=load.offline)
    loaded = load_model(model, load)
    with resumable(rows), Progress(not no_progress and show.format != "quiet") as progress:
        found = measure(loaded, texts, asked, options, command=common.reproduce(), progress=progress, rows=rows)
    if chart:
        from outlierlens.charts import beyond_zero as draw

        write_chart(chart, draw(found))
    show.result(found, lambda value: print_beyond_zero(value, verbose))


def parse_scales(text: str) -> tuple[float, ...]:
    """ "0.5,2" -> (0.5, 2.0); raises BadInput for anything else."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = (math.nan,)
    if not all(math.isfinite(factor) for factor in found):
        raise BadInput(f"cannot read scales {text!r}; write 0.5,1.5,2,3")
    return found


def print_beyond_zero(found: "BeyondZero", verbose: bool = False) -> None:
    """A table of treatments and a sentence for each set of dimensions."""
    from outlierlens.treated import RULE

    say(
        f"{found.provenance.model}: {found.task} ({found.unit}) on {len(found.texts):,} {found.inputs} of {found.data}, "
        f"{found.n_tokens:,} tokens; intact {found.intact:z.4f}"
    )
    say(
        f"treated in {number_of_layers(len(found.layers))} of stream {found.stack}; dimensions: {found.named_by}; means of "
        f"the other {found.n_folds - 1} of {found.n_folds} parts of the {found.inputs}"
    )
    for treated in found.treated:
        print_table(f"{treated.label}, beside {_sets(treated)}", HEADS, [_cells(one) for one in treated.treatments])
        if verbose and treated.treatments[0].also:
            names = tuple(treated.treatments[0].also)
            rows = [[one.name, *(f"{(one.also or {})[name]:z.4f}" for name in names)] for one in treated.treatments]
            print_table("further numbers", ("treatment", *names), rows)
    for treated in found.treated:
        say(found.says(treated))
    if verbose:
        say(f"rule: {RULE}")
    for note in found.notes:
        say(f"note: {note}")


def _sets(treated: "Treated") -> str:
    n = len(treated.random_dims)
    return (
        "no random dimensions"
        if not n
        else f"{n} random {'dimension' if len(treated.dims) == 1 else 'set'}{'s' * (n > 1)}"
    )


def _cells(one: "Treatment") -> list[Any]:
    known = math.isfinite(one.recovered)
    largest = max(one.random, default=math.nan)
    return [
        one.name,
        f"{one.change:+z.4f}",
        interval_text(one.low, one.high, "+.4f"),
        f"{one.recovered:.1%}" if known else None,
        f"{one.recovered_low:.1%} to {one.recovered_high:.1%}" if math.isfinite(one.recovered_low) else None,
        f"{one.random_median:+z.4f}" if one.random else None,
        f"{largest:+z.4f}" if one.random else None,
        one.p,
    ]
