"""An exported folder read back, by sentence-transformers itself or by the few lines that its modules amount to.

for reader in readers(folder): reader.name, reader.encode(texts)       # float32 [text, dim]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.errors import BadFile
from outlierlens.experiments.embedder.folder import MODULES, WEIGHTS
from outlierlens.results.json_toml import read_json


@dataclass(frozen=True)
class Reader:
    """A way to read the folder: `name` with its version, `encode` texts -> [text, dim]."""

    name: str
    encode: Callable[[Sequence[str]], np.ndarray]


def readers(folder: Path, batch_size: int = 32) -> tuple[Reader, ...]:
    """The plain one, and sentence-transformers where it is installed."""
    found = [plain(folder, batch_size)]
    if (library := with_library(folder, batch_size)) is not None:
        found.append(library)
    return tuple(found)


def plain(folder: Path, batch_size: int = 32) -> Reader:
    """transformers' model, the mean over its mask, the dense layer and the length that the files ask for, on the CPU."""
    import torch
    import transformers
    from safetensors.torch import load_file

    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    steps = [(one["type"].rpartition(".")[2], folder / one["path"]) for one in _read(folder / MODULES)]
    length = _read(folder / "sentence_bert_config.json")["max_seq_length"]
    dense = {path: load_file(path / WEIGHTS) for kind, path in steps if kind == "Dense"}

    def encode(texts: Sequence[str]) -> np.ndarray:
        rows = []
        for start in range(0, len(texts), batch_size):
            some = [text.strip() for text in texts[start : start + batch_size]]
            inputs = tokenizer(some, padding=True, truncation="longest_first", max_length=length, return_tensors="pt")
            with torch.inference_mode():
                vectors = model(**inputs).last_hidden_state  # [batch, token, dim]
                for kind, path in steps:
                    if kind == "Pooling":
                        mask = inputs["attention_mask"][..., None].float()
                        vectors = (vectors * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
                    elif kind == "Dense":
                        layer = dense[path]
                        vectors = torch.nn.functional.linear(vectors, layer["linear.weight"], layer["linear.bias"])
                    elif kind == "Normalize":
                        vectors = torch.nn.functional.normalize(vectors, dim=-1)
            rows.append(vectors.numpy())
        return np.concatenate(rows)

    return Reader(f"transformers {transformers.__version__}", encode)


def with_library(folder: Path, batch_size: int = 32) -> Reader | None:
    """sentence-transformers' own reading, on the CPU; None where it is not installed.

    Raises:
        BadFile: it cannot read the folder.
    """
    try:
        import sentence_transformers
    except ImportError:
        return None
    version = metadata.version("sentence-transformers")
    try:
        model: Any = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    except Exception as error:  # whatever its modules raise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadFile(
            f"{folder.name}: sentence-transformers {version} cannot read what was written ({text})"
        ) from error

    def encode(texts: Sequence[str]) -> np.ndarray:
        return np.asarray(model.encode(list(texts), batch_size=batch_size, show_progress_bar=False))

    return Reader(f"sentence-transformers {version}", encode)


def _read(path: Path) -> Any:
    return read_json(path, "export it again")
