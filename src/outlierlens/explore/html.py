"""Views as HTML, one function a view, and small pictures as SVG; text is escaped, and nothing is loaded from anywhere.

drawn(explorer, found)["passage"]              # a piece of the page, with its Python and its command
spikes(values, low, high, marked, about)       # one vector, dimension by dimension
heat(shares, rows, columns, about, units)      # a map, such as one head's attention, and its `heat_legend`
lines(layers, {"intact": values, ...}, about)  # a value by layer

Text of models and people goes through `escaped`, which also keeps what the page's templates would read as code.
"""

import base64
import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.fill import SIGNS, Filled
from outlierlens.explore import snippets
from outlierlens.explore.result import (
    KINDS,
    VIEWS,
    Anisotropy,
    AttentionMaps,
    Explored,
    Guesses,
    Life,
    Listed,
    Loss,
    LossRow,
    Off,
    OneDimension,
    Passage,
    Vectors,
    spans,
)
from outlierlens.statistics.means import interval_text
from outlierlens.view.charts.base import DARK, LIGHT, indexed

if TYPE_CHECKING:
    from outlierlens.explore.look import Explorer

CELLS_ACROSS = 400  # of a drawn vector: dimensions that share a column show their smallest and largest value
LABELLED = 32  # rows or columns that a map names at most
HEAT = {"day": (LIGHT["surface"], "#003e6e"), "night": (DARK["surface"], "#b5e3ff")}  # no share, and all of it
COLOURS = {"intact": "var(--ol-ink)", "random": "var(--ol-dim-2)", "chosen": "var(--ol-dim-1)"}
DASHES = {"intact": "", "random": "6 4", "chosen": "2 3"}


def escaped(text: object) -> str:
    """`text` for HTML; braces, dollars and backticks too, which templates in the browser would read."""
    plain = html.escape(str(text))
    for character in "{}$`\\":
        plain = plain.replace(character, f"&#{ord(character)};")
    return plain


def spikes(values: np.ndarray, low: float, high: float, marked: Sequence[int], about: str) -> str:
    """A vector [dim] between `low` and `high`, with the `marked` dimensions pointed out and numbered."""
    width, height, top = 420, 170, 24
    span = (high - low) or 1.0

    def x(dim: float) -> float:
        return 4 + (width - 8) * dim / max(len(values) - 1, 1)

    def y(value: float) -> float:
        return top + (height - top - 4) * (high - value) / span

    finite = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=high, neginf=low)
    path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in _thinned(finite))
    zero = f'<line x1="0" x2="{width}" y1="{y(0):.1f}" y2="{y(0):.1f}" class="ol-zero"/>' if low <= 0 <= high else ""
    dots, after = [], -30.0
    for dim in sorted(marked):
        at = x(dim)
        # Labels that would overlap are left to the table below.
        text = (
            f'<text x="{min(max(at, 12), width - 12):.1f}" y="14" text-anchor="middle">{dim}</text>'
            if at - after > 28
            else ""
        )
        after = at if text else after
        dots.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="18" y2="{y(finite[dim]):.1f}" class="ol-mark"/>{text}'
            f'<circle cx="{at:.1f}" cy="{y(finite[dim]):.1f}" r="3.5" class="ol-dot">'
            f"<title>dimension {dim}: {finite[dim]:.3f}</title></circle>"
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escaped(about)}">{zero}'
        f'<polyline points="{path}" class="ol-line"/>{"".join(dots)}</svg>'
    )


def _thinned(values: np.ndarray) -> list[tuple[float, float]]:
    """(dimension, value) of the points that are drawn: all of them, or the extremes of each column."""
    if len(values) <= CELLS_ACROSS:
        return list(enumerate(values.tolist()))
    points: list[tuple[float, float]] = []
    for part in np.array_split(np.arange(len(values)), CELLS_ACROSS):
        low, high = part[values[part].argmin()], part[values[part].argmax()]
        points += [(float(i), float(values[i])) for i in sorted({int(low), int(high)})]
    return points


