"""Options, output and progress that the commands share."""

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from outlierlens.cli import drop_output
from outlierlens.errors import OF_THE_MACHINE, BadInput, OutlierlensError, need, printable, told

if TYPE_CHECKING:
    from outlierlens.view.charts.base import Chart, PictureKind

# Exit codes of commands that check: nothing could be checked; the check failed.
UNUSABLE, FAILED = 2, 3
CHART_KINDS: "dict[str, PictureKind | None]" = {".html": None, ".svg": "svg", ".png": "png", ".json": "vl.json"}


@contextmanager
def unusable_is_2() -> Iterator[None]:
    """Errors end the process with code 2, so that a gate can tell them from a difference (3)."""
    try:
        yield
        sys.stdout.flush()  # a full disk shows here
    except BrokenPipeError:
        raise  # the reader went away: nothing is wrong with what was checked
    except (OutlierlensError, *OF_THE_MACHINE) as error:
        drop_output()  # or `main` would meet the same full disk again
        warn(f"error: {told(error)}")
        raise SystemExit(UNUSABLE) from None


def reproduce() -> str:
    """The command line that is running, quoted for a shell, without the token: results are made to be shared."""
    words, hidden = [], False
    for word in sys.argv[1:]:
        if not hidden and not word.startswith("--token"):
            words.append(word)
        hidden = word == "--token"
    return command(*words)


def command(*words: str | Path) -> str:
    """A command line of ours, quoted for a shell."""
    return "outlierlens " + shlex.join(map(str, words))


def say(text: str) -> None:
    """One line on stdout, control characters removed."""
    print(printable(text))


def warn(text: str) -> None:
    """One line on stderr."""
    print(printable(text), file=sys.stderr)


class Progress:
    """A progress bar on stderr, when it is a terminal and progress is wanted; otherwise a line per step."""

    def __init__(self, show: bool) -> None:
        self.show = show
        self._bar: Any = None
        self._task: Any = None
        self._label = ""

    def __call__(self, label: str, done: int, total: int) -> None:
        """Report that `done` of `total` units are finished."""
        if not self.show:
            return
        if not sys.stderr.isatty():
            if label != self._label:
                self._label = label
                print(f"{label} ({done}/{total})", file=sys.stderr)
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(label, total=total)
        self._bar.update(self._task, description=label, completed=done, total=total)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def resumable(rows: Path | None, *, hint: bool = True) -> Iterator[None]:
    """On Ctrl-C or SIGTERM keep what is measured, say how to go on, and end with exit code 130 or 143.

    `hint`: say that --rows FILE would keep it, where there is no file.
    """
    terminated = False

    def terminate(*_: Any) -> NoReturn:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt  # nothing finer: some libraries raise a bare one for whatever a handler raised in them

    # Only the main thread may set a handler, and only it is interrupted.
    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if here else None
    try:
        yield
    except KeyboardInterrupt:
        again = reproduce().replace(" --overwrite", "")
        kept = "nothing was kept" + " (no --rows FILE)" * hint
        if rows:
            there = f"{rows} keeps what was measured; go on with: {again}"
            kept = there if rows.exists() else f"nothing was measured yet; start again with: {again}"
        warn(f"{'terminated' if terminated else 'interrupted'}; {kept}")
        raise SystemExit(143 if terminated else 130) from None
    finally:
        if here:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def check_chart(path: Path | None, *, replace: bool, remedy: str = "use --overwrite") -> None:
    """Raise before any work where the chart could not be drawn to `path`.

    Raises:
        BadInput: an ending that says nothing, or a file that exists and may not be replaced; `remedy` says how it may.
        MissingExtra: pictures need a library that is not installed.
    """
    if path is None:
        return
    if path.suffix.lower() not in CHART_KINDS:
        raise BadInput(f"--chart {path}: the ending says what is drawn; use {', '.join(CHART_KINDS)}")
    if path.suffix.lower() in (".svg", ".png"):
        need("vl_convert", "charts", f"drawing {path}")
    if path.exists() and not replace:
        raise BadInput(f"{path} exists; name another file for --chart, or {remedy}")


def write_chart(path: Path, chart: "Chart") -> Path:
    """Draw to `path` what its ending says."""
    from outlierlens.report import chart_page
    from outlierlens.results.safe_files import write_bytes
    from outlierlens.view.charts.base import picture

    kind = CHART_KINDS[path.suffix.lower()]
    return write_bytes(path, chart_page(chart).encode() if kind is None else picture(chart, kind))
