"""The one command of all experiments: words in, `run` of the experiment's home, the result to screen, file and chart.

Options, output and progress that the commands share.
"""

import dataclasses
import functools
import gc
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from cyclopts import App

from outlierlens.checkpoints.samples import telling
from outlierlens.cli import app, drop_output, reproduce
from outlierlens.errors import BadInput, need, printable, takes_a_line, told
from outlierlens.experiments import BY_NAME, BY_RESULT
from outlierlens.options import build, settings_of
from outlierlens.options.experiment import Experiment
from outlierlens.results.safe_files import alone, check_file, naming, write_together
from outlierlens.session import Session

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


def __getattr__(name: str) -> App:
    """What reads the words of the command `name`."""
    if name not in BY_NAME:
        raise AttributeError(name)
    row = BY_NAME[name]
    return app.command(row.name, row.about, row.asks(), functools.partial(_run, row))


def _run(experiment: Experiment, *, options: Any = None, **groups: Any) -> None:
    names = {"task": "reading", "splits": "reading", "data": "reading", "source": "loading"}
    session = Session(
        **{names.get(group, group): one for group, one in groups.items()},
        name=experiment.name,
        command=reproduce(),
        resumable=resumable,
    )
    session.notice = (lambda _: None) if session.output.quiet else warn
    wanted, label = session.output.tells_progress, f"{experiment.name}: reading"
    file = session.output.output if experiment.writes == "file" else None
    asked = [getattr(options, name, None) for name in experiment.places]
    with ExitStack() as inside:
        inside.enter_context(unusable_is_2() if experiment.gate else nullcontext())
        session.progress = inside.enter_context(Progress(wanted, label))
        check_file(file, replace=session.output.overwrite)
        for place in dict.fromkeys(filter(None, (file, session.output.chart, *asked))):
            inside.enter_context(alone(place))
        run = experiment.run()
        gc.freeze()  # what was imported stays
        gc.enable()  # `main` had no use for it
        if experiment.odd:
            run(session, options)
            return
        found = answer(experiment, session, lambda: fitting(run, session, options))
    if found is not None and (gate := BY_RESULT[type(found).__name__].gate) and getattr(found, gate, False):
        raise SystemExit(FAILED)


def fitting(run: Callable[[Session, Any], Any], session: Session, options: Any) -> Any:
    """What `run` finds; again with half the texts per forward pass wherever memory runs out, until one is too many."""
    while True:
        try:
            return run(session, options)
        except (RuntimeError, MemoryError) as error:
            from outlierlens.models.devices import out_of_memory

            sizes = (session.vectors.batch_size, *(value for _, value in _batch_sizes(options)))
            if not out_of_memory(error) or max(sizes) == 1 or "loaded" not in vars(session):
                raise
        gc.collect()
        session.notice(f"memory ran out at {max(sizes)} texts per forward pass; going on with {max(sizes) // 2}")
        session.vectors = dataclasses.replace(session.vectors, batch_size=max(1, session.vectors.batch_size // 2))
        options = build(options, {path: max(1, value // 2) for path, value in _batch_sizes(options)})


def _batch_sizes(options: Any) -> list[tuple[tuple[str, ...], int]]:
    """(path, value) of each number of texts per forward pass in options; none that an analysis finds by itself."""
    kind: Any = type(options)
    paths = (one.path for one in settings_of(kind).get("batch_size", ()))
    sizes = [(path, functools.reduce(getattr, path, options)) for path in paths]
    return [(path, size) for path, size in sizes if size is not None]


def answer(experiment: Experiment, session: Session, run: Callable[[], Any]) -> Any:
    """The result of `run`, shown, written and drawn as its options say; None where `run` wrote its output itself."""
    from outlierlens.results.document import to_json  # brings numpy, which --help does not need

    output = session.output
    check_chart(output.chart, replace=output.overwrite)
    with resumable(session.kept.folder if experiment.derived else None):
        found = run()
    if found is None:
        return None
    found = with_command(found, session.command)
    files: dict[Path, str | bytes] = {}
    if output.chart is not None:
        files[output.chart] = drawn(output.chart, found.chart())
    if output.output and experiment.writes == "file":
        files[output.output] = to_json(found) + "\n"
    write_together(files)
    tell(session, found)
    if session.then is not None:
        session.then()
    return found


def tell(session: Session, found: Any) -> None:
    """Show the result as the words asked."""
    from outlierlens.results.document import to_json  # brings numpy, which --help does not need

    if session.output.json:
        print(to_json(found, indent=2))
    elif not session.output.quiet:
        print_sections(found, verbose=session.output.verbose)


def with_command(found: Any, command: str) -> Any:
    """The result with the command line in its provenance; as it is where only its parts have one."""
    if not hasattr(found, "provenance"):
        return found
    return dataclasses.replace(found, provenance=dataclasses.replace(found.provenance, command=command))


def print_sections(found: Any, *, verbose: bool = False) -> None:
    """The sections of a result on stdout, then its notes."""
    from outlierlens.view.render import print_section
    from outlierlens.view.section import notes_of

    for section in found.sections(verbose=verbose):
        print_section(section, sys.stdout)
    for note in notes_of(found):
        say(f"note: {note}")
