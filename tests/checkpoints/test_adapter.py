"""Adapters of PEFT: base + scaling · B A, merged by hand with NumPy, in files and in memory; and what is no plain LoRA."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import outlierlens as ol
from architectures import FAMILIES, build
from every_command import decoder
from hub_server import FakeHub
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.analyses.compare_updates import UpdateOptions
from outlierlens.analyses.plan_exports import export, target_of
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.adapter import CONFIG
from outlierlens.commands import update_check
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments import EXPERIMENTS
from outlierlens.explore.look import open_explorer
from outlierlens.explore.state import Selection
from outlierlens.models.load import LoadOptions, fingerprint, live_parameters, load_model
from outlierlens.models.model_class import NewHead
from outlierlens.results.row_store import Keep

pytest_plugins = ["hub_fixtures"]

RANDOM = np.random.default_rng(5)
Tensors = dict[str, np.ndarray]
LAYER, GPT = "model.layers.0.", "transformer.h.0."
BASE = {
    f"{LAYER}mlp.down_proj.weight": (6, 8), f"{LAYER}self_attn.q_proj.weight": (6, 6), f"{LAYER}self_attn.q_proj.bias": (6,),
    "model.layers.1.mlp.down_proj.weight": (6, 8), f"{LAYER}input_layernorm.weight": (6,),
    "model.embed_tokens.weight": (10, 6), "lm_head.weight": (10, 6),
    f"{GPT}attn.c_proj.weight": (6, 6), f"{GPT}mlp.c_proj.weight": (8, 6),
}  # fmt: skip


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def base_of(folder: Path, tensors: Tensors | None = None) -> Tensors:
    """A folder with these tensors, or with some of `BASE` in it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    tensors = tensors or {name: drawn(*shape) for name, shape in BASE.items()}
    save_file(tensors, folder / "model.safetensors")
    return tensors


def adapter_of(folder: Path, tensors: Tensors, **config: Any) -> str:
    """A folder as `save_pretrained` of peft writes it; rank 2 and alpha 6 where nothing else is said."""
    folder.mkdir(exist_ok=True)
    told = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 2, "lora_alpha": 6, **config}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    save_file(
        {f"base_model.model.{name}": value for name, value in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return str(folder)


def pair(module: str, n_out: int, n_in: int, r: int = 2) -> Tensors:
    return {f"{module}.lora_A.weight": drawn(r, n_in), f"{module}.lora_B.weight": drawn(n_out, r)}


def product(tensors: Tensors, module: str) -> np.ndarray:
    return tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]


def is_read(model: Path, adapter: str, expected: Tensors) -> tuple[str, ...]:
    """Whole, by rows and by some rows; what is not expected to change is as it was stored."""
    with open_checkpoint(str(model)) as stored, open_checkpoint(str(model), adapter=adapter) as found:
        before = dict(stored.read(stored.tensors))
        assert set(found.tensors) == set(before) | set(expected)
        for name, values in found.read(found.tensors):
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, expected.get(name, before.get(name)), rtol=1e-5, atol=1e-6)
            assert found.tensors[name].shape == values.shape
            assert found.holds_floats(name)
            assert found.packed_by(name) == ""
            flat = values.reshape(-1, values.shape[-1])
            np.testing.assert_array_equal(np.concatenate(list(found.read_rows(name, 4))), flat)
            some = [len(flat) - 1, 0]
            np.testing.assert_allclose(found.take_rows(name, some), flat[some], rtol=1e-6)
        assert found.header_digest() != stored.header_digest()
        return found.notes


DOWN, QUERY, HEAD = f"{LAYER}mlp.down_proj", f"{LAYER}self_attn.q_proj", "lm_head"


def test_what_a_lora_adds_by_hand(tmp_path: Path) -> None:
    base = base_of(tmp_path / "base")
    lora = pair(DOWN, 6, 8) | pair(QUERY, 6, 6)
    folder = adapter_of(tmp_path / "lora", lora)
    changed = {f"{name}.weight": base[f"{name}.weight"] + 3 * product(lora, name) for name in (DOWN, QUERY)}
    notes = is_read(tmp_path / "base", folder, changed)
    assert notes == (f"with the adapter {folder} (LoRA, of org/base), which changes 2 of 9 parameters",)


# What is set -> the factor before B A of a module of rank 2, and of one of rank 4.
SCALINGS: dict[str, tuple[dict[str, Any], float, float]] = {
    "by rank": ({"rank_pattern": {"q_proj": 4}}, 6 / 2, 6 / 4),
    "by its root": ({"rank_pattern": {"q_proj": 4}, "use_rslora": True}, 6 / 2**0.5, 6 / 2),
    "by module": ({"rank_pattern": {f"^{QUERY}": 4}, "alpha_pattern": {"layers.0.mlp.down_proj": 9}}, 9 / 2, 6 / 4),
    "the first": ({"r": 4, "rank_pattern": {"mlp.down_proj": 2, "down_proj": 4}}, 6 / 2, 6 / 4),
    "no part of a name": ({"r": 4, "rank_pattern": {"down_proj": 2, "proj": 7, "^q_proj": 7}}, 6 / 2, 6 / 4),
}


