"""The weights of a model that is read block by block: where they lie in the files, and one block of them in memory at a time.

    reader = BlockReader(open_checkpoint(folder, as_stored=True), device)
    model, info = reader(LlamaForCausalLM, config, torch.float32, {})     # weights of blocks are `Away`
    weights = BlockWeights(model, reader, folder)
    with weights.reading():
        weights.fill("model.layers.3")                    # as transformers itself loads them; the block before is gone
        weights.free()

A door is a module whose weights are read when it runs: each block (the members of the outermost ModuleLists), the embeddings of
tokens, the head, and other large tables. Everything else stays in memory. No name of a family stands here: transformers gives
names, ties, buffers and packed experts.
"""

import hashlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import nn
from transformers import conversion_mapping, core_model_loading, modeling_utils

from outlierlens.checkpoints.base import Checkpoint, LocalCheckpoint, PlacedCheckpoint
from outlierlens.checkpoints.formats import SafetensorsCheckpoint
from outlierlens.checkpoints.hub import HubCheckpoint
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.changes import NEEDS_WHOLE, edited_copy
from outlierlens.models.devices import linear
from outlierlens.models.folder import input_table
from outlierlens.models.model_class import check_values

TIMED = 256  # tokens of a product that is timed
LARGE = 2**22  # weights of an embedding or a linear outside the blocks that is a door too: 16 MB in float32

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class Private:
    """What this package uses of transformers that is not documented there, all of it."""

    NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"  # tensors are cast one by one: four threads hold four more

    @staticmethod
    def targets(model: Any, keys: Any) -> dict[str, str]:
        """{key of a file: name in the model}, as a load would rename it; the name that packed experts have together."""
        mapping, shapes = conversion_mapping.get_model_conversion_mapping(model), model.state_dict()
        renamings = [one for one in mapping if isinstance(one, core_model_loading.WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, core_model_loading.WeightConverter)]
        rename, prefix = core_model_loading.rename_source_key, model.base_model_prefix
        found = {key: rename(key, renamings, converters, prefix, shapes)[0] for key in sorted(keys)}
        return {
            key: rename(key, [], [], prefix, shapes)[0] if target not in shapes and key in shapes else target
            for key, target in found.items()
        }

    @staticmethod
    def loading(model: Any, dtype: torch.dtype, device: torch.device) -> Any:
        """How `load` casts and places what it reads."""
        mapping: Any = conversion_mapping.get_model_conversion_mapping(model)
        return modeling_utils.LoadStateDictConfig(
            dtype=dtype, dtype_plan=model._get_dtype_plan(dtype), device_map={"": device}, weight_mapping=mapping
        )

    @classmethod
    def load(cls, model: Any, tensors: dict[str, torch.Tensor], how: Any) -> None:
        """Put tensors of a file into the model, renamed, packed and cast as in an ordinary load."""
        before = os.environ.get(cls.NO_THREADS)
        os.environ[cls.NO_THREADS] = "1"
        try:
            with torch.inference_mode(False), torch.no_grad():
                core_model_loading.convert_and_load_state_dict_in_model(model, tensors, how)
        finally:
            del os.environ[cls.NO_THREADS]
            if before is not None:
                os.environ[cls.NO_THREADS] = before

    @staticmethod
    def tied(model: Any) -> dict[str, str]:
        """{parameter: the one whose values it shares}."""
        return dict(model.all_tied_weights_keys)


