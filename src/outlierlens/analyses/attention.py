"""Attention that keys receive, its correlation with hidden dimensions, and attention sinks; with dimensions on and off.

found = attention(load_model("minilm-l6"), read_texts("train.parquet", limit=1000))
found.figure("first", state="off").value             # share of attention on the first token, an Estimate
found.overall_r(308, "without_special").p            # rank p of mean |r| among all other dimensions
found.r("without_special")                           # [layer, dim] Pearson r with |h_d|, mean over heads

One pass intact, one with the named dimensions off, one for each set of random dimensions. After Puccetti et al. (2022),
"vertical attention".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.modes import Mode, Switch, check_mode, check_no_resampling
from outlierlens.ablation.switches import EditSettings
from outlierlens.analyses.attention_maps import (
    CLASSES,
    KEYS,
    METRICS,
    KeyKinds,
    KeyPass,
    Keys,
    finite_mean,
    padded,
)
from outlierlens.data.texts import Data
from outlierlens.detection.targets import named_dims
from outlierlens.errors import BadInput, pick
from outlierlens.models.attention_maps import check_eager, eagerly
from outlierlens.models.inputs import Progress, reader_digest, tokenizer_of
from outlierlens.models.load import LoadedModel, fingerprint, stream_width
from outlierlens.options import FIND, DimsOrFind, Flag, check
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep, kept_rows
from outlierlens.results.rows import UNKNOWN, Draws, Estimate, More, Quiet, Row
from outlierlens.statistics.bootstrap import finite_quantiles, percentile_interval
from outlierlens.statistics.ranks import rank_among, rank_p
from outlierlens.vectors.read import IN_MEMORY, stack_of, tokenise
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, Count, P, Rows, number, these

if TYPE_CHECKING:
    from outlierlens.session import Session

OF_WORDS = ("delimiter", "punctuation")  # measures that pictures and recordings do not have
EVERY = "all"  # layer of what is a mean over all layers
SINKS = "sink_heads"
BAND = (0.05, 0.5, 0.95)  # quantiles over all other dimensions
N_CONTROL = 10  # random dimensions of the released code's control
PANELS = {
    "first": "Attention on the first token",
    "special": "Attention on special tokens",
    "delimiter": "Attention on delimiters",
    "relative_entropy": "Entropy / log keys",
}


# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """Settings of the measurement."""

    dims: DimsOrFind = FIND
    """308,381; find: those that scan finds, or the two strongest."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    mode: Annotated[Mode, Flag(read="ablation.modes:named_mode", words="weights")] = "weights"
    """How dimensions are ablated in all layers: weights, norms, zero, mean, scale or writes."""
    factor: Annotated[float, Flag(into="--mode")] = 0.5
    """Factor of mode scale."""
    embeddings: Annotated[bool, Flag(into="--mode")] = False
    """Mode writes: the embeddings' writes too."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random sets of the same size."""
    threshold: Annotated[float, Flag("--sink-threshold"), Gt(0), Lt(1)] = 0.3
    """Mean attention on the first token that makes a head a sink."""
    paper_compat: bool = False
    """Correlate as the released code: texts are padded to --max-length, padding tokens count as queries; 10 random controls."""
    max_length: Annotated[int, Ge(2)] = 128
    """Maximum number of tokens per text (or window)."""
    batch_size: Annotated[int, Flag(hidden=True), Ge(1)] = 32
    """Texts per forward pass."""
    n_bootstrap: Annotated[int, Flag(hidden=True), Ge(20)] = 200
    """Bootstrap draws of the texts."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        check_mode(self.mode, self.factor, self.embeddings)
        check_no_resampling(self.mode, "attention")


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttentionFigure(Row):
    """Where attention goes in one layer, or in the mean over "all", with dimensions on or off; a mean over heads."""

    note = (
        "first, special, delimiter, punctuation: share of a query's attention on the text's first token, on special tokens, "
        "delimiters, and punctuation that is not a special token. mass: sum of a query's weights. entropy: of its weights, in "
        "nats; relative_entropy: over the logarithm of the number of keys that it sees, where that is two or more. sink_heads: "
        "share of heads whose mean attention on the first token is above the threshold."
    )
    layer: str
    measure: str
    state: str
    """state: intact, or with the dimensions ablated"""
    value: Estimate
    change: Annotated[Estimate, Change] = UNKNOWN
    """change from intact: the same texts drawn again for both"""
    random: Annotated[tuple[float, ...], Draws] = ()
    """random: the value with each random set ablated"""
    p: Annotated[float | None, P] = None
    """rank p: of |change| among the random sets"""
    uniform: float | None = None
    """all keys alike: of queries that attend to all keys they see alike"""


@dataclass(frozen=True, kw_only=True)
class KeyCorrelation(Row):
    """Pearson's r, over keys, of the attention a key receives with |h_d| of the layer's output at that key; mean over heads."""

    note = (
        "Attention received: the mean over queries that see the key (seen), all queries of the text (all), or padding too "
        "(padded). The rank is that of |r| among the dimension and all that are not named."
    )
    mean: str
    """mean over: queries"""
    keys: str
    """keys: all but padding; without_special: tokens; without_first: without those and each text's first token"""
    layer: str
    dim: int
    """dimension"""
    r: Annotated[Estimate, Change]
    rank: int
    p: Annotated[float, P]
    """rank p"""
    others_5: Annotated[float, Change]
    """others 5 %: quantiles of r over all dimensions that are not named"""
    others_median: Annotated[float, Quiet]
    others_95: Annotated[float, Change]
    """others 95 %"""
    off: Annotated[float, Change]
    """with it ablated: NaN where the dimension is 0 everywhere"""
    random: Annotated[tuple[float, ...], Quiet] = ()
    """r with each random set ablated"""

    @property
    def others(self) -> tuple[float, ...]:
        """The quantiles of all other dimensions."""
        return (self.others_5, self.others_median, self.others_95)


