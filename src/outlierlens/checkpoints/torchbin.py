"""PyTorch's own files (`.bin`, `.pt`, `.pth`, `.ckpt`), one or many: never unpickled as code, mapped where the format allows.

    with TorchCheckpoint(Path("pytorch_model.bin"), name="bert", config=config) as checkpoint:
        dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))

Files written since PyTorch 1.6 are zip archives of uncompressed storages and are memory-mapped. Older ones are one
pickle stream that can only be loaded whole. Both go through `torch.load(weights_only=True)`, which builds tensors and
plain containers and refuses everything else, once `pickle_scan` has seen that what it asks for is there.
"""

import io
import mmap
import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.checkpoints.base import MAX_RANK, MAX_TENSORS, TensorCheckpoint, is_shape
from outlierlens.checkpoints.formats import gather
from outlierlens.checkpoints.pickle_scan import SAFE, scan_pickle
from outlierlens.errors import BadFile, need

if TYPE_CHECKING:
    from torch import Tensor

MAX_PICKLE_BYTES = 512 * 2**20  # names and shapes only: published checkpoints stay under a few megabytes
OLD_PICKLES = 5
CONTAINERS = ("model_state_dict", "state_dict", "model", "module")  # what trainers call the model among what they keep


class TorchCheckpoint(TensorCheckpoint):
    """A local PyTorch file, or a checkpoint in shards by its `pytorch_model.bin.index.json`.

    Attributes:
        wrapped: whether a trainer put the model into a container (`state_dict`, `model`, …).
    """

    kind = "bin"
    wrapped = False

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        """Load every file.

        Raises:
            MissingExtra: torch is not installed.
            BadFile: a file is malformed, or holds pickled objects other than tensors; nothing in it was executed.
        """
        self.name, self.config = name, config
        self.total_bytes = self.bytes_read = 0
        self._whole: set[Path] = set()
        found = gather(path, name, self._load)
        self._file_of = {key: path for key, (path, _) in found.items()}
        self._hold({key: tensor for key, (_, tensor) in found.items()})

    def _values(self, name: str, part: "Tensor") -> np.ndarray:
        """A copy of (part of) a tensor: it must outlive the file, and the file must not change with it."""
        import torch

        path = self._file_of[name]
        if part.is_complex():
            raise BadFile(f"{path}: {name}: cannot read complex values")
        if path not in self._whole:
            self.bytes_read += part.nbytes
        wide = torch.float64 if part.dtype == torch.float64 else torch.float32
        return np.array(part.to(wide).contiguous().numpy())

    def close(self) -> None:
        self._held.clear()

    def _load(self, path: Path) -> dict[str, "Tensor"]:
        self.total_bytes += path.stat().st_size
        with path.open("rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"
        if is_zip:
            self.bytes_read += _check_zip(path)
        else:
            _check_old(path)
        content = _unpickle(path, mmap=is_zip)
        if not is_zip:
            self._whole.add(path)
            self.bytes_read += path.stat().st_size
            self.notes += (f"{path.name} has the format from before PyTorch 1.6, which can only be loaded whole",)
        while inside := _inside(content):
            content = inside
            self.wrapped = True
        if not isinstance(content, Mapping):
            raise BadFile(f"{path}: holds a {type(content).__name__}, not named tensors; save the model's state_dict()")
        return self._tensors_of(content, path)

    def _tensors_of(self, content: Mapping[Any, Any], path: Path) -> dict[str, "Tensor"]:
        import torch

        tensors = {key: value for key, value in content.items() if isinstance(value, torch.Tensor)}
        if not tensors:
            raise BadFile(f"{path}: holds no named tensors; save the model's state_dict()")
        if len(tensors) > MAX_TENSORS:
            raise BadFile(f"{path}: {len(tensors):,} tensors, more than {MAX_TENSORS:,}")
        ignored = [str(key) for key in content if key not in tensors]
        if ignored:
            self.notes += (f"{path.name}: entries that are no tensors were ignored: {', '.join(ignored[:4])}",)
        for key, tensor in tensors.items():
            _check_tensor(key, tensor, path)
        return {key: tensor.detach() for key, tensor in tensors.items()}  # a gradient may be asked for in the file


def _inside(content: Any) -> Mapping[Any, Any] | None:
    """The model in a trainer's container; None where `content` is none: it holds tensors itself, or nothing by such a name."""
    import torch

    if not isinstance(content, Mapping) or any(isinstance(value, torch.Tensor) for value in content.values()):
        return None
    return next((content[name] for name in CONTAINERS if isinstance(content.get(name), Mapping)), None)


def _check_zip(path: Path) -> int:
    """Hold every size of the archive's directory against the file; returns the bytes of its pickle."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = _check_entries(path, archive.infolist(), size)
            for entry in archive.infolist():
                if entry.filename.endswith(".pkl"):
                    scan_pickle(io.BytesIO(archive.read(entry)), str(path), size)
    except (
        zipfile.BadZipFile,
        ValueError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
        struct.error,
    ) as error:
        raise BadFile(f"{path}: not a readable PyTorch file ({error}); truncated? fetch it again") from None
    return pickles


def _check_entries(path: Path, entries: list[zipfile.ZipInfo], size: int) -> int:
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise BadFile(f"{path}: entry {packed[0]!r} is compressed, which PyTorch never does; refused")
    total = sum(entry.file_size for entry in entries)
    if total > size or len(entries) > MAX_TENSORS:
        raise BadFile(f"{path}: {len(entries):,} entries claim {total:,} bytes in a file of {size:,}; refused")
    if len({entry.filename for entry in entries}) < len(entries):
        raise BadFile(f"{path}: two entries have the same name, which PyTorch never writes; refused")
    pickles = sum(entry.file_size for entry in entries if entry.filename.endswith(".pkl"))
    if pickles > MAX_PICKLE_BYTES:
        raise BadFile(f"{path}: its list of tensors claims {pickles:,} bytes; refused")
    return pickles


def _check_old(path: Path) -> None:
    """The pickles of a file from before PyTorch 1.6: two numbers, the machine, the tensors and their storages' names."""
    size = path.stat().st_size
    if not size:
        raise BadFile(f"{path}: is empty; truncated? fetch it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
        for _ in range(OLD_PICKLES):
            scan_pickle(stream, str(path), size)


def _unpickle(path: Path, *, mmap: bool) -> Any:
    torch = need("torch", "models", f"reading {path.name}")
    try:
        with warnings.catch_warnings():  # torch warns about its own old storage classes
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError:
        raise BadFile(
            f"{path}: holds something else than tensors; refused, and nothing in it was executed; {SAFE}"
        ) from None
    except MemoryError:
        raise BadFile(f"{path}: claims more memory than this machine has; truncated or hostile") from None
    except Exception as error:
        # torch lets whatever goes wrong in a malformed stream through: IndexError, KeyError, struct.error, ...
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else "malformed"
        raise BadFile(
            f"{path}: cannot be loaded ({type(error).__name__}: {reason}); truncated? fetch it again"
        ) from None


def _check_tensor(key: Any, tensor: "Tensor", path: Path) -> None:
    """Refuse what cannot be plain weights: other layouts, and tensors that claim more values than are stored."""
    import torch

    where = f"{path}: tensor {str(key)!r}"
    if not isinstance(key, str):
        raise BadFile(f"{path}: a tensor is stored under {key!r:.40}, which is no name; save the model's state_dict()")
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise BadFile(f"{where} is stored as {tensor.layout} on {tensor.device}, not as plain values; {SAFE}")
    # A stride of zero lets a file of one number claim terabytes, which a copy would then allocate.
    stored = tensor.untyped_storage().nbytes()
    if not is_shape(tensor.shape) or tensor.nbytes > stored:
        raise BadFile(f"{where} claims {list(tensor.shape)[: MAX_RANK + 1]} but stores {stored:,} bytes; refused")
