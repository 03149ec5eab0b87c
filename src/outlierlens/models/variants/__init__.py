"""A BERT whose position, norm and attention kinds are options: the family that pre-training experiments are made with.

    config = VariantConfig(position_kind="rotary", norm_order="pre", norm_kind="rmsnorm", attention_kind="gated")
    model = VariantForMaskedLM(config)               # BertForMaskedLM's arguments, outputs and parameter names
    load_model("a-folder-saved-from-it")             # `models` registers the classes when it meets such a config

With every option at its default a model computes bit for bit what `BertForMaskedLM` computes from the same weights.
Importing this package imports neither torch nor transformers; its modules do.
"""

MODEL_TYPE = "outlierlens-bert"


def register() -> None:
    """Have transformers' AutoConfig, AutoModel and AutoModelForMaskedLM know the family; harmless when repeated."""
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

    from outlierlens.models.variants.config import VariantConfig
    from outlierlens.models.variants.model import VariantForMaskedLM, VariantModel

    AutoConfig.register(MODEL_TYPE, VariantConfig, exist_ok=True)
    AutoModel.register(VariantConfig, VariantModel, exist_ok=True)
    AutoModelForMaskedLM.register(VariantConfig, VariantForMaskedLM, exist_ok=True)
