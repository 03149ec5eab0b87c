"""Which dimensions are switched off, and which controls beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.controls import (
    Plan,
    matched_neurons,
    matched_sets,
    random_families,
    random_neurons,
    random_sets,
    relabelled,
)
from outlierlens.ablation.study import Control, dims_of
from outlierlens.ablation.switches import Dims, plan_dims
from outlierlens.analyses.super_experts import Outputs, expert_outputs, like_fed
from outlierlens.data.texts import Data, Texts
from outlierlens.detection.activations import ObserveOptions, magnitude
from outlierlens.detection.rules import super_experts
from outlierlens.detection.targets import NamedDims, active_dims, named_dims
from outlierlens.detection.weights import scan_stream
from outlierlens.errors import BadInput
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND, Find
from outlierlens.tasks.base import TaskOptions

if TYPE_CHECKING:
    from outlierlens.analyses.ablate import AblateOptions
    from outlierlens.architectures import BoundStack

UNLIKE = 3.0  # |z| of what a neuron writes, within its layer, from which no ordinary set holds it
MOST = 4  # dimensions that are taken of those a rule on activations names, the strongest first
N_RANDOM = 5  # random sets of each of several modes, where no number is given
CLOSE = 0.8  # matched weights below this share of the wanted magnitude are no match

CONTROLS = {
    "random": "sets of the same size, drawn from all {kind}s",
    "ordinary": "random sets without a {kind} that was ablated or found",
    "matched": "in every layer other positions, with weights as large",
}
FED = "sets of the same size, drawn from the experts of the same layers that half to twice the number of tokens reach"


def control_kinds(kind: str, families: Sequence[str]) -> str:
    """What each family of controls of dimensions, neurons or experts is, in a sentence each."""
    means = {one: CONTROLS[one].format(kind=kind) if kind != "expert" else FED for one in families}
    return " ".join(f"{one.capitalize()}: {what}." for one, what in means.items())


def found_dims(
    loaded: LoadedModel,
    stack: "BoundStack",
    texts: Data,
    dims: Dims | Find,
    task: TaskOptions,
    *,
    most: int = MOST,
) -> NamedDims:
    """None where dimensions are given; else those of the scan, else of the rules on activations `most`, else the strongest."""
    if dims != FIND:
        return NamedDims((), "given", ())
    scanned = named_dims(loaded, stack)
    if scanned.found:
        return scanned
    length = row_limit(loaded, texts, task.max_length)
    settings = ObserveOptions(max_length=length, batch_size=task.batch_size, passage_tokens=0)
    found, rule = active_dims(loaded, stack, texts, settings)
    if found:
        more = f"; the strongest {most} of {len(found)}" if len(found) > most else ""
        return NamedDims(tuple(sorted(found[:most])), f"the rule {rule} on activations{more}", found)
    return replace(scanned, by=f"{scanned.by}, and the rules on activations neither")


def random_plans(loaded: LoadedModel, stack: "BoundStack", plan: Plan, *, n: int, seed: int) -> list[Plan]:
    """`n` random sets of the same size; those of several tested sets are the same as far as they can be."""
    dims, width = dims_of(plan), stream_width(loaded.model, stack)
    drawn = random_sets(width, len(dims), n=n, seed=seed, other_than=dims) if n else ()
    return [relabelled(plan, one) for one in drawn]


def control_sets(
    loaded: LoadedModel, stack: "BoundStack", plan: Plan, options: "AblateOptions", reached: Callable[[], Outputs]
) -> tuple[list[tuple[str, str, Plan]], float | None]:
    """(family, label and plan of every control set of `plan`, how near the matched ones came)."""
    width = stream_width(loaded.model, stack)
    n_random, n_matched = options.n_sets
    if stack.kind == "expert":
        pools = like_fed(reached(), plan) if n_random else {}
        drawn = random_neurons(pools, plan, avoid={}, n=n_random, seed=options.seed) if n_random else {}
        return [("random", f"random {i + 1}", one) for i, one in enumerate(drawn.get("random", ()))], None
    strength = magnitude(loaded, stack) if stack.reads or n_matched else np.empty(0)
    found: dict[str, list[Plan]] = {}
    if stack.reads:  # neurons: drawn, and matched, among those of the same layers
        avoid = {layer: np.flatnonzero(strength[layer] >= UNLIKE).tolist() for layer in plan}
        if n_random:
            drawn = random_neurons(dict.fromkeys(plan, range(width)), plan, avoid=avoid, n=n_random, seed=options.seed)
            found |= {kind: list(plans) for kind, plans in drawn.items()}
        matched = matched_neurons(strength, plan, avoid={}, n=n_matched, seed=options.seed) if n_matched else []
    else:
        if options.avoid:
            plan_dims(stack, width, options.avoid)
        outliers = scan_stream(loaded, stack.name).dims if options.avoid is None else options.avoid
        if n_random:
            sets = random_families(width, dims_of(plan), avoid=outliers, n=n_random, seed=options.seed)
            found |= {kind: [relabelled(plan, dims) for dims in some] for kind, some in sets.items()}
        how: dict[str, Any] = {"avoid": outliers, "n": n_matched, "seed": options.seed, "blocks": stack.blocks}
        matched = matched_sets(strength, plan, **how) if n_matched else []
    found |= {"matched": [one.plan for one in matched]} if matched else {}
    controls = [(kind, f"{kind} {i + 1}", one) for kind, plans in found.items() for i, one in enumerate(plans)]
    return controls, float(np.median([one.closeness for one in matched])) if matched else None


def asked_dims(
    loaded: LoadedModel, stack: "BoundStack", texts: Data, dims: Dims | Find, options: "AblateOptions",
    reached: Callable[[], Outputs],
) -> tuple[Dims, NamedDims]:  # fmt: skip
    """What to ablate, and how it was named: `dims`, or what is found; raises BadInput as these searches do."""
    if stack.kind == "expert" and dims == FIND:
        return _super_experts(loaded, stack, reached())
    named = found_dims(loaded, stack, texts, dims, options.task)
    return (named.dims if dims == FIND else dims), named


def _super_experts(loaded: LoadedModel, stack: "BoundStack", outputs: Outputs) -> tuple[Plan, NamedDims]:
    """The super experts on these texts, and how they were named; raises BadInput where the rule names none."""
    named = super_experts({place: one.size for place, one in outputs.items()}, stack.n_layers)
    if not named:
        raise BadInput(f"{loaded.name}: no expert is a super expert on these texts; write --dims 11:6")
    plan: Plan = {}
    for layer, expert in sorted(named):
        plan[layer] = (*plan.get(layer, ()), expert)
    return plan, NamedDims((), "the rule for super experts, on these texts", ())


def expert_reach(loaded: LoadedModel, stack: "BoundStack", texts: Data, options: "AblateOptions") -> Outputs:
    """What each expert gives on the texts, and how many tokens reach it; raises BadInput for pictures and recordings."""
    if not isinstance(texts, Texts):
        raise BadInput(
            f"--stack {stack.name}: the tokens that reach experts are counted on texts; use --random 0 and --dims"
        )
    stream = next(one for one in loaded.stacks if one.blocks == stack.blocks)
    length = row_limit(loaded, texts, options.task.max_length)
    return expert_outputs(loaded, stream, texts, max_length=length, batch_size=options.task.batch_size)


def size_alone(control: Control, change: float, judged: str) -> str:
    """Whether the size of weights alone may explain a damage, by the matched sets; "" without such sets or damage."""
    if control.family != "matched" or judged != "damaging":
        return ""
    if control.closeness is not None and control.closeness < CLOSE:
        return f"; their weights reach {control.closeness:.0%} of these, so whether size alone explains the damage stays open"
    if change > max(control.sets):
        return "; none does this damage: size alone does not explain it"
    return "; some do at least this damage: size alone may explain it"


def check_neurons(stack: "BoundStack", dims: Dims | Find, options: "AblateOptions") -> None:
    """Raise BadInput where neurons, or experts, are named without their block, or with options of dimensions."""
    if stack.kind == "dimension":
        return
    if dims == FIND and stack.kind == "neuron":
        raise BadInput(f"--stack {stack.name}: a neuron is named with its block; write --dims 11:1229")
    if dims != FIND and not isinstance(dims, Mapping) and options.layers is None:
        raise BadInput(
            f"--stack {stack.name}: {'an' if stack.kind == 'expert' else 'a'} {stack.kind} is named with its block; write "
            f"--dims 11:{dims[0] if dims else 0}"
        )
    if options.avoid is not None:
        raise BadInput(f"avoid names dimensions; leave it out with --stack {stack.name}")
    if stack.kind == "expert":
        if other := {one.mode for one in options.treatments} - {"weights"}:
            raise BadInput(f"--modes {min(other)} is not of experts; with --stack {stack.name} use weights")
        if options.n_matched:
            raise BadInput(f"matched sets are not of experts; leave --matched out with --stack {stack.name}")
    if wrong := {"norms", "writes"} & {one.mode for one in options.treatments}:
        raise BadInput(
            f"--modes {min(wrong)} is of dimensions; with --stack {stack.name} use weights, zero, mean or scale:F"
        )
