"""What the benchmarks share: calls that are timed in turn, and passes by PyTorch's own products.

rounds([Way("plain", plain), Way("ours", ours)], 5)
say("ours over plain:", ratios(ours, plain, busy=False))
"""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch


@dataclass
class Way:
    """A call, and its seconds round by round; `busy` are the processor's, which others' load does not lengthen."""

    name: str
    work: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


def rounds(ways: list[Way], n: int, *, turned: int | None = None) -> dict[str, Any]:
    """Time `n` rounds after one that is not timed, and return what each call returned last.

    The order alternates: of the first `turned` ways, or of all.
    """
    found = {}
    for number in range(n + 1):
        for way in ways if number % 2 == 0 else [*ways[:turned][::-1], *ways[len(ways[:turned]) :]]:
            start, busy = time.perf_counter(), time.process_time()
            found[way.name] = way.work()
            if number:
                way.seconds.append(time.perf_counter() - start)
                way.busy.append(time.process_time() - busy)
    return found


def ratios(one: Way, other: Way, *, busy: bool) -> list[float]:
    """`one` over `other`, round by round, sorted."""
    pairs = zip(one.busy, other.busy, strict=True) if busy else zip(one.seconds, other.seconds, strict=True)
    return sorted(a / b for a, b in pairs)


def say(what: str, found: list[float]) -> None:
    """Median and range."""
    print(f"  {what} {statistics.median(found):.2f} (from {found[0]:.2f} to {found[-1]:.2f} in {len(found)} rounds)")


def own_products() -> AbstractContextManager[object]:
    """Inside, `fast_products` is PyTorch's own."""
    return patch("outlierlens.models.devices._there", lambda: False)
