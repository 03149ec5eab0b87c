"""What is declared of a model family: its residual streams (`Stack`), its attention (`Heads`), and the rest (`Family`).

    Family(causal="is_decoder", prefix="bert")                                # the streams are derived (rows.py)
    Heads(output="self_attn.o_proj", value=("self_attn.v_proj",), key=("self_attn.k_proj",), query=("self_attn.q_proj",))
    heads("self_attn", "q_proj k_proj v_proj o_proj", rotary="halves")         # the same, and keys that are turned
    Heads(output="attn.c_proj", value=("attn.c_attn[2/3]",), …)                # the last third of a fused linear

    (family,) = ARCHITECTURES["gemma2"].gguf                                   # what llama.cpp's converters did
    family.translate("blk.3.ffn_down.weight")       # Translation("model.layers.3.mlp.down_proj.weight", ...)
    family.config(metadata, where)                  # {"model_type": "gemma2", "num_hidden_layers": 26, ...}

A `Stack` is plain enough to be written as TOML. Tensors that a family does not name keep their GGUF name. Names of `Heads` are
relative to the block, and may say which outputs of a linear are meant:

- `[1/2]`: the second of two equal parts;
- `[q]`, `[k]`, `[v]`: the linear gives all heads' queries, then all keys, then all values;
- `[head q]`, `[head k]`, `[head v]`: it gives that for each head, or for each group of heads that shares a key and a value.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from outlierlens.errors import BadFile, BadInput, comment, literal
from outlierlens.results.safe_files import read_toml

Rotary = Literal["", "halves", "neighbours"]
BY_HAND = "write a row by hand (docs/models.md) and pass --model-args arch=row.toml"
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


# --- one residual stream ---------------------------------------------------------------------------------------------

NormSite = Literal["stream", "write", "read"]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Stack:
    """One residual stream, by module and parameter names relative to a block (or, where said, to the model).

    Attributes:
        blocks: dotted path of a block, without the prefix a task head puts before it; "{layer}" is its number.
        name: the stream's name: "model", or "encoder" / "decoder" / "text" / "vision" where there are several. Two
            stacks of one name are two layouts of the same stream (live and stored); the first that fits is bound.
        norm_site: "stream" (post-norm: the block's last operation is a norm of the stream itself), "write" (what the
            block adds is normed before it is added), or "read" (pre-norm: only what is read is normed).
        last_norm: the norm that is the block's last operation ("stream") or norms its last write ("write"); a block
            without it ends in the last of its linears.
        last_linear: linears whose output is the block's last write; several when experts' writes are summed.
            A name ending in "()" is a bare parameter rather than a module: "mlp.experts.down_proj()".
        other_writes: linears of the block that write to the stream before the last one (attention output). One that
            only some configs have (cross-attention) may be named: it counts where a block has it.
        other_norms: further norms, in order: on a write (after attention) where `norm_site` is "write", else on the stream.
        raw_writes: linears of a stream whose writes are normed that add as they are: in some of its blocks, or beside those.
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
        layouts: where blocks are not all alike, the linears that write and the norms on the stream of each kind of block,
            sorted; the lists above then hold those of all kinds.
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
    raw_writes: tuple[str, ...] = ()
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
    layouts: tuple[tuple[str, ...], ...] = ()
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
    return tuple(stack_of(table, path, exact=True) for table in tables)


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
            lines.append(f"{f.name} = {_toml_value(_plain(value))}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{literal(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return literal(value)


def stack_of(table: Mapping[str, Any], where: Path | str, *, exact: bool = False) -> Stack:
    """A stack from a table as TOML or JSON has it; raises BadInput with the offending key."""
    known = {f.name: f.default for f in fields(Stack)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise BadInput(f"{where}: unknown key {key!r} in [[stack]]; known: {', '.join(known)}")
        try:
            values[key] = _typed(key, value, known[key])
        except TypeError:
            raise BadInput(f"{where}: {key} = {value!r} has the wrong type") from None
    if "blocks" not in values:
        raise BadInput(f'{where}: a [[stack]] needs `blocks`, such as "encoder.layer.{{layer}}"')
    try:
        return Stack(**{"exact": exact, **values})
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def table_of(stack: Stack) -> dict[str, Any]:
    """A stack as JSON has it, values that are the default left out."""
    values = {f.name: (getattr(stack, f.name), {} if f.default is MISSING else f.default) for f in fields(Stack)}
    return {name: _plain(value) for name, (value, default) in values.items() if value != default}


def _plain(value: Any) -> Any:
    if isinstance(value, Heads):
        return {name: _plain(one) for name, one in vars(value).items() if one}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _typed(key: str, value: Any, default: Any) -> Any:
    """`value` in the type of the field; raises TypeError."""
    if key == "heads":
        return tuple(heads_of(_table(one)) for one in _instance(value, list))
    if key == "layouts":
        return tuple(_strings(one) for one in _instance(value, list))
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


# --- names in GGUF files ---------------------------------------------------------------------------------------------

BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,8})\.(.+)\Z")
_EXPERT = re.compile(r"(.+)\.(0|[1-9]\d{0,8})\Z")


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
        norm_shift: what the converter added to the weight of every norm.
        model_type: the Hugging Face `model_type`, filled in from the family's row.
    """

    architecture: str
    blocks: str
    inner: Mapping[str, str]
    outer: Mapping[str, str]
    when: str = ""
    swapped: tuple[str, ...] = ()
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
    norm_shift: float = 0.0
    model_type: str = ""

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


# --- one family ------------------------------------------------------------------------------------------------------

Causal = Literal["always", "is_decoder", "never"]


@dataclass(frozen=True)
class Specification:
    """Dimensions that a paper names, for one checkpoint of a family.

    Attributes:
        n_layers, hidden_size: the shape it is for.
        ranges: (first layer, last layer (included), dimension); layers counted from 1 as in the paper, where layer 1 is
            the output of the first block.
        source: section of the paper.
        note: what the paper leaves open.
        model_type: the family's, filled in by the table.
    """

    n_layers: int
    hidden_size: int
    ranges: tuple[tuple[int, int, int], ...]
    source: str
    note: str = ""
    model_type: str = ""

    @property
    def dims(self) -> dict[str, tuple[int, ...]]:
        """{layer's name: dimensions}, layers counted from 0: the output of the first block is "0"."""
        layers = range(min(first for first, *_ in self.ranges) - 1, max(last for _, last, _ in self.ranges))
        found = {
            str(layer): tuple(sorted({dim for first, last, dim in self.ranges if first - 1 <= layer < last}))
            for layer in layers
        }
        return {layer: dims for layer, dims in found.items() if dims}


@dataclass(frozen=True)
class Family:
    """A row of the table: what no experiment shows of a family.

    Attributes:
        stacks: its residual streams by its config, for a family that no experiment takes apart.
        amended: a derived stream with what the experiment does not see of it.
        prefix: module name with which its parameters start (transformers' base_model_prefix), and those of families that
            declare the same alone.
        tables: what a row of an embedding table stands for ("token", "position", "segment", …), by the last part of the
            table's name, where that name is none of `rows.TABLES`.
        first_position: row of the position table that position 0 reads; "padding" is the row after the padding token's.
        counts_skipped: the config's number of positions is the height of that table, rows before the first included.
        causal: when a class named as a causal model attends to the left alone: always, where the config says is_decoder,
            or never.
        head_reads_last: its sequence head reads the last position, padding or not.
        shorten: cuts lists of layers that have a form of their own, in a config's values, to a number of blocks.
        vocabulary: file of a tokenizer that tells it from the families that share its streams.
        renamed: parameter -> its newer name, where files of both ages are about.
        gguf: how llama.cpp's converters store it; several where one family has several layouts.
        clipped: dimensions that papers name, by the name to ask for.
    """

    stacks: Callable[[Config], tuple[Stack, ...]] | None = None
    amended: Callable[[Config, Stack], Stack] | None = None
    prefix: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)
    first_position: int | Literal["padding"] = 0
    counts_skipped: bool = False
    causal: Causal = "always"
    head_reads_last: bool = False
    shorten: Callable[[dict[str, Any], int], None] | None = None
    vocabulary: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    gguf: tuple[Gguf, ...] = ()
    clipped: Mapping[str, Specification] = field(default_factory=dict)


