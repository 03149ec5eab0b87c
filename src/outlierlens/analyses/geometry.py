"""How vectors lie in space, by layer, before and after fixes; and how those of frequent and rare tokens differ.

loaded = load_model("minilm-l6")
found = geometry(loaded, read_texts("train.parquet", limit=3000), GeometryOptions(fixes=parse_fixes("raw,clip,whiten")))
found.row("5", "raw").anisotropy                   # mean cosine of random tokens of different sentences, an Estimate
found.row("5", "clip").anisotropy_change           # what clipping adds to it
found.top("5")[0].dim                              # the dimension that carries most of it

found = frequency_bands(loaded, texts, read_counts("counts.parquet", loaded.tokenizer))
found.figure("norm_ratio").value                   # most frequent / rarest band, over all blocks
found.figure("types_gap", state="clip").p          # among random sets of dimensions, clipped alike

Fixes are fitted on another text, or on sentences of the same data that no measure reads. Tokens of bands are read as they are
("raw"), with the outlier dimensions zero in their vectors ("clip"), and again with these off in the network ("off").
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from outlierlens.ablation.modes import check_no_resampling, named_mode
from outlierlens.analyses.frequency_counts import session_counts
from outlierlens.analyses.geometry_figures import BY_BAND, OVERALL
from outlierlens.analyses.geometry_passes import BLOCKS, LEAST, RAW, Bands, Replicates, Space
from outlierlens.data.texts import Data, Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.detection.targets import check_dims, named_dims
from outlierlens.detection.weights import scan_stream
from outlierlens.errors import BadInput, pick
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check, options_of
from outlierlens.results.finding import Finding
from outlierlens.results.row_store import Keep, kept_rows
from outlierlens.results.rows import UNKNOWN, Draws, Estimate, More, Pivot, Quiet, Row
from outlierlens.statistics.ranks import rank_p
from outlierlens.vectors.cosines import estimate, jackknife
from outlierlens.vectors.fixes import ENOUGH, USUAL, FixSpec, parse_fixes
from outlierlens.vectors.options import Fitting
from outlierlens.vectors.read import ReadOptions, text_stack
from outlierlens.vectors.spans import Drawing
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, Count, FineShare, P, Rows, Share

if TYPE_CHECKING:
    from outlierlens.session import Session

ALL = "all"  # bands
SENTENCES = "sentences"
TOP, COLUMNS = 10, 3  # dimensions of largest contribution that are kept, and that have a column of the table
STATES = {
    "raw": "As they are",
    "clip": "With the dimensions zero in the vectors",
    "off": "With the dimensions ablated in the network",
}
DRAWN = ("n_pairs", "n_words", "min_sentences", "max_contexts", "max_tokens", "skip_first")
BANDS = ("n_bands", "tokens_per_band", "mode", "embeddings", "n_random")


# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GeometryOptions:
    """Settings of the measurement; the last ones of the command line are of bands of token frequency."""

    drawing: Annotated[Drawing, Flat(*DRAWN)] = Drawing()
    """Sizes of the samples."""
    dims: DimsOrFind = FIND
    """308,381: also give their share of the cosine; with --bands: clip and ablate them. find: those that the weights name."""
    n_bootstrap: Annotated[int, Flag(hidden=True), Ge(20)] = 500
    """Bootstrap draws of the sentences."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    n_bands: Annotated[int, Flag(hidden=True), Ge(2)] = 5
    """With --bands: number of bands of frequency, with equal numbers of occurrences."""
    tokens_per_band: Annotated[int, Flag(hidden=True), Ge(LEAST)] = 1000
    """With --bands: at most N tokens from each band, one per text."""
    mode: Literal["weights", "norms", "zero", "mean", "writes", "none"] = "weights"
    """With --bands: how dimensions are ablated in all blocks, in a second pass; none: no second pass."""
    embeddings: Annotated[bool, Flag(into="--mode")] = False
    """Mode writes: the embeddings' writes too."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 19
    """With --bands: random sets of the same size to clip."""
    fixes: Annotated[tuple[FixSpec, ...], Flag(hidden=True, read="vectors.fixes:parse_fixes")] = parse_fixes(USUAL)
    """Fixes to try; with `raw` each is given as a difference from it."""
    clip: Annotated[str, Flag(hidden=True)] = "auto"
    """Of fix "clip", as `vectors.clip.resolve_clipping` takes it."""
    fit_limit: Annotated[int, Flag(hidden=True), Ge(2)] = 10_000
    """Texts to fit on, at most; reading ends before, at 20 token vectors per dimension."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = ReadOptions()
    """How the model is run."""
    max_length: Annotated[int, Flag(hidden=True), Ge(2)] = 128
    """Maximum number of tokens per text."""

    def __post_init__(self) -> None:
        check(self)
        if not self.fixes:
            raise BadInput("name at least one fix; raw is the vectors as they are")
        if self.embeddings and self.mode != "writes":
            raise BadInput(f"embeddings belongs to mode writes, not to {self.mode}")
        if self.mode != "none":
            check_no_resampling(named_mode(self.mode), "vectors")


