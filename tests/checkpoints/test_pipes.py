"""Pipes as data and as output: one line, never a wait, and the pipe stays a pipe."""

import os
import stat
from pathlib import Path

import pytest

from outlierlens.data.texts import read_texts
from outlierlens.errors import BadInput
from outlierlens.results.safe_files import write_text


@pytest.mark.parametrize("name", ["pipe", "pipe.txt", "pipe.csv", "pipe.jsonl"])
def test_a_pipe_is_neither_read_nor_replaced(name: str, tmp_path: Path) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    with pytest.raises(
        BadInput, match=rf"{name}: a pipe or device, and data are read more than once; write them to a file"
    ):
        read_texts(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(BadInput, match="a pipe or device, which no file replaces; name a file"):
            write_text(path, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert {path.name for path in tmp_path.iterdir()} == {name, "link"}
