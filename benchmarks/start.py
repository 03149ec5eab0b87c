"""Processor time until the program answers: the import and `--help`, beside the start of Python itself.

    python benchmarks/start.py                          # 20 runs of each

Each run is a fresh process, one of each kind in turn; medians, and ratios to the start of Python pair by pair.
"""

import argparse
import statistics
import sys
from pathlib import Path

from scan import run


def main() -> None:
    """Print a line for each kind of start."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import outlierlens": [sys.executable, "-c", "import outlierlens"],
        "outlierlens --help": [str(Path(sys.executable).parent / "outlierlens"), "--help"],
    }
    for command in commands.values():
        run(command)
    runs = [{name: run(command)[0] for name, command in commands.items()} for _ in range(options.runs)]
    bare = next(iter(commands))
    for name in commands:
        seconds = sorted(one[name] for one in runs)
        ratios = sorted(one[name] / one[bare] for one in runs)
        print(
            f"{name:20}{statistics.median(seconds):.3f} s of processor ({seconds[0]:.3f} to {seconds[-1]:.3f}), "
            f"{statistics.median(ratios):.1f} x {bare} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        )


if __name__ == "__main__":
    main()
