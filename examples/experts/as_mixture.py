"""A Llama as a mixture of experts that computes the same: each MLP is cut into equal experts, and all of them are active.

Which expert holds a neuron is then known: neuron 1229 of a block of 1,536 is in expert 1229 // 48 = 25 of 32. A router of zeros
gives every expert the same weight 1/N, and the last linears are N times as large.

    python examples/experts/as_mixture.py smollm2-135m --experts 32 -o runs/smollm2-mixture
"""

import argparse
from pathlib import Path

import torch
from transformers import MixtralConfig, MixtralForCausalLM

import outlierlens as ol

COPIED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
          "max_position_embeddings", "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id")  # fmt: skip


def as_mixture(model: torch.nn.Module, n_experts: int) -> MixtralForCausalLM:
    """The mixture; the neurons of each MLP must be a multiple of `n_experts`, a power of two."""
    old = model.config
    config = MixtralConfig(
        **{name: getattr(old, name) for name in COPIED}, intermediate_size=old.intermediate_size // n_experts,
        num_local_experts=n_experts, num_experts_per_tok=n_experts, head_dim=old.hidden_size // old.num_attention_heads,
    )  # fmt: skip
    mixture, values = MixtralForCausalLM(config).eval(), model.state_dict()
    mixture.load_state_dict({name: one for name, one in values.items() if ".mlp." not in name}, strict=False)
    with torch.no_grad():
        for before, after in zip(model.model.layers, mixture.model.layers, strict=True):
            gate, up, down = (getattr(before.mlp, f"{name}_proj").weight for name in ("gate", "up", "down"))
            rows = [one.reshape(n_experts, -1, old.hidden_size) for one in (gate, up)]  # [expert, neuron, dim]
            after.mlp.experts.gate_up_proj.copy_(torch.cat(rows, dim=1))
            after.mlp.experts.down_proj.copy_(down.reshape(old.hidden_size, n_experts, -1).transpose(0, 1) * n_experts)
            after.mlp.gate.weight.zero_()
    return mixture


def main() -> None:
    """Write the mixture, once its logits are those of the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/mixture"))
    given = parser.parse_args()
    loaded = ol.load_model(given.model, dtype="float32")
    mixture = as_mixture(loaded.model, given.experts)
    read = loaded.tokenizer("The mill stood at the end of the lane.", return_tensors="pt")
    with torch.no_grad():
        away = (mixture(**read).logits - loaded.model(**read).logits).abs().max()
    print(f"largest difference of a logit: {away:.2g}")
    mixture.save_pretrained(given.output)
    loaded.tokenizer.save_pretrained(given.output)


if __name__ == "__main__":
    main()
