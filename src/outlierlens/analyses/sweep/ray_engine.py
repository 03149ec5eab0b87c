"""The engine that runs a sweep on the machines of a Ray cluster, or on several workers of one machine.

    sweep(loaded, texts, engine=on_ray(texts, load, address="auto", gpus_per_worker=0.5))

Every worker makes its runner once; shares of work are handed to whoever is free, and what dies is done again elsewhere.
"""

import contextlib
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outlierlens import __version__
from outlierlens.analyses.sweep.ray_cluster import Recipe, connect, room
from outlierlens.analyses.sweep.runner import Runner
from outlierlens.analyses.sweep.units import PASSES_AT_ONCE, Work, by_span
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput, OutlierlensError, one_line
from outlierlens.models.devices import memory_kept
from outlierlens.models.load import LoadOptions

POLL_SECONDS = 0.5
MAX_LOSSES = 5  # workers lost in a row before one is ready, or with the same share in hand, before the sweep gives up


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
    """Work on the same texts that is handed out together; `losses` of its workers died, `dropped`: nobody waits for it."""

    works: list[Work]
    losses: int = 0
    dropped: bool = False

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
    """A worker as seen from here: `node` is "" until it runs, `pass_rows` 0 until it has made its runner."""

    actor: Any
    node: str = ""
    pass_rows: int = 0
    share: Share | None = None


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
        self._calls: dict[Future[Any], tuple[Member, Share | None]] = {}
        self._queue = Queue.of(())
        self._finished: deque[tuple[Work, np.ndarray]] = deque()
        self.n_lost, self._lost_in_a_row, self._reason = 0, 0, ""
        self._next_recruits, self._last_seen = 0.0, time.monotonic()
        try:
            self._make = self.ray.put(make)
        except Exception as error:  # picklers raise what they like
            self.close()
            raise BadInput(
                f"what a worker needs cannot be sent to it ({_said(error)}); give the options that the model was loaded "
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
            for _, share in self._calls.values():
                if share:
                    share.dropped = True

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
        if self._calls:
            for call in wait([*self._calls], seconds, FIRST_COMPLETED).done:
                self._answered(call, *self._calls.pop(call))
            self._hand_out()
        elif not self._finished:
            time.sleep(seconds)
        now = time.monotonic()
        if any(member.node for member in self._crew):
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
            member = Member(self._host.remote())
            self._crew.append(member)
            for call in (member.actor.hello.remote(), member.actor.prepare.remote(self._make, self.cpus, self.gpus)):
                self._calls[call.future()] = (member, None)

    def _hand_out(self) -> None:
        for member in self._crew:
            if not member.pass_rows or member.share:
                continue
            # At first a few forward passes, towards the end less, so that all end together.
            most, fair = (
                self.rows or PASSES_AT_ONCE * member.pass_rows,
                math.ceil(self._queue.rows / (2 * len(self._crew))),
            )
            share = self._queue.take(max(min(most, member.pass_rows), min(most, fair)))
            if share is None:
                return
            member.share = share
            plans, only = [work.unit.plan for work in share.works], [work.only for work in share.works]
            self._calls[member.actor.values.remote(plans, share.span, only).future()] = (member, share)

    def _answered(self, call: "Future[Any]", member: Member, share: Share | None) -> None:
        """Take what `member` was asked for, or its end."""
        if share:
            member.share = None
        try:
            answer = call.result()
        except self.ray.exceptions.RayTaskError as error:
            if share is None or not share.dropped:
                raise _explained(error, member.node, "measuring" if share else "loading the model") from error
            return
        except self.ray.exceptions.RayError as error:
            self._lost(member, share, error)
            return
        if share is None and isinstance(answer, tuple):
            member.node, version = answer
            if version != __version__:
                raise BadInput(
                    f"outlierlens is {version} on {member.node} and {__version__} here; install the same version on every "
                    f"machine"
                )
        elif share is None:
            member.pass_rows, self._lost_in_a_row = answer, 0
        elif not share.dropped:
            self._finished.extend(zip(share.works, np.array(answer), strict=True))

    def _lost(self, member: Member, share: Share | None, error: Exception) -> None:
        """Have what a dead worker was doing done again, by whoever is free."""
        if member in self._crew:
            self.n_lost += 1
            self._crew.remove(member)
            self._dismiss(member)
            self._reason = _said(error)
            if not member.pass_rows:
                self._lost_in_a_row += 1
                self._next_recruits = time.monotonic() + self._lost_in_a_row
        if self._lost_in_a_row >= MAX_LOSSES:
            raise OutlierlensError(
                f"{MAX_LOSSES} Ray workers in a row ended before they had loaded the model{self._because()}; see that "
                f"every machine has outlierlens installed and memory for the model"
            )
        if share is None or share.dropped:
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


def _explained(error: Any, node: str, doing: str) -> OutlierlensError:
    """What another process raised, as an error of ours in one line."""
    cause = error.cause if isinstance(error.cause, BaseException) else error
    where = node or "a node not yet known"
    if isinstance(cause, OutlierlensError):
        return type(cause)(f"Ray worker on {where}: {cause}")
    return OutlierlensError(f"Ray worker on {where} failed while {doing}: {type(cause).__name__}: {_said(cause)}")


def _said(error: BaseException) -> str:
    return (one_line(str(error)) or type(error).__name__)[:300]
