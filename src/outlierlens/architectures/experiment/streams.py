"""Where a small model has residual streams, what stands around their blocks, and how files name its parameters.

    streams, refused = find_streams(small)
    before = Surroundings(small, streams[0], streams).before()     # norm, tables and linears that make block 0's input
    files = FileNames(small)
    files.block(path, n_blocks, names)      # where files have the blocks, and what they call parameters inside
    files.whole("model.embed_tokens.weight")

A stream is a list of blocks that each get what the one before returned; nothing is concluded from a name. The model is saved,
and each parameter is found again by its values.
"""

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.experiment.anatomy import (
    DIM,
    candidates,
    changed_at,
    first_tensor,
    given_to,
    norm_offset,
    only_dim_changed,
    same,
)
from outlierlens.architectures.experiment.small import SmallModel
from outlierlens.architectures.live import live_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Call:
    """A block's call: its arguments, the states that it was given, and what it made of them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: "Tensor"
    got: "Tensor"


@dataclass
class Stream:
    """A list of blocks that hand on a stream: its path, one call of each block, and between how many the states are equal."""

    path: str
    calls: list[Call]
    n_links: int

    @property
    def width(self) -> int:
        """Number of dimensions."""
        return int(self.calls[0].got.shape[-1])


def find_streams(small: SmallModel) -> tuple[list[Stream], list[str]]:
    """(streams, what kept a list of blocks from being one); of nested lists, the outermost."""
    from torch import nn

    lists = {
        name: list(module)
        for name, module in small.model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        and len(module) > 1
        and not all(isinstance(one, nn.ModuleList) for one in module)  # of lists, which never run
    }
    seen: dict[int, list[Call]] = {}
    ran: set[int] = set()
    shapes: dict[int, list[int]] = {}  # of what is handed on and is no stream of [batch, token, dim]
    with ExitStack() as hooks:
        for block in dict.fromkeys(block for blocks in lists.values() for block in blocks):

            def keep(module: "nn.Module", args: Any, kwargs: Any, output: Any) -> None:
                ran.add(id(module))
                try:
                    given, got = given_to(args, kwargs), first_tensor(output)
                except TypeError:
                    return  # not a block of a stream
                if given.shape == got.shape and given.ndim < 3:
                    shapes[id(module)] = list(got.shape)
                elif given.shape == got.shape:
                    seen.setdefault(id(module), []).append(Call(args, kwargs, given.clone(), got.clone()))

            hooks.enter_context(block.register_forward_hook(keep, with_kwargs=True))
        small.run()
    streams: list[Stream] = []
    shared: list[str] = []
    idle: list[str] = []
    for path, blocks in lists.items():
        calls = [seen.get(id(block), []) for block in blocks]
        if any(path.startswith(f"{outer}.") for outer in (*shared, *idle, *(stream.path for stream in streams))):
            continue
        large = [len(list(block.parameters())) > 2 for block in blocks]
        if not any(id(block) in ran for block in blocks):
            idle += [path] * all(large)
        elif all(calls) and any(len(call) > 1 for call in calls):
            shared += [path] * all(large)
        elif all(calls) and all(large):
            flat = [call[0] for call in calls]
            if n_links := sum(same(flat[i].got, flat[i + 1].given) for i in range(len(flat) - 1)):
                streams.append(Stream(path, flat, n_links))
    refused = [f"blocks of {path} run several times each; declare them with layer_blocks" for path in shared]
    refused += [
        f"blocks of {path} hand on {shapes[id(blocks[-1])]}, not [batch, token, dim]"
        for path, blocks in lists.items()
        if all(id(block) in shapes and len(list(block.parameters())) > 2 for block in blocks)
    ]
    return streams, refused + [f"blocks of {path} did not run on the inputs that were given" for path in idle]


class Surroundings:
    """What runs before the first block and after the last one."""

    def __init__(self, small: SmallModel, stream: Stream, streams: Sequence[Stream]):
        self.small, self.stream = small, stream
        self.complete = self.scales = False  # all that writes was found; factors on it are factors of the stream
        inside = tuple(f"{one.path}." for one in streams)
        self.live = live_parameters(small.model)
        self.parameters = {name: p for name, p in small.model.named_parameters() if not name.startswith(inside)}
        self.norms = {
            name
            for name, module in small.model.named_modules()
            if not name.startswith(inside) and norm_offset(module, stream.width) is not None
        }

    def before(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """(embedding norm or "", tables, linears) that write to the first block's input."""
        first = f"{self.stream.path}.0"
        traces = self._run(whole=False)
        norm = next((name for name in self.norms if name in traces and same(traces[name][1], traces[first][0])), "")
        tap = norm or first
        intact = traces[tap][0]
        tables: dict[str, None] = {}
        linears: dict[str, None] = {}
        found: list[tuple[nn.Parameter, int]] = []
        named = {name: one for name, one in self.parameters.items() if self.stream.width in one.shape}
        for name, axis in candidates(lambda: self._run(track=True, whole=False)[tap][0], named, self.stream.width):
            parameter = named[name]
            if axis not in (0, parameter.ndim - 1) or any(parameter is one for one, _ in found):
                continue
            with changed_at(parameter, axis):
                changed = self._run(whole=False)[tap][0]
            if only_dim_changed(intact, changed):
                found.append((parameter, axis))
                module, _, leaf = self._inside(name).rpartition(".")
                is_table = axis == parameter.ndim - 1 and (leaf != "bias" or parameter.ndim > 1)
                path = f"{module}.{leaf}" if module else leaf
                (tables if is_table else linears)[module if leaf in ("weight", "bias") else path] = None
        self.complete = self._all_off(found, tap)
        self.scales = self.complete and self._is_doubled([parameter for parameter, _ in found], tap)
        return norm, tuple(tables), tuple(linears)

    def _inside(self, name: str) -> str:
        """A parameter's name in the model without its heads, where it has one there, too."""
        live = self.live
        return next(
            (one for one, values in live.items() if values is live[name] and one.startswith(self.small.prefix)), name
        )

    def _is_doubled(self, found: Sequence["nn.Parameter"], tap: str) -> bool:
        """Whether twice what these parameters hold gives twice what comes of them."""
        import torch

        intact = self._run(whole=False)[tap][0]
        with torch.no_grad():
            for parameter in found:
                parameter.mul_(2)
            doubled = self._run(whole=False)[tap][0]
            for parameter in found:
                parameter.mul_(0.5)
        return torch.allclose(doubled, 2 * intact, rtol=0, atol=1e-3 * float(intact.abs().max()))

    def after(self) -> str:
        """The norm that gets the last block's output, all of it or its first token."""
        traces = self._run()
        states = self.stream.calls[-1].got
        wanted = (states, states[:, 0])
        return next(
            (name for name in sorted(self.norms) if name in traces and any(same(traces[name][0], w) for w in wanted)),
            "",
        )

    def _all_off(self, found: list[tuple["nn.Parameter", int]], tap: str) -> bool:
        """Whether the dimension is zero once all that was found is off."""
        import torch

        saved = [(parameter, parameter.detach().clone()) for parameter, _ in found]
        with torch.no_grad():
            for parameter, axis in found:
                parameter.select(axis, DIM).zero_()
            states = self._run(whole=False)[tap][0][..., DIM]
            for parameter, values in saved:
                parameter.copy_(values)
        return bool(found) and not states.any()

    def _run(self, *, track: bool = False, whole: bool = True) -> dict[str, tuple["Tensor", "Tensor"]]:
        """{norm or first block: (input, output)} of those that ran once; else up to the first block, whose output is empty."""
        traces: dict[str, list[tuple[Tensor, Tensor]]] = {}
        first = f"{self.stream.path}.0"

        def begins(_: Any, args: Any, kwargs: Any) -> None:
            states = given_to(args, kwargs).clone()
            traces.setdefault(first, []).append((states, states[:0]))
            raise _FirstBlock

        with ExitStack() as hooks:
            for name in (*self.norms, *((first,) if whole else ())):

                def keep(_: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                    traces.setdefault(name, []).append((given_to(args, kwargs).clone(), first_tensor(output).clone()))

                module = self.small.model.get_submodule(name)
                hooks.enter_context(module.register_forward_hook(keep, with_kwargs=True))
            if not whole:
                block = self.small.model.get_submodule(first)
                hooks.enter_context(block.register_forward_pre_hook(begins, with_kwargs=True))
                hooks.enter_context(suppress(_FirstBlock))
            self.small.run(track=track)
        return {name: calls[0] for name, calls in traces.items() if len(calls) == 1}


class _FirstBlock(Exception):
    """Ends a pass at the first block."""


@dataclass(frozen=True)
class StoredBlocks:
    """Blocks in files: their path with "{layer}", other names by the live one inside a block, and live names not found."""

    path: str
    names: Mapping[str, str]
    lacking: tuple[str, ...]


class FileNames:
    """The names of a saved copy."""

    def __init__(self, small: SmallModel):
        self.live: dict[str, Tensor] = dict(small.model.named_parameters(remove_duplicate=False))
        self.stored: dict[str, list[str]] = {}
        for name, values in saved(small).items():
            self.stored.setdefault(_digest(values), []).append(name)

    def whole(self, name: str) -> str:
        """The name in files of a live parameter, "{expert}" where experts stand one by one; "" where there is none."""
        values = self.live.get(name)
        if values is None:
            return ""
        found = [
            *self.stored.get(_digest(values), ()),
            *(self.stored.get(_digest(values.T), ()) if values.ndim == 2 else ()),
        ]
        if found:
            return min(found, key=lambda one: (not one.endswith(name), one != name, len(one), one))
        if values.ndim < 3:
            return ""
        for turned in (values, values.transpose(-1, -2)):
            each = [self.stored.get(_digest(part), [""])[0] for part in turned]
            if all(each) and (pattern := numbered(dict(enumerate(each)), "{expert}")):
                return pattern
        return ""

    def block(self, path: str, n_blocks: int, names: Collection[tuple[int, str]]) -> StoredBlocks:
        """`names` are (number of a block that has it, parameter inside)."""
        found: dict[str, dict[int, str]] = {}
        for layer, inside in names:
            found.setdefault(inside, {})[layer] = self.whole(f"{path}.{layer}.{inside}")
        patterns = {inside: numbered(each, "{layer}") for inside, each in found.items() if all(each.values())}
        parts = {inside: pattern.partition("{layer}.") for inside, pattern in patterns.items() if "{layer}." in pattern}
        paths = Counter(head for head, _, _ in parts.values())
        if not paths:
            return StoredBlocks("", {}, tuple(found))
        head = paths.most_common(1)[0][0]
        other = {inside: tail for inside, (before, _, tail) in parts.items() if before == head and tail != inside}
        lacking = [inside for inside in found if inside not in parts or parts[inside][0] != head]
        return StoredBlocks(f"{head}{{layer}}", other, tuple(lacking))


def saved(small: SmallModel) -> dict[str, "Tensor"]:
    """The tensors of a copy that transformers saved, by their names in the file."""
    from safetensors.torch import load_file

    model: Any = small.model
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {
            name: one for path in sorted(Path(folder).glob("*.safetensors")) for name, one in load_file(path).items()
        }


def numbered(names: Mapping[int, str], place: str) -> str:
    """The one pattern of `names` with `place` for its number: {0: "a.0.b", 1: "a.1.b"} -> "a.{layer}.b"; "" where none fits."""
    number, first = next(iter(names.items()))
    for match in re.finditer(rf"(?<=\.){number}(?=\.)", first):
        pattern = first[: match.start()] + place + first[match.end() :]
        if all(pattern.replace(place, str(one)) == name for one, name in names.items()):
            return pattern
    return ""


def _digest(values: "Tensor") -> str:
    data = values.detach().contiguous()
    return hashlib.sha256(f"{tuple(data.shape)}".encode() + data.numpy().tobytes()).hexdigest()
