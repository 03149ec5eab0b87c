"""A plan in the words of the tool that will quantize: which linears it must leave alone, and what it does to the others.

    target = target_of(loaded)
    text = export("llm-compressor", found.kept, scheme=parse("int8-tensor/int8-tensor"), target=target)
    Path("recipe" + TOOLS["llm-compressor"].suffix).write_text(text)
    remarks("bitsandbytes", found.kept, scheme=scheme, target=target)      # what that tool cannot do, a sentence each

Where a tool cannot keep the inputs of a linear apart from its weights, the whole linear stays as it is, and a remark says so;
files that have comments carry it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outlierlens.analyses.quantize_schemes import Recipe, parse
from outlierlens.errors import BadInput, comment
from outlierlens.experiments.plan.kept import KeptLinear
from outlierlens.experiments.plan.tools import EIGHT, TOOLS, Target, Tool, Wish
from outlierlens.results.safe_files import write_text

if TYPE_CHECKING:
    from outlierlens.experiments.plan.result import PrecisionPlan
    from outlierlens.models.load import LoadedModel

__all__ = ["TOOLS", "Target", "check_export", "export", "own_scheme", "remarks", "target_of", "write_export"]


def target_of(loaded: "LoadedModel", stack: str | None = None) -> Target:
    """The facts of a loaded model; raises BadInput where the blocks of the stream hold no linear."""
    from torch import nn

    from outlierlens.analyses.quantize_places import find_places

    inside = tuple(place.name for place in find_places(loaded, stack))
    names = (name for name, module in loaded.model.named_modules() if isinstance(module, nn.Linear))
    outside = tuple(name for name in names if name not in set(inside))
    return Target(model=loaded.name, config=loaded.config, linears=inside, outside=outside)


def export(tool: str, kept: Sequence[KeptLinear], *, scheme: Recipe, target: Target) -> str:
    """The text of the file that `tool` reads.

    Raises:
        BadInput: an unknown tool, a scheme that it does not know, or a path that is no linear of the blocks.
    """
    row = _tool(tool)
    wish = _wish(row, kept, scheme, target)
    head = [f"{target.model}: {scheme.name}, {_count(len(kept))} kept in higher precision. {row.use}", *wish.remarks]
    comments = [comment(line) for line in head] if row.commented else []
    return "\n".join([*comments, *row.write(wish)]) + "\n"


def remarks(tool: str, kept: Sequence[KeptLinear], *, scheme: Recipe, target: Target) -> tuple[str, ...]:
    """What the tool does otherwise than the plan says, a sentence each; raises as `export`."""
    return _wish(_tool(tool), kept, scheme, target).remarks


def write_export(path: Path, tool: str, found: "PrecisionPlan", target: Target, notice: Callable[[str], None]) -> None:
    """Write a plan for `tool`, and give `notice` what the tool cannot do; raises as `export`."""
    scheme = parse(found.scheme)
    write_text(path, export(tool, found.kept, scheme=scheme, target=target))
    for remark in remarks(tool, found.kept, scheme=scheme, target=target):
        notice(f"note: {remark}")
    notice(f"{path}: {len(found.kept):,} linears that {TOOLS[tool].title} keeps, by {scheme.name}")


def check_export(tool: str, *, scheme: Recipe, target: Target) -> None:
    """Raise BadInput, as `export` does, where `tool` could not be told of some linear of the model: before any work."""
    everything = [KeptLinear(path=path, weights=True, inputs=True) for path in target.linears]
    export(tool, everything, scheme=scheme, target=target)


def own_scheme(tool: str, loaded: "LoadedModel", stack: str | None = None) -> str:
    """What `tool` does by itself: of its schemes the first whose groups divide the inputs of every linear of the blocks."""
    from outlierlens.analyses.quantize_places import find_places

    widths = {int(place.weight().shape[1]) for place in find_places(loaded, stack)}
    own = _tool(tool).own
    return next((name for name in own if all(width % _group(name) == 0 for width in widths)), own[-1])


def _group(scheme: str) -> int:
    """Weights that share a scale within a row, where a scheme cuts rows; else 1."""
    weights = parse(scheme).weights
    return weights.group or 1 if weights else 1


def _tool(name: str) -> Tool:
    if name not in TOOLS:
        raise BadInput(f"unknown tool {name!r}; tools are {', '.join(TOOLS)}")
    return TOOLS[name]


def _wish(row: Tool, kept: Sequence[KeptLinear], scheme: Recipe, target: Target) -> Wish:
    if unknown := [one.path for one in kept if one.path not in set(target.linears)]:
        raise BadInput(f"{target.model}: {unknown[0]} is no linear of its blocks; make the plan of this model")
    if parts := [one.path for one in kept if one.columns or one.rows]:
        raise BadInput(
            f"{row.title} keeps whole linears, and the plan keeps columns of {parts[0]}; make it with --grain linear"
        )
    base = row.say(scheme, scheme)
    if base is None:
        raise BadInput(f"{row.title} has no scheme {scheme.name}; it knows {row.schemes}")
    found, whole = {}, []
    for one in kept:
        recipe = _recipe(one, scheme)
        found[one.path] = said = None if recipe is None else row.say(recipe, scheme)
        if recipe is not None and said is None:
            whole.append(one.path)
    said_of = (
        f"{row.title} cannot keep a part of a linear as the plan does, so all of it stays as it is: {', '.join(whole)}"
    )
    return Wish(target, base, found, (said_of,) if whole else ())


def _recipe(one: KeptLinear, scheme: Recipe) -> Recipe | None:
    """What happens to a kept linear; None for nothing."""
    weights, inputs = scheme.weights, scheme.inputs
    if weights is not None and one.weights:
        weights = EIGHT.weights if one.bits == 8 else None
    if inputs is not None and one.inputs:
        inputs = EIGHT.inputs if one.bits == 8 else None
    return None if weights is None and inputs is None else Recipe(weights, inputs)


def _count(n: int) -> str:
    return f"{n:,} linear{'s' if n != 1 else ''}"
