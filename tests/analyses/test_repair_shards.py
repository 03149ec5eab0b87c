"""Weight files that are written anew: the system may take less of a write than it was given."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from outlierlens.analyses.repair_files import ONE, Shards, read_header, write_shards
from outlierlens.analyses.repair_rewriting import RewritingPlan

MOST = 1000  # bytes of one write; Linux takes 2,147,479,552


class _Short(io.FileIO):
    """A file whose system takes `MOST` bytes of a write at most, as any may."""

    taken: list[int]

    def write(self, content: Any) -> int:
        written = super().write(memoryview(content).cast("B")[:MOST])
        self.taken.append(written)
        return written


def test_what_the_system_takes_in_parts_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, part = tmp_path / "source", tmp_path / "part"
    source.mkdir()
    part.mkdir()
    table = np.arange(40_000, dtype=np.float32).reshape(400, 100)
    save_file({"table": table, "other": np.ones(7, np.float32)}, source / ONE)
    taken: list[int] = []
    real = io.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, *given: Any, **named: Any) -> Any:
        if not mode.startswith("x") or Path(file).parent != part:
            return real(file, mode, buffering, *given, **named)
        raw = _Short(file, "x")
        raw.taken = taken
        return raw if buffering == 0 else io.BufferedWriter(raw)

    monkeypatch.setattr(io, "open", opened)
    shards = Shards(source, {ONE: read_header(source / ONE)}, {}, head="head", table="table")
    write_shards(shards, part, RewritingPlan())
    found = load_file(part / ONE)
    assert set(found) == {"table", "other", "head"}
    for name, values in (("table", table), ("head", table), ("other", np.ones(7, np.float32))):
        np.testing.assert_array_equal(found[name], values)
    assert len(taken) > 320
    assert max(taken) == MOST
    assert sum(taken) == (part / ONE).stat().st_size > 2 * table.nbytes
