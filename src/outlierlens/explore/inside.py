"""What happens inside: token vectors after a layer, one head's attention, and the anisotropy of the text's tokens.

dimension(comparison, dim), vectors(comparison, layer, token), attention(comparison, layer, head), anisotropy(comparison)

Each condition is one forward pass without the head; see `language.Comparison`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch
from outlierlens.errors import BadInput
from outlierlens.explore.language import LENGTH, Comparison, loss, passage
from outlierlens.explore.result import Anisotropy, AttentionMaps, Off, OneDimension, Vectors
from outlierlens.models.attention_maps import check_eager, tapped_attention
from outlierlens.models.hooks import EMBEDDINGS, layer_name, tapped
from outlierlens.models.passes import TextReading
from outlierlens.vectors.cosines import contributions, mean_cosine, unit

if TYPE_CHECKING:
    from torch import Tensor


def _read(comparison: Comparison) -> tuple[TextReading, Batch]:
    reading = TextReading(comparison.loaded, LENGTH)
    (batch,) = reading.batches([comparison.text], batch_size=1)
    return reading, batch


def _tokens(comparison: Comparison, reading: TextReading, batch: Batch) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """The tokens that the stream reads, and which of them are special."""
    ids, special = reading.sides(batch)[comparison.ablation.stack.name]
    return reading.words(ids[0].tolist()), tuple(special[0].tolist())


def dimension(comparison: Comparison, dim: int, layers: tuple[int, ...]) -> OneDimension:
    """Where `dim` fires in the intact model on this text, and what its being off alone in `layers` breaks."""
    reading, batch = _read(comparison)
    tokens, _ = _tokens(comparison, reading, batch)
    names, values, shares = [], [], []

    def look(_: BoundStack, at: int, states: "Tensor") -> None:
        seen = states[0].float().cpu().numpy()  # [token, dim]
        names.append(layer_name(at))
        values.append(seen[:, dim])
        shares.append(np.abs(seen[:, dim]) / np.maximum(np.linalg.norm(seen, axis=-1), np.finfo(np.float32).tiny))

    with tapped(comparison.loaded.model, [comparison.ablation.stack], look):
        reading(batch)
    alone = replace(comparison, conditions=(Off("intact", (), ()), Off("alone", (dim,), layers)))
    fills = passage(alone).fills
    blanks = fills[-1].blanks if fills else ()
    return OneDimension(
        dim=dim,
        layers=tuple(names),
        tokens=tokens,
        values=np.stack(values),
        shares=np.stack(shares),
        loss=loss(alone),
        words=tuple(blank for blank in blanks if blank.kind != "same"),
        n_words=sum(blank.kind != "changed" for blank in blanks),
    )


def vectors(comparison: Comparison, layer: int, token: int | None) -> Vectors:
    """Vectors after `layer` under each condition: that of `token` whole (None: their mean), of all tokens the named dimensions.

    Raises:
        BadInput: the text has no such token.
    """
    reading, batch = _read(comparison)
    tokens, _ = _tokens(comparison, reading, batch)
    if token is not None and token >= len(tokens):
        raise BadInput(f"token {token} does not exist; the text has tokens 0 to {len(tokens) - 1}")
    found: list[np.ndarray] = []

    def look(_: BoundStack, at: int, states: "Tensor") -> None:
        if at == layer:
            found.append(states[0].float().cpu().numpy())  # [token, dim]

    for condition in comparison.conditions:
        with (
            comparison.off(condition),
            tapped(comparison.loaded.model, [comparison.ablation.stack], look),
        ):
            reading(batch)
    states = np.stack(found)  # [condition, token, dim]
    return Vectors(
        layer=layer_name(layer),
        tokens=tokens,
        drawn="mean of all tokens" if token is None else tokens[token],
        values=states.mean(1) if token is None else states[:, token],
        named=comparison.named,
        marked=states[..., list(comparison.named)],
        lengths=np.linalg.norm(states, axis=-1),
    )


def attention(comparison: Comparison, layer: int, head: int) -> AttentionMaps:
    """What head `head` of `layer` (the last one where there are fewer heads) attends to under each condition."""
    stack = comparison.ablation.stack
    try:
        check_eager(comparison.loaded, stack)
    except BadInput as error:
        return AttentionMaps(layer, head, missing=str(error))
    reading, batch = _read(comparison)
    tokens, special = _tokens(comparison, reading, batch)
    found: list[np.ndarray] = []

    def look(at: int, weights: "Tensor", _: Any) -> None:
        if at == layer:
            n = len(tokens)
            found.append(weights[0, :, :n, :n].float().cpu().numpy())  # [head, query, key]

    for condition in comparison.conditions:
        with comparison.off(condition), tapped_attention(comparison.loaded, stack, look):
            reading(batch)
    maps = np.stack(found)  # [condition, head, query, key]
    n_heads = maps.shape[1]
    head = min(head, n_heads - 1)
    return AttentionMaps(layer, head, n_heads, tokens, special, maps[:, head])


def anisotropy(comparison: Comparison) -> Anisotropy:
    """Mean cosine of all pairs of the text's tokens, special ones left out, after each layer under each condition.

    Ethayarajh (2019), section 3, on one text: its tokens are not drawn from many texts, as `geometry` draws them.
    """
    reading, batch = _read(comparison)
    _, special = _tokens(comparison, reading, batch)
    kept = np.flatnonzero(~np.array(special))
    if len(kept) < 2:
        return Anisotropy(missing="a mean cosine needs at least two tokens; write a longer text")
    chosen = list(comparison.conditions[-1].changed)
    layers = [EMBEDDINGS, *range(comparison.ablation.stack.n_layers)]
    cosine = np.full((len(comparison.conditions), len(layers)), np.nan)
    share = np.full_like(cosine, np.nan)
    for row, condition in enumerate(comparison.conditions):

        def look(_: BoundStack, at: int, states: "Tensor", row: int = row) -> None:
            units = unit(states[0].float().cpu().numpy()[kept])
            cosine[row, layers.index(at)] = mean_cosine(units)[0]
            share[row, layers.index(at)] = contributions(units)[chosen].sum() if chosen else 0.0

        with (
            comparison.off(condition),
            tapped(comparison.loaded.model, [comparison.ablation.stack], look),
        ):
            reading(batch)
    return Anisotropy(tuple(map(layer_name, layers)), cosine, share, len(kept))
