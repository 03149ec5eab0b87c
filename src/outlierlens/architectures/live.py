"""Declared stacks against the parameters of a live model; models whose weights are no parameters that can be set are refused.

bound = bind_live(stacks_of(config), model)
"""

from collections.abc import Callable, Collection
from itertools import chain
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.bind import BoundStack, bind
from outlierlens.architectures.stack import Stack
from outlierlens.errors import BadFile, BadInput, UnknownArchitecture

if TYPE_CHECKING:
    from torch import Tensor, nn

_SHARDING = {"FullyShardedDataParallel", "FSDPModule"}


def live_parameters(model: "nn.Module") -> dict[str, Any]:
    """{name: parameter} of a live model, every name of a shared parameter included."""
    return dict(model.named_parameters(remove_duplicate=False))


def in_memory(parameter: "Tensor") -> "Tensor":
    """A parameter with its values; of one that is away (`models.block_weights`) these, from its file."""
    from_file: Callable[[], Tensor] = getattr(parameter, "from_file", lambda: parameter)
    return from_file()


def bind_live(stacks: tuple[Stack, ...], model: "nn.Module") -> list[BoundStack]:
    """`bind` to the parameters of a live model.

    Raises:
        BadInput: the weights that the stacks name are no parameters, see `refuse_packed`. UnknownArchitecture, BadFile: see
            `bind`.
    """
    try:
        return bind(stacks, live_parameters(model))
    except (UnknownArchitecture, BadFile):
        refuse_packed(model)
        raise


def refuse_packed(model: "nn.Module", inside: Collection[str] = ("",)) -> None:
    """Raise BadInput where linears inside the modules at these paths have no weight to set.

    They hold packed integers in place of it, or compute it at every pass from parameters of other names.
    """
    for name, _ in model.named_parameters():
        if name.startswith(tuple(inside)) and (name.endswith(("_orig", "weight_g")) or ".parametrizations." in name):
            raise BadInput(
                f"{name}: this weight is computed from others at every pass (torch.nn.utils.prune, or a parametrization), so "
                f"it cannot be set; make it permanent first (prune.remove, remove_parametrizations)"
            )
    for name, module in model.named_modules():
        # A quantized module gives its weight by a method; plain ones have a parameter.
        if callable(getattr(module, "weight", None)) and name.startswith(tuple(inside)):
            raise BadInput(
                f"{name} holds its weights packed as integers (quantize_dynamic), which can neither be read nor set as "
                "parameters; use the model as it was before it was quantized"
            )


def sharded_part(model: "nn.Module") -> str:
    """A module or parameter of which this process holds only its part (FSDP, fully_shard, ZeRO-3); "" where there is none.

    Between passes, fully_shard may leave parameters whole for a while: the module still is one that will part with them.
    """
    modules = (
        type(one).__name__ for one in model.modules() if _SHARDING & {base.__name__ for base in type(one).__mro__}
    )
    values = model.named_parameters()
    parameters = (name for name, value in values if type(value).__name__ == "DTensor" or hasattr(value, "ds_id"))
    return next(chain(modules, parameters), "")


def refuse_sharded(model: "nn.Module") -> None:
    """Raise BadInput for a model of which this process holds only its part."""
    if part := sharded_part(model):
        raise BadInput(
            f"this model is sharded over processes ({part}), so none of them holds whole vectors; load it in one process, "
            "without FSDP, fully_shard or ZeRO-3"
        )
