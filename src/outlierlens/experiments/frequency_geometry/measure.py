"""Vectors of frequent and of rare tokens: norms and cosines by band of corpus frequency, and what outliers have to do with it.

    loaded = load_model("minilm-l6")
    counts = read_counts("counts.parquet", loaded.tokenizer)
    found = frequency_geometry(loaded, read_texts("test.parquet", limit=2000), counts)
    found.whole("clip").types_gap.change              # most frequent − rarest band, over all blocks

Tokens of the measured texts are cut into bands by their count and drawn, one a text and band. One pass reads the vectors of all
layers: as they are ("raw") and with the outlier dimensions zero in them ("clip"); a second one with these off in the network.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.controls import Plan, random_sets
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.switches import EditSettings
from outlierlens.data.labelled.labels import once
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts, read_counts
from outlierlens.detection.targets import named_dims
from outlierlens.experiments.frequency.measure import Vocabulary
from outlierlens.experiments.frequency_geometry.options import FrequencyGeometryCall, FrequencyGeometryOptions
from outlierlens.experiments.frequency_geometry.result import (
    BLOCKS,
    BY_BAND,
    OVERALL,
    FrequencyBands,
    LayerBands,
    RandomChange,
)
from outlierlens.experiments.frequency_geometry.token_bands import BandMeasure, Drawn, draw
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.session import Session
from outlierlens.statistics.ranks import rank_p
from outlierlens.vectors.cosines import estimate
from outlierlens.vectors.read import Tokens, Vectors, gather_drawn, text_stack, tokenise

if TYPE_CHECKING:
    pass

Replicates = dict[str, np.ndarray]  # of `BandMeasure.measure`


def frequency_geometry(
    loaded: LoadedModel,
    texts: Texts,
    counts: TokenCounts,
    options: FrequencyGeometryOptions | None = None,
    *,
    command: str = "",
) -> FrequencyBands:
    """Norms and cosines of tokens by band of corpus frequency, at every layer, raw, clipped and with dimensions off.

    Raises:
        BadInput: counts of another vocabulary or alike for all tokens, too few texts, an unknown layer or dimension, or a
            state that is not finite.
    """
    options = options or FrequencyGeometryOptions()
    vocabulary = Vocabulary.of(loaded, counts, paper_compat=False)
    stack = text_stack(loaded, options.read.stack)
    width = stream_width(loaded.model, stack)
    named = named_dims(loaded, stack, options.dims)
    dims = tuple(sorted(named.dims))
    distinct = Texts(texts.source, tuple(once(texts.texts).values()), texts.column)
    tokens = tokenise(loaded, distinct, max_length=options.max_length)
    drawn = draw(tokens, counts, vocabulary, options.banding, options.seed)
    sets = random_sets(width, len(dims), n=options.n_random, seed=options.seed, other_than=dims)
    measure = BandMeasure(drawn, options.n_bootstrap, options.seed)
    vectors = _gathered(loaded, tokens, drawn, options, "reading")
    layers, final_norm = vectors.layers, vectors.final_norm
    found: dict[str, list[Replicates]] = {"raw": [], "clip": []}
    randoms: list[list[Replicates]] = []  # [layer][set]
    for place, values in enumerate(vectors.values):
        found["raw"].append(measure.measure(values))
        found["clip"].append(measure.measure(_without(values, dims)))
        randoms.append([measure.measure(_without(values, one), 1) for one in sets])
        if options.read.progress:
            options.read.progress("measuring layers", place + 1, len(layers))
    del vectors, values  # a second pass needs their room
    mode, n_values = "", 0
    if options.off:
        ablation = Switch(loaded, stack, options.mode, options.embeddings, EditSettings(factor=options.factor))
        ablation = ablation.with_means(distinct, length=tokens.max_length, batch_size=options.read.batch_size)
        plan: Plan = dict.fromkeys(range(stack.n_layers), dims)
        with ablation.off(plan) as n_values:
            again = _gathered(loaded, tokens, drawn, options, "reading, dimensions off")
        found["off"] = [measure.measure(one) for one in again.values]
        mode = ablation.name
    blocks = [place for place, layer in enumerate(layers) if layer != layer_name(EMBEDDINGS)]
    return FrequencyBands(
        provenance=loaded.provenance(command=command, seed=options.seed),
        data=texts.source,
        data_digest=texts.digest,
        counts=counts.source,
        counts_texts=counts.n_texts,
        counts_tokens=counts.n_tokens,
        stack=stack.name,
        final_norm=final_norm,
        special=options.banding.special,
        skip_first=options.banding.skip_first,
        max_length=tokens.max_length,
        hidden_size=width,
        n_texts=len(distinct),
        n_read=len(np.unique(drawn.text)),
        n_tokens=len(drawn.text),
        n_occurrences=drawn.n_occurrences,
        n_types=drawn.n_types,
        unknown=drawn.unknown,
        unknown_types=drawn.unknown_types,
        tokens_per_band=options.banding.tokens_per_band,
        n_bootstrap=options.n_bootstrap,
        dims=dims,
        dims_source=named.by,
        mode=mode,
        n_values=n_values,
        random_sets=sets,
        bands=drawn.bands,
        rows=tuple(
            _row(layer, state, each[place], found["raw"][place], randoms[place])
            for place, layer in enumerate(layers)
            for state, each in found.items()
        ),
        blocks=_blocks(blocks, found, randoms) if blocks else (),
        notes=(*loaded.notes, *named.notes, *_notes(drawn, counts, options)),
    )


def run(session: Session, options: FrequencyGeometryCall) -> FrequencyBands:
    """The experiment, as the command runs it."""
    reads = session.vectors
    texts, _ = session.texts()
    counts = read_counts(options.counts, session.loaded.tokenizer)
    measured = reads.into(options.measured, session.loaded, progress=session.progress)
    measured = replace(measured, banding=replace(measured.banding, special=reads.special))
    return frequency_geometry(session.loaded, texts, counts, measured)


def _gathered(
    loaded: LoadedModel, tokens: Tokens, drawn: Drawn, options: FrequencyGeometryOptions, label: str
) -> Vectors:
    spans = tokens.single(drawn.text, drawn.place)
    return gather_drawn(loaded, tokens, spans, options.read.told(label), special=options.banding.special)


def _without(vectors: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Luo et al.'s (2021) clipping: a copy of `vectors` in which `dims` are 0."""
    clipped = vectors.copy()
    clipped[:, list(dims)] = 0
    return clipped