@dataclass(frozen=True, kw_only=True)
class GeometryCall:
    """What the command is asked: how vectors lie in space, or how those of frequent and rare tokens differ."""

    bands: str | None = None
    """Compare tokens by frequency instead: token counts, or a corpus to count (as frequency --counts), several by commas."""
    options: Annotated[GeometryOptions, Flat()] = GeometryOptions()
    """Settings of the measurement."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LayerGeometry(Row):
    """One layer's vectors after one fix; changes are from the raw vectors, the same sentences drawn again for both."""

    note = "95 % intervals over sentences; of IsoScore by jackknife over groups of them."
    layer: str
    fix: str
    clipped: tuple[int, ...] = ()
    """clipped: dimensions that are zero, of fix "clip\""""
    anisotropy: Estimate
    """anisotropy: mean cosine of all pairs of the drawn tokens, one per sentence, in [−1, 1]"""
    anisotropy_change: Annotated[Estimate, Change, More] = UNKNOWN
    """change of anisotropy"""
    pairs_cosine: Annotated[Estimate, More]
    """of pairs: mean cosine of disjoint pairs of sentences, as in Luo et al. (2021, section 4.1)"""
    self_similarity: Annotated[Estimate, Quiet] = UNKNOWN
    """mean over words of the mean pairwise cosine of a word's vectors in different sentences; none without frequent words"""
    self_similarity_adjusted: Estimate = UNKNOWN
    """self-similarity: of words in different sentences, less the anisotropy"""
    self_similarity_change: Annotated[Estimate, Change, More] = UNKNOWN
    """change of self-similarity: of that less the anisotropy"""
    intra_sentence: Annotated[Estimate, Quiet] = UNKNOWN
    """mean over sentences of the mean cosine of a sentence's tokens with their mean (Ethayarajh 2019, section 3)"""
    intra_sentence_adjusted: Estimate = UNKNOWN
    """intra-sentence: similarity of a sentence's tokens with their mean, less the anisotropy"""
    iso_score: Estimate
    """IsoScore: Rudman et al. (2022), in [0, 1], of the vectors that sentences are drawn from, whatever their number"""
    effective_rank: float
    """effective rank: exp of the entropy of the normalised singular values of the centred vectors (Roy and Vetterli 2007)"""
    top_share: Annotated[float, Share]
    """top 3: share of the anisotropy that three dimensions carry; none where its interval reaches 0"""
    r2: Annotated[tuple[float, ...], More] = ()
    """r² −1, −3, −5: of cosines with all dimensions and without the 1, 3, 5 that carry most; near 1 they do not matter"""
    n_fitted: Annotated[int, Quiet] = 0
    """vectors that the fix was fitted on"""


@dataclass(frozen=True, kw_only=True)
class Contribution(Row):
    """What one dimension adds to the mean cosine of a layer after one fix (Timkey and van Schijndel 2021)."""

    layer: str
    fix: str
    dim: int
    """dimension"""
    contribution: float
    """adds to the mean cosine: mean over pairs of u_d v_d / (|u| |v|); over all dimensions they sum to the anisotropy"""
    share: Annotated[float, Share]
    """share of the mean cosine: none where the interval of the anisotropy reaches 0"""
    named: bool
    """named: by the weights, the clipping or --dims"""


