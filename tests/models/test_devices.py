"""Memory that forward passes free stays with the process."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest

from outlierlens.models import devices
from outlierlens.models.devices import memory_kept

FAULTS = """
import resource
import numpy as np
from outlierlens.models.devices import memory_kept

def faults():
    np.ones(48 * 2**20, dtype=np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        np.ones(48 * 2**20, dtype=np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with memory_kept():
    inside = faults()
print(inside, faults())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the allocator is not glibc"
)
def test_memory_that_a_pass_frees_is_not_asked_of_the_kernel_again() -> None:
    """In a process of its own: what was freed before would serve."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    inside, outside = map(int, done.stdout.split())
    assert inside < 1000
    assert inside < outside, "glibc gives 48 MB back each time"


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.sys, "platform", "darwin")
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda _: pytest.fail("no library is asked"))
    with memory_kept():
        assert np.ones(3).sum() == 3
