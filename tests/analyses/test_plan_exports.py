"""Plans as files: read back by the tools where they are installed, by their documented grammar elsewhere."""

import json
import re
from fnmatch import fnmatch
from typing import Any, get_args

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outlierlens.analyses.plan import Reader
from outlierlens.analyses.plan_exports import TOOLS, Target, export, target_of
from outlierlens.analyses.quantize_rounding import KeptLinear
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.errors import BadInput
from outlierlens.models.load import from_objects

DOWN, PART, EIGHT = "model.layers.11.mlp.down_proj", "model.layers.1.mlp.down_proj", "model.layers.1.self_attn.q_proj"
OTHER = "model.layers.0.mlp.up_proj"
KEPT = (
    KeptLinear(path=DOWN, weights=True, inputs=True),
    KeptLinear(path=PART, weights=False, inputs=True),
    KeptLinear(path=EIGHT, weights=True, inputs=True, bits=8),
)
IDS = torch.arange(16)[None]


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, num_hidden_layers=12, **sizes)).eval()


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(from_objects(model(), name="tiny"))


def said(tool: str, scheme: str, target: Target, kept: tuple[KeptLinear, ...] = KEPT) -> str:
    return export(tool, kept, scheme=parse(scheme), target=target)[0]


def names_of(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def test_the_target_is_every_linear_and_which_are_of_blocks(target: Target) -> None:
    assert len(target.linears) == 12 * 7
    assert target.outside == ("lm_head",)
    assert DOWN in target.linears


SCHEMES = {
    "llm-compressor": "int8-tensor/int8-tensor",
    "auto-round": "int4-group64/none",
    "torchao": "int8-tensor/int8-tensor",
    "bitsandbytes": "int8-channel/int8-token",
    "gguf": "q4_0",
    "modelopt": "int8-channel/int8-tensor",
    "mlx": "int4-group64-asym/none",
}
WHOLE = ("bitsandbytes",)  # of what it is asked here, it keeps all of a linear or nothing


@pytest.mark.parametrize("tool", get_args(Reader))
def test_every_tool_refuses_in_one_line_what_it_cannot(tool: str, target: Target) -> None:
    for kept, scheme, wanted in (
        (KEPT, "e5m2-tensor/int8-token-asym", f"{TOOLS[tool].title} has no scheme"),
        (
            (KeptLinear(path="lm_head", weights=True, inputs=True),),
            SCHEMES[tool],
            "lm_head is not a linear of its blocks",
        ),
    ):
        with pytest.raises(BadInput, match=wanted) as caught:
            said(tool, scheme, target, kept)
        assert "\n" not in str(caught.value)


def test_an_unknown_tool_is_refused_with_those_there_are(target: Target) -> None:
    with pytest.raises(BadInput, match=r"unknown tool 'gptq'; tools are llm-compressor, auto-round, torchao"):
        said("gptq", "int8-tensor/int8-tensor", target)


@pytest.mark.parametrize("tool", get_args(Reader))
def test_what_a_tool_cannot_keep_apart_stays_whole_and_is_remarked(tool: str, target: Target) -> None:
    _, found = export(tool, KEPT, scheme=parse(SCHEMES[tool]), target=target)
    assert bool(found) == (tool in WHOLE)
    kept = (KeptLinear(path=DOWN, weights=True, inputs=False),)
    if tool == "torchao":  # it has inputs alone nowhere
        text, (line,) = export(tool, kept, scheme=parse(SCHEMES[tool]), target=target)
        assert line.endswith(f"all of it stays as it is: {DOWN}")
        assert f"# {line}\n" in text
        assert f"{DOWN!r}: None" in text


def test_llm_compressor_s_recipe_is_yaml_with_a_group_for_each_scheme(target: Target) -> None:
    yaml = pytest.importorskip("yaml")  # of huggingface_hub
    recipe = yaml.safe_load(said("llm-compressor", "int8-tensor/int8-tensor", target))
    modifier = recipe["quantization_stage"]["quantization_modifiers"]["QuantizationModifier"]
    assert modifier["ignore"] == [DOWN, "lm_head"]
    groups = modifier["config_groups"]
    inputs = {name: group.get("input_activations", {}).get("strategy") for name, group in groups.items()}
    assert inputs == {"all": "tensor", "kept_1": None, "kept_2": "token"}
    assert (groups["kept_1"]["targets"], groups["kept_2"]["targets"]) == ([PART], [EIGHT])
    patterns = [re.compile(one.removeprefix("re:")) for one in groups["all"]["targets"]]
    assert [
        name for name in (*target.linears, "lm_head", "model.embed_tokens") if any(p.match(name) for p in patterns)
    ] == [*target.linears]


def test_compressed_tensors_applies_the_recipe(target: Target) -> None:
    quantization: Any = pytest.importorskip("compressed_tensors.quantization")
    recipe = json.loads(said("llm-compressor", "int8-tensor/int8-tensor", target).split("\n", 1)[1])
    modifier = recipe["quantization_stage"]["quantization_modifiers"]["QuantizationModifier"]
    config = quantization.QuantizationConfig(config_groups=modifier["config_groups"], ignore=modifier["ignore"])
    live = model()
    quantization.apply_quantization_config(live, config)
    schemes = {
        name: getattr(live.get_submodule(name), "quantization_scheme", None) for name in (DOWN, PART, EIGHT, OTHER)
    }
    assert schemes[DOWN] is None
    assert getattr(live.lm_head, "quantization_scheme", None) is None
    assert schemes[PART].input_activations is None
    assert schemes[PART].weights.strategy == "tensor"
    assert schemes[EIGHT].input_activations.strategy == "token"
    assert schemes[OTHER].input_activations.strategy == "tensor"


@pytest.mark.parametrize("scheme", ["nvfp4", "nvfp4a16", "mxfp4", "mxfp8", "int3-group32/none", "fp8"])
def test_compressed_tensors_has_the_formats_of_the_recipe(scheme: str, target: Target) -> None:
    quantization: Any = pytest.importorskip("compressed_tensors.quantization")
    schemes: Any = pytest.importorskip("compressed_tensors.quantization.quant_scheme")
    recipe = json.loads(said("llm-compressor", scheme, target, ()).split("\n", 1)[1])
    modifier = recipe["quantization_stage"]["quantization_modifiers"]["QuantizationModifier"]
    group = quantization.QuantizationConfig(config_groups=modifier["config_groups"]).config_groups["all"]
    preset = schemes.PRESET_SCHEMES.get({"int3-group32/none": "", "fp8": "FP8"}.get(scheme, scheme.upper()))
    if preset:  # as its makers set it, but for the observer
        for part in ("weights", "input_activations"):
            mine, theirs = (
                getattr(one, part) if not isinstance(one, dict) else one.get(part) for one in (group, preset)
            )
            for name in ("num_bits", "type", "strategy", "symmetric", "dynamic", "group_size", "scale_dtype"):
                assert mine is theirs or getattr(mine, name) == getattr(theirs, name), (part, name)


@pytest.mark.parametrize("scheme", ["int8-tensor/int8-tensor", "int4-group32/none", "int4-channel-asym/none"])
def test_torchao_quantizes_what_the_plan_says_and_nothing_else(scheme: str, target: Target) -> None:
    quantization: Any = pytest.importorskip("torchao.quantization")
    live = model()
    before = {name: live.get_submodule(name).weight.detach().clone() for name in (DOWN, "lm_head")}
    quantization.quantize_(live, names_of(said("torchao", scheme, target))["config"], filter_fn=None)
    weights: dict[str, Any] = {name: live.get_submodule(name).weight for name in target.linears}
    plain = [name for name, weight in weights.items() if type(weight) is torch.nn.Parameter]
    assert plain == [DOWN]
    for name, value in before.items():
        assert torch.equal(live.get_submodule(name).weight, value)
    if scheme == "int8-tensor/int8-tensor":
        read = {name: weights[name].act_quant_kwargs for name in (PART, EIGHT, OTHER)}
        assert read[PART] is None
        assert type(read[EIGHT].granularity).__name__ == "PerRow"
        assert type(read[OTHER].granularity).__name__ == "PerTensor"
    assert live(IDS).logits.isfinite().all()


@pytest.mark.parametrize(("scheme", "kind"), [("int8-channel/int8-token", "Linear8bitLt"), ("nf4", "Linear4bit")])
def test_bitsandbytes_leaves_out_what_the_plan_keeps(scheme: str, kind: str, target: Target, tmp_path: Any) -> None:
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    model().save_pretrained(tmp_path)
    settings = BitsAndBytesConfig(**json.loads(said("bitsandbytes", scheme, target)))
    live: Any = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=settings, device_map="cpu")
    kinds = {name: type(live.get_submodule(name)).__name__ for name in (*target.linears, "lm_head")}
    assert sorted(name for name, one in kinds.items() if one == "Linear") == sorted((DOWN, PART, EIGHT, "lm_head"))
    assert set(kinds.values()) == {"Linear", kind}


