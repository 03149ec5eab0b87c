"""GGUF files of every known family run as the models that they were made of, wherever they stand, and broken ones do not."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES, Family, build
from llama_cpp import CONVERTED, byte_level, write_gguf
from outlierlens.analyses.scan import scan
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadFile, OutlierlensError, UnknownArchitecture
from outlierlens.models.load import LoadOptions, fingerprint, from_objects, load_config, load_model, load_tokenizer

TEXTS = [f"The {word} was {how}, and number {n} of it cost ${n}.50!" for n, (word, how) in enumerate(
    [("film", "good"), ("book", "bad"), ("song", "long"), ("play", "short"), ("naïve café", "déjà vu")] * 4)]  # fmt: skip
INSIDE, BPE = byte_level(TEXTS, size=300)
IDS = torch.tensor([[5, 6, 7, 280, 9, 270, 11, 12, 299, 3, 4, 250]])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def sized(name: str, **more: Any) -> Family:
    """A tiny family with as many tokens as the tokenizer, and what llama.cpp has no words for set as it takes it to be."""
    usual: dict[str, Any] = {"vocab_size": len(INSIDE["tokens"])}
    if name == "qwen3_moe":
        usual |= {"mlp_only_layers": [], "norm_topk_prob": True}
    if name in ("gemma2", "gemma3_text", "gpt_oss"):
        usual |= {"query_pre_attn_scalar": 8, "sliding_window": 4}
    return dataclasses.replace(FAMILIES[name], config=FAMILIES[name].config | usual | more)


def gguf(path: Path, name: str = "llama", **more: Any) -> Any:
    """Write a tiny GGUF file of a family; the model that it was made of."""
    model = build(sized(name, **more), "" if name == "bert" else "CausalLM")
    write_gguf(path, model, CONVERTED[name], INSIDE)
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=torch.ones_like(IDS))[0]


QUIET = LoadOptions(notice=lambda _: None)

# --- GGUF: the same numbers as the model it was made of ----------------------------------------------------------


@pytest.mark.parametrize("name", CONVERTED)
def test_every_family_computes_from_its_file_what_the_model_computes(name: str, tmp_path: Path) -> None:
    model = gguf(tmp_path / "model.gguf", name)
    loaded = load_model(str(tmp_path / "model.gguf"), QUIET)
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=2e-5, rtol=2e-5)
    assert loaded.head == ("none" if name == "bert" else "causal")
    assert loaded.dtype == "float32"
    assert loaded.tokenizer is not None
    for text in TEXTS[:5]:
        assert loaded.tokenizer(text)["input_ids"] == BPE.encode(text).ids


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_neurons_of_experts_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    model = gguf(tmp_path / "model.gguf", name)
    options = ScanOptions(stack="mlp")
    stored, live = scan(str(tmp_path / "model.gguf"), options), scan(from_objects(model, name=name), options)
    assert [one.largest for one in stored.mlps] == pytest.approx([one.largest for one in live.mlps], rel=1e-5)
    assert {one.n_experts for one in stored.mlps} == {4}


ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3": (
        "llama",
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 100.0,
         "original_max_position_embeddings": 8},
    ),
    "linear": ("llama", {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}),
    "yarn": (
        "qwen2", {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": 8},
    ),
    "longrope": (
        "phi3",
        {"rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0, 1.5, 2.0, 3.0],
         "long_factor": [1.0, 2.0, 4.0, 9.0], "original_max_position_embeddings": 8, "partial_rotary_factor": 1.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROPES)
def test_stretched_rotary_positions_come_back(kind: str, tmp_path: Path) -> None:
    name, rope = ROPES[kind]
    more = {"original_max_position_embeddings": 8} if name == "phi3" else {}
    model = gguf(tmp_path / "model.gguf", name, rope_parameters=rope, **more)
    plain = build(sized(name, rope_parameters={"rope_type": "default", "rope_theta": rope["rope_theta"]}), "CausalLM")
    loaded = load_model(str(tmp_path / "model.gguf"), QUIET)
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=2e-5, rtol=2e-5)
    assert (logits(plain) - logits(model)).abs().max() > 1e-3  # what the setting is for


def test_quantized_matrices_run_as_their_dequantized_values(tmp_path: Path) -> None:
    from outlierlens.checkpoints import open_checkpoint

    model = build(sized("qwen2", hidden_size=64, intermediate_size=64, head_dim=32), "CausalLM")
    write_gguf(tmp_path / "model.gguf", model, "qwen2", INSIDE, quantize="Q8_0")
    loaded = load_model(str(tmp_path / "model.gguf"), QUIET)
    with open_checkpoint(str(tmp_path / "model.gguf")) as checkpoint:
        stored = dict(checkpoint.read(checkpoint.tensors))
        assert checkpoint.tensors["model.layers.0.mlp.down_proj.weight"].dtype == "Q8_0"
    for key, values in stored.items():
        np.testing.assert_array_equal(loaded.model.get_parameter(key).detach().numpy(), values, err_msg=key)


# --- GGUF: where it stands ---------------------------------------------------------------------------------------


def test_a_file_a_folder_that_holds_it_and_a_folder_with_config_and_tokenizer_are_one_model(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    model = gguf(tmp_path / "alone" / "of-any-name.gguf")
    full = tmp_path / "full"
    build(sized("llama"), "CausalLM").save_pretrained(full)
    (full / "model.safetensors").unlink()
    as_it_was = load_tokenizer(str(tmp_path / "alone"), QUIET)
    as_it_was.save_pretrained(full)
    shutil.copy(tmp_path / "alone" / "of-any-name.gguf", full / "model.gguf")
    names = [tmp_path / "alone" / "of-any-name.gguf", tmp_path / "alone", full, full / "model.gguf"]
    loaded = [load_model(str(name), QUIET) for name in names]
    assert {fingerprint(one.model) for one in loaded} == {fingerprint(model)}
    for one in loaded:
        torch.testing.assert_close(logits(one.model), logits(model), atol=1e-6, rtol=1e-6)
        assert one.tokenizer is not None
        assert one.tokenizer(TEXTS[0])["input_ids"] == BPE.encode(TEXTS[0]).ids
    inside = load_model(str(tmp_path), LoadOptions(subfolder="alone", notice=lambda _: None))
    assert fingerprint(inside.model) == fingerprint(model)


def test_several_files_are_named_and_one_is_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b"):
        gguf(tmp_path / f"{name}.gguf")
    wanted = f"2 files match *.gguf and there is no index; name one of them as the model: {tmp_path}/a.gguf (or b.gguf)"
    with pytest.raises(BadFile) as caught:
        load_model(str(tmp_path), QUIET)
    assert str(caught.value) == f"{tmp_path}: {wanted}"
    assert load_model(str(tmp_path / "a.gguf"), QUIET).head == "causal"


def test_what_is_made_is_said_made_once_and_made_again_when_the_file_changes(tmp_path: Path, cache: Path) -> None:
    path, said = tmp_path / "model.gguf", []
    first = gguf(path)
    options = LoadOptions(notice=said.append)
    load_model(str(path), options)
    (made,) = (cache / "models").glob("model-*")
    size = (made / "model.safetensors").stat().st_size
    assert said == [
        f"{path}: converting once to {size / 1e3:.1f} kB of float32 safetensors in the cache {cache / 'models'}"
    ]
    assert fingerprint(load_model(str(path), options).model) == fingerprint(first)
    assert len(said) == 1
    second = build(sized("llama"), "CausalLM", seed=1)
    write_gguf(path, second, "llama", INSIDE)
    assert fingerprint(load_model(str(path), options).model) == fingerprint(second) != fingerprint(first)
    assert len(said) == 2
    assert list((cache / "models").glob("model-*")) == [made]


def test_the_tokenizer_alone_copies_no_weights(tmp_path: Path, cache: Path) -> None:
    gguf(tmp_path / "model.gguf")
    assert load_tokenizer(str(tmp_path / "model.gguf"), QUIET)(TEXTS[0])["input_ids"] == BPE.encode(TEXTS[0]).ids
    assert load_config(str(tmp_path / "model.gguf"), QUIET).model_type == "llama"
    assert not list(cache.rglob("*.safetensors"))


def test_a_config_beside_that_is_of_another_model_is_left_aside_and_said(tmp_path: Path) -> None:
    model = gguf(tmp_path / "model.gguf")
    for other in ({"model_type": "bert"}, build(sized("llama", num_hidden_layers=2), "CausalLM").config.to_dict()):
        (tmp_path / "config.json").write_text(json.dumps(other))
        said: list[str] = []
        loaded = load_model(str(tmp_path / "model.gguf"), LoadOptions(notice=said.append))
        assert fingerprint(loaded.model) == fingerprint(model)
        assert said[0] == f"{tmp_path}/config.json: is of another model than the file beside it, and is left aside"


def test_a_config_beside_says_what_a_gguf_file_cannot(tmp_path: Path) -> None:
    """Gemma's scale of queries is in no GGUF file: without a config it is what llama.cpp takes, with one what that says."""
    model = build(sized("gemma2", query_pre_attn_scalar=3), "CausalLM")
    write_gguf(tmp_path / "model.gguf", model, "gemma2", INSIDE)
    alone = load_model(str(tmp_path / "model.gguf"), QUIET)
    assert (alone.config["query_pre_attn_scalar"], model.config.query_pre_attn_scalar) == (8, 3)
    model.config.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path / "model.gguf"), QUIET)
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=2e-5, rtol=2e-5)


