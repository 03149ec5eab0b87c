"""Kinds of edits of single values, and a context manager that makes them and takes them back bit for bit.

    values = gather(parameters, names, indices)            # values of a model, with where they stand
    moves = moves_of("sign flip", values, bound=10)        # what each could become
    with edited_values(model, [ValueChange("lm_head.weight", 17, -0.5)]):
        model(**batch)

A move changes one value, and a swap two. "zero" sets a value to what switches its dimension off (−1 for a norm that
multiplies by 1 + weight); "sign flip" flips the sign bit; "swap" trades places with another value of the same tensor;
"exponent flip" flips one bit of the exponent, in the number format that the model is held in, and keeps the result finite
and within a bound.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.attack.result import KINDS, Edit
from outlierlens.models.changes import Settable, temporary

if TYPE_CHECKING:
    import torch

# dtype -> (integer type of the same width, lowest bit of the exponent, bits of the exponent), IEEE 754 and bfloat16
EXPONENTS = {
    "float16": ("int16", 10, 5),
    "bfloat16": ("int16", 7, 8),
    "float32": ("int32", 23, 8),
    "float64": ("int64", 52, 11),
}
PARTNERS = 8  # a swap looks for its partner among this many of its tensor with the largest and the smallest values


@dataclass(frozen=True)
class ValueChange:
    """A value that becomes another: `flat` is its place in the flattened tensor."""

    tensor: str
    flat: int
    after: float


@dataclass(frozen=True)
class Values:
    """Single values of a model, side by side.

    Attributes:
        names: of tensors. tensor: [value] place in `names`. flat: [value] place in the flattened tensor.
        before: [value] float64, exactly. off: [value] what switches it off. tolerance: [value] what a change must exceed.
        dim: [value] dimension of the stream, −1 where it has none.
        largest: [value] largest |value| of its tensor. spread: [value] root mean square of its tensor's values.
        dtype: of the tensors.
    """

    names: tuple[str, ...]
    tensor: np.ndarray
    flat: np.ndarray
    before: np.ndarray
    off: np.ndarray
    tolerance: np.ndarray
    dim: np.ndarray
    largest: np.ndarray
    spread: np.ndarray
    dtype: str

    def __len__(self) -> int:
        return len(self.flat)


@dataclass(frozen=True)
class Moves:
    """What values could become.

    Attributes:
        place: [move] which value. after: [move] what it becomes.
        partner: [move] the value that it trades places with, −1 without one. bit: [move] that is flipped, −1 without one.
    """

    kind: str
    place: np.ndarray
    after: np.ndarray
    partner: np.ndarray
    bit: np.ndarray

    def __len__(self) -> int:
        return len(self.place)

    @property
    def cost(self) -> int:
        """Values that one move changes."""
        return 2 if self.kind == "swap" else 1

    def size(self, values: Values) -> np.ndarray:
        """|change| of each move as a multiple of its tensor's root mean square [move]."""
        return np.abs(self.after - values.before[self.place]) / np.maximum(values.spread[self.place], 1e-30)

    def effects(self, values: Values, slopes: np.ndarray) -> np.ndarray:
        """slope · change of each move [probe, move], from slopes [probe, value]."""
        step = self.after - values.before[self.place]
        found: np.ndarray = slopes[:, self.place] * step
        if self.kind == "swap":
            found = found - slopes[:, self.partner] * step
        return found

    def changes(self, values: Values, which: Sequence[int]) -> list[ValueChange]:
        """The changes that some moves make."""
        made = []
        for move in which:
            place, partner = int(self.place[move]), int(self.partner[move])
            made.append(_change(values, place, float(self.after[move])))
            if partner >= 0:
                made.append(_change(values, partner, float(values.before[place])))
        return made


def _change(values: Values, place: int, after: float) -> ValueChange:
    return ValueChange(values.names[values.tensor[place]], int(values.flat[place]), after)


def moves_of(kind: str, values: Values, *, bound: float) -> Moves:
    """Every move of a kind whose change exceeds the tolerance of each value it changes.

    Raises:
        BadInput: an unknown kind.
    """
    everything = np.arange(len(values))
    if kind == "zero":
        return _kept(kind, values, everything, values.off)
    if kind == "sign flip":
        return _kept(kind, values, everything, -values.before)
    if kind == "swap":
        return _swaps(values)
    if kind == "exponent flip":
        return _exponent_flips(values, bound)
    raise BadInput(f"no kind of edit is called {kind!r}; kinds are {', '.join(KINDS)}")


def _kept(
    kind: str,
    values: Values,
    place: np.ndarray,
    after: np.ndarray,
    partner: np.ndarray | None = None,
    bit: np.ndarray | None = None,
) -> Moves:
    """Those moves that change their values by more than the tolerance."""
    none = np.full(len(place), -1)
    partner, bit = (none if partner is None else partner), (none if bit is None else bit)
    least = values.tolerance[place]
    if kind == "swap":
        least = np.maximum(least, values.tolerance[partner])
    keep = np.abs(after - values.before[place]) > least
    return Moves(kind, place[keep], after[keep], partner[keep], bit[keep])


def _swaps(values: Values) -> Moves:
    """Every value with those of its tensor that have the largest and the smallest values, each pair once."""
    places, partners = [], []
    for number in range(len(values.names)):
        here = np.flatnonzero(values.tensor == number)
        if len(here) < 2:
            continue
        order = here[np.argsort(values.before[here], kind="stable")]
        ends = np.unique(np.concatenate([order[:PARTNERS], order[-PARTNERS:]]))
        first, second = (side.ravel() for side in np.meshgrid(here, ends, indexing="ij"))
        # A pair of two such values would come twice.
        keep = (first != second) & ~(np.isin(first, ends) & (first > second))
        places.append(first[keep])
        partners.append(second[keep])
    if not places:
        return Moves("swap", *(np.empty(0, dtype) for dtype in (int, float, int, int)))
    place, partner = np.concatenate(places), np.concatenate(partners)
    return _kept("swap", values, place, values.before[partner], partner)


