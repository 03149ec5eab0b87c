"""The run: one pass intact, one with the outliers off, one for each draw of random dimensions.

loaded = load_model("minilm-l6", LoadOptions(attention="eager"))
found = attention(loaded, read_texts("train.parquet", limit=1000), AttentionOptions())
found.correlation("without_special").overall_p

Correlations of the sums of passes: every dimension beside the named ones, with ranks and intervals.

correlations(passes, named, control)          # passes: intact, off, and random ones; -> tuple of KeyCorrelation
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from outlierlens.ablation.controls import Plan, random_sets
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.switches import EditSettings
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Texts
from outlierlens.detection.targets import named_dims
from outlierlens.errors import BadInput
from outlierlens.experiments.attention.condition import (
    FIRST,
    REST,
    SPECIAL,
    PassSums,
    Reading,
    correlation,
    example_maps,
    measure,
)
from outlierlens.experiments.attention.keys import KeyKinds, padded
from outlierlens.experiments.attention.options import AttentionOptions
from outlierlens.experiments.attention.result import (
    BAND,
    Attention,
    AttentionCondition,
    ExampleMaps,
    KeyCorrelation,
    Keys,
)
from outlierlens.models.attention_maps import check_eager, eagerly
from outlierlens.models.inputs import tokenizer_of
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.models.passes import Progress
from outlierlens.session import Session
from outlierlens.statistics.bootstrap import finite_quantiles, percentile_interval
from outlierlens.statistics.ranks import rank_among
from outlierlens.vectors.read import Tokens, text_stack, tokenise

PARTS: dict[Keys, tuple[str, ...]] = {
    "all": (REST, FIRST, SPECIAL),
    "without_special": (REST, FIRST),
    "without_first": (REST,),
}
N_CONTROL = 10  # random dimensions of the released code's control
NO_EXAMPLE = -1


@dataclass(frozen=True)
class Passes:
    """Sums with nothing off, with the outliers off, and with each draw of random dimensions off."""

    intact: PassSums
    off: PassSums
    randoms: Sequence[PassSums]


def correlations(passes: Passes, named: Sequence[int], control: Sequence[int]) -> tuple[KeyCorrelation, ...]:
    """One for each way to average and each choice of keys; `control` dimensions, all but the named ones for ()."""
    return tuple(
        _one(passes, place, keys, list(named), list(control))
        for place in range(len(passes.intact.means))
        for keys in PARTS
    )


def _one(passes: Passes, place: int, keys: Keys, named: list[int], control: list[int]) -> KeyCorrelation:
    intact = passes.intact
    per_head = [of_dims(intact, layer, place, keys) for layer in sorted(intact.pairs)]
    drawn = np.stack([of_texts(intact, layer, place, keys) for layer in sorted(intact.pairs)], axis=1)
    others = np.setdiff1d(np.arange(per_head[0].shape[1]), named)
    every = np.stack([over_heads(one) for one in per_head])
    low, high = percentile_interval(over_heads(drawn[1:], axis=2))
    heads_low, heads_high = percentile_interval(drawn[1:])
    size = np.abs(every)
    rank, p = ranks(size, named, others)
    overall = over_layers(size)
    overall_rank, overall_p = ranks(overall[None], named, others)
    overall_low, overall_high = percentile_interval(over_layers(np.abs(over_heads(drawn[1:], axis=2)), axis=1))
    every_off = _every(passes.off, place, keys)
    return KeyCorrelation(
        mean=intact.means[place],
        keys=keys,
        n_keys=sum(intact.n_keys[part] for part in PARTS[keys]),
        every=every,
        every_off=every_off,
        low=low,
        high=high,
        heads=np.stack([one[:, named] for one in per_head]),
        heads_low=heads_low,
        heads_high=heads_high,
        head_band=np.stack([finite_quantiles(one[:, others], BAND) for one in per_head]),
        control=np.stack([over_heads(one[:, control or others], axis=1) for one in per_head]),
        rank=rank,
        p=p,
        overall=overall[named],
        overall_low=overall_low,
        overall_high=overall_high,
        overall_rank=overall_rank[0],
        overall_p=overall_p[0],
        off=every_off[:, named],
        random=np.stack([_every(one, place, keys)[:, named] for one in passes.randoms])
        if passes.randoms
        else np.zeros((0, len(every), len(named))),
    )


def of_dims(measured: PassSums, layer: int, place: int, keys: Keys) -> np.ndarray:
    """r of every head with every dimension [head, dim] of one layer."""
    total = reduce(add, [measured.pairs[layer][part].sums() for part in PARTS[keys]])
    return correlation(total)[_columns(measured, place)]


def of_texts(measured: PassSums, layer: int, place: int, keys: Keys) -> np.ndarray:
    """r of every head with the named dimensions [replicate, head, named] of one layer."""
    total = reduce(add, [measured.drawn[layer][part].sums() for part in PARTS[keys]])
    return correlation(total)[:, _columns(measured, place)]


def _columns(measured: PassSums, place: int) -> slice:
    return slice(place * measured.heads, (place + 1) * measured.heads)


def _every(measured: PassSums, place: int, keys: Keys) -> np.ndarray:
    return np.stack([over_heads(of_dims(measured, layer, place, keys)) for layer in sorted(measured.pairs)])


def over_heads(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean of the finite values along an axis; NaN where none is."""
    there = np.isfinite(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


over_layers = over_heads


def ranks(size: np.ndarray, named: Sequence[int], others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rank, p) [row, named] of each named dimension among it and the `others`, by `size` [row, dim], the largest first.

    p = (1 + others at least as large) / (1 + others); a size that is no number is the smallest there can be.
    """
    known = np.nan_to_num(size, nan=-np.inf)
    rank = rank_among(known[:, named], known[:, None, others])
    return rank, rank / (1 + len(others))


@eagerly
def attention(
    loaded: LoadedModel,
    texts: Texts,
    options: AttentionOptions | None = None,
    *,
    command: str = "",
    progress: Progress | None = None,
) -> Attention:
    """Vertical attention, its correlation with every dimension, and attention sinks: intact, outliers off, random ones off.

    The named dimensions are those asked for, or those that the scan of the weights finds, or the strongest where it finds
    none. Attention is eager meanwhile. `progress` is called with (label, texts done, texts).

    Raises:
        BadInput: attention that cannot be eager, a family whose weights cannot be had, an unknown dimension, layer, stream or
            example, or a state that is not finite.
    """
    options = options or AttentionOptions()
    stack = text_stack(loaded, options.stack)
    check_eager(loaded, stack)
    width = stream_width(loaded.model, stack)
    named = named_dims(loaded, stack, options.dims)
    avoid = sorted({*named.dims, *named.found})
    example = _example_layer(stack, options, len(texts))
    tokens = tokenise(loaded, texts, max_length=options.max_length)
    reading = _reading(loaded, stack, texts, tokens, named.dims, options)
    drawn = random_sets(width, len(named.dims), n=options.n_random, seed=options.seed, other_than=named.dims)
    intact = measure(_told(reading, progress, "intact"), None)
    off = measure(_told(reading, progress, "outliers off"), _everywhere(stack, named.dims))
    randoms = [
        measure(_told(reading, progress, f"random dimensions off, draw {i + 1}"), _everywhere(stack, dims))
        for i, dims in enumerate(drawn)
    ]
    control: tuple[int, ...] = ()
    if options.paper_compat:
        size = min(N_CONTROL, width - len(avoid))
        (control,) = random_sets(width, size, avoid=avoid, n=1, seed=options.seed + 1)
    before = _replicates(intact)
    conditions = [_condition("intact", (), intact, before), _condition("off", named.dims, off, before)]
    conditions += [_condition("random", dims, one, before) for dims, one in zip(drawn, randoms, strict=True)]
    n_queries = sum(intact.n_keys.values())
    return Attention(
        provenance=loaded.provenance(command=command, seed=options.seed),
        data=texts.source,
        data_digest=texts.digest,
        stack=stack.name,
        layers=tuple(str(layer) for layer in range(stack.n_layers)),
        n_heads=intact.heads,
        hidden_size=width,
        n_texts=int((reading.lengths > 0).sum()),
        n_tokens=n_queries,
        n_special=intact.n_keys["special"],
        max_length=tokens.max_length,
        hides=intact.hides,
        dims=named.dims,
        named_by=named.by,
        mode=reading.ablation.name,
        threshold=options.threshold,
        n_bootstrap=options.n_bootstrap,
        delimiters=reading.kinds.delimiters,
        control_dims=control,
        paper_compat=options.paper_compat,
        uniform=np.stack([intact.places[layer].uniform for layer in range(stack.n_layers)], axis=1) / n_queries,
        conditions=tuple(conditions),
        correlations=correlations(Passes(intact, off, randoms), named.dims, control),
        example=None if example is None else _example(reading, texts, named.dims, example, options),
        notes=(*loaded.notes, *named.notes, *_notes(loaded, stack, intact, conditions[0], options)),
    )


def run(session: Session, options: AttentionOptions) -> Attention:
    """The measurement, as the command runs it."""
    texts, _ = session.texts()
    return attention(session.loaded, texts, options, progress=session.progress)


def _reading(
    loaded: LoadedModel,
    stack: BoundStack,
    texts: Texts,
    tokens: Tokens,
    dims: tuple[int, ...],
    options: AttentionOptions,
) -> Reading:
    lengths = tokens.lengths
    tokenizer = tokenizer_of(loaded)  # which says what a delimiter is
    kinds = KeyKinds(tokenizer, tokens)
    if options.paper_compat:
        tokens = padded(tokens, tokenizer.pad_token_id or 0)
    ablation = Switch(loaded, stack, options.mode, options.embeddings, EditSettings(factor=options.factor))
    return Reading(
        loaded=loaded,
        stack=stack,
        tokens=tokens,
        lengths=lengths,
        kinds=kinds,
        ablation=ablation.with_means(texts, length=tokens.max_length, batch_size=options.batch_size),
        named=dims,
        batch_size=options.batch_size,
        n_bootstrap=options.n_bootstrap,
        seed=options.seed,
        paper_compat=options.paper_compat,
    )


def _told(reading: Reading, tell: Progress | None, label: str) -> Reading:
    return reading if tell is None else replace(reading, progress=lambda done, total: tell(label, done, total))


def _everywhere(stack: BoundStack, dims: tuple[int, ...]) -> Plan:
    return {layer: tuple(dims) for layer in range(stack.n_layers)}


def _replicates(measured: PassSums) -> np.ndarray:
    """[replicate, metric, layer, head], the first of all texts once."""
    return np.stack([measured.places[layer].rates(measured.heads) for layer in sorted(measured.places)], axis=2)


def _condition(kind: str, dims: tuple[int, ...], measured: PassSums, before: np.ndarray) -> AttentionCondition:
    rates = _replicates(measured)
    mean, raw = over_heads(rates, axis=3), over_heads(before, axis=3)
    low, high = percentile_interval(mean[1:])
    change = mean - raw
    change_low, change_high = percentile_interval(change[1:])
    return AttentionCondition(kind, dims, measured.n_values, rates[0], low, high, change[0], change_low, change_high)


def _example_layer(stack: BoundStack, options: AttentionOptions, n_texts: int) -> int | None:
    """The layer whose maps are kept, None for no maps; checked before any work."""
    if options.example == NO_EXAMPLE:
        return None
    if options.example is not None and not 0 <= options.example < n_texts:
        raise BadInput(f"example {options.example} does not exist; the texts are 0 to {n_texts - 1}")
    layer = max(0, stack.n_layers - 2) if options.example_layer is None else options.example_layer
    if not 0 <= layer < stack.n_layers:
        raise BadInput(f"layer {layer} does not exist; stream {stack.name} has layers 0 to {stack.n_layers - 1}")
    return layer


def _example(
    reading: Reading, texts: Texts, dims: tuple[int, ...], layer: int, options: AttentionOptions
) -> ExampleMaps:
    number = options.example
    if number is None:
        enough = np.flatnonzero(reading.lengths >= options.example_tokens)
        number = int(enough[0]) if len(enough) else int(reading.lengths.argmax())
    text = texts.texts[number]
    tokens = tokenise(reading.loaded, [text], max_length=min(options.example_tokens, options.max_length))
    one = replace(reading, tokens=tokens, lengths=tokens.lengths, paper_compat=False)
    if not tokens.lengths[0]:
        raise BadInput(f"text {number} has no token; choose another example")
    intact, ids = example_maps(one, None, layer)
    off, _ = example_maps(one, _everywhere(reading.stack, dims), layer)
    tokenizer: Any = reading.loaded.tokenizer
    shown = tuple(str(token) for token in tokenizer.convert_ids_to_tokens(list(ids)))
    return ExampleMaps(text, number, str(layer), shown, intact, off)


def _notes(
    loaded: LoadedModel, stack: BoundStack, intact: PassSums, shown: AttentionCondition, options: AttentionOptions
) -> tuple[str, ...]:
    found = []
    if stack.name == "decoder":
        found.append("self-attention of the decoder; its attention to the encoder is not read")
    if not intact.n_keys["special"]:
        found.append("the tokenizer adds no special tokens: keys with and without them are the same")
    if abs(float(shown.of("mass").min()) - 1) > 1e-3:
        found.append(
            f"a query's weights sum to {float(shown.of('mass').min()):.3f} to {float(shown.of('mass').max()):.3f}, mean over "
            "heads, not to 1: shares are of weights as they are, entropies of weights brought to sum 1"
        )
    if loaded.config.get("attention_kind") == "gated":
        found.append("attention is gated: weights are before the gate, which scales what a head reads of them")
    if options.paper_compat:
        found.append(
            "correlations as in the released code: padding counts among queries, controls are 10 random dimensions"
        )
    return tuple(found)
