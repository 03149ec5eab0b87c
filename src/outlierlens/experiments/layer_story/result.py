"""Where a dimension does its damage, beside where it follows frequency and attention: one story by layer.

    story = layer_story(swept, frequency=found, attention=seen)     # results, also read back from files
    story.line("308").damage                     # [layer] change of the task with it off in that layer alone
    story.line("308").link("frequency, raw").rho # rank correlation over layers, with its interval and p

Puccetti et al. (2022) put the two side by side by eye; here they get a rank correlation across layers. Plain data, no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.errors import BadInput, pick
from outlierlens.experiments.attention.result import Attention
from outlierlens.experiments.frequency.result import Frequency
from outlierlens.experiments.sweep.result import Effect, Sweep
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.bootstrap import percentile_interval
from outlierlens.statistics.means import NORMAL
from outlierlens.statistics.ranks import permutation_p, spearman, spearman_interval

FEWEST = 4  # layers that a rank correlation is taken over


@dataclass(frozen=True)
class Link:
    """Damage by layer against one correlation by layer.

    Attributes:
        what: "frequency, raw", "frequency, log" or "attention".
        value: [layer], the correlation r of |h_d| in each layer; of a set the mean of |r| over its dimensions.
        low, high: [layer], 95 % interval of r over texts; NaN for a set.
        rho: Spearman's rank correlation over layers of the damage with |r|; NaN where one of the two does not vary.
        rho_low, rho_high: 95 % interval, Fisher's z with the variance of Bonett and Wright (2000). Layers stand for draws,
            which neighbouring ones are not: it is too narrow where they go together.
        noise_low, noise_high: 95 % of the rho when damage and r of every layer are drawn anew from their own intervals; NaN
            where those are not known.
        p: two-sided, from permutations of the layers (all of them where there are at most 10,000).
    """

    what: str
    value: Annotated[np.ndarray, "layer"]
    low: Annotated[np.ndarray, "layer"]
    high: Annotated[np.ndarray, "layer"]
    rho: float
    rho_low: float
    rho_high: float
    noise_low: float
    noise_high: float
    p: float


@dataclass(frozen=True)
class Line:
    """One dimension or set: `damage` [layer] with its interval, and its links."""

    label: str
    dims: tuple[int, ...]
    damage: Annotated[np.ndarray, "layer"]
    damage_low: Annotated[np.ndarray, "layer"]
    damage_high: Annotated[np.ndarray, "layer"]
    links: tuple[Link, ...]

    def link(self, what: str) -> Link:
        """One of `links`; raises BadInput with those there are."""
        return pick(self.links, f"no link {what!r}", what=what)


@dataclass(frozen=True)
class LayerStory(Result):
    """Damage of single-layer windows beside the correlations of those layers.

    Attributes:
        layers: block numbers, in order. task, unit, mode: of the sweep. view: tokens of the correlations.
        lines: dimensions as swept, then sets.
        n_draws: of the intervals of noise.
    """

    provenance: Provenance
    stack: str
    layers: Annotated[tuple[int, ...], "layer"]
    task: str
    unit: str
    mode: str
    view: str
    lines: tuple[Line, ...]
    n_draws: int
    notes: tuple[str, ...] = ()

    def line(self, label: str) -> Line:
        """One of `lines` by its label; raises BadInput with those there are."""
        return pick(self.lines, f"no line {label!r}", label=label)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per line and layer."""
        return story_rows(self)


def layer_story(
    sweep: Sweep,
    *,
    frequency: Frequency | None = None,
    attention: Attention | None = None,
    view: str = "without_special",
    seed: int = 0,
    n_draws: int = 2000,
    command: str = "",
) -> LayerStory:
    """Rank correlation, over layers, of the damage of each named dimension with its correlations in the same layers.

    `sweep` was made with single-layer windows (`--windows single`). `view` is "without_special" or "all" tokens.

    Raises:
        BadInput: no single-layer windows, another model or stream, no correlation given, or too few layers.
    """
    if sweep.windows != "single":
        raise BadInput(f"this sweep has windows {sweep.windows!r}; sweep with --windows single")
    if frequency is None and attention is None:
        raise BadInput("give what frequency or attention measured, or both, beside the sweep")
    for one in (frequency, attention):
        if one is not None and (one.provenance.fingerprint, one.stack) != (sweep.provenance.fingerprint, sweep.stack):
            raise BadInput(
                f"the sweep is of {sweep.provenance.model} (stream {sweep.stack}), {type(one).__name__.lower()} of "
                f"{one.provenance.model} (stream {one.stack}), with other weights or another stream"
            )
    by_label: dict[tuple[int, ...], dict[int, Effect]] = {}
    for effect in sweep.effects:
        if len(effect.layers) == 1:
            by_label.setdefault(effect.dims, {})[effect.layers[0]] = effect
    layers = tuple(range(sweep.n_layers))
    whole = {dims: effects for dims, effects in by_label.items() if set(effects) == set(layers)}
    named = {*sweep.found, *(frequency.dims if frequency else ()), *(attention.dims if attention else ())}
    chosen = {dims: effects for dims, effects in whole.items() if len(whole) <= MOST or set(dims) <= named}
    if not chosen or len(layers) < FEWEST:
        raise BadInput(
            f"a rank correlation over layers needs dimensions swept in each of at least {FEWEST} layers; here are "
            f"{len(layers)} layers and {len(whole)} dimensions or sets swept in all of them"
        )
    random = np.random.default_rng([seed, 41])
    sources = dict(_sources(frequency, attention, view, layers))
    lines = tuple(
        _line(dims, [effects[layer] for layer in layers], sources, random, n_draws)
        for dims, effects in sorted(chosen.items(), key=lambda item: (len(item[0]), item[0]))
    )
    left = len(whole) - len(chosen)
    return LayerStory(
        provenance=Provenance.now(
            sweep.provenance.model,
            sweep.provenance.fingerprint,
            command=command,
            seed=seed,
            dtype=sweep.provenance.dtype,
        ),
        stack=sweep.stack,
        layers=layers,
        task=sweep.task,
        unit=sweep.of_change,
        mode=sweep.mode,
        view=view,
        lines=lines,
        n_draws=n_draws,
        notes=(f"{left:,} swept dimensions or sets that nothing names are left out",) if left else (),
    )


