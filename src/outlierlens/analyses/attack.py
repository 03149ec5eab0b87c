"""How much damage few edits of single values do, beside random edits, and which of them `verify` finds.

    found = attack(load_model("smollm2-135m"), read_texts("wikitext/test.parquet", limit=32), AttackOptions(budget=48))
    found.kind("sign-flip").times, found.kind("sign-flip").enough       # × the intact loss; the fewest edits that double it
    found.kind("sign-flip").caught                                      # of the whole budget's edits `verify` finds, each alone

A part of the texts chooses the edits, the others say what they do: damage is never read off the texts it was sought on. The
model is edited in memory, and is bit for bit what it was when this returns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.study import Condition, Progress, Study
from outlierlens.analyses import attack_edits
from outlierlens.analyses.attack_edits import KINDS, Moves, ValueChange, edited_values
from outlierlens.analyses.fingerprint import FingerprintOptions, fingerprint_checkpoint
from outlierlens.analyses.fingerprint_values import list_sensitive
from outlierlens.analyses.fingerprint_verify import verify_checkpoint
from outlierlens.architectures import RowChoice, bound_stacks
from outlierlens.data.texts import Texts, beginnings
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadInput, pick
from outlierlens.models.inputs import tokenizer_of
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.results.finding import Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import Draws, Estimate, More, Quiet, Row
from outlierlens.statistics.means import no_interval
from outlierlens.statistics.ranks import rank_p
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.view.pictures import Lines, Strips
from outlierlens.view.section import Change, Count, ExactValue, P, Rows

if TYPE_CHECKING:
    from outlierlens.session import Session


# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """What may be changed, and how long is searched."""

    budget: Annotated[int, Ge(1)] = 48
    """Values that may be changed; a swap changes two."""
    kinds: Annotated[tuple[str, ...], Flag(read="options:parse_names", words=",".join(KINDS))] = KINDS
    """zero, swap, sign-flip, exponent-flip, separated by commas; each is measured alone."""
    dims: DimsOrFind = FIND
    """The outlier dimensions: 100,247; find: those that the weights name."""
    n_search: Annotated[int, Flag(hidden=True), Ge(1)] = 4
    """Texts that choose the edits; the others measure damage."""
    bound: Annotated[float, Flag(hidden=True), Gt(0), Lt(float("inf"))] = 10.0
    """Exponent flips stay below N times their tensor's largest value."""
    n_single: Annotated[int, Flag("--tries"), Ge(1)] = 12
    """Edits tried alone before they are joined."""
    n_sets: Annotated[int, Flag("--sets"), Ge(1)] = 12
    """Sets of edits tried at each budget."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 3
    """Random sets of edits, per kind."""
    factor: Annotated[float, Flag(hidden=True), Gt(1)] = 2.0
    """Find the fewest edits that multiply the loss by this factor."""
    row: Annotated[RowChoice, Flag(hidden=True)] = None
    """TOML file of the architecture, where the table has none."""
    task: Annotated[TaskOptions, Flat("max_length")] = TaskOptions(max_length=32)
    """How texts become numbers; `seed` replaces its own."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise BadInput(f"no kind of edit is called {unknown[0] if unknown else ''!r}; kinds are {', '.join(KINDS)}")
        if self.kinds == ("swap",) and self.budget < 2:
            raise BadInput("a swap changes two values; give it a budget of at least 2")

    @property
    def budgets(self) -> tuple[int, ...]:
        """1, 2, 4, … and the whole budget."""
        powers = [2**power for power in range(self.budget.bit_length()) if 2**power < self.budget]
        return (*powers, self.budget)


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EditDamage(Row):
    """The strongest edits of a kind that were found for a budget, on the texts that did not choose them."""

    kind: str
    """edit"""
    budget: Annotated[int, Count]
    """values allowed"""
    n_edits: Annotated[int, Count]
    """values changed"""
    value: Annotated[Estimate, More]
    """{score}"""
    change: Annotated[Estimate, Change]
    """change ({of_change}): minus the intact model's, paired by text"""
    times: float
    """× intact: the loss as a multiple of the intact one"""
    searched: Annotated[float, Quiet]
    """{score} of the texts that chose the edits"""
    per_text: Annotated[tuple[float, ...], "text", Quiet]
    enough: Annotated[int | None, Count] = None
    """edits for the factor: with the whole budget, the fewest of the budgets' edits that multiply the loss by it"""
    random: Annotated[tuple[float, ...], Draws, Change] = ()
    """random: with the whole budget, change under each random set of the same number of edits of the same values"""
    p: Annotated[float | None, P] = None
    """rank p: (1 + number of random sets with at least this change) / (1 + n)"""
    caught: Annotated[int | None, Count] = None
    """verify finds: of the whole budget's edits, each made alone"""