@dataclass(frozen=True, kw_only=True)
class OverallCorrelation(Row):
    """A dimension's mean over layers of |r|: one test for all layers."""

    note = "Ranks are among the dimension and all that are not named; the strongest layer is chosen, the mean is not."
    mean: Annotated[str, More]
    """mean over: queries"""
    keys: str
    n_keys: Annotated[int, Count]
    """n"""
    dim: int
    """dimension"""
    size: Estimate
    """mean |r|"""
    rank: int
    p: Annotated[float, P]
    """rank p"""
    layer: str
    """strongest in layer"""
    r: Annotated[Estimate, Change]
    """r there"""


def _drawn(field: str, wanted: str, row: Any) -> bool:
    """Whether a row is of one layer and of what is wanted; no panel without special tokens."""
    return getattr(row, field) == wanted and row.layer != EVERY and (wanted != "special" or row.value.value > 0)


@dataclass(frozen=True, kw_only=True)
class Attention(Finding):
    """Vertical attention and attention sinks of a model: intact, with dimensions ablated, and with random ones ablated.

    Attributes:
        hides: whether some layer hides keys from queries (causal, or a window), beside padding.
        mode: how dimensions are off. n_set: weights that this sets. random_sets: of as many other dimensions, off in turn.
        threshold: mean attention on the first token that makes a head a sink. first: what that is, "" of texts.
        delimiters: those tokens of the texts that count as delimiters, the commonest first, some thirty at most.
        means: ways in which attention is averaged, the default first.
        every_r: r of all dimensions, by `means` and keys. heads_r: of each head, at `dims`.
        control: by head, mean r of the dimensions `control_dims` (of all others where there are none: not `paper_compat`).
        heads: by condition (intact, off, random sets), measure (those of `AttentionFigure` but sinks), layer and head.
    """

    title = "Where attention goes"
    pictures = (
        *(
            Lines(rows="drawn_r", x="layer", y="r", by="dim", draws="others", title=f"r with attention received, {title}",
                  greys="5 %, median and 95 % of all other dimensions", where=partial(_drawn, "keys", keys))
            for keys, title in (("all", "all keys"), ("without_first", "without special and first tokens"))
        ),
        *(
            Lines(rows="figures", x="layer", y="value", by="state", draws="random", title=title,
                  greys="{n} random sets ablated", where=partial(_drawn, "measure", measure))
            for measure, title in PANELS.items()
        ),
    )  # fmt: skip

    figures: tuple[AttentionFigure, ...]
    """Where attention goes"""
    overall: tuple[OverallCorrelation, ...]
    """Attention received and |h|, over layers"""
    correlations: tuple[KeyCorrelation, ...]
    """(Attention received and |h|, by layer)"""
    hides: bool
    hidden_size: Annotated[int, "dim"]
    n_special: int
    mode: str
    n_set: int
    random_sets: Annotated[tuple[tuple[int, ...], ...], "set"]
    threshold: float
    first: str = ""
    delimiters: tuple[str, ...]
    control_dims: tuple[int, ...]
    means: Annotated[tuple[str, ...], "mean"]
    every_r: Annotated[np.ndarray, "mean 3 layer dim"]
    heads_r: Annotated[np.ndarray, "mean 3 layer head named"]
    control: Annotated[np.ndarray, "mean 3 layer head"]
    heads: Annotated[np.ndarray, "set+2 7 layer head"]

    def figure(self, measure: str, layer: str = EVERY, state: str = "intact") -> AttentionFigure:
        """A measure over all layers, or in one; raises BadInput with what there is."""
        no = f"no {measure} / {layer} / {state} in this result"
        return pick(self.figures, no, measure=measure, layer=layer, state=state)

    def r(self, keys: Keys = "all", mean: str = "") -> np.ndarray:
        """Pearson's r [layer, dim], mean over heads, over some keys, by default of the first mean; NaN where one never varies.

        Raises:
            BadInput: no such keys or mean, with those there are.
        """
        mean = mean or self.means[0]
        if keys not in KEYS or mean not in self.means:
            raise BadInput(
                f"no correlation over keys {keys!r} of mean {mean!r}; keys are {', '.join(KEYS)}, means "
                f"{', '.join(self.means)}"
            )
        found: np.ndarray = self.every_r[self.means.index(mean), list(KEYS).index(keys)]
        return found

    def correlation(self, layer: str, dim: int, keys: Keys = "all", mean: str = "") -> KeyCorrelation:
        """A named dimension in one layer; raises BadInput with what there is."""
        mean, no = mean or self.means[0], f"no dimension {dim} in layer {layer} in this result"
        return pick(self.correlations, no, layer=layer, dim=dim, keys=keys, mean=mean)

    def overall_r(self, dim: int, keys: Keys = "all", mean: str = "") -> OverallCorrelation:
        """A named dimension over all layers; raises BadInput with what there is."""
        mean = mean or self.means[0]
        return pick(self.overall, f"no dimension {dim} in this result", dim=dim, keys=keys, mean=mean)

    @property
    def drawn_r(self) -> tuple[KeyCorrelation, ...]:
        """Correlations of the first mean, the dimensions of largest mean |r| without first tokens first."""
        size = {dim: np.nan_to_num(self.overall_r(dim, "without_first").size.value) for dim in self.dims}
        rows = (one for one in self.correlations if one.mean == self.means[0])
        return tuple(sorted(rows, key=lambda one: -size[one.dim]))

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """In short figures over all layers, and correlations of the first mean over keys that differ."""
        if not verbose and name == "figures":
            rows = tuple(one for one in self.figures if one.layer == EVERY and one.measure != "mass")
        elif not verbose and name == "overall":
            first = [one for one in self.overall if one.mean == self.means[0]]
            rows = tuple({(one.n_keys, one.dim): one for one in reversed(first)}.values())[::-1]
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        n = self.hidden_size - len(self.dims) + 1
        for dim in self.dims:
            one = self.overall_r(dim, "without_special")
            yield (
                f"{dim}: mean |r| over layers with the attention a token receives {one.size.written('.3f')}, rank {one.rank} "
                f"of {n} dimensions, p {one.p:.3g}."
            )
        first = f"of attention goes to the first token{f', {self.first}' if self.first else ''}"
        what = {"first": first, "special": "of attention goes to special tokens"}
        for measure, said in (what | {SINKS: f"of the heads give it more than {self.threshold:g}"}).items():
            if measure == "special" and not self.n_special:
                continue
            off, p = self.figure(measure, state="off"), ""
            if off.p is not None:
                p = f" (rank p {off.p:.3g} among random dimensions)"
            before = self.figure(measure).value.value
            yield f"{before:.1%} {said}, {off.value.value:.1%} with {these(self.dims)} off{p}."
        r = np.nan_to_num(self.heads_r[0, -1])  # of the fewest keys
        if r.any():
            layer, head, place = np.unravel_index(int(np.abs(r).argmax()), r.shape)
            yield (
                f"Without special and first tokens r is largest in head {head} of layer {layer}, with dimension "
                f"{self.dims[place]}: {number(float(r[layer, head, place]))}."
            )
        yield (
            f"{self.n_special:,} of the tokens are special; {self.heads.shape[3]} heads in each layer; dimensions ablated by "
            f"{self.mode}."
        )


