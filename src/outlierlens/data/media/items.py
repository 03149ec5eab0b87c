"""`Items`: pictures or recordings, decoded when they are asked for, from bytes that nobody vouches for; with a class or not.

items.first(100)                     # like `Texts`: source, digest, first, len
items.parts[3].name                  # for messages: "photos/cat/3.png"

pixels = picture(content, "cat/3.png", channels=3)             # uint8 [height, width, channel]
sound = recording(content, "yes/1.wav", max_seconds=30)        # .samples float32 [sample], .rate, .cut

Sizes are looked at before anything is unpacked.
"""

import hashlib
import io
import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from outlierlens.data.labelled.labels import LabelledTask, are_numbers, places_among
from outlierlens.data.texts import Data
from outlierlens.errors import BadFile, BadInput, need

MAX_PIXELS = 50_000_000  # of one picture: 150 MB as an array, 200 MB where Pillow unpacks it
MAX_SIDE = 100_000  # pixels: Pillow keeps an address for every row, which of rows of one pixel is the most
MAX_RATIO, SMALL = 2000, 8_000_000  # pixels from one byte of a file, of a picture with more pixels than this
# Formats whose decoders run no other program and read no other file.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MODES = {1: "L", 3: "RGB"}
DEEP = ("I", "F")  # more than 8 bits per channel: converting would clip
MAX_CHANNELS = 64


@dataclass(frozen=True)
class Sound:
    """A recording in mono: `samples` float32 [sample] in [−1, 1], `rate` a second, `cut` where there was more."""

    samples: np.ndarray
    rate: int
    cut: bool = False


