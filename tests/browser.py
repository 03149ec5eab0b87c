"""A page in a real browser, and what its text must never become: `browse(page, folder)`."""

import shutil
import subprocess
from html.parser import HTMLParser

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Elements of a page, and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self._script = [], [], None
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._script = [] if tag == "script" else self._script

    def handle_endtag(self, tag):
        if tag == "script" and self._script is not None:
            self.scripts.append("".join(self._script))
            self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self._script.append(data)
        else:
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def browse(page, folder):
    """The page's elements after its scripts have run, and the console's lines."""
    path = folder / "report.html"
    path.write_text(page, "utf-8")
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={folder / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=8000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
