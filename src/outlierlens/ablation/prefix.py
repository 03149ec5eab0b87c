"""Compute the part of the network before the first touched layer once, and start later passes behind it.

    kept = captured(model, stack, task, [3], texts)[3]   # states at the output of block 3 on some texts of a task
    with resumed(model, stack, kept, rows): ...          # blocks 0 to 3 are not run: block 3 gives what was kept

Blocks are skipped by standing in for their `forward`; everything around them (embeddings, attention masks, rotary tables)
runs as always. Only for streams whose blocks return a [batch, token, dim] tensor, bare or alone in a tuple (MPNet), and are
not shared between layers.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import written
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.tasks.base import Task

if TYPE_CHECKING:
    from torch import Tensor, nn


MAX_KEPT_BYTES = 2**30  # of states kept for reuse


class _PrefixEnd(Exception):
    """Ends a pass behind the last layer that is wanted; a class of its own, for passes that end at the head nest in it."""


@dataclass(frozen=True)
class BlockOutput:
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


class Prefixes:
    """States of some texts under one setting of a model, for passes that differ from it only behind one of `layers`."""

    def __init__(self, loaded: LoadedModel, stack: BoundStack, task: Task, layers: Iterable[int]):
        self._loaded, self._stack, self._task = loaded, stack, task
        self._layers = sorted(set(layers) & set(range(stack.n_layers))) if can_resume(stack) else []
        self._of: Hashable = None
        self._kept: dict[int, BlockOutput] = {}

    def behind(
        self, layer: int, texts: Sequence[int], setting: Hashable, enter: Callable[[], None]
    ) -> BlockOutput | None:
        """The output of block `layer` on these texts; None where nothing is kept of it, as before the first block.

        States of the last `setting` named are kept, the latest layers' where they take more than `MAX_KEPT_BYTES`; where it is
        another, `enter()` brings the model into it.
        """
        if layer not in self._layers:
            return None
        if self._of != (setting, tuple(texts)):
            self._of, self._kept = (setting, tuple(texts)), {}  # let go of the old states before new ones are made
            enter()
            width = stream_width(self._loaded.model, self._stack)
            n_bytes = int(self._task.lengths[list(texts)].sum()) * width * 4
            self._layers = self._layers[-max(1, MAX_KEPT_BYTES // n_bytes) :]
            self._kept = captured(self._loaded.model, self._stack, self._task, self._layers, texts)
        return self._kept.get(layer)


def captured(
    model: "nn.Module",
    stack: BoundStack,
    task: Task,
    layers: Sequence[int],
    texts: Sequence[int],
    *,
    bare: bool = False,
    tokens: int | None = None,
) -> dict[int, BlockOutput]:
    """{layer: what is kept of it} on these texts of a task, rows in their order; {} where this model's states do not allow it.

    `tokens` bounds a pass, as in `Task.feeds`. With `bare`, each layer runs a second time with its last operation zero.
    """
    import torch

    whole: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}  # by layer and place in `texts`
    zero: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}
    feed: Any = None  # of the pass that runs
    in_tuple = odd = False

    def keep(into: dict[int, "Tensor"], states: "Tensor") -> None:
        for row, slot in enumerate(feed.slots):
            into[slot] = states[row, : int(task.lengths[texts[slot]])].clone()

    def stand_in(layer: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run_block(*args: Any, **kwargs: Any) -> Any:
            nonlocal in_tuple, odd
            output = forward(*args, **kwargs)
            in_tuple = isinstance(output, tuple) and len(output) == 1
            states = output[0] if in_tuple else output
            if not isinstance(states, torch.Tensor) or states.ndim != 3:
                odd = True
                raise _PrefixEnd
            keep(whole[layer], states)
            if bare:
                with written(model, stack, lambda _, states: torch.zeros_like(states), [layer]):
                    again = forward(*args, **kwargs)
                keep(zero[layer], again[0] if in_tuple else again)
            if layer == max(layers):
                raise _PrefixEnd
            return output

        return run_block

    n_rows = 0
    for feed in task.feeds(list(texts), tokens):
        n_rows += len(feed.slots)
        with torch.inference_mode(), _replaced(model, stack, dict.fromkeys(layers, stand_in)), suppress(_PrefixEnd):
            task.sums(feed)
        if odd or len(whole[max(layers)]) < n_rows:  # or a text has several rows
            return {}
    every = range(len(texts))
    return {
        layer: BlockOutput(
            layer,
            tuple(whole[layer][slot] for slot in every),
            tuple(zero[layer][slot] for slot in every) if bare else None,
            in_tuple,
        )
        for layer in layers
    }


@temporary
def resumed(
    model: "nn.Module",
    stack: BoundStack,
    kept: BlockOutput,
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

    give = {kept.layer: lambda *_: lambda *_, **__: handed_on(states)}
    with _replaced(model, stack, dict.fromkeys(range(kept.layer), skip) | give):
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
