"""Where a model's linears are, and which of them read a residual stream or write to it.

    for place in find_places(loaded, "model"):
        place.name, place.layer, place.reads, place.writes
        place.weight()                            # [out, in], whatever the module's own order

A linear *writes* where the architecture's row names it as a write. It *reads* where it takes as many inputs as the stream has
dimensions and does not write; those that several blocks hand the very same tensor (cross-attention to another stream) do
not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack, refuse_packed, refuse_sharded
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, stream_width

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """One linear of a block.

    Attributes:
        name: module path. layer: of its block, the first where several layers share it. part: path inside the block.
        reads: its input is the stream, or a norm of it: input column d belongs to dimension d.
        writes: its output is added to the stream: row d belongs to dimension d.
        transposed: the module stores [in, out] (Conv1D).
    """

    name: str
    layer: int
    part: str
    module: "nn.Module" = field(repr=False, compare=False)
    reads: bool
    writes: bool
    transposed: bool

    def weight(self) -> "Tensor":
        """The live weight as [out, in], a view."""
        stored: Any = self.module.weight
        return stored.detach().T if self.transposed else stored.detach()

    def bias(self) -> "Tensor | None":
        """The live bias [out], or None."""
        found: Any = getattr(self.module, "bias", None)
        return None if found is None else found.detach()


def find_places(loaded: LoadedModel, stack: str | None = None) -> tuple[Place, ...]:
    """Every linear inside the blocks of a stream, in the order of the model.

    Raises:
        BadInput: the blocks hold no linear, or one whose weights are no floating-point values in memory.
    """
    bound = loaded.stack(stack)
    refuse_sharded(loaded.model)
    width = stream_width(loaded.model, bound)
    layer_of = {path: layer for layer, path in reversed(list(enumerate(bound.blocks)))}
    writers = _writers(bound)
    found: list[Place] = []
    seen: set[int] = set()
    for name, module in loaded.model.named_modules():
        kind = _kind(module)
        block = next((path for path in layer_of if name.startswith(f"{path}.")), None) if kind else None
        if block is None or id(module) in seen:
            continue
        seen.add(id(module))
        weight: Any = module.weight
        if weight.is_meta or not weight.is_floating_point():
            what = "not loaded (meta device)" if weight.is_meta else f"of type {weight.dtype}"
            raise BadInput(f"{name}.weight is {what} and cannot be rounded; load the model unquantized, on one device")
        transposed = kind == "conv1d"
        n_inputs = weight.shape[0 if transposed else 1]
        writes = name in writers
        part = name.removeprefix(f"{block}.")
        found.append(Place(name, layer_of[block], part, module, n_inputs == width and not writes, writes, transposed))
    refuse_packed(loaded.model, bound.blocks)
    if not found:
        raise BadInput(
            f"{loaded.name}: the blocks of stream {bound.name!r} hold no linear that this can round (packed experts, bare "
            f"parameters)"
        )
    return tuple(found)


def without_foreign_readers(places: Sequence[Place], shared: Sequence[Sequence[str]]) -> tuple[Place, ...]:
    """`places` without `reads` where one tensor is read in several blocks: `shared` holds names by the tensor they read."""
    layer = {place.name: place.layer for place in places}
    foreign = {name for group in shared if len({layer[name] for name in group}) > 1 for name in group}
    return tuple(replace(place, reads=False) if place.name in foreign else place for place in places)


def _writers(bound: BoundStack) -> set[str]:
    """Paths of the linears that the architecture's row names as writes."""
    modules = (*bound.stack.other_writes, *bound.stack.last_linear)
    return {f"{block}.{module}" for block in bound.blocks for module in modules if not module.endswith("()")}


def _kind(module: "nn.Module") -> str:
    """ "linear", "conv1d" or "" for anything else."""
    from torch import nn

    if isinstance(module, nn.Linear):
        return "linear"
    # By name: importing transformers' class would cost a second where the model needs none of it.
    return "conv1d" if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else ""
