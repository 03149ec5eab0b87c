"""The neurons of a stream's MLPs: how they are named, and which last linears read them.

    Neuron.parse("11:1229")                      # block 11, neuron 1229
    Neuron.parse("11:3:1229")                    # of expert 3
    last_linears(bound, tensors)                 # every MLP of every block: dense, shared, or one of the experts
    axis = mlp_axis(bound, tensors)              # a BoundStack named "mlp": its "dimensions" are a block's neurons
    mlp_axes(bound, tensors)                     # with experts: one for each kind of MLP, a row for each MLP

A neuron is one number per token that the last linear of an MLP reads: up × act(gate) where the MLP is gated, act(up)
elsewhere. Its number means something in its own MLP only. An expert is an MLP of its own; a shared one, which all tokens pass,
has no number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from outlierlens.architectures.bind import NO_EXPERT, NUMBERED, BoundStack, LastLinear, Param, expert_of
from outlierlens.architectures.stack import parameter
from outlierlens.errors import BadInput

MLP = "mlp"
EXPERTS = "experts"  # whose positions are whole experts
SHARED_BLOCKS = "layers share one block, so its MLP has no layer of its own"


@dataclass(frozen=True, order=True)
class Neuron:
    """One neuron: `layer`, the block from 0, `neuron`, its place in what the last linear reads, `expert`, if it is of one."""

    layer: int
    neuron: int
    expert: int = NO_EXPERT

    def __str__(self) -> str:
        return (
            f"{self.layer}:{self.neuron}" if self.expert == NO_EXPERT else f"{self.layer}:{self.expert}:{self.neuron}"
        )

    @classmethod
    def parse(cls, text: str) -> "Neuron":
        """ "11:1229" -> Neuron(11, 1229); "11:3:1229" is of expert 3; raises BadInput for anything else."""
        parts = text.strip().split(":")
        if len(parts) not in (2, 3) or not all(part.isdecimal() and len(part) < 10 for part in parts):
            raise BadInput(
                f"cannot read neuron {text!r}; write its block and its number, such as 11:1229, with an expert's between "
                "them, 11:3:1229"
            )
        layer, *expert, neuron = map(int, parts)
        return cls(layer, neuron, *expert)


def neurons_of(plan: Mapping[int, Sequence[int]]) -> tuple[Neuron, ...]:
    """The neurons of {layer: numbers}, ascending."""
    return tuple(sorted(Neuron(layer, number) for layer, numbers in plan.items() for number in numbers))


def is_mlp(name: str | None) -> bool:
    """Whether `name` is an MLP axis: "mlp", or "encoder.mlp" where there are several streams."""
    return axis_name(name) == MLP


def axis_name(name: str | None) -> str:
    """ "mlp" of "encoder.mlp", "experts" of "experts", "" of a stream."""
    last = "" if name is None else name.rpartition(".")[2]
    return last if last in (MLP, EXPERTS) else ""


def streams_of(bound: Sequence[BoundStack], name: str | None, where: str) -> list[BoundStack]:
    """The streams that `name` speaks of: all for None, those of "mlp" or "encoder.mlp", or the one of that name.

    Raises:
        BadInput: there is no such stream, or several whose neurons could be meant.
    """
    names, axis = [one.name for one in bound], axis_name(name)
    wanted = name.rpartition(".")[0] or (names[0] if len(names) == 1 else "") if name is not None and axis else name
    if wanted is not None and wanted not in names:
        choices = [f"{one}.{axis}" if len(names) > 1 else axis for one in names] if axis else names
        raise BadInput(f"{where}: --stack must be one of {', '.join(choices)}, not {name!r}")
    return [one for one in bound if wanted in (None, one.name)]


def packs_experts(param: Param, shape: Sequence[int]) -> bool:
    """Whether a weight that writes holds a matrix for each expert: [expert, out, in] or [expert, in, out]."""
    return len(shape) == 3 and param.axis in (-1, -2)


# --- last linears ----------------------------------------------------------------------------------------------------


def last_linears(bound: BoundStack, tensors: Mapping[str, Any]) -> tuple[LastLinear, ...]:
    """The last linear of every MLP of every block, by layer, experts in order; `tensors` have a shape.

    Raises:
        BadInput: layers share blocks, or the row names several linears of which it cannot be told that they are MLPs'.
    """
    where = f"stream {bound.name!r} has no MLP axis"
    if len(set(bound.blocks)) < bound.n_layers:
        raise BadInput(f"{where}: {SHARED_BLOCKS}")
    names, found = _mlp_names(bound, tensors), list[LastLinear]()
    for layer, block in enumerate(bound.blocks):
        mine = [one for name in names for one in _of_block(bound, layer, block, name, tensors)]
        twice = [one for one in mine if [other.row for other in mine].count(one.row) > 1]
        if twice:
            raise BadInput(f"{where}: {' and '.join(one.path for one in twice)} would give one name to two neurons")
        found += mine
    if not found:
        raise BadInput(f"{where}: none of its blocks has a last linear that is a matrix")
    return tuple(found)


def _mlp_names(bound: BoundStack, tensors: Mapping[str, Any]) -> tuple[str, ...]:
    """Declared names of the linears that end an MLP: the only one, or experts' and what stands beside them."""
    stack = bound.stack
    if stack.mlp:
        return (stack.mlp,)
    names = dict.fromkeys((*stack.last_linear, *(name for name in stack.other_writes if name.endswith("()"))))
    params = {name: chain(*bound.linears.get(parameter(name, "weight"), ())) for name in names}
    experts = [
        name
        for name, found in params.items()
        if any(expert_of(one.name) != NO_EXPERT or packs_experts(one, tensors[one.name].shape) for one in found)
    ]
    if not experts:
        if len(stack.last_linear) != 1 or stack.last_linear[0].endswith("()"):
            raise BadInput(
                f"stream {bound.name!r} has no MLP axis: which of {', '.join(stack.last_linear)} ends an MLP is not known"
            )
        return stack.last_linear
    # Beside experts stand a shared one and the MLPs of blocks without; other kinds of blocks end in other linears.
    others = [name for name in stack.last_linear if name not in experts and not name.endswith("()")]
    leaves = {name.removesuffix("()").rpartition(".")[2] for name in experts}
    alike = [name for name in others if name.rpartition(".")[2] in leaves] or others
    return (*alike, *experts)


