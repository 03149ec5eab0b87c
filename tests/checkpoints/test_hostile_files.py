"""Small files that ask for much: one line, quickly, in little memory."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.architectures.stack import load_toml
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.formats import weight_file
from outlierlens.checkpoints.onnx import _Source, _spread
from outlierlens.data.tables import open_table
from outlierlens.errors import BadFile, BadInput
from outlierlens.results.safe_files import read_json
from outlierlens.training.pretrain.recipe import read_recipe

POSIX = pytest.mark.skipif(os.name != "posix", reason="no pipes with names, no limits of memory")

READ_TWO = """
import resource, sys  # 4 GiB of addresses: allocators reserve far more than they use
from outlierlens.data.texts import read_texts
import pyarrow.parquet
start = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (start + 2**32, start + 2**32))
print([len(text) for text in read_texts(sys.argv[1], limit=2).texts])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_value_that_stands_in_every_row_of_a_parquet_is_not_unpacked_for_each(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "bomb.parquet"
    once = arrow.DictionaryArray.from_arrays(arrow.array([0] * 100_000, arrow.int32()), arrow.array(["x" * 200_000]))
    parquet.write_table(arrow.table({"text": once}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1_000
    done = subprocess.run([sys.executable, "-c", READ_TWO, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[200000, 200000]\n"), done.stderr


def test_a_parquet_that_unpacks_to_far_more_than_the_file_is_refused(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "bomb.parquet"
    table = arrow.table({"text": ["x" * 300_000_000], "plain": ["y"]})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    del table
    with pytest.raises(BadInput, match=r"its rows claim 300,\d+,\d+ bytes from [\d,]+; refused"):
        open_table(path)


def test_a_block_of_an_onnx_scale_costs_no_more_than_the_tensor() -> None:
    scales = np.array([[1.0], [2.0]], np.float32)
    tracemalloc.start()
    try:
        spread = _spread(scales, (2, 8), _Source("w", "s", axis=1, block_size=2**40), "x.onnx")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(spread, np.repeat(scales, 8, axis=1))
    assert peak < 1_000_000
    blocks = np.array([[1.0, 2.0, 3.0]], np.float32)
    spread = _spread(blocks, (1, 8), _Source("w", "s", axis=1, block_size=3), "x.onnx")
    assert spread.tolist() == [[1, 1, 1, 2, 2, 2, 3, 3]]


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 50_000, "a = " + "9" * 5_000, "a" + ".a" * 40_000 + " = 1"],
    ids=["nested", "digits", "dotted"],
)
@pytest.mark.parametrize("read", [load_toml, read_recipe])
def test_toml_that_python_cannot_parse_is_one_line(text: str, read: Callable[[Any], Any], tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match="cannot be read as TOML"):
        read(path)


@POSIX
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.gguf", "config.json"])
def test_a_pipe_or_a_folder_by_the_name_of_a_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    for kind in ("pipe", "folder"):
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "pipe":
            os.mkfifo(folder / name)
        else:
            (folder / name).mkdir()
        assert weight_file(folder) is None
        with pytest.raises(BadFile, match="holds no weight file"):
            open_checkpoint(str(folder))
        if kind == "pipe":
            with pytest.raises(BadInput, match="a pipe or a device; name a file or a folder"):
                open_checkpoint(str(folder / name))
            with pytest.raises(BadInput, match="a pipe, a device or a folder; name a file"):
                load_toml(folder / name)
            with pytest.raises(BadFile, match="a pipe, a device or a folder; name a file"):
                read_json(folder / name)
