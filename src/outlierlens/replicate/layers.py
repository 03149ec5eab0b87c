"""Where a dimension does its damage, beside where it follows frequency and attention: one story by layer.

    story = layer_story(swept, frequency=found, attention=seen)     # results, also read back from files
    story.link("308", "frequency, raw").rho                         # rank correlation over layers, with its interval and p
    [row.damage for row in story.by_layer if row.dims == "308"]     # change of the task with it off in that layer alone

Puccetti et al. (2022) put the two side by side by eye; here they get a rank correlation across layers. Plain data, no torch.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from outlierlens.analyses.attention import Attention
from outlierlens.analyses.frequency import Frequency
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.errors import BadInput, pick
from outlierlens.results.document import Provenance
from outlierlens.results.finding import Finding
from outlierlens.results.rows import Estimate, Row
from outlierlens.statistics.bootstrap import percentile_interval
from outlierlens.statistics.means import NORMAL
from outlierlens.statistics.ranks import permutation_p, spearman, spearman_interval
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, P

FEWEST = 4  # layers that a rank correlation is taken over
N_DRAWS = 2000  # of damage and r from their intervals
VIEW: Literal["without_special"] = "without_special"  # tokens that correlations are of
SOURCES = {"raw": "frequency, raw", "log": "frequency, log", "attention": "attention"}  # by field


@dataclass(frozen=True, kw_only=True)
class LayerLink(Row):
    """Damage by layer against one correlation by layer."""

    dims: str
    """ablated"""
    what: str
    """|r| with"""
    rho: Annotated[Estimate, Change]
    """rank correlation: Spearman's, of the damage with |r|; its interval takes layers for draws, so it is too narrow where
    neighbouring ones go together (Bonett and Wright 2000)"""
    noise_low: Annotated[float, Change]
    """by noise alone, from: 95 % of the correlations of damage and r drawn anew from their own intervals"""
    noise_high: Annotated[float, Change]
    """to"""
    p: Annotated[float, P]
    """p: two-sided, from permutations of the layers (all of them where there are at most 10,000)"""


@dataclass(frozen=True, kw_only=True)
class LayerDamage(Row):
    """One dimension or set ablated in one layer alone, with r of |h| in the layer's output; for a set the mean |r|."""

    dims: str
    """ablated"""
    layer: int
    damage: Annotated[Estimate, Change]
    """{unit}: change of the {task}"""
    raw: Estimate | None = None
    """r with token counts"""
    log: Estimate | None = None
    """r with log counts"""
    attention: Estimate | None = None
    """r with attention received"""


def _lines(y: str) -> Lines:
    return Lines(rows="by_layer", x="layer", y=y, by="dims", captioned=False)


@dataclass(frozen=True, kw_only=True)
class LayerStory(Finding):
    """Damage of single-layer windows against the correlations of those layers."""

    title = "Damage and correlation, layer by layer"
    pictures = tuple(map(_lines, ("damage", *SOURCES)))

    links: tuple[LayerLink, ...]
    """Damage and correlation over layers"""
    by_layer: tuple[LayerDamage, ...]
    """Ablated in one layer alone"""

    def link(self, dims: str, what: str) -> LayerLink:
        """One of `links`; raises BadInput with those there are."""
        return pick(self.links, f"no link of {dims!r} with {what!r}", dims=dims, what=what)

    def sentences(self) -> Iterator[str]:
        """One for each dimension or set and each correlation that is known."""
        n = len(self.about.layers)
        for one in self.links:
            if math.isfinite(one.rho.value):
                said = f"{one.dims}: over {n} layers, damage and |r| with {one.what} have a rank correlation of"
                yield f"{said} {one.rho.written('+.2f')}, p {one.p:.3g}."


