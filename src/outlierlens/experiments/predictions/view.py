"""What is said of a model's predictions with dimensions off, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

from outlierlens.experiments.predictions.charts import prediction_shifts
from outlierlens.experiments.predictions.charts import predictions as draw
from outlierlens.experiments.predictions.result import (
    INTERVENTIONS,
    MeasureChange,
    Predictions,
    Spoken,
    prediction_rows,
)
from outlierlens.statistics.words import no_change, no_interval
from outlierlens.view import section as cells
from outlierlens.view.section import Cell, FineShare, Interval, P, Rows, Section
from outlierlens.view.words import these

SHIFTED = {
    "more frequent": "more frequent",
    "rarer": "rarer",
    "neither": "neither clearly more frequent nor rarer",
}
SHIFTS = (
    "input",
    "off",
    "verdict",
    "times",
    "Δ ln frequency",
    "95 %",
    "random",
    "p",
    "Δ expected",
    "95 %",
    "random",
    "p",
)
SAID = ("input", "off", "accuracy", "surprisal", "entropy", "slope", "ρ", "slope, exp.", "ρ, exp.", "KL to corpus", "KL from",
        "special", "types", "says")  # fmt: skip
OF_SAID = ("accuracy", "surprisal", "entropy", "slope", "spearman", "slope_expected", "spearman_expected", "kl_to_unigram",
           "kl_from_unigram", "special")  # fmt: skip
EVERY = ("input", "off", "measure", "intact", "ablated", "change", "95 %", "random", "p")


def sections(found: Predictions, *, verbose: bool = False, name: str = "predictions") -> Iterator[Section]:
    """Which way predictions go and what is said; with `verbose` every measure.

    `name` is the section's, and begins those of its charts.
    """
    tables = [
        Rows(
            "Corpus frequency of predicted tokens, ablated − intact",
            SHIFTS,
            tuple(_shifts(found)),
            _what_is_told(found),
        ),
        Rows("What is said", SAID, tuple(_said(found)), "Surprisal, entropy and divergences (KL) in nats."),
    ]
    if verbose:
        tables.append(Rows("Every measure", EVERY, tuple(_every(found))))
    charts = (draw(found, name=name), prediction_shifts(found, name=f"{name}-shifts"))
    yield Section(name, "What the model says", (*sentences(found), _measured(found)), charts, tuple(tables))


def sentences(found: Predictions) -> tuple[str, ...]:
    """Which way predictions go, for every intervention and input."""
    said = []
    for one in found.shifts:
        change = one.changes["log_frequency"]
        p = "" if change.p is None else f", rank p {change.p:.3g}"
        says = f"no verdict, for {no_interval(found.of(one.input).n_texts)}"
        if one.direction in SHIFTED:
            says = f"predicted tokens are {SHIFTED[one.direction]}"
        said.append(
            f"{one.input}, {INTERVENTIONS[one.intervention]}: {says} ({change.change:+.2f} nats of log frequency, "
            f"{found.interval(one, 'log_frequency')}{p})."
        )
    return tuple(said)


def _measured(found: Predictions) -> str:
    inputs = ", ".join(f"{one.input} {one.n_positions:,} tokens of {one.n_texts:,} texts" for one in found.heard)
    return (
        f"{found.provenance.model} on {found.data}: {inputs}; frequencies of {found.n_counted:,} tokens ({found.counts}); "
        f"{these(found.dims)} off, in all layers by {found.mode}, beside {len(found.shifts[0].random)} random sets of as many "
        "dimensions."
    )


def _what_is_told(found: Predictions) -> str:
    note = (
        "Times: how much more frequent in the corpus (geometric mean). Intervals over texts; p by rank of the size among "
        "random sets, whose median is in the next column."
    )
    sizes = {
        found.of(one.input).n_texts
        for one in found.shifts
        for change in one.changes.values()
        if change.low == change.high == 0
    }
    return " ".join((note, *(f"“No change” means {no_change(n, 'texts')}." for n in sorted(sizes))))


def _shifts(found: Predictions) -> Iterator[tuple[Cell, ...]]:
    for one in found.shifts:
        changes = (one.changes[name] for name in ("log_frequency", "expected_log_frequency"))
        yield (
            one.input,
            one.intervention,
            one.direction,
            one.times,
            *(cell for change in changes for cell in _change(change)),
        )


def _change(change: MeasureChange) -> tuple[Cell, ...]:
    p = None if change.p is None else P(change.p)
    return (cells.Change(change.change), Interval(change.low, change.high), cells.Change(change.random_median), p)


def _said(found: Predictions) -> Iterator[tuple[Cell, ...]]:
    for heard in found.heard:
        for off, one in (("nothing", heard.intact), *((shift.intervention, shift.chosen) for shift in heard.shifts)):
            yield (heard.input, off, *_numbers(one), one.n_types, _words(one))


def _numbers(spoken: Spoken) -> Iterator[float]:
    for name in OF_SAID:
        yield FineShare(spoken.values[name]) if name in ("accuracy", "special") else spoken.values[name]


def _words(spoken: Spoken) -> str:
    return ", ".join(f"{word.token} {word.share:.0%}" for word in spoken.top[:5])


def _every(found: Predictions) -> Iterator[tuple[Cell, ...]]:
    for row in prediction_rows(found):
        p = None if math.isnan(row["p"]) else P(row["p"])
        yield (
            *(
                row["input"],
                row["intervention"],
                row["measure"],
                row["intact"],
                row["ablated"],
                cells.Change(row["change"]),
            ),
            *(Interval(row["low"], row["high"]), cells.Change(row["random_median"]), p),
        )
