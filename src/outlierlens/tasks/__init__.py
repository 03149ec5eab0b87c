"""Tasks: what a model is measured by, text by text.

    task = make_task(loaded, texts, TaskOptions())      # tasks.choice, tasks.base
    values, weights = task.per_text()                   # [text] each; the score is the weighted mean

`masked_loss`, `causal_loss` for language models; `output_change` for models without a vocabulary head.
"""
