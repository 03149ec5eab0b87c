"""What no browser would send to the page is answered in one line, and the terminal shows no traceback."""

import contextlib
import http.client
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

import explore_models
from outlierlens.explore.page import PIECES
from outlierlens.explore.serve import served
from outlierlens.explore.state import Place, Selection

pytest.importorskip("gradio")
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "nan",
    "1e999",
    "\ud800",
    "\x00",
    [],
    {},
]
ODD += ["9" * 5000, [1, 2], {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, {"__type__": "update"}]


class Page:
    """The page that is served at a port."""

    def __init__(self, address: str):
        self.port = int(address.rstrip("/").rpartition(":")[2])
        config = json.loads(self.ask("GET", "/config")[1])
        self.functions = [one for one in config["dependencies"] if one["backend_fn"]]
        self.values = {one["id"]: one["props"].get("value") for one in config["components"]}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def join(self, session: str, data: Any, function: Any, **more: Any) -> dict[str, Any]:
        """The last message on a call, or the status with which it was refused."""
        body = json.dumps({"data": data, "fn_index": function, "session_hash": session, **more})
        status, said = self.ask("POST", "/gradio_api/queue/join", body)
        if status != 200:
            return {"status": status, "said": said}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request("GET", f"/gradio_api/queue/data?session_hash={session}")
            for line in connection.getresponse():
                if line.startswith(b"data:") and b'"process_completed"' in line:
                    found: dict[str, Any] = json.loads(line[5:])
                    return found
        raise AssertionError("the queue ended without an answer")

    def inputs(self, function: dict[str, Any]) -> list[Any]:
        return [self.values[one] for one in function["inputs"]]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with served(explore_models.planted(), Selection(text="A film.", dims=()), Place()) as address:
        yield Page(address)


@pytest.mark.parametrize("seed", range(4))
def test_odd_values_are_answered_without_a_traceback(page: Page, seed: int, capfd: Any) -> None:
    chance = random.Random(seed)
    for number in range(8):
        function = chance.choice(page.functions)
        data: Any = page.inputs(function)
        for _ in range(min(len(data), chance.choice((1, 1, 3)))):
            data[chance.randrange(len(data))] = chance.choice(ODD)
        data = chance.choice((data, data, data, data[1:], [*data, None], chance.choice(ODD)))
        odd = chance.choice(("event_data", "trigger_id", "batched", "simple_format"))
        more = {odd: chance.choice(ODD)} if chance.random() < 0.3 else {}
        index = function["id"] if chance.random() < 0.9 else chance.choice(ODD)
        found = page.join(f"s{seed}{number}", data, index, **more)
        if "status" in found:
            assert 400 <= found["status"] < 500, (data, found)
        elif not found["success"]:
            assert str(found["output"]["error"]).startswith("this cannot be answered ("), found
            assert "\n" not in str(found["output"]["error"])
    # And the page still answers.
    show = next(one for one in page.functions if len(one["outputs"]) == len(PIECES) + 2)
    assert page.join(f"after{seed}", page.inputs(show), show["id"])["success"]
    assert "Traceback" not in "".join(capfd.readouterr())


def test_odd_requests_of_every_kind_are_refused_without_a_traceback(page: Page, capfd: Any) -> None:
    join = "/gradio_api/queue/join"
    bodies = ["", "{", "[]", "null", "[" * 50_000, '{"data":' * 5_000, "\x00", '{"data": [], "fn_index": 1e999}', "{}"]
    bodies += ['{"data": [], "fn_index": 0}', '{"data": [], "fn_index": -7, "session_hash": "a"}']
    for body in bodies:
        status, said = page.ask("POST", join, body)
        assert 400 <= status < 500, (body[:40], status, said)
    assert page.ask("POST", join, b"\xff\xfe")[0] == 422
    assert page.ask("POST", join, **{"Content-Length": str(2**20 + 1)})[0] == 413  # answered before it is sent
    assert page.ask("POST", "/gradio_api/upload", "x")[0] == 413
    assert page.ask("POST", "/gradio_api/component_server", "{}")[0] == 413
    assert page.ask("POST", "/gradio_api/cancel", '{"session_hash": 1}')[0] == 422
    for query in ("", "?session_hash=nobody", "?session_hash=" + "9" * 5000, "?session_hash=%00"):
        page.ask("GET", f"/gradio_api/queue/data{query}")
    for path in (
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/proxy=http://evil.example/",
        "/assets/%2e%2e/%2e%2e",
        "/%00",
    ):
        assert page.ask("GET", path)[0] >= 400, path
    assert page.ask("GET", "/?dims=x&left=nan&last=1e999&text=%ff")[0] == 200
    assert page.ask("GET", "/config", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert page.ask("GET", "/config", **{"Sec-Fetch-Site": "same-origin"})[0] == 200
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "query", ["dims=x", "left=nan", "last=1e999", "seed=-1", "mode=melt&blank=%ff", "text=" + "a" * 9000]
)
def test_an_odd_link_opens_the_page_and_is_said(page: Page, query: str, capfd: Any) -> None:
    (load,) = [one for one in page.functions if not one["inputs"]]
    body = json.dumps({"data": [], "fn_index": load["id"], "session_hash": f"q{query[:9]}"})
    status, said = page.ask("POST", f"/gradio_api/queue/join?{query}", body)
    assert status == 200, said
    assert page.join(f"r{query[:4]}", [], load["id"])["success"]
    assert "Traceback" not in "".join(capfd.readouterr())
