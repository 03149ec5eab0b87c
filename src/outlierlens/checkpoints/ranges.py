"""Byte ranges of files on a hub: few requests, none believed before it is checked.

    wire = Wire(token)
    file = RemoteFile(wire, f"{wire.endpoint}/org/model/resolve/main/model.safetensors")
    first = file.head(65_536)                      # the first bytes; now file.size is known
    for run in merge(spans): file.read(run.start, run.end)
    for page in wire.pages(f"{wire.endpoint}/api/models", limit=2**24): page.body

The hub library's session sends the requests: its connections, proxies, certificates and time limits. Its own reader,
`HfFileSystem`, is not used: it asks the hub for a redirect before each range, keeps in memory whatever comes, and does not look
at which range that is.
"""

import importlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from urllib.parse import urljoin, urlsplit

from outlierlens import __version__
from outlierlens.errors import BadFile, BadInput, GatedModel, RemoteError, TooMuchToRead

GAP_BYTES = 256_000  # below this, reading on is cheaper than another round trip
RUN_BYTES = 32 * 2**20  # a longer run is cut between tensors, so that it loads in parallel and in bounded memory
MAX_REDIRECTS = 5
MAX_PEEK = 65_536  # body bytes of a redirect or an error that are read to keep the connection
WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before each retry
SLOW = 1000, 30.0  # bytes a second on average, after so many seconds: a slower body is given up
LONGEST_WAIT = 300.0  # seconds that a server may ask for; the hub counts requests over five minutes

GAINED = 65_536  # bytes of a range after which a broken connection is a new one, however often that happens

_BUSY = (408, 429, 500, 502, 503, 504)
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})\Z")
_NEXT = re.compile(r'<([^<>]*)>[^<>,]*;\s*rel="?next\b')
_NUMBER = re.compile(r"[0-9]{1,18}\Z")  # str.isdigit also takes superscripts, which int refuses
_sleep, _clock = time.sleep, time.monotonic


class Rate:
    """Requests per second to the hub that all threads of a process share; None means without limit."""

    def __init__(self, per_second: float | None = None):
        self._step = 1 / per_second if per_second else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until the next request may go out."""
        with self._lock:
            now = _clock()
            at = max(now, self._next)
            self._next = at + self._step
        if at > now:
            _sleep(at - now)


@dataclass(frozen=True)
class Answer:
    """What `url` answered: `target` is where it redirects to, `total` the file's size, `commit` the model's."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytearray
    total: int = 0
    target: str = ""
    commit: str = ""


