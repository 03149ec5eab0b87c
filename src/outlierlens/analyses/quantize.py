"""What rounding to few bits costs, in which block its error lies, and whether keeping outlier dimensions gives it back.

    found = quantize(load_model("smollm2-135m"), read_texts("test.parquet", limit=32))
    found.verdict                                                       # "keep dimensions 100, 247 and 507 in 16 bit: …"
    found.setting("int8-tensor/int8-tensor", "outliers kept").regained  # loss that keeping them gives back, with its interval
    found.to_pandas("blocks")                                           # relative squared error of each block's output

Every scheme is measured on the whole model, then with the outliers and with random dimensions kept in high precision, with
large inputs kept (LLM.int8), and smoothed (SmoothQuant); every setting reads the same tokens and masks.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from outlierlens.ablation.study import Outcome, Progress, Study, dims_of
from outlierlens.analyses.quantize_rounding import rounded
from outlierlens.analyses.quantize_schemes import DEFAULTS, SchemePair
from outlierlens.analyses.quantize_settings import ERROR_TEXTS, KEPT, RANDOM, ROUNDED, RoundingSettings
from outlierlens.data.texts import Data
from outlierlens.detection.running_statistics import LARGE
from outlierlens.errors import BadInput, pick
from outlierlens.models.inputs import reaching
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.results.document import Advice, about
from outlierlens.results.finding import Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import UNKNOWN, Draws, Estimate, More, Quiet, Row
from outlierlens.session import Session
from outlierlens.statistics.means import mean_interval, mean_noise, no_interval
from outlierlens.statistics.ranks import rank_p
from outlierlens.tasks.base import TaskOptions, weighted_mean
from outlierlens.view.pictures import Lines, Picture, Strips
from outlierlens.view.section import Change, Count, P, Rows, Share, percent, these

INTACT = "intact"
Says = Literal["free", "keep", "no use", "unclear", "not tried"]


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """Schemes to quantize by, and dimensions to keep in high precision."""

    recipes: Annotated[tuple[SchemePair, ...] | None, Flag("--schemes", read="analyses.quantize_schemes:parse_all")] = (
        None
    )
    """WEIGHTS/INPUTS by commas: int8, int4, e4m3, e5m2 or none, each per -tensor, -channel (weights), -token (inputs),
    -group32 (weights), integers also -asym. Default: int8 per tensor, and per channel and token."""
    dims: DimsOrFind = FIND
    """Keep these: 308,381; find: those that weights or activations name."""
    stack: str | None = None
    """Which stream, where there are several."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random sets of kept dimensions of the same size."""
    threshold: Annotated[float | None, Flag(read="options:number_or_none", words="6.0"), Gt(0), Lt(float("inf"))] = (
        LARGE
    )
    """LLM.int8: keep inputs with |x| of at least this; none leaves it out."""
    alpha: Annotated[float | None, Flag("--smooth", read="options:number_or_none", words="0.5"), Ge(0), Le(1)] = 0.5
    """SmoothQuant's alpha in [0, 1]; none leaves it out."""
    n_calibrate: Annotated[int, Flag(hidden=True), Ge(0)] = 16
    """SmoothQuant rests on the N texts after the measured ones."""
    noise_draws: Annotated[int, Flag(hidden=True), Ge(0)] = 3
    """Extra runs with noise in the last bit of the inputs, on 16 texts (of fewer than 32: a quarter, at least 4); 0: none."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    task: Annotated[TaskOptions, Flat("max_length")] = TaskOptions()
    """How texts become numbers; `seed` replaces its own."""

    @property
    def schemes(self) -> tuple[SchemePair, ...]:
        """What is rounded to what."""
        return DEFAULTS if self.recipes is None else self.recipes

    def __post_init__(self) -> None:
        check(self)
        if self.recipes is not None and not self.recipes:
            raise BadInput("no scheme to round by; name one, such as int8-channel/int8-token")


@dataclass(frozen=True, kw_only=True)
class Setting(Row):
    """A scheme on the whole model, and with something kept or smoothed."""

    scheme: str
    """weights / inputs"""
    setting: str
    change: Annotated[Estimate, Change]
    """change ({unit}): the {task} minus the intact model's, paired by text"""
    noise: float = math.nan
    """noise: standard deviation between runs whose first block reads noise of 1e-6; the interval holds it"""
    regained: Annotated[Estimate, Change] = UNKNOWN
    """gain: the value all quantized minus this one"""
    regained_noise: Annotated[float, More] = math.nan
    """noise of the gain"""
    kept: Annotated[float, Share]
    """kept: share of the linears' weights in high precision; with large inputs kept, of their inputs"""
    value: Annotated[Estimate, More]
    """{task}: mean over texts, weighted by tokens"""
    dims: Annotated[tuple[int, ...], Quiet] = ()
    """dimensions kept"""
    random: Annotated[tuple[float, ...], Draws, Change, Quiet] = ()
    """change with each set of random dimensions kept, where the outliers are"""
    per_text: Annotated[tuple[float, ...], "text", Quiet]
    """value of each text, in the order of the data"""