@pytest.mark.parametrize("case", SCALINGS)
def test_the_factor_by_hand(tmp_path: Path, case: str) -> None:
    settings, two, four = SCALINGS[case]
    base, lora = base_of(tmp_path / "base"), pair(DOWN, 6, 8) | pair(QUERY, 6, 6, r=4)
    folder = adapter_of(tmp_path / "lora", lora, **settings)
    is_read(tmp_path / "base", folder, {
        f"{name}.weight": base[f"{name}.weight"] + factor * product(lora, name) for name, factor in ((DOWN, two), (QUERY, four))
    })  # fmt: skip


def test_the_digest_is_of_all_that_an_adapter_does(tmp_path: Path) -> None:
    base_of(tmp_path / "base")
    lora = pair(QUERY, 6, 6)
    more = lora | {f"{QUERY}.lora_A.weight": lora[f"{QUERY}.lora_A.weight"] + 1}
    cases: list[tuple[Tensors, dict[str, Any]]] = [
        (lora, {}), (more, {}), (lora, {"lora_alpha": 7}), (lora, {"fan_in_fan_out": True}),
    ]  # fmt: skip
    found = set()
    for number, (tensors, settings) in enumerate(cases * 2):
        folder = adapter_of(tmp_path / str(number), tensors, **settings)
        with open_checkpoint(str(tmp_path / "base"), adapter=folder) as one:
            found.add(one.header_digest())
    assert len(found) == len(cases)


def test_weights_of_gpt2_get_the_transpose(tmp_path: Path) -> None:
    base, (inner, outer) = base_of(tmp_path / "base"), (f"{GPT}attn.c_proj", f"{GPT}mlp.c_proj")
    both, square = pair(inner, 6, 6) | pair(outer, 6, 8), pair(inner, 6, 6)
    changed = {f"{name}.weight": base[f"{name}.weight"] + 3 * product(both, name).T for name in (inner, outer)}
    is_read(tmp_path / "base", adapter_of(tmp_path / "shapes", both), changed)  # the shape of one tells of the other
    turned = {f"{inner}.weight": base[f"{inner}.weight"] + 3 * product(square, inner).T}
    is_read(tmp_path / "base", adapter_of(tmp_path / "told", square, fan_in_fan_out=True), turned)
    plain = {f"{inner}.weight": base[f"{inner}.weight"] + 3 * product(square, inner)}
    is_read(tmp_path / "base", adapter_of(tmp_path / "untold", square), plain)


def test_tables_and_what_was_trained_whole(tmp_path: Path) -> None:
    base = base_of(tmp_path / "base")
    table = {"model.embed_tokens.lora_embedding_A": drawn(2, 10), "model.embed_tokens.lora_embedding_B": drawn(6, 2)}
    own = {
        "model.embed_tokens.base_layer.weight": drawn(10, 6),
        f"{QUERY}.base_layer.bias": drawn(6),
        "score.weight": drawn(3, 6),
    }
    increment = {f"{QUERY}.lora_B.bias": drawn(6)}
    folder = adapter_of(
        tmp_path / "lora",
        table | own | increment | pair(QUERY, 6, 6),
        modules_to_save=["score"],
        bias="all",
        lora_bias=True,
    )
    a, b = table.values()
    is_read(tmp_path / "base", folder, {
        "model.embed_tokens.weight": own["model.embed_tokens.base_layer.weight"] + 3 * (b @ a).T,
        f"{QUERY}.bias": own[f"{QUERY}.base_layer.bias"] + 3 * increment[f"{QUERY}.lora_B.bias"],
        f"{QUERY}.weight": base[f"{QUERY}.weight"] + 3 * product(_of(folder), QUERY),
        "score.weight": own["score.weight"],
    })  # fmt: skip


def _of(folder: str) -> Tensors:
    from safetensors.numpy import load_file

    stored = load_file(f"{folder}/adapter_model.safetensors")
    return {name.removeprefix("base_model.model."): value for name, value in stored.items()}


@pytest.mark.parametrize(
    ("stored", "trained"),
    [
        ("encoder.layer.0.output.dense", "bert.encoder.layer.0.output.dense"),
        ("bert.encoder.layer.0.output.dense", "encoder.layer.0.output.dense"),
        ("language_model.model.layers.0.mlp.fc", "model.language_model.layers.0.mlp.fc"),
        ("bert.pooler.dense", "pooler.dense"),
    ],
)
def test_what_stands_before_the_blocks_may_differ(tmp_path: Path, stored: str, trained: str) -> None:
    inside = stored.partition(".layer")[2]  # a tower for pictures has blocks of the same names
    beside = {f"vision_model.layer{inside}.weight": drawn(6, 8)} if inside else {}
    base = base_of(tmp_path / "base", {f"{stored}.weight": drawn(6, 8)} | beside)
    lora = pair(trained, 6, 8)
    with open_checkpoint(str(tmp_path / "base"), adapter=adapter_of(tmp_path / "lora", lora)) as found:
        ((_, values),) = found.read([f"{stored}.weight"])
    np.testing.assert_allclose(values, base[f"{stored}.weight"] + 3 * product(lora, trained), rtol=1e-5, atol=1e-6)


