"""`track`: outlier dimensions over the checkpoints of a training run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.measure import StackOption
from outlierlens.errors import BadInput
from outlierlens.layer_words import number_of_layers

if TYPE_CHECKING:
    from outlierlens.tracked import ChangePoint, Track

TRACK = "track.json"


def track(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            help="Folder of checkpoints, checkpoints, hub ids with steps in their names, a file of watch rows, mini-bert.",
            show_default=False,
        ),
    ],
    revisions: Annotated[
        str, typer.Option("--revisions", help="Hub revisions of one model: step0,step512,step1000.")
    ] = "",
    steps: Annotated[
        str,
        typer.Option("--steps", help="Steps of the checkpoints in their order, where names do not say: 0,500,1000."),
    ] = "",
    log: Annotated[
        Path | None, typer.Option("--log", help="trainer_state.json, or JSON lines with step and loss. Default: found.")
    ] = None,
    n_sigma: Annotated[float, typer.Option("--n-sigma", help="Threshold on |z|.")] = 3.0,
    min_layer_fraction: Annotated[
        float, typer.Option("--min-layer-fraction", help="Share of layers that must pass.")
    ] = 0.5,
    dims: Annotated[str | None, typer.Option("--dims", help="Follow these too, whatever they do: 507,100.")] = None,
    layer: Annotated[
        int | None, typer.Option("--layer", min=0, help="Layer that is drawn. Default: the middle.")
    ] = None,
    stack: StackOption = None,
    norm: Annotated[
        str | None, typer.Option("--norm", help="Pre-norm blocks: which reading norm. Default: the first.")
    ] = None,
    text: Annotated[
        str, typer.Option("--text", help="Record this text's hidden states: loads every checkpoint whole.")
    ] = "",
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out checkpoints that cannot be read, with a note.")
    ] = False,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Draw all panels to this file: .png, .svg, .html or .json.")
    ] = None,
    seed: common.Seed = 0,
    arch: common.Arch = None,
    family: common.Family = None,
    subfolder: common.Subfolder = "",
    token: common.Token = None,
    offline: common.Offline = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write track.json and a report into this folder.")
    ] = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
) -> None:
    """Find when dimensions became outliers over a training run, and how that stands to the loss.

    Of each checkpoint only the norm vectors are read.
    """
    from outlierlens.emergence import EmergenceOptions
    from outlierlens.tracking import TrackOptions, track_and_scan

    show = Show.choose(format, json, quiet, None)
    _check(chart, output, overwrite)
    options = TrackOptions(
        emergence=EmergenceOptions(
            n_sigma=n_sigma, min_layer_fraction=min_layer_fraction, dims=_dims(dims), layer=layer, seed=seed
        ),
        revisions=tuple(part.strip() for part in revisions.split(",") if part.strip()),
        steps=_steps(steps), log=log, stack=stack, norm=norm, text=text, skip_damaged=skip_damaged,
        row=common.row_of(arch, family),
        subfolder=subfolder, token=token, offline=offline,
    )  # fmt: skip
    with Progress(not no_progress and show.format != "quiet") as progress:
        from dataclasses import replace

        found, scan = track_and_scan(checkpoints, replace(options, progress=progress), command=common.reproduce())
    written = []
    if output:
        from outlierlens.report import ReportData, write
        from outlierlens.results import save

        save(found, output / TRACK)
        data = ReportData(provenance=found.provenance, scan=scan, tracks=(found,))
        written = [f"report: {write(data, output, overwrite=True, also=[output / TRACK]).page}"]
    if chart:
        from outlierlens.charts import emergence

        written.append(f"chart: {write_chart(chart, emergence(found))}")
    show.result(found, print_track)
    if show.format == "human":
        for line in written:
            say(line)


def _check(chart: Path | None, output: Path | None, overwrite: bool) -> None:
    """Refuse before anything is read."""
    check_chart(chart, replace=overwrite)
    if output and output.exists() and not output.is_dir():
        raise BadInput(f"{output} is a file; name a folder with -o")
    if output and not overwrite:
        there = [name for name in (TRACK, "results.json", "report.html") if (output / name).exists()]
        if there:
            raise BadInput(f"{output} holds {there[0]} already; name another folder with -o, or use --overwrite")


def _dims(text: str | None) -> tuple[int, ...]:
    return spelling.plain_dims(text, remedy="a dimension is followed in all of them") if text else ()


def _steps(text: str) -> tuple[int, ...]:
    parts = [part.strip().replace("_", "") for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 13 for part in parts):
        raise BadInput(f"cannot read steps {text!r}; write them as 0,500,1000")
    return tuple(int(part) for part in parts)


def print_track(found: "Track") -> None:
    """What was found in sentences, a row for each followed dimension, and what was read."""
    from outlierlens.report.emergence import track_sentences

    say(
        f"{found.provenance.model}, {found.stack}, {found.site}: {len(found.steps)} steps from {int(found.steps[0]):,} to "
        f"{int(found.steps[-1]):,}, {number_of_layers(found.n_layers)} × {found.width:,} dimensions"
    )
    for sentence in track_sentences(found):
        say(sentence)
    rows = [
        [
            one.dim,
            one.passes,
            _step(one.step),
            _step(one.scale_step),
            *([_step(one.bias_step)] if found.has_bias else []),
            f"{one.layers_scale}/{found.n_layers}",
            *([f"{one.layers_bias}/{found.n_layers}"] if found.has_bias else []),
            one.z_scale,
            *([one.z_bias] if found.has_bias else []),
            _leaves(one.leaves),
            f"{one.lead.steps:+,} [{one.lead.low:+,}, {one.lead.high:+,}]" if one.lead else None,
        ]
        for one in found.emergences
    ]
    heads = ["dim", "stands out for", "from step", "scale from", *(["bias from"] if found.has_bias else [])]
    heads += ["layers: scale", *(["layers: bias"] if found.has_bias else [])]
    heads += ["|z| scale", *(["|z| bias"] if found.has_bias else [])]
    if rows:
        print_table("", [*heads, "starts to leave", "against plateau"], rows)
    if found.total_bytes:
        share = found.bytes_read / found.total_bytes
        say(f"read {found.bytes_read:,} of {found.total_bytes:,} bytes ({share:.2%})")
    for note in found.notes:
        say(f"note: {note}")


def _leaves(onset: "ChangePoint | None") -> str | None:
    if onset is None:
        return None
    return f"{onset.step:,} [{onset.low:,}, {onset.high:,}]" if onset.sure else f"not settled (p {onset.p:.2g})"


def _step(step: int | None) -> str | None:
    return None if step is None else f"{step:,}"