@dataclass(frozen=True, kw_only=True)
class Geometry(Finding):
    """Anisotropy, self-similarity and their kind of a model's vectors, at every layer, before and after each fix.

    Attributes:
        words: whose self-similarity is measured. n_contexts: their vectors, one per sentence.
        n_read: sentences that went through the model. n_pairs: disjoint pairs of them; twice as many tokens were drawn.
        n_sentences: whole ones, whose `about.n_tokens` tokens give intra-sentence similarity, IsoScore and effective rank.
        final_norm, special: whether vectors are behind the final norm, and special tokens were drawn too.
        fit_data, n_fit_texts: the text that fixes were fitted on, "" for none. n_shared: of it left out, for it is measured.
        unfitted: why no fix was fitted, where none was asked for by name.
        clipped: dimensions by layer.
    """

    title = "How vectors lie in space"
    layouts: ClassVar[Mapping[str, Pivot]] = {"contributions": Pivot("layer", "dim", "share")}
    pictures = (
        Lines(rows="by_layer", x="layer", y="anisotropy", by="fix", title="Anisotropy"),
        Lines(rows="by_layer", x="layer", y="self_similarity_adjusted", by="fix", title="Self-similarity, adjusted",
              where=lambda row: math.isfinite(row.self_similarity_adjusted.value)),
        Lines(rows="largest", x="layer", y="contribution", by="dim", title="What carries the cosine"),
    )  # fmt: skip

    by_layer: tuple[LayerGeometry, ...]
    """Geometry by layer"""
    contributions: tuple[Contribution, ...] = ()
    """What carries the cosine"""
    words: tuple[str, ...]
    n_contexts: int
    n_read: int
    n_pairs: int
    n_sentences: int
    final_norm: bool
    special: bool
    clipped: dict[str, tuple[int, ...]]
    fit_data: str = ""
    unfitted: str = ""
    n_fit_texts: int = 0
    n_shared: int = 0

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return tuple(dict.fromkeys(row.layer for row in self.by_layer))

    @property
    def fixes(self) -> tuple[str, ...]:
        """Names of the fixes, in order."""
        return tuple(dict.fromkeys(row.fix for row in self.by_layer))

    def row(self, layer: str, fix: str = "raw") -> LayerGeometry:
        """One layer after one fix; raises BadInput with what there is."""
        return pick(self.by_layer, f"no layer {layer!r} with fix {fix!r} in this result", layer=layer, fix=fix)

    def top(self, layer: str, fix: str = "raw") -> tuple[Contribution, ...]:
        """The ten dimensions that carry most of the anisotropy; () after whitening, which has axes of its own."""
        mine = (one for one in self.contributions if (one.layer, one.fix) == (layer, fix))
        return tuple(sorted(mine, key=lambda one: -one.contribution))[:TOP]

    @property
    def largest(self) -> tuple[Contribution, ...]:
        """Of the first fix with any, the contributions of the six dimensions that add most in some layer."""
        first = [one for one in self.contributions if one.fix == self.contributions[0].fix]
        dims = list(dict.fromkeys(one.dim for one in sorted(first, key=lambda one: -one.contribution)))[:6]
        return tuple(one for one in first if one.dim in dims)

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """Of contributions, the named dimensions and the three that carry most of a layer, of the first fix with any."""
        if name == "contributions":
            first = self.contributions[0].fix
            most = {one for layer in self.layers for one in self.top(layer, first)[:COLUMNS]}
            rows = tuple(one for one in self.contributions if one.fix == first and (one.named or one in most))
            note = f"After {first}: named dimensions, and the {COLUMNS} that carry most of each layer;"
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        if self.unfitted:
            yield f"Only raw vectors are measured, no fix: {self.unfitted}."
        first = "raw" if "raw" in self.fixes else self.fixes[0]
        worst = max((self.row(layer, first) for layer in self.layers), key=lambda row: row.anisotropy.value)
        yield (
            f"Random tokens of different {self.about.inputs} have a mean cosine of {worst.anisotropy.written('.3f')} in layer "
            f"{worst.layer}{'' if first == 'raw' else f' after {first}'}, the most of all layers."
        )
        for row in (self.row(worst.layer, fix) for fix in self.fixes if fix != first):
            moved = row.anisotropy_change
            change = f", a change of {moved.written('+z.3f')}" if math.isfinite(moved.value) else ""
            yield f"{row.fix}: {row.anisotropy.value:.3f} there{change}."
        if shares := [one for one in self.largest if math.isfinite(one.share)]:
            most = max(shares, key=lambda one: one.share)
            yield f"The largest share has dimension {most.dim} in layer {most.layer}: {most.share:.0%} of the mean cosine."
        inputs = self.about.inputs
        words = f"{len(self.words):,} words in {self.n_contexts:,} contexts, " if inputs == SENTENCES else ""
        yield (
            f"{self.n_pairs:,} pairs of {inputs}, {words}{self.about.n_tokens:,} tokens of {self.n_sentences:,} {inputs}, "
            f"{'with' if self.special else 'without'} special tokens."
        )
        plural = "texts" if inputs == SENTENCES else inputs
        if n := max(row.n_fitted for row in self.by_layer):
            yield (
                f"Fixes are fitted on {n:,} token vectors of {self.n_fit_texts:,} {plural} of {self.fit_data}; "
                f"{self.n_shared:,} of its {plural} are measured and were left out."
            )


