"""What is kept of the logits: sums by text, and counts and probabilities by type in a few groups of texts.

    scale = Scale.of(unigram, device)
    tally = Tally(scale, n_texts=200, n_groups=32)
    tally.add(logits, targets, text)                   # some predicted positions of one forward pass
    tally.values(unigram)                              # {measure: number} of all texts
    change(intact, tally, unigram, n_draws=1000, seed=0)         # {measure: (change, low, high)}

Nothing of the size text × vocabulary is kept: argmaxes and mean distributions are held for at most 32 groups of
neighbouring texts, and intervals of what they decide leave out those groups in turn.

The corpus' token frequencies, and how predictions compare with them.

    unigram = Unigram.of(counts, n_rows=30522, special=tokenizer.all_special_ids)
    slopes(said[None], unigram.counts)                     # of ln said on ln corpus count
    spearmans(said[None], unigram.counts)
    divergences(mass[None], unigram.probability)           # (KL(mean predicted || corpus), KL(corpus || mean predicted))

The three take several rows [row, type] at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.predictions.result import Curve
from outlierlens.statistics.bootstrap import Sums, bca
from outlierlens.statistics.means import critical
from outlierlens.statistics.ranks import ratio, spearman
from outlierlens.statistics.resampling import jackknife_error
from outlierlens.tasks.metrics import paired_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from outlierlens.data.token_counts import TokenCounts

FEWEST = 3  # types that a slope or a rank correlation needs
FLOOR = 1e-6  # share of the corpus' distribution mixed into a predicted one, whose logarithm must exist
POINTS = 60  # of a curve
Measure = Callable[[np.ndarray], np.ndarray]  # rows [row, type] -> [row]
GROUPS = 32
# What is summed for each text. Predictions of special tokens have no corpus frequency, so means of it are over the others.
SUMS = ("n", "right", "surprisal", "entropy", "special", "plain", "log", "share", "mass", "mass_log")
RATIOS = {  # measure: (sum, divided by)
    "log_frequency": ("log", "plain"),
    "expected_log_frequency": ("mass_log", "mass"),
    "frequency": ("share", "plain"),
    "entropy": ("entropy", "n"),
    "accuracy": ("right", "n"),
    "surprisal": ("surprisal", "n"),
    "special": ("special", "n"),
}
SHARES = ("accuracy", "special")


@dataclass(frozen=True)
class Unigram:
    """Frequencies of the vocabulary's types in a corpus.

    Attributes:
        counts: occurrences [type], 0 of special tokens and of rows of the vocabulary matrix that no token has.
        ordinary: bool [type], neither of those.
        smoothing: occurrences added to each ordinary type, so that each has a logarithm.
    """

    counts: np.ndarray
    ordinary: np.ndarray
    smoothing: float = 1.0

    @classmethod
    def of(cls, counts: "TokenCounts", *, n_rows: int, special: "Sequence[int]", smoothing: float = 1.0) -> "Unigram":
        """Of counted tokens, for a model whose vocabulary matrix has `n_rows` rows.

        Raises:
            BadInput: tokens that the model has no row for, or nothing counted.
        """
        beyond = counts.counts[n_rows:]
        if beyond.any():
            raise BadInput(
                f"{counts.source} counts {int((beyond > 0).sum()):,} tokens with ids from {n_rows:,} up, for which the model "
                f"has no row; count with this model's tokenizer"
            )
        found = np.zeros(n_rows, dtype=np.float64)
        known = min(n_rows, len(counts.counts))
        found[:known] = counts.counts[:known]
        ordinary = np.arange(n_rows) < known
        ordinary[[i for i in special if i < n_rows]] = False
        found[~ordinary] = 0
        if not found.any():
            raise BadInput(f"{counts.source} counts no ordinary token; give counts of a text")
        return cls(found, ordinary, smoothing)

    @property
    def probability(self) -> np.ndarray:
        """(count + smoothing) / their sum over ordinary types [type]; 0 elsewhere."""
        added = np.where(self.ordinary, self.counts + self.smoothing, 0.0)
        return added / added.sum()

    @property
    def added(self) -> float:
        """Share of `probability` that is smoothing, in [0, 1]."""
        extra = self.smoothing * float(self.ordinary.sum())
        return extra / (float(self.counts.sum()) + extra)

    @property
    def log(self) -> np.ndarray:
        """ln of it, nats [type]; 0 where there is none."""
        return np.log(np.where(self.ordinary, self.probability, 1.0))

    @property
    def share(self) -> np.ndarray:
        """count / all counts [type], not smoothed."""
        return self.counts / self.counts.sum()

    def curve(self, said: np.ndarray) -> Curve:
        """How `said` [type] spreads over ordinary types."""
        said = np.where(self.ordinary, said, 0.0)
        total = max(said.sum(), 1e-300)
        n_types = int(self.ordinary.sum())
        ranks = np.unique(np.geomspace(1, n_types, min(POINTS, n_types)).round().astype(np.int64))
        by_said = np.sort(said)[::-1] / total
        # Of types as frequent as one another, the one with the smaller id is first.
        by_corpus = np.argsort(-np.where(self.ordinary, self.counts, -1.0), kind="stable")
        covered = np.cumsum(said[by_corpus]) / total
        return Curve(ranks, by_said[ranks - 1], covered[ranks - 1])


def slopes(said: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """Least-squares slope of ln said [row, type] on ln corpus [type], over types where both are above 0; NaN of fewer than 3.

    Macocco et al. (2025) take it of counts of predicted tokens. 1: as often as in the corpus; above: frequent ones more.
    """
    there = (said > 0) & (corpus > 0)
    x = np.log(np.where(corpus > 0, corpus, 1.0))
    x = x - x.mean()
    y = np.log(np.where(there, said, 1.0))
    n = there.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = (there @ x) / n, y.sum(1) / n
        spread = there @ x**2 - n * mean_x**2
        found = (y @ x - n * mean_x * mean_y) / spread
    return np.where((n >= FEWEST) & (spread > 1e-12 * n), found, np.nan)


def spearmans(said: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """Spearman's correlation of said [row, type] and corpus [type] over the same types, in [-1, 1]; NaN of fewer than 3."""
    found = np.full(len(said), np.nan)
    for number, row in enumerate(said):
        there = (row > 0) & (corpus > 0)
        if there.sum() >= FEWEST:
            found[number] = spearman(row[there], corpus[there])
    return found


