"""How often a server is asked: a rate that all threads share, what it asks for itself, and pauses that grow.

turns = Turns(rate=10)                                   # of a process
courtesy = Courtesy(turns, retries=8, max_bytes=50_000_000)      # of one model
courtesy.turn(host, limited=True)                        # waits until another request may go out
courtesy.back_off(host, attempt=0, asked=30.0)           # no thread asks this host for half a minute
"""

import random
import re
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from outlierlens.errors import RemoteError

FIRST_WAIT = 0.5  # seconds before the first retry; each further one waits twice as long
LONGEST_WAIT = 60.0  # of those that nobody asked for
NUMBER = re.compile(r"[0-9]{1,18}\Z")  # str.isdigit also takes superscripts, which int refuses
_clock = time.monotonic


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
            now = _clock()
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
            self._next[host] = max(self._next.get(host, 0.0), _clock() + seconds)


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
