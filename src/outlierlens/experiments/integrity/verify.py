"""Hold a model against its fingerprint: which sensitive values moved, and whether they are the dangerous ones.

    found = verify("copy/", load_fingerprint("f.json"))
    found.matches, found.verdict

Only the recorded values are read. What the copies' number formats explain is "converted", not moved (`rounding`).
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.errors import BadInput
from outlierlens.experiments.integrity.fingerprint import (
    entry_of,
    fingerprint,
    hash_all,
    load_fingerprint,
    offset_of,
    opened,
    readable,
    relation,
    values_of,
    width_of,
)
from outlierlens.experiments.integrity.options import FingerprintOptions, VerifyOptions
from outlierlens.experiments.integrity.result import (
    DEEP_ROLES,
    FAILS,
    MAX_LISTED,
    Fate,
    Fingerprint,
    MovedValue,
    Recorded,
    TensorFate,
    TensorHash,
    Verification,
)
from outlierlens.experiments.integrity.rounding import WORDS, Side, differ
from outlierlens.experiments.integrity.sensitive import Found, Sensitive, bound_stacks, list_sensitive, read_entries
from outlierlens.results.document import Provenance
from outlierlens.session import Session

WHOLE = "whole tensor"


def verify(
    model: str,
    baseline: Fingerprint,
    options: ScanOptions | None = None,
    *,
    deep: bool = False,
    command: str = "",
    against: str = "its fingerprint",
) -> Verification:
    """Hold `model` (sample, directory, file or hub id) against `baseline`; `options` say how it is opened.

    Raises:
        BadInput: `deep` is asked of a fingerprint that was taken without.
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see those.
    """
    options = options or ScanOptions()
    with opened(model, options) as checkpoint:
        return verify_checkpoint(checkpoint, baseline, options, deep=deep, command=command, against=against)


def verify_checkpoint(
    checkpoint: Checkpoint,
    baseline: Fingerprint,
    options: ScanOptions | None = None,
    *,
    deep: bool = False,
    command: str = "",
    against: str = "its fingerprint",
) -> Verification:
    """`verify` of an open checkpoint, such as a `LiveCheckpoint` of a model in memory."""
    return _Verifier(checkpoint, baseline, options or ScanOptions(), deep).run(command, against)


def compare_values(
    before: str,
    after: str,
    options: FingerprintOptions,
    after_options: ScanOptions | None = None,
    *,
    command: str = "",
) -> Verification:
    """The same between two models: `after` held against the sensitive values of `before`."""
    found = fingerprint(before, options, command=command)
    later = after_options or options.scan
    return verify(after, found, later, deep=options.deep, command=command, against=before)


def run(session: Session, options: VerifyOptions) -> Verification:
    """The verification, as the command runs it."""
    return verify(session.subject.model, load_fingerprint(options.baseline), session.scanning(), deep=options.deep)


@dataclass
class _Tally:
    """What was found so far."""

    tensors: list[TensorFate] = field(default_factory=list)
    moved: list[tuple[float, MovedValue]] = field(default_factory=list)
    n_tensors: int = 0
    n_values: int = 0
    n_moved: int = 0
    n_dangerous: int = 0
    n_not_compared: int = 0

    def add(self, fate: TensorFate) -> None:
        self.n_tensors += 1
        self.n_moved += fate.n_moved
        self.n_dangerous += fate.n_dangerous
        if fate.fate == "not comparable":
            self.n_not_compared += fate.n_values
        else:
            self.n_values += fate.n_values
        if fate.fate != "same":
            self.tensors.append(fate)

    def keep(self, values: list[tuple[float, MovedValue]]) -> None:
        """Keep the most telling moved values: dangerous ones first, then by how far they moved among their own."""
        self.moved += values
        self.moved.sort(key=lambda item: (not item[1].dangerous, -item[0], item[1].name, item[1].index))
        del self.moved[MAX_LISTED:]


class _Verifier:
    """One model against one fingerprint."""

    def __init__(self, checkpoint: Checkpoint, baseline: Fingerprint, options: ScanOptions, deep: bool):
        if deep and not baseline.deep:
            raise BadInput("this fingerprint was taken without --deep; take it again with --deep, or verify without")
        self.checkpoint, self.baseline, self.deep = checkpoint, baseline, deep
        self.notes: list[str] = []
        if not options.row and not checkpoint.config.get("model_type") and baseline.model_type:
            checkpoint.config = {**checkpoint.config, "model_type": baseline.model_type}
            self.notes.append(f"no model_type beside the weights; taken for {baseline.model_type}, as recorded")
        self.bound = bound_stacks(checkpoint, options.row)
        self.tally = _Tally()
        self.digest = hashlib.sha256(checkpoint.header_digest().encode())

    def run(self, command: str, against: str) -> Verification:
        fit = self.streams()
        self.entries(fit)
        if self.deep and len(fit) == len(self.baseline.streams):
            self.hashes()
        tally, baseline = self.tally, self.baseline
        here = str(self.checkpoint.config.get("model_type", ""))
        if here != baseline.model_type:
            self.notes.append(f"model_type is {here!r}, recorded was {baseline.model_type!r}")
        if baseline.deep and not self.deep:
            self.notes.append("the fingerprint is deep; --deep also verifies embedding columns and whole tensors")
        matches = not any(fate.fails for fate in tally.tensors)
        return Verification(
            provenance=Provenance.now(self.checkpoint.name, self.digest.hexdigest(), command=command),
            baseline=baseline.provenance,
            matches=matches,
            verdict=verdict(tally.tensors, tally.n_values, against),
            deep=self.deep,
            streams=baseline.streams,
            tensors=tuple(sorted(tally.tensors, key=lambda one: (not one.fails, -one.n_dangerous, -one.n_moved))),
            moved=tuple(one for _, one in tally.moved),
            n_tensors=tally.n_tensors,
            n_values=tally.n_values,
            n_moved=tally.n_moved,
            n_dangerous=tally.n_dangerous,
            n_not_compared=tally.n_not_compared,
            bytes_read=self.checkpoint.bytes_read,
            total_bytes=self.checkpoint.total_bytes,
            notes=tuple(dict.fromkeys((*self.notes, *baseline.notes, *self.checkpoint.notes))),
        )

    def streams(self) -> set[str]:
        """Names of the recorded streams that the model has in the same width; the others are told."""
        here = {stack.name: stack for stack in self.bound}
        fit = set()
        for stream in self.baseline.streams:
            if stream.name not in here:
                note = f"recorded were {stream.n_layers} layers × {stream.hidden_size}; the model has {', '.join(here)}"
                self.tally.add(TensorFate(stream.name, "stream", stream.name, None, "missing", True, note=note))
                continue
            n_layers, width = here[stream.name].n_layers, width_of(self.checkpoint, here[stream.name])
            if (n_layers, width) != (stream.n_layers, stream.hidden_size):
                note = f"recorded were {stream.n_layers} layers × {stream.hidden_size}, here are {n_layers} × {width}"
                self.tally.add(TensorFate(stream.name, "stream", stream.name, None, "other shape", True, note=note))
            if width == stream.hidden_size:
                fit.add(stream.name)
        return fit

    def entries(self, fit: set[str]) -> None:
        """Every recorded entry of the streams that fit, then what the model has beyond them."""
        dims = {stream.name: Found(stream.dims, stream.how) for stream in self.baseline.streams if stream.name in fit}
        bound = [stack for stack in self.bound if stack.name in fit]
        listed = list_sensitive(self.checkpoint, bound, dims, deep=self.deep) if bound else []
        here = {(entry.name, entry.role): entry for entry in listed}
        pairs: list[tuple[Recorded, Sensitive]] = []
        for recorded in self.baseline.entries:
            if recorded.stack not in fit or (recorded.role in DEEP_ROLES and not self.deep):
                continue
            entry = here.pop((recorded.name, recorded.role), None)
            if self.comparable(recorded, entry) and entry is not None:
                pairs.append((recorded, entry))
        values = read_entries(self.checkpoint, [entry for _, entry in pairs])
        for (recorded, _), (entry, found) in zip(pairs, values, strict=True):
            self.entry(recorded, entry, found)
        for entry in here.values():
            if readable(self.checkpoint, entry):
                # A norm of a head that was not recorded changes nothing of what was.
                fails = entry.on_stream or entry.layer is not None
                note = "not among what was recorded"
                where = (entry.name, entry.role, entry.stack, entry.layer)
                self.tally.add(TensorFate(*where, "extra", fails, note=note))

    def comparable(self, recorded: Recorded, entry: Sensitive | None) -> bool:
        """Whether an entry is there, of the recorded size and readable; says so where it is not."""
        where = (recorded.name, recorded.role, recorded.stack, recorded.layer)
        if entry is None:
            self.tally.add(TensorFate(*where, "missing", True, note="the model has no such tensor"))
            return False
        info = self.checkpoint.tensors[entry.stored]
        words: dict[str, Any] = {"dtype_before": recorded.dtype, "dtype_after": info.dtype}
        size = entry_of(recorded).size
        if entry.size != size:
            note = f"recorded from {list(recorded.shape)}, here {list(entry.shape)}"
            self.tally.add(TensorFate(*where, "other shape", True, note=note, **words))
        elif not readable(self.checkpoint, entry):
            note = f"values of type {info.dtype} cannot be read"
            self.tally.add(TensorFate(*where, "not comparable", False, math.prod(size), note=note, **words))
        else:
            return True
        return False

    def entry(self, recorded: Recorded, entry: Sensitive, values: np.ndarray) -> None:
        """One entry's values against the recorded ones."""
        where = (recorded.name, recorded.role, recorded.stack, recorded.layer)
        before = values_of(recorded)
        info = self.checkpoint.tensors[entry.stored]
        words: dict[str, Any] = {"dtype_before": recorded.dtype, "dtype_after": info.dtype}
        self.digest.update(entry.name.encode() + np.ascontiguousarray(values).tobytes())
        whole = entry.columns is None
        with np.errstate(invalid="ignore"):  # a damaged value may be a signalling NaN
            wide = values.astype(np.float64)
        after = Side(wide, info.dtype, offset_of(entry, self.checkpoint, self.bound), whole)
        found = differ(Side(before, recorded.dtype, recorded.offset, whole), after)
        kind: Fate = found.kind  # type: ignore[assignment]
        dangerous = entry.dangerous() & found.moved
        with np.errstate(invalid="ignore", over="ignore"):
            change = np.where(found.moved, np.abs(after.values - before), 0.0)
        note = f"values are quantized to {' and '.join(_coarse(words))}" if kind == "not comparable" else ""
        self.tally.add(
            TensorFate(
                *where, kind, kind in FAILS, before.size, int(found.moved.sum()), int(dangerous.sum()),
                float(np.nan_to_num(change, nan=np.inf).max()), note=note, **words,
            )
        )  # fmt: skip
        if found.moved.any():
            self.tally.keep(_listed(entry, before, after.values, found.moved, found.allowed))

    def hashes(self) -> None:
        """Hashes of all tensors; one that is only on one side is a copy of another (tied weights) or a difference."""
        here = {one.name: one for one in hash_all(self.checkpoint, self.bound)}
        recorded = {one.name: one for one in self.baseline.hashes}
        reordered = (self.checkpoint.kind == "gguf") != (self.baseline.source == "gguf")
        for name, before in recorded.items():
            after = here.get(name)
            if after is None:
                self.lone(before, "missing", recorded.values())
                continue
            kind: Fate = "other shape" if before.shape != after.shape else relation(before, after)  # type: ignore[assignment]
            note = ""
            if reordered and kind == "moved":
                # llama.cpp reorders the rows of queries and keys, and fuses or renames others.
                kind, note = "not comparable", "stored in another order or form by llama.cpp"
            self.whole(before, kind, after.dtype, note)
        for name, after in here.items():
            if name not in recorded:
                self.lone(after, "extra", here.values())

    def lone(self, one: TensorHash, kind: Fate, siblings: Iterable[TensorHash]) -> None:
        """A tensor that only one side has: fine where it repeats another of that side, such as a tied head."""
        others = [other for other in siblings if other.name != one.name]
        tied = next((other.name for other in others if other.exact == one.exact), "")
        note = f"equal to {tied}, which is there" if tied else f"{kind}: only {_ONLY[kind]} has it"
        fate = TensorFate(one.name, WHOLE, "", None, kind, not tied and one.dtype in WORDS, note=note)
        self.tally.add(fate)

    def whole(self, before: TensorHash, kind: Fate, dtype: str, note: str) -> None:
        changed = kind in FAILS
        words: dict[str, Any] = {"dtype_before": before.dtype, "dtype_after": dtype}
        self.tally.add(TensorFate(before.name, WHOLE, "", None, kind, changed, note=note, **words))