@dataclass(frozen=True, kw_only=True)
class OutlierGain(Row):
    """What keeping the outliers gives back, against random dimensions."""

    note = (
        "free: the interval of the cost holds 0. keep: keeping the outliers gives something back, and more than random "
        "dimensions do. no use: quantizing costs, and neither holds."
    )
    scheme: str
    """weights / inputs"""
    says: Says
    beyond_random: Annotated[Estimate, Change] = UNKNOWN
    """more than random: the mean value with random dimensions kept minus that with the outliers kept"""
    noise: float = math.nan
    p: Annotated[float | None, P] = None
    """rank p: (1 + number of random sets whose value is as small) / (1 + sets)"""
    random: Annotated[tuple[float, ...], Draws, Change] = ()
    """change with each set of random dimensions kept"""
    n_linears: Annotated[int, Count, More]
    """linears"""
    n_weights: Annotated[int, Count, More]
    """weights in them"""


@dataclass(frozen=True, kw_only=True)
class BlockError(Row):
    """The error of one block's output in a setting, Σ (h' − h)² / Σ h² over tokens and dimensions."""

    scheme: str
    """weights / inputs"""
    setting: str
    layer: int
    error: float
    """relative squared error"""
    others: float
    """relative squared error without the outliers: over the other dimensions"""
    share: Annotated[float, Share]
    """in the outliers: share of the error"""


