"""A BERT of arrays, 20 dimensions and 2 layers, in which what `origin` should find is put by hand."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from outlierlens.analyses.origin import Origin, OriginOptions, origin

WIDTH, LAYERS, TOKENS, POSITIONS = 20, 2, 60, 8
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
WORDS = ["[PAD]", "[CLS]", *(f"w{i}" for i in range(2, TOKENS))]


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Noise everywhere, norms near 1 and 0."""
    random = np.random.default_rng(seed)

    def noise(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape).astype(np.float32)

    made = {
        "embeddings.word_embeddings.weight": noise(TOKENS, WIDTH),
        "embeddings.position_embeddings.weight": noise(POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": noise(2, WIDTH),
        "embeddings.LayerNorm.weight": 1 + 0.1 * noise(WIDTH),
        "embeddings.LayerNorm.bias": 0.1 * noise(WIDTH),
    }
    for layer in range(LAYERS):
        for norm in NORMS:
            made[f"encoder.layer.{layer}.{norm}.weight"] = 1 + 0.1 * noise(WIDTH)
            made[f"encoder.layer.{layer}.{norm}.bias"] = 0.1 * noise(WIDTH)
    return made


def planted(dim: int = 5) -> dict[str, np.ndarray]:
    """The noise, with `dim` low in position row 0, high in token 1, and low in the scale of every last norm."""
    made = tensors()
    made["embeddings.position_embeddings.weight"][:, dim] = 0.01 * np.arange(POSITIONS)
    made["embeddings.position_embeddings.weight"][0, dim] = -20
    made["embeddings.word_embeddings.weight"][:, dim] = -20 / (TOKENS - 1)  # so that its mean is that of the noise
    made["embeddings.word_embeddings.weight"][1, dim] = 20
    for layer in range(LAYERS):
        made[f"encoder.layer.{layer}.output.LayerNorm.weight"][dim] = -3
        made[f"encoder.layer.{layer}.output.LayerNorm.bias"][dim] = 4
    return made


def saved(folder: Path, made: dict[str, np.ndarray], **config: object) -> Path:
    """The arrays as a model directory with a vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(made, folder / "model.safetensors")
    whole = {"model_type": "bert", "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "pad_token_id": 0, **config}
    (folder / "config.json").write_text(json.dumps(whole))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


def found(folder: Path, dim: int = 5) -> Origin:
    """The measurement of the planted model."""
    return origin(str(saved(folder, planted(dim))), OriginOptions(dims=(dim, 2), named_by="hand"))
