"""Small pictures as SVG: a vector with marked dimensions, an attention map, lines over layers. No torch, nothing loaded.

spikes(values, low, high, marked, about)       # one vector, dimension by dimension
heat(shares, rows, columns, about, units)      # a map, such as one head's attention, and its `heat_legend`
lines(layers, {"intact": values, ...}, about)  # a value by layer

Text goes through `escaped`, which also keeps what the page's templates would read as code.
"""

import base64
import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from outlierlens.view.charts.palette import DARK, LIGHT
from outlierlens.view.charts.png import indexed

COLUMNS = 400  # of a drawn vector: dimensions that share a column show their smallest and largest value
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
    if len(values) <= COLUMNS:
        return list(enumerate(values.tolist()))
    points: list[tuple[float, float]] = []
    for part in np.array_split(np.arange(len(values)), COLUMNS):
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
