"""The passes of `geometry`: what is drawn, read and measured of each layer, and kept as it comes.

work = Space(loaded, texts, fit, options)                     # or Bands(loaded, texts, counts, options, dims)
with kept_rows(rows, work.identity) as kept:
    found = work.measured(kept)                               # {(layer, fix): figures}; of bands {state: {layer: replicates}}

Texts are tokenised, drawn and read when something is missing; of layers those alone where something is.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.modes import Switch
from outlierlens.analyses.frequency_sums import Vocabulary
from outlierlens.analyses.geometry_figures import RANDOM, BandMeasure, LayerMeasure, bands_of
from outlierlens.data.labelled.labels import apart, once
from outlierlens.data.texts import Data, Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.errors import BadInput
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.inputs import reader_digest, token_limit
from outlierlens.models.load import LoadedModel, fingerprint, stream_width
from outlierlens.results.finding import About
from outlierlens.results.row_store import UnitCache
from outlierlens.vectors.clip import Clipping, kept_clipping
from outlierlens.vectors.fixes import ENOUGH, USUAL, Fix, FixSpec, VectorMoments, make_fix, parse_fixes
from outlierlens.vectors.read import (
    ReadOptions,
    Spans,
    Tokens,
    check_matrices,
    gather_drawn,
    stack_of,
    token_batches,
    tokenise,
    wanted_layers,
)
from outlierlens.vectors.spans import Drawing, SpanSample, draw, kept_tokens

if TYPE_CHECKING:
    from outlierlens.analyses.geometry import GeometryOptions

RAW = FixSpec("raw")
BLOCKS = "blocks"  # the layer of what is a mean over all blocks that were read
FIT_TOKENS = 2 * ENOUGH  # token vectors a dimension that fixes are fitted on: twice what whitening needs
LEAST = 4  # tokens of a band
EXAMPLES = 8  # tokens that are shown of a band
Replicates = dict[str, np.ndarray]


class LayerPass(ABC):
    """One stream of a model, and texts of which vectors are measured."""

    def __init__(self, loaded: LoadedModel, texts: Data, options: "GeometryOptions"):
        self.loaded, self.options, self.digest = loaded, options, texts.digest
        self.texts: Data = texts.some(list(once(texts.keys).values()))
        self.stack = stack_of(loaded, texts, options.read.stack)
        self.width = stream_width(loaded.model, self.stack)
        self.places = {layer_name(layer): layer for layer in wanted_layers(self.stack, options.read.layers)}
        self.blocks = [name for name, layer in self.places.items() if layer != EMBEDDINGS]
        self.final_norm = bool(options.read.final_norm and self.stack.final_norm)
        self.identity: dict[str, Any] = {
            "model": fingerprint(loaded.model), "reader": reader_digest(loaded),
            "data": self.texts.digest, "drawing": asdict(options.drawing),
            "n_bootstrap": options.n_bootstrap, "seed": options.seed, "max_length": options.max_length,
            "stack": self.stack.name, "final_norm": self.final_norm,
        }  # fmt: skip

    @cached_property
    def tokens(self) -> Tokens:
        """Of the texts, each once."""
        return tokenise(self.loaded, self.texts, max_length=self.options.max_length, stack=self.stack.name)

    @property
    @abstractmethod
    def reading(self) -> tuple[Spans, LayerMeasure | BandMeasure]:
        """Which vectors are read, and what measures them."""

    def found(self, **more: Any) -> dict[str, Any]:
        """What every finding says of what was measured; `more` is of `About`."""
        loaded, options = self.loaded, self.options
        about = About(
            data=self.texts.source, data_digest=self.digest, stack=self.stack.name, n_texts=len(self.texts), **more,
            layers=tuple(self.places[layer] for layer in self.blocks),
            max_length=token_limit(loaded, options.max_length) if isinstance(self.texts, Texts) else 0,
        )  # fmt: skip
        provenance = loaded.provenance(seed=options.seed, digest=self.identity["model"])
        special = options.drawing.special
        return {"provenance": provenance, "about": about, "final_norm": self.final_norm, "special": special}

    def read(self, fixes: Mapping[tuple[str, str], Callable[[], Fix]], kept: UnitCache, label: str = "reading") -> None:
        """Measure what is missing of {(layer, name): what makes a fix} in one pass, and keep it by layer and name."""
        missing = {key: make for key, make in fixes.items() if " ".join(key) not in kept.done}
        layers, tell = {layer for layer, _ in missing}, self.options.read.progress
        if not missing:
            return
        wanted = tuple(layer for name, layer in self.places.items() if name in layers)
        read = replace(self.options.read.told(label), layers=wanted)
        spans, measure = self.reading
        vectors = gather_drawn(self.loaded, self.tokens, spans, read, special=self.options.drawing.special)
        for place, layer in enumerate(vectors.layers):
            mine = {name: make() for (at, name), make in missing.items() if at == layer}
            for name, figures in measure.figures(vectors.values[place], mine):
                kept(f"{layer} {name}", partial(dict, figures))
            if tell:
                tell("measuring layers", place + 1, len(vectors.layers))


class Space(LayerPass):
    """Random tokens, words and whole sentences of texts, after every fix; and the text that fixes are fitted on."""

    def __init__(self, loaded: LoadedModel, texts: Data, fit: Data | None, options: "GeometryOptions"):
        super().__init__(loaded, texts, options)
        self.fit: Data = self.texts if fit is None else fit
        if isinstance(self.fit, Texts) != isinstance(texts, Texts):
            raise BadInput(
                f"--fit-data: {self.fit.source} holds {self.fit.plural}, and {texts.plural} are measured; give such"
            )
        self.moves = any(spec.fitted for spec in options.fixes)
        self.clips = any(spec.kind == "clip" for spec in options.fixes)
        self.fits = self.moves or (self.clips and options.clip == "auto")
        self.identity |= {"fit": self.fit.digest, "fit_limit": options.fit_limit}
        self.unfitted = ""
        self.drawn: dict[str, Any] = {}
        self.fitted: dict[str, Any] = {}
        self.clipping = Clipping("none", {}, "no fix clips")

    @cached_property
    def sample(self) -> SpanSample:
        """Settings of the measurement."""
        return draw(self.tokens, self.options.drawing, self.options.seed)

    @property
    def reading(self) -> tuple[Spans, LayerMeasure]:
        """The sample, and its measure."""
        return self.sample.spans, LayerMeasure(
            self.sample, n_bootstrap=self.options.n_bootstrap, seed=self.options.seed
        )

    @cached_property
    def left(self) -> tuple[Data, int]:
        """The texts to fit on, and how many are left out because they are measured."""
        measured = [self.texts.keys[i] for i in self.sample.texts.tolist()]
        return apart(self.fit, measured, limit=self.options.fit_limit, seed=self.options.seed)

    def _unfitted(self) -> dict[str, str]:
        """Why nothing can be fitted; "" where it can."""
        try:
            _ = self.left
        except BadInput as error:
            return {"reason": str(error)}
        return {"reason": ""}

    @cached_property
    def to_fit(self) -> Tokens:
        """Of them, as many as fixes need."""
        options, left = self.options, self.left[0]
        order = np.random.default_rng([options.seed, 31]).permutation(len(left)).tolist()
        shuffled = tokenise(self.loaded, left.some(order), max_length=options.max_length, stack=self.stack.name)
        counts = np.cumsum([len(kept_tokens(shuffled, i, options.drawing)) for i in range(len(order))])
        return shuffled.some(range(min(int(np.searchsorted(counts, FIT_TOKENS * self.width)) + 1, len(order))))

    @cached_property
    def moments(self) -> dict[str, VectorMoments]:
        """Of them, by layer."""
        read = self.options.read.told("reading the fit text")
        check_matrices(len(self.places), self.width, read.cache_gb, what="covariances of all layers")
        return token_moments(self.loaded, self.to_fit, self.options.drawing, read)

    def measured(self, kept: UnitCache) -> dict[tuple[str, FixSpec], dict[str, Any]]:
        """Figures of each layer after each fix, those that are missing measured now."""
        self.drawn, fixes = kept("drawn", self._drawn), self.options.fixes
        if (
            fixes == parse_fixes(USUAL) and self.options.clip == "auto" and self.fit.digest == self.digest
        ):  # none is asked for
            self.unfitted = kept("unfitted", self._unfitted)["reason"]
        if self.unfitted:
            fixes, self.moves, self.clips, self.fits = (RAW,), False, False, False
        if self.fits:
            self.fitted = kept("fitted" if self.moves else "observed", self._fitted)
        if self.clips:
            asked, stack = self.options.clip, self.stack.name
            self.clipping = kept_clipping(kept, asked, self.loaded, lambda: self.left[0], stack=stack)
        names = {
            (layer, spec): f"{spec.name} {self.clipping.at(layer)}" if spec.kind == "clip" else spec.name
            for layer in self.places
            for spec in fixes
        }
        self.read({(layer, name): partial(self._fix, layer, spec) for (layer, spec), name in names.items()}, kept)
        return {(layer, spec): kept.done[f"{layer} {name}"] for (layer, spec), name in names.items()}

    def _fix(self, layer: str, spec: FixSpec) -> Fix:
        moments = self.moments[layer] if spec.fitted else None
        return make_fix(spec, self.width, moments=moments, dims=self.clipping.at(layer))

    def _drawn(self) -> dict[str, Any]:
        one = self.sample
        return {
            "n_read": len(one.texts), "n_pairs": one.n_pairs, "words": list(one.words), "n_contexts": len(one.word),
            "n_tokens": one.whole.stop - one.whole.start, "n_sentences": len(one.starts), "notes": list(self.tokens.notes),
        }  # fmt: skip

    def _fitted(self) -> dict[str, int]:
        return {"n_fit_texts": len(self.to_fit.texts if self.moves else self.left[0]), "n_shared": self.left[1]}


def token_moments(
    loaded: LoadedModel, tokens: Tokens, drawing: Drawing, read: ReadOptions | None = None
) -> dict[str, VectorMoments]:
    """Moments of the token vectors of every layer, from one pass; the same tokens count as are drawn when measuring.

    Raises:
        BadInput: a state that is not finite.
    """
    found: dict[str, VectorMoments] = {}
    kept = [kept_tokens(tokens, text, drawing) for text in range(len(tokens.texts))]
    for batch in token_batches(loaded, tokens, read):
        rows = np.repeat(np.arange(len(batch.texts)), [len(kept[text]) for text in batch.texts])
        places = np.concatenate([kept[text] for text in batch.texts]) + batch.shift
        there = places < batch.valid.shape[1]  # the decoder's side of an encoder-decoder ends one token earlier
        for layer, states in zip(batch.layers, batch.states, strict=True):
            chosen = states[rows[there], places[there]].float().cpu().numpy()
            found.setdefault(layer, VectorMoments(chosen.shape[1])).add(chosen)
    return found


class Bands(LayerPass):
    """Tokens of bands of corpus frequency: raw, clipped (random sets of as many dimensions too), and with them off."""

    def __init__(
        self, loaded: LoadedModel, texts: Texts, counts: TokenCounts, options: "GeometryOptions", dims: tuple[int, ...]
    ):
        super().__init__(loaded, texts, options)
        self.counts, self.dims = counts, dims
        self.vocabulary = Vocabulary.of(loaded, counts, paper_compat=False)
        self.sets = random_sets(self.width, len(dims), n=options.n_random, seed=options.seed, other_than=dims)
        counted = hashlib.sha256(self.vocabulary.count.tobytes() + self.vocabulary.special.tobytes()).hexdigest()
        self.identity |= {"counts": counted, "n_bands": options.n_bands, "tokens_per_band": options.tokens_per_band}
        self.drawn: dict[str, Any] = {}
        self.mode = ""
        self.random: list[dict[str, Replicates]] = []

    @cached_property
    def sample(self) -> "BandedTokens":
        """Settings of the measurement."""
        return draw_bands(self.tokens, self.counts, self.vocabulary, self.options)

    @property
    def reading(self) -> tuple[Spans, BandMeasure]:
        """The sample, and its measure."""
        one, options = self.sample, self.options
        measure = BandMeasure(one.text, one.band, one.id, one.count, n_bootstrap=options.n_bootstrap, seed=options.seed)
        return self.tokens.single(one.text, one.place), measure

    def measured(self, kept: UnitCache) -> dict[str, dict[str, Replicates]]:
        """{"raw", "clip", "off": {layer: replicates}}, what is missing measured now; likewise `random` by set."""
        options = self.options
        self.drawn = kept("drawn", lambda: self.sample.said)
        states = {"raw": "raw", "clip": f"clip {self.dims}"}
        self.read(
            self._clips({f"{RANDOM} {dims}": dims for dims in self.sets} | {states["clip"]: self.dims, "raw": ()}), kept
        )
        if options.mode != "none":
            switch = Switch(self.loaded, self.stack, options.mode, options.embeddings)
            self.mode = switch.name
            states["off"] = f"off {self.dims} by {self.mode}"
            if any(f"{layer} {states['off']}" not in kept.done for layer in self.places):
                size = options.read.batch_size
                switch = switch.with_means(self.texts, length=self.tokens.max_length, batch_size=size)
                with switch.off(dict.fromkeys(range(self.stack.n_layers), self.dims)):
                    self.read(self._clips({states["off"]: ()}), kept, "reading, dimensions ablated")
        self.random = [self._replicates(kept, f"{RANDOM} {dims}") for dims in self.sets]
        return {state: self._replicates(kept, name) for state, name in states.items()}

    def _clips(self, dims: dict[str, tuple[int, ...]]) -> dict[tuple[str, str], Callable[[], Fix]]:
        """Dimensions that are zero in the vectors (Luo et al. 2021), of every layer."""
        clip = partial(make_fix, FixSpec("clip"), self.width)
        return {(layer, name): partial(clip, dims=one) for layer in self.places for name, one in dims.items()}

    def _replicates(self, kept: UnitCache, state: str) -> dict[str, Replicates]:
        """By layer; of "blocks" the means over blocks: texts are drawn together, so the intervals are those of the means."""
        every = {layer: kept.done[f"{layer} {state}"] for layer in self.places}
        found = {layer: {name: np.array(values) for name, values in one.items()} for layer, one in every.items()}
        if self.blocks:
            names = found[self.blocks[0]]
            found[BLOCKS] = {name: np.mean([found[layer][name] for layer in self.blocks], axis=0) for name in names}
        return found


@dataclass(frozen=True)
class BandedTokens:
    """Text, place in it, id, band and count of each token that is measured [token], band after band; notes about them."""

    text: np.ndarray
    place: np.ndarray
    id: np.ndarray
    band: np.ndarray
    count: np.ndarray
    said: dict[str, Any]


def draw_bands(tokens: Tokens, counts: TokenCounts, vocabulary: Vocabulary, options: "GeometryOptions") -> BandedTokens:
    """Tokens of `tokens`, whose texts are all different, drawn by the seed: at most one per text and band.

    Raises:
        BadInput: all tokens have the same count, or a band has fewer than four texts.
    """
    places = [kept_tokens(tokens, text, options.drawing) for text in range(len(tokens.texts))]
    text = np.repeat(np.arange(len(places)), [len(one) for one in places])
    place = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
    every = tokens.encoded["input_ids"]
    ids = np.array([every[i][j] for i, j in zip(text.tolist(), place.tolist(), strict=True)], dtype=np.int64)
    if not options.drawing.special:
        ordinary = ~vocabulary.special[ids]  # a [SEP] that stands in a text is one of those that the tokenizer adds
        text, place, ids = text[ordinary], place[ordinary], ids[ordinary]
    count = vocabulary.count[ids]
    if len(np.unique(count)) < 2:
        raise BadInput(
            f"all {len(ids):,} tokens of these texts have the same count in {counts.source}, so none is frequent or rare; give "
            f"more text, or other counts"
        )
    band = bands_of(count, options.n_bands)
    random = np.random.default_rng([options.seed, 47])
    key = random.random(len(ids))
    chosen, bands, tokens_of = [], [], dict(enumerate(counts.tokens))
    for number in range(int(band.max()) + 1):
        mine = np.flatnonzero(band == number)
        mine = mine[np.lexsort((key[mine], text[mine]))]
        _, first = np.unique(text[mine], return_index=True)  # of each text, the token with the smallest key
        low, high = float(count[mine].min()), float(count[mine].max())
        if len(first) < LEAST:
            raise BadInput(
                f"only {len(first)} texts hold a token that occurs {low:,.0f} to {high:,.0f} times in {counts.source}; at "
                f"least {LEAST} are needed: give more text, or fewer bands"
            )
        picked = np.sort(mine[random.permutation(first)[: options.tokens_per_band]])
        chosen.append(picked)
        types, often = np.unique(ids[mine], return_counts=True)
        commonest = types[np.argsort(-often, kind="stable")[:EXAMPLES]].tolist()
        bands.append({
            "count": f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}", "low": low, "high": high,
            "n_types": len(types), "share": len(mine) / len(ids), "n_tokens": len(picked),
            "n_drawn_types": len(np.unique(ids[picked])), "examples": [tokens_of.get(one, f"id {one}") for one in commonest],
        })  # fmt: skip
    at, unknown = np.concatenate(chosen), count == 0
    numbers = {
        "unknown": float(unknown.mean()), "unknown_types": len(np.unique(ids[unknown])), "n_types": len(np.unique(ids)),
        "n_read": len(np.unique(text[at])),
    }  # fmt: skip
    return BandedTokens(text[at], place[at], ids[at], band[at], count[at], {"bands": bands, "numbers": numbers})
