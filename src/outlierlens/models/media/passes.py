"""Pictures and recordings as a model takes them: `ItemReading` while its states are looked at, `ItemRows` for a task."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data.media.items import PLURAL, Items, Kind, LabelledItems
from outlierlens.data.texts import Batch
from outlierlens.models.devices import memory_kept
from outlierlens.models.load import LoadedModel
from outlierlens.models.media.prepare import Prepare, Prepared
from outlierlens.models.processor import TAKES
from outlierlens.models.products import fast_products

if TYPE_CHECKING:
    from torch import Tensor

# Batches that are prepared and sorted by length together: pictures are all alike, recordings are large.
WINDOWS: dict[Kind, int] = {"image": 1, "audio": 8}
KEPT_BYTES = 2_000_000_000  # of prepared items held in memory; what comes after is decoded again whenever it is read


class ItemReading:
    """A bare forward pass on items, and what their tokens are called; see `reading.Reading`."""

    def __init__(self, loaded: LoadedModel, kind: Kind):
        self.loaded, self.kind, self.inputs = loaded, kind, PLURAL[kind]
        self.prepare = Prepare(loaded, kind)
        self.stacks = self.prepare.stacks
        self.max_length = 0  # nothing is cut by tokens
        self.window = WINDOWS[kind]
        self.n_cut = 0
        self._seen: Batch | None = None  # the last one whose places were given

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know."""
        said = []
        if other := [stack.name for stack in self.loaded.stacks if stack not in self.stacks]:
            said.append(f"not observed: stream {', '.join(other)}, which {self.inputs} do not reach")
        if self.n_cut:
            said.append(f"{self.n_cut:,} {self.inputs} are longer than is read of one, and were cut")
        return (*said, *self.prepare.notes)

    def batches(self, items: Items, *, batch_size: int, max_length: int | None = None) -> Iterator[Batch]:
        """Batches of `items`, the longest first; a limit of tokens does not apply."""
        made = [self.prepare(part, max_seconds=items.max_seconds) for part in items.parts]
        if max_length is None:  # else it is the passage, which was read before
            self.n_cut += sum(one.cut for one in made)
        order = sorted(range(len(made)), key=lambda number: -made[number].length)
        with memory_kept():  # while whoever asks for them runs the model
            for group in self.prepare.apart([made[number].values.shape for number in order]):
                for start in range(0, len(group), batch_size):
                    numbers = tuple(order[place] for place in group[start : start + batch_size])
                    yield self.prepare.batch([made[number] for number in numbers], numbers)

    def __call__(self, batch: Batch) -> None:
        """Run the model without its head; hooks see the states."""
        import torch

        with torch.inference_mode(), fast_products():
            self.prepare.reader(**batch.inputs)

    def arguments(self, batch: Batch) -> dict[str, Any]:
        """Keyword arguments of the model."""
        return batch.inputs

    def sides(self, batch: Batch) -> dict[str, tuple["Tensor", "Tensor"]]:
        """{stream: (places of the tokens, special tokens)}, both [batch, token]."""
        import torch

        self._seen = batch
        places = torch.arange(batch.valid.shape[1], device=batch.valid.device).expand(batch.valid.shape)
        return {stack.name: (places, batch.special) for stack in self.stacks}

    def words(self, ids: list[int]) -> tuple[str, ...]:
        """What the tokens at these places are: "[CLS]", "patch 3,4" (row, column), or "0.64 s"."""
        return tuple(self._word(place) if place >= 0 else "" for place in ids)

    def _word(self, place: int) -> str:
        if self.kind == "audio":
            config: Any = self.prepare.config
            step = int(np.prod(config.conv_stride)) / int(self.loaded.processor.sampling_rate)
            return f"{place * step:.2f} s"
        if place < self.prepare.n_special:
            return "[CLS]" if place == 0 else f"[special {place}]"
        assert self._seen is not None, "tokens are named after they were seen"
        _, columns = self.prepare.grid(self._seen.inputs[TAKES["image"]][0])
        row, column = divmod(place - self.prepare.n_special, columns)
        return f"patch {row},{column}"


class ItemRows:
    """The items of a task.

    Attributes:
        texts: numbers of the items, all of them. lengths: tokens of each, int [item]. labels: of `LabelledItems`, else ().
        longest: tokens of a row at most. tries_first: see `labelled_rows.TextRows`.
        what: one item in words. notes: about how they were read.
    """

    tries_first = False

    def __init__(self, loaded: LoadedModel, items: Items):
        self.items, self.prepare = items, Prepare(loaded, items.kind)
        self.labels: tuple[Any, ...] = items.labels if isinstance(items, LabelledItems) else ()
        self._kept: dict[int, Prepared] = {}
        self._shapes: list[tuple[int, ...]] = []
        room, lengths, n_cut = KEPT_BYTES, [], 0
        for number, part in enumerate(items.parts):
            one = self.prepare(part, max_seconds=items.max_seconds)
            lengths.append(one.length)
            self._shapes.append(one.values.shape)
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
        return (*said, *self.prepare.notes)

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
        return self.prepare.apart([self._shapes[number] for number in numbers])
