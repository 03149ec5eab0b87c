"""ONNX files, written by hand."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

ONE_NODE = [helper.make_node("Relu", ["x"], ["y"], name="/relu")]


def initializer(name: str, values: Any, dtype: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def save(path: Path, nodes: list, initializers: list) -> Path:
    graph = helper.make_graph(nodes, "g", [], [], initializer=initializers)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path
