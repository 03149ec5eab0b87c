"""Compare a model with its fingerprint: which sensitive values moved, and whether they are the dangerous ones.

    found = verify("copy/", load_fingerprint("f.json"))
    found.matches, found.verdict                    # False, "does NOT match its fingerprint: 3 of 180,000 values moved, …"
    found.moved[0].name, found.moved[0].before, found.moved[0].after

Only the recorded values are read. What the copies' number formats explain is "converted", not moved (`fingerprint_values`).
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from outlierlens.analyses.fingerprint import (
    Fingerprint,
    OutlierStream,
    TensorRecord,
    about_streams,
    bytes_said,
    hash_all,
    load_fingerprint,
    offset_of,
    width_of,
)
from outlierlens.analyses.fingerprint_values import (
    DEEP_ROLES,
    WORDS,
    RoundingSide,
    SensitiveValues,
    TensorHash,
    TensorRole,
    differ,
    list_sensitive,
    read_entries,
    relation,
)
from outlierlens.architectures import RowChoice, bound_stacks
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.weights import ScanOptions, opened
from outlierlens.errors import BadInput
from outlierlens.results.document import Provenance
from outlierlens.results.finding import Finding
from outlierlens.results.rows import Quiet
from outlierlens.view.section import Count, ExactValue, Rows

if TYPE_CHECKING:
    from outlierlens.session import Session

Fate = Literal["same", "converted", "moved", "missing", "extra", "other shape", "not comparable"]
FAILS = ("moved", "missing", "other shape")  # no match; "extra" is none where the tensor acts on the stream
WHOLE = "whole tensor"
MAX_LISTED = 1000  # moved values that are kept one by one
LISTED = 20  # of them that are shown without --verbose


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What a model is compared with."""

    baseline: Path
    """The fingerprint to compare with."""
    deep: bool = False
    """Also embedding columns and hashes of whole tensors; reads everything."""


# --- what is found ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ValueDifference(TensorRole):
    """One sensitive value that differs by more than the copies' number formats explain."""

    index: tuple[int, ...]
    """index: place in the tensor"""
    dim: int | None
    """dimension: of the stream, that it acts on; none for norms of something else"""
    before: Annotated[float, ExactValue]
    """before: the recorded value"""
    after: Annotated[float, ExactValue]
    dangerous: bool
    """dangerous: an outlier entry, which acts on an outlier dimension"""


