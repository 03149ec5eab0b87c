"""`sts` and `wic`: whether vectors say how alike sentences are, and whether a word means the same."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.vectors import Fitting, Reading, reads_vectors, repairs
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.data import Texts
    from outlierlens.models import LoadOptions
    from outlierlens.similar import Choice, Fitted, Similarity, TaskScores, WordInContext
    from outlierlens.similarity.pooling import Pooling
    from outlierlens.similarity.table import StsPairs, StsTask

POOLINGS = ("mean", "first", "last", "own")


@common.loads_a_model
@reads_vectors
@repairs
def sts(
    model: common.Model,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder with a folder a task (stsb/test.parquet). Default: the hub's own copies."),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option("--tasks", help="stsb,sickr,sts12, … sts16. Default: all that --data holds; of the hub, all."),
    ] = None,
    pooling: Annotated[
        str,
        typer.Option("--pooling", help="mean, first, last (token); own: as the model's 1_Pooling/config.json says."),
    ] = "mean",
    static: Annotated[
        list[Path] | None,
        typer.Option("--static", help="Word vectors beside them (word2vec: .bin, .txt, .vec); may be repeated."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=2, help="Use the first N pairs of each task.")] = None,
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
    """Score semantic textual similarity at every layer with every fix, from one pass over the sentences."""
    from outlierlens.models import load_model
    from outlierlens.similarity.sts import StsOptions
    from outlierlens.similarity.sts import sts as measure
    from outlierlens.similarity.table import DEV, TASKS, found_in, has_split, read_sts, sts_tasks

    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    if pooling not in POOLINGS:
        raise BadInput(f"--pooling is {pooling!r}; use {', '.join(POOLINGS)}")
    if reading.special and pooling != "mean":
        raise BadInput(f"--special belongs to --pooling mean; {pooling} says itself which tokens count")
    everything = tuple(TASKS.values()) if data is None else found_in(data)
    rows = everything if tasks is None else sts_tasks(tasks)
    pairs = [read_sts(task, data, limit=limit, offline=load.offline) for task in rows]
    dev = [read_sts(task, data, split=DEV, offline=load.offline) for task in rows if has_split(task, data, DEV)]
    dev += _stsb_dev(dev, data, load.offline)
    fit = fitting.texts(offline=load.offline) or _default_fit(rows, data, load.offline, fitting)
    with Progress(not no_progress and show.format != "quiet") as progress:
        loaded = load_model(model, load)
        options = StsOptions(
            pooling=_pooling(pooling, model, reading, load),
            read=reading.options(loaded, final_norm=True, progress=progress),
            fixes=fitting.specs,
            clip=fitting.clip,
            static=tuple(static or ()),
            fit_limit=fitting.fit_limit,
            seed=seed,
        )
        found = measure(loaded, pairs, options, fit=fit, dev=dev, command=common.reproduce())
    if chart:
        from outlierlens.charts.similarity import sts_layers

        write_chart(chart, sts_layers(found))
    show.result(found, print_similarity)


def _pooling(name: str, model: str, reading: Reading, load: "LoadOptions") -> "Pooling":
    from outlierlens.similarity.pooling import Pooling, own_pooling

    if name == "own":
        return own_pooling(model, load)
    return Pooling(name, reading.special, reading.max_length)


def _stsb_dev(dev: "list[StsPairs]", data: Path | None, offline: bool) -> "Iterator[StsPairs]":
    """STS-B's validation split, to choose a layer of tasks that have none of their own; none where it is not at hand."""
    from outlierlens.similarity.table import DEV, TASKS, has_split, read_sts

    stsb = TASKS["stsb"]
    if all(one.task.name != "stsb" for one in dev) and has_split(stsb, data, DEV):
        yield read_sts(stsb, data, split=DEV, offline=offline)


def _default_fit(rows: "tuple[StsTask, ...]", data: Path | None, offline: bool, fitting: Fitting) -> "Texts | None":
    from outlierlens.similarity.fitting import needs_text
    from outlierlens.similarity.table import fit_text

    return fit_text(rows, data, offline=offline) if needs_text(fitting.specs, fitting.clip) else None


def print_similarity(found: "Similarity") -> None:
    """What was read and fitted; for each task the choices and the static vectors; a verdict for each fix."""
    norm = ", through the final norm" if found.final_norm else ""
    say(
        f"{found.provenance.model}: {found.n_sentences:,} sentences, {found.pooling}{norm}; at most {found.max_length} tokens"
    )
    _print_fitted(found.fitted)
    for task in found.tasks:
        _print_task(found, task)
    for note in found.notes:
        say(f"note: {note}")


