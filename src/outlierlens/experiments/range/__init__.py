"""The number range of a running model: the largest |x| of every tensor, where it is, and which formats hold it.

    found = range_of(loaded, read_texts("test.parquet", limit=64), RangeOptions())             # measure
    found.top("MLP inner").headroom("fp16")

`places` says which modules give which kind of tensor, `tally` keeps maxima and counts by exponent, `weights` reads a
checkpoint without running it, `measure` is the pass.
"""
