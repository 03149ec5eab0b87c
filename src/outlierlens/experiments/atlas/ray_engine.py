"""The engine that looks at models on the machines of a Ray cluster, or in several processes of one machine.

    with OnRay(manner, address="auto") as engine: build(store, names, engine)

A worker has its own threads and its share of the rate. What a worker that dies had in hand is looked at again by another; a
model that ends `MAX_LOSSES` workers gets a row that says so. Only the process that started all this writes rows.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from types import TracebackType
from typing import Any

from outlierlens import __version__
from outlierlens.checkpoints.pace import Turns
from outlierlens.errors import BadInput, OutlierlensError
from outlierlens.experiments.atlas.look import Manner, failed, look
from outlierlens.experiments.atlas.names import Named
from outlierlens.experiments.atlas.rows import AtlasRow

POLL_SECONDS = 0.5
MAX_LOSSES = 3
PATIENCE = 600.0  # seconds without any worker
# What a worker must know of this process's surroundings to reach the same hub.
SURROUNDINGS = ("HF_ENDPOINT", "HF_HUB_OFFLINE", "NO_PROXY", "HTTPS_PROXY", "HTTP_PROXY")


class Worker:
    """What runs in a worker process."""

    def __init__(self, manner: Manner, surroundings: dict[str, str]):
        os.environ |= surroundings
        self.manner, self.turns = manner, Turns(manner.rate)

    def hello(self) -> str:
        """The version of outlierlens there."""
        return __version__

    def look(self, named: Named, rate: float | None) -> tuple[AtlasRow, ...]:
        """See `look`; `rate` is this worker's share."""
        self.turns.rate = rate
        return look(named, self.manner, self.turns)


@dataclass(eq=False)
class Member:
    """A worker as seen from here: `asked` are the answers that it owes."""

    actor: Any
    asked: dict[Any, Named | None] = field(default_factory=dict)
    ready: bool = False


class OnRay:
    """An `Engine` on Ray workers; see the module's text.

    Attributes:
        n_lost: workers that ended before their time.
    """

    def __init__(
        self, manner: Manner, *, address: str | None = None, workers: int | None = None, cpus_per_worker: float = 1.0
    ):
        """Connect to `address`, or start Ray on this machine alone for None; see `experiments.sweep.ray_cluster.connect`."""
        from outlierlens.experiments.sweep.ray_cluster import connect, room

        self.manner, self.workers, self.cpus = manner, workers, cpus_per_worker
        self.ray, self._started_here = connect(address)
        self._room = room
        self.n_lost = 0
        self._crew: list[Member] = []
        self._losses: dict[Named, int] = {}
        self._again: deque[Named] = deque()
        self._given_up: deque[tuple[AtlasRow, ...]] = deque()
        self._next_recruits, self._last_seen = 0.0, time.monotonic()
        surroundings = {name: value for name in SURROUNDINGS if (value := os.environ.get(name)) is not None}
        host = self.ray.remote(Worker).options(
            num_cpus=cpus_per_worker, max_restarts=0, max_concurrency=manner.parallel, scheduling_strategy="SPREAD"
        )
        self._start = lambda: host.remote(manner, surroundings)

    def looked(self, names: Iterator[Named]) -> Iterator[tuple[AtlasRow, ...]]:
        """See `Engine`.

        Raises:
            BadInput: a worker has another version of outlierlens. OutlierlensError: no worker could be had.
        """
        self._last_seen, exhausted = time.monotonic(), False
        while True:
            self._recruit()
            exhausted = self._hand_out(names) or exhausted
            yield from self._given_up
            self._given_up.clear()
            owed = {ref: member for member in self._crew for ref in member.asked}
            if exhausted and not self._again and not any(named for m in self._crew for named in m.asked.values()):
                return
            if not owed:
                time.sleep(POLL_SECONDS)
                continue
            done, _ = self.ray.wait(list(owed), num_returns=1, timeout=POLL_SECONDS)
            for ref in done:
                if ref in owed[ref].asked:
                    yield from self._answered(owed[ref], ref)
            self._check_patience()

    def _recruit(self) -> None:
        now = time.monotonic()
        if now < self._next_recruits:
            return
        self._next_recruits = now + 2 * POLL_SECONDS
        wanted = self.workers or max(1, self._room(self.ray, self.cpus, 0.0))
        for _ in range(wanted - len(self._crew)):
            actor = self._start()
            self._crew.append(Member(actor, {actor.hello.remote(): None}))

    def _hand_out(self, names: Iterator[Named]) -> bool:
        """Give work to who has room; True where there are no more names. A model that ended a worker is given out alone."""
        ready = [member for member in self._crew if member.ready]
        for member in ready:
            if self._again and not member.asked:
                self._give(member, self._again.popleft(), len(ready))
        ended = False
        for _ in range(2 * self.manner.parallel):  # a name each in turn, so that all end together
            for member in ready:
                alone = any(named in self._losses for named in member.asked.values() if named)
                if alone or self._again or len(member.asked) >= 2 * self.manner.parallel:
                    continue
                named = next(islice(names, 1), None)
                if named is None:
                    return True
                self._give(member, named, len(ready))
        return ended

    def _give(self, member: Member, named: Named, n_ready: int) -> None:
        rate = None if self.manner.rate is None else self.manner.rate / n_ready
        member.asked[member.actor.look.remote(named, rate)] = named

    def _answered(self, member: Member, ref: Any) -> Iterator[tuple[AtlasRow, ...]]:
        try:
            answer = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            raise OutlierlensError(f"a Ray worker failed: {' '.join(str(error.cause).split())[:300]}") from error
        except self.ray.exceptions.RayError as error:
            self._lost(member, error)
            return
        named = member.asked.pop(ref)
        if named is None:
            if answer != __version__:
                raise BadInput(
                    f"outlierlens is {answer} on a worker and {__version__} here; install the same everywhere"
                )
            member.ready = True
        else:
            self._losses.pop(named, None)
            yield answer

    def _lost(self, member: Member, error: Exception) -> None:
        self.n_lost += 1
        self._crew.remove(member)
        self.ray.kill(member.actor)
        for named in member.asked.values():
            if named is None:
                continue
            self._losses[named] = self._losses.get(named, 0) + 1
            if self._losses[named] < MAX_LOSSES:
                self._again.append(named)
            else:
                said = OutlierlensError(f"{MAX_LOSSES} Ray workers ended while they read it ({error})")
                self._given_up.append((replace(failed(named, said), reason="error"),))

    def _check_patience(self) -> None:
        now = time.monotonic()
        if any(member.ready for member in self._crew):
            self._last_seen = now
        elif now - self._last_seen > PATIENCE:
            raise OutlierlensError(
                f"no Ray worker could be had for {PATIENCE:.0f} s: each needs {self.cpus:g} CPUs; add machines, or lower "
                "--cpus-per-worker. What was found is kept"
            )

    def __enter__(self) -> "OnRay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._crew:
            self.ray.kill(member.actor)
        self._crew = []
        if self._started_here and self.ray.is_initialized():
            self.ray.shutdown()
