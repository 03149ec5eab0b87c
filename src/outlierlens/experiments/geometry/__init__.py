"""Where vectors point: anisotropy, self-similarity, isotropy and the dimensions that carry cosines, by layer and fix.

    found = geometry(loaded, read_texts("train.parquet", limit=3000), GeometryOptions())    # geometry.measure
    found.row("5", "raw").anisotropy

`vectors.cosines` holds pure functions of vectors and makes intervals, `vectors.spans` says which sentences, tokens and
words are measured, `layers` measures one layer after one fix, `measure` is the pass over the model.
"""
