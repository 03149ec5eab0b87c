"""Look at many models, a few at a time, and keep a row of each as soon as it is known.

    with Store.open(Path("atlas")) as store, Local(manner) as engine:
        built = build(store, names_in(Path("models.txt")), engine)

An engine looks at names as they come and yields rows in the order in which they are known. What is in the store already is not
looked at again; one process alone writes rows, wherever the models were looked at.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from types import TracebackType
from typing import Protocol

from outlierlens.checkpoints.pace import Turns
from outlierlens.checkpoints.repository import COMMIT
from outlierlens.errors import RemoteError
from outlierlens.experiments.atlas.look import Manner, look
from outlierlens.experiments.atlas.names import Named
from outlierlens.experiments.atlas.rows import AtlasRow, Store
from outlierlens.view.section import duration

BATCH = 1000  # names that are compared with the store at once
SECONDS_BETWEEN_LINES = 20.0
MAX_UNREACHABLE = 50  # models in a row that the hub did not give before it is left alone


class Engine(Protocol):
    """What looks at models."""

    def looked(self, names: Iterator[Named]) -> Iterator[tuple[AtlasRow, ...]]:
        """The rows of each, () where its present revision is known, as they come; `names` are taken when there is room."""
        ...


class Local:
    """An engine of threads in this process."""

    def __init__(self, manner: Manner):
        self.manner, self.turns = manner, Turns(manner.rate)
        self._pool = ThreadPoolExecutor(manner.parallel)

    def looked(self, names: Iterator[Named]) -> Iterator[tuple[AtlasRow, ...]]:
        """See `Engine`."""
        running: set[Future[tuple[AtlasRow, ...]]] = set()
        while True:
            for named in islice(names, 2 * self.manner.parallel - len(running)):
                running.add(self._pool.submit(look, named, self.manner, self.turns))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()

    def __enter__(self) -> "Local":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.turns.ended.set()
        self._pool.shutdown(cancel_futures=True)


@dataclass
class Built:
    """What one run of `build` did.

    Attributes:
        read: models with rows. failed: by reason. before: models that the store held already.
        bytes_read, requests: of all that were looked at. stopped: why it ended before the last name, "" where it did not.
    """

    read: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    before: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    requests: int = 0
    seconds: float = 0.0
    stopped: str = ""

    @property
    def looked_at(self) -> int:
        """Models that were looked at."""
        return self.read + self.failed.total()


def build(
    store: Store,
    names: Iterable[Named],
    engine: Engine,
    *,
    update: bool = False,
    max_total: int | None = None,
    total: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Built:
    """Look at every name that the store has no row of, and keep what is found; `total` is how many names there are.

    Raises:
        RemoteError: the hub gave none of `MAX_UNREACHABLE` models in a row. What was found is kept.
    """
    built, began, told, unreachable = Built(), time.monotonic(), -SECONDS_BETWEEN_LINES, 0

    def enough() -> bool:
        if max_total is not None and built.bytes_read >= max_total:
            built.stopped = f"{built.bytes_read:,} bytes were read, of {max_total:,} allowed"
        return bool(built.stopped)

    for rows in engine.looked(_wanted(store, names, update, built, enough)):
        if not rows:
            built.before += 1
            continue
        store.append(rows)
        first = rows[0]
        built.bytes_read += first.bytes_read
        built.bytes_total += first.bytes_total
        built.requests += first.requests
        if first.reason is None:
            built.read += 1
        else:
            built.failed[first.reason] += 1
        unreachable = unreachable + 1 if first.reason == "unreachable" else 0
        if unreachable == MAX_UNREACHABLE:
            raise RemoteError(
                f"the hub gave none of {unreachable} models in a row ({first.failure}); run it again later"
            )
        built.seconds = time.monotonic() - began
        if progress and built.seconds - told >= SECONDS_BETWEEN_LINES:
            told = built.seconds
            done = built.looked_at + built.before
            progress(_line(built, total), done, total or done)
    built.seconds = time.monotonic() - began
    return built


def _wanted(
    store: Store, names: Iterable[Named], update: bool, built: Built, enough: Callable[[], bool]
) -> Iterator[Named]:
    """The names to look at; rows that failed for a passing reason are dropped when their turn comes."""
    ahead = iter(names)
    while batch := list(islice(ahead, BATCH)):
        store.forget([named.model for named in batch])
        for named in batch:
            known = store.done.get(named.model, ())
            if named.revision in known or (known and not update and not COMMIT.match(named.revision)):
                built.before += 1
                continue
            if enough():
                return
            yield named if COMMIT.match(named.revision) else replace(named, known=known)


def _line(built: Built, total: int | None) -> str:
    """ "1,234 looked at, 41 of them not read, 25 a second, 6 min left" """
    pace = built.looked_at / built.seconds if built.seconds else 0.0
    left = f", {duration((total - built.looked_at - built.before) / pace)} left" if total and pace else ""
    return f"{built.looked_at:,} looked at, {built.failed.total():,} of them not read, {pace:.3g} a second{left}"
