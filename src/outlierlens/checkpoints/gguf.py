"""GGUF, the format of llama.cpp, presented in Hugging Face's names and layout.

    with GGUFCheckpoint(path, name="smollm2") as checkpoint:
        checkpoint.config["num_hidden_layers"]
        dict(checkpoint.read(["model.layers.0.mlp.down_proj.weight"]))       # float32, [out, in]

The header is walked in `gguf_header`, names are translated by the rows of `architectures`. Floats are read here; blocks
of quantized values go through the dequantizers of the `gguf` package, imported only for them.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.architectures import ARCHITECTURES
from outlierlens.architectures.stack import BLOCK, Gguf, Translation
from outlierlens.checkpoints.base import ITEM_BYTES, Checkpoint, LocalCheckpoint, TensorInfo, TensorSpan
from outlierlens.checkpoints.gguf_header import Header, read_header
from outlierlens.errors import BadFile, need

CHUNK_VALUES = 2**20  # dequantized at a time: bounds what the dequantizers hold beside the result
_STORED = [one for row in ARCHITECTURES.values() for one in row.gguf]
# GGUF's word for an architecture -> what such a file may be, those first that a module tells from the others.
FAMILIES: dict[str, tuple[Gguf, ...]] = {
    word: tuple(sorted((one for one in _STORED if one.architecture == word), key=lambda one: not one.when))
    for word in dict.fromkeys(one.architecture for one in _STORED)
}


class GGUFCheckpoint(LocalCheckpoint):
    """One local GGUF file read through a memory map.

    Beside what every `Checkpoint` has: `path`, `metadata` (scalars and short strings by key), `stored_names` (GGUF's own) and
    `family` (a `Gguf`, or None).
    Architectures that `FAMILIES` does not know keep their names, and `config` holds only their own word
    for the model type, so that the architecture table can say what is missing.

    Raises:
        BadFile: the header is malformed, or the file is one part of several.
    """

    kind = "gguf"

    def __init__(self, path: Path, *, name: str):
        header = read_header(path)
        self.name, self.path = name, path
        self.total_bytes = path.stat().st_size
        self.bytes_read = header.nbytes
        parts = header.metadata.get("split.count", 1)
        if isinstance(parts, int) and parts > 1:
            raise BadFile(
                f"{path}: is one part of a model in {parts} files; merge them with `llama-gguf-split --merge` first"
            )
        architecture = header.metadata.get("general.architecture")
        self.metadata, self.stored_names = header.metadata, frozenset(header.tensors)
        modules = {match[2].rpartition(".")[0] for name in header.tensors if (match := BLOCK.match(name))}
        families = FAMILIES.get(architecture, ()) if isinstance(architecture, str) else ()
        self.family = family = next((one for one in families if not one.when or one.when in modules), None)
        self._stored = _translate(header, family, str(path))
        self._files = {hf_name: (path, place) for hf_name, (place, _) in self._stored.items()}
        self.tensors = {hf_name: _info(place, translation) for hf_name, (place, translation) in self._stored.items()}
        self.config = _config(header, family, str(path))
        self._dequantized: set[str] = set()

    def translation(self, name: str) -> Translation:
        """What is known of the tensor that is called `name` here."""
        return self._stored[name][1]

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name, values in super().read(names):
            yield name, values.swapaxes(-1, -2) if self.translation(name).swap else values

    # The stored rows of a swapped tensor are columns.
    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        way = Checkpoint if self.translation(name).swap else LocalCheckpoint
        return way.read_rows(self, name, n_rows)

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        way = Checkpoint if self.translation(name).swap else LocalCheckpoint
        return way.take_rows(self, name, rows)

    def _values(self, name: str, raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Floats of (part of) the tensor that is called `name` here, from its bytes, without what a converter added."""
        where, place = self._place(name)
        if place.info.dtype in ITEM_BYTES:
            values = super()._values(name, raw, shape)
        else:
            values = _dequantize(raw, TensorInfo(place.info.dtype, shape, len(raw)), where)
            self._dequantized.add(place.info.dtype)
            self.notes = (f"values are dequantized from {', '.join(sorted(self._dequantized))}",)
        shift = self.translation(name).shift
        return values + np.float32(shift) if shift else values


def _translate(header: Header, family: Gguf | None, where: str) -> dict[str, tuple[TensorSpan, Translation]]:
    """{Hugging Face name: (place, what undoes the conversion)}."""
    stored: dict[str, tuple[TensorSpan, Translation]] = {}
    for name, place in header.tensors.items():
        translation = family.translate(name) if family else Translation(name)
        if translation.name in stored:
            raise BadFile(f"{where}: tensor {name!r} and another are both {translation.name!r}; it is corrupt")
        if translation.swap and len(place.info.shape) < 2:
            raise BadFile(f"{where}: {name!r} has shape {list(place.info.shape)}, not that of a linear; it is corrupt")
        stored[translation.name] = place, translation
    return stored


def _info(place: TensorSpan, translation: Translation) -> TensorInfo:
    info, shape = place.info, place.info.shape
    return TensorInfo(info.dtype, (*shape[:-2], shape[-1], shape[-2]), info.nbytes) if translation.swap else info


def _config(header: Header, family: Gguf | None, where: str) -> dict[str, Any]:
    architecture = header.metadata.get("general.architecture")
    if architecture is None:
        return {}
    if not isinstance(architecture, str):
        raise BadFile(f"{where}: general.architecture is {architecture!r}, not a name; the file is corrupt")
    if family is None:
        return {"model_type": architecture}
    config = family.config(header.metadata, where)
    embeddings = header.tensors.get("token_embd.weight")
    if embeddings is not None and len(embeddings.info.shape) == 2:
        config.setdefault("vocab_size", embeddings.info.shape[0])
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    return config


def _dequantize(raw: np.ndarray, info: TensorInfo, where: str) -> np.ndarray:
    """float32 values of quantized blocks, `CHUNK_VALUES` at a time."""
    if info.dtype.startswith("type "):
        raise BadFile(f"{where}: is stored as ggml {info.dtype}, which is not known; take a file of a usual type")
    gguf = need("gguf", "", f"reading {info.dtype} values")
    kind = getattr(gguf.GGMLQuantizationType, info.dtype, None)
    unable = BadFile(
        f"{where}: the gguf package cannot dequantize {info.dtype}; run: pip install -U gguf, "
        "or take a file of a usual type (Q8_0, Q4_K)"
    )
    if kind is None:
        raise unable
    width = info.shape[-1]
    rows = raw.reshape(info.size // width, -1)  # [row, byte]
    values = np.empty((len(rows), width), dtype=np.float32)
    step = max(1, CHUNK_VALUES // width)
    try:
        # A broken scale (inf, NaN) is the caller's to report by dimension; numpy need not warn of it.
        with np.errstate(all="ignore"):
            for start in range(0, len(rows), step):
                values[start : start + step] = gguf.quants.dequantize(np.array(rows[start : start + step]), kind)
    except NotImplementedError:
        raise unable from None
    return values.reshape(info.shape)
