"""How large hidden states, writes and neurons get: a few forward passes, and the exponents that follow from them.

inputs = check_inputs(loaded, texts, max_length=128, seed=0)
seen = extent(loaded, inputs)
stream_exponent(seen, "fp16", margin=4)              # -1: half of it has room
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import live_parameters
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.repair.options import LIMITS
from outlierlens.experiments.repair.plan import Plan
from outlierlens.models.calls import tapped_calls
from outlierlens.models.inputs import token_ids, token_limit
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

Look = Callable[["Tensor", "Tensor"], None]  # at what a module reads and gives
N_RANDOM, RANDOM_LENGTH = 2, 32  # rows of random tokens of the check, and their length
OUTPUTS = ("logits", "last_hidden_state")


@dataclass
class Extent:
    """The largest |x| by place, over all passes.

    Attributes:
        layers: after each block, all streams in a row. writes: of what a block adds, where a linear module writes it.
        neurons: last linear -> [neuron] of what it reads, where its neurons can take factors.
    """

    layers: list[float]
    writes: float = 0.0
    neurons: "dict[str, Tensor]" = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """Of hidden states and writes."""
        return max(*self.layers, self.writes)

    @property
    def spikes(self) -> float:
        """The largest ratio of the largest neuron to the median one; 0.0 where no neuron can take a factor."""
        return max((float(one.max() / one.median().clamp(min=1e-30)) for one in self.neurons.values()), default=0.0)


def neuron_pairs(loaded: LoadedModel) -> dict[str, str]:
    """{path of a last linear: path of the linear whose outputs multiply what it reads, neuron by neuron}."""
    have = live_parameters(loaded.model)
    return {
        f"{block}.{last}": f"{block}.{first}"
        for bound in loaded.stacks
        for block in dict.fromkeys(bound.blocks)
        for last, first in bound.stack.neurons.items()
        if f"{block}.{last}.weight" in have and f"{block}.{first}.weight" in have
    }


def check_inputs(loaded: LoadedModel, texts: Sequence[str], *, max_length: int, seed: int) -> "list[dict[str, Any]]":
    """Keyword arguments of the model, a row each: every text that has tokens, then rows of random tokens."""
    import torch

    length = token_limit(loaded, max_length)
    rows = [token_ids(loaded, text, truncation=True, max_length=length) for text in texts]
    random = torch.Generator().manual_seed(seed)
    n_rows = loaded.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    drawn = torch.randint(n_rows, (N_RANDOM, min(RANDOM_LENGTH, length)), generator=random)
    made = [torch.tensor([ids]) for ids in (*filter(None, rows), *drawn.tolist())]
    if loaded.config.get("is_encoder_decoder"):
        return [{"input_ids": ids, "decoder_input_ids": ids} for ids in made]
    return [{"input_ids": ids} for ids in made]


def outputs(model: Any, inputs: "list[dict[str, Any]]") -> "list[Tensor]":
    """What the model gives for each row: its logits, or its last hidden state where it has no head."""
    import torch

    device = next(model.parameters()).device
    found = []
    with torch.inference_mode():
        for row in inputs:
            out = model(**{name: ids.to(device) for name, ids in row.items()})
            found.append(next(out[name] for name in OUTPUTS if name in out).float().cpu())
    return found


def extent(loaded: LoadedModel, inputs: "list[dict[str, Any]]") -> Extent:
    """The largest values of the model on `inputs`; raises BadInput where some are not finite."""
    seen = Extent([0.0] * sum(bound.n_layers for bound in loaded.stacks))
    with watched(loaded, seen):
        outputs(loaded.model, inputs)
    if not math.isfinite(seen.largest):
        raise BadInput(f"{loaded.name}: hidden states are not finite in float32; {USE_FLOAT32}")
    return seen


def watched(loaded: LoadedModel, seen: Extent) -> AbstractContextManager[None]:
    """Note the largest values of every pass inside the block in `seen`."""
    modules, pairs = dict(loaded.model.named_modules()), neuron_pairs(loaded)
    writers = {
        param.name.rpartition(".")[0]
        for bound in loaded.stacks
        for layers in bound.linears.values()
        for layer in layers
        for param in layer
        if param.name.endswith(".weight")
    }

    def block(layer: int) -> Look:
        def look(read: "Tensor", given: "Tensor") -> None:
            seen.layers[layer] = _largest(seen.layers[layer], given)

        return look

    def linear(path: str) -> Look:
        def look(read: "Tensor", given: "Tensor") -> None:
            if path in writers:
                seen.writes = _largest(seen.writes, given)
            if path in pairs:
                top = read.detach().abs().flatten(0, -2).amax(0)  # [neuron]
                seen.neurons[path] = top.maximum(seen.neurons[path]) if path in seen.neurons else top

        return look

    blocks = [path for bound in loaded.stacks for path in bound.blocks]
    looks = {modules[path]: block(layer) for layer, path in enumerate(blocks)}
    looks |= {modules[path]: linear(path) for path in (*writers, *pairs)}
    return tapped_calls(loaded.model, looks)


def _largest(before: float, values: Any) -> float:
    """The larger of both; NaN once there is one."""
    now = float(values.detach().abs().max())
    return now if math.isnan(now) or now > before else before


def stream_exponent(seen: Extent, fit: str, margin: int) -> int:
    """The exponent ≤ 0 of the stream's factor with which all that was seen has room in the format."""
    return _exponent(seen.largest, LIMITS[fit] / margin) if fit in LIMITS else 0


def neuron_exponents(seen: Extent, fit: str, margin: int) -> "dict[str, Tensor]":
    """{last linear: exponents ≤ 0 [neuron]} that leave room for all that was seen; of linears where one is not 0."""
    if fit not in LIMITS:
        return {}
    return _over(seen, lambda top: LIMITS[fit] / margin, 1.0, up=True)


def balanced_exponents(seen: Extent, cap: float, share: float) -> "dict[str, Tensor]":
    """Likewise of neurons whose largest input is more than `cap` times that of the median neuron of their linear.

    In logarithms they come down by `share` of what they are above that: the rest stays with the inputs, so that the weights
    behind them grow by less (SmoothQuant's α; Xiao et al. 2023, eq. 4).
    """
    return _over(seen, lambda top: cap * float(top.median()), share, up=False)


def _over(seen: Extent, limit: "Callable[[Tensor], float]", share: float, *, up: bool) -> "dict[str, Tensor]":
    import torch

    found = {}
    for path, top in seen.neurons.items():
        most = limit(top)
        if most <= 0:
            continue
        over = share * torch.log2((top.double() / most).clamp(min=1))
        exponents = -(torch.ceil if up else torch.floor)(over).int()
        if exponents.any():
            found[path] = exponents
    return found


def add_neurons(plan: Plan, loaded: LoadedModel, exponents: "dict[str, Tensor]") -> None:
    """Plan factors of neurons: rows (and biases) of the linear before them, and back in the columns of the one behind."""
    pairs, have = neuron_pairs(loaded), live_parameters(loaded.model)
    for last, exponent in exponents.items():
        first = pairs[last]
        plan.times([f"{first}.weight"], exponent[:, None])  # [neuron, in]
        plan.times([name for name in (f"{first}.bias",) if name in have], exponent)
        plan.times([f"{last}.weight"], -exponent[None, :])  # [out, neuron]


def _exponent(largest: float, limit: float) -> int:
    return -max(0, math.ceil(math.log2(largest / limit))) if largest > 0 else 0
