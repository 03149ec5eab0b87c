"""Pruning and the positions of the residual stream: what a pruning removed, and what it costs to force it onto one of them.

    found = prune_check("bert", "pruned-bert")                  # two models: what is newly zero
    found = prune_check("bert", "masks.safetensors")            # a model and masks
    found = prune_check("pruned.pt")                            # weight_orig and weight_mask, config.json beside it
    found.holds, found.verdict
    found = prune_test(load_model("smollm2-135m"), read_texts("excerpt"))
    found.verdict, found.uses

Every condition of `prune test` prunes the same number of weights of the blocks' last operations. `magnitude` takes the
smallest. The others take the weights of some positions first, then the smallest of what is left: `chosen` the outliers in all
layers, the controls random positions in all layers, random ones that differ by layer, and ones about as large that differ by
layer.
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Lt

import outlierlens.view.charts.draw as d
from outlierlens.ablation.study import Condition, Measurement, Outcome, Progress, Study
from outlierlens.analyses.prune_budget import Budget
from outlierlens.analyses.prune_cells import Removal
from outlierlens.analyses.prune_evidence import Evidence, Pruned
from outlierlens.analyses.prune_masks import open_source
from outlierlens.data.texts import Texts
from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.errors import BadInput, TooMuchToRead
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import Estimate, More, Quiet, Row
from outlierlens.session import Session
from outlierlens.statistics.means import no_interval, unseen_note
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.view.charts.base import ALARM, MUTED, Spec, label, looks, round_to, strongest_first
from outlierlens.view.charts.base import field as field_of
from outlierlens.view.charts.draw import MOST, inked_dims, names_beside, panel
from outlierlens.view.pictures import WIDTH, Picture, Strips
from outlierlens.view.section import Change, Count, FineShare, P, few, number_of_layers, these

LISTED = 6  # positions that a sentence names
SHOWN = 32  # positions besides outliers and broken ones: those that lost most


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Which positions of which stream are the outliers."""

    dims: DimsOrFind = FIND
    """The outliers: 308,381; find: what scan finds in the weights."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""


# --- prune check ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PruneCheckOptions(Outliers):
    """How to check; without `stack` every stream."""

    rule: Annotated[Removal, Flat("min_layer_fraction", "row_fraction", "scale_alone")] = Removal()
    """When a position is removed and what breaks the constraint."""
    reading: Annotated[Literal["auto", "masks", "weights"], Flag("--as")] = "auto"
    """What the pruned file holds; auto decides by names and types."""
    positions: Path | None = None
    """JSON list: the old position of each dimension of a narrower stream."""
    scan: Annotated[ScanOptions, Flat("max_read")] = field(default_factory=ScanOptions)
    """How models are opened and outliers found; revision and subfolder are of the first model."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class PruneCheckCall(PruneCheckOptions):
    """What the command checks, and how."""

    before: Annotated[str, Flag(argument=True)]
    """The intact model; or masks or a pruned state dict with config.json beside it."""
    after: Annotated[str | None, Flag(argument=True)] = None
    """The pruned model, or masks: .safetensors, .npz, .pt."""
    only_outliers: bool = False
    """The constraint is about outliers alone, not about every position."""


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
    """limit: a position that is removed in so many layers breaks the constraint"""
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
    kept: Annotated[tuple[int, ...], Quiet]
    """of a narrower stream, the position that each of the new ones was; empty otherwise"""
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
    """removed in: layers"""
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
        "`detectors` finds such weights by what they do on a text."
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
class RemovedLayers(Picture):
    """Layers in which each position of a stream is removed: grey dots, outliers in colour, the constraint as a line."""

    stack: str

    def chosen(self, found: Any) -> list[Row]:
        """Its stream."""
        return [one for one in found.streams if one.stack == self.stack]

    def panel(self, found: Any) -> Spec:
        """Its layers."""
        stream: Any = self.chosen(found)[0]
        counts, top, hits = stream.layers_removed, stream.n_layers, {one.dim: one for one in found.outliers(stream)}
        shown = looks(strongest_first(hits, lambda dim: float(counts[dim])), list(hits))
        points = [{"dim": dim, "layers": n} for dim, n in enumerate(counts) if n and dim not in hits]
        named = [
            {"dim": dim, "layers": counts[dim], "name": label(dim), "share": round_to(hits[dim].share)} for dim in shown
        ]
        inked: list[Spec] = [{"dim": dim, "layers": counts[dim]} for dim in inked_dims(shown)[:MOST]]
        places = [(one["dim"] / max(len(counts) - 1, 1), one["layers"] / top) for one in inked]
        x = field_of("dim", "position of the stream", scale={"domain": [0, len(counts) - 1], "nice": False})
        axis = {"tickMinStep": 1, "format": "d", "tickCount": min(top, 8)}
        y = field_of("layers", "layers in which it is removed", scale={"domain": [0, top], "nice": False}, axis=axis)
        limit = [{"layers": stream.needed, "text": f"the constraint: fewer than {stream.needed} of {top} layers"}]
        what = d.columns(dim="position", layers="layers", share="share gone")
        layers = [
            d.points(points, x=x, y=y, tooltip=what[:2], shape="circle", size=26, color=MUTED, opacity=0.6),
            d.rule(limit, y=y, color=ALARM, strokeDash=[5, 4], strokeWidth=1.5),
            *d.haloed(limit, "text", y=y, color=ALARM, align="left", x=6, dy=-8, fontWeight=600),
            *([d.points(named, x=x, y=y, **d.dim_look(shown), tooltip=what, size=150)] if named else []),
            *(names_beside(inked, places, (), x, y) if inked else []),
        ]
        return panel(layers, WIDTH, 260)

    def legend(self, found: Any) -> str:
        """What its marks are."""
        return f"{f'stream {self.stack}; ' * (len(found.streams) > 1)}coloured: outliers; grey: other positions"

    def caption(self, found: Any) -> str:
        """The numbers that it shows, in words."""
        stream: Any = self.chosen(found)[0]
        touched, outliers = np.count_nonzero(stream.layers_removed), found.outliers(stream)[:MOST]
        hits = (f" Outlier {one.dim} is removed in {len(one.layers)} layers." for one in outliers)
        return (
            f"{touched:,} of {stream.hidden_size:,} positions are removed in some layer, {stream.n_broken:,} in "
            f"{stream.needed} of {stream.n_layers} layers or more. Removed means: {stream.definition}.{''.join(hits)}"
        )


