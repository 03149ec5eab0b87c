"""Streams and pairs of every family times powers of two: what stays bit for bit, what nearly, and what is refused."""

import copy
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForSeq2SeqLM

from architectures import FAMILIES, batch
from outlierlens.analyses.repair import difference_of, stays_wide
from outlierlens.analyses.repair_factors import outputs, pairs_of
from outlierlens.analyses.repair_rewriting import RewritingPlan, epsilons, repaired, stream_plan
from outlierlens.architectures import live_parameters
from outlierlens.architectures.pairs import Kind
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from repair_families import END, EXPONENT, KINDS, START, load, output, paired, rectified, rescaled, seen, table

TOP = 65504.0
LOADED = {name: load(one) for name, one in FAMILIES.items()}  # nothing runs while tests are collected
POST = {name for name, one in LOADED.items() if any(bound.stack.norm_site == "stream" for bound in one.stacks)}
# What is refused for another reason, and what the check of the command refuses.
FIXED = {"wav2vec2-stable": "positional convolution", "wav2vec2-adapters": "positional convolution"}
FIXED |= {
    "whisper": "before its first block",
    "gemma3": "pictures",
    "opt": "written in the model's code",
    "modernbert": "head.norm",
}
NEAR = {"gemma2", "gemma3_text", "outlierlens-bert-pre-norm", "outlierlens-bert-pre-rmsnorm"}
SCALED = sorted(FAMILIES.keys() - POST - FIXED.keys())
NO_HALF = {"olmo2"}  # its linears read the stream itself, and stay as large as it was
CLAMPED = {"t5", "t5-gated", "mt5"}  # their code cuts what overflows in float16


def test_every_family_is_told_apart() -> None:
    assert {"bert", "bart", "albert", "xlnet", "opt-post-norm", "wav2vec2"} <= POST
    assert {name for name, one in FAMILIES.items() if "(post-norm)" in rescaled(one).why} == POST
    for name, why in FIXED.items():
        tried = rescaled(FAMILIES[name])
        assert tried.verdict == "no", name
        assert why in tried.why
        assert "\n" not in tried.why
    assert {name for name in SCALED if rescaled(FAMILIES[name]).verdict == "near"} == NEAR
    assert {name for name in SCALED if rescaled(FAMILIES[name]).verdict == "no"} == set()


@pytest.mark.parametrize("name", SCALED)
def test_outputs_stay(name: str) -> None:
    tried = rescaled(FAMILIES[name])
    assert tried.difference <= (1e-5 if name in NEAR else 0.0)


@pytest.mark.parametrize("name", SCALED)
def test_a_planted_overflow_is_repaired(name: str) -> None:
    family = FAMILIES[name]
    loaded, inputs = load(family), batch(family)
    _plant(loaded, inputs)
    wanted = output(loaded.model, inputs)
    assert wanted.isfinite().all()
    if name not in CLAMPED | NO_HALF:
        assert not _half(loaded, inputs).isfinite().all()
    exponent = seen(loaded, inputs).stream_exponent("fp16", 4)
    with repaired(loaded, stream_plan(loaded, exponent)):
        found = output(loaded.model, inputs)
        assert name in NO_HALF or _half(loaded, inputs).isfinite().all()
        assert max(seen(loaded, inputs).layers) <= TOP / 4
    if name in NEAR:
        # 1 + weight is rounded near 1, and then as much larger beside a factor of 2^exponent.
        assert (found - wanted).abs().max() <= max(1e-5, 256 * 2.0 ** (-24 - exponent)) * wanted.abs().max()
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "parameter"), [("opt", "model.decoder.embed_tokens.weight"), ("modernbert", "head.dense.weight")]
)
def test_an_epsilon_that_stays_is_small_beside_large_values(name: str, parameter: str) -> None:
    """The norm's epsilon stays ε where it should be s²·ε, or the other way round: its output moves by ε/(2 s² variance)."""
    loaded, inputs = load(FAMILIES[name]), batch(FAMILIES[name])
    with torch.no_grad():
        live_parameters(loaded.model)[parameter].mul_(256)
    _plant(loaded, inputs)
    wanted = output(loaded.model, inputs)
    assert not _half(loaded, inputs).isfinite().all()
    with repaired(loaded, stream_plan(loaded, seen(loaded, inputs).stream_exponent("fp16", 4))):
        assert difference_of([wanted], [output(loaded.model, inputs)]) <= 1e-5
        assert _half(loaded, inputs).isfinite().all()


