"""What is said of the number range of a model, for every surface: `sections(found)`."""

import math
from collections.abc import Iterable, Iterator

from outlierlens.experiments.range.charts import ranges
from outlierlens.experiments.range.result import FORMATS, KEY_ALARM, KINDS, KeyBias, Ranges, TensorRange, WeightRange
from outlierlens.view.section import Cell, Count, FineShare, Rows, Section
from outlierlens.view.words import listed, number

NAME = "ranges"
NARROW = tuple(form.name for form in FORMATS if form.largest < 1e6)  # bf16 holds whatever float32 holds
TIMES = tuple(f"{name} ×" for name in NARROW)
AMPLE = 1000.0  # times headroom, from which nobody asks how much more
PLACE = ("tensor", "layer", "largest", "token", "dim")
HEADS = (*PLACE, "fp16 ×", "e4m3 ×", "int8 step / median", "below fp16", "below e4m3")
EVERY = ("stream", *PLACE, *TIMES, "median", "int8 step / median", "below fp16", "below e4m3", "below e5m2")
WEIGHTS = ("weight", "stored", "largest", *TIMES, "over fp16", "over e4m3", "below fp16", "below e4m3")
KEYS = ("layer", "‖key bias‖", "× median layer", "largest", "head", "channel", "alarm")
CACHE = ("int8 token", "int4 token", "int8 channel", "int4 channel", "int8 tensor", "int4 tensor")
CACHE_NOTE = (
    "‖rounded − x‖ / ‖x‖ of the median channel; 1: all of it is lost. Who shares a step: a token, a channel of a text, or all "
    "of a text."
)
LAST = {"embeddings": -1, "final": 10**6, "head": 10**6}  # before all layers, and after them
UNITS = dict.fromkeys(("gate/up", "MLP inner"), "neuron") | dict.fromkeys("qkv", "row")
SHOWN = 12  # stored tensors without --verbose
NOTE = (
    "×: largest finite value of the format / largest |x|; below 1 it overflows. int8: one step with one scale for the whole "
    "tensor / the median |x|; above 2, more than half of the values round to 0. Below: share of values that are not 0 and "
    "below the format's smallest normal number."
)
WEIGHT_NOTE = (
    "×: largest finite value of the format / largest |w|; below 1 it overflows. Over: values that overflow. Below: values that "
    "are not 0 and below the format's smallest normal number."
)


def sections(found: Ranges, *, verbose: bool = False) -> Iterator[Section]:
    """The verdict by format, and of every kind the layer with the largest value; with `verbose` every layer."""
    if found.weights:
        yield Section(
            NAME,
            "The range of the weights",
            tuple(_of_weights(found)),
            (ranges(found, name=NAME),),
            (_weights(found, verbose), *_keys(found, verbose)),
        )
        return
    tables = [Rows("The largest value of each kind", HEADS, tuple(_worst(found.rows)), f"{NOTE} {_sampled(found)}")]
    if found.templated:
        tables.append(Rows("Templated beside plain", *_beside(found)))
    tables += _keys(found, verbose)
    if verbose:
        tables.append(Rows("Every layer", EVERY, tuple(map(_all_cells, found.rows))))
        if found.templated:
            tables.append(Rows("Every layer, templated", EVERY, tuple(map(_all_cells, found.templated))))
    yield Section(
        NAME, "The range of every tensor", tuple(_sentences(found)), (ranges(found, name=NAME),), tuple(tables)
    )


def verdict(found: Ranges, form: str) -> str:
    """ "fp16: fits, 53 times headroom; the largest |x| is …", of what goes from one operation to the next."""
    top = max(found.stored, key=lambda row: row.largest)
    return _verdict(form, top.headroom(form), f"; the largest |x| is {number(top.largest)}, at {_place(top)}")


def _verdict(form: str, room: float, more: str = "") -> str:
    if room >= 1:
        return f"{form}: {_fits(room)}{more}"
    beyond = number(1 / room) if room > 0 else "∞"
    return f"{form}: overflows, {beyond} times its largest number{more}"


def _fits(room: float) -> str:
    return f"fits, {number(room) if room < AMPLE else f'over {AMPLE:,.0f}'} times headroom"


