"""What `report` does most: the loss of every text, with `fast_products` and with PyTorch's own products.

    OMP_NUM_THREADS=1 python benchmarks/report.py                     # smollm2-135m, 16 texts, five pairs
    python benchmarks/report.py --model DIR --limit 64                # all that `report` reads, as many threads as there are

Each pair is one reading of all texts each way, in turn, in one process; the ratio is the median over pairs. Exit code 1 where a
text's loss differs by more than float32 rounding, 1e-4 nats per token.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from timing import own_products

SAME = 1e-4


def main() -> int:
    """Print the times of both ways and their ratio."""
    import torch

    from outlierlens.data.texts import read_texts
    from outlierlens.models.load import LoadOptions, load_model
    from outlierlens.report.job import suited
    from outlierlens.report.options import ReportOptions
    from outlierlens.tasks.choice import forecast, make_task

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="sample name or directory")
    parser.add_argument("--limit", type=int, default=16, help="texts")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    loaded = load_model(asked.model, LoadOptions(device="cpu", dtype="float32", offline=True))
    texts = read_texts(suited(asked.model), limit=asked.limit)
    task = make_task(loaded, texts)
    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "PyTorch's products": own_products,
        "fast products": nullcontext,
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    values = {}
    for turn in range(asked.repeats + 1):
        for name, way in ways.items():
            start = time.process_time(), time.perf_counter()
            with way():
                values[name], _ = task.per_text()
            if turn:  # the first sets things up
                seconds[name].append((time.process_time() - start[0], time.perf_counter() - start[1]))
    print(
        f"{asked.model}: {len(texts)} texts, {task.lengths.sum():,} tokens, {torch.get_num_threads()} threads, float32"
    )
    for kind, which in (("processor", 0), ("wall", 1)):
        plain, fast = ([one[which] for one in taken] for taken in seconds.values())
        ratios = sorted(a / b for a, b in zip(plain, fast, strict=True))
        print(f"{kind} time: {statistics.median(plain):.2f} s and {statistics.median(fast):.2f} s, "
              f"{statistics.median(ratios):.2f} × ({ratios[0]:.2f} to {ratios[-1]:.2f})")  # fmt: skip
    print(f"the report: {forecast(task, 3 + sum(ReportOptions().n_sets))}")
    plain_values, fast_values = values.values()
    apart = float(np.abs(plain_values - fast_values).max())
    print(f"largest difference of a text's loss: {apart:.1e} nats per token")
    return 0 if apart <= SAME else 1


if __name__ == "__main__":
    sys.exit(main())
