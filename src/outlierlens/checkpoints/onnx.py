"""ONNX files as named tensors: exporters' anonymous weights get their module's name back, int8 becomes float32.

    with OnnxCheckpoint(Path("tagger.onnx"), name="tagger", config={}) as checkpoint:
        checkpoint.tensors["distilbert.transformer.layer.0.ffn.lin1.weight"].shape      # [out, in], as in torch

torch's exporter keeps the names of norms, biases and embeddings, but folds the transpose of a linear's weight into a
new constant ("onnx::MatMul_753"). The node that uses it still carries the module's path, and so gives the name back.
An ONNX file is one protobuf message, so opening it reads all of it except what lies in external data files.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from outlierlens.checkpoints.base import MAX_RANK, MAX_TENSORS, Checkpoint, TensorInfo, is_shape
from outlierlens.errors import BadFile, need

MAX_FILE_BYTES = 2**31  # protobuf's own limit; larger models keep their weights in external data

# ONNX type -> bytes of an element, its numpy type in `raw_data`, and the typed field that may hold it instead.
_STORED = {
    "FLOAT": ("<f4", "float_data"),
    "DOUBLE": ("<f8", "double_data"),
    "FLOAT16": ("<u2", "int32_data"),
    "BFLOAT16": ("<u2", "int32_data"),
    "INT8": ("<i1", "int32_data"),
    "UINT8": ("<u1", "int32_data"),
    "INT16": ("<i2", "int32_data"),
    "UINT16": ("<u2", "int32_data"),
    "INT32": ("<i4", "int32_data"),
    "INT64": ("<i8", "int64_data"),
    "UINT32": ("<u4", "uint64_data"),
    "UINT64": ("<u8", "uint64_data"),
    "BOOL": ("?", "int32_data"),
}
_LINEAR_NODE = re.compile(r"/(?P<module>.+)/(?:MatMul|Gemm)(?:_\d+)?(?:_quant)?\Z")
_ANONYMOUS = re.compile(r"onnx::|val_|/|\d+(?:_|\Z)")
_EMBEDDING_NODE = re.compile(r"/(?P<module>(?:.+/)?embeddings)/[^/]+\Z")


@dataclass(frozen=True)
class _Source:
    """How to compute one named tensor: a stored initializer, dequantized and transposed where told.

    `behind` is another one, appended along axis 1.
    """

    stored: str
    scale: str = ""
    zero_point: str = ""
    axis: int = 1
    block_size: int = 0
    transposed: bool = False
    behind: str = ""


class OnnxCheckpoint(Checkpoint):
    """One ONNX file, with external data files of the same folder where it names them."""

    kind = "onnx"
    remedy = "use the file as it was exported, without graph optimization"

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        """Parse and check the file; `config` is config.json's content, or {}.

        Raises:
            MissingExtra: onnx is not installed.
            BadFile: the file is malformed, or points outside its folder.
        """
        self.path, self.name = path, name
        onnx = need("onnx", "onnx", "reading ONNX files")
        graph = _parse(onnx, path)
        if len(graph.initializer) > MAX_TENSORS:
            raise BadFile(f"{path}: {len(graph.initializer):,} tensors, more than {MAX_TENSORS:,}")
        self._stored: dict[str, Any] = {}
        for key, tensor in [*((tensor.name, tensor) for tensor in graph.initializer), *_constants(graph)]:
            if key in self._stored:
                raise BadFile(f"{path}: tensor {key!r} is stored twice; export the model again")
            self._stored[key] = tensor
        self._placed = {key: _place(onnx, key, tensor, path) for key, tensor in self._stored.items()}
        outside = {place.file: place.file.stat().st_size for place in self._placed.values() if place.file is not None}
        self.outside = tuple(outside)  # external data files
        self.bytes_read = path.stat().st_size
        self.total_bytes = self.bytes_read + sum(outside.values())
        self._sources = _name_sources(graph, self._placed, str(path))
        self.tensors = {key: self._info(source) for key, source in self._sources.items()}
        self.config = dict(config)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield name, self._values(name, self._sources[name])

    def holds_floats(self, name: str) -> bool:
        source = self._sources[name]
        return bool(source.scale) or "FLOAT" in self._placed[source.stored].dtype

    def close(self) -> None:
        self._stored.clear()

    def _values(self, name: str, source: _Source) -> np.ndarray:
        values = self._decode(source.stored)
        if source.scale:
            scale = self._decode(source.scale)
            zero = self._decode(source.zero_point) if source.zero_point else np.zeros_like(scale)
            shape, where = values.shape, f"{self.path}: {name}"
            values = (values - _spread(zero, shape, source, where)) * _spread(scale, shape, source, where)
        if source.transposed:
            values = values.T
        if source.behind:
            values = np.concatenate([values, self._decode(source.behind)], axis=1)
        return np.ascontiguousarray(values, dtype=np.float64 if values.dtype == np.float64 else np.float32)

    def _decode(self, stored: str) -> np.ndarray:
        """Values of an initializer as float32 (float64 where stored so), int32 wider than any quantized type."""
        tensor, place = self._stored[stored], self._placed[stored]
        if place.dtype not in _STORED:
            raise BadFile(f"{self.path}: {stored}: cannot read type {place.dtype}; known types: {', '.join(_STORED)}")
        code, field = _STORED[place.dtype]
        if place.file is not None:
            with place.file.open("rb") as file:
                file.seek(place.offset)
                raw = np.frombuffer(file.read(place.nbytes), dtype=code)
            self.bytes_read += place.nbytes
        elif tensor.raw_data:
            raw = np.frombuffer(tensor.raw_data, dtype=code)
        else:
            raw = np.array(getattr(tensor, field)).astype(code)
        if place.dtype == "FLOAT16":
            raw = raw.view("<f2")
        elif place.dtype == "BFLOAT16":  # float32 with the lower 16 bits cut off
            raw = (raw.astype("<u4") << 16).view("<f4")
        return raw.astype(np.float64 if place.dtype == "DOUBLE" else np.float32).reshape(place.shape)

    def _info(self, source: _Source) -> TensorInfo:
        place = self._placed[source.stored]
        shape = place.shape[::-1] if source.transposed else place.shape
        if not source.behind:
            return TensorInfo(place.dtype, shape, place.nbytes)
        behind = self._placed[source.behind]
        shape = (shape[0], shape[1] + behind.shape[1], *shape[2:])
        return TensorInfo(place.dtype, shape, place.nbytes + behind.nbytes)


# --- the graph ---------------------------------------------------------------------------------------------------


def _parse(onnx: ModuleType, path: Path) -> Any:
    from google.protobuf.message import DecodeError

    size = path.stat().st_size
    if size >= MAX_FILE_BYTES:
        raise BadFile(f"{path}: {size:,} bytes is more than an ONNX file can have (2 GB); is it its external data?")
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except (DecodeError, RecursionError, ValueError) as error:
        raise BadFile(f"{path}: not a readable ONNX file ({type(error).__name__}); export or fetch it again") from None
    if not model.HasField("graph") or not model.graph.node:
        raise BadFile(f"{path}: holds no ONNX graph; export or fetch it again")
    if any(isinstance(text, bytes) for text in _names(model.graph)):  # what the library gives for what is no UTF-8
        raise BadFile(f"{path}: a name in it is no UTF-8; export or fetch it again")
    return model.graph


def _names(graph: Any) -> Iterator[str | bytes]:
    """Every name that is read."""
    for node in graph.node:
        yield from (node.name, node.op_type, *node.input, *node.output)
    for tensor in (*graph.initializer, *(tensor for _, tensor in _constants(graph))):
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))


def _constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of the graph's Constant nodes; some exporters keep weights and scales there."""
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.HasField("t"):
                    yield node.output[0], attribute.t


