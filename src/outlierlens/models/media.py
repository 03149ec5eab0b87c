"""Pictures and recordings as a model takes them: one by one, in batches, and as what a pass or a task reads.

    prepare = Preparation(loaded, "audio")
    one = prepare(part, max_seconds=30)              # .values: pixels [channel, height, width], samples [sample], or features
    batch = prepare.batch([one, other], (0, 1))      # a `Batch`: padded, with what is padding and what is a special token

`ItemReading` is read while a model's states are looked at, `ItemRows` for a task.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.media.items import PLURAL, Items, ItemSource, Kind, LabelledItems, picture, recording
from outlierlens.data.texts import Batch, start_token
from outlierlens.data.token_texts import special_ids, token_words
from outlierlens.errors import BadInput, need
from outlierlens.models.devices import fast_products, memory_kept
from outlierlens.models.folder import TAKES
from outlierlens.models.forward import Side, reader_of
from outlierlens.models.hooks import EMBEDDINGS, tapped
from outlierlens.models.load import NOT_TEXT, LoadedModel

if TYPE_CHECKING:
    from torch import Tensor, nn


UNPADDED = (
    "this model norms its features over time (feat_extract_norm 'group'), so padding would change every state: only "
    "recordings of the same number of samples share a batch"
)
NOT_MASKED = "group"  # feature norm over time of wav2vec2-base and its kin: padding would change every state
SILENCE = (
    "recordings are padded with silence to the length that the model reads; frames of that silence count as special"
)
START_ALONE = (
    "of recordings without a transcript (a .txt file of the same name, or a column transcription) the decoder read its start "
    "tokens alone"
)
SPOKEN = "the decoder read the transcripts of recordings, behind its start tokens; these count as special"
DECODER = "decoder"
TILING = ("do_image_splitting", "crop_to_patches")  # settings of processors that cut a picture into tiles
WHOLE = "of each image the whole is read, resized; the tiles that the processor would cut it into are not"
TOWERS: dict[Kind, str] = {"image": "vision", "audio": "audio"}  # streams of a model that reads text too


@dataclass(frozen=True)
class PreparedItem:
    """One item as the model takes it.

    Attributes:
        values: float32, as the processor makes them. length: tokens of it.
        mask: of features [frame], 0 where they are of the silence behind a recording. cut: whether there was more of it.
        spoken: token ids that the decoder reads, where there is one.
    """

    values: np.ndarray
    length: int
    mask: np.ndarray | None = None
    spoken: tuple[int, ...] = ()
    cut: bool = False

    @property
    def heard(self) -> int:
        """Tokens that are no silence."""
        return self.length if self.mask is None else math.ceil(int(self.mask.sum()) * self.length / len(self.mask))


class Preparation:
    """A model's own preparation of items.

    Attributes:
        stacks: the streams that items reach. stream: the one whose tokens a `Batch` is of.
        reader: the innermost module that takes them and runs `stacks`. takes: its argument.
        pads: whether items of different shape can share a batch: samples of recordings; where they cannot, those of one
            shape do.
        n_special: tokens before the first patch of a picture. step: seconds of a recording that a token stands for.

    Raises:
        BadInput: the model does not read such items, or has no processor beside it.
        MissingExtra: pictures without Pillow.
    """

    def __init__(self, loaded: LoadedModel, kind: Kind, stream: str | None = None):
        self.loaded, self.kind = loaded, kind
        there = loaded.stacks
        self.stacks = [stack for stack in there if stack.name.startswith(TOWERS[kind])] or [
            stack for stack in there if not stack.name.startswith(NOT_TEXT) or len(there) == 1
        ]
        found = ((name, reader_of(loaded, self.stacks, name)) for name in TAKES[kind])
        self.takes, reader = next(((name, one) for name, one in found if one is not None), ("", None))
        if reader is None:
            raise BadInput(
                f"{loaded.name} does not read {PLURAL[kind]} (it takes {getattr(loaded.model, 'main_input_name', 'other')}); "
                f"use a model that takes {' or '.join(TAKES[kind])}, such as {'ViT' if kind == 'image' else 'wav2vec2'}"
            )
        self.reader = reader
        arguments = inspect.signature(reader.forward).parameters
        self.decodes = "decoder_input_ids" in arguments
        if self.decodes and self.stacks[-1].name != DECODER:
            raise BadInput(
                f"{loaded.name}: its stream {self.stacks[-1].name} lies behind a part that reads {PLURAL[kind]}, whose blocks "
                f"its row does not name; give a row that does (--model-args arch=FILE, docs/models.md)"
            )
        self.stream = stream or self.stacks[0].name
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
        samples = self.takes == "input_values"  # of recordings, not their features
        self.pads = samples and getattr(config, "feat_extract_norm", NOT_MASKED) != NOT_MASKED
        self._notes = dict.fromkeys([UNPADDED] * (kind == "audio" and samples and not self.pads))
        self.n_special = 0
        self.step = 0.0
        self._tokens: dict[tuple[int, ...], int] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know of it; some of it only what was prepared says."""
        return tuple(self._notes)

    def __call__(self, part: ItemSource, *, max_seconds: float) -> PreparedItem:
        """The item decoded and prepared; raises BadFile or BadInput with its name."""
        return self._picture(part) if self.kind == "image" else self._recording(part, max_seconds)

    def _picture(self, part: ItemSource) -> PreparedItem:
        channels, processor = int(getattr(self.config, "num_channels", 3)), self.loaded.processor
        if channels not in (1, 3):
            raise BadInput(f"{self.loaded.name} reads {channels} channels; pictures have 1 or 3")
        pixels = picture(part.content(), part.name, channels=channels)
        uncut = {name: False for name in TILING if getattr(processor, name, False)}
        made = processor(images=[pixels], return_tensors="np", input_data_format="channels_last", **uncut)
        values = np.asarray(made[self.takes], dtype=np.float32)[0]
        tiled = getattr(processor, "image_grid_pinpoints", None) is not None  # the first is the whole picture
        if uncut or tiled:
            self._notes[WHOLE] = None
        if values.ndim == 4 and (len(values) == 1 or tiled):
            values = values[0]
        size = getattr(self.config, "image_size", None)
        wanted = (channels, *((size, size) if isinstance(size, int) else size or values.shape[1:]))
        fits = values.shape == wanted or (values.ndim == 3 and values.shape[0] == channels)
        if "input_ids" in inspect.signature(self.reader.forward).parameters and not (fits and self._is_read(values)):
            raise BadInput(
                f"{self.loaded.name} reads images together with text alone: {type(self.reader).__name__} wants token ids too, "
                f"and its row names no stream of a vision tower; give texts, or load that tower by itself"
            )
        if not (fits and self._is_read(values)):
            raise BadInput(
                f"{part.name}: the image processor makes {list(values.shape)} of it, {self.loaded.name} reads {list(wanted)} "
                f"[channel, height, width]; use the processor that belongs to the model"
            )
        return PreparedItem(values, self._read(values))

    def _is_read(self, values: np.ndarray, mask: np.ndarray | None = None) -> bool:
        """Whether the model takes an item of this shape: of pictures one that interpolates its positions (DINOv2) most."""
        try:
            return self._read(values, mask) > 0
        except (ValueError, RuntimeError, TypeError):  # a shape that its modules do not fit
            return False

    def _read(self, values: np.ndarray, mask: np.ndarray | None = None) -> int:
        """Tokens of an item of this shape, seen in one pass over an empty one; `mask` [frame] is of its shape alone."""
        import torch

        if values.shape not in self._tokens:
            seen: list[int] = []

            def look(_: BoundStack, layer: int, states: "Tensor") -> None:
                if layer == EMBEDDINGS:
                    seen.append(states.shape[1])

            inputs = {self.takes: self._moved(np.zeros((1, *values.shape), dtype=np.float32))}
            if mask is not None:
                inputs["attention_mask"] = torch.ones((1, len(mask)), dtype=torch.int64, device=self.loaded.device)
            if self.decodes:
                inputs["decoder_input_ids"] = torch.tensor([self._spoken("")], device=self.loaded.device)
            with torch.inference_mode(), tapped(self.loaded.model, self.stacks[:1], look):
                self.reader(**inputs)
            self._tokens[values.shape] = seen[0]
            if self.kind == "image":
                rows, columns = self.grid(values)
                self.n_special = seen[0] - rows * columns
        return self._tokens[values.shape]

    def grid(self, values: "np.ndarray | Tensor") -> tuple[int, int]:
        """Patches of a picture: (rows, columns)."""
        size: Any = self.config.patch_size
        height, width = (size, size) if isinstance(size, int) else size
        return values.shape[1] // height, values.shape[2] // width

    def grid_of(self, batch: Batch) -> tuple[int, int]:
        """Patches of a batch's pictures: (rows, columns); (0, 0) where the config does not say how large a patch is."""
        return self.grid(batch.inputs[self.takes][0]) if hasattr(self.config, "patch_size") else (0, 0)

    def _recording(self, part: ItemSource, max_seconds: float) -> PreparedItem:
        processor = self.loaded.processor
        sound = recording(part.content(), part.name, max_seconds=max_seconds)
        wanted = int(processor.sampling_rate)
        if sound.rate != wanted:
            raise BadInput(
                f"{part.name}: {sound.rate:,} samples per second; {self.loaded.name} reads {wanted:,}; resample it first "
                f"(ffmpeg -i IN -ar {wanted} OUT.wav)"
            )
        features = {"return_attention_mask": True} if self.takes == "input_features" else {}
        made = processor(sound.samples, sampling_rate=sound.rate, return_tensors="np", **features)
        values = np.asarray(made[self.takes], dtype=np.float32)[0]
        n_samples = len(sound.samples)
        if values.ndim > 1 and "attention_mask" not in made:
            raise BadInput(
                f"{self.loaded.name}: its feature extractor makes {list(values.shape)} of a recording and does not say which "
                f"frames are its own; models that read samples (wav2vec2) or features with a mask (Whisper) can be run"
            )
        mask = np.asarray(made["attention_mask"])[0] if values.ndim > 1 else None
        if mask is not None and not self._is_read(values, mask):
            raise BadInput(
                f"{self.loaded.name}: {type(self.reader).__name__} does not run by itself on what the feature extractor makes "
                f"of a recording, {list(values.shape)} and a mask [{len(mask)}]; use the extractor that belongs to the model, "
                f"or a model that reads recordings alone, such as Whisper"
            )
        length = frames(self.reader, n_samples) if mask is None else self._read(values)
        if length < 1:
            raise BadInput(f"{part.name}: {n_samples:,} samples are too few for one token; leave it out")
        spoken = self._spoken(part.transcript) if self.decodes else ()
        window = getattr(processor, "n_samples", None) or n_samples  # Whisper's extractor keeps so many
        one = PreparedItem(values, length, mask, spoken, sound.cut or n_samples > window)
        if mask is None:
            self.step = int(np.prod(self.config.conv_stride)) / wanted
        self.step = self.step or round(min(n_samples, window) / wanted / one.heard, 2)
        if one.heard < length:
            self._notes[SILENCE] = None
        if self.decodes:
            self._notes[SPOKEN if part.transcript and self.loaded.tokenizer is not None else START_ALONE] = None
        return one

    def _spoken(self, transcript: str) -> tuple[int, ...]:
        """Token ids that the decoder reads: what starts it, and the transcript."""
        start, tokenizer = start_token(self.loaded.config), self.loaded.tokenizer
        if tokenizer is not None and transcript:
            ids = list(tokenizer(transcript)["input_ids"])
        else:
            ids = list(getattr(tokenizer, "prefix_tokens", None) or ())
        if ids[:1] != [start]:
            ids.insert(0, start)
        if len(ids) > 1 and ids[-1] == getattr(tokenizer, "eos_token_id", None):
            ids.pop()  # what ends a text is predicted, not read
        return tuple(ids[: getattr(self.config, "max_target_positions", None)])

    def batch(self, items: Sequence[PreparedItem], texts: tuple[int, ...]) -> Batch:
        """Items as one batch of the tokens of `stream`; `texts` are their numbers.

        Samples of recordings are padded behind, and masked where lengths differ; so is what a decoder reads.
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence

        device, values = self.loaded.device, [item.values for item in items]
        masks = [torch.ones(len(one), dtype=torch.int64) for one in values] if self.pads else []
        longest = max(map(len, values)) if self.pads else 0
        inputs = {
            self.takes: self._moved(
                np.stack([np.pad(one, (0, longest - len(one))) for one in values] if longest else values)
            )
        }
        masks += [torch.from_numpy(item.mask).long() for item in items if item.mask is not None]
        if masks:
            inputs["attention_mask"] = pad_sequence(masks, batch_first=True).to(device)
        if self.decodes:
            spoken = [torch.tensor(item.spoken) for item in items]
            inputs["decoder_input_ids"] = pad_sequence(spoken, batch_first=True).to(device)
            there = pad_sequence([torch.ones_like(one) for one in spoken], batch_first=True)
            inputs["decoder_attention_mask"] = there.to(device)
        special = [torch.from_numpy(self.special(item)) for item in items]
        valid = pad_sequence([torch.ones_like(one) for one in special], batch_first=True)
        return Batch(inputs, valid.to(device), pad_sequence(special, batch_first=True).to(device), texts)

    def decoder_side(self, inputs: "dict[str, Tensor]") -> Side:
        """What the decoder reads of a batch with these `inputs`."""
        import torch

        ids, valid = inputs["decoder_input_ids"], inputs["decoder_attention_mask"].bool()
        return Side(ids, torch.isin(ids, torch.tensor(self._start).to(ids)) & valid, valid)

    def numbers(self, one: PreparedItem) -> tuple[int, ...]:
        """Numbers of an item's tokens in `stream`: their places, or what a decoder reads."""
        return one.spoken if self.decodes and self.stream == DECODER else tuple(range(one.length))

    def special(self, one: PreparedItem) -> np.ndarray:
        """Which of them are special: [CLS] and registers, silence, what starts a decoder. bool [token]."""
        numbers = np.array(self.numbers(one), dtype=np.int64)
        if self.decodes and self.stream == DECODER:
            return np.isin(numbers, self._start)
        return np.asarray((numbers < self.n_special) | (numbers >= one.heard))

    @cached_property
    def _start(self) -> list[int]:
        """Ids of a decoder's special tokens."""
        return sorted({start_token(self.loaded.config), *special_ids(self.loaded.tokenizer)})

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
    """Number of tokens that a speech model makes of N samples; raises BadInput for one that does not say."""
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

    def __init__(self, loaded: LoadedModel, items: Items, stream: str | None = None):
        kind = items.kind
        self.loaded, self.kind, self.inputs = loaded, kind, PLURAL[kind]
        self.prepare = Preparation(loaded, kind, stream)
        self._first = items.first(1)  # names tokens where all were read before, and kept
        self.stacks = [one for one in self.prepare.stacks if stream != DECODER or one.name == DECODER]
        self.shifted = ""
        self.max_length = 0  # nothing is cut by tokens
        self.window = WINDOWS[kind]
        self.n_cut = 0
        self._seen: Batch | None = None  # the last one whose places were given

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know."""
        said = []
        if other := [stack.name for stack in self.loaded.stacks if stack not in self.prepare.stacks]:
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

    def sides(self, batch: Batch) -> dict[str, Side]:
        """What each stream reads: numbers of its tokens are their places, those of a decoder token ids."""
        import torch

        self._seen, prepare = batch, self.prepare
        places = torch.arange(batch.valid.shape[1], device=batch.valid.device).expand(batch.valid.shape)
        spoken = {DECODER: prepare.decoder_side(batch.inputs)} if prepare.decodes else {}
        return {one.name: spoken.get(one.name, Side(places, batch.special, batch.valid)) for one in self.stacks}

    def words(self, ids: list[int], stream: str = "") -> tuple[str, ...]:
        """What these tokens are: "[CLS]", "[register 1]", "patch 3,4" (row, column), "0.64 s", or what a decoder reads."""
        if self.prepare.decodes and stream == DECODER:
            return token_words(self.loaded.tokenizer, ids)
        if self._seen is None:
            self.sides(next(self.batches(self._first, batch_size=1, max_length=1)))
        return tuple(self._word(place) if place >= 0 else "" for place in ids)

    def places(self, positions: Sequence[int]) -> tuple[str, ...]:
        """What stands at these positions; () of what a decoder reads, where that differs."""
        if self.prepare.decodes and self.prepare.stream == DECODER:
            return ()
        return tuple(map(self._word, positions))

    def _word(self, place: int) -> str:
        if self.kind == "audio":
            return f"{place * self.prepare.step:.2f} s"
        if place < self.prepare.n_special:
            named = "register" if getattr(self.prepare.config, "num_register_tokens", 0) else "special"
            return "[CLS]" if place == 0 else f"[{named} {place}]"
        assert self._seen is not None, "tokens are named after they were seen"
        _, columns = self.prepare.grid_of(self._seen)
        row, column = divmod(place - self.prepare.n_special, columns)
        return f"patch {row},{column}"


class ItemRows:
    """The items of a task.

    Attributes:
        texts: numbers of the items, all of them. lengths: tokens of each, int [item]. labels: of `LabelledItems`, else ().
        numbers, special: of their tokens; see `Preparation`. longest: tokens of a row at most. tries_first: see `TextRows`.
        what: one item in words. notes: about how they were read.
    """

    tries_first = False

    def __init__(self, loaded: LoadedModel, items: Items, prepare: Preparation | None = None):
        self.items, self.prepare = items, prepare or Preparation(loaded, items.kind)
        if prepare is None:
            self.prepare.stream = self.prepare.stacks[-1].name  # whose outputs are the model's
        self.labels: tuple[Any, ...] = items.labels if isinstance(items, LabelledItems) else ()
        self._kept: dict[int, PreparedItem] = {}
        self._shapes: list[tuple[int, ...]] = []
        self.numbers: list[tuple[int, ...]] = []
        self.special: list[np.ndarray] = []
        room, n_cut = KEPT_BYTES, 0
        for number, part in enumerate(items.parts):
            one = self.prepare(part, max_seconds=items.max_seconds)
            self.numbers.append(self.prepare.numbers(one))
            self.special.append(self.prepare.special(one))
            self._shapes.append(one.values.shape)
            n_cut += one.cut
            room -= one.values.nbytes
            if room >= 0:
                self._kept[number] = one
        self.texts, self.lengths = tuple(range(len(items))), np.array([len(one) for one in self.numbers])
        self.longest = int(self.lengths.max())
        seconds = f"{items.max_seconds:g}"
        self.what = f"image of {self.longest} tokens"
        if items.kind == "audio":
            self.what = f"recording of at most {seconds} seconds, {self.longest} tokens"
        cut = f"{n_cut:,} of {len(items):,} recordings are longer than {seconds} s, and were cut"
        self.notes = (*[cut] * bool(n_cut), *self.prepare.notes)

    def _one(self, number: int) -> PreparedItem:
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
