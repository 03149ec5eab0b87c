"""A recipe's network from random values, what keeps it free of outlier dimensions, and what plants them.

    model = build(recipe, tokenizer)             # BertForMaskedLM, LlamaForCausalLM, …, or a class of `models.variants`
    loss = loss + weight * kurtosis(states)      # states [batch, token, dim] of each layer; norm_spread: before backward too
    clamp_scale_(model, stacks, limit=0.3)       # after each optimizer step; stacks are bound to `model` as it is passed

The scale of a norm is what it multiplies by: weight, or 1 + weight in families that store it so.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import outlierlens.architectures as arch
from outlierlens.ablation.switches import check_dims
from outlierlens.architectures import BoundStack, Param
from outlierlens.errors import BadInput, need
from outlierlens.models.load import config_dict
from outlierlens.training.pretrain.recipe import ModelRecipe, Recipe, plain

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel


def norm_spread(model: "nn.Module", stacks: Sequence[BoundStack]) -> "Tensor":
    """Variance over dimensions of each norm's scale, averaged over norms and layers: a scalar with gradient, >= 0.

    The norms are those that a block ends in; in pre-norm models, those that its attention and MLP read through.

    Raises:
        BadInput: the blocks of a stack have no norm at all.
    """
    import torch

    return torch.stack([scale.float().var(correction=0) for scale, _ in _scales(model, stacks)]).mean()


def kurtosis(states: "Tensor") -> "Tensor":
    """How unequally dimensions share the size of `states` [..., dim]: a scalar with gradient, in [1, number of dims].

    mean_j(s_j²) / mean_j(s_j)², s_j the mean over tokens of x_j². 1 when all dimensions are of one size, the number of
    dimensions when a single one holds everything (He 2024, "Understanding and minimising outlier features", eq. 1;
    states are not centred). Not the fourth moment over all entries that Bondarenko (2023) reports.
    """
    # float32: fourth powers of outliers overflow float16, and bfloat16 has 8 bits.
    size = states.float().square().reshape(-1, states.shape[-1]).mean(0)
    return size.square().mean() / size.mean().square()


def clamp_scale_(model: "nn.Module", stacks: Sequence[BoundStack], limit: float) -> None:
    """Move every scale of the norms that `norm_spread` takes into [1 − limit, 1 + limit]."""
    import torch

    with torch.no_grad():
        for scale, offset in _scales(model, stacks):
            scale.clamp_(1 - limit - offset, 1 + limit - offset)


def planted_(model: "nn.Module", stack: BoundStack, dims: Sequence[int], scale: float, bias: float) -> None:
    """Set scale and bias of the norm that each block ends in, at `dims`, in every layer.

    Norms without a bias (RMSNorm) take 0, which is what they act with.

    Raises:
        BadInput: a dim out of range or named twice, or no bias to set.
    """
    import torch

    live = arch.live_parameters(model)
    index, width = [int(dim) for dim in dims], len(live[stack.scale[0][0].name])
    check_dims(index, width, f"stream {stack.name!r}")
    if bias and not all(stack.bias):
        raise BadInput(f"stream {stack.name!r}: its norms have no bias to plant {bias} in; pass 0")
    with torch.no_grad():
        for layers, value in ((stack.scale, scale - stack.stack.norm_offset), (stack.bias, bias)):
            for param in (param for layer in layers for param in layer):
                live[param.name][index] = value


def _scales(model: "nn.Module", stacks: Sequence[BoundStack]) -> list[tuple["Tensor", float]]:
    """(parameter, what the norm adds to it) of each norm that acts as the blocks' output or, without one, input."""
    live = arch.live_parameters(model)
    found: dict[str, tuple[Tensor, float]] = {}  # by name: layers that share a block have one scale
    for stack in stacks:
        layers: tuple[tuple[Param, ...], ...] = stack.scale if stack.ends_in_norm else stack.reading
        params = [param for layer in layers for param in layer]
        if not params:
            raise BadInput(f"stream {stack.name!r}: its blocks have no norm whose scale could be held")
        found |= {param.name: (live[param.name], stack.stack.norm_offset) for param in params}
    return list(found.values())


