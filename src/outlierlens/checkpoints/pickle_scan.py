"""What a pickle says of tensors, read off its instructions; nothing that it asks for is called, imported or allocated.

    content, machine = read_pickle(stream, "model.bin", n_bytes)     # raises BadFile
    content["model"]["h.0.ln.weight"]           # PickledTensor: which storage, from where on, of which shape
    machine.asked                                      # {"argparse.Namespace"}: what loading it would import besides

A pickle is a program. Loading it would call what it names (`os.system`), allocate what it claims (`bytearray(2**31)`), and hash
tuples that hold themselves twice at every level, which never ends. Here a call leaves a `Record` of its name.
"""

import pickletools
from dataclasses import dataclass, field
from typing import Any

from outlierlens.checkpoints.pieces import item_bytes
from outlierlens.errors import BadFile

SAFE = "convert the file to safetensors where you trust it"
MAX_TUPLE = 1_000  # values in a tuple, each as often as it is reached; the state of Python's random numbers has 625
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "Untyped": "uint8",
}  # fmt: skip
_TENSORS = tuple(f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_DICTS = (
    "collections.OrderedDict",
    "collections.Counter",
    "collections.defaultdict",
    "builtins.dict",
    "__builtin__.dict",
)
_SETS = ("builtins.set", "__builtin__.set", "builtins.frozenset", "__builtin__.frozenset")
_PLAIN = (
    *_TENSORS, *_PARAMETERS, *_DICTS, *_SETS, "torch._utils._rebuild_sparse_tensor", "torch.serialization._get_layout",
    "torch.Size", "torch.device", "torch.storage.UntypedStorage", "builtins.complex", "__builtin__.complex", "_codecs.encode",
    "_io.BytesIO",
)  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = (
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "SHORT_BINSTRING", "BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
)  # fmt: skip
_MAKERS = {
    *_LITERALS, *_CONSTANTS, "EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "FROZENSET", "GLOBAL", "STACK_GLOBAL", "BINGET", "LONG_BINGET", "BINPERSID", "REDUCE", "NEWOBJ",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class PickledName:
    """A function or class that a pickle names."""

    name: str


@dataclass(frozen=True, eq=False)
class PickledItems:
    """A tuple or set; `weight` counts what is in it, each as often as it is reached."""

    items: tuple[Any, ...] = ()
    weight: int = 1


@dataclass(eq=False)
class Record:
    """What a call would have made: the name that is called, with what, and the state that was set."""

    name: str
    given: PickledItems
    state: Any = None


@dataclass(frozen=True, eq=False)
class Storage:
    """Values that lie outside the pickle, under `key`."""

    key: str
    n_bytes: int
    dtype: str


@dataclass(frozen=True, eq=False)
class PickledTensor:
    """A tensor: values of a storage from `offset` on, counted in values."""

    storage: Storage
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class Machine:
    """The stack of a pickle.

    Attributes:
        asked: what it names beside what makes tensors.
        storages: by key.
    """

    where: str
    stack: list[Any] = field(default_factory=list)
    marks: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """Follow one instruction."""
        if name in _MAKERS:
            made = self._made(name, argument)
            self.stack.append(made)
        elif name == "MARK":
            self.marks.append(self.stack)
            self.stack = []
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "ADDITEMS"):
            n = {"SETITEM": 2, "APPEND": 1}.get(name, 0)
            items = [self.stack.pop() for _ in range(n)][::-1] if n else self._popped()
            self._put(self.stack[-1], items)
        elif name == "BUILD":
            state, made = self.stack.pop(), self.stack[-1]
            if isinstance(made, Record):
                made.state = state
        elif name == "POP":
            self.stack.pop()
        elif name == "POP_MARK":
            self._popped()
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise BadFile(
                f"{self.where}: has an instruction that PyTorch does not write ({name}); refused, and nothing in it was "
                f"executed; {SAFE}"
            )

    def _made(self, name: str, argument: Any) -> Any:
        """What an instruction puts on the stack, of which it may take first."""
        stack = self.stack
        if name in _LITERALS:
            return argument
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name.startswith("EMPTY_"):
            return {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list, "EMPTY_TUPLE": PickledItems}[name]()
        if name == "GLOBAL":
            return self._named(argument.replace(" ", ".", 1))
        if name == "STACK_GLOBAL":
            last, module = stack.pop(), stack.pop()
            return self._named(f"{module}.{last}")
        if name in ("TUPLE", "FROZENSET"):
            return self._items(self._popped())
        if name.startswith("TUPLE"):
            return self._items([stack.pop() for _ in range(int(name[-1]))][::-1])
        if name == "BINPERSID":
            return self._storage(stack.pop())
        if name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            return self._called(function, arguments)
        return self.memo[argument]

    def refuse(self, name: str) -> BadFile:
        """The error for something that weights do not ask for."""
        return BadFile(f"{self.where}: asks for {name[:80]}; refused, and nothing in it was executed; {SAFE}")

    def _popped(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def _items(self, items: list[Any]) -> PickledItems:
        weight = 1 + sum(item.weight if isinstance(item, PickledItems) else 1 for item in items)
        if weight > MAX_TUPLE:
            raise BadFile(
                f"{self.where}: holds a tuple of more than {MAX_TUPLE:,} values, as no weights do; refused; {SAFE}"
            )
        return PickledItems(tuple(items), weight)

    def _put(self, into: Any, items: list[Any]) -> None:
        if isinstance(into, dict):
            into.update(zip(items[::2], items[1::2], strict=True))
        elif isinstance(into, list):
            into.extend(items)
        elif not isinstance(into, Record):
            raise ValueError("items that are put into no container")

    def _named(self, name: str) -> PickledName:
        module, _, last = name.rpartition(".")
        if name not in _PLAIN and not (
            module == "torch" and (last.endswith("Storage") or (last.islower() and last.isidentifier()))
        ):
            self.asked[name] = None
        return PickledName(name)

    def _storage(self, given: PickledItems) -> Storage:
        kind, storage, key, _, n_values = given.items[:5]
        if kind != "storage" or not isinstance(n_values, int) or n_values < 0 or any(given.items[5:]):
            raise ValueError("a storage that is none")
        dtype = _STORAGES[storage.name.rpartition(".")[2].removesuffix("Storage")]
        found = Storage(str(key), n_values * item_bytes(dtype), dtype)
        if self.storages.setdefault(found.key, found).n_bytes != found.n_bytes:
            raise ValueError("two storages of one name")
        return found

    def _called(self, function: PickledName, arguments: PickledItems) -> Any:
        given = arguments.items
        if function.name in _TENSORS:
            storage, offset, shape, strides = given[:4]
            v3 = function.name.endswith("_v3")
            dtype = given[6].name.removeprefix("torch.") if v3 else storage.dtype
            return self._fits(PickledTensor(storage, offset, dtype, shape.items, strides.items))
        if function.name in _PARAMETERS or function.name == "torch.Size":
            return given[0]
        if function.name in _DICTS:
            pairs = next((one for one in given if isinstance(one, list)), [])
            return dict((pair.items if isinstance(pair, PickledItems) else pair) for pair in pairs)
        if function.name in _SETS:
            return given[0] if given else []
        return Record(function.name, arguments)

    def _fits(self, one: PickledTensor) -> PickledTensor:
        """Raise BadFile for a tensor beyond its storage, which PyTorch would make larger."""
        last = one.offset + sum((size - 1) * stride for size, stride in zip(one.shape, one.strides, strict=True))
        stored = self.storages[one.storage.key].n_bytes
        if (
            min((one.offset, *one.shape, *one.strides)) < 0
            or not item_bytes(one.dtype)
            or (0 not in one.shape and (last + 1) * item_bytes(one.dtype) > stored)
        ):
            raise BadFile(f"{self.where}: a tensor claims {list(one.shape)[:9]} but stores {stored:,} bytes; refused")
        return one


def read_pickle(stream: Any, where: str, limit: int) -> tuple[Any, Machine]:
    """(Content, machine) of the pickle that begins here in a file or map; it stops behind it.

    `limit` is the bytes that its storages may claim together.

    Raises:
        BadFile: it is malformed, or claims more than there is.
    """
    machine = Machine(where)
    try:
        for instruction, argument, _ in pickletools.genops(stream):
            machine.step(instruction.name, argument)
        content = machine.stack.pop()
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        reason = str(error)[:100] or type(error).__name__
        raise BadFile(f"{where}: cannot be loaded ({reason}); truncated? fetch it again") from None
    if (n_bytes := sum(one.n_bytes for one in machine.storages.values())) > limit:
        raise BadFile(
            f"{where}: cannot be loaded (its tensors claim {min(n_bytes, 1 << 80):,} bytes of {limit:,}); truncated? "
            "fetch it again"
        )
    return content, machine
