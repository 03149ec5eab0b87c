"""A sentence-transformers model with a fix as a module of its own, that nobody needs this package to read.

    options = EmbedderOptions(fix=FixSpec("whiten"), layer="2")
    found = export_embedder(loaded, Path("better"), options, fit=read_texts("train.txt"))
    SentenceTransformer("better").encode(["A plane is taking off."])

`cut` drops what lies behind the layer, `folder` writes and reads back, `view` describes, `measure` is the order of it.
"""