def test_a_bias_that_files_hold_once_may_stand_twice(tmp_path: Path) -> None:
    base_of(tmp_path / "base", {"cls.predictions.bias": drawn(5), "x.layer.0.a.weight": drawn(6, 8)})
    bias = drawn(5)
    twice = {"cls.predictions.bias": bias, "cls.predictions.decoder.bias": bias}
    is_read(tmp_path / "base", adapter_of(tmp_path / "lora", twice, bias="all"), {"cls.predictions.bias": bias})
    twice["cls.predictions.decoder.bias"] = bias + 1
    with pytest.raises(BadFile, match=r"1 of its 2 changes meet no single parameter .*predictions\.decoder\.bias"):
        open_checkpoint(str(tmp_path / "base"), adapter=adapter_of(tmp_path / "other", twice, bias="all"))


def test_other_types_of_weights(tmp_path: Path) -> None:
    """bfloat16 in either file, and an adapter of torch's own format."""
    down = drawn(6, 8)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"model_type": "llama"}')
    torch.save({f"{DOWN}.weight": torch.tensor(down).bfloat16()}, tmp_path / "base" / "pytorch_model.bin")
    lora = pair(DOWN, 6, 8)
    folder = Path(adapter_of(tmp_path / "lora", lora))
    (folder / "adapter_model.safetensors").unlink()
    half = {name: torch.tensor(value).bfloat16() for name, value in lora.items()}
    torch.save({f"base_model.model.{name}": value for name, value in half.items()}, folder / "adapter_model.bin")
    before = torch.tensor(down).bfloat16().float().numpy()
    after = before + 3 * product({name: value.float().numpy() for name, value in half.items()}, DOWN)
    is_read(tmp_path / "base", str(folder), {f"{DOWN}.weight": after})


# --- what is no plain LoRA -------------------------------------------------------------------------------------------

