"""Where the channels of a block's attention lie, by names relative to the block.

    Heads(output="self_attn.o_proj", value=("self_attn.v_proj",), key=("self_attn.k_proj",), query=("self_attn.q_proj",))
    heads("self_attn", "q_proj k_proj v_proj o_proj", rotary="halves")         # the same, and keys that are turned
    Heads(output="attn.c_proj", value=("attn.c_attn[2/3]",), …)                # the last third of a fused linear

A name may say which outputs of a linear are meant:

- `[1/2]`: the second of two equal parts;
- `[q]`, `[k]`, `[v]`: the linear gives all heads' queries, then all keys, then all values;
- `[head q]`, `[head k]`, `[head v]`: it gives that for each head, or for each group of heads that shares a key and a value.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

Rotary = Literal["", "halves", "neighbours"]
PART = re.compile(r"(?P<name>[^\[]+)(?:\[(?:(?P<part>\d+)/(?P<parts>\d+)|(?P<head>head )?(?P<letter>[qkv]))\])?")


@dataclass(frozen=True)
class Heads:
    """One attention of a block; a block without its `output` does not have it.

    Attributes:
        output: the linear that reads the mix of values.
        value, key, query: what gives them; several where terms are added to them, or where positions have some of their own.
            () where queries meet more than the keys that are named.
        key_norm, query_norm: norms of keys and queries, where a config has them.
        rotary: how dimensions of a head are paired where positions turn them: i with i + half of those turned ("halves"), 2i
            with 2i + 1 ("neighbours"), or "" without.
    """

    output: str
    value: tuple[str, ...]
    key: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    key_norm: str = ""
    query_norm: str = ""
    rotary: Rotary = ""

    @property
    def norms(self) -> dict[str, tuple[str, ...]]:
        """{norm: the linears that it reads}."""
        pairs = ((self.query_norm, self.query), (self.key_norm, self.key))
        return {norm: linears for norm, linears in pairs if norm}


def heads(around: str, names: str, *, norms: str = "", rotary: Rotary = "") -> Heads:
    """An attention by its names below the module `around`: those of query, key, value and output, and of two norms."""
    query, key, value, output = (f"{around}.{name}" for name in names.split())
    query_norm, key_norm = (f"{around}.{name}" for name in norms.split()) if norms else ("", "")
    return Heads(output, (value,), (key,), (query,), key_norm, query_norm, rotary)


def fused(linear: str, output: str, *, each_head: bool = False, rotary: Rotary = "") -> Heads:
    """An attention whose queries, keys and values one linear gives: all of each in a row, or for each head."""
    query, key, value = ((f"{linear}[{'head ' * each_head}{letter}]",) for letter in "qkv")
    return Heads(output, value, key, query, rotary=rotary)


def heads_of(table: dict[str, Any]) -> Heads:
    """An attention from a TOML table; raises TypeError for what it does not know or of the wrong type."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    made = Heads(**values)
    names = (made.output, made.key_norm, made.query_norm, made.rotary)
    lists = (made.value, made.key, made.query)
    if not all(isinstance(one, tuple) for one in lists):
        raise TypeError
    if not all(isinstance(name, str) for name in (*names, *(name for one in lists for name in one))):
        raise TypeError
    if made.rotary not in ("", "halves", "neighbours"):
        raise TypeError
    return made
