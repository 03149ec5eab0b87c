"""`Items`: pictures or recordings, decoded when they are asked for; `LabelledItems`: each with its class.

items.first(100)                     # like `Texts`: source, digest, first, len
items.parts[3].name                  # for messages: "photos/cat/3.png"
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outlierlens.data.labelled.labels import are_numbers, places_among
from outlierlens.data.labelled.table import LabelledTask
from outlierlens.errors import BadFile, BadInput

Kind = Literal["image", "audio"]
PLURAL: dict[Kind, str] = {"image": "images", "audio": "recordings"}
MAX_BYTES = 1_000_000_000  # of one file
MAX_SECONDS = 30.0  # of a recording that is read unless more is asked for: attention costs the square of it


@dataclass(frozen=True, eq=False)
class Part:
    """Where one item lies: the file `path`, the bytes `data` of a file, or an `array`; `name` is for messages.

    A picture's array is uint8 [height, width, channel]; a recording's is [sample], with `rate` samples a second.
    """

    name: str
    path: Path | None = None
    data: bytes | None = None
    array: np.ndarray | None = None
    rate: int | None = None

    def content(self) -> bytes:
        """The bytes of the file; raises BadInput where it cannot be read, BadFile where it is too large."""
        if self.data is not None:
            return self.data
        assert self.path is not None, "an array has no file"
        try:
            if (size := self.path.stat().st_size) > MAX_BYTES:
                raise BadFile(f"{self.name}: {size / 1e9:.1f} GB, more than {MAX_BYTES / 1e9:.0f}; cut it")
            return self.path.read_bytes()
        except OSError as error:
            raise BadInput(f"{self.name}: cannot be read ({error.strerror or error}); put the file back") from None

    def update(self, digest: Any) -> None:
        """Take the item into a digest."""
        if self.array is not None:
            digest.update(f"{self.array.dtype}{self.array.shape}{self.rate}\0".encode())
            digest.update(np.ascontiguousarray(self.array).data)
        else:
            digest.update(hashlib.sha256(self.content()).digest())


@dataclass(frozen=True, eq=False)
class Items:
    """Pictures or recordings with where they came from; stands wherever `Texts` can.

    Attributes:
        source: as given. kind: what they are. parts: where each lies.
        max_seconds: of a recording, no more is read.
    """

    source: str
    kind: Kind
    parts: tuple[Part, ...]
    max_seconds: float = MAX_SECONDS

    def __post_init__(self) -> None:
        if not 0 < self.max_seconds < float("inf"):
            raise BadInput(f"max_seconds is {self.max_seconds}; it must be a positive number of seconds")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the items as stored, over how much of them is read, and over labels, where there are any."""
        return str(self._hashed().hexdigest())

    def _hashed(self) -> Any:
        digest = hashlib.sha256(f"{self.kind}\0".encode())
        if self.kind == "audio":
            digest.update(f"{self.max_seconds}\0".encode())
        for part in self.parts:
            part.update(digest)
        return digest

    def __len__(self) -> int:
        return len(self.parts)

    def some(self, numbers: Sequence[int]) -> "Items":
        """The items with these numbers, in this order."""
        return replace(self, parts=tuple(self.parts[number] for number in numbers))

    def first(self, n: int) -> "Items":
        """The first `n` items (or all)."""
        return self.some(range(min(n, len(self))))

    @property
    def plural(self) -> str:
        """What tables call them."""
        return PLURAL[self.kind]

    @property
    def passage(self) -> str:
        """No text is filled in by a model that reads none."""
        return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelledItems(Items):
    """Items with their classes: `labels` are places in `task.labels`."""

    task: LabelledTask
    labels: tuple[int, ...]
    family: None = None  # items are no pairs: none hangs together with another

    def _hashed(self) -> Any:
        digest = super()._hashed()
        digest.update(repr((self.labels, self.task.labels)).encode())
        return digest

    def some(self, numbers: Sequence[int]) -> "LabelledItems":
        """The items with these numbers, in this order."""
        return replace(
            self,
            parts=tuple(self.parts[number] for number in numbers),
            labels=tuple(self.labels[number] for number in numbers),
        )

    def first(self, n: int) -> "LabelledItems":
        """The first `n` items (or all)."""
        return self.some(range(min(n, len(self))))

    def among(self, names: Sequence[str]) -> "LabelledItems":
        """The same items, labelled among all the classes `names` of a model where these hold only some of them.

        Unchanged where the model has no more classes, its names say nothing ("LABEL_0"), or a class here is none of them.
        """
        places = places_among(self.task.labels, names)
        if places is None or are_numbers(names):
            return self
        task = self.task.labelled(tuple(names))
        return replace(self, task=task, labels=tuple(places[label] for label in self.labels))
