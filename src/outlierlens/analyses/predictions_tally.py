"""What a model predicts at the positions of its input, and what is kept of it: sums by text, counts and probabilities by type.

    unigram = Unigram.of(counts, n_rows=30522, special=tokenizer.all_special_ids)
    task = INPUTS["unmasked"](loaded, texts, TaskOptions(max_length=128), unigram)
    task.per_text()                                # the loss of every text, as of any task; what is predicted is tallied
    task.tally.values()                            # {measure: number} of all texts
    change(intact.details(), task.tally.details(), n_draws=1000, seed=0)     # {measure: Estimate}

masked     15 % of the ordinary tokens are predicted, masked as for the masked loss
unmasked   every ordinary token is predicted from the text as it stands, itself included (Puccetti et al. 2022)
next       every token but the first is predicted from those before it

Nothing of the size text × vocabulary is kept: argmaxes and mean distributions are held for at most 32 groups of neighbouring
texts, and intervals of what they decide leave out those groups in turn.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import weight_of
from outlierlens.data.token_texts import special_ids
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.forward import text_reader
from outlierlens.models.hooks import edited_output, head_inputs, head_only_at
from outlierlens.models.inputs import token_ids
from outlierlens.models.load import LoadedModel
from outlierlens.results.rows import Estimate
from outlierlens.statistics.bootstrap import Sums, bca, jackknife_error
from outlierlens.statistics.means import critical
from outlierlens.statistics.ranks import ratio, spearman
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.language_model import CausalLoss, LanguageModelLoss, MaskedLoss, PredictionRows, Window
from outlierlens.tasks.metrics import paired_interval

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.data.token_counts import TokenCounts

LOGIT_BYTES = 64_000_000  # of logits at once
FEWEST = 3  # types that a slope or a rank correlation needs
FLOOR = 1e-6  # share of the corpus' distribution mixed into a predicted one, whose logarithm must exist
POINTS = 60  # of a curve
GROUPS = 32
TOP = 5  # predicted tokens named
Measure = Callable[[np.ndarray], np.ndarray]  # rows [row, type] -> [row]
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

    @cached_property
    def probability(self) -> np.ndarray:
        """(count + smoothing) / their sum over ordinary types [type]; 0 elsewhere."""
        added = np.where(self.ordinary, self.counts + self.smoothing, 0.0)
        return added / added.sum()

    @property
    def added(self) -> float:
        """Share of `probability` that is smoothing, in [0, 1]."""
        extra = self.smoothing * float(self.ordinary.sum())
        return extra / (float(self.counts.sum()) + extra)

    @cached_property
    def log(self) -> np.ndarray:
        """ln of it, nats [type]; 0 where there is none."""
        return np.log(np.where(self.ordinary, self.probability, 1.0))

    @property
    def share(self) -> np.ndarray:
        """count / all counts [type], not smoothed."""
        return self.counts / self.counts.sum()

    @property
    def ranks(self) -> np.ndarray:
        """Ranks of types at which curves are told, 1 is first, int [point]."""
        n_types = int(self.ordinary.sum())
        return np.unique(np.geomspace(1, n_types, min(POINTS, n_types)).round().astype(np.int64))

    def covered(self, said: np.ndarray) -> list[float]:
        """Share of what is `said` [type] that is among so many of the corpus' most frequent types, at `ranks` [point]."""
        said = np.where(self.ordinary, said, 0.0)
        # Of types as frequent as one another, the one with the smaller id is first.
        by_corpus = np.argsort(-np.where(self.ordinary, self.counts, -1.0), kind="stable")
        found: list[float] = (np.cumsum(said[by_corpus]) / max(said.sum(), 1e-300))[self.ranks - 1].tolist()
        return found

    @cached_property
    def measures(self) -> dict[str, tuple[str, np.ndarray, Measure]]:
        """{measure: (table of a `PredictionTally`, its columns, from rows of them)} of what the whole vocabulary decides."""
        counted, ordinary = np.flatnonzero(self.ordinary & (self.counts > 0)), np.flatnonzero(self.ordinary)
        corpus, probability = self.counts[counted], self.probability[ordinary]
        return {
            "slope": ("said", counted, lambda rows: slopes(rows, corpus)),
            "spearman": ("said", counted, lambda rows: spearmans(rows, corpus)),
            "slope_expected": ("mass", counted, lambda rows: slopes(rows, corpus)),
            "spearman_expected": ("mass", counted, lambda rows: spearmans(rows, corpus)),
            "kl_to_unigram": ("mass", ordinary, lambda rows: divergences(rows, probability)[0]),
            "kl_from_unigram": ("mass", ordinary, lambda rows: divergences(rows, probability)[1]),
        }


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


