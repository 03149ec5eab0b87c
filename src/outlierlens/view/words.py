"""Numbers, dimensions and layers in words: `number_of_layers(1)` is "1 layer", `listed((100, 247))` is "100 and 247"."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def number_of_layers(n: int) -> str:
    """ "1 layer", "12 layers"."""
    return f"{n:,} layer{'' if n == 1 else 's'}"


def runs(layers: Sequence[int]) -> str:
    """Ascending layers as "0–2, 5"."""
    found: list[list[int]] = []
    for layer in layers:
        if found and found[-1][-1] == layer - 1:
            found[-1].append(layer)
        else:
            found.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in found)


def by_dims(layers: Mapping[str, tuple[int, ...]]) -> dict[tuple[int, ...], list[str]]:
    """{dimensions: layers that have exactly them} of {layer: dimensions}."""
    found: dict[tuple[int, ...], list[str]] = {}
    for layer, dims in layers.items():
        found.setdefault(dims, []).append(layer)
    return found


def dims_in_layers(layers: Mapping[str, tuple[int, ...]]) -> str:
    """ "557 in 0, 1; 143, 557 in 2" of {layer: dimensions}."""
    return "; ".join(f"{', '.join(map(str, dims))} in {', '.join(at)}" for dims, at in by_dims(layers).items())


def number(value: float) -> str:
    """A number for reading: three significant digits, thousands apart; two decimals below 10."""
    if not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    size = abs(value)
    if size >= 1e6:
        return ("−" if value < 0 else "") + power_of_ten(math.log10(size))
    if size >= 99.95:
        return f"{float(f'{value:.3g}'):,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:z.2f}" if size >= 0.095 or size == 0 else f"{value:z.2g}"


def power_of_ten(exponent: float) -> str:
    """10 to that power for reading: "3.1·10⁹", "∞"."""
    if not math.isfinite(exponent):
        return "∞"
    power = math.floor(exponent)
    lead = 10 ** (exponent - power)
    if round(lead, 1) >= 10:
        lead, power = 1.0, power + 1
    return f"{lead:.1f}·10{str(power).translate(SUPERSCRIPT)}"


LISTED = 12
TASKS = {"causal loss": "perplexity", "masked loss": "the perplexity of masked tokens"}


def listed(dims: Sequence[int | str]) -> str:
    """Dimensions in a sentence: "100, 247 and 507"."""
    shown = [str(dim) for dim in dims[:LISTED]]
    if len(dims) > LISTED:
        return ", ".join(shown) + f" and {len(dims) - LISTED} more"
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def these(dims: Sequence[int | str], what: str = "dimension") -> str:
    """Dimensions, or what else they are, in a sentence, called so: "dimensions 100, 247 and 507"."""
    return f"{what}{'s' if len(dims) > 1 else ''} {listed(dims)}"


def factor(change: float) -> str:
    """exp(change) for reading, without the sign ×: "1.02", "992", "12,300", "3.1·10⁹"."""
    return power_of_ten(change / math.log(10)) if change > math.log(1e6) else number(math.exp(change))


def few(dims: Sequence[Any], most: int = 6) -> str:
    """Dimensions, or neurons, as text, cut after `most`."""
    ordered = sorted(map(str, dims), key=lambda dim: [int(part) for part in dim.split(":")])
    shown = ", ".join(ordered[:most])
    return shown + (f" and {len(dims) - most} more" if len(dims) > most else "")


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def duration(seconds: float) -> str:
    """Seconds for reading: "4.5 s", "45 s", "12 min", "3 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60:,} h {minutes % 60:02} min"
