"""One backward pass estimates the effect of every unit to first order: control variate and order of work, never a result.

    first_order(runner, units, (0, 16))      # [text, unit]: estimated change of the task's value

Switching something off moves hidden states by δ; to first order the value moves by Σ ∂value/∂state · δ, over layers and
tokens. δ is −state at the output of the block's last operation (mode "weights") or of the block ("zero"), (factor − 1) ×
state ("scale"), and mean − state ("mean").
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.experiments.sweep.runner import Runner
from outlierlens.experiments.sweep.units import Unit
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import EMBEDDINGS, edited

if TYPE_CHECKING:
    from torch import Tensor

TOKENS_SHARE = 2  # a backward pass keeps what a forward pass lets go: its batches are smaller by this


def can_differentiate(runner: Runner) -> bool:
    """Whether a gradient pass serves this runner: a loss, an ablation of single values, whole blocks."""
    return runner.mixes and runner.task.is_loss and not runner.stack.stack.token_first


def first_order(
    runner: Runner,
    units: Sequence[Unit],
    span: tuple[int, int],
    objective: "Callable[[Any], Tensor] | None" = None,
) -> np.ndarray:
    """First-order estimates of the units' effects on the texts `span` of the runner's order, float32 [text, unit].

    The effects are those on the task's value, or on `objective` of a feed [row].
    """
    import torch

    texts = runner.order[span[0] : span[1]]
    weights = runner.task.weights[texts]
    found = np.zeros((len(texts), len(units)), dtype=np.float64)
    model, stack, site = runner.loaded.model, runner.stack, runner.site
    layers = sorted({layer for unit in units for layer in unit.plan})
    states: dict[int, Tensor] = {}

    def keep(layer: int, output: "Tensor") -> None:
        states[layer] = output

    def start(_: int, embedded: "Tensor") -> "Tensor":
        return embedded.detach().requires_grad_()

    with _frozen(runner), torch.enable_grad(), edited(model, stack, start, [EMBEDDINGS]):
        for feed in runner.task.feeds(texts.tolist(), runner.tokens // TOKENS_SHARE):
            states.clear()
            with site(model, stack, keep, layers):  # type: ignore[arg-type]
                total = (objective or runner.task.sums)(feed).sum()
            slopes = torch.autograd.grad(total, [states[layer] for layer in layers])
            effect = {
                layer: _moved(runner, layer, states[layer].detach(), slope, len(feed.slots))
                for layer, slope in zip(layers, slopes, strict=True)
            }
            for row, slot in enumerate(feed.slots):
                found[slot] += _by_unit(units, effect, row)
    return (found if objective else found / weights[:, None]).astype(np.float32)


def _moved(runner: Runner, layer: int, states: "Tensor", slopes: "Tensor", rows: int) -> np.ndarray:
    """Σ over tokens of slope · δ, float64 [row, dim]."""
    settings, mode = runner.ablation.settings, runner.ablation.mode
    if mode == "scale":
        moves = (settings.factor - 1) * states
    elif mode == "mean":
        import torch

        assert settings.means is not None
        moves = torch.from_numpy(settings.means[layer]).to(states) - states
    else:
        moves = -states
    product = (slopes.float() * moves.float()).view(rows, -1, states.shape[-1])
    return product.sum(1).cpu().double().numpy()


def _by_unit(units: Sequence[Unit], effect: dict[int, np.ndarray], row: int) -> np.ndarray:
    """The first-order effect of every unit on one row [unit]; sums over layers are shared by units of one window."""
    by_window: dict[tuple[int, ...], np.ndarray] = {}
    found = np.empty(len(units))
    for number, unit in enumerate(units):
        if unit.by_layer:
            found[number] = sum(effect[layer][row, list(dims)].sum() for layer, dims in unit.plan.items())
            continue
        layers = unit.layers
        if layers not in by_window:
            by_window[layers] = np.sum([effect[layer][row] for layer in layers], axis=0)
        found[number] = by_window[layers][list(unit.dims)].sum()
    return found


@temporary
def _frozen(runner: Runner) -> Iterator[None]:
    """No gradients of parameters inside: only those of hidden states are wanted."""
    wanted = [parameter for parameter in runner.loaded.model.parameters() if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
