"""Which key of a config sets the epsilon of which norm, found by building the model anew without memory.

    found = epsilons(model)
    found.keys["rms_norm_eps"]         # {"model.layers.0.input_layernorm", …, "model.norm"}
    found.fixed                        # norms whose epsilon no key moves: it is written in the model's code

A key of a nested config has dots: "text_config.rms_norm_eps".
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

NAMES = ("variance_epsilon", "eps", "epsilon")  # of a norm's attribute
MARK = 0.15625  # no model has it; float32 holds it
_KEY = re.compile(r"(^|_)(eps|epsilon)$")


@dataclass(frozen=True)
class Epsilons:
    """Where every norm's epsilon comes from: `keys` {config key: paths of norms}, and `fixed`, those of no key."""

    keys: dict[str, frozenset[str]]
    fixed: frozenset[str]

    def key_of(self, path: str) -> str:
        """The config key of the norm at `path`; "" for none."""
        return next((key for key, paths in self.keys.items() if path in paths), "")


def epsilons(model: "nn.Module") -> Epsilons:
    """Where the epsilon of each norm of `model` comes from.

    Raises:
        BadInput: the model cannot be built anew from its config.
    """
    import torch

    config: Any = getattr(model, "config", None)
    here = norm_epsilons(model)
    keys = {}
    for key in eps_keys(config.to_dict()) if config is not None else ():
        other = copy.deepcopy(config)
        set_key(other, key, MARK)
        try:
            with torch.device("meta"):
                made = type(model)(other)
        except Exception as error:  # each family checks its own config, with its own errors
            text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise BadInput(
                f"{type(model).__name__} cannot be built from its config ({text}), so no key is known"
            ) from error
        moved = frozenset(path for path, value in norm_epsilons(made).items() if value == MARK and path in here)
        if moved:
            keys[key] = moved
    return Epsilons(keys, frozenset(here) - frozenset().union(*keys.values()))


def norm_epsilons(model: "nn.Module") -> dict[str, float]:
    """{path of a norm: its epsilon}."""
    found = {}
    for path, module in model.named_modules():
        value = next((getattr(module, name) for name in NAMES if isinstance(getattr(module, name, None), float)), None)
        if value is not None:
            found[path] = value
    return found


def set_epsilon(module: "nn.Module", value: float) -> None:
    """Give a norm another epsilon."""
    name = next(name for name in NAMES if isinstance(getattr(module, name, None), float))
    setattr(module, name, value)


def eps_keys(config: dict[str, Any], within: str = "") -> Iterator[str]:
    """The dotted keys of a config, as a dictionary, that are named like an epsilon and hold a number above 0."""
    for name, value in config.items():  # id2label has numbers for names
        if isinstance(value, dict):
            yield from eps_keys(value, f"{within}{name}.")
        elif isinstance(name, str) and _KEY.search(name) and isinstance(value, float) and value > 0:
            yield within + name


def get_key(config: Any, key: str) -> Any:
    """The value of a dotted key of a live config."""
    return reduce(getattr, key.split("."), config)


def set_key(config: Any, key: str, value: Any) -> None:
    """Set a dotted key of a live config."""
    within, _, name = key.rpartition(".")
    setattr(get_key(config, within) if within else config, name, value)