_ONLY = {"missing": "the fingerprint", "extra": "the model"}


def verdict(tensors: Sequence[TensorFate], n_values: int, against: str) -> str:
    """One line: that the model matches, or what does not."""

    def count(fate: str) -> int:
        return sum(one.fate == fate and one.fails == (fate in (*FAILS, "extra")) for one in tensors)

    skipped = sum(one.fate == "not comparable" for one in tensors)
    aside = f"; {skipped} of another quantization or order could not be compared" if skipped else ""
    if not any(one.fails for one in tensors):
        converted = {one.dtype_after for one in tensors if one.fate == "converted"}
        said = f", some converted to {' and '.join(sorted(converted))}" if converted else ""
        return f"matches {against}: {n_values:,} values{said}{aside}"
    parts = []
    moved = sum(one.n_moved for one in tensors)
    if moved:
        dangerous = sum(one.n_dangerous for one in tensors)
        which = "all" if dangerous == moved else f"{dangerous:,}" if dangerous else "none"
        parts.append(f"{moved:,} of {n_values:,} values moved, {which} of them outlier entries")
    if whole := sum(one.role == WHOLE and one.fate == "moved" for one in tensors):
        parts.append(f"{whole} whole tensors differ")
    for fate, words in (("missing", "missing"), ("extra", "extra"), ("other shape", "of another shape")):
        if n := count(fate):
            parts.append(f"{n} {words}")
    return f"does NOT match {against}: {'; '.join(parts)}{aside}"


def _coarse(words: dict[str, Any]) -> list[str]:
    return [word for word in dict.fromkeys(words.values()) if word not in WORDS]


def _listed(
    entry: Sensitive, before: np.ndarray, after: np.ndarray, moved: np.ndarray, allowed: np.ndarray
) -> list[tuple[float, MovedValue]]:
    """Moved values of one entry with how far each moved, in spreads of the entry's recorded values."""
    spread = float(np.nanstd(np.where(np.isfinite(before), before, np.nan))) if np.isfinite(before).any() else 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        far = np.nan_to_num(np.abs(after - before) / (spread or 1.0), nan=np.inf)
    danger = entry.dangerous()
    where = np.argwhere(moved)
    order = np.lexsort((-far[moved], ~danger[moved]))[:MAX_LISTED]
    return [
        (
            float(far[row, column]),
            MovedValue(
                entry.name, entry.role, entry.stack, entry.layer, entry.index(row, column), entry.dim(row, column),
                float(before[row, column]), float(after[row, column]), bool(danger[row, column]),
                float(allowed[row, column]),
            ),
        )
        for row, column in where[order].tolist()
    ]  # fmt: skip