def test_modernbert_is_exact_without_its_head() -> None:
    family = replace(FAMILIES["modernbert"], heads=())
    loaded, inputs = load(family), batch(family)
    wanted = output(loaded.model, inputs)
    with repaired(loaded, stream_plan(loaded, EXPONENT)):
        assert torch.equal(output(loaded.model, inputs), wanted)


PAIRED = [(name, kind) for name, one in sorted(LOADED.items()) for kind in KINDS if pairs_of(one, (kind,))]
RELU = sorted(
    {"bert", "bart", "gpt2", "gpt_neo", "phi", "vit", "clip", "wav2vec2", "whisper", "xlnet", "albert", "falcon"}
)
NEAR_PAIRS = {("gemma", "norms"), ("gemma2", "norms"), ("gemma3", "norms"), ("gemma3_text", "norms")}
NEAR_PAIRS |= {("gemma3", "keys"), ("gemma3_text", "keys")}


def test_the_page_shows_every_family() -> None:
    page = (Path(__file__).parents[2] / "benchmarks" / "README.md").read_text("utf-8")
    assert START + table() + END in page, "python tests/repair_families.py writes the table anew"


def test_every_family_has_pairs() -> None:
    assert {name for name, _ in PAIRED} == FAMILIES.keys() - {"xlnet"}
    assert {one for one in PAIRED if paired(*one).verdict != "exact"} == NEAR_PAIRS  # type: ignore[union-attr]
    gated = {name for name, kind in PAIRED if kind == "neurons"}
    assert gated >= {"llama", "phi3", "mixtral", "qwen3_moe", "t5", "t5-gated", "opt", "modernbert", "dinov2-gated"}
    assert "gpt_oss" not in gated  # it adds 1 to what the up projection gives


@pytest.mark.parametrize(("name", "kind"), PAIRED)
def test_outputs_stay_with_pairs(name: str, kind: Kind) -> None:
    tried = paired(name, kind)
    assert tried.difference <= (1e-5 if (name, kind) in NEAR_PAIRS else 0.0)


@pytest.mark.parametrize(("name", "kind"), PAIRED)
def test_an_overflow_planted_in_a_pair_is_repaired(name: str, kind: Kind) -> None:
    _plant_and_repair(load(FAMILIES[name]), batch(FAMILIES[name]), kind, near=(name, kind) in NEAR_PAIRS)


@pytest.mark.parametrize("name", RELU)
def test_a_relu_lets_neurons_take_factors(name: str) -> None:
    family = rectified(name)
    loaded = load(family)
    assert pairs_of(loaded, ("neurons",))
    _plant_and_repair(loaded, batch(family), "neurons", near=False)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("phi", {"qk_layernorm": True}),
        ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_type": "default", "rope_theta": 1e4}}),
        ("deberta-v2", {"share_att_key": False}),
        ("falcon", {"multi_query": False}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("qwen2", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}),
        ("phi3", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}),
        ("falcon-new", {"num_attention_heads": 4, "num_kv_heads": 2}),
        ("llama-biases", {"tie_word_embeddings": True, "num_key_value_heads": 2}),
    ],
)
@pytest.mark.parametrize("kind", ["values", "keys"])
def test_variants_of_heads(name: str, changes: dict[str, Any], kind: Kind) -> None:
    family = FAMILIES[name]
    _plant_and_repair(load(replace(family, config=family.config | changes)), batch(family), kind, near=False)


def test_what_is_kept_wide_when_it_is_loaded_is_said() -> None:
    (said,) = stays_wide(load(FAMILIES["t5"]), "fp16")
    assert "model.half()" in said
    assert "keeps wo in float32" in said
    with tempfile.TemporaryDirectory() as folder:
        load(FAMILIES["t5"]).model.save_pretrained(folder)
        back = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float16)
    kinds = {name.split(".")[-2]: value.dtype for name, value in back.named_parameters() if name.endswith("weight")}
    assert (kinds["wo"], kinds["wi"]) == (torch.float32, torch.float16)  # as the note says
    assert stays_wide(load(FAMILIES["t5"]), "bf16") == stays_wide(load(FAMILIES["llama"]), "fp16") == ()


