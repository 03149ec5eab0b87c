"""Record a model's sensitive values, and read such a record back with every size checked.

    found = fingerprint("mpnet-base", FingerprintOptions())       # no torch, no model in memory
    found.save("f.json")
    same = load_fingerprint("f.json")                             # refuses what is damaged
    same.entries[0].values()                                      # float64 [row, column], bit for bit as they were

Which values are sensitive says `fingerprint_values`; `fingerprint_verify` compares a copy with the record.
"""

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from outlierlens import __version__
from outlierlens.analyses.fingerprint_values import (
    NARROW,
    SensitiveValues,
    TensorHash,
    canonical,
    hash_tensor,
    holds,
    list_sensitive,
    read_entries,
)
from outlierlens.analyses.scan import scan_checkpoint
from outlierlens.architectures import BoundStack, bound_stacks
from outlierlens.checkpoints import Checkpoint
from outlierlens.checkpoints.base import MAX_RANK
from outlierlens.detection.weights import ScanOptions, opened
from outlierlens.errors import BadFile, BadInput, TooMuchToRead
from outlierlens.options import FIND, DimsOrFind, Flat, Options
from outlierlens.results.document import Provenance, load
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Quiet, Row

if TYPE_CHECKING:
    from outlierlens.session import Session

LAYOUT = 1
MAX_VALUES = 2**25  # 45 MB in bfloat16; a model of 70 billion parameters with eight dimensions has 23 million
MAX_ENTRIES = 500_000
N_STRONGEST = 3  # dimensions taken per stream where the scan's rule finds none
_CODES: dict[str, str] = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4", "float64": "<f8"}


@dataclass(frozen=True)
class FingerprintOptions(Options):
    """How to take a fingerprint."""

    scan: Annotated[ScanOptions, Flat("max_read")] = field(default_factory=ScanOptions)
    """The rule that finds the outlier dimensions, limits on reading, and how the model is opened."""
    dims: DimsOrFind = FIND
    """The outlier dimensions, in every stream: 308,381; find: those that scan finds."""
    deep: bool = False
    """Also embedding columns and hashes of whole tensors; reads everything."""


# --- what is recorded ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OutlierStream(Row):
    """One residual stream, and its dimensions whose entries are called dangerous."""

    name: str
    """stream"""
    n_layers: int
    """layers"""
    hidden_size: int
    """width"""
    dims: tuple[int, ...]
    """dimensions"""
    named_by: str
    """named by"""

    @property
    def listing(self) -> str:
        """ "34, 461 (outliers by the rule kovaleva)"."""
        return f"{', '.join(map(str, self.dims)) or 'no dimension'} ({self.named_by})"


@dataclass(frozen=True, kw_only=True)
class TensorRecord(SensitiveValues):
    """Sensitive values of one tensor as they were."""

    dtype: str
    """stored as: in the file format's own word"""
    offset: Annotated[float, Quiet]
    """what the file had added to the values (GGUF stores 1 + w for the norms of Gemma)"""
    encoding: Literal["bfloat16", "float16", "float32", "float64"]
    """kept as: the narrowest format that holds every value exactly"""
    bits: Annotated[str, Quiet]
    """base64 of the values [row, column], little-endian in `encoding`"""

    def values(self) -> np.ndarray:
        """The values [row, column] as float64."""
        raw = np.frombuffer(base64.b64decode(self.bits, validate=True), dtype=_CODES[self.encoding])
        if self.encoding == "bfloat16":
            raw = (raw.astype("<u4") << 16).view("<f4")
        return raw.astype(np.float64).reshape(self.size)


