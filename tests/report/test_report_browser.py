"""Reports in a browser: accessibility, links and keys, nothing that moves, no JavaScript, and paper."""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import synthetic_report as synthetic
from conftest import needs_chromium
from moments import HANGS
from outlierlens.report import ReportPair, render
from outlierlens.report.page import render_both

SHIFTS = """window.moved = 0;
new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.moved += entry.value; })
  .observe({ type: "layout-shift", buffered: true });"""

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """{name: a page of that kind}."""
    folder = tmp_path_factory.mktemp("pages")
    stack = synthetic.stack_scan(needles=(5, 9), n_layers=6, hidden_size=64, bias=True)
    observed = synthetic.observation(n_layers=6, hidden_size=64, massive=(5, 300.0))
    data = synthetic.report_data(
        scan_result=synthetic.scan(stack), observed=observed, damages=(synthetic.damage(dims=(5, 9)),)
    )
    other = synthetic.report_data(scan_result=synthetic.scan(replace(stack, n_sigma=2.5)), observed=observed)
    made = {"report": render(data), "both": render_both(ReportPair((data, other)))}
    made["large"] = render(synthetic.large_report())
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: folder / f"{name}.html" for name in made}


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Opens a page, waits for its charts, and fails the test where the console says anything or a file is asked for."""
    contexts, said = [], []

    def open_page(name: str, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        context.set_default_timeout(HANGS * 1000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.append(asked.url) if not asked.url.endswith(f"{name}.html") else None)
        if scripts:
            page.add_init_script(SHIFTS)
        page.goto(pages[name].as_uri())
        if scripts:
            page.wait_for_selector("html[data-charts=ready]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
@pytest.mark.parametrize("name", ["report", "both"])
def test_axe_finds_nothing(opened: Any, name: str, width: int, dark: bool) -> None:
    pytest.importorskip("axe_playwright_python")
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    page = opened(name, width=width, dark=dark)
    page.evaluate(axe)
    found = page.evaluate("axe.run().then(({violations, passes}) => ({violations, passes: passes.length}))")
    assert found["passes"] > 20  # it did look
    assert not found["violations"], json.dumps([(one["id"], one["nodes"][0]["html"]) for one in found["violations"]])
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width  # tables scroll by themselves, the page does not


def test_the_first_screen_has_the_loss_and_a_word_for_each_question(opened: Any) -> None:
    page = opened("report")
    picture = page.locator("#chart-ablation .chart svg").bounding_box()
    assert picture["y"] + picture["height"] < 900
    words = page.locator(".verdicts li").all_inner_texts()
    assert [word.rpartition("?")[2].strip() for word in words][:2] == ["yes", "yes"]
    for link in page.locator(".verdicts a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    assert page.locator("#chart-ablation").count() == 1


def test_tables_sort_by_keys_and_commands_are_copied(opened: Any) -> None:
    page = opened("report")
    table = page.locator("section[aria-labelledby=outliers-in-the-weights] table:visible")
    z = table.locator("thead th").nth(4)

    def column(place: int) -> list[str]:
        return [row.locator(":is(th, td)").nth(place).inner_text() for row in table.locator("tbody tr").all()]

    values = column(4)
    assert len(values) > 1
    numbers = sorted((float(value.replace("−", "-")) for value in values if value != "–"), reverse=True)
    for order, wanted in (("descending", numbers), ("ascending", numbers[::-1])):
        z.locator("button").focus()
        page.keyboard.press("Enter")
        assert z.get_attribute("aria-sort") == order
        shown = column(4)
        assert [float(value.replace("−", "-")) for value in shown if value != "–"] == wanted
        assert "–" not in shown[: len(wanted)]  # what is missing stands last either way
    table.locator("thead th").nth(1).locator("button").click()
    assert z.get_attribute("aria-sort") is None
    assert column(1) == sorted(column(1), key=str.casefold)
    command = page.locator("pre.command").first
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    said = command.locator("code").inner_text()
    command.locator("button.copy").click()
    page.locator("button.copy", has_text="copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == said


@pytest.mark.parametrize("name", ["report", "both"])
def test_nothing_moves_while_charts_are_drawn(opened: Any, name: str) -> None:
    page = opened(name)
    assert page.evaluate("window.moved") < 0.02
    rooms = page.evaluate(
        "Array.from(document.querySelectorAll('.chart'), (e) => [e.dataset.chart, parseFloat(e.style.minHeight), "
        "e.querySelector('svg').getBoundingClientRect().height])"
    )
    assert rooms
    assert not [(chart, kept, drawn) for chart, kept, drawn in rooms if not -2 <= kept - drawn <= 40]


def test_a_model_of_eighty_layers_and_8192_dimensions_can_be_used(opened: Any) -> None:
    page = opened("large")  # its charts are drawn when this returns
    assert page.evaluate("document.querySelectorAll('*').length") < 60_000
    slowest = page.evaluate(
        "new Promise((done) => { const start = performance.now(); document.getElementById('chart-weights-scale')"
        ".scrollIntoView(); requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start))); })"
    )
    assert (
        slowest < 3000
    )  # milliseconds from a click in the contents to the picture, on a machine that does other things
    page.locator("#chart-weights-scale summary").click()
    assert page.locator("#chart-weights-scale table").is_visible()


@pytest.mark.parametrize("name", ["report", "large"])
def test_on_a_phone_no_picture_is_cut_and_a_wide_table_shows_that_it_goes_on(name: str, opened: Any) -> None:
    page = opened(name, width=390)
    beyond = page.evaluate("""() => Array.from(document.querySelectorAll(".chart .mark-group.role-legend"))
        .map((legend) => legend.getBoundingClientRect().right)""")
    assert beyond
    assert max(beyond) <= 390
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    shades = page.evaluate("""() => Array.from(document.querySelectorAll(".block .scroll"))
        .filter((one) => one.scrollWidth > one.clientWidth).map((one) => getComputedStyle(one).backgroundAttachment)""")
    assert shades
    assert set(shades) == {"local, local, scroll, scroll"}


def test_contents_and_links_of_headings_are_reached_by_keys(opened: Any) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=HANGS * 1000)

    page = opened("report")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    contents = page.locator(".contents a:focus")
    for _ in range(60):  # behind the verdicts, the picture and the commands of the first screen
        page.keyboard.press("Tab")
        if contents.count() and contents.get_attribute("href") == "#outliers-in-the-weights":
            break
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#outliers-in-the-weights"
    # Not wait_for_function: what it asks again is evaluated from a string, which the page's policy forbids.
    expect(page.locator(".contents [aria-current]")).to_have_attribute("href", "#outliers-in-the-weights")
    page.keyboard.press("Tab")  # on from the target: the link of its heading
    link = page.locator("a.anchor:focus")
    assert link.get_attribute("href") == "#outliers-in-the-weights"
    expect(link).to_have_css("opacity", "1")
    assert page.locator("a.anchor").last.evaluate("e => getComputedStyle(e).opacity") == "0"


def test_without_scripts_it_is_readable_and_its_numbers_can_be_opened(opened: Any) -> None:
    page = opened("report", scripts=False)
    assert page.locator(".chart").first.is_hidden()
    note = page.locator("figure noscript").first
    assert "This picture needs JavaScript" in note.inner_text()
    page.locator("figure summary").first.click()
    assert page.locator("figure table").first.is_visible()


def test_paper_has_pictures_and_words_and_no_navigation(opened: Any) -> None:
    page = opened("report")
    page.emulate_media(media="print")
    assert page.locator(".contents").is_hidden()
    assert page.locator("a.anchor").first.is_hidden()
    assert page.locator(".chart svg").first.is_visible()
    assert page.pdf(format="A4").count(b"/Type /Page\n") >= 3
