"""What the report says of a training run that was tracked, by rule from its numbers, and what it shows: `track_views(data)`.

track_sentences(track)                       # who emerged and when, before or after the loss settled, or why that is open
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from outlierlens import charts
from outlierlens.charts import Chart
from outlierlens.charts.emergence_marks import named_dims
from outlierlens.errors import BadInput
from outlierlens.report.phrases import listed
from outlierlens.report.results import ReportData
from outlierlens.tracked import Emergence, Lead, Track

SAID = 3  # dimensions that get a sentence of their own


@dataclass(frozen=True)
class TrackView:
    """One tracked run as the page shows it."""

    track: Track
    title: str
    sentences: tuple[str, ...]
    charts: tuple[Chart, ...]


def track_views(data: ReportData) -> tuple[TrackView, ...]:
    """Every tracked run of the report."""
    made = []
    for place, track in enumerate(data.tracks):
        title = "Over training" + (f": {track.provenance.model}" if len(data.tracks) > 1 else "")
        named = tuple(dict.fromkeys([*data.named(track.stack), *named_dims(track)]))
        made.append(
            TrackView(track, title, track_sentences(track), _charts(track, named, f"{place}-" if place else ""))
        )
    return tuple(made)


def _charts(track: Track, named: tuple[int, ...], prefix: str) -> tuple[Chart, ...]:
    draw: tuple[Callable[[], Chart], ...] = (
        lambda: charts.loss_panel(track, named, name=f"{prefix}emergence-loss"),
        lambda: charts.norm_panel(track, "scale", named, name=f"{prefix}emergence-scale"),
        lambda: charts.norm_panel(track, "bias", named, name=f"{prefix}emergence-bias"),
        lambda: charts.sigma_panel(track, named, name=f"{prefix}emergence-sigma"),
        lambda: charts.token_panel(track, named, name=f"{prefix}emergence-tokens"),
        lambda: charts.state_panel(track, named, name=f"{prefix}emergence-states"),
    )
    drawn = []
    for one in draw:
        with suppress(BadInput):  # nothing of the kind was recorded
            drawn.append(one())
    return tuple(drawn)


def track_sentences(track: Track) -> tuple[str, ...]:
    """The run in sentences, most important first; the first one stands alone."""
    passing = sorted((one for one in track.emergences if one.step is not None), key=lambda one: one.step or 0)
    said = list(_who(track, passing))
    emerged = [one for one in passing if one.after is not None]
    said += [sentence for one in (emerged or passing[:1])[:SAID] for sentence in _when(one)]
    said += list(_signs(track, passing))
    return tuple(said)


def _who(track: Track, passing: list[Emergence]) -> Iterator[str]:
    first, last = int(track.steps[0]), int(track.steps[-1])
    span = f"{len(track.steps)} recorded steps from {first:,} to {last:,}"
    sigma, share = track.rule.n_sigma, f"{track.rule.min_layer_fraction:.0%}".replace("%", " %")
    if not passing:
        yield f"Over {span} no dimension comes to stand {sigma:g} sigma out in {share} of the layers."
        strongest = max(track.emergences, key=lambda one: one.z_scale, default=None)
        if strongest is not None and strongest.seen:
            between = f"between steps {strongest.seen[0]:,} and {strongest.seen[-1]:,}"
            yield f"Dimension {strongest.dim} did so {between}, but not to the end."
        return
    whole = [one.dim for one in track.outliers]
    if whole:
        what = "scale and bias" if track.has_bias else "scale"
        many = "dimension" if len(whole) == 1 else "dimensions"
        out = f"{sigma:g} sigma out in {share} of the layers or more, for {what}"
        came = any(one.after is not None for one in track.outliers)
        verb = "came to stand" if came else ("stands" if len(whole) == 1 else "stand") + " from the first of them on"
        yield f"Over {span}, {many} {listed(whole)} {verb} {out}."
    else:
        dims = [f"{one.dim} ({one.passes} alone)" for one in passing]
        stand = "stands" if len(dims) == 1 else "stand"
        yield (
            f"Over {span} no dimension passes for scale and bias both; {listed(dims)} {stand} {sigma:g} sigma out in {share} "
            "of the layers or more."
        )
    gone = [one.dim for one in track.emergences if one.passes == "neither" and one.seen]
    if gone:
        yield f"{listed(gone)} did so at some step and fell back."


def _when(one: Emergence) -> Iterator[str]:
    assert one.step is not None
    between = f" (not yet at step {one.after:,})" if one.after is not None else " (already at the first recorded step)"
    flicker = one.seen and one.after is not None and one.seen[0] < one.step
    text = f"Dimension {one.dim} stands out for good from step {one.step:,} on" + ("" if flicker else between)
    text += f", for the first time at step {one.seen[0]:,}" if flicker else ""
    onset = one.leaves
    if one.after is not None and onset is not None:
        part = "bias" if one.passes == "bias" else "scale"
        if onset.sure:
            text += (
                f"; its {part} starts to leave at step {onset.step:,} (95 % interval {onset.low:,} to {onset.high:,})"
            )
        else:
            text += f"; when its {part} starts to leave is not settled (p = {onset.p:.2g})"
    yield text + "."


def _signs(track: Track, passing: list[Emergence]) -> Iterator[str]:
    """Whether the emergence says something about the loss, which is asked of the first dimension to emerge."""
    emerged = [one for one in passing if one.after is not None]
    if passing and not emerged:
        yield "What stood out at the first recorded step says nothing about the loss."
    if not emerged:
        return
    one = emerged[0]
    if one.onset_lead is not None and track.fall is not None:
        yield (
            f"Dimension {one.dim} starts to leave {_apart(one.onset_lead)} the loss starts its last steep fall "
            f"(step {track.fall.step:,}; {_between(one.onset_lead)})."
        )
    if track.plateau is None:
        yield "Whether this tells that training is nearly done is open: no loss curve long enough was logged."
    elif not track.plateau.settled:
        yield (
            "Whether this tells that training is nearly done is open: the loss was still falling in the last quarter of "
            "the run, so the run is too short to tell."
        )
    elif one.lead is not None:
        run = max(int(track.steps[-1]) - int(track.steps[0]), 1)
        left = 100 * (track.plateau.step - (one.step or 0)) / run
        hint = {
            "before": f"it is an early sign, not one that training is done: {left:.0f} % of the run lay between",
            "after": "in this run it came only after training was nearly done",
            "undecided": "the recorded steps are too far apart to say which came first",
        }[one.lead.sign]
        who = "It" if len(passing) == 1 else f"Dimension {one.dim}"
        yield (
            f"{who} stands out {_apart(one.lead)} the loss comes within {100 * track.plateau.share:g} % of its fall from the "
            f"run's final level (step {track.plateau.step:,}; {_between(one.lead)}): {hint}."
        )


def _apart(lead: Lead) -> str:
    """ "500 steps before", "at the same step as"."""
    return (
        f"{abs(lead.steps):,} steps {'before' if lead.steps < 0 else 'after'}" if lead.steps else "at the same step as"
    )


def _between(lead: Lead) -> str:
    return f"95 % interval of the difference {lead.low:+,} to {lead.high:+,}"
