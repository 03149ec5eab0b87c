"""THE table of weight files: one row per format, and what follows from it: which file of a folder is the model, what opens it.

    open_file(Path("model.gguf"), "smollm2")      # the Checkpoint that the row's opener makes
    weight_file(Path("runs/bert"))                # Path("runs/bert/model.safetensors")
    token_texts(folder, [101, 102])               # {101: "[CLS]", 102: "[SEP]"}, by the vocabulary file beside the weights

A new format is a module with an opener and a row here. An opener takes (path, *, name, config), config.json's content being {}
where there is none, and returns a `Checkpoint` whose header was checked.

Safetensors stand here too, one file or many: our own header check, then memory-mapped values. `safe_open(framework="numpy")`
raises on bf16 and trusts more than we want to, so the header is checked: length against the file, offsets against each other,
shape against bytes.
"""

import importlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outlierlens.checkpoints.adapter import CONFIG, no_model
from outlierlens.checkpoints.base import (
    INDEX,
    ITEM_BYTES,
    MAX_TENSORS,
    Checkpoint,
    LocalCheckpoint,
    TensorInfo,
    TensorSpan,
    is_plain_name,
    is_shape,
    load_config,
    parse_config,
)
from outlierlens.checkpoints.naming import by_usual_names
from outlierlens.checkpoints.stored import of_adapter
from outlierlens.checkpoints.trainers import PARAMS, TRAINERS, config_of_params, form_of, parts_of
from outlierlens.errors import BadFile

# What trainers keep beside the weights: no model.
KEPT = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|adapter_model).*|.*optim(_states)?\.pt")


@dataclass(frozen=True)
class Format:
    """One format of weight files, as text: nothing of it is imported before a file of it is opened.

    Attributes:
        name: as it is called in sentences.
        suffixes: endings of its files.
        opener: "module:name" of what opens a file.
        file: the name under which transformers and the hub keep a model in it, and its index; "" where they know none.
        patterns: other names of a model's file in a folder, likeliest first. Any name with one of `suffixes` is taken last.
        magic: the first bytes of its files, which tell it under any name.
        extra: what installs the library that it needs; "" where the base installation reads it.
        config_inside: its files say what config.json would; the opener takes no `config`.
    """

    name: str
    suffixes: tuple[str, ...]
    opener: str
    file: str = ""
    patterns: tuple[str, ...] = ()
    magic: bytes = b""
    extra: str = ""
    config_inside: bool = False

    @property
    def index(self) -> str:
        """The file that says which of several holds which tensor; "" where the format has no such."""
        return self.file and self.file + INDEX

    @property
    def ending(self) -> str:
        """Of `file`."""
        return Path(self.file).suffix

    @property
    def names(self) -> tuple[str, ...]:
        """Patterns of names that say: this is the model."""
        return (*((self.file, self.index) if self.file else ()), *self.patterns)


# By trust and cost: the first needs no other library, and of it alone are single tensors fetched from a hub.
SAFETENSORS = Format(
    "safetensors", (".safetensors",), "outlierlens.checkpoints.formats:SafetensorsCheckpoint", file="model.safetensors",
    patterns=("*.safetensors",),
)  # fmt: skip
FORMATS = (
    SAFETENSORS,
    Format(
        "PyTorch", (".bin", ".pt", ".pth", ".ckpt"), "outlierlens.checkpoints.torchbin:TorchCheckpoint",
        file="pytorch_model.bin",
    ),
    Format(
        "torch DCP", (), "outlierlens.checkpoints.torchbin:DistributedCheckpoint",
        patterns=(".metadata", "__0_0.distcp"),
    ),
    Format(
        "GGUF", (".gguf",), "outlierlens.checkpoints.gguf:GGUFCheckpoint", patterns=("*.gguf",), magic=b"GGUF",
        config_inside=True,
    ),
    Format(
        "ONNX", (".onnx",), "outlierlens.checkpoints.onnx:OnnxCheckpoint", patterns=("*.onnx", "onnx/*.onnx"),
        extra="onnx",
    ),
    Format("NumPy", (".npz",), "outlierlens.checkpoints.arrays:NumpyCheckpoint"),
    Format("Flax", (".msgpack",), "outlierlens.checkpoints.arrays:FlaxCheckpoint", patterns=("flax_model.msgpack",)),
)  # fmt: skip


def native() -> tuple[Format, ...]:
    """The formats that transformers itself loads."""
    return tuple(row for row in FORMATS if row.file)


