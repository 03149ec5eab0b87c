"""`Chart`: a Vega-Lite specification with its title, its one-sentence reading and its numbers as a table; and its colours.

A chart says `ink`, the page decides in light, dark or print what ink is. Each repair of vectors looks the same in every chart:
raw in ink, the others by their kind.

A chart has few colours, yet its renderer writes four bytes a pixel, quickly packed: `smaller(png)` has a tenth of its bytes.
"""

import base64
import importlib
import importlib.util
import io
import json
import math
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outlierlens.errors import BadInput, need, printable
from outlierlens.view.section import round_to

UNSEEN = 0.1  # mean distance of pixels from their palette's colour, of 255, that leaves a picture as it looks


def smaller(png: bytes) -> bytes:
    """The opaque picture in 256 colours; `png` where that could be seen, or where Pillow is not installed."""
    if importlib.util.find_spec("PIL") is None:
        return png
    image: Any = importlib.import_module("PIL.Image")
    before = image.open(io.BytesIO(png))
    if before.mode != "RGBA" or before.getextrema()[3][0] < 255:
        return png
    colours = before.convert("RGB")
    few = colours.quantize(256, dither=image.Dither.NONE)
    steps = np.asarray(few.convert("RGB"), dtype=np.float32) - np.asarray(colours, dtype=np.float32)
    if np.linalg.norm(steps, axis=-1).mean() > UNSEEN:
        return png
    made = io.BytesIO()
    few.save(made, "PNG", optimize=True, **{key: before.info[key] for key in ("dpi",) if key in before.info})
    return made.getvalue()


LIGHT = {
    "surface": "#ffffff",
    "ink": "#1b222b",
    "muted": "#55616f",
    "faint": "#9aa5b1",
    "grid": "#e3e7ec",
    "band": "#cfd6de",
    "alarm": "#b3261e",
    # Okabe and Ito's colours, darkened to 3:1 on white; every one goes with a shape of its own.
    "dim-1": "#c4500a",
    "dim-2": "#0067a6",
    "dim-3": "#00805c",
    "dim-4": "#a8417f",
    "dim-5": "#8a6500",
    "dim-6": "#4c5bb5",
}
DARK = {
    "surface": "#171b21",
    "ink": "#e9edf2",
    "muted": "#a7b2bf",
    "faint": "#6c7886",
    "grid": "#2b323b",
    "band": "#3a434e",
    "alarm": "#ff8a80",
    "dim-1": "#ff9a5c",
    "dim-2": "#62b8f0",
    "dim-3": "#4fd1a5",
    "dim-4": "#f09bcb",
    "dim-5": "#e5c04a",
    "dim-6": "#a6b1ff",
}
SHAPES = ("diamond", "circle", "triangle-up", "square", "cross", "triangle-down")
COLOURED = len(SHAPES)  # dimensions that get a colour and shape of their own


def variable(name: str) -> str:
    """The CSS variable of a named colour."""
    return f"var(--ol-{name})"


SURFACE, INK, MUTED, FAINT = (variable(name) for name in ("surface", "ink", "muted", "faint"))
GRID, BAND, ALARM = (variable(name) for name in ("grid", "band", "alarm"))
DIM_COLOURS = tuple(variable(f"dim-{i + 1}") for i in range(COLOURED))


def css(colours: dict[str, str]) -> str:
    """The colours as CSS declarations."""
    return "".join(f"--ol-{name}:{value};" for name, value in colours.items())


def concrete(value: Any) -> Any:
    """A copy of a specification in which every colour name is the light colour itself, and no text steers what shows it."""
    if isinstance(value, dict):
        return {key: concrete(item) for key, item in value.items()}
    if isinstance(value, list):
        return [concrete(item) for item in value]
    if isinstance(value, str) and value.startswith("var(--ol-"):
        return LIGHT.get(value.removeprefix("var(--ol-").removesuffix(")"), value)
    return printable(value) if isinstance(value, str) else value


# --- charts ----------------------------------------------------------------------------------------------------------

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
MIME = "application/vnd.vegalite.v6+json"
WIDTH = 820  # pixels, of pictures in files
TABLE_ROWS = 120
PLAIN_NUMBER = "format(datum.value, ',')"  # an axis label as 10,000 rather than 1e+4
Spec = dict[str, Any]
Cell = str | int | float | None
Looks = dict[int, int | None]
"""Dimension -> number of its colour and shape; None is ink."""


