"""What is said of damage and correlations layer by layer, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

from outlierlens.experiments.layer_story.charts import layer_story
from outlierlens.experiments.layer_story.result import LayerStory, Line, Link, link_rows
from outlierlens.view.section import Cell, Change, Interval, P, Rows, Section, Span

NAME = "layer-stories"
LINKS = ("off", "|r| with", "rank correlation", "95 %", "by noise alone", "p")
NOTE = (
    "Rank correlation over layers of the damage with |r|. By noise alone: 95 % of those of damage and r drawn anew from their "
    "own intervals. p: from permutations of the layers."
)


def sections(found: LayerStory, *, verbose: bool = False) -> Iterator[Section]:
    """Rank correlations over layers, then damage and r of every layer; with `verbose` the intervals of r."""
    links = tuple(_link(line, one) for line in found.lines for one in line.links)
    tables = (Rows("Damage and correlation over layers", LINKS, links, NOTE), _by_layer(found, verbose))
    charts = (layer_story(found, name=NAME),)
    yield Section(NAME, "Damage and correlation, layer by layer", sentences(found), charts, tables)


def sentences(found: LayerStory) -> tuple[str, ...]:
    """One for each dimension or set and each correlation that is known."""
    return tuple(
        f"{row['dims']}: over {len(found.layers)} layers, damage and |r| with {row['with']} have a rank correlation of "
        f"{row['rho']:+.2f} (95 % interval {row['rho_low']:+.2f} to {row['rho_high']:+.2f}, p {row['p']:.3g})."
        for row in link_rows(found)
        if math.isfinite(row["rho"])
    )


def _link(line: Line, one: Link) -> tuple[Cell, ...]:
    noise = Interval(one.noise_low, one.noise_high) if math.isfinite(one.noise_low) else None
    return (line.label, one.what, Change(one.rho), Interval(one.rho_low, one.rho_high), noise, P(one.p))


def _by_layer(found: LayerStory, verbose: bool) -> Rows:
    heads = ["off", "layer", found.unit, "95 %"]
    for one in found.lines[0].links if found.lines else ():
        heads += [f"r with {one.what}", "95 %"] if verbose else [f"r with {one.what}"]
    rows = []
    for line in found.lines:
        for place, layer in enumerate(found.layers):
            ends = Interval(float(line.damage_low[place]), float(line.damage_high[place]))
            cells: list[Cell] = [line.label, layer, Change(line.damage[place]), ends]
            for one in line.links:
                known = Span(float(one.low[place]), float(one.high[place])) if math.isfinite(one.low[place]) else None
                cells += [float(one.value[place]), known] if verbose else [float(one.value[place])]
            rows.append(tuple(cells))
    tokens = "special tokens counted" if found.view == "all" else "without special tokens"
    note = f"r: of |h| in the layer's output, {tokens}; of a set the mean |r| of its dimensions."
    return Rows(f"Off in one layer alone: change of the {found.task}", tuple(heads), tuple(rows), note)
