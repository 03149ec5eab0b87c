"""The run: one pass over texts, then correlations of every dimension of every layer with token frequency.

loaded = load_model("minilm-l6")
counts = read_counts("counts.parquet", loaded.tokenizer)
found = frequency(loaded, read_texts("test.parquet"), counts)
found.contrast("log").difference                # outliers against all other dimensions, |r| over all blocks
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts, compat_counts, read_counts
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.detection.targets import check_dims
from outlierlens.errors import BadInput
from outlierlens.experiments.frequency.options import FEWEST, FEWEST_DRAWS, FrequencyCall, FrequencyOptions
from outlierlens.experiments.frequency.outcome import Asked, outcome
from outlierlens.experiments.frequency.result import Frequency
from outlierlens.experiments.frequency.sums import FrequencySums, Regressors, TokenSample, TypeTable
from outlierlens.models.hooks import layer_name
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND
from outlierlens.session import Session
from outlierlens.vectors.read import ReadOptions, TokenBatch, Tokens, text_stack, token_batches, tokenise, wanted_layers

TEXTS_AT_ONCE = 2048  # that are tokenised together: what is held of the texts does not grow with their number
COMPAT_CHARACTERS, COMPAT_DIMS = 70, 10  # of the released code of Puccetti et al. (2022)


@dataclass(frozen=True)
class Vocabulary:
    """What is known of every id: `count` float64 [id], `special` bool [id], `shared` bool [id] (not told apart)."""

    count: np.ndarray
    special: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, loaded: LoadedModel, counts: TokenCounts, *, paper_compat: bool) -> "Vocabulary":
        """Of a model's ids; raises BadInput where the counts are of fewer ids than the tokenizer has."""
        tokenizer: Any = loaded.tokenizer
        known = len(counts.counts)
        if known < len(tokenizer):
            raise BadInput(
                f"{counts.source} counts {known:,} ids, and the tokenizer of {loaded.name} has {len(tokenizer):,}; count with "
                f"this model's tokenizer (outlierlens count)"
            )
        size = max(known, int(getattr(loaded.config, "vocab_size", 0) or 0))
        count, special, shared = np.zeros(size), np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        count[:known] = counts.frequency(special=True)
        # A [SEP] that stands in a text has the frequency of those that the tokenizer adds, so it goes with them.
        special[: len(counts.special)] = counts.special > 0
        if paper_compat:
            special[:] = False
            special[list(tokenizer.all_special_ids)] = True
        shared[list(counts.ambiguous)] = True
        return cls(count, special, shared)


@dataclass
class Pass:
    """What one pass over the texts gathers; memory is that of its parts, however many texts there are.

    Attributes:
        vocabulary: of the model. sums, sample, types: the accumulators.
        n: tokens, unknown ones and shared ones, of ordinary and of special tokens [2, 3].
        occurred: bool [2, id], ids that occurred as ordinary or special tokens.
        texts: texts with a token in either view [2].
    """

    vocabulary: Vocabulary
    sums: FrequencySums
    sample: TokenSample
    types: TypeTable
    n: np.ndarray
    occurred: np.ndarray
    texts: np.ndarray


