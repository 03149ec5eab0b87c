"""One bar in a terminal for all that is waited for: steps, downloads, imports, bars of other libraries; none in a pipe."""

import io
import sys

import pytest
from tqdm.auto import tqdm

from outlierlens.checkpoints import samples
from outlierlens.cli import experiment
from outlierlens.cli.experiment import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def streams(monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, io.StringIO]:
    """(stderr, a terminal; stdout, a pipe)"""
    err, out = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(experiment, "WAITS_SECONDS", 1e9)  # nothing comes by itself
    return err, out


def shown(err: io.StringIO) -> str:
    return " ".join(err.getvalue().split())


def test_steps_downloads_and_bars_of_others_are_one_bar_that_goes_before_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    err, out = streams(monkeypatch)
    with Progress(True) as progress:
        progress("switching off", 1, 4)
        progress._bar.refresh()
        assert "switching off" in shown(err)
        assert "1/4" in shown(err)
        samples.arriving("fetching a sample", 12_000_000, 93_000_000)
        progress._bar.refresh()
        assert "fetching a sample, MB" in shown(err)
        assert "12/93" in shown(err)
        with tqdm(total=10, desc="Loading weights", mininterval=0) as bar:
            bar.update(3)
            progress._bar.refresh()
            assert "Loading weights" in shown(err)
            assert "3/10" in shown(err)
        print("the answer")
        assert progress._bar is None
    assert out.getvalue() == "the answer\n"
    assert sys.stdout is out
    assert "the answer" not in err.getvalue()
    assert not samples.is_told()
    with tqdm(total=2, desc="afterwards", mininterval=0, file=err) as bar:
        bar.update()
    assert "afterwards" in err.getvalue()


def test_a_bar_comes_by_itself_where_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    err, _ = streams(monkeypatch)
    monkeypatch.setattr(experiment, "WAITS_SECONDS", 0)
    progress = Progress(True)
    progress("scan: reading", 0, 1)  # of what nothing is counted, only the label
    assert "scan: reading" not in shown(err)
    progress._wait()
    progress("scan: looking", 0, 1)
    progress.close()
    assert "scan: looking" in shown(err)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    with Progress(True) as progress:
        for done in (1, 2):
            progress("switching off", done, 2)
        samples.arriving("fetching a sample", 1, 2)
    assert err.getvalue() == ""
