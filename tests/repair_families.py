"""What factors do to every family of the architecture table, on its tiny model: of its residual stream, and of pairs.

    tried = rescaled(FAMILIES["qwen3"])
    tried.verdict, tried.difference          # "exact", 0.0
    paired(FAMILIES["bart"], "values")       # Tried("exact", 0.0), or None where a family has no such pair

`table()` is what benchmarks/README.md shows; `python tests/repair_families.py` writes it there.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from architectures import FAMILIES, Family, batch, build
from outlierlens.analyses.repair import NEAR, difference_of
from outlierlens.analyses.repair_factors import CheckData, Sizes, pairs_of, sizes_of
from outlierlens.analyses.repair_rewriting import RewritingPlan, repaired, stream_plan
from outlierlens.architectures.pairs import KINDS, Kind
from outlierlens.data.texts import Batch
from outlierlens.errors import BadInput
from outlierlens.models.forward import Side
from outlierlens.models.load import LoadedModel, from_objects

OUTPUTS = ("logits", "image_embeds", "pooler_output", "last_hidden_state")
EXPONENT = -4
# Keys of a config that say which activation an MLP has: with a ReLU, neurons of ungated ones can take factors.
ACTIVATIONS = ("hidden_act", "activation", "activation_function", "ff_activation", "dense_act_fn", "feed_forward_proj")


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


class Given:
    """A `Reading` of the inputs that the family's bare model takes."""

    max_length, window, inputs, notes = 0, 1, "inputs", ()

    def __init__(self, loaded: LoadedModel, given: dict[str, Any]):
        self.loaded, self.given, self.stacks = loaded, given, loaded.stacks

    def batches(self, data: Any = None, *, batch_size: int = 1, max_length: int | None = None) -> Iterator[Batch]:
        """One batch; of inputs without tokens nobody knows which row is whose."""
        ids = self.given.get("input_ids", torch.ones(2, 1, dtype=torch.long))
        yield Batch(self.given, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool), (0, 1))

    def __call__(self, batch: Batch) -> None:
        output(self.loaded.model, self.given)

    def arguments(self, batch: Batch) -> dict[str, Any]:
        """The inputs."""
        return self.given

    def sides(self, batch: Batch) -> dict[str, Side]:
        """Ones for tokens."""
        return {stack.name: Side(batch.valid.long(), batch.special, batch.valid) for stack in self.stacks}

    def words(self, ids: list[int], _: Any = None) -> tuple[str, ...]:
        """Nothing is named."""
        return ("",) * len(ids)


def seen(loaded: LoadedModel, inputs: dict[str, Any]) -> Sizes:
    """How large its tensors get on these inputs."""
    reading: Any = Given(loaded, inputs)
    return sizes_of(loaded, CheckData(None, 0, tuple(reading.batches()), (), 0, 0), reading)  # type: ignore[arg-type]


@functools.cache
def paired(name: str, kind: Kind) -> Tried | None:
    """What becomes of the model's outputs with factors of 1/8 to 8 on every pair of a kind; None without such a pair."""
    family = FAMILIES[name]
    loaded, inputs = load(family), batch(family)
    pairs = pairs_of(loaded, (kind,))
    if not pairs:
        return None
    random = torch.Generator().manual_seed(0)
    factors = [(pair, torch.randint(-3, 4, (len(pair.shared),), generator=random)[pair.shared]) for pair in pairs]
    plan = RewritingPlan().pairs(factors)
    wanted = output(loaded.model, inputs)
    with repaired(loaded, plan):
        found = output(loaded.model, inputs)
    far = difference_of([wanted], [found])
    return Tried("no" if far > NEAR else "near" if plan.reasons else "exact", far, "; ".join(plan.reasons))


def rectified(name: str) -> Family:
    """The family with a ReLU in its MLPs."""
    family = FAMILIES[name]
    towers = {key: one | {"hidden_act": "relu"} for key, one in family.config.items() if key.endswith("_config")}
    named = dict.fromkeys(ACTIVATIONS[:4], "relu")
    return replace(family, config=family.config | (towers or named))


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


PAGE = Path(__file__).parents[1] / "benchmarks" / "README.md"
START, END = "<!-- python tests/repair_families.py -->\n", "<!-- end -->"


def table() -> str:
    """Every family in rows of Markdown, those of the same outcome in one."""
    rows: dict[str, list[str]] = {}
    for name, family in sorted(FAMILIES.items()):
        tried = rescaled(family)
        pairs = {kind: one for kind in KINDS if (one := paired(name, kind)) is not None}
        words = [kind if one.verdict == "exact" else f"{kind} ({one.verdict})" for kind, one in pairs.items()]
        if "neurons" not in pairs and any(bound.stack.rectified for bound in load(family).stacks):
            words = ["neurons with a ReLU", *words]
        # Machines differ in the digits of a difference, not in the verdict.
        far = {"exact": "0", "near": f"≤ {NEAR:g}"}.get(
            tried.verdict, "" if math.isnan(tried.difference) else f"> {NEAR:g}"
        )
        why = "post-norm" if "(post-norm)" in tried.why else tried.why.replace("|", "")
        rows.setdefault(f"{tried.verdict} | {far} | {', '.join(words)} | {why} |", []).append(name)
    lines = ["| families | stream | largest difference | pairs | why |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(names)} | {row}" for row, names in rows.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, start, rest = PAGE.read_text("utf-8").partition(START)
    PAGE.write_text(f"{before}{start}{table()}{END}{rest.partition(END)[2]}", "utf-8")
