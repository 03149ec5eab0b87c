"""A paper's table for any model, by its own protocol: fine-tune, switch off without training again, compare with controls.

    from outlierlens.replicate.glue.measure import Replicating, replicate

    made = replicate(Replicating("kovaleva-glue", "distilbert-cased", Path("runs/kovaleva"), tasks=("rte", "cola")))
    made.tables[0].outliers_row.times_random

`papers` is what each paper did, `outliers` which dimensions are switched off, `glue.models` where the fine-tuned models come
from, `glue.tables` how sweeps become lines of a table.
"""