def _row(
    layer: str,
    state: str,
    values: Replicates,
    raw: Replicates,
    randoms: list[Replicates],
) -> LayerBands:
    by_band: dict[str, Any] = {
        name: tuple(estimate(one, before) for one, before in zip(values[name], raw[name], strict=True))
        for name in BY_BAND
    }
    over: dict[str, Any] = {name: estimate(values[name], raw[name]) for name in OVERALL}
    random = {}
    if state == "clip" and randoms:
        for name in OVERALL:
            changes = np.array([one[name][0] for one in randoms]) - raw[name][0]
            p = rank_p(abs(over[name].change), np.abs(changes))
            if p is not None and np.isfinite(changes).all():
                random[name] = RandomChange(float(np.median(changes)), float(changes.min()), float(changes.max()), p)
    return LayerBands(layer, state, **by_band, **over, random=random)


def _blocks(
    blocks: list[int], found: dict[str, list[Replicates]], randoms: list[list[Replicates]]
) -> tuple[LayerBands, ...]:
    """Means over `blocks`, of all draws: texts are drawn together, so the intervals are those of the means."""

    def mean(layers: list[Replicates]) -> Replicates:
        return {name: np.mean([one[name] for one in layers], axis=0) for name in layers[0]}

    whole = {state: mean([each[place] for place in blocks]) for state, each in found.items()}
    sets = [mean([randoms[place][number] for place in blocks]) for number in range(len(randoms[0]))]
    return tuple(_row(BLOCKS, state, values, whole["raw"], sets) for state, values in whole.items())


def _notes(drawn: Drawn, counts: TokenCounts, options: FrequencyGeometryOptions) -> tuple[str, ...]:
    banding, notes = options.banding, list(counts.notes)
    if len(drawn.bands) < banding.n_bands:
        notes.append(
            f"{len(drawn.bands)} bands instead of {banding.n_bands}: tokens of one count are together, and there are too many "
            f"of some"
        )
    few = [number for number, band in enumerate(drawn.bands) if band.n_tokens < banding.tokens_per_band]
    if few:
        sizes = ", ".join(f"{drawn.bands[number].n_tokens:,}" for number in few)
        notes.append(
            f"band {', '.join(map(str, few))}: {sizes} tokens instead of {banding.tokens_per_band:,}: no more texts hold one"
        )
    if drawn.shared:
        notes.append(
            f"{drawn.shared:.1%} of the tokens have a count that {counts.source} does not tell apart from others'"
        )
    if drawn.uncounted:
        said = ", ".join(drawn.uncounted)
        notes.append(f"{said} have no count in {counts.source}, so they are among the rarest tokens; see --no-special")
    return tuple(notes)
