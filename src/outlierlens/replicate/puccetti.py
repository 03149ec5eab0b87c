"""Puccetti et al. (2022) whole, for any model that reads text: every part measured once, kept, and put together.

    found = replicate_puccetti(load_model("mini-bert"), texts, PuccettiOptions(counts="counts.parquet"), folder=Path("runs/p"))
    found.part("layers").link("308", "frequency, raw").rho

The run directory holds rows/ and parts/NAME.json; parts/sweep.json is what "layers" is joined from.

Where a dimension does its damage, beside where it follows frequency and attention: one story by layer.

    story = layer_story(swept, frequency=found, attention=seen)     # results, also read back from files
    story.link("308", "frequency, raw").rho                         # rank correlation over layers, with its interval and p
    [row.damage for row in story.by_layer if row.dims == "308"]     # change of the task with it off in that layer alone

Puccetti et al. (2022) put the two side by side by eye; here they get a rank correlation across layers. Plain data, no torch.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from outlierlens.ablation.modes import mode_by_layer
from outlierlens.analyses.attention import Attention, AttentionOptions, attention
from outlierlens.analyses.frequency import Frequency, FrequencyOptions, frequency
from outlierlens.analyses.frequency_counts import count_texts, counts_of
from outlierlens.analyses.geometry import GeometryOptions, frequency_bands
from outlierlens.analyses.predictions import PredictionOptions, predictions
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.data.texts import Texts
from outlierlens.detection.targets import named_dims
from outlierlens.errors import BadInput, pick
from outlierlens.models.attention_maps import eager_attention
from outlierlens.models.inputs import Progress
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND, DimsOrFind, Flag
from outlierlens.replicate.papers import facts
from outlierlens.replicate.runner import PaperFinding, PaperOptions, PaperPart, PaperRun
from outlierlens.results.document import Provenance, save
from outlierlens.results.finding import Finding
from outlierlens.results.row_store import alone_in
from outlierlens.results.rows import Estimate, Row
from outlierlens.statistics.bootstrap import percentile_interval
from outlierlens.statistics.means import NORMAL
from outlierlens.statistics.ranks import permutation_p, spearman, spearman_interval
from outlierlens.tasks.base import TaskOptions
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, P

# --- damage and correlation by layer ---------------------------------------------------------------------------------


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


MAX_LENGTH = 128  # tokens of a text, as in the paper
HEAD = "head"  # that predicts words
BESIDE = "correlations"  # of frequency or attention, with which damage by layer is joined
NAMES = ("frequency", "attention", "layers", "bands", "predictions")


@dataclass(frozen=True, kw_only=True)
class PuccettiOptions(PaperOptions):
    """Data, models and controls of the replication."""

    parts: Annotated[tuple[str, ...], Flag(read="options:parse_names", words=",".join(NAMES))] = NAMES
    """Which parts, by commas."""
    counts: str | None = None
    """Token counts, ours or published, or a corpus to count; several by commas. Default: of --data."""
    dims: DimsOrFind = FIND
    """The outliers, 308,381; find: those that the weights name, or else the two of largest |z|."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PuccettiReplication(PaperFinding):
    """Puccetti et al. 2022 for one model; `counts` says where token frequencies come from."""

    title = "Token frequency (Puccetti et al. 2022)"
    paper = "puccetti"

    counts: str


# --- how it is measured ------------------------------------------------------------------------------------------


