"""What a model is fed, in one place: decoders get their text shifted by one, and nobody gets more tokens than positions.

model(**model_inputs(loaded, batch))
token_limit(loaded, 128)
"""

from typing import Any

from outlierlens.data import Batch, decoder_side
from outlierlens.models import LoadedModel, max_positions


def model_inputs(loaded: LoadedModel, batch: Batch) -> dict[str, Any]:
    """Keyword arguments of the model for `batch`; raises BadInput for a decoder without a start token."""
    inputs: dict[str, Any] = dict(batch.inputs)
    if loaded.config.get("is_encoder_decoder"):
        inputs["decoder_input_ids"], _ = decoder_side(batch, loaded.config)
        inputs["decoder_attention_mask"] = batch.valid.long()
    return inputs


def token_limit(loaded: LoadedModel, asked: int) -> int:
    """`asked` tokens, or fewer where the model has fewer positions."""
    return min(asked, max_positions(loaded.config) or asked)
