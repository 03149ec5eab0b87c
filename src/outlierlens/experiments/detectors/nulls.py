"""What a definition should find next to nothing in: other weights for the same architecture, another basis for the same states.

randomly_initialised(loaded, seed=0)        # the same architecture as training finds it
shuffled(loaded, seed=0)                    # every tensor holds the same values at other places
rotation(width, seed=0)                     # an orthogonal matrix, uniform among all
"""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor


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