def frequency(
    loaded: LoadedModel,
    texts: Texts,
    counts: TokenCounts,
    options: FrequencyOptions | None = None,
    *,
    command: str = "",
) -> Frequency:
    """Correlation of |h_d| with token frequency for every dimension of every layer, outliers held against all others.

    Puccetti et al. (2022), section 4, over token occurrences: with raw counts as they have it, with log counts, given the
    position, by ranks, and over types. Intervals draw texts again, not tokens.

    Raises:
        BadInput: counts of another vocabulary, too few texts, a dimension or layer that does not exist, a state that is not
            finite, or accumulators beyond the budget.
    """
    options = options or FrequencyOptions()
    stack = text_stack(loaded, options.read.stack)
    layers = tuple(layer_name(layer) for layer in wanted_layers(stack, options.read.layers))
    width = stream_width(loaded.model, stack)
    check_dims(() if options.dims == FIND else options.dims, stack, width)
    chosen = texts
    if options.paper_compat:
        chosen = Texts(texts.source, tuple(t for t in texts.texts if len(t) > COMPAT_CHARACTERS), texts.column)
    vocabulary = Vocabulary.of(loaded, counts, paper_compat=options.paper_compat)
    options, notes = _within_budget(options, len(layers), width)
    device = "cpu" if loaded.device.type == "mps" else loaded.device  # MPS has no float64
    gathered = Pass(
        vocabulary,
        FrequencySums(len(layers), width, options.n_bootstrap, device),
        TokenSample(options.n_sample, len(layers), width),
        TypeTable(options.n_types, len(vocabulary.count), (len(layers), width), seed=options.seed, device=device),
        np.zeros((2, 3), dtype=np.int64),
        np.zeros((2, len(vocabulary.count)), dtype=bool),
        np.zeros(2, dtype=np.int64),
    )
    if options.paper_compat:
        notes += (
            f"{len(chosen):,} of {len(texts):,} texts have more than {COMPAT_CHARACTERS} characters, and were read",
        )
    max_length = _read(loaded, chosen, options, gathered)
    if gathered.texts[1] < 2:
        raise BadInput(
            f"{int(gathered.texts[1])} of the texts of {texts.source} hold a token, and an interval over texts needs at least "
            f"2; give more text"
        )
    dims = scan_stream(loaded, stack.name).dims if options.dims == FIND else options.dims
    asked = Asked(
        loaded.provenance(command=command, seed=options.seed),
        chosen,
        counts,
        dims=tuple(dict.fromkeys(dims)),
        dims_source="the weights" if options.dims == FIND else "--dims",
        stack=stack.name,
        final_norm=bool(options.read.final_norm and stack.final_norm),
        max_length=max_length,
        layers=layers,
        n_random=COMPAT_DIMS if options.paper_compat else 0,
        seed=options.seed,
        notes=(*loaded.notes, *notes),
    )
    return outcome(gathered, asked)


def run(session: Session, options: FrequencyCall) -> Frequency:
    """The experiment, as the command runs it."""
    counts_of = compat_counts if options.measured.paper_compat else read_counts
    counts = counts_of(options.counts, session.loaded.tokenizer)
    measured = session.vectors.into(options.measured, session.loaded, progress=session.progress)
    session.show = {"view": "all" if session.vectors.special else "without_special"}
    return frequency(session.loaded, session.texts()[0], counts, measured)


def _within_budget(options: FrequencyOptions, n_layers: int, width: int) -> tuple[FrequencyOptions, tuple[str, ...]]:
    """The options with as many draws, sampled tokens and types as fit the budget, and what that comes to."""
    whole = FrequencySums.memory(n_layers, width, options.n_bootstrap)
    whole += TokenSample.memory(options.n_sample, n_layers, width) + TypeTable.memory(options.n_types, n_layers, width)
    budget = options.read.budget.cache_gb * 1e9
    if whole <= budget:
        return options, ()
    share = budget / whole
    n_bootstrap, n_sample, n_types = (int(share * n) for n in (options.n_bootstrap, options.n_sample, options.n_types))
    if n_bootstrap < FEWEST_DRAWS or min(n_sample, n_types) < FEWEST:
        raise BadInput(
            f"{n_layers:,} layers of {width:,} dimensions need {whole / 1e9:.1f} GB for {options.n_bootstrap:,} draws of "
            f"texts, {options.n_sample:,} tokens and {options.n_types:,} types, and the budget is "
            f"{options.read.budget.cache_gb:g} GB; raise --cache-gb, or name fewer layers (--layers)"
        )
    note = (
        f"within {options.read.budget.cache_gb:g} GB: {n_bootstrap:,} draws of texts instead of {options.n_bootstrap:,}, "
        f"{n_sample:,} sampled tokens instead of {options.n_sample:,}, {n_types:,} types instead of {options.n_types:,}"
    )
    return replace(options, n_bootstrap=n_bootstrap, n_sample=n_sample, n_types=n_types), (note,)


