"""Put recorded values back into a copy of a damaged model: a new file or folder, never in place.

    found = restore("damaged/", load_fingerprint("f.json"), Path("mended"))
    found.restored.n_values, found.matches, found.verdict      # of what was written

A value is written where its bits differ from the recorded ones, or, in a copy of another number format, where it moved
by more than rounding explains; then rounded to that format. Every other byte is the damaged copy's.
"""

import math
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.checkpoints import Checkpoint, samples
from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.integrity.fingerprint import check, load_fingerprint, offset_of, opened, values_of
from outlierlens.experiments.integrity.options import VerifyOptions
from outlierlens.experiments.integrity.result import Fingerprint, Recorded, Restored, Verification
from outlierlens.experiments.integrity.rounding import WORDS, Difference, round_to
from outlierlens.experiments.integrity.sensitive import Sensitive
from outlierlens.experiments.integrity.verify import Verifier, verify, verify_checkpoint
from outlierlens.results.safe_files import new_folder, replacing
from outlierlens.session import Session

_BITS = {"bfloat16": "<u2", "float16": "<u2", "float32": "<u4", "float64": "<u8"}


def restore(
    model: str,
    baseline: Fingerprint,
    target: Path,
    options: ScanOptions | None = None,
    *,
    deep: bool = False,
    command: str = "",
) -> Verification:
    """Write `model` with the values of `baseline` to `target`, and hold that against `baseline`.

    `model` is a sample, a folder or a file of safetensors; `target` becomes a folder, or a file for a file. A deep
    fingerprint is restored and verified deep.

    Raises:
        BadInput: `target` exists or has no room, the model is no local safetensors, or nothing can be put back.
        BadFile: the model or the fingerprint is damaged in its structure.
    """
    options = options or ScanOptions()
    check(baseline, "the fingerprint")
    check_target(target)
    deep = deep or baseline.deep
    with opened(model, options) as checkpoint:
        _refuse(checkpoint, model)
        source = _source(model, options.subfolder)
        finder = _Finder(checkpoint, baseline, options, deep)
        before = finder.run(command, "its fingerprint")
        config = checkpoint.config
    if not finder.patches:
        if before.matches:
            raise BadInput(f"{model} matches its fingerprint, so there is nothing to restore; use it as it is")
        raise BadInput(
            f"{model} {before.verdict}, and nothing of that is recorded value by value; fetch the model again"
        )
    _check_room(target, checkpoint.total_bytes)
    _write(source, target, finder.patches)
    with opened(str(target), replace(options, subfolder="")) as checkpoint:
        checkpoint.config = config  # a file may lie where no config does
        found = verify_checkpoint(checkpoint, baseline, options, deep=deep, command=command)
        n_all = sum(info.size for info in checkpoint.tensors.values())
    written: dict[str, list[np.ndarray]] = {}
    for one in finder.patches:
        written.setdefault(one.stored, []).append(one.at)
    restored = Restored(
        source=model,
        n_values=sum(np.unique(np.concatenate(places)).size for places in written.values()),
        n_tensors=len(written),
        n_rounded=finder.n_rounded,
        n_unrecorded=n_all - sum(map(_distinct, finder.held.values())),
        tensors=tuple(dict.fromkeys(one.name for one in finder.patches)),
    )
    return replace(found, restored=restored)


def run(session: Session, options: VerifyOptions) -> Verification:
    """The verification, as `verify` runs it: of the model, or of the copy that `--restore` writes."""
    model, scanning = session.subject.model, session.scanning()
    if options.restore is None:
        return verify(model, load_fingerprint(options.baseline), scanning, deep=options.deep)
    check_target(options.restore)
    return restore(model, load_fingerprint(options.baseline), options.restore, scanning, deep=options.deep)


def check_target(target: Path) -> None:
    """Raise BadInput where something has the name already: nothing is written in place."""
    if target.exists() or target.is_symlink():
        raise BadInput(f"{target} exists, and a restored copy is always a new one; name another file or folder")


class _Patch:
    """Values of one stored tensor: `at` is where they stand in it, counted flat, `bits` what is written there."""

    def __init__(self, name: str, entry: Sensitive, place: tuple[Path, int], at: np.ndarray, bits: np.ndarray):
        self.name, self.stored = name, entry.stored
        self.path, self.start = place
        self.at, self.bits = at, bits

    def write(self, path: Path) -> None:
        """Put the values into the copy at `path`."""
        size = (path.stat().st_size - self.start) // self.bits.itemsize
        if size <= int(self.at.max()):
            raise BadFile(f"{self.path} became shorter while it was copied; run it again when nothing writes to it")
        values = np.memmap(path, dtype=self.bits.dtype, mode="r+", offset=self.start, shape=(size,))
        values[self.at] = self.bits
        values.flush()


