"""Resolve declared stacks against real names: a checkpoint's keys or a live model's parameters.

    bound = bind(stacks_of(config), checkpoint.tensors)
    bound[0].scale[3]        # Param("encoder.layer.3.output.LayerNorm.weight", axis=0)
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.arch.stack import Stack
from outlierlens.errors import BadFile, UnknownArchitecture

if TYPE_CHECKING:
    from torch import nn

MAX_LAYERS = 4096


@dataclass(frozen=True)
class Param:
    """A parameter whose `axis` runs over the stream's dimensions; `off` is the value that switches one off."""

    name: str
    axis: int = 0
    off: float = 0.0


@dataclass(frozen=True)
class BoundStack:
    """A `Stack` with every name made concrete.

    Attributes:
        stack: the declaration.
        prefix: what stands before the declared paths in these names ("bert.", "model.", or "").
        blocks: module path of each layer's block, prefix included; shared blocks repeat.
        scale: last operation's scale, per layer: the norm's weight, or the linears that write last [layer][part].
        bias: last operation's bias, per layer; an empty tuple in a layer without one.
        writes: every linear weight or bias (and norm bias on the stream) that adds to a dimension, per layer.
        reading: the reading norms' scales, per layer.
        embeddings: tables that write to the stream before block 0.
        embedding_norm: scale and bias of the norm of those, where there is one.
    """

    stack: Stack
    prefix: str
    blocks: tuple[str, ...]
    scale: tuple[tuple[Param, ...], ...]
    bias: tuple[tuple[Param, ...], ...]
    writes: tuple[tuple[Param, ...], ...]
    reading: tuple[tuple[Param, ...], ...]
    embeddings: tuple[Param, ...]
    embedding_norm: tuple[Param, ...]

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.stack.name

    @property
    def n_layers(self) -> int:
        """Number of layers that run, shared blocks counted each time."""
        return len(self.blocks)

    @property
    def ends_in_norm(self) -> bool:
        """Whether the block's last operation, or the norm of its last write, holds the scale."""
        return self.stack.norm_site != "read"

    @property
    def weight_layers(self) -> tuple[int, ...]:
        """One layer for each distinct block: all of them, except where blocks are shared."""
        return tuple(sorted({path: layer for layer, path in reversed(list(enumerate(self.blocks)))}.values()))


def bind(stacks: tuple[Stack, ...], names: Collection[str], config: Mapping[str, Any] | None = None) -> list[BoundStack]:
    """Every stack found in `names`; stacks whose blocks are absent are left out (a text-only export of CLIP, say).

    Raises:
        UnknownArchitecture: none of the stacks fits; the message lists names that look like norms.
        BadFile: a stack is there but incomplete, or in two places.
    """
    index = _Names(names)
    bound = [found for stack in stacks if (found := _bind_one(stack, index, config or {})) is not None]
    if not bound:
        norms = [name for name in names if re.search(r"norm|ln_|layer_norm", name, re.IGNORECASE)]
        wanted = " or ".join(f"{stack.blocks}.{stack.last_norm or stack.last_linear[0]}" for stack in stacks)
        raise UnknownArchitecture(
            f"no parameter matches {wanted}; names that look like norms: {', '.join(norms[:4]) or 'none'}; "
            "pass --arch row.toml (`outlierlens scan --propose` drafts one)"
        )
    return bound


class _Names:
    """Names of tensors with the aliases that files use, and wildcards over experts."""

    def __init__(self, names: Collection[str]):
        self.names = set(names)

    def find(self, name: str, stack: Stack, prefix: str, block: str) -> list[str]:
        """The stored names that stand for parameter `name` of a block; [] when there are none."""
        full = f"{prefix}{block}{name}"
        if full in self.names:
            return [full]
        stem, _, leaf = name.rpartition(".")
        old = {"weight": "gamma", "bias": "beta"}.get(leaf)  # TensorFlow-born checkpoints
        if old and f"{prefix}{block}{stem}.{old}" in self.names:
            return [f"{prefix}{block}{stem}.{old}"]
        for other in stack.stored_as.get(name, ()):
            if "{expert}" not in other:
                if f"{prefix}{block}{other}" in self.names:
                    return [f"{prefix}{block}{other}"]
                continue
            found = []
            while (expert := f"{prefix}{block}{other.replace('{expert}', str(len(found)))}") in self.names:
                found.append(expert)
            if found:
                return found
        return []

    def prefixes(self, tail: str) -> list[str]:
        """What stands before `tail` in the names that end with it at a dot."""
        return sorted(
            {name[: -len(tail)] for name in self.names if name.endswith(tail) and (name == tail or name[-len(tail) - 1] == ".")}
        )