def heat(shares: np.ndarray, rows: Sequence[str], columns: Sequence[str], about: str, units: tuple[str, str]) -> str:
    """One map of shares [row, column] in [0, 1], drawn for a light and a dark page; the square root is what is coloured.

    It can be focused, and the page's script says what the cell at the pointer holds: `units` are the two words before the names
    of its row and its column.
    """
    n_rows, n_columns = shares.shape
    side, width = 320, 320
    margin_left, margin_top = 86, 86 if max(map(len, columns)) > 3 else 30
    height = min(side, max(90, 16 * n_rows)) if n_rows != n_columns else side
    whole_width, whole_height = margin_left + width, margin_top + height
    place = f'x="{margin_left}" y="{margin_top}" width="{width}" height="{height}"'
    names = [
        *_names(
            rows,
            height / n_rows,
            lambda at, size: f'x="{margin_left - 4}" y="{margin_top + at + size / 3:.1f}" text-anchor="end"',
        ),
        *_names(
            columns,
            width / n_columns,
            lambda at, size: f'transform="translate({margin_left + at + size / 3:.1f} {margin_top - 4}) rotate(-90)"',
        ),
    ]
    images = "".join(
        f'<image class="ol-by-{when}" {place} preserveAspectRatio="none" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{png(np.sqrt(np.clip(shares, 0, 1)), *colours)}"/>'
        for when, colours in HEAT.items()
    )
    cells = {
        "rows": list(rows),
        "columns": list(columns),
        "units": list(units),
        "parts": np.nan_to_num(shares * 1000).round().astype(int).tolist(),
    }
    return (
        f'<svg viewBox="0 0 {whole_width} {whole_height}" role="img" aria-label="{escaped(about)}" class="ol-heat" '
        f'tabindex="0" data-cells="{escaped(json.dumps(cells, separators=(",", ":")))}">{"".join(names)}{images}'
        f'<rect {place} class="ol-frame"/><rect class="ol-cursor"/></svg>'
        '<p class="ol-small ol-readout" aria-live="polite">Point at a cell, or focus the map and press the arrow keys.</p>'
    )


def _names(names: Sequence[str], cell: float, put: Callable[[float, float], str]) -> Iterator[str]:
    """Every name, or every so manyth where they are more than `LABELLED`; `put` gives the place of a middle and a size."""
    step = -(-len(names) // LABELLED)
    size = min(11.0, cell * step * 0.95)
    for i in range(0, len(names), step):
        name = names[i] if len(names[i]) <= 12 else names[i][:11] + "…"
        yield f'<text style="font-size:{size:.1f}px" {put((i + 0.5) * cell, size)}>{escaped(name)}</text>'


def heat_legend(what: str) -> str:
    """The colours of `heat`, with the share that each of five stands for."""
    ticks = "".join(
        f'<span style="left:{100 * np.sqrt(share):.1f}%">{share:.0%}</span>' for share in (0, 0.01, 0.1, 0.25, 0.5, 1)
    )
    return f'<div class="ol-legend" role="img" aria-label="Colours: {escaped(what)}, from 0 to 100 %"><div></div>{ticks}</div>'


def png(shares: np.ndarray, low: str, high: str) -> str:
    """Shares [row, column] in [0, 1] as a picture from the colour `low` to `high` ("#rrggbb"), base64 of a PNG."""
    levels = np.linspace(0, 1, 256)[:, None]
    ends = [np.frombuffer(bytes.fromhex(colour[1:]), dtype=np.uint8) for colour in (low, high)]
    palette = (ends[0] * (1 - levels) + ends[1] * levels).round().astype(np.uint8)
    pixels = (np.nan_to_num(shares) * 255).round().astype(np.uint8)
    return base64.b64encode(indexed(pixels, palette)).decode()


def lines(layers: Sequence[str], series: Mapping[str, np.ndarray], about: str) -> str:
    """Values by layer, a line a condition, from 0 (or below) to 1."""
    width, height, left, bottom = 640, 220, 34, 22
    low = min(0.0, *(float(np.nanmin(values, initial=0)) for values in series.values()))
    parts = []

    def x(place: float) -> float:
        return left + (width - left - 12) * place / max(len(layers) - 1, 1)

    def y(value: float) -> float:
        return 8 + (height - bottom - 8) * (1 - value) / (1 - low)

    for tick in (0.0, 0.5, 1.0):
        parts.append(f'<line x1="{left}" x2="{width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" class="ol-grid"/>')
        parts.append(f'<text x="{left - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    every = -(-len(layers) // 14)
    for place in range(0, len(layers), every):
        name = "emb." if layers[place] == "embeddings" else layers[place]
        parts.append(f'<text x="{x(place):.1f}" y="{height - 5}" text-anchor="middle">{name}</text>')
    for label, values in series.items():
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values.tolist()) if np.isfinite(v))
        dash = f' stroke-dasharray="{DASHES[label]}"' if DASHES[label] else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[label]}" stroke-width="2.2"{dash}/>')
    body = "".join(parts)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escaped(about)}" class="ol-lines">{body}</svg>'