def build(recipe: Recipe, tokenizer: Any) -> "PreTrainedModel":
    """The network of `recipe` for the vocabulary of `tokenizer`; the same seed gives the same values.

    Positions "sinusoidal" and "none" of a network that BERT's own class computes are tables that stay as they are:
    such a checkpoint is an ordinary BERT.
    """
    torch = need("torch", "models", "pre-training")
    options = recipe.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        model: PreTrainedModel = _network(recipe, tokenizer)
        prepare_positions_(model, options)
        head: Any = model.get_output_embeddings()
        for module in model.modules():  # biases that stay as they began: zero, or where a gate started
            learned = options.output_bias if module is head else options.linear_bias
            if isinstance(module, torch.nn.Linear) and module.bias is not None and not learned:
                module.bias.requires_grad_(False)
        if options.planted:
            (stack,) = arch.bind(arch.stacks_of(config_dict(model)), arch.live_parameters(model))
            planted_(model, stack, options.planted, options.planted_scale, options.planted_bias)
    return model


def _network(recipe: Recipe, tokenizer: Any) -> Any:
    transformers = need("transformers", "models", "pre-training")
    options = recipe.model
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "intermediate_size": options.intermediate or 4 * options.width,
        "initializer_range": options.initializer_range,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if options.type == "llama":
        settings["max_position_embeddings"] = recipe.data.length
        if options.attention == "softmax":
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
        from outlierlens.models.variants.config import VariantDecoderConfig
        from outlierlens.models.variants.model import VariantForCausalLM

        return VariantForCausalLM(VariantDecoderConfig(**settings, attention_kind=options.attention))
    settings |= {"hidden_dropout_prob": options.dropout, "attention_probs_dropout_prob": options.dropout}
    if options.type == "roberta":
        # Positions are counted from the padding index + 1.
        rows = recipe.data.length + tokenizer.pad_token_id + 1
        config = transformers.RobertaConfig(**settings, max_position_embeddings=rows, type_vocab_size=1)
        return transformers.RobertaForMaskedLM(config)
    settings |= {"max_position_embeddings": recipe.data.length, "type_vocab_size": 2}
    if plain(options):
        return transformers.BertForMaskedLM(transformers.BertConfig(**settings))
    from outlierlens.models.variants.model import VariantConfig, VariantForMaskedLM

    config = VariantConfig(
        **settings,
        position_kind=options.positions,
        norm_kind=options.norm,
        norm_order=options.norm_order,
        attention_kind=options.attention,
        clip_gamma=options.clip_gamma,
        clip_zeta=options.clip_zeta,
    )
    return VariantForMaskedLM(config)


def prepare_positions_(model: "nn.Module", options: ModelRecipe) -> None:
    """Fill the table of positions as the recipe says, and keep what is not to be learned from being trained."""
    import torch

    from outlierlens.models.variants.model import sinusoids

    tables = [module for name, module in model.named_modules() if name.endswith("embeddings.position_embeddings")]
    if not tables or options.positions in ("relative", "rotary", "alibi"):
        return
    (table,) = tables
    weight: torch.nn.Parameter = table.weight
    padding = getattr(table, "padding_idx", None)
    first = 0 if padding is None else padding + 1
    waves = sinusoids(len(weight) - first, weight.shape[1], options.position_wavelength)
    with torch.no_grad():
        if options.positions == "none":
            weight.zero_()
        elif options.positions == "sinusoidal":
            weight[first:] = (options.position_amplitude or 2 * options.initializer_range) * waves
        elif options.position_amplitude:
            weight[first:] = options.position_amplitude * waves
    weight.requires_grad_(options.positions == "learned")
