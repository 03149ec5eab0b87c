"""Gold files: written so that a change reads well in a diff, and compared by meaning.

write(path, value)                        # JSON, a short list or object on one line
differences(read(path), value)            # [] or one line for each place that differs

`brief` makes a result short: floats with six significant digits, and a long list as its first and last entries with a few
sums that notice any change of the rest.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = 120
LONG, ENDS = 12, 2  # a list of more entries than LONG is told by ENDS at each end and its sums
CLOSE = 1e-4  # relative
SMALL = 1e-6  # absolute: what is left of a float32 difference that is zero
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


def brief(value: Any) -> Any:
    """`value` as JSON that is short: rounded floats, long lists told by their ends and sums."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if hasattr(value, "item"):  # NumPy's
        return brief(value.item())
    if isinstance(value, dict):
        return {str(key): brief(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) <= LONG:
            return [brief(item) for item in value]
        ends = [brief(item) for item in value[:ENDS]], [brief(item) for item in value[-ENDS:]]
        return {"entries": len(value), "first": ends[0], "last": ends[1], "rest": dict(sorted(_sums(value).items()))}
    return value


def _sums(entries: Any) -> dict[str, Any]:
    """{path of a leaf within an entry: its numbers' mean, mean in a known order, least and most, or its words by count}."""
    leaves: dict[str, list[Any]] = {}
    for entry in entries:
        for path, leaf in _leaves(entry, ""):
            leaves.setdefault(path or "·", []).append(leaf)
    return {path: _sum(found) for path, found in leaves.items()}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path, value


def _sum(found: list[Any]) -> dict[str, Any]:
    numbers = [float(one) for one in found if isinstance(one, int | float) and not isinstance(one, bool)]
    finite = [one for one in numbers if math.isfinite(one)]
    said: dict[str, Any] = {"n": len(found)}
    if finite:
        # Weights that repeat after no small number of entries: two values that change places change this mean.
        ordered = [one * (1 + (place * 0.6180339887498949) % 1) for place, one in enumerate(finite)]
        said |= {"least": min(finite), "most": max(finite), "mean": math.fsum(finite) / len(finite)}
        said["in_order"] = math.fsum(ordered) / len(finite)
    if others := [one if isinstance(one, str) else repr(one) for one in found if not _is_finite(one)]:
        words = sorted(set(others))
        said |= {"words": len(words), "letters": sum(map(len, others)), "some": words[:ENDS]}
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


def _differences(kept: Any, now: Any, where: str, close: float) -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(now, dict):
        yield from _of_objects(kept, now, where, close)
    elif isinstance(kept, list) and isinstance(now, list):
        yield from _of_lists(kept, now, where, close)
    elif not same(kept, now, close):
        yield f"{where}: was {_short(kept)}, is {_short(now)}"


def _of_objects(kept: dict[str, Any], now: dict[str, Any], where: str, close: float) -> Iterator[str]:
    for key in sorted(kept.keys() - now.keys()):
        yield f"{where}.{key}: lost, was {_short(kept[key])}"
    for key in sorted(now.keys() - kept.keys()):
        yield f"{where}.{key}: new, {_short(now[key])}"
    # Of many numbers the mean is as sure as the largest of them is.
    size = max((abs(kept[end]) for end in ("least", "most") if _is_finite(kept.get(end))), default=0.0)
    for key, one in kept.items():
        if key in ("mean", "in_order", "least", "most") and size and _is_finite(now.get(key)):
            if abs(one - now[key]) > SMALL + close * size:
                yield f"{where}.{key}: was {one}, is {now[key]}"
        elif key in now:
            yield from _differences(one, now[key], f"{where}.{key}", close)


def _of_lists(kept: list[Any], now: list[Any], where: str, close: float) -> Iterator[str]:
    if len(kept) != len(now):
        yield f"{where}: {len(kept)} entries were, {len(now)} are"
    # Within one list small numbers stand beside large ones of the same kind, and are as sure as those.
    size = max((abs(one) for one in kept if _is_finite(one)), default=0.0)
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
