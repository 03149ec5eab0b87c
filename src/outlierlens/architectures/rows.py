"""THE table: `model_type` -> all that is known of that family.

    stacks_of(config)                                             # its residual streams
    family_of(config).head_reads_last                             # a fact beside them
    kind_of("roberta.embeddings.position_embeddings.weight")      # "position": what a row of the table stands for
    first_row({"model_type": "roberta", "pad_token_id": 1})       # 2: row 2 is position 0

A row lies with those it resembles, in a file `rows_….py`. To add a family: one entry there, one tiny config in
`tests/architectures.py`; see CONTRIBUTING.md.
"""

import difflib

from outlierlens.architectures import rows_decoders, rows_encoder_decoders, rows_encoders, rows_llama
from outlierlens.architectures.family import Family
from outlierlens.architectures.stack import Config, Stack
from outlierlens.errors import UnknownArchitecture

ARCHITECTURES: dict[str, Family] = {
    model_type: row.named(model_type)
    for rows in (rows_llama.ROWS, rows_decoders.ROWS, rows_encoder_decoders.ROWS, rows_encoders.ROWS)
    for model_type, row in rows.items()
}

# Families of transformers without streams here: a row of the user's own may describe their models.
_BARE = {
    model_type: Family((), causal="is_decoder")
    for model_type in (
        "bert-generation", "big_bird", "data2vec-text", "ernie", "megatron-bert", "rembert", "roberta-prelayernorm",
        "roc_bert", "roformer", "xlm-roberta-xl", "xmod",
    )
}  # fmt: skip
_UNKNOWN = Family(())

# The last part of an embedding table's name -> what a row of it stands for: what many families call them, then each one's own.
TABLES = {
    "word_embeddings": "token",
    "embed_tokens": "token",
    "position_embeddings": "position",
    "embed_positions": "position",
    "token_type_embeddings": "segment",
} | {name: kind for row in ARCHITECTURES.values() for name, kind in row.tables.items()}


def family_of(config: Config) -> Family:
    """The row for `config["model_type"]`; where there is none, one that says nothing and has no streams."""
    model_type = str(config.get("model_type"))
    return ARCHITECTURES.get(model_type) or _BARE.get(model_type, _UNKNOWN)


def stacks_of(config: Config, where: str = "config.json") -> tuple[Stack, ...]:
    """The streams declared for `config["model_type"]`; `where` names the config in the error.

    Raises:
        UnknownArchitecture: no row; the message names the nearest rows and the remedies.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnknownArchitecture(
            f"no model_type in {where}; name the family that it is built like (--family bert), or write a row by hand "
            f"(docs/architectures.md) and pass --arch row.toml"
        )
    row = ARCHITECTURES.get(model_type)
    if row is None:
        near = difflib.get_close_matches(model_type, ARCHITECTURES, n=3, cutoff=0.4)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise UnknownArchitecture(
            f"unknown model_type {model_type!r} in {where}; pass --arch row.toml (`outlierlens scan --propose` drafts "
            f"one) or add a row in src/outlierlens/architectures{hint}"
        )
    return row.stacks(config) if callable(row.stacks) else row.stacks


def kind_of(parameter: str) -> str:
    """ "token", "position", "segment", "class", "mask", or "other" for a table that no row of the package declares."""
    return TABLES.get(parameter.removesuffix(".weight").rpartition(".")[2], "other")


def first_row(config: Config) -> int:
    """The row of the position table that position 0 reads."""
    row = family_of(config).first_position
    if isinstance(row, int):
        return row
    padding = config.get("pad_token_id")
    return (padding if isinstance(padding, int) else 1) + 1
