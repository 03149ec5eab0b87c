"""What a factor of the residual stream does to every family of the architecture table, on its tiny model.

    tried = rescaled(FAMILIES["qwen3"])
    tried.verdict, tried.difference          # "exact", 0.0

`table()` is what docs/repair.md shows.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from architectures import FAMILIES, Family, batch, build
from outlierlens.errors import BadInput
from outlierlens.experiments.repair.measure import NEAR, difference_of
from outlierlens.experiments.repair.plan import stream_plan
from outlierlens.experiments.repair.rewriting import repaired
from outlierlens.models.load import LoadedModel, from_objects

OUTPUTS = ("logits", "image_embeds", "pooler_output", "last_hidden_state")
EXPONENT = -4


@dataclass(frozen=True)
class Tried:
    """A family's stream times 2^-4: "exact", "near" (within what the command takes) or "no", and why it is not exact."""

    verdict: str
    difference: float
    why: str = ""


def output(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """What the model is run for."""
    kind = next(model.parameters()).dtype
    with torch.inference_mode():
        out = model(**{name: one.to(kind) if one.is_floating_point() else one for name, one in inputs.items()})
    return next(out[name] for name in OUTPUTS if out.get(name) is not None).clone()


def load(family: Family) -> LoadedModel:
    """The family's tiny model with its first head, in float32."""
    return from_objects(build(family, family.heads[0] if family.heads else ""), name=family.name)


def rescaled(family: Family) -> Tried:
    """What becomes of the model's outputs."""
    return _rescaled(family.name)


@functools.cache
def _rescaled(name: str) -> Tried:
    family = FAMILIES[name]
    loaded, inputs = load(family), batch(family)
    wanted = output(loaded.model, inputs)
    try:
        plan = stream_plan(loaded, EXPONENT)
    except BadInput as error:
        return Tried("no", math.nan, str(error).partition("rescaled: ")[2])
    with repaired(loaded, plan):
        found = output(loaded.model, inputs)
    assert torch.equal(output(loaded.model, inputs), wanted)
    far = difference_of([wanted], [found])
    verdict = "no" if far > NEAR else "near" if plan.reasons else "exact"
    return Tried(verdict, 0.0 if torch.equal(wanted, found) else far, "; ".join(plan.reasons))


def table() -> str:
    """Every family in a row of Markdown."""
    lines = ["| family | stream | largest difference | why |", "|---|---|---|---|"]
    for name, family in sorted(FAMILIES.items()):
        tried = rescaled(family)
        # Machines differ in the digits of a difference, not in the verdict.
        far = {"exact": "0", "near": f"≤ {NEAR:g}"}.get(
            tried.verdict, "" if math.isnan(tried.difference) else f"> {NEAR:g}"
        )
        lines.append(f"| {name} | {tried.verdict} | {far} | {tried.why.replace('|', '')} |")
    return "\n".join(lines) + "\n"
