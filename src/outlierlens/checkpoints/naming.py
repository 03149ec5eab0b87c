"""Names of tensors that are not Hugging Face's: Llama's own, Megatron's, Flax's; and the parts that ranks hold, joined.

    named([rank_0, rank_1], config, facts, "consolidated.00.pth")     # (tensors, config, whether anything changed)
    of_flax({"h.0.mlp.kernel": tensor})                               # {"h.0.mlp.weight": its transpose}

Only what is exact is renamed: where one name is unknown, all stay as they are, and a row by hand can name them
(`--model-args arch=row.toml`). Queries and keys that are stored in another order of rows are put into that of Hugging Face, so
that the model also runs.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from outlierlens.checkpoints.base import Checkpoint, LocalCheckpoint
from outlierlens.checkpoints.pieces import Piece, PiecedCheckpoint, PiecedTensor, join, strides_of
from outlierlens.checkpoints.stored import plain_names
from outlierlens.errors import BadFile

State = Mapping[str, PiecedTensor]
LLAMA = {
    "attention.wq": ("self_attn.q_proj", 0), "attention.wk": ("self_attn.k_proj", 0), "attention.wv": ("self_attn.v_proj", 0),
    "attention.wo": ("self_attn.o_proj", 1), "feed_forward.w1": ("mlp.gate_proj", 0), "feed_forward.w2": ("mlp.down_proj", 1),
    "feed_forward.w3": ("mlp.up_proj", 0), "attention_norm": ("input_layernorm", None),
    "ffn_norm": ("post_attention_layernorm", None),
}  # fmt: skip
_LLAMA_OUTER = {"tok_embeddings": ("model.embed_tokens", 1), "norm": ("model.norm", None), "output": ("lm_head", 0)}
# Megatron's modules of a layer, since 2019 and in its core, -> their role and the axis that ranks cut.
MEGATRON = {
    "input_layernorm": ("norm1", None), "self_attention.linear_qkv.layer_norm": ("norm1", None),
    "post_attention_layernorm": ("norm2", None), "pre_mlp_layernorm": ("norm2", None),
    "mlp.linear_fc1.layer_norm": ("norm2", None),
    "attention.query_key_value": ("qkv", 0), "self_attention.query_key_value": ("qkv", 0),
    "self_attention.linear_qkv": ("qkv", 0), "attention.dense": ("out", 1), "self_attention.dense": ("out", 1),
    "self_attention.linear_proj": ("out", 1), "mlp.dense_h_to_4h": ("up", 0), "mlp.linear_fc1": ("up", 0),
    "mlp.dense_4h_to_h": ("down", 1), "mlp.linear_fc2": ("down", 1),
}  # fmt: skip
# Role -> name in models like Llama and like GPT-2.
_ROLES = {
    "norm1": ("input_layernorm", "ln_1"), "norm2": ("post_attention_layernorm", "ln_2"),
    "out": ("self_attn.o_proj", "attn.c_proj"), "down": ("mlp.down_proj", "mlp.c_proj"),
    "table": ("model.embed_tokens", "transformer.wte"), "positions": ("", "transformer.wpe"),
    "final": ("model.norm", "transformer.ln_f"), "head": ("lm_head", "lm_head"),
}  # fmt: skip
_OUTER = {
    "embedding.word_embeddings": ("table", 0), "embedding.position_embeddings": ("positions", None),
    "final_layernorm": ("final", None), "output_layer": ("head", 0),
}  # fmt: skip
_IN_MEGATRON = re.compile(
    r"(?:language_model\.)?(?:(?:encoder|transformer|decoder)\.)?(?:layers\.(\d+)\.)?(.+?)[._](weight|bias)"
)
_ANCHORS = (".attention.wo.weight", ".mlp.linear_fc2.weight")
_NO_WEIGHTS = re.compile(r"rope\.freqs|.*(?:_extra_state|inv_freq)(?:\d*)")


def named(
    ranks: Sequence[State], config: Mapping[str, Any], facts: Mapping[str, Any], where: str
) -> tuple[dict[str, PiecedTensor], dict[str, Any], bool]:
    """(Tensors of the whole model by Hugging Face's names where these are known, its config completed, whether they changed).

    `facts` are those of `trainers.facts_of`.

    Raises:
        BadFile: the ranks do not make one model, or nothing says how many heads its attention has.
    """
    config = dict(config)
    n_ranks = facts.get("tensor_model_parallel_size", len(ranks))
    if n_ranks != len(ranks):
        raise BadFile(f"{where}: is of {n_ranks} ranks, and {len(ranks)} of them are there; put the others beside it")
    states = [{plain: state[name] for plain, name in plain_names(state, config).items()} for state in ranks]
    states = [{name: one for name, one in state.items() if not _NO_WEIGHTS.fullmatch(name)} for state in states]
    rule = _rule(states[0], config, facts)
    if rule is None and len(ranks) == 1:
        return dict(ranks[0]), config, False
    if rule is None:
        raise BadFile(
            f"{where}: is one of {len(ranks)} ranks, and its names are not those of a model whose cuts are known; save the "
            "model as one"
        )
    tensors: dict[str, PiecedTensor] = {}
    try:
        for name, first in states[0].items():
            axis = rule.axis(name)
            whole = first if axis is None else join([state[name] for state in states], axis)
            made = rule.renamed(name, whole, len(ranks))
            if twice := tensors.keys() & made.keys():
                raise ValueError(f"{twice.pop()} is there twice")
            tensors |= made
        return tensors, rule.completed(config, tensors), True
    except KeyError as error:
        raise BadFile(f"{where}: {error} is not in every rank; they are not of one model") from None
    except (ValueError, IndexError) as error:
        raise BadFile(f"{where}: {name}: {error}") from None


class RenamedCheckpoint(PiecedCheckpoint):
    """Tensors of another checkpoint, under other names."""

    wrapped = True

    def __init__(self, source: Checkpoint, tensors: State, config: dict[str, Any]):
        self.name, self.kind, self.config = source.name, source.kind, config
        self.total_bytes, self.bytes_read = source.total_bytes, source.bytes_read
        self._hold(tensors)


def by_usual_names(source: LocalCheckpoint, where: str) -> Checkpoint:
    """`source`, with Hugging Face's names where its own are of another house; raises BadFile as `named` does."""
    if not any(name.endswith(_ANCHORS) for name in source.tensors):
        return source
    state = {}
    for name, (path, one) in source.placed().items():
        shape = one.info.shape
        state[name] = PiecedTensor.of(Piece(path, one.start, one.info.dtype, shape, strides_of(shape)))
    tensors, config, changed = named([state], source.config, {}, where)
    return RenamedCheckpoint(source, tensors, config) if changed else source


class NamingRule(ABC):
    """How the names of one house become those of Hugging Face."""

    @abstractmethod
    def axis(self, name: str) -> int | None:
        """The axis along which ranks cut a tensor; None where each has all of it."""

    @abstractmethod
    def renamed(self, name: str, tensor: PiecedTensor, n_ranks: int) -> State:
        """What a tensor, joined of `n_ranks`, is; raises ValueError where it does not fit the settings."""

    def completed(self, config: dict[str, Any], tensors: State) -> dict[str, Any]:
        """The config with what only tensors tell."""
        return config


def _rule(state: State, config: Mapping[str, Any], facts: Mapping[str, Any]) -> NamingRule | None:
    """The rule of a state's names; None where they are of no other house, or one of them is unknown."""
    if "layers.0.attention.wo.weight" in state and "tok_embeddings.weight" in state and "norm.weight" in state:
        return _Llama(_Heads(config, {}), state) if all(map(_llama_name, state)) else None
    found = {name: role for name in state if (role := _megatron_name(name))}
    shapes = {role: state[name].shape for name, (_, role, _, leaf) in found.items() if leaf == "weight"}
    if len(found) < len(state) or not {"qkv", "out", "up", "down", "table"} <= shapes.keys():
        return None
    if not len(shapes["up"]) == len(shapes["down"]) == 2:
        return None
    if facts.get("apply_layernorm_1p"):  # norms that multiply by 1 + weight, as neither Llama nor GPT-2 does
        return None
    like_gpt2 = shapes["up"][0] == shapes["down"][-1]
    model_type = config.get("model_type", "gpt2")
    if ("positions" in shapes) != like_gpt2 or (like_gpt2 and model_type != "gpt2"):
        return None
    order = facts.get("checkpoint_version", 0)
    return _Megatron(_Heads(config, facts), config.get("vocab_size"), like=int(like_gpt2), order=order)


class _Heads:
    """Of attention: how many queries and keys, and how wide."""

    def __init__(self, config: Mapping[str, Any], facts: Mapping[str, Any]):
        told = {name: one for name, one in {**config, **facts}.items() if isinstance(one, int) and one >= 0}
        self.n = told.get("num_attention_heads") or told.get("n_head") or 0
        groups = told.get("num_query_groups") if told.get("group_query_attention", True) else None
        self.n_keys = groups or told.get("num_key_value_heads") or self.n
        hidden = told.get("hidden_size") or told.get("n_embd") or 0
        self.width = told.get("kv_channels") or told.get("head_dim") or (hidden // self.n if self.n else 0)

    def check(self, rows: int, n_heads: int) -> None:
        """Raise ValueError where a tensor with `rows` is not that of `n_heads`."""
        if not self.n:
            raise ValueError(
                "nothing says how many heads attention has; put params.json or config.json beside the file"
            )
        if n_heads * self.width != rows:
            raise ValueError(
                f"{rows:,} rows for {n_heads} heads of {self.width}; a rank is missing, or the config is another model's"
            )


class _Llama(NamingRule):
    """Meta's own files; rows of queries and keys are pairs there, and halves with Hugging Face."""

    def __init__(self, heads: _Heads, state: State):
        self.heads, self.table_axis = (
            heads,
            int(state["tok_embeddings.weight"].shape[-1:] != state["norm.weight"].shape),
        )

    def axis(self, name: str) -> int | None:
        found = _llama_name(name)
        return self.table_axis if name == "tok_embeddings.weight" else found[1] if found else None

    def renamed(self, name: str, tensor: PiecedTensor, n_ranks: int) -> State:
        new, _ = _llama_name(name) or ("", None)
        for end, n_heads in (("q_proj.weight", self.heads.n), ("k_proj.weight", self.heads.n_keys)):
            if new.endswith(end):
                self.heads.check(tensor.shape[0], n_heads)
                starts, width = range(0, tensor.shape[0], self.heads.width), self.heads.width
                tensor = join([tensor.rows(one + odd, one + width, 2) for one in starts for odd in (0, 1)], 0)
        return {new: tensor}

    def completed(self, config: dict[str, Any], tensors: State) -> dict[str, Any]:
        rows = {"vocab_size": "model.embed_tokens.weight", "intermediate_size": "model.layers.0.mlp.gate_proj.weight"}
        return {setting: tensors[name].shape[0] for setting, name in rows.items() if name in tensors} | config


def _llama_name(name: str) -> tuple[str, int | None] | None:
    """(New name, axis that ranks cut)."""
    found = re.fullmatch(r"(layers\.\d+\.)?(.+)\.(weight|bias)", name)
    new = (LLAMA if found[1] else _LLAMA_OUTER).get(found[2]) if found else None
    return (f"{'model.' + found[1] if found[1] else ''}{new[0]}.{found[3]}", new[1]) if found and new else None


class _Megatron(NamingRule):
    """Megatron's files; queries, keys and values of a group of heads stand together there, and so do gate and up."""

    def __init__(self, heads: _Heads, vocabulary: Any, *, like: int, order: float):
        """`like` is 0 for models like Llama, and 1 for GPT-2, whose linears are stored [in, out].

        `order` is Megatron's checkpoint_version: until 1, all queries come first, then all keys.
        """
        self.heads, self.vocabulary, self.like, self.order = heads, vocabulary, like, order

    def axis(self, name: str) -> int | None:
        _, _, axis, leaf = _megatron_name(name) or ("", "", None, "")
        return None if leaf == "bias" and axis == 1 else axis

    def renamed(self, name: str, tensor: PiecedTensor, n_ranks: int) -> State:
        layer, role, _, leaf = _megatron_name(name) or ("", "", None, "")
        before = f"{('model.layers.', 'transformer.h.')[self.like]}{layer}." if layer else ""
        if role == "qkv":
            return self._attention(before, leaf, tensor, n_ranks)
        if role == "up" and not self.like:
            half = tensor.shape[0] // n_ranks // 2
            parts = [[tensor.rows(n * half, (n + 1) * half) for n in range(odd, 2 * n_ranks, 2)] for odd in (0, 1)]
            return {f"{before}mlp.{one}_proj.{leaf}": join(parts[odd], 0) for odd, one in enumerate(("gate", "up"))}
        if role in ("table", "head") and isinstance(self.vocabulary, int) and self.vocabulary < tensor.shape[0]:
            tensor = tensor.rows(0, self.vocabulary)  # the rest is padding
        return self._linear(f"{before}{'mlp.c_fc' if role == 'up' else _ROLES[role][self.like]}.{leaf}", tensor)

    def _linear(self, name: str, tensor: PiecedTensor) -> State:
        return {name: tensor.transposed() if ".c_" in name and len(tensor.shape) == 2 else tensor}

    def _attention(self, before: str, leaf: str, tensor: PiecedTensor, n_ranks: int) -> State:
        queries, width = self.heads.n // max(self.heads.n_keys, 1), self.heads.width  # queries of a key
        self.heads.check(tensor.shape[0], self.heads.n_keys * (queries + 2))
        if self.order < 2:
            if self.order or n_ranks > 1 or queries > 1:
                raise ValueError(
                    f"checkpoint_version {self.order} has queries, keys and values in an order that is not read"
                )
            width *= self.heads.n
        step = (queries + 2) * width
        cuts = {"q": (0, queries * width), "k": (queries * width, step - width), "v": (step - width, step)}
        starts = range(0, tensor.shape[0], step)
        parts = {
            kind: join([tensor.rows(one + low, one + high) for one in starts], 0) for kind, (low, high) in cuts.items()
        }
        if self.like:
            return self._linear(f"{before}attn.c_attn.{leaf}", join(list(parts.values()), 0))
        return {f"{before}self_attn.{kind}_proj.{leaf}": part for kind, part in parts.items()}


def _megatron_name(name: str) -> tuple[str, str, int | None, str] | None:
    """(Layer, role, axis that ranks cut, weight or bias)."""
    found = _IN_MEGATRON.fullmatch(name)
    known = (MEGATRON if found[1] else _OUTER).get(found[2]) if found else None
    return (found[1] or "", *known, found[3]) if found and known else None


# --- Flax ------------------------------------------------------------------------------------------------------------

_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def of_flax(tensors: State) -> dict[str, PiecedTensor]:
    """Tensors by PyTorch's names: a kernel [in, out] is a weight [out, in]; that of a convolution [.., in, out] too."""
    found = {}
    for name, tensor in tensors.items():
        stem, _, leaf = name.replace("/", ".").removeprefix("params.").rpartition(".")
        n = len(tensor.shape)
        turned = leaf == "kernel" and n > 1
        found[f"{stem}.{_LEAVES.get(leaf, leaf)}" if stem else leaf] = (
            tensor.transposed(n - 1, n - 2, *range(n - 2)) if turned else tensor
        )
    return found
