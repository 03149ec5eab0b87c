"""Layers in words: `number_of_layers(1)` is "1 layer", `runs((0, 1, 2, 5))` is "0–2, 5"."""

from collections.abc import Mapping, Sequence


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
