"""A model larger than memory: all passes go through a block together, so that the weights of each block are read once.

    blocks = ByBlock(model, weights)                               # `load_model(name, LoadOptions(by_block=True))` makes it
    losses = blocks.run([partial(loss, batch) for batch in batches])        # each call runs the model's own forward

    def condition(dims):                                           # calls may start calls: all of them go together
        with zeroed_weights(loaded, dims):                         # holds in this call and in those that it starts
            return blocks.run([partial(loss, batch) for batch in batches])
    blocks.run([partial(condition, dims) for dims in sets])        # one read for all sets and batches

Each call is a greenlet. Where the model comes to a door (`block_weights`) whose weights are not in memory it stands still; once
no call can go on, the weights of the first such door are read, and all that wait there go through. Values that are set in a
call (`changes.SettableParameters`) are put in place around its passes at each block, and its hooks are called in its passes
alone.
A model that runs outside `run` reads each door's weights as it comes to it. States of calls that wait between blocks stay in
memory up to a bound, the others go to a file (`WaitingStates`). Frames of the model's own forward hold these tensors, so they
stay the same objects: storages are emptied and filled again.
"""

import contextvars
import ctypes
import functools
import gc
import itertools
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import greenlet
import torch
from torch import overrides
from torch.utils import _pytree

from outlierlens.errors import BadInput
from outlierlens.models.block_weights import BlockWeights
from outlierlens.models.changes import (
    BY_BLOCK,
    EVERYWHERE,
    NEEDS_WHOLE,
    Edit,
    Scope,
    current_scope,
    edits_made,
    temporary,
)
from outlierlens.models.devices import memory_returned, tokens_at_once
from outlierlens.view.section import duration

T = TypeVar("T")
HELD_BLOCKS = 2.5  # largest ones
PASS_STATES = 4  # of the widest kind, that a pass has at once
WAITING_STATES = 2  # of a pass that waits
LARGE_AXIS = 2**15  # longer ones are of vocabularies
ONE_THREAD = "the model is read block by block by another thread; give each thread a model of its own"


class RunMemory(NamedTuple):
    """Bytes that a run takes, without the libraries.

    The largest block is there as it is stored, as it is computed, and once more as it is stored of the next one. Of a call that
    waits there are two states of each token: the embeddings and what the last block gave.
    """

    stays: int
    block: int
    one_pass: int
    states: int

    @property
    def total(self) -> int:
        """All of it."""
        return int(self.stays + HELD_BLOCKS * self.block + self.one_pass + self.states)

    def __str__(self) -> str:
        """The sum as a formula, in GB."""
        stays, block, one_pass, states, total = (f"{one / 1e9:,.3g}" for one in (*self, self.total))
        return (
            f"{total} GB = {stays} that stay + {HELD_BLOCKS} × {block} of the largest block + {one_pass} of one pass + "
            f"{states} of states that wait"
        )


class Unwound(BaseException):
    """Raised in a call that stands at a door when the run is given up."""


class Modes:
    """What torch keeps for a thread, and a greenlet has to bring along: gradients, inference mode, modes of functions."""

    def __init__(self) -> None:
        self.grad, self.inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.functions = _function_modes()

    @temporary
    def again(self) -> Iterator[None]:
        """Inside, these hold."""
        now = _function_modes()
        with ExitStack() as undo:
            for one in reversed(now[len(self.functions) :]):
                overrides._pop_mode()
                undo.callback(overrides._push_mode, one)
            for one in self.functions[len(now) :]:
                overrides._push_mode(one)
                undo.callback(overrides._pop_mode)
            undo.enter_context(torch.inference_mode(self.inference))
            undo.enter_context(torch.set_grad_enabled(self.grad))
            yield

    def restore(self) -> None:
        """These again for good: an interrupt inside one of torch's own contexts leaves it open."""
        if torch.is_inference_mode_enabled() != self.inference:
            _LEFT_OPEN.append(torch._C._InferenceMode(self.inference))
        torch.set_grad_enabled(self.grad)


_LEFT_OPEN: list[Any] = []  # guards whose end would bring back what an interrupt left


def _function_modes() -> list[Any]:
    return list(overrides._get_current_function_mode_stack())


