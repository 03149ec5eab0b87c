"""How closely each dimension follows how frequent a token is, layer by layer: outliers against all other dimensions.

    counts = read_counts("counts.parquet", loaded.tokenizer)
    found = frequency(loaded, read_texts("test.parquet"), counts)
    found.contrast("log").difference              # outliers against all other dimensions, |r| over all blocks
    found.row("5", 223)                           # one dimension in one layer: every number, its rank among all
    found.values("log")                           # [layer, dim], correlation of |h_d| with log(1 + count)

Puccetti et al. (2022), section 4, over token occurrences: with raw counts as they have it, with log counts, given the
position, by ranks, and over types. One pass over the texts; `frequency_sums` has its sums.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge

from outlierlens.analyses.frequency_counts import session_counts
from outlierlens.analyses.frequency_sums import (
    FrequencyPass,
    Vocabulary,
    adjusted,
    contrast,
    of_types,
    partial,
    pearson,
    pearson_signed,
    random_dims,
    rank_p_of,
    read,
    spread,
)
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts, write_counts
from outlierlens.detection.targets import check_dims
from outlierlens.detection.weights import scan_stream
from outlierlens.errors import BadInput, pick
from outlierlens.models.hooks import layer_name
from outlierlens.models.inputs import reader_digest
from outlierlens.models.load import LoadedModel, fingerprint, stream_width
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep, kept_rows
from outlierlens.results.rows import Draws, Estimate, More, Quiet, Row
from outlierlens.results.safe_files import check_file
from outlierlens.statistics import SIGNIFICANT
from outlierlens.statistics.means import critical, no_interval
from outlierlens.statistics.ranks import fisher, ranks_from_top, spearman
from outlierlens.vectors.read import ReadOptions, text_stack, wanted_layers
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, Count, FineShare, P, Rows, percent

if TYPE_CHECKING:
    from outlierlens.session import Session

VIEWS = ("without_special", "all")
TOKENS = {"without_special": "without special tokens", "all": "special tokens counted"}
DRAWN = ("raw", "log", "partial")  # with an interval over texts
MEASURES = (*DRAWN, "signed", "spearman", "types")
CONTRASTED = (*DRAWN, "spearman", "types")
BLOCKS = "blocks"  # the layer of a contrast that is over all blocks
COMPAT_LENGTH, COMPAT_CHARACTERS = 128, 70  # of the released code of Puccetti et al. (2022)
N_RANDOM = 10  # dimensions of its control
FEWEST_DRAWS, FEWEST = 50, 200  # draws, and sampled tokens and types, below which a result says too little
SHOWN = 12  # named dimensions that get rows of their own
SAYS = {"more": "more closely", "less": "less closely", "unclear": "no more clearly"}


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FrequencyOptions:
    """Settings of the measurement."""

    dims: DimsOrFind = FIND
    """Compare these with all others: 308,381; find: those that the weights name."""
    n_bootstrap: Annotated[int, Flag(hidden=True), Ge(FEWEST_DRAWS)] = 200
    """Bootstrap draws of the texts."""
    n_sample: Annotated[int, Flag(hidden=True), Ge(FEWEST)] = 2048
    """Tokens of the rank correlations."""
    n_types: Annotated[int, Flag(hidden=True), Ge(FEWEST)] = 4000
    """Types (vocabulary entries) of correlations over types."""
    paper_compat: bool = False
    """Counts, texts and special tokens as in the released code of Puccetti et al.: texts of more than 70 characters, 128
    tokens, and 10 random dimensions as control."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    special: Annotated[bool, Flag(hidden=True)] = False
    """Whether tables and charts show results with special tokens ([CLS], [SEP], <s>); those without are measured too."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = ReadOptions()
    """How the model is run; its budget bounds the memory of draws, sampled tokens and types together."""
    max_length: Annotated[int, Flag(hidden=True), Ge(2)] = 128
    """Maximum number of tokens per text."""

    def __post_init__(self) -> None:
        check(self)
        if self.paper_compat and self.max_length != COMPAT_LENGTH:
            raise BadInput(
                f"max_length is {self.max_length}; the released code reads {COMPAT_LENGTH} tokens (paper_compat)"
            )


@dataclass(frozen=True, kw_only=True)
class FrequencyCall:
    """What the command is asked."""

    counts: str
    """Token counts, ours or published, or a corpus to count: text files, a folder, a glob or a hub id; several by commas."""
    write_counts: Path | None = None
    """Write the counts to this file (parquet), which --counts, ablate --predictions and geometry --bands read."""
    measured: Annotated[FrequencyOptions, Flat()] = FrequencyOptions()
    """Settings of the measurement; texts have a group of their own."""


# --- what is found ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Contrast(Row):
    """The named dimensions against all others."""

    view: Annotated[str, More]
    """tokens: without_special, or all"""
    measure: str
    """correlation: of |h| with the raw count, the log count, the same given the position (partial), by ranks, over types"""
    layer: str
    """layer: or the mean over all blocks"""
    named: float
    """mean |r|: of the named dimensions"""
    others: float
    """others: mean |r| of all other dimensions of the layer"""
    difference: Annotated[Estimate, Change]
    """difference: with its interval over texts; by ranks and over types there is none"""
    p: Annotated[float, P]
    """rank p: share of random sets of the same size whose mean |r| is at least this; for one dimension, its rank over all"""

    @property
    def verdict(self) -> str:
        """ "more", "less", "unclear" or "too few texts": how closely the named dimensions follow frequency, against others.

        "more" needs an interval above 0 and a rank p-value of at most 0.05; "less" an interval below 0 and one of at least
        0.95. Of a measure with draws there is no verdict without an interval; of others the p-value alone decides.
        """
        known = self.difference.settled
        if not np.isfinite(self.difference.value):
            return "unclear"
        if not known and self.measure in DRAWN:
            return "too few texts"
        if self.p <= SIGNIFICANT and (self.difference.side() > 0 or not known):
            return "more"
        return "less" if self.p >= 1 - SIGNIFICANT and (self.difference.side() < 0 or not known) else "unclear"

    def sentence(self, outliers: str, n_texts: int) -> str:
        """Whether `outliers` follow token frequency, of `n_texts` texts."""
        where = "all blocks" if self.layer == BLOCKS else self.layer
        if self.verdict in SAYS:
            said = f"{outliers} follow token frequency {SAYS[self.verdict]} than other dimensions"
        else:
            said = f"{outliers} and token frequency: no verdict, for {no_interval(n_texts)}"
        return (
            f"{said} ({self.measure} counts, {where}, {TOKENS[self.view]}): mean |r| {self.named:.3f} against "
            f"{self.others:.3f}, a difference of {self.difference.written('+.3f')}, rank p {self.p:.3g}."
        )


@dataclass(frozen=True, kw_only=True)
class DimCorrelation(Row):
    """One dimension in one layer."""

    dim: int
    """dimension"""
    layer: str
    log: Estimate
    """r, log counts: correlation of |h| with log(1 + count), its interval over texts"""
    rank: Annotated[int, Count]
    """rank: of its |r| among all dimensions of the layer, 1 for the largest"""
    signed: float
    """r of h: of h itself with log(1 + count)"""
    raw: Estimate
    """raw counts: correlation of |h| with the count (Puccetti et al. 2022)"""
    partial: Estimate
    """given position: with log(1 + count), the position in the text taken out linearly"""
    spearman: float
    """Spearman: rank correlation with the count, of tokens drawn at random"""
    types: Estimate
    """over types: mean |h| of each type with log(1 + count), without special tokens"""
    random: Annotated[tuple[float, ...], Quiet, Draws] = ()
    """r with log counts of random other dimensions"""


@dataclass(frozen=True, kw_only=True)
class TokenView(Row):
    """The tokens that count: without special ones, or all of them."""

    view: str
    """tokens"""
    n_tokens: Annotated[int, Count]
    """tokens read"""
    n_types: Annotated[int, Count]
    """types: different ones"""
    unknown_types: Annotated[int, Count]
    """types of count 0"""
    unknown: Annotated[float, FineShare]
    """tokens of count 0"""
    shared: Annotated[float, FineShare]
    """count not told apart: tokens whose count a published file gives together with others'"""
    n_sample: Annotated[int, Count]
    """tokens of rank correlations: drawn at random; chance alone gives a rank correlation of about 1 / √(n − 1)"""


