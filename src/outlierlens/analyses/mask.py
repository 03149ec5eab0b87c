"""Which tokens and dimensions to leave out of hidden states before an autoencoder or a steering vector is made of them.

found = mask(load_model("smollm2-135m"), read_texts("excerpt"), MaskOptions(layer=15))
found.positions, found.token_ids             # the tokens to leave out
found.dims                                   # dimensions that stand out on the other tokens
found.judged.recall                          # of the rule, on texts that did not make it
found.tokens[0].first, found.tokens[0].last  # from which block to which a token is a sink
activation_mask(found, dims="clip")(states, tokens)                  # in a training loop

A sink is a token whose hidden state is far longer than the median token's. What repeats (a position, a type of token) is the
mask; what is left of the sinks is for the threshold on the norm. Moments and dimensions that stand out are those of the tokens
that are no sinks.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

import numpy as np
from annotated_types import Ge, Gt, Le

from outlierlens.analyses.mask_exports import TOOLS, export
from outlierlens.data.texts import Data
from outlierlens.data.token_texts import token_words
from outlierlens.errors import USE_FLOAT32, BadInput, need
from outlierlens.models.load import LoadedModel
from outlierlens.options import Flag, Options, written_for
from outlierlens.results.document import load
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Row
from outlierlens.results.safe_files import check_file, write_text
from outlierlens.session import Session
from outlierlens.statistics.means import share_at_most
from outlierlens.vectors.read import ReadOptions, Tokens, stack_of, token_batches, tokenise
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Count, FineShare, Rows, Share, number, percent

if TYPE_CHECKING:
    from torch import Tensor

DIM_FACTOR = 5.0  # a dimension stands out where its root mean square is more than this many times the median one's
SINK_FACTOR = 10.0  # a token is a sink where its hidden state is longer than this times the median token's
FEWEST_TEXTS, FEWEST_TOKENS = 4, 2  # of a split; of a position or type before it is masked
LONGEST = 4  # sinks that are listed in short
SHOWN = 12  # dimensions that stand out, and token types in a sentence, at most
CLIP = 4.0  # standard deviations
DRAWS = 20  # random sets of as many tokens as there are sinks
Treatment = Literal["keep", "clip", "standardise", "mean"]


@dataclass(frozen=True, kw_only=True)
class MaskOptions(Options):
    """What counts as a sink, and in which block."""

    layer: Annotated[int | None, Ge(0)] = None
    """The block whose output is masked. Default: the middle one."""
    factor: Annotated[float, Gt(1)] = SINK_FACTOR
    """A token is a sink where its hidden state is longer than this many times that of the median token."""
    share: Annotated[float, Flag(hidden=True), Gt(0), Le(1)] = 0.5
    """Mask a position or a token type where at least this share of its tokens are sinks."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    max_length: Annotated[int, Ge(2)] = 128
    """Maximum number of tokens per text; the model's number of positions if that is smaller."""
    batch_size: Annotated[int, Flag(hidden=True), Ge(1)] = 32
    """Texts per forward pass."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the split into texts that make the mask and texts that judge it."""


@dataclass(frozen=True, kw_only=True)
class MaskCall(MaskOptions):
    """What counts as a sink, and for whom the mask is written."""

    export: Annotated[tuple[str, str] | None, Flag(read="options:parse_export")] = None
    """TOOL:FILE: write the mask for this tool too: saelens, dictionary-learning, transformer-lens, nnsight, heretic,
    steering."""

    @property
    def tool(self) -> str | None:
        """For whom the mask is written."""
        return None if self.export is None else written_for(self.export, tuple(TOOLS))

    @property
    def to(self) -> Path | None:
        """The file to write for that tool."""
        return None if self.export is None else Path(self.export[1])

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.tool  # a tool that does not exist is refused before any work


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LayerSinks(Row):
    """The sinks of one block's output, over the texts that made the mask."""

    note = (
        "γ: length of the mean hidden state over the length of the standard deviations. A sparse autoencoder of states with a "
        "large γ spends latents on the mean."
    )
    layer: int
    n_sinks: Annotated[int, Count]
    """sinks: tokens whose norm is above the threshold"""
    held: Annotated[float, Share]
    """held: the share of all squared norms that is theirs"""
    random: Annotated[float, FineShare]
    """held by random tokens: of the same number of tokens; median of 20 sets"""
    median_norm: float
    largest_norm: float
    threshold: float
    gamma: float
    """γ: of all tokens"""
    gamma_kept: float
    """γ without sinks"""