@dataclass(frozen=True, kw_only=True)
class Band(Row):
    """Tokens of about the same corpus frequency."""

    count: str
    """count: in the corpus, smallest to largest"""
    n_types: Annotated[int, Count]
    """types: different tokens of the texts"""
    share: Annotated[float, FineShare]
    """share: of the occurrences of all bands"""
    n_tokens: Annotated[int, Count]
    """drawn: tokens that are measured, one per text"""
    n_drawn_types: Annotated[int, Count]
    """of types"""
    examples: tuple[str, ...]
    """commonest"""
    low: Annotated[float, Quiet]
    high: Annotated[float, Quiet]


@dataclass(frozen=True, kw_only=True)
class BandFigure(Row):
    """A number of one band, or of all, in one layer (or over all "blocks") and state."""

    note = (
        "norm_ratio: mean norm of the most frequent band over that of the rarest; spearman: rank correlation of a token's "
        "count and its vector's norm; cosine_gap, types_gap: mean cosine within the most frequent band minus that within the "
        "rarest, of pairs of different texts, and of different tokens; between: mean cosine of a token of each; anisotropy: of "
        "all tokens."
    )
    layer: str
    state: str
    measure: str
    """measure: of a band norm, cosine, or cosine_types (of different tokens)"""
    count: str
    """count: of a band's tokens in the corpus; "all" for what is of all bands"""
    value: Estimate
    change: Annotated[Estimate, Change] = UNKNOWN
    """change from raw: the same texts drawn again for both"""
    random: Annotated[tuple[float, ...], Draws, Change] = ()
    """random: change by each random set of the same number of other dimensions, clipped alike"""
    p: Annotated[float | None, P] = None
    """p: rank of |change| among the random sets"""


def _over_layers(measure: str, row: Any) -> bool:
    """Whether a row is of a measure, and of one layer; of single bands in the raw vectors."""
    return row.measure == measure and row.layer != BLOCKS and (row.count == ALL or row.state == "raw")


