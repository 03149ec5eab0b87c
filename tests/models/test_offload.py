"""Models that accelerate spreads out: what is read, switched off and measured is that of the whole model, bit for bit."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module

import every_command
from architectures import FAMILIES, batch, build
from conftest import Words
from outlierlens.ablation.switches import edited_hidden, removed_writes, zero_weights_, zeroed_norms, zeroed_weights
from outlierlens.analyses.quantize_rounding import rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.architectures import live_parameters
from outlierlens.errors import BadInput
from outlierlens.models import load
from outlierlens.models.changes import SettableParameters, frozen
from outlierlens.models.load import LoadOptions, fingerprint, from_objects, load_model
from outlierlens.training.watch import watch

# Shared embeddings, another layout of linears, packed experts, one block for all layers, two streams.
MODELS = {
    "bert": "MaskedLM", "llama": "CausalLM", "gpt2": "CausalLM", "mixtral": "CausalLM", "albert": "MaskedLM", "t5": "",
    "bart": "",
}  # fmt: skip
Spread = Callable[[Any, Path], Any]


def on_disk_and_cpu(model: Any, folder: Path) -> Any:
    """Every other module with parameters of its own on disk, the rest in place."""
    own = [
        name for name, module in model.named_modules() if [*module.parameters(recurse=False), *module.buffers(False)]
    ]
    inner = [name for name in own if not any(name.startswith(f"{other}.") for other in own if other != name)]
    return dispatch_model(
        model, {name: "disk" if place % 2 else "cpu" for place, name in enumerate(inner)}, offload_dir=folder
    )


SPREADS: dict[str, Spread] = {
    "cpu": lambda model, _: cpu_offload(model, torch.device("cpu")),
    "disk": lambda model, folder: disk_offload(model, folder, torch.device("cpu")),
    "disk and cpu": on_disk_and_cpu,
}


@pytest.fixture(params=SPREADS)
def spread(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any], Any]:
    """A copy of a model that accelerate spreads out."""

    def made(model: Any) -> Any:
        return SPREADS[request.param](copy.deepcopy(model), tmp_path / "weights").eval()

    return made


def outputs(model: Any, family: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        given = model(**batch(family))
    return [one for one in given.to_tuple() if isinstance(one, torch.Tensor)]


def equal(some: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(some) == len(other) and all(map(torch.equal, some, other))


def stored(model: Any) -> list[Any]:
    """The maps that weights are kept in, and the bytes of all values in them."""
    hooks = [getattr(one, "_hf_hook", None) for one in model.modules()]
    maps = [
        one.weights_map for hook in hooks for one in getattr(hook, "hooks", [hook]) if getattr(one, "offload", False)
    ]
    return [*maps, fingerprint(model)]


def contexts(model: Any) -> Iterator[AbstractContextManager[Any]]:
    for loaded in [from_objects(model)]:
        stack = loaded.stacks[-1].name
        yield zeroed_weights(loaded, [1, 3], stack=stack)
        yield removed_writes(loaded, [2], stack=stack, embeddings=True)
        yield edited_hidden(loaded, [4], "scale", stack=stack)
        if loaded.stack(stack).norms:
            yield zeroed_norms(loaded, [5], stack=stack)
        if loaded.name.startswith(("Bert", "Llama", "GPT2")):
            yield rounded(loaded, parse("int8-tensor/int8-tensor"), stack=stack)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_switched_off_is_that_of_the_whole_model_and_comes_back(
    name: str, spread: Callable[[Any], Any]
) -> None:
    family = FAMILIES[name]
    whole = build(family, MODELS[name])
    away = spread(whole)
    live = live_parameters(whole)
    assert {key: tuple(one.shape) for key, one in live_parameters(away).items()} == {
        k: tuple(v.shape) for k, v in live.items()
    }
    assert all(torch.equal(one.detach(), live[key]) for key, one in live_parameters(away).items())
    intact, before = outputs(whole, family), stored(away)
    assert before[-1] == fingerprint(whole)
    assert equal(outputs(away, family), intact)
    for off, other in zip(contexts(away), contexts(whole), strict=True):
        with off as n_values, other as wanted:
            assert not isinstance(wanted, int) or n_values == wanted
            changed = outputs(whole, family)
            assert equal(outputs(away, family), changed)
            assert not equal(changed, intact)
        assert equal(outputs(away, family), intact)
        assert stored(away) == before


def test_nothing_is_left_after_an_error_in_a_pass_or_another_order_of_leaving(spread: Callable[[Any], Any]) -> None:
    family = FAMILIES["llama"]
    away = spread(build(family, "CausalLM"))
    intact, before = outputs(away, family), stored(away)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    inner = away.get_submodule("model.layers.1.mlp.act_fn")  # runs while the weights of nothing are placed
    for module in (inner, away.get_submodule("model.layers.1.mlp.down_proj")):
        broken = module.register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError), zeroed_weights(away, [1]):
            outputs(away, family)
        broken.remove()
        assert equal(outputs(away, family), intact)
        assert stored(away) == before
    first, second = zeroed_weights(away, [1]), zeroed_weights(away, [2, 3])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    now = outputs(away, family)
    second.__exit__(None, None, None)
    with zeroed_weights(away, [2, 3]):
        assert equal(outputs(away, family), now)
    assert equal(outputs(away, family), intact)
    assert stored(away) == before


def test_what_is_set_for_good_stays_under_later_changes(spread: Callable[[Any], Any]) -> None:
    family = FAMILIES["llama"]
    whole = build(family, "CausalLM")
    away = spread(whole)
    assert zero_weights_(away, [3]) == zero_weights_(whole, [3])
    with zeroed_weights(away, [3, 5]):
        pass
    assert equal(outputs(away, family), outputs(whole, family))
    assert fingerprint(away) == fingerprint(whole)


def test_weights_that_come_back_into_the_model_meanwhile_are_put_back_there(spread: Callable[[Any], Any]) -> None:
    family = FAMILIES["llama"]
    whole = build(family, "CausalLM")
    away = spread(whole)
    with zeroed_weights(away, [1]):
        remove_hook_from_module(away, recurse=True)
    assert fingerprint(away) == fingerprint(whole)


def test_a_pass_that_fails_leaves_old_values_that_are_not_believed(tmp_path: Path) -> None:
    """accelerate takes a module's weights away once it has run: one that fails keeps them."""
    family = FAMILIES["llama"]
    away = disk_offload(build(family, "CausalLM"), tmp_path, torch.device("cpu"))
    module = away.get_submodule("model.layers.0.mlp.down_proj")
    intact, name = fingerprint(away), "model.layers.0.mlp.down_proj.weight"
    own = module._old_forward
    module._old_forward = lambda *_: 1 / 0
    with zeroed_weights(away, [1]):
        with pytest.raises(ZeroDivisionError):
            outputs(away, family)
        assert not module.weight.is_meta
        with zeroed_weights(away, [2]):
            assert not live_parameters(away)[name].detach()[1:3].any()
        assert live_parameters(away)[name].detach()[2].all()
    module._old_forward = own
    assert fingerprint(away) == intact