class Away(nn.Parameter):
    """A weight that is not in memory: it tells its shape, type and device, and raises BadInput at any other use.

    A plain tensor on the meta device would not do: torch 2.13's linear, matmul and convolution of a CPU tensor with one give
    uninitialised memory and no error.
    """

    called: str
    place: torch.device
    from_file: Callable[[], torch.Tensor]  # its values, with what is set of them now
    VIEWS = ("detach", "T", "data")
    ANSWERS = frozenset((
        "shape", "dtype", "layout", "ndim", "is_meta", "requires_grad", "grad", "is_leaf", "grad_fn", "itemsize", "size", "dim",
        "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex", "__hash__", "__repr__", "__len__",
        "nbytes", "untyped_storage", "is_inference", "requires_grad_", "is_quantized", "is_sparse",
    ))  # fmt: skip

    @classmethod
    def of(cls, values: torch.Tensor, name: str, place: torch.device) -> "Away":
        """In the place of `values` on the meta device."""
        made: Away = torch.Tensor._make_subclass(cls, values.detach(), values.requires_grad)
        made.called, made.place = name, place
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        what = getattr(getattr(func, "__self__", None), "__name__", name) if name in ("__get__", "__set__") else name
        me = next((one for one in args if isinstance(one, Away)), None)
        if what == "device" and me is not None:
            return me.place
        sets = name == "__set__" and what not in ("requires_grad", "grad")
        if sets or (what not in cls.ANSWERS and what not in cls.VIEWS):
            raise BadInput(
                f"{me.called if me is not None else 'a weight'} is not in memory: the model is read block by block, and {what} "
                f"uses this weight outside the pass through its block; {NEEDS_WHOLE}"
            )
        with torch._C.DisableTorchFunctionSubclass():
            answer = func(*args, **(kwargs or {}))
        return cls.of(answer, me.called, me.place) if what in cls.VIEWS and me is not None else answer


class _Entry:
    """A tensor of the file in transformers' loading: its values, or where they belong to a door a shape without any."""

    def __init__(self, info: Any, values: torch.Tensor | None):
        self.info, self.values, self.dtype, self.shape = info, values, DTYPES[info.dtype], torch.Size(info.shape)

    def __getitem__(self, _: Any) -> "torch.Tensor | _Entry":
        return self if self.values is None else self.values

    def to(self, device: Any = None, dtype: Any = None, **_: Any) -> torch.Tensor:
        """A tensor on the meta device."""
        return torch.empty(self.shape, dtype=dtype or self.dtype, device="meta")

    def is_floating_point(self) -> bool:
        """Whether its values are floats."""
        return self.dtype.is_floating_point


