"""What a scan reads also runs: containers, names with something around them, codes; and folders that hold no model say why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from architectures import FAMILIES, build
from outlierlens.analyses.range import weights_range
from outlierlens.analyses.scan import scan
from outlierlens.architectures import bind, stacks_of
from outlierlens.checkpoints import open_checkpoint
from outlierlens.errors import BadFile
from outlierlens.models.load import from_objects, load_model

MODEL = build(FAMILIES["llama"], "CausalLM")
STATE = {name: value.clone() for name, value in MODEL.state_dict().items()}
DOWN = [name for name in STATE if name.endswith("down_proj.weight")]
CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "module": lambda state: {"module": state, "ds_version": "0.14"},
    "model": lambda state: {"model": {f"_orig_mod.{name}": value for name, value in state.items()}, "iter_num": 1},
    "model_state_dict": lambda state: {"model_state_dict": state, "loss": 1.0},
    "state_dict in module": lambda state: {"module": {"state_dict": {f"model.{name}": state[name] for name in state}}},
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path_factory.mktemp("cache")))


def is_the_model(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """The scan names the tensors as the model does, and the model that runs has these values."""
    assert scan(str(folder)).stacks[0].hidden_size == 16
    with open_checkpoint(str(folder)) as checkpoint:
        assert set(checkpoint.tensors) == set(state)
    loaded = load_model(str(folder)).model.state_dict()
    for name, value in state.items():
        torch.testing.assert_close(loaded[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "last.ckpt"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_is_read_and_runs(tmp_path: Path, container: str, name: str) -> None:
    MODEL.config.save_pretrained(tmp_path)
    torch.save(CONTAINERS[container](STATE), tmp_path / name)
    is_the_model(tmp_path, STATE)


@pytest.mark.parametrize("before", ["_orig_mod.", "module.", "base_model.model.", "model.", "language_model.module."])
def test_names_with_something_before_them_are_read_and_run(tmp_path: Path, before: str) -> None:
    MODEL.config.save_pretrained(tmp_path)
    save_file(
        {f"{before}{name}": value for name, value in STATE.items()}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    is_the_model(tmp_path, STATE)


def test_codes_run_multiplied_out(tmp_path: Path) -> None:
    state, stored = dict(STATE), dict(STATE)
    for name in DOWN:
        scale = STATE[name].abs().amax(1, keepdim=True) / 448
        stored[name] = (STATE[name] / scale).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale
        state[name] = stored[name].float() * scale
    MODEL.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [1, 24]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    is_the_model(tmp_path, state)


def test_codes_without_scales_do_not_run(tmp_path: Path) -> None:
    MODEL.config.save_pretrained(tmp_path)
    save_file(STATE | {DOWN[0]: STATE[DOWN[0]].to(torch.int8)}, tmp_path / "model.safetensors", {"format": "pt"})
    for ask in (scan, load_model):
        with pytest.raises(BadFile, match=f"{DOWN[0]} is packed by a quantizer that its config does not name"):
            ask(str(tmp_path))


def test_range_says_first_what_it_did_not_look_at(tmp_path: Path) -> None:
    packed = {name.removesuffix("weight") + "qweight": torch.zeros((3, 16), dtype=torch.int32) for name in DOWN}
    save_file({name: STATE[name] for name in STATE if name not in DOWN} | packed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}})
    )
    with open_checkpoint(str(tmp_path)) as checkpoint:
        found = weights_range(checkpoint)
    assert found.skipped == dict.fromkeys(DOWN, "GPTQ")
    assert len(found.weights) == len(STATE) - len(DOWN)
    first = next(found.sentences())
    assert first.startswith(f"Not looked at: 3 of {len(STATE)} tensors, packed by GPTQ ({DOWN[0]}, ")


def nano(width: int = 16, inner: int = 64) -> dict[str, torch.Tensor]:
    """A file of nanoGPT: GPT-2's names, linears stored [out, in]; row 3 of the last linear is large, and so is column 40."""
    random = torch.Generator().manual_seed(0)
    state = {f"transformer.{name}.weight": torch.randn((40, width), generator=random) for name in ("wte", "wpe")}
    state["transformer.ln_f.weight"] = torch.ones(width)
    shapes = {"attn.c_attn": (3 * width, width), "attn.c_proj": (width, width), "mlp.c_fc": (inner, width)}
    for layer in range(3):
        block = f"transformer.h.{layer}."
        state |= {f"{block}{norm}.weight": torch.ones(width) for norm in ("ln_1", "ln_2")}
        for name, shape in (shapes | {"mlp.c_proj": (width, inner)}).items():
            state[f"{block}{name}.weight"] = torch.randn(shape, generator=random)
        state[f"{block}mlp.c_proj.weight"][3] *= 20
        state[f"{block}mlp.c_proj.weight"][:, 40] *= 10
    return state


def test_the_width_of_the_stream_tells_how_linears_are_stored(tmp_path: Path) -> None:
    torch.save({"model": {f"_orig_mod.{name}": value for name, value in nano().items()}}, tmp_path / "ckpt.pt")
    (found,) = scan(str(tmp_path / "ckpt.pt")).stacks
    assert found.hidden_size == 16
    assert found.strongest_dims(1) == (3,)


def test_widths_that_disagree_are_refused_with_both() -> None:
    stacks, state = stacks_of({"model_type": "gpt2"}), nano()
    with pytest.raises(
        BadFile, match=r"the config's n_embd is 20 wide and transformer\.\S+ 16, and one stream has one width"
    ):
        bind(stacks, state, {"n_embd": 20})
    state["transformer.h.0.mlp.c_proj.weight"] = torch.ones((20, 64))
    with pytest.raises(BadFile, match=r"16 wide and transformer\.h\.0\.mlp\.c_proj\.weight "):
        bind(stacks, state)


def test_folders_without_a_model_say_what_they_hold(tmp_path: Path) -> None:
    MODEL.save_pretrained(tmp_path / "text_encoder")
    for ask in (scan, load_model):
        with pytest.raises(BadFile, match=r"a model lies in text_encoder: pass --model-args subfolder=text_encoder"):
            ask(str(tmp_path))


def test_a_model_is_taken_out_of_what_runs_it_in_parallel() -> None:
    wrapped = torch.nn.DataParallel(torch.nn.DataParallel(MODEL))
    assert from_objects(wrapped).model is MODEL