@dataclass(frozen=True, kw_only=True)
class MaskOutlier(Row):
    """An outlier dimension of the masked block."""

    dim: int
    """dimension"""
    times: float
    """times the median: its root mean square over that of the median dimension, over all tokens"""
    times_kept: float
    """without sinks"""
    sink_share: Annotated[float, Share]
    """held by sinks: the share of its sum of squares"""
    every_token: bool
    """on other tokens too: whether it is an outlier on tokens that are not sinks; else it is one through sinks alone"""


@dataclass(frozen=True, kw_only=True)
class SinkToken(Row):
    """A token that is a sink in one block at least."""

    text: Annotated[int, Count]
    """text: its number, from 0"""
    position: Annotated[int, Count]
    token: str
    first: int
    """first block: in whose output it is a sink"""
    last: int
    """last block"""
    n_blocks: Annotated[int, Count]
    """blocks: in how many it is one"""
    peak: int
    """peak: the block in which it is the most times as long as the median token"""
    times: float
    """× median: of the norm, there"""


@dataclass(frozen=True)
class MaskValidation:
    """What the rule does on texts that did not make it.

    Attributes:
        n_texts, n_tokens, n_sinks: of those texts.
        recall: share of their sinks that positions and types leave out, nan without any. false_share: of their other tokens.
        n_sink_texts, n_missed_texts: texts with a sink, and those of them in which one is missed.
        missed_at_most: of texts with a sink, at most this share has one that is missed (95 % bound, Clopper and Pearson 1934).
    """

    n_texts: int
    n_tokens: int
    n_sinks: int
    recall: float
    false_share: float
    n_sink_texts: int
    n_missed_texts: int
    missed_at_most: float


