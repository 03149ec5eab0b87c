"""Named tensors of a model without the model: safetensors, GGUF, ONNX and `.bin` files, local or on a hub.

    with open_checkpoint("sentence-transformers/all-mpnet-base-v2") as checkpoint:
        values = dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))

Opening reads headers only; `read` touches only the bytes of the tensors that are asked for.
"""

import difflib
import re
from pathlib import Path

from outlierlens.checkpoint.base import Checkpoint, TensorInfo, load_config
from outlierlens.errors import BadFile, UnknownModel

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint", "weight_file"]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")
TORCH = (".bin", ".pt", ".pth", ".ckpt")
WEIGHTS = (".safetensors", ".gguf", ".onnx", *TORCH)
# What trainers keep beside the weights: no model.
KEPT = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state).*")


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    subfolder: str = "",
    token: str | None = None,
    offline: bool = False,
) -> Checkpoint:
    """Open a sample's name, a directory, one weight file or a hub id for reading.

    Raises:
        UnknownModel: `model` is none of these.
        BadFile: the file is malformed; the message says where.
        Offline, RemoteError: a hub id was given and the network is off or fails.
    """
    from outlierlens import samples

    path = Path(model)
    if path.is_file():
        return _open_file(path, model)
    if samples.is_sample(model):
        return _open_directory(samples.directory(model, offline=offline), model)
    if path.is_dir():
        return _open_directory(path / subfolder, model)
    near = difflib.get_close_matches(model, samples.SAMPLES, n=1, cutoff=0.8)
    if near:
        raise UnknownModel(f"{model}: no such file or directory; did you mean the sample {near[0]}?")
    if path.suffix in WEIGHTS or model.startswith((".", "/", "~")) or not HUB_ID.match(model):
        raise UnknownModel(
            f"{model}: no such file or directory, and not a hub id; samples are {', '.join(samples.SAMPLES)}"
        )
    from outlierlens.checkpoint.hub import HubCheckpoint

    return HubCheckpoint(model, revision=revision, subfolder=subfolder, token=token, offline=offline)


def _open_file(path: Path, name: str) -> Checkpoint:
    with path.open("rb") as file:
        magic = file.read(8)
    if path.name.endswith(".safetensors.index.json"):
        from outlierlens.checkpoint.safetensors import open_index

        return open_index(path, name=name, config=load_config(path.parent / "config.json"))
    if magic[:4] == b"GGUF" or path.suffix == ".gguf":
        from outlierlens.checkpoint.gguf import GGUFCheckpoint

        return GGUFCheckpoint(path, name=name)
    config = load_config((config_folder(path) or path.parent) / "config.json")
    if path.suffix == ".safetensors":
        from outlierlens.checkpoint.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint([path], name=name, config=config)
    if path.suffix == ".onnx":
        from outlierlens.checkpoint.onnx import OnnxCheckpoint

        return OnnxCheckpoint(path, name=name, config=config)
    refuse_ctranslate2(path)
    if path.suffix in TORCH or path.name.endswith(".bin.index.json"):
        from outlierlens.checkpoint.torchbin import open_bin

        return open_bin(path, name=name, config=config)
    raise BadFile(f"{path}: unknown kind of weight file; known endings: {', '.join(WEIGHTS)}")


def config_folder(path: Path) -> Path | None:
    """Where the config.json of a weight file is: beside it, or in the folder above (onnx/model.onnx)."""
    return next((place for place in path.absolute().parents[:2] if (place / "config.json").is_file()), None)


def refuse_ctranslate2(path: Path) -> None:
    """Raise BadFile where `path` is a file of CTranslate2: a version, then the length and name of what is stored."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(128)
    length = int.from_bytes(head[4:6], "little")
    name = head[6 : 6 + length]
    if head[1:4] == b"\0\0\0" and name.endswith(b"Spec\0") and name[:-1].isalnum():
        raise BadFile(f"{path}: a model of CTranslate2, which is not read; name the model that it was converted from")


def _open_directory(folder: Path, name: str) -> Checkpoint:
    found = weight_file(folder)
    if found is None:
        refuse_ctranslate2(folder / "model.bin")
        raise BadFile(f"{folder}: holds no weight file ({', '.join(WEIGHTS)})")
    return _open_file(found, name)


def weight_file(folder: Path) -> Path | None:
    """The one weight file in a folder, or the index of many; None where there is none.

    Raises:
        BadFile: there are several of a kind and no index.
    """
    # The order is that of trust and cost: safetensors needs neither torch nor another library.
    for pattern in (
        "model.safetensors",
        "model.safetensors.index.json",
        "*.safetensors",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "*.gguf",
        "*.onnx",
        "onnx/*.onnx",
        *(f"*{ending}" for ending in TORCH),
    ):
        # A pipe would be waited for.
        found = sorted(file for file in folder.glob(pattern) if file.is_file() and not KEPT.fullmatch(file.name))
        if len(found) > 1:
            others = ", ".join(file.name for file in found[1:4])
            raise BadFile(
                f"{folder}: {len(found)} files match {pattern} and there is no index; name one of them as the model: "
                f"{found[0]} (or {others}{', …' if len(found) > 4 else ''})"
            )
        if found:
            return found[0]
    return None