# Commands that run a model, and those that watch experts on one that has some.
COMMANDS = (
    "observe", "ablate", "sweep", "prune test", "replicate puccetti", "embed", "geometry", "frequency", "attention", "probe",
    "quantize", "plan", "range", "mask", "trace", "explore",
)  # fmt: skip
EXPERTS = ("range", "trace", "ablate")


def found(folder: Path, monkeypatch: pytest.MonkeyPatch, spread: Spread | None = None) -> dict[str, Any]:
    """What the commands say, and what `ablate` saves, of models that are whole or spread out as they are loaded."""
    real = load.from_objects
    folder.mkdir()
    every_command.fill(folder)
    mixture(folder / "experts")
    monkeypatch.setenv("OUTLIERLENS_RUNS", str(folder / "runs"))

    def from_objects(model: Any, *given: Any, **named: Any) -> Any:
        return real(spread(model, folder / f"weights-{id(model)}") if spread else model, *given, **named)

    said: dict[str, Any] = {}
    for name, model in [*((one, every_command.M) for one in COMMANDS), *((one, "experts") for one in EXPERTS)]:
        words = [
            model if word == every_command.M else f"{model}-{word}" if word == "off" else word
            for word in every_command.RUNS[name]
        ]
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(load, "from_objects", from_objects)
            ended = every_command.call(*name.split(), *words, "--json", "--overwrite")
        assert ended.code == 0, ended.err
        said[f"{name} {model}"] = without_clock(json.loads(ended.out))
    return said | {str(path.parent.name): path.read_bytes() for path in folder.glob("*-off/model.safetensors")}


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        clock = ("created", "command", "seconds", "cost")
        return {key: without_clock(one) for key, one in value.items() if key not in clock}
    return [without_clock(one) for one in value] if isinstance(value, list) else value


