"""What the report says of the definitions side by side: `detectors_sections(results)`, one section a result.

The first sentence is the verdict: which dimension most definitions agree on, or that there is none.
"""

import math

from outlierlens.charts.detectors import detectors, reading
from outlierlens.charts.super_weights import reading as weights_reading
from outlierlens.charts.super_weights import super_weights
from outlierlens.defined import MODEL, Detectors
from outlierlens.report.phrases import listed
from outlierlens.view.section import Rows, Section

AGREED = 0.5  # of the definitions that find anything


def detectors_sections(results: tuple[Detectors, ...]) -> tuple[Section, ...]:
    """The sections of the page, numbered from the second on."""
    return tuple(_section(found, number) for number, found in enumerate(results))


def detectors_sentences(found: Detectors) -> tuple[str, ...]:
    """The verdict, what one sees, and what the super weights are for."""
    said = [verdict(found), reading(found)]
    if found.super_weights is not None:
        said.append(weights_reading(found.super_weights))
    return tuple(said)


def verdict(found: Detectors) -> str:
    """Which dimensions at least half of the definitions that find anything agree on."""
    finding = [name for name in found.names if found.of(name).dims]
    agreed = [dim for dim, by in found.votes().items() if len(by) >= max(2, AGREED * len(finding))]
    if not finding:
        return "No published definition finds an outlier dimension."
    if not agreed:
        return (
            f"The definitions do not agree on any dimension: {len(finding)} of {len(found.names)} find some, and no dimension "
            "is found by half of those."
        )
    word = "Dimension" if len(agreed) == 1 else "Dimensions"
    return (
        f"{word} {listed(agreed)}: outlier{'' if len(agreed) == 1 else 's'} by at least half of the {len(finding)} "
        f"definitions that find any; a claim about other dimensions rests on its definition."
    )


def _section(found: Detectors, number: int) -> Section:
    suffix = f"-{number + 1}" if number else ""
    drawn = [detectors(found, name=f"detectors{suffix}")]
    if found.super_weights is not None:
        drawn.append(super_weights(found, name=f"super-weights{suffix}"))
    return Section(
        f"detectors{suffix}",
        "Every definition side by side",
        detectors_sentences(found),
        tuple(drawn),
        tuple(_tables(found)),
    )


def _tables(found: Detectors) -> list[Rows]:
    others = found.conditions[1:]
    rows = tuple(
        (
            one.name,
            listed(found.of(one.name).dims) if found.of(one.name).dims else found.of(one.name).why_not or "none",
            *(len(found.of(one.name, c).dims) if found.of(one.name, c).applies else None for c in others),
            one.tap,
            one.rule,
            ", ".join(f"{name} {value:g}" for name, value in one.thresholds.items()),
        )
        for one in found.definitions
    )
    note = (
        f"{found.provenance.model} on {found.n_texts:,} texts of {found.data}. Numbers in the columns of nulls are dimensions "
        f"found there; – where a definition does not apply. Its rule where it leaves room: {_ours(found)}."
    )
    tables = [Rows("Definitions", ("definition", MODEL, *others, "tap", "rule", "thresholds"), rows, note)]
    if found.super_weights is not None and found.super_weights.trials:
        trials = tuple(
            (one.name, one.value, one.change, *(None if math.isnan(end) else end for end in (one.low, one.high)))
            for one in found.super_weights.trials
        )
        unit = f"{found.super_weights.task}, {found.super_weights.unit}"
        tables.append(Rows("Super weights", ("weights", unit, "change", "95 % from", "to"), trials))
    return tables


def _ours(found: Detectors) -> str:
    return "; ".join(f"{one.name}: {one.ours}" for one in found.definitions if one.ours) or "nothing is ours"
