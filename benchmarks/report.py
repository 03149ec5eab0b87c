"""What `report` does most: the loss of every text, with `fast_products` and with PyTorch's own products.

    OMP_NUM_THREADS=1 python benchmarks/report.py                     # smollm2-135m, 16 texts, five rounds
    python benchmarks/report.py --model DIR --limit 64                # all that `report` reads, as many threads as there are

A round is one reading of all texts each way, in one process; ratios are taken round by round. Exit code 1 where a text's loss
differs by more than float32 rounding, 1e-4 nats per token.
"""

import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from timing import Way, asked, compare, load, own_products, rounds, table

from outlierlens.data.texts import read_texts
from outlierlens.report.job import suited
from outlierlens.report.options import ReportOptions
from outlierlens.tasks.choice import forecast, make_task

SAME = 1e-4


def main() -> int:
    """Print the times of both ways and their ratio."""
    given = asked(__doc__, model="smollm2-135m", limit=16, rounds=5)
    texts = read_texts(suited(given.model), limit=given.limit)
    task = make_task(load(given.model), texts)

    def losses(products: Any) -> np.ndarray:
        with products:
            return task.per_text()[0]

    plain = Way("PyTorch's products", lambda: losses(own_products()))
    fast = Way("fast products", lambda: losses(nullcontext()))
    one, other = rounds([plain, fast], given.rounds).values()
    n_tokens = task.lengths.sum()
    print(f"{given.model}: {len(texts)} texts, {n_tokens:,} tokens, {torch.get_num_threads()} threads, float32")
    table([plain, fast], n_tokens, "tokens")
    compare("PyTorch's over fast products:", plain, fast)
    print(f"the report: {forecast(task, 3 + sum(ReportOptions().n_sets))}")
    apart = float(np.abs(one - other).max())
    print(f"largest difference of a text's loss: {apart:.1e} nats per token")
    return 0 if apart <= SAME else 1


if __name__ == "__main__":
    sys.exit(main())