@dataclass(frozen=True, kw_only=True)
class AttackEdit(Row):
    """One value that is changed."""

    kind: str
    """edit"""
    budget: Annotated[int, Count]
    """values allowed"""
    move: Annotated[int, Quiet]
    """move: edits of one move share a number; a swap changes two values"""
    tensor: str
    index: tuple[int, ...]
    dim: int | None
    """dimension"""
    before: Annotated[float, ExactValue]
    after: Annotated[float, ExactValue]
    bit: int | None
    """bit: of an exponent flip, 0 the lowest"""
    caught: bool | None
    """verify finds it: made alone (both of a swap together); only edits of the whole budget are held against a fingerprint"""


@dataclass(frozen=True, kw_only=True)
class Attack(Finding):
    """The smallest edits with the largest damage, by kind, against random ones.

    Attributes:
        points: each kind at each budget. edits: what is changed there.
        budget: values that may be changed. factor: that `enough` edits multiply a loss by. intact: value without edits.
        n_search: texts that chose the edits. n_sensitive: values that a fingerprint holds. n_values: of the model.
    """

    title = "Edits of few values"
    pictures = (
        Lines(rows="points", x="budget", y="change", by="kind", title="Damage by budget"),
        Strips(
            rows="points", x="change", y="kind", draws="random", title="With the whole budget, against random edits",
            greys="{n} random sets of edits", where=lambda row: row.caught is not None,
        ),
    )  # fmt: skip

    points: tuple[EditDamage, ...]
    """Edits: All change values that a fingerprint holds. verify checks each edit alone."""
    edits: tuple[AttackEdit, ...]
    """(Edited values)"""
    budget: int
    factor: float
    intact: float
    n_search: int
    n_sensitive: int
    n_values: int

    @property
    def kinds(self) -> tuple[EditDamage, ...]:
        """Every kind with the whole budget."""
        return tuple(one for one in self.points if one.budget == self.budget)

    def kind(self, name: str) -> EditDamage:
        """A kind of edit with the whole budget; raises BadInput with those there are."""
        return pick(self.kinds, f"no {name!r} was measured", kind=name)

    @property
    def strongest(self) -> EditDamage:
        """The kind that does most with the whole budget."""
        return max(self.kinds, key=lambda one: one.change.value)

    def sentences(self) -> Iterator[str]:
        one, about = self.strongest, self.about
        said = f"{one.n_edits:,} {one.kind} edit{'s' * (one.n_edits != 1)} of {self.n_values:,} values "
        least = min((row.enough for row in self.kinds if row.enough), default=None)
        enough = "no edit found is" if least is None else f"{least} {'edit is' if least == 1 else 'edits are'}"
        said += f"multiply the {about.measured} by {one.times:.3g}; {enough} enough for × {self.factor:g}"
        caught, asked = (sum(getattr(row, name) for row in self.kinds) for name in ("caught", "n_edits"))
        yield f"{said}; verify finds {caught} of {asked} edits."
        why = no_interval(about.n_texts, "texts that judge", max(1, round(1 + self.n_search / about.n_texts)))
        yield (
            f"Change {one.change.written(why=why)}, intact {self.intact:.4g}; {self.n_search:,} other texts chose the edits, "
            f"among the {self.n_sensitive:,} values that a fingerprint holds."
        )
        for one in self.kinds:
            if one.random:
                random = f"{float(np.median(one.random)):+.2g}"
                yield f"{one.kind.capitalize()}: {one.change.value:+.3g}; the same number of random edits: median {random}."

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """Of the budgets only the whole one, unless all is shown."""
        shown = self.kinds if name == "points" and not verbose else rows
        return super().laid_out(name, shown, head, note, verbose=verbose)