def _print_task(found: "Similarity", task: "TaskScores") -> None:
    sizes = ", ".join(f"{name} {size:,}" for name, size in zip(task.subsets, task.sizes, strict=True))
    title = (
        f"{task.title}: {task.n_pairs:,} pairs{f' ({sizes})' if sizes else ''}; Spearman's ρ × 100, all pairs together"
    )
    rows: list[list[Any]] = []
    for fix in found.fixes:
        same: dict[tuple[str, str], list[Choice]] = {}
        for one in task.choices:
            if one.fix == fix:
                same.setdefault((one.layer, one.raw_layer), []).append(one)
        rows += [_choice_row(found, task, alike) for alike in same.values()]
    for place, static in enumerate(found.static):
        for column, fix in enumerate(found.fixes):
            ways = [task.static.pooled, *((task.static.mean, task.static.weighted) if task.subsets else ())]
            if math.isfinite(ways[0][place, column]):
                rows.append(
                    [fix, "static", static.name, *(f"{100 * way[place, column]:.2f}" for way in ways), *[None] * 3]
                )
    scores = ["ρ × 100", *(["mean of subsets", "weighted"] if task.subsets else [])]
    say("")
    print_table(title, ["fix", "layer chosen", "layer", *scores, "change (95 %)", "raw layer", "verdict"], rows)
    held = next((one.chosen_on for one in task.choices if one.how == "held out"), None)
    if held:
        say(f"  held out: layer chosen on {held}")


def _choice_row(found: "Similarity", task: "TaskScores", alike: "list[Choice]") -> list[Any]:
    """One row of choices that came to the same layers."""
    one = alike[0]
    row, column = found.layers.index(one.layer), found.fixes.index(one.fix)
    ways = [task.layers.pooled, *((task.layers.mean, task.layers.weighted) if task.subsets else ())]
    changed = one.fix != "raw"
    nothing = one.fix == "clip" and one.layer not in found.fitted.clipped
    return [
        one.fix,
        ", ".join(choice.how for choice in alike),
        one.layer,
        *(f"{100 * way[row, column]:.2f}" for way in ways),
        f"{100 * one.change:+.2f} ({task.interval(one)})" if changed else None,
        one.raw_layer if changed else None,
        f"{one.verdict}: nothing to clip there" if nothing else one.verdict or None,
    ]


def _print_fitted(fitted: "Fitted") -> None:
    if fitted.source:
        left = f", {fitted.dropped:,} evaluated texts left out" if fitted.dropped else ""
        what = f"fixes fitted on {fitted.n:,} vectors of" if fitted.n else "dimensions to clip observed on"
        say(f"{what} {fitted.source}{left}")
    if fitted.clipped:
        from outlierlens.report.phrases import dims_in_layers

        say(f"clipped dimensions: {dims_in_layers(fitted.clipped)} ({fitted.clipping})")


@common.loads_a_model
@reads_vectors
@repairs
def wic(
    model: common.Model,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder with train.parquet and validation.parquet. Default: the hub's own copy."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=2, help="Use the first N pairs of each split.")] = None,
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
    """Say whether a word means the same in two sentences by the cosine of its vectors: all layers, thresholds and fixes."""
    from outlierlens.data import Texts, read_texts
    from outlierlens.models import load_model
    from outlierlens.similarity.wic import WicOptions, read_wic
    from outlierlens.similarity.wic import wic as measure

    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    if reading.special:
        raise BadInput("--special belongs to vectors of sentences; a word's vector is the mean of its own tokens")
    train, validation = (read_wic(data, split, limit=limit, offline=load.offline) for split in ("train", "validation"))
    fit = fitting.texts(offline=load.offline)
    if fit is None:
        # WiC has no split to spare: the paper's protocol reports train, and validation is what is held out.
        shipped = [read_texts(name) for name in ("reviews", "excerpt")]
        fit = Texts("the shipped reviews and excerpt", tuple(text for one in shipped for text in one.texts))
    with Progress(not no_progress and show.format != "quiet") as progress:
        loaded = load_model(model, load)
        options = WicOptions(
            read=reading.options(loaded, final_norm=True, progress=progress),
            max_length=reading.max_length,
            fixes=fitting.specs,
            clip=fitting.clip,
            fit_limit=fitting.fit_limit,
            seed=seed,
        )
        found = measure(loaded, train, validation, options, fit=fit, command=common.reproduce())
    if chart:
        from outlierlens.charts.similarity import wic_layers

        write_chart(chart, wic_layers(found))
    show.result(found, print_words)


def print_words(found: "WordInContext") -> None:
    """What was read and fitted, and one row for each kind of thresholds and fix."""

    norm = ", through the final norm" if found.final_norm else ""
    say(f"{found.provenance.model}: words as the mean of their sub-words{norm}; accuracy × 100")
    for split in found.data:
        left = f", {split.left_out:,} left out (word behind {found.max_length} tokens)" if split.left_out else ""
        say(f"  {split.split}: {split.n_pairs:,} pairs{left}; always “the same” is right in {100 * split.all_true:.2f}")
    _print_fitted(found.fitted)
    rows = list(found.shown())
    if rows:
        print_table("", list(rows[0]), [list(row.values()) for row in rows])
    say("thresholds: grid is 0.1 to 0.9, the paper's; any is every threshold that tells pairs of train apart")
    for note in found.notes:
        say(f"note: {note}")
