"""Record a model's sensitive values, and read such a record back with every size checked.

found = fingerprint("mpnet-base", FingerprintOptions())       # no torch, no model in memory
save(found, "f.json")
same = load_fingerprint("f.json")                             # refuses what is damaged
values_of(same.entries[0])                                    # float64 [row, column], bit for bit as they were
hash_tensor(checkpoint, "stored.name", "name")                # SHA-256 that tells a converted copy from an edited one

A tensor is hashed as it is and rounded to each narrower format. A copy in bfloat16 has as its exact hash what the
original has as its bfloat16 hash; an edited one has neither.
"""

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens import __version__
from outlierlens.architectures import BoundStack
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.checkpoints.base import MAX_RANK
from outlierlens.detection.scan.measure import ScanOptions, scan_checkpoint
from outlierlens.errors import BadFile, BadInput, TooMuchToRead
from outlierlens.experiments.integrity.options import FingerprintOptions
from outlierlens.experiments.integrity.result import Encoding, Fingerprint, Recorded, Stream, TensorHash
from outlierlens.experiments.integrity.rounding import WORDS, holds, round_to
from outlierlens.experiments.integrity.sensitive import (
    Found,
    Sensitive,
    bound_stacks,
    canonical,
    dims_of,
    list_sensitive,
    read_entries,
)
from outlierlens.options import FIND
from outlierlens.results.document import Provenance, load
from outlierlens.session import Session

LAYOUT = 1
MAX_VALUES = 2**25  # 45 MB in bfloat16; a model of 70 billion parameters with eight dimensions has 23 million
MAX_ENTRIES = 500_000
BLOCK_VALUES = 2**22
_CODES: dict[str, str] = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4", "float64": "<f8"}


def fingerprint(model: str, options: FingerprintOptions | None = None, *, command: str = "") -> Fingerprint:
    """The sensitive values of `model`: a sample, directory, file or hub id.

    Raises:
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see those.
        TooMuchToRead: the scan that finds the dimensions would read more than its limit; give `dims`.
        BadInput: a dimension is beyond the stream, or there are too many values to record.
    """
    options = options or FingerprintOptions()
    with opened(model, options.scan) as checkpoint:
        return fingerprint_checkpoint(checkpoint, options, command=command)


def run(session: Session, options: FingerprintOptions) -> Fingerprint:
    """The fingerprint, as the command takes it."""
    output = session.output
    if output.output is None and not output.json:
        raise BadInput("name the file that shall keep the fingerprint: -o f.json (or --json for stdout)")
    session.show = {"written": output.output}
    return fingerprint(session.subject.model, replace(options, scan=session.scanning(max_read=options.scan.max_read)))


def opened(model: str, options: ScanOptions) -> Checkpoint:
    """`open_checkpoint` as a scan would."""
    return open_checkpoint(
        model, revision=options.revision, subfolder=options.subfolder, token=options.token, offline=options.offline
    )


def fingerprint_checkpoint(checkpoint: Checkpoint, options: FingerprintOptions, *, command: str = "") -> Fingerprint:
    """`fingerprint` of an open checkpoint."""
    bound = bound_stacks(checkpoint, options.scan.row)
    dims = _dims(checkpoint, bound, options)
    listed = list_sensitive(checkpoint, bound, dims, deep=options.deep)
    n_values = sum(math.prod(entry.size) for entry in listed)
    if n_values > MAX_VALUES:
        raise BadInput(
            f"{checkpoint.name}: a fingerprint would hold {n_values:,} values, more than {MAX_VALUES:,}; "
            "give fewer dimensions with --dims" + (", or leave out --deep" if options.deep else "")
        )
    unreadable = [entry for entry in listed if not readable(checkpoint, entry)]
    notes = list(_notes(checkpoint, bound, unreadable, options.deep))
    entries, n_dangerous = [], 0
    for entry, values in read_entries(checkpoint, [entry for entry in listed if entry not in unreadable]):
        entries.append(record(entry, values, checkpoint, bound))
        n_dangerous += int(entry.dangerous().sum())
    hashes = hash_all(checkpoint, bound) if options.deep else ()
    streams = tuple(
        Stream(stack.name, stack.n_layers, width_of(checkpoint, stack), dims[stack.name].dims, dims[stack.name].how)
        for stack in bound
    )
    found = Fingerprint(
        provenance=Provenance.now(checkpoint.name, "", command=command),
        layout=LAYOUT,
        model_type=str(checkpoint.config.get("model_type", "")),
        source=checkpoint.kind,
        deep=options.deep,
        streams=streams,
        entries=tuple(entries),
        hashes=hashes,
        n_values=sum(math.prod(entry.size) for entry in listed if entry not in unreadable),
        n_dangerous=n_dangerous,
        bytes_read=checkpoint.bytes_read,
        total_bytes=checkpoint.total_bytes,
        digest="",
        notes=tuple(dict.fromkeys((*notes, *checkpoint.notes))),
    )
    digest = digest_of(found)
    return replace(found, digest=digest, provenance=replace(found.provenance, fingerprint=digest))


