"""Which keys are the first token, special, delimiters or punctuation; and texts padded as the released code pads them.

kinds = KeyKinds(loaded.tokenizer, tokens)
kinds.of(batch)                    # bool [class, batch, token], the order of `attended.CLASSES`
padded(tokens, pad_id)
"""

import unicodedata
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.vectors.read import TokenBatch, Tokens

if TYPE_CHECKING:
    from torch import Tensor

SHOWN = 30


class KeyKinds:
    """The kinds of keys.

    A delimiter is a token of punctuation alone (Unicode categories P*), of line breaks alone, or the tokenizer's separator or
    end token; punctuation is a delimiter that is not special. A token may be of several kinds: [CLS] is first and special,
    [SEP] special and a delimiter.

    Attributes:
        delimiters: those among the texts' tokens, the commonest first, `SHOWN` at most.
    """

    def __init__(self, tokenizer: Any, tokens: Tokens):
        import torch

        counts = Counter(token for ids in tokens.encoded["input_ids"] for token in ids)
        ends = {tokenizer.sep_token_id, tokenizer.eos_token_id} - {None}
        found = [token for token, _ in counts.most_common() if token in ends or is_delimiter(tokenizer.decode([token]))]
        self.delimiters = tuple(str(text) for text in tokenizer.convert_ids_to_tokens(found[:SHOWN]))
        self._ids = torch.tensor(sorted(found), dtype=torch.long)

    def of(self, batch: TokenBatch) -> "Tensor":
        """bool [class, batch, token]: `attended.CLASSES`; padding is of no kind."""
        import torch

        first = torch.zeros_like(batch.valid)
        first[:, 0] = True
        delimiter = torch.isin(batch.ids, self._ids.to(batch.ids.device))
        kinds = torch.stack((first, ~batch.ordinary, delimiter, delimiter & batch.ordinary))
        return kinds & batch.valid


def is_delimiter(text: str) -> bool:
    """Whether a decoded token is punctuation alone or line breaks alone; word-piece marks do not count."""
    bare = text.strip()
    bare = bare[2:] if bare.startswith("##") and len(bare) > 2 else bare
    if not bare:
        return "\n" in text
    return all(unicodedata.category(letter).startswith("P") for letter in bare)


def padded(tokens: Tokens, pad_id: int) -> Tokens:
    """The texts padded to `tokens.max_length`, padding masked: `lengths` are then those of the padded texts."""
    length = tokens.max_length
    encoded = {}
    for name, rows in tokens.encoded.items():
        fill = pad_id if name == "input_ids" else 0
        encoded[name] = [[*row, *[fill] * (length - len(row))] for row in rows]
    encoded["attention_mask"] = [[1] * n + [0] * (length - n) for n in tokens.lengths.tolist()]
    special = tuple(np.concatenate([one, np.zeros(length - len(one), dtype=bool)]) for one in tokens.special)
    return replace(tokens, encoded=encoded, special=special, offsets=None)
