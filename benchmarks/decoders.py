"""Decoders trained alike but for one thing: which has a sink, a dimension that stands out, and a loss in INT8.

    python benchmarks/decoders.py                                  # twenty steps of one seed, on the package's reviews
    python benchmarks/decoders.py FOLDER --data train.parquet test.parquet        # trains what is not there: an hour
    python benchmarks/decoders.py FOLDER --data train.parquet test.parquet --recipes mini-decoder mini-decoder-muon

A run that was stopped goes on. Intervals are over seeds: of a mean by Student's t, of a difference from the first recipe by
Welch's, both at 95 %; with three seeds they are wide.
"""

import itertools
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats
from timing import asked

from outlierlens.analyses.pretrained import OutcomeOptions, kept
from outlierlens.data.texts import REVIEWS, read_texts
from outlierlens.training.pretrain.loop import RunOptions, pretrain
from outlierlens.training.pretrain.recipe import read_recipe, shipped
from outlierlens.training.pretrain.result import TrainedModel

FAMILY = tuple(name for name in shipped() if name.startswith("mini-decoder"))
TEXTS = 24  # held-out ones, whole: each is several rows
MEASURES = ("loss", "first token", "sinks", "found", "one-sided", "kurtosis", "largest |h|", "worst ablated", "INT8")


def mean(values: list[float]) -> str:
    """A mean and its interval over seeds."""
    middle = float(np.mean(values))
    if len(values) < 2 or np.ptp(values) == 0:
        return f"{middle:.3g}"
    low, high = stats.t.interval(0.95, len(values) - 1, middle, stats.sem(values))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def difference(values: list[float], base: list[float]) -> str:
    """By how much a mean differs, and its interval."""
    found = float(np.mean(values) - np.mean(base))
    if min(len(values), len(base)) < 2 or np.ptp(values) + np.ptp(base) == 0:
        return f"{found:+.3g}"
    low, high = stats.ttest_ind(values, base, equal_var=False).confidence_interval()
    return f"{found:+.3g} [{low:+.3g}, {high:+.3g}]"


def main() -> None:
    """Train, measure and print."""
    given = asked(__doc__, {"folder": ""}, data=[str], seeds=3, recipes=[str])
    recipes, settings = tuple(given.recipes or FAMILY), list[str]()
    with tempfile.TemporaryDirectory() as scratch:
        folder, data, seeds = Path(given.folder or scratch), given.data or [], given.seeds
        if not given.folder:
            reviews = folder / "reviews.txt"
            reviews.write_text("\n".join(" ".join(text.split()) for text in read_texts(REVIEWS).texts), "utf-8")
            data, seeds = [reviews], 1
            settings = ["training.steps=20", "training.warmup=2", "training.save_every=0", "training.evaluate_every=0"]
        if data:
            settings.append(f"data.source={json.dumps([str(source) for source in data])}")
        found: dict[str, list[TrainedModel]] = {name: [] for name in recipes}
        for seed, name in itertools.product(range(seeds), recipes):
            recipe = read_recipe(name).changed([*settings, f"training.seed={seed}"])
            run = pretrain(recipe, folder / f"{name}-{seed}", RunOptions(progress=lambda line: None))
            found[name] += kept(run, OutcomeOptions(n_texts=TEXTS)).runs
            print(f"{name}, seed {seed}: loss {found[name][-1].text_loss:.3f}", file=sys.stderr, flush=True)
    values = {
        name: {key: [float(run.measures[key] or 0) for run in runs] for key in MEASURES} for name, runs in found.items()
    }
    base = values[recipes[0]]
    for title in ("mean", f"against {recipes[0]}"):
        heads = [key.replace("|", "\\|") for key in MEASURES]
        print(f"\n| {title} | " + " | ".join(heads) + " |\n" + "|---" * (len(MEASURES) + 1) + "|")
        for name, measured in values.items():
            if title == "mean":
                print(f"| {name} | " + " | ".join(mean(measured[key]) for key in MEASURES) + " |")
            elif name != recipes[0]:
                print(f"| {name} | " + " | ".join(difference(measured[key], base[key]) for key in MEASURES) + " |")


if __name__ == "__main__":
    main()
