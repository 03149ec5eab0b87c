"""How positions get into a model, seen from its states rather than from its name.

in_embeddings(loaded, tokens, reading)         # do the embeddings of one token differ by where it stands?
left_only(loaded, tokens, reading)             # does a token see what stands before it alone?
"""

from dataclasses import replace

import numpy as np

from outlierlens.models.hooks import EMBEDDINGS
from outlierlens.models.load import LoadedModel
from outlierlens.vectors.read import ReadOptions, Tokens, text_stack, token_batches

FEW = 32  # texts that are looked at
SAME = 1e-3  # of a vector's length: a smaller difference is rounding


def in_embeddings(loaded: LoadedModel, tokens: Tokens, reading: ReadOptions) -> bool | None:
    """Whether the embeddings of one token differ by its position; None where no token stands at two positions."""
    options = replace(reading, layers=(EMBEDDINGS,), final_norm=False, progress=None)
    seen: dict[int, tuple[int, np.ndarray]] = {}
    found = None
    texts = [int(i) for i in np.argsort(-tokens.lengths, kind="stable")[:FEW]]
    for batch in token_batches(loaded, tokens, options, order=texts):
        states = batch.states[0].float().cpu().numpy()
        ids, ordinary = batch.ids.cpu().numpy(), batch.ordinary.cpu().numpy()
        for row, column in zip(*np.nonzero(ordinary), strict=True):
            where, vector = seen.setdefault(int(ids[row, column]), (int(column), states[row, column]))
            if where != column:
                if _differ(vector, states[row, column]):
                    return True
                found = False
    return found


def left_only(loaded: LoadedModel, tokens: Tokens, reading: ReadOptions) -> bool | None:
    """Whether the first token's state stays the same without the text's last token; None without a text of three tokens.

    The shortest such text is taken, so that the last token is within reach of the first where attention is local.
    """
    lengths = tokens.lengths
    long_enough = [int(i) for i in np.argsort(lengths, kind="stable") if lengths[i] >= 3]
    if not long_enough:
        return None
    options = replace(
        reading, layers=(text_stack(loaded, reading.stack).n_layers - 1,), final_norm=False, progress=None
    )
    first = []
    for one in (_text(tokens, long_enough[0], less) for less in (0, 1)):
        (batch,) = token_batches(loaded, one, options)
        first.append(batch.states[0][0, 0].float().cpu().numpy())
    return not _differ(*first)


def _text(tokens: Tokens, text: int, less: int) -> Tokens:
    """One text alone, without its last `less` tokens."""
    end = int(tokens.lengths[text]) - less
    encoded = {key: [values[text][:end]] for key, values in tokens.encoded.items()}
    return Tokens((tokens.texts[text],), encoded, (tokens.special[text][:end],), None, tokens.max_length)


def _differ(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.linalg.norm(one - other) > SAME * np.linalg.norm(one))