@dataclass(frozen=True, kw_only=True)
class Fingerprint(Finding):
    """The sensitive values of a model, for `verify` to compare a copy with.

    The provenance's fingerprint is the SHA-256 of what was recorded, so that a damaged file is noticed; it does not
    authenticate the file.

    Attributes:
        hashes: of every tensor; empty without `deep`.
        layout: version of what is recorded and how. model_type: of the config. source: the kind of file.
        n_values: how many values `entries` hold. n_dangerous: how many of them are outlier entries.
        bytes_read, total_bytes: of the files.
    """

    title = "Sensitive values, recorded"

    entries: tuple[TensorRecord, ...]
    """(Recorded tensors)"""
    hashes: tuple[TensorHash, ...]
    """(Hashes of whole tensors)"""
    streams: tuple[OutlierStream, ...]
    """(Streams)"""
    layout: int
    model_type: str
    source: str
    deep: bool
    n_values: int
    n_dangerous: int
    bytes_read: int
    total_bytes: int

    def sentences(self) -> Iterator[str]:
        hashes = f" Hashes of {len(self.hashes):,} whole tensors." if self.hashes else ""
        yield (
            f"{self.provenance.subject}: {self.n_values:,} sensitive values of {len(self.entries):,} tensors, "
            f"{self.n_dangerous:,} of them outlier entries.{hashes}"
        )
        yield from (
            f"Stream {one.name}, {one.n_layers} × {one.hidden_size}: dimensions {one.listing}." for one in self.streams
        )
        yield bytes_said(self.bytes_read, self.total_bytes)


def bytes_said(read: int, total: int) -> str:
    """How much of the files was read."""
    return f"{read:,} of {total:,} bytes were read ({read / max(total, 1):.2%})."


# --- how it is recorded ----------------------------------------------------------------------------------------------


def fingerprint(model: str, options: FingerprintOptions | None = None) -> Fingerprint:
    """The sensitive values of `model`: a sample, directory, file or hub id.

    Raises:
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see those.
        TooMuchToRead: the scan that finds the dimensions would read more than its limit; give `dims`.
        BadInput: a dimension is beyond the stream, or there are too many values to record.
    """
    options = options or FingerprintOptions()
    with opened(model, options.scan) as checkpoint:
        return fingerprint_checkpoint(checkpoint, options)


def fingerprint_checkpoint(checkpoint: Checkpoint, options: FingerprintOptions) -> Fingerprint:
    """`fingerprint` of an open checkpoint, such as a `LiveCheckpoint` of a model in memory."""
    bound = bound_stacks(checkpoint, options.scan.row)
    streams = outlier_streams(checkpoint, bound, options.dims, options.scan)
    listed = list_sensitive(checkpoint, bound, {one.name: one.dims for one in streams}, deep=options.deep)
    if (n_values := sum(math.prod(entry.size) for entry in listed)) > MAX_VALUES:
        raise BadInput(
            f"{checkpoint.name}: a fingerprint would hold {n_values:,} values, more than {MAX_VALUES:,}; "
            "give fewer dimensions with --dims" + (", or leave out --deep" if options.deep else "")
        )
    readable, unreadable = (
        [one for one in listed if bool(checkpoint.packed_by(one.stored)) == on] for on in (False, True)
    )
    notes = list(_notes(checkpoint, bound, unreadable, options.deep))
    entries, n_dangerous = list[TensorRecord](), 0
    for entry, values in read_entries(checkpoint, readable):
        entries.append(_record(entry, values, checkpoint, bound))
        n_dangerous += int(entry.dangerous().sum())
    found = Fingerprint(
        provenance=Provenance.now(checkpoint.name, "", adapter=checkpoint.adapter), about=about_streams(streams),
        entries=tuple(entries),
        hashes=hash_all(checkpoint, bound) if options.deep else (), streams=streams, layout=LAYOUT,
        model_type=str(checkpoint.config.get("model_type", "")), source=checkpoint.kind, deep=options.deep,
        n_values=sum(math.prod(entry.size) for entry in readable), n_dangerous=n_dangerous,
        bytes_read=checkpoint.bytes_read, total_bytes=checkpoint.total_bytes,
        notes=tuple(dict.fromkeys((*notes, *checkpoint.notes))),
    )  # fmt: skip
    return replace(found, provenance=replace(found.provenance, fingerprint=digest_of(found)))


def run(session: "Session", options: FingerprintOptions) -> Fingerprint:
    """The fingerprint, as the command takes it."""
    if session.output.output is None and not session.output.json:
        raise BadInput("name the file that shall keep the fingerprint: -o f.json (or --json for stdout)")
    return fingerprint(session.subject.model, replace(options, scan=session.scanning(options.scan)))


