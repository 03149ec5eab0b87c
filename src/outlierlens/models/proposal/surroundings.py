"""Where the streams of a small model run, and what stands before and after them.

streams, refused = find_streams(tiny)
before = Surroundings(tiny, streams[0]).before()     # norm, tables and linears that make block 0's input
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.models.changes import hang
from outlierlens.models.proposal.probe import DIM, first_tensor, norm_offset, only_dim_changed, same
from outlierlens.models.proposal.tiny import TinyModel

if TYPE_CHECKING:
    from torch import Tensor, nn


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