def _plant_and_repair(loaded: LoadedModel, inputs: dict[str, Any], kind: Kind, *, near: bool) -> None:
    """Every fifth channel of every pair of the kind times 2^24, and back: float32 does not notice, and float16 overflows."""
    wanted, before = output(loaded.model, inputs), _half(loaded, inputs)
    planted = RewritingPlan().pairs(
        [(pair, torch.where(pair.shared % 5 == 0, 24, 0)) for pair in pairs_of(loaded, (kind,))]
    )
    with repaired(loaded, planted):
        if not near:
            assert torch.equal(output(loaded.model, inputs), wanted)
        start = output(loaded.model, inputs)
        assert not torch.allclose(_half(loaded, inputs).float(), before.float(), rtol=1e-3, atol=1e-3)
        factors = seen(loaded, inputs).pair_exponents("fp16", 4)
        assert {pair.kind for pair, _ in factors} == {kind}
        with repaired(loaded, RewritingPlan().pairs(factors)):
            again = output(loaded.model, inputs)
            half = _half(loaded, inputs)
            assert not seen(loaded, inputs).pair_exponents("fp16", 4)
        assert half.isfinite().all()
        if not near:  # 1 + weight near 0 has few digits in float16, whatever is repaired
            assert (half - wanted).abs().max() <= 0.02 * wanted.abs().max() + 2 * (before - wanted).abs().max()
        if near:
            assert (again - start).abs().max() <= 1e-5 * start.abs().max()
        else:
            assert torch.equal(again, wanted)


def test_a_stream_that_ends_without_a_norm_is_refused() -> None:
    # Its last states are handed on as they are, the pooled one too where it is the first token.
    config = transformers.Data2VecVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4
    )
    loaded = from_objects(transformers.Data2VecVisionModel(config).eval(), name="data2vec-vision")
    with pytest.raises(BadInput, match="no norm follows its last block"):
        stream_plan(loaded, EXPONENT)


def test_the_embeddings_of_a_model_of_pairs_count_before_its_states() -> None:
    family = FAMILIES["clip"]
    loaded, inputs = load(family), batch(family)
    wanted = outputs(loaded.model, [inputs])
    with torch.inference_mode():
        assert torch.equal(wanted[0], loaded.model(**inputs).image_embeds)
    with repaired(loaded, stream_plan(loaded, EXPONENT)):
        assert torch.equal(outputs(loaded.model, [inputs])[0], wanted[0])


@pytest.mark.parametrize("name", ["gpt2", "llama-biases", "gemma", "t5", "olmo2", "dinov2"])
def test_everything_is_put_back(name: str) -> None:
    loaded = load(FAMILIES[name])
    model: Any = loaded.model
    before = {key: value.detach().clone() for key, value in live_parameters(model).items()}
    config, ties = model.config.to_dict(), len(list(model.parameters()))
    with pytest.raises(KeyError), repaired(loaded, stream_plan(loaded, EXPONENT)):
        raise KeyError
    assert model.config.to_dict() == config
    assert len(list(model.parameters())) == ties
    assert all(torch.equal(value, before[key]) for key, value in live_parameters(model).items())


def test_who_sets_which_epsilon() -> None:
    found = epsilons(load(FAMILIES["qwen3"]).model)
    assert found["model.layers.2.self_attn.q_norm"] == found["model.norm"] == "rms_norm_eps"
    assert set(found.values()) == {"rms_norm_eps"}
    assert epsilons(load(FAMILIES["opt"]).model)["model.decoder.final_layer_norm"] == ""


def test_values_that_would_vanish_are_refused() -> None:
    plan = RewritingPlan({"weight": (-4,)})
    tiny = torch.tensor([2.0**-24, 1.0], dtype=torch.float16)
    with pytest.raises(BadInput, match="weight: values times a power of two lie outside what float16 holds"):
        plan.changed("weight", tiny)
    assert torch.equal(plan.changed("weight", tiny[1:]), torch.tensor([2.0**-4], dtype=torch.float16))


def _plant(loaded: LoadedModel, inputs: dict[str, Any]) -> None:
    """Multiply what one dimension of the first block's last operation writes by 8 until hidden states exceed float16."""
    for bound in loaded.stacks:
        param = bound.scale[0][0]
        values = live_parameters(loaded.model)[param.name]
        first = sum(one.n_layers for one in loaded.stacks[: loaded.stacks.index(bound)])
        for _ in range(30):
            if seen(loaded, inputs).layers[first] > TOP:
                break
            with torch.no_grad():
                values.select(param.axis, 5).mul_(8)


def _half(loaded: LoadedModel, inputs: dict[str, Any]) -> torch.Tensor:
    model = copy.deepcopy(loaded.model).half()
    if hasattr(model.config, "_experts_implementation"):
        model.config._experts_implementation = "eager"  # type: ignore[union-attr]
    return output(model, inputs)