def outlier_streams(
    checkpoint: Checkpoint, bound: Sequence[BoundStack], dims: DimsOrFind, options: ScanOptions
) -> tuple[OutlierStream, ...]:
    """The streams with the dimensions given; by default the scan's outliers, else its strongest.

    Raises:
        BadInput: a dimension is beyond the stream.
        TooMuchToRead: the scan would read more than its limit.
    """
    widths = {stack.name: width_of(checkpoint, stack) for stack in bound}
    if dims != FIND:
        given = tuple(sorted(set(dims)))
        for name, width in widths.items():
            if given and not 0 <= given[0] <= given[-1] < width:
                raise BadInput(f"dimension {given[-1]} is beyond the {width:,} of stream {name!r}; they count from 0")
        chosen = dict.fromkeys(widths, (given, "as given"))
    else:
        try:
            scan = scan_checkpoint(checkpoint, options)
        except TooMuchToRead as error:
            said = f"{error}; or name the dimensions yourself with --dims, and nothing is scanned"
            raise TooMuchToRead(said) from None
        chosen = {
            one.stack: (one.dims, f"outliers by the rule {scan.rule.name}")
            if one.dims
            else (tuple(sorted(one.strongest_dims(N_STRONGEST))), "the strongest; the rule found no outlier")
            for one in scan.stacks
        }
    return tuple(
        OutlierStream(name=one.name, n_layers=one.n_layers, hidden_size=widths[one.name], dims=found, named_by=named_by)
        for one in bound if one.name in chosen for found, named_by in [chosen[one.name]]
    )  # fmt: skip


def about_streams(streams: Sequence[OutlierStream]) -> About:
    """What a finding is about that compares outlier entries of these streams."""
    dims = sorted({dim for one in streams for dim in one.dims})
    return About(stack=", ".join(one.name for one in streams), dims=tuple(map(str, dims)))


def width_of(checkpoint: Checkpoint, stack: BoundStack) -> int:
    """How many dimensions a stream has."""
    (param, *_) = stack.scale[0]
    return checkpoint.tensors[param.name].shape[param.axis]


def offset_of(entry: SensitiveValues, checkpoint: Checkpoint, bound: Sequence[BoundStack]) -> float:
    """What the file adds to a norm's scale before it is rounded: llama.cpp's converter stores 1 + w for some families."""
    if entry.role != "norm scale" or checkpoint.kind != "gguf":
        return 0.0
    return next((stack.stack.norm_offset for stack in bound if stack.name == entry.stack), 0.0)


def _record(
    entry: SensitiveValues, values: np.ndarray, checkpoint: Checkpoint, bound: Sequence[BoundStack]
) -> TensorRecord:
    encoding: Any = next((word for word in NARROW if holds(values, word)), "float64")
    raw = values.astype(np.float32).view("<u4") >> 16 if encoding == "bfloat16" else values
    return TensorRecord(
        **{one.name: getattr(entry, one.name) for one in fields(SensitiveValues)},
        dtype=checkpoint.tensors[entry.stored].dtype, offset=offset_of(entry, checkpoint, bound), encoding=encoding,
        bits=base64.b64encode(np.ascontiguousarray(raw.astype(_CODES[encoding])).tobytes()).decode("ascii"),
    )  # fmt: skip


def hash_all(checkpoint: Checkpoint, bound: Sequence[BoundStack]) -> tuple[TensorHash, ...]:
    """Hashes of every tensor that can be read, by canonical name."""
    names = {stored: canonical(stored, [stack.prefix for stack in bound]) for stored in checkpoint.tensors}
    return tuple(hash_tensor(checkpoint, *name) for name in names.items() if not checkpoint.packed_by(name[0]))


def _notes(
    checkpoint: Checkpoint, bound: Sequence[BoundStack], unreadable: Sequence[SensitiveValues], deep: bool
) -> Iterator[str]:
    if unreadable:
        kinds = ", ".join(sorted({checkpoint.packed_by(entry.stored) for entry in unreadable}))
        yield f"{len(unreadable)} tensors of {kinds} cannot be read and are not recorded"
    weights = (param for stack in bound for layers in stack.linears.values() for layer in layers for param in layer)
    shapes = ((param.axis, checkpoint.tensors[param.name].shape) for param in weights if "bias" not in param.name)
    spread = sum(len(shape) > 1 and axis % len(shape) == len(shape) - 1 for axis, shape in shapes)
    if not deep and spread:
        yield (
            f"{spread} linears are stored [in, out], so what they write to a dimension is spread over the whole tensor: "
            "it is recorded with --deep only"
        )