# --- which configs a derived row serves ------------------------------------------------------------------------------

WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")  # what configs call the width of their only stream
# What every config has beside the structure of its model, and what changes no name and no place of a write.
_BESIDE = (
    "token", "dropout", "drop", "output_", "use_cache", "return_dict", "id2label", "label2id", "problem_type", "architectures",
    "transformers_version", "dtype", "_name_or_path", "auto_map", "initializer", "init", "rope", "tie_word", "pretraining_tp",
    "is_decoder", "chunk_size", "model_type", "act", "attn_implementation", "quantization", "gradient", "finetuning_task",
    "task_specific", "router_aux", "aux_loss", "mask_", "loss", "labels", "name", "prefix", "tokenizer",
    "out_features", "out_indices", "n_inner", "intermediate_size", "head_dim", "conv_bias",
    "feat_extract", "norm_topk",
)  # fmt: skip


_EVERY = ("step", "freq", "frequency", "interval", "period", "every_n_layers")


def structure(config: Config) -> dict[str, Any]:
    """What of a config says how its model is built: switches, kinds, every how many layers, and which numbers are 0; no size.

    Of embeddings it says whether they are as wide as the stream.
    """
    found: dict[str, Any] = {}
    width = next((config[key] for key in WIDTHS if key in config), None)
    for key, value in config.items():
        name = str(key)
        if "embed" in name and ("size" in name or "dim" in name) and type(value) is int and width:
            found[name] = "as wide" if value == width else "another width"
        if "key_value_heads" in name or "kv_heads" in name:  # a row of several serves one, and not the other way round
            found[name] = ["one"] if value == 1 else ["one", "several"]
        if name in found or any(word in name for word in _BESIDE):
            continue
        kind = structure(value) if isinstance(value, Mapping) else _kind(value)
        if type(value) is int and name.endswith(_EVERY):
            kind = value
        if kind is not None and kind != {}:
            found[str(key)] = kind
    return found


def _kind(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return bool(value)  # a switch that is not set is off
    if isinstance(value, str):
        return value if len(value) < 40 else None
    if isinstance(value, int):
        return value > 0
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return sorted(set(value))
    if isinstance(value, list | tuple) and all(isinstance(one, int) for one in value):
        return bool(value)
    return None
