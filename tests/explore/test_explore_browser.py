"""The live page in a browser: what people do, what they see, and that nothing is ever loaded from outside.

Screenshots and the log of requests go to `runs/explore/` (or $OUTLIERLENS_ARTEFACTS), which git ignores.
"""

import contextlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import urlopen

import pytest

from conftest import needs_chromium
from moments import HANGS, until
from outlierlens.errors import BadInput
from outlierlens.explore.state import Selection

ARTEFACTS = Path(os.environ.get("OUTLIERLENS_ARTEFACTS") or Path(__file__).parents[2] / "runs" / "explore")
TEXT = (
    "I went into this movie with low expectations and came out smiling. The story is simple, but the actors are so good "
    "that you care about every one of them. The ending made me cry, and I would gladly watch it again with my family."
)
WORDS = " ".join(f"w{number}" for number in range(1, 25))  # two blanks of a decoder that knows words alone

pytestmark = [pytest.mark.browser, needs_chromium]


class Server:
    """A process that serves a page; like every Python that tests start, it cannot reach anything outside this machine."""

    def __init__(self, folder: Path, *command: str, port: int, **environment: str):
        self.said, self.address = folder / "said.log", f"http://127.0.0.1:{port}/"
        given = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "0"} | environment
        with self.said.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=given, stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self) -> None:
        until(self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.said.read_text("utf-8")
        with contextlib.suppress(OSError), urlopen(self.address, timeout=HANGS):
            return True
        return False

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(HANGS)


def unclaimed_port() -> int:
    """A free port below those that the system gives to connections: one of these may be gone before a server starts."""
    from outlierlens.explore.serve import free_port

    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(BadInput):
            return free_port(port)
    raise AssertionError("a hundred ports are taken")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The command, serving the packaged model with outliers; variables that gradio reads do not open it to others."""
    port = unclaimed_port()
    words = ("-m", "outlierlens", "explore", "mini-planted", "--text", TEXT, "--port", str(port))
    server = Server(
        tmp_path_factory.mktemp("explore"), *words, "--dtype", "float32", port=port, GRADIO_SERVER_NAME="0.0.0.0"
    )
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def servers(command: Server, words: Any) -> Iterator[dict[str, str]]:
    """Addresses: of the command, and in this process of the packaged model without outliers and of a tiny decoder."""
    import explore_models
    from outlierlens.explore.look import open_explorer
    from outlierlens.explore.serve import served
    from outlierlens.explore.state import Place
    from outlierlens.models.load import LoadOptions

    decoder, plain = explore_models.tiny(words), open_explorer("mini-bert", LoadOptions(dtype="float32"))
    with (
        served(decoder, replace(decoder.start(), text=WORDS, left=1.0), Place(unclaimed_port())) as address,
        served(plain, plain.start(), Place(unclaimed_port())) as without,
    ):
        command.wait()
        yield {"planted": command.address, "plain": without, "decoder": address}


@pytest.fixture(scope="module")
def browser(browser: Any) -> Any:
    """With an empty log of requests."""
    (ARTEFACTS / "requests.log").unlink(missing_ok=True)
    return browser


class Visitor:
    """Somebody with a browser of their own, who can reach this machine alone; everything asked for is written down."""

    def __init__(self, browser: Any, *, width: int = 1280, height: int = 900):
        self.context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
        self.context.set_default_timeout(HANGS * 1000)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.context.route("**/*", self._let)
        self.page = self.context.new_page()
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))

    def _let(self, route: Any) -> None:
        self.asked.append(route.request.url)
        if self.is_here(route.request.url):
            route.continue_()
        else:
            route.abort()

    @staticmethod
    def is_here(url: str) -> bool:
        return urlsplit(url).hostname in ("127.0.0.1", "127.0.0.2") or url.startswith(("data:", "blob:"))

    def open(self, address: str, state: Selection | None = None) -> "Visitor":
        self.page.goto(address + ("?" + state.query() if state else ""))
        self.page.wait_for_selector("#ol-inside h3, #ol-said [role=alert]")
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until nothing is being worked out: the address is what the box of the link says."""
        self.page.wait_for_function("document.querySelector('#ol-link :is(input, textarea)').value === location.href")

    def changed(self, do: Any) -> None:
        """Do something, and wait for the address to change: the last thing that happens."""
        before = self.page.url
        do()
        self.page.wait_for_function("before => location.href !== before", arg=before)
        self.settle()

    def losses(self) -> dict[str, float]:
        rows = self.page.locator("#ol-tables .block").first.locator("tbody tr")
        return {row.locator("th").inner_text(): float(row.locator("td").first.inner_text()) for row in rows.all()}

    def number(self) -> float:
        return float(self.page.locator("#ol-big").inner_text())

    def slider(self) -> float:
        return float(self.page.locator("#ol-left input[type=range]").input_value())

    def words(self, condition: str) -> list[str]:
        return self.page.locator(f"#ol-passage tr[data-condition={condition}] button").all_inner_texts()

    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.page.url).query).items()}

    def dims(self) -> tuple[int, ...]:
        return Selection.from_query(self.query()).dims


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Opens visitors; afterwards none of them may have asked for anything outside, or seen an error."""
    visitors: list[Visitor] = []

    def make(address: str, state: Selection | None = None, **size: int) -> Visitor:
        visitors.append(Visitor(browser, **size))
        return visitors[-1].open(address, state)

    yield make
    for one in visitors:
        one.context.close()
        assert [url for url in one.asked if not one.is_here(url)] == []
        assert len(one.asked) > 20
        assert one.complaints == []
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        with (ARTEFACTS / "requests.log").open("a", encoding="utf-8") as log:
            log.write("\n".join(one.asked) + "\n")


def test_all_off_breaks_the_text_and_as_many_random_ones_do_not(servers: dict[str, str], visit: Any) -> None:
    one = visit(servers["planted"])
    page = one.page
    assert page.locator("h1").first.inner_text() == "mini-planted"
    assert page.locator("#ol-verdict").inner_text().startswith("mini-planted has 8 outlier dimensions: ")
    boxes = page.locator("#ol-listed input[type=checkbox]")
    assert (boxes.count(), page.locator("#ol-listed input:checked").count(), one.slider()) == (8, 8, 0)
    assert page.locator("#ol-listed label").first.inner_text().startswith("8 · layers 0–3 of 4 · |z| up to")
    assert one.dims() == (8, 24, 40, 56, 72, 88, 104, 120)  # a new page begins with all of them off
    losses = one.losses()
    assert losses["chosen"] > losses["intact"] + 1
    assert abs(losses["random"] - losses["intact"]) < 0.3
    assert one.words("chosen") != one.words("intact")
    assert one.number() == round(losses["chosen"], 2)
    before = page.locator("#ol-said").inner_text()
    one.changed(page.get_by_role("button", name="Another random set").click)
    assert page.locator("#ol-said").inner_text() != before
    assert one.losses()["chosen"] == losses["chosen"]
    for number in range(8):
        one.changed(boxes.nth(number).uncheck)
    assert one.dims() == ()
    assert list(one.losses()) == ["intact"]
    assert "Everything is on" in page.locator("#ol-said").inner_text()
    assert one.number() == round(losses["intact"], 2)


def test_an_example_is_one_press_and_ctrl_enter_shows_what_is_typed(servers: dict[str, str], visit: Any) -> None:
    from outlierlens.explore.page import EXAMPLES

    one = visit(servers["planted"])
    for name, text in EXAMPLES.items():
        one.changed(one.page.get_by_role("button", name=name, exact=True).click)
        assert one.query()["text"] == text
    typed = one.page.locator("#ol-text textarea")
    typed.fill("A film that nobody should have to see, I would say.")
    one.changed(lambda: typed.press("Control+Enter"))
    assert one.query()["text"] == "A film that nobody should have to see, I would say."


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_are_drawn(servers: dict[str, str], visit: Any, scheme: str) -> None:
    one = visit(servers["planted"])
    one.page.emulate_media(color_scheme=scheme)
    one.page.goto(one.page.url)
    one.page.wait_for_selector("#ol-inside [data-drawn=yes] svg")
    one.settle()
    said = one.page.locator("#ol-inside svg text").all_text_contents()
    assert {"Largest |x|, intact", "Attention on the first token", "Mean cosine of the tokens"} <= set(said)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(servers: dict[str, str], visit: Any, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    one = visit(servers["planted"], Selection(text=TEXT, dims=(8, 24), left=0.5), width=width)
    one.page.emulate_media(color_scheme=scheme)
    one.page.goto(one.page.url)
    one.page.wait_for_selector("#ol-inside h3")
    one.settle()
    found = axe.Axe().run(one.page, options={"exclude": []}).response["violations"]
    assert [(rule["id"], [node["html"][:300] for node in rule["nodes"]]) for rule in found] == []


def test_on_a_phone_results_come_first_and_the_number_stays_in_sight(servers: dict[str, str], visit: Any) -> None:
    one = visit(servers["planted"], width=390, height=844)
    page = one.page
    assert page.locator("#ol-passage").bounding_box()["y"] < page.locator("#ol-text").bounding_box()["y"]
    page.locator("#ol-text").scroll_into_view_if_needed()
    number = page.locator("#ol-big").bounding_box()
    assert 0 <= number["y"] < 200


def test_a_link_restores_everything(servers: dict[str, str], visit: Any) -> None:
    state = Selection(text=TEXT, dims=(8, 17), first=1, last=2, mode="zero", seed=3, blank=1)
    one = visit(servers["planted"], state)
    page = one.page
    assert Selection.from_query(one.query() | {"stack": ""}) == state
    assert page.locator("#ol-text textarea").input_value() == TEXT
    assert page.locator("#ol-listed input:checked").count() == 1
    assert page.locator("#ol-others :is(input, textarea)").input_value() == "17"
    assert "8, 17 ablated in layers 1–2, mode zero" in page.locator("#ol-said").inner_text()
    shown, losses = page.url, one.losses()
    again = visit(servers["planted"])
    again.page.goto(shown)
    again.page.wait_for_selector("#ol-inside h3")
    again.settle()
    assert again.losses() == losses
    assert again.page.url == shown


# What the page shows is what the boxes say: dimensions, the random set's seed, the blank.
AGREES = r"""() => {
  const value = (id) => document.querySelector(`#ol-${id} :is(input, textarea)`).value;
  const numbers = (text) => (text || '').split(',').filter((one) => one.trim()).map(Number);
  const on = [...document.querySelectorAll('#ol-listed label')].filter((one) => one.querySelector('input').checked);
  const dims = on.map((one) => parseInt(one.innerText)).concat(numbers(value('others'))).sort((a, b) => a - b);
  const shown = new URLSearchParams(location.search), said = document.querySelector('#ol-said').innerText;
  const chosen = /chosen: ([0-9, ]+)/.exec(said), first = (chosen ? numbers(chosen[1]) : []).slice(0, 6);
  return value('link') === location.href && String(first) === String(dims.slice(0, 6))
    && String(numbers(shown.get('dims'))) === String(dims)
    && Number(shown.get('seed') || 0) === Number(value('seed')) && Number(shown.get('blank') || 0) === Number(value('blank'));
}"""
FAST = """async ([ids, gap]) => {
  for (const id of ids) {
    document.querySelectorAll('#ol-listed input[type=checkbox]')[id].click();
    await new Promise((done) => setTimeout(done, gap));
  }
}"""


@pytest.mark.parametrize("gap", [0, 50, 200])
def test_clicks_faster_than_answers_end_at_what_is_ticked(servers: dict[str, str], visit: Any, gap: int) -> None:
    """The gap is what a person does, not what the page is given: it is waited for until it agrees."""
    one = visit(servers["planted"])
    page = one.page
    page.evaluate(FAST, [list(range(8)), gap])
    page.wait_for_function(AGREES)
    assert one.dims() == ()
    assert "Everything is on" in page.locator("#ol-said").inner_text()
    assert list(one.losses()) == ["intact"]
    page.evaluate(FAST, [[0, 3, 3, 5, 0, 3], gap])
    page.locator("#ol-passage button").nth(1).click()
    page.get_by_role("button", name="Another random set").click()
    page.get_by_role("button", name="Another random set").click()
    page.wait_for_function(AGREES)
    assert (one.dims(), one.query()["blank"], one.query()["seed"]) == ((56, 88), "1", "2")
    again = visit(servers["planted"], Selection(text=TEXT, dims=(56, 88), seed=2, blank=1))
    assert again.losses() == one.losses()


def test_what_two_people_choose_stays_apart(servers: dict[str, str], visit: Any) -> None:
    one, other = visit(servers["planted"]), visit(servers["planted"])
    one.changed(one.page.locator("#ol-listed input").nth(0).uncheck)
    one.page.locator("#ol-text textarea").fill("A film that nobody should have to see, I would say.")
    one.changed(one.page.get_by_role("button", name="Show", exact=True).click)
    other.changed(other.page.locator("#ol-listed input").nth(3).uncheck)
    assert (one.dims(), other.dims()) == ((24, 40, 56, 72, 88, 104, 120), (8, 24, 40, 72, 88, 104, 120))
    assert other.query()["text"] == TEXT
    assert other.page.locator("#ol-text textarea").input_value() == TEXT
    assert one.query()["text"].startswith("A film that nobody")
    # The other's intact model is intact while something is off for the one.
    alone = visit(servers["planted"], Selection(text=TEXT, dims=(8, 24, 40, 72, 88, 104, 120)))
    assert alone.losses() == other.losses()


def test_the_keyboard_is_enough(servers: dict[str, str], visit: Any) -> None:
    one = visit(servers["planted"])
    page = one.page

    def focused() -> str:
        return page.evaluate(
            "() => { const e = document.activeElement;"
            " return e.dataset.blank ? 'blank ' + e.dataset.blank : e.closest('[id^=ol-]')?.id || e.tagName; }"
        )

    def tab_to(wanted: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if focused() == wanted:
                return
        raise AssertionError(f"{wanted} cannot be reached by the tab key; last was {focused()}")

    tab_to("ol-left")
    while page.evaluate("document.activeElement.type") != "range":  # before it are its number and its reset
        page.keyboard.press("Tab")
        assert focused() == "ol-left"
    one.changed(lambda: page.keyboard.press("ArrowRight"))
    assert one.query()["left"] == "0.05"
    tab_to("ol-text")
    tab_to("ol-listed")
    one.changed(lambda: page.keyboard.press("Space"))
    assert one.dims() == (24, 40, 56, 72, 88, 104, 120)
    tab_to("ol-others")
    page.keyboard.type("17, 18")
    one.changed(lambda: page.keyboard.press("Enter"))
    assert one.dims() == (17, 18, 24, 40, 56, 72, 88, 104, 120)
    tab_to("blank 1")
    one.changed(lambda: page.keyboard.press("Enter"))
    assert one.query()["blank"] == "1"
    assert focused() == "blank 1"


def test_what_cannot_be_is_said_politely(servers: dict[str, str], visit: Any) -> None:
    one = visit(servers["planted"])
    page = one.page
    text, alert = page.locator("#ol-text textarea"), page.locator("#ol-said [role=alert]")

    def shows(typed: str, message: str) -> None:
        text.fill(typed)
        page.get_by_role("button", name="Show", exact=True).click()
        page.wait_for_function("wanted => document.querySelector('#ol-said').innerText.includes(wanted)", arg=message)
        assert page.locator("#ol-tables tr").count() == 0

    shows("", "There is no text to read; write a sentence.")
    shows("word " * 10_000, "This text has 50,000 letters, and the page reads 2,000 at most")
    one.changed(lambda: (text.fill("A 🦜 {{value}} ${1+1} <b>film</b> of the year."), page.locator("#ol-run").click()))
    assert alert.count() == 0
    assert "<b>film</b>" in page.locator("#ol-tables pre").first.text_content()
    assert page.locator("#ol-passage td b").count() == 0
    others = page.locator("#ol-others :is(input, textarea)")
    for typed, message in (("999", "Dimension 999 does not exist"), ("x", "Cannot read dimensions 'x'")):
        others.fill(typed)
        others.press("Enter")
        page.wait_for_function("wanted => document.querySelector('#ol-said').innerText.includes(wanted)", arg=message)
    bad = visit(servers["planted"])
    bad.page.goto(servers["planted"] + "?" + urlencode({"dims": "1,x", "text": TEXT}))
    bad.page.wait_for_selector("#ol-said [role=alert]")
    assert "Cannot read dimensions '1,x'" in bad.page.locator("#ol-said").inner_text()


def test_a_decoder_goes_on_and_what_is_copied_is_what_is_shown(servers: dict[str, str], visit: Any) -> None:
    one = visit(servers["decoder"])
    page, slider = one.page, one.page.locator("#ol-left input[type=range]")
    one.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert page.locator(".ol-says tr").count() == 1
    one.changed(lambda: slider.press("Home"))
    assert page.locator(".ol-says tr").count() == 3
    assert page.locator(".ol-says").bounding_box()["y"] < page.locator("#ol-passage button").first.bounding_box()["y"]
    assert page.locator("#ol-tables").inner_text().count("causal loss") == 1
    page.locator("#ol-tables summary", has_text="The same on the command line").click()
    page.locator("#ol-tables [data-copy]").click()
    page.wait_for_selector("text=Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#ol-tables pre").text_content()
    assert re.match(r"outlierlens explore \S+ '--text=w1 w2 ", copied)


@pytest.mark.parametrize(("name", "width", "height"), [("desktop", 1280, 900), ("phone", 390, 844)])
def test_it_fits_and_is_photographed(servers: dict[str, str], visit: Any, name: str, width: int, height: int) -> None:
    one = visit(
        servers["planted"], Selection(text=TEXT, dims=(8, 24, 40, 56, 72, 88, 104, 120)), width=width, height=height
    )
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert one.page.locator("#ol-tables .block").count() == 2
    assert one.page.locator("#ol-inside .block").count() == 3
    assert one.page.locator("svg[role=img]:not([aria-label])").count() == 0
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    one.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


def test_the_command_is_on_this_machine_alone_and_reached_nothing(command: Server, servers: dict[str, str]) -> None:
    with urlopen(servers["planted"]) as page:
        assert "gradio" in page.read().decode()
    said = command.said.read_text("utf-8")
    assert said == f"exploring mini-planted at {command.address} (this machine only; Ctrl-C ends it)\n"
    assert _listening(command.process.pid) == ["127.0.0.1"]


def _listening(pid: int) -> list[str]:
    """Addresses that a process listens at."""
    import psutil

    found = psutil.Process(pid).net_connections("inet")
    return sorted({one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN})