Refusal = tuple[Tensors, dict[str, Any], str]
GOOD = pair(DOWN, 6, 8)
REFUSED: dict[str, Refusal] = {
    "ia3": ({f"{DOWN}.ia3_l": drawn(1, 8)}, {"peft_type": "IA3"}, r"its peft_type is IA3.*merge_and_unload"),
    "adalora": (GOOD, {"peft_type": "ADALORA"}, "its peft_type is ADALORA"),
    "prefixes": ({"prompt_embeddings": drawn(2, 6)}, {"peft_type": "PREFIX_TUNING"}, "its peft_type is PREFIX_TUNING"),
    "no type": (GOOD, {"peft_type": None}, "its peft_type is UNKNOWN"),
    "dora": (GOOD, {"use_dora": True}, "adapter_config.json sets use_dora, which is more than plain LoRA"),
    "a setting of later": (GOOD, {"soft": 1, "use_dora": True}, "sets soft, use_dora, which is more"),
    "magnitudes": (GOOD | {f"{DOWN}.lora_magnitude_vector": drawn(6)}, {}, "lora_magnitude_vector is not a part of plain LoRA"),
    "pissa": (GOOD, {"init_lora_weights": "pissa"}, "'pissa', by which peft changes the base before the training"),
    "pattern": (GOOD, {"rank_pattern": {"(a+)+": 2}}, r"by the pattern '\(a\+\)\+', and plain names alone are read"),
    "patterns": (GOOD, {"alpha_pattern": ["down_proj"]}, "patterns or modules_to_save of its .* are malformed"),
    "modules": (GOOD, {"modules_to_save": "score"}, "patterns or modules_to_save of its .* are malformed"),
    "rank": (GOOD, {"r": 4}, r"r = 4, and its tensors are \[2, 8\] and \[6, 2\]; use the adapter_config.json that belongs"),
    "no rank": (GOOD, {"r": 0}, "gives .*down_proj the r 0; save it again"),
    "huge": (GOOD, {"lora_alpha": 10**400}, "gives .*down_proj the lora_alpha 1000"),
    "alpha": (GOOD, {"lora_alpha": "6"}, "gives .*down_proj the lora_alpha '6'; save it again"),
    "one side": ({f"{DOWN}.lora_A.weight": drawn(2, 8)}, {}, "down_proj has only side A of its LoRA"),
    "convolution": ({f"{DOWN}.lora_A.weight": drawn(2, 8, 1), f"{DOWN}.lora_B.weight": drawn(6, 2, 1)}, {}, "has 3 axes, so"),
    "no such module": (pair("model.layers.7.mlp.down_proj", 6, 8), {}, r"1 of its 1 changes meet no single parameter of the "
                       r"base \(model\.layers\.7\.mlp\.down_proj\.weight\); name the model that it was trained on, org/base"),
    "several": (pair("layers.0.mlp.down_proj", 6, 8), {}, "meet no single parameter"),
    "shape": (pair(DOWN, 6, 9), {}, r"is for a parameter of shape \[6, 9\], and .*down_proj\.weight of the base is \[6, 8\]"),
    "vocabulary": ({"lm_head.weight": drawn(12, 6)}, {"modules_to_save": ["lm_head"]}, r"\[12, 6\].*where its vocabulary grew"),
    "new head": ({"score.weight": drawn(2, 6)}, {}, r"meet no single parameter of the base \(score\.weight\)"),
    "two": ({f"{DOWN}.lora_A.one.weight": drawn(2, 8), f"{DOWN}.lora_B.two.weight": drawn(6, 2)}, {},
            r"several adapters \(one, two"),
    "nothing": ({}, {}, "its weights hold none"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_refused_with_its_reason(tmp_path: Path, case: str) -> None:
    tensors, settings, message = REFUSED[case]
    extra = {"other.layers.0.mlp.down_proj.weight": drawn(6, 8)} if case == "several" else {}
    base_of(tmp_path / "base", {name: drawn(*shape) for name, shape in BASE.items()} | extra)
    folder = adapter_of(tmp_path / "lora", tensors, **settings)
    with pytest.raises(BadFile, match=message):
        open_checkpoint(str(tmp_path / "base"), adapter=folder)


def test_what_would_mean_one_parameter_twice_is_refused(tmp_path: Path) -> None:
    base_of(tmp_path / "base", {"layers.0.fc.weight": drawn(6, 8)})
    both = pair("encoder.layers.0.fc", 6, 8) | pair("decoder.layers.0.fc", 6, 8)
    with pytest.raises(BadFile, match="2 of its 2 changes meet no single parameter"):
        open_checkpoint(str(tmp_path / "base"), adapter=adapter_of(tmp_path / "lora", both))


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    base_of(tmp_path / "base")
    for place in (str(tmp_path / "none"), str(tmp_path / "base"), "org/adapter"):
        with pytest.raises(BadInput, match=r"no folder with adapter_config\.json .*hf download OWNER/NAME --local-dir"):
            open_checkpoint(str(tmp_path / "base"), adapter=place)


# --- a saved PeftModel -----------------------------------------------------------------------------------------------


def test_a_saved_peft_model_is_read_with_its_adapter(tmp_path: Path) -> None:
    base, lora = base_of(tmp_path / "base"), pair(DOWN, 6, 8)
    saved = {name.replace("lm_head.", "lm_head.original_module."): value for name, value in base.items()}
    saved |= {"lm_head.modules_to_save.default.weight": drawn(10, 6)}
    saved |= {name.replace(".weight", ".default.weight"): value for name, value in lora.items()}
    saved = {name.replace(f"{DOWN}.weight", f"{DOWN}.base_layer.weight"): value for name, value in saved.items()}
    adapter_of(tmp_path / "full", {}, modules_to_save=["lm_head"])
    (tmp_path / "full" / "adapter_model.safetensors").unlink()
    full = tmp_path / "full" / "model.safetensors"
    save_file({f"base_model.model.{name}": value for name, value in saved.items()}, full)
    expected = base | {
        f"{DOWN}.weight": base[f"{DOWN}.weight"] + 3 * product(lora, DOWN), "lm_head.weight": saved[
            "lm_head.modules_to_save.default.weight"]
    }  # fmt: skip
    with open_checkpoint(str(full.parent)) as found:
        read = dict(found.read(found.tensors))
        assert "with the adapter" in found.notes[0]
        assert found.adapter == ""  # there is nothing to name with --adapter
    assert read.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(read[name], values, rtol=1e-5, atol=1e-6)
    (full.parent / "adapter_config.json").unlink()
    with open_checkpoint(str(full.parent)) as alone:
        read = dict(alone.read(alone.tensors))
        assert alone.notes == (
            "the base alone: 3 tensors of an adapter were not looked at, for adapter_config.json is not beside them",
        )
    assert read.keys() == base.keys()
    for name, values in base.items():
        np.testing.assert_array_equal(read[name], values)


def test_other_adapters_of_a_saved_peft_model_are_not_passed_over(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    scaled = {f"{DOWN}.base_layer.weight": drawn(6, 8), f"{DOWN}.ia3_l.default": drawn(1, 8), "norm.weight": drawn(6)}
    save_file({f"base_model.model.{name}": value for name, value in scaled.items()}, full / "model.safetensors")
    with open_checkpoint(str(full)) as found:
        assert set(found.tensors) == {f"{DOWN}.weight", "norm.weight"}
        assert found.notes[0].startswith("the base alone: 1 tensors of an adapter were not looked at")
    (full / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(BadFile, match="its peft_type is IA3"):
        open_checkpoint(str(full))


def test_the_file_of_an_adapter_is_no_model(tmp_path: Path) -> None:
    file = (
        Path(adapter_of(tmp_path / "lora", pair(DOWN, 6, 8) | {"score.weight": drawn(2, 6)}))
        / "adapter_model.safetensors"
    )
    with pytest.raises(
        BadFile, match=rf"of org/base, and no model; .* scan org/base --model-args adapter={file.parent}$"
    ):
        open_checkpoint(str(file))
    (file.parent / "adapter_config.json").unlink()
    with pytest.raises(
        BadFile, match=rf"holds an adapter, and no model; name its base, with --model-args adapter={file.parent}$"
    ):
        open_checkpoint(str(file))


def test_models_of_a_hub(hub: FakeHub, tmp_path: Path) -> None:
    base, lora = base_of(tmp_path / "base"), pair(DOWN, 6, 8)
    folder = adapter_of(tmp_path / "lora", lora)
    files = {file.name: file for file in (tmp_path / "lora").iterdir()}
    hub.add("org/base", {file.name: file for file in (tmp_path / "base").iterdir()})
    hub.add("org/lora", files)
    full = {name.replace("down_proj.", "down_proj.base_layer."): value for name, value in base.items()} | lora
    save_file({f"base_model.model.{name}": value for name, value in full.items()}, tmp_path / "model.safetensors")
    hub.add("org/full", {"model.safetensors": tmp_path / "model.safetensors"} | {CONFIG: files[CONFIG]})
    wanted = base[f"{DOWN}.weight"] + 3 * product(lora, DOWN)
    for name, adapter in (("org/base", folder), ("org/full", None)):
        with open_checkpoint(name, adapter=adapter) as found:
            ((_, values),) = found.read([f"{DOWN}.weight"])
            assert found.kind == "hub"
            assert found.requests > 0
            assert "with the adapter" in found.notes[0]
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6)
    message = r"fetch it with `hf download org/lora --local-dir adapter`, and look at both with: outlierlens scan org/base --mo"
    with pytest.raises(BadFile, match=message):
        open_checkpoint("org/lora")


# --- models that run -------------------------------------------------------------------------------------------------


def saved(folder: Path, family: str, head: str = "", **config: Any) -> Any:
    """A tiny random model, in memory and in a folder."""
    model = build(replace(FAMILIES[family], config=FAMILIES[family].config | config), *filter(None, (head,)))
    model.save_pretrained(folder)
    return model


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Any, str, Tensors]:
    model = saved(tmp_path / "base", "llama", "CausalLM")
    lora = pair("model.layers.1.mlp.down_proj", 16, 24)
    return model, adapter_of(tmp_path / "lora", lora), lora


def test_a_model_runs_with_it(tmp_path: Path, llama: tuple[Any, str, Tensors]) -> None:
    model, adapter, lora = llama
    name = "model.layers.1.mlp.down_proj"
    loaded, plain = ol.load_model(str(tmp_path / "base"), adapter=adapter), ol.load_model(str(tmp_path / "base"))
    after, before = live_parameters(loaded.model), live_parameters(model)
    for each, values in before.items():
        added = torch.tensor(3 * product(lora, name)) if each == f"{name}.weight" else 0
        torch.testing.assert_close(after[each], values + added, rtol=1e-5, atol=1e-6)
    assert not torch.equal(after[f"{name}.weight"], before[f"{name}.weight"])
    assert loaded.notes == (
        f"with the adapter {adapter} (LoRA, of org/base), which changes 1 of {len(before)} parameters",
    )
    made = loaded.provenance()
    assert (made.adapter, made.subject) == (adapter, f"{loaded.name} with {adapter}")
    assert made.fingerprint == fingerprint(loaded.model) != plain.provenance().fingerprint
    assert plain.notes == ()
    with zeroed_weights(loaded, [3]):
        assert not loaded.model.get_parameter(f"{name}.weight")[3].any()
    torch.testing.assert_close(loaded.model.get_parameter(f"{name}.weight"), after[f"{name}.weight"], rtol=0, atol=0)
    assert ol.scan(loaded).provenance.adapter == adapter
    assert ol.scan(loaded).notes == loaded.notes
    narrow = ol.load_model(str(tmp_path / "base"), adapter=adapter, dtype="bfloat16").model.get_parameter(
        f"{name}.weight"
    )
    wide = before[f"{name}.weight"].bfloat16().float() + torch.tensor(3 * product(lora, name))
    assert torch.equal(narrow, wide.bfloat16())


def test_a_table_that_the_head_shares_parts_from_it(tmp_path: Path) -> None:
    model = saved(tmp_path / "base", "llama", "CausalLM", tie_word_embeddings=True)
    table = {"model.embed_tokens.lora_embedding_A": drawn(2, 40), "model.embed_tokens.lora_embedding_B": drawn(16, 2)}
    a, b = table.values()
    ran: Any = ol.load_model(str(tmp_path / "base"), adapter=adapter_of(tmp_path / "lora", table)).model
    before = model.lm_head.weight
    assert torch.equal(ran.lm_head.weight, before)
    assert not ran.config.tie_word_embeddings
    torch.testing.assert_close(
        ran.model.embed_tokens.weight, before + torch.tensor(3 * (b @ a).T), rtol=1e-5, atol=1e-6
    )
    ran.save_pretrained(tmp_path / "copy")
    again: Any = ol.load_model(str(tmp_path / "copy")).model
    assert torch.equal(again.lm_head.weight, before)
    assert torch.equal(again.model.embed_tokens.weight, ran.model.embed_tokens.weight)


def test_a_head_for_labels_comes_with_its_adapter(tmp_path: Path) -> None:
    saved(tmp_path / "base", "bert")
    module = "bert.encoder.layer.1.attention.self.query"
    head = {"classifier.weight": drawn(3, 16), "classifier.bias": drawn(3)}
    told = {"modules_to_save": ["classifier", "score"], "task_type": "SEQ_CLS"}
    loaded = ol.load_model(
        str(tmp_path / "base"), adapter=adapter_of(tmp_path / "lora", pair(module, 16, 16) | head, **told)
    )
    assert type(loaded.model).__name__ == "BertForSequenceClassification"
    np.testing.assert_array_equal(loaded.model.get_parameter("classifier.weight").detach(), head["classifier.weight"])
    assert loaded.model.config.num_labels == 3  # type: ignore[union-attr]
    odd = adapter_of(tmp_path / "odd", pair(module, 16, 16) | head, **told | {"task_type": None})
    with pytest.raises(BadFile, match=r"brings classifier\.bias, classifier\.weight, which BertModel does not have"):
        ol.load_model(str(tmp_path / "base"), adapter=odd)


def test_a_live_peft_model_is_refused_with_its_remedy(llama: tuple[Any, str, Tensors]) -> None:
    model, *_ = llama
    for layer in model.model.layers:
        layer.mlp.down_proj = torch.nn.ModuleDict({"base_layer": layer.mlp.down_proj})
    with pytest.raises(
        BadInput, match=r"down_proj\.base_layer\.weight: an adapter of peft .*load_model\(BASE, adapter=FOLDER"
    ):
        ol.scan(model)


def test_a_saved_peft_model_runs_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    model = saved(tmp_path / "base", "llama", "CausalLM")
    name, full = "model.layers.1.mlp.down_proj", tmp_path / "full"
    lora = pair(name, 16, 24)
    adapter_of(full, {})
    (full / "adapter_model.safetensors").unlink()
    model.config.save_pretrained(full)
    state = {one.replace(f"{name}.", f"{name}.base_layer."): value.numpy() for one, value in model.state_dict().items()}
    state |= {one.replace(".weight", ".default.weight"): value for one, value in lora.items()}
    save_file({f"base_model.model.{one}": value for one, value in state.items()}, full / "model.safetensors")
    after = torch.tensor(3 * product(lora, name)) + model.get_parameter(f"{name}.weight")
    torch.testing.assert_close(
        ol.load_model(str(full)).model.get_parameter(f"{name}.weight"), after, rtol=1e-5, atol=1e-6
    )
    (full / "adapter_config.json").unlink()
    with pytest.raises(
        BadFile, match=r"holds an adapter, and adapter_config\.json, .*, is not beside it; put it there"
    ):
        ol.load_model(str(full))


# --- commands --------------------------------------------------------------------------------------------------------

# Of training runs, lists of models, and models that are trained and loaded again.
WITHOUT = {"atlas build", "track", "lab pretrain", "lab finetune", "replicate kovaleva-glue", "replicate puccetti-glue"}


def test_every_command_that_takes_a_model_has_the_option() -> None:
    groups = {row.name: row.asks() for row in EXPERIMENTS if {"source", "loading"} & {*row.takes}}
    has = {
        name for name, asks in groups.items() if any(one.name == "adapter" for _, some in asks.values() for one in some)
    }
    assert groups.keys() - has == WITHOUT


def test_what_a_run_keeps_is_of_one_adapter(tmp_path: Path) -> None:
    decoder(tmp_path / "base")
    names = [f"model.layers.{layer}.mlp.down_proj" for layer in (0, 1)]
    shape = ol.load_model(str(tmp_path / "base")).model.get_parameter(f"{names[0]}.weight").shape
    folders = [adapter_of(tmp_path / f"lora{n}", pair(name, *shape)) for n, name in enumerate(names)]
    kept, options = tmp_path / "kept", {"n_random": 1, "n_matched": 0}
    found = [
        ol.ablate(
            ol.load_model(str(tmp_path / "base"), adapter=one), ["one text", "another"], 3, rows=Keep(kept), **options
        )
        for one in (None, *folders)
    ]
    assert len({one.provenance.fingerprint for one in found}) == len(list(kept.glob("*.jsonl"))) == 3
    assert [one.notes[0].startswith("with the adapter") for one in found] == [False, True, True]
    file = tmp_path / "rows.jsonl"
    ol.ablate(ol.load_model(str(tmp_path / "base"), adapter=folders[0]), ["one text"], 3, rows=file, **options)
    with pytest.raises(BadInput, match="model"):
        ol.ablate(ol.load_model(str(tmp_path / "base"), adapter=folders[1]), ["one text"], 3, rows=file, **options)


def test_the_remedy_of_a_folder_that_is_an_adapter_works_as_printed(
    tmp_path: Path, llama: tuple[Any, str, Tensors], run: Any
) -> None:
    _, adapter, lora = llama
    adapter_of(Path(adapter), lora, base_model_name_or_path=str(tmp_path / "base"))
    for ask in (ol.scan, ol.load_model):
        with pytest.raises(BadFile, match=r"holds an adapter of .*, and no model; look at both with: ") as refused:
            ask(adapter)
        words = shlex.split(str(refused.value).rpartition("with: outlierlens ")[2])
        code, out, err = run(*words)
        assert code == 0, err
        assert f"base with {adapter}" in out
        assert "which changes 1 of " in out


def test_compare_says_what_the_adapter_changes(tmp_path: Path) -> None:
    model = saved(tmp_path / "base", "llama", "CausalLM", hidden_size=64)
    names = [name for name, _ in model.named_parameters() if name.endswith("down_proj.weight")]
    with torch.no_grad():
        for name in names:
            model.get_parameter(name).copy_(torch.tensor(drawn(64, 24)))
            model.get_parameter(name)[5] *= 30
    model.save_pretrained(tmp_path / "base")
    lora = {}
    for name in names:
        b = np.zeros((64, 2), np.float32)
        b[9], b[5] = 5, 1
        lora |= {
            name.replace("weight", "lora_A.weight"): np.ones((2, 24), np.float32),
            name.replace("weight", "lora_B.weight"): b,
        }
    base, folder = str(tmp_path / "base"), adapter_of(tmp_path / "lora", lora)
    found = ol.compare(base, [base], adapter=folder)
    assert found.provenance.adapter == folder
    by_dim = {one.dim: one for one in found.changes}
    assert {dim: one.fate for dim, one in by_dim.items()} == {5: "stayed", 9: "came"}
    rows = {dim: np.stack([model.get_parameter(name)[dim].detach().numpy() for name in names]) for dim in (5, 9)}
    for dim, added in ((5, 6.0), (9, 30.0)):  # 3 · (1 · 1 + 1 · 1), and five times that
        expected = added * np.sqrt(rows[dim].size) / np.linalg.norm(rows[dim])
        assert by_dim[dim].relative == pytest.approx(expected, rel=1e-5)
    said = list(found.sentences())
    assert said[0].startswith(f"{base} → {base} with {folder}: 5 stayed; 9 came")
    nine, five = (f"{100 * (by_dim[dim].relative or 0):.3g} %" for dim in (9, 5))
    assert said[-1] == (
        f"The adapter changes the weights that write to 9 by {nine}, 5 by {five} of their norm, and those to other dimensions "
        f"by 0 %."
    )
    lists = {line for one in found.advice() for line in one.commands if "prune protect" in line}
    assert {line.endswith(f"--model-args adapter={folder}") for line in lists} == {True, False}
    away = adapter_of(tmp_path / "away", pair("model.layers.0.self_attn.q_proj", 16, 64))
    assert (
        "leaves the weights that write to these dimensions as they were"
        in list(ol.compare(base, base, adapter=away).sentences())[-1]
    )


def test_checks_of_pruning_and_updates_have_it_on_the_model_after(
    tmp_path: Path, llama: tuple[Any, str, Tensors]
) -> None:
    model, adapter, _ = llama
    base = str(tmp_path / "base")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight[3] = 0
    model.save_pretrained(tmp_path / "pruned")
    for on, removed in ((None, 3), (adapter, 2)):  # of three layers; the adapter fills the row of one
        found = ol.prune_check(base, str(tmp_path / "pruned"), dims=[3], scan=ScanOptions(adapter=on))
        assert [one.layers_removed for one in found.positions if one.dim == 3] == [removed]
        assert any("with the adapter" in note for note in found.notes) == bool(on)
    masks = {"model.layers.0.mlp.down_proj.weight_mask": np.ones((16, 24), np.float32)}
    save_file(masks, tmp_path / "masks.safetensors")
    with pytest.raises(BadInput, match=r"^adapter belongs to a model, and .*masks\.safetensors holds masks"):
        ol.prune_check(base, str(tmp_path / "masks.safetensors"), dims=[3], scan=ScanOptions(adapter=adapter))
    updates = update_check(
        base, [base], UpdateOptions(dims=(3,), deep=True, n_draws=19, scan=ScanOptions(adapter=adapter))
    )
    assert [one.n_changed for one in updates.clients] == [16 * 24]
    assert "with the adapter" in updates.notes[0]
    assert updates.provenance.adapter == adapter


FEW = ["--dims", "3", "--data", "reviews", "--limit", "2", "--max-length", "8", "--random", "1", "--matched", "0", "-q"]


def test_pages_are_measured_with_it(tmp_path: Path, run: Any) -> None:
    decoder(tmp_path / "base")
    shape = ol.load_model(str(tmp_path / "base")).model.get_parameter("model.layers.0.mlp.down_proj.weight").shape
    adapter = adapter_of(tmp_path / "lora", pair("model.layers.0.mlp.down_proj", *shape))
    code, _, err = run(
        "report", str(tmp_path / "base"), "--model-args", f"adapter={adapter}", *FEW, "-o", str(tmp_path / "report")
    )
    assert code == 0, err
    found = ol.load(tmp_path / "report" / "results.json")
    assert {one.adapter for one in (found.provenance, *found.measured)} == {adapter}
    ol.origin(str(tmp_path / "base"), dims=[3]).save(tmp_path / "origin.json")
    results, joined = tmp_path / "report" / "results.json", ("-o", tmp_path / "joined")
    again = ("report", results, "--result", tmp_path / "origin.json", *joined)
    code, _, err = run(*map(str, again))
    assert code == 1
    assert re.search(r"origin\.json is of \S+base \(fingerprint \w+\), not of \S+base with ", err)
    page = open_explorer(str(tmp_path / "base"), LoadOptions(adapter=adapter))
    assert page.look(Selection(text="a good film", dims=(3,)), ("loss",)).notes[0].startswith("with the adapter")


def test_where_an_adapter_has_no_place_it_is_refused(tmp_path: Path, llama: tuple[Any, str, Tensors], run: Any) -> None:
    _, adapter, _ = llama
    base = str(tmp_path / "base")
    ol.scan(base).save(tmp_path / "scan.json")
    for words, message in (
        (("compare", base, tmp_path / "scan.json"), "--model-args adapter belongs to a model, and "),
        (("report", "--compare", base, base), "--model-args adapter belongs to a report of one"),
        (("report", tmp_path / "scan.json"), "--dims, --data and an adapter need the model itself"),
        (("track", base), "cannot read --model-args"),
    ):
        code, _, err = run(*map(str, words), "--model-args", f"adapter={adapter}")
        assert code != 0
        assert message in err
    with pytest.raises(BadInput, match="fine-tuning starts from a model, not from an adapter"):
        load_model(base, LoadOptions(adapter=adapter), NewHead(("a", "b")))


def test_copies_hold_base_and_adapter(tmp_path: Path, run: Any) -> None:
    decoder(tmp_path / "base")
    name = "model.layers.0.mlp.down_proj"
    shape = ol.load_model(str(tmp_path / "base")).model.get_parameter(f"{name}.weight").shape
    adapter = adapter_of(tmp_path / "lora", pair(name, *shape))
    loaded = ol.load_model(str(tmp_path / "base"), adapter=adapter)
    comment, _ = export("llm-compressor", (), scheme=parse("int8-tensor/int8-tensor"), target=target_of(loaded))
    assert loaded.note in comment.partition("\n")[0]
    found = ol.repair(str(tmp_path / "base"), tmp_path / "copy", adapter=adapter, fit="fp8", texts=["one text"])
    assert found.folder == "copy"
    assert "with the adapter" in found.notes[0]
    assert json.loads((tmp_path / "copy" / "repair.json").read_text())["model"] == found.provenance.subject
    assert f"with {adapter}" in (tmp_path / "copy" / "README.md").read_text().replace("\\", "")
    ids = torch.arange(3, 9)[None]
    outputs = [one.model(ids)[0] for one in (loaded, ol.load_model(str(tmp_path / "copy")))]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    code, _, err = run(
        "ablate", str(tmp_path / "base"), "--model-args", f"adapter={adapter}", *FEW, "--save", str(tmp_path / "off")
    )
    assert code == 0, err
    with torch.no_grad():
        off = ol.load_model(str(tmp_path / "off")).model.get_parameter(f"{name}.weight")
        expected = loaded.model.get_parameter(f"{name}.weight").clone()
        expected[3] = 0
    assert torch.equal(off, expected)


def test_the_atlas_reads_the_model_where_an_adapter_is_on(tmp_path: Path, run: Any) -> None:
    tensors = {"bert.encoder.layer.0.output.dense": (64, 64)}
    sizes = ol.load_model("mini-planted").model.get_parameter("bert.encoder.layer.0.output.dense.weight").shape
    lora = pair(*tensors, *sizes)
    code, out, err = run(
        "atlas", "lookup", "mini-planted", "--model-args", f"adapter={adapter_of(tmp_path / 'lora', lora)}", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["bytes_read"] > 0
    assert any("with the adapter" in note for note in json.loads(out)["notes"])
