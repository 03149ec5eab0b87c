"""A recipe's network, from random values.

model = build(recipe, tokenizer)             # BertForMaskedLM, RobertaForMaskedLM or VariantForMaskedLM
"""

from typing import TYPE_CHECKING, Any

from outlierlens import architectures as arch
from outlierlens.errors import need
from outlierlens.models.load import config_dict
from outlierlens.training.pretrain.recipe import ModelRecipe, Recipe, plain

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


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
        for bias in _unlearned(model, options):
            bias.requires_grad_(False)
        _plant_(model, options)
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
        "hidden_dropout_prob": options.dropout,
        "attention_probs_dropout_prob": options.dropout,
        "initializer_range": options.initializer_range,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if options.type == "roberta":
        # Positions are counted from the padding index + 1.
        rows = recipe.data.length + tokenizer.pad_token_id + 1
        config = transformers.RobertaConfig(**settings, max_position_embeddings=rows, type_vocab_size=1)
        return transformers.RobertaForMaskedLM(config)
    settings |= {"max_position_embeddings": recipe.data.length, "type_vocab_size": 2}
    if plain(options):
        return transformers.BertForMaskedLM(transformers.BertConfig(**settings))
    from outlierlens.models.variants import VariantConfig, VariantForMaskedLM

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


def _unlearned(model: "PreTrainedModel", options: ModelRecipe) -> list[Any]:
    """The biases that stay as they began: zero, or where a gate started."""
    from torch import nn

    head: Any = model.get_output_embeddings()
    linears = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    return [
        *([] if options.output_bias else [head.bias]),
        *([] if options.linear_bias else [linear.bias for linear in linears if linear.bias is not None]),
    ]


def prepare_positions_(model: "nn.Module", options: ModelRecipe) -> None:
    """Fill the table of positions as the recipe says, and keep what is not to be learned from being trained."""
    import torch

    from outlierlens.models.variants.attention import sinusoids

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


def _plant_(model: "nn.Module", options: ModelRecipe) -> None:
    if not options.planted:
        return
    from outlierlens.training.pretrain.regularize import planted_, planted_from_

    (stack,) = arch.bind(arch.stacks_of(config_dict(model)), arch.live_parameters(model))
    if options.planted_from:
        planted_from_(model, stack, options.planted, options.planted_from, options.planted_source)
    else:
        planted_(model, stack, options.planted, options.planted_scale, options.planted_bias)
