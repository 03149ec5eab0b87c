"""Named tensors of a model without the model: safetensors, GGUF, ONNX and `.bin` files, local or on a hub.

    with open_checkpoint("sentence-transformers/all-mpnet-base-v2") as checkpoint:
        values = dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))

Opening reads headers only; `read` touches only the bytes of the tensors that are asked for.
"""

import difflib
import re
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.base import Checkpoint, TensorInfo
from outlierlens.checkpoints.formats import open_directory, open_file, suffixes, weight_file
from outlierlens.checkpoints.stored import as_weights
from outlierlens.errors import BadInput, UnknownModel

__all__ = ["Checkpoint", "TensorInfo", "as_weights", "open_checkpoint", "weight_file"]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    subfolder: str = "",
    token: str | None = None,
    offline: bool = False,
    as_stored: bool = False,
) -> Checkpoint:
    """Open a sample's name, a directory, one weight file or a hub id for reading, by its weights (see `stored`).

    `as_stored` gives every tensor as it is stored: masks, which are whole numbers under the names of weights.

    Raises:
        UnknownModel: `model` is none of these.
        BadFile: the file is malformed; the message says where.
        Offline, RemoteError: a hub id was given and the network is off or fails.
    """
    source = _source(model, revision=revision, subfolder=subfolder, token=token, offline=offline)
    return source if as_stored else as_weights(source)


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