# --- how it is measured ------------------------------------------------------------------------------------------


def attack(
    loaded: LoadedModel,
    texts: Texts,
    options: AttackOptions | None = None,
    *,
    progress: Progress | None = None,
    rows: Path | Keep | None = None,
) -> Attack:
    """Attack `loaded` in memory within a budget, kind by kind; it is unchanged afterwards.

    With `rows`, what is found and measured is appended to that file, and what is found there is not measured again.

    Raises:
        BadInput: too few texts, no language head, no value of a kind to change, or weights that cannot be edited.
    """
    loaded.need_whole("an attack, which searches by gradients,")
    options = options or AttackOptions()
    if len(texts) < options.n_search + 1:
        raise BadInput(
            f"{len(texts)} texts: {options.n_search} choose the edits and at least one more must judge them; "
            "give more texts"
        )
    # Spread over the data, whose order may mean something.
    chosen = set(np.linspace(0, len(texts) - 1, options.n_search).round().astype(int).tolist())
    texts = cut_texts(loaded, texts, options.task.max_length)
    seekers, judges = texts.some(sorted(chosen)), texts.some(sorted({*range(len(texts))} - chosen))
    if loaded.head == "none":
        raise BadInput(f"{loaded.name} has no language head, so edits have no loss to multiply; name a model with one")
    how = replace(options.task, seed=options.seed)
    watch, task = Watch(loaded, options), make_task(loaded, judges, how)
    plan = dict.fromkeys(range(loaded.stacks[0].n_layers), watch.dims)
    same = replace(options, row=None, task=how, kinds=KINDS, n_random=0, factor=2)
    identity = asdict(same) | {"search": seekers.digest, "stack": loaded.stacks[0].name}
    with Study(loaded, task, judges, identity, rows=rows, progress=progress) as study:
        search = attack_edits.EditSearch(loaded, make_task(loaded, seekers, how), watch.values, watch.dims, options)
        each = (*options.budgets, *(f"random {number}" for number in range(options.n_random)))
        study.announce([f"{kind} {what}" for kind in options.kinds for what in each])
        done = [_measured(study, search, watch, kind) for kind in options.kinds]
    return Attack(
        provenance=loaded.provenance(seed=options.seed, digest=study.fingerprint),
        about=study.about(plan, named_by=watch.named_by, max_length=how.max_length),
        points=tuple(row for points, _ in done for row in points), edits=tuple(row for _, made in done for row in made),
        budget=options.budget, factor=options.factor, intact=study.value(study.intact).value, n_search=len(seekers),
        n_sensitive=len(watch.values), n_values=sum(one.numel() for one in loaded.model.parameters()),
        notes=tuple(dict.fromkeys((*loaded.notes, *task.notes))),
    )  # fmt: skip


def run(session: "Session", options: AttackOptions) -> Attack:
    """The attack, as the command runs it."""
    texts, _ = session.texts()
    options = replace(options, row=session.load.row)
    return attack(session.loaded, texts, options, progress=session.progress, rows=session.kept)


def cut_texts(loaded: LoadedModel, texts: Texts, max_length: int) -> Texts:
    """The texts up to the end of their token number `max_length`, so that each costs the same to read.

    Tokenizers that do not say where a token ends leave them whole; they are then read in windows of `max_length`.
    """
    tokenizer: Any = tokenizer_of(loaded)
    if not getattr(tokenizer, "is_fast", False):
        return texts
    given = beginnings(tokenizer, texts.texts, max_length)
    encoded = tokenizer(given, truncation=True, max_length=max_length, return_offsets_mapping=True)
    ends = [max((end for _, end in offsets), default=0) for offsets in encoded["offset_mapping"]]
    return replace(texts, texts=tuple(text[:end] for text, end in zip(texts.texts, ends, strict=True)))


