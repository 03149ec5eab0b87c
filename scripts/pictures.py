"""Make the picture of the README's report from a real run: docs/report.png, the first screen (needs chromium).

outlierlens report mini-planted
python scripts/pictures.py runs/mini-planted/report.html
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def first_screen(page: Path) -> None:
    """Write docs/report.png, 1,280 × 720 pixels, from a report."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        raise SystemExit("error: no chromium is installed")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1280,720",
        ]
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=8000", f"--screenshot={DOCS / 'report.png'}"]
        subprocess.run([*command, page.resolve().as_uri()], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    first_screen(Path(sys.argv[1]))