def picture(content: bytes, name: str, *, channels: int = 3) -> np.ndarray:
    """The picture, upright, as uint8 [height, width, channel] of 1 (grey) or 3 (red, green, blue) channels.

    What is turned by a note of the camera (EXIF) is turned upright; of an animation the first frame counts.

    Raises:
        BadFile: no picture of a format in FORMATS, damaged, larger than MAX_PIXELS or MAX_SIDE, or than its bytes can hold.
        BadInput: more than 8 bits per channel.
    """
    image_module: Any = need("PIL.Image", "vision", "reading images")
    turned: Any = need("PIL.ImageOps", "vision", "reading images")
    damaged = (
        OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, OverflowError, struct.error, zlib.error,
        image_module.DecompressionBombError,
    )  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's own remarks on size and damage
            with image_module.open(io.BytesIO(content), formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > MAX_PIXELS:
                    raise BadFile(f"{name}: {width:,} × {height:,} pixels, more than {MAX_PIXELS:,}; make it smaller")
                if max(width, height) > MAX_SIDE:
                    raise BadFile(f"{name}: {width:,} × {height:,} pixels, a side of more than {MAX_SIDE:,}; cut it up")
                if width * height > max(SMALL, MAX_RATIO * len(content)):
                    raise BadFile(
                        f"{name}: {len(content):,} bytes cannot hold {width:,} × {height:,} pixels; fetch it again"
                    )
                if opened.mode.startswith(DEEP):
                    raise BadInput(f"{name}: more than 8 bits per channel (mode {opened.mode}); save it with 8 bits")
                pixels = np.asarray(turned.exif_transpose(opened).convert(MODES[channels]), dtype=np.uint8)
    except damaged as error:
        text = " ".join(str(error).split())[:120] or type(error).__name__
        raise BadFile(f"{name}: cannot be read as an image ({text}); use PNG, JPEG, WebP, TIFF, BMP or GIF") from None
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def recording(content: bytes, name: str, *, max_seconds: float) -> Sound:
    """The recording in mono (the mean of its channels), the first `max_seconds` of it.

    Raises:
        BadFile: damaged, empty, or a header that promises more than the file holds.
        MissingExtra: soundfile is not installed.
    """
    if not content:
        raise BadFile(f"{name}: an empty file; leave it out")
    if content[:4] == b"RIFF" and int.from_bytes(content[4:8], "little") + 8 > len(content):
        raise BadFile(f"{name}: its header promises more than the file holds; save it again")
    soundfile: Any = need("soundfile", "audio", f"reading {name}")
    try:
        with soundfile.SoundFile(_Seekable(content)) as file:
            n_frames, rate, channels = int(file.frames), int(file.samplerate), int(file.channels)
            if n_frames < 1 or not 1 <= rate <= 10_000_000 or not 1 <= channels <= MAX_CHANNELS:
                raise BadFile(
                    f"{name}: {n_frames:,} samples at {rate:,} per second in {channels} channels; save it again"
                )
            wanted = min(n_frames, max(1, int(max_seconds * rate)))
            values = file.read(frames=wanted, dtype="float64", always_2d=True)  # [sample, channel]
    except (RuntimeError, ValueError, TypeError) as error:
        text = " ".join(str(getattr(error, "error_string", error)).split())[:120]
        raise BadFile(f"{name}: cannot be read as a recording ({text}); convert it to .wav") from None
    found = values.mean(axis=1).astype(np.float32)
    if not len(found) or not np.isfinite(found).all():
        raise BadFile(f"{name}: {'no sample' if not len(found) else 'NaN or infinite samples'}; leave it out")
    return Sound(found, rate, cut=wanted < n_frames)


class _Seekable(io.BytesIO):
    """Bytes in which nothing stands in front of the first: soundfile would print what asking for that raises."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: len(self.getbuffer())}[whence]
        return super().seek(max(0, start + offset))


# --- items -----------------------------------------------------------------------------------------------------------

Kind = Literal["image", "audio"]
PLURAL: dict[Kind, str] = {"image": "images", "audio": "recordings"}
MAX_BYTES = 1_000_000_000  # of one file
MAX_SECONDS = 30.0  # of a recording that is read unless more is asked for: attention costs the square of it


@dataclass(frozen=True, eq=False)
class ItemSource:
    """Where one item lies: the file `path`, or the bytes `data` of a file; `name` is for messages.

    `transcript` is what is said in a recording, "" where nothing says it.
    """

    name: str
    path: Path | None = None
    data: bytes | None = None
    transcript: str = ""

    def content(self) -> bytes:
        """The bytes of the file; raises BadInput where it cannot be read, BadFile where it is too large."""
        if self.data is not None:
            return self.data
        assert self.path is not None, "a part is a path or bytes"
        try:
            if (size := self.path.stat().st_size) > MAX_BYTES:
                raise BadFile(f"{self.name}: {size / 1e9:.1f} GB, more than {MAX_BYTES / 1e9:.0f}; cut it")
            return self.path.read_bytes()
        except OSError as error:
            raise BadInput(f"{self.name}: cannot be read ({error.strerror or error}); put the file back") from None


@dataclass(frozen=True, eq=False)
class Items(Data):
    """Pictures or recordings with where they came from; stands wherever `Texts` can.

    Attributes:
        source: as given. kind: what they are. parts: where each lies.
        max_seconds: of a recording, no more is read.
    """

    source: str
    kind: Kind
    parts: tuple[ItemSource, ...]
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
        for part, key in zip(self.parts, self.keys, strict=True):
            digest.update(bytes.fromhex(key) + part.transcript.encode("utf-8", "surrogatepass"))
        return digest

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """SHA-256 of each file."""
        return tuple(hashlib.sha256(part.content()).hexdigest() for part in self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def some(self, numbers: Sequence[int]) -> Self:
        return replace(self, parts=tuple(self.parts[number] for number in numbers))

    @property
    def plural(self) -> str:
        return PLURAL[self.kind]


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

    def some(self, numbers: Sequence[int]) -> Self:
        return replace(super().some(numbers), labels=tuple(self.labels[number] for number in numbers))

    def among(self, names: Sequence[str]) -> "LabelledItems":
        """The same items, labelled among all the classes `names` of a model where these hold only some of them.

        Unchanged where the model has no more classes, its names say nothing ("LABEL_0"), or a class here is none of them.
        """
        places = places_among(self.task.labels, names)
        if places is None or are_numbers(names):
            return self
        task = self.task.labelled(tuple(names))
        return replace(self, task=task, labels=tuple(places[label] for label in self.labels))
