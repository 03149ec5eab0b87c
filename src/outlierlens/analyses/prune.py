"""Pruning and the positions of the residual stream: what a pruning removed, and what it costs to force it onto one of them.

    found = prune_check("bert", "pruned-bert")                  # two models: what is newly zero
    found = prune_check("bert", "masks.safetensors")            # a model and masks, also from .pt
    found.holds, found.verdict
    found = prune_test(load_model("smollm2-135m"), read_texts("excerpt"))
    found.verdict, found.uses

Every condition of `prune test` prunes the same number of weights of the blocks' last operations. `magnitude` takes the
smallest. The others take the weights of some positions first, then the smallest of what is left: `chosen` the outliers in all
layers, the controls random positions in all layers, random ones that differ by layer, and ones about as large that differ by
layer.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt

from outlierlens.ablation.controls import Plan, matched_sets, random_sets
from outlierlens.ablation.study import Condition, Control, Measurement, Progress, Study
from outlierlens.analyses.prune_evidence import Evidence, PrunedStream, open_source
from outlierlens.analyses.prune_guard import Cells, Pruner, Removal
from outlierlens.architectures import live_parameters
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import magnitude as strength_of
from outlierlens.detection.targets import named_dims
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadInput, TooMuchToRead
from outlierlens.models.inputs import reaching
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, Options
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import Quiet, Row
from outlierlens.session import Session
from outlierlens.statistics.means import no_interval, unseen_note
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.view.pictures import Strips
from outlierlens.view.section import Count, FineShare, few, number_of_layers, these

LISTED = 6  # positions that a sentence names
SHOWN = 32  # positions besides outliers and broken ones: those that lost most


@dataclass(frozen=True, kw_only=True)
class Outliers(Options):
    """Which positions of which stream are the outliers."""

    dims: DimsOrFind = FIND
    """The outliers: 308,381; find: those that scan finds in the weights."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""


# --- prune check ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PruneCheckOptions(Outliers):
    """How to check; without `stack` every stream."""

    rule: Annotated[Removal, Flat("min_layer_fraction", "only_outliers")] = Removal()
    """Thresholds of a removed position and of the constraint."""
    scan: Annotated[ScanOptions, Flat("max_read")] = field(default_factory=ScanOptions)
    """How models are opened and outliers found; revision and subfolder are of the first model."""


@dataclass(frozen=True, kw_only=True)
class PruneCheckCall(PruneCheckOptions):
    """What the command checks, and how."""

    before: Annotated[str, Flag(argument=True)]
    """The intact model."""
    after: Annotated[str, Flag(argument=True)]
    """The pruned model, or masks: .safetensors, .pt."""


@dataclass(frozen=True, kw_only=True)
class StreamCheck(Row):
    """What pruning took from one residual stream."""

    stack: str
    """stream"""
    site: str
    """last operation"""
    definition: str
    """a position is removed where"""
    values: Annotated[int, Count]
    """values"""
    values_removed: Annotated[int, Count]
    """values gone"""
    n_layers: Annotated[int, Count]
    """layers"""
    needed: Annotated[int, Count]
    """limit: a position that is removed in this number of layers breaks the constraint"""
    hidden_size: Annotated[int, Count]
    """positions"""
    n_broken: Annotated[int, Count]
    """removed in too many layers"""
    named_by: str
    """outliers named by"""
    layers_removed: Annotated[tuple[int, ...], Quiet]
    """layers in which each position is removed [dim]"""
    broken: Annotated[tuple[int, ...], Quiet]
    """positions removed in too many layers, those in most layers first"""
    not_looked_at: Annotated[str, Quiet]
    """why single weights were not looked for, "" where they were"""


@dataclass(frozen=True, kw_only=True)
class PositionCheck(Row):
    """What pruning took of one position."""

    dim: int
    """position"""
    stack: str
    """stream"""
    outlier: bool
    layers_removed: Annotated[int, Count]
    """layers without it: where it is removed"""
    n_layers: Annotated[int, Count]
    """of: layers of the stream"""
    share: Annotated[float, FineShare]
    """values gone: of those that make it, over all layers"""
    breaks: bool
    """breaks the constraint"""
    layers: Annotated[tuple[int, ...], Quiet]
    """layers in which it is removed"""
    by_layer: Annotated[tuple[float, ...], Quiet]
    """share of its values that is gone in each layer"""