def test_a_tokenizer_beside_serves_a_file_whose_own_cannot_be_read(tmp_path: Path) -> None:
    model = build(sized("llama"), "CausalLM")
    path = write_gguf(tmp_path / "model.gguf", model, "llama", INSIDE)
    load_tokenizer(str(path), QUIET).save_pretrained(tmp_path / "kept")
    write_gguf(path, model, "llama", INSIDE, change=lambda settings: settings.update({"tokenizer.ggml.pre": "klingon"}))
    with pytest.raises(
        BadFile, match=r"put the model's tokenizer\.json and tokenizer_config\.json beside model\.gguf$"
    ):
        load_model(str(path), QUIET)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "kept" / file, tmp_path / file)
    loaded = load_model(str(path), QUIET)
    assert fingerprint(loaded.model) == fingerprint(model)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer(TEXTS[0])["input_ids"] == BPE.encode(TEXTS[0]).ids


# --- GGUF: what cannot run ---------------------------------------------------------------------------------------


def broken(path: Path, change: Callable[[dict[str, Any]], object], name: str = "llama") -> str:
    model = build(sized(name), "CausalLM")
    write_gguf(path, model, CONVERTED[name], INSIDE, change=change)
    with pytest.raises(OutlierlensError) as caught:
        load_model(str(path), QUIET)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


