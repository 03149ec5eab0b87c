"""Whole processes that scan, by command and from Python, against transformers and the released rule.

    python benchmarks/scan.py                          # the sample mpnet-base (fetch it first)
    python benchmarks/scan.py MODEL --runs 5

Each run is a fresh process, one of each kind in turn: seconds of processor and of wall clock, peak resident memory,
medians, and ratios pair by pair. Modules are read as bytecode, as installed packages are.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

# The released rule (Puccetti et al. 2022) needs the model in memory: names with "LayerNorm", |x - mean| > 3 std, more
# than three layers, lists interleaved.
BASELINE = """
import sys, numpy as np, torch
from transformers import AutoModel
model = AutoModel.from_pretrained(sys.argv[1])
lists = []
for kind in ("weight", "bias"):
    vectors = torch.stack([p.detach() for n, p in model.named_parameters()
        if n.endswith("LayerNorm." + kind) and "attention" not in n and "embeddings" not in n])
    out = (vectors - vectors.mean(1, keepdim=True)).abs() > 3 * vectors.std(1, keepdim=True)
    counts = out.sum(0)
    order = counts.argsort(descending=True)
    lists.append([int(d) for d in order if counts[d] > 3])
print(sorted({d for pair in zip(*lists) for d in pair}))
"""


FROM_PYTHON = "import sys, outlierlens; outlierlens.scan(sys.argv[1])"
FIGURES = ("s of processor", "s", "MB")


def run(command: list[str]) -> tuple[float, float, float]:
    """`FIGURES` of one process."""
    start = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = os.posix_spawn(
        command[0],
        command,
        environment | {"HF_HUB_OFFLINE": "1"},
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss / 1024


def line(name: str, runs: list[tuple[float, float, float]]) -> str:
    """Median and range of every figure."""
    parts = []
    for values, unit in zip(zip(*runs, strict=True), FIGURES, strict=True):
        parts.append(f"{statistics.median(values):8.2f} {unit} ({min(values):.2f} to {max(values):.2f})")
    return f"{name:30}" + "   ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="mpnet-base")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    from outlierlens.checkpoints import samples

    folder = str(samples.directory(options.model)) if options.model in samples.SAMPLES else options.model
    commands = {
        "outlierlens scan": [str(Path(sys.executable).parent / "outlierlens"), "scan", options.model],
        "outlierlens.scan(model)": [sys.executable, "-c", FROM_PYTHON, options.model],
        "transformers + released rule": [sys.executable, "-c", BASELINE, folder],
    }
    for command in commands.values():
        run(command)  # all read the file once before they count
    runs = [{name: run(command) for name, command in commands.items()} for _ in range(options.runs)]
    *ours, theirs = commands
    for name in commands:
        print(line(name, [one[name] for one in runs]))
    for name in ours:
        told = []
        for figure, what in enumerate(("less processor time", "faster", "less memory")):
            ratios = sorted(one[theirs][figure] / one[name][figure] for one in runs)
            told.append(f"{statistics.median(ratios):.1f} x {what} ({ratios[0]:.1f} to {ratios[-1]:.1f})")
        print(f"{name}: " + ", ".join(told) + ", pair by pair")


if __name__ == "__main__":
    main()