# --- how it is found ---------------------------------------------------------------------------------------------


@eagerly
def attention(
    loaded: LoadedModel, texts: Data, options: AttentionOptions | None = None, *,
    progress: Progress | None = None, rows: Path | Keep | None = None,
) -> Attention:  # fmt: skip
    """Measure the attention that tokens receive, its correlation with every dimension, and sinks; intact and ablated.

    It ablates the outliers and, as controls, random dimensions.
    The named dimensions are `dims`, or those that the scan of the weights finds, or the strongest where it finds
    none. Attention is eager meanwhile. `progress` is called with (label, texts done, texts). With `rows`, every pass is kept
    there and is not read again. With pictures and recordings (`media.Items`) the keys are patches and frames.

    Raises:
        BadInput: attention that cannot be eager, a family whose weights cannot be had, an unknown dimension or stream, or a
            state that is not finite.
    """
    options = options or AttentionOptions()
    stack = stack_of(loaded, texts, options.stack)
    check_eager(loaded, stack)
    width, named = stream_width(loaded.model, stack), named_dims(loaded, stack, options.dims)
    tokens = tokenise(loaded, texts, max_length=options.max_length, stack=stack.name)
    tokenizer, control = None if tokens.reading else tokenizer_of(loaded), tuple[int, ...]()
    kinds, lengths = KeyKinds(tokenizer, tokens), tokens.lengths
    if options.paper_compat:
        if tokens.reading is not None:
            raise BadInput(f"--paper-compat pads texts as the released code does; {texts.plural} are not: leave it out")
        tokens, avoid = (
            padded(tokens, tokenizer_of(loaded).pad_token_id or 0),
            sorted({*named.dims, *named.found}),
        )
        (control,) = random_sets(width, min(N_CONTROL, width - len(avoid)), avoid=avoid, n=1, seed=options.seed + 1)
    reading = KeyPass(
        loaded, stack, tokens, lengths, kinds, named.dims, options.batch_size, options.n_bootstrap, options.seed,
        options.paper_compat, progress,
    )  # fmt: skip
    switch = Switch(loaded, stack, options.mode, options.embeddings, EditSettings(factor=options.factor))
    identity: dict[str, Any] = {
        "model": fingerprint(loaded.model), "reader": reader_digest(loaded),
        "data": texts.digest, "stack": stack.name, "dims": list(named.dims),
        "mode": switch.name, "max_length": options.max_length, "n_bootstrap": options.n_bootstrap, "seed": options.seed,
        "paper_compat": options.paper_compat,
    }  # fmt: skip
    sets = random_sets(width, len(named.dims), n=options.n_random, seed=options.seed, other_than=named.dims)
    others = np.setdiff1d(np.arange(width), named.dims).tolist()
    passes: dict[str, tuple[int, ...]] = {"intact": (), f"dimensions {named.dims} ablated": named.dims}
    passes |= {f"random dimensions {dims} ablated": dims for dims in sets}
    with kept_rows(rows, identity, loaded.notice) as kept:
        if {*passes} - {*kept.done}:
            switch = switch.with_means(texts, length=tokens.max_length, batch_size=options.batch_size)

        def read(name: str, dims: tuple[int, ...]) -> dict[str, Any]:
            return reading.measure(switch, dims, name).figures(named.dims, control or others)

        calls = [partial(kept, name, partial(read, name, dims)) for name, dims in passes.items()]
        states = len(passes) * int(lengths.sum()) * stack.n_layers * width * 4
        intact, off, *random = loaded.run(calls) if states <= IN_MEMORY else (call() for call in calls)
    n_tokens, every = intact["n_keys"]["all"], np.array(intact["r"])
    overall, correlations = _correlations(intact, every, named.dims, off, random)
    return Attention(
        provenance=loaded.provenance(seed=options.seed, digest=identity["model"]),
        about=About(
            data=texts.source, data_digest=texts.digest, inputs=texts.plural, stack=stack.name,
            layers=tuple(range(stack.n_layers)), dims=tuple(map(str, named.dims)), named_by=named.by,
            n_texts=int((lengths > 0).sum()), n_tokens=n_tokens, max_length=0 if tokens.reading else tokens.max_length,
        ),
        first=tokens.reading.words([tokens.rows.numbers[0][0]], stack.name)[0] if tokens.reading and tokens.rows else "",
        figures=tuple(
            row for row in _figures(intact, off, random, options.threshold)
            if tokens.reading is None or row.measure not in OF_WORDS
        ), overall=overall, correlations=correlations,
        hides=intact["hides"], hidden_size=width, n_special=n_tokens - intact["n_keys"]["without_special"], mode=switch.name,
        n_set=off["n_set"], random_sets=tuple(sets), threshold=options.threshold, delimiters=kinds.delimiters,
        control_dims=control, means=tuple(intact["means"]), every_r=every, heads_r=np.array(intact["r_heads"]),
        control=np.array(intact["control"]), heads=np.array([one["heads"] for one in (intact, off, *random)]),
        notes=(*loaded.notes, *named.notes, *tokens.notes, *_notes(loaded, stack.name, intact, options)),
    )  # fmt: skip


