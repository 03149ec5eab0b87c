"""Requests and bytes of `outlierlens scan` on a remote model, counted by a hub on this machine.

    python benchmarks/remote_scan.py                       # the sample mpnet-base (fetch it first)
    python benchmarks/remote_scan.py DIRECTORY --runs 5    # any directory with config.json and safetensors

Run with and without the redirect that the real hub answers weight files with. One line each: requests (every one,
redirects included), bytes and their share of the weights, seconds of the whole process as median and range.
"""

import os
import sys
import tempfile
from pathlib import Path

from timing import PROGRAM, asked, process, spread

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from hub_server import FakeHub
from outlierlens.checkpoints import samples

MODEL = "local/model"


def measure(folder: Path, *, redirect: bool, runs: int) -> str:
    """One line of figures; every run is a fresh process with an empty cache."""
    files = {path.name: path for path in folder.iterdir() if path.is_file()}
    weights = sum(path.stat().st_size for name, path in files.items() if name.endswith(".safetensors"))
    seconds = []
    for _ in range(runs):
        with FakeHub(redirect=redirect) as hub, tempfile.TemporaryDirectory() as cache:
            hub.add(MODEL, files)
            os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": cache, "NO_PROXY": "*", "HF_HUB_OFFLINE": "0"}
            seconds.append(process(PROGRAM, "scan", MODEL, "--json").seconds)
    return (
        f"redirect {'yes' if redirect else 'no':3}  requests {len(hub.seen):3}  bytes {hub.sent:9,} of {weights:,} "
        f"({hub.sent / weights:.4%})  at once {hub.most_at_once}  seconds {spread(seconds)} "
        f"in {runs} runs"
    )


def main() -> None:
    given = asked(__doc__, {"directory": ""}, runs=5)
    folder = Path(given.directory) if given.directory else samples.directory("mpnet-base")
    for redirect in (False, True):
        print(measure(folder, redirect=redirect, runs=given.runs))


if __name__ == "__main__":
    main()
