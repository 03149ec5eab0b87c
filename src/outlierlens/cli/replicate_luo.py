"""`replicate luo`: every experiment of Luo et al. (2021) for one model, in one run directory and one report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens.cli import common
from outlierlens.cli.common import Progress, Show, print_table, resumable, say, warn
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.luo_replicated import LuoReplication
    from outlierlens.models import LoadOptions

PARTS = "origin,probe,geometry,words,sts,frozen-sst2,frozen-sst5,frozen-imdb"


@common.loads_a_model
def luo(
    model: Annotated[str, typer.Argument(help="Sample name, directory, weight file or hub id.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder with sst2, sts, wic, sst5 and imdb in it. Default: the hub's copies."),
    ] = None,
    parts: Annotated[str, typer.Option("--parts", help="Which parts, by commas.")] = PARTS,
    clip: Annotated[
        str,
        typer.Option("--clip", help="auto (Luo's rule, or the most extreme), none, 557, 0-9:896;10-16:678, a name."),
    ] = "auto",
    full: Annotated[
        bool, typer.Option("--full", help="Everything the paper reads, for hours; else subsets that are stated.")
    ] = False,
    stack: Annotated[str | None, typer.Option("--stack", help="Which stream, where there are several.")] = None,
    batch_size: common.BatchSize = 32,
    cache_gb: Annotated[float, typer.Option("--cache-gb", help="Vectors may take so many gigabytes.")] = 8.0,
    seed: common.Seed = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory. Default: runs/MODEL-luo.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again: drop what was measured.")] = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    load: "LoadOptions",
) -> None:
    """Positions, geometry, clipping and what vectors are good for: all tables and figures of Luo et al. (2021).

    Each part is kept in the run directory when it is measured: the same command goes on where a run was stopped.
    """
    from outlierlens.replicate.luo import LuoJob, replicate_luo
    from outlierlens.replicate.luo_data import LuoData
    from outlierlens.report.files import OURS, write

    show = Show.choose(format, json, quiet, None)
    directory = output or Path("runs") / f"{Path(model).name}-luo"
    if not cache_gb > 0:
        raise BadInput(f"--cache-gb is {cache_gb}; it must be above 0")
    loud = not no_progress and show.format != "quiet"
    with resumable(directory / "parts"), Progress(loud) as progress:
        job = LuoJob(
            model=model,
            data=LuoData(None if data is None else str(data), load.offline),
            directory=directory,
            parts=tuple(part.strip() for part in parts.split(",") if part.strip()),
            clip=clip,
            full=full,
            stack=stack,
            cache_gb=cache_gb,
            batch_size=batch_size,
            seed=seed,
            overwrite=overwrite,
            command=common.reproduce(),
            say=warn if loud else lambda _: None,
            progress=progress,
        )
        made = replicate_luo(job, load)
    written = write(made, directory, overwrite=any((directory / name).exists() for name in OURS))
    assert made.luo is not None
    show.result(made.luo, print_luo)
    if show.format == "human":
        say(f"report: {written.page}")


def print_luo(found: "LuoReplication") -> None:
    """What clipping does to every data set, in sentences and as a table."""
    from outlierlens.report.luo import effect_table, luo_notes, luo_sentences

    say(f"{found.provenance.model}: clipped {found.clipping}")
    if effects := found.effects():
        table = effect_table(effects, "")
        print_table(
            "clipped against raw vectors",
            table.columns,
            [[f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row] for row in table.rows],
        )
        say(table.note)
    for sentence in luo_sentences(found):
        say(sentence)
    for verdict in [one for stack in (found.origin.stacks if found.origin else ()) for one in stack.verdicts]:
        for sentence in verdict.sentences:
            say(f"{verdict.dim}: {sentence}")
    minutes = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in found.seconds.items())
    say(f"minutes: {minutes}")
    for note in luo_notes(found):
        say(f"note: {note}")
