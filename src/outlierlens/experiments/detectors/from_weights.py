"""The rules on weights, of a model in memory: `weight_found(loaded, stack, settings, condition)`.

`detect` holds the rules; here is what they are applied to.

What a definition should find next to nothing in: other weights for the same architecture, another basis for the same states.

randomly_initialised(loaded, seed=0)        # the same architecture as training finds it
shuffled(loaded, seed=0)                    # every tensor holds the same values at other places
rotation(width, seed=0)                     # an orthogonal matrix, uniform among all
"""

import copy
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack, Param
from outlierlens.checkpoints.stored import LiveCheckpoint
from outlierlens.detection.rules import Outlier, Rule, find
from outlierlens.detection.scan.measure import Site, measure, sites_of
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.options import Settings
from outlierlens.experiments.detectors.result import Found
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

Layers = Mapping[str, Iterable[tuple[int, float]]]


def randomly_initialised(loaded: LoadedModel, *, seed: int) -> LoadedModel:
    """A model of the same class and config with the values that training starts from, drawn with `seed`.

    Raises:
        BadInput: the model carries no config that its class can be made from.
    """
    import torch

    model: Any = loaded.model
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise BadInput(
            f"{loaded.name}: a random initialisation is made from a transformers config, which this model lacks"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(config))
    return replace(loaded, model=fresh.to(device=loaded.device, dtype=model.dtype).eval())


def shuffled(loaded: LoadedModel, *, seed: int) -> LoadedModel:
    """A copy of the model with the entries of every parameter permuted within it, drawn with `seed`.

    Parameters that are shared (tied embeddings) stay shared; buffers stay as they are.
    """
    import torch

    model = copy.deepcopy(loaded.model)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            order = torch.randperm(parameter.numel(), generator=random).to(parameter.device)
            parameter.copy_(parameter.reshape(-1)[order].view_as(parameter))
    return replace(loaded, model=model.eval())


def rotation(width: int, *, seed: int) -> "Tensor":
    """A random orthogonal matrix [dim, dim], float32: Q of a Gaussian matrix, signs made uniform (Mezzadri 2007)."""
    import torch

    random = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(width, width, generator=random, dtype=torch.float64))
    return (q * r.diagonal().sign()).float()


def weight_found(loaded: LoadedModel, stack: BoundStack, settings: Settings, condition: str) -> tuple[Found, ...]:
    """What kovaleva, puccetti and luo-rank find in the weights as they are now."""
    checkpoint = LiveCheckpoint(loaded.model, name=loaded.name, config=loaded.config)
    (site,) = sites_of(stack, "last")
    measured, _ = measure(checkpoint, site, hashlib.sha256())
    layers = tuple(str(layer) for layer in stack.weight_layers)
    kovaleva = Rule("kovaleva", n_sigma=settings.n_sigma, min_layer_fraction=settings.min_layer_fraction)
    puccetti = Rule("puccetti", n_sigma=settings.n_sigma, top_k=settings.puccetti_top)
    found = [
        found_of(rule.name, condition, _past(find(measured, rule)[0], layers), largest_first=True)
        for rule in (kovaleva, puccetti)
    ]
    if measured.bias is None:
        found[1] = Found("puccetti", condition, why_not=f"{site.name} has no bias, and the rule wants both lists")
    return (*found, _luo_rank(checkpoint, stack, settings, condition))


def found_of(
    definition: str, condition: str, layers: Layers, dims: Iterable[int] | None = None, *, largest_first: bool
) -> Found:
    """`Found` of (dimension, strength) pairs by layer; `dims` are all of them unless given."""
    sign = -1 if largest_first else 1
    ordered = {layer: sorted(pairs, key=lambda pair: (sign * pair[1], pair[0])) for layer, pairs in layers.items()}
    ordered = {layer: pairs for layer, pairs in ordered.items() if pairs}
    every = {dim for pairs in ordered.values() for dim, _ in pairs} if dims is None else set(dims)
    return Found(
        definition,
        condition,
        tuple(sorted(every)),
        {layer: tuple(dim for dim, _ in pairs) for layer, pairs in ordered.items()},
        {layer: tuple(float(value) for _, value in pairs) for layer, pairs in ordered.items()},
    )


def _past(outliers: Iterable[Outlier], layers: tuple[str, ...]) -> Layers:
    """By layer, the outliers whose scale or bias is past the threshold there, with the larger |z|."""
    by: dict[str, list[tuple[int, float]]] = {layer: [] for layer in layers}
    for outlier in outliers:
        for place in sorted({*outlier.layers_scale, *outlier.layers_bias}):
            z = [abs(values[place]) for values in (outlier.z_scale, outlier.z_bias) if values]
            by[layers[place]].append((outlier.dim, max(z)))
    return by


def _luo_rank(checkpoint: LiveCheckpoint, stack: BoundStack, settings: Settings, condition: str) -> Found:
    """Dimensions whose rank in a norm's scale or bias is among the first in more layers than chance allows."""
    rule = Rule("luo", top_k=settings.luo_rank)
    sites = [one for module, norms in stack.norms.items() if (one := _norm_site(stack, module, norms))]
    if not sites:
        few = "ranks over layers cannot agree: fewer than two blocks, each counted once, have a norm"
        return Found("luo-rank", condition, why_not=few if stack.norms else "the blocks declare no norm")
    best: dict[str, dict[int, float]] = {}
    for site, present in sites:
        measured, _ = measure(checkpoint, site, hashlib.sha256())
        for outlier in find(measured, rule)[0]:
            if outlier.p_holm > settings.luo_rank_p / len(sites):
                continue
            for place in sorted({*outlier.layers_scale, *outlier.layers_bias}):
                ranks = [values[place] for values in (outlier.rank_scale, outlier.rank_bias) if values]
                here = best.setdefault(str(present[place]), {})
                here[outlier.dim] = min(*ranks, here.get(outlier.dim, settings.luo_rank))
    ordered = {layer: best[layer].items() for layer in sorted(best, key=int)}
    return found_of("luo-rank", condition, ordered, largest_first=False)


def _norm_site(
    stack: BoundStack, module: str, norms: tuple[tuple[Param, ...], ...]
) -> tuple[Site, tuple[int, ...]] | None:
    """One norm over the layers that have it, and those layers; None where fewer than two do: ranks then say nothing."""
    present = tuple(layer for layer in stack.weight_layers if norms[layer])
    if len(present) < 2:
        return None
    scale = tuple(norms[layer][:1] for layer in present)
    bias = tuple(norms[layer][1:] for layer in present)
    return Site(stack, module, scale, bias, True), present
