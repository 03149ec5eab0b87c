"""A paper's run that is stopped at one of its parts, and begun again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest


class Stop(Exception):
    """What ends a run."""


def gone_on(
    parts: dict[str, Any], at: str, rows: Path, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """What the same command finds after a run that was stopped at a part, whose finished rows are as they were."""

    def stop(run: Any) -> Any:
        raise Stop

    monkeypatch.setitem(parts, at, replace(parts[at], measure=stop))
    with pytest.raises(Stop):
        make()
    monkeypatch.undo()
    kept = {path: path.read_bytes() for path in rows.glob("*.jsonl")}
    assert kept
    again = make()
    assert all(path.read_bytes() == before for path, before in kept.items())
    return again