@dataclass(frozen=True, kw_only=True)
class FrequencyBands(Finding):
    """Norms and cosines of tokens by corpus frequency, at every layer: raw, clipped and with dimensions ablated.

    Attributes:
        counts: where frequencies come from. unknown, unknown_types: share of the tokens, and number of types, without one.
        n_read: texts that hold a drawn token. n_types: of tokens that could be drawn.
        mode: how dimensions are off in the network, "" where that was left out.
        random_sets: of as many other dimensions, clipped in turn.
    """

    title = "Frequent and rare tokens in space"
    pictures = tuple(
        Lines(rows="figures", x="layer", y="value", by=by, title=title, where=partial(_over_layers, measure))
        for measure, by, title in (
            ("norm", "count", "Mean norm by band, raw"), ("cosine_types", "count", "Mean cosine of other types by band, raw"),
            ("norm_ratio", "state", "Norm, most frequent / rarest"), ("types_gap", "state", "Cosine, most frequent − rarest"),
        )
    )  # fmt: skip

    figures: tuple[BandFigure, ...]
    """Most frequent band and rarest band"""
    bands: tuple[Band, ...]
    """Bands of frequency, from the rarest"""
    counts: str
    unknown: float
    unknown_types: int
    n_types: int
    n_read: int
    final_norm: bool
    special: bool
    mode: str
    random_sets: tuple[tuple[int, ...], ...]

    def figure(self, measure: str, layer: str = BLOCKS, state: str = "raw", band: int | None = None) -> BandFigure:
        """A measure over all blocks, or of a layer; of one band (-1: most frequent). Raises BadInput with what there is."""
        count = ALL if band is None else self.bands[band].count
        wanted = {"measure": measure, "layer": layer, "state": state, "count": count}
        return pick(self.figures, f"no {' / '.join(wanted.values())} in this result", **wanted)

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """In short what is of all bands, over all blocks."""
        if name == "figures" and not verbose:
            rows = tuple(one for one in self.figures if (one.layer, one.count) == (BLOCKS, ALL)) or rows
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        for state in dict.fromkeys(one.state for one in self.figures if one.layer == BLOCKS):
            norm, gap = (self.figure(measure, state=state).value for measure in ("norm_ratio", "types_gap"))
            yield (
                f"{STATES[state]}, over all blocks: vectors of the most frequent band are {norm.written('.2f')} times as "
                f"long as those of the rarest, and the mean cosine of its different tokens is larger by {gap.written('+z.3f')}."
            )
        yield (
            f"{self.about.n_tokens:,} tokens of {self.n_read:,} texts, {'with' if self.special else 'without'} special tokens; "
            f"frequencies of {self.counts}, {self.unknown:.1%} of the tokens ({self.unknown_types:,} of {self.n_types:,} "
            f"types) without one{f'; dimensions ablated inside the network by {self.mode}' if self.mode else ''}."
        )


# --- how it is found ---------------------------------------------------------------------------------------------


def geometry(
    loaded: LoadedModel,
    texts: Data,
    options: GeometryOptions | None = None,
    *,
    fit: Data | None = None,
    rows: Path | Keep | None = None,
) -> Geometry:
    """Anisotropy, self-similarity, intra-sentence similarity, IsoScore, effective rank and cosine shares of every layer.

    Each picture or recording (`media.Items`) counts as a sentence; they have no words.

    `fit` is the text that fixes are fitted on, measured sentences left out; without it, the sentences of `texts` that no
    measure reads. Where that leaves none and no fix is asked for, raw vectors alone are measured. With `rows`, every layer
    after every fix is kept there and is not measured again.

    Raises:
        BadInput: too few sentences, too little left to fit on, an unknown layer or dimension, or a state that is not finite.
    """
    options = options or GeometryOptions()
    work = Space(loaded, texts, fit, options)
    dims = () if options.dims == FIND else options.dims
    check_dims(dims, work.stack, work.width)
    scanned = scan_stream(loaded, work.stack.name)
    with kept_rows(rows, work.identity, loaded.notice) as kept:
        every = work.measured(kept)
    named = tuple(dict.fromkeys((*dims, *scanned.dims, *work.clipping.every)))
    by_layer, contributions = [], list[Contribution]()
    for (layer, spec), found in every.items():
        raw = _replicates(every[layer, RAW]) if (layer, RAW) in every else {}
        clipped = work.clipping.at(layer) if spec.kind == "clip" else ()
        row = _row(found, raw, work.drawn["n_sentences"], layer=layer, fix=spec.name, clipped=clipped)
        by_layer.append(row)
        contributions += _contributions(row, np.array(found["contributions"]), named) if spec.kind != "whiten" else ()
    drawn = {**work.drawn, "words": tuple(work.drawn["words"])}
    notes = drawn.pop("notes", ())
    return Geometry(
        **work.found(inputs=SENTENCES if isinstance(texts, Texts) else texts.plural, n_tokens=drawn.pop("n_tokens")),
        **drawn, **work.fitted, by_layer=tuple(by_layer), contributions=tuple(contributions), clipped=work.clipping.dims,
        fit_data=work.fit.source if work.fits else "", unfitted=work.unfitted,
        notes=(*loaded.notes, *notes, *_notes(work, by_layer)),
    )  # fmt: skip


