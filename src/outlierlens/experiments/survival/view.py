"""What is said of outlier dimensions after fine-tuning, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.experiments.compare.view import fates
from outlierlens.experiments.survival.charts import survival
from outlierlens.experiments.survival.result import Survival, TunedSurvival
from outlierlens.view.section import Cell, Count, Of, Rows, Section

DIMS = (
    *("stack", "site", "dim", "fate", "of the", "layers before", "after", "mean z before", "after"),
    *("largest z before", "after", "mean |Δz|", "largest"),
)
AGREEMENT = ("stack", "site", "z of the", "r", "r of the listed", "mean |Δz| of the listed", "of the others")
MOVEMENT = ("weights", "values", "rms change", "‖change‖ / ‖before‖")


def sections(found: Survival, *, verbose: bool = False) -> Iterator[Section]:
    """For every tuned model the fates of dimensions, how alike z is, and how far the weights moved."""
    base = found.base.provenance.model
    said = [said for one in found.tuned for said in fates(f"{base} → {one.name}", one.dims, one.jaccard, {})]
    charts = tuple(survival(found, place, name=f"survivals-{place}") for place in range(len(found.tuned)))
    tables = [table for tuned in found.tuned for table in _tables(tuned)]
    yield Section("survivals", f"Fine-tuned from {base}", tuple(said), charts, tuple(tables))


def _tables(tuned: TunedSurvival) -> Iterator[Rows]:
    dims = tuple(
        (
            *(dim.stack, dim.site, dim.dim, dim.fate, part),
            *(Of(shift.layers_before, dim.n_layers), Of(shift.layers_after, dim.n_layers)),
            *(shift.z_before, shift.z_after, shift.largest_before, shift.largest_after, shift.moved, shift.moved_most),
        )
        for dim in tuned.dims
        for part, shift in (("scale", dim.scale), ("bias", dim.bias))
        if shift is not None
    )
    if dims:
        yield Rows(f"{tuned.name}: before and after", DIMS, dims)
    agreement: tuple[tuple[Cell, ...], ...] = tuple(
        (one.stack, one.site, one.part, one.r, one.r_named, one.moved_named, one.moved_others)
        for one in tuned.agreement
    )
    if agreement:
        note = "r: Pearson correlation of z before and after over dimensions × layers: all, and those listed above."
        yield Rows(f"{tuned.name}: how alike z is", AGREEMENT, agreement, note)
    if tuned.movement:
        moved = tuple((one.group, Count(one.n_values), one.rms, one.relative) for one in tuned.movement)
        alone = f"{tuned.n_only_before} in the base alone, {tuned.n_only_after} in the tuned"
        yield Rows(f"{tuned.name}: moved ({tuned.n_matched} tensors in both, {alone})", MOVEMENT, moved)
