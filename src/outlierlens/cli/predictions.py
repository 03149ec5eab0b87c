"""`predictions`: what a model says with dimensions off, and how frequent in a corpus the tokens are that it says."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.measure import StackOption
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text

if TYPE_CHECKING:
    from outlierlens.models import LoadOptions
    from outlierlens.predicted import Heard, PartsOfSpeech, Predictions, Shift, Spoken
    from outlierlens.predictions.speech import Tagger

HEADS = (
    "input",
    "off",
    "verdict",
    "times",
    "Δ ln frequency",
    "95 %",
    "random",
    "p",
    "Δ expected",
    "95 %",
    "random",
    "p",
)
MORE = ("input", "off", "accuracy", "surprisal", "entropy", "slope", "ρ", "slope, exp.", "ρ, exp.", "KL to corpus", "KL from",
        "special", "types", "says")  # fmt: skip
OF_MORE = ("accuracy", "surprisal", "entropy", "slope", "spearman", "slope_expected", "spearman_expected", "kl_to_unigram",
           "kl_from_unigram", "special")  # fmt: skip
EVERY = ("input", "off", "measure", "intact", "ablated", "change", "95 %", "random", "p")


@common.loads_a_model
def predictions(
    model: common.Model,
    counts: Annotated[
        str,
        typer.Option(
            "--counts", help="Token counts (of `count`, or as published); several by commas.", show_default=False
        ),
    ],
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Use the first N texts.")] = 200,
    dims: Annotated[
        str | None,
        typer.Option("--dims", help="308,381, or layer by layer: 0-9:896;10-16:678. Default: what scan finds."),
    ] = None,
    input: Annotated[
        str | None, typer.Option("--input", help="masked, unmasked; next of causal models. Default: all there are.")
    ] = None,
    intervention: Annotated[
        str | None,
        typer.Option("--intervention", help="layers, last_hidden, logits, by commas. Default: all that differ."),
    ] = None,
    mode: Annotated[
        str, typer.Option("--mode", help="Off in all layers: weights, norms, zero, mean, resample or writes.")
    ] = "weights",
    stack: StackOption = None,
    n_random: Annotated[int, typer.Option("--random", min=0, help="Random sets of as many dimensions.")] = 19,
    smoothing: Annotated[
        float, typer.Option("--smoothing", help="Occurrences added to every token of the corpus.")
    ] = 1.0,
    mask_fraction: Annotated[float, typer.Option("--mask-fraction", help="Share of tokens to mask.")] = 0.15,
    max_length: common.MaxLength = 128,
    batch_size: common.BatchSize = 16,
    tagger: Annotated[
        str | None,
        typer.Option("--tagger", help="spaCy pipeline (name or folder): parts of speech of predictions too."),
    ] = None,
    tagged: Annotated[int, typer.Option("--tagged", min=1, help="Predictions that are tagged, at most.")] = 2000,
    paper_compat: Annotated[
        bool,
        typer.Option(
            "--paper-compat",
            help="As released: counts by text, BERT's head loses the dimensions too, tokens tagged alone.",
        ),
    ] = False,
    bootstrap: common.Bootstrap = 1000,
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
    """Compare what a model predicts intact, with dimensions off and with random ones off: frequent tokens, or rare ones?"""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    from outlierlens.data import read_texts
    from outlierlens.models import load_model
    from outlierlens.predictions.run import PredictionOptions
    from outlierlens.predictions.run import predictions as measure
    from outlierlens.tasks.base import TaskOptions
    from outlierlens.token_counts import compat_counts, read_counts

    asked = spelling.parse_dims(dims) if dims else None
    options = PredictionOptions(
        inputs=_names(input),
        interventions=_names(intervention),
        mode=mode,  # type: ignore[arg-type]
        stack=stack,
        n_random=n_random,
        smoothing=smoothing,
        n_bootstrap=bootstrap,
        tagger=_tagger(tagger),
        tagged=tagged,
        paper_compat=paper_compat,
        task=TaskOptions(max_length=max_length, batch_size=batch_size, mask_fraction=mask_fraction, seed=seed),
    )
    texts = read_texts(data, column=text_column, limit=limit, offline=load.offline)
    loaded = load_model(model, load)
    if loaded.tokenizer is None:
        raise BadInput(f"{model} has no tokenizer beside it, so texts cannot be read; use a model with one")
    counted = (compat_counts if paper_compat else read_counts)(counts, loaded.tokenizer)
    with Progress(not no_progress and show.format != "quiet") as progress:
        found = measure(loaded, texts, counted, asked, options, command=common.reproduce(), progress=progress)
    if chart:
        from outlierlens.charts.predictions import predictions as draw

        write_chart(chart, draw(found))
    show.result(found, lambda value: print_predictions(value, verbose))


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _tagger(name: str | None) -> "Tagger | None":
    if name is None:
        return None
    from outlierlens.predictions.speech import Tagger

    return Tagger.load(name)


def print_predictions(found: "Predictions", verbose: bool = False) -> None:
    """The direction of every intervention on every input, then what each condition says."""
    from outlierlens.predicted import prediction_rows

    dims = ", ".join(map(str, found.dims[:8])) + (f" and {len(found.dims) - 8} more" if len(found.dims) > 8 else "")
    inputs = ", ".join(f"{one.input} {one.n_positions:,} tokens of {one.n_texts:,} texts" for one in found.heard)
    say(
        f"{found.provenance.model} on {found.data}: {inputs}; frequencies of {found.n_counted:,} tokens ({found.counts})"
    )
    say(
        f"off: {dims}; in all layers by {found.mode}; beside {len(found.shifts[0].random)} random sets of as many dimensions"
    )
    rows = []
    for shift in found.shifts:
        cells = [
            shift.input,
            shift.intervention,
            shift.direction,
            f"{shift.times:.2f}",
            *_cells(found, shift, "log_frequency"),
            *_cells(found, shift, "expected_log_frequency"),
        ]
        rows.append(cells)
    print_table("corpus frequency of predicted tokens, ablated − intact", HEADS, rows)
    print_table("what is said", MORE, [cells for one in found.heard for cells in _said(one)])
    if verbose:
        every = [
            [row["input"], row["intervention"], row["measure"], f"{row['intact']:z.4f}", f"{row['ablated']:z.4f}",
             f"{row['change']:+z.4f}", interval_text(row["low"], row["high"], "+.4f"),
             _signed(row["random_median"]), _p(row["p"])]
            for row in prediction_rows(found)
        ]  # fmt: skip
        print_table("every measure", EVERY, every)
    for speech in found.speech:
        print_speech(speech, verbose)
    say(
        "times: how much more frequent in the corpus (geometric mean); 95 % intervals over texts; p by rank of the size"
    )
    for note in found.notes:
        say(f"note: {note}")


def print_speech(speech: "PartsOfSpeech", verbose: bool = False) -> None:
    """Shares of parts of speech, the largest change first; with `verbose`, what became what."""
    how = "single tokens" if speech.alone else "words in their sentence"
    rows = [
        [one.tag, f"{one.intact:.1%}", f"{one.ablated:.1%}", f"{one.change:+.1%}", speech.interval(one)]
        for one in (speech.kept, *sorted(speech.shares, key=lambda one: -abs(one.change)))
    ]
    title = f"parts of speech: {speech.input}, {speech.intervention}; {speech.n:,} predictions, {how} ({speech.tagger})"
    print_table(title, ("part", "intact", "ablated", "change", "95 %"), rows)
    if verbose:
        for name, counts in (("intact", speech.intact), ("ablated", speech.ablated)):
            cells = [[tag, *row] for tag, row in zip(speech.tags, counts.tolist(), strict=True)]
            print_table(f"{name}: real part of speech (rows) and predicted", ("real", *speech.tags), cells)


def _cells(found: "Predictions", shift: "Shift", measure: str) -> list[Any]:
    change = shift.changes[measure]
    return [_signed(change.change), found.interval(shift, measure), _signed(change.random_median), change.p]


def _said(heard: "Heard") -> list[list[Any]]:
    spoken = [("nothing", heard.intact), *((shift.intervention, shift.chosen) for shift in heard.shifts)]
    return [[heard.input, name, *_numbers(one), one.n_types, _words(one)] for name, one in spoken]


def _numbers(spoken: "Spoken") -> list[str]:
    shares = ("accuracy", "special")
    return [f"{spoken.values[name]:.1%}" if name in shares else f"{spoken.values[name]:.2f}" for name in OF_MORE]


def _words(spoken: "Spoken") -> str:
    return ", ".join(f"{word.token} {word.share:.0%}" for word in spoken.top[:5])


def _signed(value: float) -> str | None:
    return f"{value:+z.2f}" if math.isfinite(value) else None


def _p(value: float) -> float | None:
    return value if math.isfinite(value) else None