def _name_sources(graph: Any, placed: dict[str, "_TensorSpan"], where: str) -> dict[str, _Source]:
    """{parameter name: how to compute it} from the initializers and the nodes that use them."""
    values = {name: _Source(name) for name in placed}
    helpers: set[str] = set()  # scales and zero points, which are no parameters
    hidden: set[str] = set()  # stored under a name that a better one replaces
    named: dict[str, _Source] = {}
    for node in graph.node:  # the format demands that nodes stand in the order of computation
        if node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            helpers |= set(node.input[1:3])
        if node.op_type == "Identity" and len(node.input) == 1 and node.input[0] in values and node.output:
            # The exporter merges equal tensors (fresh norms, tied weights) and names the copies by such nodes.
            values[node.output[0]] = named[node.output[0]] = values[node.input[0]]
        elif node.op_type == "DequantizeLinear" and node.output and node.input and node.input[0] in placed:
            source = _dequantized(node, placed, where)
            values[node.output[0]] = source
            hidden.add(source.stored)
            named[source.stored.removesuffix("_quantized")] = source
        elif node.op_type in ("MatMul", "Gemm", "MatMulInteger") and len(node.input) > 1:
            weight = values.get(node.input[1])
            if node.op_type == "MatMulInteger" and weight is not None:
                weight = _dynamic(node, weight.stored, placed)
                helpers |= {weight.scale, weight.zero_point}
                hidden.add(weight.stored)
                named[weight.stored.removesuffix("_quantized")] = weight
            path = _LINEAR_NODE.match(node.name)
            if weight is None or path is None or not _ANONYMOUS.match(weight.stored):
                continue
            parameter = f"{_module(path['module'])}.weight"
            already_out_in = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
            if parameter not in placed and len(placed[weight.stored].shape) == 2:
                hidden.add(weight.stored)
                named.pop(weight.stored.removesuffix("_quantized"), None)
                named[parameter] = _Source(**{**vars(weight), "transposed": not already_out_in})
    for name, source in _positions(graph, placed):
        named.setdefault(name, source)
        hidden |= {source.stored, source.behind}
    # Most constants of nodes are shapes and indices; they count only under a parameter's name.
    plain = [tensor.name for tensor in graph.initializer if tensor.name not in hidden | helpers]
    return {name: _Source(name) for name in plain} | named


