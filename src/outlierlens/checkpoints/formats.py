"""Files of weights: which of a folder is the model, and what opens it."""

import re
from pathlib import Path

from outlierlens.checkpoints.base import Checkpoint, load_config
from outlierlens.errors import BadFile


def open_file(path: Path, name: str) -> Checkpoint:
    with path.open("rb") as file:
        magic = file.read(8)
    if path.name.endswith(".safetensors.index.json"):
        from outlierlens.checkpoints.safetensors import open_index

        return open_index(path, name=name, config=load_config(path.parent / "config.json"))
    if magic[:4] == b"GGUF" or path.suffix == ".gguf":
        from outlierlens.checkpoints.gguf import GGUFCheckpoint

        return GGUFCheckpoint(path, name=name)
    config = load_config((config_folder(path) or path.parent) / "config.json")
    if path.suffix == ".safetensors":
        from outlierlens.checkpoints.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint([path], name=name, config=config)
    if path.suffix == ".onnx":
        from outlierlens.checkpoints.onnx import OnnxCheckpoint

        return OnnxCheckpoint(path, name=name, config=config)
    refuse_ctranslate2(path)
    if path.suffix in TORCH or path.name.endswith(".bin.index.json"):
        from outlierlens.checkpoints.torchbin import open_bin

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


def open_directory(folder: Path, name: str) -> Checkpoint:
    found = weight_file(folder)
    if found is None:
        refuse_ctranslate2(folder / "model.bin")
        raise BadFile(f"{folder}: holds no weight file ({', '.join(WEIGHTS)})")
    return open_file(found, name)


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


TORCH = (".bin", ".pt", ".pth", ".ckpt")


WEIGHTS = (".safetensors", ".gguf", ".onnx", *TORCH)


# What trainers keep beside the weights: no model.
KEPT = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state).*")