def run(session: "Session", options: AttentionOptions) -> Attention:
    """What the command finds."""
    return attention(session.loaded, session.data(), options, progress=session.progress, rows=session.kept)


def _figures(
    intact: dict[str, Any], off: dict[str, Any], random: list[dict[str, Any]], threshold: float
) -> Iterator[AttentionFigure]:
    """Of every measure in every layer, intact and off."""
    before, after, *others = (_by_layer(one, threshold) for one in (intact, off, *random))
    uniform = np.array(intact["uniform"])
    uniform = np.concatenate([uniform, uniform.mean(axis=1, keepdims=True)], axis=1)
    layers = [*map(str, range(uniform.shape[1] - 1)), EVERY]
    for i, measure in enumerate((*METRICS, SINKS)):
        for j, layer in enumerate(layers):
            alike = float(uniform[i, j]) if i < len(CLASSES) else None
            row = partial(AttentionFigure, layer=layer, measure=measure, uniform=alike)
            raw, changed = before[:, i, j], after[:, i, j] - before[:, i, j]
            values = tuple(float(one[0, i, j]) for one in others)
            p = rank_p(abs(float(changed[0])), np.abs(np.array(values) - raw[0])) if values else None
            yield row(state="intact", value=_estimate(raw))
            yield row(state="off", value=_estimate(after[:, i, j]), change=_estimate(changed), random=values, p=p)


