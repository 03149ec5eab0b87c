"""Experts while they run: what each reads, gives and adds to which tokens, beside the same experts one token after another."""

from typing import Any

import pytest
import torch

from mixtures import MIXTURES, experts_of, last_of, mixture
from outlierlens.analyses.observe import observe
from outlierlens.analyses.range import range_of
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.errors import BadInput
from outlierlens.models.experts import ExpertCall, tapped_experts, unreached
from outlierlens.models.load import from_objects

IDS = torch.arange(4, 40).reshape(4, 9)


def watched(model: Any, look: Any) -> torch.Tensor:
    """Hidden states that block 1's MLP adds [token, dim], while its last linears are looked at."""
    name = next(name for name, one in model.named_parameters() if one is experts_of(model).down_proj)
    added: list[torch.Tensor] = []
    hook = experts_of(model).register_forward_hook(lambda module, args, output: added.append(output))
    with torch.no_grad(), tapped_experts(model, {name: look}):
        model(IDS)
    hook.remove()
    return added[0]


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_what_experts_add_is_told_token_by_token(name: str) -> None:
    model, calls = mixture(name), list[ExpertCall]()
    added = watched(model, calls.append)
    given: list[Any] = []
    hook = experts_of(model).register_forward_pre_hook(
        lambda module, args, kwargs: given.append((*args, *kwargs.values())), with_kwargs=True
    )
    own = []
    after = experts_of(model).register_forward_hook(lambda module, args, output: own.append(output))
    model(IDS)
    hook.remove()
    after.remove()
    torch.testing.assert_close(added, own[0], atol=1e-5, rtol=1e-4)  # looking changes nothing
    matrices, bias = last_of(model), getattr(experts_of(model), "down_proj_bias", None)
    total = torch.zeros(IDS.numel(), matrices.shape[1], dtype=torch.float64)
    pairs = set()
    for call in calls:
        assert call.tokens is not None
        assert call.weights is not None
        made = call.read @ matrices[call.expert].T + (0 if bias is None else bias[call.expert])
        torch.testing.assert_close(call.given, made, atol=1e-5, rtol=1e-4)
        total.index_add_(0, call.tokens, call.given.double() * call.weights[:, None])
        pairs |= {
            (token, call.expert, round(w, 4))
            for token, w in zip(call.tokens.tolist(), call.weights.tolist(), strict=True)
        }
    if name == "llama4_text":  # the router's score multiplies what an expert reads
        inside = given[0][0].view(4, IDS.numel(), -1)
        assert {pair[:2] for pair in pairs} == {
            (t, e) for e in range(4) for t in range(IDS.numel()) if inside[e, t].any()
        }
        torch.testing.assert_close(total.float(), own[0].view(4, IDS.numel(), -1).sum(0), atol=1e-4, rtol=1e-4)
        return
    _, chosen, weights = given[0]
    by_hand = {
        (token, expert, round(w, 4))
        for token in range(IDS.numel())
        for expert, w in zip(chosen[token].tolist(), weights[token].tolist(), strict=True)
    }
    assert {pair[:2] for pair in pairs} == {pair[:2] for pair in by_hand}
    for token, expert, weight in by_hand:
        assert min(abs(weight - w) for t, e, w in pairs if (t, e) == (token, expert)) < 2e-4
    torch.testing.assert_close(total.float(), own[0].view(IDS.numel(), -1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "llama4_text"])
def test_what_is_returned_goes_on(name: str) -> None:
    model = mixture(name)
    assert watched(model, lambda call: None).abs().max() > 1
    assert watched(model, lambda call: torch.zeros_like(call.given)).abs().max() < 1e-4


def test_the_way_experts_run_is_put_back() -> None:
    model = mixture("mixtral")
    before = model.config._experts_implementation
    with tapped_experts(model, {"model.layers.1.mlp.experts.down_proj": lambda call: None}):
        assert model.model.layers[1].mlp.experts.config._experts_implementation == "eager"
    assert model.config._experts_implementation == before != "eager"


def test_experts_that_multiply_in_a_way_of_their_own_are_refused(words: Any) -> None:
    """Nobody says of them that no token reached them."""
    model = mixture("mixtral")
    experts = experts_of(model)

    def forward(states: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        gate, up = torch.einsum("td,eid->tei", states, experts.gate_up_proj).chunk(2, -1)
        made = torch.einsum("tei,edi->ted", experts.act_fn(gate) * up, experts.down_proj)
        index = chosen[..., None].expand(-1, -1, made.shape[-1])
        return (made.gather(1, index) * weights[..., None]).sum(1)

    experts.forward = forward
    loaded = from_objects(model, words(kind="causal"), name="own")
    texts = Texts("one", ("w1 w2 w3 w4",))
    with pytest.raises(
        BadInput, match=r"layers\.1\.mlp\.experts\.down_proj: these experts multiply in a way of their own"
    ):
        observe(loaded, texts, ObserveOptions(stack="mlp"))
    found = range_of(loaded, texts)
    assert {one.layer for one in found.experts} == {"0", "2"}
    said = [note for note in found.notes if note.startswith("not seen: what ")]
    assert [note.split()[3] for note in said] == [
        f"model.layers.1.mlp.experts.{part}" for part in ("down_proj", "gate_up_proj")
    ]
    assert not any("layers.1" in name for name in found.never_fed)


def test_experts_that_no_token_reached_are_said() -> None:
    experts = [(layer, expert) for layer in range(6) for expert in range(4)]
    assert unreached(experts, experts) == ()
    (note,) = unreached([(0, 0), (0, 1), (0, 2)], experts[:8])
    assert "no token reached 5 of 8 experts" in note
    assert "(layer 0: 3; layer 1: 0–3)" in note
    (note,) = unreached([], experts)
    assert note.endswith("layer 3: 0–3; and some in 2 other layers)")
    (note,) = unreached([(0, expert) for expert in range(0, 64, 2)], [(0, expert) for expert in range(64)])
    assert note.endswith("(layer 0: 32 of them)")
