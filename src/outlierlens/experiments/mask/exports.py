"""A mask in the shape that other tools take: `export(tool, found)` gives the text of a file.

tool                 form     what it reads
saelens              Python   `exclude_special_tokens` and `seqpos_slice` of LanguageModelSAERunnerConfig (sae-lens 6)
dictionary-learning  Python   `max_activation_norm_multiple` and `remove_bos` of ActivationBuffer (dictionary-learning 0.1)
heretic              TOML     `winsorization_quantile` of its config.toml (heretic-llm 1.4)
steering             Python   a function that takes the dimensions that stand out from a direction
"""

from collections.abc import Callable, Mapping

from outlierlens.errors import BadInput, comment, literal
from outlierlens.experiments.mask.options import Tool
from outlierlens.experiments.mask.result import Mask


def export(tool: Tool, found: Mask) -> str:
    """The text of a file for `tool`; raises BadInput for an unknown one."""
    if tool not in WRITERS:
        raise BadInput(f"unknown tool {tool!r}; masks are written for {', '.join(WRITERS)}")
    about = (
        f"Sinks of {found.provenance.model}, block {found.layer}, found in {found.n_fit} texts of {found.data}.",
        f"On {found.judged.n_texts} other texts {_recall(found)}.",
    )
    return "".join(f"{comment(line)}\n" for line in about) + WRITERS[tool](found)


def _recall(found: Mask) -> str:
    held = found.judged
    if not held.n_sinks:
        return "there is no sink"
    return f"this leaves out {held.recall:.1%} of the sinks and {held.false_share:.2%} of the other tokens"


def _first(found: Mask) -> int:
    """How many positions from the start of a text are masked, one after another."""
    return next(n for n in range(len(found.positions) + 1) if n not in found.positions)


def _behind(found: Mask) -> str:
    """A comment about the positions that no prefix covers, "" for none."""
    left = [one for one in found.positions if one >= _first(found)]
    return f"# Positions that it cannot leave out: {', '.join(map(str, left))}.\n" if left else ""


def _saelens(found: Mask) -> str:
    words = comment(literal(list(found.words))[1:-1])
    return (
        "# LanguageModelSAERunnerConfig(..., **SINKS)\n"
        f"{_behind(found)}SINKS = {{\n"
        f'    "exclude_special_tokens": {list(found.token_ids) or False},' + f"  {words}" * bool(found.words) + "\n"
        f'    "seqpos_slice": ({_first(found)}, None),\n}}\n'
    )


def _dictionary_learning(found: Mask) -> str:
    return (
        "# dictionary_learning.pytorch_buffer.ActivationBuffer(..., **SINKS), in the repository since August 2025.\n"
        "# Release 0.1.0 knows `remove_bos` alone, which leaves out the first token, whatever it is.\n"
        "# Longer states than this multiple of the median are left out, whatever their token and position.\n"
        f'SINKS = {{"max_activation_norm_multiple": {found.factor:g}, "remove_bos": {0 in found.positions}}}\n'
    )


def _heretic(found: Mask) -> str:
    n, width = len(found.masked_dims), len(found.centre)
    if not n:
        return "# No dimension stands out on tokens that are no sinks: nothing to clip.\nwinsorization_quantile = 1.0\n"
    return (
        f"# The {n} largest of {width} entries of a hidden state are clipped to the next one: dimensions "
        f"{', '.join(map(str, found.masked_dims))} stand out.\n"
        f"winsorization_quantile = {(width - 1 - n) / (width - 1):.6f}\n"
    )


def _steering(found: Mask) -> str:
    return (
        f"DIMS = {list(found.masked_dims)}\n"
        f"NORM = {found.threshold:.6g}  # longer hidden states are sinks: leave them out of means\n\n\n"
        "def without_outliers(direction):\n"
        '    """`direction` [..., dim] with 0 in the dimensions that stand out; its length may be set anew."""\n'
        "    direction = direction.clone()\n    direction[..., DIMS] = 0\n    return direction\n"
    )


WRITERS: Mapping[Tool, Callable[[Mask], str]] = {
    "saelens": _saelens,
    "dictionary-learning": _dictionary_learning,
    "heretic": _heretic,
    "steering": _steering,
}
