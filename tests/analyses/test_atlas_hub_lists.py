"""A hub that lies in its list of models: bounds as for files, the token to the hub alone, a bad entry is a row of its own."""

import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

import hostile
from hub_server import COMMIT, FakeHub, Handler, Seen
from outlierlens.analyses import atlas_rows as names
from outlierlens.analyses.atlas import HubAccess, build, in_threads
from outlierlens.analyses.atlas_rows import ListEntry, Query, Store, listed, names_in, read_rows
from outlierlens.checkpoints import ranges, samples
from outlierlens.checkpoints.base import MAX_CONFIG_BYTES
from outlierlens.checkpoints.formats import MAX_INDEX_BYTES
from outlierlens.cli.app import run
from outlierlens.errors import Offline, RemoteError

pytest_plugins = ["hub_fixtures"]
ASKED = Query(task="fill-mask")
TOKEN = "hf_secret"
Answer = Callable[[Handler, Seen], Any]


def entry(name: Any = "org/good", **more: Any) -> dict[str, Any]:
    given = {"sha": COMMIT, "downloads": 5, "createdAt": "2021-03-04T05:06:07.000Z", "tags": ["license:mit"]}
    return {"id": name, **given, **more}


def lists(hub: FakeHub, answer: Answer) -> None:
    """The hub's list is answered by `answer`."""
    hub.tamper["/api/models"] = lambda handler, seen: (answer(handler, seen), True)[1]


def page(handler: Handler, entries: Any, following: str = "") -> None:
    handler.reply(200, json.dumps(entries).encode(), {"Link": f'<{following}>; rel="next"'} if following else {})


def refusal(asked: Query = ASKED, token: str | None = None) -> str:
    with pytest.raises(RemoteError) as caught:
        list(listed(asked, token))
    assert str(caught.value).endswith("; check HF_ENDPOINT and the network")
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)
    return str(caught.value)


def test_an_endless_body_is_cut_off(hub: FakeHub) -> None:
    def endless(handler: Handler, seen: Seen) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        try:
            while seen.sent < 2**30:
                seen.sent += handler.wfile.write(b"[" * 65_536)
        except OSError:  # given up
            pass

    lists(hub, endless)
    assert f"sends more than {MAX_CONFIG_BYTES:,} bytes" in refusal()
    huggingface_hub.close_session()
    assert hub.sent < 2 * MAX_CONFIG_BYTES
    assert len(hub.seen) == 1


@pytest.mark.parametrize("length", [1, 2, 3])
def test_pages_in_a_circle_end_it(hub: FakeHub, length: int) -> None:
    numbers = itertools.count(1)

    def circle(handler: Handler, seen: Seen) -> None:
        number = next(numbers)
        page(handler, [entry(f"org/m-{number}")], f"{hub.endpoint}/api/models?page={number % length}")

    lists(hub, circle)
    assert "named as the next page a second time" in refusal()
    assert len(hub.seen) == length + 1


@pytest.mark.parametrize(("n", "requests"), [(0, 11), (1, 12)])
def test_pages_that_bring_next_to_nothing_end_it(hub: FakeHub, n: int, requests: int) -> None:
    numbers = itertools.count(1)

    def more(handler: Handler, seen: Seen) -> None:
        number = next(numbers)
        page(handler, [entry(f"org/m-{number}")] * n, f"{hub.endpoint}/api/models?page={number}")

    lists(hub, more)
    assert f"{requests} pages for {requests * n} models" in refusal()
    assert len(hub.seen) == requests


def test_no_page_is_asked_for_beyond_the_limit(hub: FakeHub, tmp_path: Path) -> None:
    hub.page = 3
    for number in range(30):
        hub.cards[f"org/m-{number:02}"] = {"sha": COMMIT, "downloads": 100 - number}
    run(["atlas", "build", "--query", "search=org", "--limit", "6", "--rate", "none", "-q", "-o", str(tmp_path)])
    assert len([seen for seen in hub.seen if seen.path == "/api/models"]) == 2
    assert {row.model for row in read_rows(tmp_path)} == {f"org/m-{number:02}" for number in range(6)}


def test_a_server_that_is_busy_for_a_day_is_not_waited_for(hub: FakeHub, waits: list[float]) -> None:
    lists(hub, lambda handler, seen: handler.reply(429, b"", {"Retry-After": "100000"}))
    assert "status 429; the server asks to wait 100,000 s" in refusal()
    with pytest.raises(RemoteError, match="asks to wait 100,000 s"):
        run(["atlas", "build", "--query", "task=fill-mask", "-o", "runs/atlas"])
    assert waits == []
    assert len(hub.seen) == 2


