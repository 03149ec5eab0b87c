"""Small pictures as SVG: a vector with marked dimensions, an attention map, lines over layers. No torch, nothing loaded.

spikes(values, low, high, marked, about)       # one vector, dimension by dimension
heat(weights, tokens, about)                   # one attention map
lines(layers, {"intact": values, ...}, about)  # a value by layer

Text goes through `escaped`, which also keeps what the page's templates would read as code.
"""

import base64
import html
from collections.abc import Mapping, Sequence

import numpy as np

from outlierlens.view.charts.png import indexed

COLUMNS = 400  # of a drawn vector: dimensions that share a column show their smallest and largest value
LABELLED = 32  # tokens that an attention map names at most
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


def heat(weights: np.ndarray, tokens: Sequence[str], about: str) -> str:
    """One map [query, key] of shares in [0, 1]: queries downwards, keys to the right; the square root is what is coloured."""
    n = len(tokens)
    step = -(-n // LABELLED)
    margin, side = 86, 320
    cell = side / n
    size = min(11.0, cell * step * 0.95)
    names = []
    for i in range(0, n, step):
        middle = margin + (i + 0.5) * cell
        name = escaped(tokens[i] if len(tokens[i]) <= 12 else tokens[i][:11] + "…")
        names.append(f'<text x="{margin - 4}" y="{middle + size / 3:.1f}" text-anchor="end">{name}</text>')
        names.append(f'<text transform="translate({middle + size / 3:.1f} {margin - 4}) rotate(-90)">{name}</text>')
    whole = margin + side
    return (
        f'<svg viewBox="0 0 {whole} {whole}" role="img" aria-label="{escaped(about)}" class="ol-heat">'
        f'<g font-size="{size:.1f}">{"".join(names)}</g>'
        f'<image x="{margin}" y="{margin}" width="{side}" height="{side}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{png(np.sqrt(np.clip(weights, 0, 1)))}"/>'
        f'<rect x="{margin}" y="{margin}" width="{side}" height="{side}" class="ol-frame"/></svg>'
    )


def png(shares: np.ndarray) -> str:
    """Shares [row, column] in [0, 1] as a picture from white to dark blue, base64 of a PNG."""
    levels = np.linspace(0, 1, 256)[:, None]
    palette = (np.array([255, 255, 255]) * (1 - levels) + np.array([0, 62, 110]) * levels).astype(np.uint8)
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
