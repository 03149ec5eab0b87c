"""Binding declared rows to names: prefixes, wrappers, old names, experts, errors; and rows written as TOML."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES, build
from outlierlens.architectures import (
    NO_EXPERT,
    Param,
    Stack,
    bind,
    expert_of,
    last_linears,
    live_parameters,
    load_toml,
    stacks_of,
    to_toml,
)
from outlierlens.architectures.rows import packaged_stacks
from outlierlens.architectures.stack import Heads
from outlierlens.errors import BadFile, BadInput, UnknownArchitecture

BERT, GPT2, LLAMA, MIXTRAL = (
    packaged_stacks({"model_type": name})[0][0] for name in ("bert", "gpt2", "llama", "mixtral")
)


def names_of(layers: int = 2, prefix: str = "", norm: tuple[str, str] = ("weight", "bias")) -> list[str]:
    """Parameter names of a BERT as a file may have them."""
    modules = ("output.LayerNorm", "attention.output.LayerNorm")
    linears = ("output.dense", "attention.output.dense")
    blocks = [f"{prefix}encoder.layer.{layer}" for layer in range(layers)]
    return [f"{block}.{module}.{leaf}" for block in blocks for module in modules for leaf in norm] + [
        f"{block}.{linear}.{leaf}" for block in blocks for linear in linears for leaf in ("weight", "bias")
    ]


@pytest.mark.parametrize(
    "prefix", ["", "bert.", "module.bert.", "_orig_mod.bert.", "_orig_mod.module.bert.", "0.auto_model."]
)
def test_prefixes(prefix: str) -> None:
    (stack,) = bind((BERT,), names_of(prefix=prefix))
    assert stack.prefix == prefix
    assert stack.blocks == (f"{prefix}encoder.layer.0", f"{prefix}encoder.layer.1")
    assert stack.bias[1] == (Param(f"{prefix}encoder.layer.1.output.LayerNorm.bias"),)


def test_the_prediction_heads_norm_is_no_layer() -> None:
    (stack,) = bind((BERT,), [*names_of(prefix="bert."), "cls.predictions.transform.LayerNorm.weight"])
    assert stack.n_layers == 2


def test_wrappers_around_blocks_are_looked_through() -> None:
    model = build(FAMILIES["llama"])
    plain = list(live_parameters(model))
    wrapped = [name.replace("layers.1.", "layers.1._orig_mod.") for name in plain]
    (stack,) = bind((LLAMA,), wrapped)
    assert stack.scale[1] == (Param("layers.1._orig_mod.mlp.down_proj.weight", axis=-2),)
    assert stack.scale[0] == (Param("layers.0.mlp.down_proj.weight", axis=-2),)
    assert stack.blocks == ("layers.0", "layers.1", "layers.2")


def test_a_compiled_model_binds() -> None:
    model = torch.compile(build(FAMILIES["gpt2"]), backend="eager")
    (stack,) = bind((GPT2,), live_parameters(model))
    assert stack.prefix == "_orig_mod."
    assert all(param.name in live_parameters(model) for layer in stack.writes for param in layer)


def test_gamma_and_beta() -> None:
    (stack,) = bind((BERT,), names_of(norm=("gamma", "beta")))
    assert stack.scale[0] == (Param("encoder.layer.0.output.LayerNorm.gamma"),)
    assert stack.bias[0] == (Param("encoder.layer.0.output.LayerNorm.beta"),)
    assert Param("encoder.layer.0.attention.output.LayerNorm.beta") in stack.writes[0]


def test_gemma_norms_are_off_at_minus_one() -> None:
    (stack,) = bind(stacks_of({"model_type": "gemma2"}), live_parameters(build(FAMILIES["gemma2"])))
    assert stack.scale[0] == (Param("layers.0.post_feedforward_layernorm.weight", off=-1.0),)
    assert [param.off for param in stack.reading[0]] == [-1.0, -1.0]
    assert [param.off for param in stack.final_norm] == [-1.0]


def test_experts_are_stored_in_either_layout() -> None:
    stem = "model.layers.{}.block_sparse_moe.experts.{}.w2.weight"
    names = [stem.format(layer, expert) for layer in (0, 1) for expert in (0, 1, 2)]
    (stack,) = bind((MIXTRAL,), names, {"num_local_experts": 3})
    assert stack.scale[1] == tuple(Param(stem.format(1, expert), axis=-2) for expert in (0, 1, 2))
    with pytest.raises(
        BadFile, match="2 experts but the config's num_local_experts is 3; the checkpoint is incomplete"
    ):
        bind((MIXTRAL,), names[:-1], {"num_local_experts": 3})


def test_numbered_experts_that_a_row_does_not_name_are_bound_too() -> None:
    dense, sparse = "ffn.fc2", "ffn.experts.expert_{}.fc2"
    row = Stack(
        blocks="layers.{layer}", last_linear=(dense, sparse.format(0), sparse.format(1)),
        layouts=((dense,), (sparse.format(0), sparse.format(1))),
    )  # fmt: skip
    names = [f"layers.0.{dense}.weight", *(f"layers.1.{sparse.format(expert)}.weight" for expert in range(12))]
    (stack,) = bind((row,), names)
    assert [param.name for param in stack.scale[1]] == names[1:]
    mlps = last_linears(stack, {name: np.zeros((4, 8)) for name in names})
    assert [one.row for one in mlps] == ["0", *(f"1:{expert}" for expert in range(12))]
    assert {one.param.axis for one in mlps} == {-1}
    assert expert_of(names[0]) == NO_EXPERT


def test_errors_of_binding() -> None:
    names = names_of(layers=4)
    with pytest.raises(BadFile, match=r"layers \[1\] of encoder.layer.{layer} are missing while layer 3 is there"):
        bind((BERT,), [name for name in names if "layer.1." not in name])
    with pytest.raises(BadFile, match="4 layers are stored but the config's num_hidden_layers is 12"):
        bind((BERT,), names, {"num_hidden_layers": 12})
    with pytest.raises(BadFile, match=r"several prefixes, 'query\.', 'text\.'; pass --model-args arch=row\.toml"):
        bind((BERT,), [*names_of(prefix="text."), *names_of(prefix="query.")])
    with pytest.raises(BadFile, match=r"encoder\.layer\.2\.output\.LayerNorm\.weight is missing while other layers"):
        bind((BERT,), [name for name in names if name != "encoder.layer.2.output.LayerNorm.weight"])
    with pytest.raises(BadFile, match=r"encoder\.layer\.3\.output\.LayerNorm\.bias is missing while other layers"):
        bind((BERT,), [name for name in names if name != "encoder.layer.3.output.LayerNorm.bias"])
    with pytest.raises(
        UnknownArchitecture, match=r"no parameter matches h\.\{layer\}\.mlp\.c_proj\.weight; names that look"
    ):
        bind((GPT2,), names)
    with pytest.raises(UnknownArchitecture, match=r"packed by a quantizer \(vptq\): take a copy of the model in full"):
        bind((LLAMA,), ["layers.0.mlp.down_proj.indices"], {"quantization_config": {"quant_method": "vptq"}})
    both = replace(LLAMA, last_linear=("mlp.down_proj", "mlp.experts.down_proj()"))
    with pytest.raises(
        BadFile, match=r"layers\.0\.mlp\.experts\.down_proj is missing; the checkpoint is incomplete, or"
    ):
        bind((both,), ["layers.0.mlp.down_proj.weight"])
    plain, crossed = (
        replace(stack, embeddings=(), embedding_norm="", exact=True)
        for cross in (False, True)
        for ((stack,),) in [packaged_stacks({"model_type": "bert", "add_cross_attention": cross})]
    )
    cross = (
        r"the row names crossattention\.output\.LayerNorm\.weight, crossattention\.output\.dense\.weight, and the model"
    )
    with pytest.raises(UnknownArchitecture, match=cross):
        bind((crossed,), names)
    assert bind((plain,), names)
    for wrong in (
        {"other_writes": ("attention.output.dens",)},
        {"reading_norms": ("norm",)},
        {"embeddings": ("embeddings.words",)},
        {"embedding_linears": ("project",)},
        {"final_norm": "norm"},
        {"write_scales": {"output.dense": "scale"}},
        {"write_scales": {"output.dens": "output.dense.bias"}},
    ):
        with pytest.raises(UnknownArchitecture, match="correct the row, or write exact = false into it"):
            bind((replace(plain, **wrong),), names)  # type: ignore[arg-type]
    many = [f"layers.{layer}.mlp.down_proj.weight" for layer in range(4097)]
    with pytest.raises(BadFile, match=r"4,097 layers"):
        bind((LLAMA,), many)


def test_errors_of_the_table() -> None:
    with pytest.raises(
        UnknownArchitecture,
        match=r"config\.json: transformers .* has no model_type 'qwen4'.*pass --model-args arch=row\.toml; near: qwen",
    ):
        stacks_of({"model_type": "qwen4"})
    with pytest.raises(UnknownArchitecture, match=r"no model_type in here; name the family that it is built like"):
        stacks_of({}, where="here")


def test_a_bound_dimension_count_is_by_hand() -> None:
    assert Param("a", axis=-2).values_per_dim((3, 16, 24)) == 72
    assert Param("a", axis=0).values_per_dim((16, 2, 8)) == 16
    assert Param("a").values_per_dim((16,)) == 1


ROW = """
[[stack]]
blocks = "encoder.layer.{layer}"
norm_site = "stream"
last_norm = "output.LayerNorm"
last_linear = ["output.dense"]
norm_offset = 1
axes = { "output.dense.weight" = -1 }
stored_as = { "output.dense.weight" = ["fc.weight"] }
readers = { "norm" = ["fc", "gate[1/2]"] }
heads = [{ output = "out", value = ["qkv[head v]", "v_bias()"], key = ["k"], query = ["q"], rotary = "neighbours" }]
"""


def test_rows_from_toml(tmp_path: Any) -> None:
    path = tmp_path / "row.toml"
    path.write_text(ROW)
    (stack,) = load_toml(path)
    path.write_text(to_toml((stack,)))
    assert load_toml(path) == (stack,)
    assert stack.exact
    path.write_text("[[stack]]\nexact = false\n" + ROW.partition("[[stack]]\n")[2])
    assert not load_toml(path)[0].exact
    assert stack == replace(
        BERT,
        other_writes=(),
        other_norms=(),
        embeddings=(),
        embedding_norm="",
        rectified={},
        readers={"norm": ("fc", "gate[1/2]")},
        heads=(Heads("out", ("qkv[head v]", "v_bias()"), ("k",), ("q",), rotary="neighbours"),),
        norm_offset=1.0,
        axes={"output.dense.weight": -1},
        stored_as={"output.dense.weight": ("fc.weight",)},
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'last_linear = ["output.dense"]',
            'last_linear = "output.dense"',
            "last_linear = 'output.dense' has the wrong type",
        ),
        ("norm_offset = 1", "norm_offset = true", "norm_offset = True has the wrong type"),
        ('["fc.weight"]', '"fc.weight"', "stored_as = .* has the wrong type"),
        ("= -1 }", '= "last" }', "axes = .* has the wrong type"),
        ('"neighbours"', '"others"', "heads = .* has the wrong type"),
        ('key = ["k"]', 'key = "k"', "heads = .* has the wrong type"),
        ("norm_offset = 1", "norm_ofset = 1", "unknown key 'norm_ofset'"),
        ('"stream"', '"both"', "norm_site is 'both'; use stream, write or read"),
        ('last_norm = "output.LayerNorm"', "", "needs last_norm"),
        ('last_linear = ["output.dense"]', "", "last_linear is missing"),
        ("layer.{layer}", "layer", "has no {layer}"),
        ('blocks = "encoder.layer.{layer}"', "", "needs `blocks`"),
        ("[[stack]]", "[stack]", r"holds no \[\[stack\]\] table"),
        ("[[stack]]", 'stack = ["bert"]', r"holds no \[\[stack\]\] table"),
        ("[[stack]]", "[[stack", "cannot be read as TOML"),
    ],
)
def test_errors_in_toml(tmp_path: Any, old: str, new: str, message: str) -> None:
    path = tmp_path / "row.toml"
    assert old in ROW
    path.write_text(ROW.replace(old, new))
    with pytest.raises(BadInput, match=message) as caught:
        load_toml(path)
    assert str(path) in str(caught.value)
