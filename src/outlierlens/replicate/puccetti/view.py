"""What is said of Puccetti et al. (2022) for a model, for every surface: `sections(found)`.

One section a part of the paper, after a first one that says whether the outliers go with token frequency.
"""

import math
from collections.abc import Iterator

from outlierlens.experiments.attention import view as attention_view
from outlierlens.experiments.frequency import view as frequency_view
from outlierlens.experiments.frequency_geometry import view as bands_view
from outlierlens.experiments.layer_story import view as story_view
from outlierlens.replicate.puccetti.result import Link, PuccettiReplication
from outlierlens.view.section import Change, Interval, P, Rows, Section, listed, renamed

TOKENS = {"without_special": "without special tokens", "all": "special tokens counted"}


def sections(found: PuccettiReplication, *, verbose: bool = False) -> Iterator[Section]:
    """Whether outliers follow frequency, then a section a part; with `verbose` parts say more."""
    tables = (link_table(found),) if found.frequency is not None else ()
    yield Section("puccetti", "Token frequency (Puccetti et al. 2022)", sentences(found), (), tables)
    if found.frequency is not None:
        yield from (
            renamed(one, "puccetti-frequency") for one in frequency_view.sections(found.frequency, verbose=verbose)
        )
    if found.story is not None:
        yield from (renamed(one, "puccetti-layers") for one in story_view.sections(found.story, verbose=verbose))
    if found.attention is not None:
        yield from attention_view.sections(found.attention, verbose=verbose, name="puccetti-attention")
    if found.bands is not None:
        yield from (renamed(one, "puccetti-bands") for one in bands_view.sections(found.bands, verbose=verbose))
    if found.predictions is not None:
        yield from (renamed(one, "puccetti-predictions") for one in found.predictions.sections(verbose=verbose))


def sentences(found: PuccettiReplication) -> tuple[str, ...]:
    """Whether the outliers go with frequency more than other dimensions do."""
    links = sorted(found.links(), key=lambda one: (one.tokens != "without_special", one.what))
    n_texts = found.frequency.n_texts if found.frequency is not None else 0
    said = [_link_says(one, found.dims, n_texts) for one in links]
    said.append(f"{found.provenance.model}: the outliers are {listed(found.dims)} ({found.named_by}).")
    if found.seconds:
        said.append(f"Minutes: {', '.join(f'{name} {seconds / 60:.1f}' for name, seconds in found.seconds.items())}.")
    return tuple(said)


def link_table(found: PuccettiReplication) -> Rows:
    """Outliers against all other dimensions, a row each kind of count and of tokens."""
    rows = tuple(
        (
            *(one.what, TOKENS[one.tokens], one.named, one.others, Change(one.difference), Interval(one.low, one.high)),
            *(P(one.p), one.says),
        )
        for one in found.links()
    )
    heads = ("|h| with", "tokens", "outliers |r|", "others |r|", "difference", "95 %", "rank p", "says")
    note = f"Mean |r| over all blocks. Intervals draw texts again. Frequencies of {found.counts}."
    return Rows("Outliers and token frequency", heads, rows, note)


def _link_says(one: Link, dims: tuple[int, ...], n_texts: int) -> str:
    counts = one.what.removeprefix("frequency, ")
    span = f"95 % interval {one.low:+.3f} to {one.high:+.3f}, rank " if math.isfinite(one.low) else ""
    return (
        f"{frequency_view.answer(listed(dims), one.says, n_texts)} ({counts} counts, {TOKENS[one.tokens]}): "
        f"mean |r| {one.named:.3f} against "
        f"{one.others:.3f}, a difference of {one.difference:+.3f} ({span}p {one.p:.3g})."
    )
