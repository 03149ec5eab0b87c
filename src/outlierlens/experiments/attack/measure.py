"""Find the smallest edits of single values with the largest damage, beside random ones, and see which `verify` finds.

    found = attack(load_model("smollm2-135m"), read_texts("wikitext/test.parquet", limit=32), AttackOptions(budget=48))
    found.kind("sign flip").full.times, found.caught

A part of the texts chooses the edits, the others say what they do: damage is never read off the texts it was sought on. The
model is edited in memory, and is bit for bit what it was when this returns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from outlierlens.architectures import RowChoice
from outlierlens.data.texts import Texts, beginnings
from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.errors import BadInput
from outlierlens.experiments.attack.edits import Moves, ValueChange, Values, changes_of, edited_values, moves_of
from outlierlens.experiments.attack.losses import Target
from outlierlens.experiments.attack.options import AttackAndSave, AttackOptions
from outlierlens.experiments.attack.places import (
    anywhere,
    drawn,
    entries_of,
    found_dims,
    live_source,
    sensitive_values,
    widest,
)
from outlierlens.experiments.attack.result import Attack, Attacked, Control, Edit, Point
from outlierlens.experiments.attack.saving import check_save, save_attacked
from outlierlens.experiments.attack.search import Chosen, Report, Search
from outlierlens.experiments.integrity.fingerprint import fingerprint_checkpoint, hash_tensor, relation
from outlierlens.experiments.integrity.options import FingerprintOptions
from outlierlens.experiments.integrity.result import TensorHash
from outlierlens.experiments.integrity.verify import verify_checkpoint
from outlierlens.models.inputs import tokenizer_of
from outlierlens.models.load import LoadedModel, fingerprint
from outlierlens.options import FIND, Find
from outlierlens.session import Session
from outlierlens.statistics.p_values import rank_p
from outlierlens.tasks.base import check_intact, scored, weighted_mean


def attack(
    loaded: LoadedModel,
    texts: Texts,
    options: AttackOptions | None = None,
    *,
    progress: Report | None = None,
) -> Attack:
    """Attack `loaded` in memory within a budget, kind by kind; it is unchanged afterwards.

    Raises:
        BadInput: too few texts, no value of a kind to change, or weights that cannot be edited.
    """
    options = options or AttackOptions()
    attacker = _Attacker(loaded, texts, options, progress or (lambda *_: None))
    kinds = tuple(attacker.sensitive(kind) for kind in options.kinds)
    wide = tuple(attacker.wide()) if options.anywhere else ()
    task = attacker.held.task
    return Attack(
        provenance=loaded.provenance(seed=options.seed, digest=attacker.fingerprint),
        data=texts.source,
        data_digest=texts.digest,
        task=task.name,
        unit=task.unit,
        n_texts=task.n_texts,
        n_tokens=task.n_tokens,
        n_search=attacker.search.target.task.n_texts,
        max_length=options.task.max_length,
        intact=weighted_mean(attacker.intact, task.weights),
        budget=options.budget,
        budgets=options.budgets,
        factor=options.factor if task.is_loss else 0.0,
        dtype=attacker.values.dtype,
        bound=options.search.bound,
        n_sensitive=len(attacker.values),
        n_values=sum(parameter.numel() for parameter in loaded.model.parameters()),
        dims=attacker.search.dims,
        kinds=kinds,
        anywhere=wide,
        notes=tuple(dict.fromkeys((*loaded.notes, *task.notes, *attacker.notes))),
    )


def run(session: Session, options: AttackAndSave) -> Attack:
    """The attack, as the command runs it; with `save` its strongest edits are written."""
    if options.save is not None:
        check_save(options.save, yes=options.yes)
    texts, _ = session.texts()
    found = attack(session.loaded, texts, replace(options, row=session.load.row), progress=session.progress)
    if options.save is not None:
        found = replace(
            found, provenance=replace(found.provenance, command=session.command)
        )  # its folder is of this call
        n_values = save_attacked(session.loaded, found, found.strongest, options.save)
        session.notice(
            f"{options.save}: a deliberately damaged copy, {n_values} values changed ({found.strongest.kind})"
        )
    return found


class _Attacker:
    """One model, its values, the texts that choose and the texts that judge."""

    def __init__(self, loaded: LoadedModel, texts: Texts, options: AttackOptions, report: Report):
        if len(texts) < options.n_search + 1:
            raise BadInput(
                f"{len(texts)} texts: {options.n_search} choose the edits and at least one more must judge them; "
                "give more texts, or fewer with --search-texts"
            )
        self.loaded, self.options, self.report = loaded, options, report
        self.fingerprint = fingerprint(loaded.model)
        # Spread over the data, whose order may mean something.
        chosen = set(np.linspace(0, len(texts) - 1, options.n_search).round().astype(int).tolist())
        texts = cut_texts(loaded, texts, options.task.max_length)
        held = texts.some([number for number in range(len(texts)) if number not in chosen])

        def target(of: Texts) -> Target:
            return Target(loaded, of, replace(options.task, seed=options.seed), n_probes=2, seed=options.seed)

        self.held = target(held)
        self.parameters = self.held.parameters
        found = found_dims(loaded, options.dims)
        entries = entries_of(loaded, found)
        self.values = sensitive_values(loaded, self.parameters, entries)
        dims = tuple(dict.fromkeys(dim for one in found.values() for dim in one.dims))
        self.notes = [
            f"stream {name}: dimensions {', '.join(map(str, one.dims))}, {one.how}" for name, one in found.items()
        ]
        self.search = Search(target(texts.some(sorted(chosen))), self.values, dims, options.search, report)
        self.watch = Watch(loaded, options.dims, options.row)
        self.intact = self.held.per_text()
        check_intact(loaded, self.held.task, self.intact)
        self._slopes: dict[str, Any] | None = None

    def sensitive(self, kind: str) -> Attacked:
        """One kind of edit of the values that a fingerprint holds."""
        before = self.search.n_measured
        moves = self.search.moves(kind)
        points = [
            self.point(self.values, moves, budget, chosen)
            for budget, chosen in self.search.run(moves, self.options.budgets)
        ]
        smallest = self.smallest(self.values, moves, points)
        points[-1] = replace(points[-1], edits=self.judged(points[-1].edits))
        made = Attacked(kind, "sensitive", tuple(points), smallest, n_measured=self.search.n_measured - before)
        return replace(made, controls=tuple(self.controls(made)))

    def wide(self) -> Iterator[Attacked]:
        """Edits of any weight, by gradient × change at the intact model; nothing is tried on the way."""
        target = self.search.target
        names = list(
            {id(tensor): name for name, tensor in self.parameters.items() if tensor.is_floating_point()}.values()
        )
        self.report("slopes of all weights", 0, 1)
        slopes = target.slopes(names)
        bound = self.options.search.bound
        for kind in self.options.kinds:
            self.report(f"anywhere: {kind}", 0, 1)
            values = widest(target, slopes, kind, n=self.options.budget, bound=bound)
            moves = moves_of(kind, values, bound=bound)
            search = Search(target, values, (), self.options.search)
            order = search.ranked(moves, slopes)
            points = []
            for budget in self.options.budgets:
                which = order[: budget // moves.cost]
                points.append(self.point(values, moves, budget, Chosen(which, search.measure(moves, which))))
            smallest = self.smallest(values, moves, points)
            points[-1] = replace(points[-1], edits=self.judged(points[-1].edits, deep=True))
            yield Attacked(kind, "anywhere", tuple(points), smallest)

    def point(self, values: Values, moves: Moves, budget: int, chosen: Chosen) -> Point:
        """What chosen moves do to the texts that judge."""
        changes = moves.changes(values, chosen.which)
        value, change, low, high = self.judge(changes)
        intact = weighted_mean(self.intact, self.held.task.weights)
        times = value / intact if self.held.task.is_loss else math.nan
        edits = tuple(self.edits(values, moves, chosen.which))
        return Point(budget, len(edits), value, change, low, high, times, chosen.value, edits)

    def judge(self, changes: Sequence[ValueChange]) -> tuple[float, float, float, float]:
        """(value, change, low, high) of the texts that judge with some changes made."""
        task, seed = self.held.task, self.options.seed
        with edited_values(self.held.loaded.model, changes):
            after = self.held.per_text()
        with np.errstate(invalid="ignore"):
            moved = after - self.intact
            change, low, high = scored(moved, task.weights, None, seed=seed)
        return weighted_mean(after, task.weights), change, low, high

    def edits(self, values: Values, moves: Moves, which: Sequence[int]) -> Iterator[Edit]:
        """Moves as a result shows them."""
        for number, move in enumerate(which):
            bit = int(moves.bit[move])
            places = [int(moves.place[move]), int(moves.partner[move])]
            afters = [float(moves.after[move]), float(values.before[places[0]])]
            for place, after in zip(places, afters, strict=True):
                if place < 0:
                    continue
                name, dim = values.names[values.tensor[place]], int(values.dim[place])
                index = np.unravel_index(int(values.flat[place]), tuple(self.parameters[name].shape))
                where = tuple(int(one) for one in index)
                known = None if dim < 0 else dim
                yield Edit(name, where, known, float(values.before[place]), after, None if bit < 0 else bit, number)

    def smallest(self, values: Values, moves: Moves, points: Sequence[Point]) -> Point | None:
        """The fewest of the chosen edits, in their order, that multiply the loss by `factor`; found by halving."""
        if not self.held.task.is_loss:
            return None
        enough = next((i for i, point in enumerate(points) if point.times >= self.options.factor), None)
        if enough is None:
            return None
        best = points[enough]
        low = points[enough - 1].n_edits // moves.cost if enough else 0
        order = [edit.move for edit in best.edits]
        high = len(set(order))
        while high - low > 1:
            middle = (low + high) // 2
            some = [edit for edit in best.edits if edit.move < middle]
            changes = changes_of(some, self.parameters)
            value, change, lower, upper = self.judge(changes)
            times = value / weighted_mean(self.intact, self.held.task.weights)
            if times >= self.options.factor:
                high = middle
                best = Point(len(some), len(some), value, change, lower, upper, times, math.nan, tuple(some))
            else:
                low = middle
        return best

    def controls(self, made: Attacked) -> Iterator[Control]:
        """Random edits of the same kind: of sensitive values, and of any of the model's."""
        options = self.options
        cost = 2 if made.kind == "swap" else 1
        n_moves, bound = made.full.n_edits // cost, options.search.bound
        for among in ("sensitive", "anywhere") if options.n_random and n_moves else ():
            changed, most = [], 0
            for number in range(options.n_random):
                self.report(f"random: {made.kind}", number, options.n_random)
                seed = options.seed + 1 + number
                values = self.values if among == "sensitive" else anywhere(self.parameters, seed)
                moves, which = drawn(values, made.kind, n=n_moves, bound=bound, seed=seed)
                changes = moves.changes(values, which)
                changed.append(self.judge(changes)[1])
                most = max(most, len(changes))
            yield Control(among, tuple(changed), most, rank_p(made.full.change, np.array(changed)))

    def judged(self, edits: Sequence[Edit], *, deep: bool = False) -> tuple[Edit, ...]:
        """The edits with whether `verify` finds each move when it is made alone."""
        judged = []
        for move in dict.fromkeys(edit.move for edit in edits):
            mine = [edit for edit in edits if edit.move == move]
            changes = changes_of(mine, self.parameters)
            caught = self.watch.caught(changes)
            # A deep verification finds all that a plain one does.
            also = (caught or self.watch.caught_deep(changes)) if deep else None
            judged += [replace(edit, caught=caught, caught_deep=also) for edit in mine]
        return tuple(judged)


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
    """The fingerprint of an intact model in memory, to hold edited ones against."""

    def __init__(self, loaded: LoadedModel, dims: Sequence[int] | Find = FIND, row: RowChoice = None):
        self.source = live_source(loaded)
        # The model is in memory, so that no limit on reading applies.
        self.scan = ScanOptions(row=row, max_read=self.source.total_bytes)
        options = FingerprintOptions(scan=self.scan, dims=dims if dims == FIND else tuple(dims))
        self.baseline = fingerprint_checkpoint(self.source, options)
        self.model = loaded.model
        self._intact: dict[str, TensorHash] = {}

    def caught(self, changes: Sequence[ValueChange]) -> bool:
        """Whether `verify` says that the model with these changes does not match."""
        with edited_values(self.model, changes):
            return not verify_checkpoint(self.source, self.baseline, self.scan).matches

    def caught_deep(self, changes: Sequence[ValueChange]) -> bool:
        """Whether `verify --deep` does, which also compares hashes of whole tensors.

        Only the tensors that change are hashed: the others' hashes are those of the intact model.
        """
        names = list(dict.fromkeys(change.tensor for change in changes))
        for name in names:
            if name not in self._intact:
                self._intact[name] = hash_tensor(self.source, name, name)
        with edited_values(self.model, changes):
            return any(relation(self._intact[name], hash_tensor(self.source, name, name)) == "moved" for name in names)