@dataclass(frozen=True, kw_only=True)
class PruneCheck(Finding):
    """Which positions of the residual stream pruning removed in too many layers, and which single weights it took."""

    title = "Prune check"

    streams: tuple[StreamCheck, ...]
    """Streams"""
    positions: tuple[PositionCheck, ...]
    """Outliers, and positions that lost most"""
    weights: tuple[WeightCheck, ...]
    """Single weights that can carry a layer's output"""
    before: str
    """the intact model, "" where masks came alone"""
    after: str
    """masks or pruned model"""
    evidence: str
    """"masks", "torch masks" (weight_orig and weight_mask), or "models" (what is newly zero)"""
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
        return stream.broken if self.rule.scope == "all" else tuple(dim for dim in stream.broken if dim in known)

    def sentences(self) -> Iterator[str]:
        """The verdict, and what was read."""
        yield f"{self.verdict[:1].upper()}{self.verdict[1:]}."
        source = f"{self.before} → {self.after}" if self.before else self.after
        yield f"{source}, from {self.evidence}; {self.bytes_read:,} of {self.total_bytes:,} bytes were read."

    def drawn(self) -> tuple[Picture, ...]:
        """A picture for each stream."""
        return tuple(RemovedLayers(rows="streams", x="stack", y="n_broken", stack=one.stack) for one in self.streams)

    def _verdict(self, stream: StreamCheck) -> str:
        layers, outliers, breaking = number_of_layers(stream.n_layers), self.outliers(stream), self.breaking(stream)
        weights = self._weights(stream)
        if breaking:
            known = {one.dim for one in outliers}
            first = sorted(breaking, key=lambda dim: dim not in known)  # outliers before others, else as they are
            worst = max(stream.layers_removed[dim] for dim in breaking)
            named = _some([f"{dim} (outlier)" if dim in known else str(dim) for dim in first])
            return (
                f"broken: safe to prune except {named}, removed in {'up to ' * (len(breaking) > 1)}{worst} of {layers} "
                f"(the constraint allows fewer than {stream.needed}); {weights}"
            )
        only = self.rule.scope == "outliers"
        said = f"no {'outlier' if only else 'position'} is removed in {stream.needed} of {layers} or more"
        if any(one.gone and one.stack == stream.stack for one in self.weights):
            return f"broken: {weights}; {said}"
        if hit := [f"{one.dim} ({len(one.layers)})" for one in outliers if one.layers]:
            said += f"; outliers removed in some layers: {_some(hit)}"
        elif outliers:
            said += "; no outlier is removed in any layer"
        others = f"; {stream.n_broken} other positions are" if only and stream.broken else ""
        return f"holds: {said}{others}; {weights}"

    def _weights(self, stream: StreamCheck) -> str:
        """What became of the single weights."""
        weights = [one for one in self.weights if one.stack == stream.stack]
        if stream.not_looked_at:
            return f"single weights were not looked at ({stream.not_looked_at})"
        if lost := [one for one in weights if one.gone]:
            which = f"weights {_some([one.place for one in lost])} are" if lost[1:] else f"weight {lost[0].place} is"
            times = f"{lost[0].times_median:,.0f} times its block's median"
            return f"the {which} gone, which can carry a layer's output ({times})"
        stay = "the one weight that can carry a layer's output stays"
        stay = stay if len(weights) == 1 else f"all {len(weights)} weights that can carry a layer's output stay"
        return stay if weights else "no single weight stands out in the MLPs"


