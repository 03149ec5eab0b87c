"""Speed of a labelled task's evaluation against Hugging Face's `Trainer.evaluate`, with the same model and metric.

    python benchmarks/task_evaluation.py                                                     # made-up texts, two labels
    python benchmarks/task_evaluation.py runs/minilm-l6-rte/seed-42/model glue:rte --data glue/rte
    python benchmarks/task_evaluation.py minilm-l6 glue:sst2 --data glue/sst2 --new-head     # any model will do

The Trainer reads batches of 32 in file order, padded to the longest of each: its defaults. Both get the same token ids, made
beforehand, in the same process and precision (float32), in turn, in rounds of alternating order; the ratio is taken round by
round. The metric is the same function of both ways' predictions. Exit code 1 where its value differs by 1e-6 or more, or a
prediction of a class at all.
"""

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from timing import Way, asked, compare, made_up, rounds, table
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from outlierlens.data.labelled import find_task, read_examples
from outlierlens.data.labelled.labels import plain_task
from outlierlens.models.load import LoadOptions, NewHead, load_model
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.tasks.metrics import score

SAME = 1e-6
BATCH = 32
Said = tuple[np.ndarray, float]  # predictions [text], metric


def ours(scorer: LabelledScore) -> Said:
    """`LabelledScore.outputs`, as `sweep`, `ablate` and `finetune` call it."""
    found = scorer.outputs()
    return found.predicted, found.scores[scorer.examples.task.metric]


def trainers(loaded: Any, scorer: LabelledScore, folder: str) -> Callable[[], Said]:
    """`Trainer.evaluate` over the same token ids."""
    task = scorer.examples.task
    encoded, labels = scorer.encoded.inputs, scorer.examples.labels
    order = np.array(scorer.order)
    outputs = {label: place for place, label in enumerate(scorer.order)}  # the model's own numbers of the labels
    rows = [
        {**{key: values[i] for key, values in encoded.items()}, "labels": label if task.regression else outputs[label]}
        for i, label in enumerate(labels)
    ]
    said: list[np.ndarray] = []

    def metrics(found: Any) -> dict[str, float]:
        predicted = found.predictions[:, 0].astype(float) if task.regression else order[found.predictions.argmax(-1)]
        truth = found.label_ids if task.regression else order[found.label_ids]
        said[:] = [predicted]
        return {"metric": score(task.metric, truth, predicted)}

    transformers.utils.logging.disable_progress_bar()
    how = TrainingArguments(
        folder, per_device_eval_batch_size=BATCH, report_to="none", disable_tqdm=True,
        use_cpu=loaded.device.type == "cpu", log_level="error",
    )  # fmt: skip
    collator = DataCollatorWithPadding(loaded.tokenizer)
    trainer = Trainer(loaded.model, how, data_collator=collator, eval_dataset=rows, compute_metrics=metrics)
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)

    def evaluate() -> Said:
        value = trainer.evaluate()["eval_metric"]
        return said[0], value

    return evaluate


def differ(one: Said, other: Said, *, regression: bool) -> bool:
    """Whether two ways say other things."""
    alike = np.allclose(one[0], other[0], atol=1e-4) if regression else np.array_equal(one[0], other[0])
    return not alike or abs(one[1] - other[1]) >= SAME


def made_up_examples(n: int = 48) -> Path:
    """A file of texts with one of two labels."""
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    rows = [{"text": text, "label": ("no", "yes")[number % 2]} for number, text in enumerate(made_up(n))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and say by the exit code whether both ways agree."""
    given = asked(
        __doc__, {"model": "minilm-l6", "task": ""}, arguments, data=str, rounds=1, limit=int, max_length=256, threads=int,
        device="auto", new_head=False,
    )  # fmt: skip
    logging.getLogger("transformers").setLevel(logging.ERROR)
    task = find_task(given.task) if given.task else plain_task("classify", "text", "label")
    examples = read_examples(task, given.data or made_up_examples(), limit=given.limit)
    how = LoadOptions(dtype="float32", device=given.device, notice=lambda _: None)
    loaded = load_model(given.model, how, NewHead(examples.task.labels) if given.new_head or not given.task else None)
    scorer = LabelledScore(loaded, examples, TaskOptions(max_length=given.max_length))
    with tempfile.TemporaryDirectory() as folder:
        ways = [
            Way("outlierlens", lambda: ours(scorer)),
            Way("Trainer.evaluate", trainers(loaded, scorer, folder)),
        ]
        one, other = rounds(ways, given.rounds).values()
    real = int(scorer.lengths.sum())
    print(
        f"{task.name}, {len(examples):,} examples, {real:,} tokens, {loaded.name}, {loaded.device}, "
        f"{torch.get_num_threads()} threads, {task.metric} {one[1]:.4f}"
    )
    table(ways, real, "tokens")
    parts = np.split(scorer.lengths, range(BATCH, len(scorer.lengths), BATCH))
    padded = (
        sum(feed.inputs["input_ids"].numel() for feed in scorer.feeds(range(scorer.n_texts), scorer.tokens)),
        sum(int(part.max()) * len(part) for part in parts),
    )
    print(f"  padding: {padded[0] / real - 1:.1%} of ours, {padded[1] / real - 1:.1%} of the Trainer's")
    compare("Trainer.evaluate over ours:", ways[1], ways[0])
    if differ(one, other, regression=task.regression):
        print("  the two ways say different things", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