def _module(path: str) -> str:
    """The module of a node: "a.0.b" for "a/a.0/b", where a Sequential stands before its parts, which repeat its name."""
    words = path.split("/")
    behind = [*words[1:], ""]
    return ".".join(word for word, after in zip(words, behind, strict=True) if not after.startswith(f"{word}."))


def _positions(graph: Any, placed: dict[str, "_TensorSpan"]) -> Iterator[tuple[str, _Source]]:
    """Position tables of models of pictures, which the exporter cuts in two: [CLS]'s row, and the patches' to interpolate."""
    tables: dict[str, dict[str, _TensorSpan]] = {}  # module -> {stored name: where}
    for node in graph.node:
        found = _EMBEDDING_NODE.match(node.name)
        if found is None:
            continue
        for name in node.input:
            if name in placed and _ANONYMOUS.match(name) and len(placed[name].shape) == 3:
                tables.setdefault(found["module"], {})[name] = placed[name]
    for module, parts in tables.items():
        first, *rest = sorted(parts, key=lambda name: parts[name].shape[1])
        if [parts[first].shape[:2], *(parts[name].shape[::2] for name in rest)] == [(1, 1), (1, parts[first].shape[2])]:
            yield f"{_module(module)}.position_embeddings", _Source(first, behind=rest[0])


def _dequantized(node: Any, placed: dict[str, "_TensorSpan"], where: str) -> _Source:
    settings = {attribute.name: attribute.i for attribute in node.attribute}
    inputs = [*node.input, "", ""][:3]
    for helper in inputs[1:]:
        if helper and helper not in placed:
            raise BadFile(f"{where}: the scale or zero point {helper!r} of {inputs[0]!r} is not stored in the file")
    if not inputs[1]:
        raise BadFile(f"{where}: {inputs[0]!r} is quantized without a scale; export the model again")
    return _Source(inputs[0], inputs[1], inputs[2], settings.get("axis", 1), settings.get("block_size", 0))


