"""Labelled tasks as data: GLUE, HANS, WiC, BoolQ, and any table of texts with labels.

    task = find_task("glue:rte")
    examples = read_examples(task, "rte/")           # a folder, a file or a hub id; texts, pairs and labels as numbers
    order = label_order(task, config)                # which label each output of a model means

A task is a row of `TASKS`; its first metric is what counts.
"""

from outlierlens.data.labelled.examples import Examples, read_examples
from outlierlens.data.labelled.labels import TASKS, LabelledTask, find_task, label_order, plain_task

__all__ = ["TASKS", "Examples", "LabelledTask", "find_task", "label_order", "plain_task", "read_examples"]
