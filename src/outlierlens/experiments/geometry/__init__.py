"""Where vectors point: anisotropy, self-similarity, isotropy and the dimensions that carry cosines, by layer and fix.

    found = geometry(loaded, read_texts("train.parquet", limit=3000), GeometryOptions())       # geometry.run
    found.row("5", "raw").anisotropy

`cosines` and `spread` are pure functions of vectors, `drawing` says which sentences, tokens and words are measured,
`resampling` makes intervals, `layers` measures one layer after one fix, `run` is the pass over the model.
"""
