"""What fp16 does not hold, listed for tools: exactly the module that was planted, in files that do what they say.

Rounded caches: numbers by hand, layers with a large key bias lose most, whatever shares a batch.
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from architectures import FAMILIES, build
from outlierlens.analyses.plan_exports import Target, WideModules, wide_export
from outlierlens.analyses.range import CacheError, RangeOptions, range_of
from outlierlens.analyses.range_pass import CacheErrors
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects, load_model
from outlierlens.statistics.ranks import spearman
from planted import some_texts

PLANTED = "model.layers.1.mlp"


def planted(folder: Path, words: Any, *, factor: float = 400.0, part: str = "inner") -> str:
    """A tiny Llama whose gate times up of layer 1 passes 65,504 though both fit, or whose gate alone does."""
    model = build(replace(FAMILIES["llama"]), "CausalLM")
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        if part == "inner":
            mlp.gate_proj.weight.mul_(factor)
            mlp.up_proj.weight.mul_(factor)
            mlp.down_proj.weight.mul_(factor**-2)
        else:
            mlp.gate_proj.weight.mul_(1e5)
            mlp.up_proj.weight.mul_(1e-3)
            mlp.down_proj.weight.mul_(1e-2)
    model.save_pretrained(folder)
    words(kind="causal").save_pretrained(folder)
    return str(folder)


TEXTS = Texts("hand", tuple(" ".join(f"w{i + j}" for j in range(6)) for i in range(8)))


def finite(loaded: LoadedModel) -> bool:
    """Whether logits are, with float32 weights in torch.autocast of float16."""
    read = loaded.tokenizer(TEXTS.texts[0], return_tensors="pt")
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        return bool(loaded.model(**read).logits.isfinite().all())


@pytest.mark.parametrize(("part", "kept", "linears"), [
    ("inner", (PLANTED,), {f"{PLANTED}.down_proj"}),
    ("gate", (f"{PLANTED}.gate_proj",), {f"{PLANTED}.gate_proj"}),
])  # fmt: skip
def test_exactly_the_planted_module_is_listed_and_autocast_is_finite_with_it(
    part: str, kept: tuple[str, ...], linears: set[str], tmp_path: Path, words: Any, run: Any
) -> None:
    folder = planted(tmp_path / "model", words, part=part)
    loaded = load_model(folder)
    found = range_of(loaded, TEXTS)
    assert found.float32 == kept
    assert {one.module for one in found.beyond if not one.norm} == linears
    assert any(f"Keep in float32 where all else is fp16: {kept[0]};" in one for one in found.sentences())
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS.texts))
    file = tmp_path / "keep.py"
    code, _, err = run("range", folder, "--data", str(tmp_path / "texts.txt"), "--export", f"autocast:{file}")
    assert code == 0
    assert "1 modules that torch.autocast keeps in float32" in err
    assert not finite(loaded)
    written: dict[str, Any] = {}
    exec(file.read_text("utf-8"), written)
    assert written["MODULES"] == list(kept)
    written["keep_float32"](loaded.model)
    assert finite(loaded)


def test_a_model_that_fits_has_an_empty_list(model_folder: Any) -> None:
    found = range_of(load_model(model_folder("llama")), TEXTS)
    assert found.beyond == ()
    text, remarks = wide_export("autocast", WideModules(found.float32), Target(model="m", config={}, linears=()))
    assert "MODULES = [\n]" in text
    assert remarks == ()


def test_products_of_queries_and_keys_put_the_attention_into_float32(tmp_path: Path, words: Any) -> None:
    model = build(FAMILIES["llama"], "CausalLM")
    with torch.no_grad():
        for name in ("q_proj", "k_proj"):
            getattr(model.model.layers[2].self_attn, name).weight.mul_(1000.0)
    model.save_pretrained(tmp_path)
    words(kind="causal").save_pretrained(tmp_path)
    assert range_of(load_model(str(tmp_path)), TEXTS).float32 == ("model.layers.2.self_attn",)


def test_what_only_a_norm_sums_up_stands_in_the_files_of_tools_that_sum_in_fp16(tmp_path: Path, words: Any) -> None:
    model = build(FAMILIES["llama"], "CausalLM")
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(300.0)
    model.save_pretrained(tmp_path)
    words(kind="causal").save_pretrained(tmp_path)
    found = range_of(load_model(str(tmp_path)), TEXTS)
    norms = tuple(one.module for one in found.beyond)
    assert "model.norm" in norms
    assert all(one.norm for one in found.beyond)
    target = Target(model="m", config={}, linears=())
    assert "model.norm" in wide_export("onnxruntime", WideModules((), norms), target)[0]
    text, (remark,) = wide_export("autocast", WideModules((), norms), target)
    assert "model.norm" not in text
    assert "torch.autocast holds in float32" in remark


def exported(folder: Path, words: Any) -> Path:
    """Two linears under the names that torch's exporter gives, in an ONNX file."""
    floats = onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "a"], ["y"], "/model/layers.1/mlp/down_proj/MatMul"),
        onnx.helper.make_node("Mul", ["y", "y"], ["z"], "/model/layers.1/mlp/Mul"),
        onnx.helper.make_node("MatMul", ["z", "a"], ["w"], "/model/layers.10/mlp/down_proj/MatMul"),
        onnx.helper.make_node("MatMul", ["w", "a"], ["v"], "node_MatMul_7"),
    ]
    scopes = nodes[-1].metadata_props.add()
    scopes.key = "pkg.torch.onnx.name_scopes"
    scopes.value = "['', 'model', 'model.layers.1', 'model.layers.1.mlp', 'model.layers.1.mlp.up_proj', 'linear_3']"
    table = onnx.helper.make_tensor("a", floats, (2, 2), [1.0] * 4)
    ends = [[onnx.helper.make_tensor_value_info(name, floats, (1, 2))] for name in "xv"]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", *ends, [table])), folder / "model.onnx")
    return folder / "model.onnx"


