"""What pruning took from the residual stream, and what that did: plain data, without torch.

found = load("check.json")
found.holds, found.verdict                    # False, "broken: safe to prune except 308 (outlier): …"
found.stacks[0].layers_removed[308]           # layers in which position 308 is removed
effect.verdict                                # of a pruning experiment
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Gt, Le

from outlierlens.ablation.damage import Condition, Control
from outlierlens.detection.rules import layers_needed
from outlierlens.errors import BadInput
from outlierlens.options import check
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.words import no_interval
from outlierlens.view.words import number_of_layers

Scope = Literal["all", "outliers"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
LISTED = 6  # positions that a sentence names


@dataclass(frozen=True)
class Removal:
    """When a position counts as removed, and when that breaks the constraint.

    A position is removed in a layer when the values of the block's last operation that make it are zero:
    where the block ends in a norm, its scale and its bias there; elsewhere at least `row_fraction` of the weights of the
    last linears that write to it. (A norm that multiplies by 1 + weight is zero at weight −1.)
    The constraint (Kovaleva et al. 2021, section on pruning): no position is removed in `min_layer_fraction` of the layers.
    """

    row_fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of a row that must be gone, where blocks end in a linear."""
    scale_alone: bool = False
    """A norm's scale counts as removed even where its bias stays."""
    min_layer_fraction: Annotated[float, Gt(0), Le(1)] = 0.5
    """Removed in this share of the layers, a position counts as lost."""
    scope: Scope = "all"
    """Whether the constraint is about all positions or about outliers alone."""

    def __post_init__(self) -> None:
        check(self)
        if self.scope not in SCOPES:
            raise BadInput(f"scope is {self.scope!r}; use {' or '.join(SCOPES)}")

    def needed(self, n_layers: int) -> int:
        """Layers in which a position must be removed to break the constraint."""
        return layers_needed(self.min_layer_fraction, n_layers)

    def off_needed(self, total: int, *, is_norm: bool) -> int:
        """How many of the `total` values that make a position in a layer must be zero for it to be removed there."""
        # A hair below: 0.9 × 10 is not to become 10.
        return total if is_norm else max(1, math.ceil(self.row_fraction * total - 1e-9))

    def says(self, *, is_norm: bool, has_bias: bool) -> str:
        """The definition as it applies to a stream, for reading."""
        if is_norm:
            return (
                "scale and bias of the output norm zero"
                if has_bias and not self.scale_alone
                else "scale of the output norm zero"
            )
        share = "all" if self.row_fraction == 1 else f"at least {self.row_fraction:.0%}"
        return f"{share} of the last linears' weights that write to it zero"


@dataclass(frozen=True)
class Hit:
    """An outlier and what pruning took of it.

    Attributes:
        layers: those in which it is removed.
        share: of the values that make it, over all layers, that are gone, in [0, 1].
    """

    dim: int
    layers: tuple[int, ...]
    share: float


@dataclass(frozen=True)
class SingleWeight:
    """The largest weight of a neuron that an MLP's weights single out: what a super weight is, told from weights alone.

    Attributes:
        neuron: as "11:1229": its layer, and the column of the last linear. dim: the row.
        times_median: how far the neuron can reach, over its block's median.
        gone: whether pruning took it.
    """

    neuron: str
    dim: int
    weight: float
    times_median: float
    gone: bool

    @property
    def place(self) -> str:
        """ "[507, 1229] of layer 11"."""
        layer, _, column = self.neuron.partition(":")
        return f"[{self.dim}, {column}] of layer {layer}"


