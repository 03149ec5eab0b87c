"""What is said of a state of the live page as text: `sections(found)`, tables in place of pictures."""

from collections.abc import Iterator

from outlierlens.explore.result import (
    KINDS,
    Anisotropy,
    AttentionMaps,
    Explored,
    Guesses,
    Life,
    Loss,
    OneDimension,
    Vectors,
    spans,
)
from outlierlens.view.section import Change, Interval, Rows, Section


def sections(found: Explored, *, verbose: bool = False) -> Iterator[Section]:
    """What is off, and each view that was asked for, under every condition; the page has it all, `verbose` or not."""
    yield Section("explored", "Intact and with dimensions off", tuple(_sentences(found)), (), tuple(_tables(found)))


def _sentences(found: Explored) -> Iterator[str]:
    for one in found.conditions[1:]:
        yield f"{one.label}: {', '.join(one.names)} off in layers {spans(one.layers)}, mode {found.state.mode}"
    if found.passage:
        for filled in found.passage.fills:
            yield f"{filled.label:>7}: {filled.line}"
        for said in found.passage.continuations:
            yield f"{said.label:>7}: {said.prompt} → {said.text}"
    if found.guesses and not found.guesses.missing:
        yield from _guesses(found.guesses)
    if found.dimension:
        yield from _one_dimension(found.dimension)
    missing = (found.passage, found.loss, found.guesses, found.vectors, found.attention, found.anisotropy, found.life)
    for view in missing:
        if view is not None and view.missing:
            yield f"note: {view.missing}"


def _guesses(guesses: Guesses) -> Iterator[str]:
    yield f"blank {guesses.number}, in the text: {guesses.original}"
    for one_list in guesses.lists:
        words = (f"{guess.word} {100 * guess.probability:.1f} %" for guess in one_list.guesses)
        yield f"{one_list.label:>7}: {', '.join(words)}"


def _one_dimension(one: OneDimension) -> Iterator[str]:
    layer, token = one.peak
    where = "the embeddings" if layer == 0 else f"layer {one.layers[layer]}"
    yield (
        f"dimension {one.dim} is largest after {where} at token {token} ({one.tokens[token]}): {one.values[layer, token]:.2f}, "
        f"{one.shares[layer, token]:.0%} of the vector's length"
    )
    if one.n_words:
        said = "; ".join(f"{word.original}: {word.intact} → {word.filled}" for word in one.words)
        yield f"with it alone off {len(one.words)} words change, of {one.n_words} blanks: {said or 'none'}"


def _tables(found: Explored) -> Iterator[Rows]:
    labels = [one.label for one in found.conditions]
    if found.loss and not found.loss.missing:
        yield _loss(found.loss)
    if found.dimension and not found.dimension.loss.missing:
        yield _loss(found.dimension.loss, f"Dimension {found.dimension.dim} alone off")
    if found.vectors and not found.vectors.missing:
        yield _vectors(found.vectors, labels)
    if found.attention and not found.attention.missing:
        yield _attention(found.attention, labels)
    if found.anisotropy and not found.anisotropy.missing:
        yield _anisotropy(found.anisotropy, labels)
    if found.life and not found.life.missing:
        yield _life(found.life)


def _loss(loss: Loss, title: str = "") -> Rows:
    rows = tuple(
        (row.label, row.value, row.low, row.high, Change(row.change), Interval(row.change_low, row.change_high))
        for row in loss.rows
    )
    columns = ("condition", loss.unit, "95 % from", "to", "change", "95 % of it")
    return Rows(title or f"{loss.task[:1].upper()}{loss.task[1:]}", columns, rows, f"{loss.n_tokens} predictions.")


def _vectors(seen: Vectors, labels: list[str]) -> Rows:
    rows = (
        (label, *(float(values[dim]) for dim in seen.named)) for label, values in zip(labels, seen.values, strict=True)
    )
    columns = ("condition", *map(str, seen.named))
    return Rows(f"Vectors after layer {seen.layer}", columns, tuple(rows), f"By dimension: {seen.drawn}.")


def _attention(maps: AttentionMaps, labels: list[str]) -> Rows:
    special = [place for place, is_special in enumerate(maps.special) if is_special]
    rows = (
        (label, float(one[:, 0].mean()), float(one[:, special].sum(1).mean()))
        for label, one in zip(labels, maps.weights, strict=True)
    )
    note = f"Layer {maps.layer}, head {maps.head}: the part of its attention that a token gives, in [0, 1], on average."
    return Rows("Attention", ("condition", "first token", "special tokens"), tuple(rows), note)


def _anisotropy(cosines: Anisotropy, labels: list[str]) -> Rows:
    rows = ((label, *map(float, values)) for label, values in zip(labels, cosines.cosine, strict=True))
    note = f"Of all pairs of {cosines.n_tokens} tokens, by layer."
    return Rows("Mean cosine", ("condition", *cosines.layers), tuple(rows), note)


def _life(seen: Life) -> Rows:
    rows = tuple(
        (layer, float(seen.values[place, seen.at]), *map(float, seen.added[place]))
        for place, layer in enumerate(seen.layers)
    )
    note = f"Intact, at {seen.tokens[seen.at]!r}, where it is largest; the rest of each value is carried over."
    return Rows(f"The life of dimension {seen.dim}", ("layer", "value", *KINDS), rows, note)
