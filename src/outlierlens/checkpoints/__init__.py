"""Named tensors of a model without the model: safetensors, GGUF, ONNX and `.bin` files, local or on a hub.

    with open_checkpoint("sentence-transformers/all-mpnet-base-v2") as checkpoint:
        values = dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))

Opening reads headers only; `read` touches only the bytes of the tensors that are asked for.
"""

import difflib
import re
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.adapter import CONFIG, FILES, AdaptedCheckpoint, Adapter
from outlierlens.checkpoints.base import Checkpoint, TensorInfo, load_config
from outlierlens.checkpoints.formats import open_directory, open_file, suffixes, weight_file
from outlierlens.checkpoints.stored import as_weights
from outlierlens.errors import BadInput, UnknownModel

__all__ = ["Checkpoint", "TensorInfo", "as_weights", "open_adapter", "open_checkpoint", "weight_file", "with_adapter"]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    subfolder: str = "",
    token: str | None = None,
    offline: bool = False,
    adapter: str | None = None,
    as_stored: bool = False,
) -> Checkpoint:
    """Open a sample's name, a directory, one weight file or a hub id for reading, by its weights (see `stored`).

    `adapter` is the folder of a LoRA adapter, whose changes are read with them (see `adapter`).
    `as_stored` gives every tensor as it is stored: masks, which are whole numbers under the names of weights.

    Raises:
        UnknownModel: `model` is none of these.
        BadFile: the file is malformed, or the adapter is not one of it; the message says where.
        Offline, RemoteError: a hub id was given and the network is off or fails.
    """
    source = _source(model, revision=revision, subfolder=subfolder, token=token, offline=offline)
    return source if as_stored else with_adapter(as_weights(source), adapter)


def with_adapter(checkpoint: Checkpoint, folder: str | None) -> Checkpoint:
    """A checkpoint with the adapter of a folder on it; as it is where none is named; raises as `open_adapter` does."""
    return checkpoint if folder is None else AdaptedCheckpoint(checkpoint, open_adapter(folder))


def open_adapter(folder: str) -> Adapter:
    """The adapter in a folder.

    Raises:
        BadInput: there is no such folder, or no adapter in it.
        BadFile: it is more than plain LoRA, or malformed.
    """
    place = Path(folder)
    file = next((place / name for name in FILES if (place / name).is_file()), None)
    if file is None or not (place / CONFIG).is_file():
        raise BadInput(
            f"--model-args adapter={folder}: no folder with {CONFIG} and {FILES[0]}; name one that peft's save_pretrained "
            f"wrote, and fetch one of a hub first: hf download OWNER/NAME --local-dir FOLDER"
        )
    source = open_file(file, str(file))
    return Adapter(source, load_config(place / CONFIG), folder, source.tensors)


def _source(model: str, *, subfolder: str, offline: bool, **where: Any) -> Checkpoint:
    from outlierlens.checkpoints import samples

    path = Path(model)
    if path.is_file():
        return open_file(path, model)
    if samples.is_sample(model):
        return open_directory(samples.directory(model, offline=offline), model)
    if path.is_dir():
        return open_directory(path / subfolder, model)
    if path.exists():
        raise BadInput(f"{model}: a pipe or a device; name a file or a folder")
    near = difflib.get_close_matches(model, samples.SAMPLES, n=1, cutoff=0.8)
    if near:
        raise UnknownModel(f"{model}: no such file or directory; did you mean the sample {near[0]}?")
    if path.suffix in suffixes() or model.startswith((".", "/", "~")) or not HUB_ID.match(model):
        raise UnknownModel(
            f"{model}: no such file or directory, and not a hub id; samples are {', '.join(samples.SAMPLES)}"
        )
    from outlierlens.checkpoints.hub import open_hub

    return open_hub(model, subfolder=subfolder, offline=offline, **where)
