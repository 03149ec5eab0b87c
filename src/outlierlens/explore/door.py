"""What the live page's server lets in: requests that name this machine, of a size that a page sends.

launch(app_kwargs={"middleware": [(Door, (), {"hosts": ("127.0.0.1", "localhost")})]})

A page elsewhere can have its own name point at 127.0.0.1 (DNS rebinding) or send a form there: a browser says so in `Host` and
`Origin`, and such requests are refused before anything reads them. No request of the page is larger than some kilobytes.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

MOST_BYTES = 4 * 2**20

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
        if not named or not all(map(self._knows, named)) or (b"origin", "null") in headers:
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
            begun = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except _TooLarge:
            if begun:
                raise
            await _refuse(scope, send, 413, f"a request may have {MOST_BYTES:,} bytes")

    def _knows(self, address: str) -> bool:
        try:
            host = urlsplit(address).hostname or ""
        except ValueError:
            return False
        return any(host.endswith(one) if one.startswith(".") else host == one for one in self.hosts)


class _TooLarge(Exception):
    """A body without a stated length has grown too large."""


async def _refuse(scope: Message, send: Send, status: int, said: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said.encode()})
