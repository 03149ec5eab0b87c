"""Rewrite a model by powers of two so that it fits a narrower format: `outlierlens repair`.

plan.py       what changes: exponents of parameters, epsilons, ties
epsilon.py    which key of a config sets the epsilon of which norm
rewriting.py  a plan on a live model, for a while or for good
pairs.py      channels inside a block that can take a factor each
check.py      what a model is run on, how large its tensors get, and what it gives
factors.py    which exponents follow from that
formats.py    the model in the target format
shards.py     the weight files, tensor by tensor
folder.py     what else is written
rotation.py   streams turned by an orthogonal matrix
"""
