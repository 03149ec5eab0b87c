"""`survival`, `one-dimension` and `recover`: what became of outliers after pre-training."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common, weights
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, resumable, say, warn
from outlierlens.cli.finetune import trains_a_model
from outlierlens.cli.labelled import Labelling, Reading
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text
from outlierlens.spelling import parse_seeds, plain_dims

if TYPE_CHECKING:
    from outlierlens.labelled import Examples
    from outlierlens.models import LoadOptions
    from outlierlens.one_dimension import OneDimension
    from outlierlens.recovered import Recovery
    from outlierlens.survived import Survival, TunedSurvival

DimsOption = Annotated[
    str | None, typer.Option("--dims", help="308,381: name these too. Default: what the rule finds.")
]
TaskOption = Annotated[str, typer.Option("--task", help="sst2, cola, rte, hans, …; or classify, regress.")]
BothSplits = Annotated[
    str | None,
    typer.Option("--data", help="Folder with a file a split, or hub id: both splits. Default: the hub's own copy."),
]
# What is read for a task with two splits: parameter, type, default.
SPLITS: tuple[tuple[str, Any, Any], ...] = (
    ("dev_data", Annotated[str | None, typer.Option("--dev-data", help="Dev examples; --data may then be one file.")], None),
    ("text_column", Annotated[str | None, typer.Option("--text-column", help="classify, regress: the text.")], None),
    ("pair_column", Annotated[str | None, typer.Option("--pair-column", help="classify, regress: the second text.")], None),
    ("label_column", Annotated[str, typer.Option("--label-column", help="classify, regress: the label.")], "label"),
    ("metric", Annotated[str | None, typer.Option("--metric", help="f1, mcc, … Default: the task's first.")], None),
)  # fmt: skip


def reads_two_splits(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `SPLITS` in front of --seed; it gets a function that reads (train, dev) as `splits`."""

    def make(options: dict[str, Any], given: dict[str, Any]) -> "Callable[[bool], tuple[Examples, Examples]]":
        task, data = given["task"], given["data"]
        if task == "tokens":
            raise BadInput("--task tokens: this command scores whole texts; use a task of texts, classify or regress")
        keys = ("metric", "pair_column", "label_column")
        words = Labelling(**{key: options[key] for key in keys})
        chosen = Reading(task, "", options["text_column"], labelling=words).labelled_task

        def read(offline: bool) -> "tuple[Examples, Examples]":
            from outlierlens.finetune.splits import read_splits

            return read_splits(chosen, data, options["dev_data"], offline=offline)

        return read

    return common.with_group(command, SPLITS, "splits", make, before="seed")


