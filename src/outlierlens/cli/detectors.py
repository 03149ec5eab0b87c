"""`detectors`: every published definition of an outlier dimension side by side, beside its nulls; and super weights."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text

if TYPE_CHECKING:
    from outlierlens.defined import Detectors, Found
    from outlierlens.models import LoadOptions
    from outlierlens.super_weights import SuperWeights

SHOWN = 8  # dimensions of a cell


@common.loads_a_model
def detectors(
    model: common.Model,
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: common.Limit = None,
    stack: Annotated[str | None, typer.Option("--stack", help="Which stream, where there are several.")] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option("--threshold", help="NAME=VALUE, again and again; --verbose lists the names.", show_default=False),
    ] = None,
    nulls: Annotated[
        str, typer.Option("--nulls", help="random, shuffled, rotated by commas, or none.")
    ] = "random,shuffled,rotated",
    special: Annotated[
        bool, typer.Option("--special/--no-special", help="Count special tokens ([CLS], [SEP], <s>) too.")
    ] = True,
    sentence: Annotated[
        str, typer.Option("--sentence", help="What stands for a text (rudman): auto, first, last or mean.")
    ] = "auto",
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Text of the search for super weights. Default: the first text.")
    ] = None,
    trial_texts: Annotated[
        int,
        typer.Option("--trial-texts", min=0, help="Test super weights on N texts: zero, restore, scale. 0: do not."),
    ] = 0,
    layer: Annotated[str | None, typer.Option("--layer", help="Also show the agreement in this layer.")] = None,
    max_length: common.MaxLength = 128,
    batch_size: common.BatchSize = 16,
    seed: common.Seed = 0,
    chart: common.Chart = None,
    super_chart: Annotated[
        Path | None, typer.Option("--super-chart", help="Draw the super weights to this file: likewise.")
    ] = None,
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
    """Apply every published definition of an outlier dimension; say where they agree and what they find in nulls."""
    show = Show.choose(format, json, quiet, output, overwrite)
    for path in (chart, super_chart):
        check_chart(path, replace=overwrite)
    if sentence not in ("auto", "first", "last", "mean"):
        raise BadInput(f"--sentence is {sentence!r}; use auto, first, last or mean")
    from outlierlens.data import read_texts
    from outlierlens.definitions.collect import PassOptions
    from outlierlens.definitions.run import DetectorOptions
    from outlierlens.definitions.run import detectors as measure
    from outlierlens.definitions.settings import Settings
    from outlierlens.models import load_model

    settings = Settings.parse(threshold or ())
    wanted = () if nulls == "none" else tuple(part.strip() for part in nulls.split(","))
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = DetectorOptions(
            reading=PassOptions(
                settings, max_length, batch_size, special, sentence, progress=progress  # type: ignore[arg-type]
            ),
            stack=stack,
            nulls=wanted,  # type: ignore[arg-type]
            prompt=prompt,
            trial_texts=trial_texts,
            seed=seed,
        )  # fmt: skip
        texts = read_texts(data, column=text_column, limit=limit, offline=load.offline)
        loaded = load_model(model, load)
        found = measure(loaded, texts, options, command=common.reproduce())
    if layer is not None:
        found.agreement(layer)  # an unknown layer is told before anything is shown
    if chart:
        from outlierlens.charts.detectors import detectors as draw

        write_chart(chart, draw(found))
    if super_chart:
        from outlierlens.charts.super_weights import super_weights as draw_weights

        write_chart(super_chart, draw_weights(found))
    show.result(found, lambda value: print_detectors(value, layer, verbose))


def print_detectors(found: "Detectors", layer: str | None = None, verbose: bool = False) -> None:
    """What each definition finds and under which null; where they agree; numbers of layers; super weights."""
    counted = "special tokens counted" if found.special else "without special tokens"
    say(
        f"{found.provenance.model} on {found.data}: {found.n_texts:,} texts, {found.n_tokens:,} tokens, {counted}; "
        f"{found.hidden_size:,} dimensions, stream {found.stack}"
    )
    others = found.conditions[1:]
    rows = []
    for name in found.names:
        one = found.of(name)
        rows.append(
            [
                name,
                len(one.dims) if one.applies else None,
                _dims(one),
                _layers(one),
                *(_count(found.of(name, c)) for c in others),
            ]
        )
    print_table("found, and how many under nulls", ("rule", "n", "dimensions", "layers", *others), rows)
    matrix(found, None)
    if layer is not None:
        matrix(found, layer)
    votes = {dim: by for dim, by in found.votes().items() if len(by) > 1}
    for dim, by in list(votes.items())[:SHOWN]:
        say(f"dimension {dim}: found by {len(by)} of {len(found.names)} definitions ({', '.join(by)})")
    if verbose:
        _print_definitions(found)
        _print_values(found)
    if found.super_weights is not None:
        print_super_weights(found.super_weights)
    for note in found.notes:
        say(f"note: {note}")


def matrix(found: "Detectors", layer: str | None) -> None:
    """The table of Jaccard indices; definitions that find nothing are left out."""
    values = found.agreement(layer)
    kept = [i for i in range(len(found.names)) if not math.isnan(values[i, i])]
    where = "pooled over layers" if layer is None else f"layer {layer}"
    if not kept:
        say(f"agreement, {where}: no definition finds anything")
        return
    heads = ("rule", *(found.names[i] for i in kept))
    rows = [[found.names[i], *(f"{values[i, j]:.2f}" for j in kept)] for i in kept]
    say(f"agreement (Jaccard), {where}")
    print_table("", heads, rows)


def print_super_weights(found: "SuperWeights") -> None:
    """The weights in the order they were removed, why the search ended, and the tests."""
    if found.weights:
        rows = [
            [one.layer, one.row, one.column, f"{one.weight:.3f}", one.rank, f"{one.read:.1f}", f"{one.written:.1f}",
             repr(one.token), one.position, f"{one.share:.0%}", f"{one.remaining:.1f}"]
            for one in found.weights
        ]  # fmt: skip
        heads = ("layer", "row", "column", "weight", "rank", "input", "output", "token", "position", "share", "left")
        print_table(f"super weights (spikes above {found.spike:g} on one prompt)", heads, rows)
    largest = int(found.before.written.argmax())
    say(
        f"super weights: {len(found.weights)} removed; {found.stopped}. The largest output of a last linear on the prompt is "
        f"{found.before.written[largest]:.1f} (layer {largest}), {found.after.written.max():.1f} afterwards"
    )
    if found.trials:
        rows = [
            [
                one.name,
                f"{one.value:.4g}",
                f"{one.change:+.3g}",
                interval_text(one.low, one.high, "+.3g") if one.kind != "intact" else None,
            ]
            for one in found.trials
        ]
        print_table(
            f"{found.task} ({found.unit}) on {found.n_texts} texts", ("weights", "value", "change", "95 %"), rows
        )
        if not math.isnan(found.restores):
            say(f"putting back {found.restored_tokens:,} super activations undoes {found.restores:.0%} of the damage")


def _dims(found: "Found") -> str:
    if not found.applies:
        return found.why_not
    more = f" and {len(found.dims) - SHOWN} more" if len(found.dims) > SHOWN else ""
    return ", ".join(map(str, found.dims[:SHOWN])) + more


def _layers(found: "Found") -> str | None:
    """Layers where any of the dimensions is found, runs of blocks joined."""
    names = [layer for layer, dims in (found.layers or {}).items() if set(dims) & set(found.dims)]
    if not names:
        return None
    parts = [name for name in names if not name.isdecimal()][:1] if names[0] == "embeddings" else []
    blocks = sorted(int(name) for name in names if name.isdecimal())
    starts = [one for one in blocks if one - 1 not in blocks]
    ends = [one for one in blocks if one + 1 not in blocks]
    parts += [f"{a}–{b}" if a != b else f"{a}" for a, b in zip(starts, ends, strict=True)]
    parts += ["final norm"] if "final norm" in names else []
    return ", ".join(parts)


def _count(found: "Found") -> Any:
    return len(found.dims) if found.applies else None


def _print_definitions(found: "Detectors") -> None:
    for one in found.definitions:
        given = ", ".join(f"{name}={value:g}" for name, value in one.thresholds.items())
        ours = f" Ours: {one.ours}." if one.ours else ""
        say(f"{one.name} ({one.title}): {one.tap}: {one.rule}; {one.pooled}. {given}. {one.source}.{ours}")


def _print_values(found: "Detectors") -> None:
    for values in found.values:
        rows = [
            [
                layer, f"{values.mean_cosine[i]:.3f}", f"{values.he_kurtosis[i]:.1f}", f"{values.bondarenko_out[i]:.1f}",
                f"{values.bondarenko_out_max[i]:.1f}", f"{values.inf_norm[i]:.1f}",
                *(None if math.isnan(one[i]) else f"{one[i]:.1f}"
                  for one in (values.bondarenko_ffn, values.bondarenko_ffn_max)),
            ]
            for i, layer in enumerate(values.layers)
        ]  # fmt: skip
        heads = ("layer", "mean cosine", "He", "Bondarenko out", "largest", "inf norm", "Bondarenko ffn", "largest")
        print_table(f"layers: {values.condition}", heads, rows)
