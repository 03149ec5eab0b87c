"""Resolve declared stacks against real names: a checkpoint's keys or a live model's parameters.

bound = bind(stacks, names, config)          # a `BoundStack` a stream; every part of it has one width
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from outlierlens.architectures.stack import WIDTHS, Config, Stack, parameter
from outlierlens.errors import BadFile, UnknownArchitecture


def of_one_width(bound: "BoundStack", tensors: Mapping[str, Any], config: Config) -> Stack:
    """The stack of `bound`, its linears declared [in, out] or [out, in] as the width of the stream says.

    Norms, tables and the config tell the width. One layer is looked at; what reads the layers compares them.

    Raises:
        BadFile: two parts of the stream have different widths.
    """
    stack, layer = bound.stack, bound.weight_layers[0]
    linear = {p.name: p for p in (*bound.scale[layer], *bound.writes[layer])}
    shapes = {name: _shape(tensors, name) for name in linear}
    linear = {name: p for name, p in linear.items() if len(shapes[name]) > 1}
    others = (*bound.scale[layer], *bound.reading[layer], *bound.embeddings, *bound.embedding_norm, *bound.final_norm)
    # Beside a nested config with a width of its own (text_config), that of the whole may be a default that nothing has.
    nested = any(isinstance(one, Mapping) and not one.keys().isdisjoint(WIDTHS) for one in config.values())
    widths = {f"the config's {key}": config[key] for key in WIDTHS if not nested and isinstance(config.get(key), int)}
    widths |= {p.name: s[p.axis] for p in others if p.name not in linear and (s := _shape(tensors, p.name))}
    widths |= {
        name: shapes[name][p.axis]
        for name, p in linear.items()
        if name.removeprefix(bound.blocks[layer])[1:] in stack.axes
    }
    if not widths:
        return stack
    first, width = next(iter(widths.items()))
    if set(widths.values()) == {width}:
        if all(shapes[name][p.axis] == width for name, p in linear.items()):
            return stack
        if not stack.axes and all(shapes[name][-3 - p.axis] == width for name, p in linear.items()):
            return replace(stack, weight_is_in_by_out=not stack.weight_is_in_by_out)
    widths |= {name: shapes[name][p.axis] for name, p in linear.items()}
    odd = next(name for name, one in widths.items() if one != width)
    raise BadFile(
        f"stack {bound.name!r}: {first} is {width:,} wide and {odd} {widths[odd]:,}, and one stream has one width; the weights "
        f"belong to another config or family (--model-args family=bert, or arch=row.toml)"
    )


def _shape(tensors: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The shape of a tensor; () where it is not known, as of one that is packed."""
    try:
        return tuple(getattr(tensors[name], "shape", ()))
    except BadFile:
        return ()


# --- names -----------------------------------------------------------------------------------------------------------

MAX_LAYERS = 4096
NO_EXPERT = -1  # inside this package only: an MLP that is no expert's
NUMBERED = re.compile(r"\.experts\.(?:expert_)?(\d{1,9})(?=\.)")  # one of experts that are modules of their own
# Modules that compilers and trainers put around a block; what they do to the start of a name is part of the prefix.
_WRAPPED = re.compile(r"(?<=\.\d)((?:\d)*)(?:\._orig_mod|\._fsdp_wrapped_module|\._checkpoint_wrapped_module)+(?=\.)")


@dataclass(frozen=True)
class Param:
    """A parameter whose `axis` runs over the stream's dimensions; `off` is the value that ablates one.

    `times` is the parameter [dim] that multiplies what this one writes, "" where nothing does.
    """

    name: str
    axis: int = 0
    off: float = 0.0
    times: str = ""

    def values_per_dim(self, shape: tuple[int, ...]) -> int:
        """How many values one dimension has in a parameter of this shape."""
        return math.prod(shape) // shape[self.axis]


