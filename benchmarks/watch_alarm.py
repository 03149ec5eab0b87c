"""How early warnings of a watched training fare over recorded runs: announced, lead, and false alarms.

    python benchmarks/watch_alarm.py                                       # the run that comes with mini-bert
    outlierlens lab pretrain mini-rotary --set training.learning_rate=8e-3 -o runs/rotary      # any number of runs
    python benchmarks/watch_alarm.py runs/*/watch.jsonl --shuffles 20

An emergence is a dimension that leaves 3 sigma after the first record and is past it for three records in a row at some
time; it must be announced before its first record past 3 sigma. Clean runs are made of the
recorded ones: each layer's dimensions shuffled, all its records together, which takes away what layers share and leaves
all else; those in which nothing leaves count. An alarm comes true where its dimension leaves within `--within` steps. Processor
time of the test is per record.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from timing import asked

from outlierlens.checkpoints.samples import PACKAGED
from outlierlens.detection.rules import Rule, zscore
from outlierlens.statistics.means import share_at_most
from outlierlens.training.watch_alarm import Alarm, EarlyWarning
from outlierlens.training.watch_rows import read_watch

HELD = 3  # records
Z = dict[str, np.ndarray]  # kind: [record, layer, dim]


def recorded(path: Path) -> tuple[np.ndarray, Z]:
    """(steps, z by kind) of a run."""
    run = read_watch(path)
    kinds = {"scale": run.scale} | ({} if run.bias is None else {"bias": run.bias})
    return run.steps, {kind: np.stack([np.nan_to_num(zscore(row)) for row in rows]) for kind, rows in kinds.items()}


def followed(steps: np.ndarray, z: Z, rate: float) -> tuple[list[Alarm], float]:
    """(alarms, processor seconds a record) of a run."""
    warning, start = EarlyWarning(Rule(), rate), time.process_time()
    alarms = [
        alarm
        for place, step in enumerate(steps)
        for alarm in warning.see(int(step), {k: v[place] for k, v in z.items()})
    ]
    return alarms, (time.process_time() - start) / len(steps)


def past(z: np.ndarray) -> np.ndarray:
    """Where a dimension has left, bool [record, dim]."""
    rule = Rule()
    return np.array([rule.enough(rule.layers_past(row), z.shape[1]) for row in z])


def shuffled(z: Z, rng: np.random.Generator) -> Z:
    """The same, with every layer's dimensions in an order of its own."""
    n_layers, width = next(iter(z.values())).shape[1:]
    orders = np.stack([rng.permutation(width) for _ in range(n_layers)])
    return {kind: np.take_along_axis(values, orders[None], axis=2) for kind, values in z.items()}


def main() -> None:
    """Print a line for each run, and the sums."""
    given = asked(__doc__, {"rows": [PACKAGED / "mini-bert" / "watch.jsonl"]}, rate=0.1, shuffles=2, within=200)
    rng = np.random.default_rng(0)
    leads: list[tuple[int, int]] = []  # steps, records
    emerged = crossed = foretold = idle = clean = false = alarmed = raised = true = 0
    seconds: list[float] = []
    for path in given.rows:
        steps, z = recorded(path)
        alarms, cost = followed(steps, z, given.rate)
        seconds.append(cost)
        said = {(alarm.dim, alarm.kind): alarm.step for alarm in alarms}
        left: Mapping[tuple[int, str], int] = {
            (int(dim), kind): int(np.argmax(mask[:, dim]))
            for kind, values in z.items()
            for mask in [past(values)]
            for dim in np.flatnonzero(mask.any(0) & ~mask[0])
        }
        alarmed += bool(alarms)
        raised += len(alarms)
        true += sum(0 <= int(steps[left[key]]) - step <= given.within for key, step in said.items() if key in left)
        never = [key for key in said if key not in left]
        idle += len(never)
        crossed += len(left)
        foretold += len(said.keys() & left.keys())
        for (dim, kind), place in left.items():
            if (np.convolve(past(z[kind])[:, dim], np.ones(HELD)) == HELD).any():
                emerged += 1
                if (dim, kind) in said:
                    first = int(np.searchsorted(steps, said[dim, kind]))
                    leads.append((int(steps[place]) - said[dim, kind], place - first))
        print(f"{path.parent.name}: {len(alarms)} alarms, {len(never)} of them for dimensions that never leave")
        for _ in range(given.shuffles):
            turned = shuffled(z, rng)
            if not any(past(values).any() for values in turned.values()):
                clean += 1
                false += bool(followed(steps, turned, given.rate)[0])
    print(f"announced, of emergences that hold {HELD} records: {_share(len(leads), emerged)}")
    print(f"announced, of all that left: {_share(foretold, crossed)}")
    if leads:
        for values, unit in zip(zip(*leads, strict=True), ("steps", "records"), strict=True):
            low, middle, high = np.percentile(values, [10, 50, 90])
            print(f"lead: median {middle:.0f} {unit} (10 % to 90 %: {low:.0f} to {high:.0f}; {sorted(values)})")
    print(f"clean runs (shuffled layers, nothing leaves) with any alarm: {_share(false, clean)}")
    print(f"runs with any alarm: {_share(alarmed, len(given.rows))}")
    print(f"alarms that came true within {given.within} steps: {_share(true, raised)}")
    print(f"alarms for dimensions that never leave: {idle} in {len(given.rows)} runs")
    print(f"processor time of the test: {1e3 * float(np.median(seconds)):.1f} ms a record")


def _share(part: int, whole: int) -> str:
    # Clopper and Pearson (1934): both ends at 97.5 %.
    low, high = (
        (1 - share_at_most(whole - part, whole, 0.975), share_at_most(part, whole, 0.975)) if whole else (0.0, 1.0)
    )
    return f"{part} of {whole} ({low:.0%} to {high:.0%} at 95 %)"


if __name__ == "__main__":
    main()