# --- views -----------------------------------------------------------------------------------------------------------

MEANING = {"same": "as intact", "other": "another word", "nonsense": "nonsense", "changed": "shown, and not repeated"}
TITLES = {
    "passage": "What it says",
    "loss": "Loss of this text",
    "guesses": "Guesses for one blank",
    "dimension": "One dimension by itself",
    "vectors": "Token vectors",
    "attention": "Attention",
    "anisotropy": "Anisotropy of this text's tokens",
    "life": "Life of one dimension",
}
COLUMNS = 24  # dimensions in the table of every token


def drawn(explorer: "Explorer", found: Explored) -> dict[str, str]:
    """{view: HTML} of every view that was measured."""
    views = {view: getattr(found, view) for view in VIEWS if getattr(found, view) is not None}
    bodies = {
        "passage": lambda: passage(found.passage or Passage(), found.conditions),
        "loss": lambda: loss(found.loss or Loss()),
        "guesses": lambda: guesses(found.guesses or Guesses()),
        "dimension": lambda: dimension(found.dimension or OneDimension()),
        "vectors": lambda: vectors(found.vectors or Vectors(), found),
        "attention": lambda: attention(found.attention or AttentionMaps(), found),
        "anisotropy": lambda: anisotropy(found.anisotropy or Anisotropy(), found),
        "life": lambda: life(found.life or Life()),
    }
    return {view: _section(view, bodies[view](), copies(explorer, found, view)) for view in views}


def _section(view: str, body: str, more: str) -> str:
    return f'<section class="ol" data-view="{view}"><h2>{TITLES[view]}</h2>{body}{more}</section>'


def copies(explorer: "Explorer", found: Explored, view: str) -> str:
    """The Python and the command of a view, each with a button that copies it."""
    one = snippets.command(explorer.loaded.name, explorer.options, found.state, (view,))
    parts = {"Python": snippets.python(explorer, found, view), "command": one}
    return "".join(
        f'<details class="ol-copy"><summary>Copy as {name}</summary><button type="button" data-copy="{name}" '
        f'aria-label="Copy {escaped(TITLES[view])} as {name}">Copy</button><pre tabindex="0">{escaped(text)}</pre></details>'
        for name, text in parts.items()
    )


def head(explorer: "Explorer", stack: str) -> str:
    """The title and what the weights show."""
    return (
        f'<div class="ol"><h1>{escaped(explorer.loaded.name)}</h1>'
        f'<p id="ol-verdict">{escaped(explorer.verdict(stack))}</p></div>'
    )


