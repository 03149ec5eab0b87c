"""What must stay in high precision when a model is rounded, and how surely.

    found = plan(load_model("smollm2-135m"), read_texts("excerpt", limit=64))
    found.verdict                    # "Keep 4 entries (3.3 % of the weights) in 16 bits: …"
    found.steps                      # what stays, in the order chosen, with what each gives back
    found.kept                       # (KeptLinear(path="model.layers.11.mlp.down_proj", inputs=True, …), …)
    found.share_regained             # of the cost, with its interval

The texts are split at random by the seed: a quarter nominates, a quarter confirms (`plan_search`), a half judges the plan
beside random choices of the same sizes and the tools' own rules.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from outlierlens.ablation.prefix import Prefixes, resumed
from outlierlens.ablation.study import Progress, Study
from outlierlens.analyses.plan_exports import TOOLS, export, own_scheme, target_of
from outlierlens.analyses.plan_search import BOTH, CheapPass, Entries, Entry, Group, PlanSearch, Trial, What, estimated
from outlierlens.analyses.quantize import says_of
from outlierlens.analyses.quantize_places import LinearPlace, cast_notes, find_places
from outlierlens.analyses.quantize_rounding import KeptLinear, Rounding, rounded
from outlierlens.analyses.quantize_schemes import FINE, parse
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput
from outlierlens.models.inputs import reaching, row_limit
from outlierlens.models.load import LoadedModel
from outlierlens.options import Flag, Flat, check, written_for
from outlierlens.results.document import Advice, fitted
from outlierlens.results.finding import Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import UNKNOWN, Draws, Estimate, More, Quiet, Row
from outlierlens.results.safe_files import check_file, write_text
from outlierlens.session import Session
from outlierlens.statistics.means import no_interval, ratio_interval
from outlierlens.statistics.ranks import rank_p
from outlierlens.tasks.base import TaskOptions, values_of
from outlierlens.tasks.choice import make_task, vector_task
from outlierlens.view.pictures import Strips
from outlierlens.view.section import Change, Count, FineShare, Rows, cell_text, percent

Grain = Literal["column", "linear"]
Reader = Literal["llm-compressor", "auto-round", "torchao", "bitsandbytes", "gguf", "modelopt", "mlx"]
USUAL = "int8-tensor/int8-tensor"
ESTIMATING = 8  # texts of the pass with gradients
WORTH = 0.001  # of what rounding everything costs: what an entry has to give back to be named at all
STANDS_OUT = 20.0  # largest over median; of normal values it is about 6
FEW = 20  # sensitivities without --verbose


def parse_share(text: str) -> float:
    """ "4%" or "0.04" -> 0.04; raises BadInput for what is neither."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise BadInput(f"cannot read {text!r}; write a share, such as 4% or 0.04") from None


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Schemes to quantize by, and limits on kept entries."""

    scheme: str | None = None
    """WEIGHTS/INPUTS as of `quantize`: int4-group64/none, … Default: int8-tensor/int8-tensor; with --export the tool's own."""
    keep: Annotated[float, Flag(read="analyses.plan:parse_share", words="4%"), Gt(0), Le(1)] = 0.04
    """Share of the linears' weights that may stay: 4% or 0.04."""
    bits: Annotated[int, Ge(8)] = 16
    """Format of the kept entries: unchanged (16), or int8-channel/int8-token (8)."""
    grain: Grain | None = None
    """Keep single neurons, dimensions and inputs too (column), or linears alone, which tools can keep (linear).
    Default: column; with --export or --bits 8 linear."""
    tolerance: Annotated[float, Ge(0), Lt(float("inf"))] = 0.01
    """Smallest gain of a kept entry, in the task's unit."""
    n_candidates: Annotated[int, Flag("--candidates"), Ge(1)] = 32
    """Measure the first N of the cheap ordering at every step."""
    exact: bool = False
    """Measure every entry at every step, on all texts that choose."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random sets of kept linears of the same sizes."""
    stack: str | None = None
    """Which stream, where there are several."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    task: Annotated[TaskOptions, Flat("max_length")] = TaskOptions()
    """How texts become numbers; `seed` replaces its own."""

    @property
    def unit(self) -> Grain:
        """What is kept: columns too, or linears alone."""
        return self.grain or ("linear" if self.bits == 8 else "column")

    def __post_init__(self) -> None:
        check(self)
        if self.bits not in (16, 8):
            raise BadInput(f"bits is {self.bits}; kept entries have 16 bits or 8")
        if self.bits == 8 and self.grain == "column":
            raise BadInput("--bits 8 is for whole linears, columns stay in 16 bits; add --grain linear")
        if self.bits == 8 and self.scheme == FINE.name:
            raise BadInput(f"--bits 8 keeps entries in {FINE.name}, which is also --scheme; leave --bits out")


@dataclass(frozen=True, kw_only=True)
class PlanCall(PlanOptions):
    """What may be kept, and for whom the plan is written."""

    export: Annotated[tuple[str, str] | None, Flag(read="options:parse_export")] = None
    """TOOL:FILE: write the plan for this tool too: llm-compressor, auto-round, torchao, bitsandbytes, llama.cpp,
    modelopt, mlx."""

    @property
    def tool(self) -> Reader | None:
        """For whom the plan is written."""
        return None if self.export is None else written_for(self.export, get_args(Reader), {"llama.cpp": "gguf"})

    @property
    def to(self) -> Path | None:
        """The file to write for that tool."""
        return None if self.export is None else Path(self.export[1])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tool is not None and self.grain == "column":
            raise BadInput(f"--export {self.tool}: tools keep whole linears, not single columns; leave --grain out")


@dataclass(frozen=True, kw_only=True)
class PlanStep(Row):
    """An entry that was nominated, with what keeping it gives back, those before it kept."""

    path: str
    """entry: a linear, a neuron (11:1229), a dimension (507), a part of every block, or every linear"""
    what: What
    """part"""
    reason: str
    gain: Annotated[Estimate, Change]
    """gain ({unit}): on the confirming texts, which did not choose it"""
    nominated: Annotated[Estimate, Change, More]
    """gain, nominating texts: they chose it, so it is too large by chance"""
    share: Annotated[float, FineShare]
    """weights kept: share of the linears' weights, with it"""


