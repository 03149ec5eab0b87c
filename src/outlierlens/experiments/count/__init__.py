"""Count how often a tokenizer's ids occur in a corpus of any size, on all cores.

counts = count_tokens(tokenizer, ["books/", "wiki.jsonl"], output="counts.parquet")     # goes on where it was stopped
counts = count_texts(tokenizer, ["A text.", "Another one."])

`tally` cuts the corpus into shards and counts one, `workers` hands shards to processes, `measure` adds up.
"""