HUGE = 2**60
CLAIMS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "blocks": (lambda s: s.update({"llama.block_count": 4_000_000_000}), "claims 4000000000 blocks and holds 3"),
    "one block less": (lambda s: s.update({"llama.block_count": 2}), "claims 2 blocks and holds 3"),
    "width": (lambda s: s.update({"llama.embedding_length": HUGE}), "settings make no model|do not fit each other"),
    "inner width": (lambda s: s.update({"llama.feed_forward_length": HUGE}), "settings make no model|do not fit each other"),
    "vocabulary": (lambda s: s.update({"llama.vocab_size": HUGE}), "settings make no model|do not fit each other"),
    "no heads": (lambda s: s.update({"llama.attention.head_count": 0}), "0 heads of 16 dimensions"),
    "heads": (lambda s: s.update({"llama.attention.head_count": HUGE}), "settings make no model|do not fit each other"),
    "groups": (lambda s: s.update({"llama.attention.head_count_kv": 0}), "settings make no model"),
    "width of heads": (lambda s: s.update({"llama.rope.dimension_count": 6}), "do not fit each other"),
    "missing heads": (lambda s: s.pop("llama.attention.head_count"), "lacks llama.attention.head_count; convert"),
    "missing epsilon": (lambda s: s.pop("llama.attention.layer_norm_rms_epsilon"), "lacks llama.attention.layer_norm_rms_eps"),
    "text for a number": (lambda s: s.update({"llama.rope.dimension_count": "8"}), "makes no model|make no model"),
    "no tokenizer": (lambda s: s.pop("tokenizer.ggml.tokens"), r"holds no tokenizer; put the model's tokenizer\.json and"),
    "another kind": (lambda s: s.update({"tokenizer.ggml.model": "rwkv"}), "of the kind 'rwkv', and gpt2, llama, t5, bert are"),
    "another split": (lambda s: s.update({"tokenizer.ggml.pre": "klingon"}), "splits texts as 'klingon', which is not known"),
    "a token twice": (
        lambda s: s.update({"tokenizer.ggml.tokens": ["a"] * len(INSIDE["tokens"])}), "their types and scores do not fit",
    ),
    "too many tokens": (
        lambda s: s.update({
            "tokenizer.ggml.tokens": [*INSIDE["tokens"], "another"], "tokenizer.ggml.token_type": [*INSIDE["token_type"], 1],
        }), "has 301 tokens and its embeddings 300 rows",
    ),
    "impossible merges": (lambda s: s.update({"tokenizer.ggml.merges": ["a nowhere"]}), "its tokenizer cannot be built"),
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_header_claims_is_held_against_the_tensors_before_it_is_believed(
    claim: str, tmp_path: Path, cache: Path
) -> None:
    change, message = CLAIMS[claim]
    assert re.search(message, broken(tmp_path / "model.gguf", change)), claim
    assert not [path for path in (cache / "models").glob("*") if path.is_dir()]


