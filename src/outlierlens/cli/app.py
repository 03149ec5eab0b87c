"""The commands, in the order of `--help`; each is one thin function in a file of its own kind."""

from typing import Annotated

import typer

from outlierlens import __version__
from outlierlens.cli import (
    attack,
    attention,
    beyond_zero,
    count,
    detectors,
    doctor,
    downstream,
    embedder,
    explore,
    finetune,
    frequency,
    frequency_geometry,
    frozen,
    geometry,
    integrity,
    layer_story,
    measure,
    origin,
    predictions,
    pretrain,
    probe,
    pruning,
    quant,
    replicate,
    replicate_luo,
    replicate_puccetti,
    samples,
    similarity,
    sweep,
    track,
    weights,
)


def _group(name: str, about: str, *, completion: bool = False) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda token: token.replace("_", "-"),
        },
    )


app = _group(
    "outlierlens",
    "Find the handful of dimensions a Transformer cannot live without, switch them off, measure what breaks.",
    completion=True,
)
papers = _group("replicate", "A paper's experiments for any model.")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"outlierlens {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the handful of dimensions a Transformer cannot live without, switch them off, measure what breaks."""


app.command("scan")(weights.scan)
app.command("compare")(weights.compare)
app.command("fingerprint")(integrity.fingerprint)
app.command("verify")(integrity.verify)
app.command("observe")(measure.observe)
app.command("disable")(measure.disable)
app.command("sweep")(sweep.sweep)
app.command("beyond-zero")(beyond_zero.beyond_zero)
app.command("prune-check")(pruning.prune_check)
app.command("protect")(pruning.protect)
app.command("prune-experiment")(pruning.prune_experiment)
app.command("track")(track.track)
app.command("pretrain")(pretrain.pretrain)
app.command("outcomes")(pretrain.outcomes)
app.command("finetune")(finetune.finetune)
for paper in ("kovaleva-glue", "puccetti-glue"):
    papers.command(paper)(replicate.tables_of(paper))
papers.command("luo")(replicate_luo.luo)
papers.command("puccetti")(replicate_puccetti.puccetti)
app.add_typer(papers)
app.command("survival")(downstream.survival)
app.command("recover")(downstream.recover)
app.command("one-dimension")(downstream.one_dimension)
app.command("sts")(similarity.sts)
app.command("wic")(similarity.wic)
app.command("origin")(origin.origin)
app.command("detectors")(detectors.detectors)
app.command("geometry")(geometry.geometry)
app.command("frequency")(frequency.frequency)
app.command("frequency-geometry")(frequency_geometry.frequency_geometry)
app.command("predictions")(predictions.predictions)
app.command("attention")(attention.attention)
app.command("probe")(probe.probe)
app.command("quant")(quant.quant)
app.command("count")(count.count)
app.command("frozen")(frozen.frozen)
app.command("export-embedder")(embedder.export_embedder)
app.command("layer-story")(layer_story.layer_story)
app.command("attack")(attack.attack)
app.command("update-check")(attack.update_check)
app.command("report")(measure.report)
app.command("explore")(explore.explore)
app.command("doctor")(doctor.doctor)
app.command("samples")(samples.samples)
app.command("fetch")(samples.fetch)
