"""Plausible synthetic results on labelled tasks: sweeps for figure 2, and the tables of `replicate`."""

from dataclasses import replace

import numpy as np

import synthetic_report as synthetic
from outlierlens.experiments.sweep.result import Sweep
from outlierlens.replicate.glue.result import Replication, Row, TaskTable

OUTLIERS = (143, 283, 557)
NAN = float("nan")


def task_sweep(task="glue:rte", metric="accuracy", intact=0.66, *, dims=None, width=768, strong=None, seed=0, **more):
    """A sweep of a labelled task: values are 1 − metric; few dimensions lose much, the others next to nothing."""
    random = np.random.default_rng(seed)
    changes = np.round(random.normal(0.002, 0.006, width) * 277) / 277
    for dim, lost in (strong or {}).items():
        changes[dim] = lost
    effects = [
        synthetic.effect(dim, float(changes[dim]), half=0.02, n_texts=277, layers=tuple(range(6)))
        for dim in (range(width) if dims is None else dims)
    ]
    return synthetic.swept(
        effects,
        more.pop("nulls", ()),
        task=f"{task} {metric}" if metric else f"{task} loss",
        unit=f"1 − {metric}" if metric else "nats per example",
        metric=metric,
        text="pair of at most 256 tokens",
        intact=1 - intact if metric else intact,
        width=width,
        n_layers=6,
        found=more.pop("found", OUTLIERS),
        n_texts=277,
        method="exact",
        **more,
    )


def four() -> list[Sweep]:
    subset = tuple(sorted({*OUTLIERS, *range(5, 768, 6)}))
    singles = [synthetic.effect(557, 0.2)]
    null = synthetic.null(singles[0], np.linspace(-0.01, 0.012, 64))
    return [
        task_sweep("glue:rte", "accuracy", 0.66, strong={557: 0.12, 143: 0.03}, seed=1),
        task_sweep("glue:cola", "mcc", 0.49, strong={557: 0.31, 283: 0.08, 12: 0.15}, seed=2),
        task_sweep("glue:stsb", "pearson", 0.86, dims=subset, strong={557: 0.2}, nulls=(null,), seed=3),
        task_sweep("glue:sst2", "accuracy", 0.9, dims=subset, strong={143: 0.05}, seed=4),
    ]


def row(kind, label, lost, **more) -> Row:
    made = Row(kind, label, (), 3, 1, "all layers", 0.66 - lost, NAN, NAN, lost, lost - 0.02, lost + 0.02)
    return replace(made, **more)


def replication(base="models/distilbert", task="glue:rte", lost=0.12, mean=0.003, dims=OUTLIERS) -> Replication:
    rows = [row("intact", "intact", 0.0, size=0)]
    if dims:
        times = lost / mean if mean > 0 else None
        enough = lost >= 5 * mean if mean > 0 else lost > 0.02
        rows.append(row("together", "143, 283, 557", lost, dims=dims, times_random=times, enough=enough, p=0.05))
    rows.append(row("random", "19 random sets of 3", 0.002, n_sets=19, mean=mean))
    table = TaskTable(
        task, "accuracy", "m", "rte seed-42", "ab" * 32, "rte", 277, "model", 6, 768, 65_000_000, dims, "kovaleva", True,
        tuple(rows),
    )  # fmt: skip
    return Replication(synthetic.PROVENANCE, "kovaleva-glue", base, {}, (table,))
