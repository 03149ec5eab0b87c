"""Byte ranges of remote and local files: few requests, none believed before it is checked.

    wire = Wire("https://huggingface.co", token)
    file = RemoteFile(wire, "https://huggingface.co/org/model/resolve/main/model.safetensors")
    first = file.head(65_536)                      # the first bytes; now file.size is known
    for run in merge(spans): file.read(run.start, run.end)
    for page in wire.pages("https://huggingface.co/api/models", limit=2**24): page.body

`Wire` makes single GETs (redirects, retries, counts, where the token may go), as often as its `Courtesy` allows;
`RemoteFile` and `LocalFile` read ranges, `merge` says which ranges are worth one request.
"""

import importlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urljoin, urlsplit

from outlierlens import __version__
from outlierlens.checkpoints import pace
from outlierlens.checkpoints.pace import NUMBER, Courtesy, Pace, TooSlow, seconds_asked, within
from outlierlens.errors import BadFile, BadInput, Gated, RemoteError, TooMuchToRead

GAP_BYTES = 256_000  # below this, reading on is cheaper than another round trip
RUN_BYTES = 32 * 2**20  # a longer run is cut between tensors, so that it loads in parallel and in bounded memory
PARALLEL = 8
MAX_REDIRECTS = 5
MAX_PEEK = 65_536  # body bytes of a redirect or an error that are read to keep the connection