@dataclass(frozen=True, kw_only=True)
class TensorVerdict(TensorRole):
    """What became of one tensor's sensitive values (or of the whole tensor: role "whole tensor")."""

    fate: Fate
    """fate: converted, where only rounding to another number format differs; extra, where only the model has it"""
    fails: Annotated[bool, Quiet]
    """whether this makes the model no match"""
    n_values: Annotated[int, Quiet] = 0
    """values compared"""
    n_moved: Annotated[int | None, Count] = None
    """moved: values; none of a whole tensor, of which hashes are compared"""
    n_dangerous: Annotated[int | None, Count] = None
    """dangerous: moved outlier entries"""
    largest: float | None = None
    """largest change"""
    dtype_before: str = ""
    """recorded as"""
    dtype_after: str = ""
    """here"""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Verification(Finding):
    """A model compared with a fingerprint (or with another model).

    Attributes:
        baseline: provenance of the fingerprint, or of the first model. against: what it is called.
        matches: whether every recorded value is there and none moved.
        tensors: a row for every tensor that is not "same". n_tensors: tensors compared or looked for.
        moved: at most `MAX_LISTED`. n_values: values compared; of whole tensors only their hash is.
        bytes_read, total_bytes: of the model's files.
    """

    title = "Sensitive values"

    tensors: tuple[TensorVerdict, ...]
    """Tensors that are not the same"""
    moved: tuple[ValueDifference, ...]
    """Moved values: Outlier entries first, then those that moved farthest; --verbose and the result's file show more."""
    streams: tuple[OutlierStream, ...]
    """(Streams)"""
    baseline: Provenance
    against: str
    matches: bool
    deep: bool
    n_tensors: int
    n_values: int
    n_moved: int
    n_dangerous: int
    n_not_compared: int
    bytes_read: int
    total_bytes: int

    @property
    def failed(self) -> bool:
        """Whether it is no match."""
        return not self.matches

    @property
    def verdict(self) -> str:
        """One line: that the model matches, or what does not."""
        fates = Counter[str](one.fate for one in self.tensors if one.fails)
        skipped = sum(one.fate == "not comparable" for one in self.tensors)
        aside = f"; {skipped} of another quantization or order could not be compared" if skipped else ""
        if not fates:
            converted = {one.dtype_after for one in self.tensors if one.fate == "converted"}
            said = f", some converted to {' and '.join(sorted(converted))}" if converted else ""
            return f"matches {self.against}: {self.n_values:,} values{said}{aside}"
        parts = []
        if self.n_moved:
            n = self.n_dangerous
            which = "all" if n == self.n_moved else f"{n:,}" if n else "none"
            parts.append(f"{self.n_moved:,} of {self.n_values:,} values moved, {which} of them outlier entries")
        if whole := sum(one.role == WHOLE and one.fate == "moved" for one in self.tensors):
            parts.append(f"{whole} whole tensors differ")
        for fate in ("missing", "extra", "other shape"):
            if n := fates[fate]:
                parts.append(f"{n} {'of another shape' if fate == 'other shape' else fate}")
        return f"does NOT match {self.against}: {'; '.join(parts)}{aside}"

    def sentences(self) -> Iterator[str]:
        yield f"{self.provenance.subject} {self.verdict}."
        yield from (f"Outlier entries of stream {one.name}: dimensions {one.listing}." for one in self.streams)
        if quiet := Counter(one.fate for one in self.tensors if not _stands_out(one)):
            yield f"Other tensors: {', '.join(f'{n:,} {fate}' for fate, n in quiet.items())}."
        yield bytes_said(self.bytes_read, self.total_bytes)
        yield "A match says that these values are those recorded, not who made the model."

    def shown(self, *, verbose: bool = False) -> Iterator[Rows]:
        """Its tables; in short few moved values, and no tensors that are converted or not comparable."""
        short = replace(self, tensors=tuple(filter(_stands_out, self.tensors)), moved=self.moved[:LISTED])
        return Finding.shown(self if verbose else short, verbose=verbose)


def _stands_out(one: TensorVerdict) -> bool:
    return one.fails or one.fate == "extra"


# --- how it is found -------------------------------------------------------------------------------------------------


def verify(
    model: str,
    baseline: Fingerprint,
    options: ScanOptions | None = None,
    *,
    deep: bool = False,
    against: str = "its fingerprint",
) -> Verification:
    """Compare `model` (sample, directory, file or hub id) with `baseline`; `options` say how it is opened.

    Raises:
        BadInput: `deep` with a fingerprint that was taken without it.
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see those.
    """
    options = options or ScanOptions()
    with opened(model, options) as checkpoint:
        return verify_checkpoint(checkpoint, baseline, options.row, deep=deep, against=against)


def verify_checkpoint(
    checkpoint: Checkpoint,
    baseline: Fingerprint,
    row: RowChoice = None,
    *,
    deep: bool = False,
    against: str = "its fingerprint",
) -> Verification:
    """`verify` of an open checkpoint; `row` describes its architecture."""
    if deep and not baseline.deep:
        raise BadInput("this fingerprint was taken without --deep; take it again with --deep, or verify without")
    notes, config = list[str](), checkpoint.config
    if not row and not config.get("model_type") and baseline.model_type:
        checkpoint.config = {**config, "model_type": baseline.model_type}
        notes.append(f"no model_type beside the weights; taken for {baseline.model_type}, as recorded")
    check = _Check(checkpoint, baseline, deep, row)
    dims = check.streams()
    check.entries(dims)
    if deep and len(dims) == len(baseline.streams):
        check.hashes()
    if (here := str(checkpoint.config.get("model_type", ""))) != baseline.model_type:
        notes.append(f"model_type is {here!r}, recorded was {baseline.model_type!r}")
    if baseline.deep and not deep:
        notes.append("the fingerprint is deep; --deep also verifies embedding columns and whole tensors")
    tensors = sorted(check.tensors, key=lambda one: (not one.fails, -(one.n_dangerous or 0), -(one.n_moved or 0)))
    n_values = sum(one.n_values for one in tensors if one.fate != "not comparable")
    return Verification(
        provenance=Provenance.now(checkpoint.name, check.digest.hexdigest(), adapter=checkpoint.adapter),
        about=about_streams(baseline.streams),
        tensors=tuple(one for one in tensors if one.fate != "same"),
        moved=tuple(one for _, one in check.moved), streams=baseline.streams, baseline=baseline.provenance,
        against=against, matches=not any(one.fails for one in tensors), deep=deep, n_tensors=len(tensors),
        n_values=n_values, n_moved=sum(one.n_moved or 0 for one in tensors),
        n_dangerous=sum(one.n_dangerous or 0 for one in tensors),
        n_not_compared=sum(one.n_values for one in tensors) - n_values,
        bytes_read=checkpoint.bytes_read, total_bytes=checkpoint.total_bytes,
        notes=tuple(dict.fromkeys((*notes, *baseline.notes, *checkpoint.notes))),
    )  # fmt: skip


