"""Tiny models for the tests of the remote source, as files made byte by byte."""

import json

import numpy as np

from outlierlens.checkpoints.formats import write_header

MODEL = "org/model"


def packed(tensors: dict[str, np.ndarray]) -> bytes:
    """A safetensors file."""
    words = {"float32": "F32", "float16": "F16", "float64": "F64", "uint8": "U8"}
    header = write_header({name: (words[v.dtype.name], v.shape, v.nbytes) for name, v in tensors.items()})
    return header + b"".join(values.tobytes() for values in tensors.values())


def spaced(n: int, gap: int, seed: int = 0) -> dict[str, np.ndarray]:
    """n vectors of 8 floats with `gap` bytes of another tensor between neighbours."""
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for i in range(n):
        tensors[f"fill.{seed}.{i}"] = np.zeros(gap, np.uint8)
        tensors[f"norm.{seed}.{i}"] = random.normal(size=8).astype(np.float32)
    return tensors


def norms(tensors: dict[str, np.ndarray]) -> list[str]:
    return [name for name in tensors if name.startswith("norm")]


def sharded(*shards: dict[str, np.ndarray]) -> dict[str, bytes]:
    """The files of a model in shards, with index and config."""
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    weight_map = {name: file for file, tensors in zip(names, shards, strict=True) for name in tensors}
    index = {"metadata": {"total_size": sum(v.nbytes for s in shards for v in s.values())}, "weight_map": weight_map}
    files = {file: packed(tensors) for file, tensors in zip(names, shards, strict=True)}
    return {"config.json": b'{"a": 1}', "model.safetensors.index.json": json.dumps(index).encode(), **files}


def one_file(tensors: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {"config.json": b'{"model_type": "bert"}', "model.safetensors": packed(tensors)}
