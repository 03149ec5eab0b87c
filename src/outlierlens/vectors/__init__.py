"""Vectors of sentences, words and tokens from every layer in one forward pass, and linear repairs of them.

    tokens = tokenise(loaded, texts, max_length=128)
    vectors = gather(loaded, tokens, tokens.sentences())      # [layer, text, dim], mean over each text's tokens
    fix = make_fix(FixSpec("whiten"), 768, moments=moments_of(fitting))   # of a text that is never the evaluated one
    better = fix.apply(vectors.values[3])

`read` is the pass, `store` where large arrays live, `fixes` the repairs and the moments that they are fitted on, `cosines`
statistics of vectors with their intervals; `data.labelled.labels` keeps evaluated texts out.
"""