class PredictionTally:
    """What one condition's predictions come to.

    Attributes:
        sums: float64 [text, sum], see `SUMS`.
        said: how often each type is the likeliest, int64 [group, type]. mass: probabilities, float64 [group, type].
    """

    def __init__(self, unigram: Unigram, device: Any, *, n_texts: int):
        import torch

        self.unigram, self.n_texts = unigram, n_texts
        self.log, self.share, self.ordinary = (
            torch.from_numpy(np.asarray(one, dtype=np.float32)).to(device)
            for one in (unigram.log, unigram.share, unigram.ordinary)
        )
        self.sums = np.zeros((n_texts, len(SUMS)))
        self.said = np.zeros((min(GROUPS, n_texts), len(unigram.counts)), dtype=np.int64)
        self.mass = np.zeros(self.said.shape)

    def add(self, logits: "Tensor", targets: "Tensor", text: np.ndarray) -> None:
        """Add logits [position, type], the text's own tokens, and of which text they are.

        Raises:
            BadInput: logits that are not finite.
        """
        import torch

        if not bool(torch.isfinite(logits).all()):
            raise BadInput(f"logits are NaN or infinite, intact or with dimensions ablated; {USE_FLOAT32}")
        log = logits.log_softmax(-1)
        probability = log.exp()
        best = log.argmax(-1)
        plain = self.ordinary[best]
        columns = {
            "n": torch.ones_like(plain),
            "right": (best == targets).float(),
            "surprisal": -log.gather(1, targets[:, None])[:, 0],
            "entropy": -(probability * log).sum(-1),
            "special": 1 - plain,
            "plain": plain,
            "log": self.log[best],
            "share": self.share[best],
            "mass": probability @ self.ordinary,
            "mass_log": probability @ self.log,
        }
        found = torch.stack([columns[name] for name in SUMS], dim=1).cpu().double().numpy()
        np.add.at(self.sums, text, found)
        ids = best.cpu().numpy()
        group = text * len(self.said) // self.n_texts
        np.add.at(self.said, (group, ids), 1)
        for one in np.unique(group):
            mine = torch.from_numpy(np.flatnonzero(group == one)).to(logits.device)
            self.mass[one] += probability.index_select(0, mine).sum(0).cpu().double().numpy()

    def values(self) -> dict[str, float]:
        """{measure: number} over all texts; NaN where there is nothing to divide by."""
        total = dict(zip(SUMS, self.sums.sum(0).tolist(), strict=True))
        found = {
            name: total[above] / total[below] if total[below] > 0 else float("nan")
            for name, (above, below) in RATIOS.items()
        }
        for name, (table, kept, measure) in self.unigram.measures.items():
            rows = getattr(self, table).sum(0, keepdims=True)[:, kept].astype(np.float64)
            found[name] = float(measure(rows)[0])
        return found

    def details(self) -> dict[str, Any]:
        """What intervals, curves and words are made of, plain data; "left": {measure: it without each group in turn}."""
        said = self.said.sum(0)
        left = {
            name: _left_out(getattr(self, table)[:, kept], measure)
            for name, (table, kept, measure) in self.unigram.measures.items()
        }
        top = [int(i) for i in np.argsort(-said, kind="stable")[:TOP] if said[i]]
        return {
            "values": self.values(), "sums": self.sums.tolist(), "left": left, "n_types": int((said > 0).sum()),
            "covered": self.unigram.covered(said.astype(np.float64)),
            "top": [[i, float(said[i] / said.sum())] for i in top],
        }  # fmt: skip


def change(intact: Mapping[str, Any], ablated: Mapping[str, Any], *, n_draws: int, seed: int) -> dict[str, Estimate]:
    """{measure: ablated − intact} of two `details`, paired; no interval of one text, or where there is no number.

    Means over positions: BCa bootstrap over texts. What the whole vocabulary decides: jackknife over groups of texts, since a
    bootstrap repeats texts, whose fewer types would look like another distribution.
    """
    before, after = (dict(zip(SUMS, np.array(one["sums"]).T, strict=True)) for one in (intact, ablated))
    moved = {name: value - intact["values"][name] for name, value in ablated["values"].items()}
    found = {name: Estimate(moved[name], *_drawn(name, before, after, n_draws, seed)) for name in RATIOS}
    for name, left in ablated["left"].items():
        error = jackknife_error(np.array(left) - np.array(intact["left"][name]))
        reach = critical(max(1, len(left) - 1)) * error
        found[name] = Estimate(moved[name], moved[name] - reach, moved[name] + reach)
    return found


def _drawn(
    name: str, intact: Mapping[str, np.ndarray], ablated: Mapping[str, np.ndarray], n_draws: int, seed: int
) -> tuple[float, float]:
    above, below = RATIOS[name]
    nothing = not (intact[below].any() and ablated[below].any())  # special tokens alone, in all texts
    if len(intact[below]) < 2 or nothing:
        return float("nan"), float("nan")
    if name in SHARES:
        one, other = (sums[above] / sums[below] for sums in (intact, ablated))
        return paired_interval(one, other, seed=seed, weights=intact[below], n_draws=n_draws)
    adds = np.stack([sums[column] for sums in (intact, ablated) for column in (above, below)], axis=1)

    def ratio_change(sums: np.ndarray) -> np.ndarray:
        return np.asarray(ratio(sums[:, 2], sums[:, 3]) - ratio(sums[:, 0], sums[:, 1]))

    value = Sums(adds, np.ones(len(adds), dtype=np.int64), ratio_change)
    return bca(value, seed=seed, level=0.95, n_draws=n_draws)


def _left_out(table: np.ndarray, measure: Measure) -> list[float]:
    """The measure without each group in turn [group]; one at a time, for a vocabulary is long."""
    whole = table.sum(0)
    return [float(measure((whole - one)[None].astype(np.float64))[0]) for one in table]


class TalliedLoss(LanguageModelLoss):
    """A language-model loss whose predictions are tallied while the texts are read."""

    def __init__(self, loaded: LoadedModel, texts: Sequence[str], options: TaskOptions, unigram: Unigram):
        super().__init__(loaded, texts, options)
        self.unigram = unigram
        self.tally = PredictionTally(unigram, loaded.device, n_texts=self.n_texts)

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean nats [text], predicted tokens [text]) of the model as it is now; `tally` is of the same passes."""
        import torch

        tally = PredictionTally(self.unigram, self.loaded.device, n_texts=self.n_texts)

        def read(feed: PredictionRows) -> None:
            text = np.array(feed.slots)[feed.positions[0].cpu().numpy()]
            for rows, logits in self._logits(feed):
                tally.add(logits, feed.targets[rows], text[rows])

        with torch.inference_mode():
            self.loaded.run(partial(read, feed) for feed in self._passes)
        self.tally = tally
        n, nats = (self.tally.sums[:, SUMS.index(name)] for name in ("n", "surprisal"))
        return nats / n, self.weights

    def also(self) -> dict[str, float]:
        """Every measure."""
        return self.tally.values()

    @cached_property
    def _passes(self) -> list[PredictionRows]:
        # Where logits are not the product alone, all of a pass are held at once.
        tokens = None if self._by_parts else max(int(self.lengths.max()), LOGIT_BYTES // (4 * len(self.head.weight)))
        return list(self.feeds(range(self.n_texts), tokens))

    def _logits(self, feed: PredictionRows) -> Iterator[tuple[slice, "Tensor"]]:
        """(which of the selected, their logits [some, vocabulary]): float32, a part at a time."""
        from torch.nn import functional

        model, head, whole = self.loaded.model, self.head, None
        if self._by_parts:
            states = head_inputs(model, feed.positions, lambda: self._run(feed))
        else:
            with head_only_at(model, feed.positions):
                states = whole = self._run(feed).logits
        with self.loaded.weights_of(head):
            weight, bias = weight_of(head), weight_of(head, "bias")
            size = max(1, LOGIT_BYTES // (4 * len(weight)))
            for start in range(0, len(states), size):
                part = slice(start, min(len(states), start + size))
                logits = functional.linear(states[part], weight, bias) if whole is None else whole[part]
                yield part, logits.float()

    def reads_last_hidden(self) -> bool:
        """Whether what is multiplied with the vocabulary matrix is the last hidden state itself, tried on one text."""
        import torch

        feed = next(self.feeds([int(self.lengths.argmin())]))
        kept: list[Tensor] = []

        def keep(states: "Tensor") -> "Tensor":
            kept.append(states)
            return states

        model, reader = self.loaded.model, text_reader(self.loaded, self.loaded.stacks)
        with torch.inference_mode(), edited_output(model, reader, keep):
            read = head_inputs(model, feed.positions, lambda: self._run(feed))
        last = kept[-1][feed.positions]
        return last.shape == read.shape and torch.equal(last, read)

    @property
    def head(self) -> Any:
        """The linear that makes logits; its weight is [vocabulary, dim]."""
        return self.loaded.model.get_output_embeddings()  # type: ignore[operator]


class MaskedTally(TalliedLoss, MaskedLoss):
    """Masked tokens."""


class UnmaskedTally(TalliedLoss, MaskedLoss):
    """Every ordinary token, nothing masked."""

    def _windows(self, number: int, text: str) -> list[Window]:
        ids = token_ids(self.loaded, text, truncation=True, max_length=self.max_length)
        special = special_ids(self.loaded.tokenizer)
        ordinary = [i for i, token in enumerate(ids) if token not in special]
        return [Window(number, ids, ordinary, [ids[i] for i in ordinary])] if ordinary else []


class NextTally(TalliedLoss, CausalLoss):
    """Every token but a text's first, from those before it."""


INPUTS: dict[str, type[TalliedLoss]] = {"masked": MaskedTally, "unmasked": UnmaskedTally, "next": NextTally}
OF_HEAD = {"masked": ("masked", "unmasked"), "causal": ("next",)}