@dataclass(frozen=True, kw_only=True)
class Mask(Finding):
    """Which tokens and dimensions of one block's output to leave out; `about` is of the texts that made it.

    Attributes:
        dimensions: that stand out; `dims` are those that do on tokens that are no sinks. blocks: the sinks of every block.
        tokens: each that is a sink in any block, the largest first.
        layer: the block. path: its module. threshold: a token is a sink where the norm of its hidden state is larger.
        positions: places in a text, from 0, whose tokens are left out; `places` what these are in pictures and recordings.
        token_ids, words: types of tokens that are left out.
        judged: what positions and types do on other texts.
        centre, scale: mean and standard deviation [dim] of tokens that are no sinks.
    """

    title = "Tokens and dimensions to leave out"
    pictures = (
        Lines(rows="blocks", x="layer", y="gamma", title="All tokens"),
        Lines(rows="blocks", x="layer", y="gamma_kept", title="Without sinks"),
    )

    dimensions: tuple[MaskOutlier, ...]
    """Outlier dimensions"""
    blocks: tuple[LayerSinks, ...]
    """Sinks by block"""
    tokens: tuple[SinkToken, ...]
    """Tokens that are sinks"""
    layer: int
    path: str
    factor: float
    dim_factor: float
    share: float
    threshold: float
    positions: tuple[int, ...]
    places: tuple[str, ...] = ()
    token_ids: tuple[int, ...]
    words: tuple[str, ...]
    judged: MaskValidation
    centre: Annotated[np.ndarray, "dim"]
    scale: Annotated[np.ndarray, "dim"]

    @property
    def here(self) -> LayerSinks:
        """The sinks of the masked block."""
        return self.blocks[self.layer]

    @property
    def persisting(self) -> tuple[int, int, int, int]:
        """(first block with a sink, last one, sinks of the first, those of them in the last); there must be `tokens`."""
        first, last = min(one.first for one in self.tokens), max(one.last for one in self.tokens)
        begun = [one for one in self.tokens if one.first == first]
        return first, last, len(begun), sum(one.last == last for one in begun)

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """In short the masked block, and the longest sinks."""
        if name == "tokens" and len(rows) > LONGEST and not verbose:
            rows, note = rows[:LONGEST], f"The {LONGEST} longest of {len(rows):,}."
        rows = (self.here,) if name == "blocks" and not verbose else rows
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        here, held = self.here, self.judged
        yield (
            f"In the output of block {self.layer} {here.n_sinks:,} of {self.about.n_tokens:,} tokens are sinks, longer than "
            f"{number(self.threshold)} ({number(self.factor)} times the median token)."
        )
        if here.n_sinks:
            yield (
                f"They hold {percent(here.held)} of all squared norms, and the same number of random tokens "
                f"{FineShare(here.random).written()}."
            )
        if self.tokens:
            first, last, begun, stay = self.persisting
            are = "token is a sink" if len(self.tokens) == 1 else "tokens are sinks"
            yield (
                f"{len(self.tokens):,} {are} in any block; of {begun:,} in block {first}, the first with any, "
                f"{stay:,} ({percent(stay / begun)}) are in block {last}, the last."
            )
        if self.positions or self.token_ids:
            named = ", ".join(self.places) or f"position {', '.join(map(str, self.positions))}"
            parts = [named] * bool(self.positions)
            more = f" and {len(self.words) - SHOWN:,} more" if len(self.words) > SHOWN else ""
            parts += [f"tokens {', '.join(map(repr, self.words[:SHOWN]))}{more}"] * bool(self.words)
            yield f"The mask leaves out {' and '.join(parts)}."
        elif here.n_sinks:
            yield "They share no position and no token type: only the threshold on the norm finds them."
        else:
            yield "No token has to be left out."
        if held.n_sinks:
            yield (
                f"On {held.n_texts:,} held-out {self.about.inputs} the mask leaves out {percent(held.recall)} of "
                f"{held.n_sinks:,} sinks and {FineShare(held.false_share).written()} of the other tokens; it misses one in "
                f"{held.n_missed_texts:,} of {held.n_sink_texts:,} {self.about.inputs} with one, so in at most "
                f"{percent(held.missed_at_most)} of such {self.about.inputs} (95 % bound)."
            )
        else:
            yield f"The {held.n_texts:,} held-out {self.about.inputs} hold no sink."
        if self.dims:
            are = "are outliers" if self.dims[1:] else "is an outlier"
            yield f"{', '.join(self.about.dims)} {are} on the other tokens too: clip, standardise or leave out."


# --- how it is measured ------------------------------------------------------------------------------------------


class _TokenNorms(NamedTuple):
    """Tokens in a row: norms [token, layer], and the type, position and text of each [token]."""

    norms: np.ndarray
    ids: np.ndarray
    position: np.ndarray
    text: np.ndarray


