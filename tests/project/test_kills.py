"""Commands that write are killed at random moments, or refused by the system: the same command then ends as if undisturbed.

A moment is an event of the file system in the folder of the command: a file is opened for writing, renamed or removed, a
folder is made or removed. OUTLIERLENS_KILLS sets the number of kills (12), OUTLIERLENS_SEED the seed (0).
"""

import importlib
import importlib.util
import json
import os
import random
import resource
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from every_command import M, decoder
from finetune_runs import tiny, write_data
from moments import die, until

KILLS = int(os.environ.get("OUTLIERLENS_KILLS", "12"))
SEED = int(os.environ.get("OUTLIERLENS_SEED", "0"))
CHANGING = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")
LIMIT = 20_000  # bytes of a file; each command writes a larger one
# Of JSON: clocks, and digests of files that hold the time.
NOT_COMPARED = {"created", "seconds", "files"}
QUIET = ("--device", "cpu", "--no-progress", "-q")

# Words by name. What ends in "again" replaces what an earlier run wrote.
COMMANDS = {
    "file and chart again": ("prune", "check", M, M, "--dims", "8", "--chart", "out.html", "-o", "out.json", "--overwrite",
                             "-q"),
    "report": ("track", "mini-bert", "-o", "out", "--no-progress", "-q"),
    "report again": ("track", "mini-bert", "-o", "out", "--overwrite", "--no-progress", "-q"),
    "space": ("explore", M, "--space", "out"),
    "folder again": ("repair", "{data}/decoder", "--fit", "fp8", "--data", "{data}/texts.txt", "--limit", "4",
                     "--max-length", "16", "-o", "out", "--overwrite", *QUIET),
    "training": ("finetune", "{data}/tiny", "--task", "regress", "--data", "{data}/labelled", "--text-column", "text",
                 "--label-column", "value", "--epochs", "2", "--batch-size", "8", "-o", "out", "--precision", "float32",
                 *QUIET),
}  # fmt: skip
if importlib.util.find_spec("gradio") is None:
    del COMMANDS["space"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose states are too large for fp8, a tiny encoder, texts and scored examples."""
    import torch

    folder = tmp_path_factory.mktemp("data")
    decoder(folder / "decoder")
    tiny(folder / "tiny")
    write_data(folder / "labelled")
    torch.set_num_threads(1)  # threads do not survive a fork
    (folder / "texts.txt").write_text("".join(f"The film was number {i}, and it was good.\n" for i in range(8)))
    return folder


def spoken(name: str, data: Path) -> list[str]:
    """The words of a command."""
    return [word.format(data=data) for word in COMMANDS[name]]


def ran(name: str, data: Path, folder: Path, prepare: Callable[[], Any] = lambda: None) -> int:
    """The exit status of a command in `folder`, in a child of this process, behind `prepare` there."""
    pid = os.fork()
    if pid:
        until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 70
    try:
        from outlierlens.cli import main

        os.chdir(folder)
        sys.argv = ["outlierlens", *spoken(name, data)]
        prepare()
        main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    finally:
        os._exit(status)


def heard(folder: Path, tell: Callable[[], Any]) -> None:
    """Have this process call `tell` before each event of the file system in `folder`, to its end."""

    def audited(event: str, given: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
        path = given[0] if writes or event in CHANGING else None
        if isinstance(path, str | os.PathLike) and Path(path).absolute().is_relative_to(folder):
            tell()

    sys.addaudithook(audited)


def killed_at(folder: Path, number: int) -> Callable[[], None]:
    """Have this process killed before the event of that number."""
    left = iter(range(number - 1))
    return lambda: heard(folder, lambda: next(left, None) is None and die())


def n_events(name: str, data: Path, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Events of an undisturbed run, in this process: what it imports, no child imports again."""
    count: list[int] = []
    heard(folder, lambda: count.append(1))
    patch.setattr("outlierlens.report.files.can_export", lambda: False)  # its threads do not survive a fork
    patch.chdir(folder)
    patch.setattr(sys, "argv", ["outlierlens", *spoken(name, data)])
    with pytest.raises(SystemExit) as stop:
        importlib.import_module("outlierlens.cli").main()
    assert not stop.value.code
    return len(count)


def lasting(value: Any) -> Any:
    """JSON without what a clock says."""
    if isinstance(value, dict):
        return {key: lasting(one) for key, one in value.items() if key not in NOT_COMPARED}
    return [lasting(one) for one in value] if isinstance(value, list) else value


def assert_same(one: Path, other: Path) -> None:
    """The same files, with the same content but for what a clock says."""
    names = [{str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in (one, other)]
    assert names[0] == names[1]
    for name in names[0]:
        pair = one / name, other / name
        if name.endswith(".safetensors"):
            weights = [load_file(path) for path in pair]
            assert weights[0].keys() == weights[1].keys()
            for tensor, values in weights[0].items():
                np.testing.assert_allclose(weights[1][tensor], values, rtol=1e-5, atol=1e-7)
        elif name.endswith(".json"):
            assert lasting(json.loads(pair[0].read_text())) == lasting(json.loads(pair[1].read_text())), name
        else:
            assert pair[1].stat().st_size > 0 or not pair[0].stat().st_size


@pytest.mark.parametrize("name", list(COMMANDS))
def test_killed_or_refused_and_begun_again(
    name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(f"{SEED} {name}")
    needed = any("{data}" in word for word in COMMANDS[name])
    data = request.getfixturevalue("data") if needed else tmp_path
    whole = tmp_path / "whole"
    whole.mkdir()
    n = n_events(name, data, whole, monkeypatch)
    assert n >= 2

    def begun(label: str) -> Path:
        folder = tmp_path / label
        if name.endswith("again"):
            shutil.copytree(whole, folder)
        else:
            folder.mkdir()
        return folder

    def ends(folder: Path, why: object) -> None:
        if name.endswith("again") or name == "training" or not (folder / "out").exists():
            assert ran(name, data, folder) == 0, why
        left = [path for path in folder.rglob("*") if path.suffix in (".part", ".lock") or ".before-" in path.name]
        assert not left, why
        assert_same(whole, folder)

    for number in range(max(1, KILLS // len(COMMANDS))):
        folder, moment = begun(f"killed-{number}"), chance.randint(1, n)
        assert ran(name, data, folder, killed_at(folder, moment)) == -signal.SIGKILL, moment
        assert_nothing_is_half(name, whole, folder)
        ends(folder, moment)

    folder = begun("refused")
    capfd.readouterr()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    assert ran(name, data, folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))) == (
        2 if name == "file and chart again" else 1
    )
    said = capfd.readouterr().err.splitlines()
    assert said[-1].startswith("error: ")
    assert "out" in said[-1].partition(": ")[2].partition(": ")[0]  # the place
    assert said[-1].endswith("and run it again: outlierlens " + shlex.join(spoken(name, data)))
    assert not any("Traceback" in line for line in said)
    assert_nothing_is_half(name, whole, folder)
    ends(folder, said[-1])


def assert_nothing_is_half(name: str, whole: Path, folder: Path) -> None:
    """What stands under its own name is whole."""
    if name == "folder again" and not (folder / "out").exists():
        assert list(folder.glob("out.before-*"))
    elif name in ("report", "space", "folder again") and (folder / "out").exists():
        assert_same(whole / "out", folder / "out")
    for path in (path for path in folder.rglob("*.json") if ".part/" not in str(path) and name != "training"):
        json.loads(path.read_text())
    for path in folder.glob("out.html"):
        assert path.read_text().rstrip().endswith("</html>")
