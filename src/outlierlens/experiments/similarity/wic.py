"""Word-in-Context (Luo et al. 2021, tables 1 and 5): does the cosine of a word's two vectors say that it means the same?

    train, validation = read_wic("wic/", "train"), read_wic("wic/", "validation")
    found = wic(load_model("minilm-l6"), train, validation, WicOptions(), fit=read_texts("sst2/train.parquet"))

Nothing is trained: every layer and threshold is tried. The paper reports the best pair of them on the very split that it
was chosen on (train); beside it stand cross-validation over words, and the validation split.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from outlierlens.data.labelled import LabelledTask
from outlierlens.data.labelled.examples import split_table
from outlierlens.data.labelled.labels import families, plain_text
from outlierlens.data.texts import EXCERPT, REVIEWS, Texts, read_texts
from outlierlens.errors import BadInput
from outlierlens.experiments.similarity.fitting import (
    NOTHING,
    described,
    fit_fixes,
    fit_notes,
    text_and_clipping,
)
from outlierlens.experiments.similarity.options import WicCall, WicOptions
from outlierlens.experiments.similarity.result import WordChoice, WordInContext, WordPairs
from outlierlens.experiments.similarity.scores import GRID, PairIndex, chosen, crossed, folds_of, right_at
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.session import Session
from outlierlens.tasks.metrics import paired_interval
from outlierlens.vectors.fixes import raw_first
from outlierlens.vectors.read import Vectors, gather, text_stack, tokenise, wanted_layers

HUB = "aps/super_glue:wic"
FIT_WORDS = 20_000  # vectors to fit on, or 12 a dimension where that is more
FOLDS = 10
LABELS = {"0": False, "1": True, "false": False, "true": True, "f": False, "t": True}


@dataclass(frozen=True)
class WicPairs:
    """Pairs of sentences with a word that they share.

    Attributes:
        words: the word [pair]. first, second: the sentences. places: (start, end (excluded)) of the word in the first, and in
            the second, in characters. truth: whether it means the same, bool [pair].
    """

    source: str
    split: str
    words: tuple[str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]
    places: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    truth: np.ndarray

    def __len__(self) -> int:
        return len(self.truth)

    def some(self, kept: np.ndarray) -> "WicPairs":
        """The pairs where `kept` [pair] holds."""
        rows = np.flatnonzero(kept).tolist()
        return replace(
            self,
            words=tuple(self.words[i] for i in rows),
            first=tuple(self.first[i] for i in rows),
            second=tuple(self.second[i] for i in rows),
            places=tuple(self.places[i] for i in rows),
            truth=self.truth[rows],
        )


def read_wic(
    data: str | Path | None = None, split: str = "train", *, limit: int | None = None, offline: bool = False
) -> WicPairs:
    """The pairs of a split, in file order or the first `limit`; without `data`, the hub's copy.

    Columns are word, sentence1, sentence2, label, and either index1 and index2 (which word of the sentence, parted by spaces,
    from 0) or start1, end1, start2 and end2 (characters).

    Raises:
        BadInput: a missing file or column, a label that is none, a word that is not in its sentence, or no pair.
        Offline: the hub's copy while offline.
    """
    task = LabelledTask("wic", "sentence1", "sentence2", ("False", "True"), ("accuracy",), HUB)
    table = split_table(task, data, split, offline)
    by_index = "index1" in table.names
    places = ("index1", "index2") if by_index else ("start1", "end1", "start2", "end2")
    columns = ("word", "sentence1", "sentence2", "label", *places)
    found: list[tuple[str, str, str, tuple[tuple[int, int], tuple[int, int]], bool]] = []
    for number, (word, one, two, label, *place) in enumerate(table.rows(columns), 1):
        if limit is not None and number > limit:
            break
        where = f"{table.source}, row {number}"
        if not isinstance(one, str) or not isinstance(two, str):
            raise BadInput(f"{where}: a sentence is missing")
        said = LABELS.get(str(label).strip().lower())
        if said is None:
            raise BadInput(
                f"{where}: label {label!r} is neither true nor false; a test split has none, use the validation split"
            )
        pairs = [(place[0], None), (place[1], None)] if by_index else [(place[0], place[1]), (place[2], place[3])]
        spans = tuple(_place(text, *at, where) for text, at in zip((one, two), pairs, strict=True))
        found.append((str(word), one, two, (spans[0], spans[1]), said))
    if not found:
        raise BadInput(f"{table.source}: the {split} split has no pairs")
    words, first, second, at, truth = zip(*found, strict=True)
    return WicPairs(table.source, split, words, first, second, at, np.array(truth, dtype=bool))


def wic(
    loaded: LoadedModel,
    train: WicPairs,
    validation: WicPairs | None = None,
    options: WicOptions | None = None,
    *,
    fit: Texts | None = None,
    command: str = "",
) -> WordInContext:
    """Accuracy of every layer, fix and threshold on both splits, and what is best on train.

    Raises:
        BadInput: no text left to fit on, or no word that lies within `max_length` tokens.
    """
    options = options or WicOptions()
    specs = raw_first(options.fixes)
    splits = [train] if validation is None else [train, validation]
    sentences = tuple(dict.fromkeys(text for one in splits for side in (one.first, one.second) for text in side))
    text, dropped, clipping = text_and_clipping(loaded, sentences, specs, fit, options)
    fitting = None
    if text is not None and any(spec.fitted for spec in specs):
        fitting = word_vectors(loaded, text.texts, options)
    vectors, rows = _target_vectors(loaded, splits, sentences, options)
    fixes = fit_fixes(
        specs, vectors.layers, fitting, vectors.values.shape[-1], clipping or NOTHING, options.read.budget
    )
    kept = [(vectors.n_tokens[one] > 0).all(1) for one in rows]
    if not kept[0].any():
        raise BadInput(
            f"{train.source}: no pair has both its words within {options.max_length} tokens; raise --max-length"
        )
    used = [one.some(there) for one, there in zip(splits, kept, strict=True)]
    cosines = []
    for one, there in zip(rows, kept, strict=True):
        index = PairIndex.of_rows(one[there, 0], one[there, 1])
        shape = (int(there.sum()), len(vectors.layers), len(specs))
        found = np.empty(shape)
        for layer, of_layer in enumerate(fixes.at):
            for column, fix in enumerate(of_layer):
                found[:, layer, column] = index.cosines(vectors.values[layer], fix)
        cosines.append(found)
    names = tuple(spec.name for spec in specs)
    data = tuple(
        WordPairs(
            split=one.split,
            source=one.source,
            n_pairs=len(one),
            n_families=len(_ByFamily(one).sizes),
            left_out=int((~there).sum()),
            all_true=float(one.truth.mean()) if len(one) else float("nan"),
            accuracy=np.stack(
                [right_at(found[..., column], one.truth, GRID).mean(0) for column in range(len(specs))], axis=1
            ),
        )
        for one, there, found in zip(used, kept, cosines, strict=True)
        if len(one)
    )
    return WordInContext(
        provenance=loaded.provenance(command=command, seed=options.seed),
        stack=vectors.stack,
        max_length=options.max_length,
        final_norm=vectors.final_norm,
        layers=vectors.layers,
        fixes=names,
        thresholds=GRID,
        fitted=described(fixes, text, dropped, clipping),
        data=data,
        choices=tuple(_choices(used, cosines, names, vectors.layers, options)),
        notes=(*loaded.notes, *fit_notes(fixes, specs, clipping, vectors.values.shape[-1])),
    )


def word_vectors(loaded: LoadedModel, texts: Sequence[str], options: WicOptions) -> Vectors:
    """Vectors of words of `texts`, each the mean of its sub-words: as many as a covariance needs and the budget allows."""
    stack = text_stack(loaded, options.read.stack)
    width, n_layers = stream_width(loaded.model, stack), len(wanted_layers(stack, options.read.layers))
    places = [(text, *found.span()) for text, words in enumerate(texts) for found in re.finditer(r"\S+", words)]
    most = min(max(FIT_WORDS, 12 * width), int(options.read.budget.cache_gb * 1e9 / 2 / (4 * width * n_layers)))
    if most < len(places):
        drawn = np.random.default_rng([options.seed, 17]).permutation(len(places))[:most]
        places = [places[i] for i in sorted(drawn.tolist())]
    tokens = tokenise(loaded, texts, max_length=options.max_length)
    spans = tokens.words(*zip(*places, strict=True))
    return gather(loaded, tokens, spans, options.read.told("reading the text to fit on"))


def _target_vectors(
    loaded: LoadedModel, splits: Sequence[WicPairs], sentences: tuple[str, ...], options: WicOptions
) -> tuple[Vectors, list[np.ndarray]]:
    """(vectors of every different place of a word, rows of each split's pairs [pair, 2])."""
    number = {text: i for i, text in enumerate(sentences)}
    wanted: dict[tuple[int, int, int], int] = {}
    rows = []
    for one in splits:
        mine = [
            [wanted.setdefault((number[text], *place), len(wanted)) for text, place in zip(pair, places, strict=True)]
            for *pair, places in zip(one.first, one.second, one.places, strict=True)
        ]
        rows.append(np.array(mine, dtype=np.int64).reshape(-1, 2))
    tokens = tokenise(loaded, sentences, max_length=options.max_length)
    spans = tokens.words(*zip(*wanted, strict=True))
    return gather(loaded, tokens, spans, options.read.told("reading sentences")), rows


class _ByFamily:
    """Pairs that share their word or a sentence are alike, so whole families of them are drawn for intervals."""

    def __init__(self, pairs: WicPairs):
        self.truth = pairs.truth
        sentences = ([plain_text(text) for text in side] for side in (pairs.first, pairs.second))
        self.family = families(*sentences, [(word,) for word in pairs.words])  # a word is no sentence of one word
        self.sizes = np.bincount(self.family)

    def interval(self, before: np.ndarray, after: np.ndarray, *, seed: int, n_draws: int) -> tuple[float, float]:
        """95 % interval of how much more often `after` is right than `before`, answers [pair] both."""
        shares = [np.bincount(self.family, weights=one == self.truth) / self.sizes for one in (before, after)]
        return paired_interval(*shares, seed=seed, weights=self.sizes, n_draws=n_draws)


def _choices(
    used: Sequence[WicPairs],
    cosines: Sequence[np.ndarray],
    names: tuple[str, ...],
    layers: tuple[str, ...],
    options: WicOptions,
) -> Iterator[WordChoice]:
    """One for each kind of thresholds and fix."""
    folds = folds_of(used[0].words, FOLDS, options.seed)
    truths = [used[0].truth, used[0].truth, *(one.truth for one in used[1:] if len(one))]
    by_family = [_ByFamily(one) for one in (used[0], used[0], *(one for one in used[1:] if len(one)))]
    for kind, thresholds in (("grid", GRID), ("any", None)):
        raw: list[np.ndarray] = []
        for column, fix in enumerate(names):
            mine = cosines[0][..., column]
            layer, threshold = chosen(mine, used[0].truth, thresholds)
            # On train; on train, crossed; on validation.
            said = [mine[:, layer] > threshold, crossed(mine, used[0].truth, folds, thresholds)]
            said += [cosines[1][:, layer, column] > threshold] if len(truths) > 2 else []
            raw = raw or said
            right = [float((one == truth).mean()) for one, truth in zip(said, truths, strict=True)]
            before = [float((one == truth).mean()) for one, truth in zip(raw, truths, strict=True)]
            ends = [
                pairs.interval(other, one, seed=options.seed, n_draws=options.n_draws) if column else (0.0, 0.0)
                for pairs, one, other in zip(by_family, said, raw, strict=True)
            ]
            held = len(truths) > 2
            yield WordChoice(
                fix=fix,
                thresholds=kind,
                layer=layers[layer],
                threshold=threshold,
                accuracy=right[0],
                crossed=right[1],
                held_out=right[2] if held else None,
                change=right[0] - before[0],
                low=ends[0][0],
                high=ends[0][1],
                held_out_change=right[2] - before[2] if held else None,
                held_out_low=ends[2][0] if held else None,
                held_out_high=ends[2][1] if held else None,
                crossed_change=right[1] - before[1],
                crossed_low=ends[1][0],
                crossed_high=ends[1][1],
            )


def _place(text: str, start: object, end: object, where: str) -> tuple[int, int]:
    """Characters (start, end) of a word, of its number in the sentence where `end` is None."""
    if not isinstance(start, int) or not isinstance(end, int | None):
        raise BadInput(f"{where}: the place of the word is {start!r}, which is no number")
    if end is None:
        words = text.split(" ")
        if not 0 <= start < len(words):
            raise BadInput(f"{where}: the sentence has {len(words)} words, and the word is said to be number {start}")
        begin = sum(len(word) + 1 for word in words[:start])
        end = begin + len(words[start])
    else:
        begin = start
    if not 0 <= begin < end <= len(text):
        raise BadInput(f"{where}: the word is said to be at {begin} to {end} of a sentence of {len(text)} characters")
    return begin, end


def run(session: Session, options: WicCall) -> WordInContext:
    """What `wic` finds for the pairs that the command line names."""
    reads, fits, offline = session.vectors, session.fitting, session.loading.offline
    if reads.special:
        raise BadInput("--special belongs to vectors of sentences; a word's vector is the mean of its own tokens")
    train, validation = (
        read_wic(options.data, split, limit=options.limit, offline=offline) for split in ("train", "validation")
    )
    fit = fits.texts(offline=offline)
    if fit is None:
        # WiC has no split to spare: the paper's protocol reports train, and validation is what is held out.
        shipped = [read_texts(name) for name in (REVIEWS, EXCERPT)]
        fit = Texts("the shipped reviews and excerpt", tuple(text for one in shipped for text in one.texts))
    how = fits.into(reads.into(options.how, session.loaded, final_norm=True, progress=session.progress))
    return wic(session.loaded, train, validation, how, fit=fit)
