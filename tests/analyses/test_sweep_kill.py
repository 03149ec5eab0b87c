"""A sweep that is killed at any moment and started again ends with the rows and the table of one that was not."""

import importlib
import os
import random
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from architectures import FAMILIES, build
from moments import die, end_at, until
from outlierlens.results.document import load
from row_files import assert_same_table, measured_rows

KILLS = 10


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], list[str]]:
    """The words of a sweep of a tiny saved model into a directory: enough work for ten interruptions."""
    from conftest import Words

    root = tmp_path_factory.mktemp("killed")
    build(FAMILIES["gpt2"], "CausalLM").save_pretrained(root / "model")
    Words.build(kind="causal").save_pretrained(root / "model")
    lines = (" ".join(f"w{(7 * i + j * j) % 35}" for j in range(9 + i % 7)) for i in range(80))
    (root / "text.txt").write_text("\n".join(lines))

    def words(directory: Path) -> list[str]:
        return [
            "sweep", str(root / "model"), "--data", str(root / "text.txt"), "-o", str(directory / "sweep.json"),
            "--sets", "3,5;7,1",
            "--max-length", "12", "--precision", "1e-5",
            "--random", "40", "--matched", "3", "--dtype", "float32", "--device", "cpu", "-q",
        ]  # fmt: skip

    return words


def rows_in(directory: Path) -> Path:
    """The one file of rows that was kept below a directory."""
    (rows,) = (directory / "model-sweep").glob("*.jsonl")
    return rows


def ran(words: list[str], prepare: Callable[[], None] = lambda: None) -> int:
    """Run the real command in a child of this process, which has torch already, after `prepare` there; its exit status."""
    pid = os.fork()
    if pid:
        until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 70
    try:
        from outlierlens.cli import main

        os.environ["OUTLIERLENS_RUNS"] = str(Path(words[words.index("-o") + 1]).parent)
        sys.argv = ["outlierlens", *words]
        prepare()
        main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    finally:
        os._exit(status)


def killed_at(size: int) -> Callable[[], None]:
    """Have the process killed when its rows are so many bytes, wherever in a line that is."""

    def torn(path: Path) -> None:
        os.truncate(path, size)
        die()

    return lambda: end_at(lambda path, _: path.stat().st_size >= size, torn)


@pytest.fixture(scope="module")
def whole(command: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an uninterrupted run."""
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    directory = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        # In this process: what it imports, no child imports again.
        patch.setenv("OUTLIERLENS_RUNS", str(directory))
        patch.setattr(sys, "argv", ["outlierlens", *command(directory)])
        with pytest.raises(SystemExit) as stop:
            importlib.import_module("outlierlens.cli").main()
    assert not stop.value.code
    return directory


def test_killed_ten_times_and_resumed(command: Any, whole: Path, tmp_path: Path) -> None:
    chance = random.Random(20)
    complete = rows_in(whole).stat().st_size
    sizes = []
    # Ten moments spread over the whole file, in order: each run gets some way beyond the one before it.
    for target in sorted(chance.randrange(1, int(complete * 0.95)) for _ in range(KILLS)):
        assert ran(command(tmp_path), killed_at(target)) == -signal.SIGKILL
        sizes.append(rows_in(tmp_path).stat().st_size)
    assert sizes == sorted(set(sizes))
    assert not (tmp_path / "sweep.json").exists()
    assert ran(command(tmp_path)) == 0
    assert measured_rows(rows_in(tmp_path)).keys() == measured_rows(rows_in(whole)).keys()
    assert_same_table(load(tmp_path / "sweep.json"), load(whole / "sweep.json"))


@pytest.mark.parametrize("share", [0.11, 0.97])
def test_a_line_torn_anywhere_is_measured_again(share: float, command: Any, whole: Path, tmp_path: Path) -> None:
    rows = tmp_path / rows_in(whole).relative_to(whole)
    content = rows_in(whole).read_bytes()
    rows.parent.mkdir()
    rows.write_bytes(content[: int(share * len(content))])
    assert ran(command(tmp_path)) == 0
    assert measured_rows(rows)
    assert_same_table(load(tmp_path / "sweep.json"), load(whole / "sweep.json"))


def test_sigterm_ends_the_real_command_with_143_and_the_line_that_resumes_it(
    command: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in command(tmp_path) if word != "-q"]

    def terminated() -> None:
        end_at(lambda path, _: path.stat().st_size > 2000, lambda _: signal.raise_signal(signal.SIGTERM))

    status = ran(words, terminated)
    out, err = capfd.readouterr()
    assert (status, out) == (143, "")
    (line,) = [line for line in err.splitlines() if line.startswith("terminated")]
    rows = rows_in(tmp_path)
    assert line.startswith(
        f"terminated; {rows.parent} keeps the finished measurements; continue with: outlierlens sweep "
    )
    again = shlex.split(line.partition("continue with: ")[2])
    assert again == ["outlierlens", *words]
    assert measured_rows(rows)