MOST = 24  # lines, beyond which only named dimensions get one


@dataclass(frozen=True)
class _Source:
    """r by layer of every dimension [layer, dim], and its ends for the dimensions where they are known [layer]."""

    values: np.ndarray
    ends: Mapping[int, tuple[np.ndarray, np.ndarray]]


def _sources(
    frequency: Frequency | None, attention: Attention | None, view: str, layers: tuple[int, ...]
) -> Iterator[tuple[str, _Source]]:
    if frequency is not None:
        rows = [frequency.place(str(layer)) for layer in layers]
        for measure in ("raw", "log"):
            found = frequency.view(view).measure(measure)
            low, high = found.interval(frequency.reach)
            ends = {dim: (low[rows, dim], high[rows, dim]) for dim in range(frequency.hidden_size)}
            yield f"frequency, {measure}", _Source(np.asarray(found.value)[rows], ends)
    if attention is not None:
        rows = [attention.layers.index(str(layer)) for layer in layers if str(layer) in attention.layers]
        if len(rows) < len(layers):
            raise BadInput(f"attention was measured in layers {', '.join(attention.layers)} only; measure it in all")
        keys = attention.correlation("all" if view == "all" else "without_special")
        ends = {dim: (keys.low[rows, place], keys.high[rows, place]) for place, dim in enumerate(attention.dims)}
        yield "attention", _Source(np.asarray(keys.every)[rows], ends)


def _line(
    dims: tuple[int, ...],
    effects: list[Effect],
    sources: Mapping[str, _Source],
    random: np.random.Generator,
    n_draws: int,
) -> Line:
    damage, low, high = (np.array([getattr(one, name) for one in effects]) for name in ("change", "low", "high"))
    unknown = np.full(len(effects), np.nan)
    links = []
    for what, source in sources.items():
        if len(dims) == 1:
            value = source.values[:, dims[0]]
            r_low, r_high = source.ends.get(dims[0], (unknown, unknown))
        else:
            value, r_low, r_high = np.abs(source.values[:, list(dims)]).mean(1), unknown, unknown
        rho = float(spearman(damage, np.abs(value)))
        drawn = spearman(
            _draws(damage, low, high, random, n_draws), np.abs(_draws(value, r_low, r_high, random, n_draws))
        )
        noise = percentile_interval(drawn, fewest=n_draws)
        links.append(
            Link(
                what, value, r_low, r_high, rho, *spearman_interval(rho, len(effects)), float(noise[0]), float(noise[1]),
                permutation_p(damage, np.abs(value), random),
            )
        )  # fmt: skip
    return Line(", ".join(map(str, dims)), dims, damage, low, high, tuple(links))


def _draws(
    value: np.ndarray, low: np.ndarray, high: np.ndarray, random: np.random.Generator, n_draws: int
) -> np.ndarray:
    """[draw, layer], normal with the interval's width."""
    return value + (high - low) / (2 * round(NORMAL, 6)) * random.standard_normal((n_draws, len(value)))


def story_rows(story: LayerStory) -> Iterator[dict[str, Any]]:
    """One flat row per line and layer."""
    for line in story.lines:
        for row, layer in enumerate(story.layers):
            flat: dict[str, Any] = {"dims": line.label, "layer": layer, "damage": float(line.damage[row])}
            flat |= {"damage_low": float(line.damage_low[row]), "damage_high": float(line.damage_high[row])}
            for link in line.links:
                key = link.what.replace(", ", "_")
                flat |= {key: float(link.value[row]), f"{key}_low": float(link.low[row])}
                flat |= {f"{key}_high": float(link.high[row])}
            yield flat


def link_rows(story: LayerStory) -> Iterator[dict[str, Any]]:
    """One flat row per line and link."""
    for line in story.lines:
        for link in line.links:
            numbers = ("rho", "rho_low", "rho_high", "noise_low", "noise_high", "p")
            yield {"dims": line.label, "with": link.what} | {name: getattr(link, name) for name in numbers}
