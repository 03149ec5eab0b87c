"""Reach a Ray cluster, or start Ray on this machine alone: nothing is reported, nothing listens to the network.

ray, started_here = connect("auto")
room(ray, cpus=1.0, gpus=0.5)             # workers that the cluster's machines hold together
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outlierlens.errors import BadInput, MissingExtra, need

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 5.0


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
        raise BadInput(f"{where}: {' '.join(str(error).split())[:300]}") from error
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
        raise BadInput(f"{address!r} is no address of a Ray cluster; use auto, host:port or ray://host:port")
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
