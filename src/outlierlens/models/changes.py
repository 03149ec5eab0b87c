"""Changes of a running model that are undone whatever happens: an error, Ctrl-C at any moment, another order of leaving.

    @temporary                                   # in place of contextmanager
    def zeroed(model, rows):
        with ExitStack() as undo:
            SettableParameters(undo, model).set_values("head.bias", (rows,), 0.0)
            hang(undo, module.register_forward_hook, look)
            yield

    with zeroed(model, [5]):                     # Ctrl-C in here ends the block at once, and everything is put back
        ...

Python runs the handler of a signal between any two steps of a program, and what the handler raises leaves whatever runs there
half done, `__exit__` too. So while such a context is open, handlers wait for the end of its entering or of its leaving.
"""

import functools
import itertools
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from outlierlens.architectures import live_parameters
from outlierlens.architectures.live import held, is_multiplied_out, is_offloaded, refuse_offloaded
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn

BY_BLOCK = "outlierlens_blocks"  # attribute of a model that is read block by block
NEEDS_WHOLE = "load the model whole (--no-by-block)"
T = TypeVar("T")
P = ParamSpec("P")


def temporary(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """A `contextmanager` of which no signal interrupts the entering or the leaving; the block inside is interrupted as ever.

    Ctrl-C during entering undoes what was changed and is raised; during leaving it is raised once everything is put back.
    """
    inner = contextmanager(function)

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Temporary(inner(*args, **kwargs))

    return made


class _Temporary(AbstractContextManager[T]):
    """One context. `state` says what a signal would do to the model; `_WaitingHandler` reads it from the frames that run."""

    def __init__(self, inner: AbstractContextManager[T]):
        self.inner = inner
        self.state: Literal["closed", "changing", "open"] = "closed"

    def __enter__(self) -> T:
        self.state = "changing"
        try:
            _wait(self)
            value = self.inner.__enter__()
            self.state = "open"
            _deliver()
        except BaseException:
            self.give_up()
            raise
        return value

    def give_up(self) -> None:
        """Undo an entering: where it failed, and where it was done and the block inside will not begin."""
        entered, self.state = self.state == "open", "changing"
        try:
            if entered:
                self.inner.__exit__(None, None, None)
        finally:
            self._end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.state = "changing"
        try:
            return self.inner.__exit__(kind, error, trace)
        finally:
            self._end()

    def _end(self) -> None:
        _wait_no_longer(self)
        self.state = "closed"
        _deliver()


# --- signals -------------------------------------------------------------------------------------------------------

# Those that end or time a program: what else Python handles, no handler raises for.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2")
_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
_OPEN: "WeakSet[_Temporary[Any]]" = WeakSet()  # weak: one that is dropped without being left is undone by its generator
_LATER: list[int] = []  # signals that came while a model was being changed, in order


class _WaitingHandler:
    """Stands in front of a signal's handler, and has it wait while the interrupted thread changes a model."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]):
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        entered = []
        at = frame
        while at is not None:
            if at.f_code in (_ENTER, _EXIT, _GIVE_UP):
                context: _Temporary[Any] = at.f_locals["self"]
                # Before its first line an exit is about to change the model; a context that is open changes nothing.
                if context.state == "changing" or (context.state == "open" and at.f_code is not _ENTER):
                    if number not in _LATER:
                        _LATER.append(number)
                    return None
                if context.state == "open":
                    entered.append(context)
            at = at.f_back
        try:
            return self.handler(number, frame)
        except BaseException:
            for context in entered:  # nobody will call the exit of one that is still inside its entering
                context.give_up()
            raise


_ENTER, _EXIT, _GIVE_UP = (one.__code__ for one in (_Temporary.__enter__, _Temporary.__exit__, _Temporary.give_up))


def _in_main_thread() -> bool:
    # Only there does Python run handlers, and only there may they be set.
    return threading.current_thread() is threading.main_thread()


def _wait(context: _Temporary[Any]) -> None:
    """Have handlers wait for `context`."""
    if _in_main_thread():
        if not _OPEN:
            _LATER.clear()
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _WaitingHandler):
                signal.signal(number, _WaitingHandler(handler))
        _OPEN.add(context)


def _wait_no_longer(context: _Temporary[Any]) -> None:
    """Put the handlers back once no context is open."""
    _OPEN.discard(context)
    if _in_main_thread() and not _OPEN:
        try:
            _put_handlers_back()
        except BaseException:  # what a handler raised that was put back already: the others are due all the same
            _put_handlers_back()
            raise


def _put_handlers_back() -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, _WaitingHandler):
            signal.signal(number, handler.handler)


def _deliver() -> None:
    """Run the handlers of signals that came meanwhile, each of them; inside an outer context's entering they wait on."""
    if _LATER and _in_main_thread():
        came, _LATER[:] = _LATER[:], []
        with ExitStack() as each:
            for number in reversed(came):
                each.callback(signal.raise_signal, number)


# --- hooks ---------------------------------------------------------------------------------------------------------


class Scope:
    """Where changes of a model that is read block by block hold: everywhere, or in one pass and those that it starts.

    Attributes:
        outer: the pass that started this one, else `EVERYWHERE`. edits: values to set whenever their block is there.
    """

    def __init__(self, outer: "Scope | None" = None):
        self.outer = outer
        self.edits: list[Edit] = []

    @property
    def chain(self) -> "list[Scope]":
        """This scope and those around it, outermost first."""
        return [*(self.outer.chain if self.outer else ()), self]


class Edit(NamedTuple):
    """Values of a parameter in a scope: set at `at` to `values`, or to what these make of the parameter."""

    parameter: "Tensor"
    at: Any
    values: Any


EVERYWHERE = Scope()
current_scope: "ContextVar[Scope]" = ContextVar("current_scope", default=EVERYWHERE)


class OfPass(Generic[T]):
    """A value that each pass of a model read block by block has its own of, made when it is first asked for."""

    def __init__(self, make: Callable[[], T]):
        self.make = make
        self.values: WeakKeyDictionary[Scope, T] = WeakKeyDictionary()

    def __call__(self) -> T:
        scope = current_scope.get()
        if scope not in self.values:
            self.values[scope] = self.make()
        return self.values[scope]


def hang(undo: ExitStack, register: Callable[..., Any], look: Callable[..., Any], **settings: Any) -> None:
    """Register a hook, with such as `module.register_forward_hook`, until `undo` is closed; in copies it does nothing.

    Inside a pass of a model that is read block by block, it is called in that pass and in those that this one starts.
    """
    scope = current_scope.get()
    hook = _Hook(look) if scope is EVERYWHERE else _Hook(_inside, scope, look)
    undo.callback(register(hook, **settings).remove)


def _inside(scope: Scope, look: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    return look(*args, **settings) if scope in current_scope.get().chain else None


class _Hook(functools.partial[Any]):
    """What a module calls. A copy of the model, in memory or in a pickle, is one of the model without the context."""

    def __reduce__(self) -> Any:
        return _Hook, (_nothing,)


def _nothing(*_: Any, **__: Any) -> None:
    """What a copied hook calls."""


# --- values --------------------------------------------------------------------------------------------------------


@temporary
def evaluating(model: Any) -> Iterator[None]:
    """Every module in evaluation mode inside; those that were training train again afterwards, each by itself.

    One walk over the modules at each end. Not `eval()`: adapters merge their weights there.
    """
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@temporary
def frozen(model: Any, but: Collection[str] = ()) -> Iterator[None]:
    """No gradients of parameters inside, but of those named: only they are wanted, or those of hidden states or outputs."""
    if but:
        refuse_offloaded(model, "a gradient of weights")
    before = {name: one.requires_grad for name, one in model.named_parameters(remove_duplicate=False)}
    try:
        model.requires_grad_(False)
        for name in but:
            model.get_parameter(name).requires_grad_(True)
        yield
    finally:
        for name, parameter in model.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(before.get(name, parameter.requires_grad))


class SettableParameters:
    """The parameters of `model` by name, of which values can be set until `undo` is closed.

    They come back in whatever order contexts end, bit for bit, or cast where the model was cast meanwhile; into what stands
    under the parameter's names by then. `parameters` are those of `model`, where they are at hand: to list them takes time.

    Raises:
        BadInput: when `undo` is closed, where no tensor stands there that can hold them. All others are back by then.
    """

    def __init__(self, undo: ExitStack, model: "nn.Module", parameters: "Mapping[str, Tensor] | None" = None):
        self.undo, self.model = undo, model
        self.parameters = live_parameters(model) if parameters is None else parameters
        self.lost: list[str] = []
        undo.callback(self._check)

    def set_values(self, name: str, at: Any, values: Any) -> None:
        """Set parameter `name` at `at` to `values`, or to what a function makes of the parameter as it is then.

        Of a model that is read block by block, values are set in the current scope, whenever their block is there.

        Raises:
            BadInput: it holds no values of its own that can be set, or another thread has it changed at the moment.
        """
        given, mine, scope = self.parameters[name], threading.get_ident(), current_scope.get()
        if (blocks := getattr(self.model, BY_BLOCK, None)) is not None:
            given = blocks.weights.standing(given)
        if blocks is not None and (given.is_meta or scope is not EVERYWHERE):
            scope.edits.append(edit := Edit(given, at, values))
            self.undo.callback(_forget, scope, edit)
            return
        if callable(values):
            values = values(given)
        with _LOCK:
            codes = is_multiplied_out(given)
            if codes or given.is_meta or not given.is_floating_point():
                what = (
                    "not loaded (meta device)" if given.is_meta else "in codes" if codes else f"of type {given.dtype}"
                )
                raise BadInput(f"{name} is {what}: its values cannot be set; load the model unquantized")
            live, let_go = held(given) if is_offloaded(given) else (given, None)
            if let_go is not None:
                self.undo.callback(_locked, let_go)
            if any(one.thread != mine and _memory(live) in one.memory() for one in _CHANGES.values()):
                raise BadInput(
                    f"another thread has values of {name} changed at the moment, and what either measures would be of both "
                    "changes; let one end before the other begins, or give each thread a model of its own"
                )
            change = _CHANGES[next(_NUMBERS)] = _Change(self, given, live, at, mine)
            self.undo.callback(change.undo)
            change.put(values)

    def _check(self) -> None:
        if self.lost:
            raise BadInput(
                f"values of {self.lost[0]}{' and others' if self.lost[1:] else ''} were changed and cannot come back: it was "
                "replaced inside the block, or is on the meta device; load the model anew, and do that outside the block"
            )


def _forget(scope: Scope, edit: Edit) -> None:
    scope.edits[:] = [one for one in scope.edits if one is not edit]


def edited_copy(values: "Tensor", parameter: "Tensor") -> "Tensor":
    """`values` of a parameter, with the values that the current scope sets."""
    for scope in current_scope.get().chain:
        for edit in scope.edits:
            if edit.parameter is parameter:
                _write(values, edit.at, edit.values(values) if callable(edit.values) else edit.values)
    return values


@temporary
def edits_made(edits: Sequence[tuple["Tensor", Edit]]) -> Iterator[None]:
    """Inside, what is there of these parameters has the edits' values; they come back bit for bit, the last first."""
    with ExitStack() as undo:
        for live, edit in edits:
            undo.callback(_write, live, edit.at, _read(live, edit.at))
            _write(live, edit.at, edit.values(live) if callable(edit.values) else edit.values)
        yield


_LOCK = threading.RLock()
_NUMBERS = itertools.count()
# In the order they were made; weak, so that a change which is kept for good is forgotten with the stack that would undo it.
_CHANGES: "WeakValueDictionary[int, _Change]" = WeakValueDictionary()


class _Change:
    """Values of a parameter that are changed at the moment, and what was there before."""

    def __init__(self, owner: SettableParameters, given: "Tensor", live: "Tensor", at: Any, thread: int):
        self.owner, self.given, self.live, self.at, self.thread = owner, given, live, at, thread
        self.names = [name for name, one in owner.parameters.items() if one is given]
        self.shape, self.before = live.shape, _read(live, at)

    def tensors(self) -> list["Tensor"]:
        """The parameter, and by name what stands in its place in the model now, where that can hold its values."""
        found = [self.live]
        for name in self.names:
            with suppress(AttributeError):  # it is computed from others now, or its module is gone
                one: Tensor = self.owner.model.get_parameter(name)
                one = self.live if one.is_meta and is_offloaded(self.given) else one
                if one.shape == self.shape and one.is_floating_point() and not one.is_meta:
                    found.append(one)
        return found

    def memory(self) -> set[int]:
        """Where these begin in memory."""
        return {_memory(one) for one in self.tensors()}

    def put(self, values: Any) -> None:
        """Put `values` there."""
        for live in {id(one): one for one in self.tensors()}.values():
            _write(live, self.at, values)

    def undo(self) -> None:
        """Put back what was there; what later changes of the same tensor have set stays, until they are undone."""
        with _LOCK:
            number = next((number for number, change in _CHANGES.items() if change is self), None)
            if number is None:
                return
            if len(self.tensors()) <= len(self.names):
                self.owner.lost.append(self.names[0])
            mine = self.memory()
            later = [one for key, one in _CHANGES.items() if key > number and not mine.isdisjoint(one.memory())]
            now = []
            for change in reversed(later):  # back to the moment after this change
                now.append(_read(change.tensors()[-1], change.at))
                change.put(change.before)
            self.put(self.before)
            del _CHANGES[number]
            for change in later:  # and forward again, as if this one had never been
                change.before = _read(change.tensors()[-1], change.at)
                change.put(now.pop())


def _locked(let_go: Callable[[], None]) -> None:
    with _LOCK:
        let_go()


def _memory(live: "Tensor") -> int:
    return live.untyped_storage().data_ptr()


def _read(live: "Tensor", at: Any) -> "Tensor":
    return live.detach()[_moved(at, live)].clone()


def _write(live: "Tensor", at: Any, values: Any) -> None:
    import torch

    # Tensors that were made in inference mode take new values nowhere else.
    with torch.inference_mode() if live.is_inference() else torch.no_grad():
        live[_moved(at, live)] = values.to(live) if isinstance(values, torch.Tensor) else values


def _moved(at: Any, live: "Tensor") -> Any:
    if isinstance(at, tuple):
        return tuple(_moved(one, live) for one in at)
    return at.to(live.device) if hasattr(at, "to") else at