@dataclass(frozen=True, kw_only=True)
class Frequency(Finding):
    """Correlation of every dimension of every layer with the frequency of tokens.

    Attributes:
        r: correlations in [−1, 1] by view ("without_special", "all"), measure, layer and dimension; NaN where |h_d| does not
            vary, and of "types" with special tokens.
        error: standard errors of Fisher's z = artanh(r); q: p-values of no correlation, adjusted over all layers and
            dimensions (Benjamini and Hochberg 1995). NaN of "signed" and "spearman".
        reach, types_reach: standard errors to either side of a 95 % interval, over texts and over types.
    """

    title = "Token frequency"
    pictures = (
        Lines(rows="by_layer", x="layer", y="log", by="dim", draws="random", captioned=False,
              greys="{n} random other dimensions"),
    )  # fmt: skip

    contrasts: tuple[Contrast, ...] = ()
    """Outliers against all other dimensions: Mean |r| of both."""
    strongest: tuple[DimCorrelation, ...] = ()
    """The named dimensions and the strongest: Each in the layer where its r with log counts is largest."""
    by_layer: tuple[DimCorrelation, ...] = ()
    """(By layer)"""
    tokens: tuple[TokenView, ...] = ()
    """(Tokens)"""
    counts: str
    view: str = VIEWS[0]
    final_norm: bool
    hidden_size: Annotated[int, "dim"]
    n_bootstrap: int
    reach: float
    n_types: int
    types_reach: float
    paper_compat: bool = False
    random_dims: tuple[int, ...] = ()
    views: Annotated[tuple[str, ...], "view"] = VIEWS
    measures: Annotated[tuple[str, ...], "measure"] = MEASURES
    layers: Annotated[tuple[str, ...], "layer"]
    r: Annotated[np.ndarray, "view measure layer dim"]
    error: Annotated[np.ndarray, "view measure layer dim"]
    q: Annotated[np.ndarray, "view measure layer dim"]

    def _at(self, measure: str, view: str) -> tuple[int, int]:
        if view not in self.views:
            raise BadInput(f"no view {view!r}; views are {', '.join(self.views)}")
        if measure not in self.measures:
            raise BadInput(f"no measure {measure!r}; measures are {', '.join(self.measures)}")
        return 0 if measure == "types" else self.views.index(view), self.measures.index(measure)

    def values(self, measure: str = "log", view: str = VIEWS[0]) -> np.ndarray:
        """Correlations of a measure [layer, dim]; raises BadInput for another measure or view."""
        found: np.ndarray = self.r[self._at(measure, view)]
        return found

    def interval(self, measure: str = "log", view: str = VIEWS[0]) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the 95 % intervals of a measure, [layer, dim] each; NaN where there are none."""
        at = self._at(measure, view)
        far = (self.types_reach if measure == "types" else self.reach) * self.error[at]
        return np.tanh(fisher(self.r[at]) - far), np.tanh(fisher(self.r[at]) + far)

    def place(self, layer: str) -> int:
        """Row of a layer; raises BadInput with the layers there are."""
        if layer not in self.layers:
            raise BadInput(f"no layer {layer!r} in this result; layers are {', '.join(self.layers)}")
        return self.layers.index(layer)

    def contrast(self, measure: str = "log", layer: str = BLOCKS, view: str = VIEWS[0]) -> Contrast:
        """The named dimensions against all others; raises BadInput with what there is."""
        no = f"no contrast of {measure!r}, layer {layer!r}, view {view!r}: outliers are named by the weights or by --dims"
        return pick([one for one in self.contrasts if (one.view, one.layer) == (view, layer)], no, measure=measure)

    def passes(self, view: str = VIEWS[0]) -> np.ndarray:
        """Where a correlation with the log count is no chance of the texts nor of the words, bool [layer, dim].

        Both false discovery rates are at most 5 %: over texts drawn again, which takes the words as given, and over types, of
        which a language has only so many frequent ones.
        """
        with np.errstate(invalid="ignore"):
            texts, types = (self.q[self._at(measure, view)] < SIGNIFICANT for measure in ("log", "types"))
        return np.asarray(texts & types)

    def most(self, dim: int, view: str = VIEWS[0]) -> str:
        """The layer where |r| of a dimension with the log count is largest, a block where there is one."""
        sizes = np.nan_to_num(np.abs(self.values("log", view)[:, dim]), nan=-1.0)
        blocks = _blocks(self.layers) or [0]
        return self.layers[max(blocks, key=lambda row: float(sizes[row]))]

    def row(self, layer: str, dim: int, view: str = VIEWS[0]) -> DimCorrelation:
        """Every number of one dimension in one layer; raises BadInput where there is none."""
        if not 0 <= dim < self.hidden_size:
            raise BadInput(f"no dimension {dim} in this result; there are 0 to {self.hidden_size - 1}")
        at, found = self.place(layer), dict[str, Any]()
        for measure in MEASURES:
            value, ends = float(self.values(measure, view)[at, dim]), self.interval(measure, view)
            drawn = measure in (*DRAWN, "types")
            found[measure] = Estimate(value, *(float(one[at, dim]) for one in ends)) if drawn else value
        every = self.values("log", view)[at]
        rank = int(ranks(every)[dim])
        return DimCorrelation(
            dim=dim, layer=layer, rank=rank, random=tuple(every[list(self.random_dims)].tolist()), **found
        )

    def random_mean(self, view: str = VIEWS[0]) -> np.ndarray:
        """Mean r with the raw count of the random dimensions [layer], the paper's control; NaN where there are none."""
        if not self.random_dims:
            return np.full(len(self.layers), np.nan)
        found: np.ndarray = self.values("raw", view)[:, list(self.random_dims)].mean(1)
        return found

    def sentences(self) -> Iterator[str]:
        if self.contrasts:
            last = self.contrasts[-1].layer
            yield from (
                self.contrast(one, last, self.view).sentence("Outliers", self.about.n_texts) for one in ("log", "raw")
            )
        unknown = self.tokens[self.views.index(self.view)].unknown
        yield f"Frequencies of {self.counts}; {unknown:.1%} of the tokens without one."
        if self.paper_compat:
            drawn = ", ".join(f"{value:+z.2f}" for value in self.random_mean(self.view))
            yield f"Mean r with raw counts of {len(self.random_dims)} random dimensions, layer by layer: {drawn}."
        with np.errstate(invalid="ignore"):
            texts = int((self.q[self._at("log", self.view)] < SIGNIFICANT).sum())
        yield (
            f"With a false discovery rate of {percent(SIGNIFICANT)}, {texts:,} of {len(self.layers) * self.hidden_size:,} "
            f"dimensions × layers correlate with log counts in texts like these, {int(self.passes(self.view).sum()):,} of "
            f"them also over types ({self.n_types:,})."
        )

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """Of contrasts those with counts, of the tokens that are shown, unless `verbose`."""
        if name == "contrasts" and not verbose:
            rows = tuple(one for one in self.contrasts if one.view == self.view and one.measure in ("raw", "log"))
        return super().laid_out(name, rows, head, note, verbose=verbose)


def ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each |value| among all, 1 for the largest; equal ones share the worst; what is NaN comes last."""
    return ranks_from_top(np.nan_to_num(np.abs(values), nan=-1.0), ties="worst")


def _blocks(layers: Sequence[str]) -> list[int]:
    return [place for place, layer in enumerate(layers) if layer != "embeddings"]


# --- the run ---------------------------------------------------------------------------------------------------------


def frequency(
    loaded: LoadedModel,
    texts: Texts,
    counts: TokenCounts,
    options: FrequencyOptions | None = None,
    *,
    rows: Path | Keep | None = None,
) -> Frequency:
    """Correlation of |h_d| with token frequency for every dimension of every layer, outliers held against all others.

    Puccetti et al. (2022), section 4, over token occurrences: with raw counts as they have it, with log counts, given the
    position, by ranks, and over types. Intervals draw texts again, not tokens. With `rows`, every layer is kept there, and
    beside it, now and then, what the pass over the texts has gathered: the same call goes on.

    Raises:
        BadInput: counts of another vocabulary, too few texts, a dimension or layer that does not exist, a state that is not
            finite, or accumulators beyond the budget.
    """
    options = options or FrequencyOptions()
    stack = text_stack(loaded, options.read.stack)
    places = wanted_layers(stack, options.read.layers)
    layers, width = tuple(map(layer_name, places)), stream_width(loaded.model, stack)
    check_dims(() if options.dims == FIND else options.dims, stack, width)
    dims = tuple(dict.fromkeys(scan_stream(loaded, stack.name).dims if options.dims == FIND else options.dims))
    chosen = texts
    if options.paper_compat:
        chosen = Texts(texts.source, tuple(t for t in texts.texts if len(t) > COMPAT_CHARACTERS), texts.column)
    vocabulary = Vocabulary.of(loaded, counts, paper_compat=options.paper_compat)
    whole, notes = FrequencyPass.memory(options, len(layers), width) / 1e9, list(loaded.notes)
    if whole > options.read.cache_gb:
        raise BadInput(
            f"{len(layers):,} layers of {width:,} dimensions need {whole:.2g} GB for {options.n_bootstrap:,} draws of texts, "
            f"{options.n_sample:,} tokens and {options.n_types:,} types, and {options.read.cache_gb:.2g} are allowed; "
            f"raise cache_gb, name fewer layers (--layers), or ask for fewer of these (n_bootstrap, n_sample, n_types)"
        )
    if options.paper_compat:
        notes.append(
            f"{len(chosen):,} of {len(texts):,} texts have more than {COMPAT_CHARACTERS} characters, and were read"
        )
    counted = hashlib.sha256(vocabulary.count.tobytes() + vocabulary.special.tobytes() + vocabulary.shared.tobytes())
    identity = {
        "model": fingerprint(loaded.model), "reader": reader_digest(loaded),
        "data": chosen.digest, "counts": counted.hexdigest(), "stack": stack.name,
        "layers": layers, "final_norm": options.read.final_norm, "dims": dims, "max_length": options.max_length,
        "n_bootstrap": options.n_bootstrap, "n_sample": options.n_sample, "n_types": options.n_types,
        "batch_size": options.read.batch_size, "seed": options.seed,
    }  # fmt: skip
    with kept_rows(rows, identity, loaded.notice) as kept:
        if not {"texts", *layers} <= kept.done.keys():
            place = kept.rows.path.with_suffix(".npz") if kept.rows else None
            if place is not None and isinstance(rows, Keep) and rows.fresh:
                place.unlink(missing_ok=True)
            shape = (len(layers), width)
            gathered = FrequencyPass(loaded, vocabulary, options, shape, json.dumps(identity, sort_keys=True))
            length = read(loaded, chosen, options, gathered, place)
            if gathered.texts[1] < 2:
                raise BadInput(
                    f"{int(gathered.texts[1])} of the texts of {texts.source} hold a token, and an interval over texts needs "
                    f"at least 2; give more text"
                )
            kept("texts", lambda: _texts(gathered) | {"max_length": length})
            for number, layer in enumerate(layers):
                kept(layer, lambda number=number: _layer(gathered, number, dims))  # type: ignore[misc]
            if place is not None:
                place.unlink(missing_ok=True)
        seen, found = kept("texts", dict), [kept(layer, dict) for layer in layers]
    about = About(
        data=chosen.source, data_digest=chosen.digest, stack=stack.name, layers=tuple(one for one in places if one >= 0),
        dims=tuple(map(str, dims)), named_by="the weights" if options.dims == FIND else "--dims",
        n_texts=seen["texts"][1], n_tokens=seen["views"][VIEWS[options.special]]["n_tokens"], max_length=seen["max_length"],
    )  # fmt: skip
    made = Frequency(
        provenance=loaded.provenance(seed=options.seed), about=about, counts=counts.source,
        view=VIEWS[options.special], hidden_size=width, layers=layers,
        final_norm=bool(options.read.final_norm and stack.final_norm), n_bootstrap=options.n_bootstrap,
        random_dims=_random(dims, width, options.seed), paper_compat=options.paper_compat,
        notes=(*notes, *counts.notes, *_notes(seen, dims, width, counts)),
        **_figures(seen, found, options.n_bootstrap),
    )  # fmt: skip
    drawn = np.array([one["drawn"] for one in found])  # [layer, view, measure, draw]
    if dims and len(dims) < width:
        made = replace(made, contrasts=tuple(_contrasts(made, drawn, options.seed)))
    return with_rows(made)


def with_rows(found: Frequency) -> Frequency:
    """With the rows of the named dimensions and of the one that follows frequency most."""
    sizes = np.nan_to_num(np.abs(found.values("log", found.view)), nan=-1.0)
    top = int(np.unravel_index(int(sizes.argmax()), sizes.shape)[1])
    named = sorted(found.dims, key=lambda dim: -sizes[:, dim].max()) or [top]  # a picture shows the first few
    return replace(
        found,
        strongest=tuple(
            found.row(found.most(dim, found.view), dim, found.view) for dim in dict.fromkeys((*found.dims[:SHOWN], top))
        ),
        by_layer=tuple(found.row(layer, dim, found.view) for dim in named[:SHOWN] for layer in found.layers),
    )


def run(session: "Session", call: FrequencyCall) -> Frequency:
    """What the command finds."""
    check_file(call.write_counts, replace=session.output.overwrite)
    counts = session_counts(session, call.counts, paper_compat=call.measured.paper_compat)
    if call.write_counts is not None:
        write_counts(counts, call.write_counts)
    measured = session.vectors.into(call.measured, session.loaded, progress=session.progress)
    return frequency(session.loaded, session.texts()[0], counts, measured, rows=session.kept)


def _texts(gathered: FrequencyPass) -> dict[str, Any]:
    """What was read, plain data."""
    views = {}
    for name, groups in zip(VIEWS, (slice(0, 1), slice(0, 2)), strict=True):
        n, unknown, shared = gathered.n[groups].sum(0).tolist()
        occurred = gathered.occurred[groups].any(0)
        views[name] = {
            "n_tokens": n, "n_types": int(occurred.sum()), "n_sample": int(gathered.sample.part(name).sum()),
            "unknown_types": int((occurred & (gathered.vocabulary.count == 0)).sum()),
            "unknown": unknown / n if n else float("nan"), "shared": shared / n if n else float("nan"),
        }  # fmt: skip
    return {"texts": gathered.texts.tolist(), "views": views, "kept_types": len(gathered.types.ids),
            "seen_types": gathered.types.n_seen}  # fmt: skip


def _layer(gathered: FrequencyPass, layer: int, dims: Sequence[int]) -> dict[str, Any]:
    """Correlations of a layer and their errors [view, measure, dim]; differences of `dims` by draw [view, measure, draw]."""
    width = gathered.sums.width
    value, error = np.full((2, len(VIEWS), len(MEASURES), width), np.nan)  # [view, measure, dim] each
    drawn: list[list[list[float]]] = []
    for at, view in enumerate(VIEWS):
        moments = gathered.sums.of(layer, view)
        log = pearson(moments, "log")
        every = (pearson(moments, "raw"), log, partial(moments, log))
        for place, draws in enumerate(every):
            value[at, place], error[at, place] = draws[0], spread(draws)
        sides = [contrast(draws[1:], dims) for draws in every] if dims else []
        drawn.append([(mine - others).tolist() for mine, others in sides])
        value[at, MEASURES.index("signed")] = pearson_signed(moments)
        value[at, MEASURES.index("spearman")] = sampled_spearman(gathered, layer, view)
    counts = gathered.vocabulary.count[gathered.types.ids]
    types = MEASURES.index("types")
    value[0, types], error[0, types] = of_types(gathered.types.means(layer), counts)
    return {"value": value.tolist(), "error": error.tolist(), "drawn": drawn}


def sampled_spearman(gathered: FrequencyPass, layer: int, view: str) -> np.ndarray:
    """Rank correlations of |h| with the count over the sampled tokens of a view [dim]."""
    sample = gathered.sample
    part = sample.part(view)
    if part.sum() < 3:
        return np.full(gathered.sums.width, np.nan)
    return spearman(np.ascontiguousarray(sample.values[layer, part].T), sample.count[part])


def _figures(seen: dict[str, Any], found: list[dict[str, Any]], n_bootstrap: int) -> dict[str, Any]:
    """Fields of the finding: correlations, errors and adjusted p-values [view, measure, layer, dim], and the tokens."""
    r, error = (np.stack([np.array(one[name]) for one in found], axis=2) for name in ("value", "error"))
    degrees = max(1, min(n_bootstrap, int(seen["texts"][0] or seen["texts"][1])) - 1)
    types_degrees = max(1, seen["kept_types"] - 2)
    q = np.full(r.shape, np.nan)
    for at in np.ndindex(r.shape[:2]):
        if MEASURES[at[1]] in (*DRAWN, "types"):
            q[at] = adjusted(r[at], error[at], types_degrees if MEASURES[at[1]] == "types" else degrees)
    return {
        "r": r, "error": error, "q": q, "n_types": seen["kept_types"], "reach": critical(degrees),
        "types_reach": critical(types_degrees),
        "tokens": tuple(TokenView(view=name, **one) for name, one in seen["views"].items()),
    }  # fmt: skip


def _contrasts(found: Frequency, drawn: np.ndarray, seed: int) -> Iterator[Contrast]:
    """Every view, measure and layer, and all blocks together; `drawn` are differences [layer, view, measure, draw]."""
    sets, blocks = random_dims(found.hidden_size, len(found.dims), seed), _blocks(found.layers)
    parts = [*((layer, [at]) for at, layer in enumerate(found.layers)), *([(BLOCKS, blocks)] if blocks else [])]
    for number, view in enumerate(VIEWS):
        for measure in CONTRASTED[: None if view == VIEWS[0] else -1]:
            sizes = np.abs(found.values(measure, view))
            sides = contrast(sizes, found.dims)  # [side, layer]
            for layer, at in parts:
                draws = drawn[at, number, DRAWN.index(measure)].mean(0) if measure in DRAWN else np.zeros(0)
                p = rank_p_of(sizes[at].mean(0), found.dims, sets)
                yield contrast_row((view, measure, layer), sides[:, at].mean(1), draws, p, found.reach)


def contrast_row(where: tuple[str, str, str], sides: np.ndarray, draws: np.ndarray, p: float, reach: float) -> Contrast:
    """One contrast at (view, measure, layer) of mean |r| of both `sides` [2] and differences by draw [draw]."""
    known = draws[np.isfinite(draws)]
    half = reach * float(known.std(ddof=1)) if len(known) > 1 else float("nan")
    named, others = map(float, sides)
    difference = Estimate(named - others, named - others - half, named - others + half)
    view, measure, layer = where
    return Contrast(view=view, measure=measure, layer=layer, named=named, others=others, difference=difference, p=p)


def _random(dims: Sequence[int], width: int, seed: int) -> tuple[int, ...]:
    """Random dimensions, none of them named: the control of the paper's figures."""
    free = np.setdiff1d(np.arange(width), np.array(dims, dtype=int))
    return tuple(sorted(np.random.default_rng([seed, 59]).permutation(free)[:N_RANDOM].tolist()))


def _notes(seen: dict[str, Any], dims: Sequence[int], width: int, counts: TokenCounts) -> Iterator[str]:
    if not dims:
        yield "the weights name no outliers, so nothing is held against other dimensions; name some with --dims"
    if len(dims) >= width:
        yield "all dimensions are named, so there are no others to hold them against"
    if not seen["texts"][0]:
        yield "no text holds a token that is not special, so there is nothing without special tokens"
    kept, there, view = seen["kept_types"], seen["seen_types"], seen["views"][VIEWS[0]]
    if kept < there:
        yield f"correlations over types rest on {kept:,} of the {there:,} that occur, drawn by the seed"
    if view["n_tokens"] and view["unknown"]:
        yield (
            f"{view['unknown']:.2%} of the tokens (special ones not counted) have count 0 in {counts.source}; they are kept, "
            f"with frequency 0 and log(1 + 0) = 0"
        )
