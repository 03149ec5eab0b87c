"""Attention that keys receive, its correlation with hidden dimensions, and attention sinks; with dimensions on and off.

    found = attention(loaded, read_texts("train.parquet", limit=1000), AttentionOptions())    # attention.measure
    found.correlation("without_special").overall_p

`keys` says which tokens are special, first or delimiters, and reads one layer's maps of one batch, which are then gone;
`condition` is one pass with some dimensions off, and holds the sums that correlations and their intervals are made of;
`measure` makes correlations of the sums, and is the whole.
"""