def _by_layer(found: dict[str, Any], threshold: float) -> np.ndarray:
    """[replicate, measure, layer] of a pass; the last measure is sinks, without replicates, the last layer "all"."""
    drawn = np.array(found["drawn"])
    sinks = np.full((len(drawn), 1, drawn.shape[2]), np.nan)
    sinks[0, 0] = (np.array(found["heads"])[METRICS.index("first")] > threshold).mean(axis=-1)
    every = np.concatenate([drawn, sinks], axis=1)
    return np.concatenate([every, finite_mean(every, axis=2)[..., None]], axis=2)


def _estimate(drawn: np.ndarray) -> Estimate:
    low, high = percentile_interval(drawn[1:])
    return Estimate(float(drawn[0]), float(low), float(high))


def _correlations(
    intact: dict[str, Any], every: np.ndarray, named: tuple[int, ...], off: dict[str, Any], random: list[dict[str, Any]]
) -> tuple[tuple[OverallCorrelation, ...], tuple[KeyCorrelation, ...]]:
    """Of every mean and keys: each named dimension over all layers, and in each."""
    overall, by_layer, others = [], [], np.setdiff1d(np.arange(every.shape[3]), named)
    for i, mean in enumerate(intact["means"]):
        for j, keys in enumerate(KEYS):
            r, drawn = every[i, j], [np.array(one["r"])[i, j] for one in (off, *random)]
            ends, overall_ends = (np.array(intact[name][i][j]) for name in ("ends", "overall_ends"))
            size, band = np.abs(r), finite_quantiles(r[:, others], BAND)
            rank, p = ranks(size, named, others)
            over = finite_mean(size)
            over_rank, over_p = ranks(over[None], named, others)
            best = np.where(np.isfinite(size), size, -1).argmax(axis=0)
            for k, dim in enumerate(named):
                estimates = [Estimate(float(r[m, dim]), *map(float, ends[:, m, k])) for m in range(len(r))]
                by_layer += [
                    KeyCorrelation(
                        mean=mean, keys=keys, layer=str(m), dim=dim, r=estimates[m], rank=int(rank[m, k]), p=float(p[m, k]),
                        **dict(zip(("others_5", "others_median", "others_95"), band[m].tolist(), strict=True)),
                        off=float(drawn[0][m, k]), random=tuple(float(one[m, k]) for one in drawn[1:]),
                    )
                    for m in range(len(r))
                ]  # fmt: skip
                overall.append(OverallCorrelation(
                    mean=mean, keys=keys, n_keys=intact["n_keys"][keys], dim=dim, layer=str(best[dim]),
                    size=Estimate(float(over[dim]), *map(float, overall_ends[:, k])), rank=int(over_rank[0, k]),
                    p=float(over_p[0, k]), r=estimates[best[dim]],
                ))  # fmt: skip
    return tuple(overall), tuple(by_layer)