@dataclass(frozen=True, kw_only=True)
class PlanSetting(Row):
    """The model in one setting, on the texts that judge."""

    note = (
        "A linear counts with all its weights, whether its weights, its inputs or both are kept; columns count with theirs. "
        "Random draws keep random ones of the same kinds and sizes."
    )
    family: Annotated[str, Quiet]
    """rounded, plan, random or rule"""
    setting: str
    n_linears: Annotated[int, Count]
    """linears: number with a kept part"""
    share: Annotated[float, FineShare]
    """weights kept: share of the linears' weights"""
    n_weights: Annotated[int, Count, Quiet]
    """weights kept"""
    n_bytes: Annotated[int, Count]
    """more bytes: than with all quantized"""
    change: Annotated[Estimate, Change]
    """change ({unit}): the {task} minus the intact model's, paired by text"""
    value: Annotated[Estimate, More]
    """{task}: mean over texts, weighted by tokens"""
    random: Annotated[tuple[float, ...], Draws, Change, Quiet] = ()
    """change with random ones of the same sizes kept, where the plan is"""


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Row):
    """What rounding one entry may cost, and does."""

    path: str
    """entry: a linear, a neuron, a dimension, a part of every block, or every linear"""
    what: What
    """part"""
    reason: str
    """why: the largest value among them, and how far it lies above the median |x|"""
    n_weights: Annotated[int, Count, More]
    """weights: number that is kept with it"""
    estimate: float
    """estimate: of the cost, by gradient and rounding error to second order; of the relative error without gradients"""
    ratio: float
    """× median: largest |x| over the median |x|"""
    error: float
    """error: Σ (rounded − x)² / Σ x²"""
    gain: Annotated[Estimate, Change]
    """gain alone: on the nominating texts; none where it was not measured"""
    n_texts: int | None
    """texts: that it was measured on"""