def layer_story(
    sweep: Sweep, *, frequency: Frequency | None = None, attention: Attention | None = None, seed: int = 0
) -> LayerStory:
    """Rank correlation, over layers, of the damage of each swept dimension with its correlations in the same layers.

    `sweep` was made with single-layer windows (`--windows single`); correlations are those of tokens that are not special.

    Raises:
        BadInput: no single-layer windows, another model or stream, no correlation given, or too few layers.
    """
    if sweep.windows != "single":
        raise BadInput(f"this sweep has windows {sweep.windows!r}; sweep with --windows single")
    if frequency is None and attention is None:
        raise BadInput("give the result of frequency or attention, or both, with the sweep")
    of = sweep.provenance
    for one in filter(None, (frequency, attention)):
        if (one.provenance.fingerprint, one.about.stack) != (of.fingerprint, sweep.about.stack):
            raise BadInput(
                f"the sweep is of {of.model} (stream {sweep.about.stack}), {type(one).__name__.lower()} of "
                f"{one.provenance.model} (stream {one.about.stack}), with other weights or another stream"
            )
    layers, swept = range(sweep.n_layers), defaultdict[tuple[int, ...], dict[int, Estimate]](dict)
    for effect in sweep.effects:
        if len(effect.layers) == 1:
            swept[effect.dims][effect.layers[0]] = effect.change
    whole = {dims: changes for dims, changes in swept.items() if {*changes} == {*layers}}
    if not whole or len(layers) < FEWEST:
        raise BadInput(
            f"a rank correlation over layers needs dimensions swept in each of at least {FEWEST} layers; here are "
            f"{len(layers)} layers and {len(whole)} dimensions or sets swept in all of them"
        )
    random, links, rows = np.random.default_rng([seed, 41]), list[LayerLink](), list[LayerDamage]()
    for dims in sorted(whole, key=lambda dims: (len(dims), dims)):
        label = ", ".join(map(str, dims))
        mine = [
            LayerDamage(
                dims=label, layer=layer, damage=whole[dims][layer], **_correlations(dims, layer, frequency, attention)
            )
            for layer in layers
        ]
        rows += mine
        links += [_link(mine, name, random) for name in SOURCES if getattr(mine[0], name) is not None]
    return LayerStory(
        provenance=Provenance.now(of.model, of.fingerprint, seed=seed, dtype=of.dtype),
        about=replace(sweep.about, metric="", unit=sweep.about.of_change, layers=tuple(layers), dims=()),
        links=tuple(links), by_layer=tuple(rows),
    )  # fmt: skip


def _correlations(
    dims: tuple[int, ...], layer: int, frequency: Frequency | None, attention: Attention | None
) -> dict[str, Estimate]:
    found = list[dict[str, Estimate]]()
    for dim in dims:
        mine = dict[str, Estimate]()
        if frequency is not None:
            row = frequency.row(str(layer), dim, VIEW)
            mine |= {"raw": row.raw, "log": row.log}
        if attention is not None:
            named = dim in attention.dims
            r = float(attention.r(VIEW)[layer, dim])
            mine["attention"] = attention.correlation(str(layer), dim, VIEW).r if named else Estimate(r)
        found.append(mine)
    sizes = {name: float(np.mean([abs(one[name].value) for one in found])) for name in found[0]}
    return found[0] if len(dims) == 1 else {name: Estimate(size) for name, size in sizes.items()}


def _link(rows: list[LayerDamage], name: str, random: np.random.Generator) -> LayerLink:
    damage, r = (
        np.array([[one.value, one.low, one.high] for one in (getattr(row, field) for row in rows)]).T
        for field in ("damage", name)
    )  # [value or end, layer]
    rho = float(spearman(damage[0], np.abs(r[0])))
    damages, rs = (
        value + (high - low) / (2 * round(NORMAL, 6)) * random.standard_normal((N_DRAWS, len(rows)))
        for value, low, high in (damage, r)
    )  # [draw, layer], normal with the interval's width
    low, high = percentile_interval(spearman(damages, np.abs(rs)), fewest=N_DRAWS)
    return LayerLink(
        dims=rows[0].dims, what=SOURCES[name], rho=Estimate(rho, *spearman_interval(rho, len(rows))),
        noise_low=float(low), noise_high=float(high), p=permutation_p(damage[0], np.abs(r[0]), random),
    )  # fmt: skip
