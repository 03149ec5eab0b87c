"""Items as a task hands them to a model, like `labelled.rows.TextRows` for texts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data.media.items import Items, LabelledItems
from outlierlens.data.texts import Batch
from outlierlens.models.load import LoadedModel
from outlierlens.models.media.passes import UNPADDED
from outlierlens.models.media.prepare import Prepare, Prepared

if TYPE_CHECKING:
    from torch import Tensor

KEPT_BYTES = 2_000_000_000  # of prepared items held in memory; what comes after is decoded again whenever it is read


class ItemRows:
    """The items of a task.

    Attributes:
        texts: numbers of the items, all of them. lengths: tokens of each, int [item]. labels: of `LabelledItems`, else ().
        longest: tokens of a row at most. tries_first: see `labelled.rows.TextRows`.
        what: one item in words. notes: about how they were read.
    """

    tries_first = False

    def __init__(self, loaded: LoadedModel, items: Items):
        self.items, self.prepare = items, Prepare(loaded, items.kind)
        self.labels: tuple[Any, ...] = items.labels if isinstance(items, LabelledItems) else ()
        self._kept: dict[int, Prepared] = {}
        room, lengths, n_cut = KEPT_BYTES, [], 0
        for number, part in enumerate(items.parts):
            one = self.prepare(part, max_seconds=items.max_seconds)
            lengths.append(one.length)
            n_cut += one.cut
            room -= one.values.nbytes
            if room >= 0:
                self._kept[number] = one
        self.texts, self.lengths = tuple(range(len(items))), np.array(lengths)
        self.longest = int(self.lengths.max())
        self.what = self._what()
        self.notes = self._notes(n_cut)

    def _what(self) -> str:
        if self.items.kind == "image":
            return f"image of {self.longest} tokens"
        return f"recording of at most {self.items.max_seconds:g} seconds, {self.longest} tokens"

    def _notes(self, n_cut: int) -> tuple[str, ...]:
        said = []
        if n_cut:
            limit = f"{self.items.max_seconds:g} s"
            said.append(f"{n_cut:,} of {len(self.items):,} recordings are longer than {limit}, and were cut")
        if not self.prepare.pads:
            said.append(UNPADDED)
        return tuple(said)

    def _one(self, number: int) -> Prepared:
        return self._kept.get(number) or self.prepare(self.items.parts[number], max_seconds=self.items.max_seconds)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """These items (repeats allowed) as one batch."""
        some = {number: self._one(number) for number in dict.fromkeys(numbers)}
        return self.prepare.batch([some[number] for number in numbers], tuple(numbers))

    def inputs(self, numbers: Sequence[int]) -> "dict[str, Tensor]":
        """Keyword arguments of the model for these items."""
        return self.batch(numbers).inputs

    def apart(self, numbers: Sequence[int]) -> list[list[int]]:
        """Places in `numbers` that can share batches, each group in the order given."""
        if self.prepare.pads:
            return [list(range(len(numbers)))]
        return self.prepare.apart([self._one(number) for number in numbers])
