"""A token's position, predicted from its hidden state by one linear probe per layer (Luo et al. 2021, section 3).

    split = split_texts(read_texts("train.jsonl"), read_texts("dev.jsonl"), seed=0)
    found = probe_positions(loaded, split, resolve_clipping("557", loaded), ProbeOptions())
    found.layers[0].raw.accuracy

`flow` says what is trained on and what is evaluated, and brings shuffled tokens of all layers out of one forward pass an
epoch; `judge` trains all probes at once and evaluates them; `measure` is the whole, and looks how positions get into the
model at all.
"""