class Watch:
    """The fingerprint of an intact model in memory, the values that it holds, and `verify` of the model as it is now."""

    def __init__(self, loaded: LoadedModel, options: AttackOptions):
        self.source = loaded.weights
        # The model is in memory, so that no limit on reading applies.
        scan = ScanOptions(row=options.row, max_read=self.source.total_bytes)
        self.baseline = fingerprint_checkpoint(self.source, FingerprintOptions(scan=scan, dims=options.dims))
        dims = {one.name: one.dims for one in self.baseline.streams}
        self.dims = tuple(dict.fromkeys(dim for some in dims.values() for dim in some))
        self.named_by = "; ".join(dict.fromkeys(one.named_by for one in self.baseline.streams))
        entries = list_sensitive(self.source, bound_stacks(self.source, options.row), dims)
        self.values, self.model, self.row = attack_edits.sensitive_values(loaded, entries), loaded.model, options.row

    def caught(self, changes: Sequence[ValueChange]) -> bool:
        """Whether `verify` says that the model with these changes does not match."""
        with edited_values(self.model, changes):
            return not verify_checkpoint(self.source, self.baseline, self.row).matches


def _measured(
    study: Study, search: attack_edits.EditSearch, watch: Watch, kind: str
) -> tuple[list[EditDamage], list[AttackEdit]]:
    """What edits of a kind do at each budget, and what they are; the whole budget beside random edits, and verified."""
    options, values, budgets = search.options, watch.values, search.options.budgets

    def condition(what: str, changes: list[ValueChange]) -> Condition:
        name = f"{kind} {what}"
        return Condition(kind, name, {}, partial(edited_values, watch.model, changes), name)

    sets = study.kept(f"search {kind}", lambda: {"found": search.find(kind, study.progress)})["found"]
    moves = attack_edits.moves_of(kind, values, bound=options.bound)
    made = [moves.changes(which) for which, _ in sets]
    done = study.measure([condition(str(budget), changes) for budget, changes in zip(budgets, made, strict=True)])
    intact, points = study.value(study.intact).value, list[EditDamage]()
    for budget, one, changes, (_, searched) in zip(budgets, done, made, sets, strict=True):
        value = study.value(one)
        points.append(EditDamage(
            kind=kind, budget=budget, n_edits=len(changes), value=value, change=study.change(one), searched=searched,
            times=value.value / intact if intact else math.inf, per_text=tuple(one.values.tolist()),
        ))  # fmt: skip
    last, full = sets[-1][0], points[-1]
    draw = partial(attack_edits.random_changes, values, kind, n=len(last), bound=options.bound)
    seeds = range(options.seed + 1, options.seed + 1 + options.n_random if last else 0)
    random = study.measure([condition(f"random {i}", draw(seed=seed)) for i, seed in enumerate(seeds)])
    changed = tuple(study.change(one).value for one in random)
    caught = study.kept(f"verify {kind}", lambda: {"each": [watch.caught(moves.changes([one])) for one in last]})
    points[-1] = replace(
        full, random=changed, p=rank_p(full.change.value, np.array(changed)) if changed else None,
        caught=sum(caught["each"]) * moves.cost,
        enough=next((one.n_edits for one in points if one.times >= options.factor), None),
    )  # fmt: skip
    unasked = [[None] * len(which) for which, _ in sets[:-1]]
    rows = zip(budgets, sets, (*unasked, caught["each"]), strict=True)
    return points, [edit for budget, (which, _), seen in rows for edit in _edits(search, moves, budget, which, seen)]


def _edits(
    search: attack_edits.EditSearch, moves: Moves, budget: int, which: Sequence[int], caught: Sequence[bool | None]
) -> Iterator[AttackEdit]:
    values = search.values
    for number, (move, seen) in enumerate(zip(which, caught, strict=True)):
        for place, after in moves.places(move).items():
            tensor, dim, bit = values.names[values.tensor[place]], int(values.dim[place]), int(moves.bit[move])
            index = np.unravel_index(int(values.flat[place]), tuple(search.parameters[tensor].shape))
            yield AttackEdit(
                kind=moves.kind, budget=budget, move=number, tensor=tensor, index=tuple(map(int, index)),
                dim=None if dim < 0 else dim, before=float(values.before[place]), after=after,
                bit=None if bit < 0 else bit, caught=seen,
            )  # fmt: skip