@dataclass(frozen=True, kw_only=True)
class WeightCheck(Row):
    """The largest weight of a neuron that an MLP's weights single out: what a super weight is, told from weights alone."""

    note = (
        "By weights alone: the largest weight of each neuron that can become 10 times its block's median (`scan --stack mlp`). "
        "`observe --rule all` finds such weights by their effect on a text."
    )

    neuron: str
    """neuron: its layer, and the column of the last linear"""
    dim: int
    """writes to: the row"""
    stack: str
    """stream"""
    weight: float
    """value"""
    times_median: float
    """neuron × median: how far the neuron can reach, over its block's median"""
    gone: bool

    @property
    def place(self) -> str:
        """ "[507, 1229] of layer 11"."""
        layer, _, column = self.neuron.partition(":")
        return f"[{self.dim}, {column}] of layer {layer}"


@dataclass(frozen=True, kw_only=True)
class PruneCheck(Finding):
    """Which positions of the residual stream pruning removed in too many layers, and which single weights it took."""

    title = "Prune check"
    pictures = (Strips(rows="positions", x="layers_removed", y="dim", by="stack", where=lambda row: row.outlier),)

    streams: tuple[StreamCheck, ...]
    """Streams"""
    positions: tuple[PositionCheck, ...]
    """Outliers, and positions that lost most"""
    weights: tuple[WeightCheck, ...]
    """Single weights that can carry a layer's output"""
    before: str
    """the intact model"""
    after: str
    """masks or pruned model"""
    evidence: str
    """"masks", or "models" (what is newly zero)"""
    rule: Removal
    bytes_read: int
    total_bytes: int

    @property
    def holds(self) -> bool:
        """Whether no position within the scope is removed in too many layers, and no single weight is gone."""
        return not any(map(self.breaking, self.streams)) and not any(one.gone for one in self.weights)

    @property
    def failed(self) -> bool:
        """Whether the constraint is broken."""
        return not self.holds

    @property
    def verdict(self) -> str:
        """One line: "holds: …" or "broken: safe to prune except …"."""
        several = len(self.streams) > 1
        return "; ".join(f"{one.stack} " * several + self._verdict(one) for one in self.streams)

    def outliers(self, stream: StreamCheck) -> list[PositionCheck]:
        """The outliers of a stream."""
        return [one for one in self.positions if one.outlier and one.stack == stream.stack]

    def breaking(self, stream: StreamCheck) -> tuple[int, ...]:
        """Positions that break the constraint within its scope."""
        known = {one.dim for one in self.outliers(stream)}
        return tuple(dim for dim in stream.broken if dim in known or not self.rule.only_outliers)

    def sentences(self) -> Iterator[str]:
        yield f"{self.verdict[:1].upper()}{self.verdict[1:]}."
        read = f"{self.bytes_read:,} of {self.total_bytes:,} bytes were read"
        yield f"{self.before} → {self.after}, from {self.evidence}; {read}."

    def _verdict(self, stream: StreamCheck) -> str:
        layers, outliers, breaking = number_of_layers(stream.n_layers), self.outliers(stream), self.breaking(stream)
        weights, lost = self._weights(stream)
        if breaking:
            known = {one.dim for one in outliers}
            first = sorted(breaking, key=lambda dim: dim not in known)  # outliers before others, else as they are
            worst = max(stream.layers_removed[dim] for dim in breaking)
            return (
                f"broken: safe to prune except {_some(f'{dim} (outlier)' if dim in known else str(dim) for dim in first)}, "
                f"removed in {'up to ' * (len(breaking) > 1)}{worst} of {layers} (the constraint allows fewer than "
                f"{stream.needed}); {weights}"
            )
        only = self.rule.only_outliers
        said = f"no {'outlier' if only else 'position'} is removed in {stream.needed} of {layers} or more"
        if lost:
            return f"broken: {weights}; {said}"
        if hit := [f"{one.dim} ({len(one.layers)})" for one in outliers if one.layers]:
            said += f"; outliers removed in some layers: {_some(hit)}"
        if only and stream.broken:
            said += f"; {stream.n_broken} other positions are"
        return f"holds: {said}; {weights}"

    def _weights(self, stream: StreamCheck) -> tuple[str, bool]:
        """(what became of the single weights, whether one is gone)."""
        weights = [one for one in self.weights if one.stack == stream.stack]
        if stream.not_looked_at:
            return f"single weights were not looked at ({stream.not_looked_at})", False
        if lost := [one for one in weights if one.gone]:
            of = f"{_some(one.place for one in lost)} (the first {lost[0].times_median:,.0f} times its block's median)"
            return f"single weights that can carry a layer's output are gone: {of}", True
        stay = f"single weights that can carry a layer's output stay: {len(weights)} of {len(weights)}"
        return stay if weights else "no single weight is an outlier in the MLPs", False


