"""Processor time until the program answers: the import and `--help`, beside the start of Python itself.

    python benchmarks/start.py                          # 20 runs of each

Each run is a fresh process, one of each kind in turn; medians, and ratios to the start of Python pair by pair.
"""

import sys

from timing import PROGRAM, asked, processes, ratios, spread


def main() -> None:
    """Print a line for each kind of start."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import outlierlens": [sys.executable, "-c", "import outlierlens"],
        "outlierlens --help": [PROGRAM, "--help"],
    }
    taken = {
        name: [one.busy for one in found] for name, found in processes(commands, asked(__doc__, runs=20).runs).items()
    }
    bare = next(iter(taken.values()))
    for name, seconds in taken.items():
        print(
            f"{name:20}{spread(seconds, '.3f')} s of processor, {spread(ratios(seconds, bare), '.1f')} x {next(iter(taken))}"
        )


if __name__ == "__main__":
    main()
