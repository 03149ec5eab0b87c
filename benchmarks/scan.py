"""Whole processes that scan, by command and from Python, against transformers and the released rule; and that only start.

    python benchmarks/scan.py                          # the sample mpnet-base (fetch it first)
    python benchmarks/scan.py MODEL --runs 5

Each run is a fresh process, one of each kind in turn: seconds of processor and of wall clock, peak resident memory,
medians, and ratios pair by pair. Modules are read as bytecode, as installed packages are. The import and `--help` stand
beside the start of Python itself.
"""

import sys

from timing import PROGRAM, asked, processes, ratios, spread

from outlierlens.checkpoints import samples

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
FIGURES = {
    "busy": ("s of processor", "less processor time"),
    "seconds": ("s", "faster"),
    "megabytes": ("MiB", "less memory"),
}


def started(runs: int) -> None:
    """Print a line for each kind of start."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import outlierlens": [sys.executable, "-c", "import outlierlens"],
        "outlierlens --help": [PROGRAM, "--help"],
    }
    taken = {name: [one.busy for one in found] for name, found in processes(commands, runs).items()}
    bare = taken["python -c pass"]
    for name, seconds in taken.items():
        times = spread(ratios(seconds, bare), ".1f")
        print(f"{name:20}{spread(seconds, '.3f')} s of processor, {times} x python -c pass")


def main() -> None:
    given = asked(__doc__, {"model": "mpnet-base"}, runs=5)
    started(4 * given.runs)
    folder = str(samples.directory(given.model)) if given.model in samples.SAMPLES else given.model
    theirs = "transformers + released rule"
    commands = {
        "outlierlens scan": [PROGRAM, "scan", given.model],
        "outlierlens.scan(model)": [sys.executable, "-c", FROM_PYTHON, given.model],
        theirs: [sys.executable, "-c", BASELINE, folder],
    }
    runs = processes(commands, given.runs)
    for name, taken in runs.items():
        print(
            f"{name}:", ", ".join(f"{spread([getattr(one, of) for one in taken])} {FIGURES[of][0]}" for of in FIGURES)
        )
    for name in [name for name in commands if name != theirs]:
        pairs = {of: [[getattr(one, of) for one in runs[which]] for which in (theirs, name)] for of in FIGURES}
        print(f"{name}:", ", ".join(f"{spread(ratios(*pairs[of]), '.1f')} x {FIGURES[of][1]}" for of in FIGURES))


if __name__ == "__main__":
    main()
