"""`probe`: what a linear probe reads of a token's position at every layer, and from which dimensions."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.vectors import Fitting, Reading, clips, reads_vectors
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text

if TYPE_CHECKING:
    from outlierlens.data import Texts
    from outlierlens.models import LoadOptions
    from outlierlens.probed import Change, LayerProbe, PositionProbe, ProbeScore

FULL_EPOCHS = 10  # the paper's
CLIP_TEXTS = 500  # that --clip auto observes where no --fit-data is named: argmin shares settle long before
NAMED_MOST = 4  # dimensions with a column of their own


@common.loads_a_model
@reads_vectors
@clips
def probe(
    model: common.Model,
    data: Annotated[
        str,
        typer.Option(
            "--data", help="Texts to train on: .txt, .jsonl, .csv, .tsv, .parquet or a hub id.", show_default=False
        ),
    ],
    dev_data: Annotated[
        str | None, typer.Option("--dev-data", help="Texts to evaluate. Default: a fifth of --data, drawn by --seed.")
    ] = None,
    text_column: common.TextColumn = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Train on N texts drawn by --seed. Default: up to 100,000 tokens of them."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The paper's protocol: 10 epochs over all texts, and all texts evaluated.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Passes over the training texts. Default: 1, with --full 10.")
    ] = None,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of Adam; the paper does not state its own.")] = 3e-3,
    probe_batch: Annotated[int, typer.Option("--probe-batch", min=1, help="Tokens of a training step.")] = 128,
    positions: Annotated[
        int | None,
        typer.Option("--positions", min=2, help="Positions at most. Default: as the longest text has tokens."),
    ] = None,
    row: Annotated[
        str, typer.Option("--row", help="Contributions from the row of the gold or of the predicted position.")
    ] = "gold",
    retrain: Annotated[
        bool, typer.Option("--retrain/--no-retrain", help="Also train a probe on the clipped vectors of each layer.")
    ] = True,
    redraws: Annotated[
        int,
        typer.Option(
            "--redraws", min=0, help="Draw training again N times for intervals; 0: over evaluated texts alone."
        ),
    ] = 7,
    seed: common.Seed = 0,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    reading: Reading,
    fitting: Fitting,
    load: "LoadOptions",
) -> None:
    """Train a linear probe a layer that predicts each token's position, and say which dimensions it reads (Luo et al. 2021)."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    if full and limit is not None:
        raise BadInput("--full takes all texts and --limit some; give one of them")
    from outlierlens.data import read_texts
    from outlierlens.models import load_model
    from outlierlens.probing import ProbeOptions, probe_positions, split_texts

    texts = read_texts(data, column=text_column, offline=load.offline)
    dev = None if dev_data is None else read_texts(dev_data, column=text_column, offline=load.offline)
    split = split_texts(texts, dev, seed=seed)
    loaded = load_model(model, load)
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = ProbeOptions(
            reading=reading.options(loaded, progress=progress),
            max_length=reading.max_length,
            positions=positions,
            special=reading.special,
            epochs=epochs or (FULL_EPOCHS if full else 1),
            learning_rate=lr,
            batch=probe_batch,
            limit=limit,
            whole=full,
            row=row,  # type: ignore[arg-type]
            retrain=retrain,
            redraws=redraws,
            seed=seed,
        )
        clipping = fitting.clipping(
            loaded, _to_observe(fitting, split.train, split.dev, load.offline) if fitting.clip == "auto" else None,
            reading.stack,
        )  # fmt: skip
        found = probe_positions(loaded, split, clipping, options, command=common.reproduce())
    if chart:
        from outlierlens.charts.probe import probe as draw

        write_chart(chart, draw(found))
    show.result(found, print_probe)


def _to_observe(fitting: Fitting, train: "Texts", dev: "Texts", offline: bool) -> "Texts":
    """What `--clip auto` observes: --fit-data without the evaluated texts, or some of the training texts."""
    from outlierlens.labelled.apart import apart

    fit = fitting.texts(offline=offline)
    if fit is None:
        return train.first(min(CLIP_TEXTS, fitting.fit_limit))
    return apart(fit, dev.texts, limit=fitting.fit_limit, seed=fitting.seed)[0]


def print_probe(found: "PositionProbe") -> None:
    """Accuracy by layer and by position, contributions by layer, and what clipping does to the accuracy."""
    from outlierlens.probed import bucket_accuracy, buckets, held_for, meaning

    special = "with special tokens" if found.special else "without special tokens (they count as positions)"
    epochs = "1 epoch" if found.epochs == 1 else f"{found.epochs} epochs"
    say(
        f"{found.provenance.model}: position of a token among {found.n_positions}, {special}; {epochs} over "
        f"{found.n_train_tokens:,} tokens of {found.n_train:,} texts, evaluated on {found.n_dev_tokens:,} of {found.n_dev:,}"
    )
    say(f"always position {found.majority}, the commonest: {found.majority_accuracy:.1%}")
    for sentence in meaning(found):
        say(f"note: {sentence}")
    ranges = [str(first) if first == last else f"{first}–{last}" for first, last in buckets(found.n_positions)]
    rows = [
        [one.layer, f"{one.raw.accuracy:.1%}", _interval(one.raw), f"{one.raw.within_one:.1%}", one.raw.loss,
         *(_percent(share) for share in bucket_accuracy(found, one.raw))]
        for one in found.layers
    ]  # fmt: skip
    print_table("accuracy", ["layer", "all", "95 %", "within 1", "loss (nats)", *ranges], rows)
    _print_contributions(found)
    if any(one.clipped for one in found.layers):
        heads = ["layer", "clipped", "accuracy", "same probe", "change", "95 %", "trained again", "change", "95 %"]
        print_table("accuracy on clipped vectors", heads, [_clipped(found, one) for one in found.layers if one.clipped])
    say(held_for(found))
    say(f"clipping {found.clip}: {found.clip_source}")
    for note in found.notes:
        say(f"note: {note}")


def _print_contributions(found: "PositionProbe") -> None:
    shown = found.named[:NAMED_MOST]
    rows = [
        [one.layer, one.largest.dim, one.largest.value,
         *(f"{named.value:.3g} ({named.rank}; {one.weight_rank(named.dim)})" for named in one.named[:NAMED_MOST]),
         one.mean, one.other.dim, one.other.value]
        for one in found.layers
    ]  # fmt: skip
    named = [f"dim {dim} (rank; of |w| alone)" for dim in shown]
    heads = ["layer", "largest dim", "largest", *named, "mean of all", "highest other dim", "highest other"]
    print_table(f"contribution |w · v|, mean over tokens, row of the {found.row} position", heads, rows)
    if len(found.named) > NAMED_MOST:
        say(f"{len(found.named) - NAMED_MOST} more named dimensions stand in the result: {found.named[NAMED_MOST:]}")


def _clipped(found: "PositionProbe", one: "LayerProbe") -> list[str | None]:
    cells: list[str | None] = [one.layer, ", ".join(map(str, one.clipped_dims)), f"{one.raw.accuracy:.1%}"]
    for score, change in ((one.clipped, one.clipped_change), (one.retrained, one.retrained_change)):
        cells += [None] * 3 if score is None or change is None else [f"{score.accuracy:.1%}", *_change(found, change)]
    return cells


def _change(found: "PositionProbe", change: "Change") -> tuple[str, str]:
    return f"{change.value:+.1%}", found.interval(change)


def _interval(score: "ProbeScore") -> str:
    return interval_text(score.low, score.high, ".1%")


def _percent(share: float) -> str | None:
    return None if math.isnan(share) else f"{share:.1%}"
