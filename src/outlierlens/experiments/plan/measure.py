"""The run: order all entries by a cheap estimate, choose on one half of the texts, judge on the other.

    loaded = load_model("smollm2-135m")
    found = plan(loaded, read_texts("excerpt", limit=64), PlanOptions())
    found.verdict, found.kept

The texts are split at random by the seed: a quarter nominates, a quarter confirms (`search`), a half judges the plan beside
random choices of the same sizes and the tools' own rules.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.ablation.study import Progress, Study
from outlierlens.analyses.quantize_places import Place, find_places
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.analyses.range import key_biases
from outlierlens.checkpoints.live import LiveCheckpoint
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput
from outlierlens.experiments.plan.cheap import cheap
from outlierlens.experiments.plan.entries import Candidate, dimension, every_entry, ordered
from outlierlens.experiments.plan.exports import check_export, own_scheme, target_of, write_export
from outlierlens.experiments.plan.kept import KeptLinear, merged, n_kept
from outlierlens.experiments.plan.mixed import FINE, Mixed, mixed
from outlierlens.experiments.plan.options import PlanCall, PlanOptions
from outlierlens.experiments.plan.result import Difference, Entry, Judged, Kind, PrecisionPlan, Sensitivity, Step, What
from outlierlens.experiments.plan.search import WORTH, Chosen, Gain, Group, Search, Trial
from outlierlens.experiments.sweep.prefix import Prefixes, resumed
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel
from outlierlens.results.safe_files import check_file
from outlierlens.session import Session
from outlierlens.statistics.means import FEWEST_TEXTS, mean_interval, ratio_interval
from outlierlens.statistics.p_values import rank_p
from outlierlens.tasks.base import values_of, weighted_mean
from outlierlens.tasks.choice import make_task

ESTIMATING = 8  # texts of the pass with gradients
BITS = {"int8": 8, "e4m3": 8, "e5m2": 8, "int4": 4}
BOTH: tuple[What, ...] = ("weights", "inputs")


def plan(
    loaded: LoadedModel,
    texts: Data,
    options: PlanOptions | None = None,
    *,
    rows: Path | None = None,
    progress: Progress | None = None,
) -> PrecisionPlan:
    """Choose what stays in higher precision, and judge it on texts that had no part in the choice; the model is left as it was.

    With `rows`, what is measured is appended to that file, and what is found there is not measured again.

    Raises:
        BadInput: fewer than four texts, a scheme that does not fit the weights, a budget that holds nothing.
    """
    options = options or PlanOptions()
    study = _Study(loaded, texts, options, progress, rows)
    rounding = mixed(loaded, study.places, study.recipe, bits=options.bits, stack=study.stack.name)
    with study.study, rounding as model:
        study.model = model
        study.announce()
        cost = study.cost()
        search = study.search(max(options.tolerance, WORTH * cost.value))
        chosen = search.run(study.order) if cost.low > 0 else Chosen((), None, {})
        return study.result(texts, cost, chosen, search.floor)


def run(session: Session, options: PlanCall) -> PrecisionPlan:
    """The experiment, as the command runs it; with --for it is written for that tool too, once the result is kept."""
    check_file(options.to, replace=session.output.overwrite)
    texts, _ = session.texts()
    tool, path = options.tool, options.to
    if tool is None or path is None:
        return plan(session.loaded, texts, options, rows=session.rows.rows, progress=session.progress)
    target = target_of(session.loaded, options.stack)
    scheme = options.scheme or own_scheme(tool, session.loaded, options.stack)
    options = replace(options, scheme=scheme, grain="linear")
    check_export(tool, scheme=parse(options.rounding), target=target)
    found = plan(session.loaded, texts, options, rows=session.rows.rows, progress=session.progress)
    session.then = partial(write_export, path, tool, found, target, session.notice)
    return found


@dataclass(frozen=True)
class _Split:
    """Which texts of the task do what, [text] each."""

    nominating: tuple[int, ...]
    confirming: tuple[int, ...]
    judging: tuple[int, ...]

    @classmethod
    def of(cls, n: int, seed: int) -> "_Split":
        """A quarter, a quarter and a half of `n` texts in random order."""
        order = np.random.default_rng([seed, n]).permutation(n).tolist()
        quarter, half = n // 4, n // 2
        return cls(tuple(order[:quarter]), tuple(order[quarter:half]), tuple(order[half:]))


class _Study:
    """A model, its task, its linears, and the values of texts in every setting."""

    def __init__(
        self,
        loaded: LoadedModel,
        texts: Data,
        options: PlanOptions,
        progress: Progress | None = None,
        rows: Path | None = None,
    ):
        self.loaded, self.options = loaded, options
        self._progress, self._told = progress or (lambda *_: None), 0
        self.stack = loaded.stack(options.stack)
        self.recipe = parse(options.rounding)
        if options.bits == 8 and self.recipe.name == FINE.name:
            raise BadInput(f"--bits 8 keeps what {FINE.name} keeps: nothing beside --scheme {FINE.name}; leave it out")
        task = replace(options.task, seed=options.seed, max_length=row_limit(loaded, texts, options.task.max_length))
        if loaded.head == "none" and task.name == "auto" and texts.plural == "texts":
            task = replace(task, name="sentence change")
        self.task_options = task
        self.task = make_task(loaded, texts, task)
        if self.task.n_texts < 4:
            raise BadInput(
                f"{texts.source}: {self.task.n_texts} texts; a plan needs four at least, and 64 to be sure of it"
            )
        identity = {
            "task": asdict(task), "scheme": self.recipe.name, "bits": options.bits, "grain": options.unit,
            "stack": self.stack.name, "seed": options.seed,
        }  # fmt: skip
        self.report("intact")
        self.study = Study(loaded, self.task, texts, identity, rows=rows)
        self.intact, self.weights = self.study.intact.values, self.study.weights
        self.split = _Split.of(self.task.n_texts, options.seed)
        self.report("estimating")
        places = find_places(loaded, self.stack.name)
        self.estimating = self.split.nominating[:ESTIMATING]
        self.seen = cheap(loaded, self.task, places, self.recipe, self.estimating, stack=self.stack.name)
        reached = {name for name, _ in self.seen}
        self.places: tuple[Place, ...] = tuple(place for place in places if place.name in reached)
        self.shapes: dict[str, tuple[int, int]] = {place.name: tuple(place.weight().shape) for place in self.places}  # type: ignore[misc]
        self.n_weights = sum(math.prod(shape) for shape in self.shapes.values())
        last = {f"{block}.{module}" for block in self.stack.blocks for module in self.stack.stack.last_linear}
        self.last = [place for place in self.places if place.name in last]
        self.entries = every_entry(self.places, self.last, self.seen, grain=options.unit, bits=options.bits)
        self.order = ordered(self.entries, self.shapes)
        self.room = math.floor(options.keep * self.n_weights)
        least = min(self.price(frozenset({entry})) for entry in self.entries)
        if least > self.room:
            raise BadInput(
                f"{loaded.name}: {options.keep:.3g} of the weights hold no entry; give --keep "
                f"{math.ceil(1000 * least / self.n_weights) / 10:g}% or more"
            )
        self.model: Mixed
        self._measured: dict[str, int] = {}  # texts of every key
        self._values: dict[str, np.ndarray] = {}
        layer = {place.name: place.layer for place in self.places}
        self._first = {entry: min(layer[part.path] for part in one.parts) for entry, one in self.entries.items()}
        self._states = Prefixes(loaded, self.stack, self.task, [first - 1 for first in self._first.values()])

    def report(self, what: str) -> None:
        """Tell what begins; how much there is in all is not known."""
        self._progress(what, self._told, 0)
        self._told += 1

    # --- values ------------------------------------------------------------------------------------------------------

    def kept(self, entries: Iterable[Entry]) -> dict[str, KeptLinear]:
        """What stays of each linear."""
        return merged(part for entry in entries for part in self.entries[entry].parts)

    def price(self, entries: frozenset[Entry]) -> int:
        """Weights that stay with these entries."""
        return n_kept(self.kept(entries), self.shapes)

    def values(self, kept: frozenset[Entry], texts: Sequence[int], label: str, more: Entry | None = None) -> np.ndarray:
        """The value of each of these texts [text] with `kept` and `more` kept; `label` says in row files which they are."""
        both = kept if more is None else kept | {more}
        key = f"{label} {' '.join(f'{name}:{what}' for name, what in sorted(both)) or 'nothing'}"
        self._measured[key] = len(texts)
        if key not in self._values:
            row = self.study.kept(key, lambda: {"per_text": self._run(kept, more, texts).tolist()})
            self._values[key] = np.array(row["per_text"])
        return self._values[key]

    def _run(self, kept: frozenset[Entry], more: Entry | None, texts: Sequence[int]) -> np.ndarray:
        behind, both = None, kept
        if more is not None:
            both = kept | {more}
            behind = self._states.behind(self._first[more] - 1, texts, kept, lambda: self.model.keep(self.kept(kept)))
        self.model.keep(self.kept(both))

        def begun(_: int, feed: Any) -> AbstractContextManager[None]:
            return resumed(self.loaded.model, self.stack, behind, feed.slots) if behind else nullcontext()

        return values_of(self.task, self.task.feeds(list(texts)), self.weights[list(texts)], begun)

    def score(self, kept: frozenset[Entry], more: Entry | None, group: Group, begin: int, end: int) -> np.ndarray:
        """See `search.Score`."""
        texts = self.split.nominating if group == "nominating" else self.split.confirming
        return self.values(kept, texts[begin:end], f"{group} {begin}-{end}", more)

    def cost(self) -> Difference:
        """What rounding everything costs on the confirming texts."""
        self.report("all rounded")
        texts = list(self.split.confirming)
        return self._mean(self.values(frozenset(), texts, f"confirming 0-{len(texts)}") - self.intact[texts], texts)

    def announce(self) -> None:
        """Say how long it takes at most: choosing the first entry, judging, and each further entry."""
        options, n_texts = self.options, self.task.n_texts
        candidates = len(self.entries) if options.exact else min(options.n_candidates, len(self.entries))
        choosing = ((1 + candidates) * len(self.split.nominating) + 2 * len(self.split.confirming)) / n_texts
        judging = (2 + options.n_random + len(self._rules())) * len(self.split.judging) / n_texts
        self.study.announce(["plan"], share=choosing + judging, most=True)
        further = choosing + len(self.split.judging) / n_texts
        self.loaded.notice(
            f"{self.loaded.name}: each entry after the first reads them {further:,.0f} times more at most"
        )

    def search(self, floor: float) -> Search:
        """The search over this model; an entry has to give back more than `floor`."""
        groups: dict[Group, tuple[int, ...]] = {
            "nominating": self.split.nominating,
            "confirming": self.split.confirming,
        }
        return Search(
            self.score,
            {group: self.weights[list(texts)] for group, texts in groups.items()},
            self.price,
            self.room,
            floor,
            self.options.n_candidates,
            self.options.exact,
            self.report,
        )

    # --- judging -----------------------------------------------------------------------------------------------------

    def result(self, texts: Data, cost: Difference, chosen: Chosen, floor: float) -> PrecisionPlan:
        """Judge what was chosen, and say all of it."""
        options, task = self.options, self.task
        entries = [trial.entry for trial in chosen.steps]
        rounded = self.judged("all rounded", [])
        curve = tuple(self.judged(f"{n} kept", entries[:n]) for n in range(1, len(entries) + 1))
        drawn = self._random(entries)
        random = tuple(self.judged("random", kept) for kept in drawn)
        rules = tuple(self.judged(label, kept) for label, kept in self._rules().items())
        intact = self._judged("intact", [], self.intact[list(self.split.judging)])
        judging = list(self.split.judging)
        plain, best = self.judging([]), self.judging(entries)
        beyond, p = None, None
        if random:
            beyond = self._mean(np.mean([self.judging(kept) for kept in drawn], axis=0) - best, judging)
            given_back = -np.nan_to_num([one.value for one in (*curve[-1:], *random)], nan=np.inf, posinf=np.inf)
            p = rank_p(given_back[0], given_back[1:])
        weights = self.weights[judging]
        above, below = (plain - best) * weights, (plain - self.intact[judging]) * weights
        share = Difference(float(above.sum() / below.sum()) if below.sum() else math.nan, *ratio_interval(above, below))
        live = LiveCheckpoint(self.loaded.model, name=self.loaded.name, config=self.loaded.config)
        known = {one: self._sensitivity(one, rank, chosen.first.get(one)) for rank, one in enumerate(self.order, 1)}
        return PrecisionPlan(
            provenance=self.loaded.provenance(seed=options.seed, digest=self.study.fingerprint), data=texts.source,
            data_digest=texts.digest, task=task.name, unit=task.unit, stack=self.stack.name, scheme=self.recipe.name,
            bits=options.bits, budget=options.keep, grain=options.unit, n_linears=len(self.places),
            n_weights=self.n_weights, exact=options.exact, n_nominating=len(self.split.nominating),
            n_confirming=len(self.split.confirming), n_judging=len(judging), n_estimating=len(self.estimating),
            max_length=self.task_options.max_length, intact=intact, rounded=rounded, curve=curve, random=random,
            rules=rules, steps=tuple(_step(trial, known) for trial in chosen.steps),
            kept=tuple(self.kept(entries).values()),
            refused=None if chosen.refused is None else _step(chosen.refused, known), cost=cost, floor=floor,
            regained=self._mean(plain - best, judging), share_regained=share, beyond_random=beyond, p=p,
            sensitivities=tuple(known.values()), keys=tuple(one for one in key_biases(live) if one.alarm),
            evaluations=task.n_texts + len(self.estimating) + sum(self._measured.values()),
            notes=tuple(dict.fromkeys((*self.loaded.notes, *task.notes, *self._notes()))),
        )  # fmt: skip

    def judged(self, label: str, kept: Sequence[Entry]) -> Judged:
        """A setting on the judging texts."""
        self.report(label)
        return self._judged(label, kept, self.judging(kept))

    def judging(self, kept: Sequence[Entry]) -> np.ndarray:
        """The value of each judging text [text] with these kept; what was measured once is not measured again."""
        return self.values(frozenset(kept), self.split.judging, "judging")

    def _judged(self, label: str, kept: Sequence[Entry], values: np.ndarray) -> Judged:
        judging = list(self.split.judging)
        weights = self.weights[judging]
        n_weights = self.price(frozenset(kept))
        with np.errstate(invalid="ignore"):
            change = self._mean(values - self.intact[judging], judging)
        low, high = mean_interval(values, weights)
        stored = self.recipe.weights
        more = self.options.bits - BITS[stored.number] if stored else 0
        return Judged(
            label=label,
            n_linears=len(self.kept(kept)),
            n_weights=n_weights,
            share=n_weights / self.n_weights,
            n_bytes=n_weights * more // 8,
            value=weighted_mean(values, weights),
            low=low,
            high=high,
            change=change.value,
            change_low=change.low,
            change_high=change.high,
        )

    def _mean(self, values: np.ndarray, texts: Sequence[int]) -> Difference:
        weights = self.weights[list(texts)]
        return Difference(weighted_mean(values, weights), *mean_interval(values, weights))

    def _random(self, entries: Sequence[Entry]) -> list[list[Entry]]:
        """For each draw a random entry in place of each: a linear of the same size, weights and inputs; a neuron of the same
        block; a dimension; as many columns of the same linears."""
        return [self._draw(entries, number) for number in range(self.options.n_random if entries else 0)]

    def _draw(self, entries: Sequence[Entry], number: int) -> list[Entry]:
        random = np.random.default_rng([self.options.seed, number])
        names = list(dict.fromkeys(name for name, what in entries if what in BOTH))
        drawn: list[str] = []
        for shape in dict.fromkeys(math.prod(self.shapes[name]) for name in names):
            alike = [name for name, one in self.shapes.items() if math.prod(one) == shape]
            count = sum(math.prod(self.shapes[name]) == shape for name in names)
            drawn += [alike[place] for place in sorted(random.choice(len(alike), count, replace=False).tolist())]
        found = self._both(drawn)
        for name, what in entries:
            if what in BOTH:
                continue
            parts = self.entries[name, what].parts
            if what == "dimension":
                width = next(self.shapes[one.path][1 if one.columns else 0] for one in parts)
                parts = dimension(self.places, int(random.integers(width)))
            else:
                parts = tuple(replace(one, columns=self._columns(one, random)) for one in parts)
            entry = (f"{name} random {number}", what)
            self.entries[entry] = replace(self.entries[name, what], parts=parts)
            found.append(entry)
        return found

    def _columns(self, one: KeptLinear, random: np.random.Generator) -> tuple[int, ...]:
        n_inputs = self.shapes[one.path][1]
        return tuple(sorted(random.choice(n_inputs, len(one.columns), replace=False).tolist()))

    def _rules(self) -> dict[str, list[Entry]]:
        """What tools keep by rule, and what the cheap ordering alone would keep (of linears weights and inputs)."""
        ends = {0, self.stack.n_layers - 1}
        filled: list[Entry] = []
        for name, what in self.order:
            more = [*filled, *(self._both([name]) if what in BOTH else [(name, what)])]
            if self.price(frozenset(more)) <= self.room:
                filled = more
        found = {"first and last block": self._both(place.name for place in self.places if place.layer in ends)}
        if self.last:
            parts = dict.fromkeys(place.part for place in self.last)
            found[f"every {' and '.join(parts)}"] = self._both(place.name for place in self.last)
        return found | {"cheap ordering alone": filled}

    def _both(self, names: Iterable[str]) -> list[Entry]:
        return [(name, what) for name in names for what in BOTH if (name, what) in self.seen]

    def _sensitivity(self, entry: Entry, rank: int, gain: Gain | None) -> Sensitivity:
        one: Candidate = self.entries[entry]
        path, column, row = one.at
        place = next(place for place in self.places if place.name == path)
        kind: Kind = "dimension" if place.reads else "neuron" if place in self.last else "input"
        found = Sensitivity(
            path=entry[0], layer=place.layer, part=place.part, what=entry[1], n_weights=self.price(frozenset({entry})),
            rank=rank, estimate=brief(one.promise), ratio=brief(one.ratio), column=column, row=row, kind=kind,
            error=brief(one.error),
        )  # fmt: skip
        return found if gain is None else replace(
            found, gain=gain.value, low=gain.low, high=gain.high, n_texts=gain.n_texts
        )  # fmt: skip

    def _notes(self) -> list[str]:
        found = []
        if len(self.split.confirming) < FEWEST_TEXTS:
            found.append(
                f"{len(self.split.confirming)} texts confirm, and below {FEWEST_TEXTS} no interval is settled: nothing can be "
                f"named; give --limit {4 * FEWEST_TEXTS} or more"
            )
        kinds = {str(place.weight().dtype).removeprefix("torch.") for place in self.places}
        if kinds - {"float32", "float64"}:
            found.append(
                f"weights and inputs are {', '.join(sorted(kinds))}: what is rounded is rounded to that once more; "
                f"--dtype float32 avoids it"
            )
        return found


def brief(value: float) -> float:
    """Four digits of what orders entries: no more are known, and a file has hundreds."""
    return float(f"{value:.4g}")


def _step(trial: Trial, known: dict[Entry, Sensitivity]) -> Step:
    gain = Difference(trial.value, trial.low, trial.high)
    return Step(known[trial.entry], trial.nominated.value, trial.nominated.n_texts, gain, trial.n_weights)
