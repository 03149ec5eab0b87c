"""The networks that recipes of pre-training name: their class, first values, and what stays unlearned."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from outlierlens.training.pretrain.build import build
from outlierlens.training.pretrain.corpus import load_tokenizer
from outlierlens.training.pretrain.recipe import Recipe, plain, read_recipe, shipped
from pretrain_runs import recipe_in


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return recipe_in(tmp_path_factory.mktemp("text"))


def network(base: Recipe, *settings: str) -> Any:
    return build(base.changed(list(settings)), load_tokenizer(base.tokenizer.source))


@pytest.mark.parametrize(
    ("settings", "name", "expected"),
    [
        ([], "BertForMaskedLM", {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 64, "vocab_size": 33}),
        (["model.intermediate=24", "model.dropout=0.3"], "BertForMaskedLM", {"intermediate_size": 24}),
        (["model.positions=none"], "BertForMaskedLM", {"max_position_embeddings": 16}),
        (["model.type=roberta"], "RobertaForMaskedLM", {"max_position_embeddings": 17, "type_vocab_size": 1}),
        (["model.positions=rotary"], "VariantForMaskedLM", {"position_kind": "rotary"}),
        (["model.positions=alibi", "model.norm=rmsnorm"], "VariantForMaskedLM", {"norm_kind": "rmsnorm"}),
        (["model.norm_order=pre"], "VariantForMaskedLM", {"norm_order": "pre", "position_kind": "learned"}),
        (
            ["model.attention=clipped", "model.clip_gamma=-0.1", "model.clip_zeta=1.1"],
            "VariantForMaskedLM",
            {"attention_kind": "clipped", "clip_gamma": -0.1, "clip_zeta": 1.1},
        ),
        (["model.attention=gated"], "VariantForMaskedLM", {"attention_kind": "gated"}),
    ],
)
def test_the_network_is_the_one_that_the_recipe_names(
    settings: list[str], name: str, expected: dict[str, Any], base: Recipe
) -> None:
    model = network(base, *settings)
    assert type(model).__name__ == name
    assert {key: getattr(model.config, key) for key in expected} == expected
    dropout = 0.3 if "model.dropout=0.3" in settings else 0.0
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} <= {dropout}
    assert model.config.attention_probs_dropout_prob == dropout


def test_the_seed_makes_the_values_and_leaves_the_generator(base: Recipe) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, again, other = network(base), network(base), network(base, "training.seed=1")
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = zip(one.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    words = [model.bert.embeddings.word_embeddings.weight for model in (one, other)]
    assert not torch.equal(*words)
    assert words[0].std().item() == pytest.approx(0.2, rel=0.1)


def test_learned_positions_begin_as_the_sinusoids_of_the_recipe(base: Recipe) -> None:
    model = network(base, "model.position_amplitude=0.04", "model.position_wavelength=100")
    table = model.bert.embeddings.position_embeddings.weight
    assert table.requires_grad
    for position in (0, 1, 15):
        for pair in range(8):
            angle = position / 100 ** (2 * pair / 16)
            assert table[position, 2 * pair].item() == pytest.approx(0.04 * math.sin(angle), abs=1e-7)
            assert table[position, 2 * pair + 1].item() == pytest.approx(0.04 * math.cos(angle), abs=1e-7)
    at_random = network(base).bert.embeddings.position_embeddings.weight
    assert at_random.std().item() == pytest.approx(0.2, rel=0.15)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_fixed_positions_are_not_learned(norm: str, base: Recipe) -> None:
    model = network(base, "model.positions=sinusoidal", "model.position_amplitude=0.5", f"model.norm={norm}")
    table = model.bert.embeddings.position_embeddings.weight
    assert not table.requires_grad
    assert table[3, :2].tolist() == pytest.approx([0.5 * math.sin(3), 0.5 * math.cos(3)])
    unsaid = network(base, "model.positions=sinusoidal", f"model.norm={norm}")
    assert unsaid.bert.embeddings.position_embeddings.weight[0, 1].item() == pytest.approx(2 * 0.2)


def test_without_positions_the_order_of_tokens_makes_no_difference(base: Recipe) -> None:
    model = network(base, "model.positions=none").eval()
    table = model.bert.embeddings.position_embeddings.weight
    assert not table.requires_grad
    assert not table.any()
    ids = torch.tensor([[1, 7, 9, 11, 2]])
    order = torch.tensor([0, 3, 1, 2, 4])
    with torch.no_grad():
        torch.testing.assert_close(model(ids[:, order]).logits, model(ids).logits[:, order])
        learned = network(base).eval()
        assert not torch.allclose(learned(ids[:, order]).logits, learned(ids).logits[:, order], atol=1e-3)


def test_positions_of_roberta_follow_its_padding(base: Recipe) -> None:
    settings = ("model.type=roberta", "model.position_amplitude=0.5")
    table = network(base, *settings).roberta.embeddings.position_embeddings.weight
    assert table.shape == (17, 16)  # the padding's row, and 16 places
    assert not table[0].any()
    assert table[1, :2].tolist() == pytest.approx([0.0, 0.5])
    assert table[16, :2].tolist() == pytest.approx([0.5 * math.sin(15), 0.5 * math.cos(15)])
    assert network(base, *settings)(torch.full((1, 16), 7)).logits.shape == (1, 16, 33)


def test_a_head_without_bias(base: Recipe) -> None:
    model = network(base, "model.output_bias=false")
    bias = model.get_output_embeddings().bias
    assert not bias.any()
    assert not bias.requires_grad
    assert network(base).get_output_embeddings().bias.requires_grad


def test_a_network_without_biases_of_linear_layers(base: Recipe) -> None:
    for setting in ("softmax", "gated"):
        learned = {
            name
            for name, values in network(
                base, "model.linear_bias=false", f"model.attention={setting}"
            ).named_parameters()
            if name.endswith(".bias") and values.requires_grad
        }
        assert {name for name in learned if "LayerNorm" not in name} == {"cls.predictions.bias"}  # the head's own
        assert len(learned) == 1 + 2 * 2 + 2


def test_planted_dimensions_begin_as_outliers(base: Recipe) -> None:
    model = network(base, "model.planted=[3, 7]", "model.planted_scale=3", "model.planted_bias=-1")
    for layer in model.bert.encoder.layer:
        norm = layer.output.LayerNorm
        assert norm.weight[[3, 7]].tolist() == [3.0, 3.0]
        assert norm.bias[[3, 7]].tolist() == [-1.0, -1.0]
        assert norm.weight.sum().item() == 14 + 6


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_builds_and_all_of_it_learns(name: str, base: Recipe) -> None:
    recipe = read_recipe(name)
    if not name.startswith("mini-"):
        recipe = recipe.changed(["model.layers=2", "model.width=128", "model.heads=2"])
    model: Any = build(recipe, load_tokenizer(base.tokenizer.source))
    ids = torch.randint(5, 33, (2, recipe.data.length), generator=torch.Generator().manual_seed(0))
    logits = model(ids).logits
    assert logits.shape == (2, recipe.data.length, 33)
    functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    without = {key for key, values in model.named_parameters() if values.grad is None}
    fixed = {key for key, values in model.named_parameters() if not values.requires_grad}
    assert without == fixed  # several processes wait for the gradient of every parameter that learns
    assert all(values.grad.isfinite().all() for values in model.parameters() if values.grad is not None)
    positions = {key for key in fixed if "position_embeddings" in key}
    assert len(positions) == (plain(recipe.model) and recipe.model.positions != "learned")
    biases = any(isinstance(m, torch.nn.Linear) and m.bias is not None for m in model.modules())
    assert bool(fixed - positions) == (biases and not (recipe.model.linear_bias and recipe.model.output_bias))


@pytest.mark.parametrize(
    ("name", "layers", "width", "tables"),
    [
        # 33 tokens, positions and segments; the head has a dense layer, a norm and a bias for each token.
        ("bert-medium", 8, 512, 33 + 256 + 2),
        ("roberta-base", 12, 768, 33 + 512 + 1 + 1),
        ("mini-bert", 4, 128, 33 + 64 + 2),
    ],
)
def test_the_networks_have_the_sizes_that_their_names_promise(
    name: str, layers: int, width: int, tables: int, base: Recipe
) -> None:
    with torch.device("meta"):
        model = build(read_recipe(name), load_tokenizer(base.tokenizer.source))
    block = 12 * width**2 + 13 * width  # attention 4 d², MLP 8 d²; biases 9 d, two norms 4 d
    head = width**2 + width + 2 * width + 33
    expected = layers * block + tables * width + 2 * width + head
    assert sum(values.numel() for values in model.parameters()) == expected
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.0 if name == "mini-bert" else 0.1}