def test_bitsandbytes_settings_are_those_of_its_config(target: Target) -> None:
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.quantizers_utils import should_convert_module

    read = BitsAndBytesConfig.from_dict(json.loads(said("bitsandbytes", "int8-channel/int8-token", target)))
    assert read.load_in_8bit
    assert read.llm_int8_threshold == 0.0
    names = (*target.linears, "lm_head")
    left = [name for name in names if not should_convert_module(name, read.llm_int8_skip_modules)]
    assert sorted(left) == sorted((DOWN, PART, EIGHT, "lm_head"))


def test_llama_quantize_reads_a_line_a_tensor(target: Target) -> None:
    # quantize.cpp: words apart by blanks; up to "=" a regular expression, in small letters, searched for in the name; a type.
    lines = said("gguf", "q4_0", target).split()
    assert lines == [r"blk\.11\.ffn_down\.weight=f16", r"blk\.1\.ffn_down\.weight=q4_0", r"blk\.1\.attn_q\.weight=q8_0"]
    patterns = [line.partition("=")[0] for line in lines]
    assert patterns == [pattern.lower() for pattern in patterns]
    parts = ("attn_q", "attn_k", "attn_q_norm", "ffn_up", "ffn_down", "ffn_down_exps")
    tensors = [f"blk.{layer}.{part}.weight" for layer in range(12) for part in parts]
    hits = [[name for name in tensors if re.search(pattern, name)] for pattern in patterns]
    assert hits == [["blk.11.ffn_down.weight"], ["blk.1.ffn_down.weight"], ["blk.1.attn_q.weight"]]


