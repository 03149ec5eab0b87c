"""Linear classifiers on the frozen, mean-pooled vectors of every layer, raw and repaired (Luo et al. 2021, table 3).

    splits = read_frozen(find_task("sst2"), "glue/sst2", limit=4000)
    found = frozen(load_model("minilm-l6"), splits, FrozenOptions())
    found.fix("clip").selected                      # at the layer that the dev split chooses, against raw vectors

`splits` reads train, dev and test apart, `classifiers` fits all classifiers at once, `measure` is the whole.
"""