def _dims(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else plain_dims(text)


def survival(
    base: Annotated[str, typer.Argument(help="Pre-trained: sample, directory, file or hub id.", show_default=False)],
    tuned: Annotated[list[str], typer.Argument(help="Models fine-tuned from it, named likewise.", show_default=False)],
    dims: DimsOption = None,
    norms_only: Annotated[
        bool, typer.Option("--norms-only", help="Do not read all weights: leaves out how far each kind moved.")
    ] = False,
    rule: weights.RuleOption = "kovaleva",
    n_sigma: weights.SigmaOption = 3.0,
    min_layer_fraction: weights.FractionOption = 0.5,
    same_layer: weights.SameLayerOption = False,
    top_k: weights.TopKOption = 6,
    relax_to: weights.RelaxOption = None,
    view: weights.ViewOption = "last",
    arch: common.Arch = None,
    family: common.Family = None,
    max_read: common.MaxRead = "500MB",
    revision: common.Revision = None,
    tuned_revision: Annotated[
        str | None, typer.Option("--tuned-revision", help="Hub revision of the tuned models; default: --revision.")
    ] = None,
    token: common.Token = None,
    offline: common.Offline = False,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Say whether a model's outlier dimensions survive fine-tuning, and how far they moved, from the weights alone."""
    from outlierlens.survival import SurvivalOptions
    from outlierlens.survival import survival as follow

    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    if chart and len(tuned) > 1:
        raise BadInput("--chart draws one tuned model; name one, or draw the others from the result in Python")
    options = weights.scan_options(
        rule, n_sigma, min_layer_fraction, same_layer, top_k, relax_to,
        view=view,
        row=common.row_of(arch, family),
        max_read=spelling.parse_bytes(max_read), revision=revision, token=token, offline=offline,
        notice=None if quiet else warn,
    )  # fmt: skip
    chosen = SurvivalOptions(options, tuned_revision, _dims(dims) or (), movement=not norms_only)
    found = follow(base, tuned, chosen, command=common.reproduce())
    if chart:
        from outlierlens.charts.downstream import survival as draw

        write_chart(chart, draw(found))
    show.result(found, print_survival)


def print_survival(found: "Survival") -> None:
    """One block a tuned model: fates, agreement and movement."""
    for tuned in found.tuned:
        _print_tuned(found.base.provenance.model, tuned)


def _print_tuned(base: str, tuned: "TunedSurvival") -> None:
    for stack, share in tuned.jaccard.items():
        none = not any(dim.fate != "neither" for dim in tuned.dims if dim.stack == stack.partition(", ")[0])
        said = "no outlier in either model" if none else f"{share:.0%} of the outliers in common (Jaccard)"
        say(f"{base} → {tuned.name}, {stack}: {said}")
    for row in tuned.agreement:
        named = f", of the named {row.r_named:.4f}" if row.r_named is not None else ""
        moved = (
            f"{row.moved_others:.3g}"
            if row.moved_named is None
            else f"{row.moved_named:.3g} (others {row.moved_others:.3g})"
        )
        say(f"  z of the {row.part} ({row.stack}): r = {row.r:.4f}{named}; mean |Δz| {moved}")
    for note in tuned.notes:
        say(f"  note: {note}")
    rows = [
        [dim.stack, dim.dim, dim.fate, part, f"{shift.layers_before}/{dim.n_layers}", f"{shift.layers_after}/{dim.n_layers}",
         shift.z_before, shift.z_after, shift.largest_before, shift.largest_after, shift.moved, shift.moved_most]
        for dim in tuned.dims
        for part, shift in (("scale", dim.scale), ("bias", dim.bias))
        if shift is not None
    ]  # fmt: skip
    if rows:
        heads = ["stack", "dim", "fate", "of the", "layers before", "after", "mean z before", "after", "largest z before",
                 "after", "mean |Δz|", "largest"]  # fmt: skip
        print_table("", heads, rows)
    if tuned.movement:
        moves = [[one.group, f"{one.n_values:,}", one.rms, one.relative] for one in tuned.movement]
        alone = f"{tuned.n_only_before} in the base alone, {tuned.n_only_after} in the tuned"
        title = f"moved ({tuned.n_matched} tensors in both, {alone})"
        print_table(title, ["weights", "values", "rms change", "‖change‖ / ‖before‖"], moves)


@common.loads_a_model
@reads_two_splits
def one_dimension(
    model: Annotated[str, typer.Argument(help="Fine-tuned: directory or hub id.", show_default=False)],
    task: TaskOption,
    data: BothSplits = None,
    dims: DimsOption = None,
    layers: Annotated[str, typer.Option("--layers", help="last, all (and the embeddings), or 0-3,7.")] = "last",
    pooling: Annotated[
        str,
        typer.Option("--pooling", help="first, last (token) or mean; auto: first where there is a [CLS], else last."),
    ] = "auto",
    by_class: Annotated[
        bool | None,
        typer.Option("--by-class/--by-example", help="Fit with all classes counting alike. Default: unless accuracy."),
    ] = None,
    stack: Annotated[str | None, typer.Option("--stack", help="Which stream, where there are several.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=2, help="Training examples to fit on, drawn at random.")] = 5000,
    labels: Annotated[
        str | None,
        typer.Option("--labels", help="The model's labels in the order of its outputs, if its config has none."),
    ] = None,
    max_length: common.MaxLength = 256,
    batch_size: common.BatchSize = 32,
    seed: common.Seed = 0,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    splits: "Callable[[bool], tuple[Examples, Examples]]",
    load: "LoadOptions",
) -> None:
    """Say how much of a task each single dimension carries: the best classifier that sees one number (Rudman et al. 2023)."""
    from outlierlens.models import load_model
    from outlierlens.one_dim import OneDimOptions
    from outlierlens.one_dim import one_dimension as measure

    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = OneDimOptions(
            layers=None if layers in ("last", "all") else spelling.parse_layers(layers),
            all_layers=layers == "all",
            pooling=pooling,  # type: ignore[arg-type]
            stack=stack,
            by_class=by_class,
            limit=limit,
            dims=_dims(dims) or (),
            max_length=max_length,
            batch_size=batch_size,
            seed=seed,
            labels=None if labels is None else tuple(name.strip() for name in labels.split(",")),
            progress=progress,
        )
        train, dev = splits(load.offline)
        found = measure(load_model(model, load), train, dev, options, command=common.reproduce())
    if chart:
        from outlierlens.charts.downstream import one_dimension as draw

        write_chart(chart, draw(found))
    show.result(found, print_one_dimension)


def print_one_dimension(found: "OneDimension") -> None:
    """One row a layer and dimension that is best or named, beside the whole model."""

    say(
        f"{found.provenance.model} on {found.task}: {found.metric} {found.full:.4f} (95 % {found.full_low:.4f} to "
        f"{found.full_high:.4f}) on {found.n_dev:,} dev examples; without looking {found.majority:.4f}"
    )
    fitted = "all classes counting alike" if found.by_class else "all examples counting alike"
    vector = "mean of all tokens" if found.pooling == "mean" else f"{found.pooling} token"
    say(f"from one dimension of the {vector}; fitted on {found.n_train:,} examples, {fitted}")
    rows = [
        [row["layer"], row["dim"], row["value"], interval_text(row["low"], row["high"], ".4f"), row["rank"], row["train"],
         row["variance_ratio"], row["z"], row["why"], row["rule"]]
        for row in found.shown()
    ]  # fmt: skip
    heads = ["layer", "dim", found.metric, "95 %", "rank", "on train", "× mean variance", "largest |z|", "why", "rule"]
    print_table("", heads, rows)
    for layer in found.layers:
        probe = layer.shifted_mean
        if probe is not None:
            said = f"{probe.above} above {probe.mean:.3g} {probe.shift:+g}"
            say(
                f"layer {layer.layer}: shifted mean of the dimension of largest variance, {probe.dim} ({said}): "
                f"{found.metric} {probe.value:.4f} ({interval_text(probe.low, probe.high, '.4f')})"
            )
        say(
            f"layer {layer.layer}: over dimensions, rank correlation of the {found.metric} with the variance "
            f"{layer.rho_variance:+z.2f}, with |z| of the scale {layer.rho_z:+z.2f}"
        )
    for note in found.notes:
        say(f"note: {note}")


@trains_a_model
@reads_two_splits
def recover(
    model: Annotated[str, typer.Argument(help="Fine-tuned: directory or hub id.", show_default=False)],
    task: TaskOption,
    data: BothSplits = None,
    dims: Annotated[
        str | None, typer.Option("--dims", help="308,381: switch these off. Default: what the rule finds.")
    ] = None,
    stack: Annotated[str | None, typer.Option("--stack", help="Which stream, where there are several.")] = None,
    n_random: Annotated[int, typer.Option("--random", min=0, help="Random sets of the same size, treated alike.")] = 1,
    seeds: Annotated[str, typer.Option("--seeds", help="Of fine-tuning, one run of each kind: 42,43.")] = "42",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of each fine-tuning.")] = 3,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate at its peak.")] = 2e-5,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Examples of a step.")] = 32,
    max_length: common.MaxLength = 256,
    train_limit: Annotated[
        int | None, typer.Option("--train-limit", min=2, help="Train on N examples drawn at random.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="Of a training: float32 or bfloat16.")] = "float32",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random sets and of intervals.")] = 0,
    chart: common.Chart = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory. Default: runs/MODEL-recovery.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove runs with other settings from it.")] = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    splits: "Callable[[bool], tuple[Examples, Examples]]",
    load: "LoadOptions",
) -> None:
    """Switch dimensions off and fine-tune again, with them free and held at zero, beside random ones; stopped runs go on."""
    from outlierlens.finetune.settings import FinetuneSettings

    show = Show.choose(format, json, quiet, None)
    check_chart(chart, replace=overwrite)
    settings = FinetuneSettings(
        epochs=epochs,
        learning_rate=lr,
        batch=batch_size,
        max_length=max_length,
        train_limit=train_limit,
        precision=precision,
    )
    numbers, off = parse_seeds(seeds), _dims(dims)
    train, dev = splits(load.offline)
    from outlierlens.recovery import RESULT, RecoverOptions
    from outlierlens.recovery import recover as run

    folder = output or Path("runs") / f"{Path(model).name or 'model'}-recovery"
    options = RecoverOptions(
        settings=settings,
        seeds=numbers,
        n_random=n_random,
        seed=seed,
        stack=stack,
        load=load,
        overwrite=overwrite,
        command=common.reproduce(),
        progress=warn if not no_progress and show.format != "quiet" else lambda _: None,
    )
    with resumable(folder):
        found = run(model, off, train, dev, folder, options)
    if chart:
        from outlierlens.charts.recovery import recovery as draw

        write_chart(chart, draw(found))
    show.result(found, print_recovery)
    if show.format == "human":
        say(f"result: {folder / RESULT}")


def print_recovery(found: "Recovery") -> None:
    """One row an arm, and what the scales and biases did."""

    say(f"{found.provenance.model} on {found.task}: dimensions {', '.join(map(str, found.dims))} of {found.stack}")
    rows = []
    for arm, row in zip(found.arms, found.records(), strict=True):
        interval = interval_text(row["low"], row["high"], ".4f")
        value, lost = f"{row[found.metric]:.4f}", f"{row['lost']:+z.4f}"
        known = [row["off"], row["state"], row["dims"], row["seed"]]
        rows.append([*known, value, interval, lost, found.interval(arm, "+.4f"), row["recovered"], row["regrown"]])
    heads = ["off", "model", "dims", "seed", found.metric, "95 %", "lost", "95 %, paired", "recovered", "grown back"]
    print_table("", heads, rows)
    say(
        f"grown back: 1 is scale and bias as in the intact model, 0 is zero; a run of AdamW can move a value by about "
        f"{found.reach:.2g}"
    )
    for note in found.notes:
        say(f"note: {note}")
