"""Real models that can be had in minutes, without an account: fetched once, verified, kept in the user's cache.

    directory("mini-bert")                    # comes with the package: nothing to fetch
    fetch("smollm2-135m", progress=print)     # once
    directory("smollm2-135m")                 # the files as they were had: what `scan` reads

The cache is `$OUTLIERLENS_CACHE`, or `outlierlens` in the platform's cache folder.
"""

import importlib
from typing import TYPE_CHECKING, Any

from outlierlens.samples.cache import (
    cache_root,
    directory,
    is_complete,
    is_sample,
    recorded_norms,
    sample_named,
    texts_for,
)
from outlierlens.samples.table import SAMPLES, Member, Sample, Wheel

if TYPE_CHECKING:
    from outlierlens.samples.download import fetch

__all__ = [
    "SAMPLES",
    "Member",
    "Sample",
    "Wheel",
    "cache_root",
    "directory",
    "fetch",
    "is_complete",
    "is_sample",
    "recorded_norms",
    "sample_named",
    "texts_for",
]

# They bring what speaks to servers and reads archives; who scans a file needs neither.
_HOME = {"fetch": "download"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
