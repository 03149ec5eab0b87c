"""Where commands keep what they have measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from outlierlens.errors import BadInput
from outlierlens.results.row_store import Keep


def test_a_folder_keeps_a_file_for_each_identity(tmp_path: Path) -> None:
    keep = Keep(tmp_path / "qwen2.5-ablate")
    for seed in (0, 1):
        with keep.open({"seed": seed}) as rows:
            assert rows.get("a") is None
            rows.append("a", seed)
    with keep.open({"seed": 1}) as rows:
        assert rows.get("a") == 1
    assert len(list(keep.folder.glob("*.jsonl"))) == 2
    with replace(keep, fresh=True).open({"seed": 0}) as rows:
        assert not rows.done
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"nothing can be kept there .* OUTLIERLENS_RUNS"):
        Keep(tmp_path / "file" / "inside").open({})
