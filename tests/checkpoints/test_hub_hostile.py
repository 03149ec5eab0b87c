"""Hubs that refuse, stumble or lie: one clear line each, few retries, nothing believed unchecked."""

import itertools
import json
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import huggingface_hub
import pytest

from hub_models import MODEL, one_file, packed, sharded, spaced
from hub_server import FakeHub, Handler, Seen
from outlierlens import errors
from outlierlens.checkpoints import ranges
from outlierlens.checkpoints.formats import write_header
from outlierlens.checkpoints.hub import open_hub

pytest_plugins = ["hub_fixtures"]


def store(answer: Callable[[Handler, Seen], Any]) -> Callable[[Handler, Seen], bool]:
    """A tampering that answers in place of the store."""

    def act(handler: Handler, seen: Seen) -> bool:
        if seen.server == "cdn":
            answer(handler, seen)
        return seen.server == "cdn"

    return act


def lie(body: bytes, headers: dict[str, str], status: int = 206) -> Callable[[Handler, Seen], bool]:
    return store(lambda handler, _seen: handler.reply(status, body, headers))


BIG = 64 * 2**20
GOOD = packed(spaced(2, 1000))
N = len(GOOD)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (lie(bytes(N), {}, 200), errors.RemoteError, "ignores byte ranges"),
        (lie(GOOD, {}), errors.RemoteError, "answered the range ''"),
        (lie(GOOD, {"Content-Range": f"bytes 0-{N - 1}/*"}), errors.RemoteError, "answered the range"),
        (lie(GOOD, {"Content-Range": f"bytes 8-{N + 7}/{N + 8}"}), errors.RemoteError, "answered the range"),
        (lie(GOOD, {"Content-Range": f"bytes 0-{N - 1}/{10**18}"}), errors.RemoteError, "answered the range"),
        (lie(GOOD, {"Content-Range": "bytes 0-" + "9" * 30 + "/" + "9" * 30}), errors.RemoteError, "the range"),
        (lie(GOOD[:99], {"Content-Range": f"bytes 0-{N - 1}/{N}"}), errors.RemoteError, "sends 99 of 2,344 bytes"),
        (
            lie(GOOD + b"x", {"Content-Range": f"bytes 0-{N - 1}/{N}"}),
            errors.RemoteError,
            "sends more than 2,344 bytes",
        ),
        (
            lie(GOOD, {"Content-Range": f"bytes 0-{N - 1}/{N}", "Content-Encoding": "gzip"}),
            errors.RemoteError,
            "answered compressed",
        ),
        (lie(b"", {}, 416), errors.BadFile, "empty or shorter"),
        (lie(b"", {}, 403), errors.RemoteError, "status 403; try again later, or download"),
        (lie(b"", {}, 204), errors.RemoteError, "status 204"),
        (lie(b"", {"Location": "/org/model/model.safetensors"}, 302), errors.RemoteError, "more than 5 redirects"),
        (lie(b"", {"Location": "file:///etc/passwd"}, 302), errors.RemoteError, "redirects to no safe address"),
        (lie(b"", {"Location": "http://[half"}, 302), errors.RemoteError, "redirects to no safe address"),
        (lie(b"", {}, 302), errors.RemoteError, "redirects to no safe address"),
    ],
)
def test_a_lying_store(
    hub: FakeHub, answer: Callable[[Handler, Seen], bool], kind: type[Exception], message: str
) -> None:
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": GOOD})
    hub.tamper["model.safetensors"] = answer
    with pytest.raises(kind, match=message) as caught:
        open_hub(MODEL)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)  # the signature of the store's address


def test_a_whole_file_is_not_downloaded_when_ranges_are_ignored(hub: FakeHub) -> None:
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": GOOD})
    hub.tamper["model.safetensors"] = lie(bytes(BIG), {}, 200)
    with pytest.raises(errors.RemoteError, match="download the model"):
        open_hub(MODEL)
    huggingface_hub.close_session()
    assert hub.requests("model.safetensors")[-1].sent < BIG / 4


