"""The examples of a labelled task as a task hands them to a model: `TextRows`, beside `media.passes.ItemRows`.

rows = rows_of(loaded, examples, 128)
rows.lengths, rows.labels                # tokens of each; numbers, or lists of them a token
model(**rows.inputs([0, 5]))             # padded
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data.labelled.encode import encode
from outlierlens.data.labelled.examples import Examples
from outlierlens.data.media.items import Items, LabelledItems
from outlierlens.errors import BadInput
from outlierlens.models.heads import padding_side
from outlierlens.models.inputs import check_known, token_limit
from outlierlens.models.load import LoadedModel
from outlierlens.models.media.passes import ItemRows

if TYPE_CHECKING:
    from torch import Tensor


class TextRows:
    """Texts, or pairs of them, by their tokens.

    Attributes:
        encoded: token ids and labels. lengths: tokens of each, int [text]. labels: of each text.
        longest: tokens of a row at most.
        tries_first: whether the head may read the first token alone.
        what: one of them in words. notes: about how they were read.
    """

    def __init__(self, loaded: LoadedModel, examples: Examples, max_length: int):
        self.loaded, self.examples = loaded, examples
        self.tries_first = examples.task.level != "token"
        _check_padding(loaded)
        self.longest = token_limit(loaded, max_length)
        self.encoded = encode(loaded.tokenizer, examples, max_length=self.longest).for_model(loaded.model)
        check_known(loaded, self.encoded.inputs["input_ids"])
        self.lengths = np.array(self.encoded.lengths)
        if not self.lengths.all():
            row = int(np.argmin(self.lengths)) + 1
            raise BadInput(f"{examples.source}, row {row}: no token at all for {loaded.name}; leave such rows out")
        self.labels = self.encoded.labels
        self.what = f"{'pair' if examples.pairs else 'example'} of at most {self.longest} tokens"
        self.notes = self._notes()

    def _notes(self) -> tuple[str, ...]:
        if not self.encoded.n_cut:
            return ()
        lost = "; labels of words that were cut off do not count" if self.examples.task.level == "token" else ""
        return (
            f"{self.encoded.n_cut:,} of {len(self.examples):,} examples do not fit into {self.longest} tokens and were "
            f"cut{lost}",
        )

    def inputs(self, numbers: Sequence[int]) -> "dict[str, Tensor]":
        """Keyword arguments of the model for these texts (repeats allowed), padded."""
        made = {}
        for key, values in self.encoded.inputs.items():
            fill = _padding(self.loaded) if key == "input_ids" else 0
            made[key] = self.padded([values[number] for number in numbers], fill)
        return made

    def padded(self, rows: Sequence[Sequence[int]], fill: int) -> "Tensor":
        """Rows padded to the longest with `fill`, int64 [row, token], on the model's device."""
        import torch

        side = padding_side(self.loaded.model)
        longest = max(map(len, rows))
        values = np.full((len(rows), longest), fill, dtype=np.int64)
        for number, row in enumerate(rows):
            values[number, slice(len(row)) if side == "right" else slice(longest - len(row), None)] = row
        return torch.from_numpy(values).to(self.loaded.device, non_blocking=True)

    def apart(self, numbers: Sequence[int]) -> list[list[int]]:
        """Places in `numbers` that can share batches: all of them."""
        return [list(range(len(numbers)))]


def _padding(loaded: LoadedModel) -> int:
    """The token that fills batches: the model's own, by which some heads find the last token; else the tokenizer's."""
    config: Any = loaded.model.config
    own = getattr(config.get_text_config(), "pad_token_id", None)
    tokenizer: Any = loaded.tokenizer
    return int(next((found for found in (own, tokenizer.pad_token_id) if found is not None), 0))


def _check_padding(loaded: LoadedModel) -> None:
    """Raise BadInput for a head that reads the last token and cannot tell padding from tokens."""
    config: Any = loaded.model.config
    # GPT-2 and its kin call such a head "score", and find their last token by the padding that the config names.
    if hasattr(loaded.model, "score") and getattr(config.get_text_config(), "pad_token_id", None) is None:
        own = getattr(loaded.tokenizer, "pad_token_id", None)
        raise BadInput(
            f"{loaded.name}: its config names no padding token, so its head cannot find the last token of a text; set "
            f"pad_token_id{'' if own is None else f' = {own}'} in the config"
        )


def rows_of(loaded: LoadedModel, examples: "Examples | LabelledItems", max_length: int) -> "TextRows | ItemRows":
    """The examples as a task hands them to `loaded`."""
    return ItemRows(loaded, examples) if isinstance(examples, Items) else TextRows(loaded, examples, max_length)
