"""The Python and the command that reproduce a view exactly, from the state that made it.

    python(explorer, found, "loss")            # a script; its last line prints `result`
    command("mini-planted", options, state, ("loss",))

The Python uses the library's own pieces and not the page; tests run both and compare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from outlierlens.errors import operand, option, shell
from outlierlens.explore.inside import BEST, COPIES, LENGTH
from outlierlens.explore.options import ExploreOptions
from outlierlens.explore.result import VIEWS, Explored, Off, State
from outlierlens.models.load import LoadOptions
from outlierlens.options import options_of

if TYPE_CHECKING:
    from outlierlens.explore.look import Explorer

MEAN_TEXTS = 16  # of the shipped excerpt, over which mode "mean" takes its means

# What differs from view to view: imports, then what is done once, then what is done under each condition.
_IMPORTS = {
    "passage": "from outlierlens.ablation.fill import continuation, exercise, fill, filled",
    "loss": (
        "from outlierlens.statistics.means import mean_interval\nfrom outlierlens.tasks.base import TaskOptions\n"
        "from outlierlens.tasks.choice import make_task"
    ),
    "guesses": "from outlierlens.explore.inside import best\nfrom outlierlens.ablation.fill import exercise, fill",
    "dimension": (
        "import numpy as np\n\nfrom outlierlens.models.hooks import tapped\nfrom outlierlens.models.passes import TextReading\n"
        "from outlierlens.tasks.base import TaskOptions\nfrom outlierlens.tasks.choice import make_task"
    ),
    "vectors": "from outlierlens.models.hooks import tapped\nfrom outlierlens.models.passes import TextReading",
    "attention": (
        "from outlierlens.models.attention_maps import tapped_attention\nfrom outlierlens.models.passes import TextReading"
    ),
    "anisotropy": (
        "from outlierlens.vectors.cosines import contributions, mean_cosine, unit\n"
        "from outlierlens.models.hooks import layer_name, tapped\nfrom outlierlens.models.passes import TextReading"
    ),
    "life": (
        "import torch\nfrom outlierlens.analyses.trace_account import account\n"
        "from outlierlens.models.passes import TextReading"
    ),
}
_READ = f"reading = TextReading(loaded, {LENGTH})\n(batch,) = reading.batches([text], batch_size=1)\n"
_TASK = (
    "task = make_task(loaded, [text] * {copies}, TaskOptions(max_length={length}, batch_size={batch}))\n"
    "# nats of every predicted token; of a model without a head for words, the change of its outputs\n"
    'measure = task.per_token if task.unit == "nats per token" else task.per_text\n'
    "intact, _ = measure()\n"
)
_ONCE = {
    "passage": "work = exercise(loaded, text)  # where the blanks are\nintact = fill(loaded, work) if work else None\n",
    "loss": _TASK,
    "guesses": "work = exercise(loaded, text)  # where the blanks are\n",
    "dimension": _READ + _TASK,
    "vectors": _READ,
    "attention": _READ,
    "anisotropy": _READ + "special = reading.sides(batch)[stack.name][1][0].cpu().numpy()\n",
    "life": _READ + "each = lambda batch: torch.eye(batch.valid.shape[1])[:, None]  # a group for every token\n",
}
_UNDER = {
    "passage": """\
    with ablation.off(plan):
        now = fill(loaded, work) if work else None
        said = continuation(loaded, text)  # None for models that do not continue texts
    dims = tuple(next(iter(plan.values()), ()))
    result[label] = (filled(loaded, work, now, intact, label=label, dims=dims) if work else None, said)
""",
    "loss": """\
    with ablation.off(plan):
        values, _ = measure()
    change = values - intact
    result[label] = (values.mean(), mean_interval(values), change.mean(), mean_interval(change))
""",
    "guesses": """\
    with ablation.off(plan):
        now = fill(loaded, work)
    result[label] = best(loaded, now, {blank}, {best})  # the likeliest words of one blank
""",
    "dimension": """\
    fires = []

    def look(_, layer, seen):
        fires.append(seen[0, :, {dim}].float().cpu().numpy())

    with ablation.off(plan), tapped(loaded.model, [stack], look):
        reading(batch)
    with ablation.off(plan):
        values, _ = measure()
    result[label] = (np.stack(fires), values.mean(), (values - intact).mean())  # [layer, token], from the embeddings on
""",
    "vectors": """\
    states = {{}}

    def look(_, layer, seen):
        states[layer] = seen[0].float().cpu().numpy()  # [token, dim]

    with ablation.off(plan), tapped(loaded.model, [stack], look):
        reading(batch)
    result[label] = states[{layer}]{which}  # [dim]; layer -1 is the embeddings
""",
    "attention": """\
    maps = {{}}

    def look(layer, weights, visible):
        maps[layer] = weights[0].float().cpu().numpy()  # [head, query, key]

    with ablation.off(plan), tapped_attention(loaded, stack, look):
        reading(batch)
    result[label] = maps[{attention_layer}][{head}]
""",
    "anisotropy": """\
    by_layer = {{}}

    def look(_, layer, seen):
        units = unit(seen[0].float().cpu().numpy()[~special])
        share = contributions(units)[{chosen}].sum()
        by_layer[layer_name(layer)] = (mean_cosine(units)[0], share)

    with ablation.off(plan), tapped(loaded.model, [stack], look):
        reading(batch)
    result[label] = by_layer  # mean cosine of all pairs of tokens, and what the chosen dimensions add to it
