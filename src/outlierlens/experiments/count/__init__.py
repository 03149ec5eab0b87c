"""Count how often a tokenizer's ids occur in a corpus of any size, on all cores.

counts = count_tokens(tokenizer, ["books/", "wiki.jsonl"], output="counts.parquet")     # goes on where it was stopped
counts = count_texts(tokenizer, ["A text.", "Another one."])

`sources` cuts the corpus into shards, `tally` counts one, `workers` hands shards to processes, `run` adds up.
"""

from outlierlens.experiments.count.measure import count_texts, count_tokens
from outlierlens.experiments.count.options import CountOptions

__all__ = ["CountOptions", "count_texts", "count_tokens"]