def run(session: "Session", options: VerifyOptions) -> Verification:
    """The verification, as the command runs it."""
    return verify(session.subject.model, load_fingerprint(options.baseline), session.scanning(), deep=options.deep)


class _Check:
    """One model against one fingerprint: a verdict for each tensor, and the moved values with how far each moved."""

    def __init__(self, checkpoint: Checkpoint, baseline: Fingerprint, deep: bool, row: RowChoice):
        self.checkpoint, self.baseline, self.deep = checkpoint, baseline, deep
        self.bound = bound_stacks(checkpoint, row)
        self.digest = hashlib.sha256(checkpoint.header_digest().encode())
        self.tensors: list[TensorVerdict] = []
        self.moved: list[tuple[float, ValueDifference]] = []

    def add(self, fate: Fate, note: str, *, fails: bool | None = None, **more: Any) -> None:
        """Keep a verdict; `more` are its other fields."""
        fails = fate in FAILS if fails is None else fails
        self.tensors.append(TensorVerdict(**more, fate=fate, fails=fails, why=note))

    def streams(self) -> dict[str, tuple[int, ...]]:
        """{stream: its dimensions} of the recorded streams that the model has in the same width; others get a verdict."""
        here = {stack.name: (stack.n_layers, width_of(self.checkpoint, stack)) for stack in self.bound}
        fit = {}
        for one in self.baseline.streams:
            place: dict[str, Any] = {"name": one.name, "role": "stream", "stack": one.name}
            n_layers, width = here.get(one.name, (0, -1))
            recorded = f"recorded were {one.n_layers} layers × {one.hidden_size}"
            if one.name not in here:
                self.add("missing", f"{recorded}; the model has {', '.join(here)}", **place)
            elif (n_layers, width) != (one.n_layers, one.hidden_size):
                self.add("other shape", f"{recorded}, here are {n_layers} × {width}", **place)
            if width == one.hidden_size:
                fit[one.name] = one.dims
        return fit

    def entries(self, dims: dict[str, tuple[int, ...]]) -> None:
        """Every recorded entry of the streams that fit, then what the model has beyond them."""
        bound = [stack for stack in self.bound if stack.name in dims]
        listed = list_sensitive(self.checkpoint, bound, dims, deep=self.deep) if bound else []
        here = {(entry.name, entry.role): entry for entry in listed}
        pairs: list[tuple[TensorRecord, SensitiveValues]] = []
        for record in self.baseline.entries:
            if record.stack not in dims or (record.role in DEEP_ROLES and not self.deep):
                continue
            entry = here.pop((record.name, record.role), None)
            if entry is None:
                self.add("missing", "the model has no such tensor", **record.place)
                continue
            dtype = self.checkpoint.tensors[entry.stored].dtype
            words: dict[str, Any] = {"dtype_before": record.dtype, "dtype_after": dtype}
            if entry.size != record.size:
                note = f"recorded from {list(record.shape)}, here {list(entry.shape)}"
                self.add("other shape", note, **record.place, **words)
            elif self.checkpoint.packed_by(entry.stored):
                note = f"values of type {dtype} cannot be read"
                self.add("not comparable", note, **record.place, n_values=math.prod(record.size), **words)
            else:
                pairs.append((record, entry))
        values = read_entries(self.checkpoint, [entry for _, entry in pairs])
        for (record, _), (entry, found) in zip(pairs, values, strict=True):
            self.compare(record, entry, found)
        for entry in here.values():
            if not self.checkpoint.packed_by(entry.stored):
                # A norm of a head that was not recorded changes nothing of what was.
                fails = entry.on_stream or entry.layer is not None
                self.add("extra", "not in the fingerprint", fails=fails, **entry.place)

    def compare(self, record: TensorRecord, entry: SensitiveValues, values: np.ndarray) -> None:
        """One entry's values with the recorded ones."""
        self.digest.update(entry.name.encode() + np.ascontiguousarray(values).tobytes())
        before, dtype = record.values(), self.checkpoint.tensors[entry.stored].dtype
        with np.errstate(invalid="ignore", over="ignore"):  # a damaged value may be a signalling NaN
            after = values.astype(np.float64)
            change = np.abs(after - before)
        offset = offset_of(entry, self.checkpoint, self.bound)
        moved, kind = differ(RoundingSide(before, record.dtype, record.offset), RoundingSide(after, dtype, offset))
        danger, change = entry.dangerous(), np.nan_to_num(change, nan=np.inf)
        coarse = [word for word in dict.fromkeys((record.dtype, dtype)) if word not in WORDS]
        self.add(
            kind, f"values are quantized to {' and '.join(coarse)}" if kind == "not comparable" else "",
            **record.place, n_values=before.size, n_moved=int(moved.sum()), n_dangerous=int((danger & moved).sum()),
            largest=float(np.where(moved, change, 0.0).max()), dtype_before=record.dtype, dtype_after=dtype,
        )  # fmt: skip
        if not moved.any():
            return
        finite = before[np.isfinite(before)]
        with np.errstate(over="ignore"):
            spread = float(finite.std()) if finite.size else 0.0
            far = change / (spread or 1.0)
        order = np.lexsort((-far[moved], ~danger[moved]))[:MAX_LISTED]
        for row, column in np.argwhere(moved)[order].tolist():
            one = ValueDifference(
                **entry.place, index=entry.index(row, column), dim=entry.dim(row, column),
                before=float(before[row, column]), after=float(after[row, column]), dangerous=bool(danger[row, column]),
            )  # fmt: skip
            self.moved.append((float(far[row, column]), one))
        self.moved.sort(key=lambda item: (not item[1].dangerous, -item[0], item[1].name, item[1].index))
        del self.moved[MAX_LISTED:]

    def hashes(self) -> None:
        """Hashes of all tensors; one that is only on one side is a copy of another (tied weights) or a difference."""
        here = {one.name: one for one in hash_all(self.checkpoint, self.bound)}
        recorded = {one.name: one for one in self.baseline.hashes}
        reordered = (self.checkpoint.kind == "gguf") != (self.baseline.source == "gguf")
        for name, before in recorded.items():
            after = here.get(name)
            if after is None:
                self.lone(before, "missing", "the fingerprint", recorded.values())
                continue
            kind: Fate = "other shape" if before.shape != after.shape else relation(before, after)
            note = ""
            if reordered and kind == "moved":
                # llama.cpp reorders the rows of queries and keys, and fuses or renames others.
                kind, note = "not comparable", "stored in another order or form by llama.cpp"
            self.add(kind, note, name=name, role=WHOLE, dtype_before=before.dtype, dtype_after=after.dtype)
        for name, after in here.items():
            if name not in recorded:
                self.lone(after, "extra", "the model", here.values())

    def lone(self, one: TensorHash, fate: Fate, owner: str, siblings: Iterable[TensorHash]) -> None:
        """A tensor that only one side has: fine where it repeats another of that side, such as a tied head."""
        tied = next((other.name for other in siblings if other.name != one.name and other.exact == one.exact), "")
        note = f"equal to {tied}, which is there" if tied else f"{fate}: only {owner} has it"
        self.add(fate, note, fails=not tied and one.dtype in WORDS, name=one.name, role=WHOLE)