def readable(checkpoint: Checkpoint, entry: Sensitive) -> bool:
    """Whether the values of an entry can be read: of a known type, and not packed by an unknown quantizer."""
    return not checkpoint.packed_by(entry.stored)


def width_of(checkpoint: Checkpoint, stack: BoundStack) -> int:
    """How many dimensions a stream has."""
    (param, *_) = stack.scale[0]
    return checkpoint.tensors[param.name].shape[param.axis]


def offset_of(entry: Sensitive, checkpoint: Checkpoint, bound: Sequence[BoundStack]) -> float:
    """What the file adds to a norm's scale before it is rounded: llama.cpp's converter stores 1 + w for some families."""
    if entry.role != "norm scale" or checkpoint.kind != "gguf":
        return 0.0
    return next((stack.stack.norm_offset for stack in bound if stack.name == entry.stack), 0.0)


def record(entry: Sensitive, values: np.ndarray, checkpoint: Checkpoint, bound: Sequence[BoundStack]) -> Recorded:
    """One entry with its values, in the narrowest encoding that keeps every bit."""
    encoding: Encoding = "float64"
    narrow: tuple[Encoding, ...] = ("bfloat16", "float16", "float32")
    encoding = next((word for word in narrow if holds(values, word)), encoding)
    raw = values.astype(np.float32).view("<u4") >> 16 if encoding == "bfloat16" else values
    return Recorded(
        name=entry.name,
        role=entry.role,
        stack=entry.stack,
        layer=entry.layer,
        shape=entry.shape,
        dims=entry.dims,
        rows=entry.rows,
        columns=entry.columns,
        on_stream=entry.on_stream,
        dtype=checkpoint.tensors[entry.stored].dtype,
        offset=offset_of(entry, checkpoint, bound),
        encoding=encoding,
        values=base64.b64encode(np.ascontiguousarray(raw.astype(_CODES[encoding])).tobytes()).decode("ascii"),
    )


def entry_of(recorded: Recorded) -> Sensitive:
    """The entry that was recorded; its `stored` name is unknown."""
    same = ("name", "stack", "role", "layer", "shape", "dims", "rows", "columns", "on_stream")
    return Sensitive(stored="", **{key: getattr(recorded, key) for key in same})


def values_of(recorded: Recorded) -> np.ndarray:
    """The recorded values [row, column] as float64."""
    raw = np.frombuffer(base64.b64decode(recorded.values, validate=True), dtype=_CODES[recorded.encoding])
    if recorded.encoding == "bfloat16":
        raw = (raw.astype("<u4") << 16).view("<f4")
    return raw.astype(np.float64).reshape(entry_of(recorded).size)


def hash_all(checkpoint: Checkpoint, bound: Sequence[BoundStack]) -> tuple[TensorHash, ...]:
    """Hashes of every tensor that can be read, by canonical name."""
    prefixes = [stack.prefix for stack in bound]
    return tuple(
        hash_tensor(checkpoint, stored, canonical(stored, prefixes))
        for stored in checkpoint.tensors
        if not checkpoint.packed_by(stored)
    )


