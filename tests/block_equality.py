"""A model that is read block by block against the same model whole: four conditions, outputs, and whether they are equal."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from outlierlens.ablation.switches import edited_hidden, zeroed_weights
from outlierlens.analyses.quantize_places import find_places
from outlierlens.analyses.quantize_rounding import Keeping, rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.models.load import OF_FILES, LoadedModel
from outlierlens.results.document import to_json

DIM = 5
CONDITIONS = ("intact", "weights off", "states edited", "rounded")


def condition(one: LoadedModel, name: str, stack: str | None = None) -> AbstractContextManager[Any]:
    """Intact, weights off, states edited, or weights and inputs rounded, of a stream (the first)."""
    stack = stack or one.stacks[0].name
    if name == "weights off":
        return zeroed_weights(one, [DIM], stack=stack)
    if name == "states edited":
        return edited_hidden(one, [DIM], "scale once", stack=stack)
    if name == "rounded":
        recipe, places = parse("int8-channel/int8-token"), find_places(one, stack)
        return rounded(one, recipe, Keeping(dims=(DIM,)), stack=stack, places=places)
    return nullcontext()


def outputs(one: LoadedModel, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """All tensors that the model gives."""
    with torch.inference_mode():
        return [tensor.clone() for tensor in tensors(one.model(**inputs))]


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """Those of an output, whatever it is made of; caches are none."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict | list | tuple):
        for one in output.values() if isinstance(output, dict) else output:
            yield from tensors(one)


def under(one: LoadedModel, name: str, inputs: Sequence[dict[str, Any]], stack: str | None = None) -> Any:
    """The outputs of each batch in a condition: [batch][tensor]."""
    with condition(one, name, stack):
        return one.run([partial(outputs, one, each) for each in inputs])


def equal(ours: Any, theirs: Any) -> bool:
    """Whether tensors, or lists of them, are equal bit for bit; what is no number equals what is none."""
    if not isinstance(ours, torch.Tensor):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    return torch.equal(ours, theirs) or (
        ours.is_floating_point()
        and torch.equal(ours.isnan(), theirs.isnan())
        and torch.equal(ours.nan_to_num(0.0), theirs.nan_to_num(0.0))
    )


def content(finding: Any) -> Any:
    """As JSON, without what tells how and when it was made."""
    return _without(json.loads(to_json(finding)))


def _without(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without(one) for key, one in found.items() if key != "provenance"}
    return [_without(one) for one in found if one != OF_FILES] if isinstance(found, list) else found
