"""The engine that runs a sweep on the machines of a Ray cluster, or on several workers of one machine.

    sweep(loaded, texts, engine=on_ray(texts, load, address="auto", gpus_per_worker=0.5))

Every worker makes its runner once; shares of work are handed to whoever is free. What dies is done again elsewhere, and
what is late is started a second time: each piece is yielded once, whoever answers first.
"""

import contextlib
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outlierlens import __version__
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput, OutlierlensError
from outlierlens.experiments.sweep.engines import PASSES_AT_ONCE, by_span
from outlierlens.experiments.sweep.ray_cluster import Recipe, connect, room
from outlierlens.experiments.sweep.runner import Runner
from outlierlens.experiments.sweep.units import Work
from outlierlens.models.devices import memory_kept
from outlierlens.models.load import LoadOptions

POLL_SECONDS = 0.5
MAX_LOSSES = 5  # workers lost in a row before one is ready, or with the same share in hand, before the sweep gives up
LATE = 2.0  # times as long as its rows usually take: then a share is started a second time
LATE_SECONDS = 1.0  # but not before it has run for so long
UNKNOWN_SECONDS = 60.0  # or for so long, while it is not known how long rows usually take


def on_ray(
    texts: Data,
    load: LoadOptions | None = None,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float | None = None,
) -> Callable[[Runner], "RayEngine"]:
    """The `engine` of `sweep` that measures on Ray workers.

    Workers load the model by its name with `load`; without, the model is sent to them. They compute in the dtype of the
    sweep's own model, on their share of a GPU if they have one; `gpus_per_worker` None is 1 where that model is on a GPU
    and else 0. See `RayEngine` for the rest.
    """

    def start(runner: Runner) -> "RayEngine":
        gpus = gpus_per_worker
        if gpus is None:
            gpus = 1.0 if runner.loaded.device.type == "cuda" else 0.0
        recipe = Recipe.like(runner, texts, load, device="cuda" if gpus else "cpu")
        return RayEngine(
            recipe, address=address, workers=workers, cpus_per_worker=cpus_per_worker, gpus_per_worker=gpus
        )

    return start


class Host:
    """What runs in a worker process: a runner, made once."""

    def hello(self) -> tuple[str, str]:
        """(node's address, version of outlierlens there)."""
        ray: Any = __import__("ray")
        return ray.util.get_node_ip_address(), __version__

    def prepare(self, make: Callable[[], Runner], cpus: float, gpus: float) -> int:
        """Make the runner, within this share of the machine; returns the rows of its forward passes."""
        threads = max(1, int(cpus))
        os.environ |= {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        }  # read when torch is imported
        if gpus or "torch" in sys.modules:  # a model that was sent has brought it
            import torch

            torch.set_num_threads(threads)
            if 0 < gpus < 1 and torch.cuda.is_available():
                # Ray does not divide memory: without a limit, one worker's batch would take what another counts on.
                torch.cuda.set_per_process_memory_fraction(gpus)
        self.runner = make()
        return self.runner.rows(self.runner.order)

    def values(self, plans: Sequence[Any], span: tuple[int, int], only: Sequence[Any]) -> np.ndarray:
        """See `Runner.values`."""
        with memory_kept():
            return self.runner.values(plans, span, only)


@dataclass(eq=False)
class Share:
    """Work on the same texts that is handed out together; `copies` of it are in flight, `losses` died with a worker."""

    works: list[Work]
    copies: int = 0
    losses: int = 0
    done: bool = False

    @property
    def span(self) -> tuple[int, int]:
        """Its texts."""
        return self.works[0].span

    @property
    def rows(self) -> int:
        """(unit, text) pairs."""
        return sum(work.n_texts for work in self.works)


@dataclass(eq=False)
class Member:
    """A worker as seen from here: `awaits` is what its one unanswered call is, "" if it is free."""

    actor: Any
    answer: "Future[Any]"
    prepared: "Future[Any]"
    awaits: str = "hello"
    node: str = "a node not yet known"
    pass_rows: int = 1
    share: Share | None = None
    since: float = 0.0


@dataclass
class Queue:
    """Work not yet handed out, in the order of texts, and shares that came back undone."""

    spans: deque[list[Work]]
    returned: deque[Share] = field(default_factory=deque)
    rows: int = 0

    @classmethod
    def of(cls, works: Sequence[Work]) -> "Queue":
        """All of `works`."""
        return cls(deque(same for _, same in by_span(works)), rows=sum(work.n_texts for work in works))

    def take(self, rows: int) -> Share | None:
        """The next share, of about `rows` rows, at least one piece of work; None if all are handed out."""
        if self.returned:
            return self.returned.popleft()
        if not self.spans:
            return None
        same = self.spans[0]
        upto = np.cumsum([work.n_texts for work in same])  # pieces of a screened sweep differ, and some have no text
        n = max(1, int(np.searchsorted(upto, rows, side="right")))
        share = Share(same[:n])
        del same[:n]
        if not same:
            self.spans.popleft()
        self.rows -= share.rows
        return share


