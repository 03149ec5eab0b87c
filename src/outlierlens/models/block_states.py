"""States of passes that wait between two blocks: in memory up to a bound, the others in a file.

    states = WaitingStates(most=2**30, folder=Path("runs/llama-ablate"))
    states.begin(one)                                 # a pass: what is there before it begins is not its own
    states.see(one, (args, kwargs))                   # it comes to a block with these
    states.wait(one)                                  # it stands still: they may go to the file
    states.back(one)                                  # it goes on: they are where they were
    states.close()

Frames of the model's own forward hold these tensors, so they stay the same objects: storages are emptied and filled again.
"""

import ctypes
import gc
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from outlierlens.errors import BadInput

SMALLEST = 2**10  # bytes of a storage that are worth a place in the file
Reference = weakref.ref[torch.Tensor]


Tensors = dict[int, list[Reference]]  # by storage


def tensors_now() -> Tensors:
    """All tensors that there are, but for those that are frozen (`gc.freeze`)."""
    kinds, found = {torch.Tensor, *_kinds(torch.Tensor)}, Tensors()
    with torch._C.DisableTorchFunctionSubclass():
        tensors: list[Any] = [one for one in gc.get_objects() if type(one) in kinds]
        for one in tensors:
            if one.layout is torch.strided:
                found.setdefault(one.untyped_storage()._cdata, []).append(weakref.ref(one))
    return found


def _kinds(kind: type) -> Iterator[type]:
    below: list[type] = kind.__subclasses__()
    for one in below:
        yield from (one, *_kinds(one))


def any_left(tensors: Iterable[Reference]) -> bool:
    """Whether any of them is still there."""
    return any(one() is not None for one in tensors)


class StoredBytes(NamedTuple):
    """A storage that is empty, and where its bytes lie in the file."""

    storage: torch.UntypedStorage
    n_bytes: int
    place: int


class WaitingStates:
    """What all passes of a run hold while they wait: `most` bytes in memory, the others in a file in `folder`.

    The file has no name: it is gone when it is closed, and when the program ends, however that happens.
    """

    def __init__(self, most: int, folder: Path | None):
        self.most, self.folder = most, folder
        gc.unfreeze()
        self.before = tensors_now()
        gc.freeze()  # what is there need not be looked at again, which takes 0.1 s
        self.older: dict[Hashable, Tensors] = {}
        self.seen: dict[Hashable, list[Reference]] = {}
        self.owners: dict[int, tuple[Hashable, Reference]] = {}  # by storage; None where several passes have it
        self.in_memory: dict[Hashable, int] = {}
        self.stored: dict[Hashable, list[StoredBytes]] = {}
        self.file: Any = None
        self.free: defaultdict[int, list[int]] = defaultdict(list)  # places by size
        self.end = 0

    def begin(self, passes: Iterable[Hashable]) -> None:
        """Passes that begin now: others may use what is there already."""
        now = tensors_now()
        for one in passes:
            self.older[one], self.seen[one] = now, []

    def see(self, one: Hashable, values: Any) -> None:
        """The arguments with which a pass comes to a block."""
        for tensor in _pytree.tree_leaves(values):
            if type(tensor) is torch.Tensor:
                key, mine = tensor.untyped_storage()._cdata, weakref.ref(tensor)
                owner, known = self.owners.get(key, (one, mine))
                if known() is None:  # the address is used anew
                    owner, known = one, mine
                elif owner is not one:  # a table that the model keeps from pass to pass
                    self._fill(each for each in self.stored.get(owner, ()) if each.storage._cdata == key)
                    owner = None
                self.owners[key] = owner, known
                self.seen[one].append(mine)

    def wait(self, one: Hashable) -> None:
        """Keep what a pass has seen, is its own and still in use, until it is `back`.

        Raises:
            BadInput: the file cannot be written.
        """
        storages = self._own(one)
        size = sum(storage.nbytes() for storage in storages)
        if sum(self.in_memory.values()) + size <= self.most:
            self.in_memory[one] = size
            return
        stored = self.stored[one] = []
        for storage in storages:
            try:
                place = self._write(storage)
            except OSError as error:
                raise BadInput(
                    f"{self.folder or tempfile.gettempdir()}: the states of waiting texts cannot be written there ({error}); "
                    "make room, or give more --memory or fewer texts (--limit)"
                ) from None
            stored.append(StoredBytes(storage, storage.nbytes(), place))
            storage.resize_(0)

    def back(self, one: Hashable) -> None:
        """Have in memory again what a pass has seen."""
        self.in_memory.pop(one, None)
        self._fill(self.stored.get(one, ()))
        for _, n_bytes, place in self.stored.pop(one, ()):
            self.free[n_bytes].append(place)

    def close(self) -> None:
        """Let go of the file. Passes that are ended get room without values: code of theirs may still hold a tensor."""
        for stored in self.stored.values():
            for storage, n_bytes, _ in stored:
                storage.resize_(n_bytes)
        if self.file is not None:
            self.file.close()
        gc.unfreeze()

    def _own(self, one: Hashable) -> list[torch.UntypedStorage]:
        held = [(mine, tensor) for mine in self.seen[one] if (tensor := mine()) is not None]
        self.seen[one] = [mine for mine, _ in held]
        found = {}
        for _, tensor in held:
            storage = tensor.untyped_storage()
            older = any(any_left(then.get(storage._cdata, ())) for then in (self.before, self.older[one]))
            if self.owners[storage._cdata][0] is one and not older and storage.nbytes() >= SMALLEST:
                found[storage._cdata] = storage
        return [storage for storage in found.values() if storage.resizable()]

    def _write(self, storage: torch.UntypedStorage) -> int:
        self.file = self.file or _unnamed_file(self.folder)
        size = storage.nbytes()
        place = self.free[size].pop() if self.free[size] else self.end
        self.end = max(self.end, place + size)
        self.file.seek(place)
        self.file.write(_bytes(storage if storage.device.type == "cpu" else storage.cpu()))
        self.file.flush()
        return place

    def _fill(self, stored: Iterable[StoredBytes]) -> None:
        for storage, n_bytes, place in stored:
            if storage.nbytes():
                continue  # it is there for another pass already
            storage.resize_(n_bytes)
            here = storage if storage.device.type == "cpu" else torch.UntypedStorage(n_bytes)
            raw, at = _bytes(here), 0
            self.file.seek(place)
            while at < n_bytes:  # one read gives 2 GiB at most
                at += self.file.readinto(raw[at:])
            if here is not storage:
                storage.copy_(here)


def _unnamed_file(folder: Path | None) -> Any:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=folder)


def _bytes(storage: torch.UntypedStorage) -> memoryview:
    """What lies in a storage on the CPU; not by NumPy, behind which no storage can be emptied any more."""
    return memoryview((ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())).cast("B")