OWN = ["/model/layers.1/mlp/down_proj/MatMul", "/model/layers.1/mlp/Mul", "node_MatMul_7"]


def test_an_onnx_file_gives_its_own_node_names(tmp_path: Path, words: Any) -> None:
    file = exported(tmp_path, words)
    target = Target(model="m", config={}, linears=())
    text, remarks = wide_export("onnxruntime", WideModules((PLANTED,), file=file), target)
    written: dict[str, Any] = {}
    exec(text, written)
    assert written["NODES"] == written["node_names"](onnx.load(file), written["MODULES"]) == OWN
    assert remarks == ()
    # A file without the head's prefix; and one whose nodes are called otherwise.
    assert f"'{OWN[0]}'" in wide_export("onnxruntime", WideModules((f"lm.{PLANTED}",), file=file), target)[0]
    (remark,) = wide_export("onnxruntime", WideModules(("encoder.layer.3",), file=file), target)[1]
    assert "no node is called after these modules" in remark
    line = wide_export("tensorrt", WideModules((PLANTED,), file=file), target)[0].splitlines()[1]
    assert line.startswith(
        f"# trtexec --fp16 --precisionConstraints=obey --layerPrecisions={OWN[0]}:fp32,{OWN[1]}:fp32"
    )


def test_tensorrt_gets_the_precision_of_its_layers(tmp_path: Path) -> None:
    text, _ = wide_export("tensorrt", WideModules((PLANTED,)), Target(model="m", config={}, linears=()))
    written: dict[str, Any] = {}
    exec(text, written)
    names = ["/model/layers.1/mlp/Mul", "/model/layers.11/mlp/Mul"]
    layers = [SimpleNamespace(name=name, precision="half", num_outputs=2, set={}) for name in names]
    for one in layers:
        one.set_output_type = one.set.__setitem__
    network = SimpleNamespace(num_layers=2, get_layer=layers.__getitem__)
    written["keep_float32"](network, "float32")
    assert [(one.precision, one.set) for one in layers] == [("float32", {0: "float32", 1: "float32"}), ("half", {})]


def test_llama_quantize_gets_a_type_for_each_linear() -> None:
    target = Target(model="m", config={"model_type": "llama"}, linears=(f"{PLANTED}.down_proj",))
    text, _ = wide_export("gguf", WideModules((PLANTED,), (), target.linears), target)
    assert text == "blk\\.1\\.ffn_down\\.weight=f32\n"
    with pytest.raises(BadInput, match="has no name in GGUF"):
        wide_export("gguf", WideModules((), (), ("model.layers.1.mlp.experts.down_proj",)), target)


def test_a_list_without_a_run_is_refused(run: Any) -> None:
    assert "--weights runs nothing" in run("range", "mini-planted", "--weights", "--export", "autocast:x.py")[2]
    assert "there are autocast, onnxruntime, tensorrt" in run("range", "mini-planted", "--export", "torchao:x.py")[2]


LAYERS = 12
CONFIG = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


def qwen(words: Any, seed: int, sizes: np.ndarray) -> LoadedModel:
    """A tiny Qwen2 whose key biases have one large entry each, of these sizes [layer], in a random channel."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=40, intermediate_size=48, num_hidden_layers=LAYERS, **CONFIG)
    ).eval()
    places = np.random.default_rng(seed).integers(0, 16, LAYERS)
    with torch.no_grad():
        for block, size, place in zip(model.model.layers, sizes.tolist(), places.tolist(), strict=True):
            block.self_attn.k_proj.weight.normal_(0, 0.2)
            block.self_attn.k_proj.bias.normal_(0, 0.1)
            block.self_attn.k_proj.bias[place] = size
    return from_objects(model, words(), name="qwen")


def test_rounding_by_hand() -> None:
    # int8, one step per token: 127 and 0.25 share a step of 1, so 0.25 is lost; padding counts nowhere.
    keys = torch.tensor([[[127.0, 0.25], [127.0, -0.25], [900.0, 900.0]]])
    errors = CacheErrors()
    errors.add(4, "k", keys, torch.tensor([[True, True, False]]))
    (row,) = (CacheError(**one) for one in errors.relative())
    assert (row.layer, row.tensor) == (4, "k")
    assert row.whole["int8_token"] == pytest.approx(0.25 / math.hypot(127, 0.25))
    assert row.int8_token == 0.0  # the lower of two channels: 0 and 1
    wide = torch.tensor([[[127.0, 0.25, 0.125]]])
    errors = CacheErrors()
    errors.add(0, "v", wide, torch.tensor([[True]]))
    (row,) = (CacheError(**one) for one in errors.relative())
    assert row.int8_token == row.int8_tensor == 1.0
    assert row.int8_channel == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_layers_with_a_large_key_bias_lose_most(seed: int, words: Any) -> None:
    sizes = np.random.default_rng(seed).permutation(np.geomspace(1.0, 600.0, LAYERS))
    found = range_of(qwen(words, seed, sizes), some_texts(6, seed=seed), RangeOptions(cache=True))
    for number in ("int8", "int4"):
        lost = [getattr(one, f"{number}_token") for one in found.cache if one.tensor == "k"]
        assert spearman(sizes, np.array(lost)) >= 0.9
    assert max(one.int8_token for one in found.cache if one.tensor == "v") < 0.05  # their biases are none


def test_weights_and_cache_exclude_each_other() -> None:
    with pytest.raises(BadInput, match="--cache runs the model and --weights does not"):
        RangeOptions(cache=True, weights=True)