def divergences(mass: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(KL(predicted || corpus), KL(corpus || predicted)) [row], nats, of predicted mass [row, type] made a distribution.

    Types of probability 0 are left out of both. A millionth of the corpus' distribution is mixed into the predicted one: a
    probability that underflows costs at most 13.8 nats.
    """
    there = probability > 0
    corpus = probability[there]
    predicted = mass[:, there] / np.maximum(mass[:, there].sum(1, keepdims=True), 1e-300)
    predicted = (1 - FLOOR) * predicted + FLOOR * corpus
    ratio = np.log(predicted / corpus)  # [row, type]
    return (predicted * ratio).sum(1), -(ratio @ corpus)


@dataclass(frozen=True)
class Scale:
    """A `Unigram` on the model's device, float32 [type] each: ln probability, share of the corpus, 1 for ordinary types."""

    log: "Tensor"
    share: "Tensor"
    ordinary: "Tensor"

    @classmethod
    def of(cls, unigram: Unigram, device: Any) -> "Scale":
        """See above."""
        import torch

        columns = (unigram.log, unigram.share, unigram.ordinary)
        return cls(*(torch.from_numpy(np.asarray(one, dtype=np.float32)).to(device) for one in columns))


class Tally:
    """What one condition's predictions come to.

    Attributes:
        sums: float64 [text, sum], see `SUMS`.
        said: how often each type is the likeliest, int64 [group, type]. mass: probabilities, float64 [group, type].
    """

    def __init__(self, scale: Scale, *, n_texts: int, n_groups: int):
        n_types = len(scale.log)
        self.scale, self.n_texts = scale, n_texts
        self.sums = np.zeros((n_texts, len(SUMS)))
        self.said = np.zeros((n_groups, n_types), dtype=np.int64)
        self.mass = np.zeros((n_groups, n_types))

    def add(self, logits: "Tensor", targets: "Tensor", text: np.ndarray) -> None:
        """Add logits [position, type], the text's own tokens, and of which text they are.

        Raises:
            BadInput: logits that are not finite.
        """
        import torch

        if not bool(torch.isfinite(logits).all()):
            raise BadInput(f"logits are NaN or infinite, intact or with dimensions off; {USE_FLOAT32}")
        scale = self.scale
        log = logits.log_softmax(-1)
        probability = log.exp()
        best = log.argmax(-1)
        plain = scale.ordinary[best]
        columns = {
            "n": torch.ones_like(plain),
            "right": (best == targets).float(),
            "surprisal": -log.gather(1, targets[:, None])[:, 0],
            "entropy": -(probability * log).sum(-1),
            "special": 1 - plain,
            "plain": plain,
            "log": scale.log[best],
            "share": scale.share[best],
            "mass": probability @ scale.ordinary,
            "mass_log": probability @ scale.log,
        }
        found = torch.stack([columns[name] for name in SUMS], dim=1).cpu().double().numpy()
        np.add.at(self.sums, text, found)
        ids = best.cpu().numpy()
        group = text * len(self.said) // self.n_texts
        np.add.at(self.said, (group, ids), 1)
        for one in np.unique(group):
            mine = torch.from_numpy(np.flatnonzero(group == one)).to(logits.device)
            self.mass[one] += probability.index_select(0, mine).sum(0).cpu().double().numpy()

    def column(self, name: str) -> np.ndarray:
        """One of `SUMS` [text]."""
        return self.sums[:, SUMS.index(name)]

    def values(self, unigram: Unigram) -> dict[str, float]:
        """{measure: number} over all texts; NaN where there is nothing to divide by."""
        total = dict(zip(SUMS, self.sums.sum(0).tolist(), strict=True))
        found = {
            name: total[above] / total[below] if total[below] > 0 else float("nan")
            for name, (above, below) in RATIOS.items()
        }
        for name, (table, kept, measure) in _measures(unigram).items():
            rows = getattr(self, table).sum(0, keepdims=True)[:, kept].astype(np.float64)
            found[name] = float(measure(rows)[0])
        return found


def change(
    intact: Tally, ablated: Tally, unigram: Unigram, *, n_draws: int, seed: int
) -> dict[str, tuple[float, float, float]]:
    """{measure: (ablated − intact, low, high)}, 95 % intervals, paired; NaN of one text, or where there is no number.

    Means over positions: BCa bootstrap over texts. What the whole vocabulary decides: jackknife over groups of texts, since a
    bootstrap repeats texts, whose fewer types would look like another distribution.
    """
    before, after = intact.values(unigram), ablated.values(unigram)
    found = {name: (after[name] - before[name], *_drawn(name, intact, ablated, n_draws, seed)) for name in RATIOS}
    for name, (table, kept, measure) in _measures(unigram).items():
        without = [_left_out(getattr(tally, table)[:, kept], measure) for tally in (intact, ablated)]
        moved = after[name] - before[name]
        reach = critical(max(1, len(without[0]) - 1)) * jackknife_error(without[1] - without[0])
        found[name] = (moved, moved - reach, moved + reach)
    return found


def _drawn(name: str, intact: Tally, ablated: Tally, n_draws: int, seed: int) -> tuple[float, float]:
    above, below = RATIOS[name]
    nothing = not (intact.column(below).any() and ablated.column(below).any())  # special tokens alone, in all texts
    if intact.n_texts < 2 or nothing:
        return float("nan"), float("nan")
    if name in SHARES:
        one, other = (tally.column(above) / tally.column(below) for tally in (intact, ablated))
        return paired_interval(one, other, seed=seed, weights=intact.column(below), n_draws=n_draws)
    adds = np.stack([tally.column(sums) for tally in (intact, ablated) for sums in (above, below)], axis=1)

    def ratio_change(sums: np.ndarray) -> np.ndarray:
        return np.asarray(ratio(sums[:, 2], sums[:, 3]) - ratio(sums[:, 0], sums[:, 1]))

    value = Sums(adds, np.ones(len(adds), dtype=np.int64), ratio_change)
    return bca(value, seed=seed, level=0.95, n_draws=n_draws)


def _left_out(table: np.ndarray, measure: Measure) -> np.ndarray:
    """The measure without each group in turn [group]; one at a time, for a vocabulary is long."""
    whole = table.sum(0)
    return np.array([float(measure((whole - one)[None].astype(np.float64))[0]) for one in table])


def _measures(unigram: Unigram) -> dict[str, tuple[str, np.ndarray, Measure]]:
    """{measure: (table of a Tally, its columns, from rows of them)} of what the whole vocabulary decides."""
    counted = np.flatnonzero(unigram.ordinary & (unigram.counts > 0))
    ordinary = np.flatnonzero(unigram.ordinary)
    corpus, probability = unigram.counts[counted], unigram.probability[ordinary]
    return {
        "slope": ("said", counted, lambda rows: slopes(rows, corpus)),
        "spearman": ("said", counted, lambda rows: spearmans(rows, corpus)),
        "slope_expected": ("mass", counted, lambda rows: slopes(rows, corpus)),
        "spearman_expected": ("mass", counted, lambda rows: spearmans(rows, corpus)),
        "kl_to_unigram": ("mass", ordinary, lambda rows: divergences(rows, probability)[0]),
        "kl_from_unigram": ("mass", ordinary, lambda rows: divergences(rows, probability)[1]),
    }