def _of_block(bound: BoundStack, layer: int, block: str, name: str, tensors: Mapping[str, Any]) -> list[LastLinear]:
    weight = parameter(name, "weight")
    params = bound.linears[weight][layer] if weight in bound.linears else ()
    if not params and not bound.stack.layouts and f"{block}.{weight}" in tensors:  # where the MLP does not write last
        params = (Param(f"{block}.{weight}", -1 if bound.stack.weight_is_in_by_out else -2),)
    found = []
    for param in params:
        own = replace(param, axis=-1 if param.axis == -2 else -2, times="")
        path = param.name.removesuffix(".weight")
        if packs_experts(param, tensors[param.name].shape):
            n_experts = tensors[param.name].shape[0]
            found += [LastLinear(layer, expert, own, True, path) for expert in range(n_experts)]
        else:
            found.append(LastLinear(layer, expert_of(param.name), own, False, path))
    return found


# --- the MLP axis ----------------------------------------------------------------------------------------------------


def mlp_axes(bound: BoundStack, tensors: Mapping[str, Any], name: str = MLP) -> tuple[BoundStack, ...]:
    """The neurons of a stream's MLPs: a `BoundStack` for each kind of MLP, a row for each MLP.

    One kind is called `name`; of several each has its linear's path within the block behind it. The scale is what each neuron
    writes, a column of the last linear. Nothing else is bound: neurons have no norm, no bias and no embedding of their own.

    Raises:
        BadInput: see `last_linears`.
    """
    kinds: dict[str, list[LastLinear]] = {}
    for one in last_linears(bound, tensors):
        path = one.path.removeprefix(f"{bound.blocks[one.layer]}.")
        kinds.setdefault(NUMBERED.sub(".experts", path), []).append(one)
    return tuple(
        _axis(bound, tuple(mlps), path, name if len(kinds) == 1 else f"{name} ({path})") for path, mlps in kinds.items()
    )


