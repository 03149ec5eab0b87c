"""Which modules give which kind of tensor.

    for place in find_places(loaded, stack):
        place.module, place.reads, place.gives        # kinds, "" for what is no kind of its own

The architecture's row names the linears that write to the stream and the norms. The other linears of a block belong to its
attention where their path says so ("self_attn", "attention"), else to its MLP.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Place:
    """One module that is looked at.

    Attributes:
        name: its path. layer: "" where the running layer says it, else "embeddings" or "final".
        reads, gives: kinds of its input and output. squares: whether it is a norm. centred: whether it takes the mean away.
    """

    name: str
    module: "nn.Module" = field(repr=False, compare=False)
    reads: str = ""
    gives: str = ""
    layer: str = ""
    squares: bool = False
    centred: bool = False


def find_places(loaded: LoadedModel, stack: BoundStack) -> tuple[Place, ...]:
    """Linears and norms of a stream's blocks, and the norms before the first and after the last block, each once."""
    modules = dict(loaded.model.named_modules())
    blocks = dict.fromkeys(stack.blocks)
    declared = stack.stack
    after = {f"{block}.{path}" for block in blocks for path in declared.other_writes}
    last = {f"{block}.{path}" for block in blocks for path in declared.last_linear}
    reads, gives = _between(stack)
    found = {}
    for name, module in modules.items():
        block = next((path for path in blocks if name.startswith(f"{path}.")), None)
        if block is None:
            continue
        if _is_norm(module):
            found[id(module)] = _norm(name, module, reads.get(name, ""), gives.get(name, ""))
        elif _is_linear(module):
            part = name.removeprefix(f"{block}.").lower()
            if name in last:
                kinds = ("MLP inner", "MLP output")
            elif name in after:
                kinds = ("attention mix", "attention output")
            else:
                of_attention = "attn" in part or "attention" in part
                kinds = ("attention input", "attention linears") if of_attention else ("MLP input", "gate/up")
            found[id(module)] = Place(name, module, *kinds)
    for layer, params in (("embeddings", stack.embedding_norm), ("final", stack.final_norm)):
        for param in params[:1]:
            name = param.name.rpartition(".")[0]
            if name in modules:
                found[id(modules[name])] = _norm(name, modules[name], "", "norm output", layer)
    return tuple(found.values())


def packed_kinds(loaded: LoadedModel, stack: BoundStack) -> dict[str, tuple[str, str]]:
    """{parameter of packed experts: kinds of what it reads and gives}."""
    live, declared = live_parameters(loaded.model), stack.stack
    kinds = dict.fromkeys(declared.last_linear, ("MLP inner", "MLP output"))
    for names in declared.readers.values():
        kinds |= {name: ("MLP input", "gate/up") for name in names if name not in kinds}
    return {
        f"{block}.{name[:-2]}": both
        for block in dict.fromkeys(stack.blocks)
        for name, both in kinds.items()
        if name.endswith("()") and f"{block}.{name[:-2]}" in live
    }


def _between(stack: BoundStack) -> tuple[dict[str, str], dict[str, str]]:
    """The norms that read, and those that give, the stream between attention and MLP: {path: kind}."""
    kind = "stream after attention"
    if stack.stack.norm_site == "stream":
        paths = (f"{block}.{path}" for block in stack.blocks for path in stack.stack.other_norms)
        return {}, dict.fromkeys(paths, kind)
    return {norm.name.rpartition(".")[0]: kind for norms in stack.reading for norm in norms[1:]}, {}


def _norm(name: str, module: "nn.Module", reads: str, gives: str, layer: str = "") -> Place:
    centred = "layernorm" in type(module).__name__.lower() and getattr(module, "bias", None) is not None
    return Place(name, module, reads, gives or "norm output", layer, squares=True, centred=centred)


def _is_norm(module: "nn.Module") -> bool:
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())


def _is_linear(module: "nn.Module") -> bool:
    from torch import nn

    # By name: importing transformers' class would cost a second where the model needs none of it.
    return isinstance(module, nn.Linear) or (type(module).__name__ == "Conv1D" and hasattr(module, "nf"))
