"""Fixtures for the tests of the remote source: pytest_plugins = ["hub_fixtures"] gives `hub` and `waits`."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from hub_server import FakeHub
from outlierlens.checkpoints import ranges


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[float]]:
    """No waiting (what would have been waited is listed), no proxy, no token, an empty cache."""
    recorded: list[float] = []
    monkeypatch.setattr(ranges, "_sleep", recorded.append)
    monkeypatch.setattr(ranges, "_clock", lambda: sum(recorded))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    huggingface_hub.close_session()
    yield recorded
    huggingface_hub.close_session()


@pytest.fixture
def hub(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.endpoint)
        yield fake
        huggingface_hub.close_session()