@dataclass(frozen=True)
class LastLinear:
    """The last linear of one MLP: a block's own, a shared expert's, or one expert's.

    Attributes:
        layer: the block. expert: its number, or `NO_EXPERT`.
        param: the weight; its axis runs over the neurons. packed: it holds a matrix for each expert.
        path: the module, or where it is a bare parameter that.
    """

    layer: int
    expert: int
    param: Param
    packed: bool
    path: str

    @property
    def row(self) -> str:
        """ "11", or "11:3" of expert 3."""
        return str(self.layer) if self.expert == NO_EXPERT else f"{self.layer}:{self.expert}"

    def matrix(self, values: Any) -> Any:
        """Its own weights of the parameter's, as [dimension, neuron]; NumPy or torch, a view."""
        own = values[self.expert] if self.packed else values
        return own.T if self.param.axis == -2 else own


@dataclass(frozen=True)
class BoundStack:
    """A `Stack` with every name made concrete.

    Attributes:
        stack: the declaration.
        prefix: what stands before the declared paths in these names ("bert.", "model.", or "").
        blocks: module path of each layer's block, prefix included; shared blocks repeat. Their output is the stream.
        scale: last operation's scale, per layer: the norm's weight, or the linears that write last [layer][part].
        bias: last operation's bias, per layer; an empty tuple in a layer without one.
        writes: what adds to a dimension and to nothing else, per layer. Linear weights and biases, and on a post-norm
            stream the norms' biases; where the writes are normed (`norm_site` "write"), those norms instead of the
            linears before them, whose rows would also change what the norm divides all other dimensions by.
        reading: the reading norms' scales, per layer; may differ in number (ModernBERT's first block has one less).
        embeddings: parameters that write to the stream before block 0.
        embedding_norm: scale and bias of the norm of those, where there is one.
        final_norm: scale and bias of the norm that reads the stream after the last block, where there is one.
        norms: scale and bias, where there is one, of every norm of a block by its module, per layer: those that read,
            those after other writes, the last. Empty in a layer without it.
        linears: weights and biases of the linears that write to the stream, by declared parameter name, per layer
            [layer][expert]; empty in a layer without it.
        mlps: the last linears [row] whose inputs the dimensions are; () where they are the blocks' outputs (see `mlp_axes`).
        kind: what a position is: "dimension", "neuron" of `mlps`, or "expert" (see `expert_axis`).
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
    final_norm: tuple[Param, ...] = ()
    norms: Mapping[str, tuple[tuple[Param, ...], ...]] = field(default_factory=dict)
    linears: Mapping[str, tuple[tuple[Param, ...], ...]] = field(default_factory=dict)
    mlps: tuple[LastLinear, ...] = ()
    kind: str = "dimension"

    @property
    def reads(self) -> tuple[str, ...]:
        """Path of each of `mlps`; () where the dimensions are those of a stream."""
        return tuple(one.path for one in self.mlps)

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
    def block_layers(self) -> tuple[tuple[int, ...], ...]:
        """The layers that each distinct block runs, ascending [block]: one, except where blocks are shared."""
        runs: dict[str, list[int]] = {}
        for layer, path in enumerate(self.blocks):
            runs.setdefault(path, []).append(layer)
        return tuple(map(tuple, runs.values()))

    @property
    def weight_layers(self) -> tuple[int, ...]:
        """One layer for each distinct block: all of them, except where blocks are shared."""
        return tuple(layers[0] for layers in self.block_layers)


def bind(stacks: tuple[Stack, ...], names: Collection[str], config: Config | None = None) -> list[BoundStack]:
    """Every stack found in `names`; stacks whose blocks are absent are left out (a text-only export of CLIP, say).

    Raises:
        UnknownArchitecture: none of the stacks fits; the message lists names that look like norms.
        BadFile: a stack is there but incomplete, in two places, or not what the config says.
    """
    index = _Names(names)
    bound: dict[str, BoundStack] = {}
    for stack in stacks:
        if stack.name not in bound and (prefix := _prefix(stack, index)) is not None:
            bound[stack.name] = _Binder(_all_experts(stack, index), index, prefix, config or {}).bind()
    if not bound:
        raise UnknownArchitecture(_nothing_fits(stacks, names, config or {}))
    if not isinstance(names, Mapping):
        return list(bound.values())
    told = config if config and len(bound) == 1 else {}
    found = []
    for one in bound.values():
        stack = of_one_width(one, names, told)
        found.append(one if stack is one.stack else _Binder(stack, index, one.prefix, config or {}).bind())
    return found


def expert_of(name: str) -> int:
    """The number of the expert that a module or parameter is of by its name; `NO_EXPERT` of any other, and of packed ones."""
    number = NUMBERED.search(name)
    return int(number[1]) if number else NO_EXPERT


def _all_experts(stack: Stack, names: "_Names") -> Stack:
    """The stack with every numbered expert that there is: a row names those of a small model that a few tokens reached."""
    found: dict[str, tuple[str, ...]] = {}
    for one in stack.last_linear:
        if number := NUMBERED.search(one):
            start, end = one[: number.start(1)], one[number.end(1) :]
            like = re.compile(rf"{re.escape(start)}(\d{{1,9}}){re.escape(end)}\.weight\Z")
            numbers = sorted({int(match[1]) for name in names.real if (match := like.search(name))})
            found[one] = tuple(f"{start}{each}{end}" for each in numbers) or (one,)
    if not found:
        return stack

    def whole(some: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each for one in some for each in found.get(one, (one,))))

    layouts = tuple(tuple(sorted(whole(one))) for one in stack.layouts)
    return replace(stack, last_linear=whole(stack.last_linear), layouts=layouts)


class _Names:
    """Names of tensors, looked up without the wrappers around blocks."""

    def __init__(self, names: Collection[str]):
        self.real = {_WRAPPED.sub(r"\1", name): name for name in names}

    def prefixes(self, tail: str) -> set[str]:
        """What stands before `tail` in the names that end with it at a dot."""
        cut = len(tail)
        return {name[:-cut] for name in self.real if name.endswith(tail) and (name == tail or name[-cut - 1] == ".")}


class _Binder:
    """One stack at one prefix; every method returns parameters [layer][part] unless it says otherwise."""

    def __init__(self, stack: Stack, names: _Names, prefix: str, config: Config):
        self.stack, self.names, self.prefix, self.config = stack, names, prefix, config
        self.blocks = stack.layer_blocks or self.count_blocks()
        expected = _config_value(config, stack.layers)
        if isinstance(expected, int) and not stack.layer_blocks and expected != len(self.blocks):
            raise BadFile(
                f"stack {stack.name!r}: {len(self.blocks)} layers are stored but the config's {stack.layers} is "
                f"{expected}; the checkpoint is incomplete or belongs to another config"
            )

    def bind(self) -> BoundStack:
        stack = self.stack
        if stack.norm_site == "read":
            scale, bias = (self.linears(stack.last_linear, leaf) for leaf in ("weight", "bias"))
            required = [parameter(module, "weight") for module in stack.last_linear]
        else:
            scale, bias = (self.norms((stack.last_norm,), leaf) for leaf in ("weight", "bias"))
            raw = tuple(name for name in stack.last_linear if name in stack.raw_writes)
            normed = [bool(layer) for layer in scale]
            scale = _where(normed, scale, self.linears(raw, "weight"))
            bias = _where(normed, bias, self.linears(raw, "bias"))
            required = [f"{stack.last_norm}.weight"]
        if stack.layouts:
            self.refuse_other_layouts()
        elif lacking := [name for name in required if not self.find(name, self.blocks[0])]:
            raise BadFile(
                f"stack {stack.name!r}: {self.prefix}{self.blocks[0]}.{lacking[0]} is missing; "
                "the checkpoint is incomplete, or names it otherwise"
            )
        if stack.exact:
            self.refuse_absent()
        return BoundStack(
            stack=stack,
            prefix=self.prefix,
            blocks=tuple(self.prefix + block for block in self.blocks),
            scale=scale,
            bias=bias,
            writes=self.writes(),
            reading=self.norms(stack.reading_norms, "weight", everywhere=False),
            embeddings=self.embeddings(),
            embedding_norm=self.outer_norm(stack.embedding_norm),
            final_norm=self.outer_norm(stack.final_norm),
            norms=self.block_norms(),
            linears=self.block_linears(),
        )

    def refuse_other_layouts(self) -> None:
        """Raise BadFile where the writes and norms of a block are those of no kind of block."""
        stack = self.stack
        names = sorted({*stack.last_linear, *stack.other_writes, *stack.other_norms})
        for block in self.blocks:
            found = tuple(name for name in names if self.find(parameter(name, "weight"), block))
            if found not in stack.layouts:
                near = max(stack.layouts, key=lambda one: len({*one} & {*found}) - len({*one} ^ {*found}))
                odd = ", ".join(sorted({*near} ^ {*found}))
                raise BadFile(
                    f"stack {stack.name!r}: {self.prefix}{block} is not a kind of block that the row lists; it differs from "
                    f"the nearest in {odd}; the checkpoint is incomplete, or its config is another one"
                )

    def refuse_absent(self) -> None:
        """Raise UnknownArchitecture where the row names a module or parameter that the model has nowhere."""
        stack = self.stack
        norms = (stack.last_norm, *stack.other_norms, *stack.reading_norms)
        linears = (*stack.last_linear, *stack.other_writes)
        inside = [f"{norm}.weight" for norm in norms if norm] + [parameter(linear, "weight") for linear in linears]
        absent = [
            name
            for name in (*inside, *stack.write_scales.values())
            if not any(self.find(name, block) for block in self.blocks)
        ]
        outside = (*stack.embeddings, *stack.embedding_linears, stack.embedding_norm, stack.final_norm)
        absent += [name for name in outside if name and not (self.find(f"{name}.weight") or self.find(name))]
        absent += [f"{linear} (in write_scales)" for linear in stack.write_scales if linear not in linears]
        if absent:
            raise UnknownArchitecture(
                f"stack {stack.name!r}: the row names {', '.join(absent[:5])}, and the model has no such "
                f"{'parameters' if len(absent) > 1 else 'parameter'}; correct the row, or write exact = false into it where "
                f"models of its kind may lack them"
            )

    def writes(self) -> tuple[tuple[Param, ...], ...]:
        stack = self.stack
        norms = (*stack.other_norms, stack.last_norm)
        linears = (*stack.other_writes, *stack.last_linear) if stack.norm_site != "write" else stack.raw_writes
        scales = self.norms(norms, "weight") if stack.norm_site == "write" else self.norms((), "weight")
        return _join(self.linears(linears, "weight"), self.linears(linears, "bias"), scales, self.norms(norms, "bias"))

    def linears(self, modules: tuple[str, ...], leaf: str) -> tuple[tuple[Param, ...], ...]:
        return self.columns(dict(self.linear_param(module, leaf) for module in modules), everywhere=True)

    def linear_param(self, module: str, leaf: str) -> tuple[str, Param]:
        """A linear's declared parameter, and the axis and scale of what it writes."""
        # Negative axes serve a single linear [out, in] and a stack of experts [expert, out, in] alike.
        usual = -1 if leaf == "bias" or self.stack.weight_is_in_by_out else -2
        name = parameter(module, leaf)
        return name, Param("", self.stack.axes.get(name, usual), times=self.stack.write_scales.get(module, ""))

    def block_linears(self) -> dict[str, tuple[tuple[Param, ...], ...]]:
        """Every parameter of the linears that write, in order of writing."""
        found = {}
        for module in dict.fromkeys((*self.stack.other_writes, *self.stack.last_linear)):
            for leaf in ("weight", "bias"):
                name, param = self.linear_param(module, leaf)
                found[name] = self.columns({name: param}, everywhere=False)
        return {name: layers for name, layers in found.items() if any(layers)}

    def norms(self, modules: tuple[str, ...], leaf: str, *, everywhere: bool = True) -> tuple[tuple[Param, ...], ...]:
        like = {f"{module}.{leaf}": self.norm_param("", leaf) for module in modules if module}
        return self.columns(like, everywhere=everywhere)

    def block_norms(self) -> dict[str, tuple[tuple[Param, ...], ...]]:
        modules = dict.fromkeys((*self.stack.reading_norms, *self.stack.other_norms, self.stack.last_norm))
        parts = {
            module: _join(*(self.norms((module,), leaf, everywhere=False) for leaf in ("weight", "bias")))
            for module in modules
            if module
        }
        return {module: layers for module, layers in parts.items() if any(layers)}

    def columns(self, like: dict[str, Param], *, everywhere: bool) -> tuple[tuple[Param, ...], ...]:
        """The named parameters of each layer; with `everywhere`, one must be in all layers or in none."""
        layers: list[tuple[Param, ...]] = [() for _ in self.blocks]
        for name, param in like.items():
            stored = [self.find(name, block) for block in self.blocks]
            if everywhere and not self.stack.layouts and any(stored) and not all(stored):
                block = self.blocks[stored.index([])]
                raise BadFile(
                    f"stack {self.stack.name!r}: {self.prefix}{block}.{name} is missing while other layers have it; "
                    "the checkpoint is incomplete"
                )
            scales = ["".join(self.find(param.times, block)) if param.times else "" for block in self.blocks]
            layers = [
                (*got, *(replace(param, name=new, times=scale) for new in found))
                for got, found, scale in zip(layers, stored, scales, strict=True)
            ]
        return tuple(layers)

    def embeddings(self) -> tuple[Param, ...]:
        """Parameters that write before block 0 [part]."""
        tables = [self.find(f"{table}.weight") or self.find(table) for table in self.stack.embeddings]
        linears = [self.find(f"{name}.{leaf}") for name in self.stack.embedding_linears for leaf in ("weight", "bias")]
        return (*(Param(name, axis=-1) for name in chain(*tables)), *(Param(name) for name in chain(*linears)))

    def outer_norm(self, module: str) -> tuple[Param, ...]:
        """Scale and bias of a norm outside the blocks [part]."""
        leaves = ("weight", "bias") if module else ()
        return tuple(self.norm_param(name, leaf) for leaf in leaves for name in self.find(f"{module}.{leaf}"))

    def norm_param(self, name: str, leaf: str) -> Param:
        """A norm's parameter: its scale is off at 0, or at -1 where the norm multiplies by 1 + weight."""
        return Param(name, off=-self.stack.norm_offset if leaf == "weight" and self.stack.norm_offset else 0.0)

    def find(self, name: str, block: str = "") -> list[str]:
        """The real names that stand for parameter `name` of a block (or of the model); [] when there are none."""
        start = f"{self.prefix}{block}." if block else self.prefix
        for alias in _aliases(name, self.stack):
            if "{expert}" in alias:
                if found := self.experts(start + alias):
                    return found
            elif start + alias in self.names.real:
                return [self.names.real[start + alias]]
        return []

    def experts(self, pattern: str) -> list[str]:
        """The real names of one parameter of all experts."""
        found: list[str] = []
        while (expert := pattern.replace("{expert}", str(len(found)))) in self.names.real:
            found.append(self.names.real[expert])
        key, expected = claimed_experts(self.stack, self.config)
        if found and expected is not None and expected != len(found):
            raise BadFile(
                f"stack {self.stack.name!r}: {pattern} is stored for {len(found)} experts but the config's "
                f"{key} is {expected}; the checkpoint is incomplete, numbers experts of several kinds in one row, or belongs "
                f"to another config"
            )
        return found

    def count_blocks(self) -> tuple[str, ...]:
        """Paths of the numbered blocks, without prefix [layer]."""
        stack = self.stack
        head, _, tail = stack.blocks.partition("{layer}")
        pattern = re.compile(re.escape(self.prefix + head) + r"(\d{1,9})" + re.escape(tail) + r"\.")
        numbers = {int(match[1]) for name in self.names.real if (match := pattern.match(name))}
        if len(numbers) > MAX_LAYERS:
            raise BadFile(f"stack {stack.name!r}: {len(numbers):,} layers of {stack.blocks}, over {MAX_LAYERS:,}")
        if missing := [layer for layer in range(len(numbers)) if layer not in numbers]:
            raise BadFile(
                f"stack {stack.name!r}: layers {missing[:5]} of {self.prefix}{stack.blocks} are missing while "
                f"layer {max(numbers)} is there; fetch the model again"
            )
        return tuple(stack.block(layer) for layer in range(len(numbers)))


