"""THE table of weight files: one row per format, and what follows from it: which file of a folder is the model, what opens it.

    open_file(Path("model.gguf"), "smollm2")      # the Checkpoint that the row's opener makes
    weight_file(Path("runs/bert"))                # Path("runs/bert/model.safetensors")

A new format is a module with an opener and a row here. An opener takes (path, *, name, config), config.json's content being {}
where there is none, and returns a `Checkpoint` whose header was checked.
"""

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.base import INDEX, Checkpoint, load_config
from outlierlens.errors import BadFile

# What trainers keep beside the weights: no model.
KEPT = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|adapter_model).*")


@dataclass(frozen=True)
class Format:
    """One format of weight files, as text: nothing of it is imported before a file of it is opened.

    Attributes:
        name: as it is called in sentences.
        suffixes: endings of its files.
        opener: "module:name" of what opens a file.
        file: the name under which transformers and the hub keep a model in it, and its index; "" where they know none.
        patterns: other names of a model's file in a folder, likeliest first. Any name with one of `suffixes` is taken last.
        magic: the first bytes of its files, which tell it under any name.
        extra: what installs the library that it needs; "" where the base installation reads it.
        needs_torch: that library is torch.
        config_inside: its files say what config.json would; the opener takes no `config`.
    """

    name: str
    suffixes: tuple[str, ...]
    opener: str
    file: str = ""
    patterns: tuple[str, ...] = ()
    magic: bytes = b""
    extra: str = ""
    needs_torch: bool = False
    config_inside: bool = False

    @property
    def index(self) -> str:
        """The file that says which of several holds which tensor; "" where the format has no such."""
        return self.file and self.file + INDEX

    @property
    def ending(self) -> str:
        """Of `file`."""
        return Path(self.file).suffix

    @property
    def names(self) -> tuple[str, ...]:
        """Patterns of names that say: this is the model."""
        return (*((self.file, self.index) if self.file else ()), *self.patterns)

    @property
    def endings(self) -> tuple[str, ...]:
        """How `names` end, each once."""
        parts = (self.ending + INDEX,) if self.file else ()
        return tuple(dict.fromkeys(Path(name).suffix for name in self.names if name != self.index)) + parts


# By trust and cost: the first needs no other library, and of it alone are single tensors fetched from a hub.
SAFETENSORS = Format(
    "safetensors", (".safetensors",), "outlierlens.checkpoints.safetensors:open_safetensors", file="model.safetensors",
    patterns=("*.safetensors",),
)  # fmt: skip
FORMATS = (
    SAFETENSORS,
    Format(
        "PyTorch", (".bin", ".pt", ".pth", ".ckpt"), "outlierlens.checkpoints.torchbin:open_bin",
        file="pytorch_model.bin", extra="models", needs_torch=True,
    ),
    Format(
        "GGUF", (".gguf",), "outlierlens.checkpoints.gguf:GGUFCheckpoint", patterns=("*.gguf",), magic=b"GGUF",
        config_inside=True,
    ),
    Format(
        "ONNX", (".onnx",), "outlierlens.checkpoints.onnx:OnnxCheckpoint", patterns=("*.onnx", "onnx/*.onnx"),
        extra="onnx",
    ),
)  # fmt: skip


def native() -> tuple[Format, ...]:
    """The formats that transformers itself loads."""
    return tuple(row for row in FORMATS if row.file)


def suffixes() -> tuple[str, ...]:
    """Endings of weight files, those that need torch last."""
    return tuple(suffix for row in sorted(FORMATS, key=lambda row: row.needs_torch) for suffix in row.suffixes)


def format_of(path: Path) -> Format | None:
    """The format of a file: by its first bytes where these tell, else by its name; None for no weight file."""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(max(len(row.magic) for row in FORMATS))
        for row in FORMATS:
            if row.magic and head.startswith(row.magic):
                return row
    for row in FORMATS:
        if path.suffix in row.suffixes or (row.file and path.name.endswith(row.ending + INDEX)):
            return row
    return None


def is_part(path: Path) -> bool:
    """Whether a file is by its name one of several that make a model."""
    return bool(re.search(r"-\d+-of-\d+\Z", path.stem)) and path.suffix in {row.ending for row in native()}


def open_file(path: Path, name: str) -> Checkpoint:
    """Open one weight file, or the index of several.

    Raises:
        BadFile: the file is of no known format, or malformed.
    """
    row = format_of(path)
    refuse_ctranslate2(path)
    if row is None:
        raise BadFile(f"{path}: unknown kind of weight file; known endings: {', '.join(suffixes())}")
    module, _, opener = row.opener.partition(":")
    given = {} if row.config_inside else {"config": config_beside(path)}
    opened: Checkpoint = getattr(importlib.import_module(module), opener)(path, name=name, **given)
    return opened


def config_folder(path: Path) -> Path | None:
    """Where the config.json of a weight file is: beside it, or in the folder above (onnx/model.onnx)."""
    return next((place for place in path.absolute().parents[:2] if (place / "config.json").is_file()), None)


def config_beside(path: Path) -> dict[str, Any]:
    """The content of the config.json of a weight file; {} where there is none."""
    return load_config((config_folder(path) or path.parent) / "config.json")


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
    """Open the model in a folder.

    Raises:
        BadFile: it holds none, or several of a kind without an index.
    """
    found = weight_file(folder)
    if found is None:
        raise no_weights(folder)
    return open_file(found, name)


def no_weights(folder: Path) -> BadFile:
    """The error for a folder without a model's weights: it holds an adapter, or its model lies in a folder inside."""
    refuse_ctranslate2(folder / "model.bin")
    if (folder / "adapter_config.json").is_file():
        base = load_config(folder / "adapter_config.json").get("base_model_name_or_path")
        return BadFile(
            f"{folder}: holds an adapter of {base}, and no model; merge it first with peft: AutoPeftModel.from_pretrained("
            f"{str(folder)!r}).merge_and_unload().save_pretrained('merged'), or name {base}"
        )
    inside = [path.name for path in sorted(folder.glob("*/")) if any((path / row.file).is_file() for row in native())]
    lies = f"; a model lies in {', '.join(inside[:4])}: pass --subfolder {inside[0]}" if inside else ""
    return BadFile(f"{folder}: holds no weight file ({', '.join(suffixes())}){lies}")


def weight_file(folder: Path) -> Path | None:
    """The one weight file in a folder, or the index of many; None where there is none.

    Raises:
        BadFile: there are several of a kind and no index.
    """
    for pattern in _patterns():
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


def _patterns() -> Iterator[str]:
    """Patterns of weight files in a folder: names that say so of each format, then any name with its endings."""
    for row in FORMATS:
        yield from row.names
    for row in FORMATS:
        yield from (f"*{suffix}" for suffix in row.suffixes if f"*{suffix}" not in row.names)
