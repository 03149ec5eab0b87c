"""Which tensors must stay in high precision when a model is rounded, and how surely.

    found = plan(loaded, read_texts("excerpt"), PlanOptions(keep=0.04))      # plan.measure
    print(found.verdict)
    found.kept                                                              # (KeptLinear(path=…, inputs=True, …), …)

`mixed` rounds a running model but for what is kept, `cheap` orders entries from one pass with gradients, `search` chooses (a
pure function of values by text), `measure` does all of it and judges the choice on texts that had no part in it.
"""
