"""What a block does to its stream, found by changing its parameters one slice at a time; where streams run, and what is around.

    probe = BlockProbe(block, args, kwargs, width)
    anatomy = probe.peel()           # from the block's end to its start: norms, linears, how each writes

A parameter writes to a dimension when changing its slice changes that dimension of the output and no other. Switching
off what was found brings the next write to light, until the block returns its input: then nothing was missed.

streams, refused = find_streams(tiny)
before = Surroundings(tiny, streams[0]).before()     # norm, tables and linears that make block 0's input
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from outlierlens.errors import UnknownArchitecture
from outlierlens.models.changes import hang, temporary
from outlierlens.models.proposal.tiny import TinyModel

if TYPE_CHECKING:
    from torch import Tensor, nn

DIM = 3
OUTPUT = ""  # the tap point that is the block's output; others are the inputs of named norms
MAX_STEPS = 16


@dataclass(frozen=True)
class Row:
    """A parameter whose slice along `axis` (from the end) writes to one dimension of the tap point."""

    name: str
    axis: int
    n_axes: int


@dataclass(frozen=True)
class Step:
    """One thing found: a norm of the stream, a norm of a write with the linears before it, or linears that write."""

    kind: Literal["stream", "write", "read"]
    norm: str = ""
    rows: tuple[Row, ...] = ()


@dataclass
class Anatomy:
    """A block taken apart, from its end to its start.

    `idle` are the parts of the block that did not run; `problem` says what stopped the search, if anything did.
    """

    steps: list[Step] = field(default_factory=list)
    reading_norms: tuple[str, ...] = ()
    norm_offset: float = 0.0
    idle: tuple[str, ...] = ()
    problem: str = ""


@dataclass
class _Trace:
    output: "Tensor"
    order: list[str]  # modules in the order they finish
    inputs: dict[str, list["Tensor"]]
    outputs: dict[str, list["Tensor"]]

    def at(self, tap: str) -> "Tensor":
        return self.output if tap == OUTPUT else self.inputs[tap][0]


class BlockProbe:
    """One block with the arguments of a recorded call."""

    def __init__(self, block: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any], width: int):
        self.block, self.args, self.kwargs, self.width = block, args, kwargs, width
        self.given = first_tensor(args or (kwargs.get("hidden_states"),))
        found = {name: norm_offset(module, width) for name, module in block.named_modules()}
        self.norms = {name: offset for name, offset in found.items() if offset is not None}
        self.off: set[str] = set()  # parameters that are switched off: changing one would bring its write back

    def peel(self) -> Anatomy:
        """The block from its end to its start; parameters are put back afterwards."""
        anatomy = Anatomy()
        with restored(self.block):
            self._peel(anatomy)
        return anatomy

    def _peel(self, anatomy: Anatomy) -> None:
        tap = OUTPUT
        ran = {name.partition(".")[0] for name in self._look().order}
        parts = {name for name, _ in self.block.named_parameters() if "." in name}
        anatomy.idle = tuple(
            dict.fromkeys(part for name in sorted(parts) if (part := name.partition(".")[0]) not in ran)
        )
        for _ in range(MAX_STEPS):
            trace = self._look()
            if same(trace.at(tap), self.given):
                break
            seen = {step.norm for step in anatomy.steps}
            norm = next(
                (n for n in self._norms_run(trace) if n not in seen and same(trace.outputs[n][0], trace.at(tap))), ""
            )
            if norm:
                anatomy.steps.append(Step("stream", norm))
                tap = norm
                continue
            rows = self._rows(tap)
            normed = [name for name in self._norms_run(trace) if name in {row.name.rpartition(".")[0] for row in rows}]
            if normed:
                step = Step("write", normed[-1], tuple(self._rows(normed[-1])))
            else:
                step = Step("read", rows=tuple(self._in_order(rows, trace)))
            if not rows or not step.rows:
                anatomy.problem = "no parameter was found that writes to one dimension only"
                return
            anatomy.steps.append(step)
            self._switch_off(step)
        else:
            anatomy.problem = f"after {MAX_STEPS} steps the block still changes its input"
            return
        trace = self._look()
        on_path = {step.norm for step in anatomy.steps}
        # With all writes off, a norm that reads the stream gets the block's input, or what a stream norm made of it.
        stream = [self.given, *(trace.outputs[step.norm][0] for step in anatomy.steps if step.kind == "stream")]
        anatomy.reading_norms = tuple(
            name
            for name in self._norms_run(trace)
            if name not in on_path and any(same(trace.inputs[name][0], states) for states in stream)
        )
        offsets = {self.norms[name] for name in (*on_path - {""}, *anatomy.reading_norms)}
        if len(offsets) > 1:
            anatomy.problem = "some norms multiply by their weight and others by 1 + weight"
        anatomy.norm_offset = max(offsets, default=0.0)

    def _look(self) -> _Trace:
        import torch

        trace = _Trace(self.given, [], {}, {})
        with ExitStack() as hooks, torch.no_grad():
            for name, module in self.block.named_modules():

                def seen(_: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                    trace.order.append(name)
                    if name in self.norms:
                        given = first_tensor(args or tuple(kwargs.values()))
                        trace.inputs.setdefault(name, []).append(self._as_stream(given))
                        trace.outputs.setdefault(name, []).append(self._as_stream(first_tensor(output)))

                hang(hooks, module.register_forward_hook, seen, with_kwargs=True)
            try:
                output = self.block(*_copied(self.args), **_copied(self.kwargs))
            except Exception as error:  # of the family's own code
                said = " ".join(str(error).split())[:200]
                raise UnknownArchitecture(
                    f"a block cannot be run by itself ({type(error).__name__}: {said})"
                ) from error
        trace.output = first_tensor(output).clone()
        return trace

    def _as_stream(self, states: "Tensor") -> "Tensor":
        """A copy in the stream's shape if it can be: OPT's norms get tokens of all inputs in one axis."""
        return states.reshape(self.given.shape).clone() if states.numel() == self.given.numel() else states.clone()

    def _norms_run(self, trace: _Trace) -> list[str]:
        """Norms over the stream's width that ran once, in order."""
        once = [name for name in trace.order if len(trace.outputs.get(name, ())) == 1]
        return [name for name in once if trace.outputs[name][0].shape == self.given.shape]

    def _rows(self, tap: str) -> list[Row]:
        """Parameters that write to one dimension of the tap point and to no other."""
        import torch

        intact = self._look().at(tap)
        rows = []
        random = torch.Generator().manual_seed(0)
        for name, parameter in self.block.named_parameters():
            if name in self.off:
                continue
            for axis in range(parameter.ndim):
                if parameter.shape[axis] != self.width:
                    continue
                with restored(self.block, name), torch.no_grad():
                    part = parameter.select(axis, DIM)
                    part.add_(torch.randn(part.shape, generator=random), alpha=0.5)
                    changed = self._look().at(tap)
                if only_dim_changed(intact, changed):
                    rows.append(Row(name, axis - parameter.ndim, parameter.ndim))
                    break
        return rows

    def _in_order(self, rows: list[Row], trace: _Trace) -> list[Row]:
        """`rows` as their modules run."""
        last = {name: place for place, name in enumerate(trace.order)}
        return sorted(rows, key=lambda row: last.get(row.name.rpartition(".")[0], -1))

    def _switch_off(self, step: Step) -> None:
        import torch

        named = dict(self.block.named_parameters())
        with torch.no_grad():
            if step.kind == "write":
                self.off |= {row.name for row in step.rows}
                for name, parameter in self.block.get_submodule(step.norm).named_parameters():
                    parameter.fill_(-self.norms[step.norm] if name != "bias" else 0.0)
                    self.off.add(f"{step.norm}.{name}")
            else:
                for row in step.rows:
                    named[row.name].zero_()
                    self.off.add(row.name)


