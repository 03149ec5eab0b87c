"""What is said of dimensions beyond zero, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

from outlierlens.experiments.beyond_zero.charts import beyond_zero
from outlierlens.experiments.beyond_zero.result import RULE, BeyondZero, Treated, Treatment
from outlierlens.view.section import Cell, Change, Interval, P, Rows, Section, Share, ShareInterval
from outlierlens.view.words import number_of_layers, these

HEADS = ("treatment", "change", "95 %", "recovered", "95 %", "random median", "random largest", "p")


def sections(found: BeyondZero, *, verbose: bool = False) -> Iterator[Section]:
    """What each set of dimensions is, and what every treatment does; with `verbose` further numbers of the task."""
    tables = []
    for treated in found.treated:
        rows = tuple(map(_cells, treated.treatments))
        last = treated is found.treated[-1]
        tables.append(Rows(f"{treated.label}, beside {_sets(treated)}", HEADS, rows, RULE if last else ""))
    if verbose:
        tables += [_further(treated) for treated in found.treated if treated.treatments[0].also]
    title = f"Beyond zero: {these(found.treated[0].dims).partition(' ')[2]}"
    yield Section("beyond-zero", title, tuple(_sentences(found)), (beyond_zero(found),), tuple(tables))


def _sentences(found: BeyondZero) -> Iterator[str]:
    yield from map(found.says, found.treated)
    yield (
        f"{found.provenance.model}: {found.task} ({found.unit}) on {len(found.texts):,} {found.inputs} of {found.data}, "
        f"{found.n_tokens:,} tokens; intact {found.intact:z.4f}."
    )
    yield (
        f"Treated in {number_of_layers(len(found.layers))} of stream {found.stack}; dimensions: {found.named_by}; means of "
        f"the other {found.n_folds - 1} of {found.n_folds} parts of the {found.inputs}."
    )


def _sets(treated: Treated) -> str:
    n = len(treated.random_dims)
    one = "dimension" if len(treated.dims) == 1 else "set"
    return f"{n} random {one}{'s' * (n > 1)}" if n else "no random dimensions"


def _cells(one: Treatment) -> tuple[Cell, ...]:
    known = math.isfinite(one.recovered)
    return (
        one.name,
        Change(one.change),
        Interval(one.low, one.high),
        Share(one.recovered) if known else None,
        ShareInterval(one.recovered_low, one.recovered_high) if known else None,
        *((Change(one.random_median), Change(max(one.random))) if one.random else (None, None)),
        None if one.p is None else P(one.p),
    )


def _further(treated: Treated) -> Rows:
    names = tuple(treated.treatments[0].also or ())
    rows = tuple((one.name, *((one.also or {}).get(name) for name in names)) for one in treated.treatments)
    return Rows(f"{treated.label}: further numbers", ("treatment", *names), rows)
