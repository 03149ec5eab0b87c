"""Start the page on this machine alone, with nothing loaded from anywhere: `serve(explorer, explorer.start(), Place())`.

Requests are let in that name this machine and are of a size that a page sends. A page elsewhere can have its own name point at
127.0.0.1 (DNS rebinding), send a form there or load its parts: a browser says so in `Host`, `Origin` and `Sec-Fetch-Site`, and
`Door` refuses such requests before anything reads them.
"""

import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from outlierlens.errors import BadInput, one_line
from outlierlens.explore.look import Explorer
from outlierlens.explore.page import gradio, launch_options, page
from outlierlens.explore.state import Place, Selection

LOOPBACK = "127.0.0.1"
MOST_BYTES = 2**20  # of a request that shows a state, whose text may be long
BODIES = {"join": MOST_BYTES, "cancel": 2**12, "reset": 2**12}  # by the end of the path; others have no body
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Door:
    """An ASGI application around `app`: 403 for another host or origin than this machine.

    403 too for what a page of another site asks for. 411 for a body whose length is not said beforehand, 413 for one above
    `BODIES`.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]):
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if refusal := self._refusal(scope):
            await _refuse(scope, send, *refusal)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception as error:  # of the library, which what is asked for is news to
            if begun:
                await send({"type": "http.response.body"})
            else:
                await _refuse(scope, send, 400, _cannot(error))

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        """The status and the words with which a request is refused; None lets it in."""
        from starlette.datastructures import Headers

        given = Headers(scope=scope).getlist
        own, origins = [_address(f"//{host}") for host in given("host")], [_address(one) for one in given("origin")]
        places = own + origins
        known = (host in (LOOPBACK, "localhost") for host, _ in places)
        # A page that sends from an address names the port that it sends to, where both say one.
        if not own or not all(known) or len({port for _, port in places if port}) > 1:
            return 403, "this page answers on this machine alone"
        if not {*given("sec-fetch-site")} <= {"same-origin", "none"}:
            return 403, "another site asks for this page; type its address into the browser"
        if given("transfer-encoding"):
            return 411, "a request says how long its body is"
        most = BODIES.get(scope["path"].rstrip("/").rpartition("/")[2], 0)
        if any(not length.isdecimal() or int(length) > most for length in given("content-length")):
            return 413, f"this request may have {most:,} bytes"
        return None


def _address(url: str) -> tuple[str, int | None]:
    """(host, port where one is said or known) of an address; ("", None) of what is none."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", None


def _cannot(error: Exception) -> str:
    return f"this cannot be answered ({one_line(f'{type(error).__name__}: {error}')[:200]}); open the page anew"


async def _refuse(scope: Message, send: Send, status: int, said: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said.encode()})


def _opened(port: int) -> int | None:
    """The port, of 0 the one that the system gives; None where it cannot be opened."""
    try:
        with socket.create_server((LOOPBACK, port)) as tried:
            return int(tried.getsockname()[1])
    except OSError:
        return None


def free_port(asked: int | None) -> int:
    """The port asked for, or the first free one from 7860; raises BadInput where it is taken."""
    for port in (asked,) if asked is not None else range(7860, 7960):
        if (free := _opened(port)) is not None:
            return free
    which = f"port {asked} is" if asked is not None else "ports 7860 to 7959 are"
    raise BadInput(f"{which} taken or not allowed; name another with --port")


@contextlib.contextmanager
def served(explorer: Explorer, start: Selection, place: Place) -> Iterator[str]:
    """Serve the page inside the block; yields its address."""
    free_port(place.port)  # a port that is taken is said before the page is made
    blocks = page(explorer, start)
    answer = blocks.process_api

    async def told(*args: Any, **named: Any) -> Any:
        try:
            return await answer(*args, **named)
        except Exception as error:  # of values that no control sends; the library would print its traceback
            raise gradio().Error(_cannot(error), print_exception=False) from None

    blocks.process_api = told
    options = {"share": False, "app_kwargs": {"middleware": [(Door, (), {})]}, **launch_options()}
    while True:
        port = free_port(place.port)
        try:
            _, address, _ = blocks.launch(server_name=LOOPBACK, server_port=port, prevent_thread_lock=True, **options)
            break
        except OSError:
            if _opened(port) is not None:  # no other process has taken it meanwhile
                raise
    try:
        yield address
    finally:
        blocks.close(verbose=False)


def serve(explorer: Explorer, start: Selection, place: Place, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C or SIGTERM; its address is said first."""
    with served(explorer, start, place) as address:
        say(f"exploring {explorer.loaded.name} at {address} (this machine only; Ctrl-C ends it)")
        threading.Event().wait()
