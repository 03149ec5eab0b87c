"""Outliers of one model against another's: what stayed, came, went and moved.

compare(scan("base"), scan("fine-tuned")).changes
"""

from dataclasses import dataclass
from typing import Any, Literal

from outlierlens.detection.scan.result import Scan, StackScan, strongest
from outlierlens.errors import BadInput
from outlierlens.experiments.integrity.result_verification import Verification
from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class Change:
    """One dimension's fate between two models: "stayed", "came" or "went"; z as the strongest over layers."""

    stack: str
    site: str
    dim: int
    fate: Literal["stayed", "came", "went"]
    z_scale_before: float
    z_scale_after: float
    layers_before: int
    layers_after: int


@dataclass(frozen=True)
class Comparison(Result):
    """Outliers of a base model against those of another, dimension by dimension.

    `moved` is true where outliers went and as many came: the basis differs, as in a retrained model.
    `jaccard` is |both| / |either| in [0, 1], by stack, or by "stack, site" where a view has several sites.
    `values` holds the sensitive values of one against the other's, where that was asked for.
    """

    before: Provenance
    after: Provenance
    changes: tuple[Change, ...]
    jaccard: dict[str, float]
    moved: dict[str, bool]
    values: Verification | None = None

    @property
    def values_moved(self) -> bool:
        """Whether sensitive values were held against each other, and do not match."""
        return self.values is not None and not self.values.matches

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the values."""
        return self.values.notes if self.values else ()

    def records(self) -> list[dict[str, Any]]:
        """One row per dimension found in either model."""
        return [vars(change) for change in self.changes]


def compare(before: Scan, after: Scan) -> Comparison:
    """Which outliers stayed, came and went from `before` to `after`, both scanned under one rule and view.

    Raises:
        BadInput: rules, views, stacks or widths differ.
    """
    if before.rule != after.rule or before.view != after.view:
        raise BadInput("the two scans used different rules or views; scan both the same way")
    ours = {(s.stack, s.site): s for s in before.stacks}
    theirs = {(s.stack, s.site): s for s in after.stacks}
    if ours.keys() != theirs.keys() or any(ours[k].hidden_size != theirs[k].hidden_size for k in ours):
        sizes = " against ".join(
            ", ".join(f"{s.stack}: {s.site} × {s.hidden_size}" for s in scan.stacks) for scan in (before, after)
        )
        raise BadInput(f"the two models have different streams ({sizes}); compare models of one architecture")
    changes: list[Change] = []
    jaccard, moved = {}, {}
    for key, stack in ours.items():
        other = theirs[key]
        was, now = ({o.dim: o for o in s.outliers} for s in (stack, other))
        for dim in sorted(was.keys() | now.keys()):
            fate: Literal["stayed", "came", "went"]
            fate = "stayed" if dim in was and dim in now else "came" if dim in now else "went"
            changes.append(
                Change(
                    stack=stack.stack,
                    site=stack.site,
                    dim=dim,
                    fate=fate,
                    z_scale_before=_column(stack, dim),
                    z_scale_after=_column(other, dim),
                    layers_before=len(was[dim].layers_scale) if dim in was else 0,
                    layers_after=len(now[dim].layers_scale) if dim in now else 0,
                )
            )
        either = was.keys() | now.keys()
        where = stack.stack if len({s for s, _ in ours}) == len(ours) else f"{stack.stack}, {stack.site}"
        jaccard[where] = len(was.keys() & now.keys()) / len(either) if either else 1.0
        went, came = len(was.keys() - now.keys()), len(now.keys() - was.keys())
        moved[where] = went == came > 0
    return Comparison(before.provenance, after.provenance, tuple(changes), jaccard, moved)


def _column(stack: StackScan, dim: int) -> float:
    """Strongest z of `dim` over layers; NaN where the map does not hold it."""
    if dim not in stack.map_dims:
        return float("nan")
    return strongest(tuple(stack.z_scale[:, stack.map_dims.index(dim)].tolist()))
