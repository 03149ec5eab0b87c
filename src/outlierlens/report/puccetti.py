"""What the report says of Puccetti et al. (2022) for a model, by rule from the numbers: `puccetti_sections(found)`.

One section a part of the paper, after a first one that says whether the outliers go with token frequency.
"""

import math
from collections.abc import Iterator

from outlierlens.attended import Attention
from outlierlens.charts import Chart
from outlierlens.charts.attention import attention_correlation, attention_sinks
from outlierlens.charts.frequency import frequency_layers, frequency_types
from outlierlens.charts.frequency_geometry import frequency_geometry
from outlierlens.charts.layer_story import layer_story
from outlierlens.charts.predictions import prediction_shifts, predictions
from outlierlens.frequency_bands import FrequencyBands
from outlierlens.frequent import Frequency
from outlierlens.interval_words import interval_text
from outlierlens.layer_story import LayerStory, link_rows
from outlierlens.predicted import INTERVENTIONS, Predictions
from outlierlens.puccetti_replicated import Link, PuccettiReplication
from outlierlens.report.phrases import listed
from outlierlens.view.section import Rows, Section

SAYS = {
    "more": "follow token frequency more closely than other dimensions",
    "less": "follow token frequency less closely than other dimensions",
    "unclear": "follow token frequency no more clearly than other dimensions",
}
SHIFTED = {
    "more frequent": "more frequent",
    "rarer": "rarer",
    "neither": "neither clearly more frequent nor rarer",
    "unknown": "too few to say",
}
TOKENS = {"without_special": "without special tokens", "all": "special tokens counted"}


def puccetti_sections(found: PuccettiReplication | None) -> tuple[Section, ...]:
    """The sections of the page; none without a replication."""
    return () if found is None else tuple(_sections(found))


def puccetti_notes(found: PuccettiReplication | None) -> tuple[str, ...]:
    """Remarks of all parts, each once."""
    if found is None:
        return ()
    parts = (found.frequency, found.attention, found.story, found.bands, found.predictions)
    notes = [note for part in parts if part is not None for note in part.notes]
    return tuple(dict.fromkeys((*found.notes, *notes)))


def puccetti_sentences(found: PuccettiReplication) -> tuple[str, ...]:
    """Whether the outliers go with frequency and with attention, and what the model says without them."""
    said = []
    links = list(found.links())
    for one in sorted(links, key=lambda one: (one.tokens != "without_special", one.what)):
        said.append(_link_says(one, found.dims))
    if found.attention is not None:
        said += _attention_says(found.attention)
    if found.story is not None:
        said += _story_says(found.story)
    if found.predictions is not None:
        said += _predictions_say(found.predictions)
    return tuple(said) or (f"Nothing was measured of {listed(found.dims)}.",)


def link_table(found: PuccettiReplication) -> Rows:
    """Outliers against all other dimensions, a row each kind of count and of tokens."""
    rows = tuple(
        (one.what, TOKENS[one.tokens], one.named, one.others, one.difference, one.low, one.high, one.p, one.says)
        for one in found.links()
    )
    heads = ("|h| with", "tokens", "outliers |r|", "others |r|", "difference", "95 % from", "to", "rank p", "says")
    note = (
        f"Mean |r| over all blocks; outliers are {listed(found.dims)} ({found.named_by}). Intervals draw texts again. "
        f"Frequencies of {found.counts}."
    )
    return Rows("Outliers and token frequency", heads, rows, note)


def _sections(found: PuccettiReplication) -> Iterator[Section]:
    tables = (link_table(found),) if found.frequency is not None else ()
    yield Section("puccetti", "Token frequency (Puccetti et al. 2022)", puccetti_sentences(found), (), tables)
    if found.frequency is not None:
        yield frequency_section(found.frequency)
    if found.story is not None:
        yield story_section(found.story)
    if found.attention is not None:
        yield attention_section(found.attention)
    if found.bands is not None:
        yield bands_section(found.bands)
    if found.predictions is not None:
        yield predictions_section(found.predictions)


def frequency_section(found: Frequency, name: str = "puccetti-frequency") -> Section:
    """Which dimensions follow token frequency."""
    drawn: tuple[Chart, ...] = (frequency_layers(found, name=name),)
    if found.clouds:
        drawn += (frequency_types(found, name=f"{name}-types"),)
    return Section(name, "Which dimensions follow frequency", (), drawn)


