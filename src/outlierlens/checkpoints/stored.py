"""What a stored tensor is: a weight, codes that are multiplied out when they are read, or packed in a way that is not read.

    with as_weights(source) as checkpoint:                              # what `open_checkpoint` gives
        checkpoint.tensors["model.layers.0.mlp.down_proj.weight"]       # the shape of the weight, however it is stored
        checkpoint.packed_by("model.layers.0.mlp.down_proj.weight")     # "GPTQ": `read` refuses it, by this name

Scales are not weights, so they are not listed. What compilers and trainers put around the names is taken off. A loaded model's
parameters are a checkpoint too (`LiveCheckpoint`), so that the rules run on live weights.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.checkpoints.adapter import CONFIG, AdaptedCheckpoint, Adapter, no_model
from outlierlens.checkpoints.base import (
    ITEM_BYTES,
    Checkpoint,
    LazyTensors,
    TensorInfo,
    is_shape,
    parse_config,
)
from outlierlens.checkpoints.pieces import WORDS
from outlierlens.errors import BadFile

if TYPE_CHECKING:
    import torch
    from torch import nn

# Modules that compilers and trainers put around others, and what they put before all names.
_AROUND = re.compile(
    r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module|base_layer|original_module)\."
)
_BEFORE = ("module.", "base_model.model.", "language_model.", "model.")
# How the names of scales end, behind the name of the weight; and of what else belongs to the codes of a module.
_PART = re.compile(
    r"(.+?)(_scale_inv|_scale_2|_global_scale|_scale|_scales|_zero_point|_g_idx|_shape"
    r"|\.(?:nested_)?(?:absmax|quant_map)|\.quant_state\.bitsandbytes__\w+)\Z"
)
_OF_MODULE = re.compile(r"(.+\.)(SCB|weight_format|(?:input|output|activation)_\w*scale\w*)\Z")
_SCALES = ("_scale_inv", "_scale", "_scales", ".absmax", "SCB")
_CODES = ("", "_packed", "_blocks")  # how the names of codes end
# What a module holds in place of a weight -> the quantizers that write it.
_FOREIGN = {"qweight": "GPTQ or AWQ", "W_q": "HQQ", "codebooks": "AQLM", "weight._data": "Quanto"}
_TYPE = "type "
_ADAPTED = re.compile(r"(.+?)\.(?:base_layer|original_module)\.")
_NAMED_FREELY = (
    "safetensors",
    "bin",
    "hub",
    "dcp",
    "npz",
    "flax",
)  # kinds whose files hold whatever a program put into them
_QUANTIZERS = {"gptq": "GPTQ", "awq": "AWQ", "hqq": "HQQ", "aqlm": "AQLM"}
_IN_FOREIGN = re.compile(rf"(.+)\.({'|'.join(map(re.escape, _FOREIGN))})\Z")
# Quantizers whose integers and 8-bit floats are multiplied by scales of these names (`quantization_config.quant_method`).
_READ = ("", "fp8", "blockwise_int8", "fbgemm_fp8", "compressed-tensors", "modelopt", "bitsandbytes", "mxfp4")
# The values of E2M1 (OCP microscaling formats 1.0), by their four bits.
_FP4 = np.array([sign * size for sign in (1, -1) for size in (0, 0.5, 1, 1.5, 2, 3, 4, 6)], np.float32)
# Rows or columns per scale, likeliest first, where the config does not say.
_BLOCKS = (128, 64, 32, 16, 256, 512)


def of_adapter(names: Collection[str]) -> list[str]:
    """The tensors of a saved PeftModel that belong to its adapter: what stands beside a weight of the base; [] of others."""
    around = {found[1] for name in names if (found := _ADAPTED.match(name))}
    if not around and not any(".lora_" in name for name in names):
        return []

    def belongs(name: str) -> bool:
        words = name.split(".")
        return ".lora_" in name or any(
            ".".join(words[:end]) in around and words[end] not in ("base_layer", "original_module")
            for end in range(1, len(words))
        )

    return [name for name in names if belongs(name)]


def as_weights(source: Checkpoint) -> Checkpoint:
    """`source` by its weights; itself where its format has names and codes of its own, which its reader undoes.

    Of a saved PeftModel those with its adapter, where adapter_config.json is beside it.

    Raises:
        BadFile: the adapter is more than plain LoRA.
    """
    if source.kind not in _NAMED_FREELY:
        return source
    weights = Weights(source)
    own = of_adapter(source.tensors)
    if not own or not source.adapter_config:
        return weights
    return AdaptedCheckpoint(weights, Adapter(source, source.adapter_config, source.name, own))


def plain_names(names: Collection[str], config: Mapping[str, Any]) -> dict[str, str]:
    """{name without what stands around it: stored name}; as stored where two would have one name."""
    plain = {_AROUND.sub("", name): name for name in names}
    if len(plain) < len(names):
        return {name: name for name in names}
    # Models of pictures and texts have a language_model, and many models have a model: only a second one is around them.
    known = tuple(one for one in _BEFORE if one != "language_model." or "text_config" not in config)
    inside = tuple(f"model.{one}" for one in known)
    while plain and (before := next((one for one in known if all(name.startswith(one) for name in plain)), "")):
        if before == "model." and not any(name.startswith(inside) for name in plain):
            break
        plain = {name.removeprefix(before): stored for name, stored in plain.items()}
    return plain


class Weights(Checkpoint):
    """The weights of another checkpoint, under their plain names.

    Attributes:
        source: that checkpoint; what is not found here is asked of it.
        is_renamed: whether something stood around the names.
    """

    def __init__(self, source: Checkpoint, *, rename: bool = True):
        """`rename` False keeps the stored names; raises BadFile for an adapter without its base."""
        self.source, self.name, self.kind = source, source.name, source.kind
        self.config, self.notes, self.outside, self.remedy = source.config, source.notes, source.outside, source.remedy
        own = dict.fromkeys(of_adapter(source.tensors) if rename else ())
        names = [name for name in source.tensors if name not in own]
        module = next((name for name in own if ".lora_" in name), "").partition("lora_")[0]
        if module and not any(name.startswith(module) for name in names):
            hub = self.name if self.kind == "hub" else ""
            raise no_model(self.name, source.adapter_config, "adapter" if hub else str(Path(self.name).parent), hub)
        if own and not source.adapter_config:
            self.notes = (
                f"the base alone: {len(own)} tensors of an adapter were not looked at, for {CONFIG} is not beside them",
                *self.notes,
            )
        plain = plain_names(names, self.config) if rename else {name: name for name in names}
        self.is_renamed = any(name != stored for name, stored in plain.items())
        told = self.config.get("quantization_config")
        self._told: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        self.method = str(self._told.get("quant_method") or "").lower()
        self._parts, self._foreign, hidden = _sort(plain)
        self._stored = {name: stored for name, stored in plain.items() if name not in hidden}
        self._stored |= {name: parts["codes"] for name, parts in self._parts.items()} | self._foreign
        self.tensors = LazyTensors(self._stored, self._info)
        self._looked: dict[str, _CodedWeight | str] = {}
        self._multiplied: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["source"], name)

    @property
    def coded(self) -> tuple[str, ...]:
        """Names of the weights that are multiplied out of codes."""
        return tuple(name for name in self._parts if isinstance(self._look(name), _CodedWeight))

    def packed_by(self, name: str) -> str:
        looked = self._look(name)
        return looked if isinstance(looked, str) else ""

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        coded, plain = {}, {}
        for name in dict.fromkeys(names):
            if one := self._readable(name):
                coded[name] = one
            else:
                plain[self._stored.get(name, name)] = name
        for stored, values in self.source.read(plain):
            yield plain[stored], values
        for name, one in coded.items():
            yield name, next(one.rows(math.prod(one.shape[:-1]))).reshape(one.shape)

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        coded = self._readable(name)
        return coded.rows(n_rows) if coded else self.source.read_rows(self._stored[name], n_rows)

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        coded = self._readable(name)
        return coded.take(rows) if coded else self.source.take_rows(self._stored[name], rows)

    def close(self) -> None:
        self.source.close()

    def header_digest(self) -> str:
        return self.source.header_digest()

    def _info(self, name: str) -> TensorInfo:
        if coded := self._readable(name):
            nbytes = sum(self.source.tensors[part].nbytes for part in coded.parts.values())
            return TensorInfo(coded.scheme, coded.shape, nbytes)
        return self.source.tensors[self._stored[name]]

    def _readable(self, name: str) -> "_CodedWeight | None":
        """How a tensor is multiplied out; None for one that is stored as it is; raises BadFile for a packed one."""
        looked = self._look(name)
        if isinstance(looked, _CodedWeight):
            if looked.scheme not in self._multiplied:
                self._multiplied[looked.scheme] = None
                self.notes = (*self.notes, f"weights stored as {looked.scheme} were multiplied out")
            return looked
        if looked and not looked.startswith(_TYPE):  # `source` says it of a type that it does not know
            raise BadFile(
                f"{self.name}: {name} is packed by {looked}, which is not read; name the model that was quantized, in full "
                "precision"
            )
        return None

    def _look(self, name: str) -> "_CodedWeight | str":
        """How a tensor is multiplied out, what packed it, or "" where it is stored as it is."""
        if name not in self._looked:
            self._looked[name] = self._decide(name) if name in self._stored else ""
        return self._looked[name]

    def _decide(self, name: str) -> "_CodedWeight | str":
        by = _QUANTIZERS.get(self.method, self.method) or "a quantizer that its config does not name"
        if name in self._foreign:
            return by if self.method else _FOREIGN[self._foreign[name].removeprefix(name.removesuffix("weight"))]
        stored, parts = self._stored[name], self._parts.get(name)
        info, dtype = self.source.tensors[stored], word_of(self.source, stored)
        if self.kind in ("safetensors", "hub") and dtype not in ITEM_BYTES:
            return f"{_TYPE}{dtype}"
        if self.source.holds_floats(stored) and not dtype.startswith("F8"):
            return ""
        if parts is None:
            # Positions and masks are whole numbers too, and all weights may be 8-bit floats without scales.
            codes = name.endswith("weight") and info.shape and (self.method or not dtype.startswith("F8"))
            return by if codes else ""
        state = next((role for role in parts if role.startswith(".quant_state")), "")
        if state and {".absmax", ".quant_map"} <= parts.keys():
            return _FourBit(self.source, parts, state)
        if ".absmax" in parts:
            return f"{by}, in four bits without their quant_state"
        shape_of = {role: self.source.tensors[part].shape for role, part in parts.items()}
        if dtype == "U8" and shape_of["codes"] == (*shape_of.get("_scales", ()), 16):
            return _Experts(self.source, parts)
        scale = next((role for role in ("_scale_inv", "_scale", "SCB") if role in parts), "")
        if not scale or self.method not in _READ or "_g_idx" in parts:
            return by
        if dtype == "U8":
            powers = word_of(self.source, parts[scale]) in ("U8", "F8_E8M0")
            per = 32 if powers else 16
            whole = (powers and stored.endswith("_packed")) or {"_scale_2", "_global_scale"} & parts.keys()
            fits = shape_of[scale] == (*info.shape[:-1], 2 * info.shape[-1] // per)
            return (
                _ScaledCodes(self.source, parts, scale, scheme="MXFP4" if powers else "NVFP4") if whole and fits else by
            )
        if dtype != "I8" and not dtype.startswith("F8"):
            return by
        # What `fp8` stores as int8 are two of E2M1 per byte (DeepSeek's experts).
        scheme = "MXFP4" if dtype == "I8" and self.method == "fp8" else f"{dtype} × scale"
        return _ScaledCodes(self.source, parts, scale, blocks=self._told.get("weight_block_size"), scheme=scheme)


def word_of(source: Checkpoint, name: str) -> str:
    """The type of a stored tensor, in safetensors' word for bytes."""
    dtype = source.tensors[name].dtype
    return WORDS.get(dtype, dtype)


