"""Refuses every name that is looked up and every connection that is made outside this machine, and writes it down.

Python imports this file at its start wherever its folder is in PYTHONPATH, so processes that tests start are closed too.
What is refused stands in the file that OUTLIERLENS_OUTSIDE names, a line each: no `except OSError` can hide it there.
Sockets that are not Python's, a browser's or Ray's, are not seen; the browser's are watched by the browser's own tests.
"""

import contextlib
import functools
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LOG, OPEN = "OUTLIERLENS_OUTSIDE", "OUTLIERLENS_OPEN"
HERE = ("localhost", "", None, socket.gethostname())
CLOUDS = ("169.254.169.254", "metadata.google.internal")
_LOOKUPS = ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr")
_METHODS = ("connect", "connect_ex", "sendto", "sendmsg")


def outside(host: Any) -> bool:
    """Whether a name or an address is of another machine: not loopback, and none that a socket here can be bound to."""
    name = host.decode() if isinstance(host, bytes) else host
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name not in HERE
    if address.is_loopback or address.is_unspecified:
        return False
    with contextlib.closing(socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6)) as mine:
        try:
            mine.bind((str(name), 0))
        except OSError:
            return True
    return False


def _refuse(what: object) -> None:
    # Ray's dashboard asks at its start which cloud it is in, whatever its settings; it gets no answer, and no entry.
    of_ray = Path(sys.argv[0]).match("ray/dashboard/dashboard.py") and any(name in str(what) for name in CLOUDS)
    if not of_ray and (log := os.environ.get(LOG)):
        with Path(log).open("a", encoding="utf-8") as lines:
            lines.write(f"{what}\n")
    raise OSError(f"closed network: {what}")


def _lookup(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def closed(host: Any, *rest: Any, **more: Any) -> Any:
        # An address needs no look-up; that it is outside is said when it is connected to.
        if OPEN not in os.environ and outside(host) and not _is_address(host):
            _refuse(host)
        return real(host, *rest, **more)

    return closed


def _is_address(host: Any) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _method(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def closed(self: socket.socket, *given: Any) -> Any:
        address = given[-1] if name != "sendmsg" else (given[3] if len(given) > 3 else None)
        # To connect a datagram socket sends nothing; it is how a program asks for its own address.
        silent = name.startswith("connect") and self.type == socket.SOCK_DGRAM
        if not silent and OPEN not in os.environ and isinstance(address, tuple) and outside(address[0]):
            _refuse(address)
        return real(self, *given)

    return closed


def close() -> None:
    """Close the network in this process; once is enough, again does nothing."""
    if hasattr(socket.getaddrinfo, "__wrapped__"):
        return
    for name in _LOOKUPS:
        setattr(socket, name, _lookup(getattr(socket, name)))
    for name in _METHODS:
        setattr(socket.socket, name, _method(name, getattr(socket.socket, name)))


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """The network, for this process and the ones it starts: to fetch what tests of real models read."""
    os.environ[OPEN] = "1"
    try:
        yield
    finally:
        del os.environ[OPEN]


if __name__ == "sitecustomize":
    close()