@dataclass(frozen=True)
class Chart:
    """One picture of a result.

    Attributes:
        name: file name without ending; letters, digits, "-" and "_" only.
        title: what is drawn, a few words.
        reading: what one sees, in plain sentences; the text alternative of the picture.
        spec: Vega-Lite, version 6.
        columns, rows: the numbers behind the picture, at most `TABLE_ROWS` rows.
        total: number of rows before that limit.
    """

    name: str
    title: str
    reading: str
    spec: Spec
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            raise BadInput(f"chart name {self.name!r} must be letters, digits, '-' and '_'; it names a file")

    def save(self, path: Path | str) -> Path:
        """Draw to exactly `path`, as its ending says: .png, .svg, or .json for Vega-Lite.

        Raises:
            BadInput: another ending. MissingExtra: a picture without vl-convert.
        """
        path = Path(path)
        kinds: dict[str, PictureKind] = {".png": "png", ".svg": "svg", ".json": "vl.json"}
        kind = kinds.get(path.suffix.lower())
        if kind is None:
            raise BadInput(f"{path}: the ending sets the format; use {', '.join(kinds)}")
        content = picture(self, kind)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            beside.write_bytes(content)
            return beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def plain(self, width: int = WIDTH) -> Spec:
        """The specification on its own: light colours, fixed width in pixels, and its title, which a page shows above it."""
        # Panels side by side have widths of their own.
        made = concrete(self.spec) | ({"width": width} if "layer" in self.spec else {})
        own = made.get("title") or {}  # of a picture of one panel, which becomes the second line
        parts = [own[key] for key in ("text", "subtitle") if own.get(key)]
        lines = [line for part in parts for line in (part if isinstance(part, list) else [part])]
        below = (
            {"subtitle": lines, "subtitleColor": MUTED, "subtitleFontSize": 12, "subtitlePadding": 6} if lines else {}
        )
        return made | {"title": concrete(HEADING | {"text": self.title} | below)}

    @property
    def numbers(self) -> dict[str, Any]:
        """`columns`, `rows` and `total`, for a larger chart that has the same table."""
        return {"columns": self.columns, "rows": self.rows, "total": self.total}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """For notebooks: the specification, and where charts can be drawn a picture for viewers that know no Vega-Lite."""

        drawn = {"image/png": base64.b64encode(picture(self, "png")).decode()} if can_export() else {}
        return {MIME: self.plain(), **drawn, "text/plain": printable(f"{self.title}: {self.reading}")}


def chart(
    *, name: str, title: str, reading: str, layers: list[Spec], height: int, columns: Sequence[str], rows: Iterable[Any]
) -> Chart:
    """A layered chart in the house style."""
    spec = framed({"width": "container", "height": height, "layer": layers}, reading)
    numbers = tuple(tuple(row) for row in rows)
    return Chart(name, title, reading, spec, tuple(columns), numbers[:TABLE_ROWS], len(numbers))


def framed(body: Spec, reading: str) -> Spec:
    """A body of layers or panels as a specification in the house style, with its picture in words."""
    return {"$schema": SCHEMA, "description": reading, "background": SURFACE, "config": CONFIG} | body


CONFIG: Spec = {
    "font": "Inter, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "gridColor": GRID,
        "domainColor": MUTED,
        "tickColor": MUTED,
        "labelFontSize": 12,
        "titleFontSize": 12.5,
        "titleFontWeight": 500,
        "titlePadding": 8,
        "labelOverlap": True,
    },
    "legend": {
        "symbolOpacity": 1,  # else a legend is as faint as the first layer drawn, which may be a band
        "labelColor": INK,
        "titleColor": MUTED,
        "labelFontSize": 12.5,
        "titleFontSize": 12.5,
        "titleFontWeight": 500,
        "orient": "top",
        "symbolSize": 90,
        "symbolStrokeWidth": 0,
        "columnPadding": 14,
        "columns": 4,
    },
    "text": {"color": INK, "fontSize": 12.5},
    "point": {"strokeWidth": 1.3},
}