def test_offline_no_list_is_asked_for(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Offline, match=r"HF_HUB_OFFLINE is set.*unset it, or name a file"):
        list(listed(ASKED, None))
    assert hub.seen == []


ELSEWHERE = {
    "another port": "{cdn}/api/models",
    "another scheme": "https://{hub_host}/api/models",
    "without a scheme": "//{cdn_host}/api/models",
    "a name in front": "http://{hub_host}@{cdn_host}/api/models",
    "another name of the machine": "http://localhost:{hub_port}/api/models",
    "a file": "file:///etc/passwd",
    "half an address": "http://[half",
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_next_page_elsewhere_is_not_asked_for(hub: FakeHub, how: str) -> None:
    hub_host, cdn = hub.endpoint.removeprefix("http://"), hub.servers["cdn"].address
    place = ELSEWHERE[how].format(
        cdn=cdn, cdn_host=cdn.removeprefix("http://"), hub_host=hub_host, hub_port=hub_host.rpartition(":")[2]
    )
    lists(hub, lambda handler, seen: page(handler, [entry()], place))
    said = refusal(token=TOKEN)
    assert "named as the next page and not of" in said or "names as the next page no safe address" in said
    assert [(seen.server, seen.authorization) for seen in hub.seen] == [("hub", f"Bearer {TOKEN}")]


def test_no_other_host_sees_the_token(hub: FakeHub) -> None:
    """The hub's second page redirects to another host, whose answer names a third page there."""

    def answer(handler: Handler, seen: Seen) -> None:
        if seen.server == "cdn":
            page(handler, [entry("org/from-the-other")], "/api/models?third")
        elif "second" in seen.query:
            handler.reply(302, b"", {"Location": f"{hub.servers['cdn'].address}/api/models?second"})
        else:
            page(handler, [entry()], "/api/models?second")

    lists(hub, answer)
    found = listed(ASKED, TOKEN)
    assert [next(found).model, next(found).model] == ["org/good", "org/from-the-other"]
    with pytest.raises(RemoteError, match="named as the next page and not of"):
        next(found)
    told = {
        server: [seen.authorization or "" for seen in hub.seen if seen.server == server] for server in ("hub", "cdn")
    }
    assert sum(map(len, told["cdn"])) == 0
    assert told == {"hub": [f"Bearer {TOKEN}"] * 2, "cdn": [""]}


NO_LISTS = [
    b"", b"{", b"null", b"{}", b'"org/model"', b"3", b"[" * 100_000, b"\xff\xfe", b"[1e5", b"[1" + b"0" * 5000 + b"]",
    json.dumps([entry()] * (names.MOST_ENTRIES + 1)).encode(),
]  # fmt: skip


@pytest.mark.parametrize("body", NO_LISTS, ids=lambda body: repr(body[:12]))
def test_what_is_no_list_is_refused_in_a_line(hub: FakeHub, body: bytes) -> None:
    lists(hub, lambda handler, seen: handler.reply(200, body))
    assert "cannot list models (" in refusal()


BAD = [
    None, 3, "org/model", [], {}, [["org/model"]], True,
    *(entry(name) for name in (None, 3, ["a"], {"a": 1}, True, "a\nb", "\x1b[2J", "\ud800", "m" * 301)),
    *(entry("org/bad", downloads=n) for n in (10**40, 2**63, -1, float("nan"), float("inf"), 1.5, True, "7", [7], {"n": 7})),
    *(entry("org/bad", sha=sha) for sha in (3, ["a"], {"a": 1}, False, "s" * 301, "\ud800")),
    *(entry("org/bad", createdAt=day) for day in (20210304, ["2021"], {"a": 1}, "2021\n03-04", "\ud800")),
    *(entry("org/bad", tags=tags) for tags in ("license:mit", 3, {"license": "mit"}, ["license:" + "m" * 301])),
    *(entry("org/bad", tags=[tag]) for tag in ("license:a\nb", "license:\udfff")),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad)[:60])
def test_a_bad_entry_is_a_row_and_the_others_are_looked_at(hub: FakeHub, tmp_path: Path, bad: Any) -> None:
    lists(hub, lambda handler, seen: page(handler, [entry("org/first"), bad, entry("org/last")]))
    for _ in range(2):  # the second time with what the first has left
        with Store.open(tmp_path) as store:
            done = build(store, listed(ASKED, None), partial(in_threads, access=HubAccess(parallel=2)))
        assert done.looked_at + done.before == 3
    rows = {row.model: row for row in read_rows(tmp_path)}
    assert len(rows) == 3
    assert rows["org/first"].reason == rows["org/last"].reason == "missing"  # this hub has neither
    (odd,) = (row for name, row in rows.items() if name not in ("org/first", "org/last"))
    assert odd.reason == "malformed"
    assert odd.failure.startswith(f"{hub.endpoint}, page 1 of the list, entry 2: ")
    assert odd.failure.endswith(", which no atlas holds")
    assert len(odd.failure) < 300


