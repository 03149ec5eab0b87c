"""Super experts: planted ones found on texts and in weights, numbers by hand; ablated beside others that are fed alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mixtures
import script_modules
from architectures import D_FF, FAMILIES, build
from mixtures import DIM, EXPERT, LAYER, MIXTURES, experts_of, mixture
from outlierlens import ablate, edited_hidden, load_model, sweep, zeroed_weights
from outlierlens.analyses.ablate import AblateOptions, Ablation
from outlierlens.analyses.definitions import MODEL, DefinitionOptions, definitions
from outlierlens.analyses.scan import scan
from outlierlens.analyses.super_experts import ExpertOutput, expert_bounds, expert_outputs, expert_rows, like_fed
from outlierlens.detection.rules import SUPER_EXPERT, super_experts
from outlierlens.detection.weights import ScanOptions, _reach
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from planted import some_texts

TEXTS = some_texts(24, seed=5, longest=12, shortest=6, n_words=9)
PLANTED = (LAYER, EXPERT)


def loaded(words: Any, name: str = "mixtral", *, plant: bool = True) -> LoadedModel:
    return from_objects(mixture(name, plant=plant), words(kind="causal"), name=name)


def test_the_rule_by_hand() -> None:
    """Of 1,000 experts five are above the 99.5 % quantile, one of them below a tenth of the largest, one in a late block."""
    sizes = {(layer, expert): 1.0 for layer in range(4) for expert in range(250)}
    sizes |= {(0, 1): 100.0, (1, 2): 90.0, (2, 3): 11.0, (2, 4): 9.0, (3, 5): 1000.0}
    assert super_experts(sizes, 4) == ((0, 1), (1, 2), (2, 3))
    assert super_experts(sizes, 4, SUPER_EXPERT | {"super_expert_share": 0.05}) == ((0, 1), (1, 2), (2, 3), (2, 4))
    assert super_experts(sizes, 4, SUPER_EXPERT | {"super_expert_layers": 1.0}) == ((3, 5),)
    assert super_experts(sizes, 4, SUPER_EXPERT | {"super_expert_quantile": 0.9985}) == ((0, 1), (1, 2))
    assert super_experts({(0, 0): 2.0, (0, 1): 2.0}, 1) == super_experts({}, 1) == ()


@pytest.mark.parametrize("name", MIXTURES)
def test_a_planted_super_expert_is_found_on_texts_and_in_weights(words: Any, name: str) -> None:
    model = loaded(words, name)
    outputs = expert_outputs(model, model.stacks[0], TEXTS, max_length=32)
    (found,) = expert_rows(model, model.stacks[0], outputs)
    assert (found.layer, found.expert, found.dim, found.rank, found.condition) == (*PLANTED, DIM, 1, MODEL)
    assert found.times > 1000
    ids = model.tokenizer(TEXTS.texts[outputs[PLANTED].text])["input_ids"]
    assert model.tokenizer.convert_ids_to_tokens(ids)[found.position] == found.token
    said = " ".join(scan(model, ScanOptions(stack="mlp")).sentences())
    assert f"{LAYER}:{EXPERT} (dimension {DIM}, " in said.partition("Super experts by weights alone")[2]
    plain = loaded(words, name, plant=False)  # the rule names the largest of any model: its size tells it apart
    others = expert_rows(plain, plain.stacks[0], expert_outputs(plain, plain.stacks[0], TEXTS, max_length=32))
    assert all(one.times < 20 for one in others)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_outputs_are_those_of_each_expert_at_the_tokens_that_reach_it(words: Any, batch_size: int) -> None:
    """By hand: what the router of Mixtral chooses, and gate, up and down of each expert; padding does not count."""
    model = loaded(words)
    outputs = expert_outputs(model, model.stacks[0], TEXTS, max_length=32, batch_size=batch_size)
    sizes, counts = dict[tuple[int, int], float](), dict[tuple[int, int], int]()
    for text in TEXTS.texts:
        for layer, block in enumerate(model.model.model.layers):
            read = list[torch.Tensor]()
            hook = block.mlp.register_forward_pre_hook(lambda _, args, read=read: read.append(args[0][0]))
            with torch.no_grad():
                model.model(**model.tokenizer(text, return_tensors="pt"))
            hook.remove()
            chosen = (read[0] @ block.mlp.gate.weight.T).topk(2, dim=-1).indices
            for expert in range(4):
                mine = read[0].detach()[(chosen == expert).any(-1)]
                gate, up = (mine @ experts_of(model.model, layer).gate_up_proj[expert].T).split(D_FF, dim=-1)
                given = (torch.nn.functional.silu(gate) * up) @ experts_of(model.model, layer).down_proj[expert].T
                place = (layer, expert)
                counts[place] = counts.get(place, 0) + len(mine)
                sizes[place] = max(sizes.get(place, 0.0), float(given.detach().abs().max()) if len(mine) else 0.0)
    assert {place: one.n_tokens for place, one in outputs.items()} == {place: n for place, n in counts.items() if n}
    for place, one in outputs.items():
        assert one.size == pytest.approx(sizes[place], rel=1e-4)


def test_the_bound_of_an_expert_is_the_most_that_one_of_its_neurons_can_write(words: Any) -> None:
    model = loaded(words)
    bounds = expert_bounds(model, model.stacks[0])
    experts = experts_of(model.model)
    scale = model.model.model.layers[LAYER].post_attention_layernorm.weight.detach().double().numpy()
    for expert in range(4):
        gate, up = np.split(experts.gate_up_proj[expert].detach().double().numpy() * scale, 2)
        down = np.abs(experts.down_proj[expert].detach().double().numpy())
        assert bounds[LAYER, expert] == pytest.approx((down * _reach([gate, up])).max())
    outputs = expert_outputs(model, model.stacks[0], TEXTS, max_length=32)
    assert bounds[PLANTED] * D_FF > outputs[PLANTED].size  # all neurons together reach no more than that


def test_controls_are_experts_that_as_many_tokens_reach() -> None:
    fed = {0: 100, 1: 50, 2: 49, 3: 200, 4: 201, 5: 1}
    outputs = {(0, expert): ExpertOutput(1.0, 0, 0, 0, 0, n) for expert, n in fed.items()}
    assert like_fed(outputs, {0: (0,)}) == {0: [0, 1, 3]}
    assert like_fed(outputs, {0: (0, 5)}) == {0: [0, 1, 3, 5]}
    with pytest.raises(BadInput, match="no token of these texts reaches expert 0:6"):
        like_fed(outputs, {0: (6,)})


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "deepseek_v3"])
def test_an_ablated_expert_gives_nothing_and_comes_back(words: Any, name: str) -> None:
    """The loss is that of a model whose expert's last linear, and bias, are 0; its router is as before."""
    model = loaded(words, name)
    before = {key: value.clone() for key, value in model.model.state_dict().items()}
    found = ablate(model, TEXTS, {LAYER: [EXPERT]}, AblateOptions(stack="experts", n_random=9))
    assert all(torch.equal(before[key], value) for key, value in model.model.state_dict().items())
    assert (found.about.kind, found.about.dims, found.chosen.dims) == ("expert", ("1:2",), "1:2")
    assert not list(found.advice())
    by_hand = loaded(words, name)
    with torch.no_grad():
        mixtures.last_of(by_hand.model)[EXPERT] = 0.0
        if name == "gpt_oss":
            experts_of(by_hand.model).down_proj_bias[EXPERT] = 0.0
    whole = ablate(by_hand, TEXTS, {LAYER: [0]}, AblateOptions(stack="experts", n_random=0))
    assert found.chosen.value.value == pytest.approx(whole.intact.value.value, abs=1e-5)
    outputs = expert_outputs(model, model.stacks[0], TEXTS, max_length=128)
    pool = set(like_fed(outputs, {LAYER: (EXPERT,)})[LAYER]) - {EXPERT}
    assert {one.dims for one in found.controls} == {f"{LAYER}:{expert}" for expert in pool}
    assert found.families[0].n == len(pool)
    assert "half to twice the number of tokens" in found.control_kinds


