"""`layer-story`: damage by layer beside what the layer's values go with, from results that were measured before."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Show, print_table, say
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.layer_story import LayerStory


def layer_story(
    sweep: Annotated[
        Path, typer.Argument(help="results.json or sweep.json of a sweep with --windows single.", show_default=False)
    ],
    frequency: Annotated[Path | None, typer.Option("--frequency", help="What frequency measured (-o FILE).")] = None,
    attention: Annotated[Path | None, typer.Option("--attention", help="What attention measured (-o FILE).")] = None,
    special: Annotated[
        bool, typer.Option("--special/--no-special", help="Correlations over all tokens, special ones too.")
    ] = False,
    seed: common.Seed = 0,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Put the damage of each layer beside its correlation with frequency and attention (Puccetti et al. 2022)."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    from outlierlens.attended import Attention
    from outlierlens.frequent import Frequency
    from outlierlens.layer_story import layer_story as measure
    from outlierlens.swept import Sweep

    found = measure(
        _read(sweep, Sweep),
        frequency=None if frequency is None else _read(frequency, Frequency),
        attention=None if attention is None else _read(attention, Attention),
        view="all" if special else "without_special",
        seed=seed,
        command=common.reproduce(),
    )
    show.result(found, print_story)
    if chart is not None:
        from outlierlens.charts import layer_story as draw

        write_chart(chart, draw(found))


def _read(path: Path, kind: type) -> Any:
    """A result of this kind; of a run's results.json the first one in it."""
    from outlierlens.results import load

    found = load(path)
    if isinstance(found, kind):
        return found
    inside = [one for one in getattr(found, "sweeps", ()) if isinstance(one, kind)]
    if not inside:
        raise BadInput(f"{path} holds {type(found).__name__}, wanted is {kind.__name__}")
    return inside[0]


def print_story(story: "LayerStory") -> None:
    """A table of damage and correlations by layer, a line each, then the rank correlations over layers."""
    for line in story.lines:
        heads = ["layer", story.unit, "95 %", *(one.what for one in line.links)]
        rows = [
            [
                layer,
                f"{line.damage[row]:+.3f}",
                f"{line.damage_low[row]:+.3f} to {line.damage_high[row]:+.3f}",
                *(f"{one.value[row]:+.3f}" for one in line.links),
            ]
            for row, layer in enumerate(story.layers)
        ]
        print_table(f"{line.label} off in one layer: {story.task}", heads, rows)
        for one in line.links:
            noise = (
                f"; {one.noise_low:+.2f} to {one.noise_high:+.2f} by noise alone"
                if one.noise_low == one.noise_low
                else ""
            )
            say(
                f"{line.label} and {one.what}: rank correlation over {len(story.layers)} layers {one.rho:+.2f} "
                f"(95 % {one.rho_low:+.2f} to {one.rho_high:+.2f}{noise}), p {one.p:.3g}"
            )
    for note in story.notes:
        say(f"note: {note}")
