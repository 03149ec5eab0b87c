"""scripts/fuzz.py, faults.py and kills.py, small: every reader on some mutants, and findings that are planted."""

import os
import signal
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import faults
import fuzz
import fuzz_mutants
import fuzz_readers
import kills
import numpy as np
import pytest

MUTANTS = 12
LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is looked up in /proc")


@pytest.mark.parametrize("name", fuzz_readers.READERS)
def test_every_reader_reads_what_is_good_and_refuses_the_rest_in_a_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    reader = fuzz_readers.READERS[name]()
    path = tmp_path / "model" / reader.file
    for file, content in {**reader.beside, reader.file: b""}.items():
        (tmp_path / "model" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / file).write_bytes(content)
    for seed in reader.seeds[:5]:
        path.write_bytes(seed.wrap(seed.content))
        reader.read(path)
    for number in range(MUTANTS):
        content, at = fuzz_mutants.mutant(reader.seeds, Random(f"7 {name} {number}"))
        path.write_bytes(reader.seeds[at].wrap(content))
        said, where = fuzz.tried(reader, path)
        assert said in ("read", "refused"), f"mutant {number}: {said} at {where}"


def test_mutants_differ_from_their_seeds_and_come_again() -> None:
    seeds = fuzz_readers.seeds('{"a": [1, 2, {"b": "c"}]}', b"\x00\x01\x02\x03" * 20)
    made = [fuzz_mutants.mutant(seeds, Random(n)) for n in range(300)]
    assert made == [fuzz_mutants.mutant(seeds, Random(n)) for n in range(300)]
    assert sum(content == seeds[at].content for content, at in made) < 60
    assert len({content for content, _ in made}) > 150


# --- findings ----------------------------------------------------------------------------------------------------


def wrong(path: Path) -> None:
    if path.read_bytes() != b"good":
        raise KeyError("x")


def large(path: Path) -> None:
    if path.read_bytes() != b"good":
        np.ones(40_000_000)


def endless(path: Path) -> None:
    while path.read_bytes() != b"good":
        pass


def dead(path: Path) -> None:
    if path.read_bytes() != b"good":
        os.kill(os.getpid(), signal.SIGKILL)


