"""The whole process `outlierlens scan` against loading the model with transformers and applying the released rule.

    python benchmarks/scan.py                          # the sample mpnet-base (fetch it first)
    python benchmarks/scan.py MODEL --runs 5

Seconds of wall clock and peak resident memory of fresh processes, A B A B …, medians, and the ratios pair by pair.
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


def run(command: list[str]) -> tuple[float, float]:
    """(seconds, peak resident MB) of one process."""
    start = time.perf_counter()
    process = os.posix_spawn(
        command[0],
        command,
        os.environ | {"HF_HUB_OFFLINE": "1"},
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def line(name: str, runs: list[tuple[float, float]]) -> str:
    """Median and range of both figures."""
    parts = []
    for figure, unit in ((0, "s"), (1, "MB")):
        values = [pair[figure] for pair in runs]
        parts.append(f"{statistics.median(values):8.2f} {unit} ({min(values):.2f} to {max(values):.2f})")
    return f"{name:30}" + "   ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="mpnet-base")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    from outlierlens.checkpoints import samples

    folder = str(samples.directory(options.model)) if options.model in samples.SAMPLES else options.model
    ours = [str(Path(sys.executable).parent / "outlierlens"), "scan", options.model]
    theirs = [sys.executable, "-c", BASELINE, folder]
    run(ours), run(theirs)  # both read the file once before they count
    pairs = [(run(ours), run(theirs)) for _ in range(options.runs)]
    print(line("outlierlens scan", [ours for ours, _ in pairs]))
    print(line("transformers + released rule", [theirs for _, theirs in pairs]))
    for figure, name in ((0, "faster"), (1, "less memory")):
        ratios = sorted(theirs[figure] / ours[figure] for ours, theirs in pairs)
        print(f"{statistics.median(ratios):.1f} x {name} ({ratios[0]:.1f} to {ratios[-1]:.1f} pair by pair)")


if __name__ == "__main__":
    main()
