"""Memory that forward passes free stays with the process."""

import ctypes
import sys
from collections.abc import Callable

import numpy as np
import pytest

from outlierlens.models import devices
from outlierlens.models.devices import memory_kept


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the allocator is not glibc"
)
def test_memory_that_a_pass_frees_is_not_asked_of_the_kernel_again() -> None:
    import resource

    def faults(work: Callable[[], None]) -> int:
        work()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            work()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def layer() -> None:
        np.ones(48 * 2**20, dtype=np.uint8)  # 12,288 pages

    with memory_kept():
        inside = faults(layer)
    assert inside < 1000
    assert inside < faults(layer), "glibc gives 48 MB back each time"


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.sys, "platform", "darwin")
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda _: pytest.fail("no library is asked"))
    with memory_kept():
        assert np.ones(3).sum() == 3
