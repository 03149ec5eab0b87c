"""`frozen`: linear classifiers on a frozen model's vectors, layer by layer, raw and repaired."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.labelled import Labelling
from outlierlens.cli.labelled import Reading as Labelled
from outlierlens.cli.vectors import READING, REPAIRS, Fitting, Reading
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text

if TYPE_CHECKING:
    from outlierlens.frozen_scores import FrozenScores
    from outlierlens.models import LoadOptions

MAX_LENGTH = 256
# Repairs are fitted on the training split, so there is no other text to name; how much is read has a default of its own.
READS = tuple(row for row in READING if row[0] != "max_length")
FITS = tuple(row for row in REPAIRS if row[0] in ("fixes", "clip", "fit_limit"))
COLUMNS: tuple[tuple[str, Any, Any], ...] = (
    ("text_column", Annotated[str | None, typer.Option("--text-column", help="classify: the text.")], None),
    ("label_column", Annotated[str, typer.Option("--label-column", help="classify: the label.")], "label"),
    ("metric", Annotated[str | None, typer.Option("--metric", help="macro f1, … Default: the task's first.")], None),
)  # fmt: skip


def _options(command: Any) -> Any:
    """Give a command what is read, repaired and labelled: as `reading`, `fitting` and `labelled`."""
    reads = common.with_group(command, READS, "reading", lambda options, _: Reading(**options), before="seed")
    fits = common.with_group(
        reads, FITS, "fitting", lambda options, given: Fitting(**options, seed=given["seed"]), before="seed"
    )

    def make(options: dict[str, Any], given: dict[str, Any]) -> Labelled:
        text = options.pop("text_column")
        return Labelled(given["task"], "", text, labelling=Labelling(**options))

    return common.with_group(fits, COLUMNS, "labelled", make, before="seed")


@common.loads_a_model
@_options
def frozen(
    model: common.Model,
    task: Annotated[str, typer.Option("--task", help="sst2, sst5, imdb, cola, …; or classify.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option("--data", help="Folder with a file a split, or hub id. Default: the hub's own copy."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=2, help="Training examples, drawn by --seed. Default: 10,000; imdb 2,500."),
    ] = None,
    test_limit: Annotated[
        int | None,
        typer.Option("--test-limit", min=2, help="Test examples, drawn by --seed. Default: all; imdb 2,500."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=2, help=f"Tokens of a text at most. Default: {MAX_LENGTH}; with --full all."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's protocol: all examples, whole texts.")] = False,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the training vectors.")] = 10,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of Adam; the paper does not state its own.")] = 0.01,
    train_batch: Annotated[
        int | None,
        typer.Option(
            "--train-batch", min=1, help="Examples of a step. Default: the paper's (sst2 768, sst5 1536), or 128."
        ),
    ] = None,
    bias: Annotated[
        bool, typer.Option("--bias", help="Classifiers with a constant for each class; the paper's have none.")
    ] = False,
    seed: common.Seed = 0,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    labelled: Labelled,
    reading: Reading,
    fitting: Fitting,
    load: "LoadOptions",
) -> None:
    """Train linear classifiers on frozen mean vectors of every layer, raw, clipped and otherwise repaired (Luo et al. 2021)."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    if full and (limit is not None or test_limit is not None):
        raise BadInput("--full takes all examples, --limit and --test-limit some; give one of them")
    from outlierlens.frozen.measure import FrozenOptions
    from outlierlens.frozen.measure import frozen as measure
    from outlierlens.frozen.splits import protocol_of, read_frozen
    from outlierlens.models import load_model

    if not labelled.is_labelled:
        raise BadInput(f"--task {task} has no labels; use sst2, sst5, imdb, … or classify")
    chosen = labelled.labelled_task
    usual = protocol_of(chosen)
    splits = read_frozen(
        chosen,
        data,
        limit=None if full else limit or usual.limit,
        test_limit=None if full else test_limit or usual.test_limit,
        seed=seed,
        offline=load.offline,
    )
    loaded = load_model(model, load)
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = FrozenOptions(
            read=reading.options(loaded, progress=progress),
            special=reading.special,
            max_length=max_length or (None if full else MAX_LENGTH),
            fixes=fitting.specs,
            fit_limit=fitting.fit_limit,
            train_batch=train_batch,
            epochs=epochs,
            lr=lr,
            bias=bias,
            seed=seed,
            progress=progress,
        )
        found = measure(
            loaded,
            splits,
            options,
            clip=lambda texts: fitting.clipping(loaded, texts, reading.stack),
            command=common.reproduce(),
        )
    if chart:
        from outlierlens.charts.frozen import frozen as draw

        write_chart(chart, draw(found))
    show.result(found, print_frozen)


def print_frozen(found: "FrozenScores") -> None:
    """One row a layer with the metric of every repair, then the chosen layers with what a repair changes."""

    some = "" if found.n_train == found.n_train_all else f" of {found.n_train_all:,}"
    tested = "" if found.n_test == found.n_test_all else f" of {found.n_test_all:,}"
    held = "held out of train" if found.held_out else found.dev
    say(
        f"{found.provenance.model} on {found.task}: {found.metric} of linear classifiers on frozen mean vectors; without "
        f"looking {found.majority:.4f}"
    )
    say(
        f"{found.n_train:,}{some} training, {found.n_dev:,} dev ({held}) and {found.n_test:,}{tested} test examples, "
        f"{found.n_dropped:,} dropped as shared; at most {found.max_length} tokens ({found.n_cut:,} texts that long); special "
        f"tokens {'counted' if found.special else 'left out'}"
    )
    say(
        f"{found.epochs} epochs of Adam, {found.n_steps:,} steps of {found.train_batch:,} examples, learning rate "
        f"{found.lr:g}, {'with' if found.bias else 'without'} bias; clipped: {_clipped(found)}"
    )
    names = [one.fix for one in found.fixes]
    table = [[layer, *(float(one.test[place]) for one in found.fixes)] for place, layer in enumerate(found.layers)]
    print_table(f"{found.metric} on the test split", ["layer", *names], table)
    rows = [
        [
            row["layer by"],
            row["fix"],
            row["layer"],
            row["value"],
            interval_text(row["low"], row["high"], ".4f"),
            *_change(found, row),
        ]
        for row in found.shown()
    ]
    heads = ["layer by", "fix", "layer", found.metric, "95 %", "− raw", "95 %", ""]
    print_table("at the layer that dev, or test itself (the paper's way), chooses", heads, rows)
    for note in found.notes:
        say(f"note: {note}")


def _change(found: "FrozenScores", row: dict[str, Any]) -> list[str]:
    if not row["verdict"]:
        return ["", "", ""]
    interval = found.interval(row["change_low"], row["change_high"], "+.4f")
    return [f"{row['change']:+z.4f}", interval, row["verdict"]]


def _clipped(found: "FrozenScores") -> str:
    """ "557 in layers 1, 2 (Luo's rule …)"."""
    from outlierlens.report.phrases import dims_in_layers

    return f"{dims_in_layers(found.clip_dims) or 'nothing'} ({found.clip_source})"
