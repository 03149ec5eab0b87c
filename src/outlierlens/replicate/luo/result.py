"""The experiments of Luo et al. (2021) for one model, as plain data without torch: what `replicate luo` measures.

found.sts.task("stsb").choice("clip", "best")
found.effects()                        # what clipping does to every data set, chosen the paper's way and held out
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outlierlens.detection.observe.result import StackObservation
from outlierlens.experiments.frozen.result import FrozenScores
from outlierlens.experiments.geometry.result import Geometry
from outlierlens.experiments.origin.result import Origin
from outlierlens.experiments.probe.result import PositionProbe
from outlierlens.experiments.similarity.result import CLIPPED_LAYER, Similarity, WordInContext, verdict
from outlierlens.results.document import Provenance, Result

BEST, HELD_OUT = "best", "held out"
CLIP = "clip"
UNTOUCHED = "nothing to clip there"


@dataclass(frozen=True)
class Published:
    """A number of the paper for a checkpoint.

    Attributes:
        data: "wic", "stsb", "sst2", … raw, clipped: the paper's scores in [0, 1], None where it gives none.
        source: where it stands. evidence: how sure it is that this is the same checkpoint.
    """

    data: str
    raw: float | None
    clipped: float | None
    source: str
    evidence: str


@dataclass(frozen=True)
class Extreme:
    """How often a dimension is the smallest or largest entry of a token vector (Luo et al. 2021, section 2).

    Attributes:
        end: "smallest entry" or "largest entry". share: of the token vectors of all blocks, special tokens included.
        published: the paper's share for this checkpoint, None where it gives none.
    """

    dim: int
    end: str
    share: float
    published: float | None = None


def extremes(stack: StackObservation, published: Mapping[tuple[str, int], float]) -> tuple[Extreme, ...]:
    """The commonest smallest and the commonest largest entry, and every dimension whose share is `published`."""
    found = []
    for end, shares in stack.pooled_shares().items():
        if np.isnan(shares).all():
            continue
        column = {dim: place for place, dim in enumerate(stack.dims)}
        most = (stack.dims[int(np.argmax(shares))],) if np.nanmax(shares) > 0 else ()
        dims = dict.fromkeys((*most, *(dim for at, dim in published if at == end)))
        found += [
            Extreme(dim, end, round(float(shares[column[dim]]), 6), published.get((end, dim)))
            for dim in dims
            if dim in column
        ]
    return tuple(found)


@dataclass(frozen=True)
class Effect:
    """What one fix does to one data set.

    Attributes:
        data, metric: "stsb", "Spearman's ρ". fix: "clip".
        how: "best", layer (and threshold) chosen on the very data as in the paper, or "held out" (WiC: cross-validated over
            words); sentence similarity also at the "clipped layer" where raw vectors are best.
        raw, value: the scores. change, low, high: their difference with its paired 95 % interval. interval: in words, × 100.
        says: "helps", "hurts", "no difference" or "not settled"; "nothing to clip there" where the chosen layer has no
            clipped dimension.
        published: the paper's numbers for this checkpoint, chosen its way.
    """

    data: str
    metric: str
    fix: str
    how: str
    layer: str
    raw_layer: str
    raw: float
    value: float
    change: float
    low: float
    high: float
    interval: str
    says: str
    published: Published | None = None


@dataclass(frozen=True)
class LuoReplication(Result):
    """Luo et al. 2021 for one model.

    Attributes:
        checkpoint: the paper's checkpoint that this is, "" where it is none.
        clipped: dimensions that are clipped, by layer; clipping: where they come from.
        extremes: the commonest smallest and largest entries, on the sentences that `observation` of the run has seen.
        origin, probe, geometry, words, sts, frozen: the parts; None or () where a part was left out.
        published: the paper's numbers for this checkpoint.
        seconds: wall clock of each part, when it was measured.
        full: whether everything was read, or stated subsets.
    """

    provenance: Provenance
    checkpoint: str
    clipping: str
    clipped: dict[str, tuple[int, ...]]
    extremes: tuple[Extreme, ...] = ()
    origin: Origin | None = None
    probe: PositionProbe | None = None
    geometry: Geometry | None = None
    words: WordInContext | None = None
    sts: Similarity | None = None
    frozen: tuple[FrozenScores, ...] = ()
    published: tuple[Published, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    full: bool = False
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Origin | PositionProbe | Geometry | WordInContext | Similarity | FrozenScores, ...]:
        """The parts that there are."""
        parts = (self.origin, self.probe, self.geometry, self.words, self.sts, *self.frozen)
        return tuple(part for part in parts if part is not None)

    def effects(self, fix: str = CLIP) -> tuple[Effect, ...]:
        """What `fix` does to every data set: WiC, then STS, then classification; "best" before "held out"."""
        found = (*self._words(fix), *self._sentences(fix), *self._classes(fix))
        if fix != CLIP:
            return found
        # Where the chosen layer has nothing to clip, raw and clipped vectors are the same ones.
        return tuple(one if self.clipped.get(one.layer.split()[0]) else replace(one, says=UNTOUCHED) for one in found)

    @property
    def fixes(self) -> tuple[str, ...]:
        """Every fix of any part but raw, in order."""
        parts = [part.fixes for part in (self.words, self.sts, self.geometry) if part is not None]
        parts += [tuple(one.fix for one in part.fixes) for part in self.frozen]
        return tuple(dict.fromkeys(fix for part in parts for fix in part if fix != "raw"))

    def records(self) -> list[dict[str, Any]]:
        """One row per data set, fix and way to choose a layer."""
        return [row for fix in self.fixes for row in effect_rows(self.effects(fix))]

    def _known(self, data: str, fix: str, how: str) -> Published | None:
        if fix != CLIP or how != BEST:
            return None
        return next((one for one in self.published if one.data == data), None)

    def _words(self, fix: str) -> Iterator[Effect]:
        if self.words is None or fix not in self.words.fixes:
            return
        one, raw = self.words.choice(fix), self.words.choice("raw")
        train = self.words.data[0].interval
        at = f"{one.layer} > {one.threshold:g}", f"{raw.layer} > {raw.threshold:g}"
        yield Effect(
            "wic", "accuracy", fix, BEST, *at, raw.accuracy, one.accuracy, one.change, one.low, one.high,
            train(one.low, one.high), verdict(one.low, one.high), self._known("wic", fix, BEST),
        )  # fmt: skip
        yield Effect(
            "wic", "accuracy", fix, HELD_OUT, *at, raw.crossed, one.crossed, one.crossed_change, one.crossed_low,
            one.crossed_high, train(one.crossed_low, one.crossed_high), one.verdict,
        )  # fmt: skip

    def _sentences(self, fix: str) -> Iterator[Effect]:
        for task in self.sts.tasks if self.sts is not None and fix in self.sts.fixes else ():
            for one in task.choices:
                if one.fix == fix and one.how in (BEST, HELD_OUT, CLIPPED_LAYER):
                    yield Effect(
                        task.name, "Spearman's ρ", fix, one.how, one.layer, one.raw_layer, one.raw_score, one.score,
                        one.change, one.low, one.high, task.interval(one), one.verdict, self._known(task.name, fix, one.how),
                    )  # fmt: skip

    def _classes(self, fix: str) -> Iterator[Effect]:
        for part in self.frozen:
            name = part.task.rpartition(":")[2]
            if fix not in (one.fix for one in part.fixes):
                continue
            mine, raw = part.fix(fix), part.fix("raw")
            for how, one, before in ((BEST, mine.best, raw.best), (HELD_OUT, mine.selected, raw.selected)):
                yield Effect(
                    name, part.metric, fix, how, one.layer, before.layer, before.value, one.value, one.change,
                    one.change_low, one.change_high, part.interval(one.change_low, one.change_high, "+.2f", 100),
                    one.verdict, self._known(name, fix, how),
                )  # fmt: skip


def effect_rows(effects: tuple[Effect, ...]) -> Iterator[dict[str, Any]]:
    """One flat row an effect."""
    for one in effects:
        row = {name: value for name, value in vars(one).items() if name != "published"}
        known = one.published
        yield row | {"published_raw": known.raw if known else None, "published": known.clipped if known else None}
