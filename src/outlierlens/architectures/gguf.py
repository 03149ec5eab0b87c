"""What llama.cpp's converters did to names, layout and config of one family, so that it can be read the other way round.

    (family,) = ARCHITECTURES["gemma2"].gguf
    family.translate("blk.3.ffn_down.weight")       # Translation("model.layers.3.mlp.down_proj.weight", ...)
    family.config(metadata, where)                  # {"model_type": "gemma2", "num_hidden_layers": 26, ...}

Tensors that a family does not name keep their GGUF name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlierlens.architectures.stack import parameter
from outlierlens.errors import BadFile

BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,8})\.(.+)\Z")
_EXPERT = re.compile(r"(.+)\.(0|[1-9]\d{0,8})\Z")

# What several families share: config keys by metadata key, and the norms of a pre-norm block.
KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
}
LAYER_NORM_KEYS = {**KEYS, "layer_norm_eps": "attention.layer_norm_epsilon"}
PRE_NORM = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


@dataclass(frozen=True)
class Translation:
    """One tensor as Hugging Face has it, and what undoes the converter's changes to its values.

    Attributes:
        name: the Hugging Face name.
        swap: the last two axes must be swapped.
        shift: what must be added to the values.
        order: how the rows stand, where not as in Hugging Face; see `Gguf.orders`.
        known: the family has such a tensor; else `name` is GGUF's own.
    """

    name: str
    swap: bool = False
    shift: float = 0.0
    order: str = ""
    known: bool = False


@dataclass(frozen=True)
class Gguf:
    """One model family in GGUF's words and in Hugging Face's.

    Attributes:
        architecture: GGUF's word for the family, `general.architecture`; several families may share it.
        blocks: path of a block; "{layer}" is its number.
        inner: GGUF module of a block -> path within the block. A path that ends in "()" is a bare parameter ("p" and
            "p_bias"); "{expert}" stands for the number in names such as "ffn_down.7".
        outer: GGUF module outside the blocks -> full path.
        when: module of a block whose presence tells this family from others of the same GGUF architecture.
        swapped: modules whose weight the converter transposed.
        keys: config key -> metadata key without the architecture's prefix.
        constants: config values that the architecture implies.
        orders: modules whose rows the converter put in another order: "rotary" (each head's two halves are shuffled into
            pairs), "heads" (all queries, keys and values stand together, not each head's), "groups" (the same of key and
            value heads that several queries share). `gguf_model` undoes it: no measure on weights alone depends on it.
        experts: path of the parameter that holds the experts' gate and up projections, two tensors here; "" without.
        alternating: gate and up take turns in that parameter, which is [expert, in, out]; else one stands behind the other.
        rope: config keys of the rotary base and of the share of a head that rotates, where that is not all of it.
        flags: config key -> tensor whose presence it tells.
        several_keys: config values where there are several key heads and the config says nothing else of them.
        by_hidden: number of blocks of the one size whose queries are scaled by the model's width over its heads instead of
            the width of a head, as llama.cpp tells it; 0 where the config says nothing of it, nor of capped logits.
        yarn: settings of YaRN that the metadata does not hold.
        others: metadata key -> what the file is of instead where it has that key.
        kin: further families whose config.json fits these tensors.
        model_type, norm_shift: the Hugging Face `model_type`, and what the converter added to the weight of every norm;
            filled in from the family's row.
    """

    architecture: str
    blocks: str
    inner: Mapping[str, str]
    outer: Mapping[str, str]
    when: str = ""
    swapped: frozenset[str] = frozenset()
    keys: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    orders: Mapping[str, str] = field(default_factory=dict)
    experts: str = ""
    alternating: bool = False
    rope: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    several_keys: Mapping[str, Any] = field(default_factory=dict)
    by_hidden: int = 0
    yarn: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    kin: tuple[str, ...] = ()
    model_type: str = ""
    norm_shift: float = 0.0

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
            name=start + parameter(path, leaf),
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

    def config(self, metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The part of a `config.json` that the metadata holds; raises BadFile for a value of the wrong type."""
        config: dict[str, Any] = {"model_type": self.model_type, **self.constants}
        for key, suffix in self.keys.items():
            value = metadata.get(f"{self.architecture}.{suffix}")
            if value is None:
                continue  # absent, or an array with one value per layer, which no config key holds
            kind: type = float if suffix.endswith(("epsilon", "freq_base")) else bool if key.startswith("use_") else int
            # JSON has one kind of number, and writers differ in whether a whole number is stored as a float.
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise BadFile(
                    f"{where}: metadata {self.architecture}.{suffix} is {value!r}, not of type {kind.__name__}; "
                    "the file is corrupt, convert the model again"
                )
            config[key] = value
        return config