@dataclass(frozen=True, kw_only=True)
class PrecisionPlan(Finding):
    """Entries to keep in `bits` bits while all else is quantized by `scheme`."""

    title = "Entries to keep in high precision"
    pictures = (
        Strips(
            rows="settings", x="change", y="setting", draws="random", greys="{n} random choices of the same sizes kept",
            title="Above each mark: the share of the weights that stays", says=lambda row: cell_text(FineShare(row.share)),
            where=lambda row: row.family != "random",
        ),
    )  # fmt: skip

    settings: tuple[PlanSetting, ...]
    """Loss on texts that judge: Intervals of changes are paired by text."""
    steps: tuple[PlanStep, ...]
    """Kept entries: The gain of each, with those above it kept."""
    sensitivities: tuple[Sensitivity, ...]
    """Sensitivity: In the order of the cheap estimates, by which entries are chosen for measurement."""
    kept: tuple[KeptLinear, ...]
    """kept part of each linear"""
    refused: PlanStep | None
    """the entry that was nominated after the plan and not confirmed; None where none was left"""
    scheme: str
    bits: int
    budget: float
    """share of the linears' weights that may be kept"""
    grain: Grain
    exact: bool
    """whether every entry was measured at every step"""
    n_linears: int
    n_weights: int
    """that the scheme rounds"""
    n_nominating: int
    n_confirming: int
    n_judging: int
    intact: Estimate
    """value of the intact model, on the judging texts"""
    cost: Estimate
    """value all quantized − intact, on the confirming texts"""
    floor: float
    """what an entry has to give back to be named"""
    regained: Estimate
    """value all quantized − value with the plan, on the judging texts"""
    share_regained: Estimate
    """that over what rounding costs"""
    beyond_random: Estimate | None
    """mean value of the random draws − value with the plan; None without draws"""
    p: float | None
    """(1 + #{draws whose value is as small as the plan's}) / (1 + draws); None without draws"""
    evaluations: int
    """forward passes of a text that all of it took, those found in kept rows too"""

    def of(self, family: str) -> tuple[PlanSetting, ...]:
        """Settings of a family: "rounded", "plan" (its first entries, one more each), "random", "rule"."""
        return tuple(one for one in self.settings if one.family == family)

    @property
    def rounded(self) -> PlanSetting:
        """All rounded."""
        return self.of("rounded")[0]

    @property
    def plan(self) -> PlanSetting:
        """The model with all of the plan kept; all rounded where it names nothing."""
        return self.of("plan")[-1] if self.steps else self.rounded

    @property
    def says(self) -> str:
        """What the intervals say.

        "free": the cost's interval holds 0 or lies below. "unclear": it is not settled. "nothing": rounding costs, and no entry
        gives back `floor` that can be told. "keep": the plan gives something back, and more than random linears do, both
        intervals above 0. "no use": that cannot be said. "not tried": no random draw was measured beside.
        """
        if 0 < self.cost.low < math.inf and not self.steps:
            return "nothing"
        return says_of(self.cost.low, self.regained.low, self.beyond_random.low if self.beyond_random else None)

    @property
    def verdict(self) -> str:
        """What to do, in one line."""
        n, random = len(self.steps), [one.change.value for one in self.of("random")]
        cost = f"{cell_text(Change(self.rounded.change.value))} {self.about.unit}"
        size = f"{n} {'entry' if n == 1 else 'entries'} ({cell_text(FineShare(self.plan.share))} of the weights)"
        left = f"{size} in {self.bits} bits: {cost} → {cell_text(Change(self.plan.change.value))}"
        return {
            "unclear": f"{self.scheme} costs {cost}: no verdict, for {no_interval(self.n_confirming, 'confirming texts', 4)}",
            "free": f"{self.scheme}: no cost that can be told, nothing to keep",
            "nothing": f"{self.scheme} costs {cost}, and no single entry surely gives back {self.floor:.2g} or more",
            "keep": f"Keep {left} (random {cell_text(Change(np.mean(random or math.nan)))})",
            "no use": f"{left}, not more than random choices do",
            "not tried": f"{left}, without random choices to compare",
        }[self.says]

    @property
    def most_per_byte(self) -> str:
        """What was measured to give back most per byte, with the entries before it; "" where none was confirmed."""
        if not self.steps:
            return ""
        sizes = np.diff([0, *(one.n_bytes for one in self.of("plan"))])
        gains = [step.gain.value / max(1, size) for step, size in zip(self.steps, sizes, strict=True)]
        best = int(np.argmax(gains))
        step = self.steps[best]
        gain = f"{step.gain.value:+.3g} {self.about.unit}"
        return f"most per byte gives {step.path} ({step.what}): {gain} for {sizes[best]:,} bytes"

    def advice(self) -> Iterator[Advice]:
        """What was measured to give back most, or that nothing does."""
        because = f"measured on {self.n_judging:,} texts of {self.about.data} that chose nothing"
        if self.steps:
            because += f"; {percent(self.share_regained.value)} of the cost comes back, {self.most_per_byte}"
        fits = self.steps and self.scheme.endswith("/int8-tensor")
        yield Advice("quantize", f"{self.verdict}.", because, (fitted(self.provenance, "int8"),) if fits else ())

    def sentences(self) -> Iterator[str]:
        yield f"{self.verdict}."
        if self.steps:
            yield f"The plan gives back {self.share_regained.percent()} of the cost; of its entries {self.most_per_byte}."
        if one := self.refused:
            yield f"{one.path} ({one.what}) came next and was not confirmed: {one.gain.written()} {self.about.unit}."
        yield (
            f"Intact {self.intact.value:z.4f} {self.about.unit}; {self.n_nominating:,} texts nominate, "
            f"{self.n_confirming:,} confirm, {self.n_judging:,} judge; {self.evaluations:,} forward passes of a text."
        )

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """Of sensitivities the first few."""
        if name == "sensitivities" and not verbose and len(rows) > FEW:
            rows, note = rows[:FEW], f"{note} The first {FEW} of {len(rows):,}: --verbose shows more."
        return super().laid_out(name, rows, head, note, verbose=verbose)


