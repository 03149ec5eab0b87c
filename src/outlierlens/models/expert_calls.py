"""See what packed experts read and give: their linears are parameters [expert, …] and no modules, which `calls` does not see.

    with tapped_experts(model, {"model.layers.0.mlp.experts.down_proj": look}):      # look(expert, read, given)
        model(**batch)

`read` and `given` are [token, channel] of the tokens that reach the expert.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import live_parameters
from outlierlens.models.changes import temporary

if TYPE_CHECKING:
    from torch import Tensor, nn


@temporary
def tapped_experts(
    model: "nn.Module", looks: Mapping[str, Callable[[int, "Tensor", "Tensor"], None]]
) -> Iterator[None]:
    """Call the function of each packed parameter at its products with one expert's matrix; experts run one by one."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    live = live_parameters(model)
    starts = {live[name].untyped_storage().data_ptr(): name for name in looks}
    products = {functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            if func in products and len(args) > 1 and args[1].ndim == 2:
                name = starts.get(args[1].untyped_storage().data_ptr())
                if name is not None:
                    packed = live[name]
                    expert = (args[1].storage_offset() - packed.storage_offset()) // packed.stride(0)
                    bias = live.get(f"{name}_bias")
                    looks[name](expert, args[0], made if bias is None else made + bias[expert])
            return made

    with ExitStack() as undo:
        if looks:
            config: Any = model.config
            undo.callback(config.__setattr__, "_experts_implementation", config._experts_implementation)
            config._experts_implementation = "eager"
            undo.enter_context(Mode())
        yield