def said(found: Explored) -> str:
    """What is off, and notes; read out by screen readers when it changes."""
    text = []
    for one in found.conditions[1:]:
        text.append(f"<b>{one.label}</b>: {escaped(', '.join(one.names))}")
    if not text:
        text.append("Everything is on: move the slider or a switch to see the model without a dimension")
    else:
        where = f"off in layers {spans(found.conditions[-1].layers)}, mode {found.state.mode}"
        text.append(where + (f" × {found.state.factor:g}" if found.state.mode == "scale" else ""))
    notes = "".join(f"<p>Note: {escaped(note)}.</p>" for note in found.notes)
    return f'<div class="ol ol-said" role="status"><p>{" · ".join(text)}</p>{notes}</div>'


def number(found: Explored) -> str:
    """The loss with what is chosen off, large, and beside it that of the intact model and of the random control."""
    if found.loss is None or found.loss.missing or not found.loss.rows:
        return f'<div class="ol ol-number">{_missing(found.loss.missing if found.loss else "")}</div>'
    intact, *others = found.loss.rows
    last = found.loss.rows[-1]
    is_loss = found.loss.unit == "nats per token"
    lines = [f"{'loss' if is_loss else 'outputs move'}, {found.loss.unit}"]
    if others:
        random = others[0]
        harm = "harm" if last.change_low > 0 or not is_loss else ""
        lines = [
            f'{lines[0]}: <span class="{harm}">{last.change:+.2f}</span> against everything on',
            f"as many random dimensions: {random.change:+.2f}",
        ]
        if is_loss:
            lines.insert(1, f"perplexity {_perplexity(intact)} → {_perplexity(last)}")
    else:
        harm = ""
        lines += [f"perplexity {_perplexity(intact)}"] if is_loss else []
        lines.append("everything is on")
    said = "".join(f"<span>{line}</span>" for line in lines)
    return f'<div class="ol ol-number"><b id="ol-big" class="{harm}">{last.value:.2f}</b><p>{said}</p></div>'


def _perplexity(row: LossRow) -> str:
    return f"{np.exp(min(row.value, 700)):,.4g}"


def alert(message: str) -> str:
    """An error as a sentence."""
    return f'<div class="ol ol-alert" role="alert">{escaped(message[:1].upper() + message[1:])}.</div>'


def listed_label(one: Listed) -> str:
    """The text of a box to tick."""
    return one.label


def _missing(text: str) -> str:
    return f'<p class="ol-missing">{escaped(text[:1].upper() + text[1:])}.</p>'


def _named(label: str, conditions: tuple[Off, ...]) -> str:
    names = next((one.names for one in conditions if one.label == label), ())
    off = f"<small>{escaped(', '.join(names[:8]) + (' …' if len(names) > 8 else ''))} off</small>" if names else ""
    return f"<b>{label}</b>{off}"


def passage(view: Passage, conditions: tuple[Off, ...]) -> str:
    """The text under each condition, words coloured and signed by what became of them; blanks are buttons."""
    rows = "".join(
        f'<tr data-condition="{one.label}"><th scope="row">{_named(one.label, conditions)}</th><td>{_filled(one)}</td></tr>'
        for one in view.fills
    )
    kinds = {"same", "other", "nonsense"} | {blank.kind for one in view.fills for blank in one.blanks}
    legend = " · ".join(
        f'<mark class="{kind}"><i>{sign}</i> {MEANING[kind]}</mark>' for kind, sign in SIGNS.items() if kind in kinds
    )
    table = (
        f'<table class="ol-fills">{rows}</table><p class="ol-small">{legend}. Press a blank for its guesses.</p>'
        if rows
        else ""
    )
    more = "".join(
        f'<tr data-condition="{one.label}"><th scope="row">{_named(one.label, conditions)}</th>'
        f'<td><span class="ol-muted">{escaped(one.prompt)}</span> {escaped(one.text)}</td></tr>'
        for one in view.continuations
    )
    if more:
        table = f'<h3>It goes on to say</h3><table class="ol-fills ol-says">{more}</table><h3>It fills in</h3>{table}'
    return (_missing(view.missing) if view.missing else "") + table