def _dynamic(node: Any, stored: str, placed: dict[str, "_TensorSpan"]) -> _Source:
    """Weights of dynamic quantization: the scale is multiplied in later, and found by onnxruntime's naming."""
    scale = stored.removesuffix("_quantized") + "_scale"
    zero = node.input[3] if len(node.input) > 3 and node.input[3] in placed else ""
    return _Source(stored, scale, zero) if scale in placed else _Source(stored)


def _spread(values: np.ndarray, shape: tuple[int, ...], source: _Source, where: str) -> np.ndarray:
    """Scales or zero points in a shape that broadcasts over the tensor: one, one an index of an axis, or blocks."""
    if values.size == 1:
        return values.reshape(())
    axis = source.axis + len(shape) if source.axis < 0 else source.axis
    if 0 <= axis < len(shape):
        if source.block_size > 0 and values.ndim == len(shape):
            blocks = -(-shape[axis] // source.block_size)
            if values.shape == (*shape[:axis], blocks, *shape[axis + 1 :]):
                return values.take(np.arange(shape[axis]) // source.block_size, axis=axis)
        elif values.shape == (shape[axis],):
            return values.reshape([-1 if n == axis else 1 for n in range(len(shape))])
    raise BadFile(f"{where}: scales of shape {values.shape} do not fit values of shape {shape} along axis {axis}")


# --- where the bytes are -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TensorSpan:
    """A checked tensor: `file` is None where its bytes stand in the ONNX file itself."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path | None = None
    offset: int = 0


def _place(onnx: ModuleType, name: str, tensor: Any, path: Path) -> _TensorSpan:
    """Check a tensor's declaration against the bytes that are there."""
    where = f"{path}: tensor {name!r}"
    known = {number: word for word, number in onnx.TensorProto.DataType.items()}
    dtype = known.get(tensor.data_type, f"type {tensor.data_type}")
    shape = tuple(tensor.dims)
    if not is_shape(shape):
        raise BadFile(f"{where} declares the shape {list(shape)[: MAX_RANK + 1]}; the file is corrupt")
    if dtype not in _STORED:  # fails only when asked for
        return _TensorSpan(dtype, shape, len(tensor.raw_data))
    code, field = _STORED[dtype]
    nbytes = math.prod(shape) * np.dtype(code).itemsize
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _place_outside(tensor, path, _TensorSpan(dtype, shape, nbytes), where)
    held = len(tensor.raw_data) if tensor.raw_data else len(getattr(tensor, field)) * np.dtype(code).itemsize
    if held != nbytes:
        raise BadFile(f"{where} declares {dtype}{list(shape)}, {nbytes:,} bytes, but holds {held:,}; truncated?")
    return _TensorSpan(dtype, shape, nbytes)


def _place_outside(tensor: Any, path: Path, place: _TensorSpan, where: str) -> _TensorSpan:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    folder = path.parent.resolve()
    plain = location and not Path(location).is_absolute() and not set(location) & set("\\:\0")
    if not plain or ".." in Path(location).parts:
        raise BadFile(f"{where} points to external data {location!r}, outside the model's folder; refused")
    file = (folder / location).resolve()
    if not file.is_relative_to(folder):
        raise BadFile(
            f"{where} points to {location!r}, a link out of the model's folder; refused; "
            "copy the model and its data into one folder"
        )
    if not file.is_file():
        raise BadFile(f"{where} needs the external data {location!r}, which is missing in {folder}; fetch it too")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", place.nbytes))
    except ValueError:
        raise BadFile(f"{where}: offset or length of its external data is no number; the file is corrupt") from None
    if offset < 0 or length != place.nbytes or offset + length > file.stat().st_size:
        raise BadFile(
            f"{where} needs {place.nbytes:,} bytes, but its external data is declared as bytes {offset:,} to "
            f"{offset + length:,} of {location!r}, which has {file.stat().st_size:,}; truncated?"
        )
    return _TensorSpan(place.dtype, place.shape, place.nbytes, file, offset)
