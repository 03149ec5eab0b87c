"""Install the built wheel into a fresh environment, close the network, and run the main job from it.

    python -m build -o dist
    python scripts/check_wheel.py dist

Needs the package index for what the wheel depends on, and `unshare` (Linux) for an environment without a network.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

MAX_BYTES = 15_000_000
CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
NO_NETWORK = ["unshare", "--map-root-user", "--net"]


def main() -> int:
    """Check the one wheel in a folder; the exit status."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("dist", type=Path, help="folder that holds one wheel")
    (wheel,) = arguments.parse_args().dist.resolve().glob("*.whl")
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        print(f"error: {wheel.name} has {size:,} bytes; at most {MAX_BYTES:,} are wanted", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        print(f"{wheel.name}: {size:,} bytes; installing it with all it needs to run a model", flush=True)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        install = [python, "-m", "pip", "install", "-q", "-c", CONSTRAINTS, f"outlierlens[models] @ {wheel.as_uri()}"]
        subprocess.run(install, cwd=place, check=True)
        # Neither the checkout's modules nor a cache that some other run has filled.
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OUTLIERLENS_CACHE")}
        clean |= {"HOME": str(place), "OUTLIERLENS_CACHE": str(place / "cache")}
        report = [place / "venv" / "bin" / "outlierlens", "report", "mini-bert", "-o", place / "run"]
        subprocess.run([*NO_NETWORK, *map(str, report)], cwd=place, env=clean, check=True)
        page = place / "run" / "report.html"
        print(f"report.html without a network: {page.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
