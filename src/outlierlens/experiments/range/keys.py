"""What key biases say of a cache of few bits, from a few kilobytes of a checkpoint, without torch.

    biases = key_biases(checkpoint)              # a KeyBias for each layer; () where the family's keys have none
    [one.layer for one in biases if one.alarm]

A bias adds the same vector to every token's key. Where one entry of it is large, it sets the step by which the whole key is
rounded, and the other channels, which tell tokens apart, are lost.
"""

import re

import numpy as np

from outlierlens.checkpoints import Checkpoint
from outlierlens.experiments.range.result import KeyBias

# Keys alone, and queries, keys and values one behind the other (GPT-2). What mixes them by head is not taken apart.
_ALONE = re.compile(r"(?:^|.*\.)(\d+)\.(?:.*\.)?(?:k_proj|k_lin|key)\.bias")
_JOINED = re.compile(r"(?:^|.*\.)h\.(\d+)\.attn\.c_attn\.bias")
CROSS = ("cross", "encoder_attn")  # keys of another stream


def key_biases(checkpoint: Checkpoint) -> tuple[KeyBias, ...]:
    """Norm, largest entry and ratio to the median layer of each layer's key bias; only these tensors are read."""
    names = {}
    for name in checkpoint.tensors:
        match = _ALONE.fullmatch(name) or _JOINED.fullmatch(name)
        if match and not any(word in name.lower() for word in CROSS):
            names[name] = int(match[1])
    found = []
    for name, values in checkpoint.read(names):
        keys = values.ravel()
        if _JOINED.fullmatch(name):
            keys = np.split(keys, 3)[1] if keys.size % 3 == 0 else keys[:0]
        if keys.size:
            found.append((names[name], name, np.nan_to_num(np.abs(keys.astype(np.float64)), nan=np.inf)))
    norms = [float(np.linalg.norm(size)) for _, _, size in found]
    middle = float(np.median(norms)) if norms else 0.0
    biases = []
    for (layer, name, size), norm in zip(found, norms, strict=True):
        place, width = int(size.argmax()), _head_width(checkpoint, size.size)
        head, channel = (place // width, place % width) if width else (-1, place)
        ratio = norm / middle if middle else (np.inf if norm else 1.0)
        biases.append(KeyBias(name, layer, norm, float(size[place]), head, channel, float(ratio)))
    return tuple(sorted(biases, key=lambda one: (one.layer, one.name)))


def _head_width(checkpoint: Checkpoint, n_entries: int) -> int:
    """Channels of a head, by the config; 0 where it does not say, or does not fit."""
    config = checkpoint.config
    width, hidden = config.get("head_dim"), config.get("hidden_size", config.get("n_embd"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    if not isinstance(width, int) and isinstance(hidden, int) and isinstance(heads, int) and heads:
        width = hidden // heads
    return width if isinstance(width, int) and width > 0 and n_entries % width == 0 else 0
