"""Commands that write are killed at random writes, or refused by the system: the same command then ends as if undisturbed.

`scripts/kills.py` kills them. OUTLIERLENS_KILLS sets the number of kills (12), OUTLIERLENS_SEED the seed (0).
"""

import os
import random
import resource
import shlex
import shutil
import signal
import sys
from pathlib import Path

import faults
import kills
import pytest

from every_command import M, decoder
from finetune_runs import tiny, write_data

KILLS = int(os.environ.get("OUTLIERLENS_KILLS", "12"))
SEED = int(os.environ.get("OUTLIERLENS_SEED", "0"))
LIMIT = 20_000  # bytes of a file; each command writes a larger one
QUIET = ("--device", "cpu", "-q")
SMALL = ("--limit", "2", "--max-length", "16", "--random", "1", "--matched", "0")

# Words by name. What ends in "again" replaces what an earlier run wrote.
COMMANDS = {
    "file and chart again": ("prune", "check", M, M, "--dims", "8", "--chart", "out.html", "-o", "out.json", "--overwrite",
                             "-q"),
    "report": ("report", M, *SMALL, "-o", "out", *QUIET),
    "report again": ("report", M, *SMALL, "-o", "out", "--overwrite", *QUIET),
    "folder again": ("repair", "{data}/decoder", "--fit", "fp8", "--data", "{data}/texts.txt", "--limit", "4",
                     "--max-length", "16", "-o", "out", "--overwrite", *QUIET),
    "training": ("lab", "finetune", "{data}/tiny", "--task", "regress:label=value", "--data", "{data}/labelled:column=text",
                 "--epochs", "2", "--batch-size", "8", "-o", "out", "--precision", "float32",
                 *QUIET),
}  # fmt: skip


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


class Refused(kills.Kills):
    """No file of the process may grow beyond LIMIT, as on a full disk."""

    def start(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        super().start()


def assert_nothing_is_half(name: str, before: Path, whole: Path, work: Path) -> None:
    """What stands under its own name is whole."""
    assert kills.half(before, work) == []
    if name == "folder again" and not (work / "out").exists():
        assert list(work.glob("out.before-*"))
    elif name == "folder again" or (
        name == "report" and (work / "out" / "results.json").exists()
    ):  # the result is the last
        assert kills.other(whole / "out", work / "out") == []


@pytest.mark.parametrize("name", list(COMMANDS))
def test_killed_or_refused_and_begun_again(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{SEED} {name}")
    needed = any("{data}" in word for word in COMMANDS[name])
    words = spoken(name, request.getfixturevalue("data") if needed else tmp_path)
    before, work, whole = (tmp_path / one for one in ("before", "work", "whole"))
    first = before if name.endswith("again") else tmp_path / "first"
    for folder in {before, first}:
        folder.mkdir()
    monkeypatch.chdir(first)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("OUTLIERLENS_CACHE", "")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert faults.called(words, first) == 0  # here: what it imports, no copy imports again
    undisturbed = faults.run(words, kills.restored(before, work), kills.Kills(work))
    assert undisturbed.status == 0, undisturbed.said
    assert len(undisturbed.seen) >= 2
    shutil.copytree(work, whole)

    def ends(why: object) -> None:
        assert kills.goes_on(words, tmp_path, 0) == [], why
        left = [path for path in work.rglob("*") if path.suffix in (".part", ".lock") or ".before-" in path.name]
        assert not [path for path in left if not path.is_relative_to(work / "cache")], why

    for turn in range(max(1, KILLS // len(COMMANDS))):
        at = chance.randint(1, len(undisturbed.seen))
        kill = kills.Kills(work, at, torn=turn % 2 == 1)
        assert faults.run(words, kills.restored(before, work), kill).status == -signal.SIGKILL, at
        assert_nothing_is_half(name, before, whole, work)
        ends(undisturbed.seen[at - 1])

    refused = faults.run(words, kills.restored(before, work), Refused(work, -1))
    assert refused.status == (2 if name == "file and chart again" else 1)
    said = refused.said.splitlines()
    assert said[-1].startswith("error: ")
    assert "out" in said[-1].partition(": ")[2].partition(": ")[0]  # the place
    assert said[-1].endswith("and run it again: outlierlens " + shlex.join(words))
    assert "Traceback" not in refused.said
    assert_nothing_is_half(name, before, whole, work)
    ends(said[-1])
