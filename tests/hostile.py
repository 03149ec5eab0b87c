"""What strangers say, drawn at random: texts, JSON, and answers of a server. One number gives the same of all, anywhere.

chances("LIES", 20)            # OUTLIERLENS_LIES of them (20), of the seed OUTLIERLENS_SEED (0)
text(chance)                   # a name that would leave its place, were it not escaped
json_value(chance)             # any JSON, also numbers and nestings that few readers take
hub.tamper[""] = Liar(chance, hub, answers)
"""

import gzip
import json
import os
import random
import socket
import string
import threading
from collections.abc import Callable
from random import Random
from typing import Any

from hub_server import COMMIT, FakeHub, Handler, Seen

SEED = int(os.environ.get("OUTLIERLENS_SEED", "0"))
CANARY = "touch canary"
RUNS = f"__import__('os').system('{CANARY}')"
# What ends a line, a text, a comment or an element in some language, and what would then be run.
PIECES = (
    "\n", "\r", "\r\n", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\t", "\x00", "\x07", "\x08", "\x1b[2J",
    "\x1b]0;t\x07", "\x9b31m", "\x7f", "'", '"', "'''", '"""', "`", "```", "\\", "\\\\", "\\n", "\\u000a",
    "\\N{LINE FEED}", "\\x0a", "\\'", '\\"', "‘", "’", "“", "„", f"\n{RUNS}\n", f"';{RUNS}#", f'";{RUNS}#',
    f"{{{RUNS}}}", f"$({CANARY})", f"`{CANARY}`", f"; {CANARY} ;", f"\n{CANARY}\n", f"| {CANARY}", f"& {CANARY} &",
    "${HOME}", "$HOME", "!!", "!$", "%s", "%(a)s", "{0}", "{model}", "{", "}", "{{ 7 * 7 }}", "{% raw %}", "{#", "<!--",
    "-->", "]]>", "<?php", "<script>alert(1)</script>", "</script>", "</style>", "</title>",
    "<img src=x onerror=alert(1)>", "&lt;", "&#10;", "<", ">", "[l](http://e.com)", "![i](http://e.com/i.png)",
    "<http://e.com>", "www.e.com", "https://e.com/a?b=c#d", "\n# head\n", "\n---\n", "\n===\n", "| a | b |", "- item",
    "* item", "1. item", "> said", "    code", "key: value", ": ", " #",
    "!!python/object/apply:os.system ['touch canary']", "&a [*a]", "{a: b}", "- - -", "...", "%YAML 1.1", "@", "=1+1",
    "+1", "-1", "=cmd|' /C calc'!A0", ",", ";", "coding: utf-7", "coding=rot13", "vim: set fileencoding=utf-7 :",
    "+AAo-", "-x", "--overwrite", "--", "~", "~root", "../..", "/etc/passwd", "C:\\x", "CON", ".", "a  b", " ", "\u00a0",
    "\u202e", "\u2066", "\u200b", "\ufeff", "\u0301", "\ufffe", "\U0001f600", "é", "漢字", "\u0130", "ß",
    "0", "1e999", "NaN", "None", "null", "True", "yes", "model", "mini", "bert-base",
)  # fmt: skip
SURROGATES = ("\ud800", "\udfff", "caf\udce9")  # which a file name, a JSON text and Python hold, and no file as UTF-8


NO_LIST = (
    b"", b"null", b"3", b'"a"', b"{}", b"[[]]", b"[" * 100_000, b'{"a":' * 100_000, b"[1" + b"0" * 5000 + b"]",
)  # fmt: skip
WAITS = (
    "0",
    "1",
    "29",
    "100000",
    "9" * 30,
    "-5",
    "1.5",
    "NaN",
    "inf",
    "²",
    "soon",
    "Wed, 21 Oct 2099 07:28:00 GMT",
    "",
)


def number(kind: str, default: int) -> int:
    """How many rounds of a kind the environment asks for."""
    return int(os.environ.get(f"OUTLIERLENS_{kind}", default))


def chances(kind: str, default: int) -> list[Random]:
    """A source of chance for each round of a kind."""
    return [random.Random(f"{SEED} {kind} {place}") for place in range(number(kind, default))]


def text(chance: Random, *, surrogates: bool = True) -> str:
    """A few pieces in a row; at times 10,000 characters of them, and with `surrogates` also what has no UTF-8."""
    pieces = PIECES + SURROGATES * surrogates
    said = "".join(chance.choice(pieces) for _ in range(chance.choice((1, 2, 3, 5, 8))))
    if chance.random() < 0.1:
        said = (said + chance.choice(string.ascii_letters)) * (10_000 // (len(said) + 1) + 1)
    return chance.choice(("", "", "", "-", "a", "org/")) + said[:10_000] + "m"  # never blank alone


def header(chance: Random) -> str:
    """`text` without what ends a header or has no UTF-8."""
    return " ".join(text(chance, surrogates=False)[:300].translate(dict.fromkeys(map(ord, "\r\n\0"))).split())


def json_value(chance: Random, depth: int = 3) -> Any:
    """Any JSON value, and what Python's own reader takes for one."""
    kinds = ["none", "bool", "int", "float", "text", "text"] + ["list", "dict", "nest"] * (depth > 0)
    kind = chance.choice(kinds)
    if kind == "int":
        return chance.choice((0, -1, 1, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**40, -(10**40)))
    if kind == "float":
        return chance.choice((0.0, -0.0, 1.5, 5.0, 1e308, 5e-324, float("nan"), float("inf"), -float("inf")))
    if kind == "text":
        return chance.choice((text(chance), "", "2021-03-04", COMMIT, "license:mit", "org/good", "7"))
    if kind == "list":
        return [json_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == "dict":
        return {text(chance)[:50]: json_value(chance, depth - 1) for _ in range(chance.randrange(4))}
    if kind == "nest":
        return json.loads("[" * 50 + "]" * 50)
    return None if kind == "none" else chance.random() < 0.5


def spoilt(body: bytes, chance: Random) -> bytes:
    """Bytes with some changed, cut off, doubled, or put in another encoding; now and then as they are."""
    kind, at = chance.randrange(9), chance.randrange(len(body) + 1)
    if kind == 0:
        return body[:at]
    if kind == 1:
        return body[:at] + chance.randbytes(chance.choice((1, 4, 100))) + body[at:]
    if kind == 2:
        return body[:at] + body[at + chance.choice((1, 2, 8, 64)) :]
    if kind == 3:
        return body + body
    if kind == 4 and body:
        changed = bytearray(body)
        for _ in range(chance.choice((1, 2, 8, 64))):
            changed[chance.randrange(len(body))] = chance.randrange(256)
        return bytes(changed)
    if kind == 5:
        return chance.choice(NO_LIST)
    if kind == 6:
        utf16 = body.decode("latin-1").encode("utf-16")
        return chance.choice((b"\xef\xbb\xbf" + body, utf16, b"\x00" + body, b"\xff" + body))
    return body


class Liar:
    """Answers each request in a way of its own; `told` has the host that each named, and whether `secret` was in it.

    `honest(handler, seen)` gives the body of a good answer to a request, or None where there is none.
    """

    LONG = 2**30  # bytes that an endless body never reaches

    def __init__(self, chance: Random, hub: FakeHub, honest: Callable[[Handler, Seen], bytes | None], secret: str):
        self.chance, self.hub, self.honest, self.secret = chance, hub, honest, secret
        self.lies = chance.choice((0.05, 0.2, 0.5, 0.9))  # the share of answers that are none
        self.told: list[tuple[str, bool]] = []
        self.ways: list[str] = []
        self.ended, self._lock = threading.Event(), threading.Lock()

    def __call__(self, handler: Handler, seen: Seen) -> bool:
        """Answer; of several at once, chance is asked in the order in which they come."""
        with self._lock:
            heard = f"{handler.requestline}\n{handler.headers}"
            self.told.append((str(handler.headers["Host"]), self.secret in heard))
            way = self.chance.choice(WAYS) if self.chance.random() < self.lies else good
            self.ways.append(way.__name__)
            chance = Random(self.chance.random())
        try:
            way(self, handler, seen, chance)
        except OSError:  # it was given up
            handler.close_connection = True
        return True

    def place(self, chance: Random) -> str:
        """An address of a next page or a redirect: of this hub, of another host, or of no host at all."""
        hub, cdn = self.hub.endpoint, self.hub.servers["cdn"].address
        host, port = hub.removeprefix("http://"), hub.rpartition(":")[2]
        path = chance.choice(("/api/models?page=2", "/api/models", "/org/good/resolve/main/config.json", "", "/", "/x"))
        ours = (
            f"{hub}{path}", path, path, f"HTTP://{host.upper()}{path}", f"http://user:word@{host}{path}", "?", "..", "#a",
        )  # fmt: skip
        others = (
            f"{cdn}{path}", f"//{cdn[7:]}{path}", f"http://localhost:{port}{path}", f"http://{host}@{cdn[7:]}{path}",
        )  # fmt: skip
        none = (
            f"https://{host}{path}", "file:///etc/passwd", "ftp://127.0.0.1/x", "javascript:alert(1)", "data:,x", "http://[half",
            "http://127.0.0.1:99999/", "http://127.0.0.1:port/", "http:///x", r"\\host\x", f"{hub}/" + "a" * 9000,
            f"{hub}:80{path}", f"{hub}/%00%0d%0aX: y", f"{hub}\t{path}",
        )  # fmt: skip
        return chance.choice(chance.choice((ours, others, none)))


def _sent(handler: Handler, seen: Seen, body: bytes, status: int = 200, **headers: str) -> None:
    """An answer as it stands; "_" in a header's name is "-"."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("Content-Length", str(len(body)))
    seen.status = status
    lines = [f"HTTP/1.1 {status} OK", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    handler.wfile.write("\r\n".join(lines).encode("utf-8", "surrogatepass"))
    seen.sent += len(body)
    handler.wfile.write(body)
    if named["Content-Length"] != str(len(body)) or "Transfer-Encoding" in named:
        handler.close_connection = True


def good(liar: Liar, handler: Handler, seen: Seen, chance: Random, change: Callable[[bytes], bytes] = bytes) -> None:
    """What an honest hub says, or that it has no such file, with a random next page."""
    body = liar.honest(handler, seen)
    if body is None:
        code = chance.choice(("RepoNotFound", "EntryNotFound", "RevisionNotFound", header(chance)))
        _sent(handler, seen, b"", 404, X_Error_Code=code)
        return
    body = change(body)
    more = {"X-Repo-Commit": chance.choice((COMMIT, COMMIT, "../../etc", ""))}
    if chance.random() < 0.3:
        more["Link"] = f'<{liar.place(chance)}>; rel="next"'
    if seen.span is None or chance.random() < 0.05:
        _sent(handler, seen, body, **more)
        return
    start, end = seen.span[0], min(seen.span[1], len(body))
    others = f"bytes 0-9/{10**18}", f"bytes {start}-{end - 1}/{2**63}", "bytes */*", ""
    said = chance.choice((f"bytes {start}-{end - 1}/{len(body)}",) * 8 + others)
    _sent(handler, seen, body[start:end], 206, Content_Range=said, ETag='"1"', **more)


def damaged(liar: Liar, handler: Handler, seen: Seen, chance: Random) -> None:
    good(liar, handler, seen, chance, lambda body: spoilt(body, chance))


def endless(liar: Liar, handler: Handler, seen: Seen, chance: Random) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    handler.close_connection = True
    piece = chance.choice((b"[", b" ", b"[{}, ", b'"', b"\x00", b"1")) * 13_107
    while seen.sent < liar.LONG:
        seen.sent += handler.wfile.write(piece)


def dripping(liar: Liar, handler: Handler, seen: Seen, chance: Random) -> None:
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not liar.ended.wait(0.005):
        seen.sent += handler.wfile.write(b"a")


def elsewhere(liar: Liar, handler: Handler, seen: Seen, chance: Random) -> None:
    place = liar.place(chance).replace("\t", " ")
    _sent(handler, seen, b"", chance.choice((301, 302, 303, 307, 308)), Location=place)


def failing(liar: Liar, handler: Handler, seen: Seen, chance: Random) -> None:
    wait, said = chance.choice(WAITS), header(chance)
    code = chance.choice(("GatedRepo", "RepoNotFound", "EntryNotFound", "x"))
    status = chance.choice((204, 304, 400, 401, 403, 404, 416, 418, 429, 429, 429, 451, 500, 503, 599))
    body = b"" if status in (204, 304) else chance.randbytes(chance.choice((0, 10, 100_000)))
    _sent(handler, seen, body, status, Retry_After=wait, X_Error_Code=code, X_Error_Message=said)


def packed(liar: Liar, handler: Handler, seen: Seen, chance: Random) -> None:
    body = gzip.compress(b"[" * chance.choice((10, 10**7)), 9)
    kinds = {"Content-Encoding": "gzip"}, {"Content-Type": "application/gzip"}, {"Content-Encoding": "br, gzip"}
    said = chance.choice(kinds)
    _sent(handler, seen, body, **{"Content-Type": "text/html", **said})


def of_another_length(liar: Liar, handler: Handler, seen: Seen, chance: Random) -> None:
    body = liar.honest(handler, seen) or b"[]"
    length = chance.choice(
        (str(len(body) + 1000), str(max(0, len(body) - 3)), "-1", "x", "9" * 30, f"{len(body)}, 3", "1e3")
    )
    how = chance.choice(({"Content-Length": length}, {"Transfer-Encoding": "chunked"}, {"Transfer-Encoding": "x"}))
    _sent(handler, seen, body, **how)


def no_answer(liar: Liar, handler: Handler, seen: Seen, chance: Random) -> None:
    handler.close_connection = True
    begun = (
        b"", b"HTTP/1.1 200", b"\x00" * 100, b"HTTP/9.9 200 OK\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA\r\n\r\n", b"<html>", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10**6, b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\x00: y\r\n\r\n[]\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 999 \xff\r\n\r\n",
    )  # fmt: skip
    handler.wfile.write(chance.choice(begun))
    handler.connection.shutdown(socket.SHUT_WR)


WAYS = (damaged,) * 8 + (elsewhere,) * 4 + (failing,) * 3 + (endless, dripping, packed, of_another_length, no_answer)
