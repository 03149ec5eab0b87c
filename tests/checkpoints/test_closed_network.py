"""No command, page or report needs the network, or asks it for anything: every command runs with it closed.

The whole suite runs so (`closed/sitecustomize.py`, put in force by conftest.py); here are the proof that the door shuts,
and what every command says where it would have to open. That each runs with it closed `test_gold.py` shows.
"""

import re
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from closed import sitecustomize as network
from closed_calls import external
from every_command import RUNS, M, fill


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a little of all data that commands read."""
    folder = tmp_path_factory.mktemp("closed")
    fill(folder)
    return folder


def test_every_command_refuses_to_fetch_a_sample_offline_and_says_how(
    place: Path, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in place.iterdir():
        if path.name in ("texts.txt", "labelled", "paper"):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    earlier = {"--result"}  # results of other commands, which are not there
    wrong = {}
    for command, words in RUNS.items():
        if M not in words or command in ("fetch", "atlas lookup"):  # the atlas knows samples by name
            continue
        kept = [word for before, word in pairwise(["", *words]) if not {before, word} & earlier]
        if command == "verify":
            assert run("fingerprint", M, "-o", "print.json")[0] == 0
        code, _, err = run(
            *command.split(), *(re.sub(rf"^{M}$|tuned/seed-42/model", "minilm-l6", word) for word in kept)
        )
        if not code or "run: outlierlens fetch minilm-l6" not in err:
            wrong[command] = (code, err)
    assert wrong == {}
    assert not (tmp_path / "cache").exists()


def test_what_a_page_loads_is_seen() -> None:
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; connect-src 'none'\">"
    assert external(policy + "<a href='https://a.example'>paper</a><img src='data:image/png;base64,'>") == []
    assert external(policy + "<link href=https://a.example/x.css rel=stylesheet><img src=x.png>") == [
        "link https://a.example/x.css",
        "img x.png",
    ]
    assert external("<p>") == ["no Content-Security-Policy that forbids everything"]


TRIES = """
import socket, urllib.request
for attempt in (
    lambda: socket.getaddrinfo("pypi.example", 443),
    lambda: socket.create_connection(("203.0.113.1", 443), 1),
    lambda: urllib.request.urlopen("http://203.0.113.2/", timeout=1),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"?", ("203.0.113.3", 53)),
    lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 443)),
):
    try:
        attempt()
    except OSError as error:
        print(error)
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_door_is_shut_here_and_in_processes_and_says_who_knocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv(network.LOG, str(log))
    exec(TRIES, {})
    here = capsys.readouterr().out
    knocked = log.read_text().splitlines()
    assert len(knocked) == 5
    assert all(f"closed network: {one}" in line for one, line in zip(knocked, here.splitlines(), strict=True))
    log.unlink()
    there = subprocess.run([sys.executable, "-W", "ignore", "-c", TRIES], capture_output=True, text=True, check=True)
    assert (there.stdout, log.read_text().splitlines()) == (here, knocked)
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()
