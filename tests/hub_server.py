"""A hub on 127.0.0.1 for tests and benchmarks: one server that knows models, one that holds their large files.

    with FakeHub() as hub:
        hub.add("org/model", {"config.json": b"{}", "model.safetensors": Path("model.safetensors")})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        ...
        hub.seen                 # every request: server, path, range, authorization, status, bytes of the body
        hub.most_at_once, hub.connections

As on the real hub, a weight file's address answers with a redirect to the other server (unless redirect=False).
`hub.tamper["model.safetensors"] = function` lets a test answer in its place: it gets the handler and the request
and returns True where it has answered.
"""

import json
import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from moments import until

COMMIT = "c0ffee" + "0" * 34
LARGE = (".safetensors", ".bin", ".gguf", ".onnx")


@dataclass
class Seen:
    """One request as it arrived and what was answered: `span` is [start, end) of its Range header."""

    server: str
    path: str
    query: str
    span: tuple[int, int] | None
    authorization: str | None
    status: int = 0
    sent: int = 0


class FakeHub:
    """Two threaded servers that count; see the module's text."""

    def __init__(self, *, redirect: bool = True):
        self.redirect = redirect
        self.together = 1  # so many requests must have been there at once before one is answered
        self.models: MutableMapping[str, Mapping[str, bytes | Path]] = {}
        self.cards: dict[
            str, dict[str, Any]
        ] = {}  # by model: what the list says: sha, downloads, tags, pipeline_tag, …
        self.page = 1000  # models of one page of the list
        self.tamper: dict[str, Callable[[Handler, Seen], bool]] = {}
        self.headers: dict[str, str] = {}
        self.sha256: dict[str, str] = {}  # of large files by name, as the hub names them
        self.token: str | None = None
        self.seen: list[Seen] = []
        self.connections: dict[str, int] = {"hub": 0, "cdn": 0}
        self.most_at_once = self.at_once = 0
        self.lock = threading.Lock()
        self.servers = {name: _Server(name, self) for name in ("hub", "cdn")}

    def __enter__(self) -> "FakeHub":
        for server in self.servers.values():
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def add(self, model: str, files: Mapping[str, bytes | Path]) -> None:
        """Serve `files` ({path in the repository: content or a file}) as `model`, revisions main and `COMMIT`."""
        self.models[model] = dict(files)

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT must be."""
        return self.servers["hub"].address

    @property
    def sent(self) -> int:
        """Bytes of bodies sent so far."""
        return sum(seen.sent for seen in self.seen)

    def requests(self, ending: str) -> list[Seen]:
        """The requests for files whose path has this ending, in order of arrival."""
        return [seen for seen in self.seen if seen.path.endswith(ending)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, name: str, fake: FakeHub):
        self.name, self.fake = name, fake
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    """Answers like the hub or like the store behind it, by the server it belongs to."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.fake.lock:
            self.server.fake.connections[self.server.name] += 1

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet; `FakeHub.seen` is the log."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        fake, parts = self.server.fake, urlsplit(self.path)
        seen = Seen(self.server.name, unquote(parts.path), parts.query, _span(self.headers.get("Range")), None)
        seen.authorization = self.headers.get("Authorization")
        self.seen = seen
        with fake.lock:
            fake.seen.append(seen)
            fake.at_once += 1
            fake.most_at_once = max(fake.most_at_once, fake.at_once)
        try:
            until(lambda: fake.most_at_once >= fake.together)
            tampering = [act for ending, act in fake.tamper.items() if seen.path.endswith(ending)]
            if not any(act(self, seen) for act in tampering):
                self.from_hub(seen) if self.server.name == "hub" else self.from_store(seen)
        finally:
            with fake.lock:
                fake.at_once -= 1

    def from_hub(self, seen: Seen) -> None:
        fake = self.server.fake
        if seen.path == "/api/models":
            return self.listed(dict(parse_qsl(seen.query)))
        if seen.path.startswith("/api/models/"):
            model, _, revision = seen.path.removeprefix("/api/models/").partition("/revision/")
            listing = {"siblings": [{"rfilename": name} for name in fake.models.get(model, ())]}
            return self.reply(200 if model in fake.models else 404, json.dumps(listing).encode())
        model, _, rest = seen.path[1:].partition("/resolve/")
        revision, _, name = rest.partition("/")
        if fake.token and seen.authorization != f"Bearer {fake.token}":
            return self.reply(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        if model not in fake.models:
            return self.reply(404, b"Repository not found", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", COMMIT):
            return self.reply(404, b"Revision not found", {"X-Error-Code": "RevisionNotFound"})
        if name not in fake.models[model]:
            return self.reply(404, b"Entry not found", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        if fake.redirect and name.endswith(LARGE):
            target = f"{fake.servers['cdn'].address}/{model}/{name}?signature=secret"
            size = str(_size(fake.models[model][name]))
            linked = {"X-Linked-ETag": f'"{fake.sha256[name]}"'} if name in fake.sha256 else {}
            told = {"Location": target, "X-Repo-Commit": COMMIT, "X-Linked-Size": size} | linked
            return self.reply(302, b"Found", told)
        return self.file(fake.models[model][name], {"X-Repo-Commit": COMMIT})

    def listed(self, asked: dict[str, str]) -> None:
        """A page of the models that have a card and fit, most downloads first, with a link to the next one."""
        fake = self.server.fake
        fits = [
            {"id": model, **card}
            for model, card in fake.cards.items()
            if asked.get("pipeline_tag") in (None, card.get("pipeline_tag"))
            and asked.get("filter") in (None, *card.get("tags", ()))
            and model.startswith(asked.get("author", ""))
            and asked.get("search", "") in model
        ]
        fits.sort(key=lambda card: -card.get("downloads", 0))
        start = int(asked.get("cursor", 0))
        following = urlencode(asked | {"cursor": start + fake.page})
        more = (
            {"Link": f'<{fake.endpoint}/api/models?{following}>; rel="next"'} if len(fits) > start + fake.page else {}
        )
        self.reply(200, json.dumps(fits[start : start + fake.page]).encode(), more)

    def from_store(self, seen: Seen) -> None:
        parts = seen.path[1:].split("/")
        for model, name in (("/".join(parts[:n]), "/".join(parts[n:])) for n in (2, 1)):
            files = self.server.fake.models.get(model, {})
            if name in files:
                return self.file(files[name], {})
        return self.reply(404, b"no such object")

    def file(self, content: bytes | Path, headers: dict[str, str]) -> None:
        """The file, or the part of it that the request names."""
        size = _size(content)
        headers = headers | {"ETag": f'"{size}"'} | self.server.fake.headers
        if self.seen.span is None:
            return self.reply(200, _part(content, 0, size), headers)
        start, end = self.seen.span[0], min(self.seen.span[1], size)
        if start >= size:
            return self.reply(416, b"", {"Content-Range": f"bytes */{size}"})
        return self.reply(
            206, _part(content, start, end), {"Content-Range": f"bytes {start}-{end - 1}/{size}"} | headers
        )

    def reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer; `headers` may lie about the length of `body`."""
        headers = {"Content-Length": str(len(body))} | dict(headers or {})
        self.seen.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        for start in range(0, len(body) if self.command == "GET" else 0, 16_384):
            # Counted first: the client may have read it all before a line after the write would run.
            self.seen.sent += len(body[start : start + 16_384])
            self.wfile.write(body[start : start + 16_384])


def _span(header: str | None) -> tuple[int, int] | None:
    if header is None:
        return None
    start, _, last = header.removeprefix("bytes=").partition("-")
    return int(start), int(last) + 1


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _part(content: bytes | Path, start: int, end: int) -> bytes:
    if isinstance(content, bytes):
        return content[start:end]
    with content.open("rb") as file:
        file.seek(start)
        return file.read(end - start)
