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
import wave
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outlierlens.data.labelled.labels import are_numbers, places_among
from outlierlens.data.labelled.table import LabelledTask
from outlierlens.errors import BadFile, BadInput, need

MAX_PIXELS = 50_000_000  # of one picture: 150 MB as an array, 200 MB where Pillow unpacks it
MAX_SIDE = 100_000  # pixels: Pillow keeps an address for every row, which of rows of one pixel is the most
MAX_RATIO, SMALL = 2000, 8_000_000  # pixels from one byte of a file, of a picture with more pixels than this
# Formats whose decoders run no other program and read no other file.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MODES = {1: "L", 3: "RGB"}
DEEP = ("I", "F")  # more than 8 bits a channel: converting would clip
MAX_CHANNELS = 64
FULL_SCALE = {"u1": 2.0**7, "i2": 2.0**15, "i4": 2.0**31}


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
        BadInput: more than 8 bits a channel.
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
                    raise BadInput(f"{name}: more than 8 bits a channel (mode {opened.mode}); save it with 8 bits")
                pixels = np.asarray(turned.exif_transpose(opened).convert(MODES[channels]), dtype=np.uint8)
    except damaged as error:
        text = " ".join(str(error).split())[:120] or type(error).__name__
        raise BadFile(f"{name}: cannot be read as an image ({text}); use PNG, JPEG, WebP, TIFF, BMP or GIF") from None
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def recording(content: bytes, name: str, *, max_seconds: float) -> Sound:
    """The recording in mono (the mean of its channels), the first `max_seconds` of it.

    PCM .wav is read by the standard library; all else by soundfile, an extra.

    Raises:
        BadFile: damaged, empty, or a header that promises more than the file holds.
        MissingExtra: a format that needs soundfile.
    """
    if not content:
        raise BadFile(f"{name}: an empty file; leave it out")
    if content[:4] == b"RIFF":
        try:
            return _wav(content, name, max_seconds)
        except (EOFError, RuntimeError, struct.error) as error:  # RuntimeError: a part that leads out of the file
            raise BadFile(f"{name}: cannot be read as .wav ({str(error) or 'it ends early'}); save it again") from None
        except wave.Error as error:
            if "unknown format" not in str(error):
                raise BadFile(f"{name}: cannot be read as .wav ({error}); save it again") from None
    return _by_soundfile(content, name, max_seconds)


def _wav(content: bytes, name: str, max_seconds: float) -> Sound:
    with wave.open(io.BytesIO(content)) as file:
        channels, width, rate, n_frames, *_ = file.getparams()
        _check_sound(n_frames, rate, channels, name)
        if n_frames * channels * width > len(content):
            raise BadFile(f"{name}: its header promises {n_frames:,} samples, more than the file holds; save it again")
        wanted = min(n_frames, _most(max_seconds, rate))
        raw = file.readframes(wanted)
    raw = raw[: len(raw) // (channels * width) * channels * width]  # a part may be shorter than it says
    values: np.ndarray
    if width == 3:  # 24 bits: the upper three bytes of 32
        padded = np.zeros((len(raw) // 3, 4), dtype=np.uint8)
        padded[:, 1:] = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3)
        values = padded.view("<i4").reshape(-1)
    elif width in (1, 2, 4):
        values = np.frombuffer(raw, dtype={1: "u1", 2: "<i2", 4: "<i4"}[width])
    else:
        raise BadFile(f"{name}: {8 * width} bits a sample; save it with 8, 16, 24 or 32")
    return Sound(_mono(values.reshape(-1, channels), name), rate, cut=wanted < n_frames)


class _Seekable(io.BytesIO):
    """Bytes in which nothing stands in front of the first: soundfile would print what asking for that raises."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: len(self.getbuffer())}[whence]
        return super().seek(max(0, start + offset))


def _by_soundfile(content: bytes, name: str, max_seconds: float) -> Sound:
    soundfile: Any = need("soundfile", "audio", f"reading {name}, which is no PCM .wav,")
    try:
        with soundfile.SoundFile(_Seekable(content)) as file:
            n_frames, rate = int(file.frames), int(file.samplerate)
            _check_sound(n_frames, rate, int(file.channels), name)
            wanted = min(n_frames, _most(max_seconds, rate))
            values = file.read(frames=wanted, dtype="float32", always_2d=True)
    except (RuntimeError, ValueError, TypeError) as error:
        text = " ".join(str(error).split())[:120]
        raise BadFile(f"{name}: cannot be read as a recording ({text}); convert it to .wav") from None
    return Sound(_mono(values, name), rate, cut=wanted < n_frames)


def _mono(values: np.ndarray, name: str) -> np.ndarray:
    """[sample, channel] of any sample type as float32 [sample]."""
    if values.dtype.kind in "iu":
        kind = values.dtype.str[1:]
        scale = FULL_SCALE[kind]
        values = (values.astype(np.float64) - (scale if kind == "u1" else 0.0)) / scale
    found = values.mean(axis=1, dtype=np.float64).astype(np.float32)
    if not len(found) or not np.isfinite(found).all():
        raise BadFile(f"{name}: {'no sample' if not len(found) else 'NaN or infinite samples'}; leave it out")
    return found


def _check_sound(n_frames: int, rate: int, channels: int, name: str) -> None:
    if n_frames < 1 or not 1 <= rate <= 10_000_000 or not 1 <= channels <= MAX_CHANNELS:
        raise BadFile(f"{name}: {n_frames:,} samples at {rate:,} a second in {channels} channels; save it again")


def _most(max_seconds: float, rate: int) -> int:
    return max(1, int(max_seconds * rate))


# --- items -----------------------------------------------------------------------------------------------------------

Kind = Literal["image", "audio"]
PLURAL: dict[Kind, str] = {"image": "images", "audio": "recordings"}
MAX_BYTES = 1_000_000_000  # of one file
MAX_SECONDS = 30.0  # of a recording that is read unless more is asked for: attention costs the square of it


@dataclass(frozen=True, eq=False)
class Part:
    """Where one item lies: the file `path`, the bytes `data` of a file, or a picture's `array`; `name` is for messages.

    The array is uint8 [height, width, channel].
    """

    name: str
    path: Path | None = None
    data: bytes | None = None
    array: np.ndarray | None = None

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
            digest.update(f"{self.array.dtype}{self.array.shape}\0".encode())
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
        parts = tuple(self.parts[number] for number in numbers)
        return replace(self, parts=parts, labels=tuple(self.labels[number] for number in numbers))

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
