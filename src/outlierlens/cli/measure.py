"""`observe` and `disable`: commands that run the model."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.common import Progress, Show, print_table, resumable, say
from outlierlens.cli.labelled import Labelling, Reading, TaskOption, takes_labels
from outlierlens.cli.sweep_show import counted
from outlierlens.errors import BadInput, need
from outlierlens.interval_words import interval_text
from outlierlens.layer_words import number_of_layers

if TYPE_CHECKING:
    from outlierlens.damage import Condition, Damage
    from outlierlens.models import LoadOptions
    from outlierlens.observation import Observation

StackOption = Annotated[
    str | None, typer.Option("--stack", help="Which stream, where there are several: encoder, decoder.")
]
ModeOption = Annotated[
    str, typer.Option("--mode", help="weights, norms, zero, mean, scale, resample (hidden states) or writes.")
]
FactorOption = Annotated[float, typer.Option("--factor", help="Factor of mode scale.")]
TEXTS = 64  # of `disable`, where no number is given
EmbeddingsOption = Annotated[bool, typer.Option("--embeddings", help="Mode writes: the embeddings' writes too.")]


@common.loads_a_model
def observe(
    model: common.Model,
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: common.Limit = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=2, help="Tokens of a text at most. Default: 128.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", help="Of a recording that is read. Default: 30.")
    ] = None,
    batch_size: common.BatchSize = 32,
    n_sigma: Annotated[float, typer.Option("--n-sigma", help="Distance from the vector's own mean that counts.")] = 3.0,
    without_special: Annotated[
        bool, typer.Option("--without-special", help="Show numbers without special tokens.")
    ] = False,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Also write every statistic as a table.")] = None,
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
    """Stream texts (or images, or recordings) through the model once; report statistics of every layer and dimension."""
    show = Show.choose(format, json, quiet, output, overwrite)
    if parquet and parquet.exists() and not overwrite:
        raise BadInput(f"{parquet} exists; give another name or --overwrite")
    if parquet:
        need("pyarrow", "models", "--parquet")  # before the work, not after it
    from outlierlens.activations import ObserveOptions
    from outlierlens.activations import observe as observe_model
    from outlierlens.models import load_model

    reading = Reading("auto", data, text_column, limit, Labelling(max_seconds=max_seconds))
    length = reading.options(max_length=max_length).max_length
    texts = reading.read(offline=load.offline)
    loaded = load_model(model, load)
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = ObserveOptions(max_length=length, batch_size=batch_size, n_sigma=n_sigma, progress=progress)
        found = observe_model(loaded, texts, options, command=common.reproduce())
    if parquet:
        found.to_parquet(parquet)
    view = "without_special" if without_special else "all"
    show.result(found, lambda value: _print_observation(value, view, verbose))


def _print_observation(found: "Observation", view: str, verbose: bool) -> None:
    say(
        f"{found.provenance.model} on {found.data}: {found.n_texts:,} {found.inputs}, {found.n_tokens:,} tokens "
        f"({found.n_special:,} special); shown: {view.replace('_', ' ')}"
    )
    for stack in found.stacks:
        statistics = stack.view(view)
        rows = []
        for row, layer in enumerate(stack.layers):
            low, high, big = (
                int(values[row].argmax())
                for values in (statistics.argmin_share, statistics.argmax_share, statistics.abs_max)
            )
            rows.append(
                [
                    layer,
                    stack.dims[low] if statistics.argmin_share[row, low] else None,
                    f"{statistics.argmin_share[row, low]:.1%}",
                    stack.dims[high] if statistics.argmax_share[row, high] else None,
                    f"{statistics.argmax_share[row, high]:.1%}",
                    stack.dims[big],
                    f"{statistics.abs_max[row, big]:z,.1f}",
                    repr(statistics.abs_max_token[row][big]),
                    int(statistics.abs_max_position[row, big]),
                    f"{statistics.median_abs[row]:.3g}",
                ]
            )
        print_table(
            f"stream {stack.stack}",
            [
                "layer",
                "argmin dim",
                "share",
                "argmax dim",
                "share",
                "max |h| dim",
                "max |h|",
                "token",
                "position",
                "median |h|",
            ],
            rows,
        )
        for end, shares in stack.pooled_shares(view).items():
            if shares.size and shares.max() > 0:
                say(
                    f"  {end} in all blocks pooled: most often dimension {stack.dims[shares.argmax()]}, {shares.max():.1%}"
                )
        for outlier in stack.outliers:
            layers = f"layers {outlier.layers[0]}–{outlier.layers[-1]}" if outlier.layers else "all layers pooled"
            say(
                f"  {outlier.rule} (all tokens): dimension {outlier.dim}, {layers}, strongest {max(outlier.strength):,.3g}"
            )
        for note in stack.notes:
            say(f"  note: {note}")
    for note in found.notes:
        say(f"note: {note}")
    if verbose:
        say(f"SHA-256 of the {found.inputs}: {found.data_digest}")


@common.loads_a_model
@takes_labels
def disable(
    model: common.Model,
    dims: Annotated[
        str, typer.Option("--dims", help="308,381 — or layer by layer: 0-9:896;10-16:678.", show_default=False)
    ],
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help=f"Use the first N texts. Default: {TEXTS}; of a labelled task all."),
    ] = None,
    mode: ModeOption = "weights",
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers to switch off in: 0-3,7. Default: all.")
    ] = None,
    stack: StackOption = None,
    factor: FactorOption = 0.5,
    embeddings: EmbeddingsOption = False,
    avoid: Annotated[
        str, typer.Option("--avoid", help="Dimensions no ordinary set may hold; default: what scan finds.")
    ] = "",
    n_random: Annotated[int, typer.Option("--random", min=0, help="Random sets of the same size.")] = 99,
    n_matched: Annotated[
        int, typer.Option("--matched", min=0, help="Sets as large, at other positions by layer.")
    ] = 19,
    task: TaskOption = "auto",
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=2, help="Tokens of a text at most. Default: 128; labelled: 256.")
    ] = None,
    stride: Annotated[int | None, typer.Option("--stride", min=1, help="Causal: step of the sliding window.")] = None,
    batch_size: common.BatchSize = 16,
    seed: common.Seed = 0,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write a copy of the model with the dimensions off.")
    ] = None,
    rows: common.Rows = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    labelling: Labelling,
    load: "LoadOptions",
) -> None:
    """Switch dimensions off beside random and matched controls, and measure what breaks."""
    from outlierlens.bench import DisableOptions, check_save, save_disabled
    from outlierlens.bench import disable as disable_dims
    from outlierlens.models import load_model
    from outlierlens.rows import remove_rows

    show = Show.choose(format, json, quiet, output, overwrite)
    plan = spelling.parse_dims(dims)
    reading = Reading(task, data, text_column, limit, labelling)
    if limit is None and not reading.is_labelled:
        reading = replace(reading, limit=TEXTS)
    if reading.is_labelled and stride is not None:
        raise BadInput(f"--stride belongs to causal-loss, not to --task {task}")
    task_options = reading.options(max_length=max_length, stride=stride, batch_size=batch_size, seed=seed)
    if rows and overwrite:
        remove_rows(rows)
    spared = spelling.plain_dims(avoid, "--avoid") if avoid else None
    texts = reading.read(offline=load.offline)
    if save:
        check_save(save, mode)
    loaded = load_model(model, load)
    options = DisableOptions(
        mode=mode,  # type: ignore[arg-type]
        layers=spelling.parse_layers(layers) if layers else None,
        stack=stack,
        avoid=spared,
        n_random=n_random,
        n_matched=n_matched,
        factor=factor,
        embeddings=embeddings,
        seed=seed,
        task=task_options,
    )
    with resumable(rows), Progress(not no_progress and show.format != "quiet") as progress:
        damage = disable_dims(loaded, texts, plan, options, command=common.reproduce(), progress=progress, rows=rows)
    show.result(damage, print_damage)
    if save:
        n_values = save_disabled(loaded, plan, save, options)
        common.warn(f"{save}: model with {n_values:,} values off")


def print_damage(damage: "Damage") -> None:
    """The conditions, the controls and the passage as text."""
    say(
        f"{damage.provenance.model}: {damage.task} ({damage.unit}) on {damage.n_texts:,} {damage.inputs}{counted(damage)}"
    )
    say(f"mode {damage.mode}, stream {damage.stack}, {number_of_layers(len(damage.layers))}")
    rows: list[list[Any]] = []
    for label, condition in (("intact", damage.intact), ("off: " + _off(damage.chosen), damage.chosen)):
        score = condition.score
        interval = interval_text(condition.change_low, condition.change_high) if condition.dims else None
        change = f"{condition.change:+z.4f}" if condition.dims else None
        perplexity = None if score.perplexity is None else f"{score.perplexity:,.2f}"
        shown = f"{1 - score.value if damage.metric else score.value:z.4f}"
        middle = [] if damage.metric else [perplexity]
        rows.append([label, shown, *middle, change, interval, condition.n_parameters])
    heads = [damage.metric, "lost"] if damage.metric else ["value", "perplexity", "change"]
    print_table("", ["condition", *heads, "95 % interval", "parameters off"], rows)
    controls = [
        [
            control.kind,
            len(control.conditions),
            f"{control.median:+z.4f}",
            f"{control.percentile_95:+z.4f}",
            f"{control.mean:+z.4f}",
            control.ratio_to_median,
            control.ratio_to_percentile_95,
            control.ratio_to_mean,
            control.p,
        ]
        for control in damage.controls
    ]
    if controls:
        heads = ["control", "n", "median", "95th pct", "mean", "× median", "× 95th pct", "× mean", "rank p"]
        print_table("", heads, controls)
    before = damage.intact.score.also
    for name, value in damage.chosen.score.also.items():
        say(f"{name}: " + (f"{before[name]:z.4f} intact, {value:z.4f} off" if name in before else f"{value:z.4f} off"))
    for filled in damage.fills:
        say(f"{filled.label:>7} {_dims(filled.dims)}: {filled.line}")
    for said in damage.continuations:
        say(f"{said.label:>7} {_dims(said.dims)}: {said.prompt} → {said.text}")
    for note in damage.notes:
        say(f"note: {note}")


def _off(condition: "Condition") -> str:
    """The dimensions off, layer by layer where layers differ."""
    if not condition.by_layer:
        return _dims(condition.dims)
    groups: dict[tuple[int, ...], list[int]] = {}
    for layer, dims in sorted(condition.by_layer.items()):
        groups.setdefault(dims, []).append(layer)
    return "; ".join(f"{','.join(map(str, layers))}: {_dims(dims)}" for dims, layers in list(groups.items())[:4]) + (
        "; …" if len(groups) > 4 else ""
    )


def _dims(dims: tuple[int, ...]) -> str:
    return ", ".join(map(str, dims[:8])) + (f" and {len(dims) - 8} more" if len(dims) > 8 else "")
