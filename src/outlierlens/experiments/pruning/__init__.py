"""Pruning with one constraint: no position of the residual stream is removed in half the layers.

removal.py      the definition of a removed position, for files, live models and guards alike
masks.py        masks and pruned state dicts from files; positions.py: maps of narrower streams
check.py        prune_check("masks.safetensors", model="bert"): what a pruning did
guard.py        guarded_masks(scores, budget, constraint): masks that obey; torch_guard.py: the same for torch.nn.utils.prune
protect.py      protect("smollm2-135m", "llm-compressor"): what other tools should leave alone
experiment.py   prune_experiment(loaded, texts): what forcing a budget onto one position costs
"""
