"""The pass of `embed`: how sentences and words become vectors, and the cosines of all pairs at every layer after every fix.

    work = PairPass(loaded, pairs, fit, options)
    with kept_rows(rows, work.identity) as kept:
        cosines = work.measured(kept)                    # of each set of pairs [pair, layer, fix]
    own_pooling("minilm-l6")                             # what 1_Pooling/config.json beside the model says

Texts are read when something is missing; of layers those alone where something is.

Cosines of pairs, their rank correlation with people's scores, and the threshold above which a cosine says "the same".

    index = PairIndex.of(first, second)                      # rows of the vectors [pair]
    cosines = index.cosines(vectors, fix)                    # [pair]
    scores = score(pairs, cosines[:, None])                  # pooled, mean and weighted mean over subsets, each subset
    right = right_at(cosines, truth, GRID)                   # bool [pair, layer, threshold]
    layer, threshold = chosen(cosines, truth, GRID)          # most right; of equals the first layer, then the lowest threshold
    said = crossed(cosines, truth, folds, None)              # bool [pair]: chosen on the other folds, of every threshold

Scores are Spearman's ρ in [−1, 1], equal to scipy's `spearmanr`.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.analyses.embed_pairs import TextPairs
from outlierlens.data.labelled.labels import apart
from outlierlens.data.texts import Texts
from outlierlens.errors import USE_FLOAT32, BadFile, BadInput, OutlierlensError
from outlierlens.models.folder import model_folder
from outlierlens.models.hooks import layer_name
from outlierlens.models.inputs import reader_digest
from outlierlens.models.load import LoadedModel, LoadOptions, fingerprint, stream_width
from outlierlens.results.row_store import UnitCache
from outlierlens.results.safe_files import read_json
from outlierlens.statistics.ranks import correlations
from outlierlens.tasks.metrics import paired_interval
from outlierlens.vectors.clip import Clipping, kept_clipping
from outlierlens.vectors.fixes import Fix, FixSpec, VectorMoments, make_fix, moments_of, raw_first
from outlierlens.vectors.read import ReadOptions, Vectors, gather, text_stack, tokenise, wanted_layers

if TYPE_CHECKING:
    from outlierlens.analyses.embed import EmbedOptions

# --- scores ----------------------------------------------------------------------------------------------------------


PAIRS_AT_ONCE = 4096
GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # Luo et al. (2021), section 4.2


@dataclass(frozen=True)
class PairIndex:
    """Rows of the two vectors of each pair, in blocks.

    Attributes:
        blocks: (rows of the block's different vectors, place of the first among them [pair], of the second [pair]).
    """

    blocks: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]

    @classmethod
    def of(cls, first: np.ndarray, second: np.ndarray) -> "PairIndex":
        """Of rows [pair] of the first and of the second."""
        blocks = []
        for start in range(0, len(first), PAIRS_AT_ONCE):
            part = np.stack([first[start : start + PAIRS_AT_ONCE], second[start : start + PAIRS_AT_ONCE]])
            used, inverse = np.unique(part, return_inverse=True)
            inverse = inverse.reshape(part.shape)
            blocks.append((used, inverse[0], inverse[1]))
        return cls(tuple(blocks))

    def cosines(self, vectors: np.ndarray, fix: Fix | None = None) -> np.ndarray:
        """Cosine in [−1, 1] of each pair's vectors [row, dim] after `fix`, float64 [pair]; 0 where one has no length.

        Raises:
            BadInput: a vector is not finite.
        """
        found = []
        for used, first, second in self.blocks:
            picked = np.asarray(vectors[used], dtype=np.float64)
            better = picked if fix is None else fix.apply(picked)
            length = np.sqrt(np.einsum("sd,sd->s", better, better))
            if not np.isfinite(length).all():
                raise BadInput(f"a vector to compare is NaN or infinite; {USE_FLOAT32}")
            unit = better / np.where(length > 0, length, 1)[:, None]
            found.append(np.einsum("pd,pd->p", unit[first], unit[second]))
        return np.clip(np.concatenate(found), -1, 1) if found else np.zeros(0)


# --- sentences -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Spearman's ρ: of all pairs together, and over subsets, each counting once or by its pairs; and of each [subset, …]."""

    pooled: np.ndarray
    mean: np.ndarray
    weighted: np.ndarray
    subsets: np.ndarray


def score(pairs: TextPairs, cosines: np.ndarray) -> Scores:
    """Spearman's ρ of `cosines` [pair, ...] with the scores that people gave, pooled and by subset.

    Pooled: all pairs together (mteb's way). Mean, weighted: over the subsets (SentEval's two ways); without subsets they are
    the pooled one. A constant correlates with nothing: 0.
    """
    shape = cosines.shape[1:]
    flat = cosines.reshape(len(pairs), -1)
    pooled = correlations("spearman", pairs.truth, flat).reshape(shape)
    names = pairs.subsets
    if not names:
        return Scores(pooled, pooled, pooled, np.zeros((0, *shape)))
    of = np.array(pairs.subset)
    each = np.stack([correlations("spearman", pairs.truth[of == name], flat[of == name]) for name in names])
    sizes = np.array([(of == name).sum() for name in names], dtype=np.float64)
    mean, weighted = each.mean(0), sizes @ each / sizes.sum()
    return Scores(pooled, mean.reshape(shape), weighted.reshape(shape), each.reshape(len(names), *shape))


def spearman(pairs: TextPairs, vectors: np.ndarray) -> float:
    """Pooled ρ of vectors [sentence, dim] whose rows are `pairs.sentences`."""
    place = {text: i for i, text in enumerate(pairs.sentences)}
    rows = np.array([[place[text] for text in side] for side in (pairs.first, pairs.second)], dtype=np.int64)
    return float(score(pairs, PairIndex.of(*rows).cosines(vectors)[:, None]).pooled[0])


# --- words -----------------------------------------------------------------------------------------------------------


def right_at(cosines: np.ndarray, truth: np.ndarray, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """Whether "cosine above threshold" is what `truth` [pair] says, bool [pair, layer, threshold], of cosines [pair, layer]."""
    return (cosines[..., None] > np.asarray(thresholds)) == truth[:, None, None]


def best_cut(cosines: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(threshold, accuracy) [layer] of the threshold that tells most pairs of cosines [pair, layer] apart rightly.

    Thresholds lie midway between two different cosines, or below all or above all; of equally good ones the lowest is taken.
    """
    n = len(truth)
    order = np.argsort(cosines, axis=0, kind="stable")
    ascending = np.take_along_axis(cosines, order, axis=0)
    same = truth[order]  # [pair, layer]
    none = np.zeros((1, cosines.shape[1]), dtype=np.int64)
    # With k cosines below the threshold, right are those of them that are not the same, and the others that are.
    right = np.concatenate([none, np.cumsum(~same, axis=0)]) + (
        same.sum(0) - np.concatenate([none, np.cumsum(same, axis=0)])
    )
    possible = np.ones((n + 1, cosines.shape[1]), dtype=bool)
    possible[1:n] = ascending[1:] > ascending[:-1]
    cut = np.where(possible, right, -1).argmax(0)
    columns = np.arange(cosines.shape[1])
    below, above = ascending[np.maximum(cut - 1, 0), columns], ascending[np.minimum(cut, n - 1), columns]
    # Cosines end at 1: nothing lies above a threshold of 1, everything above one below −1.
    middle = np.where(
        cut == 0, np.minimum(-1.0, below) - 1, np.where(cut == n, np.maximum(1.0, above), (below + above) / 2)
    )
    # The middle of two neighbouring floats may be the upper one.
    threshold = np.where((cut > 0) & (cut < n) & (middle >= above), below, middle)
    return threshold, right[cut, columns] / n


def chosen(cosines: np.ndarray, truth: np.ndarray, thresholds: Sequence[float] | None) -> tuple[int, float]:
    """(layer, threshold) that are right most often; `thresholds` None takes every one there is."""
    if thresholds is not None:
        right = right_at(cosines, truth, thresholds)
        at, place = np.unravel_index(int(right.sum(0).argmax()), right.shape[1:])
        return int(at), float(thresholds[int(place)])
    cut, accuracy = best_cut(cosines, truth)
    layer = int(accuracy.argmax())
    return layer, float(cut[layer])


def crossed(
    cosines: np.ndarray, truth: np.ndarray, folds: np.ndarray, thresholds: Sequence[float] | None
) -> np.ndarray:
    """The answer for each pair, bool [pair], where layer and threshold are chosen on the other folds.

    A single fold has no others: all its pairs are called the same.
    """
    said = np.ones(len(truth), dtype=bool)
    for fold in np.unique(folds):
        inside = folds == fold
        if inside.all():
            continue
        layer, threshold = chosen(cosines[~inside], truth[~inside], thresholds)
        said[inside] = cosines[inside, layer] > threshold
    return said


def folds_of(words: Sequence[str], n_folds: int, seed: int) -> np.ndarray:
    """A fold for each pair, the same for all pairs of a word: a word's pairs share sentences."""
    different = sorted(set(words))
    place = np.random.default_rng([seed, 13]).permutation(len(different)) % n_folds
    of = dict(zip(different, place.tolist(), strict=True))
    return np.array([of[word] for word in words], dtype=np.int64)


def accuracy_interval(
    pairs: TextPairs, before: np.ndarray, after: np.ndarray, *, seed: int, n_draws: int
) -> tuple[float, float]:
    """95 % interval of how much more often `after` is right than `before`, answers [pair] both.

    Pairs that share their word or a sentence are alike, so whole families of them are drawn.
    """
    family, sizes = pairs.family, np.bincount(pairs.family)
    shares = [np.bincount(family, weights=one == pairs.truth) / sizes for one in (before, after)]
    return paired_interval(*shares, seed=seed, weights=sizes, n_draws=n_draws)


POOLINGS = ("mean", "first", "last")
MAX_CONFIG = 2**20  # bytes
MAX_LENGTH = 128
FIT_WORDS = 20_000  # vectors to fit on, or 12 a dimension where that is more
# What sentence-transformers calls them: the mode of one file format, the flag of the older one.
THEIRS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
}
OURS = {"mean": "mean", "cls": "first", "lasttoken": "last"}


@dataclass(frozen=True)
class Pooling:
    """How a sentence becomes one vector.

    Attributes:
        mode: "mean" over tokens; the "first" token, with special ones counted ([CLS]); or the "last".
        special: whether the mean counts special tokens.
        max_length: tokens at which a sentence is cut.
        notes: what else the model does to a sentence, which is not done here.
    """

    mode: str = "mean"
    special: bool = False
    max_length: int = MAX_LENGTH
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in POOLINGS:
            raise BadInput(f"pooling is {self.mode!r}; use one of {', '.join(POOLINGS)}")

    @property
    def says(self) -> str:
        """ "mean of all tokens, special ones left out"."""
        if self.mode != "mean":
            return f"{self.mode} token"
        return f"mean of all tokens, special ones {'counted' if self.special else 'left out'}"


def sentence_vectors(loaded: LoadedModel, texts: Sequence[str], pooling: Pooling, options: ReadOptions) -> Vectors:
    """One vector per text at every layer, from one forward pass.

    Raises:
        BadInput: as `gather`.
    """
    tokens = tokenise(loaded, texts, max_length=pooling.max_length)
    if pooling.mode == "mean":
        return gather(loaded, tokens, tokens.sentences(), options, special=pooling.special)
    # A text without a token keeps an empty span, and a vector of zeros.
    lengths = tokens.lengths
    place = np.zeros(len(lengths), dtype=np.int64) if pooling.mode == "first" else np.maximum(lengths - 1, 0)
    return gather(loaded, tokens, tokens.single(np.arange(len(lengths)), place), options, special=True)


class PairPass:
    """Pairs of sentences or of words, the text that fixes are fitted on, and the cosines of each pair after every fix.

    Attributes:
        held: the sets of pairs. sentences: of them, each once. specs: fixes, "raw" first. layers: names.
        clipping: what is clipped. n_dropped: evaluated texts left out of the text to fit on. n_fitted: vectors of it.
        shrinkage: of whitening, by layer. left_out: whether a pair has a sentence or word without a token [pair], by set.
    """

    def __init__(self, loaded: LoadedModel, held: Sequence[TextPairs], fit: Texts | None, options: "EmbedOptions"):
        self.loaded, self.held, self.options, self.fit = loaded, held, options, fit
        self.specs = raw_first(options.fixes)
        self.stack = text_stack(loaded, options.read.stack)
        self.width = stream_width(loaded.model, self.stack)
        self.places = {layer_name(layer): layer for layer in wanted_layers(self.stack, options.read.layers)}
        self.layers = tuple(self.places)
        self.final_norm = bool(options.read.final_norm and self.stack.final_norm)
        self.words = bool(held[0].places)
        sides = ((one.first, one.second) for one in held) if self.words else ((one.sentences,) for one in held)
        self.sentences = tuple(dict.fromkeys(text for one in sides for side in one for text in side))
        self.moves = any(spec.fitted for spec in self.specs)
        self.clips = any(spec.kind == "clip" for spec in self.specs)
        self.fits = self.moves or (self.clips and options.clip == "auto")
        if self.fits and fit is None:
            raise BadInput(
                "these fixes need a text to fit on, and all texts here are evaluated; name another with --fit-data"
            )
        self.identity: dict[str, Any] = {
            "model": fingerprint(loaded.model), "reader": reader_digest(loaded),
            "data": [one.digest for one in held], "seed": options.seed,
            "pooling": asdict(options.pooling), "stack": self.stack.name, "final_norm": self.final_norm,
            "fit": fit.digest if fit and self.fits else "", "fit_limit": options.fit_limit,
        }  # fmt: skip
        self.clipping = Clipping("none", {}, "nothing is clipped")
        self.n_dropped = self.n_fitted = 0
        self.shrinkage: tuple[float, ...] = ()
        self.left_out: list[Any] = []

    @cached_property
    def left(self) -> tuple[Texts, int]:
        """The texts to fit on, and how many are left out because they are evaluated."""
        assert self.fit is not None
        return apart(self.fit, self.sentences, limit=self.options.fit_limit, seed=self.options.seed)

    @cached_property
    def items(self) -> tuple[list[tuple[int, ...]], list[np.ndarray]]:
        """What has a vector, as (sentence,) or (sentence, start, end), and rows of each set's pairs [side, pair]."""
        number = {text: i for i, text in enumerate(self.sentences)}
        wanted: dict[tuple[int, ...], int] = {} if self.words else {(i,): i for i in range(len(number))}
        rows = []
        for one in self.held:
            places = one.places or (((), ()),) * len(one)
            pairs = [
                [wanted.setdefault((number[text], *at), len(wanted)) for text, at in zip(texts, spots, strict=True)]
                for *texts, spots in zip(one.first, one.second, places, strict=True)
            ]
            rows.append(np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
        return list(wanted), rows

    def measured(self, kept: UnitCache) -> list[np.ndarray]:
        """Cosines [pair, layer, fix] of each set of pairs, those that are missing measured now."""
        if self.fits:
            self.n_dropped = kept("dropped", lambda: self.left[1])
        if self.clips:
            asked, stack = self.options.clip, self.stack.name
            self.clipping = kept_clipping(kept, asked, self.loaded, lambda: self.left[0], stack=stack)
        names = {
            (layer, spec): f"{layer} {spec.name}" + (f" {self.clipping.at(layer)}" if spec.kind == "clip" else "")
            for layer in self.layers
            for spec in self.specs
        }
        self._read({key: name for key, name in names.items() if name not in kept.done}, kept)
        rows, every = self.items[1], {key: kept.done[name] for key, name in names.items()}
        self.n_fitted = max(one["n_fitted"] for one in every.values())
        self.shrinkage = tuple(one["shrinkage"] for (_, spec), one in every.items() if spec.kind == "whiten")
        self.left_out = [np.isin(pair, kept.done["empty"]).any(axis=0) for pair in rows]
        return [
            np.array([[every[layer, spec]["cosines"][i] for spec in self.specs] for layer in self.layers])
            .reshape(len(self.layers), len(self.specs), -1)
            .transpose(2, 0, 1)
            for i in range(len(self.held))
        ]

    def _read(self, missing: dict[tuple[str, FixSpec], str], kept: UnitCache) -> None:
        """Measure what is missing of {(layer, fix): name} in one pass, and keep it by name."""
        if not missing:
            return
        wanted = {layer for layer, _ in missing}
        read = replace(self.options.read, layers=tuple(at for layer, at in self.places.items() if layer in wanted))
        fitting = self._fitting(read) if any(spec.fitted for _, spec in missing) else None
        vectors, indices = self._vectors(read), [PairIndex.of(*pair) for pair in self.items[1]]
        kept("empty", lambda: np.flatnonzero(vectors.n_tokens == 0).tolist())
        for place, layer in enumerate(vectors.layers):
            moments = None
            if fitting is not None:
                moments = moments_of(fitting.values[place][fitting.n_tokens > 0])
            for spec in (spec for at, spec in missing if at == layer):
                kept(missing[layer, spec], partial(self._cosines, spec, layer, moments, vectors.values[place], indices))
            if read.progress:
                read.progress("measuring layers", place + 1, len(vectors.layers))

    def _fitting(self, read: ReadOptions) -> Vectors:
        """Of words as many as a covariance needs and the budget allows, of all layers: drawn alike where some are known."""
        pooling, texts, told = self.options.pooling, self.left[0].texts, read.told("reading the text to fit on")
        if not self.words:
            return sentence_vectors(self.loaded, texts, pooling, told)
        places = [(text, *found.span()) for text, words in enumerate(texts) for found in re.finditer(r"\S+", words)]
        room = int(read.cache_gb * 1e9 / 2 / (4 * self.width * len(self.layers)))
        if (most := min(max(FIT_WORDS, 12 * self.width), room)) < len(places):
            drawn = np.random.default_rng([self.options.seed, 17]).permutation(len(places))[:most]
            places = [places[i] for i in sorted(drawn.tolist())]
        return self._of_words(texts, places, told)

    def _of_words(self, texts: Sequence[str], places: Sequence[tuple[int, ...]], read: ReadOptions) -> Vectors:
        tokens = tokenise(self.loaded, texts, max_length=self.options.pooling.max_length)
        return gather(self.loaded, tokens, tokens.words(*zip(*places, strict=True)), read)

    def _vectors(self, read: ReadOptions) -> Vectors:
        told = read.told("reading sentences")
        if self.words:
            return self._of_words(self.sentences, self.items[0], told)
        return sentence_vectors(self.loaded, self.sentences, self.options.pooling, told)

    def _cosines(
        self, spec: FixSpec, layer: str, moments: VectorMoments | None, vectors: np.ndarray, indices: list[PairIndex]
    ) -> dict[str, Any]:
        fix = make_fix(spec, self.width, moments=moments, dims=self.clipping.at(layer))
        cosines = [index.cosines(vectors, fix).tolist() for index in indices]
        return {"cosines": cosines, "n_fitted": fix.n_fitted, "shrinkage": fix.shrinkage}


# --- a model's own way -----------------------------------------------------------------------------------------------


def own_pooling(name: str, options: LoadOptions | None = None) -> Pooling:
    """How sentence-transformers would make a sentence vector of model `name` (sample, folder or hub id).

    It is read from modules.json and the files it names. Without them, as that library has it: mean, special tokens counted.

    Raises:
        BadInput: a way that is not supported here (max, weighted mean, several at once).
        BadFile: a file that is damaged, or a module outside the model's folder.
    """
    options = options or LoadOptions()
    read = partial(_beside, name, options)
    modules, beside = read("modules.json"), read("sentence_bert_config.json")
    length = beside.get("max_seq_length") if isinstance(beside, dict) else None
    length = length if isinstance(length, int) and length >= 2 else MAX_LENGTH
    if modules is None:
        return Pooling("mean", True, length)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BadFile(f"{name}: modules.json is not a list of modules; fetch the model again")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if "Pooling" not in kinds:
        raise BadInput(f"{name}: modules.json names no Pooling ({', '.join(kinds)}); use --pooling mean, first or last")
    place = str(modules[kinds.index("Pooling")].get("path", ""))
    if not re.fullmatch(r"\w[\w.-]{0,99}", place):
        raise BadFile(f"{name}: modules.json names {place[:99]!r}, which is no folder beside it; fetch the model again")
    config = read(f"{place}/config.json")
    if not isinstance(config, dict):
        raise BadFile(f"{name}: {place}/config.json, which modules.json names, is missing; fetch the model again")
    # A length changes no cosine, so Normalize needs no note.
    behind = [kind for kind in kinds[kinds.index("Pooling") + 1 :] if kind != "Normalize"]
    notes = [f"the model's own {' and '.join(behind)} behind the pooling is left out"] if behind else []
    settings = read("config_sentence_transformers.json")
    if isinstance(settings, dict) and settings.get("default_prompt_name"):
        notes.append(f"the model's own prompt {settings['default_prompt_name']!r} is left out")
    return Pooling(_mode(name, config), True, length, tuple(notes))


def _mode(name: str, config: dict[str, Any]) -> str:
    said = config.get("pooling_mode")
    if said is None:
        said = [word for word, flag in THEIRS.items() if config.get(flag)] or ["mean"]
    modes = [str(mode) for mode in said] if isinstance(said, list) else [str(said)]
    if len(modes) != 1 or modes[0] not in OURS:
        raise BadInput(
            f"{name}: its own pooling is {' and '.join(modes)}, which is not supported; use --pooling mean, first or last"
        )
    return OURS[modes[0]]


def _beside(name: str, options: LoadOptions, file: str) -> Any:
    """The content of a JSON file beside a model, on disk or on the hub; None where there is none."""
    local = model_folder(
        name, subfolder=options.subfolder, offline=options.offline, weights=False, notice=options.notice
    )
    path = local / file if local else _fetched(name, options, file)
    if path is None or not path.is_file():
        return None
    if path.stat().st_size > MAX_CONFIG:
        raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a configuration")
    return read_json(path, "fetch the model again")


def _fetched(name: str, options: LoadOptions, file: str) -> Path | None:
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(
            name, file, subfolder=options.subfolder, revision=options.revision, token=options.token,
            local_files_only=options.offline, _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=not options.offline,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise OutlierlensError(f"{name}: {file} cannot be fetched: {' '.join(str(error).split())[:200]}") from None
    return None if found is None else Path(found)
