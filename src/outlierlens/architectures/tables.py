"""What an embedding table holds, and which of its rows a model ever reads.

kind_of("roberta.embeddings.position_embeddings.weight")      # "position"
first_row({"model_type": "roberta", "pad_token_id": 1})       # 2: row 2 is position 0
"""

from outlierlens.architectures.stack import Config

PADDING = "padding"  # one row after the padding token's

# The last part of a declared table's name -> what a row of it stands for.
KINDS = {
    "word_embeddings": "token",
    "word_embedding": "token",
    "tok_embeddings": "token",
    "token_embedding": "token",
    "embed_tokens": "token",
    "embed_in": "token",
    "wte": "token",
    "shared": "token",
    "position_embeddings": "position",
    "position_embedding": "position",
    "embed_positions": "position",
    "wpe": "position",
    "token_type_embeddings": "segment",
    "cls_token": "class",
    "class_embedding": "class",
    "register_tokens": "register",
    "masked_spec_embed": "mask",
}

# Families that count positions from a later row of their table: the rows before it are never read for a text.
FIRST_ROWS: dict[str, int | str] = {
    "bart": 2,
    "camembert": PADDING,
    "mpnet": 2,
    "opt": 2,
    "roberta": PADDING,
    "xlm-roberta": PADDING,
}


def kind_of(parameter: str) -> str:
    """ "token", "position", "segment", "class", "mask", or "other" for a table that no row of the package declares."""
    return KINDS.get(parameter.removesuffix(".weight").rpartition(".")[2], "other")


def first_row(config: Config) -> int:
    """The row of the position table that position 0 reads."""
    row = FIRST_ROWS.get(str(config.get("model_type", "")), 0)
    if isinstance(row, int):
        return row
    padding = config.get("pad_token_id")
    return (padding if isinstance(padding, int) else 1) + 1