def mlp_axis(bound: BoundStack, tensors: Mapping[str, Any], name: str = MLP) -> BoundStack:
    """The neurons of a stream whose blocks have one MLP each, a row for each layer.

    Raises:
        BadInput: some are experts'; see `last_linears`.
    """
    first, *others = mlp_axes(bound, tensors, name)
    if others or any(one.expert != NO_EXPERT for one in first.mlps):
        raise BadInput(
            f"stream {bound.name!r} has experts, whose neurons are named by layer, expert and number; this works layer by "
            f"layer, and reads MLPs without experts alone. `scan --stack {name}` and `observe --stack {name}` name them"
        )
    if [one.layer for one in first.mlps] != list(range(bound.n_layers)):
        raise BadInput(f"stream {bound.name!r} has no MLP axis: not every block has an MLP")
    return first


def _axis(bound: BoundStack, mlps: tuple[LastLinear, ...], path: str, name: str) -> BoundStack:
    declared = replace(
        bound.stack, name=name, norm_site="read", last_norm="", last_linear=(path,), write_scales={}, notes=()
    )
    nothing: tuple[tuple[Param, ...], ...] = ((),) * len(mlps)
    return BoundStack(
        stack=declared,
        prefix=bound.prefix,
        blocks=tuple(bound.blocks[one.layer] for one in mlps),
        scale=tuple((one.param,) for one in mlps),
        bias=nothing,
        writes=nothing,
        reading=nothing,
        embeddings=(),
        embedding_norm=(),
        mlps=mlps,
        kind="neuron",
    )


# --- experts ---------------------------------------------------------------------------------------------------------


def expert_axis(bound: BoundStack, tensors: Mapping[str, Any], name: str = EXPERTS) -> BoundStack:
    """The experts of a stream's blocks: position e of layer k is expert e of block k, and its last linear is its scale.

    Raises:
        BadInput: no block has experts, blocks have different numbers of them, or they are modules of their own.
    """
    mlps = [one for one in last_linears(bound, tensors) if one.expert != NO_EXPERT]
    if not mlps:
        raise BadInput(f"stream {bound.name!r} has no experts; name a stream, or leave --stack out")
    if apart := [one.path for one in mlps if not one.packed]:
        raise BadInput(
            f"{apart[0]} is one expert's module; experts are ablated where one parameter holds all of a block's"
        )
    names = {one.layer: one.param.name for one in mlps}
    if len({tensors[one].shape[0] for one in names.values()}) > 1:
        raise BadInput(f"stream {bound.name!r}: blocks have different numbers of experts; one number is needed")
    biases = {layer: f"{one}_bias" for layer, one in names.items() if f"{one}_bias" in tensors}
    scale, bias = (
        tuple((Param(some[layer], axis),) if layer in some else () for layer in range(bound.n_layers))
        for some, axis in ((names, -3), (biases, -2))
    )
    nothing: tuple[tuple[Param, ...], ...] = ((),) * bound.n_layers
    declared = replace(bound.stack, name=name, norm_site="read", last_norm="", write_scales={}, notes=())
    return BoundStack(
        stack=declared, prefix=bound.prefix, blocks=bound.blocks, scale=scale, bias=bias, writes=nothing, reading=nothing,
        embeddings=(), embedding_norm=(), kind="expert",
    )  # fmt: skip