def visible(text: str) -> str:
    """`text` with what cannot be seen made visible: line breaks, tabs, control and direction characters."""
    signs = {"\n": "⏎", "\r": "␍", "\t": "⇥"}
    return "".join(
        signs.get(c, f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c) for c in text
    )


def rounded(digits: int = 4, **values: float | None) -> Spec:
    """Each value by `round_to`, by its name: numbers of a datum."""
    return {name: None if value is None else round_to(float(value), digits) for name, value in values.items()}


def bar(low: float, high: float) -> Spec:
    """{"low", "high"} of an interval bar of a change; None both where there is none to draw: the interval is not settled, or
    nothing changed at all."""
    drawn = math.isfinite(low) and math.isfinite(high) and not low == high == 0
    return {"low": round_to(low), "high": round_to(high)} if drawn else {"low": None, "high": None}


def drawable(values: np.ndarray) -> np.ndarray:
    """Values as float64 in which an undefined one is 0 and an infinite one the largest float32, so that it still shows."""
    top = float(np.finfo(np.float32).max)
    return np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=top, neginf=-top)


def begun(text: str) -> str:
    """With a capital to begin a title; the rest, unlike with str.capitalize, as it is."""
    return text[:1].upper() + text[1:]


def place(layer: str) -> str:
    """A row of an observation in words."""
    return "the embeddings" if layer == "embeddings" else f"layer {layer}"


def field(name: str, title: str | list[str] | None, kind: str = "quantitative", **more: Any) -> Spec:
    """An encoding of a field."""
    return {"field": name, "type": kind, "title": title, **more}


def label(dim: int) -> str:
    """How a dimension is called in legends."""
    return f"dim {dim}"


def looks(named: Sequence[int], among: Sequence[int] | np.ndarray) -> Looks:
    """Dimension -> number of its colour and shape, None for ink, for all of `named` that are `among` the drawn.

    `named` begins with the strongest: the first six have colours, the others are ink and have their number beside them. The
    number is the place in `named`, so a dimension looks the same in every chart, whichever others are drawn there.
    """
    drawn = {int(dim) for dim in among}
    return {dim: place if place < COLOURED else None for place, dim in enumerate(dict.fromkeys(named)) if dim in drawn}


def strongest_first(dims: Iterable[int], strength: Callable[[int], float], room: int = COLOURED) -> tuple[int, ...]:
    """`dims` for `looks`, by falling strength where they are more than there is `room` for; else as they are."""
    unique = tuple(dict.fromkeys(dims))
    if len(unique) <= room:
        return unique
    return tuple(sorted(unique, key=lambda dim: -np.nan_to_num(strength(dim), nan=-np.inf)))


@dataclass(frozen=True)
class Range:
    """A scale for values that may span decades: `scale` and `axis` for Vega-Lite, `log` says which it became."""

    scale: Spec
    axis: Spec
    log: bool

    @property
    def said(self) -> str:
        """What the title of an axis says of the scale: nothing where it is linear."""
        return " (symmetric log scale)" if self.log else ""

    def encoding(self, name: str, title: str | list[str], **more: Any) -> Spec:
        """A field on this scale; the last line of its title says so. `more` goes to the scale where it is linear."""
        lines = [title] if isinstance(title, str) else title
        said = [*lines[:-1], lines[-1] + self.said]
        scale = self.scale if self.log else self.scale | more
        return field(name, said[0] if isinstance(title, str) else said, scale=scale, axis=self.axis)