@LINUX
@pytest.mark.parametrize(
    ("read", "said"),
    [
        (wrong, "KeyError at ?: KeyError: 'x'"),
        (large, "read with 3"),
        (endless, "more than 0.3 s at mutant 1"),
        (dead, "the process ended with -9 at mutant 1"),
    ],
)
def test_what_is_found(
    read: Callable[[Path], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made = fuzz_readers.Reader("x", fuzz_readers.seeds(b"good"), read)
    monkeypatch.setitem(fuzz.READERS, "planted", lambda: made)
    if read is endless:
        monkeypatch.setattr(fuzz, "SECONDS", 0.3)
    monkeypatch.setattr(fuzz, "MOST_FINDINGS", 2)
    for name in ("OUTLIERLENS_CACHE", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # what main sets is put back
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--reader", "planted", "--mutants", "3", "--keep", str(tmp_path)])
    assert fuzz.main() == 1
    shown = capsys.readouterr().out
    assert said in shown
    kept = [path for path in (tmp_path / "planted").iterdir() if path.name.endswith("-x")]
    assert kept
    assert all(path.read_bytes() != b"good" for path in kept)


@LINUX
def test_a_reader_that_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name in ("OUTLIERLENS_CACHE", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--reader", "rows", "--mutants", "60", "--keep", str(tmp_path)])
    assert fuzz.main() == 0, capsys.readouterr().out
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("rows"))
    assert row[1] == "60"
    assert int(row[2]) + int(row[3]) == 60
    assert int(row[2]) > 0


# --- faults ------------------------------------------------------------------------------------------------------


def written(folder: Path) -> Any:
    return sorted((path.name, path.read_text()) for path in folder.iterdir())


def careful(_: Any, folder: Path, fault: Any) -> int:
    from outlierlens.results.safe_files import write_text

    if fault is not None:
        fault.start()
    try:
        write_text(folder / "a", "1")
        write_text(folder / "b", "2")
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def careless(_: Any, folder: Path, fault: Any) -> int:
    if fault is not None:
        fault.start()
    if (folder / "a").exists():
        print("error: it is there", file=sys.stderr)
        return 1
    (folder / "a").write_text("1")
    (folder / "b").write_text("2")
    return 0


@LINUX
@pytest.mark.parametrize(("program", "n_least", "bad"), [(careful, 10, False), (careless, 4, True)])
def test_every_write_fails_in_turn(
    program: Callable[..., int], n_least: int, bad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "called", program)
    command = faults.Command(lambda _: [], written)
    whole = faults.run([], tmp_path / "whole", faults.Writes(tmp_path / "whole"))
    assert whole.status == 0
    assert len(whole.seen) >= n_least, whole.seen
    wanted = written(tmp_path / "whole")
    said = [
        faults.trial(command, tmp_path, faults.Writes(tmp_path / "faulty", number, full=full), wanted)
        for number, full in faults.chosen(faults.Writes, whole.seen)
    ]
    assert any(said) is bad, said


@LINUX
def test_every_allocation_of_numpy_fails_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(_: Any, folder: Path, fault: Any) -> int:
        from outlierlens.checkpoints.base import widen

        raw = np.zeros(64, np.uint8)
        if fault is not None:
            fault.start()
        try:
            (folder / "a").write_text(str(widen(raw, "F16", (32,), "x").sum()))
        except MemoryError:
            print("error: memory", file=sys.stderr)
            return 1
        return 0

    monkeypatch.setattr(faults, "called", program)
    whole = faults.run([], tmp_path / "whole", faults.Allocations(tmp_path / "whole"))
    assert whole.status == 0, whole.said
    assert whole.seen
    assert all(place.startswith("checkpoints/base.py:") for place in whole.seen)
    ended = faults.run([], tmp_path / "faulty", faults.Allocations(tmp_path / "faulty", 1))
    assert (ended.status, ended.said) == (1, "error: memory\n")


# --- kills -------------------------------------------------------------------------------------------------------


def test_a_file_that_is_half_is_found_and_one_that_waits_for_its_end_is_not(tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    for folder in (before, now):
        (folder / "run").mkdir(parents=True)
        (folder / "kept.json").write_text('{"a": ')  # it was half before
    (now / "run" / "whole.json").write_text('{"a": 1}')
    (now / "run" / "rows.jsonl").write_text('{"a": 1}\n{"a": 2')  # the last row of a process that ended in it
    (now / "run" / ".making-x").mkdir()
    (now / "run" / ".making-x" / "result.json").write_text('{"a": ')
    assert kills.half(before, now) == []
    (now / "run" / "result.json").write_text('{"a": ')
    (now / "run" / "bad.jsonl").write_text('{"a"\n{"a": 2}\n')
    (now / "page.html").write_text("<html><p>")
    assert [one.partition(" ")[0] for one in kills.half(before, now)] == [
        "page.html",
        "run/bad.jsonl",
        "run/result.json",
    ]


def test_what_differs_from_an_undisturbed_run_is_named(tmp_path: Path) -> None:
    whole, now = tmp_path / "whole", tmp_path / "now"
    for folder, value in ((whole, 1.0), (now, 1.0 + 1e-9)):
        folder.mkdir()
        (folder / "a.json").write_text(f'{{"value": {value!r}, "created": "{folder.name}"}}')
        (folder / "run.lock").touch()
    assert kills.other(whole, now) == []
    (now / "a.json").write_text('{"value": 2}')
    (now / ".x.part").touch()
    (whole / "b.md").touch()
    assert kills.other(whole, now) == [".x.part is left", "b.md is missing", "a.json differs"]


@LINUX
def test_a_process_ends_before_its_write_or_in_the_middle_of_it(tmp_path: Path) -> None:
    for torn, relative in product((False, True), repeat=2):
        folder = tmp_path / f"{torn} {relative}"
        folder.mkdir()
        pid = os.fork()
        if not pid:
            try:
                killed = kills.Kills(folder, 2, torn=torn)  # the first step opens the file
                os.chdir(folder)
                killed.start()
                name = "file" if relative else folder / "file"
                with open(name, "wb", buffering=0) as file:  # noqa: PTH123 - what scripts/faults.py takes the place of
                    file.write(b"abcdef")
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert (folder / "file").read_bytes() == b"abc" * torn