def plan(
    loaded: LoadedModel,
    texts: Data,
    options: PlanOptions | None = None,
    *,
    rows: Path | Keep | None = None,
    progress: Progress | None = None,
) -> PrecisionPlan:
    """Choose the entries to keep in higher precision, and judge them on other texts; the model is unchanged.

    With `rows`, measurements are appended to that file, and those found there are not repeated.

    Raises:
        BadInput: fewer than four texts, a scheme that does not fit the weights, a budget that holds nothing.
    """
    options = reaching(loaded, texts, options or PlanOptions())
    study = PlanStudy(loaded, texts, options, rows, progress)
    rounding = rounded(loaded, study.recipe, stack=study.stack.name, places=study.places)
    with study.study, rounding as study.model:
        study.announce()
        study.report("all quantized")
        confirming = study.split["confirming"]
        values = study.score(frozenset(), None, "confirming", 0, len(confirming))
        cost = estimated(values - study.intact[confirming], study.weights[confirming])
        search = PlanSearch(
            study.score, {group: study.weights[some] for group, some in study.split.items()}, study.entries.price,
            study.room, max(options.tolerance, WORTH * cost.value), options.n_candidates, options.exact, study.report,
        )  # fmt: skip
        if cost.low > 0:
            search.run(study.entries.order)
        found = study.finding(cost, search)
        study.study.kept(study.finished, dict)
        return found