class Pass(Scope):
    """A call that runs the model, and stands still at doors.

    Attributes:
        door: where it stands, "" nowhere. started: the calls that it waits for. result: what the call gave.
    """

    def __init__(self, call: Callable[[], Any], outer: Scope, hub: greenlet.greenlet):
        super().__init__(outer)
        self.call, self.modes = call, Modes()
        self.door = ""
        self.started: tuple[Pass, ...] = ()
        self.result: Any = None
        self.greenlet: greenlet.greenlet | None = greenlet.greenlet(self._main, parent=hub)
        self.greenlet.gr_context = contextvars.copy_context()

    def _main(self) -> None:
        current_scope.set(self)
        with self.modes.again():
            self.result = self.call()

    @property
    def done(self) -> bool:
        """Whether the call came back."""
        return self.greenlet is None or bool(self.greenlet.dead)

    @property
    def ready(self) -> bool:
        """Whether it can go on without weights."""
        return not self.door and all(one.done for one in self.started)

    def go_on(self) -> None:
        """Run until it stands still, or is done."""
        self.door = ""
        assert self.greenlet is not None
        self.greenlet.switch()

    def unwind(self) -> None:
        """End the call where it stands."""
        if self.greenlet is not None:
            with suppress(Unwound):
                self.greenlet.throw(Unwound)

    def given(self) -> Any:
        """What the call gave, once; nothing of the pass is kept, whose greenlet and context hold one another."""
        result, self.result, self.greenlet = self.result, None, None
        return result


