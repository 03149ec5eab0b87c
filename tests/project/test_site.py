"""The documentation's site: it builds strictly, loads nothing from outside, and its links, formulas and search work."""

import html
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import outlierlens.commands
from conftest import needs_chromium
from gold.commands import spelt
from moments import HANGS
from outlierlens.analyses.atlas_lookup import ATLAS
from outlierlens.analyses.atlas_rows import read_rows
from outlierlens.architectures.rows import packaged
from outlierlens.checkpoints.trainers import TRAINERS
from outlierlens.experiments import BY_NAME
from outlierlens.results.document import HOMES

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
FETCHED = {"src", "srcset", "poster", "data", "action", "formaction", "background"}  # and the href of a <link>


class Page(HTMLParser):
    """What a page fetches, where its links lead, and the anchors it has."""

    def __init__(self, path: Path):
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.tags: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in FETCHED or (tag == "link" and name == "href"):
                self.fetched.append(value or "")
            elif name == "href":
                self.links.append(value or "")
            elif name == "id":
                self.anchors.add(value or "")
            elif name == "style":
                self.fetched += addresses(value or "")


def addresses(css: str) -> list[str]:
    """What a style sheet fetches."""
    return re.findall(r"url\(\s*['\"]?([^'\")]+)", css) + re.findall(r"@import\s+['\"]([^'\"]+)", css)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", folder / "doctrees", ROOT / "docs", folder / "html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_page_of_the_docs_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()


def test_the_packaged_atlas_is_a_page_of_it(site: Path) -> None:
    text = (site / "atlas" / "index.html").read_text("utf-8")
    names = {row.model for row in read_rows(ATLAS)}
    assert len(names) >= 20
    assert not [name for name in names if f'"{name}"' not in text]


def test_nothing_is_loaded_from_outside(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert page.fetched or path.parent.name == "atlas"  # which is one file
        assert not [one for one in page.fetched if OUTSIDE.match(one)], path.name
    for sheet in site.rglob("*.css"):
        assert not [one for one in addresses(sheet.read_text("utf-8")) if OUTSIDE.match(one)], sheet.name
    for script in site.rglob("*.js"):
        code = script.read_text("utf-8")
        assert not re.findall(r"(?:fetch|import|importScripts|open)\(\s*['\"`](?:\w+:)?//", code), script.name


def test_every_local_link_leads_to_an_anchor_that_is_there(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for link in page.links:
            if OUTSIDE.match(link) or link.startswith(("mailto:", "data:")):
                continue
            place, _, anchor = unquote(link).partition("#")
            target = (path.parent / place).resolve() if place else path
            assert target.exists(), f"{path.name}: {link}"
            if anchor and target in pages:
                assert anchor in pages[target].anchors, f"{path.name}: {link}"


def test_formulas_are_drawn_by_the_browser_itself(site: Path, pages: dict[Path, Page]) -> None:
    source = (ROOT / "docs" / "methods.md").read_text("utf-8")
    shown = pages[site / "methods.html"].tags.count("math")
    assert shown == len(re.findall(r"^```math$|\$[^$]+\$", source, re.MULTILINE)) > 50
    assert "merror" not in pages[site / "methods.html"].tags


def test_the_reference_tells_of_every_public_name_and_every_kind_of_result(pages: dict[Path, Page], site: Path) -> None:
    told = pages[site / "reference" / "python.html"].anchors
    assert {f"outlierlens.{name}" for name in outlierlens.__all__} <= told
    others = {*dir(outlierlens.commands)} - {*outlierlens.__all__}
    assert {f"outlierlens.commands.{name}" for name in others} <= told
    assert {"outlierlens.errors.BadInput", "outlierlens.errors.told"} & told == {"outlierlens.errors.BadInput"}
    told = pages[site / "reference" / "results.html"].anchors
    assert {f"outlierlens.{home}.{name}" for name, home in HOMES.items()} <= told


@pytest.mark.parametrize("name", BY_NAME)
def test_a_command_has_a_page_with_its_options_and_examples(name: str, site: Path) -> None:
    text = html.unescape(
        re.sub(r"<[^>]*>", "", (site / "reference" / f"{name.replace(' ', '-')}.html").read_text("utf-8"))
    )
    assert f"outlierlens {name} [OPTIONS]" in text
    assert all(f"$ outlierlens {one}" in text for one in BY_NAME[name].examples)
    assert all(one in text for one in spelt(name) if not one.startswith("--no-"))
    assert "**" not in text


def test_types_and_trainers_have_their_tables(site: Path) -> None:
    types = (site / "reference" / "model-types.html").read_text("utf-8")
    assert all(f"<p>{name}</p>" in types for name in packaged())
    trainers = (site / "reference" / "trainers.html").read_text("utf-8")
    assert all(form.example in trainers for form in TRAINERS)


def test_code_that_names_a_command_or_a_function_is_a_link(pages: dict[Path, Page], site: Path) -> None:
    links = pages[site / "python.html"].links
    assert {"reference/python.html#outlierlens.scan", "training.html"} <= set(links)
    links = pages[site / "which-command.html"].links
    assert {f"reference/{name.replace(' ', '-')}.html" for name in BY_NAME} <= set(links)


@pytest.mark.browser
@needs_chromium
def test_the_search_works_from_the_files_alone(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.set_default_timeout(HANGS * 1000)
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"{(site / 'search.html').as_uri()}?q=anisotropy")
    page.wait_for_selector("ul.search li a")
    page.wait_for_selector("text=Are my embeddings sound, and can I repair them?")
    assert "outlierlens.analyses.geometry.LayerGeometry.anisotropy" in page.text_content("ul.search")
    page.goto((site / "methods.html").as_uri())
    assert page.evaluate("document.querySelector('math').getBoundingClientRect().height") > 8
    assert page.evaluate("document.documentElement.scrollWidth") <= 400  # a phone scrolls formulas, not the page
    assert all(url.startswith(("file:", "data:")) for url in asked)
    assert complaints == []
    page.close()
