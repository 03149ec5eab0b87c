"""Patches of high norm in models that read pictures: how many, where, in which blocks and dimensions, and who writes them.

    found = patches(observer, items)            # plain data, for `Observation.patches` and its kin
    observed = patch_rows(found)

Darcet et al. (2024, "Vision Transformers Need Registers", section 2.1) find patches whose norm at the output is about ten
times that of the others, where a model keeps global information; they cut by eye, at a norm of 150 in DINOv2-g. Here a patch
is of high norm after a block where its norm is above `TIMES` medians of all patches there, and above the median by
`DEVIATIONS` standard deviations, which are taken from the median absolute deviation, so that long patches do not hide
themselves. [CLS] and registers are no patches.

Their writers are told by the mean patch of high norm less the mean other patch of the same pictures, after the block where
they stand out most: a neuron adds to that, along it, the difference of its value times its column of the MLP's last linear.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from outlierlens.analyses.super_weights import entries, tapped_mlps
from outlierlens.architectures import NO_EXPERT, BoundStack, LastLinear, Neuron, last_linears, live_parameters
from outlierlens.data.media.items import Items
from outlierlens.data.texts import Batch
from outlierlens.detection.activations import Observer
from outlierlens.errors import BadInput
from outlierlens.models.experts import ExpertCall
from outlierlens.models.hooks import tapped
from outlierlens.models.inputs import in_windows
from outlierlens.models.media import ItemReading
from outlierlens.results.rows import Row
from outlierlens.statistics.means import NORMAL_MAD
from outlierlens.view.section import Count, FineShare, Share

if TYPE_CHECKING:
    from torch import Tensor

TIMES, DEVIATIONS = 3.0, 10.0
PICTURES = 1000  # that are looked at: shares of patches settle long before
LEAST = 0.05  # of the squared length, or of the difference: what holds less is not listed
LISTED = 12  # places, dimensions, neurons
FLAT = 0.25  # the share of a picture's patches that is called flat


@dataclass(frozen=True, kw_only=True)
class PatchNorms(Row):
    """Norms of patches after one block."""

    note = (
        f"Of high norm: above {TIMES:g} medians and {DEVIATIONS:g} robust standard deviations above the median (cutoff), after "
        "Darcet et al. (2024)."
    )
    layer: str
    n: Annotated[int, Count]
    """high norm: patches above the cutoff"""
    images: Annotated[int, Count]
    """images: with such a patch"""
    median: float
    """median norm"""
    cutoff: float
    largest: float
    """largest norm"""
    times: float
    """largest / median"""


@dataclass(frozen=True, kw_only=True)
class PatchPlace(Row):
    """A place in the grid where patches of high norm stand."""

    patch: str
    """patch: row, column"""
    images: Annotated[int, Count]
    """images: in which the patch here is of high norm"""
    share: Annotated[float, Share]
    """of the patches of high norm"""
    border: bool
    """at the border"""


@dataclass(frozen=True, kw_only=True)
class PatchDimension(Row):
    """A dimension that holds much of the squared length of patches of high norm."""

    dim: int
    """dimension"""
    high: Annotated[float, FineShare]
    """high norm: share of the squared length of patches of high norm"""
    others: Annotated[float, FineShare]
    """other patches: share of theirs"""


@dataclass(frozen=True, kw_only=True)
class PatchNeuron(Row):
    """A neuron that writes what sets patches of high norm apart."""

    neuron: str
    """neuron: block and number"""
    share: Annotated[float, Share]
    """writes: of the difference between the mean patch of high norm and the mean other patch, along it"""
    high: float
    """mean x, high norm"""
    others: float
    """mean x, other patches"""


@dataclass(frozen=True)
class HighNorm:
    """Patches of high norm, at the block where they are most extreme; `block` is "" without any.

    Attributes:
        n, n_patches: of high norm, and in all. n_images, n_read: pictures with one, and in all. most: in one picture.
        first, last: blocks between which at least half of them are of high norm all the time.
        border, border_all: share at the grid's border, of them and of all patches.
        flat: share that is among the flattest quarter of its picture's patches, by the spread of its pixels; nan if unknown.
        unlooked: pictures that were not looked at. why: no neurons are named because of this, "" where they are.
    """

    n: int
    n_patches: int
    n_images: int
    n_read: int
    most: int = 0
    block: str = ""
    first: str = ""
    last: str = ""
    border: float = float("nan")
    border_all: float = float("nan")
    flat: float = float("nan")
    unlooked: int = 0
    why: str = ""


def patches(observer: Observer, items: Items) -> dict[str, Any]:
    """Plain data of the first stream that `observer` looks at, over the first `PICTURES` of `items`; {} of no grid of patches.

    Raises:
        BadInput: as the pass that `observer` makes.
    """
    stack, reading = observer.stacks[0], observer.reading
    assert isinstance(reading, ItemReading), "pictures are read as items"
    some = items.first(PICTURES)
    seen = _Norms(observer, stack, reading, some)
    if seen.norms is None:
        return {}
    norms = seen.norms  # [block, patch]
    median = np.median(norms, axis=1)
    spread = NORMAL_MAD * np.median(np.abs(norms - median[:, None]), axis=1)
    cutoff = np.maximum(TIMES * median, median + DEVIATIONS * spread)
    above = norms > cutoff[:, None]
    largest = norms.max(axis=1)
    times = np.divide(largest, median, out=np.full(len(median), np.inf), where=median > 0)
    found: dict[str, Any] = {
        "norms": [
            {"layer": str(layer), "n": int(above[layer].sum()), "images": len({*seen.image[above[layer]].tolist()}),
             "median": float(median[layer]), "cutoff": float(cutoff[layer]), "largest": float(largest[layer]),
             "times": float(times[layer])}
            for layer in range(len(norms))
        ],
    }  # fmt: skip
    summary = {
        "n": 0,
        "n_patches": norms.shape[1],
        "n_images": 0,
        "n_read": len(some),
        "unlooked": len(items) - len(some),
    }
    if not above.any():
        return found | {"summary": summary, "places": [], "dims": [], "neurons": []}
    peak = int(np.where(above.any(axis=1), times, 0.0).argmax())
    high = above[peak]
    half = above[:, high].mean(axis=1) >= 0.5  # [block]
    first = next(layer for layer in range(peak, -1, -1) if layer == 0 or not half[layer - 1])
    last = next(layer for layer in range(peak, len(half)) if layer + 1 == len(half) or not half[layer + 1])
    by_image = Counter(seen.image[high].tolist())
    places = Counter(zip(seen.names[high].tolist(), seen.border[high].tolist(), strict=True))
    summary |= {
        "n": int(high.sum()), "n_images": len(by_image), "most": max(by_image.values()), "block": str(peak),
        "first": str(first), "last": str(last), "border": float(seen.border[high].mean()),
        "border_all": float(seen.border.mean()), "flat": float(seen.flat[high].mean()),
    }  # fmt: skip
    written, summary["why"] = _written(observer, stack, reading, (some, seen, high), peak)
    return found | written | {
        "summary": summary,
        "places": [
            {"patch": name, "images": n, "share": n / int(high.sum()), "border": border}
            for (name, border), n in places.most_common(LISTED)
        ],
    }  # fmt: skip


def patch_rows(found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `Observation`; {} of nothing."""
    if not found:
        return {}
    return {
        "patches": tuple(PatchNorms(**one) for one in found["norms"]),
        "patch_places": tuple(PatchPlace(**one) for one in found["places"]),
        "patch_dims": tuple(PatchDimension(**one) for one in found["dims"]),
        "patch_neurons": tuple(PatchNeuron(**one) for one in found["neurons"]),
        "high_norm": HighNorm(**found["summary"]),
    }