def suffixes() -> tuple[str, ...]:
    """Endings of weight files."""
    return tuple(suffix for row in FORMATS for suffix in row.suffixes)


def format_of(path: Path) -> Format | None:
    """The format of a file: by its first bytes where these tell, else by its name; None for no weight file."""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(max(len(row.magic) for row in FORMATS))
        for row in FORMATS:
            if row.magic and head.startswith(row.magic):
                return row
    for row in FORMATS:
        if (
            path.suffix in row.suffixes
            or path.name in row.patterns
            or (row.file and path.name.endswith(row.ending + INDEX))
        ):
            return row
    return None


def is_part(path: Path) -> bool:
    """Whether a file is by its name one of several that make a model."""
    return bool(re.search(r"-\d+-of-\d+\Z", path.stem)) and path.suffix in {row.ending for row in native()}


def open_file(path: Path, name: str) -> Checkpoint:
    """Open one weight file, or the index of several.

    Raises:
        BadFile: the file is of no known format, or malformed.
    """
    row = format_of(path)
    refuse_ctranslate2(path)
    if row is None:
        raise BadFile(f"{path}: unknown kind of weight file; known endings: {', '.join(suffixes())}")
    module, _, opener = row.opener.partition(":")
    given = {} if row.config_inside else {"config": config_beside(path)}
    opened: Checkpoint = getattr(importlib.import_module(module), opener)(path, name=name, **given)
    opened = by_usual_names(opened, str(path)) if isinstance(opened, SafetensorsCheckpoint) else opened
    if of_adapter(opened.tensors):
        opened.adapter_config = load_config(path.parent / CONFIG)
    return opened


def folders_around(path: Path) -> list[Path]:
    """Where what belongs to a weight file may be: beside it, or in the folder above (onnx/model.onnx, a run's step)."""
    return list(path.absolute().parents[: 3 if form_of(path) else 2])


def config_folder(path: Path) -> Path | None:
    """Where the config.json of a weight file is, or where there is none, Llama's params.json."""
    places = [place for name in ("config.json", PARAMS) for place in folders_around(path) if (place / name).is_file()]
    return next(iter(places), None)


def config_beside(path: Path) -> dict[str, Any]:
    """The content of the config.json of a weight file, or what its params.json says; {} where there is none."""
    place = config_folder(path) or path.parent
    return load_config(place / "config.json") or config_of_params(load_config(place / PARAMS))


def refuse_ctranslate2(path: Path) -> None:
    """Raise BadFile where `path` is a file of CTranslate2: a version, then the length and name of what is stored."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(128)
    length = int.from_bytes(head[4:6], "little")
    name = head[6 : 6 + length]
    if head[1:4] == b"\0\0\0" and name.endswith(b"Spec\0") and name[:-1].isalnum():
        raise BadFile(f"{path}: a model of CTranslate2, which is not read; name the model that it was converted from")


def open_directory(folder: Path, name: str) -> Checkpoint:
    """Open the model in a folder.

    Raises:
        BadFile: it holds none, or several of a kind without an index.
    """
    found = weight_file(folder)
    if found is None:
        raise no_weights(folder)
    return open_file(found, name)


def no_weights(folder: Path) -> BadFile:
    """The error for a folder without a model's weights: it holds an adapter, or its model lies in a folder inside."""
    refuse_ctranslate2(folder / "model.bin")
    if (folder / CONFIG).is_file():
        return no_model(str(folder), load_config(folder / CONFIG), str(folder))
    inside = [path.name for path in sorted(folder.glob("*/")) if any((path / row.file).is_file() for row in native())]
    lies = f"; a model lies in {', '.join(inside[:4])}: pass --model-args subfolder={inside[0]}" if inside else ""
    return BadFile(f"{folder}: holds no weight file ({', '.join(suffixes())}){lies}")


def weight_file(folder: Path) -> Path | None:
    """The one weight file in a folder, or the index of many; None where there is none.

    Raises:
        BadFile: there are several of a kind and no index.
    """
    for pattern in _patterns():
        found = _matches(folder, pattern)
        if found and form_of(found[0]):
            found = sorted({parts_of(file)[0] for file in found})
        if len(found) > 1:
            others = ", ".join(str(file.relative_to(folder)) for file in found[1:4])
            raise BadFile(
                f"{folder}: {len(found)} files match {pattern} and there is no index; name one of them as the model: "
                f"{found[0]} (or {others}{', …' if len(found) > 4 else ''})"
            )
        if found:
            return found[0]
    return None


