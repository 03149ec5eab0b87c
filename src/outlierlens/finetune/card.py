"""The model card of a fine-tuned model: what it is, and the numbers it reached."""

from outlierlens.finetuned import FineTuned, SeedRun


def card(tuned: FineTuned, run: SeedRun) -> str:
    """Markdown with the metadata that the hub reads."""
    best = run.best
    scores = ", ".join(f"{name} {value:.4f}" for name, value in best.scores.items())
    names = list(best.scores)
    rows = "\n".join(
        f"| {row.epoch:g} | {row.loss:.4f} | " + " | ".join(f"{row.scores[name]:.4f}" for name in names) + " |"
        for row in run.epochs
    )
    heads = " | ".join(names)
    settings = "\n".join(f"- {name}: {value}" for name, value in {**tuned.settings, "seed": run.seed}.items())
    interval = f" (95 % interval {run.low:.4f} to {run.high:.4f}, examples resampled)" if run.low == run.low else ""
    return f"""---
base_model: {tuned.base}
library_name: transformers
tags: [outlierlens, {tuned.task.replace(":", "-")}]
metrics: [{", ".join(names)}]
---
# {tuned.base} fine-tuned on {tuned.task}

Epoch {run.best_epoch:g} of {len(run.epochs)}, the one with the best {tuned.metric} on {tuned.n_dev:,} dev examples:
{scores}{interval}. The dev set chose the epoch, so these numbers are slightly optimistic.

| epoch | dev loss | {heads} |
|---|---|{"---|" * len(names)}
{rows}

Trained on {tuned.n_train:,} examples of {tuned.train} (SHA-256 {tuned.train_digest[:16]}…), scored on {tuned.dev}
(SHA-256 {tuned.dev_digest[:16]}…), with outlierlens {tuned.provenance.version}:

{settings}

Made again by:

    {tuned.provenance.command or "outlierlens.finetune.finetune(…)"}
"""
