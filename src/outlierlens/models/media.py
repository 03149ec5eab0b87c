"""Pictures and recordings as a model takes them: one by one, in batches, and as what a pass or a task reads.

    prepare = Prepare(loaded, "audio")
    one = prepare(part, max_seconds=30)              # .values: pixels [channel, height, width], or samples [sample]
    batch = prepare.batch([one, other], (0, 1))      # a `Batch`: padded, with what is padding and what is a special token

`ItemReading` is read while a model's states are looked at, `ItemRows` for a task.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.media.items import PLURAL, Items, Kind, LabelledItems, Part, picture, recording
from outlierlens.data.texts import Batch
from outlierlens.errors import BadInput, need
from outlierlens.models.devices import fast_products, memory_kept
from outlierlens.models.folder import TAKES
from outlierlens.models.forward import NOT_TEXT, reader_of
from outlierlens.models.hooks import EMBEDDINGS, tapped
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor, nn


UNPADDED = (
    "this model norms its features over time (feat_extract_norm 'group'), so padding would change every state: only "
    "recordings of the same number of samples share a batch"
)
NOT_MASKED = "group"  # feature norm over time of wav2vec2-base and its kin: padding would change every state


@dataclass(frozen=True)
class Prepared:
    """One item as the model takes it: `values` float32, so many tokens (`length`); `cut` where there was more of it."""

    values: np.ndarray
    length: int
    cut: bool = False


class Prepare:
    """A model's own preparation of items.

    Attributes:
        reader: the innermost module that takes them and runs `stacks`.
        pads: whether items of different shape can share a batch: most recordings; where they cannot, those of one shape do.
        notes: what a reader of the results should know of it. n_special: tokens before the first patch of a picture.

    Raises:
        BadInput: the model does not read such items, or has no processor beside it.
        MissingExtra: pictures without Pillow.
    """

    def __init__(self, loaded: LoadedModel, kind: Kind):
        self.loaded, self.kind = loaded, kind
        there = loaded.stacks
        self.stacks = there if len(there) == 1 else [stack for stack in there if stack.name.startswith(NOT_TEXT)]
        reader = reader_of(loaded, self.stacks, TAKES[kind])
        if reader is None:
            raise BadInput(
                f"{loaded.name} does not read {PLURAL[kind]} (it takes {getattr(loaded.model, 'main_input_name', 'other')}); "
                f"use a model that takes {TAKES[kind]}, such as {'ViT' if kind == 'image' else 'wav2vec2'}"
            )
        self.reader = reader
        if kind == "image":
            need("PIL", "vision", "reading images")
        if loaded.processor is None:
            what = "image processor" if kind == "image" else "feature extractor"
            raise BadInput(
                f"{loaded.name} has no {what} beside it (preprocessor_config.json), so {PLURAL[kind]} cannot be prepared "
                f"for it; fetch the whole model, or save its processor into the folder"
            )
        config: Any = getattr(self.reader, "config", loaded.model.config)
        self.config = config
        self.pads = kind == "audio" and getattr(config, "feat_extract_norm", NOT_MASKED) != NOT_MASKED
        self.notes = (UNPADDED,) if kind == "audio" and not self.pads else ()
        self.n_special = 0
        self._tokens: dict[tuple[int, ...], int] = {}

    def __call__(self, part: Part, *, max_seconds: float) -> Prepared:
        """The item decoded and prepared; raises BadFile or BadInput with its name."""
        return self._picture(part) if self.kind == "image" else self._recording(part, max_seconds)

    def _picture(self, part: Part) -> Prepared:
        channels = int(getattr(self.config, "num_channels", 3))
        if channels not in (1, 3):
            raise BadInput(f"{self.loaded.name} reads {channels} channels; pictures have 1 or 3")
        pixels = picture(part.content(), part.name, channels=channels)
        made = self.loaded.processor(images=[pixels], return_tensors="np", input_data_format="channels_last")
        values = np.asarray(made[TAKES["image"]], dtype=np.float32)[0]
        size = getattr(self.config, "image_size", None)
        wanted = (channels, *((size, size) if isinstance(size, int) else size or values.shape[1:]))
        if values.shape != wanted and not (values.shape[0] == channels and self._is_read(values)):
            raise BadInput(
                f"{part.name}: the image processor makes {list(values.shape)} of it, {self.loaded.name} reads {list(wanted)} "
                f"[channel, height, width]; use the processor that belongs to the model"
            )
        return Prepared(values, self._patches(values))

    def _is_read(self, values: np.ndarray) -> bool:
        """Whether the model takes a picture of this shape: one that interpolates its positions (DINOv2) takes most."""
        try:
            return self._patches(values) > 0
        except (ValueError, RuntimeError):  # a shape that its modules do not fit
            return False

    def _patches(self, values: np.ndarray) -> int:
        """Tokens of a picture of this shape, seen in one pass over an empty one."""
        import torch

        if values.shape not in self._tokens:
            seen: list[int] = []

            def look(_: BoundStack, layer: int, states: "Tensor") -> None:
                if layer == EMBEDDINGS:
                    seen.append(states.shape[1])

            with torch.inference_mode(), tapped(self.loaded.model, self.stacks[:1], look):
                self.reader(**{TAKES["image"]: self._moved(np.zeros((1, *values.shape), dtype=np.float32))})
            self._tokens[values.shape] = seen[0]
            rows, columns = self.grid(values)
            self.n_special = seen[0] - rows * columns
        return self._tokens[values.shape]

    def grid(self, values: "np.ndarray | Tensor") -> tuple[int, int]:
        """Patches of a picture: (rows, columns)."""
        size: Any = self.config.patch_size
        height, width = (size, size) if isinstance(size, int) else size
        return values.shape[1] // height, values.shape[2] // width

    def _recording(self, part: Part, max_seconds: float) -> Prepared:
        processor = self.loaded.processor
        sound = recording(part.content(), part.name, max_seconds=max_seconds)
        wanted = int(processor.sampling_rate)
        if sound.rate != wanted:
            raise BadInput(
                f"{part.name}: {sound.rate:,} samples a second; {self.loaded.name} reads {wanted:,}; resample it first "
                f"(ffmpeg -i IN -ar {wanted} OUT.wav)"
            )
        made = processor(sound.samples, sampling_rate=sound.rate, return_tensors="np")
        values = np.asarray(made[TAKES["audio"]], dtype=np.float32)[0]
        if values.ndim != 1:
            raise BadInput(
                f"{self.loaded.name}: its feature extractor makes {list(values.shape)} of a recording; models that read "
                f"samples are supported, such as wav2vec2"
            )
        length = frames(self.reader, len(values))
        if length < 1:
            raise BadInput(f"{part.name}: {len(values):,} samples are too few for one token; leave it out")
        return Prepared(values, length, sound.cut)

    def batch(self, items: Sequence[Prepared], texts: tuple[int, ...]) -> Batch:
        """Items as one batch; `texts` are their numbers. Recordings are padded behind, and masked where lengths differ."""
        import torch

        lengths = torch.tensor([item.length for item in items])
        valid = torch.arange(int(lengths.max())) < lengths[:, None]
        special = torch.zeros_like(valid)
        special[:, : self.n_special] = True
        if self.kind == "image":
            inputs = {TAKES["image"]: self._moved(np.stack([item.values for item in items]))}
        else:
            longest = max(len(item.values) for item in items)
            padded = np.zeros((len(items), longest), dtype=np.float32)
            mask = np.zeros((len(items), longest), dtype=np.int64)
            for row, item in enumerate(items):
                padded[row, : len(item.values)] = item.values
                mask[row, : len(item.values)] = 1
            inputs = {TAKES["audio"]: self._moved(padded)}
            if self.pads:
                inputs["attention_mask"] = torch.from_numpy(mask).to(self.loaded.device)
            assert self.pads or mask.all(), "recordings of different length share a batch"
        device = self.loaded.device
        return Batch(inputs, valid.to(device), special.to(device), texts)

    def apart(self, shapes: Sequence[tuple[int, ...]]) -> list[list[int]]:
        """Places of items whose values have these shapes, in groups that can share batches, each in the order given."""
        if self.pads:
            return [list(range(len(shapes)))]
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, shape in enumerate(shapes):
            groups.setdefault(shape, []).append(place)
        return list(groups.values())

    def _moved(self, values: np.ndarray) -> "Tensor":
        """On the model's device, in its precision as it is now."""
        import torch

        dtype = next(parameter.dtype for parameter in self.loaded.model.parameters() if parameter.is_floating_point())
        return torch.from_numpy(values).to(self.loaded.device, dtype)


