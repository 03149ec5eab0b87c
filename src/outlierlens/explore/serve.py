"""Start the page on this machine alone: 127.0.0.1, no other host's name, no analytics, nothing loaded from anywhere.

serve(explorer, explorer.start(), Place(port=7860))        # blocks until it is interrupted

Requests are let in that name this machine and are of a size that a page sends. A page elsewhere can have its own name point at
127.0.0.1 (DNS rebinding) or send a form there: a browser says so in `Host` and `Origin`, and `Door` refuses such requests
before anything reads them. No request of the page is larger than some kilobytes.

With `share`, gradio opens a tunnel through gradio's servers, and anyone who has its address can use the page for a week.
"""

import contextlib
import socket
import webbrowser
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from outlierlens.errors import BadInput
from outlierlens.explore.look import Explorer
from outlierlens.explore.options import PORT, Place
from outlierlens.explore.page import launch_options, page
from outlierlens.explore.result import State

LOOPBACK = "127.0.0.1"
TUNNEL = ".gradio.live"
TRIED = 100
MOST_BYTES = 4 * 2**20

_PORTS = {"http": 80, "https": 443}
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Door:
    """An ASGI application around `app`: 403 for another host or origin than `hosts` (".a.b": every name that ends so).

    413 for a body above `MOST_BYTES`, whether its length is said beforehand or not.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], hosts: Sequence[str]):
        self.app, self.hosts = app, tuple(hosts)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        named = [f"//{value}" for name, value in headers if name == b"host"]
        named += [value for name, value in headers if name == b"origin" and value != "null"]
        if not named or not all(map(self._knows, named)) or not _same_port(headers) or (b"origin", "null") in headers:
            await _refuse(scope, send, 403, "this page answers on this machine alone")
            return
        lengths = [value for name, value in headers if name == b"content-length"]
        if any(not length.isdecimal() or int(length) > MOST_BYTES for length in lengths):
            await _refuse(scope, send, 413, f"a request may have {MOST_BYTES:,} bytes")
            return
        await self._counted(scope, receive, send)

    async def _counted(self, scope: Message, receive: Receive, send: Send) -> None:
        read, begun = 0, False

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MOST_BYTES:
                raise _TooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            if begun or read <= MOST_BYTES:  # an application may take the end of the body for one that is malformed
                begun = True
                await send(message)

        try:
            await self.app(scope, counted, noted)
        except _TooLarge:
            if begun:
                raise
        if read > MOST_BYTES and not begun:
            await _refuse(scope, send, 413, f"a request may have {MOST_BYTES:,} bytes")

    def _knows(self, address: str) -> bool:
        try:
            host = urlsplit(address).hostname or ""
        except ValueError:
            return False
        return any(host.endswith(one) if one.startswith(".") else host == one for one in self.hosts)


def _same_port(headers: Sequence[tuple[bytes, str]]) -> bool:
    """Whether a page that sends from an address names the port that it sends to, where both say one."""
    given = dict(headers)
    try:
        here, origin = urlsplit(f"//{given.get(b'host', '')}"), urlsplit(given.get(b"origin", ""))
        return None in (here.port, origin.hostname) or here.port == (origin.port or _PORTS.get(origin.scheme))
    except ValueError:
        return False


class _TooLarge(Exception):
    """A body without a stated length has grown too large."""


async def _refuse(scope: Message, send: Send, status: int, said: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said.encode()})


def free_port(asked: int | None) -> int:
    """The port asked for, or the first free one; raises BadInput where it is taken."""
    for port in (asked,) if asked is not None else range(PORT, PORT + TRIED):
        with contextlib.closing(socket.socket()) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((LOOPBACK, port))
            except OSError:
                continue
            return int(tried.getsockname()[1])
    what = f"port {asked} is" if asked is not None else f"ports {PORT} to {PORT + TRIED - 1} are"
    raise BadInput(f"{what} taken or not allowed; name another with --port")


@contextlib.contextmanager
def served(explorer: Explorer, start: State, place: Place) -> Iterator[tuple[str, str | None]]:
    """Serve the page inside the block; yields its address and, where it is shared, the public one."""
    port = free_port(place.port)
    blocks: Any = page(explorer, start)
    hosts = (LOOPBACK, "localhost", *((TUNNEL,) if place.share else ()))
    _, address, public = blocks.launch(
        server_name=LOOPBACK,
        server_port=port,
        share=place.share,
        prevent_thread_lock=True,
        app_kwargs={"middleware": [(Door, (), {"hosts": hosts})]},
        **launch_options(),
    )
    try:
        yield address, public
    finally:
        blocks.close(verbose=False)


def serve(explorer: Explorer, start: State, place: Place, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C or SIGTERM; its address is said first."""
    import threading

    with served(explorer, start, place) as (address, public):
        say(f"exploring {explorer.loaded.name} at {address} (this machine only; Ctrl-C ends it)")
        if public:
            say(f"shared at {public}: anyone with this address can use the page, through gradio's servers")
        elif place.share:
            say("not shared: gradio's tunnel could not be opened; the page runs on this machine alone")
        if place.browser:
            webbrowser.open(address)
        threading.Event().wait()
