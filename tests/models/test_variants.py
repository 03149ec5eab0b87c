"""The package's own family: equal to BERT where it is BERT, and every other kind against a plain computation."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import outlierlens as ol
from conftest import Words
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models import variants
from outlierlens.models.variants import model as attention
from outlierlens.models.variants.config import VariantConfig
from outlierlens.models.variants.model import VariantForMaskedLM, VariantModel

TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TINY |= {"max_position_embeddings": 32}
POSITIONS = ("learned", "sinusoidal", "none", "relative", "rotary", "alibi")
# Every value of every option, and combinations of the unusual ones.
KINDS: list[dict[str, Any]] = [
    *({"position_kind": kind} for kind in POSITIONS),
    {"norm_order": "pre"},
    {"norm_kind": "rmsnorm"},
    {"attention_kind": "clipped"},
    {"attention_kind": "gated", "gate_start": 0.8},
    {"norm_order": "pre", "norm_kind": "rmsnorm", "position_kind": "rotary", "attention_kind": "gated"},
    {"position_kind": "relative", "attention_kind": "clipped", "clip_gamma": -0.05, "clip_zeta": 1.1},
    {"position_kind": "alibi", "attention_kind": "clipped", "norm_order": "pre"},
]
KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))


def make(cls: Any = VariantForMaskedLM, *, implementation: str = "sdpa", noise: float = 0.2, **options: Any) -> Any:
    """A tiny model in evaluation mode; `noise` moves every parameter off its first value."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = cls._from_config(VariantConfig(**(TINY | options)), attn_implementation=implementation).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model


def tokens(n: int = 7) -> Tensor:
    return torch.randint(3, 39, (2, n), generator=torch.Generator().manual_seed(1))