def test_experts_are_counted(tmp_path: Path) -> None:
    change = {"qwen3moe.expert_count": 1_000_000_000}
    assert "claims 1000000000 experts, and there are [4]" in broken(
        tmp_path / "m.gguf", lambda s: s.update(change), "qwen3_moe"
    )


def test_an_architecture_that_is_not_known_names_those_that_are(tmp_path: Path) -> None:
    model = build(sized("llama"), "CausalLM")
    path = tmp_path / "model.gguf"
    write_gguf(path, model, "llama", INSIDE)
    path.write_bytes(path.read_bytes().replace(b"llama", b"rwkv7"))
    with pytest.raises(
        UnknownArchitecture, match=r"its architecture is 'rwkv7'; GGUF files of llama, qwen2, .* can be run, of any"
    ):
        load_model(str(path), QUIET)


def test_a_block_with_more_than_its_family_has_is_refused(tmp_path: Path) -> None:
    model = build(sized("llama"), "CausalLM")
    path = write_gguf(tmp_path / "model.gguf", model, "llama", INSIDE)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    with pytest.raises(BadFile, match=r"holds 'blk\.1\.ffn_xx\.weight', which a llama as known here does not have"):
        load_model(str(path), QUIET)


# --- commands ----------------------------------------------------------------------------------------------------

PLANTED = 11


@pytest.fixture
def planted(tmp_path: Path) -> str:
    """A file whose dimension 11 every block writes largely to."""
    model = build(sized("llama", hidden_size=64, intermediate_size=48), "CausalLM")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight[PLANTED] *= 40
    write_gguf(tmp_path / "planted.gguf", model, "llama", INSIDE)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    return str(tmp_path / "planted.gguf")


def test_scan_and_observe_find_the_outlier_that_was_planted_in_a_file(planted: str) -> None:
    from outlierlens import observe, read_texts, scan

    assert scan(planted).stacks[0].dims == (PLANTED,)
    loaded = load_model(planted, QUIET)
    seen = observe(loaded, read_texts(str(Path(planted).parent / "texts.txt"))).stacks[0]
    assert {one.rule for one in seen.outliers} >= {"luo", "llm.int8"}
    assert {one.dim for one in seen.outliers} == {PLANTED}