def _some(named: Iterable[str]) -> str:
    first, more = list(named)[:LISTED], list(named)[LISTED:]
    return ", ".join(first) + (f" and {len(more)} more" if more else "")


def prune_check(before: str, after: str, options: PruneCheckOptions | None = None) -> PruneCheck:
    """Find the positions of the residual stream that a pruning removed in too many layers, and the outliers among them.

    `before` is the intact model and `after` the pruned one, or masks; those of a state dict of `torch.nn.utils.prune` will do.

    Raises:
        BadInput: nothing in the masks belongs to the model; layers, or positions of the stream, were removed.
        UnknownModel, UnknownArchitecture, BadFile, TooMuchToRead: see those.
    """
    options = options or PruneCheckOptions()
    with ExitStack() as files:
        scan = options.scan
        reach: dict[str, Any] = {"token": scan.token, "offline": scan.offline}
        first = files.enter_context(open_source(before, revision=scan.revision, subfolder=scan.subfolder, **reach))
        second = files.enter_context(open_source(after, scan.adapter, **reach))
        evidence = Evidence(first, second, options)
        digest = hashlib.sha256(first.header_digest().encode())
        sources, bound = (first, second), evidence.streams()
        streams, positions, weights = list[StreamCheck](), list[PositionCheck](), list[WeightCheck]()
        notes = [note for one in sources for note in one.notes]
        for one in bound:
            pruned, missing = evidence.of_stream(one), ""
            digest.update(one.name.encode() + pruned.off.tobytes())
            outliers, named_by = evidence.outliers(pruned.cells)
            try:
                found = list(evidence.single_weights(pruned, digest))
            except (BadInput, TooMuchToRead) as error:
                found, missing = [], str(error)
            stream = _stream(pruned, named_by, missing)
            streams.append(stream)
            positions += _positions(pruned, stream, outliers)
            named = ("neuron", "dim", "weight", "times_median")
            weights += [
                WeightCheck(stack=one.name, gone=gone, **{name: getattr(each, name) for name in named})
                for each, gone in found
            ]
            notes += [f"{one.name}: {note}" if len(bound) > 1 else note for note in pruned.notes]
        notes += evidence.unused(bound)
    dims = tuple(dict.fromkeys(str(one.dim) for one in positions if one.outlier))
    return PruneCheck(
        provenance=Provenance.now(second.name, digest.hexdigest(), adapter=second.adapter),
        about=About(
            stack=", ".join(one.stack for one in streams), layers=tuple(range(max(one.n_layers for one in streams))),
            dims=dims, named_by=" and ".join(dict.fromkeys(one.named_by for one in streams)),
        ),
        streams=tuple(streams), positions=tuple(positions), weights=tuple(weights),
        before=first.name, after=second.name, evidence="masks" if evidence.masks else "models", rule=options.rule,
        bytes_read=sum(one.bytes_read for one in sources), total_bytes=sum(one.total_bytes for one in sources),
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def run_check(session: Session, options: PruneCheckCall) -> PruneCheck:
    """`prune check`."""
    options = replace(options, scan=session.scanning(max_read=options.scan.max_read))
    return prune_check(options.before, options.after, options)


def _stream(pruned: PrunedStream, named_by: str, missing: str) -> StreamCheck:
    cells, counts = pruned.cells, pruned.removed.sum(axis=0)
    broken = cells.broken(pruned.removed)
    broken = broken[np.lexsort((broken, -counts[broken]))]
    return StreamCheck(
        stack=cells.bound.name, site=cells.site, definition=cells.definition, values=int(cells.total.sum()) * cells.width,
        values_removed=int(pruned.off.sum()), n_layers=cells.n_layers, needed=cells.limit, hidden_size=cells.width,
        n_broken=len(broken), named_by=named_by, layers_removed=tuple(counts.tolist()), broken=tuple(broken.tolist()),
        not_looked_at=missing,
    )  # fmt: skip


def _positions(pruned: PrunedStream, stream: StreamCheck, outliers: tuple[int, ...]) -> Iterator[PositionCheck]:
    share = pruned.off / pruned.cells.total[:, None]
    lost, broken = share.mean(axis=0), set(stream.broken)
    worst = [int(dim) for dim in np.lexsort((np.arange(len(lost)), -lost))[:SHOWN] if lost[dim] > 0]
    for dim in dict.fromkeys((*outliers, *stream.broken, *worst)):
        layers = tuple(np.flatnonzero(pruned.removed[:, dim]).tolist())
        yield PositionCheck(
            dim=dim, stack=stream.stack, outlier=dim in outliers, layers_removed=len(layers), n_layers=stream.n_layers,
            share=float(lost[dim]), breaks=dim in broken and (dim in outliers or not pruned.cells.rule.only_outliers),
            layers=layers,
            by_layer=tuple(share[:, dim].tolist()),
        )  # fmt: skip


# --- prune test ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PruneTestOptions(Outliers):
    """Positions to force the budget onto, and controls; 0 sets of a control family leave it out."""

    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of the last operations' weights to prune; 0: the number of weights of --dims."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random positions, the same in all layers."""
    n_scattered: Annotated[int, Flag("--scattered"), Ge(0)] = 5
    """Random positions that differ by layer."""
    n_matched: Annotated[int, Flag("--matched"), Ge(0)] = 5
    """Positions of similar size that differ by layer."""
    task: Annotated[TaskOptions, Flat("max_length")] = TaskOptions()
    """How texts become numbers; `seed` replaces its own."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""


@dataclass(frozen=True, kw_only=True)
class PruningCondition(Measurement):
    """One way to spend the budget."""

    swaps: Annotated[int, Count]
    """not by magnitude: weights that are not among the smallest"""


@dataclass(frozen=True, kw_only=True)
class PruneTest(Finding):
    """The same number of weights pruned by magnitude, and forced onto one position, against controls."""

    title = "Prune test"
    pictures = (Strips(rows="controls", x="change", y="family", draws="sets", greys="control sets", captioned=False),)

    controls: tuple[Control, ...]
    """The chosen positions against the same number of weights pruned otherwise"""
    conditions: tuple[PruningCondition, ...]
    """(Conditions)"""
    site: str
    n_candidates: int
    forced: int
    """weights of the chosen positions in all layers"""
    budget: int
    """weights that every condition prunes"""

    @property
    def sparsity(self) -> float:
        """Share of the candidate weights that is pruned, in [0, 1]."""
        return self.budget / self.n_candidates

    @property
    def chosen(self) -> PruningCondition:
        """The weights of the chosen positions in all layers, then the smallest of the others up to the budget."""
        return next(one for one in self.conditions if one.family == "chosen")

    @property
    def magnitude(self) -> PruningCondition:
        """The smallest weights, wherever they are."""
        return next(one for one in self.conditions if one.family == "magnitude")

    @property
    def worse(self) -> bool:
        """Whether forcing the budget onto the chosen positions costs more than magnitude and than every control family."""
        chosen = self.chosen.change
        worst = max(one.percentile_95 for one in self.controls)
        return chosen.low > max(self.magnitude.change.value, 0) and chosen.value > worst

    @property
    def verdict(self) -> str:
        """One line: what may be pruned and what may not."""
        named, unit, chosen = these(self.dims, "position"), self.about.unit, self.chosen.change
        cost = f"{chosen.value:+z.3f} {unit} with {self.forced:,} weights forced onto {few(self.dims)}"
        than = f"{self.magnitude.change.value:+z.3f} by magnitude, same budget"
        if not chosen.settled:
            return f"no verdict on {named}, for {no_interval(self.about.n_texts)}: {cost}"
        said = f"safe to prune except {named}" if self.worse else f"{named} can be pruned like others"
        return f"{said}: {cost}, {than}"

    def sentences(self) -> Iterator[str]:
        yield f"{self.verdict[:1].upper()}{self.verdict[1:]}."
        yield (
            f"{self.budget:,} of {self.n_candidates:,} weights of {self.site} pruned ({self.sparsity:.2%}), {self.forced:,} of "
            f"them forced onto {few(self.dims)}."
        )


def prune_test(
    loaded: LoadedModel, texts: Texts, options: PruneTestOptions | None = None, *,
    progress: Progress | None = None, rows: Path | Keep | None = None,
) -> PruneTest:  # fmt: skip
    """Measure the loss with one budget of weights pruned by magnitude, and with it forced onto positions.

    With `rows`, every finished condition is appended to that file, and conditions found there are not measured again.

    Raises:
        BadInput: no outlier to force the budget onto, unknown positions, or no usable text.
    """
    loaded.need_whole("pruning by size")
    options = reaching(loaded, texts, options or PruneTestOptions())
    reading = replace(options.task, seed=options.seed)
    task, stack = make_task(loaded, texts, reading), loaded.stack(options.stack)
    shapes = {name: tuple(value.shape) for name, value in live_parameters(loaded.model).items()}
    cells = Cells.of(stack, shapes, Removal())
    named = named_dims(loaded, stack, options.dims)
    if options.dims == FIND and not named.found:
        raise BadInput(f"{loaded.name}: the scan finds no outlier; name positions to force the budget onto with --dims")
    pruner, chosen = Pruner(loaded.model, cells), dict.fromkeys(range(cells.n_layers), named.dims)
    n_candidates, forced = len(pruner.row.values), int(cells.total.sum()) * len(named.dims)
    budget = max(forced, round(options.sparsity * n_candidates))
    controls, closeness = _controls(loaded, cells, chosen, options)
    taken, conditions = list[np.ndarray](), list[Condition]()
    for name, plan in [("chosen", chosen), ("magnitude", {}), *controls]:
        taken.append(pruner.pruned(plan, budget))
        family = name.rstrip("0123456789 ")
        conditions.append(Condition(family, name, plan, lambda those=taken[-1]: pruner.off(those)))  # type: ignore[misc]
    identity = {"task": asdict(reading), "stack": stack.name, "budget": budget, "seed": options.seed}
    with Study(loaded, task, texts, identity, rows=rows, progress=progress) as study:
        done = study.measure(conditions)
    swaps = [0, *(int(np.count_nonzero(those & ~taken[1])) for those in taken)]
    norms = "norms here multiply by 1 + weight: a pruned value is −1, where the factor is 0"
    return PruneTest(
        provenance=loaded.provenance(seed=options.seed, digest=study.fingerprint),
        about=study.about(chosen, named_by=named.by), controls=study.families(done, "random position", closeness),
        conditions=tuple(
            study.row(one, PruningCondition, swaps=n) for one, n in zip((study.intact, *done), swaps, strict=True)
        ),
        site=cells.site, n_candidates=n_candidates, forced=forced, budget=budget,
        notes=(*loaded.notes, *task.notes, unseen_note(task.n_texts), *(norms,) * cells.beyond_masks),
    )  # fmt: skip


def _controls(
    loaded: LoadedModel, cells: Cells, chosen: Plan, options: PruneTestOptions
) -> tuple[list[tuple[str, Plan]], float | None]:
    """(the control plans by label, how near the matched ones came)."""
    dims, seed = chosen[0], options.seed
    random, matched = list[Plan](), list[Plan]()
    closeness = None
    if options.n_random:
        sets = random_sets(cells.width, len(dims), n=options.n_random, seed=seed, other_than=dims)
        random = [dict.fromkeys(chosen, one) for one in sets]
    if options.n_matched and cells.bound.weight_layers == tuple(chosen):
        strength = strength_of(loaded, cells.bound)
        near = matched_sets(strength, chosen, avoid=(), n=options.n_matched, seed=seed)
        matched, closeness = [one.plan for one in near], float(np.median([one.closeness for one in near]))
    scattered = [_scattered(cells, dims, [seed, number]) for number in range(options.n_scattered)]
    families = {"random position": random, "scattered": scattered, "matched": matched}
    return [(f"{name} {i + 1}", plan) for name, plans in families.items() for i, plan in enumerate(plans)], closeness


def _scattered(cells: Cells, dims: tuple[int, ...], seed: list[int]) -> Plan:
    """As many random positions in each layer, none of them twice while there are fresh ones."""
    random, size = np.random.default_rng(seed), len(dims)
    free = np.setdiff1d(np.arange(cells.width), dims)
    rounds = -(-cells.n_layers * size // len(free))
    drawn = np.concatenate([random.permutation(free) for _ in range(rounds)])
    return {i: tuple(sorted(set(drawn[i * size : (i + 1) * size].tolist()))) for i in range(cells.n_layers)}


def run_test(session: Session, options: PruneTestOptions) -> PruneTest:
    """`prune test`."""
    texts, _ = session.texts()
    return prune_test(session.loaded, texts, options, progress=session.progress, rows=session.kept)