def norm_offset(module: "nn.Module", width: int) -> float | None:
    """0.0 for a norm that multiplies by its weight, 1.0 for one that multiplies by 1 + weight, None for no norm.

    A norm is known by what it does: it gives the same for x and 3x, and all zeros with its weight at 0 or −1.
    """
    import torch

    parameters = dict(module.named_parameters())
    if "weight" not in parameters or set(parameters) - {"weight", "bias"}:
        return None
    if any(parameter.shape != (width,) for parameter in parameters.values()):
        return None
    x = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0)) * 4
    try:
        with torch.no_grad(), restored(module):
            if not torch.allclose(module(3 * x), module(x), rtol=1e-3, atol=1e-3):
                return None
            if "bias" in parameters:
                parameters["bias"].zero_()
            for offset in (0.0, 1.0):
                parameters["weight"].fill_(-offset)
                if not module(x).any():
                    return offset
    except (TypeError, RuntimeError, ValueError, AttributeError):
        return None  # it takes something else than one tensor, so it is no plain norm
    return None


def first_tensor(value: Any) -> "Tensor":
    """The tensor, or the first one of a tuple (of tuples): what a block or norm was given, or returned."""
    import torch

    while not isinstance(value, torch.Tensor):
        if not isinstance(value, tuple | list) or not value:
            raise TypeError("no tensor")
        value = value[0]
    return value


