"""Token ids and the rows of the embeddings that they name: a tokenizer may know more ids than the model has rows.

row_count(model)                                 # rows of the table that token ids name; None where there is none
guard_rows(model, tokenizer, "my model")         # from now on a pass that is given an id without a row says which
refuse_unknown(ids, 30522, tokenizer, "my model")
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from torch import nn


def row_count(model: "nn.Module") -> int | None:
    """Rows of the table that the model's token ids name; None for a model that reads none."""
    table = input_table(model)
    return None if table is None else int(table.num_embeddings)


def guard_rows(model: "nn.Module", tokenizer: Any, name: str) -> None:
    """Have `model` raise BadInput, not IndexError, for a token id without a row.

    Only a model whose tokenizer knows more ids than it has rows is looked at while it runs: such ids may never occur.
    """
    table = input_table(model)
    if table is None or not hasattr(tokenizer, "get_vocab"):
        return
    guarded = any(isinstance(hook, _Guard) for hook in table._forward_pre_hooks.values())
    if not guarded and max(tokenizer.get_vocab().values(), default=0) >= table.num_embeddings:
        table.register_forward_pre_hook(_Guard(tokenizer, name))


def refuse_unknown(ids: Collection[int], n_rows: int | None, tokenizer: Any, name: str) -> None:
    """Raise BadInput for the largest of `ids` if it has no row."""
    if n_rows is not None and len(ids) and (largest := max(ids)) >= n_rows:
        if tokenizer is None:
            raise BadInput(
                f"{name}: token id {largest} has no row: the embeddings have {n_rows:,} rows; give ids of this model"
            )
        raise BadInput(
            f"{name}: token id {largest} ({tokenizer.convert_ids_to_tokens(largest)!r}) has no row: the embeddings have "
            f"{n_rows:,} rows; take the tokenizer that belongs to the model, or enlarge the model with "
            f"model.resize_token_embeddings({max(tokenizer.get_vocab().values()) + 1}) and save it"
        )


class _Guard:
    """What looks at the ids of every pass; a class, for models are copied and sent to other processes."""

    def __init__(self, tokenizer: Any, name: str):
        self.tokenizer, self.name = tokenizer, name

    def __call__(self, table: Any, args: tuple[Any, ...]) -> None:
        if args and args[0].numel():
            refuse_unknown([int(args[0].max())], table.num_embeddings, self.tokenizer, self.name)


def input_table(model: "nn.Module") -> "nn.Embedding | None":
    """The table that token ids name rows of; None for a model that has none."""
    from torch import nn

    try:
        table: Any = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    return table if isinstance(table, nn.Embedding) else None