HEADERS = {
    "huge": struct.pack("<Q", 2**62) + b"{}",
    "longer than the file": struct.pack("<Q", 1000) + b"{}",
    "not JSON": struct.pack("<Q", 4) + b"what",
    "no header": b"abc",
    "outside": write_header({"a": ("F32", (10**9,), 4 * 10**9)}),
    "size": write_header({"a": ("F32", (10**9,), 4)}) + b"1234",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_lying_header(hub: FakeHub, name: str) -> None:
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": HEADERS[name]})
    with pytest.raises(errors.BadFile, match=r"org/model/model.safetensors") as caught:
        open_hub(MODEL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight_map": {"a": "../x.safetensors"}}, "not a plain file name"),
        ({"weight_map": {"a": "https://elsewhere/x"}}, "not a plain file name"),
        ({"weight_map": []}, "has no weight_map"),
        ({"weight_map": {"a": "gone.safetensors"}}, "named by the index but missing"),
        ({"weight_map": {"a": "model-00001-of-00001.safetensors"}}, "the index places 'a' here"),
    ],
)
def test_a_lying_index(hub: FakeHub, changed: dict[str, Any], message: str) -> None:
    files = sharded(spaced(1, 10))
    hub.add(MODEL, files | {"model.safetensors.index.json": json.dumps(changed).encode()})
    with pytest.raises(errors.BadFile, match=message):
        list(open_hub(MODEL).read(["a"]))
    with pytest.raises(errors.BadFile, match=message):
        open_hub(MODEL).tensors["a"]


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        (b"[1]", errors.BadFile, "holds a list, not an object"),
        (b"[" * 100_000, errors.BadFile, "not valid JSON"),
        (b" " * (16 * 2**20 + 1), errors.RemoteError, "sends more than 16,777,216 bytes"),
    ],
)
def test_a_bad_config(hub: FakeHub, config: bytes, kind: type[Exception], message: str) -> None:
    hub.add(MODEL, {"config.json": config, "model.safetensors": GOOD})
    with pytest.raises(kind, match=message):
        open_hub(MODEL)


def test_a_file_that_changes_between_requests(hub: FakeHub) -> None:
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": GOOD})
    checkpoint = open_hub(MODEL)
    hub.headers = {"ETag": '"another"'}
    with pytest.raises(errors.RemoteError, match="the file changed while it was read; run again"):
        list(checkpoint.read(["norm.0.1"]))


def test_an_address_that_ran_out_is_asked_for_again(hub: FakeHub) -> None:
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": GOOD})
    checkpoint = open_hub(MODEL)
    refused: list[Seen] = []

    def once(handler: Handler, seen: Seen) -> bool:
        if seen.server == "hub" or refused:
            return False
        refused.append(seen)
        handler.reply(403, b"expired")
        return True

    hub.tamper["model.safetensors"] = once
    assert dict(checkpoint.read(["norm.0.1"]))["norm.0.1"].shape == (8,)
    assert refused
    assert len([seen for seen in hub.requests("model.safetensors") if seen.server == "hub"]) == 2


def failing(n: int, act: Callable[[Handler], None]) -> Callable[[Handler, Seen], bool]:
    left = [n]

    def tamper(handler: Handler, seen: Seen) -> bool:
        left[0] -= 1
        if left[0] >= 0:
            act(handler)
        return left[0] >= 0

    return tamper


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def hang_up_halfway(handler: Handler) -> None:
    handler.reply(200, b'{"half', {"Content-Length": "1000"})
    handler.close_connection = True


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda handler: handler.reply(503, b"busy"), [0.5, 1.0, 2.0, 4.0]),
        (lambda handler: handler.reply(429, b"", {"Retry-After": "7"}), [7.0, 7.0, 7.0, 7.0]),
        (lambda handler: handler.reply(429, b"", {"Retry-After": "\u00b2"}), [0.5, 1.0, 2.0, 4.0]),
        (
            lambda handler: handler.reply(429, b"", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
            [0.5, 1.0, 2.0, 4.0],
        ),
        (hang_up, [0.5, 1.0, 2.0, 4.0]),
        (hang_up_halfway, [0.5, 1.0, 2.0, 4.0]),
    ],
)
def test_retries_are_few_and_patient(
    hub: FakeHub, waits: list[float], act: Callable[[Handler], None], expected: list[float]
) -> None:
    hub.add(MODEL, {"config.json": b'{"a": 2}', "model.safetensors": GOOD})
    hub.tamper["config.json"] = failing(4, act)
    assert open_hub(MODEL).config == {"a": 2}
    assert waits == expected
    hub.tamper["config.json"] = failing(5, act)
    seen = len(hub.seen)
    with pytest.raises(
        errors.RemoteError, match="5 times; check the network and HF_ENDPOINT, or pass --model-args offline"
    ):
        open_hub(MODEL)
    assert len(hub.seen) - seen == 5


def test_models_are_asked_for_side_by_side(hub: FakeHub, waits: list[float]) -> None:
    hub.add(MODEL, {"config.json": b'{"a": 2}', "model.safetensors": GOOD})
    both = threading.Barrier(2)

    def together(_handler: Handler, _seen: Seen) -> bool:
        both.wait(timeout=60)  # for the other's request; one after the other, the first has to be asked for again
        return False

    hub.tamper["config.json"] = together
    with ThreadPoolExecutor(2) as pool:
        assert [found.config for found in pool.map(open_hub, [MODEL, MODEL])] == [{"a": 2}] * 2
    assert waits == []


