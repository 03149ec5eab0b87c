"""Downloads that bring next to nothing are given up, as by curl's --speed-limit and --speed-time.

    answer = within(window(), lambda: client.send(request, stream=True))      # its headers, too, may come byte by byte
    pace = Pace(window())
    for chunk in answer: pace.add(len(chunk))                                 # TooSlow

    with telling(bar): arriving("fetching mpnet-base", 12_000_000, 93_000_000)    # bar("fetching mpnet-base, MB", 12, 93)

A time limit on a single read does not end them: a server that sends one byte every few seconds keeps each read short.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

LEAST = 1000  # bytes a second
SECONDS = 30.0  # over which they are counted
_clock = time.monotonic


_bars: list[Callable[[str, int, int], None]] = []


@contextmanager
def telling(bar: Callable[[str, int, int], None]) -> Iterator[None]:
    """While it lasts, `bar(label, done, total)` is called with the megabytes of downloads."""
    _bars.append(bar)
    try:
        yield
    finally:
        _bars.remove(bar)


def is_told() -> bool:
    """Whether somebody looks at a bar."""
    return bool(_bars)


def arriving(label: str, n_bytes: int, total: int) -> None:
    """Say that `n_bytes` of `total` have come."""
    for bar in _bars:
        bar(f"{label}, MB", round(n_bytes / 1e6), round(total / 1e6))


class Closable(Protocol):
    """A connection, a response."""

    def close(self) -> object:
        """Let it go."""


T = TypeVar("T", bound=Closable)


class TooSlow(TimeoutError):
    """A server sent fewer than `LEAST` bytes a second."""

    def __init__(self, seconds: float):
        super().__init__(f"sent fewer than {LEAST:,} bytes a second for {seconds:g} s")


class Pace:
    """Bytes that arrive, counted over one window of `seconds` after another; `what` of `total` bytes is told to a bar."""

    def __init__(self, seconds: float, what: str = "", total: int = 0):
        self.seconds, self.what, self.total = seconds, what, total
        self._began, self._bytes, self._arrived = _clock(), 0, 0

    def add(self, n_bytes: int) -> None:
        """Count what has arrived; raises TooSlow at the end of a window that brought fewer than `LEAST` bytes a second."""
        self._bytes += n_bytes
        self._arrived += n_bytes
        if self.what:
            arriving(self.what, self._arrived, self.total)
        now = _clock()
        if now - self._began >= self.seconds:
            if self._bytes < LEAST * self.seconds:
                raise TooSlow(self.seconds)
            self._began, self._bytes = now, 0


def within(seconds: float, open_: Callable[[], T]) -> T:
    """What `open_()` returns or raises; TooSlow where that takes longer than `seconds`.

    What is given up goes on in a thread that does not keep the process alive, and is closed when it comes.
    """
    from concurrent.futures import Future  # brings logging, for which what is on this disk would wait

    outcome: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
    given_up = threading.Event()

    def run() -> None:
        done = Future[T]()
        try:
            done.set_result(open_())
        except BaseException as error:
            done.set_exception(error)
        outcome.put(done)
        del done  # an error holds this frame, which must not hold the error: both would lie about with what they opened
        if given_up.is_set():
            _close(outcome)

    threading.Thread(target=run, daemon=True).start()
    try:
        done = outcome.get(timeout=seconds)
    except queue.Empty:
        given_up.set()
        _close(outcome)  # it may have come at this very moment
        raise TooSlow(seconds) from None
    try:
        return done.result()
    finally:
        del done


def _close(outcome: "queue.SimpleQueue[Future[T]]") -> None:
    with suppress(queue.Empty):
        done = outcome.get_nowait()
        if done.exception() is None:
            done.result().close()
