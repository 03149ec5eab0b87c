"""Look at what single modules of a running network read and give; `hooks` has the residual stream.

with tapped_calls(model, {model.get_submodule("layers.0.mlp.down_proj"): look}):      # look(read, given)
    model(**batch)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from outlierlens.models.changes import hang, temporary
from outlierlens.models.hooks import refuse_compiled

if TYPE_CHECKING:
    from torch import Tensor, nn


@temporary
def tapped_calls(
    model: "nn.Module", looks: Mapping["nn.Module", Callable[["Tensor", "Tensor"], None]]
) -> Iterator[None]:
    """Call each module's function with its first argument and its output, in every forward pass inside the block."""
    import torch

    refuse_compiled(model)

    def after(module: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        made = output[0] if isinstance(output, tuple) else output
        if isinstance(given, torch.Tensor) and isinstance(made, torch.Tensor):
            looks[module](given, made)

    with ExitStack() as hooks:
        for module in looks:
            hang(hooks, module.register_forward_hook, after, with_kwargs=True)
        yield


@temporary
def head_read(model: "nn.Module", look: Callable[["Tensor", Callable[["Tensor"], "Tensor"]], None]) -> Iterator[None]:
    """Call `look(states, head)` with what the vocabulary head reads [batch, token, dim]; the pass computes one token of it.

    `head(some)` gives the logits of some of them [..., vocabulary], unseen by any hook. Nothing is called without a head.
    """
    head: Any = model.get_output_embeddings()  # type: ignore[operator]

    def cut(module: "nn.Module", args: tuple[Any, ...]) -> Any:
        look(args[0], head.forward)
        return (args[0][:, :1], *args[1:])

    with ExitStack() as hooks:
        if head is not None:
            hang(hooks, head.register_forward_pre_hook, cut)
        yield


def readers_of(model: "nn.Module", norms: Sequence[str], run: Callable[[], Any]) -> dict[str, tuple[str, ...]]:
    """{module path of a norm: paths of the linears that read the very tensor it gives}, seen in one forward pass by `run`.

    A linear that reads a copy (experts that gather their tokens, a head behind a factor) is not seen.
    """
    from torch import nn

    refuse_compiled(model)
    # By the storage of an output its norm, and the output: held, so that no other tensor takes its place.
    given: dict[int, tuple[str, Any]] = {}
    found: dict[str, dict[str, None]] = {name: {} for name in norms}

    def gave(name: str) -> Callable[..., None]:
        def see(module: "nn.Module", args: Any, output: Any) -> None:
            given[output.untyped_storage().data_ptr()] = (name, output)

        return see

    def reads(name: str) -> Callable[..., None]:
        def see(module: "nn.Module", args: tuple[Any, ...]) -> None:
            norm = given.get(args[0].untyped_storage().data_ptr()) if args else None
            if norm is not None:
                found[norm[0]][name] = None

        return see

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name in found:
                hang(hooks, module.register_forward_hook, gave(name))
            elif isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
                hang(hooks, module.register_forward_pre_hook, reads(name))
        run()
    return {name: tuple(readers) for name, readers in found.items()}