def test_a_server_that_asks_for_an_hour_is_not_waited_for(hub: FakeHub, waits: list[float]) -> None:
    hub.tamper["config.json"] = failing(9, lambda handler: handler.reply(429, b"", {"Retry-After": "3600"}))
    with pytest.raises(errors.RemoteError, match="status 429; the server asks to wait 3,600 s; try again then"):
        open_hub(MODEL)
    assert waits == []
    assert len(hub.seen) == 1


def test_a_hub_that_drips_is_given_up(hub: FakeHub, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps each read of the connection short; the clock goes ten seconds a look."""
    given_up = threading.Event()

    def drip(handler: Handler, seen: Seen) -> bool:
        handler.send_response(200)
        handler.end_headers()
        while not given_up.wait(0.005):
            handler.wfile.write(b"a")
        return True

    hub.tamper["config.json"] = drip
    monkeypatch.setattr(ranges, "_clock", itertools.count(0, 10).__next__)
    with pytest.raises(
        errors.RemoteError, match=r"config.json: ReadTimeout: fewer than 1,000 bytes per second, 5 times; check the net"
    ):
        open_hub(MODEL)
    given_up.set()
    assert len(hub.seen) == 5


def test_gated_and_forbidden(hub: FakeHub) -> None:
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": GOOD})
    hub.token = "hf_right"
    with pytest.raises(errors.RemoteError) as caught:
        open_hub(MODEL)
    assert str(caught.value) == (
        f"{hub.endpoint}/org/model/resolve/main/config.json: status 401 (Access is restricted.); the model is gated: "
        "accept its terms on its page, then run `hf auth login` or set HF_TOKEN"
    )
    hub.tamper["config.json"] = lambda handler, seen: bool(handler.reply(403, b"")) or True
    with pytest.raises(errors.RemoteError, match="status 403; check the model's name; if it is private or gated, run"):
        open_hub(MODEL)
    with pytest.raises(errors.BadInput, match="the hub token holds characters that no token has") as caught_input:
        open_hub(MODEL, token="hf_a\r\nX: y")
    assert "hf_a" not in str(caught_input.value)


def test_unknown_models_and_revisions(hub: FakeHub) -> None:
    hub.add(MODEL, one_file(spaced(1, 10)))
    with pytest.raises(errors.UnknownModel, match=r"shows no such model at 'main'.*near: the sample 'minilm-l6'"):
        open_hub("someone/minilm-l12")
    with pytest.raises(errors.UnknownModel, match=r"knows no revision 'v9'; pass a branch.*org/model/commits/main"):
        open_hub(MODEL, revision="v9")
    hub.tamper["config.json"] = lambda handler, seen: bool(handler.reply(401, b"Invalid username")) or True
    with pytest.raises(errors.UnknownModel, match="`hf auth login`"):
        open_hub("org/private")
    for model in ("a--b/c", "a/b/c", "a/..", "../a", ""):
        with pytest.raises(errors.UnknownModel, match="not a hub id"):
            open_hub(model)
    assert len(hub.seen) == 3


def test_a_server_that_knows_nothing(hub: FakeHub) -> None:
    hub.tamper[""] = lambda handler, seen: bool(handler.reply(404, b"nginx")) or True
    with pytest.raises(errors.UnknownModel, match=r"127.0.0.1:\d+ shows no such model"):
        open_hub(MODEL)


@pytest.mark.parametrize("value", ["../x", "a/../b", "a//b", "/etc", "a\\b", "a\nb", "C:x", "."])
def test_path_tricks(hub: FakeHub, value: str) -> None:
    with pytest.raises(errors.BadInput, match="is not a plain name"):
        open_hub(MODEL, revision=value)
    if not value.startswith("/"):
        with pytest.raises(errors.BadInput, match="is not a plain name"):
            open_hub(MODEL, subfolder=value)
    assert hub.seen == []


@pytest.mark.parametrize("endpoint", ["file:///etc", "huggingface.co", "http://", "http://[x"])
def test_a_bad_endpoint(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(errors.BadInput, match=r"HF_ENDPOINT is .*set it to an address such as"):
        open_hub(MODEL)


def test_no_server(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeHub() as gone:
        endpoint = gone.endpoint
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(errors.RemoteError, match=r"/config.json: ConnectError.*check the network and HF_ENDPOINT"):
        open_hub(MODEL)


def test_a_hostile_commit_is_not_believed(hub: FakeHub) -> None:
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": GOOD})
    hub.redirect = False

    def with_commit(handler: Handler, seen: Seen) -> bool:
        handler.reply(200, b"{}", {"X-Repo-Commit": "../../../etc"})
        return True

    hub.tamper["config.json"] = with_commit
    checkpoint = open_hub(MODEL)
    assert checkpoint.requests == 2
    assert hub.seen[1].path == "/org/model/resolve/main/model.safetensors"
