"""Named tensors of a model without the model: safetensors, GGUF, ONNX and `.bin` files, local or on a hub.

    with open_checkpoint("sentence-transformers/all-mpnet-base-v2") as checkpoint:
        values = dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))

Opening reads headers only; `read` touches only the bytes of the tensors that are asked for.
"""

import difflib
import re
from pathlib import Path

from outlierlens.checkpoints.base import Checkpoint, TensorInfo
from outlierlens.checkpoints.formats import open_directory, open_file, suffixes, weight_file
from outlierlens.checkpoints.stored import as_weights
from outlierlens.errors import BadInput, UnknownModel

__all__ = ["Checkpoint", "TensorInfo", "as_weights", "open_checkpoint", "open_stored", "weight_file"]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    subfolder: str = "",
    token: str | None = None,
    offline: bool = False,
) -> Checkpoint:
    """Open a sample's name, a directory, one weight file or a hub id for reading, by its weights (see `stored`).

    Raises:
        UnknownModel: `model` is none of these.
        BadFile: the file is malformed; the message says where.
        Offline, RemoteError: a hub id was given and the network is off or fails.
    """
    return as_weights(open_stored(model, revision=revision, subfolder=subfolder, token=token, offline=offline))


def open_stored(
    model: str,
    *,
    revision: str | None = None,
    subfolder: str = "",
    token: str | None = None,
    offline: bool = False,
) -> Checkpoint:
    """As `open_checkpoint`, every tensor as it is stored: masks, which are whole numbers under the names of weights."""
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
    from outlierlens.checkpoints.hub import HubCheckpoint

    return HubCheckpoint(model, revision=revision, subfolder=subfolder, token=token, offline=offline)