class Wire:
    """GETs to the hub at HF_ENDPOINT and to where it redirects; the token goes to the endpoint alone.

    Attributes:
        endpoint: the hub's address.
        requests: every request sent so far, redirects and retries included.
        received: body bytes received so far.
        token: what the endpoint is told, or None.
    """

    def __init__(self, token: str | None = None, *, rate: Rate | None = None, max_bytes: int | None = None):
        """`max_bytes` of all answers together; None is no limit."""
        from huggingface_hub import constants, get_session, get_token

        token = token or (None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token())
        if token and not (token.isascii() and token.isprintable()):
            raise BadInput("the hub token holds characters that no token has; check HF_TOKEN or run `hf auth login`")
        self.endpoint, self.requests, self.received = hub_endpoint(), 0, 0
        self.token, self._rate, self._max_bytes = token, rate or Rate(), max_bytes
        self._library = _library_of(get_session())
        self._lock = threading.Lock()

    def get(self, url: str, *, limit: int = 0, span: tuple[int, int] | None = None) -> Answer:
        """The answer of `url`, or of what it redirects to; a body only with 200 (whole) or 206 (`span`).

        Raises:
            RemoteError: unreachable, busy after all retries, too many redirects, a whole body of more than `limit`
                bytes, or an answer that is not the `span` asked for.
            TooMuchToRead: with it, more than `max_bytes` would have been received.
        """
        most = self._max_bytes
        if most is not None and self.received + (span[1] - span[0] if span else 0) > most:
            raise TooMuchToRead(f"{shown(url)}: more than {most:,} bytes would be read of this model; raise the limit")
        commit = ""
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._patiently(url, span, limit)
            commit = commit or answer.headers.get("x-repo-commit", "")
            if not answer.target:
                return replace(answer, commit=commit)
            url = answer.target
        raise RemoteError(f"{shown(url)}: more than {MAX_REDIRECTS} redirects; check HF_ENDPOINT")

    def pages(self, url: str, *, limit: int) -> Iterator[Answer]:
        """The answers of `url` and of every page that a Link header names as the next, each of at most `limit` bytes.

        Raises:
            RemoteError: see `get`; a next page is of another scheme, host or port than the endpoint, or was there before.
        """
        asked = set[str]()
        while url:
            if url in asked or _origin(url) != _origin(self.endpoint):
                wrong = "a second time" if url in asked else f"and not of {self.endpoint}"
                raise RemoteError(f"{shown(url)}: named as the next page {wrong}; check HF_ENDPOINT")
            asked.add(url)
            answer = self.get(url, limit=limit)
            yield answer
            following = _NEXT.search(answer.headers.get("link", ""))
            url = _target(answer.url, following[1], "names as the next page") if following else ""

    def _patiently(self, url: str, span: tuple[int, int] | None, limit: int) -> Answer:
        came, failures = _Came(), 0
        while True:
            asked, before = 0.0, len(came.body)
            if _origin(url) == _origin(self.endpoint):
                self._rate.wait()
            try:
                answer = self._once(url, span, limit, came)
            except (self._library.InvalidURL, UnicodeError):
                raise RemoteError(f"{shown(url)}: not a valid address; check HF_ENDPOINT") from None
            except self._library.TransportError as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                if answer.status not in _BUSY:
                    return answer
                problem, said = f"status {answer.status}", answer.headers.get("retry-after", "").strip()
                asked = float(said) if _NUMBER.match(said) else 0.0
            if asked > LONGEST_WAIT:
                raise RemoteError(f"{shown(url)}: {problem}; the server asks to wait {asked:,.0f} s; try again then")
            if len(came.body) - before >= GAINED:
                failures = 0
            if not came.etag:  # nobody can tell whether the rest will be of the same file
                came.body.clear()
            if failures == len(WAITS):
                raise RemoteError(
                    f"{shown(url)}: {problem}, {len(WAITS) + 1} times; check the network and HF_ENDPOINT, or pass --model-args "
                    "offline to use a copy in the local hub cache"
                )
            _sleep(max(WAITS[failures], asked))
            failures += 1

    def _once(self, url: str, span: tuple[int, int] | None, limit: int, came: "_Came") -> Answer:
        from huggingface_hub import constants, get_session

        client: Any = get_session()  # each time: the library closes its session where a request of its own fails
        if span:  # what came before a connection broke is not asked for again
            span = (span[0] + len(came.body), span[1])

        headers = {"user-agent": f"outlierlens/{__version__}", "accept-encoding": "identity"}
        if self.token and _origin(url) == _origin(self.endpoint):
            headers["authorization"] = f"Bearer {self.token}"
        if span:
            headers["range"] = f"bytes={span[0]}-{span[1] - 1}"
        asked = client.build_request("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
        with self._lock:
            self.requests += 1
        with closing(client.send(asked, stream=True, follow_redirects=False)) as response:
            status, told = int(response.status_code), {k.lower(): v for k, v in response.headers.items()}
            wanted, total, most = status in (200, 206), 0, limit
            body = bytearray()
            if status == 206 and span:
                most, total = _checked_span(told, span, url)
                if came.body and told.get("etag", "") != came.etag:
                    raise RemoteError(f"{shown(url)}: the file changed while it was read; run again")
                came.etag, body = told.get("etag", ""), came.body
            elif status == 200 and span:
                # Leaving the block closes the connection: the body is never downloaded.
                raise RemoteError(
                    f"{shown(url)}: the server ignores byte ranges and would send the whole file; download the model "
                    "(`hf download`) and pass the directory"
                )
            if wanted and told.get("content-encoding", "identity") != "identity":
                raise RemoteError(f"{shown(url)}: answered compressed although that was refused; check the proxy")
            got = self._take(response, most if wanted else MAX_PEEK, body)
        if wanted and (got > most or (total and got < most)):
            sent = "more than" if got > most else f"{got:,} of"
            raise RemoteError(f"{shown(url)}: sends {sent} {most:,} bytes; is it the right file?")
        target = _target(url, told.get("location", "")) if status in (301, 302, 303, 307, 308) else ""
        return Answer(url, status, told, body if wanted else bytearray(), total, target)

    def _take(self, response: Any, limit: int, body: bytearray) -> int:
        """Add what arrives to `body`, up to the first chunk past `limit`; how many bytes.

        Memory grows with what came, not with what was said.
        """
        got, began, (least, seconds) = 0, _clock(), SLOW
        for chunk in response.iter_raw():
            body += chunk
            got += len(chunk)
            with self._lock:
                self.received += len(chunk)
            if got > limit:
                break
            took = _clock() - began
            if took > seconds and got < min(limit, least * took):
                raise self._library.ReadTimeout(f"fewer than {least:,} bytes per second")
        return got


@dataclass
class _Came:
    """What came of a range before its connection broke, and of which file."""

    body: bytearray = field(default_factory=bytearray)
    etag: str = ""


@dataclass
class RemoteFile:
    """A file behind `url`; the place that its redirect leads to is asked for once and then reused."""

    wire: Wire
    url: str
    size: int = 0
    commit: str = ""
    _location: str = ""
    _etag: str = ""

    def head(self, guess: int) -> bytearray | None:
        """The first bytes, at most `guess`, or None where there is no such file; sets `size` and `commit`."""
        answer = self.wire.get(self.url, span=(0, guess))
        self.commit = answer.commit
        return None if answer.status == 404 else self._accept(answer)

    def read(self, start: int, end: int) -> bytearray:
        """Bytes [start, end) of the file."""
        answer = self.wire.get(self._location or self.url, span=(start, end))
        if self._location and answer.status in (401, 403):  # a signed address that ran out
            answer = self.wire.get(self.url, span=(start, end))
        return self._accept(answer)

    def _accept(self, answer: Answer) -> bytearray:
        if answer.status == 416:
            raise BadFile(f"{shown(self.url)}: the file is empty or shorter than announced; choose another revision")
        if answer.status != 206:
            raise refused(answer, self.wire.endpoint)
        etag = answer.headers.get("etag", "")
        if self.size and (answer.total, etag) != (self.size, self._etag):
            raise RemoteError(f"{shown(self.url)}: the file changed while it was read; run again")
        self.size, self._etag = answer.total, etag
        if answer.url != self.url:
            self._location = answer.url
        return answer.body


@dataclass(frozen=True)
class Run:
    """Bytes [start, end) to be read at once, and the names of the tensors that lie in them."""

    start: int
    end: int
    names: tuple[str, ...]


def merge(spans: Iterable[tuple[int, int, str]], *, gap: int = GAP_BYTES, longest: int = RUN_BYTES) -> list[Run]:
    """Runs that cover all (start, end, name), neighbours joined where less than `gap` bytes lie between them.

    A run is at most `longest` bytes, unless a single tensor is longer. Empty tensors need no bytes and no run.
    """
    runs: list[Run] = []
    for start, end, name in sorted(span for span in spans if span[1] > span[0]):
        last = runs[-1] if runs else None
        if last and start - last.end < gap and end - last.start <= longest:
            runs[-1] = Run(last.start, end, (*last.names, name))
        else:
            runs.append(Run(start, end, (name,)))
    return runs


def refused(answer: Answer, endpoint: str) -> RemoteError:
    """What a status other than the hoped-for one means, and what to do about it."""
    said = answer.headers.get("x-error-message", "")[:200]
    detail = f" ({''.join(c for c in said if c.isprintable())})" if said else ""
    kind: type[RemoteError] = GatedModel
    if answer.headers.get("x-error-code") == "GatedRepo":
        remedy = "the model is gated: accept its terms on its page, then run `hf auth login` or set HF_TOKEN"
    elif answer.status in (401, 403) and _origin(answer.url) == _origin(endpoint):
        remedy = "check the model's name; if it is private or gated, run `hf auth login` or set HF_TOKEN"
    else:
        kind, remedy = RemoteError, "try again later, or download the model (`hf download`) and pass the directory"
    return kind(f"{shown(answer.url)}: status {answer.status}{detail}; {remedy}")


def shown(url: str) -> str:
    """`url` without its query and user, which may hold signatures."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def hub_endpoint() -> str:
    """The hub's address by HF_ENDPOINT, without a slash at its end; raises BadInput where that is not an address."""
    from huggingface_hub import constants

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    try:
        sound = urlsplit(endpoint).scheme in ("http", "https") and bool(urlsplit(endpoint).hostname)
    except ValueError:
        sound = False
    if not sound:
        raise BadInput(f"HF_ENDPOINT is {endpoint!r}; set it to an address such as https://huggingface.co")
    return endpoint


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _target(url: str, location: str, how: str = "redirects to") -> str:
    try:
        target = urljoin(url, location)
        _origin(target)
    except ValueError:
        target = ""
    old, new = urlsplit(url).scheme, urlsplit(target).scheme
    if not location or new not in ("http", "https") or (old == "https" and new == "http"):
        raise RemoteError(f"{shown(url)}: {how} no safe address; check HF_ENDPOINT")
    return target


def _checked_span(headers: Mapping[str, str], span: tuple[int, int], url: str) -> tuple[int, int]:
    """(bytes to expect, size of the file) from Content-Range, which must be what was asked for."""
    said = headers.get("content-range", "")
    match = _CONTENT_RANGE.match(said)
    start, end, total = (int(match[1]), int(match[2]) + 1, int(match[3])) if match else (0, 0, 0)
    if not match or start != span[0] or end != min(span[1], total) or end <= start:
        raise RemoteError(
            f"{shown(url)}: answered the range {said[:60]!r} where bytes {span[0]}-{span[1] - 1} were asked for; "
            "download the model (`hf download`) and pass the directory"
        )
    return end - start, total


def _library_of(client: Any) -> ModuleType:
    # huggingface_hub 1.x stands on httpx, 2.x on httpx2: their errors are different classes of the same names.
    base = next(kind for kind in type(client).__mro__ if kind.__name__ == "Client")
    return importlib.import_module(base.__module__.partition(".")[0])