def _replicates(found: dict[str, Any]) -> Replicates:
    """Replicates of each measure of a layer after a fix, those less the anisotropy too; what is not known is absent."""
    drawn = {name: np.array(found[name]) for name in ("anisotropy", "pairs_cosine", "iso_score")}
    for name in ("self_similarity", "intra_sentence"):
        if found[name] and math.isfinite(found[name][0]):
            drawn |= {name: np.array(found[name]), f"{name}_adjusted": np.array(found[name]) - drawn["anisotropy"]}
    return drawn


def _row(found: dict[str, Any], raw: Replicates, n_sentences: int, **at: Any) -> LayerGeometry:
    drawn = _replicates(found)
    iso, every = jackknife(drawn.pop("iso_score"), n_sentences), np.array(found["contributions"])
    values: dict[str, Any] = {name: estimate(one) for name, one in drawn.items()}
    for name, change in (("anisotropy", "anisotropy_change"), ("self_similarity_adjusted", "self_similarity_change")):
        if name in drawn and name in raw:
            values[change] = estimate(drawn[name] - raw[name])
    total = every.sum() if values["anisotropy"].side() else math.nan
    return LayerGeometry(
        **at, **values, iso_score=iso, top_share=float(np.sort(every)[::-1][:3].sum() / total), r2=tuple(found["r2"]),
        **{name: found[name] for name in ("effective_rank", "n_fitted")},
    )  # fmt: skip


def _contributions(row: LayerGeometry, every: np.ndarray, named: tuple[int, ...]) -> Iterator[Contribution]:
    """The named dimensions, and the ten that carry most, of what `every` one adds [dim]."""
    total = every.sum() if row.anisotropy.side() else math.nan
    for dim in dict.fromkeys((*named, *np.argsort(-every, kind="stable")[:TOP].tolist())):
        adds = {"contribution": float(every[dim]), "share": float(every[dim] / total)}
        yield Contribution(layer=row.layer, fix=row.fix, dim=dim, named=dim in named, **adds)


def _notes(work: Space, rows: list[LayerGeometry]) -> Iterator[str]:
    drawn, drawing, few = work.drawn, work.options.drawing, ENOUGH * work.width
    of_words = isinstance(work.texts, Texts)
    what = SENTENCES if of_words else work.texts.plural
    if drawn["n_pairs"] < drawing.n_pairs:
        yield f"{drawn['n_pairs']:,} pairs of {what} instead of {drawing.n_pairs:,}: there are no more {what}"
    if not of_words:
        yield f"{what} have no words: self-similarity is not measured, intra-sentence similarity is that of each one's tokens"
    elif (n := len(drawn["words"])) < drawing.n_words:
        least = drawing.min_sentences
        yield f"{n:,} words instead of {drawing.n_words:,}: no more occur in at least {least} sentences"
    if (n := drawn["n_tokens"]) < few:
        rests = f"the effective rank rests on {n:,} token vectors, fewer than {ENOUGH} per dimension"
        yield f"{rests}: it is too small, also that of isotropic vectors"
    short = {row.fix: row.n_fitted for row in rows if row.fix.startswith("whiten") and row.n_fitted < few}
    for fix, n in short.items():
        yield f"{fix}: {n:,} token vectors to fit on are fewer than {ENOUGH} per dimension, so the covariance is shrunk"
    if work.clips:
        yield f"clipping {work.clipping.name}: {work.clipping.source}"


