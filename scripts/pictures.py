"""The pictures of the docs, by a Chromium (`OUTLIERLENS_CHROMIUM`, or Debian's) that playwright drives.

    python scripts/pictures.py docs/report.png runs/mini-planted/report.html      # the first screen of a report
    python scripts/pictures.py docs/explore.gif mini-planted                      # ten seconds of the live page

On the live page a hand turns the dimensions that stand out from all off to all on, and off again.
"""

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from outlierlens.explore.look import open_explorer
from outlierlens.explore.serve import served
from outlierlens.explore.state import Place

STEPS = (0.25, 0.5, 0.75, 1.0, 0.0)
OPEN_MS, SLIDE_MS = 2600, 1300


@contextmanager
def opened(address: str, width: int, height: int) -> Iterator[Any]:
    """A page of the browser, of that many pixels."""
    chromium = os.environ.get("OUTLIERLENS_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=0)
        page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
        page.set_default_timeout(0)
        page.goto(address)
        yield page
        browser.close()


def frames(page: Any) -> Iterator[Image.Image]:
    """The page as it opens, and after each step of the hand."""

    def settled() -> Image.Image:
        page.wait_for_selector("#ol-inside h3")
        page.wait_for_function("document.querySelector('#ol-link :is(input, textarea)').value === location.href")
        shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        return shown.quantize(64, dither=Image.Dither.NONE)

    yield settled()
    for left in STEPS:
        before, number = page.url, page.locator("#ol-left input[type=number]")
        number.fill(str(left))
        number.press("Tab")
        page.wait_for_function("before => location.href !== before", arg=before)
        yield settled()


def main(target: Path, source: str) -> None:
    """Write one of the two pictures."""
    if target.suffix == ".png":
        with opened(Path(source).resolve().as_uri(), 1280, 720) as page:
            page.wait_for_selector("svg")
            page.screenshot(path=target)
        return
    explorer = open_explorer(source)
    with served(explorer, explorer.start(), Place()) as (address, _), opened(address, 1100, 640) as page:
        first, *rest = frames(page)
    times = [OPEN_MS, *(SLIDE_MS for _ in rest)]
    first.save(target, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    print(f"{target}: {sum(times) / 1000:g} s, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
