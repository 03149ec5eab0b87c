"""What stands before a model that reads pictures or recordings: the image processor or feature extractor in its folder.

processor = processor_beside(model, "google/vit-base-patch16-224", common)      # None where there is none
"""

import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.data.media.items import Kind
from outlierlens.errors import BadFile, need

if TYPE_CHECKING:
    from torch import nn

TAKES: dict[Kind, str] = {"image": "pixel_values", "audio": "input_values"}
LOADERS: dict[Kind, str] = {"image": "AutoImageProcessor", "audio": "AutoFeatureExtractor"}
FILES = ("preprocessor_config.json", "processor_config.json")


def kind_read(model: "nn.Module") -> Kind | None:
    """What a model reads: "image", "audio", or None for text and all else."""
    taken = inspect.signature(type(model).forward).parameters
    return next((kind for kind, name in TAKES.items() if name in taken), None)


def processor_beside(model: "nn.Module", source: str, common: dict[str, Any]) -> Any:
    """The processor in the model's folder; None where there is none, it is not needed, or a library for it is missing.

    Code that comes with a model is never run for it. Images are prepared by Pillow, on whatever machine, so that pixels are
    the same everywhere.

    Raises:
        BadFile: the processor's file is there and cannot be read, and the model reads nothing else.
    """
    kind = kind_read(model)
    if kind is None or (kind == "image" and importlib.util.find_spec("PIL") is None):
        return None
    loader = getattr(need("transformers", "models", "running a model"), LOADERS[kind])
    how = {**common, "trust_remote_code": False, **({"backend": "pil"} if kind == "image" else {})}
    folder = Path(source) / common.get("subfolder", "")
    try:
        return loader.from_pretrained(source, **how)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file raises nearly every class
        if isinstance(error, ImportError) or "input_ids" in inspect.signature(type(model).forward).parameters:
            return None  # a model of texts as well needs none for those
        if any((folder / file).is_file() for file in FILES):
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise BadFile(f"{source}: its processor cannot be read ({text}); fetch or save it again") from error
        if isinstance(error, OSError | ValueError):
            return None
        raise
