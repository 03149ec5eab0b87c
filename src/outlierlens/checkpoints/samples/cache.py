"""Where samples stand on disk, and how a folder gets there whole or not at all.

directory("mpnet-base")                       # the folder, fetched where it is not there
with folder_being_made("models", "tiny") as (folder, making): ...    # filled once, whatever number of processes ask
"""

import difflib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from outlierlens.checkpoints.samples.table import SAMPLES, Sample
from outlierlens.errors import BadInput, UnknownModel
from outlierlens.results.safe_files import alone, new_folder

PACKAGED = Path(__file__).parents[2] / "data_files"  # not importlib.resources: weights are mapped from a real file
WATCH = "watch.jsonl"
Progress = Callable[[str], None]


def silent(_message: str) -> None:
    """A `Progress` that says nothing."""


def say(message: str) -> None:
    """A `Progress` that writes one line to stderr."""
    print(message, file=sys.stderr, flush=True)


def network_is_off() -> bool:
    """Whether the environment forbids the network, in the hub library's words."""
    given = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in given)


def cache_root() -> Path:
    """The folder under which outlierlens keeps what it fetched or made; it may not exist yet."""
    chosen = os.environ.get("OUTLIERLENS_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "outlierlens"


def is_sample(name: str) -> bool:
    """Whether `name` means the sample: a folder of that name that holds no model (an output of ours, say) does not hide it."""
    return name in SAMPLES and not (Path(name) / "config.json").is_file()


def sample_named(name: str) -> Sample:
    """The table's entry for `name`, or UnknownModel with the nearest names."""
    if name in SAMPLES:
        return SAMPLES[name]
    near = difflib.get_close_matches(name, SAMPLES, n=2, cutoff=0.4)
    hint = f"; near: {', '.join(near)}" if near else ""
    raise UnknownModel(f"no sample is called {name!r}; samples are {', '.join(SAMPLES)}{hint}")


def folder_of(sample: Sample) -> Path:
    """Where the fetched files of `sample` stand once they are there; in the package for one that comes with it."""
    if sample.packaged:
        return PACKAGED / sample.name
    return cache_root() / "samples" / f"{sample.name}-{sample.digest}"


def is_complete(sample: Sample) -> bool:
    """Whether every file of `sample` is in the cache with its right size (contents are verified when fetched)."""
    folder = folder_of(sample)
    if sample.packaged:
        return (folder / "model.safetensors").is_file()
    return all((folder / name).is_file() for name in sample.written) and all(
        (folder / file.name).is_file() and (folder / file.name).stat().st_size == file.size for file in sample.files
    )


def texts_for(model: str) -> str:
    """The shipped text that resembles what `model` learned from: its own for a sample, "excerpt" for all else."""
    sample = _meant(model)
    return sample.texts if sample else "excerpt"


def recorded_norms(name: str) -> Path | None:
    """The watch rows of the training of sample `name`, which `track` reads; None for a sample without, and other names."""
    sample = _meant(name)
    path = folder_of(sample) / WATCH if sample is not None and sample.packaged else None
    return path if path is not None and path.is_file() else None


def _meant(name: str) -> Sample | None:
    """The sample of that name, unless a file or folder has it."""
    return None if Path(name).exists() else SAMPLES.get(name)


@contextmanager
def locked(sample: Sample) -> Iterator[None]:
    """Hold the only right to make folders for `sample`; another process waits. Freed when a process dies."""
    with _lock("samples", sample.name):
        yield


@contextmanager
def folder_being_made(
    kind: str, name: str, is_there: Callable[[Path], bool] = Path.is_dir
) -> Iterator[tuple[Path, Path | None]]:
    """(folder `name` among the cache's `kind`, a temporary folder to fill, or None where it is there already).

    What was filled takes its name when the block ends well, and vanishes if not; another process waits meanwhile.
    """
    with _lock(kind, name):
        target = cache_root() / kind / name
        if is_there(target):
            yield target, None
        else:
            with new_folder(target) as making:
                yield target, making


@contextmanager
def _lock(kind: str, name: str) -> Iterator[None]:
    folder = cache_root() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot make the cache folder {folder}: {error.strerror or error}; set OUTLIERLENS_CACHE to a writable one"
        ) from None
    with alone(folder / name, wait=True):
        yield


def check_space(needed: int, folder: Path, what: str) -> None:
    """Raise BadInput when the disk of `folder` has fewer than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BadInput(
            f"{what} needs {megabytes(needed)} on the disk of {folder}, which has {megabytes(free)} free; "
            "make room or set OUTLIERLENS_CACHE to another disk"
        )


def megabytes(n_bytes: int) -> str:
    """A size in the unit that download pages use, 1 MB = 10^6 bytes."""
    return f"{n_bytes / 1e6:,.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:,.1f} kB"


def packaged(sample: Sample) -> Path:
    """The folder of a sample that comes with the package; raises UnknownModel where files of it are missing."""
    if not is_complete(sample):
        raise UnknownModel(f"sample {sample.name!r} is missing from {PACKAGED}; install outlierlens again")
    return folder_of(sample)
