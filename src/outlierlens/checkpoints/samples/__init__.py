"""Real models that can be had in minutes, without an account: fetched once, verified, kept in the user's cache.

    directory("mini-bert")                    # comes with the package: nothing to fetch
    fetch("smollm2-135m", progress=print)     # once
    directory("smollm2-135m")                 # the files as they were had: what `scan` reads

The cache is `$OUTLIERLENS_CACHE`, or `outlierlens` in the platform's cache folder.
"""

from pathlib import Path

from outlierlens.checkpoints.samples.cache import (
    SAMPLES,
    Sample,
    Wheel,
    folder_of,
    is_complete,
    is_sample,
    network_is_off,
    packaged,
    recorded_norms,
    sample_named,
    say,
    texts_for,
)
from outlierlens.checkpoints.samples.download import fetch
from outlierlens.errors import Offline
from outlierlens.results.safe_files import cache_root

__all__ = [
    "SAMPLES",
    "Sample",
    "Wheel",
    "directory",
    "fetch",
    "is_complete",
    "is_sample",
    "recorded_norms",
    "sample_named",
    "texts_for",
]


def directory(name: str, *, offline: bool = False) -> Path:
    """The folder with the files of sample `name`, as they were had: in the package, or in the cache.

    One that is not there is fetched; lines on stderr say first how much comes from where. `offline` forbids it, and so does
    HF_HUB_OFFLINE.

    Raises:
        UnknownModel: there is no such sample.
        Offline: it would have to be fetched, and may not be; the message has the command that fetches it.
        BadInput, MissingExtra, RemoteError, BadFile: it cannot be fetched, see `fetch`.
    """
    sample = sample_named(name)
    if sample.packaged:
        return packaged(sample)
    if is_complete(sample):
        return folder_of(sample)
    if offline or network_is_off():
        raise Offline(
            f"sample {name!r} is not in the cache {cache_root()}, and the network is not to be used "
            f"({'--model-args offline' if offline else 'HF_HUB_OFFLINE'}); with a network, run: outlierlens fetch {name} "
            f"(ready without: {', '.join(one.name for one in SAMPLES.values() if one.packaged)})"
        )
    return fetch(name, say)
