"""Hidden states as arrays, token by token: `outlierlens.states`.

found = ol.states("smollm2-135m", ["A film worth seeing."], layers=[12])
found[12][:, 507]                       # dimension 507 at each token
found.tokens, found.text                # the tokens, and the text that each belongs to
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data.media.items import Items
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput, need
from outlierlens.models.load import LoadedModel
from outlierlens.vectors.read import ReadOptions, allocate, stack_of, token_batches, tokenise, wanted_layers

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class TokenStates:
    """Hidden states of each token that a stream reads, special tokens among them, padding left out.

    Attributes:
        values: float32 [layer, token, dim].
        layers: of `values`: k is the output of block k, −1 the embeddings.
        tokens: as the tokenizer writes them [token], ids where there is none; of pictures and recordings the number of
            the patch or frame.
        text, position: index of the token's text, and its place there from 0 [token].
        special: bool [token]: added by the tokenizer.
        stack: the stream.
    """

    values: np.ndarray
    layers: tuple[int, ...]
    tokens: tuple[str, ...]
    text: np.ndarray
    position: np.ndarray
    special: np.ndarray
    stack: str

    def __getitem__(self, layer: int) -> np.ndarray:
        """States of one layer [token, dim]; raises BadInput with the layers there are."""
        if layer not in self.layers:
            raise BadInput(f"layer {layer} was not read; there are {', '.join(map(str, self.layers))}")
        found: np.ndarray = self.values[self.layers.index(layer)]
        return found

    def to_pandas(self, dims: Sequence[int]) -> "pandas.DataFrame":
        """A row for each layer and token: layer, text, position, token, and the value at each of `dims`."""
        n = len(self.tokens)
        columns: dict[str, Any] = {
            "layer": np.repeat(self.layers, n),
            **{name: np.tile(getattr(self, name), len(self.layers)) for name in ("text", "position", "special")},
            "token": self.tokens * len(self.layers),
        }
        columns |= {str(dim): self.values[:, :, dim].ravel() for dim in dims}
        return need("pandas", "models", "to_pandas()").DataFrame(columns)


def states(
    loaded: LoadedModel,
    texts: Data,
    layers: Sequence[int] | None = None,
    *,
    max_length: int = 512,
    options: ReadOptions | None = None,
) -> TokenStates:
    """Hidden states of every token of `texts` at the outputs of blocks `layers`, −1 for the embeddings; None takes all.

    Texts are cut at `max_length` tokens, or fewer where the model has no more positions. The encoder of an encoder-decoder
    is read, unless `options.stack` names another stream.

    Raises:
        BadInput: a layer or stream that the model does not have, states beyond `options.cache_gb`, or no tokenizer.
    """
    read = replace(options or ReadOptions(), layers=None if layers is None else tuple(layers))
    tokens = tokenise(loaded, texts, max_length=max_length, stack=read.stack)
    stream = stack_of(loaded, tokens, read.stack)
    wanted = wanted_layers(stream, read.layers)
    rows: dict[int, tuple[slice, tuple[str, ...], np.ndarray]] = {}
    # Each text has as many states as tokens, and the decoder behind an encoder one more or fewer.
    room = int(tokens.lengths.sum()) + len(tokens.texts)
    values, end = None, 0
    for batch in token_batches(loaded, tokens, read):
        for row, text in enumerate(batch.texts):
            seen = batch.valid[row]
            ids = batch.ids[row][seen].tolist()
            tokens_of = getattr(loaded.tokenizer, "convert_ids_to_tokens", partial(map, str))
            named = map(str, range(len(ids))) if isinstance(texts, Items) else tokens_of(ids)
            place = slice(end, end + len(ids))
            rows[text] = (place, tuple(named), ~batch.ordinary[row][seen].cpu().numpy())
            if values is None:
                values = allocate((len(wanted), room, batch.states[0].shape[-1]), read.cache_gb, what="states")
            for layer, states_of in enumerate(batch.states):
                values[layer, place] = states_of[row][seen].float().cpu().numpy()
            end = place.stop
    if values is None:
        raise BadInput("there is no token in these texts, so there are no states")
    order = sorted(rows)
    places = [rows[text][0] for text in order]
    return TokenStates(
        values[:, np.concatenate([np.arange(one.start, one.stop) for one in places])],
        wanted,
        tuple(token for text in order for token in rows[text][1]),
        np.repeat(order, [one.stop - one.start for one in places]),
        np.concatenate([np.arange(one.stop - one.start) for one in places]),
        np.concatenate([rows[text][2] for text in order]),
        stream.name,
    )
