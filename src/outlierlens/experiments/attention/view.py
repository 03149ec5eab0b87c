"""What is said of attention received, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

import numpy as np

from outlierlens.experiments.attention.charts import attention_correlation, attention_sinks
from outlierlens.experiments.attention.result import KEYS, Attention, AttentionCondition, KeyCorrelation, at
from outlierlens.view.section import Cell, Change, FineShare, Interval, P, Rows, Section, Span, number_of_layers, these

SHARES = {
    "first": "first token",
    "special": "special tokens",
    "delimiter": "delimiters",
    "punctuation": "punctuation",
}
ENTROPIES = {"entropy": "entropy (nats)", "relative_entropy": "entropy / log keys"}
PLACES = (*SHARES.values(), *ENTROPIES.values(), "sink heads")
CHANGED = ("first", "special", "delimiter", "entropy")
OVERALL = ("keys", "n", "dim", "mean |r|", "95 %", "rank", "p", "strongest in layer", "r there", "95 % there")
MEANS = {"seen": "queries that see the key", "all": "all queries", "padded": "all queries and padding"}
CORRELATIONS = ("layer", "dim", "r", "95 %", "others 5–95 %", "rank", "p", "with it off")


def sections(found: Attention, *, verbose: bool = False, name: str = "attentions") -> Iterator[Section]:
    """Where attention goes in each condition and what goes with it; with `verbose` layer by layer.

    `name` is the section's, and begins those of its charts.
    """
    tables = [
        Rows(
            "Where attention goes, mean over layers and heads", ("off", *PLACES), tuple(_places(found)), _sinks(found)
        ),
        Rows("With the outliers off", ("what", "change", "rank p"), tuple(_changes(found)), _against(found)),
    ]
    if verbose:
        delimiters = f"Delimiters: {' '.join(found.delimiters)}"
        tables.append(Rows("By layer", ("layer", "off", *PLACES), tuple(_by_layer(found)), delimiters))
    tables.append(
        Rows("Attention received and |h|, mean over heads", OVERALL, tuple(_overall(found)), _what_r_is(found))
    )
    if verbose:
        tables += [Rows(_title(one), CORRELATIONS, tuple(_by_layer_r(found, one))) for one in found.correlations]
    charts = (attention_correlation(found, name=name), attention_sinks(found, name=f"{name}-sinks"))
    yield Section(name, "Where attention goes", (*sentences(found), _measured(found)), charts, tuple(tables))


def sentences(found: Attention) -> tuple[str, ...]:
    """Whether the dimensions go with attention, and whether attention goes elsewhere without them."""
    one = found.correlation("without_special")
    said = [
        f"{dim}: mean |r| over layers with the attention a token receives {float(one.overall[place]):.3f} "
        f"({float(one.overall_low[place]):.3f} to {float(one.overall_high[place]):.3f}), rank {int(one.overall_rank[place])} "
        f"of {_n_compared(found)} dimensions, p {float(one.overall_p[place]):.3g}."
        for place, dim in enumerate(found.dims)
    ]
    for metric in ("first", "special") if found.n_special else ("first",):
        p = found.change_p(metric)
        before, after = (float(part.of(metric).mean()) for part in (found.intact, found.off))
        what = "the first token" if metric == "first" else "special tokens"
        said.append(
            f"{before:.1%} of attention goes to {what}, {after:.1%} with {these(found.dims)} off"
            + (f" (rank p {p:.3g} among random dimensions)." if p is not None else ".")
        )
    return tuple(said)


def _measured(found: Attention) -> str:
    return (
        f"{found.provenance.model} on {found.data}: {found.n_texts:,} texts, {found.n_tokens:,} tokens ({found.n_special:,} "
        f"special), {number_of_layers(len(found.layers))} × {found.n_heads} heads; {these(found.dims)} ({found.named_by}), "
        f"off by {found.mode}."
    )


def _sinks(found: Attention) -> str:
    return (
        f"Shares of a query's attention. A head is a sink if the first token gets more than {found.threshold:g} of its "
        "attention in the mean."
    )


def _places(found: Attention) -> Iterator[tuple[Cell, ...]]:
    for one in (found.intact, found.off, *found.randoms):
        shares, entropies = ([_mean(one.of(metric)) for metric in of] for of in (SHARES, ENTROPIES))
        yield (_off(one), *map(FineShare, shares), *entropies, FineShare(one.sink_rate(found.threshold)))
    yield ("(all keys alike)", *(FineShare(share) for share in found.uniform.mean(axis=1)), None, None, None)


def _off(one: AttentionCondition) -> str:
    if not one.dims:
        return "nothing"
    dims = ", ".join(map(str, one.dims[:6])) + (" …" if len(one.dims) > 6 else "")
    return dims if one.kind == "off" else f"{one.kind}: {dims}"


def _changes(found: Attention) -> Iterator[tuple[Cell, ...]]:
    for metric in CHANGED:
        p = found.change_p(metric)
        change = Change(found.off.change[at(metric)].mean())
        yield ({**SHARES, **ENTROPIES}[metric], change, None if p is None else P(p))


def _against(found: Attention) -> str:
    return f"Change from the intact model; shares in [0, 1]. p: rank among it and {len(found.randoms)} random draws."


def _by_layer(found: Attention) -> Iterator[tuple[Cell, ...]]:
    for row, layer in enumerate(found.layers):
        for one in (found.intact, found.off):
            shares, entropies = ([float(one.of(metric)[row]) for metric in of] for of in (SHARES, ENTROPIES))
            sinks = FineShare(one.sink_layers(found.threshold)[row])
            yield (layer, _off(one), *map(FineShare, shares), *entropies, sinks)


def _overall(found: Attention) -> Iterator[tuple[Cell, ...]]:
    for one in found.different:
        for column, dim in enumerate(found.dims):
            size = np.abs(one.every[:, dim])
            best = int(np.where(np.isfinite(size), size, -1).argmax())
            yield (
                *(KEYS[one.keys], one.n_keys, dim, float(one.overall[column])),
                Span(one.overall_low[column], one.overall_high[column]),
                *(int(one.overall_rank[column]), P(one.overall_p[column])),
                *(
                    found.layers[best],
                    Change(one.every[best, dim]),
                    Interval(one.low[best, column], one.high[best, column]),
                ),
            )


def _what_r_is(found: Attention) -> str:
    return (
        f"Pearson's r, over keys, of the attention a key receives (mean over {MEANS[found.means[0]]}) with |h| at that key; "
        f"mean |r| over layers. Ranks are among {_n_compared(found)} dimensions: it, and all that are not named."
    )


def _n_compared(found: Attention) -> int:
    return found.hidden_size - len(found.dims) + 1


def _by_layer_r(found: Attention, one: KeyCorrelation) -> Iterator[tuple[Cell, ...]]:
    band = one.band(found.dims)
    for row, layer in enumerate(found.layers):
        for column, dim in enumerate(found.dims):
            yield (
                *(layer, dim, Change(one.every[row, dim]), Interval(one.low[row, column], one.high[row, column])),
                *(Interval(band[row, 1], band[row, 3]), int(one.rank[row, column]), P(one.p[row, column])),
                Change(one.off[row, column]),
            )


def _title(one: KeyCorrelation) -> str:
    return f"Attention received (mean over {MEANS[one.mean]}) and |h|: {KEYS[one.keys]}, {one.n_keys:,}"


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan
