"""Whether vectors say how alike sentences and words are: semantic similarity (STS) and words in context (WiC).

    tasks = [read_sts(task, folder) for task in sts_tasks("stsb,sickr")]
    found = sts(loaded, tasks, StsOptions(), fit=fit, clipping=clipping)      # every layer × every fix, one pass
    words = wic(loaded, read_wic(folder, "train"), read_wic(folder, "validation"), WicOptions(), fit=fit)

`table` holds the data sets, `pooling` how a sentence becomes a vector, `scores` cosines and rank correlations, the
thresholds of WiC, and which layer is taken.
"""
