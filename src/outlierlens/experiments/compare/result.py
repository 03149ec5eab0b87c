"""Outliers of one model against another's: what stayed, came, went and moved.

compare(scan("base"), scan("fine-tuned")).changes
"""

from dataclasses import dataclass
from typing import Any, Literal

from outlierlens.experiments.integrity.result import Verification
from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class DimFate:
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
    changes: tuple[DimFate, ...]
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