def mask(
    loaded: LoadedModel, texts: Data, options: MaskOptions | None = None, *,
    progress: Callable[[str, int, int], None] | None = None,
) -> Mask:  # fmt: skip
    """Tokens and dimensions to leave out of one block's output, from half of `texts`, judged on the other half.

    With pictures and recordings (`media.Items`) tokens are patches and frames; they share their position alone.

    Raises:
        BadInput: fewer than four texts with tokens, no such block, a model that reads no text, or a state that is not finite.
    """
    options = options or MaskOptions()
    stack = stack_of(loaded, texts, options.stack)
    layer = stack.n_layers // 2 if options.layer is None else options.layer
    if layer >= stack.n_layers:
        raise BadInput(f"{loaded.name}: there is no block {layer}; its blocks are 0 to {stack.n_layers - 1}")
    tokens = tokenise(loaded, texts, max_length=options.max_length, stack=stack.name)
    order = np.random.default_rng(options.seed).permutation(np.flatnonzero(tokens.lengths > 0)).tolist()
    if len(order) < FEWEST_TEXTS:
        raise BadInput(
            f"{texts.source}: {len(order)} {texts.plural} have tokens, and half of them judge what the others say; use at "
            f"least {FEWEST_TEXTS}"
        )
    n_fit = (len(order) + 1) // 2
    numbers = sorted(order[:n_fit])
    fit, held = tokens.some(numbers), tokens.some(sorted(order[n_fit:]))
    every, size = tuple(range(stack.n_layers)), options.batch_size
    read = ReadOptions(batch_size=size, stack=stack.name, layers=every, progress=progress)
    seen = _seen(loaded, fit, read.told("finding sinks"))
    thresholds = options.factor * np.median(seen.norms, axis=0)  # [layer]
    sums = _sums(loaded, fit, read.told("reading other tokens"), thresholds)
    sinks, threshold = seen.norms[:, layer] > thresholds[layer], float(thresholds[layer])
    positions = _mostly(seen.position, sinks, options.share)
    rest = ~np.isin(seen.position, positions)  # types are counted outside these positions
    ids = _mostly(seen.ids[rest], sinks[rest], options.share)
    others = _seen(loaded, held, ReadOptions(batch_size=size, stack=stack.name, layers=(layer,)))
    centre, scale = (one[layer].astype(np.float32) for one in _moments(sums[1]))
    dimensions = _standing_out(sums[:, :, layer], DIM_FACTOR)
    return Mask(
        provenance=loaded.provenance(seed=options.seed),
        about=About(
            data=texts.source, data_digest=texts.digest, inputs=texts.plural, stack=stack.name, layers=(layer,),
            n_texts=n_fit, n_tokens=len(seen.ids), max_length=0 if tokens.reading else tokens.max_length,
            dims=tuple(str(dim) for dim in sorted(one.dim for one in dimensions if one.every_token)),
        ),
        dimensions=dimensions, blocks=tuple(_blocks(seen, sums, thresholds, seed=options.seed)),
        tokens=tuple(_sinks(loaded, seen, numbers, options.factor)),
        layer=layer, path=stack.blocks[layer], factor=options.factor, dim_factor=DIM_FACTOR, share=options.share,
        threshold=threshold, positions=positions, places=tokens.reading.places(positions) if tokens.reading else (),
        token_ids=ids, words=token_words(loaded.tokenizer, ids),
        judged=_judged(others, len(held.texts), threshold, np.isin(others.position, positions) | np.isin(others.ids, ids)),
        centre=centre, scale=scale, notes=(*loaded.notes, *tokens.notes),
    )  # fmt: skip


def _states(loaded: LoadedModel, tokens: Tokens, read: ReadOptions) -> "Iterator[tuple[Tensor, ...]]":
    """(states [layer, token, dim], ids, positions, texts [token]) of each batch, padding left out."""
    import torch

    for batch in token_batches(loaded, tokens, read):
        valid = batch.valid
        states = torch.stack([one[valid].float() for one in batch.states])
        if not bool(states.isfinite().all()):
            raise BadInput(f"{loaded.name}: a state is NaN or infinite; {USE_FLOAT32}")
        text = torch.tensor(batch.texts, device=valid.device)[:, None].expand_as(valid)
        yield states, batch.ids[valid], (valid.long().cumsum(1) - 1)[valid], text[valid]


def _seen(loaded: LoadedModel, tokens: Tokens, read: ReadOptions) -> _TokenNorms:
    parts = [
        (states.norm(dim=-1).T.cpu(), *(one.cpu() for one in rest)) for states, *rest in _states(loaded, tokens, read)
    ]
    return _TokenNorms(*(np.concatenate([np.asarray(one) for one in column]) for column in zip(*parts, strict=True)))


def _sums(loaded: LoadedModel, tokens: Tokens, read: ReadOptions, thresholds: np.ndarray) -> np.ndarray:
    """Σ1, Σh and Σh² over all tokens, and over those that are no sinks, in float64 [2, 3, layer, dim]."""
    import torch

    sums: np.ndarray = np.zeros(())
    for states, *_ in _states(loaded, tokens, read):
        limit = torch.as_tensor(thresholds, device=states.device)[:, None]
        below, wide = states.norm(dim=-1) <= limit, states.double()  # [layer, token]
        for_each = (torch.ones_like(below).double()[..., None], below.double()[..., None])
        new = [[(wide**power * weight).sum(1) for power in range(3)] for weight in for_each]
        sums = sums + torch.stack([torch.stack(one) for one in new]).cpu().numpy()
    return sums