def _sentences(found: Ranges) -> Iterator[str]:
    first, *others = (form.name for form in FORMATS)
    if broken := [row for row in (*found.rows, *found.templated) if row.nan]:
        at = min(broken, key=lambda row: int(row.layer) if row.layer.isdecimal() else LAST[row.layer])
        more = f" and {len(broken) - 1:,} more tensors" if len(broken) > 1 else ""
        yield f"NaN in the {_name(at)}{more}: such values count as infinite here, and nothing after them is to be relied on."
    yield f"{verdict(found, first)}."
    if found.never_fed:
        yield (
            f"Never fed by these {found.inputs}: {listed(found.never_fed[:SHOWN])}"
            f"{f' and {len(found.never_fed) - SHOWN:,} more' if len(found.never_fed) > SHOWN else ''}. Nothing is known of "
            "their range."
        )
    if found.inside:
        top = max(found.inside, key=lambda row: row.largest)
        room = top.headroom(first)
        fits = _fits(room) if room >= 1 else "overflows, unless the kernel holds it in float32"
        yield f"Inside operations the largest number is {number(top.largest)}, at {_place(top)}: in {first} it {fits}."
    top = max(found.stored, key=lambda row: row.largest)
    yield f"{'; '.join(_verdict(form, top.headroom(form)) for form in others)}: unscaled, of that same |x|."
    known = [row for row in found.stored if math.isfinite(row.int8_coarseness)]
    if known:
        coarse = max(known, key=lambda row: row.int8_coarseness)
        yield (
            f"int8 with one scale per tensor is coarsest for the {coarse.kind} of layer {coarse.layer}: one step is "
            f"{number(coarse.int8_coarseness)} times the median |x|"
            f"{', so more than half of the values round to 0' if coarse.int8_coarseness > 2 else ''}."
        )
    if found.cache:
        yield from _keys_said(found)
    yield (
        f"{found.provenance.model} on {found.data}: {found.n_texts:,} {found.inputs}, {found.n_tokens:,} tokens. One more "
        f"{found.inputs.removesuffix('s')}, if it is exchangeable with these, holds a value larger than all of them with a "
        f"chance of at most 1/{found.n_texts + 1:,} ({FineShare(found.chance_of_more).written()})."
    )


def _sampled(found: Ranges) -> str:
    which = "every token vector" if found.every == 1 else f"every {found.every}th token vector"
    return f"Maxima rest on all tokens; medians and shares on {which}, the median exact to within a quarter."


def _name(row: TensorRange) -> str:
    """ "MLP inner of layer 3"."""
    where = {"embeddings": "after the embeddings", "final": "after the last layer", "head": ""}
    name = " ".join(filter(None, (row.kind, where.get(row.layer, f"of layer {row.layer}"))))
    return name if row.stack == "model" else f"{name} of the {row.stack}"


def _place(row: TensorRange) -> str:
    """ "MLP inner of layer 3, neuron 12, token “.” of text 5"."""
    parts = [_name(row)]
    if row.dim >= 0:
        parts.append(f"{UNITS.get(row.kind, 'dimension')} {row.dim}")
    if row.text >= 0:
        parts.append(
            f"token {row.token} ({row.word!r}) of text {row.text}"
            if row.word
            else f"token {row.token} of text {row.text}"
        )
    return ", ".join(parts)


def _worst(rows: Iterable[TensorRange]) -> Iterator[tuple[Cell, ...]]:
    """Of each stream and kind the row with the largest value."""
    listed = list(rows)
    streams = list(dict.fromkeys(row.stack for row in listed))
    for stack in streams:
        for kind in KINDS:
            mine = [row for row in listed if (row.stack, row.kind) == (stack, kind)]
            if mine:
                name = kind if len(streams) == 1 else f"{stack}: {kind}"
                yield (name, *_cells(max(mine, key=lambda row: row.largest))[1:])


def _cells(row: TensorRange) -> tuple[Cell, ...]:
    room = (row.headroom(form) for form in ("fp16", "e4m3"))
    return (*_where(row), *room, row.int8_coarseness, *_below(row, "fp16", "e4m3"))


def _all_cells(row: TensorRange) -> tuple[Cell, ...]:
    room = map(row.headroom, NARROW)
    return (row.stack, *_where(row), *room, row.median, row.int8_coarseness, *_below(row, "fp16", "e4m3", "e5m2"))


def _where(row: TensorRange) -> tuple[Cell, ...]:
    return (row.kind, row.layer, "NaN" if row.nan else row.largest, row.word or None, None if row.dim < 0 else row.dim)


def _below(row: TensorRange, *forms: str) -> Iterator[Cell]:
    return (FineShare(row.below[form]) if form in row.below else None for form in forms)