def run(session: Session, options: PlanCall) -> PrecisionPlan:
    """The analysis, as the command runs it; with --export it is written for that tool too, once the result is kept."""
    check_file(options.to, replace=session.output.overwrite)
    texts, _ = session.texts()
    tool, path, loaded = options.tool, options.to, session.loaded
    options = reaching(loaded, texts, options)
    if tool is None or path is None:
        return plan(loaded, texts, options, rows=session.kept, progress=session.progress)
    options = replace(options, scheme=options.scheme or own_scheme(tool, loaded, options.stack), grain="linear")
    scheme, target = parse(options.scheme or ""), target_of(loaded, options.stack)
    everything = [KeptLinear(path=path, weights=True, inputs=True) for path in target.linears]
    export(tool, everything, scheme=scheme, target=target)  # what it cannot be told is refused before any work
    found = plan(loaded, texts, options, rows=session.kept, progress=session.progress)

    def write() -> None:
        text, remarks = export(tool, found.kept, scheme=scheme, target=target)
        write_text(path, text)
        for remark in remarks:
            session.notice(f"note: {remark}")
        session.notice(f"{path}: {len(found.kept):,} linears that {TOOLS[tool].title} keeps, by {scheme.name}")

    session.then = write
    return found


class PlanStudy:
    """A model, its task, its linears, its entries, and the values of texts with some of them kept."""

    model: Rounding

    def __init__(
        self,
        loaded: LoadedModel,
        texts: Data,
        options: PlanOptions,
        rows: Path | Keep | None,
        progress: Progress | None,
    ):
        self.loaded, self.options = loaded, options
        self._progress, self._told = progress or (lambda *_: None), 0
        self.stack = loaded.stack(options.stack)
        self.recipe = parse(options.scheme or USUAL)
        task = replace(options.task, seed=options.seed, max_length=row_limit(loaded, texts, options.task.max_length))
        task = vector_task(loaded, task) if texts.plural == "texts" else task
        self.max_length = task.max_length
        self.task = make_task(loaded, texts, task)
        n = self.task.n_texts
        if n < 4:
            raise BadInput(f"{texts.source}: {n} texts; a plan needs four at least, and 64 to be sure of it")
        identity = {
            "task": asdict(task), "scheme": self.recipe.name, "bits": options.bits, "grain": options.unit,
            "stack": self.stack.name, "seed": options.seed,
        }  # fmt: skip
        more = (options.keep, options.tolerance, options.n_candidates, options.exact, options.n_random)
        self.finished = f"finished {more}"  # in kept rows, which plans of other budgets share
        self.report("intact")
        self.study = Study(loaded, self.task, texts, identity, rows=rows)
        self.intact, self.weights = self.study.intact.values, self.study.weights
        shuffled = np.random.default_rng([options.seed, n]).permutation(n).tolist()
        self.split: dict[Group, list[int]] = {"nominating": shuffled[: n // 4], "confirming": shuffled[n // 4 : n // 2]}
        self.judging: list[int] = shuffled[n // 2 :]
        self.report("estimating")
        self.estimating = self.split["nominating"][:ESTIMATING]
        places = find_places(loaded, self.stack.name)
        costs = CheapPass(loaded, self.task, places, self.recipe, self.stack).run(self.estimating)
        self.entries = Entries(places, self.stack, costs, grain=options.unit, bits=options.bits)
        self.room = math.floor(options.keep * self.entries.n_weights)
        least = min(self.entries.price([entry]) for entry in self.entries.order)
        if least > self.room:
            raise BadInput(
                f"{loaded.name}: {options.keep:.3g} of the weights hold no entry; give --keep "
                f"{math.ceil(1000 * least / self.entries.n_weights) / 10:g}% or more"
            )
        self._values: dict[str, np.ndarray] = {}
        layer = {name: place.layer for name, place in self.entries.places.items()}
        parts = {entry: self.entries.candidates[entry].parts for entry in self.entries.order}
        self._before = {entry: min(layer[part.path] for part in some) - 1 for entry, some in parts.items()}
        self._states = Prefixes(loaded, self.stack, self.task, self._before.values())

    @property
    def places(self) -> list[LinearPlace]:
        """The linears."""
        return list(self.entries.places.values())

    def report(self, what: str) -> None:
        """Tell what begins; how much there is in all is not known."""
        self._progress(what, self._told, 0)
        self._told += 1

    def announce(self) -> None:
        """Say how long it takes at most: choosing the first entry, judging, and each further entry."""
        done = self.study.rows.done if self.study.rows else {}
        if self.finished in done:
            self.study.announce(list(done))
            return
        options, n_texts, n_judging = self.options, self.task.n_texts, len(self.judging)
        candidates = len(self.entries.order) if options.exact else min(options.n_candidates, len(self.entries.order))
        choosing = ((1 + candidates) * len(self.split["nominating"]) + 2 * len(self.split["confirming"])) / n_texts
        judging = (2 + options.n_random + len(self.entries.rules(self.room))) * n_judging / n_texts
        self.study.announce(["plan"], share=choosing + judging, most=True)

    def values(self, kept: frozenset[Entry], texts: Sequence[int], label: str, more: Entry | None = None) -> np.ndarray:
        """The value of each of these texts [text] with `kept` and `more` kept; `label` says in kept rows which they are."""
        both = kept if more is None else kept | {more}
        key = f"{label} {' '.join(f'{name}:{what}' for name, what in sorted(both)) or 'nothing'}"
        if key not in self._values:
            row = self.study.kept(key, lambda: {"per_text": self._read(kept, more, texts).tolist()})
            self._values[key] = np.array(row["per_text"])
        return self._values[key]

    def _read(self, kept: frozenset[Entry], more: Entry | None, texts: Sequence[int]) -> np.ndarray:
        behind, both, parts = None, kept, self.entries.kept
        if more is not None:
            both = kept | {more}
            behind = self._states.behind(self._before[more], texts, kept, lambda: self.model.keep(parts(kept)))
        self.model.keep(parts(both))

        def begun(_: int, feed: Any) -> AbstractContextManager[None]:
            return resumed(self.loaded.model, self.stack, behind, feed.slots) if behind else nullcontext()

        return values_of(self.task, self.task.feeds(list(texts)), self.weights[list(texts)], begun)

    def score(self, kept: frozenset[Entry], more: Entry | None, group: Group, begin: int, end: int) -> np.ndarray:
        """See `plan_search.Score`."""
        return self.values(kept, self.split[group][begin:end], f"{group} {begin}-{end}", more)

    def judged(self, kept: Sequence[Entry]) -> np.ndarray:
        """The value of each judging text [text] with these kept; what was measured once is not measured again."""
        return self.values(frozenset(kept), self.judging, "judging")

    def setting(self, family: str, label: str, kept: Sequence[Entry]) -> PlanSetting:
        """A row for these entries kept."""
        self.report(label)
        values = self.judged(kept)
        n_weights, stored, weights = self.entries.price(kept), self.recipe.weights, self.weights[self.judging]
        with np.errstate(invalid="ignore"):
            change = estimated(values - self.intact[self.judging], weights)
        return PlanSetting(
            family=family, setting=label, n_linears=len(self.entries.kept(kept)), share=n_weights / self.entries.n_weights,
            n_weights=n_weights, n_bytes=n_weights * (self.options.bits - stored.bits if stored else 0) // 8,
            change=change, value=estimated(values, weights),
        )  # fmt: skip

    def finding(self, cost: Estimate, search: PlanSearch) -> PrecisionPlan:
        """Judge what was chosen, and say all of it."""
        options, every, judging, weights = self.options, self.entries, self.judging, self.weights[self.judging]
        entries = [trial.entry for trial in search.steps]
        n = len(entries)
        drawn = [every.drawn(entries, options.seed, number) for number in range(options.n_random if n else 0)]
        rounded = self.setting("rounded", "all quantized", [])
        names = [*(f"first {k} of the plan" for k in range(1, n)), "plan"]
        curve = [self.setting("plan", names[k], entries[: k + 1]) for k in range(n)]
        random = [self.setting("random", f"random draw {k}", kept) for k, kept in enumerate(drawn, 1)]
        rules = [self.setting("rule", label, kept) for label, kept in every.rules(self.room).items()]
        plain, best = self.judged([]), self.judged(entries)
        beyond, p = None, None
        if random:
            curve[-1] = replace(curve[-1], random=tuple(one.change.value for one in random))
            beyond = estimated(np.mean([self.judged(kept) for kept in drawn], axis=0) - best, weights)
            given_back = -np.nan_to_num([one.value.value for one in (curve[-1], *random)], nan=np.inf, posinf=np.inf)
            p = rank_p(given_back[0], given_back[1:])
        above, below = (plain - best) * weights, (plain - self.intact[judging]) * weights
        share = Estimate(float(above.sum() / below.sum()) if below.sum() else math.nan, *ratio_interval(above, below))
        known = {entry: self._sensitivity(entry, search.first.get(entry)) for entry in every.order}
        steps = [self._step(known, trial) for trial in (*search.steps, *filter(None, [search.refused]))]
        layers: dict[int, tuple[int, ...]] = dict.fromkeys(range(self.stack.n_layers), ())
        notes = (*self.loaded.notes, *self.task.notes, *cast_notes(self.places))
        return PrecisionPlan(
            provenance=self.loaded.provenance(seed=options.seed, digest=self.study.fingerprint),
            about=self.study.about(layers, max_length=self.max_length), steps=tuple(steps[:n]),
            settings=(rounded, *curve, *random, *rules), sensitivities=tuple(known.values()),
            kept=tuple(every.kept(entries).values()), refused=steps[n] if search.refused else None,
            scheme=self.recipe.name, bits=options.bits, budget=options.keep, grain=options.unit, exact=options.exact,
            n_linears=len(self.places), n_weights=every.n_weights, n_nominating=len(self.split["nominating"]),
            n_confirming=len(self.split["confirming"]), n_judging=len(judging),
            intact=estimated(self.intact[judging], weights), cost=cost, floor=search.floor,
            regained=estimated(plain - best, weights), share_regained=share, beyond_random=beyond, p=p,
            evaluations=self.task.n_texts + len(self.estimating) + sum(map(len, self._values.values())),
            notes=tuple(dict.fromkeys(notes)),
        )  # fmt: skip

    def _sensitivity(self, entry: Entry, gains: np.ndarray | None) -> Sensitivity:
        one = self.entries.candidates[entry]
        return Sensitivity(
            path=entry[0], what=entry[1], reason=self._reason(entry), n_weights=self.entries.price([entry]),
            estimate=_brief(one.promise), ratio=_brief(one.ratio), error=_brief(one.error),
            n_texts=None if gains is None else len(gains),
            gain=UNKNOWN if gains is None else estimated(gains, self.weights[self.split["nominating"]]),
        )  # fmt: skip

    def _reason(self, entry: Entry) -> str:
        """ "reads neuron 1229: 40,081 × the median"."""
        one, what = self.entries.candidates[entry], entry[1]
        path, column, row = one.at
        place, times = self.entries.places[path], f"{_brief(one.ratio):,.0f} × the median"
        kind = "dimension" if place.reads else "neuron" if place in self.entries.last else "input"
        where = f"{kind} {column}" + ("" if row is None else f" for output {row}")
        if what not in BOTH:
            return f"{where} of {place.part} in block {place.layer}: {times}"
        if one.ratio >= STANDS_OUT:
            return f"{'reads' if what == 'inputs' else 'weighs'} {where}: {times}"
        return f"no value is an outlier ({times}); error {_brief(one.error):.2g} of its square"

    def _step(self, known: dict[Entry, Sensitivity], trial: Trial) -> PlanStep:
        return PlanStep(
            path=trial.entry[0], what=trial.entry[1], reason=known[trial.entry].reason, gain=trial.confirmed,
            nominated=trial.nominated, share=trial.n_weights / self.entries.n_weights,
        )  # fmt: skip


def _brief(value: float) -> float:
    """Four digits of what orders entries: no more are known, and a file has hundreds."""
    return float(f"{value:.4g}")