class _Norms:
    """Norms of all patches [block, patch], None where the tokens are no grid; and of each patch [patch] its picture, its place
    in words, whether that is at the border, and whether it is flat (nan where pixels do not lie in a grid)."""

    def __init__(self, observer: Observer, stack: BoundStack, reading: ItemReading, items: Items):
        self.norms: np.ndarray | None = None
        norms: list[np.ndarray] = []
        image, names, border, flat = (list[np.ndarray]() for _ in range(4))
        for batch in in_windows(
            reading, items, observer.options.batch_size, observer.options.progress, "norms of patches"
        ):
            (rows, columns), start = reading.prepare.grid_of(batch), reading.prepare.n_special
            if start < 0 or start + rows * columns != batch.valid.shape[1]:
                return
            layers: dict[int, Tensor] = {}

            def look(_: BoundStack, layer: int, states: "Tensor", kept: Any = layers, start: int = start) -> None:
                kept[layer] = states[:, start:].float().norm(dim=-1).flatten().cpu()

            with tapped(observer.loaded.model, [stack], look):
                reading(batch)
            norms.append(np.stack([layers[layer].numpy() for layer in range(stack.n_layers)]))
            row, column = np.divmod(np.arange(rows * columns), columns)
            edge = (row == 0) | (row == rows - 1) | (column == 0) | (column == columns - 1)
            words = np.array([f"patch {r},{c}" for r, c in zip(row.tolist(), column.tolist(), strict=True)])
            image.append(np.repeat(batch.texts, len(edge)))
            names.append(np.tile(words, len(batch.texts)))
            border.append(np.tile(edge, len(batch.texts)))
            flat.append(_flat(batch.inputs[reading.prepare.takes], rows, columns))
        self.image, self.names, self.border, self.flat = (np.concatenate(one) for one in (image, names, border, flat))
        self.norms = np.concatenate(norms, axis=1)


