"""Which keys are the first token, special, delimiters or punctuation; and texts padded as the released code pads them.

kinds = KeyKinds(loaded.tokenizer, tokens)
kinds.of(batch)                    # bool [class, batch, token], the order of `result.CLASSES`
padded(tokens, pad_id)

One layer's attention maps of one batch, read into a few numbers a key and a head.

    read = read_maps(weights, lengths, visible, means=("seen", "all"))
    read.columns["seen"]            # [batch, token, head]: mean attention a key receives from the queries that see it

Padding is no query and no key, except for the mean "padded" of the released code, in which padding is a query.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.vectors.read import TokenBatch, Tokens

if TYPE_CHECKING:
    from torch import Tensor

SHOWN = 30
SEEN, ALL, PADDED = "seen", "all", "padded"


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
        """bool [class, batch, token]: `result.CLASSES`; padding is of no kind."""
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


@dataclass(frozen=True)
class MapSums:
    """What is kept of a layer's maps of a batch.

    Attributes:
        columns: attention that each key receives, by mean, float64 [batch, token, head]; 0 at padding.
        uniform: float64 [batch, token], what a key would receive in all from queries that attend to all keys alike.
        total: float64 [batch, token, head], what a key receives in all.
        mass, entropy, relative: sums over queries, float64 [batch, head].
        n_entropy, n_relative: queries in those sums [batch, head].
        hides: whether a key is hidden from a query, padding apart.
    """

    columns: dict[str, "Tensor"]
    uniform: "Tensor"
    total: "Tensor"
    mass: "Tensor"
    entropy: "Tensor"
    relative: "Tensor"
    n_entropy: "Tensor"
    n_relative: "Tensor"
    hides: bool


def read_maps(
    weights: "Tensor", lengths: Sequence[int], visible: "Tensor | None", *, with_padded: bool = False
) -> MapSums:
    """Columns, masses and entropies of `weights` [batch, head, query, key], whose texts have `lengths` tokens, padding last.

    `visible` is bool [batch or 1, 1, query or 1, key], None where every key is seen.

    Raises:
        BadInput: a weight is NaN or infinite, or there are fewer queries than tokens.
    """
    import torch

    n_texts, heads, n_queries, n_keys = weights.shape
    if len(lengths) != n_texts or max(lengths) > min(n_queries, n_keys):
        raise BadInput(
            f"attention weights are {list(weights.shape)} for {len(lengths)} texts of up to {max(lengths)} tokens; load the "
            "model with attention 'eager', which keeps padding in place"
        )
    device = weights.device
    wide: Any = {"dtype": torch.float64, "device": device}
    total, seen, padded = (torch.zeros((n_texts, n_keys, heads), **wide) for _ in range(3))
    uniform = torch.zeros((n_texts, n_keys), **wide)
    sums = torch.zeros((5, n_texts, heads), **wide)  # mass, entropy, relative, n_entropy, n_relative
    hides = False
    for text, n in enumerate(lengths):
        if not n:
            continue
        maps = weights[text, :, :n, :n].float()  # [head, query, key]
        received = maps.sum(1).double().T  # [key, head]
        by_query, by_key = _sight(visible, text, n)
        if by_query is None or by_key is None:
            log_keys = torch.full((n,), math.log(n), **wide)
            uniform[text, :n] = 1.0
            seen[text, :n] = received / n
        else:
            hides = hides or bool((by_key < n).any())
            uniform[text, :n] = (_shown(visible, text, n).double() / by_query.clamp(min=1)[:, None]).sum(0)
            seen[text, :n] = received / by_key.clamp(min=1)[:, None]
            log_keys = by_query.clamp(min=1).log()
        total[text, :n] = received
        if with_padded:
            padded[text, :n] = weights[text, :, :, :n].float().mean(1).double().T
        mass = maps.sum(2)  # [head, query]
        # 0 · log 0 is 0: the smallest number's logarithm is finite.
        self_information = maps.clamp(min=torch.finfo(maps.dtype).tiny).log_().mul_(maps).sum(2)
        there = mass > 0
        entropy = torch.where(
            there, mass.clamp(min=1e-30).log() - self_information / mass.clamp(min=1e-30), 0.0
        ).double()
        several = there & (log_keys > 0)
        relative = torch.where(several, entropy / torch.where(log_keys > 0, log_keys, 1.0), 0.0)
        sums[:, text] = torch.stack([part.double().sum(1) for part in (mass, entropy, relative, there, several)])
    if not bool(torch.isfinite(sums).all()):
        raise BadInput(f"an attention weight is NaN or infinite; {USE_FLOAT32}")
    columns = {SEEN: seen, ALL: total / torch.tensor(lengths, **wide).clamp(min=1)[:, None, None]}
    if with_padded:
        columns[PADDED] = padded
    return MapSums(columns, uniform, total, *sums, hides=hides)  # type: ignore[misc]


def _shown(visible: "Tensor | None", text: int, n: int) -> "Tensor":
    """bool [query, key] of a text."""
    assert visible is not None
    one = visible[text if len(visible) > 1 else 0, 0]
    return (one[:n] if len(one) > 1 else one)[:, :n].expand(n, n)


def _sight(visible: "Tensor | None", text: int, n: int) -> "tuple[Tensor | None, Tensor | None]":
    """(keys that each query sees, queries that see each key) [token] float64; None where all see all."""
    if visible is None:
        return None, None
    shown = _shown(visible, text, n)
    if bool(shown.all()):
        return None, None
    return shown.sum(1).double(), shown.sum(0).double()
