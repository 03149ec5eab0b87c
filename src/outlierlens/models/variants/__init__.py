"""A BERT and a Llama whose attention, positions and norms are options: the families of pre-training experiments.

    config = VariantConfig(position_kind="rotary", norm_order="pre", norm_kind="rmsnorm", attention_kind="gated")
    model = VariantForMaskedLM(config)               # BertForMaskedLM's arguments, outputs and parameter names
    model = VariantForCausalLM(VariantDecoderConfig(attention_kind="off-by-one"))    # LlamaForCausalLM's
    load_model("a-folder-saved-from-it")             # `models` registers the classes when it meets such a config

With every option at its default a model computes bit for bit what `BertForMaskedLM` or `LlamaForCausalLM` computes from the
same weights. Importing this package imports neither torch nor transformers; its modules do.
"""

MODEL_TYPES = ("outlierlens-bert", "outlierlens-llama")


def register() -> None:
    """Have transformers' AutoModel and the automatic language models know the families; harmless when repeated.

    AutoConfig knows them since `config` was imported.
    """
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

    from outlierlens.models.variants import config, model

    AutoModel.register(config.VariantConfig, model.VariantModel, exist_ok=True)
    AutoModel.register(config.VariantDecoderConfig, model.VariantDecoder, exist_ok=True)
    AutoModelForMaskedLM.register(config.VariantConfig, model.VariantForMaskedLM, exist_ok=True)
    AutoModelForCausalLM.register(config.VariantDecoderConfig, model.VariantForCausalLM, exist_ok=True)