def same(left: "Tensor", right: "Tensor") -> bool:
    """Equal but for rounding."""
    import torch

    if left.shape != right.shape:
        return False
    scale = float(right.abs().max())
    return torch.allclose(left, right, rtol=0, atol=2e-6 * max(scale, 1e-6))


def only_dim_changed(before: "Tensor", after: "Tensor", dim: int = DIM) -> bool:
    """Whether the last axis changed at `dim` and, but for rounding, nowhere else."""
    if before.shape != after.shape:
        return False
    change = (after - before).abs().flatten(0, -2).amax(0)  # [dim]
    here = float(change[dim])
    change[dim] = 0
    return here > 1e-5 and float(change.max()) <= 1e-5 * here


@temporary
def restored(module: "nn.Module", *names: str) -> Iterator[None]:
    """Put the parameters (all, or those named) back on the way out."""
    import torch

    named = dict(module.named_parameters())
    saved = {name: named[name].detach().clone() for name in names or named}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, values in saved.items():
                named[name].copy_(values)


def _copied(value: Any) -> Any:
    """Tensors of an argument list cloned: a block may add in place. Keys and values that were kept of a call are left out."""
    import torch
    from transformers import Cache

    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, Cache):
        return None  # it grows with every call
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return tuple(_copied(item) for item in value) if type(value) in (tuple, list) else value


# --- what stands around the blocks -----------------------------------------------------------------------------------


@dataclass
class Stream:
    """A list of blocks that hand on a stream, with what each was given and returned."""

    path: str
    calls: list[tuple[tuple[Any, ...], dict[str, Any], "Tensor", "Tensor"]]
    n_links: int

    @property
    def width(self) -> int:
        return int(self.calls[0][2].shape[-1])


def find_streams(tiny: TinyModel) -> tuple[list[Stream], list[str]]:
    """(streams, what kept a list of blocks from being one).

    A stream is a module list whose members each get what the one before returned; of nested ones, the outermost.
    """
    from torch import nn

    lists = {
        name: list(module)
        for name, module in tiny.model.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(child) for child in module}) == 1
    }
    seen: dict[int, list[Any]] = {}
    ran: set[int] = set()
    with ExitStack() as hooks:
        for block in dict.fromkeys(block for blocks in lists.values() for block in blocks):

            def keep(module: "nn.Module", args: Any, kwargs: Any, output: Any) -> None:
                ran.add(id(module))
                try:
                    given, got = first_tensor(args or (kwargs.get("hidden_states"),)), first_tensor(output)
                except TypeError:
                    return  # not a block of a stream
                if given.ndim == 3 and given.shape == got.shape:
                    seen.setdefault(id(module), []).append((args, kwargs, given.clone(), got.clone()))

            hang(hooks, block.register_forward_hook, keep, with_kwargs=True)
        tiny.run()
    streams: list[Stream] = []
    shared: list[str] = []
    idle: list[str] = []
    for path, blocks in lists.items():
        calls = [seen.get(id(block), []) for block in blocks]
        if any(path.startswith(f"{outer}.") for outer in (*shared, *idle, *(stream.path for stream in streams))):
            continue
        if not any(id(block) in ran for block in blocks):
            idle.append(path)
        elif all(calls) and any(len(call) > 1 for call in calls):
            shared.append(path)
        elif len(blocks) > 1 and all(calls):
            flat = [call[0] for call in calls]
            if n_links := sum(same(flat[i][3], flat[i + 1][2]) for i in range(len(flat) - 1)):
                streams.append(Stream(path, flat, n_links))
    refused = [f"blocks of {path} run several times each; declare them with layer_blocks" for path in shared]
    return streams, refused + [f"blocks of {path} did not run on the inputs that were given" for path in idle]


