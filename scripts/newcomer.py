"""Do what a newcomer does, with the README's own commands, in a fresh place, and time each step.

    python scripts/newcomer.py                     # a clone of this repository's HEAD, in a temporary folder
    python scripts/newcomer.py --source URL --keep

The commands are those of the first console block under the README's "Set up"; `make test` is left out unless `--all` asks
for it. They run in a clone, with an empty home and no variables but PATH and what pip needs to find its index (a machine
behind a mirror has no other way to install). A command that serves a page is read from loopback, then interrupted; a
command that ends with the path of a report must have written it. Prints the table of docs/cost.md. Exit code 1: a step failed.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
SECTION = "Set up"
SERVES = re.compile(r"^exploring .* at (http://127\.0\.0\.1:\d+/)")
WRITTEN = re.compile(r"(?:^|[ :])(\S+\.html)$")


@dataclass(frozen=True)
class Step:
    """One step: the command, what of it, and how many seconds it took."""

    command: str
    what: str
    seconds: float


class Failed(Exception):
    """A command of the README did not do what the README says."""


def commands(readme: str) -> list[str]:
    """The commands of the first console block under the section, without comments."""
    section = readme.split(f"\n## {SECTION}\n", 1)
    block = re.search(r"```console\n(.*?)```", section[-1], re.DOTALL) if len(section) == 2 else None
    lines = [line[2:] for line in block[1].splitlines() if line.startswith("$ ")] if block else []
    if not lines:
        raise Failed(f"the README has no console block under '## {SECTION}'")
    return [shlex.join(shlex.split(line, comments=True)) for line in lines]


def environment(home: Path) -> dict[str, str]:
    """An empty home, PATH, and where pip finds packages; nothing else of the caller's."""
    given = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "PATH"}
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "debug"], capture_output=True, text=True, check=False
    )
    mine = re.findall(rf"^\s+({re.escape(str(Path.home()))}\S+), exists: True", asked.stdout, re.MULTILINE)
    return (
        given | ({"PIP_CONFIG_FILE": mine[-1]} if mine and "PIP_CONFIG_FILE" not in given else {}) | {"HOME": str(home)}
    )


def follow(command: str, place: Path, given: dict[str, str]) -> Iterator[Step]:
    """Run one command in `place`; its steps, as its lines tell them."""
    begun = time.monotonic()
    said: list[str] = []
    with subprocess.Popen(
        shlex.split(command), cwd=place, env=given, text=True, bufsize=1, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line.rstrip("\n"))
                print(f"  {said[-1]}", flush=True)
                if said[-1] == "setup: done":
                    yield Step(command, "set up", time.monotonic() - begun)
                    begun = time.monotonic()
                elif page := SERVES.search(said[-1]):
                    yield Step(command, answer(page[1]), time.monotonic() - begun)
                    os.killpg(process.pid, signal.SIGINT)
            code = process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if any(map(SERVES.search, said)):
        return
    if code:
        raise Failed(f"{command}: exit code {code}")
    written = WRITTEN.search(said[-1] if said else "")
    if written and not (place / written[1]).is_file():
        raise Failed(f"{command}: it names {written[1]}, which is not there")
    yield Step(command, f"`{written[1]}`" if written else "ran", time.monotonic() - begun)


def answer(url: str) -> str:
    """Read the page as a browser would first; what it is."""
    with urlopen(url, timeout=120) as page:
        text = page.read().decode()
    title = re.search(r'property="og:title" content="([^"]*outlierlens)"', text) or re.search(r"<title>([^<]+)", text)
    if page.status != 200 or not title:
        raise Failed(f"{url} does not answer with a page")
    return f"a page, “{title[1]}”"


def table(steps: list[Step]) -> str:
    """The table of docs/cost.md."""
    rows = [f"| `{one.command}` | {one.what} | {minutes(one.seconds)} |" for one in steps]
    return "\n".join(["| command | until | minutes |", "|---|---|---|", *rows])


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def main() -> int:
    parser = argparse.ArgumentParser(description="The README's first commands, in a fresh place, timed.")
    parser.add_argument("--source", default=str(ROOT), help="what is cloned; default: this repository")
    parser.add_argument("--all", action="store_true", help="`make test` too")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would hand on that it is ignored
    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    home, place = folder / "home", folder / "outlierlens"
    home.mkdir()
    try:
        given = environment(home)
        steps = list(follow(shlex.join(["git", "clone", "--quiet", asked.source, str(place)]), folder, given))
        steps = [Step("git clone", "cloned", sum(one.seconds for one in steps))]
        for command in commands((place / "README.md").read_text("utf-8")):
            if command == "make test" and not asked.all:
                continue
            print(f"$ {command}", flush=True)
            steps += follow(command, place, given)
        print(
            f"\n{table(steps)}\n\n{minutes(sum(one.seconds for one in steps))} in all, on {os.cpu_count()} cores",
            flush=True,
        )
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
