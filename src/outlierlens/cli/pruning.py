"""`prune-check`, `protect` and `prune-experiment`: what pruning took, what it should leave, and what ignoring that costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, resumable, say
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text
from outlierlens.layer_words import number_of_layers

if TYPE_CHECKING:
    from outlierlens.models import LoadOptions
    from outlierlens.pruned import PruneCheck, PruneExperiment

SHOWN = 12
Dims = Annotated[
    str | None, typer.Option("--dims", help="308,381: the outliers; default: what scan finds in the weights.")
]
Stack = Annotated[str | None, typer.Option("--stack", help="Which stream, where there are several: encoder, decoder.")]
Fraction = Annotated[
    float, typer.Option("--min-layer-fraction", help="Share of layers in which a position may not be removed.")
]
RowFraction = Annotated[
    float, typer.Option("--row-fraction", help="Share of a row that must be gone, where blocks end in a linear.")
]
ScaleAlone = Annotated[
    bool, typer.Option("--scale-alone", help="A norm's scale counts as removed even where its bias stays.")
]


def prune_check(
    before: Annotated[
        str, typer.Argument(help="The intact model; or masks or a pruned state dict with config.json beside it.")
    ],
    after: Annotated[
        str | None, typer.Argument(help="The pruned model, or masks: .safetensors, .npz, .pt.", show_default=False)
    ] = None,
    dims: Dims = None,
    min_layer_fraction: Fraction = 0.5,
    row_fraction: RowFraction = 1.0,
    scale_alone: ScaleAlone = False,
    only_outliers: Annotated[
        bool, typer.Option("--only-outliers", help="The constraint is about outliers alone, not about every position.")
    ] = False,
    read_as: Annotated[str, typer.Option("--as", help="What the pruned file holds: auto, masks or weights.")] = "auto",
    positions: Annotated[
        Path | None, typer.Option("--positions", help="JSON list: the old position of each one of a narrower stream.")
    ] = None,
    stack: Stack = None,
    arch: common.Arch = None,
    family: common.Family = None,
    max_read: common.MaxRead = "500MB",
    revision: common.Revision = None,
    subfolder: common.Subfolder = "",
    token: common.Token = None,
    offline: common.Offline = False,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Say which positions pruning removed in half the layers, and which outliers it hit; no torch for safetensors and .npz.

    Exit code 0: the constraint holds; 3: it is broken; 2: it could not be checked.
    """
    with common.unusable_is_2():
        show = Show.choose(format, json, quiet, output, overwrite)
        check_chart(chart, replace=overwrite)
        if read_as not in ("auto", "masks", "weights"):
            raise BadInput(f"--as is {read_as!r}; use auto, masks or weights")
        from outlierlens.pruned import Removal
        from outlierlens.pruning.check import CheckOptions
        from outlierlens.pruning.check import prune_check as check

        options = CheckOptions(
            rule=Removal(row_fraction, scale_alone, min_layer_fraction, "outliers" if only_outliers else "all"),
            dims=spelling.plain_dims(dims) if dims else (),
            stack=stack,
            reading=read_as,  # type: ignore[arg-type]
            positions=positions,
            row=common.row_of(arch, family),
            max_read=spelling.parse_bytes(max_read),
            source={"revision": revision, "subfolder": subfolder, "token": token, "offline": offline},
        )
        found = check(before, after, options, command=common.reproduce())
        if chart:
            from outlierlens.charts.pruning import pruned_positions

            write_chart(chart, pruned_positions(found.stacks[0], found))
        show.result(found, print_check)
    if not found.holds:
        raise typer.Exit(common.FAILED)


def print_check(found: "PruneCheck") -> None:
    """The verdict, what was looked at, and the outliers and positions that lost most."""
    say(found.verdict)
    source = f"{found.before} → {found.after}" if found.before else found.after
    say(f"{source}, from {found.evidence}; read {found.bytes_read:,} of {found.total_bytes:,} bytes")
    for stack in found.stacks:
        share = stack.values_removed / max(stack.values, 1)
        say(
            f"{stack.stack}, {stack.site}: removed means {stack.definition}; "
            f"{stack.values_removed:,} of {stack.values:,} values ({share:.2%}) are; {len(stack.broken)} of "
            f"{stack.hidden_size} positions in {stack.needed} of {stack.n_layers} "
            f"layers or more; outliers named by {stack.named_by}"
        )
        for note in stack.notes:
            say(f"  note: {note}")
    rows = found.records()
    if rows:
        several = len(found.stacks) > 1
        heads = [*(["stack"] if several else []), "dim", "outlier", "layers removed", "values gone", "breaks"]
        print_table("", heads, (_cells(row, several) for row in rows[:SHOWN]))
        if len(rows) > SHOWN:
            say(f"and {len(rows) - SHOWN} more; -o FILE keeps all")
    for note in found.notes:
        say(f"note: {note}")


def _cells(row: dict[str, Any], several: bool) -> list[Any]:
    cells = [row["stack"]] if several else []
    share = None if row["share"] is None else f"{row['share']:.1%}"
    layers = f"{row['layers_removed']}/{row['layers']}"
    return [*cells, row["dim"], "yes" if row["outlier"] else "no", layers, share, "yes" if row["breaks"] else "no"]