def frames(module: "nn.Module", n_samples: int) -> int:
    """Tokens that a speech model makes of so many samples."""
    count: Any = getattr(module, "_get_feat_extract_output_lengths", None)
    if count is None:
        raise BadInput(f"{type(module).__name__} does not say how many tokens it makes of a recording; use wav2vec2")
    more = {"add_adapter": False} if "add_adapter" in inspect.signature(count).parameters else {}
    return int(count(n_samples, **more))


# --- passes ----------------------------------------------------------------------------------------------------------

# Batches that are prepared and sorted by length together: pictures are all alike, recordings are large.
WINDOWS: dict[Kind, int] = {"image": 1, "audio": 8}
KEPT_BYTES = 2_000_000_000  # of prepared items held in memory; what comes after is decoded again whenever it is read


class ItemReading:
    """A bare forward pass on items, and what their tokens are called; as `passes.TextReading` is for texts."""

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

    def batches(self, data: Any, *, batch_size: int, max_length: int | None = None) -> Iterator[Batch]:
        """Batches of `data`, `Items`, the longest first; a limit of tokens does not apply."""
        made = [self.prepare(part, max_seconds=data.max_seconds) for part in data.parts]
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
        seconds = f"{items.max_seconds:g}"
        self.what = f"image of {self.longest} tokens"
        if items.kind == "audio":
            self.what = f"recording of at most {seconds} seconds, {self.longest} tokens"
        cut = f"{n_cut:,} of {len(items):,} recordings are longer than {seconds} s, and were cut"
        self.notes = (*[cut] * bool(n_cut), *self.prepare.notes)

    def _one(self, number: int) -> Prepared:
        return self._kept.get(number) or self.prepare(self.items.parts[number], max_seconds=self.items.max_seconds)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """These items (repeats allowed) as one batch."""
        some = {number: self._one(number) for number in dict.fromkeys(numbers)}
        return self.prepare.batch([some[number] for number in numbers], tuple(numbers))

    def inputs(self, numbers: Sequence[int]) -> "dict[str, Tensor]":
        """Keyword arguments of the model for these items."""
        return self.batch(numbers).inputs

    def targets(self, numbers: Sequence[int]) -> "Tensor":
        """Labels of these items, int64 [item]."""
        import torch

        return torch.tensor([self.labels[number] for number in numbers], device=self.prepare.loaded.device)

    def apart(self, numbers: Sequence[int]) -> list[list[int]]:
        """Places in `numbers` that can share batches, each group in the order given."""
        return self.prepare.apart([self._shapes[number] for number in numbers])