def _some(named: list[str]) -> str:
    more = f" and {len(named) - LISTED} more" if len(named) > LISTED else ""
    return ", ".join(named[:LISTED]) + more


def prune_check(before: str, after: str | None = None, options: PruneCheckOptions | None = None) -> PruneCheck:
    """Say which positions of the residual stream a pruning removed in too many layers, and which outliers it hit.

    `before` is the intact model and `after` the pruned one, or masks. Masks alone will do where a config.json lies beside
    them; outliers are then known only where the file holds the weights too.

    Raises:
        BadInput: nothing in the masks belongs to the model; layers were removed; a narrower stream without a map.
        UnknownModel, UnknownArchitecture, BadFile, TooMuchToRead: see those.
    """
    options = options or PruneCheckOptions()
    with ExitStack() as files:
        scan = options.scan
        reach = {"token": scan.token, "offline": scan.offline}
        first = files.enter_context(open_source(before, revision=scan.revision, subfolder=scan.subfolder, **reach))
        second = files.enter_context(open_source(after, **reach)) if after is not None else None
        evidence = Evidence(first, second, options)
        digest = hashlib.sha256(first.header_digest().encode())
        sources, bound = [first, *([second] if second else [])], evidence.streams()
        streams, positions, weights = list[StreamCheck](), list[PositionCheck](), list[WeightCheck]()
        notes = [note for one in sources for note in one.notes]
        for one in bound:
            pruned, missing = evidence.of_stream(one), ""
            digest.update(one.name.encode() + pruned.off.tobytes())
            outliers, named_by, unnamed = evidence.outliers(pruned.cells)
            try:
                found = list(evidence.single_weights(pruned, digest))
            except (BadInput, TooMuchToRead) as error:
                found, missing = [], str(error)
            stream = _stream(pruned, named_by, missing)
            streams.append(stream)
            positions += _positions(pruned, stream, outliers, options.rule.scope)
            weights += [
                WeightCheck(
                    neuron=each.neuron, dim=each.dim, stack=one.name, weight=each.weight, times_median=each.times_median,
                    gone=gone,
                )
                for each, gone in found
            ]  # fmt: skip
            notes += [f"{one.name}: {note}" if len(bound) > 1 else note for note in (*pruned.notes, *unnamed)]
        notes += evidence.unused(bound)
    dims = tuple(dict.fromkeys(str(one.dim) for one in positions if one.outlier))
    return PruneCheck(
        provenance=Provenance.now(sources[-1].name, digest.hexdigest()),
        about=About(
            stack=", ".join(one.stack for one in streams), layers=tuple(range(max(one.n_layers for one in streams))),
            dims=dims, named_by=" and ".join(dict.fromkeys(one.named_by for one in streams)),
        ),
        streams=tuple(streams), positions=tuple(positions), weights=tuple(weights),
        before=first.name if second else "", after=sources[-1].name, evidence=evidence.kind, rule=options.rule,
        bytes_read=sum(one.bytes_read for one in sources), total_bytes=sum(one.total_bytes for one in sources),
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def run_check(session: Session, options: PruneCheckCall) -> PruneCheck:
    """`prune check`."""
    rule = replace(options.rule, scope="outliers" if options.only_outliers else "all")
    options = replace(options, rule=rule, scan=session.scanning(max_read=options.scan.max_read))
    return prune_check(options.before, options.after, options)


def _stream(pruned: Pruned, named_by: str, missing: str) -> StreamCheck:
    cells, counts = pruned.cells, pruned.removed.sum(axis=0)
    broken = cells.broken(pruned.removed)
    broken = broken[np.lexsort((broken, -counts[broken]))]
    return StreamCheck(
        stack=cells.bound.name, site=cells.site, definition=cells.definition, values=int(cells.total.sum()) * cells.width,
        values_removed=int(pruned.off.sum()), n_layers=cells.n_layers, needed=cells.limit, hidden_size=cells.width,
        n_broken=len(broken), named_by=named_by, layers_removed=tuple(counts.tolist()), broken=tuple(broken.tolist()),
        kept=tuple(pruned.kept.tolist()), not_looked_at=missing,
    )  # fmt: skip


def _positions(pruned: Pruned, stream: StreamCheck, outliers: tuple[int, ...], scope: str) -> Iterator[PositionCheck]:
    share = pruned.off / pruned.cells.total[:, None]
    lost, broken = share.mean(axis=0), set(stream.broken)
    worst = [int(dim) for dim in np.lexsort((np.arange(len(lost)), -lost))[:SHOWN] if lost[dim] > 0]
    for dim in dict.fromkeys((*outliers, *stream.broken, *worst)):
        layers = tuple(np.flatnonzero(pruned.removed[:, dim]).tolist())
        yield PositionCheck(
            dim=dim, stack=stream.stack, outlier=dim in outliers, layers_removed=len(layers), n_layers=stream.n_layers,
            share=float(lost[dim]), breaks=dim in broken and (scope == "all" or dim in outliers), layers=layers,
            by_layer=tuple(share[:, dim].tolist()),
        )  # fmt: skip


# --- prune test ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PruneTestOptions(Outliers):
    """What to force the budget onto, and beside what; 0 sets of a control family leave it out."""

    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of the last operations' weights to prune; 0: the number of weights of --dims."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random positions, the same in all layers."""
    n_scattered: Annotated[int, Flag("--scattered"), Ge(0)] = 5
    """Random positions that differ by layer."""
    n_matched: Annotated[int, Flag("--matched"), Ge(0)] = 5
    """Positions of similar size that differ by layer."""
    task: Annotated[TaskOptions, Flat("max_length", "batch_size")] = TaskOptions()
    """How texts become numbers; its seed is this one."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class PruningCondition(Measurement):
    """One way to spend the budget."""

    swaps: Annotated[int, Count]
    """not by magnitude: weights that are not among the smallest"""


@dataclass(frozen=True, kw_only=True)
class BudgetUse(Row):
    """What the budget costs where the weights of some positions go first: the chosen ones, none, or a family of controls."""

    note = "Of several sets the change is their median."

    family: str
    """weights that go first"""
    n: Annotated[int, Count]
    """sets"""
    change: Annotated[Estimate, Change]
    """change of the {task} ({unit}): minus the intact model's, paired by text"""
    percentile_95: Annotated[float | None, Change] = None
    """95th percentile"""
    mean: Annotated[float | None, Change] = None
    p: Annotated[float | None, P] = None
    """rank p: (1 + number of random positions that cost as much) / (1 + n)"""
    times_median: Annotated[float | None, More] = None
    """× median: the change of the chosen positions over that of the control; none where that is not positive"""
    times_percentile_95: Annotated[float | None, More] = None
    """× 95th percentile"""
    times_mean: Annotated[float | None, More] = None
    """× mean"""
    closeness: Annotated[float | None, More] = None
    """closeness: of matched positions, median of their magnitudes over the chosen ones'"""
    sets: Annotated[tuple[float, ...], Change, Quiet] = ()
    """change of each set"""


class BudgetStrips(Strips):
    """A strip for each use of the budget."""

    def legend(self, found: Finding) -> str:
        """What its marks are."""
        return "coloured: the change, of several sets their median; grey: each set"


@dataclass(frozen=True, kw_only=True)
class PruneTest(Finding):
    """The same number of weights pruned by magnitude, and forced onto one position, beside controls."""

    title = "Prune test"
    pictures = (BudgetStrips(rows="uses", x="change", y="family", draws="sets", greys="{n} control sets"),)

    uses: tuple[BudgetUse, ...]
    """The same number of weights pruned"""
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
        others = [one.percentile_95 for one in self.uses if one.percentile_95 is not None]
        return chosen.low > max(self.magnitude.change.value, 0) and all(chosen.value > one for one in others)

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
        """The verdict, and the budget."""
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
    options = options or PruneTestOptions()
    budget = Budget(loaded, options)
    reading = replace(options.task, seed=options.seed)
    task = make_task(loaded, texts, reading)
    chosen = dict.fromkeys(range(budget.cells.n_layers), budget.dims)
    controls, closeness = budget.controls(chosen)
    taken, conditions = list[np.ndarray](), list[Condition]()
    for name, plan in [("chosen", chosen), ("magnitude", {}), *controls]:
        taken.append(budget.pruner.pruned(plan, budget.n))
        family = name.rstrip("0123456789 ")
        conditions.append(Condition(family, name, plan, lambda those=taken[-1]: budget.pruner.off(those)))  # type: ignore[misc]
    identity = {"task": asdict(reading), "stack": budget.stack.name, "budget": budget.n, "seed": options.seed}
    with Study(loaded, task, texts, identity, rows=rows, progress=progress) as study:
        done = study.measure(conditions)
    swaps = [0, *(int(np.count_nonzero(those & ~budget.alone)) for those in taken)]
    norms = "norms here multiply by 1 + weight: a pruned value is −1, where the factor is 0"
    return PruneTest(
        provenance=loaded.provenance(seed=options.seed, digest=study.fingerprint),
        about=study.about(chosen, named_by=budget.named_by),
        uses=tuple(_uses(study, done, closeness)),
        conditions=tuple(
            study.row(one, PruningCondition, swaps=n) for one, n in zip((study.intact, *done), swaps, strict=True)
        ),
        site=budget.cells.site, n_candidates=budget.pruner.n_candidates, forced=budget.forced, budget=budget.n,
        notes=(*loaded.notes, *task.notes, unseen_note(task.n_texts), *(norms,) * budget.cells.beyond_masks),
    )  # fmt: skip


def _uses(study: Study, done: list[Outcome], closeness: float | None) -> Iterator[BudgetUse]:
    for one in done[:2]:
        yield BudgetUse(family=one.condition.family, n=1, change=study.change(one))
    for family in study.families([done[0], *done[2:]], "random position", closeness):
        figures = vars(family) | {"change": Estimate(family.median)}
        yield BudgetUse(**{one.name: figures[one.name] for one in BudgetUse.columns()})


def run_test(session: Session, options: PruneTestOptions) -> PruneTest:
    """`prune test`."""
    texts, _ = session.texts()
    return prune_test(session.loaded, texts, options, progress=session.progress, rows=session.kept)
