"""What is said of a trace, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.experiments.trace.charts import largest_parts, life
from outlierlens.experiments.trace.result import Part, Trace, Writer
from outlierlens.view.section import Cell, Change, Rows, Section, Share, ShareInterval, percent
from outlierlens.view.section import Interval as Of95
from outlierlens.view.words import listed, number

NAME = "life"
SHOWN, PARTS = 12, 8
BLOCK_HEADS = (
    "block",
    "first tokens",
    "largest token",
    "other tokens",
    "share of the norm, largest token",
    "share, other tokens",
)
READER_HEADS = ("block", "head", "attention", "in keys", "in queries", "reads it in", "share lost", "95 %")
NOTE = "Share of the norm: what this dimension makes of the state's sum of squares, by which a norm divides everything."
READING = (
    "The dimension is set to its mean in every layer, and a random one is moved as far. Heads that read the dimension lose "
    "over half on every other text (by the interval); measured here on the texts between."
)
AT_MEAN = "In keys: with the dimension at its mean at the token. In queries: at all other tokens."


def sections(found: Trace, *, verbose: bool = False) -> Iterator[Section]:
    """Where a dimension comes from, what it does and where it ends; with `verbose` every block and every reader."""
    blocks = found.blocks if verbose else tuple(found.at(layer) for layer in _turns(found))
    tables = []
    if found.weights:
        tables.append(Rows(
            "Single weights that carry it", ("weight", "block", "place", "value", "share of the lift"),
            tuple((one.parameter, one.layer, one.place, one.value, Share(one.share)) for one in found.weights),
        ))  # fmt: skip
    if found.trials:
        tables.append(Rows(
            f"Without these weights ({found.task}, {found.unit})", ("what", "kind", "change", "95 %"),
            tuple((one.name, one.kind, Change(one.change), Of95(one.low, one.high)) for one in found.trials),
            "Restored: the weights are 0, and the dimension is put back at the tokens that carry it.",
        ))  # fmt: skip
    tables.append(Rows(
        f"Largest parts of block {found.lifts}", ("part", "first tokens", "largest token", "other tokens"),
        tuple(map(_part, largest_parts(found.of(found.lifts), PARTS))),
    ))  # fmt: skip
    tables.append(Rows("Value by block", BLOCK_HEADS, tuple(
        (one.layer, one.first, one.largest, one.others, Share(one.share_largest), Share(one.share_others)) for one in blocks
    ), NOTE))  # fmt: skip
    if found.sinks:
        tables.append(Rows(
            "Attention on its token that sink heads lose",
            ("moved at the token", "share lost by all sinks", "95 %", "by those that read it", "95 %"),
            tuple(
                (one.name, Share(one.lost), ShareInterval(one.low, one.high), Share(one.read),
                 ShareInterval(one.read_low, one.read_high))
                for one in found.sinks
            ), READING,
        ))  # fmt: skip
        tables.append(Rows(
            "Sink heads on its token", READER_HEADS,
            tuple(
                (one.layer, one.head, one.mass, one.in_keys, one.in_queries, one.reads, Share(one.lost),
                 ShareInterval(one.low, one.high))
                for one in (found.readers if verbose else found.readers[:SHOWN])
            ), AT_MEAN,
        ))  # fmt: skip
    yield Section(
        NAME, f"The life of dimension {found.dim}", tuple(_sentences(found)), (life(found, name=NAME),), tuple(tables)
    )


def _turns(found: Trace) -> tuple[str, ...]:
    """The layers where something happens, in order."""
    order = [one.layer for one in found.blocks]
    turning = {order[0], found.lifts, found.peak, found.falls, order[-1]} - {""}
    return tuple(layer for layer in order if layer in turning)


def _sentences(found: Trace) -> Iterator[str]:
    peak, last = found.at(found.peak), found.blocks[-1]
    yield (
        f"{found.provenance.model}, dimension {found.dim}: its largest value is {number(peak.largest)}, at {found.token!r}, "
        f"position {found.position}, after {_block(found.peak)}. There it is {number(peak.first)} at first tokens and "
        f"{number(peak.others)} at the others on average."
    )
    ends = f"it ends at {number(last.largest)}."
    away = (
        f"; {_block(found.falls)} take{'s' * found.falls.isdecimal()} most of it away, and {ends}"
        if found.falls
        else f"; {ends}"
    )
    yield f"{_block(found.lifts).capitalize()} lift{'s' * found.lifts.isdecimal()} it most{away}"
    if found.writers:
        what = (
            f"what {_block(found.lifts)} change{'s' * found.lifts.isdecimal()}"
            if found.post_norm
            else "its largest value"
        )
        yield (
            f"{_listed(found.writers)} make{'s' * (len(found.writers) == 1)} {percent(found.explained)} of {what} "
            f"({number(found.lift)})."
        )
    else:
        yield "No single writer: no few parts of the model carry it."
    zeroed, restored, *others = (*found.trials, None, None)
    if zeroed and restored:
        drawn = [one for one in others if one is not None]
        which = f"these {len(found.weights)} weights" if len(found.weights) > 1 else "this weight"
        changes = [one.change for one in drawn]
        yield (
            f"{found.task.capitalize()} ({found.unit}) with {which} at 0: {Change(zeroed.change).written()} "
            f"({Of95(zeroed.low, zeroed.high).written()}); with the dimension put back at its tokens: "
            f"{Change(restored.change).written()}; with as many random weights of the same size at 0: "
            f"{Change(min(changes)).written()} to {Change(max(changes)).written()}."
        )
    yield (
        f"It makes {percent(peak.share_largest)} of the sum of squares that a norm divides by at that token, and "
        f"{percent(peak.share_others)} at the others."
    )
    if found.sinks:
        own, *others_lost = found.sinks
        most = max((abs(one.lost) for one in others_lost), default=0.0)
        yield (
            f"Sinks on its token (attention of {found.threshold:g} or more): {len(found.readers)} of {found.n_heads} heads. "
            f"With the dimension at its mean there they lose {percent(own.lost)} of that attention "
            f"({ShareInterval(own.low, own.high).written()}), with a random one moved as far at most {percent(most)}."
        )
        if found.n_reading:
            most = max((abs(one.read) for one in others_lost), default=0.0)
            yield (
                f"Heads that read it in their keys, chosen on every other text: {found.n_reading}. On the texts between they "
                f"lose {percent(own.read)} ({ShareInterval(own.read_low, own.read_high).written()}), with a random one moved "
                f"as far at most {percent(most)}."
            )
    elif found.n_heads:
        yield f"No head is a sink on its token (attention of {found.threshold:g} or more)."
    yield f"The account is exact: in every block the parts sum to the value, to {found.error:.1g} of their size."


def _block(layer: str) -> str:
    return "the embeddings" if layer == "embeddings" else f"block {layer}"


def _listed(writers: tuple[Writer, ...]) -> str:
    """The writers in words, the first letter a capital."""
    said = listed([f"{_named(one.layer, one.kind, one.name, one.index)} ({percent(one.share)})" for one in writers])
    return said[:1].upper() + said[1:]


def _named(layer: str, kind: str, name: str, index: int) -> str:
    if kind in ("head", "neuron"):
        return f"{kind} {layer}.{index}"
    if kind == "embedding":
        return f"the row of {name.rpartition('.')[2]}" if name != "rest" else "the rest of the embeddings"
    last = name.rpartition(".")[2]
    return f"the {kind} of {last} in {_block(layer)}" if last else f"the {kind} of {_block(layer)}"


def _part(part: Part) -> tuple[Cell, ...]:
    return (_named(part.layer, part.kind, part.name, part.index), part.first, part.largest, part.others)