def _filled(one: Filled) -> str:
    parts = [escaped(one.pieces[0])]
    number = 0
    for blank, piece in zip(one.blanks, one.pieces[1:], strict=True):
        about = f"{blank.filled}, {MEANING[blank.kind]}; the text says {blank.original}"
        word = f"<i>{SIGNS[blank.kind]}</i>{escaped(blank.filled)}"
        if blank.kind == "changed":
            spoken = f'<span class="ol-hidden"> ({escaped(MEANING["changed"])}; the text says {escaped(blank.original)})</span>'
            parts.append(f'<mark class="changed" title="{escaped(about)}">{word}{spoken}</mark>')
        else:
            parts.append(
                f'<button type="button" class="{blank.kind}" data-blank="{number}" '
                f'aria-label="blank {number + 1}: {escaped(about)}">{word}</button>'
            )
            number += 1
        parts.append(escaped(piece))
    return "".join(parts)


def _interval(low: float, high: float, sign: str = "") -> str:
    return interval_text(low, high, f"{sign}.2f")


def loss(view: Loss) -> str:
    """The loss under each condition with its interval, a bar for the eye."""
    if view.missing:
        return _missing(view.missing)
    is_loss = view.unit == "nats per token"
    finite = [row.value for row in view.rows if np.isfinite(row.value)]
    most = max([*finite, 1e-9])
    rows = "".join(_loss_row(row, most, is_loss=is_loss) for row in view.rows)
    columns = [
        "model",
        view.unit,
        "95 % interval",
        *(["perplexity"] if is_loss else []),
        "change",
        "95 % interval of the change",
    ]
    heads = "".join(f'<th scope="col">{escaped(name)}</th>' for name in columns)
    over = (
        f"{escaped(view.task)} over {view.n_tokens} predicted tokens; intervals are over them, as if each were independent: "
        "they do not cover other texts"
        if is_loss
        else "This model predicts no words of a text: shown is how far its outputs move from the intact model's. One text "
        "has no interval"
    )
    table = f'<table class="ol-loss"><thead><tr>{heads}</tr></thead>{rows}</table>'
    return f'<div class="ol-scroll" tabindex="0">{table}</div><p class="ol-small">{over}.</p>'


def _loss_row(row: LossRow, most: float, *, is_loss: bool) -> str:
    share = 100 * min(row.value / most, 1) if np.isfinite(row.value) else 100
    intact = row.label == "intact"
    cells = [f"{row.value:.3f}", _interval(row.low, row.high)]
    if is_loss:
        cells.append(_perplexity(row))
    cells += ["", ""] if intact else [f"{row.change:+.3f}", _interval(row.change_low, row.change_high, "+")]
    bar = f'<span class="ol-bar ol-{row.label}" style="width:{max(share, 0):.1f}%"></span>'
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr data-condition="{row.label}"><th scope="row">{row.label}{bar}</th>{body}</tr>'


def guesses(view: Guesses) -> str:
    """The likeliest words of a blank, a column a condition."""
    if view.missing:
        return _missing(view.missing)
    columns = "".join(
        f'<div data-condition="{one.label}"><h3>{one.label}</h3><ol>'
        + "".join(
            f'<li><span class="ol-bar ol-{one.label}" style="width:{100 * guess.probability:.1f}%"></span>'
            f"<span>{escaped(guess.word)}</span> <small>{guess.probability:.1%}</small></li>"
            for guess in one.guesses
        )
        + "</ol></div>"
        for one in view.lists
    )
    return (
        f'<p>Blank {view.number + 1}; the text says “<b id="ol-original">{escaped(view.original)}</b>”.</p>'
        f'<div class="ol-columns ol-guesses">{columns}</div>'
    )


