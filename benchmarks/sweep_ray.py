"""Whether two Ray workers do twice the work of one: rows of (dimension, text) a second, a thread each.

    python benchmarks/sweep_ray.py --repeats 3 --units 32  # a random masked LM of 6 layers x 384, 1 thread a worker
    python benchmarks/sweep_ray.py --model DIR --repeats 5 --workers 4

Run it with nothing else running. Each repeat times the same work in this process, on one worker and on several, one after
the other; workers are started and have measured once before the clock starts. Medians and their range are printed.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported

import torch
from sweep_baselines import save_bert
from timing import asked, made_up, spread

from outlierlens.analyses.sweep.options import Machines, SweepOptions
from outlierlens.analyses.sweep.ray_engine import RayEngine, RunnerCopy
from outlierlens.analyses.sweep.runner import make_runner
from outlierlens.analyses.sweep.units import Engine, LocalEngine, Unit, Work
from outlierlens.data.texts import Texts
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.tasks.base import TaskOptions

WANTED = 1.7
SPAN = 8  # texts of a piece of work


def rate(engine: Engine, works: list[Work]) -> float:
    """Rows of (unit, text) a second."""
    start = time.perf_counter()
    rows = sum(len(values) for _, values in engine.measure(works))
    return rows / (time.perf_counter() - start)


def compare(model: str, given: Any) -> float:
    """Print the rates and return how many times one worker's rate several workers reach."""
    torch.set_num_threads(1)
    load = LoadOptions(device="cpu", dtype="float32", offline=True)
    data = Texts("made up", made_up(4 * SPAN, given.length, given.length))
    options = SweepOptions(task=TaskOptions(max_length=given.length, blocks=False))
    runner = make_runner(load_model(model, load), data, options)
    n_layers = runner.stack.n_layers
    units = [Unit(str(dim), "all layers", dict.fromkeys(range(n_layers), (dim,))) for dim in range(given.units)]
    works = [Work(unit, start, start + SPAN) for start in range(0, runner.n_texts, SPAN) for unit in units]
    processors = os.cpu_count() or 1
    recipe = RunnerCopy.like(runner, data, load)
    # All workers are there at once, busy or idle, in the one Ray that the first engine starts; each has one thread.
    share = min(1.0, processors / (given.workers + 1))
    rows = runner.rows(runner.order)
    several, one = (
        RayEngine(recipe, Machines(ray="local", workers=n, cpus_per_worker=share), rows=rows)
        for n in (given.workers, 1)
    )
    engines: dict[str, Engine] = {
        "this process": LocalEngine(runner),
        "1 worker": one,
        f"{given.workers} workers": several,
    }
    print(f"{model}: {len(works) * SPAN:,} rows of {given.length} tokens, float32, a thread a worker, "
          f"{processors} processors, {given.repeats} repeats interleaved")  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in engines}
    try:
        for repeat in range(given.repeats + 1):
            for name, engine in engines.items():
                measured = rate(engine, works)
                if repeat:  # the first warms up
                    found[name].append(measured)
    finally:
        for engine in engines.values():
            engine.close()
    for name, rates in found.items():
        print(f"{name}: {spread(rates, '.1f')} rows/s")
    here, alone, many = (statistics.median(rates) for rates in found.values())
    print(f"one worker: {alone / here:.2f} x this process; {given.workers} workers: {many / alone:.2f} x one worker")
    return many / alone


def main() -> None:
    """Command line."""
    given = asked(__doc__, model=str, workers=2, repeats=1, units=8, length=64)
    with tempfile.TemporaryDirectory() as directory:
        if not given.model:
            save_bert(Path(directory), made_up(100), layers=6, width=384)
        ratio = compare(given.model or directory, given)
    if given.workers == 2:
        print(f"two workers reach {WANTED} x one: {'yes' if ratio >= WANTED else 'NO'}")


if __name__ == "__main__":
    main()