class _Finder(Verifier):
    """A verification that keeps what has to be written."""

    def __init__(self, checkpoint: Any, baseline: Fingerprint, options: ScanOptions, deep: bool):
        super().__init__(checkpoint, baseline, options, deep)
        self.file_of: Callable[[str], tuple[Path, int]] = checkpoint.place
        self.patches: list[_Patch] = []
        self.n_rounded = 0
        self.held: dict[str, list[Sensitive]] = {}

    def entry(self, recorded: Recorded, entry: Sensitive, values: np.ndarray) -> Difference:
        found = super().entry(recorded, entry, values)
        dtype = self.checkpoint.tensors[entry.stored].dtype
        self.held.setdefault(entry.stored, []).append(entry)
        if dtype not in WORDS or found.kind == "not comparable":
            return found
        before = values_of(recorded)
        bits, here = _bits(before, WORDS[dtype]), _bits(values, WORDS[dtype])
        as_stored = dtype == recorded.dtype and recorded.offset == offset_of(entry, self.checkpoint, self.bound)
        wrong = bits != here if as_stored else found.moved & (bits != here)
        if wrong.any():
            rounded = wrong & (round_to(before, WORDS[dtype]) != before) & ~np.isnan(before)
            self.n_rounded += int(rounded.sum())
            patch = _Patch(recorded.name, entry, self.file_of(entry.stored), _flat(entry)[wrong], bits[wrong])
            self.patches.append(patch)
        return found


def _bits(values: np.ndarray, name: str) -> np.ndarray:
    """The stored bits of values [row, column] in a format, as unsigned integers."""
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "bfloat16":
            return np.asarray((round_to(values, name).astype("<f4").view("<u4") >> 16).astype("<u2"))
        return np.ascontiguousarray(values.astype({"float16": "<f2", "float32": "<f4"}.get(name, "<f8"))).view(
            _BITS[name]
        )


def _flat(entry: Sensitive) -> np.ndarray:
    """Where the values [row, column] of an entry stand in its tensor, counted flat."""
    n_rows, n_columns = entry.size
    rows = np.arange(n_rows) if entry.rows is None else np.array(entry.rows)
    columns = np.arange(n_columns) if entry.columns is None else np.array(entry.columns)
    return np.asarray(rows.astype(np.int64)[:, None] * entry.shape[-1] + columns)


def _distinct(entries: list[Sensitive]) -> int:
    """How many values of one tensor its entries hold; rows and columns of a table cross."""
    if len(entries) == 1:
        return math.prod(entries[0].size)
    return int(np.unique(np.concatenate([_flat(entry).ravel() for entry in entries])).size)


def _refuse(checkpoint: Checkpoint, model: str) -> None:
    if checkpoint.kind == "safetensors":
        return
    if checkpoint.kind == "hub":
        raise BadInput(
            f"{model} lies on a hub, and a copy is made of local files; fetch it (hf download {model} --local-dir copy) "
            "and restore copy"
        )
    raise BadInput(
        f"{model}: {checkpoint.kind} is read, not written; restore the safetensors that it was made of, and convert those "
        "again"
    )


def _source(model: str, subfolder: str) -> Path:
    """The file of a model, or the folder of one that has several."""
    path = Path(model)
    if path.is_file():
        return path if path.suffix == ".safetensors" else path.parent
    return samples.directory(model) if samples.is_sample(model) else path / subfolder


def _check_room(target: Path, needed: int) -> None:
    place = next(one for one in target.absolute().parents if one.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise BadInput(
            f"{target}: the copy takes {needed / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free there; name a place on "
            "another disk"
        )


def _write(source: Path, target: Path, patches: list[_Patch]) -> None:
    """A copy of the file or folder `source` with the patches in it; it has its name when it is whole."""
    if source.is_file():
        with replacing(target) as file:
            with source.open("rb") as whole:
                shutil.copyfileobj(whole, file)
            file.flush()
            for patch in patches:
                patch.write(Path(file.name))
            check_target(target)
        return
    if target.absolute().resolve().is_relative_to(source.absolute().resolve()):
        raise BadInput(f"{target} lies in {source} itself; name a folder beside it")
    with new_folder(target) as part, _told(source):
        shutil.copytree(source, part, dirs_exist_ok=True)
        for patch in patches:
            (part / patch.path.name).chmod(0o644)  # a cache may be read-only
            patch.write(part / patch.path.name)
        check_target(target)


@contextmanager
def _told(source: Path) -> Any:
    """Errors of copying a folder as one line."""
    try:
        yield
    except shutil.Error as error:
        (first, _, why), *others = error.args[0]
        more = f" and {len(others)} more" if others else ""
        raise BadFile(f"{first}{more} cannot be copied ({why}); remove it from {source}, or make it readable") from None
