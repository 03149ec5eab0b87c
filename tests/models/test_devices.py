"""Memory that forward passes free stays with the process."""

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from outlierlens.models import devices
from outlierlens.models.devices import memory_kept
from outlierlens.models.inputs import TextReading
from outlierlens.models.load import load_model
from outlierlens.vectors.read import ReadOptions, token_batches, tokenise

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

first, second = memory_kept(), memory_kept()
first.__enter__()
second.__enter__()
both = faults()
first.__exit__(None, None, None)
one = faults()
second.__exit__(None, None, None)
print(both, one, faults())
"""

GLIBC = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the allocator is not glibc"
)


@GLIBC
def test_memory_that_a_pass_frees_is_not_asked_of_the_kernel_again() -> None:
    """In a process of its own: what was freed before would serve."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    both, one, outside = map(int, done.stdout.split())
    assert both < 1000
    assert one < 1000, "the block that was entered second is not left yet"
    assert max(both, one) < outside, "glibc gives 48 MB back each time"


@GLIBC
def test_it_stays_while_somebody_goes_through_batches(model_folder: Any) -> None:
    loaded, texts = load_model(model_folder("bert")), ["w1 w2", "w3"]
    before = len(devices._keeping)
    seen = [len(devices._keeping) for _ in TextReading(loaded, 8).batches(texts, batch_size=1)]
    seen += [len(devices._keeping) for _ in token_batches(loaded, tokenise(loaded, texts), ReadOptions(batch_size=1))]
    assert seen == [before + 1] * 4
    batches = TextReading(loaded, 8).batches(texts, batch_size=1)
    next(batches)
    assert len(devices._keeping) == before + 1
    batches.close()
    assert len(devices._keeping) == before


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.sys, "platform", "darwin")
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda _: pytest.fail("no library is asked"))
    with memory_kept():
        assert np.ones(3).sum() == 3
