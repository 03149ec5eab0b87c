"""What a model is fed, in one place: decoders get their text shifted by one, and nobody gets more tokens than positions.

model(**model_inputs(loaded, batch))
token_limit(loaded, 128)
token_ids(loaded, "A text.")              # what its tokenizer makes of it, unknown tokens counted
tokenizer_of(loaded)                      # or an error that says what the model reads instead
"""

from collections.abc import Iterable
from typing import Any

from outlierlens.data.media.items import PLURAL, Items
from outlierlens.data.tables import OF_ITEMS
from outlierlens.data.texts import NO_LIMIT, NO_TOKENIZER, Batch, Data, Texts, TokenText, decoder_side
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, max_positions
from outlierlens.models.processor import kind_read


def model_inputs(loaded: LoadedModel, batch: Batch) -> dict[str, Any]:
    """Keyword arguments of the model for `batch`; raises BadInput for a decoder without a start token."""
    inputs: dict[str, Any] = dict(batch.inputs)
    if loaded.config.get("is_encoder_decoder"):
        inputs["decoder_input_ids"], _ = decoder_side(batch, loaded.config)
        inputs["decoder_attention_mask"] = batch.valid.long()
    return inputs


def tokenizer_of(loaded: LoadedModel) -> Any:
    """The model's tokenizer; raises BadInput that says why there is none."""
    if loaded.tokenizer is not None:
        return loaded.tokenizer
    kind = kind_read(loaded.model)
    if kind is not None:
        raise BadInput(
            f"{loaded.name} reads {PLURAL[kind]}, not text; {OF_ITEMS} take them (--data FOLDER), all that counts, asks or "
            f"attends to words does not"
        )
    raise BadInput(f"{loaded.name}: {NO_TOKENIZER}")


def check_readable(loaded: LoadedModel, texts: Any) -> None:
    """Raise as `tokenizer_of`, unless all texts were given as token ids, which need no tokenizer."""
    plain = texts.texts if isinstance(texts, Texts) else texts
    if not plain or not all(isinstance(text, TokenText) for text in plain):
        tokenizer_of(loaded)


def token_ids(loaded: LoadedModel, text: str, **how: Any) -> list[int]:
    """Token ids of one text; `how` is the tokenizer's. Unknown ones are counted: see `check_known`."""
    if isinstance(text, TokenText):
        ids = list(text.ids[: how.get("max_length")])
    else:
        ids = list(tokenizer_of(loaded)(text, **how)["input_ids"])
    loaded.known.add(loaded.tokenizer, ids)
    return ids


def check_known(loaded: LoadedModel, rows: Iterable[Iterable[int]] = ()) -> None:
    """Tell the user once where many tokens of all texts are unknown; `rows` of token ids are counted first.

    Raises:
        BadInput: all of them are.
    """
    for ids in rows:
        loaded.known.add(loaded.tokenizer, ids)
    loaded.known.check(loaded.name)
    loaded.known.warn(loaded.notice, loaded.name)


def token_limit(loaded: LoadedModel, asked: int) -> int:
    """`asked` tokens, or fewer where the text model or its tokenizer has fewer positions.

    Beside the config this asks the position tables themselves: MPNet keeps its padding index in the code, not the config.
    """
    from torch import nn

    config: Any = getattr(loaded.model, "config", None)
    inner: Any = config.get_text_config() if hasattr(config, "get_text_config") else None
    text_config = inner.to_dict() if hasattr(inner, "to_dict") else loaded.config
    limits = [max_positions(text_config), getattr(loaded.tokenizer, "model_max_length", None)]
    for name, module in loaded.model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min([asked, *(limit for limit in limits if isinstance(limit, int) and limit >= 2)])


def row_limit(loaded: LoadedModel, data: Data, asked: int) -> int:
    """Tokens of a row of a forward pass at most; a picture has those it has, and of a recording seconds are cut."""
    return NO_LIMIT if isinstance(data, Items) else token_limit(loaded, asked)