def _read(loaded: LoadedModel, texts: Texts, options: FrequencyOptions, gathered: Pass) -> int:
    """Fill `gathered`, some texts at a time; at how many tokens texts were cut."""
    length = options.max_length
    for number, start in enumerate(range(0, len(texts), TEXTS_AT_ONCE)):
        part = texts.texts[start : start + TEXTS_AT_ONCE]
        tokens = tokenise(loaded, part, max_length=options.max_length)
        length = tokens.max_length
        read = replace(options.read, progress=_from(options.read.progress, start, len(texts)))
        for batch, weights, keys in _drawn(loaded, tokens, read, (options, number)):
            _take(gathered, batch, weights, keys)
    return length


def _drawn(
    loaded: LoadedModel, tokens: Tokens, read: ReadOptions, drawing: tuple[FrequencyOptions, int]
) -> Iterator[tuple[TokenBatch, np.ndarray, np.ndarray]]:
    """(batch, how often each draw has each text [draw, batch], random key of each token [batch, token])."""
    options, number = drawing
    often = np.random.default_rng([options.seed, 41, number]).poisson(1.0, (len(tokens.texts), options.n_bootstrap))
    lengths = tokens.lengths
    first = np.cumsum(lengths) - lengths
    keys = np.random.default_rng([options.seed, 43, number]).random(int(lengths.sum()) + 1)
    for batch in token_batches(loaded, tokens, read):
        rows = list(batch.texts)
        weights = np.ones((1 + options.n_bootstrap, len(rows)))
        weights[1:] = often[rows].T
        place = _positions(batch)
        yield batch, weights, keys[np.clip(first[rows][:, None] + place, 0, len(keys) - 1)]


def _positions(batch: TokenBatch) -> np.ndarray:
    """Place of each token in its text, from 0 [batch, token]; padding on either side is not counted."""
    found: np.ndarray = np.maximum(batch.valid.cpu().numpy().cumsum(1) - 1, 0)
    return found


def _take(gathered: Pass, batch: TokenBatch, weights: np.ndarray, keys: np.ndarray) -> None:
    """One batch into all accumulators."""
    import torch

    known, device = gathered.vocabulary, gathered.sums.device
    ids = batch.ids.cpu().numpy()
    valid, ordinary = batch.valid.cpu().numpy(), batch.ordinary.cpu().numpy()
    ordinary &= ~known.special[ids]
    groups = np.stack([ordinary, valid & ~ordinary])
    count = known.count[ids]
    for place, group in enumerate(groups):
        flags = (np.ones_like(valid), count == 0, known.shared[ids])
        gathered.n[place] += [int((group & flag).sum()) for flag in flags]
        gathered.occurred[place, ids[group]] = True
    gathered.texts += [int(ordinary.any(1).sum()), int(valid.any(1).sum())]
    tensors = (torch.from_numpy(one).to(device) for one in (count, _positions(batch).astype(float), *groups))
    gathered.sums.start(Regressors.of(*tensors), weights)
    flat = ids.shape[1]
    slots = torch.from_numpy(gathered.types.offer(ids, ordinary)).to(device)
    among = np.flatnonzero(valid)
    kept = gathered.sample.offer(keys.ravel()[among], count.ravel()[among], ordinary.ravel()[among])
    rows, columns = (torch.from_numpy(one).to(batch.valid.device) for one in np.divmod(among[kept.index], flat))
    for layer, states in enumerate(batch.states):

        def see(size: "torch.Tensor", first: int, layer: int = layer) -> None:
            part = slots[first : first + len(size)]
            gathered.types.add(layer, part.flatten(), size.flatten(0, 1))

        gathered.sums.add(layer, states, see)
        if len(kept.slot):
            gathered.sample.keep(layer, kept.slot, states[rows, columns].abs().float().cpu().numpy())


def _from(
    tell: Callable[[str, int, int], None] | None, start: int, total: int
) -> Callable[[str, int, int], None] | None:
    """`tell`, of a part of the texts that begins at `start`."""
    return None if tell is None else lambda label, done, _: tell(label, start + done, total)
