"""Speed of a labelled task's evaluation against Hugging Face's `Trainer.evaluate`, with the same model and metric.

    python benchmarks/task_evaluation.py runs/minilm-l6-rte/seed-42/model --task glue:rte --data glue/rte
    python benchmarks/task_evaluation.py minilm-l6 --new-head --task glue:sst2 --data glue/sst2     # any model will do

The Trainer reads batches of 32 in file order, padded to the longest of each: its defaults. Both get the same token ids, made
beforehand, in the same process and precision (float32), in turn, in rounds of alternating order; the ratio is taken round by
round. The metric is the same function of both ways' predictions. Exit code 1 where its value differs by 1e-6 or more, or a
prediction of a class at all.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SAME = 1e-6
BATCH = 32


@dataclass
class Way:
    """One way of evaluating: a call that gives (predictions [text], metric), and its seconds round by round.

    `busy` are seconds of the processor, which others' load does not lengthen; a GPU's work does not count in them.
    """

    name: str
    evaluate: Callable[[], tuple[np.ndarray, float]]
    padded: int  # tokens with padding
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


def ours(loaded: Any, scorer: Any) -> Way:
    """`LabelledScore.outputs`, as `sweep`, `ablate` and `finetune` call it."""
    metric = scorer.examples.task.metric

    def evaluate() -> tuple[np.ndarray, float]:
        found = scorer.outputs()
        return found.predicted, found.scores[metric]

    feeds = scorer.feeds(range(scorer.n_texts), scorer.tokens)
    return Way("outlierlens", evaluate, sum(feed.inputs["input_ids"].numel() for feed in feeds))


def trainers(loaded: Any, scorer: Any, folder: str) -> Way:
    """`Trainer.evaluate` over the same token ids."""
    import transformers
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    from outlierlens.tasks.metrics import score

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
    arguments = TrainingArguments(
        folder, per_device_eval_batch_size=BATCH, report_to="none", disable_tqdm=True,
        use_cpu=loaded.device.type == "cpu", log_level="error",
    )  # fmt: skip
    trainer = Trainer(
        loaded.model,
        arguments,
        data_collator=DataCollatorWithPadding(loaded.tokenizer),
        eval_dataset=rows,
        compute_metrics=metrics,
    )
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)

    def evaluate() -> tuple[np.ndarray, float]:
        value = trainer.evaluate()["eval_metric"]
        return said[0], value

    lengths = scorer.lengths
    padded = sum(
        int(part.max()) * len(part) for part in (lengths[i : i + BATCH] for i in range(0, len(lengths), BATCH))
    )
    return Way("Trainer.evaluate", evaluate, padded)


def differ(one: tuple[np.ndarray, float], other: tuple[np.ndarray, float], *, regression: bool) -> bool:
    """Whether two ways say other things."""
    alike = np.allclose(one[0], other[0], atol=1e-4) if regression else np.array_equal(one[0], other[0])
    return not alike or abs(one[1] - other[1]) >= SAME


def rounds(ways: list[Way], n: int, *, regression: bool) -> bool:
    """Time `n` rounds, and say whether all said the same; a first round, in which libraries warm up, is not timed."""
    same = True
    for number in range(n + 1):
        found = {}
        for way in ways if number % 2 else ways[::-1]:
            start, busy = time.perf_counter(), time.process_time()
            found[way.name] = way.evaluate()
            if number:
                way.seconds.append(time.perf_counter() - start)
                way.busy.append(time.process_time() - busy)
        same = same and not differ(found[ways[0].name], found[ways[1].name], regression=regression)
    return same


def ratio(mine: list[float], others: list[float]) -> str:
    """Median and range of the ratios of each round."""
    found = [other / one for one, other in zip(mine, others, strict=True)]
    return f"{statistics.median(found):.2f} (from {min(found):.2f} to {max(found):.2f} in {len(found)} rounds)"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, and say by the exit code whether both ways agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a fine-tuned model: folder, sample or hub id")
    parser.add_argument("--task", required=True, help="such as glue:rte")
    parser.add_argument("--data", help="folder, file or hub id; without it the task's own on the hub")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, help="first examples only")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--threads", type=int, help="of PyTorch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--new-head", action="store_true", help="put a new head on the model, for the speed alone")
    options = parser.parse_args(arguments)

    import torch

    from outlierlens.data.labelled import find_task, read_examples
    from outlierlens.errors import OutlierlensError
    from outlierlens.models.load import LoadOptions, NewHead, load_model
    from outlierlens.tasks.base import TaskOptions
    from outlierlens.tasks.classify import LabelledScore

    if options.threads:
        torch.set_num_threads(options.threads)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        task = find_task(options.task)
        examples = read_examples(task, options.data, limit=options.limit)
        head = NewHead(task.labels) if options.new_head else None
        loaded = load_model(
            options.model, LoadOptions(dtype="float32", device=options.device, notice=lambda _: None), head
        )
        scorer = LabelledScore(loaded, examples, TaskOptions(max_length=options.max_length))
    except OutlierlensError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        ways = [ours(loaded, scorer), trainers(loaded, scorer, folder)]
        same = rounds(ways, options.rounds, regression=task.regression)
        value = ways[0].evaluate()[1]
    real = int(scorer.lengths.sum())
    print(
        f"{task.name}, {len(examples):,} examples, {real:,} tokens, {loaded.name}, {loaded.device}, "
        f"{torch.get_num_threads()} threads, {task.metric} {value:.4f}"
    )
    for way in ways:
        seconds = statistics.median(way.seconds)
        print(
            f"  {way.name:17} {seconds:8.3f} s  {real / seconds:9,.0f} tokens/s  {way.padded / real - 1:6.1%} padding"
        )
    print(f"  ratio of times {ratio(ways[0].seconds, ways[1].seconds)}")
    if loaded.device.type == "cpu":
        print(f"  ratio of processor seconds {ratio(ways[0].busy, ways[1].busy)}")
    if not same:
        print("  the two ways say different things", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