class RayEngine:
    """An `Engine` on Ray workers, each with a runner that `make` made there.

    Attributes:
        patience: seconds without any worker on any machine after which the sweep gives up.
        n_lost: workers that ended before their time.
    """

    patience = 600.0

    def __init__(
        self,
        make: Callable[[], Runner],
        *,
        address: str | None = None,
        workers: int | None = None,
        cpus_per_worker: float = 1.0,
        gpus_per_worker: float = 0.0,
        rows: int | None = None,
    ):
        """Connect to `address` ("auto", "host:port", "ray://host:port"), or start Ray on this machine alone for None.

        `workers` None is as many as the cluster has room for, now and as machines come and go. `rows` is the most that a
        worker is handed at once; None is a few of its forward passes.

        Raises:
            BadInput: numbers that cannot be, or no cluster at `address`.
            MissingExtra: Ray is not installed.
        """
        if workers is not None and workers < 1:
            raise BadInput(f"workers is {workers}; it must be at least 1")
        if min(cpus_per_worker, gpus_per_worker) < 0 or cpus_per_worker + gpus_per_worker == 0:
            raise BadInput(
                "a worker needs some of a CPU or a GPU: cpus_per_worker and gpus_per_worker cannot both be 0"
            )
        if gpus_per_worker > 1 and gpus_per_worker % 1:
            raise BadInput(f"gpus_per_worker is {gpus_per_worker}; above 1 it must be a whole number")
        self.workers, self.cpus, self.gpus, self.rows = workers, cpus_per_worker, gpus_per_worker, rows
        self.ray, self._started_here = connect(address)
        self._host = self.ray.remote(Host).options(
            num_cpus=cpus_per_worker, num_gpus=gpus_per_worker, max_restarts=0, scheduling_strategy="SPREAD"
        )
        self._crew: list[Member] = []
        self._queue = Queue.of(())
        self._finished: deque[tuple[Work, np.ndarray]] = deque()
        self._pace: deque[float] = deque(maxlen=64)  # seconds a row
        self.n_lost, self._lost_in_a_row, self._reason = 0, 0, ""
        self._next_recruits, self._last_seen = 0.0, time.monotonic()
        try:
            self._make = self.ray.put(make)
        except Exception as error:  # picklers raise what they like
            self.close()
            raise BadInput(
                f"what a worker needs cannot be sent to it ({_one_line(error)}); give the options that the model was loaded "
                f"with, so that workers load it by name"
            ) from error
        self._recruit()  # models load while the caller is still busy

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """See `Engine`.

        Raises:
            OutlierlensError: the work itself fails on a worker, or no worker can be had.
        """
        self._queue, left = Queue.of(works), len(works)
        self._finished.clear()
        self._last_seen = time.monotonic()
        try:
            while left:
                # Whoever became free is given work before the caller sees what was answered.
                self._step(0.0 if self._finished else POLL_SECONDS)
                if self._finished:
                    left -= 1
                    yield self._finished.popleft()
        finally:
            for member in self._crew:  # a second copy may still run; its answer is not wanted any more
                if member.share:
                    member.share.done = True

    def close(self) -> None:
        """Let the workers go, and end Ray if it was started here."""
        crew, self._crew = self._crew, []
        for member in crew:
            self._dismiss(member)
        if self._started_here and self.ray.is_initialized():
            self.ray.shutdown()

    def _step(self, seconds: float) -> None:
        """Have the workers that are wanted, give them work, and wait so long for one to answer."""
        self._recruit()
        self._hand_out()
        asked = {member.answer: member for member in self._crew if member.awaits}
        if asked:
            for answer in wait(asked, seconds, FIRST_COMPLETED).done:
                self._answered(asked[answer])
            self._hand_out()
        elif not self._finished:
            time.sleep(seconds)
        now = time.monotonic()
        if any(member.awaits != "hello" for member in self._crew):
            self._last_seen = now
        elif now - self._last_seen > self.patience:
            raise OutlierlensError(
                f"no Ray worker could be had for {self.patience:.0f} s: each needs {self.cpus:g} CPUs and {self.gpus:g} "
                f"GPUs{self._because()}; add machines, or lower what a worker needs. What was measured is kept"
            )

    def _recruit(self) -> None:
        now = time.monotonic()
        if now < self._next_recruits:
            return
        self._next_recruits = now + 2 * POLL_SECONDS
        # With room for none, one is still asked for: a cluster that grows by demand must see some.
        wanted = self.workers or max(1, room(self.ray, self.cpus, self.gpus))
        for _ in range(wanted - len(self._crew)):
            actor = self._host.remote()
            said, prepared = actor.hello.remote(), actor.prepare.remote(self._make, self.cpus, self.gpus)
            self._crew.append(Member(actor, said.future(), prepared.future()))

    def _hand_out(self) -> None:
        now = time.monotonic()
        for member in self._crew:
            if member.awaits:
                continue
            share = self._queue.take(self._size(member)) or self._late(now)
            if share is None:
                return
            share.copies += 1
            member.share, member.awaits, member.since = share, "values", now
            plans, only = [work.unit.plan for work in share.works], [work.only for work in share.works]
            member.answer = member.actor.values.remote(plans, share.span, only).future()

    def _size(self, member: Member) -> int:
        """Rows for this worker: at first a few forward passes, towards the end less, so that all end together."""
        most = self.rows or PASSES_AT_ONCE * member.pass_rows
        fair = math.ceil(self._queue.rows / (2 * len(self._crew)))
        return max(min(most, member.pass_rows), min(most, fair))

    def _late(self, now: float) -> Share | None:
        """The share that runs longest beyond its usual time and has no second copy yet."""
        pace = statistics.median(self._pace) if self._pace else None

        def overdue(member: Member, share: Share) -> float:
            usual = UNKNOWN_SECONDS if pace is None else max(LATE_SECONDS, LATE * pace * share.rows)
            return now - member.since - usual

        found = [
            (overdue(member, member.share), share)
            for member in self._crew
            if (share := member.share) and not share.done and share.copies == 1
        ]
        time_over, share = max(found, key=lambda item: item[0], default=(-1.0, None))
        return share if time_over > 0 else None

    def _answered(self, member: Member) -> None:
        """Take what `member` was asked for, or its end."""
        call, share = member.awaits, member.share
        errors = self.ray.exceptions
        try:
            answer = member.answer.result()
        except errors.RayTaskError as error:
            if share is None or not share.done:
                raise _explained(error, member.node, call) from error
            answer = None
        except errors.RayError as error:
            self._lost(member, error)
            return
        member.awaits, member.share = "", None
        if call == "hello":
            self._welcome(member, *answer)
        elif call == "prepare":
            member.pass_rows, self._lost_in_a_row = answer, 0
        elif share is not None:
            share.copies -= 1
            if not share.done:
                share.done = True
                self._pace.append((time.monotonic() - member.since) / max(1, share.rows))
                self._finished.extend(zip(share.works, np.array(answer), strict=True))

    def _welcome(self, member: Member, node: str, version: str) -> None:
        if version != __version__:
            raise BadInput(
                f"outlierlens is {version} on {node} and {__version__} here; install the same version on every machine"
            )
        member.node, member.awaits, member.answer = node, "prepare", member.prepared

    def _lost(self, member: Member, error: Exception) -> None:
        """Have what a dead worker was doing done again, by whoever is free."""
        self.n_lost += 1
        self._crew.remove(member)
        self._dismiss(member)
        self._reason = _one_line(error)
        share = member.share
        if share is None:
            self._lost_in_a_row += 1
            self._next_recruits = time.monotonic() + self._lost_in_a_row
            if self._lost_in_a_row >= MAX_LOSSES:
                raise OutlierlensError(
                    f"{MAX_LOSSES} Ray workers in a row ended before they had loaded the model{self._because()}; see that "
                    f"every machine has outlierlens installed and memory for the model"
                )
            return
        share.copies -= 1
        if share.done or share.copies:
            return
        share.losses += 1
        if share.losses >= MAX_LOSSES:
            raise OutlierlensError(
                f"{MAX_LOSSES} Ray workers ended while measuring {share.works[0].unit.label} on texts {share.span[0]} to "
                f"{share.span[1]}{self._because()}; a smaller batch size needs less memory. What was measured is kept"
            )
        self._queue.returned.append(share)

    def _dismiss(self, member: Member) -> None:
        with contextlib.suppress(Exception):  # it may be dead, or Ray gone
            self.ray.kill(member.actor)

    def _because(self) -> str:
        return f" (the last ended so: {self._reason})" if self._reason else ""


def _explained(error: Any, node: str, call: str) -> OutlierlensError:
    """What another process raised, as an error of ours in one line."""
    cause = error.cause if isinstance(error.cause, BaseException) else error
    if isinstance(cause, OutlierlensError):
        return type(cause)(f"Ray worker on {node}: {cause}")
    doing = {"values": "measuring", "prepare": "loading the model"}.get(call, "starting")
    return OutlierlensError(f"Ray worker on {node} failed while {doing}: {type(cause).__name__}: {_one_line(cause)}")


def _one_line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