def symmetric(values: np.ndarray, *, factor: float = 50.0) -> Range:
    """A linear scale, or a symmetric logarithmic one where the largest |value| is over `factor` × the median.

    Between −c and c (c = the median |value|, at least a millionth of the largest) the symmetric scale is near linear;
    it has a zero and takes negatives.
    """
    size = np.abs(values[np.isfinite(values)])
    top = float(size.max(initial=0.0))
    median = float(np.median(size)) if size.size else 0.0
    if not top > factor * median:
        return Range({"zero": False, "nice": True}, {}, False)
    constant = max(median, top / 1e6)
    ticks = decades(constant, top)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    shown = [-t for t in reversed(ticks) if -t >= 10 * low and low < 0] + [0.0] + [t for t in ticks if t <= 10 * high]
    domain = [min(low * 1.3, -constant) if low < 0 else 0.0, max(high * 1.3, constant) if high > 0 else 0.0]
    shown = [tick for tick in shown if domain[0] <= tick <= domain[1]]
    scale = {"type": "symlog", "constant": round_to(constant), "domain": [round_to(d) for d in domain], "nice": False}
    return Range(scale, {"values": shown, "labelExpr": PLAIN_NUMBER}, True)


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks of a log scale from about `low` to about `high`: powers of ten; within two decades 2 and 5 times them too."""
    low, high = max(low, 1e-300), min(high, 1e300)  # what is beyond has no power of ten, or infinity above it
    if high >= 100 * low:
        return decades(low / 3, high * 3)
    return round_numbers(low / 3, high * 3)


def round_numbers(low: float, high: float, times: Sequence[int] = (1, 2, 5)) -> list[float]:
    """`times` powers of ten from `low` to `high`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = (float(f"{one}e{power}") for power in powers for one in times)
    return [number for number in numbers if low <= number <= high]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from about `low` to about `high`, every second or third where there would be more than eight."""
    first, last = math.floor(math.log10(low)) + 1, math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first + 1) / 8))
    return [float(f"1e{power}") for power in range(last - (last - first) // step * step, last + 1, step)]


PNG_SCALE = 2.0
HEADING: Spec = {"color": INK, "anchor": "start", "fontSize": 15, "offset": 12}  # a title in a picture file


PictureKind = Literal["svg", "png", "vl.json"]


def can_export() -> bool:
    """Whether the library that draws picture files is installed."""
    return importlib.util.find_spec("vl_convert") is not None


def picture(chart: Chart, kind: PictureKind) -> bytes:
    """The chart as a file's bytes, in light colours; raises MissingExtra without vl-convert (not for "vl.json")."""
    return pictures(chart, (kind,))[kind]


def pictures(chart: Chart, kinds: Sequence[PictureKind]) -> dict[PictureKind, bytes]:
    """`picture` of each kind; as SVG and PNG the chart is drawn once."""
    made: dict[PictureKind, bytes] = {}
    if "vl.json" in kinds:
        made["vl.json"] = (json.dumps(chart.plain(), ensure_ascii=False, separators=(",", ":")) + "\n").encode()
    if "svg" in kinds or "png" in kinds:
        convert = need("vl_convert", "charts", "drawing charts as files")
        # No address is allowed: a specification holds its data, and nothing is fetched.
        svg = convert.vegalite_to_svg(chart.plain(), allowed_base_urls=[])
        if "svg" in kinds:
            made["svg"] = svg.encode()
        if "png" in kinds:
            made["png"] = smaller(convert.svg_to_png(svg, scale=PNG_SCALE))
    return made


# --- repairs of vectors ----------------------------------------------------------------------------------------------

KINDS = ("clip", "standardize", "abtt", "whiten", "centre")  # in the order of the colours
RAW = "raw"
RAW_SHAPE = "circle"
OTHER_SHAPES = (*(shape for shape in SHAPES if shape != RAW_SHAPE), "triangle-right")


def colours(fixes: Sequence[str]) -> list[str]:
    """A colour for each of `fixes`, which `drawn` has cut."""
    return [INK if place is None else DIM_COLOURS[place] for place in _places(fixes)]


def shapes(fixes: Sequence[str]) -> list[str]:
    """A shape for each of `fixes`."""
    return [RAW_SHAPE if place is None else OTHER_SHAPES[place] for place in _places(fixes)]


def _places(fixes: Sequence[str]) -> list[int | None]:
    """Place of each fix among the colours: its kind's own, or the first that no other takes; None is raw."""
    taken: dict[str, int] = {}
    for fix in fixes:
        kind = fix.partition(":")[0]
        if kind in KINDS and KINDS.index(kind) not in taken.values():
            taken[fix] = KINDS.index(kind)
    for fix in fixes:
        if fix != RAW and fix not in taken:
            taken[fix] = next(place for place in range(COLOURED) if place not in taken.values())
    return [taken.get(fix) for fix in fixes]