def doors_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules whose weights are read when they run, by path; of one that has several names the first."""
    blocks = dict(_blocks(model))
    large = {id(getattr(table, "weight", None)) for table in (input_table(model), _head(model)) if table is not None}
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{one}.") for one in found)
        table = isinstance(module, nn.Embedding | nn.Linear) and (
            id(module.weight) in large or module.weight.numel() >= LARGE
        )
        if not inside and (name in blocks or table):
            found[name] = module
    return found


def _blocks(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in module._modules.items():
        if child is None:
            continue
        runs = type(child).forward is not nn.Module.forward and next(child.parameters(), None) is not None
        if isinstance(module, nn.ModuleList) and runs:
            yield f"{prefix}{name}", child
        else:
            yield from _blocks(child, f"{prefix}{name}.")


def _head(model: Any) -> nn.Module | None:
    with suppress(AttributeError, NotImplementedError):
        head: nn.Module | None = model.get_output_embeddings()
        return head
    return None


class BlockReader:
    """Makes models whose doors hold no weights from a checkpoint.

    Attributes:
        checkpoint: safetensors, on this disk or on a hub. device: where blocks are put.

    Raises:
        BadInput: the weights are stored in another format, or as a quantizer's codes.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        if not isinstance(checkpoint, SafetensorsCheckpoint | HubCheckpoint):
            raise BadInput(
                f"{checkpoint.name}: its weights are {checkpoint.kind}, and only safetensors are read block by block; "
                f"save it with save_pretrained, or {NEEDS_WHOLE}"
            )
        method = (checkpoint.config.get("quantization_config") or {}).get("quant_method")
        if method:
            raise BadInput(
                f"{checkpoint.name}: is quantized ({method}), and codes are not read block by block; take the model in full "
                f"precision, or {NEEDS_WHOLE}"
            )
        self.checkpoint: PlacedCheckpoint = checkpoint
        self.device = device

    def __call__(self, cls: Any, config: Any, dtype: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The model as class `cls`, and what `from_pretrained` tells about it."""
        how = {key: options[key] for key in ("attn_implementation",) if key in options}
        with torch.device("meta"):
            if hasattr(cls, "config_class"):
                skeleton = cls._from_config(config, **how)
            else:
                skeleton = cls.from_config(config, trust_remote_code=options["trust_remote_code"], **how)
        doors, targets = doors_of(skeleton), Private.targets(skeleton, self.checkpoint.tensors)
        resident = [key for key, target in targets.items() if door_of(target, doors) is None]
        values = dict(self.tensors(resident))
        entries = {key: _Entry(self.checkpoint.tensors[key], values.get(key)) for key in targets}
        made: tuple[Any, dict[str, Any]] = type(skeleton).from_pretrained(
            None, config=skeleton.config, state_dict=entries, dtype=dtype, output_loading_info=True,
            ignore_mismatched_sizes=True, **how,
        )  # fmt: skip
        return made

    def tensors(self, keys: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Values as they are stored; those that lie together in a file by one request."""
        for key, info, raw in self.checkpoint.raw(keys):
            dtype = DTYPES[info.dtype]
            if not raw.nbytes:
                yield key, torch.empty(info.shape, dtype=dtype)
            else:
                values = torch.frombuffer(raw, dtype=torch.uint8)
                own = raw if values.data_ptr() % dtype.itemsize == 0 else bytearray(raw)
                yield key, torch.frombuffer(own, dtype=dtype).reshape(info.shape)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over names, types and shapes, and of each file its commit, or its size and time of change."""
        checkpoint = self.checkpoint
        digest = hashlib.sha256(checkpoint.header_digest().encode())
        if isinstance(checkpoint, LocalCheckpoint):
            for path in sorted({path for path, _ in checkpoint.placed().values()}):
                status = path.stat()
                digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        else:
            digest.update(checkpoint.commit.encode())
        return digest.hexdigest()


def door_of(name: str, doors: Any) -> str | None:
    """The door that a parameter belongs to."""
    path = name
    while "." in path:
        path = path.rpartition(".")[0]
        if path in doors:
            return path
    return None


class BlockWeights:
    """The doors of a model and the weights of the one that is open.

    Attributes:
        doors: by path, in the order of the model. open: the one whose weights are in memory, "" for none.
        reads: the doors that were filled, in order. seconds: waited for bytes, and filling in all.
    """

    def __init__(self, model: Any, reader: BlockReader, name: str):
        self.model, self.reader, self.name = model, reader, name
        self.dtype: torch.dtype = model.dtype
        self.doors, self.open = doors_of(model), ""
        self.order = list(self.doors)
        self.reads: list[str] = []
        self.keys: dict[str, list[str]] = {door: [] for door in self.doors}
        self.lent: dict[str, list[tuple[str, str]]] = {
            door: [] for door in self.doors
        }  # (taker, lender) of tied weights
        self._loading = Private.loading(model, self.dtype, reader.device)
        self._asked: SimpleQueue[Any] | None = None  # of the thread that reads ahead; no interrupt leaves it half done
        self._thread: threading.Thread | None = None
        self._coming: dict[str, SimpleQueue[Any]] = {}
        self._after: dict[str, str] = {}  # the door that was opened after each
        self._last = ""
        self._checked: set[str] = set()
        self.places: dict[str, list[str]] = {}  # keys of the files by parameter
        for key, target in Private.targets(model, reader.checkpoint.tensors).items():
            self.places.setdefault(target, []).append(key)
            if door := door_of(target, self.doors):
                self.keys[door].append(key)
        for taker, lender in Private.tied(model).items():
            door, other = door_of(taker, self.doors), door_of(lender, self.doors)
            if door and other and door != other and taker not in self.places and lender in self.places:
                self.keys[door] += self.places[lender]
                self.lent[door].append((taker, lender))
        doors_with = Counter(key for keys in self.keys.values() for key in keys)
        self._shared = {key for key, n in doors_with.items() if n > 1}
        self._held: dict[str, torch.Tensor] = {}  # as they are stored, of tied weights: read once in a run
        self.away = self._empty()
        self._stands = {
            door: {id(away): (store, leaf) for store, leaf, away in held} for door, held in self.away.items()
        }
        stray = [name for name, one in (*model.named_parameters(), *model.named_buffers())
                 if one.is_meta and not isinstance(one, Away)]  # fmt: skip
        if stray:
            raise BadFile(f"{name}: the checkpoint has no values for {stray[0]}; fetch or save the whole model")

    def _empty(self) -> dict[str, list[tuple[dict[str, Any], str, Away]]]:
        """Put an `Away` in the place of each weight of a door: (the module's own table, name there, what stands there)."""
        made: dict[int, tuple[Away, torch.Tensor]] = {}  # by the shared tensor, which is held: its id is not taken anew
        held: dict[str, list[tuple[dict[str, Any], str, Away]]] = {}
        for door, module in self.doors.items():
            held[door] = []
            for path, part in module.named_modules():
                for store in (part._parameters, part._buffers):
                    for leaf, values in store.items():
                        if values is not None and values.is_meta:
                            if not isinstance(values, Away):
                                name = ".".join(filter(None, (door, path, leaf)))
                                away = Away.of(values, name, self.reader.device)
                                away.from_file = partial(self.values_of, away)
                                store[leaf] = made.setdefault(id(values), (away, values))[0]
                            held[door].append((store, leaf, store[leaf]))
        for module in self.model.modules():  # what stays in memory goes where blocks go
            for store in (module._parameters, module._buffers):
                for leaf, values in store.items():
                    if values is not None and not values.is_meta and values.device != self.reader.device:
                        store[leaf] = nn.Parameter(values.data.to(self.reader.device), values.requires_grad) if isinstance(
                            values, nn.Parameter) else values.to(self.reader.device)  # fmt: skip
        return held

    # --- one door at a time ------------------------------------------------------------------------------------------

    def bytes_of(self, door: str) -> int:
        """Bytes of a door's weights in memory."""
        return sum(one.numel() * one.element_size() for _, _, one in self.away[door])

    def stored_bytes(self, door: str) -> int:
        """Bytes of a door's weights in the files."""
        return sum(self.reader.checkpoint.tensors[key].nbytes for key in self.keys[door])

    def multiplied(self, door: str) -> int:
        """Weights of a door that each token is multiplied by: of matrices, tables that are looked up excepted."""
        kinds = (part for part in self.doors[door].modules() if not isinstance(part, nn.Embedding))
        return sum(one.numel() for part in kinds for one in part.parameters(recurse=False) if one.ndim > 1)

    def bytes_per_second(self) -> float:
        """How fast the files are read: by the largest tensor of the first block."""
        keys = next((keys for door, keys in self.keys.items() if keys and self.multiplied(door)), [])
        key = max(keys, key=lambda one: self.reader.checkpoint.tensors[one].nbytes)
        begun = time.perf_counter()
        dict(self.reader.tensors([key]))
        return self.reader.checkpoint.tensors[key].nbytes / max(time.perf_counter() - begun, 1e-9)

    def operations_per_second(self) -> float:
        """How fast the device multiplies: by a product of the size of a block's."""
        inside = [one.shape for held in self.away.values() for *_, one in held if one.ndim == 2]
        shape = sorted(inside, key=math.prod)[len(inside) // 2]
        sizes = (TIMED, shape[1]), shape
        states, weight = (torch.ones(size, dtype=self.dtype, device=self.reader.device) for size in sizes)
        linear(states, weight)  # the first one sets things up
        begun = time.perf_counter()
        linear(states, weight).sum().item()
        return 2 * TIMED * math.prod(shape) / max(time.perf_counter() - begun, 1e-9)

    def values_of(self, parameter: Away) -> torch.Tensor:
        """A parameter's values, with those that are set of it, read by themselves."""
        keys, door = self.places.get(parameter.called, []), door_of(parameter.called, self.doors)
        if len(keys) == 1 and self.reader.checkpoint.tensors[keys[0]].shape == tuple(parameter.shape):
            found = dict(self.reader.tensors(keys))[keys[0]].to(parameter.place, parameter.dtype)
        else:  # packed from several, or tied
            self.fill(str(door))
            there = self.present(parameter)
            assert there is not None
            found = there.detach().clone()
        return edited_copy(found, parameter)

    def present(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What is in memory of a parameter: of one of the open door its values, itself where it stays in memory."""
        if not isinstance(parameter, Away):
            return parameter
        store, leaf = self._stands.get(self.open, {}).get(id(parameter), ({}, ""))
        found: torch.Tensor | None = store.get(leaf)
        return found

    def standing(self, parameter: torch.Tensor) -> torch.Tensor:
        """What stands for a parameter while its door is closed: itself, where it stays in memory."""
        open_now = self.away.get(self.open, ())
        return next((away for store, leaf, away in open_now if store[leaf] is parameter), parameter)

    def begin(self) -> None:
        """Read ahead from now on, in a thread of its own."""
        self._asked, self._last = SimpleQueue(), ""
        self._thread = threading.Thread(target=self._serve, args=(self._asked,), name="outlierlens-block", daemon=True)
        self._thread.start()

    def _serve(self, asked: SimpleQueue[Any]) -> None:
        for door, answer in iter(asked.get, None):
            try:
                answer.put(self._read(door))
            except BaseException as error:  # whoever waits for it raises it
                answer.put(error)

    def end(self) -> None:
        """Leave nothing behind: no weights of blocks, no thread."""
        for door in self.doors:  # an interrupt may have come between any two of a filling's steps
            self._empty_again(door)
        self.open = ""
        self._coming.clear()
        self._held.clear()
        if self._asked is not None and self._thread is not None:
            self._asked.put(None)
            self._thread.join()
        self._asked = self._thread = None

    def fill(self, door: str) -> None:
        """Have the weights of `door` in memory, and of no other.

        Raises:
            BadFile: the file has not all of them, or NaN and infinity.
        """
        if self.open == door:
            return
        self.free()
        coming = self._coming.pop(door, None)
        tensors = self._read(door) if coming is None else coming.get()
        if isinstance(tensors, BaseException):
            raise tensors
        self._read_ahead(door)
        self.open = door
        try:
            self._put(door, tensors)
        except BaseException:
            self.free()
            raise
        if self._last:
            self._after[self._last] = door
        self._last = door
        self.reads.append(door)

    def _put(self, door: str, tensors: dict[str, torch.Tensor]) -> None:
        Private.load(self.model, tensors, self._loading)
        for taker, lender in self.lent[door]:
            (mine, own), (theirs, other) = self._place(taker), self._place(lender)
            mine[own], theirs[other] = theirs[other], mine[own]  # tied: both have one and the same that stands for it
        if lost := [away.called for store, leaf, away in self.away[door] if store[leaf].is_meta]:
            raise BadFile(f"{self.name}: the checkpoint has no values for {lost[0]}; fetch or save the whole model")
        if door not in self._checked:
            check_values(f"{self.name}: {door}", self.doors[door], str(self.dtype).removeprefix("torch."))
            self._checked.add(door)

    def free(self) -> None:
        """Let go of the open door's weights."""
        self._empty_again(self.open)
        self.open = ""

    def _empty_again(self, door: str) -> None:
        for store, leaf, away in self.away.get(door, ()):
            store[leaf] = away

    def _read(self, door: str) -> dict[str, torch.Tensor]:
        with torch.inference_mode(False):  # else no values of theirs could be changed
            found = dict(self.reader.tensors([key for key in self.keys[door] if key not in self._held]))
        if self._asked is not None:
            self._held |= {key: one for key, one in found.items() if key in self._shared}
        return found | {key: self._held[key] for key in self.keys[door] if key in self._held}

    def _read_ahead(self, door: str) -> None:
        """Have the next door's bytes on their way: the one that came next before, else the next of the same list."""
        if self._asked is None:
            return
        place, (path, _, number) = self.order.index(door), door.rpartition(".")
        following = self._after.get(door) or next(iter(self.order[place + 1 : place + 2]), "")
        known = door in self._after or (number.isdigit() and following == f"{path}.{int(number) + 1}")
        if known and following not in self._coming and following != door:
            self._coming = {following: SimpleQueue()}
            self._asked.put((following, self._coming[following]))

    def _place(self, name: str) -> tuple[dict[str, Any], str]:
        path, _, leaf = name.rpartition(".")
        return self.model.get_submodule(path)._parameters, leaf