""",
    "life": """\
    if label == "intact":
        result[label] = account(loaded, stack, {dim}, reading, [batch], each).values  # [layer + 1, token]
""",
}


def python(explorer: "Explorer", found: Explored, view: str) -> str:
    """A script that computes one view of `found` anew; it leaves {condition: numbers} in `result`."""
    state = found.state
    under = found.conditions
    if view == "dimension":
        under = (Off("intact", (), ()), Off("alone", (state.dimension or 0,), ()))
    turning, turned = "", ""
    if any(one.turned for one in under):
        turned = ", turning.off(turned[label])"
        turning = (
            f"turned = {{  # layer: the dimension of which {state.left:g} is left\n"
            f"{_plans(state, {one.label: one.turned for one in under})}}}\n"
            f'turning = Switch(loaded, stack, "scale", settings=EditSettings(factor={state.left!r}))\n'
        )
    settings, imports = _settings(state, edits=bool(turning))
    layer = -1 if state.vector_layer == "embeddings" else int(state.vector_layer or 0)
    values: dict[str, Any] = {
        "copies": COPIES if explorer.loaded.head == "masked" else 1,
        "length": LENGTH,
        "batch": COPIES,
        "blank": found.guesses.number if found.guesses else state.blank,
        "best": BEST,
        "layer": layer,
        "dim": state.dimension,
        "which": ".mean(0)" if state.vector_token is None else f"[{state.vector_token}]",
        "attention_layer": state.attention_layer,
        "head": found.attention.head if found.attention else state.head,
        "chosen": list(found.conditions[-1].changed),
    }
    return (
        f"{_IMPORTS[view]}\nfrom outlierlens.models.load import LoadOptions, load_model\n{imports}"
        f"\ntext = {found.read!r}\nconditions = {{  # layer: dimensions that are off\n"
        f"{_plans(state, {one.label: one.dims for one in under})}}}\n"
        f"loaded = load_model({explorer.loaded.name!r}, {_options(explorer.options)})\n"
        f"stack = loaded.stack({state.stack!r})\n"
        f"ablation = Switch(loaded, stack, {state.mode!r}{settings})\n{turning}"
        f"{_ONCE[view].format(**values)}"
        "result = {}\nfor label, plan in conditions.items():\n"
        f"{_UNDER[view].format(**values).replace('ablation.off(plan)', 'ablation.off(plan)' + turned)}"
        "print(result)\n"
    )


def _plans(state: State, dims: Mapping[str, tuple[int, ...]]) -> str:
    """The lines of a dictionary {condition: {layer: dimensions}}."""
    layers = f"range({state.first}, {(state.last or 0) + 1})"
    plans = {label: f"dict.fromkeys({layers}, {off!r})" if off else "{}" for label, off in dims.items()}
    return "".join(f"    {label!r}: {plan},\n" for label, plan in plans.items())


def _settings(state: State, *, edits: bool) -> tuple[str, str]:
    """(what the ablation is made with beside its mode, the imports that it needs)"""
    modes = "from outlierlens.ablation.modes import Switch\n"
    edit = "from outlierlens.ablation.switches import EditSettings\n"
    if state.mode == "scale":
        return f", settings=EditSettings(factor={state.factor!r})", edit + modes
    if state.mode == "mean":
        means = (
            f', settings=EditSettings(means=means_over(loaded, stack, read_texts("excerpt", limit={MEAN_TEXTS}), '
            f"length={LENGTH}, batch_size={MEAN_TEXTS}))"
        )
        return means, (
            "from outlierlens.ablation.switches import EditSettings\nfrom outlierlens.data.texts import read_texts\n"
            "from outlierlens.ablation.modes import Switch, means_over\n"
        )
    return "", (edit if edits else "") + modes


def _options(options: LoadOptions) -> str:
    """`options` as they are written in Python, without the token: what is copied is made to be shared."""
    plain = LoadOptions()
    given = {
        one.name: getattr(options, one.name)
        for one in fields(options)
        if one.name not in ("token", "notice", "attention") and getattr(options, one.name) != getattr(plain, one.name)
    }
    if "row" in given:
        given["row"] = str(given["row"])
    return (
        "LoadOptions("
        + ", ".join(f"{name}={value!r}" for name, value in given.items())
        + (", " if given else "")
        + 'attention="eager")'
    )


def command(model: str, options: LoadOptions, state: State, views: Sequence[str]) -> str:
    """The command line that prints `views` of `state`, quoted for a shell, without the token."""
    words = ["outlierlens", "explore", operand(model), *_state_words(state)]
    words += ["--show", "all" if tuple(views) == VIEWS else ",".join(views)]
    for name, spelt in (("row", "--arch"), *((n, f"--{n}") for n in ("revision", "subfolder", "device", "dtype"))):
        value = getattr(options, name)
        if value != getattr(LoadOptions(), name):
            words += option(spelt, value)
    words += [f"--{name.replace('_', '-')}" for name in ("trust_remote_code", "offline") if getattr(options, name)]
    return shell(*words, "--json")


def _state_words(state: State) -> list[str]:
    words = [f"--text={state.text}"]
    words += ["--dims", ",".join(map(str, state.dims)), "--layers", f"{state.first}-{state.last}"]
    for one in options_of(ExploreOptions):
        if one.path[0] == "state" and (value := getattr(state, one.name)) != one.default:
            words += option(one.spelt, value)
    return words