def digest_of(found: Fingerprint) -> str:
    """SHA-256 of what was recorded, field by field: a later version's new fields leave it as it is."""
    parts: list[Any] = [found.layout, found.model_type, found.deep]
    parts += [[s.name, s.n_layers, s.hidden_size, s.dims, s.how] for s in found.streams]
    for e in found.entries:
        where = [e.name, e.role, e.stack, e.layer, e.shape, e.dims, e.rows, e.columns, e.on_stream]
        parts.append([*where, e.dtype, e.offset, e.encoding, e.values])
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
    check(found, str(path))
    return found


def check(found: Fingerprint, where: str) -> None:
    """Raise BadFile where a fingerprint's parts do not fit each other; nothing is allocated by a claimed size."""
    if found.layout != LAYOUT:
        raise BadFile(
            f"{where}: has fingerprint layout {found.layout}; version {__version__} reads {LAYOUT}; take the fingerprint "
            "again or install the version that wrote it"
        )
    damaged = f"{where}: is damaged"
    again = "take it again, or fetch the file again"
    if digest_of(found) != found.digest:
        raise BadFile(f"{damaged}: its digest is not that of its content; {again}")
    names = [(entry.name, entry.role) for entry in found.entries]
    if len(names) > MAX_ENTRIES or len(set(names)) != len(names):
        raise BadFile(f"{damaged}: {len(names):,} entries, {len(set(names)):,} of them distinct; {again}")
    if not found.entries or not found.streams:
        raise BadFile(f"{where}: records nothing; {again}")
    total = 0
    for entry in found.entries:
        if problem := _problem(entry):
            raise BadFile(f"{damaged}: {entry.name} ({entry.role}): {problem}; {again}")
        total += math.prod(entry_of(entry).size)
    if total > MAX_VALUES or total != found.n_values:
        raise BadFile(f"{damaged}: it says {found.n_values:,} values and holds {total:,}; {again}")
    for stream in found.streams:
        if stream.n_layers < 1 or any(not 0 <= dim < stream.hidden_size for dim in stream.dims):
            raise BadFile(f"{damaged}: stream {stream.name!r} has dimensions outside its {stream.hidden_size}; {again}")


