"""Rewrite a model by powers of two so that it fits a narrower format: `outlierlens repair`.

plan.py       what changes: exponents of parameters, epsilons, ties
epsilon.py    which key of a config sets the epsilon of which norm
rewriting.py  a plan on a live model, for a while or for good
extent.py     how large hidden states, writes and neurons get
formats.py    the model in the target format
folder.py     what is written
rotation.py   streams turned by an orthogonal matrix
"""
