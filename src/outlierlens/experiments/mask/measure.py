"""How a mask is found: half of the texts make it in two passes, the other half judges it.

    found = mask(load_model("smollm2-135m"), read_texts("excerpt"), MaskOptions(layer=15))

A sink is a token whose hidden state is far longer than the median token's. What repeats (a position, a type of token) is the
mask; what is left of the sinks is for the threshold on the norm. Moments and dimensions that stand out are those of the tokens
that are no sinks.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.data.texts import Texts
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.mask.exports import export
from outlierlens.experiments.mask.options import MaskCall, MaskOptions
from outlierlens.experiments.mask.result import Judged, LayerSinks, Mask, StandsOut
from outlierlens.models.inputs import tokenizer_of
from outlierlens.models.load import LoadedModel
from outlierlens.results.safe_files import check_file, write_text
from outlierlens.session import Session
from outlierlens.statistics.means import share_at_most
from outlierlens.vectors.read import ReadOptions, Tokens, text_stack, token_batches, tokenise

if TYPE_CHECKING:
    from torch import Tensor

FEWEST_TEXTS, FEWEST_TOKENS = 4, 2  # of a split; of a position or type before it is masked
SHOWN = 12  # dimensions that stand out, at most


@dataclass(frozen=True)
class _Seen:
    """Tokens in a row: norms [token, layer], and the type, position and text of each [token]."""

    norms: np.ndarray
    ids: np.ndarray
    position: np.ndarray
    text: np.ndarray


def mask(
    loaded: LoadedModel, texts: Texts, options: MaskOptions | None = None, *,
    command: str = "", progress: Callable[[str, int, int], None] | None = None,
) -> Mask:  # fmt: skip
    """Tokens and dimensions to leave out of one block's output, from half of `texts`, judged on the other half.

    Raises:
        BadInput: fewer than four texts with tokens, no such block, a model that reads no text, or a state that is not finite.
    """
    options = options or MaskOptions()
    stack = text_stack(loaded, options.stack)
    layer = stack.n_layers // 2 if options.layer is None else options.layer
    if layer >= stack.n_layers:
        raise BadInput(f"{loaded.name}: there is no block {layer}; its blocks are 0 to {stack.n_layers - 1}")
    tokens = tokenise(loaded, texts, max_length=options.max_length)
    order = np.random.default_rng(options.seed).permutation(np.flatnonzero(tokens.lengths > 0)).tolist()
    if len(order) < FEWEST_TEXTS:
        raise BadInput(
            f"{texts.source}: {len(order)} texts have tokens, and half of them judge what the others say; use at least "
            f"{FEWEST_TEXTS}"
        )
    n_fit = (len(order) + 1) // 2
    read = ReadOptions(
        batch_size=options.batch_size, stack=stack.name, layers=tuple(range(stack.n_layers)), progress=progress
    )
    fit = tokens.some(sorted(order[:n_fit]))
    seen = _seen(loaded, fit, read.told("finding sinks"))
    thresholds = options.factor * np.median(seen.norms, axis=0)  # [layer]
    sums = _sums(loaded, fit, read.told("reading other tokens"), thresholds)
    sinks = seen.norms[:, layer] > thresholds[layer]
    positions, ids = _rule(seen, sinks, options.share)
    held = tokens.some(sorted(order[n_fit:]))
    others = _seen(loaded, held, ReadOptions(batch_size=options.batch_size, stack=stack.name, layers=(layer,)))
    centre, scale = sums.moments(layer, kept=True)
    tokenizer = tokenizer_of(loaded)
    return Mask(
        provenance=loaded.provenance(command=command, seed=options.seed),
        data=texts.source, data_digest=texts.digest, stack=stack.name, layer=str(layer), max_length=tokens.max_length,
        factor=options.factor, dim_factor=options.dim_factor, share=options.share,
        n_fit=n_fit, n_fit_tokens=len(seen.ids),
        threshold=float(thresholds[layer]), positions=positions, token_ids=ids,
        words=tuple(str(tokenizer.convert_ids_to_tokens(one)) for one in ids),
        judged=_judged(others, len(held.texts), float(thresholds[layer]), positions, ids),
        dims=_standing_out(sums, layer, options.dim_factor),
        centre=centre.astype(np.float32), scale=scale.astype(np.float32),
        layers=tuple(_layer(seen, sums, thresholds, one) for one in range(stack.n_layers)),
        notes=loaded.notes,
    )  # fmt: skip


def _states(
    loaded: LoadedModel, tokens: Tokens, read: ReadOptions
) -> "Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]":
    """(states [layer, token, dim], ids, positions, texts [token]) of each batch, padding left out."""
    import torch

    for batch in token_batches(loaded, tokens, read):
        valid = batch.valid
        states = torch.stack([one[valid].float() for one in batch.states])
        if not bool(states.isfinite().all()):
            raise BadInput(f"{loaded.name}: a state is NaN or infinite; {USE_FLOAT32}")
        place = valid.long().cumsum(1) - 1
        text = torch.tensor(batch.texts, device=valid.device)[:, None].expand_as(valid)
        yield states, batch.ids[valid], place[valid], text[valid]


def _seen(loaded: LoadedModel, tokens: Tokens, read: ReadOptions) -> _Seen:
    parts = [
        (states.norm(dim=-1).T.cpu(), ids.cpu(), place.cpu(), text.cpu())
        for states, ids, place, text in _states(loaded, tokens, read)
    ]
    return _Seen(*(np.concatenate([np.asarray(one) for one in column]) for column in zip(*parts, strict=True)))


class _Sums:
    """Σ1, Σh and Σh² of every layer in float64, over all tokens and over those that are no sinks."""

    def __init__(self) -> None:
        self.found: dict[bool, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def add(self, kept: bool, count: "Tensor", first: "Tensor", second: "Tensor") -> None:
        new = tuple(one.double().cpu().numpy() for one in (count, first, second))
        old = self.found.get(kept)
        self.found[kept] = new if old is None else tuple(a + b for a, b in zip(old, new, strict=True))  # type: ignore[assignment]

    def moments(self, layer: int, *, kept: bool) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [dim] of a layer."""
        count, first, second = (one[layer] for one in self.found[kept])
        mean = first / max(count, 1.0)
        return mean, np.sqrt(np.maximum(second / max(count, 1.0) - mean**2, 0.0))

    def sizes(self, layer: int, *, kept: bool) -> np.ndarray:
        """Root mean square [dim] of a layer."""
        count, _, second = (one[layer] for one in self.found[kept])
        return np.asarray(np.sqrt(second / max(count, 1.0)))


