"""What is said of a mask, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.experiments.mask.charts import masks
from outlierlens.experiments.mask.result import LayerSinks, Mask
from outlierlens.view.section import Cell, Count, FineShare, Rows, Section, Share, percent
from outlierlens.view.words import number

NAME = "masks"
HEADS = ("block", "sinks", "median norm", "largest norm", "threshold", "γ", "γ without sinks")
DIM_HEADS = ("dimension", "times the median", "without sinks", "held by sinks", "stands out on")
NOTE = (
    "γ: length of the mean hidden state over the length of the standard deviations. A sparse autoencoder of states with a "
    "large γ spends latents on the mean."
)
SHOWN = 8  # token types in a sentence


def sections(found: Mask, *, verbose: bool = False) -> Iterator[Section]:
    """The tokens and dimensions to leave out, and how surely; with `verbose` every block."""
    rows = tuple(map(_cells, found.layers if verbose else (found.here,)))
    tables = [Rows("Sinks by block" if verbose else "Sinks of the masked block", HEADS, rows, NOTE)]
    if found.dims:
        tables.insert(0, Rows("Dimensions that stand out", DIM_HEADS, tuple(_dims(found))))
    yield Section(
        NAME, "Tokens and dimensions to leave out", tuple(_sentences(found)), (masks(found, name=NAME),), tuple(tables)
    )


def _sentences(found: Mask) -> Iterator[str]:
    here = found.here
    yield (
        f"{found.provenance.model}, output of block {found.layer}: {here.n_sinks:,} of {found.n_fit_tokens:,} tokens are "
        f"sinks, longer than {number(found.threshold)} ({number(found.factor)} times the median token)."
    )
    if found.positions or found.token_ids:
        parts = [f"position {', '.join(map(str, found.positions))}"] if found.positions else []
        if found.words:
            more = f" and {len(found.words) - SHOWN:,} more" if len(found.words) > SHOWN else ""
            parts.append(f"tokens {', '.join(map(repr, found.words[:SHOWN]))}{more}")
        yield f"The mask leaves out {' and '.join(parts)}."
    elif here.n_sinks:
        yield "They share no position and no token type: only the threshold on the norm finds them."
    else:
        yield "No token has to be left out."
    held = found.judged
    if held.n_sinks:
        yield (
            f"On {held.n_texts:,} texts that did not make it, the mask leaves out {percent(held.recall)} of {held.n_sinks:,} "
            f"sinks and {FineShare(held.false_share).written()} of the other tokens; it misses one in {held.n_missed_texts:,} "
            f"of {held.n_sink_texts:,} texts with one, so in at most {percent(held.missed_at_most)} of such texts (95 % bound)."
        )
    else:
        yield f"The {held.n_texts:,} texts that did not make it hold no sink."
    if found.masked_dims:
        yield (
            f"{', '.join(map(str, found.masked_dims))} stand{'s' * (len(found.masked_dims) == 1)} out on the other tokens "
            "too: clip, standardise or leave out."
        )


def _dims(found: Mask) -> Iterator[tuple[Cell, ...]]:
    for one in found.dims:
        where = "other tokens too" if one.every_token else "sinks alone"
        yield (one.dim, one.times, one.times_kept, Share(one.sink_share), where)


def _cells(one: LayerSinks) -> tuple[Cell, ...]:
    return (
        one.layer, Count(one.n_sinks), one.median_norm, one.largest_norm, one.threshold, one.gamma, one.gamma_kept
    )  # fmt: skip