def _bind_one(stack: Stack, index: _Names, config: Mapping[str, Any]) -> BoundStack | None:
    prefix = _prefix(stack, index)
    if prefix is None:
        return None
    blocks = [path + "." for path in (stack.layer_blocks or _count_blocks(stack, index, prefix))]
    expected = _config_value(config, stack.layers)
    if isinstance(expected, int) and not stack.layer_blocks and expected != len(blocks):
        raise BadFile(
            f"stack {stack.name!r}: {len(blocks)} layers are stored but the config's {stack.layers} is {expected}; "
            "the checkpoint is incomplete or belongs to another config"
        )

    def params(name: str, block: str, *, linear: bool, required: bool) -> tuple[Param, ...]:
        found = index.find(name, stack, prefix, block)
        if not found and required:
            raise BadFile(f"stack {stack.name!r}: {prefix}{block}{name} is missing; the checkpoint is incomplete")
        return tuple(_param(stack, stored, name, linear=linear) for stored in found)

    def norm(module: str, leaf: str, block: str, *, required: bool = False) -> tuple[Param, ...]:
        return params(f"{module}.{leaf}", block, linear=False, required=required) if module else ()

    def linears(modules: tuple[str, ...], leaf: str, block: str, *, required: bool = False) -> tuple[Param, ...]:
        return tuple(
            param
            for module in modules
            for param in params(_leaf(module, leaf), block, linear=True, required=required)
        )

    ends_in_norm = stack.norm_site != "read"
    scale, bias, writes, reading = [], [], [], []
    for block in blocks:
        if ends_in_norm:
            scale.append(norm(stack.last_norm, "weight", block, required=True))
            bias.append(norm(stack.last_norm, "bias", block))
        else:
            scale.append(linears(stack.last_linear, "weight", block, required=True))
            bias.append(linears(stack.last_linear, "bias", block))
        adders = (*stack.other_writes, *stack.last_linear)
        norms_that_add = (*stack.other_norms, stack.last_norm)
        writes.append(
            linears(adders, "weight", block)
            + linears(adders, "bias", block)
            + tuple(param for module in norms_that_add for param in norm(module, "bias", block))
        )
        reading.append(tuple(param for module in stack.reading_norms for param in norm(module, "weight", block)))
    return BoundStack(
        stack=stack,
        prefix=prefix,
        blocks=tuple((prefix + block)[:-1] for block in blocks),
        scale=tuple(scale),
        bias=tuple(bias),
        writes=tuple(writes),
        reading=tuple(reading),
        embeddings=tuple(
            Param(stored, axis=-1)
            for table in stack.embeddings
            for stored in index.find(f"{table}.weight", stack, prefix, "") or index.find(table, stack, prefix, "")
        ),
        embedding_norm=norm(stack.embedding_norm, "weight", "") + norm(stack.embedding_norm, "bias", ""),
    )


def _leaf(module: str, leaf: str) -> str:
    """The parameter of a linear; "name()" declares a bare parameter whose bias is "name_bias"."""
    if module.endswith("()"):
        return module[:-2] if leaf == "weight" else f"{module[:-2]}_bias"
    return f"{module}.{leaf}"


def _param(stack: Stack, stored: str, name: str, *, linear: bool) -> Param:
    is_bias = name.endswith(("bias", "beta"))
    if not linear:
        return Param(stored, axis=0, off=0.0 if is_bias else 0.0 - stack.norm_offset)
    # Negative axes serve a single linear [out, in] and a stack of experts [expert, out, in] alike.
    return Param(stored, axis=-1 if is_bias or stack.weight_is_in_by_out else -2)


def _prefix(stack: Stack, index: _Names) -> str | None:
    first = (stack.layer_blocks or (stack.blocks.format(layer=0),))[0] + "."
    anchor = f"{stack.last_norm}.weight" if stack.norm_site != "read" else _leaf(stack.last_linear[0], "weight")
    stem, _, leaf = anchor.rpartition(".")
    tails = [anchor, *([f"{stem}.gamma"] if leaf == "weight" else []), *stack.stored_as.get(anchor, ())]
    found = {prefix for tail in tails for prefix in index.prefixes(first + tail.replace("{expert}", "0"))}
    if len(found) > 1:
        raise BadFile(
            f"stack {stack.name!r}: {stack.blocks} stands under several prefixes ({', '.join(sorted(found))}); "
            "pass --arch row.toml with the full path in `blocks`"
        )
    return found.pop() if found else None


def _count_blocks(stack: Stack, index: _Names, prefix: str) -> list[str]:
    head, _, tail = stack.blocks.partition("{layer}")
    pattern = re.compile(re.escape(prefix + head) + r"(\d{1,9})" + re.escape(tail) + r"\.")
    numbers = {int(match[1]) for name in index.names if (match := pattern.match(name))}
    n_layers = len(numbers)
    if n_layers > MAX_LAYERS or numbers != set(range(n_layers)):
        missing = sorted(set(range(min(max(numbers) + 1, MAX_LAYERS))) - numbers)
        raise BadFile(f"stack {stack.name!r}: layers {missing[:5]} of {stack.blocks} are missing; fetch the model again")
    return [stack.blocks.format(layer=layer) for layer in range(n_layers)]


def _config_value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def live_parameters(model: "nn.Module") -> dict[str, Any]:
    """{name: parameter} of a live model, every name of a shared parameter included."""
    return dict(model.named_parameters(remove_duplicate=False))