def test_a_llama_as_a_mixture_computes_the_same_and_its_super_expert_is_known(words: Any) -> None:
    model: Any = build(FAMILIES["llama"], "CausalLM")
    with torch.no_grad():
        mlp = model.model.layers[LAYER].mlp
        mlp.gate_proj.weight[D_FF - 1] *= 40
        mlp.up_proj.weight[D_FF - 1] *= 40
        mlp.down_proj.weight[DIM, D_FF - 1] = 30.0
    made = script_modules.script("examples/experts/as_mixture.py").as_mixture(
        model, 2
    )  # wide enough for torch's grouped products
    read = words(kind="causal")(TEXTS.texts[0], return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(made(**read).logits, model(**read).logits, rtol=1e-4, atol=1e-4)
    mixed = from_objects(made, words(kind="causal"), name="mixture")
    outputs = expert_outputs(mixed, mixed.stacks[0], TEXTS, max_length=32)
    assert {one.n_tokens for one in outputs.values()} == {
        sum(len(text.split()) for text in TEXTS.texts)
    }  # all are active
    found = expert_rows(mixed, mixed.stacks[0], outputs)[0]
    assert (found.layer, found.expert, found.dim, found.rank) == (LAYER, 1, DIM, 1)


def test_find_takes_the_super_experts(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def counted(*given: Any, **named: Any) -> Any:
        passes.append(1)
        return expert_outputs(*given, **named)

    monkeypatch.setattr("outlierlens.analyses.ablate_sets.expert_outputs", counted)
    found = ablate(loaded(words), TEXTS, options=AblateOptions(stack="experts", n_random=1))
    assert isinstance(found, Ablation)
    assert (found.chosen.plan, found.about.named_by) == (
        {LAYER: (EXPERT,)},
        "the rule for super experts, on these texts",
    )
    assert len(passes) == 1, "the rule and the controls read one pass"


@pytest.mark.parametrize(
    ("name", "dims", "options", "says"),
    [
        ("mixtral", [2], {}, 'an expert is named with its block; write dims="11:2"'),
        ("mixtral", {1: [2]}, {"modes": "zero"}, "modes zero is not of experts; with stack experts use weights"),
        ("mixtral", {1: [2]}, {"n_matched": 3}, "matched sets are not of experts"),
        ("mixtral", {1: [4]}, {}, "dimension 4 does not exist"),
        ("qwen3_moe", {0: [1]}, {}, "layer 0 of stream 'experts' has no experts"),
        ("gpt2", {1: [2]}, {}, "stream 'model' has no experts"),
    ],
)
def test_what_is_no_ablation_of_experts_is_refused(words: Any, name: str, dims: Any, options: Any, says: str) -> None:
    made = build(FAMILIES[name], "CausalLM") if name == "gpt2" else mixture(name)
    model = from_objects(made, words(kind="causal"), name=name)
    with pytest.raises(BadInput, match=says):
        ablate(model, TEXTS, dims, AblateOptions(stack="experts", **options))


def test_nothing_else_takes_whole_experts(words: Any) -> None:
    """Where positions would be read as dimensions of the stream."""
    model = loaded(words)
    with (
        pytest.raises(BadInput, match="whole experts are ablated by `ablate`"),
        edited_hidden(model, {1: [2]}, "zero", stack="experts"),
    ):
        pass
    with pytest.raises(BadInput, match="whole experts are ablated by `ablate`"):
        sweep(model, TEXTS, stack="experts")


def test_read_block_by_block_experts_are_ablated_but_not_counted(words: Any, tmp_path: Path) -> None:
    whole = loaded(words)
    whole.model.save_pretrained(tmp_path)
    whole.tokenizer.save_pretrained(tmp_path)
    options = AblateOptions(stack="experts", n_random=0)
    expected = ablate(whole, TEXTS, {LAYER: [EXPERT]}, options)
    model = load_model(str(tmp_path), by_block=True)
    found = ablate(model, TEXTS, {LAYER: [EXPERT]}, options)
    assert found.chosen.value.value == pytest.approx(expected.chosen.value.value, abs=1e-4)
    with pytest.raises(BadInput, match="needs the model whole"):
        ablate(model, TEXTS, {LAYER: [EXPERT]}, AblateOptions(stack="experts"))
    with zeroed_weights(model, {LAYER: [EXPERT]}, stack="experts") as n_set:
        assert n_set == expected.chosen.n_set


def test_all_definitions_name_super_experts_beside_their_nulls(words: Any) -> None:
    found = definitions(loaded(words), TEXTS, DefinitionOptions(nulls=("shuffled",), max_length=32))
    mine = [one for one in found.experts if one.condition == MODEL]
    assert [(one.layer, one.expert, one.dim) for one in mine] == [(*PLANTED, DIM)]
    null = max(one.times for one in found.experts if one.condition == "shuffled")
    assert null < mine[0].times / 100
    assert f"Super experts: {LAYER}:{EXPERT}; " in (said := " ".join(found.sentences()))
    assert f"under nulls the largest is {null:.3g} times" in said
    narrow = DefinitionOptions(nulls=(), max_length=32, thresholds={"super_expert_layers": 0.4})  # block 0 alone
    assert {one.layer for one in definitions(loaded(words), TEXTS, narrow).experts} == {0}