def _flat(pixels: "Tensor", rows: int, columns: int) -> np.ndarray:
    """Whether a patch is among the flattest `FLAT` of its picture, by the spread of its pixels [picture × patch]."""
    if pixels.ndim != 4 or pixels.shape[2] % rows or pixels.shape[3] % columns:
        return np.full(len(pixels) * rows * columns, np.nan)
    cells = pixels.float().unflatten(2, (rows, -1)).unflatten(4, (columns, -1))  # [picture, channel, row, y, column, x]
    spread = cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(3).std(-1).mean(-1).cpu().numpy()  # [picture, patch]
    rank = spread.argsort(1, kind="stable").argsort(1, kind="stable")
    return (rank < FLAT * spread.shape[1]).astype(float).ravel()


def _written(
    observer: Observer, stack: BoundStack, reading: ItemReading, chosen: tuple[Items, _Norms, np.ndarray], peak: int
) -> tuple[dict[str, Any], str]:
    """Dimensions and neurons of what sets patches of high norm apart after block `peak`, and why no neuron is named."""
    import torch

    items, seen, high = chosen
    unknown = _unknown_neurons(observer, stack)
    pictures = sorted({*seen.image[high].tolist()})
    start, sums = reading.prepare.n_special, dict[str, Any]()
    of = {picture: torch.from_numpy(high[seen.image == picture]) for picture in pictures}  # [patch]

    def add(name: str, values: "Tensor", where: "Tensor") -> None:
        for group, rows in (("high", where), ("others", ~where)):
            sums[f"{name} {group}"] = sums.get(f"{name} {group}", 0.0) + values[rows].cpu().double().sum(0).numpy()

    for batch in in_windows(reading, items.some(pictures), observer.options.batch_size, None, ""):
        where = torch.stack([of[pictures[text]] for text in batch.texts]).to(batch.valid.device)

        def look(_: BoundStack, layer: int, states: "Tensor", where: "Tensor" = where) -> None:
            if layer == peak:
                add("state", states[:, start:], where)
                add("square", states[:, start:].float().square(), where)

        def use(mlp: LastLinear, call: ExpertCall, batch: Batch = batch, where: "Tensor" = where) -> None:
            if mlp.layer <= peak:
                add(str(mlp.layer), call.read.reshape(*batch.valid.shape, -1)[:, start:], where)

        with (
            torch.inference_mode(),
            tapped(observer.loaded.model, [stack], look),
            nullcontext() if unknown else tapped_mlps(observer.loaded, stack, use),
        ):
            reading(batch)
    n_high = sum(int(one.sum()) for one in of.values())
    counts = {"high": n_high, "others": sum(len(one) for one in of.values()) - n_high}
    means = {name: total / max(1, counts[name.rpartition(" ")[2]]) for name, total in sums.items()}
    held, others = (means[f"square {group}"] / max(means[f"square {group}"].sum(), 1e-300) for group in counts)
    dims = [dim for dim in np.argsort(-held, kind="stable").tolist() if held[dim] >= LEAST][:LISTED]
    found: dict[str, Any] = {
        "dims": [{"dim": dim, "high": float(held[dim]), "others": float(others[dim])} for dim in dims],
        "neurons": [],
    }
    if unknown:
        return found, unknown
    apart = means["state high"] - means["state others"]
    neurons = list[dict[str, Any]]()
    for layer in range(peak + 1):
        change = means[f"{layer} high"] - means[f"{layer} others"]
        share = change * (apart * _times(observer, stack, layer) @ _column(observer, stack, layer)) / (apart @ apart)
        neurons += [
            {"neuron": str(Neuron(layer, one)), "share": float(share[one]), "high": float(means[f"{layer} high"][one]),
             "others": float(means[f"{layer} others"][one])}
            for one in np.argsort(-share)[:LISTED].tolist()
            if share[one] >= LEAST
        ]  # fmt: skip
    found["neurons"] = sorted(neurons, key=lambda one: -one["share"])[:LISTED]
    return found, ""


def _unknown_neurons(observer: Observer, stack: BoundStack) -> str:
    """Why the share of neurons in a state cannot be told; "" where it can."""
    try:
        mlps = last_linears(stack, live_parameters(observer.loaded.model))
    except BadInput as error:
        return str(error)
    if any(one.expert != NO_EXPERT for one in mlps):
        return "its MLPs are experts, each of which has tokens of its own"
    return "" if stack.stack.norm_site == "read" else "its MLPs' last linears do not add to the stream as they are"


def _column(observer: Observer, stack: BoundStack, layer: int) -> np.ndarray:
    """The last linear's weight [dim, neuron]."""
    weight: np.ndarray = entries(observer.loaded, stack, layer).cpu().double().numpy()
    return weight


def _times(observer: Observer, stack: BoundStack, layer: int) -> Any:
    """The learned factor of each dimension behind the last linear [dim]; 1 without."""
    name = stack.scale[layer][0].times
    return live_parameters(observer.loaded.model)[name].detach().cpu().double().numpy() if name else 1.0
