"""Tiny mixtures of experts, one for each way in which transformers computes them, with one neuron planted in one expert.

model = mixture("gpt_oss")                   # neuron NEURON of expert EXPERT of block LAYER writes a lot to DIM
last_of(model)                               # its packed last linear, as [expert, out, in]
"""

from typing import Any

import torch
import transformers

from architectures import EXPERTS, GROUPED, TEXT

LAYER, EXPERT, NEURON, DIM = 1, 2, 3, 5
NAME = f"{LAYER}:{EXPERT}:{NEURON}"
SHARED = {"moe_intermediate_size": 12, "num_experts_per_tok": 2}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": EXPERTS,
    # The first layer has one MLP and no experts.
    "qwen3_moe": GROUPED | SHARED | {"num_experts": 4, "mlp_only_layers": [0]},
    # Biases, [expert, in, out], gate and up in turns.
    "gpt_oss": EXPERTS,
    # A dense layer, then experts beside a shared one.
    "deepseek_v3": TEXT | SHARED | {
        "num_key_value_heads": 2, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 8, "routed_scaling_factor": 2.5,
    },
    # A gate of its own multiplies what the shared expert gives.
    "qwen2_moe": TEXT | SHARED | {"num_key_value_heads": 1, "num_experts": 4, "shared_expert_intermediate_size": 20},
    # All experts run on all tokens, of which the router makes most 0.
    "llama4_text": EXPERTS | {"intermediate_size_mlp": 24, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1},
    "olmoe": TEXT | {"num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": TEXT | {"num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


def mixture(name: str, *, seed: int = 2, plant: bool = True) -> Any:
    """A random causal model in evaluation mode."""
    config = transformers.AutoConfig.for_model(name, **MIXTURES[name])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            if plant:
                first = experts_of(model).gate_up_proj[EXPERT]
                first = first.T if _turned(model) else first  # [out, in]
                rows = [2 * NEURON, 2 * NEURON + 1] if name == "gpt_oss" else [NEURON, NEURON + len(first) // 2]
                first[rows] *= 40
                last_of(model)[EXPERT, DIM, NEURON] = 30.0
    return model


def experts_of(model: Any, layer: int = LAYER) -> Any:
    """The module that holds the packed experts of a block."""
    block = model.get_submodule(f"model.layers.{layer}")
    return next(module for name, module in block.named_modules() if name.endswith("experts") and "shared" not in name)


def last_of(model: Any, layer: int = LAYER) -> torch.Tensor:
    """A view of their last linear [expert, out, in]."""
    packed: torch.Tensor = experts_of(model, layer).down_proj
    return packed.transpose(1, 2) if _turned(model) else packed


def _turned(model: Any) -> bool:
    return model.config.model_type in ("gpt_oss", "llama4_text")
