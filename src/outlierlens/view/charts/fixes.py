"""One look for each repair of vectors, the same in every chart: raw in ink, the others by their kind.

drawn(fixes)                 # those that can be told apart in one picture
colours(fixes), shapes(fixes)
"""

from collections.abc import Sequence

from outlierlens.view.charts.palette import COLOURED, DIM_COLOURS, INK, SHAPES

KINDS = ("clip", "standardize", "abtt", "whiten", "centre")  # in the order of the colours
RAW = "raw"
RAW_SHAPE = "circle"
OTHER_SHAPES = (*(shape for shape in SHAPES if shape != RAW_SHAPE), "triangle-right")


def drawn(fixes: Sequence[str]) -> tuple[str, ...]:
    """The first of `fixes` that a picture has looks for: six, and raw beside them where it is among those."""
    return tuple(fixes[: COLOURED + (RAW in fixes[: COLOURED + 1])])


def left_out(fixes: Sequence[str]) -> str:
    """A sentence that says so where some are not drawn, else ""."""
    n = len(drawn(fixes))
    return f" Drawn are the first {n} fixes of {len(fixes)}." if n < len(fixes) else ""


def scale(fixes: Sequence[str], looks: Sequence[str]) -> dict[str, list[str]]:
    """A scale that gives each of `fixes` its look."""
    return {"domain": list(fixes), "range": list(looks)}


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