def _sums(loaded: LoadedModel, tokens: Tokens, read: ReadOptions, thresholds: np.ndarray) -> _Sums:
    import torch

    sums = _Sums()
    for states, *_ in _states(loaded, tokens, read):
        limit = torch.as_tensor(thresholds, device=states.device)[:, None]
        below = states.norm(dim=-1) <= limit  # [layer, token]
        wide = states.double()
        for kept, rows in ((False, torch.ones_like(below)), (True, below)):
            weight = rows.double()[..., None]
            sums.add(kept, rows.sum(1), (wide * weight).sum(1), (wide**2 * weight).sum(1))
    return sums


def _rule(seen: _Seen, sinks: np.ndarray, share: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(positions, token types) of which at least `share` are sinks; types are counted outside these positions."""
    positions = _mostly(seen.position, sinks, share)
    rest = ~np.isin(seen.position, positions)
    return positions, _mostly(seen.ids[rest], sinks[rest], share)


def _mostly(names: np.ndarray, sinks: np.ndarray, share: float) -> tuple[int, ...]:
    n, n_sinks = Counter(names.tolist()), Counter(names[sinks].tolist())
    return tuple(sorted(one for one, k in n_sinks.items() if k >= max(FEWEST_TOKENS, share * n[one])))


def _judged(seen: _Seen, n_texts: int, threshold: float, positions: Sequence[int], ids: Sequence[int]) -> Judged:
    """What positions and types leave out of texts that did not make them, against the threshold."""
    sinks = seen.norms[:, 0] > threshold
    out = np.isin(seen.position, positions) | np.isin(seen.ids, ids)
    with_sinks, missed = set(seen.text[sinks].tolist()), set(seen.text[sinks & ~out].tolist())
    return Judged(
        n_texts=n_texts,
        n_tokens=len(sinks),
        n_sinks=int(sinks.sum()),
        recall=float(out[sinks].mean()) if sinks.any() else math.nan,
        false_share=float(out[~sinks].mean()) if not sinks.all() else math.nan,
        n_sink_texts=len(with_sinks),
        n_missed_texts=len(missed),
        missed_at_most=share_at_most(len(missed), len(with_sinks)) if with_sinks else math.nan,
    )


def _standing_out(sums: _Sums, layer: int, factor: float) -> tuple[StandsOut, ...]:
    every, kept = (sums.sizes(layer, kept=one) for one in (False, True))
    times, times_kept = (one / max(float(np.median(one)), 1e-30) for one in (every, kept))
    held = sums.found[True][2][layer] / np.maximum(sums.found[False][2][layer], 1e-300)
    order = [int(dim) for dim in np.argsort(-np.maximum(times, times_kept), kind="stable")]
    found = [dim for dim in order if max(times[dim], times_kept[dim]) > factor][:SHOWN]
    return tuple(
        StandsOut(
            dim,
            float(times[dim]),
            float(times_kept[dim]),
            float(max(0.0, 1 - held[dim])),
            bool(times_kept[dim] > factor),
        )
        for dim in found
    )


def _layer(seen: _Seen, sums: _Sums, thresholds: np.ndarray, layer: int) -> LayerSinks:
    norms = seen.norms[:, layer]
    gammas = []
    for kept in (False, True):
        mean, spread = sums.moments(layer, kept=kept)
        width = float(np.linalg.norm(spread))
        gammas.append(float(np.linalg.norm(mean)) / width if width > 0 else math.inf)
    return LayerSinks(
        str(layer), int((norms > thresholds[layer]).sum()), float(np.median(norms)), float(norms.max()),
        float(thresholds[layer]), *gammas,
    )  # fmt: skip


def run(session: Session, options: MaskCall) -> Mask:
    """What the command finds; with --for it is written for that tool too."""
    check_file(options.to, replace=session.output.overwrite)
    texts, _ = session.texts()
    found = mask(session.loaded, texts, options, command=session.command, progress=session.progress)
    if options.tool is not None and options.to is not None:
        write_text(options.to, export(options.tool, found))
    return found