def holds_weights(path: Path) -> bool:
    """Whether something is a weight file, or a folder with at least one."""
    if path.is_file():
        return format_of(path) is not None and not KEPT.fullmatch(path.name)
    return any(_matches(path, pattern) for pattern in _patterns())


def _matches(folder: Path, pattern: str) -> list[Path]:
    # A pipe would be waited for.
    return sorted(file for file in folder.glob(pattern) if file.is_file() and not KEPT.fullmatch(file.name))


def _patterns() -> Iterator[str]:
    """Patterns of weight files in a folder: names that say so of each format and trainer, then any name with its endings."""
    for row in FORMATS:
        yield from row.names
    for form in TRAINERS:
        yield from form.globs
    for row in FORMATS:
        yield from (f"*{suffix}" for suffix in row.suffixes if f"*{suffix}" not in row.names)


# --- safetensors -----------------------------------------------------------------------------------------------------

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_INDEX_BYTES = 200_000_000
T = TypeVar("T")

_OTHER_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "U16": 16, "U32": 32, "U64": 64, "C64": 64,
}  # fmt: skip


def header_length(first8: bytes, file_size: int, where: str) -> int:
    """Bytes of the JSON header that follow the first eight; raises BadFile when the file cannot hold them."""
    if len(first8) < 8:
        raise BadFile(f"{where}: {len(first8)} bytes is too short for a safetensors file; fetch it again")
    (length,) = struct.unpack("<Q", first8)
    if length > min(MAX_HEADER_BYTES, file_size - 8):
        raise BadFile(
            f"{where}: the header claims {length:,} bytes in a file of {file_size:,}; truncated or not safetensors"
        )
    return int(length)


