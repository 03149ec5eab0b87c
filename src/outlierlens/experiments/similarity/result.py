"""How well vectors say what is alike, as plain data without torch: `Similarity` (sentences), `WordInContext` (words).

    task = found.task("stsb")
    task.layers.pooled                       # Spearman's ρ [layer, fix], with found.layers and found.fixes as names
    task.choice("clip", "best")              # layer, ρ, change from raw with its interval, verdict
    words.data[0].accuracy                   # [layer, fix, threshold]

Scores lie in [−1, 1] or [0, 1]; reports multiply by 100.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.errors import pick
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.means import interval_text, no_change

HELPS, HURTS, NOTHING, OPEN = "helps", "hurts", "no difference", "not settled"
CLIPPED_LAYER = "clipped layer"


def verdict(low: float, high: float) -> str:
    """What a change does whose interval is (low, high): "helps", "hurts", "no difference", or "not settled" without one."""
    return OPEN if math.isnan(low) else HELPS if low > 0 else HURTS if high < 0 else NOTHING


@dataclass(frozen=True)
class Scores:
    """Spearman's ρ, [row, fix] each; rows are layers or static vectors.

    Attributes:
        pooled: of all pairs together (mteb's way).
        mean, weighted: over subsets, each counting once or by its pairs (SentEval's two ways); pooled without subsets.
        subsets: of each subset [subset, row, fix]; empty without subsets.
    """

    pooled: Annotated[np.ndarray, "row fix"]
    mean: Annotated[np.ndarray, "row fix"]
    weighted: Annotated[np.ndarray, "row fix"]
    subsets: Annotated[np.ndarray, "subset row fix, or empty"]


@dataclass(frozen=True)
class Choice:
    """One fix of one task at a layer that was chosen some way, against raw vectors whose layer was chosen alike.

    Attributes:
        how: "best" layer on these very pairs (as in the paper), "held out" (chosen on other pairs), or the "last"; for clip
            also the "clipped layer" where raw vectors are best, which both are then taken from.
        chosen_on: the pairs that the layer was chosen on, in words. chosen_score: ρ there; None where nothing was chosen.
        layer, score: of the fix. raw_layer, raw_score: of raw vectors. change: score − raw_score.
        low, high: 95 % interval of `change`, pairs drawn together, those that share sentences as one; the choice of a layer is
            not drawn again. (0, 0) where no cosine changed; NaN where it is not settled.
    """

    fix: str
    how: str
    chosen_on: str
    chosen_score: float | None
    layer: str
    score: float
    raw_layer: str
    raw_score: float
    change: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """ "helps", "hurts", "no difference" or "not settled"; for raw vectors "" ."""
        return "" if self.fix == "raw" else verdict(self.low, self.high)


@dataclass(frozen=True)
class TaskScores:
    """One data set.

    Attributes:
        name, title, source: the row of the table and where its pairs are from.
        n_pairs, n_sentences: evaluated, sentences counted once. n_families: of pairs that hang together by shared sentences.
        subsets, sizes: its parts, with their pairs. missing: parts of the complete data set that are not among them.
        layers: scores with a row per layer. static: with a row for each of the result's static vectors; no clip: NaN.
        choices: one for each fix and way to choose a layer.
    """

    name: str
    title: str
    source: str
    n_pairs: int
    n_sentences: int
    n_families: int
    subsets: Annotated[tuple[str, ...], "subset"]
    sizes: Annotated[tuple[int, ...], "subset"]
    missing: tuple[str, ...]
    layers: Annotated[Scores, "row=layer"]
    static: Annotated[Scores, "row=static"]
    choices: tuple[Choice, ...]

    def interval(self, one: Choice, form: str = "+.2f") -> str:
        """The interval of a choice's change in words, × 100."""
        nothing = no_change(self.n_pairs, "pairs", self.n_families)
        return interval_text(100 * one.low, 100 * one.high, form, nothing)

    def choice(self, fix: str, how: str) -> Choice:
        """The choice of `fix` made `how`; raises BadInput with those there are."""
        return pick(self.choices, f"{self.name} has no choice for {fix} / {how}", fix=fix, how=how)


@dataclass(frozen=True)
class StaticVectors:
    """Vectors that know no context.

    Attributes:
        name: "input embeddings". width: dimensions.
    """

    name: str
    width: int


@dataclass(frozen=True)
class Fitted:
    """What the fixes were fitted on.

    Attributes:
        source: the text, in words; "" where no fix needed one. n: vectors. dropped: evaluated texts left out of it.
        shrinkage: of whitening, by layer; () without it.
        clipping: where the clipped dimensions come from. clipped: them, by layer.
    """

    source: str
    n: int
    dropped: int
    shrinkage: Annotated[tuple[float, ...], "layer, or empty"]
    clipping: str
    clipped: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Similarity(Result):
    """Semantic textual similarity at every layer with every fix.

    Attributes:
        stack: the stream. pooling: how a sentence became a vector, in words; `max_length` tokens at most.
        final_norm: whether vectors went through the model's final norm.
        layers, fixes: names of the rows and columns of scores; the first fix is "raw".
        n_sentences: that went through the model once.
    """

    provenance: Provenance
    stack: str
    pooling: str
    max_length: int
    final_norm: bool
    layers: Annotated[tuple[str, ...], "layer"]
    fixes: Annotated[tuple[str, ...], "fix"]
    fitted: Fitted
    static: Annotated[tuple[StaticVectors, ...], "static"]
    n_sentences: int
    tasks: tuple[TaskScores, ...]
    notes: tuple[str, ...] = ()

    def task(self, name: str) -> TaskScores:
        """The data set called `name`; raises BadInput with those there are."""
        return pick(self.tasks, f"no task {name!r}", name=name)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per task, layer or static vectors, and fix."""
        return similarity_rows(self)


def similarity_rows(found: Similarity) -> Iterator[dict[str, Any]]:
    """One flat row per task, layer (or static vectors) and fix: pooled, mean and weighted ρ, and each subset's."""
    for task in found.tasks:
        for names, scores in ((found.layers, task.layers), (tuple(one.name for one in found.static), task.static)):
            for row, name in enumerate(names):
                for column, fix in enumerate(found.fixes):
                    yield {
                        "task": task.name,
                        "layer": name,
                        "fix": fix,
                        "pooled": float(scores.pooled[row, column]),
                        "mean": float(scores.mean[row, column]),
                        "weighted": float(scores.weighted[row, column]),
                        **{
                            subset: float(scores.subsets[place, row, column])
                            for place, subset in enumerate(task.subsets)
                        },
                    }


@dataclass(frozen=True)
class WordPairs:
    """One split of WiC: pairs of sentences with a word that they share.

    Attributes:
        split, source: which, and where from. n_pairs: that were compared; left_out: whose word lies behind the longest text.
        n_families: of pairs that hang together by their word or a sentence.
        all_true: accuracy of always saying that the word means the same.
        accuracy: of saying so where the cosine is above a threshold [layer, fix, threshold].
    """

    split: str
    source: str
    n_pairs: int
    n_families: int
    left_out: int
    all_true: float
    accuracy: Annotated[np.ndarray, "layer fix threshold"]

    def interval(self, low: float | None, high: float | None, form: str = "+.2f") -> str:
        """An interval of a change of accuracy on this split in words, × 100; "" for none."""
        if low is None or high is None:
            return ""
        nothing = no_change(self.n_pairs, "pairs", self.n_families)
        return interval_text(100 * low, 100 * high, form, nothing)


@dataclass(frozen=True)
class WordChoice:
    """The best layer and threshold of a fix; changes are from raw vectors, with paired 95 % intervals: pairs that share their
    word or a sentence are drawn as one; (0, 0) where no answer changed.

    Attributes:
        thresholds: "grid" (0.1 to 0.9, the paper's) or "any" (all that tell pairs of the choosing split apart).
        layer, threshold, accuracy: best on the train split: chosen and measured on the same pairs, as in the paper.
        crossed: accuracy on the train split where layer and threshold are chosen on nine tenths of the words and measured on
            the tenth left out, each tenth once.
        held_out: accuracy on the validation split of what was chosen on train; None without one.
        change, low, high: of `accuracy`. held_out_change, …: of `held_out`. crossed_change, …: of `crossed`.
    """

    fix: str
    thresholds: str
    layer: str
    threshold: float
    accuracy: float
    crossed: float
    held_out: float | None
    change: float
    low: float
    high: float
    held_out_change: float | None
    held_out_low: float | None
    held_out_high: float | None
    crossed_change: float = 0.0
    crossed_low: float = float("nan")
    crossed_high: float = float("nan")

    @property
    def verdict(self) -> str:
        """By the interval of `crossed`, which is held out and has more pairs than the validation split; "" for raw vectors."""
        return "" if self.fix == "raw" else verdict(self.crossed_low, self.crossed_high)


@dataclass(frozen=True)
class WordInContext(Result):
    """Word-in-Context: whether the cosine of a word's two vectors says that it means the same, at every layer.

    Attributes:
        layers, fixes, thresholds: names of the axes of each split's `accuracy`.
        data: the train split, and the validation split where there is one.
        choices: one for each fix and kind of thresholds.
    """

    provenance: Provenance
    stack: str
    max_length: int
    final_norm: bool
    layers: Annotated[tuple[str, ...], "layer"]
    fixes: Annotated[tuple[str, ...], "fix"]
    thresholds: Annotated[tuple[float, ...], "threshold"]
    fitted: Fitted
    data: tuple[WordPairs, ...]
    choices: tuple[WordChoice, ...]
    notes: tuple[str, ...] = ()

    def choice(self, fix: str, thresholds: str = "grid") -> WordChoice:
        """The choice of `fix` with these thresholds; raises BadInput with those there are."""
        return pick(self.choices, f"no choice for {fix} / {thresholds}", fix=fix, thresholds=thresholds)

    def records(self) -> list[dict[str, Any]]:
        """One row per split, layer, fix and threshold."""
        return [
            {"split": split.split, "layer": layer, "fix": fix, "threshold": threshold,
             "accuracy": float(split.accuracy[row, column, place])}
            for split in self.data
            for row, layer in enumerate(self.layers)
            for column, fix in enumerate(self.fixes)
            for place, threshold in enumerate(self.thresholds)
        ]  # fmt: skip