def test_gguf_names_come_from_the_family_s_row() -> None:
    bare = "layers.3.self_attn.o_proj"
    kept = (KeptLinear(path=bare, weights=True, inputs=True),)
    target = Target(model="x", config={"model_type": "qwen2"}, linears=(bare,))
    assert said("gguf", "int8-group32/none", target, kept) == "blk\\.3\\.attn_output\\.weight=f16\n"
    target = Target(model="x", config={"model_type": "xlnet"}, linears=(bare,))
    with pytest.raises(BadInput, match=r"has no name in GGUF that is known here \(family xlnet\)"):
        said("gguf", "int8-group32/none", target, kept)


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("int4-group64/none", 64),
        ("int8-channel/int8-token", -1),
        ("int4-group32-asym/int8-tensor", 32),
        ("int8-tensor/none", 0),
    ],
)
def test_auto_round_has_bits_for_each_kept_linear(scheme: str, size: int, target: Target) -> None:
    found = names_of(said("auto-round", scheme, target))
    config, base = found["layer_config"], found["scheme"]
    assert list(config) == [DOWN, PART, EIGHT]
    assert config[DOWN] == {"bits": 16, "act_bits": 16}
    assert (config[PART]["bits"], config[PART]["act_bits"]) == (base["bits"], 16)
    assert (config[EIGHT]["bits"], config[EIGHT]["act_bits"]) == (8, 16 if base["act_bits"] == 16 else 8)
    # docs/step_by_step.md: sizes of groups are -1 for a channel and 0 for the whole tensor.
    assert base["group_size"] == size
    fields = {"bits", "group_size", "sym", "data_type"}
    assert {name.removeprefix("act_") for name in base} <= fields | {"dynamic"}


