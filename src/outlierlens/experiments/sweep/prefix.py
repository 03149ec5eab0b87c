"""Compute the part of the network before the first touched layer once, and start later passes behind it.

    kept = capture(model, stack, [3], run, site)     # states at the output of block 3, while run() reads some texts
    with resumed(model, stack, kept, rows): ...      # blocks 0 to 3 are not run: block 3 gives what was kept

Blocks are skipped by standing in for their `forward`; everything around them (embeddings, attention masks, rotary tables)
runs as always. Only for streams whose blocks return a [batch, token, dim] tensor, bare or alone in a tuple (MPNet), and are
not shared between layers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import written

if TYPE_CHECKING:
    from torch import Tensor, nn


class _Enough(Exception):
    """Ends a pass behind the last layer that is wanted; a class of its own, for passes that end at the head nest in it."""


@dataclass(frozen=True)
class Kept:
    """The output of block `layer` of the intact model, row by row without padding: each [token, dim].

    Attributes:
        whole: as it is.
        bare: as it is with the block's last operation zero in every dimension; None where the ablation edits the block's
            output itself, which a hook does on top of `whole`.
        in_tuple: whether blocks return it alone in a tuple.
    """

    layer: int
    whole: tuple["Tensor", ...]
    bare: tuple["Tensor", ...] | None
    in_tuple: bool = False


def can_resume(stack: BoundStack) -> bool:
    """Whether this stream's blocks may be skipped, as far as its declaration tells."""
    return len(set(stack.blocks)) == len(stack.blocks) and not stack.stack.token_first


def capture(
    model: "nn.Module",
    stack: BoundStack,
    layers: Sequence[int],
    run: Callable[[], Any],
    lengths: Sequence[int],
    *,
    bare: bool,
) -> dict[int, Kept] | None:
    """{layer: what is kept of it} while `run()` makes one forward pass over rows of the given lengths.

    With `bare`, each wanted block runs a second time with its last operation zero. None where blocks return anything else
    than such a tensor.
    """
    import torch

    found: dict[int, Kept] = {}
    last = max(layers)
    odd = False

    def rows(states: "Tensor") -> tuple["Tensor", ...]:
        return tuple(states[row, :length].clone() for row, length in enumerate(lengths))

    def stand_in(layer: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run_block(*args: Any, **kwargs: Any) -> Any:
            nonlocal odd
            output = forward(*args, **kwargs)
            in_tuple = isinstance(output, tuple) and len(output) == 1
            states = output[0] if in_tuple else output
            if not isinstance(states, torch.Tensor) or states.ndim != 3:
                odd = True
                raise _Enough
            without = None
            if bare:
                with written(model, stack, lambda _, states: torch.zeros_like(states), [layer]):
                    again = forward(*args, **kwargs)
                    without = rows(again[0] if in_tuple else again)
            found[layer] = Kept(layer, rows(states), without, in_tuple)
            if layer == last:
                raise _Enough
            return output

        return run_block

    with _replaced(model, stack, dict.fromkeys(layers, stand_in)), suppress(_Enough):
        run()
    return None if odd else found


@temporary
def resumed(
    model: "nn.Module",
    stack: BoundStack,
    kept: Kept,
    rows: Sequence[int],
    zeroed: "tuple[Tensor, Tensor] | None" = None,
) -> Iterator[None]:
    """Start forward passes inside behind block `kept.layer`, on its rows numbered `rows` (repeats allowed).

    `zeroed` is (rows of the pass, dimensions) where the block's last operation is off.
    """
    from torch.nn.utils.rnn import pad_sequence

    states = pad_sequence([kept.whole[row] for row in rows], batch_first=True)
    if zeroed is not None and kept.bare is not None:
        bare = pad_sequence([kept.bare[row] for row in rows], batch_first=True)
        at, dims = zeroed
        states[at, :, dims] = bare[at, :, dims]

    def handed_on(states: "Tensor") -> Any:
        return (states,) if kept.in_tuple else states

    def skip(layer: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: handed_on(args[0] if args else kwargs["hidden_states"])

    def give(layer: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: handed_on(states)

    with _replaced(model, stack, {**dict.fromkeys(range(kept.layer), skip), kept.layer: give}):
        yield


@temporary
def _replaced(model: "nn.Module", stack: BoundStack, makers: dict[int, Callable[..., Any]]) -> Iterator[None]:
    """Each block in `makers` runs makers[layer](layer, its forward) inside."""
    with ExitStack() as undo:
        for layer, make in makers.items():
            block = model.get_submodule(stack.blocks[layer])
            before = block.__dict__.get("forward")
            block.forward = make(layer, block.forward)
            undo.callback(_restore, block, before)
        yield


def _restore(block: "nn.Module", before: Any) -> None:
    if before is None:
        del block.forward
    else:
        block.forward = before
