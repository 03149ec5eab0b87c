"""Ten seconds of the live page as an animated picture: `python scripts/record_page.py docs/explore.gif [MODEL]`.

A hand turns the dimensions that stand out from all off to all on, and off again. Needs a Chromium (`OUTLIERLENS_CHROMIUM`, or
Debian's), playwright, gradio and Pillow.
"""

import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from outlierlens.explore.look import open_explorer
from outlierlens.explore.serve import served
from outlierlens.explore.state import Place

SIZE = {"width": 1100, "height": 640}
STEPS = (0.25, 0.5, 0.75, 1.0, 0.0)
SHOWN_MS = {"open": 2600, "slide": 1300}


def frames(page: Any) -> list[tuple[Image.Image, int]]:
    """(picture, milliseconds) of each moment."""

    def settled() -> None:
        page.wait_for_selector("#ol-inside h3")
        page.wait_for_function("document.querySelector('#ol-link :is(input, textarea)').value === location.href")

    def seen(moment: str) -> tuple[Image.Image, int]:
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB"), SHOWN_MS[moment]

    def changed(do: Any) -> None:
        before = page.url
        do()
        page.wait_for_function("before => location.href !== before", arg=before)
        settled()

    settled()
    made = [seen("open")]
    for left in STEPS:
        number = page.locator("#ol-left input[type=number]")
        changed(lambda number=number, left=left: (number.fill(str(left)), number.press("Tab")))
        made.append(seen("slide"))
    return made


def main(target: Path, model: str = "mini-planted") -> None:
    """Record the page of `model` to `target`."""
    explorer = open_explorer(model)
    chromium = os.environ.get("OUTLIERLENS_CHROMIUM") or shutil.which("chromium")
    with served(explorer, explorer.start(), Place()) as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=0)
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        page.set_default_timeout(0)
        page.goto(address)
        made = frames(page)
        browser.close()
    pictures = [picture.quantize(64, dither=Image.Dither.NONE) for picture, _ in made]
    times = [milliseconds for _, milliseconds in made]
    pictures[0].save(target, save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=True)
    print(f"{target}: {sum(times) / 1000:g} s, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
