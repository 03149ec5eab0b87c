"""The MLP axis of a residual stream: neurons of each block's MLP, addressed as dimensions of a stream are.

    axis = mlp_axis(bound)                       # a BoundStack named "mlp": its "dimensions" are a block's neurons
    Neuron.parse("11:1229")                      # block 11, neuron 1229
    neurons_of({11: (1229, 3)})                  # (Neuron(11, 3), Neuron(11, 1229))

A neuron is one number per token that the last linear of a block's MLP reads: up × act(gate) where the MLP is gated, act(up)
elsewhere. Its number means something in its own block only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outlierlens.architectures.bind import BoundStack, Param
from outlierlens.errors import BadInput

MLP = "mlp"
NO_LINEAR = "the MLP's last linear is no single module of its own in every layer (experts, or blocks that layers share)"


@dataclass(frozen=True, order=True)
class Neuron:
    """One neuron: `layer`, the block from 0, and `neuron`, its place in what that block's last linear reads."""

    layer: int
    neuron: int

    def __str__(self) -> str:
        return f"{self.layer}:{self.neuron}"

    @classmethod
    def parse(cls, text: str) -> "Neuron":
        """ "11:1229" -> Neuron(11, 1229); raises BadInput for anything else."""
        layer, sign, neuron = text.strip().partition(":")
        if not sign or not all(part.isdecimal() and len(part) < 10 for part in (layer, neuron)):
            raise BadInput(f"cannot read neuron {text!r}; write its block and its number, such as 11:1229")
        return cls(int(layer), int(neuron))


def neurons_of(plan: Mapping[int, Sequence[int]]) -> tuple[Neuron, ...]:
    """The neurons of {layer: numbers}, ascending."""
    return tuple(sorted(Neuron(layer, number) for layer, numbers in plan.items() for number in numbers))


def is_mlp(name: str | None) -> bool:
    """Whether `name` is an MLP axis: "mlp", or "encoder.mlp" where there are several streams."""
    return name is not None and name.rpartition(".")[2] == MLP


def streams_of(bound: Sequence[BoundStack], name: str | None, where: str) -> list[BoundStack]:
    """The streams that `name` speaks of: all for None, those of "mlp" or "encoder.mlp", or the one of that name.

    Raises:
        BadInput: there is no such stream, or several whose neurons could be meant.
    """
    names = [one.name for one in bound]
    wanted = (
        name.rpartition(".")[0] or (names[0] if len(names) == 1 else "") if name is not None and is_mlp(name) else name
    )
    if wanted is not None and wanted not in names:
        choices = [f"{one}.{MLP}" if len(names) > 1 else MLP for one in names] if is_mlp(name) else names
        raise BadInput(f"{where}: --stack must be one of {', '.join(choices)}, not {name!r}")
    return [one for one in bound if wanted in (None, one.name)]


def linear_paths(stack: BoundStack) -> tuple[str, ...] | None:
    """Module path of the last linear of each layer's MLP; None where it is no single module: experts, shared blocks."""
    names = (stack.stack.mlp,) if stack.stack.mlp else stack.stack.last_linear
    if len(names) != 1 or names[0].endswith("()"):
        return None
    paths = tuple(f"{block}.{names[0]}" for block in stack.blocks)
    return paths if len(set(paths)) == len(paths) else None


def mlp_axis(bound: BoundStack, name: str = MLP) -> BoundStack:
    """The neurons of a stream's MLPs as a `BoundStack`: its scale is what each neuron writes, a column of the last linear.

    Nothing else is bound: neurons have no norm, no bias and no embedding of their own.

    Raises:
        BadInput: the MLP's last linear is no single module in every layer.
    """
    paths = linear_paths(bound)
    if paths is None:
        raise BadInput(f"stream {bound.name!r} has no MLP axis: {NO_LINEAR}")
    axis = -2 if bound.stack.weight_is_in_by_out else -1
    linear = paths[0].removeprefix(f"{bound.blocks[0]}.")
    scale = tuple((Param(f"{path}.weight", axis=axis),) for path in paths)
    declared = replace(
        bound.stack, name=name, norm_site="read", last_norm="", last_linear=(linear,), write_scales={}, notes=()
    )
    nothing: tuple[tuple[Param, ...], ...] = ((),) * bound.n_layers
    return BoundStack(
        stack=declared,
        prefix=bound.prefix,
        blocks=bound.blocks,
        scale=scale,
        bias=nothing,
        writes=nothing,
        reading=nothing,
        embeddings=(),
        embedding_norm=(),
        reads=paths,
    )