def test_auto_round_s_scheme_takes_every_field(target: Target) -> None:
    schemes: Any = pytest.importorskip("auto_round.schemes")
    found = names_of(said("auto-round", "int8-channel/int8-token", target))
    for one in (found["scheme"], *found["layer_config"].values()):
        read = schemes.QuantizationScheme.from_dict(one)
        assert {name: getattr(read, name) for name in one} == one


def test_modelopt_s_last_matching_entry_wins(target: Target) -> None:
    config = names_of(said("modelopt", "int8-channel/int8-tensor", target))["config"]
    assert config["algorithm"] == "max"

    def last(quantizer: str) -> dict[str, Any]:
        # Model-Optimizer's guide "Quantization Configuration": fnmatch on names, in order, each over those before.
        return [one for one in config["quant_cfg"] if fnmatch(quantizer, one["quantizer_name"])][-1]

    assert all(set(one) in ({"quantizer_name", "cfg"}, {"quantizer_name", "enable"}) for one in config["quant_cfg"])
    on = [f"{name}.{part}" for name in (*target.linears, "lm_head") for part in ("weight_quantizer", "input_quantizer")]
    off = [name for name in on if last(name).get("enable") is False]
    whole = [f"{name}.{part}" for name in (DOWN, "lm_head") for part in ("weight_quantizer", "input_quantizer")]
    assert sorted(off) == sorted([*whole, f"{PART}.input_quantizer"])
    assert last(f"{OTHER}.weight_quantizer")["cfg"] == {"num_bits": 8, "axis": 0}
    assert last(f"{OTHER}.input_quantizer")["cfg"] == {"num_bits": 8, "axis": None}
    assert last(f"{EIGHT}.input_quantizer")["cfg"]["type"] == "dynamic"


def test_modelopt_switches_off_what_the_plan_keeps(target: Target) -> None:
    quantization: Any = pytest.importorskip("modelopt.torch.quantization")
    config = names_of(said("modelopt", "int8-channel/int8-tensor", target))["config"]
    live = quantization.quantize(model(), config, lambda one: one(IDS))
    on = {
        name: (
            live.get_submodule(name).weight_quantizer.is_enabled,
            live.get_submodule(name).input_quantizer.is_enabled,
        )
        for name in (DOWN, PART, EIGHT, OTHER, "lm_head")
    }
    assert on == {
        DOWN: (False, False),
        PART: (True, False),
        EIGHT: (True, True),
        OTHER: (True, True),
        "lm_head": (False, False),
    }


def test_mlx_s_predicate_says_false_or_settings(target: Target) -> None:
    # mlx.nn.quantize: class_predicate(path, module) returns a bool, or settings for to_quantized.
    predicate = names_of(said("mlx", "int4-group64-asym/none", target))["quant_predicate"]
    four, eight = ({"group_size": 64, "bits": bits} for bits in (4, 8))
    found = {name: predicate(name, None) for name in (*target.linears, "lm_head", "model.embed_tokens")}
    off = ("lm_head", "model.embed_tokens", DOWN)
    assert {name for name, one in found.items() if one is False} == set(off)
    assert found[EIGHT] == eight
    assert all(one == four for name, one in found.items() if name not in (*off, EIGHT))