@dataclass(frozen=True, kw_only=True)
class Quantization(Finding):
    """A model quantized by several schemes."""

    title: ClassVar[str] = "Quantized to few bits"

    settings: tuple[Setting, ...]
    """Cost by scheme: Dimensions are kept in high precision where they are read and written."""
    gains: tuple[OutlierGain, ...]
    """Outliers kept, against random dimensions"""
    draws: tuple[Setting, ...]
    """(Random dimensions kept)"""
    blocks: tuple[BlockError, ...]
    """Error of the blocks' outputs: The last block; --verbose lists each."""
    alpha: float | None
    """of "smoothed"; None where no scheme rounds inputs or it was not asked for"""
    threshold: float | None
    """of "large inputs kept\""""
    calibration: str
    """texts that SmoothQuant's largest values are of"""
    n_calibration: int
    n_error_texts: int
    """texts whose hidden states are compared"""
    noise_draws: int
    """runs of each setting with noise"""
    n_noise_texts: int

    def setting(self, scheme: str, setting: str = ROUNDED) -> Setting:
        """A scheme in one setting; raises BadInput with those there are."""
        return pick(self.settings, f"no {setting!r} of {scheme!r} in this result", scheme=scheme, setting=setting)

    @property
    def says(self) -> dict[str, Says]:
        """{scheme: what its intervals say}, see `says_of`."""
        return {one.scheme: one.says for one in self.gains}

    @property
    def worst(self) -> str:
        """The scheme that costs most."""
        return max(self.says, key=lambda one: np.nan_to_num(self.setting(one).change.value, nan=np.inf))

    @property
    def verdict(self) -> str:
        """What to do, in one line."""
        dims, cost = these(self.dims), {one: signed(self.setting(one).change.value) for one in self.says}
        by = {says: [one for one, said in self.says.items() if said == says] for says in get_args(Says)}
        costly = {says: ", ".join(f"{one} {cost[one]}" for one in some) for says, some in by.items()}
        parts = []
        if by["keep"]:
            kept = {one: self.setting(one, KEPT) for one in by["keep"]}
            told = (
                f"{one} {cost[one]} → {signed(row.change.value)} (random {signed(float(np.mean(row.random)))})"
                for one, row in kept.items()
            )
            parts.append(f"keep {dims} in 16 bit: {'; '.join(told)}")
        if by["no use"]:
            parts.append(f"keeping {dims} does not make up for {costly['no use']}")
        if by["free"]:
            parts.append(f"{', '.join(by['free'])}: no cost that can be told, nothing to keep")
        if by["unclear"]:
            parts.append(f"{costly['unclear']}: no verdict, for {no_interval(self.about.n_texts)}")
        if by["not tried"]:
            parts.append(f"{costly['not tried']}: no verdict, for nothing random was kept; ask for --random 19")
        return f"{'; '.join(parts)} ({self.about.unit})"

    def sentences(self) -> Iterator[str]:
        yield f"{self.verdict[:1].upper()}{self.verdict[1:]}."
        for scheme, says in self.says.items():
            tried = [one for one in self.settings if one.scheme == scheme]
            cost, kept = tried[0].change.value, tried[1]
            if says == "keep":
                yield (
                    f"{scheme}: keeping {these(self.dims)} ({percent(kept.kept)} of the weights) gives back "
                    f"{percent(kept.regained.value / cost)} of the cost: {kept.regained.written()}."
                )
            if says in ("keep", "no use") and len(tried) > 2:
                best = min(tried[1:], key=lambda one: np.nan_to_num(one.change.value, nan=np.inf))
                yield f"{scheme}: {best.setting} leaves least: {signed(best.change.value)}."
        if {"keep", "no use"} & {*self.says.values()}:
            yield "`plan` measures what helps most per byte: neurons, columns and whole linears too."
        intact = f"Intact {self.settings[0].value.value:z.4f} {self.about.unit}."
        yield f"{intact} {self.noise_note}"

    def advice(self) -> Iterator[Advice]:
        """The verdict, and how to find what gives back more."""
        said, says, made = self.verdict, {*self.says.values()}, self.provenance
        why = f"measured on {self.about.n_texts:,} texts of {self.about.data} ({self.about.n_tokens:,} tokens)"
        yield Advice("quantize", f"{said[:1].upper()}{said[1:]}.", why)
        if says & {"keep", "no use"}:
            yield Advice(
                "quantize",
                "Measure what gives back most of the cost per byte, in the stream or not.",
                f"{self.worst} costs most",
                (about(made, "plan", "--scheme", self.worst),),
                until=("PrecisionPlan",),
            )

    @property
    def noise_note(self) -> str:
        """What noise and intervals rest on, in a sentence."""
        if not self.noise_draws:
            return "The noise of the last bit was not measured, and the intervals may lack some of it."
        return (
            f"Noise: standard deviation between runs whose first block reads noise of 1e-6 ({self.noise_draws} more runs of "
            f"{self.n_noise_texts:,} texts); the intervals hold it."
        )

    def laid_out(self, name: str, rows: tuple[Any, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """In short the last block alone."""
        if name == "blocks" and not verbose:
            rows = tuple(one for one in rows if one.layer == rows[-1].layer)
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def drawn(self) -> tuple[Picture, ...]:
        """The cost by scheme, and the error of each block's output by the costliest scheme."""
        worst = self.worst
        error = partial(Lines, rows="blocks", x="layer", by="setting", where=lambda row: row.scheme == worst)
        return (
            Strips(
                rows="settings", x="change", y="scheme", by="setting", draws="random", title="Cost by scheme",
                greys="{n} sets of random dimensions kept", where=lambda row: row.setting != INTACT,
            ),
            error(y="error", title=f"Error of every block's output, {worst}"),
            error(y="others", title="The same without the outliers"),
        )  # fmt: skip


def says_of(cost_low: float, regained_low: float, beyond_low: float | None) -> Says:
    """What the lower ends of three intervals say: of the cost, of what is given back, and of that beyond random choices.

    "free": the cost's interval holds 0 or lies below. "keep": something is given back, and more than by random choices, both
    intervals above 0. "no use": rounding costs, and that cannot be said. "unclear": the interval is not settled (few texts, or
    an infinite value). "not tried": rounding costs, and nothing random was kept.
    """
    if not math.isfinite(cost_low):
        return "unclear"
    if cost_low <= 0:
        return "free"
    if beyond_low is None:
        return "not tried"
    return "keep" if regained_low > 0 and beyond_low > 0 else "no use"


def signed(change: float) -> str:
    """A change for reading, with its sign and three significant digits."""
    return f"{change:+z.3g}"


def quantize(
    loaded: LoadedModel,
    texts: Data,
    options: QuantizeOptions | None = None,
    *,
    calibration: Data | None = None,
    progress: Progress | None = None,
    rows: Path | Keep | None = None,
) -> Quantization:
    """Measure `loaded` intact and quantized by every scheme, with kept dimensions against controls; the model is unchanged.

    `calibration` are the texts that SmoothQuant's scales rest on; the measured texts themselves where none are given. With
    `rows`, every finished setting is appended to that file, and settings found there are not measured again.

    Raises:
        BadInput: a dimension that does not exist, a scheme that does not fit the weights, or no usable text.
    """
    options = reaching(loaded, texts, options or QuantizeOptions())
    model = RoundingSettings(loaded, texts, options, calibration or texts)
    with Study(loaded, model.task, texts, model.identity, rows=rows, progress=progress) as study:
        recipe = next((one for one in options.schemes if one.inputs is not None), options.schemes[0])
        conditions = {recipe.name: model.conditions(recipe) for recipe in options.schemes}
        study.announce(
            [one.name for some in conditions.values() for one in some],
            share=1 + model.noise.n * model.noise.n_texts / model.task.n_texts,
            inside=partial(rounded, loaded, recipe, stack=model.stack.name, places=model.places),
        )
        measured = iter(study.measure([one for some in conditions.values() for one in some]))
        done = {scheme: list(islice(measured, len(some))) for scheme, some in conditions.items()}
    schemes = [_settings(study, model.noise.n_texts, scheme, one) for scheme, one in done.items()]
    intact = _setting(study, model.noise.n_texts, study.intact, "none/none")
    blocks = tuple(row for scheme, one in done.items() for row in _blocks(model, scheme, one))
    if calibration is None and model.factors:
        model.notes.append("SmoothQuant's scales rest on the very texts that are measured: no others were given")
    plan = dict.fromkeys(range(model.stack.n_layers), model.dims)
    return Quantization(
        provenance=loaded.provenance(seed=options.seed, digest=study.fingerprint),
        about=study.about(plan, named_by=model.named_by, max_length=model.max_length),
        settings=(intact, *(one for rows, _, _ in schemes for one in rows)),
        gains=tuple(gain for _, gain, _ in schemes),
        draws=tuple(one for _, _, random in schemes for one in random),
        blocks=blocks,
        alpha=options.alpha if model.factors else None,
        threshold=options.threshold,
        calibration=(calibration or texts).source,
        n_calibration=len(calibration or texts),
        n_error_texts=min(ERROR_TEXTS, len(texts)),
        noise_draws=model.noise.n,
        n_noise_texts=model.noise.n_texts,
        notes=tuple(dict.fromkeys((*loaded.notes, *model.notes))),
    )


def run(session: Session, options: QuantizeOptions) -> Quantization:
    """The analysis, as the command runs it."""
    texts, others = session.texts(spare=options.n_calibrate)
    return quantize(session.loaded, texts, options, calibration=others, progress=session.progress, rows=session.kept)


def _blocks(model: RoundingSettings, scheme: str, done: Sequence[Outcome]) -> Iterator[BlockError]:
    """The error of every block's output in the settings in which it was measured."""
    power, theirs = model.states.power, list(model.dims)  # [layer, dim]
    others = np.delete(power, theirs, 1).sum(1)
    for one in done:
        if one.more["errors"]:
            errors = np.array(one.more["errors"])
            total, rest = errors.sum(1), np.delete(errors, theirs, 1).sum(1)
            share = np.divide(errors[:, theirs].sum(1), total, out=np.zeros_like(total), where=total > 0)
            for layer, values in enumerate(zip(total / power.sum(1), rest / others, share, strict=True)):
                error, other, part = map(float, values)
                yield BlockError(
                    scheme=scheme, setting=one.condition.family, layer=layer, error=error, others=other, share=part
                )


@dataclass(frozen=True)
class _Runs:
    """The value of every text [text], and of the first in every run [run, text], that without noise first."""

    values: np.ndarray
    runs: np.ndarray

    def __sub__(self, other: "_Runs") -> "_Runs":
        return _Runs(self.values - other.values, self.runs - other.runs)

    def mean(self, weights: np.ndarray) -> tuple[Estimate, float]:
        """(the mean over texts with its interval, its noise); of a difference of settings, texts and noise are paired."""
        noise = mean_noise(self.runs, weights[: self.runs.shape[1]], len(self.values))
        ends = mean_interval(self.values, weights, noise=noise)
        return Estimate(weighted_mean(self.values, weights), *ends), noise.floor if noise else math.nan


def _runs(one: Outcome, n_texts: int) -> _Runs:
    return _Runs(one.values, np.array([one.values[:n_texts], *one.more.get("noisy", ())]))


def _setting(study: Study, n_texts: int, one: Outcome, scheme: str) -> Setting:
    own, intact = _runs(one, n_texts), study.intact.values
    value, _ = own.mean(study.weights)
    change, noise = (own - _Runs(intact, intact[None, :n_texts])).mean(study.weights)
    return Setting(
        scheme=scheme, setting=one.condition.family, change=change, noise=noise, kept=one.more.get("kept", 1.0),
        value=value, dims=dims_of(one.condition.plan), per_text=tuple(one.values.tolist()),
    )  # fmt: skip


def _settings(
    study: Study, n_texts: int, scheme: str, done: Sequence[Outcome]
) -> tuple[list[Setting], OutlierGain, list[Setting]]:
    """(a scheme in every setting, outliers against random dimensions, every random set), from what was measured of it."""
    rows: list[Setting] = []
    draws: list[Setting] = []
    read: list[_Runs] = []
    random: list[_Runs] = []
    for one in done:
        row, own = _setting(study, n_texts, one, scheme), _runs(one, n_texts)
        if row.setting == RANDOM:
            draws.append(row)
            random.append(own)
            continue
        if read:
            regained, noise = (read[0] - own).mean(study.weights)
            row = replace(row, regained=regained, regained_noise=noise)
        rows.append(row)
        read.append(own)
    counted = {name: done[0].more[name] for name in ("n_linears", "n_weights")}
    if not draws:
        says = says_of(rows[0].change.low, rows[1].regained.low, None)
        return rows, OutlierGain(scheme=scheme, says=says, **counted), draws
    middle = _Runs(*(np.mean([getattr(own, name) for own in random], axis=0) for name in ("values", "runs")))
    beyond, noise = (middle - read[1]).mean(study.weights)
    # A loss that is no number any more is as bad as one that is infinite.
    value, changes = rows[1].value.value, tuple(row.change.value for row in draws)
    back = -np.nan_to_num([value, *(row.value.value for row in draws)], nan=np.inf, posinf=np.inf)
    gain = OutlierGain(
        scheme=scheme, says=says_of(rows[0].change.low, rows[1].regained.low, beyond.low), beyond_random=beyond,
        noise=noise, p=None if math.isnan(value) else rank_p(back[0], back[1:]), random=changes, **counted,
    )  # fmt: skip
    rows[1] = replace(rows[1], random=changes)
    return rows, gain, draws
