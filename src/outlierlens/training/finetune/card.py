"""The model card of a fine-tuned model: what it is, and the numbers it reached."""

import re
from pathlib import Path
from typing import Any

from outlierlens.errors import need, printable
from outlierlens.statistics.words import interval_text
from outlierlens.training.finetune.result import FineTuned, SeedRun

# What the hub calls metrics; a model-index has these types and our names beside them.
HUB_METRICS = {
    "macro f1": "f1",
    "token accuracy": "accuracy",
    "token f1": "f1",
    "mcc": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}


def card(tuned: FineTuned, run: SeedRun) -> str:
    """Markdown under the metadata that the hub reads."""
    yaml = need("yaml", "models", "a model card")
    best = run.best
    names = list(best.scores)
    scores = ", ".join(f"{name} {value:.4f}" for name, value in best.scores.items())
    rows = "\n".join(
        f"| {row.epoch:g} | {row.loss:.4f} | " + " | ".join(f"{row.scores[name]:.4f}" for name in names) + " |"
        for row in run.epochs
    )
    shown = {**tuned.settings, "seed": run.seed}
    settings = "\n".join(f"- {name}: {value}" for name, value in shown.items())
    base, train, dev, command = (
        printable(text)
        for text in (
            tuned.base,
            tuned.train,
            tuned.dev,
            tuned.provenance.command or "outlierlens.training.finetune.finetune(…)",
        )
    )
    return f"""---
{yaml.safe_dump(_metadata(tuned, run), allow_unicode=True, sort_keys=False).strip()}
---
# {base} fine-tuned on {tuned.task}

Epoch {run.best_epoch:g} of {len(run.epochs)}, the one with the best {tuned.metric} on {tuned.n_dev:,} dev examples:
{scores} (95 % interval of {tuned.metric} {interval_text(run.low, run.high, ".4f")}, examples resampled).
The dev set chose the epoch, so these numbers are slightly optimistic.

| epoch | dev loss | {" | ".join(names)} |
|---|---|{"---|" * len(names)}
{rows}

Trained on {tuned.n_train:,} examples of {train} (SHA-256 {tuned.train_digest[:16]}…), scored on {dev}
(SHA-256 {tuned.dev_digest[:16]}…), with outlierlens {tuned.provenance.version}:

{settings}

Made again by:

    {command}
"""


def _metadata(tuned: FineTuned, run: SeedRun) -> dict[str, Any]:
    kind = "token-classification" if tuned.metric.startswith("token") else "text-classification"
    metrics = [
        {"type": HUB_METRICS.get(name, name), "name": name, "value": round(value, 6)}
        for name, value in run.best.scores.items()
    ]
    result = {"task": {"type": kind}, "dataset": {"type": tuned.task, "name": tuned.task}, "metrics": metrics}
    found: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": kind}
    if (
        re.fullmatch(r"[\w.-]+/[\w.-]+", tuned.base, re.ASCII) and not Path(tuned.base).exists()
    ):  # the hub takes nothing but its own ids here
        found["base_model"] = tuned.base
    found["tags"] = ["outlierlens", tuned.task.replace(":", "-")]
    found["metrics"] = list(dict.fromkeys(metric["type"] for metric in metrics))
    found["model-index"] = [{"name": f"{printable(tuned.base)} fine-tuned on {tuned.task}", "results": [result]}]
    return found
