"""`Stack`: the declaration of one residual stream, plain enough to be written as TOML.

[[stack]]
name = "model"
blocks = "encoder.layer.{layer}"
norm_site = "stream"
last_norm = "output.LayerNorm"
last_linear = ["output.dense"]
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from outlierlens.architectures.heads import Heads, heads_of
from outlierlens.errors import BadInput, comment, literal
from outlierlens.results.json_toml import read_toml

NormSite = Literal["stream", "write", "read"]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Stack:
    """One residual stream, by module and parameter names relative to a block (or, where said, to the model).

    Attributes:
        blocks: dotted path of a block, without the prefix a task head puts before it; "{layer}" is its number.
        name: the stream's name: "model", or "encoder" / "decoder" / "text" / "vision" where there are several. Two
            stacks of one name are two layouts of the same stream (live and stored); the first that fits is bound.
        norm_site: "stream" (post-norm: the block's last operation is a norm of the stream itself), "write" (all that
            the block adds is normed before it is added), or "read" (pre-norm: only what is read is normed).
        last_norm: the norm that is the block's last operation ("stream") or norms its last write ("write").
        last_linear: linears whose output is the block's last write; several when experts' writes are summed.
            A name ending in "()" is a bare parameter rather than a module: "mlp.experts.down_proj()".
        other_writes: linears of the block that write to the stream before the last one (attention output). One that
            only some configs have (cross-attention) may be named: it counts where a block has it.
        other_norms: further norms on the stream or on a write (after attention), in order.
        reading_norms: norms that only scale what attention and MLP read; a separate view.
        embeddings: tables (relative to the model, prefix as for `blocks`) that write to the stream before block 0.
        embedding_linears: linears or convolutions [out, ...] that write to the stream before block 0.
        embedding_norm, final_norm: norms before the first and after the last block, relative like `embeddings`.
        layers: dotted config key of the number of blocks, checked where the config has it.
        experts: dotted config key of the number of experts, checked where a file stores them one by one.
        weight_is_in_by_out: linears are stored [in, out] (GPT-2's Conv1D), so a dimension is a column.
        axes: parameter name -> axis of the stream, for parameters that are neither [..., out, in] nor as above.
        write_scales: linear -> parameter [dim] that multiplies what the linear writes (LayerScale): both are one operation.
        raw_readers: linear -> the norm that it reads through, for linears that read the stream itself where that norm is "" or
            an identity (OLMo 2; ModernBERT's first block).
        mlp: the MLP's last linear, whose inputs are the block's neurons, where that is not `last_linear`.
        neurons: last linear -> linear whose outputs multiply what it reads, neuron by neuron (the up projection of a gated
            MLP), where a block has both; "[1/2]" behind the second name is the second half of what that linear gives.
        rectified: last linear -> the linear before it, with nothing but the activation between them.
        activation: config key of that activation, beside that of `layers`; a ReLU lets factors above 0 pass.
        heads: each attention of a block (see `heads`).
        readers: reading norm -> all that reads what it gives.
        fixed_scale: why no factor passes through a pre-norm stream, "" where one does.
        norm_offset: 1.0 where norms multiply by 1 + weight (Gemma), so a dimension is off at weight −1.
        shared_blocks: several layers run the same parameters (ALBERT): counting layers of weights is meaningless.
        layer_blocks: path of each layer's block, only where `blocks` cannot say it (shared blocks).
        token_first: blocks carry [token, batch, dim] (XLNet).
        exact: every path that is named must be in the model; so in a row from a file, unless it says `exact = false`.
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
    embedding_linears: tuple[str, ...] = ()
    embedding_norm: str = ""
    final_norm: str = ""
    layers: str = "num_hidden_layers"
    experts: str = ""
    weight_is_in_by_out: bool = False
    axes: Mapping[str, int] = field(default_factory=dict)
    write_scales: Mapping[str, str] = field(default_factory=dict)
    raw_readers: Mapping[str, str] = field(default_factory=dict)
    mlp: str = ""
    neurons: Mapping[str, str] = field(default_factory=dict)
    rectified: Mapping[str, str] = field(default_factory=dict)
    activation: str = "hidden_act"
    heads: tuple[Heads, ...] = ()
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed_scale: str = ""
    norm_offset: float = 0.0
    shared_blocks: bool = False
    layer_blocks: tuple[str, ...] = ()
    token_first: bool = False
    stored_as: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exact: bool = field(default=False, compare=False)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.norm_site not in ("stream", "write", "read"):
            raise BadInput(f"stack {self.name!r}: norm_site is {self.norm_site!r}; use stream, write or read")
        if self.norm_site != "read" and not self.last_norm:
            raise BadInput(f"stack {self.name!r}: norm_site {self.norm_site!r} needs last_norm")
        if not self.last_linear:
            raise BadInput(f"stack {self.name!r}: last_linear is missing; name the linear that writes last")
        if "{layer}" not in self.blocks and not self.layer_blocks:
            raise BadInput(f"stack {self.name!r}: blocks = {self.blocks!r} has no {{layer}}; write it for the number")

    def block(self, layer: int) -> str:
        """Path of the block that runs as `layer`, without prefix."""
        return self.layer_blocks[layer] if self.layer_blocks else self.blocks.replace("{layer}", str(layer))


def parameter(module: str, leaf: str) -> str:
    """The parameter of a linear; "name()" declares a bare parameter whose bias is "name_bias"."""
    if module.endswith("()"):
        return module[:-2] if leaf == "weight" else f"{module[:-2]}_bias"
    return f"{module}.{leaf}"


def load_toml(path: Path) -> tuple[Stack, ...]:
    """The stacks declared in a TOML file, each `exact`; raises BadInput with the offending key."""
    document = read_toml(path)
    tables = document.get("stack")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise BadInput(f"{path}: holds no [[stack]] table; `outlierlens scan --propose` prints one")
    return tuple(_stack(table, path) for table in tables)


def to_toml(stacks: Sequence[Stack], evidence: Sequence[Mapping[str, str]] = ()) -> str:
    """`stacks` as TOML, values that are the default left out, each line under its evidence."""
    parts = []
    for number, stack in enumerate(stacks):
        remarks = evidence[number] if number < len(evidence) else {}
        lines = ["[[stack]]"]
        for f in fields(Stack):
            value = getattr(stack, f.name)
            default = {} if f.default is MISSING else f.default
            # Where the drafter says something about a field, its value counts even when it is the default.
            if f.name != "blocks" and value == default and f.name not in remarks:
                continue
            if f.name in remarks:
                lines.append(comment(remarks[f.name]))
            lines.append(f"{f.name} = {_toml_value(value)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _toml_value(value: Any) -> str:
    if isinstance(value, Heads):
        return _toml_value({name: one for name, one in vars(value).items() if one})
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{literal(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return literal(value)


def _stack(table: dict[str, Any], path: Path) -> Stack:
    known = {f.name: f.default for f in fields(Stack)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise BadInput(f"{path}: unknown key {key!r} in [[stack]]; known: {', '.join(known)}")
        try:
            values[key] = _typed(key, value, known[key])
        except TypeError:
            raise BadInput(f"{path}: {key} = {value!r} has the wrong type") from None
    if "blocks" not in values:
        raise BadInput(f'{path}: a [[stack]] needs `blocks`, such as "encoder.layer.{{layer}}"')
    try:
        return Stack(**{"exact": True, **values})
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _typed(key: str, value: Any, default: Any) -> Any:
    """`value` in the type of the field; raises TypeError."""
    if key == "heads":
        return tuple(heads_of(_table(one)) for one in _instance(value, list))
    if key in ("stored_as", "readers"):
        return {name: _strings(others) for name, others in _table(value).items()}
    if key == "axes":
        return {name: _instance(axis, int) for name, axis in _table(value).items()}
    if key in ("write_scales", "raw_readers", "neurons", "rectified"):
        return {name: _instance(other, str) for name, other in _table(value).items()}
    if isinstance(default, tuple):
        return _strings(value)
    if isinstance(default, float):
        return float(_instance(value, (int, float)))
    return _instance(value, bool if isinstance(default, bool) else str)


def _instance(value: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError
    return value


def _table(value: Any) -> dict[str, Any]:
    return dict(_instance(value, dict))


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(_instance(item, str) for item in _instance(value, list))
