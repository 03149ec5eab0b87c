"""GGUF, the format of llama.cpp: its header, its tensors by Hugging Face's names and layout, and importance matrices.

    with GGUFCheckpoint(path, name="smollm2") as checkpoint:
        checkpoint.config["num_hidden_layers"]
        dict(checkpoint.read(["model.layers.0.mlp.down_proj.weight"]))       # float32, [out, in]
    header = read_header(path)
    header.metadata["general.architecture"]         # scalars and short strings; arrays are stepped over unless named
    header.tensors["blk.0.ffn_down.weight"]         # TensorSpan(TensorInfo("Q4_1", (576, 1536), 552960), start, end)
    read_imatrix(Path("imatrix.gguf")).entries["blk.11.ffn_down.weight"].moments          # mean x² [column]

Of a header nothing is believed before the file has been seen to hold it. Layout (GGUF specification, versions 2 and 3): magic,
version, number of tensors, number of metadata entries; the entries (key, type, value); the tensors (name, dimensions fastest
first, type, offset); padding; data. The usual readers build every array and trust every count, so that a file of 200 bytes can
keep them busy for hours.

Names are translated by the rows of `architectures`. Floats are read here; blocks of quantized values go through the
dequantizers of the `gguf` package, imported only for them. `llama-imatrix` writes GGUF too: `NAME.in_sum2` holds Σ x² [matrix,
column] and `NAME.counts` the vectors summed [matrix]. Several matrices are the experts of one tensor.
"""

import math
import mmap
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.architectures import ARCHITECTURES
from outlierlens.architectures.stack import BLOCK, Gguf, Translation
from outlierlens.checkpoints.base import ITEM_BYTES, Checkpoint, LocalCheckpoint, TensorInfo, TensorSpan
from outlierlens.errors import BadFile, need

# Far above any published model. They bound time and memory where the file's size alone would allow more.
MAX_ENTRIES = 65_536
MAX_TENSORS = 131_072
MAX_STRINGS = 8_000_000  # in all arrays together; the largest vocabularies have 262,144 tokens
MAX_NAME_BYTES = 65_535  # the specification's limit for keys
MAX_TEXT_BYTES = 4_096  # longer metadata (chat templates) is stepped over
MAX_RANK = 4

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    number: struct.Struct("<" + code) for number, code in zip((*range(8), 10, 11, 12), "BbHhIifBQqd", strict=True)
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_CUT = "it is truncated or corrupt, fetch it again"

# ggml type number -> name, elements a block, bytes a block.
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What stands before the data.

    Attributes:
        metadata: scalars, strings of at most `MAX_TEXT_BYTES`, and the arrays that were asked for (as lists), by key.
        tensors: declaration and place by stored name; shapes are slowest axis first, as in numpy.
        nbytes: length of the header.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorSpan]
    nbytes: int