@dataclass(frozen=True)
class StackCheck:
    """One residual stream.

    Attributes:
        site: what was looked at: the block's last operation. definition: when a position is removed there.
        needed: layers in which a position must be removed to break the constraint.
        values, values_removed: of the last operations, all layers together.
        layers_removed: int [dim], in how many layers each position is removed.
        broken: positions removed in `needed` layers or more, most layers first.
        outliers: all that are known. named_by: who names them.
        dims: columns of `share`: outliers, then the positions that lost most.
        share: [layer, column], share of a position's values that is gone, in [0, 1].
        kept: of a narrower stream, the position that each of the new ones was; empty otherwise.
        weights: single weights that can carry a layer's output.
        not_looked_at: why single weights were not looked for, "" where they were.
    """

    stack: str
    site: str
    definition: str
    n_layers: Annotated[int, "layer"]
    needed: int
    hidden_size: Annotated[int, "dim"]
    values: int
    values_removed: int
    layers_removed: Annotated[np.ndarray, "dim"]
    broken: tuple[int, ...]
    outliers: tuple[Hit, ...]
    named_by: str
    dims: Annotated[tuple[int, ...], "column"]
    share: Annotated[np.ndarray, "layer column"]
    notes: tuple[str, ...] = ()
    kept: tuple[int, ...] = ()
    weights: tuple[SingleWeight, ...] = ()
    not_looked_at: str = ""

    @property
    def lost_weights(self) -> tuple[SingleWeight, ...]:
        """Single weights that are gone."""
        return tuple(one for one in self.weights if one.gone)

    @property
    def broken_outliers(self) -> tuple[int, ...]:
        """Outliers that are removed in too many layers."""
        known = {hit.dim for hit in self.outliers}
        return tuple(dim for dim in self.broken if dim in known)

    def breaks(self, scope: Scope) -> tuple[int, ...]:
        """Positions that break the constraint within its scope."""
        return self.broken if scope == "all" else self.broken_outliers