def _sort(plain: Mapping[str, str]) -> tuple[dict[str, dict[str, str]], dict[str, str], set[str]]:
    """Stored names of codes with scales {weight: {role: name}}, of other codes {weight: name}; plain names of all parts."""
    parts: dict[str, dict[str, str]] = {}
    foreign: dict[str, str] = {}
    for name in plain:
        if found := _IN_FOREIGN.fullmatch(name):
            foreign[f"{found[1]}.weight"] = name
        elif found := _OF_MODULE.fullmatch(name) or _PART.fullmatch(name):
            weight = found[1] + ("weight" if found[1].endswith(".") else "")
            if codes := next((weight + end for end in _CODES if weight + end in plain), ""):
                parts.setdefault(weight, {"codes": codes})[found[2]] = name
    parts = {weight: roles for weight, roles in parts.items() if any(role in roles for role in _SCALES)}
    modules = tuple(weight.removesuffix("weight") for weight in foreign)
    hidden = {name for name in plain if modules and name.startswith(modules) and not name.endswith(".bias")}
    hidden |= {part for roles in parts.values() for part in roles.values()}
    stored = {weight: {role: plain[part] for role, part in roles.items()} for weight, roles in parts.items()}
    return stored, {weight: plain[name] for weight, name in foreign.items()}, hidden