def replicate_puccetti(
    loaded: LoadedModel,
    texts: Texts,
    options: PuccettiOptions | None = None,
    *,
    folder: Path,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PuccettiReplication:
    """Measure every part that is missing in the run directory `folder`, and return the whole.

    Raises:
        BadInput: there is no text, or what a part raises.
    """
    options = options or PuccettiOptions()
    # Other ways to attend compute no attention weights.
    eager = eager_attention(loaded.model) if "attention" in options.parts else nullcontext()
    with alone_in(Path(folder), "replication"), eager:
        run = PuccettiRun(loaded, texts, options, Path(folder), overwrite=overwrite, progress=progress)
        run.measure(PARTS)
        together = run.together(PARTS, run.dims, run.named.by)
        said = facts()["said"]["puccetti"].get(together["checkpoint"])
        together["notes"] += (said,) if said else ()
        return PuccettiReplication(counts=run.counts.source, **together)


class PuccettiRun(PaperRun):
    """One run: the texts, token counts, and the outliers, the same for all parts."""

    def __init__(self, loaded: LoadedModel, texts: Texts, options: PuccettiOptions, folder: Path, **more: Any):
        super().__init__(loaded, options, folder, **more)
        self.texts = texts
        self.named = named_dims(loaded, self.stack, options.dims)
        self.dims = self.named.dims
        self.notes += self.named.notes
        if options.counts is not None:
            self.counts = counts_of(options.counts, loaded.tokenizer, rows=self.rows, progress=self.progress)
        else:
            self.counts = count_texts(loaded.tokenizer, texts.texts, source=texts.source)
            read = f"({self.counts.n_tokens:,} tokens): give --counts of a corpus"
            self.notes.append(f"token frequencies are those of the measured texts {read}")

    def some(self, part: PaperPart) -> Texts:
        """The first texts, as many as the part reads, or all in full."""
        return self.texts if self.options.full else self.texts.first(part.n_texts)

    def lacks(self, part: PaperPart) -> str:
        """Whether the model has no head that a part needs; a note says how many texts it reads where these are not all."""
        if HEAD in part.needs and self.loaded.head not in ("masked", "causal"):
            return f"{self.loaded.name} has no head that predicts words"
        if BESIDE in part.needs and not (self.stack.n_layers >= FEWEST and {"frequency", "attention"} & {*self.found}):
            return f"a rank correlation over layers needs {FEWEST} layers, and frequency or attention"
        if (n := len(self.some(part))) < len(self.texts):
            self.notes.append(f"{part.title}: the first {n:,} of {len(self.texts):,} texts")
        return ""


def _frequency(run: PuccettiRun) -> Any:
    options = FrequencyOptions(read=run.reading(), max_length=MAX_LENGTH, dims=run.dims, seed=run.options.seed)
    return frequency(run.loaded, run.some(PARTS["frequency"]), run.counts, options, rows=run.rows)


def _attention(run: PuccettiRun) -> Any:
    asked, name = run.options, run.stack.name
    options = AttentionOptions(
        dims=run.dims, stack=name, max_length=MAX_LENGTH, batch_size=asked.batch_size, seed=asked.seed
    )
    return attention(run.loaded, run.some(PARTS["attention"]), options, progress=run.progress, rows=run.rows)


def _layers(run: PuccettiRun) -> Any:
    """Every outlier, and all together, off in each layer alone, beside the correlations by layer."""
    from outlierlens.analyses.sweep.measure import sweep

    options = SweepOptions(
        dims=run.dims, sets=(run.dims,) if len(run.dims) > 1 else (), with_found=False, windows="single",
        mode=mode_by_layer(run.stack), stack=run.stack.name, n_random=0, n_matched=0, gradients=0, seed=run.options.seed,
        task=TaskOptions(max_length=MAX_LENGTH),
    )  # fmt: skip
    swept = sweep(run.loaded, run.some(PARTS["layers"]), options, rows=run.rows)
    save(swept, run.folder / "parts" / "sweep.json")
    beside = {name: run.found[name] for name in ("frequency", "attention") if name in run.found}
    return layer_story(swept, seed=run.options.seed, **beside)


def _bands(run: PuccettiRun) -> Any:
    options = GeometryOptions(read=run.reading(), max_length=MAX_LENGTH, dims=run.dims, seed=run.options.seed)
    return frequency_bands(run.loaded, run.some(PARTS["bands"]), run.counts, options, rows=run.rows)


def _predictions(run: PuccettiRun) -> Any:
    asked, task = run.options, TaskOptions(max_length=MAX_LENGTH)
    options = PredictionOptions(stack=run.stack.name, n_random=19 if asked.full else 5, task=task, seed=asked.seed)
    texts = run.some(PARTS["predictions"])
    return predictions(run.loaded, texts, run.counts, run.dims, options, progress=run.progress, rows=run.rows)


PARTS = {
    "frequency": PaperPart("correlation with token frequency", _frequency, n_texts=1000),
    "attention": PaperPart("vertical attention", _attention, n_texts=200),
    "layers": PaperPart("damage of single layers", _layers, (BESIDE,), 64),
    "bands": PaperPart("frequent and rare tokens in space", _bands, n_texts=1000),
    "predictions": PaperPart("what the model says without them", _predictions, (HEAD,), 64),
}