def parse_header(raw: bytes, file_size: int, where: str) -> dict[str, TensorSpan]:
    """Every tensor of a safetensors header, with each length, type and offset checked against the file size."""
    header = parse_config(raw, f"{where} (header)", strict=True)
    if len(header) > MAX_TENSORS:
        raise BadFile(f"{where}: the header lists {len(header):,} tensors, more than {MAX_TENSORS:,}")
    base = 8 + len(raw)
    placed = {
        name: _entry(name, entry, base, file_size, where) for name, entry in header.items() if name != "__metadata__"
    }
    about = header.get("__metadata__") or {}
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
        raise BadFile(f"{where}: the header's __metadata__ is not a map of texts; the file is corrupt, fetch it again")
    previous_end, previous_name = base, ""
    for name, tensor in sorted(placed.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start < previous_end:
            raise BadFile(f"{where}: tensor {name!r} overlaps {previous_name!r}; the file is corrupt")
        if tensor.start > previous_end:
            raise _unclaimed(where, previous_end, tensor.start)
        previous_end, previous_name = tensor.end, name
    if previous_end != file_size:
        raise _unclaimed(where, previous_end, file_size)
    return placed


def _unclaimed(where: str, start: int, end: int) -> BadFile:
    """What the safetensors library refuses too: bytes that no tensor claims can hide anything."""
    return BadFile(f"{where}: bytes {start:,} to {end:,} belong to no tensor; the file is corrupt, fetch it again")


def _entry(name: str, entry: Any, base: int, file_size: int, where: str) -> TensorSpan:
    shape = entry.get("shape") if isinstance(entry, Mapping) else None
    offsets = entry.get("data_offsets") if isinstance(entry, Mapping) else None
    if (
        not isinstance(shape, list)
        or not isinstance(offsets, list)
        or len(offsets) != 2
        or not isinstance(entry.get("dtype"), str)
        or not is_shape(shape)
        or not all(type(n) is int and 0 <= n < 2**63 for n in offsets)
    ):
        raise BadFile(f"{where}: the entry of tensor {name!r} lacks a sound dtype, shape or data_offsets")
    dtype = entry["dtype"]
    start, end = base + offsets[0], base + offsets[1]
    if end < start or end > file_size:
        raise BadFile(f"{where}: tensor {name!r} lies outside the file (bytes {start:,} to {end:,} of {file_size:,})")
    info = TensorInfo(dtype, tuple(shape), end - start)
    # Types that we cannot widen may stand in the file; they only fail when asked for.
    bits = 8 * ITEM_BYTES.get(dtype, 0) or _OTHER_BITS.get(dtype)
    if bits is not None and info.size * bits != info.nbytes * 8:
        raise BadFile(f"{where}: tensor {name!r} declares {dtype}{shape} but holds {info.nbytes:,} bytes")
    return TensorSpan(info, start, end)


def shard_names(index: Mapping[str, Any], where: str) -> dict[str, str]:
    """{tensor name: shard file} of an index file; a shard must be a plain file name beside the index."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(f"{where}: has no weight_map; fetch it again")
    for name, shard in weight_map.items():
        if not is_plain_name(shard):
            raise BadFile(f"{where}: tensor {name!r} names the shard {shard!r}, which is not a plain file name")
    return weight_map


def files_of(path: Path) -> tuple[list[Path], dict[str, str]]:
    """The files of a model, and {tensor: file name} as promised: of an index its shards, of a weight file itself and {}."""
    if not path.name.endswith(INDEX):
        return [path], {}
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a shard index")
    wanted = shard_names(parse_config(path.read_bytes(), str(path)), str(path))
    return [path.parent / shard for shard in sorted(set(wanted.values()))], wanted


def gather(path: Path, name: str, tensors_of: Callable[[Path], Mapping[str, T]]) -> dict[str, tuple[Path, T]]:
    """{tensor: (file, what `tensors_of` says of it)} of the model `name`: of one weight file, or of all that an index names.

    Raises:
        BadFile: a file is missing, two hold a tensor of one name, or one lacks what the index promised of it.
    """
    found: dict[str, tuple[Path, T]] = {}
    files, promised = files_of(path)
    for file in files:
        if not file.is_file():
            raise BadFile(f"{file}: this shard is named by the index but missing; fetch the model again")
        for tensor, value in tensors_of(file).items():
            if tensor in found:
                raise BadFile(f"{file}: tensor {tensor!r} also stands in {found[tensor][0].name}")
            found[tensor] = (file, value)
    for tensor, shard in promised.items():
        if tensor not in found or found[tensor][0].name != shard:
            raise BadFile(f"{name}: the index places {tensor!r} in {shard}, which does not hold it")
    return found


class SafetensorsCheckpoint(LocalCheckpoint):
    """A local safetensors file, or a checkpoint in shards by its index, read through memory maps."""

    kind = "safetensors"

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        self.name, self.config = name, config
        self.total_bytes = self.bytes_read = 0
        self._files = gather(path, name, self._header)
        self.tensors = {tensor: place.info for tensor, (_, place) in self._files.items()}

    def _header(self, path: Path) -> dict[str, TensorSpan]:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = header_length(file.read(8), size, str(path))
            placed = parse_header(file.read(length), size, str(path))
        self.total_bytes += size
        self.bytes_read += 8 + length
        return placed


def write_header(tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> bytes:
    """The length word and JSON header for `tensors` ({name: (dtype, shape, nbytes)}), laid out in order.

    Lets a file be written tensor by tensor, never holding more than one in memory.
    """
    header, position = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


MAX_VOCABULARY_BYTES = 64 * 2**20


def folder_beside(model: str, subfolder: str = "") -> Path | None:
    """The folder in which a vocabulary of `model` could lie: that of a directory, file or sample; None for a hub id."""
    from outlierlens.checkpoints import samples

    path = Path(model)
    if samples.is_sample(model):
        return samples.directory(model)
    if path.is_dir():
        return path / subfolder
    return path.parent if path.is_file() else None


def token_texts(folder: Path | None, ids: Iterable[int]) -> dict[int, str]:
    """Texts of `ids` as the vocabulary stores them; those without one, or all without a readable file, are left out."""
    wanted = set(ids)
    if folder is None or not wanted:
        return {}
    readers = (
        ("tokenizer.json", _tokenizer),
        ("vocab.txt", _lines),
        ("vocab.json", lambda text: _pairs(json.loads(text))),
    )
    for name, read in readers:
        path = folder / name
        if path.is_file() and path.stat().st_size <= MAX_VOCABULARY_BYTES:
            try:
                return {number: token for token, number in read(path.read_text("utf-8")) if number in wanted}
            # Texts are a courtesy: a file that cannot be read costs them, not the measurement.
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
    return {}


def _tokenizer(text: str) -> Iterator[tuple[str, int]]:
    document = json.loads(text)
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):  # unigram models list [text, score] in the order of ids
        yield from ((str(entry[0]), number) for number, entry in enumerate(vocabulary))
    else:
        yield from _pairs(vocabulary)
    yield from ((str(added["content"]), int(added["id"])) for added in document.get("added_tokens") or ())


def _lines(text: str) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(text.split("\n")):
        yield line.removesuffix("\r"), number


def _pairs(vocabulary: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for token, number in vocabulary.items():
        yield str(token), int(number)
