"""A planned rewriting of a live model: for a while, or for good.

with repaired(loaded, plan):             # values, epsilons and ties as planned
    loaded.model(**inputs)
                                         # all of it as it was, bit for bit
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from outlierlens.architectures import live_parameters
from outlierlens.experiments.repair.epsilon import get_key, norm_epsilons, set_epsilon, set_key
from outlierlens.experiments.repair.plan import Plan
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.load import LoadedModel


@temporary
def repaired(loaded: LoadedModel, plan: Plan) -> Iterator[LoadedModel]:
    """The model rewritten as planned inside the block; raises BadInput where a parameter's type cannot hold its values."""
    with ExitStack() as undo:
        change(undo, loaded, plan)
        yield loaded


def change(undo: ExitStack, loaded: LoadedModel, plan: Plan) -> None:
    """Rewrite the model as planned until `undo` is closed."""
    model: Any = loaded.model
    parameters = live_parameters(model)
    new = plan.tensors({name: parameters[name].detach() for name in plan.exponents})
    if plan.untie:
        untie(undo, model)
    settable = Settable(undo, model)
    for name, values in new.items():
        settable.set_values(name, slice(None), values)
    before = norm_epsilons(model)
    for path, exponent in plan.norms.items():
        module = model.get_submodule(path)
        undo.callback(set_epsilon, module, before[path])
        set_epsilon(module, before[path] * 2.0**exponent)
    for key, exponent in plan.epsilons.items():
        value = get_key(model.config, key)
        undo.callback(set_key, model.config, key, value)
        set_key(model.config, key, value * 2.0**exponent)


def untie(undo: ExitStack, model: Any) -> None:
    """Give the head a weight of its own until `undo` is closed."""
    import torch

    head, tied = model.get_output_embeddings(), model.config.tie_word_embeddings
    undo.callback(lambda: setattr(head, "weight", model.get_input_embeddings().weight))
    undo.callback(setattr, model.config, "tie_word_embeddings", tied)
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
    model.config.tie_word_embeddings = False