class _CodedWeight(ABC):
    """A weight that is stored as codes with scales.

    Attributes:
        scheme: what holds it, in a word. shape: of the weight. parts: {role: stored name}, that of the codes being "codes".
    """

    scheme: str
    shape: tuple[int, ...]

    def __init__(self, source: Checkpoint, parts: Mapping[str, str]):
        self.source, self.parts = source, parts

    @abstractmethod
    def rows(self, n_rows: int) -> Iterator[np.ndarray]:
        """As `Checkpoint.read_rows`."""

    def take(self, rows: Sequence[int]) -> np.ndarray:
        """As `Checkpoint.take_rows`."""
        return next(self.rows(math.prod(self.shape[:-1])))[list(rows)]

    def part(self, role: str) -> np.ndarray:
        """The values of a part; of scales that are bytes, which are exponents (E8M0, 255 is NaN), the powers of two."""
        ((_, values),) = self.source.read([self.parts[role]])
        powers = role in ("_scale", "_scales") and word_of(self.source, self.parts[role]) == "U8"
        return np.where(values < 255, np.exp2(np.minimum(values, 254) - 127), np.nan) if powers else values

    def unfit(self, role: str) -> BadFile:
        """The error for a part that does not fit the codes."""
        name, codes = self.parts[role], self.parts["codes"]
        shapes = [list(self.source.tensors[one].shape) for one in (name, codes)]
        return BadFile(
            f"{self.source.name}: {name} {shapes[0]} does not fit {codes} {shapes[1]}; fetch the model again"
        )


