"""Gold files: written so that a change reads well in a diff, and compared by meaning.

write(path, value)                        # JSON, a short list or object on one line
differences(read(path), value)            # [] or one line for each place that differs

`brief` makes a result short by four rules:

floats                six significant digits
a list of objects     by column, where all have the same fields and these are values: {"[].low": [0, 1], "[].high": [0.5, 2]}
more than 12 values   their number (or shape), ends, least and most, mean and mean in order: any change of one moves these
other long lists      their first and last entry, and the same of every leaf below
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = 120
LONG = 12  # a list of more entries is told by its ends and sums
CLOSE = 1e-4  # relative
SMALL = 1e-6  # absolute: what is left of a float32 difference that is zero
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


def brief(value: Any, *, long: int = LONG) -> Any:
    """`value` as JSON that is short; a list of more than `long` values is told by its ends and sums."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if hasattr(value, "item"):  # NumPy's
        return brief(value.item())
    if isinstance(value, dict):
        return {str(key): brief(item, long=long) for key, item in value.items()}
    return _list(list(value), long) if isinstance(value, list | tuple) else value


def _list(entries: list[Any], long: int) -> Any:
    if fields := _columns(entries):
        return {f"[].{key}": _list([one[key] for one in entries], long) for key in fields}
    shape = _shape(entries)
    if shape is not None and math.prod(shape) > long:
        return {"n": shape[0] if len(shape) == 1 else list(shape)} | _sums([leaf for _, leaf in _leaves(entries, "")])
    if len(entries) <= long:
        return [brief(one, long=long) for one in entries]
    leaves: dict[str, list[Any]] = {}
    for entry in entries:
        for path, leaf in _leaves(entry, ""):
            leaves.setdefault(path or "·", []).append(leaf)
    sums = {path: {"n": len(found)} | _sums(found) for path, found in sorted(leaves.items())}
    return {
        "n": len(entries),
        "first": brief(entries[0], long=long),
        "last": brief(entries[-1], long=long),
        "leaves": sums,
    }


def _columns(entries: list[Any]) -> list[str]:
    """The fields that all entries have, where these are objects of one form; [] where they are not."""
    if len(entries) < 2 or not all(isinstance(one, dict) and one.keys() == entries[0].keys() for one in entries):
        return []
    return (
        [] if any(isinstance(item, dict | list | tuple) for one in entries for item in one.values()) else [*entries[0]]
    )


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of lists within lists that end in values, all of one length; None of others."""
    if not isinstance(value, list | tuple):
        return None if isinstance(value, dict) else ()
    inner = {_shape(one) for one in value}
    below = inner.pop() if len(inner) == 1 else None
    return None if below is None else (len(value), *below)


def once(value: Any, seen: dict[str, str] | None = None, path: str = "") -> Any:
    """`value` with an object that stands in it again told as "as …", by where it stands first."""
    seen = {} if seen is None else seen
    if isinstance(value, list):
        return [once(one, seen, f"{path}[{place}]") for place, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if len(written := json.dumps(value, sort_keys=True)) > WIDTH // 2:
        if written in seen:
            return f"as {seen[written]}"
        seen[written] = path
    return {key: once(one, seen, f"{path}.{key}".removeprefix(".")) for key, one in value.items()}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path, value.item() if hasattr(value, "item") else value


def _sums(found: list[Any]) -> dict[str, Any]:
    """What notices any change of one of many values: numbers, words, or both."""
    numbers = [float(one) for one in found if _is_finite(one)]
    said: dict[str, Any] = {"ends": [found[0], found[-1]]}
    if numbers:
        # Weights that repeat after no small number of entries: two values that change places change the second mean.
        ordered = [one * (1 + (place * 0.6180339887498949) % 1) for place, one in enumerate(numbers)]
        said |= {"within": [min(numbers), max(numbers)]}
        said |= {"means": [math.fsum(numbers) / len(numbers), math.fsum(ordered) / len(numbers)]}
    if others := [one if isinstance(one, str) else repr(one) for one in found if not _is_finite(one)]:
        said |= {"words": len(set(others)), "letters": sum(map(len, others))}
    return {key: brief(one) for key, one in said.items()}


def _is_finite(one: Any) -> bool:
    return isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)


def text_of(value: Any) -> str:
    """JSON in which what fits one line stands on one."""
    return _laid(value, 0) + "\n"


def _laid(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(flat) + 2 * depth <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    inner, outer = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_laid(one, depth + 1)}" for key, one in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{outer}}}"
    if all(isinstance(one, int | float | None) for one in value):
        return "[\n" + "\n".join(_rows(json.dumps(one) for one in value)).replace("\n", f"\n{inner}") + f"\n{outer}]"
    return "[\n" + ",\n".join(f"{inner}{_laid(one, depth + 1)}" for one in value) + f"\n{outer}]"


def _rows(words: Iterator[str]) -> Iterator[str]:
    every = list(words)
    for start in range(0, len(every), 12):
        yield ("" if start else "  ") + ", ".join(every[start : start + 12]) + ("," if start + 12 < len(every) else "")


def write(path: Path, value: Any) -> None:
    """Write a gold file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(value), "utf-8")