def _beside(found: Ranges) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Of each kind the largest value of plain texts and of templated ones, with the tokens that hold them."""
    heads = ("tensor", "plain", "layer", "token", "templated", "layer", "token", "times", "fp16 ×")
    rows = []
    for stack, kind in dict.fromkeys((row.stack, row.kind) for row in found.rows):
        plain, turn = (
            max((row for row in rows if (row.stack, row.kind) == (stack, kind)), key=lambda row: row.largest)
            for rows in (found.rows, found.templated)
        )
        ratio = turn.largest / plain.largest if plain.largest else math.nan
        cells = (*(cell for row in (plain, turn) for cell in (row.largest, row.layer, row.word or None)), ratio)
        name = kind if len({row.stack for row in found.rows}) == 1 else f"{stack}: {kind}"
        rows.append((name, *cells, turn.headroom("fp16")))
    return heads, tuple(rows)


def _of_weights(found: Ranges) -> Iterator[str]:
    if found.skipped:
        shown = ", ".join(list(found.skipped)[:3]) + (", …" if len(found.skipped) > 3 else "")
        yield (
            f"Not looked at: {len(found.skipped):,} of {len(found.skipped) + len(found.weights):,} tensors, packed by "
            f"{', '.join(sorted(set(found.skipped.values())))} ({shown}); name the model that was quantized, in full "
            "precision, to look at them. Of the other tensors:"
        )
    top = max(found.weights, key=lambda one: one.largest)
    if broken := [one for one in found.weights if one.nan]:
        more = f" and of {len(broken) - 1:,} more tensors" if len(broken) > 1 else ""
        yield f"NaN: {broken[0].nan:,} of {broken[0].n_values:,} values of {broken[0].name}{more}; the weights are damaged."
    for form in FORMATS:
        n_over = sum(one.over[form.name] for one in found.weights)
        n_below = sum(one.below[form.name] for one in found.weights)
        more = f"; the largest |w| is {number(top.largest)}, of {top.name}" if form is FORMATS[0] else ""
        yield (
            f"{_verdict(form.name, top.headroom(form.name), more)}; {n_over:,} values overflow, {n_below:,} are below its "
            "smallest normal number."
        )
    yield from _keys_said(found)
    n_values = sum(one.n_values for one in found.weights)
    yield (
        f"{found.provenance.model}: {len(found.weights):,} tensors, {n_values:,} values, read without running. What the model "
        "computes of them may be far larger: leave --weights out to measure it."
    )


def _weights(found: Ranges, verbose: bool) -> Rows:
    ordered = sorted(found.weights, key=lambda one: -one.largest)
    shown = found.weights if verbose else ordered[:SHOWN]
    left = f" The {len(shown)} largest of {len(ordered):,}; --verbose shows all." if len(shown) < len(ordered) else ""
    return Rows("Stored weights", WEIGHTS, tuple(map(_weight, shown)), WEIGHT_NOTE + left)


def _weight(one: WeightRange) -> tuple[Cell, ...]:
    room = map(one.headroom, NARROW)
    counts = (Count(of[form]) for of in (one.over, one.below) for form in ("fp16", "e4m3"))
    return (one.name, one.stored, "NaN" if one.nan else one.largest, *room, *counts)


def _keys_said(found: Ranges) -> Iterator[str]:
    """Which layers' key biases predict that keys of few bits fail there."""
    if not found.keys:
        yield "No key biases that are stored by themselves, so nothing is predicted of a cache of few bits."
        return
    top = max(found.keys, key=lambda one: one.ratio)
    place = (
        f"layer {top.layer}, whose largest entry is {number(top.largest)} (channel {top.channel} of head {top.head})"
    )
    alarms = [str(one.layer) for one in found.keys if one.alarm]
    said = (
        f"keys rounded with one step per token lose most in layer{'s' if len(alarms) > 1 else ''} {', '.join(alarms)}"
        if alarms
        else "no alarm"
    )
    yield (
        f"The largest key bias is {number(top.ratio)} times the median layer's, in {place}; from {KEY_ALARM:g} times on, an "
        f"alarm: {said}."
    )


def _keys(found: Ranges, verbose: bool) -> Iterator[Rows]:
    """Key biases, and what rounding keys and values loses, by layer; without `verbose` the largest few."""
    if found.keys:
        shown = found.keys if verbose else sorted(found.keys, key=lambda one: -one.ratio)[:SHOWN]
        note = f"Alarm: at least {KEY_ALARM:g} times the median layer's norm."
        yield Rows("Key biases", KEYS, tuple(map(_key, shown)), note)
    for tensor, title in (("k", "Rounded keys"), ("v", "Rounded values")):
        errors = {(one.layer, f"{one.number} {one.grain}"): one.middle for one in found.cache if one.tensor == tensor}
        layers = sorted({layer for layer, _ in errors}, key=lambda layer: -errors[layer, CACHE[0]])
        layers = sorted(layers) if verbose else layers[:SHOWN]
        if layers:
            rows = tuple((layer, *(errors[layer, name] for name in CACHE)) for layer in layers)
            yield Rows(title, ("layer", *CACHE), rows, CACHE_NOTE)


def _key(one: KeyBias) -> tuple[Cell, ...]:
    head = None if one.head < 0 else one.head
    return one.layer, one.norm, one.ratio, one.largest, head, one.channel, "alarm" if one.alarm else None
