"""What the statistics of `observe` cost beside the bare forward pass, and whether their memory grows with the tokens.

    OMP_NUM_THREADS=1 python benchmarks/observe.py                    # mpnet-base, batch 32, length 128, 1 thread
    python benchmarks/observe.py --model DIR --repeats 7 --skip-memory

Cost: three passes over each batch, in turn in one process: one by PyTorch's own products, as transformers makes it; the bare
pass of `observe`, by `fast_products`; and an observed one. All keep the memory that they free. What observing adds is given as
a share of both, with the range over batches.
Memory: peak resident size for each number of tokens, on a small model, the median of three fresh processes. Texts are prepared
32 batches at a time, which takes some memory until there are so many: it must not grow from there on.
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from timing import own_products

WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he")


def texts(n_texts: int, n_words: int) -> tuple[str, ...]:
    """Texts of `n_words` words each, all different."""
    choose = random.Random(0)
    return tuple(" ".join(choose.choices(WORDS, k=n_words)) for _ in range(n_texts))


def cost(model: str, batch_size: int, max_length: int, repeats: int) -> float:
    """Print the times and return what observing adds to the processor time of the bare pass, as a share of it."""
    import torch

    from outlierlens.data.texts import Texts
    from outlierlens.detection.activations import ObserveOptions, Observer
    from outlierlens.models.devices import memory_kept
    from outlierlens.models.load import LoadOptions, load_model

    torch.set_num_threads(1)
    loaded = load_model(model, LoadOptions(device="cpu", dtype="float32", offline=True))
    observer = Observer(loaded, ObserveOptions(max_length=max_length, batch_size=batch_size))
    warm, *fresh = observer.batches(Texts("benchmark", texts(batch_size * (repeats + 1), max_length)))
    tokens = int(warm.valid.sum())
    taken: dict[str, list[tuple[float, float]]] = {"PyTorch's own pass": [], "bare pass": [], "observed pass": []}
    with memory_kept():  # as in `observe`
        observer.consume(warm)
        for batch in fresh:
            with own_products():
                taken["PyTorch's own pass"].append(_seconds(lambda batch=batch: observer.reading(batch)))
            taken["bare pass"].append(_seconds(lambda batch=batch: observer.reading(batch)))
            taken["observed pass"].append(_seconds(lambda batch=batch: observer.consume(batch)))
    finish, _ = _seconds(observer.finish)
    print(
        f"{model}: batch {batch_size} x {max_length} ({tokens:,} tokens), 1 thread, float32, {repeats} repeats interleaved"
    )
    for kind, which in (("wall", 1), ("processor", 0)):
        plain, bare, observed = (np.array([pair[which] for pair in pairs]) for pairs in taken.values())
        shown = zip(taken, (plain, bare, observed), strict=True)
        print(f"{kind} time:", ", ".join(f"{name} {np.median(of):.3f} s {_range(of, '.3f')}" for name, of in shown))
        for name, of in (("PyTorch's own", plain), ("the bare pass", bare)):
            added = float(np.median(observed - bare) / np.median(of))
            print(f"  what is observed: {added:.1%} of {name} {_range((observed - bare) / of, '.1%')}")
        whole = observed / plain
        print(f"  pass and statistics: {np.median(whole):.2f} of PyTorch's own {_range(whole, '.2f')}")
    print(f"once at the end: {finish:.3f} s (quantiles, rules, both views)")
    return added  # of the last two: processor time, beside the bare pass


def _range(of: np.ndarray, form: str) -> str:
    return f"({of.min():{form}} to {of.max():{form}})"


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Processor time of this process and wall time: on a shared machine only the first says what the work costs."""
    start = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - start[0], time.perf_counter() - start[1]


def peak(model: str, n_tokens: int) -> int:
    """Peak resident bytes of a fresh process that observes about `n_tokens` tokens."""
    command = [sys.executable, __file__, "--model", model, "--peak-of", str(n_tokens)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def observe_tokens(model: str, n_tokens: int) -> None:
    """Observe about `n_tokens` tokens and print this process's peak resident bytes."""
    from outlierlens.analyses.observe import observe
    from outlierlens.data.texts import Texts
    from outlierlens.detection.activations import ObserveOptions
    from outlierlens.models.load import LoadOptions, load_model

    loaded = load_model(model, LoadOptions(device="cpu", dtype="float32", offline=True))
    found = observe(
        loaded, Texts("benchmark", texts(n_tokens // 128, 128)), ObserveOptions(max_length=128, batch_size=32)
    )
    assert 0.9 * n_tokens < found.about.n_tokens <= n_tokens, found.about.n_tokens
    print(_peak_bytes())


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would start at the size of the process that started this one
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> int:
    """Run both measurements; exit code 1 when the cost is over 15 % or memory grows by more than 5 % where it must not."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="mpnet-base", help="sample name or directory for the cost")
    arguments.add_argument("--memory-model", default="minilm-l6", help="sample name or directory for the memory")
    arguments.add_argument("--batch-size", type=int, default=32)
    arguments.add_argument("--max-length", type=int, default=128)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--skip-memory", action="store_true")
    arguments.add_argument("--peak-of", type=int, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.peak_of:
        observe_tokens(given.model, given.peak_of)
        return 0
    good = cost(given.model, given.batch_size, given.max_length, given.repeats) <= 0.15
    if not given.skip_memory:
        few, one, four = (
            10_000,
            32 * 32 * 128,
            4 * 32 * 32 * 128,
        )  # tokens: what is prepared at a time, and four times that
        peaks = {n: statistics.median(peak(given.memory_model, n) for _ in range(3)) for n in (few, one, four)}
        for n, size in peaks.items():
            print(f"peak memory, {given.memory_model}, {n:>7,} tokens: {size / 2**20:,.0f} MiB")
        good = good and peaks[four] <= 1.05 * peaks[one]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