def frequency_bands(
    loaded: LoadedModel,
    texts: Texts,
    counts: TokenCounts,
    options: GeometryOptions | None = None,
    *,
    rows: Path | Keep | None = None,
) -> FrequencyBands:
    """Norms and cosines of tokens by band of corpus frequency, at every layer: raw, clipped and with dimensions ablated.

    With `rows`, every layer in every state is kept there and is not measured again.

    Raises:
        BadInput: counts of another vocabulary or alike for all tokens, too few texts, an unknown layer or dimension, or a
            state that is not finite.
    """
    options = options or GeometryOptions()
    named = named_dims(loaded, text_stack(loaded, options.read.stack), options.dims)
    work = Bands(loaded, texts, counts, options, tuple(sorted(named.dims)))
    with kept_rows(rows, work.identity, loaded.notice) as kept:
        every = work.measured(kept)
    bands, figures = tuple(Band(**one | {"examples": tuple(one["examples"])}) for one in work.drawn["bands"]), []
    parts: list[tuple[str, str, Any]] = [(name, ALL, ()) for name in OVERALL]
    parts += [(name, one.count, i) for name in BY_BAND for i, one in enumerate(bands)]
    for layer, raw in every["raw"].items():
        for name, count, at in parts:
            for state, found in every.items():
                random = [one[layer][name] for one in work.random] if (state, count) == ("clip", ALL) else []
                row = partial(BandFigure, layer=layer, state=state, measure=name, count=count)
                figures.append(_figure(row, found[layer][name][at], raw[name][at], random))
    n_tokens, dims = sum(one.n_tokens for one in bands), tuple(map(str, work.dims))
    return FrequencyBands(
        **work.found(dims=dims, named_by=named.by, n_tokens=n_tokens), **work.drawn["numbers"], figures=tuple(figures),
        bands=bands, counts=counts.source, mode=work.mode, random_sets=work.sets,
        notes=(*loaded.notes, *named.notes, *counts.notes, *_band_notes(bands, options)),
    )  # fmt: skip


def _figure(row: partial[BandFigure], found: np.ndarray, raw: np.ndarray, random: list[np.ndarray]) -> BandFigure:
    """A number with its change from raw, both [replicate], beside those by random sets."""
    if row.keywords["state"] == "raw":
        return row(value=estimate(found))
    change, others = estimate(found - raw), np.array([one[0] - raw[0] for one in random])
    p = rank_p(abs(change.value), np.abs(others)) if random and np.isfinite(others).all() else None
    return row(value=estimate(found), change=change, random=tuple(others.tolist()), p=p)


def _band_notes(bands: tuple[Band, ...], options: GeometryOptions) -> Iterator[str]:
    if len(bands) < options.n_bands:
        yield f"{len(bands)} bands instead of {options.n_bands}: tokens of one count are together, and some have too many"
    for one in (one for one in bands if one.n_tokens < options.tokens_per_band):
        yield f"count {one.count}: {one.n_tokens:,} tokens instead of {options.tokens_per_band:,}: no more texts hold one"


def run(session: "Session", call: GeometryCall) -> Geometry | FrequencyBands:
    """What the command finds; fixes are fitted on the texts that follow where no other text is named."""
    reads, fitting, loaded = session.vectors, session.fitting, session.loaded
    names, told = (BANDS, "belongs to --bands COUNTS") if call.bands is None else (DRAWN[:-1], "is not for --bands")
    mine = (one for one in options_of(GeometryCall) if one.name in names)
    idle = [one.spelt for one in mine if attrgetter(".".join(one.path))(call) != one.default]
    if idle or (call.bands is not None and fitting != Fitting()):
        raise BadInput(f"{idle[0] if idle else '--fixes, as --clip and --fit-data,'} {told}; leave it out")
    options = replace(call.options, drawing=replace(call.options.drawing, special=reads.special))
    if call.bands is not None:
        texts, _ = session.texts()
        options = fitting.into(reads.into(options, loaded, progress=session.progress))
        return frequency_bands(loaded, texts, session_counts(session, call.bands), options, rows=session.kept)
    data, limit = session.data(spare=2 * fitting.fit_limit), session.reading.limit
    options = fitting.into(reads.into(options, loaded, progress=session.progress, data=data))
    fit = fitting.data(offline=session.loading.offline) or data
    return geometry(loaded, data if limit is None else data.first(limit), options, fit=fit, rows=session.kept)