def mixture(folder: Path) -> None:
    """Write a small mixture of experts with the tokenizer of the sample."""
    from transformers import AutoTokenizer, MixtralConfig, MixtralForCausalLM

    from outlierlens.checkpoints.samples import directory

    tokenizer = AutoTokenizer.from_pretrained(directory(every_command.M))
    sizes = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = {"num_local_experts": 4, "num_key_value_heads": 1, "max_position_embeddings": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MixtralForCausalLM(MixtralConfig(vocab_size=len(tokenizer), **sizes, **settings))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.filterwarnings("ignore:Attempting to save a model with offloaded modules")
def test_commands_find_what_they_find_in_the_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = found(tmp_path / "whole", monkeypatch)
    assert {"mini-planted-off", "experts-off"} < wanted.keys()
    for name in ("disk", "disk and cpu"):
        said = found(tmp_path / name, monkeypatch, SPREADS[name])
        assert {key: said[key] == one for key, one in wanted.items()} == dict.fromkeys(wanted, True)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A tiny mixture of experts in bfloat16 with a tokenizer; experts are stored one by one, and packed as they are loaded."""
    folder = tmp_path / "model"
    build(FAMILIES["mixtral"], "CausalLM").bfloat16().save_pretrained(folder)
    Words.build(kind="causal").save_pretrained(folder)
    return folder


def test_device_map_is_handed_on(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_model(str(saved))
    places = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.layers.2": "disk"}
    given = places | {"model.norm": "disk", "model.rotary_emb": "cpu", "lm_head": "disk"}
    away = load_model(str(saved), LoadOptions(device_map=given))
    assert away.model.get_parameter("model.layers.0.mlp.experts.down_proj").is_meta
    assert (away.dtype, away.device.type) == ("float32", "cpu")
    assert fingerprint(away.model) == fingerprint(whole.model)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad(), zeroed_weights(whole, [3]), zeroed_weights(away, [3]):
        assert torch.equal(whole.model(ids).logits, away.model(ids).logits)
    auto = load_model(str(saved), LoadOptions(device_map="auto"))
    assert fingerprint(auto.model) == fingerprint(whole.model)


REFUSED: dict[str, tuple[Callable[[Any, Path], Any], str]] = {
    "training": (
        lambda model, folder: watch(model, folder / "rows.jsonl"),
        "training is not possible while accelerate keeps",
    ),
    "gradients": (
        lambda model, _: frozen(model, ["lm_head.weight"]).__enter__(),
        "a gradient of weights is not possible",
    ),
    "setting in place": (
        lambda model, _: live_parameters(model)["lm_head.weight"].mul_(2),
        r"cannot be set in place \(mul_\)",
    ),
    "other types": (
        lambda model, _: SettableParameters(ExitStack(), model, {"x": torch.ones(2, dtype=torch.int8)}).set_values(
            "x", 0, 1
        ),
        "x is of type torch.int8",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_weights_in_their_places_says_so(what: str, tmp_path: Path) -> None:
    away = disk_offload(build(FAMILIES["llama"], "CausalLM"), tmp_path / "weights", torch.device("cpu"))
    call, said = REFUSED[what]
    before = fingerprint(away)
    with pytest.raises(BadInput, match=said):
        call(away, tmp_path)
    assert fingerprint(away) == before


def test_a_model_on_several_devices_is_refused_where_it_would_run() -> None:
    model = build(FAMILIES["llama"], "CausalLM")
    add_hook_to_module(model, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    add_hook_to_module(model.get_submodule("model.layers.1"), AlignDevicesHook(execution_device="meta"))
    with pytest.raises(BadInput, match=r"run on several devices \(cpu, meta\).*CUDA_VISIBLE_DEVICES=0"):
        assert from_objects(model).device


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"adapter": "folder"}])
def test_device_map_and_what_it_excludes(options: dict[str, Any], saved: Path) -> None:
    (saved / "folder").mkdir()
    with pytest.raises(BadInput, match="device_map spreads the weights of a model as stored"):
        load_model(str(saved), LoadOptions(device_map="auto", **options))


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_of_bitsandbytes_are_read_and_not_set(bits: int, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes)).save_pretrained(tmp_path)
    how = BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=how, device_map={"": "cpu"})
    loaded, module = from_objects(model, Words.build(kind="causal")), model.model.layers[1].mlp.down_proj
    weight = live_parameters(model)["model.layers.1.mlp.down_proj.weight"].detach().float()
    assert torch.allclose(module(torch.eye(128)), weight.T, atol=0.02 * float(weight.abs().max()))
    ids = torch.tensor([[5, 6, 7]])
    intact, before = model(ids).logits, fingerprint(model)
    with edited_hidden(loaded, [3]):
        assert not torch.equal(model(ids).logits, intact)
    assert torch.equal(model(ids).logits, intact)
    for refused in (zeroed_weights(loaded, [3]), rounded(loaded, parse("int8-tensor/none"))):
        with pytest.raises(BadInput, match=r"weight is (in codes|of type .*int8).*load the model unquantized"):
            refused.__enter__()
    assert fingerprint(model) == before
