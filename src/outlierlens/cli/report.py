"""`report`: the main job, and one self-contained page of it; or of two models side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens.cli import common
from outlierlens.cli.common import Progress, Show, resumable, say
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.models import LoadOptions

DEFAULT = "mini-planted"
ReportTexts = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Text, as elsewhere. Default: shipped text, reviews for packaged samples, else excerpt.",
        show_default=False,
    ),
]


@common.loads_a_model
def report(
    model: Annotated[
        str | None,
        typer.Argument(
            help=f"Sample name, directory, weight file or hub id; mini-* need no download. Default: {DEFAULT}.",
            show_default=False,
        ),
    ] = None,
    data: ReportTexts = None,
    text_column: common.TextColumn = None,
    limit: common.Limit = 64,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Run directory. Default: runs/MODEL.")] = None,
    dims: Annotated[
        str | None, typer.Option("--dims", help="Dimensions to switch off; default: what scan finds.")
    ] = None,
    n_random: Annotated[int, typer.Option("--random", min=0, help="Random sets of the same size.")] = 19,
    n_matched: Annotated[int, typer.Option("--matched", min=0, help="Sets as large, at other positions by layer.")] = 5,
    max_length: common.MaxLength = 128,
    batch_size: common.BatchSize = 16,
    seed: common.Seed = 0,
    sweeps: Annotated[
        list[Path] | None, typer.Option("--sweep", help="Show this sweep.json as well; give it once a sweep.")
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option("--result", help="Show this result of another command too (its -o FILE); once a result."),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare", help="Two models side by side: named as MODEL, or run directories, or a scan's JSON."
        ),
    ] = None,
    card: Annotated[
        Path | None, typer.Option("--card", help="Also write a section for the model's card (Markdown) to this file.")
    ] = None,
    overwrite: common.Overwrite = False,
    no_progress: common.NoProgress = False,
    quiet: common.Quiet = False,
    *,
    load: "LoadOptions",
) -> None:
    """Find outliers, observe, switch off beside controls, and write one self-contained HTML report.

    MODEL may also be the results.json of an earlier report: the page is then made again, without torch. With --compare A B
    each model that has no finished report is measured, in a folder of its own, and one page shows both.
    """
    Show.choose("auto", False, quiet, card, overwrite)  # before the work, not after it
    if card:
        from outlierlens.report.card import refuse_others

        refuse_others(card)
    if compare:
        for option, value in (("MODEL", model), ("--sweep", sweeps), ("--result", results), ("--card", card)):
            if value:
                raise BadInput(f"--compare takes two models; {option} belongs to a report of one")
    elif not model:
        model = DEFAULT
    if model and model.endswith(".json") and Path(model).is_file():
        from outlierlens.cli.job import redraw

        if dims is not None or data is not None:
            raise BadInput(f"{model} holds measured results: --dims and --data need the model itself")
        page = redraw(Path(model), output, tuple(sweeps or ()), tuple(results or ()))
        _say_written(page, card, quiet)
        return
    from outlierlens.cli.job import Job, run
    from outlierlens.cli.report_pair import directory_of, report_pair

    names = compare or (model or DEFAULT,)
    job = Job(
        model=names[0], data=data, text_column=text_column,
        limit=limit, dims=dims, n_random=n_random,
        n_matched=n_matched, max_length=max_length, batch_size=batch_size, seed=seed,
        directory=output or Path("runs") / directory_of(names), overwrite=overwrite, command=common.reproduce(),
        sweeps=tuple(sweeps or ()), results=tuple(results or ()),
    )  # fmt: skip
    rows = job.directory / ("a/rows.jsonl" if compare else "rows.jsonl")
    with resumable(rows), Progress(not no_progress and not quiet) as progress:
        page = report_pair(compare, job, load, progress) if compare else run(job, load, progress)
    _say_written(page, card, quiet)


def _say_written(page: Path, card: Path | None, quiet: bool) -> None:
    """Write the card from the results beside the page, where one is wanted, and say what there is."""
    if card:
        from outlierlens.report.card import card as section
        from outlierlens.results import load
        from outlierlens.writing import write_text

        write_text(card, section(load(page.with_name("results.json"))))
    if not quiet:
        say(f"report: {page}")
        if card:
            say(f"card: {card}")
