"""What is said of outliers of one model against another's, for every surface: `sections(found)`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from outlierlens.experiments.compare.result import Comparison, DimFate
from outlierlens.experiments.integrity import view as integrity
from outlierlens.view.section import Section, few, percent, rows_of

if TYPE_CHECKING:
    from outlierlens.experiments.survival.result import DimSurvival


def sections(found: Comparison, *, verbose: bool = False) -> Iterator[Section]:
    """What stayed, came and went; then sensitive values, where they were held against each other."""
    said = tuple(fates(f"{found.before.model} → {found.after.model}", found.changes, found.jaccard, found.moved))
    table = rows_of("Outlier by outlier", map(vars, found.changes))
    yield Section("comparisons", "Against another model", said, (), (table,) if table.rows else ())
    if found.values is not None:
        for section in integrity.sections(found.values, verbose=verbose):
            yield replace(section, name=f"comparisons-{section.name}")


def fates(
    models: str, dims: "Sequence[DimFate | DimSurvival]", jaccard: Mapping[str, float], moved: Mapping[str, bool]
) -> Iterator[str]:
    """Which dimensions stayed, came and went, and how many outliers are in common, stream by stream."""
    by_fate = {fate: [dim.dim for dim in dims if dim.fate == fate] for fate in ("stayed", "came", "went")}
    parts = [f"{few(some, 12) or 'none'} {fate}" for fate, some in by_fate.items()]
    yield f"{models}: {'; '.join(parts) if any(by_fate.values()) else 'no outlier in either model'}."
    for stack, share in jaccard.items():
        if any(dim.fate != "neither" and dim.stack == stack.partition(", ")[0] for dim in dims):
            more = "; as many came as went: the outliers moved, the basis may have turned" if moved.get(stack) else ""
            yield f"{models}, {stack}: {percent(share)} of the outliers in common (Jaccard){more}."
        elif len(jaccard) > 1:
            yield f"{models}, {stack}: no outlier in either model."
