"""What the report says of dimensions beyond zero: `beyond_zero_sections(found)`, one section a result."""

import math

from outlierlens.charts.beyond_zero import beyond_zero
from outlierlens.report.phrases import listed
from outlierlens.treated import RULE, BeyondZero, treatment_rows
from outlierlens.view.section import Rows, Section

KEYS = ("treatment", "change", "low", "high", "recovered", "recovered_low", "recovered_high", "random_median", "p")
HEADS = ("treatment", "change", "95 % from", "to", "recovered", "95 % from", "to", "random median", "p")


def beyond_zero_sections(results: tuple[BeyondZero, ...]) -> tuple[Section, ...]:
    """The sections of the page, numbered from the second on."""
    return tuple(_section(found, number) for number, found in enumerate(results))


def _section(found: BeyondZero, number: int) -> Section:
    name = "beyond-zero" + (f"-{number + 1}" if number else "")
    rows = [row for row in treatment_rows(found) if row["dims"] == found.treated[0].label]
    cells = tuple(
        tuple(None if isinstance(row[key], float) and math.isnan(row[key]) else row[key] for key in KEYS)
        for row in rows
    )
    where = f"{found.provenance.model} on {len(found.texts)} {found.inputs} of {found.data}"
    note = f"{RULE} The task is the {found.task} ({found.unit}) of {where}."
    title = f"Beyond zero: {listed(found.treated[0].dims)}"
    sentences = tuple(found.says(treated) for treated in found.treated)
    return Section(name, title, sentences, (beyond_zero(found, name=name),), (Rows("Treatments", HEADS, cells, note),))
