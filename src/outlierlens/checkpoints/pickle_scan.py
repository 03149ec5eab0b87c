"""What a pickle of weights would ask of whoever loads it, read off its instructions without following them.

    scan_pickle(stream, "model.bin", n_bytes)        # raises BadFile; else torch.load(weights_only=True) stays small

PyTorch's careful loader runs no code, yet allocates what a file merely claims (`bytearray(2**31)`, a storage of
terabytes), and hashes tuples that hold themselves twice at every level, which never ends.
"""

import pickletools
from dataclasses import dataclass
from typing import Any

from outlierlens.errors import BadFile

SAFE = "convert the file to safetensors where you trust it"
MAX_TUPLE = 1_000  # values in a tuple, each as often as it is reached; that of a tensor's declaration has some twenty
_ITEM_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexDouble": 16, "ComplexFloat": 8, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "Untyped": 1,
}  # fmt: skip
_TENSORS = tuple(f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
_CALLED = (
    *_TENSORS, "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_sparse_tensor", "torch.serialization._get_layout", "torch.Size", "torch.device",
    "collections.OrderedDict", "collections.Counter", "builtins.set", "__builtin__.set", "builtins.complex", "_codecs.encode",
)  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "SHORT_BINUNICODE")


@dataclass(frozen=True, eq=False)
class _Global:
    name: str


@dataclass(frozen=True, eq=False)
class _Tuple:
    items: tuple[Any, ...]
    weight: int


@dataclass(frozen=True, eq=False)
class _Storage:
    n_bytes: int
    item_bytes: int


class _Thing:
    """A container, or what a call made: nothing here depends on what is in it."""


class _Machine:
    """The stack of a pickle, on which nothing is ever made."""

    def __init__(self, where: str):
        self.where = where
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.keys: set[Any] = set()
        self.n_bytes = 0

    def step(self, name: str, argument: Any) -> None:
        """Follow one instruction."""
        stack = self.stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET"):
            stack.append(_Thing())
        elif name == "GLOBAL":
            stack.append(self._global(argument.replace(" ", ".", 1)))
        elif name == "MARK":
            self.marks.append(stack)
            self.stack = []
        elif name in ("TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            n = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}.get(name, 0)
            items = self._popped() if name == "TUPLE" else [stack.pop() for _ in range(n)][::-1]
            self.stack.append(self._tuple(items))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "BUILD"):
            if name in ("SETITEMS", "APPENDS"):
                self._popped()
            else:
                del stack[len(stack) - (2 if name == "SETITEM" else 1) :]
            _ = self.stack[-1]  # there must be something to put them into
        elif name == "BINPERSID":
            stack.append(self._stored(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._called(function, arguments))
        elif name not in ("PROTO", "STOP"):
            raise BadFile(
                f"{self.where}: has an instruction that PyTorch does not write ({name}); refused, and nothing in it was "
                f"executed; {SAFE}"
            )

    def _popped(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def _tuple(self, items: list[Any]) -> _Tuple:
        weight = 1 + sum(item.weight if isinstance(item, _Tuple) else 1 for item in items)
        if weight > MAX_TUPLE:
            raise BadFile(
                f"{self.where}: holds a tuple of more than {MAX_TUPLE:,} values, as no weights do; refused; {SAFE}"
            )
        return _Tuple(tuple(items), weight)

    def _global(self, name: str) -> _Global:
        module, _, last = name.rpartition(".")
        kind = module == "torch" and (last.endswith("Storage") or (last.islower() and last.isidentifier()))
        if name not in _CALLED and not kind and name != "torch.storage.UntypedStorage":
            raise BadFile(f"{self.where}: asks for {name[:80]}; refused, and nothing in it was executed; {SAFE}")
        return _Global(name)

    def _stored(self, given: _Tuple) -> _Storage:
        kind, storage, key, _, n_values = given.items[:5]
        if kind != "storage" or not isinstance(n_values, int) or n_values < 0:
            raise ValueError("a storage that is none")
        item = _ITEM_BYTES[storage.name.rpartition(".")[2].removesuffix("Storage")]
        found = _Storage(n_values * item, item)
        self.n_bytes += found.n_bytes if key not in self.keys else 0
        self.keys.add(key)
        return found

    def _called(self, function: _Global, arguments: _Tuple) -> Any:
        if function.name not in _CALLED:
            raise BadFile(f"{self.where}: calls {function.name[:80]}; refused, and nothing in it was executed; {SAFE}")
        if function.name == "torch.Size":
            return arguments.items[0]
        if function.name in _TENSORS:
            storage, offset, shape, strides = arguments.items[:4]
            self._fits(storage, offset, shape.items, strides.items)
        return _Thing()

    def _fits(self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """Raise BadFile for a tensor beyond its storage, which PyTorch would make larger."""
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if min((offset, *shape, *strides)) < 0 or (
            0 not in shape and (last + 1) * storage.item_bytes > storage.n_bytes
        ):
            raise BadFile(
                f"{self.where}: a tensor claims {list(shape)[:9]} but stores {storage.n_bytes:,} bytes; refused"
            )


def scan_pickle(stream: Any, where: str, limit: int) -> None:
    """Follow the pickle that begins here in a file or map, and stop behind it; `limit` is the bytes that its tensors may claim.

    Raises:
        BadFile: it is malformed, calls something else than what makes weights, or claims more than there is.
    """
    machine = _Machine(where)
    try:
        for instruction, argument, _ in pickletools.genops(stream):
            machine.step(instruction.name, argument)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        reason = str(error)[:100] or type(error).__name__
        raise BadFile(f"{where}: cannot be loaded ({reason}); truncated? fetch it again") from None
    if machine.n_bytes > limit:
        raise BadFile(
            f"{where}: cannot be loaded (its tensors claim {min(machine.n_bytes, 1 << 80):,} bytes of {limit:,}); truncated? "
            "fetch it again"
        )