def _problem(entry: Recorded) -> str:
    """What is wrong with a recorded entry, or ""."""
    if not 0 < len(entry.shape) <= MAX_RANK or any(n < 1 for n in entry.shape):
        return f"its shape is {list(entry.shape)[: MAX_RANK + 1]}"
    width, n_rows = entry.shape[-1], math.prod(entry.shape[:-1])
    for what, chosen, end in (("row", entry.rows, n_rows), ("column", entry.columns, width)):
        if chosen is not None and (not chosen or min(chosen) < 0 or max(chosen) >= end):
            return f"a {what} lies outside its {end:,} {what}s"
    by_row = entry.role == "write row"
    if by_row and (entry.rows is None or len(entry.dims) != len(entry.rows)):
        return f"{len(entry.dims)} dimensions do not fit its rows"
    if not by_row and any(not 0 <= dim < width for dim in entry.dims):
        return f"a dimension lies outside its {width:,} columns"
    n_rows = n_rows if entry.rows is None else len(entry.rows)
    n_values = n_rows * (width if entry.columns is None else len(entry.columns))
    needed = n_values * np.dtype(_CODES[entry.encoding]).itemsize
    if len(entry.values) != 4 * -(-needed // 3):
        return f"{len(entry.values):,} characters cannot hold {n_values:,} values of {entry.encoding}"
    try:
        held = len(base64.b64decode(entry.values, validate=True))
    except (binascii.Error, ValueError):
        return "its values are not base64"
    if held != needed or not math.isfinite(entry.offset):
        return f"it holds {held:,} bytes for {n_values:,} values of {entry.encoding}"
    return ""


def _dims(checkpoint: Checkpoint, bound: Sequence[BoundStack], options: FingerprintOptions) -> dict[str, Found]:
    """{stream: found dimensions}, by the scan or as given."""
    if options.dims != FIND:
        dims = tuple(sorted(set(options.dims)))
        for stack in bound:
            if dims and dims[-1] >= width_of(checkpoint, stack):
                raise BadInput(
                    f"dimension {dims[-1]} is beyond the {width_of(checkpoint, stack):,} of stream {stack.name!r}; "
                    "they count from 0"
                )
        return {stack.name: Found(dims, "as given") for stack in bound}
    try:
        scan = scan_checkpoint(checkpoint, options.scan)
    except TooMuchToRead as error:
        raise TooMuchToRead(f"{error}; or name the dimensions yourself with --dims, and nothing is scanned") from None
    return dims_of(scan)


def _notes(
    checkpoint: Checkpoint, bound: Sequence[BoundStack], unreadable: Sequence[Sensitive], deep: bool
) -> list[str]:
    notes = []
    if unreadable:
        kinds = ", ".join(sorted({checkpoint.packed_by(entry.stored) for entry in unreadable}))
        notes.append(f"{len(unreadable)} tensors of {kinds} cannot be read and are not recorded")
    weights = (param for stack in bound for layers in stack.linears.values() for layer in layers for param in layer)
    shapes = ((param.axis, checkpoint.tensors[param.name].shape) for param in weights if "bias" not in param.name)
    spread = sum(len(shape) > 1 and axis % len(shape) == len(shape) - 1 for axis, shape in shapes)
    if not deep and spread:
        notes.append(
            f"{spread} linears are stored [in, out], so what they write to a dimension is spread over the whole tensor: "
            "it is recorded with --deep only"
        )
    return notes


def hash_tensor(checkpoint: Checkpoint, stored: str, name: str) -> TensorHash:
    """Hashes of one tensor, read in blocks; -0 counts as 0 and every NaN as one.

    Raises:
        BadFile: the tensor cannot be read.
    """
    info = checkpoint.tensors[stored]
    names = ("bfloat16", "float16", "float32", "float64")
    digests: dict[str, Any] = {word: hashlib.sha256(f"{info.shape}\0".encode()) for word in names}
    narrow = True
    step = max(1, BLOCK_VALUES // max(info.shape[-1], 1)) if info.shape else 1
    blocks = checkpoint.read_rows(stored, step) if info.shape else (v for _, v in checkpoint.read([stored]))
    for block in blocks:
        with np.errstate(invalid="ignore"):  # a damaged value may be a signalling NaN
            values = np.atleast_1d(block) + block.dtype.type(0)
        values[np.isnan(values)] = np.nan
        as_float32 = values
        if values.dtype == np.float64:
            with np.errstate(over="ignore"):
                as_float32 = values.astype(np.float32)
            narrow = narrow and bool(np.array_equal(as_float32, values, equal_nan=True))
            digests["float64"].update(values.astype("<f8").tobytes())
        digests["float32"].update(as_float32.astype("<f4", copy=False).tobytes())
        digests["bfloat16"].update(_bfloat16(values).astype("<f4", copy=False).tobytes())
        with np.errstate(over="ignore"):
            digests["float16"].update(values.astype(np.float16).astype("<f4").tobytes())
    exact = digests["float32" if narrow else "float64"].hexdigest()
    return TensorHash(
        name, info.shape, info.dtype, exact, *(digests[word].hexdigest() for word in ("bfloat16", "float16", "float32"))
    )


def relation(before: TensorHash, after: TensorHash) -> str:
    """ "same", "converted" (one is the other rounded to its own format), "moved", or "not comparable".

    Two copies in formats of which neither contains the other, and quantized ones, cannot be told from edited ones.
    """
    if before.exact == after.exact:
        return "same"
    for word in ("bfloat16", "float16", "float32"):
        one, other = getattr(before, word), getattr(after, word)
        # The one that is its own rounding is the copy.
        if one == other and (one == before.exact or other == after.exact):
            return "converted"
    old, new = WORDS.get(before.dtype), WORDS.get(after.dtype)
    if before.dtype != after.dtype and (not old or not new or {old, new} == {"bfloat16", "float16"}):
        return "not comparable"
    return "moved"


def _bfloat16(values: np.ndarray) -> np.ndarray:
    if values.dtype != np.float32:
        return round_to(values, "bfloat16").astype(np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Half of the cut bits is added, less one where the kept part is even: ties go to even. NaN must not overflow.
    rounded = np.where(np.isnan(values), bits, bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
