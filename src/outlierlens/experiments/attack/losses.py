"""A model under attack: what it scores, and how much each of its values matters to that.

    target = Target(loaded, texts, TaskOptions(max_length=64), n_probes=2, seed=0)
    target.per_text()                        # value of each text, as the model is now
    slopes = target.slopes(names)            # {tensor: [probe, ...]}: one backward pass a probe

For a loss there is one probe, the loss itself, and the first-order effect of a change is slope · change. How far vectors
move has slope 0 where nothing is changed; there each probe is a random direction for every text's vector, and half the mean
square of slope · change estimates the change, since the cosine distance of near unit vectors is ½ |difference|².
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import live_parameters
from outlierlens.data.texts import Texts
from outlierlens.models.changes import frozen
from outlierlens.models.inputs import model_inputs
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task, TaskOptions, weighted_mean
from outlierlens.tasks.choice import make_task

if TYPE_CHECKING:
    from torch import Tensor


class Target:
    """A model and the texts that it is measured on."""

    def __init__(self, loaded: LoadedModel, texts: Texts, options: TaskOptions, *, n_probes: int, seed: int):
        self.loaded, self.seed = loaded, seed
        # Of a model without a head, what is used is the text's vector.
        headless = options.name == "auto" and loaded.head == "none"
        self.task: Task = make_task(loaded, texts, replace(options, name="sentence change") if headless else options)
        self.n_probes = 1 if self.task.is_loss else n_probes
        self.parameters = live_parameters(loaded.model)

    def per_text(self) -> np.ndarray:
        """Value of each text [text] of the model as it is now."""
        return self.task.per_text()[0]

    def value(self) -> float:
        """The weighted mean over texts."""
        with np.errstate(invalid="ignore", over="ignore"):
            return weighted_mean(self.per_text(), self.task.weights)

    def effects(self, products: np.ndarray) -> np.ndarray:
        """Estimated change of the value, from slope · change [probe, move] of each move [move]."""
        estimate: np.ndarray = products[0] if self.task.is_loss else 0.5 * np.square(products).mean(0)
        return estimate

    def slopes(self, names: Sequence[str]) -> dict[str, "Tensor"]:
        """Slopes of each tensor [probe, ...], in float32, of the model as it is now."""
        import torch

        wanted = list(dict.fromkeys(names))
        found: dict[str, Tensor] = {}
        generator = torch.Generator().manual_seed(self.seed)
        with frozen(self.loaded.model, wanted), torch.enable_grad():
            tensors = [self.parameters[name] for name in wanted]
            for probe in range(self.n_probes):
                objective = self._loss if self.task.is_loss else self._direction(generator)
                total = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in tensors]
                for feed in self.task.feeds(range(self.task.n_texts)):
                    parts = torch.autograd.grad(objective(feed), tensors, allow_unused=True)
                    for kept, part in zip(total, parts, strict=True):
                        if part is not None:
                            kept.add_(part)
                for name, slope in zip(wanted, total, strict=True):
                    found[name] = torch.cat([found[name], slope[None]]) if probe else slope[None]
        return found

    def slopes_at(self, names: Sequence[str], places: Sequence[np.ndarray]) -> np.ndarray:
        """Slopes at flat places of some tensors, one after the other [probe, value]."""
        import torch

        slopes = self.slopes(names)
        parts = [
            slopes[name].flatten(1)[:, torch.from_numpy(flat).to(slopes[name].device)].cpu().double().numpy()
            for name, flat in zip(names, places, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def _loss(self, feed: Any) -> "Tensor":
        return self.task.sums(feed).sum() / float(self.task.weights.sum())

    def _direction(self, generator: Any) -> "Callable[[Any], Tensor]":
        """The sum over texts of a random direction · the text's unit vector; independent directions, so squares add up."""

        def objective(feed: Any) -> "Tensor":
            import torch
            from torch.nn import functional

            headless = self.loaded.head == "none"
            output: Any = self.loaded.model(**model_inputs(self.loaded, feed.batch), output_hidden_states=not headless)
            states = getattr(output, "last_hidden_state", None)
            if states is None:  # an encoder-decoder's answer is the decoder's
                states = (getattr(output, "decoder_hidden_states", None) or output.hidden_states)[-1]
            valid = feed.batch.valid
            pooled = (states.float() * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
            unit = functional.normalize(pooled, dim=-1)
            random = torch.randn(unit.shape, generator=generator).to(unit)
            # Of texts, weighted alike: the mean of their squared changes is that of one text drawn at random.
            return (random * unit).sum() / float(np.sqrt(self.task.n_texts))

        return objective
