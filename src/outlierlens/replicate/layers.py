"""Where a dimension does its damage, beside where it follows frequency and attention: one story by layer.

    story = layer_story(swept, frequency=found, attention=seen)     # results, also read back from files
    story.link("308", "frequency, raw").rho                         # rank correlation over layers, with its interval and p
    [row.damage for row in story.by_layer if row.dims == "308"]     # change of the task with it off in that layer alone

Puccetti et al. (2022) put the two side by side by eye; here they get a rank correlation across layers. Plain data, no torch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from outlierlens.analyses.attention import Attention
from outlierlens.analyses.frequency import Frequency
from outlierlens.analyses.sweep.finding import Effect, Sweep
from outlierlens.errors import BadInput, pick
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Estimate, Row
from outlierlens.statistics.bootstrap import percentile_interval
from outlierlens.statistics.means import NORMAL
from outlierlens.statistics.ranks import permutation_p, spearman, spearman_interval
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, P

FEWEST = 4  # layers that a rank correlation is taken over
SOURCES = {"raw": "frequency, raw", "log": "frequency, log", "attention": "attention"}  # by field


@dataclass(frozen=True, kw_only=True)
class LayerLink(Row):
    """Damage by layer against one correlation by layer."""

    dims: str
    """off"""
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
    """One dimension or set off in one layer alone, beside r of |h| in the layer's output; of a set the mean |r|."""

    dims: str
    """off"""
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
    """Damage of single-layer windows beside the correlations of those layers; `mode` and `view` are theirs."""

    title = "Damage and correlation, layer by layer"
    pictures = tuple(map(_lines, ("damage", *SOURCES)))

    links: tuple[LayerLink, ...]
    """Damage and correlation over layers"""
    by_layer: tuple[LayerDamage, ...]
    """Off in one layer alone"""
    mode: str
    view: str

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
    sweep: Sweep,
    *,
    frequency: Frequency | None = None,
    attention: Attention | None = None,
    view: Literal["without_special", "all"] = "without_special",
    seed: int = 0,
    n_draws: int = 2000,
) -> LayerStory:
    """Rank correlation, over layers, of the damage of each swept dimension with its correlations in the same layers.

    `sweep` was made with single-layer windows (`--windows single`). `view` is "without_special" or "all" tokens.

    Raises:
        BadInput: no single-layer windows, another model or stream, no correlation given, or too few layers.
    """
    if sweep.windows != "single":
        raise BadInput(f"this sweep has windows {sweep.windows!r}; sweep with --windows single")
    beside = [one for one in (frequency, attention) if one is not None]
    if not beside:
        raise BadInput("give what frequency or attention measured, or both, beside the sweep")
    of = sweep.provenance
    for one in beside:
        if (one.provenance.fingerprint, one.about.stack) != (of.fingerprint, sweep.about.stack):
            raise BadInput(
                f"the sweep is of {of.model} (stream {sweep.about.stack}), {type(one).__name__.lower()} of "
                f"{one.provenance.model} (stream {one.about.stack}), with other weights or another stream"
            )
    layers, swept = range(sweep.n_layers), dict[tuple[int, ...], dict[int, Effect]]()
    for effect in sweep.effects:
        if len(effect.layers) == 1:
            swept.setdefault(effect.dims, {})[effect.layers[0]] = effect
    whole = {dims: effects for dims, effects in swept.items() if {*effects} == {*layers}}
    if not whole or len(layers) < FEWEST:
        raise BadInput(
            f"a rank correlation over layers needs dimensions swept in each of at least {FEWEST} layers; here are "
            f"{len(layers)} layers and {len(whole)} dimensions or sets swept in all of them"
        )
    random, links, rows = np.random.default_rng([seed, 41]), list[LayerLink](), list[LayerDamage]()
    sources = _sources(frequency, attention, view, layers)
    for dims, effects in sorted(whole.items(), key=lambda item: (len(item[0]), item[0])):
        in_order = [effects[layer] for layer in layers]
        damage = np.array(
            [[one.change.value, one.change.low, one.change.high] for one in in_order]
        ).T  # [value or end, layer]
        label, found = ", ".join(map(str, dims)), {}
        for name, source in sources.items():
            ends = source[:, :, dims[0]] if len(dims) == 1 else np.full((3, len(layers)), np.nan)
            if len(dims) > 1:
                ends[0] = np.abs(source[0][:, list(dims)]).mean(1)
            found[name] = ends
            rho = float(spearman(damage[0], np.abs(ends[0])))
            drawn = [_draws(one, random, n_draws) for one in (damage, ends)]
            low, high = percentile_interval(spearman(drawn[0], np.abs(drawn[1])), fewest=n_draws)
            p = permutation_p(damage[0], np.abs(ends[0]), random)
            links.append(LayerLink(
                dims=label, what=SOURCES[name], rho=Estimate(rho, *spearman_interval(rho, len(layers))),
                noise_low=float(low), noise_high=float(high), p=p,
            ))  # fmt: skip
        for layer in layers:
            more = {name: Estimate(*one[:, layer].tolist()) for name, one in found.items()}
            rows.append(LayerDamage(dims=label, layer=layer, damage=Estimate(*damage[:, layer].tolist()), **more))
    return LayerStory(
        provenance=Provenance.now(of.model, of.fingerprint, seed=seed, dtype=of.dtype),
        about=About(
            data=sweep.about.data, data_digest=sweep.about.data_digest, task=sweep.about.task, unit=sweep.about.of_change,
            stack=sweep.about.stack, layers=tuple(layers), n_texts=sweep.about.n_texts,
        ),
        links=tuple(links), by_layer=tuple(rows), mode=sweep.mode, view=view,
    )  # fmt: skip


def _sources(
    frequency: Frequency | None,
    attention: Attention | None,
    view: Literal["without_special", "all"],
    layers: Sequence[int],
) -> dict[str, np.ndarray]:
    """By name, r of every dimension and the ends of its interval, NaN where they are not known: [value or end, layer, dim]."""
    found = {}
    if frequency is not None:
        rows = [frequency.place(str(layer)) for layer in layers]
        for measure in ("raw", "log"):
            found[measure] = np.stack([frequency.values(measure, view), *frequency.interval(measure, view)])[:, rows]
    if attention is not None:
        if not set(layers) <= set(attention.about.layers):
            there = ", ".join(map(str, attention.about.layers))
            raise BadInput(f"attention was measured in layers {there} only; measure it in all")
        every = np.full((3, len(layers), attention.hidden_size), np.nan)
        every[0] = attention.r(view)[list(layers)]
        for dim in attention.dims:
            named = [attention.correlation(str(layer), dim, view).r for layer in layers]
            every[1:, :, dim] = [one.low for one in named], [one.high for one in named]
        found["attention"] = every
    return found


def _draws(ends: np.ndarray, random: np.random.Generator, n_draws: int) -> np.ndarray:
    """[draw, layer], normal with the interval's width."""
    value, low, high = ends
    found: np.ndarray = value + (high - low) / (2 * round(NORMAL, 6)) * random.standard_normal((n_draws, len(value)))
    return found