def _moments(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of Σ1, Σh and Σh²."""
    count, first, second = sums
    mean = first / np.maximum(count, 1.0)
    return mean, np.sqrt(np.maximum(second / np.maximum(count, 1.0) - mean**2, 0.0))


def _mostly(names: np.ndarray, sinks: np.ndarray, share: float) -> tuple[int, ...]:
    """Those of which at least `share` are sinks."""
    n, n_sinks = Counter(names.tolist()), Counter(names[sinks].tolist())
    return tuple(sorted(one for one, k in n_sinks.items() if k >= max(FEWEST_TOKENS, share * n[one])))


def _judged(seen: _TokenNorms, n_texts: int, threshold: float, out: np.ndarray) -> MaskValidation:
    """What is left `out` [token] of texts that did not make the mask, against the threshold."""
    sinks = seen.norms[:, 0] > threshold
    with_sinks, missed = set(seen.text[sinks].tolist()), set(seen.text[sinks & ~out].tolist())
    return MaskValidation(
        n_texts=n_texts, n_tokens=len(sinks), n_sinks=int(sinks.sum()),
        recall=float(out[sinks].mean()) if sinks.any() else math.nan,
        false_share=float(out[~sinks].mean()) if not sinks.all() else math.nan,
        n_sink_texts=len(with_sinks), n_missed_texts=len(missed),
        missed_at_most=share_at_most(len(missed), len(with_sinks)) if with_sinks else math.nan,
    )  # fmt: skip


def _standing_out(sums: np.ndarray, factor: float) -> tuple[MaskOutlier, ...]:
    """Of sums [2, 3, dim]: the largest first."""
    sizes = np.sqrt(sums[:, 2] / np.maximum(sums[:, 0], 1.0))
    times, kept = (one / max(float(np.median(one)), 1e-30) for one in sizes)
    held = np.maximum(0.0, 1 - sums[1, 2] / np.maximum(sums[0, 2], 1e-300))
    order = np.argsort(-np.maximum(times, kept), kind="stable").tolist()
    return tuple(
        MaskOutlier(
            dim=dim, times=float(times[dim]), times_kept=float(kept[dim]), sink_share=float(held[dim]),
            every_token=bool(kept[dim] > factor),
        )
        for dim in [dim for dim in order if max(times[dim], kept[dim]) > factor][:SHOWN]
    )  # fmt: skip


def _blocks(seen: _TokenNorms, sums: np.ndarray, thresholds: np.ndarray, *, seed: int) -> Iterator[LayerSinks]:
    lengths = [[np.linalg.norm(one, axis=-1) for one in _moments(some)] for some in sums]  # of mean and spread [layer]
    for layer, threshold in enumerate(thresholds.tolist()):
        norms = seen.norms[:, layer]
        sinks, squares, drawing = norms > threshold, norms.astype(np.float64) ** 2, np.random.default_rng([seed, layer])
        n_sinks, total = int(sinks.sum()), max(float(squares.sum()), 1e-300)
        drawn = [drawing.choice(squares, n_sinks, replace=False).sum() for _ in range(DRAWS)]
        gamma, kept = (float(mean[layer] / spread[layer]) if spread[layer] else math.inf for mean, spread in lengths)
        yield LayerSinks(
            layer=layer, n_sinks=n_sinks, held=float(squares[sinks].sum() / total),
            random=float(np.median(drawn) / total), median_norm=float(np.median(norms)),
            largest_norm=float(norms.max()), threshold=threshold, gamma=gamma, gamma_kept=kept,
        )  # fmt: skip


def _sinks(loaded: LoadedModel, seen: _TokenNorms, numbers: Sequence[int], factor: float) -> Iterator[SinkToken]:
    """Tokens that are sinks in any block, the largest first; `numbers` are those of the texts among all."""
    times = seen.norms / np.maximum(np.median(seen.norms, axis=0), 1e-30)
    order = np.argsort(-times.max(1), kind="stable")
    places = [place for place in order.tolist() if times[place].max() > factor]
    for place, word in zip(places, token_words(loaded.tokenizer, seen.ids[places].tolist()), strict=True):
        layers, peak = np.flatnonzero(times[place] > factor), int(times[place].argmax())
        yield SinkToken(
            text=numbers[seen.text[place]], position=int(seen.position[place]), token=word, first=int(layers[0]),
            last=int(layers[-1]), n_blocks=len(layers), peak=peak, times=float(times[place, peak]),
        )  # fmt: skip


def run(session: Session, options: MaskCall) -> Mask:
    """The analysis, as the command runs it; with --export it is written for that tool too."""
    check_file(options.to, replace=session.output.overwrite)
    texts = session.data()
    if texts.plural != "texts" and options.tool is not None and TOOLS[options.tool].texts:
        raise BadInput(
            f"--export {options.tool}: that tool reads texts, and {texts.source} holds {texts.plural}; leave it out"
        )
    found = mask(session.loaded, texts, options, progress=session.progress)
    if options.tool is not None and options.to is not None:
        write_text(options.to, export(options.tool, found))
    return found


# --- in a training loop ------------------------------------------------------------------------------------------


class MaskedStates(NamedTuple):
    """`states` [..., dim] with their dimensions treated, and `kept` bool [...]: which of them are no sinks."""

    states: "Tensor"
    kept: "Tensor"


@dataclass(frozen=True)
class ActivationMask:
    """Leaves sinks out of hidden states, and treats dimensions; makes no copy of the model and keeps no state.

    Attributes:
        found: the mask. dims: what is done to dimensions: "keep" nothing; "clip" every one to its mean ± 4 standard deviations;
            "standardise" every one to mean 0 and standard deviation 1; "mean" those that stand out to their mean.
        norms: also leave out what is longer than the threshold.
    """

    found: Mask
    dims: Treatment = "keep"
    norms: bool = True

    def __call__(
        self, states: "Tensor", tokens: "Tensor | None" = None, positions: "Tensor | None" = None
    ) -> MaskedStates:
        """Mask `states` [..., token, dim] of `tokens`, ids [..., token].

        `positions` [..., token] are places in the text from 0; by default the place along the token axis, which is right where
        nothing is padded on the left. Without `tokens` the norm alone decides.

        Raises:
            BadInput: states of another width, tokens of another shape, or neither tokens nor norms to go by.
        """
        import torch

        width = len(self.found.centre)
        if states.shape[-1] != width:
            raise BadInput(
                f"states have {states.shape[-1]} dimensions, and the mask is of {width}; use that of the same model"
            )
        if tokens is None and not self.norms:
            raise BadInput("norms=False leaves only tokens to go by; pass their ids")
        kept = states.float().norm(dim=-1) <= (self.found.threshold if self.norms else math.inf)
        if tokens is not None:
            if tokens.shape != kept.shape:
                raise BadInput(
                    f"tokens are {tuple(tokens.shape)}, and states {tuple(states.shape)}; ids go one per state"
                )
            place = torch.arange(tokens.shape[-1], device=tokens.device) if positions is None else positions
            for values, wanted in ((place.expand(tokens.shape), self.found.positions), (tokens, self.found.token_ids)):
                out = torch.isin(values, torch.tensor(wanted, dtype=values.dtype, device=values.device))
                kept &= ~out.to(kept.device)
        return MaskedStates(self._treated(states), kept)

    def _treated(self, states: "Tensor") -> "Tensor":
        import torch

        centre, scale = (torch.from_numpy(one).to(states) for one in (self.found.centre, self.found.scale))
        if self.dims == "clip":
            return torch.maximum(torch.minimum(states, centre + CLIP * scale), centre - CLIP * scale)
        if self.dims == "standardise":
            return (states - centre) / scale.clamp(min=torch.finfo(states.dtype).tiny)
        if self.dims == "mean" and self.found.dims:
            states = states.clone()
            states[..., list(self.found.dims)] = centre[list(self.found.dims)]
        return states


def activation_mask(found: Mask | str | Path, *, dims: Treatment = "keep", norms: bool = True) -> ActivationMask:
    """A mask to call in a training loop, from what `mask` found or from the file that it wrote.

    Raises:
        BadInput: a file of another kind of result, or an unknown treatment. MissingExtra: torch is not installed.
    """
    need("torch", "models", "masking hidden states")
    if dims not in get_args(Treatment):
        raise BadInput(f"unknown treatment {dims!r}; dimensions take {', '.join(get_args(Treatment))}")
    made = found if isinstance(found, Mask) else load(Path(found))
    if not isinstance(made, Mask):
        raise BadInput(
            f"{found} holds a {type(made).__name__}, not a Mask; make one with `outlierlens mask MODEL -o mask.json`"
        )
    return ActivationMask(made, dims, norms)
