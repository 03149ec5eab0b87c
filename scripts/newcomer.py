"""Do what a newcomer does, with the README's own commands, in a fresh place, and time each step.

    python scripts/newcomer.py                     # a clone of this repository's HEAD, in a temporary folder
    python scripts/newcomer.py --source URL --keep

The commands are those of the first console block under the README's "Set up"; `make test` is left out unless `--all` asks
for it. They run in a clone, with an empty home and no variables but PATH and what pip needs to find its index (a machine
behind a mirror has no other way to install). A command that ends with the path of a report must have written it. Prints the
table of benchmarks/README.md. Exit code 1: a step failed.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTION = "Set up"
WRITTEN = re.compile(r"(?:^|[ :])(\S+\.html)$")
Step = tuple[str, str, float]  # the command, what of it, and how many seconds it took


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
    call = [sys.executable, "-m", "pip", "config", "debug"]
    told = subprocess.run(call, capture_output=True, text=True, check=False).stdout
    mine = re.findall(rf"^\s+({re.escape(str(Path.home()))}\S+), exists: True", told, re.MULTILINE)
    return ({"PIP_CONFIG_FILE": mine[-1]} if mine else {}) | given | {"HOME": str(home)}


def follow(command: str, place: Path, given: dict[str, str]) -> Iterator[Step]:
    """Run one command in `place`; its steps, as its lines tell them."""
    begun, line = time.monotonic(), ""
    with subprocess.Popen(
        shlex.split(command), cwd=place, env=given, text=True, bufsize=1, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in map(str.rstrip, process.stdout):
            print(f"  {line}", flush=True)
            if line == "setup: done":
                yield command, "set up", time.monotonic() - begun
                begun = time.monotonic()
    if process.returncode:
        raise Failed(f"{command}: exit code {process.returncode}")
    written = WRITTEN.search(line)
    if written and not (place / written[1]).is_file():
        raise Failed(f"{command}: it names {written[1]}, which is not there")
    yield command, f"`{written[1]}`" if written else "ran", time.monotonic() - begun


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def main() -> int:
    parser = argparse.ArgumentParser(description="The README's first commands, in a fresh place, timed.")
    parser.add_argument("--source", default=str(ROOT), help="what is cloned; default: this repository")
    parser.add_argument("--all", action="store_true", help="`make test` too")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    home, place = folder / "home", folder / "outlierlens"
    home.mkdir()
    try:
        given = environment(home)
        ((_, _, seconds),) = follow(shlex.join(["git", "clone", "--quiet", asked.source, str(place)]), folder, given)
        steps = [("git clone", "cloned", seconds)]
        for command in commands((place / "README.md").read_text("utf-8")):
            if command != "make test" or asked.all:
                print(f"$ {command}", flush=True)
                steps += follow(command, place, given)
        print("\n| command | until | minutes |\n|---|---|---|")
        print(*(f"| `{command}` | {what} | {minutes(seconds)} |" for command, what, seconds in steps), sep="\n")
        print(f"\n{minutes(sum(seconds for _, _, seconds in steps))} in all, on {os.cpu_count()} cores", flush=True)
    except (Failed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