def _exponent_flips(values: Values, bound: float) -> Moves:
    """One bit of the exponent of every value, where the result is finite and at most `bound` × its tensor's largest."""
    import torch

    place, after, bits = [], [], []
    held = torch.from_numpy(values.before).to(getattr(torch, values.dtype))  # exact: they come from there
    for bit, tensor in flips(held):
        flipped = tensor.double().numpy()
        good = np.isfinite(flipped) & (np.abs(flipped) <= bound * values.largest)
        where = np.flatnonzero(good)
        place.append(where)
        after.append(flipped[where])
        bits.append(np.full(len(where), bit))
    return _kept("exponent flip", values, np.concatenate(place), np.concatenate(after), bit=np.concatenate(bits))


def flips(held: "torch.Tensor") -> Iterator[tuple[int, "torch.Tensor"]]:
    """(bit, the same values with that bit flipped) for each bit of the exponent of a tensor.

    Raises:
        BadInput: a number format without an exponent.
    """
    import torch

    integers, lowest, width = layout(str(held.dtype).removeprefix("torch."))
    whole = held.contiguous().view(getattr(torch, integers))
    for bit in range(lowest, lowest + width):
        yield bit, (whole ^ (1 << bit)).view(held.dtype)


def layout(dtype: str) -> tuple[str, int, int]:
    """(integer type of the same width, lowest bit of the exponent, its bits); raises BadInput for what has no exponent."""
    if dtype not in EXPONENTS:
        raise BadInput(f"weights are {dtype}, which has no exponent to flip; load the model as {', '.join(EXPONENTS)}")
    return EXPONENTS[dtype]


def gather(
    parameters: Mapping[str, Any], places: Sequence[tuple[str, np.ndarray]], *, off: Mapping[str, float] | None = None
) -> Values:
    """The values at flat `places` of some tensors; dimensions −1 and tolerances 0 until `Values` is told otherwise.

    Raises:
        BadInput: tensors of several number formats, or of one that cannot be edited.
    """
    import torch

    dtypes = {str(parameters[name].dtype).removeprefix("torch.") for name, _ in places}
    if len(dtypes) != 1 or not dtypes <= EXPONENTS.keys():
        raise BadInput(
            f"values to edit are held as {', '.join(sorted(dtypes)) or 'nothing'}; load the model in one of "
            f"{', '.join(EXPONENTS)} (--dtype)"
        )
    before, largest, spread = [], [], []
    for name, flat in places:
        tensor = parameters[name].detach()
        at = torch.from_numpy(np.asarray(flat, dtype=np.int64))
        index = torch.unravel_index(at.to(tensor.device), tensor.shape)
        before.append(tensor[index].cpu().double().numpy())
        largest.append(np.full(len(flat), float(tensor.abs().max())))
        spread.append(np.full(len(flat), float(tensor.float().square().mean().sqrt())))
    lengths = [len(flat) for _, flat in places]
    names = tuple(name for name, _ in places)
    offs = np.repeat([(off or {}).get(name, 0.0) for name in names], lengths)
    n = int(sum(lengths))
    return Values(
        names, np.repeat(np.arange(len(names)), lengths), np.concatenate([np.asarray(f, np.int64) for _, f in places]),
        np.concatenate(before), offs, np.zeros(n), np.full(n, -1), np.concatenate(largest), np.concatenate(spread),
        next(iter(dtypes)),
    )  # fmt: skip


@temporary
def edited_values(model: "torch.nn.Module", changes: Sequence[ValueChange]) -> Iterator[int]:
    """Put single values in place, and the old ones back bit for bit at the end; yields the number of values set.

    Raises:
        BadInput: an unknown tensor or place, a value named twice, or a tensor whose values cannot be set.
    """
    import torch

    by_tensor: dict[str, list[ValueChange]] = {}
    for change in changes:
        by_tensor.setdefault(change.tensor, []).append(change)
    with ExitStack() as undo:
        settable = Settable(undo, model)
        for name, mine in by_tensor.items():
            live = _editable(settable.parameters, name, mine)
            at = torch.tensor([change.flat for change in mine], device=live.device)
            after = torch.tensor([change.after for change in mine], dtype=torch.float64).to(live)
            settable.set_values(name, torch.unravel_index(at, live.shape), after)
        yield len(changes)


def _editable(parameters: Mapping[str, Any], name: str, mine: Sequence[ValueChange]) -> "torch.Tensor":
    live = parameters.get(name)
    if live is None:
        raise BadInput(f"the model has no tensor {name!r} to edit")
    flats = [change.flat for change in mine]
    wrong = next((flat for flat in flats if not 0 <= flat < live.numel()), None)
    if wrong is not None:
        raise BadInput(f"{name} has no value {wrong}; it has {live.numel():,} values")
    if len(set(flats)) != len(flats):
        raise BadInput(f"a value of {name} would be edited twice; give each value once")
    found: torch.Tensor = live
    return found


def changes_of(edits: Sequence[Edit], parameters: Mapping[str, Any]) -> list[ValueChange]:
    """Edits of a result as changes of a model."""
    return [
        ValueChange(
            edit.tensor, int(np.ravel_multi_index(edit.index, tuple(parameters[edit.tensor].shape))), edit.after
        )
        for edit in edits
    ]