def test_what_an_entry_may_leave_out(hub: FakeHub) -> None:
    empty = entry("org/b", downloads=None, sha=None, tags=None, createdAt=None)
    some = [{"id": "org/a"}, empty, entry("org/b"), entry("org/c", tags=[3])]
    lists(hub, lambda handler, seen: page(handler, some))
    assert list(listed(ASKED, None)) == [
        ListEntry("org/a", listed=True), ListEntry("org/b", listed=True),
        ListEntry("org/c", COMMIT, None, "2021-03-04", 5, listed=True),
    ]  # fmt: skip


def test_a_name_that_no_file_system_has(tmp_path: Path) -> None:
    long = tmp_path / "names.txt"
    long.write_text("m" * 290 + "\n")
    with Store.open(tmp_path / "atlas") as store:
        assert build(store, names_in(long), partial(in_threads, access=HubAccess())).looked_at == 1


FILES = samples.directory("mini-planted")
LOOKS = (
    *(("atlas", "build", "--query", "search=org", "--limit", "8", "--rate", "none", "-q", "-o", "atlas"),) * 3,
    ("scan", "org/good"), ("atlas", "lookup", "org/good"), ("fingerprint", "org/good", "-o", "print.json", "--overwrite"),
)  # fmt: skip


def said_by_a_hub(chance: Random) -> Callable[[Handler, Seen], bytes | None]:
    """A list of random entries, and the files of the models of this package."""

    def entries() -> list[Any]:
        made = [
            entry(f"org/{chance.choice(('good', 'other', 'a.b', chance.random()))}")
            for _ in range(chance.randrange(1, 7))
        ]
        for one in made:
            for name in chance.sample(sorted(one), chance.choice((0, 0, 1, 1, 2, 5))):
                one[name] = hostile.json_value(chance)
        return [hostile.json_value(chance) if chance.random() < 0.1 else one for one in made]

    def honest(handler: Handler, seen: Seen) -> bytes | None:
        if seen.path == "/api/models":
            return json.dumps(entries() if chance.random() < 0.9 else hostile.json_value(chance)).encode()
        if seen.path.startswith("/api/models/"):
            files = [
                {"rfilename": chance.choice(("config.json", "model.safetensors", hostile.text(chance)))},
                hostile.json_value(chance),
            ]
            return json.dumps({"siblings": files}).encode()
        file = FILES / seen.path.rpartition("/")[2]
        return file.read_bytes() if file.is_file() else None

    return honest


@pytest.mark.parametrize("chance", hostile.chances("LIES", 24), ids=itertools.count())
def test_any_lie_is_a_line_or_a_row(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any, chance: Random
) -> None:
    """Commands of one folder in turn, while the hub answers each request in a random way."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr(ranges, "SLOW", (1000, 0.3))
    monkeypatch.setattr(ranges, "_clock", time.monotonic)
    liar = hostile.Liar(chance, hub, said_by_a_hub(chance), TOKEN)
    hub.tamper[""] = liar
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "theirs.txt").write_text("theirs")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for words in chance.sample(LOOKS, 2):
        code, out, err = run(*words)
        assert code in (0, 1, 2), err
        assert bool(code) == ("error: " in err)
        assert "error: " not in err or err.splitlines()[-1].startswith("error: ")
        assert all(one.isprintable() or one == "\n" for one in out + err)
        assert TOKEN not in out + err
    liar.ended.set()
    elsewhere = {host for host, secret in liar.told if secret} - {hub.endpoint.removeprefix("http://")}
    assert not elsewhere
    assert [seen for seen in hub.seen if seen.sent > 2 * MAX_INDEX_BYTES] == []
    assert (here / "theirs.txt").read_text() == "theirs"
    assert {path.name for path in here.iterdir()} <= {"theirs.txt", "atlas", "print.json"}
    assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    if (here / "atlas").exists():
        rows = list(read_rows(here / "atlas"))
        assert len({(*row.key, row.stack) for row in rows}) == len(rows)
        assert not [row.failure for row in rows if row.reason == "error"]
        assert run("atlas", "page", "atlas")[0] == (0 if rows else 1)
