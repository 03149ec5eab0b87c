"""Options, output and progress that the commands share."""

import io
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from outlierlens.checkpoints.samples import telling
from outlierlens.cli import drop_output, reproduce
from outlierlens.errors import BadInput, need, printable, takes_a_line, told
from outlierlens.results.safe_files import check_file, naming

if TYPE_CHECKING:
    from outlierlens.view.charts.base import Chart, PictureKind

# Exit codes of commands that check: nothing could be checked; the check failed.
UNUSABLE, FAILED = 2, 3
WAITS_SECONDS = 1.0  # without a word, before a bar says that something goes on
CHART_KINDS: "dict[str, PictureKind | None]" = {".html": None, ".svg": "svg", ".png": "png", ".json": "vl.json"}


@contextmanager
def unusable_is_2() -> Iterator[None]:
    """Errors end the process with code 2, so that a gate can tell them from a difference (3)."""
    try:
        yield
        sys.stdout.flush()  # a full disk shows here
    except BrokenPipeError:
        raise  # the reader went away: nothing is wrong with what was checked
    except Exception as error:
        if not takes_a_line(error):
            raise
        drop_output()  # or `main` would meet the same full disk again
        warn(f"error: {told(error, reproduce())}")
        raise SystemExit(UNUSABLE) from None


def say(text: str) -> None:
    """One line on stdout, control characters removed."""
    print(printable(text))


def warn(text: str) -> None:
    """One line on stderr."""
    print(printable(text), file=sys.stderr)


class Progress:
    """How far the work is: where stderr is a terminal, one bar for all that a person waits for.

    The bar comes by itself where nothing was told for a second (libraries are imported, weights are read), stands
    for the bars of other libraries, shows what `arriving` tells of a download, and goes where something is printed.
    """

    def __init__(self, show: bool, label: str = "working") -> None:
        self.show, self._label, self._done = show and sys.stderr.isatty(), label, 0
        self._bar: Any = None
        self._task: Any = None
        self._ended = threading.Event()
        self._lock = threading.RLock()
        self._inside = ExitStack()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Report that `done` of `total` units are finished."""
        if not self.show:
            return
        label = printable(label)
        with self._lock:
            if (done, total) == (0, 1):  # nothing is counted: the label of what is waited for
                self._label = label
                if self._bar is not None or self._ended.is_set():
                    self._draw(label)
            else:
                self._ended.set()  # of waiting
                self._draw(label, done, total)

    def _draw(self, label: str, done: int = 0, total: int | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        with self._lock:
            if self._bar is None:
                time_left = TimeRemainingColumn(compact=True)
                columns = [TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[of]}")]
                console = Console(stderr=True)
                self._bar = Bar(
                    *columns, TimeElapsedColumn(), TextColumn("left:"), time_left,
                    console=console, transient=True, redirect_stdout=False,
                )  # fmt: skip
                self._bar.start()
                self._task = self._bar.add_task(label, total=total, of="")
            if done < self._done or total != self._bar.tasks[0].total:
                self._bar.reset(self._task, total=total)  # the time left is that of this step
            of = "" if total is None else f"{done:,}/{total:,}"
            self._done = done
            self._bar.update(self._task, description=label, completed=done, of=of)

    def close(self) -> None:
        """Take the bar away."""
        with self._lock:
            self._ended.set()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _wait(self) -> None:
        """Draw the bar where nothing has told how far it is for a while."""
        if not self._ended.wait(WAITS_SECONDS):
            with self._lock:
                if not self._ended.is_set():
                    self._draw(self._label)

    def __enter__(self) -> "Progress":
        if self.show:
            self._inside.enter_context(telling(self))
            self._inside.enter_context(_bars_of_others(self))
            self._inside.enter_context(redirect_stdout(_BarFirst(sys.stdout, self)))
            threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._inside.close()
        self.close()


class _BarFirst:
    """A stream before whose writes the bar goes."""

    def __init__(self, stream: IO[str], progress: Progress) -> None:
        self._stream, self._progress = stream, progress

    def write(self, text: str) -> int:
        """Take the bar away and write."""
        self._progress.close()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _bars_of_others(progress: Progress) -> Iterator[None]:
    """What other libraries tell by tqdm (files of the hub, weights that are loaded) is told by `progress`."""
    import tqdm.std

    bar = tqdm.std.tqdm
    made, display = bar.__init__, bar.display

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named | {"file": _NullTerminal()})

    def told(self: Any, *_: Any, **__: Any) -> bool:
        if self.total and self.n < self.total:
            n, total, what = (self.n, self.total, "") if self.unit != "B" else (self.n >> 20, self.total >> 20, ", MB")
            progress(f"{self.desc or 'working'}{what}".replace(": ,", ","), int(n), int(total))
        return True

    bar.__init__, bar.display = init, told
    try:
        yield
    finally:
        bar.__init__, bar.display = made, display


class _NullTerminal(io.StringIO):
    """A terminal that shows nothing."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def resumable(rows: Path | None) -> Iterator[None]:
    """On Ctrl-C or SIGTERM keep measurements, say how to continue, and end with exit code 130 or 143."""
    terminated = False

    def terminate(*_: Any) -> NoReturn:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt  # nothing finer: some libraries raise a bare one for whatever a handler raised in them

    # Only the main thread may set a handler, and only it is interrupted.
    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if here else None
    try:
        with naming(rows, rows) if rows else nullcontext():
            yield
    except KeyboardInterrupt:
        again = reproduce("--overwrite")
        kept = "nothing was kept"
        if rows:
            there = f"{rows} keeps the finished measurements; continue with: {again}"
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
        raise BadInput(f"--chart {path}: the ending sets the format; use {', '.join(CHART_KINDS)}")
    if path.suffix.lower() in (".svg", ".png"):
        need("vl_convert", "charts", f"drawing {path}")
    if path.is_file() and not replace:
        raise BadInput(f"{path} exists; name another file for --chart, or {remedy}")
    check_file(path, replace=True)


def drawn(path: Path, chart: "Chart") -> bytes:
    """What the ending of `path` says, drawn."""
    from outlierlens.view.charts.base import picture
    from outlierlens.view.page import chart_page

    kind = CHART_KINDS[path.suffix.lower()]
    return chart_page(chart).encode() if kind is None else picture(chart, kind)
