"""The files of a sentence-transformers model.

    check_place(Path("better"), overwrite=False)
    with new_folder(Path("better")) as part:
        write_model(part, cut.model, tokenizer, modules)

Module types bear the names that sentence-transformers has had since its first versions; newer ones translate them.
Weights are safetensors alone: those of `Dense` are read so since 3.0.1, and a pickle is nothing to hand on.

An exported folder read back, by sentence-transformers itself or by the few lines that its modules amount to.

for reader in readers(folder): reader.name, reader.encode(texts)       # float32 [text, dim]
"""

import copy
import inspect
import json
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.errors import BadFile
from outlierlens.results.safe_files import check_folder, read_json
from outlierlens.vectors.fixes import Fix

MODULES, RESULT, CARD = "modules.json", "outlierlens.json", "README.md"
TYPE = "sentence_transformers.models."
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Modules:
    """What stands behind the Transformer: the mean over `width` dimensions, `fix` as a dense layer, and the length 1."""

    width: int
    fix: Fix
    normalize: bool
    max_length: int

    @property
    def has_dense(self) -> bool:
        """Whether the fix changes anything."""
        return self.fix.name != "raw"


def check_place(folder: Path, *, overwrite: bool) -> None:
    """Raise BadInput where nothing may be written to `folder`: before long work, and again when it is done."""
    check_folder(folder, "exported embedder", MODULES, RESULT, replace=overwrite)


def write_model(folder: Path, model: Any, tokenizer: Any, modules: Modules) -> None:
    """Write everything but the model card and the result."""
    model.save_pretrained(folder, max_shard_size="5GB")
    _rotary_base(folder / "config.json")
    write_tokenizer(folder, tokenizer, inspect.signature(model.forward).parameters)
    _json(folder / "sentence_bert_config.json", {"max_seq_length": modules.max_length, "do_lower_case": False})
    _json(
        folder / "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
    names = ["Transformer", "Pooling", *["Dense"] * modules.has_dense, *["Normalize"] * modules.normalize]
    listed: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        path = f"{place}_{name}" if place else ""
        (folder / path).mkdir(exist_ok=True)
        listed.append({"idx": place, "name": str(place), "path": path, "type": TYPE + name})
    _json(folder / MODULES, listed)
    _json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": modules.width,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    if modules.has_dense:
        _dense(folder / "2_Dense", modules.fix)
    if modules.normalize:
        # Version 6 wants a file; the others read none. A hub keeps no empty folder either.
        _json(folder / listed[-1]["path"] / "config.json", {})


def _rotary_base(path: Path) -> None:
    """Name the base of rotary positions where transformers 4 looks for it too; it would take its default in silence."""
    values = read_json(path, "export it again", a=dict)
    rotary = values.get("rope_parameters")
    if isinstance(rotary, dict) and isinstance(rotary.get("rope_theta"), int | float):
        _json(path, {**values, "rope_theta": rotary["rope_theta"]})


def write_tokenizer(folder: Path, tokenizer: Any, taken: Container[str]) -> None:
    """The tokenizer, padding on the right, in a form that transformers 4 reads too.

    `taken` are the inputs of the model: older versions of sentence-transformers hand on whatever a tokenizer gives.
    """
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "right"
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is not None:  # what the last call asked for would be stored as if it were the tokenizer's own
        inner.no_truncation()
        inner.no_padding()
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    values = read_json(path, "export it again", a=dict)
    if values.get("tokenizer_class") == "TokenizersBackend":
        values["tokenizer_class"] = "PreTrainedTokenizerFast"
    if values.get("extra_special_tokens") == []:
        del values["extra_special_tokens"]
    values["model_input_names"] = [name for name in tokenizer.model_input_names if name in taken]
    _json(path, values)


def _dense(folder: Path, fix: Fix) -> None:
    from safetensors.numpy import save_file

    weight = np.ascontiguousarray(fix.weight, dtype=np.float32)  # [kept, dim]
    save_file({"linear.weight": weight, "linear.bias": fix.bias.astype(np.float32)}, folder / WEIGHTS)
    _json(
        folder / "config.json",
        {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


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
