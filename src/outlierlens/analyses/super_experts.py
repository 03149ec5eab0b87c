"""Super experts: the few of a mixture whose last linears write its massive values (Su et al. 2025), on texts.

outputs = expert_outputs(loaded, stack, texts, max_length=128)    # {(layer, expert): ExpertOutput}
expert_rows(loaded, stack, outputs)                               # those that the rule names, the largest first
like_fed(outputs, {11: (6,)})                                     # {layer: experts that as many tokens reach}

An expert's size is the largest |value| that its last linear gives at any token, before the router's weight. By weights alone
it is the largest value that one of its neurons can write, see `detection.weights.scan_mlps`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np

from outlierlens.ablation.controls import Plan
from outlierlens.analyses.super_weights import tapped_mlps
from outlierlens.architectures import MLP, NO_EXPERT, BoundStack, LastLinear
from outlierlens.data.texts import Batch, Texts
from outlierlens.data.token_texts import token_words
from outlierlens.detection.rules import SUPER_EXPERT, super_experts
from outlierlens.detection.weights import ScanOptions, scan_mlps
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.experts import ExpertCall
from outlierlens.models.inputs import Progress, TextReading, in_windows
from outlierlens.models.load import LoadedModel
from outlierlens.results.rows import Row
from outlierlens.view.section import Count

COMPARABLE = 2.0  # experts that half to twice the number of tokens reach are controls of each other
Outputs = dict[tuple[int, int], "ExpertOutput"]


class ExpertOutput(NamedTuple):
    """What one expert gives: its largest |value|, where it stands, and how many tokens reach the expert."""

    size: float
    dim: int
    text: int
    position: int
    token: int
    n_tokens: int


@dataclass(frozen=True, kw_only=True)
class SuperExpert(Row):
    """An expert that the rule names, in the model or under a null."""

    condition: str
    """condition: the model, or a null"""
    layer: int
    expert: int
    written: float
    """output: its largest |value|, before the router's weight"""
    times: float
    """× median: over that of the median expert"""
    dim: int
    """dimension: in which it stands"""
    token: str
    position: Annotated[int, Count]
    n_tokens: Annotated[int, Count]
    """tokens: that reach it"""
    rank: Annotated[int | None, Count]
    """rank by weights: by the largest value that one of its neurons can write, among all experts"""


def expert_outputs(
    loaded: LoadedModel, stack: BoundStack, texts: Texts, *, max_length: int, batch_size: int = 32,
    progress: Progress | None = None,
) -> Outputs:  # fmt: skip
    """The largest |value| that each expert gives on `texts`; those that no token reaches are left out. Padding never counts.

    Raises:
        BadInput: the stream has no experts, whose tokens they read cannot be told, or a value is not finite.
    """
    import torch

    reading, found = TextReading(loaded, max_length), Outputs()

    def look(batch: Batch, one: LastLinear, call: ExpertCall) -> None:
        if one.expert == NO_EXPERT or call.tokens is None:
            return
        ids, _, valid = (part.to(call.given.device) for part in reading.sides(batch)[stack.name])
        rows = valid.flatten()[call.tokens].nonzero().flatten()
        if not len(rows):
            return
        sizes = call.given[rows].abs()
        if not bool(sizes.isfinite().all()):
            raise BadInput(f"{loaded.name}: {one.path} gives a value that is NaN or infinite; {USE_FLOAT32}")
        row, dim = divmod(int(sizes.argmax()), sizes.shape[1])
        text, place = divmod(int(call.tokens[rows[row]]), valid.shape[1])
        before = found.get((one.layer, one.expert))
        here = ExpertOutput(
            float(sizes[row, dim]), dim, batch.texts[text], int(valid[text, :place].sum()), int(ids[text, place]),
            len(rows) + (before.n_tokens if before else 0),
        )  # fmt: skip
        if before is not None and before.size >= here.size:
            here = before._replace(n_tokens=here.n_tokens)
        found[one.layer, one.expert] = here

    for batch in in_windows(reading, texts, batch_size, progress, "reading experts"):
        with torch.inference_mode(), tapped_mlps(loaded, stack, partial(look, batch)):
            reading(batch)
    if not found:
        raise BadInput(f"{loaded.name}: stream {stack.name!r} has no experts")
    return found


def expert_rows(
    loaded: LoadedModel, stack: BoundStack, outputs: Outputs, limits: Mapping[str, float] = SUPER_EXPERT, *,
    condition: str = "model",
) -> tuple[SuperExpert, ...]:  # fmt: skip
    """The experts that the rule names, the largest first, each with its rank by weights alone."""
    sizes = {place: one.size for place, one in outputs.items()}
    median, bounds = float(np.median([*sizes.values()])), expert_bounds(loaded, stack)
    named = super_experts(sizes, stack.n_layers, limits)
    words = token_words(loaded.tokenizer, [outputs[place].token for place in named])
    return tuple(
        SuperExpert(
            condition=condition, layer=place[0], expert=place[1], written=sizes[place],
            times=sizes[place] / max(median, 1e-30), dim=outputs[place].dim, token=word,
            position=outputs[place].position, n_tokens=outputs[place].n_tokens,
            rank=1 + sum(one > bounds[place] for one in bounds.values()) if bounds else None,
        )
        for place, word in zip(named, words, strict=True)
    )  # fmt: skip


def expert_bounds(loaded: LoadedModel, stack: BoundStack) -> dict[tuple[int, int], float]:
    """The largest value that a neuron of each expert can write, by (layer, expert); {} where its linears cannot be told."""
    weights = loaded.weights
    options = ScanOptions(stack=MLP, max_read=weights.total_bytes)
    try:
        seen, _ = scan_mlps(weights, stack, options, hashlib.sha256())
    except BadInput:
        return {}
    return {place: value for one in seen for place, value in one.bounds.items()}


def like_fed(outputs: Outputs, plan: Plan) -> dict[int, list[int]]:
    """By layer the experts that half to twice the number of tokens reach as one of `plan`, which are among them.

    Raises:
        BadInput: no token reaches an expert of the plan.
    """
    found: dict[int, list[int]] = {}
    for layer, experts in plan.items():
        if idle := [one for one in experts if (layer, one) not in outputs]:
            raise BadInput(
                f"no token of these texts reaches expert {layer}:{idle[0]}; leave it out, or give more texts"
            )
        wanted = [outputs[layer, one].n_tokens for one in experts]
        found[layer] = [
            expert for (at, expert), one in sorted(outputs.items())
            if at == layer and any(n / COMPARABLE <= one.n_tokens <= n * COMPARABLE for n in wanted)
        ]  # fmt: skip
    return found