def dimension(view: OneDimension) -> str:
    """Where one dimension fires, and what breaks when it alone is off."""
    layer, token = view.peak
    after = "the embeddings" if layer == 0 else f"layer {view.layers[layer]}"
    where = (
        f"<p>Dimension {view.dim} is largest after {after}, at token {token} “{escaped(view.tokens[token])}”: "
        f"{view.values[layer, token]:.2f}, {view.shares[layer, token]:.0%} of the length of that vector.</p>"
    )
    about = f"Dimension {view.dim}: largest after {after}, at token {token}, with {view.shares[layer, token]:.0%} of the length"
    names = [name if place else "emb." for place, name in enumerate(view.layers)]
    picture = heat(view.shares, names, view.tokens, about, ("layer", "token"))
    words = "".join(
        f'<tr><th scope="row">{escaped(word.original)}</th><td>{escaped(word.intact)}</td>'
        f'<td><mark class="{word.kind}"><i>{SIGNS[word.kind]}</i> {escaped(word.filled)}</mark></td></tr>'
        for word in view.words
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("the text says", "intact", f"without {view.dim}"))
    table = (
        f'<div class="ol-scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>{words}</table></div>'
        if words
        else _missing(f"no word of {view.n_words} blanks changes" if view.n_words else "the model says no words")
    )
    return (
        f'<div class="ol-columns"><div><h3>Where it fires</h3>{where}{picture}'
        f"{heat_legend('its share of the length of a vector')}</div>"
        f"<div><h3>What breaks when it alone is off</h3>{loss(view.loss)}{table}</div></div>"
    )


def vectors(view: Vectors, found: Explored) -> str:
    """A vector under each condition on one scale, and the marked dimensions of every token."""
    if view.missing:
        return _missing(view.missing)
    finite = view.values[np.isfinite(view.values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)
    labels = [one.label for one in found.conditions]
    pictures = "".join(
        f'<figure data-condition="{label}"><figcaption>{_named(label, found.conditions)}</figcaption>'
        + spikes(values, low, high, view.named, f"{label}: {len(values)} values, {low:.2f} to {high:.2f}")
        + "</figure>"
        for label, values in zip(labels, view.values, strict=True)
    )
    where = "the embeddings" if view.layer == "embeddings" else f"layer {view.layer}"
    return (
        f"<p>After {where}: {escaped(view.drawn)}, from {low:.2f} to {high:.2f} over all pictures. Marked are the chosen and "
        f'the listed dimensions.</p><div class="ol-columns">{pictures}</div>{_token_table(view, labels)}'
    )


def _token_table(view: Vectors, labels: list[str]) -> str:
    shown = view.named[:COLUMNS]
    heads = "".join(f'<th scope="col">{dim}<small>{label}</small></th>' for dim in shown for label in labels)
    heads += "".join(f'<th scope="col">length<small>{label}</small></th>' for label in labels)
    few = f", in the first {len(shown)} of {len(view.named)} dimensions" if len(shown) < len(view.named) else ""
    rows = []
    for token, word in enumerate(view.tokens):
        cells = [f"<td>{view.marked[i, token, k]:.2f}</td>" for k in range(len(shown)) for i in range(len(labels))]
        cells += [f"<td>{view.lengths[i, token]:.2f}</td>" for i in range(len(labels))]
        rows.append(f'<tr><th scope="row">{token} {escaped(word)}</th>{"".join(cells)}</tr>')
    return (
        f'<details><summary>Every token’s values{few}</summary><div class="ol-scroll" tabindex="0"><table><thead><tr>'
        f'<th scope="col">token</th>{heads}</tr></thead>{"".join(rows)}</table></div></details>'
    )


def attention(view: AttentionMaps, found: Explored) -> str:
    """One head's maps side by side, with where its attention goes in numbers."""
    if view.missing:
        return _missing(view.missing)
    labels = [one.label for one in found.conditions]
    special = np.array(view.special)
    figures, rows = [], []
    for label, weights in zip(labels, view.weights, strict=True):
        first, onto = float(weights[:, 0].mean()), float(weights[:, special].sum(1).mean())
        own = float(np.diagonal(weights).mean())
        about = f"{label}: {first:.0%} of the attention goes to the first token, {onto:.0%} to special tokens"
        picture = heat(weights, view.tokens, view.tokens, about, ("from", "to"))
        figures.append(
            f'<figure data-condition="{label}"><figcaption>{_named(label, found.conditions)}</figcaption>{picture}</figure>'
        )
        rows.append(f'<tr><th scope="row">{label}</th><td>{first:.1%}</td><td>{onto:.1%}</td><td>{own:.1%}</td></tr>')
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("model", "to the first token", "to special tokens", "to itself")
    )
    return (
        f"<p>Layer {view.layer}, head {view.head} of 0–{view.n_heads - 1}. A row is a token that attends, a column one that is "
        f'attended to.</p>{heat_legend("share of a row’s attention")}<div class="ol-columns">{"".join(figures)}</div>'
        f'<div class="ol-scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>{"".join(rows)}</table></div>'
    )


