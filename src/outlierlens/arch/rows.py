"""THE table: `model_type` -> the residual streams of that family.

A row is a tuple of `Stack`s, or a function of the config where the layout depends on it.
To add a family: one entry here, one tiny config in `tests/architectures.py`; see CONTRIBUTING.md.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from outlierlens.arch.stack import Stack
from outlierlens.errors import UnknownArchitecture

Config = Mapping[str, Any]
Row = tuple[Stack, ...] | Callable[[Config], tuple[Stack, ...]]

BERT = Stack(
    blocks="encoder.layer.{layer}",
    norm_site="stream",
    last_norm="output.LayerNorm",
    last_linear=("output.dense",),
    other_writes=("attention.output.dense",),
    other_norms=("attention.output.LayerNorm",),
    embeddings=("embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings"),
    embedding_norm="embeddings.LayerNorm",
)
DISTILBERT = Stack(
    blocks="transformer.layer.{layer}",
    layers="n_layers",
    norm_site="stream",
    last_norm="output_layer_norm",
    last_linear=("ffn.lin2",),
    other_writes=("attention.out_lin",),
    other_norms=("sa_layer_norm",),
    embeddings=("embeddings.word_embeddings", "embeddings.position_embeddings"),
    embedding_norm="embeddings.LayerNorm",
)
MPNET = Stack(
    blocks="encoder.layer.{layer}",
    norm_site="stream",
    last_norm="output.LayerNorm",
    last_linear=("output.dense",),
    other_writes=("attention.attn.o",),
    other_norms=("attention.LayerNorm",),
    embeddings=("embeddings.word_embeddings", "embeddings.position_embeddings"),
    embedding_norm="embeddings.LayerNorm",
)
GPT2 = Stack(
    blocks="h.{layer}",
    layers="n_layer",
    last_linear=("mlp.c_proj",),
    other_writes=("attn.c_proj",),
    reading_norms=("ln_1", "ln_2"),
    embeddings=("wte", "wpe"),
    final_norm="ln_f",
    weight_is_in_by_out=True,
)
LLAMA = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.down_proj",),
    other_writes=("self_attn.o_proj",),
    reading_norms=("input_layernorm", "post_attention_layernorm"),
    embeddings=("embed_tokens",),
    final_norm="norm",
)

ARCHITECTURES: dict[str, Row] = {
    "bert": (BERT,),
    "distilbert": (DISTILBERT,),
    "mpnet": (MPNET,),
    "gpt2": (GPT2,),
    "llama": (LLAMA,),
}


def stacks_of(config: Config, where: str = "config.json") -> tuple[Stack, ...]:
    """The streams declared for `config["model_type"]`; `where` names the config in the error.

    Raises:
        UnknownArchitecture: no row; the message names the nearest rows and the remedies.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnknownArchitecture(
            f"no model_type in {where}; pass --arch row.toml (`outlierlens scan --propose` drafts one)"
        )
    row = ARCHITECTURES.get(model_type)
    if row is None:
        near = difflib.get_close_matches(model_type, ARCHITECTURES, n=3, cutoff=0.4)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise UnknownArchitecture(
            f"unknown model_type {model_type!r} in {where}; pass --arch row.toml (`outlierlens scan --propose` drafts "
            f"one) or add a row to ARCHITECTURES (arch/rows.py){hint}"
        )
    return row(config) if callable(row) else row
