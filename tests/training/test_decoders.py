"""Decoders of recipes: Llama where they are Llama, attention off by one and gates by hand, Muon, and decay of norms."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import outlierlens as ol
from outlierlens.errors import BadInput
from outlierlens.models.variants.config import VariantConfig, VariantDecoderConfig
from outlierlens.models.variants.model import VariantForCausalLM, VariantForMaskedLM, off_by_one_attention
from outlierlens.training.pretrain.loop import MuonAndAdamW
from outlierlens.training.pretrain.recipe import Recipe, read_recipe
from outlierlens.training.pretrain.rows import IGNORED, TrainingRows, next_tokens
from pretrain_runs import recipe_in, train

TINY: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "eos_token_id": None,
}  # fmt: skip
LLAMA = [
    'model.type="llama"', 'model.positions="rotary"', 'model.norm="rmsnorm"', 'model.norm_order="pre"',
    "model.output_bias=false", "model.linear_bias=false",
]  # fmt: skip
IDS = torch.randint(3, 39, (2, 7), generator=torch.Generator().manual_seed(1))


def decoder(kind: str = "softmax") -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = VariantForCausalLM(VariantDecoderConfig(**TINY, attention_kind=kind)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return recipe_in(tmp_path_factory.mktemp("text")).changed(LLAMA)


# The network


def test_a_decoder_with_softmax_is_llama_bit_for_bit() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    ours = decoder()
    theirs = LlamaForCausalLM._from_config(LlamaConfig(**TINY), attn_implementation="eager").eval()
    theirs.load_state_dict(ours.state_dict())
    found = [model(IDS, labels=IDS, output_hidden_states=True) for model in (ours, theirs)]
    assert torch.equal(found[0].logits, found[1].logits)
    assert all(torch.equal(a, b) for a, b in zip(*(one.hidden_states for one in found), strict=True))


def test_attention_off_by_one_by_hand() -> None:
    module = decoder("off-by-one").model.layers[0].self_attn
    module.num_key_value_groups = 1
    query = torch.tensor([[[[math.log(2.0)]]]])
    key, value = torch.tensor([[[[1.0], [0.0], [2.0]]]]), torch.tensor([[[[10.0], [100.0], [9.0]]]])
    # exp of the scores is 2, 1, 4; and 1 more is divided by.
    read, weights = off_by_one_attention(module, query, key, value, None, scaling=1.0)
    assert weights.flatten().tolist() == pytest.approx([2 / 8, 1 / 8, 4 / 8])
    assert read.flatten().tolist() == pytest.approx([20 / 8 + 100 / 8 + 36 / 8])
    hidden = torch.tensor([[[[0.0, 0.0, torch.finfo(torch.float32).min]]]])
    _, weights = off_by_one_attention(module, query, key, value, hidden, scaling=1.0)
    assert weights.flatten().tolist() == pytest.approx([2 / 4, 1 / 4, 0.0])
    # A head that nothing interests writes nothing.
    _, weights = off_by_one_attention(module, query, key - 100, value, None, scaling=1.0)
    assert float(weights.sum()) < 1e-20


@pytest.mark.parametrize("kind", ["off-by-one", "gated"])
def test_a_decoder_generates_with_its_cache_what_it_computes_without(kind: str) -> None:
    model = decoder(kind)
    made = model.generate(IDS, max_new_tokens=5, do_sample=False, pad_token_id=0)
    ids = IDS
    for _ in range(5):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(made, ids)


@pytest.mark.parametrize("kind", ["off-by-one", "gated"])
def test_a_saved_decoder_loads_as_itself(kind: str, tmp_path: Path) -> None:
    model = decoder(kind)
    model.save_pretrained(tmp_path)
    loaded = ol.load_model(str(tmp_path))
    assert type(loaded.model).__name__ == "VariantForCausalLM"
    assert torch.equal(loaded.model(IDS).logits, model(IDS).logits)
    other = decoder()
    other.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(other(IDS).logits, model(IDS).logits, atol=1e-3)


def test_an_encoder_takes_attention_off_by_one_too() -> None:
    sizes = {key: value for key, value in TINY.items() if key not in ("num_key_value_heads", "eos_token_id")}
    model = VariantForMaskedLM._from_config(
        VariantConfig(**sizes, attention_kind="off-by-one"), attn_implementation="eager"
    )
    (first, *_) = model.eval()(IDS, output_attentions=True).attentions
    assert 0.7 < first.sum(-1).mean().item() < 0.95  # scores near 0 of seven keys: 7 / 8


def test_gates_scale_each_head_at_each_token() -> None:
    gated, plain = decoder("gated"), decoder()
    plain.load_state_dict(gated.state_dict(), strict=False)
    read: dict[str, torch.Tensor] = {}
    for name, model in (("plain", plain), ("gated", gated)):
        block = model.model.layers[0].self_attn
        block.o_proj.register_forward_pre_hook(lambda module, args, name=name: read.update({name: args[0]}))
    block.q_proj.register_forward_pre_hook(lambda module, args: read.update({"input": args[0]}))
    plain(IDS), gated(IDS)
    logits = read["input"] @ block.gate.weight.T + block.gate.bias
    expected = read["plain"].unflatten(-1, (4, 4)) / (1 + torch.exp(-logits))[..., None]
    torch.testing.assert_close(read["gated"].unflatten(-1, (4, 4)), expected)


def test_kinds_of_attention_that_a_decoder_lacks_are_refused() -> None:
    with pytest.raises(BadInput, match="attention_kind is 'clipped'; use one of softmax, gated, off-by-one"):
        VariantDecoderConfig(**TINY, attention_kind="clipped")
    with pytest.raises(BadInput, match="gate_start is 1"):
        VariantDecoderConfig(**TINY, gate_start=1.0)


# The training


def test_a_decoder_predicts_the_next_token_and_no_padding(base: Recipe, tmp_path: Path) -> None:
    ids, labels = next_tokens(np.array([[2, 7, 8, 3, 0, 0]], dtype=np.uint16), padding=0)
    assert (ids.tolist(), labels.tolist()) == ([[2, 7, 8, 3, 0, 0]], [[7, 8, 3, IGNORED, IGNORED, IGNORED]])
    run = train(base.changed(["training.steps=1", "training.log_every=1"]), tmp_path / "run")
    assert type(run.model).__name__ == "LlamaForCausalLM"
    batch = TrainingRows(run.tokens, run.recipe, 16).collate(list(range(16)))
    fresh = ol.load_model(str(run.model_folder)).model
    logits = fresh(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    wanted = batch["input_ids"][:, 1:]
    shown = batch["attention_mask"][:, 1:] > 0
    by_hand = functional.cross_entropy(logits[shown], wanted[shown]).item()
    mean = functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, :-1].flatten()).item()
    assert (batch["labels"][:, -1] == IGNORED).all()
    assert mean == pytest.approx(by_hand, rel=1e-5)


def test_a_decoder_learns_what_can_be_known(base: Recipe, tmp_path: Path) -> None:
    """Knowing the place leaves ln 2 nats a word and nothing of the end: 14 words and one end."""
    run = train(base, tmp_path / "run")
    (loss,) = [row["eval_loss"] for row in run.log if "eval_loss" in row]
    assert 14 / 15 * math.log(2) - 0.02 < loss < 1.0


def test_muon_moves_the_matrices_of_the_blocks_alone(base: Recipe, tmp_path: Path) -> None:
    made: list[MuonAndAdamW] = []
    step = MuonAndAdamW.step

    def seen(self: MuonAndAdamW, closure: Any = None) -> Any:
        made.append(self)
        return step(self, closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MuonAndAdamW, "step", seen)
        run = train(base.changed(['training.optimizer="muon"', "training.weight_decay=0.1"]), tmp_path / "run")
    muon, adam = made[0].parts
    names = {id(values): name for name, values in run.model.named_parameters()}
    matrices = {names[id(one)] for group in muon.param_groups for one in group["params"]}
    others = {names[id(one)] for group in adam.param_groups for one in group["params"]}
    assert matrices == {
        name for name, values in run.model.named_parameters() if ".layers." in name and values.ndim == 2
    }
    assert matrices | others == set(names.values())
    assert {group["weight_decay"] for group in adam.param_groups} == {0.0, 0.1}
    assert {group["weight_decay"] for group in muon.param_groups} == {0.1}
    # The schedule reaches both: at the end of a linear one the rate is nearly 0.
    assert {group["lr"] for part in made[0].parts for group in part.param_groups} == {made[0].param_groups[0]["lr"]}
    assert made[0].param_groups[0]["lr"] < 0.02 / 30


def test_a_run_with_muon_goes_on_where_it_stopped(base: Recipe, tmp_path: Path) -> None:
    recipe = base.changed(['training.optimizer="muon"', "training.save_every=20"])
    whole = train(recipe, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "torn")
    for name in ("checkpoint-40", "model"):
        shutil.rmtree(tmp_path / "torn" / name)
    again = train(recipe, tmp_path / "torn")
    pairs = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_norms_decay_where_the_recipe_says_so(base: Recipe, tmp_path: Path) -> None:
    """Without a gradient's help, steps at a rate r and a decay w leave (1 - r w) of a scale each."""
    found = []
    for name, decays in (("kept", "false"), ("decayed", "true")):
        settings = [f"training.decay_norms={decays}", "training.weight_decay=20.0", "training.steps=20"]
        run = train(base.changed([*settings, "training.learning_rate=1e-3"]), tmp_path / name)
        found.append(torch.stack([one.input_layernorm.weight for one in run.model.model.layers]).mean().item())
    rates = [1e-3 * min(1, step / 5, (20 - step) / 15) for step in range(20)]
    assert found[1] / found[0] == pytest.approx(math.prod(1 - 20 * rate for rate in rates), rel=0.02)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.norm=layernorm", r'type llama needs norm = "rmsnorm" in \[model\]'),
        ("model.attention=clipped", r'type llama needs attention = "softmax" in \[model\]'),
        ("model.dropout=0.1", r"type llama needs dropout = 0\.0"),
        ("training.optimizer=sgd", r"optimizer is 'sgd'; use one of adamw, muon"),
    ],
)
def test_recipes_that_no_decoder_has_are_refused(setting: str, message: str, base: Recipe) -> None:
    with pytest.raises(BadInput, match=message):
        base.changed([setting])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("off-by-one", ("model", "attention", "off-by-one")), ("gated-attention", ("model", "attention", "gated")),
        ("muon", ("training", "optimizer", "muon")), ("decayed-norms", ("training", "decay_norms", True)),
    ],
)  # fmt: skip
def test_a_decoder_of_the_family_changes_one_thing(name: str, change: tuple[str, str, Any]) -> None:
    section, key, value = change
    recipe = read_recipe(f"mini-decoder-{name}")
    assert recipe.changed(
        [f"{section}.{key}={getattr(getattr(read_recipe('mini-decoder'), section), key)!s}".lower()]
    ) == (read_recipe("mini-decoder").changed([f'name="{recipe.name}"', f'about="{recipe.about}"']))
    assert getattr(getattr(recipe, section), key) == value
