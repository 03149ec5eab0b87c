"""Plausible synthetic results on labelled tasks: sweeps for figure 2, and the tables of `replicate`."""

import numpy as np

import synthetic_report as synthetic
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.replicate.glue import Replication, TaskModel, losses_of
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

OUTLIERS = (143, 283, 557)


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
        more.pop("effects", effects),
        more.pop("nulls", ()),
        task=f"{task} {metric}" if metric else f"{task} loss",
        unit=f"1 − {metric}" if metric else "nats per example",
        metric=metric,
        text="pair of at most 256 tokens",
        intact=Estimate(1 - intact if metric else intact, 3.27, 3.35),
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


def task_model(label="rte seed-42", task="glue:rte", dims=OUTLIERS, **more) -> TaskModel:
    made = {"metric": "accuracy", "intact": Estimate(0.66, 0.6, 0.72), "n_examples": 277, "named_by": "the rule"} | more
    return TaskModel(
        model=label, task=task, dims=dims, **{"by_rule": True, "n_parameters": 65_000_000} | made, folder="m",
        fingerprint="ab" * 32, data=task,
    )  # fmt: skip


def replication(base="models/distilbert", task="glue:rte", lost=0.12, mean=0.003, dims=OUTLIERS) -> Replication:
    """One model whose outliers lose `lost`, beside 19 random sets."""
    label = f"{task.rpartition(':')[2]} seed-42"
    both = synthetic.effect(dims, lost, half=0.02, n_texts=277)
    null = synthetic.null(both, (mean,) * 19, n_texts=277)
    swept = task_sweep(task, dims=(), effects=(both,), nulls=(null,))
    model = task_model(label, task, dims)
    return Replication(
        provenance=synthetic.PROVENANCE, about=About(dims=tuple(map(str, dims))), paper="kovaleva-glue", base=base,
        settings={}, losses=losses_of(swept, None, model), models=(model,),
    )  # fmt: skip
