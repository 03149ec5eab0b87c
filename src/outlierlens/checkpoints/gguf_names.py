"""What llama.cpp's converters did to names, layout and config of one family, so that it can be read the other way round.

    family = family_of("gemma2", stored_names)      # from the table in `gguf_families`
    family.translate("blk.3.ffn_down.weight")       # Translation("model.layers.3.mlp.down_proj.weight", ...)
    family.config(metadata, "gemma2", where)        # {"model_type": "gemma2", "num_hidden_layers": 26, ...}

Tensors that a family does not name keep their GGUF name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlierlens.errors import BadFile

BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,8})\.(.+)\Z")
_EXPERT = re.compile(r"(.+)\.(0|[1-9]\d{0,8})\Z")


@dataclass(frozen=True)
class Translation:
    """One tensor as Hugging Face has it, and what undoes the converter's changes to its values.

    Attributes:
        name: the Hugging Face name.
        swap: the last two axes must be swapped.
        shift: what must be added to the values.
        order: how the rows stand, where not as in Hugging Face; see `Family.orders`.
        known: the family has such a tensor; else `name` is GGUF's own.
    """

    name: str
    swap: bool = False
    shift: float = 0.0
    order: str = ""
    known: bool = False


@dataclass(frozen=True)
class Family:
    """One model family in GGUF's words and in Hugging Face's.

    Attributes:
        model_type: the Hugging Face `model_type`.
        blocks: path of a block; "{layer}" is its number.
        inner: GGUF module of a block -> path within the block. A path that ends in "()" is a bare parameter ("p" and
            "p_bias"); "{expert}" stands for the number in names such as "ffn_down.7".
        outer: GGUF module outside the blocks -> full path.
        when: module of a block whose presence tells this family from others of the same GGUF architecture.
        swapped: modules whose weight the converter transposed.
        norm_shift: what the converter added to the weight of every norm.
        keys: config key -> metadata key without the architecture's prefix.
        constants: config values that the architecture implies.
        orders: modules whose rows the converter put in another order: "rotary" (each head's two halves are shuffled into
            pairs), "heads" (all queries, keys and values stand together, not each head's), "groups" (the same of key and
            value heads that several queries share). `gguf_model` undoes it: no measure on weights alone depends on it.
        experts: path of the parameter that holds the experts' gate and up projections, two tensors here; "" without.
        alternating: gate and up take turns in that parameter, which is [expert, in, out]; else one stands behind the other.
        rope: config keys of the rotary base and of the share of a head that rotates, where that is not all of it.
        flags: config key -> tensor whose presence it tells.
    """

    model_type: str
    blocks: str
    inner: Mapping[str, str]
    outer: Mapping[str, str]
    when: str = ""
    swapped: frozenset[str] = frozenset()
    norm_shift: float = 0.0
    keys: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    orders: Mapping[str, str] = field(default_factory=dict)
    experts: str = ""
    alternating: bool = False
    rope: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)

    def translate(self, stored: str) -> Translation:
        """The Hugging Face name of a GGUF tensor, or `stored` itself where the table has none."""
        stem, _, leaf = stored.rpartition(".")
        if leaf not in ("weight", "bias"):
            return Translation(stored)
        match = BLOCK.match(stem)
        module = match[2] if match else stem
        path = self._inner(module) if match else self.outer.get(module)
        if path is None:
            return Translation(stored)
        start = self.blocks.replace("{layer}", match[1]) + "." if match else ""
        is_weight = leaf == "weight"
        return Translation(
            name=start + _parameter(path, leaf),
            swap=is_weight and module in self.swapped,
            shift=-self.norm_shift if is_weight and self.norm_shift and module.endswith("norm") else 0.0,
            order=self.orders.get(module, ""),
            known=True,
        )

    def _inner(self, module: str) -> str | None:
        if module in self.inner:
            return self.inner[module]
        match = _EXPERT.match(module)
        path = self.inner.get(match[1] + ".{expert}") if match else None
        return path.replace("{expert}", match[2]) if match and path else None

    def config(self, metadata: Mapping[str, Any], architecture: str, where: str) -> dict[str, Any]:
        """The part of a `config.json` that the metadata holds; raises BadFile for a value of the wrong type."""
        config: dict[str, Any] = {"model_type": self.model_type, **self.constants}
        for key, suffix in self.keys.items():
            value = metadata.get(f"{architecture}.{suffix}")
            if value is None:
                continue  # absent, or an array with one value a layer, which no config key holds
            kind: type = float if suffix.endswith(("epsilon", "freq_base")) else bool if key.startswith("use_") else int
            # JSON has one kind of number, and writers differ in whether a whole number is stored as a float.
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise BadFile(
                    f"{where}: metadata {architecture}.{suffix} is {value!r}, not of type {kind.__name__}; "
                    "the file is corrupt, convert the model again"
                )
            config[key] = value
        return config


def _parameter(path: str, leaf: str) -> str:
    if path.endswith("()"):
        return path[:-2] if leaf == "weight" else f"{path[:-2]}_bias"
    return f"{path}.{leaf}"
