"""What the statistics of `observe` cost beside the bare forward pass, and whether their memory grows with the tokens.

    OMP_NUM_THREADS=1 python benchmarks/observe.py                    # mpnet-base, batch 32, length 128, 1 thread
    python benchmarks/observe.py --model DIR --repeats 7 --skip-memory

Cost: three passes over each batch, in turn in one process: one by PyTorch's own products, as transformers makes it; the bare
pass of `observe`, by `fast_products`; and an observed one. All keep the memory that they free. What observing adds is given as
a share of both, with the range over batches.
Memory: peak resident size for each number of tokens, on a small model, the median of three fresh processes. Texts are prepared
32 batches at a time, which takes some memory until there are so many: it must not grow from there on.
Exit code 1 where the cost is over 15 %, or memory grows by more than 5 % where it must not.
"""

import statistics
import sys

import numpy as np
import torch
from timing import Way, asked, largest_memory, load, made_up, own_products, peak, spread, table

from outlierlens.analyses.observe import observe
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions, Observer
from outlierlens.models.devices import memory_kept

MOST, GROWS = 0.15, 1.05
FEW, ONE = 10_000, 32 * 32 * 128  # tokens; as many as are prepared at a time


def cost(model: str, batch_size: int, max_length: int, repeats: int) -> float:
    """Print the times and return what observing adds to the processor time of the bare pass, as a share of it."""
    torch.set_num_threads(1)
    observer = Observer(load(model), ObserveOptions(max_length=max_length, batch_size=batch_size))
    texts = made_up(batch_size * (repeats + 1), max_length, max_length)
    warm, *fresh = observer.batches(Texts("benchmark", texts))
    plain, bare, observed = ways = [Way(name, lambda: None) for name in ("PyTorch's own pass", "bare", "observed")]
    with memory_kept():  # as in `observe`
        observer.consume(warm)
        for batch in fresh:
            plain.work = bare.work = lambda batch=batch: observer.reading(batch)
            observed.work = lambda batch=batch: observer.consume(batch)
            with own_products():
                plain.timed()
            bare.timed()
            observed.timed()
    end = Way("quantiles, rules, both views", observer.finish)
    end.timed()
    tokens = int(warm.valid.sum())
    print(f"{model}: batch {batch_size} x {max_length} ({tokens:,} tokens), 1 thread, float32, {repeats} repeats")
    table([*ways, end], tokens, "tokens")
    for kind in ("seconds", "busy"):
        own, alone, whole = (np.array(getattr(way, kind)) for way in ways)
        print({"seconds": "by the clock", "busy": "by the processor"}[kind])
        print(f"  what is observed: {spread((whole - alone) / own, '.1%')} of PyTorch's own pass")
        print(f"  what is observed: {spread((whole - alone) / alone, '.1%')} of the bare pass")
        print(f"  pass and statistics: {spread(whole / own)} of PyTorch's own")
    return float(np.median(whole - alone) / np.median(alone))


def observe_tokens(model: str, n_tokens: int) -> None:
    """Observe about `n_tokens` tokens and print this process's largest memory."""
    texts = Texts("benchmark", made_up(n_tokens // 128, 128, 128))
    found = observe(load(model), texts, ObserveOptions(max_length=128, batch_size=32))
    assert 0.9 * n_tokens < found.about.n_tokens <= n_tokens, found.about.n_tokens
    print(largest_memory())


def main() -> int:
    """Run both measurements."""
    given = asked(
        __doc__, model="mpnet-base", memory_model="minilm-l6", batch_size=32, max_length=128, repeats=5, skip_memory=False,
        peak_of=0,
    )  # fmt: skip
    if given.peak_of:
        observe_tokens(given.model, given.peak_of)
        return 0
    good = cost(given.model, given.batch_size, given.max_length, given.repeats) <= MOST
    if not given.skip_memory:
        peaks = {}
        for n in (FEW, ONE, 4 * ONE):
            words = ("--model", given.memory_model, "--peak-of", str(n))
            peaks[n] = statistics.median(peak(__file__, *words) for _ in range(3))
            print(f"peak memory, {given.memory_model}, {n:>7,} tokens: {peaks[n]:,.0f} MiB")
        good &= peaks[4 * ONE] <= GROWS * peaks[ONE]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
