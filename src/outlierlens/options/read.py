"""What people write for an option, made into its value: `parse_layers("0-3,7")` is `(0, 1, 2, 3, 7)`."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from outlierlens.errors import BadInput

Find = Literal["find"]
FIND: Find = "find"  # as dimensions: those that the model's weights name
_NEXT_LAYER = re.compile(r"(:[^;:]*?),(?=\s*\d+\s*:)")  # a comma behind one layer's dimensions, before the next layer


def parse_dims(text: str) -> tuple[int, ...] | dict[int, tuple[int, ...]]:
    """ "308,381" -> dims in every layer; "0-9:896;10-16:678,896" -> {layer: dims}, layers counted from 0, ends included.

    A comma may take the semicolon's place: "11:1229,12:40", as neurons are named.

    Raises:
        BadInput: with the part that cannot be read.
    """
    if ":" not in text:
        return tuple(_numbers(text, text))
    plan: dict[int, tuple[int, ...]] = {}
    for part in _NEXT_LAYER.sub(r"\1;", text).split(";"):
        layers, _, dims = part.partition(":")
        for layer in parse_layers(layers):
            plan[layer] = tuple(dict.fromkeys((*plan.get(layer, ()), *_numbers(dims, text))))
    return plan


def plain_dims(text: str, option: str = "--dims", remedy: str = "") -> tuple[int, ...]:
    """ "308,381" -> (308, 381); raises BadInput where layers are named, with the `remedy`, or where it cannot be read."""
    dims = parse_dims(text)
    if isinstance(dims, dict):
        raise BadInput(f"{option} {text!r} names layers; {remedy or 'write dimensions alone, such as 308,381'}")
    return dims


def chosen_dims(text: str) -> tuple[int, ...] | Find:
    """ "308,381" -> (308, 381); "find" as it is, for those that the model's weights name."""
    return FIND if text == FIND else plain_dims(text)


def planned_dims(text: str) -> tuple[int, ...] | dict[int, tuple[int, ...]] | Find:
    """What `parse_dims` reads; "find" as it is."""
    return FIND if text == FIND else parse_dims(text)


def dims_or_strongest(text: str) -> tuple[int, ...] | str:
    """ "308,381" -> (308, 381); "strongest" as it is; "" -> ()."""
    if text in ("", "strongest"):
        return text or ()
    return plain_dims(text, remedy="name dimensions, such as 308,381, or strongest")


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "42,43" -> (42, 43); raises BadInput for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise BadInput(f"cannot read seeds {text!r}; write 42,43")
    return tuple(map(int, parts))


def parse_steps(text: str) -> tuple[int, ...]:
    """ "0,500,10_000" -> (0, 500, 10000); raises BadInput for anything else."""
    parts = [part.strip().replace("_", "") for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 13 for part in parts):
        raise BadInput(f"cannot read steps {text!r}; write them as 0,500,1000")
    return tuple(map(int, parts))


def parse_sets(text: str) -> tuple[tuple[int, ...], ...]:
    """ "100,247;507,100" -> ((100, 247), (507, 100)).

    Raises:
        BadInput: with the part that cannot be read.
    """
    if ":" in text:
        raise BadInput(f"cannot read sets {text!r}; write 100,247;507,100, and name layers with --layers or --windows")
    return tuple(tuple(_numbers(part, text)) for part in text.split(";"))


def parse_layers(text: str) -> tuple[int, ...]:
    """ "0-3,7" -> (0, 1, 2, 3, 7)."""
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first + last) > 10:
            raise BadInput(f"cannot read layers {text!r}; write them as 0-3,7")
        stop = int(last or first)
        if stop - int(first) > 10_000:
            raise BadInput(f"{text!r} names more than 10,000 layers")
        layers += range(int(first), stop + 1)
    return tuple(layers)


def layers_or_word(text: str) -> tuple[int, ...] | str:
    """ "0-3,7" -> (0, 1, 2, 3, 7); "last" and "all" as they are."""
    return text if text in ("last", "all") else parse_layers(text)


def parse_names(text: str) -> tuple[str, ...]:
    """ "negative, positive" -> ("negative", "positive"); empty ones are left out."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(text: str, whole: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise BadInput(f"cannot read dimensions {whole!r}; write 308,381 or, layer by layer, 0-9:896;10-16:678")
    return [int(part) for part in parts]


def parse_bytes(text: str) -> int:
    """ "500MB" -> 500,000,000; kB, MB, GB or plain bytes."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
    number = text.strip().rstrip("kKmMgGbB")
    unit = text.strip()[len(number) :].lower()
    try:
        if not 0 <= (size := float(number) * units[unit]) < 2**63:
            raise ValueError
        return int(size)
    except (ValueError, KeyError, OverflowError):
        raise BadInput(f"cannot read the size {text!r}; write it as 500MB or 2GB") from None


def number_or_none(text: str) -> float | None:
    """A number, or None for "none"."""
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"cannot read {text!r}; write a number, or none") from None


def given_dims(dims: Any) -> Any:
    """Dimensions as people give them, as numbers: 507, [308, 381], an array, "308,381", {layer: dimensions}; words stay.

    Raises:
        BadInput: anything else, such as fractions.
    """
    if isinstance(dims, str):
        return parse_dims(dims) if any(map(str.isdecimal, dims)) else dims
    if dims is None:
        return dims
    if isinstance(dims, Mapping):
        return {layer: given_dims(some) for layer, some in dims.items()}
    if hasattr(dims, "tolist"):  # an array or a number of numpy, a tensor
        dims = dims.tolist()
    if isinstance(dims, set | frozenset | range):
        dims = sorted(dims)
    several = tuple(dims) if isinstance(dims, list | tuple) else (dims,)
    several = tuple(one.item() if hasattr(one, "item") else one for one in several)
    if any(one is None or isinstance(one, bool | float | list | tuple) for one in several):
        raise BadInput(f'dims is {dims!r:.60}; give whole numbers such as 507 or [308, 381], or "find"')
    return several