class ByBlock:
    """A model whose weights are read one door at a time.

    Attributes:
        model, weights: the model and where its weights are.
        memory: bytes that a run may take beside the libraries, None for no bound. folder: of the file that holds states which
            do not fit, the system's temporary one where it is None.
        progress: called with ("reading …", doors before it, doors) before a door's weights are read. notice: called once with
            what the first run reads, unless `forecast` was asked for it.
    """

    def __init__(self, model: Any, weights: BlockWeights, memory: int | None = None):
        self.model, self.weights, self.memory = model, weights, memory
        self.folder: Path | None = None
        self.passes: list[Pass] = []
        self.states: WaitingStates | None = None
        self.progress: Callable[[str, int, int], None] = lambda *_: None
        self.notice: Callable[[str], None] = lambda _: None
        self.told = False
        self.hub: greenlet.greenlet | None = None
        self.outside = Modes()
        for name, module in weights.doors.items():
            module.forward = self._door(name, module.forward)
        setattr(model, BY_BLOCK, self)

    def run(self, calls: Sequence[Callable[[], T]], n_tokens: int = 0) -> list[T]:
        """What each call gives; all of them go through the model together.

        The first call that raises ends the run; all others are unwound where they stand. Where `memory` is bounded and each
        call has `n_tokens` tokens on their way, calls go in groups, each of which reads the weights; where not even one fits,
        all go together, and states that wait go to a file in `folder`.

        Raises:
            BadInput: a block is in training mode, or `memory` does not suffice for one pass.
        """
        if self.hub is not None:
            return self._run_inside(calls)
        found: list[T] = []
        size = self.group_size(n_tokens) or len(calls)
        if n_tokens and calls and not self.told:
            self.notice(self.forecast(len(calls), n_tokens))
        for first in range(0, len(calls), max(size, 1)):
            with memory_returned(), self._running(n_tokens):
                passes = self._start(calls[first : first + size], current_scope.get())
                while waiting := [one for one in self.passes if not one.done]:
                    self.passes = waiting
                    ready = [one for one in waiting if one.ready]
                    self._go_on(ready or self._at_next_door(waiting))
            found += [one.given() for one in passes]
        return found

    def _run_inside(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        outer = current_scope.get()
        if not isinstance(outer, Pass):
            raise BadInput(ONE_THREAD)
        outer.started = passes = self._start(calls, outer)
        self._stand_still()
        outer.started = ()
        return [one.given() for one in passes]

    def _start(self, calls: Sequence[Callable[[], Any]], outer: Scope) -> tuple[Pass, ...]:
        assert self.hub is not None
        passes = tuple(Pass(call, outer, self.hub) for call in calls)
        if self.states is not None:
            self.states.begin(passes)
        self.passes += passes
        return passes

    @temporary
    def _running(self, n_tokens: int) -> Iterator[None]:
        self.hub, self.outside, self.passes = greenlet.getcurrent(), Modes(), []
        if self.memory is not None:
            self.states = WaitingStates(self.memory - self.bytes_for(0, n_tokens), self.folder)
        self.weights.begin()
        with ExitStack() as undo:
            undo.callback(self._end)
            yield

    def _end(self) -> None:
        with ExitStack() as each:  # whatever one of them raises, all are unwound
            each.callback(setattr, self, "hub", None)
            each.callback(self.outside.restore)
            each.callback(self.weights.end)
            for one in self.passes:
                each.callback(one.unwind)
            if self.states is not None:
                each.callback(self.states.close)
            self.passes, self.states = [], None

    def _at_next_door(self, waiting: Sequence[Pass]) -> list[Pass]:
        """Open the first door of the model at which a call stands; those that do."""
        door = min((one.door for one in waiting if one.door), key=self.weights.order.index)
        self.progress(f"reading {door}", self.weights.order.index(door), len(self.weights.order))
        self.weights.fill(door)
        return [one for one in waiting if one.door == door]

    def _go_on(self, passes: Sequence[Pass]) -> None:
        """Let each of `passes` run until it stands again, with the values that its scope sets."""
        edits = [self._edits(one) for one in passes]
        pairs = zip(passes, edits, strict=True)
        for _, group in itertools.groupby(pairs, lambda pair: [id(made[1]) for made in pair[1]]):
            members = list(group)
            with edits_made(members[0][1]):
                for one, _ in members:
                    self._let(one)

    def _let(self, one: Pass) -> None:
        if self.states is not None:
            self.states.back(one)
        one.go_on()
        if self.states is not None and one.door:
            self.states.wait(one)

    def _edits(self, scope: Scope) -> list[tuple[torch.Tensor, Edit]]:
        """What is set now of what is in memory, in the order it was set."""
        found = [(self.weights.present(edit.parameter), edit) for one in scope.chain for edit in one.edits]
        return [(live, edit) for live, edit in found if live is not None]

    def _stand_still(self) -> None:
        """Wait, in a call, until the hub goes on with it."""
        assert self.hub is not None
        with self.outside.again():
            self.hub.switch()

    # --- memory ------------------------------------------------------------------------------------------------------

    def needs(self, n_calls: int, n_tokens: int) -> RunMemory:
        """Memory that a run takes beside the libraries, about, where each call waits with `n_tokens` tokens."""
        weights = self.weights
        stays = sum(one.nbytes for one in (*self.model.parameters(), *self.model.buffers()) if not one.is_meta)
        shapes = [one.shape for held in weights.away.values() for *_, one in held if one.ndim == 2]
        item, inside = weights.dtype.itemsize, [shape for shape in shapes if max(shape) < LARGE_AXIS] or shapes
        widest, width = max(map(max, inside), default=0), max(map(min, inside), default=0)
        at_once = min(n_tokens, tokens_at_once(weights.reader.device))
        return RunMemory(
            stays, max(map(weights.bytes_of, weights.doors), default=0),
            at_once * item * (PASS_STATES * widest + WAITING_STATES * width),
            n_calls * n_tokens * WAITING_STATES * width * item,
        )  # fmt: skip

    def bytes_for(self, n_calls: int, n_tokens: int) -> int:
        """All of `needs` together."""
        return self.needs(n_calls, n_tokens).total

    def group_size(self, n_tokens: int) -> int:
        """Calls with `n_tokens` tokens each that fit into `memory` together; 0 for any number, their states in a file.

        Raises:
            BadInput: not even one pass fits.
        """
        if self.memory is None:
            return 0
        alone = self.needs(1, n_tokens)
        least = alone.total - alone.states
        if least > self.memory:
            raise BadInput(
                f"--memory {self.memory / 1e9:.3g}GB: one pass through one block takes {least / 1e9:.3g} GB; give more memory"
            )
        return (self.memory - least) // alone.states if alone.states else 0

    def forecast(self, n_calls: int, n_tokens: int) -> str:
        """What is read how often, the memory that it takes, and about how long; the first block's largest tensor is timed."""
        self.told, size = True, min(self.group_size(n_tokens) or n_calls, n_calls)
        times = -(-n_calls // size)
        needs, weights = self.needs(size, n_tokens), self.weights
        filed = max(0, needs.total - self.memory) if self.memory is not None else 0
        read = times * sum(map(weights.stored_bytes, weights.doors))
        operations = 2 * sum(map(weights.multiplied, weights.doors)) * n_tokens * n_calls
        reading, computing = read / weights.bytes_per_second(), operations / weights.operations_per_second()
        return (
            f"read block by block: {n_calls:,} readings of {n_tokens:,} tokens, about {duration(max(reading, computing))}: "
            f"{read / 1e9:,.3g} GB of weights ({'once' if times == 1 else f'{times} times'}) in {duration(reading)}, "
            f"{operations / 1e12:,.3g} TFLOP in {duration(computing)}, at the same time; memory {needs}"
            + f", {filed / 1e9:,.3g} GB of them in a file"
            * bool(filed)
        )

    # --- doors -------------------------------------------------------------------------------------------------------

    def _door(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.weights.doors[name].training:
                raise BadInput(
                    f"{name} is in training mode, which is not read block by block; call eval(), or {NEEDS_WHOLE}"
                )
            if self.states is not None and isinstance(scope := current_scope.get(), Pass):
                self.states.see(scope, (args, kwargs))
            with self.at(name):
                return inner(*args, **kwargs)

        return forward

    def weights_of(self, module: Any) -> AbstractContextManager[None]:
        """Inside, the weights of `module` are in memory, until the model comes to another door."""
        name = next((name for name, one in self.weights.doors.items() if one is module), None)
        return nullcontext() if name is None else self.at(name)

    def at(self, name: str) -> AbstractContextManager[None]:
        """Inside, the weights of door `name` are in memory, until the model comes to another door."""
        scope = current_scope.get()
        if self.hub is None:
            self.weights.fill(name)
            return edits_made(self._edits(EVERYWHERE))
        if not isinstance(scope, Pass):
            raise BadInput(ONE_THREAD)
        while self.weights.open != name:
            scope.door = name
            self._stand_still()
        return nullcontext()


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