class Surroundings:
    """What runs before the first block and after the last one."""

    def __init__(self, tiny: TinyModel, stream: Stream):
        self.tiny, self.stream = tiny, stream
        self.complete = False
        self.norms = {
            name
            for name, module in tiny.model.named_modules()
            if not name.startswith(f"{stream.path}.") and norm_offset(module, stream.width) is not None
        }

    def before(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """(embedding norm or "", tables, linears) that write to the first block's input."""
        import torch

        first = f"{self.stream.path}.0"
        traces = self._run()
        norm = next((name for name in self.norms if name in traces and same(traces[name][1], traces[first][0])), "")
        tap = norm or first
        intact = traces[tap][0]
        tables: dict[str, None] = {}
        linears: dict[str, None] = {}
        found: list[tuple[nn.Parameter, int]] = []
        random = torch.Generator().manual_seed(0)
        for name, parameter in self.tiny.model.named_parameters():
            if name.startswith(f"{self.stream.path}."):
                continue
            for axis in {0, parameter.ndim - 1} if parameter.ndim else set():
                if parameter.shape[axis] != self.stream.width:
                    continue
                with torch.no_grad():
                    part = parameter.select(axis, DIM)
                    saved = part.clone()
                    part.add_(torch.randn(part.shape, generator=random), alpha=0.5)
                    changed = self._run()[tap][0]
                    part.copy_(saved)
                if only_dim_changed(intact, changed):
                    found.append((parameter, axis))
                    module, _, leaf = name.rpartition(".")
                    is_table = axis == parameter.ndim - 1 and (leaf != "bias" or parameter.ndim > 1)
                    (tables if is_table else linears)[module if leaf in ("weight", "bias") else name] = None
                    break
        self.complete = self._all_off(found, tap)
        return norm, tuple(tables), tuple(linears)

    def after(self) -> str:
        """The norm that gets the last block's output, all of it or its first token."""
        traces = self._run()
        states = self.stream.calls[-1][3]
        wanted = (states, states[:, 0])
        return next(
            (name for name in self.norms if name in traces and any(same(traces[name][0], w) for w in wanted)), ""
        )

    def _all_off(self, found: list[tuple["nn.Parameter", int]], tap: str) -> bool:
        """Whether the dimension is zero once all that was found is off."""
        import torch

        saved = [(parameter, parameter.detach().clone()) for parameter, _ in found]
        with torch.no_grad():
            for parameter, axis in found:
                parameter.select(axis, DIM).zero_()
            states = self._run()[tap][0][..., DIM]
            for parameter, values in saved:
                parameter.copy_(values)
        return bool(found) and not states.any()

    def _run(self) -> dict[str, tuple["Tensor", "Tensor"]]:
        """{norm or first block: (input, output)} of those that ran once."""
        traces: dict[str, list[tuple[Tensor, Tensor]]] = {}
        with ExitStack() as hooks:
            for name in (*self.norms, f"{self.stream.path}.0"):

                def keep(_: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                    given = first_tensor(args or (kwargs.get("hidden_states"),))
                    traces.setdefault(name, []).append((given.clone(), first_tensor(output).clone()))

                module = self.tiny.model.get_submodule(name)
                hang(hooks, module.register_forward_hook, keep, with_kwargs=True)
            self.tiny.run()
        return {name: calls[0] for name, calls in traces.items() if len(calls) == 1}
