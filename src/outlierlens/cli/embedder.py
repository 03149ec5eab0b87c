"""`export-embedder`: a layer and a fix as a model for sentence-transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens.cli import common
from outlierlens.cli.common import Progress, Show, print_table, say, warn
from outlierlens.cli.vectors import Fitting, clips
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.exported import Exported
    from outlierlens.models import LoadOptions
    from outlierlens.vectors.fixes import FixSpec


@common.loads_a_model
@clips
def export_embedder(
    model: common.Model,
    fix: Annotated[
        str, typer.Option("--fix", help="raw, clip, centre, standardize, abtt, whiten; abtt:3 and whiten:256 too.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write; it must not exist.")],
    layer: Annotated[
        str, typer.Option("--layer", help="last, embeddings or a block's number from 0; the rest is dropped.")
    ] = "last",
    k: Annotated[int | None, typer.Option("--k", min=1, help="Of abtt and whiten, as in abtt:3.")] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="End with vectors of length 1.")
    ] = False,
    check_data: Annotated[
        Path | None,
        typer.Option("--check-data", help="Score with and without the fix: file with sentence1, sentence2, score."),
    ] = None,
    max_length: common.MaxLength = 256,
    batch_size: common.BatchSize = 32,
    seed: common.Seed = 0,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    fitting: Fitting,
    load: "LoadOptions",
) -> None:
    """Write a sentence-transformers model of one layer with a fix in it, loadable without this package, and check it."""
    from dataclasses import replace

    from outlierlens.embedder.export import EmbedderOptions
    from outlierlens.embedder.export import export_embedder as export
    from outlierlens.embedder.folder import check_place

    show = Show.choose(format, json, quiet, None)
    spec = _fix(fix, k)
    if fitting.clip != "auto" and spec.kind != "clip":
        raise BadInput(f"--clip {fitting.clip} belongs to --fix clip, not to {spec.name}")
    if load.dtype != "float32":
        raise BadInput(f"--dtype {load.dtype}: an embedder is written in float32; leave --dtype out")
    check_place(output, overwrite=overwrite)
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = EmbedderOptions(
            fix=spec,
            clip=fitting.clip,
            layer=layer,
            normalize=normalize,
            max_length=max_length,
            batch_size=batch_size,
            fit_limit=fitting.fit_limit,
            seed=seed,
            overwrite=overwrite,
            progress=progress,
        )
        from outlierlens.data import REVIEWS, read_texts
        from outlierlens.models import load_model

        fit = fitting.texts(offline=load.offline)
        if fit is None and options.needs_text:
            fit = read_texts(REVIEWS)
            if show.format != "quiet":
                warn(f"fitting on the {len(fit):,} shipped film reviews; name a text like your own with --fit-data")
        pairs = None
        if check_data is not None:
            from outlierlens.embedder.pairs import read_pairs

            pairs = read_pairs(check_data)
        loaded = load_model(model, replace(load, dtype="float32"))
        found = export(loaded, output, options, fit=fit, check=pairs, command=common.reproduce())
    show.result(found, lambda made: print_exported(made, output))


def _fix(text: str, k: int | None) -> "FixSpec":
    from outlierlens.vectors.fixes import FixSpec, parse_fixes

    specs = parse_fixes(text)
    if len(specs) != 1:
        raise BadInput(f"--fix {text!r} names {len(specs)} fixes; an embedder has one")
    if k is None:
        return specs[0]
    if specs[0].k is not None:
        raise BadInput(f"--fix {text} and --k {k} both say a number; leave one out")
    return FixSpec(specs[0].kind, k)


def print_exported(found: "Exported", folder: Path) -> None:
    """What was written, the checks and the scores."""
    from outlierlens.embedder.card import describe

    for name, text in describe(found).items():
        say(f"{name}: {text}")
    rows = [list(row.values()) for row in found.records()]
    print_table("read back from the folder, against our own vectors", ["reader", "texts", "largest difference",
                "of the largest entry"], rows)  # fmt: skip
    if sts := found.sts:
        say(
            f"Spearman × 100 on {sts.n_pairs:,} pairs of {sts.source}: {100 * sts.raw:.2f} without the fix, "
            f"{100 * sts.fixed:.2f} with it, {100 * sts.exported:.2f} by {sts.reader} from the folder"
        )
        if sts.n_fit_dropped:
            say(f"{sts.n_fit_dropped:,} of these sentences were in the fit text too and were left out of it")
    for note in found.notes:
        say(f"note: {note}")
    say(f'written: {folder}; SentenceTransformer("{folder}") loads it')
