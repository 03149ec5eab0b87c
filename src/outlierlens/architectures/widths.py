"""Every part of a residual stream has one width: `of_one_width(bound, tensors, config)`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.stack import Config, Stack
from outlierlens.errors import BadFile

if TYPE_CHECKING:
    from outlierlens.architectures.bind import BoundStack

WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")  # what configs call the width of their only stream


def of_one_width(bound: "BoundStack", tensors: Mapping[str, Any], config: Config) -> Stack:
    """The stack of `bound`, its linears declared [in, out] or [out, in] as the width of the stream says.

    Norms, tables and the config tell the width. One layer is looked at; what reads the layers compares them.

    Raises:
        BadFile: two parts of the stream have different widths.
    """
    stack, layer = bound.stack, bound.weight_layers[0]
    linear = {p.name: p for p in (*bound.scale[layer], *bound.writes[layer])}
    shapes = {name: _shape(tensors, name) for name in linear}
    linear = {name: p for name, p in linear.items() if len(shapes[name]) > 1}
    others = (*bound.scale[layer], *bound.reading[layer], *bound.embeddings, *bound.embedding_norm, *bound.final_norm)
    # Beside a nested config with a width of its own (text_config), that of the whole may be a default that nothing has.
    nested = any(isinstance(one, Mapping) and not one.keys().isdisjoint(WIDTHS) for one in config.values())
    widths = {f"the config's {key}": config[key] for key in WIDTHS if not nested and isinstance(config.get(key), int)}
    widths |= {p.name: s[p.axis] for p in others if p.name not in linear and (s := _shape(tensors, p.name))}
    widths |= {
        name: shapes[name][p.axis]
        for name, p in linear.items()
        if name.removeprefix(bound.blocks[layer])[1:] in stack.axes
    }
    if not widths:
        return stack
    first, width = next(iter(widths.items()))
    if set(widths.values()) == {width}:
        if all(shapes[name][p.axis] == width for name, p in linear.items()):
            return stack
        if not stack.axes and all(shapes[name][-3 - p.axis] == width for name, p in linear.items()):
            return replace(stack, weight_is_in_by_out=not stack.weight_is_in_by_out)
    widths |= {name: shapes[name][p.axis] for name, p in linear.items()}
    odd = next(name for name, one in widths.items() if one != width)
    raise BadFile(
        f"stack {bound.name!r}: {first} is {width:,} wide and {odd} {widths[odd]:,}, and one stream has one width; the weights "
        f"belong to another config or family (--family, --arch row.toml)"
    )


def _shape(tensors: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The shape of a tensor; () where it is not known, as of one that is packed."""
    try:
        return tuple(getattr(tensors[name], "shape", ()))
    except BadFile:
        return ()
