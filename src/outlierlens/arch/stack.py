"""`Stack`: the declaration of one residual stream, plain enough to be written as TOML.

    [[stack]]
    name = "model"
    blocks = "encoder.layer.{layer}"
    norm_site = "stream"
    last_norm = "output.LayerNorm"
    last_linear = ["output.dense"]
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from outlierlens.errors import BadInput

NormSite = Literal["stream", "write", "read"]


@dataclass(frozen=True)
class Stack:
    """One residual stream, by module and parameter names relative to a block (or, where said, to the model).

    Attributes:
        blocks: dotted path of a block, without the prefix a task head puts before it; "{layer}" is its number.
        name: the stream's name: "model", or "encoder" / "decoder" / "text" / "vision" where there are several.
        norm_site: "stream" (post-norm: the block's last operation is a norm of the stream itself), "write" (what
            the block adds is normed before it is added), or "read" (pre-norm: only what is read is normed).
        last_norm: the norm that is the block's last operation ("stream") or norms its last write ("write").
        last_linear: linears whose output is the block's last write; several when experts' writes are summed.
            A name ending in "()" is a bare parameter rather than a module: "mlp.experts.down_proj()".
        other_writes: linears of the block that write to the stream before the last one (attention output).
        other_norms: further norms on the stream or on a write (after attention), in order.
        reading_norms: norms that only scale what attention and MLP read; a separate view.
        embeddings: tables (relative to the model, prefix as for `blocks`) that write to the stream before block 0.
        embedding_norm, final_norm: norms before the first and after the last block, relative like `embeddings`.
        layers: dotted config key of the number of blocks, checked where the config has it.
        weight_is_in_by_out: linears are stored [in, out] (GPT-2's Conv1D), so a dimension is a column.
        norm_offset: 1.0 where norms multiply by 1 + weight (Gemma), so a dimension is off at weight −1.
        shared_blocks: several layers run the same parameters (ALBERT): counting layers of weights is meaningless.
        layer_blocks: path of each layer's block, only where `blocks` cannot say it (shared blocks).
        token_first: blocks carry [token, batch, dim] (XLNet).
        stored_as: alternative names in files, relative like the name they stand for, "{expert}" for any number.
        notes: remarks that belong beside results.
    """

    blocks: str
    name: str = "model"
    norm_site: NormSite = "read"
    last_norm: str = ""
    last_linear: tuple[str, ...] = ()
    other_writes: tuple[str, ...] = ()
    other_norms: tuple[str, ...] = ()
    reading_norms: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    embedding_norm: str = ""
    final_norm: str = ""
    layers: str = "num_hidden_layers"
    weight_is_in_by_out: bool = False
    norm_offset: float = 0.0
    shared_blocks: bool = False
    layer_blocks: tuple[str, ...] = ()
    token_first: bool = False
    stored_as: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.norm_site not in ("stream", "write", "read"):
            raise BadInput(f"stack {self.name!r}: norm_site is {self.norm_site!r}; use stream, write or read")
        if self.norm_site != "read" and not self.last_norm:
            raise BadInput(f"stack {self.name!r}: norm_site {self.norm_site!r} needs last_norm")
        if not self.last_linear:
            raise BadInput(f"stack {self.name!r}: last_linear is missing; name the linear that writes last")


def load_toml(path: Path) -> tuple[Stack, ...]:
    """The stacks declared in a TOML file; raises BadInput with the offending key."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as TOML: {error}") from None
    tables = document.get("stack")
    if not isinstance(tables, list) or not tables:
        raise BadInput(f"{path}: holds no [[stack]] table; `outlierlens scan --propose` prints one")
    return tuple(_stack(table, path) for table in tables)


def _stack(table: dict[str, Any], path: Path) -> Stack:
    known = {f.name: f for f in fields(Stack)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise BadInput(f"{path}: unknown key {key!r} in [[stack]]; known: {', '.join(known)}")
        default = known[key].default
        if key == "stored_as":
            sound = isinstance(value, dict)
            value = {name: tuple(others) for name, others in value.items()} if sound else value
        elif isinstance(default, tuple):
            sound = isinstance(value, list) and all(isinstance(item, str) for item in value)
            value = tuple(value) if sound else value
        elif isinstance(default, float):
            sound = isinstance(value, int | float) and not isinstance(value, bool)
        else:
            sound = isinstance(value, type(default) if key != "blocks" else str)
        if not sound:
            raise BadInput(f"{path}: {key} = {value!r} has the wrong type")
        values[key] = value
    if "blocks" not in values:
        raise BadInput(f"{path}: a [[stack]] needs `blocks`, such as \"encoder.layer.{{layer}}\"")
    return Stack(**values)
