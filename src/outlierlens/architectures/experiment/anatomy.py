"""What a block does to its stream, found by changing its parameters one slice at a time.

    probe = BlockProbe(block, args, kwargs, width)
    anatomy = probe.peel()           # from the block's end to its start: norms, linears, how each writes

A parameter writes to a dimension when changing its slice changes that dimension of the output and no other; where a block mixes
copies of its stream, when it changes that one most. Switching off what was found brings the next write to light, until a
dimension that comes in as 0 goes out as 0: then nothing was missed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from outlierlens.errors import UnknownArchitecture

if TYPE_CHECKING:
    from torch import Tensor, nn

DIM = 3
OUTPUT = ""  # the tap point that is the block's output; others are the inputs of named norms
MAX_STEPS = 16
MIXED = 0.25  # of the change of the dimension, that of any other


@dataclass(frozen=True)
class WriteSlice:
    """A parameter whose slice along `axis` (from the end) writes to one dimension of the tap point."""

    name: str
    axis: int
    n_axes: int


@dataclass(frozen=True)
class Step:
    """One thing found: a norm of the stream, a norm of a write with the linears before it, or linears that write."""

    kind: Literal["stream", "write", "read"]
    norm: str = ""
    rows: tuple[WriteSlice, ...] = ()


@dataclass
class Anatomy:
    """A block taken apart, from its end to its start.

    Attributes:
        idle: parts of the block that did not run. mixed: parameters whose slice changes other dimensions, too, if less.
        raw_readers: linears that read the stream without a norm. scales: {linear: vector that multiplies what it writes}.
        complete: nothing else writes. problem: what stopped the search, "" for nothing.
    """

    steps: list[Step] = field(default_factory=list)
    reading_norms: tuple[str, ...] = ()
    norm_offset: float = 0.0
    idle: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    raw_readers: tuple[str, ...] = ()
    scales: dict[str, str] = field(default_factory=dict)
    complete: bool = True
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
        self.given = given_to(args, kwargs)
        found = {name: norm_offset(module, width) for name, module in block.named_modules()}
        self.norms = {name: offset for name, offset in found.items() if offset is not None}
        self.off: set[str] = set()  # parameters that are switched off: changing one would bring its write back

    def silent(self, tap: str = OUTPUT) -> bool:
        """Whether nothing writes with the parameters as they are now: the dimension is 0 at `tap` where it comes in as 0."""
        return not self._look(factor=0.0).at(tap)[..., DIM].any()

    def peel(self) -> Anatomy:
        """The block from its end to its start; parameters are put back afterwards."""
        anatomy = Anatomy()
        with restored(self.block):
            self._peel(anatomy)
        anatomy.scales = {linear: one for step in anatomy.steps for linear, one in self._scales(step.rows)}
        return anatomy

    def _scales(self, rows: tuple[WriteSlice, ...]) -> Iterator[tuple[str, str]]:
        """(linear, vector that multiplies what it writes): twice the one and half of the other give the same."""
        intact, named = self.output(), dict(self.block.named_parameters())
        linears = [row for row in rows if row.n_axes > 1]
        for vector in (row.name for row in rows if row.n_axes == 1 and row.name.rpartition(".")[2] != "bias"):
            for row in linears:
                bias = named.get(f"{row.name.rpartition('.')[0]}.bias")
                with restored(self.block):
                    for one, factor in ((named[row.name], 2.0), (bias, 2.0), (named[vector], 0.5)):
                        if one is not None:
                            one.mul_(factor)
                    if same(self.output(), intact):
                        yield row.name, vector

    def _peel(self, anatomy: Anatomy) -> None:
        tap = OUTPUT
        ran = {name.partition(".")[0] for name in self._look().order}
        parts = {name for name, _ in self.block.named_parameters() if "." in name}
        anatomy.idle = tuple(
            dict.fromkeys(part for name in sorted(parts) if (part := name.partition(".")[0]) not in ran)
        )
        for _ in range(MAX_STEPS):
            if self.silent(tap):
                break
            trace = self._look()
            seen = {step.norm for step in anatomy.steps}
            norm = next(
                (n for n in self._norms_run(trace) if n not in seen and same(trace.outputs[n][0], trace.at(tap))), ""
            )
            if norm:
                anatomy.steps.append(Step("stream", norm))
                tap = norm
                continue
            rows = self._rows(tap)
            if not rows and (rows := self._rows(tap, alone=False)):
                anatomy.mixed += tuple(row.name for row in rows)
            normed = [name for name in self._norms_run(trace) if name in {row.name.rpartition(".")[0] for row in rows}]
            if normed:
                step = Step("write", normed[-1], tuple(self._rows(normed[-1])))
            else:
                step = Step("read", rows=tuple(self._in_order(rows, trace)))
            if not step.rows:
                anatomy.complete = False
                break
            if step.kind == "write" and not anatomy.mixed:
                self.off |= {row.name for row in step.rows}
            anatomy.steps.append(step)
            self._switch_off(step)
        else:
            anatomy.problem = f"after {MAX_STEPS} steps something still writes"
            return
        if not any(step.rows for step in anatomy.steps):
            anatomy.problem = (
                "no parameter was found that writes to one dimension only"
                if not anatomy.complete
                else "it adds nothing to its input"
            )
            return
        raw = {row.name for step in anatomy.steps if step.kind == "read" for row in step.rows}
        # A norm between a linear and the stream is on the way of its write only if the linear has no other way.
        anatomy.steps = [
            step for step in anatomy.steps if step.kind != "write" or not raw & {row.name for row in step.rows}
        ]
        trace = self._look()
        on_path = {step.norm for step in anatomy.steps}
        # With all writes off, a norm that reads the stream gets the block's input, or what a stream norm made of it.
        stream = [self.given, *(trace.outputs[step.norm][0] for step in anatomy.steps if step.kind == "stream")]
        anatomy.reading_norms = tuple(
            name
            for name in self._norms_run(trace)
            if name not in on_path and any(same(trace.inputs[name][0], states) for states in stream)
        )
        anatomy.raw_readers = self._reading(stream) if anatomy.steps[0].kind != "stream" else ()
        offsets = {self.norms[name] for name in (*on_path - {""}, *anatomy.reading_norms)}
        if len(offsets) > 1:
            anatomy.problem = "some norms multiply by their weight and others by 1 + weight"
        anatomy.norm_offset = max(offsets, default=0.0)

    def _reading(self, stream: list["Tensor"]) -> tuple[str, ...]:
        """Linears that get one of these states themselves."""
        found: dict[str, None] = {}
        with ExitStack() as hooks:
            for name, module in self.block.named_modules():
                weight = getattr(module, "weight", None)
                if weight is None or getattr(weight, "ndim", 0) != 2:
                    continue

                def seen(_: Any, args: Any, kwargs: Any, name: str = name) -> None:
                    with suppress(TypeError):
                        if any(same(self._as_stream(given_to(args, kwargs)), states) for states in stream):
                            found[name] = None

                hooks.enter_context(module.register_forward_pre_hook(seen, with_kwargs=True))
            self._look()
        return tuple(found)

    def output(self, *, track: bool = False, factor: float | None = None) -> "Tensor":
        """What the block gives with the parameters as they are now, and states that are multiplied by `factor`.

        `track` keeps how it depends on the parameters.
        """
        return self._look(track=track, factor=factor).output

    def _look(self, *, track: bool = False, factor: float | None = None) -> _Trace:
        """What one run of the block shows; `track` keeps how its states depend on the parameters.

        It is given states that are multiplied by `factor`; by 0 in their dimension `DIM` alone.
        """
        import torch

        trace = _Trace(self.given, [], {}, {})
        with ExitStack() as hooks, torch.set_grad_enabled(track):
            for name, module in self.block.named_modules():

                def seen(_: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                    trace.order.append(name)
                    if name in self.norms:
                        trace.inputs.setdefault(name, []).append(self._as_stream(given_to(args, kwargs)))
                        trace.outputs.setdefault(name, []).append(self._as_stream(first_tensor(output)))

                hooks.enter_context(module.register_forward_hook(seen, with_kwargs=True))
            try:
                changed = None if factor is None else self.given
                times = factor or 0.0
                output = self.block(*_copied(self.args, changed, times), **_copied(self.kwargs, changed, times))
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
        return [name for name in once if trace.outputs[name][0].shape[-1] == self.width]

    def _rows(self, tap: str, *, alone: bool = True) -> list[WriteSlice]:
        """Parameters that write to one dimension of the tap point and to no other, or not `alone` but to that one most."""
        named = {name: p for name, p in self.block.named_parameters() if name not in self.off and self.width in p.shape}
        intact = self._look().at(tap)
        rows: list[WriteSlice] = []
        most = 1e-5 if alone else MIXED
        for name, axis in candidates(lambda: self._look(track=True).at(tap), named, self.width, alone=alone):
            with changed_at(named[name], axis):
                changed = self._look().at(tap)
            if only_dim_changed(intact, changed, most=most) and name not in {row.name for row in rows}:
                rows.append(WriteSlice(name, axis - named[name].ndim, named[name].ndim))
        return rows

    def _in_order(self, rows: list[WriteSlice], trace: _Trace) -> list[WriteSlice]:
        """`rows` as their modules run."""
        last = {name: place for place, name in enumerate(trace.order)}
        return sorted(rows, key=lambda row: last.get(row.name.rpartition(".")[0], -1))

    def _switch_off(self, step: Step) -> None:
        import torch

        named = dict(self.block.named_parameters())
        with torch.no_grad():
            if step.kind == "write":
                for name, parameter in self.block.get_submodule(step.norm).named_parameters():
                    parameter.fill_(-self.norms[step.norm] if name != "bias" else 0.0)
                    self.off.add(f"{step.norm}.{name}")
            else:
                for row in step.rows:
                    named[row.name].zero_()
                    self.off.add(row.name)


def candidates(
    states: Callable[[], "Tensor"], named: Mapping[str, "nn.Parameter"], width: int, *, alone: bool = True
) -> list[tuple[str, int]]:
    """(parameter, axis from the start) whose slices each may write to one dimension of `states` `alone`, by their derivatives.

    A slice that writes to `DIM` alone is all that `DIM` depends on in its parameter, and nothing else depends on it. Where
    states cannot be differentiated, every axis as wide as the stream.
    """
    import torch

    every = [(name, axis) for name, one in named.items() for axis in range(one.ndim) if one.shape[axis] == width]
    if not every:
        return []
    try:
        found = states()
        weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)) * found.detach().abs().clamp(
            min=1e-3
        )
        here = torch.zeros_like(weights)
        here[..., DIM] = weights[..., DIM]
        totals = ((found * here).sum(), (found * (weights - here)).sum())
        of_dim, of_rest = (
            torch.autograd.grad(total, list(named.values()), retain_graph=True, allow_unused=True) for total in totals
        )
    except RuntimeError:
        return every
    mine, others = dict(zip(named, of_dim, strict=True)), dict(zip(named, of_rest, strict=True))

    def may_write(name: str, axis: int) -> bool:
        gradient, rest = mine[name], others[name]
        if gradient is None:
            return False
        by_slice = gradient.abs().movedim(axis, 0).reshape(width, -1).sum(1)  # [width]
        at = float(by_slice[DIM])
        besides = 0.0 if rest is None else float(rest.select(axis, DIM).abs().sum())
        return at > 0 and (not alone or (float(by_slice.sum()) - at <= 1e-4 * at and besides <= 1e-4 * at))

    return [(name, axis) for name, axis in every if may_write(name, axis)]


@contextmanager
def changed_at(parameter: "nn.Parameter", axis: int) -> Iterator[None]:
    """The slice `DIM` of a parameter changed inside."""
    import torch

    part = parameter.detach().select(axis, DIM)
    saved = part.clone()
    part.add_(torch.randn(part.shape, generator=torch.Generator().manual_seed(1)), alpha=0.5)
    try:
        yield
    finally:
        part.copy_(saved)


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
            if not torch.allclose(first_tensor(module(3 * x)), first_tensor(module(x)), rtol=1e-3, atol=1e-3):
                return None
            if "bias" in parameters:
                parameters["bias"].zero_()
            for offset in (0.0, 1.0):
                parameters["weight"].fill_(-offset)
                if not first_tensor(module(x)).any():
                    return offset
    except (TypeError, RuntimeError, ValueError, AttributeError):
        return None  # it takes something else than one tensor, so it is no plain norm
    return None


def first_tensor(value: Any) -> "Tensor":
    """The tensor, or the first one of floats in a tuple (of tuples) or a table: what a block or norm was given, or returned.

    Raises:
        TypeError: there is none.
    """
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return value
    elif isinstance(value, Mapping | tuple | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            with suppress(TypeError):
                return first_tensor(one)
    raise TypeError("no tensor of floats")


def given_to(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "Tensor":
    """The states that a module was called with: the first tensor of floats; raises TypeError where there is none."""
    return first_tensor((args, kwargs))


def same(left: "Tensor", right: "Tensor", within: float = 2e-6) -> bool:
    """Equal but for rounding, `within` a share of the largest value."""
    import torch

    if left.shape != right.shape:
        return False
    scale = float(right.abs().max())
    return torch.allclose(left, right, rtol=0, atol=within * max(scale, 1e-6))


def only_dim_changed(before: "Tensor", after: "Tensor", dim: int = DIM, *, most: float = 1e-5) -> bool:
    """Whether the last axis changed at `dim` and nowhere else by more than the share `most` of that: but for rounding."""
    if before.shape != after.shape:
        return False
    change = (after - before).abs().flatten(0, -2).amax(0)  # [dim]
    here = float(change[dim])
    change[dim] = 0
    return here > 1e-5 and float(change.max()) <= most * here


@contextmanager
def restored(module: "nn.Module") -> Iterator[None]:
    """Put the parameters back on the way out."""
    import torch

    named = dict(module.named_parameters())
    saved = {name: named[name].detach().clone() for name in named}
    try:
        with torch.no_grad():
            yield
    finally:
        with torch.no_grad():
            for name, values in saved.items():
                named[name].copy_(values)


def _copied(value: Any, changed: "Tensor | None" = None, factor: float = 0.0) -> Any:
    """Tensors of an argument list cloned: a block may add in place. Keys and values that were kept of a call are left out.

    The tensor `changed` is multiplied by `factor` in the copy; by 0 in its dimension `DIM` alone.
    """
    import torch
    from transformers import Cache

    if isinstance(value, torch.Tensor):
        copy = value.clone()
        if changed is not None and value is changed:
            (copy if factor else copy[..., DIM]).mul_(factor)
        return copy
    if isinstance(value, Cache):
        return None  # it grows with every call
    if isinstance(value, dict):
        return {key: _copied(item, changed, factor) for key, item in value.items()}
    return tuple(_copied(item, changed, factor) for item in value) if type(value) in (tuple, list) else value