def anisotropy(view: Anisotropy, found: Explored) -> str:
    """The mean cosine by layer, and what the chosen dimensions add to it."""
    if view.missing:
        return _missing(view.missing)
    labels = [one.label for one in found.conditions]
    picture = lines(
        view.layers,
        dict(zip(labels, view.cosine, strict=True)),
        "; ".join(
            f"{label}: {values[-1]:.2f} after the last layer" for label, values in zip(labels, view.cosine, strict=True)
        ),
    )
    legend = " · ".join(f'<span class="ol-key ol-{label}"></span>{label}' for label in labels)
    heads = "".join(f'<th scope="col">{label}<small>mean cosine</small></th>' for label in labels)
    heads += "".join(f'<th scope="col">{label}<small>of it, chosen</small></th>' for label in labels)
    rows = "".join(
        f'<tr><th scope="row">{layer}</th>'
        + "".join(f"<td>{value:.3f}</td>" for value in (*view.cosine[:, place], *view.share[:, place]))
        + "</tr>"
        for place, layer in enumerate(view.layers)
    )
    return (
        f"<p>Mean cosine of all pairs of {view.n_tokens} tokens without special ones: 0 means that they point everywhere, 1 "
        f'all one way. {legend}</p>{picture}<details open><summary>Numbers</summary><div class="ol-scroll" tabindex="0">'
        f'<table><thead><tr><th scope="col">layer</th>{heads}</tr></thead>{rows}</table></div></details>'
    )


def life(view: Life) -> str:
    """The dimension's value by layer at its largest token, and what each kind of part adds there."""
    if view.missing:
        return _missing(view.missing)
    values = view.values[:, view.at]
    peak = values[np.abs(values).argmax()]
    about = f"dimension {view.dim} at {view.tokens[view.at]}, as a share of its largest value, by layer"
    picture = lines(view.layers, {"intact": values / (peak or 1.0)}, about)
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("layer", "value", *KINDS))
    rows = "".join(
        f'<tr><th scope="row">{layer}</th>'
        + "".join(f"<td>{number:.3f}</td>" for number in (values[place], *view.added[place]))
        + "</tr>"
        for place, layer in enumerate(view.layers)
    )
    return (
        f"<p>Dimension {view.dim} in the intact model is largest at {escaped(view.tokens[view.at])}: {peak:.2f}. The "
        f"picture shows its value there after each layer, 1 for the largest; the numbers say which parts of a layer add it. "
        f"What they leave is carried over from the layer before.</p>{picture}<details open><summary>Numbers</summary>"
        f'<div class="ol-scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>{rows}</table></div></details>'
    )