def story_section(found: LayerStory, name: str = "puccetti-layers") -> Section:
    """Damage and correlations layer by layer."""
    drawn = (layer_story(found, name=name),)
    return Section(name, "Damage and correlation, layer by layer", _story_says(found), drawn)


def attention_section(found: Attention, name: str = "puccetti-attention") -> Section:
    """Where attention goes, and whether the dimensions go with it."""
    drawn = (attention_correlation(found, name=name), attention_sinks(found, name=f"{name}-sinks"))
    return Section(name, "Where attention goes", _attention_says(found), drawn)


def bands_section(found: FrequencyBands, name: str = "puccetti-bands") -> Section:
    """Norms and cosines of frequent and rare tokens."""
    drawn = (frequency_geometry(found, name=name),)
    return Section(name, "Frequent and rare tokens in space", _bands_say(found), drawn)


def predictions_section(found: Predictions, name: str = "puccetti-predictions") -> Section:
    """What the model says with dimensions off."""
    drawn = (predictions(found, name=name), prediction_shifts(found, name=f"{name}-shifts"))
    return Section(name, "What the model says", _predictions_say(found), drawn)


def _link_says(one: Link, dims: tuple[int, ...]) -> str:
    counts = one.what.removeprefix("frequency, ")
    span = f"95 % interval {one.low:+.3f} to {one.high:+.3f}, rank " if math.isfinite(one.low) else ""
    return (
        f"{listed(dims)} {SAYS[one.says]} ({counts} counts, {TOKENS[one.tokens]}): mean |r| {one.named:.3f} against "
        f"{one.others:.3f}, a difference of {one.difference:+.3f} ({span}p {one.p:.3g})."
    )


def _attention_says(found: Attention) -> tuple[str, ...]:
    one = found.correlation("without_special")
    said = [
        f"{dim}: mean |r| over layers with the attention a token receives {float(one.overall[place]):.3f} "
        f"({float(one.overall_low[place]):.3f} to {float(one.overall_high[place]):.3f}), rank {int(one.overall_rank[place])} "
        f"of {found.hidden_size - len(found.dims) + 1} dimensions, p {float(one.overall_p[place]):.3g}."
        for place, dim in enumerate(found.dims)
    ]
    p = found.change_p("special")
    before, after = (float(part.of("special").mean()) for part in (found.intact, found.off))
    said.append(
        f"{before:.1%} of attention goes to special tokens, {after:.1%} with them off"
        + (f" (rank p {p:.3g} among random dimensions)." if p is not None else ".")
    )
    return tuple(said)


def _story_says(found: LayerStory) -> tuple[str, ...]:
    return tuple(
        f"{row['dims']}: over {len(found.layers)} layers, damage and |r| with {row['with']} have a rank correlation of "
        f"{row['rho']:+.2f} (95 % interval {row['rho_low']:+.2f} to {row['rho_high']:+.2f}, p {row['p']:.3g})."
        for row in link_rows(found)
        if math.isfinite(row["rho"])
    )


def _bands_say(found: FrequencyBands) -> tuple[str, ...]:
    said = []
    for state in dict.fromkeys(row.state for row in found.blocks):
        row = found.whole(state)
        said.append(
            f"{state}: norm of the most frequent band over that of the rarest {row.norm_ratio.value:.2f} "
            f"({interval_text(row.norm_ratio.low, row.norm_ratio.high, '.2f')}), cosine within the most frequent minus "
            f"within the rarest {row.types_gap.value:+.3f} "
            f"({interval_text(row.types_gap.low, row.types_gap.high)}), pairs of different tokens."
        )
    return tuple(said)


def _predictions_say(found: Predictions) -> tuple[str, ...]:
    said = []
    for one in found.shifts:
        change = one.changes["log_frequency"]
        p = "" if change.p is None else f", rank p {change.p:.3g}"
        said.append(
            f"{one.input}, {INTERVENTIONS[one.intervention]}: predicted tokens are {SHIFTED[one.direction]} "
            f"({change.change:+.2f} nats of log frequency, {found.interval(one, 'log_frequency')}{p})."
        )
    return tuple(said)
