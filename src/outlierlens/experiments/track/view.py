"""What is said of a training run that was tracked, by rule from its numbers: `sections(found)`.

track_sentences(track)                       # who emerged and when, before or after the loss settled, or why that is open
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from outlierlens.errors import BadInput
from outlierlens.experiments.track.result import ChangePoint, Emergence, Lead, Track
from outlierlens.view import charts
from outlierlens.view.charts.base import Chart
from outlierlens.view.section import Cell, Count, CountChange, P, Rows, Section, Spread, listed, number_of_layers

SAID = 3  # dimensions that get a sentence of their own
NOTE = (
    "Steps are those that were recorded. Starts to leave: the last step at the first level, with its 95 % interval, and the "
    "p-value of no change at all. Against the loss plateau: minus means that the dimension stood out first; the interval takes "
    "both ends at their worst."
)


def sections(found: Track, *, verbose: bool = False, dims: Sequence[int] | None = None) -> Iterator[Section]:
    """The run in sentences, its panels, and a row for each followed dimension; `dims` are those that panels name."""
    sentences = (*track_sentences(found), _what_was_read(found))
    table = Rows("When each stood out", _heads(found), tuple(_row(found, one) for one in found.emergences), NOTE)
    yield Section("emergence", "Over training", sentences, _charts(found, dims), (table,) if table.rows else ())


def _charts(found: Track, dims: Sequence[int] | None) -> tuple[Chart, ...]:
    draw: tuple[Callable[[], Chart], ...] = (
        lambda: charts.loss_panel(found, dims),
        lambda: charts.norm_panel(found, "scale", dims),
        lambda: charts.norm_panel(found, "bias", dims),
        lambda: charts.sigma_panel(found, dims),
        lambda: charts.token_panel(found, dims),
        lambda: charts.state_panel(found, dims),
    )
    drawn = []
    for one in draw:
        with suppress(BadInput):  # nothing of the kind was recorded
            drawn.append(one())
    return tuple(drawn)


def _what_was_read(found: Track) -> str:
    said = (
        f"{found.provenance.model}, {found.stack}, {found.site}: {number_of_layers(found.n_layers)} × {found.width:,} "
        f"dimensions at {len(found.steps)} steps from {int(found.steps[0]):,} to {int(found.steps[-1]):,}"
    )
    if not found.total_bytes:
        return f"{said}."
    share = f"{found.bytes_read / found.total_bytes:.2%}".replace("%", " %")
    return f"{said}; read {found.bytes_read:,} of {found.total_bytes:,} bytes ({share})."


def _heads(found: Track) -> tuple[str, ...]:
    layers = f"layers of {found.n_layers}"
    heads = (
        *("dim", "stands out for", "for good from step", "not yet at", "scale from", "bias from", f"{layers}: scale"),
        *(f"{layers}: bias", "|z| scale", "|z| bias", "starts to leave", "p", "against the loss plateau"),
    )
    return heads if found.has_bias else tuple(head for head in heads if "bias" not in head)


def _row(found: Track, one: Emergence) -> tuple[Cell, ...]:
    bias: tuple[list[Cell], ...] = ([], [], [])
    if found.has_bias:
        bias = ([_step(one.bias_step)], [one.layers_bias], [one.z_bias])
    return (
        one.dim, one.passes, _step(one.step), _step(one.after), _step(one.scale_step), *bias[0],
        one.layers_scale, *bias[1], one.z_scale, *bias[2],
        _leaves(one.leaves), P(one.leaves.p) if one.leaves else None,
        Spread(CountChange(one.lead.steps), one.lead.low, one.lead.high) if one.lead else None,
    )  # fmt: skip


def _leaves(onset: ChangePoint | None) -> Cell:
    if onset is None:
        return None
    return Spread(Count(onset.step), onset.low, onset.high) if onset.sure else "not settled"


def _step(step: int | None) -> Cell:
    return None if step is None else Count(step)


def track_sentences(track: Track) -> tuple[str, ...]:
    """The run in sentences, most important first; the first one stands alone."""
    passing = sorted((one for one in track.emergences if one.step is not None), key=lambda one: one.step or 0)
    said = list(_who(track, passing))
    emerged = [one for one in passing if one.after is not None]
    said += [sentence for one in (emerged or passing[:1])[:SAID] for sentence in _when(track, one)]
    said += list(_signs(track, passing))
    return tuple(said)


def _who(track: Track, passing: list[Emergence]) -> Iterator[str]:
    first, last = int(track.steps[0]), int(track.steps[-1])
    span = f"{len(track.steps)} recorded steps from {first:,} to {last:,}"
    span += f" of {track.site}" if track.view == "reading" else ""
    sigma, share = track.rule.sigmas, track.rule.percent
    if not passing:
        yield f"Over {span} no dimension comes to stand {sigma} out in {share} of the layers."
        strongest = max(track.emergences, key=lambda one: one.z_scale, default=None)
        if strongest is not None and strongest.seen:
            between = f"between steps {strongest.seen[0]:,} and {strongest.seen[-1]:,}"
            yield f"Dimension {strongest.dim} did so {between}, but not to the end."
        return
    whole = [one.dim for one in track.outliers]
    if whole:
        what = f"{track.scale_name} and bias" if track.has_bias else track.scale_name
        many = "dimension" if len(whole) == 1 else "dimensions"
        out = f"{sigma} out in {share} of the layers or more, for {what}"
        came = any(one.after is not None for one in track.outliers)
        verb = "came to stand" if came else ("stands" if len(whole) == 1 else "stand") + " from the first of them on"
        yield f"Over {span}, {many} {listed(whole)} {verb} {out}."
    else:
        dims = [f"{one.dim} ({track.part_name(one)} alone)" for one in passing]
        stand = "stands" if len(dims) == 1 else "stand"
        yield (
            f"Over {span} no dimension passes for {track.scale_name} and bias both; {listed(dims)} {stand} {sigma} out in "
            f"{share} of the layers or more."
        )
    gone = [one.dim for one in track.emergences if one.passes == "neither" and one.seen]
    if gone:
        yield f"{listed(gone)} did so at some step and fell back."


def _when(track: Track, one: Emergence) -> Iterator[str]:
    assert one.step is not None
    between = f" (not yet at step {one.after:,})" if one.after is not None else " (already at the first recorded step)"
    flicker = one.seen and one.after is not None and one.seen[0] < one.step
    text = f"Dimension {one.dim} stands out for good from step {one.step:,} on" + ("" if flicker else between)
    text += f", for the first time at step {one.seen[0]:,}" if flicker else ""
    onset = one.leaves
    if one.after is not None and onset is not None:
        part = track.part_name(one)
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
        yield "Dimensions that stood out at the first recorded step have no onset to compare with the loss."
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