def ranks(size: np.ndarray, named: Sequence[int], others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rank, p) [row, named] of each named dimension among it and the `others`, by `size` [row, dim], the largest first.

    p = (1 + others at least as large) / (1 + others); a size that is no number is the smallest there can be.
    """
    known = np.nan_to_num(size, nan=-np.inf)
    rank = rank_among(known[:, list(named)], known[:, None, others])
    return rank, rank / (1 + len(others))


def _notes(loaded: LoadedModel, stack: str, intact: dict[str, Any], options: AttentionOptions) -> Iterator[str]:
    if stack == "decoder":
        yield "self-attention of the decoder; its attention to the encoder is not read"
    if intact["n_keys"]["all"] == intact["n_keys"]["without_special"]:
        yield "no token is special: keys with and without special ones are the same"
    mass = finite_mean(np.array(intact["heads"])[METRICS.index("mass")], axis=-1)
    if abs(mass.min() - 1) > 1e-3:
        yield (
            f"a query's weights sum to {mass.min():.3f} to {mass.max():.3f}, mean over heads, not to 1: shares are of weights "
            "as they are, entropies of weights brought to sum 1"
        )
    if loaded.config.get("attention_kind") == "gated":
        yield "attention is gated: weights are before the gate, which scales what a head reads of them"
    if options.paper_compat:
        yield "correlations as in the released code: padding counts among queries, controls are 10 random dimensions"