def states(model: Any, ids: Tensor, **inputs: Any) -> Tensor:
    with torch.no_grad():
        return getattr(model, "bert", model)(ids, **inputs).last_hidden_state


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_standard_model_is_bert_bit_for_bit(implementation: str) -> None:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(5)
    theirs = BertForMaskedLM._from_config(BertConfig(**TINY), attn_implementation=implementation)
    torch.manual_seed(5)
    ours = VariantForMaskedLM._from_config(VariantConfig(**TINY), attn_implementation=implementation)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in theirs.parameters()]
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    given = ({}, {"attention_mask": mask}, {"attention_mask": mask, "token_type_ids": mask, "position_ids": ids % 7})
    for inputs in given:
        outputs = []
        for model in (ours, theirs):
            model.train()  # dropout draws alike, too
            model.zero_grad()
            torch.manual_seed(6)
            outputs.append(model(ids, labels=ids, output_hidden_states=True, **inputs))
            outputs[-1].loss.backward()
        assert torch.equal(outputs[0].loss, outputs[1].loss)
        assert torch.equal(outputs[0].logits, outputs[1].logits)
        pairs = zip(outputs[0].hidden_states, outputs[1].hidden_states, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        gradients = zip(ours.parameters(), theirs.parameters(), strict=True)
        assert all(torch.equal(a.grad, b.grad) for a, b in gradients)  # type: ignore[arg-type]


@KIND
def test_attention_implementations_agree_and_padding_is_not_seen(kind: dict[str, Any]) -> None:
    ids = tokens()
    padded = F.pad(ids, (0, 3), value=5)
    mask = F.pad(torch.ones_like(ids), (0, 3))
    found = [
        states(make(implementation=name, **kind), *(x[0],), **x[1])[:, :7]
        for name in ("eager", "sdpa")
        for x in ((ids, {}), (padded, {"attention_mask": mask}))
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


@KIND
def test_attention_weights_are_given_to_those_who_ask(kind: dict[str, Any]) -> None:
    model = make(implementation="eager", **kind)
    with torch.no_grad():
        output = model(tokens(), output_attentions=True, output_hidden_states=True)
    assert [tuple(weights.shape) for weights in output.attentions] == [(2, 2, 7, 7)] * 2
    assert len(output.hidden_states) == 3
    sums = output.attentions[0].sum(-1)
    if kind.get("attention_kind") == "clipped":
        assert float((sums - 1).abs().max()) > 1e-3
    else:
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_without_positions_order_does_not_matter() -> None:
    ids, order = tokens(), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    model = make(position_kind="none")
    torch.testing.assert_close(states(model, ids[:, order]), states(model, ids)[:, order], rtol=1e-4, atol=1e-5)
    for kind in POSITIONS:
        if kind != "none":
            model = make(position_kind=kind)
            assert float((states(model, ids[:, order]) - states(model, ids)[:, order]).abs().max()) > 1e-2, kind


def test_only_symmetric_alibi_reads_alike_from_both_ends() -> None:
    ids = tokens()
    for kind in POSITIONS:
        model = make(position_kind=kind)
        apart = float((states(model, ids.flip(1)) - states(model, ids).flip(1)).abs().max())
        assert (apart < 1e-5) == (kind in ("none", "alibi")), (kind, apart)


@pytest.mark.parametrize("kind", POSITIONS)
def test_only_distances_matter_to_relative_kinds(kind: str) -> None:
    ids, positions = tokens(), torch.arange(7)[None]
    model = make(position_kind=kind)
    here, shifted = (states(model, ids, position_ids=positions + start) for start in (0, 11))
    assert torch.equal(here, states(model, ids))
    apart = float((here - shifted).abs().max())
    assert (apart < 1e-4) == (kind not in ("learned", "sinusoidal")), apart
    # Positions of each text for itself: the second text has them doubled.
    both = torch.cat([positions, 2 * positions])
    mixed = states(model, ids, position_ids=both)
    for text in (0, 1):
        alone = states(model, ids[text : text + 1], position_ids=both[text : text + 1])
        torch.testing.assert_close(mixed[text : text + 1], alone, rtol=1e-4, atol=1e-5)
    if kind != "none":
        assert float((mixed[1] - here[1]).abs().max()) > 1e-3


def test_alibi_slopes_by_hand() -> None:
    assert attention.alibi_slopes(4) == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    assert attention.alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert attention.alibi_slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert attention.alibi_slopes(1) == [1 / 256]


def test_alibi_bias_by_hand() -> None:
    bias = attention.alibi_bias(torch.tensor([[0, 1, 3]]), n_heads=2)
    first = -torch.tensor([[0.0, 1, 3], [1, 0, 2], [3, 2, 0]]) / 16
    assert torch.equal(bias, torch.stack([first, first / 16])[None])


def test_relative_buckets_by_hand() -> None:
    # 8 buckets: 0-3 for keys to the left (distances 0, 1, 2-3, 4 and more), 4-7 for keys to the right.
    (row,) = attention.relative_buckets(torch.tensor([[9, 0, 5, 6, 7, 8, 10, 11, 12, 13, 99]]), 8, 8)[:, 0].tolist()
    assert row == [0, 3, 3, 2, 2, 1, 5, 6, 6, 7, 7]


@given(st.integers(2, 32).map(lambda half: 2 * half), st.integers(1, 300), st.integers(0, 300))
def test_relative_buckets_are_those_of_t5(n_buckets: int, beyond: int, position: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    reach = n_buckets // 4 + beyond
    positions = torch.tensor([[position, *range(0, 300, 7)]])
    expected = T5Attention._relative_position_bucket(
        attention.distances(positions), bidirectional=True, num_buckets=n_buckets, max_distance=reach
    )
    assert torch.equal(attention.relative_buckets(positions, n_buckets, reach), expected)


def test_the_relative_bias_is_added_to_the_scores() -> None:
    model = make(VariantModel, position_kind="relative", num_hidden_layers=1)
    bias = model.encoder.bias(torch.arange(3)[None], torch.float32)
    table = model.encoder.relative_attention_bias.weight
    for head, query, key in itertools.product(range(2), range(3), range(3)):
        bucket = abs(key - query) + (16 if key > query else 0)
        assert bias[0, head, query, key] == table[bucket, head]
    # A bias that forbids every key but the token itself leaves each token what it is alone.
    with torch.no_grad():
        table.fill_(-1e4)
        table[0] = 0.0
        ids = tokens()
        alone = torch.cat([states(model, ids[:, i : i + 1]) for i in range(7)], dim=1)
    torch.testing.assert_close(states(model, ids), alone, rtol=1e-4, atol=1e-5)


def test_rotation_is_that_of_llama_and_by_hand() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    query, key = torch.randn(2, 1, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    cosine, sine = attention.rotation(torch.arange(5)[None], 8, base=100.0)
    whole = [torch.cat([part, part], -1)[:, 0] for part in (cosine, sine)]
    for ours, theirs in zip((query, key), apply_rotary_pos_emb(query, key, *whole), strict=True):
        torch.testing.assert_close(attention.rotated(ours, (cosine, sine)), theirs)
    turned = attention.rotated(torch.tensor([[[[1.0, 0.0]]]]), attention.rotation(torch.tensor([[2]]), 2))
    assert turned.flatten().tolist() == pytest.approx([math.cos(2), math.sin(2)])
    assert cosine[0, 0, 3].tolist() == pytest.approx([math.cos(3 * 100 ** (-i / 8)) for i in (0, 2, 4, 6)])


def test_sinusoids_by_hand() -> None:
    table = attention.sinusoids(3, 4)
    assert table[0].tolist() == [0, 1, 0, 1]
    assert table[2].tolist() == pytest.approx([math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)])
    assert attention.sinusoids(3, 5).shape == (3, 5)


def test_sinusoids_are_fixed_and_stay_so(tmp_path: Path) -> None:
    model = make(position_kind="sinusoidal", position_amplitude=0.5, noise=0.0)
    table = model.bert.embeddings.position_embeddings.weight
    torch.testing.assert_close(table, 0.5 * attention.sinusoids(32, 16))
    model.save_pretrained(tmp_path)
    for loaded in (VariantForMaskedLM.from_pretrained(tmp_path), ol.load_model(str(tmp_path)).model):
        frozen = [name for name, parameter in loaded.named_parameters() if not parameter.requires_grad]
        assert frozen == ["bert.embeddings.position_embeddings.weight"]
        assert torch.equal(loaded.get_parameter(frozen[0]), table)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("additive", [False, True])
def test_clipped_attention_by_hand(implementation: str, additive: bool) -> None:
    module = make(VariantModel, implementation=implementation, attention_kind="clipped", clip_gamma=-0.3, clip_zeta=1.2)
    query = torch.tensor([[[[math.log(4.0)]]]])
    key, value = torch.tensor([[[[1.0], [0.0], [0.0]]]]), torch.tensor([[[[10.0], [100.0], [9.0]]]])
    # Softmax 4/6, 1/6, 1/6 -> 1.5 p - 0.3 = 0.7, -0.05, -0.05 -> clipped to 0.7, 0, 0.
    read, weights = attention.clipped_attention(module, query, key, value, None, scaling=1.0)
    assert weights.flatten().tolist() == pytest.approx([0.7, 0.0, 0.0])
    assert read.flatten().tolist() == pytest.approx([7.0])
    # Without the first key: 1/2, 1/2 -> 0.45 each.
    mask = torch.tensor([[[[False, True, True]]]])
    given = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min) if additive else mask
    _, weights = attention.clipped_attention(module, query, key, value, given, scaling=1.0)
    assert weights.flatten().tolist() == pytest.approx([0.0, 0.45, 0.45])
    # A key that stands out takes all: clipped to exactly 1.
    _, weights = attention.clipped_attention(module, 5 * query, key, value, None, scaling=1.0)
    assert weights.flatten().tolist() == [1.0, 0.0, 0.0]


def test_clipping_at_0_and_1_is_softmax() -> None:
    plain = make()
    clipped = make(attention_kind="clipped", clip_gamma=0.0, clip_zeta=1.0)
    torch.testing.assert_close(states(clipped, tokens()), states(plain, tokens()), rtol=1e-4, atol=1e-5)


def test_heads_that_attend_everywhere_write_nothing_when_clipped() -> None:
    model = make(VariantModel, attention_kind="clipped", clip_gamma=-0.2, num_hidden_layers=1)
    block = model.encoder.layer[0].attention
    seen: list[Tensor] = []
    block.output.dense.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        block.self.query.weight.zero_()
        block.self.query.bias.zero_()
    states(model, tokens(7))  # 1/7 each: 1.2 / 7 - 0.2 < 0
    assert torch.equal(seen[0], torch.zeros_like(seen[0]))
    states(model, tokens(5))  # 1/5 each: 1.2 / 5 - 0.2 = 0.04
    assert float(seen[1].abs().max()) > 0


def test_dropout_of_clipped_weights_is_for_training_only() -> None:
    model = make(attention_kind="clipped", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    first, second = states(model, tokens()), states(model, tokens())
    assert torch.equal(first, second)
    model.train()
    assert not torch.equal(states(model, tokens()), first)


def test_gates_start_open_as_asked_and_scale_each_head_at_each_token() -> None:
    fresh = make(VariantModel, attention_kind="gated", gate_start=0.8, noise=0.0)
    assert fresh.encoder.layer[1].attention.self.gate.bias.tolist() == pytest.approx([math.log(4.0)] * 2)
    plain, gated = make(VariantModel, noise=0.0), make(VariantModel, attention_kind="gated", noise=0.0)
    gated.load_state_dict(plain.state_dict(), strict=False)
    read: dict[str, Tensor] = {}
    for name, model in (("plain", plain), ("gated", gated)):
        block = model.encoder.layer[0].attention
        block.output.dense.register_forward_pre_hook(lambda module, args, name=name: read.update({name: args[0]}))
    block.self.register_forward_pre_hook(lambda module, args: read.update({"input": args[0]}))
    with torch.no_grad():
        block.self.gate.bias.copy_(torch.tensor([1.0, -2.0]))
        block.self.gate.weight.normal_(generator=torch.Generator().manual_seed(2))
    states(plain, tokens())
    states(gated, tokens())
    open_ = 1 / (1 + np.exp(-(read["input"].numpy() @ block.self.gate.weight.detach().numpy().T + [1.0, -2.0])))
    expected = read["plain"].numpy().reshape(2, 7, 2, 8) * open_[..., None]
    np.testing.assert_allclose(read["gated"].numpy().reshape(2, 7, 2, 8), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_norm_orders_and_kinds_against_a_plain_computation(order: str, kind: str) -> None:
    model = make(norm_order=order, norm_kind=kind)
    live = {name: values.detach() for name, values in model.named_parameters()}
    ids = tokens()

    def norm(name: str, x: Tensor) -> Tensor:
        scale = live[f"{name}.LayerNorm.weight"]
        if kind == "rmsnorm":
            assert f"{name}.LayerNorm.bias" not in live
            return x / (x.square().mean(-1, keepdim=True) + 1e-12).sqrt() * scale
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return centred / spread * scale + live[f"{name}.LayerNorm.bias"]

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ live[f"{name}.weight"].T + live[f"{name}.bias"]

    def attend(name: str, x: Tensor) -> Tensor:
        query, key, value = (
            linear(f"{name}.self.{part}", x).view(2, 7, 2, 8).transpose(1, 2) for part in ("query", "key", "value")
        )
        weights = (query @ key.transpose(2, 3) / math.sqrt(8)).softmax(-1)
        return linear(f"{name}.output.dense", (weights @ value).transpose(1, 2).reshape(2, 7, 16))

    tables = [live[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    x = norm("bert.embeddings", tables[0][ids] + tables[1][:7] + tables[2][0])
    for layer in range(2):
        block = f"bert.encoder.layer.{layer}"

        def mlp(x: Tensor, block: str = block) -> Tensor:
            return linear(f"{block}.output.dense", F.gelu(linear(f"{block}.intermediate.dense", x)))

        if order == "post":
            x = norm(f"{block}.attention.output", x + attend(f"{block}.attention", x))
            x = norm(f"{block}.output", x + mlp(x))
        else:
            x = x + attend(f"{block}.attention", norm(f"{block}.attention", x))
            x = x + mlp(norm(f"{block}.intermediate", x))
    if order == "pre":
        x = norm("bert.encoder", x)
    torch.testing.assert_close(states(model, ids), x, rtol=1e-4, atol=1e-4)
    head = "cls.predictions.transform"
    x = norm(head, F.gelu(linear(f"{head}.dense", x)))
    logits = x @ tables[0].T + live["cls.predictions.bias"]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, logits, rtol=1e-4, atol=1e-4)


@KIND
def test_a_saved_model_loads_by_name_and_is_measured(kind: dict[str, Any], tmp_path: Path) -> None:
    model = make(**kind)
    model.save_pretrained(tmp_path)
    Words.build().save_pretrained(tmp_path)
    loaded = ol.load_model(str(tmp_path))
    assert type(loaded.model) is VariantForMaskedLM
    assert loaded.head == "masked"
    assert loaded.tokenizer is not None
    assert torch.equal(loaded.model(tokens()).logits, model(tokens()).logits)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "outlierlens-bert"
    assert kind.items() <= config.items()
    (stack,) = loaded.stacks
    pre = kind.get("norm_order") == "pre"
    assert stack.ends_in_norm == (not pre)
    assert all(stack.bias) == (pre or kind.get("norm_kind") != "rmsnorm")
    assert bool(stack.final_norm) == pre
    assert ol.scan(str(tmp_path)).stacks[0].n_layers == 2
    seen = ol.observe(loaded, Texts("made", ("w1 w2 w3", "w4 w5 w6 w7 w8")))
    assert seen.stacks[0].layers == ("embeddings", "0", "1")
    before = loaded.model(tokens()).logits
    with ol.zeroed_weights(loaded, [3]):
        assert not torch.equal(loaded.model(tokens()).logits, before)
    assert torch.equal(loaded.model(tokens()).logits, before)


def test_the_auto_classes_know_the_family_once_it_is_registered(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

    make(VariantModel, position_kind="rotary").save_pretrained(tmp_path)
    variants.register()
    variants.register()
    bare = AutoModel.from_pretrained(tmp_path)
    assert type(bare) is type(ol.load_model(str(tmp_path)).model) is VariantModel
    assert bare.config.position_kind == "rotary"
    config = AutoConfig.for_model("outlierlens-bert", **TINY)
    assert type(AutoModelForMaskedLM.from_config(config)) is VariantForMaskedLM


@KIND
def test_every_kind_learns(kind: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = VariantForMaskedLM(VariantConfig(**(TINY | kind))).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    losses = []
    for _ in range(30):
        loss = model(tokens(), labels=tokens()).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in trained)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]


@KIND
def test_recomputing_activations_leaves_gradients_as_they_are(kind: dict[str, Any]) -> None:
    gradients = []
    for recompute in (False, True):
        model = make(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **kind).train()
        if recompute:
            # Older versions of transformers know the second name only.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        model(tokens(), labels=tokens()).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@KIND
def test_half_precision_runs_and_is_near(kind: dict[str, Any]) -> None:
    ids, mask = tokens(), torch.ones(2, 7, dtype=torch.long)
    mask[0, 6:] = 0
    model = make(noise=0.05, **kind)
    exact = states(model, ids, attention_mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = states(model, ids, attention_mask=mask)
    half = states(model.to(torch.bfloat16), ids, attention_mask=mask)
    assert half.dtype == torch.bfloat16
    for found in (mixed, half):
        assert float((found.float() - exact).abs().max()) < 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position_kind": "absolute"}, "position_kind is 'absolute'; use one of learned, sinusoidal, none, relative"),
        ({"norm_order": "both"}, "norm_order is 'both'; use one of post, pre"),
        ({"norm_kind": "batch"}, "norm_kind is 'batch'; use one of layernorm, rmsnorm"),
        ({"attention_kind": "linear"}, "attention_kind is 'linear'; use one of softmax, clipped, gated"),
        ({"num_attention_heads": 3}, "hidden_size 16 is not a multiple of num_attention_heads 3"),
        ({"is_decoder": True}, "encoders only; leave out is_decoder and add_cross_attention"),
        ({"position_kind": "rotary", "num_attention_heads": 16}, "a head has 1; make it even"),
        ({"relative_buckets": 7}, "relative_buckets is 7 and relative_max_distance 128; use an even number of 4"),
        ({"relative_max_distance": 8}, "relative_max_distance 8; use an even number of 4 buckets or more, and a dist"),
        ({"clip_gamma": 0.1}, "clip_gamma is 0.1 and clip_zeta 1.0; use gamma <= 0 and zeta >= 1"),
        ({"clip_zeta": 0.9}, "use gamma <= 0 and zeta >= 1"),
        ({"gate_start": 1.0}, "gate_start is 1.0; use a value between 0 and 1"),
    ],
)
def test_errors_of_the_config(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        VariantConfig(**(TINY | options))
    make().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | options))
    with pytest.raises(BadInput, match=message):
        ol.load_model(str(tmp_path))


def test_attention_that_takes_no_bias_is_refused() -> None:
    with pytest.raises(ValueError, match="does not support Flash Attention"):
        make(implementation="flash_attention_2")