def read(path: Path) -> Any:
    """What a gold file holds."""
    return json.loads(path.read_text("utf-8"))


def differences(kept: Any, now: Any, where: str = "", *, close: float = CLOSE) -> list[str]:
    """Each place at which two documents differ in meaning; numbers, in sentences too, may move by `close`, relative."""
    return list(_differences(kept, now, where, close))


def _differences(kept: Any, now: Any, where: str, close: float, size: float = 0.0) -> Iterator[str]:
    """`size`: a number that is as large as those which these stand beside."""
    if isinstance(kept, dict) and isinstance(now, dict):
        yield from _of_objects(kept, now, where, close)
    elif isinstance(kept, list) and isinstance(now, list):
        yield from _of_lists(kept, now, where, close, size)
    elif not same(kept, now, close):
        yield f"{where}: was {_short(kept)}, is {_short(now)}"


def _of_objects(kept: dict[str, Any], now: dict[str, Any], where: str, close: float) -> Iterator[str]:
    for key in sorted(kept.keys() - now.keys()):
        yield f"{where}.{key}: lost, was {_short(kept[key])}"
    for key in sorted(now.keys() - kept.keys()):
        yield f"{where}.{key}: new, {_short(now[key])}"
    # Of many numbers the mean is as sure as the largest of them is.
    size = max((abs(end) for end in kept.get("within", ()) if _is_finite(end)), default=0.0)
    for key, one in kept.items():
        if key in now:
            within = size if key in ("ends", "within", "means") else 0.0
            yield from _differences(one, now[key], f"{where}.{key}", close, within)


def _of_lists(kept: list[Any], now: list[Any], where: str, close: float, size: float) -> Iterator[str]:
    if len(kept) != len(now):
        yield f"{where}: {len(kept)} entries were, {len(now)} are"
    # Within one list small numbers stand beside large ones of the same kind, and are as sure as those.
    size = max([size, *(abs(one) for one in kept if _is_finite(one))])
    for place, (one, other) in enumerate(zip(kept, now, strict=False)):
        if not (isinstance(one, float) and isinstance(other, float) and abs(one - other) <= close * size):
            yield from _differences(one, other, f"{where}[{place}]", close)


def same(kept: Any, now: Any, close: float) -> bool:
    """Whether two texts, numbers, truths or nothings mean the same."""
    if isinstance(kept, str) and isinstance(now, str):
        return alike(kept, now, close)
    if isinstance(kept, bool) or isinstance(now, bool) or not (_is_finite(kept) and _is_finite(now)):
        return type(kept) is type(now) and kept == now
    return near(kept, now, close)


def near(kept: float, now: float, close: float) -> bool:
    """Whether two numbers agree: whole ones wholly."""
    if isinstance(kept, int) and isinstance(now, int):
        return kept == now
    return abs(kept - now) <= SMALL + close * max(abs(kept), abs(now))


def alike(kept: str, now: str, close: float) -> bool:
    """Whether two texts have the same words, and numbers that are close or differ by one in the last digit written."""
    if kept == now:
        return True
    if NUMBER.sub("#", kept) != NUMBER.sub("#", now):
        return False
    return all(_written(*pair, close) for pair in zip(NUMBER.findall(kept), NUMBER.findall(now), strict=True))


def _written(kept: str, now: str, close: float) -> bool:
    one, other = (float(number.replace(",", "").replace("−", "-")) for number in (kept, now))
    mantissa, _, power = kept.partition("e")
    if "." not in mantissa and not power:
        return one == other
    digit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    return abs(one - other) <= max(close * max(abs(one), abs(other)), 1.001 * digit)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "…"