def read_header(path: Path, arrays: Collection[str] = ()) -> Header:
    """The header of a GGUF file with every count, length and offset checked against the file's size.

    `arrays` names those that are read; all others are stepped over.

    Raises:
        BadFile: the file is malformed, truncated, big-endian or of an unknown version.
    """
    size = path.stat().st_size
    if size < 24:
        raise BadFile(f"{path}: {size} bytes is too short for a GGUF file; fetch it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        return _Walk(raw, str(path), arrays).header()


class _Walk:
    """A position in the file that never passes its end."""

    def __init__(self, raw: mmap.mmap, where: str, arrays: Collection[str] = ()):
        self.raw, self.size, self.where, self.arrays = raw, len(raw), where, frozenset(arrays)
        self.position = self.n_strings = 0

    def header(self) -> Header:
        self.magic()
        n_tensors, n_entries = self.scalar(_U64, "the tensor count"), self.scalar(_U64, "the metadata count")
        # The shortest entry is an empty key, a type and one byte; the shortest tensor has no name and no dimensions.
        self.check_count(n_entries, 13, MAX_ENTRIES, "metadata entries")
        self.check_count(n_tensors, 24, MAX_TENSORS, "tensors")
        if not n_tensors:
            raise self.bad("holds no tensors (a vocabulary alone?); name the file with the weights")
        found: dict[str, Any] = {}
        for number in range(n_entries):
            key = self.name(f"the key of metadata entry {number}")
            if key in found:
                raise self.bad(f"metadata key {_short(key)} stands there twice; the file is corrupt")
            found[key] = self.value(key)
        metadata = {key: value for key, value in found.items() if value is not None}
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.bad(f"general.alignment is {_short(alignment)}, not a power of two; it is corrupt")
        infos = self.infos(n_tensors, alignment)
        return Header(metadata, self.place(infos, -(-self.position // alignment) * alignment), self.position)

    def bad(self, what: str) -> BadFile:
        return BadFile(f"{self.where}: {what}")

    def magic(self) -> None:
        if (magic := bytes(self.raw[:4])) != b"GGUF":
            raise self.bad(f"begins with {magic!r}, not with b'GGUF'; it is no GGUF file or a broken one")
        self.position = 4
        version = self.scalar(_U32, "the version")
        if version and version & 0xFFFF == 0:
            raise self.bad("is a big-endian GGUF file; convert the model to little-endian")
        if version not in (2, 3):
            raise self.bad(f"is GGUF version {version}; versions 2 and 3 are read, convert the model again")

    def take(self, n_bytes: int, what: str) -> int:
        """Step over so many bytes; where they begin."""
        if n_bytes > self.size - self.position:
            at = f"at byte {self.position:,}, the file ends at {self.size:,}"
            raise self.bad(f"{what} needs {n_bytes:,} bytes {at}; {_CUT}")
        self.position += n_bytes
        return self.position - n_bytes

    def scalar(self, kind: struct.Struct, what: str) -> Any:
        return kind.unpack_from(self.raw, self.take(kind.size, what))[0]

    def check_count(self, count: int, least_bytes: int, limit: int, what: str) -> None:
        left = self.size - self.position
        if count > limit or count * least_bytes > left:
            most = f"at most {min(limit, left // least_bytes):,} can be in the {left:,} bytes that are left"
            raise self.bad(f"claims {count:,} {what}, {most}; the file is truncated or corrupt, fetch it again")

    def name(self, what: str) -> str:
        length = self.scalar(_U64, f"the length of {what}")
        if length > MAX_NAME_BYTES:
            raise self.bad(f"{what} claims {length:,} bytes, more than {MAX_NAME_BYTES:,}; it is corrupt")
        start = self.take(length, what)
        raw = self.raw[start : start + length]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{what} is not UTF-8 ({raw[:20]!r}); the file is corrupt") from None

    def value(self, key: str) -> Any:
        """The value at the position, or None for what is only stepped over: arrays not asked for, long strings."""
        what = f"metadata {_short(key)}"
        kind = self.scalar(_U32, f"the type of {what}")
        if kind in _SCALARS:
            value = self.scalar(_SCALARS[kind], f"the value of {what}")
            if kind == _BOOL and value > 1:
                raise self.bad(f"{what} is a bool of value {value}; the file is corrupt")
            return bool(value) if kind == _BOOL else value
        if kind == _STRING:
            length = self.scalar(_U64, f"the length of {what}")
            start = self.take(length, f"the text of {what}")
            return None if length > MAX_TEXT_BYTES else self.raw[start : start + length].decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array(key, what)
        raise self.bad(f"{what} has the unknown type {kind}; the file is corrupt")

    def array(self, key: str, what: str) -> list[Any] | None:
        """The items, or None where they are only stepped over."""
        kind, count = self.scalar(_U32, f"the item type of {what}"), self.scalar(_U64, f"the length of {what}")
        if kind in _SCALARS:
            start = self.take(count * _SCALARS[kind].size, f"{what}, an array of {count:,} items,")
            raw = self.raw[start : self.position] if key in self.arrays else b""
            return [value for (value,) in _SCALARS[kind].iter_unpack(raw)] if key in self.arrays else None
        if kind == _STRING:
            self.check_count(count, 8, MAX_STRINGS - self.n_strings, f"strings in {what}")
            self.n_strings += count
            if key in self.arrays:
                return [self.name(f"string {number} of {what}") for number in range(count)]
            self.step_over_strings(count, what)
            return None
        if kind == _ARRAY:
            # No writer nests arrays and llama.cpp refuses them; followed blindly, they multiply a small file's work.
            raise self.bad(f"{what} is an array of arrays, which no model needs")
        raise self.bad(f"{what} has items of the unknown type {kind}; it is corrupt")

    def step_over_strings(self, count: int, what: str) -> None:
        length_at, raw, position, last = _U64.unpack_from, self.raw, self.position, self.size - 8
        for _ in range(count):
            if position > last:
                break
            position += 8 + length_at(raw, position)[0]
        else:
            if position <= self.size:
                self.position = position
                return
        raise self.bad(f"the {count:,} strings of {what} run past the end of the file at byte {self.size:,}; {_CUT}")

    def infos(self, n_tensors: int, alignment: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """{name: (shape, type number, offset)}."""
        infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for number in range(n_tensors):
            name = self.name(f"the name of tensor {number}")
            what = f"tensor {_short(name)}"
            if name in infos:
                raise self.bad(f"{what} stands there twice; the file is corrupt")
            if (rank := self.scalar(_U32, f"the rank of {what}")) > MAX_RANK:
                raise self.bad(f"{what} claims {rank:,} dimensions, more than {MAX_RANK}")
            dims = tuple(self.scalar(_U64, f"a dimension of {what}") for _ in range(rank))
            kind, offset = self.scalar(_U32, f"the type of {what}"), self.scalar(_U64, f"the offset of {what}")
            if offset % alignment:
                raise self.bad(f"{what} has offset {offset:,}, not aligned to {alignment:,}")
            infos[name] = dims[::-1], kind, offset
        return infos

    def place(self, infos: Mapping[str, tuple[tuple[int, ...], int, int]], base: int) -> dict[str, TensorSpan]:
        ordered = sorted(infos.items(), key=lambda item: item[1][2])
        starts = [base + offset for _, (_, _, offset) in ordered[1:]]
        placed = {}
        for (name, (shape, kind, offset)), next_start in zip(ordered, [*starts, max(base, self.size)], strict=True):
            start, what = base + offset, f"tensor {_short(name)}"
            # A type from the future has a length only its author knows; it reaches to the next tensor at most.
            dtype, nbytes = f"type {kind}", max(0, next_start - start)
            if kind in TYPES:
                dtype, nbytes = self.extent(what, shape, kind)
            if start > self.size or nbytes > self.size - start:
                there = f"{nbytes:,} bytes at byte {start:,} of {self.size:,}"
                raise self.bad(f"{what} ({dtype}{list(shape)}) lies outside the file: {there}; {_CUT}")
            if start + nbytes > next_start:
                other = next(item[0] for item in ordered if base + item[1][2] == next_start and item[0] != name)
                raise self.bad(f"{what} overlaps {_short(other)}; the file is corrupt")
            placed[name] = TensorSpan(TensorInfo(dtype, shape, nbytes), start, start + nbytes)
        return {name: placed[name] for name in infos}

    def extent(self, what: str, shape: tuple[int, ...], kind: int) -> tuple[str, int]:
        """Name and bytes of a tensor of a known type."""
        dtype, block, block_bytes = TYPES[kind]
        n_values, width = math.prod(shape), shape[-1] if shape else 1
        if not 0 < n_values < 2**63:
            raise self.bad(f"{what} has the impossible shape {list(shape)}; it is corrupt")
        if width % block:
            blocks = f"no multiple of {dtype}'s blocks of {block}"
            raise self.bad(f"{what} has rows of {width:,} values, {blocks}; the file is corrupt")
        return dtype, n_values // block * block_bytes


def _short(value: object) -> str:
    """`value` as one line of an error message: a hostile name may be long, or hold a line break."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- the model -------------------------------------------------------------------------------------------------------

CHUNK_VALUES = 2**20  # dequantized at a time: bounds what the dequantizers hold beside the result
_STORED = [one for row in ARCHITECTURES.values() for one in row.gguf]
# GGUF's word for an architecture -> what such a file may be, those first that a module tells from the others.
FAMILIES: dict[str, tuple[Gguf, ...]] = {
    word: tuple(sorted((one for one in _STORED if one.architecture == word), key=lambda one: not one.when))
    for word in dict.fromkeys(one.architecture for one in _STORED)
}


class GGUFCheckpoint(LocalCheckpoint):
    """One local GGUF file.

    Beside what every `Checkpoint` has: `path`, `metadata` (scalars and short strings by key), `stored_names` (GGUF's own) and
    `family` (a `Gguf`, or None).
    Architectures that `FAMILIES` does not know keep their names, and `config` holds only their own word
    for the model type, so that the architecture table can say what is missing.

    Raises:
        BadFile: the header is malformed, or the file is one part of several.
    """

    kind = "gguf"

    def __init__(self, path: Path, *, name: str):
        header = read_header(path)
        self.name, self.path = name, path
        self.total_bytes = path.stat().st_size
        self.bytes_read = header.nbytes
        parts = header.metadata.get("split.count", 1)
        if isinstance(parts, int) and parts > 1:
            raise BadFile(
                f"{path}: is one part of a model in {parts} files; merge them with `llama-gguf-split --merge` first"
            )
        architecture = header.metadata.get("general.architecture")
        self.metadata, self.stored_names = header.metadata, frozenset(header.tensors)
        modules = {match[2].rpartition(".")[0] for name in header.tensors if (match := BLOCK.match(name))}
        families = FAMILIES.get(architecture, ()) if isinstance(architecture, str) else ()
        self.family = family = next((one for one in families if not one.when or one.when in modules), None)
        self._stored = _translate(header, family, str(path))
        self._files = {hf_name: (path, place) for hf_name, (place, _) in self._stored.items()}
        self.tensors = {hf_name: _info(place, translation) for hf_name, (place, translation) in self._stored.items()}
        self.config = _config(header, family, str(path))
        self._dequantized: set[str] = set()

    def translation(self, name: str) -> Translation:
        """What is known of the tensor that is called `name` here."""
        return self._stored[name][1]

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name, values in super().read(names):
            yield name, values.swapaxes(-1, -2) if self.translation(name).swap else values

    # The stored rows of a swapped tensor are columns.
    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        way = Checkpoint if self.translation(name).swap else LocalCheckpoint
        return way.read_rows(self, name, n_rows)

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        way = Checkpoint if self.translation(name).swap else LocalCheckpoint
        return way.take_rows(self, name, rows)

    def _values(self, name: str, raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Floats of (part of) the tensor that is called `name` here, from its bytes, without what a converter added."""
        where, place = self._place(name)
        if place.info.dtype in ITEM_BYTES:
            values = super()._values(name, raw, shape)
        else:
            values = _dequantize(raw, TensorInfo(place.info.dtype, shape, len(raw)), where)
            self._dequantized.add(place.info.dtype)
            self.notes = (f"values are dequantized from {', '.join(sorted(self._dequantized))}",)
        shift = self.translation(name).shift
        return values + np.float32(shift) if shift else values


def _translate(header: Header, family: Gguf | None, where: str) -> dict[str, tuple[TensorSpan, Translation]]:
    """{Hugging Face name: (place, what undoes the conversion)}."""
    stored: dict[str, tuple[TensorSpan, Translation]] = {}
    for name, place in header.tensors.items():
        translation = family.translate(name) if family else Translation(name)
        if translation.name in stored:
            raise BadFile(f"{where}: tensor {name!r} and another are both {translation.name!r}; it is corrupt")
        if translation.swap and len(place.info.shape) < 2:
            raise BadFile(f"{where}: {name!r} has shape {list(place.info.shape)}, not that of a linear; it is corrupt")
        stored[translation.name] = place, translation
    return stored


def _info(place: TensorSpan, translation: Translation) -> TensorInfo:
    info, shape = place.info, place.info.shape
    return TensorInfo(info.dtype, (*shape[:-2], shape[-1], shape[-2]), info.nbytes) if translation.swap else info


def _config(header: Header, family: Gguf | None, where: str) -> dict[str, Any]:
    architecture = header.metadata.get("general.architecture")
    if architecture is None:
        return {}
    if not isinstance(architecture, str):
        raise BadFile(f"{where}: general.architecture is {architecture!r}, not a name; the file is corrupt")
    if family is None:
        return {"model_type": architecture}
    config = family.config(header.metadata, where)
    embeddings = header.tensors.get("token_embd.weight")
    if embeddings is not None and len(embeddings.info.shape) == 2:
        config.setdefault("vocab_size", embeddings.info.shape[0])
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    return config


def _dequantize(raw: np.ndarray, info: TensorInfo, where: str) -> np.ndarray:
    """float32 values of quantized blocks, `CHUNK_VALUES` at a time."""
    if info.dtype.startswith("type "):
        raise BadFile(f"{where}: is stored as ggml {info.dtype}, which is not known; take a file of a usual type")
    gguf = need("gguf", "", f"reading {info.dtype} values")
    kind = getattr(gguf.GGMLQuantizationType, info.dtype, None)
    unable = BadFile(
        f"{where}: the gguf package cannot dequantize {info.dtype}; run: pip install -U gguf, "
        "or take a file of a usual type (Q8_0, Q4_K)"
    )
    if kind is None:
        raise unable
    width = info.shape[-1]
    rows = raw.reshape(info.size // width, -1)  # [row, byte]
    values = np.empty((len(rows), width), dtype=np.float32)
    step = max(1, CHUNK_VALUES // width)
    try:
        # A broken scale (inf, NaN) is the caller's to report by dimension; numpy need not warn of it.
        with np.errstate(all="ignore"):
            for start in range(0, len(rows), step):
                values[start : start + step] = gguf.quants.dequantize(np.array(rows[start : start + step]), kind)
    except NotImplementedError:
        raise unable from None
    return values.reshape(info.shape)


# --- importance matrices ---------------------------------------------------------------------------------------------

_DATASETS = "imatrix.datasets"
# What llama-quantize does (tools/quantize/quantize.cpp, load_imatrix; src/llama-quant.cpp, tensor_requires_imatrix).
ALIKE = "llama-quantize weighs all inputs alike"
NO_ENTRY = (
    "llama-quantize rounds a linear without entry as without a matrix, and stops there for IQ1, IQ2, IQ3_XXS and Q2_K_S"
)


@dataclass(frozen=True)
class ImatrixEntry:
    """What one tensor's linear reads.

    Attributes:
        moments: mean x² of each input [column]; of experts, over all vectors that any of them read.
        vectors: how many were seen.
    """

    moments: np.ndarray
    vectors: int


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix: entries by GGUF's name of the weight, texts that were read, chunks and tokens of each (0: unknown).

    `unfed` are tensors that read nothing, and experts that did not: "blk.0.ffn_down_exps.weight, experts 2, 5".
    """

    entries: Mapping[str, ImatrixEntry]
    data: str
    n_chunks: int
    chunk_size: int
    unfed: tuple[str, ...] = ()


def read_imatrix(path: Path) -> Imatrix:
    """What the file holds, whatever its name ends in.

    Raises:
        BadFile: it is no importance matrix in GGUF, or is truncated or corrupt.
    """
    if not path.is_file():
        raise BadFile(f"{path}: no such file; name one that llama-imatrix wrote")
    metadata = read_header(path, arrays=(_DATASETS,)).metadata
    if metadata.get("general.type") != "imatrix":
        raise BadFile(
            f"{path}: is a GGUF file but no importance matrix (general.type); name one that llama-imatrix wrote"
        )
    entries: dict[str, ImatrixEntry] = {}
    unfed = []
    with GGUFCheckpoint(path, name=str(path)) as checkpoint:
        for stored in checkpoint.tensors:
            name = stored.removesuffix(".in_sum2")
            if name == stored:
                continue
            if f"{name}.counts" not in checkpoint.tensors:
                raise BadFile(f"{path}: {stored!r} has no counts beside it; the file is corrupt, make it again")
            sums, counts = (_checked(path, *one) for one in checkpoint.read([stored, f"{name}.counts"]))
            if sums.size % counts.size:
                raise BadFile(
                    f"{path}: {stored!r} has {sums.size:,} values for {counts.size:,} counts; the file is corrupt"
                )
            total = float(counts.sum())
            if total > 0:
                entries[name] = ImatrixEntry(sums.reshape(counts.size, -1).sum(0) / total, int(total))
            if idle := np.flatnonzero(counts.ravel() == 0).tolist():
                experts = f", expert{'s' if len(idle) > 1 else ''} {', '.join(map(str, idle))}" if total else ""
                unfed.append(f"{name}{experts}")
    if not entries:
        raise BadFile(f"{path}: no tensor of it has read anything; make it of a longer text")
    listed = metadata.get(_DATASETS)
    data = ", ".join(map(str, listed)) if isinstance(listed, list) else ""
    chunks, size = (metadata.get(f"imatrix.chunk_{what}") for what in ("count", "size"))
    return Imatrix(
        entries, data, chunks if isinstance(chunks, int) else 0, size if isinstance(size, int) else 0, tuple(unfed)
    )


def _checked(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """The values as float64; raises BadFile where one is negative or no number."""
    if not np.isfinite(values).all() or (values < 0).any():
        raise BadFile(
            f"{path}: {name!r} holds a value that is not a sum of squares; the file is corrupt, make it again"
        )
    return values.astype(np.float64)