@dataclass(frozen=True)
class PruneCheck(Result):
    """Which positions of the residual stream pruning removed in too many layers.

    Attributes:
        before: the intact model, "" where masks came alone. after: masks or pruned model.
        evidence: "masks", "torch masks" (weight_orig and weight_mask), or "models" (what is newly zero).
        bytes_read, total_bytes: of both together.
    """

    provenance: Provenance
    before: str
    after: str
    evidence: str
    rule: Removal
    stacks: tuple[StackCheck, ...]
    bytes_read: int
    total_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no position within the scope is removed in too many layers, and no single weight is gone."""
        return not any(stack.breaks(self.rule.scope) or stack.lost_weights for stack in self.stacks)

    @property
    def failed(self) -> bool:
        """Whether the constraint is broken."""
        return not self.holds

    @property
    def verdict(self) -> str:
        """One line: "holds: …" or "broken: safe to prune except …"."""
        return "; ".join(_verdict(stack, self.rule, len(self.stacks) > 1) for stack in self.stacks)

    def records(self) -> list[dict[str, Any]]:
        """One flat row per outlier and per position that breaks the constraint."""
        found = []
        for stack in self.stacks:
            hits = {hit.dim: hit for hit in stack.outliers}
            for dim in dict.fromkeys((*hits, *stack.broken)):
                column = stack.dims.index(dim) if dim in stack.dims else None
                share = hits[dim].share if dim in hits else None
                if share is None and column is not None:
                    share = float(stack.share[:, column].mean())
                found.append({
                    "stack": stack.stack,
                    "dim": dim,
                    "outlier": dim in hits,
                    "layers_removed": int(stack.layers_removed[dim]),
                    "layers": stack.n_layers,
                    "share": share,
                    "breaks": dim in stack.breaks(self.rule.scope),
                })  # fmt: skip
        return found


def _verdict(stack: StackCheck, rule: Removal, several: bool) -> str:
    where = f"{stack.stack} " if several else ""
    layers = number_of_layers(stack.n_layers)
    limit = f"{stack.needed} of {layers}"
    breaking = stack.breaks(rule.scope)
    if breaking:
        known = {hit.dim for hit in stack.outliers}
        first = sorted(breaking, key=lambda dim: dim not in known)  # outliers before others, else as they are
        named = [f"{dim} (outlier)" if dim in known else str(dim) for dim in first[:LISTED]]
        more = f" and {len(breaking) - LISTED} more" if len(breaking) > LISTED else ""
        worst = int(max(stack.layers_removed[list(breaking)]))
        spread = f"up to {worst}" if len(breaking) > 1 else str(worst)
        return (
            f"{where}broken: safe to prune except {', '.join(named)}{more}, removed in {spread} of {layers} "
            f"(the constraint allows fewer than {stack.needed}); {_weights(stack)}"
        )
    said = f"no {'outlier' if rule.scope == 'outliers' else 'position'} is removed in {limit} or more"
    if stack.lost_weights:
        return f"{where}broken: {_weights(stack)}; {said}"
    said = f"{where}holds: {said}"
    hit = [one for one in stack.outliers if one.layers]
    if hit:
        named = [f"{one.dim} ({len(one.layers)})" for one in hit[:LISTED]]
        said += f"; outliers removed in some layers: {', '.join(named)}"
    elif stack.outliers:
        said += "; no outlier is removed in any layer"
    if rule.scope == "outliers" and stack.broken:
        said += f"; {len(stack.broken)} other positions are"
    return f"{said}; {_weights(stack)}"


def _weights(stack: StackCheck) -> str:
    """What became of the single weights."""
    if stack.not_looked_at:
        return f"single weights were not looked at ({stack.not_looked_at})"
    lost, all_of = stack.lost_weights, len(stack.weights)
    if lost:
        named = ", ".join(one.place for one in lost[:LISTED]) + (" and more" if len(lost) > LISTED else "")
        gone = f"the weight {named} is gone" if len(lost) == 1 else f"the weights {named} are gone"
        return f"{gone}, which can carry a layer's output ({lost[0].times_median:,.0f} times its block's median)"
    if not all_of:
        return "no single weight stands out in the MLPs"
    stay = "the one weight that can carry a layer's output stays"
    return stay if all_of == 1 else f"all {all_of} weights that can carry a layer's output stay"


@dataclass(frozen=True)
class PruneExperiment(Result):
    """The same number of weights pruned by magnitude, and forced onto one position, beside controls.

    Attributes:
        dims, dims_source: positions that the budget is forced onto, and who names them.
        site: the parameters that are pruned, in every layer. n_candidates: their weights, all layers together.
        forced: weights of `dims` in all layers. budget: weights that every condition prunes.
        sparsity: budget / n_candidates, in [0, 1].
        intact: nothing pruned. magnitude: the `budget` smallest weights, wherever they are.
        chosen: the weights of `dims` in all layers, then the smallest of the others up to the budget.
        controls: likewise with other weights forced: "random position" (the same others in all layers), "scattered"
            (random ones, different in each layer), "matched" (about as large, different in each layer).
        swaps: {label: weights pruned that magnitude alone would have kept}.
    """

    provenance: Provenance
    data: str
    data_digest: str
    task: str
    unit: str
    stack: str
    site: str
    dims: tuple[int, ...]
    dims_source: str
    n_layers: int
    hidden_size: int
    n_candidates: int
    forced: int
    budget: int
    n_texts: int
    n_tokens: int
    intact: Condition
    magnitude: Condition
    chosen: Condition
    controls: tuple[Control, ...]
    swaps: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def sparsity(self) -> float:
        """Share of the candidate weights that is pruned."""
        return self.budget / self.n_candidates

    def conditions(self) -> list[tuple[str, Condition]]:
        """(family, condition) of all that was measured, in the order of a table."""
        listed = [("intact", self.intact), ("magnitude", self.magnitude), ("chosen", self.chosen)]
        return listed + [(control.kind, one) for control in self.controls for one in control.conditions]

    @property
    def worse(self) -> bool:
        """Whether forcing the budget onto the chosen positions costs more than magnitude and than every control family."""
        if not self.chosen.change_low > max(self.magnitude.change, 0):
            return False
        return all(self.chosen.change > control.percentile_95 for control in self.controls)

    @property
    def verdict(self) -> str:
        """One line: what may be pruned and what may not."""
        named = _few(self.dims)
        cost = f"{self.chosen.change:+.3f} {self.unit} with {self.forced:,} weights forced onto {named}"
        if math.isnan(self.chosen.change_low):
            return f"no verdict on {named}, for {no_interval(self.n_texts)}: {cost}"
        if self.worse:
            return f"safe to prune except {named}: {cost}, {self.magnitude.change:+.3f} by magnitude, same budget"
        return f"{named} can be pruned like others: {cost}, {self.magnitude.change:+.3f} by magnitude, same budget"

    def records(self) -> list[dict[str, Any]]:
        """One flat row per condition."""
        return [
            {
                "family": family,
                "label": one.label,
                "dims": ",".join(map(str, one.dims)) if not one.by_layer else "differ by layer",
                "value": one.score.value,
                "change": one.change,
                "change_low": one.change_low,
                "change_high": one.change_high,
                "pruned": one.n_parameters,
                "swaps": self.swaps.get(one.label, 0),
            }
            for family, one in self.conditions()
        ]


def _few(dims: Sequence[int]) -> str:
    more = f" and {len(dims) - LISTED} more" if len(dims) > LISTED else ""
    return ("position " if len(dims) == 1 else "positions ") + ", ".join(map(str, dims[:LISTED])) + more
