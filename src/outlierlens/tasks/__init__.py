"""Tasks: what a model is measured by, text by text.

    task = make_task(loaded, texts, TaskOptions())
    values, weights = task.per_text()            # [text] each; the score is the weighted mean

`masked_loss`, `causal_loss` for language models; `output_change` for models without a vocabulary head.
"""

from outlierlens.tasks.base import Task, TaskOptions, begins, check_intact, scored, weighted_mean
from outlierlens.tasks.choose import make_task

__all__ = ["Task", "TaskOptions", "begins", "check_intact", "make_task", "scored", "weighted_mean"]
