"""How often a server is asked, and when a download that brings next to nothing is given up.

    turns = Turns(rate=10)                                   # of a process: a rate that all threads share
    courtesy = Courtesy(turns, retries=8, max_bytes=50_000_000)      # of one model
    courtesy.turn(host, limited=True)                        # waits until another request may go out
    courtesy.back_off(host, attempt=0, asked=30.0)           # no thread asks this host for half a minute
    answer = within(window(), lambda: client.send(request, stream=True))      # its headers, too, may come byte by byte
    pace = Pace(window())                                    # as curl's --speed-limit and --speed-time
    for chunk in answer: pace.add(len(chunk))                # TooSlow
    with telling(bar): arriving("fetching mpnet-base", 12_000_000, 93_000_000)    # bar("fetching mpnet-base, MB", 12, 93)

A time limit on a single read does not end a slow download: a server that sends one byte every few seconds keeps each read
short.
"""

import queue
import random
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from outlierlens.errors import RemoteError

if TYPE_CHECKING:
    from concurrent.futures import Future

FIRST_WAIT = 0.5  # seconds before the first retry; each further one waits twice as long
LONGEST_WAIT = 60.0  # of those that nobody asked for
NUMBER = re.compile(r"[0-9]{1,18}\Z")  # str.isdigit also takes superscripts, which int refuses
_turn_clock = time.monotonic


def _sleep(seconds: float, ended: threading.Event) -> None:
    ended.wait(seconds)


class Turns:
    """When the next request may go to a host, for all threads of a process.

    Attributes:
        rate: requests a second to a host that is limited; None is no limit.
        ended: set by whoever wants no further answer: nobody waits any longer or asks again.
    """

    def __init__(self, rate: float | None = None):
        self.rate, self.ended = rate, threading.Event()
        self._next: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def take(self, host: Hashable, *, limited: bool) -> None:
        """Wait for the next free moment of `host`; raises RemoteError once `ended` is set."""
        with self._lock:
            now = _turn_clock()
            at = max(now, self._next.get(host, now))
            if limited and self.rate:
                self._next[host] = at + 1 / self.rate
        if at > now:
            _sleep(at - now, self.ended)
        if self.ended.is_set():
            raise RemoteError("given up: no further answer is wanted")

    def pause(self, host: Hashable, seconds: float) -> None:
        """Let nobody ask `host` for so long."""
        with self._lock:
            self._next[host] = max(self._next.get(host, 0.0), _turn_clock() + seconds)


@dataclass(frozen=True)
class Courtesy:
    """How one model is asked for; the default is that of a single command on a single model.

    Attributes:
        turns: shared with others that ask.
        retries: of a request that was answered busy, or not at all.
        max_wait: seconds that a server may ask us to wait before one.
        jitter: share of a pause that is drawn at random, so that many who failed together do not ask again together.
        max_bytes: of all answers; None is no limit.
    """

    turns: Turns = field(default_factory=Turns)
    retries: int = 3
    max_wait: float = 30.0
    jitter: float = 0.0
    max_bytes: int | None = None

    def turn(self, host: Hashable, *, limited: bool) -> None:
        """Wait until a request may go out; `limited` hosts keep the rate."""
        self.turns.take(host, limited=limited)

    def back_off(self, host: Hashable, attempt: int, asked: float | None) -> None:
        """Wait after a failed attempt (the first is 0); where the server `asked` for so long, nobody asks it meanwhile."""
        if asked is not None:
            self.turns.pause(host, asked)
        wait = max(min(FIRST_WAIT * 2**attempt, LONGEST_WAIT), asked or 0.0)
        _sleep(wait * (1 + self.jitter * random.random()), self.turns.ended)


def seconds_asked(header: str) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None where it is neither."""
    text = header.strip()
    if NUMBER.match(text):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


# --- downloads that bring next to nothing ----------------------------------------------------------------------------

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