def _join(*columns: tuple[tuple[Param, ...], ...]) -> tuple[tuple[Param, ...], ...]:
    return tuple(tuple(chain(*layer)) for layer in zip(*columns, strict=True))


def _where(here: list[bool], *columns: tuple[tuple[Param, ...], ...]) -> tuple[tuple[Param, ...], ...]:
    """Of two columns, the first in the layers that are `here` and the second elsewhere."""
    return tuple(first if one else second for one, first, second in zip(here, *columns, strict=True))


def _aliases(name: str, stack: Stack) -> list[str]:
    stem, _, leaf = name.rpartition(".")
    old = {"weight": "gamma", "bias": "beta"}.get(leaf)  # TensorFlow-born checkpoints
    return [name, *([f"{stem}.{old}"] if old else []), *stack.stored_as.get(name, ())]


def _anchors(stack: Stack) -> list[str]:
    """The parameters whose place shows where the stack's blocks are: the first that the first block has."""
    anchors = [f"{stack.last_norm}.weight"] if stack.norm_site != "read" else []
    anchors += [parameter(linear, "weight") for linear in stack.last_linear]
    return anchors if stack.layouts else anchors[:1]


def _prefix(stack: Stack, names: _Names) -> str | None:
    first, found = stack.block(0), set[str]()
    for anchor in _anchors(stack):
        aliases = [alias.replace("{expert}", "0") for alias in _aliases(anchor, stack)]
        if found := {prefix for alias in aliases for prefix in names.prefixes(f"{first}.{alias}")}:
            break
    if "" in found:  # the path is whole
        return ""
    if len(found) > 1:
        raise BadFile(
            f"stack {stack.name!r}: {stack.blocks} stands under several prefixes, "
            f"{', '.join(map(repr, sorted(found)))}; "
            "pass --model-args arch=row.toml with the full path in `blocks`"
        )
    return found.pop() if found else None