def protect(
    model: common.Model,
    tool: Annotated[
        str, typer.Option("--for", help="torch-pruning, llm-compressor, bitsandbytes or awq.", show_default=False)
    ],
    dims: Dims = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers", help="enough, flagged, all, or 0-3,7. Default: enough for pruners, flagged for quantizers."
        ),
    ] = None,
    min_layer_fraction: Fraction = 0.5,
    factor: Annotated[float, typer.Option("--factor", help="awq: by which weights of a protected channel grow.")] = 2.0,
    stack: Stack = None,
    arch: common.Arch = None,
    family: common.Family = None,
    max_read: common.MaxRead = "500MB",
    revision: common.Revision = None,
    subfolder: common.Subfolder = "",
    token: common.Token = None,
    offline: common.Offline = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the list to exactly this file.")] = None,
    overwrite: common.Overwrite = False,
    quiet: common.Quiet = False,
) -> None:
    """Write what another tool should leave alone, in the form that it reads: Python or YAML, ready to paste."""
    Show.choose("auto", False, quiet, output, overwrite)
    from outlierlens.pruned import Removal
    from outlierlens.pruning.protect import ProtectOptions
    from outlierlens.pruning.protect import protect as make
    from outlierlens.writing import write_text

    options = ProtectOptions(
        dims=spelling.plain_dims(dims) if dims else (),
        layers=_layers(layers),
        rule=Removal(min_layer_fraction=min_layer_fraction),
        factor=factor,
        stack=stack,
        row=common.row_of(arch, family),
        max_read=spelling.parse_bytes(max_read),
        source={"revision": revision, "subfolder": subfolder, "token": token, "offline": offline},
    )
    made = make(model, tool, options)  # type: ignore[arg-type]
    if output:
        write_text(output, made.text)
        if not quiet:
            say(f"{output}: {len(made.modules)} modules of {number_of_layers(len(made.layers))}")
            for note in made.notes:
                say(f"note: {note}")
    elif not quiet:
        print(made.text, end="")


def _layers(text: str | None) -> Any:
    return text if text in (None, "enough", "flagged", "all") else spelling.parse_layers(str(text))


@common.loads_a_model
def prune_experiment(
    model: common.Model,
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: common.Limit = 24,
    dims: Dims = None,
    sparsity: Annotated[
        float,
        typer.Option("--sparsity", help="Share of the last operations' weights to prune; 0: as many as of --dims."),
    ] = 0.0,
    n_random: Annotated[int, typer.Option("--random", min=0, help="Random positions, the same in all layers.")] = 5,
    n_scattered: Annotated[int, typer.Option("--scattered", min=0, help="Random positions that differ by layer.")] = 5,
    n_matched: Annotated[
        int, typer.Option("--matched", min=0, help="Positions about as large that differ by layer.")
    ] = 5,
    stack: Stack = None,
    max_length: common.MaxLength = 128,
    batch_size: common.BatchSize = 16,
    seed: common.Seed = 0,
    rows: common.Rows = None,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    load: "LoadOptions",
) -> None:
    """Prune the same number of weights by magnitude and forced onto one position, beside controls, and measure the loss."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    asked = spelling.plain_dims(dims) if dims else ()
    from outlierlens.data import read_texts
    from outlierlens.models import load_model
    from outlierlens.pruning.experiment import ExperimentOptions
    from outlierlens.pruning.experiment import prune_experiment as measure
    from outlierlens.rows import remove_rows
    from outlierlens.tasks import TaskOptions

    if rows and overwrite:
        remove_rows(rows)
    texts = read_texts(data, column=text_column, limit=limit, offline=load.offline)
    loaded = load_model(model, load)
    options = ExperimentOptions(
        dims=asked, stack=stack, sparsity=sparsity, n_random=n_random, n_scattered=n_scattered, n_matched=n_matched,
        seed=seed, task=TaskOptions(max_length=max_length, batch_size=batch_size, seed=seed),
    )  # fmt: skip
    with resumable(rows), Progress(not no_progress and show.format != "quiet") as progress:
        found = measure(loaded, texts, options, command=common.reproduce(), progress=progress, rows=rows)
    if chart:
        from outlierlens.charts.pruning import prune_experiment as draw

        write_chart(chart, draw(found))
    show.result(found, print_experiment)


def print_experiment(found: "PruneExperiment") -> None:
    """The verdict, then a row a condition, then the control families."""
    say(found.verdict)
    say(
        f"{found.provenance.model}: {found.task} ({found.unit}) on {found.n_texts:,} texts; {found.budget:,} of "
        f"{found.n_candidates:,} weights of {found.site} pruned ({found.sparsity:.2%}), {found.forced:,} of them forced; "
        f"dimensions {', '.join(map(str, found.dims))} ({found.dims_source})"
    )
    rows: list[list[Any]] = []
    for family, one in found.conditions()[:3]:
        interval = interval_text(one.change_low, one.change_high, "+.4f") if family != "intact" else None
        change = f"{one.change:+z.4f}" if family != "intact" else None
        rows.append([family, f"{one.score.value:z.4f}", change, interval, one.n_parameters, found.swaps.get(one.label)])
    heads = ["condition", "value", "change", "95 % interval", "weights pruned", "not by magnitude"]
    print_table("", heads, rows)
    controls = [
        [one.kind, len(one.conditions), f"{one.median:+z.4f}", f"{one.percentile_95:+z.4f}", f"{one.mean:+z.4f}", one.p]
        for one in found.controls
    ]
    if controls:
        print_table("", ["control", "n", "median", "95th pct", "mean", "rank p"], controls)
    for note in found.notes:
        say(f"note: {note}")
