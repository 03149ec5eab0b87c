"""Work on the machines of a Ray cluster, or in several processes of one machine: tasks that Ray itself does again elsewhere.

    with Pool(Machines(ray="local", workers=2)) as pool:
        for piece, answer in pool.map(pool.send(make), pieces): ...       # make()(piece), as they are done

Every worker process calls `make` once. Nothing is reported, and a Ray that is started here does not listen to the network.
"""

import contextlib
import functools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from outlierlens import __version__
from outlierlens.analyses.sweep.options import Machines
from outlierlens.errors import BadInput, MissingExtra, OutlierlensError, need, one_line

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 5.0
POLL_SECONDS = 0.5
LONGEST = 300  # letters of what an error of Ray says
Piece = TypeVar("Piece")


class Pool:
    """Run `machines.workers` tasks at once, or the number for which the machines have room, as they come and go.

    Attributes:
        losses: worker processes that a piece may end. patience: seconds without any machine for a worker.
    """

    patience = 600.0

    def __init__(self, machines: Machines, *, gpus: float = 0.0, losses: int = 5):
        """Connect to `machines.ray` ("auto", "host:port", "ray://host:port"), or start Ray on this machine alone ("local").

        Raises:
            BadInput: no cluster at that address. MissingExtra: Ray is not installed.
        """
        self.cpus, self.gpus = 1.0 if machines.cpus_per_worker is None else machines.cpus_per_worker, gpus
        self.losses, self._wanted = losses, machines.workers
        self.ray, self._started_here = connect(machines.ray)
        self._task = self.ray.remote(_work).options(num_cpus=self.cpus, num_gpus=gpus, max_retries=losses - 1)

    def send(self, make: Callable[[], Callable[[Any], Any]]) -> Any:
        """What `map` takes; raises BadInput where `make` cannot be sent."""
        try:
            return self.ray.put(make)
        except Exception as error:  # picklers raise what they like
            raise BadInput(
                f"what a worker needs cannot be sent to it ({_said(error)}); give the options that the model was loaded "
                f"with, so that workers load it by name"
            ) from error

    @property
    def workers(self) -> int:
        """How many there are; never below 1, since a cluster that grows by demand must see some."""
        return self._wanted or max(1, room(self.ray, self.cpus, self.gpus))

    def map(self, made: Any, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, Any]]:
        """(piece, its answer) as they are done; the answer is an `OutlierlensError` where `losses` workers ended over it.

        Raises:
            OutlierlensError: the work itself fails, or no worker can be had.
        """
        running, ready, seen = dict[Any, Piece](), list[tuple[Piece, Any]](), time.monotonic()
        try:
            while True:
                for piece in islice(pieces, max(0, self.workers - len(running))):
                    running[self._task.remote(__version__, [made], piece)] = piece
                yield from ready  # when whoever became free was given work
                if not running:
                    return
                done, _ = self.ray.wait([*running], timeout=POLL_SECONDS)
                if done or room(self.ray, self.cpus, self.gpus):
                    seen = time.monotonic()
                elif time.monotonic() - seen > self.patience:
                    raise OutlierlensError(
                        f"no Ray worker could be had for {self.patience:.0f} s: each needs {self.cpus:g} CPUs and "
                        f"{self.gpus:g} GPUs; add machines, or lower what a worker needs. Finished measurements are kept"
                    )
                ready = [(running.pop(ref), self._answer(ref)) for ref in done]
        finally:
            for ref in running:
                with contextlib.suppress(Exception):  # Ray may be gone
                    self.ray.cancel(ref, force=True)

    def _answer(self, ref: Any) -> Any:
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            raise (
                error.cause if isinstance(error.cause, OutlierlensError) else OutlierlensError(_said(error))
            ) from error
        except self.ray.exceptions.RayError as error:
            return OutlierlensError(_said(error))

    def close(self) -> None:
        """End Ray if it was started here."""
        if self._started_here and self.ray.is_initialized():
            self.ray.shutdown()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _work(version: str, make: list[Any], piece: Any) -> Any:
    """In a worker process, which keeps what was made for the pieces that follow."""
    ray: Any = __import__("ray")
    where = f"Ray worker on {ray.util.get_node_ip_address()}"
    if version != __version__:
        raise BadInput(
            f"{where}: outlierlens is {__version__} there and {version} here; install the same version on every machine"
        )
    try:
        return _made(make[0])(piece)
    except OutlierlensError as error:
        raise type(error)(f"{where}: {error}") from None
    except Exception as error:
        raise OutlierlensError(f"{where} failed: {type(error).__name__}: {_said(error)}") from error


@functools.lru_cache(maxsize=1)
def _made(make: Any) -> Callable[[Any], Any]:
    ray: Any = __import__("ray")
    made: Callable[[Any], Any] = ray.get(make)()
    return made


def _said(error: BaseException) -> str:
    return (one_line(str(error)) or type(error).__name__)[:LONGEST]


def connect(address: str | None) -> tuple[Any, bool]:
    """(the module `ray`, initialised; whether it was started by this call, here or as a connection).

    A Ray that this process has initialised before is used as it is. None starts one on this machine, reachable from
    this machine only.

    Raises:
        BadInput: no cluster at `address`, or one of another version.
        MissingExtra: Ray, or for "ray://" its client, is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    # Ray hides the GPUs from workers that asked for none only with a warning; such workers are told to use the CPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # What memory runs out for Ray would try for ever.
    os.environ.setdefault("RAY_task_oom_retries", "4")
    ray = need("ray", "ray", "the Ray engine")
    if ray.is_initialized():
        return ray, False
    address = None if address == "local" else address
    if address is not None:
        _answers(address)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        with _signals_kept():
            if address is None:
                # By default Ray's workers give way to whatever else runs, this process included.
                os.environ.setdefault("RAY_worker_niceness", "0")
                with _loopback(ray):
                    ray.init(address="local", include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
            else:
                ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises many classes for what can go wrong, some bare
        where = "Ray cannot be started here" if address is None else f"cannot use the Ray cluster at {address!r}"
        raise BadInput(f"{where}: {_said(error)}") from error
    return ray, True


def room(ray: Any, cpus: float, gpus: float) -> int:
    """How many workers of this size the machines that are up hold, whatever else runs on them."""
    count = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            fits = [has.get(name, 0.0) / size for name, size in (("CPU", cpus), ("GPU", gpus)) if size]
            count += int(min(fits) + 1e-6)
    return count


def _answers(address: str) -> None:
    """Raise where nothing listens: Ray itself would try again for minutes."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        try:
            need("grpc", "ray", "a ray:// address")
        except MissingExtra:
            raise MissingExtra(f"{address} needs Ray's client; run: pip install 'ray[client]'") from None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise BadInput(f"{address!r} is not an address of a Ray cluster; use auto, host:port or ray://host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise BadInput(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one there with ray start --head"
        ) from None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this process's own answer to SIGTERM: Ray replaces it with an exit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Have Ray listen to this machine only: where it is told 127.0.0.1, it looks for the network's address instead."""
    services = ray._private.services
    before = services.get_node_ip_address
    services.get_node_ip_address = lambda *_: LOOPBACK
    try:
        yield
    finally:
        services.get_node_ip_address = before
