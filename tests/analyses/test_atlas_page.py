"""`atlas page`: what the figures count, that nothing is loaded or injected, and what people find, in a browser."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, HOSTILE, Page
from conftest import needs_chromium
from outlierlens.analyses import atlas as page
from outlierlens.analyses.atlas import Bar, Group, models_of, summary, write_site
from outlierlens.analyses.atlas_rows import AtlasOutlier, AtlasRow
from outlierlens.errors import BadInput

ARTEFACTS = Path(os.environ.get("OUTLIERLENS_ARTEFACTS") or Path(__file__).parents[2] / "runs" / "atlas")


def row(model: str, dims: Sequence[int] = (), *, family: str = "bert", width: int = 1024, **more: Any) -> AtlasRow:
    outliers = tuple(AtlasOutlier(dim, -5.5, 4.0, -1, (0, 1, 2), 1e-6) for dim in dims)
    values = {
        "revision": "f" * 40, "stack": "model", "site": "output.LayerNorm", "layers": 24, "norm": "layernorm",
        "norm_site": "stream", "created": "2019-05-01", "downloads": 10, "bytes_read": 400, "bytes_total": 1_000_000,
        "requests": 5,
    }  # fmt: skip
    return AtlasRow(model, family=family, width=width, outliers=outliers, **values | more)


ROWS = [
    row("bert-large-uncased", [929, 301], license="apache-2.0", downloads=5),
    row("acme/bert-large-ner", [929, 12]),
    row("acme/bert-large-other", [7]),
    row("t5", [3], family="t5", width=512, layers=6, stack="encoder", norm="rmsnorm", norm_site="read"),
    row("t5", [3, 4], family="t5", width=512, layers=6, stack="decoder", norm="rmsnorm", norm_site="read"),
    row("plain/none", family="gpt2", width=768, layers=12, created=None, norm_site="read"),
    AtlasRow("acme/closed", reason="gated", failure="accept its terms first"),
    row(f"evil/{HOSTILE}", [1], family=HOSTILE, site=HOSTILE, license=HOSTILE),
    AtlasRow("evil/2", reason="malformed", failure=HOSTILE),
]


def test_the_figures_count_models() -> None:
    told = summary(models_of(ROWS))
    assert (told["n"], told["n_read"], told["with_any"]) == (8, 6, 5)
    assert (told["bytes_read"], told["bytes_total"], told["requests"]) == (6 * 400, 6_000_000, 30)
    assert told["failed"] == [("gated", 1), ("malformed", 1)]
    bars = dict(told["histograms"])
    assert bars["By kind of norm"] == [
        Bar("layernorm, post-norm", 4, 4, 1.5), Bar("layernorm, pre-norm", 1, 0, 0), Bar("rmsnorm, pre-norm", 1, 1, 3),
    ]  # fmt: skip
    assert bars["By year"] == [Bar("2019", 5, 5, 2), Bar("not told", 1, 0, 0)]
    assert told["groups"][0] == Group("bert", 1024, 24, "model", 3, ((929, 2),))
    assert Group("t5", 512, 6, "decoder", 1, ()) in told["groups"]


def test_a_later_revision_takes_the_place_of_an_earlier_one() -> None:
    found = models_of([row("a", [1], revision="1" * 40), row("a", [2], revision="2" * 40)])
    assert [[one.dim for one in each.outliers] for model in found for each in model] == [[2]]


def test_nothing_in_the_page_is_loaded_or_run_but_its_own_script(tmp_path: Path) -> None:
    (path,) = write_site(ROWS, tmp_path)
    text = path.read_text("utf-8")
    seen = Page(text)
    assert HOSTILE not in text
    assert [len(seen.all(tag)) for tag in ("img", "link", "iframe", "script")] == [0, 0, 0, 2]
    assert "src" not in seen.all("script")[1]
    (meta,) = (one for one in seen.all("meta") if one.get("http-equiv"))
    assert meta["content"].startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", text)
    held = json.loads(seen.scripts[0])
    assert [model[0] for model in held["models"]] == sorted({one.model for one in ROWS}, key=str.casefold)
    assert next(model[1:7] for model in held["models"] if model[0] == "bert-large-uncased") == [
        "bert",
        "layernorm post-norm",
        "2019-05-01",
        5,
        "apache-2.0",
        "f" * 12,
    ]
    assert HOSTILE in seen.text  # the family's name in the table, as text


def test_ten_thousand_models_are_one_page_below_5_mb_and_more_are_several(tmp_path: Path) -> None:
    def many(n: int) -> Iterator[AtlasRow]:
        for number in range(n):
            name = f"organisation-{number % 700}/bert-large-uncased-fine-tuned-on-something-{number}"
            yield row(name, [929, 301, number % 1024], license="apache-2.0", downloads=number)

    (path,) = write_site(many(10_000), tmp_path / "one")
    assert path.stat().st_size <= 5e6
    pages = write_site(many(10_001), tmp_path / "more")
    assert [path.name for path in pages] == ["index.html", "models-001.html", "models-002.html"]
    assert all(path.stat().st_size <= 5e6 for path in pages)
    assert pages[0].stat().st_size < 100_000
    write_site(many(3), tmp_path / "more")
    assert [path.name for path in (tmp_path / "more").iterdir()] == ["index.html"]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


OTHERS = {
    "models-001.html": "<title>Mine</title>",
    "models-of-my-own.html": "<h1>cars</h1>",
    "index.html": "<title>Mine</title>",
    "notes.txt": page.MARK.decode(),
    "more/index.html": page.MARK.decode(),
    ".hidden": "x",
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_folder_with_anything_else_is_not_written_to(tmp_path: Path, other: str) -> None:
    folder = tmp_path / "site"
    write_site(ROWS, folder)
    (folder / other).parent.mkdir(exist_ok=True)
    (folder / other).write_text(OTHERS[other])
    before = tree(tmp_path)
    with pytest.raises(
        BadInput, match="is not a page of an atlas, and a site needs a folder of its own; name a new one with -o"
    ):
        write_site(ROWS[:1], folder)
    assert tree(tmp_path) == before
    write_site(ROWS[:1], tmp_path / "new")  # as the message says


def test_a_file_and_links_in_its_place_stay(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.write_text("mine")
    with pytest.raises(BadInput, match="is not a page of an atlas"):
        write_site(ROWS, folder)
    assert folder.read_text() == "mine"
    write_site(ROWS, tmp_path / "other")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "index.html").symlink_to(tmp_path / "other" / "index.html")
    with pytest.raises(BadInput, match="is not a page of an atlas"):
        write_site(ROWS, tmp_path / "linked")
    (tmp_path / "there").symlink_to(tmp_path / "other")  # the folder itself may be a link, as elsewhere
    write_site(ROWS[:1], tmp_path / "there")
    assert (tmp_path / "there").is_symlink()
    assert list(tree(tmp_path / "other")) == ["index.html"]


def test_a_site_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_site(ROWS, tmp_path / "site")
    before = tree(tmp_path)
    monkeypatch.setattr(page, "write_text", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_site(ROWS[:1], tmp_path / "site")
    assert tree(tmp_path) == before


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_what_people_find_at_both_widths(tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from playwright.sync_api import sync_playwright

    (whole,) = write_site(ROWS, tmp_path / "whole")
    monkeypatch.setattr(page, "MAX_MODELS", 3)
    index, *shards = write_site(ROWS, tmp_path / "shards")
    asked, said = [], []
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        tab.goto(whole.as_uri())
        tab.fill("#words", "bert-large 929")
        answer = tab.locator("#answer")
        assert answer.locator("h2").inner_text() == (
            "2 models with 929 among their outlier dimensions, of 3 models that match"
        )
        assert answer.locator("tbody tr a").all_inner_texts() == ["acme/bert-large-ner", "bert-large-uncased"]
        tab.screenshot(path=ARTEFACTS / f"found-{width}.png", full_page=True)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.fill("#words", "bert-large 5")
        assert "None has it" in answer.inner_text()
        tab.fill("#words", "")
        assert answer.inner_text() == ""
        tab.goto(f"{whole.as_uri()}#m=bert-large-uncased")
        shown = answer.inner_text()
        assert "outlierlens scan bert-large-uncased" in shown
        assert "−5.5" in shown
        assert "1 model of its family and width share" in shown
        tab.screenshot(path=ARTEFACTS / f"model-{width}.png", full_page=True)
        tab.fill("#words", "evil")
        answer.locator("tbody a").first.click()
        assert HOSTILE in answer.inner_text()
        assert answer.locator("img").count() == 0
        tab.goto(f"{index.as_uri()}#q=t5%203")
        answer.locator("a").first.click()  # the page whose names a word may begin comes first
        assert tab.url.startswith(shards[-1].as_uri())
        assert answer.locator("tbody tr a").all_inner_texts() == ["t5"]
        browser.close()
    assert said == []
    assert {url.partition("#")[0] for url in asked} == {path.as_uri() for path in (whole, index, shards[-1])}