_REDIRECTS = (301, 302, 303, 307, 308)
_BUSY = (408, 429, 500, 502, 503, 504)
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})\Z")
_NEXT = re.compile(r'<([^<>]*)>[^<>,]*;\s*rel="?next\b')


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
    """GETs over the hub library's shared session: kept connections, the user's proxies, certificates and token.

    Attributes:
        requests: every request sent so far, redirects and retries included.
        received: body bytes received so far.
    """

    def __init__(self, endpoint: str, token: str | None, courtesy: Courtesy | None = None):
        from huggingface_hub import constants, get_session, get_token

        token = token or (None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token())
        if token and not (token.isascii() and token.isprintable()):
            raise BadInput("the hub token holds characters that no token has; check HF_TOKEN or run `hf auth login`")
        self.endpoint, self._token, self._courtesy = endpoint, token, courtesy or Courtesy()
        self.requests = self.received = 0
        self._client: Any = get_session()
        self._library = _library_of(self._client)
        self._lock = threading.Lock()

    def get(self, url: str, *, limit: int, span: tuple[int, int] | None = None, hops: int = MAX_REDIRECTS) -> Answer:
        """The answer of `url`, redirects followed `hops` times; a body only with 200 (whole) or 206 (`span`).

        Raises:
            RemoteError: unreachable, busy after all retries, too many redirects, a whole body of more than `limit`
                bytes, or an answer that is not the `span` asked for.
            TooMuchToRead: with it, more bytes would be received than the courtesy allows.
        """
        most = self._courtesy.max_bytes
        if most is not None and self.received + (span[1] - span[0] if span else 0) > most:
            raise TooMuchToRead(f"{shown(url)}: more than {most:,} bytes would be read of this model; raise the limit")
        commit = ""
        for hop in range(hops + 1):
            answer = self._patiently(url, span, limit)
            commit = commit or answer.headers.get("x-repo-commit", "")
            if not answer.target or hop == hops < MAX_REDIRECTS:
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
        courtesy, host = self._courtesy, _origin(url)
        for attempt in range(courtesy.retries + 1):
            asked = None
            courtesy.turn(host, limited=host == _origin(self.endpoint))
            try:
                answer = self._once(url, span, limit)
            except self._library.TransportError as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
            except TooSlow as error:
                problem = str(error)
            except (self._library.InvalidURL, UnicodeError):
                raise RemoteError(f"{shown(url)}: not a valid address; check HF_ENDPOINT") from None
            else:
                if answer.status not in _BUSY:
                    return answer
                problem = f"status {answer.status}"
                asked = seconds_asked(answer.headers.get("retry-after", ""))
            if asked is not None and asked > courtesy.max_wait:
                raise RemoteError(f"{shown(url)}: {problem}; the server asks to wait {asked:,.0f} s; try again then")
            if attempt < courtesy.retries:
                courtesy.back_off(host, attempt, asked)
        raise RemoteError(
            f"{shown(url)}: {problem}, {courtesy.retries + 1} times; check the network and HF_ENDPOINT, or pass --offline "
            "to use a copy in the local hub cache"
        )

    def _once(self, url: str, span: tuple[int, int] | None, limit: int) -> Answer:
        headers = {"user-agent": f"outlierlens/{__version__}", "accept-encoding": "identity"}
        if self._token and _origin(url) == _origin(self.endpoint):
            headers["authorization"] = f"Bearer {self._token}"
        if span:
            headers["range"] = f"bytes={span[0]}-{span[1] - 1}"
        with self._lock:
            self.requests += 1
        from huggingface_hub import constants

        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        patience = max(pace.SECONDS, timeout)
        asked = self._client.build_request("GET", url, headers=headers, timeout=timeout)
        with closing(
            within(patience, lambda: self._client.send(asked, stream=True, follow_redirects=False))
        ) as response:
            status, told = int(response.status_code), {k.lower(): v for k, v in response.headers.items()}
            expected, total = -1, 0
            if status == 206 and span:
                expected, total = _checked_span(told, span, url)
            elif status == 200 and span:
                # Leaving the block closes the connection: the body is never downloaded.
                raise RemoteError(
                    f"{shown(url)}: the server ignores byte ranges and would send the whole file; download the model "
                    "(`hf download`) and pass the directory"
                )
            wanted = status in (200, 206)
            if wanted and told.get("content-encoding", "identity") != "identity":
                raise RemoteError(f"{shown(url)}: answered compressed although that was refused; check the proxy")
            body = self._body(response, expected if expected >= 0 else limit if wanted else MAX_PEEK, Pace(patience))
            if wanted and expected < 0 and len(body) > limit:
                raise RemoteError(f"{shown(url)}: sends more than {limit:,} bytes; is it the right file?")
            if expected >= 0 and len(body) != expected:
                raise RemoteError(
                    f"{shown(url)}: sent {'more' if len(body) > expected else f'{len(body):,}'} bytes where "
                    f"{expected:,} were announced; try again"
                )
        target = _target(url, told.get("location", "")) if status in _REDIRECTS else ""
        return Answer(url, status, told, body if wanted else bytearray(), total, target)

    def _body(self, response: Any, limit: int, arriving: Pace) -> bytearray:
        """What arrives, up to the first chunk past `limit`; memory grows with what came, not with what was said."""
        body = bytearray()
        for chunk in response.iter_raw():  # with a size, it would wait for that many bytes, however slowly they come
            body += chunk
            arriving.add(len(chunk))
            with self._lock:
                self.received += len(chunk)
            if len(body) > limit:
                break
        return body


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
        """The first bytes, about `guess` of them, or None where there is no such file; sets `size`.

        Where the redirect tells the file's size, a file of gigabytes is asked for more: its header is longer, and
        a second request costs more than the bytes.
        """
        answer = self.wire.get(self.url, limit=0, span=(0, guess), hops=0)
        self.commit = answer.commit
        if answer.target:
            linked = answer.headers.get("x-linked-size", "")
            if NUMBER.match(linked):
                guess = max(guess, min(int(linked) // 4000, 2**20))
            answer = self.wire.get(answer.target, limit=0, span=(0, guess))
        if answer.status == 404:
            return None
        return self._accept(answer)

    def read(self, start: int, end: int) -> bytearray:
        """Bytes [start, end) of the file."""
        place = self._location
        answer = self.wire.get(place or self.url, limit=0, span=(start, end))
        if place and answer.status in (401, 403):  # a signed address that ran out
            answer = self.wire.get(self.url, limit=0, span=(start, end))
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


class LocalFile:
    """A file on disk (in the hub's cache) with the same two calls as `RemoteFile`."""

    def __init__(self, path: Path):
        self.path, self.size, self.bytes = path, path.stat().st_size, 0
        self._lock = threading.Lock()

    def head(self, guess: int) -> bytearray:
        """The first bytes, at most `guess`."""
        return self.read(0, min(guess, self.size))

    def read(self, start: int, end: int) -> bytearray:
        """Bytes [start, end) of the file."""
        with self.path.open("rb") as file:
            file.seek(start)
            body = bytearray(file.read(end - start))
        with self._lock:
            self.bytes += len(body)
        if len(body) != end - start:
            raise BadFile(f"{self.path}: truncated; run `hf download` again")
        return body


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
    where, said = shown(answer.url), answer.headers.get("x-error-message", "")[:200]
    detail = f" ({''.join(c for c in said if c.isprintable())})" if said else ""
    kind: type[RemoteError] = RemoteError
    if answer.headers.get("x-error-code") == "GatedRepo":
        kind = Gated
        remedy = "the model is gated: accept its terms on its page, then run `hf auth login` or set HF_TOKEN"
    elif answer.status in (401, 403) and _origin(answer.url) == _origin(endpoint):
        kind = Gated
        remedy = "check the model's name; if it is private or gated, run `hf auth login` or set HF_TOKEN"
    else:
        remedy = "try again later, or download the model (`hf download`) and pass the directory"
    return kind(f"{where}: status {answer.status}{detail}; {remedy}")


def shown(url: str) -> str:
    """`url` without its query and user, which may hold signatures."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


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
