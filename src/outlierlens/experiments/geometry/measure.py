"""The run: one pass over the measured sentences, one over a text to fit on, then every layer with every fix.

    loaded = load_model("minilm-l6")
    found = geometry(loaded, read_texts("train.parquet", limit=3000), GeometryOptions(fixes=parse_fixes("raw,clip,whiten")))
    found.row("5", "whiten").anisotropy.change

The text to fit on is another one, or those of the same data that no measure reads; a sentence that is measured is never in it.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from outlierlens.data.labelled.labels import apart, once
from outlierlens.data.texts import Texts, read_texts
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.errors import BadInput
from outlierlens.experiments.geometry.layers import FixedLayer, LayerMeasure
from outlierlens.experiments.geometry.options import GeometryOptions
from outlierlens.experiments.geometry.result import Geometry, LayerGeometry
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.session import Session
from outlierlens.vectors.clip import Clipping, resolve_clipping
from outlierlens.vectors.fixes import ENOUGH, Moments, make_fix
from outlierlens.vectors.read import (
    ReadOptions,
    Tokens,
    check_matrices,
    gather_drawn,
    text_stack,
    token_batches,
    tokenise,
    wanted_layers,
)
from outlierlens.vectors.spans import Drawing, Sample, draw, kept_tokens

FIT_TOKENS = 2 * ENOUGH  # token vectors a dimension that fixes are fitted on: twice what whitening needs


@dataclass(frozen=True)
class _Fitted:
    """What fixes rest on."""

    texts: Texts | None = None
    n_shared: int = 0
    moments: dict[str, Moments] = field(default_factory=dict)
    clipping: Clipping = field(default_factory=lambda: Clipping("none", {}, "no fix clips"))
    n_texts: int = 0

    @property
    def n_vectors(self) -> int:
        return next((one.n for one in self.moments.values()), 0)


def geometry(
    loaded: LoadedModel,
    texts: Texts,
    options: GeometryOptions | None = None,
    *,
    fit: Texts | None = None,
    command: str = "",
) -> Geometry:
    """Anisotropy, self-similarity, intra-sentence similarity, IsoScore, effective rank and cosine shares of every layer.

    `fit` is the text that fixes are fitted on, measured sentences left out; without it, the sentences of `texts` that no
    measure reads.

    Raises:
        BadInput: too few sentences, too little left to fit on, an unknown layer or dimension, or a state that is not finite.
    """
    options = options or GeometryOptions()
    distinct = Texts(texts.source, tuple(once(texts.texts).values()), texts.column)
    tokens = tokenise(loaded, distinct, max_length=options.max_length)
    sample = draw(tokens, options.drawing, options.seed)
    measured = [distinct.texts[i] for i in sample.texts.tolist()]
    fitted = _fit(loaded, distinct if fit is None else fit, measured, options)
    vectors = gather_drawn(loaded, tokens, sample.spans, options.read, special=options.drawing.special)
    width = vectors.values.shape[2]
    bad = [dim for dim in options.dims if not 0 <= dim < width]
    if bad:
        raise BadInput(f"dimension {bad[0]} does not exist; the vectors have dimensions 0 to {width - 1}")
    scanned = scan_stream(loaded, vectors.stack)
    named = dict.fromkeys((*options.dims, *scanned.dims, *fitted.clipping.every))
    measure = LayerMeasure(sample, named=tuple(named), n_bootstrap=options.n_bootstrap, seed=options.seed)
    rows: list[LayerGeometry] = []
    for place, layer in enumerate(vectors.layers):
        rows += measure.rows(layer, vectors.values[place], _fixes(layer, width, fitted, options))
        if options.read.progress:
            options.read.progress("measuring layers", place + 1, len(vectors.layers))
    return Geometry(
        provenance=loaded.provenance(command=command, seed=options.seed),
        data=texts.source,
        data_digest=texts.digest,
        stack=vectors.stack,
        final_norm=vectors.final_norm,
        special=options.drawing.special,
        skip_first=options.drawing.skip_first,
        max_length=tokens.max_length,
        hidden_size=width,
        n_texts=len(distinct),
        n_read=len(sample.texts),
        n_pairs=sample.n_pairs,
        words=sample.words,
        n_eligible=sample.n_eligible,
        n_contexts=len(sample.word),
        min_sentences=options.drawing.min_sentences,
        max_contexts=options.drawing.max_contexts,
        n_tokens=sample.whole.stop - sample.whole.start,
        n_token_sentences=len(sample.starts),
        n_bootstrap=options.n_bootstrap,
        fit_data=fitted.texts.source if fitted.texts else "",
        fit_digest=fitted.texts.digest if fitted.texts else "",
        n_fit_texts=fitted.n_texts,
        n_fit_vectors=fitted.n_vectors,
        n_shared=fitted.n_shared,
        clipping=fitted.clipping.name,
        clipping_source=fitted.clipping.source,
        clipped=fitted.clipping.dims,
        weights_name=scanned.dims,
        rows=tuple(rows),
        notes=(*loaded.notes, *_notes(sample, fitted, options, width)),
    )


def token_moments(
    loaded: LoadedModel, tokens: Tokens, drawing: Drawing, read: ReadOptions | None = None
) -> dict[str, Moments]:
    """Moments of the token vectors of every layer, from one pass; the same tokens count as are drawn when measuring.

    Raises:
        BadInput: a state that is not finite.
    """
    found: dict[str, Moments] = {}
    kept = [kept_tokens(tokens, text, drawing) for text in range(len(tokens.texts))]
    for batch in token_batches(loaded, tokens, read):
        rows = np.repeat(np.arange(len(batch.texts)), [len(kept[text]) for text in batch.texts])
        places = np.concatenate([kept[text] for text in batch.texts]) + batch.shift
        there = places < batch.valid.shape[1]  # the decoder's side of an encoder-decoder ends one token earlier
        for layer, states in zip(batch.layers, batch.states, strict=True):
            chosen = states[rows[there], places[there]].float().cpu().numpy()
            found.setdefault(layer, Moments(chosen.shape[1])).add(chosen)
    return found


def _fit(loaded: LoadedModel, given: Texts, measured: list[str], options: GeometryOptions) -> _Fitted:
    """Moments and clipping, on texts of `given` that are not measured."""
    needs = any(spec.fitted for spec in options.fixes)
    clips = any(spec.kind == "clip" for spec in options.fixes)
    if not needs and not (clips and options.clip == "auto"):
        asked = resolve_clipping(options.clip, loaded, stack=options.read.stack) if clips else _Fitted().clipping
        return _Fitted(clipping=asked)
    left, dropped = apart(given, measured, limit=options.fit_limit, seed=options.seed)
    clipping = _Fitted().clipping
    if clips:
        clipping = resolve_clipping(options.clip, loaded, fit_texts=left, stack=options.read.stack)
    if not needs:
        return _Fitted(left, dropped, {}, clipping, len(left))
    order = np.random.default_rng([options.seed, 31]).permutation(len(left)).tolist()
    shuffled = tokenise(loaded, [left.texts[i] for i in order], max_length=options.max_length)
    counts = np.cumsum([len(kept_tokens(shuffled, i, options.drawing)) for i in range(len(order))])
    stack = text_stack(loaded, options.read.stack)
    width = stream_width(loaded.model, stack)
    n_layers = len(wanted_layers(stack, options.read.layers))
    check_matrices(n_layers, width, options.read.budget, what="covariances of all layers")
    enough = int(np.searchsorted(counts, FIT_TOKENS * width)) + 1
    used = shuffled.some(range(min(enough, len(order))))
    read = options.read.told("reading the fit text")
    return _Fitted(left, dropped, token_moments(loaded, used, options.drawing, read), clipping, len(used.texts))


def _fixes(layer: str, width: int, fitted: _Fitted, options: GeometryOptions) -> list[FixedLayer]:
    dims = fitted.clipping.at(layer)
    return [
        FixedLayer(
            spec,
            make_fix(spec, width, moments=fitted.moments.get(layer), dims=dims),
            dims if spec.kind == "clip" else (),
        )
        for spec in options.fixes
    ]


def run(session: Session, options: GeometryOptions) -> Geometry:
    """The experiment, as the command runs it; fixes are fitted on the texts that follow where no other text is named."""
    reading, reads, fitting = session.reading, session.vectors, session.fitting
    offline, limit = session.loading.offline, reading.limit
    spare = None if limit is None else limit + 2 * fitting.fit_limit
    texts = read_texts(reading.data, column=reading.text_column, limit=spare, offline=offline)
    fit = fitting.texts(offline=offline) or texts
    how = fitting.into(reads.into(options, session.loaded, progress=session.progress))
    how = replace(how, drawing=replace(how.drawing, special=reads.special))
    return geometry(session.loaded, texts if limit is None else texts.first(limit), how, fit=fit)


def _notes(sample: Sample, fitted: _Fitted, options: GeometryOptions, width: int) -> tuple[str, ...]:
    drawing, notes = options.drawing, []
    if sample.n_pairs < drawing.n_pairs:
        notes.append(
            f"{sample.n_pairs:,} pairs of sentences instead of {drawing.n_pairs:,}: there are no more sentences"
        )
    if drawing.n_words and len(sample.words) < drawing.n_words:
        notes.append(
            f"{len(sample.words):,} words instead of {drawing.n_words:,}: no more occur in at least "
            f"{drawing.min_sentences} sentences"
        )
    n_tokens = sample.whole.stop - sample.whole.start
    if n_tokens < ENOUGH * width:
        notes.append(
            f"the effective rank rests on {n_tokens:,} token vectors, fewer than {ENOUGH} a dimension: it is too small, also "
            f"that of isotropic vectors"
        )
    short = sorted({spec.name for spec in options.fixes if spec.kind == "whiten"})
    if short and fitted.moments and fitted.n_vectors < ENOUGH * width:
        notes.append(
            f"{', '.join(short)}: {fitted.n_vectors:,} token vectors to fit on are fewer than {ENOUGH} a dimension, so the "
            f"covariance is shrunk"
        )
    if any(spec.kind == "clip" for spec in options.fixes):
        notes.append(f"clipping {fitted.clipping.name}: {fitted.clipping.source}")
    return tuple(notes)