class _ScaledCodes(_CodedWeight):
    """Codes of a byte, or two of half a byte, with one scale for each row, block or tensor."""

    def __init__(self, source: Checkpoint, parts: Mapping[str, str], scale: str, *, scheme: str, blocks: Any = None):
        super().__init__(source, parts)
        self.scale, self.scheme, self.halves = scale, scheme, scheme.endswith("FP4")
        self.blocks = blocks if isinstance(blocks, list) and all(type(n) is int and n > 0 for n in blocks) else ()
        *rows, width = source.tensors[parts["codes"]].shape
        self.shape = (*rows, width * (2 if self.halves else 1))

    def rows(self, n_rows: int) -> Iterator[np.ndarray]:
        factors, start = self._factors(), 0
        for codes in self.source.read_rows(self.parts["codes"], n_rows):
            yield self._values(codes, range(start, start + len(codes)), *factors)
            start += len(codes)

    def take(self, rows: Sequence[int]) -> np.ndarray:
        return self._values(self.source.take_rows(self.parts["codes"], rows), rows, *self._factors())

    @np.errstate(divide="ignore", invalid="ignore")
    def _factors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Scales and zero points by row and column of their own, and which of these a weight's row and column has."""
        scale = self.part(self.scale)
        if self.scale == "SCB":
            if "weight_format" in self.parts and self.part("weight_format").any():
                raise BadFile(f"{self.source.name}: {self.parts['codes']} is laid out for a GPU; save it in rows")
            scale = scale / np.float32(127)
        if "_scale_2" in self.parts:
            scale = scale * self.part("_scale_2")
        if "_global_scale" in self.parts:
            scale = scale / self.part("_global_scale")
        rank = len(self.shape)
        own = (1,) * rank if scale.size == 1 else scale.shape + (1,) * (rank - scale.ndim)
        if len(own) != rank:
            raise self.unfit(self.scale)
        *rows, column = (self._index(axis, own) for axis in range(rank))
        row = np.ravel_multi_index(np.meshgrid(*rows, indexing="ij"), own[:-1]).ravel()
        zero = self.part("_zero_point") if "_zero_point" in self.parts else np.zeros_like(scale)
        if zero.size != scale.size:
            raise self.unfit("_zero_point")
        return scale.reshape(-1, own[-1]), zero.reshape(-1, own[-1]), row, column

    def _index(self, axis: int, own: tuple[int, ...]) -> np.ndarray:
        """Which scale each index of an axis has."""
        n, n_scales = self.shape[axis], own[axis]
        if n_scales in (1, n):
            return np.arange(n) // (n // n_scales)
        told = self.blocks[axis - len(own) :][:1]
        fits = [size for size in (*told, *_BLOCKS, n // n_scales) if size and -(-n // size) == n_scales]
        if not fits:
            raise self.unfit(self.scale)
        return np.arange(n) // fits[0]

    @np.errstate(invalid="ignore", over="ignore")
    def _values(
        self, codes: np.ndarray, rows: Sequence[int], scale: np.ndarray, zero: np.ndarray, row: np.ndarray, column: Any
    ) -> np.ndarray:
        values, of = _halves(codes) if self.halves else codes, row[list(rows)]
        if zero.any():
            values = values - zero[of][:, column]
        return np.asarray(values * scale[of][:, column], np.float32)


class _Experts(_CodedWeight):
    """MXFP4 as gpt-oss stores it: [expert, out, block, byte] of weights [expert, in, out]."""

    scheme = "MXFP4"

    def __init__(self, source: Checkpoint, parts: Mapping[str, str]):
        super().__init__(source, parts)
        *experts, n_out, n_blocks, n_bytes = source.tensors[parts["codes"]].shape
        self.shape = (*experts, 2 * n_bytes * n_blocks, n_out)

    def rows(self, n_rows: int) -> Iterator[np.ndarray]:
        n_in, n_out = self.shape[-2:]
        held = np.empty((0, n_out), np.float32)
        scales = self.part("_scales").reshape(-1, n_out * n_in // 32, 1)
        experts = self.source.read_rows(self.parts["codes"], n_out * n_in // 32)
        for codes, scale in zip(experts, scales, strict=True):
            held = np.concatenate([held, (_halves(codes) * scale).reshape(n_out, n_in).T])
            while len(held) >= n_rows:
                yield held[:n_rows]
                held = held[n_rows:]
        if len(held):
            yield held


class _FourBit(_CodedWeight):
    """bitsandbytes in four bits: a table of 16 values, times the largest |w| of each block of the flat weight."""

    def __init__(self, source: Checkpoint, parts: Mapping[str, str], state: str):
        super().__init__(source, parts)
        told = parse_config(self.part(state).astype(np.uint8).tobytes(), f"{source.name}: {parts[state]}")
        shape: Any = told.get("shape")
        self.block: Any = told.get("blocksize")
        self.nested: Any = told.get("nested_blocksize", 1)
        self.offset: Any = told.get("nested_offset", 0.0)
        counts = all(type(n) is int and n > 0 for n in (self.block, self.nested)) and isinstance(
            self.offset, int | float
        )
        if not counts or not isinstance(shape, list) or not shape or not is_shape(shape):
            raise BadFile(f"{source.name}: {parts[state]} has no sound shape and blocksize; fetch the model again")
        self.shape = tuple(shape)
        self.scheme = str(told.get("quant_type", "nf4")).upper()
        if source.tensors[parts["codes"]].size != -(-math.prod(shape) // 2):
            raise self.unfit("codes")

    def rows(self, n_rows: int) -> Iterator[np.ndarray]:
        largest, table = self.part(".absmax").ravel(), self.part(".quant_map").ravel()
        if ".nested_absmax" in self.parts:
            if ".nested_quant_map" not in self.parts:
                raise self.unfit(".nested_absmax")
            outer, table_of_scales = self.part(".nested_absmax").ravel(), self.part(".nested_quant_map").ravel()
            if len(outer) != -(-len(largest) // self.nested) or len(table_of_scales) != 256:
                raise self.unfit(".nested_absmax")
            outer = outer[np.arange(len(largest)) // self.nested]
            largest = table_of_scales[largest.astype(np.uint8)] * outer + np.float32(self.offset)
        n_values = math.prod(self.shape)
        if len(table) != 16 or len(largest) != -(-n_values // self.block):
            raise self.unfit(".absmax")
        codes = self.part("codes").astype(np.uint8).ravel()
        values = table[np.stack([codes >> 4, codes & 15], axis=-1).ravel()[:n_values]]
        rows = (values * largest[np.arange(n_values) // self.block]).reshape(-1, self.shape[-1])
        for start in range(0, len(rows), n_rows):
            yield rows[start : start + n_rows]


def _halves(codes: np.ndarray) -> np.ndarray:
    """The values [row, 2 · column] of bytes that hold two of E2M1, the lower bits first."""
    whole = codes.astype(np.int16).astype(np.uint8)
    return _FP4[np.stack([whole & 15, whole >> 4], axis=-1).reshape(len(whole), -1)]


# --- live models -----------------------------------------------------------------------------------------------------


class LiveCheckpoint(Weights):
    """Named parameters of a model in memory; values are copied to float32 as they are read."""

    def __init__(self, model: "nn.Module", *, name: str, config: dict[str, Any]):
        super().__init__(_Parameters(model, name=name, config=config), rename=False)


class _Parameters(Checkpoint):
    """The parameters as they are, codes among them."""

    kind = "live"

    def __init__(self, model: "nn.Module", *, name: str, config: dict[str, Any]):
        from outlierlens.architectures import live_parameters, own_parameters

        self.name, self.config, self.bytes_read = name, config, 0
        self._held = dict(live_parameters(model))
        self.total_bytes = sum(one.nbytes for one in own_parameters(model).values())
        self.tensors = {
            name: TensorInfo(str(value.dtype).removeprefix("torch."), tuple(value.shape), value.nbytes)
            for name, value in self._held.items()
        }

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield name, self._values(self._there(name))

    def _there(self, name: str) -> "torch.Tensor":
        from outlierlens.architectures.live import in_memory

        return in_memory(self._held[name])

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        held = self._there(name)
        rows = held.reshape(-1, held.shape[-1])
        for start in range(0, len(rows), n_rows):
            yield self._values(rows[start : start + n_rows])

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        held = self._there(name)
        return self._values(held.reshape(-1, held.shape[-1])[list(rows)])

    def _values(self, part: "torch.Tensor") -> np.ndarray:
        self.bytes_read += part.nbytes
        values: np.ndarray = part.detach().float().cpu().numpy()
        return values