def claimed_experts(stack: Stack, config: Config) -> tuple[str, int | None]:
    """(config key, its value) of a stream with experts, by either of transformers' names; ("", None) without one."""
    first, _, last = stack.experts.rpartition(".")
    names = [last, *({"num_experts", "num_local_experts"} - {last} if last.startswith("num_") else ())]
    keys = [f"{first}.{name}".lstrip(".") for name in names if last]
    found = [(key, value) for key in keys if isinstance(value := _config_value(config, key), int)]
    return found[0] if found else ("", None)


def _config_value(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _nothing_fits(stacks: tuple[Stack, ...], names: Collection[str], config: Config) -> str:
    wanted = " or ".join(dict.fromkeys(f"{stack.blocks}.{_anchors(stack)[0]}" for stack in stacks))
    packed = _config_value(config, "quantization_config.quant_method")
    packed = packed or next((name for name in names if name.endswith("weight_quantized")), None)
    if packed:
        return (
            f"no parameter matches {wanted}; the weights are packed by a quantizer ({packed}): "
            "take a copy of the model in full precision"
        )
    norms = [name for name in names if re.search(r"norm|(^|\.)ln_", name, re.IGNORECASE)]
    return (
        f"no parameter matches {wanted}; names that look like norms: {', '.join(norms[:4]) or 'none'}; "
        "pass --model-args arch=row.toml (`outlierlens scan --propose` drafts one)"
    )