# --- how it is read back ---------------------------------------------------------------------------------------------


def digest_of(found: Fingerprint) -> str:
    """SHA-256 of the record, field by field: a later version's new fields leave it as it is."""
    parts: list[Any] = [found.layout, found.model_type, found.deep]
    parts += [[one.name, one.n_layers, one.hidden_size, one.dims, one.named_by] for one in found.streams]
    for e in found.entries:
        where = [e.name, e.role, e.stack, e.layer, e.shape, e.dims, e.row_numbers, e.column_numbers, e.on_stream]
        parts.append([*where, e.dtype, e.offset, e.encoding, e.bits])
    parts += [[h.name, h.shape, h.dtype, h.exact, h.bfloat16, h.float16, h.float32] for h in found.hashes]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def load_fingerprint(path: Path | str) -> Fingerprint:
    """Read a fingerprint file.

    Raises:
        BadFile: missing, malformed, of another layout, damaged, or with sizes that do not fit its values.
        BadInput: another kind of result.
    """
    found = load(path)
    if not isinstance(found, Fingerprint):
        raise BadInput(
            f"{path} holds a {type(found).__name__}, not a Fingerprint; make one with outlierlens fingerprint MODEL -o f.json"
        )
    if found.layout != LAYOUT:
        raise BadFile(
            f"{path}: has fingerprint layout {found.layout}; version {__version__} reads {LAYOUT}; take the fingerprint "
            "again or install the version that wrote it"
        )
    if problem := _problem(found):
        raise BadFile(f"{path}: is damaged: {problem}; take it again, or fetch the file again")
    return found


def _problem(found: Fingerprint) -> str:
    """Where a fingerprint's parts do not fit each other, or ""; nothing is allocated by a claimed size."""
    if digest_of(found) != found.provenance.fingerprint:
        return "its digest is not that of its content"
    n, distinct = len(found.entries), len({(entry.name, entry.role) for entry in found.entries})
    if n > MAX_ENTRIES or distinct != n:
        return f"{n:,} entries, {distinct:,} of them distinct"
    if not found.entries or not found.streams:
        return "it records nothing"
    for entry in found.entries:
        if problem := _misfit(entry):
            return f"{entry.name} ({entry.role}): {problem}"
    total = sum(math.prod(entry.size) for entry in found.entries)
    if total > MAX_VALUES or total != found.n_values:
        return f"it says {found.n_values:,} values and holds {total:,}"
    for one in found.streams:
        if one.n_layers < 1 or any(not 0 <= dim < one.hidden_size for dim in one.dims):
            return f"stream {one.name!r} has dimensions outside its {one.hidden_size}"
    return ""


def _misfit(entry: TensorRecord) -> str:
    """Which sizes of a recorded entry do not fit each other, or ""."""
    if not 0 < len(entry.shape) <= MAX_RANK or any(n < 1 for n in entry.shape):
        return f"its shape is {list(entry.shape)[: MAX_RANK + 1]}"
    width, n_rows = entry.shape[-1], math.prod(entry.shape[:-1])
    for what, chosen, end in (("row", entry.row_numbers, n_rows), ("column", entry.column_numbers, width)):
        if chosen is not None and (not chosen or min(chosen) < 0 or max(chosen) >= end):
            return f"a {what} lies outside its {end:,} {what}s"
    by_row = entry.role == "write row"
    if by_row and (entry.row_numbers is None or len(entry.dims) != len(entry.row_numbers)):
        return f"{len(entry.dims)} dimensions do not fit its rows"
    if not by_row and any(not 0 <= dim < width for dim in entry.dims):
        return f"a dimension lies outside its {width:,} columns"
    n_values = math.prod(entry.size)
    needed = n_values * np.dtype(_CODES[entry.encoding]).itemsize
    if len(entry.bits) != 4 * -(-needed // 3):
        return f"{len(entry.bits):,} characters cannot hold {n_values:,} values of {entry.encoding}"
    try:
        held = len(base64.b64decode(entry.bits, validate=True))
    except (binascii.Error, ValueError):
        return "its values are not base64"
    if held != needed or not math.isfinite(entry.offset):
        return f"it holds {held:,} bytes for {n_values:,} values of {entry.encoding}"
    return ""
